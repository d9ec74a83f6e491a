"""Packing to a bucket: when which file is sent, and what of an earlier run still counts.

Files are made in a local folder as ever, with the same parts, so all of resuming is the same;
but a file that has arrived in the bucket is removed here, and counts as there. The manifest is
sent last: before that there is no dataset, whatever lies in the bucket. An LMDB changes until
its last commit, so it is packed here as a whole, and then sent.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from fastdata.converters.workspace import is_ours, remove_outputs

from fastdata.errors import DataError, UsageError
from fastdata.machine import usable_cpus
from fastdata.remote.sending import LEDGER_NAME, MOST_WAITING, Sender
from fastdata.remote.urls import name_of, redact
from fastdata.storage.files import whole_file
from fastdata.storage.manifest import MANIFEST_NAME, WORK_NAME, FileEntry, Manifest

_ID_DIGITS = 12
_NAME_BYTES = 200  # of 255: the rest is for the id


def default_local(url: str) -> Path:
    """Where files are made before they are sent to a URL, unless told otherwise.

    ``packing/<name>-<id>`` in $FASTDATA_CACHE_DIR, $XDG_CACHE_HOME/fastdata or
    ~/.cache/fastdata; ``<id>`` are digits of the URL's SHA-256.
    """
    given = os.environ.get("FASTDATA_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    cache = Path(given) if given else Path(base) / "fastdata"
    name = os.fsdecode(os.fsencode(name_of(url))[:_NAME_BYTES])
    digest = hashlib.sha256(redact(url.rstrip("/")).encode()).hexdigest()
    return cache / "packing" / f"{name}-{digest[:_ID_DIGITS]}"


class Uploading:
    """One run's sending of a dataset's files.

    Args:
        url: The dataset's URL.
        storage_options: See `fastdata.remote.filesystem.open_filesystem`.
        folder: The local folder that files are made in.

    Attributes:
        name: The URL without credentials.

    Raises:
        UsageError: The folder holds a dataset.
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None, folder: Path) -> None:
        self.name = redact(url)
        self._folder = folder
        self._work = folder / WORK_NAME
        self._sender = Sender(url, storage_options, self._work / LEDGER_NAME)
        if (folder / MANIFEST_NAME).exists():
            raise UsageError(
                f"{folder}: holds a finished dataset, but files are to be made and removed here",
                "Choose another folder for --local.",
            )

    def __enter__(self) -> Uploading:
        self._sender.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._sender.__exit__(*exception)

    def finished(self, force: bool) -> Manifest | None:
        """The manifest of the dataset that is there already; None where there is none.

        Args:
            force: Whether a dataset that is there is to be replaced.

        Raises:
            UsageError: Something else is there.
        """
        names = self._sender.names()
        if MANIFEST_NAME in names:
            return None if force else self._sender.manifest()
        others = [name for name in names if not is_ours(name)]
        if others:
            raise UsageError(
                f"{self.name}: holds something that fastdata has not packed ({others[0]})",
                "Choose another --out, or remove it.",
            )
        return None

    def arrived(self, files: Iterable[FileEntry]) -> set[str]:
        """The names of those files that have arrived, in an earlier run or this one."""
        return self._sender.arrived(files)

    def begin(self, done: Iterable[FileEntry], force: bool) -> None:
        """Begins to send: files that are done and lie here still, and no manifest.

        Args:
            done: Files of units that are done.
            force: Whether nothing that was sent before counts.
        """
        if force:
            self._sender.forget()
        self._sender.remove([MANIFEST_NAME])
        for entry in done:
            if (self._folder / entry.name).exists():
                self.add(entry)

    def add(
        self, entry: FileEntry, tick: Callable[[], None] | None = None, *, keep: bool = False
    ) -> None:
        """Has a finished file sent; waits while many are waiting.

        Args:
            entry: The file.
            tick: Called now and then while waiting.
            keep: Whether it stays here until the dataset is finished.

        Raises:
            RemoteError: This file or an earlier one cannot be sent.
        """
        path = self._folder / entry.name
        self._sender.add(path, entry, then_remove=not keep, tick=tick)

    def files_held(self) -> int:
        """How many output files lie here at a time, at most: being made, waiting, on their way."""
        return 2 * usable_cpus() + 2 * MOST_WAITING

    def finish(self, manifest: Manifest, others: Iterable[FileEntry]) -> None:
        """Sends what remains, then the manifest; removes what an older dataset has left.

        Args:
            manifest: The finished dataset's.
            others: Files beside those that it names.

        Raises:
            RemoteError: Something cannot be sent.
            DataError: Something that was sent is not there.
        """
        others = list(others)
        for entry in (manifest.index, *others):
            self.add(entry, keep=True)
        self._sender.finish()
        wanted = {entry.name for entry in (manifest.index, *manifest.files, *others)}
        found = set(self._sender.names())
        if missing := sorted(wanted - found):
            raise DataError(
                f"{self.name}: {len(missing)} files are missing, though all were sent; the first: "
                f"{missing[0]}",
                "Run the same command again, it sends them. Does something else remove them?",
            )
        stale = [name for name in found if is_ours(name) and name not in wanted]
        self._sender.remove(stale)
        with whole_file(self._work / "manifest.json") as temporary:
            temporary.write_text(manifest.to_json(), "utf-8")
        self._sender.send_manifest(self._work / "manifest.json")

    def clean_up(self) -> None:
        """Removes what lies here of a dataset that is finished in the bucket."""
        for path in self._work.glob("*.part*"):
            path.unlink()
        # The rest of the work folder goes with its lock (`work_folder`).
        remove_outputs(self._folder, keep=set())
