"""timm's transforms, those of the real package (make test-recipes): draws, pixels, reasons."""

from __future__ import annotations

import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from core_pixels import whole_recipe
from loader_data import SAMPLES, WITH_INDEX, images, same
from PIL import Image
from recipe_packages import need
from test_pixel_programs import (
    COUNT,
    SIZE,
    assert_same_distribution,
    keys_of,
    program_of,
)
from timm_calls import recording
from torchvision_calls import Call
from torchvision_stub import import_torchvision

from fastdata import DataLoader, DeviceLoader
from fastdata.plan.draws import epoch_key, sample_keys
from fastdata.transforms.compile import compile_recipe
from fastdata.transforms.outcomes import Refusal

need("timm")

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::fastdata.errors.FallbackWarning"),
]


@pytest.fixture(scope="module")
def tv() -> Any:
    return import_torchvision().transforms


@pytest.fixture(scope="module")
def data(tv: Any) -> Any:
    import timm.data

    return timm.data


def seed(number: int) -> None:
    random.seed(number)
    np.random.seed(number)
    torch.manual_seed(number)


# --- policies: what is drawn -----------------------------------------------------------------

POLICIES = [
    "rand-m9-mstd0.5-inc1",
    "rand-m9-n3-mstd0.5",
    "rand-m15-mmax15-mstd1-inc1-p0.8",
    "rand-m7-mstd101-n1",
    "rand-mstd1-tweights-n4",
    "rand-m8-inc1-t3a",
    "rand-m6-n5-t3aw",
    "original",
    "originalr-mstd1",
    "v0-mstd0.5",
    "v0r",
    "3a",
]


def made(data: Any, policy: str, **options: Any) -> Any:
    made = data.create_transform(SIZE[::-1], is_training=True, auto_augment=policy, **options)
    return made.transforms[2]


def canonical(calls: Any) -> tuple[Call, ...]:
    """Calls without what does nothing, and with the size of the result left out."""
    found: list[Call] = []
    for name, values in calls:
        values = tuple(values)[:10]
        if name == "affine" and np.allclose(values[:6], (1, 0, 0, 0, 1, 0), atol=1e-9):
            continue
        if (name, values) == ("posterize", (8.0,)) or name in ("crop", "pad"):
            continue
        found.append((name, values))
    return tuple(found)


def theirs(transform: Any, count: int) -> list[tuple[Call, ...]]:
    seed(1)
    image = Image.new("RGB", SIZE)
    found = []
    with recording() as calls:
        for _ in range(count):
            transform(image)
            found.append(canonical(calls))
            calls.clear()
    return found


def ours(tv: Any, transform: Any, count: int) -> list[tuple[Call, ...]]:
    program = program_of(tv.Compose([tv.Resize(SIZE[::-1]), transform]))
    return [canonical(program.draw(key, *SIZE)[0]) for key in keys_of(count)]


def rounded(calls: list[tuple[Call, ...]]) -> list[tuple[Call, ...]]:
    """Posterise's bits below 0 keep as little as 0 do."""
    return [
        tuple(
            (name, tuple(max(v, 0.0) for v in values)) if name == "posterize" else (name, values)
            for name, values in calls
        )
        for calls in calls
    ]


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_are_drawn_as_timm_draws_them(tv: Any, data: Any, policy: str) -> None:
    transform = made(data, policy)
    assert_same_distribution(ours(tv, transform, COUNT), rounded(theirs(transform, COUNT)))


# --- policies: pixels ------------------------------------------------------------------------


@pytest.mark.parametrize("magnitude", [0, 6.3, 10])
def test_operations_give_timms_pixels(tv: Any, data: Any, magnitude: float) -> None:
    """Either sign and either interpolation: one of all that timm gives is what the core gives."""
    from timm.data.auto_augment import NAME_TO_OP, AugmentOp

    hparams = {"translate_const": 20, "img_mean": (124, 116, 104)}
    crop = tv.CenterCrop((41, 57))
    for name in {*NAME_TO_OP} - {"GaussianBlurRand"}:
        if (name, magnitude) in (("Posterize", 0), ("PosterizeIncreasing", 10)):
            continue  # Pillow refuses to keep no bits
        op = AugmentOp(name, 1.0, magnitude, hparams)
        dataset = images(tv.Compose([crop, op, tv.PILToTensor()]))
        seed(1)
        batch, _, indices = next(iter(DataLoader(dataset, batch_size=13, **WITH_INDEX)))
        for got, index in zip(batch.permute(0, 2, 3, 1).numpy(), indices.tolist(), strict=True):
            cropped = crop(dataset.open_image(index).convert("RGB"))
            away = 255
            for _ in range(60):
                want = np.asarray(op(cropped)).astype(int)
                away = min(away, int(np.abs(got.astype(int) - want).max()))
                if away <= (name in ("Rotate", "ShearX", "ShearY")):
                    break
            assert away <= (name[:5] in ("Rotat", "Shear", "Trans")), (name, index)


# --- AugMix ----------------------------------------------------------------------------------


# --- geometry --------------------------------------------------------------------------------


def geometry_of(transform: Any, count: int = COUNT, size: tuple[int, int] = (500, 333)) -> Any:
    program = whole_recipe(transform).programs[0]
    keys = sample_keys(epoch_key(0, 0), np.arange(count))
    return program.draw(np.full(count, size[0]), np.full(count, size[1]), keys)


def test_crops_of_one_area_and_ratio_are_timms(data: Any) -> None:
    for area in (0.09, 0.2025, 0.36, 0.5):
        for ratio in (1.0, 0.75, 4 / 3):
            crop = data.RandomResizedCropAndInterpolation(32, (area, area), (ratio, ratio))
            for size in ((10, 10), (100, 100), (50, 200), (333, 500), (224, 224)):
                cut = geometry_of(crop, 1, size)["box"][0]
                _, _, height, width = crop.get_params(Image.new("L", size), crop.scale, crop.ratio)
                assert (cut[2] - cut[0], cut[3] - cut[1]) == (width, height)


@pytest.mark.parametrize("padding_mode", ["constant", "reflect", "edge", "symmetric"])
def test_crops_that_pad_give_timms_pixels(tv: Any, data: Any, padding_mode: str) -> None:
    from timm.data.transforms import CenterCropOrPad

    crop = CenterCropOrPad((90, 110), fill=(7, 8, 9), padding_mode=padding_mode)
    assert_pixels(tv.Compose([crop, tv.PILToTensor()]), 0)


def assert_pixels(transform: Any, levels: float) -> None:
    """The loader gives what the transform gives for each image, but for so many of its units."""
    dataset = images(transform)
    loader = DataLoader(dataset, batch_size=10, **WITH_INDEX)
    assert loader.explain().startswith("native"), loader.explain()
    seen = 0
    for batch, _, indices in loader:
        for got, index in zip(batch, indices.tolist(), strict=True):
            want = transform(dataset.open_image(index).convert("RGB"))
            assert got.dtype == want.dtype and got.shape == want.shape
            assert (got.float() - want.float()).abs().max() <= levels, index
            seen += 1
    assert seen == SAMPLES


# --- erasing ---------------------------------------------------------------------------------


# --- what else create_transform makes --------------------------------------------------------


# --- Mixup -----------------------------------------------------------------------------------

MIXUP: dict[str, dict[str, Any]] = {
    "batch": {"mixup_alpha": 0.8, "cutmix_alpha": 1.0},
    "pair": {"mixup_alpha": 0.8, "cutmix_alpha": 1.0, "mode": "pair"},
    "elem": {"mixup_alpha": 0.8, "cutmix_minmax": (0.3, 0.8), "mode": "elem", "prob": 0.7},
    "half": {"mixup_alpha": 0.8, "cutmix_alpha": 1.0, "mode": "half", "label_smoothing": 0.0},
}


def batches_of(transform: Any, **options: Any) -> list[Any]:
    options = {"seed": 3, "drop_last": True, "require_native": True, **options}
    return list(DataLoader(images(transform), 10, **options))


@pytest.mark.parametrize("mode", ["batch", "pair", "elem"])
@pytest.mark.parametrize("device", [None, "cpu"])
def test_mixup_mixes_the_loaders_batches(data: Any, mode: str, device: Any) -> None:
    transform = data.create_transform(24, is_training=True)
    mixup = data.Mixup(num_classes=3, **MIXUP[mode])
    mixing = lambda batch: mixup(*batch)  # noqa: E731
    mixed = batches_of(transform, batch_transform=mixing, num_workers=2, device=device)
    assert same(mixed, batches_of(transform, batch_transform=mixing, device=device))
    state = lambda batch: (*batch, np.random.get_state())  # noqa: E731
    plain = batches_of(transform, batch_transform=state, device=device)
    for (got, soft), (before, labels, state) in zip(mixed, plain, strict=True):
        np.random.set_state(state)
        want, wanted = mixup(before.clone(), labels)
        torch.testing.assert_close(got, want)
        torch.testing.assert_close(soft, wanted)
        assert not torch.equal(got, before)


@pytest.mark.parametrize("mode", MIXUP)
def test_fast_collate_mixup_keeps_the_native_path(data: Any, mode: str) -> None:
    transform = data.create_transform(24, is_training=True, use_prefetcher=True)
    collate = data.FastCollateMixup(num_classes=3, **MIXUP[mode])
    mixed = batches_of(transform, collate_fn=collate, num_workers=2)
    assert same(mixed, batches_of(transform, collate_fn=collate))
    plain = batches_of(transform, batch_transform=lambda batch: (*batch, np.random.get_state()))
    for (got, soft), (before, labels, state) in zip(mixed, plain, strict=True):
        np.random.set_state(state)
        samples = list(zip(before.numpy().copy(), labels.tolist(), strict=True))
        want, wanted = collate(samples)
        assert got.dtype == torch.uint8 and same([got, soft], [want, wanted])
        assert len(got) == (5 if mode == "half" else 10)


def test_fast_collate_is_the_batch_as_it_is(data: Any) -> None:
    from timm.data.loader import fast_collate

    transform = data.create_transform(24, use_prefetcher=True)
    loader = DataLoader(images(transform), 10, collate_fn=fast_collate, require_native=True)
    assert same(list(loader), list(DataLoader(images(transform), 10)))


# --- loaders ---------------------------------------------------------------------------------


def test_repeated_augmentation_draws_each_repeat_anew(
    data: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from timm.data.distributed_sampler import RepeatAugSampler

    dataset = images()
    for epoch in range(2):
        seen: list[tuple[int, bytes]] = []
        for rank in range(3):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", "3")
            sampler = RepeatAugSampler(dataset, 3, rank, num_repeats=4)
            loader = DataLoader(
                dataset, 5, sampler=sampler, seed=3, require_native=True, **WITH_INDEX
            )
            loader.set_epoch(epoch)
            found = [
                (index, image.numpy().tobytes())
                for batch, _, indices in loader
                for image, index in zip(batch, indices.tolist(), strict=True)
            ]
            # The sampler has heard of the epoch, too.
            assert [index for index, _ in found] == list(sampler)
            assert len(loader) == 4 and len(found) == len(sampler) == 18
            seen += found
        repeats = Counter(index for index, _ in seen)
        assert max(repeats.values()) == 4 and len(repeats) == 14
        # Of images of a few pixels crops may be the same.
        large = [one for one in seen if one[0] % 13 != 9]
        assert len(set(large)) == len(large) > 45


class Plain(torch.utils.data.Dataset[Any]):
    def __init__(self) -> None:
        self._images = images(None)
        self.transform: Any = None

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return self.transform(self._images.open_image(index)), self._images.row(index).label


def create_loader(data: Any, **options: Any) -> Any:
    return data.create_loader(
        Plain(),
        48,
        10,
        interpolation="bicubic",
        num_workers=0,
        device=torch.device("cpu"),
        **options,
    )


def replaced(data: Any, dtype: str, batch_transform: Any = None, **options: Any) -> Any:
    """Return the loader of docs/recipes.md that takes the place of create_loader."""
    transform = data.create_transform(48, interpolation="bicubic", use_prefetcher=True, **options)
    return DeviceLoader(
        DataLoader(images(transform), 10, require_native=True),
        "cpu",
        dtype=dtype,
        mean=data.IMAGENET_DEFAULT_MEAN,
        std=data.IMAGENET_DEFAULT_STD,
        batch_transform=batch_transform,
    )


def test_create_loaders_batches_for_evaluation(data: Any) -> None:
    theirs, ours = create_loader(data), replaced(data, "float32")
    assert len(theirs) == len(ours)
    for (want, wanted), (got, labels) in zip(theirs, ours, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
        assert same(labels, wanted)
        assert got.is_contiguous(memory_format=torch.channels_last)
    # timm subtracts and divides in half precision, too.
    theirs, ours = create_loader(data, img_dtype=torch.float16), replaced(data, "float16")
    for (want, _), (got, _) in zip(theirs, ours, strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=8e-3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"naflex": True, "is_training": True},
            "RandomResizedCropToSequence comes before .* it makes sequences of patches",
        ),
        ({"crop_border_pixels": 4}, "TrimBorder .* leave out crop_border_pixels"),
    ],
)
def test_what_is_not_known_says_what_to_do(data: Any, options: Any, words: str) -> None:
    refusal = compile_recipe(data.create_transform(224, **options))
    assert isinstance(refusal, Refusal)
    assert re.search(words, refusal.reason), refusal.reason


@pytest.mark.parametrize("prefetcher", [True, False])
def test_create_loader_over_our_loader(
    data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefetcher: bool
) -> None:
    """timm's train.py makes its loaders so; torch's name is the one line that is changed."""
    for split in ("train", "val"):
        for number in range(8):
            path = tmp_path / split / f"class{number}" / "0.jpg"
            path.parent.mkdir(parents=True)
            Image.new("RGB", (50 + number, 60)).save(path)
    monkeypatch.setattr(torch.utils.data, "DataLoader", DataLoader)
    mixup = data.FastCollateMixup(mixup_alpha=0.2, num_classes=8) if prefetcher else None
    for split in ("train", "val"):
        training = split == "train"
        dataset = data.create_dataset("torch/image_folder", root=str(tmp_path), split=split)
        loader = data.create_loader(
            dataset,
            input_size=(3, 32, 32),
            batch_size=4,
            is_training=training,
            use_prefetcher=prefetcher,
            re_prob=0.25 if training else 0,
            re_mode="pixel",
            auto_augment="rand-m9-mstd0.5-inc1" if training else None,
            interpolation="random" if training else "bicubic",
            num_workers=2,
            collate_fn=mixup if training else None,
            pin_memory=False,
            device=torch.device("cpu"),
            worker_seeding="all",
        )
        inner = loader.loader if prefetcher else loader
        assert isinstance(inner, DataLoader)
        for _ in range(2):
            batches = list(loader)
            assert all(images.dtype == torch.float32 for images, _ in batches)
            assert inner.explain().startswith("native"), inner.explain()
            if mixup is None or not training:
                assert sorted(torch.cat([each for _, each in batches]).tolist()) == list(range(8))
