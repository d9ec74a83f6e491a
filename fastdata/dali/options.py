"""What can be set of DALI, and what of it means something where."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

from fastdata.errors import UsageError

#: DALI's Python packages, one for each version of CUDA, and nvImageCodec's.
_NVIMAGECODEC = ("nvidia-nvimgcodec-cu12", "nvidia-nvimgcodec-cu13")

#: What only the decoder of a GPU can honour.
_GPU_ONLY = (
    "hw_decoder_load",
    "preallocate_width_hint",
    "preallocate_height_hint",
    "device_memory_padding",
    "host_memory_padding",
    "hybrid_huffman_threshold",
    "jpeg_fancy_upsampling",
)


@dataclass(frozen=True)
class DALIOptions:
    """How DALI runs; None: as DALI has it by itself. See `fastdata.dali.DALILoader`.

    Attributes:
        device: "cpu", "gpu" or "cuda", "gpu:1" or "cuda:1".
        prefetch_queue_depth: Batches that DALI works on at once.
        region_decode: Whether only the crop is decoded; None: where that is known to work.
        hw_decoder_load: Share of JPEGs for the GPU's decoder engine.
        preallocate_width_hint: Width of images to have memory ready for, there.
        preallocate_height_hint: Their height.
        device_memory_padding: Bytes of nvJPEG's buffers on the GPU.
        host_memory_padding: Bytes of its page-locked buffers.
        hybrid_huffman_threshold: Pixels from which on Huffman decoding is done in part by the GPU.
        jpeg_fancy_upsampling: Whether the GPU interpolates chroma as the CPU does.
    """

    device: str = "cpu"
    prefetch_queue_depth: int = 2
    region_decode: bool | None = None
    hw_decoder_load: float | None = None
    preallocate_width_hint: int | None = None
    preallocate_height_hint: int | None = None
    device_memory_padding: int | None = None
    host_memory_padding: int | None = None
    hybrid_huffman_threshold: int | None = None
    jpeg_fancy_upsampling: bool | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"cpu|(gpu|cuda)(:\d+)?", str(self.device)):
            raise UsageError(
                f"device={self.device!r}", 'Give "cpu", "gpu", or "gpu:1" for the second one.'
            )
        _require("prefetch_queue_depth", self.prefetch_queue_depth, 1)
        load = self.hw_decoder_load
        if load is not None and not 0 <= load <= 1:
            raise UsageError(f"hw_decoder_load={load!r}", "Give a share, from 0 to 1.")
        for name in _GPU_ONLY:
            value = getattr(self, name)
            if value is None:
                continue
            if not self.on_gpu:
                raise UsageError(
                    f"{name}={value!r} is for decoding on a GPU, but device is {self.device!r}",
                    'Leave it out, or give device="gpu".',
                )
            if name not in ("hw_decoder_load", "jpeg_fancy_upsampling"):
                _require(name, value, 0)

    @property
    def on_gpu(self) -> bool:
        """Whether images are decoded, and delivered, on a GPU."""
        return str(self.device) != "cpu"

    def device_id(self) -> int | None:
        """The GPU's number; None for the CPU.

        Raises:
            UsageError: There is no such GPU.
        """
        if not self.on_gpu:
            return None
        import torch

        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        _, _, number = str(self.device).partition(":")
        found = int(number) if number else (torch.cuda.current_device() if count else 0)
        if found >= count:
            raise UsageError(
                f"device={self.device!r}, but torch finds {count or 'no'} GPUs here",
                'Give device="cpu"; or install a torch with CUDA, and look at nvidia-smi.',
            )
        return found

    def regions(self) -> bool:
        """Whether only the crop of an image is decoded."""
        if self.region_decode is not None:
            return self.region_decode
        return not (self.on_gpu and gpu_regions_broken())

    def decoder_arguments(self) -> dict[str, Any]:
        """What was set of the GPU's decoder."""
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: given[name] for name in _GPU_ONLY if given[name] is not None}


def _require(name: str, value: Any, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{name}={value!r}", f"Give a whole number, {least} or more.")


def gpu_regions_broken() -> bool:
    """Whether this nvImageCodec fails, or ends the process, where a GPU decodes a region.

    0.9.0 does so on ordinary photographs (https://github.com/NVIDIA/nvImageCodec/issues/55), and
    the report is open; 0.8 does not. So all of 0.9 counts as broken.
    """
    return any(version.startswith("0.9.") for version in _nvimagecodec_versions())


def _nvimagecodec_versions() -> Iterator[str]:
    for name in _NVIMAGECODEC:
        try:
            yield importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue


#: The major version from which on pipelines hand out memory of its own for each batch.
_OLDEST = 2


def require_dali() -> None:
    """Raises if DALI is not there.

    Raises:
        ModuleNotFoundError: It is not installed, or too old.
    """
    try:
        import nvidia.dali
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "fastdata.dali needs NVIDIA DALI\nInstall it: pip install 'fastdata-torch[dali]' (or, "
            "for CUDA 13, nvidia-dali-cuda130).",
            name=error.name,
        ) from error
    version = nvidia.dali.__version__
    if int(version.partition(".")[0]) < _OLDEST:
        # Before, a pipeline's outputs were written over while they were still in use.
        raise ModuleNotFoundError(
            f"fastdata.dali needs NVIDIA DALI {_OLDEST} or later, and {version} is installed\n"
            "Upgrade it: pip install -U 'fastdata-torch[dali]'.",
            name="nvidia.dali",
        )
