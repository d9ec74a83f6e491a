"""Native decoding of single samples, for torch's own loader."""

from __future__ import annotations

import operator
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from fastdata.errors import UsageError
from fastdata.executors import InProcess
from fastdata.loading.fields.batch import Batch, Settings
from fastdata.loading.fields.buffers import BufferPool
from fastdata.loading.fields.further import Pipelines, blobs_among, open_pipelines
from fastdata.loading.fields.images import Readable, Unreadable
from fastdata.loading.fields.masks import MaskPipeline
from fastdata.loading.fields.pipeline import Pipeline
from fastdata.loading.fields.stats import Counters
from fastdata.loading.fields.targets import GEOMETRY, joint_of, reader_of
from fastdata.plan.batches import SizedBatch
from fastdata.plan.draws import epoch_key
from fastdata.plan.schedule import Indices, occurrences_within
from fastdata.storage.columns import values_of
from fastdata.storage.fields import BLOBS, IMAGE, LABEL, MASKS, Field, outlines_among
from fastdata.storage.source import Source
from fastdata.text import class_name
from fastdata.transforms.checks import require_objects
from fastdata.transforms.outcomes import Refusal, without_fixed_size
from fastdata.transforms.schedule import Varying, of_size, present_size

if TYPE_CHECKING:
    from fastdata.remote.prefetch import FetchField

#: Names beside fields: a sample's name and its number.
BESIDES = ("index", "key")
#: Name of a sample's source in a mixture, by its place among them.
SOURCE = "source"
#: Remedy for a transform of what is no image.
LEAVE_OUT = "Leave it out; batch_transform= or collate_fn= of the loader see other fields."
_MOVE = "Masks follow their image: give transforms=, such as one of torchvision.transforms.v2."


def require_names(fields: Any, hint: str) -> None:
    """Raise UsageError unless ``fields=`` is a sequence of names, each once."""
    named = isinstance(fields, Sequence) and all(isinstance(name, str) for name in fields)
    if not named or isinstance(fields, str) or not fields or len(set(fields)) < len(fields):
        raise UsageError(f"fields={fields!r}", hint)


def require_callable(transforms: Mapping[str, Any]) -> None:
    """Raise UsageError unless transforms, by name, are functions or None, and not their classes."""
    for name, one in transforms.items():
        if one is not None and not callable(one):
            hint = "Put several transforms into fastdata.transforms.Compose."
            raise UsageError(f"{name}= cannot be called: {class_name(one)}", hint)
        require_objects(f"{name}=", one)


def require_images(
    path: Any, known: Mapping[str, Field], transforms: Iterable[str], given: Sequence[str]
) -> None:
    """Raise UsageError if a field with a transform of its own is no further image of a sample."""
    for name in transforms:
        if name in known and known[name].kind != "image":
            raise UsageError(
                f"{path}: transform has {name!r}, which is no field of images",
                _MOVE if known[name].kind == "mask" else LEAVE_OUT,
            )
        if name not in given:
            raise UsageError(
                f"{path}: transform has {name!r}, which is not in fields={given!r}",
                "Name the field in fields=, or leave its transform out.",
            )


def require_known(
    names: Sequence[str], known: Mapping[str, Field], where: object, *, joint: bool
) -> None:
    """Check that a dataset has what ``fields=`` names.

    Raise UsageError if not, or if a joint transform has no image, or two fields of boxes or of
    points.
    """
    of_joint = [GEOMETRY, *([MASKS] if outlines_among(known.values()) else [])]
    besides = [*BESIDES, *(of_joint if joint else [])]
    listed = ", ".join(dict.fromkeys([*known, *besides]))
    require_names(names, f"Give a tuple of names, each once: {listed}.")
    for name in names:
        if name not in known and name not in besides:
            needs = f" {name!r} needs transforms=." if name in of_joint else ""
            what = f"{where}: has no field {name!r} (fields={names!r})"
            raise UsageError(what, f"It has {listed}.{needs}")
    if joint and "image" not in names:
        raise UsageError(
            f"{where}: transforms= takes (image, target), and fields={names!r} has no image",
            'Name "image" in fields=, or leave transforms= out.',
        )
    for kind in ("boxes", "points") if joint else ():
        if len(several := joint_of([*known.values()], names).names(kind)) > 1:
            raise UsageError(
                f"{where}: transforms= moves one field of {kind} with the image, and "
                f"fields={names!r} has {' and '.join(several)}",
                "Name one of them, or concatenate them when you pack.",
            )


def chosen_fields(
    path: Any,
    fields: Sequence[Field],
    given: Sequence[str] | None,
    transforms: Iterable[str],
    *,
    joint: bool,
    labels: bool,
) -> tuple[str, ...]:
    """Return the fields of a sample; without ``given``, image and, if there is one, label.

    Raise UsageError if there is no such field, a transform has none, or a joint one no image.
    ``labels``: there is a transform of labels.
    """
    known = {field.name: field for field in fields}
    if given is None:
        given = [name for name in (IMAGE.name, LABEL.name) if name in known]
    require_known(given, known, path, joint=joint)
    require_images(path, known, transforms, given)
    if labels and LABEL not in fields:
        what = f"{path}: target_transform is for labels, and the dataset has none"
        raise UsageError(what, LEAVE_OUT)
    return tuple(given)


def value_of(source: Source, name: str, row: int) -> Any:
    """Return one field of a row: the blob of an image, the value of a column."""
    if name in BESIDES and not any(one.name == name for one in source.fields):
        return row if name == "index" else source.key(row)
    field = source.field(name)
    if field.kind in BLOBS:
        return source.encoded(row, name)
    values = source.column(name, np.array([row]))
    return int(values[0]) if field == LABEL else values_of(values, field)[0]


class NativeSamples(ABC):
    """Dataset whose samples the core decodes, several at a time."""

    # The decoder with the transforms that it has, by size of batches; None if none was made yet.
    _decoder: dict[Any, tuple[Any, SampleDecoder | None]] | None = None

    @abstractmethod
    def described(self) -> Readable | Unreadable:
        """Return how the core reads the images, or why it does not."""

    @abstractmethod
    def __getitem__(self, index: int) -> Any: ...

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return several samples at once, for torch's own ``DataLoader``.

        If fastdata knows the transform, or its beginning (`fastdata.transforms`, or
        torchvision's crops, resizing, flips and conversions), images are decoded and cropped
        natively: as ``__getitem__``, within 1 of 255, and several times faster.

        Args:
            indices: Numbers from 0; negative ones count from the end.

        Returns:
            For each what ``__getitem__`` does.

        Raises:
            IndexError: There is no such sample.
            FastdataError: As ``__getitem__``.
        """
        with of_size(indices.size if isinstance(indices, SizedBatch) else None):
            decoder = self.decoder
            if decoder is None:
                return [self[index] for index in indices]
            return decoder.samples(indices)

    @property
    def decoder(self) -> SampleDecoder | None:
        """Decoder with the current transforms; None if the core does not know even the crop."""
        further, joint = getattr(self, "further_transforms", {}), getattr(self, "transforms", None)
        transforms = [
            one.current if isinstance(one, Varying) else one
            for one in (getattr(self, "transform", None), *further.values(), joint)
        ]
        target = getattr(self, "target_transform", None)
        about = (getattr(self, name, 0) for name in ("fields", "named", "epoch"))
        chosen = [*transforms, target, *further, *about]
        if self._decoder is None:
            self._decoder = {}
        size = present_size()
        if size not in self._decoder or self._decoder[size][0] != chosen:
            self._decoder[size] = chosen, _decoder_of(self.described())
        return self._decoder[size][1]


def _decoder_of(images: Readable | Unreadable) -> SampleDecoder | None:
    if isinstance(images, Unreadable):
        return None
    settings: dict[str, Settings] = {}
    for name, found in {"image": images.recipe, **images.further}.items():
        recipe = without_fixed_size(found)
        if isinstance(recipe, Refusal):
            return None
        settings[name] = Settings(recipe, images.limits)
        settings[name].told_fallback.set()
    settings["image"].reader = reader_of(images)
    if settings["image"].recipe.parts:
        settings["image"].part_of = images.part_of
    return SampleDecoder(images, settings)


class SampleDecoder:
    """Decoder of samples in the calling thread: decodes, crops, applies the rest of transforms."""

    def __init__(self, images: Readable, settings: Mapping[str, Settings]) -> None:
        self._images, self._fields = images, images.fields
        self._settings = settings
        self._source = images.open(False)
        self._numbering = images.numbering(self._source)
        self._made: tuple[int, Pipelines] | None = None

    @property
    def _pipeline(self) -> Pipelines:
        # What fetches remotely is of one process.
        if self._made is None or self._made[0] != os.getpid():
            blobs = blobs_among(self._source, self._fields)
            remote = self._source.start_pass(iter(()), self._numbering, set(), fields=blobs)
            pool = BufferPool(1, False)
            helpers, counters = InProcess(), Counters(0)

            def decoder(
                source: Any, name: str, fetch: FetchField | None
            ) -> Pipeline | MaskPipeline:
                one = self._settings.get(name)
                if one is None:
                    about = source, self._settings["image"], pool.of(name)
                    return MaskPipeline(*about, helpers, counters, fetch)
                return Pipeline(source, one, pool.of(name), None, helpers, counters, fetch)

            reader = self._settings["image"].reader
            made = open_pipelines(self._source, self._fields, decoder, None, remote, True, reader)
            self._made = os.getpid(), made
        return self._made[1]

    def samples(self, indices: Sequence[int]) -> list[Any]:
        """Return samples as the dataset's own ``__getitem__`` does.

        Crops and flips come from torch's global generator, as torchvision's do. Raise IndexError if
        there is no such sample.
        """
        import torch  # here, as listing and converting datasets needs none

        n = self._numbering.n
        numbers = np.array([row_number(index, n) for index in indices], np.int64)
        if not len(numbers):
            return []
        seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_().item())
        draws = numbers + occurrences_within(numbers) * n
        batch, further = self._decoded(draws, epoch_key(seed, 0))
        return [self._sample(batch, further, slot) for slot in range(len(numbers))]

    def drawn(self, draws: Indices, key: int, seed: Callable[[int], None]) -> list[Any]:
        """Return samples with the crops of the native path; the rest draws from its own keys.

        ``draws`` are those of `fastdata.plan.schedule.Numbering`. ``seed`` seeds the global
        generators with a sample's key.
        """
        batch, further = self._decoded(draws, key)
        found = []
        for slot, own in enumerate(batch.planned.call_keys(key)):
            seed(own)
            found.append(self._sample(batch, further, slot))
        return found

    def _decoded(self, draws: Indices, key: int) -> tuple[Batch, dict[str, list[Any]]]:
        """Return a decoded batch, and its further blobs and columns."""
        pipeline = self._pipeline
        batch = pipeline.begin(self._numbering.plan(draws), key)
        for error in pipeline.finish(batch).values():
            raise error
        reader = self._settings["image"].reader
        targets = () if reader is None else reader.joint.targets
        # Columns that only masks are painted from are none of a sample's.
        further = batch.further.keys() & {*self._fields, *targets}
        further |= {name for name in targets if pipeline.target(batch, name)}
        further -= self._settings.keys()
        return batch, {name: pipeline.samples(batch, name) for name in further}

    def _sample(self, batch: Batch, further: Mapping[str, list[Any]], slot: int) -> Any:
        """Return one sample of a decoded batch, after the rest of the transforms."""
        reader = self._settings["image"].reader
        if reader is None:
            own = [self._value(name, batch, further, slot) for name in self._fields]
            return self._images.sample(own)
        names = ["image", *reader.joint.targets]
        values = {name: self._value(name, batch, further, slot) for name in names}
        recipe: Any = self._settings["image"].recipe
        return recipe.finish_joint(reader.sample(values))

    def _value(self, name: str, batch: Batch, further: Mapping[str, list[Any]], slot: int) -> Any:
        index = int(batch.planned.indices[slot])
        if name in further:
            return further[name][slot]
        if name == "label":
            return self._images.target(index, batch.columns["label"][slot].item())
        if name == "index":
            return self._images.row_in_part(index)
        if name == "key":
            return self._source.key(index)
        if name == SOURCE:
            return int(self._images.part_of(batch.planned.indices[slot : slot + 1])[0])
        if slot in batch.lacking.get(name, ()):
            return None
        part = batch if name == "image" else batch.further[name]
        recipe = self._settings[name].recipe
        views = [
            _pil_image(view.memory.array[slot])
            if program.output.as_pil
            else view.memory.tensor[slot]
            for program, view in zip(recipe.programs, part.views, strict=True)
        ]
        return recipe.finish(views) if recipe.joint is None else recipe.image(views)


def _pil_image(pixels: npt.NDArray[np.uint8]) -> Image.Image:
    """Return an image of mode RGB; or L, if it has one channel."""
    return Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels)


def row_number(index: Any, count: int) -> int:
    """Return the number from 0 of a sample; a negative index counts from the end.

    Raise IndexError if there is none, UsageError for a slice or what is no whole number.
    """
    try:
        row = operator.index(index)
    except TypeError:
        raise UsageError(
            f"dataset[{index!r}]: a sample's number is a whole one",
            "For several samples take torch.utils.data.Subset(dataset, range(start, stop)).",
        ) from None
    if not -count <= row < count:
        raise IndexError(f"sample {row} of a dataset of {count}")
    return row % count


def row_numbers(indices: Any, count: int) -> list[int]:
    """Return the numbers from 0 of several samples; raise UsageError for one number alone."""
    if not isinstance(indices, Iterable):
        raise UsageError(
            f"read({indices!r}): it takes several samples' numbers",
            f"For one sample, give [{indices!r}].",
        )
    return [row_number(index, count) for index in indices]
