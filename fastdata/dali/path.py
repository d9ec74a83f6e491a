"""The native path of a loader, with DALI in the place of the native decoder."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Executor

import torch

from fastdata.dali.batches import DALIPipeline
from fastdata.dali.graph import Graph
from fastdata.dali.options import DALIOptions, require_dali
from fastdata.dali.runner import Runner
from fastdata.dataset import ImageDataset
from fastdata.decode.engine import Engine
from fastdata.errors import UsageError
from fastdata.loading.buffers import BufferPool
from fastdata.loading.config import LoaderConfig
from fastdata.loading.images import Images
from fastdata.loading.native import NativePath
from fastdata.loading.pipeline import Pipeline
from fastdata.loading.stats import Counters
from fastdata.remote.prefetch import RemotePass
from fastdata.transforms.compile import Recipe


class DALIPath(NativePath):
    """Opens a dataset when it is first needed, and starts passes over it.

    Args:
        images: The dataset.
        recipe: What is done to its images.
        config: The loader's arguments.
        options: How DALI runs.
        batch_size: The most samples of a batch, as far as is known.

    Raises:
        ModuleNotFoundError: DALI is not installed.
        UsageError: There is no such GPU, or DALI cannot honour a setting.
    """

    learns = False

    def __init__(
        self,
        images: Images,
        recipe: Recipe,
        config: LoaderConfig,
        options: DALIOptions,
        batch_size: int,
    ) -> None:
        require_dali()
        _refuse_native_settings(images.options, config, options)
        super().__init__(images, recipe, config)
        number = options.device_id()
        self._device = torch.device("cpu") if number is None else torch.device("cuda", number)
        self._threads = max(config.num_workers, 1)
        self._graph = Graph(recipe.programs, options, self._threads, number)
        self._batch_size = batch_size
        self._runner: Runner | None = None

    def _pipeline(
        self,
        pool: BufferPool,
        engine: Engine | None,
        helpers: Executor,
        counters: Counters,
        remote: RemotePass | None,
    ) -> Pipeline:
        runner = self._runner
        if runner is None or not runner.alive:
            runner = Runner(self._graph, self._batch_size)
        if self._config.persistent_workers:
            self._runner = runner
        return DALIPipeline(
            self.source,
            self._settings,
            pool,
            engine,
            helpers,
            counters,
            remote,
            runner,
            self._threads,
            self._device,
        )

    def _place(self, pool: BufferPool) -> Callable[[torch.Tensor], torch.Tensor] | None:
        if self._device.type == "cpu":
            return super()._place(pool)

        def to_gpu(tensor: torch.Tensor) -> torch.Tensor:
            return tensor.to(self._device, non_blocking=True)

        return to_gpu


def _refuse_native_settings(
    dataset: ImageDataset, config: LoaderConfig, options: DALIOptions
) -> None:
    if dataset.dct_scaling:
        raise UsageError("dct_scaling=True is not for DALI", "Leave it out of the ImageDataset.")
    if dataset.seek_cache_file is not None or dataset.seek_cache_bytes:
        raise UsageError(
            "seek_cache_bytes= and seek_cache_file= are not for DALI, which uses no seek points",
            "Leave them out of the ImageDataset.",
        )
    if config.pin_memory and options.on_gpu:
        raise UsageError(
            f"pin_memory=True, but device is {options.device!r}: batches are on the GPU already",
            "Leave one of them out.",
        )
