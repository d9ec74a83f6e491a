"""An index that is written to while it is open is an error, not the end of the process."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from containers import pack_tree
from hangs import HANG

from fastdata import ImageDataset

# A process of its own: nothing may end it.
_SCRIPT = """
import os, shutil, sys, warnings
from fastdata import DataLoader, ImageDataset
from fastdata.errors import CorruptionError
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


@pytest.mark.parametrize("damage", _DAMAGES)
def test_an_index_that_changes_while_it_is_open(
    made_tree: Path, tmp_path: Path, damage: str
) -> None:
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
    """An open index goes on as it was."""
    pack_tree(made_tree / "train", tmp_path / "out", "shards", unit_size=None)
    dataset = ImageDataset(tmp_path / "out")
    keys = [dataset.row(i).key for i in range(len(dataset))]
    labels = dataset.labels.tolist()
    index = dataset.source.index.path
    shutil.copyfile(index, tmp_path / "new")
    (tmp_path / "new").rename(index)
    assert [dataset.row(i).key for i in range(len(dataset))] == keys
    assert dataset.labels.tolist() == labels
