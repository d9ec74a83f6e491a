"""Decoding by the native core: single images, and batches over threads."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypedDict, cast

import numpy as np
import numpy.typing as npt

from fastdata import _native
from fastdata.decode.codecs import Encoded
from fastdata.decode.fallback import FALLBACKS, Alone, Step, Verdict, decode_alone
from fastdata.decode.jpeg import DecodeError, jpeg_info
from fastdata.decode.limits import Limits
from fastdata.errors import SampleError
from fastdata.machine import usable_cpus
from fastdata.storage.encodings import ENCODINGS
from fastdata.storage.files import code_of
from fastdata.storage.source import upright_size
from fastdata.text import human_size

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing only since Python 3.11

_DTYPES = {"uint8": np.uint8, "float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}
_RAW = ENCODINGS.index("raw")
_ANY = np.iinfo(np.int32).max  # number of scans

Region: TypeAlias = tuple[int, int, int, int]
_Array: TypeAlias = npt.NDArray[Any]
Samples: TypeAlias = Sequence[Any] | _native.Extents | _native.Rows


class BatchOptions(TypedDict, total=False):
    """Keyword arguments of :func:`decode_batch` and :meth:`Engine.submit`.

    Attributes:
        regions: One a sample, as for :func:`decode_jpeg`, also as an (N, 4) array; default:
            the whole images.
        sizes: (width, height) a sample, also as an (N, 2) array: the size of the resized region,
            of which the result is a window; default: the result's size.
        windows: (left, upper) a sample, also as an (N, 2) array: the result's place in the
            resized region; default (0, 0). Only the pixels that it needs are decoded.
        seek_points: One a sample, or None for those that have none. For Extents, they replace
            their own.
        flips: One a sample: mirror the result left to right.
        skip: One a sample: read, write and report nothing of it.
        filter: As for :func:`decode_jpeg`.
        dtype: ``uint8``, 0 to 255; or ``float32``, ``float16``, ``bfloat16``: then
            ``(value / 255 - mean) / std``. Arrays of bfloat16 have the dtype uint16,
            whose bits they are: ``torch.from_numpy(a).view(torch.bfloat16)``.
        mean: Three values in units of 0 to 1; default 0.
        std: Three values in units of 0 to 1; default 1.
        fallback: As for :func:`decode_jpeg`.
        stride: Build seek points, so many pixels apart, for JPEGs that have none;
            :meth:`PendingBatch.collect` returns them. 0, the default: do not.
        check: Check the checksums of Extents that have them; the default.
        cuts: One a sample: a drawn geometry (``fastdata.transforms.geometry``), instead of
            ``regions``, ``sizes``, ``windows``, ``flips`` and ``filter``.
        program: Augmentations (``fastdata.transforms.tree``), done to the window before it is
            normalised; they make images of the result's size. Needs ``cuts``.
        drawn: For Rows, instead of ``cuts``: the geometry, and the key of its draws.
        scans: Leave JPEGs of more scans to Pillow; None for no limit.
        targets: Boxes that crops of ``program`` depend on, after ``cuts``.
        fill: R, G and B of what ``cuts`` have outside the image; default: black.
        orientations: int8, one a sample: the EXIF orientation that its image is turned by before
            anything else; -1, as the JPEG's header says; 0, not turned. Extents have their own.
    """

    regions: Sequence[Region] | _Array | None
    sizes: Sequence[tuple[int, int]] | _Array | None
    windows: Sequence[tuple[int, int]] | _Array | None
    seek_points: Sequence[Any | None] | None
    flips: Sequence[bool] | _Array | None
    skip: Sequence[bool] | _Array | None
    filter: str
    dtype: str
    mean: Sequence[float] | None
    std: Sequence[float] | None
    fallback: str
    stride: int
    check: bool
    cuts: _Array | None
    drawn: tuple[_native.Geometry, int] | None
    program: _native.PixelProgram | None
    scans: int | None
    targets: _native.Targets | None
    fill: Sequence[int]
    orientations: npt.NDArray[np.int8] | None


def decode_jpeg(
    data: Any,
    region: Region | None = None,
    size: tuple[int, int] | None = None,
    *,
    seek_points: Any | None = None,
    flip: bool = False,
    filter: str = "bilinear",
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
        filter: ``bilinear``, ``nearest``, ``bicubic`` or ``lanczos``, as Pillow's; all but nearest
            antialias. ``nearest_floor``: as torch's ``interpolate(mode="nearest")``.
        fallback: what Pillow decodes: ``unsupported``, images of other kinds; ``always``,
            damaged ones too, as well as it can, which is what loaders do; ``never``.

    Returns:
        uint8, (height, width, 3), RGB, 0 to 255. Grey images have three equal channels.

    Raises:
        DecodeError: the image is damaged; the seek points are not this image's.
        ValueError: a region outside the image, or an argument out of range.
    """
    if region is not None and np.shape(region) != (4,):
        raise ValueError(f"region must be (left, upper, right, lower) in pixels, not {region!r}")
    if size is None and region is not None:
        size = (int(region[2]) - int(region[0]), int(region[3]) - int(region[1]))
    if size is None:
        if isinstance(data, np.ndarray) and data.ndim > 1:
            size = (data.shape[1], data.shape[0])
        else:
            _, width, height, *_, code, detail, offset = _native.probe(data)
            if code == "ok":
                size = (width, height)
            elif Verdict(code).step(fallback, redraws=False) is Step.CODEC:
                _, data = _by_codec(data, None)
                size = (data.shape[1], data.shape[0])
            else:
                raise DecodeError(code, detail, offset)
    width, height = _size(size)
    out = np.empty((1, height, width, 3), np.uint8)
    placement = Placement(None if region is None else [region], flips=[flip], filter=filter)
    pending = PendingBatch(
        [data],
        [_native.Rendering(out, cuts=placement.cuts(1, out))],
        Reading(None if seek_points is None else [seek_points]),
        fallback=fallback,
        numbered=False,
    )
    pending.run()
    image: _Array = pending.result()[0]
    return image


def decode_batch(
    samples: Samples,
    size: tuple[int, int],
    *,
    out: _Array | None = None,
    engine: Engine | None = None,
    **options: Unpack[BatchOptions],
) -> _Array:
    """Decode many images to one array.

    Args:
        samples: encoded images or pixels, as for :func:`decode_jpeg`. Slices of a
            memory-mapped file (``memoryview(mapped)[a:b]``) are read in place. Or Extents,
            which the decoding threads read themselves.
        size: (width, height) of all results.
        out: where to put it: (N, H, W, 3) with contiguous pixels (channels-last) or
            contiguous planes (``np.empty((n, 3, h, w)).transpose(0, 2, 3, 1)``); or (N, H, W, 1)
            where ``program`` makes images grey.
        engine: whose threads decode it; default: this one.
        **options: see :class:`BatchOptions`.

    Returns:
        ``out``, or a new (N, height, width, 3) array, channels-last.

    Raises:
        DecodeError: for the first sample that failed; ``index`` says which.
        ValueError: an argument out of range.
    """
    if out is None:
        dtype = options.get("dtype", "uint8")
        if dtype not in _DTYPES:
            raise ValueError(f"dtype must be one of {', '.join(_DTYPES)}, not {dtype!r}")
        width, height = _size(size)
        out = np.empty((len(samples), height, width, 3), _DTYPES[dtype])
    elif out.shape[1:3] != (size[1], size[0]):
        raise ValueError(f"out has images of {out.shape[1:3]}, not the size's {size[::-1]}")
    pending = _pending(samples, out, options)
    if engine is None:
        pending.run()
    else:
        engine.begin(pending)
    return pending.result()


class Collected(NamedTuple):
    """Result of a finished batch, apart from its pixels.

    Attributes:
        failures: (index, code, detail, offset) of each sample that the core did not decode.
        built: (index, packed table, size, mtime_ns) of seek points built because of ``stride``.
            Size in bytes and time of change in nanoseconds since 1970 tell the state of the file.
        read_seconds: Seconds that threads spent reading, with checksums.
        decode_seconds: Seconds that they spent decoding.
        bytes_read: Bytes of samples and seek points that they read from files.
    """

    failures: list[tuple[int, str, str, int]]
    built: list[tuple[int, bytes, int, int]]
    read_seconds: float
    decode_seconds: float
    bytes_read: int


class Placement(NamedTuple):
    """Regions of images and their places in the results, as `BatchOptions` has them."""

    regions: Sequence[Region] | _Array | None = None
    sizes: Sequence[tuple[int, int]] | _Array | None = None
    windows: Sequence[tuple[int, int]] | _Array | None = None
    flips: Sequence[bool] | _Array | None = None
    filter: str = "bilinear"

    def cuts(self, count: int, out: _Array) -> _Array:
        """Return the geometry of so many samples, as ``fastdata.transforms.geometry`` has it."""
        if self.filter not in _native.FILTERS:
            names = ", ".join(_native.FILTERS)
            raise ValueError(f"filter must be one of {names}, not {self.filter!r}")
        if self.windows is not None and self.sizes is None:
            raise ValueError("windows lie in resized regions: they need sizes")
        cuts = np.zeros(count, _native.CUT)
        cuts["size"] = cuts["canvas"] = out.shape[2:0:-1] if out.ndim == 4 else 0
        cuts["filter"] = _native.FILTERS.index(self.filter)
        cuts["whole"] = self.regions is None
        for field, name in _CUT_FIELDS.items():
            if (values := getattr(self, name)) is None:
                continue
            rows = np.asarray(values, np.bool_ if field == "flip" else np.int32)
            rows = rows.reshape(-1, *cuts[field].shape[1:])
            if len(rows) != count:
                raise ValueError(f"{len(rows)} {name} for {count} samples")
            cuts[field] = rows
        return cuts


#: Fields of `_native.CUT`, and those of `Placement` that set them.
_CUT_FIELDS = {"box": "regions", "size": "sizes", "window": "windows", "flip": "flips"}


class Reading(NamedTuple):
    """Ways to read a batch's samples, as `BatchOptions` has them."""

    seek_points: Sequence[Any | None] | None = None
    skip: Sequence[bool] | _Array | None = None
    stride: int = 0
    check: bool = True
    scans: int | None = Limits.scans
    orientations: npt.NDArray[np.int8] | None = None

    def job(self, samples: Samples, views: Sequence[_native.Rendering]) -> _native.DecodeJob:
        """Return the core's job that decodes samples."""
        if self.stride < 0:
            raise ValueError(f"stride must not be below 0, as {self.stride} is")
        return _native.DecodeJob(
            samples,
            views,
            seek_points=self.seek_points,
            skip=None if self.skip is None else np.ascontiguousarray(self.skip, dtype=np.bool_),
            stride=self.stride,
            check=self.check,
            max_scans=_ANY if self.scans is None else min(self.scans, _ANY),
            orientations=self.orientations,
        )


_PLAIN = Reading()


def decode_one(
    sample: Any,
    views: Sequence[_native.Rendering],
    reading: Reading = _PLAIN,
) -> Verdict | None:
    """Decode one sample, or cut it out of pixels, in this thread; return why that failed."""
    job = reading.job([sample], views)
    job.run()
    return next((Verdict(*failure[1:]) for failure in job.failures()), None)


def _pending(samples: Samples, out: _Array, options: BatchOptions) -> PendingBatch:
    """Return a batch of one view, which has not begun."""
    values: dict[str, Any] = {**options}
    fallback = values.pop("fallback", "unsupported")
    reading = Reading(**_take(values, Reading._fields))
    placement = Placement(**_take(values, Placement._fields))
    if values.get("cuts") is None and values.get("drawn") is None:
        values["cuts"] = placement.cuts(len(samples), out)
    elif placement.filter != "bilinear" or any(one is not None for one in placement[:-1]):
        raise ValueError("cuts take the place of regions, sizes, windows, flips and filter")
    return PendingBatch(samples, [_native.Rendering(out, **values)], reading, fallback=fallback)


def _take(values: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Remove values of these names, and return them."""
    return {name: values.pop(name) for name in names if name in values}


class PendingBatch:
    """Batch that an :class:`Engine` works on.

    Each sample is read once. What its views share is decoded once.

    Args:
        samples: As for `decode_batch`.
        views: For each view, the memory for its pixels, and how they are made.
        reading: Ways to read the samples.
        fallback: As for `decode_jpeg`.
        numbered: Whether errors name the sample's number.
    """

    def __init__(
        self,
        samples: Samples,
        views: Sequence[_native.Rendering],
        reading: Reading = _PLAIN,
        *,
        fallback: str = "unsupported",
        numbered: bool = True,
    ):
        if fallback not in FALLBACKS:
            raise ValueError(f"fallback must be one of {', '.join(FALLBACKS)}, not {fallback!r}")
        self._samples, self._views, self._reading = samples, views, reading
        self._fallback, self._numbered = fallback, numbered
        self._job = reading.job(samples, views)
        self._errors: list[DecodeError] | None = None

    def cuts(self, view: int = 0) -> _Array:
        """Return the geometry of each sample in a view, once it is done."""
        return self._job.cuts(view)

    def run(self) -> None:
        """Decode in the calling thread, instead of an engine's."""
        self._job.run()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for some seconds or until it is done; return whether it is done."""
        return self._job.wait(timeout)

    def done(self) -> bool:
        """Return whether :meth:`result` would return without waiting for the threads."""
        return self._job.done()

    def cancel(self) -> None:
        """Let samples not yet begun fail with ``cancelled``."""
        self._job.cancel()

    def collect(self, timeout: float | None = None) -> Collected:
        """Wait; return what the native core did. Pillow decodes nothing.

        Raises:
            TimeoutError: not done after so many seconds.
        """
        return Collected(*self._job.collect(timeout))

    def failures(self, timeout: float | None = None) -> list[DecodeError]:
        """Wait; decode what the core declined; return an error for each sample still missing.

        Raises:
            TimeoutError: not done after so many seconds.
        """
        failures = self.collect(timeout).failures
        if self._errors is not None:
            return self._errors
        errors = []
        for index, code, detail, offset in failures:
            verdict = Verdict(code, detail, offset)
            sample = _OneOfBatch(self, index)
            outcome = decode_alone(sample, verdict, self._fallback, redraws=False)
            if outcome.error is not None:
                errors.append(cast(DecodeError, outcome.error))
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
        return cast(_Array, self._views[0].out)

    def _sample(self, index: int) -> Any:
        """Return one sample's bytes or pixels."""
        samples = self._extents
        if samples is None:
            return self._samples[index]  # type: ignore[index]
        data = samples.read(index, check=self._reading.check)
        if samples.encodings[index] == _RAW:
            size = int(samples.widths[index]), int(samples.heights[index])
            width, height = upright_size(*size, self._orientation(index))  # back to the stored one
            return np.frombuffer(data, np.uint8).reshape(height, width, 3)
        return data

    @property
    def _extents(self) -> _native.Extents | None:
        samples = self._samples
        if isinstance(samples, _native.Rows):
            samples = samples.extents
        return samples if isinstance(samples, _native.Extents) else None

    def _orientation(self, index: int) -> int:
        extents = self._extents
        known = self._reading.orientations if extents is None else extents.orientations
        return 0 if known is None else int(known[index])

    def _decode(self, index: int, sample: Any, orientation: int) -> Verdict | None:
        one = slice(index, index + 1)
        views = [view.one(index, self.cuts(at)[one]) for at, view in enumerate(self._views)]
        turn = np.array([orientation], np.int8)
        return decode_one(sample, views, Reading(scans=self._reading.scans, orientations=turn))


class _OneOfBatch(Alone):
    """One sample of a `PendingBatch`, which the core declined there."""

    def __init__(self, batch: PendingBatch, index: int) -> None:
        self._batch, self._index = batch, index
        self._number = index if batch._numbered else None

    def by_core(self) -> Verdict | None:
        try:
            sample = self._batch._sample(self._index)
        except (OSError, ValueError) as error:  # its file was removed meanwhile
            return Verdict(code_of(error), str(error))
        return self._batch._decode(self._index, sample, self._batch._orientation(self._index))

    def by_codec(self) -> Encoded:
        try:
            sample = self._batch._sample(self._index)
        except (OSError, ValueError) as error:
            raise DecodeError(code_of(error), str(error), 0, self._number) from None
        upright = self._batch._orientation(self._index) != 0
        image, pixels = _by_codec(sample, self._number, upright)
        verdict = self._batch._decode(self._index, pixels, 0)
        if verdict is not None:
            raise self._error(verdict, pixels)
        return image

    def error(self, verdict: Verdict) -> DecodeError:
        sample = None
        if verdict.code == "bad_region":
            try:
                sample = self._batch._sample(self._index)
            except (OSError, ValueError) as error:
                return DecodeError(code_of(error), str(error), 0, self._number)
        return self._error(verdict, sample)

    def _error(self, verdict: Verdict, sample: Any) -> DecodeError:
        """Return the error for a verdict; one about the region says which it is, of which size."""
        code, text, offset = verdict
        if code == "bad_region":
            if (size := _image_size(sample)) is not None:
                text += f" of {human_size(*size)} pixels"
            cut, out = self._batch.cuts()[self._index], self._batch._views[0].out[self._index]
            resized, window = tuple(cut["size"].tolist()), tuple(cut["window"].tolist())
            if not cut["whole"]:
                text += f": {tuple(cut['box'].tolist())}"
            if (resized, window) != (out.shape[1::-1], (0, 0)):
                text += f"; resized to {resized}, window at {window}"
        return DecodeError(code, text, offset, self._number)


class Engine:
    """Pool of threads that decode batches, several at a time.

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
        self._engine: _native.ThreadPool | None = _native.ThreadPool(threads)

    def submit(
        self, samples: Samples, out: _Array, **options: Unpack[BatchOptions]
    ) -> PendingBatch:
        """Begin a batch: the arguments of :func:`decode_batch`, ``size`` being ``out``'s.

        ``out`` and the samples' memory must not change until the batch is done.
        """
        pending = _pending(samples, out, options)
        self.begin(pending)
        return pending

    def begin(self, pending: PendingBatch) -> None:
        """Begin a batch that was made separately."""
        self.work(pending._job)

    def work(self, job: _native.Work) -> None:
        """Begin any work of the core."""
        if self._engine is None:
            raise RuntimeError("the engine is closed")
        self._engine.submit(job)

    def probe(self, extents: _native.Extents) -> _native.ProbeJob:
        """Begin to find the sizes and encodings of files; see :class:`_native.ProbeJob`."""
        job = _native.ProbeJob(extents)
        self.work(job)
        return job

    def read(self, extents: _native.Extents, **options: Any) -> _native.ReadJob:
        """Begin to read samples whole; for the options, see :class:`_native.ReadJob`."""
        job = _native.ReadJob(extents, **options)
        self.work(job)
        return job

    def close(self) -> None:
        """Cancel what has not begun, wait for the rest, end the threads."""
        self._engine = None

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _size(given: Any) -> tuple[int, int]:
    """Return (width, height), checked."""
    try:
        width, height = map(operator.index, given)
        if width > 0 < height:
            return width, height
    except (TypeError, ValueError):
        pass
    raise ValueError(f"size must be (width, height), 1 pixel or more each, not {given!r}")


def _image_size(data: Any) -> tuple[int, int] | None:
    """Return (width, height) of pixels or of an encoded image; None if unknown."""
    if isinstance(data, np.ndarray) and data.ndim > 1:
        return data.shape[1], data.shape[0]
    info = jpeg_info(data)
    return (info.width, info.height) if info.native else None


def _by_codec(data: Any, index: int | None, upright: bool = False) -> tuple[Encoded, _Array]:
    """Decode a whole image by the codec table: uint8 (H, W, 3), or (H, W) if it is grey."""
    try:
        image = Encoded(bytes(data), upright=upright)
        return image, image.pixels()
    except SampleError as error:
        raise DecodeError("undecodable", f"it {error.line}", 0, index) from None
