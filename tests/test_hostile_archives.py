"""Archives and containers made to harm: an error that names the file, soon, in little memory."""

from __future__ import annotations

import gzip
import io
import json
import random
import shutil
import struct
import tarfile
import warnings
from pathlib import Path
from typing import Any

import hostile
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from containers import edit_index, edit_manifest, load_manifest, pack_tree, set_column
from fastdata.converters import ImageNet, ParquetImages, WebDataset
from hostile import base256, padded, pax_record, tar_extra, tar_header
from sources import convert, jpeg, make_devkit, make_tree, require_said, tar_bytes

from fastdata import DataLoader, ImageDataset, verify
from fastdata.errors import CorruptionError, SourceError
from fastdata.storage.formats.tars import members
from fastdata.transforms import RandomResizedCrop

pytestmark = pytest.mark.usefixtures("own_folder")

END = bytes(1024)
ONE = tar_header(b"1.jpg", len(jpeg())) + padded(jpeg())
CLS = tar_header(b"1.cls", 1) + padded(b"0")
SPARSE_MAP = pax_record(b"GNU.sparse.major", b"1") + pax_record(b"GNU.sparse.minor", b"0")

TARS = {
    "size below zero": (tar_header(b"1.jpg", base256(-512)) + END, "1.jpg"),
    "minus sign": (tar_header(b"1.jpg", b"-0000001000\0") + END, "1.jpg has no size"),
    "underscore": (tar_header(b"1.jpg", b"1_0") + END, "1.jpg has no size"),
    "size of 2^62": (tar_header(b"1.jpg", base256(1 << 62)) + END, "1.jpg goes beyond the end"),
    "size of 2^87": (tar_header(b"1.jpg", base256(1 << 87)) + END, "1.jpg goes beyond the end"),
    "PAX size below zero": (
        tar_extra(b"x", pax_record(b"size", b"-512")) + ONE + END, "the size of 1.jpg is -512"),
    "PAX size of 5,000 digits": (
        tar_extra(b"x", pax_record(b"size", b"9" * 5000)) + ONE + END, "the size of 1.jpg is 999"),
    "PAX size that is none": (
        tar_extra(b"x", pax_record(b"size", b"1e3")) + ONE + END, "the size of 1.jpg is 1e3"),
    "PAX header of 2^40": (tar_extra(b"x", b"", base256(1 << 40)) + ONE + END, "1099511627776"),
    "long name of 2^62": (tar_extra(b"L", b"", base256(1 << 62)) + ONE + END, "46116860184273"),
    "long name below zero": (tar_extra(b"L", b"", base256(-512)) + ONE + END, "no size"),
    "chain of long names": (tar_extra(b"L", b"a.jpg\0") * 3000 + ONE + END, "two headers"),
    "chain of PAX headers": (
        tar_extra(b"x", pax_record(b"path", b"a.jpg")) * 3000 + ONE + END, "two headers"),
    "two names": (
        tar_extra(b"L", b"a.jpg\0") + tar_extra(b"x", pax_record(b"path", b"b.jpg")) + ONE + END,
        "two names"),
    "one size for all": (tar_extra(b"g", pax_record(b"size", b"0")) + ONE + END, "all members"),
    "headers of nothing": (tar_extra(b"L", b"a.jpg\0") + END, "before its end mark"),
    "PAX record of length 0": (tar_extra(b"x", b"0 a=b\n") + ONE + END, "PAX"),
    "PAX record of length -5": (tar_extra(b"x", b"-5 a=b\n") + ONE + END, "PAX"),
    "PAX record that is cut": (tar_extra(b"x", b"99 path=b\n") + ONE + END, "PAX"),
    "name of 100 kB": (
        tar_extra(b"L", b"x" * 100_000 + b".jpg\0") + ONE + END, "100,004 characters"),
    "old sparse member": (tar_header(b"1.jpg", 0, b"S") + END, "1.jpg is a sparse file"),
    "PAX sparse member": (tar_extra(b"x", SPARSE_MAP) + ONE + END, "1.jpg is a sparse file"),
    "link": (tar_header(b"1.jpg", 0, b"2") + END, "1.jpg is a link"),
    "no name": (tar_header(b"", 0) + END, "outside the folder"),
    "no end": (ONE + CLS, "before its end mark"),
}  # fmt: skip


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("packed")
    tree = make_tree(root / "tree", ["a/1.jpg", "a/2.jpg", "b/1.jpg"])
    for container in ("lmdb", "parquet", "shards", "folder"):
        pack_tree(tree, root / container, container)
    return root


@pytest.fixture
def copied(packed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed / "lmdb", tmp_path / "copied"))


def damaged(packed: Path, out: Path, container: str, data: bytes) -> str:
    """Verify a dataset whose file holds ``data``, with its checksum."""
    shutil.copytree(packed / container, out, dirs_exist_ok=True)
    name = load_manifest(out)["files"][0]["name"]
    (out / name).write_bytes(data)
    hostile.refit(out, name)
    return "\n".join(f"{one.where}: {one.what}" for one in verify(out, workers=1).problems)


@pytest.mark.parametrize("name", TARS)
def test_tars(packed: Path, tmp_path: Path, name: str) -> None:
    data, said = TARS[name]
    path = tmp_path / "x.tar"
    path.write_bytes(data)
    result = convert("webdataset", "--root", path, "--out", tmp_path / "out")
    require_said(result, 1, path, said)
    assert len(result.output) < 10_000
    # The index has its rows where they were.
    data = data.ljust(20_000, b"\xff")
    assert said in damaged(packed, tmp_path / "dataset", "shards", data)


def test_a_tar_in_a_tar(tmp_path: Path) -> None:
    """ImageNet's: the inner one ends where its member does, and no class is there twice."""
    inner = tar_header(b"1.JPEG", 2048) + END
    path = tmp_path / "ILSVRC2012_img_train.tar"
    path.write_bytes(tar_bytes([("n00000001.tar", inner), ("n00000002.tar", tar_bytes([]))]))
    with pytest.raises(SourceError, match=r"1.JPEG goes beyond the end"):
        list(ImageNet(tmp_path, "train").records())
    path.write_bytes(tar_bytes([(f"{folder}/n00000001.tar", tar_bytes([])) for folder in "ab"]))
    with pytest.raises(SourceError, match=r"a/n00000001.tar and b/n00000001.tar"):
        ImageNet(tmp_path, "train")


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_sound_tars_read_as_tarfile_reads_them(tmp_path: Path, form: int) -> None:
    rng = random.Random(form)
    names = ["a", "é/漢.jpg", "x" * 99, "y" * 100, "f/" * 70 + "z"]
    if form != tarfile.USTAR_FORMAT:
        names += ["w" * 101, "é" * 60 + "/" + "漢" * 80, "q/" * 1000 + "z"]
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w", format=form, pax_headers={"comment": "c"}) as tar:
        for name in names:
            folder = tarfile.TarInfo(f"folder of {len(name)}")
            folder.type = tarfile.DIRTYPE
            tar.addfile(folder)
            info = tarfile.TarInfo(name)
            info.size, info.mtime, info.uname = rng.choice((0, 1, 511, 512, 9000)), 0.5, "ü"
            tar.addfile(info, io.BytesIO(bytes(info.size)))
    with tarfile.open(path) as tar:
        expected = [(m.name, m.offset_data, m.size) for m in tar if m.isreg()]
    assert [tuple(member) for member in members(path)] == expected
    assert len(expected) == len(names)


# Samples of tar shards.


def names_to_shard(path: Path, names: list[str]) -> None:
    image = jpeg()
    path.write_bytes(
        tar_bytes([(name, b"0" if name.lower().endswith("cls") else image) for name in names])
    )


def webdatasets_groups(path: Path) -> list[dict[str, Any]] | None:
    """The samples that the webdataset package finds; None where it raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it imports is not ours to mend
        tariterators = pytest.importorskip("webdataset").tariterators
    try:
        with path.open("rb") as file:
            files = tariterators.tar_file_iterator(file)
            found = ({**one, "__url__": "x"} for one in files)
            return [dict(sample) for sample in tariterators.group_by_keys(found)]
    except ValueError:
        return None


POOL = ["1.jpg", "1.cls", "1.JPG", "1.Cls", "2.jpg", "2.cls", "README", "a/1.jpg", "a/1.cls",
        "a/README", "a.b/1.jpg", "a.b/1.cls", "__x__/1.jpg", "__x__", "a/__x__/1.jpg", ".jpg",
        ".cls", "a/.jpg", "a.b/.jpg", "1.txt", "1.seg.txt"]  # fmt: skip


def test_samples_are_those_of_webdataset(tmp_path: Path) -> None:
    rng = random.Random(0)
    path = tmp_path / "x.tar"
    outcomes = set()
    for number in range(90):
        names = rng.choices(POOL, k=rng.randrange(1, 7))
        if number % 3:  # samples that are complete, with something between them
            keys = rng.sample(["1", "2", "a/1", "a.b/1", "B", "b"], 3)
            names = [f"{key}.{end}" for key in keys for end in rng.sample(["jpg", "cls"], 2)]
            for _ in range(rng.randrange(3)):
                names.insert(rng.randrange(len(names) + 1), rng.choice(POOL))
        names_to_shard(path, names)
        samples = webdatasets_groups(path)
        labelled = {"cls" in sample for sample in samples or ()}
        sound = len(labelled) == 1 and all("jpg" in sample for sample in samples or ())
        outcomes.add(bool(sound))
        if not sound and samples != []:
            try:
                records = list(WebDataset(path).records())
            except SourceError as error:
                assert "x.tar" in error.what
            else:  # samples without an image are bad ones
                assert any(record.problem for record in records), names
        elif sound:
            assert samples is not None
            found = [record.key for record in WebDataset(path).records()]
            assert found == [sample["__key__"] for sample in samples], names
    assert outcomes == {True, False}


def test_two_samples_of_one_key_that_are_neighbours(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    names_to_shard(path, ["a/1.jpg", "a/1.cls", "a/1.JPG", "a/1.cls"])
    result = convert("webdataset", "--root", path, "--out", tmp_path / "out")
    require_said(result, 1, path, "a/1 has two members .jpg", "a/1.JPG", "one key for each sample")


ODD_LABELS = [
    (b'{"label": 1.0}', "no integer label"),
    (b'{"label": NaN}', "no integer label"),
    (b'{"label": ' + b"9" * 5000 + b"}", "1.json is not JSON"),
    (b'{"label": ' + b"9" * 4000 + b"}", "has the label 999"),
    (b'{"label": 0, "label": 1}', "'label' twice"),
    (b'{"label": 0, "a": ' + b"[" * 100_000, "nested"),
    (b'{"label": 0, "a": ' + b"[" * 500 + b"]" * 500 + b"}", "nested"),
    (b'{"label": 0, "key": [1]}', "the key in its 1.json is neither"),
    (b" " * (17 << 20) + b"{}", "17,825,794 bytes"),
]


def test_json_of_a_sample(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    for text, said in ODD_LABELS:
        path.write_bytes(tar_bytes([("1.jpg", jpeg()), ("1.json", text)]))
        result = convert("webdataset", "--root", path, "--out", tmp_path / "out")
        require_said(result, 1, path, said)
        assert len(result.output) < 10_000
    # Python writes NaN, and halves of emoji; in fields that are not used they do no harm.
    text = b'{"label": 0, "similarity": NaN, "caption": "\\ud83d", "key": null}'
    path.write_bytes(tar_bytes([("1.jpg", jpeg()), ("1.json", text)]))
    assert [record.key for record in WebDataset(tmp_path).records()] == ["1"]


def test_json_of_a_manifest(copied: Path) -> None:
    path = copied / "_dataset.json"
    manifest = json.loads(path.read_text())
    for text in hostile.ODD_JSON:
        if text != "true":
            path.write_text(json.dumps(manifest | {"other": "mark"}).replace('"mark"', text))
            with pytest.raises(CorruptionError, match="not a manifest"):
                ImageDataset(copied)


# Containers.


def test_lmdb_whose_branches_share_pages(packed: Path, tmp_path: Path) -> None:
    data = hostile.branches_that_share_pages(31)
    assert "more than once" in damaged(packed, tmp_path / "out", "lmdb", data)


def test_lmdb_with_impossible_fields(packed: Path, tmp_path: Path) -> None:
    for at, kind, value, said in (
        (128, "<Q", 1 << 52, "lies beyond its end"),
        (128, "<Q", (1 << 64) - 2, "lies beyond its end"),
        (40, "<I", 1 << 31, "page size"),
        (40, "<I", 1 << 17, "page size"),
    ):
        data = bytearray((packed / "lmdb/data.mdb").read_bytes())
        page = struct.unpack_from("<I", data, 40)[0]
        for meta in (0, page):
            struct.pack_into(kind, data, meta + at, value)
        assert said in damaged(packed, tmp_path / "out", "lmdb", bytes(data))


def footer_with(data: bytes, path: tuple[int, ...], value: Any) -> bytes:
    """A Parquet file whose footer has another value, at a path of field numbers."""
    length = int.from_bytes(data[-8:-4], "little")
    fields = found = hostile.Thrift(data[-8 - length : -8]).struct()
    for number in path[:-1]:
        entry = next(one for one in found if one[0] == number)
        # Of columns `image.bytes`, before the last one, `image.path`.
        found = entry[2] if entry[1] == 12 else entry[2][1][-2 if number == 1 else -1]
    next(one for one in found if one[0] == path[-1])[2] = value
    footer = hostile.write_thrift(12, fields)
    return data[: -8 - length] + footer + struct.pack("<I", len(footer)) + b"PAR1"


# FileMetaData: 2 schema, 3 rows, 4 row groups. RowGroup: 1 columns, 3 rows. ColumnChunk: 3 about.
# ColumnMetaData: 4 compression, 5 values, 7 size as stored, 9 place of its pages.
FOOTERS = {
    "a column's name is not UTF-8": ((2, 4), b"\xff\xfe"),
    "rows": ((4, 3), 1 << 62),
    "pages begin beyond the end": ((4, 1, 3, 9), 1 << 62),
    "pages begin before the file": ((4, 1, 3, 9), (1 << 20) - 1),
    "pages end beyond the end": ((4, 1, 3, 7), 1 << 62),
    "compressed": ((4, 1, 3, 4), 2),
    "all rows": ((3,), 1 << 62),
}


@pytest.mark.parametrize("name", FOOTERS)
def test_parquet_footers(packed: Path, tmp_path: Path, name: str) -> None:
    data = next((packed / "parquet").glob("*.parquet")).read_bytes()
    changed = footer_with(data, *FOOTERS[name])
    found = damaged(packed, tmp_path / "dataset", "parquet", changed)
    assert name == "all rows" or "part-000000.parquet" in found
    path = tmp_path / "x.parquet"
    path.write_bytes(changed)
    result = convert("parquet", "--root", path, "--out", tmp_path / "out")
    assert result.exit_code in (0, 1), result.output
    assert result.exit_code == 0 or f"{path}: " in result.output


def test_parquet_footer_of_which_pyarrow_ends_the_process(packed: Path, tmp_path: Path) -> None:
    """The images have statistics that their type cannot have."""
    data = next((packed / "parquet").glob("*.parquet")).read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    fields = hostile.Thrift(data[-8 - length : -8]).struct()
    schema = next(value for number, _, value in fields if number == 2)
    for field in schema[1][-2]:
        if field[0] == 1:
            field[2] = 0  # BOOLEAN
    footer = hostile.write_thrift(12, fields)
    changed = data[: -8 - length] + footer + struct.pack("<I", len(footer)) + b"PAR1"
    assert damaged(packed, tmp_path / "dataset", "parquet", changed) == ""
    path = tmp_path / "x.parquet"
    path.write_bytes(changed)
    result = convert("parquet", "--root", path, "--out", tmp_path / "out")
    require_said(result, 2, path, "has no column image.bytes of bytes")


def test_parquet_rows_that_take_no_bytes(tmp_path: Path) -> None:
    """Labels in folders' names: a row takes nothing, and a footer may claim any number of them."""
    path = tmp_path / "in/label=1/x.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"image": [jpeg()]}), path)
    data = path.read_bytes()
    for numbers in ((3,), (4, 3)):
        data = footer_with(data, numbers, 1 << 41)
    path.write_bytes(data)
    result = convert("parquet", "--root", tmp_path / "in", "--out", tmp_path / "out")
    require_said(result, 1, path, "rows in")


def test_parquet_files_of_other_columns(tmp_path: Path) -> None:
    columns = {"image": [jpeg()], "label": [0]}
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    others: list[dict[str, Any]] = [{"image": ["text"]}, {"label": ["text"]}, {"image": [[1]]}]
    for other in others:
        pq.write_table(pa.table(columns | other), tmp_path / "b.parquet")
        with pytest.raises(SourceError, match=r"b.parquet: its column .* unlike the other files"):
            list(ParquetImages(tmp_path).records())


def test_metadata_of_hugging_face(tmp_path: Path) -> None:
    for metadata in ("[" * 100_000, "9" * 5000, '{"info": {"features": 1}}'):
        table = pa.table({"image": [jpeg()], "label": [1]})
        table = table.replace_schema_metadata({"huggingface": metadata})
        pq.write_table(table, tmp_path / "x.parquet")
        assert ParquetImages(tmp_path / "x.parquet").classes == ["0", "1"]


def test_a_file_of_its_own_and_another(packed: Path, tmp_path: Path) -> None:
    """A row of a `folder` names no file of the manifest: which has none."""
    shutil.copytree(packed / "folder", tmp_path, dirs_exist_ok=True)
    edit_index(tmp_path, lambda table: set_column(table, "file", [-1, 0, -1]))
    dataset = ImageDataset(tmp_path, RandomResizedCrop(8))
    loader = DataLoader(dataset, 3)
    for read in (lambda: dataset[1], lambda: dataset.read([1]), lambda: list(loader)):
        with pytest.raises(
            CorruptionError, match=r"sample 1 \(a/2\).*both a path and (a file|file 0)"
        ):
            read()
    assert "file 0" in verify(tmp_path, workers=1).problems[0].what


def test_images_larger_than_any(packed: Path, tmp_path: Path) -> None:
    """Files may have holes: what is in them takes no disk, but would take memory."""
    root, size = tmp_path / "tree/a", (1 << 30) + 1
    root.mkdir(parents=True)
    with (root / "1.jpg").open("wb") as file:
        file.truncate(size)
    options = ("--to", "folder", "--out", tmp_path / "out")
    result = convert("imagefolder", "--root", root.parent, *options)
    require_said(result, 1, f"{size:,} bytes")
    shutil.copytree(packed / "folder", tmp_path, dirs_exist_ok=True)
    edit_manifest(tmp_path, lambda fields: fields.update(root="tree"))
    edit_index(
        tmp_path,
        lambda table: set_column(set_column(table, "length", [size] * 3), "path", ["a/1.jpg"] * 3),
    )
    with pytest.raises(CorruptionError, match=f"{size:,} bytes, too many"):
        ImageDataset(tmp_path)[0]


# The development kit.


def test_archives_that_inflate(tmp_path: Path) -> None:
    archives = tmp_path / "archives"
    archives.mkdir()
    image = ("ILSVRC2012_val_00000001.JPEG", jpeg())
    (archives / "ILSVRC2012_img_val.tar").write_bytes(tar_bytes([image]))
    make_devkit(archives, ["n00000001"], {1: "n00000001"})
    assert len(list(ImageNet(archives, "val").records())) == 1
    with gzip.open(archives / "ILSVRC2012_devkit_t12.tar.gz", "wb", 1) as file:
        for _ in range(65):
            file.write(bytes(1 << 20))
    with pytest.raises(SourceError, match=r"67,108,864 bytes, unpacked"):
        ImageNet(archives, "val")
