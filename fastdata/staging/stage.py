"""Staging: a complete, checked copy of a dataset on faster storage, usually in memory."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.errors import (
    BusyError,
    CorruptionError,
    DataError,
    RemoteError,
    UsageError,
    is_no_space,
)
from fastdata.machine import usable_cpus
from fastdata.remote.manifests import no_dataset
from fastdata.remote.opening import Access, RemoteSource
from fastdata.remote.urls import is_url, redact
from fastdata.staging.copying import CopiedFile, Copying, Origin, require_size
from fastdata.staging.staged import (
    IMAGES_NAME,
    MARKER_NAME,
    Marker,
    Original,
    copy_of,
    default_place,
    own_folder,
)
from fastdata.storage.cache import MEMORY_LEFT, require_room
from fastdata.storage.fields import BLOBS
from fastdata.storage.files import (
    PARTIAL_SUFFIX,
    file_lock,
    is_tmpfs,
    no_space,
    publish,
    sync,
)
from fastdata.storage.manifest import BAD_SAMPLES_NAME, ELSEWHERE, MANIFEST_NAME, Manifest
from fastdata.storage.packed import IndexedSource, PackedSource, own_files
from fastdata.storage.paths import is_inside
from fastdata.storage.trust import make_cache_folder

_PAGE = 4096  # a file occupies a multiple of it

_SPACE_HINT = (
    "Make room (fastdata stage --unstage removes the copy of another dataset), or choose "
    "another folder with --to."
)


class Staged(NamedTuple):
    """Result of staging: the copy's folder, and bytes copied, or freed from an older state's copy.

    ``reused``: a complete and current copy already existed.
    """

    path: Path
    copied_bytes: int
    reused: bool
    freed_bytes: int


class Unstaged(NamedTuple):
    """Result of unstaging: the removed folders, and the bytes freed."""

    paths: list[Path]
    freed_bytes: int


def stage(
    dataset: str | os.PathLike[str],
    to: str | os.PathLike[str] | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
    waiting: Callable[[], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Staged:
    """Copy a dataset to a faster place.

    The copy is checked: files against the manifest, loose images of a ``folder`` dataset against
    the index. An interrupted run leaves the files that it has copied, and the next run copies the
    others. If several processes stage a dataset, one copies and the others wait. A copy of an older
    state of the dataset in the same place is removed first.

    `ImageDataset` looks for copies in the default place alone. Open a copy elsewhere by its path,
    or set ``$FASTDATA_STAGE_ROOT`` to its place.

    Args:
        dataset: The dataset's folder, or its URL.
        to: The place, a folder that exists or whose parent does; None for the default place:
            ``$FASTDATA_STAGE_ROOT``, or ``/dev/shm``.
        progress: Called in this thread with the bytes done and the total.
        waiting: Called once, before waiting for another process that stages the dataset.
        storage_options: Options of the driver of a URL.

    Raises:
        RemoteError: The URL cannot be reached; the next run copies the missing files.
        UsageError: The copy would not be used, or ``dataset`` is itself a staged copy.
        DatasetError: There is no finished dataset, or it cannot be read.
        CorruptionError: An original does not match its checksum: nothing is staged.
        SpaceError: The place has too little room. Nothing was written, unless room ran out
            meanwhile.
        BusyError: Another process stages it, without progress for ten minutes.
        DataError: The copy cannot be written, or is damaged though the original is sound.
    """
    if to is not None and is_url(to):
        raise UsageError(
            f"--to {redact(os.fspath(to))} is a URL", "Stage to a folder of this machine."
        )
    place = default_place() if to is None else Path(os.path.realpath(to))
    if not is_url(dataset):
        Manifest.load(dataset)  # raises precise errors
    original = Original.read(dataset, storage_options)
    if original is None:
        raise no_dataset(os.fspath(dataset))
    if isinstance(original.path, Path) and (marker := Marker.read(original.path)) is not None:
        raise UsageError(
            f"{dataset}: is itself a staged copy", f"Stage the original, {marker.original}."
        )
    # From the bytes that were hashed: the dataset may be replaced meanwhile.
    manifest = original.manifest()
    if manifest.container in ELSEWHERE:
        raise UsageError(
            f"{original.name}: its images lie in {manifest.container} elsewhere, which are not "
            "copied",
            f"Pack them there: fastdata convert dataset --root {original.name} --to shards",
        )
    if original.path in (place, *place.parents):
        raise UsageError(
            f"--to {place}: lies inside the dataset",
            "Choose a folder outside it, best on a faster disk or in memory.",
        )
    final = copy_of(original.name, own_folder(place))
    current = Staged(final, 0, True, 0)
    try:
        place.mkdir(exist_ok=True)
        if original.is_copied(final):
            return current
        make_cache_folder(final.parent, "--to")
        with file_lock(_beside(final, _LOCK_SUFFIX), waiting=waiting) as advance:
            if original.is_copied(final):
                return current

            def report(done: int, total: int) -> None:
                advance()
                if progress is not None:
                    progress(done, total)

            run = _Run(original, manifest, Origin(original.path, storage_options), final)
            return run.copy(report)
    except OSError as error:
        if is_no_space(error):
            raise no_space(place, error, _SPACE_HINT) from error
        raise DataError(
            f"{error.filename or place}: cannot be written: {error.strerror}",
            "Choose another folder with --to.",
        ) from error


def unstage(dataset: str | os.PathLike[str], to: str | os.PathLike[str] | None = None) -> Unstaged:
    """Remove the copy of a dataset, of any state, complete or partial.

    A process that has a copy open can continue to read it; its memory is freed later.

    Args:
        dataset: The original's folder or URL, which may be gone; or the folder of a copy.
        to: The place to remove from; None for the place of a given copy, or else
            ``$FASTDATA_STAGE_ROOT``, or ``/dev/shm``.

    Raises:
        BusyError: Another process is staging the dataset.
        DataError: A copy cannot be removed.
    """
    name = os.fspath(dataset).rstrip("/")
    name = redact(name) if is_url(name) else os.path.realpath(dataset)
    folder = own_folder(default_place() if to is None else Path(os.path.realpath(to)))
    marker = None if is_url(name) else Marker.read(Path(name))
    if marker is not None:
        if to is None:
            folder = Path(name).parent
        name = marker.original
    final = copy_of(name, folder)
    partial, lock = _beside(final, PARTIAL_SUFFIX), _beside(final, _LOCK_SUFFIX)
    removed: list[Path] = []
    freed = 0
    try:
        if any(map(os.path.lexists, (partial, final, lock))):
            with file_lock(lock, BusyError(f"{final}: another process is staging it", _WAIT)):
                for path in filter(Path.is_dir, (partial, final)):
                    freed += _remove(path)
                    removed.append(path)
    except OSError as error:
        raise DataError(
            f"{error.filename or final}: cannot remove it: {error.strerror or error}",
            "Remove it as the user who owns it.",
        ) from error
    return Unstaged(removed, freed)


_WAIT = "Run this again when it is done."
_LOCK_SUFFIX = ".lock"


def _beside(final: Path, suffix: str) -> Path:
    return final.with_name(final.name + suffix)


def _remove(folder: Path) -> int:
    """Remove a copy, complete or partial; return the bytes freed."""
    freed, partial = _allocated(folder), folder
    if not folder.name.endswith(PARTIAL_SUFFIX):  # at once, no process takes it for complete
        partial = _beside(folder, PARTIAL_SUFFIX)
        os.replace(folder, partial)
    shutil.rmtree(partial)
    return freed


def _allocated(folder: Path) -> int:
    """Return the bytes that a folder's files occupy; 0 if the folder is missing."""
    return sum(
        os.lstat(os.path.join(parent, name)).st_blocks * 512
        for parent, _, names in os.walk(folder)
        for name in names
    )


class _Run:
    """One run of staging, which holds the lock."""

    def __init__(self, original: Original, manifest: Manifest, source: Origin, final: Path) -> None:
        self._original, self._manifest, self._source = original, manifest, source
        self._final, self._partial = final, _beside(final, PARTIAL_SUFFIX)
        self._entries = (manifest.index, *manifest.files)

    def copy(self, report: Callable[[int, int], None]) -> Staged:
        """Copy missing files, and give the copy its final name."""
        partial, manifest = self._partial, self._manifest
        stale = [] if Marker.read(partial) == self._original.marker else [partial]
        freed = sum(map(_remove, filter(Path.exists, (*stale, self._final))))
        total = sum(entry.size for entry in self._entries)
        total += manifest.blob_bytes if manifest.root is not None else 0
        # With manifest, marker and list of bad samples.
        files = len(self._entries) + manifest.loose_files + 3
        needed = total + files * _PAGE + len(self._original.text) - _allocated(partial)
        needed += sum(self._source.sizes([BAD_SAMPLES_NAME]).values())
        require_room(self._final.parent.parent, needed, _SPACE_HINT, MEMORY_LEFT)
        copying = Copying(self._files(), lambda done: report(done, total))
        try:
            partial.mkdir(mode=0o700, exist_ok=True)  # others may not read the original
            marker = json.dumps(self._original.marker._asdict())
            (partial / MARKER_NAME).write_text(marker + "\n", "ascii")
            copying.run(min(max(2 * usable_cpus(), 4), 16))
            self._finish(lambda: report(total, total))
        except RemoteError:
            raise  # keep the partial copy: the network may be back soon
        except (DataError, OSError):
            # A failed copy must not occupy memory; only an interrupted one can be resumed.
            shutil.rmtree(partial, ignore_errors=True)
            raise
        return Staged(self._final, copying.copied, False, freed)

    def _files(self) -> Iterator[CopiedFile]:
        """Yield every file that has a checksum."""
        original, manifest, source = self._original, self._manifest, self._source
        if source.is_remote:
            sizes = source.sizes([entry.name for entry in self._entries])
            for entry in self._entries:
                require_size(source.shown(entry.name), sizes.get(entry.name), entry.size)
        for entry in self._entries:
            yield CopiedFile(entry, source, self._partial / entry.name)
        if manifest.root is None:
            return
        opened: IndexedSource
        if isinstance(original.path, Path):
            opened = PackedSource(original.path, manifest=manifest)
        else:
            access = Access(original.path, storage_options=source.options)
            opened = RemoteSource(access, original.text)
        root = source.root(manifest.root)
        names = [one.field.name for one in manifest.fields if one.field.kind in BLOBS]
        for file in own_files(opened, names, 0, manifest.samples):
            if not file.size:
                continue  # the sample has no such blob
            if not is_inside(file.name):
                raise CorruptionError(
                    f"{original.name}: the path {file.name!r} leaves the dataset's root",
                    "Index the folder again: fastdata convert … --to folder --force.",
                )
            yield CopiedFile(file, root, self._partial / IMAGES_NAME / file.name)

    def _finish(self, advance: Callable[[], None]) -> None:
        """Add the manifest, and give the complete copy its final name."""
        for name in self._source.sizes([BAD_SAMPLES_NAME]):
            (self._partial / name).write_bytes(self._source.read(name))
        (self._partial / MANIFEST_NAME).write_bytes(self._original.copied_text())
        for path in self._partial.iterdir():  # regardless of the umask
            path.chmod(0o755 if path.is_dir() else 0o644)
        if not is_tmpfs(self._final.parent):
            for path in self._partial.iterdir():
                sync(path)
                advance()
            if self._manifest.root is not None:
                os.sync()  # one flush for a million images, not a million flushes
        publish(self._partial, self._final)
