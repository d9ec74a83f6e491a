"""fastdata.DeviceLoader and DataLoader(device=) on the CPU: all but streams is the same there."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import threading
import time
import weakref
from collections import OrderedDict, UserDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hangs import HANG
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_data import CROPS, SAMPLES, as_it_is, dataset, images, same

torch = pytest.importorskip("torch")

from device_data import DTYPES, MEAN, STD, Source, bytes_of, drain, rounding  # noqa: E402
from torch.utils.data import DistributedSampler, TensorDataset  # noqa: E402

from fastdata import DataLoader, DeviceLoader  # noqa: E402
from fastdata.errors import UsageError  # noqa: E402
from fastdata.transforms import Compose, Normalize, Resize, Views  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument:UserWarning"),
    pytest.mark.filterwarnings("ignore::fastdata.errors.SlowPathWarning"),
]

NORMALISE = Normalize(MEAN, STD, dtype="float16")
HALF = Compose([CROPS, NORMALISE])

# Pixels.


@pytest.fixture(autouse=True)
def _fallback_untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts, whose silence is asserted, do not tell that Pillow decodes some images."""
    monkeypatch.setenv("PYTHONWARNINGS", "ignore::UserWarning")


@pytest.mark.parametrize("dtype", DTYPES)
def test_pixels_are_those_that_the_native_core_makes(dtype: str) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 3}
    data = images(Compose([CROPS, Normalize(MEAN, STD, dtype=dtype)]))
    native = list(DataLoader(data, 8, **options))
    device = list(DataLoader(data, 8, device="cpu", **options))
    bare = DataLoader(images(), 8, shuffle=True, seed=3)
    wrapped = list(DeviceLoader(bare, "cpu", dtype=dtype, mean=MEAN, std=STD))
    assert len(native) == len(device) == len(wrapped) == len(bare)
    assert same(device, wrapped)
    for (ours, labels), (theirs, their_labels) in zip(device, native, strict=True):
        assert torch.equal(labels, their_labels)
        assert ours.dtype == theirs.dtype and ours.stride() == theirs.stride()
        far = (ours.double() - theirs.double()).abs()
        assert (far <= rounding(ours.dtype, theirs.double(), 1 / min(STD))).all()


@settings(max_examples=40)
@given(
    shape=st.tuples(*[st.integers(0, 5)] * 3),
    dtype=st.sampled_from([*DTYPES, torch.float16]),
    mean=st.none() | st.tuples(*[st.floats(0, 1)] * 3),
    std=st.none() | st.tuples(*[st.floats(0.01, 1)] * 3),
    layouts=st.tuples(st.booleans(), st.booleans()),
)
def test_normalising_is_arithmetic(
    shape: tuple[int, int, int], dtype: Any, mean: Any, std: Any, layouts: tuple[bool, bool]
) -> None:
    count, height, width = shape
    given_last, wanted_last = layouts
    pixels = bytes_of(count, 3, height, width)
    if given_last:
        pixels = pixels.contiguous(memory_format=torch.channels_last)
    loader = DeviceLoader(
        [(pixels, "name")], "cpu", dtype=dtype, mean=mean, std=std, channels_last=wanted_last
    )
    ((found, name),) = loader
    means = torch.tensor(mean or (0, 0, 0), dtype=torch.float64).view(1, 3, 1, 1)
    stds = torch.tensor(std or (1, 1, 1), dtype=torch.float64).view(1, 3, 1, 1)
    exact = (pixels.double() / 255 - means) / stds
    assert name == "name"
    assert str(found.dtype).endswith(str(dtype).removeprefix("torch."))
    layout = torch.channels_last if wanted_last else torch.contiguous_format
    assert found.is_contiguous(memory_format=layout)
    far = (found.double() - exact).abs()
    assert (far <= rounding(found.dtype, exact, float((1 / stds).max()))).all()


def test_a_surrounding_autocast_changes_nothing() -> None:
    pixels = bytes_of(2, 3, 8, 8)
    (plain,) = DeviceLoader([pixels], "cpu", dtype="float32", mean=MEAN, std=STD)
    with torch.autocast("cpu", torch.bfloat16):
        (found,) = DeviceLoader([pixels], "cpu", dtype="float32", mean=MEAN, std=STD)
    assert torch.equal(plain, found)


def test_what_is_sent_ahead_in_inference_mode_can_be_trained_on() -> None:
    iterator = iter(DeviceLoader([bytes_of(2, 3, 4, 4)] * 3, "cpu", dtype="float32"))
    with torch.inference_mode():
        next(iterator)
    weights = torch.ones(3, requires_grad=True)
    for pixels in iterator:
        assert not pixels.is_inference()
        (pixels.sum((0, 2, 3)) * weights).sum().backward()
    assert weights.grad is not None


def test_mean_alone_makes_float32_and_uint8_leaves_bytes() -> None:
    pixels = bytes_of(2, 3, 4, 4)
    (found,) = DeviceLoader([pixels], "cpu", mean=(0.5, 0.5, 0.5))
    assert found.dtype == torch.float32 and found.min() >= -0.5 and found.max() <= 0.5
    (found,) = DeviceLoader([pixels], "cpu", dtype="uint8")
    assert torch.equal(found, pixels) and found.dtype == torch.uint8
    assert found.is_contiguous(memory_format=torch.channels_last)


def test_views_are_normalised() -> None:
    loader = DataLoader(images(Views(HALF, count=2)), 8, device="cpu")
    assert loader.explain().endswith("device: cpu, uint8 images converted to float16 there")
    (first, second), _ = next(iter(loader))
    assert first.dtype == second.dtype == torch.float16
    data = images(Views(CROPS, HALF))  # of several formats: by the core
    loader = DataLoader(data, 8, device="cpu", seed=1)
    assert loader.explain().endswith("device: cpu")
    assert same(list(loader), list(DataLoader(data, 8, seed=1)))


def test_only_images_are_normalised() -> None:
    mask, grey = bytes_of(2, 1, 4, 4), bytes_of(2, 4, 4)
    floats = torch.rand(2, 3, 4, 4)
    batch = {"image": bytes_of(2, 3, 4, 4), "mask": mask, "grey": grey, "floats": floats}
    (found,) = DeviceLoader([batch], "cpu", dtype="float16")
    assert found["image"].dtype == torch.float16
    assert found["mask"] is mask and found["grey"] is grey
    assert torch.equal(found["floats"], floats)


def test_floats_cannot_be_normalised_again() -> None:
    for batch, what in (((torch.rand(2, 3, 4, 4), 1), "images of float32"), ([1], "no images")):
        with pytest.raises(UsageError, match=f"the batch has {what}"):
            list(DeviceLoader([batch], "cpu", mean=MEAN, std=STD))


# What batches may be.


class Pair(NamedTuple):
    image: Any
    more: Any


class Named(UserDict[str, Any]):
    def __init__(self, **values: Any) -> None:
        super().__init__(values)


def test_batches_keep_their_structure() -> None:
    pixels, labels = bytes_of(2, 3, 4, 4), torch.arange(2)
    batch = [
        pixels,
        Pair(labels, ("a", None)),
        OrderedDict(one=[labels, 1], two={"three": labels.to_sparse()}),
        torch.zeros(()),
        torch.zeros(0, 5),
    ]
    (found,) = DeviceLoader([batch], "cpu", channels_last=False)
    assert found is not batch and type(found) is list
    assert found[0] is pixels
    assert type(found[1]) is Pair and found[1].image is labels and found[1].more == ("a", None)
    assert type(found[2]) is OrderedDict and found[2]["one"] == [labels, 1]
    assert torch.equal(found[2]["two"]["three"].to_dense(), labels)
    assert found[3].shape == () and found[4].shape == (0, 5)
    (found,) = DeviceLoader([pixels], "cpu", dtype="float32")
    assert found.dtype == torch.float32
    (found,) = DeviceLoader([Named(image=pixels, name="x")], "cpu", dtype="float32")
    assert type(found) is dict and found["name"] == "x"
    assert found["image"].dtype == torch.float32


# Iteration.


@settings(max_examples=40)
@given(
    count=st.integers(0, 9),
    fail=st.sets(st.integers(0, 8), max_size=4),
    prefetch=st.integers(1, 4),
)
def test_batches_and_errors_come_in_order(count: int, fail: set[int], prefetch: int) -> None:
    source = Source(count, tuple(fail))
    loader = DeviceLoader(source, "cpu", prefetch=prefetch)
    expected = [f"error {n}" if n in fail else n for n in range(count)]
    assert len(loader) == count
    for epoch in range(2):
        iterator = iter(loader)
        assert drain(iterator) == expected
        assert source.closed == epoch + 1
        with pytest.raises(StopIteration):
            next(iterator)


@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_no_more_is_taken_ahead_than_asked_for(prefetch: int) -> None:
    source = Source(20)
    iterator = iter(DeviceLoader(source, "cpu", prefetch=prefetch))
    assert source.given == 0
    ahead = []
    for number, _ in enumerate(iterator):
        ahead.append(source.given - number - 1)
    # The first batch does not wait for all of them.
    assert ahead == [min(number + 1, prefetch, 19 - number) for number in range(20)]


class Waiting:
    """Gives a batch when it may: told so, or closed if closing it ends the waiting."""

    def __init__(self, closable: bool) -> None:
        self.asked, self.may = threading.Event(), threading.Event()
        self.closed = 0
        self._closable = closable

    def __iter__(self) -> Waiting:
        return self

    def __next__(self) -> Any:
        self.asked.set()
        assert self.may.wait(30)
        if self.closed and self._closable:
            raise StopIteration
        return [torch.zeros(1)]

    def close(self) -> None:
        self.closed += 1
        if self._closable:
            self.may.set()


@pytest.mark.parametrize("closable", [True, False])
def test_closing_while_another_thread_takes_a_batch(closable: bool) -> None:
    source = Waiting(closable)
    iterator: Any = iter(DeviceLoader(source, "cpu"))
    found: list[Any] = []

    def take() -> None:
        try:
            found.append(next(iterator))
        except BaseException as error:
            found.append(type(error))

    taking, closing = threading.Thread(target=take), threading.Thread(target=iterator.close)
    taking.start()
    assert source.asked.wait(30)
    closing.start()
    if not closable:
        closing.join(0.1)
        assert closing.is_alive()  # what it would free is being written
        source.may.set()
    closing.join(30)
    taking.join(30)
    assert found == [StopIteration]
    assert source.closed == 1
    with pytest.raises(StopIteration):
        next(iterator)


def slowly(batches: int) -> Iterator[Any]:
    for number in range(batches):
        time.sleep(0.001)  # the other thread asks meanwhile; two may not run a generator
        yield [torch.tensor([number])]


@pytest.mark.parametrize("kind", ["generator", "device=", "native"])
def test_threads_that_share_an_iterator_get_each_batch_once(kind: str) -> None:
    device = "cpu" if kind == "device=" else None
    loader: Any = DataLoader(images(), 1, num_workers=2, fields=("index", "image"), device=device)
    iterator = iter(DeviceLoader(slowly(50), "cpu") if kind == "generator" else loader)
    found: list[Any] = []

    def take() -> None:
        try:
            for batch in iterator:
                found.append(int(batch[0] if kind == "generator" else batch["index"]))
        except BaseException as error:
            found.append(error)

    taking = [threading.Thread(target=take) for _ in range(2)]
    for thread in taking:
        thread.start()
    for thread in taking:
        thread.join(HANG)
        assert not thread.is_alive()
    assert sorted(found) == list(range(50 if kind == "generator" else len(loader)))


def test_an_early_break_ends_the_loaders_own_pass() -> None:
    source = Source(9)
    for _ in DeviceLoader(source, "cpu"):
        break
    gc.collect()
    assert source.closed == 1
    ended = []

    def generate() -> Iterator[Any]:
        try:
            yield from ([torch.zeros(1)] for _ in range(9))
        finally:
            ended.append(True)

    for _ in DeviceLoader(generate(), "cpu"):
        break
    gc.collect()
    assert ended == [True]


def test_ctrl_c_comes_through_at_once() -> None:
    def generate() -> Iterator[Any]:
        yield torch.zeros(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        next(iter(DeviceLoader(generate(), "cpu")))


def test_nothing_is_kept_over_epochs() -> None:
    alive: list[Any] = []

    class Fresh(Source):
        def __iter__(self) -> Iterator[Any]:
            for _ in range(self.count):
                pixels = bytes_of(2, 3, 8, 8)
                alive.append(weakref.ref(pixels))
                yield pixels

    loader = DeviceLoader(Fresh(6), "cpu", dtype="float32")
    for _ in range(5):
        for batch in loader:
            assert sum(ref() is not None for ref in alive) <= 4
            del batch
    gc.collect()
    assert len(alive) == 30 and not any(ref() is not None for ref in alive)


# Epochs and state.


def test_set_epoch_reaches_what_orders_samples() -> None:
    data = TensorDataset(torch.arange(40))
    sampler = DistributedSampler(data, 2, 0, seed=1)
    theirs = torch.utils.data.DataLoader(data, 4, sampler=sampler)
    ours = DeviceLoader(theirs, "cpu")
    epochs = []
    for epoch in (0, 1):
        ours.set_epoch(epoch)
        assert sampler.epoch == epoch
        epochs.append(list(ours))
    assert not same(*epochs)
    DeviceLoader([1, 2], "cpu").set_epoch(1)  # a list has no order to set


# What is the loader's is this one's, too.


def test_attributes_are_the_loaders() -> None:
    inner = DataLoader(images(), 8, num_workers=1)
    loader = DeviceLoader(inner, "cpu")
    assert loader.dataset is inner.dataset and loader.batch_size == 8
    assert loader.explain() == inner.explain()
    assert len(loader) == len(inner) == len(iter(loader))
    list(loader)
    assert loader.stats().samples == SAMPLES
    assert not hasattr(loader, "nothing")
    assert "DeviceLoader to cpu" in repr(loader)
    with pytest.raises(TypeError):
        len(DeviceLoader(iter([1]), "cpu"))
    assert list(DeviceLoader(iter([1]), "cpu")) == [1]


def test_it_can_be_copied_and_pickled() -> None:
    loader = DeviceLoader(
        DataLoader(images(), 8, seed=1, shuffle=True), "cpu", dtype="float16", mean=MEAN, std=STD
    )
    expected = list(loader)
    next(iter(loader))
    for other in (copy.copy(loader), copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        other.set_epoch(0)
        assert same(list(other), expected)
    direct = DataLoader(images(HALF), 8, seed=1, device=torch.device("cpu"))
    assert same(list(pickle.loads(pickle.dumps(direct))), list(direct))
    for change in (copy.copy, copy.deepcopy, pickle.dumps):  # a pass has threads
        with pytest.raises(TypeError, match="cannot be pickled or copied"):
            change(iter(loader))


@pytest.mark.parametrize(("path", "workers"), [("native", 2), ("workers", 0), ("torch", 2)])
def test_every_path_of_a_loader_goes_to_the_device(path: str, workers: int) -> None:
    data: Any = {
        "native": images(Compose([Resize((4, 4)), NORMALISE])),
        "workers": images(Compose([Resize((4, 4)), NORMALISE, as_it_is])),
        "torch": TensorDataset(bytes_of(SAMPLES, 3, 4, 4), torch.arange(SAMPLES)),
    }[path]
    loader = DataLoader(data, 8, num_workers=workers, device="cpu")
    assert loader.explain().startswith(path)
    there = ", uint8 images converted to float16 there" if path == "native" else ""
    assert loader.explain().endswith(f"device: cpu{there}")
    batches = list(loader)
    assert sum(len(labels) for _, labels in batches) == SAMPLES
    dtype = torch.uint8 if path == "torch" else torch.float16
    assert all(pixels.dtype == dtype for pixels, _ in batches)
    assert all(pixels.is_contiguous(memory_format=torch.channels_last) for pixels, _ in batches)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "hpu"}, "device='hpu'"),
        ({"device": "gpu"}, "device='gpu'"),
        ({"device": 1.5}, r"device=1\.5"),
        ({"dtype": "float64"}, "dtype='float64'"),
        ({"dtype": torch.int32}, r"dtype=torch\.int32"),
        ({"dtype": "uint8", "mean": MEAN}, "dtype is uint8"),
        ({"prefetch": 0}, "prefetch="),
        ({"prefetch": True}, "prefetch="),
        ({"mean": (0.5,)}, "three finite numbers"),
        ({"mean": 0.5}, "three finite numbers"),
        ({"std": ("a", "b", "c")}, "three finite numbers"),
        ({"mean": (0.5, 0.5, float("nan"))}, "finite"),
        ({"std": (0.5, 0.5, 0)}, "not above 0"),
    ],
)
def test_arguments_out_of_range(options: dict[str, Any], message: str) -> None:
    options = {"device": "cpu", **options}
    with pytest.raises(UsageError, match=message):
        DeviceLoader([], **options)
    if set(options) == {"device"}:
        with pytest.raises(UsageError, match=message):
            DataLoader(images(), **options)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_said_at_once() -> None:
    for make in (lambda: DeviceLoader([]), lambda: DataLoader(images(), device="cuda")):
        with pytest.raises(UsageError, match="torch finds no accelerator here"):
            make()


@pytest.mark.slow
def test_the_interpreter_ends_in_silence_with_a_pass_under_way(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(dataset())
    script = """
from fastdata import DataLoader, DeviceLoader, ImageDataset
from fastdata.transforms import Compose, Normalize, Resize

half = Normalize((0, 0, 0), (1, 1, 1), dtype="float16")
data = ImageDataset("data", transform=Compose([Resize((8, 8)), half]))
direct = iter(DataLoader(data, 4, num_workers=2, device="cpu"))
wrapped = iter(DeviceLoader(DataLoader(data, 4, num_workers=2), "cpu"))
held = next(direct), next(wrapped)
"""
    done = run(script, tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def run(script: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=HANG)


def test_an_empty_loader_has_no_batches() -> None:
    assert list(DeviceLoader([], "cpu", dtype="float16")) == []
    empty = DataLoader(images(HALF), 64, drop_last=True, device="cpu")
    assert len(empty) == 0 and list(empty) == []


# Asked whether they are ready.


def until_ready(iterator: Any) -> None:
    for _ in range(6000):
        if iterator.ready():
            return
        time.sleep(0.01)
    raise AssertionError("never ready")


@pytest.mark.parametrize("device", [None, "cpu"])
def test_ready_begins_decoding_and_tells_when_it_is_done(device: str | None) -> None:
    loader = DataLoader(images(), 8, num_workers=1, seed=0, device=device)
    iterator: Any = iter(loader)
    assert loader.stats().batches == 0
    until_ready(iterator)  # nobody has asked for a batch
    state = loader.state_dict()
    assert state["at"] == 0
    assert same([next(iterator)], [next(iter(DataLoader(images(), 8, seed=0, device=device)))])
    assert loader.state_dict()["at"] == 8
    # Without threads the caller decodes: nobody is waited for.
    assert iter(DataLoader(images(), 8, device=device)).ready()
    # What does not tell is as if it were.
    assert iter(DeviceLoader([[torch.zeros(1)]], "cpu")).ready()


def test_a_loader_without_states_takes_no_state_but_its_own() -> None:
    loader = DeviceLoader(torch.utils.data.DataLoader(torch.zeros(8), 4), "cpu")  # type: ignore[arg-type]
    with pytest.warns(UserWarning, match="state_dict"):
        own = loader.state_dict()
    loader.load_state_dict(own)
    resumable = DeviceLoader(DataLoader(images(), 8), "cpu")
    with pytest.raises(UsageError, match="load_state_dict"):
        loader.load_state_dict(resumable.state_dict())
    assert len(list(loader)) == 2
