"""How a loader's passes end: Ctrl-C, breaks, exits, forks; and what they leave behind: nothing."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from containers import pack_tree
from hangs import HANG
from PIL import Image
from prefork import Prefork

torch = pytest.importorskip("torch")

from fastdata import DataLoader, ImageDataset  # noqa: E402
from fastdata.transforms import CenterCrop, Compose, Resize  # noqa: E402

kinds = pytest.mark.parametrize(
    "kind", ["packed", pytest.param("packed_ppm", marks=pytest.mark.slow)]
)

IMPORTS = """
import json, os, random, signal, sys, threading, time, warnings
from fastdata import DataLoader, ImageDataset
from fastdata.transforms import RandomResizedCrop

# Scripts, whose silence is asserted, do not tell that Pillow decodes some images.
warnings.simplefilter("ignore", UserWarning)
"""

# Every script begins with this. `endless` has batches to come that take at least 10 minutes, and a
# script is given less: one that waits for them fails its test.
PRELUDE = """
dataset = ImageDataset(sys.argv[1], transform=RandomResizedCrop(8))

def endless(threads, **options):
    noise = ImageDataset(os.path.dirname(sys.argv[1]) + "/noise", transform=RandomResizedCrop(8))
    long = [0] * 100_000
    batches = [[0], [0], long, long, long]
    return DataLoader(noise, batch_sampler=batches, num_workers=threads, **options)


def tell(**values):
    print(json.dumps(values), flush=True)
"""


@pytest.fixture(scope="module")
def packed(made_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """64 JPEGs with seek points; beside it, "noise": a large one without."""
    out = tmp_path_factory.mktemp("packed") / "shards"
    pack_tree(made_tree / "train", out, "shards", unit_size=None, seek_points=64)
    _pack_noise(out.with_name("noise"), "jpeg", 1, 1500, 1500)
    return out


def _pack_noise(out: Path, suffix: str, count: int, height: int, width: int) -> None:
    rng = np.random.default_rng(0)
    tree = out.with_name(f"{out.name} tree")
    (tree / "a").mkdir(parents=True)
    for number in range(count):
        pixels = rng.integers(0, 256, (height, width, 3), np.uint8)
        Image.fromarray(pixels).save(tree / "a" / f"{number}.{suffix}")
    pack_tree(tree, out, "shards", unit_size=None)


@pytest.fixture(scope="module")
def packed_ppm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """PPMs, which are Pillow's; beside it, "noise": a large one."""
    folder = tmp_path_factory.mktemp("ppm")
    _pack_noise(folder / "packed", "ppm", 8, 300, 400)
    _pack_noise(folder / "noise", "ppm", 1, 3000, 3000)
    return folder / "packed"


@pytest.fixture(scope="module")
def scripts() -> Iterator[Prefork]:
    with Prefork(IMPORTS) as running:
        yield running


def told(body: str, dataset: Path, scripts: Prefork | None = None, timeout: float = HANG) -> dict:
    """Runs a script that ends well, in a fork or a new process; returns what it told."""
    body = PRELUDE + textwrap.dedent(body)
    if scripts is not None:
        done = scripts.run(body, dataset, timeout=timeout)
    else:
        command = [sys.executable, "-c", IMPORTS + body, str(dataset)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert done.stderr == ""
    return json.loads(done.stdout)


def small(packed: Path, **options) -> DataLoader:
    dataset = ImageDataset(packed, transform=Compose([Resize(40), CenterCrop(32)]))
    return DataLoader(dataset, **{"batch_size": 4, "num_workers": 2, **options})


def decode_threads() -> set[str]:
    """This process's, by number: other libraries come and go with theirs."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has just ended
            if (task / "comm").read_text() == "fastdata-decode\n":
                found.add(task.name)
    return found


def our_threads() -> set[str]:
    return decode_threads() | {
        thread.name for thread in threading.enumerate() if thread.name == "fastdata-helper"
    }


def wait_for_no_threads() -> None:
    deadline = time.monotonic() + HANG
    while our_threads() and time.monotonic() < deadline:
        time.sleep(0.001)
    assert our_threads() == set()


# Ctrl-C.


@pytest.mark.parametrize("threads", [pytest.param(0, marks=pytest.mark.slow), 8])
@kinds
def test_ctrl_c_ends_a_pass_and_its_threads(threads, kind, request, scripts):
    found = told(
        f"""
        loader = endless({threads})
        base = len(os.listdir("/proc/self/task"))  # other libraries have threads, too
        iterator = iter(loader)
        next(iterator), next(iterator)
        before = len(os.listdir("/proc/self/task")) - base

        def interrupt():
            time.sleep(0.3)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        try:
            next(iterator)
        except KeyboardInterrupt:
            interrupted = True
        thread.join()
        while len(os.listdir("/proc/self/task")) > base:  # for as long as the test may take
            time.sleep(0.001)
        tell(interrupted=interrupted, before=before, over=next(iterator, "over"))
        """,
        request.getfixturevalue(kind),
        scripts,
    )
    assert found["interrupted"]
    assert found["over"] == "over"
    assert found["before"] >= threads


def test_ctrl_c_at_any_call(packed_ppm, scripts):
    found = told(
        """
        def calls(stop=0):
            loader = DataLoader(dataset, batch_sampler=[[*range(8)] * 4] * 4, num_workers=4)
            iterator = iter(loader)
            next(iterator)  # all threads have started
            passed = 0

            def profile(frame, event, argument):
                nonlocal passed
                passed += event in ("call", "c_return")  # when Python calls handlers of signals
                if passed == stop:
                    raise KeyboardInterrupt

            try:
                sys.setprofile(profile)
                [*iterator]
            except KeyboardInterrupt:
                pass
            sys.setprofile(None)
            del iterator
            while any(one.name == "fastdata-helper" for one in threading.enumerate()):
                time.sleep(0.001)  # for as long as the test may take
            return passed

        sys.unraisablehook = lambda _: None  # Python ignores Ctrl-C in a `__del__`
        stops = random.Random(0).choices(range(1, calls()), k=40)
        # A pass that waits less makes fewer calls, and ends before some of them.
        tell(ended=sum(calls(stop) == stop for stop in stops))
        """,
        packed_ppm,
        scripts,
    )
    assert found["ended"] > 10


@pytest.mark.parametrize("threads", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_handler_that_raises_nothing_costs_no_sample(threads, packed, scripts):
    found = told(
        f"""
        loader = DataLoader(
            dataset, batch_sampler=[list(range(len(dataset))) * 10], num_workers={threads}, seed=1
        )
        caught = []
        signal.signal(signal.SIGALRM, lambda *_: caught.append(1))
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        interrupted = [images.clone() for images, _ in loader]
        signal.setitimer(signal.ITIMER_REAL, 0)
        loader.set_epoch(0)
        tell(caught=len(caught), same=all(
            bool((one == images).all()) for one, (images, _) in zip(interrupted, loader)))
        """,
        packed,
        scripts,
    )
    assert found["caught"] > 0
    assert found["same"]


# Ends of the interpreter.

_ENDS = {
    "an iterator is a global": ("iterator = iter(loader); next(iterator); now()", 0, ""),
    "sys.exit in the loop": ("for _ in loader:\n    now(); sys.exit(3)", 3, ""),
    "os._exit in the loop": ("for _ in loader:\n    now(); os._exit(4)", 4, ""),
    "an error in the loop": (
        "for _ in loader:\n    now(); raise ValueError('of the loop')",
        1,
        "ValueError: of the loop",
    ),
    "a cycle": ("it = iter(loader); next(it); it.me = it; a = [it]; a.append(a); now()", 0, ""),
    "a daemon thread iterates": (
        "threading.Thread(target=list, args=(loader,), daemon=True).start()\n"
        "time.sleep(0.3); now()",
        0,
        "",
    ),
}


# With threads of the core alone, and with those that wait for Pillow's images alone.
@pytest.mark.parametrize(
    ("end", "kind", "threads"),
    [
        ("a daemon thread iterates", "packed", 2),
        *(pytest.param(end, "packed", 2, marks=pytest.mark.slow) for end in list(_ENDS)[:-1]),
        *(pytest.param(end, "packed_ppm", 0, marks=pytest.mark.slow) for end in _ENDS),
    ],
)
def test_the_interpreter_ends_at_once_and_in_silence(end, threads, kind, scripts, request):
    body, code, message = _ENDS[end]
    body = f"loader = endless({threads})\ndef now(): print('now', flush=True)\n{body}"
    done = scripts.run(PRELUDE + body, request.getfixturevalue(kind), timeout=HANG)
    assert done.returncode == code, done.stderr
    assert done.stderr.strip().endswith(message) if message else done.stderr == ""
    assert "ignored" not in done.stderr
    assert done.stdout == "now\n"


@kinds
def test_a_thread_may_iterate_after_the_main_thread_has_ended(kind, request, scripts):
    found = told(
        """
        loader = DataLoader(dataset, batch_size=4, num_workers=2)

        def iterate():
            threading.main_thread().join()
            tell(samples=sum(len(labels) for _, labels in loader for _ in range(1)))

        threading.Thread(target=iterate).start()
        """,
        request.getfixturevalue(kind),
        scripts,
    )
    assert found["samples"] == len(ImageDataset(request.getfixturevalue(kind)))


# Forks.


def test_forks_while_iterating(packed, scripts):
    found = told(
        """
        def in_a_child(function):
            reader, writer = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(reader)
                os.write(writer, json.dumps(function()).encode())
                os._exit(0)
            os.close(writer)
            with os.fdopen(reader) as file:
                answer = json.loads(file.read())
            assert os.waitpid(child, 0)[1] == 0
            return answer

        def use(iterator):
            try:
                next(iterator)
            except RuntimeError as error:
                return str(error)

        def drop():
            global iterator
            iterator.close()
            over = next(iterator, "over")
            iterator = None
            return over

        def anew():
            return sum(len(labels) for _, labels in loader)

        loader = DataLoader(dataset, batch_size=4, num_workers=2)
        kept = DataLoader(dataset, batch_size=4, num_workers=2, persistent_workers=True)
        slow = endless(2)
        answers = {}
        iterator = iter(slow)
        next(iterator), next(iterator)
        answers["drop"] = in_a_child(drop)
        answers["use"] = in_a_child(lambda: use(iterator))
        iterator.close()
        iterator = iter(loader)
        next(iterator)
        answers["anew"] = in_a_child(anew)
        answers["parent"] = 4 + sum(len(labels) for _, labels in iterator)
        list(kept)
        loader = kept
        answers["kept"] = in_a_child(anew)
        answers["kept twice"] = in_a_child(lambda: in_a_child(anew))
        answers["kept in the parent"] = anew()
        tell(**answers)
        """,
        packed,
        scripts,
    )
    assert found.pop("drop") == "over"
    message = found.pop("use")
    assert "before a fork" in message
    assert "iter(loader)" in message
    assert set(found.values()) == {64}


def test_a_pass_that_is_closed_while_it_plans_takes_no_more_of_the_sampler(packed):
    drawn = []

    def rows():
        for row in range(1000):
            drawn.append(row)
            if row == 5:
                closing = threading.Thread(target=iterator.close)
                closing.start()
                closing.join()
            yield 0

    class Rows(list):
        __iter__ = staticmethod(rows)

    loader = small(packed, batch_size=1, sampler=Rows([0]), num_workers=2, persistent_workers=True)
    iterator = iter(loader)
    for _ in range(10):
        next(iterator, None)
    assert len(drawn) < 10


# What a pass leaves behind.


@kinds
@pytest.mark.parametrize("how", ["break", "raise", "del", "cycle"])
def test_threads_end_with_their_pass(how, kind, request):
    loader = small(request.getfixturevalue(kind), batch_size=2)
    gc.collect()
    wait_for_no_threads()
    if how == "break":
        for _ in loader:
            assert our_threads()
            break
    elif how == "raise":
        with suppress(ZeroDivisionError):
            for _ in loader:
                raise ZeroDivisionError
    else:
        iterator = iter(loader)
        next(iterator)
        watched = weakref.ref(iterator)
        if how == "cycle":
            iterator.itself = iterator
        del iterator
        gc.collect()
        assert watched() is None
    wait_for_no_threads()


def test_persistent_threads_stay(packed):
    gc.collect()
    wait_for_no_threads()
    loader = small(packed, persistent_workers=True, num_workers=3)
    next(iter(loader))
    threads = decode_threads()
    assert len(threads) == 3
    for _ in range(3):
        assert len(list(loader)) == 16
        assert decode_threads() == threads
    del loader
    gc.collect()
    assert decode_threads() == set()


def test_passes_in_threads(packed):
    loader = small(packed, persistent_workers=True)
    expected = [images.clone() for images, _ in loader]
    wrong: list[object] = []

    def iterate() -> None:
        try:
            for _ in range(5):
                for (images, _), right in zip(loader, expected, strict=True):
                    if not torch.equal(images, right):
                        wrong.append(images)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=iterate) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


_BREAKS = """
    import gc, glob, psutil, tempfile

    def left():
        gc.collect()
        process = psutil.Process()
        time.sleep(0.5)  # the system shows threads for a while that have ended
        return {
            "threads": process.num_threads(),
            "descriptors": process.num_fds(),
            "maps": len(open("/proc/self/maps").readlines()),
            "memory": process.memory_full_info().uss,
            "files": sorted(os.listdir("/dev/shm") + os.listdir(tempfile.gettempdir())),
        }

    loader = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=2)

    def breaks(count):
        for _ in range(count):
            for batch in loader:
                break

    breaks(100)  # by then the C library has an arena for as many threads as ever live at once
    batch = None
    found = [left()]
    for _ in range(4):
        breaks(100)
        found.append(left())
    tell(found=found)
"""


@pytest.mark.slow
@kinds
def test_early_breaks_leave_nothing(kind, request, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    found = told(_BREAKS, request.getfixturevalue(kind))["found"]
    before, after = found[0], found[-1]
    assert after["threads"] == before["threads"]
    assert after["descriptors"] == before["descriptors"]
    # "fastdata" is the folder of staged copies, of a test that runs beside this one.
    assert [n for n in after["files"] if "fastdata" in n and not n.startswith("fastdata-")] == []
    assert after["maps"] < before["maps"] + 20
    # A leak grows in every round; what the C library keeps settles at some time.
    grown = [later["memory"] - earlier["memory"] for earlier, later in pairwise(found)]
    assert min(grown) < 100 * 16e3


# Memory of batches.


_VIEWS = {
    "x[0]": lambda x: x[0],
    "x[1:3]": lambda x: x[1:3],
    "x.numpy()": lambda x: x.numpy(),
    "x.numpy()[..., ::2]": lambda x: x.numpy()[..., ::2],
    "x.permute": lambda x: x.permute(0, 2, 3, 1),
    "x.detach": lambda x: x.detach(),
    "x.view(int8)": lambda x: x.view(torch.int8),
    "untyped_storage": lambda x: x.untyped_storage(),
    "memoryview": lambda x: memoryview(x.permute(0, 2, 3, 1).numpy()),
    "__dlpack__": lambda x: torch.from_dlpack(x),
}


@pytest.mark.parametrize("view", _VIEWS)
def test_a_view_keeps_its_memory(view, packed):
    def digest(kept) -> bytes:
        if isinstance(kept, torch.UntypedStorage):
            return bytes(kept)
        return np.ascontiguousarray(kept).tobytes()

    loader = small(packed, persistent_workers=True)
    expected = [digest(_VIEWS[view](images.clone(memory_format=torch.preserve_format)))
                for images, _ in loader]  # fmt: skip
    kept = [_VIEWS[view](images) for images, _ in loader]
    for _ in range(2):
        for images, _ in loader:
            images.fill_(0)
    assert [digest(one) for one in kept] == expected


@pytest.mark.parametrize("ahead", [1, 4])
def test_dropped_memory_is_used_again(ahead, packed):
    loader = small(packed, batch_size=2, prefetch_factor=ahead)
    places = [images.data_ptr() for images, _ in loader]
    assert len(places) == 32
    # One that is filled and those ahead; and the one that the loop variable still holds.
    assert len(set(places)) <= ahead + 2


# Pickles, and what fails.


class _OddError(BaseException):
    """As a plugin that knows no manners raises it."""


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("error", [_OddError, SystemExit, KeyboardInterrupt])
def test_what_a_helper_cannot_mend_is_raised(error, threads, packed_ppm, monkeypatch):
    def fails(*_: object) -> None:
        raise error("of a plugin")

    loader = small(packed_ppm, num_workers=threads)
    assert len(list(loader)) == 2
    monkeypatch.setitem(Image.OPEN, "PPM", (fails, Image.OPEN["PPM"][1]))
    iterator = iter(loader)
    with pytest.raises(error, match="of a plugin"):
        next(iterator)
    assert next(iterator, None) is None


def test_pillow_may_take_long(packed_ppm, monkeypatch):
    """Longer than a look at signals, also where that ends by Python 3.10's own TimeoutError."""
    opener, accept = Image.OPEN["PPM"]

    def slowly(*arguments: object) -> object:
        time.sleep(0.2)
        return opener(*arguments)

    loader = small(packed_ppm, batch_size=8)
    (expected,) = loader
    monkeypatch.setattr("concurrent.futures._base.TimeoutError", type("Timeout", (Exception,), {}))
    monkeypatch.setitem(Image.OPEN, "PPM", (slowly, accept))
    (found,) = loader
    assert torch.equal(found[0], expected[0])


@pytest.mark.slow
@kinds
def test_a_pass_is_closed_while_another_thread_begins_batches(kind, request):
    """The thread that closes has no error and does not wait for Pillow; the other ends."""
    batches = [[0]] * 400 if kind == "packed" else [[*range(8)] * 4] * 400
    loader = small(
        request.getfixturevalue(kind), batch_sampler=batches, batch_size=1, prefetch_factor=100
    )
    wrong: list[BaseException] = []

    def iterate() -> None:
        try:
            for _ in iterator:
                pass
        except BaseException as error:
            wrong.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for pause in range(0, 60, 2):
            iterator = iter(loader)
            thread = threading.Thread(target=iterate)
            thread.start()
            time.sleep(pause / 10_000)
            iterator.close()
            thread.join(HANG)
            assert not thread.is_alive()
            assert next(iterator, None) is None
    finally:
        sys.setswitchinterval(before)
    assert not wrong
