"""Decoding speed: a stage table, and against libjpeg-turbo and Pillow.

    python benchmarks/decode.py [--images DIR] [--repeat 7] [--json FILE]

RandomResizedCrop(224) and a coin-tossed flip to uint8, images in memory, one thread (pin it:
``taskset -c 1``). All contenders take turns within one run; pixels are compared before
anything is timed; figures are medians with the spread (smallest to largest) beside them.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import platform
import random
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import PIL
from PIL import Image, features

from fastdata import _native
from fastdata.decode import PendingBatch, jpeg_info, seek_points

SIZE = 224
BATCH = 64


def random_resized_crop(width: int, height: int, rng: random.Random) -> tuple:
    """Torchvision's RandomResizedCrop.get_params with its defaults."""
    for _ in range(10):
        area = width * height * rng.uniform(0.08, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            x, y = rng.randint(0, width - w), rng.randint(0, height - h)
            return x, y, x + w, y + h
    side = min(width, height)
    x, y = (width - side) // 2, (height - side) // 2
    return x, y, x + side, y + side


class Work:
    """The images, their seek points and one crop and flip each."""

    def __init__(self, folder: Path, stride: int):
        files = sorted(folder.glob("**/*.JPEG"))
        blobs = [file.read_bytes() for file in files]
        self.blobs = [blob for blob in blobs if jpeg_info(blob).native]
        if not self.blobs:
            sys.exit(f"no baseline JPEGs in {folder}: name another folder with --images")
        self.tables = [seek_points(blob, stride) for blob in self.blobs]
        rng = random.Random(0)
        infos = [jpeg_info(blob) for blob in self.blobs]
        self.boxes = [random_resized_crop(i.width, i.height, rng) for i in infos]
        self.flips = [rng.random() < 0.5 for _ in self.blobs]
        self.channels = [i.components for i in infos]
        self.out = np.empty((BATCH, SIZE, SIZE, 3), np.uint8)


def batches(work: Work):
    """The images in batches of one size, as slices."""
    for begin in range(0, len(work.blobs), BATCH):
        yield slice(begin, min(begin + BATCH, len(work.blobs)))


def decode(work: Work, samples, part: slice, tables) -> None:
    """One batch in this thread: JPEGs or pixels."""
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


def run_native(work: Work, keep, indexed: bool) -> None:
    """The native core, with seek points or without; calls keep(slice) for each batch."""
    for part in batches(work):
        decode(work, work.blobs[part], part, work.tables[part] if indexed else None)
        keep(part)


def run_turbo(work: Work, keep, whole) -> None:
    """libjpeg-turbo decodes all; the same resampler then."""
    for part in batches(work):
        pixels = [whole(work.blobs[i], work.channels[i]) for i in range(part.start, part.stop)]
        decode(work, pixels, part, None)
        keep(part)


def run_pillow(work: Work, keep) -> None:
    """What torchvision does with a PIL image."""
    for part in batches(work):
        for row, i in enumerate(range(part.start, part.stop)):
            with Image.open(io.BytesIO(work.blobs[i])) as image:
                crop = image.convert("RGB").crop(work.boxes[i])
            crop = crop.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
            if work.flips[i]:
                crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            work.out[row] = np.asarray(crop)
        keep(part)


def contenders(work: Work) -> dict:
    """Name: (SIMD level, what to time) of all that this machine can run."""
    found = {}
    for level in _native.simd_levels():
        for indexed in (True, False):
            name = f"fastdata {level}" + ("" if indexed else ", no seek points")
            found[name] = (level, lambda keep, i=indexed: run_native(work, keep, i))
    best = _native.simd_levels()[-1]
    try:
        import simplejpeg

        def simple(blob, channels):
            space = "GRAY" if channels == 1 else "RGB"
            return simplejpeg.decode_jpeg(blob, space, fastdct=False, fastupsample=False)

        name = f"libjpeg-turbo (simplejpeg {simplejpeg.__version__}) + fastdata's resampler"
        found[name] = (best, lambda keep: run_turbo(work, keep, simple))
    except ImportError:
        print("simplejpeg is not installed: left out", file=sys.stderr)
    try:
        from turbojpeg import TJPF_GRAY, TJPF_RGB, TurboJPEG

        turbo = TurboJPEG()

        def turbojpeg(blob, channels):
            return turbo.decode(blob, TJPF_GRAY if channels == 1 else TJPF_RGB)

        found["libjpeg-turbo (PyTurboJPEG) + fastdata's resampler"] = (
            best,
            lambda keep: run_turbo(work, keep, turbojpeg),
        )
    except (ImportError, RuntimeError):
        print("PyTurboJPEG or its library is not installed: left out", file=sys.stderr)
    found[f"Pillow {PIL.__version__}"] = (best, lambda keep: run_pillow(work, keep))
    return found


def verify(work: Work, runs: dict) -> None:
    """Every contender's pixels against Pillow's, before anything is timed."""
    results = {}
    for name, (level, run) in runs.items():
        _native.set_simd(level)
        kept = []
        run(lambda part, kept=kept: kept.append(work.out[: part.stop - part.start].copy()))
        results[name] = np.concatenate(kept).astype(np.int16)
    pillow = next(name for name in results if name.startswith("Pillow"))
    for name, pixels in results.items():
        worst = int(np.abs(pixels - results[pillow]).max())
        if worst > 1:
            sys.exit(f"{name}: pixels differ from Pillow's by {worst}: nothing was timed")


def main() -> None:
    """Parse, verify, time, print."""
    here = Path(__file__).resolve().parents[1]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = (
        os.environ.get("FASTDATA_IMAGENET_SAMPLE") or here / ".." / "shared" / "imagenet-sample"
    )
    parser.add_argument("--images", type=Path, default=default, help="a folder of .JPEG files")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--stride", type=int, default=128, help="pixels between seek points")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    args = parser.parse_args()

    work = Work(Path(args.images), args.stride)
    runs = contenders(work)
    verify(work, runs)
    times: dict = {name: [] for name in runs}
    building = []
    count = len(work.blobs)
    for _ in range(args.repeat):
        for name, (level, run) in runs.items():
            _native.set_simd(level)
            began = time.perf_counter()
            run(lambda part: None)
            times[name].append((time.perf_counter() - began) / count * 1e3)
        began = time.perf_counter()
        for blob in work.blobs:
            seek_points(blob, args.stride)
        building.append((time.perf_counter() - began) / count * 1e3)

    stages = {}
    for level in _native.simd_levels():
        _native.set_simd(level)
        _native.profile_start()
        run_native(work, lambda part: None, True)
        stages[level] = {k: v / count for k, v in _native.profile_stop().items()}

    growth = sum(map(len, work.tables)) / sum(map(len, work.blobs))
    report = {
        "machine": {
            "processor": _processor(),
            "python": platform.python_version(),
            "pillow": PIL.__version__,
            "pillow_libjpeg_turbo": features.version("libjpeg_turbo"),
        },
        "images": count,
        "milliseconds": times,
        "seek_points_milliseconds": building,
        "seek_points_growth": growth,
        "stages": stages,
    }
    show(report)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1))


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


def show(report: dict) -> None:
    """Print the tables."""
    machine = report["machine"]
    print(f"{machine['processor']}, Python {machine['python']}, {report['images']} images,")
    print(
        f"RandomResizedCrop({SIZE}) and flip to uint8, one thread; Pillow's libjpeg-turbo is "
        f"{machine['pillow_libjpeg_turbo']}\n"
    )
    times = report["milliseconds"]
    turbo = [name for name in times if name.startswith("libjpeg-turbo")]
    base = statistics.median(times[turbo[0]]) if turbo else None
    print(f"{'':62}{'ms':>7} {'spread':>15} {'against turbo':>14}")
    for name, values in times.items():
        median = statistics.median(values)
        ratio = f"{base / median:.2f}" if base else ""
        spread = f"{min(values):.3f}-{max(values):.3f}"
        print(f"{name:62}{median:7.3f} {spread:>15} {ratio:>14}")
    building = report["seek_points_milliseconds"]
    print(
        f"{'building seek points':62}{statistics.median(building):7.3f} "
        f"{min(building):.3f}-{max(building):.3f}; {100 * report['seek_points_growth']:.2f}% "
        "of the JPEGs' bytes\n"
    )
    levels = list(report["stages"])
    names = list(report["stages"][levels[0]])
    print(f"{'ms by stage, with seek points':32}" + "".join(f"{level:>10}" for level in levels))
    for name in names:
        print(f"{name:32}" + "".join(f"{report['stages'][x][name]:10.4f}" for x in levels))


if __name__ == "__main__":
    main()
