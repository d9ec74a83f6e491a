"""Conformance of every field of batches, over real rows: see `BatchField`."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from field_data import image_file

from fastdata import ImageDataset, Ragged, _native
from fastdata.errors import SampleError
from fastdata.executors import helper_threads
from fastdata.loading.fields.buffers import BufferPool
from fastdata.loading.fields.field import Batch, Context
from fastdata.loading.fields.pipeline import Pipeline, open_pipeline
from fastdata.loading.fields.stats import Counters
from fastdata.transforms import CenterCrop, Compose, RandomHorizontalFlip, Resize
from fastdata.transforms.outcomes import without_fixed_size

ROWS, BAD, KEY = 8, 7, 12345
PLAIN = ("image", "second", "sound", "score", "words", "label", "index", "key")
JOINT = ("image", "mask", "boxes", "masks", "geometry", "score", "words", "label")
CASES = [*((PLAIN, name) for name in PLAIN), *((JOINT, name) for name in JOINT)]
PIXELS = ("image", "second", "mask", "masks")


@cache
def dataset(fields: tuple[str, ...]) -> ImageDataset:
    """Rows with each kind of field; the last one's files are damaged."""
    squares = [[[2.0, 3.0, 4.0 + number, 5.0]] * (number % 3) for number in range(ROWS)]
    corners = [[[[2.0, 3.0, 9.0, 3.0, 9.0, 12.0]]] * len(boxes) for boxes in squares]
    files = {name: [image_file(number, "PNG") for number in range(ROWS)] for name in PIXELS[:3]}
    for one in files.values():
        one[BAD] = one[BAD][:100]
    table = pa.table(
        {
            **files,
            "sound": pa.array([bytes([number]) * number for number in range(ROWS)]),
            "score": np.arange(ROWS) / 4,
            "words": [["a"] * number for number in range(ROWS)],
            "label": np.arange(ROWS) % 3,
            "key": [f"row {number}" for number in range(ROWS)],
            "boxes": pa.array(squares, pa.list_(pa.list_(pa.float32(), 4))),
            "polygons": pa.array(corners, pa.list_(pa.list_(pa.list_(pa.float32())))),
        }
    )
    formats = {"mask": "mask", "second": "image"}
    if fields == JOINT:
        formats |= {"boxes": "xywh", "polygons": "polygons"}
        both = Compose([RandomHorizontalFlip(), Resize((16, 16))])
        return ImageDataset.from_table(table, transforms=both, fields=fields, formats=formats)
    crops: Any = {"image": CenterCrop(16), "second": CenterCrop(12)}
    return ImageDataset.from_table(table, crops, fields=fields, formats=formats)


class Opened:
    """A pipeline, and the batches that it made."""

    def __init__(self, fields: tuple[str, ...], threads: int, single: bool = False) -> None:
        readable: Any = dataset(fields).described()
        source = readable.open(False)
        start = _native.ThreadPool(threads).submit if threads else _native.Work.run
        helpers, pool = helper_threads(threads), BufferPool(1, False)
        context = Context(readable, source, start, pool, helpers, Counters(1), single=single)
        self.numbering = readable.numbering(source)
        recipe = without_fixed_size(readable.recipe)
        self.pipeline: Pipeline = open_pipeline(context, [recipe], [readable])

    def begin(self, *rows: int) -> Batch:
        batch = Batch(self.numbering.plan(np.array(rows)), KEY, self.pipeline.fields)
        self.pipeline.advance(batch)
        return batch

    def finish(self, batch: Batch) -> dict[int, Any]:
        self.pipeline.advance(batch, wait=True)
        return self.pipeline.errors(batch)

    def values(self, name: str, *rows: int) -> list[Any]:
        batch = self.begin(*rows)
        assert self.finish(batch) == {}
        return self.of(name, batch)

    def of(self, name: str, batch: Batch) -> list[Any]:
        return [self.pipeline.delivered[name].value(batch, slot) for slot in range(len(batch))]


@pytest.fixture(params=[0, 2])
def threads(request: pytest.FixtureRequest) -> int:
    found: int = request.param
    return found


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(np.array_equal(one, other)) and type(one) is type(other)


@pytest.mark.parametrize(("fields", "name"), CASES)
class TestField:
    def test_a_value_does_not_depend_on_its_batch(
        self, fields: tuple[str, ...], name: str, threads: int
    ) -> None:
        opened = Opened(fields, threads)
        several = opened.values(name, 4, 1, 5)
        assert all(
            same(several[at], opened.values(name, row)[0]) for at, row in enumerate([4, 1, 5])
        )

    def test_a_batch_has_the_samples_values(
        self, fields: tuple[str, ...], name: str, threads: int
    ) -> None:
        opened = Opened(fields, threads)
        batch = opened.begin(2, 3, 4)
        opened.finish(batch)
        values, whole = opened.of(name, batch), opened.pipeline.delivered[name].deliver(batch)
        if isinstance(whole, Ragged):
            whole = whole.list()
        parts = (
            [type(whole)(*one) for one in zip(*whole, strict=True)] if name == "geometry" else whole
        )
        assert len(parts) == 3
        for value, part in zip(values, parts, strict=True):
            assert (
                same(torch.as_tensor(value), part) if torch.is_tensor(part) else same(value, part)
            )

    def test_a_patch_takes_another_batchs_samples(
        self, fields: tuple[str, ...], name: str, threads: int
    ) -> None:
        opened = Opened(fields, threads)
        batch, other = opened.begin(0, 1, 2), opened.begin(3, 5)
        opened.finish(batch)
        opened.finish(other)
        opened.pipeline.patch(batch, other, [1], [1])
        # A pipeline of planned rows names the substitutes.
        opened.numbering.place(batch.planned, [1], np.array([5]))
        assert same(opened.of(name, batch), opened.values(name, 0, 5, 2))

    def test_clearing_makes_pixels_zeros_and_leaves_other_values(
        self, fields: tuple[str, ...], name: str, threads: int
    ) -> None:
        opened = Opened(fields, threads)
        batch = opened.begin(1, 2)
        opened.finish(batch)
        opened.pipeline.clear(batch, [1])
        whole = opened.pipeline.delivered[name].deliver(batch)
        cleared = (whole.list() if isinstance(whole, Ragged) else whole)[1]
        if name in PIXELS:
            assert not cleared.any()
        elif name != "geometry":
            assert same(opened.of(name, batch), opened.values(name, 1, 2))

    def test_a_batch_may_be_cancelled(
        self, fields: tuple[str, ...], name: str, threads: int
    ) -> None:
        opened = Opened(fields, threads)
        batch = opened.begin(*range(ROWS - 1))
        opened.pipeline.delivered[name].cancel(batch)
        opened.pipeline.cancel(Batch(opened.numbering.plan(np.array([0])), KEY))  # not begun
        opened.pipeline.cancel(batch)
        opened.pipeline.close()


@pytest.mark.parametrize("fields", [PLAIN, JOINT])
def test_a_bad_sample_is_an_error_of_its_slot(fields: tuple[str, ...], threads: int) -> None:
    opened = Opened(fields, threads)
    batch = opened.begin(0, BAD, 2)
    errors = opened.finish(batch)
    assert [*errors] == [1] and isinstance(errors[1], SampleError)
    assert f"row {BAD}" in errors[1].what
    for name in fields:
        expected = opened.values(name, 0, 2)
        whole = opened.pipeline.delivered[name].deliver(batch)
        if name != "geometry":
            parts = whole.list() if isinstance(whole, Ragged) else list(whole)
            assert len(parts) == 3
        found = opened.of(name, batch)
        assert same([found[0], found[2]], expected), name
