"""How fast samples are decoded, from memory, by the native engine and what helps it."""

from __future__ import annotations

import io
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastdata.decode.engine import (
    DEFAULT_STRIDE,
    DecodeError,
    Engine,
    PendingBatch,
    jpeg_info,
    seek_points_many,
)
from fastdata.doctor.opening import Opened
from fastdata.errors import DataError
from fastdata.plan.draws import epoch_key
from fastdata.storage.probe import ENCODINGS
from fastdata.transforms.compile import Program

#: Images that a thread decodes between two looks at the clock.
_BATCH = 16
#: Images of other kinds that are encoded anew, to see what that would give.
_REENCODED = 48
_QUALITY = 90


@dataclass(frozen=True)
class Images:
    """Encoded images in memory.

    Attributes:
        data: Bytes, or pixels: uint8, height x width x 3.
        widths: In pixels, int64, (N,).
        heights: As ``widths``.
        tables: Seek points that the dataset has; None for an image without.
        learnable: Seek points that it could have; None for what has none.
        kinds: Encodings, of `fastdata.storage.probe.ENCODINGS`.
        pillow: bool, (N,): what Pillow decodes.
    """

    data: list[Any]
    widths: npt.NDArray[np.int64]
    heights: npt.NDArray[np.int64]
    tables: list[bytes | None]
    learnable: list[bytes | None]
    kinds: list[str]
    pillow: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.data)

    def only(self, chosen: npt.NDArray[Any]) -> Images:
        """Some of them, by their places."""
        places = chosen.tolist()
        return Images(
            [self.data[at] for at in places],
            self.widths[chosen],
            self.heights[chosen],
            [self.tables[at] for at in places],
            [self.learnable[at] for at in places],
            [self.kinds[at] for at in places],
            self.pillow[chosen],
        )

    @property
    def pillow_kinds(self) -> tuple[str, ...]:
        """What Pillow decodes, the most frequent kind first."""
        kinds = Counter(kind for kind, by in zip(self.kinds, self.pillow, strict=True) if by)
        return tuple(kind for kind, _ in kinds.most_common())

    @property
    def seekable_share(self) -> float:
        """Part that has seek points, or can have none."""
        lacking = sum(
            table is None and other is not None
            for table, other in zip(self.tables, self.learnable, strict=True)
        )
        return 1 - lacking / len(self)


def load(opened: Opened, blobs: dict[int, bytes]) -> tuple[Images, dict[int, str]]:
    """Looks at what was read.

    Args:
        opened: The dataset.
        blobs: By sample number, the bytes.

    Returns:
        The images; and by sample number, what is wrong with those that are no images.
    """
    numbers = np.array(sorted(blobs), np.int64)
    gathered = opened.source.gather(numbers)
    stride = DEFAULT_STRIDE
    if opened.dataset is not None:
        stride = opened.dataset.manifest.options.get("seek_points") or DEFAULT_STRIDE
    found: list[tuple[Any, int, int, bytes | None, bytes | None, str, bool]] = []
    problems: dict[int, str] = {}
    made = seek_points_many([blobs[number] for number in numbers.tolist()], stride)
    for at, number in enumerate(numbers.tolist()):
        blob: Any = blobs[number]
        width, height = int(gathered.widths[at]), int(gathered.heights[at])
        code = int(gathered.extents.encodings[at])
        kind = ENCODINGS[code] if code >= 0 else ""
        if kind == "raw":
            pixels = np.frombuffer(blob, np.uint8)
            if pixels.size != width * height * 3:
                problems[number] = f"not {width} x {height} pixels"
                continue
            found.append((pixels.reshape(height, width, 3), width, height, None, None, kind, False))
            continue
        info = jpeg_info(blob)
        kind = kind or ("jpeg-progressive" if info.progressive else info.encoding)
        if not width:
            width, height = info.width, info.height
        if not (width and info.native):
            try:
                with Image.open(io.BytesIO(blob)) as image:
                    width, height = image.size
            except Exception as error:  # Pillow's plugins raise almost anything
                problems[number] = f"no image that Pillow knows: {error}"
                continue
        table = made[at]
        learnable = None if isinstance(table, DecodeError) else table
        has = learnable if gathered.extents.seekable[at] else None
        pillow = not info.native or bool(gathered.pillow[at])
        found.append((blob, width, height, has, learnable, kind, pillow))
    columns: list[Any] = [list(column) for column in zip(*found, strict=True)] or [[]] * 7
    images = Images(
        columns[0],
        np.array(columns[1], np.int64),
        np.array(columns[2], np.int64),
        columns[3],
        columns[4],
        columns[5],
        np.array(columns[6], np.bool_),
    )
    return images, problems


def check(images: Images, program: Program) -> dict[int, str]:
    """Decodes each image once; what is wrong with those that cannot be decoded, by place."""
    problems = {}
    for start in range(0, len(images), _BATCH):
        places = np.arange(start, min(start + _BATCH, len(images)))
        for error in _decode(images.only(places), program, 0):
            problems[start + (error.index or 0)] = str(error)
    return problems


@dataclass(frozen=True)
class Variant:
    """Images, and whether the core may decode them at 1/2, 1/4 or 1/8."""

    images: Images
    scaled: bool = False


def core_rates(variants: dict[str, Variant], program: Program, seconds: float) -> dict[str, float]:
    """Images/s of one thread by its CPU time, of several variants of the same images.

    They take turns, a few images each, with the same crops: what else the machine does slows
    all of them alike, so that their ratios hold where their rates scatter.

    Args:
        variants: What to decode, by name, over and over; at least one image each.
        program: What becomes of them.
        seconds: How long, all together.
    """
    orders = {
        name: np.random.default_rng(0).permutation(len(variant.images))
        for name, variant in variants.items()
    }
    spent = dict.fromkeys(variants, 0.0)
    begun = time.perf_counter()
    done = 0
    while not done or time.perf_counter() - begun < seconds:
        for name, variant in variants.items():
            places = np.take(orders[name], np.arange(done, done + _BATCH), mode="wrap")
            before = time.thread_time()
            _decode(variant.images.only(places), program, done, scaled=variant.scaled)
            spent[name] += time.thread_time() - before
        done += _BATCH
    return {name: done / seconds for name, seconds in spent.items()}


def rate(images: Images, program: Program, threads: int, seconds: float) -> float:
    """Images/s of decoding.

    Args:
        images: What to decode, over and over; at least one.
        program: What becomes of them.
        threads: How many threads decode.
        seconds: How long.
    """
    if not images.pillow.any():
        return _engine_rate(images, program, threads, seconds)
    begun = time.perf_counter()

    def work(thread: int) -> int:
        order = np.random.default_rng(thread).permutation(len(images))
        done = 0
        while True:
            places = np.take(order, np.arange(done, done + min(_BATCH, len(order))), mode="wrap")
            _decode(images.only(places), program, done + thread)
            done += len(places)
            if time.perf_counter() - begun >= seconds:
                return done

    # Pillow's part is Python's, so each thread does its own, as the loader's helpers do.
    with ThreadPoolExecutor(threads) as pool:
        done = sum(pool.map(work, range(threads)))
    return done / (time.perf_counter() - begun)


def _engine_rate(images: Images, program: Program, threads: int, seconds: float) -> float:
    """Images/s of the native engine alone: some batches are always under way."""
    order = np.random.default_rng(0).permutation(len(images))
    size = 4 * max(_BATCH, threads)
    done = taken = 0
    with Engine(threads) as engine:
        pending: deque[tuple[PendingBatch, int]] = deque()
        begun = time.perf_counter()
        while pending or time.perf_counter() - begun < seconds:
            while len(pending) < 3 and time.perf_counter() - begun < seconds:
                places = np.take(order, np.arange(taken, taken + size), mode="wrap")
                batch = _prepare(images.only(places), program, taken)
                engine.begin(batch)
                pending.append((batch, len(places)))
                taken += len(places)
            batch, count = pending.popleft()
            batch.raw_failures()
            done += count
        return done / (time.perf_counter() - begun)


def _decode(
    images: Images, program: Program, key: int, *, scaled: bool = False
) -> list[DecodeError]:
    """Decodes images as the loader does: the core what it can, Pillow what is left."""
    pending = _prepare(images, program, key, scaled=scaled)
    pending.run()
    return pending.failures()


def _prepare(images: Images, program: Program, key: int, *, scaled: bool = False) -> PendingBatch:
    """A batch of images, cropped at random."""
    keys = np.arange(len(images), dtype=np.uint64) + np.uint64(epoch_key(0, key) >> 1)
    cut = program.draw(images.widths, images.heights, keys)
    # What is cut beside the image is for Pillow alone; it is rare, and not measured.
    skip = np.zeros(len(images), np.bool_) if cut.odd is None else cut.odd.copy()
    skip[list(cut.too_small)] = True
    output = program.output
    dtype = np.uint16 if output.dtype == "bfloat16" else np.dtype(output.dtype)
    out = np.empty((len(images), program.size[1], program.size[0], 3), dtype)
    return PendingBatch(
        images.data,
        out,
        seek_points=images.tables,
        skip=skip,
        dct_scaling=scaled,
        **program.batch_options(cut),
    )


def with_seek_points(images: Images) -> Images:
    """The same images, as if all had the seek points that they can have."""
    return replace(images, tables=images.learnable)


def without_seek_points(images: Images) -> Images:
    """The same images, as if none had seek points."""
    return replace(images, tables=[None] * len(images))


def reencoded(images: Images) -> Images | None:
    """As many of each kind, what Pillow decodes encoded anew as baseline JPEGs; None if none is."""
    pillow = np.flatnonzero(images.pillow)
    if not len(pillow):
        return None
    native = np.flatnonzero(~images.pillow)
    some = pillow[:_REENCODED]
    others = native[: round(len(some) * len(native) / len(pillow))]
    new = images.only(np.concatenate([some, others]))
    data, tables = list(new.data), list(new.tables)
    for at in range(len(some)):
        file = io.BytesIO()
        with Image.open(io.BytesIO(data[at])) as image:
            image.convert("RGB").save(file, "JPEG", quality=_QUALITY)
        data[at] = file.getvalue()
        (table,) = seek_points_many([data[at]], DEFAULT_STRIDE)
        tables[at] = None if isinstance(table, DecodeError) else table
    return replace(new, data=data, tables=tables, pillow=np.zeros(len(new), np.bool_))


def require_some(images: Images, problems: dict[int, str], opened: Opened) -> None:
    """Raises DataError if there is nothing to decode."""
    if len(images):
        return
    number, problem = next(iter(problems.items()))
    raise DataError(
        f"{opened.location}: none of {len(problems)} samples can be decoded; sample {number}: "
        f"{problem}",
        "See what is damaged with fastdata verify.",
    )
