"""Samples with targets, delivered exactly once in drawn runs, and the same in each."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from typing import Any

import pytest
import target_data
import torch
from target_data import ROWS, plain

from fastdata import DataLoader, ImageDataset
from fastdata.decode import Limits

#: Runs that are drawn.
RUNS = int(os.environ.get("FASTDATA_CAMPAIGN_TARGET_RUNS", "6"))
SEED = int(os.environ.get("FASTDATA_CAMPAIGN_SEED", "0"))
_FIELDS = (*target_data.FIELDS, "index")


def _samples(batches: Iterable[Any]) -> list[Any]:
    found = []
    for batch in batches:
        if isinstance(batch[0], tuple):
            found += batch
            continue
        images, target, *valid = batch
        parts = {name: getattr(one, "list", lambda one=one: one)() for name, one in target.items()}
        for slot, image in enumerate(images):
            sample = {name: one[slot] for name, one in parts.items()}
            found.append((image, {**sample, "index": int(sample["index"])}))
            if valid and not valid[0][slot]:
                assert not image.any()
                assert not sample["mask"].any()
                assert not sample["masks"].any()
                found.pop()
    return found


def _numbers(samples: Iterable[Any]) -> list[int]:
    return [target["index"] for _, target in samples]


def _loader(
    transform: Any, workers: int, most: int | None, collate_fn: Any = list, **options: Any
) -> Any:
    dataset = target_data.images(transform, fields=_FIELDS, limits=Limits(most))
    about = {"num_workers": workers, "collate_fn": collate_fn, "require_native": True}
    return DataLoader(dataset, seed=SEED, **about, **options)


@pytest.mark.filterwarnings("ignore:.* could not be decoded")
def test_samples_with_targets_come_once(v2: Any) -> None:
    """Over ranks and epochs, with bad samples, resumed with other threads."""
    transform = target_data.training(v2)
    images = (one["image"] for one in ImageDataset(target_data.dataset(), fields=["image"]))
    sizes = [one.width * one.height for one in images]
    most = sorted(sizes)[ROWS * 3 // 4]
    bad = {row for row, size in enumerate(sizes) if size > most}
    alone = _samples(_loader(transform, 0, None, order="sequential"))
    expected = {target["index"]: plain((image, target)) for image, target in alone}
    draw = random.Random(SEED)
    for _ in range(RUNS):
        on_error = draw.choice(["raise", "skip", "zero"])
        options: dict[str, Any] = {
            "batch_size": draw.choice([1, 3, 5]),
            "order": draw.choice(["random", "sequential", "quasi-random"]),
            "drop_last": draw.random() < 0.3,
            "on_error": on_error,
            "collate_fn": None if on_error == "zero" else draw.choice([list, None]),
        }
        most_of_run = None if on_error == "raise" else most
        good = set(range(ROWS)) - (bad if most_of_run else set())
        world = draw.choice([1, 2, 3])
        delivered: list[Any] = []
        for rank in range(world):

            def loader(rank: int = rank) -> Any:
                workers = draw.choice([0, 1, 2, 4])
                return _loader(transform, workers, most_of_run, shard=(rank, world), **options)

            whole = loader()
            first, second = _samples(whole), plain(_samples(whole))
            delivered += first
            begun = loader()
            batches, stop = iter(begun), draw.randint(0, len(begun) - 1)
            part = _samples(next(batches) for _ in range(stop))
            resumed = loader()
            resumed.load_state_dict(begun.state_dict())
            assert plain([*part, *_samples(resumed)]) == plain(first), (options, rank, stop)
            assert plain(_samples(resumed)) == second, (options, rank, stop)
        numbers = _numbers(delivered)
        assert set(numbers) <= good
        if not options["drop_last"]:
            assert set(numbers) == good, options
        if on_error == "raise" and options["collate_fn"] is list:
            # The last batches of ranks are padded with other draws of samples.
            once = [at for at, one in enumerate(delivered) if plain(one) == expected[numbers[at]]]
            assert len({numbers[at] for at in once}) == len(once) > len(numbers) - world


def _last(image: Any, target: Any) -> Any:
    """Return a sample as it is, in a way that fastdata cannot follow."""
    return image, dict(target)


def test_torchs_path_delivers_the_same(v2: Any) -> None:
    steps = [v2.Resize((48, 56)), v2.RandomHorizontalFlip(1.0), v2.CenterCrop(40)]
    steps += [v2.SanitizeBoundingBoxes(), v2.ToImage()]
    native = target_data.images(v2.Compose(steps), fields=_FIELDS)
    slow = target_data.images(v2.Compose([*steps, _last]), fields=_FIELDS)
    about: dict[str, Any] = {"batch_size": 7, "collate_fn": list}
    expected = _samples(DataLoader(native, require_native=True, **about))
    torchs = torch.utils.data.DataLoader
    with pytest.warns(match="the core does not do _last"):
        loaders = [DataLoader(slow, num_workers=workers, **about) for workers in (0, 2)]
    for loader in (*loaders, torchs(native, num_workers=2, **about), torchs(slow, **about)):
        for (image, target), (other, wanted) in zip(_samples(loader), expected, strict=True):
            torch.testing.assert_close(image, other, rtol=0, atol=1)
            assert list(target) == list(wanted)
            for name, one in target.items():
                if not isinstance(one, torch.Tensor):
                    assert one == wanted[name]
                    continue
                assert type(one) is type(wanted[name])
                near = 1e-4 if name in ("boxes", "keypoints") else 0
                torch.testing.assert_close(one, wanted[name], rtol=0, atol=near)
