"""LitData: chunks by `optimize`, StreamingDataset in its StreamingDataLoader."""

from __future__ import annotations

import io
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from _serve import ContenderRequest, serve
from _stack import loader_options
from _transforms import ToArray, image_folder


def _sample(item: tuple[str, int]) -> dict[str, Any]:
    path, label = item
    return {"image": Path(path).read_bytes(), "label": label}


def prepare(tree: str, out: str, variant: str) -> None:
    """Write chunks of 64 MB; files are kept as bytes, because its image types need torchvision."""
    import litdata

    litdata.optimize(
        fn=_sample, inputs=image_folder(tree), output_dir=out, num_workers=1, chunk_bytes="64MB"
    )


def open_loader(request: ContenderRequest) -> Iterable[Any]:
    """Open a StreamingDataLoader over a local folder."""
    import torch
    from litdata import StreamingDataLoader, StreamingDataset
    from PIL import Image

    torch.set_num_threads(1)
    transform = ToArray(request.crop, request.size, request.dtype)

    class LitDataImages(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, index: Any) -> Any:
            sample = super().__getitem__(index)
            return transform(Image.open(io.BytesIO(sample["image"]))), sample["label"]

    dataset = LitDataImages(
        request.data,
        shuffle=request.order == "random",
        seed=request.seed,
        drop_last=not request.check,
    )
    return StreamingDataLoader(dataset, **loader_options(request))


if __name__ == "__main__":
    serve(open_loader, prepare, packages=["litdata"])
