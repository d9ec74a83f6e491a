"""The main job from start to end: pack ImageNet to LMDB, verify it, load random crops.

    python examples/convert_and_load.py                        on a made sample
    python examples/convert_and_load.py --root /data/imagenet  on your ImageNet

Writes to ./run; a second run reuses its files.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fastdata import DataLoader, ImageDataset
from fastdata.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop


def fastdata(*arguments: str) -> None:
    """Print and run a fastdata command."""
    print(f"$ fastdata {' '.join(arguments)}", flush=True)
    # Python's -m would look into this folder first, which may be a checkout.
    command = Path(sys.executable).with_name("fastdata")
    subprocess.run([str(command), *arguments], check=True)


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, help="ImageNet, in any layout; made if not given")
    parser.add_argument("--out", type=Path, default=Path("run"), help="where to write")
    parser.add_argument("--workers", type=int, help="decode threads; one a CPU if not given")
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

    transform = Compose((RandomResizedCrop(224), RandomHorizontalFlip()))
    dataset = ImageDataset(dataset_path, transform=transform)
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_size=64, shuffle=True, num_workers=arguments.workers or "auto"
    )
    print(f"loading {dataset_path}: {loader.explain().splitlines()[0]}")
    begun = time.perf_counter()
    images = 0
    shape: tuple[int, ...] = ()
    for batch, _labels in loader:
        shape = shape or tuple(batch.shape)
        images += len(batch)
    seconds = time.perf_counter() - begun
    print(
        f"{images:,} images in {seconds:.1f} s: {images / seconds:,.0f} images/s "
        f"with {loader.num_workers} threads, batches of uint8 {shape}"
    )


if __name__ == "__main__":
    main()
