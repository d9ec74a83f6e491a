"""Steps of networks on a GPU that loaders feed, and the loaders alone.

FASTDATA_DEVICE=cpu tries it without a GPU.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
from _workload import Workload, contenders, fastdata_loader, torch_loader
from fastdata.benchmarks.adapters._serve import Request, serve
from fastdata.benchmarks.adapters._torchvision import import_torchvision
from fastdata.benchmarks.adapters._transforms import MEAN, STD

#: Networks, of torchvision or "vit_tiny".
CASES = {
    "ResNet-50": "resnet50",
    "ResNet-18": "resnet18",
    "ViT-tiny": "vit_tiny",
    "ResNet-50, TrivialAugmentWide and RandomErasing": "resnet50",
}
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
        replace(one, device=DEVICE, needs=_ON_GPU.get(one.name, ""))
        for one in contenders(__file__, _FEEDING, tolerance=1.0)
    ],
    cases=tuple(CASES),
    columns=("images/s", "times", "waiting, %", "CPU ms an image"),
    against="the step alone",
    check="",
    options={"batch_size": 256, "threads": (2, 4, 8), "seconds": 60.0, "timeout": 900.0},
)


def prepare(tree: str, out: str, variant: str) -> None:
    """Pack a tree."""
    from fastdata.converters import ImageFolder, pack

    pack(ImageFolder(tree), Path(out, "packed"), container="lmdb", order="source")
    Path(out, "tree").symlink_to(Path(tree).resolve())


def _size(case: str) -> int:
    return 176 if "Trivial" in case else 224


def _steps(tv: Any, case: str) -> list[Any]:
    """Return the steps of the bytes of an image, in torchvision's classes or fastdata's."""
    augmented = [tv.TrivialAugmentWide()] if "Trivial" in case else []
    return [tv.RandomResizedCrop(_size(case)), tv.RandomHorizontalFlip(), *augmented]


def _last(tv: Any, case: str) -> list[Any]:
    return [tv.RandomErasing(0.1)] if "Trivial" in case else []


class _Step:
    """Batches, each of which is trained with."""

    def __init__(self, request: Request, batches: Any, classes: int) -> None:
        import torch

        network, size = CASES[request.case], _size(request.case)
        models = import_torchvision().models
        if network == "vit_tiny":
            about = {"hidden_dim": 192, "mlp_dim": 768, "num_classes": classes}
            model: Any = models.VisionTransformer(size, 16, 12, 3, **about)
        else:
            model = models.get_model(network, num_classes=classes)
        self._model = model.to(request.device).to(memory_format=torch.channels_last)
        self._cuda = request.device != "cpu"
        self._compiled: Any = torch.compile(self._model) if self._cuda else self._model
        self._optimiser = torch.optim.SGD(self._model.parameters(), 0.01, momentum=0.9)
        self._device, self._batches = request.device, batches
        if batches is None:
            images = torch.rand(request.batch_size, 3, size, size, device=request.device).bfloat16()
            images = images.contiguous(memory_format=torch.channels_last)
            labels = torch.randint(0, classes, (request.batch_size,), device=request.device)
            self._batches = repeat((images, labels))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches)

    def use(self, batch: Any) -> None:
        """Run forward, backward and SGD."""
        import torch

        with torch.autocast(self._device, torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(self._compiled(batch[0]), batch[1])
        loss.backward()
        self._optimiser.step()
        self._optimiser.zero_grad(set_to_none=True)

    def finish(self) -> None:
        """Wait for the GPU: what it still has to do belongs to the time."""
        import torch

        if self._cuda:
            torch.cuda.synchronize()


def _sent(batches: Any, case: str, device: str) -> Iterator[Any]:
    """Yield torch's batches, sent and normalised as its users write it."""
    import torch

    tv: Any = importlib.import_module("torchvision.transforms.v2")
    mean, std = (torch.tensor(v, device=device).view(1, 3, 1, 1) for v in (MEAN, STD))
    erasing = tv.Compose([tv.Identity(), *_last(tv, case)])
    for images, labels in batches:
        moved = images.to(device, non_blocking=True, memory_format=torch.channels_last)
        images = erasing(((moved.float() / 255 - mean) / std).bfloat16())
        yield images, labels.to(device, non_blocking=True)


def _decoder(request: Request) -> Callable[[list[bytes]], list[Any]]:
    """Return a function from files to uint8 tensors on the device, 3 x H x W."""
    import torch

    if request.variant != "nvImageCodec":
        decode = import_torchvision().io.decode_jpeg
        # It takes no read-only memory, which bytes are.
        writable = [lambda one: torch.from_numpy(np.frombuffer(one, np.uint8).copy())]
        return lambda files: decode(
            [writable[0](one) for one in files], mode="RGB", device=request.device
        )
    codec: Any = importlib.import_module("nvidia.nvimgcodec")
    about: dict[str, Any] = {"device_id": 0}
    if request.device == "cpu":
        about["device_id"] = codec.NVIMGCODEC_DEVICE_CPU_ONLY
        about["backends"] = [codec.Backend(codec.CPU_ONLY)]
    decoder = codec.Decoder(max_num_cpu_threads=request.threads, **about)
    tensor = (
        torch.as_tensor if request.device != "cpu" else lambda one: torch.from_numpy(np.array(one))
    )
    return lambda files: [tensor(one).permute(2, 0, 1) for one in decoder.decode(files)]


def _decoded(request: Request, samples: list[tuple[str, int]], transform: Any) -> Iterator[Any]:
    """Yield batches that a library decodes on the device; files of the next are read meanwhile."""
    import torch

    decode, size = _decoder(request), request.batch_size
    order = torch.randperm(len(samples)).tolist()
    batches = [order[at : at + size] for at in range(0, len(order) - size + 1, size)]
    with ThreadPoolExecutor(request.threads) as pool:

        def read(rows: list[int]) -> list[Any]:
            return [pool.submit(Path(samples[row][0]).read_bytes) for row in rows]

        coming = read(batches[0])
        for rows, after in zip(batches, [*batches[1:], []], strict=True):
            files, coming = coming, read(after)
            images = decode([file.result() for file in files])
            batch = torch.stack([transform(image).bfloat16() for image in images])
            labels = torch.tensor([samples[row][1] for row in rows])
            yield batch.contiguous(memory_format=torch.channels_last), labels.to(request.device)


class _Epochs:
    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self._make = make

    def __iter__(self) -> Iterator[Any]:
        return self._make()


def open_loader(request: Request) -> Any:
    """Open a loader, and the step that it feeds."""
    import_torchvision()
    import fastdata
    from fastdata import ImageDataset

    t, v2 = fastdata.transforms, importlib.import_module("torchvision.transforms.v2")
    case, folder = request.case, Path(request.data)
    name, _, alone = request.variant.partition(", ")
    floats = [t.Normalize(MEAN, STD, dtype="bfloat16"), *_last(t, case)]
    steps = [*_steps(t, case), *([] if alone else floats)]
    dataset = ImageDataset(folder / "packed", transform=t.Compose(tuple(steps)))
    batches: Any = None
    if name == "fastdata":
        device = {} if alone else {"device": request.device}
        batches = fastdata_loader(dataset, request, require_native=True, **device)
    elif name == "DALI":
        from _workload import options

        from fastdata.dali import DALILoader

        batches = DALILoader(dataset, **options(request, device=request.device))
    elif name == "torch":
        theirs = v2.Compose([*_steps(v2, case), v2.PILToTensor()])
        images = import_torchvision().datasets.ImageFolder(str(folder / "tree"), theirs)
        loader = torch_loader(images, request, pin_memory=request.device != "cpu")
        batches = loader if alone else _Epochs(lambda: _sent(loader, case, request.device))
    elif name != "the step alone":
        samples = import_torchvision().datasets.ImageFolder(str(folder / "tree")).samples
        end = [v2.ToDtype(importlib.import_module("torch").float32, scale=True)]
        end += [v2.Normalize(MEAN, STD), *_last(v2, case)]
        transform = v2.Compose([*_steps(v2, case), *end])
        batches = _Epochs(lambda: _decoded(request, samples, transform))
    return batches if alone else _Step(request, batches, len(dataset.classes))


if __name__ == "__main__":
    serve(open_loader, prepare, packages=["fastdata", "torchvision", "nvidia-dali-cuda120"])
