"""Packing for ``fastdata convert``: progress, splits, and the summary."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from fastdata.cli.info import describe_turned
from fastdata.cli.locations import named, print_json, require_url, say
from fastdata.cli.progress import ProgressReport
from fastdata.converters.encode import Encoding
from fastdata.converters.listing import describe_left_out
from fastdata.converters.options import PackOptions, shuffles
from fastdata.converters.packing import PackResult, pack
from fastdata.converters.records import ImageSource
from fastdata.errors import BadSamplesError, UsageError
from fastdata.executors import keep_freed_memory
from fastdata.remote.urls import is_url, name_of, redact
from fastdata.storage.fields import IMAGE_AND_LABEL
from fastdata.storage.files import human_bytes
from fastdata.storage.manifest import IN_PLACE
from fastdata.storage.source import count_samples
from fastdata.text import human_count


def source_name(root: Path | str) -> str:
    """Return the name of a source's folder or file, for the dataset's."""
    return name_of(root) if isinstance(root, str) else os.path.basename(os.path.realpath(root))


def pack_all(
    name: str,
    root: Path | str,
    sources: Mapping[str, Callable[[], ImageSource]],
    container: str,
    options: PackOptions,
    out: str | None,
    local: Path | None,
    as_json: bool,
    **running: Any,
) -> None:
    """Pack each split; after bad images in one, continue with the next."""
    if len(sources) > 1 and out is not None and "{split}" not in out:
        raise UsageError(
            f"--out {redact(out)} names one dataset, but there are the splits "
            f"{' and '.join(sources)}",
            "Choose one by --split, or put {split} into --out.",
        )
    if out is not None:
        require_out(out)
    keep_freed_memory()
    shuffled = dict.fromkeys(sources, options.shuffle)
    if options.shuffle is None:
        shuffled = {split: shuffles(container, {"split": split}) for split in sources}
    failure: BadSamplesError | None = None
    for split, open_source in sources.items():
        default = "-".join(filter(None, (name, split, container)))
        to = (default if out is None else out).replace("{split}", split)
        place: Path | str = to if is_url(to) else Path(to)
        require_url(running["storage_options"], place, root)
        # One folder a dataset.
        folder = local / split if local is not None and len(sources) > 1 else local
        # The seed applies to the shuffled splits.
        ignored = len(sources) > 1 and any(shuffled.values()) and not shuffled[split]
        chosen = replace(options, seed=None) if ignored else options
        running |= {"container": container, "options": chosen, "local": folder}
        try:
            _pack_one(place, open_source, as_json, **running)
        except BadSamplesError as error:
            if failure is not None:
                say(f"error: {failure.what}", err=True)
            failure = error
    if failure is not None:
        raise failure


def require_out(out: str) -> None:
    """Raise UsageError for an empty --out, like an unset shell variable."""
    if not out.strip():
        raise UsageError("--out is empty", "Name a folder or a URL, or leave --out out.")


def _pack_one(
    out: Path | str,
    open_source: Callable[[], ImageSource],
    as_json: bool,
    **arguments: Any,
) -> None:
    begun = time.monotonic()
    with ProgressReport(f"packing {named(out)}") as progress:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            source = open_source()
        for one in caught:
            say(f"warning: {one.message}", err=True)
        packed = pack(source, out, progress=progress, **arguments)
    tell(packed, time.monotonic() - begun, arguments["options"].encoding, as_json)
    if not as_json and any(source.objects.values()):
        say(f"objects by class: {_counts(source.objects)}")


#: Classes whose objects the summary counts: the most frequent ones, and as many of the rarest.
_MOST_CLASSES = 10


def _counts(objects: Mapping[str, int]) -> str:
    """Return numbers of objects by class; the rare ones may be misspelt."""
    counts = sorted(filter(itemgetter(1), objects.items()), key=lambda one: -one[1])
    shown = [f"{name} {count:,}" for name, count in counts]
    if len(shown) > 2 * _MOST_CLASSES:
        shown[_MOST_CLASSES:-_MOST_CLASSES] = [f"… {len(shown) - 2 * _MOST_CLASSES} more …"]
    return ", ".join(shown)


def tell(packed: PackResult, seconds: float, encoded: Encoding, as_json: bool) -> None:
    """Print the summary of packing, or of indexing."""
    if as_json:
        print_json(_facts(packed, seconds))
    else:
        say(_summary(packed, seconds))
        for line in _kinds(packed, encoded):
            say(line)
        if packed.left_out:
            say(f"left out by suffix: {describe_left_out(packed.left_out)}")
        fields = packed.manifest.field_list
        extra = [field.name for field in fields if field not in IMAGE_AND_LABEL]
        chosen = f", fields={tuple(field.name for field in fields)}" if extra else ""
        upright = packed.manifest.source.get("exif_transpose")
        if turned := sum(kind.turned for kind in packed.kinds.values()):
            say(describe_turned(turned, upright))
        if upright:
            chosen += ", exif_transpose=True"
        say(f"load it: fastdata.ImageDataset({str(packed.path)!r}{chosen})")


#: Share of progressive images from which the summary suggests to rewrite them.
_SUGGESTED_SHARE = 0.01


def _kinds(packed: PackResult, encoding: Encoding) -> Iterator[str]:
    """Yield lines about the kinds of images, and about rewriting them."""
    kinds, samples = packed.kinds, packed.manifest.samples
    if kinds:
        yield "stored: " + ", ".join(
            f"{kind.images:,} {name} ({human_bytes(kind.size)})" for name, kind in kinds.items()
        )
    count = kinds["jpeg-progressive"].images if "jpeg-progressive" in kinds else 0
    suggested = encoding.kind == "original" and packed.manifest.container != "folder"
    if suggested and count and count >= samples * _SUGGESTED_SHARE:
        yield (
            f"{count / samples:.0%} of the images are progressive JPEGs. jpegtran -copy all makes "
            "baseline ones of the same pixels, decoded several times faster, some percent larger"
        )


def _facts(packed: PackResult, seconds: float) -> dict[str, Any]:
    """Return the summary as JSON values."""
    manifest = packed.manifest
    names = ("container", "samples", "skipped", "blob_bytes", "order", "seed")
    facts = {"path": packed.path, **{name: getattr(manifest, name) for name in names}}
    more = {"resumed": packed.resumed, "left_out": dict(packed.left_out), "seconds": seconds}
    return {**facts, "classes": len(manifest.classes), **more}


def _summary(packed: PackResult, seconds: float) -> str:
    manifest = packed.manifest
    what = (
        f"{packed.path}: {count_samples(manifest.samples, manifest.classes)}, "
        f"{human_bytes(manifest.blob_bytes)} in {manifest.container}"
    )
    if manifest.seed is not None:
        what += f", shuffled by seed {manifest.seed}"
    if manifest.skipped:
        what += f", {human_count(manifest.skipped, 'bad one')} skipped"
    done = manifest.samples - packed.resumed
    did = "indexed" if manifest.container in IN_PLACE else "packed"
    if not done:
        return f"{what}; already {did}"
    return f"{what}; {did} {done:,} in {seconds:.1f} s, {done / seconds:,.0f} images/s"
