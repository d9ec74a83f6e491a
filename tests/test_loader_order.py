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
from loader_data import CONTAINERS, CROPS, SAMPLES, WITH_INDEX, as_it_is, images, same, tree
from torchvision_stub import import_torchvision

torch = pytest.importorskip("torch")

from torch.utils.data import DistributedSampler, SequentialSampler, Subset  # noqa: E402

from fastdata import DataLoader, DeviceLoader, ImageDataset, Mixture  # noqa: E402
from fastdata.errors import SlowPathWarning, UsageError  # noqa: E402
from fastdata.loading.sampler import ShardedSampler  # noqa: E402
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
    """Samples, batch size and drop_last."""
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


def test_any_container_gives_the_same_stream() -> None:
    streams = [
        list(
            DataLoader(images(Resize((4, 4)), c), 8, True, seed=1, fields=("image", "label", "key"))
        )
        for c in CONTAINERS
    ]
    assert all(same(stream, streams[0]) for stream in streams)


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


def test_crops_too_are_torchs_seeds() -> None:
    torch.manual_seed(1)
    first, other = (next(iter(DataLoader(images(), SAMPLES)))[0] for _ in range(2))
    assert not torch.equal(first, other)
    torch.manual_seed(1)
    assert torch.equal(next(iter(DataLoader(images(), SAMPLES)))[0], first)


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


@FEW
@given(ORDER, SEED, st.integers(1, SAMPLES), st.data())
def test_another_number_of_ranks_goes_on_without_loss_or_repetition(
    order: str, seed: int, samples: int, data: st.DataObject
) -> None:
    position, seen, states = 0, [], [None]
    # Several parts of an epoch, each on other ranks, with another batch size and other threads.
    for part in range(3):
        world_size = data.draw(st.integers(1, 4), "world size")
        batch_size = data.draw(st.integers(1, 7), "batch size")
        threads = data.draw(THREADS, "threads")
        left = -(-(samples - position) // (world_size * batch_size))
        batches = data.draw(st.integers(0, left), "batches") if part < 2 else left
        ranks, after = [], []
        for rank in range(world_size):
            loader = make(
                samples,
                batch_size,
                order=order,
                seed=seed,
                shard=(rank, world_size),
                num_workers=threads,
            )
            # All ranks have the same state, so any of them will do.
            state = states[rank % len(states)]
            if state is not None:
                loader.load_state_dict(state)
            ranks.append(indices(itertools.islice(iter(loader), batches)))
            after.append(loader.state_dict())
        states = after
        assert all(state == states[0] for state in states)
        seen += flat([flat(list(step)) for step in zip(*ranks, strict=True)])
        position = states[0]["position"]
        if states[0]["epoch"]:
            break
    whole = make_order(order, samples, seed, 0)(np.arange(samples)).tolist()
    # At the end of what is not full, the epoch's beginning fills up.
    assert seen[:samples] == whole
    assert len(seen) - samples < 4


def test_the_state_after_an_epoch_is_the_beginning_of_the_next_one() -> None:
    loader = make(SAMPLES, 8, seed=3, shuffle=True, num_workers=2)
    at_first = loader.state_dict()
    assert (at_first["epoch"], at_first["position"]) == (0, 0)
    first, second = indices(loader), None
    state = loader.state_dict()
    assert (state["epoch"], state["position"]) == (1, 0)
    second = indices(loader)
    other = make(SAMPLES, 8, seed=3, shuffle=True)
    other.load_state_dict(state)
    assert indices(other) == second
    other.load_state_dict(at_first)
    assert indices(other) == first


def test_without_a_seed_the_state_has_the_epochs() -> None:
    torch.manual_seed(1)
    loader = DataLoader(images(), 8, shuffle=True, **WITH_INDEX, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    state, rest = loader.state_dict(), list(iterator)
    torch.manual_seed(99)
    other = DataLoader(images(), 8, shuffle=True, **WITH_INDEX)
    other.load_state_dict(state)
    assert same(list(other), rest)


def test_another_epoch_than_the_states_begins_anew() -> None:
    loader = make(SAMPLES, 8, seed=3, shuffle=True)
    next(iter(loader))
    state = loader.state_dict()
    loader.load_state_dict(state)
    with pytest.warns(UserWarning, match="epoch 0, position 8"):
        loader.set_epoch(4)
    assert loader.state_dict() == {**state, "epoch": 4, "number": 4, "named": 4, "position": 0}
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
    "version": 2,
    "samples": SAMPLES,
    "seed": 3,
    "epoch": 0,
    "number": 0,
    "named": -1,
    "position": 0,
    "plan": 0,
    "order": "random",
    "window": 0,
}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (None, "NoneType, not a dict"),
        ([], "list, not a dict"),
        ({}, "The state is empty: .*off the native path"),
        ({**GOOD, "samples": SAMPLES + 1}, f"{SAMPLES + 1} samples; this one has {SAMPLES}"),
        ({**GOOD, "order": "sequential"}, "order 'sequential', this loader's is 'random'"),
        ({**GOOD, "order": "quasi-random", "window": 5}, r"order QuasiRandom\(window=5\)"),
        ({**GOOD, "order": "quasi-random"}, r"QuasiRandom\(window=0\)"),
        ({**GOOD, "position": SAMPLES + 1}, f"position {SAMPLES + 1}"),
        ({**GOOD, "epoch": "1"}, "epoch '1'"),
        ({**GOOD, "epoch": -1}, "epoch -1"),
        ({**GOOD, "epoch": 1 << 70}, "epoch 1180591620717411303424"),
        ({**GOOD, "position": -1}, "position -1"),
        ({**GOOD, "position": [0]}, "position"),
        ({**GOOD, "number": 1}, "number 1"),
        ({**GOOD, "named": 1}, "named 1"),
        ({**GOOD, "version": 1}, "version 1"),
        ({**GOOD, "plan": 5}, "of another mixture or sampler"),
        ({**GOOD, "more": 1}, "has more, which"),
    ],
)
def test_wrong_states(state: Any, message: str) -> None:
    loader = make(SAMPLES, 8, seed=3, shuffle=True)
    with pytest.raises(UsageError, match=message):
        loader.load_state_dict(state)
    assert loader.state_dict() == GOOD


def test_a_state_needs_an_order_of_ours_and_the_native_path() -> None:
    """Lightning asks any loader for it at every checkpoint, so having none is no error."""
    for options, data, why in (
        ({"sampler": range(5)}, images(), "was given a sampler"),
        ({"batch_sampler": [[1, 2]]}, images(), "was given a sampler"),
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
        ({}, "sequential"),
        ({"shuffle": False}, "sequential"),
        ({"shuffle": True}, "random"),
        ({"shuffle": True, "order": "quasi-random"}, "quasi-random"),
        ({"order": QuasiRandom(window=3)}, "quasi-random"),
        ({"shuffle": False, "order": "sequential"}, "sequential"),
        ({"order": "random"}, "random"),
        ({"seed": 2}, "sequential"),
    ],
)
def test_which_order_is_meant(options: dict[str, Any], order: str) -> None:
    loader = DataLoader(images(), 8, **WITH_INDEX, **options)
    assert loader.state_dict()["order"] == order
    assert f"order: {order}" in loader.explain()
    found = flat(indices(loader))
    assert sorted(found) == list(range(SAMPLES))
    assert (found == sorted(found)) == (order == "sequential")


@given(st.integers(0, 200), st.integers(1, 20), st.integers(1, 6), st.booleans(), ORDER, SEED)
def test_the_sampler_for_torchs_path(
    samples: int, batch_size: int, world_size: int, drop_last: bool, order: str, seed: int
) -> None:
    samplers = [
        ShardedSampler(
            range(samples),
            batch_size,
            order=order,
            seed=seed,
            rank=rank,
            world_size=world_size,
            drop_last=drop_last,
        )
        for rank in range(world_size)
    ]
    everything = []
    for epoch in range(2):
        for sampler in samplers:
            sampler.set_epoch(epoch)
            found = list(sampler)
            assert len(sampler) == len(found) == len(samplers[0])
            everything += found
    if not drop_last and samples:
        assert set(everything) == set(range(samples))


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


def test_a_state_of_another_seed_is_refused() -> None:
    state = make(SAMPLES, 8, seed=3, shuffle=True).state_dict()
    with pytest.raises(UsageError, match=r"seed 3, this loader's is 4"):
        make(SAMPLES, 8, seed=4, shuffle=True).load_state_dict(state)


def test_a_seed_with_a_sampler_is_the_crops() -> None:
    def batches(seed: int, threads: int) -> Any:
        sampler = SequentialSampler(range(SAMPLES))
        return list(DataLoader(images(), 8, sampler=sampler, seed=seed, num_workers=threads))

    assert same(batches(3, 0), batches(3, 2))
    assert not same(batches(3, 0), batches(4, 0))
    with pytest.raises(UsageError, match="seed=3 with a sampler"):
        DataLoader(range(9), sampler=SequentialSampler(range(9)), seed=3)


@pytest.mark.parametrize("threads", [0, 2])
def test_a_transform_set_later_counts(threads: int) -> None:
    data = images(Resize((2, 3)))
    loader = DataLoader(data, 8, num_workers=threads)
    assert next(iter(loader))[0].shape == (8, 3, 2, 3)
    data.transform = Resize((4, 5))
    assert next(iter(loader))[0].shape == (8, 3, 4, 5)
    data.target_transform = float
    assert next(iter(loader))[1].dtype == torch.float64
    under_torch = torch.utils.data.DataLoader(data, 8)
    assert next(iter(under_torch))[0].shape == (8, 3, 4, 5)
    data.transform = Resize((6, 7))
    assert next(iter(under_torch))[0].shape == (8, 3, 6, 7)


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


@pytest.mark.parametrize("threads", [0, 2])
def test_torchs_seed_gives_the_same_epoch_again(threads: int) -> None:
    loader = DataLoader(images(), 8, shuffle=True, **WITH_INDEX, num_workers=threads)
    torch.manual_seed(3)
    first, second = list(loader), list(loader)
    torch.manual_seed(3)
    assert same(list(loader), first)
    assert same(list(loader), second)
    assert not same(first, second)


@pytest.mark.parametrize("native", [True, False])
def test_the_epoch_may_be_set_on_the_sampler(native: bool) -> None:
    def numbers(loader: Any) -> list[int]:
        return flat(indices(loader)) if native else torch.cat(list(loader)).tolist()

    def new() -> Any:
        if native:
            return make(SAMPLES, 8, order="random", seed=3, num_workers=2)
        return DataLoader(range(SAMPLES), 8, order="random", seed=3)

    loader = new()
    epochs = [numbers(loader) for _ in range(6)]
    other = new()
    other.sampler.set_epoch(5)
    assert numbers(other) == epochs[5]
    other.sampler.set_epoch(1)
    assert numbers(other) == epochs[1]
    assert numbers(other) == epochs[2]
    other.sampler.set_epoch(2)  # the same once more
    assert numbers(other) == epochs[2]


def epoch_loaders() -> dict[str, Any]:
    """Loaders of each kind, whose epochs differ."""
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
    """Samples that only torch's own loader takes."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> Any:
        return number, number, number


EPOCH_LOADERS = (
    "native", "sharded", "quasi-random", "mixture", "sampler", "planned", "device", "torch",
    "torch's workers", "given",
)  # fmt: skip


def sampler_to_set(loader: Any) -> Any:
    """Return the sampler whose epoch Lightning sets."""
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
def test_passes_that_count_on_from_the_epoch_that_was_set(kind: str) -> None:
    """As under Lightning's CombinedLoader, where shorter loaders are iterated several times."""
    loader = epoch_loaders()[kind]
    loader.set_epoch(1)
    list(loader)
    begun = iter(loader)
    next(begun)
    state, epochs = loader.state_dict(), {2: list(begun), 3: list(loader)}
    loader.set_epoch(2)
    whole = list(loader)
    resumed = epoch_loaders()[kind]
    for epoch, expected in ((1, epochs[2]), (2, whole)):
        resumed.load_state_dict(state)
        begun = iter(resumed)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            sampler_to_set(resumed).set_epoch(epoch)
            assert same(list(begun), expected)
        assert sum("set_epoch" in str(one.message) for one in told) == epoch - 1
        assert same(list(resumed), epochs[3])


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


def test_a_refused_state_changes_nothing() -> None:
    loader = DeviceLoader(
        DataLoader(subset(SAMPLES), 4, seed=3, num_workers=2, **WITH_INDEX), "cpu"
    )
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    with pytest.raises(UsageError):
        loader.load_state_dict({"version": 0})
    with pytest.raises(UsageError):
        loader.set_epoch(-1)
    assert loader.state_dict() == state


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


@pytest.mark.filterwarnings("ignore:epoch . has ended")
@pytest.mark.parametrize("kind", ["sampler", "batch sampler"])
def test_a_samplers_state_at_an_epochs_end_begins_the_next_one(kind: str) -> None:
    """In torch's own loader, saved after the last batch."""

    def made() -> Any:
        if kind == "sampler":
            sampler = RepeatSampler(np.ones(10), seed=2)
            return sampler, torch.utils.data.DataLoader(Numbers(), 5, sampler=sampler)
        batches = TokenBudgetBatches(Numbers(), np.ones(SAMPLES, int), 8, seed=2)
        return batches, torch.utils.data.DataLoader(Numbers(), batch_sampler=batches)

    sampler, loader = made()
    whole, states = [], []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        for batch in loader:
            whole.append(batch)
            states.append((epoch, sampler.state_dict()))
    for step, (own, state) in enumerate(states):
        for first in {own, state["epoch"]}:
            resumed, loader = made()
            resumed.load_state_dict(state)
            found = []
            for epoch in range(first, 3):
                resumed.set_epoch(epoch)
                found += loader
            assert same(found, whole[step + 1 :])
