"""petastorm, the real one, in its own environment: what it writes, and what it reads of ours."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from containers import digests
from hangs import HANG
from sources import convert, require_said

from fastdata import ImageDataset, verify
from fastdata.maintenance.seek_points import add_seek_points

pytestmark = pytest.mark.slow

_REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def petastorm() -> Path:
    default = _REPOSITORY / ".venvs" / "petastorm" / "bin" / "python"
    python = Path(os.environ.get("FASTDATA_PETASTORM_PYTHON") or default)
    if not python.exists():
        pytest.skip(f"no petastorm at {python} (set FASTDATA_PETASTORM_PYTHON)")
    return python


def said(python: Path, script: str, *arguments: object) -> list[list[Any]]:
    command = [python, Path(__file__).with_name(script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    # petastorm and Spark print lines of their own as well.
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


def samples(folder: Path) -> list[list[Any]]:
    verify(folder)
    dataset = ImageDataset(folder)
    return [
        [dataset.row(i).key, dataset.row(i).label, hashlib.sha256(dataset.read([i])[0]).hexdigest()]
        for i in range(len(dataset))
    ]


def test_what_petastorm_writes_is_converted(petastorm: Path, tmp_path: Path) -> None:
    if shutil.which("java") is None:
        pytest.skip("materialize_dataset needs Spark, and Spark needs Java (java)")
    rows = said(petastorm, "petastorm_write.py", tmp_path / "in")
    assert len(rows) == 12
    given = ["parquet", "--root", tmp_path / "in", "--key-column", "id", "--to", "shards"]
    given += ["--no-shuffle"]
    result = convert(*given, "--out", tmp_path / "out")
    require_said(result, 1, "2 of 12 images cannot be packed")
    require_said(convert(*given, "--out", tmp_path / "out", "--skip-bad"), 0)
    good = [row for row in rows if None not in row]
    assert samples(tmp_path / "out") == good
    bad = (tmp_path / "out/_bad-samples.jsonl").read_text("utf-8").splitlines()
    assert [(entry["key"], entry["reason"]) for entry in map(json.loads, bad)] == [
        ("005", "its label is null"),
        ("007", "the picture of row 1 is null"),
    ]
    given = [*given[:-1], "--skip-bad"]  # a training split, shuffled
    for workers in (1, 2):
        require_said(
            convert(*given, "--workers", workers, "--out", tmp_path / f"shuffled-{workers}"), 0
        )
    shuffled = samples(tmp_path / "shuffled-1")
    assert shuffled != good
    assert sorted(shuffled) == sorted(good)
    assert digests(tmp_path / "shuffled-1") == digests(tmp_path / "shuffled-2")


def test_make_batch_reader_reads_ours(petastorm: Path, made_tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = convert("imagefolder", "--root", made_tree / "val", "--to", "parquet", "--out", out,
                     "--shard-size", "100kB", "--plain-images", "--no-seek-points")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert len(list(out.glob("*.parquet"))) > 1
    add_seek_points(out, workers=1)  # a file beside those that petastorm reads
    rows = said(petastorm, "petastorm_read.py", out)
    assert sorted([key, label, digest] for key, label, _, _, digest in rows) == sorted(samples(out))


def test_a_plain_column_is_parquets_alone(made_tree: Path, tmp_path: Path) -> None:
    result = convert("imagefolder", "--root", made_tree / "val", "--out", tmp_path / "out",
                     "--to", "lmdb", "--plain-images")  # fmt: skip
    require_said(result, 2, "plain_images has no effect in lmdb")
