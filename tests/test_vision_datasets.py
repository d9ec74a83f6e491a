"""torchvision's datasets with boxes, wrapped for transforms v2, in a fastdata.DataLoader."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.utils.data import Subset
from torchvision_stub import import_torchvision
from vision_datasets import (
    ROWS,
    assert_same,
    make_cityscapes,
    make_coco,
    make_faces,
    make_kitti,
    make_pets,
    make_voc,
)

from fastdata import DataLoader
from fastdata.errors import DatasetError, SampleError, SlowPathWarning

# pycocotools has not moved to NumPy 2 completely.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


@pytest.fixture(scope="module")
def tv() -> Any:
    found = import_torchvision()
    for name in ("datasets", "tv_tensors"):
        importlib.import_module(f"torchvision.{name}")
    return found


@pytest.fixture(scope="module")
def make(tv: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Any]:
    roots: dict[str, Path] = {}

    def made(name: str, transforms: Any, keys: Any = None, **options: Any) -> Any:
        makers = {
            "Cityscapes": make_cityscapes,
            "CocoDetection": make_coco,
            "OxfordIIITPet": make_pets,
            "VOCDetection": make_voc,
            "VOCSegmentation": make_voc,
            "Kitti": make_kitti,
            "WIDERFace": make_faces,
        }
        if name == "CocoDetection":
            pytest.importorskip("pycocotools")
        if name not in roots:
            roots[name] = makers[name](tmp_path_factory.mktemp(name))
        return opened(tv, name, roots[name], transforms, keys, **options)

    return made


def opened(
    tv: Any, name: str, root: Path, transforms: Any, keys: Any = None, **options: Any
) -> Any:
    kind = getattr(tv.datasets, name)
    if name == "CocoDetection":
        dataset = kind(root / "images", root / "instances.json", transforms=transforms)
    elif name.startswith("VOC"):
        dataset = kind(root, "2007", transforms=transforms, **options)
    elif name == "WIDERFace":  # which has no transforms=
        dataset = kind(root, **options)
        dataset.transforms = transforms
    else:
        dataset = kind(root, transforms=transforms, **options)
    return tv.datasets.wrap_dataset_for_transforms_v2(dataset, keys)


def _steps(tv: Any, name: str) -> Any:
    from torchvision.transforms import v2

    tail = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
    pipelines = {
        "resize": [v2.Resize((50, 60)), *tail],
        "several": [
            *(v2.Resize((70, 90)), v2.CenterCrop((60, 50)), v2.RandomHorizontalFlip(1.0)),
            *(v2.Pad((3, 5, 7, 9)), v2.Resize((41, 37)), *tail),
        ],
        "warp": [v2.RandomAffine((30, 30)), v2.RandomRotation((70, 70)), *tail],
        "centres": [v2.Resize((33, 77)), *tail, v2.ConvertBoundingBoxFormat("CXCYWH")],
        "floats": [
            *(v2.Resize((33, 77)), *tail),
            v2.ToDtype({tv.tv_tensors.BoundingBoxes: torch.float32, "others": None}),
            v2.ToPureTensor(),
        ],
    }
    return v2.Compose(pipelines[name])


def _together(batch: Any) -> Any:
    return tuple(zip(*batch, strict=True))


def _loaded(dataset: Any, **options: Any) -> list[Any]:
    options = {"collate_fn": _together, "require_native": True, **options}
    batches = DataLoader(dataset, options.pop("batch_size", 4), **options)
    return [sample for batch in batches for sample in zip(*batch, strict=True)]


_CASES = [
    ("CocoDetection", ("boxes", "area", "segmentation", "iscrowd", "bbox")),
    ("CocoDetection", ("boxes", "labels", "masks")),
    ("VOCDetection", "all"),
    ("Kitti", None),
    ("Kitti", "all"),
    ("WIDERFace", None),
    ("WIDERFace", ("bbox", "pose")),
]


@pytest.mark.parametrize(("name", "keys"), [("CocoDetection", None), ("VOCDetection", None)])
@pytest.mark.parametrize("steps", ["warp", "centres", "floats"])
def test_a_sample_is_torchvisions(
    tv: Any, make: Callable[..., Any], name: str, keys: Any, steps: str
) -> None:
    dataset = make(name, _steps(tv, steps), keys)
    assert_same(_loaded(dataset), [dataset[row] for row in range(ROWS)])


@pytest.mark.parametrize(("name", "keys"), _CASES)
def test_keys_of_a_sample_are_torchvisions(
    tv: Any, make: Callable[..., Any], name: str, keys: Any
) -> None:
    test_a_sample_is_torchvisions(tv, make, name, keys, "several")


def test_masks_of_run_lengths_are_torchvisions(tv: Any, make: Callable[..., Any]) -> None:
    from pycocotools import mask
    from torchvision.transforms import v2

    steps = v2.Compose([v2.Resize((40, 50)), v2.SanitizeBoundingBoxes(), v2.ToImage()])
    dataset = make("CocoDetection", steps, ("boxes", "labels", "masks", "segmentation"))
    rows = [row for row in range(ROWS) if dataset._dataset._load_target(dataset.ids[row])]
    for row in rows:
        image, objects = dataset._dataset[row]
        for number, one in enumerate(objects):
            parts = mask.frPyObjects(one["segmentation"], *image.size[::-1])
            if number % 3 == 1:  # as COCO's files have it
                counts = [7, 3 * image.size[1], image.size[0] * image.size[1]]
                counts[2] -= sum(counts[:2])
                one["segmentation"] = {"size": [*image.size[::-1]], "counts": counts}
            elif number % 3 == 2:
                text = mask.merge(parts)
                one["segmentation"] = {**text, "counts": text["counts"].decode()}
    assert_same(_loaded(Subset(dataset, rows), num_workers=2), [dataset[row] for row in rows])


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("bbox", [], "boxes have 0 numbers"),
        ("segmentation", [1, 1, 9, 9, 5, 30], "annotations cannot be used"),
        ("segmentation", [[1.0, 2.0, 5.0, 6.0]], ""),
        ("segmentation", {"size": [3, 3], "counts": [9]}, ""),
    ],
)
def test_annotations_of_another_form_cost_their_sample(
    tv: Any, make: Callable[..., Any], key: str, value: Any, words: str
) -> None:
    from torchvision.transforms import v2

    steps = v2.Compose([_steps(tv, "resize"), v2.SanitizeBoundingBoxes(labels_getter=None)])
    dataset = make("CocoDetection", steps, ("boxes", "labels", "masks"))
    rows = [row for row in range(ROWS) if dataset._dataset._load_target(dataset.ids[row])]
    bad, *others = rows
    for one in dataset._dataset._load_target(dataset.ids[bad]):
        one[key] = value
    loader = DataLoader(Subset(dataset, rows), 1, collate_fn=_together, require_native=True)
    batches = iter(loader)
    with pytest.raises(SampleError, match=f"sample {bad}: .*{words}"):
        next(batches)
    for row, batch in zip(others, batches, strict=True):
        (sample,) = zip(*batch, strict=True)
        assert_same(sample, dataset[row])


@pytest.mark.parametrize(
    ("name", "options"), [("Kitti", {"train": False}), ("WIDERFace", {"split": "test"})]
)
def test_test_sets_have_no_target(
    tv: Any, make: Callable[..., Any], name: str, options: Any
) -> None:
    dataset = make(name, _steps(tv, "resize"), **options)
    samples = _loaded(dataset)
    assert all(target is None for _, target in samples)
    assert_same(samples, [dataset[row] for row in range(ROWS)])


_MASKS: Any = [
    ("VOCSegmentation", {}),
    ("Cityscapes", {"target_type": "semantic"}),
    ("OxfordIIITPet", {"target_types": "segmentation"}),
    ("OxfordIIITPet", {"target_types": ["category", "segmentation", "binary-category"]}),
    ("OxfordIIITPet", {"target_types": "category"}),
    ("OxfordIIITPet", {"target_types": []}),
]


@pytest.mark.parametrize(("name", "options"), _MASKS)
def test_masks_are_torchvisions(tv: Any, make: Callable[..., Any], name: str, options: Any) -> None:
    from torchvision.transforms import v2

    crop = v2.Compose([v2.CenterCrop((36, 40)), v2.RandomHorizontalFlip(1.0), v2.ToImage()])
    for steps in (crop, _steps(tv, "resize")):
        dataset = make(name, steps, **options)
        assert_same(_loaded(dataset, num_workers=2), [dataset[row] for row in range(ROWS)])


def last(image: Any, target: Any) -> Any:
    return image, {**target, "count": len(target["boxes"])}


def test_worker_processes_get_a_copy(tv: Any, make: Callable[..., Any]) -> None:
    from torchvision.transforms import v2

    dataset = make("Kitti", v2.Compose([*_steps(tv, "resize").transforms, last]), "all")
    expected = [dataset[row] for row in range(ROWS)]
    with pytest.warns(SlowPathWarning, match="the core does not do last"):
        loader = DataLoader(dataset, 4, num_workers=2, collate_fn=_together)
    found = [sample for batch in loader for sample in zip(*batch, strict=True)]
    assert_same(found, expected)


def test_changed_transforms_and_files_are_seen(tv: Any, make: Callable[..., Any]) -> None:
    dataset = make("CocoDetection", _steps(tv, "resize"))
    loader = DataLoader(dataset, ROWS, collate_fn=_together, require_native=True)
    assert next(iter(loader))[0][0].shape == (3, 50, 60)
    dataset.transforms = _steps(tv, "centres")
    assert next(iter(loader))[0][0].shape == (3, 33, 77)
    dataset._dataset.ids = dataset._dataset.ids[::-1]
    expected = [dataset[row] for row in range(ROWS)]
    (batch,) = loader
    assert_same(list(zip(*batch, strict=True)), expected)


@pytest.mark.parametrize(
    ("file", "match"),
    [
        ("JPEGImages/000004.jpg", "000004.jpg: sample 4: No such file"),
        ("Annotations/000004.xml", "annotations are missing: .*000004.xml"),
    ],
)
def test_a_missing_file_costs_its_sample(tv: Any, tmp_path: Path, file: str, match: str) -> None:
    make_voc(tmp_path)
    dataset = opened(tv, "VOCDetection", tmp_path, _steps(tv, "resize"))
    (tmp_path / "VOCdevkit" / "VOC2007" / file).unlink()
    with pytest.raises(DatasetError, match=match):
        _loaded(dataset)
    with pytest.warns(UserWarning, match="1 sample could not be decoded"):
        found = _loaded(dataset, on_error="drop", batch_size=ROWS)
    good = [row for row in range(ROWS) if row != 4]
    for row, sample in zip(good, found, strict=True):
        assert_same(sample, dataset[row])


def test_images_that_torchvision_leaves_grey_are_an_error(tv: Any, tmp_path: Path) -> None:
    make_kitti(tmp_path)
    dataset = opened(tv, "Kitti", tmp_path, _steps(tv, "resize"))
    with Image.open(dataset.images[2]) as image:
        image.convert("L").save(dataset.images[2])
    with pytest.raises(SampleError, match="mode L, which torchvision does not convert"):
        _loaded(dataset)


def _reason(dataset: Any) -> str:
    return str(DataLoader(dataset, 4, collate_fn=_together).explain())


@pytest.mark.filterwarnings("ignore::fastdata.errors.SlowPathWarning")
def test_what_is_no_longer_torchvisions_is_left_to_torch(
    tv: Any, make: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torchvision.transforms import v2

    steps = _steps(tv, "resize")
    dataset = make("VOCDetection", steps)
    assert "native" in _reason(dataset)

    class Own(tv.datasets.VOCDetection):  # type: ignore[misc,name-defined]
        def __getitem__(self, index: int) -> Any:
            return super().__getitem__(index)

    root = Path(dataset.root)
    own = tv.datasets.wrap_dataset_for_transforms_v2(Own(root, "2007", transforms=steps))
    assert "Own has its own __getitem__" in _reason(own)
    dataset._wrapper = lambda row, sample: sample
    assert "another wrapper" in _reason(dataset)
    inner = make("VOCDetection", steps)
    inner._dataset.transforms = v2.RandomHorizontalFlip(1.0)
    assert "set after it was wrapped" in _reason(inner)
    alone = tv.datasets.VOCDetection(root, "2007", transform=v2.Resize((9, 9)))
    alone = tv.datasets.wrap_dataset_for_transforms_v2(alone)
    assert "transforms=" in _reason(alone)
    monkeypatch.setattr(tv.datasets.VOCDetection, "parse_voc_xml", staticmethod(lambda node: {}))
    assert "parse_voc_xml" in _reason(make("VOCDetection", steps))


def test_an_unwrapped_dataset_is_told_how_to_be_wrapped(tv: Any, make: Callable[..., Any]) -> None:
    dataset = make("VOCDetection", _steps(tv, "resize"))._dataset
    with pytest.warns(SlowPathWarning, match="wrap_dataset_for_transforms_v2"):
        DataLoader(dataset, 4, collate_fn=_together)
    alone = tv.datasets.VOCDetection(dataset.root, "2007", transform=tv.transforms.Resize((9, 9)))
    with pytest.warns(SlowPathWarning, match="(?s)boxes do not follow.*wrap_dataset_for"):
        DataLoader(alone, 4, collate_fn=_together)
