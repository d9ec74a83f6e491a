"""Fields of samples from a dataset to a batch: every kind, on every path, as torch gives them."""

from __future__ import annotations

import functools
import io
import pickle
import random
import shutil
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import loader_data
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import simgpu
import torch
from fastdata.converters import pack
from fastdata.converters.options import PackOptions
from fastdata.converters.parquet import ParquetImages
from hangs import HANG
from loader_data import as_it_is, folder, tree
from PIL import Image
from torch.utils.data import ConcatDataset, Subset, default_collate
from torchvision_stub import import_torchvision
from web_server import WebServer

from fastdata import DataLoader, DeviceLoader, ImageDataset, Ragged
from fastdata.errors import CorruptionError, DatasetError, FastdataError, SampleError, UsageError
from fastdata.storage.records import RECORD, RECORDS_AT
from fastdata.transforms import CenterCrop, Compose, RandomResizedCrop, Schedule, Views

ROWS = 40
#: Every kind of field; "raw", "tags" and "maybe" have nulls.
ALL = ["image", "mask", "caption", "score", "small", "flag", "emb", "quads", "ids"]
ALL += ["tags", "meta", "raw", "maybe", "key", "index"]
EQUAL = {"image": CenterCrop(16), "mask": CenterCrop(12)}
_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def _image(number: int, kind: str) -> bytes:
    """A smooth picture of 40 x 30 pixels, so that lossy decoders agree on it."""
    x, y = np.meshgrid(np.arange(40), np.arange(30))
    pixels = np.stack([x * 4 + number, y * 5 + number, (x + y) * 3 + number], -1)
    file = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(file, kind)
    return file.getvalue()


@cache
def table(lacking: bool = False) -> pa.Table:
    """Rows with every kind of field; with ``lacking``, each fourth has no mask."""
    n, rng = ROWS, np.random.default_rng(0)
    images = [{"bytes": _image(i, "JPEG"), "path": None} for i in range(n)]
    masks = [{"bytes": _image(i + 50, "PNG"), "path": None} for i in range(n)]
    embeddings = pa.array(rng.normal(size=n * 8).astype(np.float32))
    boxes = [[[float(i + j)] * 4 for j in range(i % 3)] for i in range(n)]
    return pa.table(
        {
            "image": pa.array(images, _IMAGE),
            "mask": pa.array(
                [None if lacking and not i % 4 else m for i, m in enumerate(masks)], _IMAGE
            ),
            "caption": pa.array([f"é number {i}" for i in range(n)]),
            "score": pa.array(rng.normal(size=n)),
            "small": pa.array(np.arange(n, dtype=np.int16)),
            "flag": pa.array([bool(i % 2) for i in range(n)]),
            "emb": pa.FixedSizeListArray.from_arrays(embeddings, 8),
            "quads": pa.array(boxes, pa.list_(pa.list_(pa.float32(), 4))),
            "ids": pa.array([list(range(i % 4)) for i in range(n)], pa.list_(pa.int64())),
            "tags": pa.array([["a"] * (i % 4) if i % 5 else None for i in range(n)]),
            "meta": pa.array([{"w": i, "t": "x"} for i in range(n)]),
            "raw": pa.array([bytes([i]) * i if i % 3 else None for i in range(n)], pa.binary()),
            "maybe": pa.array([i if i % 2 else None for i in range(n)], pa.int16()),
        }
    )


@cache
def packed(container: str = "shards", lacking: bool = False, first: int = 0) -> Path:
    """A packed dataset in the table's order, from a row on; do not change it."""
    root = folder()
    pq.write_table(table(lacking).slice(first), root / "rows.parquet")
    out = root / container
    pack(
        ParquetImages(root), out, container=container, workers=1, options=PackOptions(shuffle=False)
    )
    return out


def opened(
    fields: Any = ALL, transform: Any = "equal", container: str = "shards", **options: Any
) -> ImageDataset:
    if transform == "equal":
        transform = EQUAL if "mask" in fields else EQUAL["image"]
    return ImageDataset(packed(container, **options), transform, fields=fields)


def copied(tmp_path: Path, **options: Any) -> Path:
    return Path(shutil.copytree(packed(**options), tmp_path / "copy"))


def equal(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, Ragged):
        return equal(one.values, other.values) and equal(one.offsets, other.offsets)
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    return bool(one == other)


def as_samples(batch: dict[str, Any]) -> list[dict[str, Any]]:
    columns: list[Any] = []
    for name, values in batch.items():
        if isinstance(values, Ragged):
            columns.append([one.numpy() for one in values.list()])
        elif name in ("image", "mask") or isinstance(values, list):
            columns.append(list(values))
        elif name == "index":
            columns.append(values.tolist())
        else:
            columns.append(list(values.numpy()))
    return [dict(zip(batch, row, strict=True)) for row in zip(*columns, strict=True)]


def torch_loader(dataset: Any, **options: Any) -> Any:
    return torch.utils.data.DataLoader(dataset, **options)


# Values, by pyarrow and Pillow.


def test_values_that_a_user_changes_are_the_users_own() -> None:
    dataset = opened(("score", "emb", "flag", "ids", "meta"))
    expected = [dataset[number] for number in range(ROWS)]
    for name in ("score", "emb", "flag"):
        column: Any = dataset.column(name)
        column[:] = 0
    for sample in dataset.__getitems__([0, 1]):
        for value in (sample["emb"], sample["ids"]):
            value[:] = 0
        sample["meta"]["w"] = 7
    for batch in DataLoader(opened(("image", "score", "emb", "ids")), 8):
        for tensor in (batch["score"], batch["emb"], batch["ids"].values):
            tensor.zero_()
    assert equal([dataset[number] for number in range(ROWS)], expected)


# The same samples everywhere.


@pytest.mark.parametrize(("container", "threads"), [("shards", 2), ("parquet", 1), ("lmdb", 0)])
def test_native_batches_hold_the_datasets_samples(container: str, threads: int) -> None:
    dataset = opened(container=container)
    expected = [dataset[number] for number in range(ROWS)]
    assert equal(dataset.__getitems__(list(range(ROWS))), expected)
    loader = DataLoader(dataset, 16, num_workers=threads, require_native=True)
    for _ in range(2):
        batches = list(loader)
        assert [len(batch["caption"]) for batch in batches] == [16, 16, 8]
        assert equal([one for batch in batches for one in as_samples(batch)], expected)
    assert all(isinstance(batches[0][name], Ragged) for name in ("quads", "ids"))
    shuffled = DataLoader(dataset, 16, shuffle=True, seed=1, num_workers=threads)
    found = [sample for batch in shuffled for sample in as_samples(batch)]
    rows = [one["index"] for one in found]
    assert rows != sorted(rows) and equal(found, [expected[row] for row in rows])
    assert loader.stats().kinds == {"jpeg": {"native": ROWS}, "png": {"native": ROWS}}
    assert "mask (CenterCrop((12, 12)), uint8), caption, score" in loader.explain()


@pytest.mark.filterwarnings("ignore::fastdata.errors.SlowPathWarning")
def test_the_workers_path_and_torchs_give_the_same_samples() -> None:
    crop = Compose([CenterCrop(16), as_it_is])
    plain = opened()
    expected = [plain[number] for number in range(ROWS)]
    for options in ({}, {"num_workers": 1, "persistent_workers": True}):
        loader = torch_loader(plain, batch_size=16, collate_fn=list, **options)
        for _ in range(2):
            assert equal([one for batch in loader for one in batch], expected)
    for transform in (
        {"image": crop, "mask": CenterCrop(12)},
        {**EQUAL, "mask": Compose([CenterCrop(12), as_it_is])},
    ):
        for workers in (0, 1):
            loader = DataLoader(
                opened(transform=transform), 16, num_workers=workers, collate_fn=list
            )
            assert loader.explain().startswith("workers"), loader.explain()
            assert equal([one for batch in loader for one in batch], expected)


def test_a_transform_may_be_views_or_a_schedule() -> None:
    several = {"image": Views(CenterCrop(16), CenterCrop(8)), "mask": Views(CenterCrop(4), count=2)}
    dataset = opened(("image", "mask", "caption"), several)
    for options in ({}, {"collate_fn": default_collate}):
        batch = next(iter(DataLoader(dataset, 4, **options)))
        (first, second), (third, _), captions = batch.values()
        assert [one.shape[-1] for one in (first, second, third)] == [16, 8, 4]
        assert len(captions) == 4
    stages = Schedule(lambda epoch: CenterCrop(8 if epoch else 16))
    for name in ("image", "mask"):
        dataset = opened(("image", "mask"), {**EQUAL, name: stages})
        for require in (True, False):
            loader = DataLoader(dataset, ROWS, require_native=require)
            sides = [next(iter(loader)) for _ in range(2)]
            assert [one[name].shape[-1] for one in sides] == [16, 8]
        assert dataset.__getitems__([0])[0][name].shape[-1] == 8


# Which samples.


def test_subsets_and_concatenations() -> None:
    dataset, other = opened(), opened(container="lmdb", first=30)
    subset = Subset(dataset, [7, 3, 7])
    both = ConcatDataset([subset, other, Subset(dataset, [1])])
    for of in (subset, both):
        expected = [of[number] for number in range(len(of))]
        loader = DataLoader(of, 5, num_workers=1, require_native=True)
        found = [sample for batch in loader for sample in as_samples(batch)]
        assert equal(found, expected)
        assert equal(
            [one for batch in DataLoader(of, 5, collate_fn=list) for one in batch], expected
        )
    numbers = [
        n for batch in DataLoader(both, 5, fields=("index",)) for n in batch["index"].tolist()
    ]
    assert numbers == list(range(len(both)))
    parts = [opened(("image", "maybe", "mask"), lacking=lacking) for lacking in (False, True)]
    whole = ConcatDataset([Subset(parts[0], [1, 3]), Subset(parts[1], [1, 3, 2])])
    (batch,) = DataLoader(whole, 5, require_native=True)
    assert batch["maybe"] == [1, 3, 1, 3, None]
    with pytest.raises(UsageError, match="parts 0 and 1 of the ConcatDataset"):
        DataLoader(ConcatDataset([dataset, parts[0]]), 4, require_native=True)


# Datasets without labels.


def test_a_dataset_without_labels() -> None:
    dataset = ImageDataset(packed(), CenterCrop(16))
    assert (dataset.fields, dataset.classes, dataset.class_to_idx) == (("image",), [], {})
    for order in ("random", "quasi-random"):
        for (images,) in DataLoader(dataset, 16, order=order, seed=0, require_native=True):
            assert images.shape[1:] == (3, 16, 16)
    for of in (lambda: dataset.labels, lambda: dataset.targets):
        with pytest.raises(UsageError, match="have no labels"):
            of()
    with pytest.raises(UsageError, match="target_transform is for labels"):
        ImageDataset(packed(), target_transform=int)
    with pytest.raises(UsageError, match="label"):
        DataLoader(dataset, 4, fields=("image", "label"))


@pytest.mark.parametrize(
    "wrong", ["image", (), ("image", "image"), 3, [["image"]], ("nope",), iter(["image"])]
)
def test_fields_that_cannot_be(wrong: Any) -> None:
    with pytest.raises(UsageError, match="fields="):
        ImageDataset(packed(), fields=wrong)
    with pytest.raises(UsageError, match="fields="):
        DataLoader(opened(("image",), CenterCrop(16)), 4, fields=wrong)


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        ({"caption": str.upper}, r"'caption', which is no field of images\n.*batch_transform="),
        ({"mask": CenterCrop(12)}, "'mask', which is not in fields="),
        ({"nope": CenterCrop(12)}, "'nope', which is not in fields="),
    ],
)
def test_transforms_of_no_field_of_images(transform: Any, words: str) -> None:
    for fields in (("image", "caption"), ("image",)):
        with pytest.raises(UsageError, match=words):
            ImageDataset(packed(), transform, fields=fields)


def test_fields_may_be_set_between_epochs() -> None:
    dataset = opened(("image", "caption"))
    loaders = [DataLoader(dataset, 8, num_workers=1), torch_loader(dataset, batch_size=8)]
    for names in (("image", "caption"), ("small", "image"), ("caption", "image", "index")):
        dataset.fields = names
        assert dataset.fields == pickle.loads(pickle.dumps(dataset)).fields == names
        expected = [dataset[number] for number in range(8)]
        assert [len(sample) for sample in expected] == [len(names)] * 8
        assert equal(dataset.__getitems__(list(range(8))), expected)
        native, by_torch = (next(iter(loader)) for loader in loaders)
        assert equal(by_torch, default_collate(expected))
        assert equal(native, by_torch)
    for wrong in ("image", ("nope",), ()):
        with pytest.raises(UsageError, match="fields="):
            dataset.fields = wrong  # type: ignore[assignment]
    assert dataset.fields == names


def test_columns_named_as_what_a_loader_adds(tmp_path: Path) -> None:
    """A column "index" is itself rather than a sample's number; "valid" has no second place."""
    columns = {"index": pa.array([100 - i for i in range(ROWS)]), "valid": table()["caption"]}
    pq.write_table(pa.table({"image": table()["image"], **columns}), tmp_path / "a.parquet")
    pack(
        ParquetImages(tmp_path / "a.parquet"),
        tmp_path / "out",
        container="lmdb",
        options=PackOptions(shuffle=False),
    )
    dataset = ImageDataset(tmp_path / "out", CenterCrop(16), fields=("image", "index", "valid"))
    for sample in (dataset[3], *dataset.__getitems__([3])):
        assert (sample["index"], sample["valid"]) == (97, "é number 3")
    for fields in (None, ("index", "valid")):
        found = next(iter(DataLoader(dataset, 4, fields=fields)))
        assert found["index"].tolist() == [100, 99, 98, 97] and found["valid"][3] == "é number 3"
        with pytest.raises(UsageError, match="has a field of that name"):
            DataLoader(dataset, 4, fields=fields, on_error="zero")
    assert len(next(iter(DataLoader(dataset, 4, fields=("image",), on_error="zero")))) == 2


@pytest.mark.filterwarnings("ignore::fastdata.errors.SlowPathWarning")
def test_a_further_image_needs_a_transform_to_be_in_a_batch() -> None:
    dataset = opened(("image", "mask"), CenterCrop(16))
    with pytest.raises(UsageError, match=r"transform of mask.*\n.*'mask'"):
        DataLoader(dataset, 4)
    (batch,) = DataLoader(dataset, ROWS, fields=("image", "index"))
    assert [*batch] == ["image", "index"] and batch["image"].shape == (ROWS, 3, 16, 16)
    for batch in DataLoader(dataset, 20, collate_fn=list):  # by torch's way
        assert all(isinstance(one["mask"], Image.Image) for one in batch)


def test_colours_of_a_second_image() -> None:
    dataset = ImageDataset(packed(), fields=("image", "mask"), color="gray", exif_transpose=True)
    assert [one.mode for one in dataset[3].values()] == ["L", "L"]
    with pytest.raises(UsageError, match="makes RGB of all images"):
        ImageDataset(packed(), {"mask": CenterCrop(12)}, fields=("image", "mask"), color="gray")


# Missing and damaged.


def test_samples_that_lack_a_second_image() -> None:
    dataset = opened(("image", "mask", "small"), lacking=True)
    expected = [dataset[number] for number in range(ROWS)]
    assert [row["mask"] is None for row in expected] == [not i % 4 for i in range(ROWS)]
    assert equal(dataset.__getitems__(list(range(ROWS))), expected)
    found = [
        one for b in DataLoader(dataset, 16, collate_fn=list, require_native=True) for one in b
    ]
    assert equal(found, expected)
    # Packing again with --skip-bad would keep such a sample: it is a good one.
    with pytest.raises(SampleError, match=r"it has no mask\n.*collate_fn"):
        next(iter(DataLoader(dataset, 16)))
    with pytest.warns(UserWarning, match="replaced by others"):
        batches = list(DataLoader(dataset, 16, on_error="skip", order="random", seed=0))
    rows = [row for batch in batches for row in batch["small"].tolist()]
    masks = [mask for batch in batches for mask in batch["mask"]]
    assert all(equal(mask, dataset[row]["mask"]) for row, mask in zip(rows, masks, strict=True))
    assert len(rows) == ROWS and all(row % 4 for row in rows)
    with pytest.warns(UserWarning, match="zeroed"):
        (batch,) = DataLoader(dataset, ROWS, on_error="zero")
    assert batch["valid"].tolist() == [bool(i % 4) for i in range(ROWS)]
    assert not batch["mask"][::4].any() and batch["mask"][1::4].any()


def _damage(root: Path, field: str, row: int) -> None:
    source = ImageDataset(root, fields=(field,)).source
    index: Any = source.index_of(field)  # type: ignore[attr-defined]
    stored = next(one for one in source.manifest.fields if one.field.name == field)  # type: ignore[attr-defined]
    record = index[row // stored.rows if stored.rows else row]
    path = root / source.manifest.files[record.file].name  # type: ignore[attr-defined]
    data = bytearray(path.read_bytes())
    data[record.offset + record.length // 2] ^= 0x55
    path.write_bytes(data)


@pytest.mark.parametrize("field", ["mask", "raw"])
def test_a_damaged_blob_is_an_error_of_its_sample(tmp_path: Path, field: str) -> None:
    root = copied(tmp_path)
    _damage(root, field, 7)
    dataset = ImageDataset(
        root, EQUAL if field == "mask" else EQUAL["image"], fields=("image", "small", field)
    )
    for get in (lambda: dataset[7], lambda: dataset.__getitems__([6, 7])):
        with pytest.raises(FastdataError, match="sample 7"):
            get()
    for collate in (None, list):
        with pytest.raises(FastdataError, match="sample 7"):
            list(DataLoader(dataset, 8, num_workers=1, collate_fn=collate))
    with pytest.warns(UserWarning, match="sample 7"):
        rows = [n for b in DataLoader(dataset, 8, on_error="drop") for n in b["small"].tolist()]
    assert rows == [row for row in range(ROWS) if row != 7]
    with pytest.warns(UserWarning, match="sample 7"):
        (batch,) = DataLoader(dataset, ROWS, on_error="zero")
    assert [i for i, valid in enumerate(batch["valid"].tolist()) if not valid] == [7]
    assert batch[field][7] is None if field == "raw" else not batch[field][7].any()


@pytest.mark.parametrize("field", ["caption", "quads"])
def test_a_damaged_column_is_an_error_of_the_samples_in_its_piece(
    tmp_path: Path, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastdata.storage.columns._PIECE_ROWS", 8)
    root = tmp_path / "small"
    pq.write_table(table(), tmp_path / "rows.parquet")
    pack(
        ParquetImages(tmp_path),
        root,
        container="shards",
        workers=1,
        options=PackOptions(shuffle=False),
    )
    _damage(root, field, 17)
    dataset = ImageDataset(root, EQUAL["image"], fields=("image", "small", field))
    with pytest.raises(DatasetError, match=field):
        dataset[17]
    assert dataset[15]["small"] == 15
    with pytest.raises(DatasetError, match=field):
        list(DataLoader(dataset, 8, num_workers=1))
    with pytest.warns(UserWarning, match=field):
        batches = list(DataLoader(dataset, 12, on_error="drop"))
    rows = [n for batch in batches for n in batch["small"].tolist()]
    assert rows == [row for row in range(ROWS) if not 16 <= row < 24]
    for batch in batches:
        values = batch[field].list() if isinstance(batch[field], Ragged) else batch[field]
        for row, value in zip(batch["small"].tolist(), values, strict=True):
            expected = dataset[row][field]
            assert equal(np.asarray(value), np.asarray(expected)) or value == expected
    with pytest.warns(UserWarning, match=field):
        batches = list(DataLoader(dataset, 20, on_error="zero"))
    assert [v for b in batches for v in b["valid"].tolist()] == [
        not 16 <= i < 24 for i in range(ROWS)
    ]


# Samples whose image is not asked for.


def without_blobs(tmp_path: Path) -> Path:
    root = copied(tmp_path)
    dataset = ImageDataset(root)
    for name in {Path(dataset.source.file(dataset.row(i), i)) for i in range(ROWS)}:  # type: ignore[attr-defined]
        name.unlink()
    return root


NO_BLOBS = ("caption", "small", "quads", "index")


def by_pyarrow(rows: Any) -> list[tuple[Any, ...]]:
    chosen = table().take(pa.array(rows)).to_pylist()
    return [(row["caption"], row["small"], row["quads"]) for row in chosen]


@pytest.mark.parametrize("transform", [None, CenterCrop(16), as_it_is])
def test_images_that_are_not_asked_for_are_not_read(tmp_path: Path, transform: Any) -> None:
    root = without_blobs(tmp_path)
    asked = ImageDataset(root, transform, fields=NO_BLOBS)
    for samples in (asked.__getitems__(range(ROWS)), [asked[i] for i in range(ROWS)]):
        found = [(one["caption"], one["small"], one["quads"].tolist()) for one in samples]
        assert found == by_pyarrow(range(ROWS))
    options: dict[str, Any] = {"shuffle": True, "num_workers": 1, "require_native": True}
    every = ImageDataset(root, transform, fields=("image", "mask", *NO_BLOBS))
    for loader in (
        DataLoader(asked, 16, **options),
        DataLoader(asked, 16, collate_fn=list, **options),
        DataLoader(asked, 16, on_error="skip", device="cpu", **options),
        DataLoader(every, 16, fields=NO_BLOBS, **options),
    ):
        assert "images:" not in loader.explain() and "no image is asked for" in loader.explain()
        for _ in range(2):
            found, rows = [], []
            for batch in loader:
                if isinstance(batch, list):
                    batch = {name: [one[name] for one in batch] for name in NO_BLOBS}
                texts, small, boxes, numbers = batch.values()
                lists = boxes.list() if isinstance(boxes, Ragged) else boxes
                rows += [int(number) for number in numbers]
                found += zip(texts, map(int, small), [one.tolist() for one in lists], strict=True)
            assert sorted(rows) == [*range(ROWS)] and found == by_pyarrow(rows)
        assert loader.stats().samples == ROWS


def test_images_that_are_not_asked_for_are_not_fetched(tmp_path: Path) -> None:
    with WebServer(without_blobs(tmp_path)) as server:
        far = ImageDataset(server.url, fields=NO_BLOBS)
        assert far[3]["caption"] == far.__getitems__([3])[0]["caption"] == "é number 3"
        for fields in (("caption",), ("caption", "key"), ("index",)):
            batches = [*DataLoader(far, 16, num_workers=1, fields=fields)]
            assert [len(batch[fields[0]]) for batch in batches] == [16, 16, 8]
        masks = ImageDataset(server.url, fields=("caption", "raw"))
        with pytest.raises(FastdataError, match="sample 1 "):
            list(DataLoader(masks, 16, num_workers=1))


@pytest.mark.parametrize("kind", ["lmdb", "torchvision"])
def test_labels_without_their_images(tmp_path: Path, kind: str) -> None:
    torchvision: Any = import_torchvision()
    tree_of = torchvision.datasets.ImageFolder(str(tree()))
    path = tree_of if kind == "torchvision" else loader_data.dataset()
    if kind == "lmdb":
        path = Path(shutil.copytree(path, tmp_path / "copy"))
    expected = dict(enumerate(ImageDataset(path).labels.tolist()))
    for options in ({}, {"target_transform": lambda label: label + 5}):
        dataset = ImageDataset(path, CenterCrop(16), fields=("label", "index"), **options)
        wanted = {i: label + (5 if options else 0) for i, label in expected.items()}
        loader = DataLoader(dataset, 16, shuffle=True, num_workers=1)
        pairs = [p for b in loader for p in zip(b["index"], b["label"], strict=True)]
        assert {int(row): int(label) for row, label in pairs} == wanted
        assert all(batch["label"].dtype == torch.int64 for batch in loader)
        samples = [{"label": wanted[row], "index": row} for row in (2, 1)]
        assert dataset.__getitems__([2, 1]) == samples and dataset[2] == samples[0]
    if kind == "torchvision":
        return
    index = path / ImageDataset(path).manifest.index.name
    data = bytearray(index.read_bytes())
    data[RECORDS_AT + 3 * RECORD.itemsize + 8] ^= 1
    index.write_bytes(data)
    dataset = ImageDataset(path, fields=("label", "index"))
    for get in (lambda: dataset[3], lambda: dataset.__getitems__([3]), lambda: dataset.labels):
        with pytest.raises(CorruptionError, match="row 3"):
            get()
    with pytest.warns(UserWarning, match="row 3"):
        rows = [r for b in DataLoader(dataset, 8, on_error="drop") for r in b["index"].tolist()]
    assert rows == [row for row in range(len(dataset)) if row != 3]


# A user's collate_fn.


def _padded(batch: list[Any]) -> dict[str, Any]:
    images, captions, boxes = zip(*(one.values() for one in batch), strict=True)
    tensors = [torch.from_numpy(one) for one in boxes]
    return {
        "x": torch.stack(images),
        "y": torch.nn.utils.rnn.pad_sequence(tensors, True),
        "t": captions,
    }


def _drawing(batch: list[Any]) -> Any:
    return (
        torch.rand(3),
        random.random(),
        np.random.rand(),
        torch.stack([one["image"] for one in batch]),
    )


def _changing(batch: list[Any]) -> Any:
    for one in batch:
        one["image"][:] = 255 - one["image"]
        one["quads"] += 1
    return [one["image"].clone() for one in batch], [one["quads"] for one in batch]


COLLATES: list[Any] = [
    default_collate,
    lambda batch: tuple(zip(*(one.values() for one in batch), strict=True)),
    _padded,
    functools.partial(_padded),
    _changing,
    list,
]


@pytest.mark.parametrize(
    ("collate", "threads"),
    list(zip(COLLATES, [2, 0] * 3, strict=True)),
    ids=range(len(COLLATES)),
)
def test_a_collate_fn_gets_what_torch_would_give_it(collate: Any, threads: int) -> None:
    fields = ("image", "caption", "meta" if collate is default_collate else "quads")
    dataset = opened(fields, CenterCrop(16))
    loader = DataLoader(dataset, 16, num_workers=threads, collate_fn=collate, require_native=True)
    expected = list(torch_loader(dataset, batch_size=16, collate_fn=collate))
    for _ in range(2):
        assert equal(list(loader), expected)


@pytest.mark.filterwarnings("ignore::fastdata.errors.SlowPathWarning")
def test_a_collate_fn_that_needs_pil_images_gets_them() -> None:
    for transform in (None, lambda image: image):
        dataset = opened(("image", "caption"), transform)
        for batch in DataLoader(dataset, 16, collate_fn=list):
            assert all(isinstance(one["image"], Image.Image) for one in batch)
        with pytest.raises(UsageError, match="require_native"):
            DataLoader(dataset, 16, collate_fn=list, require_native=True)


def test_an_error_of_a_collate_fn_costs_its_batch_only() -> None:
    def fails(batch: list[Any]) -> Any:
        if any(one["small"] == 20 for one in batch):
            raise KeyError("mine")
        return [one["small"] for one in batch]

    iterator = iter(
        DataLoader(opened(("image", "small"), CenterCrop(16)), 10, num_workers=1, collate_fn=fails)
    )
    found: list[Any] = []
    for _ in range(4):
        try:
            found += next(iterator)
        except KeyError:
            found.append("error")
    assert found == [*range(20), "error", *range(30, 40)]


def test_samples_that_are_kept_keep_their_values() -> None:
    kept: list[Any] = []

    def keep(batch: list[Any]) -> int:
        kept.extend(batch)
        return 0

    dataset = opened(("image", "mask", "emb", "raw"))
    loader = DataLoader(dataset, 4, num_workers=2, collate_fn=keep, persistent_workers=True)
    for _ in range(3):
        assert sum(loader) == 0
    assert equal(kept, [dataset[number] for number in range(ROWS)] * 3)


def test_a_collate_fns_draws_follow_the_seed() -> None:
    dataset = opened(("image", "caption"), RandomResizedCrop(8))
    runs = []
    for threads in (0, 2):
        loader = DataLoader(
            dataset, 16, num_workers=threads, collate_fn=_drawing, seed=5, shuffle=True
        )
        runs.append([list(loader), list(loader)])
    assert equal(runs[0], runs[1])
    assert not equal(runs[0][0], runs[0][1])


# Where batches go.


def test_every_field_goes_to_a_device() -> None:
    plain = list(DataLoader(opened(), 16, num_workers=1))
    for schedule in (None, *simgpu.schedules(4)):
        with simgpu.simulated(schedule):
            for loader in (
                DataLoader(opened(), 16, num_workers=1, device="cuda"),
                DeviceLoader(DataLoader(opened(), 16, pin_memory=True), "cuda"),
            ):
                for batch, expected in zip(loader, plain, strict=True):
                    for one, other in zip(batch.values(), expected.values(), strict=True):
                        tensors = [one.values, one.offsets] if isinstance(one, Ragged) else [one]
                        for tensor in tensors:
                            assert isinstance(tensor, list) or tensor.is_cuda
                        assert _on_host(one, other)


def _on_host(one: Any, other: Any) -> bool:
    if isinstance(one, Ragged):
        return equal(one.values.cpu(), other.values) and equal(one.offsets.cpu(), other.offsets)
    return equal(one.cpu(), other) if isinstance(one, torch.Tensor) else equal(one, other)


# Ragged.


def test_ragged_is_what_torch_makes_of_the_lists() -> None:
    for lengths in ([3, 0, 2], [0, 0], [1], []):
        for tail in ((), (4,)):
            lists = [torch.arange(n * (4 if tail else 1)).reshape(n, *tail) for n in lengths]
            values = torch.cat(lists) if lists else torch.empty((0, *tail), dtype=torch.int64)
            ragged = Ragged(values, torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int64))
            assert len(ragged) == len(lengths) and equal(ragged.list(), lists)
            assert ragged.lengths.tolist() == lengths
            assert ragged.batch_index.tolist() == [
                i for i, n in enumerate(lengths) for _ in range(n)
            ]
            if lists:
                padded = torch.nn.utils.rnn.pad_sequence(lists, batch_first=True, padding_value=-1)
                assert equal(ragged.padded(-1), padded)
                nested = torch.nested.nested_tensor_from_jagged(ragged.values, ragged.offsets)
                assert equal(list(nested.unbind()), lists)
            assert ragged.padded().shape == (len(lengths), max(lengths, default=0), *tail)
    for args, options in (((), {"dtype": torch.float32}), (("cpu", torch.float32, True), {})):
        moved = ragged.to(*args, **options)
        assert (moved.values.dtype, moved.offsets.dtype) == (torch.float32, torch.int64)
    assert ragged.to(copy=True).values.data_ptr() != ragged.values.data_ptr() or not lengths
    for name in ("bool", "uint16", "uint64", "float16", "bfloat16"):
        values = torch.tensor([1, 0, 1, 1, 1]).to(getattr(torch, name))
        padded = Ragged(values, torch.tensor([0, 2, 2, 5])).padded(1)
        assert padded.dtype == values.dtype
        assert padded.tolist() == [[1, 0, 1], [1, 1, 1], [1, 1, 1]]


# Behind a URL.


_ENDS = """
import sys, threading
from fastdata import DataLoader, ImageDataset
from fastdata.remote import RemoteOptions
of = ImageDataset(sys.argv[1], fields=("caption",), remote=RemoteOptions(timeout=1e6))
threading.Thread(target=list, args=(DataLoader(of, 4, num_workers=2),), daemon=True).start()
sys.stdin.readline()
"""


@pytest.mark.slow
def test_the_interpreter_ends_while_a_server_does_not_answer() -> None:
    with WebServer(packed(), stalls="_field-") as server:
        command = [sys.executable, "-c", _ENDS, server.url]
        with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as process:
            end = time.monotonic() + HANG
            while not any("_field-" in one.path for one in server.requests):
                assert process.poll() is None and time.monotonic() < end
                time.sleep(0.05)
            process.communicate("\n", timeout=HANG)
        assert process.returncode == 0
