"""Makers of the transforms of torchvision, timm, open_clip and other libraries."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from fastdata.benchmarks.adapters._torchvision import import_torchvision
from fastdata.benchmarks.adapters._transforms import MEAN, STD

_MODELS = (
    "resnet50",
    "efficientnet_b0",
    "vit_b_16",
    "swin_v2_t",
    "convnext_tiny",
    "mobilenet_v3_large",
)


def libraries() -> dict[str, Callable[[], Any]]:
    """Return the maker of each recipe, which raises ImportError without its library."""
    tv = import_torchvision().transforms

    def weights(model: str) -> Callable[[], Any]:
        models = import_torchvision().models
        return lambda: models.get_model_weights(model).DEFAULT.transforms()

    def composed(crop: Any, *steps: Any, more: Sequence[Any] = ()) -> Callable[[], Any]:
        last = [tv.PILToTensor(), tv.ConvertImageDtype(torch.float), tv.Normalize(MEAN, STD)]
        return lambda: tv.Compose([crop, tv.RandomHorizontalFlip(), *steps, *last, *more])

    def made(**options: Any) -> Callable[[], Any]:
        def make() -> Any:
            import_torchvision()
            timm = importlib.import_module("timm.data")
            return timm.create_transform(**{"input_size": 224, **options})

        return make

    def train(**options: Any) -> Callable[[], Any]:
        return made(is_training=True, **options)

    def clip(train: bool, **options: Any) -> Callable[[], Any]:
        def make() -> Any:
            import_torchvision()
            module = importlib.import_module("open_clip.transform")
            return module.image_transform(224, train, **options)

        return make

    found = {f"torchvision, weights of {model}": weights(model) for model in _MODELS}
    bicubic = tv.InterpolationMode.BICUBIC
    found |= {
        "torchvision, reference training of ResNet-50": composed(
            tv.RandomResizedCrop(176), tv.TrivialAugmentWide(), more=[tv.RandomErasing(0.1)]
        ),
        "pytorch/examples, training on ImageNet": composed(tv.RandomResizedCrop(224)),
        "MAE, pretraining": composed(
            tv.RandomResizedCrop(224, (0.2, 1.0), interpolation=bicubic),
        ),
        "timm, training": train(),
        "timm, training, random interpolation": train(interpolation="random"),
        "timm, rand-m9-mstd0.5-inc1, erasing pixels (DeiT, ConvNeXt, Swin)": train(
            auto_augment="rand-m9-mstd0.5-inc1",
            interpolation="bicubic",
            re_prob=0.25,
            re_mode="pixel",
        ),
        "timm, rand-m7-mstd0.5, erasing by a colour": train(
            auto_augment="rand-m7-mstd0.5", re_prob=0.2, re_mode="rand", re_count=3
        ),
        "timm, rand-mstd1-tweights": train(auto_augment="rand-mstd1-tweights"),
        "timm, AutoAugment, original-mstd0.5": train(auto_augment="original-mstd0.5"),
        "timm, AutoAugment, v0r": train(auto_augment="v0r"),
        "timm, 3-Augment (DeiT III)": train(auto_augment="3a", color_jitter=0.3),
        "timm, as SimCLR": train(color_jitter_prob=0.8, grayscale_prob=0.2, gaussian_blur_prob=0.5),
        "timm, AugMix": train(auto_augment="augmix-m5-w4-d2"),
        "timm, training, resized keeping the ratio": train(train_crop_mode="rkrr"),
        "timm, training without augmentations": train(no_aug=True),
        "timm, evaluation": made(),
        "timm, evaluation, bicubic, all of the image": made(interpolation="bicubic", crop_pct=1.0),
        "timm, evaluation, squashed": made(crop_mode="squash"),
        "timm, evaluation, with borders": made(crop_mode="border"),
        "timm, evaluation, oblong": made(input_size=(3, 160, 224)),
        "timm, evaluation, for its prefetcher": made(use_prefetcher=True),
        "timm, NaFlex": made(naflex=True),
        "open_clip, training": clip(True),
        "open_clip, training, jitter and grey": clip(
            True,
            aug_cfg={
                "color_jitter": (0.32, 0.32, 0.32, 0.08),
                "color_jitter_prob": 0.8,
                "gray_scale_prob": 0.2,
            },
        ),
        "open_clip, training, by timm": clip(True, aug_cfg={"use_timm": True, "re_prob": 0.1}),
        "open_clip, evaluation": clip(False),
        "open_clip, evaluation, longest": clip(False, resize_mode="longest"),
        "open_clip, evaluation, squash": clip(False, resize_mode="squash"),
    }
    return found | _processors() | _several()


def _processors() -> dict[str, Callable[[], Any]]:
    def processor(model: str, kind: str, backend: str = "", **options: Any) -> Callable[[], Any]:
        module = f"transformers.models.{model}.image_processing_{backend and 'pil_'}{model}"

        def make() -> Any:
            import_torchvision()
            return getattr(importlib.import_module(module), kind + backend)(**options)

        return make

    dinov2: dict[str, Any] = {
        "size": {"shortest_edge": 256},
        "image_mean": list(MEAN),
        "image_std": list(STD),
    }
    small = {"size": {"shortest_edge": 224}}
    efficientnet = {"size": {"height": 224, "width": 224}, "resample": 0}
    both: dict[str, tuple[str, str, dict[str, Any]]] = {
        "CLIP": ("clip", "CLIPImageProcessor", {}),
        "SigLIP": ("siglip", "SiglipImageProcessor", {}),
        "DINOv2": ("bit", "BitImageProcessor", dinov2),
        "ConvNext": ("convnext", "ConvNextImageProcessor", small),
        "DeiT": ("deit", "DeiTImageProcessor", {}),
        "BEiT": ("beit", "BeitImageProcessor", {}),
        "EfficientNet": ("efficientnet", "EfficientNetImageProcessor", {}),
    }
    mobilevit = {"size": {"shortest_edge": 288}, "crop_size": {"height": 256, "width": 256}}
    found = {
        "transformers, ViT": processor("vit", "ViTImageProcessor"),
        "transformers, DINOv3": processor("dinov3_vit", "DINOv3ViTImageProcessor"),
        "transformers, ConvNext at 384": processor("convnext", "ConvNextImageProcessor"),
        "transformers, SigLIP 2": processor("siglip", "SiglipImageProcessor", resample=2),
        "transformers, SigLIP 2, NaFlex": processor("siglip2", "Siglip2ImageProcessor"),
        "transformers, VideoMAE, a frame": processor("videomae", "VideoMAEImageProcessor"),
        "transformers, MobileNet": processor("mobilenet_v1", "MobileNetV1ImageProcessor"),
        "transformers, MobileNetV2": processor("mobilenet_v2", "MobileNetV2ImageProcessor"),
        "transformers, MobileViT": processor("mobilevit", "MobileViTImageProcessor", **mobilevit),
        "transformers, Segformer": processor("segformer", "SegformerImageProcessor"),
        "transformers, EfficientNet, nearest": processor(
            "efficientnet", "EfficientNetImageProcessor", **efficientnet
        ),
        "transformers, EfficientNet, nearest, by Pillow": processor(
            "efficientnet", "EfficientNetImageProcessor", "Pil", **efficientnet
        ),
    }
    for name, (model, kind, options) in both.items():
        found[f"transformers, {name}"] = processor(model, kind, **options)
        found[f"transformers, {name}, by Pillow"] = processor(model, kind, "Pil", **options)
    return found


def _several() -> dict[str, Callable[[], Any]]:
    def lightly(name: str) -> Callable[[], Any]:
        def make() -> Any:
            import_torchvision()
            return getattr(importlib.import_module("lightly.transforms"), f"{name}Transform")()

        return make

    def dinov2() -> Any:
        import_torchvision()
        module = importlib.import_module("dinov2.data.augmentations")
        return module.DataAugmentationDINO((0.32, 1.0), (0.05, 0.32), 8, 224, 98)

    names = ("SimCLR", "BYOL", "MoCoV2", "SimSiam", "VICReg", "SwaV", "DINO", "IBOT", "MSN", "MAE")
    return {
        **{f"lightly, {name}": lightly(name) for name in names},
        "dinov2, its own package": dinov2,
    }
