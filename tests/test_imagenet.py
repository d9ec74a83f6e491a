"""ImageNet in its three layouts: the same dataset from each, whatever is odd about it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from fastdata.converters import ImageNet, ImageSource, pack
from fastdata.converters.imagenet import splits
from fastdata.converters.options import PackOptions
from sources import (
    Expected,
    SourceConformance,
    contents_but_source,
    convert,
    encoded,
    imagenet_expected,
    jpeg,
    make_archives,
    make_devkit,
    make_kaggle,
    make_tree,
    picture,
    require_said,
    tar_bytes,
)
from tiers import first_of

from fastdata import ImageDataset
from fastdata.errors import SourceError, UsageError
from fastdata.maintenance.verify import verify

pytestmark = pytest.mark.usefixtures("own_folder")

LAYOUTS = ("folders", "kaggle", "archives")


def make_layouts(tree: Path, out: Path) -> dict[str, Path]:
    return {
        "folders": tree,
        "kaggle": make_kaggle(tree, out / "kaggle"),
        "archives": make_archives(tree, out / "archives"),
    }


@pytest.fixture(scope="module")
def made_layouts(made_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return make_layouts(made_tree, tmp_path_factory.mktemp("layouts"))


class ImageNetConformance(SourceConformance):
    layout = split = ""

    @pytest.fixture
    def sources(self, made_layouts: dict[str, Path]) -> list[ImageSource]:
        return [ImageNet(made_layouts[self.layout], self.split) for _ in range(2)]

    @pytest.fixture
    def expected(self, made_tree: Path) -> Expected:
        return imagenet_expected(made_tree, self.split)


class TestFoldersTrain(ImageNetConformance):
    layout, split = "folders", "train"


class TestFoldersVal(ImageNetConformance):
    layout, split = "folders", "val"


class TestKaggleTrain(ImageNetConformance):
    layout, split = "kaggle", "train"


class TestKaggleVal(ImageNetConformance):
    layout, split = "kaggle", "val"


class TestArchivesTrain(ImageNetConformance):
    layout, split = "archives", "train"


class TestArchivesVal(ImageNetConformance):
    layout, split = "archives", "val"


def require_same_datasets(
    layouts: dict[str, Path], split: str, container: str, out: Path, shard_size: int
) -> None:
    """Packs a split from every layout; all files but the manifest's source must agree."""
    size = None if container == "lmdb" else shard_size
    found = {}
    for layout in LAYOUTS:
        source = ImageNet(layouts[layout], split)
        assert source.origin["layout"] == layout
        pack(
            source,
            out / layout,
            container=container,
            options=PackOptions(shard_size=size, shuffle=False),
            workers=1,
        )
        found[layout] = contents_but_source(out / layout)
        if layout != "folders":
            assert found[layout] == found["folders"]
            shutil.rmtree(out / layout)
    if size is not None:
        assert len(found["folders"]) > 3, "one file would not show that all are cut alike"
    # And they are not the same by all being wrong.
    expected = imagenet_expected(layouts["folders"], split)
    dataset = ImageDataset(out / "folders")
    assert dataset.classes == expected.classes
    assert len(dataset) == len(expected.samples)
    for number, (key, name, data) in enumerate(expected.samples):
        row = dataset.row(number)
        assert (row.key, dataset.classes[row.label]) == (key, name)
        assert dataset.read([number]) == [data]
    shutil.rmtree(out / "folders")


@pytest.mark.parametrize("split", ["train", "val"])
@pytest.mark.parametrize("container", first_of(["shards", "lmdb", "parquet"]))
class TestLayoutsGiveIdenticalDatasets:
    def test_made(
        self, made_layouts: dict[str, Path], tmp_path: Path, container: str, split: str
    ) -> None:
        require_same_datasets(made_layouts, split, container, tmp_path, 2 << 20)


def test_folder_container_of_kaggle_layout(made_layouts: dict[str, Path], tmp_path: Path) -> None:
    for split in ("train", "val"):
        source = ImageNet(made_layouts["kaggle"], split)
        pack(source, tmp_path / split, container="folder", workers=1)
        expected = imagenet_expected(made_layouts["folders"], split)
        dataset = ImageDataset(tmp_path / split)
        assert dataset.read(range(len(dataset))) == [data for _, _, data in expected.samples]


WNIDS = ["n01440764", "n02085620", "n03000134", "n04554684"]


def small_tree(root: Path, train: list[str], val: list[str]) -> Path:
    make_tree(root, [f"train/{wnid}/{wnid}_{n}.JPEG" for wnid in train for n in (10, 9)])
    numbers = range(7, 100, 3)
    names = [f"val/{wnid}/ILSVRC2012_val_{n:08d}.JPEG" for wnid, n in zip(val, numbers)]  # noqa: B905
    return make_tree(root, names)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_val_labels_agree_with_train(tmp_path: Path, layout: str) -> None:
    tree = small_tree(tmp_path / "tree", WNIDS, [WNIDS[3], WNIDS[1]])
    root = make_layouts(tree, tmp_path / "out")[layout]
    train, val = ImageNet(root, "train"), ImageNet(root, "val")
    assert val.classes == train.classes == WNIDS
    assert [record.label for record in val.records()] == [1, 3]
    assert [record.label for record in train.records()] == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_val_with_a_class_that_train_lacks_is_refused(tmp_path: Path, layout: str) -> None:
    tree = small_tree(tmp_path / "tree", WNIDS[:2], WNIDS)
    root = make_layouts(tree, tmp_path / "out")[layout]
    result = convert("imagenet", "--root", root, "--split", "val", "--out", tmp_path / "dataset")
    require_said(result, 1, root, "2 classes that train lacks", WNIDS[2], "Complete train")
    assert not (tmp_path / "dataset").exists()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_classes_are_vals_where_there_is_no_train(tmp_path: Path, layout: str) -> None:
    tree = small_tree(tmp_path / "tree", [], [WNIDS[2], WNIDS[0], WNIDS[2]])
    root = make_layouts(tree, tmp_path / "out")[layout]
    assert splits(root) == ["val"]
    val = ImageNet(root, "val")
    assert val.classes == [WNIDS[0], WNIDS[2]]
    assert [record.label for record in val.records()] == [0, 1, 1]


def test_order_within_a_class_is_by_file_name(tmp_path: Path) -> None:
    root = small_tree(tmp_path, WNIDS[:1], [])
    keys = [record.key for record in ImageNet(root, "train").records()]
    assert keys == ["n01440764/n01440764_10", "n01440764/n01440764_9"]


class TestDefaults:
    @pytest.mark.parametrize("by_environment", [False, True])
    def test_bare_command(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_environment: bool
    ) -> None:
        work = tmp_path / "work"
        work.mkdir()
        monkeypatch.chdir(work)
        root = tmp_path / "elsewhere" if by_environment else work / "imagenet"
        small_tree(root, WNIDS, WNIDS[:2])
        if by_environment:
            monkeypatch.setenv("IMAGENET_DIR", str(root))
            # The environment comes first.
            small_tree(work / "imagenet", WNIDS[:1], [])
        result = convert("imagenet")
        assert result.exit_code == 0, result.output
        assert "imagenet-train-lmdb: 8 samples of 4 classes" in result.stdout
        assert "imagenet-val-lmdb: 2 samples of 4 classes" in result.stdout
        made = {path.name for path in work.iterdir()} - {"imagenet"}
        assert made == {"imagenet-train-lmdb", "imagenet-val-lmdb"}
        for split, samples in (("train", 8), ("val", 2)):
            dataset = ImageDataset(work / f"imagenet-{split}-lmdb")
            assert (len(dataset), dataset.classes) == (samples, WNIDS)
            assert (work / f"imagenet-{split}-lmdb" / "data.mdb").is_file()

    def test_one_out_for_two_splits(self, tmp_path: Path) -> None:
        small_tree(tmp_path / "imagenet", WNIDS, WNIDS)
        result = convert("imagenet", "--root", tmp_path / "imagenet", "--out", tmp_path / "x")
        require_said(result, 2, "--out", "train and val", "--split", "{split}")

    def test_unknown_split(self, tmp_path: Path) -> None:
        require_said(convert("imagenet", "--split", "test"), 2, "--split", "test")
        with pytest.raises(UsageError, match="no split test"):
            ImageNet(tmp_path, "test")


def broken_exif() -> bytes:
    """A JPEG whose EXIF directory claims more entries than it has."""
    exif = b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01\x0f\0\x02\0\0\0\x06"
    plain = jpeg(5)
    return plain[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + plain[2:]


ODD = {
    "png": (encoded(picture(1), "PNG"), "png", 3),
    "cmyk": (encoded(picture(2, mode="CMYK")), "jpeg", 4),
    "grey": (encoded(picture(3, mode="L")), "jpeg", 1),
    "progressive": (encoded(picture(4), progressive=True), "jpeg-progressive", 3),
    "exif": (broken_exif(), "jpeg", 3),
    "subsampled": (encoded(picture(6), subsampling=2), "jpeg", 3),
    "trailing": (jpeg(7) + b"\r\n trailing bytes", "jpeg", 3),
}


@pytest.mark.parametrize("container", first_of(["lmdb", "parquet", "shards", "folder"]))
def test_oddities_are_packed_as_they_are(tmp_path: Path, container: str) -> None:
    folder = tmp_path / "imagenet" / "train" / WNIDS[0]
    folder.mkdir(parents=True)
    for name, (data, _, _) in ODD.items():
        (folder / f"{name}.JPEG").write_bytes(data)
    out = tmp_path / "out"
    result = convert("imagenet", "--root", tmp_path / "imagenet", "--to", container, "--out", out,
                     "--no-shuffle")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert not (out / "_bad-samples.jsonl").exists()
    dataset = ImageDataset(out)
    for number, name in enumerate(sorted(ODD)):
        data, encoding, channels = ODD[name]
        row = dataset.row(number)
        assert row.key == f"{WNIDS[0]}/{name}"
        assert (row.encoding, row.channels, row.width, row.height) == (encoding, channels, 48, 36)
        assert dataset.read([number]) == [data]
        image, label = dataset[number]
        assert (image.mode, image.size, label) == ("RGB", (48, 36), 0)
    assert verify(out, workers=1).problems == []


class TestContradictions:
    def test_nothing_there(self, tmp_path: Path) -> None:
        result = convert("imagenet", "--root", tmp_path)
        require_said(
            result, 1, tmp_path, "train/<wnid>/", "ILSVRC/Data/CLS-LOC/train/",
            "ILSVRC2012_img_train.tar", "--root", "$IMAGENET_DIR",
        )  # fmt: skip

    def test_folder_that_is_no_wnid(self, tmp_path: Path) -> None:
        make_tree(tmp_path, [f"train/{WNIDS[0]}/a.JPEG", "train/cats/b.JPEG"])
        result = convert("imagenet", "--root", tmp_path)
        require_said(result, 1, tmp_path / "train", "cats is not a wnid", "imagefolder")

    def test_kaggle_without_solution(self, tmp_path: Path) -> None:
        tree = small_tree(tmp_path / "tree", WNIDS, WNIDS)
        root = make_kaggle(tree, tmp_path / "kaggle")
        (root / "LOC_val_solution.csv").unlink()
        result = convert("imagenet", "--root", root)
        require_said(result, 1, root / "LOC_val_solution.csv", "Kaggle")

    @pytest.mark.parametrize(
        "line", ["ILSVRC2012_val_00000001", "ILSVRC2012_val_00000001,", "a,b c", 'a,"\0']
    )
    def test_kaggle_solution_with_a_broken_line(self, tmp_path: Path, line: str) -> None:
        tree = small_tree(tmp_path / "tree", WNIDS, WNIDS)
        root = make_kaggle(tree, tmp_path / "kaggle")
        with (root / "LOC_val_solution.csv").open("a") as file:
            file.write(line + "\n")
        result = convert("imagenet", "--root", root)
        require_said(result, 1, root / "LOC_val_solution.csv")

    def test_kaggle_image_without_class(self, tmp_path: Path) -> None:
        tree = small_tree(tmp_path / "tree", WNIDS, WNIDS)
        root = make_kaggle(tree, tmp_path / "kaggle")
        make_tree(root / "ILSVRC/Data/CLS-LOC/val", ["ILSVRC2012_val_00009999.JPEG"])
        result = convert("imagenet", "--root", root)
        require_said(result, 1, "ILSVRC2012_val_00009999", "LOC_val_solution.csv", "Remove")

    def test_val_archive_without_devkit(self, tmp_path: Path) -> None:
        tree = small_tree(tmp_path / "tree", WNIDS, WNIDS)
        root = make_archives(tree, tmp_path / "archives")
        kit = root / "ILSVRC2012_devkit_t12.tar.gz"
        data = bytearray(kit.read_bytes())
        data[-6] ^= 1  # its checksum: nothing of a damaged kit is read, as SciPy might crash
        kit.write_bytes(data)
        require_said(convert("imagenet", "--root", root), 1, kit, "not the development kit")
        os.truncate(kit, kit.stat().st_size // 2)
        result = convert("imagenet", "--root", root)
        require_said(result, 1, kit, "not the development kit", "download it")
        kit.unlink()
        result = convert("imagenet", "--root", root)
        require_said(result, 1, kit, "missing", "Download it", "--split train")

    def test_val_archive_with_an_image_beyond_the_ground_truth(self, tmp_path: Path) -> None:
        root = tmp_path
        members = [("ILSVRC2012_val_00000009.JPEG", jpeg())]
        (root / "ILSVRC2012_img_val.tar").write_bytes(tar_bytes(members))
        make_devkit(root, WNIDS, {2: WNIDS[0]})
        result = convert("imagenet", "--root", root)
        require_said(result, 1, root / "ILSVRC2012_img_val.tar", "ground truth")

    def test_train_archive_with_something_else_in_it(self, tmp_path: Path) -> None:
        path = tmp_path / "ILSVRC2012_img_train.tar"
        path.write_bytes(tar_bytes([("cats.tar", tar_bytes([("a.JPEG", jpeg())]))]))
        with pytest.raises(SourceError, match="cats is not a wnid"):
            ImageNet(tmp_path, "train")

    def test_train_archive_with_an_empty_class(self, tmp_path: Path) -> None:
        path = tmp_path / "ILSVRC2012_img_train.tar"
        full = tar_bytes([("a.JPEG", jpeg())])
        path.write_bytes(tar_bytes([("n00000001.tar", tar_bytes([])), ("n00000002.tar", full)]))
        out = tmp_path / "out"
        result = convert("imagenet", "--root", tmp_path, "--out", out)
        require_said(result, 1, path, "n00000001.tar has no images", "--allow-empty")
        result = convert("imagenet", "--root", tmp_path, "--out", out, "--allow-empty")
        assert result.exit_code == 0, result.output
        dataset = ImageDataset(out)
        assert dataset.classes == ["n00000001", "n00000002"]
        assert dataset.labels.tolist() == [1]
