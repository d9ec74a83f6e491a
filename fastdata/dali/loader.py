"""`DALILoader`: `fastdata.DataLoader` with NVIDIA DALI as its decoder, on the CPU or a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch.utils.data import Sampler

from fastdata.dali.options import DALIOptions, require_dali
from fastdata.dali.path import DALIPath
from fastdata.loading.config import LoaderConfig
from fastdata.loading.images import Images
from fastdata.loading.loader import DataLoader
from fastdata.loading.native import NativePath
from fastdata.transforms.compile import Recipe

T = TypeVar("T", covariant=True)


class DALILoader(DataLoader[T]):
    """`fastdata.DataLoader` with NVIDIA DALI in the place of the native decoder.

    Same datasets, order, crops, flips, sharding, state, labels, ``on_error`` and errors. Bytes are
    read and checked by fastdata; DALI decodes, resizes, cuts, mirrors and normalises. What DALI
    cannot decode, or fails for, fastdata decodes.

    A batch is as `fastdata.DataLoader`'s; with a GPU all its tensors are there, and the images
    are in DALI's memory, not copied, valid on the stream that was current when the batch was asked
    for. To use them on another stream, have it wait, and keep them until it is done.

    Args:
        dataset: As `fastdata.DataLoader`'s, with a transform that it does natively.
        batch_size: As there.
        shuffle: As there.
        sampler: As there.
        batch_sampler: As there.
        num_workers: DALI's CPU threads, or "auto"; at least one is used. As many more read files.
        collate_fn: As there.
        pin_memory: As there; not for a GPU.
        drop_last: As there.
        timeout: As there.
        generator: As there.
        device: "cpu"; or "gpu" ("cuda"), "gpu:1": decode there, and deliver there.
        prefetch_factor: Batches prepared ahead; 2 unless given, none with ``num_workers=0``.
        persistent_workers: Whether DALI's pipelines stay from epoch to epoch.
        order: As there.
        seed: As there.
        shard: As there.
        fields: As there.
        on_error: As there.
        batch_transform: As there.
        prefetch_queue_depth: Of the batches ahead, those that DALI works on at once.
        region_decode: Whether only the crop of an image is decoded, rather than all of it. None:
            on the CPU; on a GPU unless nvImageCodec is 0.9, which crashes (docs/dali.md).
        hw_decoder_load: Share of JPEGs for the GPU's own JPEG engine (A100, H100, …), 0 to 1;
            None: DALI's, 0.65.
        preallocate_width_hint: Width in pixels of images that engine has memory ready for; None:
            none.
        preallocate_height_hint: Their height.
        device_memory_padding: Bytes of GPU memory for nvJPEG, a thread; None: DALI's, 16 MiB.
        host_memory_padding: Bytes of page-locked memory likewise; None: DALI's, 8 MiB.
        hybrid_huffman_threshold: Pixels from which on Huffman decoding is done in part by the
            GPU; None: DALI's, a million.
        jpeg_fancy_upsampling: Whether a GPU interpolates chroma as the CPU does; None: DALI's, no.

    Raises:
        ModuleNotFoundError: DALI is not installed.
        UsageError: Arguments contradict each other, or cannot be honoured; the transform is one
            that fastdata does not do natively; or there is no such GPU.
        ValueError: What torch finds wrong with its arguments.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Sampler[Any] | Iterable[Any] | None = None,
        batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None,
        num_workers: int | str = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        generator: torch.Generator | None = None,
        *,
        device: str = "cpu",
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        order: str | None = None,
        seed: int | None = None,
        shard: str | tuple[int, int] | None = None,
        fields: Sequence[str] | None = None,
        on_error: str = "raise",
        batch_transform: Callable[..., Any] | None = None,
        prefetch_queue_depth: int = 2,
        region_decode: bool | None = None,
        hw_decoder_load: float | None = None,
        preallocate_width_hint: int | None = None,
        preallocate_height_hint: int | None = None,
        device_memory_padding: int | None = None,
        host_memory_padding: int | None = None,
        hybrid_huffman_threshold: int | None = None,
        jpeg_fancy_upsampling: bool | None = None,
    ) -> None:
        require_dali()
        # Under the names of the parameters: frameworks make loaders anew from these.
        self.prefetch_queue_depth = prefetch_queue_depth
        self.region_decode = region_decode
        self.hw_decoder_load = hw_decoder_load
        self.preallocate_width_hint = preallocate_width_hint
        self.preallocate_height_hint = preallocate_height_hint
        self.device_memory_padding = device_memory_padding
        self.host_memory_padding = host_memory_padding
        self.hybrid_huffman_threshold = hybrid_huffman_threshold
        self.jpeg_fancy_upsampling = jpeg_fancy_upsampling
        self._dali = DALIOptions(
            device=str(device),
            prefetch_queue_depth=prefetch_queue_depth,
            region_decode=region_decode,
            hw_decoder_load=hw_decoder_load,
            preallocate_width_hint=preallocate_width_hint,
            preallocate_height_hint=preallocate_height_hint,
            device_memory_padding=device_memory_padding,
            host_memory_padding=host_memory_padding,
            hybrid_huffman_threshold=hybrid_huffman_threshold,
            jpeg_fancy_upsampling=jpeg_fancy_upsampling,
        )
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            num_workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            generator=generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers,
            order=order,
            seed=seed,
            shard=shard,
            fields=fields,
            on_error=on_error,
            batch_transform=batch_transform,
            require_native=True,
        )
        self.device = device

    def _native_path(self, images: Images, recipe: Recipe, config: LoaderConfig) -> NativePath:
        return DALIPath(images, recipe, config, self._dali, self.batch_size or 1)

    def explain(self) -> str:
        """Where DALI decodes, and what."""
        _, _, rest = super().explain().partition("\n")
        return f"dali, on {self._dali.device}: {max(self.num_workers, 1)} threads\n{rest}"
