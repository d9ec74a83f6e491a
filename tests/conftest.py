"""Fixtures of all tests: image trees, and a machine that no test can litter."""

from __future__ import annotations

import fcntl
import gc
import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from object_stores import bucket, gcs, gcs_endpoint, s3, s3_endpoint, store, web

from fastdata import _native
from fastdata.sample import make_sample

# Fixtures that any test may ask for.
__all__ = ["bucket", "gcs", "gcs_endpoint", "s3", "s3_endpoint", "store", "web"]

# Started in the background by a shell, this process and all that tests start would ignore
# Ctrl-C, and the tests of it would wait in vain.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests run in several processes: OpenMP threads that spin beside them cost more than they bring.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No test asserts a wall-clock time: on a busy or emulated machine, Hypothesis's 200 ms pass soon.
settings.register_profile("no deadline", deadline=None)
settings.load_profile("no deadline")

_REPOSITORY = Path(__file__).resolve().parent.parent


# Files that take minutes, longest first: no process is left alone with one at the end.
_LONG = ["bench_workloads", "cli", "loader_lifecycle", "pixel_programs", "train_imagenet"]
_LONG += ["loader_frameworks", "bench_gpu", "bench_peers", "kill", "packing", "out", "campaign"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    place = {f"test_{name}": at for at, name in enumerate(_LONG)}
    items.sort(key=lambda item: place.get(item.path.stem, len(_LONG)))


def pytest_collection_finish() -> None:
    """Spare each gc.collect() of a test the modules that are imported: a tenth of a second."""
    gc.freeze()


@pytest.fixture(autouse=True)
def _no_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Staged copies and caches of a test stay in its own folder."""
    monkeypatch.setenv("FASTDATA_STAGE_ROOT", str(tmp_path / "shm"))
    monkeypatch.setenv("FASTDATA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("IMAGENET_DIR", raising=False)


@pytest.fixture
def limited() -> Iterator[Callable[[int], None]]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield lambda most: resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.fixture(scope="session")
def imagenet_sample() -> Path:
    """Real ImageNet photographs, ``train/<wnid>/*.JPEG``; never part of this repository."""
    default = _REPOSITORY.parent / "shared" / "imagenet-sample"
    root = Path(os.environ.get("FASTDATA_IMAGENET_SAMPLE") or default)
    if not (root / "train").is_dir():
        pytest.skip(f"no real ImageNet photographs at {root} (set FASTDATA_IMAGENET_SAMPLE)")
    return root


@pytest.fixture(scope="session")
def made_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An ImageNet-like tree of 64 + 50 made photographs in 4 classes; do not change it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:  # one for all processes
        folder = folder.parent
    root = folder / "made" / "imagenet"
    with (folder / "made.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            make_sample(root, images=64, val_images=50, classes=4, workers=2)
    return root


@pytest.fixture
def hugging_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The datasets package, which asks no server and writes to the test's folder."""
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(name, "1")
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    return datasets


@pytest.fixture(scope="session", autouse=True)
def vector() -> None:
    """Entropy decoding goes into a vector's lanes, be they slow here or not."""
    _native.use_vector("always")


@pytest.fixture(
    params=[
        pytest.param(level, marks=[pytest.mark.slow] if level != _native.simd() else [])
        for level in _native.simd_levels()
    ]
)
def simd(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test once on each instruction set that this processor has; all but one are slow."""
    before = _native.simd()
    _native.set_simd(request.param)
    yield request.param
    _native.set_simd(before)


@pytest.fixture(scope="session")
def v2() -> Any:
    from torchvision_stub import import_torchvision  # here, as tests of the core have no torch

    return import_torchvision().transforms.v2


@pytest.fixture(scope="session")
def v1() -> Any:
    from torchvision_stub import import_torchvision

    return import_torchvision().transforms


@pytest.fixture(scope="session", params=["v1", "v2"])
def tv(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no --out is given, datasets are made in the working directory."""
    monkeypatch.chdir(tmp_path)
