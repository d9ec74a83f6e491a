"""DALI's loader where something goes wrong, or ends early: as the native one, and nothing hangs."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import fsspec
import pytest
from containers import edit_index, index_rows, pack_tree, set_column
from hangs import HANG
from jpegs import encode, picture
from loader_data import (
    CROPS,
    SAMPLES,
    WITH_KEYS,
    as_file,
    besides_fallback,
    dataset,
    folder,
    images,
    same,
)
from test_loader_errors import BAD, damaged, scan_damaged, until_the_end
from torchvision_stub import import_torchvision

torch = pytest.importorskip("torch")
dali = pytest.importorskip("nvidia.dali", reason="needs NVIDIA DALI (make setup)")

from fastdata import DataLoader, ImageDataset  # noqa: E402
from fastdata._native import crc32c  # noqa: E402
from fastdata.dali import DALILoader  # noqa: E402
from fastdata.errors import UsageError  # noqa: E402
from fastdata.transforms import (  # noqa: E402
    Compose,
    RandomGrayscale,
    RandomResizedCrop,
    Resize,
)

# Python from 3.12 on warns of every fork in a process with threads.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

OPTIONS: dict[str, Any] = {
    "batch_size": 8,
    "seed": 3,
    **WITH_KEYS,
    "num_workers": 2,
}


@pytest.fixture(autouse=True)
def _fallback_untold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts, whose silence is asserted, do not tell that Pillow decodes some images."""
    monkeypatch.setenv("PYTHONWARNINGS", "ignore::UserWarning")


def both(data: Any, **options: Any) -> list[list[Any]]:
    found = []
    for kind in (DALILoader, DataLoader):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            batches = until_the_end(iter(kind(data, **{**OPTIONS, **options})))
        told = [str(one.message) for one in besides_fallback(caught)]
        # That fastdata has decoded a batch in DALI's place is for the others' warnings not to say.
        found.append([*batches, *(one for one in told if not one.startswith("DALI failed"))])
    return found


def check_same(ours: list[Any], native: list[Any], close: float = 1.5) -> None:
    """Batches with the same samples and nearly the same pixels; errors with the same words."""
    assert len(ours) == len(native)
    for one, other in zip(ours, native, strict=True):
        assert type(one) is type(other)
        if isinstance(one, (Exception, str)):
            assert str(one) == str(other)
            continue
        assert same(one[1:], other[1:])
        assert (one[0].int() - other[0].int()).abs().float().mean((1, 2, 3)).max() < close


# Samples that are bad.


@pytest.mark.parametrize(
    ("container", "on_error"),
    [("lmdb", "zero"), ("parquet", "raise"), ("shards", "drop"), ("folder", "drop")],
)
def test_changed_samples_are_treated_as_by_the_native_loader(container: str, on_error: str) -> None:
    data = ImageDataset(damaged(container, BAD), CROPS)
    ours, native = both(data, on_error=on_error)
    check_same(ours, native)


def files_of(*files: tuple[str, bytes]) -> Path:
    root = folder() / "tree"
    for number, (extension, data) in enumerate(files):
        path = root / "class" / f"{number:02}.{extension}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def photographs(*, pngs: set[int]) -> Path:
    files = []
    for number in range(24):
        pixels = picture(70 + number, 50, number, 20)
        files.append(("png", as_file(pixels, "PNG")) if number in pngs else ("jpg", encode(pixels)))
    return files_of(*files)


def change(png: bytes) -> bytes:
    place = png.rindex(b"IEND") - 8
    return png[:place] + bytes([png[place] ^ 255]) + png[place + 1 :]


def checksum_again(packed: Path, tree: Path) -> None:
    paths = [row["path"] for row in index_rows(packed)]
    sums = [crc32c((tree / path).read_bytes()) for path in paths]
    edit_index(packed, lambda table: set_column(table, "crc32c", sums))


def test_files_damaged_in_place_are_the_same_to_both_loaders() -> None:
    """DALI would give some pixels of nearly all: only their Huffman codes say that they are bad."""
    rng, files = Random(7), []
    for number in range(48):
        data = bytearray(encode(picture(80 + number, 60, number, 30)))
        at = rng.randrange(200, len(data) - 60)
        if number % 4 == 1:
            del data[at:-2]
        elif number % 4 > 1:
            first = at if number % 4 == 2 else data.index(b"\xff\xc4")
            data[first + 20 : first + 50] = (one ^ 0x55 for one in data[first + 20 : first + 50])
        files.append(("jpg", bytes(data)))
    data = ImageDataset(import_torchvision().datasets.ImageFolder(files_of(*files)), CROPS)
    ours, native = both(data, on_error="zero")
    check_same(ours, native)
    valid = torch.cat([batch[-1] for batch in native if not isinstance(batch, str)])
    assert 12 <= valid.sum() < 48


def test_files_replaced_since_they_were_indexed_give_no_other_pixels() -> None:
    root = photographs(pngs={4, 5})
    pack_tree(root, root.parent / "out", "folder")
    (whole,) = DataLoader(ImageDataset(root.parent / "out", CROPS), 24, seed=3)
    for number, name in enumerate(["00.jpg", "01.jpg", "02.jpg", "03.jpg", "04.png", "05.png"]):
        path, pixels = root / "class" / name, picture(70 + number, 50, 99, 5)
        other = as_file(pixels, "PNG") if number == 3 else encode(pixels)
        size = path.stat().st_size
        assert len(other) < size or number == 3
        match number % 3:
            case 0:  # of another length
                path.write_bytes(other)
            case 1:
                path.write_bytes(other[:-2].ljust(size - 2, b"\0") + b"\xff\xd9")
            case 2:  # longer; what was indexed is still there
                path.write_bytes(path.read_bytes() + other)
    data = ImageDataset(root.parent / "out", CROPS)
    check_same(*both(data, on_error="raise"))
    ours, native = both(data, on_error="zero")
    check_same(ours, native)
    batches = [batch for batch in ours if not isinstance(batch, str)]
    valid = torch.cat([batch[-1] for batch in batches])
    assert (~valid).nonzero().flatten().tolist() == [0, 1, 3, 4]
    near = (torch.cat([batch[0] for batch in batches]).int() - whole[0].int()).abs().float()
    assert near[valid].mean((1, 2, 3)).max() < 1.5


def test_files_damaged_beside_a_remote_dataset_are_the_same_to_both_loaders() -> None:
    """Fetching checks remote samples alone."""
    root = photographs(pngs=set())
    for container in ("folder", "shards"):
        pack_tree(root, root.parent / container, container)
    url = f"memory://{root.parent.name}"
    fsspec.filesystem("memory").put(str(root.parent / "shards"), url, recursive=True)
    for number in (3, 7):
        path = root / "class" / f"{number:02}.jpg"
        path.write_bytes(scan_damaged(path.read_bytes()))
    parts = [ImageDataset(where, CROPS) for where in (root.parent / "folder", url)]
    ours, native = both(parts[0] + parts[1], on_error="zero")
    check_same(ours, native)
    assert sum(int((~batch[-1]).sum()) for batch in ours if not isinstance(batch, str)) == 2


# Arguments that cannot be honoured.

TWO_FILTERS = RandomResizedCrop(24, interpolation=("bilinear", "lanczos"))


def turned() -> ImageDataset:
    return ImageDataset(dataset(), CROPS, exif_transpose=True)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: DALILoader(images(), device="tpu"), "device='tpu'"),
        (lambda: DALILoader(images(), device="cuda:99"), "device='cuda:99': torch finds"),
        (lambda: DALILoader(images(), prefetch_queue_depth=0), "prefetch_queue_depth=0"),
        (lambda: DALILoader(images(lambda image: image)), "needs the native path"),
        (lambda: DALILoader(images(Compose([CROPS, RandomGrayscale()]))), "augmentations"),
        (lambda: DALILoader(images(Resize(40)), collate_fn=list), "images of different sizes"),
        (lambda: DALILoader(images(TWO_FILTERS)), "a choice of interpolations"),
        (lambda: DALILoader(turned()), "exif_transpose=True"),
    ],
)
def test_what_cannot_be_honoured_is_refused(make: Callable[[], Any], words: str) -> None:
    with pytest.raises(UsageError, match=words.replace("(", r"\(")):
        make()


def test_an_old_dali_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvidia.dali.__version__", "1.53.0")
    with pytest.raises(ModuleNotFoundError, match=r"DALI 2 or later, and 1\.53\.0 is installed"):
        DALILoader(images())


def test_without_dali_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("nvidia.dali")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "nvidia.dali", None)
    with pytest.raises(ModuleNotFoundError, match=r"fastdata-torch\[dali\]"):
        DALILoader(images())
    assert len(list(DataLoader(images()))) == SAMPLES


# What a pass leaves behind.


def dali_threads() -> int:
    names = []
    for path in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # it has ended meanwhile
            names.append(path.read_text("utf-8"))
    return sum("DALI" in name for name in names)


@pytest.mark.parametrize(
    ("how", "persistent"),
    [
        ("break", False),
        ("end", True),
        *(pytest.param(how, True, marks=pytest.mark.slow) for how in ("raise", "del", "break")),
    ],
)
def test_pipelines_end_with_their_pass(how: str, persistent: bool) -> None:
    loader = DALILoader(images(), persistent_workers=persistent, **OPTIONS)
    gc.collect()
    before, alive = dali_threads(), []
    for _ in range(3):
        iterator = iter(loader)
        next(iterator)
        if how == "end":
            assert len(list(iterator)) == 6
        elif how == "raise":
            with suppress(ZeroDivisionError):
                for _ in iterator:
                    raise ZeroDivisionError
        elif how == "break":
            for _ in iterator:
                break
        del iterator
        gc.collect()
        alive.append(dali_threads())
    assert alive[0] == alive[1] == alive[2] and (alive[0] > before) == persistent
    assert len(list(loader)) == 7


def test_a_loader_is_pickled() -> None:
    loader = DALILoader(images(), prefetch_queue_depth=3, **OPTIONS)
    again = pickle.loads(pickle.dumps(loader))
    assert again.prefetch_queue_depth == 3
    assert same(list(loader), list(again))


def test_a_fork_has_pipelines_of_its_own() -> None:
    loader = DALILoader(images(), persistent_workers=True, **OPTIONS)
    expected = list(loader)
    iterator = iter(loader)
    next(iterator)
    loader.set_epoch(0)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = 0 if same(list(loader), expected) else 2
            with pytest.raises(RuntimeError, match="before a fork"):
                next(iterator)
        finally:
            os.write(write, bytes([code]))
            os._exit(code)
    os.close(write)
    assert os.read(read, 1) == b"\0"
    assert os.waitpid(child, 0)[1] == 0
    assert len(list(iterator)) == 6


_SCRIPT = """
import sys, threading
from fastdata import ImageDataset
from fastdata.dali import DALILoader
from fastdata.transforms import RandomResizedCrop
data = ImageDataset(sys.argv[1], RandomResizedCrop(24))
taken = threading.Event()
def endless():
    loader = DALILoader(data, 4, num_workers=2, persistent_workers=True, prefetch_factor=4)
    while True:
        for batch in loader:
            taken.set()
threading.Thread(target=endless, daemon=True).start()
taken.wait()
"""


@pytest.mark.slow
def test_the_interpreter_ends_while_a_daemon_thread_iterates() -> None:
    command = [sys.executable, "-c", _SCRIPT, str(dataset())]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
    assert (ended.returncode, ended.stderr) == (0, "")


@pytest.mark.parametrize("name", ["build", "feed_input", "schedule_run", "outputs"])
@pytest.mark.parametrize("call", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 3))])
def test_the_pass_after_ctrl_c_in_dali_is_right(name: str, call: int) -> None:
    loader = DALILoader(images(), persistent_workers=name != "build", **OPTIONS)
    expected = list(loader)
    work, left = getattr(dali.Pipeline, name), call

    def interrupted(*args: Any, **options: Any) -> Any:
        nonlocal left
        left -= 1
        found = work(*args, **options)
        if left == -1:
            raise KeyboardInterrupt
        return found

    with mock.patch.object(dali.Pipeline, name, interrupted), suppress(KeyboardInterrupt):
        list(loader)
    assert name == "build" or left < 0
    loader.set_epoch(0)
    assert same(list(loader), expected)
