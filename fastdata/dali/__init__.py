"""`DALILoader`: `fastdata.DataLoader` with NVIDIA DALI as its decoder; see docs/dali.md.

Only a `DALILoader` needs DALI, not this import.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeVar, cast

import torch

from fastdata.dali.batches import DALIField
from fastdata.dali.graph import Graph
from fastdata.dali.runner import Runner
from fastdata.device.delivery import destination
from fastdata.device.transfer import Destination, copy_stream, numbered, on_device, on_stream
from fastdata.errors import UsageError
from fastdata.loading.fields.field import Context
from fastdata.loading.fields.image import ImageField
from fastdata.loading.fields.pipeline import Pipeline, open_pipeline
from fastdata.loading.loader import DataLoader
from fastdata.loading.native import NativePath
from fastdata.loading.passes import WrappedPass
from fastdata.loading.resolved import Resolved
from fastdata.plan.position import LatestPass
from fastdata.storage.cache import Cache

__all__ = ["DALILoader"]

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
        **options: Any,
    ) -> None:
        _require_dali()
        if type(prefetch_queue_depth) is not int or prefetch_queue_depth < 1:
            raise UsageError(f"{prefetch_queue_depth=}", "Give a whole number, 1 or more.")
        self._dali_device = destination(device).device
        if self._dali_device.type not in ("cpu", "cuda"):
            raise UsageError(
                f"device={str(device)!r}: DALI decodes on NVIDIA's GPUs", 'Give "cuda", or "cpu".'
            )
        self.prefetch_queue_depth = prefetch_queue_depth  # frameworks rebuild loaders from it
        super().__init__(dataset, *args, require_native=True, **options)
        self.device = device

    def _native_path(self, resolved: Resolved) -> NativePath:
        device, arguments = numbered(self._dali_device), resolved.arguments
        threads = max(arguments.num_workers, 1)
        if device.type == "cuda":
            # DALI's results are on the copy stream. The consumer gets a copy in memory of its own
            # stream, so that DALI and torch's allocator need not know each other's streams.
            # DALI prefetches by itself.
            where = Destination(device, None, None, prefetch=1, copy=True)
            self._resolved = replace(self._resolved, where=where)
            arguments = replace(arguments, device=device)
        depth = self.prefetch_queue_depth
        if arguments.prefetch_factor is None:
            # One batch is read and one is taken while DALI's queue stays full.
            arguments = replace(arguments, prefetch_factor=depth + 2)
        assert resolved.recipe is not None
        graph = Graph(resolved.recipe.programs, device.index, threads, depth)
        own = replace(resolved, arguments=arguments)
        return _DALIPath(own, graph, device, self.batch_size or 1)

    def _on_device(self, batches: Iterator[Any], latest: LatestPass | None = None) -> Iterator[Any]:
        if self._dali_device.type == "cuda":
            batches = _OnCopyStream(batches, numbered(self._dali_device))
        return super()._on_device(batches, latest)

    def explain(self) -> str:
        """Describe where DALI decodes, and what."""
        _, _, rest = super().explain().partition("\n")
        graph = cast(_DALIPath, self._native).graph
        return f"dali, on {self._dali_device}: {graph.threads} threads\n{rest}"


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
        self, resolved: Resolved, graph: Graph, device: torch.device, batch_size: int
    ) -> None:
        images, recipe = resolved.images, resolved.recipe
        assert images is not None
        assert recipe is not None
        steps = [step for program in recipe.programs for step in program.steps]
        lacks = {
            f"cache={images.cache}": images.cache not in (None, Cache(bytes=0)),
            "exif_transpose=True": images.source.upright,
            "a transform for each part of the dataset": bool(recipe.parts),
            "augmentations of pixels": any(program.pixels for program in recipe.programs),
            "images of different sizes": not all(program.one_size for program in recipe.programs),
            "a choice of interpolations": any(len(getattr(s, "filters", ())) > 1 for s in steps),
        }
        if asked := ", ".join(what for what, wanted in lacks.items() if wanted):
            hint = "Leave them out, or use a fastdata.DataLoader."
            raise UsageError(f"DALILoader has no {asked}", hint)
        super().__init__(resolved)
        self.graph = graph
        self._device, self._batch_size = device, batch_size
        self._runner: Runner | None = None

    def _pipeline(self, context: Context) -> Pipeline:
        runner = self._runner
        if runner is None or not runner.alive or runner.broken is not None:
            runner = Runner(self.graph, self._batch_size)
        if self._config.persistent_workers:
            self._runner = runner

        def images(name: str, *arguments: Any) -> ImageField:
            if name == "image":
                return DALIField(runner, self._device, name, *arguments)
            return ImageField(name, *arguments)

        return open_pipeline(context, self._recipes, self._readables, self._config.fields, images)


class _OnCopyStream(WrappedPass):
    """Pass whose batches are made on, and for, the copy stream of a GPU."""

    def __init__(self, batches: Iterator[Any], device: torch.device) -> None:
        super().__init__(batches)
        self._device = device

    def __next__(self) -> Any:
        with on_device(self._device), on_stream(copy_stream(self._device)):
            return next(self._batches)


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
