"""Packing: any source into any container, in parallel, resumable, deterministic.

Packing lists the source and cuts the listing into units. Every unit becomes an output file (for
LMDB: a commit to the single file) and then a part, its index rows. Finally the parts are joined
to the index, and the manifest is written last. An interrupted run leaves parts and no manifest.
The next run lists the source again, keeps the units whose part has the right fingerprint, and
packs the others.

A dataset for a bucket is packed in a local folder, and each finished file is uploaded
(`fastdata.converters.uploading`).
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fastdata.converters.listing import (
    RecordListing,
    Unit,
    with_fields,
    write_listing,
)
from fastdata.converters.options import (
    PackOptions,
    check_classes,
    check_options,
    check_out,
    choose_executor,
    choose_seed,
    local_folder,
    root_of,
)
from fastdata.converters.outputs import COMMIT_SIZE, EncodingTotals, OneFile, Outputs, entry_of
from fastdata.converters.parts import Bad, UnitPart, read_part
from fastdata.converters.ray_executor import RayExecutor
from fastdata.converters.records import ImageSource
from fastdata.converters.shuffling import shuffle_listing
from fastdata.converters.tasks import PackJob, encode, reader
from fastdata.converters.uploading import Uploading
from fastdata.converters.workspace import is_ours, remove_outputs, work_folder

from fastdata.errors import (
    BadSamplesError,
    CorruptionError,
    FastdataError,
    SampleError,
    SourceError,
    UsageError,
    is_no_space,
)
from fastdata.executors import Executor, InProcess
from fastdata.remote.urls import is_url
from fastdata.storage import formats
from fastdata.storage.cache import require_room
from fastdata.storage.files import (
    PARTIAL_SUFFIX,
    no_space,
    sync,
    whole_file,
    write_whole,
)
from fastdata.storage.manifest import (
    BAD_SAMPLES_NAME,
    FORMAT_VERSION,
    MANIFEST_NAME,
    WORK_NAME,
    Manifest,
    has_manifest,
)
from fastdata.storage.records import INDEX_NAME
from fastdata.storage.row_groups import runs_of
from fastdata.text import human_count
from fastdata.version import __version__

#: Most records in a unit of any size: limits the index rows in memory.
_UNIT_ROWS = 262_144
#: Records to encode first, to estimate the size of the others.
_ESTIMATE_FROM = 64


class PackingProgress(Protocol):
    """Receiver of the progress of packing; its methods do nothing unless overridden."""

    def listed(self, records: int) -> None:
        """Report the number of records listed so far."""

    def start(self, images: int, size: int, done_images: int, done_size: int) -> None:
        """Report the total work at the start, and how much of it an earlier run has done."""

    def advance(self, images: int, size: int) -> None:
        """Report the images and source bytes done in this run so far."""

    def finishing(self, what: str) -> None:
        """Report the remaining step after all images are packed."""


class _Silent(PackingProgress):
    """Progress that is ignored."""


SILENT = _Silent()  # type: ignore[abstract]  # empty bodies, by intent


class PackResult(NamedTuple):
    """Result of packing: the dataset's folder or URL without credentials, and its manifest.

    ``resumed`` are samples that an earlier run had packed. ``kinds`` are stored images by encoding,
    the most frequent first; empty if an earlier run had packed all. ``left_out`` counts a tree's
    skipped files by suffix.
    """

    path: Path | str
    manifest: Manifest
    resumed: int
    kinds: Mapping[str, EncodingTotals] = {}
    left_out: Mapping[str, int] = {}


#: Each image as it is, with seek points.
_DEFAULT = PackOptions()


def pack(
    source: ImageSource,
    out: str | os.PathLike[str],
    *,
    container: str = "lmdb",
    options: PackOptions = _DEFAULT,
    workers: int | None = None,
    executor: str = "local",
    address: str | None = None,
    skip_bad: bool = False,
    force: bool = False,
    progress: PackingProgress = SILENT,
    local: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> PackResult:
    """Pack a source into a dataset.

    The result depends on the source and the options alone: not on the number of workers,
    nor on interruptions. An existing dataset, packed from the same source with the same
    options, stays unchanged.

    Worker processes are spawned, so the calling script needs the usual
    ``if __name__ == "__main__":``.

    Args:
        source: The source to pack.
        out: The dataset's folder, created if missing; or a URL for fsspec, to which each
            finished file is uploaded, the manifest last.
        container: ``lmdb``, ``parquet`` or ``shards``; ``folder``, ``archives`` or ``tables`` to
            index images where they are: files, extents of archives, or rows that a library decodes.
        options: Encoding, order, and sizes of files.
        workers: Worker processes, or tasks in flight on Ray; None for one a CPU, two on Ray.
        executor: ``local``, or ``ray`` for a Ray cluster (docs/cluster.md).
        address: Address of the Ray cluster; None for ``ray.init()``'s default.
        skip_bad: Whether to finish without the images that cannot be packed.
        force: Whether to start over; removes an older dataset once the source is listed.
        progress: Receives the progress.
        local: For a URL as ``out``: local folder for files until they are uploaded; None for
            one below $FASTDATA_CACHE_DIR.
        storage_options: Options of the drivers of ``out`` and of the source, for URLs.

    Raises:
        RemoteError: The bucket cannot be reached, or refuses a file. Packed files stay in
            ``local``, and the same call resumes.
        UsageError: Options contradict each other, or ``out`` has other contents.
        SourceError: The source cannot be listed.
        BadSamplesError: Some images are bad; all others are packed, the bad ones listed in
            ``_bad-samples.jsonl``, and there is no manifest.
        SpaceError: The disk is too full.
        BusyError: Another process packs to ``out``.
    """
    check_options(source, container, options)
    if (tables := source.tables_in(container)) is not None:
        source = tables.source
    seed = choose_seed(source, container, options)
    running = choose_executor(executor, address, workers)
    check_out(source, out)
    check_classes(source, out)
    folder = local_folder(out, local)
    uploading = Uploading(os.fspath(out), storage_options, folder) if is_url(out) else None
    # Absolute paths: the machines of a cluster work in different folders.
    job = PackJob(
        out=folder.absolute(),
        work=folder.absolute() / WORK_NAME,
        container=container,
        classes=tuple(source.classes),
        options=options,
        root=root_of(source, container),
        storage_options=dict(storage_options or {}),
        fields=tuple(source.fields),
        upright=source.upright,
    )
    packing = _Packing(source, folder, job, seed, skip_bad, force, progress, uploading)
    return packing.run(running)


_SPACE_HINT = (
    "Make room and run the same command again (it resumes), or choose another --out; "
    "--encoding jpeg with --max-side needs less."
)


#: Bad samples whose keys an error names.
_MOST_NAMED = 10


@dataclass
class _Packing:
    """One run of packing; ``out`` is the folder of this machine for output files."""

    source: ImageSource
    out: Path
    job: PackJob
    seed: int | None
    skip_bad: bool
    force: bool
    progress: PackingProgress
    uploading: Uploading | None

    @property
    def unit_size(self) -> int:
        """Bytes at which a unit ends."""
        return self.job.options.file_size(self.job.container) or COMMIT_SIZE

    @property
    def options(self) -> dict[str, Any]:
        """The manifest's options."""
        return self.job.options.in_manifest(self.job.container)

    def run(self, executor: Executor) -> PackResult:
        """Pack, while the work folder is locked."""
        try:
            with work_folder(self.out), self.uploading or nullcontext():
                packed = self._run(executor)
                if self.uploading is not None:
                    self.uploading.clean_up()
                return packed
        except OSError as error:
            if is_no_space(error):
                raise no_space(self.out, error, _SPACE_HINT) from error
            raise

    def _run(self, executor: Executor) -> PackResult:
        plan = self._check_plan()
        try:
            return self._pack(executor)
        except (FastdataError, OSError):
            # A command with other options, which avoids the error, must not be refused.
            with suppress(OSError):
                plan.unlink()
            raise

    def _pack(self, executor: Executor) -> PackResult:
        # On one machine, this process lists before it starts workers.
        on_ray = isinstance(executor, RayExecutor)
        listing_with: AbstractContextManager[Executor]
        listing_with = nullcontext(executor) if on_ray else InProcess()
        with listing_with as lister:
            listing = self._list(lister)
            self._estimate(listing)
            limits = self.unit_size, _UNIT_ROWS, self._plan
            units = list(listing.units(*limits, self.job.estimate))
            kind = OneFile if self.job.container == "lmdb" else Outputs
            self.outputs = kind(self.job, self.source, listing, units)
        fingerprint = hashlib.blake2b(
            "".join(unit.fingerprint for unit in units).encode(), digest_size=16
        ).hexdigest()
        if self.uploading is not None:
            finished = self.uploading.finished(self.force)
            if finished is not None:
                return self._packed_before(finished, fingerprint)
        elif has_manifest(self.out) and not self.force:
            return self._packed_before(Manifest.load(self.out), fingerprint)
        arrived: Any = set if self.uploading is None else self.uploading.arrived
        done = {} if self.force else self.outputs.done(self._part, arrived)
        todo = [unit for unit in units if unit.number not in done]
        total, to_pack = listing.totals.size, sum(unit.size for unit in todo)
        images_to_pack = sum(unit.stop - unit.start for unit in todo)
        self._remove_all_but(done)
        # Files that are uploaded do not stay.
        if todo and self.job.root is None and self.uploading is None and self.outputs.is_exact:
            require_room(self.out, sum(unit.stored for unit in todo), _SPACE_HINT)
        self.progress.start(len(listing), total, len(listing) - images_to_pack, total - to_pack)
        if len(todo) < 2 and not on_ray:
            executor = InProcess()  # a process would start while this one waits for it
        with executor:
            tick, uploads = self._tick(executor), self.uploading is not None
            for unit in self.outputs.pack(executor, done, tick, uploads=uploads):
                self._send(unit, tick)
        # Remove files of lost workers. Listing the folder also refreshes NFS's cache, which may
        # hide parts that other machines have written.
        os.listdir(self.job.work)
        for path in self.out.glob("*" + PARTIAL_SUFFIX):
            if is_ours(path.name) and path.name != self.outputs.kept:
                path.unlink(missing_ok=True)
        resumed = sum(part.samples for part in done.values())
        manifest, kinds = self._finish(fingerprint)
        return PackResult(self._place, manifest, resumed, kinds, listing.left_out)

    def _list(self, lister: Executor) -> RecordListing:
        folder, listed = self.job.listing, self.progress.listed
        if self.seed is None:
            return write_listing(self.source, folder, listed, lister, self.skip_bad)
        in_order = folder.with_name("source")
        listing = write_listing(self.source, in_order, listed, lister, self.skip_bad)
        shuffled = shuffle_listing(listing, folder, self.seed)
        shutil.rmtree(in_order, ignore_errors=True)
        return shuffled

    @property
    def _place(self) -> Path | str:
        return self.out if self.uploading is None else self.uploading.name

    def _send(self, unit: Unit, tick: Callable[[], None]) -> None:
        """Upload the output file of a finished unit, if the dataset goes to a bucket."""
        if self.uploading is None:
            return
        part = read_part(self.job.part(unit))
        if part is None:  # written by another machine: refresh NFS's cache
            os.listdir(self.job.work)
            part = read_part(self.job.part(unit))
        if part is not None and part.file is not None:
            self.uploading.add(part.file, tick)

    @property
    def _plan(self) -> dict[str, Any]:
        """Everything that the output depends on, except the images; JSON values."""
        return {
            "container": self.job.container,
            "classes": list(self.job.classes),
            "options": self.options,
            "shuffle": self.seed,
            "format_version": FORMAT_VERSION,
            "fields": [
                (field.name, field.kind, str(field.type), field.format) for field in self.job.fields
            ],
        }

    def _check_plan(self) -> Path:
        """Write the plan; raise UsageError if an interrupted run has begun another one."""
        path = self.job.work / "plan.json"
        plan = json.dumps(self._plan | {"source": dict(self.source.origin)}, sort_keys=True)
        # With a manifest, packing is finished; a kill only prevented the removal of parts.
        finished = has_manifest(self.out)
        begun = not finished and any(self.job.work.glob("*.part"))
        if begun and not self.force and path.exists() and path.read_text("utf-8") != plan:
            raise UsageError(
                f"{self.out}: holds unfinished packing of other data, or with other options",
                "Run the command that began it, choose another --out, or start over with --force.",
            )
        write_whole(path, plan)
        return path

    def _tick(self, executor: Executor) -> Callable[[], None]:
        # Reports so far came from listing.
        listed, _ = executor.reported

        def tick() -> None:
            images, size = executor.reported
            self.progress.advance(images - listed, size)

        return tick

    def _estimate(self, listing: RecordListing) -> None:
        job, growth = self.job, 1.0
        sample = listing.sample(_ESTIMATE_FROM)
        if job.options.encoding.kind != "original":
            before = after = 0
            images = [record._replace(fields=()) for record in sample]
            read = reader(images, job.storage_options)
            for record in images:
                try:
                    after += len(encode(record, job.options.encoding, read)[0])
                    before += record.length
                except SampleError:
                    continue
            growth = after / before if before else 1.0
        estimate = with_fields(growth, job.container, job.fields, sample)
        self.job = replace(job, estimate=estimate)

    def _packed_before(self, manifest: Manifest, fingerprint: str) -> PackResult:
        if manifest.source.get("fingerprint") != fingerprint:
            samples = human_count(manifest.samples, "sample")
            raise UsageError(
                f"{self._place}: holds a dataset of {samples} already, packed from other data or "
                "with other options",
                "Choose another --out, or replace it with --force.",
            )
        return PackResult(self._place, manifest, manifest.samples)

    def _remove_all_but(self, done: dict[int, UnitPart]) -> None:
        """Remove the files of earlier runs, except finished units."""
        # The manifest goes first: from now on this is no dataset.
        if self.uploading is not None:
            self.uploading.begin(
                [part.file for part in done.values() if part.file is not None], self.force
            )
        (self.out / MANIFEST_NAME).unlink(missing_ok=True)
        sync(self.out)
        keep = {f"{number:06d}.part" for number in done}
        for path in self.job.work.glob("*.part*"):
            if path.name not in keep:
                path.unlink()
        remove_outputs(self.out, self.outputs.names(done))

    def _part(self, unit: Unit) -> UnitPart | None:
        """Return a unit's part if it is current and its bad images need no second try."""
        part = read_part(self.job.part(unit))
        if part is None or part.fingerprint != unit.fingerprint:
            return None
        if not self.skip_bad and any(bad.unread for bad in part.bad):
            return None
        return part

    def _turned(self, parts: Sequence[UnitPart]) -> dict[str, Any]:
        """Return the manifest's entry for annotations of images that EXIF may turn."""
        stored, turned = ([key for part in parts for key in part.turned[at]] for at in (0, 1))
        if not stored + turned or not any(field.format for field in self.job.fields):
            return {}
        if stored and turned:
            raise SourceError(
                f"the annotations of {turned[0]} are for the image as its EXIF orientation turns "
                f"it, but annotations of {stored[0]} are for the stored image",
                "Correct the widths and heights of annotations, or turn the images.",
            )
        return {"exif_transpose": bool(turned)}

    def _finish(self, fingerprint: str) -> tuple[Manifest, dict[str, EncodingTotals]]:
        """Join the parts to an index and write the manifest; return it and the kinds of images."""
        job = self.job
        parts = [read_part(job.part(unit)) for unit in self.outputs.units]
        all_parts = [part for part in parts if part is not None]
        if len(all_parts) != len(parts):
            raise CorruptionError(
                f"{job.work}: a part of the index is missing", "Run the same command again."
            )
        bad = [entry for part in all_parts for entry in part.bad]
        samples = sum(part.samples for part in all_parts)
        self._list_bad(bad)
        if (bad and not self.skip_bad) or not samples:
            raise self._bad_samples(bad, samples)
        origin = {**self.source.origin, **self._turned(all_parts), "fingerprint": fingerprint}
        self.progress.finishing("checksum" if self.outputs.kept else "index")
        files = self.outputs.finished(all_parts)
        self.progress.finishing("index")
        if self.uploading is not None and self.outputs.kept:
            self.uploading.add(files[0], keep=True)
        # Every file is written with it, so it is a digest of the parts, not of the files.
        digest = hashlib.blake2b(json.dumps(self._plan, sort_keys=True).encode(), digest_size=8)
        digest.update("".join(part.digest for part in all_parts).encode())
        generation = digest.hexdigest()
        kinds, fields = self.outputs.write(all_parts, files, generation)
        # A packed dataset as the source has an order already.
        order = dict(self.source.packed_order)
        if self.seed is not None:
            order = {"order": "shuffled", "seed": self.seed}
        tables = self.source.tables_in(job.container)
        groups = tables and [runs_of(rows) for rows in tables.groups] * len(tables.columns)
        manifest = Manifest(
            container=job.container,
            samples=samples,
            skipped=len(bad),
            classes=list(job.classes),
            blob_bytes=sum(part.blob_bytes for part in all_parts),
            index=entry_of(self.out / INDEX_NAME),
            files=files,
            root=job.root,
            **order,
            options=self.options,
            source=origin,
            tool=__version__,
            generation=generation,
            fields=fields,
            groups=groups,
        )
        extra_files = [BAD_SAMPLES_NAME] if bad else []
        for_others = formats.hugging_face(job.container, job.fields)
        if for_others is not None:
            extra_files.append(formats.HUGGING_FACE_NAME)
            write_whole(self.out / formats.HUGGING_FACE_NAME, for_others)
        if self.uploading is not None:
            for entry in files:
                if entry.name.startswith("_") and entry.crc32c:
                    self.uploading.add(entry, keep=True)
            self.progress.finishing("upload")
            self.uploading.finish(manifest, [entry_of(self.out / name) for name in extra_files])
        else:
            write_whole(self.out / MANIFEST_NAME, manifest.to_json())
        return manifest, kinds

    def _list_bad(self, bad: Sequence[Bad]) -> None:
        path = self.out / BAD_SAMPLES_NAME
        if not bad:
            path.unlink(missing_ok=True)
            return
        with whole_file(path) as temporary, temporary.open("w", encoding="utf-8") as file:
            for entry in bad:
                line = {"key": entry.key, "path": entry.path, "reason": entry.reason}
                file.write(json.dumps(line, ensure_ascii=False) + "\n")

    def _bad_samples(self, bad: Sequence[Bad], samples: int) -> BadSamplesError:
        images = human_count(samples + len(bad), "image")
        hint = self.source.hint
        if samples:
            hint = (
                "The others are packed. Finish without the bad ones with --skip-bad, or fix them "
                "and run the same command again."
            )
        others = ", ".join(entry.key for entry in bad[1:_MOST_NAMED])
        then = f"then {others}{', …' * (len(bad) > _MOST_NAMED)}; " if others else ""
        return BadSamplesError(
            f"{self.out}: {len(bad):,} of {images} cannot be packed; the first, {bad[0].key}: "
            f"{bad[0].path}: {bad[0].reason}; {then}all are listed in "
            f"{self.out / BAD_SAMPLES_NAME}",
            hint,
        )
