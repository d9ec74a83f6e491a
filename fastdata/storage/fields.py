"""Fields of a row: their names, kinds and types.

`fastdata.storage.columns` stores columns; blobs other than images have an index of their own.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

#: Kinds of fields whose values are encoded bytes, each with its extent.
BLOBS = ("image", "mask", "blob")
KINDS = (*BLOBS, "column")
#: Kinds of blobs that are files of images.
IMAGES = ("image", "mask")
#: Formats of boxes: corners; corner, width, height; centre, width, height.
BOXES = ("xyxy", "xywh", "cxcywh")
#: Formats of key points: x, y; x, y, visibility.
POINTS = ("xy", "xyv")
#: Formats of the outlines of objects: polygons of x, y, x, y, …; COCO's run lengths.
OUTLINES = ("polygons", "rle")
#: Before a format: its numbers are parts of the image's width and height, rather than pixels.
RELATIVE = "relative "
#: Formats of columns whose values lie in the image.
FORMATS = (*BOXES, *POINTS, *OUTLINES, *(RELATIVE + one for one in (*BOXES, *POINTS, "polygons")))
#: Name of the masks that columns of outlines give, where no field has it.
MASKS = "masks"
#: Names of fields. WebDataset's own begin with two underscores.
NAME = re.compile(r"(?!__)[^/\x00-\x1f\x7f\ud800-\udfff]{1,100}")
#: Names of fields that can be in the names of files, also behind URLs.
_IN_FILES = re.compile(r"(?!\d+$)[A-Za-z0-9][A-Za-z0-9_.\-]*")


class Field(NamedTuple):
    """Named, typed part of every row.

    Attributes:
        name: Its name, unique among the dataset's fields.
        kind: "image" for blobs that are decoded to pixels; "mask" for images whose pixels are
            numbers of classes or objects; "blob" for any other file's bytes; "column" for values
            of an Arrow type.
        type: Type of a column's values; None for other kinds, and for Python objects.
        nullable: Whether any row lacks it, or a null is inside one of its values.
        format: Meaning of a column whose values lie in the image, one of `FORMATS`; "" for others.
    """

    name: str
    kind: str
    type: pa.DataType | None = None
    nullable: bool = False
    format: str = ""

    def __reduce__(self) -> tuple[object, ...]:
        # Pickles of pyarrow's types lose the names of nested fields, which are in files.
        kind = None if self.type is None else _packed_type(self.name, self.type)
        return _unpickled, (self.name, self.kind, kind, self.nullable, self.format)


def _packed_type(name: str, kind: pa.DataType) -> bytes:
    """Return Arrow's schema message with one field of this type."""
    packed: bytes = pa.schema([(name, kind)]).serialize().to_pybytes()
    return packed


def _unpacked_type(packed: bytes) -> pa.DataType:
    """Return the type in a schema message; ArrowException, OSError, ValueError if it is none."""
    (field,) = pa.ipc.read_schema(pa.py_buffer(packed))
    return field.type


def _unpickled(name: str, kind: str, packed: bytes | None, nullable: bool, meaning: str) -> Field:
    return Field(name, kind, None if packed is None else _unpacked_type(packed), nullable, meaning)


IMAGE = Field("image", "image")
LABEL = Field("label", "column", pa.int32())
#: Fields of a dataset with an image and a class in each row.
IMAGE_AND_LABEL = (IMAGE, LABEL)


@dataclass(frozen=True)
class StoredField:
    """Field of a dataset, and the files that hold it.

    Attributes:
        field: The field.
        index: Name of its index file among the manifest's files; None for ``image`` and
            ``label``, which the dataset's own index holds.
        file: Name of a column's file among the manifest's; None for blobs.
        rows: Rows in each piece of a column's file.
    """

    field: Field
    index: str | None = None
    file: str | None = None
    rows: int = 0

    def to_json(self) -> dict[str, Any]:
        """Return its entry in the manifest."""
        name, kind, kind_of_values, nullable, meaning = self.field
        entry: dict[str, Any] = {"name": name, "kind": kind}
        if nullable:
            entry["nullable"] = True
        if meaning:
            entry["format"] = meaning
        if kind_of_values is not None:
            entry["type"] = str(kind_of_values)
        if self.index is not None:
            entry["index"] = self.index
        if self.file is not None:
            entry |= {"file": self.file, "rows": self.rows}
        if kind_of_values is not None and name != LABEL.name:
            entry["schema"] = base64.b64encode(_packed_type(name, kind_of_values)).decode()
        return entry

    @classmethod
    def parse(cls, entry: Mapping[str, Any], files: Iterable[str] | None) -> StoredField:
        """Return the field of an entry in the manifest; ``files`` are None if it names none.

        Raises:
            KeyError, TypeError, ValueError: A part is missing, wrong, or contradicts the files.
        """
        name, kind = entry["name"], entry["kind"]
        if not isinstance(name, str) or not NAME.fullmatch(name) or name == "key":
            raise ValueError(f"a field's name is {name!r}")
        if kind not in KINDS:
            raise ValueError(f"the kind of field {name} is {kind!r}")
        for known in (IMAGE, LABEL):
            if name == known.name:
                if kind != known.kind:
                    raise ValueError(f"the kind of field {name} is {kind!r}")
                return cls(known)
        index = None if files is None else entry["index"]
        nullable = entry.get("nullable", False)
        if type(nullable) is not bool:
            raise ValueError(f"nullable of field {name} is {nullable!r}")
        meaning = entry.get("format", "")
        if meaning != "" and (kind != "column" or meaning not in FORMATS):
            raise ValueError(f"the format of field {name} is {meaning!r}")
        if kind != "column":
            _require_file(name, index, files)
            return cls(Field(name, kind, None, nullable), index)
        file, rows = (None, 0) if files is None else (entry["file"], entry["rows"])
        _require_file(name, index, files)
        _require_file(name, file, files)
        if files is not None and (type(rows) is not int or not 1 <= rows < 1 << 32):
            raise ValueError(f"the rows of field {name} are {rows!r}")
        try:
            kind_of_values = _unpacked_type(base64.b64decode(entry["schema"]))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise ValueError(f"the schema of field {name} cannot be read: {error}") from None
        if meaning and not can_have(kind_of_values, meaning):
            raise ValueError(f"the field {name} is {kind_of_values}, which cannot be {meaning}")
        return cls(Field(name, kind, kind_of_values, nullable, meaning), index, file, rows)


def in_file_name(place: int, name: str) -> str:
    """Return a field's name in the names of its files; ``place`` is the field's in the dataset."""
    return name if _IN_FILES.fullmatch(name) else f"_{place}"


def common_fields(schemas: Sequence[Sequence[Field]]) -> tuple[Field, ...]:
    """Return the fields that all schemas have, with one kind and one type."""
    common = []
    for field in schemas[0]:
        several = [
            one
            for fields in schemas
            for one in fields
            if one[:3] == field[:3] and one.format == field.format
        ]
        if len(several) == len(schemas):
            common.append(field._replace(nullable=any(one.nullable for one in several)))
    return tuple(common)


def outlines_among(fields: Iterable[Field]) -> dict[str, Field]:
    """Return the columns that `MASKS` are painted from, by format; none if a field is ``masks``."""
    columns: dict[str, Field] = {}
    for field in fields:
        meaning = field.format.removeprefix(RELATIVE)
        if field.name == MASKS:
            return {}
        if meaning in OUTLINES:
            columns.setdefault(meaning, field)
    return columns


def can_have(kind: pa.DataType, meaning: str) -> bool:
    """Return whether values of an Arrow type can have one of `FORMATS`."""
    if not is_list(kind):
        return False
    meaning = meaning.removeprefix(RELATIVE)
    if meaning == "rle":
        one = kind.value_type
        if not pa.types.is_struct(one) or {part.name for part in one} != {"size", "counts"}:
            return False
        sizes, size = _list_sizes(one.field("size").type)
        counts, count = _list_sizes(one.field("counts").type)
        whole = pa.types.is_integer(size) and pa.types.is_integer(count)
        return whole and len(sizes) == len(counts) == 1 and sizes[0] in (None, 2)
    (_, *inner), item = _list_sizes(kind)
    if not (pa.types.is_integer(item) or pa.types.is_floating(item)) or not inner:
        return False
    last, step = inner[-1], numbers_of(meaning)
    if meaning in BOXES:
        return len(inner) == 1 and last in (None, step)
    if meaning in POINTS and len(inner) == 2:
        return last in (None, step)
    return len(inner) == (1 if meaning in POINTS else 2) and (last is None or last % step == 0)


def numbers_of(meaning: str) -> int:
    """Return the numbers of a box, a key point, or a corner of a polygon, by format."""
    return {"xyv": 3, "xy": 2, "polygons": 2}.get(meaning.removeprefix(RELATIVE), 4)


def is_list(kind: pa.DataType) -> bool:
    """Return whether a type's values are lists, of any size or a fixed one."""
    types = pa.types
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _list_sizes(kind: pa.DataType) -> tuple[list[int | None], pa.DataType]:
    """Return the sizes of lists in one another, None for any size, and the type of their items."""
    sizes: list[int | None] = []
    while is_list(kind):
        sizes.append(kind.list_size if pa.types.is_fixed_size_list(kind) else None)
        kind = kind.value_type
    return sizes, kind


#: Fields of a dataset whose manifest lists none.
STORED_IMAGE_AND_LABEL = tuple(map(StoredField, IMAGE_AND_LABEL))


def _require_file(field: str, name: Any, files: Iterable[str] | None) -> None:
    if files is not None and name not in files:
        raise ValueError(f"the file of field {field} is {name!r}, which is not among the files")
