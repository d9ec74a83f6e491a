"""The micro-benchmarks of reading and packing, from end to end and small."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from containers import pack_tree
from fastdata.benchmarks import convert, page_cache, read


@pytest.mark.parametrize("options", [[], ["--cold"]], ids=["warm", "cold"])
def test_reading_each_container(
    options: list[str], made_tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Other tests' pages stay: only the dataset's files are dropped.
    monkeypatch.setattr(page_cache, "_DROP", tmp_path / "absent" / "drop_caches")
    arguments = ["--rounds=1", *options]
    for container in ("lmdb", "parquet", "shards"):
        out = tmp_path / container
        pack_tree(made_tree / "train", out, container, unit_size=None, seek_points=128)
        arguments += ["--dataset", str(out)]
    found = CliRunner().invoke(read.main, arguments, env={"COLUMNS": "120"})
    assert found.exit_code == 0, found.output
    for way in ("fastdata, lmdb", "py-lmdb, get", "fastdata, parquet", "pyarrow, row groups"):
        for order in ("in order", "at random"):
            assert f"{way}, {order}" in found.output
    assert ("page cache dropped" in found.output) == bool(options)


def test_packing_beside_tar_and_the_writers_that_are_installed(
    made_tree: Path, tmp_path: Path
) -> None:
    out = tmp_path / "convert.json"
    arguments = ["--root", str(made_tree / "train"), "--images=16", "--rounds=1"]
    found = CliRunner().invoke(convert.main, [*arguments, "--json", str(out)])
    assert found.exit_code == 0, found.output
    result = json.loads(out.read_text())
    assert result["writers"] == list(convert._installed_writers())
    for name in ("tar", "lmdb", "parquet", "shards", *result["writers"]):
        assert len(result["seconds"][name]) == 1
    shown = [row[0] for row in convert.figures(result).rows]
    assert set(result["writers"]) <= set(shown)


def test_filling_the_page_cache_reads_each_file_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "file").write_bytes(bytes(3 << 20))
    (data / "link").symlink_to(data / "file")
    before = _bytes_read()
    assert page_cache.fill(data)
    assert 3 << 20 <= _bytes_read() - before < 4 << 20


def _bytes_read() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar")).split()[1])
