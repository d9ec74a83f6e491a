"""Pascal VOC's annotations: splits, classes, masks, and damage of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest
from annotated import (
    CORNERS,
    bad_of,
    packed_fields,
    packed_without_bad,
    voc_xml,
    write_images,
    write_mask,
    write_voc,
)
from fastdata.converters import VocImages
from PIL import Image
from sources import convert, picture, require_said, rows_of

from fastdata import ImageDataset
from fastdata.errors import SourceError

BOX = dict(zip(CORNERS, ("4", "1", "5", "2"), strict=True))


@pytest.fixture
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("out") / "out"


def write(root: Path, text: str | bytes) -> Path:
    write_images(root / "JPEGImages", ["a.jpg", "b.jpg"])
    (root / "Annotations").mkdir(exist_ok=True)
    data = text.encode() if isinstance(text, str) else text
    (root / "Annotations/a.xml").write_bytes(data)
    (root / "Annotations/b.xml").write_text(voc_xml({"name": "cat", **BOX}), "utf-8")
    return root


@pytest.mark.parametrize("split", ["Segmentation/train", "Segmentation/lone"])
def test_lists_for_segmentation_need_masks(tmp_path: Path, split: str) -> None:
    root = write_voc(tmp_path)
    (root / "ImageSets/Segmentation/lone.txt").write_text("2007_000032\n2008_000001\n", "utf-8")
    name = "2007_000032" if split.endswith("lone") else "2007_000027"
    (root / f"SegmentationObject/{name}.png").unlink()
    source = VocImages(root, split)
    bad = bad_of(source)
    assert f"SegmentationObject/{name}.png" not in rows_of(source)
    assert f"its segmentation_object SegmentationObject/{name}.png cannot be opened" in bad[name]
    assert len(bad) == (2 if split.endswith("lone") else 1)


def test_lists(tmp_path: Path, out: Path) -> None:
    root = write_voc(tmp_path)
    (root / "ImageSets/Main/cat_train.txt").write_text("2008_000001  1\n2007_000027 -1\n", "utf-8")
    assert list(rows_of(VocImages(root, "cat_train"))) == ["2008_000001", "2007_000027"]
    with pytest.raises(SourceError, match=r"has no list ImageSets/Main/test\.txt"):
        VocImages(root, "test")
    result = convert("voc", "--root", root, "--split", "test", "--out", out)
    require_said(result, 1, "has no list ImageSets/Main/test.txt", "It has ", "train")
    (root / "ImageSets/Main/test.txt").write_text("2008_000001\n\nnone\n", "utf-8")
    [(key, problem)] = bad_of(VocImages(root, "test")).items()
    assert (key, problem) == ("none", "Annotations/none.xml does not exist")
    (root / "ImageSets/Main/test.txt").write_text("2008_000001\n 2008_000001\n", "utf-8")
    with pytest.raises(SourceError, match="lists 2008_000001 twice"):
        VocImages(root, "test")
    (root / "ImageSets/Main/test.txt").write_bytes(b"\xff\xfe\n")
    with pytest.raises(SourceError, match=r"test\.txt"):
        VocImages(root, "test")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("street 1\nroad 0\n", ["street 1", "road 0"]),
        ("street 1\n", ["street 1"]),
        ("street 1  1\nstreet -1\nroad 0 0\n", ["street 1", "street", "road 0"]),
        ("\ufeffstreet\r\n street 1\t\r\n\r\n", ["street", "street 1"]),
        (" lead \nlead\n", [" lead", "lead"]),
        ("a/x\nb/x\nline\u2028end\n", ["a/x", "b/x", "line\u2028end"]),
    ],
)
def test_names_in_lists(tmp_path: Path, text: str, names: list[str]) -> None:
    every = ["street", "street 1", "road 0", " lead", "lead", "a/x", "b/x", "line\u2028end"]
    write_images(tmp_path / "JPEGImages", [f"{name}.jpg" for name in every])
    (tmp_path / "ImageSets/Main").mkdir(parents=True)
    (tmp_path / "ImageSets/Main/one.txt").write_bytes(text.encode())
    found = {record.key: record.path for record in VocImages(tmp_path, "one").records()}
    assert found == {name: str(tmp_path / f"JPEGImages/{name}.jpg") for name in names}


def test_files_of_one_name(tmp_path: Path) -> None:
    """The image of a list is that of torchvision, NAME.jpg, and the mask NAME.png."""
    root = write(tmp_path, voc_xml())
    for name in ("JPEGImages/a.png", "JPEGImages/c.png", "JPEGImages/c.gif"):
        write_mask(root / name)
    for name in ("a.png", "a.tif", "b.gif", "b.tif"):
        write_mask(root / "SegmentationClass" / name)
    (root / "Annotations/c.xml").write_text(voc_xml(), "utf-8")
    (root / "ImageSets/Main").mkdir(parents=True)
    (root / "ImageSets/Main/one.txt").write_text("a\nb\nc\n", "utf-8")
    first, *_ = VocImages(root, "one").records()
    assert first.path == str(root / "JPEGImages/a.jpg")
    assert first.blobs[0].path == str(root / "SegmentationClass/a.png")
    found = bad_of(VocImages(root, "one"))
    assert sorted(found) == ["b", "c"]
    assert "SegmentationClass/b.gif and SegmentationClass/b.tif" in found["b"]
    assert "JPEGImages/c.gif and JPEGImages/c.png" in found["c"]
    # Without a list, each image is one to pack.
    assert "JPEGImages/a.jpg and JPEGImages/a.png" in bad_of(VocImages(root))["a"]


def test_images_in_folders(tmp_path: Path) -> None:
    write_images(tmp_path / "JPEGImages", ["a/x.jpg", "b/x.jpg"])
    for name, label in (("a", "cat"), ("b", "dog")):
        (tmp_path / "Annotations" / name).mkdir(parents=True)
        text = voc_xml({"name": label, **BOX})
        (tmp_path / f"Annotations/{name}/x.xml").write_text(text, "utf-8")
    source = VocImages(tmp_path)
    assert {key: row["names"] for key, row in rows_of(source).items()} == {
        "a/x": ["cat"],
        "b/x": ["dog"],
    }
    assert [record.path[-7:] for record in source.records()] == ["a/x.jpg", "b/x.jpg"]


def test_splits_have_one_numbering(tmp_path: Path, out: Path) -> None:
    root = write(tmp_path, voc_xml({"name": "helmet", **BOX}))
    (root / "ImageSets/Main").mkdir(parents=True)
    for split, name in (("val", "a"), ("train", "b")):
        (root / f"ImageSets/Main/{split}.txt").write_text(f"{name}\n", "utf-8")
    train, val = (VocImages(root, split) for split in ("train", "val"))
    assert train.origin["classes"] == val.origin["classes"] == ["cat", "helmet"]
    assert rows_of(train)["b"]["labels"] == [0] and rows_of(val)["a"]["labels"] == [1]
    # A dataset beside it with another numbering.
    given = ("voc", "--root", root, "--split")
    require_said(convert(*given, "val", "--classes", "helmet,cat", "--out", out / "val"), 0)
    result = convert(*given, "train", "--out", out / "train")
    require_said(result, 2, "the label 0 would be 'cat'", out / "val", "--classes")
    require_said(convert(*given, "train", "--classes", "helmet,cat", "--out", out / "train"), 0)
    require_said(convert(*given, "train", "--classes", "a,a", "--out", out / "t"), 2, "'a'")


def test_annotations_masks_and_images_alone(tmp_path: Path) -> None:
    root = write(tmp_path, voc_xml())
    (root / "Annotations/b.xml").unlink()
    (root / "Annotations/c.xml").write_text(voc_xml(), "utf-8")
    write_mask(root / "SegmentationClass/d.png")
    found = bad_of(VocImages(root))
    assert sorted(found) == ["b", "c", "d"]
    assert "Annotations/b.xml does not exist" in found["b"]
    assert "cannot be opened" in found["c"]


def test_names_of_other_classes(tmp_path: Path, out: Path) -> None:
    root = write(tmp_path, voc_xml({"name": "zèbre", **BOX}, {"name": "<b>&", **BOX}))
    (root / "ImageSets/Main").mkdir(parents=True)
    (root / "ImageSets/Main/one.txt").write_text("a\n", "utf-8")
    source = VocImages(root, "one")
    # Classes are those of all images: else labels of two splits would differ.
    assert source.origin["classes"] == ["<b>&", "cat", "zèbre"]
    assert rows_of(source)["a"]["labels"] == [2, 0]
    found = bad_of(VocImages(root, classes=["cat"]))
    assert found == {"a": "Annotations/a.xml: 'zèbre' is not among the classes"}
    given = ("--root", root, "--classes", "dog,cat,zèbre,<b>&", "--fields", "labels")
    # A misspelt class has one object.
    result = convert("voc", *given, "--out", out)
    assert result.exit_code == 0 and "cat 1, zèbre 1, <b>& 1" in result.stdout
    assert dict(packed_fields(out))["labels"] == [[2, 3], [1]]
    assert ImageDataset(out).classes == ["dog", "cat", "zèbre", "<b>&"]


def test_shares_and_words_for_flags(tmp_path: Path) -> None:
    flags = {"truncated": "0.06", "difficult": "Unspecified", "occluded": "0.0"}
    row = rows_of(VocImages(write(tmp_path, changed(**flags))))["a"]
    assert [row[name][1] for name in flags] == [True, False, False]


BOMB = '<!DOCTYPE a [<!ENTITY a0 "ha">' + "".join(
    f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10)
)
BOMB += "]><annotation>&a9;</annotation>"  # three gigabytes of text


OBJECT = voc_xml({"name": "cat", **BOX})
OBJECT = OBJECT[OBJECT.index("<object>") : OBJECT.index("</annotation>")]


def changed(**more: str) -> str:
    return voc_xml({"name": "cat", **BOX}, {"name": "dog", **BOX, **more})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no element found"),
        (voc_xml()[:-5], "unclosed token"),
        ("<annotations/>", "its root is <annotations>, not <annotation>"),
        (b"<annotation>\xff</annotation>", "not well-formed"),
        (b"\x00\x01", "not well-formed"),
        (b'<?xml version="1.0" encoding="none"?><annotation/>', "unknown encoding"),
        (BOMB, "amplification"),
        (b'<!DOCTYPE a SYSTEM "a.dtd"><annotation>&lost;</annotation>', "undefined entity"),
        (b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>', "undefined entity"),
        (b"<annotation>&x;</annotation>", "undefined entity"),
        (changed(xmin="nan"), "object 1 (dog): its xmin is 'nan', not a finite number"),
        (changed(xmin="inf"), "its xmin is 'inf'"),
        (changed(ymax="1e39"), "its ymax is '1e39'"),
        (changed(ymax="1_000"), "its ymax is '1_000'"),
        (changed(ymax="٣"), "its ymax is '٣'"),
        (changed(ymin="left"), "its ymin is 'left'"),
        (changed(ymin=""), "its ymin is ''"),
        (changed(difficult="perhaps"), "its difficult is 'perhaps', neither 0 nor 1, nor a share"),
        (changed(truncated="2"), "its truncated is '2'"),
        (changed(name=" "), "object 1 has no name"),
        ("<annotation><object><name>x</name></object></annotation>", "(x) has no bndbox"),
        (voc_xml({"name": "x", "xmin": "1"}), "its ymin is None"),
        ("<annotation>" + "<a>" * 200_000, "no element found"),
        (f"<annotation><objects>{OBJECT}</objects></annotation>", "objects that are not <object>"),
        (f"<annotation>{OBJECT.replace('object', 'Object')}</annotation>", "that are not <object>"),
        (f"<annotation><object>{OBJECT}<name>x</name></object></annotation>", "not <object>"),
        (f"<annotation>{OBJECT.replace('<name>', '<name/><name>')}</annotation>", "has 2 <name>"),
        (f"<annotation>{OBJECT.replace('<xmin>', '<xmin/><xmin>')}</annotation>", "has 2 <xmin>"),
    ],
)
def test_damaged_annotations(tmp_path: Path, text: str | bytes, reason: str) -> None:
    source = VocImages(write(tmp_path, text), classes=["cat", "dog"])
    [(key, problem)] = bad_of(source).items()
    assert key == "a" and reason in problem and "Annotations/a.xml" in problem


@pytest.mark.parametrize(
    "size", [(48, 36), (36, 48), (96, 72), (0, 0), ("4.8", 36), ("nan", 36), (10**12, 1), (-48, 36)]
)
@pytest.mark.parametrize("orientation", [1, 6])
def test_the_size_that_annotations_are_for(
    tmp_path: Path, out: Path, size: tuple[object, object], orientation: int
) -> None:
    text = voc_xml({"name": "cat", **BOX})
    width, height = (f"{side}.0" if isinstance(side, int) else side for side in size)
    sides = f"<width>{width}</width><height>{height}</height>"
    root = write(tmp_path, text.replace("<width>48</width>", sides))
    exif = Image.Exif()
    exif[274] = orientation
    picture(3, (48, 36)).save(root / "JPEGImages/a.jpg", exif=exif)
    packed = packed_without_bad(VocImages(root), out)
    fits = size in [(48, 36), (0, 0)] or (size == (36, 48) and orientation == 6)
    assert packed.manifest.samples == 1 + fits
    turned = size == (36, 48) if fits and orientation == 6 and size != (0, 0) else None
    assert packed.manifest.source.get("exif_transpose") == turned


def test_a_file_that_is_no_file(tmp_path: Path) -> None:
    root = write(tmp_path, "")
    (root / "Annotations/a.xml").unlink()
    (root / "Annotations/a.xml").mkdir()
    assert "Annotations/a.xml does not exist" in bad_of(VocImages(root))["a"]


def test_no_folder_of_annotations(tmp_path: Path, out: Path) -> None:
    write_images(tmp_path / "JPEGImages", ["a.jpg"])
    mask = write_mask(tmp_path / "SegmentationClass/a.png")
    packed_without_bad(VocImages(tmp_path), out)
    assert dict(packed_fields(out))["segmentation_class"] == [mask]
    with pytest.raises(SourceError, match="has no images in JPEGImages/"):
        VocImages(tmp_path / "SegmentationClass")
