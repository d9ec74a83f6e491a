"""PyTorch's own DataLoader with Pillow: over a tree, over Hugging Face datasets.

float32 batches are collated by torch, as its ImageNet example does; uint8 ones by
`fastdata.fast_collate` where fastdata is installed, else as stacked arrays.
"""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from _serve import ContenderRequest, serve
from _stack import loader_options, stack
from _transforms import ToArray, image_folder, shorter_side, train_crop, val_crop
from PIL import Image


class _DaliCrop:
    """DALI's transforms of torchvision's names; each worker has a pipeline of its own."""

    def __init__(self, crop: str) -> None:
        self._crop, self._made = crop, None

    def __call__(self, image: Image.Image, size: int) -> Image.Image:
        from nvidia.dali.experimental import torchvision as tv

        if self._made is None:
            steps = [tv.RandomResizedCrop(size), tv.RandomHorizontalFlip()]
            steps = (
                [tv.Resize(shorter_side(size)), tv.CenterCrop(size)]
                if self._crop == "val"
                else steps
            )
            self._made = tv.Compose(steps, batch_size=1, num_threads=1)
        return self._made(image)


class _Transform:
    """float32 as ToTensor makes it; uint8 stays a PIL image, which fast_collate takes."""

    def __init__(self, request: ContenderRequest, *, collated: bool) -> None:
        self._crop: Any = train_crop if request.crop == "train" else val_crop
        if request.variant == "dali":
            self._crop = _DaliCrop(request.crop)
        self._size = request.size
        self._array = None if collated else ToArray(request.crop, request.size, request.dtype)
        self._float = request.dtype == "float32"

    def __call__(self, image: Image.Image) -> Any:
        if self._array is None:
            return self._crop(image.convert("RGB"), self._size)
        pixels = self._array(image)
        return torch.from_numpy(pixels) if self._float else pixels


class _Tree(torch.utils.data.Dataset[tuple[Any, int]]):
    """Dataset like torchvision's ImageFolder."""

    def __init__(self, root: str, transform: Callable[[Image.Image], Any]) -> None:
        self._samples = image_folder(root)
        self._transform = transform

    def __len__(self) -> int:
        return len(self._samples)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, label = self._samples[index]
        with open(path, "rb") as file:
            return self._transform(self._open(file)), label

    def _open(self, file: Any) -> Image.Image:
        return Image.open(file)


class _Torchcodec(_Tree):
    """The same, decoded by torchcodec."""

    def _open(self, file: Any) -> Image.Image:
        from torchcodec.decoders import decode_image

        return Image.fromarray(decode_image(file.read(), mode="RGB").permute(1, 2, 0).numpy())


class _HuggingFace(torch.utils.data.Dataset[tuple[Any, int]]):
    """`datasets.Dataset` with an Image column, transformed on access."""

    def __init__(self, path: str, transform: Callable[[Image.Image], Any]) -> None:
        import datasets

        # Decoded here: its own decoding turns images by their EXIF tag, which no other does.
        encoded = datasets.Image(decode=False)
        self._rows = datasets.load_from_disk(path).cast_column("image", encoded)
        self._transform = transform

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        row = self._rows[index]
        return self._transform(Image.open(io.BytesIO(row["image"]["bytes"]))), row["label"]


class _Dataset(torch.utils.data.Dataset[tuple[Any, int]]):
    """A dataset of fastdata's, whose images Pillow decodes; without labels, numbers."""

    def __init__(self, path: str, transform: Callable[[Image.Image], Any]) -> None:
        from fastdata import ImageDataset

        self._rows = ImageDataset(path)
        self._transform = transform

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image, *label = self._rows[index]
        return self._transform(image), label[0] if label else index


_DATASETS = {
    "dataset": _Dataset,
    "tree": _Tree,
    "dali": _Tree,
    "torchcodec": _Torchcodec,
    "hf": _HuggingFace,
}


def prepare(tree: str, out: str, variant: str) -> None:
    """Write a dataset by Hugging Face's ``save_to_disk``."""
    import datasets

    def rows() -> Iterable[dict[str, Any]]:
        for path, label in image_folder(tree):
            yield {"image": {"path": None, "bytes": Path(path).read_bytes()}, "label": label}

    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    cache = out + ".cache"
    made = datasets.Dataset.from_generator(rows, features=features, cache_dir=cache)
    made.save_to_disk(out)
    shutil.rmtree(cache)


def open_loader(request: ContenderRequest) -> Iterable[tuple[Any, Any]]:
    """Open the loader of PyTorch's ImageNet example: shuffled, persistent workers."""
    collate: Any = None
    if request.dtype == "uint8":
        try:
            from fastdata import fast_collate as collate
        except ImportError:
            collate = stack
    transform = _Transform(request, collated=collate not in (None, stack))
    torch.manual_seed(request.seed)
    torch.set_num_threads(1)  # its workers are processes; the parent has no arithmetic to do
    dataset = _DATASETS[request.variant](request.data, transform)
    shuffled = request.order == "random"
    about = {**loader_options(request), "collate_fn": collate, "shuffle": shuffled}
    return torch.utils.data.DataLoader(dataset, **about)


if __name__ == "__main__":
    serve(open_loader, prepare, packages=["fastdata", "datasets"])
