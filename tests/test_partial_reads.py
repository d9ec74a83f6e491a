"""Large JPEGs of which only the bytes that a crop needs are read, and checked."""

from __future__ import annotations

import random
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from containers import edit_index, pack_tree, set_column
from core_batches import decode_batch, job_of
from hypothesis import example, given, settings
from hypothesis import strategies as st
from jpegs import encode, picture
from loader_data import folder
from seek_tables import parse, segments

from fastdata import DataLoader, ImageDataset, _native, verify
from fastdata.decode import DecodeError, jpeg_info, seek_points
from fastdata.errors import CorruptionError
from fastdata.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop

SAMPLINGS = ("4:2:0", "4:4:4", "grey", "4:2:2", "4:4:0")
#: More than 16 strides, so that seek points lie farther apart.
WIDTH, HEIGHT = 2080, 600
SIZE = (64, 48)


def photograph(seed: int, sampling: str) -> bytes:
    noise = np.random.default_rng(seed).integers(-20, 20, (HEIGHT, WIDTH, 1))
    pixels = np.clip(picture(WIDTH, HEIGHT, seed).astype(int) + noise, 0, 255).astype(np.uint8)
    jpeg = encode(pixels, sampling, 90)
    assert len(jpeg) >= 256 << 10
    return jpeg


@cache
def blobs() -> tuple[bytes, ...]:
    return tuple(photograph(seed, sampling) for seed, sampling in enumerate(SAMPLINGS))


@cache
def dataset() -> Path:
    path = folder()
    for number, blob in enumerate(blobs()):
        file = path / "tree" / "a" / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(blob)
    pack_tree(path / "tree", path / "packed", "shards")
    return path / "packed"


def extents(path: Path, *indices: int) -> Any:
    return ImageDataset(path).source.table_of().gather(np.array(indices, np.int64))


@cache
def described(number: int) -> tuple[bytes, int, int, list[tuple[int, int]]]:
    jpeg, sampling = blobs()[number], SAMPLINGS[number]
    info, table = jpeg_info(jpeg), seek_points(jpeg)
    wide, high = (
        8 * (1 + (sampling in ("4:2:0", "4:2:2"))),
        8 * (1 + (sampling in ("4:2:0", "4:4:0"))),
    )
    columns, rows = -(-info.width // wide), -(-info.height // high)
    positions, _ = parse(table, jpeg, columns, rows, 1 if sampling == "grey" else 3)
    return table, wide, high, segments(table, positions)


def needed(number: int, box: tuple[int, int, int, int]) -> list[tuple[int, int]]:
    """The bytes that a crop of a photograph needs, from its table as the format's page has it."""
    table, wide, high, found = described(number)
    info = jpeg_info(blobs()[number])
    columns, rows = -(-info.width // wide), -(-info.height // high)
    interval = int.from_bytes(table[2:4], "little")
    a_row = -(-columns // interval)
    grow_x, grow_y = 2 * (wide > 8), 2 * (high > 8)  # of upsampled chroma
    left = max(box[0] - grow_x, 0) // wide // interval
    right = -(-min(-(-(box[2] + grow_x) // wide), columns) // interval)
    top, bottom = max(box[1] - grow_y, 0) // high, min(-(-(box[3] + grow_y) // high), rows)
    parts = [(0, int.from_bytes(table[16:20], "little"))]
    for row in range(top, bottom):
        parts += found[row * a_row + left : row * a_row + right]
    return parts


def box_of(number: int, corners: tuple[float, float, float, float]) -> tuple[int, int, int, int]:
    info = jpeg_info(blobs()[number])
    x0, x1 = sorted((int(corners[0] * (info.width - 1)), int(corners[1] * (info.width - 1))))
    y0, y1 = sorted((int(corners[2] * (info.height - 1)), int(corners[3] * (info.height - 1))))
    return x0, y0, x1 + 1, y1 + 1


PART = st.floats(0, 1)


@given(number=st.integers(0, len(SAMPLINGS) - 1), corners=st.tuples(PART, PART, PART, PART))
@example(number=0, corners=(0, 1, 0, 1))
@example(number=0, corners=(1, 1, 1, 1))
@settings(max_examples=20)
def test_equal_to_reading_all(number, corners):
    """Rows that were not read hold other images' bytes, so pixels show whether they are used."""
    box = box_of(number, corners)
    given = {"regions": [box]}
    jpeg = blobs()[number]
    whole = decode_batch([jpeg], SIZE, seek_points=[seek_points(jpeg)], **given)
    out = np.empty_like(whole)
    job = job_of(extents(dataset(), number), out, **given)
    pool = _native.ThreadPool(1)
    pool.submit(job)
    failures, *_, bytes_read = job.collect()
    assert failures == [] and np.array_equal(out, whole)
    table = len(seek_points(jpeg)) + 4
    read, least = bytes_read - table, sum(b - a for a, b in needed(number, box))
    if read != len(jpeg):
        assert least * 0.9 < read < len(jpeg) * 7 / 8
    else:  # as good as all is needed
        assert least > 0.6 * len(jpeg)


@pytest.fixture
def damaged(tmp_path) -> Path:
    shutil.copytree(dataset(), tmp_path / "packed")
    return tmp_path / "packed"


def test_flips_are_found_where_they_are_used(damaged):
    """Each checksum is looked at: of a bit in any segment of the crop, and of no other."""
    source = extents(damaged, 0)
    start, box = int(source.offsets[0]), (500, 100, 1200, 400)
    parts, jpeg, chance = needed(0, box), blobs()[0], random.Random(1)
    right = decode_batch([jpeg], SIZE, regions=[box])
    used = {at for begin, end in parts for at in (begin, end - 1, chance.randrange(begin, end))}
    others = [
        at
        for at in (chance.randrange(len(jpeg)) for _ in range(150))
        if not any(begin <= at < end for begin, end in parts)
    ]
    assert len(others) > 50
    with (damaged / "shard-000000.tar").open("r+b", buffering=0) as file:
        for at in [*used, *others]:
            flipped = jpeg[at] ^ 1 << chance.randrange(8)
            file.seek(start + at)
            file.write(bytes([flipped]))
            try:
                got = decode_batch(source, SIZE, regions=[box])
                assert at not in used and np.array_equal(got, right)
            except DecodeError as error:
                assert at in used and error.code == "changed"
            file.seek(start + at)
            file.write(jpeg[at : at + 1])
    assert np.array_equal(decode_batch(source, SIZE, regions=[box]), right)


def test_loader_names_what_is_damaged(damaged):
    shard = damaged / "shard-000000.tar"
    data, offset = bytearray(shard.read_bytes()), int(extents(damaged, 0).offsets[0])
    for at in range(1000, len(blobs()[0]), 5000):
        data[offset + at] ^= 4
    shard.write_bytes(data)
    made = ImageDataset(damaged, transform=RandomResizedCrop(48))
    for threads in (0, 4):
        with pytest.raises(CorruptionError, match="its bytes have changed since it was packed"):
            list(DataLoader(made, batch_size=1, num_workers=threads))
    assert any("sample 0" in problem.where for problem in verify(damaged, workers=1).problems)


def test_verify_compares_all_parts(damaged):
    """Tables whose last checksum is wrong, of another image, of a smaller one; other predictors."""
    right = [seek_points(blob) for blob in blobs()]
    small = seek_points(encode(picture(40, 40, 0)))
    shifted = right[3][:32] + bytes([right[3][32] ^ 1]) + right[3][33:]
    lying = [right[0][:-1] + bytes([right[0][-1] ^ 1]), right[2], small, shifted, right[4]]
    assert not verify(damaged, workers=1).problems
    edit_index(damaged, lambda table: set_column(table, "seek_points", lying))
    problems = verify(damaged, workers=1).problems
    assert [problem.where.split(" (")[0] for problem in problems] == [
        f"sample {i}" for i in range(4)
    ]
    assert all("has seek points of another image" in problem.what for problem in problems)
    assert "decoding does not get to" in problems[3].what
    assert "checksums of other bytes" in problems[0].what


def test_bytes_that_a_loader_reads():
    transform = Compose([RandomResizedCrop(48), RandomHorizontalFlip()])
    loader = DataLoader(ImageDataset(dataset(), transform=transform), batch_size=2, num_workers=0)
    read = 0
    for epoch in range(4):
        loader.set_epoch(epoch)
        for _ in loader:
            pass
        read += loader.stats().bytes_read
    assert 0.2 < read / 4 / sum(map(len, blobs())) < 0.65


@pytest.mark.parametrize(
    ("method", "flip"), [("nearest", True), ("bilinear", False), ("lanczos", True)]
)
def test_one_image_by_several_threads(method, flip):
    """The same pixels from each source, with each resize."""
    numbers, boxes = [0, 1], [(13, 7, 2000, 590), (100, 50, 400, 90)]
    options = {"regions": boxes, "flips": [flip, False], "filter": method, "dtype": "float32"}
    alone = decode_batch([blobs()[n] for n in numbers], SIZE, **options)
    got = decode_batch(extents(dataset(), *numbers), SIZE, threads=7, **options)
    assert np.array_equal(got, alone)
    points = [seek_points(blobs()[n]) for n in numbers]
    samples = [blobs()[n] for n in numbers]
    memory = decode_batch(samples, SIZE, threads=7, seek_points=points, **options)
    assert np.array_equal(memory, alone)


def test_zeros_below_one_image_by_several_threads():
    """Threads whose rows lie below the image, or whose columns lie beside it, write zeros."""
    for left, top in ((0, HEIGHT - 8), (1000, 300), (WIDTH, 0), (-2 * WIDTH, HEIGHT)):
        cut = np.zeros(1, _native.CUT)
        cut["box"], cut["size"] = (0, 0, WIDTH, HEIGHT), (WIDTH, HEIGHT)
        cut["window"], cut["filter"], cut["padding"] = (left, top), 1, 1
        expected = np.zeros((1, HEIGHT, WIDTH, 3), np.uint8)
        if 0 <= left < WIDTH:
            rest = decode_batch([blobs()[1]], (WIDTH, HEIGHT))[:, top:, left:]
            expected[:, : HEIGHT - top, : WIDTH - left] = rest
        for threads in (1, 3, 16):
            out = np.full_like(expected, 7)
            job = _native.DecodeJob(extents(dataset(), 1), [_native.Rendering(out, cuts=cut)])
            engine = _native.ThreadPool(threads)
            engine.submit(job)
            job.wait()
            assert job.failures() == [] and np.array_equal(out, expected)
