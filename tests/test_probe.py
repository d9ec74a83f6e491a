"""Pillow decodes every JPEG that the probe accepts."""

from __future__ import annotations

import io
import random
import struct
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import compress, crc32

import arithmetic_jpegs
import pytest
from containers import jpeg, originals
from PIL import Image, ImageOps

from fastdata.decode import DecodeError, decode_jpeg, jpeg_info
from fastdata.decode import pillow as module
from fastdata.decode.pillow import ImageInfo, open_image, probe
from fastdata.errors import SampleError

SOS = b"\xff\xda"


def noise(mode: str = "RGB", size: tuple[int, int] = (40, 24), **options: Any) -> bytes:
    """A JPEG that has all codes, as a photograph does."""
    draw = random.Random(7)
    pixels = draw.randbytes(size[0] * size[1] * len(Image.new(mode, (1, 1)).getbands()))
    file = io.BytesIO()
    Image.frombytes(mode, size, pixels).save(file, "JPEG", **options)
    return file.getvalue()


def segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    at = 2
    while True:
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        yield data[at + 1], at, end
        if data[at + 1] == SOS[1]:
            return
        at = end


def without(data: bytes, *markers: int) -> bytes:
    cut = [(start, end) for marker, start, end in segments(data) if marker in markers]
    for start, end in reversed(cut):
        data = data[:start] + data[end:]
    return data


def change_frame(at: int, *values: int) -> Callable[[bytes], bytes]:
    """Changes bytes of the frame header; ``at`` counts from its marker."""

    def change(data: bytes) -> bytes:
        (start,) = (start for marker, start, _ in segments(data) if 0xC0 <= marker <= 0xC2)
        return data[: start + at] + bytes(values) + data[start + at + len(values) :]

    return change


def decodes(data: bytes) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            Image.open(io.BytesIO(data)).load()
    except Exception:
        return False
    return True


USUAL: dict[str, dict[str, Any]] = {
    "colour": {},
    "444": {"subsampling": 0},
    "422": {"subsampling": 1},
    "optimised": {"optimize": True},
    "grey": {"mode": "L"},
    "cmyk": {"mode": "CMYK"},
    "progressive": {"progressive": True},
    "restarts": {"restart_marker_blocks": 2},
    "tables": {"qtables": "web_low"},
    "comment": {"comment": b"\xff\xd9" * 5, "dpi": (72, 72), "icc_profile": bytes(100)},
}


@pytest.mark.parametrize("name", [*USUAL, "motion", "junk", "several pictures"])
def test_jpegs_are_known(name: str) -> None:
    data, kind = noise(**USUAL.get(name, {})), "jpeg"
    if name == "motion":  # without Huffman tables
        data = without(data, 0xC4)
    elif name == "junk":  # between segments, which Pillow skips
        data = data[:20] + b"\x00\x01\xff\x00\xff\xd0" + data[20:]
    elif name == "several pictures":
        file = io.BytesIO()
        more = [Image.new("RGB", (40, 24), "blue")]
        Image.new("RGB", (40, 24), "red").save(file, "MPO", save_all=True, append_images=more)
        data = file.getvalue()
    elif name == "progressive":
        kind = "jpeg-progressive"
    assert decodes(data)
    assert probe(data) == ImageInfo(kind, 40, 24, {"grey": 1, "cmyk": 4}.get(name, 3))


def test_real_photographs_are_known(imagenet_sample: Path) -> None:
    for image in originals(imagenet_sample / "train")[::3]:
        with Image.open(image.path) as opened:
            orientation = opened.getexif().get(0x0112) or 1  # cameras also write 0
            expected = (*opened.size, len(opened.getbands()), orientation)
        assert probe(image.path.read_bytes())[1:] == expected


def huffman_of_ones(data: bytes) -> bytes:
    """A Huffman table whose code has more words than there are."""
    start = next(start for marker, start, _ in segments(data) if marker == 0xC4)
    return data[: start + 5] + bytes([3]) + data[start + 6 :]


DAMAGE: dict[str, Callable[[bytes], bytes]] = {
    "lossless": lambda data: data.replace(b"\xff\xc0", b"\xff\xc3"),
    "hierarchical": lambda data: data.replace(b"\xff\xc0", b"\xff\xc5"),
    "12 bits": change_frame(4, 12),
    "60000 x 60000": change_frame(5, 0xEA, 0x60, 0xEA, 0x60),
    "too wide for libjpeg": change_frame(7, 0xFF, 0xFF),
    "no height": change_frame(5, 0, 0),
    "two components": change_frame(9, 2),
    "five components": change_frame(9, 5),
    "sampling": change_frame(11, 0x31, 0, 2, 0x21),
    "a table that is not there": change_frame(12, 3),
    "no quantisation table": lambda data: without(data, 0xDB),
    "no frame": lambda data: without(data, 0xC0),
    "two frames": lambda data: data[: frame(data)[1]] + data[frame(data)[0] :],
    "a code too many": huffman_of_ones,
    "a scan of others": lambda data: data.replace(SOS + b"\0\x0c\3\1", SOS + b"\0\x0c\3\7"),
    "an unknown marker": lambda data: data[:2] + b"\xff\x02\0\4ab" + data[2:],
    "short JFIF": lambda data: data[:2] + b"\xff\xe0\0\6JFIF" + without(data, 0xE0)[2:],
}


def frame(data: bytes) -> tuple[int, int]:
    return next((start, end) for marker, start, end in segments(data) if marker == 0xC0)


@pytest.mark.parametrize("damage", DAMAGE)
def test_what_pillow_does_not_decode_is_refused(damage: str) -> None:
    data = DAMAGE[damage](noise())
    assert data != noise()
    assert not decodes(data)
    with pytest.raises(SampleError):
        probe(data)
    if damage in ("an unknown marker", "short JFIF"):
        assert not jpeg_info(data).native
        with pytest.raises(DecodeError):
            decode_jpeg(data)


@pytest.mark.parametrize(
    ("sides", "limit", "good"),
    [
        ((40, 24), 480, True),
        ((40, 24), 479, False),
        ((60_000, 40_000), None, True),
        ((60_000, 2_900), Image.MAX_IMAGE_PIXELS, True),
        ((60_000, 3_000), Image.MAX_IMAGE_PIXELS, False),
    ],
)
def test_the_limit_of_pixels_is_pillows(
    monkeypatch: pytest.MonkeyPatch, sides: tuple[int, int], limit: int | None, good: bool
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    data = change_frame(5, *struct.pack(">HH", sides[1], sides[0]))(noise())
    if good:
        # Not loaded: that takes gigabytes.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
            assert Image.open(io.BytesIO(data)).size == sides
        assert probe(data) == ImageInfo("jpeg", *sides, 3)
    else:
        with pytest.raises(SampleError, match="decompression bomb"):
            probe(data)


def test_headers_that_pass_are_headers_that_pillow_decodes() -> None:
    draw = random.Random(11)
    images = [noise(**options) for options in USUAL.values()]
    passed = refused = 0
    for _ in range(1000):
        data = bytearray(draw.choice(images))
        end = [end for _, _, end in segments(data)][-1]
        for _ in range(draw.choice((1, 1, 2, 3))):
            place = draw.randrange(2, end)
            if draw.random() < 0.8:
                data[place] = draw.choice((draw.randrange(256), data[place] ^ 1, 0, 0xFF, 0x22))
            else:
                del data[place : place + draw.choice((1, 2, 18))]
        info = module._probe_header(bytes(data))
        if info is None:
            refused += 1
            continue
        passed += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = Image.open(io.BytesIO(data))
            image.load()
        assert (*image.size, len(image.getbands())) == info[1:4]
    assert min(passed, refused) > 100


@pytest.mark.skipif(
    not arithmetic_jpegs.decodes(), reason="Pillow's libjpeg has no arithmetic decoder"
)
@pytest.mark.parametrize("data", [arithmetic_jpegs.SEQUENTIAL, arithmetic_jpegs.PROGRESSIVE])
@pytest.mark.parametrize("before", [0, 65_400])
def test_arithmetic_coding_is_a_kind_of_its_own(data: bytes, before: int) -> None:
    if before:
        comment = b"\xff\xfe" + before.to_bytes(2, "big") + bytes(before - 2)
        data = data[:2] + comment + data[2:]
        assert data.index(SOS) < 1 << 16 < len(data)
    info = probe(data)
    assert info == ImageInfo("jpeg-arithmetic", 76, 50, 1)
    assert open_image(data, info).size == (76, 50)


def with_exif(exif: bytes, data: bytes | None = None) -> bytes:
    data = without(data or noise(), 0xE0)
    segment = b"\xff\xe1" + struct.pack(">H", 2 + len(exif)) + exif
    return data[:2] + segment + data[2:]


def orientation() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif.tobytes()


#: A directory of two entries that ends within the first.
CORRUPT = b"Exif\0\0II*\0\x08\0\0\0\2\0\x0e"


def pillows(data: bytes) -> Image.Image:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Image.open(io.BytesIO(data)).convert("RGB")


def test_broken_exif_is_no_warning() -> None:
    data = with_exif(CORRUPT)
    with pytest.warns(UserWarning, match="Corrupt EXIF data"):
        Image.open(io.BytesIO(data))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        image = open_image(data, probe(data))
    assert image.tobytes() == pillows(data).tobytes()


def test_broken_exif_leaves_the_filters_of_other_threads_alone() -> None:
    data = with_exif(CORRUPT)
    info, filters, seen = probe(data), warnings.filters, []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            seen.append(warnings.filters is filters)

    watcher = threading.Thread(target=watch)
    watcher.start()
    for _ in range(200):
        open_image(data, info)
    stop.set()
    watcher.join()
    assert all(seen)


@pytest.mark.parametrize("pieces", [1, 2])
def test_exif_is_still_there_for_who_wants_it(pieces: int) -> None:
    exif = orientation()
    data = with_exif(exif)
    if pieces == 2:
        data = with_exif(exif[:20], with_exif(b"Exif\0\0" + exif[20:]))
    if pillows(data).info["exif"] != exif:
        pytest.skip("this Pillow reads one segment of EXIF only")
    image = open_image(data, probe(data))
    assert image.info["exif"] == exif
    assert image.size == (40, 24)
    assert ImageOps.exif_transpose(image).size == (24, 40)


def test_what_is_no_whole_image() -> None:
    with_orientation = with_exif(orientation())
    cut = [with_orientation[:at] for at in range(4, 64, 7)]
    for data in (b"", b"\xff\xd8", b"\xff\xd8\xff", b"text", jpeg()[:-2], *cut):
        with pytest.raises(SampleError):
            probe(data)


def png(pixels: bytes, *, end: bool = True) -> bytes:
    """A grey PNG of 8 x 4 pixels whose checksums are right: its compressed pixel data, as given."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc32(kind + data))

    header = struct.pack(">IIBBBBB", 8, 4, 8, 0, 0, 0, 0)
    chunks = [chunk(b"IHDR", header), chunk(b"IDAT", pixels), chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks if end else chunks[:-1])


ROWS = bytes(9) * 4


@pytest.mark.parametrize(
    "data",
    [
        png(b""),
        png(b"no compressed data"),
        png(compress(ROWS[:20])),
        png(compress(ROWS)[:-8]),
        png(compress(b"\x09" + ROWS[1:])),
        png(compress(ROWS), end=False),
        png(compress(ROWS)).replace(b"IDAT", b"IDAT\0", 1),
    ],
    ids=["empty", "garbage", "two rows", "cut short", "filter 9", "no end", "checksum"],
)
def test_png_whose_pixels_do_not_decode_is_refused(data: bytes) -> None:
    assert probe(png(compress(ROWS))) == ImageInfo("png", 8, 4, 1)
    with pytest.raises(SampleError, match="cannot be decoded"):
        probe(data)
