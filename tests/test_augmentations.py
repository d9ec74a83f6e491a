"""Augmentations through the loader: the pixels are torchvision's, given what was drawn."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
import tensor_calls
import torch
from core_pixels import recipe_of
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_data import SAMPLES, WITH_INDEX, images, same
from PIL import Image
from torchvision_calls import apply

from fastdata import DataLoader, ImageDataset
from fastdata import transforms as ours
from fastdata.errors import SampleError, UsageError
from fastdata.plan.draws import epoch_key, sample_keys
from fastdata.transforms.tree import native_program

slow = pytest.mark.slow

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
BICUBIC, BILINEAR = Image.Resampling.BICUBIC, Image.Resampling.BILINEAR

# (height, width) of all images; many are smaller, so that Pillow pads them first.
SIZE = (41, 57)
#: Samples of a batch: one of each kind of image.
KINDS = 13

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore::fastdata.errors.SlowPathWarning"),
    pytest.mark.filterwarnings("ignore::fastdata.errors.FallbackWarning"),
]


def batches(dataset: Any, count: int | None = None, **options: Any) -> list[Any]:
    loader = DataLoader(dataset, **{"batch_size": KINDS, "seed": 3, **options}, **WITH_INDEX)
    assert loader.explain().startswith("native"), loader.explain()
    return [(batch, indices.tolist()) for batch, _, indices in islice(loader, count)]


def pixels(dataset: Any, count: int | None = 1, **options: Any) -> dict[int, Any]:
    found = {}
    for batch, indices in batches(dataset, count, **options):
        planes = batch.permute(0, 2, 3, 1).numpy()
        found.update(dict(zip(indices, planes, strict=True)))
    assert len(found) == (KINDS if count else SAMPLES)
    return found


def drawn(dataset: ImageDataset, index: int, size: tuple[int, int], view: int = 0) -> Any:
    recipe = recipe_of(dataset.transform)
    (key,) = sample_keys(epoch_key(3, 0), np.array([index]), view).tolist()
    calls, erased, *_ = native_program(recipe.programs[view].pixels).draw(key, *size)
    return calls, erased


# --- what is random in nothing: compared whole -----------------------------------------------

Steps = Callable[[Any], list[Any]]

# Each with the levels by which it may be off.
FIXED: dict[str, tuple[int, Steps]] = {
    "colours": (
        0,
        lambda tv: [
            tv.ColorJitter((1.3, 1.3)),
            tv.ColorJitter(contrast=(0.6, 0.6)),
            tv.ColorJitter(saturation=(1.9, 1.9)),
            tv.ColorJitter(hue=(-0.3, -0.3)),
            tv.RandomAdjustSharpness(2.5, 1.0),
        ],
    ),
    "histograms": (
        0,
        lambda tv: [
            tv.RandomAutocontrast(1.0),
            tv.RandomSolarize(99.5, 1.0),
            tv.RandomPosterize(3, 1.0),
            tv.RandomEqualize(1.0),
        ],
    ),
    "nothing, then grey": (
        0,
        lambda tv: [
            *(torch.nn.Identity(), tv.RandomApply([torch.nn.Identity()]), tv.ColorJitter()),
            *(tv.RandomInvert(0.0), tv.RandomGrayscale(1.0), tv.Grayscale(3)),
        ],
    ),
    "mirrored, then inverted": (
        0,
        lambda tv: [tv.RandomInvert(1.0), tv.RandomHorizontalFlip(1.0), tv.RandomVerticalFlip(1.0)],
    ),
    "rotated": (0, lambda tv: [tv.RandomRotation((33, 33), fill=(9, 8, 7))]),
    "rotated by a quarter": (0, lambda tv: [tv.RandomRotation((90, 90))]),
    "rotated about a point": (0, lambda tv: [tv.RandomRotation((-70, -70), center=(3, 9))]),
    "rotated, expanding": (
        0,
        lambda tv: [tv.RandomRotation((20, 20), expand=True), tv.CenterCrop(70)],
    ),
    # An odd sum of the sides: its middle does not stay where it was.
    "turned left, expanding": (
        0,
        lambda tv: [
            *(tv.CenterCrop((22, 31)), tv.RandomRotation((90, 90), expand=True)),
            tv.CenterCrop(24),
        ],
    ),
    "turned right, expanding": (
        0,
        lambda tv: [
            *(tv.CenterCrop((22, 31)), tv.RandomRotation((-450, -450), 3, True)),
            tv.CenterCrop(24),
        ],
    ),
    "one pixel wide": (0, lambda tv: [tv.RandomInvert(1.0), tv.CenterCrop((9, 1))]),
    "one pixel": (0, lambda tv: [tv.CenterCrop((1, 9)), tv.CenterCrop(1)]),
    "rotated, bilinear": (1, lambda tv: [tv.RandomRotation((200, 200), interpolation=BILINEAR)]),
    "sheared": (
        0,
        lambda tv: [tv.RandomAffine((9, 9), None, (1.2, 1.2), (5, 5, -8, -8), fill=4)],
    ),
    "sheared about a point": (
        0,
        lambda tv: [tv.RandomAffine((0, 0), shear=(20, 20), center=(0, 0))],
    ),
    "padded": (
        0,
        lambda tv: [
            tv.Pad((1, 2, 3, 4), fill=(1, 2, 3)),
            *(tv.Pad((5, 2), padding_mode=mode) for mode in ("reflect", "edge", "symmetric")),
        ],
    ),
    "blurred": (1, lambda tv: [tv.GaussianBlur((5, 9), (1.3, 1.3))]),
    "held by others": (
        0,
        lambda tv: [
            tv.RandomApply([tv.RandomInvert(1.0), tv.RandomPosterize(4, 1.0)], 1.0),
            tv.RandomChoice([tv.RandomInvert(1.0), tv.Grayscale(3)], [0, 1]),
            tv.RandomOrder([tv.RandomInvert(1.0)]),
        ],
    ),
    "resized, cropped and padded": (
        0,
        lambda tv: [
            *(tv.Resize((30, 20), interpolation=BICUBIC), tv.Resize((50, 60), interpolation=0)),
            *(tv.Pad(4, 200), tv.CenterCrop((90, 20)), tv.CenterCrop(30)),
        ],
    ),
}


@pytest.mark.parametrize("name", FIXED)
def test_fixed_augmentations_give_torchvisions_pixels(tv: Any, name: str) -> None:
    levels, make = FIXED[name]
    pipeline = tv.Compose([tv.CenterCrop(SIZE), *make(tv)])
    dataset = images(tv.Compose([pipeline, tv.PILToTensor()]))
    for index, got in pixels(dataset, num_workers=2).items():
        want = np.asarray(pipeline(dataset.open_image(index)))
        assert got.shape == want.shape and got.dtype == np.uint8
        assert np.abs(got.astype(int) - want).max() <= levels, index


def test_what_stands_before_the_resize_is_done_to_the_whole_image(tv: Any) -> None:
    steps = [tv.RandomEqualize(1.0), tv.Resize(50, interpolation=BICUBIC)]
    pipeline = tv.Compose([*steps, tv.ColorJitter(contrast=(0.5, 0.5)), tv.CenterCrop(48)])
    dataset = images(tv.Compose([pipeline, tv.PILToTensor()]))
    for index, got in pixels(dataset, num_workers=2).items():
        assert np.array_equal(got, np.asarray(pipeline(dataset.open_image(index)))), index


def assert_tensors_equal(tv: Any, got: Any, want: Any) -> None:
    """The same bytes, but for torch's fused adds, which exclude a tensor's last few values."""
    share = (got != want).mean()
    assert share <= 0.02 if tv.__name__.endswith("v2") else share == 0


BYTES: dict[str, Steps] = {
    "blends": lambda tv: [
        tv.ColorJitter(contrast=(1.9, 1.9)),
        tv.ColorJitter(saturation=(1.9, 1.9)),
        *(tv.RandomEqualize(1.0), tv.RandomAdjustSharpness(3, 1.0), tv.RandomAutocontrast(1.0)),
    ],
    "hue": lambda tv: [tv.ColorJitter(hue=(-0.2, -0.2))],
    "warps": lambda tv: [
        tv.RandomRotation((33, 33), fill=9),
        tv.RandomAffine((0, 0), (0, 0), (1.3, 1.3), (9, 9), fill=[1, 2, 3]),
    ],
    "points": lambda tv: [
        *(tv.RandomPosterize(3, 1.0), tv.RandomSolarize(100, 1.0), tv.RandomVerticalFlip(1.0)),
        tv.RandomApply([tv.RandomInvert(1.0), tv.RandomInvert(1.0), tv.RandomInvert(1.0)], 1.0),
    ],
    "grey": lambda tv: [tv.RandomGrayscale(1.0), tv.Grayscale(3)],
    "pads": lambda tv: [tv.Pad((1, 2, 3, 4), fill=9), tv.Pad(5, padding_mode="reflect")],
    "blur": lambda tv: [tv.GaussianBlur(5, (1.1, 1.1))],
}


@pytest.mark.parametrize("name", BYTES)
def test_augmentations_of_tensors_are_torchvisions(tv: Any, name: str) -> None:
    pipeline = tv.Compose([tv.CenterCrop(SIZE), tv.PILToTensor(), *BYTES[name](tv)])
    dataset = images(pipeline)
    for index, got in pixels(dataset, num_workers=2).items():
        want = pipeline(dataset.open_image(index)).permute(1, 2, 0).numpy()
        if name == "blur":
            assert np.abs(got.astype(int) - want).max() <= 1, index
        else:
            assert_tensors_equal(tv, got, want)


# Each with the levels by which it may be off: bytes are rounded after each step, floats are not.
FLOATS: dict[str, tuple[float, Steps]] = {
    "resized": (1, lambda tv: [tv.Resize((60, 70), antialias=True), tv.CenterCrop(SIZE)]),
    "cropped": (
        1,
        lambda tv: [tv.RandomResizedCrop(SIZE, (1.0, 1.0), (1.0, 1.0), antialias=True)],
    ),
    "rotated": (0, lambda tv: [tv.RandomRotation((33, 33)), tv.RandomAffine((5, 5))]),
    "bilinear": (1, lambda tv: [tv.RandomRotation((33, 33), BILINEAR)]),
    "inverted": (0, lambda tv: [tv.RandomInvert(1.0)]),
    "blurred": (0.51, lambda tv: [tv.GaussianBlur(5, (1.1, 1.1))]),
    "grey": (1, lambda tv: [tv.RandomGrayscale(1.0)]),
    "jittered": (
        4,
        lambda tv: [
            *(tv.ColorJitter((1.3, 1.3)), tv.ColorJitter(contrast=(0.7, 0.7))),
            tv.ColorJitter(saturation=(1.4, 1.4)),
        ],
    ),
    "hue": (4, lambda tv: [tv.RandomApply([tv.ColorJitter(hue=(0.1, 0.1))], 1.0)]),
}


@pytest.mark.parametrize("name", FLOATS)
def test_augmentations_of_floats_are_torchvisions_within_levels(tv: Any, name: str) -> None:
    levels, steps = FLOATS[name]
    first = [tv.CenterCrop(64), tv.PILToTensor(), tv.ConvertImageDtype(torch.float32)]
    normalise = tv.Normalize((0.4, 0.5, 0.6), (0.2, 0.25, 0.3))
    pipeline = tv.Compose([*first, *steps(tv), normalise])
    dataset = images(pipeline)
    spread = 255 * np.array([0.2, 0.25, 0.3])
    for index, got in pixels(dataset, num_workers=2).items():
        want = pipeline(dataset.open_image(index)).permute(1, 2, 0).numpy()
        assert (np.abs(got - want) * spread).max() <= levels + 1e-3, index


# --- tensors, and mixtures of them: by what was drawn ---------------------------------------

TENSORS: dict[str, Steps] = {
    "policies": lambda tv: [tv.TrivialAugmentWide(), tv.RandAugment(3, 20)],
    "AutoAugment": lambda tv: [tv.AutoAugment(fill=128)],
    "warps": lambda tv: [
        tv.RandomAffine(30, (0.2, 0.1), (0.5, 1.5), 10),
        tv.RandomPerspective(interpolation=0, fill=3),
    ],
    "everything": lambda tv: [
        tv.ColorJitter(0.4, 0.4, 0.4, 0.1),
        tv.RandomChoice([tv.RandAugment(), tv.RandomOrder([tv.RandomGrayscale(0.5)])]),
        tv.RandomApply([tv.RandomRotation(20), tv.RandomAdjustSharpness(2)], 0.7),
    ],
}


@pytest.mark.parametrize("name", TENSORS)
def test_drawn_augmentations_of_tensors_are_torchvisions(tv: Any, name: str) -> None:
    """One after the other, without an error that grows: nearest pixels, too."""
    crop = tv.Compose([tv.CenterCrop(SIZE), tv.PILToTensor()])
    dataset = images(tv.Compose([crop, *TENSORS[name](tv)]))
    for index, got in pixels(dataset, num_workers=2).items():
        calls, _ = drawn(dataset, index, SIZE[::-1])
        want = tensor_calls.apply_all(crop(dataset.open_image(index)), calls)
        assert_tensors_equal(tv, got, want.permute(1, 2, 0).numpy())


# --- erasing ---------------------------------------------------------------------------------


def erased_parts(dataset: ImageDataset, **options: Any) -> Any:
    for index, got in pixels(dataset, None, num_workers=2, **options).items():
        _, erased = drawn(dataset, index, SIZE[::-1])
        mask = np.zeros(SIZE, bool)
        for left, top, width, height in erased:
            mask[top : top + height, left : left + width] = True
        yield index, got, mask


def test_erasing_after_normalising_writes_values_of_the_result(tv: Any) -> None:
    steps = [tv.CenterCrop(SIZE), tv.ToTensor() if tv.__name__.endswith("transforms") else None]
    if steps[1] is None:
        steps[1:] = [tv.PILToTensor(), tv.ConvertImageDtype(torch.float32)]
    plain = tv.Compose([*steps, tv.Normalize(MEAN, STD)])
    dataset = images(tv.Compose([plain, tv.RandomErasing(0.7, value=(0.5, -1.0, 9.0))]))
    count = 0
    for index, got, mask in erased_parts(dataset):
        want = plain(dataset.open_image(index)).permute(1, 2, 0).numpy()
        assert np.allclose(got[~mask], want[~mask], atol=1e-5)
        assert (got[mask] == np.float32((0.5, -1.0, 9.0))).all()
        count += mask.any()
    assert 0.5 * SAMPLES < count < 0.9 * SAMPLES


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_erasing_before_normalising_is_normalised(dtype: str) -> None:
    normalize = ours.Normalize(MEAN, STD, dtype=dtype)
    erase = ours.RandomErasing(1.0, value=(100, 0, 255))
    dataset = images(ours.Compose([ours.CenterCrop(SIZE), erase, normalize]))
    kind = getattr(torch, dtype)
    value = (np.array((100, 0, 255)) / 255 - MEAN) / STD
    for batch, indices in batches(dataset):
        assert batch.dtype == kind
        for image, index in zip(batch, indices, strict=True):
            _, ((left, top, width, height),) = drawn(dataset, index, SIZE[::-1])
            part = image[:, top : top + height, left : left + width]
            wanted = torch.tensor(value).to(kind).view(3, 1, 1).expand_as(part)
            assert torch.allclose(part.double(), wanted.double(), rtol=2**-7)


def test_random_erasing_is_normal_noise_of_each_pixel(v1: Any) -> None:
    erase = {"p": 1.0, "value": "random"}
    steps = [v1.CenterCrop(SIZE), v1.ToTensor(), v1.Normalize(MEAN, STD), v1.RandomErasing(**erase)]
    found = {index: (got, mask) for index, got, mask in erased_parts(images(v1.Compose(steps)))}
    values = np.concatenate([got[mask] for got, mask in found.values()])
    assert values.shape[1] == 3 and len(values) > 10_000
    for channel in range(3):
        one = values[:, channel]
        assert abs(one.mean()) < 0.03 and abs(one.std() - 1) < 0.03
        assert abs((one**3).mean()) < 0.1 and abs((one**4).mean() - 3) < 0.3
        # Neighbours, and channels, have nothing in common.
        assert abs(np.corrcoef(one[1:], one[:-1])[0, 1]) < 0.03
        assert abs(np.corrcoef(one, values[:, channel - 1])[0, 1]) < 0.03
    assert len(np.unique(values)) > 0.999 * values.size
    mine = [ours.CenterCrop(SIZE), ours.Normalize(MEAN, STD), ours.RandomErasing(**erase)]  # type: ignore[arg-type]
    for index, got in pixels(images(ours.Compose(mine))).items():  # channels last
        assert np.allclose(got, found[index][0], atol=1e-6)


# --- what they depend on ---------------------------------------------------------------------

ALL = ours.Compose(
    [
        ours.RandomResizedCrop(24),
        ours.RandomHorizontalFlip(),
        ours.TrivialAugmentWide(),
        ours.ColorJitter(0.4, 0.4, 0.4, 0.1),
        ours.RandomApply([ours.GaussianNoise(), ours.GaussianBlur(3)]),
        ours.Normalize(MEAN, STD),
        ours.RandomErasing(0.5, value="random"),
    ]
)


def test_epochs_and_views_are_augmented_differently() -> None:
    loader = DataLoader(images(ALL), SAMPLES, seed=3)
    first, second = (next(batch for batch, _ in loader) for _ in range(2))
    assert (first == second).float().mean() < 0.1
    loader.set_epoch(0)
    assert same(next(batch for batch, _ in loader), first)
    (views, _), *_ = DataLoader(images(ours.Views(ALL, count=2)), SAMPLES, seed=3)
    assert torch.equal(views[0], first) and not torch.equal(views[1], first)


def test_on_a_device_values_are_the_same_where_floats_were_erased() -> None:
    erase = ours.RandomErasing(1.0, value=(0.5, -3, 7))
    steps = [ours.CenterCrop(SIZE), ours.RandomInvert(), ours.Normalize(MEAN, STD), erase]
    dataset = images(ours.Compose(steps))
    host, there = (
        torch.cat([batch for batch, _ in DataLoader(dataset, 10, seed=3, **options)])
        for options in ({}, {"device": "cpu"})
    )
    assert torch.allclose(host, there, atol=1e-5) and (there == -3).any()


# --- the other paths -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "step",
    [
        lambda v2: v2.GaussianBlur((257, 1), 0.1),
        lambda v2: v2.ColorJitter((1e7, 1e7)),
        lambda v2: v2.GaussianNoise(20.0, 0.0),
    ],
)
def test_numbers_beyond_the_cores_are_torchvisions(v2: Any, step: Any) -> None:
    pipeline = v2.Compose([v2.CenterCrop((4, 150)), v2.ToImage(), step(v2)])
    dataset = images(pipeline)
    loader = DataLoader(dataset, 10)
    assert loader.explain().startswith("workers")
    ((first, *_), _), *_ = loader
    assert torch.equal(first, pipeline(dataset.open_image(0)))


def test_one_image_is_augmented_when_a_transform_is_called() -> None:
    image = Image.effect_noise((30, 20), 90).convert("RGB")
    inverted = ours.RandomInvert(1.0)(image)
    assert np.array_equal(inverted.permute(1, 2, 0).numpy(), 255 - np.asarray(image))
    torch.manual_seed(1)
    rotated = ours.RandomRotation((45, 45), expand=True)(image)
    assert rotated.shape == (3, *image.rotate(45, expand=True).size[::-1])
    normalised = ours.Compose([ours.Normalize(MEAN, STD), ours.RandomErasing(1.0)])(image)
    assert normalised.dtype == torch.float32 and (normalised == 0).any()
    for seed in range(2):
        torch.manual_seed(seed)
        one = ours.ColorJitter(0.9)(image)
        torch.manual_seed(seed)
        assert torch.equal(ours.ColorJitter(0.9)(image), one)
    with pytest.raises(UsageError, match="20 x 30 "):
        ours.Compose([ours.RandomInvert(), ours.RandomCrop(25)])(image)


def test_an_image_that_cannot_be_augmented_is_a_sample_error() -> None:
    dataset = images(ours.Compose([ours.Grayscale(), ours.RandomCrop(50)]))
    with pytest.raises((SampleError, UsageError), match=r"sample .*smaller than a random crop"):
        list(DataLoader(dataset, 10, num_workers=2))


probabilities = st.floats(0, 1)
factors = st.tuples(st.floats(0, 3), st.floats(0, 3)).map(sorted).map(tuple)
sides = st.integers(1, 40)
fills = st.one_of(st.integers(0, 255), st.tuples(*[st.integers(0, 255)] * 3))
degrees = st.tuples(st.floats(-400, 400), st.floats(-400, 400)).map(sorted).map(tuple)
simple = st.one_of(
    st.builds(ours.ColorJitter, factors, factors, factors, st.floats(0, 0.5)),
    st.builds(ours.RandomGrayscale, probabilities),
    st.builds(ours.RandomInvert, probabilities),
    st.builds(ours.RandomPosterize, st.integers(1, 8), probabilities),
    st.builds(ours.RandomSolarize, st.floats(0, 256), probabilities),
    st.builds(ours.RandomAdjustSharpness, st.floats(0, 3), probabilities),
    st.builds(ours.RandomAutocontrast, probabilities),
    st.builds(ours.RandomEqualize, probabilities),
    st.builds(ours.RandomVerticalFlip, probabilities),
    st.builds(ours.RandomHorizontalFlip, probabilities),
    st.builds(ours.RandomChannelPermutation),
    st.builds(
        ours.RandomRotation,
        degrees,
        expand=st.booleans(),
        center=st.one_of(st.none(), st.tuples(st.floats(-9, 50), st.floats(-9, 50))),
        fill=fills,
    ),
    st.builds(
        *(ours.RandomAffine, degrees, st.tuples(probabilities, probabilities)),
        *(st.tuples(st.floats(0.2, 1), st.floats(1, 3)), st.floats(0, 60)),
        fill=fills,
    ),
    st.builds(
        ours.Pad, st.tuples(*[st.integers(0, 9)] * 4), fills, st.sampled_from(["constant", "edge"])
    ),
    st.builds(ours.CenterCrop, st.tuples(sides, sides)),
    st.builds(
        ours.RandomCrop, st.tuples(sides, sides), st.integers(0, 5), st.just(True), fill=fills
    ),
    st.builds(ours.RandAugment, st.integers(0, 3), st.integers(0, 30), fill=fills),
    st.builds(ours.TrivialAugmentWide, st.integers(2, 40)),
    st.builds(ours.RandomResize, st.just(9), st.just(40), st.just("bicubic")),
    st.builds(ours.RandomShortestSize, st.just([20, 30]), interpolation=st.just("bicubic")),
    st.builds(ours.AutoAugment, st.sampled_from(["imagenet", "cifar10", "svhn"])),
)
nested = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.builds(ours.RandomApply, st.lists(inner, min_size=1, max_size=3), probabilities),
        st.builds(ours.RandomChoice, st.lists(inner, min_size=1, max_size=3)),
        st.builds(ours.RandomOrder, st.lists(inner, min_size=1, max_size=3)),
        st.builds(ours.Compose, st.lists(inner, min_size=1, max_size=3)),
    ),
    max_leaves=5,
)


@pytest.mark.filterwarnings("ignore::UserWarning")
@settings(max_examples=60)
@given(
    step=nested,
    size=st.tuples(sides, sides),
    colours=st.sampled_from(["noise", "grey", "one", "two"]),
    seed=st.integers(0, 2**32),
)
def test_any_augmentations_of_any_image_are_the_calls_that_were_drawn(
    step: Any, size: tuple[int, int], colours: str, seed: int
) -> None:
    numbers = np.random.default_rng(seed)
    values = numbers.integers(0, 256, (*size, 3), dtype=np.uint8)
    if colours == "grey":
        values[...] = values[..., :1]
    elif colours in ("one", "two"):
        values = np.where(
            values < 128 if colours == "two" else values < 0, values[0, 0], values[-1, -1]
        )
    image = Image.fromarray(values.astype(np.uint8))
    torch.manual_seed(seed)
    # So that all of it is drawn for the pixels, and nothing for the geometry.
    got = ours.Compose([ours.RandomInvert(1.0), step])(image)
    torch.manual_seed(seed)
    key = int(torch.randint(-(2**63), 2**63 - 1, ())) % 2**64
    program = native_program((ours.RandomInvert(1.0), step))
    calls, _, width, height = program.draw(key, *image.size)
    for operation, numbers_ in calls:
        image = apply(image, (operation, tuple(numbers_)))
    assert got.shape == (3, height, width)
    assert np.array_equal(got.permute(1, 2, 0).numpy(), np.asarray(image)), calls
