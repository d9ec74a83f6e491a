"""An index of many parts: each part is a dataset, and its manifest is rewritten alone.

Parts are indexed one after the other, each as `fastdata.converters.packing` does it. The manifest
that names them is replaced at the end, so that readers see the old index or the new one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fastdata.converters.options import PackOptions, local_folder
from fastdata.converters.packing import PackingProgress, PackResult, pack
from fastdata.converters.records import ImageSource
from fastdata.converters.workspace import remove_outputs, work_folder

from fastdata.errors import DatasetError, SourceError, UsageError, warn
from fastdata.remote.files import SourceFile
from fastdata.remote.filesystem import remove, upload
from fastdata.remote.manifests import read_manifest
from fastdata.remote.urls import is_url, join_url, redact
from fastdata.storage.encodings import DEFAULT_STRIDE
from fastdata.storage.fields import IMAGE_AND_LABEL
from fastdata.storage.files import write_whole
from fastdata.storage.manifest import (
    MANIFEST_NAME,
    PART_NAME,
    WORK_NAME,
    Manifest,
    PartEntry,
    PartsError,
    PartsManifest,
    has_manifest,
)
from fastdata.text import human_count

#: Files of a part. Its manifest, which names them, is parsed in 4 ms.
PART_FILES = 1000


def index_parts(
    files: Sequence[SourceFile],
    open_source: Callable[..., ImageSource],
    out: str | os.PathLike[str],
    *,
    append: bool,
    part_files: int,
    seek_points: bool,
    reporting: Callable[[str], AbstractContextManager[PackingProgress]],
    force: bool = False,
    local: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> PackResult:
    """Index files in parts, or add those that an index lacks as new parts."""
    if part_files < 1:
        raise UsageError(f"--part-files {part_files}: no part has so few", "Give 1 or more.")
    folder = local_folder(out, local)
    place = _Place(os.fspath(out), storage_options)
    with work_folder(folder):
        # An interrupted run leaves finished parts: as long as this is here, so is the work folder.
        mark = folder / WORK_NAME / "index.parts"
        mark.touch()
        if force:
            place.remove_all()
        parts = place.parts(append)
        missing = _missing(files, place.indexed(parts))
        resumed = 0 if parts is None else parts.samples
        if parts is not None and missing and not append:
            raise UsageError(
                f"{place.name}: an index without {human_count(len(missing), 'file')} of the source",
                "Add them with --append, or start over with --force.",
            )
        before = parts
        chunks = [missing[at : at + part_files] for at in range(0, len(missing), part_files)]
        for at, chunk in enumerate(chunks, 1):
            part = PART_NAME.format(0 if parts is None else len(parts.parts))
            manifest = place.finished(part, chunk, seek_points)
            if manifest is None:
                title = f"part {at} of {len(chunks)}"
                with reporting(title) as progress:
                    manifest = pack(
                        _opened(open_source, chunk, parts),
                        place.of(part),
                        options=PackOptions(seek_points=seek_points),
                        force=place.load(part) is not None,
                        progress=progress,
                        local=None if local is None else Path(local) / part,
                        storage_options=storage_options,
                        **options,
                    ).manifest
            parts = _added(parts, part, manifest, place.of(part))
        assert parts is not None
        if parts is not before:
            place.write(parts)
        mark.unlink()
    shown = place.name if is_url(out) else Path(out)
    return PackResult(shown, parts, resumed)


def _missing(files: Sequence[SourceFile], known: Mapping[str, int]) -> list[SourceFile]:
    for file in files:
        if file.size != known.get(file.location, file.size):
            raise SourceError(
                f"{file}: has {file.size:,} bytes, and had {known[file.location]:,} when it was "
                "indexed",
                "Put it back as it was, give it another name, or start over with --force.",
            )
    return [file for file in files if file.location not in known]


def _opened(
    open_source: Callable[..., ImageSource],
    files: Sequence[SourceFile],
    parts: PartsManifest | None,
) -> ImageSource:
    """Return the source of some files, with the fields that the index has."""
    source = open_source(files=files)
    if parts is None:
        return source
    names = [field.name for field in parts.field_list if field not in IMAGE_AND_LABEL]
    of_files = {field.name for field in source.fields}
    if not of_files > set(names):
        return source
    warn(
        f"{files[0]} and those after it have fields that the index lacks, which are left out: "
        f"{', '.join(sorted(of_files - set(names)))}"
    )
    return open_source(files=files, fields=names)


def _added(parts: PartsManifest | None, name: str, manifest: Manifest, place: str) -> PartsManifest:
    """Return an index with one more part, which must fit the others."""
    entry, remote = PartEntry.of(name, manifest), is_url(manifest.root or "")
    if parts is None:
        index = PartsManifest.of([entry], manifest)
        # Files of a field are each part's own.
        fields = tuple(replace(one, index=None, file=None, rows=0) for one in index.fields)
        source = {what: value for what, value in index.source.items() if what != "fingerprint"}
        return replace(index, fields=fields, source=source, remote=remote)
    problem = parts.difference(manifest)
    if parts.remote != remote:
        problem = "has its files on this machine, the other parts behind URLs, or the reverse"
    if problem:
        raise UsageError(
            f"{redact(place)}: this part {problem}",
            "Index it by itself with another --out, or choose with --fields what all have.",
        )
    nullable = {field.name for field in manifest.field_list if field.nullable}
    fields = tuple(
        replace(one, field=one.field._replace(nullable=True)) if one.field.name in nullable else one
        for one in parts.fields
    )
    # A number gives way to a name.
    longer = [*parts.classes, *manifest.classes[len(parts.classes) :]]
    named = dict(enumerate(manifest.classes))
    classes = [named.get(n, one) if one == str(n) else one for n, one in enumerate(longer)]
    return PartsManifest.of([*parts.parts, entry], replace(parts, fields=fields, classes=classes))


class _Place:
    """Folder or URL of an index of parts."""

    def __init__(self, out: str, storage_options: Mapping[str, Any] | None) -> None:
        self._out, self._options = out.rstrip("/") or out, storage_options
        self.name = redact(self._out)

    def of(self, part: str) -> str:
        """Return the path or URL of a part."""
        return join_url(self._out, part)

    def load(self, part: str = "") -> Manifest | None:
        """Return the manifest of the index, or of a part of it; None if there is none."""
        place = self.of(part) if part else self._out
        if not is_url(place) and not has_manifest(Path(place)):
            return None
        try:
            text = read_manifest(place, self._options)
        except DatasetError:
            if is_url(place):
                return None
            raise
        try:
            return Manifest.parse(text, redact(f"{place}/{MANIFEST_NAME}"))
        except PartsError as error:
            return error.manifest

    def parts(self, append: bool) -> PartsManifest | None:
        """Return the index, or None; a dataset of one becomes its first part."""
        manifest = self.load()
        if manifest is None or isinstance(manifest, PartsManifest):
            if manifest is not None and not is_url(self._out):
                # Left by a run that was killed after the dataset of one had become a part.
                remove_outputs(Path(self._out), {MANIFEST_NAME})
            return manifest
        if not append or is_url(self._out) or manifest.container != "archives":
            other = append or manifest.container != "archives"
            hint = "Choose another --out" if other else "Add files with --append"
            what = f"{self.name}: a dataset of one part in {manifest.container}"
            raise UsageError(what, f"{hint}, or start over with --force.")
        return _added(None, PART_NAME.format(0), self._adopt(manifest), self._out)

    def _adopt(self, manifest: Manifest) -> Manifest:
        """Make a dataset of one the first part of an index; it stays, too, until `write`."""
        folder, part = Path(self._out), Path(self.of(PART_NAME.format(0)))
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir()
        for entry in (manifest.index, *manifest.own_files):
            try:
                os.link(folder / entry.name, part / entry.name)
            except OSError:  # a file system without links
                shutil.copyfile(folder / entry.name, part / entry.name)
        root = manifest.root
        if root is not None and not is_url(root) and not os.path.isabs(root):
            manifest = replace(manifest, root=f"../{root}")
        write_whole(part / MANIFEST_NAME, manifest.to_json())
        return manifest

    def indexed(self, parts: PartsManifest | None) -> dict[str, int]:
        """Return the sizes of all files of an index, by location."""
        sizes: dict[str, int] = {}
        for part in () if parts is None else parts.parts:
            manifest = self.load(part.name)
            if manifest is None:
                raise DatasetError(
                    f"{redact(self.of(part.name))}: this part of {self.name} is missing",
                    "Put it back, or start over with --force.",
                )
            sizes |= _sizes(manifest)
        return sizes

    def finished(
        self, part: str, files: Sequence[SourceFile], seek_points: bool
    ) -> Manifest | None:
        """Return the manifest of a part that an interrupted run has made of these files."""
        manifest = self.load(part)
        stride = DEFAULT_STRIDE if seek_points else None
        if manifest is None or manifest.options.get("seek_points") != stride:
            return None
        if _sizes(manifest) != {file.location: file.size for file in files}:
            return None
        if not is_url(self._out):  # which a kill at the very end leaves
            shutil.rmtree(Path(self.of(part), WORK_NAME), ignore_errors=True)
        return manifest

    def write(self, parts: PartsManifest) -> None:
        """Write the index's manifest: from then on, this is the index."""
        remote = is_url(self._out)
        made = TemporaryDirectory(prefix="fastdata-") if remote else nullcontext(self._out)
        with made as here:
            local = Path(here, MANIFEST_NAME)
            write_whole(local, parts.to_json())
            if remote:
                upload(local, join_url(self._out, MANIFEST_NAME), storage_options=self._options)
            else:
                remove_outputs(Path(self._out), {MANIFEST_NAME})

    def remove_all(self) -> None:
        """Remove the index: its manifest first, then its parts."""
        if is_url(self._out):
            with suppress(FileNotFoundError):
                remove(join_url(self._out, MANIFEST_NAME), self._options)
            return  # parts are replaced one by one
        folder = Path(self._out)
        (folder / MANIFEST_NAME).unlink(missing_ok=True)
        remove_outputs(folder, set())
        for part in folder.glob(PART_NAME.replace("{:06d}", "[0-9]" * 6)):
            if has_manifest(part) or (part / WORK_NAME).exists():
                shutil.rmtree(part)


def has_parts(
    out: str | os.PathLike[str], storage_options: Mapping[str, Any] | None = None
) -> bool:
    """Return whether there is an index of parts."""
    return isinstance(_Place(os.fspath(out), storage_options).load(), PartsManifest)


def _sizes(manifest: Manifest) -> dict[str, int]:
    """Return the sizes of a dataset's archives, by location."""
    root = (manifest.root or "").rstrip("/")
    return {f"{root}/{one.name}": one.size for one in manifest.files if not one.crc32c}
