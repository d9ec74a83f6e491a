"""`Schedule`: another transform in each epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastdata.transforms import checks


class Schedule:
    """The transform of each epoch: a size, a strength, or the whole recipe as its function.

    It is all of a dataset's ``transform``, and no other transform holds it. `fastdata.DataLoader`
    names the epoch when a pass begins: it counts up by itself, ``set_epoch`` sets it, and with a
    state that was loaded it goes on. Passes under way keep the transform that they began with;
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
        checks.callables("Schedule", (make,), classes=True)
        self._make = make
        self._made: tuple[int, Callable[[Any], Any]] | None = None
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch whose transform it is from now on."""
        self.epoch = epoch

    @property
    def current(self) -> Callable[[Any], Any]:
        """The epoch's transform; made once.

        Raises:
            UsageError: The function returned something that cannot be called.
        """
        if self._made is None or self._made[0] != self.epoch:
            made = self._make(self.epoch)
            checks.callables(f"Schedule, in epoch {self.epoch}", (made,))
            self._made = self.epoch, made
        return self._made[1]

    def __call__(self, image: Any) -> Any:
        """Call the epoch's transform with an image."""
        return self.current(image)

    def __repr__(self) -> str:
        return f"Schedule({self._make!r}), in epoch {self.epoch}"
