"""The result of compiling a pipeline: programs for the native core, and a tail of calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata import _native
from fastdata.text import human_count
from fastdata.transforms.forms import Form, in_form, leaves
from fastdata.transforms.geometry import Cuts, too_small
from fastdata.transforms.identity import name_of
from fastdata.transforms.joint import Joint, Moved
from fastdata.transforms.outcomes import Output, Unknown, tensor_image
from fastdata.transforms.reading import Step
from fastdata.transforms.tree import native_program


@dataclass(frozen=True)
class Program:
    """The core's part of a pipeline, for one view of a sample.

    ``size`` is (width, height) of every output; (0, 0): they may differ. ``filter`` is
    ``bilinear``, ``nearest``, ``bicubic`` or ``lanczos``; where one is drawn for each image, the
    first of them. ``steps`` are the geometry, ``pixels`` all after it. ``fill``, R, G, B from 0 to
    255, and ``mask_fill`` are for what lies outside the image.
    """

    size: tuple[int, int]
    filter: str
    output: Output
    steps: tuple[Step, ...]
    pixels: tuple[Step, ...] = ()
    fill: tuple[int, int, int] = (0, 0, 0)
    mask_fill: int = 0

    @property
    def native(self) -> _native.StepProgram:
        """The core's program."""
        return native_program(self.pixels, leading=self.steps)

    def draw(self, widths: Any, heights: Any, keys: npt.NDArray[np.uint64]) -> Cuts:
        """Draw and compose the geometry for each image; a row depends on its size and key alone.

        Widths and heights are of the source images, (N,); keys are uint64, (N,).
        """
        return self.native.cuts(widths, heights, keys)

    def too_small(self, cuts: Cuts) -> dict[int, str]:
        """Describe the images that are too small for a crop that may not pad, by their row."""
        return too_small(self.steps, cuts)

    @property
    def one_size(self) -> bool:
        """Whether all outputs have one size."""
        return self.size != (0, 0)

    def sizes(self, cuts: Cuts) -> npt.NDArray[np.int32]:
        """Return the (width, height) of each output, int32, (N, 2), for rows of :meth:`draw`.

        An image that its crops or augmentations cannot be done to has a size of 1 x 1.
        """
        sizes: npt.NDArray[np.int32] = np.maximum(self.native.sizes(cuts), 1)
        sizes[cuts["too_small"] > 0] = 1
        return sizes

    def move(self, targets: _native.Targets, keys: npt.NDArray[np.uint64]) -> tuple[Cuts, Moved]:
        """Draw as :meth:`draw`, and move boxes and points with the images."""
        found: Any = targets.move(self.native, keys)
        return found[0], Moved(*found[1:])

    def batch_options(self) -> dict[str, Any]:
        """Return keyword arguments of `_native.Rendering`, for ``cuts`` of :meth:`draw`."""
        return {
            "dtype": self.output.dtype,
            "mean": self.output.mean,
            "std": self.output.std,
            "program": self.native,
            "fill": self.fill,
        }

    @property
    def erases(self) -> bool:
        """Whether it erases rectangles of the normalised output."""
        return any(step.erases for step in self.pixels)

    def describe(self) -> str:
        """Describe the program in one line."""
        kind = "PIL images" if self.output.as_pil else self.output.dtype
        if self.output.channels == 1:
            kind = f"{kind} of one channel"
        normalised = " normalised" if self.output.mean is not None else ""
        steps = [step.words for step in (*self.steps, *self.pixels)]
        # Erasing comes last, whatever it was converted from.
        at = len(steps) - sum(step.erases for step in self.pixels)
        return ", ".join([*steps[:at], kind + normalised, *steps[at:]])


@dataclass(frozen=True)
class Recipe:
    """A compiled pipeline, made by :func:`compile_recipe`.

    Attributes:
        programs: One for each view of a sample; one alone unless the pipeline has `Views`; none
            where no image is asked for.
        tail: Functions to call for each sample, in order, with its tensor or with its `Views`.
        calls: Functions to call for each sample and view, in order, before `tail`.
        form: As `Views` have it; None where there are no Views.
        unknown: The steps that the core cannot do; `calls` and `tail` hold what follows them, too.
        joint: Of a sample with targets, as they are before `tail`, whose functions take all of it.
        parts: Of several datasets' images, the recipe of each; (): this one is for all.
    """

    programs: tuple[Program, ...]
    tail: tuple[Callable[[Any], Any], ...] = ()
    unknown: tuple[Unknown, ...] = ()
    form: Form | None = None
    calls: tuple[tuple[Callable[[Any], Any], ...], ...] = ()
    joint: Joint | None = None
    parts: tuple[Recipe, ...] = ()

    def stacks_with(self, other: Recipe) -> bool:
        """Return whether a batch may have images of both: of one size, type and form."""
        ends = [(one.form, one.tail, one.calls, len(one.programs)) for one in (self, other)]
        special = any(one.unknown or one.joint or one.parts for one in (self, other))
        if special or ends[0] != ends[1]:
            return False
        return all(
            mine.one_size
            and mine.size == theirs.size
            and mine.output._replace(mean=None, std=None)
            == theirs.output._replace(mean=None, std=None)
            for mine, theirs in zip(self.programs, other.programs, strict=True)
        )

    def image(self, views: list[Any]) -> Any:
        """Return the one view of a sample, or of a batch; or several views in their form."""
        return views[0] if self.form is None else in_form(views, self.form)

    def finish(self, views: Sequence[Any]) -> Any:
        """Call the functions of one sample that the core does not do; return the result."""
        made = list(views)
        for number, calls in enumerate(self.calls):
            for call in calls:
                made[number] = call(made[number])
        image = self.image(made)
        for call in self.tail:
            image = call(image)
        return image

    def finish_joint(self, sample: Any) -> Any:
        """Call the functions of one sample with targets that the core does not do."""
        for call in self.tail:
            sample = call(*sample) if isinstance(sample, tuple) else call(sample)
        return sample

    def describe(self) -> str:
        """Describe the pipeline in one line."""
        if not self.programs:
            return "no image is asked for"
        if self.parts:
            return "; or ".join(dict.fromkeys(part.describe() for part in self.parts))
        views = [program.describe() for program in self.programs]
        alike = [(view, len(list(same))) for view, same in groupby(views)]
        line = " | ".join(view if number == 1 else f"{number} of {view}" for view, number in alike)
        if self.form is not None:
            named = self.form.items() if isinstance(self.form, dict) else ()
            counts = [(name, len(list(leaves(which)))) for name, which in named]
            names = ", ".join(f"{number} {name}" for name, number in counts if number)
            head = f"{human_count(len(views), 'view')}{f' ({names})' if names else ''}"
            line = f"{head} of: {views[0]}" if len(alike) == 1 else f"{head}: {line}"
        calls = [one for one in chain(*self.calls, self.tail) if one is not tensor_image()]
        if calls:
            line += "; then, one sample at a time, " + ", ".join(map(name_of, calls))
        return line


#: Recipe of samples whose image is not asked for.
NO_IMAGE = Recipe(())
