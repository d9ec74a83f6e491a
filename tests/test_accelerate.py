"""Accelerate over loaders that it replaces by its own."""

from __future__ import annotations

import importlib.util
from typing import Any

import pytest
from loader_data import WITH_INDEX, images
from torch.utils.data import Subset

from fastdata import DataLoader, DeviceLoader
from fastdata.errors import SlowPathWarning, UsageError

pytestmark = pytest.mark.filterwarnings("ignore::fastdata.errors.FallbackWarning")


def loader(**options: Any) -> Any:
    given: dict[str, Any] = {"shuffle": True, "seed": 5, "num_workers": 1, **WITH_INDEX, **options}
    return DataLoader(Subset(images(), range(23)), 4, **given)


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


class Doubled:
    """An iterator of a script's, which passes attributes on."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        return {name: value * 2 for name, value in next(self._batches).items()}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)


class Wrapper:
    """A loader of a script's."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def __iter__(self) -> Any:
        return Doubled(iter(self._loader))


def test_a_scripts_wrapper_stays_in_place(accelerate: Any) -> None:
    accelerate.Accelerator(cpu=True)
    options: Any = {"shard": (0, 1), "fields": ("index",), "batch_transform": None}
    doubled = [batch["index"] for batch in DeviceLoader(Wrapper(loader(**options)), "cpu")]
    assert len(doubled) == 6
    for twice, once in zip(doubled, loader(**options), strict=True):
        assert twice.tolist() == (2 * once["index"]).tolist()


def test_preparing_a_loader_that_does_not_shard_is_told_of_once(accelerate: Any) -> None:
    native = loader(fields=None, batch_transform=None, seed=None)
    with pytest.warns(SlowPathWarning, match='Give the DataLoader shard="auto"') as told:
        list(accelerate.Accelerator(cpu=True).prepare(native))
    assert len(told) == 1
    with pytest.raises(UsageError, match="require_native=True, but Accelerate"):
        accelerate.Accelerator(cpu=True).prepare(
            loader(fields=None, batch_transform=None, seed=None, require_native=True)
        )
