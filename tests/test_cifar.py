"""CIFAR-10 and CIFAR-100: archives in the published form, and pickles that are up to no good."""

from __future__ import annotations

import io
import pickle
import struct
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastdata.converters import Cifar, ImageSource
from sources import Expected, SourceConformance, convert, require_said
from tiers import first_of

from fastdata import ImageDataset
from fastdata.errors import SourceError

pytestmark = pytest.mark.usefixtures("own_folder")

ROWS = 6
FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
ARCHIVES = {"cifar10": "cifar-10-python.tar.gz", "cifar100": "cifar-100-python.tar.gz"}
CLASSES = {
    "cifar10": [b"airplane", b"automobile", b"bird", b"cat", b"deer", b"dog", b"frog", b"horse",
                b"ship", b"truck"],
    "cifar100": [f"fine {n:02d}".encode() for n in range(100)],
}  # fmt: skip


def python2_pickle(value: Any) -> bytes:
    """A pickle as Python 2 wrote it, protocol 2, by hand: Python 3 cannot write these opcodes."""
    return b"\x80\x02" + _opcodes(value) + b"."


def _opcodes(value: Any) -> bytes:
    if isinstance(value, bytes):
        if len(value) < 256:
            return b"U" + bytes([len(value)]) + value  # SHORT_BINSTRING
        return b"T" + struct.pack("<i", len(value)) + value  # BINSTRING
    if isinstance(value, bool) or value is None:
        return {True: b"\x88", False: b"\x89", None: b"N"}[value]
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)  # BININT
    if isinstance(value, tuple):
        return b"(" + b"".join(map(_opcodes, value)) + b"t"
    if isinstance(value, list):
        return b"](" + b"".join(map(_opcodes, value)) + b"e"
    if isinstance(value, dict):
        pairs = (_opcodes(key) + _opcodes(entry) for key, entry in value.items())
        return b"}(" + b"".join(pairs) + b"u"
    assert isinstance(value, np.ndarray)
    assert value.dtype == np.uint8
    dtype = (
        b"cnumpy\ndtype\n" + _opcodes((b"u1", 0, 1)) + b"R"
        + _opcodes((3, b"|", None, None, None, -1, -1, 0)) + b"b"
    )  # fmt: skip
    return (
        b"cnumpy.core.multiarray\n_reconstruct\n"
        + b"(cnumpy\nndarray\n" + _opcodes((0,)) + _opcodes(b"b") + b"tR"
        + b"(" + _opcodes(1) + _opcodes(value.shape) + dtype + _opcodes(False)
        + _opcodes(value.tobytes()) + b"tb"
    )  # fmt: skip


class Made:
    def __init__(self, kind: str) -> None:
        generator = np.random.default_rng(10)
        self.classes = CLASSES[kind]
        self.files: dict[str, bytes] = {}
        self.pixels: dict[str, Any] = {}
        self.labels: dict[str, list[int]] = {}
        ten = kind == "cifar10"
        batches = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
        for name in batches if ten else ("train", "test"):
            data = generator.integers(0, 256, (ROWS, 3072)).astype(np.uint8)
            labels = generator.integers(0, len(self.classes), ROWS).tolist()
            batch: dict[bytes, Any] = {
                b"batch_label": b"training batch 1 of 5",
                b"data": data,
                b"filenames": [f"picture_{row}.png".encode() for row in range(ROWS)],
            }
            if ten:
                batch[b"labels"] = labels
            else:
                batch |= {b"coarse_labels": [label // 5 for label in labels]}
                batch |= {b"fine_labels": labels}
            self.files[name] = python2_pickle(batch)
            self.pixels[name] = data.reshape(ROWS, 3, 32, 32).transpose(0, 2, 3, 1)
            self.labels[name] = labels
        if ten:
            meta = {b"num_cases_per_batch": 10000, b"num_vis": 3072, b"label_names": self.classes}
            self.files["batches.meta"] = python2_pickle(meta)
        else:
            coarse = [b"coarse"] * 20
            meta = {b"fine_label_names": self.classes, b"coarse_label_names": coarse}
            self.files["meta"] = python2_pickle(meta)


def write_archive(kind: str, files: dict[str, bytes], root: Path) -> Path:
    with tarfile.open(root / ARCHIVES[kind], "w:gz") as tar:
        for name, data in {**files, "readme.html": b"<html>"}.items():
            info = tarfile.TarInfo(f"{FOLDERS[kind]}/{name}")
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return root


def write_folder(kind: str, files: dict[str, bytes], root: Path) -> Path:
    folder = root / FOLDERS[kind]
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return folder


class CifarConformance(SourceConformance):
    kind = split = ""
    batches: tuple[str, ...] = ()

    @pytest.fixture
    def made(self) -> Made:
        return Made(self.kind)

    @pytest.fixture
    def sources(self, made: Made, tmp_path: Path) -> list[ImageSource]:
        root = tmp_path / "published"
        root.mkdir()
        write_archive(self.kind, made.files, root)
        return [Cifar(self.kind, root, self.split) for _ in range(2)]

    @pytest.fixture
    def expected(self, made: Made) -> Expected:
        names = [name.decode() for name in made.classes]
        return Expected(
            names,
            [
                (f"{batch}/{row:05d}", names[made.labels[batch][row]], pixels.tobytes())
                for batch in self.batches
                for row, pixels in enumerate(made.pixels[batch])
            ],
        )


class TestCifar10Test(CifarConformance):
    kind, split, batches = "cifar10", "test", ("test_batch",)


class TestCifar100Test(CifarConformance):
    kind, split, batches = "cifar100", "test", ("test",)


@pytest.mark.parametrize("kind", ["cifar10", "cifar100"])
@pytest.mark.parametrize("container", first_of(["lmdb", "parquet", "shards"]))
def test_pixels_through_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, container: str
) -> None:
    made = Made(kind)
    write_archive(kind, made.files, tmp_path)
    monkeypatch.chdir(tmp_path)
    result = convert(kind, "--to", container, "--no-shuffle")
    assert result.exit_code == 0, result.output
    for split, batch in (("train", next(iter(made.pixels))), ("test", list(made.pixels)[-1])):
        dataset = ImageDataset(f"{kind}-{split}-{container}")
        for row in range(ROWS):
            image, label = dataset[row]
            assert np.array_equal(np.asarray(image), made.pixels[batch][row])
            assert label == made.labels[batch][row]
            assert dataset.row(row).encoding == "raw"


@pytest.mark.parametrize("inside", [False, True])
def test_unpacked(tmp_path: Path, inside: bool) -> None:
    folder = write_folder("cifar10", Made("cifar10").files, tmp_path)
    source = Cifar("cifar10", folder if inside else tmp_path, "test")
    assert len(list(source.records())) == ROWS


def test_meta_of_protocol_0(tmp_path: Path) -> None:
    """The published batches.meta is in Python 2's text protocol."""
    made = Made("cifar10")
    names = "".join(f"S'{name.decode()}'\na" for name in made.classes)
    made.files["batches.meta"] = f"(dp0\nS'label_names'\np1\n(lp2\n{names}s.".encode()
    write_archive("cifar10", made.files, tmp_path)
    source = Cifar("cifar10", tmp_path, "test")
    assert source.classes == [name.decode() for name in made.classes]


def calls(module: str, name: str, argument: str) -> bytes:
    """A pickle that calls ``module.name(argument)``."""
    return f"c{module}\n{name}\n(S{argument!r}\ntR.".encode()


def calls_by_name_on_the_stack(module: str, name: str, argument: str) -> bytes:
    """The same in protocol 4, in which a name may lead through attributes."""
    parts = b"".join(b"\x8c" + bytes([len(t)]) + t.encode() for t in (module, name))
    text = argument.encode()
    return b"\x80\x04" + parts + b"\x93(\x8c" + bytes([len(text)]) + text + b"tR."


@pytest.mark.parametrize("form", [calls, calls_by_name_on_the_stack])
@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("os", "system"),
        ("__builtin__", "eval"),
        ("numpy", "ndarray.tofile"),
        ("numpy.core.multiarray", "fromfile"),
    ],
)
@pytest.mark.parametrize("file", ["batches.meta", "data_batch_2"])
def test_malicious_pickle_is_refused_and_not_run(
    tmp_path: Path, module: str, name: str, file: str, form: Any
) -> None:
    proof = tmp_path / "proof"
    command = f"touch {proof}"
    if name == "eval":
        command = f"open({str(proof)!r}, 'w')"
    pickled = form(module, name, command)
    made = Made("cifar10")
    made.files[file] = pickled
    write_archive("cifar10", made.files, tmp_path)
    with pytest.raises(SourceError) as raised:
        list(Cifar("cifar10", tmp_path, "train").records())
    assert f"it refers to {module}.{name}" in raised.value.what
    assert file in raised.value.what
    assert not proof.exists()


def test_the_malicious_pickle_would_run(tmp_path: Path) -> None:
    """The test above means something only if the pickles in it do what they say."""
    proof = tmp_path / "proof"
    for form in (calls, calls_by_name_on_the_stack):
        pickle.loads(form("os", "system", f"touch {proof}"))
        assert proof.exists()
        proof.unlink()


ONE_ROW = np.zeros((1, 3072), np.uint8)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"not a pickle",
        python2_pickle({b"data": ONE_ROW}),
        python2_pickle({b"data": ONE_ROW, b"labels": [1, 2]}),
        python2_pickle({b"data": ONE_ROW, b"labels": [10]}),
        python2_pickle({b"data": ONE_ROW, b"labels": [b"cat"]}),
        python2_pickle({b"data": ONE_ROW[:, 1:], b"labels": [1]}),
        python2_pickle({b"data": [256] * 3072, b"labels": [1]}),
        python2_pickle({b"data": ONE_ROW, b"labels": [1]})[:-500],
    ],
)
def test_not_as_published(tmp_path: Path, data: bytes) -> None:
    made = Made("cifar10")
    made.files["test_batch"] = data
    folder = write_folder("cifar10", made.files, tmp_path)
    result = convert("cifar10", "--root", tmp_path, "--split", "test", "--out", tmp_path / "out")
    require_said(result, 1, folder, "test_batch differs from the published file", "Download")


def test_archive_cut_short(tmp_path: Path) -> None:
    write_archive("cifar10", Made("cifar10").files, tmp_path)
    path = tmp_path / ARCHIVES["cifar10"]
    path.write_bytes(path.read_bytes()[:1000])
    require_said(convert("cifar10", "--root", tmp_path), 1, path, "Download the archive again")


def test_nothing_there(tmp_path: Path) -> None:
    result = convert("cifar10", "--root", tmp_path)
    require_said(result, 1, tmp_path, "cifar-10-python.tar.gz", "cifar-10-batches-py", "--root")


def test_as_jpeg(tmp_path: Path) -> None:
    write_archive("cifar10", Made("cifar10").files, tmp_path)
    result = convert("cifar10", "--root", tmp_path, "--split", "test", "--encoding", "jpeg",
                     "--out", tmp_path / "out")  # fmt: skip
    assert result.exit_code == 0, result.output
    row = ImageDataset(tmp_path / "out").row(0)
    assert (row.encoding, row.width, row.height, row.channels) == ("jpeg", 32, 32, 3)
