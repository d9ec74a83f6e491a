"""``fastdata info``: describe a dataset."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict
from itertools import accumulate
from pathlib import Path
from typing import Any

import click
import pyarrow.compute as pc

from fastdata.cli.locations import (
    Location,
    json_option,
    named,
    print_json,
    require_url,
    storage_options,
)
from fastdata.errors import printable
from fastdata.remote.opening import open_packed
from fastdata.staging.staged import find_staged
from fastdata.storage.fields import Field
from fastdata.storage.files import human_bytes
from fastdata.storage.manifest import Manifest, PartsError
from fastdata.storage.packed import IndexedSource
from fastdata.text import aligned, human_count

#: Columns of the index whose values are counted, in the index's order.
_COUNTED = ("width", "height", "channels", "encoding", "orientation")

#: Kinds of fields without a type.
_KINDS = {"image": "images", "mask": "masks", "blob": "files"}

#: Kinds of images by their number of channels.
_CHANNELS = {"1": "grey", "2": "grey with alpha", "3": "RGB", "4": "CMYK or RGB with alpha"}


@click.command("info")
@click.argument("dataset", type=Location())
@json_option
@storage_options
def command(dataset: Path | str, as_json: bool, storage_options: dict[str, Any] | None) -> None:
    """Describe DATASET, a folder or a URL.

    \b
    Examples:
      $ fastdata info imagenet-train-lmdb
      $ fastdata info --json imagenet-train-lmdb
      $ fastdata info gs://bucket/imagenet-train-shards
    """
    require_url(storage_options, dataset)
    name = named(dataset)
    try:
        staged = find_staged(dataset, storage_options)
        facts = describe(open_packed(dataset, storage_options), staged)
        lines = _lines(facts)
    except PartsError as error:  # an index of parts; their own indices are not read
        manifest = error.manifest
        facts = _of_manifest(name, manifest, manifest.field_list)
        facts["parts"] = [asdict(part) for part in manifest.parts]
        lines = _lines_of_parts(facts)
    if as_json:
        print_json(facts)
        return
    click.secho(printable(name), bold=True)
    for line in aligned([(f" {name}", printable(value)) for name, value in lines]):
        click.echo(line)


def _of_manifest(name: str, manifest: Manifest, fields: Iterable[Field]) -> dict[str, Any]:
    """Return the description that a manifest alone gives, as JSON values."""
    names = ("container", "format_version", "samples", "skipped", "classes", "blob_bytes", "source",
             "tool")  # fmt: skip
    facts = {"path": name, **{one: getattr(manifest, one) for one in names}}
    return facts | {"fields": list(map(_field, fields))}


def _lines_of_parts(facts: dict[str, Any]) -> list[tuple[str, str]]:
    parts = facts["parts"]
    files = human_count(sum(part["files"] for part in parts), "file")
    return [
        _samples_line(facts),
        *_field_lines(facts),
        ("container", f"{facts['container']}, {files} in {human_count(len(parts), 'part')}"),
        ("size", f"{human_bytes(facts['blob_bytes'])} of blobs"),
        ("parts", f"{parts[0]['name']} to {parts[-1]['name']}; fastdata info describes each"),
        *_last_lines(facts),
    ]


def _samples_line(facts: dict[str, Any]) -> tuple[str, str]:
    skipped = f", {human_count(facts['skipped'], 'bad one')} skipped" if facts["skipped"] else ""
    named = human_count(len(facts["classes"]), "class", "classes")
    classes = f" of {named}" if facts["classes"] else ""
    return "samples", f"{facts['samples']:,}{classes}{skipped}"


def _field_lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    first, *rest = map(_in_words, facts["fields"])
    return [("fields", first), *(("", field) for field in rest)]


def _last_lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("source", ", ".join(f"{name} {value}" for name, value in facts["source"].items())),
        ("made by", f"fastdata {facts['tool']}, format version {facts['format_version']}"),
    ]


def describe(blobs: IndexedSource, staged: Path | None) -> dict[str, Any]:
    """Return a description of a dataset, as JSON values."""
    manifest = blobs.manifest
    # Count values: rows are many, distinct values few.
    counters: dict[str, Counter[Any]] = {name: Counter() for name in _COUNTED}
    with_seek_points = 0
    for batch in blobs.index.batches(columns=(*_COUNTED[:-1], "seek_points", _COUNTED[-1])):
        for name, counter in counters.items():
            for entry in pc.value_counts(batch.column(name)).to_pylist():
                counter[entry["values"]] += entry["counts"]
        with_seek_points += len(batch) - batch.column("seek_points").null_count
    return _of_manifest(str(blobs.location), manifest, blobs.fields) | {
        "file_bytes": sum(entry.size for entry in (manifest.index, *manifest.files)),
        "files": [entry.name for entry in manifest.files],
        "encodings": dict(counters["encoding"].most_common()),
        "channels": {str(count): number for count, number in sorted(counters["channels"].items())},
        "with_seek_points": with_seek_points,
        "with_orientation": sum(n for one, n in counters["orientation"].items() if one > 1),
        "height": _spread(counters["height"]),
        "width": _spread(counters["width"]),
        "order": manifest.order,
        "seed": manifest.seed,
        "options": manifest.options,
        "root": manifest.root,
        "staged": None if staged is None else str(staged),
    }


def _field(field: Field) -> dict[str, Any]:
    kind_of_values = None if field.type is None else str(field.type)
    return {"name": field.name, "kind": field.kind, "type": kind_of_values,
            "nullable": field.nullable, "format": field.format or None}  # fmt: skip


def _in_words(field: dict[str, Any]) -> str:
    what = field["type"] or _KINDS[field["kind"]]
    what += f", {field['format']}" if field["format"] else ""
    return f"{field['name']}: {what}{', may be missing' if field['nullable'] else ''}"


def describe_turned(images: int, upright: bool | None) -> str:
    """Return the number of images with an EXIF orientation, and what turns them, as text.

    ``upright`` tells whether annotations are for turned images; None if that is not known.
    """
    what = f"{human_count(images, 'image')} with an EXIF orientation other than upright"
    if upright is None:
        return f"{what}: stored unturned; ImageDataset(exif_transpose=True) turns them"
    kind = "turned images: load with exif_transpose=True" if upright else "stored images"
    return f"{what}; annotations are for {kind}"


def _spread(counter: Counter[int]) -> dict[str, int]:
    """Return minimum, median and maximum of counted values."""
    values = sorted(counter)
    ends = list(accumulate(counter[value] for value in values))
    total = ends[-1] if ends else 0
    if not total:
        return {"min": 0, "median": 0, "max": 0}
    # For an even number of values, the mean of the middle two, rounded down.
    middle = [values[bisect_right(ends, at)] for at in ((total - 1) // 2, total // 2)]
    return {"min": values[0], "median": sum(middle) // 2, "max": values[-1]}


def _order(facts: dict[str, Any]) -> str:
    if facts["order"] == "source":
        return "the source's"
    return facts["order"] if facts["seed"] is None else f"{facts['order']} by seed {facts['seed']}"


def _lines(facts: dict[str, Any]) -> list[tuple[str, str]]:
    def side(name: str) -> str:
        return "{min} to {max}, median {median}".format(**facts[name])

    files, turned = facts["files"], ""
    if count := facts["with_orientation"]:
        turned = describe_turned(count, facts["source"].get("exif_transpose"))
    channels = {_CHANNELS.get(count, count): n for count, n in facts["channels"].items()}
    container = f"{facts['container']}, {human_count(len(files), 'file')}" if files else "folder"
    return [
        _samples_line(facts),
        *_field_lines(facts),
        ("container", container),
        ("size", f"{human_bytes(facts['blob_bytes'])} of blobs, "
                 f"{human_bytes(facts['file_bytes'])} on disk"),
        ("encodings", ", ".join(f"{name} {n:,}" for name, n in facts["encodings"].items())),
        ("channels", ", ".join(f"{name} {n:,}" for name, n in channels.items())),
        ("height", side("height")),
        ("width", side("width")),
        *([("EXIF", turned)] if turned else []),
        ("seek points", human_count(facts["with_seek_points"], "sample")),
        ("order", _order(facts)),
        ("options", ", ".join(f"{name} {value}" for name, value in facts["options"].items())),
        *_last_lines(facts),
        ("staged", facts["staged"] or "no"),
    ]  # fmt: skip
