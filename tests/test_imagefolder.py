"""Trees of images: torchvision's classes, order and labels."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from fastdata.converters import ImageFolder, ImageSource, pack
from fastdata.converters.listing import describe_left_out
from fastdata.converters.options import PackOptions
from hypothesis import given, settings
from hypothesis import strategies as st
from sources import Expected, SourceConformance, convert, jpeg, make_tree

from fastdata import ImageDataset
from fastdata.errors import SourceError, UsageError

# torchvision.datasets.folder.IMG_EXTENSIONS, and kinds that it leaves out.
EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")
EXTENSIONS += (".gif", ".avif", ".heic", ".heif", ".jxl")


def as_torchvision(root: Path) -> tuple[list[str], list[tuple[str, int]]]:
    """Classes and (path, label), by the algorithm of torchvision's ``ImageFolder``.

    ``find_classes`` sorts the names of the folders at the top. ``make_dataset`` goes through
    ``sorted(os.walk(folder, followlinks=True))`` of each, then through the sorted file names,
    and takes those that end in an image's extension, in lower case.
    """
    classes = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    samples = []
    for label, name in enumerate(classes):
        for folder, _, files in sorted(os.walk(root / name, followlinks=True)):
            for file in sorted(files):
                path = os.path.join(folder, file)
                if path.lower().endswith(EXTENSIONS):
                    samples.append((path, label))
    return classes, samples


NAMES = ["b-2/x.jpg", "b-2/deep/er/y.JPEG", "b-2/deep-a/y.Jpg", "b-2/deep/a.b.c.png",
         "b/z.jpeg", "b/notes.txt", "b/jpg", "Ünï/漢字.jpg", "a.b/10.jpg", "a.b/9.jpg",
         "top.jpg"]  # fmt: skip


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_tree(tmp_path_factory.mktemp("tree").resolve(), NAMES)
    (root / "b" / "linked").symlink_to(root / "a.b")
    return root


class TestImageFolder(SourceConformance):
    @pytest.fixture
    def sources(self, tree: Path) -> list[ImageSource]:
        return [ImageFolder(tree) for _ in range(2)]

    @pytest.fixture
    def expected(self, tree: Path) -> Expected:
        classes, samples = as_torchvision(tree)
        assert classes == ["a.b", "b", "b-2", "Ünï"]
        assert len(samples) == 10
        return Expected(
            classes,
            [
                (os.path.splitext(os.path.relpath(path, tree))[0], classes[label], read(path))
                for path, label in samples
            ],
        )


def read(path: str) -> bytes:
    return Path(path).read_bytes()


NAME = st.text("abA-._ é漢", min_size=1, max_size=4).filter(lambda name: name not in (".", ".."))
# Hidden folders at the top are no classes, unlike torchvision's: .git, .ipynb_checkpoints.
CLASS = NAME
ENDING = st.sampled_from([*EXTENSIONS, ".JPG", ".JpEg", ".TIFF", ".txt", ".jpg.txt", ".svg", ""])
FILE = st.tuples(CLASS, st.lists(NAME, max_size=3), NAME, ENDING)


@settings(max_examples=40)
@given(st.lists(FILE, min_size=1, max_size=25))
def test_random_trees_as_torchvision(files: list[tuple[str, list[str], str, str]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = Path(name).resolve()
        for top, folders, stem, ending in files:
            path = root.joinpath(top, *folders, stem + ending)
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            except (FileExistsError, NotADirectoryError, IsADirectoryError):
                continue  # one name for a file and a folder
        classes, samples = as_torchvision(root)
        source = ImageFolder(root, allow_empty=True)
        assert source.classes == classes
        records = list(source.records())
        assert [(record.path, record.label) for record in records] == samples
        stems = Counter(record.path.rpartition(".")[0] for record in records)
        for record in records:
            stem, dot, extension = record.path.rpartition(".")
            key = stem if stems[stem] == 1 else record.path  # files of one stem keep their suffixes
            assert record.key == os.path.relpath(key + "x", root)[:-1]
            assert dot + extension.lower() in EXTENSIONS


@pytest.mark.parametrize("prefix", ["", "file://"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_what_is_left_out_is_counted_by_suffix(tmp_path: Path, prefix: str, shuffle: bool) -> None:
    others = ["a/1.MP4", "a/deep/2.mp4", "b/3.txt", "b/.hidden", "b/jpg", "top.mp4"]
    make_tree(tmp_path / "tree", ["a/1.jpg", "b/2.jpg", *others])
    source = ImageFolder(f"{prefix}{tmp_path}/tree")
    packed = pack(
        source,
        tmp_path / "out",
        container="shards",
        options=PackOptions(shuffle=shuffle),
        workers=1,
    )
    assert packed.left_out == {".mp4": 2, ".txt": 1, ".hidden": 1, "no suffix": 1}
    assert describe_left_out(packed.left_out).startswith(".mp4 2, ")
    many = {f".{number}": 1000 for number in range(10)}
    assert describe_left_out(many).endswith(", .5 1,000, others 4,000")


def test_no_images_at_all_says_what_there_is(tmp_path: Path) -> None:
    make_tree(tmp_path, ["a/1.mp4"])
    with pytest.raises(SourceError, match=r"no images found \(\.mp4 1 left out\)"):
        pack(ImageFolder(tmp_path, allow_empty=True), tmp_path.parent / "out", workers=1)


def test_link_to_a_class_is_a_class(tmp_path: Path) -> None:
    make_tree(tmp_path, ["tree/a/1.jpg", "other/2.jpg"])
    (tmp_path / "tree" / "b").symlink_to(tmp_path / "other")
    keys = [record.key for record in ImageFolder(tmp_path / "tree").records()]
    assert keys == ["a/1", "b/2"]


def test_images_without_class_folders(tmp_path: Path) -> None:
    make_tree(tmp_path, ["1.jpg"])
    with pytest.raises(SourceError, match="no class folders") as raised:
        ImageFolder(tmp_path)
    assert "<root>/<class>/" in raised.value.hint


def test_splits_with_other_class_folders(tmp_path: Path) -> None:
    """torchvision numbers the folders of each split by themselves; two datasets must agree."""
    make_tree(tmp_path / "in/train", ["cat/0.jpg", "dog/1.jpg"])
    make_tree(tmp_path / "in/val", ["dog/2.jpg"])
    make_tree(tmp_path / "in/test", ["unknown/3.jpg"])
    pack(ImageFolder(tmp_path / "in/train"), tmp_path / "train", workers=1)
    with pytest.raises(
        UsageError, match="the label 0 would be 'dog', but it is 'cat' in"
    ) as caught:
        pack(ImageFolder(tmp_path / "in/val"), tmp_path / "val", workers=1)
    assert "--allow-empty" in caught.value.hint
    (tmp_path / "in/val/cat").mkdir()
    pack(ImageFolder(tmp_path / "in/val", allow_empty=True), tmp_path / "val", workers=1)
    pack(ImageFolder(tmp_path / "in/test"), tmp_path / "test", workers=1)
    make_tree(tmp_path / "in/other", ["dog/2.jpg"])  # no split
    pack(ImageFolder(tmp_path / "in/other"), tmp_path / "other", workers=1)


def test_root_may_be_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_tree(tmp_path / "in", ["a/1.jpg"])
    monkeypatch.chdir(tmp_path / "in")
    result = convert("imagefolder", "--root", ".", "--to", "folder", "--out", "../out")
    assert result.exit_code == 0, result.output
    monkeypatch.chdir(tmp_path)
    assert ImageDataset("out").read([0]) == [jpeg(0)]
