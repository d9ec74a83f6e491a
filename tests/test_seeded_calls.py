"""Off the native path, `seed=` repeats a run's pixels and leaves global generators alone."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from loader_data import as_it_is, images, same, tree
from PIL import Image
from torchvision_stub import import_torchvision

torch = pytest.importorskip("torch")

from torch.utils.data import Dataset, Subset, default_collate  # noqa: E402

from fastdata import DataLoader  # noqa: E402
from fastdata.errors import UsageError  # noqa: E402
from fastdata.transforms import Compose, RandomResizedCrop  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore::fastdata.errors.SlowPathWarning"),
]

SAMPLES = 12


@pytest.fixture(autouse=True)
def alone() -> None:
    """Cancel requests that earlier tests left to fsspec's thread: retries draw their pauses."""
    asyn = sys.modules.get("fsspec.asyn")
    loop = None if asyn is None else asyn.loop[0]
    if loop is not None:
        for task in asyncio.all_tasks(loop):
            loop.call_soon_threadsafe(task.cancel)


class Noise:
    def __call__(self, image: Any) -> Any:
        drawn = random.random() + np.random.random() + torch.rand(())
        return image.double() + drawn


class Files(Dataset[Any]):
    def __init__(self, transform: Any) -> None:
        self.paths = sorted(tree().rglob("*.jpg"))[:SAMPLES]
        self.transform = transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        return self.transform(Image.open(self.paths[index]).convert("RGB")), index


def with_lambda() -> Any:
    """Torchvision's pipeline with one Lambda: worker processes call it after the native crop."""
    tv = import_torchvision().transforms
    steps = [tv.RandomResizedCrop(8), tv.PILToTensor(), tv.Lambda(as_it_is)]
    return Subset(
        images(tv.Compose([*steps, tv.RandomErasing(0.9, value="random")])), range(SAMPLES)
    )


def with_v2() -> Any:
    v2 = import_torchvision().transforms.v2
    steps = [v2.Lambda(as_it_is), v2.RandomResizedCrop(8), v2.ToImage(), v2.ColorJitter(0.5)]
    return Subset(images(v2.Compose(steps)), range(SAMPLES))


def plain() -> Any:
    tv = import_torchvision().transforms
    return Files(tv.Compose([tv.RandomResizedCrop(8), tv.ToTensor(), Noise()]))


def tail() -> Any:
    return Subset(images(Compose([RandomResizedCrop(8), Noise()])), range(SAMPLES))


slow = pytest.mark.slow
DATASETS: dict[str, tuple[str, Callable[[], Any]]] = {
    "a Lambda": ("workers", with_lambda),
    "a tail": ("workers", tail),
    "v2, a Lambda first": ("torch", with_v2),
    "files": ("torch", plain),
}


@pytest.mark.parametrize(
    "name",
    [
        "a Lambda",
        "files",
        pytest.param("a tail", marks=slow),
        pytest.param("v2, a Lambda first", marks=slow),
    ],
)
def test_a_seed_governs_pixels(name: str) -> None:
    path, make = DATASETS[name]
    dataset = make()
    loader = DataLoader(dataset, 5, shuffle=True, seed=7)
    assert loader.explain().startswith(path)
    states = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    first, second = list(loader), list(loader)
    assert states == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]
    assert sum(len(labels) for _, labels in first) == SAMPLES
    assert not same(first, second)  # another epoch
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    again = DataLoader(dataset, 5, shuffle=True, seed=7)
    assert same(list(again), first) and same(list(again), second)
    assert not same(list(DataLoader(dataset, 5, shuffle=True, seed=8)), first)
    again.set_epoch(1)  # in the middle of the second epoch
    assert same(list(islice(iter(again), 1, None)), second[1:])


@pytest.mark.parametrize("name", ["a Lambda", "files"])
def test_numbers_of_workers_change_nothing(name: str) -> None:
    dataset = DATASETS[name][1]()
    alone = DataLoader(dataset, 5, shuffle=True, seed=7)
    want = [list(alone), list(alone)]
    for workers, persistent in ((1, False), (3, True)):
        loader = DataLoader(
            dataset, 5, shuffle=True, seed=7, num_workers=workers, persistent_workers=persistent
        )
        assert same(list(loader), want[0]) and same(list(loader), want[1])


def noisy_label(label: int) -> float:
    return label + random.random() + np.random.random() + torch.rand(()).item()


def test_a_seed_governs_labels_on_the_native_path() -> None:
    dataset = images(RandomResizedCrop(8))
    dataset.target_transform = noisy_label
    loader = DataLoader(dataset, 5, shuffle=True, seed=7, require_native=True)
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    first, second = ([labels for _, labels in loader] for _ in range(2))
    assert before == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]
    assert not any(map(torch.equal, first, second))
    again = DataLoader(dataset, 5, shuffle=True, seed=7, num_workers=2)
    for want in (first, second):
        assert all(map(torch.equal, want, (labels for _, labels in again)))


def test_a_sample_that_comes_twice_draws_twice() -> None:
    """Padding fills up the batches of several ranks, and repeats samples."""
    dataset = Subset(images(Compose([RandomResizedCrop(8), Noise()])), [3])
    ranks = [list(DataLoader(dataset, 1, seed=2, shard=(rank, 2))) for rank in (0, 1)]
    assert not same(*ranks)
    again = [list(DataLoader(dataset, 1, seed=2, shard=(rank, 2))) for rank in (0, 1)]
    assert all(map(same, ranks, again))


def noisy_collate(samples: Any) -> Any:
    found, labels = default_collate(samples)
    return found + random.random() + np.random.random() + torch.rand(()), labels


def noisy_batch(batch: Any) -> Any:
    found, labels = batch
    return found + torch.rand(()), labels


@pytest.mark.parametrize("workers", [0, 2])
def test_collate_functions_and_batch_transforms(workers: int) -> None:
    native: Any = images(RandomResizedCrop(8))
    for dataset, options in (
        (native, {"collate_fn": noisy_collate}),
        (plain(), {"collate_fn": noisy_collate}),
        (plain(), {"batch_transform": noisy_batch, "device": "cpu"}),
    ):
        loaders = [DataLoader(dataset, 4, seed=3, num_workers=workers, **options) for _ in range(2)]
        assert same(*map(list, loaders))


def test_without_a_seed_torch_draws() -> None:
    dataset = plain()
    epochs = []
    for kind in (torch.utils.data.DataLoader, DataLoader):
        random.seed(4), np.random.seed(4), torch.manual_seed(4)
        next(iter(kind(dataset, 4)))  # which draws a seed of its own, or torch's
        random.seed(4), np.random.seed(4), torch.manual_seed(4)
        epochs.append(dataset[0][0])
    assert torch.equal(*epochs)


def test_seeds_that_cannot_be_honoured_are_errors() -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(3))

    with pytest.raises(UsageError, match="IterableDataset"):
        DataLoader(Stream(), 2, seed=3)
    with pytest.raises(UsageError, match="sampler"):
        DataLoader(plain(), 2, seed=3, sampler=range(3))
