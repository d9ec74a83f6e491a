"""Staged copies: their place, their owner, and whether they are current.

A place such as ``/dev/shm`` has a folder ``fastdata-<uid>`` of each user, and in it
``<name>-<id>``, a complete copy; ``<name>-<id>.partial``, one in progress; and a lock. ``<id>`` are
12 digits of the SHA-256 of the original's path or URL. ``staged.json`` in the copy has the
SHA-256 of the original's manifest: a dataset that was packed again is copied again.

A copy is used only if it and its parent folders belong to this user or root, and no one else may
write there (`fastdata.storage.trust`). No other user can read it.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.errors import warn
from fastdata.remote.manifests import fetch_manifest
from fastdata.remote.urls import is_url, join_url, name_of, redact
from fastdata.storage.files import digest_name, read_file
from fastdata.storage.jsontext import parse_json
from fastdata.storage.manifest import MANIFEST_NAME, MOST_BYTES, Manifest, with_root
from fastdata.storage.paths import folder_variable
from fastdata.storage.trust import distrust, is_own_file

MARKER_NAME = "staged.json"
_MOST_SMALL = 1 << 20  # bytes of a marker
#: The folder of loose files in a copy of a `folder` dataset.
IMAGES_NAME = "images"


def default_place() -> Path:
    """Return the default place of copies: $FASTDATA_STAGE_ROOT, or ``/dev/shm``."""
    return Path(os.path.realpath(folder_variable("FASTDATA_STAGE_ROOT") or "/dev/shm"))


def find_staged(
    dataset: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> Path | None:
    """Return a complete and current copy of a dataset in `default_place`, if there is one.

    A copy is complete if its index and files have the sizes in the manifest. An incomplete copy
    causes a warning. A copy itself, or a folder without a dataset, has none.
    """
    original = Original.read(dataset, storage_options)
    return None if original is None else original.find_copy()


def own_folder(place: Path) -> Path:
    """Return the folder of this user's copies in a place."""
    return place / f"fastdata-{os.geteuid()}"


def copy_of(name: str, folder: Path) -> Path:
    """Return the path of the copy of a dataset, by its `Original.name`, in a user's folder."""
    last = name_of(name) if is_url(name) else os.path.basename(name)
    return folder / digest_name(last, hashlib.sha256(os.fsencode(name)).hexdigest())


def note_of_copy(folder: Path) -> str:
    """Return a remedy for damage in a staged copy; "" if the folder is none."""
    marker = Marker.read(folder)
    return (
        ""
        if marker is None
        else (
            f"This is a staged copy of {marker.original}: remove it with fastdata stage "
            f"{marker.original} --unstage, or stage it again."
        )
    )


class Marker(NamedTuple):
    """Contents of ``staged.json``: the `Original.name`, and its manifest's SHA-256 in hex."""

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


class Original(NamedTuple):
    """State of a dataset: its absolute path or its URL, and the text of its manifest."""

    path: Path | str
    text: bytes

    @classmethod
    def read(
        cls, dataset: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
    ) -> Original | None:
        """Return the state of a dataset; None if there is none."""
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
        return cls(path, text)

    @property
    def name(self) -> str:
        """Its path, or its URL without credentials."""
        return redact(self.path) if isinstance(self.path, str) else str(self.path)

    @property
    def marker(self) -> Marker:
        """The marker of a copy of exactly this state."""
        return Marker(self.name, hashlib.sha256(self.text).hexdigest())

    def manifest(self) -> Manifest:
        """Return the parsed manifest; for errors see `Manifest.parse`."""
        return Manifest.parse(self.text, Path(f"{self.name}/{MANIFEST_NAME}"))

    def find_copy(self) -> Path | None:
        """Return a copy as `find_staged` does."""
        if isinstance(self.path, Path) and (self.path / MARKER_NAME).exists():
            return None
        copy = copy_of(self.name, own_folder(default_place()))
        if self.is_copied(copy):
            return copy
        if self._is_marked(copy) and (damage := self._find_damage(copy)):
            warn(
                f"{copy}: this staged copy is damaged ({damage}) and is not used; stage "
                f"{self.name} again"
            )
        return None

    def is_copied(self, copy: Path) -> bool:
        """Return whether a folder is a complete copy of this state, as no other user made it."""
        return self._is_marked(copy) and self._find_damage(copy) is None

    def _is_marked(self, copy: Path) -> bool:
        marked = Marker.read(copy) == self.marker and (copy / MANIFEST_NAME).exists()
        return marked and distrust(copy, (os.geteuid(),)) is None

    def _find_damage(self, copy: Path) -> str | None:
        """Check a copy's manifest and file sizes; return the problem, or None."""
        manifest, name = self.manifest(), MANIFEST_NAME
        try:
            if read_file(copy / name, MOST_BYTES) != self.copied_text():
                return f"{name} differs from the original's"
            for file in (manifest.index, *manifest.files):
                name = file.name
                status = (copy / name).lstat()
                if not stat.S_ISREG(status.st_mode) or status.st_size != file.size:
                    return f"{name} has {status.st_size} bytes, not {file.size}"
                if not is_own_file(status):
                    return f"{name} belongs to another user, or can be written by others"
        except OSError as error:
            return f"{name}: {error.strerror}"
        return None

    def copied_text(self) -> bytes:
        """Return the manifest of a copy, whose loose images are in its `IMAGES_NAME` folder."""
        if self.manifest().root is None:
            return self.text
        return with_root(self.text, IMAGES_NAME)
