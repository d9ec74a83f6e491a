"""Data that are not ImageNet: what the command, ImageDataset and doctor say of each kind."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from sources import convert, jpeg, require_said
from torchvision_stub import import_torchvision

from fastdata import ImageDataset
from fastdata.cli import cli
from fastdata.errors import DatasetError

IMAGE = jpeg(1)


def write(root: Path, *names: str, data: bytes = IMAGE) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def coco(root: Path) -> None:
    write(root, "train2017/0.jpg", "train2017/1.jpg", "val2017/2.jpg")
    write(root, "annotations/instances_train2017.json", data=b"{}")


def yolo(root: Path) -> None:
    write(root, "images/train/0.jpg", "images/val/1.jpg")
    write(root, "labels/train/0.txt", "labels/val/1.txt", data=b"0 .5 .5 1 1")


def voc(root: Path) -> None:
    write(root, "JPEGImages/0.jpg", "SegmentationClass/0.png")
    write(root, "Annotations/0.xml", data=b"<a/>")


def masks(root: Path) -> None:
    write(root, "images/0.jpg", "masks/0.png")


def captions(root: Path) -> None:
    write(root, "train/0.jpg")
    line = {"file_name": "0.jpg", "text": "a cat"}
    write(root, "train/metadata.jsonl", data=json.dumps(line).encode())


def flat_captions(root: Path) -> None:
    write(root, "0.jpg")
    write(root, "metadata.csv", data=b"file_name,text\n0.jpg,a cat\n")


def flat(root: Path) -> None:
    write(root, "0.jpg", "1.jpg")


def table(root: Path) -> None:
    write(root, "images/0.jpg")
    write(root, "train.csv", data=b"name,label\n0.jpg,3\n")


def save_to_disk(root: Path) -> None:
    write(root, "data-00000-of-00001.arrow", "state.json", "dataset_info.json", data=b"{}")


def arrow(root: Path) -> None:
    write(root, "x-train.arrow", "dataset_info.json", data=b"{}")


def mds(root: Path) -> None:
    write(root, "index.json", "shard.00000.mds", data=b"{}")


def lmdb(root: Path) -> None:
    write(root, "data.mdb", "lock.mdb", data=b"")


def lsun(root: Path) -> None:
    write(root, "church_lmdb/data.mdb", "bedroom_lmdb/data.mdb", data=b"")


#: How each is made, and what is said of it.
KINDS: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "coco": (coco, "images with annotations in annotations/", "fastdata convert coco --root"),
    "yolo": (yolo, "in labels/", "fastdata convert yolo --root"),
    "voc": (voc, "images with annotations in Annotations/", "fastdata convert voc --root"),
    "masks": (masks, "in masks/", "fastdata convert masks --root"),
    "captions": (captions, "columns are in train/metadata.jsonl", "fastdata convert table --root"),
    "flat captions": (flat_captions, "in metadata.csv", "fastdata convert table --root"),
    "flat": (flat, "a flat folder of images, with no class folders", "<root>/<class>/"),
    "table": (table, "a table, train.csv", "fastdata convert table --root"),
    "save_to_disk": (save_to_disk, "save_to_disk", "fastdata convert arrow"),
    "arrow": (arrow, "Arrow files", "fastdata convert arrow"),
    "mds": (mds, "MDS shards", "fastdata convert mds"),
    "lmdb": (lmdb, "an LMDB", "fastdata convert lmdb"),
    "lsun": (lsun, "an LMDB", "fastdata convert lmdb"),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, str, str]:
    make, what, hint = KINDS[request.param]
    root = tmp_path / "data"
    root.mkdir()
    make(root)
    return root, what, hint


def test_convert_says_what_lies_there(kind: tuple[Path, str, str], tmp_path: Path) -> None:
    root, what, hint = kind
    out = tmp_path / "out"
    result = convert("imagefolder", "--root", root, "--to", "lmdb", "--out", out)
    require_said(result, 1, str(root), what, hint)
    assert not out.exists()


@pytest.mark.parametrize(
    ("source", "missing"), [("parquet", "holds no *.parquet"), ("webdataset", "holds no *.tar")]
)
def test_another_source_says_what_lies_there(
    kind: tuple[Path, str, str], tmp_path: Path, source: str, missing: str
) -> None:
    root, what, hint = kind
    result = convert(source, "--root", root, "--to", "lmdb", "--out", tmp_path / "out")
    require_said(result, 1, f"{root}: {missing}, but", what, hint)


@pytest.mark.parametrize("source", ["imagefolder", "parquet"])
def test_a_table_in_the_place_of_a_folder(tmp_path: Path, source: str) -> None:
    path = tmp_path / "train.csv"
    path.write_text("path,label\n0.jpg,3\n")
    result = convert(source, "--root", path, "--to", "lmdb", "--out", tmp_path / "out")
    hint = f"fastdata convert table --root {path}"
    require_said(result, 1, f"{path}: ", "a table", hint)
    require_said(convert(path), 2, f"'{path}' is a table\n", hint)


@pytest.mark.parametrize("source", ["parquet", "webdataset"])
def test_class_folders_for_another_source(tmp_path: Path, source: str) -> None:
    write(tmp_path / "data", "cat/0.jpg", "dog/1.jpg")
    result = convert(source, "--root", tmp_path / "data", "--to", "lmdb")
    require_said(result, 1, f"fastdata convert imagefolder --root {tmp_path}/data")


def test_a_path_in_the_place_of_a_source_is_answered(kind: tuple[Path, str, str]) -> None:
    root, what, hint = kind
    require_said(convert(root, "--to", "lmdb"), 2, str(root), what, hint)


def test_imagedataset_says_what_lies_there(kind: tuple[Path, str, str]) -> None:
    root, what, hint = kind
    with pytest.raises(DatasetError) as caught:
        ImageDataset(root)
    assert what in str(caught.value) and hint in str(caught.value)


def test_doctor_does_not_advise_to_pack_it(kind: tuple[Path, str, str]) -> None:
    import_torchvision()
    root, _, hint = kind
    result = CliRunner().invoke(cli, ["doctor", str(root), "--seconds", "0.2"])
    assert hint in " ".join(result.stderr.split())
    assert "convert imagefolder" not in result.output


def test_classes_that_are_named_like_no_layout_are_packed(tmp_path: Path) -> None:
    write(tmp_path / "data", "labels/0.jpg", "cats/0.jpg")
    result = convert(
        "imagefolder", "--root", tmp_path / "data", "--to", "lmdb", "--out", tmp_path / "out"
    )
    assert result.exit_code == 0, result.output
    assert ImageDataset(tmp_path / "out").classes == ["cats", "labels"]


def test_splits_of_other_classes_are_not_imagenet(tmp_path: Path) -> None:
    root = tmp_path / "flowers"
    write(root, "train/rose/0.jpg", "val/rose/1.jpg")
    written = f"fastdata convert imagefolder --root {root}/train"
    require_said(convert(root), 2, "Pack each by itself", written)
    with pytest.raises(DatasetError, match="a folder of splits") as caught:
        ImageDataset(root)
    assert written in str(caught.value)


def test_a_folder_in_the_place_of_a_source_keeps_the_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path, "pets/cat/0.jpg")
    result = convert("pets", "--root", "pets", "--to", "lmdb")
    require_said(result, 2, "fastdata convert imagefolder --root pets --to lmdb")
    assert "--root pets --root" not in result.stderr


def test_metadata_beside_class_folders_is_named(tmp_path: Path) -> None:
    root = tmp_path / "data"
    write(root, "cat/0.jpg", "dog/1.jpg")
    write(root, "metadata.jsonl", data=b"{}")
    result = convert("imagefolder", "--root", root, "--to", "lmdb", "--out", tmp_path / "out")
    assert result.exit_code == 0
    hint = f"fastdata convert table --root {root}/metadata.jsonl"
    assert "metadata.jsonl left out" in result.stderr and hint in result.stderr


def test_tars_of_images_and_captions(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "0.tar", "w") as tar:
        for name, data in (("a.jpg", IMAGE), ("a.txt", b"a cat")):
            about = tarfile.TarInfo(name)
            about.size = len(data)
            tar.addfile(about, io.BytesIO(data))
    result = convert("webdataset", "--root", tmp_path, "--to", "lmdb", "--out", tmp_path / "out")
    require_said(result, 0)
    dataset = ImageDataset(tmp_path / "out")
    assert dataset.classes == [] and dataset.source.column("txt").to_pylist() == ["a cat"]


@pytest.mark.parametrize("name", ["nothing", "image.jpg"])
def test_nothing_is_made_of_what_is_nothing(tmp_path: Path, name: str) -> None:
    path: Any = tmp_path / name
    if name != "nothing":
        path.write_bytes(IMAGE)
    with pytest.raises(DatasetError):
        ImageDataset(path)
