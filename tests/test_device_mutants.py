"""Each protection of the device path, taken out: a program of device_programs.py must notice."""

from __future__ import annotations

import gc
import random
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

import device_programs as p  # noqa: E402
import simgpu  # noqa: E402
from mutants import mutated  # noqa: E402

from fastdata.device import delivery, transfer  # noqa: E402

pytestmark = pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a real one")

_STREAMS, _STAGED, _PINNED = {"streams": 3}, {"pin": False}, {"pin": True, "dtype": None}

#: Each has an owner, its function, a part of that, the mutant's, and the program that notices.
SEND = transfer.Transfer, "_send"
COPY = transfer.Transfer, "_copy"
TAKE = transfer.Arrival, "take"
MUTANTS: dict[str, tuple[Any, ...]] = {
    "copies do not wait for the consumer's stream": (
        *SEND,
        "stream.wait_stream(consumer)\ntry",
        "try",
        p.passes,
    ),
    "staging is filled before it was copied": (
        *SEND,
        "slot.release(wait=True)",
        "slot.busy = False",
        p.passes,
        _STAGED,
    ),
    "what is copied is not kept": (
        *COPY,
        "slot.sources.append(source)\nreturn",
        "return",
        p.passes,
        _PINNED,
    ),
    "a batch is used before it is there": (
        *TAKE,
        "current.wait_event(self._copied)",
        "pass",
        p.passes,
    ),
    "other streams are not recorded": (
        *TAKE,
        "tensor.record_stream(current)",
        "pass",
        p.passes,
        _STREAMS,
    ),
    "the current device gets a context": (
        transfer,
        "copy_stream",
        "with on_device(device):",
        "if True:",
        p.native,
    ),
    "pageable memory is copied": (*COPY, "if not source.is_pinned() or", "if", p.staged),
    "DALI's batches are not copied": (
        transfer.Transfer,
        "_destination",
        "and not self._always",
        "",
        p.dali,
    ),
    "a fork frees what is its parent's": (
        delivery.DeviceIterator,
        "close",
        "_OF_PARENT.append((self._sent, self._transfer))",
        "self._transfer.close()",
        p.fork,
    ),
    "'cuda' is the first GPU": (
        transfer,
        "numbered",
        "return torch.accelerator.current_stream(device).device",
        "return torch.device(device.type, 0)",
        p.ranked,
    ),
    "Ctrl-C does not wait for copies": (
        *SEND,
        "except BaseException:",
        "except Exception:",
        p.interrupted,
    ),
}
_FIRST = ("a batch is used before it is there",)

#: How a mutant shows: pixels or states are wrong, or the code fails on what it finds.
_NOTICED = (AssertionError, AttributeError, ValueError, simgpu.CUDAError, KeyboardInterrupt)


@pytest.fixture(scope="module", autouse=True)
def _sound_batches() -> None:
    """Programs compare with these batches; a mutant must not make them."""
    p.native_batches()


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in _FIRST)) for name in MUTANTS],
)
def test_a_missing_protection_is_noticed(name: str) -> None:
    owner, function, line, instead, program, *options = MUTANTS[name]
    with mock.patch.object(owner, function, mutated(owner, function, line, instead)):
        for number, schedule in enumerate(simgpu.schedules(48)):
            with simgpu.simulated(schedule) as gpus:
                noticed = False
                try:
                    program(gpus, random.Random(number), **dict(*options))
                except _NOTICED:
                    noticed = True
                if noticed:
                    gc.collect()  # iterators of the program want the simulated GPU to end
                    return
    pytest.fail("no schedule shows it")
