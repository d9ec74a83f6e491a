"""The typed boundary to the C++ core. Use ``fastdata.decode``."""

from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

# Anything with the buffer protocol: bytes, memoryview, mmap, numpy arrays.
Buffer = Any

# (code, detail, offset): what is wrong, "ok" if nothing; why; at which byte.
Code = str

CODES: tuple[Code, ...]
"""All of them."""

ENCODINGS: tuple[str, ...]
"""The encodings an index may name, in the order of their codes."""

PARTIAL_BYTES: int
"""JPEGs of so many bytes get seek tables with which parts of them can be read."""

def simd() -> str:
    """The instruction set in use: ``scalar``, ``avx2``, ``avx512`` or ``neon``."""

def set_simd(level: str) -> None:
    """Choose it, as ``FASTDATA_SIMD`` does at import. Not while a batch runs."""

def simd_levels() -> list[str]:
    """Those that this processor has, the plainest first."""

def simd_features(level: str) -> list[str]:
    """The CPUID features that a level is compiled with and that it is therefore asked for."""

def use_vector(use: str) -> None:
    """Whether entropy decoding goes into a vector's lanes where it can: ``always``, ``never``,
    or where it is fast (``measured``, the default)."""

def vector_regions() -> int:
    """Regions that have been decoded so, in this process."""

def profile_start() -> None:
    """Begin to measure where this thread's decoding spends its time."""

def profile_stop() -> dict[str, float]:
    """Milliseconds by stage since then."""

CRC32C_BY_INSTRUCTION: bool

def crc32c(data: Buffer, crc: int = 0) -> int: ...
def crc32c_combine(crc_a: int, crc_b: int, length_b: int) -> int: ...
def png_pixels(
    inflated: Buffer,
    width: int,
    height: int,
    depth: int,
    colour: int,
    interlaced: bool,
    palette: Buffer,
    out: npt.NDArray[np.uint8],
) -> tuple[Code, str]:
    """Unfilter a PNG's inflated rows into ``out``: (rows, width, 1 grey or 3 RGB), the first rows
    of the image, or all of an interlaced one. (code, detail)."""

def probe(data: Buffer) -> tuple[str, int, int, int, str, bool, bool, Code, str, int]:
    """(encoding, width, height, components, sampling, progressive, arithmetic, code, detail,
    offset). The encoding is one of ENCODINGS, or "unknown"."""

def is_plain_jpeg(data: Buffer) -> bool:
    """Whether Pillow decodes a JPEG with this header, too, and an end marker follows.

    Decodes nothing. Anything unusual is refused, damaged or not.
    """

def count_scans(data: Buffer) -> int:
    """Scans of a JPEG; not those of a thumbnail in a segment of its own."""

def jpeg_segments(data: Buffer) -> list[tuple[int, int, int]]:
    """(marker, begin, end) of a JPEG's segments before its first scan, up to what is none."""

def build_seek_points(data: Sequence[Buffer], stride: int) -> list[tuple[bytes, Code, str, int]]:
    """(packed, code, detail, offset) of each."""

def check_seek_points(table: Buffer, data: Buffer) -> tuple[Code, str, int]:
    """(code, detail, offset): whether a table is of this JPEG, its checksums included."""

def rewrite_baseline(data: Buffer) -> tuple[bytes, Code, str, int]:
    """(JPEG, code, detail, offset); an empty JPEG: nothing to be done. Releases the GIL."""

OPERATIONS: dict[str, int]
"""Each augmentation of the core, and the number of its values (``native/augment/operations.h``)."""

def augment(
    pixels: npt.NDArray[np.uint8], operation: str, values: Sequence[float], key: int = 0
) -> npt.NDArray[np.uint8]:
    """Apply one augmentation to an image: for tests and measurements.

    ``pixels``: (H, W, 3) or (H, W), contiguous. ``key``: what operations that draw, draw from.
    ValueError: no such operation, or values that are not for it, or not for such an image.
    """

def time_augment(
    pixels: npt.NDArray[np.uint8], operation: str, values: Sequence[float], rounds: int
) -> list[float]:
    """Seconds that it takes in the core, (rounds,): without what ``augment`` does to get the pixels
    into planes and back."""

class Extents:
    """N samples: where they lie and what they are. Here: one whole file each.

    ``paths``: encoded as the file system has them. ``seek_points``: kept, not copied; used
    only for a file that still has the size and time of change in its row of ``stamps``, int64,
    N x 2, if given. ``sizes``: int32, N x 2: (width, height), 0 where unknown; a JPEG of another
    size fails with ``other_size``.
    """

    def __init__(
        self,
        paths: Sequence[str | bytes | PathLike[str]],
        *,
        seek_points: Sequence[Buffer | None] | None = None,
        stamps: npt.NDArray[np.int64] | None = None,
        sizes: npt.NDArray[np.int32] | None = None,
    ) -> None: ...
    @staticmethod
    def join(count: int, parts: list[Extents], slots: list[npt.NDArray[np.int64]]) -> Extents:
        """The samples of several in one: each part's samples in its slots, (N,), of ``count``.

        Keeps the parts. ValueError: slots do not fit their part, or some are left over.
        IndexError: there is no such slot.
        """

    def __len__(self) -> int: ...

    # Read-only, not copied; they keep the Extents alive.
    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """(N,); 0 where unknown."""

    @property
    def widths(self) -> npt.NDArray[np.int32]:
        """(N,), pixels; 0 where unknown."""

    @property
    def heights(self) -> npt.NDArray[np.int32]:
        """(N,), pixels; 0 where unknown."""

    @property
    def encodings(self) -> npt.NDArray[np.int8]:
        """(N,), places in ``fastdata.storage.encodings.ENCODINGS``; -1 where unknown."""

    @property
    def seekable(self) -> npt.NDArray[np.uint8]:
        """(N,), 1 where there are seek points."""

    def count_seekable(self) -> int:
        """Return the number of samples with seek points."""

    @property
    def files(self) -> npt.NDArray[np.int32]:
        """(N,), numbers of the table's files; -1 for those that have a file of their own."""

    @property
    def offsets(self) -> npt.NDArray[np.int64]:
        """(N,), bytes from the file's beginning."""

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """(N,), bytes; -1 where unknown: the whole file."""

    @property
    def checksums(self) -> npt.NDArray[np.uint32]:
        """(N,), CRC-32C; 0 where unknown."""

    def attach(self, index: int, data: Buffer) -> None:
        """Gives a sample's bytes, which are then not read from its file; kept, not copied.

        Not while a batch reads from it. ValueError: not as many as ``lengths`` says.
        """

    def attach_rows(self, index: int, header: Buffer, rows: Buffer, at: int) -> None:
        """Gives a sample's first bytes, and those from byte ``at`` of it on, as `attach` does.

        Decoding what needs others fails with ``bad_seek_points``, and so does `read`.
        """

    def is_partial(self, index: int) -> bool:
        """Whether some of a sample's bytes alone were attached."""

    def plan_fetches(
        self, rows: Sequence[int], boxes: list[npt.NDArray[np.int32]], scaled: bool
    ) -> npt.NDArray[np.int64]:
        """Return the ranges to fetch for boxes of some samples, for `attach_rows`.

        ``rows``: N of these samples. ``boxes``: (N, 4) for each view. ``scaled``: whether views may
        be decoded at a smaller scale. Returns (N, 6): size of the header, its CRC-32C, first byte
        of the rows of MCUs and one past their last, first segment and one past the last
        (docs/formats/seek-points.md). Zeros: the sample is to be fetched whole.
        """

    def are_rows_sound(self, index: int, at: int, first: int, end: int, data: Buffer) -> bool:
        """Whether ``data``, from byte ``at`` of a sample on, has the checksums of its segments."""

    def is_corrupt(self, index: int) -> bool:
        """Whether a sample's row of the index makes no sense."""

    def path(self, index: int) -> str:
        """The file that a sample lies in; empty where a corrupt index names none."""

    def read(self, index: int, *, check: bool = True) -> bytes:
        """A sample's bytes.

        OSError: they cannot be read. ValueError: the file was cut short or has changed, the
        checksum is wrong (``check``), or the index row is corrupt.
        """

class RecordTable:
    """The records of an index. ``fastdata.storage.index`` makes it.

    ``descriptor``: the index file's, which is duplicated. ``file_sizes``: a file that has another
    size when it is opened is not read. OSError: it is no descriptor.
    """

    def __init__(
        self,
        descriptor: int,
        records_at: int,
        rows: int,
        heap_size: int,
        files: Sequence[str | bytes | PathLike[str]],
        file_sizes: Sequence[int],
        root: str | bytes | PathLike[str] | None,
        classes: int = ...,
    ) -> None: ...
    def gather(self, indices: npt.NDArray[np.int64]) -> Extents:
        """The rows' extents; rows that are damaged or make no sense fail with ``corrupt_index``
        when used. IndexError: no such row.
        """

class Rows:
    """Rows of an index, as the samples of a `Job`: its threads look them up and draw their cuts.

    ``numbers``, ``occurrences``: what keys are made of (`fastdata.plan.draws`); None: all are 0.
    ``max_pixels``: larger images fail with ``too_large``; 0: none. IndexError: no such row.
    """

    def __init__(
        self,
        table: RecordTable,
        indices: npt.NDArray[np.int64],
        numbers: npt.NDArray[np.int64],
        occurrences: npt.NDArray[np.int64] | None = None,
        max_pixels: int = 0,
    ) -> None: ...
    def __len__(self) -> int: ...
    @property
    def extents(self) -> Extents:
        """The rows' extents, once a job of them is done."""

def sound_records(records: Buffer, first: int) -> int:
    """How many records, of the rows from ``first`` on, are sound before one is not."""

# (values one behind the other, where each begins: int64)
_Values = tuple[Buffer, npt.NDArray[np.int64]]

def seal_records(
    records: Buffer, first: int, heap_at: int, keys: _Values, paths: _Values, tables: _Values
) -> bytes:
    """Completes records that have all but checksums and places in the heap, in place.

    Returns their part of the heap, which is to stand at ``heap_at`` in it.
    ValueError: a value lies outside its buffer.
    """

def split_heap(
    records: Buffer, heap: Buffer, first: int, with_tables: bool
) -> tuple[int, bytes, bytes, bytes]:
    """Takes apart the part of the heap that belongs to some records, which are sound.

    Returns of how many rows it is sound before one is not; and all these rows' keys, paths, and,
    if ``with_tables``, seek tables.
    """

NODES: tuple[str, ...]
"""The kinds of a program's nodes (``native/augment/program.h``)."""

VALUES: tuple[str, ...]
"""The kinds of its values."""

def linspace(start: float, end: float, count: int) -> list[float]:
    """The entries of ``torch.linspace(start, end, count)``."""

class PixelProgram:
    """Augmentations as a tree, which `fastdata.transforms.tree` makes.

    ``nodes``: in pre-order, (kind, operation, end, first value, values, first draw) of each;
    ``values``: as `fastdata.transforms.tree.Number`. ValueError: they make no tree.
    """

    def __init__(
        self,
        nodes: Sequence[tuple[str, str, int, int, int, int]],
        values: Sequence[tuple[Any, ...]],
        tables: Sequence[float],
    ) -> None: ...
    def draw(
        self, key: int, width: int, height: int
    ) -> tuple[list[tuple[str, list[float]]], list[tuple[int, int, int, int]], int, int]:
        """Return the draws for an image of so many pixels, by a sample's key.

        ([(operation, values)], [(left, top, width, height) that is erased], width, height after
        it). ValueError: it cannot be done to such an image.
        """

FILTERS: tuple[str, ...]
"""The filters' names; a filter's number is its place here."""

CUT: np.dtype[np.void]
"""A row of a batch's geometry (``native/geometry/cut.h``); `fastdata.transforms.geometry` has its
fields."""

def resized_shorter(width: int, height: int, shorter: int, bound: int) -> tuple[int, int]:
    """(width, height) after the shorter side is resized to ``shorter``; bound 0: none."""

class Geometry:
    """Crops, at most one resize and flips, in their order.

    ``steps``: (kind, first draw, values, filters' numbers) of each
    (``native/geometry/geometry.h``).
    """

    def __init__(
        self, steps: Sequence[tuple[str, int, Sequence[float], Sequence[int]]]
    ) -> None: ...
    def draw(
        self, widths: npt.ArrayLike, heights: npt.ArrayLike, keys: npt.ArrayLike
    ) -> npt.NDArray[np.void]:
        """An array of `CUT`, one an image, of its size in pixels and its key."""

class Work:
    """Work on the samples of a batch. Runs once."""

    def run(self) -> None:
        """Do it in the calling thread."""

    def wait(self, timeout: float | None = None) -> bool:
        """True if done. Releases the GIL."""

    def done(self) -> bool: ...
    def cancel(self) -> None:
        """Samples not yet begun fail with ``cancelled``."""

    def failures(self) -> list[tuple[int, Code, str, int]]:
        """(index, code, detail, offset) of each sample that failed."""

class Job(Work):
    """A batch; holds its samples' memory until it is done and dropped.

    ``data``: JPEGs (1-D bytes) or raw pixels (uint8, H x W or H x W x 3); or Extents, which
    the decoding threads read, and check if ``check``. ``seek_points`` count more than the
    Extents' own. ``cuts``: an array of `CUT`, one a sample; default: the whole images, resized.
    ``out``: N x H x W x 3, pixels or planes contiguous; bfloat16 as 16-bit integers. ``mean``,
    ``std``: three values each, of floats: ``(value / 255 - mean) / std``.

    ``skip``: a byte a sample: if not 0 it is left alone. ``stride``: if above 0, JPEGs without seek
    points get some first. ``program``: augmentations, done to the canvas; drawn from the cuts'
    keys. ``views``: jobs of further views of the same images, done with this one: their samples are
    read, and decoded where views overlap, once; what fails here is missing there. ``max_scans``:
    JPEGs of more scans are ``unsupported``.

    ``data`` may be Rows: then ``drawn`` takes the place of ``cuts``, a Geometry and the view's key.
    What needs padding or is too small for a crop fails with ``bad_region``.
    """

    def __init__(
        self,
        data: Sequence[Buffer] | Extents | Rows,
        *,
        seek_points: Sequence[Buffer | None] | None = None,
        cuts: npt.NDArray[np.void] | None = None,
        out: Buffer,
        dtype: str,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        dct_scaling: bool = False,
        skip: Buffer | None = None,
        stride: int = 0,
        check: bool = True,
        program: PixelProgram | None = None,
        views: list[Job] = ...,
        max_scans: int = 64,
        drawn: tuple[Geometry, int] | None = None,
    ) -> None: ...
    def cuts(self) -> npt.NDArray[np.void]:
        """The array of `CUT` of a job that is done."""

    def collect(
        self, timeout: float | None = None
    ) -> tuple[
        list[tuple[int, Code, str, int]], list[tuple[int, bytes, int, int]], float, float, int
    ]:
        """Wait; return the values of `fastdata.decode.engine.Collected`. TimeoutError: not done."""

class ProbeJob(Work):
    """Finds widths, heights and encodings of Extents where the width is 0.

    What is no JPEG for the core keeps width 0 and is a failure.
    """

    def __init__(self, extents: Extents) -> None: ...

class ReadJob(Work):
    """Reads the samples of Extents whole, for other decoders; holds the Extents.

    ``skip``: a byte a sample: if not 0 it is left alone. ``check``: whether checksums are.
    """

    def __init__(
        self, extents: Extents, *, skip: npt.NDArray[Any] | None = None, check: bool = True
    ) -> None: ...
    def take(self) -> list[npt.NDArray[np.uint8] | None]:
        """When it is done, once: each sample's bytes, uint8, 1-D; None of those not read."""

    def seconds(self) -> float:
        """Of all threads."""

class Engine:
    """A pool of threads. Starts them with its first batch, anew in a forked process."""

    def __init__(self, threads: int) -> None: ...
    @property
    def threads(self) -> int: ...
    def submit(self, job: Work) -> None: ...
