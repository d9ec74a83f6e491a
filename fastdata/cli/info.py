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
from fastdata.remote.opening import RemoteSource
from fastdata.staging.staged import find_staged
from fastdata.storage.fields import Field
from fastdata.storage.files import human_bytes
from fastdata.storage.manifest import Manifest, PartsError
from fastdata.storage.packed import IndexedSource, PackedSource
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
        if isinstance(dataset, str):
            about = describe(RemoteSource(dataset, None, storage_options), staged)
        else:
            about = describe(PackedSource(dataset), staged)
        lines = _lines(about)
    except PartsError as error:  # an index of parts; their own indices are not read
        manifest = error.manifest
        about = _of_manifest(name, manifest, manifest.field_list)
        about["parts"] = [asdict(part) for part in manifest.parts]
        lines = _lines_of_parts(about)
    if as_json:
        print_json(about)
        return
    click.secho(printable(name), bold=True)
    for line in aligned([(f" {name}", printable(value)) for name, value in lines]):
        click.echo(line)


def _of_manifest(name: str, manifest: Manifest, fields: Iterable[Field]) -> dict[str, Any]:
    """Return the description that a manifest alone gives, as JSON values."""
    names = ("container", "format_version", "samples", "skipped", "classes", "blob_bytes", "source",
             "tool")  # fmt: skip
    about = {"path": name, **{one: getattr(manifest, one) for one in names}}
    return about | {"fields": list(map(_field, fields))}


def _lines_of_parts(about: dict[str, Any]) -> list[tuple[str, str]]:
    parts = about["parts"]
    files = human_count(sum(part["files"] for part in parts), "file")
    return [
        _samples_line(about),
        *_field_lines(about),
        ("container", f"{about['container']}, {files} in {human_count(len(parts), 'part')}"),
        ("size", f"{human_bytes(about['blob_bytes'])} of blobs"),
        ("parts", f"{parts[0]['name']} to {parts[-1]['name']}; fastdata info describes each"),
        *_last_lines(about),
    ]


def _samples_line(about: dict[str, Any]) -> tuple[str, str]:
    skipped = f", {human_count(about['skipped'], 'bad one')} skipped" if about["skipped"] else ""
    named = human_count(len(about["classes"]), "class", "classes")
    classes = f" of {named}" if about["classes"] else ""
    return "samples", f"{about['samples']:,}{classes}{skipped}"


def _field_lines(about: dict[str, Any]) -> list[tuple[str, str]]:
    first, *others = map(_in_words, about["fields"])
    return [("fields", first), *(("", field) for field in others)]


def _last_lines(about: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("source", ", ".join(f"{name} {value}" for name, value in about["source"].items())),
        ("made by", f"fastdata {about['tool']}, format version {about['format_version']}"),
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


def _order(about: dict[str, Any]) -> str:
    if about["order"] == "source":
        return "the source's"
    return about["order"] if about["seed"] is None else f"{about['order']} by seed {about['seed']}"


def _lines(about: dict[str, Any]) -> list[tuple[str, str]]:
    def side(name: str) -> str:
        return "{min} to {max}, median {median}".format(**about[name])

    files, turned = about["files"], ""
    if count := about["with_orientation"]:
        turned = describe_turned(count, about["source"].get("exif_transpose"))
    channels = {_CHANNELS.get(count, count): n for count, n in about["channels"].items()}
    container = f"{about['container']}, {human_count(len(files), 'file')}" if files else "folder"
    return [
        _samples_line(about),
        *_field_lines(about),
        ("container", container),
        ("size", f"{human_bytes(about['blob_bytes'])} of blobs, "
                 f"{human_bytes(about['file_bytes'])} on disk"),
        ("encodings", ", ".join(f"{name} {n:,}" for name, n in about["encodings"].items())),
        ("channels", ", ".join(f"{name} {n:,}" for name, n in channels.items())),
        ("height", side("height")),
        ("width", side("width")),
        *([("EXIF", turned)] if turned else []),
        ("seek points", human_count(about["with_seek_points"], "sample")),
        ("order", _order(about)),
        ("options", ", ".join(f"{name} {value}" for name, value in about["options"].items())),
        *_last_lines(about),
        ("staged", about["staged"] or "no"),
    ]  # fmt: skip
