"""Names of a sample's fields, the form of targets, and numbers of samples, checked."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fastdata.errors import UsageError
from fastdata.storage.fields import (
    BOXES,
    IMAGE,
    LABEL,
    MASKS,
    POINTS,
    RELATIVE,
    Field,
    outlines_among,
)
from fastdata.text import class_name
from fastdata.transforms.checks import require_objects
from fastdata.transforms.joint import Joint, Target

#: Names beside fields: a sample's name and its number.
BESIDES = ("index", "key")
#: Name of the field that says where each pixel of an image comes from.
GEOMETRY = "geometry"
#: Ending of the name of key points' visibility.
VISIBILITY = "_visibility"
#: Name of a sample's source in a mixture, by its place among them.
SOURCE = "source"
#: Remedy for a transform of a field without images.
LEAVE_OUT = "Leave it out; batch_transform= or collate_fn= of the loader see other fields."
#: Kinds of targets, by the format of a field.
_KINDS = {**dict.fromkeys(BOXES, "boxes"), **dict.fromkeys(POINTS, "points")}
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
    asked: Sequence[str] | None,
    transforms: Iterable[str],
    *,
    joint: bool,
    labels: bool,
) -> tuple[str, ...]:
    """Return the fields of a sample; without ``asked``, image and, if there is one, label.

    Raise UsageError if there is no such field, a transform has none, or a joint one no image.
    ``labels``: there is a transform of labels.
    """
    known = {field.name: field for field in fields}
    if asked is None:
        asked = [name for name in (IMAGE.name, LABEL.name) if name in known]
    require_known(asked, known, path, joint=joint)
    for name in transforms:
        if name in known and known[name].kind != "image":
            raise UsageError(
                f"{path}: transform has {name!r}, which is no field of images",
                _MOVE if known[name].kind == "mask" else LEAVE_OUT,
            )
        if name not in asked:
            raise UsageError(
                f"{path}: transform has {name!r}, which is not in fields={asked!r}",
                "Name the field in fields=, or leave its transform out.",
            )
    if labels and LABEL not in fields:
        what = f"{path}: target_transform is for labels, and the dataset has none"
        raise UsageError(what, LEAVE_OUT)
    return tuple(asked)


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


def joint_of(fields: Sequence[Field], names: Sequence[str]) -> Joint:
    """Return the form of a sample of some fields, as a joint transform is called with it.

    It is (image, target): the one other field, or a dict of several.
    """
    known = {field.name: field for field in fields}
    targets: dict[str, Target] = {}
    for name in names:
        field = known.get(name)
        if name == "image":
            continue
        if name == MASKS and outlines_among(fields):
            kind = "outlines"
        elif field is None:
            kind = "geometry" if name == GEOMETRY else "values"
        else:
            other = "mask" if field.kind == "mask" else "values"
            kind = _KINDS.get(field.format.removeprefix(RELATIVE), other)
        targets[name] = Target(kind, "xyxy" if kind == "boxes" else "")
        if field is not None and field.format.endswith("xyv"):
            targets[name + VISIBILITY] = Target("visibility")
    inner: Any = next(iter(targets)) if len(targets) == 1 else {name: name for name in targets}
    return Joint(("image", inner) if targets else ("image",), targets)
