"""torchdata.nodes: sampler, batches of indices, ParallelMapper with processes, Prefetcher.

A worker makes a whole batch, which saves its passing images one by one.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from _serve import Request, serve
from _stack import stack
from _transforms import ToArray, image_folder
from PIL import Image


class _Batches:
    """Indices -> a batch; pickles into workers."""

    def __init__(self, request: Request) -> None:
        self._samples = image_folder(request.data)
        self._transform = ToArray(request.crop, request.size, request.dtype)

    def __len__(self) -> int:
        return len(self._samples)

    def __call__(self, indices: Sequence[int]) -> tuple[Any, Any]:
        chosen = [self._samples[index] for index in indices]
        return stack([(self._transform(Image.open(path)), label) for path, label in chosen])


def open_loader(request: Request) -> Iterable[Any]:
    """Open a torchdata.nodes.Loader over the tree itself."""
    # Workers are forked each epoch, when a pool of OpenMP's threads would be lost to them: a worker
    # that waits for it hangs.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch
    from torch.utils.data import RandomSampler, SequentialSampler
    from torchdata import nodes

    torch.manual_seed(request.seed)
    torch.set_num_threads(1)
    batches = _Batches(request)
    indices = range(len(batches))
    sampler = RandomSampler(indices) if request.order == "random" else SequentialSampler(indices)
    node: Any = nodes.SamplerWrapper(sampler)
    node = nodes.Batcher(node, request.batch_size, drop_last=not request.check)
    node = nodes.ParallelMapper(
        node,
        batches,
        num_workers=request.threads,
        method="process",
        in_order=request.order == "sequential",
    )
    return nodes.Loader(nodes.Prefetcher(node, prefetch_factor=2))


if __name__ == "__main__":
    serve(open_loader, packages=["torchdata"])
