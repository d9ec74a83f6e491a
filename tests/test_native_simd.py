"""A level is used only where the processor has every feature that it is compiled with."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hangs import HANG

from fastdata import _native
from fastdata.storage.encodings import ENCODINGS, EXTENSIONS

X86 = platform.machine() in ("x86_64", "AMD64")
needs_x86 = pytest.mark.skipif(not X86, reason="the levels are those of x86-64")
# Linux's and qemu's names, where they are not the compiler's.
LINUX = {"sse3": "pni", "sse4.1": "sse4_1", "sse4.2": "sse4_2", "bmi": "bmi1", "lzcnt": "abm"}
LINUX |= {"avx512vbmi2": "avx512_vbmi2", "avx512vnni": "avx512_vnni"}
QEMU = {"bmi": "bmi1", "lzcnt": "abm"}
MASKED = ["lzcnt", "f16c", "bmi", "bmi2", "popcnt"]

# The core alone: an emulated import of all of fastdata takes a minute.
LEVELS = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("_native", sys.argv[1])
native = importlib.util.module_from_spec(spec)
spec.loader.exec_module(native)
print(*native.simd_levels())
"""


@needs_x86
@pytest.mark.parametrize("level", ["avx2", "avx512"])
def test_the_processor_has_the_features_of_the_levels_it_is_given(level: str) -> None:
    try:
        flags = set(
            re.findall(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.M)[0].split()
        )
    except (OSError, IndexError):
        pytest.skip("no /proc/cpuinfo that names the processor's flags")
    features = _native.simd_features(level)
    assert {"avx2", "bmi", "bmi2", "lzcnt", "popcnt", "f16c"} <= set(features)
    has_all = all(LINUX.get(name, name) in flags for name in features)
    assert (level in _native.simd_levels()) == has_all


def emulated_levels(cpu: str) -> list[str]:
    qemu = shutil.which("qemu-x86_64")
    if qemu is None:
        pytest.skip("no qemu-x86_64 (apt-get install qemu-user)")
    native = str(_native.__file__)
    # glibc 2.36 itself dies where AVX2 comes without BMI, and NumPy needs some features: such a
    # processor cannot run fastdata at all.
    bare = [qemu, "-cpu", cpu, sys.executable, "-I", "-c", "import numpy"]
    if subprocess.run(bare, capture_output=True, timeout=HANG).returncode != 0:
        pytest.skip(f"Python with NumPy does not run on this processor, -cpu {cpu}")
    result = subprocess.run(
        [qemu, "-cpu", cpu, sys.executable, "-I", "-c", LEVELS, native],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


@needs_x86
@pytest.mark.parametrize("feature", MASKED)
@pytest.mark.slow
def test_a_processor_without_one_feature_does_not_get_avx2(feature: str) -> None:
    assert feature in _native.simd_features("avx2")
    if "avx2" not in emulated_levels("max"):
        pytest.skip("this qemu-x86_64 does not emulate AVX2 (7.2 does)")
    assert emulated_levels(f"max,-{QEMU.get(feature, feature)}") == ["scalar"]


def test_encodings_keep_their_codes_which_indexes_on_disk_hold() -> None:
    names = "raw jpeg jpeg-progressive jpeg-other png webp bmp gif tiff ppm other avif heic jxl"
    assert [*ENCODINGS] == [*names.split(), "jpeg-arithmetic"]
    assert set(EXTENSIONS) == set(ENCODINGS)
