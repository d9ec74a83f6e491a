"""Where staged copies are, whose they are, and whether they are current.

A place is a folder such as ``/dev/shm``. In it lie::

    fastdata-<uid>/                       the copies that a user has made; nobody else's to write
    fastdata-<uid>/<name>-<id>            a copy, whole: a rename gave it this name
    fastdata-<uid>/<name>-<id>.partial    a copy being made, or what a killed run left of one
    fastdata-<uid>/<name>-<id>.lock       locked by flock while a copy is made or removed

``<id>`` are 12 digits of the SHA-256 of the original's manifest; ``staged.json`` in the copy
holds all of it. A dataset that was packed anew has another id, so it is never read from an
old copy.

Anybody may write to ``/dev/shm``, so a copy is used only if its folder, and every folder on the
way to it, belongs to this user, to root, or to the owner of the original's folder, and nobody
else can change it (`fastdata.storage.trust`). Others can read it only if they can read the
original.
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
from fastdata.remote.opening import fetch_manifest
from fastdata.remote.urls import is_url, join_url, name_of, redact
from fastdata.storage.files import (
    PARTIAL_SUFFIX,
    cache_folder,
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
from fastdata.storage.trust import distrust, is_own_file

MARKER_NAME = "staged.json"
_MOST_SMALL = 1 << 20  # bytes of a marker, or of the list of roots
#: The folder of loose files in a copy of a `folder` dataset.
IMAGES_NAME = "images"

#: What the folder of a user's copies begins with; his id follows.
_PREFIX = "fastdata-"

_LOCK_SUFFIX = ".lock"
_ID_DIGITS = 12
_NAME_BYTES = 200  # of 255: the rest is for id and suffix
#: How many files of a copy are looked at before it is used: a few milliseconds for all.
_MOST_CHECKED = 1_000


def default_place() -> Path:
    """Where copies go unless told otherwise: $FASTDATA_STAGE_ROOT, or ``/dev/shm``."""
    return Path(os.path.realpath(os.environ.get("FASTDATA_STAGE_ROOT") or "/dev/shm"))


def find_staged(
    dataset: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> Path | None:
    """Finds a whole and current copy of a dataset; None where there is none.

    A copy is whole if its index and its files have the sizes that the manifest says; of 1,000
    files and more, at least 500 are looked at. A copy that is not whole is named in a warning.

    Looks in `default_place` and in every other place that was staged to, which
    ``stage-roots.json`` remembers in `fastdata.storage.files.cache_folder`. Costs a stat call a
    file and the reading of a few small ones; of a URL, the reading of its manifest.

    Args:
        dataset: The original's folder, or its URL. If it is itself a staged copy, the answer is
            None; so it is when it is missing, since then nothing says whether a copy is
            current.
        storage_options: Options of the driver of a URL.

    Raises:
        RemoteError: The URL cannot be reached.
    """
    original = Original.read(dataset, storage_options)
    if original is None:
        return None
    if isinstance(original.path, Path) and (original.path / MARKER_NAME).exists():
        return None
    for place in known_places():
        for copy in original.copies_in(place):
            damage = original.find_damage(copy, original.some_files())
            if damage is None:
                return copy
            if original.is_copied_to(copy):  # else it has been removed just now, by intent
                warn(
                    f"{copy}: this staged copy is damaged ({damage}) and is not used; stage "
                    f"{original.name} again"
                )
    return None


def own_folder(place: Path) -> Path:
    """The folder of this user's copies in a place."""
    return _folder_of(place, os.geteuid())


def is_own_folder(folder: Path) -> bool:
    """Whether a folder is called as those of copies are."""
    return folder.name.startswith(_PREFIX)


def _folder_of(place: Path, user: int) -> Path:
    return place / f"{_PREFIX}{user}"


@contextmanager
def telling_of_copy(folder: Path) -> Iterator[None]:
    """Errors about a folder that is a staged copy say so, and how to do without it."""
    try:
        yield
    except DatasetError as error:
        marker = Marker.read(folder)
        if marker is None:
            raise
        raise type(error)(
            error.what,
            f"{error.hint} This is a staged copy of {marker.original}: remove it with fastdata "
            f"stage {marker.original} --unstage, stage it again, or open the original with "
            "staged=False.".lstrip(),
        ) from None


class Marker(NamedTuple):
    """What ``staged.json`` says: whose copy a folder is.

    Attributes:
        original: Absolute path of the dataset that was copied, or its URL without credentials.
        id: SHA-256 of its manifest then, in hexadecimal.
    """

    original: str
    id: str

    @classmethod
    def read(cls, folder: Path) -> Marker | None:
        """The marker in a folder; None where there is none that can be read."""
        try:
            fields = parse_json(read_file(folder / MARKER_NAME, _MOST_SMALL))
            marker = cls(fields["original"], fields["id"])
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return marker if all(isinstance(field, str) for field in marker) else None

    def write(self, folder: Path) -> None:
        """Puts the marker into a folder."""
        # Always the same temporary name: what a killed run leaves of it, the next one uses.
        temporary = folder / (MARKER_NAME + PARTIAL_SUFFIX)
        temporary.write_text(json.dumps(self._asdict()) + "\n", "ascii")
        publish(temporary, folder / MARKER_NAME)


class Original(NamedTuple):
    """The state that a dataset is in.

    Attributes:
        path: Its absolute path, or its URL.
        text: Its manifest.
        id: SHA-256 of the manifest, in hexadecimal.
        owner: User id of its folder's owner; this process's where it is a URL.
    """

    path: Path | str
    text: bytes
    id: str
    owner: int

    @classmethod
    def read(
        cls,
        dataset: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None = None,
    ) -> Original | None:
        """The state of a dataset; None where there is none.

        Raises:
            RemoteError: It is a URL that cannot be reached.
        """
        if is_url(dataset):
            return cls._fetch(os.fspath(dataset).rstrip("/"), storage_options)
        path = Path(os.path.realpath(dataset))
        try:
            text = read_file(path / MANIFEST_NAME, MOST_BYTES)
            return cls(path, text, hashlib.sha256(text).hexdigest(), path.stat().st_uid)
        except OSError:
            return None

    @classmethod
    def _fetch(cls, url: str, storage_options: Mapping[str, Any] | None) -> Original | None:
        try:
            text = fetch_manifest(join_url(url, MANIFEST_NAME), storage_options)
        except FileNotFoundError:
            return None
        return cls(url, text, hashlib.sha256(text).hexdigest(), os.geteuid())

    @property
    def name(self) -> str:
        """Its path, or its URL without credentials."""
        return redact(self.path) if isinstance(self.path, str) else str(self.path)

    def manifest(self) -> Manifest:
        """What its manifest says.

        Raises:
            VersionError: A newer fastdata wrote it.
            CorruptionError: It is not a manifest.
        """
        return Manifest.parse(self.text, Path(f"{self.name}/{MANIFEST_NAME}"))

    def some_files(self) -> list[FileEntry]:
        """The index and the container's files; of many, some that are evenly spread."""
        manifest = self.manifest()
        step = 1 + len(manifest.files) // _MOST_CHECKED
        return [manifest.index, *manifest.files[::step]]

    @property
    def copy_name(self) -> str:
        """What the folder of a copy of this state is called."""
        last = name_of(self.path) if isinstance(self.path, str) else self.path.name
        name = os.fsdecode(os.fsencode(last)[:_NAME_BYTES])
        return f"{name}-{self.id[:_ID_DIGITS]}"

    def copies_in(self, place: Path) -> Iterator[Path]:
        """The copies of this state in a place that only somebody trusted can have made."""
        users = (os.geteuid(), self.owner, 0)
        for user in dict.fromkeys(users):
            copy = _folder_of(place, user) / self.copy_name
            if copy.is_dir() and distrust(copy, users) is None and self.is_copied_to(copy):
                yield copy

    def is_copied_to(self, copy: Path) -> bool:
        """Whether a folder says that it is a copy of this very state."""
        marker = Marker.read(copy)
        return marker is not None and marker.id == self.id and (copy / MANIFEST_NAME).exists()

    def find_damage(self, copy: Path, files: Iterable[FileEntry]) -> str | None:
        """Says what is wrong with a copy, by its manifest and the sizes of files; None: nothing."""
        try:
            if read_file(copy / MANIFEST_NAME, MOST_BYTES) != self.copied_text():
                return f"{MANIFEST_NAME} is not the original's"
        except OSError as error:
            return f"{MANIFEST_NAME}: {error.strerror}"
        for file in files:
            try:
                found = (copy / file.name).lstat()
            except OSError as error:
                return f"{file.name}: {error.strerror}"
            if not stat.S_ISREG(found.st_mode) or found.st_size != file.size:
                return f"{file.name} has {found.st_size} bytes, not {file.size}"
            if not is_own_file(found, (self.owner,)):
                return f"{file.name} belongs to another user, or can be written by others"
        return None

    def copied_text(self) -> bytes:
        """The manifest of a copy: loose images lie in the copy, in `IMAGES_NAME`."""
        if self.manifest().root is None:
            return self.text
        return with_root(self.text, IMAGES_NAME)


def copies(place: Path) -> Iterator[tuple[Path, Marker | None]]:
    """Yields the final path of this user's copies in a place, whole or not, and of what each is.

    Without a marker is what was killed at its very beginning, a lock file among it.
    """
    try:
        names = sorted(path.name for path in own_folder(place).iterdir())
    except OSError:
        return
    finals = {name.removesuffix(PARTIAL_SUFFIX).removesuffix(_LOCK_SUFFIX) for name in names}
    for final in (own_folder(place) / name for name in sorted(finals)):
        marker = Marker.read(final) or Marker.read(partial_of(final))
        if marker is None or final.name.endswith("-" + marker.id[:_ID_DIGITS]):
            yield final, marker


def partial_of(final: Path) -> Path:
    """Where a copy is while it is being made."""
    return final.with_name(final.name + PARTIAL_SUFFIX)


def lock(
    final: Path, *, wait: bool = True, waiting: Callable[[], None] | None = None
) -> AbstractContextManager[Callable[[], None]]:
    """Holds a copy's lock while it is made or removed; see `fastdata.storage.files.file_lock`.

    Args:
        final: The copy's final path.
        wait: Whether to wait where another process holds it.
        waiting: Called once, before waiting.

    Raises:
        BusyError: Another process holds it, and ``wait`` is not set, or it shows no progress.
    """
    busy = BusyError(f"{final}: another process is staging it", "Run this again when it is done.")
    path = final.with_name(final.name + _LOCK_SUFFIX)
    return file_lock(path, busy=None if wait else busy, waiting=waiting)


def known_places() -> list[Path]:
    """Every place where copies may lie."""
    return [default_place(), *_remembered()]


def _roots_file() -> Path:
    return cache_folder() / "stage-roots.json"


def _remembered() -> list[Path]:
    try:
        roots = parse_json(read_file(_roots_file(), _MOST_SMALL))
    except (OSError, ValueError):
        return []
    if not isinstance(roots, list):
        return []
    return [Path(root) for root in roots if isinstance(root, str) and os.path.isabs(root)]


def remember(place: Path) -> None:
    """Notes a place in ``stage-roots.json``, before anything is written there."""
    if place in _remembered():
        return
    file = _roots_file()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with lock(file), whole_file(file) as temporary:
            roots = [str(root) for root in (*_remembered(), place)]
            temporary.write_text(json.dumps(roots, indent=1) + "\n", "ascii")
    except OSError as error:
        raise UsageError(
            f"{file}: cannot be written ({error.strerror}), so a copy in {place} would not be "
            "found again",
            "Set FASTDATA_CACHE_DIR to a folder that can be written, or leave out --to.",
        ) from None
