"""MosaicML Streaming: MDS shards by MDSWriter, StreamingDataset in torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from _serve import ContenderRequest, serve
from _stack import loader_options
from _torchvision import import_torchvision
from _transforms import ToArray, image_folder


def prepare(tree: str, out: str, variant: str) -> None:
    """Write MDS shards; the `jpeg` encoding keeps a JPEG file's bytes."""
    from PIL import Image

    import_torchvision()  # streaming imports it
    from streaming import MDSWriter

    with MDSWriter(out=out, columns={"image": "jpeg", "label": "int"}) as writer:
        for path, label in image_folder(tree):
            with Image.open(path) as image:
                writer.write({"image": image, "label": label})


def open_loader(request: ContenderRequest) -> Iterable[Any]:
    """Open PyTorch's DataLoader over a StreamingDataset of a local folder."""
    import torch

    import_torchvision()  # streaming imports it
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    transform = ToArray(request.crop, request.size, request.dtype)

    class StreamingImages(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, at: Any) -> Any:
            sample = super().__getitem__(at)
            return transform(sample["image"]), sample["label"]

    clean_stale_shared_memory()  # of a run that was stopped
    torch.set_num_threads(1)
    dataset = StreamingImages(
        local=request.data,
        shuffle=request.order == "random",
        shuffle_seed=request.seed,
        batch_size=request.batch_size,
    )
    options = loader_options(request)
    return torch.utils.data.DataLoader(dataset, drop_last=not request.check, **options)


if __name__ == "__main__":
    serve(open_loader, prepare, packages=["mosaicml-streaming"])
