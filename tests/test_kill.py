"""Packing killed before any of its steps and resumed gives the bytes of undisturbed packing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hangs import HANG
from PIL import Image
from sources import tar_bytes

CONTAINERS = ["lmdb", "parquet", "shards"]
IN_PLACE = ["folder", "archives"]

# Ends the process before its n-th step that changes what is on the disk, for every n; a
# child of its own for each, since nothing of a killed process may help the next.
_EVERY_STEP = """
import importlib, os, shutil, sys
from pathlib import Path

from containers import digests, pack_tree
from fastdata.converters import TableImages, WebDataset
from fastdata.storage.formats.lmdb import LmdbWriter

tree, folder, container = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
KILLED = 9


def pack_until(step, out):
    taken = 0

    def counted(function):
        def call(*args, **options):
            nonlocal taken
            if taken == step:
                os._exit(KILLED)
            taken += 1
            return function(*args, **options)

        return call

    os.fsync, os.replace, os.unlink = map(counted, (os.fsync, os.replace, os.unlink))
    os.mkdir, os.rmdir = map(counted, (os.mkdir, os.rmdir))
    LmdbWriter.finish = counted(LmdbWriter.finish)
    if container == "archives":
        source = WebDataset(tree)
    else:
        source = TableImages(tree / "table.jsonl", masks=["mask"], formats={"boxes": "xywh"})
    pack_tree(source, out, container, unit_size=8_000)


def in_a_child(step, out):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            pack_until(step, out)
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


pack_until(-1, folder / "warm")  # imports what each child would import
assert in_a_child(-1, folder / "whole") == 0
expected = digests(folder / "whole")
step = 0
while True:
    out = folder / f"out-{step}"
    status = in_a_child(step, out)
    if status == 0:
        break
    assert status == KILLED, (step, status)
    assert in_a_child(-1, out) == 0, step
    assert digests(out) == expected, step
    shutil.rmtree(out)
    step += 1
print(step)
"""


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five small images with boxes and masks: as many steps as of large ones, each of less work."""
    tree = tmp_path_factory.mktemp("few")
    lines = []
    for number in range(5):
        path = tree / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(exist_ok=True)
        Image.effect_noise((64, 48), 40 + number).convert("RGB").save(path)
        Image.effect_noise((64, 48), number).save(path.with_suffix(".png"), compress_level=1)
        row = {"path": str(path.relative_to(tree)), "label": number % 2}
        row["boxes"] = [[number, 2, 30, 4.5]] * number
        row["mask"] = str(path.with_suffix(".png").relative_to(tree)) if number % 4 else None
        lines.append(json.dumps(row))
    (tree / "table.jsonl").write_text("\n".join(lines))
    few = sorted(tree.glob("*/[0-2].*"), key=lambda path: path.name)
    members = [(path.name, path.read_bytes()) for path in few]
    (tree / "few.tar").write_bytes(tar_bytes(members))
    return tree


@pytest.mark.slow
@pytest.mark.parametrize("container", [*CONTAINERS, *IN_PLACE])
def test_killed_before_every_step(few: Path, tmp_path: Path, container: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _EVERY_STEP, few, tmp_path, container],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > (10 if container in IN_PLACE else 20)
