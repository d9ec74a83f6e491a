"""The made sample: layout, sameness, shares, oddities, and that a model could learn from it."""

from __future__ import annotations

import errno
import hashlib
import signal
import statistics
import subprocess
import sys
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hangs import HANG
from PIL import Image, JpegImagePlugin

from fastdata.errors import FallbackWarning, UsageError
from fastdata.sample import SampleSummary, make_sample, wnid
from fastdata.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop

# One file's Exif is broken on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")


def made(tmp_path_factory: pytest.TempPathFactory, images: int, val_images: int) -> SampleSummary:
    out = tmp_path_factory.mktemp("sample") / "made"
    return make_sample(out, images=images, val_images=val_images, classes=10, seed=7)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files(folder)
    }


def kind(image: Image.Image) -> str:
    if image.format != "JPEG":
        return str(image.format)
    assert isinstance(image, JpegImagePlugin.JpegImageFile)
    if image.mode != "RGB":
        return image.mode
    first = image.layer[0][1:3]
    return {(1, 1): "4:4:4", (2, 2): "4:2:0", (2, 1): "4:2:2", (1, 2): "4:4:0"}[first]


def tables(path: Path) -> set[bytes]:
    file = path.read_bytes()
    at, found = 2, set()
    while file[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(file[at + 2 : at + 4], "big")
        if file[at + 1] == 0xC4:
            found.add(file[at + 4 : end])
        at = end
    return found


def test_layout_and_counts(tmp_path_factory: pytest.TempPathFactory) -> None:
    sample = made(tmp_path_factory, 20, 10)
    names = [wnid(index) for index in range(10)]
    assert names == sorted(set(names))
    assert all(len(name) == 9 and name[0] == "n" and name[1:].isdigit() for name in names)
    for split, count in (("train", 20), ("val", 10)):
        assert sorted(folder.name for folder in (sample.out / split).iterdir()) == names
        assert len(files(sample.out / split)) == count
    for path in files(sample.out / "train"):
        assert path.name.startswith(f"{path.parent.name}_") and path.suffix == ".JPEG"
    assert sorted(path.name for path in files(sample.out / "val")) == [
        f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, 11)
    ]
    assert sorted(path.name for path in sample.out.iterdir()) == ["train", "val"]
    assert (sample.images, sample.val_images, sample.classes) == (20, 10, 10)
    assert sample.bytes == sum(path.stat().st_size for path in files(sample.out))


def test_same_seed_gives_same_bytes_whatever_the_workers(tmp_path: Path) -> None:
    def make(images: int, seed: int, workers: int) -> dict[str, str]:
        out, done = tmp_path / f"{images} {seed} {workers}", []
        options = {"images": images, "val_images": 0, "classes": 4, "seed": seed}
        made = make_sample(out, **options, workers=workers, progress=done.append)
        assert done == list(range(1, images + 1))
        return digests(made.out)

    one, larger, other = make(8, 3, 1), make(12, 3, 2), make(8, 4, 1)
    assert one.items() < larger.items()
    assert one.keys() == other.keys() and not set(one.values()) & set(other.values())


@pytest.mark.slow
def test_shares_sizes_and_classes_are_as_in_imagenet(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    sample = made(tmp_path_factory, 200, 60)
    kinds, sizes, bits = [], [], []
    colours: dict[str, list[Any]] = {"train": [], "val": []}
    for path in files(sample.out):
        with Image.open(path) as image:
            # Colour alone, for how bright a picture is says nothing of its class.
            small = np.asarray(image.convert("RGB").resize((16, 16)).convert("YCbCr"), float)
            assert small[..., 0].std() > 3
            split, name = path.parts[-3:-1]
            colours[split].append((name, small[..., 1:]))
            if split == "train":
                kinds.append(kind(image))
                sizes.append(image.size)
                bits.append(8 * path.stat().st_size / (image.width * image.height))
    assert 0.70 <= kinds.count("4:4:4") / 200 <= 0.80
    assert 0.16 <= kinds.count("4:2:0") / 200 <= 0.25
    assert 0.005 <= kinds.count("L") / 200 <= 0.05
    assert statistics.median(width for width, _ in sizes) == 500
    assert 370 <= statistics.median(height for _, height in sizes) <= 380
    assert 0.15 <= sum(width < height for width, height in sizes) / 200 <= 0.40
    areas = [width * height for width, height in sizes]
    assert min(areas) < 60_000
    assert 1_000_000 <= max(areas) <= 4_000_000
    low, middle, high = np.quantile(bits, [0.1, 0.5, 0.9])
    assert 1.2 <= low <= 2.2 and 4.0 <= middle <= 5.2 and 6.9 <= high <= 8.5
    # A model could learn the classes: chance would be right for a tenth.
    means = {
        name: np.mean([one for other, one in colours["train"] if other == name], 0)
        for name in {name for name, _ in colours["train"]}
    }
    right = [
        name == min(means, key=lambda one: np.square(means[one] - pixels).sum())
        for name, pixels in colours["val"]
    ]
    assert statistics.mean(right) > 0.6


def test_fifty_files_hold_each_oddity(tmp_path: Path) -> None:
    out = make_sample(tmp_path / "made", images=0, val_images=50, classes=10).out
    found: Counter[str] = Counter()
    for path in files(out):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with Image.open(path) as image:
                image.getexif()
                image.load()
                found[kind(image)] += 1
                found["progressive"] += "progressive" in image.info
                found["large"] += image.width * image.height >= 1_000_000
                # The tables of the JPEG standard hold 162 codes; a picture's own hold fewer.
                jpeg = image.format == "JPEG"
                found["standard"] += jpeg and max(map(len, tables(path))) == 1 + 16 + 162
        found["broken EXIF"] += any("Corrupt EXIF" in str(one.message) for one in caught)
    assert all(found[name] for name in ("4:4:4", "4:2:0", "4:2:2", "L", "CMYK", "PNG", "large"))
    assert all(found[name] == 1 for name in ("progressive", "standard", "broken EXIF"))


def test_training_with_it_is_native(made_tree: Path) -> None:
    pytest.importorskip("torch")
    from torchvision_stub import import_torchvision

    from fastdata import DataLoader, ImageDataset

    folder = import_torchvision().datasets.ImageFolder(str(made_tree / "train"))
    transform = Compose([RandomResizedCrop(64), RandomHorizontalFlip()])
    loader = DataLoader(ImageDataset(folder, transform), 16, shuffle=True, num_workers=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error", FallbackWarning)
        assert sum(len(labels) for _, labels in loader) == 64
    assert loader.stats().by_pillow == 0


@pytest.mark.parametrize(
    "options",
    [
        {"classes": 0},
        {"classes": 1001},
        {"images": 9},
        {"val_images": 9},
        {"seed": -1},
        {"workers": 0},
        {"workers": 10**18},
    ],
)
def test_refuses_options_out_of_range(tmp_path: Path, options: dict[str, int]) -> None:
    name, value = next(iter(options.items()))
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')} {value}: ") as caught:
        make_sample(tmp_path / "made", **options)  # type: ignore[arg-type]
    assert "Use " in caught.value.hint
    assert not (tmp_path / "made").exists()


def test_places_that_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    small = {"images": 2, "val_images": 0, "classes": 2}
    with pytest.raises(UsageError, match="not empty"):
        make_sample(tmp_path, **small)
    for out in ("/proc/made", "file/made", "file"):
        with pytest.raises(OSError, match=out):
            make_sample(tmp_path / out, **small)
    assert [path.read_text() for path in files(tmp_path)] == ["mine"]


def test_leaves_no_file_when_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    options: dict[str, Any] = {"images": 4, "val_images": 0, "classes": 2}
    with monkeypatch.context() as patch:
        patch.setattr("os.rename", full)
        with pytest.raises(OSError, match="No space"):
            make_sample(tmp_path / "made", **options)
    assert list((tmp_path / "made").iterdir()) == []
    assert len(files(make_sample(tmp_path / "made", **options).out)) == 4


@pytest.mark.slow
def test_an_interrupted_command_leaves_no_file(tmp_path: Path) -> None:
    out = tmp_path / "made"
    command = [sys.executable, "-m", "fastdata", "sample", f"--out={out}", "--workers=2"]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    while not list(out.rglob("*.JPEG")):
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=HANG)
    assert process.returncode == 130 and "interrupted" in error
    assert list(out.iterdir()) == []
