"""The benchmark of augmentations, and through it torchvision itself as their oracle."""

from __future__ import annotations

import json
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pillow_operations
import pytest
from click.testing import CliRunner
from fastdata.benchmarks import augment, pages
from PIL import Image

from fastdata import _native

if not (find_spec("torch") and find_spec("torchvision")):
    pytest.skip("torchvision is not installed (make setup)", allow_module_level=True)


def test_every_operation_of_the_core_is_measured() -> None:
    # These go on with a mixture that another call has begun.
    alone = set(_native.OPERATIONS) - {"mix_add", "mix_blend", "mix_end"}
    # These crop as "crop" does, or leave pixels alone.
    alone -= {"iou_crop", "clamp_boxes", "sanitize_boxes", "shift_targets"}
    assert {case.operation for case in augment.cases().values()} == alone


@pytest.mark.parametrize("name", augment.cases())
def test_the_core_and_the_tests_oracle_do_what_torchvision_does(name: str) -> None:
    pixels = augment.picture(97)
    case = augment.cases(97)[name]
    if case.within is None:
        return
    torchvisions = np.asarray(case.run(Image.fromarray(pixels))).astype(int)
    oracles = pillow_operations.apply(pixels, case.operation, case.values)
    assert np.abs(torchvisions - oracles).max() <= case.within
    augment.verify(pixels, {name: case})


def test_wrong_pixels_are_not_timed() -> None:
    case = augment.cases()["brightness"]._replace(values=[1.31])
    with pytest.raises(SystemExit, match=r"brightness, scalar: \d+ levels from Pillow's"):
        augment.verify(augment.picture(), {"brightness": case})


def test_the_figures_have_a_row_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = {name: augment.cases()[name] for name in ("invert", "gaussian noise", "affine, bicubic")}
    monkeypatch.setattr(augment, "cases", lambda: few)
    photo = tmp_path / "photo.png"
    Image.fromarray(augment.picture(300)).save(photo)
    out = tmp_path / "augment.json"
    arguments = ["--image", str(photo), "--rounds", "2", "--out", str(out)]
    # This Python instead of pillow-simd's: the same pixels.
    python = tmp_path / "peers" / "pillow_simd" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    monkeypatch.setenv("FASTDATA_BENCH_ENVIRONMENTS", str(tmp_path / "peers"))
    level = _native.simd()
    found = CliRunner().invoke(augment.main, arguments)
    assert found.exit_code == 0, found.output
    assert _native.simd() == level
    result = json.loads(out.read_text())
    levels = set(_native.simd_levels())
    assert {name: set(times) for name, times in result["microseconds"].items()} == {
        "invert": levels | {"Pillow", "pillow-simd", "tensor"},
        "gaussian noise": levels | {"tensor"},
        "affine, bicubic": levels | {"Pillow", "pillow-simd"},
    }
    assert [row[0] for row in augment.figures(result).rows] == list(few)
    page = CliRunner().invoke(pages.main, ["augmentations", str(tmp_path)])
    assert page.exit_code == 0, page.output
    assert str(augment.figures(result)) in page.output
