"""`transforms.Schedule`: another transform in each epoch, on every path."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from loader_data import images, same
from torch.utils.data import Subset

from fastdata import DataLoader
from fastdata.errors import UsageError
from fastdata.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop, Schedule, Views


def crop(epoch: int) -> Any:
    return Compose([RandomResizedCrop(max(12 + 4 * epoch, 16)), RandomHorizontalFlip()])


def unknown(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone()


def crop_and_more(epoch: int) -> Any:
    return Compose([crop(epoch), unknown])


def scheduled(**options: Any) -> DataLoader[Any]:
    return DataLoader(images(Schedule(crop)), 10, shuffle=True, seed=3, **options)


def plain(epoch: int) -> list[Any]:
    loader = DataLoader(images(crop(epoch)), 10, shuffle=True, seed=3)
    loader.set_epoch(epoch)
    return list(loader)


def sides(batches: Any) -> set[int]:
    return {batch[0].shape[-1] for batch in batches}


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "persistent_workers": True}])
def test_each_epoch_has_the_batches_of_its_transform(options: Any) -> None:
    loader = scheduled(require_native=True, **options)
    for epoch in range(4):
        assert same(list(loader), plain(epoch))
        assert f"schedule: this is epoch {epoch}'s" in loader.explain()
        assert f"RandomResizedCrop(({max(12 + 4 * epoch, 16)}," in loader.explain()
    loader.set_epoch(1)
    assert same(list(loader), plain(1))


def test_a_state_goes_on_with_its_epochs_transform() -> None:
    loader = scheduled(num_workers=2)
    loader.set_epoch(2)
    batches = iter(loader)
    taken = [next(batches) for _ in range(3)]
    state = loader.state_dict()
    resumed = scheduled()
    resumed.load_state_dict(state)
    assert same(taken + list(resumed), plain(2))
    assert same(list(resumed), plain(3))


def test_a_pass_keeps_the_transform_that_it_began_with() -> None:
    loader = scheduled(num_workers=2, persistent_workers=True)
    loader.set_epoch(1)
    first = iter(loader)
    begun = [next(first)]
    second = list(loader)
    assert same(begun + list(first), plain(1))
    assert same(second, plain(2))


def test_an_epoch_set_after_iter_has_its_own_transform() -> None:
    loader = scheduled(num_workers=2)
    batches = iter(loader)
    loader.set_epoch(2)
    assert same(list(batches), plain(2))


@pytest.mark.filterwarnings("ignore::fastdata.errors.SlowPathWarning")
@pytest.mark.parametrize("first", [0, 1])
def test_an_epoch_set_after_iter_stays_on_the_path(first: int) -> None:
    dataset = images(Schedule(lambda epoch: crop_and_more(epoch) if epoch % 2 else crop(epoch)))
    loader = DataLoader(dataset, 10, seed=3)
    loader.set_epoch(first)
    batches = iter(loader)
    loader.set_epoch(first + 1)
    with pytest.raises(UsageError):
        next(batches)
    assert sides(loader) == {16 + 4 * first}


@pytest.mark.filterwarnings("ignore::fastdata.errors.SlowPathWarning")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("subset", [False, True])
def test_off_the_native_path(workers: int, subset: bool) -> None:
    dataset: Any = images(Schedule(crop_and_more))
    if subset:
        dataset = Subset(dataset, range(20))
    loader = DataLoader(dataset, 10, num_workers=workers)
    assert not loader.explain().startswith("native")
    assert [sides(loader) for _ in range(3)] == [{16}, {16}, {20}]


@pytest.mark.parametrize("workers", [0, 2])
def test_in_torchs_own_loader(workers: int) -> None:
    schedule = Schedule(crop)
    loader = torch.utils.data.DataLoader(images(schedule), 10, num_workers=workers)
    for epoch, side in ((0, 16), (5, 32), (1, 16)):
        schedule.set_epoch(epoch)
        assert sides(loader) == {side}
    dataset = images(schedule)
    assert dataset[0][0].shape == (3, 16, 16)


def test_what_a_schedule_cannot_do_is_an_error() -> None:
    inside = Schedule(crop)
    for outer in (Compose([inside, RandomHorizontalFlip()]), Views(inside, count=2)):
        with pytest.raises(UsageError, match="no loader names its epoch"):
            DataLoader(images(outer), 10)
    with pytest.raises(UsageError, match=r"does not reach workers that persist.* unknown"):
        DataLoader(images(Schedule(crop_and_more)), 10, num_workers=2, persistent_workers=True)
    with pytest.raises(UsageError, match="epoch 0: transform 0, 5, cannot be called"):
        DataLoader(images(Schedule(lambda epoch: 5)), 10)  # type: ignore[arg-type, return-value]
    with pytest.raises(UsageError, match="cannot be called"):
        Schedule(5)  # type: ignore[arg-type]
