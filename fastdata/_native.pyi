"""The typed boundary to the C++ core. Use ``fastdata.decode``."""

from collections.abc import Sequence
from typing import Any

# Anything with the buffer protocol: bytes, memoryview, mmap, numpy arrays.
Buffer = Any

# (code, detail, offset): what is wrong, "ok" if nothing; why; at which byte.
Code = str

def simd() -> str:
    """The instruction set in use: ``scalar``, ``avx2`` or ``avx512``."""

def set_simd(level: str) -> None:
    """Choose it, as ``FASTDATA_SIMD`` does at import. Not while a batch runs."""

def simd_levels() -> list[str]:
    """Those that this processor has, the plainest first."""

def profile_start() -> None:
    """Begin to measure where this thread's decoding spends its time."""

def profile_stop() -> dict[str, float]:
    """Milliseconds by stage since then."""

def crc32c(data: Buffer, crc: int = 0) -> int: ...
def crc32c_combine(crc_a: int, crc_b: int, length_b: int) -> int: ...
def probe(data: Buffer) -> tuple[str, int, int, int, str, bool, Code, str, int]:
    """(encoding, width, height, components, sampling, progressive, code, detail, offset)."""

def build_seek_points(data: Buffer, stride: int) -> tuple[bytes, Code, str, int]:
    """(packed, code, detail, offset)."""

class Job:
    """A batch; holds its samples' memory until it is done and dropped.

    ``data``: JPEGs (1-D bytes) or raw pixels (uint8, H x W or H x W x 3).
    ``boxes``: int32, N x 4, contiguous: left, upper, right, lower. ``flips``: a byte a
    sample. ``out``: N x H x W x 3, pixels or planes contiguous; bfloat16 as 16-bit
    integers. ``resize`` false: every box must have the output's size.
    """

    def __init__(
        self,
        data: Sequence[Buffer],
        *,
        seek_points: Sequence[Buffer | None] | None,
        boxes: Buffer | None,
        flips: Buffer | None,
        out: Buffer,
        dtype: str,
        scale: Sequence[float],
        offset: Sequence[float],
        resize: bool,
        filter: str,
        dct_scaling: bool,
    ) -> None: ...
    def run(self) -> None:
        """Decode in the calling thread."""

    def wait(self, timeout: float | None = None) -> bool:
        """True if done. Releases the GIL."""

    def done(self) -> bool: ...
    def cancel(self) -> None:
        """Samples not yet begun fail with ``cancelled``."""

    def failures(self) -> list[tuple[int, Code, str, int]]:
        """(index, code, detail, offset) of each sample that failed."""

class Engine:
    """A pool of threads. Starts them with its first batch, anew in a forked process."""

    def __init__(self, threads: int) -> None: ...
    @property
    def threads(self) -> int: ...
    def submit(self, job: Job) -> None: ...
