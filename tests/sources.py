"""Conformance suite of sources, and ImageNet in every layout."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import random
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from fastdata.converters import ImageSource, Record, pack
from fastdata.converters.options import PackOptions
from PIL import Image

from fastdata import ImageDataset
from fastdata.cli.commands import cli

DEVKIT = "ILSVRC2012_devkit_t12"


class Expected:
    """Expected records of a source, found without the source's own code."""

    def __init__(
        self,
        classes: Sequence[str],
        samples: Sequence[tuple[str, str, bytes]],
        fields: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        self.classes = list(classes)
        self.samples = list(samples)
        self.fields = dict(fields or {})


class SourceConformance:
    """Conformance suite of sources; a subclass supplies the two fixtures."""

    @pytest.fixture
    def sources(self) -> list[ImageSource]:
        raise NotImplementedError

    @pytest.fixture
    def expected(self) -> Expected:
        raise NotImplementedError

    def test_order_depends_on_the_source_alone(self, sources: list[ImageSource]) -> None:
        first, second = sources
        listed = [list(map(plain, one.records())) for one in (first, first, second)]
        assert listed[0] == listed[1] == listed[2]
        assert first.classes == second.classes

    def test_keys_are_unique_relative_paths(self, sources: list[ImageSource]) -> None:
        keys = [record.key for record in sources[0].records()]
        assert keys
        assert len(set(keys)) == len(keys)
        assert not any(key.startswith("/") or ".." in key.split("/") for key in keys)

    def test_labels_are_within_classes(self, sources: list[ImageSource]) -> None:
        classes = sources[0].classes
        assert len(set(classes)) == len(classes)
        most = max(1, len(classes))  # a source without classes has the label 0 alone
        assert all(0 <= record.label < most for record in sources[0].records())

    def test_extents_hold_the_right_bytes(
        self, sources: list[ImageSource], expected: Expected
    ) -> None:
        found = []
        for record in sources[0].records():
            assert record.problem is None
            data = bytes_of(record)
            if record.pixels is not None:
                height, width = record.pixels
                assert len(data) == height * width * 3
            found.append((record.key, class_of(sources[0].classes, record.label), data))
        assert sources[0].classes == expected.classes
        assert found == expected.samples

    def test_says_where_it_comes_from(self, sources: list[ImageSource]) -> None:
        origin = sources[0].origin
        assert json.loads(json.dumps(origin)) == origin
        assert origin["kind"]
        assert origin["root"]

    def test_packs_to_the_same_bytes_twice(
        self, sources: list[ImageSource], expected: Expected, tmp_path: Path
    ) -> None:
        for name, source in zip("ab", sources, strict=True):
            pack(
                source,
                tmp_path / name,
                container="shards",
                options=PackOptions(shuffle=False),
                workers=1,
            )
        assert contents(tmp_path / "a") == contents(tmp_path / "b")
        dataset = ImageDataset(tmp_path / "a")
        classes = dataset.manifest.classes  # not those of objects
        found = [
            (dataset.row(i).key, class_of(classes, dataset.row(i).label), data)
            for i, data in enumerate(dataset.read(range(len(dataset))))
        ]
        assert found == expected.samples

    def test_fields_of_records(self, sources: list[ImageSource], expected: Expected) -> None:
        fields = [field.name for field in sources[0].fields]
        assert fields == list(expected.fields)
        values = [plain(record).fields for record in sources[0].records()]
        for at, name in enumerate(fields):
            found = [row[at] for row in values]
            found = [bytes_of(one) if isinstance(one, Record) else one for one in found]
            assert found == list(expected.fields[name]), name


def plain(record: Record) -> Record:
    """A record with lists instead of arrays, which are compared as a whole."""
    values = (v.tolist() if isinstance(v, np.ndarray) else v for v in record.fields)
    return record._replace(fields=tuple(values))


def rows_of(source: Any) -> dict[str, dict[str, Any]]:
    names = [field.name for field in source.fields]
    return {
        record.key: dict(zip(names, plain(record).fields, strict=True))
        for record in source.records()
        if record.problem is None
    }


def class_of(classes: Sequence[str], label: int) -> str:
    """The name of a class; "" where there are no classes."""
    return classes[label] if classes else ""


def contents(dataset: Path) -> dict[str, str]:
    """Digests of a dataset's files, whole; names nothing else that lies there."""
    return {
        str(path.relative_to(dataset)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(dataset.rglob("*"))
        if path.is_file()
    }


def contents_but_source(dataset: Path) -> dict[str, str]:
    """The same, without what the manifest says of where the data came from."""
    found = contents(dataset)
    manifest = json.loads((dataset / "_dataset.json").read_text("utf-8"))
    del manifest["source"], manifest["checksum"]
    return found | {"_dataset.json": json.dumps(manifest)}


def convert(*arguments: object) -> Result:
    """Runs ``fastdata convert`` in this process, on one worker unless told otherwise."""
    given = [str(argument) for argument in arguments]
    if "--workers" not in given:
        given += ["--workers", "1"]
    return run("convert", *given)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def require_said(result: Result, exit_code: int, *parts: object) -> None:
    """Checks how a command ended, and that its error says these things; no traceback."""
    assert result.exit_code == exit_code, (result.output, result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    for part in parts:
        assert str(part) in result.stderr, result.stderr


def picture(seed: int, size: tuple[int, int] = (48, 36), mode: str = "RGB") -> Image.Image:
    width, height = size
    generator = np.random.default_rng(seed)
    slope = np.linspace(0, 200, width)[None, :, None] * np.ones((height, 1, 3))
    pixels = (slope + generator.integers(0, 56, (height, width, 3))).astype(np.uint8)
    return Image.fromarray(pixels).convert(mode)


def encoded(image: Image.Image, form: str = "JPEG", **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def bytes_of(record: Record) -> bytes:
    """A record's bytes, read by hand: an extent means something without the code under test."""
    with Path(record.path).open("rb") as file:
        file.seek(record.offset)
        return file.read(record.length)


def jpeg(seed: int = 0, **options: object) -> bytes:
    return encoded(picture(seed), **options)


def make_tree(root: Path, names: Iterable[str]) -> Path:
    for seed, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(seed))
    return root


def tar_bytes(members: Iterable[tuple[str, bytes]], form: int = tarfile.GNU_FORMAT) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def imagenet_expected(root: Path, split: str) -> Expected:
    train = root / "train"
    classes = sorted(path.name for path in (train if train.is_dir() else root / split).iterdir())
    paths = sorted((root / split).glob("*/*"), key=lambda path: (path.parent.name, path.name))
    samples = [(f"{p.parent.name}/{p.stem}", p.parent.name, p.read_bytes()) for p in paths]
    return Expected(classes, samples)


def shuffled(items: Iterable[Path]) -> list[Path]:
    """In an order that is not the sorted one; the same every time."""
    found = sorted(items)
    random.Random(5).shuffle(found)
    return found


def make_archives(tree: Path, out: Path) -> Path:
    out.mkdir(parents=True)
    if (tree / "train").is_dir():
        inner = (
            (f"{folder.name}.tar", tar_bytes((p.name, p.read_bytes()) for p in shuffled_in(folder)))
            for folder in shuffled((tree / "train").iterdir())
        )
        (out / "ILSVRC2012_img_train.tar").write_bytes(tar_bytes(inner))
    images = shuffled((tree / "val").glob("*/*"))
    (out / "ILSVRC2012_img_val.tar").write_bytes(
        tar_bytes((path.name, path.read_bytes()) for path in images)
    )
    wnids = sorted({path.name for split in ("train", "val") for path in (tree / split).glob("*")})
    make_devkit(
        out, wnids, {int(path.stem.rpartition("_")[2]): path.parent.name for path in images}
    )
    return out


def shuffled_in(folder: Path) -> list[Path]:
    return shuffled(folder.iterdir())


def make_devkit(out: Path, wnids: Sequence[str], wnid_of: dict[int, str]) -> None:
    """Makes the development kit: an ID for each wnid, and the ID of each validation image."""
    # scipy.io is slow to import, and only this needs it.
    savemat = pytest.importorskip("scipy.io").savemat

    # As in the real kit, IDs are not in the order of the wnids, and inner nodes come after.
    order = list(wnids)
    random.Random(3).shuffle(order)
    names = [*order, "n00001740", "n00001930"]
    kinds = [(name, object) for name in ("ILSVRC2012_ID", "WNID", "words", "gloss")]
    kinds += [(name, object) for name in ("num_children", "children", "wordnet_height")]
    synsets = np.empty((len(names), 1), kinds)
    for number, name in enumerate(names, 1):
        children = [] if number <= len(order) else [1.0, 2.0]
        synsets[number - 1, 0] = (
            float(number),
            name,
            f"word {number}",
            "a gloss",
            float(len(children)),
            np.array(children),
            float(len(children)),
        )
    meta = io.BytesIO()
    savemat(meta, {"synsets": synsets})
    ids = {name: number for number, name in enumerate(names, 1)}
    # Images that are not there have a line all the same.
    lines = [str(ids[wnid_of.get(n, order[0])]) for n in range(1, max(wnid_of, default=0) + 1)]
    members = {
        f"{DEVKIT}/readme.txt": b"",
        f"{DEVKIT}/data/meta.mat": meta.getvalue(),
        f"{DEVKIT}/data/ILSVRC2012_validation_ground_truth.txt": "\n".join([*lines, ""]).encode(),
    }
    with tarfile.open(out / f"{DEVKIT}.tar.gz", "w:gz", compresslevel=1) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def make_kaggle(tree: Path, out: Path) -> Path:
    """Makes Kaggle's layout from a tree of class folders; the images are links."""
    data = out / "ILSVRC" / "Data" / "CLS-LOC"
    for path in (tree / "train").glob("*/*"):
        link = data / "train" / path.parent.name / path.name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path.resolve())
    (data / "val").mkdir(parents=True)
    (data / "test").mkdir()
    (data / "test" / "ILSVRC2012_test_00000001.JPEG").write_bytes(jpeg())
    with (out / "LOC_val_solution.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["ImageId", "PredictionString"])
        for number, path in enumerate(shuffled((tree / "val").glob("*/*"))):
            (data / "val" / path.name).symlink_to(path.resolve())
            box = f"{path.parent.name} 10 20 110 120 "
            writer.writerow([path.stem, box * (1 + number % 3)])
    wnids = sorted(path.name for path in (tree / "train").glob("*"))
    (out / "LOC_synset_mapping.txt").write_text(
        "".join(f"{wnid} a thing, another name\n" for wnid in wnids), "utf-8"
    )
    return out
