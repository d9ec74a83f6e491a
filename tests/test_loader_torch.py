"""fastdata.DataLoader beside torch's: the same arguments, the same results and errors."""

from __future__ import annotations

import copy
import inspect
import json
import pickle
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from loader_data import CROPS, SAMPLES, WITH_INDEX, images, same
from torchvision_stub import import_torchvision

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.data import (  # noqa: E402
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
)

import fastdata  # noqa: E402
from fastdata import fast_collate  # noqa: E402
from fastdata.errors import SlowPathWarning, UsageError  # noqa: E402
from fastdata.transforms import Compose, Resize, Views  # noqa: E402

Torchs = torch.utils.data.DataLoader
Ours = fastdata.DataLoader

# Python from 3.12 on warns of every fork in a process with threads; torch of few CPUs.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore::fastdata.errors.SlowPathWarning"),
]

SMALL = Resize((4, 4))
THREADS = st.sampled_from([0, 1, 2, 8])


class Plain(Dataset[Any]):
    def __init__(self, samples: int) -> None:
        self.images = images(SMALL)
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Any, int, int]:
        if not -self.samples <= index < self.samples:
            raise IndexError(index)
        index = int(index) % self.samples
        image, label = self.images[index]
        return image, label, index


class Marking(Dataset[int]):
    """Writes a file for each sample that is asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __len__(self) -> int:
        return 8

    def __getitem__(self, number: int) -> int:
        (self._folder / str(number)).touch()
        return number


@pytest.mark.parametrize("options", [{"seed": 1}, {"device": "cpu"}])
def test_workers_begin_before_the_first_batch(tmp_path: Path, options: Any) -> None:
    batches = iter(Ours(Marking(tmp_path), 4, num_workers=1, **options))
    while not list(tmp_path.iterdir()):  # else the test hangs, which pytest's timeout ends
        time.sleep(0.01)
    assert len(list(batches)) == 2


def both(samples: int, **options: Any) -> tuple[Any, Any]:
    theirs = {
        name: value
        for name, value in options.items()
        if name not in ("num_workers", "prefetch_factor", "persistent_workers")
    }
    data = Subset(images(SMALL), range(samples))
    ours = Ours(data, **WITH_INDEX, **options)  # type: ignore[arg-type]
    assert ours.explain().startswith("native")
    return Torchs(Plain(samples), **theirs), ours


def agree(theirs: Any, ours: Any) -> None:
    got, wanted = list(ours), list(theirs)
    assert len(got) == len(wanted)
    for batch, expected in zip(got, wanted, strict=True):
        assert isinstance(batch, list) and len(batch) == len(expected) == 3
        assert [part.dtype for part in batch] == [part.dtype for part in expected]
        assert [part.shape for part in batch] == [part.shape for part in expected]
        assert same(batch[1:], expected[1:])
        assert (batch[0].int() - expected[0].int()).abs().max() <= 1


# The signature.


def test_all_of_torchs_parameters_are_there() -> None:
    theirs = list(inspect.signature(Torchs.__init__).parameters.values())
    ours = inspect.signature(Ours.__init__).parameters
    assert [(p.name, p.default, p.kind) for p in theirs] == [
        (p.name, p.default, p.kind) for p in list(ours.values())[: len(theirs)]
    ]
    assert issubclass(Ours, Torchs)
    more = list(ours.values())[len(theirs) :]
    assert all(p.kind is inspect.Parameter.KEYWORD_ONLY for p in more)
    assert [p.name for p in more] == [
        "order",
        "seed",
        "shard",
        "device",
        "fields",
        "on_error",
        "batch_transform",
        "require_native",
    ]
    assert all(p.default is None for p in more if p.name not in ("on_error", "require_native"))


# Arguments that mean the same.


@st.composite
def workers(draw: st.DrawFn) -> dict[str, Any]:
    number = draw(THREADS, "num_workers")
    options: dict[str, Any] = {"num_workers": number}
    if number:
        options["prefetch_factor"] = draw(st.sampled_from([None, 1, 4]), "prefetch_factor")
        options["persistent_workers"] = draw(st.booleans(), "persistent_workers")
    return options


SHAPES = {
    "samples": st.integers(1, 30),
    "batch_size": st.integers(1, 9),
    "drop_last": st.booleans(),
}
FEW = settings(max_examples=25)


@FEW
@given(workers(), st.fixed_dictionaries(SHAPES))
def test_in_sequence(workers: dict[str, Any], shape: dict[str, Any]) -> None:
    theirs, ours = both(**workers, **shape)
    assert len(theirs) == len(ours)
    for _ in range(2):
        agree(theirs, ours)


def sampler_of(kind: str, samples: int, generator: Any) -> Any:
    numbers = range(samples)
    match kind:
        case "sequential":
            return SequentialSampler(numbers)
        case "random":
            return RandomSampler(numbers, generator=generator)
        case "with replacement":
            return RandomSampler(numbers, True, 2 * samples, generator=generator)
        case "weighted":
            return WeightedRandomSampler(
                [1.0 + i % 3 for i in numbers], samples + 3, generator=generator
            )
        case "weighted, once":
            weights = [1.0 + i % 3 for i in numbers]
            return WeightedRandomSampler(weights, -(-samples // 2), False, generator)
        case "subset":
            return SubsetRandomSampler(range(0, samples, 2), generator=generator)
        case "negative":
            return [i - samples if i % 2 else i for i in numbers]
        case "tensors":
            return torch.arange(samples)
        case _:
            return DistributedSampler(Plain(samples), 3, 1, seed=5)


SAMPLERS = (
    "sequential",
    "random",
    "with replacement",
    "weighted",
    "weighted, once",
    "subset",
    "negative",
    "tensors",
    "distributed",
)


@FEW
@given(
    st.sampled_from(SAMPLERS),
    st.booleans(),
    workers(),
    st.fixed_dictionaries(SHAPES),
    st.integers(0, 2**31),
)
def test_samplers(
    kind: str, own: bool, workers: dict[str, Any], shape: dict[str, Any], seed: int
) -> None:
    """With a generator of their own, or torch's, the very same samples are drawn."""
    assume(not (kind == "distributed" and shape["samples"] < 3))
    samplers = [
        sampler_of(kind, shape["samples"], torch.Generator().manual_seed(seed) if own else None)
        for _ in range(2)
    ]
    theirs, _ = both(sampler=samplers[0], **shape)
    _, ours = both(sampler=samplers[1], **workers, **shape)
    assert len(theirs) == len(ours)
    for epoch in range(2):
        if kind == "distributed":
            samplers[0].set_epoch(epoch + 3)
            ours.set_epoch(epoch + 3)
        found = []
        for loader in (theirs, ours):
            torch.manual_seed(seed)
            found.append(list(loader))
        agree(*found)


@FEW
@given(
    st.lists(st.lists(st.integers(-SAMPLES, SAMPLES - 1), min_size=1, max_size=7), max_size=6),
    workers(),
)
def test_batch_samplers(batches: list[list[int]], workers: dict[str, Any]) -> None:
    theirs, ours = both(SAMPLES, batch_sampler=batches, **workers)
    assert len(theirs) == len(ours) == len(batches)
    agree(theirs, ours)
    generator = (batch for batch in batches)
    assert len(list(both(SAMPLES, batch_sampler=generator, **workers)[1])) == len(batches)


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("wrong", [SAMPLES, -SAMPLES - 1, 10**12])
def test_a_sampler_outside_of_the_dataset(wrong: int, threads: int) -> None:
    theirs, ours = both(SAMPLES, sampler=[0, wrong], num_workers=threads)
    for loader in (theirs, ours):
        iterator = iter(loader)
        next(iterator)
        with pytest.raises(IndexError):
            next(iterator)


def sampler_without_length() -> Iterator[int]:
    yield from range(5)


def test_a_length_that_nobody_knows() -> None:
    theirs, ours = both(SAMPLES, sampler=sampler_without_length())
    for loader in (theirs, ours):
        with pytest.raises(TypeError):
            len(loader)
    with pytest.raises(TypeError):
        len(iter(ours))
    theirs, ours = both(SAMPLES, sampler=sampler_without_length())
    assert [batch[2].item() for batch in ours] == list(range(5))


# Torch's own path.


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        return iter(range(0 if info is None else info.id, 20, 1 if info is None else 2))


def as_list(samples: Any) -> Any:
    return list(samples)


def name_worker(number: int) -> None:
    global _worker
    _worker = number


_worker = -1


class Workers(Dataset[int]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return _worker


TORCHS_OWN = {
    "iterable": (Stream(), {"batch_size": 3}),
    "iterable in workers": (Stream(), {"batch_size": 3, "num_workers": 2}),
    "iterable, single": (Stream(), {"batch_size": None}),
    "list": ([1, 2, 3, 4], {"batch_size": 3}),
    "dicts": ([{"a": i, "b": [i, "x"]} for i in range(5)], {"batch_size": 2}),
    "single": ([1, 2, 3], {"batch_size": None}),
    "collate": (list(range(7)), {"batch_size": 3, "collate_fn": as_list, "drop_last": True}),
    "worker_init_fn": (Workers(), {"num_workers": 2, "worker_init_fn": name_worker}),
    "shuffled": (list(range(9)), {"batch_size": 2, "shuffle": True}),
    "sampler": (list(range(9)), {"sampler": [3, 4, 8]}),
    "persistent": (list(range(9)), {"num_workers": 2, "persistent_workers": True}),
}


@pytest.mark.parametrize("name", TORCHS_OWN)
def test_torchs_path_is_torchs(name: str) -> None:
    data, options = TORCHS_OWN[name]
    found = []
    for kind in (Torchs, Ours):
        torch.manual_seed(3)
        loader = kind(data, **options)  # type: ignore[operator]
        found.append([list(loader), list(loader)])
    assert same(found[0], found[1])
    assert loader.explain().startswith("torch: torch's own loader, unchanged\nbecause: ")
    assert "torch path" in repr(loader)


def test_explain_and_repr() -> None:
    loader = Ours(images(SMALL), 5, True, num_workers=2)
    assert "native: 2 decode threads" in loader.explain()
    assert "Resize((4, 4))" in loader.explain() and "order: random" in loader.explain()
    assert "native path" in repr(loader) and "2 threads" in repr(loader)
    assert "no decode threads" in Ours(images(SMALL)).explain()
    assert "by the given sampler" in Ours(images(SMALL), sampler=[1]).explain()
    assert "rank 1 of 3" in Ours(images(SMALL), shard=(1, 3)).explain()
    for data, options, path, why in (
        (images(Compose([SMALL, half])), {}, "workers", "half"),
        (images(SMALL), {"collate_fn": as_list}, "native", "collate_fn is called"),
        (images(SMALL), {"collate_fn": fast_collate}, "native", "Resize"),
        (Subset(images(SMALL), [1, 2]), {}, "native", "2 samples of ImageDataset"),
        ([1, 2], {}, "torch", "list"),
    ):
        loader = Ours(data, **options)  # type: ignore[arg-type]
        assert loader.explain().startswith(path + ":"), loader.explain()
        assert why in loader.explain(), loader.explain()


def half(image: Any) -> Any:
    return image // 2


# What only the native path can do.

NATIVE_ONLY = {
    "on_error": "skip",
    "fields": ("image", "index"),
    "batch_transform": as_list,
    "require_native": True,
}


@pytest.mark.parametrize("path", ["torch", "workers", "single", "iterable"])
@pytest.mark.parametrize("name", sorted(NATIVE_ONLY))
def test_other_paths_refuse_what_only_the_native_one_honours(name: str, path: str) -> None:
    data: Any = {
        "torch": [1, 2],
        "workers": images(Compose([SMALL, half])),
        "single": images(SMALL),
        "iterable": Stream(),
    }[path]
    options = {"batch_size": None} if path == "single" else {}
    assert not Ours(data, **options).explain().startswith("native")
    with pytest.raises(UsageError, match=f"^{name}=.* needs the native path, which is not taken"):
        Ours(data, **options, **{name: NATIVE_ONLY[name]})


WRONG: list[tuple[str, Any]] = [
    *(("on_error", "ignore"), ("num_workers", "all"), ("num_workers", 2.5), ("device", 2.5)),
    *(("fields", value) for value in ("image", (), ("image", "image"), ("image", "mask"), 1)),
    *(("fields", value) for value in (("image", "valid"), ([],))),
    *(("collate_fn", "mean"), ("worker_init_fn", 5), ("batch_transform", 5)),
    *((name, "yes") for name in ("shuffle", "pin_memory", "in_order", "persistent_workers")),
    *(("prefetch_factor", 1.5), ("generator", "x"), ("sampler", 5), ("batch_sampler", 5)),
    *(("order", "quasi-random:0"), ("require_native", "yes"), ("shard", 0.5), ("shard", (0,))),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_values_out_of_range(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"^{name}=") as caught:
        Ours(images(SMALL), **{"num_workers": 1, name: value})
    assert caught.value.hint
    assert "QuasiRandom(window=…)" in caught.value.hint or name != "order"


@pytest.mark.parametrize("batch_size", [0, -3, 2.5])
def test_wrong_batch_sizes_with_an_order_of_ours(batch_size: Any) -> None:
    with pytest.raises(ValueError, match="batch_size"):
        Ours(images(SMALL), batch_size, seed=3)


def test_statistics() -> None:
    loader = Ours(images(), 8, num_workers=2)
    with pytest.raises(UsageError, match="before the first iter"):
        loader.stats()
    list(loader)
    stats = loader.stats()
    assert (stats.samples, stats.batches, stats.bad_samples) == (SAMPLES, len(loader), 0)
    assert stats.by_pillow > 3 and stats.with_seek_points > 20
    assert json.loads(json.dumps(stats._asdict())) == stats._asdict()  # numbers of Python's
    assert stats.images_per_second == pytest.approx(SAMPLES / stats.seconds)
    for share in (stats.read_share, stats.decode_share, stats.queue_share):
        assert 0 <= share <= 1
    with pytest.raises(UsageError, match="native path"):
        Ours([1, 2]).stats()  # type: ignore[arg-type]


def inverted(image: Any) -> Any:
    return 255 - image


@pytest.mark.parametrize("workers", [0, 2])
def test_unknown_steps_run_after_the_core_in_order_with_the_same_draws(workers: int) -> None:
    known = Ours(images(CROPS), 8, shuffle=True, seed=3)
    # The flip is known, and stays behind the unknown step.
    flip = import_torchvision().transforms.v2.RandomHorizontalFlip(1.0)
    rest = Compose([CROPS, half, flip, inverted])
    with pytest.warns(SlowPathWarning, match="half.*__fastdata__"):
        loader = Ours(images(rest), 8, shuffle=True, seed=3, num_workers=workers)
    assert loader.explain().startswith("workers")
    for _ in range(2):
        for (found, labels), (alone, numbers) in zip(loader, known, strict=True):
            assert torch.equal(found, 255 - (alone // 2).flip(-1))
            assert torch.equal(labels, numbers)


@pytest.mark.parametrize("loader", [torch.utils.data.DataLoader, Ours])
def test_negative_numbers_count_from_the_end(loader: Any) -> None:
    data = images()
    last = [data[len(data) - 1][1], data[len(data) - 2][1], data[0][1]]
    for options, chosen in (
        ({"sampler": [-1, -2, 0]}, data),
        ({}, torch.utils.data.Subset(data, [-1, -2, 0])),
        ({}, torch.utils.data.Subset(torch.utils.data.Subset(data, [0, -2, -1]), [-1, 1, 0])),
    ):
        (batch,) = loader(chosen, 3, **options)
        assert batch[1].tolist() == last
    with pytest.raises(IndexError):
        list(loader(torch.utils.data.Subset(data, [-len(data) - 1]), 1))


@pytest.mark.parametrize("number", [3, -4, -8])
def test_a_subset_has_no_sample_but_the_datasets(number: int) -> None:
    """Where -4 of 3 is not counted from the end twice, as the last."""
    whole = images(SMALL)
    subset = Subset(Subset(whole, range(3)), [number])
    with pytest.raises(IndexError):
        list(Torchs(subset))
    for options in ({}, {"collate_fn": list}):
        with pytest.raises(IndexError, match=f"sample {number} of a dataset of 3"):
            Ours(subset, **options)


@pytest.mark.parametrize("indices", [[0.0, 1.7], torch.ones(2), ["0"]])
def test_a_subset_has_whole_numbers(indices: Any) -> None:
    with pytest.raises(TypeError, match="whole numbers"):
        Ours(Subset(images(SMALL), indices))
    assert len(list(Ours(Subset(images(SMALL), [])))) == 0


@pytest.mark.parametrize("device", [None, "cpu"])
@pytest.mark.parametrize("call", [pickle.dumps, copy.copy])
def test_an_iterator_is_not_pickled(call: Any, device: Any) -> None:
    iterator = iter(Ours(images(SMALL), 4, device=device))
    with pytest.raises(TypeError, match=r"cannot be pickled or copied: .*Pickle the loader"):
        call(iterator)


@pytest.mark.parametrize("threads", [0, 1])
@pytest.mark.parametrize("loader", [torch.utils.data.DataLoader, Ours])
def test_a_dataset_may_get_other_transforms_between_epochs(loader: Any, threads: int) -> None:
    data = images(Compose([Resize((20, 24))]))
    batches = loader(torch.utils.data.Subset(data, range(4)), 4, num_workers=threads)
    assert next(iter(batches))[0].shape == (4, 3, 20, 24)
    data.transform = Compose([Resize((30, 16))])
    data.target_transform = str
    (batch,) = batches
    assert batch[0].shape == (4, 3, 30, 16)
    assert batch[1] == tuple(str(data.row(i).label) for i in range(4))
    data.transform = Compose([Resize((30, 16)), half])
    (batch,) = batches
    assert batch[0].max() < 128


def _look_at_dataset(number: int) -> None:
    assert list(torch.utils.data.get_worker_info().dataset.indices) == [0, 1, 2, 3]


@pytest.mark.parametrize("context", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_worker_init_fn_sees_the_dataset(context: str) -> None:
    options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": context}
    data = torch.utils.data.Subset(images(SMALL), range(4))
    loader = Ours(data, 4, worker_init_fn=_look_at_dataset, **options)
    assert loader.explain().startswith("workers")
    (batch,) = loader
    assert len(batch[1]) == 4


@pytest.mark.parametrize("batch_sampler", [[[0.5]], [[]], [[0], ["1"]]])
def test_batches_of_no_samples(batch_sampler: Any) -> None:
    with pytest.raises((TypeError, IndexError)):
        list(Ours(images(), batch_sampler=batch_sampler))


class Copies(TorchDispatchMode):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        copying = any(one in str(func) for one in ("stack", "cat", "copy", "clone"))
        self.count += copying and isinstance(made, torch.Tensor) and made.numel() >= 24 * 24 * 3
        return made


def stacking(samples: list[Any]) -> Any:
    assert len({image.untyped_storage().data_ptr() for image, _ in samples}) == 1  # of the batch
    return torch.stack([image for image, _ in samples])


@pytest.mark.parametrize("function", [None, default_collate, fast_collate, stacking])
def test_nothing_is_copied_but_by_functions_of_ones_own(function: Any) -> None:
    for transform in (CROPS, Views(CROPS, count=2)):
        if isinstance(transform, Views) and function in (fast_collate, stacking):
            continue
        loader = Ours(images(transform), 9, collate_fn=function, require_native=True)
        with Copies() as copies:
            batches = len(list(loader))
        assert copies.count == (batches if function is stacking else 0)
