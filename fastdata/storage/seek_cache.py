"""Cache in memory for the seek points that files without an index gain in the first epoch."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa

from fastdata import _native
from fastdata.errors import BusyError, warn
from fastdata.storage.arrow import array
from fastdata.storage.cache import Cache
from fastdata.storage.files import file_lock, open_descriptor, whole_file
from fastdata.storage.source import DEFAULT_STRIDE
from fastdata.storage.trust import distrust, is_own_file

#: Default memory for seek points: about 180,000 photographs of ImageNet's size.
DEFAULT_BYTES = 256 << 20

#: Bytes of an entry beside its table: key, objects, a place in the dictionary.
_OVERHEAD = 500

#: Seconds to wait for another process that saves.
_PATIENCE = 60.0
# Errors of reading a damaged file.
_DAMAGED = (OSError, pa.ArrowException, KeyError, UnicodeError, ValueError)

_SCHEMA = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("mtime_ns", pa.int64(), nullable=False),
        pa.field("seek_points", pa.binary(), nullable=False),
        # A table tells which JPEG it is of, but not whether its own bits are right.
        pa.field("crc32c", pa.uint32(), nullable=False),
    ],
    metadata={"fastdata": "seek-cache-1"},
)


class Stamped(NamedTuple):
    """A seek table and the file that it is of, as it was then.

    Attributes:
        table: The packed table (docs/formats/seek-points.md).
        size: The file's size in bytes.
        mtime_ns: When it was last changed, in nanoseconds since 1970.
    """

    table: bytes
    size: int
    mtime_ns: int


class SeekCache:
    """Seek points by path, within a bound of memory, saved to a file if there is one.

    A table is used only for a file whose size and time of change are those that it was built
    from. What does not fit is not kept: it is decoded without seek points.

    Args:
        root: The folder of the images, as their paths begin. In the file they are relative to it.
        limit: Bytes of memory.
        file: Where `save` writes to, and what is there is read from; None for nowhere.
        stride: Pixels between points.
    """

    def __init__(
        self,
        root: str,
        limit: int = DEFAULT_BYTES,
        file: Path | None = None,
        stride: int = DEFAULT_STRIDE,
    ) -> None:
        self._root = os.path.join(root, "")
        self.stride = stride
        self.full = False
        self._limit = limit
        # Not the link itself: what it names may be exchanged after it was checked.
        self._file = None if file is None else Path(os.path.realpath(file.parent), file.name)
        self._trusted = [os.geteuid()]
        with suppress(OSError):  # who can change the images can give wrong pixels anyway
            self._trusted.append(os.stat(self._root).st_uid)
        self._entries: dict[str, Stamped] = {}
        self._bytes = 0
        self._unsaved = False
        if self._file is not None:
            try:
                for path, entry in self._load(self._file):
                    self.put(path, entry)
            except FileNotFoundError:
                pass
            except _DAMAGED as error:
                # It is a cache: it can be built again.
                warn(
                    f"{file}: these seek points cannot be read and are built again: "
                    f"{_reason(error)}"
                )
            self._unsaved = False

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, path: str) -> Stamped | None:
        """The seek table of a file, if it is there."""
        return self._entries.get(path)

    def put(self, path: str, entry: Stamped) -> None:
        """Keeps a seek table, if it fits."""
        old = self._entries.get(path)
        if old is not None:
            self._bytes -= len(old.table) + _OVERHEAD
        size = len(entry.table) + _OVERHEAD
        if self._bytes + size > self._limit:
            self.full = True
            self._entries.pop(path, None)
            return
        self._bytes += size
        self._entries[path] = entry
        self._unsaved = True

    def drop(self, path: str) -> None:
        """Forgets a seek table."""
        old = self._entries.pop(path, None)
        if old is not None:
            self._bytes -= len(old.table) + _OVERHEAD

    def save(self) -> None:
        """Writes what is new to the file, beside what other processes have written to it.

        Where it cannot be written, that is a warning, and not tried again before there is more.
        """
        if self._file is None or not self._unsaved:
            return
        try:
            self._save(self._file)
        except (OSError, BusyError) as error:
            warn(
                f"{self._file}: the seek points cannot be saved, so the next run builds them "
                f"again: {_reason(error)}"
            )
        self._unsaved = False

    def _save(self, file: Path) -> None:
        self._require_trusted(file.parent)
        with file_lock(file.with_name(file.name + ".lock"), patience=_PATIENCE):
            entries = self._entries
            with suppress(*_DAMAGED):  # then it is replaced
                entries = dict(self._load(file)) | entries
            paths = sorted(path for path in entries if _is_text(path))
            table = pa.Table.from_arrays(
                [
                    array([self._relative(path) for path in paths], pa.string()),
                    array([entries[path].size for path in paths], pa.int64()),
                    array([entries[path].mtime_ns for path in paths], pa.int64()),
                    array([entries[path].table for path in paths], pa.binary()),
                    array([_native.crc32c(entries[path].table) for path in paths], pa.uint32()),
                ],
                schema=_SCHEMA,
            )
            with whole_file(file) as temporary:
                temporary.unlink(missing_ok=True)  # a killed process of this number left it
                with open(temporary, "xb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
                    os.fchmod(sink.fileno(), 0o644)  # whatever the umask: others may not write it
                    writer.write_table(table, 16_384)

    def _require_trusted(self, folder: Path) -> None:
        """Check that no other user could have put a file into a folder.

        Raises:
            OSError: Another user could.
        """
        folder.stat()  # a missing folder is not another user's
        problem = distrust(folder, self._trusted)
        if problem is not None:
            raise OSError(errno.EPERM, f"{problem}; choose a folder that is yours alone")

    def _open(self, file: Path) -> int:
        """Opens the file, if its content can be believed: tables have checksums, no signatures."""
        self._require_trusted(file.parent)
        descriptor = open_descriptor(file, os.O_NOFOLLOW)
        if not is_own_file(os.fstat(descriptor), self._trusted):
            os.close(descriptor)
            raise OSError(
                errno.EPERM, "the file belongs to another user, or others can write it; remove it"
            )
        return descriptor

    def _load(self, file: Path) -> Iterator[tuple[str, Stamped]]:
        # Not mapped: where a mapped file is cut, the kernel ends the process.
        with open(self._open(file), "rb") as source:
            reader = pa.ipc.open_file(pa.PythonFile(source, "r"))
            if not reader.schema.equals(_SCHEMA, check_metadata=True):
                raise ValueError("it is no file of seek points, or of another version")
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                batch.validate(full=True)
                if any(column.null_count for column in batch.columns):
                    raise ValueError("it has gaps")
                columns = (batch.column(name).to_pylist() for name in _SCHEMA.names)
                for path, size, mtime_ns, table, crc in zip(*columns, strict=True):
                    if _native.crc32c(table) != crc:
                        raise ValueError(f"those of {path} have changed")
                    yield os.path.join(self._root, path), Stamped(table, size, mtime_ns)

    def _relative(self, path: str) -> str:
        return path[len(self._root) :] if path.startswith(self._root) else path


def seek_cache(cache: Cache | None, root: str) -> SeekCache | None:
    """Return the cache that a user asks for; None for none.

    Args:
        cache: Its file and size; None for the default size, and no file.
        root: As of `SeekCache`.
    """
    cache = cache or Cache()
    size = DEFAULT_BYTES if cache.bytes is None else cache.bytes
    return SeekCache(root, size, None if cache.path is None else Path(cache.path)) if size else None


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:  # a name that is not UTF-8
        return False
    return True
