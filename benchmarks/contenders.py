"""Contenders of the loader benchmark, one for each row of its table."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fastdata.errors import UsageError

_HERE = Path(__file__).resolve().parent
#: Adapters that run where fastdata is installed, and the modules that all adapters share. Adapters
#: of other environments are in ``peers``, which is in a checkout alone.
ADAPTERS = _HERE / "adapters"


@dataclass(frozen=True)
class Contender:
    """Way to load images.

    Attributes:
        name: Its name in tables. The part before the first hyphen is its family.
        adapter: File below ``benchmarks``, or any path, that loads in this way.
        variant: One of the adapter's ways to load.
        environment: Folder below ``.venvs/peers`` whose interpreter runs the adapter; "" for the
            one that runs the benchmark.
        folder: Where in the work folder its data is; contenders with the same one share it.
            "tree" for the images as they are.
        prepared_as: Variant to prepare the data with, if another.
        staged: Whether the data is staged to memory first (fastdata's own format only).
        needs_gpu: Whether it is left out on machines without a GPU.
        needs: A module of this environment without which it is left out.
        dtype: Its only dtype; None if the options decide.
        recipes: Whether it takes part where recipes of augmentation are measured.
        max_side: Largest longer side of its stored images, in pixels; None if they keep their
            size. The expected pixels are cut from images that Pillow reduced to it.
        area: Whether it averages areas, as OpenCV's INTER_AREA does, of a window of its own.
        tolerance: Largest mean absolute difference of an image's pixels from Pillow's, in levels
            of 255.
        mean_tolerance: The same of all images checked; None for ``tolerance``.
        why: Why that is more than one level.
        note: Remark for readers of its figures.
    """

    name: str
    adapter: str
    variant: str = ""
    environment: str = ""
    folder: str = "tree"
    prepared_as: str | None = None
    staged: bool = False
    needs_gpu: bool = False
    needs: str = ""
    dtype: str | None = None
    recipes: bool = False
    max_side: int | None = None
    area: bool = False
    tolerance: float = 1.0
    mean_tolerance: float | None = None
    why: str = ""
    note: str = ""

    @property
    def path(self) -> Path:
        """Path of the adapter."""
        return _HERE / self.adapter

    @property
    def family(self) -> str:
        """Name of the loader's project."""
        return self.name.partition("-")[0]

    def interpreter(self, environments: Path) -> Path:
        """Return the Python that runs it, which may not exist."""
        return environments / self.environment / "bin/python" if self.environment else _THIS


_THIS = Path(sys.executable)

FASTDATA = [
    *(
        Contender(
            f"fastdata-{name}",
            "adapters/fastdata_loader.py",
            name,
            folder=f"fastdata-{name}",
            recipes=True,
            note=note,
        )
        for name, note in (
            ("lmdb", "the JPEGs in LMDB"),
            ("parquet", "the JPEGs in Parquet"),
            ("shards", "the JPEGs in tar shards"),
            ("folder", "the JPEGs where they are, with an index of them"),
        )
    ),
    Contender(
        "fastdata-imagefolder",
        "adapters/fastdata_loader.py",
        "imagefolder",
        recipes=True,
        note="nothing converted: seek points are found in the first epoch",
    ),
    Contender(
        "fastdata-raw",
        "adapters/fastdata_loader.py",
        "raw",
        folder="fastdata-raw",
        recipes=True,
        max_side=256,
        note="pixels in LMDB, longer side at most 256",
    ),
    *(
        Contender(
            f"fastdata-{name}-shm",
            "adapters/fastdata_loader.py",
            "staged",
            folder=f"fastdata-{name}",
            prepared_as=name,
            staged=True,
            recipes=True,
            max_side=256 if name == "raw" else None,
            note=f"fastdata-{name}, staged to /dev/shm",
        )
        for name in ("lmdb", "parquet", "shards", "raw")
    ),
]

PEERS = [
    Contender(
        "torch-float32",
        "adapters/torch_loader.py",
        "tree",
        dtype="float32",
        recipes=True,
        note="torch's DataLoader, torchvision's ImageFolder, Pillow; float32 batches",
    ),
    Contender(
        "torch-v2",
        "adapters/torch_loader.py",
        "v2",
        dtype="float32",
        needs="torchvision",
        recipes=True,
        note="torchvision's v2: Pillow decodes, all else is done on uint8 tensors",
    ),
    Contender(
        "torch-uint8",
        "adapters/torch_loader.py",
        "tree",
        dtype="uint8",
        note="torch's DataLoader and Pillow; uint8 batches by fastdata.fast_collate",
    ),
    Contender(
        "torch-lmdb",
        "adapters/torch_loader.py",
        "lmdb",
        folder="torch-lmdb",
        note="torch-uint8 reading LMDB by py-lmdb",
    ),
    Contender(
        "hf",
        "adapters/torch_loader.py",
        "hf",
        folder="hf",
        note="Hugging Face datasets in torch's DataLoader, Pillow",
    ),
    Contender(
        "pillow-simd",
        "adapters/torch_loader.py",
        "tree",
        environment="pillow_simd",
        dtype="uint8",
        recipes=True,
        note="torch-uint8 with pillow-simd in Pillow's place",
    ),
    *(
        Contender(name, f"peers/{adapter}.py", environment=name, folder=folder, note=note)
        for name, adapter, folder, note in (
            ("torchdata", "torchdata_nodes", "tree", "torchdata.nodes, Pillow"),
            (
                "webdataset",
                "webdataset_loader",
                "webdataset",
                "tar shards, webdataset's loader, Pillow",
            ),
            ("streaming", "streaming_loader", "streaming", "MosaicML Streaming, Pillow"),
            ("litdata", "litdata_loader", "litdata", "Lightning's LitData, Pillow"),
        )
    ),
    *(
        Contender(
            f"petastorm-{pool}",
            "peers/petastorm_reader.py",
            pool,
            environment="petastorm",
            folder="petastorm",
            note=f"petastorm's pool of {'threads' if pool == 'thread' else 'processes'}, Pillow",
        )
        for pool in ("thread", "process")
    ),
    Contender(
        "spdl",
        "peers/spdl_pipeline.py",
        environment="spdl",
        tolerance=4.0,
        why="FFmpeg has a colour conversion and a scaler of its own",
        note="SPDL: FFmpeg in threads",
    ),
    Contender(
        "dali-cpu",
        "peers/dali_pipeline.py",
        "cpu",
        environment="dali",
        recipes=True,
        tolerance=2.0,
        why="DALI's antialiasing filter is another",
        note="NVIDIA DALI on the CPU",
    ),
    Contender(
        "dali-fastdata",
        "adapters/fastdata_loader.py",
        "dali",
        needs="nvidia.dali",
        folder="fastdata-lmdb",
        prepared_as="lmdb",
        tolerance=2.0,
        why="DALI's antialiasing filter is another",
        note="fastdata.dali.DALILoader, on the CPU",
    ),
    Contender(
        "dali-mixed",
        "peers/dali_pipeline.py",
        "mixed",
        needs="nvidia.dali",
        needs_gpu=True,
        tolerance=4.0,
        why="nvJPEG's upsampling and DALI's filter are others",
        note="NVIDIA DALI, decoding on the GPU",
    ),
    *(
        Contender(
            f"ffcv-{name}",
            "peers/ffcv_loader.py",
            name,
            environment="ffcv",
            folder=f"ffcv-{name}",
            max_side=max_side,
            area=True,
            tolerance=15.0,
            mean_tolerance=6.0,
            why="FFCV re-encodes JPEGs, and OpenCV's averages and enlargements are not Pillow's",
            note=f"FFCV: {note}",
        )
        for name, max_side, note in (
            ("q90", None, "JPEG of quality 90, full size"),
            ("500", 500, "JPEG of quality 90, longer side at most 500"),
            ("half", 500, "longer side at most 500; half of the images as pixels"),
            ("raw", 500, "pixels, longer side at most 500"),
            ("raw256", 256, "pixels, longer side at most 256"),
        )
    ),
]


def default_environments() -> Path:
    """Return the folder of ``make bench-peers``, in this checkout or else below this folder."""
    checkout = Path(__file__).resolve().parent.parent
    root = checkout if (checkout / "Makefile").exists() else Path.cwd()
    return Path(os.environ.get("FASTDATA_BENCH_ENVIRONMENTS") or root / ".venvs/peers")


def has_gpu() -> bool:
    """Return whether there is an NVIDIA GPU."""
    return Path("/dev/nvidiactl").exists()


def _has_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # nor its package
        return False


def choose(
    names: Iterable[str] | None,
    among: Iterable[Contender],
    environments: Path,
    *,
    gpu: bool,
    recipes: bool = False,
) -> list[Contender]:
    """Return the contenders that names select.

    ``names`` are contenders or families; None for all that can run here.

    Raises:
        UsageError: A name is unknown, or its contenders cannot run here.
    """
    among = list(among)

    def missing(contender: Contender) -> str:
        if recipes and not contender.recipes:
            return "it has no recipes of augmentation"
        if contender.needs_gpu and not gpu:
            return "there is no GPU"
        if contender.needs and not _has_module(contender.needs):
            return f"{contender.needs} is not installed"
        if not contender.path.exists():
            return "its adapter is in a checkout of fastdata alone"
        if not contender.interpreter(environments).exists():
            return f"there is no {contender.interpreter(environments)}"
        return ""

    if names is None:
        return [contender for contender in among if not missing(contender)]
    chosen = []
    for name in names:
        found = [c for c in among if name in (c.name, c.family)]
        if not found:
            known = ", ".join(c.name for c in among)
            raise UsageError(f"no contender is called {name!r}", f"Known are {known}.")
        can = [c for c in found if not missing(c)]
        if not can:
            peer = found[0].environment
            others = ", ".join(c.name for c in among if not missing(c))
            raise UsageError(
                f"{name} cannot run here: {missing(found[0])}",
                f"In a checkout: make bench-peers PEERS={peer}" if peer else f"What can: {others}.",
            )
        chosen += [c for c in can if c not in chosen]
    return chosen
