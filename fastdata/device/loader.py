"""`DeviceLoader`: any loader's batches on an accelerator, sent while the step before them runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from fastdata.device.delivery import DeviceIterator, Tracker, destination
from fastdata.device.static import StaticMemory
from fastdata.errors import UsageError, warn
from fastdata.text import class_name

__all__ = ["DeviceLoader"]


class DeviceLoader:
    """A loader whose batches are on a device, ready when they are asked for.

    The next batches are copied on a stream of their own while the step runs: as bytes, if that is
    what the loader gives, and normalised on the device in one pass. A batch may be used on the
    stream that is current when it is taken, like any tensor made there: nothing has to be
    synchronised, its memory is not used again before work queued on it is done, and the same
    memory serves every epoch.

    Batches that are not in page-locked memory are copied into some first, which costs the calling
    thread that copy: give the loader ``pin_memory=True``.

    The loader's attributes (``dataset``, ``batch_size``, ``sampler``, ``stats``, ``explain``, …)
    are this one's, too. Its ``stats()`` count what was sent ahead as delivered.

    Args:
        loader: Gives batches: tensors, or lists, tuples and mappings of any depth that hold
            tensors; what else is in them (strings, numbers) stays as it is. It must not write
            into a batch that it has given.
        device: "cuda" (also of AMD), "cuda:1", "xpu", …: any that `torch.accelerator` finds; or
            "cpu". On the CPU and on "mps" the same is done without streams. A device without a
            number is the current one when a pass begins.
        dtype: "float32", "float16" or "bfloat16" (or torch's): uint8 images, N x 3 x H x W, are
            made ``(value / 255 - mean) / std`` of that dtype, computed in float32. None: float32
            where ``mean`` or ``std`` is given, and else they stay bytes.
        mean: Three values in units of 0 to 1; None for 0.
        std: Three values in units of 0 to 1; None for 1.
        channels_last: Whether images (N x 3 x H x W, uint8 or floats) come in channels-last
            memory; else contiguous.
        prefetch: Batches that are sent ahead, at least 1; each has its memory on the device.
        batch_transform: Called with a batch's elements, on the device, when it is taken; what it
            returns is the batch (MixUp, CutMix). Over a `fastdata.DataLoader` on its native path,
            what it draws is a function of (``seed``, epoch, batch), as of the loader's own.
        static: Whether every batch, of all passes, is in the same memory, for a CUDA graph that is
            captured once and replayed over each: the tensors are the same objects, and the batch
            before is gone when the next is taken. Batches have the shapes of the first one; a
            smaller last one takes the first rows.

    Raises:
        UsageError: Arguments contradict each other, or there is no such device. When iterating:
            images are to be normalised, but the batches have none of uint8; a batch is asked for
            while a CUDA graph is captured; or ``static`` batches are not alike.

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
        batch_transform: Callable[..., Any] | None = None,
        static: bool = False,
    ) -> None:
        self._where = destination(device, dtype, mean, std, channels_last, prefetch)
        self._batch_transform = batch_transform
        self._static = StaticMemory() if static else None
        self._state: _LoaderTracker | None = None
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)
        self._state = tracker = _LoaderTracker(self.loader)
        return DeviceIterator(batches, self._where, tracker, self._batch_transform, self._static)

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        # While it is copied or unpickled there is no loader yet.
        if name.startswith("__") or "loader" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.loader, name)

    def __getstate__(self) -> dict[str, Any]:
        static = None if self._static is None else StaticMemory()
        return {**self.__dict__, "_state": None, "_static": static}

    def set_epoch(self, epoch: int) -> None:
        """Names the epoch that the next ``iter`` begins, to the loader or else its samplers."""
        self._state = None
        if hasattr(self.loader, "set_epoch"):
            self.loader.set_epoch(epoch)
            return
        batch_sampler: Any = getattr(self.loader, "batch_sampler", None)
        samplers = (self.loader, batch_sampler)
        for sampler in (batch_sampler, *(getattr(one, "sampler", None) for one in samplers)):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The loader's own state after the last batch that the consumer was given.

        What was sent ahead is not counted. A loader that has no state is a warning and an empty
        dict, as with `fastdata.DataLoader.state_dict`.
        """
        if self._state is not None and self._state.valid:
            return dict(self._state.reached)
        if hasattr(self.loader, "state_dict"):
            return dict(self.loader.state_dict())
        warn(
            "where this loader is cannot be saved, the epoch would begin anew: "
            f"{class_name(self.loader)} has no state_dict()"
        )
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state with the next ``iter``.

        Raises:
            UsageError: It is not the loader's; or the loader can have none.
        """
        if hasattr(self.loader, "load_state_dict"):
            self._state = None
            self.loader.load_state_dict(state)
        elif state:
            raise UsageError(
                f"{class_name(self.loader)} has no load_state_dict(), and a state was given",
                "Wrap a loader that can resume, as fastdata.DataLoader.",
            )

    def __repr__(self) -> str:
        return f"<fastdata.DeviceLoader to {self._where.describe()}, of {self.loader!r}>"


class _LoaderTracker(Tracker):
    """Keeps what belongs to the batch that the consumer has now.

    Attributes:
        valid: Whether ``reached`` is where the consumer is.
        reached: The state that the loader had when it gave that batch.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self.valid = self._has_state = _keeps_state(loader)
        # A fastdata.DataLoader's draws for a batch are functions of (seed, epoch, batch).
        self._seeded: Callable[[], AbstractContextManager[None]]
        self._seeded = getattr(loader, "_seeded", nullcontext)
        self._drawing: AbstractContextManager[None]
        self.reached, self._drawing = self.mark()

    def mark(self) -> Any:
        return self._loader.state_dict() if self._has_state else {}, self._seeded()

    def reach(self, mark: Any) -> None:
        self.reached, self._drawing = mark

    def end(self) -> None:
        self.valid = False  # the loader's own is the next epoch's

    def drawing(self) -> AbstractContextManager[None]:
        return self._drawing


def _keeps_state(loader: Any) -> bool:
    """Whether a loader can be asked for its state after each batch."""
    can = getattr(loader, "can_resume", None)
    return hasattr(loader, "state_dict") if can is None else bool(can)
