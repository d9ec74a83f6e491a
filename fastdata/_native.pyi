"""The typed boundary to the C++ core. Use ``fastdata.decode``."""

from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

# Anything with the buffer protocol: bytes, memoryview, mmap, numpy arrays.
Buffer = Any

Path = str | bytes | PathLike[str]
Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Float32s = npt.NDArray[np.float32]
UInt8s = npt.NDArray[np.uint8]
CutRows = npt.NDArray[np.void]
"""Rows of the dtype `CUT`."""

# Results have (code, detail, offset): the code is "ok" or names a failure, the detail says why,
# and the offset is the byte that is wrong.
Code = str

CODES: tuple[Code, ...]
"""Every code."""

ENCODINGS: tuple[str, ...]
"""The encodings an index may name, in the order of their codes."""

PARTIAL_BYTES: int
"""JPEGs of at least this many bytes get seek tables that allow partial reads."""

def simd() -> str:
    """Return the instruction set in use: ``scalar``, ``avx2``, ``avx512`` or ``neon``."""

def set_simd(level: str) -> None:
    """Choose the instruction set, as ``FASTDATA_SIMD`` does at import. Not while a batch runs."""

def simd_levels() -> list[str]:
    """Return the instruction sets of this processor, the plainest first."""

def simd_features(level: str) -> list[str]:
    """Return the CPUID features that a level is compiled with, and therefore requires."""

def use_vector(use: str) -> None:
    """Choose when entropy decoding uses a vector's lanes: ``always``, ``never``, ``measured``."""

def vector_regions() -> int:
    """Return the number of regions that this process has decoded in a vector's lanes."""

CRC32C_BY_INSTRUCTION: bool

def crc32c(data: Buffer, crc: int = 0) -> int: ...
def crc32c_combine(crc_a: int, crc_b: int, length_b: int) -> int: ...

class PngHeader:
    """IHDR chunk of a PNG. ``numbers``: pixels are numbers rather than colours."""

    def __init__(
        self, width: int, height: int, depth: int, colour: int, interlaced: bool, numbers: bool
    ) -> None: ...
    @property
    def valid(self) -> bool:
        """Whether there may be such an image, and the core decodes it."""

    @property
    def channels(self) -> int:
        """Bytes of a pixel of the result: 1 for grey, else 3; or those of its numbers."""

    def inflated_bytes(self, rows: int) -> int:
        """Return the inflated bytes of the first rows; of an interlaced image, of all."""

    def pixels(self, inflated: Buffer, palette: Buffer, out: UInt8s) -> tuple[Code, str, int]:
        """Unfilter inflated rows into ``out``, (rows, width, channels)."""

def probe(data: Buffer) -> tuple[str, int, int, int, str, bool, int, Code, str, int]:
    """Return (encoding, width, height, components, sampling, progressive, orientation, code,
    detail, offset)."""

def is_plain_jpeg(data: Buffer) -> bool:
    """Return whether Pillow, too, decodes a JPEG with this header, and an end marker follows."""

def count_scans(data: Buffer) -> int:
    """Return the number of a JPEG's scans, without those of a thumbnail in a segment."""

def jpeg_segments(data: Buffer) -> list[tuple[int, int, int]]:
    """Return (marker, begin, end) of a JPEG's segments before its first scan."""

def build_seek_points(data: Sequence[Buffer], stride: int) -> list[tuple[bytes, Code, str, int]]:
    """Return (packed table, code, detail, offset) of each JPEG."""

def check_seek_points(table: Buffer, data: Buffer) -> tuple[Code, str, int]:
    """Return (code, detail, offset) of comparing a table, with its checksums, with its JPEG."""

def rewrite_baseline(data: Buffer) -> tuple[bytes, Code, str, int]:
    """Return (JPEG, code, detail, offset). An empty JPEG: the data is baseline already."""

def augment(pixels: UInt8s, operation: str, values: Sequence[float], key: int = 0) -> UInt8s:
    """Apply one augmentation to an image, (H, W, 3) or (H, W), for tests and measurements."""

def time_augment(
    pixels: UInt8s, operation: str, values: Sequence[float], rounds: int
) -> list[float]:
    """Return the seconds of each round in the core, without copying pixels to planes and back."""

class Extents:
    """Places and properties of N samples. The constructor makes one whole file of each.

    ``sizes``: (width, height), N x 2; 0 where unknown. A JPEG of another size is ``other_size``.
    ``raw``: the bytes are RGB pixels of these sizes.
    """

    def __init__(
        self,
        paths: Sequence[Path],
        *,
        seek_points: Sequence[Buffer | None] | None = None,
        sizes: Int32s | None = None,
        orientations: npt.NDArray[np.int8] | None = None,
        raw: bool = False,
    ) -> None: ...
    def learn(self, learnt: Files, rows: Int64s, seed: int) -> None:
        """Take the seek points of samples from a file (docs/formats/learnt.md), by their rows."""

    @staticmethod
    def join(count: int, parts: list[Extents], slots: list[Int64s]) -> Extents:
        """Join several parts: each part's samples fill its slots, (N,), of ``count`` ones."""

    def __len__(self) -> int: ...

    # Read-only, not copied; they keep the Extents alive.
    @property
    def labels(self) -> Int64s:
        """(N,); 0 where unknown."""

    @property
    def widths(self) -> Int32s:
        """(N,), pixels; 0 where unknown."""

    @property
    def heights(self) -> Int32s:
        """(N,), pixels; 0 where unknown."""

    @property
    def encodings(self) -> npt.NDArray[np.int8]:
        """(N,), places in ``fastdata.storage.encodings.ENCODINGS``; -1 where unknown."""

    @property
    def seekable(self) -> UInt8s:
        """(N,), 1 where there are seek points."""

    @property
    def files(self) -> Int32s:
        """(N,), numbers of the table's files; -1 for those that have a file of their own."""

    @property
    def offsets(self) -> Int64s:
        """(N,), bytes from the file's beginning."""

    @property
    def lengths(self) -> Int64s:
        """(N,), bytes; -1 where unknown, which means the whole file."""

    @property
    def checksums(self) -> npt.NDArray[np.uint32]:
        """(N,), CRC-32C; 0 where unknown."""

    @property
    def orientations(self) -> npt.NDArray[np.int8]:
        """(N,), EXIF orientations that images are turned by; 0: none; -1: as the header says."""

    def attach(self, index: int, data: Buffer, rows: Buffer | None = None, at: int = 0) -> None:
        """Set a sample's bytes, which are kept, not copied. Not while a batch reads from it.

        With ``rows``: its first bytes, and those from byte ``at`` on; others are
        ``bad_seek_points``.
        """

    def attach_column(self, column: BinaryColumn, rows: Int64s) -> None:
        """Set the bytes of all samples to values of a column, (N,); a null leaves the path."""

    def is_partial(self, index: int) -> bool:
        """Return whether only some of a sample's bytes were attached."""

    def plan_fetches(self, rows: Sequence[int], boxes: list[Int32s]) -> Int64s:
        """Return the ranges to fetch for boxes, (N, 4), of each view of N samples.

        (N, 6): size of the header, its CRC-32C, first byte of the rows of MCUs and one past their
        last, first segment and one past the last. Zeros: fetch the whole sample.
        """

    def are_rows_sound(self, index: int, at: int, first: int, end: int, data: Buffer) -> bool:
        """Return whether ``data``, from byte ``at`` of a sample on, matches its checksums."""

    def corrupt_slots(self) -> list[int]:
        """Return the places of samples whose row of the index is damaged or contradictory."""

    def path(self, index: int) -> str:
        """Return the path of a sample's file; empty where a corrupt index names none."""

    def read(self, index: int, *, check: bool = True) -> bytes:
        """Return a sample's bytes. ValueError: they changed, or the index row is corrupt."""

class BinaryColumn:
    """Column of Arrow's binary layout. Its buffers are kept, not copied.

    ``chunks``: (length, offset, whether offsets have 64 bits, validity, offsets, data).
    """

    def __init__(
        self, chunks: Sequence[tuple[int, int, bool, Buffer | None, Buffer | None, Buffer | None]]
    ) -> None: ...
    def __len__(self) -> int: ...
    def lengths(self, rows: Int64s) -> Int64s:
        """Return the bytes of each value, (N,); -1 for a null. IndexError: no such row."""

class Files:
    """Files by number, opened when they are read; the process keeps those open that it used last.

    ``sizes``: -1 for any. All methods raise OSError if a file cannot be read, and ValueError if it
    is another one than before, or than ``sizes`` say; with ``grows``, size and time may differ.
    """

    def __init__(
        self, paths: Sequence[Path], sizes: Sequence[int] | None = None, *, grows: bool = False
    ) -> None: ...
    def read(self, number: int, offset: int, length: int) -> bytes:
        """Return bytes of a file; fewer at its end."""

    def size(self, number: int) -> int:
        """Return a file's size in bytes when it was opened."""

    def is_unchanged(self, number: int) -> bool:
        """Return whether nobody has written to a file since it was opened."""

def close_files() -> bool:
    """Close half of the files that `Files` keep open; return whether there were any."""

class RecordTable:
    """Records of an index; see `fastdata.storage.index.Index.locate`."""

    def __init__(
        self,
        index: Files,
        records_at: int,
        rows: int,
        heap_size: int,
        files: Files,
        root: Path | None,
        classes: int = ...,
        upright: bool = ...,
        seed: int = ...,
    ) -> None: ...
    def learn(self, learnt: Files) -> None:
        """Take learnt seek points from a file from now on."""

    def gather(self, indices: Int64s) -> Extents:
        """Return the rows' extents; see `fastdata.storage.index.ExtentTable.gather`."""

class Rows:
    """Rows of an index, as samples of a `DecodeJob`, whose threads look them up and draw cuts.

    ``numbers``, ``occurrences``: parts of the samples' keys (`fastdata.plan.draws`).
    """

    def __init__(
        self,
        table: RecordTable,
        indices: Int64s,
        numbers: Int64s,
        occurrences: Int64s | None = None,
        max_pixels: int = 0,
    ) -> None: ...
    def __len__(self) -> int: ...
    @property
    def extents(self) -> Extents:
        """The rows' extents, once their job is done."""

def sound_records(records: Buffer, first: int, seed: int = 0) -> int:
    """Return the number of sound records before the first damaged one, from row ``first`` on."""

# (values one after the other; the offset of each, int64)
_Values = tuple[Buffer, Int64s]

def seal_records(
    records: Buffer,
    first: int,
    heap_at: int,
    keys: _Values,
    paths: _Values,
    tables: _Values,
    seed: int = 0,
) -> bytes:
    """Add checksums and places in the heap to records, in place; return their part of the heap.

    ``seed``: CRC-32C of the packing's generation, with which checksums begin.
    """

def split_heap(
    records: Buffer, heap: Buffer, first: int, with_tables: bool, seed: int = 0
) -> tuple[int, bytes, bytes, bytes]:
    """Return (rows before the first damaged one; keys, paths and seek tables of all rows)."""

STEPS: dict[str, tuple[int, tuple[str, ...]]]
"""The kinds of steps (``native/augment/steps.h``): (draws, names of parameters)."""

OPERATIONS: dict[str, tuple[str, ...]]
"""The operations on pixels (``native/augment/operations.h``): names of parameters."""

def linspace(start: float, end: float, count: int) -> list[float]:
    """Return the entries of ``torch.linspace(start, end, count)``."""

class StepProgram:
    """Steps as a tree in pre-order, which `fastdata.transforms.tree` makes.

    ``nodes``: (kind, end, first value, first draw). The first ``leading`` ones below the root are
    folded into the region that is decoded; the others run on its pixels.
    """

    def __init__(
        self,
        nodes: Sequence[tuple[str, int, int, int]],
        values: Sequence[tuple[Any, ...]],
        tables: Sequence[float],
        leading: int = 0,
    ) -> None: ...
    @property
    def changes_pixels(self) -> bool:
        """Whether the steps that run on pixels change them."""

    def cuts(self, widths: npt.ArrayLike, heights: npt.ArrayLike, keys: npt.ArrayLike) -> CutRows:
        """Return one `CUT` for each image, drawn by its size in pixels and its key."""

    def draw(
        self, key: int, width: int, height: int, targets: Targets | None = None
    ) -> tuple[list[tuple[str, list[float]]], list[tuple[int, int, int, int]], int, int]:
        """Return what is drawn for an image of this size, by a sample's key.

        [(operation, values)], [(left, top, width, height)] of erased parts, width, height.
        """

    def sizes(self, cuts: CutRows) -> Int32s:
        """Return (width, height) of each result, (N, 2); 0 where the program does not fit."""

class Targets:
    """Boxes, (M, 4), and points, (K, 2), of N images, which follow what is drawn for each.

    ``box_offsets``, ``point_offsets``: (N + 1,). ``whole``: whether an image's boxes are integers,
    (N,) or (0,): torchvision truncates these.
    """

    def __init__(
        self,
        widths: Int32s,
        heights: Int32s,
        boxes: Float32s,
        box_offsets: Int64s,
        points: Float32s,
        point_offsets: Int64s,
        whole: npt.NDArray[np.bool_],
    ) -> None: ...
    def cut(self, program: StepProgram, keys: npt.NDArray[np.uint64]) -> CutRows:
        """Return `StepProgram.cuts` of the images, and move their targets. Call it once."""

    def one(self, number: int) -> Targets:
        """Return the targets of one image. IndexError: there is no such image."""

    def after(
        self, keys: npt.NDArray[np.uint64], program: StepProgram | None = None
    ) -> tuple[
        Float32s,
        Int64s,
        Int32s,
        Int64s,
        Float32s,
        Int64s,
        Int32s,
        npt.NDArray[np.bool_],
        Int32s,
        npt.NDArray[np.float64],
    ]:
        """Return what a program leaves: (boxes, offsets, passed, their offsets, points, their
        offsets, sizes, whole, sizes before, matrices from coordinates before to those after).
        """

FILTERS: tuple[str, ...]
"""Names of filters; a filter's number is its place here. ``nearest_floor`` is torch's nearest."""

CUT: np.dtype[np.void]
"""A row of a batch's geometry (``native/geometry/cut.h``)."""

def resized_shorter(width: int, height: int, shorter: int, bound: int) -> tuple[int, int]:
    """Return (width, height) after resizing the shorter side to ``shorter``; bound 0: no bound."""

class Work:
    """Work on the samples of a batch. Runs once."""

    def run(self) -> None:
        """Do the work in the calling thread."""

    def wait(self, timeout: float | None = None) -> bool:
        """Return whether it is done. Releases the GIL."""

    def done(self) -> bool: ...
    def cancel(self) -> None:
        """Cancel: samples not yet begun fail with ``cancelled``."""

    def failures(self) -> list[tuple[int, Code, str, int]]:
        """Return (index, code, detail, offset) of each failed sample."""

class Rendering:
    """How a batch's images are made for one view, and the memory for them.

    ``out``: N x H x W x 3, or a list of H x W x 3, with contiguous pixels or planes; bfloat16 as
    16-bit integers. ``dtype``: uint8, or ``(value / 255 - mean) / std`` as float32, float16 or
    bfloat16. ``cuts``: the geometry of each sample; for Rows, it is drawn by the view's ``key``.
    ``program``: augmentations of what the cuts leave. ``fill``: R, G and B outside the image.
    ``targets``: boxes after the cuts, which crops of the program depend on.
    """

    def __init__(
        self,
        out: Buffer | list[npt.NDArray[Any]],
        *,
        dtype: str = "uint8",
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        cuts: CutRows | None = None,
        key: int | None = None,
        program: StepProgram | None = None,
        fill: Sequence[int] = (0, 0, 0),
        targets: Targets | None = None,
    ) -> None: ...
    def one(self, index: int, cut: CutRows) -> Rendering:
        """Return the rendering of one sample; ``cut``: its geometry, (1,)."""

    @property
    def out(self) -> Any: ...
    @property
    def cuts(self) -> Any: ...

class DecodeJob(Work):
    """A batch in one or more views; holds its samples' memory until it is done and dropped.

    One ``seek_points`` a sample, or None for those without; Extents have their own. ``skip``,
    a byte a sample: read and report nothing of it. ``stride``: build seek points, so many pixels
    apart, for JPEGs without. ``check``: check Extents' checksums. ``max_scans``: JPEGs of more
    scans are ``unsupported``. ``orientations``: of EXIF; -1: as the JPEG says; 0: not turned.
    """

    def __init__(
        self,
        data: Sequence[Buffer] | Extents | Rows,
        views: Sequence[Rendering],
        *,
        seek_points: Sequence[Buffer | None] | None = None,
        skip: Buffer | None = None,
        stride: int = 0,
        check: bool = True,
        max_scans: int = 64,
        orientations: npt.NDArray[np.int8] | None = None,
    ) -> None: ...
    def cuts(self, view: int = 0) -> CutRows:
        """Return the cuts of a view of a finished job."""

    def collect(
        self, timeout: float | None = None
    ) -> tuple[
        list[tuple[int, Code, str, int]], list[tuple[int, bytes, int, int]], float, float, int
    ]:
        """Wait; return failures as `failures` has them, seek points built, seconds, bytes read.

        Seek points are (index, table, size, mtime_ns) of their file; seconds those of reading and
        of decoding. TimeoutError: not done.
        """

class ProbeJob(Work):
    """Search for widths, heights and encodings of Extents where the width is 0."""

    def __init__(self, extents: Extents) -> None: ...

class OutlineArrays:
    """Outlines of the objects of N images: polygons or run lengths of each.

    ``offsets``: (N + 1,), of each image's objects. ``polygons``: (offsets of each object's
    polygons; of each polygon's numbers; the numbers, x, y, x, y, …, in pixels or ``relative``).
    ``runs``: (height and width of each object's mask, (objects, 2), below 0 for objects with
    polygons; offsets of each object's lengths; the lengths, uint32, or COCO's text, uint8).
    """

    def __init__(
        self,
        widths: Int32s,
        heights: Int32s,
        offsets: Int64s,
        polygons: tuple[Int64s, Int64s, npt.NDArray[np.float64]] | None = None,
        relative: bool = False,
        runs: tuple[Int32s, Int64s, npt.NDArray[Any]] | None = None,
    ) -> None: ...

class MaskJob(Work):
    """Masks of objects after each image's cut and its draws of ``program``, 0 or 1 but for fills.

    ``sizes``: (width, height) of each image's masks, (N, 2). ``out``: the masks of all images.
    ``kept``: (numbers of the objects to paint in their image; offsets of each image's); None: all.
    The offset of a failure is one more than the object's number in its image; 0: no object's.
    """

    def __init__(
        self,
        outlines: OutlineArrays,
        *,
        cuts: CutRows,
        sizes: Int32s,
        out: UInt8s,
        program: StepProgram | None = None,
        kept: tuple[Int32s, Int64s] | None = None,
        targets: Targets | None = None,
        fill: int = 0,
    ) -> None: ...

class ReadJob(Work):
    """Read whole samples of Extents, for other decoders.

    ``skip``: a byte a sample. ``scans``: leave out baseline JPEGs whose scan is damaged.
    """

    def __init__(
        self,
        extents: Extents,
        *,
        skip: npt.NDArray[Any] | None = None,
        check: bool = True,
        scans: bool = False,
    ) -> None: ...
    def take(self) -> list[UInt8s | None]:
        """Return each sample's bytes; None if it was not read. Call once, when done."""

    def seconds(self) -> float:
        """Return the seconds of all threads together."""

class ThreadPool:
    """Pool of threads. Its first batch starts them, and again in a forked process."""

    def __init__(self, threads: int) -> None: ...
    @property
    def threads(self) -> int: ...
    def submit(self, job: Work) -> None: ...

MOST_BUDGET: int
"""The most that `pack` takes as a budget."""

def draw_bits(key: int, draw: int) -> int:
    """Return number ``draw`` of the stream of ``key``; all are unsigned, of 64 bits."""

def sample_keys(
    view_key: int, numbers: Int64s, occurrences: Int64s | None = None
) -> npt.NDArray[np.uint64]:
    """Return the keys of samples of a view, of the shape of ``numbers``."""

def pack(lengths: Int32s, budget: int) -> tuple[Int32s, Int32s]:
    """Pack items into batches of a budget by best fit; return them, and where batches begin."""
