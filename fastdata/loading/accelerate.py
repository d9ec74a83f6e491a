"""Accelerate: loaders that it leaves unchanged, and the progress of their passes.

``accumulate`` steps at the end of a loader, and ``gather_for_metrics`` drops samples that were
repeated to fill the last batches. Accelerate's own loaders report their progress to its
`GradientState`. A pass here does the same, by the same two attributes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType
from typing import Any, Generic, TypeVar

import torch.utils.data

from fastdata.errors import SlowPathWarning, UsageError, warn
from fastdata.plan.sharding import Epoch

T = TypeVar("T", covariant=True)

_Torchs = torch.utils.data.DataLoader
_HINT = 'Give the DataLoader shard="auto" and device=accelerator.device: it is left alone.'


class LeftAlone(torch.utils.data.DataLoader[T], Generic[T]):
    """Loader that Accelerate leaves unchanged if it shards; else a warning or an error.

    Attributes:
        require_native: Whether a slower path is an error.
    """

    require_native = False
    _ranks: tuple[int, int] | None = None
    _native: Any = None
    _warned_taken_apart = False

    @property
    def _is_accelerate_prepared(self) -> bool:
        """Whether Accelerate's ``prepare``, which asks for this, leaves this loader alone.

        Of a loader that does not shard it takes the attributes for one of torch's.
        """
        if self._ranks is None:
            self._warn_taken_apart()
        return self._ranks is not None

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, value: bool) -> None:
        """Ignore Accelerate's mark of loaders that it has seen."""

    def _warn_taken_apart(self) -> None:
        if self._native is None or self._warned_taken_apart:
            return
        self._warned_taken_apart = True
        lost = "Accelerate rebuilds this loader as one of torch's, which decodes in Python"
        if self.require_native:
            raise UsageError(f"require_native=True, but {lost}", _HINT)
        warn(f"{lost}. {_HINT}", SlowPathWarning)

    @property
    def multiprocessing_context(self) -> Any:
        """As torch's. Accelerate's functions read it when they rebuild a loader."""
        asking = taking_apart()
        if asking == "prepare_data_loader":
            self._warn_taken_apart()
        elif asking is not None and self._native is not None:
            raise UsageError(
                f"accelerate.{asking} rebuilds this loader as one of torch's, which decodes in "
                "Python and draws other samples and crops",
                "Write loader = loader.skip_first_batches(n), which decodes none of them; with "
                "transformers' Trainer, TrainingArguments(ignore_data_skip=True).",
            )
        return super().multiprocessing_context

    @multiprocessing_context.setter
    def multiprocessing_context(self, value: Any) -> None:
        _Torchs.multiprocessing_context.fset(self, value)  # type: ignore[attr-defined]


class Told(Iterator[Any]):
    """Pass that reports its progress to Accelerate; other attributes are the pass's own.

    Args:
        batches: The pass.
        state: Accelerate's ``GradientState``.
        length: Number of its batches.
        remainder: Samples in the last batches of all ranks together, without repeated ones; 0
            if the batches are full, -1 if it is not known.

    Attributes:
        end_of_dataloader: Whether the last batch has been taken.
        remainder: The argument.
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
        """Close the pass."""
        self._state._remove_dataloader(self)
        with suppress(AttributeError):
            self._batches.close()  # type: ignore[attr-defined]


def taking_apart() -> str | None:
    """Return the Accelerate function that is rebuilding a loader from its attributes, or None.

    ``Accelerator.prepare`` first asks whether it may; these functions do not.
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


#: Most frames between an attribute and its reader: a comprehension, a DeviceLoader.
_FRAMES = 4


def told(batches: Iterator[Any], plan: Epoch | None) -> Iterator[Any]:
    """Return the pass, tracked by Accelerate if this process has an ``Accelerator``.

    Without a plan, the samples of its last batches are not known.
    """
    module = sys.modules.get("accelerate.state")
    if module is None or not module.GradientState._shared_state:
        return batches
    if plan is None:
        return Told(batches, module.GradientState(), len(batches), -1)  # type: ignore[arg-type]
    step = plan.world_size * plan.batch_size
    remainder = 0 if plan.drop_last else (plan.samples - plan.start) % step
    return Told(batches, module.GradientState(), len(plan), remainder)
