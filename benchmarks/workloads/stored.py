"""A dataset in every encoding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from _workload import Workload, contenders, crops, fastdata_loader
from fastdata.benchmarks.adapters._serve import ContenderRequest, serve

#: Encoding and longest side of each.
ENCODINGS: dict[str, tuple[str, int | None]] = {
    "JPEGs as they are": ("original", None),
    "JPEGs of quality 90": ("jpeg", None),
    "JPEGs ≤ 500": ("jpeg", 500),
    "JPEGs ≤ 256": ("jpeg", 256),
    "pixels ≤ 500": ("raw", 500),
    "pixels ≤ 256": ("raw", 256),
}

WORKLOAD = Workload(
    "What encodings cost",
    [
        one
        for name in ENCODINGS
        for one in contenders(__file__, {name: ""}, folder=f"encoding-{name}", prepared_as=name)
    ],
    columns=("images/s", "CPU ms an image", "by CPU time", "stored, kB an image"),
    against="JPEGs as they are",
    check="",
    options={"rounds": 5, "threads": (1,)},
)


def prepare(tree: str, out: str, variant: str) -> None:
    """Pack a tree in one encoding."""
    from fastdata.converters import Encoding, ImageFolder, PackOptions, pack

    kind, side = ENCODINGS[variant]
    pack(ImageFolder(tree), Path(out), options=PackOptions(encoding=Encoding(kind, max_side=side)))


def open_loader(request: ContenderRequest) -> Any:
    """Open fastdata's loader."""
    from fastdata import ImageDataset

    return fastdata_loader(ImageDataset(request.data, crops(request, "PILToTensor")), request)


if __name__ == "__main__":
    serve(open_loader, prepare, packages=["fastdata"])
