"""Members of tar files as extents, so that archives are read where they are."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Literal, NamedTuple, Protocol

from fastdata.errors import SourceError
from fastdata.storage.files import open_file
from fastdata.storage.paths import is_inside


class Member(NamedTuple):
    """A regular file in a tar file.

    Attributes:
        name: Its path in the archive, without a leading ``./``.
        offset: Where its data begins in the file, in bytes.
        size: Its length in bytes.
    """

    name: str
    offset: int
    size: int


class Openable(Protocol):
    """A file that can be opened for reading; its text is its name in messages."""

    def open(self, mode: Literal["rb"] = "rb") -> Any:
        """Opens it: something with ``read``, ``seek`` and ``tell``."""


def members(path: Path | Openable, offset: int = 0, size: int | None = None) -> Iterator[Member]:
    """Yields the regular files of a tar file, in the archive's order.

    Args:
        path: The uncompressed tar file.
        offset: Where the archive begins, when it is itself a member of ``path``.
        size: How long it is; to the file's end if None.

    Raises:
        SourceError: It cannot be read, is compressed or cut short, or holds a member that
            would lie outside the folder it is unpacked in.
    """
    try:
        with _opened(path) as file:
            end = file.seek(0, 2) if size is None else offset + size
            file.seek(offset)
            with tarfile.open(fileobj=file, mode="r:") as tar:
                for member in tar:
                    tar.members.clear()  # type: ignore[attr-defined]  # it would keep all it has seen
                    if member.isdir():
                        continue
                    if not member.isreg() or member.issparse():
                        raise SourceError(
                            f"{path}: {member.name} is a link, a device or a sparse file",
                            "Pack the archive again with tar --dereference, without --sparse.",
                        )
                    if member.offset_data + member.size > end:
                        raise tarfile.ReadError(f"{member.name} goes beyond the end")
                    yield Member(_safe(path, member.name), member.offset_data, member.size)
                # tarfile takes a damaged header, or none, for the end of the archive. The
                # true end is a block of zeros.
                last = tar.offset
                file.seek(last)
                if last >= end or any(file.read(tarfile.BLOCKSIZE)):
                    raise tarfile.ReadError("it ends, or is damaged, before its end mark")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise SourceError(
            f"{path}: cannot be read as an uncompressed tar file: {error}",
            "Check that it was downloaded whole; gunzip it if it is compressed.",
        ) from None


def _opened(path: Path | Openable) -> Any:
    return open_file(path, buffering=-1) if isinstance(path, Path) else path.open("rb")


def _safe(path: Path | Openable, name: str) -> str:
    if not is_inside(name):
        raise SourceError(
            f"{path}: the member {name} would lie outside the folder it is unpacked in",
            "Archives that were not made with ill intent have no such names; do not use it.",
        )
    return "/".join(PurePosixPath(name).parts)
