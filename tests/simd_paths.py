"""Decode a JPEG and build its seek points with each instruction set."""

from __future__ import annotations

from fastdata import _native
from fastdata.decode import DecodeError, decode_jpeg

Box = tuple[int, int, int, int]


def outcome(jpeg: bytes, box: Box, table: bytes, level: str) -> bytes | str:
    before = _native.simd()
    _native.set_simd(level)
    try:
        return decode_jpeg(jpeg, box, seek_points=table, fallback="never").tobytes()
    except DecodeError as error:
        return error.code
    finally:
        _native.set_simd(before)


def assert_same(jpeg: bytes, box: Box, table: bytes, what: object) -> None:
    """All of this processor's paths must agree; ``what`` is told where they do not."""
    found = {level: outcome(jpeg, box, table, level) for level in _native.simd_levels()}
    assert len(set(found.values())) == 1, (
        what,
        {level: one if isinstance(one, str) else "pixels" for level, one in found.items()},
    )
