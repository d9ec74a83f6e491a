"""YOLO's labels and data.yaml, and images beside masks."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest
from annotated import (
    bad_of,
    packed_fields,
    packed_without_bad,
    write_images,
    write_mask,
    write_masked,
    write_yolo,
)
from fastdata.converters import MaskedImages, YoloImages
from fastdata.converters.annotations import AnnotatedFolder
from fastdata.converters.yolo import describe
from PIL import Image
from sources import convert, picture, require_said, rows_of

from fastdata import ImageDataset
from fastdata.errors import SourceError, UsageError


@pytest.fixture
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("out") / "out"


def write(root: Path, labels: str | bytes | None, text: str = "names: [cat, dog]\n") -> Path:
    write_images(root / "images", ["a.jpg", "b.jpg"])
    (root / "labels").mkdir(exist_ok=True)
    (root / "labels/b.txt").write_text("1 0.5 0.5 1 1\n", "utf-8")
    if labels is not None:
        data = labels.encode() if isinstance(labels, str) else labels
        (root / "labels/a.txt").write_bytes(data)
    (root / "data.yaml").write_text(f"train: images\n{text}", "utf-8")
    return root


GOOD = "0 0.5 0.5 0.5 0.5\n"


@pytest.mark.parametrize(
    ("labels", "reason"),
    [
        (GOOD + "\n0 0.5 0.5 0.5 0.5 0.9\n", "line 3: it has 6 numbers"),
        ("0 0.5 0.5 0.5 nan\n", "line 1: it has something other than finite numbers"),
        ("0 0.5 0.5 0.5 1e400\n", "other than finite numbers"),
        ("0 0.5 0.5 0.5 1_0\n", "other than finite numbers"),
        ("cat 0.5 0.5 0.5 0.5\n", "other than finite numbers"),
        ("2 0.5 0.5 0.5 0.5\n", "its class is 2, and there are 2"),
        ("0 320 0.5 0.5 0.5\n", "outside of the image, or not normalised"),
        ("0 0.5 0.5 -0.005 0.5\n", "its box has a negative side"),
        (b"\xff\xfe0 0.5\n", "can't decode"),
    ],
)
def test_damaged_lines(tmp_path: Path, labels: str | bytes, reason: str) -> None:
    source = YoloImages(write(tmp_path, labels))
    [(key, problem)] = bad_of(source).items()
    assert key == "images/a" and reason in problem and problem.startswith("labels/a.txt: ")


@pytest.mark.parametrize("labels", [None, "", " \n\n", "\ufeff"[:0]])
@pytest.mark.filterwarnings("ignore:.*1 of 2 images of train have no labels")
def test_no_objects(tmp_path: Path, labels: str | None) -> None:
    found = rows_of(YoloImages(write(tmp_path, labels)))
    assert found["images/a"] == {"labels": [], "boxes": [], "polygons": []}


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_boxes_are_in_images_as_exif_turns_them(
    tmp_path: Path, out: Path, orientation: int
) -> None:
    root = write(tmp_path, "0 0.5 0.25 0.1 0.3")
    exif = Image.Exif()
    exif[274] = orientation
    picture(3, (48, 36)).save(root / "images/a.jpg", exif=exif)
    given = ("--root", root, "--split", "train", "--out", out)
    turned = orientation > 1
    assert ("exif_transpose=True" in convert("yolo", *given).stdout) == turned
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ImageDataset(out, fields=("image", "boxes"))
    assert [one.category for one in caught] == [UserWarning] * turned


def test_keypoints(tmp_path: Path) -> None:
    text = "names: {0: person}\nkpt_shape: [2, 3]\n"
    labels = "0 .5 .5 1 1 .25 .5 2 0 0 0\n"
    root = write(tmp_path, labels, text)
    (root / "labels/b.txt").write_text("0 .5 .5 1 1 .25 .5 2\n", "utf-8")
    source = YoloImages(root)
    assert rows_of(source)["images/a"]["keypoints"] == [[0.25, 0.5, 2, 0, 0, 0]]
    assert "it has 8 numbers, not 11" in bad_of(source)["images/b"]
    assert source.origin["kpt_shape"] == [2, 3]


def test_labels_without_an_image(tmp_path: Path) -> None:
    root = write(tmp_path, GOOD)
    (root / "labels/c.txt").write_text(GOOD, "utf-8")
    (root / "labels/classes.txt").write_text("cat\ndog\n", "utf-8")
    (root / "labels/train.cache").write_bytes(b"")
    assert bad_of(YoloImages(root)) == {"labels/c": "labels/c.txt: has no image"}


@pytest.mark.parametrize(
    "place",
    ["images/a.txt", "label/a.txt", "Labels/a.txt", "labels/a.TXT", "labels/b/a.txt", "a.txt"],
)
def test_labels_in_another_place(tmp_path: Path, out: Path, place: str) -> None:
    """Labels that are found nowhere are no absence of objects."""
    root = write(tmp_path, None)
    (root / place).parent.mkdir(exist_ok=True)
    (root / place).write_text(GOOD, "utf-8")
    with pytest.warns(UserWarning, match="1 of 2 images of train have no labels"):
        problem = bad_of(YoloImages(root))["images/a"]
    assert "labels/a.txt" in problem and place in problem
    result = convert("yolo", "--root", root, "--fields", "boxes", "--skip-bad", "--out", out)
    require_said(result, 0)
    assert "1 of 2 images of train have no labels; labels/a.txt does not exist" in result.stderr
    (root / "labels/b.txt").unlink()
    with pytest.raises(SourceError, match=r"2 of 2 images of .*; labels/a\.txt does") as caught:
        YoloImages(root)
    assert f"There is {place}" in caught.value.hint
    assert list(rows_of(YoloImages(root, fields=[]))) == ["images/a", "images/b"]


@pytest.mark.parametrize(
    ("train", "path"),
    [
        ("images", ""),
        ("./images/", "path: .\n"),
        ("../images", ""),
        ("images", "path: ../datasets/x\n"),
        ("images", "path: {root}\n"),
        ("{root}/images", ""),
        ("[images, images]", ""),
        ("\n  - images", ""),
        ("\n- list.txt", ""),
        ("set/list.txt", ""),
        ("images", "path: set/..\n"),
    ],
)
def test_places_of_images(tmp_path: Path, train: str, path: str) -> None:
    root = write(tmp_path, GOOD)
    (root / "set").mkdir()
    (root / "list.txt").write_text(f"./images/a.jpg\n\n{root}/images/b.jpg\n", "utf-8")
    (root / "set/list.txt").write_text("../images/b.jpg\n../images/a.jpg\n", "utf-8")
    text = f"train: {train}\n{path}names: [cat, dog]\n".replace("{root}", str(root))
    (root / "data.yaml").write_text(text, "utf-8")
    assert list(rows_of(YoloImages(root))) == ["images/a", "images/b"]


def test_lists_of_what_is_not_there(tmp_path: Path, out: Path) -> None:
    root = write(tmp_path, GOOD, "val: list.txt\nnames: [cat, dog]")
    (root / "list.txt").write_text("images/a.jpg\nimages/none.jpg\n../x.jpg\n/x/y.jpg\n", "utf-8")
    found = bad_of(YoloImages(root, "val"))
    assert sorted(found) == ["_row-0", "_row-1", "images/none"]
    assert "has the path ../x.jpg, which is not inside" in found["_row-0"]
    assert packed_without_bad(YoloImages(root, "val"), out).manifest.samples == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "names: the class names are missing, or"),
        ("nc: 3\nnames: [a, b]\n", "nc: it is 3, but there are 2 names"),
        ("nc: many\n", "nc: many is not a whole number"),
        ("names: {1: a, 2: b}\n", "the labels are not 0, 1, 2"),
        ("names: [a, b\n", "expected ',' or ']'"),
        ("names: [a, [b]]\n", "or one is not text"),
        ("names: !!python/object/apply:os.system [[id]]\n", "or one is not text"),
        ("names: [a]\nnames: [b]\n", "a mapping has a key twice"),
        ("x: &x {nc: 1}\n<<: *x\n", "a mapping has a key twice, or <<"),
        ("names: " + "[" * 10_000 + "\n", "recursion"),
        ("names: [a]\nkpt_shape: 17\n", "kpt_shape: it is not [number, 2 or 3]"),
        ("names: [a]\nval: {a: b}\n", "val: it is neither a path nor a list"),
    ],
)
def test_damaged_descriptions(tmp_path: Path, text: str, reason: str) -> None:
    root = write(tmp_path, GOOD, text)
    with pytest.raises(SourceError, match=r"data\.yaml: cannot be read: ") as caught:
        YoloImages(root)
    assert reason in str(caught.value)


def test_missing_descriptions(tmp_path: Path) -> None:
    root = write(tmp_path, GOOD)
    with pytest.raises(SourceError, match="has no split val"):
        YoloImages(root, "val")
    for text in (b"\xff", b"- a\n"):
        (root / "data.yaml").write_bytes(text)
        with pytest.raises(SourceError, match=r"data\.yaml: cannot be read"):
            YoloImages(root)
    (root / "data.yaml").write_text("train: none\nnames: [a]\n", "utf-8")
    with pytest.raises(SourceError, match=r"the images of train are in none, which is not in"):
        YoloImages(root)
    (root / "data.yaml").rename(root / "one.yaml")
    with pytest.raises(SourceError, match="in none"):
        YoloImages(root)
    (root / "two.yaml").touch()
    with pytest.raises(SourceError, match=r"it has one\.yaml, two\.yaml"):
        YoloImages(root)
    with pytest.raises(UsageError, match="no other column masks"):
        YoloImages(write_yolo(tmp_path / "yolo"), fields=["masks"])


def test_command(tmp_path: Path, out: Path) -> None:
    root = write_yolo(tmp_path / "set")
    given = ("yolo", "--root", root, "--out", out / "{split}")
    require_said(convert(*given), 1, "the images of val are in images/val, which is not in")
    write_images(root / "images/val", ["a.jpg"])
    require_said(convert(*given, "--force"), 1, "1 of 1 images of val have no labels")
    require_said(convert(*given, "--fields", "", "--force"), 0)
    (root / "labels/val").mkdir()
    (root / "labels/val/a.txt").touch()
    require_said(convert(*given, "--fields", "boxes", "--force"), 0)
    assert [name for name, _ in packed_fields(out / "train")] == ["image", "boxes"]
    again = convert("dataset", "--root", out / "train", "--out", out / "packed")
    assert again.exit_code == 0
    for place in ("train", "packed"):
        assert ImageDataset(out / place).classes == ["chât", "dog"]
    assert dict(packed_fields(out / "val"))["boxes"] == [[]]
    (root / "data.yaml").rename(tmp_path / "other.yaml")
    data = ("--data", tmp_path / "other.yaml", "--split", "val", "--out", out / "again")
    require_said(convert("yolo", "--root", root, *data), 0)


ULTRALYTICS = """\
---
path: coco8 # dataset root dir
train: images/train # 4 images
val: images/val
test: # optional
minival: ~
names:
  0: person
  1: 'traffic "light"'
  2: "dog's # caf\\xE9"
  3: it's  # a comment
  4: no
  5: a folded
    name
kpt_shape: [17, 3]
download: |
  names: [none]
"""


def test_yaml_as_ultralytics_writes_it(tmp_path: Path) -> None:
    theirs = pytest.importorskip("yaml").safe_load(ULTRALYTICS)
    (tmp_path / "data.yaml").write_text(ULTRALYTICS, "utf-8")
    found = describe(AnnotatedFolder(tmp_path))
    assert theirs["names"].pop(4) is False and found.classes.pop(4) == "no"
    assert found.classes == list(theirs["names"].values())
    assert found.keypoints == (17, 3) and found.path == theirs["path"]
    assert found.splits == {"train": [theirs["train"]], "val": [theirs["val"]]}


def test_pyyaml_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(SourceError, match=r"data\.yaml: .*needs PyYAML") as caught:
        YoloImages(write(tmp_path, GOOD))
    assert "pip install pyyaml" in caught.value.hint


def test_images_and_masks_alone(tmp_path: Path) -> None:
    root = write_masked(tmp_path)
    (root / "annotations/training/a.b.png").rename(root / "annotations/training/z.png")
    source = MaskedImages(root, "images/training", "annotations/training/")
    found = bad_of(source)
    assert found["a.b"] == "its mask annotations/training/a.b.png is missing"
    assert found["z"] == "annotations/training/z.png: has no image in images/training/"
    assert len(found) == 2


def test_endings_of_names(tmp_path: Path, out: Path) -> None:
    write_images(tmp_path / "leftImg8bit", ["x/a_leftImg8bit.jpg", "x/b_leftImg8bit.jpg"])
    for number, name in enumerate(["a_gtFine_ids", "a_gtFine_color", "b_gtFine_ids"]):
        write_mask(tmp_path / f"gtFine/x/{name}.png", number)
    given = ("--images", "leftImg8bit", "--image-ending", "_leftImg8bit", "--masks", "gtFine")
    endings = ("--mask-ending", "_gtFine_ids", "--out", out)
    require_said(convert("masks", "--root", tmp_path, *given, *endings), 0)
    masks = [(tmp_path / f"gtFine/x/{name}_gtFine_ids.png").read_bytes() for name in "ab"]
    assert dict(packed_fields(out))["mask"] == masks
    result = convert("masks", "--root", tmp_path, *given, "--mask-ending", "_x", "--out", "x")
    require_said(result, 1, "gtFine: has no images that end in _x", "--masks")


def test_masks_that_are_no_masks(tmp_path: Path, out: Path) -> None:
    root = write_masked(tmp_path)
    (root / "annotations/training/a.b.png").write_bytes(b"no image")
    (root / "annotations/training/c/d/0001.png").write_bytes(b"")
    source = MaskedImages(root, "images/training", "annotations/training")
    packed = packed_without_bad(source, out)
    assert packed.manifest.skipped == 2
    assert "its mask" in (out / "_bad-samples.jsonl").read_text("utf-8")
    (root / "images/training/a.b.png").write_bytes(b"")
    source = MaskedImages(root, "images/training", "annotations/training")
    assert "a.b.jpg and images/training/a.b.png" in bad_of(source)["a.b"]
    with pytest.raises(SourceError, match="none: has no images"):
        MaskedImages(root, "none", "annotations/training")


#: Labels, the keypoints of each object, and whether ultralytics 8.4.190 takes them
#: (verify_image_label with three classes).
JUDGED = [
    ("0 1.005 0.5 0.5 0.5", None, True),
    ("0 1.02 0.5 0.5 0.5", None, False),
    ("0 -0.02 0.5 0.5 0.5", None, False),
    ("\ufeff0 0.5 0.5 0.5 0.5", None, True),
    ("0 0.5 0.5 0.5 0.5\n \n\n1 0.5 0.5 0.5 0.5", None, True),
    ("2.0 0.5 0.5 0.5 0.5", None, True),
    ("0 0.5 0.5 1.2 0.5 0.6 0.7", None, True),  # by its box: centre 0.85, width 0.7
    ("0 -0.3 0.5 0.5 0.5 0.4 0.7", None, True),
    ("0 0.5 0.5 0.5 0.5 0.5 1.9", None, False),
    ("0 1.2 0.5 0.5 0.5 0.1 0.1 2 0.2 0.2 0", (2, 3), True),
    ("0 0.5 0.5 0.5 0.5 1.2 0.1 2 0.2 0.2 0", (2, 3), False),
    ("0 0.5 0.5 0.5 0.5 0.1 0.1 -1 0.2 0.2 0", (2, 3), False),
    ("0 0.5 0.5 0.5 0.5 0.1 0.1 0.2 -0.005", (2, 2), True),
]


@pytest.mark.parametrize(("text", "keypoints", "taken"), JUDGED)
def test_takes_the_lines_that_ultralytics_takes(
    text: str, keypoints: tuple[int, int] | None, taken: bool, tmp_path: Path, out: Path
) -> None:
    about = "names: [cat, dog, hen]\n"
    about += f"kpt_shape: {list(keypoints)}\n" if keypoints else ""
    root = write(tmp_path, text, about)
    other = "1 0.5 0.5 1 1" + " 0.5" * (keypoints[0] * keypoints[1] if keypoints else 0)
    (root / "labels/b.txt").write_text(other, "utf-8")
    problems = [record.problem for record in YoloImages(root).records()]
    assert problems[1] is None
    assert (problems[0] is None) == taken, problems[0]


def test_a_split_called_validation_is_val(tmp_path: Path) -> None:
    root = write(tmp_path, GOOD, "names: [cat, dog]\nvalidation: images\n")
    assert [record.key for record in YoloImages(root, "val").records()] == ["images/a", "images/b"]
