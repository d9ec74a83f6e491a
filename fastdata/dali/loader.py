"""`DALILoader`: `fastdata.DataLoader` with NVIDIA DALI as its decoder, on the CPU or a GPU."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

import torch

from fastdata import _native
from fastdata.dali.batches import DALIPipeline
from fastdata.dali.decoders import BESIDES
from fastdata.dali.decoders import decoder_options as known_options
from fastdata.dali.graph import Graph
from fastdata.dali.runner import Runner
from fastdata.decode.decoders import NATIVE
from fastdata.decode.rows import describe_kinds
from fastdata.device.delivery import destination
from fastdata.device.transfer import Destination, copy_stream, numbered, on_device, on_stream
from fastdata.errors import UsageError
from fastdata.loading.config import LoaderConfig
from fastdata.loading.fields.images import Readable
from fastdata.loading.fields.pipeline import Pipeline
from fastdata.loading.loader import DataLoader
from fastdata.loading.native import NativePath
from fastdata.storage.cache import Cache
from fastdata.transforms.compile import Recipe

T = TypeVar("T", covariant=True)

#: The major version from which on pipelines hand out memory of its own for each batch. Before, a
#: pipeline's outputs were overwritten while they were still in use.
_OLDEST = 2


class DALILoader(DataLoader[T]):
    """`fastdata.DataLoader` with NVIDIA DALI as the decoder.

    Datasets, order, crops, flips, sharding, states, labels, ``on_error`` and errors are the same.
    fastdata reads and checks the bytes; DALI decodes, resizes, cuts, mirrors and normalises.
    fastdata decodes what DALI cannot.

    A batch is on the device, for the stream that is current when it is taken.

    Args:
        dataset: As `fastdata.DataLoader`'s, with a transform that it does natively.
        *args: Further arguments of `fastdata.DataLoader`, in its order.
        device: "cpu", or "cuda" ("cuda:1", …): decode there, and deliver there.
        prefetch_queue_depth: Number of batches that DALI works on at once; ``prefetch_factor`` is
            two more if it is not given.
        region_decode: Whether only the crop of an image is decoded, rather than all of it. None:
            on the CPU only (docs/dali.md).
        hw_decoder_load: Share of JPEGs for the GPU's own JPEG engine (A100, H100, …), 0 to 1;
            None: all.
        decoder_options: Further arguments of DALI's decoder on a GPU, by DALI's names
            (docs/dali.md).
        **options: Further arguments of `fastdata.DataLoader`; ``require_native`` is implied.
            ``num_workers`` are DALI's CPU threads, at least one, and as many more that read files;
            with ``persistent_workers`` DALI's pipeline stays from epoch to epoch.

    Raises:
        ModuleNotFoundError: DALI is not installed, or too old.
        UsageError: Arguments contradict each other, or cannot be honoured; the transform is one
            that fastdata does not do natively; or there is no such GPU.
        ValueError: Torch's own errors about its arguments.
    """

    def __init__(
        self,
        dataset: Any,
        *args: Any,
        device: str | torch.device = "cpu",
        prefetch_queue_depth: int = 2,
        region_decode: bool | None = None,
        hw_decoder_load: float | None = None,
        decoder_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        _require_dali()
        decoding = dict(decoder_options or {})
        if hw_decoder_load is not None:
            decoding["hw_decoder_load"] = hw_decoder_load
        load = decoding.get("hw_decoder_load", 1.0)
        if not isinstance(load, (int, float)) or not 0 <= load <= 1:
            raise UsageError(f"hw_decoder_load={load!r}", "Give a share, from 0 to 1.")
        if type(prefetch_queue_depth) is not int or prefetch_queue_depth < 1:
            raise UsageError(f"{prefetch_queue_depth=}", "Give a whole number, 1 or more.")
        self._dali_device = destination(device).device
        if self._dali_device.type not in ("cpu", "cuda"):
            raise UsageError(
                f"device={str(device)!r}: DALI decodes on NVIDIA's GPUs", 'Give "cuda", or "cpu".'
            )
        if self._dali_device.type == "cpu" and decoding:
            given = ", ".join(f"{name}={value!r}" for name, value in decoding.items())
            raise UsageError(
                f"{given} is for decoding on a GPU, but device is {str(device)!r}",
                'Leave it out, or give device="cuda".',
            )
        if unknown := sorted(decoding.keys() - known_options()):
            raise UsageError(
                f"decoder_options: DALI's decoder has no {', '.join(unknown)}",
                f"Give some of {', '.join(sorted(known_options()))}.",
            )
        self._decoding = decoding
        # Frameworks rebuild loaders from these attributes.
        self.prefetch_queue_depth, self.region_decode = prefetch_queue_depth, region_decode
        self.hw_decoder_load, self.decoder_options = hw_decoder_load, decoder_options
        super().__init__(dataset, *args, require_native=True, **options)
        self.device = device

    def _native_path(self, images: Readable, recipe: Recipe, config: LoaderConfig) -> NativePath:
        device, threads = numbered(self._dali_device), max(config.num_workers, 1)
        if device.type == "cuda":
            # DALI's results are on the copy stream. The consumer gets a copy in memory of its own
            # stream, so that DALI and torch's allocator need not know each other's streams.
            # DALI prefetches by itself.
            where = Destination(device, None, None, prefetch=1, copy=True)
            self._choice = replace(self._choice, where=where)
            config = replace(config, device=device)
        depth, regions = self.prefetch_queue_depth, self.region_decode
        if config.prefetch_factor is None:
            # One batch is read and one is taken while DALI's queue stays full.
            config = replace(config, prefetch_factor=depth + 2)
        if regions is None:
            regions = device.type == "cpu"
        graph = Graph(recipe.programs, device.index, threads, depth, regions, self._decoding)
        return _DALIPath(images, recipe, config, graph, device, self.batch_size or 1)

    def explain(self) -> str:
        """Describe where DALI decodes, and what."""
        _, _, rest = super().explain().partition("\n")
        graph = cast(_DALIPath, self._native).graph
        return (
            f"dali, on {self._dali_device}: {graph.threads} threads; "
            f"baseline JPEGs by its {graph.back_end} back end\n{rest}"
        )


def _with_those_of_dataloader() -> inspect.Signature:
    """Return all parameters, because frameworks rebuild loaders from a constructor's."""
    own = inspect.signature(DALILoader.__init__).parameters
    named = {name: one for name, one in own.items() if name not in ("args", "options")}
    merged = {**inspect.signature(DataLoader.__init__).parameters, **named}
    del merged["require_native"]
    return inspect.Signature(list(merged.values()))


DALILoader.__init__.__signature__ = _with_those_of_dataloader()  # type: ignore[attr-defined]


class _DALIPath(NativePath):
    """Native path with DALI as the decoder, on the device of the batches.

    ``batch_size``: most samples in a batch, if known. UsageError: DALI cannot honour a setting.
    """

    learns = False
    in_part = False

    def __init__(
        self,
        images: Readable,
        recipe: Recipe,
        config: LoaderConfig,
        graph: Graph,
        device: torch.device,
        batch_size: int,
    ) -> None:
        if images.cache not in (None, Cache(bytes=0)):
            raise UsageError(
                f"cache={images.cache}: DALI has no use for seek points",
                "Leave it out of the ImageDataset.",
            )
        if images.source.upright:
            raise UsageError(
                "exif_transpose=True turns images, and DALILoader does not",
                "Leave it out of the ImageDataset, or use a fastdata.DataLoader.",
            )
        if recipe.parts:
            raise UsageError(
                "parts of the dataset have different transforms, and DALILoader takes one",
                "Use a fastdata.DataLoader, or give all the same.",
            )
        if step := next((step for one in recipe.programs for step in one.pixels), None):
            raise UsageError(
                f"the transform has augmentations, which DALILoader lacks: {step.words}",
                "Use a fastdata.DataLoader, or leave them to the loader's batch_transform.",
            )
        if not all(program.one_size for program in recipe.programs):
            raise UsageError(
                "the transform leaves images of different sizes, and DALILoader needs one size",
                "Use a fastdata.DataLoader, or bring them to one size.",
            )
        filters = (getattr(step, "filters", ()) for one in recipe.programs for step in one.steps)
        if several := next((names for names in filters if len(names) > 1), None):
            raise UsageError(
                f"the transform resizes with {' or '.join(several)}, and DALI has one filter",
                "Use a fastdata.DataLoader, or give the transform one interpolation.",
            )
        super().__init__(images, recipe, config)
        self.graph = graph
        self._device, self._batch_size = device, batch_size
        self._runner: Runner | None = None

    def describe_kinds(self) -> str:
        """See `NativePath.describe_kinds`."""
        known = f"DALI ({self.graph.back_end})"
        label = known if self._device.type == "cpu" else "DALI"
        theirs = {"jpeg": known} | {kind: label for kind in BESIDES if self.graph.decodes(kind)}
        decoder = partial(self._decoder, theirs)
        return describe_kinds(self.source, self._settings.limits, self._images.subset, decoder)

    def _decoder(
        self, theirs: Mapping[str, str], kind: str, extents: _native.Extents, slot: int
    ) -> str:
        """Return the decoder of an image that the core can decode, by DALI's for each kind."""
        if kind == "jpeg":
            given = extents.seekable[slot] or not self.source.capabilities.seek_points
        else:  # without an index, only JPEGs are known before they are read
            given = kind != "png" or extents.encodings[slot] >= 0
        return theirs.get(kind, NATIVE) if given else NATIVE

    def _pipeline(self, *args: Any, **named: Any) -> Pipeline:
        runner = self._runner
        if runner is None or not runner.alive or runner.broken is not None:
            runner = Runner(self.graph, self._batch_size)
        if self._config.persistent_workers:
            self._runner = runner
        return DALIPipeline(runner, self._device, self.source, self._settings, *args, **named)

    def start(self, *args: Any, **named: Any) -> Iterator[Any]:
        """See `NativePath.start`."""
        batches = super().start(*args, **named)
        return batches if self._device.type == "cpu" else _OnCopyStream(batches, self._device)


class _OnCopyStream(Iterator[Any]):
    """Iterator whose batches are made on, and for, the copy stream of a GPU."""

    def __init__(self, batches: Any, device: torch.device) -> None:
        self._batches, self._device = batches, device
        self.close = batches.close

    def __len__(self) -> int:
        return len(self._batches)

    def __next__(self) -> Any:
        with on_device(self._device), on_stream(copy_stream(self._device)):
            return next(self._batches)

    def ready(self) -> bool:
        """See `NativeIterator.ready`."""
        return bool(self._batches.ready())


def _require_dali() -> None:
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
        raise ModuleNotFoundError(
            f"fastdata.dali needs NVIDIA DALI {_OLDEST} or later, and {version} is installed\n"
            "Upgrade it: pip install -U 'fastdata-torch[dali]'.",
            name="nvidia.dali",
        )
