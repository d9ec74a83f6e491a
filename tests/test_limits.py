"""Limits on the pixels and scans of an image, on every path."""

from __future__ import annotations

import io
import multiprocessing
import os
import resource
import struct
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from containers import pack_tree
from jpegs import encode, picture
from loader_data import as_file
from PIL import EpsImagePlugin, Image
from sources import convert, require_said
from tiers import slow
from torchvision_stub import import_torchvision

from fastdata import DataLoader, ImageDataset
from fastdata.decode import Limits
from fastdata.errors import FallbackWarning, SampleError, UsageError
from fastdata.transforms import CenterCrop, RandomResizedCrop, Resize

SMALL = encode(picture(40, 40, 1))
LARGE = {
    "jpeg": encode(picture(90, 60, 2)),
    "progressive": as_file(picture(90, 60, 2), "JPEG", progressive=True),
    "png": as_file(picture(90, 60, 2), "PNG"),
    "tiff": as_file(picture(90, 60, 2), "TIFF"),
    "webp": as_file(picture(90, 60, 2), "WEBP"),
    "gif": as_file(picture(90, 60, 2), "GIF"),
    "bmp": as_file(picture(90, 60, 2), "BMP"),
}
CROP = RandomResizedCrop(16)


def tree(root: Path, *files: bytes) -> Path:
    for number, data in enumerate(files):
        path = root / "tree" / "class" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root / "tree"


def opened(root: Path, kind: str, transform: Any = CROP, **limits: int | None) -> ImageDataset:
    if kind == "folder":
        folder = import_torchvision().datasets.ImageFolder
        return ImageDataset(folder(str(root / "tree"), transform), limits=Limits(**limits))
    pack_tree(root / "tree", root / "packed", "shards")
    return ImageDataset(root / "packed", transform, limits=Limits(**limits))


def loaded(dataset: ImageDataset, **options: Any) -> list[int]:
    options = {"batch_size": 2, "num_workers": 2, "fields": ("image", "index"), **options}
    return [index for batch in DataLoader(dataset, **options) for index in batch["index"].tolist()]


@pytest.mark.filterwarnings("ignore", category=FallbackWarning)
@pytest.mark.parametrize(
    ("source", "kind"),
    [("packed", "jpeg"), ("packed", "png"), *(("folder", kind) for kind in LARGE)],
)
def test_pixels(tmp_path: Path, kind: str, source: str) -> None:
    tree(tmp_path, SMALL, LARGE[kind], SMALL)
    dataset = opened(tmp_path, source, pixels=90 * 60 - 1)
    what = r"sample 1\b.* has 60 x 90 .H x W. pixels, more than Limits.pixels=5399.*\n.*limits="
    with pytest.raises(SampleError, match=what):
        loaded(dataset)
    assert loaded(dataset, on_error="drop") == [0, 2]
    with pytest.raises(SampleError, match=what):
        dataset.open_image(1)
    assert dataset.open_image(0).size == (40, 40)

    for enough in (90 * 60, None):
        dataset = opened(tmp_path, source, pixels=enough)
        assert loaded(dataset) == [0, 1, 2]
        assert dataset.open_image(1).size == (90, 60)


def test_raw_pixels_are_no_markers(tmp_path: Path) -> None:
    """Their first bytes may be those of a JPEG."""
    from fastdata.converters import Encoding

    tree(tmp_path, LARGE["png"])
    pack_tree(tmp_path / "tree", tmp_path / "raw", "shards", encoding=Encoding("raw"))
    assert ImageDataset(tmp_path / "raw", limits=Limits(scans=1)).open_image(0).size == (90, 60)
    with pytest.raises(SampleError, match="pixels=5399"):
        loaded(ImageDataset(tmp_path / "raw", CROP, limits=Limits(5399)))


def many_scans(count: int) -> bytes:
    """A progressive JPEG that repeats its last scan, which changes nothing that is drawn."""
    data = LARGE["progressive"]
    last = data.rindex(b"\xff\xda")
    return data[:last] + data[last:-2] * count + data[-2:]


@pytest.mark.filterwarnings("ignore", category=FallbackWarning)
@pytest.mark.parametrize("source", ["packed", "folder"])
def test_scans(tmp_path: Path, source: str) -> None:
    tree(tmp_path, SMALL, many_scans(400), SMALL)
    dataset = opened(tmp_path, source)
    what = r"sample 1\b.* has 409 scans, more than Limits.scans=64.*\n.*limits="
    with pytest.raises(SampleError, match=what):
        loaded(dataset)
    with pytest.raises(SampleError, match=what):
        dataset.open_image(1)
    assert loaded(dataset, on_error="drop") == [0, 2]
    assert loaded(opened(tmp_path, source, scans=None)) == [0, 1, 2]
    assert loaded(opened(tmp_path, source, scans=409)) == [0, 1, 2]
    with pytest.raises(SampleError, match="scans=408"):
        loaded(opened(tmp_path, source, scans=408))


@pytest.mark.filterwarnings("ignore", category=FallbackWarning)
def test_scans_of_a_thumbnail_do_not_count(tmp_path: Path) -> None:
    """Markers in a segment of text or EXIF do not count, nor those after the image."""
    data = LARGE["progressive"]
    comment = b"\xff\xfe" + (2 + 1000).to_bytes(2, "big") + b"\xff\xda" * 500
    tree(tmp_path, data[:2] + comment + data[2:] + b"\xff\xda" * 100)
    assert loaded(opened(tmp_path, "packed", scans=10)) == [0]
    with pytest.raises(SampleError, match="has 10 scans, more than"):
        loaded(opened(tmp_path, "packed", scans=9))


@pytest.mark.parametrize("name", ["pixels", "scans"])
@pytest.mark.parametrize("value", [0, -1, 1e6, "many", True])
def test_limits_that_are_none(tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"{name}={value!r}"):
        Limits(**{name: value})
    with pytest.raises(UsageError, match=f"limits={value!r}"):
        ImageDataset(tmp_path, limits=value)


def nested(kind: str, side: int) -> bytes:
    """A file of little whose header says little of what is in it."""
    large = Image.new("RGB", (side, side))
    if kind == "avif":  # its boxes state one pixel
        avif = as_file(np.asarray(large), "AVIF", speed=10)
        at = avif.index(b"ispe") + 8
        return avif[:at] + struct.pack(">II", 1, 1) + avif[at + 8 :]
    png = as_file(np.asarray(large), "PNG")
    if kind == "icon":
        entry = struct.pack("<BBBBHHII", 1, 1, 0, 0, 1, 32, len(png), 22)
        return struct.pack("<HHH", 0, 1, 1) + entry + png
    if kind == "icns":
        element = b"ic07" + struct.pack(">I", 8 + len(png)) + png
        return b"icns" + struct.pack(">I", 8 + len(element)) + element
    # A TIFF of one pixel, in one tile of many; or a BigTIFF.
    big, data = kind == "bigtiff tile", zlib.compress(bytes(side * side))
    tags = {256: 1, 257: 1, 258: 8, 259: 8, 262: 1, 277: 1, 322: side, 323: side}
    tags |= {324: 500, 325: len(data)}
    head = b"II+\0\10\0\0\0" + struct.pack("<Q", 16) if big else b"II*\0" + struct.pack("<I", 8)
    directory = struct.pack("<Q" if big else "<H", len(tags))
    for tag, value in tags.items():
        directory += struct.pack("<HHQQ" if big else "<HHII", tag, 4, 1, value)
    return (head + directory + bytes(8)).ljust(500, b"\0") + data


NESTED = ("avif", "icon", "icns", "tile", "bigtiff tile")


@pytest.mark.filterwarnings("ignore", category=FallbackWarning)
@pytest.mark.filterwarnings("ignore:Image was not the expected size:UserWarning")
@pytest.mark.parametrize("kind", NESTED)
def test_what_is_decoded_counts_and_not_what_a_header_says(tmp_path: Path, kind: str) -> None:
    tree(tmp_path, SMALL, nested(kind, 1536))
    dataset = opened(tmp_path, "folder", pixels=1536 * 1536 - 1)
    what = "has 1536 x 1536 pixels, more than Limits.pixels=2359295"
    with pytest.raises(SampleError, match=what):
        loaded(dataset)
    with pytest.raises(SampleError, match=what):
        dataset.open_image(1)
    small = nested(kind, 64)  # the same within the limits is read as far as Pillow reads it
    tree(tmp_path, small, small)
    try:
        Image.open(io.BytesIO(small)).load()
    except Exception:
        return
    assert opened(tmp_path, "folder", pixels=128 * 128).open_image(1).size


def frames(count: int) -> bytes:
    data = as_file(np.zeros((1000, 1000), np.uint8), "GIF")
    image = Image.open(io.BytesIO(data))
    start = data.index(b"\x2c\0\0\0\0")
    assert start < image.tile[0].offset  # type: ignore[attr-defined]
    return data[:start] + data[start:-1] * count + b";"


def bombs() -> dict[str, bytes]:
    """Small files of a million pixels or less, of which a decoder could make much more."""
    png = as_file(np.zeros((40, 40), np.uint16), "PNG")
    inflated = zlib.compress(bytes(200_000_000), 1)
    found = {"gif": frames(200), **{kind: nested(kind, 6000) for kind in NESTED[:1]}}
    for name in (b"iCCP", b"zTXt"):
        payload = name + b"x\0\0" + inflated
        chunk = struct.pack(">I", len(payload) - 4) + payload
        chunk += struct.pack(">I", zlib.crc32(payload))
        found[name.decode()] = png[:33] + chunk + png[33:]
    payload = b"IDAT" + inflated
    chunk = struct.pack(">I", len(inflated)) + payload + struct.pack(">I", zlib.crc32(payload))
    found["IDAT"] = png[:33] + chunk + png[-12:]
    return found


def memory_of(run: Callable[[], Any]) -> int:
    """By how many kB running something raises the most memory that a process has had."""
    receive, send = multiprocessing.Pipe(duplex=False)

    def measure() -> None:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        run()
        send.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)

    process = multiprocessing.get_context("fork").Process(target=measure)
    process.start()
    process.join(240)
    assert process.exitcode == 0
    return int(receive.recv())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore", category=FallbackWarning)
@pytest.mark.parametrize("source", ["packed", "folder"])
def test_memory_is_bounded_by_pixels(tmp_path: Path, source: str) -> None:
    files = bombs()
    tree(tmp_path, SMALL, files["gif"])
    if source == "folder":
        tree(tmp_path, SMALL, *files.values())
    dataset = opened(tmp_path, source, pixels=1_000_000)
    dataset.open_image(0)

    def run() -> None:
        for number in range(1, len(dataset)):
            with suppress(SampleError):
                dataset.open_image(number)
        list(DataLoader(dataset, 1, num_workers=0, on_error="skip", order="sequential"))

    assert memory_of(run) < 100_000


@pytest.mark.parametrize(
    ("progressive", "transform"),
    [(False, Resize((24, 24))), slow(False, CenterCrop(24)), slow(True, CenterCrop(24))],
)
def test_a_large_image_is_never_held_whole(
    tmp_path: Path, progressive: bool, transform: Any
) -> None:
    side = 8000
    flat = np.zeros((side, side, 3), np.uint8)
    tree(tmp_path, as_file(flat, "JPEG", progressive=progressive))
    loader = DataLoader(opened(tmp_path, "folder", transform), 1, num_workers=0)
    tree(tmp_path / "small", SMALL)
    list(DataLoader(opened(tmp_path / "small", "folder", transform), 1))  # imports what it needs
    whole = side * side * 3 // 1024
    assert memory_of(lambda: list(loader)) < whole / 2


#: PostScript that Ghostscript would run.
EPS = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 8 8
%%EndComments
showpage
%%EOF
"""


def in_iptc(data: bytes) -> bytes:
    about = {(3, 60): b"\1\0", (3, 20): b"\0\10", (3, 30): b"\0\10", (3, 120): b"\5"}
    fields = [*about.items(), ((8, 10), data[:3]), ((8, 10), data[3:])]
    return b"".join(
        struct.pack(">BBBH", 0x1C, *tag, len(value)) + value for tag, value in fields
    ) + bytes(5)


@pytest.mark.filterwarnings("ignore", category=FallbackWarning)
@pytest.mark.parametrize("kind", ["EPS", "IPTC"])
def test_no_program_is_run_to_decode_an_image(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "gs"
    program.write_text(f"#!/bin/sh\necho run >> {tmp_path}/run\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)
    data = EPS if kind == "EPS" else in_iptc(EPS)
    with suppress(Exception):
        Image.open(io.BytesIO(data)).load()
    assert (tmp_path / "run").exists()  # by Pillow
    (tmp_path / "run").unlink()
    tree(tmp_path, SMALL, data)
    dataset = opened(tmp_path, "folder")
    with pytest.raises(SampleError, match=kind):
        dataset.open_image(1)
    assert loaded(dataset, num_workers=0, on_error="drop") == [0]
    result = convert("imagefolder", "--root", tmp_path / "tree", "--out", tmp_path / "out")
    require_said(result, 1, kind)
    assert not (tmp_path / "run").exists()
