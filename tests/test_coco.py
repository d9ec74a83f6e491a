"""COCO's annotations: masks as pycocotools makes them, and damage of every kind."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from annotated import (
    CATEGORIES,
    COUNTS,
    NAMES,
    bad_of,
    object_of,
    open_coco,
    packed_fields,
    packed_without_bad,
    write_coco,
    write_images,
    write_json,
)
from fastdata.converters.coco import CocoImages
from fastdata.converters.options import PackOptions
from fastdata.converters.packed import PackedDataset
from fastdata.converters.packing import pack
from PIL import Image
from sources import convert, picture, plain, require_said
from tiers import first_of

from fastdata import ImageDataset
from fastdata.errors import BadSamplesError, SourceError
from fastdata.transforms import CenterCrop

IMAGES = [{"id": 1, "file_name": "a.jpg"}, {"id": 2, "file_name": "b.jpg"}]
SIZE = (36, 48)  # of the images, rows and columns


def write(root: Path, *annotations: Any, name: str = "x.json", **more: Any) -> Path:
    write_images(root / "images", ["a.jpg", "b.jpg"])
    about = {"images": IMAGES, "categories": CATEGORIES, "annotations": list(annotations)}
    return write_json(root / name, {**about, **more})


def opened(root: Path, *files: Path) -> CocoImages:
    return CocoImages(root / "images", files)


def rows(root: Path, *files: Path) -> dict[str, dict[str, Any]]:
    source = opened(root, *files)
    names = [field.name for field in source.fields]
    return {
        record.key: dict(zip(names, plain(record).fields, strict=True))
        for record in source.records()
        if record.problem is None
    }


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_compressed_run_lengths_in_a_file(tmp_path: Path) -> None:
    masks = pytest.importorskip("pycocotools.mask")
    runs = masks.frPyObjects({"size": SIZE, "counts": COUNTS}, *SIZE)
    text = {"size": SIZE, "counts": runs["counts"].decode()}
    path = write(tmp_path, object_of(1, 1, 7, segmentation=text))
    assert rows(tmp_path, path)["a"]["rle"] == [{"size": list(SIZE), "counts": COUNTS}]


HUGE = 10**400


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"bbox": [1, 2, 3]}, "its bbox is [1, 2, 3], not four finite numbers"),
        ({"bbox": [1, 2, 3, float("nan")]}, "its bbox is [1, 2, 3, nan]"),
        ({"bbox": [1, 2, 3, 1e39]}, "its bbox"),
        ({"bbox": [1, 2, 3, True]}, "its bbox"),
        ({"category_id": 55}, "its category 55 is not listed"),
        ({"category_id": None}, "its category None"),
        ({"id": "x"}, "its id is not a whole number"),
        ({"area": "12"}, "its area is '12'"),
        ({"area": HUGE}, "its area is 1000"),
        ({"iscrowd": 2}, "its iscrowd is 2"),
        ({"segmentation": "polygon"}, "neither polygons nor RLE"),
        ({"segmentation": [[1, 2, 3]]}, "not pairs of finite numbers"),
        ({"segmentation": {"size": [2, -2], "counts": [1]}}, "neither polygons nor RLE"),
        ({"segmentation": {"size": [2, 2], "counts": [1, 2]}}, "its RLE has 3 pixels"),
        ({"segmentation": {"size": [2, 2], "counts": [5, -1]}}, "its RLE has counts"),
        ({"segmentation": {"size": [2, 2], "counts": "é"}}, "not in COCO's compressed form"),
        ({"segmentation": {"size": [2, 2], "counts": "4o"}}, "ends within a count"),
        ({"segmentation": {"size": [2**31 - 1] * 2, "counts": "4"}}, "its RLE has 4 pixels"),
        ({"keypoints": [1, 2]}, "its keypoints are [1, 2]"),
        ({"keypoints": [0] * 60_000}, "its keypoints are"),
    ],
)
def test_damaged_objects(tmp_path: Path, change: dict[str, Any], reason: str) -> None:
    path = write(tmp_path, object_of(4, 1, 7), {**object_of(5, 1, 7), **change}, object_of(6, 2, 7))
    source = opened(tmp_path, path)
    [(key, problem)] = bad_of(source).items()
    assert key == "a" and reason in problem and f"{path}: annotations[1]" in problem


@pytest.mark.parametrize(
    ("annotation", "key", "reason"),
    [
        (
            object_of(5, 33, 7),
            "x.json/annotations/1",
            "annotations[1]: its image 33 is in none of the files",
        ),
        (object_of(4, 1, 7), "a", "another annotation of the image has the same id"),
        ({"id": 1, "image_id": 1, "caption": 5}, "a", "its caption is 5"),
        ({"id": 1, "image_id": 1, "caption": "\ud800"}, "a", "its caption is '\\ud800'"),
    ],
)
def test_damaged_annotations(tmp_path: Path, annotation: Any, key: str, reason: str) -> None:
    path = write(tmp_path, object_of(4, 1, 7), annotation)
    found = bad_of(opened(tmp_path, path))
    assert list(found) == [key] and reason in found[key]


def test_annotations_of_unknown_images_are_one_bad_sample_an_image(tmp_path: Path) -> None:
    path = write(tmp_path, *(object_of(n, 30 + n % 2, 7) for n in range(20)))
    result = convert(
        "coco", "--root", tmp_path / "images", "--annotations", path, "--out", tmp_path / "out"
    )
    require_said(result, 1, "2 of 4 images cannot be packed")
    found = bad_of(opened(tmp_path, path))
    assert list(found) == ["x.json/annotations/0", "x.json/annotations/1"]
    lines = (tmp_path / "out/_bad-samples.jsonl").read_text("utf-8").splitlines()
    assert {one["key"]: one["reason"] for one in map(json.loads, lines)} == found


@pytest.mark.parametrize(
    ("image", "key", "reason"),
    [
        ({"id": 3, "file_name": "c.jpg"}, "c", "cannot be opened: No such file"),
        ({"id": 3, "file_name": "../c.jpg"}, "../c", "has the path ../c.jpg, which is not inside"),
        ({"id": 1, "file_name": "b.jpg"}, "a", "the image 1 has the file_name a.jpg, and b.jpg"),
    ],
)
def test_damaged_images(tmp_path: Path, image: Any, key: str, reason: str) -> None:
    path = write(tmp_path, object_of(4, 1, 7), images=[*IMAGES, image])
    found = bad_of(opened(tmp_path, path))
    if key.startswith((".", "/")):
        key = "_row-2"
    assert list(found) == [key] and reason in found[key]


def annotated(**more: Any) -> bytes:
    return json.dumps({"images": IMAGES, "annotations": [], **more}).encode()


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (annotated()[:-9], "it is not JSON"),
        (b"[" * 100_000, "it is not JSON"),
        (b'{"images": [], "images": []}', "twice"),
        (b"[]", "it has no list of images"),
        (annotated(annotations=None), "annotations is not a list"),
        (annotated(categories="all"), "categories is not a list"),
        (annotated(categories=[{"id": "1", "name": "x"}]), "a category has no id and name"),
        (annotated(categories=[{"id": 1, "name": "x"}, {"id": 1, "name": "y"}]), "'y', but 'x'"),
        (annotated(categories=[{"id": 1, "name": "x", "keypoints": 3}]), "list of names"),
        (b'{"images": [{"id": ' + b"1" * 5000 + b"}]}", "it is not JSON"),
    ],
)
def test_damaged_files(tmp_path: Path, data: bytes, reason: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(data)
    (tmp_path / "images").mkdir()
    with pytest.raises(SourceError, match=r"x\.json: .*" + reason):
        opened(tmp_path, path)


def test_no_annotations_at_all(tmp_path: Path) -> None:
    path = write(tmp_path)
    assert rows(tmp_path, path)["b"] == {
        "image_id": 2, "labels": [], "boxes": [], "areas": [], "iscrowd": [], "polygons": [],
        "rle": [], "category_ids": [], "annotation_ids": [], "keypoints": [], "num_keypoints": [],
    }  # fmt: skip
    packed = packed_without_bad(opened(tmp_path, path), tmp_path / "out")
    about = packed.manifest.source
    assert about["classes"] == ["person", "chât", "dog"]
    kept = [{key: one[key] for key in one if key != "skeleton"} for one in CATEGORIES]
    assert about["categories"] == sorted(kept, key=lambda one: one["id"])
    assert dict(packed_fields(tmp_path / "out"))["boxes"] == [[], []]
    images = write_json(tmp_path / "images.json", {"images": IMAGES, "categories": CATEGORIES})
    assert rows(tmp_path, images)["b"] == {"image_id": 2}  # as of the test set
    captions = write_json(tmp_path / "captions.json", {"images": IMAGES, "annotations": []})
    assert rows(tmp_path, captions)["b"] == {"image_id": 2, "captions": []}


def test_optional_keys(tmp_path: Path) -> None:
    bare = {"id": 4, "image_id": 1, "category_id": 1, "bbox": [1, 2, 3, 4]}
    point = {**bare, "id": 5, "keypoints": [1, 2, 2, 3, 4, 0, 5, 6, 1]}
    found = rows(tmp_path, write(tmp_path, bare, point))["a"]
    assert found["areas"] == [12, 12] and found["iscrowd"] == [False, False]
    assert found["polygons"] == [[], []] and found["rle"] == [None, None]
    assert found["keypoints"] == [[0] * 9, [1, 2, 2, 3, 4, 0, 5, 6, 1]]
    assert found["num_keypoints"] == [0, 2]


def test_large_integers(tmp_path: Path) -> None:
    large = [2**25 + 1, 10**30, -(10**30), 3]
    change = {"bbox": large, "area": 10**30, "segmentation": [large], "keypoints": large[:3]}
    found = rows(tmp_path, write(tmp_path, object_of(4, 1, 1, **change)))["a"]
    assert found["boxes"] == [np.float32(large).tolist()]
    assert found["polygons"] == [[[float(value) for value in large]]]
    assert found["areas"] == [1e30] and found["keypoints"] == [
        [*map(np.float32, large[:3]), 0, 0, 0]
    ]


def merged(root: Path, first: Any, second: Any) -> Callable[[], dict[str, str]]:
    files = [write(root, first, name="1.json"), write(root, second, name="2.json")]
    return lambda: bad_of(opened(root, *files))


def test_files_of_the_same_images(tmp_path: Path) -> None:
    one = object_of(4, 1, 7)
    assert merged(tmp_path, one, one)() == {}
    assert "the same id" in merged(tmp_path, one, {**one, "category_id": 90})()["a"]
    caption = {"id": 4, "image_id": 1, "caption": "x"}
    assert merged(tmp_path, one, caption)() == {}  # ids of another kind
    assert merged(tmp_path, caption, caption)() == {}
    assert "the same id" in bad_of(opened(tmp_path, write(tmp_path, caption, caption)))["a"]
    more = [*IMAGES, {"id": 3, "file_name": "c.jpg"}]
    write_images(tmp_path / "images", ["c.jpg"])
    files = [write(tmp_path, one), write(tmp_path, name="more.json", images=more[::-1])]
    assert list(rows(tmp_path, *files)) == ["a", "b", "c"]
    renamed = write(tmp_path, name="named.json", categories=[{"id": 7, "name": "cat"}])
    with pytest.raises(SourceError, match=r"named\.json: the category 7 is 'cat', but 'chât'"):
        opened(tmp_path, files[0], renamed)


def test_images_that_a_later_file_lists(tmp_path: Path) -> None:
    """Without the first file's object, the image would have a part of its objects."""
    early = write(tmp_path, object_of(1, 1, 7), images=[])
    late = write(tmp_path, object_of(2, 1, 7), object_of(3, 2, 7), name="late.json")
    packed_without_bad(opened(tmp_path, early, late), tmp_path / "out")
    assert dict(packed_fields(tmp_path / "out"))["image_id"] == [2]


def test_files_that_number_their_annotations_from_1(tmp_path: Path) -> None:
    """As many objects as pycocotools finds in all files."""
    first = [object_of(1, 1, 7), object_of(2, 1, 90)]
    rle = {"size": list(SIZE), "counts": COUNTS}
    second = [object_of(n, 1, 7, bbox=[n, 1, 2, 3]) for n in (1, 2)]
    second += [object_of(3, 1, 1), object_of(4, 1, 1, segmentation=rle)]
    third = [object_of(4, 1, 1, bbox=[4, 1, 2, 3]), object_of(2, 1, 90, keypoints=[1, 2, 2])]
    every = enumerate((first, second, third))
    files = [write(tmp_path, *objects, name=f"{n}.json") for n, objects in every]
    captions = [
        write_json(tmp_path / name, {"images": IMAGES, "annotations": [caption]})
        for name in ("x", "y", "x2")
        for caption in [{"id": 1, "image_id": 1, "caption": name[0]}]
    ]
    found = rows(tmp_path, *files, *captions)["a"]
    expected = [one for path in files for one in open_coco(path).imgToAnns[1]]
    del expected[-1]
    assert found["annotation_ids"] == [one["id"] for one in expected]
    assert found["boxes"] == [np.float32(one["bbox"]).tolist() for one in expected]
    assert [one is not None for one in found["rle"]] == [
        isinstance(one["segmentation"], dict) for one in expected
    ]
    assert found["num_keypoints"] == [0, 1, *[0] * 5] and found["captions"] == ["x", "y"]


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"area": 4}, {"area": 5}),
        ({"iscrowd": 0}, {"iscrowd": 1}),
        ({"keypoints": [1, 2, 2]}, {"keypoints": [1, 2, 1]}),
        ({"segmentation": [[1, 2, 3, 4, 5, 6]]}, {"segmentation": [[1, 2, 3, 4, 5, 7]]}),
    ],
)
def test_files_that_contradict_each_other(tmp_path: Path, first: Any, second: Any) -> None:
    [name] = first
    one = {key: value for key, value in object_of(4, 1, 7).items() if key != name}
    assert list(merged(tmp_path, one | first, one | second)()) == ["a"]
    for files in ((one, one | second), (one | second, one), (one, one | second)):
        paths = [write(tmp_path, each, name=f"{n}.json") for n, each in enumerate(files)]
        column = {"area": "areas", "segmentation": "polygons"}.get(name, name)
        [found] = rows(tmp_path, *paths)["a"][column]
        assert found == [1, 2, 1, 0, 0, 0] if name == "keypoints" else second[name]


@pytest.mark.parametrize("caption", ["", None, "a dog"])
@pytest.mark.parametrize("container", first_of(["shards", "folder"]))
def test_keys_say_nothing_of_a_kind(tmp_path: Path, caption: str | None, container: str) -> None:
    one = object_of(4, 1, 7, caption=caption, segments_info=[])
    path = write(tmp_path, one, object_of(5, 1, 1))
    out = tmp_path / "out"
    pack(
        opened(tmp_path, path),
        out,
        container=container,
        workers=1,
        options=PackOptions(shuffle=False),
    )
    found = dict(packed_fields(out))
    expected = open_coco(path).imgToAnns[1]
    assert found["boxes"][0] == [np.float32(each["bbox"]).tolist() for each in expected]
    assert found["polygons"][0] == [each["segmentation"] for each in expected]
    assert found.get("captions", [[]])[0] == ([caption] if caption else [])
    others = {"segments_info": [{}], "bbox": [], "segmentation": [], "category_id": 7}
    noted = write(tmp_path, {"id": 1, "image_id": 1, "caption": "x", **others})
    assert rows(tmp_path, noted)["a"]["captions"] == ["x"]
    bare = write(tmp_path, {"id": 1, "image_id": 1, "category_id": 7, "caption": caption or ""})
    assert bool(bad_of(opened(tmp_path, bare))) == (not caption)


def test_whole_floats_are_ids(tmp_path: Path) -> None:
    """As for pycocotools, to which 1.0 is 1."""
    images = [{**IMAGES[0], "id": 1.0}, {**IMAGES[1], "width": 48.0, "height": 36.0}]
    one = {**object_of(4, 1, 7.0), "id": 4.0, "image_id": 1, "iscrowd": 1.0, "num_keypoints": 0.0}
    categories = [{"id": 7.0, "name": "cat"}]
    path = write(tmp_path, one, object_of(5, 2.0, 7), images=images, categories=categories)
    found, coco = rows(tmp_path, path), open_coco(path)
    for number, key in enumerate("ab", 1):
        assert found[key]["annotation_ids"] == [each["id"] for each in coco.imgToAnns[number]]
    assert found["a"]["iscrowd"] == [True] and found["b"]["image_id"] == 2
    packed = packed_without_bad(opened(tmp_path, path), tmp_path / "out")
    assert packed.manifest.source["categories"] == categories


@pytest.mark.parametrize("found", [None, [1], {}, "a", "33", 1.5, float("nan"), 10**400])
def test_annotations_of_no_image(tmp_path: Path, found: Any) -> None:
    path = write(tmp_path, object_of(4, 1, 7), {**object_of(5, 1, 7), "image_id": found}, found)
    bad = bad_of(opened(tmp_path, path))
    assert list(bad) == ["x.json/annotations/1", "x.json/annotations/2"]
    assert list(rows(tmp_path, path)) == ["a", "b"]


def test_odd_ids_and_names_leave_out_their_images_alone(tmp_path: Path) -> None:
    """An absolute path below the root, ./ before one, and nulls are sound."""
    here = str(tmp_path / "images" / "a.jpg")
    images = [
        {**IMAGES[0], "file_name": here}, {**IMAGES[1], "file_name": "./b.jpg"},
        {"file_name": "c.jpg"}, {"id": "3", "file_name": "c.jpg"}, {"id": 4, "file_name": ""},
        {"id": 5, "file_name": "\ud800.jpg"}, {"id": 6}, 7, {"id": 8, "file_name": "d.jpg"},
    ]  # fmt: skip
    sound = [{**object_of(n, n, 7), "iscrowd": 0.0, "keypoints": None} for n in (1, 2)]
    objects = [*sound, object_of(3, "3", 7), object_of(4, 4, 7), object_of(5, "8", 7)]
    categories = [{"id": 7, "name": "cat", "keypoints": None}]
    path = write(tmp_path, *objects, images=images, categories=categories)
    bad = bad_of(opened(tmp_path, path))
    assert set(bad) == {f"x.json/images/{n}" for n in range(2, 8)} | {"d"}
    assert [one["annotation_ids"] for one in rows(tmp_path, path).values()] == [[1], [2]]
    out, given = tmp_path / "out", ("--root", tmp_path / "images", "--annotations", path)
    result = convert("coco", *given, "--out", out)
    require_said(result, 1, "7 of 9", *bad)
    result = convert("coco", *given, "--out", out, "--skip-bad")
    assert result.exit_code == 0 and "7 bad ones" in result.stdout and "cat 2" in result.stdout
    dataset = ImageDataset(out, fields=("key",))
    assert [one["key"] for one in dataset] == ["a", "b"]
    assert dataset.classes == ["cat"]  # of the label 0, which has the category 7


def exif_image(path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[274] = orientation
    picture(3, (60, 40)).save(path, exif=exif)


class TestSizes:
    def source(self, root: Path, *sizes: tuple[Any, Any], **more: Any) -> CocoImages:
        pairs = zip(IMAGES, sizes, strict=False)
        images = [{**image, "width": w, "height": h} for image, (w, h) in pairs]
        objects = [object_of(n, image["id"], 7, **more) for n, image in enumerate(images)]
        path = write(root, *objects, images=images)
        exif_image(root / "images/a.jpg", 6)
        return opened(root, path)

    @pytest.mark.parametrize("container", first_of(["shards", "lmdb", "folder"]))
    def test_turned_by_exif(self, tmp_path: Path, container: str) -> None:
        out = tmp_path / "out"
        source = self.source(tmp_path, (40, 60), (48, 36))
        pack(source, out, container=container, workers=1, options=PackOptions(shuffle=False))
        for path in (out, tmp_path / "again"):
            with pytest.warns(UserWarning, match="boxes .*exif_transpose=True"):
                ImageDataset(path, fields=("image", "boxes"))
            with pytest.warns(UserWarning, match="masks .*exif_transpose=True"):
                ImageDataset(path, transforms=CenterCrop(9), fields=("image", "masks"))
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                ImageDataset(path)
                dataset = ImageDataset(path, fields=("image", "boxes"), exif_transpose=True)
            assert dataset[0]["image"].size == (40, 60)
            if path == out:
                pack(PackedDataset(out), tmp_path / "again", workers=1)
        given = ("--root", tmp_path / "images", "--annotations", tmp_path / "x.json")
        result = convert("coco", *given, "--out", out, "--to", container, "--force")
        assert "exif_transpose=True)" in result.stdout

    @pytest.mark.parametrize("size", [(60, 41), (0, 0), (-1, -1), ("60", 40)])
    @pytest.mark.parametrize("orientation", first_of([1, 3]))
    def test_another_size(self, tmp_path: Path, size: Any, orientation: int) -> None:
        source = self.source(tmp_path, size, (48, 36))
        exif_image(tmp_path / "images/a.jpg", orientation)
        with pytest.raises(BadSamplesError, match=r"a\.jpg"):
            pack(source, tmp_path / "out", workers=1)
        packed_without_bad(source, tmp_path / "rest")
        assert dict(packed_fields(tmp_path / "rest"))["image_id"] == [2]

    @pytest.mark.parametrize("size", [(60, 40), (None, 60), (60.0, 40.0)])
    def test_the_same_size(self, tmp_path: Path, size: Any) -> None:
        packed = pack(self.source(tmp_path, size, (48, 36)), tmp_path / "out", workers=1)
        assert packed.manifest.samples == 2
        known = None not in size  # a half of a size says nothing
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            ImageDataset(packed.path, fields=("image", "boxes"))
            assert not caught
            again = pack(PackedDataset(packed.path), tmp_path / "again", workers=1)
            assert not caught
            for one in (packed, again):
                ImageDataset(one.path, fields=("image", "boxes"), exif_transpose=True)
        assert [one.category for one in caught] == [UserWarning] * (2 * known)

    def test_no_setting_fits_both(self, tmp_path: Path) -> None:
        source = self.source(tmp_path, (40, 60), (60, 40))
        exif_image(tmp_path / "images/b.jpg", 8)
        with pytest.raises(SourceError, match=r"of a are .* of b are"):
            pack(source, tmp_path / "out", workers=1)

    def test_run_lengths_say_the_size(self, tmp_path: Path) -> None:
        rle = {"size": [60, 40], "counts": [2400]}
        packed = pack(
            self.source(tmp_path, (None, None), segmentation=rle), tmp_path / "out", workers=1
        )
        assert packed.manifest.source["exif_transpose"]
        assert list(bad_of(self.source(tmp_path, (60, 40), segmentation=rle))) == ["a"]

    def test_files_that_disagree(self, tmp_path: Path) -> None:
        paths = [
            write(
                tmp_path, name=f"{width}.json", images=[{**IMAGES[0], "width": width, "height": 36}]
            )
            for width in (48, 47)
        ]
        assert list(bad_of(opened(tmp_path, *paths))) == ["a"]


def write_splits(root: Path, *categories: list[dict[str, Any]]) -> Path:
    for split, listed in zip(("train", "valid"), categories, strict=True):
        write_images(root / split, ["a.jpg", "b.jpg"])
        objects = [object_of(n, 1, one["id"]) for n, one in enumerate(listed)]
        about = {"images": IMAGES, "categories": listed, "annotations": objects}
        write_json(root / split / "_annotations.coco.json", about)
    return root


@pytest.mark.parametrize("split", [(), ("--split", "valid")])
def test_a_class_has_one_number_in_all_splits(tmp_path: Path, split: tuple[str, ...]) -> None:
    root = write_splits(tmp_path / "in", CATEGORIES, CATEGORIES[:1])  # dog, the last of three
    require_said(convert("coco", "--root", root, *split, "--out", tmp_path / "out-{split}"), 0)
    out = tmp_path / "out-valid"
    assert dict(packed_fields(out))["labels"][0] == [2]
    assert ImageDataset(out).manifest.source["classes"] == ["person", "chât", "dog"]


def test_splits_with_other_ids(tmp_path: Path) -> None:
    renamed = [{"id": 90, "name": "cat"}]
    numbered = [{"id": 3, "name": "dog"}]
    for at, categories in enumerate((renamed, numbered)):
        root = write_splits(tmp_path / str(at), CATEGORIES, categories)
        given = ("--root", root, "--split", "valid", "--out", tmp_path / "out")
        require_said(convert("coco", *given), 1, "valid/_annotations.coco.json: the category")
    twice = [*CATEGORIES, {"id": 2, "name": "dog"}]  # as exporters that add a root category
    root = write_splits(tmp_path / "twice", twice, CATEGORIES)
    require_said(convert("coco", "--root", root, "--out", tmp_path / "out-{split}"), 0)


def test_layouts_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_coco(tmp_path / "coco")
    write_coco(tmp_path / "coco", "train2017")
    (tmp_path / "coco/annotations/image_info_test2017.json").write_text("{}")
    require_said(convert("coco", "--root", "coco", "--to", "shards"), 0)
    for split in ("train2017", "val2017"):
        dataset = ImageDataset(tmp_path / f"coco-{split}-shards")
        assert len(dataset) == len(NAMES)
        assert [field.name for field in dataset.source.fields][-1] == "captions"
    require_said(convert("coco", "--root", "coco", "--split", "x"), 1, "train2017, val2017")
    given = ("--root", "coco/val2017", "--annotations", "coco/annotations/captions_val2017.json")
    require_said(convert("coco", *given, "--fields", "captions", "--out", "captions"), 0)
    assert [name for name, _ in packed_fields(tmp_path / "captions")] == ["image", "captions"]
    require_said(
        convert("coco", *given, "--fields", "boxes"), 2, "val2017: has no other column boxes"
    )
    require_said(convert("coco", *given, "--split", "x"), 2, "--split x has no effect")
    exported = tmp_path / "exported/valid"
    write_images(exported, ["a.jpg", "b.jpg"])
    about = {"images": IMAGES, "categories": CATEGORIES, "annotations": [object_of(1, 1, 7)]}
    write_json(exported / "_annotations.coco.json", about)
    require_said(convert("coco", "--root", "exported", "--out", "exported-{split}"), 0)
    assert dict(packed_fields(tmp_path / "exported-valid"))["labels"] == [[1], []]
    require_said(convert("coco", "--root", "coco/val2017"), 1, "has no split with annotations")
