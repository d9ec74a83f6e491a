"""Arguments of a loader, checked, and the path that it takes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, SupportsIndex

import torch
from torch.utils.data import default_collate
from torch.utils.data._utils import collate

from fastdata.device.delivery import destination
from fastdata.device.transfer import Destination, is_asynchronous
from fastdata.errors import UsageError
from fastdata.loading.collate import fast_collate
from fastdata.loading.fields.images import Readable, Unreadable
from fastdata.loading.fields.samples import BESIDES, SOURCE, require_names
from fastdata.loading.fields.targets import reader_of, require_still
from fastdata.loading.sampler import find_ranks, own_ranks
from fastdata.plan.order import AUTO, OrderLike, as_order
from fastdata.text import human_count
from fastdata.transforms import timm
from fastdata.transforms.compile import NO_IMAGE, Recipe
from fastdata.transforms.identity import changed
from fastdata.transforms.outcomes import Refusal, Unknown, without_fixed_size

#: Torch's arguments that are true or false, or None for false: it takes "no" for True.
_SWITCHES = ("shuffle", "pin_memory", "drop_last", "persistent_workers", "in_order")

#: Values of ``on_error``.
ON_ERROR = ("raise", "skip", "drop", "zero")

_PATHS = {
    "native": "native: {}",
    "workers": "workers: fastdata decodes in {}",
    "torch": "torch: torch's own loader, unchanged",
}


@dataclass(frozen=True)
class Choice:
    """Path that a loader takes, and the reason in words.

    ``native``: threads of this process; ``workers``: torch's worker processes, in which fastdata
    decodes; ``torch``: torch's loader as it is. ``hint`` leads to the native path. ``avoidable``:
    the dataset's images need not take this slower path.
    """

    path: str
    reason: str
    hint: str = ""
    images: Readable | None = None
    recipe: Recipe | None = None
    where: Destination | None = None
    avoidable: bool = True

    def slow_path(self) -> str:
        """Return the warning for images that could take the native path, and do not."""
        words = (
            f"this DataLoader takes the {self.path} path, which is several times slower than the "
            f"native one: {self.reason}"
        )
        return f"{words}\n{self.hint}" if self.hint else words

    def refusal(self, what: str) -> UsageError:
        """Return the error for something that needs the native path."""
        why = f"{what} needs the native path, which is not taken: {self.reason}"
        return UsageError(why, self.hint)


@dataclass(frozen=True, kw_only=True)
class LoaderConfig:
    """Arguments of one loader, as `fastdata.DataLoader` documents them; checked.

    ``batched``: ``batch_size`` is not None. ``ranks`` are this rank and the world size; None where
    the loader is not asked to shard. Raise UsageError for arguments that suit no dataset.
    """

    order: OrderLike | None = None
    seed: int | None = None
    shard: str | Sequence[int] | None = None
    device: str | torch.device | None = None
    fields: Sequence[str] | None = None
    on_error: str = "raise"
    batch_transform: Callable[[Any], Any] | None = None
    require_native: bool = False
    # Those of torch's that the native path honours by itself.
    batched: bool = True
    num_workers: Any = 0
    collate_fn: Callable[[list[Any]], Any] | None = None
    pin_memory: bool = False
    timeout: float = 0.0
    worker_init_fn: Callable[[int], None] | None = None
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    # Those that are only checked here.
    shuffle: bool | None = None
    drop_last: bool = False
    in_order: bool = True
    generator: Any = None
    sampler: Any = None
    batch_sampler: Any = None
    ranks: tuple[int, int] | None = field(init=False)

    def __post_init__(self) -> None:
        if self.order not in (None, AUTO):
            object.__setattr__(self, "order", as_order(self.order))
        if self.on_error not in ON_ERROR:
            raise UsageError(f"on_error={self.on_error!r}", f"Give one of {', '.join(ON_ERROR)}.")
        for name in ("collate_fn", "batch_transform", "worker_init_fn"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                raise UsageError(f"{name}={value!r} cannot be called", "Give a function, or None.")
        for name in ("require_native", *_SWITCHES):
            value = getattr(self, name)
            if value not in (True, False) and (value is not None or name == "require_native"):
                raise UsageError(f"{name}={value!r}", "Give True or False.")
        if not isinstance(self.num_workers, SupportsIndex):
            hint = 'Give a whole number, or "auto".'
            raise UsageError(f"num_workers={self.num_workers!r}", hint)
        object.__setattr__(self, "num_workers", operator.index(self.num_workers))
        if not isinstance(self.prefetch_factor, SupportsIndex | None):
            hint = "Give a whole number of batches, or None."
            raise UsageError(f"prefetch_factor={self.prefetch_factor!r}", hint)
        if not isinstance(self.generator, torch.Generator | None):
            hint = "Give a torch.Generator, or None."
            raise UsageError(f"generator={self.generator!r}", hint)
        for name in ("sampler", "batch_sampler"):
            value = getattr(self, name)
            iterable = hasattr(value, "__iter__") or hasattr(value, "__getitem__")
            if value is not None and not iterable:
                hint = "Give a Sampler; or a list of numbers, or as batch_sampler of such lists."
                raise UsageError(f"{name}={value!r} cannot be iterated", hint)
        if self.fields is not None:
            require_names(self.fields, "Give a tuple of names of fields, each at most once.")
        if self.device is not None and is_asynchronous(destination(self.device).device):
            object.__setattr__(self, "pin_memory", True)
        object.__setattr__(self, "ranks", find_ranks(self.shard))

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

    def choose(self, images: Readable | Unreadable) -> Choice:
        """Return the path for a dataset that was recognised; raise UsageError if there is none."""
        choice = self._path(images)
        if choice.images is not None:
            self._require_fields(choice.images)
        if choice.path != "native":
            for argument in self._native_only():
                raise choice.refusal(argument)
        if self.device is None:
            return choice
        return _on_device(choice, self.device, self.fields)

    def changed_collation(self) -> str:
        """Say in a clause which name of torch's collation was changed, where it is used."""
        return changed(collate) if self._collates_as_torch else ""

    @property
    def _collates_as_torch(self) -> bool:
        """Whether the ``collate_fn`` is torch's own, or `fast_collate`."""
        return self.collate_fn in (None, default_collate, fast_collate)

    def _require_fields(self, images: Readable) -> None:
        """Raise `UsageError` if the dataset has not the fields that are asked for."""
        known = dict.fromkeys([*(field.name for field in images.schema), *BESIDES])
        known |= dict.fromkeys(images.fields)  # masks that are painted, too
        known |= dict.fromkeys([SOURCE] if images.sources else [])
        if self.on_error == "zero" and known.keys() & {"valid"} & {*(self.fields or images.fields)}:
            raise UsageError(
                "on_error='zero' adds 'valid' to batches, and the dataset has a field of that name",
                "Leave the field out, or take on_error='drop'.",
            )
        for part in images.parts or (images,):
            transform = None if part.joint else part.transform
            require_still(transform, self.fields or part.fields, part.schema, part.path)
        moved = [one.name for one in images.schema if one.kind == "mask" or one.format]
        for name in self.fields or ():
            if name not in known:
                hint = f"Give a tuple of {', '.join(map(repr, known))}, each at most once."
                if name == "valid":
                    hint = '"valid" comes by itself, with on_error="zero".'
                who = "the dataset"
                for source, part in zip(images.sources, images.parts, strict=False):
                    if all(one.name != name for one in part.schema):
                        who = f"source {source!r}"
                        break
                raise UsageError(f"fields={self.fields!r}: {who} has no {name!r}", hint)
            lacks = "image" not in (self.fields or ()) or name not in images.fields
            if name in moved and lacks and reader_of(images) is not None:
                raise UsageError(
                    f"fields={self.fields!r}: {name} follows the image of a sample in transforms=",
                    'Name both in fields= of the dataset; and "image" here, too.',
                )
            if name not in images.fields and images.is_image(name):
                raise UsageError(
                    f"fields={self.fields!r}: {name} is a field of images, and the dataset has no "
                    "transform for it",
                    f"Give fastdata.ImageDataset(..., transform={{..., {name!r}: ...}}) and "
                    "name it in its fields=.",
                )

    def _native_only(self) -> Iterator[str]:
        """Yield the given arguments that only the native path can honour."""
        if self.require_native:
            yield "require_native=True"
        if self.on_error != "raise":
            yield f"on_error={self.on_error!r}"
        if self.fields is not None:
            yield f"fields={self.fields!r}"
        if self.host_transform is not None:
            yield f"batch_transform={self.batch_transform!r}"

    def _path(self, images: Readable | Unreadable) -> Choice:
        if isinstance(images, Unreadable):
            if self.collate_fn is fast_collate and images.color != "rgb":
                raise UsageError(
                    f"color={images.color!r} and fast_collate, which makes RGB of all images",
                    "Leave fast_collate out, or take color='rgb'.",
                )
            return Choice("torch", images.reason, images.hint, avoidable=images.avoidable)
        fast = self.collate_fn is fast_collate
        asked = self.fields or images.fields
        recipe = images.recipe if "image" in asked else NO_IMAGE
        if isinstance(recipe, Refusal) and recipe.impossible:
            raise UsageError(recipe.reason)
        known = self._collates_as_torch
        if reason := self.changed_collation():
            return _workers(images, recipe, reason, "Undo that, or give it as collate_fn=.")
        own = not known and not self._collates_bytes(recipe, images)
        if own and (why := self._why_not_collated()):
            name = getattr(self.collate_fn, "__name__", type(self.collate_fn).__name__)
            why = f"the collate_fn {name} wants single samples, and {why}"
            hint = "Leave the collate_fn out; batch_transform= takes whole batches."
            return _workers(images, recipe, why, hint)
        if own:  # it stacks images itself, or does not
            recipe = without_fixed_size(recipe)
        if isinstance(recipe, Refusal):
            if images.transform is None and self.batched and known and not fast:
                raise UsageError(recipe.reason)
            if images.transform is not None or own:
                if images.transform is None:
                    hint = "Give one that makes tensors, such as torchvision's ToTensor."
                    return Choice("torch", "there is no transform", hint, images)
                return Choice("torch", recipe.reason, images=images)
            why = "there is no transform, and " + (
                "fast_collate takes images of one size"
                if self.batched
                else "batch_size=None asks for single samples"
            )
            hint = "Give one that brings images to one size, such as RandomResizedCrop(224)"
            hint += "." if self.batched else ", and a batch_size."
            return Choice("torch", why, hint, images)
        if recipe.unknown:
            names = ", ".join(step.name for step in recipe.unknown)
            first = recipe.unknown[0]
            return Choice(
                "workers",
                f"the core does not do {names} of the transform ({first.reason}), so torch's "
                f"{'workers run' if self.num_workers else 'loader runs'} that",
                _hints(recipe.unknown),
                images,
            )
        further = {name: one for name, one in images.further.items() if name in asked}
        if choice := self._why_not_further(images, further, known):
            return choice
        recipes = [recipe, *recipe.parts, *_compiled(further, own)]
        outputs = [program.output for one in recipes for program in one.programs]
        if any(output.as_pil for output in outputs) and not fast:
            why = "the transform returns PIL images, which torch cannot collate"
            hint = "End it with a conversion to tensors, or give collate_fn=fast_collate."
            if own:
                return _workers(images, recipe, "the transform returns PIL images", hint)
            if self.batched:
                raise UsageError(why, hint)
            return Choice("torch", why, hint, images)
        if fast and any(output.dtype != "uint8" for output in outputs):
            why = "fast_collate takes uint8 images, and the transform makes floats"
            raise UsageError(why, "Leave fast_collate out.")
        if not self.batched:
            why = "batch_size=None asks for single samples"
            return _workers(images, recipe, why, "Give a batch_size.")
        if self.worker_init_fn is not None and not timm.only_seeds(self.worker_init_fn):
            why = "a worker_init_fn was given, which only worker processes can run"
            return _workers(images, recipe, why, "Leave it out.")
        if fast:
            recipe = _with_output(recipe, channels_last=True)
        words = f"{images.what}: {recipe.describe()}" + self._further_words(images)
        if own:
            words += "; the collate_fn is called with each batch's samples"
        return Choice("native", words, images=images, recipe=recipe)

    def _why_not_further(
        self, images: Readable, further: Mapping[str, Recipe | Refusal], stacked: bool
    ) -> Choice | None:
        """Return the path of a dataset that has further images which the core cannot make.

        ``stacked``: a batch has one tensor of all images of a field.
        """
        for name, found in further.items():
            other = found if stacked else without_fixed_size(found)
            why = f"the core does not do the transform of {name}"
            if isinstance(other, Refusal):
                why, hint = f"{why}: {other.reason}", f"Give transform={{..., {name!r}: ...}}."
                if any(one.name == name and one.kind == "mask" for one in images.schema):
                    why = f"{name} is a field of masks, which transform= leaves as they are"
                    hint = (
                        "Give transforms= of torchvision.transforms.v2: it takes images and masks."
                    )
                missing = name in images.without_transform
                if other.impossible or (stacked and self.batched and missing):
                    raise UsageError(why, hint)
                return Choice("torch", why, hint, images)
            if other.unknown:
                first = other.unknown[0]
                return Choice("workers", f"{why} ({first.reason})", first.hint, images)
        return None

    def _further_words(self, images: Readable) -> str:
        """Return the fields of a batch beside the first image and the label, in words."""
        words = []
        for name in self.fields or images.fields:
            recipe = images.further.get(name)
            if isinstance(recipe, Recipe):
                words.append(f"{name} ({recipe.describe()})")
            elif name not in ("image", "label", SOURCE, *BESIDES):
                words.append(name)
        return f"; fields: {', '.join(words)}" if words else ""

    def _why_not_collated(self) -> str:
        """Return why a ``collate_fn`` cannot be called with natively decoded samples, if so."""
        if self.device is not None:
            return "device= normalises whole batches"
        if self.fields is not None:
            return "fields= names what batches have"
        return "on_error='zero' adds to batches" if self.on_error == "zero" else ""

    def own_collate(self, images: Readable) -> Callable[[list[Any]], Any] | None:
        """Return the user's ``collate_fn``, if the native path calls it with samples."""
        known = self._collates_as_torch or self._collates_bytes(images.recipe, images)
        return None if known else self.collate_fn

    @property
    def mixes_bytes(self) -> bool:
        """Whether the ``collate_fn`` mixes images, and is called with the samples of a batch."""
        return timm.mixes_bytes(self.collate_fn)

    def _collates_bytes(self, recipe: Recipe | Refusal, images: Readable) -> bool:
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

    def explain(self, choice: Choice, order: str, kinds: str = "") -> str:
        """Describe the path and its reason; ``kinds`` are those of images, with their decoders."""
        if choice.path == "native":
            several = f"{human_count(self.num_workers, 'decode thread')} in this process"
            alone = "decoded by the calling thread, with no decode threads"
        else:
            several, alone = "torch's worker processes", "this process, called by torch's loader"
        lines = [
            _PATHS[choice.path].format(several if self.num_workers else alone),
            f"because: {choice.reason}",
        ]
        if choice.hint:
            lines.append(f"for the native path: {choice.hint}")
        if choice.path == "native":
            if kinds:
                lines.append(f"images: {kinds}")
            lines.append(f"order: {order}")
        if self.ranks is not None:
            lines.append("sharding: rank {} of {}".format(*self.ranks))
        if choice.where is not None:
            lines.append(f"device: {choice.where.describe()}")
        return "\n".join(lines)


def _workers(images: Readable, recipe: Recipe | Refusal, reason: str, hint: str) -> Choice:
    """Choose torch's workers with native decoding, if the transform begins with known steps."""
    if isinstance(recipe, Refusal):
        return Choice("torch", f"{reason}; and {recipe.reason}", hint, images)
    return Choice("workers", reason, hint, images)


def _hints(unknown: Sequence[Unknown]) -> str:
    """Return the remedy of the first step, and the lines for further classes."""
    lines = (one.hint for one in unknown[1:] if one.hint.startswith("Add this method"))
    return "\n".join(dict.fromkeys((unknown[0].hint, *lines)))


def _compiled(further: Mapping[str, Recipe | Refusal], own: bool) -> list[Recipe]:
    """Return the transforms of further images that are compiled."""
    found = [without_fixed_size(one) if own else one for one in further.values()]
    return [one for one in found if isinstance(one, Recipe)]


def _on_device(choice: Choice, device: str | torch.device, fields: Sequence[str] | None) -> Choice:
    """Return the choice with batches on a device, which normalises images there.

    A batch of bytes crosses the bus in a quarter of a float32 batch's time. With further images,
    which may be bytes, the host normalises.
    """
    if choice.recipe is None or choice.images is None:
        return replace(choice, where=destination(device))
    programs = [one for part in (choice.recipe, *choice.recipe.parts) for one in part.programs]
    formats = {program.output[:3] for program in programs}
    recipe, where = _with_output(choice.recipe, channels_last=True), destination(device)
    fields = fields or choice.images.fields
    alone = "image" in fields and not any(name in fields for name in choice.images.further)
    if len(formats) == 1 and alone:
        dtype, mean, std = formats.pop()
        # What is erased is so in the output's units, after it was normalised.
        if dtype != "uint8" and not any(program.erases for program in programs):
            recipe = _with_output(recipe, dtype="uint8", mean=None, std=None)
            where = destination(device, dtype, mean, std)
    return replace(choice, recipe=recipe, where=where)


def _with_output(recipe: Recipe, **changes: Any) -> Recipe:
    """Return the recipe with another `fastdata.transforms.compile.Output`."""
    programs = (
        replace(program, output=program.output._replace(**changes)) for program in recipe.programs
    )
    parts = tuple(_with_output(part, **changes) for part in recipe.parts)
    return replace(recipe, programs=tuple(programs), parts=parts)
