"""Boxes and key points follow the image, as torchvision.transforms.v2 moves them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from fastdata.converters import TableImages, pack
from PIL import Image
from torch.utils.data import ConcatDataset
from torchvision_stub import import_torchvision

from fastdata import DataLoader, ImageDataset, Mixture, Ragged
from fastdata.errors import SlowPathWarning, UsageError
from fastdata.transforms import (
    CenterCrop,
    Compose,
    ConvertBoundingBoxFormat,
    RandomHorizontalFlip,
    Resize,
    Schedule,
    Views,
)

_V1 = import_torchvision().transforms
_FORMATS = {"boxes": "xywh", "keypoints": "xyv"}
_FIELDS = ("image", "boxes", "labels", "keypoints", "name")
ROWS = 12


def _table(folder: Path) -> pa.Table:
    rng = np.random.default_rng(7)
    rows = []
    for number in range(ROWS):
        width, height = (int(side) for side in rng.integers(40, 120, 2))
        pixels = rng.integers(0, 256, (5, 7, 3), np.uint8)
        image = Image.fromarray(pixels).resize((width, height))
        image.save(folder / f"{number}.jpg")
        count = number % 4
        places = rng.uniform(0, 0.7, (count, 2)) * (width, height)
        boxes = np.concatenate([places, rng.uniform(1, 30, (count, 2))], 1)
        points = rng.uniform(0, 1, (count, 5, 3)) * (width, height, 1)
        points[..., 2] = rng.integers(0, 3, (count, 5))
        rows.append(
            {
                "path": f"{number}.jpg",
                "boxes": boxes.tolist(),
                "labels": rng.integers(0, 90, count).tolist(),
                "category_ids": [7 * one for one in range(count)],
                "iscrowd": [one % 2 == 0 for one in range(count)],
                "keypoints": points.reshape(count, 15).tolist(),
                "name": f"sample {number}",
            }
        )
    found = pa.Table.from_pylist(rows)
    at = found.column_names.index("keypoints")
    fixed = found["keypoints"].cast(pa.list_(pa.list_(pa.float32(), 15)))
    return found.set_column(at, "keypoints", fixed)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("targets")
    out = folder / "packed"
    pack(TableImages(_table(folder), folder, formats=_FORMATS), out, workers=1)
    return out


def _as_torchvision(packed: Path, row: int, transform: Any) -> Any:
    from torchvision import tv_tensors
    from torchvision.transforms.v2 import functional

    plain = ImageDataset(packed, fields=_FIELDS)
    image, boxes, labels, points, name = plain[row].values()
    size = image.height, image.width
    given = torch.tensor(boxes, dtype=torch.float32).reshape(-1, 4)
    found = tv_tensors.BoundingBoxes(given, format="XYWH", canvas_size=size)
    triples = torch.tensor(points, dtype=torch.float32).reshape(len(boxes), 5, 3)
    target = {
        "boxes": functional.convert_bounding_box_format(found, new_format="XYXY"),
        "labels": torch.tensor(labels, dtype=torch.int64),
        "keypoints": tv_tensors.KeyPoints(triples[..., :2], canvas_size=size),
        "keypoints_visibility": triples[..., 2].to(torch.int64),
        "name": name,
    }
    return transform(image, target)


def _assert_same(found: Any, expected: Any, *, image_class: bool = True) -> None:
    (image, target), (other, wanted) = found, expected
    assert type(image) is (type(other) if image_class else torch.Tensor)
    assert (image.int() - other.int()).abs().max() <= 1
    assert list(target) == list(wanted)
    for name in ("boxes", "keypoints"):
        assert type(target[name]) is type(wanted[name])
        assert target[name].shape == wanted[name].shape
        torch.testing.assert_close(
            target[name].as_subclass(torch.Tensor),
            wanted[name].as_subclass(torch.Tensor),
            rtol=0,
            atol=1e-4,
        )
        assert getattr(target[name], "canvas_size", 0) == getattr(wanted[name], "canvas_size", 0)
    for name in ("labels", "keypoints_visibility"):
        assert torch.equal(target[name], wanted[name])
    assert target["name"] == wanted["name"]


def _pipelines(v2: Any) -> dict[str, Any]:
    tail = [v2.ToImage()]
    return {
        "resize": v2.Compose([v2.Resize((50, 60)), *tail]),
        "shorter": v2.Compose([v2.Resize(30, max_size=50), *tail]),
        "flip": v2.Compose([v2.RandomHorizontalFlip(1.0), v2.RandomVerticalFlip(1.0), *tail]),
        "pad": v2.Compose([v2.Pad((3, 5, 7, 9)), v2.ClampBoundingBoxes(), *tail]),
        "format": v2.Compose([v2.ConvertBoundingBoxFormat("CXCYWH"), *tail]),
        "pure": v2.Compose([v2.RandomHorizontalFlip(1.0), *tail, v2.ToPureTensor()]),
        "drop": v2.Compose(
            [v2.CenterCrop(48), v2.SanitizeBoundingBoxes(4, 200), v2.Resize((30, 30)), *tail]
        ),
    }


def _loaded(packed: Path, transform: Any, workers: int = 0, **options: Any) -> list[Any]:
    dataset = ImageDataset(packed, transforms=transform, fields=_FIELDS)
    loader = DataLoader(dataset, 5, num_workers=workers, collate_fn=list, **options)
    return [sample for batch in loader for sample in batch]


@pytest.mark.parametrize("name", ["resize", "shorter", "flip", "pad", "format", "pure", "drop"])
def test_a_sample_is_what_torchvision_makes_of_it(v2: Any, packed: Path, name: str) -> None:
    transform = _pipelines(v2)[name]
    samples = _loaded(packed, transform, 2, require_native=True)
    assert len(samples) == ROWS
    dataset = ImageDataset(packed, transforms=transform, fields=_FIELDS)
    copied = pickle.loads(pickle.dumps(dataset))
    for row, sample in enumerate(samples):
        expected = _as_torchvision(packed, row, transform)
        _assert_same(sample, expected)
        _assert_same(copied[row], expected)
        _assert_same(dataset.__getitems__([row])[0], expected)


@pytest.mark.parametrize(
    ("kinds", "after"),
    [
        ({"BoundingBoxes": torch.int64, "KeyPoints": torch.int32}, "resize"),
        ({"BoundingBoxes": torch.int64}, "format"),
        ({"BoundingBoxes": torch.int64}, "drop"),
        ({"KeyPoints": torch.float16}, "pad"),
        ({"BoundingBoxes": torch.int64}, "floats"),
        ({"BoundingBoxes": torch.float64, "KeyPoints": torch.float64}, "resize"),
    ],
)
@pytest.mark.filterwarnings("ignore::fastdata.errors.SlowPathWarning")
def test_what_is_converted_is_no_more_what_the_core_computes_with(
    v2: Any, packed: Path, kinds: dict[str, torch.dtype], after: str
) -> None:
    from torchvision import tv_tensors

    def to(dtypes: dict[str, torch.dtype]) -> Any:
        classes = {getattr(tv_tensors, name): dtype for name, dtype in dtypes.items()}
        return v2.ToDtype({**classes, "others": None})

    floats = [to(dict.fromkeys(kinds, torch.float32))]
    then = {"floats": floats}.get(after) or _pipelines(v2)[after].transforms
    transform = v2.Compose([v2.ToImage(), to(kinds), *then])
    samples = _loaded(packed, transform, 1)
    for row, sample in enumerate(samples):
        expected = _as_torchvision(packed, row, transform)
        for name in ("boxes", "keypoints"):
            assert sample[1][name].dtype == expected[1][name].dtype
            difference = sample[1][name].double() - expected[1][name].double()
            assert not len(difference) or difference.abs().max() <= 1e-4
        assert torch.equal(sample[1]["labels"], expected[1]["labels"])


def test_without_a_collate_fn_lists_are_ragged(v2: Any, packed: Path) -> None:
    transform = v2.Compose([v2.Resize((50, 60)), v2.ToImage()])
    dataset = ImageDataset(packed, transforms=transform, fields=_FIELDS)
    images, target = next(iter(DataLoader(dataset, ROWS)))
    assert images.shape == (ROWS, 3, 50, 60)
    assert target["name"] == [f"sample {number}" for number in range(ROWS)]
    for name in ("boxes", "labels", "keypoints"):
        assert isinstance(target[name], Ragged)
        for row, one in enumerate(target[name].list()):
            torch.testing.assert_close(
                one,
                _as_torchvision(packed, row, transform)[1][name].as_subclass(torch.Tensor),
                rtol=0,
                atol=1e-4,
            )


def test_transforms_of_fastdata_move_targets(v2: Any, packed: Path) -> None:
    ours = Compose([Resize((50, 60)), RandomHorizontalFlip(1.0)])
    theirs = v2.Compose([v2.Resize((50, 60)), v2.RandomHorizontalFlip(1.0), v2.ToImage()])
    for row, sample in enumerate(_loaded(packed, ours)):
        _assert_same(sample, _as_torchvision(packed, row, theirs), image_class=False)
    # Shares of the sides, in plain tensors.
    relative = [
        v2.Resize((50, 60)),
        v2.ToImage(),
        ConvertBoundingBoxFormat("cxcywh", relative=True),
    ]
    theirs = v2.Compose([relative[0], v2.ConvertBoundingBoxFormat("CXCYWH")])
    for row, (_, target) in enumerate(_loaded(packed, v2.Compose(relative), require_native=True)):
        wanted = _as_torchvision(packed, row, theirs)[1]["boxes"].as_subclass(torch.Tensor)
        assert type(target["boxes"]) is torch.Tensor
        assert torch.equal(target["boxes"], wanted / torch.tensor([60, 50] * 2))


def test_what_torchvision_does_in_python_takes_all_of_a_sample(v2: Any, packed: Path) -> None:
    def last(image: Any, target: Any) -> Any:
        return image, {**target, "count": len(target["boxes"])}

    transform = v2.Compose([v2.Resize((50, 60)), v2.ToImage(), last])
    dataset = ImageDataset(packed, transforms=transform, fields=_FIELDS)
    with pytest.warns(SlowPathWarning, match="last.__fastdata__.* collate_fn=lambda samples"):
        loader = DataLoader(dataset, 5, collate_fn=list)
    for row, sample in enumerate(sample for batch in loader for sample in batch):
        image, target = sample
        assert target.pop("count") == row % 4
        _assert_same(
            (image, target), _as_torchvision(packed, row, v2.Compose(transform.transforms[:2]))
        )
    dataset = ImageDataset(packed, transforms=v2.Compose(transform.transforms[:2]), fields=_FIELDS)
    (advised,) = DataLoader(
        dataset,
        ROWS,
        collate_fn=lambda samples: [last(*sample) for sample in samples],
        require_native=True,
    )
    assert [target["count"] for _, target in advised] == [row % 4 for row in range(ROWS)]


def test_policies_take_images_alone(v2: Any, packed: Path) -> None:
    transform = v2.Compose([v2.Resize((50, 60)), v2.RandAugment(), v2.ToImage()])
    dataset = ImageDataset(packed, transforms=transform, fields=_FIELDS)
    with pytest.raises(TypeError):
        dataset[3]
    with pytest.raises(UsageError, match="RandAugment"):
        DataLoader(dataset, 2, require_native=True)


def test_transforms_need_the_image_and_no_transform(v2: Any, packed: Path) -> None:
    with pytest.raises(UsageError, match="has no image"):
        ImageDataset(packed, transforms=v2.ToImage(), fields=("boxes", "labels"))
    dataset = ImageDataset(packed, transforms=v2.ToImage(), fields=_FIELDS)
    with pytest.raises(UsageError, match="has no image"):
        dataset.fields = ("boxes",)
    assert dataset.fields == _FIELDS
    with pytest.raises(UsageError, match="transforms="):
        ImageDataset(packed, transform=Resize((5, 5)), transforms=Resize((5, 5)))


@pytest.mark.parametrize(
    "make",
    [
        lambda v2: v2.Compose([v2.ColorJitter(0.3), v2.ToImage(), v2.Resize((20, 20))]),
        lambda v2: _V1.Compose([_V1.RandomRotation(20), _V1.ToTensor()]),
        lambda v2: v2.RandomApply([v2.RandomChoice([v2.ColorJitter(0.3), v2.RandomAffine(9)])]),
        lambda v2: v2.RandAugment(),
        lambda v2: v2.ElasticTransform(),
        lambda v2: Views(CenterCrop(20), count=2),
        lambda v2: Compose([RandomHorizontalFlip(), Resize((5, 5))]),
        lambda v2: v2.Compose([v2.Pad(3), lambda image: image]),
        lambda v2: Schedule(lambda epoch: CenterCrop(8)),
        lambda v2: {"image": v2.RandomPerspective()},
    ],
)
def test_a_transform_of_images_alone_may_not_move_them(v2: Any, packed: Path, make: Any) -> None:
    transform = make(v2)
    for field in ("boxes", "keypoints"):
        with pytest.raises(UsageError, match=rf"(?s){field}.*transforms=.*formats="):
            ImageDataset(packed, transform, fields=("image", "labels", field))
    dataset = ImageDataset(packed, transform, fields=("image", "labels"))
    with pytest.raises(UsageError, match="boxes"):
        dataset.fields = ("image", "boxes")
    assert dataset.fields == ("image", "labels")
    for several in (dataset, ConcatDataset([dataset]), Mixture({"a": dataset})):
        with pytest.raises(UsageError, match="transforms="):
            DataLoader(several, 2, fields=("image", "boxes"))
    # As plain values, and without the image, they may be loaded.
    fields = ("image", "boxes", "labels")
    plain = ImageDataset(packed, transform, fields=fields, formats={"boxes": ""})
    alone = ImageDataset(packed, transform, fields=("boxes",))
    assert len(plain[3]["boxes"]) == len(alone[3]["boxes"]) == 3


def test_a_transform_that_is_set_later_may_not_move_them(v2: Any, packed: Path) -> None:
    colours = v2.Compose([v2.ColorJitter(0.3), v2.JPEG((50, 60)), v2.RandomErasing(1.0)])
    for steps in (colours.transforms[:2], [v2.ToImage(), colours.transforms[2]]):
        dataset = ImageDataset(packed, v2.Compose(steps), fields=("image", "boxes"))
        assert len(dataset[3]["boxes"]) == 3
    dataset.transform = v2.RandomVerticalFlip()
    for use in (lambda: dataset[3], lambda: dataset.__getitems__([3]), lambda: DataLoader(dataset)):
        with pytest.raises(UsageError, match="RandomVerticalFlip"):
            use()
    with pytest.warns(UserWarning, match="(?s)boxes.*transforms="):
        ImageDataset(packed, lambda image: image.rotate(9), fields=("image", "boxes"))


def test_values_that_look_like_boxes_are_told_of_formats(v2: Any, tmp_path: Path) -> None:
    Image.new("RGB", (40, 30)).save(tmp_path / "0.png")
    box = [1.0, 2.0, 3.0, 4.0]
    row = {"path": "0.png", "bbox": [box], "single": {"box": box}, "numbers": [box]}
    row |= {"keypoints": [[1.0, 2.0, 1.0]], "box": box}
    pack(TableImages(pa.Table.from_pylist([row]), tmp_path), tmp_path / "packed", workers=1)

    def opened(name: str, transforms: Any = None, **options: Any) -> Any:
        options["transforms"] = transforms or v2.RandomHorizontalFlip(1.0)
        return ImageDataset(tmp_path / "packed", fields=("image", name), **options)

    for name, shown in (("bbox", "'bbox': 'xywh'"), ("keypoints", "'keypoints': 'xyv'")):
        with pytest.warns(UserWarning, match=rf"formats=\{{{shown}"):
            opened(name)
    for name in ("box", "single"):
        with pytest.warns(UserWarning, match="a list of boxes"):
            opened(name)
    with pytest.warns(UserWarning, match=r"(?s)^transform=.*formats=\{'bbox': 'xywh'.*transforms="):
        ImageDataset(tmp_path / "packed", v2.Resize((9, 9)), fields=("image", "bbox"))
    # None of these warns, and pytest's warnings are errors.
    ImageDataset(tmp_path / "packed", v2.Resize((9, 9)), fields=("image", "numbers"))
    ImageDataset(tmp_path / "packed", v2.ColorJitter(0.3), fields=("image", "bbox"))
    opened("numbers")
    opened("bbox", v2.ColorJitter(0.3))
    opened("bbox", v2.Compose([lambda image, target: (image, target), v2.Resize((9, 9))]))
    assert opened("bbox", formats={"bbox": ""})[0][1] == [box]
    assert opened("bbox", formats={"bbox": "xywh"})[0][1].tolist() == [[36.0, 2.0, 39.0, 6.0]]


@pytest.mark.filterwarnings("ignore::fastdata.errors.SlowPathWarning")
@pytest.mark.parametrize("labels", [("default", None), ("default", "default", None)])
def test_each_sanitizing_step_leaves_out_labels_of_its_own(
    v2: Any, packed: Path, labels: tuple[Any, ...]
) -> None:
    steps = [
        step
        for number, one in enumerate(labels)
        for step in (v2.CenterCrop(44), v2.SanitizeBoundingBoxes(1 + 4 * number, 1, one))
    ]
    transform = v2.Compose([*steps, v2.ToImage()])
    samples = _loaded(packed, transform, require_native=True)
    for row, sample in enumerate(samples):
        _assert_same(sample, _as_torchvision(packed, row, transform))
    assert any(len(target["labels"]) > len(target["boxes"]) for _, target in samples)
    # torchvision raises where the first step alone has left out a box.
    steps[1] = v2.SanitizeBoundingBoxes(labels_getter=None)
    steps[3] = v2.SanitizeBoundingBoxes()
    dataset = ImageDataset(packed, transforms=v2.Compose(steps), fields=_FIELDS)
    assert not DataLoader(dataset, 5, collate_fn=list).explain().startswith("native")


def test_a_getter_names_the_columns_that_follow_the_boxes(v2: Any, packed: Path) -> None:
    """By default, torchvision leaves out entries of the first key with "label" alone."""
    from torchvision import tv_tensors

    columns = ("labels", "category_ids", "iscrowd")
    fields = ("image", "boxes", *columns)
    for names in (columns, columns[:1]):
        getter = (
            "default"
            if names == columns[:1]
            else lambda s: (s[1]["labels"], s[1]["category_ids"], s[1]["iscrowd"])
        )
        sanitize = v2.SanitizeBoundingBoxes(labels_getter=getter)
        transform = v2.Compose([v2.CenterCrop(44), sanitize, v2.ToImage()])
        dataset = ImageDataset(packed, transforms=transform, fields=fields)
        loader = DataLoader(dataset, 5, collate_fn=list, require_native=True)
        found = [target for batch in loader for _, target in batch]
        plain = ImageDataset(packed, fields=fields)
        for target, stored in zip(found, plain, strict=True):
            size = stored["image"].height, stored["image"].width
            boxes = torch.tensor(stored["boxes"], dtype=torch.float32).reshape(-1, 4)
            given = {"boxes": tv_tensors.BoundingBoxes(boxes, format="XYWH", canvas_size=size)}
            given |= {name: torch.tensor(stored[name]) for name in columns}
            _, wanted = transform(stored["image"], given)
            assert all(torch.equal(target[name], wanted[name]) for name in columns)
            assert len(target["boxes"]) == len(wanted["boxes"])
        kept = [len(target["boxes"]) == len(target["iscrowd"]) for target in found]
        assert all(kept) == (len(names) > 1)


def test_boxes_without_labels_are_told_of_the_getter(packed: Path, v2: Any) -> None:
    def loader(**options: Any) -> Any:
        steps = [v2.Resize((32, 32)), v2.SanitizeBoundingBoxes(**options), v2.ToImage()]
        dataset = ImageDataset(packed, transforms=v2.Compose(steps), fields=("image", "boxes"))
        return DataLoader(dataset, 4)

    with pytest.warns(SlowPathWarning, match=r"Give labels_getter=None for boxes alone\.$"):
        loader()
    assert loader(labels_getter=None).explain().startswith("native")


def test_the_source_of_boxes_in_a_mixture(packed: Path, v2: Any) -> None:
    """The hints lead to the one way that works."""

    def mixture(**options: Any) -> Mixture:
        steps = v2.Compose([v2.Resize((32, 32)), v2.ToImage()])
        one = ImageDataset(packed, transforms=steps, fields=("image", "boxes"))
        return Mixture({"a": one, "b": one}, **options)

    fields = ("image", "boxes", "source")
    with pytest.raises(UsageError) as caught:
        DataLoader(mixture(fields=fields), 4)
    assert "fields= to the loader, and batch_transform=" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        DataLoader(mixture(), 4, fields=fields, collate_fn=list)
    assert "batch_transform=" in caught.value.hint
    loader = DataLoader(mixture(), 4, fields=fields, batch_transform=lambda batch: batch["source"])
    assert sorted(torch.cat(list(loader)).tolist()) == [0] * ROWS + [1] * ROWS


def test_two_fields_of_boxes_are_refused(v2: Any, tmp_path: Path) -> None:
    """The core moves one of them."""
    Image.new("RGB", (40, 30)).save(tmp_path / "0.png")
    row = {"path": "0.png", "boxes": [[1.0, 2.0, 30.0, 20.0]], "faces": [[5.0, 6.0, 9.0, 9.5]]}
    formats = dict.fromkeys(("boxes", "faces"), "xyxy")
    source = TableImages(pa.Table.from_pylist([row]), tmp_path, formats=formats)
    pack(source, tmp_path / "packed", workers=1)
    names = ("image", "boxes", "faces")
    with pytest.raises(UsageError, match=r"one field of boxes .* has boxes and faces"):
        ImageDataset(tmp_path / "packed", transforms=v2.ToImage(), fields=names)
    dataset = ImageDataset(tmp_path / "packed", transforms=v2.ToImage(), fields=names[:2])
    with pytest.raises(UsageError, match=r"has boxes and faces"):
        dataset.fields = names
    assert dataset.fields == names[:2]
