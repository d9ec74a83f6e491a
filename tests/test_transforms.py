"""The transforms themselves: what they refuse, and what a call with one image gives."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fastdata import transforms as t
from fastdata.errors import UsageError
from fastdata.transforms import (
    CenterCrop,
    Compose,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomInvert,
    RandomResizedCrop,
    Resize,
    ResizeKeepRatio,
    Views,
)

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    random = np.random.default_rng(seed)
    return Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8))


def planes(image: Image.Image) -> torch.Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: t.RandomResizedCrop("224"), "size '224'"),
        (lambda: t.RandomResizedCrop((1, 2, 3)), "3 values"),
        (lambda: t.RandomResizedCrop(224, scale=(0.0, 1.0)), "scale"),
        (lambda: t.RandomResizedCrop(224, ratio=(1.0,)), "ratio"),
        (lambda: t.RandomResizedCrop(224, ratio=(1.0, float("nan"))), "ratio"),
        (lambda: t.RandomResizedCrop(9, interpolation=["bilinear", "box"]), "interpolation 'box'"),
        (lambda: t.RandomResizedCrop(9, interpolation=[]), "interpolation"),
        (lambda: t.Resize(True), "size True"),
        (lambda: t.Resize((4, 5), max_size=9), "max_size"),
        (lambda: t.Resize(9, max_size=9), "max_size"),
        (lambda: t.Resize(9, antialias="yes"), "antialias 'yes'"),
        (lambda: t.ResizeKeepRatio(9, random_scale_prob=2), "random_scale_prob 2"),
        (lambda: t.ResizeKeepRatio(9, random_aspect_range=(0.0, 1.0)), "random_aspect_range"),
        (lambda: t.CenterCrop(-1), "size -1"),
        (lambda: t.CenterCrop(9, padding_mode="wrap"), "padding_mode 'wrap'"),
        (lambda: t.CenterCrop(9, fill=256), "fill 256"),
        (lambda: t.RandomErasing(count=(3, 2)), "count 2"),
        (lambda: t.RandomErasing(scale=(0.5, 0.1)), "scale"),
        (lambda: t.RandomErasing(ratio=(0, 1)), "ratio"),
        (lambda: t.RandomErasing(value="some"), "value"),
        (lambda: t.RandomCrop(3, padding=(1, 2, 3)), "padding"),
        (lambda: t.RandomHorizontalFlip("0.5"), "p '0.5'"),
        (lambda: t.Normalize((0.5, 0.5), STD), "mean"),
        (lambda: t.Normalize(MEAN, STD, "float16"), "inplace 'float16'"),
        (lambda: t.Normalize(MEAN, (0.2, 0.0, 0.2)), "std"),
        (lambda: t.Normalize(MEAN, STD, dtype="uint8"), "dtype 'uint8'"),
        (lambda: t.Views(t.Resize(3)), "makes 1"),
        (lambda: t.Views(t.Resize(3), t.Resize(4), count=2), "count=2"),
        (lambda: t.Views(t.Resize(3), count=0), "count 0"),
        (lambda: t.Views(t.Resize(3), "flip"), "transform 1, 'flip'"),
        (lambda: t.Compose([]), "no transforms"),
        (lambda: t.Compose([t.CenterCrop]), "the class CenterCrop"),
        (lambda: t.Compose(t.Resize(3)), "not a list"),
        (lambda: t.ColorJitter(-1), "brightness -1"),
        (lambda: t.ColorJitter(hue=0.6), "hue"),
        (lambda: t.ColorJitter((0, 1e7)), "brightness"),
        (lambda: t.RandomGrayscale(1.5), "p 1.5"),
        (lambda: t.RandomPosterize(9), "bits"),
        (lambda: t.RandomSolarize(300), "threshold"),
        (lambda: t.RandomAdjustSharpness(-1), "sharpness_factor"),
        (lambda: t.GaussianBlur(4), "kernel_size"),
        (lambda: t.GaussianBlur(3, 0), "sigma"),
        (lambda: t.GaussianNoise(mean=11), "mean"),
        (lambda: t.RandomRotation(-3), "degrees"),
        (lambda: t.RandomRotation((3, -3)), "degrees"),
        (lambda: t.RandomRotation(3, "lanczos"), "interpolation"),
        (lambda: t.RandomAffine(3, translate=(2, 0)), "translate"),
        (lambda: t.RandomAffine(3, scale=(0, 1)), "scale"),
        (lambda: t.RandomAffine(3, scale=(1.2, 0.8)), "scale"),
        (lambda: t.RandomAffine(3, shear=(1, 2, 3)), "shear"),
        (lambda: t.RandomAffine(3, shear=(1, 2, 3, -3)), "shear"),
        (lambda: t.RandomPerspective(2), "distortion_scale"),
        (lambda: t.Pad(-1), "padding"),
        (lambda: t.RandomApply([]), "RandomApply"),
        (lambda: t.RandomApply([3]), "RandomApply"),
        (lambda: t.RandomChoice([t.RandomInvert()], [0]), "p"),
        (lambda: t.RandomChoice([t.RandomInvert()], [1, 2]), "p"),
        (lambda: t.RandAugment(magnitude=31), "magnitude"),
        (lambda: t.RandAugment(-1), "num_ops"),
        (lambda: t.TrivialAugmentWide(1), "num_magnitude_bins"),
        (lambda: t.AutoAugment("coco"), "policy"),
        (lambda: t.Grayscale(2), "num_output_channels"),
        (lambda: t.RandomResize(9, 9), "max_size"),
        (lambda: t.RandomShortestSize([]), "min_size"),
        (lambda: t.ScaleJitter((0, 9)), "target_size"),
        (lambda: t.RandomPhotometricDistort(hue=(-1, 1)), "hue"),
        (lambda: t.ResizeToSequence(0), "patch_size"),
        (lambda: t.ResizeToSequence(16, max_ratio=0), "max_ratio"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(make: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        make()
    assert caught.value.hint


def test_annotations_of_a_scripts_class_need_not_exist() -> None:
    class Prepared(Compose):
        models: SomethingImportedForTypesAlone  # type: ignore[name-defined]  # noqa: F821

    assert Prepared([CenterCrop(3)]).transforms == (CenterCrop(3),)


def test_sizes_are_height_and_width_as_in_torchvision() -> None:
    image = noise(60, 40)
    assert CenterCrop((10, 20))(image).shape == (3, 10, 20)
    assert RandomResizedCrop((10, 20))(image).shape == (3, 10, 20)
    assert RandomCrop((10, 20))(image).shape == (3, 10, 20)
    assert Resize((10, 20))(image).shape == (3, 10, 20)
    assert Resize(20)(image).shape == (3, 20, 30)
    assert Resize([20])(image).shape == (3, 20, 30)
    assert Resize(np.int64(20))(image).shape == (3, 20, 30)
    assert Resize(20, max_size=24)(image).shape == (3, 16, 24)
    assert Resize(20)(noise(40, 60)).shape == (3, 30, 20)


def test_a_target_is_covered_or_holds_the_image() -> None:
    image = noise(60, 40)
    assert ResizeKeepRatio((10, 20))(image).shape == (3, 13, 20)
    assert ResizeKeepRatio((10, 20), longest=1.0)(image).shape == (3, 10, 15)
    random = ResizeKeepRatio(20, random_scale_prob=1.0, random_scale_range=(2.0, 2.0))
    assert random(image).shape == (3, 40, 60)
    # Nothing of it is random, so that views share it.
    large, small = Compose([ResizeKeepRatio(20), Views(CenterCrop(20), CenterCrop(9))])(image)
    assert large.shape[1:] == (20, 20) and small.shape[1:] == (9, 9)
    # On pixels, too.
    resizes = ResizeKeepRatio(20, interpolation="bicubic"), Resize((20, 30), "bicubic")
    later, expected = (Compose([RandomInvert(1.0), resize])(image) for resize in resizes)
    assert (later == expected).all()


def test_one_of_several_filters_is_drawn_for_each_image() -> None:
    image = noise(60, 40)
    crop = {"size": 20, "scale": (1.0, 1.0), "ratio": (1.5, 1.5)}
    filters = ("nearest", "bicubic")
    wanted = [RandomResizedCrop(**crop, interpolation=name)(image) for name in filters]
    torch.manual_seed(1)
    drawn = RandomResizedCrop(**crop, interpolation=filters)
    found = [drawn(image) for _ in range(40)]
    counts = [sum(torch.equal(one, want) for one in found) for want in wanted]
    assert sum(counts) == 40 and min(counts) > 5


def test_what_is_padded_has_a_fill() -> None:
    image = noise(20, 10)
    padded = CenterCrop((12, 22), fill=(1, 2, 3))(image)
    assert padded[:, 0, 0].tolist() == [1, 2, 3]
    assert torch.equal(padded[:, 1:11, 1:21], planes(image))
    reflected = CenterCrop((12, 22), padding_mode="reflect")(image)
    assert torch.equal(reflected[:, 0, 1:21], planes(image)[:, 1])


def test_a_call_gives_pillows_pixels() -> None:
    image = noise(61, 47)
    assert torch.equal(
        Resize(20, interpolation="bicubic")(image),
        planes(image.resize((25, 20), Image.Resampling.BICUBIC)),
    )
    assert torch.equal(CenterCrop(11)(image), planes(image.crop((25, 18, 36, 29))))
    mirrored = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    assert torch.equal(RandomHorizontalFlip(1.0)(image), planes(mirrored))
    assert torch.equal(RandomHorizontalFlip(0.0)(image), planes(image))
    padded = CenterCrop((50, 70))(image)
    assert torch.equal(padded[:, 1:48, 4:65], planes(image))
    assert padded.sum() == planes(image).sum()


def test_callables_of_others_are_called_after_ours() -> None:
    image = noise(20, 20)
    seen: list[torch.Tensor] = []

    def double(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(tensor)
        return tensor.float() * 2

    result = Compose([CenterCrop(10), double, lambda tensor: tensor + 1])(image)
    assert seen[0].dtype == torch.uint8
    assert torch.equal(result, CenterCrop(10)(image).float() * 2 + 1)


def test_normalize_gives_the_type_that_it_is_told() -> None:
    image = noise(9, 9)
    wanted = Normalize(MEAN, STD)(image)
    for dtype in (torch.float16, torch.bfloat16):
        normalize = Normalize(MEAN, STD, dtype=dtype)
        assert normalize == Normalize(MEAN, STD, dtype=str(dtype)[6:])
        assert torch.equal(normalize(image), wanted.to(dtype))


def test_they_are_pickled_whole() -> None:
    transform = Compose([RandomResizedCrop(16), RandomHorizontalFlip(), Normalize(MEAN, STD)])
    assert pickle.loads(pickle.dumps(transform)) == transform


def test_they_are_made_and_compiled_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from fastdata.transforms import *\n"
        "from fastdata.transforms.compile import compile_recipe\n"
        "import numpy\n"
        "recipe = compile_recipe(Compose([RandomResizedCrop(8), Normalize((0,) * 3, (1,) * 3)]))\n"
        "print(recipe.programs[0].draw([30], [30], numpy.zeros(1, numpy.uint64))['box'].shape)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "(1, 4)\n", done.stderr
