"""Archives made to harm, read by every command: a result, or an error of fastdata's."""

from __future__ import annotations

import faulthandler
import gzip
import os
import random
import shutil
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import archives
import hostile
import lmdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from annotated import write_coco, write_masked, write_table, write_voc, write_yolo
from click.testing import CliRunner
from containers import pack_tree
from fastdata.converters import (
    ArrowImages,
    ImageNet,
    ImageSource,
    LmdbImages,
    ParquetImages,
    WebDataset,
    pack,
)
from hangs import HANG
from jpegs import encode, picture
from sources import make_archives, tar_bytes

from fastdata import ImageDataset, verify
from fastdata.cli.commands import cli
from fastdata.errors import FastdataError

CASES = int(os.environ.get("FASTDATA_CAMPAIGN_ARCHIVES", "150"))
SECONDS = float(os.environ.get("FASTDATA_CAMPAIGN_ARCHIVES_SECONDS", "inf"))
SEED = int(os.environ.get("FASTDATA_CAMPAIGN_SEED", "0"))
#: Of CPU time, for a case.
MOST_SECONDS = 30
CONTAINERS = ("lmdb", "parquet", "shards", "folder")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("seeds")
    for number in range(6):
        path = root / "tree" / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(picture(20 + number, 17, number)))
    for container in CONTAINERS:
        pack_tree(root / "tree", root / container, container)
    for kind, suffix in (("webdataset", ".tar"), ("parquet source", ".parquet")):
        (root / kind).mkdir()
        for path in root.glob(f"*/*{suffix}"):
            shutil.copy(path, root / kind)
    images = [path.read_bytes() for path in sorted(root.glob("tree/*/*"))]
    samples = [archives.Made(one, n % 3, f"{n}", one) for n, one in enumerate(images)]
    for kind in archives.KINDS:
        archives.place(kind, root / f"{kind} in place", samples)
    for name, new in (("stream", pa.ipc.new_stream), ("file", pa.ipc.new_file)):
        structs = [{"bytes": image, "path": None} for image in images]
        table = pa.table({"image": structs, "label": [0] * 6, "text": ["a"] * 6})
        (root / f"arrow {name}").mkdir()
        with new(str(root / f"arrow {name}/x.arrow"), table.schema) as writer:
            writer.write_table(table, 4)
    (root / "lmdb source").mkdir()
    with (
        lmdb.open(str(root / "lmdb source/x.mdb"), subdir=False, lock=False) as environment,
        environment.begin(write=True) as transaction,
    ):
        for number, image in enumerate(images):
            transaction.put(b"%d" % number, image * (number + 1))
    members = [(path.name, path.read_bytes()) for path in sorted(root.glob("tree/class0/*"))]
    inner = [(f"n0000000{number}.tar", tar_bytes(members)) for number in range(2)]
    (root / "imagenet").mkdir()
    (root / "imagenet/ILSVRC2012_img_train.tar").write_bytes(tar_bytes(inner))
    write_converted(root)
    return root


def write_converted(root: Path) -> None:
    for kind, write in (
        ("coco", write_coco), ("voc", write_voc), ("yolo", write_yolo), ("masks", write_masked),
        ("table", write_table),
    ):  # fmt: skip
        write(root / f"{kind} source")
    for number in range(2):
        path = root / f"val tree/val/n0000000{number}/ILSVRC2012_val_0000000{number + 1}.JPEG"
        path.parent.mkdir(parents=True)
        path.write_bytes(encode(picture(19, 15 + number, number)))
    make_archives(root / "val tree", root / "imagenet val")
    shutil.copytree(root / "parquet source", root / "petastorm")
    schema = pq.read_schema(next((root / "petastorm").glob("*.parquet")))
    entry = {b"dataset-toolkit.unischema.v1": b"a pickle that is not read"}
    pq.write_metadata(schema.with_metadata(entry), root / "petastorm/_common_metadata")


def change_one(case: Path, rng: random.Random) -> None:
    path = rng.choice(sorted(path for path in case.rglob("*") if path.is_file()))
    data, change = path.read_bytes(), hostile.CHANGES.get(path.suffix, hostile.damage)
    # SciPy crashes on some of MATLAB's files: the checksum of ImageNet's kit finds the damage.
    if path.suffix == ".gz" and "devkit" not in path.name and rng.random() < 0.5:
        change = rng.choice((hostile.damage, hostile.change_tar))
        path.write_bytes(gzip.compress(change(gzip.decompress(data), rng), 1))
    else:
        path.write_bytes(change(data, rng))


def empty_out(case: Path) -> Path:
    out = case.with_name("out")
    shutil.rmtree(out, ignore_errors=True)
    return out


def convert(kind: str, *options: object, file: str = "") -> Callable[[Path, random.Random], None]:
    """Packs a source, one of whose files is changed, by the command."""

    def use(case: Path, rng: random.Random) -> None:
        change_one(case, rng)
        out = empty_out(case)
        run("convert", kind, "--root", case / file, "--out", out, "--to", "shards", *options,
            "--workers", 1)  # fmt: skip

    return use


def read_source(source: Callable[[Path], ImageSource]) -> Callable[[Path, random.Random], None]:
    def use(case: Path, rng: random.Random) -> None:
        change_one(case, rng)
        opened = source(case)
        for _ in opened.records():
            pass
        if rng.random() < 0.1:
            out = empty_out(case)
            pack(opened, out, container=rng.choice((*CONTAINERS[:3], "archives")), workers=1)
            read_all(out)

    return use


def read_dataset(case: Path, rng: random.Random) -> None:
    """Opens a changed dataset and verifies it; some are read by the other commands, too."""
    hostile.change_dataset(case, rng)
    read_all(case)
    if rng.random() < 0.05:
        run("seek-points", case, "--workers", 1)
        run("info", case)
    if rng.random() < 0.002:
        run("doctor", case)


def read_in_place(case: Path, rng: random.Random) -> None:
    if rng.random() < 0.5:
        read_dataset(case, rng)
        return
    change_one(case / "archives", rng)
    read_all(case)
    if rng.random() < 0.1:  # a file:// URL is read by the code that reads buckets
        where = f"{rng.choice(('', 'file://'))}{case}/archives"
        run("index", where, "--out", empty_out(case), "--workers", 1)


def read_all(case: Path) -> None:
    with quietly():
        dataset = ImageDataset(case)
        for number in range(min(len(dataset), 10)):
            with quietly():
                dataset[number]
    with quietly():
        verify(case, workers=1)


@contextmanager
def quietly() -> Iterator[None]:
    try:
        yield
    except FastdataError as error:
        assert len(str(error)) < 20_000


def run(*arguments: object) -> None:
    result = CliRunner().invoke(cli, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code in (0, 1, 2), result.output


USES: dict[str, Callable[[Path, random.Random], None]] = {
    "webdataset": read_source(WebDataset),
    "parquet source": read_source(ParquetImages),
    "arrow stream": read_source(ArrowImages),
    "arrow file": read_source(ArrowImages),
    "lmdb source": read_source(LmdbImages),
    "imagenet": read_source(lambda root: ImageNet(root, "train")),
    "tree": convert("imagefolder"),
    "petastorm": convert("parquet"),
    "coco source": convert("coco"),
    "voc source": convert("voc", "--split", "train"),
    "yolo source": convert("yolo", "--split", "train"),
    "masks source": convert(
        "masks", "--images", "images/training", "--masks", "annotations/training"
    ),
    "table source": convert("table", "--file-columns", "mask", file="table.jsonl"),
    "imagenet val": convert("imagenet", "--split", "val"),
    **dict.fromkeys(CONTAINERS, read_dataset),
    **{f"{kind} in place": read_in_place for kind in archives.KINDS},
}


def test_files_made_to_harm(seeds: Path, tmp_path: Path) -> None:
    case, end = tmp_path / "case", time.monotonic() + SECONDS
    done: Counter[str] = Counter()
    spent: Counter[str] = Counter()
    for number in range(CASES):
        if time.monotonic() > end:
            break
        rng = random.Random(f"{SEED}/{number}")
        kind = rng.choice(sorted(USES))
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(seeds / kind, case)
        faulthandler.dump_traceback_later(HANG, exit=True)
        begin = time.thread_time()
        try:
            with warnings.catch_warnings(), quietly():
                warnings.simplefilter("ignore")
                USES[kind](case, rng)
        except Exception as error:
            raise AssertionError(f"case {number} ({kind}) of seed {SEED}: {error!r}") from error
        finally:
            faulthandler.cancel_dump_traceback_later()
        done[kind] += 1
        took = time.thread_time() - begin
        assert took < MOST_SECONDS, f"case {number} ({kind}) of seed {SEED}: {took:.0f} s"
        spent[kind] += took
        if CASES > 1000 and not number % 1000:
            print(f"{number:,} cases of seed {SEED}", flush=True)
    each = ", ".join(f"{kind} {n:,} ({spent[kind] / n * 1e3:.0f} ms)" for kind, n in done.items())
    print(f"{done.total():,} files made to harm: {each}")
