"""JPEGs rewritten as baseline: the same pixels by Pillow, the same segments, seek points."""

from __future__ import annotations

import io
import random
from pathlib import Path

import numpy as np
import pytest
from arithmetic_jpegs import COLOUR, PROGRESSIVE, decodes
from fastdata.converters import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st
from jpegs import SAMPLINGS, encode, picture, pillow, sample_files
from PIL import Image
from scans import Scan, drawn, progression, sequential, write
from sources import convert, require_said

from fastdata import ImageDataset
from fastdata.decode import (
    DecodeError,
    jpeg_info,
    rewrite_baseline,
    seek_points,
)
from fastdata.decode.pillow import ImageInfo, probe


def assert_rewritten(data: bytes) -> bytes:
    rewritten = rewrite_baseline(data)
    info = jpeg_info(rewritten)
    assert info.native and not info.progressive
    assert seek_points(rewritten)
    assert np.array_equal(pillow(rewritten), pillow(data))
    assert rewrite_baseline(rewritten) == rewritten
    return rewritten


@settings(max_examples=40)
@given(
    width=st.integers(1, 120),
    height=st.integers(1, 120),
    sampling=st.sampled_from(list(SAMPLINGS)),
    progressive=st.booleans(),
    restart=st.sampled_from([0, 0, 1, 5]),
    seed=st.integers(0, 10**6),
)
def test_any_script(width, height, sampling, progressive, restart, seed):
    rng = random.Random(seed)
    image = drawn(width, height, sampling, rng)
    script = (progression if progressive else sequential)(len(image.blocks), rng)
    assert_rewritten(write(image, script, progressive=progressive, restart=restart))


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("quality", [1, 50, 95, 100])
def test_what_pillow_writes(sampling, quality):
    options = {} if sampling == "4:4:0" else {"progressive": True}
    for size in [(1, 1), (64, 48), (77, 130)]:
        data = encode(picture(*size, 1), sampling, quality, **options)
        assert_rewritten(data)
        assert_rewritten(encode(picture(*size, 1), sampling, quality, restart_marker_blocks=2))


def test_codes_of_16_bits(monkeypatch):
    image = drawn(900, 720, "grey", random.Random(0))
    blocks = image.blocks[0]
    blocks[...] = 0
    frequency, of = [1, 1], []
    while sum(frequency) < blocks.shape[0] * blocks.shape[1] * 0.9:
        frequency.append(frequency[-1] + frequency[-2])
    for number, times in enumerate(frequency):
        of += [(1 + number // 9, 1 << number % 9)] * times
    flat = blocks.reshape(-1, 64)
    for block, (k, value) in zip(flat, of, strict=False):
        block[k] = value
    assert len(frequency) > 17
    assert_rewritten(write(image, [Scan((0,), 0, 0), Scan((0,), 1, 63)]))


def test_real_photographs():
    before = after = 0
    for path in random.Random(1).sample(sample_files(), 20):
        with Image.open(path) as image:
            if image.mode not in ("RGB", "L"):
                continue
            out = io.BytesIO()
            image.save(out, "JPEG", progressive=True, quality="keep")
        after += len(assert_rewritten(out.getvalue()))
        before += len(out.getvalue())
    assert after < 1.12 * before


def segment(marker: int, payload: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(payload) + 2).to_bytes(2, "big") + payload


def test_segments_are_kept():
    exif, comment = segment(0xE1, b"Exif\0\0" + b"x" * 400), segment(0xFE, b"said between")
    image = drawn(50, 40, "4:2:0", random.Random(1))
    data = write(image, progression(3, random.Random(2)), between=comment)
    data = data[:2] + exif + data[2:] + b"behind the end"
    rewritten = assert_rewritten(data)
    assert rewritten.startswith(b"\xff\xd8" + exif)
    assert rewritten.count(comment) == data.count(comment) > 3
    assert rewritten.endswith(b"\xff\xd9behind the end")


SCRIPT = [Scan((0,), 0, 0), Scan((0,), 1, 63, 0, 1), Scan((0,), 1, 63, 1, 0)]


def declined() -> dict[str, bytes]:
    image = drawn(60, 50, "grey", random.Random(1))
    whole = write(image, SCRIPT)
    out = io.BytesIO()
    Image.fromarray(picture(60, 50, 1)).convert("CMYK").save(out, "JPEG", progressive=True)
    large = drawn(20, 20, "grey", random.Random(1))
    large.blocks[0][0, 0, 5] = 1024
    return {
        "missing scan": write(image, SCRIPT[:2]),
        "cut short": whole[: len(whole) * 2 // 3] + b"\xff\xd9",
        "cmyk": out.getvalue(),
        "pictures": whole[:2] + segment(0xE2, b"MPF\0" + bytes(20)) + whole[2:],
        "arithmetic-coded": PROGRESSIVE,
        "beyond baseline's": write(large, [Scan((0,), 0, 0), Scan((0,), 1)]),
        "late colours": write(image, SCRIPT, between=segment(0xEE, b"Adobe\0\x64" + bytes(5))),
        "late table": write(image, SCRIPT, between=segment(0xDB, b"\0" + b"\x03" * 64)),
    }


@pytest.mark.parametrize("name", declined())
def test_what_cannot_be_rewritten_is_left_alone(name):
    data = declined()[name]
    with pytest.raises(DecodeError):
        rewrite_baseline(data)
    info = ImageInfo("jpeg-progressive", 60, 50, 1)
    assert Encoding("baseline").apply(data, info) == (data, info)


@pytest.mark.skipif(not decodes(), reason="Pillow's libjpeg has no arithmetic decoder")
def test_through_the_command(tmp_path: Path) -> None:
    out = io.BytesIO()
    Image.fromarray(picture(60, 50, 4)).save(out, "PNG")
    files = {
        "0.jpg": encode(picture(60, 50, 0), progressive=True),
        "1.jpg": encode(picture(60, 50, 1)),
        "2.jpg": encode(picture(60, 50, 2), restart_marker_rows=1),
        "3.jpg": declined()["missing scan"],
        "4.png": out.getvalue(),
        "6.jpg": COLOUR,
    }
    folder = tmp_path / "tree" / "a"
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / "7.jpg").write_bytes(files["0.jpg"][:-300])
    root = ("imagefolder", "--root", tmp_path / "tree", "--skip-bad")
    result = convert(*root, "--out", tmp_path / "original")
    assert "33% of the images are progressive JPEGs. --encoding baseline" in result.output
    result = convert(*root, "--out", tmp_path / "baseline", "--encoding", "baseline")
    require_said(result, 0)
    assert "stored: 3 jpeg (" in result.output and "1 jpeg-progressive (" in result.output
    assert "1 progressive JPEGs are unchanged" in result.output
    dataset = ImageDataset(tmp_path / "baseline")
    assert dataset.manifest.options["encoding"] == "baseline"
    for number, (name, data) in enumerate(files.items()):
        (blob,) = dataset.read([number])
        assert np.array_equal(pillow(blob), pillow(data)), name
        assert (blob == data) == (name in ("1.jpg", "3.jpg", "4.png", "6.jpg"))
        row = dataset.row(number)
        assert probe(blob).encoding == row.encoding
        assert (row.seek_points is not None) == (row.encoding == "jpeg")
    result = convert(*root, "--out", tmp_path / "no", "--encoding", "baseline", "--max-side", 9)
    require_said(result, 2, "--max-side")
