"""Arguments that torch's constructor accepts or refuses."""

from __future__ import annotations

import itertools
import warnings
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from loader_data import images
from torch.utils.data import ConcatDataset, IterableDataset, RandomSampler, SequentialSampler

from fastdata import DataLoader
from fastdata.errors import UsageError
from fastdata.transforms import Resize

Torchs = torch.utils.data.DataLoader


class Stream(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


DATA: dict[str, Any] = {
    "images": lambda: images(Resize((4, 4))),
    "a list": lambda: [1, 2, 3],
    "a stream": Stream,
}

#: Arguments that torch takes, refuses, or fails for in the first pass.
ARGUMENTS: list[tuple[str, Any]] = [
    *(("batch_size", value) for value in (2, None, 0, -1, 1.5, "2", True, np.int64(2))),
    *(("shuffle", value) for value in (True, False, None, 3, "??", 0, np.True_)),
    ("sampler", [0, 1]),
    ("sampler", 3),
    ("sampler", SequentialSampler(range(3))),
    ("sampler", RandomSampler(range(3))),
    ("batch_sampler", [[0, 1]]),
    ("batch_sampler", 3),
    *(("num_workers", value) for value in (np.int32(0), torch.tensor(0), False, -1, None, "many")),
    ("collate_fn", list),
    *(("pin_memory", value) for value in (False, None, 0)),
    *(("drop_last", value) for value in (True, None, 0, 3, np.False_)),
    *(("timeout", value) for value in (0, 1.5, np.float32(2), Fraction(1, 2), -1, None, "1")),
    ("worker_init_fn", print),
    *(("generator", value) for value in (torch.Generator(), None, 3)),
    *(("prefetch_factor", value) for value in (None, 2, -1, 0)),
    *(("persistent_workers", value) for value in (None, False, True, 0)),
    *(("multiprocessing_context", value) for value in (None, "spawn", "no", 3)),
    *(("pin_memory_device", value) for value in ("", None)),
    *(("in_order", value) for value in (None, True, False)),
]


def outcome(loader: Any, data: Any, options: dict[str, Any]) -> Any:
    """Torch's words where it refuses; else whether the first pass ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            made = loader(data, **options)
        except Exception as error:
            return error
        try:
            list(made)
        except Exception:
            return False
        return True


def compare(name: str, options: dict[str, Any]) -> None:
    theirs = outcome(Torchs, DATA[name](), options)
    ours = outcome(DataLoader, DATA[name](), options)
    if isinstance(theirs, ValueError):
        assert str(ours) == str(theirs)
        assert type(ours) is type(theirs)
    elif isinstance(theirs, Exception):
        assert isinstance(ours, Exception)
    elif theirs:
        assert ours is True, ours


@pytest.mark.parametrize("name", DATA)
def test_each_argument_is_taken_or_refused_as_by_torch(name: str) -> None:
    # Torch takes anything for true; a stream's shuffle it checks.
    refused = [("shuffle", "??"), ("shuffle", 3)]
    for argument, value in ARGUMENTS:
        if (argument, value) in refused and name != "a stream":
            continue
        compare(name, {argument: value})


@pytest.mark.parametrize("name", DATA)
def test_combinations_are_refused_in_torchs_words(name: str) -> None:
    for one, other in itertools.combinations(ARGUMENTS, 2):
        if one[0] == other[0]:
            continue
        options = dict([one, other])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                Torchs(DATA[name](), **options)
            except ValueError as error:
                wanted = error
            except TypeError:
                continue
            else:
                continue
            with pytest.raises(ValueError, match="") as refused:  # noqa: PT011
                DataLoader(DATA[name](), **options)
        assert str(refused.value) == str(wanted), options


@pytest.mark.parametrize(
    "path", ["imagenet-train-lmdb", Path("photos"), b"photos", ConcatDataset(["a", "b"])]
)
def test_a_path_is_no_dataset(path: Any) -> None:
    with pytest.raises(UsageError, match=r"is a path, not a dataset\n.*ImageDataset\(path"):
        DataLoader(path, 2)


@pytest.mark.parametrize("workers", [np.int64(2), torch.tensor(2), True])
def test_threads_may_be_any_whole_number(workers: Any) -> None:
    loader = DataLoader(images(Resize((4, 4))), 5, num_workers=workers, prefetch_factor=np.int8(3))
    assert f"{int(workers)} decode thread" in loader.explain()
    assert len(list(loader)) == len(loader)
