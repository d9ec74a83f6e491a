"""Beginning a pass some batches later; what Accelerate makes of loaders that it takes apart."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from loader_data import WITH_INDEX, images, same
from torch.utils.data import Subset

from fastdata import DataLoader
from fastdata.errors import SlowPathWarning, UsageError

pytestmark = pytest.mark.filterwarnings("ignore::fastdata.errors.FallbackWarning")


def loader(**options: Any) -> Any:
    given: dict[str, Any] = {"shuffle": True, "seed": 5, "num_workers": 1, **WITH_INDEX, **options}
    return DataLoader(Subset(images(), range(23)), 4, **given)


@pytest.mark.parametrize("shard", [None, (0, 2), (1, 2)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_pass_begins_later_and_the_next_one_is_whole(shard: Any, drop_last: bool) -> None:
    options = {"shard": shard, "drop_last": drop_last}
    whole = loader(**options)
    first, second = list(whole), list(whole)
    for count in (0, 1, 2, 100):
        skipping = loader(**options)
        batches = iter(skipping.skip_first_batches(count))
        assert len(batches) == max(len(first) - count, 0)
        assert same(list(batches), first[count:])
        assert same(list(skipping), second)


def test_what_is_skipped_is_not_decoded() -> None:
    skipping = loader().skip_first_batches(3)
    list(skipping)
    assert skipping.stats().samples == 23 - 12


def test_a_named_epoch_and_a_state_are_kept() -> None:
    whole = loader()
    whole.set_epoch(2)
    wanted = list(whole)
    skipping = loader()
    skipping.set_epoch(2)
    skipping.skip_first_batches(2)
    resumed = loader()
    resumed.load_state_dict(skipping.state_dict())
    resumed.skip_first_batches(1)
    assert same(list(skipping), wanted[2:])
    assert same(list(resumed), wanted[3:])
    named = loader(shard=(0, 1))
    named.sampler.set_epoch(2)  # as frameworks do
    assert same(list(named.skip_first_batches(2)), wanted[2:])


@pytest.mark.parametrize("count", [-1, 1.5, True, None, "2"])
def test_other_counts_are_refused(count: Any) -> None:
    with pytest.raises(UsageError, match="skip_first_batches"):
        loader().skip_first_batches(count)


@pytest.fixture(scope="module")
def accelerate() -> Any:
    if importlib.util.find_spec("accelerate") is None:
        pytest.skip("accelerate is not installed (make setup)")
    import accelerate
    import accelerate.data_loader

    return accelerate


@pytest.mark.parametrize(
    "options",
    [
        {"shard": (0, 1)},
        {"seed": None},
        {"seed": None, "shuffle": False},
        {"order": "quasi-random"},
    ],
)
def test_accelerates_function_takes_batches_by_another_loader_and_warns(
    accelerate: Any, options: Any
) -> None:
    native = loader(**options)
    list(native)  # which itself says nothing
    with pytest.warns(SlowPathWarning, match="skip_first_batches") as warned:
        list(accelerate.skip_first_batches(native, 2))
    assert len(warned) == 1
    if options == {"shard": (0, 1)}:
        native.set_epoch(0)
        assert same(list(native.skip_first_batches(2)), list(loader(shard=(0, 1)))[2:])


@pytest.mark.parametrize(
    "lost",
    [
        {"seed": 1},
        {"fields": ("image",)},
        {"batch_transform": lambda batch: batch},
        {"on_error": "skip"},
    ],
)
def test_what_torchs_loader_would_drop_is_no_loss_in_silence(accelerate: Any, lost: Any) -> None:
    given = {"fields": None, "batch_transform": None, "seed": None, **lost}
    with pytest.raises(UsageError, match=f"without {next(iter(lost))}"):
        accelerate.Accelerator(cpu=True).prepare(loader(**given))


def test_preparing_a_loader_that_does_not_shard_is_told_of_once(accelerate: Any) -> None:
    native = loader(fields=None, batch_transform=None, seed=None)
    with pytest.warns(SlowPathWarning, match='Give the DataLoader shard="auto"') as told:
        list(accelerate.Accelerator(cpu=True).prepare(native))
    assert len(told) == 1
    with pytest.raises(UsageError, match="require_native=True, but Accelerate"):
        accelerate.Accelerator(cpu=True).prepare(
            loader(fields=None, batch_transform=None, seed=None, require_native=True)
        )
