"""Checks of packing's options: container, seed, executor, and where the output may lie."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fastdata.converters.encode import Encoding
from fastdata.converters.ray_executor import RayExecutor
from fastdata.converters.records import Source, further_fields, tables_of
from fastdata.converters.shuffling import is_split, shuffles
from fastdata.converters.trees import common_folder, is_utf8

from fastdata.errors import FastdataError, UsageError, printable
from fastdata.executors import Executor, local_executor
from fastdata.remote.urls import is_url, name_of, redact
from fastdata.storage.arrow import is_storable
from fastdata.storage.fields import IMAGE, IMAGES, LABEL, NAME, RELATIVE, Field
from fastdata.storage.files import cache_folder, digest_name, read_file
from fastdata.storage.manifest import (
    CONTAINERS,
    IN_PLACE,
    MANIFEST_NAME,
    MOST_BYTES,
    PART,
    Manifest,
)
from fastdata.storage.trust import make_cache_folder

#: Fields without a format that count pixels of the image, by the kind of their source.
_IN_PIXELS: dict[Any, tuple[str, ...]] = {"coco": ("areas",)}
#: Kinds of sources without an argument that others have.
_WITHOUT = {
    "fields": ("imagefolder", "lmdb"),
    "image_column": ("imagefolder", "lmdb"),
}
#: Executors of packing's tasks.
EXECUTORS = ("local", "ray")


def require_arguments(kind: str, arguments: Iterable[str]) -> None:
    """Raise UsageError for an argument that a kind of source does not have."""
    for name in arguments:
        if kind in _WITHOUT.get(name, ()):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} has no effect on --kind {kind}", "Leave it out.")


def choose_seed(
    source: Source, container: str, shuffle: bool | None, seed: int | None
) -> int | None:
    """Return the seed of the permutation; None for the source's order."""
    if shuffle is None:
        shuffle = shuffles(container, source.about)
    if not shuffle and seed is not None:
        raise UsageError(
            f"--seed {seed} has no effect with the source's order",
            "Leave it out, or add --shuffle.",
        )
    return (seed or 0) if shuffle else None


def choose_executor(name: str, address: str | None, workers: int | None) -> Executor:
    """Return the executor of packing's tasks."""
    if name == "ray":
        return RayExecutor(address, workers)
    if name != "local":
        raise UsageError(f"unknown executor {name}", f"Use --executor {' or '.join(EXECUTORS)}.")
    if address is not None:
        raise UsageError(
            f"--address {address} has no effect with --executor local", "Use --executor ray."
        )
    return local_executor(workers)


def check_options(
    source: Source, container: str, encoding: Encoding, plain_images: bool, shard_size: int | None
) -> None:
    """Raise UsageError for options that contradict each other, and for names of no field."""
    require_fields([IMAGE, LABEL, *further_fields(source)])
    if container not in CONTAINERS:
        raise UsageError(f"unknown container {container}", f"Use --to {' or '.join(CONTAINERS)}.")
    if container in IN_PLACE:
        root = root_of(source, container)
        if root is None:
            others = [one for one in IN_PLACE if root_of(source, one) is not None]
            raise UsageError(
                f"--to {container} cannot index these images where they are",
                f"Use --to {' or '.join([*others, 'lmdb, parquet, shards'])}.",
            )
        if redact(root) != root:
            raise UsageError(
                f"{redact(root)}: the index would contain the credentials in this URL",
                "Give them by --storage-option.",
            )
        if encoding.kind != "original":
            raise UsageError(
                f"--to {container} leaves images unchanged, so it takes no --encoding",
                "Use --to lmdb, parquet or shards.",
            )
    if encoding.max_side is not None:
        _require_no_pixels(source)
    if plain_images and container != "parquet":
        raise UsageError(f"plain_images has no effect in {container}", "Leave it out.")
    if shard_size is not None and container not in ("parquet", "shards"):
        raise UsageError(f"--shard-size has no effect with --to {container}", "Leave it out.")
    if shard_size is not None and shard_size < 1:
        raise UsageError(f"--shard-size {shard_size} is not a size", "Use 1 or more bytes.")


def _require_no_pixels(source: Source) -> None:
    """Reject smaller images beside fields that would still belong to the larger ones."""
    known: set[str] = set()
    about: Any = source.about
    while isinstance(about, Mapping):  # a packed dataset is "of" its source
        known.update(_IN_PIXELS.get(about.get("kind"), ()))
        about = about.get("of")
    names = []
    for field in further_fields(source):
        pixels = field.format and not field.format.startswith(RELATIVE)
        if pixels or field.kind in IMAGES or field.name in known:
            names.append(field.name)
    if names:
        raise UsageError(
            f"--max-side reduces the images, but not their {', '.join(names)}, which would no "
            "longer fit",
            "Leave --max-side out, or name the other fields with --fields.",
        )


def root_of(source: Source, container: str) -> str | None:
    """Return the folder or URL that the paths of an index in place are relative to.

    None if the container writes files of its own, or cannot index the source.
    """
    if container == "folder":
        return source.root
    files = getattr(source, "archives", None) if container == "archives" else None
    if (tables := tables_of(source, container)) is not None:
        files = tables.files
    if not files:
        return None
    return common_folder([file.location for file in files])


def check_out(source: Source, out: str | os.PathLike[str]) -> None:
    """Reject an output inside an input, or around one."""
    place = os.fspath(out)
    if not is_utf8(place):
        raise UsageError(f"{printable(place)}: this path is not UTF-8", "Choose another --out.")
    for other in source.inputs:
        path = os.fspath(other)
        ends = [one.rstrip("/") + "/" for one in (place, path)]
        if not is_url(out) and not is_url(path):
            ends = [os.path.join(os.path.realpath(one), "") for one in (place, path)]
        if ends[0].startswith(ends[1]) or ends[1].startswith(ends[0]):
            raise UsageError(
                f"{redact(place)}: lies inside the source, {redact(path)}, or contains it",
                "Choose an --out elsewhere.",
            )


def check_classes(source: Source, out: str | os.PathLike[str]) -> None:
    """Reject numbers of classes that differ from another split's, packed beside the output."""
    names, ours = _class_names(source.classes, source.about), _origin(source.about)
    here = Path(out).absolute()
    # The index of parts compares its parts. Two sources without a root may have nothing in common.
    if is_url(out) or not names or not source.about.get("root") or PART.fullmatch(here.name):
        return
    root = json.dumps(ours[-1], ensure_ascii=False)[1:-1].encode()
    for place in sorted(here.parent.glob(f"*/{MANIFEST_NAME}")):
        try:
            text = read_file(place, MOST_BYTES)
            if root not in text:  # to parse thousands of other datasets takes minutes
                continue
            manifest = Manifest.parse(text, place)
        except (OSError, FastdataError):  # damaged, or of another version
            continue
        others = _class_names(manifest.classes, manifest.source)
        if place.parent == here or _origin(manifest.source) != ours:
            continue
        if set(names).isdisjoint(others):
            continue
        for label, (name, other) in enumerate(zip(names, others, strict=False)):
            # A label without a name is called by its number, as some classes are in both datasets.
            unnamed = str(label) in (name, other) and name not in others and other not in names
            if name != other and not unnamed:
                raise UsageError(
                    f"{out}: the label {label} would be {name!r}, but it is {other!r} in "
                    f"{place.parent}, which is of the same source",
                    "Give both the same classes: --classes of voc and table, the same categories "
                    "in each file of coco, an empty folder a class and --allow-empty of "
                    "imagefolder. If the other dataset is old, remove it, or choose an --out "
                    "elsewhere.",
                )


def _class_names(labels: Sequence[str], about: Mapping[str, Any]) -> list[str]:
    """Return the names of a label's classes, else of the classes of objects."""
    found = labels or about.get("classes")
    return list(map(str, found)) if isinstance(found, Sequence) else []


def _origin(about: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return what the splits of a source have in common."""
    root = str(about.get("root", "")).rstrip("/")
    folder, _, name = root.rpartition("/")
    label = about.get("label") or about.get("columns")
    return about.get("kind"), label, folder if is_split(name) else root


def require_fields(fields: Sequence[Field]) -> None:
    """Check the names and types of fields that are to be packed."""
    for field in fields:
        if field.type is not None and not is_storable(field.type):
            raise UsageError(
                f"the field {field.name} is {field.type}, which datasets cannot store",
                "Cast it to another type, or leave it out.",
            )
    by_lower: dict[str, str] = {}
    for name in (field.name for field in fields):
        if not NAME.fullmatch(name) or name == "key":
            raise UsageError(
                f"{name!r} cannot be a field's name",
                "A name has 1 to 100 characters, no slash or control character, does not begin "
                "with '__', and is not 'key'. Rename it, or leave it out.",
            )
        # Their files must differ on every file system, and webdataset reads names in lower case.
        if name.lower() in by_lower:
            what = f"the fields {by_lower[name.lower()]} and {name} have the same name"
            raise UsageError(f"{what}, upper and lower case apart", "Rename one, or leave it out.")
        by_lower[name.lower()] = name


def local_folder(out: str | os.PathLike[str], local: str | os.PathLike[str] | None) -> Path:
    """Return the folder of this machine for output files.

    For a URL, its default is ``packing/<name>-<id>`` in fastdata's cache folder; ``<id>`` are
    digits of the URL's SHA-256.
    """
    if local is not None and is_url(local):
        what = f"--local {redact(os.fspath(local))} is a URL"
        raise UsageError(what, "Give a folder of this machine.")
    if local is not None and not is_url(out):
        raise UsageError(f"--local {local} has no effect with a folder as --out", "Leave it out.")
    if not is_url(out):
        return Path(out)
    if local is not None:
        Path(local).parent.mkdir(parents=True, exist_ok=True)
        return Path(local)
    url = os.fspath(out).rstrip("/")
    name = digest_name(name_of(url), hashlib.sha256(redact(url).encode()).hexdigest())
    folder = Path(os.path.realpath(cache_folder() / "packing" / name))
    make_cache_folder(folder)  # private: resuming trusts its files
    return folder
