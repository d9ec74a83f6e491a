"""The made sample: layout, sameness, shares, oddities, and that a model could learn from it."""

from __future__ import annotations

import errno
import hashlib
import io
import signal
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hangs import HANG
from numpy.typing import NDArray
from PIL import Image, JpegImagePlugin

from fastdata.errors import BusyError, SpaceError, UsageError
from fastdata.sample import SampleSummary, make_sample, wnid
from fastdata.sample.shots import Shot, encode

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
    assert sample.pixels == sum(image.width * image.height for _, image in opened(sample.out))
    names = {"L": "grey", "CMYK": "cmyk", "PNG": "png"}
    found = [names.get(kind(image), kind(image)) for _, image in opened(sample.out)]
    samplings = ("4:4:4", "4:2:0", "4:2:2", "4:4:0", "grey", "cmyk", "png")
    assert {name: sample.kinds[name] for name in samplings} == {
        name: found.count(name) for name in samplings
    }


def test_same_seed_gives_same_bytes_whatever_the_workers(tmp_path: Path) -> None:
    def make(name: str, seed: int, workers: int) -> SampleSummary:
        return make_sample(
            tmp_path / name, images=24, val_images=4, classes=4, seed=seed, workers=workers
        )

    one, same, other = make("one", 3, 1), make("same", 3, 2), make("other", 4, 1)
    assert digests(one.out) == digests(same.out)
    assert one.kinds == same.kinds
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
    assert kinds >= {"4:4:4", "4:2:0", "4:2:2", "4:4:0", "L", "CMYK", "PNG"}
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


@pytest.mark.parametrize("size", [(64, 48), (61, 35), (16, 17)])
def test_440_holds_the_same_picture(size: tuple[int, int]) -> None:
    draws = np.random.default_rng(0).integers(64, 192, (3, 3, 3), dtype=np.uint8)
    picture = Image.fromarray(draws).resize(size, Image.Resampling.BICUBIC).convert("YCbCr")
    shot = Shot("4:4:0", "4:4:0", *size, quality=96, detail=0)
    with Image.open(io.BytesIO(encode(picture, shot))) as image:
        assert kind(image) == "4:4:0"
        assert image.size == size
        found = np.asarray(image.convert("YCbCr")).astype(np.int32)
    apart = np.abs(found - np.asarray(picture).astype(np.int32))
    assert apart.mean(axis=(0, 1)).max() < 3


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


def test_refuses_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    with pytest.raises(UsageError, match="is a file"):
        make_sample(taken)


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


def test_leaves_no_part_of_a_file_when_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(SpaceError, match="disk is full") as caught:
        make_sample(tmp_path / "made", images=2, val_images=0, classes=2)
    assert "same command" in caught.value.hint
    (partial,) = (tmp_path / "made").iterdir()
    assert partial.name.startswith(".sample-") and not list(partial.rglob("*.JPEG"))


OPTIONS = {"images": 40, "val_images": 4, "classes": 4, "seed": 3}
ARGUMENTS = ["--images", "40", "--val-images", "4", "--classes", "4", "--seed", "3"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> SampleSummary:
    return make_sample(tmp_path_factory.mktemp("whole") / "made", **OPTIONS)  # type: ignore[arg-type]


def interrupt(out: Path, workers: int, number: int, kill: signal.Signals) -> str:
    """Runs the command until there are some pictures; returns what it says then."""
    command = [sys.executable, "-m", "fastdata", "sample", *ARGUMENTS]
    process = subprocess.Popen(
        [*command, f"--out={out}", f"--workers={workers}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while len(list(out.rglob("*.JPEG"))) < number:
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(kill)
    _, error = process.communicate(timeout=HANG)
    assert process.returncode in (-kill, 130)
    return error


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGKILL])
def test_the_same_command_goes_on(
    tmp_path: Path, whole: SampleSummary, workers: int, kill: signal.Signals
) -> None:
    out = tmp_path / "made"
    error = interrupt(out, workers, 5, kill)
    if kill == signal.SIGINT:
        # A busy machine is long enough at it for a line of progress.
        said = [line for line in error.splitlines() if " images" not in line]
        assert said == ["interrupted; run the same command again to resume"]
    (partial,) = out.glob(".sample-*")
    left = {path.relative_to(partial): path.stat().st_mtime_ns for path in out.rglob("*.JPEG")}
    assert 5 <= len(left) < 44
    summary = make_sample(out, **OPTIONS)  # type: ignore[arg-type]
    assert digests(out) == digests(whole.out)
    assert replace(summary, out=whole.out) == whole
    assert {path: (out / path).stat().st_mtime_ns for path in left} == left


def test_what_other_options_have_begun_is_removed(tmp_path: Path, whole: SampleSummary) -> None:
    out = tmp_path / "made"
    other: dict[str, int] = {**OPTIONS, "seed": 4}

    def stop(done: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        make_sample(out, **other, progress=stop)  # type: ignore[arg-type]
    assert len(list(out.rglob("*.JPEG"))) == 5
    make_sample(out, **OPTIONS)  # type: ignore[arg-type]
    assert digests(out) == digests(whole.out)


def test_two_at_once_are_refused(tmp_path: Path) -> None:
    def again(done: int) -> None:
        with pytest.raises(BusyError, match="another process"):
            make_sample(str(tmp_path / "made"), images=2, val_images=0, classes=2)

    make_sample(str(tmp_path / "made"), images=2, val_images=0, classes=2, progress=again)


@pytest.mark.parametrize("out", ["/proc/made", "file/made"])
def test_where_nothing_can_be_written(tmp_path: Path, out: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(UsageError, match="cannot be written") as caught:
        make_sample(tmp_path / out, images=2, val_images=0, classes=2)
    assert "--out" in caught.value.hint
