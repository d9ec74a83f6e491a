"""`Resolved`: a loader's dataset and arguments, and the path that it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from fastdata.device.delivery import destination
from fastdata.device.transfer import Destination
from fastdata.errors import UsageError
from fastdata.loading.arguments import Arguments
from fastdata.loading.collate import fast_collate
from fastdata.loading.fields.names import BESIDES, SOURCE
from fastdata.loading.fields.readable import Readable, Unreadable, images_among
from fastdata.loading.fields.targets import reader_of, require_still
from fastdata.text import human_count
from fastdata.transforms import timm
from fastdata.transforms.outcomes import Refusal, Unknown, without_fixed_size
from fastdata.transforms.recipe import NO_IMAGE, Recipe

if TYPE_CHECKING:
    from fastdata.loading.batching import Batching

_PATHS = {
    "native": "native: {}",
    "workers": "workers: fastdata decodes in {}",
    "torch": "torch: torch's own loader, unchanged",
}


@dataclass(frozen=True)
class Resolved:
    """Dataset and arguments of a loader, resolved to the path that it takes.

    Attributes:
        arguments: The loader's arguments.
        path: ``native``: threads of this process decode; ``workers``: fastdata decodes in torch's
            worker processes; ``torch``: torch's loader as it is.
        reason: Why this path is taken, in words.
        hint: The way to the native path.
        images: Description of the dataset; None if fastdata cannot read it.
        recipe: The transform of images on this path, with its output; None off the native path.
        where: Destination of batches; None for the host.
        avoidable: Whether the dataset's images need not take this slower path.
        collation: Clause that names what was changed in torch's collation, where it is used.
        batching: The rows of batches; None until the order is resolved.
        by_size: The same for each size class of the batches; () where they have none.
    """

    arguments: Arguments
    path: str
    reason: str
    hint: str = ""
    images: Readable | None = None
    recipe: Recipe | None = None
    where: Destination | None = None
    avoidable: bool = True
    collation: str = ""
    batching: Batching | None = None
    by_size: tuple[Resolved, ...] = ()

    @property
    def native(self) -> bool:
        """Whether threads of this process decode."""
        return self.path == "native"

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

    def explain(self, order: str) -> str:
        """Describe the path and its reason."""
        arguments = self.arguments
        if self.native:
            several = f"{human_count(arguments.num_workers, 'decode thread')} in this process"
            alone = "decoded by the calling thread, with no decode threads"
        else:
            several, alone = "torch's worker processes", "this process, called by torch's loader"
        lines = [
            _PATHS[self.path].format(several if arguments.num_workers else alone),
            f"because: {self.reason}",
        ]
        if self.hint:
            lines.append(f"for the native path: {self.hint}")
        if self.native:
            lines.append(f"order: {order}")
        if arguments.ranks is not None:
            lines.append("sharding: rank {} of {}".format(*arguments.ranks))
        if self.where is not None:
            lines.append(f"device: {self.where.describe()}")
        if self.by_size:
            lines.append(f"sizes: {len(self.by_size)}; these lines describe the first")
        return "\n".join(lines)


def resolved_path(arguments: Arguments, images: Readable | Unreadable, collation: str) -> Resolved:
    """Return the path for a dataset that was recognised; raise UsageError if there is none."""
    resolved = replace(_path(arguments, images, collation), collation=collation)
    if resolved.images is not None:
        _require_fields(arguments, resolved.images)
    if not resolved.native:
        for argument in arguments.native_only():
            raise resolved.refusal(argument)
    if arguments.device is None:
        return resolved
    return _on_device(resolved, arguments.device)


def _require_fields(arguments: Arguments, images: Readable) -> None:
    """Raise `UsageError` if the dataset has not the fields that are asked for."""
    fields = arguments.fields
    known = dict.fromkeys([*(field.name for field in images.schema), *BESIDES])
    known |= dict.fromkeys(images.fields)  # masks that are painted, too
    known |= dict.fromkeys([SOURCE] if images.sources else [])
    if arguments.on_error == "zero" and known.keys() & {"valid"} & {*(fields or images.fields)}:
        raise UsageError(
            "on_error='zero' adds 'valid' to batches, and the dataset has a field of that name",
            "Leave the field out, or take on_error='drop'.",
        )
    for part in images.parts or (images,):
        transform = None if part.joint else part.transform
        require_still(transform, fields or part.fields, part.schema, part.path)
    placed = [one.name for one in images.schema if one.kind == "mask" or one.format]
    for name in fields or ():
        if name not in known:
            hint = f"Give a tuple of {', '.join(map(repr, known))}, each at most once."
            if name == "valid":
                hint = '"valid" comes by itself, with on_error="zero".'
            several = zip(images.sources, images.parts, strict=False)
            without = (at for at, part in several if all(one.name != name for one in part.schema))
            owner = next((f"source {source!r}" for source in without), "the dataset")
            raise UsageError(f"fields={fields!r}: {owner} has no {name!r}", hint)
        lacks = "image" not in (fields or ()) or name not in images.fields
        if name in placed and lacks and reader_of(images) is not None:
            raise UsageError(
                f"fields={fields!r}: {name} follows the image of a sample in transforms=",
                'Name both in fields= of the dataset; and "image" here, too.',
            )
        if name not in images.fields and name in images_among(images.source.fields, images.joint):
            raise UsageError(
                f"fields={fields!r}: {name} is a field of images, and the dataset has no "
                "transform for it",
                f"Give fastdata.ImageDataset(..., transform={{..., {name!r}: ...}}) and "
                "name it in its fields=.",
            )


def _path(arguments: Arguments, images: Readable | Unreadable, collation: str) -> Resolved:
    """Return the path before its destination is known."""
    fast = arguments.collate_fn is fast_collate
    if isinstance(images, Unreadable):
        if fast and images.color != "rgb":
            raise UsageError(
                f"color={images.color!r} and fast_collate, which makes RGB of all images",
                "Leave fast_collate out, or take color='rgb'.",
            )
        return Resolved(arguments, "torch", images.reason, images.hint, avoidable=images.avoidable)
    asked = arguments.fields or images.fields
    recipe = images.recipe if "image" in asked else NO_IMAGE
    if isinstance(recipe, Refusal) and recipe.impossible:
        raise UsageError(recipe.reason)
    slower = _Slower(arguments, images, recipe)
    if collation:
        return slower.workers(collation, "Undo that, or give it as collate_fn=.")
    known = arguments.collates_as_torch
    own = not known and not arguments.collates_bytes(recipe, images)
    if own and (why := arguments.why_not_collated):
        collate_fn = arguments.collate_fn
        name = getattr(collate_fn, "__name__", type(collate_fn).__name__)
        hint = "Leave the collate_fn out; batch_transform= takes whole batches."
        return slower.workers(f"the collate_fn {name} wants single samples, and {why}", hint)
    if own:  # it stacks images itself, or does not
        recipe = without_fixed_size(recipe)
        slower = _Slower(arguments, images, recipe)
    if isinstance(recipe, Refusal):
        return slower.refused(recipe, own)
    if recipe.unknown:
        names, first = ", ".join(step.name for step in recipe.unknown), recipe.unknown[0]
        runs = "workers run" if arguments.num_workers else "loader runs"
        why = (
            f"the core does not do {names} of the transform ({first.reason}), so torch's {runs} "
            "that"
        )
        return slower.workers(why, _hints(recipe.unknown))
    by_field = {name: one for name, one in images.field_recipes.items() if name in asked}
    if resolved := slower.for_field_recipes(by_field, known):
        return resolved
    compiled = [without_fixed_size(one) if own else one for one in by_field.values()]
    recipes = [recipe, *recipe.parts, *(one for one in compiled if isinstance(one, Recipe))]
    outputs = [program.output for one in recipes for program in one.programs]
    if any(output.as_pil for output in outputs) and not fast:
        why = "the transform returns PIL images"
        hint = "End it with a conversion to tensors, or give collate_fn=fast_collate."
        if own:
            return slower.workers(why, hint)
        why += ", which torch cannot collate"
        if arguments.batched:
            raise UsageError(why, hint)
        return slower.torch(why, hint)
    if fast and any(output.dtype != "uint8" for output in outputs):
        why = "fast_collate takes uint8 images, and the transform makes floats"
        raise UsageError(why, "Leave fast_collate out.")
    if not arguments.batched:
        return slower.workers("batch_size=None asks for single samples", "Give a batch_size.")
    if arguments.worker_init_fn is not None and not timm.only_seeds(arguments.worker_init_fn):
        why = "a worker_init_fn was given, which only worker processes can run"
        return slower.workers(why, "Leave it out.")
    if fast:
        recipe = _with_output(recipe, channels_last=True)
    words = f"{images.what}: {recipe.describe()}" + _words_of_fields(arguments, images)
    if own:
        words += "; the collate_fn is called with each batch's samples"
    return Resolved(arguments, "native", words, images=images, recipe=recipe)


@dataclass(frozen=True)
class _Slower:
    """Paths of a dataset that cannot take the native one."""

    arguments: Arguments
    images: Readable
    recipe: Recipe | Refusal

    def torch(self, reason: str, hint: str = "") -> Resolved:
        """Return torch's path."""
        return Resolved(self.arguments, "torch", reason, hint, self.images)

    def workers(self, reason: str, hint: str) -> Resolved:
        """Return torch's workers with native decoding, if the transform begins with known steps."""
        if isinstance(self.recipe, Refusal):
            return self.torch(f"{reason}; and {self.recipe.reason}", hint)
        return Resolved(self.arguments, "workers", reason, hint, self.images)

    def refused(self, recipe: Refusal, own: bool) -> Resolved:
        """Return the path where the core cannot make the images.

        ``own``: the ``collate_fn`` is called with samples. Raise UsageError if there is none.
        """
        if self.images.transform is not None:
            return self.torch(recipe.reason)
        if own:
            hint = "Give one that makes tensors, such as torchvision's ToTensor."
            return self.torch("there is no transform", hint)
        hint = "Give one that brings images to one size, such as RandomResizedCrop(224)"
        if not self.arguments.batched:
            why = "there is no transform, and batch_size=None asks for single samples"
            return self.torch(why, f"{hint}, and a batch_size.")
        if self.arguments.collate_fn is not fast_collate:
            raise UsageError(recipe.reason)
        why = "there is no transform, and fast_collate takes images of one size"
        return self.torch(why, f"{hint}.")

    def for_field_recipes(
        self, by_field: Mapping[str, Recipe | Refusal], stacked: bool
    ) -> Resolved | None:
        """Return the path of a dataset that has other fields of images that the core cannot make.

        ``stacked``: a batch has one tensor of all images of a field.
        """
        for name, compiled in by_field.items():
            recipe = compiled if stacked else without_fixed_size(compiled)
            why = f"the core does not do the transform of {name}"
            if isinstance(recipe, Refusal):
                why, hint = f"{why}: {recipe.reason}", f"Give transform={{..., {name!r}: ...}}."
                if any(one.name == name and one.kind == "mask" for one in self.images.schema):
                    why = f"{name} is a field of masks, which transform= leaves as they are"
                    hint = (
                        "Give transforms= of torchvision.transforms.v2: it takes images and masks."
                    )
                missing = name in self.images.without_transform
                if recipe.impossible or (stacked and self.arguments.batched and missing):
                    raise UsageError(why, hint)
                return self.torch(why, hint)
            if recipe.unknown:
                first = recipe.unknown[0]
                why = f"{why} ({first.reason})"
                return Resolved(self.arguments, "workers", why, first.hint, self.images)
        return None


def _words_of_fields(arguments: Arguments, images: Readable) -> str:
    """Return the fields of a batch beside the first image and the label, in words."""
    words = []
    for name in arguments.fields or images.fields:
        recipe = images.field_recipes.get(name)
        if isinstance(recipe, Recipe):
            words.append(f"{name} ({recipe.describe()})")
        elif name not in ("image", "label", SOURCE, *BESIDES):
            words.append(name)
    return f"; fields: {', '.join(words)}" if words else ""


def _hints(unknown: Sequence[Unknown]) -> str:
    """Return the remedy of the first step, and the lines for other classes."""
    lines = (one.hint for one in unknown[1:] if one.hint.startswith("Add this method"))
    return "\n".join(dict.fromkeys((unknown[0].hint, *lines)))


def _on_device(resolved: Resolved, device: str | torch.device) -> Resolved:
    """Return the same with batches on a device, which normalises images there.

    A batch of bytes crosses the bus in a quarter of a float32 batch's time. With several fields,
    which may be bytes, the host normalises.
    """
    recipe, images = resolved.recipe, resolved.images
    if recipe is None or images is None:
        return replace(resolved, where=destination(device))
    programs = [one for part in (recipe, *recipe.parts) for one in part.programs]
    formats = {program.output[:3] for program in programs}
    recipe, where = _with_output(recipe, channels_last=True), destination(device)
    fields = resolved.arguments.fields or images.fields
    alone = "image" in fields and not any(name in fields for name in images.field_recipes)
    if len(formats) == 1 and alone:
        dtype, mean, std = formats.pop()
        # What is erased has values in the output's units, after it was normalised.
        if dtype != "uint8" and not any(program.erases for program in programs):
            recipe = _with_output(recipe, dtype="uint8", mean=None, std=None)
            where = destination(device, dtype, mean, std)
    return replace(resolved, recipe=recipe, where=where)


def _with_output(recipe: Recipe, **changes: Any) -> Recipe:
    """Return the recipe with another `fastdata.transforms.outcomes.Output`."""
    programs = (
        replace(program, output=program.output._replace(**changes)) for program in recipe.programs
    )
    parts = tuple(_with_output(part, **changes) for part in recipe.parts)
    return replace(recipe, programs=tuple(programs), parts=parts)
