"""Rate of decoding samples from memory, by the native engine and its fallbacks."""

from __future__ import annotations

import io
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from PIL import Image

from fastdata import machine
from fastdata.decode.codecs import kind_of, probe
from fastdata.decode.engine import PendingBatch
from fastdata.decode.jpeg import DecodeError, jpeg_info, seek_points_many
from fastdata.doctor.findings import Speed
from fastdata.errors import DataError
from fastdata.plan.draws import epoch_key, sample_keys
from fastdata.storage.encodings import ENCODINGS
from fastdata.storage.source import DEFAULT_STRIDE, upright_size
from fastdata.text import human_count
from fastdata.transforms.compile import Program, Recipe

if TYPE_CHECKING:
    from fastdata.doctor.opening import Opened

#: Images that a thread decodes between two looks at the clock.
_BATCH = 16


class Encoded(NamedTuple):
    """Image in memory.

    Attributes:
        number: Its sample's.
        data: Bytes, or pixels: uint8, height x width x 3.
        width: In pixels.
        height: In pixels.
        table: Its seek points; None without.
        learnable: The seek points that it could have; None if it can have none.
        orientation: EXIF orientation that it is turned by; 0 if it is not. Width and height are
            then the turned image's.
        kind: Its encoding, of `fastdata.storage.encodings.ENCODINGS`.
        pillow: Whether it is no JPEG that the core decodes: the codec table does, or Pillow.
    """

    number: int
    data: Any
    width: int
    height: int
    table: bytes | None
    learnable: bytes | None
    orientation: int
    kind: str
    pillow: bool


def pillow_share(images: Sequence[Encoded]) -> float:
    """Return the share of images that Pillow decodes, 0 to 1."""
    return sum(image.pillow for image in images) / len(images)


def pillow_kinds(images: Sequence[Encoded]) -> tuple[str, ...]:
    """Return the kinds that Pillow decodes, the most frequent first."""
    kinds = Counter(image.kind for image in images if image.pillow)
    return tuple(kind for kind, _ in kinds.most_common())


def rewritable_share(images: Sequence[Encoded]) -> float:
    """Return the share of natively decoded JPEGs that are not baseline, 0 to 1."""
    rewritable = (image.kind == "jpeg-progressive" and not image.pillow for image in images)
    return sum(rewritable) / len(images)


def seekable_share(images: Sequence[Encoded]) -> float:
    """Return the share of images that have seek points, or can have none, 0 to 1."""
    return sum(image.table is not None or image.learnable is None for image in images) / len(images)


def load(
    opened: Opened, blobs: dict[int, bytes], recipe: Recipe
) -> tuple[list[Encoded], dict[int, str]]:
    """Probe and decode each image once; return the images, and problems by sample number.

    Raises:
        DataError: None of them can be decoded.
    """
    numbers = sorted(blobs)
    gathered = opened.source.gather(np.array(numbers, np.int64)).blobs["image"]
    stride = DEFAULT_STRIDE
    if opened.dataset is not None:
        stride = opened.dataset.manifest.options.get("seek_points") or DEFAULT_STRIDE
    tables = seek_points_many([blobs[number] for number in numbers], stride)
    images: list[Encoded] = []
    problems: dict[int, str] = {}
    for at, (number, table) in enumerate(zip(numbers, tables, strict=True)):
        blob, code = blobs[number], int(gathered.extents.encodings[at])
        turn = int(gathered.extents.orientations[at])
        if turn < 0:
            turn = probe(blob).orientation
        learnable = None if isinstance(table, DecodeError) else table
        has = learnable if gathered.extents.seekable[at] else None
        info = jpeg_info(blob)
        kind = kind_of(blob)
        pillow = bool(gathered.pillow[at]) or not info.native
        data: Any = blob
        try:
            if code >= 0 and ENCODINGS[code] == "raw":
                size = int(gathered.widths[at]), int(gathered.heights[at])
                data = np.frombuffer(blob, np.uint8).reshape(*upright_size(*size, turn)[::-1], 3)
                kind, pillow, learnable = "raw", False, None
            else:
                with Image.open(io.BytesIO(blob)) as opened_image:
                    size = upright_size(opened_image.width, opened_image.height, turn)
            image = Encoded(number, data, *size, has, learnable, turn, kind, pillow)
            if failed := _decode([image], recipe, 0):
                raise failed[0]
        except Exception as error:  # Pillow's plugins raise almost anything
            problems[number] = str(error)
        else:
            images.append(image)
    if not images:
        number, problem = next(iter(problems.items()))
        tried = human_count(len(problems), "sample")
        raise DataError(
            f"{opened.data.location}: none of {tried} can be decoded; sample {number}: {problem}",
            "See what is damaged with fastdata verify.",
        )
    return images, problems


def core_rates(
    variants: dict[str, Sequence[Encoded]], recipe: Recipe, seconds: float
) -> dict[str, float]:
    """Measure images/s of one thread by its CPU time, for several variants of the same images.

    They take turns, a few images each, with the same crops: what else the machine does slows all of
    them alike, so that their ratios hold where their rates scatter.
    """
    spent = dict.fromkeys(variants, 0.0)
    begun = time.perf_counter()
    done = 0
    while not done or time.perf_counter() - begun < seconds:
        for name, images in variants.items():
            some = _some(images, 0, done)
            before = time.thread_time()
            _decode(some, recipe, done)
            spent[name] += time.thread_time() - before
        done += _BATCH
    return {name: done / seconds for name, seconds in spent.items()}


def rate(images: Sequence[Encoded], recipe: Recipe, threads: int, seconds: float) -> Speed:
    """Measure how fast images are decoded."""
    begun = time.perf_counter()
    stolen = machine.stolen_share()

    def work(thread: int) -> tuple[int, machine.CpuTime]:
        done = 0
        before = machine.thread_times()
        while not done or time.perf_counter() - begun < seconds:
            _decode(_some(images, thread, done), recipe, done + thread)
            done += _BATCH
        return done, machine.thread_times() - before

    with ThreadPoolExecutor(threads) as pool:
        worked = list(pool.map(work, range(threads)))
    measured = sum(done for done, _ in worked) / (time.perf_counter() - begun)
    spent = machine.CpuTime(*map(sum, zip(*(times for _, times in worked), strict=True)))
    return Speed(measured, 1 - (1 - spent.lost(threads)) * (1 - stolen()))


def _some(images: Sequence[Encoded], seed: int, start: int) -> list[Encoded]:
    """Return a batch of images, from a position in a random order."""
    order = np.random.default_rng(seed).permutation(len(images))
    return [images[at] for at in np.take(order, np.arange(start, start + _BATCH), mode="wrap")]


def _decode(images: Sequence[Encoded], recipe: Recipe, key: int) -> list[DecodeError]:
    """Decode random crops as the loader does, with the core or else Pillow; return the errors."""
    widths = np.array([image.width for image in images])
    heights = np.array([image.height for image in images])
    indices = np.arange(len(images))
    samples = [image.data for image in images]
    tables = [image.table for image in images]
    skip = np.zeros(len(images), np.bool_)
    views: list[PendingBatch] = []
    for number in reversed(range(len(recipe.programs))):  # the first contains the others
        program = recipe.programs[number]
        cuts = program.draw(widths, heights, sample_keys(epoch_key(0, key), indices, number))
        skip |= cuts["too_small"] > 0
        pending = PendingBatch(
            samples,
            np.empty(_shape(program, len(images)), output_dtype(program)),
            seek_points=tables,
            orientations=np.array([image.orientation for image in images], np.int8),
            skip=skip,
            views=() if number else views,
            **program.batch_options(cuts),
        )
        views.append(pending)
    pending.run()
    return pending.failures()


def _shape(program: Program, count: int) -> tuple[int, int, int, int]:
    """Shape of a program's results."""
    return count, program.size[1], program.size[0], program.output.channels


def output_dtype(program: Program) -> np.dtype[Any]:
    """Return numpy's dtype for a program's results; uint16 for bfloat16."""
    dtype = program.output.dtype
    return np.dtype(np.uint16 if dtype == "bfloat16" else dtype)


def with_seek_points(images: Sequence[Encoded]) -> list[Encoded]:
    """Return the same images, with all seek points that they can have."""
    return [image._replace(table=image.learnable) for image in images]
