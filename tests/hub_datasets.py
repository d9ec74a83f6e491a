"""Datasets of the library ``datasets`` as the Hub has them: kinds of columns, and ways to load."""

from __future__ import annotations

import datetime
import io
import json
import tarfile
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

ROWS = 7
NAMES = ["ant", "bee", "cat"]
TEXTS = ["a dog", "zwölf", "", "日本", "two\nlines", "a", "b"]


def pixels(number: int, size: tuple[int, int] = (40, 30)) -> Image.Image:
    noise = np.random.default_rng(number).integers(0, 256, (5, 6, 3), np.uint8)
    return Image.fromarray(noise).resize((size[0] + number, size[1]), Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def jpeg(number: int, **options: Any) -> bytes:
    return encoded(pixels(number), **options)


def turned(number: int) -> bytes:
    exif = Image.Exif()
    if number % 9:
        exif[0x0112] = number % 9
    return encoded(pixels(number), exif=exif)


def mask(number: int, mode: str = "P") -> bytes:
    numbers = np.random.default_rng(number).integers(0, 5, (30, 40 + number), np.uint8)
    image = Image.fromarray(numbers)
    if mode == "P":
        image.putpalette(list(range(60)))
    return encoded(image if mode in "PL" else Image.fromarray(numbers.astype(np.uint16)), "PNG")


def cell(data: bytes | None, path: str | None = None) -> dict[str, Any] | None:
    return None if data is None else {"bytes": data, "path": path}


def cells(make: Callable[[int], bytes] = jpeg) -> list[Any]:
    return [cell(make(number), f"{number}.jpg") for number in range(ROWS)]


def _folder(root: Path, metadata: str = "") -> None:
    for number in range(ROWS):
        folder = root / "train" / ("" if metadata else NAMES[number % 3])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number}.jpg").write_bytes(jpeg(number))
        if metadata == "pairs":
            (folder / f"{number}.png").write_bytes(mask(number))


def classes(ds: Any, root: Path) -> Any:
    _folder(root)
    return ds.load_dataset("imagefolder", data_dir=str(root), split="train")


def objects_jsonl(ds: Any, root: Path) -> Any:
    _folder(root, "jsonl")
    lines = (
        {
            "file_name": f"{n}.jpg",
            "objects": {"bbox": [[1.0, 2.0, 3.0, 4.0]] * n, "categories": list(range(n))},
        }
        for n in range(ROWS)
    )
    (root / "train" / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return ds.load_dataset("imagefolder", data_dir=str(root), split="train")


def pairs_jsonl(ds: Any, root: Path) -> Any:
    _folder(root, "pairs")
    lines = (
        {"image_file_name": f"{n}.jpg", "mask_file_name": f"{n}.png", "depth": n}
        for n in range(ROWS)
    )
    (root / "train" / "metadata.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return ds.load_dataset("imagefolder", data_dir=str(root), split="train")


def _labelled(ds: Any, **others: Any) -> Any:
    features = {"image": ds.Image(), "label": ds.ClassLabel(names=NAMES)}
    columns = {"image": cells(), "label": [number % 3 for number in range(ROWS)]}
    features |= {name: feature for name, (feature, _) in others.items()}
    columns |= {name: values for name, (_, values) in others.items()}
    return ds.Dataset.from_dict(columns, ds.Features(features))


def pushed_parquet(ds: Any, root: Path) -> Any:
    _labelled(ds).to_parquet(root / "train.parquet", batch_size=3)
    return ds.Dataset.from_parquet(str(root / "train.parquet"), cache_dir=str(root / "cache"))


def old_parquet(ds: Any, root: Path) -> Any:
    """As others wrote it: Snappy, and no features."""
    images = pa.array(cells(), pa.struct([("bytes", pa.binary()), ("path", pa.string())]))
    table = pa.table({"img": images, "text": TEXTS, "label": [n % 3 for n in range(ROWS)]})
    pq.write_table(table, root / "old.parquet", compression="snappy", row_group_size=2)
    found = ds.Dataset.from_parquet(str(root / "old.parquet"), cache_dir=str(root / "cache"))
    return found.cast_column("img", ds.Image())


def shards_on_disk(ds: Any, root: Path) -> Any:
    _labelled(ds).save_to_disk(root / "saved", num_shards=3)
    return ds.load_from_disk(root / "saved")


def webdataset(ds: Any, root: Path) -> Any:
    with tarfile.open(root / "000.tar", "w") as tar:
        for number in range(ROWS):
            about = json.dumps({"caption": TEXTS[number], "size": [number, 2]}).encode()
            for suffix, data in (
                ("jpg", jpeg(number)),
                ("cls", str(number % 3).encode()),
                ("json", about),
            ):
                member = tarfile.TarInfo(f"n{number:03}.{suffix}")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return ds.load_dataset("webdataset", data_files=str(root / "*.tar"), split="train")


def in_memory(ds: Any, root: Path) -> Any:
    arrays = [np.asarray(pixels(number)) for number in range(ROWS)]
    features = ds.Features({"image": ds.Image(), "label": ds.Value("uint8")})
    columns = {"image": arrays, "label": list(range(ROWS))}
    return ds.Dataset.from_dict(columns, features)


def with_nulls(ds: Any, root: Path) -> Any:
    images = [cell(None) if n == 2 else cell(jpeg(n)) for n in range(ROWS)]
    features = ds.Features(
        {
            "image": ds.Image(),
            "second": ds.Image(),
            "label": ds.ClassLabel(names=NAMES),
            "text": ds.Value("string"),
            "boxes": ds.List(ds.List(ds.Value("float32"))),
            "about": {"x": ds.Value("int32"), "y": ds.Value("string")},
        }
    )
    columns = {
        "image": images,
        "second": [None if n % 2 else cell(jpeg(n + 30)) for n in range(ROWS)],
        "label": [None if n == 4 else n % 3 for n in range(ROWS)],
        "text": [None if n == 1 else text for n, text in enumerate(TEXTS)],
        "boxes": [None if n == 3 else [[0.5] * 4] * n for n in range(ROWS)],
        "about": [{"x": None if n == 5 else n, "y": TEXTS[n]} for n in range(ROWS)],
    }
    return ds.Dataset.from_dict(columns, features)


def frames(ds: Any, root: Path) -> Any:
    several = [[cell(jpeg(10 * n + at)) for at in range(n % 4)] for n in range(ROWS)]
    return _labelled(ds, frames=(ds.List(ds.Image()), several))


def nested(ds: Any, root: Path) -> Any:
    features = ds.Features(
        {
            "views": {"left": ds.Image(), "right": ds.Image(), "angle": ds.Value("float32")},
            "pose": {
                "at": ds.List(ds.Value("float64"), length=3),
                "by": {"who": ds.Value("string")},
            },
        }
    )
    views = [
        {"left": cell(jpeg(n)), "right": cell(jpeg(n + 9)), "angle": n / 4} for n in range(ROWS)
    ]
    pose = [{"at": [n, 1.0, 2.0], "by": {"who": TEXTS[n]}} for n in range(ROWS)]
    return ds.Dataset.from_dict({"views": views, "pose": pose}, features)


def segmentation(ds: Any, root: Path) -> Any:
    return _labelled(
        ds,
        annotation=(ds.Image(), cells(mask)),
        instances_mask=(ds.Image(), cells(lambda n: mask(n, "I;16"))),
        scene_category=(ds.ClassLabel(names=NAMES), [2 - n % 3 for n in range(ROWS)]),
    )


def questions(ds: Any, root: Path) -> Any:
    qa = [[{"q": text, "a": [text, "no"]} for text in TEXTS[:n]] for n in range(ROWS)]
    inner = {"q": ds.Value("string"), "a": ds.List(ds.Value("string"))}
    return _labelled(
        ds,
        captions=(ds.List(ds.Value("string")), [TEXTS[:n] for n in range(ROWS)]),
        qa=(ds.List(inner), qa),
    )


def embeddings(ds: Any, root: Path) -> Any:
    rng = np.random.default_rng(0)
    return _labelled(
        ds,
        clip=(ds.List(ds.Value("float32"), length=8), rng.random((ROWS, 8), np.float32).tolist()),
        map=(ds.Array2D((2, 3), "float32"), rng.random((ROWS, 2, 3), np.float32).tolist()),
        rows=(
            ds.Array2D((None, 2), "int32"),
            [rng.integers(0, 9, (n + 1, 2)).tolist() for n in range(ROWS)],
        ),
        half=(ds.Value("float16"), [np.float16(n / 8) for n in range(ROWS)]),
    )


def types(ds: Any, root: Path) -> Any:
    moment = datetime.datetime(2024, 2, 29, 12, 30, 1, 123456)
    return _labelled(
        ds,
        when=(
            ds.Value("timestamp[us]"),
            [moment + datetime.timedelta(days=n) for n in range(ROWS)],
        ),
        day=(ds.Value("date32"), [moment.date() + datetime.timedelta(days=n) for n in range(ROWS)]),
        price=(ds.Value("decimal128(9, 2)"), [Decimal(n) / 4 for n in range(ROWS)]),
        data=(ds.Value("binary"), [bytes([n]) * n for n in range(ROWS)]),
        large=(ds.Value("large_string"), TEXTS),
        flag=(ds.Value("bool"), [n % 2 == 0 for n in range(ROWS)]),
        key=(ds.Value("string"), [f"k{n}" for n in range(ROWS)]),
        index=(ds.Value("int64"), [n * n for n in range(ROWS)]),
        json=(ds.Json(), [{"n": n, "of": TEXTS[:n]} for n in range(ROWS)]),
    )


def kinds(ds: Any, root: Path) -> Any:
    grey = pixels(3).convert("L")
    rgba = pixels(4).convert("RGBA")
    rgba.putalpha(grey.resize(rgba.size))
    made = [
        jpeg(0, progressive=True),
        encoded(pixels(1), "WEBP"),
        encoded(pixels(2), "GIF"),
        encoded(grey),
        encoded(rgba, "PNG"),
        encoded(pixels(5).convert("CMYK")),
        encoded(Image.fromarray(np.arange(3000, dtype=np.uint16).reshape(50, 60)), "PNG"),
    ]
    columns = {"img": list(map(cell, made)), "fine": [0, 1, 2] * 2 + [0], "coarse": [1] * 7}
    names = ds.ClassLabel(names=NAMES)
    features = ds.Features({"img": ds.Image(), "fine": names, "coarse": names})
    return ds.Dataset.from_dict(columns, features)


def undecoded(ds: Any, root: Path) -> Any:
    """The user has told `datasets` not to decode."""
    return _labelled(ds).cast_column("image", ds.Image(decode=False))


def of_mode(ds: Any, root: Path) -> Any:
    return _labelled(ds).cast_column("image", ds.Image(mode="L"))


#: Function that makes a dataset: columns of image and label, after ``label`` if there is one.
DATASETS: dict[Callable[[Any, Path], Any], tuple[str, str]] = {
    classes: ("image", "label"),
    objects_jsonl: ("image", ""),
    pairs_jsonl: ("image", ""),
    pushed_parquet: ("image", "label"),
    old_parquet: ("img", "label"),
    shards_on_disk: ("image", "label"),
    webdataset: ("jpg", "cls"),
    in_memory: ("image", "label"),
    with_nulls: ("image", ""),
    frames: ("image", "label"),
    nested: ("views.left", ""),
    segmentation: ("image", "label"),
    questions: ("image", "label"),
    embeddings: ("image", "label"),
    types: ("image", "label"),
    kinds: ("img", "fine"),
    undecoded: ("image", "label"),
    of_mode: ("image", "label"),
}
