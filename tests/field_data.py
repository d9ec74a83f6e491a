"""Rows with values of every kind, nulls among them, for tests of fields."""

from __future__ import annotations

import datetime
import decimal
import io
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

ROWS = 40
_IMAGES = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_TEXTS = [
    "",
    "a caption",
    "zwölf Boxkämpfer",
    "日本語 🦊",
    'line\nbreak, "quotes"\t\\',
    " ",
    "a\0b",
]


def image_file(number: int, kind: str = "JPEG") -> bytes:
    noise = np.random.default_rng(number).integers(0, 256, (20, 24 + number % 5, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, kind)
    return file.getvalue()


def some(values: list[Any], lack: int) -> list[Any]:
    return [None if at % lack == 0 else value for at, value in enumerate(values)]


def columns(rows: int = ROWS) -> dict[str, pa.Array]:
    numbers = range(rows)
    found: dict[str, pa.Array] = {"id": pa.array(numbers, pa.int64())}
    for kind in (pa.int8, pa.int16, pa.int32, pa.int64, pa.uint8, pa.uint16, pa.uint32, pa.uint64):
        limits = np.iinfo(str(kind()))
        values = [(limits.min, limits.max, number)[number % 3] for number in numbers]
        found[str(kind())] = pa.array(values, kind())
        found[f"maybe-{kind()}"] = pa.array(some(values, 7), kind())
    for kind in (pa.float16, pa.float32, pa.float64):
        values = [(float("inf"), -0.0, number / 8)[number % 3] for number in numbers]
        halves = np.array(values, np.float16) if kind == pa.float16 else values
        found[str(kind())] = pa.array(halves, kind())
        found[f"maybe-{kind()}"] = pa.array(some(list(halves), 5), kind())
    flags = [number % 3 == 0 for number in numbers]
    found |= {"flag": pa.array(flags), "maybe-flag": pa.array(some(flags, 4))}
    texts = [_TEXTS[number % len(_TEXTS)] for number in numbers]
    found |= {"text": pa.array(texts), "maybe-text": pa.array(some(texts, 3))}
    found |= {"large": pa.array(some(texts, 6), pa.large_string())}
    found |= {"category": pa.array(some(texts, 9)).dictionary_encode()}
    moment = datetime.datetime(2024, 2, 29, 12, 30, 1, 123456)
    moments = [moment + datetime.timedelta(days=number, microseconds=number) for number in numbers]
    for unit in ("s", "ms", "us"):
        found[f"time-{unit}"] = pa.array(moments, pa.timestamp("us")).cast(
            pa.timestamp(unit), safe=False
        )
    nanos = pa.array([1_700_000_000_123_456_789 + number for number in numbers], pa.int64())
    found["time-ns"] = nanos.cast(pa.timestamp("ns"))
    found["maybe-time-ns"] = pa.array(some(nanos.to_pylist(), 4), pa.int64()).cast(
        pa.timestamp("ns", "UTC")
    )
    found["day"] = pa.array(some([one.date() for one in moments], 8))
    clock = [86_399_999_999_999 - number for number in numbers]
    found["clock"] = pa.array(some(clock, 5), pa.int64()).cast(pa.time64("ns"))
    found["lasts"] = pa.array(some(clock, 5), pa.int64()).cast(pa.duration("ns"))
    found["price"] = pa.array(
        [decimal.Decimal(number) / 4 for number in numbers], pa.decimal128(9, 2)
    )
    tags = [texts[: at % 4] for at in numbers]
    found |= {"tags": pa.array(tags), "maybe-tags": pa.array(some([some(t, 2) for t in tags], 5))}
    ragged = [[at / 2] * (at % 4) for at in numbers]
    found |= {"ragged": pa.array(ragged, pa.list_(pa.float32()))}
    boxes = [[[at, 0, 5, 9]] * (at % 3) for at in numbers]
    found |= {"boxes": pa.array(boxes, pa.list_(pa.list_(pa.int16(), 4)))}
    found |= {"maybe-boxes": pa.array(some(boxes, 4), pa.large_list(pa.list_(pa.float64())))}
    found |= {"vector": pa.array([[at / 3] * 5 for at in numbers], pa.list_(pa.float32(), 5))}
    found |= {
        "maybe-vector": pa.array(some([[at] * 2 for at in numbers], 3), pa.list_(pa.int8(), 2))
    }
    structs = [{"name": text, "at": {"x": at, "y": None}} for at, text in enumerate(texts)]
    at = pa.struct([("x", pa.int32()), ("y", pa.float32())])
    found |= {"about": pa.array(some(structs, 6), pa.struct([("name", pa.string()), ("at", at)]))}
    parts = [[{"area": at / 2, "crowd": at % 2 == 0}] * (at % 3) for at in numbers]
    found |= {"parts": pa.array(some(parts, 7))}
    found |= {"empty": pa.nulls(rows, pa.string()), "nothing": pa.nulls(rows)}
    return found


def blobs(rows: int = ROWS) -> dict[str, list[bytes | None]]:
    return {
        "second": some([image_file(100 + at, "PNG") for at in range(rows)], 4),
        "raw": some([bytes([at]) * (at + 1) * 40 for at in range(rows)], 5),
    }


def table(rows: int = ROWS) -> pa.Table:
    found: dict[str, pa.Array] = {"key": pa.array([f"a/{at:03d}" for at in range(rows)])}
    found |= {"label": pa.array([at % 3 for at in range(rows)])}
    pictures = [{"bytes": image_file(at), "path": None} for at in range(rows)]
    found["image"] = pa.array(pictures, _IMAGES)
    found |= columns(rows)
    extra = blobs(rows)
    second = [None if one is None else {"bytes": one, "path": None} for one in extra["second"]]
    found |= {"second": pa.array(second, _IMAGES), "raw": pa.array(extra["raw"], pa.binary())}
    return pa.table(found)
