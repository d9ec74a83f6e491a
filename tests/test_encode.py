"""Encodings: FFCV's size rule, antialiasing, grey, raw pixels, and options that contradict."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from fastdata.converters import Encoding
from PIL import Image
from sources import convert, encoded, jpeg, make_tree, picture, require_said

from fastdata import ImageDataset
from fastdata.decode.pillow import ImageInfo, probe
from fastdata.errors import SampleError, UsageError
from fastdata.maintenance.verify import verify

LANCZOS = Image.Resampling.LANCZOS


def apply(data: bytes, *encoding: object) -> tuple[bytes, ImageInfo]:
    return Encoding(*encoding).apply(data, probe(data))  # type: ignore[arg-type]


def decoded(blob: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(blob))
    image.load()
    return image


@pytest.mark.parametrize(
    ("size", "max_side", "expected"),
    [
        ((500, 375), 256, (256, 192)),
        ((375, 500), 256, (192, 256)),
        ((500, 375), 501, (500, 375)),  # never enlarged
        ((500, 333), 400, (400, 266)),  # 266.4, rounded down
        ((1000, 3), 100, (100, 1)),  # never less than a pixel
    ],
)
def test_longer_side(size: tuple[int, int], max_side: int, expected: tuple[int, int]) -> None:
    data = encoded(picture(1, size), "PNG")
    smaller = picture(1, size).resize(expected, LANCZOS)
    blob, info = apply(data, "raw", max_side)
    assert info == ImageInfo("raw", *expected, 3)
    assert blob == smaller.tobytes()
    blob, info = apply(data, "jpeg", max_side, 77)
    assert (info.width, info.height) == expected
    assert blob == encoded(smaller, quality=77)


def test_bytes_are_kept_without_an_encoding() -> None:
    data = jpeg(3) + b"trailing"
    assert apply(data) == (data, ImageInfo("jpeg", 48, 36, 3))


def test_jpeg_is_baseline_and_of_the_quality_asked() -> None:
    data = encoded(picture(4), progressive=True)
    for quality in (10, 95):
        blob, info = apply(data, "jpeg", None, quality)
        assert info.encoding == "jpeg"
        assert probe(blob) == info
        assert blob == encoded(decoded(data), quality=quality)
    # The default is 90.
    assert apply(data, "jpeg")[0] == apply(data, "jpeg", None, 90)[0]


@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_grey_stays_grey_in_jpeg(form: str) -> None:
    grey = picture(5, (120, 90), "L")
    blob, info = apply(encoded(grey, form), "jpeg", 60)
    assert info == ImageInfo("jpeg", 60, 45, 1)
    assert decoded(blob).mode == "L"
    assert probe(blob) == info
    # Raw has three channels, always.
    raw, info = apply(encoded(grey, form), "raw")
    assert info == ImageInfo("raw", 120, 90, 3)
    assert raw == decoded(encoded(grey, form)).convert("RGB").tobytes()


@pytest.mark.parametrize("mode", ["P", "PA", "RGBA", "CMYK", "1", "LA"])
def test_every_mode_keeps_its_colours(mode: str) -> None:
    form = {"CMYK": "TIFF", "PA": "TIFF"}.get(mode, "PNG")
    image = picture(6, mode="RGB").quantize(32) if mode in ("P", "PA") else picture(6, mode=mode)
    data = encoded(image, form)
    blob, info = apply(data, "jpeg", None, 100)
    assert probe(blob) == info
    assert mode in ("1", "LA") or info.channels == 3
    wanted = np.asarray(decoded(data).convert("RGB"), int)
    assert abs(np.asarray(decoded(blob).convert("RGB"), int) - wanted).mean() < 12


@pytest.mark.parametrize("kind", ["jpeg", "raw"])
def test_broken_image_is_a_sample_error(kind: str) -> None:
    # Whole by its markers, but without the quantisation tables: only decoding shows it.
    broken = jpeg(8).replace(b"\xff\xdb", b"\xff\xec")
    with pytest.raises(SampleError, match="cannot be decoded"):
        apply(broken, kind)


def test_image_too_large_for_jpeg_is_a_sample_error() -> None:
    """A JPEG's sides have 16 bits."""
    data = encoded(Image.new("L", (70_000, 2)), "PNG")
    with pytest.raises(SampleError, match="2 x 70000"):
        apply(data, "jpeg")
    assert apply(data, "jpeg", 1000)[1] == ImageInfo("jpeg", 1000, 1, 1)


#: Options of the command, of `Encoding` where it has them, and the one that is named.
CONFLICTS: list[tuple[str, dict[str, object] | None, str]] = [
    ("--max-side 100", {"max_side": 100}, "--max-side"),
    ("--quality 90", {"quality": 90}, "--quality"),
    ("--encoding raw --quality 90", {"kind": "raw", "quality": 90}, "--quality"),
    ("--encoding jpeg --max-side 0", {"kind": "jpeg", "max_side": 0}, "--max-side"),
    ("--encoding jpeg --quality 101", {"kind": "jpeg", "quality": 101}, "--quality"),
    ("--encoding webp", {"kind": "webp"}, "--encoding"),
    ("--to folder --encoding jpeg", None, "--to folder"),
    ("--to lmdb --shard-size 1MiB", None, "--shard-size"),
    ("--to folder --shard-size 1MiB", None, "--shard-size"),
    ("--to shards --shard-size 12parsecs", None, "--shard-size"),
    ("--to zip", None, "--to"),
    ("--workers -1", None, "--workers"),
]


@pytest.mark.parametrize(("arguments", "options", "flag"), CONFLICTS)
def test_conflicts(
    tmp_path: Path, arguments: str, options: dict[str, object] | None, flag: str
) -> None:
    if options is not None:
        with pytest.raises(UsageError, match=flag):
            Encoding(**options)  # type: ignore[arg-type]
    root = make_tree(tmp_path / "in", ["a/1.jpg"])
    given = ("imagefolder", "--root", root, "--out", tmp_path / "out", *arguments.split())
    require_said(convert(*given), 2, flag)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("container", "kind"), [("lmdb", "jpeg"), ("shards", "raw")])
def test_through_the_command(made_tree: Path, tmp_path: Path, container: str, kind: str) -> None:
    out = tmp_path / "out"
    result = convert("imagenet", "--root", made_tree, "--split", "val", "--to", container,
                     "--out", out, "--encoding", kind, "--max-side", 64)  # fmt: skip
    assert result.exit_code == 0, result.output
    dataset = ImageDataset(out)
    options = dataset.manifest.options
    assert (options["encoding"], options["max_side"]) == (kind, 64)
    assert options.get("quality") == (90 if kind == "jpeg" else None)
    paths = sorted((made_tree / "val").glob("*/*"), key=lambda path: (path.parent.name, path.name))
    channels = set()
    for number, path in enumerate(paths):
        row = dataset.row(number)
        with Image.open(path) as source:
            image, grey = source.convert("RGB"), source.mode == "L"
        assert max(row.width, row.height) == min(64, max(image.size))
        assert (row.encoding, row.channels) == (kind, 1 if grey and kind == "jpeg" else 3)
        channels.add(row.channels)
        if kind == "raw":
            smaller = image.resize((row.width, row.height), LANCZOS)
            assert dataset.read([number]) == [smaller.tobytes()]
    assert number == len(dataset) - 1
    assert channels == ({1, 3} if kind == "jpeg" else {3})
    assert verify(out, workers=1).problems == []
