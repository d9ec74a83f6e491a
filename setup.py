"""The C++ extension; all else is in setup.cfg and pyproject.toml."""

from glob import glob

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
from setuptools import setup

ParallelCompile("FASTDATA_BUILD_JOBS", default=2).install()

native = Pybind11Extension(
    "fastdata._native",
    sorted(glob("fastdata/native/**/*.cpp", recursive=True)),
    depends=sorted(glob("fastdata/native/**/*.h", recursive=True)),
    include_dirs=["fastdata/native"],
    cxx_std=20,
    # No -march: the vector paths choose their instructions themselves (simd/target.h).
    # No contraction: fused multiply-adds would make pixels depend on the processor.
    # Nobody asks for floating-point exceptions; if they counted, loops with a float in a branch
    # would not become vectors.
    # Python's own flags may hold -fwrapv, which keeps loops over ints from becoming vectors.
    extra_compile_args=[
        "-O3",
        "-fno-wrapv",
        "-g0",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-ffp-contract=off",
        "-Wall",
        "-Wextra",
    ],
)

setup(ext_modules=[native])
