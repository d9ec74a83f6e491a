"""Names that data brings: keys, paths and class names do nothing to a terminal."""

from __future__ import annotations

import io
import json
import re
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from containers import edit_index, edit_manifest, pack_tree, set_column
from sources import make_tree

from fastdata import DataLoader, ImageDataset, verify
from fastdata.cli import main
from fastdata.cli.commands import cli
from fastdata.cli.progress import ProgressReport
from fastdata.errors import CorruptionError, FastdataError, printable
from fastdata.transforms import RandomResizedCrop

#: Clears the screen; rings; sets the window's title by a C1 character; turns the direction.
HOSTILE = "\x1b[2J\a\x9b0;title\u202e\r"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def require_harmless(text: str) -> None:
    assert printable(text, keep="\n") == text


def rewrite(dataset: Path, name: str, values: list[Any]) -> None:
    """Changes a column of an index, and the manifest with it: what an attacker would do."""
    edit_index(dataset, lambda table: set_column(table, name, values))


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    tree = make_tree(tmp_path / "in", ["a/1.jpg", "a/2.jpg", "b/1.jpg"])
    pack_tree(tree, tmp_path / "out", "shards")
    return tmp_path / "out"


def test_keys(dataset: Path) -> None:
    rewrite(dataset, "key", ["a/1", HOSTILE, "b/1"])
    shard = next(dataset.glob("*.tar"))
    data = bytearray(shard.read_bytes())
    row = ImageDataset(dataset).row(1)
    assert row.key == HOSTILE
    data[row.offset + 30] ^= 1
    shard.write_bytes(data)
    for fail in (
        lambda: ImageDataset(dataset)[1],
        lambda: list(DataLoader(ImageDataset(dataset, RandomResizedCrop(8)), 3)),
    ):
        with pytest.raises(CorruptionError, match=r"sample 1 \(\\x1b\[2J\\x07\\x9b") as caught:
            fail()
        require_harmless(str(caught.value))
    loader = DataLoader(ImageDataset(dataset, RandomResizedCrop(8)), 3, on_error="drop")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        list(loader)
    assert told
    for warning in told:
        require_harmless(str(warning.message))
    for problem in verify(dataset, workers=1).problems:
        require_harmless(problem.where + problem.what)
    require_harmless(run("verify", dataset).output)
    require_harmless(run("verify", dataset, "--json").stdout)


def test_what_a_manifest_says_of_itself(dataset: Path) -> None:
    def change(fields: dict[str, Any]) -> None:
        fields["source"]["root"] = fields["tool"] = f"[red]{HOSTILE}"
        fields["classes"][0] = HOSTILE

    edit_manifest(dataset, change)
    shown = run("info", dataset)
    assert shown.exit_code == 0, shown.output
    assert "[red]\\x1b[2J" in shown.output  # nor is it markup
    require_harmless(shown.output)
    as_json = run("info", "--json", dataset).output
    require_harmless(as_json)
    assert json.loads(as_json)["classes"][0] == HOSTILE


@pytest.mark.slow
def test_places_that_commands_name(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "in", [f"a/{HOSTILE}1.jpg", "a/2.jpg"])
    (tree / "a" / f"{HOSTILE}bad.jpg").write_bytes(b"no image")
    # Of what is told on a line of its own, nothing may begin another.
    out = tmp_path / f"{HOSTILE}\nerror: all is lost"
    small = ("--images", 1, "--val-images", 0, "--classes", 1, "--workers", 1)
    copies = ("--to", tmp_path / "copies")
    convert = ("convert", "imagefolder", "--root", tree, "--out", out)
    for words, code in (
        ((*convert[:4], "--out", tmp_path / "out"), 1),
        ((*convert, "--skip-bad"), 0),
        (("verify", out), 0),
        (("seek-points", out), 0),
        (("info", out), 0),
        (("stage", out, *copies), 0),
        (("stage", out, *copies, "--unstage"), 0),
        (("sample", "--out", tmp_path / f"{HOSTILE}\nerror: sample", *small), 0),
    ):
        done = run(*words)
        assert done.exit_code == code, done.output
        assert code == 0 or "\\x1b[2J" in done.output
        require_harmless(done.output)
        assert "\nerror: " not in f"\n{done.output}"[1:]


@pytest.mark.parametrize("words", [["info", "here", HOSTILE], [f"--{HOSTILE}"]])
def test_words_of_a_wrong_command(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["fastdata", *words])
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit, match="2"):
            main()
    finally:
        signal.signal(signal.SIGTERM, before)
    require_harmless(capsys.readouterr().err)


@pytest.mark.parametrize("columns", [40, 80])
def test_a_progress_bar_is_harmless_and_its_figures_are_not_cut(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    with ProgressReport(f"verifying [/red]{HOSTILE}", terminal) as progress:
        progress.start(1_000_000, 1 << 40)
        progress.advance(900_000, 9 << 30)
    shown = re.sub("\x1b\\[[0-9;]*m", "", terminal.getvalue())
    assert columns == 40 or "verifying [/red]\\x1b[2J" in shown
    ends = " +[-0-9]+:[-0-9]+:[-0-9]+" if columns >= 60 else ""
    assert re.search(f"verif?.* +90% [0-9,]+ images/s, [0-9.]+ .B/s{ends}", shown), shown


@pytest.mark.parametrize("label", [-7, 2])
def test_labels_of_no_class(dataset: Path, label: int) -> None:
    rewrite(dataset, "label", [0, label, 1])
    opened = ImageDataset(dataset, RandomResizedCrop(8))
    with pytest.warns(UserWarning, match=f"sample 1 .a/2.: the index gives label {label}"):
        (batch,) = DataLoader(opened, 3, on_error="zero", fields=("image", "label"))
    assert batch["valid"].tolist() == [True, False, True]
    for fail in (
        lambda: opened[1],
        lambda: opened.row(1),
        lambda: opened.labels,
        lambda: opened.targets,
        lambda: opened.__getitems__([0, 1]),
        lambda: list(DataLoader(opened, 3)),
    ):
        with pytest.raises(CorruptionError, match=f"gives label {label}, but the dataset has 2"):
            fail()
    assert f"label {label}" in verify(dataset, workers=1).problems[0].what


def test_errors_are_short_and_survive_pickling() -> None:
    error = FastdataError(f"{HOSTILE}\nand more", HOSTILE)
    again = type(error)(*error.args)
    assert str(again) == str(error)
    require_harmless(str(error))
    assert "\n" not in error.what and "and more" in error.what
    error = FastdataError(f"a.tar: the member {'x' * 10**8} lies elsewhere", "Leave it out.")
    assert len(str(error)) < 10_000
    assert error.what.startswith("a.tar: the member xxx")
    assert error.what.endswith("xxx lies elsewhere")
    assert type(error)(*error.args).args == error.args
    assert len(FastdataError("\x1b" * 10**6).what) < 10_000
