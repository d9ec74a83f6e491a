"""torchvision's names mean what torchvision means: parameters, defaults, values, channels."""

from __future__ import annotations

import enum
import inspect
import math
from typing import Any

import numpy as np
import pytest
import torch
from core_pixels import by_core, whole_recipe
from loader_data import images
from PIL import Image
from torchvision_calls import noise
from torchvision_stub import import_torchvision

from fastdata import DataLoader
from fastdata import transforms as ours
from fastdata.errors import UsageError
from fastdata.transforms.compile import compile_recipe
from fastdata.transforms.outcomes import Refusal

TV = import_torchvision().transforms
MODE = TV.InterpolationMode

#: Parameters that torchvision does not have, all of them keywords: what timm, Keras or another
#: version of torchvision does otherwise, and the dtype of the result.
ADDED = {
    **{key: {"mask_fill"} for key in ("Pad", "RandomAffine", "RandomCrop")},
    **{key: {"mask_fill"} for key in ("RandomPerspective", "RandomRotation", "RandomZoomOut")},
    "AugMix": {"version"},
    "AutoAugment": {"version"},
    "CenterCrop": {"fill", "mask_fill", "padding_mode"},
    "ConvertBoundingBoxFormat": {"relative"},
    "Normalize": {"dtype"},
    "RandAugment": {"version"},
    "RandomErasing": {"count", "in_double"},
    "RandomIoUCrop": {"p"},
    "RandomResizedCrop": {"in_double"},
    "TrivialAugmentWide": {"version"},
}

#: Classes of ours alone.
OURS = {
    *("FixedSizeCrop", "PadToSize", "ResizeKeepRatio", "ResizeToSequence"),
    *("Schedule", "Transform", "Views"),
}


def value(default: Any) -> Any:
    """A default, whatever its type: an enum's value, and none of a change for None."""
    if isinstance(default, enum.Enum):
        return default.value
    if isinstance(default, tuple):
        return tuple(map(value, default))
    return default


def parameters(kind: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(kind).parameters.values())


@pytest.mark.parametrize("name", sorted(set(ours.__all__) - OURS))
def test_signatures_are_torchvisions(name: str) -> None:
    assert not any(hasattr(TV, one) or hasattr(TV.v2, one) for one in OURS - {"Transform"})
    mine = parameters(getattr(ours, name))
    added = ADDED.get(name, set())
    assert {one.name for one in mine if one.kind is one.KEYWORD_ONLY} == added
    mine = [one for one in mine if one.name not in added]
    for version in (TV, TV.v2):
        if not hasattr(version, name):
            continue
        # What takes none has Module's own: any.
        variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        theirs = [one for one in parameters(getattr(version, name)) if one.kind not in variable]
        assert [one.name for one in mine] == [one.name for one in theirs], version
        for one, other in zip(mine, theirs, strict=True):
            same = value(one.default) == value(other.default)
            # v2's ColorJitter says None, where v1 says 0, for what is left alone.
            assert same or (name == "ColorJitter" and other.default is None), one


INTERPOLATED: dict[str, Any] = {
    "Resize": lambda tv, mode: tv.Resize(20, mode),
    "RandomResizedCrop": lambda tv, mode: tv.RandomResizedCrop(20, interpolation=mode),
    "RandomRotation": lambda tv, mode: tv.RandomRotation(20, mode),
    "RandomAffine": lambda tv, mode: tv.RandomAffine(20, interpolation=mode),
    "RandomPerspective": lambda tv, mode: tv.RandomPerspective(interpolation=mode),
    "AutoAugment": lambda tv, mode: tv.AutoAugment(interpolation=mode),
    "RandAugment": lambda tv, mode: tv.RandAugment(interpolation=mode),
    "TrivialAugmentWide": lambda tv, mode: tv.TrivialAugmentWide(interpolation=mode),
    "AugMix": lambda tv, mode: tv.AugMix(interpolation=mode),
    "RandomResize": lambda tv, mode: tv.RandomResize(9, 12, mode),
    "RandomShortestSize": lambda tv, mode: tv.RandomShortestSize(9, 12, mode),
    "ScaleJitter": lambda tv, mode: tv.ScaleJitter((9, 12), interpolation=mode),
}


@pytest.mark.parametrize("name", INTERPOLATED)
def test_interpolations_are_taken_as_torchvision_takes_them(name: str) -> None:
    make = INTERPOLATED[name]
    for written in (MODE.BILINEAR, Image.Resampling.BILINEAR, 2):
        assert make(ours, written) == make(ours, "bilinear")
    nearest = [make(ours, mode) for mode in (MODE.NEAREST, MODE.NEAREST_EXACT, 0, "nearest-exact")]
    assert all(one == nearest[0] for one in nearest)
    for unknown in (MODE.BOX, MODE.HAMMING, Image.Resampling.BOX, 7, True, None):
        with pytest.raises(UsageError, match=rf"{name}: interpolation .*{unknown}"):
            make(ours, unknown)


# --- grey ------------------------------------------------------------------------------------

#: What follows Grayscale(1), the same in torchvision and here, and within so many levels.
ON_GREY: dict[str, tuple[int, Any]] = {
    "alone": (0, lambda tv: []),
    "brightness": (0, lambda tv: [tv.ColorJitter((1.5, 1.5))]),
    "contrast": (0, lambda tv: [tv.ColorJitter(0, (1.5, 1.5))]),
    "colours": (
        0,
        lambda tv: [
            *(tv.ColorJitter(0, 0, (1.5, 1.5)), tv.ColorJitter(0, 0, 0, (0.2, 0.2))),
            tv.RandomGrayscale(1.0),
        ],
    ),
    "sharpness": (0, lambda tv: [tv.RandomAdjustSharpness(3, 1.0)]),
    "histograms": (0, lambda tv: [tv.RandomAutocontrast(1.0), tv.RandomEqualize(1.0)]),
    "points": (
        0,
        lambda tv: [
            *(tv.RandomPosterize(3, 1.0), tv.RandomSolarize(100, 1.0), tv.RandomInvert(1.0)),
            *(tv.RandomVerticalFlip(1.0), tv.RandomHorizontalFlip(1.0)),
        ],
    ),
    "blur": (1, lambda tv: [tv.GaussianBlur(5, 1.5)]),
    "pad": (0, lambda tv: [tv.Pad((1, 2, 3, 4), 7), tv.CenterCrop(40)]),
    "rotate": (1, lambda tv: [tv.RandomRotation((20, 20), MODE.BILINEAR, fill=9)]),
    "resize": (1, lambda tv: [tv.Resize((30, 33))]),
    "three again": (0, lambda tv: [tv.Grayscale(3)]),
}


@pytest.mark.parametrize("name", ON_GREY)
def test_one_channel_is_torchvisions_whatever_follows(name: str) -> None:
    levels, more = ON_GREY[name]
    image = noise(50, 40)
    want = TV.v2.functional.pil_to_tensor(
        TV.Compose([TV.CenterCrop(36), TV.Grayscale(1), *more(TV)])(image)
    ).to(torch.int16)
    got = ours.Compose([ours.CenterCrop(36), ours.Grayscale(), *more(ours)])(image)
    assert got.shape == want.shape and (got - want).abs().max() <= levels
    pipeline = TV.Compose([TV.CenterCrop(36), TV.Grayscale(1), *more(TV), TV.PILToTensor()])
    native = ours.Compose([pipeline])(image)
    assert native.shape == want.shape and (native - want).abs().max() <= levels


@pytest.mark.parametrize("tv", [TV, TV.v2], ids=["v1", "v2"])
@pytest.mark.parametrize("name", ON_GREY)
def test_one_channel_of_tensors_is_torchvisions(tv: Any, name: str) -> None:
    levels, more = ON_GREY[name]
    # Without hard edges, where torch rounds between the two passes of a resize as Pillow does not.
    image = noise(9, 7).resize((50, 40), Image.Resampling.BICUBIC)
    pipeline = tv.Compose([tv.PILToTensor(), tv.CenterCrop(36), tv.Grayscale(1), *more(tv)])
    recipe = whole_recipe(pipeline)
    want = pipeline(image).to(torch.int16)
    got = torch.from_numpy(by_core(recipe.programs[0], image, np.zeros(1, np.uint64)))
    assert got.permute(2, 0, 1).shape == want.shape
    assert (got.permute(2, 0, 1) - want).abs().max() <= levels


@pytest.mark.parametrize(
    ("channels", "dtype"), [(1, "uint8"), (1, "float32"), (1, "bfloat16"), (3, "uint8")]
)
def test_batches_are_of_as_many_channels_as_asked(channels: int, dtype: str) -> None:
    crop, grey = TV.CenterCrop(24), TV.Grayscale(channels)
    steps: list[Any] = [ours.CenterCrop(24), ours.Grayscale(channels)]
    if dtype != "uint8":
        steps.append(ours.Normalize([0.5], [0.25], dtype=dtype))
    data = images(ours.Compose([*steps, ours.RandomErasing(1.0, (0.1, 0.1), (1, 1), 0)]))
    batch, _ = next(iter(DataLoader(data, 4, require_native=True)))
    assert batch.shape == (4, channels, 24, 24) and batch.dtype == getattr(torch, dtype)
    assert batch.is_contiguous(memory_format=torch.channels_last)
    for number, found in enumerate(batch):
        opened = data.open_image(number).convert("RGB")
        want = TV.v2.functional.pil_to_tensor(grey(crop(opened)))
        if dtype != "uint8":
            want = ((want / 255 - 0.5) / 0.25).to(found.dtype)
        assert found.shape == want.shape
        kept = found != 0  # the rectangle
        assert kept.double().mean() > 0.7
        off = (found.double() - want.double())[kept].abs().max()
        assert off <= {"uint8": 0, "float32": 1e-5, "bfloat16": 2**-6}[dtype]


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (lambda tv: [tv.Grayscale(1), tv.Pad(2, (1, 2, 3))], "it has a colour"),
        (lambda tv: [tv.RandomApply([tv.Grayscale(1)])], "some of the images grey"),
        (lambda tv: [tv.RandomChoice([tv.Grayscale(1), tv.RandomInvert()])], "some of the images"),
        (lambda tv: [tv.Grayscale(1), tv.RandomOrder([tv.Grayscale(3)] * 2)], ""),
    ],
)
def test_colours_and_one_channel_do_not_mix(steps: Any, words: str) -> None:
    refused = compile_recipe([ours.CenterCrop(24), *steps(ours)])
    if words:
        assert isinstance(refused, Refusal) and words in refused.reason
    else:
        assert not isinstance(refused, Refusal) and refused.programs[0].output.channels == 3
    with pytest.raises(UsageError, match="three values, and the image has one channel"):
        ours.Compose([ours.Grayscale(), ours.Normalize((0.5,) * 3, (0.2,) * 3)])(noise(9, 9))


def test_one_mean_serves_all_channels() -> None:
    image = noise(9, 9)
    for mean, std in (([0.5], [0.25]), (0.5, (0.25, 0.25, 0.25)), (torch.tensor([0.5]), 0.25)):
        want = TV.Normalize([0.5], [0.25])(TV.ToTensor()(image))
        assert torch.allclose(ours.Normalize(mean, std)(image), want, atol=1e-6)  # type: ignore[arg-type]
    assert math.isclose(0.25, ours.Normalize(0.5, 0.25).std[0])  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("RandomAffine", {"degrees": (30, -30)}),
        ("RandomAffine", {"degrees": 0, "scale": (1.2, 0.8)}),
        ("RandomAffine", {"degrees": 0, "shear": (10, -10)}),
        ("RandomAffine", {"degrees": 0, "shear": (-10, 10, 10, -10)}),
        ("RandomRotation", {"degrees": (30, -30)}),
        ("RandomErasing", {"p": 1.0, "ratio": (3.3, 0.3)}),
    ],
)
@pytest.mark.parametrize("version", [TV, TV.v2])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_ranges_that_torchvision_cannot_draw_from_raise(
    name: str, arguments: Any, version: Any
) -> None:
    step = getattr(version, name)(**arguments)
    tensor = [version.PILToTensor()]
    steps = [*tensor, step] if name == "RandomErasing" else [step, *tensor]
    dataset = images(version.Compose([version.CenterCrop(32), *steps]))
    with pytest.raises(RuntimeError, match="uniform_"):
        dataset[0]
    with pytest.raises(RuntimeError, match="uniform_"):
        next(iter(DataLoader(dataset, 4)))
