"""Checkpoints that are whole or not there, whenever the machine stops."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from fastdata.errors import DataError, UsageError

NAME = "checkpoint.pt"
BEST_NAME = "best.pt"

_KEYS = {"version", "model", "optimiser", "scaler", "schedule", "loaders", "step", "best", "about"}
_VERSION = 1


def save(state: dict[str, Any], path: Path) -> None:
    """Writes a checkpoint: to a temporary file, to the disk, then under its name.

    Whoever opens ``path`` finds the checkpoint before or this one, never a part.

    Args:
        state: Has the keys of `load`'s result, but for "version".
        path: In a folder that exists.
    """
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        torch.save({"version": _VERSION, **state}, file)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name itself
    finally:
        os.close(folder)


def load(path: Path) -> dict[str, Any]:
    """Reads a checkpoint, to the CPU.

    Returns:
        "model", "optimiser", "scaler", "schedule": what their ``state_dict()`` gave;
        "loaders": the loader's state of each rank; "step": optimiser steps done; "best": the
        highest top-1 so far, or None; "about": the options that a resumed run must share, and
        "epoch_steps", the steps of one of its epochs.

    Raises:
        UsageError: There is no such file.
        DataError: It is no checkpoint of this program.
    """
    if not path.exists():
        raise UsageError(f"{path}: no such checkpoint", "Name one, or give --resume auto.")
    hint = "Name another checkpoint, or start anew without --resume."
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, zipfile.BadZipFile, RuntimeError, EOFError) as error:
        raise DataError(f"{path}: cannot be read as a checkpoint: {error}", hint) from error
    if not isinstance(state, dict) or state.get("version") != _VERSION or set(state) != _KEYS:
        raise DataError(f"{path}: not a checkpoint of this program", hint)
    return state


def find(resume: str, out: Path) -> Path | None:
    """The checkpoint to go on from: "" for none, "auto" for the folder's own if there is one."""
    if not resume:
        return None
    if resume == "auto":
        return out / NAME if (out / NAME).exists() else None
    return Path(resume)


def check_about(path: Path, about: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Whether a checkpoint is of a run with these options.

    Raises:
        UsageError: Of another one; names the option.
    """
    for name, value in wanted.items():
        if about.get(name) != value:
            raise UsageError(
                f"{path}: was saved with {name}={about.get(name)!r}, this run has {value!r}",
                f"Give {name} as then, or another --out.",
            )
