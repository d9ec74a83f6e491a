"""Tars that are given instead of a dataset: indexed on first use, in a process of its own.

The index is kept in the cache folder, under a digest of the files' names, sizes and states. So
files that were added or changed are indexed again.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fastdata.errors import DatasetError, FastdataError, SourceError, warn
from fastdata.remote.files import archive_files
from fastdata.remote.patterns import expand, is_pattern
from fastdata.remote.urls import is_url, name_of, redact
from fastdata.storage.files import cache_folder, digest_name, file_lock
from fastdata.storage.manifest import has_manifest
from fastdata.storage.trust import make_cache_folder

_TAR = ".tar"
#: Seconds between signs of life to processes that wait for the index.
_TICK = 1.0
# Worker processes import the main module again: this one has none to import.
_PROGRAM = "from fastdata.converters.indexing import main; main()"


def is_indexed_here(place: str | os.PathLike[str]) -> bool:
    """Return whether a path or URL names tars, which have to be indexed first."""
    return is_pattern(place) or os.fspath(place).endswith(_TAR)


def indexed(
    place: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> Path:
    """Return the folder of the index of some tars; make it if there is none of them as they are.

    Of all processes of this machine, one makes it, and the others wait.

    Args:
        place: A tar, a pattern of several, or the URL of either.
        storage_options: Options of the driver of a URL.

    Raises:
        DatasetError: They cannot be indexed.
        RemoteError: The URL cannot be reached.
        SourceError: A file is missing, or is no tar of samples.
    """
    shown = redact(os.fspath(place))
    try:
        files = archive_files(place, _TAR, storage_options)
        found = [(file.location, file.size, file.mtime_ns) for file in files]
    except OSError as error:
        raise SourceError(
            f"{error.filename or shown}: {error.strerror}", "Check the path."
        ) from None
    digest = hashlib.sha256(repr(found).encode()).hexdigest()
    folder = Path(os.path.realpath(cache_folder())) / "indexed"
    make_cache_folder(folder)
    first = expand(place)[0]
    name = name_of(first) if is_url(first) else os.path.basename(first)
    made = folder / digest_name(name, digest)
    if not has_manifest(made):
        with file_lock(folder / f"{made.name}.lock") as advance:
            if not has_manifest(made):
                warn(
                    f"{shown}: {len(found):,} tars are indexed now, which reads them once. The "
                    f"index is kept in {made}; fastdata index makes it beforehand"
                )
                _index(os.fspath(place), made, storage_options, advance)
    return made


def _index(place: str, out: Path, storage_options: Mapping[str, Any] | None, advance: Any) -> None:
    """Run `fastdata.converters.indexing.index` in a process of its own."""
    given = {"place": place, "out": out, "storage_options": storage_options}
    # Options may hold secrets, which other users would see among a command's arguments.
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            data: bytes | None = pickle.dumps(given)
            while True:
                try:
                    answer, _ = process.communicate(data, timeout=_TICK)
                    break
                except subprocess.TimeoutExpired:
                    data = None
                    advance()
        except BaseException:
            process.terminate()
            raise
    if process.returncode or not answer:
        raise DatasetError(
            f"{redact(place)}: indexing ended with status {process.returncode}",
            "Run fastdata index, which says more.",
        )
    error = pickle.loads(answer)
    if isinstance(error, FastdataError):
        raise error
