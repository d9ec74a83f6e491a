"""The shards: conformance, the webdataset package, tarfile, and odd keys."""

from __future__ import annotations

import gc
import json
import tarfile
import warnings
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from containers import FileContainerConformance, Made, originals, pack_tree, png
from fastdata.converters import Encoding, WebDataset
from hypothesis import given, settings
from hypothesis import strategies as st
from sources import tar_bytes

from fastdata import ImageDataset
from fastdata.errors import CorruptionError
from fastdata.storage.formats.shards import extents, member_head


def shards(dataset: Path) -> list[str]:
    return sorted(map(str, dataset.glob("shard-*.tar")))


def web_samples(dataset: Path, *, decode: str | None = None) -> list[dict[str, Any]]:
    webdataset = pytest.importorskip("webdataset")
    reader = webdataset.WebDataset(shards(dataset), shardshuffle=False)
    if decode is not None:
        reader = reader.decode(decode)
    with warnings.catch_warnings():
        # It leaves closing the shards to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        samples = list(reader)
        gc.collect()
    return samples


class TestShards(FileContainerConformance):
    container = "shards"
    beside: ClassVar = {".huggingface.yaml"}

    def test_hugging_face_datasets_reads_it(self, made: Made, hugging_face: Any) -> None:
        found = hugging_face.load_dataset(str(made.path), split="train")
        assert found["__key__"] == [image.key for image in made.images]
        assert isinstance(found.features["jpg"], hugging_face.Image)

    def test_webdataset_iterates_it(self, made: Made) -> None:
        assert len(shards(made.path)) > 1
        classes = sorted(folder.name for folder in made.tree.iterdir())
        for image, sample in zip(made.images, web_samples(made.path), strict=True):
            assert sample["__key__"] == image.key
            assert sample["cls"] == str(image.label).encode()
            about = json.loads(sample["json"])
            assert (about["key"], about["label"]) == (image.key, image.label)
            assert about["class"] == classes[image.label]
            blob = sample["jpg"] if "jpg" in sample else sample["png"]
            assert blob == image.path.read_bytes()

    def test_the_code_of_the_formats_page_runs(
        self, made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pytest.importorskip("webdataset")
        monkeypatch.chdir(tmp_path)
        (tmp_path / "imagenet-train-shards").symlink_to(made.path)
        page = Path(__file__).resolve().parent.parent / "docs" / "formats" / "shards.md"
        code = page.read_text("utf-8").split("```python\n")[1].split("```")[0]
        last = len(shards(made.path)) - 1
        names: dict[str, Any] = {}
        exec(code.replace("000583", f"{last:06d}"), names)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            labels = [label for _, label in names["ds"]]
            gc.collect()
        assert labels == [image.label for image in made.images]


def test_raw_pixels_are_arrays(made_tree: Path, tmp_path: Path) -> None:
    tree = made_tree / "val"
    pack_tree(tree, tmp_path / "raw", "shards", encoding=Encoding("raw", max_side=64))
    dataset = ImageDataset(tmp_path / "raw")
    samples = web_samples(tmp_path / "raw", decode="rgb8")
    assert len(samples) == len(dataset) == len(originals(tree))
    for number, sample in enumerate(samples):
        image, label = dataset[number]
        assert sample["npy"].dtype == np.uint8
        assert np.array_equal(sample["npy"], np.asarray(image))
        assert sample["cls"] == label


ODD_NAMES = ["a.b.c", "50%", "x%2Ey", ".hidden", "plain", "trailing.", "über", "n" * 150]


@pytest.fixture
def odd_tree(tmp_path: Path) -> Path:
    folder = tmp_path / "tree" / "v1.0%"
    folder.mkdir(parents=True)
    for number, name in enumerate(ODD_NAMES):
        (folder / f"{name}.png").write_bytes(png(colour=(number, 0, 0)))
    return tmp_path / "tree"


def test_keys_with_dots_and_per_cent_signs(odd_tree: Path, tmp_path: Path) -> None:
    pack_tree(odd_tree, tmp_path / "odd", "shards")
    expected = {f"v1.0%/{name}" for name in ODD_NAMES}
    dataset = ImageDataset(tmp_path / "odd")
    assert {dataset.row(i).key for i in range(len(dataset))} == expected
    samples = web_samples(tmp_path / "odd")
    assert {json.loads(sample["json"])["key"] for sample in samples} == expected
    for sample in samples:
        name = json.loads(sample["json"])["key"].rpartition("/")[2]
        assert sample["png"] == png(colour=(ODD_NAMES.index(name), 0, 0))
    assert len({sample["__key__"] for sample in samples}) == len(ODD_NAMES)


def test_shards_packed_again_are_the_same(odd_tree: Path, tmp_path: Path) -> None:
    pack_tree(odd_tree, tmp_path / "once", "shards")
    pack_tree(WebDataset(tmp_path / "once"), tmp_path / "twice", "shards")
    once, twice = (tmp_path / name / "shard-000000.tar" for name in ("once", "twice"))
    assert twice.read_bytes() == once.read_bytes()


def test_foreign_and_broken_tars(tmp_path: Path) -> None:
    path = tmp_path / "shard.tar"
    path.write_bytes(b"not a tar file" * 100)
    with pytest.raises(CorruptionError, match="tar file"):
        list(extents(path))
    path.write_bytes(tar_bytes([("../escape.jpg", b"")]))
    with pytest.raises(CorruptionError, match="outside the folder"):
        list(extents(path))
    path.write_bytes(tar_bytes([("class/1.npy", b"not numpy's magic....")]))
    with pytest.raises(CorruptionError):
        list(extents(path))


@settings(max_examples=150)
@given(
    st.one_of(
        st.text(st.characters(exclude_categories=["Cs"]), max_size=130),
        st.text("ab/.-_0", max_size=130),
    ),
    st.one_of(st.integers(0, 1 << 20), st.integers(8**11 - 2, 8**11 + 2), st.integers(0, 1 << 40)),
)
def test_heads_are_tarfiles(name: str, size: int) -> None:
    info = tarfile.TarInfo(name)
    info.size = size
    assert member_head(name, size) == info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
