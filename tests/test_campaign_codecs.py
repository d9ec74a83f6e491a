"""Damaged images of all kinds but JPEG: each is Pillow's, to the bit, or refused."""

from __future__ import annotations

import io
import math
import os
import random
import shutil
import struct
import time
import warnings
import zlib
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from containers import pack_tree
from hostile import NUMBERS, damage
from jpegs import picture
from loader_data import as_file
from PIL import Image, PngImagePlugin
from test_codecs import LAYOUTS, OTHERS, animated, chunk, make_png
from torchvision_stub import import_torchvision

from fastdata import DataLoader, ImageDataset
from fastdata.decode.codecs import Encoded
from fastdata.decode.limits import Limits
from fastdata.decode.pillow import kind_of
from fastdata.errors import BadSamplesError, SampleError
from fastdata.transforms import CenterCrop

CASES = int(os.environ.get("FASTDATA_CAMPAIGN_CODECS", "1000"))
SECONDS = float(os.environ.get("FASTDATA_CAMPAIGN_CODECS_SECONDS", "inf"))
SEED = int(os.environ.get("FASTDATA_CAMPAIGN_SEED", "0"))
BATCH = 250
#: Every so many batches are packed, too.
PACKED = 8
MOST_PIXELS = 1 << 20
pytestmark = pytest.mark.slow


def seeds() -> list[bytes]:
    made = [make_png(*layout, 21, 17, interlaced=n % 2 > 0) for n, layout in enumerate(LAYOUTS)]
    info = PngImagePlugin.PngInfo()
    info.add_text("a", "text")
    info.add_itxt("b", "text", zip=True)
    info.add(b"tIME", bytes(7), after_idat=True)
    info.add(b"zTXt", b"c\0\0" + zlib.compress(b"text"), after_idat=True)
    exif = Image.Exif()
    exif[0x0112] = 6
    many: list[tuple[str, str, dict[str, Any]]] = [
        *(("PNG", mode, {"pnginfo": info}) for mode in ("L", "P", "RGB")),
        ("PNG", "RGBA", {"exif": exif, "icc_profile": bytes(40)}),
        *((kind, mode, options) for kind, mode, options in OTHERS if kind != "JPEG"),
        *(("TIFF", mode, {"tiffinfo": {278: 5}}) for mode in ("L", "RGB")),
        ("WEBP", "RGB", {"quality": 80, "exif": exif, "icc_profile": bytes(40)}),
        *(("AVIF", mode, {"quality": 60, "speed": 9}) for mode in ("L", "RGB", "RGBA")),
        ("ICO", "RGBA", {"sizes": [(16, 16)]}),
        *((kind, "RGB", {}) for kind in ("TGA", "PCX", "SGI", "JPEG2000")),
    ]
    for number, (kind, mode, options) in enumerate(many):
        pixels = picture(16 + number * 7 % 40, 16 + number * 11 % 40, number, 30)
        with suppress(OSError, KeyError):  # a kind or mode that this Pillow does not write
            made.append(as_file(pixels, kind, mode, **options))
    made += [animated(kind) for kind in ("PNG", "WEBP", "GIF")]
    pixels = picture(33, 25, 1, 30)
    with suppress(ImportError):
        import pillow_heif

        file = io.BytesIO()
        pillow_heif.from_pillow(Image.fromarray(pixels)).save(file, quality=60)
        made.append(file.getvalue())
    return made


def change_numbers(data: bytes, rng: random.Random) -> bytes:
    """Other sizes, counts and offsets: a field gets a larger or an odd value."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        size, order = rng.choice((1, 2, 4)), rng.choice(("little", "big"))
        at = rng.randrange(max(1, min(len(out), rng.choice((40, 120, len(out)))) - size))
        found = int.from_bytes(out[at : at + size], order)  # type: ignore[arg-type]
        value = rng.choice((found + 1, found * 2, found + 256, found - 1, rng.choice(NUMBERS)))
        out[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, order)  # type: ignore[arg-type]
    return bytes(out[: rng.choice((len(out), len(out), rng.randrange(len(out) + 1)))])


def change_chunks(data: bytes, rng: random.Random) -> bytes:
    """A PNG with other chunks, in other places, and checksums that fit."""
    chunks, at = [], 8
    while at + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    which = rng.randrange(len(chunks))
    kind, body = chunks[which]
    names = (b"tEXt", b"zTXt", b"iTXt", b"gAMA", b"cHRM", b"pHYs", b"iCCP", b"tRNS", b"fdAT",
             b"acTL", b"abCd", b"PLTE", b"IDAT", b"IEND", b"sRGB", b"eXIf")  # fmt: skip
    match rng.randrange(5):
        case 0:
            del chunks[which]
        case 1:
            chunks.insert(rng.randrange(len(chunks) + 1), (kind, body))
        case 2:
            chunks.insert(rng.randrange(len(chunks)), chunks.pop())
        case 3:
            chunks[which] = kind, change_numbers(body, rng) if body else b"x"
        case _:
            body = rng.randbytes(rng.randrange(40))
            chunks.insert(rng.randrange(len(chunks) + 1), (rng.choice(names), body))
    junk = rng.choice((b"", b"", b"", rng.randbytes(rng.randrange(30))))
    return data[:8] + b"".join(chunk(*one) for one in chunks) + junk


def mutated(all_seeds: list[bytes], rng: random.Random) -> bytes:
    data = rng.choice(all_seeds)
    if data[:4] == b"\x89PNG" and rng.random() < 0.6:
        data = change_chunks(data, rng)
    match rng.randrange(10):
        case 0 | 1 | 2:
            data = damage(data, rng)
        case 3 | 4 | 5 | 6:
            data = change_numbers(data, rng) if data else data
        case 7:
            other = rng.choice(all_seeds)
            data = data[: rng.choice((4, 12, 40, len(data)))] + other[rng.choice((0, 4, 12, 40)) :]
    return b"" if data[:2] == b"\xff\xd8" else data


def by_pillow(data: bytes, as_pixels: Callable[[Image.Image], Any]) -> Any:
    """The pixels by Pillow, or by what decodes a kind that it lacks; None if that refuses them."""
    try:
        if kind_of(data) == "heic":
            import pillow_heif

            return as_pixels(pillow_heif.HeifImageFile(io.BytesIO(data)))
        with Image.open(io.BytesIO(data)) as image:
            return as_pixels(image)
    except Exception:
        return None


def cropped(image: Image.Image, size: int) -> Any:
    image.load()
    if isinstance(image.info.get("transparency"), bytes):
        del image.info["transparency"]
    pixels = np.asarray(image.convert("RGB"))
    before = [max(0, size - side) // 2 for side in pixels.shape[:2]]
    after = [max(0, size - side + 1) // 2 for side in pixels.shape[:2]]
    pixels = np.pad(pixels, [*zip(before, after, strict=True), (0, 0)])
    top, left = (round((side - size) / 2) for side in pixels.shape[:2])
    return pixels[top : top + size, left : left + size]


class Checker:
    """Compares loaders with Pillow; counts what it finds. Files that differ stay in its folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.found: Counter[str] = Counter()

    def check(self, name: str, data: bytes, got: Any, want: Any) -> None:
        if got is None:
            self.found["refused by both" if want is None else "refused by fastdata alone"] += 1
            return
        self.found["equal"] += 1
        if want is None or not np.array_equal(got, want):
            path = self.root / name
            path.write_bytes(data)
            why = "Pillow refuses it" if want is None else "Pillow has other pixels"
            raise AssertionError(f"{name}: {kind_of(data)}, {why}: see {path}")

    def check_files(self, files: list[bytes], size: int, container: str) -> None:
        tree, out = self.root / "tree", self.root / "packed"
        shutil.rmtree(tree, ignore_errors=True)
        (tree / "a").mkdir(parents=True)
        names = [f"{number:04}.{'png' if number % 2 else 'jpg'}" for number in range(len(files))]
        for name, data in zip(names, files, strict=True):
            (tree / "a" / name).write_bytes(data)
        wants = [by_pillow(data, lambda image: cropped(image, size)) for data in files]
        from torchvision.datasets import ImageFolder

        options: dict[str, Any] = {"on_error": "zero", "num_workers": 0, "batch_size": 50}
        crop = CenterCrop(size)
        self.compare(
            DataLoader(ImageFolder(tree, crop), **options), range(len(files)), files, wants
        )
        for name, data in zip(names, files, strict=True):
            if kind_of(data) == "png":
                try:
                    got = Encoded(data, limits=Limits(MOST_PIXELS), numbers=True).pixels()
                except SampleError:
                    got = None
                self.check(name, data, got, by_pillow(data, np.asarray))
        if container:
            shutil.rmtree(out, ignore_errors=True)
            with suppress(BadSamplesError):  # all are bad
                pack_tree(tree, out, container, skip_bad=True)
                packed = ImageDataset(out, crop)
                rows = [int(packed.row(n).key[-4:]) for n in range(len(packed))]
                self.compare(DataLoader(packed, **options), rows, files, wants)

    def compare(self, loader: Any, rows: Any, files: list[bytes], wants: list[Any]) -> None:
        at = 0
        for batch in loader:
            images, valid = batch[0].permute(0, 2, 3, 1).numpy(), batch[-1].numpy()
            for image, good in zip(images, valid, strict=True):
                row = rows[at]
                at += 1
                self.check(f"{row:04}", files[row], image if good else None, wants[row])
        assert at == len(rows)


@pytest.mark.filterwarnings("ignore")
def test_damaged_images_are_pillows_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_torchvision()
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", MOST_PIXELS // 2)  # Pillow refuses twice as much
    all_seeds, checker, end = seeds(), Checker(tmp_path), time.monotonic() + SECONDS
    done = 0
    for number in range(math.ceil(CASES / BATCH)):
        rng = random.Random(SEED * 1_000_003 + number)
        files = [mutated(all_seeds, rng) for _ in range(BATCH)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            size, container = rng.choice((24, 80)), rng.choice(("lmdb", "shards"))
            checker.check_files(files, size, container if number % PACKED == 1 else "")
        done += len(files)
        if done % 10_000 == 0 or done >= CASES or time.monotonic() > end:
            print(f"seed {SEED}: {done:,} files: {dict(checker.found)}", flush=True)
        if time.monotonic() > end:
            break
    assert checker.found["equal"] > done // 20
    assert checker.found["refused by both"] > done // 20
