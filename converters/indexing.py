"""Indexing: a dataset whose images stay where they are, in single files or in archives."""

from __future__ import annotations

import os
import pickle
import re
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any

from fastdata.converters.appending import PART_FILES, has_parts, index_parts
from fastdata.converters.arrow import ArrowImages
from fastdata.converters.hub import hub_source
from fastdata.converters.imagefolder import FlatFolder, ImageFolder
from fastdata.converters.lmdbs import LmdbImages
from fastdata.converters.options import PackOptions, require_arguments, root_of
from fastdata.converters.packing import SILENT, PackingProgress, PackResult, pack
from fastdata.converters.parquet import ParquetImages
from fastdata.converters.records import ImageSource
from fastdata.converters.webdataset import WebDataset

from fastdata.errors import BadSamplesError, BusyError, FastdataError, SourceError, UsageError
from fastdata.remote.files import archive_files
from fastdata.remote.filesystem import list_files
from fastdata.remote.hub import is_hub_url
from fastdata.remote.patterns import expand, is_pattern
from fastdata.remote.urls import is_url, redact
from fastdata.storage.encodings import is_image_name
from fastdata.storage.manifest import IN_PLACE
from fastdata.storage.peek import peek

#: Opens a source, by the kind that `look` finds.
_SOURCES: Mapping[str, Callable[..., ImageSource]] = {
    "webdataset": WebDataset,
    "imagefolder": ImageFolder,
    "images": FlatFolder,
    "parquet": partial(ParquetImages, extents=True),
    "arrow": ArrowImages,
    "lmdb": LmdbImages,
}
#: Kinds of sources that can be indexed.
KINDS = tuple(_SOURCES)
#: Kinds, by the suffix of a file.
SUFFIXES = {
    ".tar": "webdataset",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".mdb": "lmdb",
}
#: Seconds between looks at the process that asked, and tries in a folder that another one writes.
_TICK, _TRIES = 0.5, 10
#: Options of ``fastdata convert`` that errors name and ``fastdata index`` lacks.
_OF_CONVERT = {"--database", "--keys", "--label-column", "--no-labels", "--split"}


def source_of(
    place: str | os.PathLike[str],
    *,
    kind: str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> ImageSource:
    """Open what others wrote, as a source for `pack`."""
    if _is_on_hub(place):
        return hub_source(os.fspath(place), kind, storage_options, **options)
    kind = _kind_of(place, storage_options) if kind is None else kind
    if kind not in _SOURCES:
        raise UsageError(f"--kind {kind} is unknown", f"Use --kind {' or '.join(KINDS)}.")
    require_arguments(kind, options)
    if storage_options is not None:
        options["storage_options"] = storage_options
    try:
        return _SOURCES[kind](place, **options)
    except (SourceError, UsageError) as error:
        if not set(re.findall(r"--[a-z-]+", error.hint)) & _OF_CONVERT:
            raise
        there = f"fastdata convert {kind} has these options; --to archives copies nothing."
        raise type(error)(error.what, f"{error.hint} {there}") from None


def _is_on_hub(place: str | os.PathLike[str]) -> bool:
    return is_hub_url(os.fspath(place)) and not is_pattern(place)


def _kind_of(place: str | os.PathLike[str], storage_options: Mapping[str, Any] | None) -> str:
    first = expand(place)[0]
    if by_suffix := SUFFIXES.get(os.path.splitext(first)[1].lower()):
        return by_suffix
    if is_image_name(first):
        hint = "Name their folder; or ImageDataset.from_table takes a list of paths."
        raise SourceError(f"{redact(os.fspath(place))}: single images", hint)
    names: list[str] = []
    if is_url(first):
        names = list(list_files(first, storage_options))
    else:
        with suppress(OSError):  # a file; or a folder that opening it names
            names = os.listdir(first)
    if not names and (is_url(first) or not os.path.exists(first)):
        raise SourceError(f"{redact(first)}: no such folder or file", "Check the path.")
    suffixes = {os.path.splitext(name)[1].lower() for name in names}
    several = {kind: suffix for suffix, kind in SUFFIXES.items() if suffix in suffixes}
    if len(several) > 1:
        what = " and ".join(f"*{suffix}" for suffix in several.values())
        raise SourceError(
            f"{redact(first)}: holds {what}, of which one kind is indexed",
            f"Name it: {' or '.join(f'--kind {kind}' for kind in several)}.",
        )
    if is_url(first):
        return next(iter(several), "imagefolder")
    recognised = peek(first)
    if recognised.kind == "imagefolder" and not any(
        os.path.isdir(f"{first}/{one}") for one in names
    ):
        raise SourceError(
            f"{first}: holds nothing that can be indexed",
            f"Name a folder of *{', *'.join(SUFFIXES)}, of images or of folders of images; gunzip "
            "compressed tars.",
        )
    if recognised.kind == "dataset":
        raise SourceError(f"{first}: a dataset already", f"ImageDataset({first!r}) reads it.")
    if recognised.kind not in _SOURCES:
        raise SourceError(f"{first}: {recognised.what}, which cannot be indexed", recognised.hint)
    return recognised.kind


def index(
    place: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    kind: str | None = None,
    seek_points: bool = False,
    append: bool = False,
    part_files: int | None = None,
    reporting: Callable[[str], AbstractContextManager[PackingProgress]] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    source: Mapping[str, Any] | None = None,
    **options: Any,
) -> PackResult:
    """Index what others wrote; `ImageDataset(out)` then reads the images where they are.

    Every image is read once, for its size and checksum. An interrupted run resumes, and an index
    that is up to date stays unchanged, as `pack` says.

    Tars beyond ``part_files`` are indexed in parts of so many. With ``append``, those that the
    index in ``out`` lacks become new parts of it, and no other part is touched.

    Args:
        place: A folder, a file, a pattern such as ``shards/{000..999}.tar``; or a URL of any.
        out: The dataset's folder, or a URL.
        kind: One of `KINDS`; None to tell it by the names of files.
        seek_points: Whether to index where in a JPEG a decoder may start. Crops then load several
            times faster; it takes three times as long.
        append: Whether to add tars to an index in ``out``.
        part_files: Most tars of a part; None for 1,000.
        reporting: Returns what receives the progress of a part, by its title; None for silence.
        storage_options: Options of the drivers of URLs.
        source: Further arguments of the source, such as ``{"fields": ["txt"]}``.
        options: Further arguments of `pack`.

    Raises:
        Errors of `pack`.
    """
    of_source = dict(source or {})
    reporting = reporting or (lambda _: nullcontext(SILENT))
    opener = partial(source_of, place, kind=kind, storage_options=storage_options)
    files = None
    if kind is None and not _is_on_hub(place):
        kind = _kind_of(place, storage_options)
    if kind == "webdataset" and not _is_on_hub(place):
        files = archive_files(place, ".tar", storage_options)
    elif part_files is not None:
        what = f"--part-files {part_files} has no effect: only tars are indexed in parts"
        raise UsageError(what, "Leave it out.")
    elif append:
        raise UsageError(
            f"{redact(os.fspath(place))}: only tars can be added to an index",
            "Leave --append out, and give another --out.",
        )
    part_files = PART_FILES if part_files is None else part_files
    if files and (append or len(files) > part_files or has_parts(out, storage_options)):
        return index_parts(
            files,
            lambda **more: opener(**{**of_source, **more}),
            out,
            append=append,
            part_files=part_files,
            seek_points=seek_points,
            reporting=reporting,
            container="archives",
            storage_options=storage_options,
            **options,
        )
    opened = opener(**of_source)
    with reporting("") as progress:
        return pack(
            opened,
            out,
            container=container_of(opened),
            options=PackOptions(seek_points=seek_points),
            progress=progress,
            storage_options=storage_options,
            **options,
        )


def container_of(source: ImageSource) -> str:
    """Return the container that indexes a source where it lies."""
    for container in IN_PLACE:
        if root_of(source, container) is not None:
            return container
    where = redact(str(source.origin.get("root", "")))
    raise UsageError(
        f"{where}: some of its images are in files of their own, so they cannot be read in place",
        "Pack them: fastdata convert.",
    )


def main() -> None:
    """Index as `fastdata.staging.first_use` asks; end when that process has ended.

    Pickled arguments come in; the number of samples left out, or an error, goes out.
    """
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    answer: int | FastdataError
    try:
        answer = _index_good(pickle.load(sys.stdin.buffer))
    except FastdataError as error:
        answer = error
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # that process may have ended just now
    sys.stdout.buffer.write(pickle.dumps(answer))


def _end_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_TICK)
    os._exit(1)


def _index_good(arguments: Mapping[str, Any], skip_bad: bool = False, tries: int = _TRIES) -> int:
    """Index without bad samples; return their number. Samples of one key are an error."""
    try:
        return index(**arguments, skip_bad=skip_bad).manifest.skipped
    except BadSamplesError:
        if skip_bad:
            raise
        return _index_good(arguments, True, tries)
    except BusyError:  # of a process whose parent was killed
        if not tries:
            raise
        time.sleep(_TICK)
        return _index_good(arguments, skip_bad, tries - 1)
