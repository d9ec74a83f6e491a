"""WebDataset, by its ImageNet example: shards, `pilrgb`, batches made in WebLoader's workers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from _serve import ContenderRequest, serve
from _stack import loader_options, stack
from _transforms import ToArray, image_folder


def prepare(tree: str, out: str, variant: str) -> None:
    """Write out/NNNNNN.tar, the files' bytes unchanged.

    Workers read whole shards, so there are 64, that some workers' epoch is not much longer.
    """
    import webdataset

    Path(out).mkdir(parents=True, exist_ok=True)
    samples = image_folder(tree)
    pattern = f"{out}/%06d.tar"
    count = max(1, -(-len(samples) // 64))
    with webdataset.ShardWriter(pattern, maxcount=count, verbose=0) as sink:
        for index, (path, label) in enumerate(samples):
            sink.write(
                {"__key__": f"{index:09d}", "jpg": Path(path).read_bytes(), "cls": str(label)}
            )


def open_loader(request: ContenderRequest) -> Iterable[Any]:
    """Open a WebLoader; samples are shuffled by shard, then in a buffer of 1000."""
    import torch
    import webdataset

    torch.manual_seed(request.seed)
    shards = sorted(str(path) for path in Path(request.data).glob("*.tar"))
    shuffled = request.order == "random"
    dataset = webdataset.WebDataset(
        shards,
        shardshuffle=len(shards) if shuffled else False,
        seed=request.seed if shuffled else None,
        nodesplitter=webdataset.split_by_node,
        workersplitter=webdataset.split_by_worker,
        empty_check=False,
    )
    if shuffled:
        dataset = dataset.shuffle(1000)
    dataset = (
        dataset.decode("pilrgb")
        .to_tuple("jpg", "cls")
        .map_tuple(ToArray(request.crop, request.size, request.dtype))
        .batched(request.batch_size, collation_fn=stack, partial=bool(request.check))
    )
    options = loader_options(request) | {"batch_size": None, "collate_fn": None}
    return webdataset.WebLoader(dataset, **options)


if __name__ == "__main__":
    serve(open_loader, prepare, packages=["webdataset"])
