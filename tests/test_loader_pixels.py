"""The loader's pixels: against Pillow's, whatever the container, threads, format and transform."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fastdata.converters.packing import pack
from fastdata.converters.table import TableImages
from jpegs import picture
from loader_data import CROPS, SAMPLES, WITH_INDEX, WITH_KEYS, images, same
from PIL import Image
from torchvision_calls import apply

torch = pytest.importorskip("torch")

from fastdata import DataLoader, ImageDataset  # noqa: E402
from fastdata.plan.draws import epoch_key, sample_keys  # noqa: E402
from fastdata.transforms import (  # noqa: E402
    CenterCrop,
    Compose,
    Normalize,
    RandomCrop,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ResizeKeepRatio,
    Views,
)
from fastdata.transforms.compile import compile_recipe  # noqa: E402
from fastdata.transforms.recipe import Recipe  # noqa: E402
from fastdata.transforms.tree import native_program  # noqa: E402

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

# Python from 3.12 on warns of every fork in a process with threads; torch of few CPUs.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore::fastdata.errors.SlowPathWarning"),
]

# Resized to within a size, most images have zeros around them.
PADDED = {
    "padded": Compose([ResizeKeepRatio((32, 40), longest=1.0), CenterCrop((32, 40))]),
    "longer side bounded": Compose([Resize(24, max_size=33), RandomCrop(30, pad_if_needed=True)]),
}
TRANSFORMS = {
    "crops": CROPS,
    "bicubic": RandomResizedCrop((20, 31), interpolation="bicubic"),
    "validation": Compose([Resize(40), CenterCrop(32)]),
    "both sides": Compose([Resize((33, 21)), RandomHorizontalFlip(1.0)]),
    # Most images are smaller than that, so that zeros stand around them.
    "centre": CenterCrop(97),
    "cifar": Compose([RandomCrop(28, padding=6, pad_if_needed=True), RandomHorizontalFlip()]),
    "resized, then cropped": Compose([Resize(30), RandomCrop(28, padding=4)]),
    **PADDED,
}


def expected(dataset: ImageDataset, indices: Any, seed: int, epoch: int, view: int = 0) -> Any:
    recipe = compile_recipe(dataset.transform)
    assert isinstance(recipe, Recipe)
    program = recipe.programs[view if len(recipe.programs) > 1 else 0]
    rows = [dataset.row(int(i)) for i in indices]
    keys = sample_keys(epoch_key(seed, epoch), np.asarray(indices), view)
    drawn = program.draw([row.width for row in rows], [row.height for row in rows], keys)
    resample = Image.Resampling[program.filter.upper()]
    found = []
    for place, index in enumerate(indices):
        image = dataset.open_image(int(index)).crop(tuple(drawn["box"][place].tolist()))
        if program.pixels:
            image = image.resize(tuple(drawn["size"][place].tolist()), resample)
            calls, *_ = native_program(program.pixels).draw(int(keys[place]), *image.size)
            for operation, values in calls:
                image = apply(image, (operation, tuple(values)))
            found.append(np.asarray(image))
            continue
        size = tuple(drawn["size"][place].tolist())
        if size != image.size:
            image = image.resize(size, resample)
        x, y = drawn["window"][place].tolist()
        pixels = np.asarray(image.crop((x, y, x + program.size[0], y + program.size[1])))
        found.append(pixels[:, ::-1] if drawn["flip"][place] else pixels)
    return np.stack(found)


def all_of(dataset: ImageDataset, **options: Any) -> list[Any]:
    return list(DataLoader(dataset, **{"batch_size": 10, "seed": 3, **options}))


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("kind", ["original", "raw", "jpeg"])
def test_pixels_are_pillows(name: str, kind: str) -> None:
    dataset = images(TRANSFORMS[name], kind=kind)
    loader = DataLoader(dataset, 10, shuffle=True, seed=5, num_workers=2, **WITH_INDEX)
    assert "native" in loader.explain()
    for epoch in range(2):
        seen = []
        for batch, labels, indices in loader:
            seen += indices.tolist()
            assert batch.dtype == torch.uint8
            assert batch.is_contiguous(memory_format=torch.channels_last)
            height, width, _ = (want := expected(dataset, indices.numpy(), 5, epoch)).shape[1:]
            assert batch.shape == (len(indices), 3, height, width)
            assert batch.stride()[1] == 1 and batch.stride()[3] == 3
            got = batch.permute(0, 2, 3, 1).numpy().astype(int)
            assert np.abs(got - want).max() <= 1
            assert labels.tolist() == dataset.labels[indices.numpy()].tolist()
        assert sorted(seen) == list(range(SAMPLES))


@pytest.mark.filterwarnings("ignore::fastdata.errors.FallbackWarning")
@pytest.mark.parametrize("container", ["lmdb", "shards"])
def test_images_without_labels_that_the_core_declines(tmp_path: Path, container: str) -> None:
    """Their batches are gathered in Python, which has no labels to gather."""
    tree = tmp_path / "tree"
    tree.mkdir()
    wanted = {f"{number:02}.png": picture(40, 30, number) for number in range(20)}
    for name, pixels in wanted.items():
        Image.fromarray(pixels).save(tree / name)
    table = pa.table({"path": list(wanted)})
    pack(TableImages(table, tree), tmp_path / "packed", container=container, workers=1)
    dataset = ImageDataset(tmp_path / "packed", Resize((30, 40)), fields=("image", "key"))
    for batch in DataLoader(dataset, 4, num_workers=0, require_native=True):
        for image, key in zip(*batch.values(), strict=True):
            assert np.array_equal(image.permute(1, 2, 0).numpy(), wanted[f"{key}.png"])


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("normalised", [True, False])
@pytest.mark.parametrize("name", ["crops", "cifar"])
def test_floats_are_the_bytes_normalised(dtype: str, normalised: bool, name: str) -> None:
    kind = getattr(torch, dtype)
    values = (MEAN, STD) if normalised else ((0, 0, 0), (1, 1, 1))
    transform = Compose([TRANSFORMS[name], Normalize(*values, dtype=dtype)])
    floats = all_of(images(transform), num_workers=2)
    mean, std = (torch.tensor(value, dtype=torch.float64).view(3, 1, 1) for value in values)
    for (got, _), (pixels, _) in zip(floats, all_of(images(TRANSFORMS[name])), strict=True):
        assert got.dtype == kind and got.is_contiguous(memory_format=torch.channels_last)
        want = (pixels.double() / 255 - mean) / std
        # Half a unit in the last place, and what float32 arithmetic loses by subtracting.
        step = {"float32": 2**-24, "float16": 2**-11, "bfloat16": 2**-8}[dtype]
        assert ((got.double() - want).abs() <= step * want.abs() + 1e-6).all()


@pytest.mark.parametrize("threads", [0, 3])
def test_views_have_a_transform_each(threads: int) -> None:
    small = Compose([RandomResizedCrop(9), Normalize(MEAN, STD, dtype="float16")])
    dataset = images(Views(CenterCrop(97), CROPS, small))  # most need padding for the first
    for views, _, indices in all_of(dataset, num_workers=threads, **WITH_INDEX):
        assert [tuple(view.shape[2:]) for view in views] == [(97, 97), (24, 24), (9, 9)]
        assert views[2].dtype == torch.float16
        for number, view in enumerate(views):
            want = expected(dataset, indices.numpy(), 3, 0, number)
            got = view.permute(0, 2, 3, 1).double()
            if number == 2:
                got = (got * torch.tensor(STD) + torch.tensor(MEAN)) * 255
            assert np.abs(got.numpy() - want).max() <= (1.5 if number == 2 else 1)


def test_target_transform_batch_transform_and_keys() -> None:
    dataset = images()
    dataset.target_transform = lambda label: {"label": label, "half": label / 2}
    seen = []

    def transform(batch: Any) -> Any:
        seen.append((type(batch), len(batch)))
        return {"images": batch[0].float(), "rest": batch[1:]}

    plain = all_of(dataset, **WITH_KEYS)
    assert all(batch[1].keys() == {"label", "half"} for batch in plain)
    found = all_of(dataset, batch_transform=transform, num_workers=2)
    assert set(seen) == {(list, 2)}
    for batch, (pixels, labels, indices, keys) in zip(found, plain, strict=True):
        assert torch.equal(batch["images"], pixels.float())
        assert torch.equal(batch["rest"][0]["half"], labels["label"] / 2)
        assert batch["rest"][0]["half"].dtype == torch.float64
        assert keys == [dataset.row(i).key for i in indices.tolist()]


def test_fields_come_as_a_dict_in_their_order() -> None:
    dataset = images()
    plain = all_of(dataset, **WITH_KEYS)
    for fields in (("key", "image"), ("index",), ("label", "index", "image", "key")):
        seen = []

        def transform(batch: Any) -> Any:
            seen.append(list(batch))
            return batch

        found = all_of(dataset, fields=fields, num_workers=2, batch_transform=transform)
        assert seen == [list(fields)] * len(plain)
        for batch, elements in zip(found, plain, strict=True):
            expected = dict(zip(("image", "label", "index", "key"), elements, strict=True))
            assert list(batch) == list(fields)
            assert same(batch, {name: expected[name] for name in fields})


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["original", "raw"])
def test_torchs_own_loader_and_single_samples_have_the_same_pixels(workers: int, kind: str) -> None:
    dataset = images(TRANSFORMS["validation"], kind=kind)
    native = all_of(dataset, num_workers=2)
    theirs = list(torch.utils.data.DataLoader(dataset, 10, num_workers=workers))
    assert same([batch for batch, _ in theirs], [batch for batch, _ in native])
    assert same([labels for _, labels in theirs], [labels for _, labels in native])
    together = torch.cat([batch for batch, _ in native]).int()
    for index in range(SAMPLES):
        image, label = dataset[index]
        assert image.shape == (3, 32, 32) and image.dtype == torch.uint8
        assert (image.int() - together[index]).abs().max() <= 1
        assert label == dataset.labels[index]
