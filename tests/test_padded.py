"""Batches that are padded to one size, as published collate functions pad them."""

from __future__ import annotations

import math
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from test_targets import packed  # noqa: F401

from fastdata import DataLoader, ImageDataset
from fastdata.collate import Padded, collate_padded
from fastdata.errors import UsageError

_SIZES = ((5, 9), (8, 3), (1, 1))


def _by_hand(images: Any, multiple: int) -> Any:
    sides = [max(one.shape[axis] for one in images) for axis in (1, 2)]
    height, width = (math.ceil(side / multiple) * multiple for side in sides)
    tensors = torch.zeros(len(images), images[0].shape[0], height, width, dtype=images[0].dtype)
    mask = torch.ones(len(images), height, width, dtype=torch.bool)
    for number, one in enumerate(images):
        tensors[number, :, : one.shape[1], : one.shape[2]] = one
        mask[number, : one.shape[1], : one.shape[2]] = False
    return tensors, mask


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("multiple", [1, 4, 32])
def test_images_are_padded_to_the_largest(multiple: int, channels_last: bool) -> None:
    images = [torch.rand(3, *size) for size in _SIZES]
    if channels_last:
        images = [one.permute(1, 2, 0).contiguous().permute(2, 0, 1) for one in images]
    collate = pickle.loads(pickle.dumps(collate_padded(multiple)))
    found, targets = collate([(one, {"number": at}) for at, one in enumerate(images)])
    tensors, mask = _by_hand(images, multiple)
    assert torch.equal(found.tensors, tensors)
    assert torch.equal(found.mask, mask)
    assert targets == ({"number": 0}, {"number": 1}, {"number": 2})
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert found.tensors.is_contiguous(memory_format=layout)
    alone = collate(images)
    assert isinstance(alone, Padded)
    assert torch.equal(alone.tensors, tensors)


def test_masks_have_a_value_of_their_own() -> None:
    images = [torch.rand(3, *size) for size in _SIZES]
    masks = [torch.randint(0, 20, size) for size in _SIZES]
    samples = list(zip(images, masks, strict=True))
    found, padded = collate_padded(target_fill=255)(samples)
    assert padded.dtype == torch.int64
    for number, mask in enumerate(masks):
        expected = torch.full((8, 9), 255)
        expected[: mask.shape[0], : mask.shape[1]] = mask
        assert torch.equal(padded[number], expected)
    assert torch.equal(found.tensors, _by_hand(images, 1)[0])


def test_mistakes_are_named() -> None:
    with pytest.raises(UsageError, match="multiple=0"):
        collate_padded(0)
    with pytest.raises(UsageError, match="type str"):
        collate_padded()([("image", {})])
    with pytest.raises(UsageError, match="a target of shape"):
        collate_padded(target_fill=255)([(torch.rand(3, 4, 5), torch.zeros(5, 4))])


@pytest.mark.parametrize("workers", [0, 2])
def test_the_loader_pads(packed: Path, v2: Any, workers: int) -> None:  # noqa: F811
    transform = v2.Compose([v2.Resize(30), v2.ToImage()])
    dataset = ImageDataset(packed, transforms=transform, fields=("image", "boxes", "labels"))
    collate = collate_padded(32)
    loader = DataLoader(dataset, 5, num_workers=workers, collate_fn=collate, require_native=True)
    rows = 0
    for batch, targets in loader:
        images = [dataset[row][0] for row in range(rows, rows + len(targets))]
        tensors, mask = _by_hand(images, 32)
        # dataset[i] is torchvision's image, the loader's is within a level of it.
        assert (batch.tensors.int() - tensors.int()).abs().max() <= 1
        assert torch.equal(batch.mask, mask)
        assert all(len(target["boxes"]) == len(target["labels"]) for target in targets)
        rows += len(targets)
    assert rows == len(dataset)
