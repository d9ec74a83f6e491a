"""Decoders: each kind of image equals Pillow's ``convert("RGB")``, or is refused by name."""

from __future__ import annotations

import io
import struct
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import arithmetic_jpegs
import numpy as np
import pytest
import torch
from containers import pack_tree
from jpegs import picture
from loader_data import as_file, folder
from PIL import Image, ImageOps
from torch.utils.data import Subset
from torchvision_stub import import_torchvision

from fastdata import DataLoader, ImageDataset, fast_collate
from fastdata import transforms as t
from fastdata.decode import DecodeError, decode_jpeg, pillow, png
from fastdata.decode.codecs import Encoded
from fastdata.decode.limits import Limits
from fastdata.decode.pillow import ImageInfo, Style, kind_of, missing_plugin, open_image, probe
from fastdata.errors import (
    BadSamplesError,
    FallbackWarning,
    SampleError,
    SlowPathWarning,
    UsageError,
)
from fastdata.maintenance.verify import verify

PIXELS = picture(61, 45, 3, 40)
DEEP = PIXELS[..., 0].astype(np.uint16) * 200


def by_pillow(data: bytes) -> Any:
    with Image.open(io.BytesIO(data)) as image:
        if isinstance(image.info.get("transparency"), bytes):
            del image.info["transparency"]
        return np.asarray(image.convert("RGB"))


def colours(found: Any) -> Any:
    return found if found.ndim == 3 else np.repeat(found[..., None], 3, axis=2)


def agrees(data: bytes, way: str | None = None, box: Any = None) -> None:
    want = by_pillow(data)
    height, width = want.shape[:2]
    left, upper, right, lower = box or (0, 0, width, height)
    for trusted in (False, True):
        image = Encoded(data, trusted=trusted)
        assert (image.width, image.height) == (width, height)
        got = colours(image.pixels(box))[upper:lower, left:right]
        assert np.array_equal(got, want[upper:lower, left:right])
        assert way is None or image.decoder == way
    agrees_in_numbers(data, (left, upper, right, lower))


def agrees_in_numbers(data: bytes, box: Any) -> None:
    with Image.open(io.BytesIO(data)) as image:
        want = np.asarray(image)
        # Not 16-bit grey with alpha, nor interlaced.
        native = image.format == "PNG" and data[24:26] != b"\x10\4" and not data[28]
    left, upper, right, lower = box
    for trusted in (False, True):
        encoded = Encoded(data, trusted=trusted, numbers=True)
        got = encoded.pixels(box)
        assert (encoded.decoder == "native") == native
        assert got.dtype == want.dtype.newbyteorder("=")
        assert got.shape[1:] == want.shape[1:]
        assert np.array_equal(got[upper:lower, left:right], want[upper:lower, left:right])


# --- PNG: all colour types, depths, filters, interlaced or not -------------------------------

#: (colour type, bits a sample) of ISO/IEC 15948, table 11.1.
LAYOUTS = [
    *((0, depth) for depth in (1, 2, 4, 8, 16)),
    *((2, depth) for depth in (8, 16)),
    *((3, depth) for depth in (1, 2, 4, 8)),
    *((4, depth) for depth in (8, 16)),
    *((6, depth) for depth in (8, 16)),
]
ADAM7 = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2)]
ADAM7.append((0, 1, 1, 2))
SAMPLES = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def filtered(row: bytes, above: bytes, step: int, kind: int) -> bytes:
    """A row by one of the filters, as the standard writes them down."""
    out = bytearray([kind])
    for i, value in enumerate(row):
        a = row[i - step] if i >= step else 0
        b = above[i]
        c = above[i - step] if i >= step else 0
        near = min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]
        out.append((value - (0, a, b, (a + b) // 2, near)[kind]) & 255)
    return bytes(out)


def rows_of(values: Any, depth: int) -> list[bytes]:
    if depth == 16:
        return [row.astype(">u2").tobytes() for row in values]
    bits = np.unpackbits(values.astype(np.uint8)[..., None], axis=-1)[..., 8 - depth :]
    return [np.packbits(row.reshape(-1)).tobytes() for row in bits]


def make_png(
    colour: int,
    depth: int,
    width: int,
    height: int,
    *,
    interlaced: bool = False,
    filters: tuple[int, ...] = (0, 1, 2, 3, 4),
    seed: int = 0,
    piece: int = 1000,
    palette_size: int | None = None,
    before: bytes = b"",
) -> bytes:
    random = np.random.default_rng(seed)
    samples = SAMPLES[colour]
    values = random.integers(0, 1 << depth, (height, width, samples))
    if palette_size is not None:
        values %= palette_size
    elif seed % 2:  # smooth, so that predictions come near
        slope = np.arange(width)[None, :, None] * 3 + np.arange(height)[:, None, None] * 2
        values = (slope + values % 4) % (1 << depth)
    raw, number = b"", 0
    for x, y, dx, dy in ADAM7 if interlaced else [(0, 0, 1, 1)]:
        part = values[y::dy, x::dx]
        if not part.size:
            continue
        rows = rows_of(part.reshape(len(part), -1), depth)
        above = bytes(len(rows[0]))
        for row in rows:
            raw += filtered(
                row, above, max(1, samples * depth // 8), filters[number % len(filters)]
            )
            above, number = row, number + 1
    data = zlib.compress(raw, 1)
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
    colours = palette_size or (1 << depth if depth < 16 else 1)
    palette = random.integers(0, 256, 3 * colours, np.uint8).tobytes()
    return b"".join(
        [
            b"\x89PNG\r\n\x1a\n",
            chunk(b"IHDR", head),
            chunk(b"PLTE", palette) if colour == 3 else b"",
            before,
            *(chunk(b"IDAT", data[at : at + piece]) for at in range(0, len(data), piece)),
            chunk(b"IEND", b""),
        ]
    )


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_pngs_of_every_layout(layout: tuple[int, int]) -> None:
    for number, (width, height) in enumerate([(1, 1), (2, 3), (5, 7), (9, 17), (33, 20)]):
        for interlaced in (False, True):
            data = make_png(*layout, width, height, interlaced=interlaced, seed=number)
            agrees(data, "Pillow" if interlaced or layout == (0, 16) else "native")
            agrees(data, box=(width // 3, height // 3, width // 3 + 1, height // 2 + 1))


#: A colour, or palette's alpha, that is transparent.
TRANSPARENT = {0: b"\0\1", 2: b"\0\1\0\2\0\3", 3: b"\x80"}


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_pngs_with_other_chunks(layout: tuple[int, int]) -> None:
    colour, depth = layout
    chunks = [
        chunk(b"gAMA", struct.pack(">I", 100_000)),
        chunk(b"cHRM", struct.pack(">8I", *range(30_000, 38_000, 1000))),
        chunk(b"sBIT", bytes([min(depth, 8) - 1 or 1] * (3 if colour == 3 else SAMPLES[colour]))),
        chunk(b"pHYs", struct.pack(">IIB", 1000, 2000, 1)),
        chunk(b"tIME", struct.pack(">HBBBBB", 2026, 1, 2, 3, 4, 5)),
        chunk(b"tEXt", b"Title\0Some words"),
        chunk(b"IDAT", b""),  # any of them may be empty
    ]
    transparent = TRANSPARENT.get(colour)
    if transparent is not None:
        chunks.insert(-1, chunk(b"tRNS", transparent))
    for palette_size in (1, 1 << min(depth, 8) - 1, None) if colour == 3 else (None,):
        data = make_png(*layout, 20, 9, before=b"".join(chunks), piece=1, palette_size=palette_size)
        agrees(data, "Pillow" if layout == (0, 16) else "native")


#: How compressed data is bad: a set of codes that is not whole; another checksum.
BAD_DATA = {
    "codes": lambda pixels: b"\x78\x9c" + INCOMPLETE + zlib.adler32(pixels).to_bytes(4, "big"),
    "checksum": lambda pixels: zlib.compress(pixels)[:-1] + b"?",
}


def deflated(*codes: tuple[int, int]) -> bytes:
    """Numbers and their bits, in the order of DEFLATE's bits."""
    bits = "".join(f"{number:0{width}b}"[::-1] for number, width in codes)
    return bytes(int(bits[at : at + 8][::-1], 2) for at in range(0, len(bits), 8))


#: 72 zeros in a dynamic block with two distance codes of two bits, which leave two of four unused.
INCOMPLETE = deflated(
    *((1, 1), (2, 2), (0, 5), (1, 5), (14, 4)),  # last, dynamic; 257 and 2 codes, of 18 lengths
    *((2 if at in (15, 17) else 1 if at == 2 else 0, 3) for at in range(18)),
    *((1, 2), (0, 1), (138 - 11, 7), (0, 1), (117 - 11, 7), (1, 2), (3, 2), (3, 2)),
    *((0, 1) for _ in range(72)),
    (1, 1),
)


@pytest.mark.parametrize("missing", [(), ("isal", "isal.isal_zlib", "imagecodecs")])
def test_each_library_that_inflates_pngs(
    missing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    for found in (png._inflate, png._inflate_all):
        found.cache_clear()
    try:
        agrees(make_png(2, 8, 33, 20), "native")
        for bad in BAD_DATA.values():
            with pytest.raises(SampleError):
                Encoded(grey_png(bad(bytes(72)))).pixels()
    finally:
        for found in (png._inflate, png._inflate_all):
            found.cache_clear()


def grey_png(compressed: bytes) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", compressed) + chunk(b"IEND", b"")


@pytest.mark.parametrize("mode", ["I", "F", "I;16B", "L", "1"])
def test_numbers_of_a_tiff_are_pillows(mode: str) -> None:
    kind = {"I": "<i4", "F": "<f4", "I;16B": ">u2", "L": "u1", "1": "?"}[mode]
    values = (PIXELS[..., 0].astype(np.int64) * (37 if mode != "L" else 1)).astype(kind)
    file = io.BytesIO()
    Image.fromarray(values).save(file, "TIFF")
    agrees_in_numbers(file.getvalue(), (3, 4, 50, 40))


def damaged(data: bytes) -> Iterator[bytes]:
    random = np.random.default_rng(5)
    for end in range(0, len(data), max(1, len(data) // 25)):
        yield data[:end]
    for _ in range(60):
        at = int(random.integers(len(data)))
        yield data[:at] + bytes([data[at] ^ int(random.integers(1, 256))]) + data[at + 1 :]


@pytest.mark.parametrize("layout", [(2, 8), (3, 8), (0, 16), (0, 1), (6, 8)], ids=str)
def test_a_damaged_png_is_what_pillow_finds_it_to_be(layout: tuple[int, int]) -> None:
    for data in damaged(make_png(*layout, 40, 30)):
        refused_or_pillows(data)


def test_a_header_that_promises_more_than_the_file_has_costs_nothing() -> None:
    data = make_png(2, 8, 8, 8)
    head = struct.pack(">IIBBBBB", 1 << 14, 1 << 12, 8, 2, 0, 0, 0)
    data = data[:8] + chunk(b"IHDR", head) + data[33:]
    with pytest.raises(SampleError, match="truncated"):
        Encoded(data, limits=Limits()).pixels()


# --- the others -------------------------------------------------------------------------------

OTHERS: list[tuple[str, str, dict[str, Any]]] = [
    *(("BMP", mode, {}) for mode in ("1", "L", "P", "RGB")),
    *(("GIF", mode, {}) for mode in ("L", "P", "RGB")),
    ("GIF", "P", {"transparency": 3}),
    ("GIF", "P", {"interlace": 0}),
    *(("TIFF", mode, {}) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I")),
    *(
        ("TIFF", mode, {"compression": how})
        for mode in ("L", "RGB", "RGBA", "CMYK")
        for how in ("tiff_lzw", "tiff_adobe_deflate", "packbits")
    ),
    ("TIFF", "RGB", {"compression": "jpeg"}),
    ("TIFF", "RGB", {"tiffinfo": {274: 6}}),
    *(("PNG", mode, {}) for mode in ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")),
    ("WEBP", "RGB", {"quality": 70}),
    ("WEBP", "RGBA", {"lossless": True}),
    ("PPM", "RGB", {}),
    ("JPEG", "CMYK", {}),
    ("JPEG", "RGB", {"progressive": True}),
]


def test_other_kinds() -> None:
    for kind, mode, options in OTHERS:
        pixels = DEEP if mode == "I;16" else PIXELS
        agrees(as_file(pixels, kind, mode, **options))


def bitmap(width: int, height: int, rows: bytes, bits: int = 24) -> bytes:
    """A BMP whose sizes agree with the bytes that are there."""
    head = struct.pack("<2sIHHI", b"BM", 54 + len(rows), 0, 0, 54)
    sides = struct.pack("<IiiHHII", 40, width, height, 1, bits, 0, len(rows))
    return head + sides + bytes(16) + rows


@pytest.mark.parametrize("height", [45, -45])
def test_bitmaps(height: int) -> None:
    rows = np.zeros((45, 61 * 3 + 1), np.uint8)
    rows[:, :-1] = PIXELS[:: -1 if height > 0 else 1, :, ::-1].reshape(45, -1)
    data = bitmap(61, height, rows.tobytes())
    agrees(data)
    agrees(data, None, (10, 5, 50, 30))
    agrees(data[:-1])  # the last row's padding
    if height > 0:  # of OS/2: BITMAPCOREHEADER, 12 bytes, sides of 16 bits
        head = struct.pack("<2sIHHIIHHHH", b"BM", 26 + rows.size, 0, 0, 26, 12, 61, 45, 1, 24)
        agrees(head + rows.tobytes())
        with pytest.raises(SampleError, match="45 x 61 "):
            Encoded(head + rows.tobytes(), limits=Limits(61 * 45 - 1))


def test_a_bitmap_of_fewer_rows_than_it_says_is_refused() -> None:
    import_torchvision()
    from torchvision.datasets import ImageFolder

    tree = folder() / "tree"
    (tree / "a").mkdir(parents=True)
    for width, height in [(400, 300), (6000, 6000), (1 << 30, 1 << 30)]:
        data = bitmap(width, height, bytes(1200))
        with pytest.raises(DecodeError):
            decode_jpeg(data)
        (tree / "a" / "0.bmp").write_bytes(data)
        with pytest.raises(SampleError):
            list(DataLoader(ImageFolder(tree, t.CenterCrop(32)), 1))


def test_tiffs_of_several_strips() -> None:
    for mode in ("L", "RGB"):
        data = as_file(PIXELS, "TIFF", mode, tiffinfo={278: 7})
        agrees(data)
        agrees(data, None, (10, 12, 50, 30))
        for cut in (data[: len(data) // 2], data[:-1]):
            refused_or_pillows(cut)


def refused_or_pillows(data: bytes) -> None:
    try:
        by_pillow(data)
    except Exception:
        for color in ("rgb", "gray", "rgba", "unchanged"):
            with pytest.raises(SampleError):
                open_image(data, ImageInfo(kind_of(data), 1, 1, 3), Limits(), Style(color))
        for numbers in (False, True):
            with pytest.raises(SampleError):
                Encoded(data, limits=Limits(), numbers=numbers).pixels()
    else:
        for trusted in (False, True):
            assert np.array_equal(colours(Encoded(data, trusted=trusted).pixels()), by_pillow(data))
            numbers = Encoded(data, trusted=trusted, numbers=True).pixels()
            with Image.open(io.BytesIO(data)) as image:
                assert np.array_equal(numbers, np.asarray(image))


@pytest.mark.parametrize("last", [False, True])
def test_chunks_of_a_png_are_pillows_to_judge(last: bool) -> None:
    data = make_png(2, 8, 20, 9)
    at = len(data) - 12 if last else 33
    for kind, body in [
        *((b"tEXt", b"a\0b"), (b"zTXt", b"a\0\1"), (b"zTXt", b"a\0\0" + zlib.compress(b"a" * 9))),
        *((b"zTXt", b"a\0\0" + zlib.compress(bytes(2_000_000))), (b"iTXt", b"a\0\1\0\0\0x")),
        *((b"gAMA", b""), (b"cHRM", b"a"), (b"pHYs", b""), (b"sRGB", b""), (b"iCCP", b"a")),
        *((b"tRNS", b""), (b"fcTL", b""), (b"fdAT", b"aaaaa"), (b"IDAT", b"a"), (b"abCd", b"a")),
    ]:
        refused_or_pillows(data[:at] + chunk(kind, body) + data[at:])
    for junk in (b"junk", b"junkjunkjunkjunkjunk", b"\0\0\0\5abcdab", bytes(20)):
        refused_or_pillows(data[:-12] + junk)
        refused_or_pillows(data[:-12] + junk + data[-12:])
        refused_or_pillows(data + junk)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
def test_avifs(mode: str) -> None:
    if missing_plugin("avif"):
        pytest.skip("this Pillow has no AVIF to compare with")
    agrees(as_file(PIXELS, "AVIF", mode, quality=30))


def as_heic(pixels: Any) -> bytes:
    pillow_heif = pytest.importorskip("pillow_heif")
    file = io.BytesIO()
    pillow_heif.from_pillow(Image.fromarray(pixels)).save(file, quality=95)
    return file.getvalue()


def test_heic() -> None:
    data = as_heic(PIXELS)
    image = Encoded(data, limits=Limits())
    assert (image.kind, image.decoder) == ("heic", "Pillow")
    theirs = pytest.importorskip("pillow_heif").read_heif(data).to_pillow()
    assert np.array_equal(image.pixels(), np.asarray(theirs.convert("RGB")))
    with pytest.raises(SampleError, match="45 x 61 "):
        Encoded(data, limits=Limits(100))
    with pytest.raises(SampleError, match="cannot be decoded"):
        Encoded(data[:-200]).pixels()


@pytest.mark.parametrize("error", [ImportError("libde265.so.0 is missing"), None], ids=str)
def test_a_kind_without_its_library_names_the_extra(
    error: ImportError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic"

    class Missing:
        """Finder that the import system asks first: hides a library, or gives a broken one."""

        @staticmethod
        def find_spec(module: str, *_: Any) -> Any:
            if module.partition(".")[0] != "pillow_heif":
                return None
            raise error or ModuleNotFoundError(f"No module named {module!r}", name=module)

    for module in [*sys.modules]:
        if module.partition(".")[0] == "pillow_heif":
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setattr(sys, "meta_path", [Missing, *sys.meta_path])
    Image.init()
    monkeypatch.delitem(Image.OPEN, "HEIF", raising=False)
    monkeypatch.setattr(Image, "ID", [one for one in Image.ID if one != "HEIF"])
    pillow._import_plugin.cache_clear()
    words = "is not installed" if error is None else f"cannot be imported: {error}"
    try:
        with pytest.raises(SampleError, match=rf"HEIC image.*{words}\n.*fastdata-torch\[codecs\]"):
            Encoded(start)
        tree = folder() / "tree"
        (tree / "a").mkdir(parents=True)
        (tree / "a" / "0.heic").write_bytes(start)
        with pytest.raises(BadSamplesError, match=rf"{words}: pip install.*\[codecs\]"):
            pack_tree(tree, tree.parent / "lmdb", "lmdb")
    finally:
        pillow._import_plugin.cache_clear()


# --- in loaders -------------------------------------------------------------------------------


def test_a_loader_counts_kinds_and_ways() -> None:
    root = folder() / "tree"
    (root / "a").mkdir(parents=True)
    files = {
        "0.jpg": as_file(PIXELS, "JPEG"),
        "1.png": as_file(PIXELS, "PNG"),
        "2.webp": as_file(PIXELS, "WEBP"),
        "3.jpg": as_file(PIXELS, "JPEG", "CMYK"),
        "4.png": as_file(PIXELS, "PNG", "L"),
    }
    for name, data in files.items():
        (root / "a" / name).write_bytes(data)
    out = folder() / "lmdb"
    pack_tree(root, out, "lmdb")
    data = ImageDataset(out, t.Resize((24, 20)))
    loader = DataLoader(data, batch_size=2, num_workers=2)
    with pytest.warns(FallbackWarning, match=r"2 \(a/2\)"):
        batches = list(loader)
    kinds = {"jpeg": {"native": 1, "Pillow": 1}, "png": {"native": 2}, "webp": {"Pillow": 1}}
    stats = loader.stats()
    assert stats.kinds == kinds
    assert stats.by_pillow == 2
    pixels = np.concatenate([images.permute(0, 2, 3, 1).numpy() for images, _ in batches])
    for number, got in enumerate(pixels):
        want = np.asarray(data.open_image(number).resize((20, 24), Image.Resampling.BILINEAR))
        assert np.abs(got.astype(int) - want).max() <= 1


@pytest.mark.skipif(
    not arithmetic_jpegs.decodes(), reason="this libjpeg knows no arithmetic coding"
)
def test_pillow_decodes_arithmetic_coded_jpegs() -> None:
    root, out = folder() / "tree", folder() / "lmdb"
    (root / "a").mkdir(parents=True)
    files = [arithmetic_jpegs.SEQUENTIAL, arithmetic_jpegs.PROGRESSIVE, arithmetic_jpegs.COLOUR]
    for number, data in enumerate(files):
        (root / "a" / f"{number}.jpg").write_bytes(data)
        with pytest.raises(DecodeError, match="unsupported"):
            decode_jpeg(data, fallback="never")
    pack_tree(root, out, "lmdb")
    loader = DataLoader(ImageDataset(out, t.CenterCrop((24, 20))), batch_size=3, num_workers=1)
    with pytest.warns(FallbackWarning, match="arithmetic-coded JPEG"):
        ((images, _),) = list(loader)
    assert loader.stats().kinds == {"jpeg-arithmetic": {"Pillow": 3}}
    for data, got in zip(files, images.permute(0, 2, 3, 1).numpy(), strict=True):
        pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
        top, left = (pixels.shape[0] - 24) // 2, (pixels.shape[1] - 20) // 2
        assert np.array_equal(got, pixels[top : top + 24, left : left + 20])


def animated(kind: str) -> bytes:
    frames = [Image.fromarray(picture(40, 30, seed)) for seed in range(3)]
    file = io.BytesIO()
    frames[0].save(file, kind, save_all=True, append_images=frames[1:], duration=100)
    return file.getvalue()


def jpegs_of_all_kinds() -> dict[str, tuple[bytes, str]]:
    plain = as_file(PIXELS, "JPEG")
    cmyk = as_file(PIXELS, "JPEG", "CMYK")
    adobe = cmyk.index(b"Adobe") + 11  # its colour transform: none; 2 says YCCK
    frame = plain.index(b"\xff\xc0")
    arithmetic = "Pillow" if arithmetic_jpegs.decodes() else ""
    return {
        "baseline": (plain, "native"),
        "progressive": (as_file(PIXELS, "JPEG", progressive=True), "native"),
        "grey": (as_file(PIXELS, "JPEG", "L"), "native"),
        "RGB": (as_file(PIXELS, "JPEG", keep_rgb=True), "Pillow"),
        "CMYK": (cmyk, "Pillow"),
        "CMYK, a large profile": (
            as_file(PIXELS, "JPEG", "CMYK", icc_profile=bytes(100_000)),
            "Pillow",
        ),
        "YCCK": (cmyk[:adobe] + b"\2" + cmyk[adobe + 1 :], "Pillow"),
        "progressive CMYK": (as_file(PIXELS, "JPEG", "CMYK", progressive=True), "Pillow"),
        "arithmetic": (arithmetic_jpegs.SEQUENTIAL, arithmetic),
        "arithmetic, progressive": (arithmetic_jpegs.PROGRESSIVE, arithmetic),
        "arithmetic, colour": (arithmetic_jpegs.COLOUR, arithmetic),
        "arithmetic RGB": (arithmetic_jpegs.RGB, arithmetic),
        "12 bits": (plain[:frame] + b"\xff\xc1\0\x11\x0c" + plain[frame + 5 :], ""),
        "lossless": (plain.replace(b"\xff\xc0", b"\xff\xc3"), ""),
        "cut off": (plain[:-400], ""),
        "progressive, cut off": (as_file(PIXELS, "JPEG", progressive=True)[:-300], ""),
        "no more than a header": (plain[:300], ""),
    }


def files_of_all_kinds() -> dict[str, tuple[bytes, str]]:
    png = as_file(PIXELS, "PNG")

    return {
        **jpegs_of_all_kinds(),
        "PNG": (png, "native"),
        "PNG, 16-bit grey": (make_png(0, 16, 20, 20), "Pillow"),
        "PNG, animated": (animated("PNG"), "Pillow"),
        "PNG, cut off": (png[:-3000], ""),
        "WebP": (as_file(PIXELS, "WEBP"), "Pillow"),
        "WebP, animated": (animated("WEBP"), "Pillow"),
        "WebP, cut off": (as_file(PIXELS, "WEBP")[:-500], ""),
        "BMP": (as_file(PIXELS, "BMP"), "Pillow"),
        "BMP, palette": (as_file(PIXELS, "BMP", "P"), "Pillow"),
        "TIFF": (as_file(PIXELS, "TIFF"), "Pillow"),
        "TIFF, CMYK": (as_file(PIXELS, "TIFF", "CMYK"), "Pillow"),
        "TIFF, compressed": (as_file(PIXELS, "TIFF", compression="tiff_lzw"), "Pillow"),
        "GIF": (as_file(PIXELS, "GIF", "P"), "Pillow"),
        "PPM": (as_file(PIXELS, "PPM"), "Pillow"),
        "PPM, grey": (as_file(PIXELS, "PPM", "L"), "Pillow"),
    }


def write_all_kinds(tree: Path) -> Counter[str]:
    """Writes a tree of `files_of_all_kinds`; returns how many each decodes: "" those damaged."""
    files = files_of_all_kinds()
    (tree / "a").mkdir(parents=True)
    for number, (data, _) in enumerate(files.values()):
        (tree / "a" / f"{number:02}.jpg").write_bytes(data)
    return Counter(by for _, by in files.values())


@pytest.mark.filterwarnings("ignore::fastdata.errors.FallbackWarning")
def test_each_kind_has_its_decoder() -> None:
    root = folder()
    decoders = write_all_kinds(root / "tree")
    del decoders[""]
    pack_tree(root / "tree", root / "lmdb", "lmdb", skip_bad=True)
    data = ImageDataset(root / "lmdb", t.Resize((24, 20)))
    assert len(data) == decoders.total()
    loader = DataLoader(data, batch_size=5, num_workers=2, on_error="zero")
    for _ in range(2):  # of files, kinds and sizes are learnt in the first epoch
        for _ in loader:
            pass
        kinds = loader.stats().kinds
        counted = Counter[str]()
        for ways in kinds.values():
            counted.update(ways)
        assert counted == decoders


def orientation(number: int) -> Image.Exif:
    exif = Image.Exif()
    exif[274] = number
    return exif


#: What Pillow decodes, the words of the reason, and what the core decodes for the lack of that.
REASONS: dict[str, tuple[str, str, bytes, bytes]] = {
    "EXIF": ("png", "EXIF", as_file(PIXELS, "PNG", exif=orientation(6)), as_file(PIXELS, "PNG")),
    "depth": ("png", "16 bits", make_png(0, 16, 40, 30), as_file(PIXELS, "PNG", "L")),
    "animation": ("png", "animated", animated("PNG"), as_file(picture(40, 30, 0), "PNG")),
    "end": ("png", "no end", as_file(PIXELS, "PNG")[:-12], as_file(PIXELS, "PNG")),
}


@pytest.mark.parametrize("name", REASONS)
def test_the_reason_of_a_fallback_is_what_makes_the_difference(name: str) -> None:
    kind, words, data, plain = REASONS[name]
    root = folder()
    for number, file in enumerate((plain, data)):
        (root / str(number)).mkdir()
        (root / str(number) / f"image.{kind}").write_bytes(file)
    tree = import_torchvision().datasets.ImageFolder(str(root))
    dataset = ImageDataset(tree, t.CenterCrop(20), exif_transpose=True)
    loader = DataLoader(dataset, batch_size=2)
    with pytest.warns(FallbackWarning, match=f"sample 1: .*{kind.upper()}.*: .*{words}"):
        ((images, _),) = list(loader)
    assert loader.stats().kinds == {kind: {"native": 1, "Pillow": 1}}
    for got, file in zip(images, (plain, data), strict=True):
        with Image.open(io.BytesIO(file)) as image:
            upright = ImageOps.exif_transpose(image).convert("RGB")
        assert torch.equal(got, t.CenterCrop(20)(upright))


def test_what_is_packed_says_its_kind() -> None:
    """In the index, in what packing tells, in `explain`: no "other", which Pillow would decode."""
    imagecodecs = pytest.importorskip("imagecodecs")
    heif = pytest.importorskip("pillow_heif").from_pillow(Image.fromarray(PIXELS))
    root, out, heic = folder() / "tree", folder() / "lmdb", io.BytesIO()
    heif.save(heic)
    (root / "a").mkdir(parents=True)
    (root / "a" / "0.avif").write_bytes(imagecodecs.avif_encode(PIXELS))
    (root / "a" / "1.heic").write_bytes(heic.getvalue())
    (root / "a" / "2.ppm").write_bytes(as_file(PIXELS, "PPM"))
    pack_tree(root, out, "lmdb")
    data = ImageDataset(out, t.Resize((24, 20)))
    kinds = ["avif", "heic", "ppm"]
    assert [data.row(n).encoding for n in range(3)] == kinds
    loader = DataLoader(data, batch_size=3, num_workers=1)
    for _ in loader:
        pass
    assert loader.stats().kinds == {kind: {"Pillow": 1} for kind in kinds}
    assert verify(out, workers=1).problems == []


# --- colours and orientation ------------------------------------------------------------------


def stored(*files: tuple[str, bytes], **options: Any) -> ImageDataset:
    root, out = folder() / "tree", folder() / "lmdb"
    (root / "a").mkdir(parents=True)
    for number, (suffix, data) in enumerate(files):
        (root / "a" / f"{number}.{suffix}").write_bytes(data)
    pack_tree(root, out, "lmdb")
    return ImageDataset(out, **options)


@pytest.mark.parametrize(
    ("color", "modes"),
    [
        ("rgb", ["RGB"] * 4),
        ("gray", ["L"] * 4),
        ("rgba", ["RGBA"] * 4),
        ("unchanged", ["RGB", "RGBA", "I;16", "P"]),
    ],
)
def test_colors_are_pillows(color: str, modes: list[str]) -> None:
    files = [
        ("jpg", as_file(PIXELS, "JPEG")),
        ("png", as_file(PIXELS, "PNG", "RGBA")),
        ("png", as_file(DEEP, "PNG", "I;16")),
        ("png", as_file(PIXELS, "PNG", "P", transparency=b"\x10\x80")),
    ]
    dataset = stored(*files, color=color)
    for number, (_, data) in enumerate(files):
        with Image.open(io.BytesIO(data)) as image:
            if color in ("rgb", "gray"):
                image.info.pop("transparency", None)
            want = image if color == "unchanged" else image.convert(modes[number])
            got, _ = dataset[number]
            assert (got.mode, got.size) == (modes[number], want.size)
            assert np.array_equal(np.asarray(got), np.asarray(want))


@pytest.mark.parametrize(("color", "mode"), [("gray", "L"), ("rgba", "RGBA")])
def test_colors_of_jpegs_are_pillows_with_each_decoder(color: str, mode: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    plain = as_file(PIXELS, "JPEG", exif=exif)
    files = [data for data, way in jpegs_of_all_kinds().values() if way] + [plain]
    for exif_transpose in (False, True):
        style = Style(color, exif_transpose)
        for data in files:
            got = open_image(data, probe(data), Limits(), style)
            with Image.open(io.BytesIO(data)) as image:
                want = (ImageOps.exif_transpose(image) if exif_transpose else image).convert(mode)
            assert (got.mode, got.size, got.getexif()) == (mode, want.size, want.getexif())
            assert np.array_equal(np.asarray(got), np.asarray(want))
        for cut in (plain[:-400], plain[:-2]):
            with pytest.raises(SampleError, match="truncated"):
                open_image(cut, ImageInfo("jpeg", 61, 45, 3), Limits(), style)


@pytest.mark.parametrize("orientation", [1, 6, 9])
def test_an_orientation_beside_a_broken_tag_is_heeded(orientation: int) -> None:
    """Pillow's exif_transpose fails on writing the other tag."""
    tags = [(0x010E, 11, 1, b"\x3f\x80\0\0"), (0x0112, 3, 1, bytes([0, orientation, 0, 0]))]
    ifd = b"\0\2" + b"".join(struct.pack(">HHI4s", *tag) for tag in tags) + bytes(4)
    exif = b"Exif\0\0MM\0*\0\0\0\x08" + ifd
    data = as_file(PIXELS, "JPEG")
    broken = data[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + data[2:]
    plain = Image.Exif()
    plain[0x0112] = orientation
    with Image.open(io.BytesIO(as_file(PIXELS, "JPEG", exif=plain))) as image:
        want = np.asarray(ImageOps.exif_transpose(image))
    got = open_image(broken, probe(broken), Limits(), Style("rgb", True))
    assert np.array_equal(np.asarray(got), want)
    assert got.getexif().get(0x0112, 1) in (1, 9)  # who turns it again does no harm


@pytest.mark.parametrize("color", ["gray", "unchanged"])
def test_other_colors_are_told_to_be_slower(color: str) -> None:
    dataset = stored(("png", as_file(PIXELS, "PNG")), transform=np.array, color=color)
    with pytest.warns(SlowPathWarning, match=color):
        loader = DataLoader(dataset, batch_size=None)
    ((image, _),) = loader
    assert image.shape[:2] == (45, 61)
    with pytest.raises(UsageError, match=color):
        DataLoader(dataset, require_native=True)
    with pytest.raises(UsageError, match="color='cmyk'"):
        ImageDataset(dataset.path, color="cmyk")


def test_a_color_that_the_transform_would_undo_is_refused() -> None:
    dataset = stored(("png", as_file(PIXELS, "PNG")), color="gray", transform=np.array)
    for transform in (t.Resize(9), t.Schedule(lambda epoch: t.Resize(9))):
        with pytest.raises(UsageError, match="color='gray' and Resize"):
            ImageDataset(dataset.path, transform, color="gray")
        dataset.transform = transform
        with pytest.raises(UsageError, match="color='gray' and Resize"):
            dataset[0]
    assert ImageDataset(dataset.path, t.Resize(9), exif_transpose=True)[0][0].shape[0] == 3
    dataset.transform = None
    with pytest.raises(UsageError, match="color='gray' and fast_collate"):
        DataLoader(Subset(dataset, [0]), collate_fn=fast_collate)
