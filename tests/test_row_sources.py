"""Conformance of every `Source`: what it returns is what was written."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import field_data
import loader_data
import numpy as np
import pyarrow as pa
import pytest
from containers import pack_tree
from fastdata.converters.table import TableImages
from loader_data import dataset, tree
from PIL import Image
from test_fields_storage import BLOBS, as_files, has_null, same
from tiers import slow
from torch.utils.data import ConcatDataset, Subset
from torchvision_stub import import_torchvision
from web_server import WebServer

from fastdata import DataLoader, ImageDataset, Ragged
from fastdata.errors import CorruptionError, DatasetError, SampleError, UsageError
from fastdata.loading.fields.decoder import SampleDecoder
from fastdata.loading.fields.readable import Readable
from fastdata.loading.images import recognise
from fastdata.remote import RemoteOptions
from fastdata.storage.arrow import as_arrow
from fastdata.storage.encodings import ENCODINGS
from fastdata.storage.field_source import FieldSource, MissingError
from fastdata.storage.source import Blob, Source
from fastdata.transforms import CenterCrop, Resize
from fastdata.transforms.compile import compile_recipe
from fastdata.transforms.recipe import Recipe

Identity = Callable[[Any], Any]


class Written(NamedTuple):
    key: str
    label: int
    path: Path


def files() -> list[tuple[Path, int]]:
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
        self.field(field, ("image", "mask", "blob"))
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
        none = source.gather(np.empty(0, np.int64), BOTH)
        assert len(none.blobs["image"].extents) == len(none.columns["label"]) == 0
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
            with pytest.raises(UsageError, match=f"no image, mask or blob field '{name}'"):
                source.encoded(0, name)
        for name in ("image", "width"):
            with pytest.raises(UsageError, match=f"no column field '{name}'"):
                source.column(name)

    @pytest.mark.filterwarnings("ignore::fastdata.errors.FallbackWarning")
    def test_pixels(self, source: Source, written: list[Written], number: Identity) -> None:
        recipe = compile_recipe(Resize((20, 16)))
        assert isinstance(recipe, Recipe)
        numbers = number(np.arange(len(written)))
        images = Readable(
            what="rows", dataset=source, path="rows", source=source, open=lambda learns: source,
            transform=None, recipe=recipe, fields=("image", "label"), subset=numbers,
        )  # fmt: skip
        decoder = SampleDecoder(images, recipe)
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


@pytest.mark.parametrize("container", ["lmdb", slow("parquet"), slow("shards"), "folder"])
class TestPacked(Conformance):
    @pytest.fixture
    def opened(self, container: str) -> Any:
        return ImageDataset(dataset(container)).source, packed_rows()


@pytest.mark.parametrize("cached", [False, slow(True)])
class TestRemote(Conformance):
    @pytest.fixture
    def opened(self, cached: bool, tmp_path: Path) -> Iterator[Any]:
        with WebServer(dataset("shards")) as server:
            cache, options = tmp_path / "pieces", RemoteOptions()
            far = ImageDataset(server.url, cache=cache if cached else None, remote=options)
            yield far.source, packed_rows()


def image_folder() -> Any:
    return import_torchvision().datasets.ImageFolder(tree())


@pytest.mark.parametrize("learns", [slow(False), True])
class TestFolder(Conformance):
    @pytest.fixture
    def opened(self, learns: bool) -> Any:
        images = recognise(image_folder())
        assert isinstance(images, Readable)
        return images.open(learns), listed_rows()


def opened_images(data: Any, rows: list[Written]) -> Any:
    images = recognise(data)
    assert isinstance(images, Readable)
    source = images.open(True)
    return source, rows, images.numbering(source)


@pytest.mark.slow
class TestConcatenation(Conformance):
    @pytest.fixture
    def opened(self) -> Any:
        parts = [ImageDataset(dataset("lmdb")), image_folder(), ImageDataset(dataset("shards"))]
        rows = packed_rows()
        return opened_images(ConcatDataset(parts), [*rows, *listed_rows(), *rows])


#: Columns of every kind, and further blobs.
COLUMNS = ("id", "maybe-int16", "float", "flag", "text", "maybe-text", "vector", "maybe-vector")
COLUMNS += ("ragged", "boxes", "maybe-boxes", "tags", "about", "parts", "time-ns", "nothing")
#: Formats of columns.
FORMATS = {"boxes": "xywh", "maybe-boxes": "relative cxcywh"}
FURTHER = (*COLUMNS, "second", "raw")
#: Their types in a `fastdata.storage.columns.Column` of NumPy; others are Arrow's.
PLAIN = {"id": np.int64, "float": np.float32, "flag": np.bool_, "vector": np.float32}


@cache
def fields_table() -> pa.Table:
    return field_data.table().select(("key", "label", *COLUMNS))


@cache
def with_fields(container: str = "shards", labels: bool = True) -> Path:
    """A packed dataset of these rows in their order; do not change it."""
    root = loader_data.folder()
    table = as_files(root / "files").select(("key", "label", "path", *FURTHER))
    table = table.append_column("seg", table["second"])
    if not labels:
        table = table.drop_columns("label")
    source = TableImages(table, root / "files", files=BLOBS, masks=["seg"], formats=FORMATS)
    pack_tree(source, root / "out", container, unit_size=20_000, shuffle=False)
    return root / "out"


CROPS: dict[str, Any] = {"image": CenterCrop(8), "second": CenterCrop(6)}
#: Fields of batches: without `second`, which some rows lack.
LOADED = ("image", *COLUMNS, "raw", "key", "index")


def opened_fields(where: Any = None, fields: Any = LOADED, **options: Any) -> ImageDataset:
    transform = CROPS if "second" in fields else CROPS["image"]
    path = where or with_fields()
    stored = ImageDataset(path, **options).manifest.field_list
    assert {field.name: field.format for field in stored if field.format} == FORMATS
    # A transform of images alone leaves boxes where they are.
    plain = {name: "" for name in FORMATS if name in fields}
    return ImageDataset(path, transform, fields=fields, formats=plain, **options)


class FieldConformance:
    """Contract of `Source` for further fields; ``opened`` is (dataset, its rows of the table)."""

    has_label = True

    @pytest.fixture
    def opened(self) -> Any:
        raise NotImplementedError

    @pytest.fixture
    def found(self, opened: Any) -> Any:
        """(source, the table's rows, numbers of the source for them)."""
        images = recognise(opened[0])
        assert isinstance(images, Readable)
        source = images.open(True)
        numbering = images.numbering(source)
        numbers = np.arange(len(opened[1]))
        return source, np.array(opened[1]), np.asarray(numbering(numbers))

    def test_schema(self, found: Any) -> None:
        expected = ["image", *["label"] * self.has_label, *FURTHER, "seg"]
        assert sorted(field.name for field in found[0].fields) == sorted(expected)
        kinds = {field.name: (field.kind, field.nullable) for field in found[0].fields}
        assert kinds["second"] == ("image", True) and kinds["raw"] == ("blob", True)
        assert kinds["seg"] == ("mask", True)
        for name in COLUMNS:
            values = fields_table()[name].combine_chunks()
            assert kinds[name] == ("column", has_null(values.to_pylist())), name
            assert found[0].field(name).type == values.type

    def test_columns(self, found: Any) -> None:
        source, rows, numbers = found
        places = np.random.default_rng(4).integers(0, len(rows), 50)
        for name in COLUMNS:
            values = fields_table()[name].combine_chunks()
            for at in (places, places[:1], np.arange(0)):
                column = source.column(name, numbers[at])
                assert column_of(values.take(pa.array(rows[at]))) == column_of(column), name
                if name in PLAIN:
                    assert column.dtype == PLAIN[name] and len(column) == len(at)
            assert len(source.column(name)) == len(source)

    def test_gathered(self, found: Any) -> None:
        source, rows, numbers = found
        names = ("raw", "text", "second", "image", "seg", "vector")
        gathered = source.gather(numbers, names)
        assert list(gathered.blobs) == ["raw", "second", "image", "seg"]
        assert list(gathered.columns) == ["text", "vector"]
        for name in gathered.columns:
            values = fields_table()[name].take(pa.array(rows)).combine_chunks()
            assert column_of(gathered.columns[name]) == column_of(values)
        for name, expected in further_blobs(rows).items():
            column = gathered.blobs[name]
            assert np.asarray(column.extents.lengths).tolist() == [len(e or b"") for e in expected]
            for slot, data in enumerate(expected):
                if data and source.capabilities.local:
                    assert column.extents.read(slot) == data
                if data and name != "raw" and column.widths[slot]:
                    with Image.open(io.BytesIO(data)) as image:
                        assert (column.widths[slot], column.heights[slot]) == image.size

    def test_single_blobs_and_errors(self, found: Any) -> None:
        source, rows, numbers = found
        for name, expected in further_blobs(rows).items():
            for number, data in zip(numbers.tolist()[:12], expected, strict=False):
                blob = source.encoded(number, name)
                assert blob.data == (data or b"")
                assert source.encoded(number, name, data=b"own").data == b"own"
        key = fields_table()["key"][int(rows[3])].as_py()
        assert source.key(int(numbers[3])) == key and key in source.describe(int(numbers[3]))
        of_field = FieldSource(source, "second")
        text = str(of_field.problem(int(numbers[3]), "it is green"))
        assert key in text and "its second: it is green" in text
        lacking = next(at for at, data in enumerate(further_blobs(rows)["second"]) if not data)
        with pytest.raises(MissingError, match="it has no second"):
            of_field.encoded(int(numbers[lacking]))
        with pytest.raises(UsageError, match="no image, mask or blob field 'text'"):
            source.encoded(0, "text")
        with pytest.raises(UsageError, match="no column field 'second'"):
            source.column("second")

    def test_samples(self, opened: Any) -> None:
        data, rows = opened
        everything = data.__getitems__([*range(len(rows))]) if hasattr(data, "__getitems__") else []
        for sample in (*((at, data[at]) for at in range(0, len(rows), 7)), *enumerate(everything)):
            assert tuple(sample[1]) == LOADED
            assert_row(sample[1], int(rows[sample[0]]))

    def test_loaded_shuffled_and_resumed(self, opened: Any) -> None:
        data, rows = opened
        for options in ({}, {"shuffle": True, "seed": 5, "num_workers": 0}):
            loader = DataLoader(data, 7, require_native=True, **options)
            seen: list[int] = []
            batches = iter(loader)
            state: Any = None
            for batch in batches:
                seen += self.check(batch)
                state = loader.state_dict() if len(seen) == 14 else state
            assert sorted(seen) == sorted(rows)
            again = DataLoader(data, 7, require_native=True, **options)
            again.load_state_dict(state)
            assert [row for batch in again for row in self.check(batch)] == seen[14:]

    def check(self, batch: Any) -> list[int]:
        """Compare each sample of a batch with the row of its number in its part; return these."""
        assert tuple(batch) == LOADED
        columns = [one.list() if isinstance(one, Ragged) else list(one) for one in batch.values()]
        samples = [dict(zip(LOADED, sample, strict=True)) for sample in zip(*columns, strict=True)]
        for sample in samples:
            assert_row(sample, int(sample["index"]))
        return [int(sample["index"]) for sample in samples]


def assert_row(sample: dict[str, Any], row: int) -> None:
    assert sample["key"] == fields_table()["key"][row].as_py()
    assert sample["raw"] == further_blobs([row])["raw"][0]
    assert sample["image"].shape == (3, 8, 8)
    for name in COLUMNS:
        value = sample[name]
        value = value.tolist() if hasattr(value, "tolist") else value
        assert same(value, fields_table()[name][row].as_py()), (name, row)


def column_of(column: Any) -> str:
    """The values as pyarrow shows them, which knows nanoseconds."""
    whole = as_arrow(column)
    return str(whole.to_string(window=1000, container_window=1000))


@cache
def _blobs() -> dict[str, list[bytes | None]]:
    own = {"image": [field_data.image_file(at) for at in range(field_data.ROWS)]}
    blobs = field_data.blobs()
    return own | blobs | {"seg": blobs["second"]}


def further_blobs(rows: Any) -> dict[str, list[bytes | None]]:
    return {name: [values[int(row)] for row in rows] for name, values in _blobs().items()}


ALL_ROWS = list(range(field_data.ROWS))


@pytest.mark.parametrize("container", ["shards", slow("lmdb"), slow("parquet"), slow("folder")])
class TestPackedFields(FieldConformance):
    @pytest.fixture
    def opened(self, container: str) -> Any:
        return opened_fields(with_fields(container)), ALL_ROWS


@pytest.mark.slow
class TestFieldsWithoutLabels(FieldConformance):
    has_label = False

    @pytest.fixture
    def opened(self) -> Any:
        return opened_fields(with_fields(labels=False)), ALL_ROWS


@pytest.mark.parametrize("cached", [slow(False), True])
class TestRemoteFields(FieldConformance):
    @pytest.fixture
    def opened(self, cached: bool, tmp_path: Path) -> Iterator[Any]:
        with WebServer(with_fields()) as server:
            cache, options = tmp_path / "pieces", RemoteOptions()
            yield (
                opened_fields(server.url, cache=cache if cached else None, remote=options),
                ALL_ROWS,
            )


@pytest.mark.slow
class TestConcatenatedFields(FieldConformance):
    @pytest.fixture
    def opened(self) -> Any:
        numbers = np.random.default_rng(5).integers(0, 3 * field_data.ROWS, 45).tolist()
        parts = [opened_fields(with_fields(name)) for name in ("shards", "lmdb", "folder")]
        rows = [number % field_data.ROWS for number in numbers]
        return Subset(ConcatDataset(parts), numbers), rows


class TestHub(Conformance):
    @pytest.fixture
    def opened(self, hugging_face: Any, tmp_path: Path) -> Any:
        """A ``datasets.Dataset`` on the disk, shuffled; some of its images are files beside it."""
        names = ["class0", "class1", "class2"]
        label = hugging_face.ClassLabel(names=names)
        features = hugging_face.Features({"photo": hugging_face.Image(), "label": label})

        def rows() -> Iterator[dict[str, Any]]:
            for at, row in enumerate(listed_rows()):
                image = {"bytes": row.path.read_bytes(), "path": row.path.name}
                yield {"photo": image if at % 5 else str(row.path), "label": row.label}

        cache_dir = str(tmp_path / "cache")
        data = hugging_face.Dataset.from_generator(rows, features, cache_dir=cache_dir)
        order = np.random.default_rng(6).permutation(len(data))[:40].tolist()
        images = recognise(ImageDataset(data.select(order)))
        assert isinstance(images, Readable)
        source = images.open(True)
        found = []
        for at, number in enumerate(order):
            row, key = listed_rows()[number], source.key(at)
            assert key.startswith(f"{number}:") and key.endswith(row.path.name)
            found.append(row._replace(key=key))
        return source, found
