"""Warnings of slower paths, the errors of ``require_native``, and `explain`."""

from __future__ import annotations

import importlib.util
import linecache
import re
import threading
import warnings
from collections.abc import Callable
from typing import Any

import arithmetic_jpegs
import pytest
import torch
from containers import pack_tree
from jpegs import encode, picture
from loader_data import as_file, folder
from PIL import Image
from torch import nn
from torchvision_stub import import_torchvision

from fastdata import DataLoader, DeviceLoader, ImageDataset, fast_collate
from fastdata import transforms as t
from fastdata.errors import FallbackWarning, SlowPathWarning, UsageError

if importlib.util.find_spec("torchvision") is None:
    pytest.skip("torchvision is not installed (make setup)", allow_module_level=True)
torchvision = import_torchvision()
datasets, transforms = torchvision.datasets, torchvision.transforms

CROP = t.Compose([t.RandomResizedCrop(8), t.RandomHorizontalFlip()])

#: Files that are Pillow's to decode, and what the warning calls them.
KINDS = {
    "progressive JPEG of mode CMYK": (
        "jpg",
        as_file(picture(40, 30), "JPEG", "CMYK", progressive=True),
    ),
    "arithmetic-coded JPEG of mode RGB": ("jpg", arithmetic_jpegs.RGB),
    "JPEG of mode CMYK": ("jpg", as_file(picture(40, 30), "JPEG", "CMYK")),
    "JPEG of mode RGB: something other than a marker": (
        "jpg",
        as_file(picture(40, 30), "JPEG").replace(b"\xff\xdb", b"garbage\xff\xdb", 1),
    ),
    "PNG of mode I;16": ("png", as_file(picture(40, 30)[..., 0].astype("uint16"), "PNG", "I;16")),
    "TIFF of mode CMYK": ("tiff", as_file(picture(40, 30), "TIFF", "CMYK")),
}


def tree(files: list[tuple[str, bytes]]) -> Any:
    root = folder() / "tree"
    (root / "a").mkdir(parents=True)
    for number, (extension, data) in enumerate(files):
        (root / "a" / f"{number}.{extension}").write_bytes(data)
    return root


def baseline(count: int) -> list[tuple[str, bytes]]:
    return [("jpg", encode(picture(40, 30, number), "4:2:0")) for number in range(count)]


def images(container: str, files: list[tuple[str, bytes]], transform: Any = CROP) -> ImageDataset:
    root = tree(files)
    if container == "ImageFolder":
        return ImageDataset(datasets.ImageFolder(root), transform=transform)
    packed = folder() / container
    pack_tree(root, packed, container)
    return ImageDataset(packed, transform=transform)


def told(category: type[Warning], loader: Any, epochs: int = 2) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(epochs):
            for _ in loader:
                pass
    return [str(one.message) for one in caught if issubclass(one.category, category)]


@pytest.mark.parametrize(
    ("kind", "container", "threads"),
    [
        (kind, ("lmdb", "folder", "ImageFolder")[number % 3], number % 2 * 2)
        for number, kind in enumerate(KINDS)
    ],
)
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
    assert re.search(f"decoded by Pillow, which is slower, as it is an? {kind}[.: ]", words)
    assert "stats().by_pillow" in words
    assert loader.stats().by_pillow == 2
    # Each loader warns again.
    assert len(told(FallbackWarning, DataLoader(dataset, batch_size=2), epochs=1)) == 1


@pytest.mark.parametrize("transform", [CROP, t.Compose([t.CenterCrop(64), t.Resize((32, 32))])])
@pytest.mark.parametrize("container", ["lmdb", "ImageFolder"])
def test_no_warning_where_the_core_decodes_all(container: str, transform: Any) -> None:
    loader = DataLoader(images(container, baseline(3), transform), batch_size=2)
    assert told(UserWarning, loader) == []
    assert loader.stats().by_pillow == 0


def test_a_sample_that_is_skipped_is_not_told_of_as_pillows() -> None:
    cmyk = as_file(picture(40, 30), "JPEG", "CMYK")
    dataset = images("ImageFolder", [*baseline(3), ("png", b"no image")], CROP)
    loader = DataLoader(dataset, batch_size=2, on_error="skip", order="sequential")
    assert told(FallbackWarning, loader) == []
    dataset = images("ImageFolder", [("png", b"no image"), ("jpg", cmyk)], CROP)
    (words,) = told(FallbackWarning, DataLoader(dataset, batch_size=2, on_error="zero"))
    assert "sample 1" in words


# A transform that the core does not know.

ELASTIC = transforms.ElasticTransform(1.0, 0.5)


def unknown(*steps: Any) -> Any:
    return transforms.Compose([transforms.RandomResizedCrop(8), *steps, transforms.ToTensor()])


def test_a_transform_set_later_is_told_of_when_iteration_begins() -> None:
    dataset = images("lmdb", baseline(3))
    loader = DataLoader(dataset, batch_size=3)
    assert told(SlowPathWarning, loader) == []
    dataset.transform = unknown(ELASTIC)
    assert len(told(SlowPathWarning, loader)) == 1


class Wrapping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.transform = transforms.Compose(
            [transforms.RandomResizedCrop(8), transforms.ToTensor()]
        )

    def forward(self, image: Image.Image) -> Any:
        image.load()
        return self.transform(image)


# Where it is told.


def lines_told(category: type[Warning], use: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        use()
    named = [one for one in caught if issubclass(one.category, category)]
    return [linecache.getline(one.filename, one.lineno).strip() for one in named]


class Mine(DataLoader[Any]):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)  # in Mine


def slow() -> Any:
    return images("lmdb", baseline(3), unknown(ELASTIC))


def declined() -> Any:
    cmyk = as_file(picture(40, 30), "JPEG", "CMYK")
    return images("ImageFolder", [("jpg", cmyk)] * 3, CROP)


@pytest.mark.parametrize("threads", [0, 2])
def test_a_warning_names_the_line_that_took_the_first_batch(threads: int) -> None:
    def loop() -> None:
        for _ in DataLoader(declined(), batch_size=2, num_workers=threads):  # the loop
            pass

    def call() -> None:
        iterator = iter(DeviceLoader(DataLoader(declined(), num_workers=threads), "cpu"))
        next(iterator)  # the call

    def in_a_thread() -> None:
        thread = threading.Thread(target=loop)
        thread.start()
        thread.join()

    for use, comment in ((loop, "# the loop"), (call, "# the call"), (in_a_thread, "# the loop")):
        (line,) = lines_told(FallbackWarning, use)
        assert line.endswith(comment)


def test_a_warning_names_the_line_that_made_the_loader() -> None:
    def make() -> None:
        DataLoader(slow())  # here

    def make_mine() -> None:
        Mine(slow())

    assert lines_told(SlowPathWarning, make) == ["DataLoader(slow())  # here"]
    (line,) = lines_told(SlowPathWarning, make_mine)
    assert line.endswith("# in Mine")


# Other slow paths.


class Wrapped(torch.utils.data.Dataset[Any]):
    def __init__(self, base: Any) -> None:
        self.base = base

    def __len__(self) -> int:
        return len(self.base)

    def __getitem__(self, index: int) -> Any:
        return self.base[index]


class Inherited(ImageDataset):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index)


class Shorter(ImageDataset):
    def __len__(self) -> int:
        return 1


def no_init(_: int) -> None:
    """For worker processes."""


def own_loader(path: str) -> Image.Image:
    return Image.open(path).convert("RGB")


def image_folder(transform: Any = CROP, **options: Any) -> Any:
    return datasets.ImageFolder(tree(baseline(2)), transform, **options)


def native(transform: Any = CROP) -> ImageDataset:
    return images("lmdb", baseline(2), transform)


def wrong_sizes() -> Any:
    return images("ImageFolder", baseline(2), t.RandomHorizontalFlip())


#: A dataset, the path that is taken, the cause, and the way out that the warning names.
SLOW: list[tuple[Callable[[], Any], str, str, str]] = [
    (wrong_sizes, "torch", "different sizes", "CenterCrop"),
    (lambda: native(Wrapping()), "torch", "Wrapping", "__fastdata__"),
    (lambda: image_folder(unknown(ELASTIC)), "workers", "ElasticTransform", "Leave it out"),
    (lambda: Inherited(native().path, CROP), "torch", "__getitem__", "transform="),
    (lambda: Shorter(native().path, CROP), "torch", "__len__", "remove"),
    (lambda: Wrapped(native()), "torch", "Wrapped", "ImageDataset"),
    (lambda: image_folder(loader=own_loader), "torch", "its own loader", "loader="),
]
#: The same, for arguments of the loader.
SLOW_BY: list[tuple[dict[str, Any], Callable[[], Any], str, str, str]] = [
    ({"collate_fn": list, "device": "cpu"}, native, "workers", "collate_fn", "batch_transform="),
    ({"worker_init_fn": no_init}, native, "workers", "worker_init_fn", "Leave it out"),
    ({"batch_size": None}, native, "workers", "batch_size=None", "batch_size"),
    ({"batch_size": None}, lambda: native(None), "torch", "no transform", "one size"),
    (
        {"batch_size": None},
        lambda: native(transforms.RandomResizedCrop(8)),
        "torch",
        "PIL images",
        "tensors",
    ),
]


@pytest.mark.parametrize(
    ("options", "make", "path", "cause", "mend"), [*SLOW_BY, *(({}, *one) for one in SLOW)]
)
def test_whatever_keeps_images_from_the_native_path_is_one_warning(
    options: dict[str, Any], make: Callable[[], Any], path: str, cause: str, mend: str
) -> None:
    dataset = make()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loader = DataLoader(dataset, **options)
        for _ in range(2):
            next(iter(loader))
    (warning,) = (one for one in caught if one.category is SlowPathWarning)
    words = str(warning.message)
    assert f"the {path} path" in words and cause in words and mend in words
    assert warning.filename == __file__
    assert loader.explain().startswith(path)
    with pytest.raises(UsageError, match="require_native=True needs the native path") as refused:
        DataLoader(dataset, require_native=True, **options)
    assert cause in str(refused.value) and mend in str(refused.value)


def test_an_image_backend_that_is_not_pillow_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchvision, "_image_backend", "accimage")
    with pytest.warns(SlowPathWarning, match="image backend") as warned:
        DataLoader(image_folder())
    assert 'set_image_backend("PIL")' in str(warned[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # whatever the backend, this loader is Pillow's
        DataLoader(image_folder(loader=datasets.folder.pil_loader))


class InOrder(torch.utils.data.IterableDataset[Any]):
    def __init__(self, base: Any) -> None:
        self.base = base

    def __iter__(self) -> Any:
        return (self.base[number] for number in range(len(self.base)))


@pytest.mark.parametrize(
    "dataset",
    [
        [1, 2],
        torch.utils.data.TensorDataset(torch.zeros(2, 3)),
        Wrapped([1, 2]),
        torch.utils.data.ConcatDataset([Wrapped([1]), Wrapped([2])]),
        InOrder([1, 2]),
    ],
    ids=lambda one: type(one).__name__,
)
def test_data_that_is_no_images_of_ours_is_not_told_of(dataset: Any) -> None:
    assert told(UserWarning, DataLoader(dataset), 1) == []
    with pytest.raises(UsageError, match="require_native=True needs the native path"):
        DataLoader(dataset, require_native=True)


# Pipelines that cannot run.

FLIP, CROPPED = t.RandomHorizontalFlip(), t.RandomResizedCrop(8)
NORMALIZE = transforms.Normalize(0.5, 1)


@pytest.mark.parametrize(
    ("transform", "words"),
    [
        (t.Compose([FLIP, t.Views(CROPPED, count=2)]), "RandomHorizontalFlip comes before Views"),
        (t.Compose([t.Views(CROPPED, count=2), FLIP]), "RandomHorizontalFlip comes after Views"),
        (t.Compose([t.CenterCrop(8), t.RandomCrop(9)]), r"RandomCrop\(\(9, 9\)\) cannot be done"),
        (t.Compose([CROPPED, abs, FLIP]), "RandomHorizontalFlip comes after abs"),
        (t.Compose([CROPPED, t.RandomErasing(value="random")]), "noise of floats into bytes"),
        (unknown(*[t.Normalize((0.5,) * 3, (1,) * 3)] * 2), "Normalize .* PIL images"),
        (transforms.Compose([CROPPED, transforms.ToTensor()]), "ToTensor .* PIL images"),
        (transforms.Compose([transforms.CenterCrop(8), NORMALIZE]), "Normalize .* floats"),
    ],
)
@pytest.mark.parametrize("options", [{}, {"batch_size": None}, {"collate_fn": list}])
def test_a_pipeline_that_cannot_run_is_an_error_when_the_loader_is_made(
    transform: Any, words: str, options: dict[str, Any]
) -> None:
    dataset = native(transform)
    with pytest.raises(UsageError, match=words):
        DataLoader(dataset, **options)
    # No path can: a single sample fails as well.
    with pytest.raises((UsageError, TypeError)):
        dataset[0]


@pytest.mark.parametrize(
    ("transform", "options", "words"),
    [
        (None, {}, "There is no transform"),
        (transforms.RandomResizedCrop(8), {}, "PIL images, which torch cannot collate"),
        (unknown(), {"collate_fn": fast_collate}, "fast_collate takes uint8 images"),
    ],
)
def test_what_cannot_be_collated_is_an_error_when_the_loader_is_made(
    transform: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        DataLoader(native(transform), **options)


# Requiring the native path.


def test_the_native_path_meets_its_requirement() -> None:
    dataset = images("ImageFolder", [*baseline(2), KINDS["PNG of mode I;16"]])
    loader = DataLoader(dataset, batch_size=3, require_native=True)
    # Single images may be Pillow's.
    assert len(told(FallbackWarning, loader)) == 1
