"""Transforms that differ: `Schedule`, from epoch to epoch; `BySize`, with the size of a batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from fastdata.errors import UsageError
from fastdata.plan.sharding import HasEpoch
from fastdata.transforms import checks

#: (height, width) of the batch whose transform is asked for.
_SIZE: ContextVar[tuple[int, int] | None] = ContextVar("size", default=None)


@contextmanager
def of_size(size: tuple[int, int] | None) -> Iterator[None]:
    """Make a `BySize` the transform of a size, (width, height), inside the block."""
    before = _SIZE.set(None if size is None else (size[1], size[0]))
    try:
        yield
    finally:
        _SIZE.reset(before)


def present_size() -> tuple[int, int] | None:
    """Return the (height, width) of `of_size`; None outside of its block."""
    return _SIZE.get()


class Varying(ABC):
    """A transform that a loader chooses for each epoch or batch; it is all of a dataset's."""

    #: The argument of its function.
    goes_by = "epoch"
    #: Whether there is a transform now.
    is_chosen = True

    def __init__(self, make: Callable[[Any], Callable[..., Any]]) -> None:
        checks.callables(type(self).__name__, (make,), classes=True)
        self._make = make
        self._made: dict[Any, Callable[..., Any]] = {}

    def _transform(self, key: Any, words: str) -> Callable[..., Any]:
        """Return the transform of an epoch or a size; made once."""
        if key not in self._made:
            made = self._make(key)
            checks.callables(f"{type(self).__name__}, {words}", (made,))
            self._made[key] = made
        return self._made[key]

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._make!r})"

    @property
    @abstractmethod
    def current(self) -> Callable[..., Any]:
        """The transform as it is now."""

    def __call__(self, *sample: Any) -> Any:
        """Call the present transform with an image, or with an image and its targets."""
        return self.current(*sample)


class Schedule(HasEpoch, Varying):
    """The transform of each epoch: a size, a strength, or the whole recipe as its function.

    It is all of a dataset's ``transform``, and no other transform holds it. `fastdata.DataLoader`
    names the epoch when a pass begins: it counts up by itself, ``set_epoch`` sets it, and a loaded
    state continues it. Passes under way keep the transform that they began with;
    threads stay, and memory where it is large enough. With torch's loader, call
    :meth:`set_epoch`.

    Args:
        make: Called with an epoch's number, from 0; returns its transform, of any kind that a
            dataset takes.

    Attributes:
        epoch: The epoch named last; 0 before.

    Example:
        ::

            def train(epoch):
                return Compose([RandomResizedCrop(160 if epoch < 12 else 192), Normalize(...)])

            loader = DataLoader(ImageDataset(path, transform=Schedule(train)), 256, shuffle=True)
    """

    def __init__(self, make: Callable[[int], Callable[[Any], Any]]) -> None:
        super().__init__(make)

    @property
    def current(self) -> Callable[[Any], Any]:
        """The epoch's transform; made once.

        Raises:
            UsageError: The function returned something that cannot be called.
        """
        if self.epoch not in self._made:
            self._made.clear()
        return self._transform(self.epoch, f"in epoch {self.epoch}")

    def __repr__(self) -> str:
        return f"{super().__repr__()}, in epoch {self.epoch}"


class BySize(Varying):
    """The transform of each size of batches, as `fastdata.samplers.AspectRatioBatches` gives them.

    It is all of a dataset's ``transform`` or ``transforms``. The batch names the size: in a
    `fastdata.DataLoader`, and in torch's own where its dataset is a `fastdata.ImageDataset`.

    Args:
        make: Called with a size, (height, width) as transforms take it; returns its transform, of
            any kind that a dataset takes.

    Example:
        ::

            def cover(size):
                return Compose([ResizeKeepRatio(size), RandomCrop(size), RandomHorizontalFlip()])

            dataset = ImageDataset(path, transform=BySize(cover))
            batches = AspectRatioBatches(dataset, 32, sizes=512)
            loader = DataLoader(dataset, batch_sampler=batches)
    """

    goes_by = "size"

    @property
    def is_chosen(self) -> bool:  # type: ignore[override]
        """Whether a batch has named its size."""
        return present_size() is not None

    @property
    def current(self) -> Callable[..., Any]:
        """The transform of the batch's size; made once.

        Raises:
            UsageError: No batch has named a size, or there is no transform for it.
        """
        size = present_size()
        if size is None:
            raise UsageError(
                "a BySize makes the transform of a batch's size, and no batch has one here",
                "Give the loader batch_sampler=fastdata.samplers.AspectRatioBatches(dataset, …, "
                "sizes=…). A Subset or ConcatDataset needs fastdata.DataLoader, as well.",
            )
        return self._transform(size, f"for {size}")
