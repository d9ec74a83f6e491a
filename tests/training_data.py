"""A small dataset that can be learnt: four classes, told apart by colour."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from containers import pack_tree
from PIL import Image

CLASSES = 4
#: Images of a class for training and validating: together 160, and 53 that nothing divides.
TRAIN, VALIDATION = 40, (14, 13, 13, 13)


def tree(root: Path) -> Path:
    random = np.random.default_rng(0)
    for split, counts in (("train", (TRAIN,) * CLASSES), ("val", VALIDATION)):
        for label, count in enumerate(counts):
            folder = root / split / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = np.full((40 + number % 7, 48, 3), random.integers(40, 100))
                if label < 3:
                    pixels[..., label] += 120
                noisy = pixels + random.integers(-30, 30, pixels.shape)
                image = Image.fromarray(noisy.clip(0, 255).astype(np.uint8))
                image.save(folder / f"{number}.jpg")
    return root


def packed(root: Path) -> dict[str, Path]:
    images = tree(root / "tree")
    out = {"train": root / "train-lmdb", "val": root / "val-shards"}
    pack_tree(images / "train", out["train"], "lmdb")
    pack_tree(images / "val", out["val"], "shards")
    return out
