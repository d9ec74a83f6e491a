"""`dali.Runner`, on the CPU and a simulated GPU: each run has its own pixels, whatever fails."""

from __future__ import annotations

import gc
import io
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from itertools import islice, product
from pathlib import Path
from types import FrameType
from typing import Any, ClassVar
from unittest import mock

import numpy as np
import pytest
from hangs import HANG
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_data import images, same
from PIL import Image

torch = pytest.importorskip("torch")
dali = pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI (make setup)")

import simdali  # noqa: E402
import simgpu  # noqa: E402

from fastdata.dali import DALILoader  # noqa: E402
from fastdata.dali import runner as dali_runner  # noqa: E402
from fastdata.dali.graph import Graph  # noqa: E402
from fastdata.dali.runner import Run, Runner  # noqa: E402
from fastdata.transforms import CenterCrop  # noqa: E402
from fastdata.transforms.compile import Recipe, compile_recipe  # noqa: E402

#: Images, their size, and that of their centre.
COUNT, SIDES, CENTRE = 40, (30, 26), 16

CALLS = ("build", "feed_input", "schedule_run", "outputs")


class Hooked:
    """Pipeline whose calls may raise, mixed into one of DALI.

    Attributes:
        planned: By call: which one from now on raises what, and whether it does its work before.
        raised: The errors that were raised.
        alive: The pipelines that exist.
        filled: How many batches it has given: the first fill it, which is a part of building.
    """

    planned: ClassVar[dict[str, tuple[int, BaseException, bool]]] = {}
    raised: ClassVar[list[BaseException]] = []
    alive: ClassVar[weakref.WeakSet[Any]] = weakref.WeakSet()
    filled = 0

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._depth = options["prefetch_queue_depth"]

    @classmethod
    def plan(cls, name: str, call: int, error: BaseException, after: bool = False) -> None:
        """Has the next call but so many raise an error, before or after its work."""
        cls.planned[name] = call, error, after

    def _call(self, name: str, *args: Any, **options: Any) -> Any:
        work = getattr(super(), name)
        if name not in self.planned or (name != "build" and self.filled < self._depth):
            return work(*args, **options)
        left, error, after = self.planned[name]
        self.planned[name] = left - 1, error, after
        if left:
            return work(*args, **options)
        del self.planned[name]
        self.raised.append(error)
        if after:
            work(*args, **options)
        raise error

    def build(self) -> None:
        Hooked.alive.add(self)
        super().build() if self.filled else self._call("build")  # type: ignore[misc]

    def feed_input(self, *args: Any, **options: Any) -> None:
        self._call("feed_input", *args, **options)

    def schedule_run(self) -> None:
        self._call("schedule_run")

    def outputs(self, **options: Any) -> Any:
        found = self._call("outputs", **options)
        self.filled += 1
        return found


@contextmanager
def hooked(schedule: simgpu.Schedule | None = None) -> Iterator[type[Hooked]]:
    """Hooks in DALI, on a simulated GPU if there is a schedule."""
    with ExitStack() as stack:
        if schedule is not None:
            stack.enter_context(simgpu.simulated(schedule))
            stack.enter_context(simdali.simulated())
        kind = type("Pipeline", (Hooked, dali.Pipeline), {})
        stack.enter_context(mock.patch.object(dali, "Pipeline", kind))
        for kept in (Hooked.planned, Hooked.raised, Hooked.alive):
            kept.clear()
        yield Hooked


@cache
def files() -> list[Any]:
    found = []
    for number in range(COUNT):
        width, height = SIDES
        pixels = np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        found.append(np.frombuffer(file.getvalue(), np.uint8))
    return found


def centre(number: int) -> Any:
    """What Pillow makes of an image."""
    image = Image.open(io.BytesIO(files()[number].tobytes()))
    left, top = ((side - CENTRE) // 2 for side in SIDES)
    return np.asarray(image.crop((left, top, left + CENTRE, top + CENTRE)))


@cache
def recipe() -> Recipe:
    found = compile_recipe(CenterCrop(CENTRE))
    assert isinstance(found, Recipe)
    return found


def new_runner(depth: int = 2, batch_size: int = 4, device: int | None = None) -> Runner:
    return Runner(Graph(recipe().programs, device, 1, depth, None, {}), batch_size)


def new_run(numbers: list[int], bad: bool = False) -> Run:
    """A run of images, at the odd places of their batch; if it is bad, the last is no image."""
    width, height = (np.full(2 * len(numbers), side, np.int32) for side in SIDES)
    cuts = recipe().programs[0].draw(width, height, np.arange(len(width), dtype=np.uint64))
    samples = [files()[number].copy() for number in numbers]
    if bad:
        samples[-1] = np.frombuffer(b"no image", np.uint8)
    return Run(np.arange(1, len(width), 2), samples, [cuts])


def check(run: Run, numbers: list[int]) -> None:
    """See that a run has the pixels of its images."""
    assert run.pixels is not None and run.samples == []
    (view,) = run.pixels
    found = torch.from_dlpack(view).cpu().numpy() if hasattr(view, "on_gpu") else np.asarray(view)
    assert np.array_equal(found, np.stack([centre(number) for number in numbers]))


def where(schedule: simgpu.Schedule | None) -> dict[str, Any]:
    """Arguments of `Runner.finish`."""
    return {} if schedule is None else {"stream": torch.accelerator.current_stream()}


_SCHEDULES: list[simgpu.Schedule | None] = [None]
if not torch.accelerator.is_available():
    _SCHEDULES += simgpu.schedules(16)


@settings(max_examples=60)
@given(
    data=st.data(),
    schedule=st.sampled_from(_SCHEDULES),
    depth=st.integers(1, 3),
    batch_size=st.integers(1, 5),
)
def test_every_run_has_its_own_pixels_or_its_own_error(
    data: st.DataObject, schedule: simgpu.Schedule | None, depth: int, batch_size: int
) -> None:
    """Whatever is begun, finished, cancelled, closed, damaged, refused or interrupted, and when."""
    with hooked(schedule) as hooks:
        runner = new_runner(depth, batch_size, None if schedule is None else 0)
        runs: list[tuple[Run, list[int], bool]] = []
        numbers = iter(range(COUNT))
        for _ in range(data.draw(st.integers(1, 12))):
            pending = [run for run, *_ in runs if run.pixels is None and run.error is None]
            what = data.draw(st.sampled_from(["begin"] * 4 + ["finish", "cancel", "close", "fail"]))
            with suppress(KeyboardInterrupt):
                if what == "begin":
                    mine = list(islice(numbers, data.draw(st.integers(1, 6))))
                    bad = data.draw(st.sampled_from([False] * 4 + [True]))
                    if mine:
                        runs.append((new_run(mine, bad), mine, bad))
                        runner.begin(runs[-1][0])
                elif what == "close":
                    runner.close()
                elif what == "fail":
                    name = data.draw(st.sampled_from(CALLS))
                    error = data.draw(st.sampled_from([KeyboardInterrupt, RuntimeError]))()
                    hooks.plan(name, data.draw(st.integers(0, 6)), error, data.draw(st.booleans()))
                elif pending and what == "cancel":
                    data.draw(st.sampled_from(pending)).cancelled = True
                elif pending:
                    runner.finish(data.draw(st.sampled_from(pending)), **where(schedule))
        hooks.planned.clear()
        refused = [error for error in hooks.raised if isinstance(error, RuntimeError)]
        lost: list[Exception] = []
        for run, mine, bad in runs:
            runner.finish(run, **where(schedule))
            if run.pixels is not None:
                assert not bad and run.error is None
                check(run, mine)
            elif run.error is None:
                assert run.cancelled
            elif not bad:
                lost.append(run.error)
        assert all(error in refused for error in lost)
        # A pipeline that cannot be built costs all later runs, anything else one.
        assert runner.broken is not None or len(set(lost)) == len(lost)
        runner.close()


@pytest.mark.parametrize("schedule", _SCHEDULES[:2], ids=str)
@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", CALLS[1:])
def test_a_refused_or_interrupted_call_costs_no_other_run(
    name: str, after: bool, schedule: simgpu.Schedule | None
) -> None:
    """At every call of DALI in turn, before or after its work."""
    for kind, call in product([RuntimeError, KeyboardInterrupt], range(12)):
        with hooked(schedule) as hooks:
            runner = new_runner(device=None if schedule is None else 0)
            numbers = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
            runs = [new_run(mine) for mine in numbers]
            hooks.plan(name, call, kind(), after)
            for run in runs:
                with suppress(KeyboardInterrupt):
                    runner.begin(run)
            for run in runs:
                with suppress(KeyboardInterrupt):
                    runner.finish(run, **where(schedule))
            for run, mine in zip(runs, numbers, strict=True):
                runner.finish(run, **where(schedule))
                if run.error is None:
                    check(run, mine)
            failed = [run.error for run in runs if run.error is not None]
            assert failed == ([] if kind is KeyboardInterrupt else hooks.raised)


def test_a_pipeline_that_died_is_gone_at_once() -> None:
    """Its threads, and its memory on a GPU, do not wait for the garbage collector."""
    with hooked() as hooks:
        runner = new_runner()
        gc.disable()
        try:
            runs = []
            for number in range(6):
                runs.append(new_run([number, 6 + number], bad=number % 2 == 0))
                runner.begin(runs[-1])
                runner.finish(runs[-1])
                assert len(hooks.alive) <= 1
            hooks.plan("feed_input", 1, RuntimeError())
            runs.append(new_run([20]))
            runner.begin(runs[-1])
            assert len(hooks.alive) == 0
        finally:
            gc.enable()
        assert [run.error is None for run in runs] == [False, True] * 3 + [False]
        assert all(run.samples == [] for run in runs)


def test_a_pipeline_that_cannot_be_built_is_not_tried_for_every_run() -> None:
    with hooked() as hooks:
        runner = new_runner()
        error = OSError("no driver")
        hooks.plan("build", 0, error)
        runs = [new_run([number]) for number in range(5)]
        for run in runs:
            runner.begin(run)
            runner.finish(run)
        assert runner.broken is error
        assert all(run.error is error and run.samples == [] for run in runs)
        assert len(hooks.raised) == 1 and not hooks.alive


def test_a_pipeline_that_cannot_be_built_again_costs_the_runs_under_way() -> None:
    with hooked() as hooks:
        runner = new_runner()
        runs = [new_run([number]) for number in range(3)]
        for run in runs:
            runner.begin(run)
        hooks.plan("outputs", 0, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            runner.finish(runs[0])
        error = RuntimeError("no memory")
        hooks.plan("build", 0, error)
        for run in runs:
            runner.finish(run)
            assert run.error is error is runner.broken and run.samples == []


def test_closing_frees_what_is_under_way() -> None:
    with hooked() as hooks:
        runner = new_runner()
        for first in (0, 10, 20):
            runs = [new_run([first + number, first + number + 1]) for number in range(4)]
            for run in runs:
                runner.begin(run)
            runner.finish(runs[0])
            samples = [weakref.ref(one) for run in runs for one in run.samples]
            runner.close()
            check(runs[0], [first, first + 1])  # it stays the user's
            for run in runs[1:]:
                runner.finish(run)  # of no avail, but it returns
                assert run.cancelled and (run.pixels, run.error) == (None, None)
            assert not hooks.alive
            runs.clear()
            del run
            assert not any(one() is not None for one in samples)


def test_closing_while_another_thread_waits_for_dali() -> None:
    """The thread gets what it waited for; the runs behind it are cancelled."""
    waiting, go_on = threading.Event(), threading.Event()
    with hooked() as hooks:
        runner = new_runner()
        runs = [new_run([number]) for number in range(4)]
        for run in runs:
            runner.begin(run)
        pipeline = next(iter(hooks.alive))
        outputs = pipeline.outputs

        def wait(**options: Any) -> Any:
            waiting.set()
            assert go_on.wait(HANG)
            return outputs(**options)

        pipeline.outputs = wait
        taking = threading.Thread(target=runner.finish, args=(runs[0],))
        closing = threading.Thread(target=runner.close)
        taking.start()
        assert waiting.wait(HANG)
        closing.start()
        go_on.set()
        for thread in (taking, closing):
            thread.join(HANG)
            assert not thread.is_alive()
        check(runs[0], [0])
        assert [run.cancelled for run in runs] == [False, True, True, True]


def test_a_run_larger_than_the_pipeline_waits_for_a_larger_one() -> None:
    with hooked() as hooks:
        runner = new_runner(depth=3, batch_size=1)
        numbers = [[0], [1], [2, 3, 4], [5], [6, 7, 8, 9], [10]]
        runs = [new_run(mine) for mine in numbers]
        for run in runs:
            runner.begin(run)
        for run, mine in zip(runs, numbers, strict=True):
            runner.finish(run)
            check(run, mine)
            assert len(hooks.alive) == 1


def test_runs_that_are_no_longer_needed_are_not_decoded() -> None:
    with hooked() as hooks:
        runner = new_runner(depth=1)
        runs = [new_run([number]) for number in range(4)]
        for run in runs:
            runner.begin(run)
        for run in runs[:3]:  # DALI works on the first
            run.cancelled = True
        hooks.plan("schedule_run", 1, RuntimeError("the run that is needed is the next"))
        runner.finish(runs[3])
        check(runs[3], [3])


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_closing_in_a_fork_leaves_the_parents_pipeline() -> None:
    runner = new_runner()
    runs = [new_run([number]) for number in range(3)]
    for run in runs:
        runner.begin(run)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            runner.close()
            code = int(runner.alive or any(run.cancelled for run in runs))
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert runner.alive
    for number, run in enumerate(runs):
        runner.finish(run)
        check(run, [number])


# The same from outside: Ctrl-C in a notebook, whose loader keeps its pipeline.


class Interrupting:
    """A trace function that raises Ctrl-C where a line of fastdata.dali begins.

    Attributes:
        at: Number of the line; those before have run.
        lines: The lines that have begun.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        self.lines: list[tuple[str, int]] = []

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        place = Path(frame.f_code.co_filename)
        if place.parent != Path(dali_runner.__file__).parent:
            return None
        if event == "line":
            self.lines.append((place.name, frame.f_lineno))
            if len(self.lines) > self.at:
                raise KeyboardInterrupt
        return self


def interrupted(loader: Any, at: int = sys.maxsize) -> list[tuple[str, int]]:
    """Have a pass interrupted; return the lines of fastdata.dali that had begun."""
    tracing, before = Interrupting(at), sys.gettrace()
    sys.settrace(tracing)
    try:
        for _ in loader:
            pass
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return tracing.lines


def test_the_pass_after_ctrl_c_at_any_line_is_right() -> None:
    options: dict[str, Any] = {"num_workers": 1, "seed": 1, "persistent_workers": True}
    data = torch.utils.data.Subset(images(CenterCrop(40)), range(9))
    loader: Any = DALILoader(data, 3, **options)
    expected = list(loader)
    lines = interrupted(loader)
    first = {line: number for number, line in reversed([*enumerate(lines)])}
    last = {line: number for number, line in enumerate(lines) if line[0] == "runner.py"}
    for number in sorted({*first.values(), *last.values()}):
        interrupted(loader, number)
        loader.set_epoch(0)
        assert same(list(loader), expected), lines[number]
