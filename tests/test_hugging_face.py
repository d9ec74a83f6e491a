"""`datasets.Dataset` in place: the values that `datasets` gives, natively."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hub_datasets
import numpy as np
import pytest
import torch
from hub_datasets import DATASETS
from PIL import Image

from fastdata import DataLoader, ImageDataset, Ragged
from fastdata.errors import DatasetError, SampleError, SlowPathWarning, UsageError
from fastdata.storage.fields import IMAGE, LABEL
from fastdata.transforms import CenterCrop, RandomResizedCrop, Resize

# `datasets` leaves files of metadata open.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

Make = Callable[[Any, Path], Any]


def value_at(row: dict[str, Any], name: str) -> Any:
    if name in row:
        return row[name]
    first, _, rest = name.partition(".")
    return None if row[first] is None else value_at(row[first], rest)


def plain(value: Any) -> Any:
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
    if field == IMAGE:
        found = value_at(row, image)
        return found if getattr(found, "mode", "") == "L" and image == "image" else as_rgb(found)
    found = value_at(row, label if field == LABEL else field.name)
    return as_rgb(found) if field.kind == "image" else found


_FIRST = ("classes", "old_parquet", "with_nulls", "nested", "questions", "types", "kinds")


@pytest.fixture(
    params=[
        pytest.param(one, marks=[pytest.mark.slow] * (one.__name__ not in _FIRST))
        for one in DATASETS
    ],
    ids=lambda make: make.__name__,
)
def made(request: pytest.FixtureRequest, hugging_face: Any, tmp_path: Path) -> Any:
    """A dataset; the rows that `datasets` gives; its columns of image and label."""
    make: Make = request.param
    (tmp_path / "data").mkdir()
    dataset = make(hugging_face, tmp_path / "data")
    image, label = DATASETS[make]
    decoding = dataset
    if make is hub_datasets.undecoded:
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
        for (name, field), value in zip(schema.items(), opened[at].values(), strict=True):
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
            assert tuple(batch) == opened.fields
            columns = [one.list() if isinstance(one, Ragged) else [*one] for one in batch.values()]
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


# --- the dataset itself -----------------------------------------------------------------------


def dataset_of(datasets: Any, root: Path, make: Make = hub_datasets.shards_on_disk) -> Any:
    (root / "made").mkdir()
    return make(datasets, root / "made")


@pytest.fixture
def rows(hugging_face: Any) -> Any:
    features = {
        "image": hugging_face.Image(),
        "label": hugging_face.ClassLabel(names=hub_datasets.NAMES),
        "text": hugging_face.Value("string"),
        "boxes": hugging_face.List(hugging_face.Value("float32"), length=4),
        "number": hugging_face.Value("float32"),
    }
    images = [hub_datasets.turned(number) for number in range(11)]
    images[4] = hub_datasets.encoded(hub_datasets.pixels(4).convert("L"))
    columns = {
        "image": list(map(hub_datasets.cell, images)),
        "label": [number % 3 for number in range(11)],
        "text": [f"text {number}" for number in range(11)],
        "boxes": [[number / 3] * 4 for number in range(11)],
        "number": [number / 3 for number in range(11)],
    }
    return hugging_face.Dataset.from_dict(columns, hugging_face.Features(features)).shuffle(seed=2)


def steps(v2: Any) -> Any:
    size = [v2.Resize(24), v2.CenterCrop(20)]
    return v2.Compose([*size, v2.ToImage(), v2.ToDtype(torch.float32, scale=True)])


def test_the_line_that_a_warning_shows_works(rows: Any, v2: Any) -> None:
    with pytest.warns(SlowPathWarning) as warned:
        DataLoader(rows.with_format("torch"), 4)
    words = str(warned[0].message)
    line = words[words.index("fastdata.ImageDataset(") : words.index(", where transform")]
    with pytest.warns(UserWarning, match="makes its samples itself"):
        DataLoader(rows, 4)
    import fastdata

    code = line.replace("...", "transform")
    names = {"fastdata": fastdata, "dataset": rows, "transform": steps(v2)}
    loader: Any = DataLoader(eval(code, names), 4, require_native=True)
    found = torch.cat([batch["label"] for batch in loader]).tolist()
    assert found == rows["label"][:]


# --- what ImageDataset makes of it -------------------------------------------------------------


def oriented(datasets: Any, root: Path) -> Any:
    files = [root / f"{number}.jpg" for number in range(9)]
    for number, path in enumerate(files):
        path.write_bytes(hub_datasets.turned(number))
    values = [hub_datasets.cell(hub_datasets.turned(number)) for number in range(9)]
    columns = {"image": values + list(map(str, files)), "second": values * 2}
    features = datasets.Features({"image": datasets.Image(), "second": datasets.Image()})
    return datasets.Dataset.from_dict(columns, features)


def test_images_are_turned_as_datasets_turns_them(hugging_face: Any, tmp_path: Path) -> None:
    dataset = oriented(hugging_face, tmp_path)
    crops = {"image": CenterCrop(20), "second": CenterCrop(20)}
    opened = ImageDataset(dataset, crops, fields=("image", "second"))
    loader: Any = DataLoader(opened, 6, num_workers=1, require_native=True)
    for _ in range(2):
        batches = list(loader)
        for name in ("image", "second"):
            images = torch.cat([batch[name] for batch in batches])
            for number, row in enumerate(dataset):
                width, height = row[name].size
                left, top = round((width - 20) / 2), round((height - 20) / 2)
                wanted = row[name].crop((left, top, left + 20, top + 20))
                pixels = images[number].permute(1, 2, 0).numpy().astype(int)
                assert np.abs(pixels - np.asarray(wanted)).max() <= 1, (number, name)
    assert loader.stats().by_pillow == 0
    as_stored = ImageDataset(dataset, exif_transpose=False)
    assert as_stored[5][0].size == (45, 30) and ImageDataset(dataset)[5][0].size == (30, 45)


MAPPINGS: dict[str, Callable[[Any], Any]] = {
    "shuffle": lambda one: one.shuffle(seed=3),
    "select": lambda one: one.select([6, 1, 1, 0]),
    "split": lambda one: one.train_test_split(0.4, seed=1)["test"],
    "filter": lambda one: one.filter(lambda label: label != 1, input_columns="label"),
    "again": lambda one: one.shuffle(seed=3).select(range(1, 6)).shuffle(seed=4),
    "none": lambda one: one.select([]),
    "renamed": lambda one: one.rename_column("image", "photo").shuffle(seed=1),
    "flat": lambda one: one.shuffle(seed=1).flatten_indices(),
}


@pytest.mark.filterwarnings("ignore:Specifying null_placement")
@pytest.mark.parametrize("name", MAPPINGS)
def test_mappings_of_rows(name: str, hugging_face: Any, tmp_path: Path) -> None:
    mapped = MAPPINGS[name](dataset_of(hugging_face, tmp_path))
    column = "photo" if name == "renamed" else "image"
    opened = ImageDataset(mapped, Resize((16, 12)))
    assert len(opened) == len(mapped) and opened.targets == mapped["label"][:]
    batches = list(DataLoader(opened, 3, num_workers=1, require_native=True))
    images = [image for images, _ in batches for image in images]
    for row, image in zip(mapped, images, strict=True):
        resized = row[column].resize((12, 16), Image.Resampling.BILINEAR)
        assert np.abs(image.permute(1, 2, 0).numpy().astype(int) - np.asarray(resized)).max() <= 1


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_torchs_workers(start: str, hugging_face: Any, tmp_path: Path) -> None:
    saved = dataset_of(hugging_face, tmp_path)
    opened = ImageDataset(saved.shuffle(seed=1), CenterCrop(8), fields=("image", "label", "key"))
    options: Any = {"num_workers": 2, "multiprocessing_context": start}
    for one in (opened, torch.utils.data.Subset(opened, [3, 1])):
        loader = torch.utils.data.DataLoader(one, 2, **options)
        found = [key for batch in loader for key in batch["key"]]
        assert found == [one[at]["key"] for at in range(len(one))]


def photographs(datasets: Any, root: Path) -> Any:
    cells = [
        hub_datasets.cell(hub_datasets.encoded(hub_datasets.pixels(at, (500, 400)), quality=90))
        for at in range(12)
    ]
    columns = {"image": cells, "label": [at % 3 for at in range(12)]}
    names = datasets.ClassLabel(names=hub_datasets.NAMES)
    features = datasets.Features({"image": datasets.Image(), "label": names})
    datasets.Dataset.from_dict(columns, features).save_to_disk(root / "saved", num_shards=2)
    return datasets.load_from_disk(root / "saved")


def test_seek_points_are_learnt_and_kept(hugging_face: Any, tmp_path: Path) -> None:
    saved, file = photographs(hugging_face, tmp_path), tmp_path / "points"
    crop = RandomResizedCrop(32)

    def seekable(dataset: Any, epochs: int = 1) -> int:
        opened = ImageDataset(dataset, crop, cache=file)
        loader: Any = DataLoader(opened, 4, num_workers=1, seed=1, require_native=True)
        for _ in range(epochs):
            list(loader)
        return int(loader.stats().with_seek_points)

    assert seekable(saved) == 0
    # Rows are known again in another order, and in a part.
    assert seekable(saved.shuffle(seed=1)) == 12
    assert seekable(saved.shuffle(seed=2).select(range(5))) == 5
    # A part without a mapping is another table.
    assert seekable(saved.select(range(3, 8))) == 0
    assert seekable(hugging_face.Dataset.from_list(list(saved)), 2) == 12


def test_errors_name_the_row_and_the_file(hugging_face: Any, tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    path.write_bytes(hub_datasets.jpeg(0))
    damaged = hub_datasets.jpeg(1)[:-200]

    def rows() -> Iterator[dict[str, Any]]:
        yield {"image": {"bytes": hub_datasets.jpeg(2), "path": "good.jpg"}, "label": 0}
        yield {"image": str(path), "label": 1}
        yield {"image": {"bytes": damaged, "path": "damaged.jpg"}, "label": 2}
        yield {"image": {"bytes": b"no image", "path": None}, "label": 0}
        yield {"image": None, "label": 1}
        yield {"image": {"bytes": None, "path": "https://nowhere.invalid/a.jpg"}, "label": 1}

    names = hugging_face.ClassLabel(names=hub_datasets.NAMES)
    features = hugging_face.Features({"image": hugging_face.Image(), "label": names})
    made = hugging_face.Dataset.from_generator(rows, features, cache_dir=str(tmp_path / "cache"))
    path.unlink()
    (arrow,) = (one["filename"] for one in made.cache_files)
    wanted = {
        1: (DatasetError, f"sample 0 (1:{path}) in {arrow}: "),
        2: (SampleError, f"sample 1 (2:damaged.jpg) in {arrow}: "),
        3: (SampleError, f"sample 2 (3) in {arrow}: "),
        4: (SampleError, f"sample 3 (4) in {arrow}: it has no image"),
        5: (DatasetError, f"sample 4 (5:https://nowhere.invalid/a.jpg) in {arrow}: "),
    }
    opened = ImageDataset(made.select([1, 2, 3, 4, 5, 0]), Resize((8, 8)))
    for sample, (row, (kind, words)) in enumerate(wanted.items()):
        loader: Any = DataLoader(opened, 1, sampler=[sample], num_workers=1)
        with pytest.raises(kind) as raised:
            list(loader)
        assert words in str(raised.value), row
        if row != 4:
            with pytest.raises(kind) as raised:
                opened[sample]
            assert words in str(raised.value), row
    with pytest.raises(DatasetError, match=r"its image is at https://nowhere(.|\n)*embed_table"):
        opened[4]
    with pytest.raises(DatasetError, match=f"its image is missing: {path}"):
        opened[0]
    assert opened[3] == (None, 1)  # as `datasets` has it
    skipping: Any = DataLoader(opened, 6, num_workers=1, on_error="drop")
    with pytest.warns(UserWarning, match="5 samples could not be decoded"):
        ((_, labels),) = skipping
    assert labels.tolist() == [0]


def test_boxes_in_a_dict_follow_their_image(hugging_face: Any, tmp_path: Path, v2: Any) -> None:
    from torchvision import tv_tensors

    dataset = dataset_of(hugging_face, tmp_path, hub_datasets.objects_jsonl)
    transform = v2.Compose([v2.RandomHorizontalFlip(1.0), v2.Resize((60, 80)), v2.ToImage()])
    opened = ImageDataset(
        dataset,
        transforms=transform,
        fields=("image", "objects.bbox", "objects.categories"),
        formats={"objects.bbox": "xywh"},
    )
    loader: Any = DataLoader(opened, 1, num_workers=1, require_native=True, collate_fn=list)
    for row, ((image, target),) in zip(dataset, loader, strict=True):
        box = row["objects"]["bbox"] or torch.zeros(0, 4)
        size = row["image"].size[::-1]
        boxes = tv_tensors.BoundingBoxes(box, format="XYWH", canvas_size=size)
        boxes = v2.functional.convert_bounding_box_format(boxes, new_format="XYXY")
        _, wanted = transform(row["image"].convert("RGB"), boxes)
        assert image.shape[1:] == (60, 80)
        assert torch.allclose(target["objects.bbox"], wanted.float(), atol=1e-3)
        assert target["objects.categories"].tolist() == row["objects"]["categories"]


def test_masks_follow_their_image(hugging_face: Any, tmp_path: Path, v2: Any) -> None:
    dataset = dataset_of(hugging_face, tmp_path, hub_datasets.segmentation)
    transform = v2.Compose([v2.RandomVerticalFlip(1.0), v2.CenterCrop(20), v2.ToImage()])
    opened = ImageDataset(dataset, transforms=transform, fields=("image", "annotation"))
    loader: Any = DataLoader(opened, 7, num_workers=1, require_native=True)
    ((_, masks),) = loader
    for row, mask in zip(dataset, masks, strict=True):
        wanted = transform(Image.fromarray(np.asarray(row["annotation"])))
        assert torch.equal(mask.squeeze(0), wanted.squeeze(0))
    kinds = {one.name: one.kind for one in opened.source.fields}
    assert kinds["annotation"] == kinds["instances_mask"] == "mask"
    other = ImageDataset(dataset, formats={"annotation": "image"})
    assert other.source.field("annotation").kind == "image"


def test_datasets_that_cannot_be_read(hugging_face: Any, tmp_path: Path) -> None:
    plain = hugging_face.Dataset.from_dict({"text": ["a"], "data": [b"x"]})
    with pytest.raises(UsageError, match=r"none of its columns is datasets.Image: text, data") as e:
        ImageDataset(plain)
    assert "cast_column(NAME, datasets.Image())" in str(e.value)
    made = hub_datasets.in_memory(hugging_face, tmp_path)
    with pytest.raises(UsageError, match=r"dataset\['train'\]"):
        ImageDataset(hugging_face.DatasetDict({"train": made}))
    with pytest.raises(UsageError, match="without streaming=True"):
        ImageDataset(made.to_iterable_dataset())
    with pytest.raises(UsageError, match=r"dataset.with_format\(None\), transform=") as e:
        ImageDataset(made.with_transform(lambda batch: batch))
    with pytest.raises(UsageError, match=r"of mode 'CMYK'.*\n.*cast_column"):
        ImageDataset(made.cast_column("image", hugging_face.Image(mode="CMYK")))
    with pytest.raises(UsageError, match="are for its columns of images: image"):
        ImageDataset(made, formats={"label": "mask"})
    with pytest.raises(UsageError, match="has no field 'img'"):
        ImageDataset(made, fields=("img",))
    with pytest.raises(UsageError, match="no index and no manifest"):
        ImageDataset(made).row(0)

    class Own(hugging_face.Dataset):  # type: ignore[misc]
        def __getitem__(self, key: Any) -> Any:
            return super().__getitem__(key)

    own = Own(made.data)
    with pytest.raises(UsageError, match="Own has its own __getitem__, which would not be called"):
        ImageDataset(own)
    with pytest.warns(UserWarning, match="has its own __getitem__"):
        DataLoader(own, 2)


# --- the column of the core -----------------------------------------------------------------
