"""Generations of datasets: whether one that is open is still what lies there."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from fastdata.errors import CorruptionError, DatasetError, FastdataError
from fastdata.storage.files import read_file
from fastdata.storage.jsontext import parse_json
from fastdata.storage.manifest import MANIFEST_NAME, MOST_BYTES
from fastdata.storage.source import Source


def generation_of(text: bytes) -> str:
    """Return the generation in a manifest's text, of any version; "" if there is none."""
    try:
        return str(parse_json(text)["generation"])
    except (ValueError, TypeError, KeyError):
        return ""


def generation_in(folder: Path | str) -> str:
    """Return the generation of the dataset that lies in a folder now; "" if there is none."""
    path = os.path.join(folder, MANIFEST_NAME)
    try:
        found = os.stat(path)
        return _read(path, (found.st_ino, found.st_size, found.st_mtime_ns))
    except (FileNotFoundError, NotADirectoryError):
        return ""


@lru_cache(maxsize=8)
def _read(path: str, _: tuple[int, ...]) -> str:
    """Return the generation in a file; thousands of samples may ask for it."""
    return generation_of(read_file(path, MOST_BYTES))


def require_same(source: Source, generation: str) -> None:
    """Raise CorruptionError if a dataset that is opened again is another one."""
    if source.generation != generation:
        raise _packed_again(source, "")


def explained(source: Source, error: FastdataError) -> FastdataError:
    """Return the error of reading a dataset; or its cause, if the dataset was packed again."""
    if isinstance(error, DatasetError):
        with suppress(OSError):  # as where too many files are open
            if source.generation_now() != source.generation:
                return _packed_again(source, f"{error.what}: ")
    return error


def _packed_again(source: Source, what: str) -> CorruptionError:
    return CorruptionError(
        f"{what}{source.location}: was packed again, or removed, while open",
        "Open the dataset again, when packing or copying has ended.",
    )
