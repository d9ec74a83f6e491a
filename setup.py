"""The C++ extension; all else is in setup.cfg and pyproject.toml."""

import sysconfig
from glob import glob
from os.path import getmtime

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
from setuptools import setup

# bindings.cpp includes the others.
BINDINGS = sorted(glob("fastdata/native/python/bindings_*.cpp"))
SOURCES = sorted({*glob("fastdata/native/**/*.cpp", recursive=True)} - {*BINDINGS})
HEADERS = sorted(glob("fastdata/native/**/*.h", recursive=True))


def needs_recompile(compiled: str, source: str) -> bool:
    """Whether an object is out of date; those of bindings may be of another Python."""
    inputs = [source, *HEADERS, __file__]
    return "/python/" in source or getmtime(compiled) < max(map(getmtime, inputs))


ParallelCompile("FASTDATA_BUILD_JOBS", default=2, needs_recompile=needs_recompile).install()

native = Pybind11Extension(
    "fastdata._native",
    SOURCES,
    depends=[*HEADERS, *BINDINGS],
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

setup(
    ext_modules=[native],
    # All Pythons share the objects of what knows nothing of Python.
    options={"build_ext": {"build_temp": f"build/objects-{sysconfig.get_platform()}"}},
)
