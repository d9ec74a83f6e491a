"""The benchmark of packing from end to end and small; what fills the page cache."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner
from fastdata.benchmarks import convert, warming


def test_packing_beside_tar(made_tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "convert.json"
    arguments = ["--root", str(made_tree / "train"), "--images=16", "--rounds=1"]
    found = CliRunner().invoke(convert.main, [*arguments, "--out", str(out)])
    assert found.exit_code == 0, found.output
    result = json.loads(out.read_text())
    for name in ("tar", "lmdb", "parquet", "shards"):
        assert len(result["seconds"][name]) == 1
    assert [row[0] for row in convert.figures(result).rows] == ["tar, sync", *convert._PACKINGS]


def test_filling_the_page_cache_reads_each_file_once(tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    (data / "file").write_bytes(bytes(3 << 20))
    (data / "link").symlink_to(data / "file")
    before = _bytes_read()
    assert warming.fill(data)
    assert 3 << 20 <= _bytes_read() - before < 4 << 20


def _bytes_read() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar")).split()[1])
