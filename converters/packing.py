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
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from fastdata.converters.encode import ORIGINAL, Encoding
from fastdata.converters.estimate import stored_with_index, with_fields
from fastdata.converters.finishing import (
    Kind,
    bad_samples,
    entries_elsewhere,
    entry_of,
    group_runs,
    join_parts,
    list_bad,
    write_fields,
)
from fastdata.converters.listing import Listing, Unit, write_listing
from fastdata.converters.lmdb_packing import find_committed, pack_lmdb, unfinished_file
from fastdata.converters.options import (
    check_classes,
    check_options,
    check_out,
    choose_executor,
    choose_order,
    local_folder,
    root_of,
)
from fastdata.converters.parts import Part, read_part
from fastdata.converters.ray_executor import RayExecutor
from fastdata.converters.records import Source, further_fields, listed_in
from fastdata.converters.shuffling import SHUFFLED, shuffle_listing
from fastdata.converters.tasks import PIECE_BYTES, Job, encode, index_files, pack_file, reader
from fastdata.converters.uploading import Uploading
from fastdata.converters.workspace import is_ours, outputs_size, remove_outputs, work_folder

from fastdata import __version__
from fastdata.errors import (
    CorruptionError,
    SampleError,
    SourceError,
    SpaceError,
    UsageError,
    is_no_space,
)
from fastdata.executors import Executor, InProcess
from fastdata.remote.urls import is_url
from fastdata.storage import formats
from fastdata.storage.files import (
    PARTIAL_SUFFIX,
    free_space,
    human_bytes,
    no_space,
    publish,
    sync,
    whole_file,
)
from fastdata.storage.formats import lmdb
from fastdata.storage.manifest import (
    BAD_SAMPLES_NAME,
    FORMAT_VERSION,
    MANIFEST_NAME,
    WORK_NAME,
    FileEntry,
    Manifest,
    has_manifest,
)
from fastdata.storage.records import INDEX_NAME
from fastdata.storage.source import DEFAULT_STRIDE
from fastdata.text import human_count

#: Default bytes of images and fields at which an output file ends.
SHARD_SIZE = 256 << 20
#: Bytes of values in a commit to an LMDB: the most that a kill loses. LMDB holds the pages of an
#: uncommitted transaction in memory.
_COMMIT_SIZE = 128 << 20
#: Most records in a unit of any size: limits the index rows in memory.
_UNIT_ROWS = 262_144
#: Most files that may finish ahead of a slow one, or of one whose worker was lost.
_FILES_AHEAD = 1024
#: Records to encode first, to estimate the size of the others.
_ESTIMATE_FROM = 64


class Progress(Protocol):
    """Receiver of the progress of packing; its methods do nothing unless overridden."""

    def listed(self, records: int) -> None:
        """Report the number of records listed so far."""

    def start(self, images: int, size: int, done_images: int, done_size: int) -> None:
        """Report the total work at the start, and how much of it an earlier run has done."""

    def advance(self, images: int, size: int) -> None:
        """Report the images and source bytes done in this run so far."""

    def finishing(self, what: str) -> None:
        """Report the remaining step after all images are packed."""


class Silent(Progress):
    """Progress that is ignored."""


#: Ignores progress.
SILENT = Silent()  # type: ignore[abstract]  # empty bodies, by intent


class Packed(NamedTuple):
    """Result of packing.

    Attributes:
        path: The dataset's folder, or its URL without credentials.
        manifest: Its manifest.
        resumed: Samples that an earlier run had packed.
        kinds: Stored images by encoding (`fastdata.storage.encodings.ENCODINGS`), the most
            frequent first; empty if an earlier run had packed all.
        source_bytes: Bytes of these images in the source; None if not known exactly.
        left_out: Numbers of a tree's files that were skipped because their suffix is no
            image's, by suffix.
    """

    path: Path | str
    manifest: Manifest
    resumed: int
    kinds: Mapping[str, Kind] = {}
    source_bytes: int | None = None
    left_out: Mapping[str, int] = {}


def pack(
    source: Source,
    out: str | os.PathLike[str],
    *,
    container: str = "lmdb",
    encoding: Encoding = ORIGINAL,
    plain_images: bool = False,
    shard_size: int | None = None,
    seek_points: bool = True,
    order: str | None = None,
    seed: int | None = None,
    workers: int | None = None,
    executor: str = "local",
    address: str | None = None,
    skip_bad: bool = False,
    force: bool = False,
    progress: Progress = SILENT,
    local: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Packed:
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
        encoding: Encoding of stored images.
        plain_images: Whether Parquet's images are bytes, as petastorm needs, not structs.
        shard_size: Bytes of samples at which a file ends (``parquet``, ``shards``); None for
            256 MiB.
        seek_points: Whether to index where in a JPEG a decoder may start (`fastdata.decode`).
        order: ``shuffled`` or ``source``. None for ``shuffled`` if ``container`` is ``parquet``
            or ``shards``, unless the split or its folder has a name for evaluation.
        seed: Seed of the permutation, any int; None for 0.
        workers: Worker processes, or tasks in flight on Ray; None for one a CPU, two on Ray.
        executor: ``local``, or ``ray`` for a Ray cluster (docs/ray.md).
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
    check_options(source, out, container, encoding, plain_images, shard_size)
    source = listed_in(source, container)
    order = choose_order(source, container, order, seed)
    running = choose_executor(executor, address, workers)
    check_out(source, out)
    check_classes(source, out)
    folder = local_folder(out, local)
    uploading = Uploading(os.fspath(out), storage_options, folder) if is_url(out) else None
    stride = DEFAULT_STRIDE if seek_points else None
    options: dict[str, Any] = encoding.options() | {"seek_points": stride}
    unit_size = _COMMIT_SIZE
    if container in ("parquet", "shards"):
        options["shard_size"] = unit_size = shard_size or SHARD_SIZE
    if plain_images:
        options["plain_images"] = True
    job = _make_job(source, folder, container, encoding, plain_images, stride, storage_options)
    shuffle = (seed or 0) if order == SHUFFLED else None
    about = skip_bad, force, progress, uploading
    return _Packing(source, folder, job, options, unit_size, shuffle, *about).run(running)


def _make_job(
    source: Source,
    folder: Path,
    container: str,
    encoding: Encoding,
    plain_images: bool,
    stride: int | None,
    storage_options: Mapping[str, Any] | None,
) -> Job:
    # Absolute paths: the machines of a cluster work in different folders.
    return Job(
        out=folder.absolute(),
        work=folder.absolute() / WORK_NAME,
        container=container,
        classes=tuple(source.classes),
        encoding=encoding,
        plain_images=plain_images or encoding.kind == "raw",
        root=root_of(source, container),
        stride=stride,
        storage_options=dict(storage_options or {}),
        fields=tuple(further_fields(source)),
        upright=getattr(source, "upright", False),
    )


_SPACE_HINT = (
    "Make room and run the same command again (it resumes), or choose another --out; "
    "--encoding jpeg with --max-side needs less."
)


@dataclass
class _Packing:
    """One run of packing.

    Attributes:
        source: The source.
        out: The folder of this machine for output files.
        job: The parameters that all tasks share.
        options: The options for the manifest.
        unit_size: Bytes of samples at which a unit ends.
        shuffle: The seed of the samples' order; None for the source's order.
        skip_bad: Whether to finish without the images that cannot be packed.
        force: Whether to start over.
        progress: Receives the progress.
        uploading: Uploads finished files to a bucket; None without one.
    """

    source: Source
    out: Path
    job: Job
    options: dict[str, Any]
    unit_size: int
    shuffle: int | None
    skip_bad: bool
    force: bool
    progress: Progress
    uploading: Uploading | None
    _kinds: dict[str, Kind] = field(default_factory=dict, init=False)
    _bad_bytes: int = field(default=0, init=False)

    def run(self, executor: Executor) -> Packed:
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

    def _run(self, executor: Executor) -> Packed:
        """List the source, pack the missing units, and write index and manifest."""
        self._check_plan()
        # On one machine, this process lists before it starts workers.
        on_ray = isinstance(executor, RayExecutor)
        listing_with: AbstractContextManager[Executor]
        listing_with = nullcontext(executor) if on_ray else InProcess()
        with listing_with as lister:
            listing = self._list(lister)
            self._estimate(listing)
            job = self.job
            units = list(
                listing.units(
                    self.unit_size,
                    _UNIT_ROWS,
                    self._plan,
                    chained=job.container == "lmdb",
                    executor=lister,
                    estimate=job.estimate,
                )
            )
        fingerprint = hashlib.blake2b(
            "".join(unit.fingerprint for unit in units).encode(), digest_size=16
        ).hexdigest()
        if self.uploading is not None:
            found = self.uploading.finished(self.force)
            if found is not None:
                return self._packed_before(found, fingerprint)
        elif has_manifest(self.out) and not self.force:
            return self._packed_before(Manifest.load(self.out), fingerprint)
        done = {} if self.force else self._find_done(units)
        todo = [unit for unit in units if unit.number not in done]
        total, to_pack = listing.totals.size, sum(unit.size for unit in todo)
        images_to_pack = sum(unit.stop - unit.start for unit in todo)
        self._check_space(listing, todo, done)
        self._remove_all_but(done)
        self.progress.start(len(listing), total, len(listing) - images_to_pack, total - to_pack)
        with executor:
            if job.container == "lmdb":
                committed = sum(part.samples for part in done.values())
                # Results without blobs are small: workers need not wait for a commit.
                ahead = _COMMIT_SIZE // PIECE_BYTES if job.encoding.kind == "original" else 0
                stored = sum(unit.stored for unit in units)
                size, tick = self._map_size(listing, stored), self._tick(executor)
                pack_lmdb(self.out, job, executor, todo, committed, size, ahead, tick)
            else:
                in_place = job.container in formats.IN_PLACE
                task = partial(index_files if in_place else pack_file, job)
                tick = self._tick(executor)
                # Files that wait for their upload occupy this disk.
                ahead = _FILES_AHEAD if self.uploading is None else 0
                results = executor.run(task, todo, tick, ahead)
                for unit, _ in zip(todo, results, strict=True):
                    self._send(unit, tick)
        # Remove files of lost workers. Listing the folder also refreshes NFS's cache, which may
        # hide parts that other machines have written.
        self._remove_unfinished()
        resumed = sum(part.samples for part in done.values())
        manifest = self._finish(units, fingerprint)
        exact = listing.totals.length - self._bad_bytes if listing.lengths_are_exact() else None
        return Packed(self._place, manifest, resumed, self._kinds, exact, listing.left_out)

    def _list(self, lister: Executor) -> Listing:
        """List the source in the order of packing."""
        folder, listed = self.job.listing, self.progress.listed
        if self.shuffle is None:
            return write_listing(self.source, folder, listed, lister)
        in_order = folder.with_name("source")
        listing = write_listing(self.source, in_order, listed, lister)
        shuffled = shuffle_listing(listing, folder, self.shuffle, lister)
        shutil.rmtree(in_order, ignore_errors=True)
        return shuffled

    @property
    def _order(self) -> dict[str, Any]:
        """The manifest's fields for the order of the samples."""
        if self.shuffle is not None:
            return {"order": SHUFFLED, "seed": self.shuffle}
        # A packed dataset as the source has an order already.
        found: dict[str, Any] = getattr(self.source, "packed_order", {})
        return found

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
            "shuffle": self.shuffle,
            "format_version": FORMAT_VERSION,
            "fields": [
                (field.name, field.kind, str(field.type), field.format) for field in self.job.fields
            ],
        }

    def _check_plan(self) -> None:
        """Refuse to resume packing of another plan."""
        path = self.job.work / "plan.json"
        plan = json.dumps(self._plan | {"source": dict(self.source.about)}, sort_keys=True)
        # With a manifest, packing is finished; a kill only prevented the removal of parts.
        finished = has_manifest(self.out)
        begun = not finished and any(self.job.work.glob("*.part"))
        if begun and not self.force and (not path.exists() or path.read_text("utf-8") != plan):
            raise UsageError(
                f"{self.out}: holds unfinished packing of other data, or with other options",
                "Run the command that began it, choose another --out, or start over with --force.",
            )
        with whole_file(path) as temporary:
            temporary.write_text(plan, "utf-8")

    def _tick(self, executor: Executor) -> Callable[[], None]:
        # Reports so far came from listing.
        listed, _ = executor.reported()

        def tick() -> None:
            images, size = executor.reported()
            self.progress.advance(images - listed, size)

        return tick

    def _estimate(self, listing: Listing) -> None:
        """Estimate the bytes of samples in the container from some of the records."""
        job, growth = self.job, 1.0
        sample = listing.sample(_ESTIMATE_FROM)
        if job.encoding.kind != "original":
            before = after = 0
            images = [record._replace(fields=()) for record in sample]
            read = reader(images, job.storage_options)
            for record in images:
                try:
                    after += len(encode(record, job.encoding, read)[0])
                    before += record.length
                except SampleError:
                    continue
            growth = after / before if before else 1.0
        estimate = with_fields(growth, job.container, job.fields, sample)
        self.job = replace(job, estimate=estimate)

    def _map_size(self, listing: Listing, stored: int) -> int:
        """Return LMDB's map size, a function of the source, because LMDB stores it in the file."""
        columns = any(field.type is not None for field in self.job.fields)
        same = self.job.encoding.kind == "original" and not columns
        return lmdb.map_size(stored, exact=same and listing.lengths_are_exact())

    def _packed_before(self, manifest: Manifest, fingerprint: str) -> Packed:
        if manifest.source.get("fingerprint") != fingerprint:
            samples = human_count(manifest.samples, "sample")
            raise UsageError(
                f"{self._place}: holds a dataset of {samples} already, packed from other data or "
                "with other options",
                "Choose another --out, or replace it with --force.",
            )
        return Packed(self._place, manifest, manifest.samples)

    def _check_space(self, listing: Listing, todo: Sequence[Unit], done: dict[int, Part]) -> None:
        job, images = self.job, sum(unit.stop - unit.start for unit in todo)
        stored = sum(unit.stored for unit in todo)
        if self.uploading is not None and job.container in ("parquet", "shards"):
            # Files are removed once they are uploaded.
            stored = min(stored, self.uploading.files_held() * self.unit_size)
        values = listing.totals.values
        # Parts hold columns until the files of all columns are complete.
        values += values * images // len(listing)
        needed = values + stored_with_index(job.container, job.fields, images, stored)
        free = free_space(self.out) + outputs_size(self.out, self._outputs(done))
        if needed > free:
            raise SpaceError(
                f"{self.out}: about {human_bytes(needed)} are needed, {human_bytes(free)} free",
                _SPACE_HINT,
            )

    def _find_done(self, units: Sequence[Unit]) -> dict[int, Part]:
        """Return the units that an earlier run has finished, by number."""
        if self.job.container == "lmdb":
            return find_committed(self.out, self.job, units, self._part)
        parts = ((unit.number, self._part(unit)) for unit in units)
        found = {number: part for number, part in parts if part is not None}
        files = [part.file for part in found.values() if part.file is not None]
        sent = set() if self.uploading is None else self.uploading.arrived(files)
        return {
            number: part
            for number, part in found.items()
            if part.file is None or part.file.name in sent or self._is_whole(part.file)
        }

    def _is_whole(self, file: FileEntry) -> bool:
        try:
            return (self.out / file.name).stat().st_size == file.size
        except FileNotFoundError:
            return False

    def _outputs(self, done: dict[int, Part]) -> set[str]:
        """Return the names of the files of finished units."""
        if self.job.container == "lmdb":
            return {unfinished_file(self.out).name} if done else set()
        return {part.file.name for part in done.values() if part.file is not None}

    def _remove_all_but(self, done: dict[int, Part]) -> None:
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
        remove_outputs(self.out, self._outputs(done))

    def _remove_unfinished(self) -> None:
        os.listdir(self.job.work)
        for path in self.out.glob("*" + PARTIAL_SUFFIX):
            if is_ours(path.name) and path != unfinished_file(self.out):
                path.unlink(missing_ok=True)

    def _part(self, unit: Unit, suffix: str = "") -> Part | None:
        """Return a unit's part if it is current and its bad images need no second try."""
        path = self.job.part(unit)
        part = read_part(path.with_name(path.name + suffix))
        if part is None or part.fingerprint != unit.fingerprint:
            return None
        if not self.skip_bad and any(bad.unread for bad in part.bad):
            return None
        return part

    def _turned(self, parts: Sequence[Part]) -> dict[str, Any]:
        """Return the manifest's entry for annotations of images that EXIF may turn."""
        stored, turned = ([key for part in parts for key in part.turned[at]] for at in (0, 1))
        if not stored + turned or not any(field.format for field in self.job.fields):
            return {}
        if stored and turned:
            raise SourceError(
                f"the annotations of {turned[0]} are for the image as its EXIF orientation turns "
                f"it, and those of {stored[0]} are for the stored image",
                "Correct the widths and heights of annotations, or turn the images.",
            )
        return {"exif_transpose": bool(turned)}

    def _finish(self, units: Sequence[Unit], fingerprint: str) -> Manifest:
        """Join the parts to an index and write the manifest."""
        parts = [read_part(self.job.part(unit)) for unit in units]
        found = [part for part in parts if part is not None]
        if len(found) != len(units):
            raise CorruptionError(
                f"{self.job.work}: a part of the index is missing", "Run the same command again."
            )
        bad = [entry for part in found for entry in part.bad]
        self._bad_bytes = sum(entry.size for entry in bad)
        samples = sum(part.samples for part in found)
        list_bad(self.out, bad)
        if (bad and not self.skip_bad) or not samples:
            raise bad_samples(self.out, bad, samples, self.job.container)
        about = {**self.source.about, **self._turned(found), "fingerprint": fingerprint}
        files = [part.file for part in found if part.file is not None]
        if self.job.container == "lmdb":
            self.progress.finishing("checksum")
            publish(unfinished_file(self.out), self.out / lmdb.DATA_NAME)
            files = [entry_of(self.out / lmdb.DATA_NAME)]
            if self.uploading is not None:
                self.uploading.add(files[0], keep=True)
        elif self.job.container in formats.ELSEWHERE:
            files = entries_elsewhere(self.source, self.job)
        self.progress.finishing("index")
        # Every file is written with it, so it is a digest of the parts, not of the files.
        digest = hashlib.blake2b(json.dumps(self._plan, sort_keys=True).encode(), digest_size=8)
        digest.update("".join(part.digest for part in found).encode())
        generation = digest.hexdigest()
        self._kinds = join_parts(self.out, self.job, units, samples, files, generation)
        fields = write_fields(self.out, self.job, units, found, files, generation)
        manifest = Manifest(
            container=self.job.container,
            samples=samples,
            skipped=len(bad),
            classes=list(self.job.classes),
            blob_bytes=sum(part.blob_bytes for part in found),
            index=entry_of(self.out / INDEX_NAME),
            files=files,
            root=self.job.root,
            **self._order,
            options=self.options,
            source=about,
            tool=__version__,
            generation=generation,
            fields=fields,
            groups=group_runs(self.source, self.job),
        )
        if self.uploading is not None:
            for entry in files:
                if entry.name.startswith("_") and entry.crc32c:
                    self.uploading.add(entry, keep=True)
        others = [BAD_SAMPLES_NAME] if bad else []
        for_others = formats.hugging_face(self.job.container, self.job.fields)
        if for_others is not None:
            others.append(formats.HUGGING_FACE_NAME)
            with whole_file(self.out / formats.HUGGING_FACE_NAME) as temporary:
                temporary.write_text(for_others, "utf-8")
        if self.uploading is not None:
            self.progress.finishing("upload")
            self.uploading.finish(manifest, [entry_of(self.out / name) for name in others])
            return manifest
        with whole_file(self.out / MANIFEST_NAME) as temporary:
            temporary.write_text(manifest.to_json(), "utf-8")
        return manifest
