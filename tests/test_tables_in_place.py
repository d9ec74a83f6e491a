"""Compressed and encoded columns of others in place: decoded a row group at a time."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastdata.converters import index
from hub_datasets import cell, jpeg, mask
from sources import require_said, run
from tiers import first_of, slow
from torch.utils.data import ConcatDataset, RandomSampler, Subset

from fastdata import DataLoader, ImageDataset, verify
from fastdata.errors import CorruptionError, DatasetError, SlowPathWarning, UsageError
from fastdata.remote.options import RemoteOptions
from fastdata.transforms import CenterCrop, Compose, Resize

# Each dataset warns once that it is slow.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*a row group at a time:fastdata.errors.SlowPathWarning"
)

COUNT, EACH = 60, 7
STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
COLUMNS = {
    "image": pa.array([cell(jpeg(n % 9), f"{n}.jpg") for n in range(COUNT)], STRUCT),
    "label": pa.array([n % 3 for n in range(COUNT)]),
    "text": pa.array([f"text {n}" for n in range(COUNT)]),
    "mask": pa.array([None if n % 4 == 1 else mask(n % 9) for n in range(COUNT)], pa.binary()),
}
TABLE = pa.table(COLUMNS)
PLAIN = {"use_dictionary": False}


def parquet(path: Path, table: pa.Table = TABLE, **options: Any) -> None:
    pq.write_table(table, path, row_group_size=EACH, **options)


def arrow(path: Path, compression: str, *, stream: bool, table: pa.Table = TABLE) -> None:
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with new(path, table.schema, options=options) as writer:
        writer.write_table(table, EACH)


def _mixed(folder: Path) -> None:
    parquet(folder / "a.parquet", TABLE[:30], compression="none", use_dictionary=False)
    parquet(folder / "b.parquet", TABLE[30:], compression="snappy")


WRITERS: dict[str, Callable[[Path], None]] = {
    "snappy": lambda folder: parquet(folder / "a.parquet", compression="snappy", **PLAIN),
    "zstd": lambda folder: parquet(folder / "a.parquet", compression="zstd"),
    "gzip": lambda folder: parquet(folder / "a.parquet", compression="gzip"),
    "brotli": lambda folder: parquet(folder / "a.parquet", compression="brotli"),
    "lz4": lambda folder: parquet(folder / "a.parquet", compression="lz4"),
    "dictionary": lambda folder: parquet(folder / "a.parquet", compression="none"),
    "checksums": lambda folder: parquet(folder / "a.parquet", write_page_checksum=True),
    "mixed": _mixed,
    "arrow": lambda folder: arrow(folder / "a.arrow", "zstd", stream=False),
    "stream": lambda folder: arrow(folder / "a.arrow", "lz4", stream=True),
    "dictionaries": lambda folder: arrow(
        folder / "a.arrow", "lz4", stream=True,
        table=TABLE.set_column(2, "text", TABLE["text"].combine_chunks().dictionary_encode()),
    ),
}  # fmt: skip


@pytest.fixture
def snappy(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    WRITERS["snappy"](tmp_path / "in")
    index(tmp_path / "in", tmp_path / "out", workers=1)
    return tmp_path / "out"


def _bytes(column: str) -> list[bytes | None]:
    values = TABLE[column].to_pylist()
    return [one["bytes"] if isinstance(one, dict) else one for one in values]


@pytest.mark.parametrize("kind", first_of(WRITERS))
def test_values_are_those_of_pyarrow(kind: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    WRITERS[kind](tmp_path / "in")
    before = {path.name: path.read_bytes() for path in (tmp_path / "in").iterdir()}
    for _ in range(2):  # the second time it is up to date
        require_said(
            run("index", str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--workers", "1"), 0
        )
    dataset = ImageDataset(tmp_path / "out", fields=("image", "label", "text", "mask"))
    assert dataset.manifest.container == "tables"
    assert dataset.read(range(COUNT)) == _bytes("image")
    assert dataset.column("text").to_pylist() == TABLE["text"].to_pylist()
    assert dataset.targets == TABLE["label"].to_pylist()
    for row in (0, 1, COUNT - 1):
        expected = _bytes("mask")[row]
        assert (dataset[row]["mask"] is None) == (expected is None)
        if expected is not None:
            assert dataset.source.encoded(row, "mask").data == expected
    assert {path.name: path.read_bytes() for path in (tmp_path / "in").iterdir()} == before
    assert verify(tmp_path / "out", workers=1).problems == []
    assert verify(tmp_path / "out", fast=True).problems == []


def test_an_index_is_packed_and_gains_seek_points(snappy: Path, tmp_path: Path) -> None:
    for command in (
        ("seek-points", snappy, "--workers", "1"),
        ("convert", "dataset", "--root", snappy, "--to", "lmdb", "--out", tmp_path / "packed"),
        ("info", snappy),
    ):
        require_said(run(*command), 0)
    for place in (snappy, tmp_path / "packed"):
        assert ImageDataset(place).read(range(COUNT)) == _bytes("image")
    staging = ["stage", str(snappy), "--to", str(tmp_path / "fast")]
    require_said(run(*staging), 2, "convert dataset")
    found = run("doctor", str(snappy))
    assert found.exit_code == 0 and "Is a directory" not in found.output
    with pytest.raises(UsageError, match="cache="):
        ImageDataset(snappy, cache=tmp_path / "cache")


def _loader(place: Path, memory: int, **options: Any) -> Any:
    given = {"shuffle": True, "seed": 4, "require_native": True, "num_workers": 2, **options}
    dataset = ImageDataset(
        place, Compose([Resize(24), CenterCrop(20)]), fields=("image", "text"),
        remote=RemoteOptions(memory=memory),
    )  # fmt: skip
    return DataLoader(dataset, given.pop("batch_size", 8), **given)


def _texts(batches: Any) -> list[str]:
    return [text for batch in batches for text in batch["text"]]


#: Bytes of a row group's images.
GROUP = sum(map(len, map(jpeg, range(9)))) * EACH // 9
GROUPS = -(-COUNT // EACH)


@pytest.mark.parametrize(("memory", "workers"), [(5 * GROUP, 2), slow(1, 0), slow(1 << 30, 2)])
def test_each_row_group_is_decoded_once(snappy: Path, workers: int, memory: int) -> None:
    loader = _loader(snappy, memory, num_workers=workers)
    orders = []
    for _ in range(2):
        orders.append(_texts(loader))
        assert sorted(orders[-1]) == sorted(TABLE["text"].to_pylist())
        remote = loader.stats().remote
        if memory < COUNT * GROUP // EACH:
            assert remote.cache_fills in (GROUPS, GROUPS - 1, GROUPS - 2)  # left by the last pass
            # Samples that wait for their batch are held beside the row groups.
            assert remote.memory_peak <= max(memory, 4 * GROUP) + remote.bytes_needed
            assert remote.cache_bytes <= max(memory, 4 * GROUP)
    assert orders[0] != orders[1]
    assert orders[0] != TABLE["text"].to_pylist()
    assert "each is read once" in loader.explain()


def test_a_pass_resumes_with_other_ranks(snappy: Path) -> None:
    loader = _loader(snappy, 5 * GROUP)
    passing = iter(loader)
    seen = _texts([next(passing) for _ in range(3)])
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    whole = _texts(_loader(snappy, 5 * GROUP))
    assert whole[: len(seen)] == seen
    for rank in range(2):
        other = _loader(snappy, 5 * GROUP, shard=(rank, 2), batch_size=4)
        other.load_state_dict(state)
        seen += _texts(other)
    assert sorted(seen) == sorted(whole)


def test_slowness_is_warned_of(snappy: Path) -> None:
    with pytest.warns(SlowPathWarning, match=r"pyarrow decodes.*convert dataset") as said:
        pickle.loads(pickle.dumps(ImageDataset(snappy)))
    ImageDataset(snappy)
    assert len(said) == 1
    parts = [ImageDataset(snappy, Resize((9, 9)), fields=("image", "text")) for _ in range(2)]
    with pytest.warns(SlowPathWarning, match="part 0 of the ConcatDataset.* row group"):
        both: Any = DataLoader(ConcatDataset(parts), 8, shuffle=True)
    assert sorted(_texts(both)) == sorted(2 * TABLE["text"].to_pylist())
    with pytest.warns(SlowPathWarning, match="again and again"):
        loader = _loader(snappy, 1, order="random", shuffle=None)
    assert sorted(_texts(loader)) == sorted(TABLE["text"].to_pylist())
    assert loader.stats().remote.cache_fills > GROUPS
    dataset = loader.dataset
    with pytest.warns(SlowPathWarning, match="again and again"):
        DataLoader(dataset, 8, sampler=RandomSampler(dataset))
    with pytest.warns(SlowPathWarning, match="again and again"):
        DataLoader(Subset(dataset, range(30)), 8, shuffle=True)


def test_files_that_changed_are_named(snappy: Path, tmp_path: Path) -> None:
    path = tmp_path / "in/a.parquet"
    data = path.read_bytes()
    other = TABLE.set_column(
        0, "image", pa.array([cell(jpeg((n + 1) % 9), f"{n}.jpg") for n in range(COUNT)], STRUCT)
    )
    parquet(path, other, compression="snappy")
    changed = path.read_bytes()
    with pytest.raises(CorruptionError, match=r"a\.parquet: has \d+ bytes"):
        ImageDataset(snappy).read([0])
    assert len(verify(snappy, workers=1).problems) == 1
    # Other pixels in a file of the same size.
    at = data.index(b"PAR1", 4)
    path.write_bytes((changed[: len(data) // 2] + data[len(data) // 2 :])[: len(data)])
    assert at == len(data) - 4
    with pytest.raises(CorruptionError, match=r"a\.parquet"):
        ImageDataset(snappy).read(range(COUNT))
    path.unlink()
    with pytest.raises(DatasetError, match=r"a\.parquet: no such file"):
        ImageDataset(snappy).read([0])
    loader: Any = DataLoader(ImageDataset(snappy, Resize((9, 9))), 8, num_workers=1)
    with pytest.raises(DatasetError, match=r"a\.parquet: no such file"):
        next(iter(loader))
    assert {problem.where for problem in verify(snappy, workers=1).problems} == {str(path)}


def test_damage_is_that_of_its_row_group(snappy: Path, tmp_path: Path) -> None:
    path = tmp_path / "in/a.parquet"
    data = bytearray(path.read_bytes())
    chunk = pq.ParquetFile(path).metadata.row_group(3).column(0)
    at = chunk.data_page_offset + chunk.total_compressed_size // 2
    data[at : at + 40] = bytes(40)
    path.write_bytes(data)
    good = [n for n in range(COUNT) if not 3 * EACH <= n < 4 * EACH]
    dataset = ImageDataset(snappy, Resize((9, 9)), fields=("image", "text"))
    assert dataset.read(good) == [_bytes("image")[n] for n in good]
    loader: Any = DataLoader(dataset, 10, num_workers=1, on_error="drop")
    with pytest.warns(UserWarning, match="could not be decoded|bad sample"):
        texts = _texts(loader)
    assert len(set(texts)) == len(texts) and set(texts) >= {f"text {n}" for n in good}
