"""What Accelerate wants to know of a loader that it leaves alone.

``accumulate`` steps at the end of a loader, and ``gather_for_metrics`` leaves out what was
repeated to fill the last batches. Accelerate's own loaders tell its `GradientState` where they are;
so does a pass here, by the same two attributes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

from fastdata.plan.sharding import Epoch


class Told(Iterator[Any]):
    """A pass whose place Accelerate can ask for; all else is the pass's own.

    Args:
        batches: The pass.
        state: Accelerate's ``GradientState``.
        length: Batches that it has.
        remainder: Samples that the last batches of all ranks have together, without what was
            repeated; 0 where they are full.

    Attributes:
        end_of_dataloader: Whether the last batch has been taken.
        remainder: As given.
    """

    def __init__(self, batches: Iterator[Any], state: Any, length: int, remainder: int) -> None:
        self._batches = batches
        self._state = state
        self._left = length
        self.remainder = remainder
        self.end_of_dataloader = False
        state._add_dataloader(self)  # by a weak reference

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)

    def __len__(self) -> int:
        return len(self._batches)  # type: ignore[arg-type]

    def __next__(self) -> Any:
        try:
            batch = next(self._batches)
        except StopIteration:
            self._state._remove_dataloader(self)
            raise
        except Exception:  # an error in a batch's place
            self._count()
            raise
        self._count()
        return batch

    def _count(self) -> None:
        self._left -= 1
        self.end_of_dataloader = self._left == 0

    def close(self) -> None:
        """As the pass's own."""
        self._state._remove_dataloader(self)
        with suppress(AttributeError):
            self._batches.close()  # type: ignore[attr-defined]


def taking_apart() -> str | None:
    """The function of Accelerate's that, by asking for a loader's parts, makes one of torch's.

    ``Accelerator.prepare`` asks before; these do not.
    """
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_FRAMES):
        if frame is None:
            break
        if frame.f_globals.get("__name__") == "accelerate.data_loader":
            name = frame.f_code.co_name
            if name in ("skip_first_batches", "prepare_data_loader"):
                return name
        frame = frame.f_back
    return None


#: Frames from an attribute to the function that asks for it: a comprehension, a DeviceLoader.
_FRAMES = 4


def told(batches: Iterator[Any], plan: Epoch) -> Iterator[Any]:
    """The pass, such that Accelerate knows of it if this process has an ``Accelerator``."""
    module = sys.modules.get("accelerate.state")
    if module is None or not module.GradientState._shared_state:
        return batches
    step = plan.world_size * plan.batch_size
    remainder = 0 if plan.drop_last else (plan.samples - plan.start) % step
    return Told(batches, module.GradientState(), len(plan), remainder)
