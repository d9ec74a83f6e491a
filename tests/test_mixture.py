"""Mixtures of datasets: each row of a source in turn, in the shares that were asked for."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from field_data import image_file
from loader_data import CONTAINERS, SAMPLES, dataset, images, same
from test_concat import SMALL, broken, image_folder, shifted
from torch.utils.data import ConcatDataset, Subset

from fastdata import DataLoader, ImageDataset, Mixture
from fastdata.errors import SlowPathWarning, UsageError
from fastdata.samplers import RepeatSampler, TokenBudgetBatches
from fastdata.transforms import (
    CenterCrop,
    Compose,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomSolarize,
    Resize,
    Views,
)

pytestmark = pytest.mark.filterwarnings("ignore::fastdata.errors.FallbackWarning")

FIELDS = ("image", "label", "index")
WEIGHTS = {"a": 0.6, "b": 0.3, "c": 0.1}


def sources(transform: Any = SMALL) -> dict[str, Any]:
    about: dict[str, Any] = {"transform": transform, "fields": FIELDS}
    return {
        "a": ImageDataset(dataset(), **about),
        "b": Subset(ImageDataset(dataset("shards"), **about), range(0, 40, 2)),
        "c": ImageDataset(dataset("folder"), **about),
    }


def mixed(transform: Any = SMALL, **options: Any) -> Mixture:
    options = {"weights": WEIGHTS, "samples": 200, "seed": 5, **options}
    fields = options.pop("fields", (*FIELDS, "source"))
    return Mixture(sources(transform), fields=fields, **options)


def loader_of(data: Any, size: int = 16, **options: Any) -> Any:
    return DataLoader(data, size, require_native=True, **options)


def rows_of(batches: Any) -> list[tuple[int, int]]:
    return [
        pair
        for batch in batches
        for pair in zip(batch["source"].tolist(), batch["index"].tolist(), strict=True)
    ]


@pytest.mark.parametrize("threads", [0, 2])
def test_samples_are_those_of_the_sources(threads: int) -> None:
    parts = list(sources().values())
    data = mixed()
    loader = loader_of(data, num_workers=threads)
    assert "a Mixture of" in loader.explain()
    assert "order: by the Mixture" in loader.explain()
    for epoch in range(2):
        seen = 0
        for batch in loader:
            pixels, labels, rows, places = batch.values()
            assert places.dtype == rows.dtype == torch.int64
            for image, label, row, place in zip(pixels, labels, rows, places, strict=True):
                sample = parts[place][row // 2 if place == 1 else row]
                wanted, wanted_label, wanted_row = sample.values()
                assert (label, row) == (wanted_label, wanted_row)
                assert np.abs(image.numpy().astype(int) - wanted.numpy().astype(int)).max() <= 1
            seen += len(rows)
        assert seen == len(loader.dataset) == 200
        assert data.epoch == epoch


def test_torchs_own_loader_takes_it() -> None:
    data = mixed()
    for epoch in range(2):
        data.set_epoch(epoch)
        torchs = list(torch.utils.data.DataLoader(data, 16))
        loader = loader_of(mixed())
        loader.set_epoch(epoch)
        ours = list(loader)
        assert rows_of(torchs) == rows_of(ours)
        for one, other in zip(torchs, ours, strict=True):
            assert (one["image"].int() - other["image"].int()).abs().max() <= 1
    assert data[-1]["index"] == data[199]["index"]


def test_a_state_of_another_mixture_is_refused() -> None:
    state = loader_of(mixed()).state_dict()
    other_weights = {**WEIGHTS, "a": 0.5}
    for options in ({"seed": 6}, {"weights": other_weights}, {"samples": 199}):
        with pytest.raises(UsageError, match=r"another mixture|this one has 199"):
            loader_of(mixed(**options)).load_state_dict(state)
    # Weights of later epochs may change before they begin.
    later = loader_of(mixed(weights=lambda epoch: other_weights if epoch else WEIGHTS))
    later.load_state_dict(state)
    later.set_epoch(2)
    with pytest.raises(UsageError, match="another mixture"):
        loader_of(mixed()).load_state_dict(later.state_dict())


def test_each_batch_has_one_source_if_asked() -> None:
    counts: Counter[int] = Counter()
    by_rank = []
    for rank in range(3):
        data = mixed(group=8, samples=8 * 1001)
        batches = list(loader_of(data, 8, shard=(rank, 3), fields=("source",)))
        assert {len(batch["source"]) for batch in batches} == {8}
        places = [set(batch["source"].tolist()) for batch in batches]
        assert all(len(one) == 1 for one in places)
        by_rank.append([one.pop() for one in places])
        counts.update(by_rank[-1])
    steps = len(by_rank[0])
    assert steps == 334
    # 1,002 batches, of which one repeats the first.
    assert abs(counts[0] - 601) <= 2
    assert all(abs(Counter(one)[0] / steps - 0.6) < 0.08 for one in by_rank)
    with pytest.raises(UsageError, match=r"batch_size=12 does not divide 8, the group="):
        loader_of(mixed(group=8), 12)
    halves = loader_of(mixed(group=8), 4)
    halves.load_state_dict({**halves.state_dict(), "at": 4})
    assert all(len(set(batch["source"].tolist())) == 1 for batch in halves)
    late = loader_of(mixed(group=8), 8)
    late.load_state_dict({**late.state_dict(), "at": 4})
    with pytest.raises(UsageError, match="at position 4 with batch_size=8"):
        iter(late)


SHARES: dict[str, tuple[dict[str, Any], int, list[float]]] = {
    "lengths": ({"weights": None}, 0, [53 / 126, 20 / 126, 53 / 126]),
    "temperature": (
        {"weights": None, "temperature": 2},
        0,
        (np.sqrt([53, 20, 53]) / np.sqrt([53, 20, 53]).sum()).tolist(),
    ),
    "equal": ({"temperature": float("inf")}, 0, [1 / 3] * 3),
    "another scale": ({"weights": {"a": 6e300, "b": 3e300, "c": 1e300}}, 0, [0.6, 0.3, 0.1]),
    "a function": ({"weights": lambda epoch: {"a": epoch, "b": 1, "c": 1}}, 2, [0.5, 0.25, 0.25]),
}


@pytest.mark.parametrize("name", SHARES)
def test_shares_are_as_asked(name: str) -> None:
    options, epoch, wanted = SHARES[name]
    data = mixed(samples=10_000, **options)
    loader = loader_of(data, 500, fields=("source",))
    loader.set_epoch(epoch)
    places = np.concatenate([batch["source"].numpy() for batch in loader])
    for window in places.reshape(-1, 1000):
        assert np.abs(np.bincount(window, minlength=3) - 1000 * np.array(wanted)).max() < 1
    assert data.shares(epoch) == pytest.approx(wanted)


def test_weights_beside_datasets_and_lengths_of_epochs() -> None:
    parts = sources()
    pairs = {name: (parts[name], weight) for name, weight in WEIGHTS.items()}
    assert Mixture(pairs).shares(0) == pytest.approx(list(WEIGHTS.values()))
    assert len(Mixture(pairs)) == 126
    assert len(Mixture(pairs, group=8)) == 128
    endless = loader_of(Mixture(pairs, samples="endless"), 64, num_workers=1)
    for number, _batch in enumerate(endless):
        if number == 40:  # more than all sources have
            break
    far = loader_of(Mixture(pairs, samples="endless"), 64)
    far.load_state_dict({**far.state_dict(), "at": 10**12})
    assert len(next(iter(far))["image"]) == 64


def test_a_field_of_its_own_is_not_taken_for_the_source() -> None:
    hugging_face = pytest.importorskip("datasets")
    rows = {"image": [{"bytes": image_file(1)}] * 4, "source": [10, 11, 12, 13]}
    stored = hugging_face.Dataset.from_dict(rows).cast_column("image", hugging_face.Image())
    chosen, other = (
        ImageDataset(stored, SMALL, fields=fields) for fields in (("image", "source"), ("image",))
    )
    fields = ("image", "source")
    own = loader_of(Mixture({"a": chosen, "b": chosen}), 8)
    assert sorted(next(iter(own))["source"].tolist()) == [10, 10, 11, 11, 12, 12, 13, 13]
    with pytest.raises(UsageError, match="source 'b' have no 'source'"):
        Mixture({"a": chosen, "b": other}, fields=fields).fields  # noqa: B018
    with pytest.raises(UsageError, match="stores a field 'source' of its own"):
        loader_of(Mixture({"a": other, "b": other}, fields=fields))


def test_fields_are_those_in_common_or_asked_for() -> None:
    parts = {
        "a": ImageDataset(dataset(), SMALL, fields=("key", "image", "label")),
        "b": ImageDataset(dataset("shards"), SMALL, fields=("label", "image", "index")),
        "c": image_folder(),
    }
    assert Mixture(parts).fields == ("image", "label")
    data = Mixture(parts, fields=("source", "label", "image"), samples=90)
    for batches in (loader_of(data, 30), torch.utils.data.DataLoader(data, 30)):
        for batch in batches:
            places, labels, pixels = batch.values()
            assert (labels.dtype, places.dtype) == (torch.int64,) * 2
            assert pixels.shape[0] == len(places)
    by_name = next(iter(loader_of(data, 30, fields=("key", "source"))))
    assert list(by_name) == ["key", "source"]
    with pytest.raises(UsageError, match="source 'b' have no 'key'"):
        Mixture(parts, fields=("key",)).fields  # noqa: B018
    with pytest.raises(UsageError, match="has no 'source'"):
        loader_of(images(SMALL), fields=("source",))


def test_a_target_transform_is_of_its_source() -> None:
    parts = {"a": images(SMALL), "b": ImageDataset(dataset("shards"), SMALL, shifted)}
    data = Mixture(parts, fields=("label", "source"), samples=100)
    for batch in loader_of(data, 20):
        assert ((batch["label"] >= 100) == (batch["source"] == 1)).all()


def test_a_bad_sample_is_named_and_replaced_by_the_mixtures_shares(tmp_path: Any) -> None:
    good, bad = broken(tmp_path)
    parts = {"good": ImageDataset(good, SMALL), "bad": ImageDataset(bad, SMALL)}
    data = Mixture(parts, {"good": 0, "bad": 1}, samples=40, fields=("image", "label", "source"))
    with pytest.raises(Exception, match=f"{bad}: sample 2"):
        list(loader_of(data, 4))
    loader = loader_of(data, 4, on_error="skip")
    with pytest.warns(UserWarning, match="10 samples could not be decoded"):
        batches = list(loader)
    assert {place for batch in batches for place in batch["source"].tolist()} == {1}
    assert sum(len(batch["image"]) for batch in batches) == 40


def test_a_subset_of_a_mixture_and_a_mixture_in_a_concatenation() -> None:
    data = mixed()
    part = loader_of(Subset(data, [5, 0, 199]), 3)
    assert rows_of(part) == [(data[at]["source"], data[at]["index"]) for at in (5, 0, 199)]
    with pytest.warns(SlowPathWarning, match="part 1 of the ConcatDataset is a Mixture"):
        DataLoader(ConcatDataset([images(SMALL), mixed(fields=("image", "label"))]), 4)


def test_a_sampler_may_choose_positions() -> None:
    data = mixed(samples=20)
    sampler = RepeatSampler([2.0] * 20, seed=1)
    found = Counter(rows_of(loader_of(data, 5, sampler=sampler)))
    assert found == Counter({row: 2 * n for row, n in Counter(rows_of(loader_of(data, 5))).items()})


TRANSFORMS: dict[str, tuple[Any, ...]] = {
    "bytes": (SMALL, Compose([Resize((16, 16)), RandomHorizontalFlip(1.0)]), CenterCrop(16)),
    "floats": (
        Compose([SMALL, Normalize((0.5,) * 3, (0.2,) * 3)]),
        Compose([CenterCrop(16), Normalize((0.1, 0.2, 0.3), (0.5,) * 3)]),
        Compose([SMALL, RandomSolarize(100, 1.0), Normalize((0.5,) * 3, (0.2,) * 3)]),
    ),
    "views": (Views(SMALL, count=2), Views(CenterCrop(16), count=2), Views(SMALL, count=2)),
}


@pytest.mark.parametrize(("name", "threads"), [("bytes", 0), ("floats", 2), ("views", 2)])
def test_each_source_has_its_own_transform(name: str, threads: int) -> None:
    """Equal to what each dataset gives of itself, natively and by Pillow."""
    parts = {
        one: ImageDataset(dataset(container), transform, fields=FIELDS)
        for one, container, transform in zip(
            "abc", ("lmdb", "shards", "folder"), TRANSFORMS[name], strict=True
        )
    }
    weights = {"a": 1, "b": 1, "c": 1}
    data = Mixture(parts, weights, samples=159, fields=(*FIELDS, "source"))
    loader = loader_of(data, 16, num_workers=threads)
    alone = {}
    for place, part in enumerate(parts.values()):
        for batch in loader_of(part, 16, num_workers=threads):
            images_of, _, rows = batch.values()
            views = images_of if isinstance(images_of, list) else [images_of]
            for slot, row in enumerate(rows.tolist()):
                alone[place, row] = [view[slot] for view in views]
    seen = []
    for batch in loader:
        pixels, _, rows, places = batch.values()
        views = pixels if isinstance(pixels, list) else [pixels]
        for slot, pair in enumerate(zip(places.tolist(), rows.tolist(), strict=True)):
            assert same([view[slot] for view in views], alone[pair])
            seen.append(pair)
    assert sorted(seen) == [(place, row) for place in range(3) for row in range(SAMPLES)]
    place, row = seen[0]
    wanted = list(parts.values())[place][row]["image"]
    first = wanted[0] if isinstance(wanted, list) else wanted
    assert (alone[place, row][0].float() - first.float()).abs().max() <= (
        1 if name != "floats" else 0.05
    )
    assert "; or " in loader.explain()


def test_crops_of_several_transforms_are_drawn_alike_in_workers() -> None:
    def data() -> Mixture:
        small = Compose([RandomResizedCrop(16, (0.1, 0.2)), RandomHorizontalFlip()])
        parts = {"a": images(RandomResizedCrop(16)), "b": images(small, "shards")}
        return Mixture(parts, samples=80)

    native = loader_of(data(), 16, seed=4, num_workers=2)
    with pytest.warns(SlowPathWarning):
        workers = DataLoader(data(), 16, seed=4, worker_init_fn=lambda worker: None)
    assert all(map(same, workers, native))


def test_forty_sources_where_a_process_may_open_few_files(
    tmp_path: Path, limited: Callable[[int], None]
) -> None:
    parts = {}
    for at in range(40):
        container = CONTAINERS[at % len(CONTAINERS)]
        copy = dataset(container)
        if container != "folder":
            copy = Path(shutil.copytree(copy, tmp_path / f"{at}"))
        parts[f"{at}"] = ImageDataset(copy, SMALL, fields=FIELDS)
    limited(len(os.listdir("/proc/self/fd")) + 100)
    data = Mixture(parts, fields=(*FIELDS, "source"), samples=40 * SAMPLES)
    loader = loader_of(data, 64, num_workers=2)
    for _ in range(2):
        seen = Counter(rows_of(loader))
        assert len(seen) == 40 * SAMPLES and set(seen.values()) == {1}


def tabled(n: float) -> ImageDataset:
    table = {"image": np.zeros((2, 9, 9, 3), np.uint8), "n": [n, n]}
    return ImageDataset.from_table(table, transform=SMALL, fields=("image", "n"))


WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "no dict": (lambda: Mixture([images()]), "sources="),  # type: ignore[arg-type]
    "nothing": (lambda: Mixture({}), "sources="),
    "one weight": (lambda: Mixture({"a": (images(), 1), "b": images()}), "'b' has no weight"),
    "weights twice": (lambda: Mixture({"a": (images(), 1)}, {"a": 1}), "given twice"),
    "other names": (lambda: mixed(weights={"a": 1}), "Give one for each of 'a', 'b', 'c'"),
    "negative": (lambda: mixed(weights={**WEIGHTS, "a": -1}), "numbers from 0"),
    "nan": (lambda: mixed(weights={**WEIGHTS, "a": float("nan")}), "numbers from 0"),
    "zeros": (lambda: mixed(weights=dict.fromkeys("abc", 0)), "one of them positive"),
    "a number": (lambda: Mixture({1: images()}), "not named by a string"),  # type: ignore[dict-item]
    "no dataset": (lambda: Mixture({"a": 3}), "no numbered"),
    "a path": (lambda: Mixture({"a": "train-lmdb"}), "(?s)is a path.*ImageDataset"),
    "a path and a weight": (lambda: Mixture({"a": (Path("train"), 1)}), "is a path"),
    "paths": (lambda: Mixture({"a": ["0.tar", "1.tar"]}), "is a path"),
    "a path inside": (lambda: Mixture({"a": Subset("train", [0])}), "is a path"),  # type: ignore[arg-type]
    "cold": (lambda: mixed(temperature=0), "above 0"),
    "a rule": (lambda: mixed(samples="all"), "one of sum, endless"),
    "too many": (lambda: mixed(samples=1 << 70), "samples="),
    "half": (lambda: mixed(group=1.5), "group=1.5"),
    "groups": (lambda: mixed(group=7), "multiple of 7"),
    "empty": (lambda: Mixture({"a": Subset(images(), [])}), "'a' has no samples"),
    "nested": (lambda: Mixture({"a": mixed()}), "'a' is a Mixture"),
    "shuffle": (lambda: loader_of(mixed(), shuffle=True), "Leave both out"),
    "order": (lambda: loader_of(mixed(), order="quasi-random"), "Leave both out"),
    "batches": (
        lambda: loader_of(
            mixed(), 1, batch_sampler=TokenBudgetBatches(mixed(), np.ones(200, int), 5)
        ),
        "a Mixture has others in each epoch",
    ),
    "fields": (lambda: mixed(fields=("caption",)).fields, "'a' have no 'caption'"),
    "unlike": (
        lambda: loader_of(
            Mixture({"a": images(SMALL), "b": images(Compose([SMALL, Normalize((0.5,), (0.2,))]))})
        ),
        "sources 'a' and 'b' of the Mixture have different transforms",
    ),
    "sizes": (
        lambda: loader_of(Mixture({"a": images(Resize((8, 9))), "b": images(Resize((7, 8)))})),
        r"'a' and 'b' .* 8 x 9 \(H x W\) and 7 x 8 \(H x W\)",
    ),
    "types": (
        lambda: loader_of(Mixture({name: tabled(n) for name, n in (("a", 1), ("b", 0.5))})),
        "have different types of n",
    ),
    "a loader's fields": (
        lambda: loader_of(Mixture({"a": images(), "b": images()}), fields=("caption",)),
        "source 'a' has no 'caption'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named(name: str) -> None:
    make, message = WRONG[name]
    with pytest.raises(UsageError, match=message):
        make()
