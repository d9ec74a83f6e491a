"""Staged copies: their place, their owner, and whether they are current.

A place is a folder such as ``/dev/shm``. It contains::

    fastdata-<uid>/                       a user's copies; no other user can write to it
    fastdata-<uid>/<name>-<id>            a complete copy, renamed when it was finished
    fastdata-<uid>/<name>-<id>.partial    a copy in progress, or left by a killed run
    fastdata-<uid>/<name>-<id>.lock       locked by flock while a copy is made or removed

``<id>`` are 12 digits of the SHA-256 of the original's manifest; ``staged.json`` in the copy
holds all of it. A dataset that was packed again has another id, so an old copy never serves it.

Every user may write to ``/dev/shm``. So a copy is used only if it and its parent folders belong to
this user or root, and no one else may write there (`fastdata.storage.trust`). Others can read it
only if they can read the original.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.errors import BusyError, DatasetError, UsageError, warn
from fastdata.remote.manifests import fetch_manifest
from fastdata.remote.urls import is_url, join_url, name_of, redact
from fastdata.storage.files import (
    ID_DIGITS,
    PARTIAL_SUFFIX,
    cache_folder,
    digest_name,
    file_lock,
    publish,
    read_file,
    whole_file,
)
from fastdata.storage.jsontext import parse_json
from fastdata.storage.manifest import (
    MANIFEST_NAME,
    MOST_BYTES,
    FileEntry,
    Manifest,
    with_root,
)
from fastdata.storage.paths import folder_variable
from fastdata.storage.trust import distrust, is_own_file

MARKER_NAME = "staged.json"
_ROOTS_NAME = "stage-roots.json"
_MOST_SMALL = 1 << 20  # bytes of a marker, or of the list of roots
#: The folder of loose files in a copy of a `folder` dataset.
IMAGES_NAME = "images"

#: Prefix of the folder of a user's copies; the user's id follows.
_PREFIX = "fastdata-"

_LOCK_SUFFIX = ".lock"
#: Most files of a copy to check before it is used: a few milliseconds in all.
_MOST_CHECKED = 1_000


def default_place() -> Path:
    """Return the default place of copies: $FASTDATA_STAGE_ROOT, or ``/dev/shm``."""
    return Path(os.path.realpath(folder_variable("FASTDATA_STAGE_ROOT") or "/dev/shm"))


def find_staged(
    dataset: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> Path | None:
    """Return a complete and current copy of a dataset; None if there is none.

    A copy is complete if its index and files have the sizes in the manifest. Of 1,000 files
    and more, at least 500 are checked. An incomplete copy causes a warning.

    Looks in `known_places`. Costs one stat call per file and reads a few small files; for a URL,
    it also reads the manifest.

    Args:
        dataset: The original's folder, or its URL. A copy, or what is missing, has no copy.
        storage_options: Options of the driver of a URL.

    Raises:
        RemoteError: The URL cannot be reached.
    """
    original = Original.read(dataset, storage_options)
    return None if original is None else original.find_copy()


def own_folder(place: Path, user: int | None = None) -> Path:
    """Return the folder of a user's copies in a place; by default of this user's."""
    return place / f"{_PREFIX}{os.geteuid() if user is None else user}"


def is_own_folder(folder: Path) -> bool:
    """Return whether a folder has the name of a user's folder of copies."""
    return folder.name.startswith(_PREFIX)


@contextmanager
def telling_of_copy(folder: Path) -> Iterator[None]:
    """Extend errors about a staged copy: name the original, and how to remove the copy."""
    try:
        yield
    except DatasetError as error:
        marker = Marker.read(folder)
        if marker is None:
            raise
        raise type(error)(
            error.what,
            f"{error.hint} This is a staged copy of {marker.original}: remove it with fastdata "
            f"stage {marker.original} --unstage, or stage it again.".lstrip(),
        ) from None


class Marker(NamedTuple):
    """Contents of ``staged.json``, which names the original of a copy.

    Attributes:
        original: Absolute path of the dataset that was copied, or its URL without credentials.
        id: SHA-256 of its manifest at that time, in hexadecimal.
    """

    original: str
    id: str

    @classmethod
    def read(cls, folder: Path) -> Marker | None:
        """Return the marker in a folder; None if it is missing or unreadable."""
        try:
            fields = parse_json(read_file(folder / MARKER_NAME, _MOST_SMALL))
            marker = cls(fields["original"], fields["id"])
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return marker if all(isinstance(field, str) for field in marker) else None

    def write(self, folder: Path) -> None:
        """Write the marker into a folder."""
        # A fixed temporary name: the next run overwrites what a killed run left.
        temporary = folder / (MARKER_NAME + PARTIAL_SUFFIX)
        temporary.write_text(json.dumps(self._asdict()) + "\n", "ascii")
        publish(temporary, folder / MARKER_NAME)


class Original(NamedTuple):
    """State of a dataset.

    Attributes:
        path: Its absolute path, or its URL.
        text: Its manifest.
        id: SHA-256 of the manifest, in hexadecimal.
    """

    path: Path | str
    text: bytes
    id: str

    @classmethod
    def read(
        cls, dataset: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
    ) -> Original | None:
        """Return the state of a dataset; None if there is no dataset.

        Raises:
            RemoteError: The URL cannot be reached.
        """
        path: Path | str
        try:
            if is_url(dataset):
                path = os.fspath(dataset).rstrip("/")
                text = fetch_manifest(join_url(path, MANIFEST_NAME), storage_options)
            else:
                path = Path(os.path.realpath(dataset))
                text = read_file(path / MANIFEST_NAME, MOST_BYTES)
        except OSError:
            return None
        return cls(path, text, hashlib.sha256(text).hexdigest())

    @property
    def name(self) -> str:
        """Its path, or its URL without credentials."""
        return redact(self.path) if isinstance(self.path, str) else str(self.path)

    def manifest(self) -> Manifest:
        """Return the parsed manifest.

        Raises:
            VersionError: A newer fastdata wrote it.
            CorruptionError: It is not a manifest.
        """
        return Manifest.parse(self.text, Path(f"{self.name}/{MANIFEST_NAME}"))

    def some_files(self) -> list[FileEntry]:
        """Return the index and the container's files; of many files, an even selection."""
        manifest = self.manifest()
        step = 1 + len(manifest.files) // _MOST_CHECKED
        return [manifest.index, *manifest.files[::step]]

    @property
    def copy_name(self) -> str:
        """Folder name of a copy of this state."""
        last = name_of(self.path) if isinstance(self.path, str) else self.path.name
        return digest_name(last, self.id)

    def find_copy(self) -> Path | None:
        """Return a copy as `find_staged` does."""
        if isinstance(self.path, Path) and (self.path / MARKER_NAME).exists():
            return None
        for place in known_places():
            for copy in self.copies_in(place):
                damage = self.find_damage(copy, self.some_files())
                if damage is None:
                    return copy
                if self.is_copied_to(copy):  # else it was removed on purpose just now
                    warn(
                        f"{copy}: this staged copy is damaged ({damage}) and is not used; stage "
                        f"{self.name} again"
                    )
        return None

    def copies_in(self, place: Path) -> Iterator[Path]:
        """Yield the copies of this state in a place that this user or root made."""
        users = (os.geteuid(), 0)
        for user in dict.fromkeys(users):
            copy = own_folder(place, user) / self.copy_name
            if copy.is_dir() and distrust(copy, users) is None and self.is_copied_to(copy):
                yield copy

    def is_copied_to(self, copy: Path) -> bool:
        """Return whether a folder is marked as a copy of exactly this state."""
        marker = Marker.read(copy)
        return marker is not None and marker.id == self.id and (copy / MANIFEST_NAME).exists()

    def find_damage(self, copy: Path, files: Iterable[FileEntry]) -> str | None:
        """Check a copy's manifest and file sizes; return the problem, or None."""
        try:
            if read_file(copy / MANIFEST_NAME, MOST_BYTES) != self.copied_text():
                return f"{MANIFEST_NAME} differs from the original's"
        except OSError as error:
            return f"{MANIFEST_NAME}: {error.strerror}"
        for file in files:
            try:
                found = (copy / file.name).lstat()
            except OSError as error:
                return f"{file.name}: {error.strerror}"
            if not stat.S_ISREG(found.st_mode) or found.st_size != file.size:
                return f"{file.name} has {found.st_size} bytes, not {file.size}"
            if not is_own_file(found):
                return f"{file.name} belongs to another user, or can be written by others"
        return None

    def copied_text(self) -> bytes:
        """Return the manifest of a copy, whose loose images are in its `IMAGES_NAME` folder."""
        if self.manifest().root is None:
            return self.text
        return with_root(self.text, IMAGES_NAME)


def copies(place: Path) -> Iterator[tuple[Path, Marker | None]]:
    """Yield (final path, marker) of this user's copies in a place, complete or not.

    A run that was killed at its start, or a lost lock file, has no marker.
    """
    try:
        names = sorted(path.name for path in own_folder(place).iterdir())
    except OSError:
        return
    finals = {name.removesuffix(PARTIAL_SUFFIX).removesuffix(_LOCK_SUFFIX) for name in names}
    for final in (own_folder(place) / name for name in sorted(finals)):
        marker = Marker.read(final) or Marker.read(partial_of(final))
        if marker is None or final.name.endswith("-" + marker.id[:ID_DIGITS]):
            yield final, marker


def partial_of(final: Path) -> Path:
    """Return the path of a copy in progress."""
    return final.with_name(final.name + PARTIAL_SUFFIX)


def lock(
    final: Path, *, wait: bool = True, waiting: Callable[[], None] | None = None
) -> AbstractContextManager[Callable[[], None]]:
    """Hold a copy's lock while it is made or removed; see `fastdata.storage.files.file_lock`.

    ``waiting`` is called once, before waiting for another process.

    Raises:
        BusyError: Another process holds it, and ``wait`` is False or it makes no progress.
    """
    busy = BusyError(f"{final}: another process is staging it", "Run this again when it is done.")
    path = final.with_name(final.name + _LOCK_SUFFIX)
    return file_lock(path, busy=None if wait else busy, waiting=waiting)


def known_places() -> list[Path]:
    """Return the default place, and every other that ``stage-roots.json`` lists."""
    try:
        roots = parse_json(read_file(cache_folder() / _ROOTS_NAME, _MOST_SMALL))
    except (OSError, ValueError):
        roots = []
    listed = roots if isinstance(roots, list) else []
    others = [Path(one) for one in listed if isinstance(one, str) and os.path.isabs(one)]
    return [default_place(), *others]


def remember(place: Path) -> None:
    """Add a place to ``stage-roots.json``, before anything is written there."""
    if place in known_places():
        return
    file = cache_folder() / _ROOTS_NAME
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with lock(file), whole_file(file) as temporary:
            roots = [str(root) for root in (*known_places()[1:], place)]
            temporary.write_text(json.dumps(roots, indent=1) + "\n", "ascii")
    except OSError as error:
        raise UsageError(
            f"{file}: cannot be written ({error.strerror}), so a copy in {place} would not be "
            "found again",
            "Set FASTDATA_CACHE_DIR to a writable folder, or leave out --to.",
        ) from None
