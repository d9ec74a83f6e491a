"""Speed by kind of image: `fastdata.DataLoader` beside torch's with Pillow and as many workers.

    python -m fastdata.benchmarks.kinds imagenet/train --out kinds.json

The same photographs are stored in each kind. RandomResizedCrop(224) and a coin-tossed flip to
uint8; fastdata reads a packed dataset, torch the files, both from the page cache. They take turns,
pixels are compared with Pillow's before anything is timed, and ratios are taken round by round.
"""

from __future__ import annotations

import gc
import io
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
from fastdata.benchmarks.loading import Loading, torch_loader, verify
from fastdata.benchmarks.measure import (
    Figures,
    Spread,
    cpu_seconds,
    epoch_rate,
    interleave,
    machine,
    out_option,
    report,
    version_of,
)
from fastdata.benchmarks.prepare import listing
from fastdata.converters.encode import ORIGINAL, Encoding
from fastdata.converters.imagefolder import ImageFolder
from fastdata.converters.packing import pack
from PIL import Image


def _saved(
    kind: str, suffix: str, *, width: int | None = None, **options: Any
) -> Callable[[Image.Image], tuple[str, bytes]]:
    """Return a function from an image to a file's suffix and bytes, resized to a width."""

    def save(image: Image.Image) -> tuple[str, bytes]:
        if width is not None:
            image = image.resize((width, round(width * image.height / image.width)))
        file = io.BytesIO()
        image.save(file, kind, **options)
        return suffix, file.getvalue()

    return save


#: Function that stores an image, by row of the table. A mixture names the kinds of its images.
KINDS: dict[str, Callable[[Image.Image], tuple[str, bytes]]] = {
    "baseline JPEG": _saved("JPEG", "jpg", quality=90),
    "baseline JPEG, 4,000 px wide": _saved("JPEG", "jpg", width=4000, quality=90),
    "progressive JPEG": _saved("JPEG", "jpg", quality=90, progressive=True),
    "PNG": _saved("PNG", "png"),
    "WebP": _saved("WEBP", "webp", quality=85),
    "AVIF": _saved("AVIF", "avif", quality=75),
    "TIFF, LZW": _saved("TIFF", "tif", compression="tiff_lzw"),
    "BMP": _saved("BMP", "bmp"),
    "GIF": _saved("GIF", "gif"),
}
MIXTURES: dict[str, list[str]] = {
    "70% baseline, 20% progressive, 5% PNG, 5% WebP": [
        *(["baseline JPEG"] * 7 + ["progressive JPEG"] * 2 + ["PNG"]),
        *(["baseline JPEG"] * 7 + ["progressive JPEG"] * 2 + ["WebP"]),
    ],
}
#: Kinds of files that ``fastdata convert --encoding baseline`` rewrites; torch reads the files.
REWRITTEN = {"progressive JPEG, rewritten as baseline": "progressive JPEG"}
CHOICES = (*KINDS, *REWRITTEN, *MIXTURES)


def store(photographs: list[Image.Image], kind: str, root: Path) -> None:
    """Write the photographs in a kind or a mixture, as a tree of two classes."""
    names = MIXTURES.get(kind, [REWRITTEN.get(kind, kind)])
    for number, image in enumerate(photographs):
        suffix, data = KINDS[names[number % len(names)]](image)
        path = root / f"class{number % 2}" / f"{number:05}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def measure_kind(
    photographs: list[Image.Image], kind: str, threads: int, batch: int, rounds: int
) -> dict[str, Any]:
    """Measure one kind; return its figures as JSON values."""
    with tempfile.TemporaryDirectory() as folder:
        tree, packed = Path(folder, "tree"), Path(folder, "packed")
        store(photographs, kind, tree)
        encoding = Encoding("baseline") if kind in REWRITTEN else ORIGINAL
        pack(ImageFolder(tree), packed, encoding=encoding, workers=1)
        loading = Loading(packed, batch)
        verify(loading, 2)
        contenders: dict[str, Callable[[], float]] = {
            "torch": partial(epoch_rate, torch_loader(tree, threads, batch)),
            "fastdata": loading.loader(threads),
        }
        for run in contenders.values():
            run()  # the page cache, processes, the threads' own memory
        gc.collect()
        # Machines may have other work to do; what an image costs is then seen in CPU time alone.
        cpu: dict[str, list[float]] = {name: [] for name in contenders}
        images = len(photographs) // batch * batch

        def timed(name: str) -> Callable[[], float]:
            def run() -> float:
                before = cpu_seconds()
                rate = contenders[name]()
                cpu[name].append(1e3 * (cpu_seconds() - before) / images)
                return rate

            return run

        rates = interleave({name: timed(name) for name in contenders}, rounds)
        sizes = [path.stat().st_size for path in tree.glob("*/*")]
        return {
            "bytes": sum(sizes) // len(sizes),
            "images_per_second": rates,
            "cpu_milliseconds": cpu,
        }


def measure(
    root: Path, kinds: list[str], images: int, threads: int, batch: int, rounds: int
) -> dict[str, Any]:
    """Run the benchmark; return all figures as JSON values."""
    paths = [path for path, _ in listing(root)]
    step = max(1, len(paths) // images)
    photographs = [Image.open(path).convert("RGB") for path in paths[::step][:images]]
    about = machine()
    about["packages"].update({name: version_of(name) for name in ("isal", "imagecodecs")})
    return {
        "benchmark": "kinds",
        "machine": about,
        "images": len(photographs),
        "threads": threads,
        "batch": batch,
        "load": os.getloadavg()[0],
        "kinds": {kind: measure_kind(photographs, kind, threads, batch, rounds) for kind in kinds},
    }


def figures(result: dict[str, Any]) -> Figures:
    """Return the table of results; ratios are computed per round."""
    rows = []
    for kind, found in result["kinds"].items():
        rates = found["images_per_second"]
        cpu = found["cpu_milliseconds"]
        rows.append(
            [
                kind,
                f"{found['bytes'] / 1e3:,.0f}",
                f"{Spread.of(rates['torch']):,.0f}",
                f"{Spread.of(rates['fastdata']):,.0f}",
                f"{Spread.of_ratios(rates['fastdata'], rates['torch']):.1f}",
                f"{Spread.of_ratios(cpu['torch'], cpu['fastdata']):.1f}",
            ]
        )
    title = "{images:,} photographs in each kind, {threads} threads or workers".format(**result)
    columns = ["", "KB", "torch, images/s", "fastdata, images/s", "ratio", "ratio of CPU times"]
    return Figures(title, columns, rows)


def _writable(kind: str) -> bool:
    """Return whether this Pillow can write a kind."""
    Image.init()
    return kind != "AVIF" or kind in Image.SAVE


@click.command()
@click.argument("root", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(CHOICES),
    help="Measure this kind alone; may be repeated.  [default: all that Pillow can write]",
)
@click.option("--images", default=300, show_default=True, help="Photographs, evenly from ROOT.")
@click.option("--threads", default=2, show_default=True, help="Decode threads, and torch workers.")
@click.option("--batch", default=30, show_default=True, help="Images a batch.")
@click.option("--rounds", default=5, show_default=True, help="Epochs of each loader, in turn.")
@out_option
def main(
    root: Path,
    kinds: tuple[str, ...],
    images: int,
    threads: int,
    batch: int,
    rounds: int,
    out_path: Path | None,
) -> None:
    """Measure fastdata's loader beside torch's on every kind of image.

    The photographs of ROOT, a folder with a folder for each class, are stored in each kind in the
    temporary folder, compared with Pillow's pixels as fastdata loads them, and then loaded in
    turns: RandomResizedCrop(224) and a flip, by fastdata from a packed dataset, by torch with
    Pillow and torchvision from the files. Progress goes to standard error, the table to standard
    output; it takes about a minute a kind. ISA-L, which inflates PNGs, comes with
    pip install "fastdata-torch[codecs]".

    Example: python -m fastdata.benchmarks.kinds imagenet/train --kind PNG --kind WebP
    """
    chosen = list(kinds) or [kind for kind in CHOICES if _writable(kind)]
    result = measure(root, chosen, images, threads, batch, rounds)
    report(result, out_path, figures(result))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
