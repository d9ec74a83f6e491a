"""An ImageFolder tree as a list, in torchvision's order, for adapters without torchvision."""

from __future__ import annotations

import os

_EXTENSIONS = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")


def image_files(tree: str) -> list[tuple[str, int]]:
    """Paths and labels: classes sorted, then each class's paths, links followed."""
    classes = sorted(entry.name for entry in os.scandir(tree) if entry.is_dir())
    found = []
    for label, name in enumerate(classes):
        for folder, _, files in sorted(os.walk(os.path.join(tree, name), followlinks=True)):
            found += [
                (os.path.join(folder, file), label)
                for file in sorted(files)
                if file.lower().endswith(_EXTENSIONS)
            ]
    return found
