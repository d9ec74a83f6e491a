"""DALI's loader beside the native one: same samples, labels, order, crops; nearly same pixels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from containers import pack_tree
from hypothesis import given, settings
from hypothesis import strategies as st
from loader_data import (
    CROPS,
    SAMPLES,
    WITH_INDEX,
    WITH_KEYS,
    folder,
    images,
    same,
    tree,
)
from scans import Scan
from torchvision_stub import import_torchvision

torch = pytest.importorskip("torch")
pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI (make setup)")

from fastdata import DataLoader, ImageDataset  # noqa: E402
from fastdata.dali import DALILoader  # noqa: E402
from fastdata.transforms import (  # noqa: E402
    CenterCrop,
    Compose,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    Views,
)

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
#: Of each component by itself.
SCANS = [Scan((component,)) for component in range(3)]
VALIDATION = Compose([Resize(40), CenterCrop(32)])
SHUFFLED: dict[str, Any] = {
    "batch_size": 10,
    "shuffle": True,
    "seed": 5,
    "num_workers": 2,
    **WITH_KEYS,
}


def differences(ours: list[Any], native: list[Any]) -> tuple[float, float]:
    """The largest mean absolute difference of an image, and of a value; all else is equal."""
    assert len(ours) == len(native)
    means, most = [0.0], [0.0]
    for batch, expected in zip(ours, native, strict=True):
        assert same(batch[1:], expected[1:])
        assert batch[0].dtype == expected[0].dtype and batch[0].shape == expected[0].shape
        assert batch[0].stride() == expected[0].stride()
        far = (batch[0].double() - expected[0].double()).abs().flatten(1)
        means += far.mean(1).tolist()
        most.append(far.max().item())
    return max(means), max(most)


@pytest.mark.parametrize(
    ("container", "kind"),
    [
        ("lmdb", "original"),
        ("shards", "raw"),
        *(pytest.param(one, "jpeg", marks=pytest.mark.slow) for one in ("lmdb", "parquet")),
        *(pytest.param(one, "original", marks=pytest.mark.slow) for one in ("shards", "folder")),
    ],
)
def test_every_container_gives_the_native_epoch(container: str, kind: str) -> None:
    data = images(VALIDATION, container, kind=kind)
    loader, native = DALILoader(data, **SHUFFLED), DataLoader(data, **SHUFFLED)
    for _ in range(2):
        found = list(loader)
        assert sorted(index for batch in found for index in batch[2].tolist()) == [*range(SAMPLES)]
        mean, most = differences(found, list(native))
        assert mean < 1.5 and most <= 3


def test_centre_crops_of_photographs_are_within_a_level_and_a_half(imagenet_sample: Path) -> None:
    root = folder()
    for number, path in enumerate(sorted(imagenet_sample.glob("train/*/*.JPEG"))[:40]):
        link = root / "tree" / f"class{number % 2}" / path.name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    pack_tree(root / "tree", root / "out", "lmdb")
    data = ImageDataset(root / "out", Compose([Resize(256), CenterCrop(224)]))
    mean, _ = differences(list(DALILoader(data, **SHUFFLED)), list(DataLoader(data, **SHUFFLED)))
    assert mean < 1.5


@pytest.mark.parametrize(
    ("transform", "mean"),
    {
        "crops": (CROPS, 1.5),
        "two sides": (Compose([Resize((33, 21)), RandomHorizontalFlip(1.0)]), 1.5),
        "bicubic": (RandomResizedCrop((20, 31), interpolation="bicubic"), 2.0),
        "lanczos": (RandomResizedCrop(24, interpolation="lanczos"), 2.5),
        # Some images are smaller, and padded; the others are cut, and nothing else.
        "a centre": (CenterCrop(60), 0.0),
        "cifar": (Compose([RandomCrop(28, pad_if_needed=True), RandomHorizontalFlip()]), 0.0),
    }.values(),
)
def test_crops_and_flips_are_the_native_ones(transform: Any, mean: float) -> None:
    data = images(transform)
    ours, native = list(DALILoader(data, **SHUFFLED)), list(DataLoader(data, **SHUFFLED))
    assert differences(ours, native)[0] <= mean


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("normalised", [True, False])
def test_floats_are_the_bytes_normalised(dtype: str, normalised: bool) -> None:
    values = (MEAN, STD) if normalised else ((0, 0, 0), (1, 1, 1))
    mean, std = (torch.tensor(value).view(3, 1, 1) for value in values)
    data = images(Compose([CROPS, Normalize(*values, dtype=dtype)]))
    floats = list(DALILoader(data, **SHUFFLED))
    for (got, *_), (pixels, *_) in zip(floats, DALILoader(images(), **SHUFFLED), strict=True):
        assert got.dtype == getattr(torch, dtype)
        assert got.is_contiguous(memory_format=torch.channels_last)
        want = (pixels.float() / 255 - mean) / std
        step = {"float32": 1e-5, "float16": 2e-3, "bfloat16": 2e-2}[dtype]
        assert torch.allclose(got.float(), want, atol=step, rtol=step)


def test_a_folder_that_nothing_is_known_of() -> None:
    data = import_torchvision().datasets.ImageFolder(tree(), CROPS)
    ours, native = DALILoader(data, **SHUFFLED), DataLoader(data, **SHUFFLED)
    for _ in range(2):
        assert differences(list(ours), list(native))[0] < 1.5


def test_two_views() -> None:
    data = images(Views(CROPS, count=2))
    for (ours, *rest), (native, *expected) in zip(
        DALILoader(data, **SHUFFLED), DataLoader(data, **SHUFFLED), strict=True
    ):
        assert same(rest, expected)
        assert not same(ours[0], ours[1])
        for view, other in zip(ours, native, strict=True):
            assert (view.int() - other.int()).abs().float().mean() < 1.5


@settings(max_examples=12)
@given(data=st.data())
def test_order_shards_and_state_are_the_native_ones(data: st.DataObject) -> None:
    world_size = data.draw(st.integers(1, 3), label="world size")
    options: dict[str, Any] = {
        "batch_size": data.draw(st.integers(1, 20), label="batch size"),
        "order": data.draw(st.sampled_from(["random", "sequential", "quasi-random"])),
        "seed": data.draw(st.integers(0, 9)),
        "shard": (data.draw(st.integers(0, world_size - 1), label="rank"), world_size),
        "drop_last": data.draw(st.booleans(), label="drop last"),
        "num_workers": data.draw(st.sampled_from([0, 2])),
        **WITH_INDEX,
    }
    epoch = data.draw(st.integers(0, 3), label="epoch")
    expected = []
    for kind in (DataLoader, DALILoader):
        loader = kind(images(), **options)
        loader.set_epoch(epoch)
        assert len(loader) == len(iter(loader))
        loader.set_epoch(epoch)
        expected.append([(labels.tolist(), index.tolist()) for _, labels, index in loader])
    assert expected[0] == expected[1]
    done = data.draw(st.integers(0, len(expected[0])), label="batches done")
    first, other = DALILoader(images(), **options), DALILoader(images(), **options)
    first.set_epoch(epoch)
    iterator = iter(first)
    seen = [next(iterator)[2].tolist() for _ in range(done)]
    other.load_state_dict(first.state_dict())
    rest = [index.tolist() for _, _, index in other]
    if done < len(expected[0]) or not done:
        assert seen + rest == [index for _, index in expected[0]]


@pytest.mark.parametrize("ahead", [0, 4])
def test_torchs_samplers(ahead: int) -> None:
    options: dict[str, Any] = {
        "num_workers": ahead,
        "prefetch_factor": ahead or None,
        "seed": 2,
        **WITH_INDEX,
    }
    batches = [[5, 3], [52], [*range(30)], [0, 0, 1]]  # also larger ones than those before
    ours, native = (
        list(kind(images(VALIDATION), batch_sampler=batches, **options))
        for kind in (DALILoader, DataLoader)
    )
    assert [index.tolist() for *_, index in ours] == batches
    assert differences(ours, native)[1] <= 3


@pytest.mark.parametrize(("ahead", "planned"), [(None, 5), (1, 1)])
def test_batches_are_planned_for_all_of_dalis_queue(ahead: int | None, planned: int) -> None:
    drawn: list[list[int]] = []
    rows = ([at, at + 1] for at in range(0, 24, 2))
    sampler = (drawn.append(batch) or batch for batch in rows)
    options = {"prefetch_queue_depth": 3, "prefetch_factor": ahead, "num_workers": 1}
    batches = iter(DALILoader(images(), batch_sampler=sampler, **options))
    next(batches)
    assert planned <= len(drawn) <= planned + 1


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["uint8", "float32", "float16", "bfloat16"])
def test_a_gpus_batches_are_nearly_the_cpus(dtype: str) -> None:
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    steps = [VALIDATION] if dtype == "uint8" else [VALIDATION, Normalize(MEAN, STD, dtype=dtype)]
    data = images(Compose(steps))
    loader, reference = DALILoader(data, device="cuda", **SHUFFLED), DataLoader(data, **SHUFFLED)
    for _ in range(3):
        for ours, native in zip(loader, reference, strict=True):
            assert ours[0].is_cuda and ours[1].is_cuda and ours[2].is_cuda
            assert ours[2].tolist() == native[2].tolist()
            far = (ours[0].cpu().double() - native[0].double()).abs().mean()
            assert far < (3 if dtype == "uint8" else 3 / 255 / min(STD))


@pytest.mark.gpu
def test_a_gpus_batches_may_be_used_on_any_stream() -> None:
    """A batch that the consumer's stream reads late is not overwritten."""
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    streams = [torch.cuda.Stream() for _ in range(2)]
    loader = DALILoader(images(), device="cuda", **SHUFFLED)
    expected = [batch[0].cpu() for batch in loader]
    loader.set_epoch(0)
    seen = []
    for number, batch in enumerate(loader):
        streams[number % 2].wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(streams[number % 2]):
            torch.cuda._sleep(20_000_000)
            seen.append(batch[0].clone())
            batch[0].record_stream(streams[number % 2])
        del batch
    torch.cuda.synchronize()
    assert all(torch.equal(one.cpu(), other) for one, other in zip(seen, expected, strict=True))
