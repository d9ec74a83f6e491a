"""`ImageDataset.from_table`: tables in memory and lists, with the pixels that Pillow decodes."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as pa
import pytest
import torch
from hub_datasets import jpeg, mask
from PIL import Image

from fastdata import DataLoader, ImageDataset, Mixture
from fastdata.errors import DatasetError, UsageError
from fastdata.transforms import Compose, Pad, RandomHorizontalFlip, RandomResizedCrop

ROWS = 9
FILES = [jpeg(number) for number in range(ROWS)]
LABELS = [number % 3 for number in range(ROWS)]
CROP = RandomResizedCrop(16)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number, data in enumerate(FILES):
        (tmp_path / f"{number}.jpg").write_bytes(data)
        (tmp_path / f"{number}_mask.png").write_bytes(mask(number, "L"))
    return tmp_path


class Streamed:
    """A table of a library that has Arrow's C stream alone, as polars has."""

    def __init__(self, **columns: Any) -> None:
        self._table = pa.table(columns)

    def __arrow_c_stream__(self, schema: Any = None) -> Any:
        return self._table.__arrow_c_stream__(schema)


#: Tables of the same rows, by absolute paths and labels.
TABLES: dict[str, Callable[[list[str], list[int]], Any]] = {
    "pandas": lambda paths, labels: pandas.DataFrame({"path": paths, "label": labels}).iloc[:],
    "categories": lambda paths, labels: pandas.DataFrame(
        {"path": paths, "label": pandas.Categorical([f"c{label}" for label in labels])}
    ),
    "pyarrow": lambda paths, labels: pa.table({"path": paths, "label": labels}),
    "stream": lambda paths, labels: Streamed(path=pa.array(paths, pa.string_view()), label=labels),
    "dict": lambda paths, labels: {"image": map_list(Path, paths), "label": np.array(labels)},
    "floats": lambda paths, labels: {"image": paths, "label": [float(one) for one in labels]},
    "tensors": lambda paths, labels: {"image": np.array(paths), "label": torch.tensor(labels)},
    "pairs": lambda paths, labels: list(zip(paths, labels, strict=True)),
    "dicts": lambda paths, labels: [
        {"path": path, "label": f"c{label}"} for path, label in zip(paths, labels, strict=True)
    ],
    "bytes": lambda paths, labels: {"image": FILES, "label": labels},
    "structs": lambda paths, labels: {
        "image": [{"bytes": None, "path": path} for path in paths], "label": labels
    },
}  # fmt: skip


def map_list(function: Callable[[Any], Any], values: list[Any]) -> list[Any]:
    return list(map(function, values))


@pytest.mark.parametrize("kind", TABLES)
def test_tables_of_any_library_are_native(kind: str, root: Path) -> None:
    table = TABLES[kind]([str(root / f"{number}.jpg") for number in range(ROWS)], LABELS)
    dataset = ImageDataset.from_table(table, CROP)
    assert len(dataset.classes) == 3 and dataset.targets == LABELS
    for copy in (dataset, pickle.loads(pickle.dumps(dataset))):
        for row in range(ROWS):
            with Image.open(root / f"{row}.jpg") as image:
                assert np.array_equal(copy.open_image(row), image.convert("RGB"))
    loader = DataLoader(dataset, 4, shuffle=True, seed=1, num_workers=2, require_native=True)
    assert "staged" not in loader.explain() + repr(dataset)
    batches = list(loader)
    other = DataLoader(dataset, 4, shuffle=True, seed=1, require_native=True)
    first = iter(other)
    next(first)
    state = other.state_dict()
    resumed = DataLoader(dataset, 4, shuffle=True, seed=1, require_native=True)
    resumed.load_state_dict(state)
    rest = [*resumed]
    assert len(rest) == 2
    for (images, labels), (expected, wanted) in zip(rest, batches[1:], strict=True):
        assert torch.equal(images, expected) and torch.equal(labels, wanted)


def test_ranks_share_a_table_and_a_mixture_draws_from_it(root: Path) -> None:
    files = ImageDataset.from_table([f"{n}.jpg" for n in range(ROWS)], CROP, root=root)
    seen: list[str] = []
    for rank in range(2):
        dataset = ImageDataset.from_table(
            [f"{n}.jpg" for n in range(ROWS)], CROP, root=root, fields=("image", "key")
        )
        loader = DataLoader(dataset, 2, shuffle=True, shard=(rank, 2), require_native=True)
        seen += [key for batch in loader for key in batch["key"]]
    assert set(seen) == {f"{n}.jpg" for n in range(ROWS)}
    mixture = Mixture({"a": (files, 1), "b": (ImageDataset.from_table(FILES, CROP), 1)})
    assert all(len(images) for (images,) in DataLoader(mixture, 4, require_native=True))


def test_columns_are_fields_whatever_their_names(root: Path) -> None:
    names = ["a b", "_id", "123", "キャプション"]
    frame = pandas.DataFrame(
        {
            "file_name": [f"{n}.jpg" for n in range(ROWS)],
            "mask": [f"{n}_mask.png" for n in range(ROWS)],
            **{name: range(ROWS) for name in names},
        }
    )
    fields = ("image", "mask", "key", *names)
    dataset = ImageDataset.from_table(frame, root=root, fields=fields)
    for row in (0, 8):
        sample = dataset[row]
        assert [sample[name] for name in names] == [row] * 4 and sample["key"] == f"{row}.jpg"
        with Image.open(root / f"{row}_mask.png") as image:
            assert np.array_equal(sample["mask"], image)
    dataset = ImageDataset.from_table(frame, CROP, root=root, fields=("image", *names))
    batch = next(iter(DataLoader(dataset, 3, require_native=True)))
    assert all(batch[name].tolist() == [0, 1, 2] for name in names)


@pytest.mark.parametrize("shape", [(20, 12, 8, 3), (20, 12, 8), (20, 12, 8, 1)])
def test_arrays_of_pixels_need_no_crop(shape: tuple[int, ...]) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    rgb = np.broadcast_to(pixels.reshape(20, 12, 8, -1), (20, 12, 8, 3))
    table = {"image": torch.from_numpy(pixels), "label": np.arange(20) % 2 == 0}
    dataset = ImageDataset.from_table(table, Compose([RandomHorizontalFlip(1.0), Pad(1)]))
    assert dataset.image_size == (8, 12) and dataset.targets[:2] == [1, 0]
    assert np.array_equal(dataset.open_image(7), rgb[7])
    images = torch.cat([images for images, _ in DataLoader(dataset, 6, require_native=True)])
    expected = np.pad(rgb[:, :, ::-1], ((0, 0), (1, 1), (1, 1), (0, 0)))
    assert np.array_equal(images.permute(0, 2, 3, 1), expected)


def test_files_of_one_size_in_memory_need_no_crop(root: Path) -> None:
    same = [FILES[0]] * 300
    loader = DataLoader(ImageDataset.from_table(same, RandomHorizontalFlip()), 7)
    assert loader.explain().startswith("native")
    # A file may be replaced, and another image differ.
    for table in ([root / "0.jpg"] * 3, [*same, FILES[1]]):
        assert ImageDataset.from_table(table).image_size is None


def test_masks_follow_their_image(v2: Any) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6, 12, 8, 3), np.uint8)
    table = {"image": pixels, "segmentation": pixels[..., 0]}
    both = v2.Compose([v2.RandomHorizontalFlip(1.0), v2.ToImage()])
    fields = ("image", "segmentation")
    dataset = ImageDataset.from_table(table, transforms=both, fields=fields)
    (batch,) = DataLoader(dataset, 6, require_native=True)
    assert np.array_equal(batch[0].permute(0, 2, 3, 1), pixels[:, :, ::-1])
    assert np.array_equal(batch[1].reshape(6, 12, 8), pixels[:, :, ::-1, 0])
    with pytest.warns(UserWarning, match="'segmentation'"):
        ImageDataset.from_table(table, transforms=both)


def test_missing_files_and_values_name_their_row(root: Path) -> None:
    table = {"path": ["0.jpg", None, "none.jpg", "0.jpg\0"], "label": [0, 1, 0, 1]}
    dataset = ImageDataset.from_table(table, CROP, root=root)
    assert dataset[1] == dataset[3] == (None, 1)
    where = rf"sample 2 \(none\.jpg\).*{root}/none\.jpg"
    with pytest.raises(DatasetError, match=where):
        dataset[2]
    loader = DataLoader(dataset, 1, sampler=[2], require_native=True)
    with pytest.raises(DatasetError, match=where):
        list(loader)
    loader = DataLoader(dataset, 4, on_error="zero", require_native=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (batch,) = loader
    assert batch[-1].tolist() == [True, False, False, False]


BAD: dict[str, tuple[Any, dict[str, Any]]] = {
    "no table": (5, {}),
    "a path": ("x.csv", {}),
    "no images": ({"y": [1]}, {}),
    "numbers": ({"image": [1]}, {}),
    "images of Pillow": ([Image.new("RGB", (2, 2))], {}),
    "channels first": (np.zeros((2, 3, 8, 9), np.uint8), {}),
    "floats": (np.zeros((2, 8, 9, 3)), {}),
    "one image": (np.zeros((8, 9, 3), np.uint8), {}),
    "arrays that differ": ([np.zeros((2, 2, 3), np.uint8), np.zeros((3, 2, 3), np.uint8)], {}),
    "lengths": ({"path": ["a"], "label": [1, 2]}, {}),
    "types": ({"path": ["a", "b"], "x": [1, "b"]}, {}),
    "no column": ({"path": ["a"]}, {"label": "y"}),
    "labels beside it": (["a"], {"label": [1]}),
    "rows of three": ([("a", 1, "x")], {}),
    "parts of classes": ({"path": ["a"], "y": [0.5]}, {"label": "y"}),
    "no class": ({"path": ["a", "b"], "y": ["cat", None]}, {"label": "y"}),
    "another class": ({"path": ["a"], "label": ["cat"]}, {"classes": ["dog"]}),
    "too few classes": ({"path": ["a"], "label": [1]}, {"classes": ["dog"]}),
    "no labels": ({"path": ["a"]}, {"classes": ["dog"]}),
    "a mask of numbers": ({"path": ["a"], "x": [1]}, {"formats": {"x": "mask"}}),
    "labels that are images": ({"path": ["a"]}, {"label": "path"}),
    "no rows": (np.array(3), {}),
    "an unknown mask": ({"path": ["a"]}, {"formats": {"x": "mask"}}),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_table_of_images(name: str) -> None:
    table, options = BAD[name]
    with pytest.raises(UsageError) as caught:
        ImageDataset.from_table(table, CROP, **options)
    assert caught.value.hint


def test_an_odd_transform_is_named_by_its_class() -> None:
    with pytest.raises(UsageError, match="list") as caught:
        ImageDataset.from_table(["a"] * 1000, [0] * 1000)  # labels where a transform goes
    assert "column" in str(caught.value) and len(str(caught.value)) < 200


def test_without_a_transform_the_advice_fits_images_of_one_size() -> None:
    dataset = ImageDataset.from_table(np.zeros((2, 12, 8, 3), np.uint8))
    with pytest.raises(UsageError, match=r"CenterCrop\(\(12, 8\)\)"):
        next(iter(DataLoader(dataset, 2)))


def test_empty_bytes_are_a_value() -> None:
    values = [b"", None, b"a", *[b"b"] * 6]
    dataset = ImageDataset.from_table(
        {"image": FILES, "feature": values}, CROP, fields=("image", "feature")
    )
    assert [dataset[row]["feature"] for row in range(ROWS)] == values
    (batch,) = DataLoader(dataset, ROWS, require_native=True)
    assert batch["feature"] == values


@pytest.mark.parametrize("label", [None, -1, 1 << 40, 1e300])
def test_labels_that_are_no_classes_stay_fields(label: Any) -> None:
    table = {"image": FILES, "label": [label, *LABELS[1:]], "scores": [0.5] * ROWS}
    dataset = ImageDataset.from_table(table, fields=("image", "label", "scores"))
    assert dataset.classes == [] and dataset[0]["label"] == label and dataset[1]["label"] == 1


@pytest.mark.parametrize("wrapped", [False, True])
def test_classes_of_transforms_are_refused(tv: Any, wrapped: bool) -> None:
    transform = tv.Compose([tv.Resize(8), tv.ToTensor]) if wrapped else RandomResizedCrop
    with pytest.raises(UsageError) as caught:
        ImageDataset.from_table(FILES, transform)
    assert "(…)" in caught.value.hint
    assert ImageDataset.from_table({"image": FILES, "label": LABELS}, None, str)[1][1] == "1"
