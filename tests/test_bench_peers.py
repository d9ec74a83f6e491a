"""Every peer of the loader benchmark that has an environment: right pixels and labels."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastdata.benchmarks import pixels
from fastdata.benchmarks.contenders import PEERS, Contender
from fastdata.benchmarks.processes import environment
from hangs import HANG
from PIL import Image

_PEERS = [peer for peer in PEERS if peer.device == "cpu" and peer.name != "torch-float32"]


def _val_crops(files: list[Path], peer: Contender) -> np.ndarray:
    images = [pixels.reduced(Image.open(path), peer.max_side, area=peer.area) for path in files]
    crops = pixels.reference([(image, 0) for image in images], 224, area=peer.area)
    return crops.images.astype(np.float32)


def _serve(python: Path, adapter: Path, **request: Any) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [python, adapter],
        input=json.dumps({"batch_size": 8, "threads": 2, "warmup": 0, **request}) + "\n",
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
        env=environment(),
    )
    assert done.returncode == 0, done.stderr
    return {event["event"]: event for event in map(json.loads, done.stdout.splitlines())}


@pytest.mark.slow
@pytest.mark.parametrize("peer", _PEERS, ids=[peer.name for peer in _PEERS])
def test_peer(peer: Contender, made_tree: Path, tmp_path: Path) -> None:
    python, script, variant = peer.interpreter, peer.path, peer.variant
    if why := peer.missing:
        pytest.skip(f"{why}: make bench-peers PEERS={peer.environment}")
    tree = made_tree / "train"
    data = tree
    if peer.folder != "tree":
        data = tmp_path / "data"
        subprocess.run(
            [python, script, "prepare", tree, data, peer.prepared_as or variant],
            check=True,
            capture_output=True,
            env=environment(),
        )
    options = {"data": str(data), "variant": variant}

    files = sorted(tree.glob("*/*"))[:20]
    classes = sorted(folder.name for folder in tree.iterdir())
    expected = _val_crops(files, peer)
    out = tmp_path / "check.npz"
    for dtype, scale in (("uint8", 1), ("float32", 255)):
        if peer.dtype not in (None, dtype):
            continue
        _serve(
            python,
            script,
            crop="val",
            order="sequential",
            check=20,
            out=str(out),
            dtype=dtype,
            **options,
        )
        with np.load(out) as file:
            arrays = [file[name] for name in file]
        given, labels = (np.concatenate(arrays[part::2])[:20] for part in (0, 1))
        assert given.dtype == dtype
        assert list(labels) == [classes.index(path.parent.name) for path in files]
        images = given.astype(np.float32) * scale
        if dtype == "float32" or images.shape[1] == 3:
            images = images.transpose(0, 2, 3, 1)
        assert images.shape == expected.shape
        differences = np.abs(images - expected).mean((1, 2, 3))
        assert differences.max() <= peer.tolerance
        assert differences.mean() <= (peer.mean_tolerance or peer.tolerance)

    timed = _serve(python, script, seconds=0.5, **options)["round"]
    assert timed["images"] > 0
    assert timed["seconds"] > 0
