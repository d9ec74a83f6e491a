"""Access to URLs: listings, reads, downloads and uploads.

All access to URLs passes through this module. It retries every request, limits its time, and keeps
credentials out of messages.
"""

from __future__ import annotations

import base64
import errno
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fastdata.errors import CorruptionError, RemoteError, UsageError
from fastdata.remote.answers import SLOWEST, asking, state_of, too_long
from fastdata.remote.clients import FsspecClient
from fastdata.remote.drivers import BUCKETS, STALLED, StorageOptions, empty_part, open_filesystem
from fastdata.remote.failures import TruncatedError
from fastdata.remote.requests import call_driver, in_threads
from fastdata.remote.retries import TRIES, Patience, Retries
from fastdata.remote.urls import join_url, redact, scheme_of, split_query
from fastdata.storage.cache import require_room
from fastdata.storage.descriptors import write_exactly
from fastdata.storage.files import crc32c_file, whole_file

if TYPE_CHECKING:
    import fsspec

_BLOCK = 8 << 20  # bytes of one request at most
_STREAMS = 8  # requests for one file at once
#: Most bytes of a file that is read whole, by default.
_WHOLE = 256 << 20


class RemoteFile(NamedTuple):
    """Metadata of a remote file; its CRC-32C has 8 hexadecimal digits (only Google's has one).

    ``state`` changes when the file does, if the service has a generation, ETag or time of change;
    see `fastdata.remote.answers.state_number`.
    """

    size: int
    crc32c: str | None
    state: int


def list_folders(url: str, storage_options: StorageOptions | None = None) -> list[str]:
    """Return the sorted names of a folder's folders; none if the folder is missing."""
    fs, top = _open_listed(url, storage_options)
    listed = _list(fs, url, "ls", top)
    names = {str(one["name"]).rstrip("/") for one in listed if one["type"] == "directory"}
    # Else it is an empty object, name/, that web consoles create for a folder.
    if top in names and scheme_of(url) in BUCKETS and fs.find(top, prefix="/"):
        raise empty_part(url)
    return sorted({name.rpartition("/")[2] for name in names - {top}} - {""})


def list_files(url: str, storage_options: StorageOptions | None = None) -> dict[str, RemoteFile]:
    """Return the metadata of every file below a folder, by relative path; none if missing."""
    fs, top = _open_listed(url, storage_options)
    prefix = top.rstrip("/") + "/"
    # Buckets list all folders at once. fsspec's own walk skips folders that it cannot list.
    method = "find" if scheme_of(url) in BUCKETS else "ls"
    files: dict[str, Mapping[str, Any]] = {}
    folders, seen = [top], {top}
    while folders:
        for info in _list(fs, url, method, folders.pop()):
            name = info["name"].rstrip("/")
            # Web consoles create an empty object, name/, for a folder.
            if info["type"] == "file" and not info["name"].endswith("/"):
                files[name] = info
            elif info["type"] == "directory" and name.startswith(prefix) and name not in seen:
                seen.add(name)
                folders.append(info["name"])
    return {
        name[len(prefix) :]: (
            _described(info)
            # A web server's listing has names alone.
            if info["size"] is not None
            else file_info(join_url(url, name[len(prefix) :]), storage_options)
        )
        for name, info in sorted(files.items())
        if name.startswith(prefix)
    }


def _open_listed(
    url: str, storage_options: StorageOptions | None
) -> tuple[fsspec.AbstractFileSystem, str]:
    """Open the filesystem of a folder; raise UsageError if it cannot be listed."""
    if split_query(url)[1]:
        raise UsageError(
            f"{redact(url)}: cannot list a folder whose URL has a query",
            "Give the credentials in a header: --storage-option "
            """'headers={"Authorization": "Bearer …"}'; or download the folder.""",
        )
    return open_filesystem(url, storage_options)


def _list(
    fs: fsspec.AbstractFileSystem, url: str, method: str, path: str
) -> Iterable[Mapping[str, Any]]:
    """Return a driver's metadata of what a folder has; none if it is missing."""
    try:
        listed = _ask(fs, f"{redact(url)}: listing it", method, None, path, detail=True)
    except FileNotFoundError:
        return []
    return listed.values() if isinstance(listed, dict) else listed


def _ask(fs: fsspec.AbstractFileSystem, what: str, method: str, *args: Any, **options: Any) -> Any:
    """Call a driver as `call_driver` does, without cached listings; retry."""

    def attempt() -> Any:
        fs.invalidate_cache()
        return call_driver(fs, method, *args, **options)

    return Retries(what).call(attempt)


def file_sizes(
    url: str, names: Iterable[str], storage_options: StorageOptions | None = None
) -> dict[str, int]:
    """Return the sizes in bytes of those named files that a folder has, by name."""
    names = list(names)
    # A URL with a query has no listing, and a web server's may be empty.
    listed = {} if split_query(url)[1] else list_files(url, storage_options)
    sizes = {name: listed[name].size for name in names if name in listed}

    def ask(name: str) -> None:
        with suppress(FileNotFoundError):
            sizes[name] = file_info(join_url(url, name), storage_options).size

    in_threads(ask, [name for name in names if name not in listed])
    return sizes


def file_info(url: str, storage_options: StorageOptions | None = None) -> RemoteFile:
    """Return a file's metadata; raise FileNotFoundError if there is none."""
    fs, path = open_filesystem(url, storage_options)
    shown = redact(url)
    info = _ask(fs, shown, "info", _longest(0), path)
    if info.get("type") == "directory":
        raise FileNotFoundError(errno.ENOENT, "it does not exist", shown)
    if info.get("size") is None:
        raise RemoteError(
            f"{shown}: the server does not report its size",
            "Copy it to a server or bucket that does.",
        )
    return _described(info)


def _described(info: Mapping[str, Any]) -> RemoteFile:
    crc = info.get("crc32c")  # Google's: base64 of 4 bytes, big endian
    return RemoteFile(
        int(info["size"]),
        base64.b64decode(crc).hex() if isinstance(crc, str) and crc else None,
        state_of(info),
    )


def read_bytes(
    url: str,
    storage_options: StorageOptions | None = None,
    start: int | None = None,
    end: int | None = None,
    most: int = _WHOLE,
    patience: Patience | None = None,
    state: int = 0,
) -> bytes:
    """Read a small file, or the bytes from ``start`` to before ``end``.

    An empty range sends no request, one beyond 8 MiB several at once. ``most`` is for a whole file;
    ``patience`` and ``state``, which is `RemoteFile.state`, are for a range. Raise RemoteError, or
    ChangedError for another state.
    """
    fs, path = open_filesystem(url, storage_options)
    if start is not None and end is not None:
        read = partial(_read_block, FsspecClient(fs, state), url, end, patience)
        return b"".join(in_threads(read, range(start, end, _BLOCK), _STREAMS))
    # Nothing limits a driver that is not asynchronous, so request no more than ``most``.
    options: dict[str, Any] = {"start": 0, "end": most + 1}
    if getattr(fs, "async_impl", False):
        # s3fs would ask for the length and allocate whatever the server answers.
        options = {"max_concurrency": 1} if scheme_of(url) in ("s3", "s3a") else {}

    def attempt() -> bytes:
        with asking(url, None, most):
            data: bytes = call_driver(fs, "cat_file", _longest(0), path, **options)
        if len(data) > most:
            raise too_long(url, most)
        return data

    return Retries(f"{redact(url)}: reading it").call(attempt)


def _read_block(
    client: FsspecClient, url: str, end: int, patience: Patience | None, start: int
) -> bytes:
    stop = min(start + _BLOCK, end)
    what = f"{redact(url)}: reading bytes {start} to {stop}"
    attempt = partial(client.get, url, start, stop, _longest(stop - start))
    data: bytes = Retries(what, patience=patience).call(attempt)
    return data


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
    client = FsspecClient(open_filesystem(url, storage_options)[0])
    patience = Patience()
    with whole_file(local) as temporary:

        def fetch(start: int) -> None:
            data = _read_block(client, url, size, patience, start)
            write_exactly(file.fileno(), data, start)
            progress()

        for _ in range(2):  # transfers rarely corrupt data, and a second try is cheap
            with open(temporary, "wb", opener=partial(os.open, mode=0o644)) as file:
                in_threads(fetch, range(0, size, _BLOCK), _STREAMS)
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
) -> RemoteFile:
    """Upload a file, unless the bucket has it; return the uploaded file's metadata.

    It is checked by the bucket's checksum if that has one (Google's), else by its size. The
    CRC-32C, 8 hexadecimal digits, is computed if None.
    """
    fs, path = open_filesystem(url, storage_options)
    shown, length = redact(url), os.stat(local).st_size
    checksum = crc32c or f"{crc32c_file(Path(local)):08x}"

    def send() -> RemoteFile:
        # Buckets have no folders; drivers would try to create a bucket.
        if scheme_of(url) in ("file", "local", "memory", "sftp", "ssh"):
            call_driver(fs, "makedirs", None, path.rpartition("/")[0], exist_ok=True)
        # The service may need time to store the bytes that it received.
        seconds = 9 * STALLED + _longest(length)
        call_driver(fs, "put_file", seconds, os.fspath(local), path)
        sent = file_info(url, storage_options)
        if sent.size != length or sent.crc32c not in (None, checksum):
            raise TruncatedError(
                f"{sent.size} bytes arrived of {length}, with the checksum {sent.crc32c}"
            )
        return sent

    with suppress(FileNotFoundError):
        present = file_info(url, storage_options)
        # Elsewhere, an equal size proves nothing.
        if present.size == length and present.crc32c == checksum:
            return present
    try:
        return Retries(f"{shown}: uploading it", tries).call(send)
    except FileNotFoundError:
        raise RemoteError(
            f"{shown}: cannot upload it: the bucket or folder does not exist",
            "Check the URL; fastdata does not create buckets.",
        ) from None


def remove(url: str, storage_options: StorageOptions | None = None) -> None:
    """Remove a file, if it exists."""
    fs, path = open_filesystem(url, storage_options)
    with suppress(FileNotFoundError):
        _ask(fs, f"{redact(url)}: removing it", "rm_file", _longest(0), path)


def _longest(length: int) -> float:
    """Return the seconds after which reading ``length`` bytes counts as stalled."""
    return STALLED + length / SLOWEST
