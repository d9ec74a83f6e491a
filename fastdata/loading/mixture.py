"""`Mixture`: several datasets in given shares, as one dataset with an order of its own."""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from torch.utils.data import ConcatDataset, Dataset, Subset

from fastdata.decode.folders import folder_class
from fastdata.errors import UsageError
from fastdata.loading.fields.names import SOURCE, require_names, row_number
from fastdata.loading.fields.samples import NativeSamples
from fastdata.loading.samplers import PlannedSampler
from fastdata.plan.mixture import MixturePlan
from fastdata.plan.sharding import HasEpoch, whole

#: Shares by name of source.
Weights: TypeAlias = Mapping[str, float]

#: Names of epoch lengths.
LENGTHS = ("sum", "endless")
#: Positions of an endless epoch: more than any run takes.
ENDLESS = 1 << 40


class Mixture(HasEpoch, ConcatDataset[Any]):
    """Dataset that draws from several datasets in given shares.

    ``mixture[i]`` is the sample at position ``i`` of an epoch. `fastdata.DataLoader` takes them
    in turn, without ``shuffle`` or ``order``: the mixture shuffles each source. Which row of which
    source is at a position is a function of (``seed``, epoch, position), computed where it is
    needed. So ranks, threads, batch sizes and resuming change nothing.

    In each 1,000 positions counted from an epoch's beginning, each source has its share, to within
    less than one sample. All rows of a source come before any comes again; such a pass over a
    source continues from epoch to epoch.

    Sources need the same form of samples; see docs/mixtures.md for what keeps them native.

    Args:
        sources: Datasets by name: ``{"a": dataset_a, "b": dataset_b}``; or with their weights:
            ``{"a": (dataset_a, 0.7), "b": (dataset_b, 0.3)}``.
        weights: Weights that are not in ``sources``: by name, from 0 and of any scale; or a
            function that returns such a dict for an epoch's number. None: the datasets' lengths.
        temperature: Takes weights to the power of 1 / temperature: 1 leaves them, infinity makes
            them equal.
        samples: Positions of an epoch: a number; "sum" of the datasets' lengths; or "endless", for
            loops that count steps.
        group: Neighbouring positions with one source. With the loader's ``batch_size`` or a
            multiple of it, each batch has one source. Shares then hold in each 1,000 groups.
        seed: Seed of the order of each source's rows; crops follow the loader's ``seed``.
        fields: Keys of a sample, which is then a dict: any that every source's samples have, and
            "source", the source's place in ``names``. None: all that they have in common, in a
            tuple or, if theirs are dicts, in a dict.

    Attributes:
        names: Names of the sources.
        datasets: The sources.
        epoch: The epoch of ``mixture[i]``; a loader sets it.
        group: As given.
        plan: The plan of all epochs.

    Raises:
        UsageError: Arguments contradict each other, or a source has no samples.
    """

    def __init__(
        self,
        sources: Mapping[str, Any],
        weights: Weights | Callable[[int], Weights] | None = None,
        *,
        temperature: float = 1.0,
        samples: int | str = "sum",
        group: int = 1,
        seed: int = 0,
        fields: Sequence[str] | None = None,
    ) -> None:
        datasets, given = _split(sources)
        super().__init__(datasets.values())
        self.names = tuple(datasets)
        for name, one in datasets.items():
            if not len(one):
                raise UsageError(f"source {name!r} has no samples", "Leave it out.")
            if next(mixtures_in(one), None) is not None:
                raise UsageError(f"source {name!r} is a Mixture", "Name its sources in this one.")
        if given and weights is not None:
            hint = "Give weights= or pairs of a dataset and its weight, not both."
            raise UsageError("weights are given twice", hint)
        if not temperature > 0:
            raise UsageError(
                f"{temperature=}", "Give a number above 0; 1 leaves weights as they are."
            )
        by_length = {name: float(len(one)) for name, one in datasets.items()}
        self._weights = weights if weights is not None else given or by_length
        self._power = 1 / temperature
        self.group, self._seed = whole("group", group, 1), operator.index(seed)
        if fields is not None:
            require_names(fields, "Give a tuple of names, each once.")
        self._given_fields = fields
        sizes = list(map(len, self.datasets))  # type: ignore[arg-type]
        self._length = _length(samples, sum(sizes), self.group)
        changing = callable(self._weights)
        self.shares(0)
        self.plan = MixturePlan(sizes, self.shares, changing, self._length, self.group, self._seed)

    def __repr__(self) -> str:
        shares = zip(self.names, self.datasets, self.shares(self.epoch), strict=True)
        named = (f"{name!r}: {len(one):,} samples, {share:.1%}" for name, one, share in shares)  # type: ignore[arg-type]
        length = "endless" if self._length >= ENDLESS else f"samples={self._length}"
        arguments = f"{length}, group={self.group}, seed={self._seed}"
        return f"Mixture({{{'; '.join(named)}}}, {arguments})"

    def shares(self, epoch: int) -> list[float]:
        """Return each source's share of an epoch; they sum to 1.

        Raises:
            UsageError: Weights are of other sources, negative, or all 0.
        """
        chosen: Any = self._weights
        if callable(chosen):
            chosen = chosen(epoch)
        if not isinstance(chosen, Mapping) or chosen.keys() != set(self.names):
            named = ", ".join(map(repr, self.names))
            raise UsageError(
                f"weights of epoch {epoch}: {chosen!r}", f"Give one for each of {named}."
            )
        weights = [chosen[name] for name in self.names]
        try:
            numbers = [float(weight) for weight in weights]
        except (TypeError, ValueError):
            numbers = [math.nan]
        if not all(0 <= number < math.inf for number in numbers) or not any(numbers):
            hint = "Give numbers from 0, one of them positive."
            raise UsageError(f"weights of epoch {epoch}: {chosen!r}", hint)
        # Scaled first, so that powers neither overflow nor all vanish.
        scaled = [(number / max(numbers)) ** self._power if number else 0.0 for number in numbers]
        return [number / sum(scaled) for number in scaled]

    @property
    def fields(self) -> tuple[str, ...] | None:
        """Names of a sample's contents, in order; None where sources are not known to have any.

        Raises:
            UsageError: Not every source has the fields that were asked for.
        """
        parts, asked = list(map(_fields_of, self.datasets)), self._given_fields
        if None in parts:
            if asked is not None:
                unknown = self.names[parts.index(None)]
                raise UsageError(
                    f"fields={asked!r}: the fields of source {unknown!r} are not known",
                    "Leave fields= out, or give an ImageDataset.",
                )
            return None
        has = [one or () for one in parts]
        common = [name for name in has[0] if all(name in one for one in has)]
        for name in asked or ():
            stored = any(name in one for one in has)
            if name not in common and (name != SOURCE or stored):
                lacking = next(at for at, one in enumerate(has) if name not in one)
                raise UsageError(
                    f"fields={asked!r}: samples of source {self.names[lacking]!r} have no {name!r}",
                    f"Name it in fields= of that dataset, or give some of {(*common, SOURCE)!r}.",
                )
        if not common and asked is None:
            raise UsageError("the sources have no field in common", "Name them in their fields=.")
        return tuple(common if asked is None else asked)

    @property
    def places(self) -> bool:
        """Whether "source" of a sample is the source's place, and no field of the source's."""
        return SOURCE in (self.fields or ()) and SOURCE not in (_fields_of(self.datasets[0]) or ())

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Any:
        """Return the sample at a position of the epoch.

        Args:
            index: The position from 0; a negative one counts from the end.

        Raises:
            IndexError: There is no such position.
            FastdataError: The sample cannot be read or decoded.
        """
        position = np.array([row_number(index, len(self))])
        source, row = (int(one[0]) for one in self.plan(self.epoch, position))
        return self._sample(source, self.datasets[source][row])

    def __getitems__(self, positions: Sequence[int]) -> list[Any]:
        """Return several samples, for torch's own loader; each source decodes its own together."""
        asked = np.array([row_number(one, len(self)) for one in positions], np.int64)
        sources, rows = self.plan(self.epoch, asked)
        samples: list[Any] = [None] * len(asked)
        for source in np.unique(sources).tolist():
            slots, part = np.flatnonzero(sources == source).tolist(), self.datasets[source]
            own: Any = getattr(
                part, "__getitems__", lambda numbers, part=part: [part[n] for n in numbers]
            )
            for slot, sample in zip(slots, own(rows[slots].tolist()), strict=True):
                samples[slot] = self._sample(source, sample)
        return samples

    @property
    def named(self) -> bool:
        """Whether a sample is a dict by field, as the mixture or a source was given fields."""
        named = (getattr(one, "named", False) for one in leaves(self))
        return self._given_fields is not None or any(named)

    def _sample(self, source: int, sample: Any) -> Any:
        """Return a source's sample as one of the mixture."""
        own, has = self.fields, _fields_of(self.datasets[source])
        named, dicts = self.named, isinstance(sample, dict)
        if own is None or (own == has and named == dicts):
            return sample
        values = sample if dicts else dict(zip(has or (), sample, strict=True))
        values = {SOURCE: source, **values}
        chosen = {name: values[name] for name in own}
        return chosen if named else tuple(chosen.values())


class WrappedDataset(Dataset[Any]):
    """Dataset with the attributes of another: a worker_init_fn may look at them."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def __getattr__(self, name: str) -> Any:
        if name == "_dataset":  # unpickling asks before it exists
            raise AttributeError(name)
        return getattr(self._dataset, name)

    def __len__(self) -> int:
        return len(self._dataset)


def datasets_in(dataset: Any) -> Iterator[Any]:
    """Yield a dataset and those inside it, looking through Subset and ConcatDataset."""
    yield dataset
    inside = [dataset.dataset] if isinstance(dataset, Subset) else []
    for one in dataset.datasets if isinstance(dataset, ConcatDataset) else inside:
        yield from datasets_in(one)


def leaves(dataset: Any) -> Iterator[Any]:
    """Yield the datasets inside a dataset that have samples of their own."""
    several = (Subset, ConcatDataset)
    return (one for one in datasets_in(dataset) if not isinstance(one, several))


def mixtures_in(dataset: Any) -> Iterator[Mixture]:
    """Yield the mixtures inside a dataset."""
    return (one for one in datasets_in(dataset) if isinstance(one, Mixture))


def transforms_of(dataset: Any) -> Iterator[Any]:
    """Yield the transforms of the datasets inside a dataset."""
    for one in leaves(dataset):
        by_field = getattr(one, "field_transforms", {}).values()
        yield from (getattr(one, "transform", None), getattr(one, "transforms", None), *by_field)


def refuse_paths(dataset: Any, what: str = "dataset") -> None:
    """Raise an error for a path in a dataset's place: torch would load its letters."""
    for one in leaves(dataset):
        if isinstance(one, str | bytes | os.PathLike):
            raise UsageError(
                f"{what}={os.fspath(one)!r} is a path, not a dataset",
                "Give fastdata.ImageDataset(path, transform=...).",
            )


def group_of(
    dataset: Any, planned: PlannedSampler | None, batch_size: int | None, ordered: Any = False
) -> int:
    """Return the number of neighbouring positions that belong to one batch.

    Raise UsageError if batches, or an order that is asked for (``ordered``), take a group apart.
    """
    mixed = planned is None and isinstance(dataset, Mixture)
    if mixed and ordered:
        raise UsageError(
            "a Mixture shuffles its sources, and shuffle= or order= is given as well",
            "Leave both out.",
        )
    group: int = dataset.group if mixed else getattr(planned, "group", 1)
    if group > 1 and group % (batch_size or 1):
        whose = "group= of the Mixture" if mixed else "batch_size= of the sampler"
        raise UsageError(
            f"batch_size={batch_size} does not divide {group}, the {whose}",
            f"Give batch_size={group} to the loader.",
        )
    return group


def _split(sources: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the datasets by name, and the weights, if they are given beside them."""
    hint = "Give {name: dataset, …}, or {name: (dataset, weight), …}."
    if not isinstance(sources, Mapping) or not sources:
        raise UsageError(f"sources={sources!r}", hint)
    pairs = {name: one for name, one in sources.items() if isinstance(one, tuple) and len(one) == 2}
    if pairs and len(pairs) < len(sources):
        without = next(name for name in sources if name not in pairs)
        raise UsageError(f"source {without!r} has no weight, and others have", hint)
    for name in sources:
        if not isinstance(name, str):
            raise UsageError(f"source {name!r} is not named by a string", hint)
    datasets = {name: one[0] if pairs else one for name, one in sources.items()}
    for name, one in datasets.items():
        refuse_paths(one, f"source {name!r}")
        if isinstance(one, (list, tuple)) and one:
            refuse_paths(one[0], f"source {name!r}[0]")
        if not hasattr(one, "__getitem__") or not hasattr(one, "__len__"):
            raise UsageError(f"source {name!r} is {one!r}, which has no numbered samples", hint)
    return datasets, {name: one[1] for name, one in pairs.items()}


def _length(samples: Any, rows: int, group: int) -> int:
    """Return the positions of an epoch."""
    if isinstance(samples, str):
        if samples not in LENGTHS:
            raise UsageError(f"{samples=}", f"Give a number, or one of {', '.join(LENGTHS)}.")
        return -(-(rows if samples == "sum" else ENDLESS) // group) * group
    count = whole("samples", samples, 1, ENDLESS)
    if count % group:
        raise UsageError(f"{samples=} and {group=}", f"Give a multiple of {group} as samples.")
    return count


def _fields_of(dataset: Any) -> tuple[str, ...] | None:
    """Return the fields of a dataset's samples, if they are known."""
    while isinstance(dataset, Subset):
        dataset = dataset.dataset
    if isinstance(dataset, ConcatDataset):
        several = list(map(_fields_of, dataset.datasets))
        return several[0] if len(set(several)) == 1 else None
    if isinstance(dataset, NativeSamples):
        fields: tuple[str, ...] | None = getattr(dataset, "fields", None)
        return fields
    base = folder_class()
    return ("image", "label") if base is not None and isinstance(dataset, base) else None
