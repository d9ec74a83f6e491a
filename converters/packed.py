"""A packed dataset as a source: to pack it anew, whole or a part of it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from fastdata.converters.records import Listable, Record, Sharded

from fastdata.errors import SourceError, UsageError, printable
from fastdata.remote.opening import read_manifest
from fastdata.remote.urls import is_url, join_url, redact
from fastdata.staging.fetching import Fetching
from fastdata.staging.places import RemotePlace
from fastdata.storage.blobs import Blobs
from fastdata.storage.manifest import MANIFEST_NAME, Manifest
from fastdata.storage.rows import Row

#: Rows of the index that one task lists.
_ROWS_PER_SHARD = 65_536


class Part(NamedTuple):
    """Which samples of a dataset are packed: each is in or out by its key and nothing else.

    So parts that do not overlap share no sample, parts that join to 0..1 have all of them, and
    they are the same from another container, order or copy of the dataset.

    Attributes:
        start: Where the part begins, as a fraction of all samples, 0 to 1.
        stop: Where it ends. Of N samples it has N * (stop - start), give or take a few times
            the square root of that.
        seed: Parts of different seeds have nothing to do with each other.
    """

    start: float
    stop: float
    seed: int = 0

    def __contains__(self, key: object) -> bool:
        salted = f"{self.seed}/{key}".encode()
        drawn = int.from_bytes(hashlib.blake2b(salted, digest_size=8).digest(), "little") >> 11
        return self.start <= drawn / (1 << 53) < self.stop


class PackedDataset(Sharded):
    """The samples of a dataset that fastdata has packed, in the dataset's order.

    Bytes, keys, labels and classes are the dataset's. Every image is compared with its
    checksum; one that is damaged is a bad sample.

    Args:
        root: The dataset's folder, or its URL.
        part: Which of its samples; None for all.
        keys: Keys of the samples, each of which must be there; None for all.
        storage_options: Options of the driver of a URL.

    Attributes:
        packed_order: The manifest's fields that say in which order its samples are.

    Raises:
        DatasetError: There is no finished dataset.
        RemoteError: The URL cannot be reached.
        UsageError: The part is none.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        part: Part | None = None,
        keys: Sequence[str] | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if part is not None and not 0 <= part.start < part.stop <= 1:
            raise UsageError(
                f"--part {part.start:g}:{part.stop:g} is no part of a dataset",
                "Give where it begins and ends, from 0 to 1: 0:0.9.",
            )
        self._options = dict(storage_options or {})
        self._place = os.fspath(root) if is_url(root) else str(Path(root).absolute())
        self._part, self._keys = part, None if keys is None else frozenset(keys)
        if is_url(root):
            text = read_manifest(self._place, self._options)
            shown = redact(self._place)
            manifest = Manifest.parse(text, f"{shown}/{MANIFEST_NAME}")
        else:
            shown = str(Path(root).resolve())
            manifest = Blobs(Path(self._place)).manifest
        self._samples = manifest.samples
        self.classes = manifest.classes
        self.packed_order = {"order": manifest.order, "seed": manifest.seed}
        self.root = _images_root(self._place, manifest, self._options)
        self.inputs: list[Path | str] = [self._place if is_url(root) else Path(self._place)]
        self.about: dict[str, Any] = {"kind": "fastdata", "root": shown, "of": manifest.source}
        if part is not None:
            self.about["part"] = list(part)
        if self._keys is not None:
            self.about["keys"] = len(self._keys)

    def shards(self) -> Sequence[Listable]:
        """Shards of the listing: rows of the index; one behind a URL, where it is fetched once."""
        step = self._samples if is_url(self._place) else _ROWS_PER_SHARD
        ranges = [
            PackedRows(
                self._place, at, min(at + step, self._samples), self._part, self._keys,
                self._options,
            )
            for at in range(0, self._samples, max(step, 1))
        ]  # fmt: skip
        return ranges if self._keys is None else [_AllKeys(ranges, self._keys, self.about["root"])]


def _images_root(place: str, manifest: Manifest, options: dict[str, Any]) -> str | None:
    if manifest.root is None:
        return None
    if is_url(place):
        return RemotePlace(place, options).root(manifest.root).url
    return str((Path(place) / manifest.root).resolve())


class PackedRows(NamedTuple):
    """Some rows of a dataset's index: a shard of a listing.

    Attributes:
        place: The dataset's folder or URL.
        start: The first row.
        stop: One past the last.
        part: As in `PackedDataset`.
        keys: Likewise.
        options: Options of the driver of a URL.
    """

    place: str
    start: int
    stop: int
    part: Part | None
    keys: frozenset[str] | None
    options: dict[str, Any]

    def records(self) -> Iterator[Record]:
        """Yields the records of those samples that are wanted."""
        opened: AbstractContextManager[Any] = nullcontext()
        if is_url(self.place):
            opened = Fetching(self.place, self.options)
        with opened as fetching:
            blobs = Blobs(Path(self.place)) if fetching is None else fetching.blobs
            root = _images_root(self.place, blobs.manifest, self.options)
            rows = blobs.index.rows(self.start, self.stop, seek_points=False)
            for number, row in enumerate(rows, self.start):
                if self.part is not None and row.key not in self.part:
                    continue
                if self.keys is not None and row.key not in self.keys:
                    continue
                file = blobs.file(row, number)  # raises where the index is damaged
                yield self._record(row, file, blobs.manifest, root)

    def _record(self, row: Row, file: Path, manifest: Manifest, root: str | None) -> Record:
        path = str(file)
        if is_url(self.place):
            name = manifest.files[row.file].name if row.path is None else row.path
            path = join_url(root or self.place, name)
        elif row.path is not None and root is not None:
            path = os.path.join(root, row.path)
        problem = None if 0 <= row.label < len(manifest.classes) else "its label is no class's"
        pixels = (row.height, row.width, None) if row.encoding == "raw" else None
        # The checksum tells whether the bytes are still those that were listed: no time is needed.
        return Record(
            row.key,
            row.label,
            path,
            row.offset,
            row.length,
            0,
            pixels=pixels,
            problem=problem,
            crc32c=row.crc32c,
        )


class _AllKeys(NamedTuple):
    """Rows of a dataset, among which certain keys must be."""

    shards: Sequence[PackedRows]
    keys: frozenset[str]
    shown: str

    def records(self) -> Iterator[Record]:
        missing = set(self.keys)
        for shard in self.shards:
            for record in shard.records():
                missing.discard(record.key)
                yield record
        if missing:
            raise SourceError(
                f"{self.shown}: has no sample {printable(min(missing))}, and lacks {len(missing)} "
                f"of {len(self.keys)} keys that were asked for",
                "Name its samples as fastdata's index does: the path below the split, without "
                "the extension.",
            )
