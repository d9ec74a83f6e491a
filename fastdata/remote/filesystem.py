"""Files behind URLs: opened in each process, retried, whole or not at all.

Everything that reaches a URL goes through here, so that no driver made before a fork is used
after it, every request is retried and bounded in time, and no message holds credentials.
"""

from __future__ import annotations

import base64
import importlib
import json
import logging
import os
import socket
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies

from fastdata.errors import CorruptionError, RemoteError, SpaceError, UsageError
from fastdata.remote.abandoning import Abandon
from fastdata.remote.answers import (
    asking,
    bounded_options,
    require_length,
    state_number,
    too_long,
)
from fastdata.remote.retries import TRIES, Patience, TruncatedError, describe_error, retrying
from fastdata.remote.urls import (
    join_url,
    redact,
    remember_query,
    remember_secrets,
    scheme_of,
    split_query,
)
from fastdata.storage.checksum import crc32c_file
from fastdata.storage.files import free_space, human_bytes, whole_file

if TYPE_CHECKING:
    import fsspec

StorageOptions = Mapping[str, Any]

_EXTRAS = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "s3a": "s3"}
_MODULES = {"gs": "gcsfs", "gcs": "gcsfs", "s3": "s3fs", "s3a": "s3fs"}

#: Seconds without a byte after which a request counts as stalled, and is tried again.
_STALLED = 60.0
_CONNECT = 15.0
#: Slowest transfer that is not taken for a stalled one, in bytes a second.
_SLOWEST = 256 << 10
_ASKING = 16  # requests at once that only ask
_BLOCK = 8 << 20  # bytes that one request downloads
_WINDOW = 128 * _BLOCK  # bytes whose requests are queued at once
_STREAMS = 8  # requests of one download at once
#: Most bytes of a file that is read whole, unless said otherwise.
_WHOLE = 256 << 20

# By process: after a fork, the child finds none of its parent's. They stay in it, though:
# closing a driver without its thread may hang.
_opened: dict[tuple[int, str, str], fsspec.AbstractFileSystem] = {}


class RemoteFile(NamedTuple):
    """What a bucket says of a file.

    Attributes:
        size: Its size in bytes.
        crc32c: Its CRC-32C, 8 hexadecimal digits; None where the service has none (all but
            Google's).
        version: Something that changes when the file does (generation, ETag, time of change);
            None where the service has none.
        state: A number for that; see `fastdata.remote.answers.state_number`.
    """

    size: int
    crc32c: str | None
    version: str | None
    state: int


def open_filesystem(
    url: str, storage_options: StorageOptions | None = None
) -> tuple[fsspec.AbstractFileSystem, str]:
    """The fsspec filesystem that reaches a URL, and the URL's path in it.

    It belongs to this process and is made once for the same scheme, host and options. It
    caches no listings. Call this again after a fork; do not hand the filesystem on.

    Args:
        url: ``scheme://…``.
        storage_options: Options of the driver, ``scheme:option`` where it is for one scheme
            only; what is missing comes from its environment
            (for gs, ``STORAGE_EMULATOR_HOST``, ``GOOGLE_APPLICATION_CREDENTIALS``; for any,
            ``FSSPEC_<SCHEME>_<OPTION>``).

    Raises:
        UsageError: It is no URL, its driver is not installed, or will not take the options.
        RemoteError: The host that the driver asks is unknown.
    """
    scheme = scheme_of(url)
    options = _options_of(scheme, storage_options or {})
    remember_secrets(options)
    remember_query(url)
    if "::" in url.partition("://")[0] or "://" not in url:
        raise UsageError(
            f"{redact(url)}: URLs within URLs cannot be opened", "Use scheme://host/path."
        )
    driver = _driver(url)
    try:
        path = str(driver._strip_protocol(url)).rstrip("/") or "/"
        options = {**driver._get_kwargs_from_urls(url), **options}
        remember_secrets(options)
        key = os.getpid(), scheme, json.dumps(options, sort_keys=True, default=repr)
        found = _opened.get(key)
        if found is None:
            made = _make(scheme, driver, options)
            _require_host(url, made)
            found = _opened.setdefault(key, made)  # another thread may have been faster
    except RemoteError:
        raise
    except Exception as error:
        raise UsageError(
            f"{redact(url)}: cannot be opened: {describe_error(error)}",
            "Check the URL and --storage-option.",
        ) from None
    return found, path


def _require_host(url: str, fs: fsspec.AbstractFileSystem) -> None:
    """Asks for the address of a driver's host, where it tells which: the driver tries for minutes.

    Raises:
        RemoteError: The name is unknown, not merely unanswered.
    """
    service = getattr(fs, "base", None) or getattr(fs, "endpoint_url", None)  # gcsfs, s3fs
    host = urlsplit(service).hostname if isinstance(service, str) else None
    if host is None or getproxies():  # a proxy knows names that this machine does not
        return
    try:
        socket.getaddrinfo(host, None)
    except socket.gaierror as error:
        if error.errno == socket.EAI_NONAME:
            raise RemoteError(
                f"{redact(url)}: the host {host} is unknown: {error.strerror}",
                "Check the network, the URL, and the endpoint in --storage-option or the "
                "environment.",
            ) from None


def _options_of(scheme: str, given: StorageOptions) -> dict[str, Any]:
    """The options that are for a scheme: those of all, and ``scheme:option``."""
    common = {name: value for name, value in given.items() if ":" not in name}
    own = {
        name.partition(":")[2]: value
        for name, value in given.items()
        if name.partition(":")[0] == scheme and ":" in name
    }
    return common | own


def _driver(url: str) -> type[fsspec.AbstractFileSystem]:
    scheme = scheme_of(url)
    from fsspec.registry import get_filesystem_class

    try:
        if scheme in _MODULES:
            importlib.import_module(_MODULES[scheme])
        driver: type[fsspec.AbstractFileSystem] = get_filesystem_class(scheme)
    except ImportError as error:
        extra = _EXTRAS.get(scheme)
        hint = f"pip install 'fastdata-torch[{extra}]'" if extra else str(error)
        raise UsageError(
            f"{redact(url)}: the driver of {scheme}:// is not installed", hint
        ) from None
    except ValueError:
        raise UsageError(
            f"{redact(url)}: no driver knows {scheme}://",
            "Check the scheme, or install the fsspec driver that has it.",
        ) from None
    return driver


def _make(
    scheme: str, driver: type[fsspec.AbstractFileSystem], options: dict[str, Any]
) -> fsspec.AbstractFileSystem:
    from fsspec.config import apply_config

    configured = apply_config(driver, options)
    remember_secrets(configured)
    options = {**options, **bounded_options(driver, configured, _CONNECT, _STALLED)}
    defaults: dict[str, Any] = {}
    if scheme in _MODULES:
        # They log each failure with its traceback; what is final is raised anyway.
        _quiet(_MODULES[scheme])
        defaults["use_listings_cache"] = False  # what another process wrote must be seen
    new = {name: value for name, value in defaults.items() if name not in configured}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="GCS project not set")
        return driver(**new, **options, skip_instance_cache=True)


def _quiet(logger: str) -> None:
    log = logging.getLogger(logger)
    if not log.handlers:
        log.addHandler(logging.NullHandler())


def parse_storage_options(given: tuple[str, ...] | list[str]) -> dict[str, Any]:
    """Reads ``key=value`` options; a value that is JSON is taken as such, else as text.

    Raises:
        UsageError: One has no ``=``, or a key is given twice.
    """
    options: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            # Not the text itself: it may be a credential whose key was forgotten.
            raise UsageError(
                "--storage-option takes key=value", "For example: --storage-option token=anon"
            )
        if name in options:
            raise UsageError(f"--storage-option {name} is given twice", "Give it once.")
        try:
            options[name] = json.loads(value)
        except ValueError:
            options[name] = value
    remember_secrets(options)
    return options


def list_files(url: str, storage_options: StorageOptions | None = None) -> dict[str, int]:
    """Every file below a folder: its path relative to the folder, and its size in bytes.

    An empty answer where there is no such folder.

    Raises:
        RemoteError: The listing fails for good.
    """
    return {name: entry.size for name, entry in list_entries(url, storage_options).items()}


def list_folders(url: str, storage_options: StorageOptions | None = None) -> list[str]:
    """The names of the folders in a folder, sorted; none where there is no such folder.

    Raises:
        RemoteError: The listing fails for good.
    """
    _require_listing(url)

    found = _list(url, storage_options, "ls") or []
    names = (str(info["name"]) for info in found if info["type"] == "directory")
    return sorted({name.rstrip("/").rpartition("/")[2] for name in names} - {""})


def list_entries(url: str, storage_options: StorageOptions | None = None) -> dict[str, RemoteFile]:
    """As `list_files`, with all that is known of each file."""
    _require_listing(url)
    found = _find(url, storage_options)
    prefix = open_filesystem(url, storage_options)[1].rstrip("/") + "/"
    return {
        name[len(prefix) :]: (
            _described(info)
            # A web server's listing tells names alone.
            if info["size"] is not None
            else file_info(join_url(url, name[len(prefix) :]), storage_options)
        )
        for name, info in sorted(found.items())
        # Consoles make an empty object, name/, for a folder.
        if name.startswith(prefix) and not name.endswith("/") and info["type"] == "file"
    }


def _find(url: str, storage_options: StorageOptions | None) -> dict[str, dict[str, Any]]:
    """What a driver knows of each file below a folder, by its path."""
    fs, top = open_filesystem(url, storage_options)
    if _has_protocol(fs, *_MODULES):
        return _list(url, storage_options, "find") or {}
    # fsspec's own walk leaves out folders that cannot be listed.
    found: dict[str, dict[str, Any]] = {}
    folders, seen = [top], {top}
    while folders:
        for info in _list(url, storage_options, "ls", folders.pop()) or []:
            name = info["name"].rstrip("/")
            if info["type"] != "directory":
                found[name] = info
            elif name.startswith(f"{top.rstrip('/')}/") and name not in seen:
                seen.add(name)
                folders.append(info["name"])
    return found


def _list(
    url: str, storage_options: StorageOptions | None, method: str, below: str | None = None
) -> Any:
    """What a driver lists in a folder, or in one below it; None where there is none."""

    def ask() -> Any:
        fs, path = open_filesystem(url, storage_options)
        fs.invalidate_cache()
        return getattr(fs, method)(below or path, detail=True)

    try:
        return retrying(ask, what=f"{redact(url)}: listing it")
    except FileNotFoundError:
        return None


def _require_listing(url: str) -> None:
    if split_query(url)[1]:
        raise UsageError(
            f"{redact(url)}: a folder cannot be listed behind a URL with a query",
            "Give the credentials in a header: --storage-option "
            """'headers={"Authorization": "Bearer …"}'; or download the folder.""",
        )


def file_sizes(
    url: str, names: Iterable[str], storage_options: StorageOptions | None = None
) -> dict[str, int]:
    """The sizes in bytes of those files of a folder that are there, by name.

    Raises:
        RemoteError: A request fails for good.
    """
    names = list(names)
    if not split_query(url)[1]:
        listed = list_files(url, storage_options)
        return {name: listed[name] for name in names if name in listed}

    def ask(name: str) -> int | None:
        try:
            return file_info(join_url(url, name), storage_options).size
        except FileNotFoundError:
            return None

    with ThreadPoolExecutor(_ASKING) as pool:
        sizes = zip(names, pool.map(ask, names), strict=True)
        return {name: size for name, size in sizes if size is not None}


def file_info(
    url: str, storage_options: StorageOptions | None = None, abandon: Abandon | None = None
) -> RemoteFile:
    """What a bucket says of a file.

    Args:
        url: The file.
        storage_options: See `open_filesystem`.
        abandon: Cancels it from another thread.

    Raises:
        FileNotFoundError: There is no such file.
        RemoteError: The request fails for good.
        AbandonedError: ``abandon`` has cancelled it.
    """
    abandon = abandon or Abandon()

    def ask() -> dict[str, Any]:
        fs, path = open_filesystem(url, storage_options)
        fs.invalidate_cache()
        found: dict[str, Any] = abandon.call(fs, "info", _longest(0), path)
        if found.get("type") == "directory":
            raise FileNotFoundError(path)
        return found

    info = retrying(ask, what=redact(url), pause=abandon.pause)
    if info.get("size") is None:
        raise RemoteError(
            f"{redact(url)}: the server does not say how long it is",
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


#: What drivers call a file's version, the surest first, and the header that is the same.
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
    abandon: Abandon | None = None,
    most: int = _WHOLE,
    patience: Patience | None = None,
    state: int = 0,
) -> bytes:
    """Reads a small file, or the bytes from ``start`` to before ``end``; for none, asks nobody.

    Args:
        url: The file.
        storage_options: See `open_filesystem`.
        start: The first byte; None for the whole file.
        end: One past the last.
        abandon: Cancels it from another thread.
        most: How many bytes a whole file may have.
        patience: See `fastdata.remote.retries.Retries`.
        state: The state that the file must have, as `RemoteFile` has it; 0 for any.

    Raises:
        FileNotFoundError: There is no such file.
        ChangedError: It is in another state.
        RemoteError: It cannot be read or is too long, or the server keeps sending fewer bytes, or
            knows no ranges.
        AbandonedError: ``abandon`` has cancelled it.
    """
    abandon = abandon or Abandon()
    whole = start is None or end is None
    begin, stop = (0, most + 1) if start is None or end is None else (start, end)

    def read() -> bytes:
        fs, path = open_filesystem(url, storage_options)
        data: bytes
        if not whole:
            with asking(url, begin, stop, state):
                seconds = _longest(stop - begin)
                data = abandon.call(fs, "cat_file", seconds, path, start=begin, end=stop)
            require_length(data, url, stop - begin)
            return data
        # Of a driver that is not asynchronous, no more than that is asked for: it is not bounded.
        options: dict[str, Any] = {"start": 0, "end": stop}
        if getattr(fs, "async_impl", False):
            # s3fs would ask for the length, and make room for what it is told.
            options = {"max_concurrency": 1} if _has_protocol(fs, "s3") else {}
        with asking(url, None, most, state):
            data = abandon.call(fs, "cat_file", _longest(0), path, **options)
        if len(data) > most:
            raise too_long(url, most)
        return data

    if begin == stop:
        return b""  # no server knows such a range: some answer with everything, or an error
    what = f"{redact(url)}: reading it"
    return retrying(read, what=what, pause=abandon.pause, patience=patience)


def download(
    url: str,
    local: str | os.PathLike[str],
    *,
    size: int | None = None,
    crc32c: str | None = None,
    storage_options: StorageOptions | None = None,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Downloads a file by several requests at once: under its name it is whole, or not there.

    Args:
        url: What to download.
        local: The file to write; its folder exists.
        size: The size that it must have; None to ask the server.
        crc32c: The checksum that it must have, 8 hexadecimal digits; None for no check.
        storage_options: See `open_filesystem`.
        progress: Called when a part of it is there.

    Raises:
        FileNotFoundError: There is no such file.
        CorruptionError: It does not match its checksum, and did not when fetched again either.
        RemoteError: It cannot be downloaded.
        SpaceError: There is no room for it.
        OSError: It cannot be written.
    """
    size = file_info(url, storage_options).size if size is None else size
    free = free_space(Path(local).parent)
    if size > free:
        raise SpaceError(
            f"{local}: {human_bytes(size)} of {redact(url)} are to be fetched here, "
            f"{human_bytes(free)} are free",
            "Make room, or give another folder.",
        )
    with whole_file(Path(local)) as temporary:
        found = _fetch(url, temporary, size, storage_options, progress)
        if crc32c not in (None, found):
            # A line that corrupts is rare, and once more is cheap.
            found = _fetch(url, temporary, size, storage_options, progress)
        if crc32c not in (None, found):
            raise CorruptionError(
                f"{redact(url)}: its checksum is {found}, not {crc32c}",
                "It was damaged or changed in the bucket: upload or pack it again.",
            )


def _open_own(path: str, flags: int) -> int:
    """Opens a file that only this user may write, whatever the umask."""
    return os.open(path, flags, 0o644)


def _fetch(
    url: str,
    local: Path,
    size: int,
    storage_options: StorageOptions | None,
    progress: Callable[[], None],
) -> str:
    """Downloads a file; its CRC-32C."""
    abandon, patience = Abandon(), Patience()
    with (
        open(local, "wb", opener=_open_own) as file,
        ThreadPoolExecutor(_STREAMS, "fastdata-download") as pool,
    ):

        def fetch(start: int) -> None:
            end = min(start + _BLOCK, size)
            data = read_bytes(url, storage_options, start, end, abandon, patience=patience)
            os.pwrite(file.fileno(), data, start)

        try:
            # Not all at once: the size is a manifest's, which may say anything.
            for at in range(0, size, _WINDOW):
                for _ in pool.map(fetch, range(at, min(at + _WINDOW, size), _BLOCK)):
                    progress()
        except BaseException:
            abandon.now()  # the pool waits for its threads
            raise
    return f"{crc32c_file(local):08x}"


def upload(
    local: str | os.PathLike[str],
    url: str,
    *,
    crc32c: str | None = None,
    storage_options: StorageOptions | None = None,
    tries: int = TRIES,
    abandon: Abandon | None = None,
) -> RemoteFile:
    """Uploads a file, unless the bucket is known to have it.

    A bucket shows an object only when it is whole. The bucket's checksum is compared where it
    has one (Google's); elsewhere the size is. The local file stays as it is.

    Args:
        local: What to upload.
        url: What it is to be called.
        crc32c: Its CRC-32C, 8 hexadecimal digits; None to compute it.
        storage_options: See `open_filesystem`.
        tries: How often it is tried in all.
        abandon: Cancels it from another thread; where a driver is not asynchronous, only
            between requests.

    Returns:
        What the bucket says of the file.

    Raises:
        RemoteError: It cannot be uploaded.
        OSError: It cannot be read.
        AbandonedError: ``abandon`` has cancelled it.
    """
    ending = abandon or Abandon()
    length = os.stat(local).st_size
    checksum = crc32c or f"{crc32c_file(Path(local)):08x}"

    def send() -> RemoteFile:
        fs, path = open_filesystem(url, storage_options)
        _make_folder(fs, path)
        # The service may take its time to store what has come.
        seconds = 9 * _STALLED + _longest(length)
        ending.call(fs, "put_file", seconds, os.fspath(local), path)
        sent = file_info(url, storage_options, ending)
        if sent.size != length or sent.crc32c not in (None, checksum):
            raise TruncatedError(
                f"{sent.size} bytes arrived of {length}, with the checksum {sent.crc32c}"
            )
        return sent

    try:
        found = file_info(url, storage_options, ending)
    except FileNotFoundError:
        found = None
    # Elsewhere, an equal size proves nothing.
    if found is not None and found.size == length and found.crc32c == checksum:
        return found
    try:
        what = f"{redact(url)}: uploading it"
        return retrying(send, what=what, tries=tries, pause=ending.pause)
    except FileNotFoundError:
        raise RemoteError(
            f"{redact(url)}: cannot be uploaded: its bucket or folder is not there",
            "Check the URL; buckets are not made by fastdata.",
        ) from None


def remove(url: str, storage_options: StorageOptions | None = None) -> None:
    """Removes a file; nothing happens where there is none.

    Raises:
        RemoteError: It cannot be removed.
    """

    def delete() -> None:
        fs, path = open_filesystem(url, storage_options)
        fs.rm_file(path)

    try:
        retrying(delete, what=f"{redact(url)}: removing it")
    except FileNotFoundError:
        return


def _make_folder(fs: fsspec.AbstractFileSystem, path: str) -> None:
    # A bucket has no folders, and drivers would take one for a bucket that is to be made.
    if _has_protocol(fs, "file", "memory", "sftp", "ssh"):
        fs.makedirs(path.rpartition("/")[0], exist_ok=True)


def _has_protocol(fs: fsspec.AbstractFileSystem, *names: str) -> bool:
    found = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    return not set(names).isdisjoint(found)


def _longest(length: int) -> float:
    """Seconds after which reading so many bytes has stalled."""
    return _STALLED + length / _SLOWEST
