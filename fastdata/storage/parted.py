"""An index of many parts: each is a dataset by itself, and all together are read as one.

The normative layout is docs/formats/parts.md.
"""

from __future__ import annotations

import hashlib
import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, overload

from fastdata.errors import CorruptionError, DatasetError
from fastdata.storage.fields import Field
from fastdata.storage.generation import explained, generation_in
from fastdata.storage.joined import JoinedSource
from fastdata.storage.manifest import (
    MANIFEST_NAME,
    FileEntry,
    Manifest,
    PartsError,
    check_types,
    known,
    not_a_manifest,
    require_count,
    stored_fields,
)
from fastdata.storage.packed import IndexedSource, PackedSource
from fastdata.storage.records import Row
from fastdata.storage.source import Capabilities, Hints, count_samples
from fastdata.text import human_count

#: Most files whose names are kept in memory: 200 MB (docs/scale.md).
_KEPT_FILES = 500_000
#: Fewest parts that are kept.
_LEAST = 8
#: Names of parts.
PART = re.compile(r"part-\d{6,}")
_HINT = "Put the part back as it was; or index all of it again: fastdata index … --force."


@dataclass(frozen=True)
class Part:
    """One part of an index, a folder below it; numbers are of its samples and of its archives."""

    name: str
    samples: int
    skipped: int
    blob_bytes: int
    files: int
    file_bytes: int
    generation: str

    @classmethod
    def of(cls, name: str, manifest: Manifest) -> Part:
        """Return the entry of a dataset that becomes a part."""
        counts = manifest.samples, manifest.skipped, manifest.blob_bytes, manifest.blob_files
        size = sum(entry.size for entry in manifest.files if not entry.crc32c)
        return cls(name, *counts, size, manifest.generation)

    @classmethod
    def parse(cls, entry: dict[str, Any]) -> Part:
        """Return the part of an entry; KeyError, TypeError, ValueError if it is not sound."""
        found = cls(**known(cls, entry))
        if not isinstance(found.name, str) or not PART.fullmatch(found.name):
            raise ValueError(f"a part's name is {found.name!r}")
        for name in ("samples", "skipped", "blob_bytes", "files", "file_bytes"):
            require_count(f"{name} of {found.name}", getattr(found, name))
        return found


@dataclass(frozen=True)
class Parts(Manifest):
    """Manifest of an index of parts; it has no files and no index of its own.

    ``parts`` are in the order of their samples; ``remote``: their files lie behind URLs.
    """

    parts: tuple[Part, ...] = ()
    remote: bool = False

    def _contents(self) -> dict[str, Any]:
        found = asdict(self)
        kept_by_parts = "index", "files", "root", "order", "seed", "groups"
        for name in (*kept_by_parts, "samples", "skipped", "blob_bytes"):
            del found[name]
        return found

    @classmethod
    def of(cls, parts: Sequence[Part], about: Manifest) -> Parts:
        """Return the manifest of parts, whose fields, classes and container ``about`` has."""
        names = ("container", "classes", "options", "source", "tool", "fields", "format_version")
        shared: dict[str, Any] = {name: getattr(about, name) for name in names}
        shared |= {**_totals(parts), "index": _NO_INDEX, "files": [], "parts": tuple(parts)}
        generations = "".join(part.generation for part in parts).encode()
        shared["generation"] = hashlib.blake2b(generations, digest_size=8).hexdigest()
        return cls(**shared, remote=getattr(about, "remote", False))

    @classmethod
    def parse_found(cls, error: PartsError) -> Parts:
        """Return the manifest that a reader of one dataset has found."""
        found, path = dict(error.found), f"{error.folder}/{MANIFEST_NAME}"
        try:
            parts = tuple(Part.parse(entry) for entry in found["parts"])
            if len({part.name for part in parts}) != len(parts) or not parts:
                raise ValueError("it has no parts, or one twice")
            if type(found["remote"]) is not bool:
                raise ValueError(f"remote is {found['remote']!r}")
            found["fields"] = stored_fields(found["fields"], None)
            found |= {**_totals(parts), "parts": parts, "index": _NO_INDEX, "files": []}
            manifest = cls(**known(cls, found))
            check_types(manifest)
        except (TypeError, KeyError, ValueError) as wrong:
            raise not_a_manifest(path, wrong) from None
        return manifest

    def problem_of(self, part: Part, manifest: Manifest) -> str | None:
        """Return how a part differs from what this says of it; None if it does not."""
        entry = Part.of(part.name, manifest)
        if entry.samples != part.samples:
            return (
                f"has {human_count(entry.samples, 'sample')}, "
                f"the index of parts says {part.samples:,}"
            )
        if entry.generation != part.generation:
            return "was indexed again since it became a part"
        return self.difference(manifest)

    def difference(self, other: Manifest) -> str | None:
        """Return in what a dataset differs from the parts although all have it alike."""
        if other.container != self.container:
            return f"is in {other.container}, the other parts in {self.container}"
        own, others = ({_shape(field) for field in one.field_list} for one in (self, other))
        if own != others:
            names = sorted({str(shape[0]) for shape in own ^ others})
            return f"has other fields than the other parts: {', '.join(names)}"
        for label, (one, two) in enumerate(zip(self.classes, other.classes, strict=False)):
            # A number stands for a class that no sample of the part has.
            if one != two and str(label) not in (one, two):
                return f"names class {label} {two!r}, the other parts {one!r}"
        return None


_NO_INDEX = FileEntry("", 0, "")


def _totals(parts: Sequence[Part]) -> dict[str, int]:
    names = ("samples", "skipped", "blob_bytes")
    return {name: sum(getattr(part, name) for part in parts) for name in names}


def _shape(field: Field) -> tuple[object, ...]:
    return field.name, field.kind, str(field.type), field.format


class PartedSource(JoinedSource):
    """Source of an index of parts; they are opened when a row of theirs is asked for.

    The parts used last are kept; `_native.Files` closes their files where there are many.
    """

    hints = Hints(_HINT, _HINT)

    def __init__(self, location: Path | str, manifest: Parts) -> None:
        self.location = location
        self.manifest = manifest
        self.generation = manifest.generation
        self._kept = lru_cache(kept_parts(manifest))(self._checked)
        super().__init__(
            _Lazy(len(manifest.parts), self._part), [part.samples for part in manifest.parts]
        )
        self.fields = tuple(manifest.field_list)

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """Its capabilities, without a look at the parts."""
        return Capabilities(local=not self.manifest.remote)

    @property
    def classes(self) -> Sequence[str]:
        """Names of classes of all parts."""
        return self.manifest.classes

    @property
    def summary(self) -> str:
        """See `Source.summary`."""
        samples = count_samples(len(self), self.classes)
        return f"{samples} in {self.manifest.container}, {len(self.manifest.parts):,} parts"

    @property
    def image_size(self) -> tuple[int, int] | None:
        """See `Source.image_size`; opens parts up to the first that differs."""
        sizes: set[tuple[int, int] | None] = set()
        for number, part in enumerate(self.manifest.parts):
            if part.samples:
                sizes.add(self._part(number).image_size)
            if len(sizes) > 1:
                return None
        return sizes.pop() if sizes else None

    def _part(self, number: int) -> IndexedSource:
        found = self._kept(number)
        found.upright = self.upright
        return found

    def _checked(self, number: int) -> IndexedSource:
        part = self.manifest.parts[number]
        where = f"{self.location}/{part.name}"
        try:
            found = self._open(part)
        except DatasetError as error:
            what = error.what if where in error.what else f"{where}: {error.what}"
            wrong = type(error)(f"{what}, in a part of {self.location}", f"{error.hint} {_HINT}")
            raise explained(self, wrong) from None
        if problem := self.manifest.problem_of(part, found.manifest):
            raise explained(self, CorruptionError(f"{where}: this part {problem}", _HINT))
        return found

    def generation_now(self) -> str:
        """See `Source.generation_now`."""
        return generation_in(self.location)

    @abstractmethod
    def _open(self, part: Part) -> IndexedSource:
        """Open a part."""

    def row(self, number: int) -> Row:
        """Return a row's record in the index of its part; see `IndexedSource.row`."""
        part, own = self._place(number)
        assert isinstance(part, IndexedSource)
        return part.row(own)

    def end_epoch(self) -> None:
        """Do nothing: parts keep nothing of an epoch."""


class LocalParts(PartedSource):
    """Source of an index of parts on this machine; see `IndexedSource` for ``guard``."""

    location: Path

    def __init__(
        self,
        path: Path,
        manifest: Parts,
        guard: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._guard = guard
        super().__init__(path, manifest)

    def __reduce__(self) -> tuple[object, ...]:
        return LocalParts, (self.location, self.manifest)

    def _load(self, folder: Path) -> Manifest:
        found = Manifest.load(folder)
        if found.classes == self.manifest.classes:  # thousands of names, in each part
            found = replace(found, classes=self.manifest.classes)
        return found

    def _open(self, part: Part) -> IndexedSource:
        folder = self.location / part.name
        return PackedSource(folder, self._guard, self._load(folder))


def kept_parts(manifest: Parts) -> int:
    """Return how many parts are kept, with the names of their files."""
    files = max(part.files for part in manifest.parts)
    return max(_LEAST, _KEPT_FILES // max(1, files))


def open_local(
    path: Path, guard: Callable[[], AbstractContextManager[None]] = nullcontext
) -> PackedSource | LocalParts:
    """Open a dataset, or an index of parts, in a folder of this machine."""
    try:
        return PackedSource(path, guard)
    except PartsError as error:
        return LocalParts(path, Parts.parse_found(error), guard)


class _Lazy(Sequence[IndexedSource]):
    """The parts, opened when they are asked for."""

    def __init__(self, count: int, opened: Callable[[int], IndexedSource]) -> None:
        self._count, self._opened = count, opened

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, number: int) -> IndexedSource: ...

    @overload
    def __getitem__(self, number: slice) -> Sequence[IndexedSource]: ...

    def __getitem__(self, number: int | slice) -> IndexedSource | Sequence[IndexedSource]:
        if isinstance(number, slice):
            return [self._opened(one) for one in range(*number.indices(self._count))]
        if not 0 <= number < self._count:
            raise IndexError(number)  # ends an iteration
        return self._opened(number)

    def __iter__(self) -> Iterator[IndexedSource]:
        return map(self._opened, range(self._count))
