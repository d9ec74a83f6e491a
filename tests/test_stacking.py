"""Collate functions that stack a batch's samples: without a copy, and as if with one."""

from __future__ import annotations

import math
import os
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
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
from fastdata.errors import UsageError  # noqa: E402
from fastdata.loading.stacking import is_closed  # noqa: E402

BATCH = 6
PROGRAMS = int(os.environ.get("FASTDATA_CAMPAIGN_STACKING", "60"))


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


def _largest(several: Any) -> list[int]:
    return [max(sides) for sides in zip(*(one.shape for one in several), strict=True)]


def _filled(samples: list[Any]) -> Any:
    several, labels = list(zip(*samples))  # noqa: B905
    found = several[0].new(len(several), *_largest(several)).fill_(7)
    for one, place in zip(several, found):  # noqa: B905
        place[..., : one.shape[-2], : one.shape[-1]].copy_(one)
    return found, torch.tensor(labels)


def _assigned(samples: list[Any]) -> Any:
    several = [image for image, _ in samples]
    found = several[0].new_zeros((len(several), *several[0].shape))
    for number, one in enumerate(several):
        channels, rows, columns = one.shape
        found[number, :channels, :rows, :columns] = one
    return {"images": found}["images"]


def _full(samples: list[Any]) -> Any:
    several = [image for image, _ in samples]
    found = several[0].new_full([len(several), *several[0].size()], 3)
    for number in range(len(several)):
        found[number].copy_(several[number])
    return found


#: Collate functions whose result is that of torch without a copy of any image.
FREE = {
    "filled": _filled,
    "assigned": _assigned,
    "full": _full,
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


def _larger(samples: list[Any]) -> Any:
    several = [image for image, _ in samples]
    found = several[0].new(len(several), 3, 103, 104).zero_()
    for one, place in zip(several, found):  # noqa: B905
        place[:, : one.shape[1], : one.shape[2]].copy_(one)
    return found


def _some_filled(samples: list[Any]) -> Any:
    several = [image for image, _ in samples]
    found = several[0].new(len(several), *several[0].shape).fill_(9)
    for number, one in enumerate(several):
        if number != 2:
            found[number].copy_(one)
    return found


def _first_filled(samples: list[Any]) -> Any:
    several = [image for image, _ in samples]
    found = several[0].new(len(several), *several[0].shape).fill_(9)
    for number, one in enumerate(several[:2]):
        found[number].copy_(one)
    return found


def _one_channel(samples: list[Any]) -> Any:
    several = [image for image, _ in samples]
    found = several[0].new_empty(len(several), *several[0].shape)
    for number, one in enumerate(several):
        found[number].copy_(one[1:2])
    return found


def _rows_read(samples: list[Any]) -> Any:
    several = [image for image, _ in samples]
    found = several[0].new_full((len(several), *several[0].shape), 6)
    rows = found[[0, 1]]
    for number, one in enumerate(several):
        found[number].copy_(one)
    return found, rows


def _over_another(samples: list[Any]) -> Any:
    several = [image for image, _ in samples]
    found = several[0].new_empty(len(several), *several[0].shape)
    for one in several:
        for place in found:
            place.copy_(one)
    return found


def _crossed(samples: list[Any]) -> Any:
    several = [image for image, _ in samples]
    found = several[0].new_empty(len(several), *several[0].shape)
    for number, one in enumerate(several):
        found[len(several) - 1 - number].copy_(one)
    return found


def _changed_meanwhile(samples: list[Any]) -> Any:
    several = [image for image, _ in samples]
    found = several[0].new_empty(len(several), *several[0].shape)
    for number, one in enumerate(several):
        found[number].copy_(one)
        one.fill_(1)
    return found


def _read_meanwhile(samples: list[Any]) -> Any:
    several = [image for image, _ in samples]
    found = several[0].new_full((len(several), *several[0].shape), 2)
    sums = []
    for number, one in enumerate(several):
        sums.append(found[number : number + 2].long())
        found[number].copy_(one)
    return found, sums, found[found[:, 0, 0, 0] > 99]


def _filled_again(samples: list[Any]) -> Any:
    several = [image for image, _ in samples]
    found = several[0].new_full((len(several), *several[0].shape), 2)
    for number, one in enumerate(several):
        found[number].copy_(one)
    found[1].fill_(5)
    other = several[0].new_full((len(several), *several[0].shape), 2)
    for number, one in enumerate(several):
        other[number].copy_(one)
    other.zero_()
    return found, other, torch.stack(several)


def _row_kept(samples: list[Any]) -> Any:
    several = [image for image, _ in samples]
    found = several[0].new_empty(len(several), *several[0].shape)
    rows = []
    for number, one in enumerate(several):
        found[number].copy_(one)
        rows.append(found[number])
    return found, rows[2]


def _sample_kept(samples: list[Any]) -> Any:
    several = [image for image, _ in samples]
    found = several[0].new_empty(len(several), *several[0].shape)
    for number, one in enumerate(several):
        found[number].copy_(one)
    return found, several[1][0]


def _converted(samples: list[Any]) -> Any:
    several = [image for image, _ in samples]
    found = torch.tensor([0.5]).new(len(several), *several[0].shape).zero_()
    for number, one in enumerate(several):
        found[number].copy_(one)
    return found, several[0].new([1, 2]), several[0].new_full((2, 2), 3)


def _in_threads(samples: list[Any]) -> Any:
    several = [image for image, _ in samples]
    found = several[0].new_zeros((len(several), *several[0].shape))
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda number: found[number].copy_(several[number]), range(len(several))))
    return found


def _by_pool(function: Callable[[Any], Any], values: Any) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(function, values))


def _by_a_default(samples: list[Any], run: Any = _by_pool) -> Any:
    several = [image for image, _ in samples]
    found = several[0].new_zeros((len(several), *several[0].shape))
    run(lambda number: found[number].copy_(several[number]), range(len(several)))
    return found


def _by_a_named_default(samples: list[Any], *, run: Any = _by_pool) -> Any:
    return _by_a_default(samples, run)


def _empty(samples: list[Any]) -> Any:
    several = [image for image, _ in samples]
    return several[0].new(), several[0].new(0), several[0].new_zeros((0, 3)), several[0].new(2, 0)


def _of_another_size(samples: list[Any]) -> Any:
    several, failed = [image for image, _ in samples], 0
    found = several[0].new_zeros((len(several), 3, 50, 50))
    for number, one in enumerate(several):
        try:
            found[number].copy_(one)
        except:  # noqa: E722  # a name would be one more that the function calls
            failed += 1
    return found, torch.tensor([failed])


def _fill_that_does_not_fit(samples: list[Any]) -> Any:
    several, failed = [image for image, _ in samples], 0
    found = several[0].new_zeros((len(several), *several[0].shape))
    try:
        found.fill_(300)
    except:  # noqa: E722  # as above
        failed += 1
    for number, one in enumerate(several):
        found[number].copy_(one)
    return found, torch.tensor([failed])


def _fill_that_changes(samples: list[Any]) -> Any:
    several = [image for image, _ in samples]
    value = torch.tensor(3)
    found = several[0].new_full((len(several), 3, 101, 101), value)
    value.copy_(torch.tensor(9))
    return found


class _Classed(torch.Tensor):
    """As torchvision's tensors have classes of their own."""


#: Others, whose result is torch's, too.
OTHERS = {
    "larger": _larger,
    "some filled": _some_filled,
    "first filled": _first_filled,
    "one channel": _one_channel,
    "rows read": _rows_read,
    "over another": _over_another,
    "crossed": _crossed,
    "changed meanwhile": _changed_meanwhile,
    "read meanwhile": _read_meanwhile,
    "filled again": _filled_again,
    "row kept": _row_kept,
    "sample kept": _sample_kept,
    "other dtype": _converted,
    "in threads": _in_threads,
    "by a default": _by_a_default,
    "by a named default": _by_a_named_default,
    "empty": _empty,
    "of another size": _of_another_size,
    "fill that does not fit": _fill_that_does_not_fit,
    "fill that changes": _fill_that_changes,
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


def test_samples_that_a_thread_changes_after_the_stack_are_an_error(pictures: Any) -> None:
    def collate(samples: list[Any]) -> Any:
        found = torch.stack(_images(samples))
        _by_pool(torch.Tensor.zero_, _images(samples))
        return found

    loader = DataLoader(pictures, BATCH, collate_fn=collate)
    with pytest.raises(UsageError, match=r"has changed samples.*after torch.stack"):
        next(iter(loader))


@pytest.mark.parametrize("name", FREE)
def test_stacking_copies_nothing(name: str, pictures: Any) -> None:
    loader = DataLoader(pictures, BATCH, collate_fn=FREE[name], require_native=True)
    list(loader)
    about = {"record_shapes": True, "profile_memory": True}
    with profile(activities=[ProfilerActivity.CPU], **about) as found:
        list(loader)
    image, events = 3 * 99 * 99, found.events()
    written = [one for one in events if one.name in ("aten::copy_", "aten::fill_", "aten::zero_")]
    assert all(math.prod(shape) < image for one in written for shape in one.input_shapes)
    taken = (one.cpu_memory_usage for one in events if one.name in ("aten::cat", "aten::stack"))
    assert sum(taken) < image


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


def _changed(batch: list[Any], seed: int) -> list[Any]:
    drawn = random.Random(seed)
    for one in drawn.sample(batch, len(batch) // 2):
        one[..., :2] = drawn.randrange(99)
    return batch


def _assert_as_torch(collate: Callable[[list[Any]], Any], pictures: Any, seed: int) -> None:
    ours = DataLoader(pictures, BATCH, num_workers=1, collate_fn=collate, require_native=True)
    theirs = torch.utils.data.DataLoader(pictures, BATCH, collate_fn=collate)
    for found, expected in zip(ours, theirs, strict=True):
        _assert_same(_changed(found, seed), _changed(expected, seed))


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

    _assert_as_torch(collate, pictures, seed)


def _program(seed: int) -> Any:
    """A function of random steps, that calls nothing but torch and a few builtins.

    Names of one image begin with ``a``, those of several with ``b``.
    """
    drawn = random.Random(seed)
    lines = ["several = [image for image, _ in samples]", "n = len(several)"]
    lines += [f"a{number} = several[{number} % n]" for number in range(3)]
    ones, all_of = ["a0", "a1", "a2"], []
    for number in range(drawn.randint(2, 12)):
        one, value, place = drawn.choice(ones), drawn.randrange(99), drawn.randrange(99)
        kind, row = drawn.randrange(11), drawn.randrange(4)
        batch = drawn.choice(all_of or ["b"])
        if kind < 3 or not all_of:
            shape = "n, 3, 99, 99"
            made = [
                f"{one}.new({shape}).fill_({value})",
                f"{one}.new_full(({shape}), {value})",
                f"{one}.new_zeros({shape})",
                "torch.stack(several)",
            ]
            lines.append(f"b{number} = {drawn.choice(made)}")
            all_of.append(f"b{number}")
        elif kind < 6:
            loop = [
                "for image, target in zip(several, {0}):",
                "for k, image in enumerate(several):",
            ]
            copy = [
                "target.copy_(image)",
                "target[..., : image.shape[-2], : image.shape[-1]].copy_(image)",
                "target[:] = image",
            ]
            which = drawn.randrange(2)
            step = drawn.choice(copy)
            step = step.replace("target", f"{batch}[k]") if which else step
            lines += [loop[which].format(batch), f"    {step}"]
        elif kind == 6:
            lines.append(f"{batch}[{row} % n, ..., {place}:] = {one}[..., {place}:]")
        elif kind == 7:
            ones.append(f"a{number + 3}")
            lines.append(f"a{number + 3} = {batch}[{row} % n]")
        elif kind == 8:
            lines.append(f"{one}.fill_({value})")
        elif kind == 9:
            lines.append(f"{batch}.{drawn.choice(['zero_()', f'fill_({value})'])}")
        else:
            lines.append(f"c{number} = {batch}.long()")
            all_of.append(f"c{number}")
    kept = drawn.sample([*ones, *all_of], drawn.randint(1, 3))
    text = "\n    ".join([*lines, f"return [{', '.join(kept)}]"])
    space: dict[str, Any] = {"torch": torch}
    exec(f"def collate(samples):\n    {text}", space)
    return space["collate"]


numpy = None


def _unset_cell() -> Callable[..., Any]:
    def collate(samples: list[Any]) -> Any:
        return later(samples)

    if len("") > 0:
        later = len
    return collate


@pytest.mark.parametrize(
    "collate",
    [
        lambda batch: batch[0][0].numpy(),  # also where a global has the name of the attribute
        lambda batch, stack=os.stat: stack(batch),
        lambda batch, *, own=np: own.stack(batch),
        lambda batch: os.getcwd(),
        lambda batch: open(batch),  # noqa: SIM115
        _unset_cell(),
    ],
)
def test_functions_that_may_call_others_are_not_closed(collate: Callable[..., Any]) -> None:
    assert numpy is None
    assert not is_closed(collate)


def test_an_error_of_copying_by_hand_is_raised_by_its_line(pictures: Any) -> None:
    def collate(samples: list[Any]) -> Any:
        found = samples[0][0].new_zeros((len(samples), 3, 98, 98))
        found[0].copy_(samples[0][0])
        return found

    assert is_closed(collate)
    loader = DataLoader(pictures, BATCH, num_workers=1, collate_fn=collate, require_native=True)
    with pytest.raises(RuntimeError, match="must match") as caught:
        next(iter(loader))
    assert "collate" in [one.name for one in caught.traceback]


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_any_stacking_by_hand_gives_what_torch_gives(seed: int, pictures: Any) -> None:
    collate = _program(seed)
    assert is_closed(collate)
    _assert_as_torch(collate, pictures, seed)
