"""The documentation site: it builds strictly, its pages are right in a browser, its code is run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from fastdata.benchmarks import figures, plots

_REPOSITORY = Path(__file__).resolve().parent.parent
_DOCS = _REPOSITORY / "docs"
_RESULTS = _DOCS / "results"
_BIN = _REPOSITORY / ".venvs" / "site" / "bin"


def needs_site(test: Any) -> Any:
    skipped = pytest.mark.skipif(not (_BIN / "mkdocs").exists(), reason="make site")
    return pytest.mark.slow(skipped(test))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make site` does; a broken link or anchor fails here."""
    folder = tmp_path_factory.mktemp("site")
    command = [_BIN / "mkdocs", "build", "--strict", "--site-dir", folder]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command, cwd=_REPOSITORY, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@needs_site
def test_every_page_is_in_the_navigation_and_its_links_lead_somewhere(built: Path) -> None:
    found = {path.parent.relative_to(built).as_posix() for path in built.rglob("index.html")}
    assert {".", "get-started", "how-it-works", "api/loading", "formats", "comparison"} <= found
    for page in built.rglob("index.html"):
        text = page.read_text("utf-8")
        assert text.count("<h1") == 1, page
        for head in re.findall(r"<thead>(.*?)</thead>", text, re.DOTALL):
            assert re.sub(r"<[^>]*>", "", head).strip(), f"{page}: a table has an empty header"


#: What people look for; each word is that of a page that helps them.
_LOOKED_FOR = {
    "albumentations": "guides/replace-dataloader/",
    "huggingface": "guides/hugging-face/",
    "lightly": "loader/",
    "segmentation": "targets/",
    "detection": "targets/",
    "captions": "guides/clip/",
}


@needs_site
def test_search_finds_what_people_look_for(built: Path) -> None:
    index = json.loads((built / "search" / "search_index.json").read_text("utf-8"))
    for word, page in _LOOKED_FOR.items():
        found = {
            entry["location"].partition("#")[0]
            for entry in index["docs"]
            if re.search(rf"\b{word}\b", f"{entry['title']} {entry['text']}", re.IGNORECASE)
        }
        assert page in found, word


@needs_site
@pytest.mark.skipif(
    not (shutil.which("chromium") or shutil.which("chromium-browser")),
    reason="no browser: apt-get install chromium",
)
@pytest.mark.timeout(1200)  # on a machine that others use; half a minute on two cores of its own
def test_every_page_in_a_browser(built: Path) -> None:
    browse = [_BIN / "python", _REPOSITORY / "tests" / "browse_site.py", built]
    done = subprocess.run(browse, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    wrong = json.loads(done.stdout)
    assert len(wrong) > 40
    assert not any(wrong.values()), json.dumps({k: v for k, v in wrong.items() if v}, indent=1)


def test_links_of_the_readme_lead_somewhere() -> None:
    for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md"):
        text = (_REPOSITORY / name).read_text("utf-8")
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            assert link.startswith("https://") or (_REPOSITORY / link).exists(), f"{name}: {link}"


#: Pages whose Python other tests run, or none can here; all others' is run by test_cli.py.
_PYTHON_ELSEWHERE = {
    "dali.md": "needs DALI and a GPU; test_dali_failures.py runs its parts",
    "formats/parquet.md": "test_parquet.py runs it; petastorm, tests/petastorm_read.py's way",
    "formats/shards.md": "test_shards.py runs it",
    "recipes.md": "test_timm.py runs it, beside timm",
    "targets.md": "test_targets_page.py runs it",
    "cluster.md": "test_spark_dask.py runs Dask's; Spark's need Spark",
}
#: What a line of a shell block may begin with, where it does not begin with "$ fastdata", which
#: test_cli.py runs: what needs a network, GPUs, a cluster, minutes, or data that nobody has here.
_NOT_RUN = re.compile(
    r"(make|pip|cp|torchrun|sbatch|srun|nsys|py-spy|taskset|spark-submit|ray|export|python "
    r"|fastdata (convert|index|sample|stage|info|verify|doctor|bench) ?"
    r"|eval|_FASTDATA_COMPLETE|#| |$)"
)


def test_every_block_of_code_is_run_or_says_why_not() -> None:
    from test_cli import PAGES, PYTHON_PAGES

    for page in sorted(_DOCS.rglob("*.md")):
        text = page.read_text("utf-8")
        name = page.relative_to(_DOCS).as_posix()
        if "```python" in text:
            assert (page in PYTHON_PAGES) != (name in _PYTHON_ELSEWHERE), name
        for block in re.findall(r"```(?:sh|console)\n(.*?)```", text, re.DOTALL):
            for line in block.splitlines():
                run = line.startswith("$ fastdata ") and page in PAGES
                assert run or _NOT_RUN.match(line), f"{name}: {line}"


def _read(name: str) -> Any:
    return json.loads((_RESULTS / f"{name}.json").read_text("utf-8"))


#: What the README calls the contenders of loaders.json.
_README_ROWS = {
    "fastdata, JPEGs in LMDB": "fastdata-lmdb",
    "fastdata, torchvision's folder, not converted": "fastdata-imagefolder",
    "FFCV, pixels of at most 500": "ffcv-raw",
    "FFCV, JPEGs of quality 90": "ffcv-q90",
    "NVIDIA DALI on the CPU, JPEGs": "dali-cpu",
    "torch's DataLoader, torchvision and Pillow, JPEGs": "torch-uint8",
}


def test_the_figures_of_the_readme_are_those_of_the_results() -> None:
    text = (_REPOSITORY / "README.md").read_text("utf-8")
    table = figures.table(_read("loaders"), ("images/s",), most=True)
    measured = {row[0]: re.split(r" \(|\)", row[1])[:2] for row in table.rows}
    shown = re.findall(r"^\| (.*) \| ([\d,]+) \| ([\d,]+ to [\d,]+) \|$", text, re.MULTILINE)
    assert {name: [rate, spread] for name, rate, spread in shown} == {
        name: measured[contender] for name, contender in _README_ROWS.items()
    }
    grouped = figures.rows_of(_read("loaders"))
    folder, lmdb, torch = (
        grouped["", f"{name}", 2]
        for name in ("fastdata-imagefolder", "fastdata-lmdb", "torch-uint8")
    )
    for page in (text, (_DOCS / "index.md").read_text("utf-8")):
        for runs, opening in (
            (folder, "loads {:,.0f} images"),
            (torch, "loads {:,.0f} in the same"),
        ):
            assert opening.format(figures.median(runs, "images/s")) in page
        for runs, opening in (
            (folder, "\n{:.1f} times fewer"),
            (lmdb, ": {:.1f} times torch's loader"),
        ):
            ratio = figures.ratios(runs, torch, figures.SPEED)
            assert ratio is not None and opening.format(ratio.median) in page
    turns = {
        (name, threads): figures.median(runs, "images/s")
        for (_, name, threads), runs in figures.rows_of(_read("training")).items()
    }
    step = turns["the step alone", 0]
    assert f"trains {step:,.0f} images/s" in text
    assert f"Two decode threads feed it at {turns['fastdata', 2] / step:.0%} of that," in text
    assert f" four at {turns['fastdata', 4] / step:.0%}, torch's" in text
    assert f"with 16 workers at {turns['torch', 16] / step:.0%}\n" in text


def test_every_cell_of_the_comparison_has_a_source() -> None:
    rows = re.findall(
        r"^\| (\*\*.*) \|$", (_DOCS / "comparison.md").read_text("utf-8"), re.MULTILINE
    )
    cells = [cell for row in rows for cell in row.split(" | ")[1:]]
    assert len(cells) == 5 * len(rows) > 80
    assert not [c for c in cells if "](" not in c and c != "—" and not c.startswith("not found")]


def test_names_in_plots_do_not_overlap_and_stay_inside() -> None:
    result = _read("loaders")
    for svg in (
        plots.loaders(result),
        plots.loaders(result, plots.FULL_SIZE),
        plots.loaders(result, plots.FULL_SIZE, narrow=True),
    ):
        root = ElementTree.fromstring(svg)
        texts = [node for node in root.iter("{http://www.w3.org/2000/svg}text") if node.text]
        boxes = []
        for node in texts:
            if "transform" in node.attrib:
                continue  # the axis that is written upwards, left of everything
            # Half a character narrower than drawn on average, so that neighbours may touch.
            width, x = 6.5 * len(node.text or ""), float(node.attrib["x"])
            left = x - width * {"start": 0, "middle": 0.5, "end": 1}[node.attrib["text-anchor"]]
            y = float(node.attrib["y"])
            boxes.append((left, y - 12, left + width, y + 3, node.text))
        for number, one in enumerate(boxes):
            assert one[0] >= 0 and one[2] <= float(root.attrib["viewBox"].split()[2]), one[4]
            for other in boxes[:number]:
                apart = one[2] <= other[0] or other[2] <= one[0]
                assert apart or one[3] <= other[1] or other[3] <= one[1], (one[4], other[4])
