"""Paths that data names, by one rule wherever they are; and relative paths of users."""

from __future__ import annotations

import io
import json
import os
import pickle
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from fastdata.converters import TableImages, pack
from fastdata.converters.listing import write_listing
from fastdata.converters.records import ImageSource, Record
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image
from sources import tar_bytes
from test_extents import IMAGES, row, table_of
from tiers import first_of
from torchvision_stub import import_torchvision

from fastdata import Cache, DataLoader, ImageDataset, stage, unstage
from fastdata.errors import CorruptionError, SourceError
from fastdata.executors import InProcess
from fastdata.storage.formats.tars import members
from fastdata.storage.manifest import MANIFEST_NAME, FileEntry, Manifest
from fastdata.storage.packed import PackedSource
from fastdata.storage.paths import is_inside
from fastdata.storage.records import INDEX_NAME, NO_GENERATION, rows_to_batch, write_index
from fastdata.transforms import CenterCrop

PATHS = st.one_of(
    st.text(max_size=12),
    st.lists(st.sampled_from(["..", ".", "", "a", "...", "..a", "é", "\0"]), max_size=5).map(
        "/".join
    ),
)
#: What every user of the rule is asked about.
CASES = {
    "a.jpg": True,
    "a/b.jpg": True,
    "..a/b..": True,
    "c/...": True,
    "größe": True,
    "": False,
    "/": False,
    "/etc/passwd": False,
    "..": False,
    "../a": False,
    "a/..": False,
    "a/../../b": False,
    "./../a": False,
    "a\0b": False,
}


@given(PATHS)
@example("a//../b")
@example("../root")
def test_what_is_inside_stays_inside(path: str) -> None:
    resolved = os.path.normpath(os.path.join("/root", path))
    stays = resolved == "/root" or resolved.startswith("/root/")
    if is_inside(path):
        assert stays
        assert path and "\0" not in path
    else:
        assert not stays or not path or "\0" in path or ".." in path.split("/") or path[0] == "/"


def accepted_by_manifest(folder: Path, path: str) -> bool:
    entry = {"name": path, "size": 0, "crc32c": "00000000"}
    manifest = Manifest("lmdb", 0, 0, [], 0, FileEntry(**entry), [], {}, {}, "0", NO_GENERATION)  # type: ignore[arg-type]
    try:
        Manifest.parse(manifest.to_json(), "_dataset.json")
    except CorruptionError:
        return False
    return True


def accepted_by_rows(folder: Path, path: str) -> bool:
    """By the reader of single rows, whose paths are relative to the manifest's root."""
    rows = rows_to_batch([row(0, IMAGES[0], file=-1, path=path)])
    write_index(folder / INDEX_NAME, [rows], 1)
    entry = FileEntry(INDEX_NAME, (folder / INDEX_NAME).stat().st_size, "00000000")
    manifest = Manifest("folder", 1, 0, ["a"], 1, entry, [], {}, {}, "0", NO_GENERATION, "images")
    (folder / MANIFEST_NAME).write_text(manifest.to_json(), "utf-8")
    blobs = PackedSource(folder)
    try:
        return blobs.file(blobs.index[0], 0) == folder / "images" / path
    except CorruptionError:
        return False


def accepted_by_core(folder: Path, path: str) -> bool:
    table = table_of(folder, [row(0, IMAGES[0], file=-1, path=path)], [], folder)
    try:
        table.gather(np.array([0])).read(0)
    except ValueError as error:
        return "leaves the dataset's root" not in str(error)
    except OSError:  # it was looked for, below the root
        return True
    return True


def accepted_by_tars(folder: Path, path: str) -> bool:
    with tarfile.open(folder / "a.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo(path), io.BytesIO())
    try:
        return len(list(members(folder / "a.tar"))) == 1
    except SourceError:
        return False


class Keys(ImageSource):
    about: ClassVar[dict[str, Any]] = {}

    def __init__(self, key: str) -> None:
        self.key = key

    def records(self) -> Iterator[Record]:
        yield Record(self.key, 0, "/image.jpg", 0, 1, 0)


def accepted_by_listing(folder: Path, path: str) -> bool:
    try:
        with InProcess() as running:
            source = Keys(path)
            return len(write_listing(source, folder / "list", lambda count: None, running)) == 1
    except SourceError:
        return False


USERS: list[Callable[[Path, str], bool]] = [
    accepted_by_manifest,
    accepted_by_rows,
    accepted_by_core,
    accepted_by_tars,
    accepted_by_listing,
]


@pytest.mark.parametrize("user", USERS, ids=lambda user: user.__name__)
def test_every_user_has_the_rule(tmp_path: Path, user: Callable[[Path, str], bool]) -> None:
    for at, (path, accepted) in enumerate(CASES.items()):
        assert is_inside(path) == accepted
        if path and "\0" not in path:
            (tmp_path / str(at)).mkdir()
            assert user(tmp_path / str(at), path) == accepted, path


# --- relative paths, after os.chdir ----------------------------------------------------------

ROWS = 6


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    found = tmp_path_factory.mktemp("one"), tmp_path_factory.mktemp("two")
    for at, folder in enumerate(found):
        (folder / "tree" / "a").mkdir(parents=True)
        lines = []
        for i in range(ROWS):
            Image.new("RGB", (32, 32), (10 * i + at, 0, 9)).save(folder / f"tree/a/{i}.png")
            lines.append(json.dumps({"path": f"a/{i}.png", "n": 10 * i + at, "label": 0}))
        (folder / "tree" / "t.jsonl").write_text("\n".join(lines))
        for container in ("lmdb", "folder"):
            source = TableImages(folder / "tree/t.jsonl", folder / "tree")
            pack(source, folder / container, container=container, workers=1)
        for shard in (0, 1):
            members: list[tuple[str, bytes]] = []
            for i in range(shard * ROWS // 2, (shard + 1) * ROWS // 2):
                members.append((f"{i}.png", (folder / f"tree/a/{i}.png").read_bytes()))
                members.append((f"{i}.txt", b"%d" % (10 * i + at)))
            (folder / f"{shard}.tar").write_bytes(tar_bytes(members))
    return found


@pytest.fixture
def folders(made: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    monkeypatch.chdir(made[0])
    return made


def image_folder() -> Any:
    import_torchvision()
    from torchvision.datasets import ImageFolder

    return ImageFolder("tree")


def hub_of_paths() -> Any:
    datasets = pytest.importorskip("datasets")
    columns = {"image": [f"tree/a/{i}.png" for i in range(ROWS)], "n": [*range(0, 10 * ROWS, 10)]}
    return datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image())


NAMED = {
    "packed": "lmdb",
    "dots": "tree/.././lmdb/",
    "loose": "folder",
    "file": "file://lmdb",
    "tars": "{0..1}.tar",
    "list": "0.tar::1.tar",
    "torchvision": image_folder,
    "datasets": hub_of_paths,
}


@pytest.mark.filterwarnings("ignore")  # indexed now; workers
@pytest.mark.parametrize("kind", first_of(NAMED, 4))
def test_a_dataset_stays_the_same_in_another_folder(
    kind: str, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    place: Any = NAMED[kind]
    place = place() if callable(place) else place
    other = {"torchvision": "label", "tars": "txt", "list": "txt"}.get(kind, "n")
    fields = ("image", other)
    data = ImageDataset(place, CenterCrop(8), fields=fields)
    original = ImageDataset(place, fields=fields)
    lazy = DataLoader(data, 2)
    workers = DataLoader(original, 2, collate_fn=list, num_workers=1)
    pickled = pickle.dumps(original)
    monkeypatch.chdir(folders[1])
    expected = [10 * i for i in range(ROWS)]
    if other != "label":
        assert [int(str(number)) for number in data.column(other)] == expected
        assert [int(number) for batch in lazy for number in batch[other]] == expected
    assert [int(x[0, 0, 0]) for batch in lazy for x in batch["image"]] == expected
    for same in (original, pickle.loads(pickled)):
        assert [same[i]["image"].getpixel((0, 0))[0] for i in range(ROWS)] == expected
        assert len(same.read([0])[0]) > 0
    assert [one["image"].getpixel((0, 0))[0] for batch in workers for one in batch] == expected


@pytest.mark.filterwarnings("ignore")  # indexed now
def test_caches_and_copies_stay_in_the_folder_that_was_named(
    folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = folders
    monkeypatch.setenv("FASTDATA_CACHE_DIR", "caches")
    monkeypatch.setenv("FASTDATA_STAGE_ROOT", "copies")
    cache = Cache("points", 1 << 20)
    first = ImageDataset("0.tar", cache="points")
    copy = stage("lmdb").path
    assert copy.is_relative_to(one / "copies")
    monkeypatch.chdir(two)
    assert os.fspath(cache.path or "") == str(one / "points")
    assert first.cache is not None and first.cache.path == str(one / "points")
    assert ImageDataset(one / "lmdb").location == copy
    (kept,) = (one / "caches" / "indexed").glob("0.tar-*[0-9a-f]")
    assert ImageDataset(one / "0.tar").location == kept
    assert [*unstage(one / "lmdb").paths] == [copy]
    assert {path.name for path in two.iterdir()} == {"tree", "lmdb", "folder", "0.tar", "1.tar"}


def test_a_link_is_followed_when_files_are_read(folders: tuple[Path, Path]) -> None:
    os.symlink("lmdb", "current")
    os.symlink("current", "link")
    data = ImageDataset("link", fields=("n",))
    assert Path(data.path) == folders[0] / "link"
    os.unlink("current")
    os.symlink(folders[1] / "lmdb", "current")
    opened = ImageDataset(data.path, fields=("n",))
    assert opened.column("n").tolist() == [10 * i + 1 for i in range(ROWS)]
    with pytest.raises(CorruptionError):
        pickle.loads(pickle.dumps(data))
