"""Tars of others where they are, beside the webdataset package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from _workload import Workload, contenders, crops, fastdata_loader, options, write_tars
from fastdata.benchmarks.adapters._serve import ContenderRequest, serve

WORKLOAD = Workload(
    "Tars in place",
    contenders(
        __file__,
        {
            "webdataset": "the tars, in order",
            "packed": "fastdata convert webdataset",
            "in place": "fastdata index",
        },
        needs="webdataset",
    ),
    against="webdataset",
    options={"batch_size": 50, "rounds": 7},
)


def prepare(tree: str, out: str, variant: str) -> None:
    """Write tars, index them, and pack them."""
    from fastdata.converters import PackOptions, WebDataset, index, pack

    tars = Path(out) / "tars"
    write_tars(tree, tars)
    index(tars, Path(out) / "index", workers=1)
    pack(
        WebDataset(tars),
        Path(out) / "packed",
        container="shards",
        options=PackOptions(shuffle=False),
    )


def open_loader(request: ContenderRequest) -> Any:
    """Open webdataset's loader of the tars, or fastdata's."""
    folder, transform = Path(request.data), crops(request)
    if request.variant != "webdataset":
        from fastdata import ImageDataset

        name = "index" if request.variant == "in place" else "packed"
        dataset = ImageDataset(folder / name, transform, fields=("image", "label"))
        return fastdata_loader(dataset, request)
    import webdataset

    tars, training = sorted(map(str, (folder / "tars").glob("*.tar"))), not request.check
    dataset = webdataset.WebDataset(tars, shardshuffle=len(tars) if training else False, seed=0)
    dataset = dataset.shuffle(1000) if training else dataset
    dataset = dataset.decode("pil").map(
        lambda one: (transform(one["jpg"].convert("RGB")), int(one["cls"]))
    )
    dataset = dataset.batched(request.batch_size, partial=not training)
    workers = options(request, num_workers=request.threads if training else 0)["num_workers"]
    return webdataset.WebLoader(
        dataset, batch_size=None, num_workers=workers, persistent_workers=workers > 0
    )


if __name__ == "__main__":
    serve(open_loader, prepare, packages=["fastdata", "webdataset"])
