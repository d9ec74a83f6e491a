"""Every peer of the loader benchmark for which there is an environment: it prepares, hands over
the right pixels and labels, and loads."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

_REPOSITORY = Path(__file__).resolve().parent.parent

#: Environment, adapter, variant, and how far the pixels of an image may be from Pillow's in the
#: mean. FFCV and others differ by design: FFCV averages areas, re-encodes and rounds its window
#: otherwise; DALI and FFmpeg have filters of their own.
_PEERS = [
    ("ffcv", "ffcv_loader", "q90", 30.0),
    ("ffcv", "ffcv_loader", "500", 30.0),
    ("ffcv", "ffcv_loader", "half", 30.0),
    ("ffcv", "ffcv_loader", "raw", 30.0),
    ("ffcv", "ffcv_loader", "raw256", 30.0),
    ("dali", "dali_pipeline", "cpu", 2.0),
    ("webdataset", "webdataset_loader", "", 1.0),
    ("spdl", "spdl_pipeline", "", 4.0),
    ("pillow_simd", "torch_loader", "tree", 1.0),
    ("streaming", "streaming_loader", "", 1.0),
    ("litdata", "litdata_loader", "", 1.0),
    ("torchdata", "torchdata_nodes", "", 1.0),
    ("petastorm", "petastorm_reader", "", 1.0),
]
_READ_TREE = {"dali_pipeline", "spdl_pipeline", "torch_loader", "torchdata_nodes"}


def _val_crop(path: Path) -> np.ndarray:
    """Resize(256) and CenterCrop(224)."""
    image = Image.open(path).convert("RGB")
    width, height = image.size
    if width <= height:
        width, height = 256, int(256 * height / width)
    else:
        width, height = int(256 * width / height), 256
    image = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = round((width - 224) / 2), round((height - 224) / 2)
    return np.asarray(image.crop((left, top, left + 224, top + 224)), np.float32)


def _serve(python: Path, adapter: Path, **request: Any) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [python, adapter],
        input=json.dumps({"batch_size": 8, "threads": 2, "warmup": 0, **request}) + "\n",
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {event["event"]: event for event in map(json.loads, done.stdout.splitlines())}


@pytest.mark.parametrize(
    ("peer", "adapter", "variant", "tolerance"),
    _PEERS,
    ids=["-".join(filter(None, [peer, variant])) for peer, _, variant, _ in _PEERS],
)
def test_peer(
    peer: str, adapter: str, variant: str, tolerance: float, made_tree: Path, tmp_path: Path
) -> None:
    python = _REPOSITORY / ".venvs" / "peers" / peer / "bin" / "python"
    if not (python.parent.parent / ".done").exists():
        pytest.skip(f'no environment for {peer}: make bench-peers PEERS="{peer}"')
    script = _REPOSITORY / "benchmarks" / "adapters" / f"{adapter}.py"
    tree = made_tree / "train"
    data = tree
    if adapter not in _READ_TREE:
        data = tmp_path / "data"
        subprocess.run(
            [python, script, "prepare", tree, data, variant], check=True, capture_output=True
        )
    options = {"data": str(data), "variant": variant}

    files = sorted(tree.glob("*/*"))[:20]
    classes = sorted(folder.name for folder in tree.iterdir())
    expected = np.stack([_val_crop(path) for path in files])
    out = tmp_path / "check.npz"
    for dtype, scale in (("uint8", 1), ("float32", 255)):
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
        handed = np.load(out)
        assert handed["images"].dtype == dtype
        assert list(handed["labels"]) == [classes.index(path.parent.name) for path in files]
        images = handed["images"].astype(np.float32) * scale
        if dtype == "float32" or images.shape[1] == 3:
            images = images.transpose(0, 2, 3, 1)
        assert images.shape == expected.shape
        assert np.abs(images - expected).mean((1, 2, 3)).max() <= tolerance

    timed = _serve(python, script, seconds=0.5, **options)["round"]
    assert timed["images"] > 0
    assert timed["seconds"] > 0
