"""Checkpoints that are whole or not there, whenever the machine stops."""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import torch

from fastdata.errors import DataError, UsageError
from fastdata.storage.files import whole_file

NAME = "checkpoint.pt"
BEST_NAME = "best.pt"

_KEYS = {"version", "model", "optimiser", "scaler", "loaders", "step", "best", "about"}
_VERSION = 2


def save(state: dict[str, Any], path: Path) -> None:
    """Writes a checkpoint. Whoever opens ``path`` finds the one before or this one, never a part.

    Args:
        state: Has the keys of `load`'s result, but for "version".
        path: In a folder that exists.
    """
    with whole_file(path) as partial:
        torch.save({"version": _VERSION, **state}, partial)


def load(path: Path) -> dict[str, Any]:
    """Reads a checkpoint, to the CPU.

    Returns:
        "model", "optimiser", "scaler": what their ``state_dict()`` gave; "loaders": the loader's
        state of each rank; "step": optimiser steps done; "best": the highest top-1 so far, or
        None; "about": the options that a resumed run must share.

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


def find(resume: str, out: Path, about: dict[str, Any]) -> dict[str, Any] | None:
    """The checkpoint to go on from, as `load` returns it; None to start anew.

    Args:
        resume: A file; "auto" for the folder's own, if there is one; "" for none.
        out: The folder.
        about: The options that the checkpoint's run must have shared.

    Raises:
        UsageError: It was another run; names the option.
    """
    path = out / NAME if resume == "auto" else Path(resume)
    if not resume or (resume == "auto" and not path.exists()):
        return None
    state = load(path)
    for name, value in about.items():
        if state["about"].get(name) != value:
            raise UsageError(
                f"{path}: was saved with {name}={state['about'].get(name)!r}, this run has "
                f"{value!r}",
                f"Give {name} as then, or another --out.",
            )
    return state
