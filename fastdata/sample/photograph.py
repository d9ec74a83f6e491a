"""Synthetic photographs: painted, and encoded as ImageNet's files are.

Overlapping shapes, noise in octaves and grain give a picture a photograph's bits a pixel. The
colours of its subject and background depend on its class. Shares of sizes and encodings are those
of ImageNet's training photographs; its rare oddities have fixed places in each split.
"""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

#: Oddities by place in the split, from 0. Of ten classes, none gets two.
_ODDITIES = {
    1: "progressive", 6: "cmyk", 10: "png", 17: "broken-exif", 23: "standard-huffman",
    34: "4:2:2", 39: "grey", 45: "large",
}  # fmt: skip
#: A camera's Exif header whose directory claims 65535 entries and ends at the first.
_BROKEN_EXIF = b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01\x0f\0\x02\0\0\0\x06"
_SAMPLINGS = (("4:4:4", 760), ("4:2:0", 205), ("grey", 20), ("4:2:2", 15))
_RESCALED_QUALITIES = ((96, 90), (86, 5), (92, 4), (99, 1))
_ORIGINAL_QUALITIES = ((75, 40), (85, 20), (90, 20), (67, 14), (95, 4), (100, 2))
_USUAL_SIZES = (
    ((500, 375), 130), ((500, 333), 75), ((375, 500), 45), ((333, 500), 30), ((500, 500), 10),
    ((500, 347), 40), ((500, 400), 40), ((363, 500), 35),
)  # fmt: skip
_ASPECTS = ((4 / 3, 8), (3 / 4, 4), (3 / 2, 5), (2 / 3, 3), (1, 4), (16 / 9, 1))
# Root of the area in pixels at evenly spaced quantiles, for pictures of unusual sizes.
_RESCALED_SIDES = (150, 180, 220, 250, 290, 345, 440, 550, 640, 720, 1100)
_ORIGINAL_SIDES = (64, 160, 215, 270, 340, 390, 450, 520, 600, 740, 1500)
# Strength of texture at evenly spaced quantiles; 256 is strong.
_DETAILS = (0, 48, 66, 82, 98, 114, 134, 158, 188, 228, 360)


def make_photograph(seed: int, split: int, class_index: int, number: int, classes: int) -> bytes:
    """Return the bytes of one file: of the split 0 (train) or 1, the ``number``-th of its class."""
    rng = np.random.default_rng([seed, split, class_index, number])
    ordinal = number * classes + class_index
    # Roberts' R4 sequence fills the unit cube evenly: a small sample has the shares of a large one.
    starts = np.random.SeedSequence([seed, split]).generate_state(4)
    steps = np.array((3679390609, 3152041523, 2700274806, 2313257605))
    at_sampling, at_size, at_quality, at_detail = (starts + steps * ordinal) % (1 << 32) / (1 << 32)
    kind = _ODDITIES.get(ordinal % 500, "usual")
    # Pillow decodes CMYK, with a warning, so only the split for validation has it.
    own = {"cmyk": "cmyk" * split, "png": "png", "grey": "grey", "4:2:2": "4:2:2", "large": "4:2:0"}
    sampling = own.get(kind) or _pick(_SAMPLINGS, at_sampling)
    # ImageNet's 4:2:0 and 4:2:2 files are unchanged originals; the others were rescaled.
    original = sampling in ("4:2:0", "4:2:2")
    usual_share = 0.1 if original else 0.87
    if kind == "large":
        width, height = 1600, 1200
    elif at_size < usual_share:
        width, height = _pick(_USUAL_SIZES, at_size / usual_share)
    else:
        sides = _ORIGINAL_SIDES if original else _RESCALED_SIDES
        side = _quantile(sides, (at_size - usual_share) / (1 - usual_share))
        aspect = math.sqrt(_pick(_ASPECTS, rng.random()))
        width, height = round(side * aspect), round(side / aspect)
    quality = _pick(_ORIGINAL_QUALITIES if original else _RESCALED_QUALITIES, at_quality)
    most = 360 if quality == 96 else 256  # an optimised file must fit into Pillow's buffer
    picture = paint(rng, width, height, class_index, min(_quantile(_DETAILS, at_detail), most))
    file = io.BytesIO()
    if sampling in ("png", "cmyk"):
        picture = picture.convert("RGB").convert("RGB" if sampling == "png" else "CMYK")
    elif sampling == "grey":
        picture = picture.getchannel(0)
    picture.save(
        file,
        "PNG" if sampling == "png" else "JPEG",
        quality=quality,
        subsampling={"4:2:0": 2, "4:2:2": 1}.get(sampling, 0),
        optimize=kind != "standard-huffman",
        progressive=kind == "progressive",
        exif=_BROKEN_EXIF if kind == "broken-exif" else b"",
    )
    return file.getvalue()


def _pick(table: tuple[tuple[Any, int], ...], where: float) -> Any:
    ends = np.cumsum([weight for _, weight in table])
    return table[int(np.searchsorted(ends, where * ends[-1], "right"))][0]


def _quantile(table: tuple[int, ...], where: float) -> int:
    return round(np.interp(where, np.linspace(0, 1, len(table)), table))


def paint(rng: np.random.Generator, width: int, height: int, kind: int, detail: int) -> Image.Image:
    """Paint a photograph of a class, in mode YCbCr; a usual one has a detail of 128."""

    def between(low: int, high: int) -> int:
        return int(rng.integers(low, high + 1))

    # Steps of 7 in 25 keep neighbouring classes far apart.
    turn = 2 * math.pi * (kind * 7 % 25) / 25
    hue = round(100 * math.cos(turn)), round(100 * math.sin(turn))
    tint, contrast, mood = between(3, 16), between(30, 160), between(50, 175)

    def colour(strength: int) -> list[int]:
        return [128 + part * strength // 100 for part in hue]

    planes = [Image.new("L", (width, height), level) for level in (mood, *colour(tint))]

    def lay(left: int, top: int, across: int, down: int, corners: int, levels: list[int]) -> None:
        """Draw a polygon with corners on an ellipse."""
        turns = np.arange(corners) * 2 * np.pi / corners
        edge = np.rint([left + across * np.cos(turns), top + down * np.sin(turns)])
        for plane, level in zip(planes, levels, strict=True):
            ImageDraw.Draw(plane).polygon(edge.T.ravel().tolist(), fill=min(max(level, 6), 249))

    # A smooth picture has few edges; sizes fall off as a power law.
    for number in range(30 * min(detail + 16, 96) // 96):
        radius = max(1, min(width, height) * between(60, 100) // (100 + 35 * number))
        across, down = (radius * between(40, 160) // 100 for _ in range(2))
        hues = [level + between(-12, 12) for level in colour(tint)]
        levels = [mood + between(-contrast, contrast), *hues]
        lay(between(0, width), between(0, height), across, down, between(3, 24), levels)
    side = min(width, height) * between(32, 50) // 100
    centre = width * between(38, 62) // 100, height * between(38, 62) // 100
    lay(*centre, side, side, 3 + kind % 6, [between(30, 225), *colour(between(22, 48))])

    def noise(across: int, down: int, strength: int) -> NDArray[np.int16]:
        drawn = np.frombuffer(rng.bytes(across * down), np.int8).astype(np.int16)
        return drawn.reshape(down, across) * min(strength, 255) >> 8

    luma, cb, cr = (np.asarray(plane).astype(np.int16) for plane in planes)
    for octave, usual in enumerate((44, 58, 54, 48, 44, 44, 44)):
        # The detail scales the finest; the coarser are the picture's slow changes of light.
        strength = usual * detail // 256 if octave < 3 else usual * contrast // 100
        layer = noise(max(2, -(-width >> octave)), max(2, -(-height >> octave)), strength) + 128
        scaled = Image.fromarray(layer.astype(np.uint8)).resize((width, height), 2)
        luma += np.asarray(scaled).astype(np.int16) - 128
    grain = noise(width, height, 12 * detail // 256)
    cb += grain
    cr += grain[::-1, ::-1]  # reuse the grain: drawing it is slow
    planes = [Image.fromarray(np.clip(p, 0, 255).astype(np.uint8)) for p in (luma, cb, cr)]
    return Image.merge("YCbCr", planes)
