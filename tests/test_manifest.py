"""The manifest: what is written is read again, and nothing else is believed."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from containers import as_nobody
from hypothesis import given
from hypothesis import strategies as st

from fastdata import ImageDataset, stage, verify
from fastdata._native import crc32c
from fastdata.errors import CorruptionError, DatasetError, VersionError
from fastdata.storage.manifest import FORMAT_VERSION, WORK_NAME, FileEntry, Manifest

_PATH = Path("dataset/_dataset.json")


def manifest(**changes: Any) -> Manifest:
    fields: dict[str, Any] = {
        "container": "shards",
        "samples": 3,
        "skipped": 0,
        "classes": ["cat", "dog"],
        "blob_bytes": 300,
        "index": FileEntry("_index.rows", 1000, "0000abcd"),
        "files": [FileEntry("shard-000000.tar", 10240, "12345678")],
        "options": {"encoding": "original", "shard_size": 1},
        "source": {"kind": "imagefolder", "root": "/data"},
        "tool": "0.1.0",
        "generation": "0123456789abcdef",
    }
    return Manifest(**{**fields, **changes})


def as_json(**changes: Any) -> str:
    fields = {**json.loads(manifest().to_json()), **changes}
    del fields["checksum"]
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    fields["checksum"] = f"{crc32c(text.encode('utf-8', 'surrogatepass')):08x}"
    return json.dumps(fields)


_NAMES = st.text(
    st.characters(exclude_characters="/\\\0", exclude_categories=["Cs"]), min_size=1
).filter(lambda name: name not in (".", ".."))
_ENTRIES = st.builds(
    FileEntry,
    name=st.lists(_NAMES, min_size=1, max_size=3).map("/".join),
    size=st.integers(0, 1 << 60),
    crc32c=st.integers(0, (1 << 32) - 1).map("{:08x}".format),
)
_TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
_JSON = st.dictionaries(_TEXTS, st.none() | st.booleans() | st.integers() | _TEXTS)


@given(
    written=st.builds(
        Manifest,
        container=st.sampled_from(["lmdb", "parquet", "shards"]),
        samples=st.integers(0, 1 << 60),
        skipped=st.integers(0, 1 << 60),
        classes=st.lists(_TEXTS),
        blob_bytes=st.integers(0, 1 << 60),
        index=_ENTRIES,
        files=st.lists(_ENTRIES, max_size=3),
        options=_JSON,
        source=_JSON,
        tool=_TEXTS,
        generation=st.integers(0, (1 << 64) - 1).map("{:016x}".format),
    ),
    root=st.sampled_from([None, "/images", "images"]),
)
def test_what_is_written_is_read(written: Manifest, root: str | None) -> None:
    if root is not None:
        written = replace(written, container="folder", files=[], root=root)
    assert Manifest.parse(written.to_json(), _PATH) == written


def test_the_text_is_plain_json_in_utf8(tmp_path: Path) -> None:
    text = manifest(classes=["Käse"]).to_json()
    assert "Käse" in text
    fields = json.loads(text)
    assert (fields["format"], fields["format_version"]) == ("fastdata", FORMAT_VERSION)
    (tmp_path / "_dataset.json").write_text(text, "utf-8")
    assert Manifest.load(tmp_path).classes == ["Käse"]


@pytest.mark.parametrize(
    ("version", "what_to_do"),
    [(7, "pip install --upgrade fastdata-torch"), (1, "fastdata convert … --force")],
)
def test_another_version_is_refused_naming_both(version: int, what_to_do: str) -> None:
    # Nothing else in it is looked at: another version may mean anything by it.
    text = json.dumps(
        {"format": "fastdata", "format_version": version, "tool": "9.8", "files": "otherwise"}
    )
    with pytest.raises(VersionError) as caught:
        Manifest.parse(text, _PATH)
    message = str(caught.value)
    for wanted in (str(_PATH), f"version {version}", "9.8", f"version {FORMAT_VERSION}"):
        assert wanted in message
    assert what_to_do in caught.value.hint


_ENTRY = {"name": "a", "size": 1, "crc32c": "00000000"}


@pytest.mark.parametrize("field", json.loads(manifest().to_json()))
def test_every_field_is_needed(field: str) -> None:
    fields = json.loads(manifest().to_json())
    del fields[field]
    said = "checksum" if field in ("root", "order", "seed") else f"not a manifest .*{field}"
    with pytest.raises(CorruptionError, match=said):
        Manifest.parse(json.dumps(fields), _PATH)


#: Changes of an entry of files: each is of a wrong kind.
_ENTRIES_WRONG = [
    *({"size": wrong} for wrong in (-1, 1.5, True, 1 << 70)),
    *({"crc32c": wrong} for wrong in ("xyz", 5, "-1", None)),
    *({"name": wrong} for wrong in ("\ud800", 5, None)),
]
#: Values that each field cannot have.
WRONG: dict[str, list[Any]] = {
    "format": ["other"],
    "format_version": ["1", True, 1.0, 0, -1],
    "container": [5, "zip"],
    "samples": [-1, 3.0, "3", None, True, 1 << 70],
    "skipped": [-1],
    "blob_bytes": [[1], 1 << 70],
    "classes": ["cat", ["cat", 5], None, {"cat": 0}, ["cat", "\udcff"]],
    "index": [None, "_index.rows", {"name": "_index.rows"}],
    "files": [None, {}, ["shard"], *([{**_ENTRY, **change}] for change in _ENTRIES_WRONG)],
    "options": [{"\ud800": 1}, None, []],
    "source": [[], "here"],
    "tool": ["\ud800", None],
    "root": ["/images", 5],
}


@pytest.mark.parametrize("field", WRONG)
def test_fields_of_a_wrong_kind(field: str) -> None:
    for value in WRONG[field]:
        with pytest.raises(CorruptionError, match="not a manifest") as caught:
            Manifest.parse(as_json(**{field: value}), _PATH)
        assert str(_PATH) in caught.value.what and caught.value.hint


def test_only_folders_have_a_root() -> None:
    folder = {"container": "folder"}
    for changes in ({}, {"root": "/images"}, {"root": "/ima\0ges", "files": []}):
        with pytest.raises(CorruptionError, match="not a manifest"):
            Manifest.parse(as_json(**folder, **changes), _PATH)


@pytest.mark.parametrize("name", ["", "..", "../a", "a/../../b", "/etc/passwd", "a\\b", "a\0b"])
def test_file_names_stay_in_the_folder(name: str) -> None:
    entry = {**_ENTRY, "name": name}
    for changes in ({"files": [entry]}, {"index": entry}):
        with pytest.raises(CorruptionError, match=re.escape(repr(name))):
            Manifest.parse(as_json(**changes), _PATH)


def test_unknown_fields_are_ignored() -> None:
    entry = {**_ENTRY, "sha256": "00"}
    text = as_json(surprise={"a": [1]}, index=entry, files=[entry])
    known = FileEntry(**_ENTRY)
    assert Manifest.parse(text, _PATH) == manifest(index=known, files=[known])


def test_any_change_is_noticed() -> None:
    text = manifest().to_json().encode()
    sound = Manifest.parse(text, _PATH)
    for at, byte in enumerate(text):
        for bit in range(8):
            changed = text[:at] + bytes([byte ^ 1 << bit]) + text[at + 1 :]
            try:
                found = Manifest.parse(changed, _PATH)
            except DatasetError:
                continue
            assert found == sound  # white space, or the checksum's own name


def test_how_it_is_written_does_not_matter() -> None:
    fields = json.loads(manifest().to_json())
    again = json.dumps(dict(reversed(fields.items())), ensure_ascii=True, indent=4)
    assert Manifest.parse(again, _PATH) == manifest()


def test_what_is_no_manifest_at_all() -> None:
    text = manifest().to_json()
    texts = ["[]", "null", "5", '"fastdata"', "{}", "\0", "{" * 50, "[" * 100_000]
    texts += ['{"a":' * 100_000, *(text[:keep] for keep in range(len(text) - 2))]
    for wrong in texts:
        with pytest.raises(CorruptionError, match="not a manifest"):
            Manifest.parse(wrong, _PATH)


def test_folders_without_a_dataset(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="no such folder"):
        Manifest.load(tmp_path / "missing")
    with pytest.raises(DatasetError, match="no dataset here"):
        Manifest.load(tmp_path)
    (tmp_path / WORK_NAME).mkdir()
    with pytest.raises(DatasetError, match="packing has not finished"):
        Manifest.load(tmp_path)
    path = tmp_path / "_dataset.json"
    path.mkdir()
    with pytest.raises(DatasetError, match="cannot be read"):
        Manifest.load(tmp_path)
    path.rmdir()
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(CorruptionError, match="not a manifest"):
        Manifest.load(tmp_path)
    path.chmod(0)
    with as_nobody(), pytest.raises(DatasetError, match="cannot be read: Permission denied"):
        Manifest.load(tmp_path)


def test_a_manifest_of_a_terabyte(tmp_path: Path) -> None:
    (tmp_path / "_dataset.json").write_text(manifest().to_json(), "utf-8")
    os.truncate(tmp_path / "_dataset.json", 1 << 40)
    with pytest.raises(CorruptionError, match=r"it has 1\.1 TB, more than 67\.1 MB"):
        Manifest.load(tmp_path)
    for use in (ImageDataset, stage, verify):
        with pytest.raises(CorruptionError, match=r"it has 1\.1 TB"):
            use(tmp_path)
    with pytest.raises(DatasetError, match="more than the 64 MiB that a manifest may have"):
        replace(manifest(), classes=["x" * 1_000_000] * 68).to_json()
