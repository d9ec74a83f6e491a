"""Conformance suites of containers, whose files are read by struct, json and ``seek``, too."""

from __future__ import annotations

import hashlib
import importlib
import io
import json
import os
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import fields as fields_of
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple
from unittest import mock

import pyarrow as pa
import pytest
from fastdata.converters import ImageFolder, ImageSource, PackResult, pack
from fastdata.converters.options import PackOptions
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from tiers import slow

from fastdata import ImageDataset, verify
from fastdata._native import crc32c
from fastdata.errors import CorruptionError
from fastdata.storage import formats
from fastdata.storage.encodings import ENCODINGS
from fastdata.storage.files import crc32c_file
from fastdata.storage.formats import NewSample
from fastdata.storage.packed import PackedSource
from fastdata.storage.records import SCHEMA, Row, write_index

#: Small enough that the trees of these tests become several files, or commits to an LMDB.
UNIT_SIZE = 2_000_000

# The package's attribute of this name is the function.
PACK_MODULE = importlib.import_module("fastdata.converters.packing")


class Original(NamedTuple):
    key: str
    label: int
    path: Path


def originals(tree: Path) -> list[Original]:
    folders = sorted(folder for folder in tree.iterdir() if folder.is_dir())
    return [
        Original(f"{folder.name}/{path.name.rpartition('.')[0]}", label, path)
        for label, folder in enumerate(folders)
        for path in sorted(folder.iterdir())
    ]


def pack_tree(
    tree: Path | ImageSource,
    out: Path,
    container: str,
    *,
    workers: int = 1,
    unit_size: int | None = UNIT_SIZE,
    shuffle: bool = False,
    **options: Any,
) -> PackResult:
    source = ImageFolder(tree) if isinstance(tree, Path) else tree
    names = {one.name for one in fields_of(PackOptions)} & options.keys()
    chosen = PackOptions(shuffle=shuffle, **{name: options.pop(name) for name in names})
    if container in ("parquet", "shards"):
        chosen = replace(chosen, shard_size=unit_size)
    commit_size = unit_size or PACK_MODULE.COMMIT_SIZE
    with mock.patch.object(PACK_MODULE, "COMMIT_SIZE", commit_size):
        return pack(source, out, container=container, workers=workers, options=chosen, **options)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Be another user than root, who may read everything."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def repeat_tree(tree: Path, out: Path, times: int) -> Path:
    for image in originals(tree):
        folder = out / image.path.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        for number in range(times):
            (folder / f"{number}_{image.path.name}").symlink_to(image.path)
    return out


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def exchanged(crc: int) -> int:
    """A checksum as records have it: its halves exchanged."""
    return (crc << 16 | crc >> 16) & 0xFFFF_FFFF


_RECORD = struct.Struct("<QQQiiiiIIHHIBBBBI")
_RECORD_FIELDS = ["offset", "length", "at", "file", "label", "width", "height", "crc32c"]
_RECORD_FIELDS += ["names_crc", "key_size", "path_size", "table_size", "encoding", "channels"]
_RECORD_FIELDS += ["orientation", "zero", "crc"]


def index_rows(dataset: Path) -> list[dict[str, Any]]:
    """The index, read as docs/formats/index.md says, by nothing of fastdata's but its CRC-32C."""
    manifest = load_manifest(dataset)
    data = (dataset / manifest["index"]["name"]).read_bytes()
    magic, size, zero, count, heap_size, generation = struct.unpack_from("<8sIIQQ8s", data)
    assert (magic, size, zero, data[40:60]) == (b"FDROWS3\n", 64, 0, bytes(20))
    assert generation.hex() == manifest["generation"]
    assert struct.unpack_from("<I", data, 60) == (crc32c(data[:60]),)
    heap = data[64 + 64 * count :]
    assert len(heap) == heap_size
    rows, end = [], 0
    for number in range(count):
        record = data[64 + 64 * number : 128 + 64 * number]
        row = dict(zip(_RECORD_FIELDS, _RECORD.unpack(record), strict=True))
        before = generation + number.to_bytes(8, "little")
        assert row["crc"] == exchanged(crc32c(before + record[:60]))
        assert (row["at"], row["zero"]) == (end, 0)
        names = end + row["key_size"] + row["path_size"]
        key, path = heap[end : end + row["key_size"]], heap[end + row["key_size"] : names]
        assert row["names_crc"] == crc32c(key + path)
        end = names + row["table_size"]
        table = heap[names:end]
        if table:
            crc = exchanged(crc32c(before + table))
            assert heap[end : end + 4] == crc.to_bytes(4, "little")
            end += 4
        fields = {name: row[name] for name in SCHEMA.names if name in row}
        fields["encoding"] = ENCODINGS[row["encoding"]]
        fields |= {"key": key.decode(), "path": path.decode() or None, "seek_points": table or None}
        rows.append({name: fields[name] for name in SCHEMA.names})
    assert end == heap_size
    return rows


def load_manifest(dataset: Path) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((dataset / "_dataset.json").read_text("utf-8"))
    return fields


def edit_manifest(dataset: Path, change: Callable[[dict[str, Any]], object]) -> None:
    fields = load_manifest(dataset)
    del fields["checksum"]
    change(fields)
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    fields["checksum"] = f"{crc32c(text.encode()):08x}"
    (dataset / "_dataset.json").write_text(json.dumps(fields), "utf-8")


def edit_index(
    dataset: Path, change: Callable[[pa.Table], pa.Table], *, honest: bool = True
) -> None:
    """Rewrites an index with other rows; where ``honest``, the manifest has its checksum."""
    blobs = PackedSource(dataset)
    table = change(pa.Table.from_batches(blobs.index.batches(), SCHEMA))
    name = blobs.manifest.index.name
    path = dataset / name
    write_index(path, table.combine_chunks().to_batches(), table.num_rows, blobs.generation)
    if honest:
        size, crc = path.stat().st_size, f"{crc32c_file(path):08x}"
        edit_manifest(dataset, lambda fields: fields["index"].update(size=size, crc32c=crc))


def set_column(table: pa.Table, name: str, values: list[Any] | pa.Array) -> pa.Table:
    at = table.schema.get_field_index(name)
    field = table.schema.field(at)
    return table.set_column(at, field, pa.array(values, field.type))


def plain_blobs(dataset: Path) -> Iterator[bytes]:
    """Every blob of a dataset, read at its extent by ``seek`` alone."""
    manifest = load_manifest(dataset)
    for row in index_rows(dataset):
        if row["path"] is None:
            path = dataset / manifest["files"][row["file"]]["name"]
        else:
            path = dataset / manifest["root"] / row["path"]
        with path.open("rb") as file:
            file.seek(row["offset"])
            yield file.read(row["length"])


def row_of(number: int, blob: bytes, **changes: Any) -> Row:
    fields = {
        "key": f"class/{number}",
        "label": 0,
        "file": -1,
        "path": None,
        "offset": 0,
        "length": len(blob),
        "width": 3,
        "height": 2,
        "channels": 3,
        "encoding": "png",
        "crc32c": 0,
    }
    return Row(**{**fields, **changes})


class Made(NamedTuple):
    path: Path
    tree: Path
    images: list[Original]


class ContainerConformance:
    container: ClassVar[str]
    beside: ClassVar[set[str]] = set()  # files that the manifest does not name

    @pytest.fixture(scope="class", params=["made", slow("real")])
    @classmethod
    def made(cls, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
        fixture = {"made": "made_tree", "real": "imagenet_sample"}[request.param]
        tree: Path = request.getfixturevalue(fixture) / "train"
        out = tmp_path_factory.mktemp(cls.container) / "dataset"
        pack_tree(tree, out, cls.container)
        return Made(out, tree, originals(tree))

    def test_bytes_out_are_bytes_in(self, made: Made) -> None:
        dataset = ImageDataset(made.path)
        assert len(dataset) == len(made.images)
        by_hand = plain_blobs(made.path)
        for at, (image, blob) in enumerate(zip(made.images, by_hand, strict=True)):
            assert dataset.read([at]) == [blob] == [image.path.read_bytes()], image.key
        asked = [5, 0, len(dataset) - 1, 5, -1]
        assert dataset.read(asked) == [made.images[i].path.read_bytes() for i in asked]

    def test_keys_labels_and_order_are_the_sources(self, made: Made) -> None:
        expected = [(image.key, image.label) for image in made.images]
        assert [(row["key"], row["label"]) for row in index_rows(made.path)] == expected
        dataset = ImageDataset(made.path)
        assert [dataset.row(i)[:2] for i in range(len(dataset))] == expected
        assert dataset.labels.tolist() == [label for _, label in expected]
        assert dataset.classes == sorted(folder.name for folder in made.tree.iterdir())

    def test_sizes_and_encodings_are_what_pillow_finds(self, made: Made) -> None:
        for image, row in zip(made.images, index_rows(made.path), strict=True):
            with Image.open(image.path) as opened:
                assert (row["width"], row["height"]) == opened.size, image.key
                assert row["channels"] == len(opened.getbands()), image.key
                encoding = (opened.format or "").lower()
                if opened.info.get("progressive"):
                    encoding += "-progressive"
                assert row["encoding"] == encoding, image.key

    def test_images_decode_as_pillow_decodes_the_source(self, made: Made) -> None:
        dataset = ImageDataset(made.path)
        for i in range(0, len(dataset), 17):
            image, label = dataset[i]
            with Image.open(made.images[i].path) as original:
                assert image.tobytes() == original.convert("RGB").tobytes()
            assert (image.mode, label) == ("RGB", made.images[i].label)

    def test_verifies_clean(self, made: Made) -> None:
        assert verify(made.path, fast=True).problems == []
        verification = verify(made.path, workers=1)
        assert verification.problems == []
        assert verification.samples == len(made.images)

    def test_more_workers_give_the_same_files(self, made: Made, tmp_path: Path) -> None:
        pack_tree(made.tree, tmp_path / "again", self.container, workers=2)
        assert digests(tmp_path / "again") == digests(made.path)
        manifest = load_manifest(made.path)
        assert manifest["container"] == self.container
        assert manifest["samples"] == len(made.images)
        assert manifest["blob_bytes"] == sum(i.path.stat().st_size for i in made.images)
        for entry in [*manifest["files"], manifest["index"]]:
            assert entry["size"] == (made.path / entry["name"]).stat().st_size
        named = {entry["name"] for entry in manifest["files"]}
        assert set(digests(made.path)) == named | self.beside | {"_index.rows", "_dataset.json"}
        assert not (made.path / ".packing").exists()


#: Blobs in groups: what is committed to an LMDB together, or just one file's samples. From
#: one byte to several LMDB pages, and around the sizes where LMDB and tar lay out otherwise.
_EDGES = st.sampled_from([1, 2, 511, 512, 513, 2030, 2040, 4080, 4096, 4097, 8176, 70_000])
_SIZES = st.lists(
    st.lists(st.one_of(_EDGES, st.integers(1, 5_000)), min_size=1, max_size=12),
    min_size=1,
    max_size=4,
)


def blobs_of(sizes: Sequence[int]) -> list[bytes]:
    """Blobs of some sizes, no two with the same beginning."""
    return [(hashlib.sha256(b"%d" % i).digest() * (n // 32 + 1))[:n] for i, n in enumerate(sizes)]


def images(container: str, path: Path) -> list[tuple[int, int]]:
    return [sample["image"] for sample in formats.extents(container, path)]


class FileContainerConformance(ContainerConformance):
    def write(self, path: Path, groups: Sequence[Sequence[bytes]]) -> list[int] | None:
        """Writes blobs by the container's writer; returns the offsets, None where unknown."""
        with closing(formats.open_writer(self.container, path, ["class"])) as writer:
            for number, blob in enumerate(blob for group in groups for blob in group):
                writer.add(NewSample(row_of(number, blob), blob))
            return list(writer.finish()["image"])

    def test_the_container_agrees_with_the_index(self, made: Made) -> None:
        manifest = load_manifest(made.path)
        rows = index_rows(made.path)
        assert [row["file"] for row in rows] == sorted(row["file"] for row in rows)
        for number, entry in enumerate(manifest["files"]):
            expected = [(r["offset"], r["length"]) for r in rows if r["file"] == number]
            assert images(self.container, made.path / entry["name"]) == expected

    # One function serves several classes, which hypothesis would otherwise report.
    @settings(max_examples=60, suppress_health_check=[HealthCheck.differing_executors])
    @given(sizes=_SIZES)
    def test_extents_always_find_the_blobs(self, sizes: list[list[int]]) -> None:
        blobs = blobs_of([size for group in sizes for size in group])
        remaining = iter(blobs)
        groups = [[next(remaining) for _ in group] for group in sizes]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "file"
            offsets = self.write(path, groups)
            found = images(self.container, path)
            data = path.read_bytes()
        assert [data[offset : offset + length] for offset, length in found] == blobs
        assert offsets is None or [offset for offset, _ in found] == offsets

    def test_a_file_cut_short_is_corrupt(self, made: Made, tmp_path: Path) -> None:
        manifest = load_manifest(made.path)
        data = (made.path / manifest["files"][0]["name"]).read_bytes()
        whole = images(self.container, made.path / manifest["files"][0]["name"])
        for keep in (0, 1, 1000, len(data) // 2, len(data) - 1):
            path = tmp_path / f"cut-{keep}"
            path.write_bytes(data[:keep])
            try:
                found = images(self.container, path)
            except CorruptionError:
                continue
            # What is cut off need not matter to the container; where a blob is missing, the
            # index tells.
            assert found != whole or keep >= max(offset + length for offset, length in whole)


def png(width: int = 3, height: int = 2, colour: tuple[int, int, int] = (9, 8, 7)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(file, "PNG")
    return file.getvalue()


def jpeg(width: int = 32, height: int = 24, colour: tuple[int, int, int] = (9, 8, 7)) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (width, height), colour).save(file, "JPEG")
    return file.getvalue()


def broken_jpeg() -> bytes:
    """A JPEG that packing accepts, which walks markers to the first scan; the second is damaged."""
    file = io.BytesIO()
    Image.new("RGB", (32, 24), "red").save(file, "JPEG", progressive=True)
    data = bytearray(file.getvalue())
    scan = data.index(b"\xff\xda", data.index(b"\xff\xda") + 2)
    data[scan + 5] = 99
    return bytes(data)
