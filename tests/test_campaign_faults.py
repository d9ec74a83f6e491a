"""Disks that fail, clocks that jump, limits (``faults.py``): right results, or named errors."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from jpegs import encode, picture

pytest.importorskip("fsspec")
pytestmark = pytest.mark.slow

FAULTS = int(os.environ.get("FASTDATA_CAMPAIGN_FAULTS", "60"))
SEED = os.environ.get("FASTDATA_CAMPAIGN_SEED", "0")
_HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or sys.platform != "linux":
        pytest.skip("needs a C compiler, and Linux")
    path = tmp_path_factory.mktemp("faults") / "faults.so"
    subprocess.run(
        [compiler, "-O1", "-shared", "-fPIC", "-o", path, _HERE / "faults.c"], check=True
    )
    return path


def test_disks_that_fail_and_limits(library: Path, tmp_path: Path) -> None:
    for number in range(12):
        image = tmp_path / "tree" / f"class {number % 3}" / f"{number:02d}.jpg"
        image.parent.mkdir(parents=True, exist_ok=True)
        image.write_bytes(encode(picture(70 + 9 * number, 120, number), "4:2:0"))
    done = subprocess.run(
        [sys.executable, _HERE / "faults.py", library, tmp_path, str(FAULTS), SEED],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        timeout=300 + 5 * FAULTS,
    )
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)
    print(counts)
    assert counts["wrong"] == 0, done.stderr
    assert counts["faults"] > FAULTS
