"""Recipes of libraries and scripts: the rows of docs/recipes.md, measured by the benchmarks."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import published
import torch
from fastdata.benchmarks.adapters._torchvision import import_torchvision
from fastdata.benchmarks.adapters._transforms import MEAN, STD
from recipe_libraries import libraries

Makers = dict[str, Callable[[], Any]]

_HALVES = ((0.5,) * 3, (0.5,) * 3)
_CIFAR = ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))
_OPENAI = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))


def small(name: str) -> bool:
    return name.startswith("CIFAR")


def recipes() -> Makers:
    """Return the maker of each recipe; one whose library is missing raises ImportError."""
    tv = import_torchvision().transforms
    importlib.import_module("torchvision.transforms.v2")
    s = _Script(tv)
    found = libraries()
    for part in (_torchvision, _examples, _ends, _masked, _supervised, _cifar, _views, _preset):
        found |= part(s)
    return found


class _Script:
    def __init__(self, tv: Any) -> None:
        self.tv = tv
        self.bicubic = tv.InterpolationMode.BICUBIC

    def crop(
        self, size: int, scale: tuple[float, float] = (0.08, 1.0), filtered: str = "bilinear"
    ) -> Any:
        mode = self.tv.InterpolationMode(filtered)
        return self.tv.RandomResizedCrop(size, scale=scale, interpolation=mode)

    def flip(self) -> Any:
        return self.tv.RandomHorizontalFlip(p=0.5)

    def colours(self, *jitter: float) -> list[Any]:
        """Jitter by that much in four of five images, and grey in one of five."""
        distorted = self.tv.RandomApply([self.tv.ColorJitter(*jitter)], p=0.8)
        return [distorted, self.tv.RandomGrayscale(p=0.2)]

    def tensor(self, values: Any = (MEAN, STD)) -> list[Any]:
        return [self.tv.ToTensor(), self.tv.Normalize(*values)]

    def view(self, *steps: Any, values: Any = (MEAN, STD)) -> Any:
        return self.tv.Compose([*steps, *self.tensor(values)])


def _torchvision(s: _Script) -> Makers:
    v1, v2 = s.tv, s.tv.v2
    bilinear, presets = s.tv.InterpolationMode.BILINEAR, published.References

    def steps(backend: str, version: int, *crop: Any) -> list[Any]:
        tv = v1 if version == 1 else v2
        start, end = ([], [tv.PILToTensor()])[:: 1 if backend == "pil" else -1]
        floats = (
            tv.ToDtype(torch.float, scale=True)
            if version == 2
            else tv.ConvertImageDtype(torch.float)
        )
        return [*start, *crop, *end, floats, tv.Normalize(MEAN, STD)]

    def train(backend: str, version: int, policy: str, mode: Any = bilinear) -> Callable[[], Any]:
        tv = v1 if version == 1 else v2

        def make() -> Any:
            crop = tv.RandomResizedCrop(176, interpolation=mode, antialias=True)
            augmented = [getattr(tv, policy)()] if policy else []
            made = steps(backend, version, crop, tv.RandomHorizontalFlip(0.5), *augmented)
            pure = [tv.ToPureTensor()] if version == 2 else []
            transforms = tv.Compose([*made, tv.RandomErasing(0.1), *pure])
            return presets.ClassificationPresetTrain(transforms)

        return make

    def evaluation(backend: str, version: int, mode: Any = bilinear) -> Callable[[], Any]:
        tv = v1 if version == 1 else v2

        def make() -> Any:
            resize = tv.Resize(232, interpolation=mode, antialias=True)
            made = steps(backend, version, resize, tv.CenterCrop(224))
            pure = [tv.ToPureTensor()] if version == 2 else []
            return presets.ClassificationPresetEval(tv.Compose([*made, *pure]))

        return make

    found: Makers = {}
    for version in (1, 2):
        for backend in ("pil", "tensor"):
            name = f"torchvision, reference, v{version}, {backend}"
            found[f"{name}, training"] = train(backend, version, "TrivialAugmentWide")
            found[f"{name}, evaluation"] = evaluation(backend, version)
    for policy in ("RandAugment", "AugMix", "AutoAugment"):
        found[f"torchvision, reference, v1, pil, {policy}"] = train("pil", 1, policy)
        found[f"torchvision, reference, v2, tensor, {policy}"] = train("tensor", 2, policy)
    bicubic, crop = "torchvision, reference, v2, tensor, bicubic", v2.RandomResizedCrop
    floats = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]
    flip = v2.RandomHorizontalFlip()
    found |= {
        f"{bicubic}, training": train("tensor", 2, "", s.bicubic),
        f"{bicubic}, evaluation": evaluation("tensor", 2, s.bicubic),
        "torchvision, floats before the crop": lambda: v1.Compose(
            [v1.ToTensor(), v1.RandomResizedCrop(224), s.flip(), v1.Normalize(MEAN, STD)]
        ),
        "torchvision, v2, floats before the crop": lambda: v2.Compose(
            [v2.ToImage(), floats[0], crop(224, antialias=True), flip, floats[1]]
        ),
        "torchvision, v2, bytes before the crop": lambda: v2.Compose(
            [v2.ToImage(), crop(224, antialias=True), flip, *floats]
        ),
        "torchvision, tensors without antialiasing": lambda: v2.Compose(
            [v2.PILToTensor(), v2.Resize((224, 224), antialias=False), flip, *floats]
        ),
        "torchvision, jitter of floats": lambda: v1.Compose(
            [v1.Resize((224, 224)), v1.ToTensor(), v1.ColorJitter(0.4, 0.4, 0.4), *s.tensor()[1:]]
        ),
    }
    return found


def _examples(s: _Script) -> Makers:
    tv = s.tv

    def to_rgb(image: Any) -> Any:
        return image.convert("RGB")

    return {
        "pytorch/examples, evaluation on ImageNet": lambda: s.view(
            tv.Resize(256), tv.CenterCrop(224)
        ),
        "PyTorch's tutorials, DCGAN": lambda: s.view(
            tv.Resize(64), tv.CenterCrop(64), values=_HALVES
        ),
        "PyTorch's tutorials, a network's first layers": lambda: tv.Compose(
            [tv.Resize((64, 64)), tv.Grayscale(1), tv.ToTensor(), tv.Normalize((0.5,), (0.5,))]
        ),
        "Hugging Face, run_image_classification, training": lambda: s.view(s.crop(224), s.flip()),
        "Hugging Face, run_image_classification, evaluation": lambda: s.view(
            tv.Resize(224), tv.CenterCrop(224)
        ),
        "Hugging Face, run_mim": lambda: s.view(
            tv.Lambda(lambda img: img.convert("RGB") if img.mode != "RGB" else img),
            tv.RandomResizedCrop(192, scale=(0.67, 1.0), ratio=(3 / 4, 4 / 3)),
            s.flip(),
        ),
        "Hugging Face, run_mae": lambda: s.view(
            tv.Lambda(to_rgb), s.crop(224, (0.2, 1.0), "bicubic"), s.flip()
        ),
        "Hugging Face, diffusers": lambda: s.view(
            tv.Resize(128), tv.CenterCrop(128), s.flip(), values=_HALVES
        ),
        "Hugging Face, diffusers, random crops": lambda: s.view(
            tv.Resize(128), tv.RandomCrop(128), s.flip(), values=_HALVES
        ),
        "Hugging Face, accelerate's cv_example": lambda: tv.Compose(
            [tv.RandomResizedCrop((224, 224)), tv.ToTensor()]
        ),
        "open_clip, by a function that converts": lambda: s.view(
            s.crop(224, (0.9, 1.0), "bicubic"), published._convert_image_to_rgb, values=_OPENAI
        ),
    }


def _ends(s: _Script) -> Makers:
    tv = s.tv
    return {
        "OpenAI's CLIP": lambda: s.view(
            tv.Resize(224, interpolation=s.bicubic),
            tv.CenterCrop(224),
            published._convert_image_to_rgb,
            values=_OPENAI,
        ),
        "OpenAI's CLIP, converted by a lambda": lambda: s.view(
            tv.Resize(224, interpolation=s.bicubic),
            tv.CenterCrop(224),
            lambda image: image.convert("RGB"),
            values=_OPENAI,
        ),
        "DeiT, Swin, MAE, evaluation": lambda: s.view(
            tv.Resize(256, interpolation=3), tv.CenterCrop(224)
        ),
        "ConvNeXt, evaluation at 384": lambda: s.view(
            tv.Resize((384, 384), interpolation=s.bicubic)
        ),
        "DINO, features": lambda: s.view(tv.Resize(256, interpolation=3), tv.CenterCrop(224)),
        "BiT, evaluation": lambda: s.view(tv.Resize((128, 128)), values=_HALVES),
    }


def _masked(s: _Script) -> Makers:
    return {
        "MAE, linear probing": lambda: s.view(
            published.MAE.RandomResizedCrop(224, interpolation=3), s.flip()
        ),
        "SimMIM": published.SimMIM.SimMIMTransform,
        "BEiT, pretraining": published.BEiT.DataAugmentationForBEiT,
    }


def _supervised(s: _Script) -> Makers:
    tv = s.tv
    dino = published.DINO
    three = [published.DeiT.gray_scale(1.0), dino.Solarization(1.0), dino.GaussianBlur(1.0)]
    lighting = published.Lighting(0.1)
    return {
        "DeiT III, 3-Augment": lambda: s.view(
            tv.RandomResizedCrop(224, scale=(0.08, 1.0), interpolation=3),
            s.flip(),
            tv.RandomChoice(three),
            tv.ColorJitter(0.3, 0.3, 0.3),
        ),
        "DeiT III, 3-Augment, simple crops": lambda: s.view(
            tv.Resize(224, interpolation=3),
            tv.RandomCrop(224, padding=4, padding_mode="reflect"),
            s.flip(),
            tv.RandomChoice(three),
            tv.ColorJitter(0.3, 0.3, 0.3),
        ),
        "timm's crop, copied into a script": lambda: s.view(
            published.Copied.RandomResizedCropAndInterpolation(
                (224, 224), (0.08, 1.0), (3 / 4, 4 / 3), (s.bicubic, tv.InterpolationMode.BILINEAR)
            ),
            s.flip(),
        ),
        "DINO, linear probing": lambda: s.view(s.crop(224), s.flip()),
        "SupContrast, linear probing": lambda: s.view(s.crop(32, (0.2, 1.0)), s.flip()),
        "CutMix, training on ImageNet": lambda: tv.Compose(
            [
                s.crop(224),
                s.flip(),
                tv.ColorJitter(0.4, 0.4, 0.4),
                tv.ToTensor(),
                lighting,
                tv.Normalize(MEAN, STD),
            ]
        ),
        "AlexNet, lighting": lambda: tv.Compose(
            [s.crop(224), s.flip(), tv.ToTensor(), lighting, tv.Normalize(MEAN, STD)]
        ),
        "BiT, training": lambda: s.view(
            tv.Resize((160, 160)), tv.RandomCrop((128, 128)), s.flip(), values=_HALVES
        ),
        "TransFG, training": lambda: s.view(
            tv.Resize((600, 600)), tv.RandomCrop((448, 448)), s.flip()
        ),
        "DomainBed, training": lambda: s.view(
            s.crop(224, (0.7, 1.0)),
            s.flip(),
            tv.ColorJitter(0.3, 0.3, 0.3, 0.3),
            tv.RandomGrayscale(),
        ),
        "re-identification": lambda: tv.Compose(
            [
                tv.Resize((256, 128), interpolation=3),
                s.flip(),
                tv.Pad(10),
                tv.RandomCrop((256, 128)),
                *s.tensor(),
                tv.RandomErasing(0.5),
            ]
        ),
        "flowers, training": lambda: s.view(tv.RandomRotation(30), s.crop(224), s.flip()),
        "CelebA, 128 pixels": lambda: s.view(
            tv.CenterCrop(178), tv.Resize(128), s.flip(), values=_HALVES
        ),
    }


def _cifar(s: _Script) -> Makers:
    tv = s.tv
    crop = tv.RandomCrop(32, padding=4)
    last = s.tensor(_CIFAR)

    def fixmatch() -> Any:
        weak = [s.flip(), tv.RandomCrop(32, padding=4, padding_mode="reflect")]
        strong = [*weak, published.RandAugmentMC(n=2, m=10)]
        return published.TransformFixMatch(*map(tv.Compose, (weak, strong, last)))

    return {
        "CIFAR, training": lambda: tv.Compose([crop, s.flip(), *last]),
        "CIFAR, evaluation": lambda: tv.Compose(last),
        "CIFAR, Cutout": lambda: tv.Compose([crop, s.flip(), *last, published.Cutout(1, 16)]),
        "CIFAR, AutoAugment and Cutout": lambda: tv.Compose(
            [
                crop,
                s.flip(),
                tv.AutoAugment(tv.AutoAugmentPolicy.CIFAR10),
                *last,
                published.Cutout(1, 16),
            ]
        ),
        "CIFAR, TrivialAugment and RandomErasing": lambda: tv.Compose(
            [crop, s.flip(), tv.TrivialAugmentWide(), *last, tv.RandomErasing(0.25)]
        ),
        "CIFAR, FixMatch, weak": lambda: tv.Compose(
            [s.flip(), tv.RandomCrop(32, padding=4, padding_mode="reflect"), *last]
        ),
        "CIFAR, FixMatch, 2 views": fixmatch,
        "CIFAR, SupContrast, 2 views": lambda: published.SupContrast.TwoCropTransform(
            s.view(s.crop(32, (0.2, 1.0)), s.flip(), *s.colours(0.4, 0.4, 0.4, 0.1), values=_CIFAR)
        ),
    }


def _two(s: _Script, script: Any, *colours: Any) -> list[Any]:
    """The two views of Barlow Twins, VICReg, BYOL: one always blurred, one solarised at times."""
    return [
        s.view(
            s.crop(224, filtered="bicubic"),
            s.flip(),
            *(colours or s.colours(0.4, 0.4, 0.2, 0.1)),
            script.GaussianBlur(p=blurred),
            script.Solarization(p=solarised),
        )
        for blurred, solarised in ((1.0, 0.0), (0.1, 0.2))
    ]


def _multi(
    s: _Script, kind: Any, whole: tuple[float, float], part: tuple[float, float], count: int
) -> Callable[[], Any]:
    colours = [s.flip(), *s.colours(0.4, 0.4, 0.2, 0.1)]
    blur, solarise = published.DINO.GaussianBlur, published.DINO.Solarization
    first = s.view(s.crop(224, whole, "bicubic"), *colours, blur(1.0))
    second = s.view(s.crop(224, whole, "bicubic"), *colours, blur(0.1), solarise(0.2))
    local = s.view(s.crop(96, part, "bicubic"), *colours, blur(p=0.5))
    return lambda: kind(first, second, local, local_crops_number=count)


def _distorted(s: _Script, blur: Any, size: int, *scale: float) -> Any:
    colours = s.colours(0.8, 0.8, 0.8, 0.2)
    return s.view(s.crop(size, (scale[0], scale[1])), s.flip(), *colours, blur)


def _views(s: _Script) -> Makers:
    tv = s.tv
    blur = tv.RandomApply([published.MoCo.GaussianBlur([0.1, 2.0])], p=0.5)
    jitter = tv.RandomApply([tv.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8)
    grey = tv.RandomGrayscale(p=0.2)
    second = s.view(s.crop(224, (0.2, 1.0)), jitter, grey, blur, s.flip())
    grainy = tv.RandomApply([tv.GaussianBlur(23, (0.1, 2.0))], p=0.5)
    barlow, byol, vicreg = published.BarlowTwins, published.BYOL, published.VICReg
    swav, msn = published.SwAV.PILRandomGaussianBlur(p=0.5), published.MSN.GaussianBlur(p=0.5)

    def third(blurred: float, *more: Any) -> Any:
        blur = tv.RandomApply([published.MoCo.GaussianBlur([0.1, 2.0])], p=blurred)
        return s.view(
            s.crop(224, (0.08, 1.0)), *s.colours(0.4, 0.4, 0.2, 0.1), blur, *more, s.flip()
        )

    return {
        "DINO, 2 + 8 crops": _multi(
            s, published.DINO.DataAugmentationDINO, (0.4, 1.0), (0.05, 0.4), 8
        ),
        "iBOT, 2 + 10 crops": _multi(
            s, published.IBOT.DataAugmentationiBOT, (0.25, 1.0), (0.05, 0.25), 10
        ),
        "SwAV, 2 + 6 crops": lambda: published.SwAV.MultiCropDataset(
            [_distorted(s, swav, 224, 0.14, 1.0)] * 2 + [_distorted(s, swav, 96, 0.05, 0.14)] * 6
        ),
        "MSN, 2 + 10 crops": lambda: published.MSN.MultiViewTransform(
            _distorted(s, msn, 224, 0.3, 1.0), _distorted(s, msn, 96, 0.05, 0.3), 2, 10
        ),
        "SimCLR, 2 views": lambda: published.SimCLR.ContrastiveLearningViewGenerator(
            s.view(s.crop(224), s.flip(), *s.colours(0.8, 0.8, 0.8, 0.2), grainy)
        ),
        "BYOL, 2 views": lambda: byol.MultiViewDataInjector(
            _two(s, barlow, byol.RandomApply(tv.ColorJitter(0.4, 0.4, 0.2, 0.1), 0.8), grey)
        ),
        "Barlow Twins, 2 views": lambda: barlow.Transform(*_two(s, barlow)),
        "VICReg, 2 views": lambda: vicreg.TrainTransform(*_two(s, vicreg)),
        "MoCo v1, 2 views": lambda: published.MoCo.TwoCropsTransform(
            s.view(s.crop(224, (0.2, 1.0)), grey, tv.ColorJitter(0.4, 0.4, 0.4, 0.4), s.flip())
        ),
        "MoCo v2, 2 views": lambda: published.MoCo.TwoCropsTransform(second),
        "MoCo v3, 2 views": lambda: published.MoCoV3.TwoCropsTransform(
            third(1.0), third(0.1, tv.RandomApply([published.MoCoV3.Solarize()], p=0.2))
        ),
        "SimSiam, 2 views": lambda: published.MoCo.TwoCropsTransform(second),
        "SupContrast, 2 views": lambda: published.SupContrast.TwoCropTransform(
            s.view(s.crop(224, (0.2, 1.0)), s.flip(), *s.colours(0.4, 0.4, 0.4, 0.1))
        ),
    }


def _preset(s: _Script) -> Makers:
    """DINOv2, whose ``GaussianBlur(p)`` blurs with probability 1 - p."""
    tv = s.tv

    def view(size: int, scale: tuple[float, float], blurred: float, *more: Any) -> Any:
        blur = tv.RandomApply([tv.GaussianBlur(9, (0.1, 2.0))], p=blurred)
        colours = s.colours(0.4, 0.4, 0.2, 0.1)
        return s.view(s.crop(size, scale, "bicubic"), s.flip(), *colours, blur, *more)

    solarised = tv.RandomSolarize(threshold=128, p=0.2)
    return {
        "DINOv2, 2 + 8 crops": lambda: published.DINO.DataAugmentationDINO(
            view(224, (0.32, 1.0), 0.0),
            view(224, (0.32, 1.0), 0.9, solarised),
            view(98, (0.05, 0.32), 0.5),
            8,
        )
    }
