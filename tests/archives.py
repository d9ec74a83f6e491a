"""Archives as others write them: by tarfile, lmdb and pyarrow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import lmdb
import pyarrow as pa
import pyarrow.parquet as pq
from containers import edit_manifest
from fastdata.converters import index
from sources import tar_bytes

#: Kinds of archives that are indexed where they are.
KINDS = ("webdataset", "lmdb", "arrow", "parquet")
#: Fields beside the image of all kinds but LMDB.
FIELDS = ("label", "png", "txt")


class Made(NamedTuple):
    """A sample: an image and, but in LMDBs, a class, a text and perhaps another image."""

    image: bytes
    label: int
    txt: str
    png: bytes | None


def write(kind: str, folder: Path, samples: Sequence[Made]) -> Path:
    folder.mkdir(parents=True)
    half = len(samples) // 2
    if kind == "lmdb":
        with (
            lmdb.open(str(folder), map_size=1 << 26, lock=False) as environment,
            environment.begin(write=True) as transaction,
        ):
            for number, sample in enumerate(samples):
                transaction.put(b"%04d" % number, sample.image)
        return folder
    for number, part in enumerate((samples[:half], samples[half:])):
        path = folder / f"part-{number}"
        if kind == "webdataset":
            path.with_suffix(".tar").write_bytes(tar_bytes(_members(number * half, part)))
        elif kind == "parquet":
            options: dict[str, Any] = {"compression": "none", "use_dictionary": ["label"]}
            pq.write_table(_table(part), path.with_suffix(".parquet"), 5, **options)
        else:
            new = pa.ipc.new_file if number else pa.ipc.new_stream
            with new(str(path.with_suffix(".arrow")), _table(()).schema) as stream:
                stream.write_table(_table(part), 5)
    return folder


def place(kind: str, folder: Path, samples: Sequence[Made]) -> Path:
    written = write(kind, folder.with_name(f"{folder.name} archives"), samples)
    index(written, folder, workers=1)
    written.rename(folder / "archives")
    edit_manifest(folder, lambda fields: fields.update(root="archives"))
    return folder


def _members(first: int, samples: Sequence[Made]) -> list[tuple[str, bytes]]:
    found = []
    for number, sample in enumerate(samples, first):
        members = {"jpg": sample.image, "cls": b"%d" % sample.label, "txt": sample.txt.encode()}
        members |= {} if sample.png is None else {"png": sample.png}
        found += [(f"{number:04}.{suffix}", data) for suffix, data in members.items()]
    return found


def _table(samples: Sequence[Made]) -> pa.Table:
    types = {"image": pa.binary(), "label": pa.int64(), "txt": pa.string(), "png": pa.binary()}
    return pa.Table.from_pylist([one._asdict() for one in samples], pa.schema(types))
