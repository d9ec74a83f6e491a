"""Source of an index of many parts: each is a dataset by itself, and all are read as one.

The normative layout is docs/formats/parts.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from fastdata.errors import CorruptionError, DatasetError
from fastdata.storage.joined import JoinedSource
from fastdata.storage.manifest import Manifest, PartEntry, PartsError, PartsManifest, generation_in
from fastdata.storage.packed import IndexedSource, PackedSource, explained
from fastdata.storage.records import Row
from fastdata.storage.source import Capabilities, Hints, count_samples

#: Most files whose names are kept in memory: 200 MB (docs/scale.md).
_KEPT_FILES = 500_000
#: Fewest parts that are kept.
_LEAST = 8
_HINT = "Put the part back as it was; or index all of it again: fastdata index … --force."


class PartsSource(JoinedSource):
    """Source of an index of parts; a part is opened when one of its rows is asked for.

    The parts used last are kept; `_native.Files` closes their files where there are many.
    """

    hints = Hints(_HINT, _HINT)

    def __init__(self, location: Path | str, manifest: PartsManifest) -> None:
        self.location = location
        self.manifest = manifest
        self.generation = manifest.generation
        files = max(part.files for part in manifest.parts)
        self._opened = lru_cache(max(_LEAST, _KEPT_FILES // max(1, files)))(self._checked)
        super().__init__((), [part.samples for part in manifest.parts])
        self.fields = tuple(manifest.field_list)

    def __reduce__(self) -> tuple[object, ...]:
        return PartsSource, (self.location, self.manifest)

    @property
    def capabilities(self) -> Capabilities:  # type: ignore[override]
        """Its capabilities; opens no part."""
        return Capabilities(local=not self.manifest.remote)

    @property
    def classes(self) -> Sequence[str]:
        """Names of classes of all parts."""
        return self.manifest.classes

    @property
    def summary(self) -> str:
        samples = count_samples(len(self), self.classes)
        return f"{samples} in {self.manifest.container}, {len(self.manifest.parts):,} parts"

    @property
    def image_size(self) -> tuple[int, int] | None:
        """See `Source.image_size`; opens parts up to the first that differs."""
        sizes: set[tuple[int, int] | None] = set()
        for number, part in enumerate(self.manifest.parts):
            if part.samples:
                sizes.add(self.part(number).image_size)
            if len(sizes) > 1:
                return None
        return sizes.pop() if sizes else None

    def part(self, number: int) -> IndexedSource:
        part = self._opened(number)
        part.upright, part.note = self.upright, self.note
        return part

    def _checked(self, number: int) -> IndexedSource:
        entry = self.manifest.parts[number]
        where = f"{self.location}/{entry.name}"
        try:
            part = self._open(entry)
        except DatasetError as error:
            what = error.what if where in error.what else f"{where}: {error.what}"
            wrong = type(error)(f"{what}, in a part of {self.location}", f"{error.hint} {_HINT}")
            raise explained(self, wrong) from None
        if problem := self.manifest.problem_of(entry, part.manifest):
            raise explained(self, CorruptionError(f"{where}: this part {problem}", _HINT))
        return part

    def _open(self, entry: PartEntry) -> IndexedSource:
        """Open a part."""
        folder = Path(self.location, entry.name)
        manifest = Manifest.load(folder)
        if manifest.classes == self.manifest.classes:  # thousands of names, in each part
            manifest = replace(manifest, classes=self.manifest.classes)
        return PackedSource(folder, manifest)

    def generation_now(self) -> str:
        return generation_in(self.location)

    def row(self, number: int) -> Row:
        """Return a row's record in the index of its part; see `IndexedSource.row`."""
        part, own = self._place(number)
        assert isinstance(part, IndexedSource)
        return part.row(own)

    def end_epoch(self) -> None:
        """Do nothing: parts keep nothing of an epoch."""


def open_local(path: Path) -> PackedSource | PartsSource:
    """Open a dataset, or an index of parts, in a folder of this machine."""
    try:
        return PackedSource(path)
    except PartsError as error:
        return PartsSource(path, error.manifest)
