"""The device path on simulated GPUs: nothing is read too early, too late, or in the wrong place."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

import device_programs as programs  # noqa: E402
import simgpu  # noqa: E402

from fastdata import DeviceLoader, Ragged  # noqa: E402

pytestmark = pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a real one")


@pytest.mark.parametrize("count", [6, pytest.param(24, marks=pytest.mark.slow)])
@pytest.mark.parametrize("program", programs.ALL, ids=lambda one: one.__name__)
def test_programs_go_right_on_every_schedule(program: Callable[..., None], count: int) -> None:
    count = count // 3 if program in (programs.dali, programs.held_up) else count
    for number, schedule in enumerate(simgpu.schedules(count)):
        with simgpu.simulated(schedule) as gpus:
            program(gpus, random.Random(number))


def test_lists_of_several_lengths_are_pinned_and_sent_as_they_are() -> None:
    with simgpu.simulated(simgpu.Schedule(0.0, True, 0)) as gpus:
        lists = Ragged(torch.arange(5), torch.tensor([0, 2, 5])).pin_memory()
        assert lists.values.is_pinned() and lists.offsets.is_pinned()
        gpus.locked = 0
        (found,) = DeviceLoader([lists], "cuda")
        assert found.values.is_cuda and found.offsets.is_cuda
        there = Ragged(found.values.cpu(), found.offsets.cpu())
        assert [one.tolist() for one in there.list()] == [[0, 1], [2, 3, 4]]
        assert not gpus.locked and not gpus.pageable, "what is page-locked needs no staging"
