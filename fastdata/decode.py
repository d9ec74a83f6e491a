"""Decoding images: JPEG regions from seek points, resampling, normalisation.

Baseline JPEGs are decoded by the native core, to the same bytes as libjpeg-turbo's
accurate decoder (and therefore Pillow); only what a region needs is touched. All else
(progressive, CMYK, PNG, WebP, ...) is decoded by Pillow and then takes the same way::

    pixels = decode_jpeg(data)                                  # (H, W, 3) uint8
    crop = decode_jpeg(data, region=(40, 30, 340, 330), size=(224, 224))
    table = seek_points(data)                                   # once
    crop = decode_jpeg(data, region=(40, 30, 340, 330), seek_points=table)

Resampling equals Pillow's ``crop(region).resize(size, filter)`` within 1 level.
This module knows bytes and arrays; where they come from is not its business.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from fastdata import _native
from fastdata.engines import usable_cpus
from fastdata.errors import SampleError

__all__ = [
    "DecodeError",
    "Engine",
    "JpegInfo",
    "PendingBatch",
    "decode_batch",
    "decode_jpeg",
    "jpeg_info",
    "seek_points",
]

#: Pixels between seek points: 0.9% of a photograph's bytes (docs/design/0002-native-core.md).
DEFAULT_STRIDE = 128

_FILTERS = ("bilinear", "nearest", "bicubic", "lanczos")
_DTYPES = {"uint8": np.uint8, "float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
_FALLBACKS = ("unsupported", "always", "never")
# What the native core leaves to others, rather than finds fault with.
_NOT_NATIVE = ("unsupported", "not_jpeg")

Region: TypeAlias = tuple[int, int, int, int]
_Array: TypeAlias = npt.NDArray[Any]


class DecodeError(SampleError, ValueError):
    """An image that cannot be decoded.

    Attributes:
        code: What is wrong, in one word: ``truncated``, ``bad_scan_data``, ….
        detail: Why.
        offset: At about which byte of the image.
        index: Which sample of a batch; else None.
    """

    def __init__(self, code: str, detail: str, offset: int = 0, index: int | None = None) -> None:
        where = "" if index is None else f"sample {index}: "
        super().__init__(f"{where}{detail} ({code}, at byte {offset})")
        self.code, self.detail, self.offset, self.index = code, detail, offset, index

    def __reduce__(self) -> tuple[type[DecodeError], tuple[str, str, int, int | None]]:
        return DecodeError, (self.code, self.detail, self.offset, self.index)


@dataclass(frozen=True)
class JpegInfo:
    """What ``jpeg_info`` finds. Sizes are 0 where the bytes given do not tell."""

    encoding: str  # "jpeg", "png", "webp", "gif", "bmp", "unknown"
    width: int
    height: int
    components: int
    sampling: str  # "4:4:4", "4:2:2", "4:2:0", "4:4:0", "grey", "other"; "" if no JPEG
    progressive: bool
    native: bool  # whether the native core decodes it
    reason: str  # if not, why not


def jpeg_info(data: Any) -> JpegInfo:
    """Describe an encoded image from its first bytes.

    Args:
        data: the image, or its beginning: bytes or anything with the buffer protocol.
            ``native`` needs all bytes up to the scan, the rest much less.

    Never raises for what is in ``data``.
    """
    encoding, width, height, components, sampling, progressive, code, detail, _ = _native.probe(
        data
    )
    return JpegInfo(
        encoding, width, height, components, sampling, progressive, code == "ok", detail
    )


def seek_points(data: Any, stride: int = DEFAULT_STRIDE) -> bytes:
    """Index a baseline JPEG, so that regions of it can be decoded without what is before.

    Decodes all entropy-coded data, which proves that the JPEG is whole.

    Args:
        data: the JPEG.
        stride: pixels between two points of a row.

    Returns:
        The packed table (docs/formats/seek-points.md), about 1% of the JPEG's size.

    Raises:
        DecodeError: the JPEG is damaged, or none for the native core (``unsupported``).
        ValueError: a stride below 1.
    """
    if stride < 1:
        raise ValueError(f"stride must be at least 1 pixel, not {stride}")
    packed, code, detail, offset = _native.build_seek_points(data, stride)
    if code != "ok":
        raise DecodeError(code, detail, offset)
    return packed


def decode_jpeg(
    data: Any,
    region: Region | None = None,
    size: tuple[int, int] | None = None,
    *,
    seek_points: Any | None = None,
    flip: bool = False,
    filter: str = "bilinear",
    dct_scaling: bool = False,
    fallback: str = "unsupported",
) -> _Array:
    """Decode one image, or a region of it, and resize it.

    Args:
        data: the encoded image (bytes or anything with the buffer protocol), or its pixels:
            a uint8 array, (H, W) or (H, W, 3).
        region: (left, upper, right, lower) in pixels, as Pillow's ``crop``; default: all.
        size: (width, height) of the result, as Pillow's ``resize``; default: the region's.
        seek_points: the image's table from :func:`seek_points`.
        flip: mirror left to right, after cropping.
        filter: ``bilinear``, ``nearest``, ``bicubic`` or ``lanczos``; all but nearest
            antialias.
        dct_scaling: decode at 1/2, 1/4 or 1/8 where the region is at least so many times
            larger than ``size``. Faster, but other pixels than Pillow's.
        fallback: what Pillow decodes: ``unsupported``, images of other kinds; ``always``,
            damaged ones too, as well as it can; ``never``.

    Returns:
        uint8, (height, width, 3), RGB, 0 to 255. Grey images have three equal channels.

    Raises:
        DecodeError: the image is damaged; the seek points are not this image's.
        ValueError: a region outside the image, or an argument out of range.
    """
    if size is None and region is not None:
        size = (int(region[2]) - int(region[0]), int(region[3]) - int(region[1]))
    if size is None:
        if isinstance(data, np.ndarray) and data.ndim > 1:
            size = (data.shape[1], data.shape[0])
        else:
            _, width, height, _, _, _, code, detail, offset = _native.probe(data)
            if code == "ok":
                size = (width, height)
            elif fallback == "always" or (fallback != "never" and code in _NOT_NATIVE):
                data = _pillow_pixels(data, None)
                size = (data.shape[1], data.shape[0])
            else:
                raise DecodeError(code, detail, offset)
    out = decode_batch(
        [data],
        size=size,
        regions=None if region is None else [region],
        seek_points=None if seek_points is None else [seek_points],
        flips=[flip],
        filter=filter,
        dct_scaling=dct_scaling,
        fallback=fallback,
        engine=None,
        _index=False,
    )
    image: _Array = out[0]
    return image


def decode_batch(
    samples: Sequence[Any],
    size: tuple[int, int],
    *,
    regions: Sequence[Region] | None = None,
    seek_points: Sequence[Any | None] | None = None,
    flips: Sequence[bool] | None = None,
    filter: str = "bilinear",
    dtype: str = "uint8",
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    dct_scaling: bool = False,
    fallback: str = "unsupported",
    out: _Array | None = None,
    engine: Engine | None = None,
    _index: bool = True,
) -> _Array:
    """Decode many images to one array.

    Args:
        samples: encoded images or pixels, as for :func:`decode_jpeg`. Slices of a
            memory-mapped file (``memoryview(mapped)[a:b]``) are read in place.
        size: (width, height) of all results.
        regions: one a sample, as for :func:`decode_jpeg`; or None for the whole images.
        seek_points: one a sample, or None for those that have none.
        flips: one a sample.
        filter: as for :func:`decode_jpeg`.
        dtype: ``uint8``, 0 to 255; or ``float32``, ``float16``, ``bfloat16``: then
            ``(value / 255 - mean) / std``. Arrays of bfloat16 have the dtype uint16,
            whose bits they are: ``torch.from_numpy(a).view(torch.bfloat16)``.
        mean: three values in units of 0 to 1; default 0.
        std: three values in units of 0 to 1; default 1.
        dct_scaling: as for :func:`decode_jpeg`.
        fallback: as for :func:`decode_jpeg`.
        out: where to put it: (N, H, W, 3) with contiguous pixels (channels-last) or
            contiguous planes (``np.empty((n, 3, h, w)).transpose(0, 2, 3, 1)``).
        engine: whose threads decode it; default: this one.

    Returns:
        ``out``, or a new (N, height, width, 3) array, channels-last.

    Raises:
        DecodeError: for the first sample that failed; ``index`` says which.
        ValueError: an argument out of range.
    """
    if out is None:
        if dtype not in _DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(_DTYPES)}, not {dtype!r}")
        out = np.empty((len(samples), size[1], size[0], 3), _DTYPES[dtype])
    elif out.shape[1:3] != (size[1], size[0]):
        raise ValueError(f"out has images of {out.shape[1:3]}, not the size's {size[::-1]}")
    pending = PendingBatch(
        samples,
        out,
        regions=regions,
        seek_points=seek_points,
        flips=flips,
        filter=filter,
        dtype=dtype,
        mean=mean,
        std=std,
        dct_scaling=dct_scaling,
        fallback=fallback,
        _index=_index,
    )
    if engine is None:
        pending._job.run()
    else:
        engine._begin(pending)
    return pending.result()


class PendingBatch:
    """A batch that an :class:`Engine` works on."""

    def __init__(
        self,
        samples: Sequence[Any],
        out: _Array,
        *,
        regions: Sequence[Region] | None = None,
        seek_points: Sequence[Any | None] | None = None,
        flips: Sequence[bool] | None = None,
        filter: str = "bilinear",
        dtype: str = "uint8",
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        dct_scaling: bool = False,
        fallback: str = "unsupported",
        _index: bool = True,
    ):
        if filter not in _FILTERS:
            raise ValueError(f"filter must be one of {', '.join(_FILTERS)}, not {filter!r}")
        if dtype not in _DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(_DTYPES)}, not {dtype!r}")
        if fallback not in _FALLBACKS:
            raise ValueError(f"fallback must be one of {', '.join(_FALLBACKS)}, not {fallback!r}")
        scale, offset = _scale_and_offset(dtype, mean, std)
        count = len(samples)
        boxes = None
        if regions is not None:
            boxes = np.ascontiguousarray(regions, dtype=np.int32).reshape(-1, 4)
            if len(boxes) != count:
                raise ValueError(f"{len(boxes)} regions for {count} samples")
        self._samples, self._seek_points, self._boxes = samples, seek_points, boxes
        self._flips = None if flips is None else bytes(bytearray(bool(f) for f in flips))
        self._fallback, self._with_index = fallback, _index
        self._options: dict[str, Any] = {
            "dtype": dtype,
            "scale": scale,
            "offset": offset,
            "resize": True,
            "filter": filter,
            "dct_scaling": dct_scaling,
        }
        self._out = out
        self._job = _native.Job(
            samples,
            seek_points=seek_points,
            boxes=boxes,
            flips=self._flips,
            out=out,
            **self._options,
        )
        self._errors: list[DecodeError] | None = None

    def done(self) -> bool:
        """Whether :meth:`result` would return without waiting for the threads."""
        return self._job.done()

    def cancel(self) -> None:
        """Let samples not yet begun fail with ``cancelled``."""
        self._job.cancel()

    def failures(self, timeout: float | None = None) -> list[DecodeError]:
        """Wait; decode what is Pillow's; return an error for each sample still missing.

        Raises:
            TimeoutError: not done after so many seconds.
        """
        if not self._job.wait(timeout):
            raise TimeoutError(f"the batch was not done after {timeout} s")
        if self._errors is not None:
            return self._errors
        errors: list[DecodeError] = []
        for index, code, detail, offset in self._job.failures():
            error = self._retry(index, code, detail, offset)
            if error is not None:
                errors.append(error)
        self._errors = errors
        return errors

    def result(self, timeout: float | None = None) -> _Array:
        """Wait for the batch and return its array.

        Raises:
            DecodeError: for the first sample that failed.
            TimeoutError: not done after so many seconds.
        """
        errors = self.failures(timeout)
        if errors:
            raise errors[0]
        return self._out

    def _retry(self, index: int, code: str, detail: str, offset: int) -> DecodeError | None:
        """Decode one failed sample by other means, if the policy has any."""
        number = index if self._with_index else None
        if code == "bad_region":
            return _bad_region(detail, self._boxes, index, self._samples[index], number)
        if code == "bad_seek_points":
            # Whose fault is it? Without the table it decodes, or fails for its own reason.
            again = self._run_one(index, self._samples[index])
            if again is None and self._fallback != "always":
                return DecodeError(code, detail, offset, number)
            if again is None:
                return None
            _, code, detail, offset = again
        if self._fallback == "never" or code in ("cancelled", "out_of_memory", "too_large"):
            return DecodeError(code, detail, offset, number)
        if code not in _NOT_NATIVE and self._fallback != "always":
            return DecodeError(code, detail, offset, number)
        try:
            pixels = _pillow_pixels(self._samples[index], number)
        except DecodeError as error:
            # Of two accounts of a damaged JPEG ours is the better one.
            return error if code in _NOT_NATIVE else DecodeError(code, detail, offset, number)
        again = self._run_one(index, pixels)
        if again is None:
            return None
        if again[1] == "bad_region":
            return _bad_region(again[2], self._boxes, index, pixels, number)
        return DecodeError(*again[1:], number)

    def _run_one(self, index: int, sample: Any) -> tuple[int, str, str, int] | None:
        one = slice(index, index + 1)
        job = _native.Job(
            [sample],
            seek_points=None,
            boxes=None if self._boxes is None else self._boxes[one],
            flips=None if self._flips is None else self._flips[one],
            out=self._out[one],
            **self._options,
        )
        job.run()
        failures = job.failures()
        return failures[0] if failures else None


class Engine:
    """Threads that decode batches, several of which may be under way.

    ::

        with Engine(threads=4) as engine:
            first = engine.submit(samples, out, regions=boxes)
            second = engine.submit(...)
            pixels = first.result()

    A forked process gets threads of its own with its first batch.
    """

    def __init__(self, threads: int | None = None):
        """Args:
            threads: how many; default: as many as this process may run on.

        Raises:
            ValueError: fewer than one.
        """
        if threads is None:
            threads = usable_cpus()
        if threads < 1:
            raise ValueError(f"threads must be at least 1, not {threads}")
        self.threads = threads
        self._engine: _native.Engine | None = _native.Engine(threads)

    def submit(self, samples: Sequence[Any], out: _Array, **options: Any) -> PendingBatch:
        """Begin a batch: the arguments of :func:`decode_batch`, ``size`` being ``out``'s.

        ``out`` and the samples' memory must not change until the batch is done.
        """
        pending = PendingBatch(samples, out, **options)
        self._begin(pending)
        return pending

    def _begin(self, pending: PendingBatch) -> None:
        if self._engine is None:
            raise RuntimeError("the engine is closed")
        self._engine.submit(pending._job)

    def close(self) -> None:
        """Cancel what has not begun, wait for the rest, end the threads."""
        self._engine = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _scale_and_offset(
    dtype: str, mean: Sequence[float] | None, std: Sequence[float] | None
) -> tuple[list[float], list[float]]:
    """What takes 0..255 to (value / 255 - mean) / std, a channel each."""
    if dtype == "uint8":
        if mean is not None or std is not None:
            raise ValueError("mean and std are for float dtypes; dtype is 'uint8'")
        return [1.0] * 3, [0.0] * 3
    means = [0.0] * 3 if mean is None else [float(m) for m in mean]
    stds = [1.0] * 3 if std is None else [float(s) for s in std]
    if len(means) != 3 or len(stds) != 3:
        raise ValueError("mean and std must have three values each")
    if not all(np.isfinite(means)) or not all(np.isfinite(s) and s > 1e-6 for s in stds):
        raise ValueError(f"mean must be finite and std positive, not {means} and {stds}")
    return [1 / (255 * s) for s in stds], [-m / s for m, s in zip(means, stds, strict=True)]


def _image_size(data: Any) -> tuple[int, int] | None:
    """(width, height) of pixels or of an encoded image; None if it does not tell."""
    if isinstance(data, np.ndarray) and data.ndim > 1:
        return data.shape[1], data.shape[0]
    info = jpeg_info(data)
    return (info.width, info.height) if info.native else None


def _pillow_pixels(data: Any, index: int | None) -> _Array:
    """The whole image by Pillow, uint8 (H, W, 3)."""
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data)) as image:
            return np.asarray(image.convert("RGB"))
    except Exception as error:  # Pillow's plugins raise almost anything
        raise DecodeError("undecodable", f"Pillow: {error}", 0, index) from error


def _bad_region(
    detail: str, boxes: _Array | None, index: int, sample: Any, number: int | None
) -> DecodeError:
    region = "" if boxes is None else f": {tuple(int(x) for x in boxes[index])}"
    size = _image_size(sample)
    of = "" if size is None else f" of {size[0]} x {size[1]} pixels"
    return DecodeError("bad_region", f"{detail}{of}{region}", 0, number)
