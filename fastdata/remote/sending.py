"""Sending a dataset while it is made: each finished file goes up, and none of them twice.

A ledger beside the local files notes what has arrived: name, size, checksum, and what the
bucket calls that version of it. A file counts as sent where ledger and bucket agree, so a file
that somebody replaced in the bucket is sent again, and one that was cut off was never noted.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any

from fastdata.errors import CorruptionError, DatasetError
from fastdata.remote.abandoning import Abandon, Threads
from fastdata.remote.filesystem import (
    file_info,
    join_url,
    list_files,
    read_bytes,
    redact,
    remove,
    upload,
)
from fastdata.storage.manifest import MANIFEST_NAME, FileEntry, Manifest

#: Name of the ledger.
LEDGER_NAME = "sent.jsonl"

_THREADS = 4  # uploads at once: one connection rarely fills a line
_PATIENCE = 1.0  # seconds for uploads that are given up to end
_ASKING = 16  # requests at once that only ask
#: Files that may wait for their turn; beyond, who makes them waits, so that a slow line does
#: not fill the disk.
MOST_WAITING = 4


class Sender:
    """Sends files to a folder in a bucket, several at once, in threads of this process.

    Leaving it waits for what is on its way, unless for Ctrl-C or another exception that is no
    `Exception`: then that is given up, and counts as not sent.

    Args:
        url: The dataset's URL.
        storage_options: See `fastdata.remote.filesystem.open_filesystem`.
        ledger: The file that notes what has arrived; its folder need not be there yet.
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None, ledger: Path) -> None:
        self.url = url
        self.name = redact(url)
        self._options = storage_options
        self._ledger = ledger
        self._sent = _read_ledger(ledger)
        self._lock = threading.Lock()
        self._pool: Threads | None = None
        self._abandon = Abandon()
        self._running: set[Future[None]] = set()

    def __enter__(self) -> Sender:
        self._pool = Threads(_THREADS, "fastdata-send")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._pool is not None
        pool, self._pool = self._pool, None
        try:
            if kind is None or issubclass(kind, Exception):
                pool.close()  # what is on its way arrives: it would have to be sent again
                return
        except BaseException:
            self._leave(pool)
            raise
        self._leave(pool)

    def _leave(self, pool: Threads) -> None:
        """Gives up what is on its way: at Ctrl-C, the user waits for nothing."""
        with self._lock:  # so that nothing is noted or removed any more
            self._abandon.now()
        pool.close(_PATIENCE)

    def manifest(self) -> Manifest | None:
        """The manifest that is in the bucket; None where there is none.

        Raises:
            DatasetError: It is none that can be read.
        """
        try:
            text = read_bytes(join_url(self.url, MANIFEST_NAME), self._options)
        except FileNotFoundError:
            return None
        return Manifest.parse(text, Path(f"{self.name}/{MANIFEST_NAME}"))

    def names(self) -> list[str]:
        """The names of all files below the URL."""
        return list(list_files(self.url, self._options))

    def forget(self) -> None:
        """Forgets what was sent, so that all is sent again."""
        self._ledger.unlink(missing_ok=True)
        self._sent = {}

    def arrived(self, entries: Iterable[FileEntry]) -> set[str]:
        """The names of those files that were sent, and are in the bucket as they were sent."""
        noted = [entry for entry in entries if self._noted(entry) is not None]
        with ThreadPoolExecutor(_ASKING) as pool:
            found = pool.map(self._is_there, noted)
            return {entry.name for entry, there in zip(noted, found, strict=True) if there}

    def _noted(self, entry: FileEntry) -> str | None:
        size, crc, version = self._sent.get(entry.name, (None, None, None))
        return version if (size, crc) == (entry.size, entry.crc32c) else None

    def _is_there(self, entry: FileEntry) -> bool:
        try:
            found = file_info(join_url(self.url, entry.name), self._options)
        except FileNotFoundError:
            return False
        if found.crc32c is not None and found.crc32c != entry.crc32c:
            return False
        return found.size == entry.size and str(found.version) == self._noted(entry)

    def add(
        self,
        path: Path,
        entry: FileEntry,
        *,
        then_remove: bool = False,
        tick: Callable[[], None] | None = None,
    ) -> None:
        """Has a finished file sent; waits while many are waiting.

        Args:
            path: The file.
            entry: What it is called, its size and checksum.
            then_remove: Whether to remove it when it has arrived.
            tick: Called now and then while waiting.

        Raises:
            RemoteError: This or an earlier file cannot be sent. All that were not sent are
                still there.
        """
        assert self._pool is not None
        while len(self._running) >= _THREADS + MOST_WAITING:
            self._collect(FIRST_COMPLETED, tick)
        self._collect(None)
        self._running.add(self._pool.submit(self._send, path, entry, then_remove))

    def finish(self, tick: Callable[[], None] | None = None) -> None:
        """Waits until all that was added has arrived; raises as `add` does."""
        while self._running:
            self._collect(FIRST_COMPLETED, tick)

    def _collect(self, until: str | None, tick: Callable[[], None] | None = None) -> None:
        """Takes finished uploads off the list, and raises what one of them raised."""
        if until is None:
            done = {future for future in self._running if future.done()}
        else:
            done, _ = wait(self._running, timeout=0.1, return_when=until)
            if tick is not None:
                tick()
        self._running -= done
        for future in done:
            future.result()

    def _send(self, path: Path, entry: FileEntry, then_remove: bool) -> None:
        url = join_url(self.url, entry.name)
        if not (self._noted(entry) is not None and self._is_there(entry)):
            if path.stat().st_size != entry.size:
                raise CorruptionError(
                    f"{path}: has {path.stat().st_size} bytes, but had {entry.size} when packed",
                    "Run the same command again with --force.",
                )
            sent = upload(
                path,
                url,
                crc32c=entry.crc32c,
                storage_options=self._options,
                abandon=self._abandon,
            )
            self._note(entry, str(sent.version))
        if then_remove:
            with self._lock:
                self._abandon.check()  # who packs again may be making it anew
                path.unlink()

    def _note(self, entry: FileEntry, version: str) -> None:
        line = json.dumps(asdict(entry) | {"version": version}) + "\n"
        with self._lock:
            self._abandon.check()
            self._sent[entry.name] = entry.size, entry.crc32c, version
            with self._ledger.open("a", encoding="utf-8") as ledger:
                ledger.write(line)

    def send_manifest(self, path: Path) -> None:
        """Sends the manifest, when all else has arrived; from then on there is a dataset.

        Raises:
            RemoteError: It cannot be sent.
        """
        self.finish()
        upload(path, join_url(self.url, MANIFEST_NAME), storage_options=self._options)

    def remove(self, names: Iterable[str]) -> None:
        """Removes files from the bucket; those that are not there do not matter.

        Raises:
            RemoteError: One cannot be removed.
        """
        with ThreadPoolExecutor(_ASKING) as pool:
            for _ in pool.map(lambda name: remove(join_url(self.url, name), self._options), names):
                pass


def _read_ledger(path: Path) -> dict[str, tuple[int, str, str]]:
    sent: dict[str, tuple[int, str, str]] = {}
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return sent
    except OSError as error:
        raise DatasetError(
            f"{path}: cannot be read: {error.strerror}", "Check its permissions."
        ) from None
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):  # a kill may leave half a line
            entry = json.loads(line)
            sent[entry["name"]] = int(entry["size"]), str(entry["crc32c"]), str(entry["version"])
    return sent
