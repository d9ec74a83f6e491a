"""The entropy decoding kernel for GPUs (docs/design/0016-entropy-decoding-on-the-gpu.md).

A program runs it beside the core's decoder and compares coefficients: here simulated,
under AddressSanitizer and UndefinedBehaviorSanitizer; where there are nvcc and a GPU, on that.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from jpegs import SAMPLINGS, encode, picture, sample_files

_HERE = Path(__file__).resolve().parent
_NATIVE = _HERE.parents[1] / "fastdata" / "native"
_CORE = ["entropy", "huffman", "jpeg_header", "restart", "seek_points", "segments"]
#: The first test compiles the core's decoder.
_SANITIZE = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
#: Damaged files and batches. A million take ten minutes of a core.
EXECUTIONS = int(os.environ.get("FASTDATA_GPU_EXECUTIONS", "400"))


class Build:
    """The program's objects, and programs of them with a kernel."""

    def __init__(self, folder: Path) -> None:
        compiler = shutil.which("g++") or shutil.which("clang++")
        if compiler is None:
            pytest.skip("needs a C++ compiler: g++ or clang++")
        self.compiler: str = compiler
        self.folder = folder
        sources = [*(_NATIVE / "jpeg" / f"{name}.cpp" for name in _CORE)]
        sources += [_NATIVE / "io" / "crc32c.cpp"]
        sources += [_HERE / "check_entropy.cpp", _HERE / "core_streams.cpp"]
        self.objects = [self.compile(source, "-O0") for source in sources]

    def run(self, *command: str | Path) -> str:
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def compile(self, source: Path, *flags: str, name: str = "") -> Path:
        made = self.folder / f"{name or source.stem}-{len(list(self.folder.iterdir()))}.o"
        include = [f"-I{_NATIVE}", f"-I{_HERE}"]
        self.run(self.compiler, "-std=c++20", *include, *flags, "-c", source, "-o", made)
        return made

    def simulated(self, source: Path, name: str) -> Path:
        kernel = self.compile(source, "-O1", "-g1", *_SANITIZE, name=name)
        program = self.folder / name
        self.run(self.compiler, *_SANITIZE, *self.objects, kernel, "-o", program)
        return program

    def on_gpu(self) -> Path:
        kernel, program = self.folder / "launch.o", self.folder / "on_gpu"
        self.run(_nvcc(), "-std=c++17", "-arch=native", "-c", _HERE / "launch.cu", "-o", kernel)
        self.run(_nvcc(), *self.objects, kernel, "-o", program)
        return program


def _nvcc() -> str:
    found = shutil.which("nvcc")
    if found is None:
        pytest.skip("needs CUDA's compiler, nvcc")
    return found


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    return Build(tmp_path_factory.mktemp("gpu"))


@pytest.fixture(scope="module")
def simulated(build: Build) -> Path:
    return build.simulated(_HERE / "simulate.cpp", "simulated")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """JPEGs of every sampling, of few and of many bits a pixel: with 0xFF bytes and long codes."""
    folder = tmp_path_factory.mktemp("small")
    made = []
    for number, sampling in enumerate(SAMPLINGS):
        for quality, optimize in ((30, False), (85, True), (100, True)):
            pixels = picture(150 + 9 * number, 90, number)
            made.append(folder / f"{number}-{quality}.jpg")
            made[-1].write_bytes(encode(pixels, sampling, quality, optimize=optimize))
    return made


def counts(program: Path, *arguments: object) -> Any:
    command = [program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def test_small_images_of_every_kind(simulated: Path, small: list[Path]) -> None:
    found = counts(simulated, "compare", 32, 3, *small)
    assert found["files"] == len(small)
    assert found["regions"] == 3 * len(small)
    assert found["slow_words"] > 100
    assert found["long_codes"] > 100


def test_photographs(simulated: Path, made_tree: Path) -> None:
    """The sample's, which are coded as ImageNet's are; some are progressive."""
    files = sorted(made_tree.glob("train/*/*.JPEG"))[::4]
    found = counts(simulated, "compare", 128, 2, *files)
    assert found["files"] + found["other"] == len(files)
    assert found["files"] > len(files) / 2
    assert found["symbols"] > 100_000


def test_real_photographs(simulated: Path) -> None:
    files = sample_files()[::40]
    found = counts(simulated, "compare", 128, 2, *files)
    assert found["files"] > len(files) / 2


def test_damage(simulated: Path, small: list[Path]) -> None:
    """Damaged tables and scans: what the core makes of them. False descriptions: no bad access."""
    found = counts(simulated, "damage", EXECUTIONS, 1, *small)
    assert found["executions"] == EXECUTIONS
    assert found["decoded"] > EXECUTIONS


@pytest.mark.parametrize(
    "bound", ["segment.end > batch.bytes", "segment.blocks > batch.block_count"]
)
def test_a_bound_that_is_missing_is_found_out(
    build: Build, small: list[Path], bound: str, tmp_path: Path
) -> None:
    kernel = (_HERE / "entropy.cuh").read_text()
    assert kernel.count(bound) == 1
    (tmp_path / "entropy.cuh").write_text(kernel.replace(bound, f"false && {bound}"))
    shutil.copy(_HERE / "simulate.cpp", tmp_path)
    program = build.simulated(tmp_path / "simulate.cpp", tmp_path.name)
    command = [program, "damage", "4000", "1", *small]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode != 0
    assert "AddressSanitizer" in done.stderr, done.stderr[-2000:]


def test_compiles_for_a_gpu(build: Build) -> None:
    """With all in registers: a stack would be memory of the device, a thousandfold."""
    told = build.run(
        *(_nvcc(), "-std=c++17", "-arch=sm_90", "-cubin", "-Xptxas", "-v"),
        *(_HERE / "launch.cu", "-o", build.folder / "launch.cubin"),
    )
    assert "0 bytes stack frame, 0 bytes spill stores" in told
    registers, shared = re.search(r"Used (\d+) registers.* (\d+) bytes smem", told).groups()
    assert int(registers) <= 32  # all that an SM's threads may have, 2,048 at a time
    assert int(shared) < 6000


@pytest.mark.gpu
@pytest.mark.skipif(not Path("/dev/nvidiactl").exists(), reason="needs a CUDA device")
def test_on_a_gpu(build: Build, small: list[Path], made_tree: Path) -> None:
    program = build.on_gpu()
    files = sorted(made_tree.glob("train/*/*.JPEG"))
    assert counts(program, "compare", 128, 4, *files)["files"] > len(files) / 2
    assert counts(program, "compare", 32, 3, *small)["files"] == len(small)
    assert counts(program, "damage", 2000, 1, *small)["decoded"] > 2000
