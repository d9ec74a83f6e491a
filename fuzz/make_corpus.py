"""Writes seeds for the fuzz targets.

decode: small JPEGs of every kind, with their seek tables, and beginnings of other images.
index: a row of an index, its seek table and its JPEG.
"""

from __future__ import annotations

import io
import random
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from jpegs import SAMPLINGS, encode, picture
from PIL import Image
from scans import drawn, progression
from scans import write as write_scans

from fastdata.decode import seek_points


def main(folder: str) -> None:
    """Write all inputs to folders below it."""
    for write in (write_decode, write_outlines, write_png, write_index):
        out = Path(folder) / write.__name__.removeprefix("write_")
        out.mkdir(parents=True, exist_ok=True)
        write(out)


def with_orientations(jpeg: bytes) -> list[bytes]:
    """Return a JPEG with an orientation in EXIF data of both byte orders, in XMP, and in both."""
    tag = struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0)
    text = struct.pack("<HHII", 0x010F, 2, 7, 50) + b"camera\0"
    little = b"II*\0" + struct.pack("<IH", 8, 2) + text[:12] + tag + bytes(12) + text[12:]
    big = b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, 6, 0, 0)
    xmp = b'http://ns.adobe.com/xap/1.0/\0<x tiff:Orientation="8">'
    exif = [b"Exif\0\0" + one for one in (little, big)]
    several = [[exif[0]], [exif[1]], [xmp], [exif[1], xmp], exif]
    several = [[b"\xff\xe1" + struct.pack(">H", len(one) + 2) + one for one in s] for s in several]
    return [jpeg[:2] + b"".join(segments) + jpeg[2:] for segments in several]


def write_outlines(out: Path) -> None:
    """Write polygons and run lengths, in masks that are cut, padded and mirrored."""
    rng = random.Random(5)
    width, height = 32, 24
    for number in range(24):
        polygons = number % 4
        box = [0, 0, width, height] if number % 3 else [-5, 3, width - 2, height + 9]
        sides = [number for _ in range(2) for number in (width, height, 0, 0)][:6]
        sides[number % 6] += number % 5
        data = bytes([width - 1, height - 1, polygons, number])
        data += b"".join((one * 64).to_bytes(2, "little", signed=True) for one in box)
        data += b"".join((one * 256).to_bytes(2, "little", signed=True) for one in sides)
        data += bytes([number % 16 | 128 * (number % 2)])
        if polygons:
            # Parts of pixels: those that end in 0, 1 and 2 are no numbers, or far away.
            corners = rng.choices(range(-997, 12_000, 16), k=12 * polygons)
            data += b"".join(one.to_bytes(2, "little", signed=True) for one in corners)
        else:
            data += b"".join(map(_run_length, (100 + number, 50, width * height - 150 - number)))
        (out / f"seed-{number}").write_bytes(data)


def _run_length(count: int) -> bytes:
    """Return one of the first three run lengths in COCO's text."""
    text = b""
    while count > 15:
        text += bytes([48 + (count & 31) + 32])
        count >>= 5
    return text + bytes([48 + count])


def write_png(out: Path) -> None:
    """Write each colour type and depth with each filter."""
    layouts = [(0, 1), (0, 2), (0, 4), (0, 8), (2, 8), (2, 16), (3, 1), (3, 4), (3, 8)]
    layouts += [(4, 8), (4, 16), (6, 8), (6, 16)]
    for number, (colour, depth) in enumerate(layouts):
        for filter_type in range(6):
            head = bytes([8, 8, depth, colour, 0, 9, 0, 0, 48])
            rows = bytes([filter_type, *range(8 * depth)]) * 15
            (out / f"seed-{number:02}-{filter_type}").write_bytes(head + bytes(48) + rows)


def write_index(out: Path) -> None:
    """Write one row each, in the layout of fuzz_index.cpp, which fixes the checksums."""
    for number, switches in enumerate((0xBF, 0x2F, 0x7F, 0)):
        width, height = 17 + number, 24
        jpeg = encode(picture(width, height, number), "4:2:0", 40)
        table = seek_points(jpeg, 8)
        # offset, length, heap_at; file, label, width, height; checksums; sizes of key, path and
        # table; encoding, channels; checksum (docs/formats/index.md).
        extent = (0, len(jpeg), 0, 0, 0, width, height, 0, 0)
        record = struct.pack("<3q4i2I2HI2B2xI", *extent, 3, 0, len(table), 1, 3, 0)
        heap = b"key" + table + bytes(4)
        head = bytes([switches, 0]) + len(heap).to_bytes(2, "little")
        (out / f"seed-{number}").write_bytes(head + record + heap + jpeg)


def write_decode(out: Path) -> None:
    """Write JPEGs, each with a request."""
    rng = random.Random(1)
    number = 0

    def write(control: bytes, table: bytes, jpeg: bytes) -> None:
        nonlocal number
        data = control + len(table).to_bytes(2, "little") + table + jpeg
        (out / f"seed-{number:03d}").write_bytes(data)
        number += 1

    for sampling in SAMPLINGS:
        for size in [(1, 1), (9, 17), (33, 24), (70, 40)]:
            for options in [{}, {"optimize": True}, {"restart_marker_blocks": 2}]:
                quality = rng.choice([5, 40, 75, 95, 100])
                jpeg = encode(picture(*size, number), sampling, quality, **options)
                table = seek_points(jpeg, rng.choice([1, 16, 64]))
                control = bytes(rng.randrange(256) for _ in range(16))
                if number % 2:  # the whole image, everything on
                    control = bytes([0b10011100 | number % 4]) + control[1:]
                write(control, table, jpeg)
        # Seek points enough for the lanes of a vector, all paths compared.
        for quality in (10, 30, 60):
            jpeg = encode(picture(64, 64, number), sampling, quality, optimize=quality == 30)
            write(bytes([0b10011100]) + bytes(15), seek_points(jpeg, 1), jpeg)
        # Several scans: libjpeg's script, and others.
        for size, restart in [((9, 17), 0), ((40, 33), 0), ((33, 40), 3)]:
            image = drawn(*size, sampling, rng)
            count = len(image.blocks)
            for several in (
                encode(picture(*size, number), sampling, 75, progressive=sampling != "4:4:0"),
                write_scans(image, progression(count, rng), restart=restart),
            ):
                control = bytes([0b10000100 | number % 4]) + bytes(15)
                write(control if number % 3 else bytes([0b100]) + control[1:], b"", several)
    for jpeg in with_orientations(encode(picture(20, 10, 0))):
        write(bytes(16), b"", jpeg)
    for kind in ("png", "bmp", "gif", "webp"):
        buffer = io.BytesIO()
        Image.fromarray(picture(20, 10, 0)).save(buffer, kind)
        write(bytes(16), b"", buffer.getvalue()[:64])


if __name__ == "__main__":
    main(sys.argv[1])
