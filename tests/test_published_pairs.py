"""Segmentation scripts from before torchvision's v2 run natively, as torchvision runs them."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import published_pairs as published
import pytest
import torch
from PIL import Image
from published_pairs import F, T, tv_tensors, v2
from torchvision_stub import import_torchvision
from vision_datasets import ROWS, make_coco, make_pets, make_voc

from fastdata import DataLoader, transforms
from fastdata.errors import SampleError, SlowPathWarning
from fastdata.transforms.compile import compile_recipe
from fastdata.transforms.joint import Joint, Target
from fastdata.transforms.outcomes import Refusal

# pycocotools has not moved to NumPy 2 completely.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

tv: Any = import_torchvision()


@pytest.fixture(scope="module")
def voc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_voc(tmp_path_factory.mktemp("voc"))


def _opened(root: Path, transform: Any, **options: Any) -> Any:
    return tv.datasets.VOCSegmentation(root, "2007", transforms=transform, **options)


def _steps(*steps: Any) -> Any:
    return published.Chain([*steps, *published.ending()])


def _compiled(transform: Any) -> Any:
    target = Target("mask", as_pil=True, flat=True, filter="nearest")
    found = compile_recipe(transform, None, Joint(("image", "mask"), {"mask": target}))
    return found.unequal or found if isinstance(found, Refusal) else found


def _assert_same(found: Any, expected: Any) -> None:
    for one, other in zip(found, expected, strict=True):
        assert (type(one), one.dtype, one.shape) == (type(other), other.dtype, other.shape)
    assert (found[0] - expected[0]).abs().max() <= 1.01 / 255 / 0.2
    assert torch.equal(found[1], expected[1])


_FIXED = {
    "smaller": _steps(published.Sized(31, 31)),
    "larger": _steps(published.Sized(97, 97), published.Mirrored(1.0)),
    "padded": _steps(published.Sized(30, 30), published.Cropped(150)),
    "one side": _steps(published.Sized(30, 30), published.Middle(20), published.Mirrored(1.0)),
    "middle": _steps(published.Middle(90)),
}


@pytest.mark.parametrize("steps", _FIXED)
@pytest.mark.parametrize("workers", [0, 2])
def test_images_and_masks_are_torchvisions(voc: Path, steps: str, workers: int) -> None:
    dataset = _opened(voc, _FIXED[steps])
    options: dict[str, Any] = {"collate_fn": published.collate}
    theirs = torch.utils.data.DataLoader(dataset, 4, **options)
    ours = DataLoader(dataset, 4, num_workers=workers, require_native=True, **options)
    batches = list(ours)
    assert len(batches) == len(theirs)
    for found, expected in zip(batches, theirs, strict=True):
        _assert_same(found, expected)


def test_draws_become_steps() -> None:
    recipe = _compiled(published.train(52, 48))
    assert not recipe.unknown
    assert recipe.programs[0].steps == (
        transforms.RandomResize(26, 105),
        transforms.RandomHorizontalFlip(0.5),
        transforms.PadToSize(48, mask_fill=255),
        transforms.RandomCrop(48),
    )


def test_every_sample_comes_once(voc: Path) -> None:
    dataset = _opened(voc, published.train(52, 48))
    loader = DataLoader(dataset, 2, shuffle=True, collate_fn=published.collate, require_native=True)
    batches = list(loader)
    assert sum(len(images) for images, _ in batches) == ROWS
    assert {(*images.shape[1:], *masks.shape[1:]) for images, masks in batches} == {
        (3, 48, 48, 48, 48)
    }


def test_a_batch_without_a_collate_function(voc: Path) -> None:
    dataset = _opened(voc, _steps(published.Middle(40)))
    (found,) = DataLoader(dataset, ROWS, require_native=True)
    (expected,) = torch.utils.data.DataLoader(dataset, ROWS)
    _assert_same(found, expected)


def test_pets(tmp_path: Path) -> None:
    root, transform = make_pets(tmp_path), _FIXED["padded"]
    options = {"target_types": "segmentation", "transforms": transform}
    dataset = tv.datasets.OxfordIIITPet(root, **options)
    loader = DataLoader(dataset, 1, collate_fn=published.collate, require_native=True)
    for row, found in enumerate(loader):
        _assert_same(found, published.collate([dataset[row]]))


def _own_size(image: Any, mask: Any) -> Any:
    side = random.randint(20, 30)
    return F.resize(image, side), F.resize(mask, side + 1, T.InterpolationMode.NEAREST)


def _own_draw(image: Any, mask: Any) -> Any:
    image = F.resize(image, random.randint(20, 30))
    return image, F.resize(mask, random.randint(20, 30), T.InterpolationMode.NEAREST)


def _own_flip(image: Any, mask: Any) -> Any:
    return F.hflip(image), mask


def _bilinear(image: Any, mask: Any) -> Any:
    return F.resize(image, 30), F.resize(mask, 30)


def _by_size(image: Any, mask: Any) -> Any:
    if image.size[0] < 50:
        image, mask = F.hflip(image), F.hflip(mask)
    return image, mask


def _other_pad(image: Any, mask: Any) -> Any:
    lack = 150 - image.size[0]
    if lack > 0:
        image, mask = F.pad(image, (0, 0, lack, lack)), F.pad(mask, (0, 0, lack, lack))
    return image, mask


def _crop_before(image: Any, mask: Any) -> Any:
    box = T.RandomCrop.get_params(image, (20, 20))
    image, mask = F.hflip(image), F.hflip(mask)
    image, mask = F.center_crop(image, 30), F.center_crop(mask, 30)
    return F.crop(image, *box), F.crop(mask, *box)


def _twice(image: Any, mask: Any) -> Any:
    side = random.randint(20, 30)
    for _ in range(2):
        image = F.hflip(F.resize(image, side))
        mask = F.hflip(F.resize(mask, side, T.InterpolationMode.NEAREST))
    return image, mask


def _random_pad(image: Any, mask: Any) -> Any:
    side = random.randint(0, 3)
    return F.pad(image, side), F.pad(mask, side)


def _negative_pad(image: Any, mask: Any) -> Any:
    return F.pad(image, -2), F.pad(mask, -2)


def _swapped(image: Any, mask: Any) -> Any:
    return mask, image


def _values(image: Any, mask: Any) -> Any:
    return image, mask.point(lambda value: value % 2)


@pytest.mark.parametrize(
    ("step", "match"),
    [
        (_own_size, "computes with a random number"),
        (_own_draw, "moves the image and its mask differently"),
        (_own_flip, "moves the image and its mask differently"),
        (_bilinear, "resizes by other than"),
        (_by_size, "depends on the image's size"),
        (_other_pad, "depends on the image's size"),
        (_crop_before, "drawn for another size"),
        (_twice, "a random number for more than one resize"),
        (_random_pad, "a random number for more than one resize"),
        (_negative_pad, "its arguments are not known: Pad"),
        (_swapped, "makes an array of the image"),
        (_values, "takes 'point' of the mask"),
        (T.RandomHorizontalFlip(), "wrap_dataset_for_transforms_v2"),
    ],
)
def test_what_is_not_known_is_left_to_torch(voc: Path, step: Any, match: str) -> None:
    dataset = _opened(voc, _steps(step))
    with pytest.warns(SlowPathWarning, match=match):
        loader = DataLoader(dataset, 1, collate_fn=published.collate)
    if step in (_own_flip, _by_size):
        _assert_same(next(iter(loader)), published.collate([dataset[0]]))


def test_a_mask_that_stays_an_image_is_left_to_torch(voc: Path) -> None:
    for steps in ([published.Mirrored(1.0)], [published.Mirrored(1.0), str]):
        dataset = _opened(voc, published.Chain(steps))
        with pytest.warns(SlowPathWarning, match="PIL image"):
            DataLoader(dataset, 1, collate_fn=list)


def test_transforms_of_image_and_mask_apart_are_left_to_torch(voc: Path) -> None:
    dataset = tv.datasets.VOCSegmentation(
        voc, "2007", transform=T.Resize((40, 40)), target_transform=T.Resize((40, 40))
    )
    with pytest.warns(SlowPathWarning, match="one by one"):
        DataLoader(dataset, 1, collate_fn=list)


# --- masks that scripts make of COCO's annotations ---------------------------------------------


@pytest.fixture(scope="module")
def coco(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("pycocotools")
    root = make_coco(tmp_path_factory.mktemp("coco"))
    # One image has objects that overlap.
    found = json.loads((root / "instances.json").read_text())
    first = found["annotations"][0]
    found["annotations"].append({**first, "id": 1000, "category_id": 4})
    (root / "instances.json").write_text(json.dumps(found))
    return root


def _annotated(root: Path, *steps: Any, wrapped: bool = False) -> Any:
    transform = published.Chain(list(steps))
    found = tv.datasets.CocoDetection(
        root / "images", root / "instances.json", transforms=transform
    )
    if not wrapped:
        return found
    return tv.datasets.wrap_dataset_for_transforms_v2(found, target_keys={"masks", "labels"})


def _made(root: Path, wrapped: bool) -> Any:
    if not wrapped:
        begin = [published.Renamed([0, 2, 1, 4]), published.Painted()]
        return _annotated(root, *begin, *_FIXED["padded"].steps)
    steps: list[Any] = [v2.Resize(60), v2.RandomHorizontalFlip(1.0), v2.PILToTensor()]
    dtypes = {torch.Tensor: torch.float32, tv_tensors.Mask: torch.int64, "others": None}
    steps += [v2.ToDtype(dtypes, scale=True), v2.ToPureTensor()]
    return _annotated(root, published.MergedMasks(), *steps, wrapped=True)


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_masks_that_scripts_make_are_theirs(coco: Path, wrapped: bool, workers: int) -> None:
    dataset = _made(coco, wrapped)
    options: dict[str, Any] = {"collate_fn": published.collate, "num_workers": workers}
    loader = DataLoader(dataset, 2, require_native=True, **options)
    assert "with masks by" in str(loader.explain())
    values = set()
    for number, found in enumerate(loader):
        rows = range(2 * number, min(2 * number + 2, ROWS))
        _assert_same(found, published.collate([dataset[row] for row in rows]))
        values |= set(found[1].unique().tolist())
    assert values >= ({0, 1, 3, 255} if wrapped else {0, 1, 2, 255})


def test_a_subset_of_images_with_made_masks(coco: Path) -> None:
    dataset = torch.utils.data.Subset(_made(coco, False), [5, 1, 1])
    (found,) = DataLoader(dataset, 3, collate_fn=published.collate, require_native=True)
    _assert_same(found, published.collate([dataset[row] for row in range(3)]))


class _OfPixels:
    def __call__(self, image: Any, objects: Any) -> Any:
        return image, image.convert("L")


class _Flipped:
    def __call__(self, image: Any, objects: Any) -> Any:
        image = F.hflip(image)
        return image, objects


class _Given:
    def __call__(self, image: Any, objects: Any) -> Any:
        return image, F.hflip(image)


class _Drawn:
    def __call__(self, image: Any, objects: Any) -> Any:
        return image, Image.new("L", image.size, random.randint(0, 3))


class _Counted:
    count = 0

    def __call__(self, image: Any, objects: Any) -> Any:
        self.count += 1
        return image, Image.new("L", image.size, self.count)


class _Held:
    def __init__(self) -> None:
        self.other = sorted

    def __call__(self, image: Any, objects: Any) -> Any:
        return image, self.other(objects)


@pytest.mark.parametrize(
    ("step", "match"),
    [
        (_OfPixels(), "takes 'convert' of the image"),
        (_Flipped(), "gives the image to hflip"),
        (_Given(), "gives the image to hflip"),
        (_Drawn(), "it uses rand"),
        (_Counted(), "keeps a state"),
        (_Held(), "it holds other transforms"),
    ],
)
def test_what_may_use_pixels_or_chance_is_left_to_torch(coco: Path, step: Any, match: str) -> None:
    dataset = _annotated(coco, step, *published.ending())
    with pytest.warns(SlowPathWarning, match=match):
        DataLoader(dataset, 1, collate_fn=published.collate)


class _NowAndThen:
    def __call__(self, image: Any, objects: Any) -> Any:
        found = Image.new("L", image.size)
        if len(objects) < 4:
            return image, found
        return found, found


def test_another_image_is_an_error_of_its_sample(coco: Path) -> None:
    dataset = _annotated(coco, _NowAndThen(), *_FIXED["middle"].steps)
    loader = DataLoader(dataset, 1, collate_fn=published.collate, require_native=True)
    with pytest.raises(SampleError, match="_NowAndThen returns another image"):
        list(loader)
