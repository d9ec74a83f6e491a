"""Names that data brings: keys, paths and class names do nothing to a terminal."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from click.testing import CliRunner, Result
from containers import pack_tree
from sources import make_tree

from fastdata import DataLoader, ImageDataset, verify
from fastdata.cli import cli
from fastdata.errors import CorruptionError, FastdataError, printable
from fastdata.storage.checksum import crc32c_file
from fastdata.storage.index import SCHEMA
from fastdata.transforms import RandomResizedCrop

#: Clears the screen; rings; sets the window's title by a C1 character; turns the direction.
HOSTILE = "\x1b[2J\a\x9b0;title\u202e\r"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def require_harmless(text: str) -> None:
    assert printable(text, keep="\n") == text


def index_of(dataset: Path) -> pa.Table:
    with pa.OSFile(str(dataset / "index.arrow")) as source:
        return pa.ipc.open_file(source).read_all()


def rewrite(dataset: Path, name: str, values: pa.Array) -> None:
    """Changes a column of an index, and the manifest with it: what an attacker would do."""
    path = dataset / "index.arrow"
    table = index_of(dataset)
    at = table.schema.get_field_index(name)
    table = table.set_column(at, pa.field(name, values.type), values)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    fields = json.loads((dataset / "dataset.json").read_bytes())
    del fields["checksum"]
    fields["index"] |= {"size": path.stat().st_size, "crc32c": f"{crc32c_file(path):08x}"}
    (dataset / "dataset.json").write_text(json.dumps(fields), "utf-8")


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    tree = make_tree(tmp_path / "in", ["a/1.jpg", "a/2.jpg", "b/1.jpg"])
    pack_tree(tree, tmp_path / "out", "shards")
    return tmp_path / "out"


def test_keys(dataset: Path) -> None:
    rewrite(dataset, "key", pa.array(["a/1", HOSTILE, "b/1"]))
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
    loader = DataLoader(ImageDataset(dataset, RandomResizedCrop(8)), 3, on_error="skip")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        list(loader)
    assert told
    for warning in told:
        require_harmless(str(warning.message))
    for problem in verify(dataset, workers=1).problems:
        require_harmless(problem.where + problem.what)
    require_harmless(run("verify", dataset).output)


def test_what_a_manifest_says_of_itself(dataset: Path) -> None:
    fields = json.loads((dataset / "dataset.json").read_bytes())
    del fields["checksum"]
    fields["source"]["root"] = fields["tool"] = f"[red]{HOSTILE}"
    fields["classes"][0] = HOSTILE
    (dataset / "dataset.json").write_text(json.dumps(fields), "utf-8")
    shown = run("info", dataset)
    assert shown.exit_code == 0, shown.output
    assert "[red]\\x1b[2J" in shown.output  # nor is it markup for whoever prints it
    require_harmless(shown.output)
    as_json = run("info", "--json", dataset).output
    require_harmless(as_json)
    assert json.loads(as_json)["classes"][0] == HOSTILE


def test_paths(tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "in", [f"a/{HOSTILE}1.jpg", "a/2.jpg"])
    (tree / "a" / f"{HOSTILE}bad.jpg").write_bytes(b"no image")
    failed = run("convert", "imagefolder", "--root", tree, "--out", tmp_path / "out")
    assert failed.exit_code == 1
    assert "\\x1b[2J" in failed.output
    require_harmless(failed.output)


@pytest.mark.parametrize("label", [-7, 2, (1 << 31) - 1])
def test_labels_of_no_class(dataset: Path, label: int) -> None:
    rewrite(dataset, "label", pa.array([0, label, 1], pa.int32()))
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
        with pytest.raises(CorruptionError, match=f"gives label {label}, but there are 2"):
            fail()
    assert f"label {label}" in verify(dataset, workers=1).problems[0].what


def test_errors_survive_pickling_unchanged() -> None:
    error = FastdataError(f"{HOSTILE}\nand more", HOSTILE)
    again = type(error)(*error.args)
    assert str(again) == str(error)
    require_harmless(str(error))
    assert "\nand more" in error.what


@pytest.mark.parametrize("name", [field.name for field in SCHEMA if not field.nullable])
def test_nulls_in_required_columns(dataset: Path, name: str) -> None:
    column = index_of(dataset).column(name).chunk(0)
    valid = pa.array([True, False, True])
    if name == "encoding":
        codes = pc.if_else(valid, column.indices, None)
        rewrite(dataset, name, pa.DictionaryArray.from_arrays(codes, column.dictionary))
    else:
        rewrite(dataset, name, pc.if_else(valid, column, None))
    with pytest.raises(CorruptionError, match=f"column {name} has nulls"):
        ImageDataset(dataset)
