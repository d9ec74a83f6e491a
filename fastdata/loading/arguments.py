"""Arguments of a loader, checked."""

from __future__ import annotations

import inspect
import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, SupportsIndex

import torch
import torch.utils.data
from torch.utils.data import Sampler, default_collate
from torch.utils.data._utils import collate

from fastdata.device.delivery import destination
from fastdata.device.transfer import is_asynchronous
from fastdata.errors import UsageError
from fastdata.loading.collate import fast_collate
from fastdata.loading.fields.names import require_names
from fastdata.loading.samplers import find_ranks, own_ranks
from fastdata.plan.order import AUTO, OrderLike, as_order
from fastdata.transforms import timm
from fastdata.transforms.identity import changed
from fastdata.transforms.outcomes import Refusal

if TYPE_CHECKING:
    from fastdata.loading.fields.readable import Readable
    from fastdata.transforms.recipe import Recipe

#: Scripts may assign `fastdata.DataLoader` to torch's name.
TorchLoader = torch.utils.data.DataLoader

#: Torch's arguments that are true or false, or None for false: it takes "no" for True.
_SWITCHES = ("shuffle", "pin_memory", "drop_last", "persistent_workers", "in_order")

_FUNCTION: tuple[Any, str] = Callable | None, "Give a function, or None."
#: Types of arguments.
_KINDS: dict[str, tuple[Any, str]] = {
    "collate_fn": _FUNCTION,
    "batch_transform": _FUNCTION,
    "worker_init_fn": _FUNCTION,
    "num_workers": (SupportsIndex, 'Give a whole number, or "auto".'),
    "prefetch_factor": (SupportsIndex | None, "Give a whole number of batches, or None."),
    "generator": (torch.Generator | None, "Give a torch.Generator, or None."),
}

#: Values of ``on_error``.
ON_ERROR = ("raise", "skip", "drop", "zero")


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Arguments of one loader, as `fastdata.DataLoader` documents them; checked.

    ``ranks`` are this rank and the world size; None where the loader is not asked to shard. Raise
    UsageError for arguments that suit no dataset.
    """

    batch_size: int | None = 1
    shuffle: bool | None = None
    sampler: Sampler[Any] | Iterable[Any] | None = None
    batch_sampler: Sampler[list[Any]] | Iterable[list[Any]] | None = None
    num_workers: Any = 0
    collate_fn: Callable[[list[Any]], Any] | None = None
    pin_memory: bool = False
    drop_last: bool = False
    timeout: float = 0.0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None
    generator: torch.Generator | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    pin_memory_device: str = ""
    in_order: bool = True
    order: OrderLike | None = None
    seed: int | None = None
    shard: str | Sequence[int] | None = None
    device: str | torch.device | None = None
    fields: Sequence[str] | None = None
    on_error: str = "raise"
    batch_transform: Callable[[Any], Any] | None = None
    require_native: bool = False
    ranks: tuple[int, int] | None = field(init=False)

    def __post_init__(self) -> None:
        if self.order not in (None, AUTO):
            self._settle("order", as_order(self.order))
        if self.on_error not in ON_ERROR:
            raise UsageError(f"on_error={self.on_error!r}", f"Give one of {', '.join(ON_ERROR)}.")
        for name, (kind, hint) in _KINDS.items():
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise UsageError(f"{name}={value!r}", hint)
        for name in ("require_native", *_SWITCHES):
            value = getattr(self, name)
            if value not in (True, False) and (value is not None or name == "require_native"):
                raise UsageError(f"{name}={value!r}", "Give True or False.")
        self._settle("num_workers", operator.index(self.num_workers))
        for name in ("sampler", "batch_sampler"):
            value = getattr(self, name)
            iterable = hasattr(value, "__iter__") or hasattr(value, "__getitem__")
            if value is not None and not iterable:
                hint = "Give a Sampler; or a list of numbers, or as batch_sampler of such lists."
                raise UsageError(f"{name}={value!r} cannot be iterated", hint)
        if self.fields is not None:
            require_names(self.fields, "Give a tuple of names of fields, each at most once.")
        if self.device is not None and is_asynchronous(destination(self.device).device):
            self._settle("pin_memory", True)
        self._settle("ranks", find_ranks(self.shard))

    def _settle(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def batched(self) -> bool:
        """Whether samples are put into batches."""
        return self.batch_size is not None or self.batch_sampler is not None

    @property
    def prefetch(self) -> int:
        """Number of batches to prefetch."""
        if self.num_workers == 0:
            return 0
        return 2 if self.prefetch_factor is None else max(self.prefetch_factor, 1)

    @property
    def host_transform(self) -> Callable[[Any], Any] | None:
        """The function that is called with a batch on the host, rather than on a device."""
        return self.batch_transform if self.device is None else None

    @property
    def collates_as_torch(self) -> bool:
        """Whether the ``collate_fn`` is torch's own, or `fast_collate`."""
        return self.collate_fn in (None, default_collate, fast_collate)

    @property
    def mixes_bytes(self) -> bool:
        """Whether the ``collate_fn`` mixes images, and is called with the samples of a batch."""
        return timm.mixes_bytes(self.collate_fn)

    @property
    def why_not_collated(self) -> str:
        """Why a ``collate_fn`` cannot be called with natively decoded samples; "" if it can."""
        if self.device is not None:
            return "device= normalises whole batches"
        if self.fields is not None:
            return "fields= names what batches have"
        return "on_error='zero' adds to batches" if self.on_error == "zero" else ""

    def collates_bytes(self, recipe: Recipe | Refusal, images: Readable) -> bool:
        """Return whether the ``collate_fn`` is timm's, and samples are as it expects."""
        if isinstance(recipe, Refusal) or recipe.form is not None:
            return False
        if images.fields != ("image", "label") or images.keys or not recipe.programs:
            return False
        if self.mixes_bytes and self.fields is not None:
            return False
        output = recipe.programs[0].output
        if output.dtype != "uint8" or output.as_pil:
            return False
        return self.mixes_bytes or timm.collates_bytes(self.collate_fn)

    def own_collate(self, images: Readable) -> Callable[[list[Any]], Any] | None:
        """Return the user's ``collate_fn``, if the native path calls it with samples."""
        known = self.collates_as_torch or self.collates_bytes(images.recipe, images)
        return None if known else self.collate_fn

    def changed_collation(self) -> str:
        """Say in a clause which name of torch's collation was changed, where it is used."""
        return changed(collate) if self.collates_as_torch else ""

    def native_only(self) -> Iterator[str]:
        """Yield the arguments that only the native path can honour, as they were given."""
        if self.require_native:
            yield "require_native=True"
        if self.on_error != "raise":
            yield f"on_error={self.on_error!r}"
        if self.fields is not None:
            yield f"fields={self.fields!r}"
        if self.host_transform is not None:
            yield f"batch_transform={self.batch_transform!r}"

    def check_ranks(self) -> None:
        """Raise UsageError if ``shard="auto"`` no longer resolves to the same ranks."""
        if not isinstance(self.shard, str):
            return
        before, now = self.ranks or (0, 1), own_ranks()
        if before != now:
            raise UsageError(
                'shard="auto": the loader was made by rank {} of {}, and this is now '
                "rank {} of {}".format(*before, *now),
                "Make the loader after torch.distributed.init_process_group.",
            )


def torchs(arguments: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the arguments that torch's constructor takes."""
    known = inspect.signature(TorchLoader).parameters
    return {name: value for name, value in (arguments | changes).items() if name in known}


def let_torch_refuse(dataset: Any, arguments: dict[str, Any]) -> None:
    """Raise torch's own error for arguments that torch refuses, too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            TorchLoader(dataset, **torchs(arguments))
        except ValueError as error:
            raise error from None
        except Exception:  # of a type that it does not check
            return
