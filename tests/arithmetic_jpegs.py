"""Arithmetic-coded JPEGs, which few programs write."""

from __future__ import annotations

import io
from base64 import b64decode

from PIL import Image

#: Sequential (SOF9), grey, 76 x 50.
SEQUENTIAL = b64decode(
    b"/9j/2wBDAAMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAw"
    b"MDAwP/yQALCAAyAEwBAREA/9oACAEBAAA/AP8A57rEJYNtQ6WZzZ+FHd11iUg55Q5K4H+NYSICBK1z3XqHQ3amsZUu"
    b"T9yp28rmbj6rzYH0ZKrLWh1FoGr/AOp4AxlEjuPLtkdMCgWxWR2FuqH8SXVo0Dvnm1sKCqzFXZBrtPIT4iZd7+jsLI"
    b"m99hEIkRcYU5mtUZ8Vkku9HMBocslZ0jTuRIn4Ph0O111DcbRiR/o6V77/AMWA/9k="
)
#: Progressive (SOF10), grey, 76 x 50, with a DAC segment.
PROGRESSIVE = b64decode(
    b"/9j/2wBDAAMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAw"
    b"MDAwP/ygALCAAyAEwBAREA/8wACgAxEBQBABEB/9oACAEBAAAAAP8A58K5f94h8Efs7GgCjz70/wCDF4O9UBzsBIZ3"
    b"Ke0rrxoIq+7S+9/Hn9sxv87595FLKhTpVcxToR7ciqqokNOA/9oACAEBAAE/ATe+dAZLqnO6ruqAe/L7ZKIc8ytr9C"
    b"N5RkhNptXr2wL1utvq9HY+Db67GgFgmc0xtWWGCA/J0lnNJboOyHC3YjYDwhaftGb+NVK9iP/aAAgBAQABPxAoS//Z"
)
#: Sequential, 4:4:4, 40 x 30; the same whose components are called R, G and B, so no YCbCr.
COLOUR = b64decode(
    b"/9j/2wBDAAMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAw"
    b"MDAwP/yQARCAAeACgDAREAAhEAAxEA/9oADAMBAAIRAxEAPwD/ALMr5gLbTeWhHOe9bbbFFd+O8DcFm/mqdqJF2WNM"
    b"1Bh2sm329gdfhqRO9zee7brih8H2qhoEfJWhg7bEM4qFX8hiZ4S5FtRZOVupQt33pw0KBwDXdSjUwy0tWzOmTlRzFH"
    b"wDu8ZtbMF3xSNNapqY0P/Z"
)
RGB = COLOUR.replace(b"\3\1\x11\0\2\x11\0\3\x11\0", b"\3R\x11\0G\x11\0B\x11\0").replace(
    b"\3\1\0\2\x11\3\x11\0\x3f\0", b"\3R\0G\x11B\x11\0\x3f\0"
)


def decodes() -> bool:
    try:
        Image.open(io.BytesIO(SEQUENTIAL)).load()
    except OSError:
        return False
    return True
