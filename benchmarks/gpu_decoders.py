"""Loaders that decode on the GPU by other libraries, for `fastdata.benchmarks.training`.

Each is the loop that a user of the library writes: threads read the files of a batch, the library
decodes them together, and torchvision's transforms crop and flip image by image on the GPU. DALI is
fed by `fastdata.dali.DALILoader`.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from fastdata.benchmarks.adapters._torchvision import import_torchvision

Decode = Callable[[Sequence[bytes]], list[torch.Tensor]]


class Decoder(NamedTuple):
    """A library that decodes JPEGs.

    Attributes:
        lacks: Returns why it cannot be used on a device; "" if it can.
        make: Returns its decoder, with so many threads: from the bytes of files to uint8 tensors,
            3 x H x W, on the device.
    """

    lacks: Callable[[torch.device], str]
    make: Callable[[torch.device, int], Decode]


def _lacks_nvimagecodec(device: torch.device) -> str:
    return "" if installed("nvidia.nvimgcodec") else "not installed"


def _nvimagecodec(device: torch.device, threads: int) -> Decode:
    from nvidia import nvimgcodec

    where: dict[str, Any] = {"device_id": device.index or 0}
    if device.type == "cpu":
        where["device_id"] = nvimgcodec.NVIMGCODEC_DEVICE_CPU_ONLY
        where["backends"] = [nvimgcodec.Backend(nvimgcodec.CPU_ONLY)]
    decoder = nvimgcodec.Decoder(max_num_cpu_threads=threads, **where)

    def decode(files: Sequence[bytes]) -> list[torch.Tensor]:
        images = decoder.decode(list(files))
        if device.type == "cpu":
            return [torch.from_numpy(np.array(one)).permute(2, 0, 1) for one in images]
        return [torch.as_tensor(one, device=device).permute(2, 0, 1) for one in images]

    return decode


def _lacks_torchvision(device: torch.device) -> str:
    if device.type != "cuda":
        return "needs an NVIDIA GPU"
    try:
        _torchvision(device, 1)([_SMALL])
    except (RuntimeError, AttributeError) as error:  # built without nvJPEG
        return str(error).splitlines()[0]
    return ""


def _torchvision(device: torch.device, threads: int) -> Decode:
    decode_jpeg = import_torchvision().io.decode_jpeg

    def decode(files: Sequence[bytes]) -> list[torch.Tensor]:
        # It takes no read-only memory, which bytes are.
        arrays = [torch.from_numpy(np.frombuffer(file, np.uint8).copy()) for file in files]
        found: list[torch.Tensor] = decode_jpeg(arrays, mode="RGB", device=device)
        return found

    return decode


def installed(name: str) -> bool:
    """Return whether a module can be imported."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def _jpeg() -> bytes:
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, "JPEG")
    return file.getvalue()


_SMALL = _jpeg()

DECODERS = {
    "nvImageCodec": Decoder(_lacks_nvimagecodec, _nvimagecodec),
    "torchvision's CUDA decoder": Decoder(_lacks_torchvision, _torchvision),
}


class Decoded:
    """Endless batches of a tree's images, decoded by a library on the device.

    Args:
        tree: Folders of images, one a class.
        decode: The library's decoder.
        transform: From a uint8 image on the device to the model's input.
        threads: Threads that read files.
        batch: Images a batch.
    """

    def __init__(
        self,
        tree: Path,
        decode: Decode,
        transform: Callable[[torch.Tensor], torch.Tensor],
        device: torch.device,
        threads: int,
        batch: int,
    ) -> None:
        self._samples = import_torchvision().datasets.ImageFolder(str(tree)).samples
        self._decode, self._transform = decode, transform
        self._device, self._threads, self._batch = device, threads, batch

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield batches; the files of the next one are read meanwhile."""
        with ThreadPoolExecutor(self._threads) as pool:
            ahead = None
            for rows in self._rows():
                paths = [self._samples[row][0] for row in rows]
                reads = [pool.submit(Path(path).read_bytes) for path in paths]
                if ahead is not None:
                    yield self._made(*ahead)
                ahead = rows, reads

    def _rows(self) -> Iterator[list[int]]:
        while True:
            order = torch.randperm(len(self._samples))
            for begin in range(0, len(order) - self._batch + 1, self._batch):
                yield order[begin : begin + self._batch].tolist()

    def _made(self, rows: list[int], reads: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        images = self._decode([read.result() for read in reads])
        batch = torch.stack([self._transform(image) for image in images])
        labels = torch.tensor([self._samples[row][1] for row in rows])
        return (
            batch.contiguous(memory_format=torch.channels_last),
            labels.to(self._device, non_blocking=True),
        )
