"""Several views of each image: what a batch of them is, their pixels, and their one decode."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from core_batches import cuts_of
from core_pixels import by_pillow, recipe_of
from jpegs import encode, picture
from loader_data import CROPS, WITH_INDEX, images, same
from PIL import Image
from torchvision_stub import import_torchvision

torch = pytest.importorskip("torch")

from torchvision_calls import apply  # noqa: E402

from fastdata import DataLoader, ImageDataset, _native, fast_collate  # noqa: E402
from fastdata.decode import seek_points  # noqa: E402
from fastdata.decode.engine import decode_one  # noqa: E402
from fastdata.errors import UsageError  # noqa: E402
from fastdata.plan.draws import epoch_key, sample_keys  # noqa: E402
from fastdata.transforms import (  # noqa: E402
    CenterCrop,
    Compose,
    Normalize,
    Pad,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    Views,
)
from fastdata.transforms.tree import native_program  # noqa: E402

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore::fastdata.errors.SlowPathWarning"),
    pytest.mark.filterwarnings("ignore::fastdata.errors.FallbackWarning"),
]

LOCAL = Compose([RandomResizedCrop(9, (0.05, 0.3)), RandomHorizontalFlip()])
CROPPED = Views(CROPS, Compose([CROPS, Normalize(MEAN, STD, dtype="float16")]), (LOCAL, 3))
NAMED = Views(global_crops=[CROPS, CROPS], local_crops=(LOCAL, 3), whole=Resize((20, 30)))
SHAPES = {"global_crops": [(24, 24)] * 2, "local_crops": [(9, 9)] * 3, "whole": [(20, 30)]}
SHARED = Views(student=[CROPS, LOCAL], teacher="student", offsets=())


def shapes(views: dict[str, list[Any]]) -> dict[str, list[tuple[int, ...]]]:
    return {name: [tuple(view.shape[-2:]) for view in group] for name, group in views.items()}


# --- what a batch is --------------------------------------------------------------------------


def test_a_batch_is_a_tensor_for_each_view() -> None:
    loader = DataLoader(images(CROPPED), 10, num_workers=2, seed=1)
    assert "5 views: RandomResizedCrop((24, 24)" in loader.explain()
    assert "| 3 of RandomResizedCrop((9, 9)" in loader.explain()
    *_, (last, labels) = batches = list(loader)
    assert len(batches) == 6 and len(labels) == 3  # fewer samples, in each view
    for views, labels in batches:
        assert [view.shape[2] for view in views] == [24, 24, 9, 9, 9]
        assert {len(view) for view in views} == {len(labels)}
        assert [view.dtype for view in views] == [torch.uint8, torch.float16] + [torch.uint8] * 3
        assert not torch.equal(views[2], views[3])
    assert torch.equal(last[2], views[2])


def test_named_views_are_a_dict_of_lists_on_every_path() -> None:
    loader = DataLoader(images(NAMED), 10, num_workers=2, fields=("image", "index"))
    assert "6 views (2 global_crops, 3 local_crops, 1 whole): " in loader.explain()
    for batch in loader:
        assert shapes(batch["image"]) == SHAPES
    assert shapes(images(NAMED)[3][0]) == SHAPES
    on_device = DataLoader(images(NAMED), 10, device="cpu", seed=1)
    assert same(list(on_device), list(DataLoader(images(NAMED), 10, seed=1)))
    for options in ({"worker_init_fn": print}, {"collate_fn": fast_collate}):
        views, labels = next(iter(DataLoader(images(NAMED), 10, **options)))  # type: ignore[arg-type]
        assert shapes(views) == SHAPES and len(labels) == 10
    views, labels = fast_collate([images(NAMED)[0], images(NAMED)[1]])
    assert shapes(views) == SHAPES and len(views["whole"][0]) == 2
    tail = Compose([NAMED, lambda views: [*views["whole"], len(views)]])
    loader = DataLoader(images(tail), 10)
    assert loader.explain().startswith("workers")
    (whole, count), _ = next(iter(loader))
    assert whole.shape == (10, 3, 20, 30) and count.tolist() == [3] * 10


def test_a_group_may_have_the_views_of_another() -> None:
    views, _ = next(iter(DataLoader(images(SHARED), 10, require_native=True, seed=1)))
    assert shapes(views) == {
        "student": [(24, 24), (9, 9)],
        "teacher": [(24, 24), (9, 9)],
        "offsets": [],
    }
    for made in (views, images(SHARED)[3][0]):
        assert all(map(torch.equal, made["student"], made["teacher"]))


COLLATED = [({"a": [np.zeros((2, 2), np.uint8)]}, 0), ({"b": []}, 0)]
PIL_CROP = import_torchvision().transforms.CenterCrop(3)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Views(CROPS, local=CROPS), "without a name beside local"),
        (lambda: Views((CROPS, 0)), "count 0"),
        (lambda: Views((CROPS, 1)), "makes 1"),
        (lambda: Views(crops=[]), "makes 0"),
        (lambda: DataLoader(images(Views(Views(CROPS, LOCAL), CROPS))), "name all views in one"),
        (lambda: Views(crops=[CROPS, "flip"]), "transform 1, 'flip'"),
        (lambda: Views(crops=CROPS, more="others"), "transform 1, 'others'"),
        (lambda: DataLoader(images(Views(crops=PIL_CROP))), "PIL images"),
        (lambda: fast_collate(COLLATED), "sample 1 of the batch has the views b"),
    ],
)
def test_views_that_cannot_be_made_say_why(make: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        list(make())


# --- pixels -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["transforms", "transforms.v2"])
def test_torchvisions_transforms_in_views_have_its_pixels(version: str) -> None:
    """Crops of the recipe of DINOv2; a blur comes last, as a level of it would be solarised."""
    tv = import_torchvision().transforms
    tv = tv.v2 if version.endswith("v2") else tv

    def view(size: int, scale: tuple[float, float], *steps: Any) -> Any:
        return tv.Compose(
            [
                tv.RandomResizedCrop(size, scale=scale, interpolation=Image.Resampling.BICUBIC),
                tv.RandomHorizontalFlip(),
                tv.RandomApply([tv.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
                tv.RandomGrayscale(p=0.2),
                *steps,
                tv.PILToTensor(),
            ]
        )

    blur = tv.RandomApply([tv.GaussianBlur(9, (0.1, 2.0))], p=0.5)
    first, second = view(24, (0.3, 1.0)), view(24, (0.3, 1.0), tv.RandomSolarize(128, p=0.5))
    dataset = images(Views(first, second, (view(9, (0.05, 0.3), blur), 2)))
    recipe = recipe_of(dataset.transform)
    calls_seen = set()
    for views, _, indices in DataLoader(dataset, 10, seed=3, num_workers=2, **WITH_INDEX):
        for number, (program, pixels) in enumerate(zip(recipe.programs, views, strict=True)):
            keys = sample_keys(epoch_key(3, 0), indices.numpy(), number)
            for place, index in enumerate(indices.tolist()):
                image = dataset.open_image(index)
                cut = program.draw([image.width], [image.height], keys[place : place + 1])
                size = program.size
                want = by_pillow(image, cut[0])
                calls, *_ = native_program(program.pixels).draw(int(keys[place]), *size)
                for name, values in calls:
                    want = apply(want, (name, tuple(values)))
                    calls_seen.add(name)
                got = pixels[place].permute(1, 2, 0).numpy().astype(int)
                assert np.abs(got - np.asarray(want)).max() <= (number > 1), (index, number)
    assert calls_seen >= {"hue", "solarize", "gaussian_blur", "grayscale"}


FIXED = {
    "overlapping": [CenterCrop(30), Resize((21, 33)), Compose([Resize(40), CenterCrop(32)])],
    "apart": [
        Compose([Resize(40), Pad(sides), CenterCrop(8)])
        for sides in ((24, 24, 0, 0), (0, 0, 24, 24), (24, 0, 0, 24))
    ],
    "padded": [CenterCrop(97), CenterCrop(8), Compose([Resize((9, 12)), RandomHorizontalFlip(1)])],
    "enlarged": [Resize((300, 200), "bicubic"), Resize((5, 5)), Resize((9, 9), "nearest")],
}


@pytest.mark.parametrize("options", [{}, {"seek_points": False}, {"kind": "raw"}])
def test_each_view_is_as_alone(options: dict[str, Any]) -> None:
    """Views that share pixels give the same results whether these are decoded once or twice."""
    for name, transforms in FIXED.items():

        def of(transform: Any) -> list[Any]:
            path = images(transform, "shards", **options).path
            dataset = ImageDataset(path, transform)
            loader = DataLoader(dataset, 10, num_workers=2, require_native=True)
            return [views for views, _ in loader]

        together = of(Views(*transforms))
        for number, transform in enumerate(transforms):
            assert same([views[number] for views in together], of(transform)), (name, number)


def test_damage_where_no_view_looks_is_no_error() -> None:
    """Two views leave a corner out that lies within what would be decoded for both."""
    data = encode(picture(400, 300, 1, 25), "4:2:0")
    tables = [seek_points(data)]
    end = len(data) // 60  # of the last row of MCUs
    cut = data[:-end] + bytes([0xFF, 0xD9]) * (end // 2) + bytes(end % 2)
    boxes = (0, 0, 120, 300), (0, 0, 400, 250)
    outs = np.zeros((2, 1, 50, 40, 3), np.uint8)
    views = [
        _native.Rendering(out, cuts=cuts_of(1, (40, 50), box=box))
        for out, box in zip(outs, boxes, strict=True)
    ]
    assert decode_one(cut, views, seek_points=tables) is None
    with Image.open(io.BytesIO(data)) as whole:
        wanted = [whole.convert("RGB").crop(box).resize((40, 50), 2) for box in boxes]
    for got, want in zip(outs, wanted, strict=True):
        assert np.abs(got[0].astype(int) - np.asarray(want)).max() <= 1
