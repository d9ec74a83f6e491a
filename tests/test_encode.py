"""Encodings: FFCV's size rule, antialiasing, grey, raw pixels, and options that contradict."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from fastdata.converters import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st
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
        ((500, 375), 500, (500, 375)),
        ((500, 375), 501, (500, 375)),  # never enlarged
        ((500, 333), 400, (400, 266)),  # 266.4, rounded down
        ((1000, 3), 100, (100, 1)),  # never less than a pixel
        ((64, 64), 1, (1, 1)),
    ],
)
@pytest.mark.parametrize("kind", ["jpeg", "raw"])
def test_longer_side(
    kind: str, size: tuple[int, int], max_side: int, expected: tuple[int, int]
) -> None:
    blob, info = apply(encoded(picture(1, size)), kind, max_side)
    assert (info.width, info.height) == expected
    if kind == "jpeg":
        assert decoded(blob).size == expected
    else:
        assert len(blob) == expected[0] * expected[1] * 3


SIDE = st.integers(1, 300)


@settings(max_examples=100)
@given(SIDE, SIDE, st.integers(1, 320))
def test_any_size(width: int, height: int, max_side: int) -> None:
    data = bytes(width * height * 3)
    blob, info = Encoding("raw", max_side).apply(data, ImageInfo("raw", width, height, 3))
    assert len(blob) == info.width * info.height * 3
    if max(width, height) <= max_side:
        assert (info.width, info.height) == (width, height)
    else:
        assert max(info.width, info.height) == max_side
        # The ratio is kept to within the pixel that rounding costs.
        shorter, wanted = min(info.width, info.height), max_side * min(width, height)
        assert shorter == max(1, wanted // max(width, height))


def test_reduced_as_lanczos_does() -> None:
    data = encoded(picture(2, (300, 200)), "PNG")
    blob, info = apply(data, "raw", 100)
    assert info == ImageInfo("raw", 100, 66, 3)
    assert blob == picture(2, (300, 200)).resize((100, 66), LANCZOS).tobytes()
    lossy, _ = apply(data, "jpeg", 100, 77)
    assert lossy == encoded(picture(2, (300, 200)).resize((100, 66), LANCZOS), quality=77)


def test_antialiased() -> None:
    """Stripes a pixel wide become an even grey, not other stripes."""
    stripes = np.zeros((64, 512, 3), np.uint8)
    stripes[:, ::2] = 255
    blob, info = apply(encoded(Image.fromarray(stripes), "PNG"), "raw", 128)
    pixels = np.frombuffer(blob, np.uint8).reshape(info.height, info.width, 3)
    assert abs(pixels[:, 2:-2].astype(int) - 127).max() <= 8


def test_original_keeps_every_byte() -> None:
    data = jpeg(3) + b"trailing"
    assert apply(data) == (data, ImageInfo("jpeg", 48, 36, 3))


def test_raw_is_rows_of_rgb() -> None:
    pixels = np.zeros((2, 3, 3), np.uint8)
    pixels[0, 0] = (255, 1, 2)
    pixels[1, 2] = (3, 4, 255)
    blob, info = apply(encoded(Image.fromarray(pixels), "PNG"), "raw")
    assert info == ImageInfo("raw", 3, 2, 3)
    assert np.array_equal(np.frombuffer(blob, np.uint8).reshape(2, 3, 3), pixels)


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
    colourful = mode not in ("1", "LA")
    if colourful:
        assert info.channels == 3, "a palette is colour, though a pixel is one number"
    assert probe(blob) == info
    wanted = np.asarray(decoded(data).convert("RGB"), int)
    assert abs(np.asarray(decoded(blob).convert("RGB"), int) - wanted).mean() < 12


def test_orientation_is_not_applied() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees
    _, info = apply(encoded(picture(7), exif=exif), "raw")
    assert (info.width, info.height) == (48, 36)


@pytest.mark.parametrize("kind", ["jpeg", "raw"])
def test_broken_image_is_a_sample_error(kind: str) -> None:
    # Whole by its markers, but without the quantisation tables: only decoding shows it.
    broken = jpeg(8).replace(b"\xff\xdb", b"\xff\xec")
    with pytest.raises(SampleError, match="cannot be decoded"):
        apply(broken, kind)


def test_image_too_large_for_jpeg_is_a_sample_error() -> None:
    """A JPEG's sides have 16 bits."""
    data = encoded(Image.new("L", (70_000, 2)), "PNG")
    with pytest.raises(SampleError, match="70000 x 2"):
        apply(data, "jpeg")
    assert apply(data, "jpeg", 1000)[1] == ImageInfo("jpeg", 1000, 1, 1)


CONFLICTS = [
    ((), {"kind": "zip"}, "--encoding"),
    (("--max-side", 100), {"max_side": 100}, "--max-side"),
    (("--quality", 90), {"quality": 90}, "--quality"),
    (("--encoding", "raw", "--quality", 90), {"kind": "raw", "quality": 90}, "--quality"),
    (("--encoding", "jpeg", "--max-side", 0), {"kind": "jpeg", "max_side": 0}, "--max-side"),
    (("--encoding", "raw", "--max-side", -5), {"kind": "raw", "max_side": -5}, "--max-side"),
    (("--encoding", "jpeg", "--quality", 0), {"kind": "jpeg", "quality": 0}, "--quality"),
    (("--encoding", "jpeg", "--quality", 101), {"kind": "jpeg", "quality": 101}, "--quality"),
]


@pytest.mark.parametrize(("arguments", "options", "flag"), CONFLICTS)
def test_conflicts(
    tmp_path: Path, arguments: tuple[object, ...], options: dict[str, object], flag: str
) -> None:
    with pytest.raises(UsageError, match=flag):
        Encoding(**options)  # type: ignore[arg-type]
    if arguments:
        root = make_tree(tmp_path / "in", ["a/1.jpg"])
        result = convert("imagefolder", "--root", root, "--out", tmp_path / "out", *arguments)
        require_said(result, 2, "error:", flag)
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (("--to", "folder", "--encoding", "jpeg"), "--encoding"),
        (("--to", "folder", "--encoding", "raw"), "--to folder"),
        (("--to", "lmdb", "--shard-size", "1MiB"), "--shard-size"),
        (("--to", "folder", "--shard-size", "1MiB"), "--shard-size"),
        (("--to", "shards", "--shard-size", "0"), "--shard-size"),
        (("--to", "shards", "--shard-size", "12parsecs"), "--shard-size"),
        (("--to", "zip"), "--to"),
        (("--encoding", "webp"), "--encoding"),
        (("--workers", "0"), "--workers"),
        (("--workers", "-1"), "--workers"),
        (("--workers", "many"), "--workers"),
    ],
)
def test_conflicts_with_the_container(
    tmp_path: Path, arguments: tuple[str, ...], flag: str
) -> None:
    root = make_tree(tmp_path / "in", ["a/1.jpg"])
    result = convert("imagefolder", "--root", root, "--out", tmp_path / "out", *arguments)
    require_said(result, 2, flag)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("container", ["lmdb", "parquet", "shards"])
@pytest.mark.parametrize("kind", ["jpeg", "raw"])
def test_through_the_command(made_tree: Path, tmp_path: Path, container: str, kind: str) -> None:
    out = tmp_path / "out"
    result = convert("imagenet", "--root", made_tree, "--split", "val", "--to", container,
                     "--out", out, "--encoding", kind, "--max-side", 64)  # fmt: skip
    assert result.exit_code == 0, result.output
    dataset = ImageDataset(out)
    assert dataset.manifest.options["encoding"] == kind
    assert dataset.manifest.options["max_side"] == 64
    assert dataset.manifest.options.get("quality") == (90 if kind == "jpeg" else None)
    paths = sorted((made_tree / "val").glob("*/*"), key=lambda path: (path.parent.name, path.name))
    assert len(paths) == len(dataset)
    channels = set()
    for number, path in enumerate(paths):
        row = dataset.row(number)
        with Image.open(path) as source:
            image = source.convert("RGB")
            grey = source.mode == "L"
        assert max(row.width, row.height) == min(64, max(image.size))
        assert (row.encoding, row.channels) == (kind, 1 if grey and kind == "jpeg" else 3)
        channels.add(row.channels)
        if kind == "raw":
            smaller = image.resize((row.width, row.height), LANCZOS)
            assert dataset.read([number]) == [smaller.tobytes()]
    assert channels == ({1, 3} if kind == "jpeg" else {3})
    assert verify(out, workers=1).problems == []
