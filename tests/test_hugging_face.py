"""`datasets.Dataset` in place: the values that `datasets` gives, natively."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hub_datasets import DATASETS
from PIL import Image

from fastdata import DataLoader, ImageDataset, Ragged
from fastdata.storage.fields import IMAGE, LABEL
from fastdata.transforms import Resize

# `datasets` leaves files of metadata open.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

Make = Callable[[Any, Path], Any]


def value_at(row: dict[str, Any], name: str) -> Any:
    """The value of a column, or of a dict in it."""
    if name in row:
        return row[name]
    first, _, rest = name.partition(".")
    return None if row[first] is None else value_at(row[first], rest)


def plain(value: Any) -> Any:
    """The value with lists for arrays, and pixels for images."""
    if isinstance(value, Image.Image):
        return value.mode, np.asarray(value).tolist()
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def as_rgb(image: Any) -> Any:
    return None if image is None else image.convert("RGB")


def expected(row: dict[str, Any], field: Any, image: str, label: str) -> Any:
    """The value that `datasets` gives in the place of a field."""
    if field == IMAGE:
        found = value_at(row, image)
        return found if getattr(found, "mode", "") == "L" and image == "image" else as_rgb(found)
    found = value_at(row, label if field == LABEL else field.name)
    return as_rgb(found) if field.kind == "image" else found


@pytest.fixture(params=DATASETS, ids=lambda make: make.__name__)
def made(request: pytest.FixtureRequest, hugging_face: Any, tmp_path: Path) -> Any:
    """A dataset; the rows that `datasets` gives; its columns of image and label."""
    make: Make = request.param
    (tmp_path / "data").mkdir()
    dataset = make(hugging_face, tmp_path / "data")
    image, label = DATASETS[make]
    decoding = dataset
    if not getattr(dataset.features.get(image), "decode", True):
        decoding = dataset.cast_column(image, hugging_face.Image())
    return dataset, [decoding[at] for at in range(len(decoding))], image, label


def test_samples_have_the_values_of_datasets(made: Any) -> None:
    dataset, rows, image, label = made
    opened = ImageDataset(dataset)
    schema = {field.name: field for field in opened.source.fields}
    assert ("label" in schema and schema["label"] == LABEL) == bool(label)
    assert opened.classes == list(getattr(dataset.features.get(label), "names", ()))
    # Every column is there, under its own name or as image and label.
    assert {*dataset.column_names} <= {*schema, image, label} | {image.partition(".")[0]}
    opened.fields = tuple(schema)
    assert len(opened) == len(rows)
    for at, row in enumerate(rows):
        for (name, field), value in zip(schema.items(), opened[at], strict=True):
            assert plain(value) == plain(expected(row, field, image, label)), (at, name)


@pytest.mark.filterwarnings("ignore::fastdata.errors.FallbackWarning")
def test_batches_have_the_values_of_datasets(made: Any) -> None:
    dataset, rows, image, label = made
    opened = ImageDataset(dataset, Resize((20, 16)), color="rgb")
    schema = {field.name: field for field in opened.source.fields}
    opened.fields = tuple(
        name for name, one in schema.items() if name == "image" or one.kind in ("column", "blob")
    )
    good = [at for at, row in enumerate(rows) if value_at(row, image) is not None]
    loader: Any = DataLoader(opened, 4, sampler=good, num_workers=1, require_native=True)
    for _ in range(2):  # with what the first epoch has learnt
        seen = 0
        for batch in loader:
            columns = [one.list() if isinstance(one, Ragged) else list(one) for one in batch]
            for sample in zip(*columns, strict=True):
                row = rows[good[seen]]
                found = dict(zip(opened.fields, sample, strict=True))
                pixels = found.pop("image").permute(1, 2, 0).numpy().astype(int)
                image_of = value_at(row, image)
                if image_of.mode != "L" or image == "img":  # an Image(mode="L") has lost its colour
                    resized = image_of.convert("RGB").resize((16, 20), Image.Resampling.BILINEAR)
                    assert np.abs(pixels - np.asarray(resized)).max() <= 1
                for name, value in found.items():
                    wanted = expected(row, schema[name], image, label)
                    assert plain(value) == plain(wanted), (seen, name)
                seen += 1
        assert seen == len(good)
