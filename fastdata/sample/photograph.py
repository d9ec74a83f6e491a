"""Paint one made photograph: the picture itself, before any file format.

The picture has what gives a photograph its statistics: overlapping sharp-edged shapes of many
sizes ("dead leaves"), noise in octaves whose strength differs from shape to shape, soft colour,
and grain. Its class decides what a model can learn: the colour and shape of the subject, the
direction of the stripes on it, and a tint of the background.

All arithmetic on pixels is on whole numbers, so that the same draws give the same pixels on every
machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from fastdata.sample import texture
from fastdata.sample.texture import Plane

# Pairwise coprime, with a product over MAX_CLASSES: no two classes share all three.
_HUES = 25
_SHAPES = 6
_DIRECTIONS = 7
MAX_CLASSES = 1000


def _vector(length: int, turn: float) -> tuple[int, int]:
    """Return a vector of this length, turned by so many whole turns from (length, 0)."""
    angle = 2 * math.pi * turn
    return round(length * math.cos(angle)), round(length * math.sin(angle))


# Directions of colour as (Cb, Cr), and of stripes (half a turn holds them all).
_HUE_TABLE = tuple(_vector(100, hue / _HUES) for hue in range(_HUES))
_DIRECTION_TABLE = tuple(_vector(64, step / _DIRECTIONS / 2) for step in range(_DIRECTIONS))

_LEAVES = 30
_COLOUR_GRAIN = 12

_Points = list[tuple[int, int]]


def _round_origin(steps: int, radii: Sequence[int]) -> _Points:
    """Return points round the origin, their distances taken from radii in turn."""
    return [_vector(radii[step % len(radii)], (step + 0.3) / steps) for step in range(steps)]


# Disc, triangle, square, star, cross, lens; of about the same area.
_OUTLINES: tuple[_Points, ...] = (
    _round_origin(32, (1000,)),
    _round_origin(3, (1450,)),
    _round_origin(4, (1230,)),
    _round_origin(10, (1500, 600)),
    _round_origin(16, (1300, 1300, 560, 560)),
    [(x * 14 // 10, y * 6 // 10) for x, y in _round_origin(24, (1000,))],
)


def paint(
    rng: np.random.Generator, width: int, height: int, class_index: int, detail: int
) -> Image.Image:
    """Paint the photograph that the generator's draws decide.

    Args:
        rng: Where every random choice is drawn from.
        width: Pixels across, at least 16.
        height: Pixels down, at least 16.
        class_index: What the picture shows, 0 to MAX_CLASSES - 1.
        detail: Strength of texture and grain: 0 none, 128 that of a usual photograph, 1024 the
            most.

    Returns:
        An image of mode YCbCr and size (width, height), full range.
    """
    dice = _Dice(rng)
    contrast = dice.between(30, 160)
    scene = _Scene(dice, width, height, class_index, contrast)
    # A smooth picture has few edges as well as little grain.
    scene.lay_leaves(_LEAVES * min(detail + 16, 96) // 96)
    scene.lay_subject()
    half_cb, half_cr, half_gain = _drift(rng, scene.coarse)
    cb, cr, gain = (texture.enlarge(p, width, height) for p in (half_cb, half_cr, half_gain))
    luma = texture.octaves(rng, gain, scene.stripes(), detail, contrast)
    # Drawn at twice the size and reduced: edges without stairs.
    luma += np.asarray(scene.fine.reduce(2))
    grain = texture.noise(rng, width, height)
    grain *= _COLOUR_GRAIN * detail // 256
    grain >>= 8
    # One drawing of grain serves both colours, turned half round for one, for drawing is slow.
    cb += grain
    cr += grain[::-1, ::-1]
    planes = [Image.fromarray(np.clip(p, 0, 255).astype(np.uint8)) for p in (luma, cb, cr)]
    return Image.merge("YCbCr", planes)


class _Dice:
    """Whole numbers in any range, drawn in one go because single draws are slow."""

    def __init__(self, rng: np.random.Generator) -> None:
        # A leaf uses 10, everything else together less than 50.
        self._draws: list[int] = rng.integers(0, 1 << 16, size=10 * _LEAVES + 50).tolist()

    def between(self, low: int, high: int) -> int:
        """Return a whole number from low to high, both included."""
        return low + self._draws.pop() * (high - low + 1) // 65536


class _Scene:
    """Shapes laid over one another.

    Attributes:
        fine: Brightness, mode L, at twice the picture's size.
        coarse: Colour and texture at half the size: mode RGB holding Cb, Cr and texture gain, 128
            the usual gain.
    """

    def __init__(
        self, dice: _Dice, width: int, height: int, class_index: int, contrast: int
    ) -> None:
        self._dice = dice
        self._size = width, height
        self._class_index = class_index
        self._contrast = contrast
        # Steps of 7 in 25 keep neighbouring classes far apart.
        self._hue = _HUE_TABLE[class_index * 7 % _HUES]
        # Other things in the picture have a colour of their own, chosen by chance.
        self._other_hue = _HUE_TABLE[dice.between(0, _HUES - 1)]
        self._tint = dice.between(3, 16)
        self._liveliness = dice.between(2, 44)
        self._mood = dice.between(50, 175)
        half_size = (width + 1) // 2, (height + 1) // 2
        self.fine = Image.new("L", (2 * width, 2 * height), self._mood)
        self.coarse = Image.new("RGB", half_size, self._shade(self._liveliness // 3))
        self._subject = Image.new("L", half_size)
        self._fine_pen = ImageDraw.Draw(self.fine)
        self._coarse_pen = ImageDraw.Draw(self.coarse)

    def lay_leaves(self, count: int) -> None:
        """Lay this many chance shapes, large ones first."""
        width, height = self._size
        dice = self._dice
        for leaf in range(count):
            # Sizes fall off as a power law: many small things, few large ones.
            radius = max(2, 2 * min(self._size) * dice.between(60, 100) // (100 + 35 * leaf))
            points = _outline(
                dice.between(0, _SHAPES - 1),
                (dice.between(0, 2 * width), dice.between(0, 2 * height)),
                (radius * dice.between(40, 160), radius * dice.between(40, 160)),
            )
            grey = self._mood + dice.between(-self._contrast, self._contrast)
            self._lay(points, min(max(grey, 6), 249), self._shade(self._liveliness))

    def lay_subject(self) -> None:
        """Lay the shape that shows the class."""
        width, height = self._size
        dice = self._dice
        radius = min(self._size) * dice.between(64, 100)
        centre = width * dice.between(75, 125) // 100, height * dice.between(75, 125) // 100
        points = _outline(self._class_index % _SHAPES, centre, (radius, radius))
        grey = min(max(self._mood + dice.between(-60, 60), 30), 225)
        bright = dice.between(22, 48)
        cb, cr = (128 + part * bright // 100 for part in self._hue)
        self._lay(points, grey, (cb, cr, dice.between(40, 200)))
        ImageDraw.Draw(self._subject).polygon([(x // 4, y // 4) for x, y in points], fill=255)

    def stripes(self) -> Plane:
        """Return the stripes on the subject at half size, grey levels about 0."""
        size = self._subject.size
        dice = self._dice
        direction = _DIRECTION_TABLE[self._class_index % _DIRECTIONS]
        period = max(4, min(size) // dice.between(10, 20))
        stripes = texture.wave(
            size, direction, period, phase=dice.between(0, 255), swing=dice.between(8, 24)
        )
        # All bits set where the subject is, none elsewhere.
        stripes &= -(np.asarray(self._subject) >> 7).astype(np.int16)
        return stripes

    def _shade(self, strength: int) -> tuple[int, int, int]:
        own = self._dice.between(-strength, strength)
        cb, cr = (
            128 + (part * self._tint + other * own) // 100
            for part, other in zip(self._hue, self._other_hue, strict=True)
        )
        # Squared, for most surfaces are smooth.
        return cb, cr, 16 + self._dice.between(0, 15) ** 2

    def _lay(self, points: _Points, grey: int, shade: tuple[int, int, int]) -> None:
        self._fine_pen.polygon(points, fill=grey)
        self._coarse_pen.polygon([(x // 4, y // 4) for x, y in points], fill=shade)


def _outline(kind: int, centre: tuple[int, int], stretch: tuple[int, int]) -> _Points:
    """Return the corners of a shape; stretch is a hundred times its radius across and down."""
    return [
        (centre[0] + x * stretch[0] // 100_000, centre[1] + y * stretch[1] // 100_000)
        for x, y in _OUTLINES[kind]
    ]


def _drift(rng: np.random.Generator, coarse: Image.Image) -> list[Plane]:
    """Return the planes of an RGB image (Cb, Cr, gain) with slow changes and specks added."""
    width, height = coarse.size
    quarter = (width + 1) // 2, (height + 1) // 2
    changes = Image.frombytes("RGB", (8, 6), rng.bytes(8 * 6 * 3))
    changes = changes.resize(quarter, Image.Resampling.BICUBIC)
    specks = texture.noise(rng, *quarter)
    specks >>= 5
    planes = []
    for plane, change, strength in zip(coarse.split(), changes.split(), (18, 18, 130), strict=True):
        slow = np.asarray(change).astype(np.int16)
        slow -= 128
        slow *= strength
        slow >>= 8
        slow += specks
        drifted = texture.enlarge(slow, width, height)
        drifted += np.asarray(plane)
        planes.append(np.clip(drifted, 0, 255))
    return planes
