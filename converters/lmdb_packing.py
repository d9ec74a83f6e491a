"""Packing to LMDB: one process commits unit after unit to the single file."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from itertools import groupby
from pathlib import Path

from fastdata.converters.listing import Unit
from fastdata.converters.parts import Part, PartBuilder
from fastdata.converters.tasks import Job, Piece, pieces, prepare, with_blobs

from fastdata.executors import Executor, InProcess
from fastdata.storage.files import PARTIAL_SUFFIX, publish, sync
from fastdata.storage.formats import lmdb


def unfinished_file(out: Path) -> Path:
    """Return the path of the LMDB until all units are committed."""
    return out / (lmdb.DATA_NAME + PARTIAL_SUFFIX)


def find_committed(
    out: Path, job: Job, units: Sequence[Unit], current: Callable[[Unit, str], Part | None]
) -> dict[int, Part]:
    """Return the units committed to the LMDB, by number; none if it holds anything else.

    ``current`` returns a unit's part, with a suffix of its path; None if it is not current.
    """
    data = unfinished_file(out)
    if data.with_name(lmdb.DATA_NAME).exists():
        # A kill came between renaming the file and writing the manifest: undo the renaming.
        os.replace(data.with_name(lmdb.DATA_NAME), data)
    committed = lmdb.entries(data)
    done: dict[int, Part] = {}
    samples = 0
    for unit in units:
        part = current(unit, "")
        if part is None:
            # A kill came after the commit, before the part was renamed.
            part = current(unit, PARTIAL_SUFFIX)
            if part is None or samples + part.samples != committed:
                break
            path = job.part(unit)
            os.replace(path.with_name(path.name + PARTIAL_SUFFIX), path)
        done[unit.number] = part
        samples += part.samples
    # Commits cannot be undone without changing the file's bytes.
    return done if samples == committed else {}


def pack_lmdb(
    out: Path,
    job: Job,
    executor: Executor,
    todo: Sequence[Unit],
    committed: int,
    map_size: int,
    ahead: int,
    tick: Callable[[], None],
) -> None:
    """Write units to the single file, in order; workers only prepare them.

    ``committed`` samples are in the file already. At most ``ahead`` prepared pieces wait for a
    commit.
    """

    def work() -> Iterator[Piece]:
        return (piece for unit in todo for piece in pieces(job, unit))

    task = partial(prepare, job, isinstance(executor, InProcess))
    prepared = zip(work(), executor.run(task, work(), tick, ahead), strict=True)
    for unit, group in groupby(with_blobs(job, prepared), key=lambda entry: entry[0]):
        path, part = job.part(unit), PartBuilder(job.fields)
        opened = lmdb.LmdbWriter(unfinished_file(out), committed, map_size, job.fields)
        with closing(opened) as writer:
            for _, piece, whole in group:
                for sample in whole:
                    writer.add(sample)
                    part.add(sample)
                for bad in piece.bad:
                    part.add_bad(bad)
            # Sync the part before the commit, and rename it afterwards. So a kill at any
            # point leaves no doubt about what is committed.
            temporary = path.with_name(path.name + PARTIAL_SUFFIX)
            part.write(temporary, unit.fingerprint, file_number=0)
            sync(temporary)
            writer.finish()
        publish(temporary, path)
        committed += part.samples
