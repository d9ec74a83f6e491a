"""fastdata.profile: the parts of a step, by a clock; and what torch.profiler is shown."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from loader_data import SAMPLES, images  # noqa: E402

from fastdata import DataLoader, DeviceLoader  # noqa: E402
from fastdata.errors import UsageError  # noqa: E402
from fastdata.profile import Interval, StepTimer  # noqa: E402


def slow(waits: list[float], size: int = 4) -> Iterator[Any]:
    for wait in waits:
        time.sleep(wait)
        yield [torch.zeros(size, 3, 2, 2), torch.zeros(size)]


def quiet(**options: Any) -> StepTimer:
    return StepTimer(**{"every": 0, **options})


def test_wall_time_is_split_into_phases() -> None:
    timer = quiet()
    began = time.perf_counter()
    for _ in timer.batches(slow([0.02] * 5)):
        with timer.phase("forward"):
            time.sleep(0.03)
        with timer.phase("backward"):
            time.sleep(0.01)
        with timer.phase("forward"):
            time.sleep(0.01)
        with timer.phase("my own"):
            pass
        time.sleep(0.02)
    wall = time.perf_counter() - began
    totals = timer.totals()
    assert list(totals) == ["wait", "forward", "backward", "my own", "other"]
    # Sleeps are never shorter than asked for; on a busy machine they are longer.
    for name, least in (("wait", 0.1), ("forward", 0.2), ("backward", 0.05), ("other", 0.1)):
        assert totals[name] >= least, name
    assert sum(totals.values()) == pytest.approx(timer.overall.seconds)
    assert timer.overall.seconds <= wall
    assert timer.overall.wait_share == pytest.approx(totals["wait"] / sum(totals.values()))
    assert timer.overall.images_per_second == pytest.approx(20 / timer.overall.seconds)


def test_a_line_every_so_many_steps_shows_the_pause_at_an_epochs_start() -> None:
    lines: list[str] = []
    timer = StepTimer(every=4, write=lines.append)
    assert timer.reported is None
    reported = []
    for _ in range(2):
        for _ in timer.batches(slow([0.2, *[0.0] * 5], size=8)):
            with timer.phase("forward"):
                time.sleep(0.005)
            reported.append(timer.reported)
    assert len(lines) == 3
    assert [line.split(":")[0] for line in lines] == ["step 4", "step 8", "step 12"]
    assert "before step 1" in lines[0] and "before step 7" in lines[1]
    assert "images/s, waiting for data" in lines[0]
    first = reported[4]
    assert isinstance(first, Interval) and first.steps == 4 and first.images == 32
    assert first.wait_seconds >= 0.2 and first.wait_share == first.wait_seconds / first.seconds
    assert timer.reported is not None and timer.reported.longest_at not in (1, 7)
    assert Interval().images_per_second == Interval().wait_share == 0.0
    assert timer.overall.steps == 12 and timer.overall.longest_wait >= 0.2


def test_a_break_ends_the_step() -> None:
    timer = quiet()
    for number, _ in enumerate(timer.batches(slow([0.0] * 9))):
        if number == 2:
            time.sleep(0.05)
            break
    assert timer.overall.steps == 3 and timer.overall.seconds >= 0.05
    assert len(list(timer.batches(slow([0.0] * 2)))) == 2
    assert timer.overall.steps == 5


def fail(timer: StepTimer) -> None:
    for _ in timer.batches(slow([0.0])):
        with timer.phase("loss"):
            raise RuntimeError("loss is nan")


def test_errors_of_the_loader_and_of_the_step_come_through() -> None:
    def failing() -> Iterator[Any]:
        yield torch.zeros(1)
        raise OSError("disk")

    timer = quiet()
    with pytest.raises(OSError, match="disk"):
        list(timer.batches(failing()))
    with pytest.raises(RuntimeError, match="loss is nan"):
        fail(timer)
    assert len(list(timer.batches(slow([0.0])))) == 1


def test_images_are_counted_from_the_batch() -> None:
    batches: list[Any] = [
        torch.zeros(3, 2),
        {"name": "x", "image": [torch.zeros(()), torch.zeros(4)]},
        ("a", torch.zeros(5)),
    ]
    timer = quiet()
    assert list(timer.batches(batches)) == batches
    assert timer.overall.images == 12
    timer = quiet(batch_size=7)
    assert list(timer.batches(["a", "b"])) == ["a", "b"]
    assert timer.overall.images == 14
    with pytest.raises(UsageError, match=r"batch of type str\n.*batch_size="):
        list(quiet().batches(["a"]))
    timer = quiet()
    list(timer.batches(DeviceLoader(DataLoader(images(), 8), "cpu", dtype="float16")))
    assert timer.overall.images == SAMPLES


def test_no_time_is_counted_twice() -> None:
    timer = quiet()
    inner = timer.phase("loss")
    with timer.phase("forward"), pytest.raises(UsageError, match="within phase 'forward'"):
        inner.__enter__()
    running = timer.batches(slow([0.0] * 3))
    next(running)
    with pytest.raises(UsageError, match="one loop at a time"):
        list(timer.batches(slow([0.0])))
    running.close()  # type: ignore[attr-defined]
    list(timer.batches(slow([0.0])))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": -1}, "every=-1"),
        ({"every": True}, "every=True"),
        ({"batch_size": 0}, "batch_size=0"),
    ],
)
def test_arguments_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        StepTimer(**options)


def train(timer: StepTimer, steps: int) -> None:
    weights = torch.zeros(12, requires_grad=True)
    for pixels, _ in timer.batches(slow([0.0] * steps)):
        with timer.phase("forward"):
            output = pixels.flatten(1) @ weights
        with timer.phase("loss"):
            loss = output.sum()
        with timer.phase("backward"):
            loss.backward()


STEP = ["wait", "forward", "loss", "backward"]


def test_torchs_profiler_shows_phases(tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as recorder:
        train(quiet(), 2)
    recorder.export_chrome_trace(str(trace))
    events = json.loads(trace.read_bytes())["traceEvents"]
    found = [event for event in events if event.get("cat") == "user_annotation"]
    names = [event["name"] for event in sorted(found, key=lambda event: event["ts"])]
    assert names == [*STEP, *STEP, "wait"]
