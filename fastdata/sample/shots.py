"""Parameters and encoding of each file of the generated sample.

The shares are measured on real ImageNet training photographs. Most are 4:4:4 at quality 96
within 500 x 500 pixels. A fifth are 4:2:0 of all sizes and lower qualities. Nearly all have
their own Huffman tables. ImageNet's rare oddities have fixed places in each split, so that a
sample of 50 has one of each and a sample of 1000 two.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from PIL import Image

from fastdata.sample.photograph import paint

# Oddities by place in the split, counted from 0, modulo _ODDITY_PERIOD. The places differ
# modulo 10, so that with ten classes no class gets two.
ODDITIES = {
    1: "progressive",
    6: "cmyk",
    10: "png",
    17: "broken-exif",
    23: "standard-huffman",
    28: "4:4:0",
    34: "4:2:2",
    39: "grey",
    45: "large",
}
_ODDITY_PERIOD = 500

_T = TypeVar("_T")

_SAMPLINGS = (("4:4:4", 760), ("4:2:0", 205), ("grey", 20), ("4:2:2", 15))
_RESCALED_QUALITIES = ((96, 90), (86, 5), (92, 4), (99, 1))
_ORIGINAL_QUALITIES = ((75, 40), (85, 20), (90, 20), (67, 14), (95, 4), (100, 2))
_USUAL_SIZES = (
    ((500, 375), 130),
    ((500, 333), 75),
    ((375, 500), 45),
    ((333, 500), 30),
    ((500, 500), 10),
    ((500, 0), 80),  # 0: drawn from 300 to 420
    ((0, 500), 35),
)
_LARGE_SIZES = (((1600, 1200), 2), ((1200, 1600), 1), ((2000, 1500), 1))
_ASPECTS = (((4, 3), 8), ((3, 4), 4), ((3, 2), 5), ((2, 3), 3), ((1, 1), 4), ((16, 9), 1))
# Root of the area in pixels at evenly spaced quantiles, for pictures of unusual sizes.
_RESCALED_SIDES = (150, 180, 220, 250, 290, 345, 440, 550, 640, 720, 1100)
_ORIGINAL_SIDES = (64, 160, 215, 270, 340, 390, 450, 520, 600, 740, 1500)
# Strength of texture at evenly spaced quantiles; 256 is strong (see paint).
_DETAILS = (0, 48, 66, 82, 98, 114, 134, 158, 188, 228, 360)

_MOST_DETAIL_OFF_96 = 256

# A camera's Exif header whose directory claims 65535 entries and ends at the first.
_BROKEN_EXIF = b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01\x0f\0\x02\0\0\0\x06"


@dataclass(frozen=True)
class Shot:
    """Parameters of one file.

    Attributes:
        kind: The oddity, a value of ODDITIES, or "usual".
        sampling: "4:4:4", "4:2:0", "4:2:2", "4:4:0", "grey", "cmyk" or "png".
        width: Pixels across.
        height: Pixels down.
        quality: libjpeg's quality, 1 to 100.
        detail: Strength of texture, see paint.
        exif: An Exif block to write; empty for none.
        comment: A JPEG comment to write; empty for none.
    """

    kind: str
    sampling: str
    width: int
    height: int
    quality: int
    detail: int
    exif: bytes = b""
    comment: bytes = b""


def make_shot(
    seed: int, split: int, class_index: int, number: int, classes: int, *, plan_only: bool = False
) -> tuple[Shot, bytes]:
    """Make one file; the same arguments give the same bytes.

    Args:
        seed: Seed of the whole sample, 0 or more.
        split: 0 train, 1 val.
        class_index: The class, 0 to classes - 1.
        number: The picture's number within its class and split, from 0.
        classes: Number of classes.
        plan_only: Whether to skip painting and encoding.

    Returns:
        The file's parameters and its bytes; no bytes with ``plan_only``.
    """
    rng = np.random.default_rng([seed, split, class_index, number])
    shot = _plan(rng, seed, split, number * classes + class_index)
    if plan_only:
        return shot, b""
    photograph = paint(rng, shot.width, shot.height, class_index, shot.detail)
    return shot, encode(photograph, shot)


def _plan(rng: np.random.Generator, seed: int, split: int, ordinal: int) -> Shot:
    # Roberts' R4 sequence, in 32-bit fractions: each number advances by a fixed irrational step.
    # The four fill the unit cube evenly, so a small sample has the shares of a large one.
    starts = np.random.SeedSequence([seed, split]).generate_state(4).tolist()
    steps = (3679390609, 3152041523, 2700274806, 2313257605)
    at_sampling, at_size, at_quality, at_detail = (
        (start + step * ordinal) % (1 << 32) / (1 << 32)
        for start, step in zip(starts, steps, strict=True)
    )
    chances = rng.integers(0, 1 << 16, size=4).tolist()
    extra, stretch, exif_chance, comment_chance = (chance / 65536 for chance in chances)
    kind = ODDITIES.get(ordinal % _ODDITY_PERIOD, "usual")
    if kind in ("cmyk", "png", "grey", "4:2:2", "4:4:0"):
        sampling = kind
    elif kind == "large":
        sampling = "4:2:0"
    else:
        sampling = _pick(_SAMPLINGS, at_sampling)
    # ImageNet's 4:2:0 and 4:2:2 files are unchanged originals; the others were rescaled.
    original = sampling in ("4:2:0", "4:2:2", "4:4:0")
    usual_share = 0.1 if original else 0.87
    if kind == "large":
        width, height = _pick(_LARGE_SIZES, at_size)
    elif at_size < usual_share:
        width, height = _pick(_USUAL_SIZES, at_size / usual_share)
        other = 300 + int(stretch * 121)
        width, height = width or other, height or other
    else:
        sides = _ORIGINAL_SIDES if original else _RESCALED_SIDES
        side = _quantile(sides, (at_size - usual_share) / (1 - usual_share))
        across, down = _pick(_ASPECTS, extra)
        root = (across * down) ** 0.5
        width, height = round(side * across / root), round(side * down / root)
    exif = comment = b""
    if kind == "broken-exif":
        exif = _BROKEN_EXIF
    elif exif_chance < 0.03:
        exif = _orientation_exif(1 if exif_chance < 0.02 else 6)
    if comment_chance < 0.06:
        comment = b"made photograph"
    quality = _pick(_ORIGINAL_QUALITIES if original else _RESCALED_QUALITIES, at_quality)
    detail = round(_quantile(_DETAILS, at_detail))
    if quality != 96:
        # Pillow's buffer for an optimised file has one byte a pixel below quality 95, and two
        # from there on. Encoding fails beyond it, and strong grain at 94 and 99 comes close.
        detail = min(detail, _MOST_DETAIL_OFF_96)
    return Shot(kind, sampling, width, height, quality, detail, exif, comment)


def _pick(table: tuple[tuple[_T, int], ...], where: float) -> _T:
    """Return the entry at ``where``, 0 to 1, if entries are as long as their weights."""
    left = where * sum(weight for _, weight in table)
    for value, weight in table:
        left -= weight
        if left < 0:
            return value
    return table[-1][0]


def _quantile(table: tuple[int, ...], where: float) -> float:
    """Interpolate in a table of values at evenly spaced quantiles."""
    step = min(int(where * (len(table) - 1)), len(table) - 2)
    part = where * (len(table) - 1) - step
    return table[step] + (table[step + 1] - table[step]) * part


def _orientation_exif(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()


def encode(photograph: Image.Image, shot: Shot) -> bytes:
    """Encode a picture, of mode YCbCr and the shot's size, with the shot's parameters."""
    file = io.BytesIO()
    if shot.sampling == "png":
        photograph.convert("RGB").save(file, "PNG", compress_level=1)
        return file.getvalue()
    subsampling = {"4:2:0": 2, "4:2:2": 1, "4:4:0": 1}.get(shot.sampling, 0)
    if shot.sampling == "cmyk":
        photograph = photograph.convert("RGB").convert("CMYK")
    elif shot.sampling == "grey":
        photograph = photograph.getchannel(0)
    elif shot.sampling == "4:4:0":
        photograph = _turn_blocks(photograph)
    photograph.save(
        file,
        "JPEG",
        quality=shot.quality,
        subsampling=subsampling,
        optimize=shot.kind != "standard-huffman",
        progressive=shot.kind == "progressive",
        exif=shot.exif,
        comment=shot.comment,
    )
    if shot.sampling == "4:4:0":
        return _declare_440(file.getvalue(), shot.width, shot.height)
    return file.getvalue()


def _turn_blocks(photograph: Image.Image) -> Image.Image:
    """Return a picture whose 4:2:2 file has the blocks of the photograph's 4:4:0 file.

    Pillow cannot write 4:4:0. Both formats store two brightness blocks, then one of each colour;
    the pair is side by side in 4:2:2 and stacked in 4:4:0. So this lays stacked pairs of 8 x 8
    blocks side by side. It averages colours down and doubles them across, because the encoder
    averages them across.
    """
    width, height = photograph.size
    columns, rows = -(-width // 8), -(-height // 16)
    pixels = np.asarray(photograph)
    padding = ((0, rows * 16 - height), (0, columns * 8 - width), (0, 0))
    # Axes: row of units, upper or lower block, line, column of units, pixel, component.
    blocks = np.pad(pixels, padding, mode="edge").reshape(rows, 2, 8, columns, 8, 3)
    turned = blocks.transpose(0, 2, 3, 1, 4, 5).reshape(rows * 8, columns * 16, 3).copy()
    lines = blocks[..., 1:].astype(np.uint16).reshape(rows * 8, 2, columns * 8, 2)
    turned[..., 1:] = ((lines.sum(axis=1) + 1) // 2).repeat(2, axis=1)
    return Image.frombytes("YCbCr", (columns * 16, rows * 8), turned.tobytes())


def _declare_440(file: bytes, width: int, height: int) -> bytes:
    """Rewrite the frame header of a baseline 4:2:2 file as 4:4:0 of the given size."""
    at = 2
    while file[at + 1] != 0xC0:
        at += 2 + int.from_bytes(file[at + 2 : at + 4], "big")
    frame = bytearray(file)
    frame[at + 5 : at + 9] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    frame[at + 11] = 0x12  # brightness: 1 across, 2 down
    return bytes(frame)
