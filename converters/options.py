"""Packing's options, and checks: container, seed, executor, and where the output may lie."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastdata.converters.encode import ORIGINAL, Encoding
from fastdata.converters.ray_executor import RayExecutor
from fastdata.converters.records import ImageSource

from fastdata.errors import FastdataError, UsageError, printable
from fastdata.executors import Executor, local_executor
from fastdata.remote.urls import common_folder, is_url, name_of, redact
from fastdata.storage.arrow import is_storable
from fastdata.storage.encodings import DEFAULT_STRIDE
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
from fastdata.text import is_utf8

#: Names of splits for evaluation and for training.
_EVALUATION = {"val", "valid", "validation", "test", "testing", "eval", "evaluation", "dev"}
_TRAINING = {"train", "training"}

#: Fields without a format that count pixels of the image, by the kind of their source.
_IN_PIXELS: dict[Any, tuple[str, ...]] = {"coco": ("areas",)}
#: Executors of packing's tasks.
EXECUTORS = ("local", "ray")
#: Containers of several files, and default bytes of images and fields at which one ends.
_SHARDED, SHARD_SIZE = ("parquet", "shards"), 256 << 20


@dataclass(frozen=True)
class PackOptions:
    """Options on which a dataset's bytes depend, beside its source and its container.

    Attributes:
        encoding: Encoding of stored images.
        plain_images: Whether Parquet's images are bytes, as petastorm needs, not structs.
        shard_size: Bytes of samples at which a file ends (``parquet``, ``shards``); None for
            256 MiB.
        seek_points: Whether to index where in a JPEG a decoder may start (`fastdata.decode`).
        shuffle: Whether to permute the samples. None for True if the container is ``parquet`` or
            ``shards``, unless the split or its folder has a name for evaluation.
        seed: Seed of the permutation, any int; None for 0.
    """

    encoding: Encoding = ORIGINAL
    plain_images: bool = False
    shard_size: int | None = None
    seek_points: bool = True
    shuffle: bool | None = None
    seed: int | None = None

    @property
    def stride(self) -> int | None:
        """Pixels between seek points; None for no seek points."""
        return DEFAULT_STRIDE if self.seek_points else None

    def file_size(self, container: str) -> int | None:
        """Return the bytes at which a file of a container ends; None if it has one file or none."""
        return (self.shard_size or SHARD_SIZE) if container in _SHARDED else None

    def in_manifest(self, container: str) -> dict[str, Any]:
        """Return the options for the manifest, apart from the order; JSON values."""
        options = self.encoding.options() | {"seek_points": self.stride}
        if size := self.file_size(container):
            options["shard_size"] = size
        return options | ({"plain_images": True} if self.plain_images else {})


def require_arguments(kind: str, arguments: Iterable[str]) -> None:
    """Raise UsageError for an argument that a kind of source does not have."""
    for name in arguments:
        if name in ("fields", "image_column") and kind in ("imagefolder", "images", "lmdb"):
            option = f"--{name.replace('_', '-')}"
            raise UsageError(f"{option} has no effect on --kind {kind}", "Leave it out.")


def choose_seed(source: ImageSource, container: str, options: PackOptions) -> int | None:
    """Return the seed of the permutation; None for the source's order."""
    shuffle, seed = options.shuffle, options.seed
    if shuffle is None:
        shuffle = shuffles(container, source.origin)
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


def check_options(source: ImageSource, container: str, options: PackOptions) -> None:
    """Raise UsageError for options that contradict each other, and for names of no field."""
    require_fields([IMAGE, LABEL, *source.fields])
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
        if options.encoding.kind != "original":
            raise UsageError(
                f"--to {container} leaves images unchanged, so it takes no --encoding",
                "Use --to lmdb, parquet or shards.",
            )
    if options.encoding.max_side is not None:
        _require_no_pixels(source)
    if options.plain_images and container != "parquet":
        raise UsageError(f"plain_images has no effect in {container}", "Leave it out.")
    if options.shard_size is not None and container not in _SHARDED:
        raise UsageError(f"--shard-size has no effect with --to {container}", "Leave it out.")
    if options.shard_size is not None and options.shard_size < 1:
        raise UsageError(f"--shard-size {options.shard_size} is not a size", "Use 1 or more bytes.")


def _require_no_pixels(source: ImageSource) -> None:
    """Reject smaller images beside fields that would still belong to the larger ones."""
    known: set[str] = set()
    origin: Any = source.origin
    while isinstance(origin, Mapping):  # a packed dataset is "of" its source
        known.update(_IN_PIXELS.get(origin.get("kind"), ()))
        origin = origin.get("of")
    names = []
    for field in source.fields:
        pixels = field.format and not field.format.startswith(RELATIVE)
        if pixels or field.kind in IMAGES or field.name in known:
            names.append(field.name)
    if names:
        raise UsageError(
            f"--max-side reduces the images, but not their {', '.join(names)}, which would no "
            "longer fit",
            "Leave --max-side out, or name the other fields with --fields.",
        )


def root_of(source: ImageSource, container: str) -> str | None:
    """Return the folder or URL that the paths of an index in place are relative to.

    None if the container writes files of its own, or cannot index the source.
    """
    if container == "folder":
        return source.root
    files = source.archives if container == "archives" else None
    if (tables := source.tables_in(container)) is not None:
        files = tables.files
    if not files:
        return None
    return common_folder([file.location for file in files])


def check_out(source: ImageSource, out: str | os.PathLike[str]) -> None:
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


def check_classes(source: ImageSource, out: str | os.PathLike[str]) -> None:
    """Reject labels that mean other classes in another split, packed beside the output."""
    names, ours = _class_names(source.classes, source.origin), _origin(source.origin)
    here = Path(out).absolute()
    # The index of parts compares its parts. Two sources without a root may have nothing in common.
    if is_url(out) or not names or not source.origin.get("root") or PART.fullmatch(here.name):
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


def _class_names(labels: Sequence[str], origin: Mapping[str, Any]) -> list[str]:
    """Return the names of a label's classes, else of the classes of objects."""
    names = labels or origin.get("classes")
    return list(map(str, names)) if isinstance(names, Sequence) else []


def _origin(source: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the part of a source's origin that its splits share."""
    root = str(source.get("root", "")).rstrip("/")
    folder, _, name = root.rpartition("/")
    label = source.get("label") or source.get("columns")
    return source.get("kind"), label, folder if is_split(name) else root


def require_fields(fields: Sequence[Field]) -> None:
    """Check the names and types of the fields to pack."""
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


def is_split(name: str) -> bool:
    """Return whether a file or folder has the name of a split; train2017 and val.csv have, too."""
    stem = re.sub(r"[\W\d_]+$", "", name.partition(".")[0].lower())
    return stem in _TRAINING | _EVALUATION


def split_to_pack(classes: Iterable[str]) -> str | None:
    """Return the folder to pack by itself if all class folders have names of splits.

    It is the split for training, else the first in order; None if the folders are classes.
    """
    names = sorted(classes, key=lambda name: (name.lower() not in _TRAINING, name))
    if not names or not {name.lower() for name in names} <= _TRAINING | _EVALUATION:
        return None
    return names[0]


def shuffles(container: str, origin: Mapping[str, Any]) -> bool:
    """Return whether packing shuffles by default.

    The split or the folder's name in the source's ``origin`` shows whether it is for evaluation.
    """
    while "of" in origin:  # a packed dataset as the source
        origin = origin["of"]
    name = origin.get("split") or str(origin.get("root", "")).rstrip("/").rpartition("/")[2]
    words = re.split(r"[^a-z]+", str(name).lower())
    return container in ("parquet", "shards") and _EVALUATION.isdisjoint(words)
