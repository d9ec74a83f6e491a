"""A wheel holds every module, and each imports where nothing but the wheel has fastdata."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

_REPOSITORY = Path(__file__).resolve().parent.parent
_FOLDERS = {name: f"fastdata/{name}" for name in ("converters", "benchmarks", "examples")}

# Adapters are scripts that run in the environments of other loaders.
_IMPORT_ALL = """
import importlib, pkgutil, sys
import fastdata
assert fastdata.__file__.startswith(sys.prefix), fastdata.__file__
for found in pkgutil.walk_packages(fastdata.__path__, "fastdata."):
    if found.name.startswith("fastdata.benchmarks.adapters.") or found.name.endswith("__main__"):
        continue
    # These need open_clip, and a torchvision whose operators fit torch.
    if found.name in ("fastdata.examples.open_clip_data", "fastdata.examples.train_imagenet"):
        continue
    importlib.import_module(found.name)
    print(found.name)
"""


def modules_on_disk() -> set[str]:
    found = {
        path.relative_to(_REPOSITORY).as_posix() for path in _REPOSITORY.glob("fastdata/**/*.py")
    }
    for folder, name in _FOLDERS.items():
        root = _REPOSITORY / folder
        # Peers' adapters, and studies, are used in a checkout alone.
        found |= {
            f"{name}/{path.relative_to(root).as_posix()}"
            for path in root.glob("**/*.py")
            if path.parent not in (root / "peers", root / "workloads")
        }
    return found


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    work = tmp_path_factory.mktemp("sdist")
    command = [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", str(work)]
    command += ["sdist", "--dist-dir", str(work)]
    subprocess.run(command, cwd=_REPOSITORY, check=True, capture_output=True)
    (archive,) = work.glob("fastdata_torch-*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(work, filter="data")
    return next(path for path in work.glob("fastdata_torch-*") if path.is_dir())


@pytest.fixture(scope="module")
def wheel(sdist: Path) -> Path:
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    built = sdist / "lib" / "fastdata"
    built.mkdir(parents=True)
    # Newer than its sources, so it is not compiled again.
    shutil.copy(_REPOSITORY / "fastdata" / f"_native{suffix}", built)
    command = [sys.executable, "setup.py", "-q", "build", "--build-lib", "lib", "bdist_wheel"]
    subprocess.run(command, cwd=sdist, check=True, capture_output=True)
    (found,) = (sdist / "dist").glob("fastdata_torch-*.whl")
    return found


def test_the_wheel_holds_every_module(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {name for name in names if name.endswith(".py")} == modules_on_disk()
    assert "fastdata/py.typed" in names
    assert "fastdata/examples/train_imagenet.slurm" in names
    assert any(name.startswith("fastdata/_native.") and name.endswith(".so") for name in names)


def test_the_source_distribution_holds_the_native_code_and_no_tests(sdist: Path) -> None:
    # Tests need what does not go with them: conftest.py, photographs, servers.
    assert not (sdist / "tests").exists()
    assert (sdist / "CHANGELOG.md").is_file()
    folder = _REPOSITORY / "fastdata" / "native"
    for path in folder.glob("**/*"):
        if path.suffix in (".h", ".cpp"):
            assert (sdist / path.relative_to(_REPOSITORY)).is_file(), path


def test_a_checkout_without_its_core_says_so(sdist: Path) -> None:
    command = [sys.executable, "-c", "import fastdata"]
    done = subprocess.run(command, cwd=sdist, capture_output=True, text=True)
    assert done.returncode == 1 and "ImportError" in done.stderr and "make setup" in done.stderr


@pytest.mark.slow
def test_every_module_of_the_wheel_is_imported(wheel: Path, tmp_path: Path) -> None:
    place = tmp_path / "environment"
    venv.create(place, with_pip=True, symlinks=True)
    (site,) = place.glob("lib/python*/site-packages")
    # The libraries that fastdata needs, but no .pth file of theirs, so no editable fastdata.
    libraries = {
        sysconfig.get_path("purelib"),
        sysconfig.get_path("platlib"),
        *(path for path in sys.path if path.endswith("site-packages")),
    }
    (site / "libraries.pth").write_text("\n".join(sorted(libraries)))
    install = [place / "bin" / "python", "-m", "pip", "install", "-q", "--no-index", wheel]
    subprocess.run(install, check=True, capture_output=True)
    (tmp_path / "fastdata" / "converters").mkdir(parents=True)  # like a checkout
    done = subprocess.run(
        [place / "bin" / "python", "-W", "ignore", "-c", _IMPORT_ALL],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    imported = set(done.stdout.split())
    assert {
        "fastdata.loading.loader",
        "fastdata.converters.packing",
        "fastdata._native",
    } <= imported
