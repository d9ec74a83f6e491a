"""Source of LMDBs whose values are encoded images, as people write them for ImageNet or LSUN.

LMDB keeps each value in consecutive bytes of its file. So a record is an extent, and the images
are read without LMDB.
"""

from __future__ import annotations

import os
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.converters.options import split_to_pack
from fastdata.converters.records import MOST_CLASSES, ImageSource, Record, has_image
from fastdata.converters.trees import (
    LeftOut,
    RemoteTree,
    is_folder,
    require_utf8,
    scan,
    storable,
    suffix_of,
    unreadable,
)

from fastdata.errors import CorruptionError, SourceError, UsageError, printable
from fastdata.remote.files import SourceFile, file_at
from fastdata.remote.urls import is_url, redact
from fastdata.storage.formats.lmdb import DATA_NAME, Entry, Tree
from fastdata.storage.local import LocalFile
from fastdata.storage.manifest import MANIFEST_NAME
from fastdata.storage.peek import lacks_data
from fastdata.storage.source import MOST_BYTES

#: Suffixes of databases that are a file each.
_SUFFIXES = (".mdb", ".lmdb")
#: Keys of entries such as ``__len__`` and ``__keys__``, which hold no image.
_NO_IMAGE = re.compile(r"__.*__", re.DOTALL)
#: Group of the pattern of keys that is the class.
_CLASS = "class"


class LmdbImages(ImageSource):
    """Source of the values of an LMDB, in the order of its keys.

    A key that is printable UTF-8 is the sample's key, without ``/`` at its beginning; of another
    key, the sample's is ``0x`` and its digits. Keys such as ``__len__`` are left out.

    A folder of several LMDBs has one class a database, with its name but for ``_lmdb``, as LSUN's
    has; keys then begin with the database's name. In a single database, classes are what ``keys``
    finds in the keys. Otherwise there are none.

    A value that is no image is a bad sample. If none of the first values is an image, this raises.

    Args:
        root: A folder with ``data.mdb``, a file (``subdir=False``), or a folder of several; or the
            URL of one.
        database: Name of a named database; None for the unnamed one.
        keys: Regular expression of the keys of images, which must match as a whole; others are
            left out. Its group ``class``, if it has one, is the class's name:
            ``(?P<class>[^/]+)/.*``.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        database: str | None = None,
        keys: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        pattern = _compiled(keys)
        databases = _databases(root, storage_options)
        where = redact(os.fspath(root)) if is_url(root) else str(Path(root).resolve())
        self.archives = list(databases.values())
        self.inputs = [file.location for file in self.archives]
        self.origin: dict[str, Any] = {"kind": "lmdb", "root": where}
        self.origin |= {"database": database} if database else {}
        self.origin |= {"keys": keys} if keys else {}
        folders = databases if "" not in databases else {}
        named = None if database is None else database.encode()
        self._listings = []
        for folder, file in databases.items():
            self._listings.append(LmdbListing(file, folder, named, keys, {}, Counter()))
            _require_images(self._listings[-1])
        in_keys = pattern is not None and _CLASS in pattern.groupindex
        if folders and in_keys:
            raise UsageError(
                f"{where}: its classes would come from folders and from --keys",
                "Leave the class out of --keys, or give the path of a single database.",
            )
        names = set(map(_class_of, folders))
        if in_keys:
            names = {name for one in self._listings for _, name, _ in one.entries(Counter())}
        self.classes = sorted(names)
        if len(self.classes) > MOST_CLASSES:
            raise SourceError(f"{where}: has more than {MOST_CLASSES:,} classes", "Check --keys.")
        ranks = {name: rank for rank, name in enumerate(self.classes)}
        self._listings = [one._replace(ranks=ranks) for one in self._listings]

    def shards(self) -> list[LmdbListing]:
        return self._listings


def _compiled(keys: str | None) -> re.Pattern[str] | None:
    try:
        return None if keys is None else re.compile(keys)
    except re.error as error:
        raise UsageError(
            f"--keys {keys!r} is no regular expression: {error}",
            "Write one, such as '(?P<class>[^/]+)/.*'.",
        ) from None


def _class_of(folder: str) -> str:
    return re.sub(r"[._]?lmdb$|\.mdb$", "", folder)


def _databases(
    root: str | os.PathLike[str], storage_options: Mapping[str, Any] | None
) -> dict[str, SourceFile]:
    """Return the files of databases by the name of their folder; "" for a single database."""
    if is_url(root):
        url = os.fspath(root)
        file = RemoteTree(url, storage_options).file(DATA_NAME)
        try:
            return {"": file or file_at(url, storage_options)}
        except FileNotFoundError:
            raise SourceError(f"{redact(url)}: no LMDB here", "Name its folder, or file.") from None
    path = require_utf8(Path(root).absolute())
    if not is_folder(path):
        if not path.is_file():
            raise SourceError(f"{root}: no such folder or file", "Name the LMDB with --root.")
        return {"": LocalFile(path)}
    if (path / MANIFEST_NAME).exists():
        raise lacks_data(root, "is no LMDB of others", "")
    if (path / DATA_NAME).is_file():
        return {"": LocalFile(path / DATA_NAME)}
    databases: dict[str, SourceFile] = {}
    for entry in scan(path):
        if entry.is_dir() and os.path.isfile(os.path.join(entry.path, DATA_NAME)):
            databases[entry.name] = LocalFile(Path(entry.path, DATA_NAME))
        elif entry.name.endswith(_SUFFIXES) and entry.is_file():
            databases[entry.name] = LocalFile(Path(entry.path))
    if not databases:
        raise lacks_data(root, "holds no LMDB", "Name the folder of data.mdb with --root.")
    if split := split_to_pack(map(_class_of, databases)):
        name = next(name for name in databases if _class_of(name) == split)
        raise SourceError(
            f"{root}: its databases are splits ({', '.join(databases)})",
            f"Pack each by itself: --root {shlex.quote(str(path / name))}",
        )
    return databases


class LmdbListing(NamedTuple):
    """One database of a source: a shard of its listing.

    ``folder`` is the name before its keys, ``ranks`` has labels by class names, ``left_out`` the
    entries that `records` skipped.
    """

    file: SourceFile
    folder: str
    database: bytes | None
    keys: str | None
    ranks: Mapping[str, int]
    left_out: LeftOut

    def records(self) -> Iterator[Record]:
        """Yield its images in the order of the keys."""
        self.left_out.clear()
        state = self.file.mtime_ns
        for text, name, entry in self.entries(self.left_out):
            label = self.ranks.get(name or _class_of(self.folder), 0)
            key, problem = storable(f"{self.folder}/{text}" if self.folder else text)
            place = self.file.location, entry.offset, entry.length, state
            yield Record(key, label, *place, problem=problem)

    def entries(self, left_out: LeftOut) -> Iterator[tuple[str, str, Entry]]:
        """Yield the key as text, the class in it or "", and the place of each image."""
        pattern = _compiled(self.keys)
        with self._opened() as (tree, _):
            for entry in tree.leaves(self.database):
                if entry.is_database:
                    continue
                text, name = _text(entry.key), ""
                match = pattern and pattern.fullmatch(text)
                if match and _CLASS in match.re.groupindex:
                    name = match[_CLASS] or ""
                if match or (pattern is None and not _NO_IMAGE.fullmatch(text)):
                    yield text.lstrip("/"), name, entry
                else:
                    left_out[suffix_of(text)] += 1

    def read(self) -> Iterator[tuple[str, bytes]]:
        """Yield the keys and values of its images."""
        with self._opened() as (_, read):
            for text, _, entry in self.entries(Counter()):
                yield text, read(entry.offset, min(entry.length, MOST_BYTES))

    def named(self) -> list[str]:
        """Return the names of the file's databases."""
        with self._opened() as (tree, _):
            return [_text(one.key) for one in tree.leaves() if one.is_database]

    @contextmanager
    def _opened(self) -> Iterator[tuple[Tree, Callable[[int, int], bytes]]]:
        tree: Tree | None = None
        try:
            with self.file.open() as opened:

                def read(offset: int, length: int) -> bytes:
                    opened.seek(offset)
                    data: bytes = opened.read(length)
                    return data

                tree = Tree(self.file, read, opened.seek(0, 2))
                try:
                    yield tree, read
                except CorruptionError:
                    if not tree.has_changed():
                        raise
                if tree.has_changed():
                    raise SourceError(
                        f"{self.file}: was written to while it was listed",
                        "Run this again when nothing writes to it.",
                    )
        except KeyError:
            names = ", ".join(self.named()) or "none with a name"
            raise UsageError(
                f"{self.file}: has no database {_text(self.database or b'')}",
                f"It has {names}. Name another with --database.",
            ) from None
        except CorruptionError as error:
            raise SourceError(error.what, error.hint or "Check that it was copied whole.") from None
        except OSError as error:
            raise unreadable(self.file, error) from None


def _text(key: bytes) -> str:
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    return text if text.isprintable() and text else f"0x{key.hex()}"


def _require_images(listing: LmdbListing) -> None:
    if has_image(value for _, value in listing.read()):
        return
    first = next(listing.read(), None)
    if first is None:
        names = ", ".join(listing.named()) or "none with a name"
        what = f"{listing.file}: no such keys here; it has the databases {names}"
        raise SourceError(what, "Check --root, --database and --keys.")
    raise SourceError(
        f"{listing.file}: its values are no image files; the value of {printable(first[0])} has "
        f"{len(first[1]):,} bytes, which begin with {first[1][:16]!r}",
        "Pickles, Caffe's Datum and the like need code of their own: read them with the program "
        "that wrote them, and write an LMDB, or tar files, of the images' own bytes. --keys names "
        "the images among other entries.",
    )
