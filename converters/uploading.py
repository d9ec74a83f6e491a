"""Uploads of packing to a bucket: each finished file once, and the manifest last.

Files are written to a local folder with the usual parts, so packing resumes as usual. A file
that has arrived in the bucket is removed locally. Without the manifest there is no dataset,
whatever the bucket contains. An LMDB changes until its last commit, so it is packed locally as a
whole, and then uploaded.

A ledger in the work folder records each uploaded file: name, size, checksum, and its state in the
bucket. A file counts as uploaded if ledger and bucket agree. So a file that was replaced in the
bucket is uploaded again, and an interrupted upload was never recorded.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from fastdata.converters.workspace import is_ours, remove_outputs

from fastdata.errors import CorruptionError, DataError, UsageError
from fastdata.remote.filesystem import file_info, list_files, remove, upload
from fastdata.remote.manifests import fetch_manifest
from fastdata.remote.requests import in_threads
from fastdata.remote.urls import join_url, redact
from fastdata.storage.files import write_whole
from fastdata.storage.jsontext import parse_json
from fastdata.storage.manifest import MANIFEST_NAME, WORK_NAME, FileEntry, Manifest, has_manifest
from fastdata.threads import Group, Task, Threads

_LEDGER_NAME = "sent.jsonl"
_THREADS = 4  # uploads at once: one connection rarely fills a line
#: Most files that wait for their upload; then packing waits: a slow line must not fill the disk.
_MOST_WAITING = 4


class Uploading:
    """Uploader of a dataset's files to a bucket, several at once, in threads of this process.

    Leaving the context waits for the uploads under way. Ctrl-C, or another exception that is no
    `Exception`, cancels them. ``name`` is the URL without credentials.
    """

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None, folder: Path) -> None:
        self.name = redact(url)
        self._url = url
        self._options = storage_options
        self._folder = folder
        self._work = folder / WORK_NAME
        self._ledger = self._work / _LEDGER_NAME
        self._sent = _read_ledger(self._ledger)
        self._lock = threading.Lock()
        self._running: set[Task[None]] = set()
        self._group = Group()
        self._pool = Threads(_THREADS, "fastdata-send")
        self._ended = False
        if has_manifest(folder):
            raise UsageError(
                f"{folder}: has a finished dataset, but packing adds and removes files here",
                "Choose another folder for --local.",
            )

    def __enter__(self) -> Uploading:
        return self

    def __exit__(self, *raised: Any) -> None:
        value: BaseException | None = raised[1]
        while value is not None and isinstance(value, Exception):
            value = value.__context__  # Ctrl-C or the like may have come before it
        wanted = value is None
        try:
            # Let uploads under way finish, so that they need no repetition.
            self._pool.end(wait=wanted)
        except BaseException:
            wanted = False
            raise
        finally:
            if not wanted:
                with self._lock:  # stops further records and removals
                    self._ended = True
                    self._group.cancel()

    def finished(self, force: bool) -> Manifest | None:
        """Return the manifest of an existing dataset; None without one."""
        names = list_files(self._url, self._options)
        if MANIFEST_NAME in names:
            if force:
                return None
            text = fetch_manifest(join_url(self._url, MANIFEST_NAME), self._options)
            return Manifest.parse(text, Path(f"{self.name}/{MANIFEST_NAME}"))
        foreign = [name for name in names if not is_ours(name)]
        if foreign:
            raise UsageError(
                f"{self.name}: has files that fastdata has not packed ({foreign[0]})",
                "Choose another --out, or remove it.",
            )
        return None

    def arrived(self, files: Iterable[FileEntry]) -> set[str]:
        """Return the names of those files that have arrived, in this run or an earlier one."""
        files = list(files)
        arrived = in_threads(self._has_arrived, files)
        return {entry.name for entry, there in zip(files, arrived, strict=True) if there}

    def _has_arrived(self, entry: FileEntry) -> bool:
        """Return whether ledger and bucket agree on a file."""
        size, crc, state = self._sent.get(entry.name, (None, None, None))
        if (size, crc) != (entry.size, entry.crc32c):
            return False
        try:
            stored = file_info(join_url(self._url, entry.name), self._options)
        except FileNotFoundError:
            return False
        same = stored.size == entry.size and stored.state == state
        return same and stored.crc32c in (None, entry.crc32c)

    def begin(self, done: Iterable[FileEntry], force: bool) -> None:
        """Remove the bucket's manifest, and begin to upload finished files that are still here.

        ``force`` ignores earlier uploads.
        """
        if force:
            self._ledger.unlink(missing_ok=True)
            self._sent = {}
        self._remove([MANIFEST_NAME])
        for entry in done:
            if (self._folder / entry.name).exists():
                self.add(entry)

    def _remove(self, names: Iterable[str]) -> None:
        urls = [join_url(self._url, name) for name in names]
        in_threads(partial(remove, storage_options=self._options), urls)

    def add(
        self, entry: FileEntry, tick: Callable[[], None] | None = None, *, keep: bool = False
    ) -> None:
        """Queue a finished file for upload; wait while the queue is full.

        ``keep`` keeps the local file until the dataset is finished.
        """
        self.wait(_THREADS + _MOST_WAITING - 1, tick)
        self._running.add(self._pool.submit(self._group.run, self._send, entry, keep))

    def wait(self, most: int = 0, tick: Callable[[], None] | None = None) -> None:
        """Wait until at most ``most`` uploads are left; re-raise an upload's error."""
        while True:
            done = {task for task in self._running if task.done()}
            self._running -= done
            for task in done:
                task.result()
            if len(self._running) <= most:
                return
            next(iter(self._running)).wait(0.1)  # any of them: others may end before it
            if tick is not None:
                tick()

    def _send(self, entry: FileEntry, keep: bool) -> None:
        path, sent = self._folder / entry.name, None
        if not self._has_arrived(entry):
            if path.stat().st_size != entry.size:
                raise CorruptionError(
                    f"{path}: has {path.stat().st_size} bytes, but had {entry.size} when packed",
                    "Run the same command again with --force.",
                )
            sent = upload(
                path,
                join_url(self._url, entry.name),
                crc32c=entry.crc32c,
                storage_options=self._options,
            )
        with self._lock:
            if self._ended:
                return  # another run may be writing the file again
            if sent is not None:
                self._note(entry, sent.state)
            if not keep:
                path.unlink()

    def _note(self, entry: FileEntry, state: int) -> None:
        line = json.dumps(asdict(entry) | {"state": state}) + "\n"
        self._sent[entry.name] = entry.size, entry.crc32c, state
        with self._ledger.open("a", encoding="utf-8") as ledger:
            ledger.write(line)

    def finish(self, manifest: Manifest, others: Iterable[FileEntry]) -> None:
        """Upload the remaining files and then the manifest; remove an older dataset's files.

        ``others`` are files that the manifest does not name.
        """
        others = list(others)
        for entry in (manifest.index, *others):
            self.add(entry, keep=True)
        self.wait()
        wanted = {entry.name for entry in (manifest.index, *manifest.own_files, *others)}
        uploaded = set(list_files(self._url, self._options))
        if missing := sorted(wanted - uploaded):
            raise DataError(
                f"{self.name}: {len(missing)} uploaded files are missing; the first: {missing[0]}",
                "Run the same command again to upload them. Does something else remove them?",
            )
        self._remove(name for name in uploaded if is_ours(name) and name not in wanted)
        path = self._work / "manifest.json"
        write_whole(path, manifest.to_json())
        upload(path, join_url(self._url, MANIFEST_NAME), storage_options=self._options)

    def clean_up(self) -> None:
        """Remove the local files of a dataset that is finished in the bucket."""
        for path in self._work.glob("*.part*"):
            path.unlink()
        # The rest of the work folder goes with its lock (`work_folder`).
        remove_outputs(self._folder, keep=set())


def _read_ledger(path: Path) -> dict[str, tuple[int, str, int]]:
    sent: dict[str, tuple[int, str, int]] = {}
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return sent
    for line in lines:
        # A kill may leave half a line.
        with suppress(ValueError, KeyError, TypeError, OverflowError):
            entry = parse_json(line)
            sent[entry["name"]] = int(entry["size"]), str(entry["crc32c"]), int(entry["state"])
    return sent
