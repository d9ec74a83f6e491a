"""Batches of masks: those of every container are torchvision's, beside their images."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from containers import edit_manifest, pack_tree
from fastdata.converters import TableImages
from mask_calls import KINDS, as_png, mask_of, photograph
from PIL import Image

from fastdata import DataLoader, ImageDataset
from fastdata.errors import FastdataError, UsageError
from fastdata.transforms import CenterCrop, Views

ROWS = 14
CONTAINERS = (
    "lmdb",
    *(pytest.param(one, marks=pytest.mark.slow) for one in ("shards", "parquet", "folder")),
)


def _made(folder: Path, container: str, kind: str = "", **changed: Any) -> Path:
    rows = []
    for number in range(ROWS):
        pixels = photograph(number, 90 + number)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        data = as_png(mask_of(pixels, kind or KINDS[number % len(KINDS)]))
        data = changed.get(f"of_{number}", data)
        if data is not None:
            (folder / f"{number}-mask.png").write_bytes(data)
        mask = None if data is None else f"{number}-mask.png"
        rows.append({"path": f"{number}.png", "label": number % 3, "mask": mask})
    out = folder / container
    table = pa.Table.from_pylist(rows)
    source = TableImages(table, folder, files=["mask"], label="label")
    pack_tree(source, out, container)
    edit_manifest(out, _masks)
    return out


def _masks(manifest: dict[str, Any]) -> None:
    for field in manifest["fields"]:
        if field["name"] == "mask":
            field["kind"] = "mask"


@pytest.fixture(scope="module", params=CONTAINERS)
def packed(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _made(tmp_path_factory.mktemp("masks"), request.param)


@pytest.fixture(scope="module")
def grey(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _made(tmp_path_factory.mktemp("masks"), "shards", "L")


def _expected(path: Path, row: int, transform: Any) -> Any:
    from torchvision import tv_tensors

    folder = path.parent
    with Image.open(folder / f"{row}.png") as image, Image.open(folder / f"{row}-mask.png") as mask:
        return transform(image.convert("RGB"), tv_tensors.Mask(mask))


def _pipelines(v2: Any) -> dict[str, Any]:
    from torchvision import tv_tensors

    fills = {tv_tensors.Mask: 255, "others": 0}
    return {
        "nothing": [],
        "crop": [v2.Resize(60), v2.CenterCrop(120)],
        "cropped": [v2.CenterCrop(40), v2.Resize(30)],
        "warp": [v2.ToImage(), v2.RandomRotation((20, 20), fill=fills), v2.Resize(40)],
        "turn": [v2.RandomRotation((20, 20), fill=fills), v2.Resize(40)],
        "pad": [v2.Pad(7, fill=fills), v2.CenterCrop(50)],
        "flip": [v2.RandomHorizontalFlip(1.0), v2.Resize((33, 44)), v2.RandomVerticalFlip(1.0)],
        "colours": [v2.ColorJitter(0.4), v2.Grayscale(3), v2.Resize(40)],
    }


def _assert_same(found: Any, expected: Any) -> None:
    from torchvision import tv_tensors

    (image, mask), (other, wanted) = found, expected
    assert image.shape == other.shape
    assert isinstance(mask, tv_tensors.Mask)
    assert mask.dtype == wanted.dtype
    assert torch.equal(mask.as_subclass(torch.Tensor), wanted.as_subclass(torch.Tensor))


@pytest.mark.parametrize(
    "name", ["nothing", "crop", "cropped", "warp", "turn", "pad", "flip", "colours"]
)
def test_a_mask_is_what_torchvision_makes_of_it(v2: Any, packed: Path, name: str) -> None:
    steps = [*_pipelines(v2)[name], v2.ToImage()]
    native = ImageDataset(packed, transforms=v2.Compose(steps), fields=("image", "mask"))
    loader = DataLoader(native, 5, num_workers=2, collate_fn=list, require_native=True)
    samples = [sample for batch in loader for sample in batch]
    assert len(samples) == ROWS
    copied = pickle.loads(pickle.dumps(native))
    wide = [_WideMasks()] * (name == "flip")  # torch mirrors no uint16
    transform = v2.Compose([*wide, *steps])
    for row, sample in enumerate(samples):
        expected = _expected(packed, row, transform)
        for image, mask in (sample, copied.__getitems__([row])[0]):
            _assert_same(_WideMasks()(image, mask) if wide else (image, mask), expected)


class _WideMasks:
    def __call__(self, image: Any, mask: Any) -> Any:
        from torchvision import tv_tensors

        wide = mask.dtype == torch.uint16
        return image, tv_tensors.Mask(mask.to(torch.int32)) if wide else mask


def test_masks_of_one_kind_are_one_tensor_as_todtype_says(v2: Any, grey: Path) -> None:
    from torchvision import tv_tensors

    dtypes = {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}
    transform = v2.Compose([v2.Resize((50, 60)), v2.ToImage(), v2.ToDtype(dtypes, scale=True)])
    dataset = ImageDataset(grey, transforms=transform, fields=("image", "mask"))
    native = DataLoader(dataset, ROWS, num_workers=2, require_native=True)
    named = next(iter(DataLoader(dataset, ROWS, fields=("mask", "image"))))
    for loader in (native, torch.utils.data.DataLoader(dataset, ROWS)):
        images, masks = next(iter(loader))
        assert (images.dtype, masks.dtype) == (torch.float32, torch.int64)
        assert images.shape == (ROWS, 3, 50, 60) and masks.shape == (ROWS, 1, 50, 60)
        assert torch.equal(named["mask"], masks.as_subclass(torch.Tensor))
        for row, mask in enumerate(masks):
            wanted = _expected(grey, row, transform)[1]
            assert torch.equal(mask.as_subclass(torch.Tensor), wanted.as_subclass(torch.Tensor))


@pytest.mark.filterwarnings("ignore::fastdata.errors.SlowPathWarning")
@pytest.mark.parametrize("narrow", [True, False])
def test_masks_that_are_converted_first_are_torchvisions(v2: Any, grey: Path, narrow: bool) -> None:
    """Through another dtype, and with a fill that only that one has."""
    from torchvision import tv_tensors

    def to(dtype: torch.dtype) -> Any:
        return v2.ToDtype({tv_tensors.Mask: dtype, "others": None})

    fill = {tv_tensors.Mask: 1000, "others": 0}
    then = [to(torch.bool), to(torch.uint8)] if narrow else [to(torch.int64), v2.Pad(5, fill=fill)]
    transform = v2.Compose([v2.Resize((50, 60)), v2.ToImage(), *then])
    dataset = ImageDataset(grey, transforms=transform, fields=("image", "mask"))
    samples = [one for batch in DataLoader(dataset, 4, collate_fn=list) for one in batch]
    for row, sample in enumerate(samples):
        _assert_same(sample, _expected(grey, row, transform))


def test_masks_follow_what_is_drawn(v2: Any, tmp_path: Path) -> None:
    grey = {}
    for number in range(ROWS):
        with io.BytesIO(as_png(Image.fromarray(photograph(number, 90 + number)))) as file:
            grey[f"of_{number}"] = file.getvalue()
    path = _made(tmp_path, "shards", **grey)  # the photographs themselves
    transform = v2.Compose(
        [
            v2.RandomHorizontalFlip(),
            v2.RandomCrop(64, pad_if_needed=True),
            v2.RandomVerticalFlip(),
            v2.ToImage(),
        ]
    )
    dataset = ImageDataset(path, transforms=transform, fields=("image", "mask"))
    seen = set()
    for seed in range(3):
        for images, masks in DataLoader(dataset, 5, num_workers=2, shuffle=True, seed=seed):
            assert torch.equal(images, masks)
            seen.add(images.numpy().tobytes())
    assert len(seen) > 3


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_bad_masks_are_errors_of_their_samples(v2: Any, tmp_path: Path, workers: int) -> None:
    wrong_size = as_png(Image.new("L", (17, 19), 3))
    path = _made(tmp_path, "shards", "L", of_2=wrong_size, of_7=None)
    transform = v2.Compose([v2.Resize((50, 60)), v2.ToImage()])
    dataset = ImageDataset(path, transforms=transform, fields=("image", "mask"))
    width, height = Image.open(tmp_path / "2.png").size
    with pytest.raises(FastdataError, match="its mask") as found:
        list(DataLoader(dataset, 4, num_workers=workers))
    for words in ("sample 2", "19 x 17", f"{height} x {width}"):
        assert words in str(found.value)
    named = ("image", "mask", "index")
    dropping = DataLoader(dataset, 4, num_workers=workers, on_error="drop", fields=named)
    found = list(dropping)
    assert [row for batch in found for row in batch["index"].tolist()] == [
        row for row in range(ROWS) if row not in (2, 7)
    ]
    for batch in found:
        for row, mask in zip(batch["index"].tolist(), batch["mask"], strict=True):
            assert torch.equal(mask, _expected(path, row, transform)[1].as_subclass(torch.Tensor))
    zeroed = list(DataLoader(dataset, 4, num_workers=workers, on_error="zero"))
    valid = torch.cat([mark for _, _, mark in zeroed])
    assert valid.tolist() == [row not in (2, 7) for row in range(ROWS)]
    for images, masks, marks in zeroed:
        assert not images[~marks].any() and not masks[~marks].any()
    # As torchvision's own path: nothing is nothing.
    *_, (_, missing) = next(iter(DataLoader(dataset, 1, sampler=[7], collate_fn=list)))
    assert missing is None and dataset[7][1] is None


def test_transforms_of_masks_alone_are_refused(v2: Any, grey: Path) -> None:
    with pytest.raises(UsageError, match=r"transforms="):
        ImageDataset(grey, {"image": v2.Resize(9), "mask": v2.Resize(9)}, fields=("image", "mask"))
    dataset = ImageDataset(grey, v2.Compose([v2.Resize((9, 9)), v2.ToImage()]))
    with pytest.raises(UsageError, match=r"transforms="):
        dataset.fields = ("image", "mask")
    with pytest.raises(UsageError, match=r"transforms="):
        DataLoader(dataset, 2, fields=("image", "mask"))
    still = ImageDataset(grey, v2.ToImage(), fields=("image", "mask"))
    assert still[0]["mask"].mode == "L"
    joint = ImageDataset(grey, transforms=v2.Resize((9, 9)), fields=("image", "mask"))
    with pytest.raises(UsageError, match="follows the image"):
        DataLoader(joint, 2, fields=("mask",))


def test_what_torchvision_does_not_do_to_masks_is_refused(v2: Any, grey: Path) -> None:
    refused = {
        "RandAugment cannot be done": v2.Compose([v2.ToImage(), v2.RandAugment()]),
        "expands masks": v2.RandomRotation(20, expand=True),
        "Views cannot.*a target follows one": Views(CenterCrop(9), count=2),
        "masks are numbers": v2.Compose([v2.ToImage(), v2.RandomRotation(20, fill=[1, 2, 3])]),
        "colour, and masks are numbers": v2.Compose([v2.Pad(5, fill=[1, 2, 3]), v2.ToImage()]),
        "its fill is a colour": v2.Compose([v2.RandomCrop(9, 5, fill=[1, 2, 3]), v2.ToImage()]),
    }
    for words, transform in refused.items():
        dataset = ImageDataset(grey, transforms=transform, fields=("image", "mask"))
        with pytest.raises(UsageError, match=words):
            DataLoader(dataset, 2, collate_fn=list, require_native=True)
