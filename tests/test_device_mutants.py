"""Each protection of the device path, taken out: some program must notice on some schedule.

A mutant is a line of the code written otherwise. These are tests of the tests in
device_programs.py, which pass with the code as it is (test_device_simulated.py).
"""

from __future__ import annotations

import gc
import random
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

import device_programs as programs  # noqa: E402
import simgpu  # noqa: E402
from mutants import mutated  # noqa: E402

from fastdata.batches import buffers  # noqa: E402
from fastdata.dali import batches  # noqa: E402
from fastdata.dali import loader as dali_loader  # noqa: E402
from fastdata.dali.runner import Runner  # noqa: E402
from fastdata.device import delivery, static, transfer  # noqa: E402
from fastdata.profile import StepTimer  # noqa: E402

pytestmark = pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a real one")


class Mutant(NamedTuple):
    """A change of the code.

    Attributes:
        owner: The class, or module, that has the function.
        name: The function.
        line: What stands in it, once.
        instead: What stands there in the mutant.
        program: Who is to notice.
        options: Of the program.
    """

    owner: Any
    name: str
    line: str
    instead: str
    program: Callable[..., None]
    options: Mapping[str, Any] = MappingProxyType({})


MUTANTS: dict[str, Mutant] = {
    "the copy does not wait for what the consumer had given its stream": Mutant(
        transfer.Transfer, "_send", "stream.wait_stream(consumer)\ntry", "try", programs.passes
    ),
    "copies run on the consumer's stream": Mutant(
        transfer.Transfer, "_send", "with on_stream(stream):", "if True:", programs.passes
    ),
    "staging is filled again before it was copied": Mutant(
        transfer.Transfer,
        "_send",
        "slot.release(wait=True)",
        "slot.busy = False",
        programs.passes,
        {"pin": False},
    ),
    "memory of a copy that failed is free while others run": Mutant(
        transfer.Transfer, "_send", "stream.synchronize()", "pass", programs.failing
    ),
    "what is copied is not kept": Mutant(
        transfer.Transfer,
        "_copy",
        "slot.sources.append(source)\nreturn",
        "return",
        programs.passes,
        {"pin": True, "dtype": None},
    ),
    "what is copied, to be normalised, is not kept": Mutant(
        transfer.Transfer,
        "_copy",
        "slot.sources.append(source)\nself._finish",
        "self._finish",
        programs.passes,
        {"pin": True, "dtype": "float32"},
    ),
    "what is copied is not kept until it was": Mutant(
        transfer._Slot, "release", "elif not self.copied.query():", "elif False:", programs.passes
    ),
    "a pass does not wait for its last copies": Mutant(
        transfer.Transfer,
        "close",
        "self._slots.pop().release(wait=True)",
        "self._slots.pop()",
        programs.passes,
        {"pin": True, "leave": 0.0},
    ),
    "a thread that waits for the GPU takes a core": Mutant(
        transfer._Slot, "release", "time.sleep(_POLL)", "self.copied.synchronize()", programs.passes
    ),
    "a batch is used before it is there": Mutant(
        transfer.Arrival, "take", "current.wait_event(self._copied)", "pass", programs.passes
    ),
    "the allocator does not know of another stream": Mutant(
        transfer.Arrival,
        "take",
        "tensor.record_stream(current)",
        "pass",
        programs.passes,
        {"streams": 3},
    ),
    "memory of batches that nobody wants is free while they are written": Mutant(
        delivery,
        "_end",
        "transfer.close()",
        "[transfer._slots.clear() for _ in '1' if sent]",
        programs.passes,
        {"leave": 0.3, "prefetch": 3},
    ),
    "static memory is written while another stream reads it": Mutant(
        static.StaticMemory,
        "_follow",
        "current.wait_stream(self._stream)",
        "pass",
        programs.static,
    ),
    "static memory is free while another stream reads it": Mutant(
        static.StaticMemory, "_follow", "home.record_stream(current)", "pass", programs.static
    ),
    "static batches have memory of their own": Mutant(
        static, "_part", "return home\nalike", "return tensor\nalike", programs.static
    ),
    "torch's default device has page-locked memory": Mutant(
        buffers.BufferPool, "batch", 'device="cpu", ', "", programs.native
    ),
    "torch's default device has staging memory": Mutant(
        transfer.Staging, "_block", 'device="cpu", ', "", programs.staged
    ),
    "the current device gets a context from a copy": Mutant(
        transfer.Transfer, "here", "if self._stream is None else", "if True else", programs.native
    ),
    "the current device gets a context from a stream": Mutant(
        transfer,
        "copy_stream",
        "with on_device(device):",
        "if True:",
        programs.native,
    ),
    "the current device gets a context from an event that is waited for": Mutant(
        transfer.Arrival, "take", "with on_device(device):", "if True:", programs.native
    ),
    "the current device gets a context from an event that ends": Mutant(
        delivery,
        "_end",
        "with transfer.here():",
        "if True:",
        programs.native,
    ),
    "pageable memory is copied": Mutant(
        transfer.Transfer, "_copy", "if not source.is_pinned() or", "if", programs.staged
    ),
    "the current device gets a context from static memory": Mutant(
        static.StaticMemory, "_follow", "with on_device(there):", "if True:", programs.native
    ),
    "what has gaps is copied from pageable memory": Mutant(
        transfer.Transfer,
        "_copy",
        "or source.stride() != _dense_strides(source)",
        "",
        programs.staged,
    ),
    "what is to lie in another order is copied from pageable memory": Mutant(
        transfer.Transfer,
        "_copy",
        "and source.stride() == out.stride()",
        "",
        programs.passes,
        {"pin": True, "dtype": None, "channels_last": False},
    ),
    "staging memory grows with every batch": Mutant(
        transfer.Transfer, "_send", "slot.staging.begin()", "pass", programs.staged
    ),
    "DALI's batches are not copied": Mutant(
        transfer.Transfer, "_destination", "and not self._always", "", programs.dali
    ),
    "DALI's batches are for the consumer's stream": Mutant(
        dali_loader._OnCopyStream,
        "__next__",
        "with on_device(self._device), on_stream(copy_stream(self._device)):",
        "if True:",
        programs.held_up,
    ),
    "batches are taken ahead from DALI": Mutant(
        batches.DALIPipeline,
        "ready",
        "batch.read is None and batch.run is None and super().ready(batch)",
        "True",
        programs.held_up,
    ),
    "a batch is taken in a capture": Mutant(
        delivery.DeviceIterator,
        "__next__",
        "if self._capturing():",
        "if False:",
        programs.capture,
    ),
    "decoding goes on in a capture": Mutant(
        delivery.DeviceIterator, "ready", "if self._capturing():", "if False:", programs.capture
    ),
    "an iterator that ends in a capture looks at its copies": Mutant(
        delivery.DeviceIterator, "close", "if self._capturing():", "if False:", programs.capture
    ),
    "an iterator that ended in a capture frees what is copied": Mutant(
        delivery,
        "_end_late",
        "_end(*left)",
        "pass",
        programs.capture,
    ),
    "a fork frees what is its parent's": Mutant(
        delivery.DeviceIterator,
        "close",
        "_OF_PARENT.append((self._sent, self._transfer))",
        "self._transfer.close()",
        programs.fork,
    ),
    "a fork sends its parent's batches": Mutant(
        delivery.DeviceIterator,
        "__next__",
        "raise after_fork()",
        "pass",
        programs.fork,
    ),
    "a batch waits for a loader that pauses": Mutant(
        delivery.DeviceIterator,
        "_send_one",
        "if not (wait or self._ready is None or self._ready()):",
        "if False:",
        programs.pause,
    ),
}


_STREAMS = {"streams": 3}
_STAGED = {"pin": False}

#: Each is (owner, function, line, instead, program, options of the program).
MORE = {
    "DALI's new pipeline has the old one's runs": (
        Runner,
        "_drop_pipeline",
        "self._pipeline, self._fed = None, 0",
        "self._pipeline = None",
        programs.dying,
    ),
    "a run that DALI has given is still under way": (
        Runner,
        "_take",
        "self._fed -= 1",
        "pass",
        programs.dying,
    ),
    "DALI's pipeline is on the first GPU": (
        dali_loader.DALILoader,
        "_native_path",
        "recipe.programs, device.index,",
        "recipe.programs, device.index and 0,",
        programs.ranked,
    ),
    "'cuda' is the first GPU": (
        transfer,
        "numbered",
        "return torch.accelerator.current_stream(device).device",
        "return torch.device(device.type, 0)",
        programs.ranked,
    ),
    "batches made on the GPU are not kept": (
        transfer.Transfer,
        "_copy",
        "slot.sources.append(source)\nself._finish",
        "source.is_cuda or slot.sources.append(source)\nself._finish",
        programs.made_there,
    ),
    "Ctrl-C does not wait for copies": (
        transfer.Transfer,
        "_send",
        "except BaseException:",
        "except Exception:",
        programs.interrupted,
    ),
    "an error of a copy is lost": (
        transfer.Transfer,
        "_send",
        "slot.sources.clear()\nraise",
        "slot.sources.clear()",
        programs.interrupted,
    ),
    "batches after an error are taken": (
        delivery.DeviceIterator,
        "_send_one",
        "or (self._sent and self._sent[-1].error is not None)",
        "",
        programs.stopping,
    ),
    "host batches are kept for ever": (
        transfer._Slot,
        "release",
        "self.sources.clear()",
        "pass",
        programs.let_go,
    ),
    "host batches are kept until their slot is used again": (
        transfer.Transfer,
        "_send",
        "other.release(wait=False)",
        "pass",
        programs.let_go,
    ),
    "copies block": (
        transfer.Transfer,
        "_copy",
        "out.copy_(source, non_blocking=True)",
        "out.copy_(source)",
        programs.passes,
        {"pin": True, "dtype": None},
    ),
    "copies of what is normalised block": (
        transfer.Transfer,
        "_copy",
        "there.copy_(source, non_blocking=True)",
        "there.copy_(source)",
        programs.passes,
        {"pin": True, "dtype": "float32"},
    ),
    "staging memory is pageable": (
        transfer._Slot,
        "__init__",
        "Staging(pin=True)",
        "Staging(pin=False)",
        programs.passes,
        _STAGED,
    ),
    "a slot is missing": (
        transfer.Transfer,
        "__init__",
        "where.prefetch + 1",
        "where.prefetch",
        programs.ahead,
    ),
    "one slot serves all batches": (
        transfer.Transfer,
        "_send",
        "self._next = (self._next + 1) % len(self._slots)",
        "self._next = 0",
        programs.ahead,
    ),
    "streams are always recorded": (
        transfer.Arrival,
        "take",
        "if current != self._stream:",
        "if True:",
        programs.passes,
    ),
    "everything is staged": (
        transfer.Transfer,
        "_copy",
        "if not source.is_pinned() or",
        "if True or",
        programs.passes,
        {"pin": True, "channels_last": True},
    ),
    "a thread that waits does not sleep": (
        transfer._Slot,
        "release",
        "time.sleep(_POLL)",
        "pass",
        programs.passes,
    ),
    "a wait is not counted": (
        transfer._Slot,
        "release",
        "DEVICE_WAIT.seconds += time.perf_counter() - begun",
        "pass",
        programs.waiting,
    ),
    "a wait for the GPU is one for data": (
        StepTimer,
        "_steps",
        "self._move_to_device(DEVICE_WAIT.seconds - before)",
        "pass",
        programs.waiting,
    ),
    "a phase ends before its work": (
        StepTimer,
        "phase",
        "yield\nself._synchronise()",
        "yield",
        programs.timed,
    ),
    "each pass has a copy stream": (
        transfer,
        "copy_stream",
        "@cache",
        "@__import__('functools').lru_cache(0)",
        programs.growing,
    ),
    "memory waits for the copy stream": (
        transfer.Transfer,
        "_send",
        "return Arrival(",
        "[out.record_stream(stream) for _, out in jobs]\nreturn Arrival(",
        programs.growing,
    ),
    "a batch is for the stream that asked for it": (
        transfer.Arrival,
        "take",
        "current = torch.accelerator.current_stream(device)",
        "current = self._stream",
        programs.passes,
        _STREAMS,
    ),
    "a batch is for the stream that asked for it, in another thread": (
        transfer.Arrival,
        "take",
        "current = torch.accelerator.current_stream(device)",
        "current = self._stream",
        programs.threaded,
    ),
    "the copy stream is the consumer's": (
        transfer.Transfer,
        "_send",
        "consumer = torch.accelerator.current_stream(self._device)",
        "consumer = stream",
        programs.passes,
    ),
    "the event is the consumer's": (
        transfer.Transfer,
        "_send",
        "stream.record_event(slot.copied)",
        "consumer.record_event(slot.copied)",
        programs.passes,
    ),
    "the host waits for a batch": (
        transfer.Arrival,
        "take",
        "current.wait_event(self._copied)",
        "self._copied.synchronize()",
        programs.passes,
    ),
    "a slot is never busy": (
        transfer.Transfer,
        "_send",
        "slot.busy = True",
        "pass",
        programs.passes,
        _STAGED,
    ),
    "memory is the copy stream's": (
        transfer.Transfer,
        "_begin",
        "moved = map_tensors(batch, change)",
        "with on_stream(self._stream):\n    moved = map_tensors(batch, change)",
        programs.passes,
    ),
    "the first batch waits for others": (
        delivery.DeviceIterator,
        "_next",
        "min(self._ahead + 1, self._prefetch)",
        "self._prefetch",
        programs.stopping,
    ),
    "one batch too many is under way": (
        delivery.DeviceIterator,
        "_next",
        "len(self._sent) < self._ahead",
        "len(self._sent) <= self._ahead",
        programs.stopping,
    ),
    "static memory knows its first stream alone": (
        static.StaticMemory,
        "_follow",
        "self._stream = current",
        "self._stream = self._stream or current",
        programs.static,
    ),
    "DALI's rows are written over": (
        batches.DALIPipeline,
        "_join_on_gpu",
        "ours[slots] = False",
        "pass",
        programs.dali,
    ),
    "DALI's rows are lost": (
        batches.DALIPipeline,
        "_join_on_gpu",
        "rows[there] = found",
        "pass",
        programs.dali,
    ),
    "DALI is not told the stream": (
        Runner,
        "_take",
        "{} if stream is None else",
        "{} if True else",
        programs.dali,
    ),
    "a cancelled loader's static memory is the batch's": (
        static.StaticMemory,
        "place",
        "place.copy_(tensor)",
        "pass",
        programs.static,
    ),
    "staged copies have no order": (
        transfer.Staging,
        "place",
        "self._used += 1",
        "pass",
        programs.staged,
    ),
}
MUTANTS |= {name: Mutant(*parts) for name, parts in MORE.items()}


#: How a mutant shows: pixels or states are wrong, or the code fails on what it finds.
_NOTICED = (AssertionError, AttributeError, ValueError, simgpu.CUDAError, KeyboardInterrupt)


@pytest.fixture(scope="module", autouse=True)
def _sound_batches() -> None:
    """Programs compare with these batches; a mutant must not make them."""
    programs.native_batches()
    programs.dali_batches()


@pytest.mark.parametrize("name", MUTANTS)
def test_a_missing_protection_is_noticed(name: str) -> None:
    mutant = MUTANTS[name]
    with mock.patch.object(mutant.owner, mutant.name, mutated(*mutant[:4])):
        for number, schedule in enumerate(simgpu.schedules(48)):
            with simgpu.simulated(schedule) as gpus:
                noticed = False
                try:
                    mutant.program(gpus, random.Random(number), **mutant.options)
                except _NOTICED:
                    noticed = True
                if noticed:
                    gc.collect()  # iterators of the program want the simulated GPU to end
                    return
    pytest.fail("no schedule shows it")
