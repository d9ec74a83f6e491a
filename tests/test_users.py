"""Classes and functions of training scripts: what is known of them, and what is not."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import published as p
import pytest
import torch
from loader_data import WITH_INDEX, images
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from test_pixel_programs import kolmogorov_smirnov
from torch.utils.data import default_collate
from torchvision_stub import import_torchvision

from fastdata import DataLoader
from fastdata.transforms import Views
from fastdata.transforms.compile import Recipe, Refusal, compile_recipe
from fastdata.transforms.tree import native_program

tv = import_torchvision().transforms

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::fastdata.errors.SlowPathWarning"),
    pytest.mark.filterwarnings("ignore::fastdata.errors.FallbackWarning"),
]

SIZE = (40, 48)
NORMALIZE = tv.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CROP, BYTES = tv.CenterCrop(SIZE), tv.PILToTensor()


def after_crop(*steps: Any) -> Any:
    return tv.Compose([CROP, *steps, BYTES])


def recipe_of(transform: Any) -> Recipe:
    recipe = compile_recipe(transform)
    assert isinstance(recipe, Recipe), recipe
    return recipe


def leaves(value: Any) -> list[Any]:
    """The tensors of nested lists and dicts, in order, and their places."""
    if isinstance(value, dict):
        return [found for key in value for found in leaves(value[key])]
    if isinstance(value, (list, tuple)):
        return [found for one in value for found in leaves(one)]
    return [value]


def check_pixels(transform: Any, count: int = 20) -> None:
    """The loader's batches are, to the bit, the original's, collated by torch."""
    dataset = images(transform)
    loader = DataLoader(dataset, 10, require_native=True, **WITH_INDEX)
    for _, (batch, _, indices) in zip(range(count // 10), loader, strict=False):
        want = default_collate([transform(dataset.open_image(index)) for index in indices.tolist()])
        assert shape_of(batch) == shape_of(want)
        for got, wanted in zip(leaves(batch), leaves(want), strict=True):
            assert torch.equal(got, wanted)


def shape_of(value: Any) -> Any:
    """A batch's structure, with shapes and types instead of tensors."""
    if isinstance(value, dict):
        return {key: shape_of(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value), [shape_of(one) for one in value]
    return tuple(value.shape), value.dtype


# --- one image --------------------------------------------------------------------------------


class Applied:
    """Several things, one after the other, with a constant for everything that is random."""

    threshold = 100

    def __init__(self, radius: float) -> None:
        self.radius = radius
        self.flips = (tv.RandomHorizontalFlip(1.0), tv.RandomVerticalFlip(1.0))

    def __call__(self, img: Any, *, kernel: Any = ImageFilter.GaussianBlur) -> Any:
        assert isinstance(img, Image.Image)
        if img.mode != "RGB":
            raise ValueError(img.mode)
        for flip in self.flips:
            img = flip(img)
        return self.solarized(img.filter(kernel(self.radius)))

    def solarized(self, img: Any) -> Any:
        return ImageOps.solarize(img, self.threshold)


def enhanced(img: Any, factor: float = 1.3) -> Any:
    for kind in (ImageEnhance.Brightness, ImageEnhance.Color, ImageEnhance.Contrast):
        img = kind(img).enhance(factor)
    return ImageEnhance.Sharpness(img).enhance(factor / 2)


def functional(img: Any) -> Any:
    img = tv.functional.hflip(img.copy())
    return tv.functional.posterize(tv.functional.center_crop(img, 30), bits=3)


def never_turned(img: Any, strength: float = 0.0) -> Any:
    """Compare draws that have one value."""
    if random.uniform(-strength, strength) > 0 or not random.random() * strength <= 0:
        img = ImageOps.mirror(img)
    return ImageOps.flip(img) if random.uniform(-strength, strength) >= 0 else img


FIXED: dict[str, Callable[[], Any]] = {
    "RGB": lambda: p._convert_image_to_rgb,
    "RGB, in a Lambda": lambda: tv.Lambda(lambda im: im.convert("RGB")),
    "grey": lambda: lambda im: im.convert("L").convert("RGB"),
    "MoCo, blur": lambda: p.SigmaBlur((1.3, 1.3)),
    "MoCo, solarize": lambda: p.Solarize(),
    "DINO, blur": lambda: p.RadiusBlur(1.0, 0.7, 0.7),
    "SwAV, blur": lambda: p.NumpyBlur(1.0, 1.9, 1.9),
    "SwAV, no blur": lambda: p.NumpyBlur(0.0),
    "Barlow Twins, no blur": lambda: p.MaybeBlur(0.0),
    "Barlow Twins, solarize": lambda: p.MaybeSolarize(1.0),
    "DeiT, grey": lambda: p.MaybeGray(1.0),
    "DeiT, flip": lambda: p.DeiTFlip(1.0),
    "torch": lambda: p.TorchSolarize(1.0),
    "torch, never": lambda: p.TorchSolarize(0.0),
    "much": lambda: Applied(0.8),
    "enhanced": lambda: enhanced,
    "bound": lambda: functools.partial(enhanced, factor=0.4),
    "a method": lambda: Applied(0.3).solarized,
    "functional": lambda: functional,
    "Pillow's": lambda: lambda im: ImageOps.flip(ImageOps.mirror(ImageOps.invert(im))),
    "equalize": lambda: lambda im: ImageOps.equalize(ImageOps.posterize(im, 5)),
    "transpose": lambda: lambda im: im.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
    "nothing": lambda: lambda im: im,
    "one value": lambda: never_turned,
}


@pytest.mark.parametrize("name", FIXED)
def test_pixels_of_what_is_fixed_are_the_originals(name: str) -> None:
    check_pixels(after_crop(FIXED[name]()))


def test_images_of_every_kind_are_rgb_where_a_function_converts_them() -> None:
    check_pixels(after_crop(p._convert_image_to_rgb), 50)


class Filtered:
    """In an image's place: notes the radii of blurs."""

    mode = "RGB"

    def __init__(self) -> None:
        self.radii: list[float] = []

    def filter(self, found: Any) -> Filtered:
        self.radii.append(float(np.mean(found.radius)))
        return self


def early_or_late(img: Any) -> Any:
    """One number decides, twice, and what is left of it is used."""
    r = random.random()
    if r < 0.2:
        return img
    if r < 0.5:
        return img.filter(ImageFilter.GaussianBlur(3 - 2 * r))
    return img.filter(ImageFilter.GaussianBlur(random.choice([r, 3, 1.5])))


@pytest.mark.parametrize(
    "original",
    [
        p.SigmaBlur(),
        p.RadiusBlur(0.3),
        p.NumpyBlur(0.6, 0.2, 1.0),
        p.MaybeBlur(0.8),
        lambda img: img.filter(ImageFilter.GaussianBlur(np.random.uniform(0.5, 1.5) / 2)),
        lambda img: img.filter(ImageFilter.GaussianBlur(max(random.random() * 2, 0.5))),
        early_or_late,
    ],
)
def test_radii_and_how_often_they_are_drawn_are_the_originals(original: Any) -> None:
    (program,) = recipe_of(after_crop(original)).programs
    core = native_program(program.pixels)
    count = 4000
    calls = [core.draw(key, 40, 48)[0] for key in range(count)]
    drawn = [values[0] for one in calls for name, values in one if name == "box_blur"]
    theirs = []
    for _ in range(count):
        img = Filtered()
        original(img)
        theirs += img.radii
    share = len(theirs) / count
    assert abs(len(drawn) / count - share) <= 5 * (share * (1 - share) * 2 / count) ** 0.5
    distance, bound = kolmogorov_smirnov(drawn, theirs)
    assert distance < bound


def test_a_choice_of_several_is_a_choice() -> None:
    parts = [p.MaybeGray(1.0), p.MaybeSolarize(1.0), p.RadiusBlur(1.0)]
    three = recipe_of(after_crop(tv.RandomChoice(parts))).programs[0]
    chosen = recipe_of(after_crop(lambda img: random.choice(parts)(img))).programs[0]
    for program in (three, chosen):
        core = native_program(program.pixels)
        names = [core.draw(key, 40, 48)[0][0][0] for key in range(3000)]
        for name in ("grayscale", "solarize", "box_blur"):
            assert abs(names.count(name) - 1000) < 130  # five standard deviations


# --- several views ----------------------------------------------------------------------------

WHOLE, PART = after_crop(p.Solarize()), tv.Compose([tv.CenterCrop(9), BYTES])
GREY = after_crop(p.MaybeGray(1.0))


@pytest.mark.parametrize(
    "transform",
    [
        p.TwoCropsTransform(WHOLE),
        p.TwoTransforms(WHOLE, GREY),
        p.ContrastiveLearningViewGenerator(WHOLE, 3),
        p.TwoCropTransform(WHOLE),
        p.MultiCrop(WHOLE, GREY, PART, 4),
        p.IBOTCrops(WHOLE, GREY, PART, 2),
        p.ManyCrops([WHOLE, WHOLE, PART, PART, PART]),
        p.Pair(WHOLE, PART),
        p.Pair(WHOLE, GREY),
        p.FixMatchPair(tv.CenterCrop(20), tv.Compose([CROP, p.Solarize()]), BYTES),
        p.NamedCrops(WHOLE, PART),
        tv.Compose(
            [p.TwoCropsTransform(CROP), tv.Lambda(lambda pair: [BYTES(view) for view in pair])]
        ),
        p.Pair(p.TwoCropsTransform(WHOLE), PART),
        tv.Compose([p._convert_image_to_rgb, p.TwoTransforms(WHOLE, PART)]),
        lambda x: {"image": WHOLE(x), "crops": (PART(x), [GREY(x)])},
        lambda x: [WHOLE(x)],
    ],
)
def test_views_are_the_originals(transform: Any) -> None:
    check_pixels(transform)


def test_views_are_drawn_apart() -> None:
    base = tv.Compose([tv.RandomResizedCrop(16), p.RadiusBlur(), BYTES])
    loader = DataLoader(images(p.TwoCropsTransform(base)), 10, require_native=True)
    assert recipe_of(p.TwoCropsTransform(base)).programs == recipe_of(Views(base, count=2)).programs
    (first, second), _ = next(iter(loader))
    # One image has two pixels.
    assert sum(torch.equal(a, b) for a, b in zip(first, second, strict=True)) <= 1


def test_a_tuple_of_views_is_one_for_who_collates_samples() -> None:
    pair = p.Pair(WHOLE, PART)
    loader = DataLoader(images(pair), 4, collate_fn=lambda samples: [image for image, _ in samples])
    assert all(isinstance(image, tuple) for image in next(iter(loader)))
    (first, second), _ = next(iter(DataLoader(images(pair), batch_size=None)))
    assert first.shape == (3, *SIZE) and second.shape == (3, 9, 9)


SOLARIZE, FLOATS = p.Solarize(), tv.ConvertImageDtype(torch.float32)
STACK = tv.Lambda(lambda crops: torch.stack([tv.ToTensor()(crop) for crop in crops]))


@pytest.mark.parametrize(
    "steps",
    [
        [tv.TenCrop(16), STACK],
        [tv.FiveCrop((9, 12)), STACK, NORMALIZE],
        [
            tv.FiveCrop(9),
            STACK,
            tv.Lambda(lambda crops: torch.stack([NORMALIZE(t) for t in crops])),
        ],
        [tv.FiveCrop(9), lambda crops: [BYTES(crop) for crop in crops], torch.stack],
        [tv.FiveCrop(9), lambda crops: {"first": BYTES(crops[0]), "mirrored": [BYTES(crops[-1])]}],
        [tv.TenCrop(9), lambda crops: torch.stack([NORMALIZE(FLOATS(BYTES(c))) for c in crops])],
        [
            tv.FiveCrop(9),
            lambda crops: tuple(SOLARIZE(crop) for crop in crops),
            lambda crops: torch.stack([tv.functional.to_tensor(crop) for crop in crops]),
        ],
    ],
)
def test_a_stack_of_crops_is_the_originals(steps: Any) -> None:
    transform = tv.Compose([CROP, *steps])
    dataset = images(transform)
    loader = DataLoader(dataset, 10, **WITH_INDEX)
    batch, _, indices = next(iter(loader))
    want = default_collate([transform(dataset.open_image(index)) for index in indices.tolist()])
    assert shape_of(batch) == shape_of(want)
    for got, wanted in zip(leaves(batch), leaves(want), strict=True):
        assert torch.allclose(got.float(), wanted.float(), atol=1e-6)


TWICE_EACH = tv.v2.Lambda(lambda given: [given, given])


@pytest.mark.parametrize(
    "transform",
    [
        tv.v2.Compose([CROP, tv.v2.FiveCrop(9), TWICE_EACH, tv.v2.PILToTensor()]),
        lambda image: TWICE_EACH((BYTES(CROP(image)), PART(image))),
        lambda image: TWICE_EACH(BYTES(CROP(image)), PART(image)),
    ],
)
def test_a_lambda_of_v2_takes_each_of_several_images(transform: Any) -> None:
    """v1's takes them together."""
    dataset = images(tv.v2.Compose([transform, tv.v2.ToImage()]))
    batch, _ = next(iter(DataLoader(dataset, 10)))
    want = default_collate([dataset[index][0] for index in range(10)])
    assert shape_of(batch) == shape_of(want)
    assert all(map(torch.equal, leaves(batch), leaves(want)))


def test_what_has_nothing_to_do_with_the_image_is_called_for_each_sample() -> None:
    convert = tv.Lambda(lambda img: img.convert("RGB") if img.mode != "RGB" else img)
    masks = p.MaskGenerator(24, 4, 0.6)
    transform = p.SimMIMTransform(tv.Compose([convert, CROP, BYTES]), masks)
    dataset = images(transform)
    loader = DataLoader(dataset, 10)
    assert loader.explain().startswith("workers") and "SimMIMTransform" in loader.explain()
    (batch, masks), _ = next(iter(loader))
    assert masks.shape == (10, 6, 6) and masks.sum((1, 2)).tolist() == [22] * 10
    assert len({mask.numpy().tobytes() for mask in masks}) == 10
    for index, image in enumerate(batch):
        assert torch.equal(image, transform(dataset.open_image(index))[0])


def upside_down(image: Any) -> Any:
    """Turn a picture by NumPy, which is not known."""
    return Image.fromarray(np.asarray(image)[::-1].copy())


TURNED = tv.Compose([CROP, upside_down, p.Solarize(), BYTES])


@pytest.mark.parametrize(
    "transform",
    [
        p.FixMatchPair(tv.CenterCrop(20), tv.Compose([CROP, upside_down]), BYTES),
        p.ContrastiveLearningViewGenerator(TURNED, 2),
        Views(first=WHOLE, second=(TURNED, 2)),
        p.MultiCrop(WHOLE, TURNED, tv.Compose([PART, lambda image: image.flip(-1)]), 2),
        tv.Compose(
            [
                p.TwoCropsTransform(TURNED),
                lambda pair: {"first": pair[0].float(), "second": pair[1]},
            ]
        ),
    ],
)
def test_what_one_view_alone_needs_is_called_after_all_are_decoded(transform: Any) -> None:
    dataset = images(transform)
    loader = DataLoader(dataset, 10)
    assert loader.explain().startswith("workers") and "of test_users.py" in loader.explain()
    batch, _ = next(iter(loader))
    want = default_collate([transform(dataset.open_image(index)) for index in range(10)])
    assert shape_of(batch) == shape_of(want)
    for got, wanted in zip(leaves(batch), leaves(want), strict=True):
        assert torch.equal(got, wanted)


def test_a_view_of_many_sizes_is_no_view_for_the_core() -> None:
    found = compile_recipe(p.Pair(WHOLE, tv.Compose([upside_down, CROP, BYTES])))
    assert isinstance(found, Refusal)
    assert found.reason.startswith("View 1: upside_down comes before the images have one size: ")


# --- what is not known ------------------------------------------------------------------------

COUNTED: list[Any] = []
STRENGTH = {"sigma": 1.0}


class Counting:
    def __init__(self) -> None:
        self.calls = 0
        self.seen: list[Any] = []

    def __call__(self, img: Any) -> Any:
        self.calls += 1
        return ImageOps.solarize(img)


class Remembering(Counting):
    def __call__(self, img: Any) -> Any:
        self.seen.append(1)
        return ImageOps.solarize(img)


class Hooked:
    def __getattr__(self, name: str) -> Any:
        return 1

    def __call__(self, img: Any) -> Any:
        return img.filter(ImageFilter.GaussianBlur(self.radius))


def hides_errors(img: Any) -> Any:
    try:
        return img.rotate(3)
    except BaseException:
        return img


def forever(img: Any) -> Any:
    while True:
        img = ImageOps.invert(img)


def counts(img: Any) -> Any:
    COUNTED.append(1)
    return img


def sets_item(img: Any) -> Any:
    STRENGTH["sigma"] = 3
    return img


def looks(img: Any) -> Any:
    return ImageOps.invert(img) if img.size[0] > 30 else img


def reads(img: Any) -> Any:
    return img if len(open("settings").read()) else ImageOps.invert(img)


def same_draw(img: Any) -> Any:
    radius = random.random()
    return img.filter(ImageFilter.GaussianBlur(radius)).filter(ImageFilter.GaussianBlur(radius))


def drawn_for_both(img: Any) -> Any:
    blur = ImageFilter.GaussianBlur(random.random())
    return [BYTES(CROP(img.filter(blur))), BYTES(CROP(img).filter(blur))]


def sometimes_two(img: Any) -> Any:
    return [WHOLE(img), WHOLE(img)] if random.random() < 0.5 else WHOLE(img)


def generates(img: Any) -> Any:
    yield WHOLE(img)


def is_it(img: Any) -> Any:
    other = WHOLE(img)
    return other if other is img else img


def grey(img: Any) -> Any:
    return ImageOps.grayscale(img)


def imports(img: Any) -> Any:
    from PIL.ImageOps import invert

    return invert(img)


def made() -> Any:
    times = 0

    def outer(img: Any) -> Any:
        nonlocal times
        times += 1
        return img

    return outer


class ByChance:
    """Holds functions in a dict's keys, as for their probabilities."""

    def __init__(self, step: Any) -> None:
        self.steps = {step: 0.5}

    def __call__(self, img: Any) -> Any:
        for step, chance in self.steps.items():
            if random.random() < chance:
                img = step(img)
        return img


class Count:
    number = 0

    def __call__(self) -> int | None:
        self.number += 1
        return self.number if self.number % 2 else None


class ByTurns:
    """Counts in another object, which decides what is done to an image."""

    def __init__(self) -> None:
        self.count = Count()

    def __call__(self, img: Any) -> Any:
        self.count()
        return ImageOps.invert(img) if self.count.number % 2 else img

    def both(self, img: Any) -> Any:
        return WHOLE(img), self.count(), self.count.number

    def noted(self, img: Any) -> Any:
        count = self.count()
        return WHOLE(img), count, 0 if count is None else 1


UNKNOWN: dict[str, tuple[Any, str]] = {
    "a key of a dict": (ByChance(lambda img: random.choice([img, CROP(img)])), "uses a key of"),
    "two sigmas": (
        lambda img: tv.functional.gaussian_blur(img, 5, [0.5, 4.0]),
        "blurs by other sigmas across and down",
    ),
    "a call that counts": (ByTurns(), "it calls Count and does not return the result"),
    "a count": (ByTurns().both, "it calls Count and reads its attributes"),
    "a count or None": (ByTurns().noted, "it tests for None what Count returns"),
    "an attribute is set": (Counting(), "sets an attribute"),
    "a list is changed": (Remembering(), "changes a list that it has not made"),
    "a global list is changed": (counts, "changes a list that it has not made"),
    "a global dict is changed": (sets_item, "changes a dict that it has not made"),
    "attributes are computed": (Hooked(), "whose class has a __getattr__"),
    "errors are handled": (hides_errors, "handles exceptions"),
    "it does not end": (forever, "has a loop that is not for"),
    "the size decides": (looks, "takes 'size' of the image"),
    "a file is read": (reads, "uses open, which is not known"),
    "a draw is used twice": (same_draw, "it uses one random number twice"),
    "a generator": (generates, "is a generator"),
    "an identity": (is_it, "asks whether two things are one"),
    "one channel": (grey, "it returns images of mode L"),
    "an import": (imports, "imports a module"),
    "an outer variable": (made(), "sets 'times' of an outer function"),
    "a hidden name": (lambda img: img.__class__(), "uses '__class__'"),
    "many draws": (
        lambda img: tv.functional.hflip(img) if torch.rand(2).sum() > 1 else img,
        "several numbers",
    ),
    "many ways": (
        lambda img: [img for _ in range(9) if random.random() < 0.5].pop(),
        "more than 64 courses",
    ),
    "an array": (lambda img: np.asarray(img)[::-1], "takes the image for a sequence"),
    "a number": (lambda img: 3, "it returns no image"),
    "the seed": (lambda img: np.random.seed(3) or img, "calls seed, which is not known"),
    "a number of torch's": (
        lambda img: img.filter(ImageFilter.GaussianBlur(torch.rand(1).item())),
        "hands over a random number",
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_says_which_line_does_it(name: str) -> None:
    function, words = UNKNOWN[name]
    found = compile_recipe(tv.Compose([function, CROP, BYTES]))
    assert isinstance(found, Refusal)
    assert "it is not a transform that fastdata knows: " in found.reason and words in found.reason
    if not words.startswith("it "):
        assert "of test_users.py" in found.reason or "courses" in words
    assert not COUNTED and STRENGTH == {"sigma": 1.0}


class Compose:
    """As albumentations has one: it takes arrays by name alone."""

    __module__ = "albumentations.core.composition"

    def __call__(self, *, image: Any) -> Any:
        return {"image": image}


def test_albumentations_is_named_and_is_to_be_called_by_name_after_a_crop() -> None:
    album = Compose()
    found = compile_recipe(album)
    assert isinstance(found, Refusal)
    assert found.reason.startswith("albumentations.Compose comes before the images have one size: ")
    assert "lambda image: transform(image=numpy.array(image))['image']" in found.reason
    assert found.reason.endswith("such as RandomResizedCrop or CenterCrop.")
    called = lambda image: album(image=np.array(image))["image"]  # noqa: E731
    reason = recipe_of(tv.Compose([CROP, called])).unknown[0].reason
    assert "of test_users.py calls albumentations.Compose, which is not known" in reason
    batch, _ = next(iter(DataLoader(images(tv.Compose([CROP, called, tv.ToTensor()])), 4)))
    assert batch.shape == (4, 3, *SIZE)


@pytest.mark.parametrize("function", [drawn_for_both, sometimes_two])
def test_views_that_are_not_apart_are_not_known(function: Any) -> None:
    assert isinstance(compile_recipe(function), Refusal)


def rotated(self: Any, found: Any) -> Any:
    return self.rotate(90)


@pytest.mark.parametrize(
    ("place", "name", "other"),
    [
        (random, "uniform", lambda a, b: a + 1),
        (ImageFilter, "GaussianBlur", ImageFilter.BoxBlur),
        (Image.Image, "filter", rotated),
        (ImageOps, "solarize", ImageOps.autocontrast),
        (tv.functional, "hflip", tv.functional.vflip),
    ],
)
def test_functions_of_libraries_that_were_replaced_are_not_taken_for_the_originals(
    place: Any, name: str, other: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_of_them(img: Any) -> Any:
        img = img.filter(ImageFilter.GaussianBlur(random.uniform(0.5, 0.5)))
        return tv.functional.hflip(ImageOps.solarize(img))

    transform = after_crop(all_of_them)
    monkeypatch.setattr(place, name, other)
    dataset = images(transform)
    batch, _ = next(iter(DataLoader(dataset, 10)))
    for index, image in enumerate(batch):
        assert torch.equal(image, transform(dataset.open_image(index)))


def test_a_replaced_call_of_modules_is_not_gone_around(monkeypatch: pytest.MonkeyPatch) -> None:
    class Solarize(torch.nn.Module):
        def forward(self, img: Any) -> Any:
            return ImageOps.solarize(img)

    steps = tv.Compose([Solarize(), tv.ToTensor()])  # no other module
    found = compile_recipe(steps, SIZE)
    assert isinstance(found, Recipe) and not found.unknown
    monkeypatch.setattr(torch.nn.Module, "__call__", lambda self, img: ImageOps.invert(img))
    found = compile_recipe(steps, SIZE)
    assert isinstance(found, Refusal) or found.unknown


def test_what_is_known_of_pil_images_is_not_done_to_tensors() -> None:
    recipe = recipe_of(tv.Compose([CROP, BYTES, lambda im: im.convert("RGB")]))
    assert len(recipe.tail) == 1 and "known of PIL images" in recipe.unknown[0].reason


def test_attributes_are_read_again_before_an_epoch() -> None:
    blur = p.SigmaBlur([1.0, 1.0])
    transform = after_crop(blur)
    dataset = images(transform)
    loader = DataLoader(dataset, 10, require_native=True)
    list(loader)
    blur.sigma[:] = [1.7, 1.7]
    batch, _ = next(iter(loader))
    for index, image in enumerate(batch):
        assert torch.equal(image, transform(dataset.open_image(index)))
