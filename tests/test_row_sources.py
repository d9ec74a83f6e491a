"""Conformance of every `Source`: what it returns is what was written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from loader_data import dataset, tree
from PIL import Image
from torch.utils.data import ConcatDataset, Subset
from torchvision_stub import import_torchvision
from web_server import WebServer

from fastdata import DataLoader, ImageDataset
from fastdata.batches.images import Images
from fastdata.batches.pipeline import Settings
from fastdata.batches.samples import SampleDecoder
from fastdata.errors import CorruptionError, DatasetError, SampleError, UsageError
from fastdata.loading.images import recognise
from fastdata.remote import RemoteOptions
from fastdata.storage.encodings import ENCODINGS
from fastdata.storage.source import Blob, Source
from fastdata.transforms import Resize
from fastdata.transforms.compile import Recipe, compile_recipe

Identity = Callable[[Any], Any]


class Written(NamedTuple):
    """The row that the test wrote."""

    key: str
    label: int
    path: Path


def files() -> list[tuple[Path, int]]:
    """(path, label) of each file of the tree, in torchvision's order."""
    classes = sorted(path for path in tree().iterdir())
    return [(p, label) for label, one in enumerate(classes) for p in sorted(one.iterdir())]


def packed_rows() -> list[Written]:
    return [Written(str(p.relative_to(tree()).with_suffix("")), n, p) for p, n in files()]


def listed_rows() -> list[Written]:
    return [Written(str(path), label, path) for path, label in files()]


class Memory(Source):
    """Source with the minimum of methods: all else is the defaults'."""

    location = "memory"

    def __init__(self, rows: Sequence[Written]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def classes(self) -> Sequence[str]:
        return ["class0", "class1", "class2"]

    def key(self, row: int) -> str:
        return self._rows[row].key

    def encoded(self, row: int, field: str = "image", data: bytes | None = None) -> Blob:
        self.field(field, ("image", "blob"))
        return Blob(self._rows[row].path.read_bytes() if data is None else data)

    def column(self, field: str, rows: Any = None) -> Any:
        self.field(field, ("column",))
        labels = np.array([row.label for row in self._rows], np.int64)
        return labels if rows is None else labels[rows]


#: Fields of every source here.
BOTH = ("image", "label")


class Conformance:
    """Contract of `Source`; a subclass has the fixture ``opened``: (source, rows, numbering)."""

    @pytest.fixture
    def opened(self) -> Any:
        raise NotImplementedError

    @pytest.fixture
    def source(self, opened: Any) -> Source:
        found: Source = opened[0]
        return found

    @pytest.fixture
    def written(self, opened: Any) -> list[Written]:
        rows: list[Written] = opened[1]
        return rows

    @pytest.fixture
    def number(self, opened: Any) -> Identity:
        """Maps numbers of rows to those that the source has for them."""
        mapping: Identity = opened[2] if len(opened) > 2 else lambda rows: rows
        return mapping

    def test_columns(self, source: Source, written: list[Written], number: Identity) -> None:
        rows = np.random.default_rng(0).integers(0, len(written), 100)
        labels = np.array([row.label for row in written])
        found = source.column("label", number(rows))
        assert found.dtype == np.int64 and found.tolist() == labels[rows].tolist()
        assert source.column("label")[number(np.arange(len(written)))].tolist() == labels.tolist()
        assert len(source.classes) == 3 and max(labels) < 3

    def test_single_rows(self, source: Source, written: list[Written], number: Identity) -> None:
        for at, row in enumerate(written):
            own = int(number(np.array([at]))[0])
            data = row.path.read_bytes()
            assert source.key(own) == row.key
            assert row.key in source.describe(own)
            blob = source.encoded(own)
            assert blob.data == data and source.encoded(own, data=data) == blob
            with Image.open(row.path) as image:
                assert (blob.width, blob.height) in (image.size, (0, 0))

    def test_gathered_rows(self, source: Source, written: list[Written], number: Identity) -> None:
        rows = np.random.default_rng(1).integers(0, len(written), 64)
        gathered = source.gather(number(rows), BOTH)
        assert [*gathered.blobs, *gathered.columns] == [field.name for field in source.fields]
        assert not source.gather(number(rows)).columns
        labels = gathered.columns["label"]
        assert labels.tolist() == [written[row].label for row in rows]
        assert labels.dtype == np.int64 and labels.flags.writeable
        images = gathered.blobs["image"]
        kinds = [np.int32, np.int32, np.bool_, np.int8]
        arrays = images.widths, images.heights, images.pillow, images.encodings
        assert [(one.dtype, one.shape) for one in arrays] == [(k, (64,)) for k in kinds]
        assert len(images.extents) == 64
        for slot, row in enumerate(rows.tolist()):
            path = written[row].path
            if source.capabilities.local:
                assert images.extents.read(slot) == path.read_bytes()
            with Image.open(path) as image:
                assert (images.widths[slot], images.heights[slot]) in (image.size, (0, 0))
                code = int(images.encodings[slot])
                assert code < 0 or ENCODINGS[code].startswith(str(image.format).lower())
                assert not (images.pillow[slot] and image.format == "JPEG" and image.mode == "RGB")

    def test_no_rows(self, source: Source) -> None:
        gathered = source.gather(np.empty(0, np.int64), BOTH)
        assert len(gathered.blobs["image"].extents) == len(gathered.columns["label"]) == 0

    def test_errors(self, source: Source, number: Identity) -> None:
        row = int(number(np.array([5]))[0])
        start = f"{source.describe(row)}: it is green"
        kinds = {"": SampleError, "truncated": SampleError, "changed": CorruptionError}
        for code, kind in {**kinds, "file_missing": DatasetError}.items():
            error = source.problem(row, "it is green", code)
            assert type(error) is kind and error.what == start and error.hint
        assert source.problem(row, "it is green", hint="Paint it.").hint == "Paint it."

    def test_fields_that_are_not_in_the_schema(self, source: Source) -> None:
        for name in ("mask", "label"):
            with pytest.raises(UsageError, match=f"no image or blob field '{name}'"):
                source.encoded(0, name)
        for name in ("image", "width"):
            with pytest.raises(UsageError, match=f"no column field '{name}'"):
                source.column(name)

    def test_threads(self, source: Source, written: list[Written], number: Identity) -> None:
        rows = number(np.arange(len(written)))
        found: list[list[int]] = []

        def work() -> None:
            for _ in range(20):
                gathered = source.gather(rows, BOTH)
            found.append(gathered.columns["label"].tolist())

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found == [[row.label for row in written]] * 4

    @pytest.mark.filterwarnings("ignore::fastdata.errors.FallbackWarning")
    def test_pixels(self, source: Source, written: list[Written], number: Identity) -> None:
        """The decoder of single samples takes any source; twice, as some learn sizes."""
        recipe = compile_recipe(Resize((20, 16)))
        assert isinstance(recipe, Recipe)
        options = ImageDataset(dataset())
        numbers = number(np.arange(len(written)))
        images = Images(
            "rows", source, options, lambda learns: source, None, None, recipe, subset=numbers
        )
        decoder = SampleDecoder(images, {"image": Settings(recipe, True, False, options.limits)})
        for _ in range(2):
            for row, (image, label) in zip(written, decoder.samples(range(24)), strict=False):
                with Image.open(row.path) as opened:
                    wanted = np.asarray(
                        opened.convert("RGB").resize((16, 20), Image.Resampling.BILINEAR), np.int16
                    )
                assert label == row.label
                assert np.abs(image.permute(1, 2, 0).numpy() - wanted).max() <= 1
        source.end_epoch()


class TestMemory(Conformance):
    @pytest.fixture
    def opened(self) -> Any:
        return Memory(packed_rows()), packed_rows()


@pytest.mark.parametrize("container", ["lmdb", "parquet", "shards", "folder"])
class TestPacked(Conformance):
    @pytest.fixture
    def opened(self, container: str) -> Any:
        return ImageDataset(dataset(container), staged=False).source, packed_rows()


@pytest.mark.parametrize("cached", [False, True])
class TestRemote(Conformance):
    @pytest.fixture
    def opened(self, cached: bool, tmp_path: Path) -> Iterator[Any]:
        with WebServer(dataset("shards")) as server:
            cache, options = tmp_path / "pieces", RemoteOptions(progress=False)
            far = ImageDataset(server.url, cache=cache if cached else None, remote=options)
            yield far.source, packed_rows()


def image_folder() -> Any:
    return import_torchvision().datasets.ImageFolder(tree())


@pytest.mark.parametrize("learns", [False, True])
class TestFolder(Conformance):
    @pytest.fixture
    def opened(self, learns: bool) -> Any:
        images = recognise(image_folder())
        assert isinstance(images, Images)
        return images.open(learns), listed_rows()


def opened_images(data: Any, rows: list[Written]) -> Any:
    """A dataset made of others, as a loader opens it."""
    images = recognise(data)
    assert isinstance(images, Images)
    source = images.open(True)
    return source, rows, images.numbering(source)


class TestConcatenation(Conformance):
    @pytest.fixture
    def opened(self) -> Any:
        parts = [ImageDataset(dataset("lmdb")), image_folder(), ImageDataset(dataset("shards"))]
        rows = packed_rows()
        return opened_images(ConcatDataset(parts), [*rows, *listed_rows(), *rows])


class TestSubset(Conformance):
    @pytest.fixture
    def opened(self) -> Any:
        numbers = np.random.default_rng(2).permutation(len(packed_rows()))[:40].tolist()
        rows = packed_rows()
        return opened_images(
            Subset(ImageDataset(dataset("parquet")), numbers), [rows[n] for n in numbers]
        )


class TestSubsetOfConcatenation(Conformance):
    @pytest.fixture
    def opened(self) -> Any:
        rows = [*packed_rows(), *listed_rows()]
        numbers = np.random.default_rng(3).integers(0, len(rows), 40).tolist()
        parts = [ImageDataset(dataset("folder")), image_folder()]
        return opened_images(Subset(ConcatDataset(parts), numbers), [rows[n] for n in numbers])


def test_files_are_torchvisions() -> None:
    folder = image_folder()
    assert folder.samples == [(row.key, row.label) for row in listed_rows()]
    found = ImageDataset(folder)
    assert found.read([3]) == [listed_rows()[3].path.read_bytes()]
    assert found.targets == found.labels.tolist() == folder.targets
    loader = DataLoader(ImageDataset(folder, Resize((8, 8))), 7, num_workers=0)
    labels = torch.cat([labels for _, labels in loader])
    assert labels.tolist() == folder.targets
