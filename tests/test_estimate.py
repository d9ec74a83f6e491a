"""Estimates of packing count everything that is written, not images alone."""

from __future__ import annotations

import io
from collections import Counter
from pathlib import Path

import lmdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastdata.converters import ImageSource, ParquetImages, TableImages, WebDataset, pack
from fastdata.converters.listing import write_listing
from fastdata.converters.options import PackOptions
from fastdata.converters.shuffling import shuffle_listing
from field_data import image_file
from PIL import Image
from sources import tar_bytes
from tiers import first_of

from fastdata.executors import InProcess
from fastdata.storage.formats import lmdb as fastdata_lmdb
from fastdata.storage.formats import parquet as fastdata_parquet

ROWS = 60


def second_image(number: int) -> bytes:
    noise = np.random.default_rng(number).integers(0, 256, (50, 60, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "PNG")
    return file.getvalue()


def columns() -> dict[str, pa.Array]:
    """Columns that are larger than a small image, and whose types have no length of bytes."""
    draws = np.random.default_rng(0)
    return {
        "captions": pa.array([[f"{at} " * 400] * 3 for at in range(ROWS)]),
        "embedding": pa.array(
            list(draws.normal(size=(ROWS, 768)).astype(np.float32)), pa.list_(pa.float32(), 768)
        ),
        "about": pa.array([{"text": "x" * 3000, "n": at} for at in range(ROWS)]),
        "polygons": pa.array(
            [draws.normal(size=(4, 100)).tolist()] * ROWS, pa.list_(pa.list_(pa.float64()))
        ),
    }


def table_source(folder: Path, chosen: tuple[str, ...], *, second: bool) -> ImageSource:
    names = [f"{at:03d}" for at in range(ROWS)]
    for name in names:
        (folder / f"{name}.jpg").write_bytes(image_file(int(name)))
        (folder / f"{name}-second.png").write_bytes(second_image(int(name)))
    found = {"path": pa.array([f"{name}.jpg" for name in names])}
    found |= {name: column for name, column in columns().items() if name in chosen}
    if second:
        found["second"] = pa.array([f"{name}-second.png" for name in names])
    return TableImages(pa.table(found), folder, files=("second",) * second)


def parquet_source(folder: Path, chosen: tuple[str, ...], *, second: bool) -> ImageSource:
    found: dict[str, pa.Array] = {"image": pa.array([image_file(at) for at in range(ROWS)])}
    found |= {name: column for name, column in columns().items() if name in chosen}
    # Left out, so that it counts nowhere.
    found["ignored"] = pa.array([bytes([at]) * 50_000 for at in range(ROWS)])
    if second:
        found["second"] = pa.array([second_image(at) for at in range(ROWS)])
    pq.write_table(pa.table(found), folder / "a.parquet", row_group_size=20)
    return ParquetImages(folder, image_column="image", fields=[*chosen, *["second"] * second])


SOURCES = {"table": table_source, "parquet": parquet_source}
KINDS = [((name,), False) for name in columns()] + [((), True), (("captions",), True)]
#: A source, its columns, and whether it has second images.
Made = tuple[ImageSource, tuple[str, ...], bool]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    return tmp_path / "in"


@pytest.fixture(params=first_of(SOURCES))
def kind(
    request: pytest.FixtureRequest, fields: tuple[tuple[str, ...], bool], folder: Path
) -> Made:
    chosen, second = fields
    return SOURCES[request.param](folder, chosen, second=second), chosen, second


@pytest.mark.parametrize("fields", KINDS)
def test_shards_have_the_wanted_size(folder: Path, kind: Made) -> None:
    wanted, out = 150_000, folder.parent / "out"
    pack(
        kind[0],
        out,
        container="shards",
        options=PackOptions(shard_size=wanted, shuffle=False),
        workers=1,
    )
    sizes = [path.stat().st_size for path in sorted(out.glob("*.tar"))]
    assert len(sizes) > 1
    # Headers of the image's own members are not counted.
    assert all(0.8 * wanted < size < 1.6 * wanted for size in sizes[:-1]), sizes


@pytest.mark.parametrize("fields", KINDS)
def test_a_map_of_lmdb_has_room(folder: Path, kind: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def tight(size: int, exact: bool = True) -> int:
        # Without the gigabyte to spare, which hides what a small dataset does not count.
        return (2 * size // 4096 + 16) * 4096

    monkeypatch.setattr(fastdata_lmdb, "map_size", tight)
    (made, chosen, second), out = kind, folder.parent / "out"
    pack(made, out, container="lmdb", workers=1)
    with lmdb.open(str(out), readonly=True, lock=False) as environment:
        assert environment.stat()["entries"] == ROWS * (1 + len(chosen) + second)


@pytest.mark.parametrize("exact", [True, False])
def test_a_map_fits_into_the_addresses_of_a_process(tmp_path: Path, exact: bool) -> None:
    for size in (0, 1 << 30, 1 << 40, 10 << 40):
        found = fastdata_lmdb.map_size(size, exact=exact)
        assert found > 2 * size
        lmdb.open(str(tmp_path / str(size)), map_size=found, lock=False).close()


def test_row_groups_count_columns(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastdata_parquet, "ROW_GROUP_BYTES", 60_000)
    made = table_source(folder, ("captions", "about"), second=False)
    out = folder.parent / "out"
    pack(made, out, container="parquet", workers=1)
    about = pq.read_metadata(out / "part-000000.parquet")
    rows = [about.row_group(group).num_rows for group in range(about.num_row_groups)]
    assert sum(rows) == ROWS
    assert max(rows) < 10  # a row has about 7 kB of text


def test_windows_count_second_images(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = [(f"{at:03d}.jpg", image_file(at)) for at in range(ROWS)]
    members = images + [(f"{at:03d}.second.png", second_image(at)) for at in range(ROWS)]
    (folder / "a.tar").write_bytes(tar_bytes(sorted(members)))
    monkeypatch.setattr("fastdata.converters.shuffling.BLOCK_BYTES", 30_000)
    monkeypatch.setattr("fastdata.converters.shuffling.WINDOW_BYTES", 60_000)
    with InProcess() as executor:
        listing = write_listing(WebDataset(folder), folder / "listing", lambda _: None, executor)
    shuffled = shuffle_listing(listing, folder / "shuffled", 0)
    sizes: Counter[int | None] = Counter()
    for record in shuffled.records(0, ROWS):
        sizes[record.window] += record.size
    assert max(sizes.values()) < 100_000


def test_sizes_of_images_in_the_summary(folder: Path) -> None:
    made = table_source(folder, ("captions",), second=True)
    packed = pack(
        made,
        folder.parent / "out",
        container="shards",
        workers=1,
    )
    images = sum((folder / f"{at:03d}.jpg").stat().st_size for at in range(ROWS))
    assert sum(kind.size for kind in packed.kinds.values()) == images
