"""Decoding speed: a stage table, and against libjpeg-turbo and Pillow.

    python -m fastdata.benchmarks.decode --images imagenet/train --out decode.json

RandomResizedCrop(224) and a coin-tossed flip to uint8, images in memory, one thread (pin it:
``taskset -c 1``). All contenders take turns within one run; pixels are compared before
anything is timed; figures are medians with the spread (smallest to largest) beside them.
"""

from __future__ import annotations

import io
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np
import PIL
from fastdata.benchmarks.adapters._transforms import random_resized_box
from fastdata.benchmarks.measure import Figures, Spread, interleave, machine, out_option, report
from PIL import Image, features

from fastdata import _native
from fastdata.decode import PendingBatch, jpeg_info, seek_points

SIZE = 224
BATCH = 64
_BUILDING = "building seek points"

#: What a contender does with each batch that it has decoded.
Keep: TypeAlias = Callable[[slice], None]
#: Decodes a whole JPEG with so many components.
Whole: TypeAlias = Callable[[bytes, int], Any]
#: The SIMD level a contender runs at, and the contender.
Contender: TypeAlias = tuple[str, Callable[[Keep], None]]


class Work:
    """Images with seek points, a crop and a flip each."""

    def __init__(self, folder: Path, stride: int) -> None:
        files = sorted(folder.glob("**/*.JPEG"))
        blobs = [file.read_bytes() for file in files]
        self.blobs = [blob for blob in blobs if jpeg_info(blob).native]
        if not self.blobs:
            sys.exit(f"no baseline JPEGs in {folder}: name another folder with --images")
        self.tables = [seek_points(blob, stride) for blob in self.blobs]
        rng = random.Random(0)
        infos = [jpeg_info(blob) for blob in self.blobs]
        drawn = [random_resized_box(i.width, i.height, rng.uniform) for i in infos]
        self.boxes = [(x, y, x + w, y + h) for x, y, w, h in drawn]
        self.flips = [rng.random() < 0.5 for _ in self.blobs]
        self.channels = [i.components for i in infos]
        self.out = np.empty((BATCH, SIZE, SIZE, 3), np.uint8)


def batches(work: Work) -> Iterator[slice]:
    """Yield slices of one batch each."""
    for begin in range(0, len(work.blobs), BATCH):
        yield slice(begin, min(begin + BATCH, len(work.blobs)))


def decode(work: Work, samples: Sequence[Any], part: slice, tables: Sequence[bytes] | None) -> None:
    """Decode one batch in this thread, of JPEGs or pixels."""
    pending = PendingBatch(
        samples,
        work.out[: part.stop - part.start],
        regions=work.boxes[part],
        flips=work.flips[part],
        seek_points=tables,
        fallback="never",
    )
    pending._job.run()
    pending.result()


def run_native(work: Work, keep: Keep, *, indexed: bool) -> None:
    """Decode with the native core, with seek points or without; call keep(slice) for each batch."""
    for part in batches(work):
        decode(work, work.blobs[part], part, work.tables[part] if indexed else None)
        keep(part)


def run_turbo(work: Work, keep: Keep, *, whole: Whole) -> None:
    """Decode whole images with libjpeg-turbo, then resample with the core."""
    for part in batches(work):
        pixels = [whole(work.blobs[i], work.channels[i]) for i in range(part.start, part.stop)]
        decode(work, pixels, part, None)
        keep(part)


def run_pillow(work: Work, keep: Keep) -> None:
    """Decode and crop with Pillow, as torchvision does."""
    for part in batches(work):
        for row, i in enumerate(range(part.start, part.stop)):
            with Image.open(io.BytesIO(work.blobs[i])) as image:
                crop = image.convert("RGB").crop(work.boxes[i])
            crop = crop.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
            if work.flips[i]:
                crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            work.out[row] = np.asarray(crop)
        keep(part)


def contenders(work: Work) -> dict[str, Contender]:
    """Return the contenders that this machine can run, by name."""
    found: dict[str, Contender] = {}
    for level in _native.simd_levels():
        for indexed in (True, False):
            name = f"fastdata {level}" + ("" if indexed else ", no seek points")
            found[name] = level, partial(run_native, work, indexed=indexed)
    best = _native.simd_levels()[-1]
    try:
        import simplejpeg
    except ImportError:
        print("simplejpeg is not installed: libjpeg-turbo is left out", file=sys.stderr)
    else:

        def whole(blob: bytes, channels: int) -> Any:
            space = "GRAY" if channels == 1 else "RGB"
            return simplejpeg.decode_jpeg(blob, space, fastdct=False, fastupsample=False)

        name = f"libjpeg-turbo (simplejpeg {simplejpeg.__version__}), fastdata's resampler"
        found[name] = best, partial(run_turbo, work, whole=whole)
    found[f"Pillow {PIL.__version__}"] = best, partial(run_pillow, work)
    return found


def verify(work: Work, runs: Mapping[str, Contender]) -> None:
    """Compare every contender's pixels with Pillow's, before anything is timed."""
    results = {}
    for name, (level, run) in runs.items():
        _native.set_simd(level)
        kept: list[Any] = []

        def keep(part: slice, kept: list[Any] = kept) -> None:
            kept.append(work.out[: part.stop - part.start].copy())

        run(keep)
        results[name] = np.concatenate(kept).astype(np.int16)
    pillow = next(name for name in results if name.startswith("Pillow"))
    for name, pixels in results.items():
        worst = int(np.abs(pixels - results[pillow]).max())
        if worst > 1:
            sys.exit(f"{name}: pixels differ from Pillow's by {worst}: nothing was timed")


@click.command()
@click.option(
    "--images",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    required=True,
    help="A tree of .JPEG files.",
)
@click.option("--rounds", default=7, show_default=True)
@click.option("--stride", default=128, show_default=True, help="Pixels between seek points.")
@out_option
def main(images: Path, rounds: int, stride: int, out_path: Path | None) -> None:
    """Measure decoding against libjpeg-turbo and Pillow."""
    result = measure(Work(images, stride), rounds, stride)
    report(result, out_path, figures(result), stages(result))


def measure(work: Work, rounds: int, stride: int) -> dict[str, Any]:
    """Run the benchmark; return all figures as JSON values."""
    runs = contenders(work)
    verify(work, runs)
    count = len(work.blobs)

    def decoding(level: str, run: Callable[[Keep], None]) -> float:
        _native.set_simd(level)
        return _timed(partial(run, _ignore)) / count

    def building() -> float:
        return _timed(lambda: [seek_points(blob, stride) for blob in work.blobs]) / count

    turns: dict[str, Callable[[], float]] = {_BUILDING: building}
    turns |= {name: partial(decoding, *run) for name, run in runs.items()}
    times = interleave(turns, rounds)
    by_stage = {}
    for level in _native.simd_levels():
        _native.set_simd(level)
        _native.profile_start()
        run_native(work, _ignore, indexed=True)
        by_stage[level] = {name: ms / count for name, ms in _native.profile_stop().items()}
    return {
        "benchmark": "decode",
        "machine": machine(),
        "libjpeg_turbo_of_pillow": features.version("libjpeg_turbo"),
        "images": count,
        "building_milliseconds": times.pop(_BUILDING),
        "milliseconds": times,
        "growth": sum(map(len, work.tables)) / sum(map(len, work.blobs)),
        "stages": by_stage,
    }


def _ignore(part: slice) -> None:
    pass


def _timed(run: Callable[[], object]) -> float:
    """Return the milliseconds of a call."""
    begun = time.perf_counter()
    run()
    return (time.perf_counter() - begun) * 1e3


def figures(result: dict[str, Any]) -> Figures:
    """Return the table of results."""
    times = result["milliseconds"]
    turbo = next((times[name] for name in times if name.startswith("libjpeg-turbo")), None)
    rows = []
    for name, values in times.items():
        ratio = "" if turbo is None else str(Spread.of_ratios(turbo, values))
        rows.append([name, f"{Spread.of(values):.3f}", ratio])
    building = f"{Spread.of(result['building_milliseconds']):.3f}"
    growth = f"building seek points, {result['growth']:.2%} of the JPEGs' bytes"
    rows.append([growth, building, ""])
    return Figures(
        f"RandomResizedCrop({SIZE}) and flip to uint8, {result['images']:,} images, one thread",
        ["", "ms an image", "times libjpeg-turbo's speed"],
        rows,
    )


def stages(result: dict[str, Any]) -> Figures:
    """Return the time of each stage, by SIMD level."""
    by_level = result["stages"]
    names = list(next(iter(by_level.values())))
    rows = [[name, *(f"{by_level[level][name]:.4f}" for level in by_level)] for name in names]
    return Figures("By stage, with seek points, ms an image", ["", *by_level], rows)


if __name__ == "__main__":
    main()
