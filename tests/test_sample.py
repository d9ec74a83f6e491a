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
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hangs import HANG
from numpy.typing import NDArray
from PIL import Image, JpegImagePlugin

from fastdata.errors import UsageError
from fastdata.sample import SampleSummary, make_sample, wnid

# One file's Exif is broken on purpose.
pytestmark = pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")

IMAGES, VAL_IMAGES, CLASSES = 200, 60, 10


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> SampleSummary:
    out = tmp_path_factory.mktemp("sample") / "made"
    return make_sample(out, images=IMAGES, val_images=VAL_IMAGES, classes=CLASSES, seed=7)


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def digests(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files(folder)
    }


def opened(folder: Path) -> Iterator[tuple[Path, Image.Image]]:
    for path in files(folder):
        with Image.open(path) as image:
            yield path, image


def kind(image: Image.Image) -> str:
    """Name a file's sampling from what is in it."""
    if image.format != "JPEG":
        return str(image.format)
    assert isinstance(image, JpegImagePlugin.JpegImageFile)
    if image.mode != "RGB":
        return image.mode
    first = image.layer[0][1:3]
    return {(1, 1): "4:4:4", (2, 2): "4:2:0", (2, 1): "4:2:2", (1, 2): "4:4:0"}[first]


def tables(path: Path) -> set[bytes]:
    """Return the Huffman tables of a JPEG file, each with its number."""
    file = path.read_bytes()
    at, found = 2, set()
    while file[at + 1] != 0xDA:
        end = at + 2 + int.from_bytes(file[at + 2 : at + 4], "big")
        if file[at + 1] == 0xC4:
            found.add(file[at + 4 : end])
        at = end
    return found


def test_layout_and_counts(sample: SampleSummary) -> None:
    names = [wnid(index) for index in range(CLASSES)]
    assert names == sorted(set(names))
    assert all(len(name) == 9 and name[0] == "n" and name[1:].isdigit() for name in names)
    for split, count in (("train", IMAGES), ("val", VAL_IMAGES)):
        assert sorted(folder.name for folder in (sample.out / split).iterdir()) == names
        assert len(files(sample.out / split)) == count
    for path in files(sample.out / "train"):
        assert path.name.startswith(f"{path.parent.name}_")
        assert path.suffix == ".JPEG"
    assert [path.name for path in sorted(files(sample.out / "val"), key=lambda p: p.name)] == [
        f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, VAL_IMAGES + 1)
    ]
    assert sorted(path.name for path in sample.out.iterdir()) == ["train", "val"]


def test_summary_tells_what_was_written(sample: SampleSummary) -> None:
    assert (sample.images, sample.val_images, sample.classes) == (IMAGES, VAL_IMAGES, CLASSES)
    assert sample.bytes == sum(path.stat().st_size for path in files(sample.out))


def test_same_seed_gives_same_bytes_whatever_the_workers(tmp_path: Path) -> None:
    def make(name: str, seed: int, workers: int) -> SampleSummary:
        return make_sample(
            tmp_path / name, images=24, val_images=4, classes=4, seed=seed, workers=workers
        )

    one, same, other = make("one", 3, 1), make("same", 3, 2), make("other", 4, 1)
    assert digests(one.out) == digests(same.out)
    assert one.bytes == same.bytes
    assert digests(one.out).keys() == digests(other.out).keys()
    both = set(digests(one.out).values()) | set(digests(other.out).values())
    assert len(both) == 2 * 28


def test_a_larger_sample_begins_with_the_smaller(tmp_path: Path) -> None:
    small = digests(make_sample(tmp_path / "a", images=8, val_images=0, classes=4).out)
    large = digests(make_sample(tmp_path / "b", images=16, val_images=0, classes=4).out)
    assert small.items() < large.items()


def test_every_file_decodes(sample: SampleSummary) -> None:
    for path, image in opened(sample.out):
        image.load()
        levels = np.asarray(image.convert("L"))
        assert levels.std() > 3, path


def test_shares_and_sizes_are_those_of_imagenet(sample: SampleSummary) -> None:
    kinds = [kind(image) for _, image in opened(sample.out / "train")]
    assert 0.70 <= kinds.count("4:4:4") / IMAGES <= 0.80
    assert 0.16 <= kinds.count("4:2:0") / IMAGES <= 0.25
    assert 0.005 <= kinds.count("L") / IMAGES <= 0.05
    sizes = [image.size for _, image in opened(sample.out / "train")]
    assert statistics.median(width for width, _ in sizes) == 500
    assert 370 <= statistics.median(height for _, height in sizes) <= 380
    upright = sum(width < height for width, height in sizes) / IMAGES
    assert 0.15 <= upright <= 0.40
    areas = [width * height for width, height in sizes]
    assert min(areas) < 60_000
    assert 1_000_000 <= max(areas) <= 4_000_000


def test_bits_a_pixel_spread_as_in_imagenet(sample: SampleSummary) -> None:
    bits = [
        8 * path.stat().st_size / (image.width * image.height)
        for path, image in opened(sample.out / "train")
        if image.format == "JPEG"
    ]
    low, middle, high = np.quantile(bits, [0.1, 0.5, 0.9])
    assert 1.2 <= low <= 2.2
    assert 4.0 <= middle <= 5.2
    assert 6.9 <= high <= 8.5


def test_fifty_files_hold_each_oddity(tmp_path: Path) -> None:
    out = make_sample(tmp_path / "made", images=50, val_images=0, classes=10).out
    kinds = {kind(image) for _, image in opened(out)}
    assert kinds >= {"4:4:4", "4:2:0", "4:2:2", "L", "CMYK", "PNG"}
    assert sum("progressive" in image.info for _, image in opened(out)) == 1
    assert sum(image.width * image.height >= 1_000_000 for _, image in opened(out)) >= 1
    jpegs = [path for path, image in opened(out) if image.format == "JPEG"]
    # The tables of the JPEG standard hold 162 codes; a picture's own hold fewer.
    standard = [path for path in jpegs if max(map(len, tables(path))) == 1 + 16 + 162]
    assert len(standard) == 1


def test_broken_exif_is_broken_and_harmless(tmp_path: Path) -> None:
    out = make_sample(tmp_path / "made", images=50, val_images=0, classes=10).out
    broken = []
    for path in files(out):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with Image.open(path) as image:
                image.getexif()
                image.load()
        if any("Corrupt EXIF" in str(warning.message) for warning in caught):
            broken.append(path)
    assert len(broken) == 1


def test_classes_can_be_learnt(sample: SampleSummary) -> None:
    def thumbnails(split: str) -> tuple[NDArray[np.float32], list[str]]:
        # Colour alone, for how bright a picture is says nothing of its class.
        colours = [
            np.asarray(image.convert("RGB").resize((16, 16)).convert("YCbCr"))[..., 1:]
            for _, image in opened(sample.out / split)
        ]
        names = [path.parent.name for path in files(sample.out / split)]
        return np.stack(colours).reshape(len(names), -1).astype(np.float32), names

    pixels, names = thumbnails("train")
    means = np.stack(
        [pixels[[name == wnid(index) for name in names]].mean(axis=0) for index in range(CLASSES)]
    )
    pixels, names = thumbnails("val")
    nearest = np.square(pixels[:, None] - means).sum(axis=2).argmin(axis=1)
    right = [wnid(int(index)) == name for index, name in zip(nearest, names, strict=True)]
    assert statistics.mean(right) > 0.6, statistics.mean(right)  # chance: 0.1


def test_progress_counts_files(tmp_path: Path) -> None:
    seen: list[int] = []
    make_sample(tmp_path / "made", images=3, val_images=2, classes=2, progress=seen.append)
    assert seen == [1, 2, 3, 4, 5]


def test_images_are_planned_as_they_are_made(tmp_path: Path) -> None:
    class EnoughError(Exception):
        pass

    def stop(done: int) -> None:
        raise EnoughError

    with pytest.raises(EnoughError):
        make_sample(tmp_path / "made", images=10**18, val_images=0, classes=1, progress=stop)


def test_refuses_a_folder_that_is_not_empty(tmp_path: Path) -> None:
    kept = tmp_path / "kept.txt"
    kept.write_text("mine")
    with pytest.raises(UsageError, match="not empty") as caught:
        make_sample(tmp_path, images=2, val_images=0, classes=2)
    assert str(tmp_path) in str(caught.value)
    assert files(tmp_path) == [kept]


@pytest.mark.parametrize(
    "options",
    [
        {"classes": 0},
        {"classes": 1001},
        {"images": 9},
        {"images": -1},
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


@pytest.mark.parametrize("out", ["/proc/made", "file/made", "file"])
def test_where_nothing_can_be_written(tmp_path: Path, out: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError, match=out):
        make_sample(tmp_path / out, images=2, val_images=0, classes=2)
