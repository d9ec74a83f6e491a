"""Staging: a complete, checked copy of a dataset on faster storage, usually in memory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.errors import (
    CorruptionError,
    DataError,
    RemoteError,
    SpaceError,
    UsageError,
    is_no_space,
)
from fastdata.machine import usable_cpus
from fastdata.remote.manifests import no_dataset
from fastdata.remote.urls import is_url, redact
from fastdata.staging.copying import JOURNAL_NAME, CopiedFile, Copying
from fastdata.staging.places import Place
from fastdata.staging.staged import (
    IMAGES_NAME,
    MARKER_NAME,
    Marker,
    Original,
    copies,
    default_place,
    is_own_folder,
    known_places,
    lock,
    own_folder,
    partial_of,
    remember,
)
from fastdata.storage.fields import BLOBS
from fastdata.storage.files import human_bytes, is_tmpfs, no_space, sync
from fastdata.storage.formats import ELSEWHERE
from fastdata.storage.manifest import (
    BAD_SAMPLES_NAME,
    MANIFEST_NAME,
    Manifest,
)
from fastdata.storage.paths import is_inside
from fastdata.storage.room import room
from fastdata.storage.trust import make_cache_folder

_PAGE = 4096  # a file occupies a multiple of it
_MOST_THREADS = 1024

_SPACE_HINT = (
    "Make room (fastdata stage --unstage removes the copy of another dataset), or choose "
    "another folder with --to."
)


class Staged(NamedTuple):
    """Result of staging.

    Attributes:
        path: The copy's folder.
        copied_bytes: Bytes copied in this run.
        reused: Whether a complete and current copy already existed.
        freed_bytes: Bytes freed by removing copies of an older state of the dataset.
    """

    path: Path
    copied_bytes: int
    reused: bool
    freed_bytes: int


class Unstaged(NamedTuple):
    """Result of unstaging.

    Attributes:
        paths: The removed folders.
        freed_bytes: Bytes freed.
    """

    paths: list[Path]
    freed_bytes: int


def stage(
    dataset: str | os.PathLike[str],
    to: str | os.PathLike[str] | None = None,
    *,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    waiting: Callable[[], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Staged:
    """Copy a dataset to a faster place, where `find_staged` finds it.

    The copy is read back and checked: files against the manifest, loose images of a ``folder``
    dataset against the index. An interrupted run leaves a partial copy, which the next run
    completes. If several processes stage the same dataset, one copies and the others wait.
    Copies of an older state of the dataset in the same place are removed first.

    Args:
        dataset: The dataset's folder, or its URL.
        to: The place, a folder that exists or whose parent does; None for `default_place`.
        threads: Number of copying threads; None for 2 a CPU, within 4 to 16.
        progress: Called in this thread with the bytes done and the total.
        waiting: Called once, before waiting for another process that stages the dataset.
        storage_options: Options of the driver of a URL.

    Raises:
        RemoteError: The URL cannot be reached; the next run resumes the partial copy.
        UsageError: The copy would not be used, or ``dataset`` is itself a staged copy.
        DatasetError: There is no finished dataset, or it cannot be read.
        CorruptionError: A file does not match its checksum: nothing is staged.
        SpaceError: The place has too little room. Nothing was written, unless room ran out
            meanwhile.
        BusyError: Another process stages an older state of the dataset; or the same state,
            without progress for ten minutes.
        DataError: The copy cannot be written.
    """
    if threads is not None and not 1 <= threads <= _MOST_THREADS:
        raise UsageError(f"--threads {threads}", f"Use 1 to {_MOST_THREADS:,}.")
    if to is not None and is_url(to):
        raise UsageError(
            f"--to {redact(os.fspath(to))} is a URL", "Stage to a folder of this machine."
        )
    place = default_place() if to is None else Path(os.path.realpath(to))
    manifest, original = _open(dataset, storage_options)
    if manifest.container in ELSEWHERE:
        raise UsageError(
            f"{original.name}: its images lie in {manifest.container} elsewhere, which are not "
            "copied",
            f"Pack them there: fastdata convert dataset --root {original.name} --to shards --out …",
        )
    if original.path in (place, *place.parents):
        raise UsageError(
            f"--to {place}: lies inside the dataset",
            "Choose a folder outside it, best on a faster disk or in memory.",
        )
    source = Place(original.path, storage_options)
    try:
        place.mkdir(exist_ok=True)
        remember(place)
        entries = (manifest.index, *manifest.files)
        for copy in original.copies_in(place):
            others = copy.parent != own_folder(place)
            if others and original.find_damage(copy, entries) is None:
                return Staged(copy, 0, True, 0)
        make_cache_folder(own_folder(place), "--to")
        final = own_folder(place) / original.copy_name
        with lock(final, waiting=waiting) as advance:
            staging = _Staging(original, manifest, place, final, source, advance)
            return staging.run(threads or min(max(2 * usable_cpus(), 4), 16), progress)
    except OSError as error:
        if is_no_space(error):
            raise no_space(place, error, _SPACE_HINT) from error
        raise DataError(
            f"{error.filename or place}: cannot be written: {error.strerror}",
            "Choose another folder with --to.",
        ) from error


def unstage(dataset: str | os.PathLike[str], to: str | os.PathLike[str] | None = None) -> Unstaged:
    """Remove all copies of a dataset, of any state, complete or partial.

    A process that has a copy open can continue to read it; its memory is freed later.

    Args:
        dataset: The original's folder or URL, which may be gone; or the folder of a copy.
        to: The place to remove from; None for all known places.

    Raises:
        BusyError: Another process is staging the dataset.
        DataError: A copy cannot be removed.
    """
    given = Path(os.path.realpath(dataset))
    marker = None if is_url(dataset) else Marker.read(given)
    original = str(given) if marker is None else marker.original
    if is_url(dataset):
        original = redact(os.fspath(dataset).rstrip("/"))
    # Markers alone decide of a URL: the bucket may be gone.
    current = None if is_url(original) else Original.read(original)
    searched = known_places() if to is None else [Path(os.path.realpath(to))]
    if to is None and marker is not None and is_own_folder(given.parent):
        if given.parent != own_folder(given.parent.parent):
            raise DataError(
                f"{given}: another user staged it", "Remove it as the user who owns it."
            )
        searched.append(given.parent.parent)
    removed: list[Path] = []
    freed = 0
    for place in dict.fromkeys(searched):
        for final, marked in copies(place):
            of_current = current is not None and final.name == current.copy_name
            if of_current if marked is None else marked.original == original:
                paths, size = _remove_copy(final)
                removed += paths
                freed += size
        with suppress(OSError):  # other copies may be there
            own_folder(place).rmdir()
    return Unstaged(removed, freed)


def _open(
    dataset: str | os.PathLike[str], storage_options: Mapping[str, Any] | None
) -> tuple[Manifest, Original]:
    if not is_url(dataset):
        Manifest.load(dataset)  # raises precise errors
    original = Original.read(dataset, storage_options)
    if original is None:
        raise no_dataset(os.fspath(dataset))
    marker = Marker.read(original.path) if isinstance(original.path, Path) else None
    if marker is not None:
        raise UsageError(
            f"{dataset}: is itself a staged copy", f"Stage the original, {marker.original}."
        )
    # Parse the bytes that were hashed: the dataset may be replaced meanwhile.
    return original.manifest(), original


def _remove_copy(final: Path) -> tuple[list[Path], int]:
    """Remove a copy, its partial and its lock; return the folders and the bytes freed."""
    removed: list[Path] = []
    freed = 0
    partial = partial_of(final)
    try:
        with lock(final, wait=False):
            for folder in filter(Path.is_dir, (partial, final)):
                removed.append(folder)
                if folder == final:  # from here on, no process takes it for complete
                    os.replace(final, partial)
                freed += _remove_folder(partial)
    except OSError as error:
        raise DataError(
            f"{error.filename or final}: cannot remove it: {error.strerror}",
            "Remove it as the user who owns it.",
        ) from error
    return removed, freed


def _remove_folder(folder: Path) -> int:
    """Remove a folder, its marker last, so that a killed removal is recognisable."""
    freed = _allocated(folder)
    for path in sorted(folder.iterdir(), key=lambda path: path.name == MARKER_NAME):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    folder.rmdir()
    return freed


def _allocated(folder: Path) -> int:
    """Return the bytes that a folder's files occupy; 0 if the folder is missing."""
    return sum(
        os.lstat(os.path.join(parent, name)).st_blocks * 512
        for parent, _, names in os.walk(folder)
        for name in names
    )


@dataclass
class _Staging:
    """One run of staging; the caller holds the lock."""

    _original: Original
    _manifest: Manifest
    _place: Path
    _final: Path
    _source: Place
    _advance: Callable[[], None]

    def __post_init__(self) -> None:
        self._partial = partial_of(self._final)
        self._entries = (self._manifest.index, *self._manifest.files)
        self._done = 0

    def run(self, threads: int, progress: Callable[[int, int], None] | None) -> Staged:
        """Copy missing files, and give the copy its final name."""
        freed = self._remove_stale()
        if self._is_reusable():
            return Staged(self._final, 0, True, freed)
        self._check_space()
        try:
            self._begin()
            journal = self._partial / JOURNAL_NAME
            copying = Copying(
                self._files(),
                journal,
                self._total(),
                lambda done, total: self._report(progress, done, total),
            )
            copying.run(threads)
            self._finish()
        except RemoteError:
            raise  # keep the partial copy: the network may be back soon
        except (DataError, OSError):
            # A failed copy must not occupy memory; only an interrupted one can be resumed.
            with suppress(OSError):
                _remove_folder(self._partial)
            raise
        return Staged(self._final, copying.copied, False, freed)

    def _report(self, progress: Callable[[int, int], None] | None, done: int, total: int) -> None:
        if done != self._done:
            self._done = done
            self._advance()
        if progress is not None:
            progress(done, total)

    def _remove_stale(self) -> int:
        """Remove the copies of other states of this dataset; return the bytes freed."""
        name, id_ = self._original.name, self._original.id
        return sum(
            _remove_copy(final)[1]
            for final, marker in copies(self._place)
            if marker is not None and marker.original == name and marker.id != id_
        )

    def _is_reusable(self) -> bool:
        """Return whether a complete copy exists; remove an incomplete one."""
        final = self._final
        if not final.exists():
            return False
        original = self._original
        if original.is_copied_to(final) and original.find_damage(final, self._entries) is None:
            return True
        _remove_folder(final)
        return False

    def _total(self) -> int:
        loose = self._manifest.blob_bytes if self._manifest.root is not None else 0
        return sum(entry.size for entry in self._entries) + loose

    def _check_space(self) -> None:
        # With manifest, marker, list of bad samples and journal.
        files = len(self._entries) + self._manifest.loose_files + 4
        needed = self._total() + files * _PAGE + len(self._original.text)
        needed += sum(self._source.sizes([BAD_SAMPLES_NAME]).values())
        needed -= _allocated(self._partial)
        free, of = room(self._place)
        if needed > free:
            raise SpaceError(
                f"{self._place}: {human_bytes(needed)} are needed, {human_bytes(free)} are free"
                f"{of}",
                _SPACE_HINT,
            )

    def _begin(self) -> None:
        """Create the partial copy's folder, which only this user can read."""
        self._partial.mkdir(mode=0o700, exist_ok=True)
        self._partial.chmod(0o700)
        Marker(self._original.name, self._original.id).write(self._partial)

    def _is_public(self) -> bool:
        """Return whether every user of this machine can read the original."""
        dataset, root = self._original.path, self._manifest.root
        if not isinstance(dataset, Path):
            return False  # a bucket's access rights are unknown
        paths = [dataset / name for name in (MANIFEST_NAME, *(one.name for one in self._entries))]
        paths += [dataset / root / "any"] if root else []
        folders = {folder for path in paths for folder in path.parents}
        return all(folder.stat().st_mode & 0o001 for folder in folders) and all(
            path.stat().st_mode & 0o004 for path in paths if path.exists()
        )

    def _files(self) -> Iterator[CopiedFile]:
        """Yield every file that has a checksum."""
        copy = self._partial
        if self._source.is_remote:
            self._source.require_sizes(self._entries)
        for entry in self._entries:
            yield self._source.copied(entry, copy / entry.name)
        if self._manifest.root is None:
            return
        root, manifest = self._source.root(self._manifest.root), self._manifest
        names = [one.field.name for one in manifest.fields if one.field.kind in BLOBS]
        for file in self._source.opened(self._original).own_files(names, 0, manifest.samples):
            if not file.size:
                continue  # the sample has no such blob
            if not is_inside(file.name):
                raise CorruptionError(
                    f"{self._original.name}: the path {file.name!r} leaves the dataset's root",
                    "Index the folder again: fastdata convert … --to folder --force.",
                )
            named = replace(file, name=f"{IMAGES_NAME}/{file.name}")
            yield root.copied(named, copy / IMAGES_NAME / file.name, file.name)

    def _finish(self) -> None:
        """Add the manifest, and give the complete copy its final name."""
        for name in self._source.sizes([BAD_SAMPLES_NAME]):
            (self._partial / name).write_bytes(self._source.read(name))
        (self._partial / MANIFEST_NAME).write_bytes(self._original.copied_text())
        for path in self._partial.iterdir():  # regardless of the umask
            path.chmod(0o755 if path.is_dir() else 0o644)
        # Users who can read the original can read the copy.
        self._partial.chmod(0o755 if self._is_public() else 0o700)
        if not is_tmpfs(self._place):
            for path in self._partial.iterdir():
                sync(path)
                self._advance()
            if self._manifest.root is not None:
                os.sync()  # one flush for a million images, not a million flushes
        sync(self._partial)
        os.replace(self._partial, self._final)
        sync(self._final.parent)
        # Last: without it, a killed run would copy everything again.
        (self._final / JOURNAL_NAME).unlink(missing_ok=True)
