"""Seek points that a folder of images gains in its first epoch: used, bounded, saved, checked."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from jpegs import encode, picture
from torchvision_stub import import_torchvision

from fastdata import Cache, DataLoader, ImageDataset
from fastdata.storage.seek_cache import SeekCache, Stamped

COUNT = 8


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("seek") / "images"
    for number in range(COUNT):
        path = root / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(picture(300 + 8 * number, 260, number)))
    return root


@pytest.fixture
def tree(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "images"))


@pytest.fixture(autouse=True)
def _torchvision() -> None:
    import_torchvision()


def loader_of(root: str | Path, **options: Any) -> DataLoader[Any]:
    torchvision = import_torchvision()
    transforms = torchvision.transforms
    pipeline = transforms.Compose([transforms.RandomResizedCrop(32), transforms.PILToTensor()])
    cache = options.pop("cache", None)
    dataset = torchvision.datasets.ImageFolder(root, pipeline)
    if cache is not None:
        dataset = ImageDataset(dataset, cache=cache)
    options = {"num_workers": 2, "shuffle": True, "seed": 7} | options
    return DataLoader(dataset, 3, **options)


def epoch_of(loader: DataLoader[Any], epoch: int = 0) -> torch.Tensor:
    loader.set_epoch(epoch)
    return torch.cat([images for images, _ in loader])


def found(loader: DataLoader[Any]) -> tuple[int, int]:
    """Samples whose seek points were there, and those that were built, in the last epoch."""
    stats = loader.stats()
    return stats.with_seek_points, stats.seek_points_built


@pytest.mark.parametrize("threads", [0, 2])
def test_the_second_epoch_uses_them_and_has_the_same_pixels(tree: Path, threads: int) -> None:
    loader = loader_of(tree, num_workers=threads)
    first = epoch_of(loader)
    assert found(loader) == (0, COUNT)
    assert torch.equal(epoch_of(loader), first)
    assert found(loader) == (COUNT, 0)
    without = loader_of(tree, num_workers=threads, cache=Cache(bytes=0))
    for _ in range(2):
        assert torch.equal(epoch_of(without), first)
        assert found(without) == (0, 0)


def test_memory_is_bounded(tree: Path) -> None:
    first = epoch_of(loader_of(tree, cache=Cache(bytes=0)))
    for limit, most in ((1, 0), (1500, 2), (4000, 6)):
        loader = loader_of(tree, cache=Cache(bytes=limit))
        kept = []
        for _ in range(3):
            assert torch.equal(epoch_of(loader), first)
            kept.append(found(loader))
        assert kept[1] == kept[2] and kept[1][1] == 0
        assert (most > 0) <= kept[1][0] <= most


def test_a_cache_counts_what_it_keeps() -> None:
    entry = Stamped(b"x" * 500, 1, 1)
    cache = SeekCache("/root", 3000)
    for _ in range(5):
        for name in ("a", "b", "c"):
            cache.put(name, entry)
        cache.drop("b")
        cache.drop("b")
    assert not cache.full and len(cache) == 2
    cache.put("d", entry)
    cache.put("e", entry)
    assert cache.full and len(cache) == 3 and cache.get("e") is None
    cache.put("a", Stamped(b"x" * 5000, 1, 1))  # it has grown too large
    assert cache.get("a") is None and cache.get("d") == entry


def test_saved_and_read_by_the_next(tree: Path, tmp_path: Path) -> None:
    file = tmp_path / "cache.arrow"
    loader = loader_of(tree, cache=file)
    first = epoch_of(loader)
    assert sorted(os.listdir(tmp_path)) == ["cache.arrow", "images"]
    again = loader_of(tree, cache=str(file))
    assert torch.equal(epoch_of(again), first) and found(again) == (COUNT, 0)
    with pa.memory_map(str(file)) as source:
        paths = pa.ipc.open_file(source).read_all()["path"].to_pylist()
    assert paths == sorted(f"class{number % 2}/{number}.jpg" for number in range(COUNT))


def test_not_saved_before_the_epochs_end(tree: Path, tmp_path: Path) -> None:
    file = tmp_path / "cache.arrow"
    loader = loader_of(tree, cache=file)
    next(iter(loader))
    assert not file.exists()


@pytest.mark.parametrize("kind", ["slash", "dot", "relative", "link", "Path"])
def test_the_root_may_be_given_otherwise(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    file = tmp_path / "cache.arrow"
    first = epoch_of(loader_of(str(tree), cache=file))
    monkeypatch.chdir(tmp_path)
    os.symlink(tree, tmp_path / "link")
    root: dict[str, Any] = {
        "slash": f"{tree}//",
        "dot": "./images",
        "relative": "images",
        "link": "link",
        "Path": tree,
    }
    loader = loader_of(root[kind], cache=file)
    assert torch.equal(epoch_of(loader), first) and found(loader) == (COUNT, 0)


def test_a_folder_that_was_moved(tree: Path, tmp_path: Path) -> None:
    file = tmp_path / "cache.arrow"
    first = epoch_of(loader_of(tree, cache=file))
    moved = tree.rename(tmp_path / "elsewhere")
    loader = loader_of(moved, cache=file)
    assert torch.equal(epoch_of(loader), first) and found(loader) == (COUNT, 0)


@pytest.mark.parametrize("same_length", [False, True])
def test_a_changed_file_is_noticed(tree: Path, tmp_path: Path, same_length: bool) -> None:
    file = tmp_path / "cache.arrow"
    loader = loader_of(tree, cache=file)
    epoch_of(loader)
    # Another image with the same header; of the same length by padding after its end.
    path = tree / "class0" / "0.jpg"
    data = encode(picture(300, 260, 99, noise=20))
    if same_length:
        length = path.stat().st_size
        assert len(data) < length
        data += bytes(length - len(data))
    path.write_bytes(data)
    fresh = epoch_of(loader_of(tree, cache=Cache(bytes=0)))
    new = loader_of(tree, cache=file)
    for one in (new, loader):  # in this order: each saves what it has built
        assert torch.equal(epoch_of(one), fresh)
        assert one.stats().seek_points_built == 1 and one.stats().by_pillow == 0
        assert torch.equal(epoch_of(one), fresh)
        assert found(one) == (COUNT, 0)


def damages(good: bytes) -> Iterator[tuple[str, bytes]]:
    yield "empty", b""
    yield "text", b"not an arrow file\n" * 20
    yield "cut", good[: len(good) // 2]
    middle = len(good) // 2
    yield "a bit", good[:middle] + bytes([good[middle] ^ 16]) + good[middle + 1 :]


def test_a_damaged_file_is_built_anew(tree: Path, tmp_path: Path) -> None:
    file = tmp_path / "cache.arrow"
    first = epoch_of(loader_of(tree, cache=file))
    good = file.read_bytes()
    for name, bad in damages(good):
        file.write_bytes(bad)
        loader = loader_of(tree, cache=file)
        with pytest.warns(UserWarning, match=r"cache\.arrow: these seek points cannot be read"):
            assert torch.equal(epoch_of(loader), first), name
        assert loader.stats().by_pillow == 0
        assert file.read_bytes() == good, name


def test_every_byte_of_the_file_may_be_damaged(tree: Path, tmp_path: Path) -> None:
    """A damaged cache crashes nothing, and no changed table is used."""
    file = tmp_path / "cache.arrow"
    epoch_of(loader_of(tree, cache=file))
    good = file.read_bytes()
    whole = SeekCache(str(tree), file=file)
    true = {whole.get(str(path)) for path in tree.glob("*/*.jpg")}
    tables = {entry.table for entry in true if entry is not None}
    assert len(tables) == COUNT
    for at in range(0, len(good), 7):
        file.write_bytes(good[:at] + bytes([good[at] ^ 0x41]) + good[at + 1 :])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cache = SeekCache(str(tree), file=file)
        for path in tree.glob("*/*.jpg"):
            entry = cache.get(str(path))
            assert entry is None or entry.table in tables


def test_another_arrow_file_is_no_cache(tree: Path, tmp_path: Path) -> None:
    file = tmp_path / "cache.arrow"
    table = pa.table({"path": ["x"], "size": [None]})
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    loader = loader_of(tree, cache=file)
    with pytest.warns(UserWarning, match="no file of seek points, or of another version"):
        epoch_of(loader)
    assert found(loader) == (0, COUNT)


@pytest.mark.parametrize("kind", ["missing folder", "a file's", "a folder"])
def test_a_file_that_cannot_be_written_is_a_warning(tree: Path, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "folder"
    if kind == "a file's":
        folder.write_bytes(b"")
    elif kind == "a folder":
        (folder / "cache.arrow").mkdir(parents=True)
    loader = loader_of(tree, cache=folder / "cache.arrow")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first = epoch_of(loader)
    said = [str(one.message) for one in caught if "cannot be saved" in str(one.message)]
    assert len(said) == 1 and str(folder / "cache.arrow") in said[0]
    # There is nothing more to save, so nothing more to say; and in memory they are.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(epoch_of(loader), first)
    assert found(loader) == (COUNT, 0)


def test_a_folder_that_may_not_be_written_is_a_warning(tmp_path: Path) -> None:
    cache = SeekCache("/root", file=tmp_path / "cache.arrow")
    cache.put("/root/a", Stamped(b"table", 1, 1))
    tmp_path.chmod(0o555)
    user = os.geteuid()
    if user == 0:  # root may write everything, so be another
        os.seteuid(65534)
    try:
        with pytest.warns(UserWarning, match="cannot be saved.*Permission denied"):
            cache.save()
    finally:
        os.seteuid(user)
        tmp_path.chmod(0o755)
    cache.put("/root/b", Stamped(b"table", 1, 1))
    cache.save()
    assert len(SeekCache("/root", file=tmp_path / "cache.arrow")) == 2


def save_some(root: str, file: str, numbers: list[int], barrier: Any) -> None:
    cache = SeekCache(root, file=Path(file))
    barrier.wait()
    for number in numbers:
        cache.put(f"{root}/{number}", Stamped(bytes([number]) * 100, number, number))
        cache.save()


def test_two_processes_save_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(2)
    file = str(tmp_path / "cache.arrow")
    shares = [list(range(40)), list(range(30, 70))]
    processes = [
        context.Process(target=save_some, args=("/root", file, share, barrier)) for share in shares
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    cache = SeekCache("/root", file=Path(file))
    assert len(cache) == 70
    for number in range(70):
        assert cache.get(f"/root/{number}") == Stamped(bytes([number]) * 100, number, number)
    assert os.listdir(tmp_path) == ["cache.arrow"]


def test_a_table_that_lies_is_built_anew(tree: Path, tmp_path: Path) -> None:
    """Its size and time are the file's, and yet it is another image's: nothing goes to Pillow."""
    file = tmp_path / "cache.arrow"
    first = epoch_of(loader_of(tree, cache=file))
    cache = SeekCache(str(tree), file=file)
    paths = sorted(str(path) for path in tree.rglob("*.jpg"))
    entries = [cache.get(path) for path in paths]
    lying = [number for number, entry in enumerate(entries) if entry is not None][:2]
    one, other = lying
    assert entries[one] is not None and entries[other] is not None
    cache.put(paths[one], entries[one]._replace(table=entries[other].table))
    cache.save()
    loader = loader_of(tree, cache=file)
    assert torch.equal(epoch_of(loader), first)
    stats = loader.stats()
    assert (stats.bad_seek_points, stats.by_pillow, stats.seek_points_built) == (1, 0, 0)
    assert torch.equal(epoch_of(loader), first)
    assert loader.stats().seek_points_built == 1
    assert torch.equal(epoch_of(loader), first)
    assert (loader.stats().bad_seek_points, found(loader)) == (0, (COUNT, 0))


#: Another user, who need not exist.
ANOTHER = 4243
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files to another user")


@needs_root
@pytest.mark.parametrize("kind", ["his", "writable", "fifo", "link", "his folder", "open folder"])
def test_a_file_of_another_user_is_not_believed(tree: Path, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    file = folder / "cache.arrow"
    first = epoch_of(loader_of(tree, cache=file))
    good = file.read_bytes()
    match kind:
        case "his":
            os.chown(file, ANOTHER, ANOTHER)
        case "writable":
            file.chmod(0o666)
        case "fifo":
            file.unlink()
            os.mkfifo(file)
        case "link":
            file.symlink_to(file.rename(tmp_path / "other"))
        case "his folder":
            os.chown(folder, ANOTHER, ANOTHER)
        case "open folder":
            folder.chmod(0o1777)
    loader = loader_of(tree, cache=file)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert torch.equal(epoch_of(loader), first)
    assert found(loader) == (0, COUNT)
    assert any(
        "cache.arrow: these seek points cannot be read" in str(one.message) for one in caught
    )
    if "folder" in kind:
        assert any("cannot be saved" in str(one.message) for one in caught)
        assert os.listdir(folder) == ["cache.arrow"]
    else:  # the file is replaced
        assert file.read_bytes() == good and file.lstat().st_uid == 0
        loader = loader_of(tree, cache=file)
        assert torch.equal(epoch_of(loader), first) and found(loader) == (COUNT, 0)


@needs_root
def test_those_of_the_images_owner_are_believed(tree: Path, tmp_path: Path) -> None:
    folder = tmp_path / "his"
    folder.mkdir()
    file = folder / "cache.arrow"
    first = epoch_of(loader_of(tree, cache=file))
    for path in (tree, folder, file):
        os.chown(path, ANOTHER, ANOTHER)
    loader = loader_of(tree, cache=file)
    assert torch.equal(epoch_of(loader), first) and found(loader) == (COUNT, 0)


@needs_root
@pytest.mark.parametrize("kind", ["held", "fifo"])
def test_a_lock_of_another_user_is_not_waited_for(tree: Path, tmp_path: Path, kind: str) -> None:
    lock = tmp_path / "cache.arrow.lock"
    os.mkfifo(lock) if kind == "fifo" else lock.touch()
    lock.chmod(0o666)
    os.chown(lock, ANOTHER, ANOTHER)
    descriptor = os.open(lock, os.O_RDONLY | os.O_NONBLOCK)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        loader = loader_of(tree, cache=tmp_path / "cache.arrow")
        with pytest.warns(UserWarning, match=rf"cannot be saved.*user .id {ANOTHER}. holds"):
            epoch_of(loader)
    finally:
        os.close(descriptor)
    assert torch.equal(epoch_of(loader), epoch_of(loader_of(tree)))


def test_a_file_that_is_cut_while_it_is_read(tree: Path, tmp_path: Path) -> None:
    file = tmp_path / "cache.arrow"
    cache = SeekCache(str(tree), file=file)
    for number in range(20_000):
        cache.put(str(tree / str(number)), Stamped(b"x" * 50, number, number))
    cache.save()
    good = file.read_bytes()

    def read() -> None:
        warnings.simplefilter("ignore")
        while not (tmp_path / "done").exists():
            SeekCache(str(tree), file=file)

    process = multiprocessing.get_context("fork").Process(target=read)
    process.start()
    for _ in range(60):
        os.truncate(file, 4096)
        file.write_bytes(good)
    (tmp_path / "done").touch()
    process.join(240)
    assert process.exitcode == 0


def test_a_umask_that_lets_a_group_write(tree: Path, tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        file = tmp_path / "cache.arrow"
        first = epoch_of(loader_of(tree, cache=file))
        loader = loader_of(tree, cache=file)
        assert torch.equal(epoch_of(loader), first) and found(loader) == (COUNT, 0)
    finally:
        os.umask(before)
