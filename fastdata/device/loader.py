"""`DeviceLoader`: any loader's batches on an accelerator, copied while the previous step runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from fastdata.device.delivery import DeviceIterator, Tracker, destination
from fastdata.errors import UsageError, warn
from fastdata.text import class_name

__all__ = ["DeviceLoader"]


class DeviceLoader:
    """Loader whose batches are on a device, ready when the consumer takes them.

    A separate stream copies the next batches while a step runs. Batches of bytes are copied as
    bytes, and normalised on the device in one pass. The consumer may use a batch on its current
    stream without synchronising. The batch's memory is reused only after the work queued on it,
    and the same memory serves every epoch.

    Batches outside page-locked memory are first copied into it by the calling thread. Give the
    loader ``pin_memory=True`` to avoid that.

    The loader's attributes (``dataset``, ``batch_size``, ``sampler``, ``stats``, ``explain``, …)
    are available here, too. Its ``stats()`` count prefetched batches as delivered.

    Args:
        loader: Iterable of batches: tensors, or lists, tuples and mappings of any depth that
            hold tensors. Other values (strings, numbers) stay unchanged. It must not write
            into a batch that it has returned.
        device: "cuda" (also for AMD), "cuda:1", "xpu", …: any that `torch.accelerator` finds; or
            "cpu". The CPU and "mps" work without streams. A device without a number is the
            current one when a pass begins.
        dtype: "float32", "float16" or "bfloat16" (or torch's): uint8 images, N x 3 x H x W,
            become ``(value / 255 - mean) / std`` in that dtype, computed in float32. None means
            float32 if ``mean`` or ``std`` is given; else images stay bytes.
        mean: Three values in units of 0 to 1; None for 0.
        std: Three values in units of 0 to 1; None for 1.
        channels_last: Whether images (N x 3 x H x W, uint8 or floats) are in channels-last
            memory; else contiguous.
        prefetch: Batches to prefetch, at least 1; each occupies memory on the device.
        batch_transform: Called with each batch, on the device, when the consumer takes it;
            returns the batch (MixUp, CutMix). Over a `fastdata.DataLoader` on its native
            path, its draws are a function of (``seed``, epoch, batch), as for the loader's own.

    Raises:
        UsageError: Arguments contradict each other, or there is no such device. When iterating:
            the batches have no uint8 images to normalise.

    Example:
        ::

            loader = DeviceLoader(loader, "cuda", dtype="bfloat16", mean=mean, std=std)
            for images, labels in loader:
                loss = criterion(model(images), labels)
    """

    def __init__(
        self,
        loader: Iterable[Any],
        device: str | torch.device = "cuda",
        *,
        dtype: str | torch.dtype | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        channels_last: bool = True,
        prefetch: int = 2,
        batch_transform: Callable[[Any], Any] | None = None,
    ) -> None:
        self._where = destination(device, dtype, mean, std, channels_last, prefetch)
        self._batch_transform = batch_transform
        # The tracker of the pass that delivered the last batch, and the loader's state there; empty
        # where the loader's own state is the consumer's.
        self._reached: dict[Any, Any] = {}
        self.loader: Any = loader

    def __iter__(self) -> Iterator[Any]:
        tracker = _LoaderTracker(self.loader, self._reached)

        def transfer(batches: Iterator[Any]) -> Iterator[Any]:
            return DeviceIterator(batches, self._where, tracker, self._batch_transform)

        batches = iter(self.loader)
        # Batches that were prefetched here are not taken yet: a pass that reports to Accelerate
        # reports those behind the transfer. Wrappers pass attributes on, types do not.
        through = getattr(type(batches), "reported_through", None)
        batches = transfer(batches) if through is None else through(batches, transfer)
        self._reached.clear()
        return batches

    def __len__(self) -> int:
        return len(self.loader)

    def __getattr__(self, name: str) -> Any:
        # Copying and unpickling look up attributes before `loader` exists.
        if name.startswith("__") or "loader" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.loader, name)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_reached": dict(self._reached)}

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next ``iter``, on the loader or else on its samplers."""
        if hasattr(self.loader, "set_epoch"):
            self.loader.set_epoch(epoch)
        else:
            batch_sampler: Any = getattr(self.loader, "batch_sampler", None)
            samplers = (self.loader, batch_sampler)
            for sampler in (batch_sampler, *(getattr(one, "sampler", None) for one in samplers)):
                if hasattr(sampler, "set_epoch"):
                    sampler.set_epoch(epoch)
        self._reached.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's own state after the last batch that the consumer took.

        Prefetched batches do not count. A loader without a state causes a warning and an empty
        dict, as in `fastdata.DataLoader.state_dict`.
        """
        for state in self._reached.values():
            return dict(state)
        if hasattr(self.loader, "state_dict"):
            return dict(self.loader.state_dict())
        warn(
            "cannot save this loader's position, so resuming restarts the epoch: "
            f"{class_name(self.loader)} has no state_dict()"
        )
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state of the loader's with the next ``iter``; {} of one without states.

        Raises:
            UsageError: The loader has no states.
        """
        if hasattr(self.loader, "load_state_dict"):
            self.loader.load_state_dict(state)
            self._reached = {}  # passes under way do not count
        elif state != {}:
            raise UsageError(
                f"a state needs a loader that resumes, and {class_name(self.loader)} has no "
                "load_state_dict()",
                "Give the loader that saved it; or leave load_state_dict out, which restarts the "
                "epoch.",
            )

    def __repr__(self) -> str:
        return f"<fastdata.DeviceLoader to {self._where.describe()}, of {self.loader!r}>"


class _LoaderTracker(Tracker):
    """Tracker of the loader's state and seed for the consumer's current batch.

    ``reached`` is empty where the loader's own state is the consumer's: before the first batch, and
    after the last one.
    """

    def __init__(self, loader: Any, reached: dict[Any, Any]) -> None:
        self._loader, self._reached, self._has_state = loader, reached, _keeps_state(loader)
        # A fastdata.DataLoader's draws for a batch are functions of (seed, epoch, batch).
        self._seeded: Callable[[], AbstractContextManager[None]]
        self._seeded = getattr(loader, "_seeded", nullcontext)
        self._drawing: AbstractContextManager[None] = nullcontext()

    def mark(self) -> Any:
        # A state between two passes would settle the next one's seed.
        own = not self._has_state or getattr(self._loader, "_current", True) is None
        return None if own else self._loader.state_dict(), self._seeded()

    def reach(self, mark: Any) -> None:
        state, self._drawing = mark
        self._reached.clear()
        if state is not None:
            self._reached[id(self)] = state

    def end(self) -> None:
        self._reached.pop(id(self), None)

    def drawing(self) -> AbstractContextManager[None]:
        return self._drawing


def _keeps_state(loader: Any) -> bool:
    """Return whether a loader has a state after each batch."""
    can = getattr(loader, "can_resume", None)
    return hasattr(loader, "state_dict") if can is None else bool(can)
