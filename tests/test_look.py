"""Data that are not ImageNet: what the command, ImageDataset and doctor say of each kind."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest
from sources import convert, jpeg, require_said, run, tar_bytes
from torchvision_stub import import_torchvision

from fastdata import ImageDataset
from fastdata.errors import DatasetError, SourceError

IMAGE = jpeg(1)


def write(root: Path, *names: str, data: bytes = IMAGE) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


#: Files of each kind, of images where they end with .jpg; what is said of it, and the way out.
KINDS: dict[str, tuple[tuple[str, ...], str, str]] = {
    "coco": (("train2017/0.jpg", "annotations/instances_train2017.json"),
             "images with annotations in annotations/", "fastdata convert coco --root"),
    "yolo": (("images/train/0.jpg", "labels/train/0.txt"),
             "in labels/", "fastdata convert yolo --root"),
    "voc": (("JPEGImages/0.jpg", "SegmentationClass/0.png", "Annotations/0.xml"),
            "images with annotations in Annotations/", "fastdata convert voc --root"),
    "masks": (("images/0.jpg", "masks/0.png"), "in masks/", "fastdata convert masks --root"),
    "captions": (("train/0.jpg", "train/metadata.jsonl"),
                 "columns are in train/metadata.jsonl", "fastdata convert table --root"),
    "flat captions": (("0.jpg", "metadata.csv"), "in metadata.csv", "convert table --root"),
    "flat": (("0.jpg", "1.jpg"), "a flat folder of images, with no class folders",
             "<root>/<class>/"),
    "table": (("images/0.jpg", "train.csv"), "a table, train.csv", "fastdata convert table --root"),
    "save_to_disk": (("data-00000-of-00001.arrow", "state.json", "dataset_info.json"),
                     "save_to_disk", "fastdata convert arrow"),
    "lmdb": (("data.mdb", "lock.mdb"), "an LMDB", "fastdata convert lmdb"),
    "lsun": (("church_lmdb/data.mdb", "bedroom_lmdb/data.mdb"), "an LMDB",
             "fastdata convert lmdb"),
    "arrow": (("x-train.arrow", "dataset_info.json"), "Arrow files", "fastdata convert arrow"),
}  # fmt: skip
#: Kinds that are indexed on first use; Arrow's files here are damaged.
INDEXED = ("flat", "save_to_disk", "arrow")
#: Content that is looked at.
CONTENT = {
    "metadata.jsonl": b'{"file_name": "0.jpg", "text": "a cat"}',
    "metadata.csv": b"file_name,text\n0.jpg,a cat\n",
    "train.csv": b"name,label\n0.jpg,3\n",
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_command_says_what_lies_there(kind: str, tmp_path: Path) -> None:
    import_torchvision()
    names, what, hint = KINDS[kind]
    root, out = tmp_path / "data", tmp_path / "out"
    for name in names:
        data = IMAGE if name.endswith((".jpg", ".png")) else CONTENT.get(Path(name).name, b"{}")
        write(root, name, data=data)
    given = ("--root", root, "--to", "lmdb", "--out", out)
    require_said(convert("imagefolder", *given), 1, str(root), what, hint)
    for source, suffix in (("parquet", "*.parquet"), ("webdataset", "*.tar")):
        require_said(convert(source, *given), 1, f"{root}: holds no {suffix}, but", what, hint)
    require_said(convert(root, "--to", "lmdb"), 2, str(root), what, hint)
    if kind in INDEXED:
        with pytest.warns(UserWarning, match="indexed now"), suppress(SourceError):
            assert len(ImageDataset(root)) == 2
        return
    with pytest.raises(DatasetError) as caught:
        ImageDataset(root)
    assert what in str(caught.value) and hint in str(caught.value)
    result = run("doctor", str(root), "--seconds", "0.2")
    assert hint in " ".join(result.stderr.split())
    assert "convert imagefolder" not in result.output
    assert not out.exists()


@pytest.mark.parametrize("name", ["train.py", "a.zip", "one.jpg", "x.csv", "nothing"])
def test_files_that_are_no_datasets(name: str, tmp_path: Path) -> None:
    write(tmp_path, name, data=IMAGE)
    with pytest.raises(DatasetError) as caught:
        ImageDataset(tmp_path / name)
    assert "folder" not in caught.value.what and caught.value.hint
    for source, meant in {
        "csv": "table",
        "tars": "webdataset",
        "imagfolder": "imagefolder",
    }.items():
        require_said(convert(source, "--root", tmp_path), 2, f"fastdata convert {meant}")


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


def test_classes_that_are_named_like_no_layout_are_packed(tmp_path: Path) -> None:
    write(tmp_path / "data", "labels/0.jpg", "cats/0.jpg")
    require_said(
        convert(
            "imagefolder", "--root", tmp_path / "data", "--to", "lmdb", "--out", tmp_path / "out"
        ),
        0,
    )
    assert ImageDataset(tmp_path / "out").classes == ["cats", "labels"]


def test_splits_of_other_classes_are_not_imagenet(tmp_path: Path) -> None:
    root = tmp_path / "flowers"
    write(root, "train/rose/0.jpg", "val/rose/1.jpg")
    written = f"fastdata convert imagefolder --root {root}/train"
    require_said(convert(root), 2, "Pack each by itself", written)
    with pytest.raises(DatasetError, match="a folder of splits") as caught:
        ImageDataset(root)
    assert written in str(caught.value)


def test_a_path_for_a_source_keeps_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    (tmp_path / "0.tar").write_bytes(tar_bytes([("a.jpg", IMAGE), ("a.txt", b"a cat")]))
    require_said(
        convert("webdataset", "--root", tmp_path, "--to", "lmdb", "--out", tmp_path / "out"), 0
    )
    dataset = ImageDataset(tmp_path / "out")
    assert dataset.classes == [] and dataset.source.column("txt").to_pylist() == ["a cat"]
