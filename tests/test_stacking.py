"""Collate functions that stack a batch's samples: without a copy, and as if with one."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from loader_data import images
from torchvision_stub import import_torchvision

torch = pytest.importorskip("torch")

from torch.nn import functional  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402
from torch.utils.data import default_collate  # noqa: E402

from fastdata import DataLoader  # noqa: E402

BATCH = 6


@pytest.fixture(scope="module", params=["PILToTensor", "ToTensor"])
def pictures(request: Any) -> Any:
    """Images of one size, bytes or floats."""
    transforms = import_torchvision().transforms
    last = getattr(transforms, request.param)()
    return images(transforms.Compose([transforms.Resize(120), transforms.CenterCrop(99), last]))


def _images(samples: list[Any]) -> list[Any]:
    return [image for image, _ in samples]


def _stack(samples: list[Any]) -> Any:
    found, labels = zip(*samples, strict=True)
    return torch.stack(found), torch.tensor(labels)


def _concatenate(samples: list[Any]) -> Any:
    return torch.cat([image[None] for image in _images(samples)], dim=0)


def _scaled(samples: list[Any]) -> Any:
    return functional.interpolate(torch.stack(_images(samples)).float(), 11)


def _in_place(samples: list[Any]) -> Any:
    found = torch.stack(_images(samples))
    found -= 1
    found[2:3].mul_(2)
    return found


#: Collate functions whose result is that of torch without a copy of any image.
FREE = {
    "stack": _stack,
    "default_collate": default_collate,
    "concatenate": _concatenate,
    "parts": lambda batch: [torch.stack(_images(batch)[:2])],
    "end": lambda batch: torch.stack(tuple(_images(batch)[2:]), dim=0).size() and batch[0][1],
}


def _mixed_in_place(samples: list[Any]) -> Any:
    several = _images(samples)
    found = torch.stack(several)
    for row, one in enumerate(several):
        found[row] = found[row] // 2 + several[row - 1] // 2 + one
    return found


def _written_after(samples: list[Any]) -> Any:
    several = _images(samples)
    found = torch.stack(several)
    several[1].fill_(3)
    several[2][0, 3] = 5
    return found


def _view_written_after(samples: list[Any]) -> Any:
    several = _images(samples)
    view = several[0][1:, 2:5]
    found = torch.stack(several)
    view.zero_()
    return found


def _array_written_after(samples: list[Any], early: bool, how: Callable[[Any], Any]) -> Any:
    several = _images(samples)
    arrays = [how(one) for one in several] if early else []
    found = torch.stack(several)
    arrays = arrays or [how(one) for one in several]
    for array in arrays:
        array[..., :3] = 7
    return found


def _views_of_the_stack(samples: list[Any]) -> Any:
    several = _images(samples)
    found = torch.stack(several)
    flat = found.view(len(samples), -1)
    several[0].fill_(9)
    flat[1] = 8
    return found, flat, several[1].clone()


def _twice(samples: list[Any]) -> Any:
    first, second = (torch.stack(_images(samples)) for _ in range(2))
    first.zero_()
    return first, second, torch.cat([image[None] for image in _images(samples)])


def _out(samples: list[Any]) -> Any:
    several = _images(samples)
    zeros = [several[0] * 0] * len(several)
    found = torch.stack(several)
    torch.stack(zeros, out=found)
    return found, several[0].clone(), torch.stack(several, out=torch.empty_like(found))


class _Classed(torch.Tensor):
    """As torchvision's tensors have classes of their own."""


#: Others, whose result is torch's, too.
OTHERS = {
    "scaled": _scaled,
    "in place": _in_place,
    "mixed in place": _mixed_in_place,
    "written after": _written_after,
    "view written after": _view_written_after,
    "views of the stack": _views_of_the_stack,
    "twice": _twice,
    "out": _out,
    "array written after": partial(_array_written_after, early=False, how=torch.Tensor.numpy),
    "earlier array": partial(_array_written_after, early=True, how=torch.Tensor.numpy),
    "np.asarray": partial(_array_written_after, early=True, how=np.asarray),
    "dlpack": partial(_array_written_after, early=True, how=torch.from_dlpack),
    "reversed": lambda batch: torch.stack(_images(batch)[::-1]),
    "some": lambda batch: torch.stack(_images(batch)[::2]),
    "one thrice": lambda batch: torch.stack(_images(batch)[:1] * 3),
    "last dimension": lambda batch: torch.stack(_images(batch), dim=-1),
    "axis": lambda batch: torch.concat([image[None] for image in _images(batch)], axis=2),
    "only row": lambda batch: torch.cat(_images(batch)[:1]),
    "classed": lambda batch: torch.stack([image.as_subclass(_Classed) for image in _images(batch)]),
    "rows": lambda batch: torch.cat(_images(batch)),
    "columns": lambda batch: torch.cat(_images(batch), dim=1),
    "turned": lambda batch: torch.stack([image.mT for image in _images(batch)]),
    "cropped": lambda batch: torch.stack([image[:, 2:, 3:] for image in _images(batch)]),
    "channels": lambda batch: torch.stack([image[1] for image in _images(batch)]),
    "expanded": lambda batch: torch.cat([image[:1].expand(3, -1, -1) for image in _images(batch)]),
    "samples": list,
    "converted": lambda batch: [torch.stack(_images(batch)).float().add_(1), _images(batch)],
    "kept": lambda batch: (torch.stack(_images(batch)), _images(batch)),
    "kept in part": lambda batch: (torch.stack(_images(batch)), batch[1][0][0, 2:]),
    "kept by another": lambda batch: (torch.stack(_images(batch)), lambda: batch),
}


def _tensors(batch: Any) -> list[Any]:
    if isinstance(batch, torch.Tensor):
        return [batch]
    if callable(batch):
        batch = batch()
    return (
        [one for part in batch for one in _tensors(part)] if isinstance(batch, list | tuple) else []
    )


def _assert_same(found: Any, expected: Any) -> None:
    ours, theirs = _tensors(found), _tensors(expected)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert type(one) is type(other)
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        assert torch.equal(one, other)


def _write(batch: Any) -> None:
    for number, one in enumerate(_tensors(batch)):
        one[..., number:] = number


@pytest.mark.parametrize("name", [*FREE, *OTHERS])
def test_batches_are_those_of_torchs_loader(name: str, pictures: Any) -> None:
    collate = {**FREE, **OTHERS}[name]
    ours = DataLoader(pictures, BATCH, num_workers=1, collate_fn=collate, require_native=True)
    theirs = torch.utils.data.DataLoader(pictures, BATCH, collate_fn=collate)
    pairs = list(zip(ours, theirs, strict=True))
    assert len(pairs) > 3
    for found, expected in pairs:
        _assert_same(found, expected)
    for found, expected in pairs:  # writing to one tensor changes no other, here as there
        _write(found)
        _write(expected)
    for found, expected in pairs:
        _assert_same(found, expected)


@pytest.mark.parametrize("name", FREE)
def test_stacking_takes_no_memory(name: str, pictures: Any) -> None:
    loader = DataLoader(pictures, BATCH, collate_fn=FREE[name], require_native=True)
    list(loader)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        batches = list(loader)
    taken = sum(max(one.self_cpu_memory_usage, 0) for one in found.events())
    assert taken < len(batches) * 3 * 99 * 99  # of one image of each


def test_what_a_collate_function_keeps_stays(pictures: Any) -> None:
    """Batches are filled again once they are dropped, and what is kept is not."""
    kept: list[Any] = []

    def collate(samples: list[Any]) -> Any:
        found = torch.stack(_images(samples))
        kept.append((_images(samples)[1], found[0], found.sum()))
        return found

    stacks = []
    loader = DataLoader(pictures, BATCH, num_workers=2, collate_fn=collate)
    for _ in range(3):
        for found in loader:
            found.zero_()
            stacks.append(found)
    right = [found for found, _ in torch.utils.data.DataLoader(pictures, BATCH)]
    for (one, row, total), expected in zip(kept, 3 * right, strict=True):
        assert torch.equal(one, expected[1])
        assert not row.any()  # a view of the stack, which was cleared
        assert total == expected.sum()


@pytest.mark.parametrize("seed", range(40))
def test_any_program_gives_what_torch_gives(seed: int, pictures: Any) -> None:
    """Random reads and writes of samples, views, arrays and stacks, within and after collating."""

    def collate(samples: list[Any]) -> Any:
        drawn = random.Random(seed)
        known = _images(samples)
        for _ in range(drawn.randint(1, 9)):
            some = known[: len(samples)]
            kind = drawn.randrange(8)
            one = drawn.choice(known)
            if kind == 0:
                known.append(torch.stack(some))
            elif kind == 1:
                known.append(torch.cat([image[None] for image in some]))
            elif kind == 2:
                one[..., drawn.randrange(9) :] = drawn.randrange(99)
            elif kind == 3:
                known.append(one[drawn.randrange(len(one))])
            elif kind == 4:
                one.numpy()[..., 2] = drawn.randrange(99)
            elif kind == 5:
                known.append(torch.stack(some[: drawn.randint(1, len(some))]))
            elif kind == 6:
                known.append(one[1:])
            else:
                one.add_(drawn.randrange(9))
        return known if drawn.random() < 0.5 else known[len(samples) :]

    def changed(batch: Any) -> Any:
        drawn = random.Random(seed)
        for one in drawn.sample(batch, len(batch) // 2):
            one[..., :2] = drawn.randrange(99)
        return batch

    ours = DataLoader(pictures, BATCH, num_workers=1, collate_fn=collate, require_native=True)
    theirs = torch.utils.data.DataLoader(pictures, BATCH, collate_fn=collate)
    for found, expected in zip(ours, theirs, strict=True):
        _assert_same(changed(found), changed(expected))
