"""Which way a loader takes: native threads, torch's workers with native decoding, or torch's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch.utils.data import IterableDataset, default_collate

from fastdata.loading.collate import fast_collate
from fastdata.loading.images import Images, recognise
from fastdata.transforms.compile import Recipe, Refusal, compile_recipe


@dataclass(frozen=True)
class Choice:
    """What was chosen, and why.

    Attributes:
        path: ``native``: threads of this process; ``workers``: torch's worker processes, in which
            fastdata decodes; ``torch``: torch's loader as it is.
        reason: Why, in words.
        images: The dataset, if fastdata can read it.
        recipe: What is done to its images, if fastdata can do it.
    """

    path: str
    reason: str
    images: Images | None = None
    recipe: Recipe | None = None

    def with_output(self, **changes: Any) -> Choice:
        """The same with another output format; see `fastdata.transforms.compile.Output`."""
        assert self.images is not None
        assert self.recipe is not None
        recipe = _with_output(self.recipe, **changes)
        return replace(self, recipe=recipe, reason=f"{self.images.what}: {recipe.describe()}")


def choose(
    dataset: Any,
    *,
    batched: bool,
    collate_fn: Callable[..., Any] | None,
    worker_init_fn: Callable[..., Any] | None,
) -> Choice:
    """Chooses the way for a dataset and torch's arguments.

    Args:
        dataset: The loader's dataset.
        batched: Whether the loader makes batches (``batch_size`` is not None).
        collate_fn: The loader's ``collate_fn``.
        worker_init_fn: The loader's ``worker_init_fn``.
    """
    if isinstance(dataset, IterableDataset):
        return Choice("torch", "an IterableDataset decides by itself what it reads")
    images = recognise(dataset)
    if isinstance(images, Refusal):
        return Choice("torch", images.reason)
    fast = collate_fn is fast_collate
    if collate_fn not in (None, default_collate) and not fast:
        name = getattr(collate_fn, "__name__", type(collate_fn).__name__)
        return _beside(images, f"the collate_fn {name} wants single samples")
    recipe = compile_recipe(images.transform)
    if isinstance(recipe, Refusal):
        return Choice("torch", recipe.reason, images)
    if recipe.tail:
        names = ", ".join(unknown.name for unknown in recipe.unknown)
        return _beside(
            images, f"{names} of the transform is not fastdata's: it runs in torch's workers"
        )
    outputs = [program.output for program in recipe.programs]
    if any(output.as_pil for output in outputs) and not fast:
        return Choice(
            "torch",
            "the transform returns PIL images, which torch cannot collate (use fast_collate)",
            images,
        )
    if fast and any(output.dtype != "uint8" for output in outputs):
        return Choice(
            "torch", "fast_collate takes uint8 images, the transform makes floats", images
        )
    if not batched:
        return _beside(images, "batch_size=None asks for single samples")
    if worker_init_fn is not None:
        return _beside(images, "a worker_init_fn was given, which only worker processes can run")
    if fast:
        recipe = _with_output(recipe, channels_last=True)
    return Choice("native", f"{images.what}: {recipe.describe()}", images, recipe)


def _beside(images: Images, reason: str) -> Choice:
    """Torch's workers with native decoding, if the transform begins with what fastdata knows."""
    recipe = compile_recipe(images.transform)
    if isinstance(recipe, Refusal):
        return Choice("torch", f"{reason}; and {recipe.reason}", images)
    return Choice("workers", reason, images, recipe)


def _with_output(recipe: Recipe, **changes: Any) -> Recipe:
    programs = (
        replace(program, output=program.output._replace(**changes)) for program in recipe.programs
    )
    return replace(recipe, programs=tuple(programs))
