"""Transforms of users' own, against the object itself: ``__fastdata__``, and small functions."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import vision_datasets
from annotated import write_coco
from loader_data import images, tree
from PIL import Image, ImageFilter
from sources import convert
from torchvision_stub import import_torchvision

from fastdata import DataLoader, ImageDataset
from fastdata import transforms as own
from fastdata.errors import SlowPathWarning, UsageError

torchvision = import_torchvision()
# Imported as scripts do it: the interpreter compiles calls of imported names in another way.

v1, v2 = torchvision.transforms, torchvision.transforms.v2
pytestmark = pytest.mark.filterwarnings("ignore::fastdata.errors.FallbackWarning")
SIZE = (32, 32)


class Blur:
    def __call__(self, image: Any) -> Any:
        assert isinstance(image, Image.Image)
        return image.filter(ImageFilter.GaussianBlur(1.5))

    def __fastdata__(self) -> Any:
        return own.PillowBlur((1.5, 1.5))


def mirrored(image: Any) -> Any:
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)


mirrored.__fastdata__ = lambda: own.RandomHorizontalFlip(1.0)  # type: ignore[attr-defined]


class Stronger(Blur):
    def __call__(self, image: Any) -> Any:
        return super().__call__(super().__call__(image))


class Without(Blur):
    __fastdata__ = None  # type: ignore[assignment]


class Unknown:
    def __call__(self, image: Any) -> Any:
        assert isinstance(image, Image.Image)
        return image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)


class Preset:
    def __init__(self, *steps: Any) -> None:
        self.transforms = pipeline(Blur(), *steps)

    def __call__(self, image: Any) -> Any:
        return self.transforms(image)

    def __fastdata__(self) -> Any:
        return own.Compose([self.transforms])


class TwoCrops:
    def __init__(self, transform: Any) -> None:
        self.transform = transform

    def __call__(self, image: Any) -> Any:
        return [self.transform(image), self.transform(image)]

    def __fastdata__(self) -> Any:
        return own.Views(self.transform, count=2)


class Module(torch.nn.Module):
    def forward(self, image: Any) -> Any:
        return mirrored(image)

    def __fastdata__(self) -> Any:
        return own.RandomHorizontalFlip(1.0)


class Own(own.CenterCrop):
    """A class that derives from fastdata's, and does something else."""

    def __call__(self, image: Any, *targets: Any) -> Any:
        return own.CenterCrop(self.size)(mirrored(image))

    def __fastdata__(self) -> Any:
        return own.Compose([own.RandomHorizontalFlip(1.0), own.CenterCrop(self.size)])


def pipeline(*steps: Any, of: Any = v1) -> Any:
    end = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)] if of is v2 else [v1.ToTensor()]
    return of.Compose([of.Resize(SIZE), *steps, *end])


def folder(transform: Any, **options: Any) -> Any:
    return torchvision.datasets.ImageFolder(str(tree()), transform, **options)


def assert_same(loader: Any, other: Any, batches: int = 2) -> None:
    for found, wanted in zip(islice(loader, batches), islice(other, batches), strict=True):
        vision_datasets.assert_same(found, wanted)


def assert_native(dataset: Any, **options: Any) -> None:
    loader = DataLoader(dataset, 4, require_native=True, **options)
    assert_same(loader, torch.utils.data.DataLoader(dataset, 4, **options))


PIPELINES: dict[str, Callable[[], Any]] = {
    "v1": lambda: pipeline(Blur(), mirrored, v1.Lambda(mirrored), lambda im: im.convert("RGB")),
    "v2": lambda: pipeline(Blur(), mirrored, v2.Lambda(lambda x: x), of=v2),
    "Sequential": lambda: torch.nn.Sequential(v2.Resize(SIZE), Module(), v2.ToImage()),
    "of fastdata's": lambda: Own(24),
    "held by v1's": lambda: pipeline(
        v1.RandomApply([Blur(), v1.Lambda(mirrored)], 1.0), v1.RandomChoice([Blur()])
    ),
    "held by v2's": lambda: pipeline(
        v2.RandomApply([mirrored], 1.0), v2.RandomChoice([Blur()]), of=v2
    ),
    "held by fastdata's": lambda: own.Compose(
        [own.Resize(SIZE), own.RandomApply([Blur()], 1.0), own.RandomChoice([mirrored]), Blur()]
    ),
    "Views": lambda: own.Views(pipeline(Blur()), own.Compose([own.Resize(SIZE), mirrored])),
    "a preset": Preset,
    "a preset in a list": lambda: own.Compose([Preset()]),
    "views of a preset": lambda: TwoCrops(Preset()),
}


@pytest.mark.parametrize("name", PIPELINES)
def test_what_an_object_offers_is_done_wherever_it_stands(name: str) -> None:
    assert_native(folder(PIPELINES[name]()))


@pytest.mark.parametrize(
    "steps", [[Unknown(), Blur()], [Blur(), Unknown()], [Unknown(), v1.RandomApply([Blur()], 1.0)]]
)
def test_beside_an_unknown_step_objects_are_called_with_pil_images(steps: list[Any]) -> None:
    dataset = folder(pipeline(*steps))
    with pytest.warns(SlowPathWarning, match="test_own_transforms.Unknown") as warned:
        loader = DataLoader(dataset, 4)
    assert len(warned) == 1 and loader.explain().startswith("workers")
    assert_same(loader, torch.utils.data.DataLoader(dataset, 4))


def test_an_unknown_step_within_what_is_offered_is_named() -> None:
    for step in (TwoCrops(pipeline(Blur(), Unknown())), TwoCrops(Preset(Unknown()))):
        with pytest.warns(SlowPathWarning, match="Add a method __fastdata__ to .*Unknown"):
            DataLoader(folder(step), 4)


@pytest.mark.parametrize("of", [v1, v2])
def test_the_function_of_a_lambda_is_told_to_offer_one(of: Any) -> None:
    dataset = folder(pipeline(of.Lambda(lambda image: Unknown()(image)), of=of))
    with pytest.warns(SlowPathWarning, match="Put a function f in its place .*f.__fastdata__"):
        DataLoader(dataset, 4)


def test_what_is_offered_is_read_when_an_epoch_begins() -> None:
    class Stops:
        steps = own.Compose([own.Resize(SIZE), own.RandomHorizontalFlip(1.0)])

        def __call__(self, image: Any) -> Any:
            return self.steps(image)

        def __fastdata__(self) -> Any:
            return own.Compose(list(self.steps.transforms))

    dataset = images(Stops())
    loader = DataLoader(dataset, 4, require_native=True)
    for steps in (Stops.steps, own.Compose([own.Resize(SIZE)])):
        Stops.steps = steps
        assert_same(loader, torch.utils.data.DataLoader(images(steps), 4), batches=1)


# --- targets -----------------------------------------------------------------------------------


class Joint:
    def __init__(self, *steps: Any) -> None:
        self.transforms = v2.Compose([*steps, v2.ToImage(), v2.ToPureTensor()])

    def __call__(self, image: Any, target: Any) -> Any:
        return self.transforms(image, target)

    def __fastdata__(self) -> Any:
        return own.Compose([self.transforms])


class Mirror(v2.Transform):  # type: ignore[misc, name-defined]
    def forward(self, *inputs: Any) -> Any:
        return v2.RandomHorizontalFlip(1.0)(*inputs)

    def __fastdata__(self) -> Any:
        return own.RandomHorizontalFlip(1.0)


def as_lists(samples: list[Any]) -> Any:
    return tuple(zip(*samples, strict=True))


def packed_coco(root: Path) -> Path:
    write_coco(root / "coco")
    options = ("--root", root / "coco", "--split", "val2017", "--out", root / "boxes")
    assert convert("coco", *options).exit_code == 0
    return root / "boxes"


def joint(root: Path, transforms: Any) -> Any:
    fields = ("image", "boxes", "labels")
    return ImageDataset(packed_coco(root), transforms=transforms, fields=fields)


@pytest.mark.parametrize(
    "make", [lambda: Joint(Mirror()), lambda: v2.Compose([Mirror(), v2.ToImage()])]
)
def test_boxes_follow(make: Any, tmp_path: Path) -> None:
    assert_native(joint(tmp_path, make()), collate_fn=as_lists)


class UnknownJoint:
    def __call__(self, image: Any, target: Any) -> Any:
        assert isinstance(image, Image.Image)
        return v2.RandomHorizontalFlip(1.0)(image, target)


@pytest.mark.parametrize("steps", [[Mirror(), UnknownJoint()], [UnknownJoint(), Mirror()]])
def test_beside_an_unknown_step_joint_ones_get_pil_images(steps: Any, tmp_path: Path) -> None:
    dataset = joint(tmp_path, v2.Compose([*steps, v2.ToImage()]))
    with pytest.warns(SlowPathWarning, match="UnknownJoint"):
        loader = DataLoader(dataset, 4, collate_fn=as_lists)
    assert_same(loader, torch.utils.data.DataLoader(dataset, 4, collate_fn=as_lists))


# --- mistakes ----------------------------------------------------------------------------------


def offering(what: Any) -> Any:
    return type("Mistaken", (Blur,), {"__fastdata__": what})()


MISTAKES: dict[str, Any] = {
    "None": lambda self: None,
    "a string": lambda self: "RandomHorizontalFlip",
    "torchvision's": lambda self: v1.Compose([v1.RandomHorizontalFlip(1.0)]),
    "a function": lambda self: mirrored,
    "a class": lambda self: own.RandomHorizontalFlip,
    "itself": lambda self: self,
    "no function": own.RandomHorizontalFlip(),
    "a property": property(lambda self: own.RandomHorizontalFlip()),
    "a number": 5,
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_errors_that_name_the_class(name: str) -> None:
    for held in (lambda one: one, lambda one: pipeline(v1.RandomApply([one]))):
        with pytest.raises(UsageError, match="Mistaken"):
            DataLoader(folder(held(offering(MISTAKES[name]))), 4)
    with pytest.raises(UsageError, match="Blur"):
        DataLoader(folder(pipeline(Blur)), 4)


def holding_itself(compose: Any) -> Any:
    compose.append(compose) if hasattr(compose, "append") else compose.transforms.append(compose)
    return compose


def of_two() -> Any:
    one = offering(lambda self: own.Compose([two]))
    two = offering(lambda self: own.RandomApply([one]))
    return one


ENDLESS: dict[str, Callable[[], Any]] = {
    "itself": lambda: offering(lambda self: own.Compose([own.CenterCrop(8), self])),
    "another of its kind": lambda: offering(lambda self: own.Compose([type(self)()])),
    "two": of_two,
    "within a choice": lambda: own.Compose([own.CenterCrop(8), own.RandomChoice([of_two()])]),
    "v1": lambda: holding_itself(v1.Compose([v1.CenterCrop(8)])),
    "v2": lambda: holding_itself(v2.Compose([v2.CenterCrop(8)])),
    "Sequential": lambda: holding_itself(torch.nn.Sequential(v2.CenterCrop(8))),
    "a choice": lambda: v2.Compose([holding_itself(v2.RandomApply([v2.CenterCrop(8)]))]),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_transforms_without_an_end_are_errors(name: str, tmp_path: Path) -> None:
    for use in (
        lambda transform: DataLoader(folder(transform), 4),
        lambda transform: DataLoader(images(transform), 4),
        lambda transform: own.Compose([transform])(Image.new("RGB", SIZE)),
        lambda transform: DataLoader(joint(tmp_path, transform), 4, collate_fn=as_lists),
    ):
        with pytest.raises(UsageError):
            use(ENDLESS[name]())


def test_the_method_of_another_object_is_not_taken() -> None:
    class Delegates:
        def __getattr__(self, name: str) -> Any:
            return getattr(Blur(), name)

        def __call__(self, image: Any) -> Any:
            return image

    @functools.wraps(mirrored)
    def twice(image: Any) -> Any:
        return mirrored(mirrored(image))

    class Raises:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

        def __call__(self, image: Any) -> Any:
            return image

    class Called(Blur):
        __call__ = functools.partial(mirrored)  # type: ignore[assignment]

    for step in (Delegates(), Raises(), twice, Without(), Stronger(), Called()):
        dataset = folder(pipeline(step))
        with pytest.warns(SlowPathWarning):
            loader = DataLoader(dataset, 4)
        assert_same(loader, torch.utils.data.DataLoader(dataset, 4), batches=1)


def test_modules_that_were_overridden_do_not_do_what_they_offer() -> None:
    def hook(module: Any, given: Any, image: Any) -> Any:
        return image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)

    hooked, replaced = Module(), Module()
    hooked.register_forward_hook(hook)
    replaced.forward = Unknown().__call__  # type: ignore[method-assign]
    for step, reason in [(hooked, "it has forward_hooks"), (replaced, "its forward was replaced")]:
        dataset = folder(pipeline(step))
        with pytest.warns(SlowPathWarning, match=f"{reason}.*\nUndo that"):
            loader = DataLoader(dataset, 4)
        assert_same(loader, torch.utils.data.DataLoader(dataset, 4), batches=1)


# --- the page ----------------------------------------------------------------------------------

PAGE = Path(__file__).parents[1] / "docs" / "guides" / "own-transforms.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


@pytest.mark.parametrize("number", range(3))
def test_the_pages_examples_have_the_pixels_of_their_classes(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imagenet").mkdir()
    (tmp_path / "imagenet" / "train").symlink_to(tree())
    packed_coco(tmp_path)
    monkeypatch.chdir(tmp_path)
    page: dict[str, Any] = {}
    exec(BLOCKS[number], page)
    dataset, collation = page["loader"].dataset, {}
    assert page["loader"].explain().startswith("native")
    if number == 0:
        dataset.transform = page["TwoCropsTransform"](pipeline())
    elif number == 1:
        dataset.transform = pipeline(v1.RandomApply([page["GaussianBlur"]((1.5, 1.5))], 1.0))
    else:
        dataset.transforms, collation = page["DetectionPresetTrain"](1.0), {"collate_fn": as_lists}
    assert_native(dataset, **collation)
