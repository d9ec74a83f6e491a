"""Files that a user opens as a dataset: indexed on first use, in a process of its own.

The index is kept in the cache folder, under a digest of the files' names, sizes and states. So
files that were added or changed are indexed again.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fastdata.errors import DatasetError, FastdataError, SourceError, SpaceError, UsageError, warn
from fastdata.remote.files import archive_files
from fastdata.remote.hub import is_hub_url, is_packed_there, pinned
from fastdata.remote.patterns import expand, is_pattern
from fastdata.remote.urls import is_url, join_url, name_of, redact
from fastdata.storage.files import cache_folder, digest_name, file_lock
from fastdata.storage.local import LocalFile
from fastdata.storage.manifest import BAD_SAMPLES_NAME, WORK_NAME, has_manifest
from fastdata.storage.peek import peek
from fastdata.storage.trust import make_cache_folder
from fastdata.text import human_count

#: Ends of the names of files.
_ENDINGS = (".tar", ".parquet")
#: Kinds of folders, as `fastdata.storage.peek.peek` finds them.
_FOLDERS = ("webdataset", "parquet", "arrow", "images")
#: Seconds between signs of life to processes that wait for the index.
_TICK = 1.0
_ELSEWHERE = "Set FASTDATA_CACHE_DIR to a folder with room, or run fastdata index --out FOLDER."
# Worker processes import the main module again: this one has none to import. The working folder,
# in which -c looks first, may be a checkout, or have modules of any names.
_PROGRAM = (
    "import sys; sys.path[:] = filter(None, sys.path);"
    "from fastdata.converters.indexing import main; main()"
)


def is_indexed_here(
    place: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> bool:
    """Return whether a place is others' files: one, a pattern, a folder, a dataset on the Hub."""
    text = os.fspath(place)
    if is_hub_url(text) and not is_pattern(text):
        return not is_packed_there(text, storage_options)
    if is_pattern(place):
        return True
    if is_url(text) or not os.path.isdir(text):
        return text.lower().endswith(_ENDINGS)
    return not has_manifest(Path(text)) and peek(text).kind in _FOLDERS and not _is_ours(text)


def _is_ours(folder: str) -> bool:
    """Return whether a folder has parts of a dataset of fastdata, which lacks its manifest."""
    return any(name.startswith((WORK_NAME, "_index")) for name in os.listdir(folder))


def indexed(
    place: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> Path:
    """Return the folder of the index of others' files (`is_indexed_here`); make it if needed.

    Of all processes of this machine, one makes it, and the others wait. Raise SourceError if a file
    is missing or has no samples, UsageError if a dataset on the Hub has several configs or splits.
    """
    shown, what = redact(os.fspath(place)), ""
    if is_hub_url(os.fspath(place)) and not is_pattern(place):
        state: Any = pinned(os.fspath(place), storage_options)
        place, what = join_url(state.url, state.path).rstrip("/"), "its files are"
    else:
        try:
            if is_pattern(place) or is_url(place) or not os.path.isdir(place):
                files: Any = archive_files(place, "", storage_options)
            else:
                files = _files_in(os.path.abspath(place))
            state = [(file.location, file.size, file.mtime_ns) for file in files]
        except OSError as error:
            where = error.filename or shown
            raise SourceError(f"{where}: {error.strerror}", "Check the path.") from None
        what = f"{human_count(len(state), 'file')} {'is' if len(state) == 1 else 'are'}"
    digest = hashlib.sha256(repr(state).encode()).hexdigest()
    folder = Path(os.path.realpath(cache_folder())) / "indexed"
    try:
        make_cache_folder(folder)
    except OSError as error:
        raise DatasetError(
            f"{shown}: has to be indexed, but {folder}, where the index is kept, cannot be made: "
            f"{error.strerror}",
            _ELSEWHERE,
        ) from None
    first = expand(place)[0]
    name = name_of(first) if is_url(first) else os.path.basename(os.path.abspath(first))
    made = folder / digest_name(name, digest)
    if not has_manifest(made):
        with file_lock(folder / f"{made.name}.lock") as advance:
            if not has_manifest(made):
                warn(
                    f"{shown}: {what} indexed now, each read once. The index is kept in "
                    f"{made}; fastdata index makes it beforehand"
                )
                skipped = _index(os.fspath(place), made, storage_options, advance)
                if skipped:
                    parts = "" if (made / BAD_SAMPLES_NAME).exists() else "part-*/"
                    warn(
                        f"{shown}: {human_count(skipped, 'sample')} without a sound image or "
                        f"label {'is' if skipped == 1 else 'are'} left out, listed in "
                        f"{made}/{parts}{BAD_SAMPLES_NAME}"
                    )
    return made


def _files_in(folder: str) -> Iterator[LocalFile]:
    """Yield the files of a folder, at any depth, without hidden ones."""
    if os.path.exists(os.path.join(folder, "dataset_dict.json")):
        splits = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
        hint = f"Name the folder of one: {os.path.join(folder, (splits or [''])[0])}."
        raise UsageError(f"{folder}: has the splits {', '.join(splits)}", hint)
    seen = set()  # a link may lead to a folder above it
    for where, folders, names in os.walk(folder, followlinks=True):
        stat = os.stat(where)
        again = (stat.st_dev, stat.st_ino) in seen
        seen.add((stat.st_dev, stat.st_ino))
        folders[:] = sorted(name for name in folders if not (again or name.startswith(".")))
        for name in sorted(names):
            path = Path(where, name)
            if not name.startswith(".") and path.exists():  # a link may lead nowhere
                yield LocalFile(path)


def _index(place: str, out: Path, storage_options: Mapping[str, Any] | None, advance: Any) -> int:
    """Index in a process of its own; return how many samples were left out."""
    arguments = {"place": place, "out": out, "storage_options": storage_options}
    # Options may hold secrets, which other users would see among a command's arguments.
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            data: bytes | None = pickle.dumps(arguments)
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
    outcome: int | FastdataError = pickle.loads(answer)
    if isinstance(outcome, SpaceError):
        raise SpaceError(outcome.what, f"Make room. {_ELSEWHERE}")
    if isinstance(outcome, FastdataError):
        raise outcome
    return outcome
