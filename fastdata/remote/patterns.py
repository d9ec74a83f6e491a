"""Names of several files in one text: ``shards/{000..999}.tar``, as in WebDataset; ``*.tar``."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from itertools import chain, islice

from fastdata.errors import SourceError, UsageError
from fastdata.remote.urls import is_url, redact
from fastdata.storage.paths import working_folder

#: An innermost pair of braces that lists or counts.
_BRACES = re.compile(r"\{([^{},]*(?:,[^{},]*)+|-?\d+\.\.-?\d+(?:\.\.-?\d+)?)\}")
#: Most names of one pattern.
_MOST = 10_000_000


def is_pattern(place: str | os.PathLike[str]) -> bool:
    """Return whether a path or URL names several files: by braces, by ``*``, or by ``::``."""
    text = os.fspath(place)
    return bool(_BRACES.search(text)) or "::" in text or _is_glob(text)


def absolute(place: str | os.PathLike[str]) -> str:
    """Return a path, or a URL of this machine, that is the same after ``os.chdir``.

    Other URLs stay as they are. Links are not resolved, nor ``..`` behind them.
    """
    text = os.fspath(place)
    if not is_url(text):
        return os.path.join(working_folder(), text)
    scheme, separator, path = text.partition("://")
    if scheme.lower() not in ("file", "local"):
        return text
    return scheme + separator + os.path.join(working_folder(), path)


def _is_glob(text: str) -> bool:
    """Return whether a path or URL has ``*``, or a path ``?``; a path that exists is none."""
    if is_url(text):
        return "*" in text
    return ("*" in text or "?" in text) and not os.path.lexists(text)


def expand(place: str | os.PathLike[str]) -> list[str]:
    """Return the paths or URLs that a pattern names, in its order.

    As bash and the braceexpand package: ``{a,b}`` lists, ``{000..999}`` and ``{0..9..3}`` count,
    with the digits of the wider end. ``::`` separates patterns, as in webdataset. ``*`` and ``?``
    are those of a shell, sorted; of a URL they stay (`fastdata.remote.files.archive_files`).

    Raises:
        SourceError: No file matches.
        UsageError: There are more than 10 million files.
    """
    words = chain.from_iterable(map(_expanded, os.fspath(place).split("::")))
    names = list(islice(chain.from_iterable(map(_matching, words)), _MOST + 1))
    if len(names) > _MOST:
        raise UsageError(
            f"{redact(os.fspath(place))}: names more than {_MOST:,} files",
            "Write fewer; several datasets can be joined.",
        )
    return names


def _expanded(text: str) -> Iterator[str]:
    braces = _BRACES.search(text)
    if braces is None:
        yield text
        return
    before, after = text[: braces.start()], text[braces.end() :]
    for word in _words(braces[1]):
        yield from _expanded(before + word + after)


def _matching(name: str) -> list[str]:
    if is_url(name) or not _is_glob(name):
        return [name]
    names = sorted(glob.glob(name, recursive=True))
    if not names:
        raise SourceError(f"{name}: no file matches", "Check the path.")
    return names


def _words(inside: str) -> Iterator[str]:
    """Yield the words that a pair of braces lists or counts."""
    if "," in inside:
        yield from inside.split(",")
        return
    first, last, *step = inside.split("..")
    padded = any(re.match(r"-?0\d", end) for end in (first, last))
    width = max(len(first), len(last)) if padded else 0
    start, stop, by = int(first), int(last), abs(int(*step) if step else 1) or 1
    for number in range(start, stop + 1, by) if start <= stop else range(start, stop - 1, -by):
        yield f"{number:0{width}}"
