"""Steps of networks on a GPU that loaders feed, and the loaders alone.

FASTDATA_DEVICE=cpu tries it without a GPU.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from _workload import Workload, contenders, fastdata_loader, options, pack_tree, torch_files
from fastdata.benchmarks.adapters._serve import ContenderRequest, serve
from fastdata.benchmarks.adapters._torchvision import import_torchvision
from fastdata.benchmarks.adapters._transforms import MEAN, STD, image_folder

#: Networks of torchvision.
CASES = {"ResNet-50": "resnet50", "ResNet-18": "resnet18"}
_FEEDING = {
    "the step alone": "it trains on one batch again and again",
    "fastdata": "DataLoader(device=)",
    "DALI": "fastdata.dali.DALILoader",
    "nvImageCodec": "its decoder, torchvision's transforms on the GPU",
    "torchvision's CUDA decoder": "nvJPEG, torchvision's transforms on the GPU",
    "torch": "torch's loader; its bytes are copied and normalised there",
    "fastdata, no step": "bytes on the host",
    "torch, no step": "bytes on the host",
}
DEVICE = os.environ.get("FASTDATA_DEVICE", "cuda")
_ON_GPU = {"DALI": "nvidia.dali", "nvImageCodec": "nvidia.nvimgcodec"}

WORKLOAD = Workload(
    "Feeding a GPU",
    [
        replace(one, device=DEVICE, needs=_ON_GPU.get(one.name, "torchvision"))
        for one in contenders(__file__, _FEEDING, tolerance=1.0)
    ],
    cases=tuple(CASES),
    columns=("images/s", "times", "waiting, %", "CPU ms an image"),
    against="the step alone",
    check="",
    options={"batch_size": 256, "threads": (2, 4, 8), "seconds": 60.0, "timeout": 900.0},
)


def _steps(tv: Any, *last: Any) -> Any:
    """Return the transform of the bytes of an image, in torchvision's classes or fastdata's."""
    return tv.Compose([tv.RandomResizedCrop(224), tv.RandomHorizontalFlip(), *last])


class _Step:
    """Batches, each of which is trained with."""

    def __init__(self, request: ContenderRequest, batches: Any, classes: int) -> None:
        import torch

        models = import_torchvision().models
        model: Any = models.get_model(CASES[request.case], num_classes=classes)
        self._model = model.to(request.device).to(memory_format=torch.channels_last)
        self._cuda = request.device != "cpu"
        self._compiled: Any = torch.compile(self._model) if self._cuda else self._model
        self._optimiser = torch.optim.SGD(self._model.parameters(), 0.01, momentum=0.9)
        self._device, self._batches = request.device, batches
        if batches is None:
            images = torch.rand(request.batch_size, 3, 224, 224, device=request.device).bfloat16()
            images = images.contiguous(memory_format=torch.channels_last)
            labels = torch.randint(0, classes, (request.batch_size,), device=request.device)
            self._batches = repeat((images, labels))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches() if callable(self._batches) else self._batches)

    def use(self, batch: Any) -> None:
        """Run forward, backward and SGD."""
        import torch

        with torch.autocast(self._device, torch.bfloat16):
            loss: Any = torch.nn.functional.cross_entropy(self._compiled(batch[0]), batch[1])
        loss.backward()
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)

    def finish(self) -> None:
        """Wait for the GPU: what it still has to do belongs to the time."""
        import torch

        if self._cuda:
            torch.cuda.synchronize()


def _sent(batches: Any, device: str) -> Iterator[Any]:
    """Yield torch's batches, sent and normalised as its users write it."""
    import torch

    mean, std = (torch.tensor(v, device=device).view(1, 3, 1, 1) for v in (MEAN, STD))
    for images, labels in batches:
        moved = images.to(device, non_blocking=True, memory_format=torch.channels_last)
        images = ((moved.float() / 255 - mean) / std).bfloat16()
        yield images, labels.to(device, non_blocking=True)


def _decoder(request: ContenderRequest) -> Callable[[list[bytes]], list[Any]]:
    """Return a function from files to uint8 tensors on the device, 3 x H x W."""
    import torch

    where = request.device
    if request.variant != "nvImageCodec":
        decode: Any = import_torchvision().io.decode_jpeg
        # It takes no read-only memory, which bytes are.
        tensor: Any = lambda one: torch.from_numpy(np.frombuffer(one, np.uint8).copy())  # noqa: E731
        return lambda files: decode([tensor(one) for one in files], mode="RGB", device=where)
    codec: Any = importlib.import_module("nvidia.nvimgcodec")
    about: dict[str, Any] = {"device_id": 0}
    if where == "cpu":
        about["device_id"] = codec.NVIMGCODEC_DEVICE_CPU_ONLY
        about["backends"] = [codec.Backend(codec.CPU_ONLY)]
    decoder, on_gpu = codec.Decoder(max_num_cpu_threads=request.threads, **about), where != "cpu"
    tensor = torch.as_tensor if on_gpu else lambda one: torch.from_numpy(np.array(one))
    return lambda files: [tensor(one).permute(2, 0, 1) for one in decoder.decode(files)]


def _decoded(
    request: ContenderRequest, samples: list[tuple[str, int]], transform: Any
) -> Iterator[Any]:
    """Yield batches that a library decodes on the device; files of the next are read meanwhile."""
    import torch

    decode, size = _decoder(request), request.batch_size
    order = torch.randperm(len(samples)).tolist()
    batches = [order[at : at + size] for at in range(0, len(order) - size + 1, size)]
    with ThreadPoolExecutor(request.threads) as pool:
        coming: list[Any] = []
        for rows in [*batches, []]:
            reads = [pool.submit(Path(samples[row][0]).read_bytes) for row in rows]
            if coming:
                images = decode([read.result() for read in coming[1]])
                batch = torch.stack([transform(image).bfloat16() for image in images])
                labels = torch.tensor([samples[row][1] for row in coming[0]])
                yield batch.contiguous(memory_format=torch.channels_last), labels.to(request.device)
            coming = [rows, reads]


def open_loader(request: ContenderRequest) -> Any:
    """Open a loader, and the step that it feeds."""
    import_torchvision()
    import fastdata
    from fastdata import ImageDataset

    t, v2 = fastdata.transforms, importlib.import_module("torchvision.transforms.v2")
    folder, (name, _, alone) = Path(request.data), request.variant.partition(", ")
    floats = [] if alone else [t.Normalize(MEAN, STD, dtype="bfloat16")]
    dataset = ImageDataset(folder / "packed", transform=_steps(t, *floats))
    batches: Any = None
    if name == "fastdata":
        device = {} if alone else {"device": request.device}
        batches = fastdata_loader(dataset, request, **device)
    elif name == "DALI":
        from fastdata.dali import DALILoader

        batches = DALILoader(dataset, **options(request, device=request.device))
    elif name == "torch":
        steps, pinned = _steps(v2, v2.PILToTensor()), {"pin_memory": request.device != "cpu"}
        loader = torch_files(folder / "tree", steps, request, **pinned)
        batches = loader if alone else partial(_sent, loader, request.device)
    elif name != "the step alone":
        samples = image_folder(str(folder / "tree"))
        floats = [v2.ToDtype(importlib.import_module("torch").float32, scale=True)]
        transform = _steps(v2, *floats, v2.Normalize(MEAN, STD))
        batches = partial(_decoded, request, samples, transform)
    return batches if alone else _Step(request, batches, len(dataset.classes))


if __name__ == "__main__":
    serve(open_loader, pack_tree, packages=["fastdata", "torchvision", "nvidia-dali-cuda120"])
