"""Run the Dask lines of docs/cluster.md, and convert what they write."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from containers import originals
from sources import convert, make_tree

from fastdata import ImageDataset

_PAGE = Path(__file__).resolve().parent.parent / "docs" / "cluster.md"


def blobs(dataset: Path) -> dict[str, bytes]:
    found = ImageDataset(dataset)
    return {found.row(i).key: found.read([i])[0] for i in range(len(found))}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # Dask of pandas, which changes under it
def test_the_lines_for_dask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dask = pytest.importorskip("dask")
    pytest.importorskip("dask.dataframe")
    names = [f"{kind}/{number}.jpg" for kind in ("ant", "bee", "cat") for number in range(4)]
    tree = make_tree(tmp_path / "photos", names)
    result = convert("imagefolder", "--root", tree, "--to", "parquet", "--out",
                     tmp_path / "photos-parquet", "--shard-size", "3kB")  # fmt: skip
    assert result.exit_code == 0, result.output
    assert len(list((tmp_path / "photos-parquet").glob("*.parquet"))) > 2

    monkeypatch.chdir(tmp_path)
    section = _PAGE.read_text("utf-8").partition("\n## Dask\n")[2].partition("\n## ")[0]
    lines = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert len(lines) == 2
    with dask.config.set(scheduler="synchronous"):
        for block in lines:
            exec(compile(block, str(_PAGE), "exec"), {})

    expected = {image.key: image.path.read_bytes() for image in originals(tree)}
    for name, classes in (("two-classes", ["0", "1"]), ("written-by-dask", ["ant", "bee", "cat"])):
        out = tmp_path / f"{name}-shards"
        result = convert("parquet", "--root", tmp_path / name, "--to", "shards", "--out", out)
        assert result.exit_code == 0, result.output
        assert ImageDataset(out).classes == classes
        wanted = expected if len(classes) == 3 else {
            key: blob for key, blob in expected.items() if not key.startswith("cat")
        }  # fmt: skip
        assert blobs(out) == wanted
