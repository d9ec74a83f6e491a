"""The loader's order: each sample once, the same stream for any threads, and resuming within it."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_data import CROPS, SAMPLES, WITH_INDEX, as_it_is, images, same, tree
from torchvision_stub import import_torchvision

torch = pytest.importorskip("torch")

from torch.utils.data import (  # noqa: E402
    ConcatDataset,
    DistributedSampler,
    SequentialSampler,
    Subset,
)

from fastdata import DataLoader, DeviceLoader, ImageDataset, Mixture  # noqa: E402
from fastdata.errors import SlowPathWarning, UsageError  # noqa: E402
from fastdata.loading.sharded import ShardedSampler  # noqa: E402
from fastdata.plan.order import ORDERS, QuasiRandom, make_order  # noqa: E402
from fastdata.samplers import RepeatSampler, TokenBudgetBatches, WeightedSampler  # noqa: E402
from fastdata.transforms import Resize, Schedule  # noqa: E402

THREADS = st.sampled_from([0, 1, 2, 8])

# Each example decodes an epoch or more.
FEW = settings(max_examples=25)


def subset(samples: int) -> Any:
    """The first samples of a dataset: decoding is not what these tests are about."""
    return Subset(images(Resize((2, 2))), range(samples))


def make(samples: int, batch_size: int, **options: Any) -> DataLoader[Any]:
    return DataLoader(subset(samples), batch_size, **WITH_INDEX, **options)


def indices(batches: Any) -> list[list[int]]:
    return [batch[2].tolist() for batch in batches]


def flat(batches: list[list[int]]) -> list[int]:
    return [index for batch in batches for index in batch]


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "samples": draw(st.integers(1, SAMPLES), "samples"),
        "batch_size": draw(st.integers(1, 12), "batch_size"),
        "drop_last": draw(st.booleans(), "drop_last"),
    }


ORDER = st.sampled_from(ORDERS)
SEED = st.integers(-(2**63), 2**63)


@FEW
@given(shapes(), ORDER, SEED, st.integers(1, 5), THREADS)
def test_ranks_share_an_epoch(
    shape: dict[str, Any], order: str, seed: int, world_size: int, threads: int
) -> None:
    loaders = [
        make(order=order, seed=seed, shard=(rank, world_size), num_workers=threads, **shape)
        for rank in range(world_size)
    ]
    for epoch in range(2):
        ranks = [indices(loader) for loader in loaders]
        samples, step = shape["samples"], world_size * shape["batch_size"]
        for loader, batches in zip(loaders, ranks, strict=True):
            assert len(loader) == len(batches)
            assert [len(b) for b in batches] == [len(b) for b in ranks[0]]
            assert flat(batches) == list(sampler_of(loader, epoch))
        together = [
            flat([list(b) for b in global_batch]) for global_batch in zip(*ranks, strict=True)
        ]
        everything = flat(together)
        whole = make_order(order, samples, seed, epoch)(np.arange(samples)).tolist()
        if shape["drop_last"]:
            assert everything == whole[: samples // step * step]
        else:
            assert everything[:samples] == whole
            assert len(everything) - samples < world_size
            assert everything[samples:] == (whole * world_size)[: len(everything) - samples]


def sampler_of(loader: DataLoader[Any], epoch: int) -> ShardedSampler:
    sampler = loader.sampler
    assert isinstance(sampler, ShardedSampler)
    sampler = copy.copy(sampler)  # the loader follows the epoch of its own
    sampler.native = False
    sampler.set_epoch(epoch)
    assert len(list(sampler)) == len(sampler)
    return sampler


@FEW
@given(shapes(), ORDER, SEED, st.integers(0, 10**9), THREADS, st.integers(1, 5))
def test_the_stream_is_a_function_of_seed_and_epoch(
    shape: dict[str, Any], order: str, seed: int, epoch: int, threads: int, prefetch: int
) -> None:
    options = {"num_workers": threads, "prefetch_factor": prefetch if threads else None}
    loader = make(order=order, seed=seed, **shape)
    loader.set_epoch(epoch)
    first = list(loader)
    other = make(order=order, seed=seed, **shape, **options)
    other.set_epoch(epoch)
    assert same(list(other), first)
    # The epoch has counted up.
    following = list(loader)
    loader.set_epoch(epoch + 1)
    assert same(list(loader), following)
    if order != "sequential" and shape["samples"] > 20 and first:
        assert not same(following, first)


@pytest.mark.parametrize("threads", [0, 2])
def test_torchs_seed_governs_where_none_is_given(threads: int) -> None:
    def epochs(seed: int, generator: Any = None) -> list[Any]:
        torch.manual_seed(seed)
        loader = DataLoader(
            images(), 8, True, num_workers=threads, **WITH_INDEX, generator=generator
        )
        return [list(loader), list(loader)]

    first = epochs(1)
    assert same(epochs(1), first)
    assert indices(first[0]) != indices(first[1])
    assert indices(epochs(2)[0]) != indices(first[0])
    generators = [torch.Generator().manual_seed(7) for _ in range(2)]
    assert same(epochs(1, generators[0]), epochs(2, generators[1]))


@FEW
@pytest.mark.filterwarnings("ignore:epoch 0 has ended")
@given(shapes(), ORDER, SEED, THREADS, st.data())
def test_a_state_goes_on_with_the_very_next_batch(
    shape: dict[str, Any], order: str, seed: int, threads: int, data: st.DataObject
) -> None:
    options: dict[str, Any] = {"order": order, "seed": seed, **shape}
    whole = make(**options)
    epochs = [list(whole), list(whole)]
    loader = make(num_workers=threads, **options)
    done = data.draw(st.integers(0, len(epochs[0])), "batches done")
    iterator = iter(loader)
    assert same(list(itertools.islice(iterator, done)), epochs[0][:done])
    state = json.loads(json.dumps(loader.state_dict()))
    assert all(isinstance(value, int) or value == order for value in state.values())
    assert state == pickle.loads(pickle.dumps(loader.state_dict()))
    if data.draw(st.booleans(), "while batches are under way"):
        other = make(num_workers=data.draw(THREADS, "threads then"), **options)
    else:
        other = loader
        del iterator
    other.load_state_dict(state)
    assert other.state_dict() == state
    if data.draw(st.booleans(), "the epoch is set, as loops over epochs do"):
        other.set_epoch(0)
    elif done == len(epochs[0]):
        epochs, done = [epochs[1], list(whole)], 0
    resumed = iter(other)
    assert len(resumed) == len(epochs[0]) - done
    assert same(list(resumed), epochs[0][done:])
    assert same(list(other), epochs[1])


def test_another_epoch_than_the_states_begins_anew() -> None:
    loader = make(SAMPLES, 8, seed=3, shuffle=True)
    next(iter(loader))
    state = loader.state_dict()
    loader.load_state_dict(state)
    with pytest.warns(UserWarning, match="epoch 0, position 8"):
        loader.set_epoch(4)
    assert loader.state_dict() == {**state, "epoch": 4, "number": 4, "named": 4, "at": 0}
    batches = indices(loader)
    assert sorted(flat(batches)) == list(range(SAMPLES))
    resumed = make(SAMPLES, 8, seed=3, shuffle=True)
    resumed.load_state_dict(loader.state_dict())
    resumed.set_epoch(4)  # which has ended
    rest = iter(resumed)
    assert len(rest) == 0
    with pytest.warns(UserWarning, match="epoch 5, position 0"):
        resumed.set_epoch(2)
    whole = make(SAMPLES, 8, seed=3, shuffle=True)
    whole.set_epoch(2)
    assert indices(rest) == indices(whole)


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"device": "cpu", "num_workers": 1}])
def test_a_pass_that_is_made_ready_has_not_begun(options: Any) -> None:
    def made() -> Any:
        return make(SAMPLES, 8, seed=3, shuffle=True, **options)

    loader, other = made(), made()
    ready: Any = iter(loader)
    ready.ready()
    iter(loader).ready()
    assert loader.state_dict() == other.state_dict()
    other.set_epoch(2)
    wanted = list(other)
    loader.set_epoch(2)
    assert same(list(ready), wanted)
    taken = iter(loader)
    next(taken)
    resumed = made()
    rest: Any = iter(resumed)
    rest.ready()
    resumed.load_state_dict(loader.state_dict())
    assert same(list(rest), list(taken))
    dropped = made()
    iter(dropped).ready()
    assert same(list(dropped), list(made()))


def test_breaking_off_begins_the_next_epoch() -> None:
    loader = make(SAMPLES, 8, seed=3, shuffle=True, num_workers=2, persistent_workers=True)
    whole = [indices(loader) for _ in range(3)]
    loader.set_epoch(0)
    for epoch in range(3):
        for number, batch in enumerate(loader):
            assert batch[2].tolist() == whole[epoch][number]
            if number == epoch + 1:
                break


#: What `test_wrong_states`'s loader gives before it begins.
GOOD = {
    "version": 3,
    "samples": SAMPLES,
    "order": "random",
    "digest": 0,
    "seed": 3,
    "epoch": 0,
    "number": 0,
    "named": -1,
    "at": 0,
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "The state is empty: .*off the native path"),
        ({"samples": SAMPLES + 1}, f"{SAMPLES + 1} samples; this one has {SAMPLES}"),
        ({"seed": 4}, r"seed 4, this loader's is 3"),
        ({"order": "sequential"}, "order 'sequential', this loader's is 'random'"),
        ({"order": "quasi-random, windows of 5 blocks"}, "windows of 5 blocks"),
        ({"order": 5}, "order 5"),
        ({"at": SAMPLES + 1}, f"position {SAMPLES + 1}"),
        ({"number": 1}, "number 1"),
        ({"named": 1}, "named 1"),
        ({"version": 1}, "version 1"),
        ({"digest": 5}, "of another mixture, sampler or Subset"),
    ],
)
def test_wrong_states(change: Any, message: str) -> None:
    loader = make(SAMPLES, 8, seed=3, shuffle=True)
    good = loader.state_dict()
    with pytest.raises(UsageError, match=message):
        loader.load_state_dict({} if change is None else {**good, **change})
    assert loader.state_dict() == good == {**GOOD, "digest": good["digest"]}


def test_a_state_is_of_one_subset() -> None:
    """Whatever reads it, and in batches of any size; but no other one of as many samples."""
    rows = list(range(SAMPLES))
    one, other = rows[:20], rows[1:21]
    begun = DataLoader(Subset(images(), one), 4, shuffle=True, seed=3)
    next(iter(begun))
    state = begun.state_dict()
    for number in one, np.array(one), torch.tensor(one):
        again = DataLoader(
            Subset(images(Resize((2, 2))), number), 7, shuffle=True, seed=3, num_workers=1
        )  # type: ignore[arg-type]
        again.load_state_dict(state)
    nested = Subset(Subset(images(), rows[::-1]), [SAMPLES - 1 - row for row in one])
    DataLoader(nested, 4, shuffle=True, seed=3).load_state_dict(state)
    parts = Mixture({"a": Subset(images(), one)}), Mixture({"a": Subset(images(), other)})
    for saved, loaded in (
        (Subset(images(), one), Subset(images(), other)),
        (Subset(images(), one), Subset(images(), one[::-1])),
        parts,
        (ConcatDataset([Subset(images(), one)]), ConcatDataset([Subset(images(), other)])),
        (Subset(parts[0], one[:5]), Subset(parts[0], other[:5])),
    ):
        options: Any = {} if isinstance(saved, Mixture) else {"shuffle": True}
        state = DataLoader(saved, 4, seed=3, **options).state_dict()
        DataLoader(saved, 4, seed=3, **options).load_state_dict(state)
        with pytest.raises(UsageError, match="sampler or Subset"):
            DataLoader(loaded, 4, seed=3, **options).load_state_dict(state)


def test_a_state_needs_an_order_of_ours_and_the_native_path() -> None:
    """Lightning asks any loader for it at every checkpoint, so having none is no error."""
    for options, data, why in (
        ({"sampler": range(5)}, images(), "was given a range"),
        ({"batch_sampler": [[1, 2]]}, images(), "was given a list"),
        (
            {"sampler": DistributedSampler(images(), 1, 0)},
            images(),
            "was given a DistributedSampler(.|\n)*shard=.auto.",
        ),
        ({}, [1, 2], "native path, which is not taken: list is not a dataset"),
    ):
        loader = DataLoader(data, **options)
        with pytest.warns(UserWarning, match=f"restarts the epoch: .*{why}"):
            assert loader.state_dict() == {}
        loader.load_state_dict({})
        with pytest.raises(UsageError, match=why):
            loader.load_state_dict(GOOD)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": "random", "shuffle": False}, "contradict"),
        ({"order": "quasi-random", "shuffle": False}, "contradict"),
        ({"order": QuasiRandom(4), "shuffle": False}, "contradict"),
        ({"order": "sequential", "shuffle": True}, "contradict"),
        ({"order": "shuffled"}, "order='shuffled'.*\n.*random, quasi-random, sequential"),
        ({"order": "random", "sampler": range(3)}, "a sampler was given"),
        ({"order": "random", "batch_sampler": [[1]]}, "a sampler was given"),
        ({"shard": (0, 2), "sampler": range(3)}, "a sampler was given"),
        ({"shard": "auto", "sampler": range(3)}, "a sampler was given"),
        ({"shard": (2, 2)}, r"shard=\(2, 2\)"),
        ({"shard": (-1, 2)}, r"shard=\(-1, 2\)"),
        ({"shard": (0, 1, 2)}, r"shard=\(0, 1, 2\)"),
        ({"shard": "all"}, "shard='all'"),
        ({"shard": 3}, "shard=3"),
    ],
)
def test_contradictions(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        DataLoader(images(), **options)


@pytest.mark.parametrize(
    ("options", "order"),
    [
        ({"seed": 2}, "sequential"),
        ({"shuffle": True}, "random"),
        ({"shuffle": True, "order": "quasi-random"}, "quasi-random"),
        ({"order": QuasiRandom(window=3)}, "quasi-random"),
    ],
)
def test_which_order_is_meant(options: dict[str, Any], order: str) -> None:
    loader = DataLoader(images(), 8, **WITH_INDEX, **options)
    assert loader.state_dict()["order"].startswith(order)
    found = flat(indices(loader))
    assert (found == sorted(found)) == (order == "sequential")
    with pytest.raises(UsageError, match="seed=3 with a sampler"):
        DataLoader(range(9), sampler=SequentialSampler(range(9)), seed=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("drop_last", [False, True])
def test_torchs_path_has_the_native_order(drop_last: bool) -> None:
    options: dict[str, Any] = {
        "shuffle": True,
        "seed": 4,
        "shard": (1, 3),
        "drop_last": drop_last,
    }
    theirs = DataLoader(range(SAMPLES), 5, **options)  # type: ignore[arg-type]
    native = make(SAMPLES, 5, **options)
    assert theirs.explain().startswith("torch")
    assert len(theirs) == len(native)
    for _ in range(2):
        assert [batch.tolist() for batch in theirs] == indices(native)
    for loader in (theirs, native):
        loader.set_epoch(7)
    assert [batch.tolist() for batch in theirs] == indices(native)


def test_a_state_between_epochs_has_the_seed_of_the_next_one() -> None:
    torch.manual_seed(5)
    loader = DataLoader(images(), 8, shuffle=True, **WITH_INDEX, num_workers=2)
    for _ in range(2):  # before the first epoch, and after it
        state = loader.state_dict()
        assert loader.state_dict() == state
        other = DataLoader(images(), 8, shuffle=True, **WITH_INDEX)
        other.load_state_dict(state)
        torch.manual_seed(99)
        assert same(list(other), list(loader))


@pytest.mark.parametrize("path", ["native", "workers"])
def test_a_compose_of_torchvisions_changed_in_place_counts(path: str) -> None:
    transforms = import_torchvision().transforms
    tail = [] if path == "native" else [as_it_is]
    compose = transforms.Compose([transforms.CenterCrop(8), transforms.ToTensor(), *tail])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SlowPathWarning)
        loader = DataLoader(images(compose), 8)
        assert loader.explain().startswith(path)
        assert next(iter(loader))[0].shape == (8, 3, 8, 8)
        compose.transforms[0] = transforms.CenterCrop(9)
        assert next(iter(loader))[0].shape == (8, 3, 9, 9)
        compose.transforms[0].size = (7, 6)
        assert next(iter(loader))[0].shape == (8, 3, 7, 6)


@pytest.mark.parametrize("order", [None, "random"])
@pytest.mark.parametrize("wrapped", [False, True])
def test_a_folder_with_another_list_of_files_is_read_anew(wrapped: bool, order: Any) -> None:
    folder = import_torchvision().datasets.ImageFolder(tree(), CROPS)
    loader = DataLoader(ImageDataset(folder) if wrapped else folder, 8, order=order)
    assert len(loader) == len(list(loader)) == -(-SAMPLES // 8)
    folder.samples = folder.samples[40:50]
    labels = [label for _, label in folder.samples]
    batches = list(loader)
    assert len(loader) == len(batches) == 2
    assert sorted(torch.cat([batch[1] for batch in batches]).tolist()) == labels
    folder.samples += folder.samples[:7]
    assert sum(len(batch[1]) for batch in loader) == 17
    assert len(loader) == 3


def epoch_loaders() -> dict[str, Any]:
    data, options = subset(SAMPLES), {**WITH_INDEX, "num_workers": 2}
    mixture = Mixture({"a": data}, samples=SAMPLES)
    batches = TokenBudgetBatches(data, np.arange(SAMPLES) % 3 + 1, 9, seed=2)
    return {
        "native": make(SAMPLES, 8, seed=3, shuffle=True, num_workers=2),
        "sharded": make(SAMPLES, 8, shard=(0, 1), shuffle=True),
        "quasi-random": make(SAMPLES, 8, seed=3, order="quasi-random"),
        "mixture": DataLoader(mixture, 8, **options),
        "sampler": DataLoader(data, 8, sampler=WeightedSampler(np.ones(SAMPLES)), **options),
        "planned": DataLoader(data, batch_sampler=batches, **options),
        "device": DeviceLoader(make(SAMPLES, 8, seed=3, shuffle=True, num_workers=2), "cpu"),
        "torch": DataLoader(Numbers(), 8, shuffle=True, seed=3),
        "torch's workers": DataLoader(Numbers(), 8, shuffle=True, seed=3, num_workers=1),
        "given": DataLoader(
            images(), 8, sampler=DistributedSampler(data, 1, 0), seed=1, **options
        ),  # crops, too, are the epoch's
    }


class Numbers(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> Any:
        return number, number, number


EPOCH_LOADERS = (
    "native", "sharded", "quasi-random", "mixture", "sampler", "planned", "device", "torch",
    "torch's workers", "given",
)  # fmt: skip


def sampler_to_set(loader: Any) -> Any:
    samplers = loader.batch_sampler.sampler, loader.sampler
    return next(one for one in samplers if hasattr(one, "set_epoch"))


@pytest.mark.parametrize("kind", EPOCH_LOADERS)
def test_the_epoch_may_be_set_until_the_first_batch_is_taken(kind: str) -> None:
    expected, loader = epoch_loaders()[kind], epoch_loaders()[kind]
    epochs = []
    for epoch in range(5):
        expected.set_epoch(epoch)
        epochs.append(list(expected))
    labels = [[batch[1].tolist() for batch in epoch] for epoch in epochs]
    assert labels[0] != labels[1]
    sampler = sampler_to_set(loader)
    begun = iter(loader)
    sampler.set_epoch(3)
    assert same(list(begun), epochs[3])
    assert kind == "given" or same(list(loader), epochs[4])
    iter(loader), iter(loader)  # begin nothing
    sampler.set_epoch(1)
    begun = iter(loader)
    sampler.set_epoch(1)
    first = next(begun)
    sampler.set_epoch(0)  # the next pass
    assert same([first, *begun], epochs[1])
    assert same(list(loader), epochs[0])


@pytest.mark.parametrize("kind", ["native", "planned", "device"])
def test_the_state_is_that_of_the_batch_delivered_last(kind: str) -> None:
    """Also where another pass goes on, another epoch was set, or the loader was pickled."""
    loader = epoch_loaders()[kind]
    first, second = iter(loader), iter(loader)
    next(first), next(second)

    def rest(copied: bool) -> list[Any]:
        state = pickle.loads(pickle.dumps(loader)).state_dict() if copied else loader.state_dict()
        resumed = epoch_loaders()[kind]
        resumed.load_state_dict(state)
        return list(resumed)

    after_second = rest(False)
    next(first)
    after_first = rest(True)
    loader.set_epoch(5)
    next(first)
    iter(loader)
    next(first)
    still = rest(False)
    assert same(still, after_first[2:])
    assert same(still, list(first))
    next(second)
    assert next(first, None) is None
    assert same(rest(False), after_second[1:])
    assert same(after_second[1:], list(second))


def test_a_device_loader_iterates_a_subclass_as_it_iterates_itself() -> None:
    class First(DataLoader[Any]):
        def __iter__(self) -> Any:
            return itertools.islice(super().__iter__(), 1)

    class Wrapper:
        def __init__(self, loader: Any) -> None:
            self.loader = loader

        def __iter__(self) -> Any:
            return itertools.islice(self.loader, 1)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.loader, name)

    plain = DataLoader(subset(9), 4, **WITH_INDEX)
    doubled = DeviceLoader(plain, "cpu", batch_transform=lambda batch: [*batch, *batch])
    assert len(next(iter(DeviceLoader(doubled, "cpu")))) == 2 * len(next(iter(plain)))
    for one in (First(subset(9), 4, **WITH_INDEX), Wrapper(plain)):
        assert len(list(DeviceLoader(one, "cpu"))) == 1


def test_an_epoch_that_was_broken_off_is_left_by_setting_the_next_one() -> None:
    """As under Lightning's limit_train_batches, also without a seed."""
    loader, resumed = (DataLoader(subset(SAMPLES), 8, True, **WITH_INDEX) for _ in range(2))
    done = list(itertools.islice(iter(loader), 3))
    resumed.load_state_dict(loader.state_dict())
    batches = iter(resumed)
    resumed.sampler.set_epoch(1)
    with pytest.warns(UserWarning, match="epoch 0, position 24"):
        assert sorted(flat(indices(batches))) == list(range(SAMPLES))
    again = DataLoader(subset(SAMPLES), 8, True, **WITH_INDEX)
    again.load_state_dict(loader.state_dict())
    batches = iter(again)
    again.sampler.set_epoch(0)
    assert sorted(flat(indices([*done, *batches]))) == list(range(SAMPLES))


@pytest.mark.parametrize("epoch", [-1, 1 << 32, 1.0, "1", None, True])
def test_other_epochs_are_refused(epoch: Any) -> None:
    every = [one for kind, one in epoch_loaders().items() if kind != "given"]
    every += [one.sampler for one in every] + [one.batch_sampler for one in every]
    every += [Mixture({"a": subset(3)}), Schedule(lambda epoch: Resize(2)), RepeatSampler([1, 2])]
    for one in every:
        if hasattr(one, "set_epoch"):
            with pytest.raises(UsageError, match="epoch"):
                one.set_epoch(epoch)
