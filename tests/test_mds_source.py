"""The MDS source: shards that MosaicML's Streaming wrote."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import streaming_formats
from fastdata.converters import ImageSource, MdsImages, pack
from fastdata.converters.mds import mds_splits
from sources import Expected, SourceConformance, bytes_of, convert, jpeg, picture, require_said

from fastdata import ImageDataset
from fastdata.errors import SourceError, UsageError

IMAGES = [jpeg(seed) for seed in range(12)]
COLUMNS = {
    "image": "bytes",
    "label": "int",
    "caption": "str",
    "about": "json",
    "score": "float32",
    "small": "uint8",
    "digits": "str_int",
    "vector": "ndarray:float32:2,3",
    "any": "ndarray",
    "secret": "pkl",
}


def samples(count: int = 12) -> list[dict[str, Any]]:
    return [
        {
            "image": IMAGES[n],
            "label": n % 3,
            "caption": f"é {n}" * (n % 4),
            "about": {"n": n, "list": [1, 2]},
            "score": n / 4,
            "small": n,
            "digits": 10**n,
            "vector": np.arange(6, dtype=np.float32).reshape(2, 3) + n,
            "any": np.arange(n + 1, dtype=np.int16),
            "secret": {"n": n},
        }
        for n in range(count)
    ]


def write(
    out: Path, columns: Mapping[str, str], rows: list[dict[str, Any]], **options: Any
) -> Path:
    with streaming_formats.mds().MDSWriter(
        out=str(out), columns=dict(columns), **options
    ) as writer:
        for row in rows:
            writer.write(row)
    return out


class TestMds(SourceConformance):
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        return write(tmp_path / "in", COLUMNS, samples(), size_limit=5_000)

    @pytest.fixture
    def sources(self, path: Path) -> list[ImageSource]:
        return [MdsImages(path) for _ in range(2)]

    @pytest.fixture
    def expected(self, path: Path) -> Expected:
        reader = streaming_formats.mds().MDSReader
        found, keys = [], []
        for about in json.loads((path / "index.json").read_text())["shards"]:
            shard = reader.from_json(str(path), "", about)
            stem = about["raw_data"]["basename"].removesuffix(".mds")
            found += list(map(shard.get_item, range(about["samples"])))
            keys += [f"{stem}/{n:08d}" for n in range(about["samples"])]
        assert len({key.split("/")[0] for key in keys}) > 1
        rows = [
            (key, str(one["label"]), one["image"]) for key, one in zip(keys, found, strict=True)
        ]
        values = {name: [one[name] for one in found] for name in sorted(COLUMNS)}
        encodings = {
            "about": json.dumps,
            "digits": str,
            "vector": np.ndarray.tolist,
            "score": float,
            "small": int,
            "any": lambda array: bytes([17, (1 << 2)]) + bytes([len(array)]) + array.tobytes(),
            "secret": pickle.dumps,
        }
        fields = {
            name: [encodings[name](one) if name in encodings else one for one in column]
            for name, column in values.items()
            if name not in ("image", "label")
        }
        return Expected(["0", "1", "2"], rows, fields)


def test_images_of_the_jpeg_and_png_encodings_and_splits(tmp_path: Path) -> None:
    for form, split in (("jpeg", "train"), ("png", "val")):
        rows = [{"x": picture(n), "label": n} for n in range(3)]
        write(tmp_path / "in" / split, {"x": form, "label": "int"}, rows)
    assert mds_splits(tmp_path / "in") == ["train", "val"]
    with pytest.raises(UsageError, match="has the splits train, val"):
        MdsImages(tmp_path / "in")
    require_said(convert("mds", "--root", tmp_path / "in", "--out", tmp_path / "{split}"), 0)
    for split in ("train", "val"):
        dataset = ImageDataset(tmp_path / split)
        assert [dataset.row(n).label for n in range(3)] == [0, 1, 2]
        assert [dataset.row(n).encoding for n in range(3)] == [
            "jpeg" if split == "train" else "png"
        ] * 3
    result = convert("mds", "--root", tmp_path / "in", "--split", "x", "--out", tmp_path / "x")
    require_said(result, 2, "has no split 'x'", "It has train, val.")


def test_pixels_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "in", {"x": "pil", "label": "int"}, [{"x": picture(0), "label": 1}])
    result = convert("mds", "--root", tmp_path / "in", "--out", tmp_path / "out")
    require_said(result, 1, "no column holds image files", "x")


def test_compressed_shards_are_refused_until_they_are_unpacked(tmp_path: Path) -> None:
    import gzip

    columns = {"image": "bytes", "label": "int"}
    rows = [{name: row[name] for name in columns} for row in samples()]
    write(tmp_path / "in", columns, rows, compression="gz")
    result = convert("mds", "--root", tmp_path / "in", "--out", tmp_path / "out")
    require_said(result, 1, "shard.00000.mds.gz: is compressed", "gunzip")
    packed = tmp_path / "in/shard.00000.mds.gz"
    packed.with_suffix("").write_bytes(gzip.decompress(packed.read_bytes()))
    assert [bytes_of(one) for one in MdsImages(tmp_path / "in").records()] == IMAGES


def test_damage_is_named(tmp_path: Path) -> None:
    columns = {"image": "bytes", "label": "int"}
    rows = [{name: row[name] for name in columns} for row in samples()]
    root = write(tmp_path / "in", columns, rows)
    shard, index = root / "shard.00000.mds", root / "index.json"
    whole, about = shard.read_bytes(), index.read_text()
    for data in (whole[:-1], whole + b"0", whole[:3], b""):
        shard.write_bytes(data)
        result = convert("mds", "--root", root, "--out", tmp_path / "out")
        require_said(result, 1, f"{shard}: cannot be read as MDS", "copied whole")
    at = int.from_bytes(whole[4:8], "little")
    for place, value in ((0, 5), (4, 1 << 31), (8, 7), (at, 1 << 20)):
        data = bytearray(whole)
        data[place : place + 4] = value.to_bytes(4, "little")
        shard.write_bytes(data)
        result = convert("mds", "--root", root, "--out", tmp_path / "out")
        require_said(result, 1, f"{shard}: cannot be read as MDS")
    shard.unlink()
    require_said(convert("mds", "--root", root), 1, "shard.00000.mds: this shard is missing")
    shard.write_bytes(whole)
    for changed in (
        about[:-3],
        "[]",
        "{}",
        '{"shards": []}',
        about.replace('"int"', '"uint8"'),
        about.replace("shard.00000.mds", "../x.mds"),
        about.replace('"samples": 12', '"samples": -1'),
        *(
            about.replace('"int"', f'"ndarray:uint8:{shape}"')
            for shape in (
                "-1",
                "2,0",
                "-2,-4",
                "1.5",
                "x",
                str(2**63),
                f"{2**32},{2**32}",
                "1" + ",1" * 99,
            )
        ),
        about.replace('"format": "mds"', '"format": "jsonl"'),
    ):
        index.write_text(changed)
        with pytest.raises(SourceError, match=r"index.json: "):
            MdsImages(root)


def test_bad_samples(tmp_path: Path) -> None:
    rows = [{"image": IMAGES[0], "label": 1}, {"image": b"", "label": 0},
            {"image": IMAGES[1][:-40], "label": 1}, {"image": IMAGES[2], "label": -1}]  # fmt: skip
    root = write(tmp_path / "in", {"image": "bytes", "label": "int"}, rows)
    pack(MdsImages(root), tmp_path / "out", workers=1, skip_bad=True)
    assert len(ImageDataset(tmp_path / "out")) == 1
    reasons = (tmp_path / "out/_bad-samples.jsonl").read_text().splitlines()
    assert len(reasons) == 3 and "its label is -1" in reasons[2]
