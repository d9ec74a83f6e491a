"""The typed boundary to the C++ core. Use ``fastdata.decode``."""

from collections.abc import Sequence
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

# Anything with the buffer protocol: bytes, memoryview, mmap, numpy arrays.
Buffer = Any

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
    """Choose where entropy decoding uses a vector's lanes: ``always``, ``never``, or only where it
    is fast (``measured``, the default)."""

def vector_regions() -> int:
    """Return the number of regions that this process has decoded in a vector's lanes."""

def profile_start() -> None:
    """Begin to measure where this thread's decoding spends its time."""

def profile_stop() -> dict[str, float]:
    """Return the milliseconds of each stage since `profile_start`."""

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
    numbers: bool = False,
) -> tuple[Code, str]:
    """Unfilter a PNG's inflated rows into ``out``, (rows, width, 1 grey or 3 RGB).

    ``out`` has the first rows of the image, or all of an interlaced one. With ``numbers``, it has
    the bytes of each pixel's numbers, the lower one first. Returns (code, detail).
    """

def probe(data: Buffer) -> tuple[str, int, int, int, str, bool, int, Code, str, int]:
    """Return (encoding, width, height, components, sampling, progressive, orientation, code,
    detail, offset). The encoding is one of ENCODINGS, or "unknown"."""

def is_plain_jpeg(data: Buffer) -> bool:
    """Return whether Pillow, too, decodes a JPEG with this header, and an end marker follows.

    Decodes nothing. Refuses anything unusual, damaged or not.
    """

def count_scans(data: Buffer) -> int:
    """Return the number of a JPEG's scans, without those of a thumbnail in a segment."""

def jpeg_segments(data: Buffer) -> list[tuple[int, int, int]]:
    """Return (marker, begin, end) of a JPEG's segments before its first scan.

    Stops at bytes that are no segment.
    """

def build_seek_points(data: Sequence[Buffer], stride: int) -> list[tuple[bytes, Code, str, int]]:
    """Return (packed table, code, detail, offset) of each JPEG."""

def check_seek_points(table: Buffer, data: Buffer) -> tuple[Code, str, int]:
    """Return (code, detail, offset) of comparing a table, with its checksums, with its JPEG."""

def rewrite_baseline(data: Buffer) -> tuple[bytes, Code, str, int]:
    """Return (JPEG, code, detail, offset). An empty JPEG means that the data is baseline already.

    Releases the GIL.
    """

OPERATIONS: dict[str, int]
"""Each augmentation of the core, and the number of its values (``native/augment/operations.h``)."""

def augment(
    pixels: npt.NDArray[np.uint8], operation: str, values: Sequence[float], key: int = 0
) -> npt.NDArray[np.uint8]:
    """Apply one augmentation to an image, for tests and measurements.

    ``pixels``: (H, W, 3) or (H, W), contiguous. ``key``: the key of random operations.
    ValueError: there is no such operation, or the values do not fit it or the image.
    """

def time_augment(
    pixels: npt.NDArray[np.uint8], operation: str, values: Sequence[float], rounds: int
) -> list[float]:
    """Return the seconds of each round in the core, without copying pixels to planes and back."""

class Extents:
    """Places and properties of N samples. The constructor makes one whole file of each.

    ``paths``: in the file system's encoding. ``seek_points``: kept, not copied.
    ``sizes``: (width, height), int32, N x 2, 0 where unknown; a JPEG of another size fails with
    ``other_size``.
    """

    def __init__(
        self,
        paths: Sequence[str | bytes | PathLike[str]],
        *,
        seek_points: Sequence[Buffer | None] | None = None,
        sizes: npt.NDArray[np.int32] | None = None,
        orientations: npt.NDArray[np.int8] | None = None,
    ) -> None: ...
    def learn(self, learnt: Files, rows: npt.NDArray[np.int64], seed: int) -> None:
        """Take the seek points of samples from a file (docs/formats/learnt.md), by their rows.

        They are used only for images whose size and time of change are those in the file.
        """

    @staticmethod
    def join(count: int, parts: list[Extents], slots: list[npt.NDArray[np.int64]]) -> Extents:
        """Join several parts: each part's samples fill its slots, (N,), of ``count`` ones.

        Keeps the parts. ValueError: slots do not fit their part, or some stay empty.
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
        """(N,), bytes; -1 where unknown, which means the whole file."""

    @property
    def checksums(self) -> npt.NDArray[np.uint32]:
        """(N,), CRC-32C; 0 where unknown."""

    @property
    def orientations(self) -> npt.NDArray[np.int8]:
        """(N,), EXIF orientations that images are turned by; widths and heights are then those of
        turned images. 0: not turned. -1: as the header says.
        """

    def attach(self, index: int, data: Buffer) -> None:
        """Set a sample's bytes, so that its file is not read. They are kept, not copied.

        Not while a batch reads from it. ValueError: their number differs from ``lengths``.
        """

    def attach_column(self, column: BinaryColumn, rows: npt.NDArray[np.int64]) -> None:
        """Set the bytes of all samples to values of a column, (N,), which is kept.

        A sample with a path keeps that where its value is null; others have no bytes then.
        IndexError: there is no such row.
        """

    def attach_rows(self, index: int, header: Buffer, rows: Buffer, at: int) -> None:
        """Set a sample's first bytes, and those from byte ``at`` of it on, as `attach` does.

        Decoding that needs others fails with ``bad_seek_points``, and so does `read`.
        """

    def is_partial(self, index: int) -> bool:
        """Return whether only some of a sample's bytes were attached."""

    def plan_fetches(
        self, rows: Sequence[int], boxes: list[npt.NDArray[np.int32]]
    ) -> npt.NDArray[np.int64]:
        """Return the ranges to fetch for boxes of some samples, for `attach_rows`.

        ``rows``: N of these samples. ``boxes``: (N, 4) for each view. Returns (N, 6): size of the
        header, its CRC-32C, first byte of the rows of MCUs and one past their last, first segment
        and one past the last (docs/formats/seek-points.md). Zeros: fetch the whole sample.
        """

    def are_rows_sound(self, index: int, at: int, first: int, end: int, data: Buffer) -> bool:
        """Return whether ``data``, from byte ``at`` of a sample on, matches its checksums."""

    def corrupt_slots(self) -> list[int]:
        """Return the places of samples whose row of the index is damaged or contradictory."""

    def path(self, index: int) -> str:
        """Return the path of a sample's file; empty where a corrupt index names none."""

    def read(self, index: int, *, check: bool = True) -> bytes:
        """Return a sample's bytes.

        OSError: they cannot be read. ValueError: the file was cut short or has changed, the
        checksum is wrong (``check``), or the index row is corrupt.
        """

class BinaryColumn:
    """Column of Arrow's binary layout. Its buffers are kept, not copied.

    ``chunks``: (number of values, place of the first of them, whether offsets have 64 bits, and
    three buffers: validity, offsets, data; or None for one that is not there). ValueError: a
    buffer is too short.
    """

    def __init__(
        self,
        chunks: Sequence[tuple[int, int, bool, Buffer | None, Buffer | None, Buffer | None]],
    ) -> None: ...
    def __len__(self) -> int: ...
    def lengths(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the bytes of each value, (N,); -1 for a null. IndexError: no such row."""

class Files:
    """Files by number, opened when they are read. The process keeps a quarter of the files open
    that its limit allows: of all `Files`, those used last.

    ``sizes``: a file of another size is not read; -1 for any. A file that was closed and is opened
    again must be the same one; with ``grows``, only its size and time may differ. All methods raise
    OSError if it cannot be read, and ValueError if it is another one.
    """

    def __init__(
        self,
        paths: Sequence[str | bytes | PathLike[str]],
        sizes: Sequence[int] | None = None,
        *,
        grows: bool = False,
    ) -> None: ...
    def read(self, number: int, offset: int, length: int) -> bytes:
        """Return bytes of a file; fewer at its end."""

    def size(self, number: int) -> int:
        """Return a file's size in bytes when it was opened."""

    def is_unchanged(self, number: int) -> bool:
        """Return whether nobody has written to a file since it was opened."""

def close_files() -> bool:
    """Close half of the files that `Files` keep open, those used longest ago; return whether there
    were any.
    """

class RecordTable:
    """Records of an index; ``fastdata.storage.index`` opens it.

    ``index``: its file. ``files``: those that hold the rows.
    """

    def __init__(
        self,
        index: Files,
        records_at: int,
        rows: int,
        heap_size: int,
        files: Files,
        root: str | bytes | PathLike[str] | None,
        classes: int = ...,
        upright: bool = ...,
        seed: int = ...,
    ) -> None: ...
    def learn(self, learnt: Files) -> None:
        """Take learnt seek points from a file from now on; ``fastdata.storage.learnt`` has it."""

    def gather(self, indices: npt.NDArray[np.int64]) -> Extents:
        """Return the rows' extents. A damaged or contradictory row fails with ``corrupt_index``
        when it is used. IndexError: there is no such row. OSError, ValueError: as of `Files`.
        """

class Rows:
    """Rows of an index, as the samples of a `Job`: its threads look them up and draw their cuts.

    ``numbers``, ``occurrences``: parts of the samples' keys (`fastdata.plan.draws`); None: all 0.
    ``max_pixels``: larger images fail with ``too_large``; 0: no limit. IndexError: there is no such
    row.
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
        """The rows' extents, once their job is done."""

def sound_records(records: Buffer, first: int, seed: int = 0) -> int:
    """Return the number of sound records before the first damaged one, from row ``first`` on."""

# (values one after the other; the offset of each, int64)
_Values = tuple[Buffer, npt.NDArray[np.int64]]

def seal_records(
    records: Buffer,
    first: int,
    heap_at: int,
    keys: _Values,
    paths: _Values,
    tables: _Values,
    seed: int = 0,
) -> bytes:
    """Add checksums and places in the heap to records, in place.

    Returns their part of the heap, which begins at ``heap_at``. ``seed``: CRC-32C of the packing's
    generation, with which checksums begin.
    ValueError: a value lies outside its buffer.
    """

def split_heap(
    records: Buffer, heap: Buffer, first: int, with_tables: bool, seed: int = 0
) -> tuple[int, bytes, bytes, bytes]:
    """Split the part of the heap that belongs to some sound records.

    Returns the number of rows whose part is sound before the first damaged one; and the keys, paths
    and, with ``with_tables``, seek tables of all rows.
    """

NODES: tuple[str, ...]
"""The kinds of a program's nodes (``native/augment/program.h``)."""

VALUES: tuple[str, ...]
"""The kinds of its values."""

def linspace(start: float, end: float, count: int) -> list[float]:
    """Return the entries of ``torch.linspace(start, end, count)``."""

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
        self, key: int, width: int, height: int, targets: Targets | None = None
    ) -> tuple[list[tuple[str, list[float]]], list[tuple[int, int, int, int]], int, int]:
        """Return the draws for an image of this size, by a sample's key.

        These are [(operation, values)], [(left, top, width, height)] of erased parts, and the
        width and height afterwards. ``targets``: those of the image, for crops that depend on
        boxes; they stay as they are. ValueError: the program does not fit such an image.
        """

    def sizes(self, cuts: npt.NDArray[np.void]) -> npt.NDArray[np.int32]:
        """Return (width, height) of each result, (N, 2); 0 where the program does not fit.

        ``cuts``: an array of `CUT`, whose canvas and key it begins with.
        """

class Targets:
    """Boxes and points of a batch of images, which follow what is drawn for each.

    ``boxes``: float32, (M, 4), left, upper, right, lower; ``points``: float32, (K, 2), x, y; in
    pixels. Image i of N has ``boxes[box_offsets[i] : box_offsets[i + 1]]``; offsets are int64,
    (N + 1,). ``whole``: whether an image's boxes are of whole numbers, (N,), or (0,) if none are:
    then they are truncated where torchvision truncates integers.
    """

    def __init__(
        self,
        widths: npt.NDArray[np.int32],
        heights: npt.NDArray[np.int32],
        boxes: npt.NDArray[np.float32],
        box_offsets: npt.NDArray[np.int64],
        points: npt.NDArray[np.float32],
        point_offsets: npt.NDArray[np.int64],
        whole: npt.NDArray[np.bool_],
    ) -> None: ...
    def cut(self, geometry: Geometry, keys: npt.NDArray[np.uint64]) -> npt.NDArray[np.void]:
        """Return what `Geometry.draw` does for the images, and move their targets. Call it once."""

    def one(self, number: int) -> Targets:
        """Return the targets of one image. IndexError: there is no such image."""

    def after(
        self, keys: npt.NDArray[np.uint64], program: PixelProgram | None = None
    ) -> tuple[
        npt.NDArray[np.float32],
        npt.NDArray[np.int64],
        npt.NDArray[np.int32],
        npt.NDArray[np.int64],
        npt.NDArray[np.float32],
        npt.NDArray[np.int64],
        npt.NDArray[np.int32],
        npt.NDArray[np.bool_],
        npt.NDArray[np.int32],
        npt.NDArray[np.float64],
    ]:
        """Return what a program leaves.

        It is (boxes, offsets, passed, their offsets, points, their offsets, sizes, whole, sizes
        before, matrices).

        ``passed``: how many ``sanitize_boxes`` left each of the images' first boxes.
        ``sizes``: (width, height) of each image, (N, 2); 1 where the program does not
        fit. ``matrices``, (N, 3, 3): from coordinates before to those after.
        """

FILTERS: tuple[str, ...]
"""Names of filters; a filter's number is its place here. ``nearest_floor`` is torch's nearest."""

CUT: np.dtype[np.void]
"""A row of a batch's geometry (``native/geometry/cut.h``); `fastdata.transforms.geometry` has its
fields."""

def resized_shorter(width: int, height: int, shorter: int, bound: int) -> tuple[int, int]:
    """Return (width, height) after resizing the shorter side to ``shorter``; bound 0: no bound."""

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
        """Return an array of `CUT`: one for each image, drawn by its size in pixels and its key."""

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

class Job(Work):
    """A batch; holds its samples' memory until it is done and dropped.

    ``data``: JPEGs (1-D bytes) or raw pixels (uint8, H x W or H x W x 3); or Extents, which
    the decoding threads read, and check if ``check``. ``seek_points`` replace the
    Extents' own. ``cuts``: an array of `CUT`, one a sample; default: the whole images, resized.
    ``out``: N x H x W x 3, or a list of H x W x 3 of any sizes; pixels or planes contiguous;
    bfloat16 as 16-bit integers. ``mean``,
    ``std``: three values each, of floats: ``(value / 255 - mean) / std``.

    ``skip``: a byte a sample; not 0 skips it. ``stride``: if above 0, JPEGs without seek
    points get some first. ``program``: augmentations of the canvas; drawn from the cuts'
    keys. ``views``: jobs of further views of the same images, done with this one. Their samples are
    read once, and decoded once where views overlap; samples that fail here are missing there.
    ``max_scans``: JPEGs of more scans are ``unsupported``.

    ``targets``: of the images, after `Targets.cut`; for programs whose crops depend on boxes.
    ``fill``: R, G, B, 0 to 255, of what cuts have outside the image.
    ``orientations``: of each of the data that are no Extents, as `Extents.orientations`.

    ``data`` may be Rows: then ``drawn``, a Geometry and the view's key, replaces ``cuts``. An image
    that is too small for a crop fails with ``bad_region``.
    """

    def __init__(
        self,
        data: Sequence[Buffer] | Extents | Rows,
        *,
        seek_points: Sequence[Buffer | None] | None = None,
        cuts: npt.NDArray[np.void] | None = None,
        out: Buffer | list[npt.NDArray[Any]],
        dtype: str,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        skip: Buffer | None = None,
        stride: int = 0,
        check: bool = True,
        program: PixelProgram | None = None,
        views: list[Job] = ...,
        max_scans: int = 64,
        drawn: tuple[Geometry, int] | None = None,
        targets: Targets | None = None,
        fill: Sequence[int] = (0, 0, 0),
        orientations: npt.NDArray[np.int8] | None = None,
    ) -> None: ...
    def cuts(self) -> npt.NDArray[np.void]:
        """Return the array of `CUT` of a finished job."""

    def collect(
        self, timeout: float | None = None
    ) -> tuple[
        list[tuple[int, Code, str, int]], list[tuple[int, bytes, int, int]], float, float, int
    ]:
        """Wait; return the values of `fastdata.decode.engine.Collected`. TimeoutError: not done."""

class ProbeJob(Work):
    """Search for widths, heights and encodings of Extents where the width is 0.

    A file that the core does not know as a JPEG keeps width 0 and is a failure.
    """

    def __init__(self, extents: Extents) -> None: ...

class Outlines:
    """Outlines of the objects of N images: polygons or run lengths of each.

    ``offsets``: (N + 1,), of each image's objects. ``polygons``: (offsets of each object's
    polygons; of each polygon's numbers; the numbers: x, y, x, y, …, in pixels or, if ``relative``,
    in parts of the image's sides). ``runs``: (height and width of each object's mask, int32,
    (objects, 2), below 0 for objects with polygons; offsets of each object's lengths or characters;
    the lengths, uint32, or COCO's text, uint8).

    ValueError: offsets do not fit.
    """

    def __init__(
        self,
        widths: npt.NDArray[np.int32],
        heights: npt.NDArray[np.int32],
        offsets: npt.NDArray[np.int64],
        polygons: tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.float64]]
        | None = None,
        relative: bool = False,
        runs: tuple[npt.NDArray[np.int32], npt.NDArray[np.int64], npt.NDArray[Any]] | None = None,
    ) -> None: ...

class MaskJob(Work):
    """Masks of objects after each image's cut and its draws of ``program``, 0 or 1 but for fills.

    ``sizes``: (width, height) of each image's masks, (N, 2). ``out``: bytes, the masks of all
    images one after the other. ``kept``: (numbers of the objects to paint, among those of their
    image; offsets of each image's); None: all. ``targets``: after the cuts, for a program whose
    crops depend on boxes. ``fill``: of what cuts have outside the image. The offset of a failure is
    one more than the object's number in its image; 0: no object's.

    ValueError: the arguments do not fit each other.
    """

    def __init__(
        self,
        outlines: Outlines,
        *,
        cuts: npt.NDArray[np.void],
        sizes: npt.NDArray[np.int32],
        out: npt.NDArray[np.uint8],
        program: PixelProgram | None = None,
        kept: tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]] | None = None,
        targets: Targets | None = None,
        fill: int = 0,
    ) -> None: ...

class ReadJob(Work):
    """Read whole samples of Extents, for other decoders; keep the Extents.

    ``skip``: a byte a sample; not 0 skips it. ``check``: whether to compare checksums. ``scans``:
    whether to leave out baseline JPEGs without seek points whose scan is damaged.
    """

    def __init__(
        self,
        extents: Extents,
        *,
        skip: npt.NDArray[Any] | None = None,
        check: bool = True,
        scans: bool = False,
    ) -> None: ...
    def take(self) -> list[npt.NDArray[np.uint8] | None]:
        """Return each sample's bytes, uint8, 1-D; None if it was not read, or is left
        out. Call once, when done."""

    def seconds(self) -> float:
        """Return the seconds of all threads together."""

class Engine:
    """Pool of threads. Its first batch starts them, and again in a forked process."""

    def __init__(self, threads: int) -> None: ...
    @property
    def threads(self) -> int: ...
    def submit(self, job: Work) -> None: ...

MOST_BUDGET: int
"""The most that `pack` takes as a budget."""

def pack(
    lengths: npt.NDArray[np.int32], budget: int
) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32]]:
    """Pack items of some lengths into batches of a budget, by best fit (``native/plan/packing.h``).

    Returns the items batch by batch, and where each batch begins, with the end of the last.
    ValueError: a length is not from 1 to the budget, or that is out of its range.
    """
