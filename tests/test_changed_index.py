"""An index that is written to while it is open is an error, not the end of the process."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from containers import load_manifest, pack_tree
from fastdata.converters import TableImages, pack
from fastdata.converters.options import PackOptions
from hangs import HANG
from PIL import Image
from tiers import first_of, slow

from fastdata import DataLoader, ImageDataset, _native, verify
from fastdata.errors import CorruptionError, DatasetError
from fastdata.transforms import CenterCrop

# A process of its own: nothing may end it.
_SCRIPT = """
import os, shutil, sys, warnings
from fastdata import DataLoader, ImageDataset
from fastdata.errors import CorruptionError
from fastdata.transforms import CenterCrop
from fastdata.transforms import RandomResizedCrop

folder, other = sys.argv[1:]
index = f"{folder}/_index.rows"
dataset = ImageDataset(folder, RandomResizedCrop(8))
loader = DataLoader(dataset, 4, num_workers=2, fields=("image", "label", "key"))
torchs = ImageDataset(folder)
list(loader)
torchs[3]

DAMAGE

uses = {
    "a pass": lambda: list(loader),
    "a new loader": lambda: list(DataLoader(dataset, 4, num_workers=2)),
    "an item": lambda: torchs[3],
    "items": lambda: dataset.__getitems__([1, 2]),
    "a row": lambda: torchs.row(5),
    "labels": lambda: torchs.labels,
}
for name, use in uses.items():
    try:
        use()
    except CorruptionError as error:
        assert str(error).startswith(f"{index}: the index has changed since it was opened"), error
    else:
        raise AssertionError(name)
"""

_DAMAGES = {
    "cut to nothing": "os.truncate(index, 0)",
    "cut to a half": "os.truncate(index, os.path.getsize(index) // 2)",
    "another copied over it": "shutil.copyfile(f'{other}/_index.rows', index)",
    "overwritten in place": "open(index, 'r+b').write(bytes(os.path.getsize(index)))",
}


@pytest.mark.parametrize("damage", first_of(_DAMAGES))
def test_an_index_that_changes_while_open(made_tree: Path, tmp_path: Path, damage: str) -> None:
    pack_tree(made_tree / "train", tmp_path / "out", "shards", unit_size=None, seek_points=64)
    pack_tree(made_tree / "val", tmp_path / "other", "shards", unit_size=None)
    script = textwrap.dedent(_SCRIPT).replace("DAMAGE", _DAMAGES[damage])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, tmp_path / "out", tmp_path / "other"],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_index_that_is_replaced(made_tree: Path, tmp_path: Path) -> None:
    pack_tree(made_tree / "train", tmp_path / "out", "shards", unit_size=None)
    dataset = ImageDataset(tmp_path / "out")
    keys = [dataset.row(i).key for i in range(len(dataset))]
    labels = dataset.labels.tolist()
    index = dataset.source.index.path
    shutil.copyfile(index, tmp_path / "new")
    (tmp_path / "new").rename(index)
    assert [dataset.row(i).key for i in range(len(dataset))] == keys
    assert dataset.labels.tolist() == labels


def pack_captions(folder: Path, order: list[int], container: str) -> Path:
    """Pack images whose colour, text and label follow from their numbers, over what is there."""
    folder.mkdir(exist_ok=True)
    for number in order:
        Image.new("RGB", (8, 8), (number, 0, 77)).save(folder / f"{number}.png")
    table = {"path": [f"{n}.png" for n in order], "txt": [f"text {n}" for n in order]}
    source = TableImages(pa.table(table | {"label": [n % 3 for n in order]}), folder)
    options = PackOptions(shuffle=None if container == "lmdb" else False)
    pack(source, folder / "out", container=container, workers=1, force=True, options=options)
    return folder / "out"


def captions(dataset: Path) -> ImageDataset:
    return ImageDataset(dataset, CenterCrop(8), fields=("image", "txt"))


@pytest.mark.parametrize("container", ["lmdb", slow("shards"), slow("folder")])
def test_a_dataset_that_is_packed_again_while_it_is_open(tmp_path: Path, container: str) -> None:
    out = pack_captions(tmp_path, [0, 1, 2, 3], container)
    dataset = captions(out)
    text = pickle.dumps(dataset)
    pack_captions(tmp_path, [3, 2, 1, 0], container)
    uses: list[Callable[[], object]] = [
        lambda: dataset[0],
        lambda: dataset.column("txt"),
        lambda: pickle.loads(text),
        lambda: list(DataLoader(dataset, 2)),
    ]
    for use in uses:
        with pytest.raises(CorruptionError, match="packed again, or removed, while open"):
            use()
    if container == "lmdb":
        options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "spawn"}
        # Torch reports so a worker that cannot unpickle its dataset.
        with pytest.raises(RuntimeError, match="exited unexpectedly"):
            list(torch.utils.data.DataLoader(dataset, None, **options))
    sample = captions(out)[0]
    assert (int(sample["image"][0, 0, 0]), sample["txt"]) == (3, "text 3")


@pytest.mark.parametrize("container", ["lmdb", slow("shards"), slow("parquet")])
def test_files_of_another_packing_are_named(tmp_path: Path, container: str) -> None:
    one = pack_captions(tmp_path / "one", [0, 1, 2, 3], container)
    two = pack_captions(tmp_path / "two", [3, 2, 1, 0], container)
    mixed = tmp_path / "mixed"
    for name in ["_index.rows", *(entry["name"] for entry in load_manifest(one)["files"])]:
        shutil.copytree(one, mixed)
        shutil.copy(two / name, mixed / name)
        with pytest.raises(CorruptionError):
            list(DataLoader(captions(mixed), 4))
        for fast in (True, False):
            try:
                problems = verify(mixed, fast=fast, workers=1).problems
                found = [problem.where for problem in problems]
            except CorruptionError as error:
                found = [error.what]
            assert any(name in where for where in found)
        shutil.rmtree(mixed)


def test_too_many_open_files(tmp_path: Path, limited: Callable[[int], None]) -> None:
    dataset = captions(pack_captions(tmp_path, [0, 1], "lmdb"))
    before = dataset[0]
    limited(len(os.listdir("/proc/self/fd")) + 8)
    while _native.close_files():
        pass
    others: list[int] = []
    try:
        with suppress(OSError):
            while True:
                others.append(os.open(tmp_path / "0.png", os.O_RDONLY))
        with pytest.raises(DatasetError) as caught:
            dataset[0]
    finally:
        for other in others:
            os.close(other)
    assert not isinstance(caught.value, CorruptionError)
    assert torch.equal(dataset[0]["image"], before["image"])
