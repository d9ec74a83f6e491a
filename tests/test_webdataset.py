"""Tar shards: those of the webdataset package, and our own container read back."""

from __future__ import annotations

import io
import json
import sys
import tarfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fastdata.converters import Encoding, ImageFolder, ImageSource, WebDataset, pack
from fastdata.converters.options import PackOptions
from PIL import Image
from sources import (
    Expected,
    SourceConformance,
    contents_but_source,
    convert,
    encoded,
    jpeg,
    make_tree,
    picture,
    require_said,
    run,
    tar_bytes,
)
from tiers import first_of

from fastdata import ImageDataset
from fastdata.errors import SourceError

pytestmark = pytest.mark.usefixtures("own_folder")


def write_with_webdataset(path: Path, samples: list[dict[str, Any]]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it imports is not ours to mend
        webdataset = pytest.importorskip("webdataset")
    with webdataset.TarWriter(str(path)) as writer:
        for sample in samples:
            writer.write(sample)


@pytest.fixture(scope="module")
def labelled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("webdataset")
    for shard in (1, 0):
        samples = [
            {"__key__": f"part{shard}/{n:04d}", "jpg": jpeg(10 * shard + n), "cls": n % 3}
            for n in range(4)
        ]
        write_with_webdataset(root / f"train-{shard:06d}.tar", samples)
    (root / "notes.txt").write_text("not a shard")
    return root


class TestWebDatasetsOwn(SourceConformance):
    """Written by the package; labels in ``.cls``, several shards, keys with folders."""

    @pytest.fixture
    def sources(self, labelled: Path) -> list[ImageSource]:
        return [WebDataset(labelled) for _ in range(2)]

    @pytest.fixture
    def expected(self) -> Expected:
        return Expected(
            ["0", "1", "2"],
            [
                (f"part{shard}/{n:04d}", str(n % 3), jpeg(10 * shard + n))
                for shard in range(2)
                for n in range(4)
            ],
        )


class TestLabelsInJson(SourceConformance):
    """Written by the package; label and class in ``.json``, other members besides."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        path = tmp_path / "one.tar"
        samples = [
            {
                "__key__": f"{n}",
                "png": encoded(picture(n), "PNG"),
                "json": {"label": 2 - n, "class": "abc"[2 - n], "caption": "é"},
                "txt": "a caption",
                "seg.png": encoded(picture(9), "PNG"),
            }
            for n in range(3)
        ]
        write_with_webdataset(path, samples)
        return path

    @pytest.fixture
    def sources(self, root: Path) -> list[ImageSource]:
        return [WebDataset(root) for _ in range(2)]

    @pytest.fixture
    def expected(self) -> Expected:
        return Expected(
            ["a", "b", "c"],
            [(str(n), "abc"[2 - n], encoded(picture(n), "PNG")) for n in range(3)],
            {
                "json": [
                    json.dumps({"label": 2 - n, "class": "abc"[2 - n], "caption": "é"})
                    for n in range(3)
                ],
                "seg.png": [encoded(picture(9), "PNG")] * 3,
                "txt": ["a caption"] * 3,
            },
        )


OURS = ["b.c/1.jpg", "b.c/2.5.jpg", "b.c/50%.jpg", "d/é/3.JPEG", "a/漢.jpg"]


@pytest.mark.parametrize("container", first_of(["shards", "lmdb", "parquet"]))
def test_our_shards_round_trip(tmp_path: Path, container: str) -> None:
    """From shards comes the dataset that comes from the images themselves."""
    tree = ImageFolder(make_tree(tmp_path / "tree", OURS))
    pack(
        tree,
        tmp_path / "shards",
        container="shards",
        options=PackOptions(shard_size=4000, shuffle=False),
        workers=1,
    )
    assert len(list((tmp_path / "shards").glob("*.tar"))) > 1
    size = None if container == "lmdb" else 4000
    for name, source in (("direct", tree), ("again", WebDataset(tmp_path / "shards"))):
        pack(
            source,
            tmp_path / name,
            container=container,
            options=PackOptions(shard_size=size, shuffle=False),
            workers=1,
        )
    assert contents_but_source(tmp_path / "again") == contents_but_source(tmp_path / "direct")


def test_our_shards_of_any_kind_of_image_round_trip(tmp_path: Path) -> None:
    """An image's extension in a shard follows its content, not the name it had."""
    folder = tmp_path / "tree" / "a"
    folder.mkdir(parents=True)
    for form in ("GIF", "BMP", "TIFF", "WEBP", "PPM", "PNG", "JPEG2000"):
        (folder / f"{form}.jpg").write_bytes(encoded(picture(1), form))
    direct = ImageFolder(tmp_path / "tree")
    options: dict[str, Any] = {"container": "shards", "workers": 1}
    options["options"] = PackOptions(shuffle=False)
    pack(direct, tmp_path / "shards", **options)
    pack(WebDataset(tmp_path / "shards"), tmp_path / "again", **options)
    assert contents_but_source(tmp_path / "again") == contents_but_source(tmp_path / "shards")


class TestPixels(SourceConformance):
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        tree = ImageFolder(make_tree(tmp_path / "tree", ["a/1.jpg", "a/2.jpg", "b/1.jpg"]))
        options = PackOptions(Encoding("raw"), shard_size=8000, shuffle=False)
        pack(tree, tmp_path / "shards", container="shards", options=options, workers=1)
        return tmp_path / "shards"

    @pytest.fixture
    def sources(self, root: Path) -> list[ImageSource]:
        assert len(list(root.glob("*.tar"))) > 1
        return [WebDataset(str(root)) for _ in range(2)]

    @pytest.fixture
    def expected(self) -> Expected:
        samples = []
        for seed, key in enumerate(["a/1", "a/2", "b/1"]):
            with Image.open(io.BytesIO(jpeg(seed))) as image:
                samples.append((key, key[0], image.convert("RGB").tobytes()))
        return Expected(["a", "b"], samples)


def npy(array: np.ndarray[Any, Any], version: tuple[int, int] = (1, 0)) -> bytes:
    out = io.BytesIO()
    np.lib.format.write_array(out, array, version)
    return out.getvalue()


PIXELS = np.arange(4 * 5 * 3, dtype=np.uint8).reshape(4, 5, 3)


def test_an_image_comes_before_an_array(tmp_path: Path) -> None:
    """An array beside an image is something else: an embedding, a mask."""
    shard(tmp_path, ("1.npy", npy(np.zeros(7))), ("1.jpg", jpeg()), ("1.cls", b"0"))
    (record,) = WebDataset(tmp_path).records()
    assert record.pixels is None
    assert record.length == len(jpeg())


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (npy(PIXELS, (2, 0)), "version (2, 0)"),
        (npy(PIXELS.astype(np.float32)), "float32"),
        (npy(np.asfortranarray(PIXELS)), "Fortran order: True"),
        (npy(PIXELS[0]), "shape (5, 3)"),
        (npy(PIXELS[:0]), "shape (0, 5, 3)"),
        (npy(PIXELS) + b"x", "bytes for shape (4, 5, 3)"),
        (npy(PIXELS).replace(b"(4, 5, 3), ", b"(-4,-5,3), "), "shape (-4, -5, 3)"),
        (b"", ""),
    ],
)
def test_other_arrays_are_refused(tmp_path: Path, data: bytes, said: str) -> None:
    path = shard(tmp_path, ("1.npy", data), ("1.cls", b"0"))
    result = convert("webdataset", "--root", tmp_path, "--out", tmp_path / "out")
    require_said(result, 1, path, "its 1.npy is no image", said, "uint8, height x width x 3")


def test_shards_that_number_their_samples_alike(tmp_path: Path) -> None:
    for name in "ba":
        members = [("000001.jpg", jpeg(ord(name))), ("000001.cls", b"0")]
        (tmp_path / f"{name}.tar").write_bytes(tar_bytes(members))
    with pytest.raises(SourceError, match="two images have the key 000001"):
        pack(WebDataset(tmp_path), tmp_path / "out", workers=1)
    pack(WebDataset(tmp_path, shard_keys=True), tmp_path / "out", workers=1)
    dataset = ImageDataset(tmp_path / "out")
    assert [dataset.row(i).key for i in range(2)] == ["a/000001", "b/000001"]
    assert dataset.read(range(2)) == [jpeg(ord("a")), jpeg(ord("b"))]


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_tar_format(tmp_path: Path, form: int) -> None:
    long = "/".join(["a-long-folder-name"] * 9)
    members = [(f"./{long}/1.JPG", jpeg()), (f"./{long}/1.cls", b" 1\n")]
    (tmp_path / "x.tar").write_bytes(tar_bytes(members, form))
    (record,) = WebDataset(tmp_path).records()
    assert (record.key, record.label) == (f"{long}/1", 1)
    assert Path(record.path).read_bytes()[record.offset :][: record.length] == jpeg()


def shard(root: Path, *members: tuple[str, bytes]) -> Path:
    path = root / "x.tar"
    path.write_bytes(tar_bytes(members))
    return path


def about(**values: object) -> bytes:
    return json.dumps(values).encode()


ONE, TWO = ("1.jpg", jpeg(1)), ("2.jpg", jpeg(2))
BAD = {
    "no label": ([ONE, ("1.txt", b""), TWO, ("2.cls", b"0")], "sample 1 has no integer label"),
    "text in cls": ([ONE, ("1.cls", b"cat")], "sample 1 has no integer label"),
    # Labels size the class list: these would be all of memory.
    "huge label": ([ONE, ("1.cls", b"4000000000")], "label 4000000000"),
    "huge label in json": ([ONE, ("1.json", about(label=10**9))], "label 1000000000"),
    "two classes for a label": (
        [
            ONE,
            ("1.json", about(label=0, **{"class": "a"})),
            TWO,
            ("2.json", about(label=0, **{"class": "b"})),
        ],
        "label 0 and class 'b'",
    ),
    "key upwards": ([ONE, ("1.json", about(label=0, key="../1"))], "'../1'"),
    "empty key": ([ONE, ("1.json", about(label=0, key=""))], "''"),
    "key twice": (
        [ONE, ("1.cls", b"0"), TWO, ("2.json", about(label=0, key="1"))],
        "two images have the key 1",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_shards(tmp_path: Path, name: str) -> None:
    members, said = BAD[name]
    path = shard(tmp_path, *members)
    result = convert("webdataset", "--root", tmp_path, "--out", tmp_path / "out")
    require_said(result, 1, path, said)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("broken", [b"{", b'{"a": "\xff"}', b""])
@pytest.mark.parametrize("labels", ["cls", "json", "none"])
def test_json_that_is_none_is_a_bad_sample(tmp_path: Path, broken: bytes, labels: str) -> None:
    members = []
    for number in range(4):
        own = about(label=number, url="u") if labels == "json" else about(url="u")
        members.append((f"{number}.jpg", jpeg(number)))
        members.append((f"{number}.json", broken if number == 2 else own))
        members += [(f"{number}.cls", b"%d" % number)] * (labels == "cls")
    path, out = shard(tmp_path, *members), tmp_path / "out"
    arguments = ("webdataset", "--root", tmp_path, "--out", out, "--no-shuffle")
    require_said(convert(*arguments), 1, "1 of 4 images", path, "its 2.json is not JSON")
    require_said(convert(*arguments, "--skip-bad"), 0)
    (bad,) = map(json.loads, (out / "_bad-samples.jsonl").read_text("utf-8").splitlines())
    assert bad["key"] == "2" and "its 2.json is not JSON" in bad["reason"]
    dataset = ImageDataset(out, fields=("key", "json"))
    assert [sample["key"] for sample in dataset] == ["0", "1", "3"]
    assert all(json.loads(sample["json"])["url"] == "u" for sample in dataset)
    if labels != "none":
        assert ImageDataset(out).labels.tolist() == [0, 1, 3]


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ([("2.cls", b"2"), ("2.txt", b"text")], "has no image (it has: cls, txt)"),
        ([("2.mp3", b"1"), ("2.cls", b"cat")], "has no image (it has: cls, mp3)"),
        ([("2.npy", b"1"), ("2.cls", b"2")], "its 2.npy is no image"),
        ([("2.jpg", jpeg(2)), ("2.json", about(key=[1]))], "the key in its 2.json"),
    ],
)
def test_samples_that_cannot_be_packed_are_listed(
    tmp_path: Path, members: list[tuple[str, bytes]], said: str
) -> None:
    good = [[(f"{n}.jpg", jpeg(n)), (f"{n}.cls", b"%d" % n)] for n in (0, 1, 3)]
    path, out = shard(tmp_path, *good[0], *good[1], *members, *good[2]), tmp_path / "out"
    arguments = ("webdataset", "--root", tmp_path, "--out", out, "--no-shuffle")
    require_said(convert(*arguments), 1, "1 of 4 images", "2", path, said, "--skip-bad")
    require_said(convert(*arguments, "--skip-bad"), 0)
    (bad,) = map(json.loads, (out / "_bad-samples.jsonl").read_text("utf-8").splitlines())
    assert bad["key"] == "2" and bad["path"] == str(path) and said in bad["reason"]
    dataset = ImageDataset(out, fields=("key", "label"))
    assert list(dataset) == [{"key": str(n), "label": n} for n in (0, 1, 3)]


@pytest.mark.parametrize("field", ["key", "class"])
def test_text_that_is_not_unicode(tmp_path: Path, field: str) -> None:
    """JSON can spell half a surrogate pair, which UTF-8 cannot."""
    path = shard(tmp_path, ("1.jpg", jpeg()), ("1.json", about(**{"label": 0, field: "\ud800"})))
    result = convert("webdataset", "--root", tmp_path, "--out", tmp_path / "out")
    require_said(result, 1, path, field, "UTF-8")


def test_no_shards(tmp_path: Path) -> None:
    require_said(convert("webdataset", "--root", tmp_path), 1, tmp_path, "no *.tar", "gunzip")
    missing = tmp_path / "missing"
    require_said(convert("webdataset", "--root", missing), 1, missing, "no such", "--root")


def test_compressed_shard(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w:gz"):
        pass
    with pytest.raises(SourceError, match="uncompressed tar") as raised:
        WebDataset(tmp_path)
    assert "gunzip" in raised.value.hint


def test_one_shard_as_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "birds.tar").write_bytes(tar_bytes([("1.jpg", jpeg()), ("1.cls", b"0")]))
    monkeypatch.chdir(tmp_path)
    result = convert("webdataset", "--root", "birds.tar")
    assert result.exit_code == 0, result.output
    assert ImageDataset("birds-lmdb").read([0]) == [jpeg()]


def test_which_member_is_the_image(tmp_path: Path) -> None:
    """It is the only one, whatever its name; of several, ``image_column`` names one."""
    left, right = jpeg(1), jpeg(2)
    only = shard(tmp_path, ("a.input.jpg", left), ("a.txt", b"x"), ("b.x.png", right))
    pairs = tmp_path / "pairs.tar"
    pairs.write_bytes(tar_bytes([("a.left.jpg", left), ("a.right.JPG", right)]))
    masked = tmp_path / "masked.tar"
    members = [("a.seg.png", left), ("b.jpg", right), ("b.seg.png", left)]
    masked.write_bytes(tar_bytes(members))

    def packed(tar: Path, *options: str) -> ImageDataset:
        out = tmp_path / f"out-{tar.stem}"
        result = convert("webdataset", "--root", tar, "--out", out, "--to", "archives", *options)
        require_said(result, 0)
        return ImageDataset(out)

    assert packed(only).read([0, 1]) == [left, right]
    result = convert("webdataset", "--root", pairs, "--out", "out")
    require_said(result, 1, "pairs.tar: the sample a", "--image-column")
    dataset = packed(pairs, "--image-column", "right.jpg")
    assert dataset.read([0]) == [right]
    assert [field.name for field in dataset.source.fields] == ["image", "left.jpg"]
    # The mask of a sample that lost its image is no image.
    assert packed(masked, "--skip-bad").read([0]) == [right]
    require_said(run("index", pairs, "--out", "i", "--image-column", "left.jpg"), 0)
    assert ImageDataset("i").read([0]) == [left]
    wrong = convert("webdataset", "--root", pairs, "--out", "x", "--image-column", "up.jpg")
    require_said(wrong, 1, "has no member .up.jpg (it has: left.jpg, right.jpg)")


@pytest.mark.parametrize("container", first_of(["archives", "lmdb"]))
def test_the_work_for_a_sample_is_linear_in_its_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, container: str
) -> None:
    """Count calls, and fields of the schemas that Arrow parses."""
    work = 0

    def called(*_: object) -> None:
        nonlocal work
        work += 1

    for name in ("open_file", "open_stream"):
        opened = getattr(pa.ipc, name)

        def counted(*args: Any, opened: Any = opened, **options: Any) -> Any:
            nonlocal work
            reader = opened(*args, **options)
            work += 20 * len(reader.schema)
            return reader

        monkeypatch.setattr(pa.ipc, name, counted)
    counts = []
    for members in (50, 50, 200):  # the first run imports
        blobs = ((f"a.{n}.bin", b"blob") for n in range(members))
        root = tmp_path / f"{len(counts)}"
        root.mkdir()
        source, work = WebDataset(shard(root, ("a.jpg", jpeg(0)), *blobs)), 0
        sys.setprofile(called)
        try:
            packed = pack(source, tmp_path / f"out-{len(counts)}", container=container, workers=1)
        finally:
            sys.setprofile(None)
        counts.append(work)
    assert counts[2] < 5 * counts[1]
    names = ("image", "0.bin", "199.bin")
    assert ImageDataset(packed.path, fields=names)[0]["199.bin"] == b"blob"
