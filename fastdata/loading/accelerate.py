"""Accelerate: loaders that it leaves unchanged, and the progress of their passes.

``accumulate`` steps at the end of a loader, and ``gather_for_metrics`` drops samples that were
repeated to fill the last batches. Accelerate's own loaders report their progress to its
`GradientState`. A pass here does the same, by the same two attributes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from threading import Lock
from types import FrameType
from typing import Any, Generic, NoReturn, TypeVar

import torch.utils.data

from fastdata.device.delivery import cannot_pickle
from fastdata.errors import SlowPathWarning, UsageError, warn

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


class Pass(Iterator[Any]):
    """One pass over a loader, which begins with its first batch.

    Until then it follows the loader: where `set_epoch` or `load_state_dict` name another place, it
    begins there. A loader that shards reports the pass to Accelerate, if the process has an
    ``Accelerator``. Other attributes are those of the iterator inside.

    Args:
        loader: The `fastdata.DataLoader`.

    Attributes:
        end_of_dataloader: Whether the last batch has been taken.
        remainder: Samples in the last batches of all ranks together, without repeated ones; 0
            if the batches are full, -1 if it is not known.
    """

    end_of_dataloader = False
    remainder = _left = -1

    def __init__(self, loader: Any) -> None:
        self._loader, self._begun, self._beginning = loader, False, Lock()
        self._gradients: Any = None
        self._open()
        module = sys.modules.get("accelerate.state") if loader._shares else None
        if module is not None and module.GradientState._shared_state:
            self._gradients = module.GradientState()
            self._measure()
            self._gradients._add_dataloader(self)  # by a weak reference

    def _open(self) -> None:
        """Prepare the batches from where the loader is to begin."""
        self._start, self._progress, self._batches = self._loader._open_pass()
        if self._gradients is not None:
            self._measure()

    def _measure(self) -> None:
        self._left, self.remainder = len(self), self._loader._remainder(self._start)

    def _begin(self) -> None:
        with self._beginning:
            if self._begun:
                return
            loader = self._loader
            loader._follow_samplers()
            if loader._next() is not self._start:
                self._close_batches()
                self._open()
            loader._begin_pass(self._start, self._progress)
            self._begun, self._loader = True, None

    def __getattr__(self, name: str) -> Any:
        if name == "_batches":
            raise AttributeError(name)
        return getattr(self._batches, name)

    def __len__(self) -> int:
        return len(self._batches)

    def __reduce__(self) -> NoReturn:
        raise cannot_pickle()

    def __next__(self) -> Any:
        if not self._begun:
            self._begin()
        try:
            batch = next(self._batches)
        except StopIteration:
            self._end()
            raise
        except Exception:  # an error in a batch's place
            self._count()
            raise
        self._count()
        return batch

    def _count(self) -> None:
        self._left -= 1
        self.end_of_dataloader = self._left == 0

    def _end(self) -> None:
        if self._gradients is not None:
            self._gradients._remove_dataloader(self)
            self._gradients = None

    def ready(self) -> bool:
        """Return whether ``next`` would return at once, as far as it is known."""
        ready = getattr(self._batches, "ready", None)
        return ready is None or bool(ready())

    def close(self) -> None:
        """Close the pass."""
        self._end()
        self._close_batches()

    def _close_batches(self) -> None:
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()


class NoBatches(Iterator[Any]):
    """The rest of an epoch that has ended."""

    def __len__(self) -> int:
        return 0

    def __next__(self) -> NoReturn:
        raise StopIteration


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
