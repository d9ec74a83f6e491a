"""Fuzz the readers of datasets and sources: any bytes give a result, or an error of fastdata's.

    python fuzz/fuzz_readers.py [SECONDS [SEED]]

Small datasets in each container, and sources of each kind that `fastdata convert` takes, have
bytes flipped, cut out, repeated and overwritten in one of their files; compressed data, as often
before compression. Headers of tars, pages of LMDBs, footers of Parquet files, records of indexes
and fields of manifests get other values, with the checksums that fit (tests/hostile.py). Datasets
are then opened, verified, described and read, and sources packed or indexed where they are, by the
commands that people use. EXIF data must give the orientation that Pillow finds. Any other
exception, a crash of the process, a case of over 30 seconds or of over 2 GiB is a finding: it ends
the run and stays in its folder.
"""

from __future__ import annotations

import faulthandler
import gzip
import io
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import archives
import hostile
import pyarrow.parquet as pq
from annotated import write_coco, write_masked, write_table, write_voc, write_yolo
from click.testing import CliRunner
from containers import pack_tree
from jpegs import encode, picture
from make_corpus import with_orientations, with_segments
from PIL import Image
from sources import make_archives
from test_cifar import Made, write_archive, write_folder

from fastdata import ImageDataset
from fastdata.cli import cli
from fastdata.decode.codecs import probe
from fastdata.errors import FastdataError
from fastdata.storage.manifest import MANIFEST_NAME

CONTAINERS = ("lmdb", "parquet", "shards", "folder")
#: Seconds that a case may take.
LIMIT = 30
#: Bytes of address space that a case may take, and images of an orientation in it.
MOST_BYTES, TURNED = 2 << 30, 200


def main() -> None:
    """Fuzz for some seconds; exit with 1 at the first finding."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 60
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 32)
    rng = random.Random(seed)
    warnings.simplefilter("ignore")
    root = Path(tempfile.mkdtemp(prefix="fastdata-fuzz-"))
    targets = make_seeds(root / "seeds")
    print(f"fuzz readers: seed {seed}, in {root}", flush=True)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + MOST_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    done: Counter[str] = Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        name = rng.choice(sorted(targets))
        seed_folder, use = targets[name]
        case = root / "case"
        shutil.rmtree(case, ignore_errors=True)
        shutil.copytree(seed_folder, case)
        files = sorted(path for path in case.rglob("*") if path.is_file())
        damaged = rng.choice(files)
        damaged.write_bytes(damage_file(damaged, rng))
        if use is read_dataset and rng.random() < 0.5:
            # The structure of a file is checked only if its checksum is right.
            with suppress(Exception):
                hostile.refit(case, damaged.relative_to(case).as_posix())
        faulthandler.dump_traceback_later(LIMIT, exit=True)
        try:
            use(case, root / "out")
        except BaseException:
            traceback.print_exc()
            sys.exit(f"fuzz readers: {name}, {damaged}: see {case}")
        finally:
            faulthandler.cancel_dump_traceback_later()
            shutil.rmtree(root / "out", ignore_errors=True)
        done[name] += 1
    shutil.rmtree(root)
    each = ", ".join(f"{name} {count}" for name, count in sorted(done.items()))
    print(f"fuzz readers: {done.total()} executions: {each}")


def damage_file(path: Path, rng: random.Random) -> bytes:
    """Return a file's bytes, damaged; half of the time behind compression or checksums."""
    data = path.read_bytes()
    if rng.random() < 0.5:
        # SciPy crashes on some of MATLAB's files, so ImageNet's kit needs its checksum to be read.
        if path.suffix == ".gz" and "devkit" not in path.name:
            change = rng.choice((hostile.damage, hostile.change_tar))
            return gzip.compress(change(gzip.decompress(data), rng), 1)
        if path.name == MANIFEST_NAME:
            return hostile.change_manifest(data, rng)
        if path.suffix in hostile.CHANGES:
            return hostile.CHANGES[path.suffix](data, rng)
    return hostile.damage(data, rng)


def make_seeds(root: Path) -> dict[str, tuple[Path, Callable[[Path, Path], None]]]:
    """Return the folder of each dataset and source, and its reader, by name."""
    tree = root / "imagefolder"
    for number in range(6):
        path = tree / f"class{number % 2}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = picture(20 + number, 17, number)
        if number == 4:
            Image.fromarray(pixels).save(path, "PNG")
        else:
            path.write_bytes(encode(pixels, progressive=number == 5))
    targets: dict[str, tuple[Path, Callable[[Path, Path], None]]] = {
        "convert imagefolder": (tree, partial(convert, "imagefolder", ())),
    }
    for container in CONTAINERS:
        packed = root / container
        pack_tree(tree, packed, container)
        if container == "folder":
            shutil.copytree(tree, packed, dirs_exist_ok=True)
        targets[container] = (packed, read_dataset)
    for kind, container in (("webdataset", "shards"), ("parquet", "parquet")):
        source = root / kind
        source.mkdir(exist_ok=True)
        for path in (root / container).rglob("*"):
            if path.suffix in (".tar", ".parquet") and path.parent != source:
                shutil.copy(path, source)
        targets[f"convert {kind}"] = source, partial(convert, kind, ())
    targets["convert petastorm"] = make_petastorm(root), partial(convert, "petastorm", ())
    for kind in ("cifar10", "cifar100"):
        made = Made(kind).files
        (root / kind).mkdir()
        write_archive(kind, made, root / kind)
        write_folder(kind, made, root / f"{kind} unpacked")
        for name in (kind, f"{kind} unpacked"):
            targets[f"convert {name}"] = root / name, partial(convert, kind, ("--split", "test"))
    imagenet = make_archives(make_imagenet(root / "imagenet"), root / "archives")
    for split in ("train", "val"):
        reads = partial(convert, "imagenet", ("--split", split))
        targets[f"convert imagenet {split}"] = imagenet, reads
    for kind, write, options in (
        ("coco", write_coco, ()),
        ("voc", write_voc, ("--split", "train")),
        ("yolo", write_yolo, ("--split", "train")),
        ("masks", write_masked, ("--images", "images/training", "--masks", "annotations/training")),
    ):
        targets[f"convert {kind}"] = write(root / kind), partial(convert, kind, options)
    images = [path.read_bytes() for path in sorted(tree.rglob("*.*"))]
    samples = [archives.Made(one, n % 3, f"text {n}", one) for n, one in enumerate(images)]
    for kind in archives.KINDS:
        targets[f"{kind} in place"] = (
            archives.place(kind, root / f"placed {kind}", samples),
            read_dataset,
        )
        targets[f"index {kind}"] = archives.write(kind, root / f"archives {kind}", samples), index
        if kind != "arrow":  # a file:// URL is read by the code that reads buckets
            far = partial(index, protocol="file://")
            targets[f"index {kind} by URL"] = root / f"archives {kind}", far
    targets["orientation"] = make_turned(root / "turned"), read_orientation
    table = partial(convert, "table", ("--file-columns", "mask"), file="table.jsonl")
    targets["convert table"] = write_table(root / "table"), table
    return targets


def make_turned(folder: Path) -> Path:
    """Make JPEGs with orientations in EXIF data and XMP."""
    folder.mkdir()
    for number, image in enumerate(with_orientations(encode(picture(19, 15, 1)))):
        (folder / f"{number}.jpg").write_bytes(image)
    return folder


def make_petastorm(root: Path) -> Path:
    """Make a source of Parquet with the file that marks petastorm's datasets."""
    folder = root / "petastorm"
    shutil.copytree(root / "parquet", folder)
    schema = pq.read_schema(next(folder.glob("*.parquet")))
    entry = {b"dataset-toolkit.unischema.v1": b"a pickle that is not read"}
    pq.write_metadata(schema.with_metadata(entry), folder / "_common_metadata")
    return folder


def make_imagenet(tree: Path) -> Path:
    """Make a tree from which ImageNet's archives can be made."""
    for number in range(4):
        wnid = f"n0000000{number % 2}"
        for name in (
            f"train/{wnid}/{wnid}_{number}.JPEG",
            f"val/{wnid}/ILSVRC2012_val_0000000{number + 1}.JPEG",
        ):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes(encode(picture(19, 15 + number, number)))
    return tree


def read_dataset(case: Path, out: Path) -> None:
    """Read a whole dataset, by its class and by the commands."""
    with suppress(FastdataError):
        dataset = ImageDataset(case)
        for index in range(min(len(dataset), 10)):
            with suppress(FastdataError):
                dataset[index]
    run("verify", case, "--workers", 1)
    run("info", case)


def index(case: Path, out: Path, protocol: str = "") -> None:
    """Index archives where they are, and read them."""
    run("index", f"{protocol}{case}", "--out", out, "--workers", 1)
    if (out / MANIFEST_NAME).exists():
        read_dataset(out, out)


def read_orientation(case: Path, out: Path) -> None:
    """Compare the orientations of images, damaged in their metadata again and again, with Pillow's.

    `probe` leaves some EXIF data to Pillow, as the core does: "unusual or damaged".
    """
    for path in sorted(case.iterdir()):
        data, rng = path.read_bytes(), random.Random(path.read_bytes())
        segments, at = [], 2
        while data[at : at + 2] == b"\xff\xe1":
            end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
            segments.append(data[at + 4 : end])
            at = end
        for _ in range(TURNED if segments else 0):
            some = segments.copy()
            which = rng.randrange(len(some))
            name = some[which].find(b"\0") + 1
            some[which] = some[which][:name] + hostile.damage(some[which][name:], rng)
            changed = with_segments(data[:2] + data[at:], some)
            with suppress(FastdataError):
                found = probe(changed).orientation
                if found != pillows(changed):
                    path.write_bytes(changed)
                    raise AssertionError(f"orientation {found}, Pillow finds {pillows(changed)}")


def pillows(data: bytes) -> int:
    """Return the orientation that Pillow finds; 1 if it fails."""
    try:
        found = Image.open(io.BytesIO(data)).getexif().get(0x0112, 1)
    except Exception:  # Pillow raises almost anything
        return 1
    return int(found) if found in range(2, 9) else 1


def convert(kind: str, options: Sequence[str], case: Path, out: Path, file: str = "") -> None:
    """Pack a source: a folder, or a file in it."""
    root = ("--root", case / file)
    run("convert", kind, *root, "--out", out, "--to", "shards", "--workers", 1, *options)


def run(*arguments: object) -> None:
    """Run a command, which must end by itself or with one of fastdata's errors."""
    result = CliRunner().invoke(
        cli, [os.fspath(a) if isinstance(a, Path) else str(a) for a in arguments]
    )
    error = result.exception
    if error is not None and not isinstance(error, SystemExit):
        raise error
    if result.exit_code not in (0, 1, 2):
        raise AssertionError(f"{arguments}: exit code {result.exit_code}")


if __name__ == "__main__":
    main()
