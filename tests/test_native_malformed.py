"""Damaged input: a status that says what and where, on every SIMD path."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jpegs import encode, picture, pillow
from PIL import Image

from fastdata.decode import DecodeError, decode_jpeg, jpeg_info, seek_points

JPEG = encode(picture(120, 90, 3), "4:2:0", 90)
SCAN = JPEG.index(b"\xff\xda") + 2 + 12


def code_of(data: bytes, **options) -> str:
    try:
        decode_jpeg(data, fallback="never", **options)
    except DecodeError as error:
        assert error.detail
        return error.code
    return "ok"


def replaced(data: bytes, at: int, new: bytes) -> bytes:
    return data[:at] + new + data[at + len(new) :]


def test_truncated_everywhere(simd):
    for length in [
        *range(SCAN + 40),
        *range(SCAN + 40, len(JPEG) - 40, 29),
        *range(len(JPEG) - 40, len(JPEG) - 2),
    ]:
        code = code_of(JPEG[:length])
        if length < 3:
            assert code == "not_jpeg"
        elif code == "ok":
            # Nothing but the padding bits of the last byte may be missing.
            assert length >= len(JPEG) - 3
        else:
            assert code == "truncated", length
        with pytest.raises(DecodeError):
            seek_points(JPEG[:length])


BAD_HEADERS = [
    (b"\xff\xc0", 5, b"\0\0", "bad_dimensions"),  # height
    (b"\xff\xc0", 7, b"\0\0", "bad_dimensions"),  # width
    (b"\xff\xc0", 4, b"\x0c", "unsupported"),  # 12 bits
    (b"\xff\xc0", 9, b"\x07", "bad_marker"),  # components
    (b"\xff\xc0", 11, b"\x05", "bad_marker"),  # sampling 0x05
    (b"\xff\xc0", 11, b"\x41", "unsupported"),  # 4:1:1
    (b"\xff\xc0", 12, b"\x09", "bad_marker"),  # quantisation table
    (b"\xff\xc0", 12, b"\x03", "missing_table"),
    (b"\xff\xc0", 1, b"\xc3", "unsupported"),  # lossless
    (b"\xff\xc0", 1, b"\xcb", "unsupported"),  # lossless, arithmetic
    (b"\xff\xc4", 1, b"\xcc", "unsupported"),  # a DAC segment, of arithmetic coding
    (b"\xff\xc4", 5, b"\x03\0\x03", "bad_huffman_table"),  # three codes of one bit
    (b"\xff\xc4", 4, b"\x47", "bad_huffman_table"),  # class 4
    (b"\xff\xda", 6, b"\x77", "bad_marker"),  # table 7
    (b"\xff\xda", 6, b"\x33", "missing_table"),
    (b"\xff\xda", 4, b"\x01", "bad_marker"),  # one component of three
    (b"\xff\xdb", 2, b"\0\0", "bad_marker"),  # length 0
]


def test_bad_headers(simd):
    for find, at, new, code in BAD_HEADERS:
        data = replaced(JPEG, JPEG.index(find) + at, new)
        assert code_of(data) == code
        with pytest.raises(DecodeError) as caught:
            seek_points(data)
        assert caught.value.code == code


def test_absurd_dimensions(simd):
    at = JPEG.index(b"\xff\xc0")
    data = replaced(JPEG, at + 5, b"\xff\xff\xff\xff")
    assert jpeg_info(data).width == 65535
    assert code_of(data, size=(224, 224)) == "too_large"
    assert code_of(data, region=(65000, 65000, 65100, 65100), size=(9, 9)) == "truncated"


def test_restart_marker_out_of_order(simd):
    data = encode(picture(64, 64, 3), "4:4:4", 88, restart_marker_rows=1)
    assert code_of(data.replace(b"\xff\xd2", b"\xff\xd5")) == "bad_scan_data"
    assert code_of(data.replace(b"\xff\xd2", b"\x12\x34")) in ("bad_scan_data", "truncated")


def test_kinds_for_pillow():
    for form, mode in (("PNG", "RGB"), ("BMP", "RGB"), ("JPEG", "CMYK"), ("JPEG", "RGB")):
        out = io.BytesIO()
        Image.fromarray(picture(50, 40, 1)).convert(mode).save(out, form, keep_rgb=True)
        data = out.getvalue()
        assert not jpeg_info(data).native
        assert np.array_equal(decode_jpeg(data), pillow(data))
        assert np.array_equal(decode_jpeg(data, (3, 4, 30, 20)), pillow(data)[4:20, 3:30])
        with pytest.raises(DecodeError):
            decode_jpeg(data, fallback="never")
    data = JPEG[:-2] + b"\x12" * 50 + b"\xff\xd9"  # libjpeg warns of such bytes, and ignores them
    assert np.array_equal(decode_jpeg(data, fallback="never"), pillow(data))
    for data in (b"not an image at all", b"", JPEG[:2000]):
        with pytest.raises(DecodeError):
            decode_jpeg(data)


@pytest.mark.parametrize("between", [b"garbage", b"\xff\0", b"\xff\x01", b"\xff\xd0"])
def test_what_libjpeg_skips_between_segments_goes_to_pillow(between):
    out = io.BytesIO()
    Image.fromarray(picture(50, 40, 1)).save(out, "JPEG", progressive=True)
    progressive = out.getvalue()
    scan = progressive.index(b"\xff\xda", progressive.index(b"\xff\xda") + 1)
    tables = progressive.rindex(b"\xff\xc4", 0, scan)
    header = JPEG.index(b"\xff\xdb")
    inserted = [progressive[:scan] + between + progressive[scan:]]
    if between == b"\xff\x01":  # Pillow does not know it in a header
        inserted.append(progressive[:tables] + between + progressive[tables:])
    else:
        inserted.append(JPEG[:header] + between + JPEG[header:])
    for data in inserted:
        assert np.array_equal(decode_jpeg(data), pillow(data))
        assert code_of(data) == "unsupported"


@settings(max_examples=150)
@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=6),
    st.integers(0, 10**6),
)
def test_any_damage_is_survived(changes, cut):
    data = bytearray(JPEG)
    for at, value in changes:
        data[at % len(data)] = value
    data = bytes(data[: cut % len(data)]) if cut % 3 == 0 else bytes(data)
    code_of(data, size=(32, 32))
    try:
        table = seek_points(data, 16)
    except DecodeError:
        return
    code_of(data, size=(32, 32), seek_points=table)
