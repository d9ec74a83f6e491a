"""Files of the kinds of datasets that the Hub has, indexed where they are: none is refused."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import hub_datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastdata.converters import index
from hub_datasets import DATASETS
from test_hugging_face import plain, value_at

from fastdata import DataLoader, ImageDataset
from fastdata.errors import SlowPathWarning
from fastdata.transforms import Resize

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*indexed now:UserWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::fastdata.errors.SlowPathWarning"),
    pytest.mark.filterwarnings("ignore::fastdata.errors.FallbackWarning"),
]


def embedded(dataset: Any, datasets: Any) -> Any:
    table = datasets.table.embed_table_storage
    return dataset.with_format("arrow").map(table, batched=True).with_format(None)


def pushed(dataset: Any, datasets: Any, path: Path) -> Path:
    """As push_to_hub writes it: images uncompressed, PLAIN-encoded."""
    embedded(dataset, datasets).to_parquet(path / "data.parquet", batch_size=3)
    return path / "data.parquet"


def snappy(dataset: Any, datasets: Any, path: Path) -> Path:
    """As it was before 2026: images compressed, in small row groups."""
    table = embedded(dataset, datasets).with_format("arrow")[:]
    pq.write_table(table, path / "data.parquet", row_group_size=3, compression="snappy")
    return path / "data.parquet"


def saved(dataset: Any, datasets: Any, path: Path) -> Path:
    dataset.save_to_disk(path / "saved")
    return path / "saved"


WAYS = {"pushed": pushed, "snappy": snappy, "saved": saved}


def stored(dataset: Any, datasets: Any) -> list[dict[str, Any]]:
    table: pa.Table = embedded(dataset, datasets).with_format("arrow")[:]
    return list(table.to_pylist())


def _ways_and_datasets() -> list[Any]:
    """All of them; in the first tier each way with a few kinds of datasets."""
    found = []
    for number, make in enumerate(DATASETS):
        for at, way in enumerate(WAYS):
            slow = [pytest.mark.slow] * (number % 6 != 2 * at)
            found.append(pytest.param(way, make, marks=slow, id=f"{way}-{make.__name__}"))
    return found


@pytest.mark.parametrize(("way", "make"), _ways_and_datasets())
def test_none_is_refused_and_values_are_those_of_datasets(
    make: Any, way: str, hugging_face: Any, tmp_path: Path
) -> None:
    (tmp_path / "made").mkdir()
    (tmp_path / "files").mkdir()
    dataset = make(hugging_face, tmp_path / "made")
    files = WAYS[way](dataset, hugging_face, tmp_path / "files")
    image, label = DATASETS[make]
    # Rows without an image or a label are left out.
    lacks = make in (hub_datasets.with_nulls, hub_datasets.types)
    index(files, tmp_path / "out", workers=1, skip_bad=lacks)
    opened = ImageDataset(tmp_path / "out")
    # Of bytes that are no media, `datasets` compresses the column.
    decoded = way == "snappy" or (way == "pushed" and make is hub_datasets.types)
    assert opened.manifest.container == ("tables" if decoded else "archives")
    if make is hub_datasets.kinds:
        label = ""  # one of two columns of classes, neither of a usual name
    label = label or ("label" if "label" in dataset.column_names else "")
    rows = [
        row for row in stored(dataset, hugging_face)
        if value_at(row, image) is not None and (not label or row[label] is not None)
    ]  # fmt: skip
    assert len(opened) == len(rows) >= (5 if lacks else 7)
    assert opened.read(range(len(rows))) == [value_at(row, image)["bytes"] for row in rows]
    if label:
        assert opened.targets == [row[label] for row in rows]
        assert opened.classes[:3] == getattr(dataset.features[label], "names", opened.classes)[:3]
    names = {one.name: one for one in opened.source.fields if one.name not in ("image", "label")}
    left_out = {image.partition(".")[0], label, "width", "__key__", "__url__", "key"}
    assert {*dataset.column_names} - left_out <= {*names}
    for name, field in names.items():
        if field.kind == "column":
            assert plain(_listed(opened.column(name))) == plain([row[name] for row in rows]), name
            continue
        for number, row in enumerate(rows):
            if (value := row[name]) is not None:
                data = opened.source.encoded(number, name).data
                assert data == (value["bytes"] if isinstance(value, dict) else value), name


def _listed(column: Any) -> Any:
    return column.to_pylist() if isinstance(column, pa.Array) else column.tolist()


@pytest.mark.parametrize("way", ["pushed", pytest.param("snappy", marks=pytest.mark.slow)])
def test_bad_rows_are_left_out_on_first_use(
    way: str, hugging_face: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FASTDATA_CACHE_DIR", str(tmp_path / "kept"))
    (tmp_path / "files").mkdir()
    dataset = hub_datasets.with_nulls(hugging_face, tmp_path)
    files = WAYS[way](dataset, hugging_face, tmp_path / "files")
    with pytest.warns(UserWarning, match="2 samples without a sound image or label are left out"):
        opened = ImageDataset(files, Resize((9, 9)), fields=("image", "text"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", SlowPathWarning)
        assert len(ImageDataset(files)) == 5
    loader: Any = DataLoader(opened, 2, num_workers=1, require_native=True)
    texts = [text for batch in loader for text in batch["text"]]
    assert texts == [dataset[n]["text"] for n in (0, 1, 3, 5, 6)]
