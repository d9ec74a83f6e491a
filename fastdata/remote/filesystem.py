"""Access to URLs: listings, reads, downloads and uploads.

All access to URLs passes through this module. It retries every request, limits its time, and keeps
credentials out of messages.
"""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from fastdata.errors import CorruptionError, RemoteError, UsageError
from fastdata.remote.answers import SLOWEST, asking, require_length, state_number, too_long
from fastdata.remote.clients import FsspecClient
from fastdata.remote.drivers import (
    BUCKETS,
    STALLED,
    StorageOptions,
    empty_part,
    has_protocol,
    open_filesystem,
)
from fastdata.remote.failures import TruncatedError
from fastdata.remote.requests import Run, all_of, call_driver, loop_of, run_on
from fastdata.remote.retries import TRIES, Patience, Retries
from fastdata.remote.urls import join_url, redact, split_query
from fastdata.storage.cache import require_room
from fastdata.storage.descriptors import write_exactly
from fastdata.storage.files import crc32c_file, whole_file

if TYPE_CHECKING:
    import fsspec

_ASKING = 16  # requests for metadata at once
_BLOCK = 8 << 20  # bytes that one request downloads
_STREAMS = 8  # requests for one file at once
#: Most bytes of a file that is read whole, by default.
_WHOLE = 256 << 20


class RemoteFile(NamedTuple):
    """Metadata of a remote file; its CRC-32C has 8 hexadecimal digits (only Google's has one).

    ``version`` (generation, ETag, time of change) changes when the file does, if the service has
    one; ``state`` is a number for that, see `fastdata.remote.answers.state_number`.
    """

    size: int
    crc32c: str | None
    version: str | None
    state: int


def list_files(url: str, storage_options: StorageOptions | None = None) -> dict[str, int]:
    """Return the size in bytes of every file below a folder, by relative path; none if missing."""
    return {name: entry.size for name, entry in list_entries(url, storage_options).items()}


def list_folders(url: str, storage_options: StorageOptions | None = None) -> list[str]:
    """Return the sorted names of a folder's folders; none if the folder is missing."""
    _require_listing(url)
    listed = _list(url, storage_options, "ls") or []
    names = {str(one["name"]).rstrip("/") for one in listed if one["type"] == "directory"}
    fs, top = open_filesystem(url, storage_options)
    # Else it is an empty object, name/, that web consoles create for a folder.
    if top in names and has_protocol(fs, *BUCKETS) and fs.find(top, prefix="/"):
        raise empty_part(url)
    return sorted({name.rpartition("/")[2] for name in names - {top}} - {""})


def list_entries(url: str, storage_options: StorageOptions | None = None) -> dict[str, RemoteFile]:
    """Return the metadata of every file below a folder, by path; see `list_files`."""
    _require_listing(url)
    files = _find(url, storage_options)
    prefix = open_filesystem(url, storage_options)[1].rstrip("/") + "/"
    return {
        name[len(prefix) :]: (
            _described(info)
            # A web server's listing has names alone.
            if info["size"] is not None
            else file_info(join_url(url, name[len(prefix) :]), storage_options)
        )
        for name, info in sorted(files.items())
        # Web consoles create an empty object, name/, for a folder.
        if name.startswith(prefix) and not name.endswith("/") and info["type"] == "file"
    }


def _find(url: str, storage_options: StorageOptions | None) -> dict[str, dict[str, Any]]:
    """Return the driver's metadata of each file below a folder, by path."""
    fs, top = open_filesystem(url, storage_options)
    if has_protocol(fs, *BUCKETS):
        return _list(url, storage_options, "find") or {}
    # fsspec's own walk skips folders that it cannot list.
    files: dict[str, dict[str, Any]] = {}
    folders, seen = [top], {top}
    while folders:
        for info in _list(url, storage_options, "ls", folders.pop()) or []:
            name = info["name"].rstrip("/")
            if info["type"] != "directory":
                files[name] = info
            elif name.startswith(f"{top.rstrip('/')}/") and name not in seen:
                seen.add(name)
                folders.append(info["name"])
    return files


def _list(
    url: str, storage_options: StorageOptions | None, method: str, below: str | None = None
) -> Any:
    """Return a driver's listing of a folder, or of one below it; None if it is missing."""
    fs, path = open_filesystem(url, storage_options)

    async def ask() -> Any:
        fs.invalidate_cache()
        return await call_driver(fs, method, None, below or path, detail=True)

    with suppress(FileNotFoundError):
        return run_on(loop_of(fs), Retries(f"{redact(url)}: listing it").run(ask))
    return None


def _require_listing(url: str) -> None:
    if split_query(url)[1]:
        raise UsageError(
            f"{redact(url)}: cannot list a folder whose URL has a query",
            "Give the credentials in a header: --storage-option "
            """'headers={"Authorization": "Bearer …"}'; or download the folder.""",
        )


def file_sizes(
    url: str, names: Iterable[str], storage_options: StorageOptions | None = None
) -> dict[str, int]:
    """Return the sizes in bytes of those named files that a folder has, by name."""
    names = list(names)
    # A URL with a query has no listing, and a web server's may be empty.
    listed = {} if split_query(url)[1] else list_files(url, storage_options)
    known = {name: listed[name] for name in names if name in listed}
    absent = [name for name in names if name not in listed]

    def ask(name: str) -> int | None:
        try:
            return file_info(join_url(url, name), storage_options).size
        except FileNotFoundError:
            return None

    with ThreadPoolExecutor(_ASKING) as pool:
        sizes = zip(absent, pool.map(ask, absent), strict=True)
        return known | {name: size for name, size in sizes if size is not None}


def file_info(
    url: str, storage_options: StorageOptions | None = None, run: Run = run_on
) -> RemoteFile:
    """Return a file's metadata; raise FileNotFoundError if there is none.

    See `upload` for ``run``.
    """
    fs, path = open_filesystem(url, storage_options)
    info: RemoteFile = run(loop_of(fs), _info(fs, path, redact(url)))
    return info


async def _info(fs: fsspec.AbstractFileSystem, path: str, shown: str) -> RemoteFile:
    async def ask() -> dict[str, Any]:
        fs.invalidate_cache()
        info: dict[str, Any] = await call_driver(fs, "info", _longest(0), path)
        if info.get("type") == "directory":
            raise FileNotFoundError(path)
        return info

    info = await Retries(shown).run(ask)
    if info.get("size") is None:
        raise RemoteError(
            f"{shown}: the server does not report its size",
            "Copy it to a server or bucket that does.",
        )
    return _described(info)


def _described(info: Mapping[str, Any]) -> RemoteFile:
    crc = info.get("crc32c")  # Google's: base64 of 4 bytes, big endian
    name = next((name for name in _VERSIONS if info.get(name)), "")
    version = str(info[name]) if name else None
    return RemoteFile(
        int(info["size"]),
        base64.b64decode(crc).hex() if isinstance(crc, str) and crc else None,
        version,
        state_number(_VERSIONS.get(name, ""), version or ""),
    )


#: Drivers' names for a file's version, the surest first, and the equivalent HTTP header.
_VERSIONS = {
    "generation": "X-Goog-Generation",
    "etag": "",
    "ETag": "ETag",
    "Last-Modified": "Last-Modified",
    "mtime": "",
    "LastModified": "",
    "created": "",
}


def read_bytes(
    url: str,
    storage_options: StorageOptions | None = None,
    start: int | None = None,
    end: int | None = None,
    most: int = _WHOLE,
    patience: Patience | None = None,
    state: int = 0,
    block: int = 0,
) -> bytes:
    """Read a small file, or the bytes from ``start`` to before ``end``.

    An empty range sends no request, one beyond ``block`` several at once; 0 is for one alone.
    ``most`` is for a whole file; ``patience`` and ``state``, which is `RemoteFile.state`, are for a
    range. Raise RemoteError, or ChangedError for another state.
    """
    fs, path = open_filesystem(url, storage_options)
    if start is not None and end is not None:
        read_range = _range_reader(fs, url, state, patience)
        step = block or max(end - start, 1)
        blocks = (read_range(at, min(at + step, end)) for at in range(start, end, step))
        return b"".join(run_on(loop_of(fs), all_of(blocks)))
    # Nothing limits a driver that is not asynchronous, so request no more than ``most``.
    options: dict[str, Any] = {"start": 0, "end": most + 1}
    if getattr(fs, "async_impl", False):
        # s3fs would ask for the length and allocate whatever the server answers.
        options = {"max_concurrency": 1} if has_protocol(fs, "s3") else {}

    async def read() -> bytes:
        data: bytes
        with asking(url, None, most):
            data = await call_driver(fs, "cat_file", _longest(0), path, **options)
        if len(data) > most:
            raise too_long(url, most)
        return data

    return run_on(loop_of(fs), Retries(f"{redact(url)}: reading it").run(read))


def _range_reader(
    fs: fsspec.AbstractFileSystem, url: str, state: int = 0, patience: Patience | None = None
) -> Callable[[int, int], Coroutine[Any, Any, bytes]]:
    """Return a function that reads a range of a file, `_STREAMS` at once, and retries."""
    client, slots = FsspecClient(fs, state), asyncio.Semaphore(_STREAMS)

    async def read(start: int, stop: int) -> bytes:
        async def attempt() -> bytes:
            async with slots:
                data: bytes = await client.fetch(url, start, stop, _longest(stop - start))
            require_length(data, url, stop - start)
            return data

        retries = Retries(f"{redact(url)}: reading bytes {start} to {stop}", TRIES, patience)
        return await retries.run(attempt) if stop > start else b""

    return read


def download(
    url: str,
    local: Path,
    size: int,
    crc32c: str,
    storage_options: StorageOptions | None = None,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Download a file by several requests at once; ``local`` appears only when complete.

    Raise CorruptionError if the checksum (8 hexadecimal digits) is wrong also after a second
    download, SpaceError if the disk has too little room.
    """
    require_room(local.parent, size, "Make room, or give another folder.")
    fs, _ = open_filesystem(url, storage_options)
    read_range = _range_reader(fs, url)

    async def fetch(file: BinaryIO, start: int) -> None:
        stop = min(start + _BLOCK, size)
        data = await read_range(start, stop)
        await asyncio.to_thread(write_exactly, file.fileno(), data, start)  # other requests go on
        progress()

    async def fetch_all(path: Path) -> None:
        with open(path, "wb", opener=partial(os.open, mode=0o644)) as file:
            await all_of(fetch(file, start) for start in range(0, size, _BLOCK))

    with whole_file(local) as temporary:
        for _ in range(2):  # transfers rarely corrupt data, and a second try is cheap
            run_on(loop_of(fs), fetch_all(temporary))
            if (checksum := f"{crc32c_file(temporary):08x}") == crc32c:
                return
        raise CorruptionError(
            f"{redact(url)}: its checksum is {checksum}, not {crc32c}",
            "It was damaged or changed in the bucket: upload or pack it again.",
        )


def upload(
    local: str | os.PathLike[str],
    url: str,
    *,
    crc32c: str | None = None,
    storage_options: StorageOptions | None = None,
    tries: int = TRIES,
    run: Run = run_on,
) -> RemoteFile:
    """Upload a file, unless the bucket has it; return the uploaded file's metadata.

    A bucket shows an object only when it is complete. The upload is checked by the bucket's
    checksum if it has one (Google's), else by its size. The local file does not change. The
    CRC-32C, 8 hexadecimal digits, is computed if None. ``run`` may be a function like `run_on`
    that can cancel the upload.
    """
    fs, path = open_filesystem(url, storage_options)
    shown, length = redact(url), os.stat(local).st_size
    checksum = crc32c or f"{crc32c_file(Path(local)):08x}"

    async def send() -> RemoteFile:
        # Buckets have no folders; drivers would try to create a bucket.
        if has_protocol(fs, "file", "memory", "sftp", "ssh"):
            await call_driver(fs, "makedirs", None, path.rpartition("/")[0], exist_ok=True)
        # The service may need time to store the bytes that it received.
        seconds = 9 * STALLED + _longest(length)
        await call_driver(fs, "put_file", seconds, os.fspath(local), path)
        sent = await _info(fs, path, shown)
        if sent.size != length or sent.crc32c not in (None, checksum):
            raise TruncatedError(
                f"{sent.size} bytes arrived of {length}, with the checksum {sent.crc32c}"
            )
        return sent

    async def send_unless_there() -> RemoteFile:
        with suppress(FileNotFoundError):
            present = await _info(fs, path, shown)
            # Elsewhere, an equal size proves nothing.
            if present.size == length and present.crc32c == checksum:
                return present
        return await Retries(f"{shown}: uploading it", tries).run(send)

    try:
        sent: RemoteFile = run(loop_of(fs), send_unless_there())
        return sent
    except FileNotFoundError:
        raise RemoteError(
            f"{shown}: cannot upload it: the bucket or folder does not exist",
            "Check the URL; fastdata does not create buckets.",
        ) from None


def remove(url: str, storage_options: StorageOptions | None = None) -> None:
    """Remove a file, if it exists."""
    fs, path = open_filesystem(url, storage_options)
    retries = Retries(f"{redact(url)}: removing it")
    with suppress(FileNotFoundError):
        run_on(loop_of(fs), retries.run(lambda: call_driver(fs, "rm_file", _longest(0), path)))


def _longest(length: int) -> float:
    """Return the seconds after which reading ``length`` bytes counts as stalled."""
    return STALLED + length / SLOWEST
