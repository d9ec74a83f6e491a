"""Datasets on the Hub, as ``hf://datasets/owner/name``: the rows of ``datasets.load_dataset``."""

from __future__ import annotations

import io
import json
import tarfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastdata.converters import index
from hub_datasets import NAMES, cell, jpeg
from hub_server import SHA, TOKEN, Hub, hub_at

from fastdata import DataLoader, ImageDataset
from fastdata.errors import RemoteError, SourceError, UsageError
from fastdata.transforms import Resize

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*indexed now:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*a row group at a time:fastdata.errors.SlowPathWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def parquet(path: Path, numbers: range, compression: str = "none") -> None:
    images = pa.array(
        [cell(jpeg(n), f"{n}.jpg") for n in numbers],
        pa.struct([("bytes", pa.binary()), ("path", pa.string())]),
    )
    table = pa.table({"image": images, "label": [n % 3 for n in numbers],
                      "text": [f"text {n}" for n in numbers]})  # fmt: skip
    features = {
        "image": {"_type": "Image"},
        "label": {"_type": "ClassLabel", "names": NAMES},
        "text": {"_type": "Value", "dtype": "string"},
    }
    table = table.replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=3, compression=compression, use_dictionary=False)


def readme(root: Path, configs: list[Any]) -> None:
    (root / "README.md").write_text(
        f"---\nlicense: mit\nconfigs: {json.dumps(configs)}\n---\n# Pets"
    )


def sharded(root: Path) -> None:
    for number in range(2):
        name, first = f"data/train-{number:05}-of-00002.parquet", 4 * number
        parquet(root / name, range(first, first + 4))
    parquet(root / "data/test-00000-of-00001-0a1b2c.parquet", range(20, 23))
    (root / "README.md").write_text("# No front matter")


def snappy(root: Path) -> None:
    parquet(root / "data/train-00000-of-00001.parquet", range(8), "snappy")


def in_folders(root: Path) -> None:
    parquet(root / "train/a.parquet", range(4))
    parquet(root / "train/b.parquet", range(4, 6))
    parquet(root / "validation/a.parquet", range(6, 9))


def by_words(root: Path) -> None:
    parquet(root / "pets_training.parquet", range(4))
    parquet(root / "pets-dev.parquet", range(4, 6))


def single(root: Path) -> None:
    parquet(root / "pets.parquet", range(4))


def two_configs(root: Path) -> None:
    for name, first in (("cats", 0), ("dogs", 10)):
        parquet(root / name / "train-0.parquet", range(first, first + 3))
        parquet(root / name / "test-0.parquet", range(first + 3, first + 5))
    readme(
        root,
        [
            {
                "config_name": name,
                "data_files": [
                    {"split": "train", "path": f"{name}/train-*"},
                    {"split": "test", "path": [f"{name}/test-*"]},
                ],
            }
            for name in ("cats", "dogs")
        ],
    )


def with_default(root: Path) -> None:
    two_configs(root)
    about = [
        {"config_name": "cats", "data_dir": "cats"},
        {"config_name": "dogs", "data_files": "dogs/*.parquet", "default": True},
    ]
    readme(root, about)


def tars(root: Path) -> None:
    for number in range(2):
        with tarfile.open(root / f"pets-train-{number:03}.tar", "w") as tar:
            for n in range(4 * number, 4 * number + 4):
                for suffix, data in (("jpg", jpeg(n)), ("txt", f"text {n}".encode())):
                    member = tarfile.TarInfo(f"n{n:03}.{suffix}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))


def images(root: Path, folder: Callable[[int], str] = lambda n: NAMES[n % 3]) -> None:
    for n in range(7):
        path = root / "train" / folder(n) / f"{n}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(n))


def captioned(root: Path) -> None:
    images(root, lambda n: "images")
    lines = [{"file_name": f"images/{n}.jpg", "text": f"text {n}"} for n in range(7)]
    (root / "train/metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))


def captioned_csv(root: Path) -> None:
    images(root, lambda n: "")
    rows = [f"{n}.jpg,text {n}" for n in range(7)]
    (root / "train/metadata.csv").write_text("\n".join(["file_name,text", *rows]))


#: Writer of a dataset's files, what follows its URL, the arguments of load_dataset, and the field
#: of its images.
CASES: list[tuple[Callable[[Path], None], str, dict[str, str], str]] = [
    (sharded, "/train", {"split": "train"}, "image"),
    (sharded, "/test", {"split": "test"}, "image"),
    (sharded, "/data/train-00001-of-00002.parquet",
     {"split": "train", "data_files": "data/train-00001-of-00002.parquet"}, "image"),
    (snappy, "", {"split": "train"}, "image"),
    (in_folders, "/validation", {"split": "validation"}, "image"),
    (by_words, "/validation", {"split": "validation"}, "image"),
    (single, "", {"split": "train"}, "image"),
    (two_configs, "/cats/test", {"name": "cats", "split": "test"}, "image"),
    (with_default, "", {"split": "train"}, "image"),
    (tars, "", {"split": "train"}, "jpg"),
    (images, "", {"split": "train"}, "image"),
    (captioned, "", {"split": "train"}, "image"),
    (captioned_csv, "", {"split": "train"}, "image"),
]  # fmt: skip


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("FASTDATA_CACHE_DIR", str(tmp_path / "kept"))
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # another test may have imported it
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    (tmp_path / "hub").mkdir()
    with hub_at(tmp_path / "hub") as server:
        yield server


def made(hub: Hub, write: Callable[[Path], None], owner: str = "owner") -> Path:
    root = hub.folder / owner / "pets"
    root.mkdir(parents=True)
    write(root)
    return root


def stored(row: dict[str, Any], image: str) -> bytes:
    value = row[image]
    found: bytes = value["bytes"] or Path(value["path"]).read_bytes()
    return found


@pytest.mark.parametrize(("write", "below", "asked", "image"), CASES)
def test_rows_are_those_of_load_dataset(
    write: Any, below: str, asked: Any, image: str, hub: Hub, request: pytest.FixtureRequest
) -> None:
    root = made(hub, write)
    options, out = {"storage_options": hub.storage_options}, hub.folder.parent / "index"
    index(f"hf://datasets/owner/pets{below}", out, workers=1, **options)
    dataset = ImageDataset(out, **options)
    hugging_face = request.getfixturevalue("hugging_face")  # which goes offline
    expected = hugging_face.load_dataset(str(root), **asked)
    expected = expected.cast_column(image, hugging_face.Image(decode=False))
    assert dataset.read(range(len(dataset))) == [stored(row, image) for row in expected]
    names = [field.name for field in dataset.source.fields]
    assert ("label" in names) == ("label" in expected.column_names)
    if "label" in names:
        assert dataset.targets == expected["label"]
        assert dataset.classes == expected.features["label"].names
    for own, theirs in (("text", "text"), ("txt", "txt")):
        assert (own in names) == (theirs in expected.column_names)
        if own in names:
            assert dataset.column(own).to_pylist() == list(expected[theirs])
    assert SHA in str(dataset.manifest.root)


@pytest.mark.parametrize("write", [sharded, pytest.param(snappy, marks=pytest.mark.slow)])
def test_loaders_read_the_hub(write: Any, hub: Hub) -> None:
    made(hub, write)
    place = "hf://datasets/owner/pets/train"
    dataset = ImageDataset(
        place, Resize((9, 9)), fields=("image", "text"), storage_options=hub.storage_options
    )
    for workers in (0, 2):
        loader: Any = DataLoader(dataset, 3, shuffle=True, num_workers=workers, require_native=True)
        texts = sorted(text for batch in loader for text in batch["text"])
        assert texts == [f"text {n}" for n in range(8)]


@pytest.mark.slow
def test_an_index_is_kept_until_the_revision_changes(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(hub, single)
    place = "hf://datasets/owner/pets"
    with pytest.warns(UserWarning, match="indexed now"):
        ImageDataset(place, storage_options=hub.storage_options)
    before = hub.sent.copy()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for revision in ("", "@main", "@v1", f"@{SHA}"):
            found = ImageDataset(f"{place}{revision}", storage_options=hub.storage_options)
            assert len(found) == 4
    assert hub.sent == before
    monkeypatch.setattr("hub_server.SHA", SHA[::-1])
    with pytest.warns(UserWarning, match="indexed now"):
        ImageDataset(place, storage_options=hub.storage_options)


def test_uncompressed_images_are_read_by_ranges(hub: Hub) -> None:
    root = made(hub, single)
    made_of = (root / "pets.parquet").stat().st_size
    out, options = root.parent / "out", {"storage_options": hub.storage_options}
    index("hf://datasets/owner/pets", out, workers=1, **options)
    dataset = ImageDataset(out, **options)
    assert dataset.manifest.container == "archives"
    hub.sent.clear()
    assert dataset.read([2]) == [jpeg(2)]
    assert hub.sent["pets.parquet"] == len(jpeg(2)) < made_of / 3


def test_several_splits_and_configs_are_listed(hub: Hub, tmp_path: Path) -> None:
    made(hub, sharded)
    options: Any = {"out": tmp_path / "out", "storage_options": hub.storage_options}
    with pytest.raises(UsageError, match=r"splits train, test\nName one: hf:.*owner/pets/train"):
        index("hf://datasets/owner/pets", **options)
    with pytest.raises(UsageError, match=r"no folder, config or split dev\nIt has train, test"):
        index("hf://datasets/owner/pets/dev", **options)
    made(hub, two_configs, "other")
    with pytest.raises(UsageError, match="configs cats, dogs"):
        index("hf://datasets/other/pets", **options)
    with pytest.raises(UsageError, match="splits train, test"):
        index("hf://datasets/other/pets/cats", **options)


def test_what_is_not_there_or_not_allowed(hub: Hub, tmp_path: Path) -> None:
    options = {"storage_options": hub.storage_options}
    made(hub, lambda root: (root / "data.zip").write_bytes(b"PK"))
    for place, error, text in (
        ("owner/none", SourceError, "no such dataset or revision"),
        ("owner/pets@v9", SourceError, "no such dataset or revision"),
        ("pets", UsageError, "Write hf://datasets/owner/name"),
        ("owner/pets", SourceError, "no Parquet files, tars or images.*zip"),
    ):
        with pytest.raises(error, match=f"(?s){text}"):
            index(f"hf://datasets/{place}", tmp_path / "out", **options)
    made(hub, single, "private")
    with pytest.raises(SourceError, match="may not be read"):
        index("hf://datasets/private/pets", tmp_path / "out", **options)
    allowed = {"storage_options": {**hub.storage_options, "token": TOKEN}}
    dataset = ImageDataset("hf://datasets/private/pets", **allowed)
    assert dataset.read([1]) == [jpeg(1)]
    found = b"".join(path.read_bytes() for path in (tmp_path / "kept").rglob("*") if path.is_file())
    assert found and TOKEN.encode() not in found


def test_a_hub_that_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastdata.remote.retries.TRIES", 1)
    options = {"endpoint": "http://127.0.0.1:9", "token": False}
    with pytest.raises(RemoteError, match="finding its revision"):
        ImageDataset("hf://datasets/owner/pets", storage_options=options)
