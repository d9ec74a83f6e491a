"""fastdata's own loader, over each container, raw pixels, and a tree; or with DALI."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

from _serve import ContenderRequest, serve
from _torchvision import import_torchvision

_CONVERT: dict[str, list[str]] = {
    **{name: ["--to", name] for name in ("lmdb", "parquet", "shards", "folder")},
    "raw": ["--to", "lmdb", "--encoding", "raw", "--max-side", "256"],
}


def prepare(tree: str, out: str, variant: str) -> None:
    """Pack with ``fastdata convert``, in the tree's order: the check compares image by image."""
    command = [sys.executable, "-m", "fastdata", "convert", "imagefolder", "--root", tree]
    command += ["--no-shuffle", "--out", out, *_CONVERT[variant]]
    subprocess.run(command, check=True)


def open_loader(request: ContenderRequest) -> Iterable[tuple[Any, Any]]:
    """Open the README's loader; variant "staged" reads the copy of ``fastdata stage``."""
    from fastdata import DataLoader, ImageDataset
    from fastdata import transforms as t

    size = request.size
    if request.crop == "train":
        steps: list[Any] = [t.RandomResizedCrop(size), t.RandomHorizontalFlip()]
    else:
        steps = [t.Resize(round(size * 256 / 224)), t.CenterCrop(size)]
    if request.dtype == "float32":
        steps.append(t.Normalize((0, 0, 0), (1, 1, 1)))
    transform = t.Compose(steps)
    if request.variant == "imagefolder":
        folder = import_torchvision().datasets.ImageFolder
        dataset: Any = folder(request.data, transform, allow_empty=True)
    else:
        if request.variant != "staged":  # other contenders may have staged the same data
            os.environ["FASTDATA_STAGE_ROOT"] = "/nonexistent"
        dataset = ImageDataset(request.data, transform)
    options: dict[str, Any] = {} if request.device == "cpu" else {"device": request.device}
    if "label" not in getattr(dataset, "fields", ("label",)):
        dataset.fields = ("image", "index")
        options["batch_transform"] = lambda batch: list(batch.values())
    loader: Any = DataLoader
    if request.variant == "dali":
        from fastdata.dali import DALILoader

        loader = DALILoader
    return loader(
        dataset,
        batch_size=request.batch_size,
        num_workers=request.threads,
        order=request.order,
        seed=request.seed,
        persistent_workers=True,
        **options,
    )


if __name__ == "__main__":
    serve(open_loader, prepare, packages=["fastdata"])
