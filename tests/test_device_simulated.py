"""The device path on simulated GPUs: nothing is read too early, too late, or in the wrong place."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import device_programs as programs  # noqa: E402
import simgpu  # noqa: E402

pytestmark = pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a real one")


@pytest.mark.parametrize("program", programs.ALL, ids=lambda one: one.__name__)
def test_programs_go_right_on_every_schedule(program: Callable[..., None]) -> None:
    count = 8 if program in (programs.dali, programs.held_up) else 24
    for number, schedule in enumerate(simgpu.schedules(count)):
        with simgpu.simulated(schedule) as gpus:
            program(gpus, random.Random(number))
