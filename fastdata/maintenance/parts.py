"""Verification of an index of parts: each part by itself, and against the index's manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from fastdata.errors import DatasetError
from fastdata.remote.manifests import read_manifest
from fastdata.remote.urls import is_url, join_url, redact
from fastdata.storage.manifest import Manifest, PartEntry, PartsManifest


def verify_parts(
    place: str,
    parts: PartsManifest,
    check: Callable[..., tuple[int, int, list[Any]]],
    progress: Callable[[int, int], None] | None,
    storage_options: Mapping[str, Any] | None,
) -> tuple[int, list[tuple[str, str]]]:
    """Return the number of files, and the problems as (where, what), of an index of parts.

    ``check`` returns the numbers of samples and files of one dataset, and its problems.
    """
    before, files, problems = 0, 1, []
    for part in parts.parts:
        where = join_url(place, part.name) if is_url(place) else f"{place.rstrip('/')}/{part.name}"
        done = None if progress is None else partial(_advance, progress, before, parts.samples)
        try:
            found = list(_differences(parts, part, where, storage_options))
            if not found:
                _, own, found = check(where, progress=done, storage_options=storage_options)
                files += own
        except DatasetError as error:
            found = [(redact(where), error.what.removeprefix(f"{redact(where)}: "))]
        problems += [(_named(part, one), what) for one, what in found]
        before += part.samples
    return files, problems


def _advance(
    progress: Callable[[int, int], None], before: int, total: int, done: int, _: int
) -> None:
    progress(before + done, total)


def _named(part: PartEntry, where: str) -> str:
    return where if part.name in where else f"{part.name}: {where}"


def _differences(
    parts: PartsManifest, part: PartEntry, where: str, storage_options: Mapping[str, Any] | None
) -> Iterator[tuple[str, str]]:
    manifest = Manifest.parse(read_manifest(where, storage_options), redact(where))
    if problem := parts.problem_of(part, manifest):
        yield redact(where), problem
