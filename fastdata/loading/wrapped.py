"""Datasets of torchvision with boxes and masks, mostly wrapped for its transforms v2.

torchvision's own wrapper makes a sample's target, without its image and its masks; fastdata takes
it apart to columns. So keys, dtypes and formats are torchvision's.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any

import pyarrow as pa
import torch
from PIL import Image

from fastdata.decode.folders import SAMPLE_METHODS
from fastdata.errors import LEAVE_OUT, SampleError
from fastdata.loading.fields.readable import Readable, Unreadable, overridden
from fastdata.loading.noticing import remedy
from fastdata.storage.annotated import Annotated, AnnotatedSource
from fastdata.storage.fields import MASKS, Field
from fastdata.storage.paths import working_folder
from fastdata.storage.source import Source
from fastdata.text import class_name, human_count
from fastdata.transforms.compile import compile_for_images, movements
from fastdata.transforms.identity import changed, is_code, own_method
from fastdata.transforms.joint import ABSENT, Joint, Target

_WRAPPER = "torchvision.tv_tensors._dataset_wrapper"
#: Beginning of the columns that masks are painted from.
_OUTLINE = "masks_from_"
#: Ending of the column that says whether boxes are whole numbers.
_WHOLE = "_are_whole"
_BOXES = pa.list_(pa.list_(pa.float32(), 4))
_LABELS = pa.list_(pa.int64())
#: Columns that masks are painted from.
_OUTLINES = {
    "polygons": pa.list_(pa.list_(pa.list_(pa.float64()))),
    "rle": pa.list_(pa.struct([("size", pa.list_(pa.int32(), 2)), ("counts", pa.string())])),
}


@dataclass(frozen=True)
class _Kind:
    """One of torchvision's classes.

    Attributes:
        methods: Its methods that make a sample, beside `SAMPLE_METHODS`.
        images: Returns (path, -1) of each image.
        parts: Returns the parts of a target that is no dict, in their order: files of masks, or
            whole numbers, of each image. None: a dict, which the wrapper makes of ``target``.
        target: Returns a row's target before the wrapper; None: the class has none, as for a
            test set.
        values: Names of tensors with an entry a box.
        optional: Whether a sample without boxes lacks its keys.
        outlines: Returns the columns that masks are painted from, of a target before the wrapper.
        as_stored: Whether images keep the mode that they are stored in.
        state: Returns what decides which samples it has.
    """

    module: str
    factory: str
    images: Callable[[Any], Sequence[tuple[Any, int]]]
    state: Callable[[Any], Any]
    target: Callable[[Any], Callable[[int], Any] | None] = lambda dataset: None
    parts: Callable[[Any], Mapping[str, Sequence[Any]]] | None = None
    boxes: str = "boxes"
    values: Sequence[str] = ("labels",)
    methods: Sequence[str] = ()
    optional: bool = False
    as_stored: bool = False
    outlines: Callable[[Any], Mapping[str, Any]] | None = None


def _coco_path(dataset: Any, number: Any) -> str:
    name: str = dataset.coco.loadImgs(number)[0]["file_name"]
    return os.path.join(dataset.root, name)


def _coco_target(dataset: Any) -> Callable[[int], Any]:
    return lambda row: dataset._load_target(dataset.ids[row])


def _coco_outlines(objects: Any) -> dict[str, Any]:
    """Return the polygons or the run lengths of COCO's objects."""
    from pycocotools import mask  # type: ignore[import-untyped]  # CocoDetection needs it

    polygons: list[Any] = []
    runs: list[Any] = []
    for one in objects:
        outline = one["segmentation"]
        if isinstance(outline, dict):
            if not isinstance(outline["counts"], str):
                outline = {
                    **outline,
                    "counts": mask.frPyObjects(outline, *outline["size"])["counts"],
                }
            runs.append({"size": outline["size"], "counts": outline["counts"]})
        elif not isinstance(outline, list):
            hint = "Write it as a list of polygons, or as a dict of size and counts."
            raise SampleError(f"a segmentation is a {type(outline).__name__}", hint)
        else:
            runs.append(None)
        polygons.append(outline if isinstance(outline, list) else [])
    return {"polygons": polygons, "rle": runs}


def _voc_target(dataset: Any) -> Callable[[int], Any]:
    parse = sys.modules["torchvision.datasets.voc"].ET_parse
    files = _absolute(dataset.annotations)
    return lambda row: dataset.parse_voc_xml(parse(files[row]).getroot())


def _kitti_target(dataset: Any) -> Callable[[int], Any] | None:
    if not dataset.train:
        return None
    own = copy(dataset)
    own.targets = _absolute(dataset.targets)
    parse: Callable[[int], Any] = own._parse_target
    return parse


def _face_target(dataset: Any) -> Callable[[int], Any] | None:
    if dataset.split == "test":
        return None
    return lambda row: dataset.img_info[row]["annotations"]


#: Attributes of OxfordIIITPet, by the type of target.
_PETS = {"category": "_labels", "binary-category": "_bin_labels", "segmentation": "_segs"}

_KINDS = {
    "CocoDetection": _Kind(
        "torchvision.datasets.coco",
        "coco_dectection_wrapper_factory",
        lambda one: _Samples(list(one.ids), partial(_coco_path, one)),
        lambda one: (one.root, one.coco, list(one.ids)),
        _coco_target,
        methods=("_load_image", "_load_target"),
        optional=True,
        outlines=_coco_outlines,
    ),
    "VOCDetection": _Kind(
        "torchvision.datasets.voc",
        "voc_detection_wrapper_factory",
        lambda one: _Samples(list(one.images)),
        lambda one: (list(one.images), list(one.annotations)),
        _voc_target,
        methods=("parse_voc_xml", "annotations"),
    ),
    "Kitti": _Kind(
        "torchvision.datasets.kitti",
        "kitti_wrapper_factory",
        lambda one: _Samples(list(one.images)),
        lambda one: (list(one.images), list(one.targets), one.train),
        _kitti_target,
        methods=("_parse_target",),
        as_stored=True,
    ),
    "WIDERFace": _Kind(
        "torchvision.datasets.widerface",
        "widerface_wrapper",
        lambda one: _Samples([info["img_path"] for info in one.img_info]),
        lambda one: (list(map(id, one.img_info)), one.split),
        _face_target,
        boxes="bbox",
        values=("blur", "expression", "illumination", "occlusion", "pose", "invalid"),
        as_stored=True,
    ),
    "VOCSegmentation": _Kind(
        "torchvision.datasets.voc",
        "segmentation_wrapper_factory",
        lambda one: _Samples(list(one.images)),
        lambda one: (list(one.images), list(one.masks)),
        parts=lambda one: {"mask": list(one.masks)},
        methods=("masks",),
    ),
    "Cityscapes": _Kind(
        "torchvision.datasets.cityscapes",
        "cityscapes_wrapper_factory",
        lambda one: _Samples(list(one.images)),
        lambda one: (list(one.images), list(one.targets), list(one.target_type)),
        parts=lambda one: {"semantic": [files[0] for files in one.targets]},
    ),
    "OxfordIIITPet": _Kind(
        "torchvision.datasets.oxford_iiit_pet",
        "oxford_iiit_pet_wrapper_factor",
        lambda one: _Samples(list(one._images)),
        lambda one: (list(one._images), list(one._segs), list(one._labels), one._target_types),
        parts=lambda one: {name: getattr(one, _PETS[name]) for name in one._target_types},
    ),
}


def _absolute(files: Sequence[Any]) -> list[str]:
    """Return the paths of files, which ``os.chdir`` does not change."""
    base = working_folder()
    return [os.path.join(base, file) for file in files]


class _Samples(Sequence[tuple[Any, int]]):
    """(path, -1) of images, absolute; ``path`` makes each path when it is asked for."""

    def __init__(self, keys: Sequence[Any], path: Callable[[Any], Any] = os.fspath) -> None:
        self._keys, self._path, self._base = keys, path, working_folder()

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, row: Any) -> Any:
        return os.path.join(self._base, self._path(self._keys[row])), -1


def annotated_classes() -> tuple[type[Any], ...]:
    """Return the classes of torchvision that can be wrapped, of those that are imported."""
    classes = (getattr(sys.modules.get(kind.module), name, None) for name, kind in _KINDS.items())
    return tuple(filter(None, classes))


def wrapping_hint(dataset: Any) -> str:
    """Return the line that wraps a dataset of `annotated_classes`; "" for others."""
    base = next((one for one in annotated_classes() if isinstance(dataset, one)), None)
    if base is not None:
        with suppress(ImportError):  # torchvision before 0.16
            importlib.import_module(_WRAPPER)  # torchvision imports it when it first wraps
    kind = _kind_of(dataset)
    if base is None or kind is None:
        return ""
    own = own_method(dataset, base, *SAMPLE_METHODS, *kind.methods)
    what = f"Take torchvision's {base.__name__} itself, and wrap it" if own else "Wrap it"
    return (
        f"{what}: dataset = torchvision.datasets.wrap_dataset_for_transforms_v2(dataset), with "
        "transforms= of torchvision.transforms.v2, which take (image, target). The target then "
        "has boxes as BoundingBoxes, and masks as Mask."
    )


def _kind_of(dataset: Any) -> _Kind | None:
    """Return the kind of a dataset that torchvision's wrapper makes boxes of."""
    factories = getattr(sys.modules.get(_WRAPPER), "WRAPPER_FACTORIES", {})
    first = next((one for one in type(dataset).__mro__ if one in factories), None)
    kind = _KINDS.get(first.__name__) if first is not None else None
    return kind if kind is not None and first in annotated_classes() else None


def recognise_annotated(dataset: Any) -> Readable | Unreadable | None:
    """Return how fastdata reads a dataset with targets, or why it cannot; None for other ones."""
    module: Any = sys.modules.get(_WRAPPER)
    if module is None or not isinstance(dataset, module.VisionDatasetTVTensorWrapper):
        return _recognise_bare(dataset)
    inner = vars(dataset).get("_dataset")
    kind = _kind_of(inner)
    if kind is None:
        return None
    if reason := _replaced(dataset, inner, kind):
        return overridden(reason)
    if any(getattr(inner, name, None) is not None for name in _TRANSFORMS):
        why = f"transforms of the {class_name(inner)} inside were set after it was wrapped"
        return Unreadable(why, "Set them on the wrapped dataset.")
    if torch.get_default_dtype() != torch.float32:
        return Unreadable(
            "torch's default dtype is not float32", "Leave torch.set_default_dtype out."
        )
    if getattr(inner, "target_type", ["semantic"]) != ["semantic"]:
        why = f"its targets are {' and '.join(inner.target_type)}"
        return Unreadable(why, 'Take target_type="semantic", whose masks the core moves.')
    keys = _cells(dataset._wrapper).get("target_keys", ())
    if _is_standard(dataset.transforms):
        return Unreadable(_ALONE, "Give it transforms=, which takes (image, target).")
    made_of = _with_dict(inner, kind, keys) if kind.parts is None else _with_parts(inner, kind)
    return _as_images(dataset, inner, kind, *made_of, keys)


def _recognise_bare(dataset: Any) -> Unreadable | None:
    """Return why a dataset with targets has to be wrapped; None for other ones."""
    base = next((one for one in annotated_classes() if isinstance(dataset, one)), None)
    if base is None or dataset.transforms is None:
        return None
    kind = _KINDS[base.__name__]
    parts = None if kind.parts is None else kind.parts(dataset)
    if parts is not None and (len(parts) != 1 or _are_labels(*parts.values())):
        return None
    own = own_method(dataset, base, *SAMPLE_METHODS, *kind.methods) or changed(base)
    if own:
        # Such as torchvision's CocoCaptions, which derives from CocoDetection.
        theirs = type(dataset) is not base and is_code(type(dataset).__module__)
        return Unreadable(own, remedy(dataset)) if theirs else overridden(own)
    if parts is None:
        alone = getattr(dataset, "transform", None)
        if alone is not None and any(moves for _, moves in movements(alone)):
            return Unreadable(_ALONE, wrapping_hint(dataset))
        return None
    why = "its transforms= take masks that are PIL images"
    if _is_standard(dataset.transforms):
        why = "transform= and target_transform= take the image and its mask one by one"
    return Unreadable(why, wrapping_hint(dataset))


_TRANSFORMS = ("transform", "target_transform", "transforms")
_ALONE = "transform= takes its images alone, so that boxes do not follow them"


def _cells(function: Any) -> Mapping[str, Any]:
    """Return what a function has from the function around it, by name."""
    cells = (cell.cell_contents for cell in function.__closure__ or ())
    return dict(zip(function.__code__.co_freevars, cells, strict=True))


def _replaced(dataset: Any, inner: Any, kind: _Kind) -> str:
    """Say in a clause what of torchvision's classes is not as torchvision has it; "" for none."""
    module: Any = sys.modules[_WRAPPER]
    wrapper = module.VisionDatasetTVTensorWrapper
    base = next(one for one in type(inner).__mro__ if one in module.WRAPPER_FACTORIES)
    own = own_method(dataset, wrapper, *SAMPLE_METHODS, "__getattr__")
    own = own or own_method(inner, base, *SAMPLE_METHODS, *kind.methods)
    own = own or changed(base) or changed(module)
    if own:
        return own
    factory = module.WRAPPER_FACTORIES[base]
    name = getattr(dataset._wrapper, "__qualname__", "")
    known = factory is getattr(module, kind.factory) and name.startswith(f"{kind.factory}.")
    known = known and dataset._wrapper.__globals__ is vars(module)
    if not known or _cells(dataset._wrapper).get("dataset", inner) is not inner:
        return f"{class_name(dataset)} has another wrapper than torchvision's"
    return ""


def _as_images(
    dataset: Any,
    inner: Any,
    kind: _Kind,
    annotated: Annotated,
    joint: Joint,
    keys: Collection[str] = (),
) -> Readable:
    """Return how the core reads a dataset that has some files and targets."""
    transforms = dataset.transforms

    (root,) = _absolute([inner.root])

    def opener(learns: bool) -> Source:
        source = AnnotatedSource(annotated, root)
        if learns:
            source.learn()
        return source

    what = f"{type(inner).__name__} of {human_count(len(annotated.samples), 'file')}"
    source = opener(False)
    files = (type(inner), kind.state(inner), sorted(keys))
    return Readable(
        what=what,
        dataset=dataset,
        path=root,
        source=source,
        open=opener,
        transform=transforms,
        joint=True,
        recipe=compile_for_images(transforms, joint),
        files=files,
        fields=("image", *joint.targets),
    )


def _is_standard(transforms: Any) -> bool:
    known = getattr(sys.modules.get("torchvision.datasets.vision"), "StandardTransform", None)
    return known is not None and isinstance(transforms, known)


#: Fields and form of samples whose target is None.
_TARGET = "target"
_NOTHING = ([Field(_TARGET, "column")], Joint(("image", _TARGET), {_TARGET: Target("objects")}))


def _are_labels(values: Sequence[Any]) -> bool:
    """Return whether a part is a number of each image, rather than the file of a mask."""
    return {*map(type, values)} <= {int}


def _with_parts(inner: Any, kind: _Kind) -> tuple[Annotated, Joint]:
    """Return a dataset whose target is one part, or a tuple of several; and a sample's form."""
    assert kind.parts is not None
    columns = {name: list(values) for name, values in kind.parts(inner).items()}
    if not columns:
        fields, joint = _NOTHING
        return Annotated(kind.images(inner), fields, lambda row: {_TARGET: None}), joint
    files = {name: _absolute(one) for name, one in columns.items() if not _are_labels(one)}
    fields = [
        Field(name, "mask") if name in files else Field(name, "column", pa.int64())
        for name in columns
    ]
    targets = {name: Target("mask" if name in files else "values") for name in columns}
    joint = Joint(("image", tuple(targets) if len(targets) > 1 else next(iter(targets))), targets)

    def read(row: int) -> dict[str, Any]:
        return {name: values[row] for name, values in columns.items()}

    return Annotated(kind.images(inner), fields, read, files), joint


def _with_dict(inner: Any, kind: _Kind, keys: Collection[str]) -> tuple[Annotated, Joint]:
    """Return a dataset whose target is a dict with some keys, or None; and a sample's form."""
    listed, raw = kind.images(inner), kind.target(inner)
    if raw is None:
        fields, joint = _NOTHING
    else:
        # torchvision names an image without annotations, whatever keys are asked for.
        fields, joint = _schema(kind, {*keys, "image_id"} if kind.optional else keys)
    wrapper = getattr(sys.modules[_WRAPPER], kind.factory)(inner, {*keys} - {MASKS})
    read = partial(_values, kind, raw, wrapper, [*joint.targets], listed)
    return Annotated(listed, fields, read), joint


def _schema(kind: _Kind, keys: Collection[str]) -> tuple[list[Field], Joint]:
    """Return the columns of targets with some keys, and a sample's form."""
    first = [name for name in ("annotation", "image_id", kind.boxes, *kind.values) if name in keys]
    fields, targets = [], {}
    for name in dict.fromkeys([*first, *keys]):
        target = Target("objects", optional=kind.optional)
        field = Field(name, "column")
        if name == kind.boxes:
            whole = name + _WHOLE
            fields.append(Field(whole, "column", pa.bool_()))
            field = Field(name, "column", _BOXES, kind.optional, "xyxy")
            target = Target("boxes", "xyxy", whole=whole, optional=kind.optional)
        elif name in kind.values:
            field = Field(name, "column", _LABELS, kind.optional)
            target = Target("values", optional=kind.optional)
        elif name == MASKS and kind.outlines is not None:
            target = Target("outlines", optional=kind.optional)
            several = _OUTLINES.items()
            fields += [Field(_OUTLINE + one, "column", of, True, one) for one, of in several]
            targets[name] = target
            continue
        fields.append(field)
        targets[name] = target
    return fields, Joint(("image", {name: name for name in targets}), targets)


_FOUR = "Write four numbers for each object."
#: Image instead of a sample's own: no key but masks depends on its pixels or size.
_STUB = Image.new("RGB", (1, 1))


def _values(
    kind: _Kind,
    raw: Callable[[int], Any] | None,
    wrapper: Callable[[int, Any], Any],
    names: Sequence[str],
    listed: Sequence[tuple[Any, int]],
    row: int,
) -> dict[str, Any]:
    """Return a row's values of all columns."""
    if kind.as_stored:
        _require_rgb(listed[row][0])
    if raw is None:
        return {_TARGET: None}
    stored = raw(row)
    _, target = wrapper(row, (_STUB, stored))
    columns: dict[str, Any] = {}
    if MASKS in names and kind.outlines is not None:
        outlines = kind.outlines(stored) if stored else dict.fromkeys(_OUTLINES)
        columns |= {_OUTLINE + name: value for name, value in outlines.items()}
        names = [name for name in names if name != MASKS]
    for name in names:
        value = target.get(name, ABSENT)
        if name == kind.boxes:
            columns[name + _WHOLE] = value is not ABSENT and not value.is_floating_point()
            if value is not ABSENT and value.shape[-1] != 4:
                raise SampleError(f"its boxes have {value.shape[-1]} numbers, not 4", _FOUR)
            value = None if value is ABSENT else value.as_subclass(torch.Tensor).float().numpy()
        elif name in kind.values:
            if value is not ABSENT and (value.dtype != torch.int64 or value.ndim != 1):
                hint = "Write a whole number for each object."
                raise SampleError(f"its {name} are no list of whole numbers", hint)
            value = None if value is ABSENT else value.numpy()
        columns[name] = value
    return columns


def _require_rgb(path: Any) -> None:
    """Raise `SampleError` for an image that torchvision does not convert to RGB."""
    try:
        with Image.open(path) as image:
            mode = image.mode
    except OSError:  # decoding says more
        return
    if mode != "RGB":
        raise SampleError(
            f"it is an image of mode {mode}, which torchvision does not convert",
            f"Convert the file to RGB, or {LEAVE_OUT}",
        )
