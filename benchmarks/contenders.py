"""Contenders of the loader benchmark, one for each row of its table."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fastdata.errors import UsageError
from fastdata.storage.manifest import Manifest

_HERE = Path(__file__).resolve().parent
#: Packages of modules that have other names.
_PACKAGES = {
    "nvidia.dali": "nvidia-dali-cuda120",
    "nvidia.nvimgcodec": "nvidia-nvimgcodec-cu12",
    "open_clip_train": "open_clip_torch",
}


@dataclass(frozen=True)
class Contender:
    """Way to load images.

    Attributes:
        name: Its name in tables; its family is the part before the first hyphen.
        adapter: File below ``benchmarks``, or any path, that loads in this way.
        environment: Folder below ``.venvs/peers`` whose interpreter runs the adapter.
        needs: Module with which this interpreter runs it where there is no such folder.
        program: Program that it starts, of a Debian package of that name.
        folder: Where in the work folder its data is, which others may share; "tree" for the images
            as they are, "" for the dataset that the user named. With "{case}", each case has one.
        prepared_as: Variant to prepare the data with, if another.
        device: Where it has its batches; without a GPU, it is left out if that is one.
        max_side: Largest longer side of its stored images, to which Pillow reduces the expected
            ones; None if they keep their size.
        area: Whether it averages areas, as OpenCV's INTER_AREA does, of a window of its own.
        tolerance: Largest mean absolute difference of an image's pixels from the expected ones, in
            levels of 255; None if they are not compared.
        mean_tolerance: The same of all images checked; None for ``tolerance``.
    """

    name: str
    adapter: str
    variant: str = ""
    environment: str = ""
    needs: str = ""
    program: str = ""
    folder: str = "tree"
    prepared_as: str | None = None
    staged: bool = False
    device: str = "cpu"
    dtype: str | None = None
    max_side: int | None = None
    area: bool = False
    tolerance: float | None = 1.0
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

    @property
    def interpreter(self) -> Path:
        """The Python that runs it; `build.sh` marks the environments that it has finished."""
        own = environments() / self.environment
        finished = self.environment and (own / ".done").exists()
        return own / "bin/python" if finished else Path(sys.executable)

    @property
    def missing(self) -> str:
        """Reason why it cannot run here, and how it could; "" if it can."""
        if self.device != "cpu" and not has_gpu():
            return "there is no GPU"
        if not self.path.exists():
            return "its adapter is in a checkout of fastdata alone"
        if self.program and not shutil.which(self.program):
            return f"there is no {self.program}: apt-get install {self.program}"
        installed = has_module(self.needs) if self.needs else not self.environment
        if installed or self.interpreter != Path(sys.executable):
            return ""
        if self.environment:
            return f"it is not installed: in a checkout, make bench-peers PEERS={self.environment}"
        return f"it is not installed: pip install {_PACKAGES.get(self.needs, self.needs)}"


def _fastdata(name: str, note: str, variant: str = "", **more: Any) -> Contender:
    settings = {"folder": f"fastdata-{name}", "prepared_as": name, **more}
    return Contender(f"fastdata-{name}", _FASTDATA, variant or name, note=note, **settings)


def _staged(name: str, **more: Any) -> Contender:
    settings = {"folder": f"fastdata-{name}", "prepared_as": name, "staged": True, **more}
    return _fastdata(f"{name}-shm", f"fastdata-{name}, staged to /dev/shm", "staged", **settings)


def _torch(name: str, variant: str, note: str, **more: Any) -> Contender:
    settings = {"needs": "" if "environment" in more else "torch", **more}
    return Contender(name, "adapters/torch_loader.py", variant, note=note, **settings)


def _peer(name: str, adapter: str, note: str, variant: str = "", **more: Any) -> Contender:
    settings = {"environment": name.partition("-")[0], **more}
    return Contender(name, f"peers/{adapter}.py", variant, note=note, **settings)


def _ffcv(name: str, max_side: int | None, stored: str) -> Contender:
    why = "FFCV re-encodes JPEGs, and OpenCV's averages and enlargements are not Pillow's"
    settings = {"tolerance": 15.0, "mean_tolerance": 6.0, "area": True, "why": why}
    settings |= {"folder": f"ffcv-{name}", "max_side": max_side}
    return _peer(f"ffcv-{name}", "ffcv_loader", f"FFCV: {stored}", name, **settings)


_FASTDATA, _PIPELINE = "adapters/fastdata_loader.py", "adapters/dali_pipeline.py"
_LMDB: dict[str, Any] = {"folder": "fastdata-lmdb", "prepared_as": "lmdb"}
_FILTER, _FFMPEG = "DALI's antialiasing filter is another", "FFmpeg's scaler is another"
_DALI: dict[str, Any] = {"needs": "nvidia.dali", "tolerance": 2.0, "why": _FILTER}
#: It needs a torch with CUDA.
_API: dict[str, Any] = {**_DALI, "device": "cuda", "dtype": "uint8"}
_TORCHCODEC: dict[str, Any] = {"environment": "torchcodec", "needs": "torchcodec", "dtype": "uint8"}
_PILLOW_SIMD: dict[str, Any] = {"environment": "pillow_simd", "dtype": "uint8"}
_NVJPEG = "nvJPEG's upsampling and DALI's filter are others"
_GPU: dict[str, Any] = {"needs": "nvidia.dali", "device": "cuda", "tolerance": 4.0, "why": _NVJPEG}

FASTDATA = [
    _fastdata("lmdb", "the JPEGs in LMDB"),
    _fastdata("parquet", "the JPEGs in Parquet"),
    _fastdata("shards", "the JPEGs in tar shards"),
    _fastdata("folder", "the JPEGs where they are, with an index of them"),
    _fastdata("imagefolder", "nothing converted", folder="tree", needs="torchvision"),
    _fastdata("raw", "pixels in LMDB, longer side at most 256", max_side=256),
    *(_staged(name) for name in ("lmdb", "parquet", "shards")),
    _staged("raw", max_side=256),
    _fastdata("gpu", "fastdata-lmdb, to the GPU", device="cuda", **_LMDB),
]

PEERS = [
    _torch("torch-float32", "tree", "torch's DataLoader, ImageFolder, Pillow", dtype="float32"),
    _torch("torch-uint8", "tree", "the same with fastdata.fast_collate", dtype="uint8"),
    _torch("torch-torchcodec", "torchcodec", "torch-uint8, torchcodec decodes", **_TORCHCODEC),
    _torch("hf", "hf", "Hugging Face datasets, torch's DataLoader", folder="hf", needs="datasets"),
    _torch("pillow-simd", "tree", "torch-uint8 with pillow-simd", **_PILLOW_SIMD),
    *(
        _peer(name, f"{name}_loader", note, folder=name, needs=needs)
        for name, note, needs in (
            ("webdataset", "tar shards, webdataset's loader, Pillow", "webdataset"),
            ("streaming", "MosaicML Streaming, Pillow", "streaming.base.util"),
            ("litdata", "Lightning's LitData, Pillow", "litdata"),
        )
    ),
    _peer("spdl", "spdl_pipeline", "SPDL: FFmpeg in threads", tolerance=4.0, why=_FFMPEG),
    Contender("dali-cpu", _PIPELINE, "cpu", "dali", note="NVIDIA DALI on the CPU", **_DALI),
    Contender("dali-fastdata", _FASTDATA, "dali", note="DALILoader, on the CPU", **_DALI, **_LMDB),
    _torch("dali-torchvision", "dali", "DALI's API like torchvision's, in torch's workers", **_API),
    Contender("dali-mixed", _PIPELINE, "mixed", note="DALI on the GPU", **_GPU),
    Contender("dali-fastdata-mixed", _FASTDATA, "dali", note="DALILoader", **_GPU, **_LMDB),
    _ffcv("q90", None, "JPEG of quality 90, full size"),
    _ffcv("500", 500, "JPEG of quality 90, longer side at most 500"),
    _ffcv("half", 500, "longer side at most 500; half of the images as pixels"),
    _ffcv("raw", 500, "pixels, longer side at most 500"),
    _ffcv("raw256", 256, "pixels, longer side at most 256"),
]


def of_dataset(manifest: Manifest) -> list[Contender]:
    """Return the loaders of a dataset: fastdata's, by its container or raw pixels, and torch's."""
    raw = manifest.options.get("encoding") == "raw"
    name = f"fastdata-{'raw' if raw else manifest.container}"
    known = {contender.name: contender for contender in FASTDATA}
    # The reference is decoded from the dataset itself, so its images keep their size.
    own = known.get(name) or replace(known["fastdata-lmdb"], name=name, note="an index in place")
    beside = _torch("torch", "dataset", "torch's DataLoader, Pillow, the same dataset", folder="")
    return [replace(own, max_side=None, folder=""), beside]


def environments() -> Path:
    """Return the folder of ``make bench-peers``, in this checkout or else below this folder."""
    checkout = Path(__file__).resolve().parent.parent
    root = checkout if (checkout / "Makefile").exists() else Path.cwd()
    return Path(os.environ.get("FASTDATA_BENCH_ENVIRONMENTS") or root / ".venvs/peers")


def has_gpu() -> bool:
    """Return whether there is an NVIDIA GPU."""
    return Path("/dev/nvidiactl").exists()


def has_module(name: str) -> bool:
    """Return whether a module is installed."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # nor its package
        return False


def able(contenders: Iterable[Contender]) -> list[Contender]:
    """Return the contenders that can run here; say on stderr why the others cannot."""
    reasons: dict[str, list[Contender]] = {}
    for one in contenders:
        reasons.setdefault(one.missing, []).append(one)
    runnable = reasons.pop("", [])
    for reason, those in reasons.items():
        print(f"not measured: {', '.join(c.name for c in those)} ({reason})", file=sys.stderr)
    return runnable


def choose(names: Iterable[str] | None, among: Sequence[Contender]) -> list[Contender]:
    """Return the contenders that names select and that can run here.

    ``names`` are contenders or families; None for all.

    Raises:
        UsageError: A name is unknown, or none of its contenders can run here.
    """
    if names is None:
        return able(among)
    chosen: dict[str, Contender] = {}
    for name in names:
        matching = [c for c in among if name in (c.name, c.family)]
        if not matching:
            known = ", ".join(c.name for c in among)
            raise UsageError(f"no contender is called {name!r}", f"Known are {known}.")
        if all(c.missing for c in matching):
            can = ", ".join(c.name for c in among if not c.missing)
            raise UsageError(f"{name} cannot run here: {matching[0].missing}", f"What can: {can}.")
        chosen |= {c.name: c for c in matching}
    return able(chosen.values())
