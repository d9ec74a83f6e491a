"""petastorm's metadata for a Parquet dataset, made by petastorm in an environment of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from fastdata.errors import DataError, UsageError

#: The Python that has petastorm, where this one has not.
PYTHON_VARIABLE = "FASTDATA_PETASTORM_PYTHON"


def petastorm_python() -> str:
    """The Python that petastorm is installed for: ``FASTDATA_PETASTORM_PYTHON``, else this one.

    Raises:
        UsageError: It has no petastorm.
    """
    python = os.environ.get(PYTHON_VARIABLE) or sys.executable
    try:
        found = _run(python, "-W", "ignore", "-c", "import petastorm, cv2, pyspark")
    except OSError as error:
        raise UsageError(
            f"--petastorm-metadata: {PYTHON_VARIABLE}={python} cannot be run: {error.strerror}",
            "Set it to the Python of an environment that has petastorm.",
        ) from None
    if found.returncode:
        raise UsageError(
            f"--petastorm-metadata: no petastorm for {python}: {_last_line(found)}",
            "petastorm works only beside libraries too old for fastdata: make an environment "
            "for it (pip install petastorm opencv-python-headless pyspark), and set "
            f"{PYTHON_VARIABLE} to its python.",
        )
    return python


def add_petastorm_metadata(dataset: str | os.PathLike[str], python: str | None = None) -> Path:
    """Writes ``_common_metadata`` into a Parquet dataset, so that ``make_reader`` opens it.

    Its Unischema has the columns ``key``, ``label``, ``width``, ``height`` and ``image``.

    Args:
        dataset: The dataset's folder, complete.
        python: petastorm's Python; None to find it.

    Returns:
        The file.

    Raises:
        UsageError: There is no petastorm.
        DataError: petastorm failed.
    """
    folder = Path(dataset).absolute()
    script = Path(__file__).with_name("petastorm_metadata.py")
    done = _run(python or petastorm_python(), str(script), str(folder), "jpeg")
    if done.returncode:
        raise DataError(
            f"{folder}: petastorm could not add its metadata: {_last_line(done)}",
            "The dataset itself is whole. Check petastorm's environment "
            f"({PYTHON_VARIABLE}), and run the same command again.",
        )
    return folder / "_common_metadata"


def _run(python: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    # Isolated: the script's folder, and this process's environment, have other modules.
    command = [python, "-I", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
