"""The main job, start to end: pack ImageNet to LMDB, verify it, iterate it through torch.

    python examples/convert_and_load.py                        on a made sample
    python examples/convert_and_load.py --root /data/imagenet  on your ImageNet

What it makes goes to ./run; running it again reuses what is there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.utils.data import DataLoader

from fastdata import ImageDataset


def to_tensor(image: Image.Image) -> torch.Tensor:
    """Resizes an image to 224 x 224: uint8, 3 x 224 x 224."""
    pixels = np.asarray(image.resize((224, 224), Image.Resampling.BILINEAR))
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)


def fastdata(*arguments: str) -> None:
    """Runs a fastdata command, showing it."""
    print(f"$ fastdata {' '.join(arguments)}", flush=True)
    subprocess.run([sys.executable, "-m", "fastdata", *arguments], check=True)


def main() -> None:
    """Runs the example."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, help="ImageNet, in any layout; made if not given")
    parser.add_argument("--out", type=Path, default=Path("run"), help="where to write")
    parser.add_argument("--workers", type=int, default=2, help="of torch's DataLoader")
    arguments = parser.parse_args()

    root = arguments.root
    if root is None:
        root = arguments.out / "imagenet"
        if not root.exists():
            fastdata("sample", "--out", str(root))
    dataset_path = arguments.out / "imagenet-train-lmdb"
    fastdata(
        "convert", "imagenet", "--root", str(root), "--split", "train", "--to", "lmdb",
        "--out", str(dataset_path),
    )  # fmt: skip
    fastdata("verify", str(dataset_path))

    dataset = ImageDataset(dataset_path, transform=to_tensor)
    loader = DataLoader(dataset, batch_size=64, shuffle=True, num_workers=arguments.workers)
    print(f"iterating {dataset!r} through torch.utils.data.DataLoader")
    begun = time.perf_counter()
    images = 0
    shape: tuple[int, ...] = ()
    for batch, _labels in loader:
        shape = shape or tuple(batch.shape)
        images += len(batch)
    seconds = time.perf_counter() - begun
    print(
        f"{images:,} images in {seconds:.1f} s: {images / seconds:,.0f} images/s "
        f"with {arguments.workers} workers, batches of uint8 {shape}"
    )


if __name__ == "__main__":
    main()
