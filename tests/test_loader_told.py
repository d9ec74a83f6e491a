"""What a loader tells of slower paths: one warning for a transform, one for images; the errors of
``require_native``; and `explain`."""

from __future__ import annotations

import importlib.util
import warnings
from typing import Any

import pytest
import torch
from containers import pack_tree
from jpegs import encode, picture
from loader_data import as_file, folder
from PIL import Image
from torch import nn
from torchvision_stub import import_torchvision

from fastdata import DataLoader, ImageDataset, fast_collate
from fastdata import transforms as t
from fastdata.errors import FallbackWarning, SlowPathWarning, UsageError

if importlib.util.find_spec("torchvision") is None:
    pytest.skip("torchvision is not installed (make setup)", allow_module_level=True)
torchvision = import_torchvision()
datasets, transforms = torchvision.datasets, torchvision.transforms

CROP = t.Compose([t.RandomResizedCrop(8), t.RandomHorizontalFlip()])

#: Files whose kind the native core does not decode, and what the warning calls it.
KINDS = {
    "progressive JPEG of mode RGB": ("jpg", as_file(picture(40, 30), "JPEG", progressive=True)),
    "JPEG of mode CMYK": ("jpg", as_file(picture(40, 30), "JPEG", "CMYK")),
    "PNG of mode P": ("png", as_file(picture(40, 30), "PNG", "P")),
    "WEBP of mode RGB": ("webp", as_file(picture(40, 30), "WEBP")),
}


def tree(files: list[tuple[str, bytes]]) -> Any:
    """A folder of one class."""
    root = folder() / "tree"
    (root / "a").mkdir(parents=True)
    for number, (extension, data) in enumerate(files):
        (root / "a" / f"{number}.{extension}").write_bytes(data)
    return root


def baseline(count: int) -> list[tuple[str, bytes]]:
    return [("jpg", encode(picture(40, 30, number), "4:2:0")) for number in range(count)]


def images(container: str, files: list[tuple[str, bytes]], transform: Any = CROP) -> ImageDataset:
    """The files as a dataset: packed, or torchvision's folder."""
    root = tree(files)
    if container == "ImageFolder":
        return ImageDataset(datasets.ImageFolder(root), transform=transform)
    packed = folder() / container
    pack_tree(root, packed, container)
    return ImageDataset(packed, transform=transform)


def told(category: type[Warning], loader: Any, epochs: int = 2) -> list[str]:
    """What passes over a loader warn of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(epochs):
            for _ in loader:
                pass
    return [str(one.message) for one in caught if issubclass(one.category, category)]


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("container", ["lmdb", "folder", "ImageFolder"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_image_that_pillow_decodes_is_named_once(
    kind: str, container: str, threads: int
) -> None:
    files = [*baseline(2), KINDS[kind], *baseline(1), KINDS[kind]]
    dataset = images(container, files)
    named = (
        "sample 2 (a/2) in " if container != "ImageFolder" else f"a/2.{KINDS[kind][0]}: sample 2:"
    )
    loader = DataLoader(dataset, batch_size=2, num_workers=threads)
    (words,) = told(FallbackWarning, loader)
    assert named in words
    assert f"decoded by Pillow, which is slower, as it is a {kind}." in words
    assert "stats().by_pillow" in words
    assert loader.stats().by_pillow == 2
    # Each loader tells anew.
    assert len(told(FallbackWarning, DataLoader(dataset, batch_size=2), epochs=1)) == 1


def test_nothing_is_told_where_the_core_decodes_all() -> None:
    loader = DataLoader(images("lmdb", baseline(5)), batch_size=2)
    assert told(UserWarning, loader) == []
    assert loader.stats().by_pillow == 0


def test_an_image_that_needs_padding_is_told_so() -> None:
    dataset = images("lmdb", baseline(2), t.Compose([t.CenterCrop(64)]))
    (words,) = told(FallbackWarning, DataLoader(dataset, batch_size=2))
    assert "sample 0" in words and "as its crop needs padding." in words


def test_a_sample_that_is_skipped_is_not_told_of_as_pillows() -> None:
    progressive = as_file(picture(40, 30), "JPEG", progressive=True)
    dataset = images("ImageFolder", [*baseline(3), ("png", b"no image")], CROP)
    loader = DataLoader(dataset, batch_size=2, on_error="skip")
    assert told(FallbackWarning, loader) == []
    dataset = images("ImageFolder", [("png", b"no image"), ("jpg", progressive)], CROP)
    (words,) = told(FallbackWarning, DataLoader(dataset, batch_size=2, on_error="zero"))
    assert "sample 1" in words


# A transform that the core does not know.

ELASTIC = transforms.ElasticTransform(1.0, 0.5)


def unknown(*steps: Any) -> Any:
    return transforms.Compose([transforms.RandomResizedCrop(8), *steps, transforms.ToTensor()])


@pytest.mark.parametrize("container", ["lmdb", "ImageFolder"])
def test_an_unknown_transform_is_one_warning(container: str) -> None:
    dataset = images(container, baseline(3), unknown(ELASTIC))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = DataLoader(dataset, batch_size=2)
        for _ in range(2):
            assert sum(len(labels) for _, labels in loader) == 3
    (warning,) = caught
    words = str(warning.message)
    assert "the workers path, which is several times slower than the native one" in words
    assert "ElasticTransform" in words and "RandomResizedCrop" not in words
    assert loader.explain().splitlines()[2].startswith("for the native path: ")
    assert words.splitlines()[1] == loader.explain().splitlines()[2].split(": ", 1)[1]
    assert warning.filename == __file__


def test_a_transform_set_later_is_told_of_when_iteration_begins() -> None:
    dataset = images("lmdb", baseline(3))
    loader = DataLoader(dataset, batch_size=3)
    assert told(SlowPathWarning, loader) == []
    dataset.transform = unknown(ELASTIC)
    assert len(told(SlowPathWarning, loader)) == 1


def test_a_transform_that_is_known_is_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = DataLoader(images("lmdb", baseline(2), unknown()), batch_size=2)
        assert loader.explain().startswith("native")


def test_explain_names_the_unknown_step_alone() -> None:
    steps = [
        transforms.RandomResizedCrop(8),
        ELASTIC,
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        transforms.Normalize((0.5,) * 3, (0.5,) * 3),
    ]
    with pytest.warns(SlowPathWarning, match="ElasticTransform"):
        loader = DataLoader(images("lmdb", baseline(2), transforms.Compose(steps)), batch_size=2)
    words = loader.explain()
    assert "ElasticTransform" in words
    assert not any(type(one).__name__ in words for one in steps if one is not ELASTIC)


class Wrapping(nn.Module):
    """As many training scripts have it."""

    def __init__(self) -> None:
        super().__init__()
        self.transform = transforms.Compose(
            [transforms.RandomResizedCrop(8), transforms.ToTensor()]
        )

    def forward(self, image: Image.Image) -> Any:
        return self.transform(image)


def test_explain_tells_what_to_do_about_a_module_that_wraps_a_compose() -> None:
    with pytest.warns(SlowPathWarning, match="Wrapping"):
        loader = DataLoader(images("lmdb", baseline(2), Wrapping()), batch_size=2)
    words = loader.explain()
    assert words.startswith("torch: ") and "Wrapping" in words
    assert "It wraps a Compose: hand over that, its 'transform', itself." in words
    fixed = DataLoader(images("lmdb", baseline(2), Wrapping().transform), batch_size=2)
    assert fixed.explain().startswith("native")


# Requiring the native path.


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter([])


def no_init(_: int) -> None:
    """For worker processes."""


@pytest.mark.parametrize(
    ("transform", "options", "words"),
    [
        (unknown(ELASTIC), {}, "ElasticTransform"),
        (Wrapping(), {}, "Wrapping"),
        (CROP, {"collate_fn": list}, "the collate_fn list wants single samples"),
        (CROP, {"worker_init_fn": no_init, "num_workers": 1}, "a worker_init_fn was given"),
        (CROP, {"batch_size": None}, "batch_size=None asks for single samples"),
        (transforms.RandomResizedCrop(8), {}, "PIL images"),
        (unknown(), {"collate_fn": fast_collate}, "fast_collate takes uint8 images"),
        (None, {}, ""),
    ],
)
def test_any_other_path_is_an_error_where_the_native_one_is_required(
    transform: Any, options: dict[str, Any], words: str
) -> None:
    dataset = images("lmdb", baseline(2), transform)
    options = {"batch_size": 2, **options}
    with pytest.raises(UsageError, match="require_native=True needs the native path") as caught:
        DataLoader(dataset, require_native=True, **options)
    assert words in caught.value.what and caught.value.hint


@pytest.mark.parametrize("dataset", [Stream(), [1, 2, 3]])
def test_datasets_that_fastdata_cannot_read_are_refused_where_native_is_required(
    dataset: Any,
) -> None:
    with pytest.raises(UsageError, match=f"{type(dataset).__name__}|IterableDataset"):
        DataLoader(dataset, require_native=True)


def test_the_native_path_meets_its_requirement() -> None:
    dataset = images("ImageFolder", [*baseline(2), KINDS["PNG of mode P"]])
    loader = DataLoader(dataset, batch_size=3, require_native=True)
    # Single images may be Pillow's.
    assert len(told(FallbackWarning, loader)) == 1
