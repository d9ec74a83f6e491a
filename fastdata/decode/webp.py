"""WebP by Pillow's libwebp, only as far as a crop needs.

Pillow decodes by the same library, so pixels are equal; but it decodes all of the image, to RGBA.
Structures and functions are those of webp/decode.h of libwebp, ABI 0x0209 (libwebp 1.2.4 to 1.6); a
library of another ABI refuses the first call.
"""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint32, c_void_p
from ctypes.util import find_library
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from fastdata.decode.decoders import Declined

_ABI = 0x0209
_MODE_RGB = 0
#: Rows and columns around a crop that its chroma is upsampled from (libwebp's fancy upsampling
#: takes the edge of what is decoded for the image's own).
_MARGIN = 2


def _ints(*names: str) -> list[tuple[str, Any]]:
    return [(name, c_int) for name in names]


class _Features(ctypes.Structure):
    """WebPBitstreamFeatures."""

    _fields_: ClassVar = [
        *_ints("width", "height", "has_alpha", "has_animation", "format"),
        ("pad", c_uint32 * 5),
    ]


class _Pixels(ctypes.Structure):
    """WebPRGBABuffer."""

    _fields_: ClassVar = [("rgba", c_void_p), ("stride", c_int), ("size", c_size_t)]


class _Planes(ctypes.Structure):
    """WebPYUVABuffer."""

    _fields_: ClassVar = [
        *((name, c_void_p) for name in ("y", "u", "v", "a")),
        *((f"{name}_stride", c_int) for name in ("y", "u", "v", "a")),
        *((f"{name}_size", c_size_t) for name in ("y", "u", "v", "a")),
    ]


class _Memory(ctypes.Union):
    _fields_: ClassVar = [("rgba", _Pixels), ("yuva", _Planes)]


class _Buffer(ctypes.Structure):
    """WebPDecBuffer."""

    _fields_: ClassVar = [
        *_ints("colorspace", "width", "height", "is_external_memory"),
        ("u", _Memory),
        ("pad", c_uint32 * 4),
        ("private_memory", c_void_p),
    ]


class _Options(ctypes.Structure):
    """WebPDecoderOptions."""

    _fields_: ClassVar = [
        *_ints("bypass_filtering", "no_fancy_upsampling"),
        *_ints("use_cropping", "crop_left", "crop_top", "crop_width", "crop_height"),
        *_ints("use_scaling", "scaled_width", "scaled_height", "use_threads"),
        *_ints("dithering_strength", "flip", "alpha_dithering_strength"),
        ("pad", c_uint32 * 5),
    ]


class _Config(ctypes.Structure):
    """WebPDecoderConfig."""

    _fields_: ClassVar = [("input", _Features), ("output", _Buffer), ("options", _Options)]


class WebpFile(NamedTuple):
    """Header of a WebP.

    Attributes:
        width: Columns.
        height: Rows.
        data: The file.
    """

    width: int
    height: int
    data: bytes

    def decode(self, box: tuple[int, int, int, int]) -> npt.NDArray[np.uint8]:
        """Return the rows above a box's lower edge, (rows, width, 3) RGB; only the box is right.

        Raises:
            Declined: libwebp finds it damaged.
        """
        left, top = (max(0, side - _MARGIN) & ~1 for side in box[:2])
        right, bottom = min(self.width, box[2] + _MARGIN), min(self.height, box[3] + _MARGIN)
        out = np.empty((bottom, self.width, 3), np.uint8)
        stride = 3 * self.width
        begin = top * stride + 3 * left
        config = _Config()
        _library().WebPInitDecoderConfigInternal(byref(config), _ABI)
        options, output = config.options, config.output
        options.use_cropping = 1
        options.crop_left, options.crop_top = left, top
        options.crop_width, options.crop_height = right - left, bottom - top
        output.colorspace, output.is_external_memory = _MODE_RGB, 1
        pixels = output.u.rgba
        pixels.rgba, pixels.stride = out.ctypes.data + begin, stride
        pixels.size = out.nbytes - begin
        status = _library().WebPDecode(self.data, len(self.data), byref(config))
        if status:
            raise Declined(f"libwebp: status {status}")
        return out


def open_webp(data: bytes, trusted: bool) -> WebpFile:
    """Read a WebP's header.

    Args:
        data: The file.
        trusted: Whether its bytes are known to be those that were stored. Pillow decodes others:
            it checks all chunks, and libwebp is hardly faster where it cannot stop at the crop.

    Raises:
        Declined: It was not checked, it is animated, damaged, or there is no libwebp.
    """
    if not trusted:
        raise Declined("not checked")
    library, found = _library(), _Features()
    if library is None:
        raise Declined("no libwebp")
    if library.WebPGetFeaturesInternal(data, len(data), byref(found), _ABI):
        raise Declined("libwebp does not read its header")
    if found.has_animation:
        raise Declined("animated")
    return WebpFile(found.width, found.height, data)


def has_libwebp() -> bool:
    """Return whether there is a libwebp that this module can call."""
    return _library() is not None


@cache
def _library() -> Any:
    """Return Pillow's libwebp, or the system's; None without one of a known ABI."""
    for path in _candidates():
        try:
            library = ctypes.CDLL(path)
            library.WebPInitDecoderConfigInternal.argtypes = [POINTER(_Config), c_int]
            given: list[Any] = [c_char_p, c_size_t]
            library.WebPGetFeaturesInternal.argtypes = [*given, POINTER(_Features), c_int]
            library.WebPDecode.argtypes = [*given, POINTER(_Config)]
        except (OSError, AttributeError):
            continue
        if library.WebPInitDecoderConfigInternal(byref(_Config()), _ABI):
            return library
    return None


def _candidates() -> list[str]:
    """Return places of libwebp: beside Pillow (in its wheels for Linux and macOS), or the system's.

    Pillow's own comes first, as it is loaded already; a second copy may be of another version.
    """
    import PIL

    package = Path(PIL.__file__).parent
    beside = [
        *package.parent.glob("[Pp]illow.libs/libwebp-*.so*"),
        *package.glob(".dylibs/libwebp.*dylib"),
    ]
    found = find_library("webp")
    return [*map(str, sorted(beside)), *([found] if found else [])]
