"""Files of two packings together: each sample is as one of them has it, or refused."""

from __future__ import annotations

import io
import os
import pickle
import shutil
import tarfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from fastdata.converters import TableImages, index, pack
from fastdata.converters.options import PackOptions
from PIL import Image

from fastdata import DataLoader, ImageDataset, verify
from fastdata.errors import DataError, DatasetError
from fastdata.remote.options import RemoteOptions
from fastdata.staging.stage import stage
from fastdata.storage.jsontext import parse_json
from fastdata.storage.manifest import MANIFEST_NAME, text_of
from fastdata.transforms import CenterCrop

# Such as those about speed, and about damaged staged copies.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

#: Mixtures that are drawn.
RUNS = int(os.environ.get("FASTDATA_CAMPAIGN_PACKINGS", "120"))
SEED = int(os.environ.get("FASTDATA_CAMPAIGN_SEED", "0"))

#: Containers that can be staged.
PACKED = ("lmdb", "parquet", "shards", "folder")
#: A sample as a packing has it: the colours of its two images, its text, label and key.
Sample = tuple[int, int, str, int, str]
#: Files by their paths.
State = dict[str, bytes]


def drawn_samples(variant: int) -> list[Sample]:
    """The samples of a packing: they differ in order, texts, labels, second images or number."""
    numbers = list(range(6 + (variant == 4)))
    if variant == 1:
        numbers.reverse()
    text, label, other = variant == 2, variant == 3, variant == 5
    return [
        (n, n + 10 * other, f"text {n} {text:d}", (n + label) % 3, f"{at:03}")
        for at, n in enumerate(numbers)
    ]


VARIANTS = [drawn_samples(variant) for variant in range(6)]


def image(number: int, kind: str) -> bytes:
    """An image of one colour; a JPEG is large enough for seek points."""
    file = io.BytesIO()
    if kind == "JPEG":
        Image.new("RGB", (320, 256), (8 * number + 4, 0, 77)).save(file, kind, quality=90)
    else:
        Image.new("L", (320, 256), 8 * number + 4).save(file, kind)
    return file.getvalue()


def table_source(samples: Sequence[Sample], folder: Path) -> TableImages:
    folder.mkdir(parents=True)
    for at, (number, other, *_) in enumerate(samples):
        (folder / f"{at}.jpg").write_bytes(image(number, "JPEG"))
        (folder / f"{at}.png").write_bytes(image(other, "PNG"))
    numbers = range(len(samples))
    columns = dict(
        zip(("txt", "label", "key"), zip(*(one[2:] for one in samples), strict=True), strict=True)
    )
    paths = {"path": [f"{at}.jpg" for at in numbers], "other": [f"{at}.png" for at in numbers]}
    return TableImages(pa.table(paths | columns), folder, files=["other"])


def packed(samples: Sequence[Sample], home: Path, container: str) -> None:
    size = None if container in ("lmdb", "folder") else 5000
    options = PackOptions(shard_size=size, shuffle=None if container == "lmdb" else False)
    source = table_source(samples, home / "in")
    pack(source, home / "out", container=container, workers=1, force=True, options=options)
    if container != "folder":
        shutil.rmtree(home / "in")


def tars(samples: Sequence[Sample], home: Path, part_files: int = 1000) -> None:
    (home / "in").mkdir(parents=True)
    for first in range(0, len(samples), 3):
        with tarfile.open(home / "in" / f"{first}.tar", "w") as tar:
            for number, other, text, label, key in samples[first : first + 3]:
                members = {"jpg": image(number, "JPEG"), "other.png": image(other, "PNG")}
                members |= {"txt": text.encode(), "cls": b"%d" % label}
                for extension, content in members.items():
                    info = tarfile.TarInfo(f"{key}.{extension}")
                    info.size = len(content)
                    tar.addfile(info, io.BytesIO(content))
    index(home / "in", home / "out", workers=1, force=True, part_files=part_files)


def tables(samples: Sequence[Sample], home: Path, compression: str) -> None:
    (home / "in").mkdir(parents=True)
    for first in range(0, len(samples), 3):
        some = samples[first : first + 3]
        columns = {
            "image": pa.array([image(one[0], "JPEG") for one in some], pa.binary()),
            "other": pa.array([image(one[1], "PNG") for one in some], pa.binary()),
            "txt": [one[2] for one in some],
            "label": [one[3] for one in some],
            "key": [one[4] for one in some],
        }
        path = home / "in" / f"{first}.parquet"
        pq.write_table(pa.table(columns), path, compression=compression, use_dictionary=False)
    index(home / "in", home / "out", workers=1, force=True)


MAKERS: Mapping[str, Callable[[Sequence[Sample], Path], None]] = {
    **{name: partial(packed, container=name) for name in PACKED},
    "archives": tars,
    "parts": partial(tars, part_files=1),
    "plain tables": partial(tables, compression="none"),
    "tables": partial(tables, compression="snappy"),
}


class Place(NamedTuple):
    home: str

    @property
    def out(self) -> str:
        return f"{self.home}/out"

    @property
    def remote(self) -> bool:
        return "://" in self.home

    def write(self, name: str, data: bytes, how: str = "rename") -> None:
        if self.remote:
            fsspec.filesystem("memory").pipe(f"{self.home}/{name}", data)
            return
        path = Path(self.home, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if how == "over":
            with path.open("r+b" if path.exists() else "wb") as file:
                file.write(data)
                file.truncate()
            return
        temporary = path.with_name("temporary.partial")
        temporary.write_bytes(data)
        temporary.replace(path)

    def remove(self, name: str) -> None:
        if self.remote:
            fsspec.filesystem("memory").rm(f"{self.home}/{name}")
        else:
            Path(self.home, name).unlink()

    def clear(self) -> None:
        if self.remote:
            memory = fsspec.filesystem("memory")
            if memory.exists(self.home):
                memory.rm(self.home, recursive=True)
        else:
            shutil.rmtree(self.home, ignore_errors=True)


def moved(state: State, place: Place) -> State:
    """The files of a dataset in place, whose manifests name another root."""
    found = dict(state)
    for name, data in state.items():
        if name.endswith(MANIFEST_NAME):
            fields = parse_json(data)
            if fields.get("root") is not None:
                fields["root"] = f"{place.home}/in"
            if "parts" in fields:
                fields["remote"] = True
            found[name] = text_of(fields).encode()
    return found


def learn(dataset: str) -> None:
    for _ in DataLoader(ImageDataset(dataset, CenterCrop(24)), 4):
        pass


FIELDS = ("image", "other", "txt", "label", "key")


class Run:
    def __init__(self, number: int, states: Mapping[str, Sequence[State]], folder: Path) -> None:
        self.draw = draw = np.random.default_rng(number)
        self.folder = folder
        self.kind = str(draw.choice(list(MAKERS)))
        self.one, self.two = draw.choice(len(VARIANTS), 2, replace=False)
        remote = draw.random() < 0.15
        self.place = Place("memory://packings" if remote else str(folder / self.kind / "home"))
        self.states = [states[self.kind][which] for which in (self.one, self.two)]
        if remote:
            self.states = [moved(state, self.place) for state in self.states]
        names = sorted(self.states[0].keys() | self.states[1].keys())
        chosen = draw.random(len(names)) < draw.choice([0.15, 0.5, 0.85])
        chosen[draw.integers(len(names))] = True
        self.mixed = [name for name, one in zip(names, chosen, strict=True) if one]
        self.how = str(draw.choice(["rename", "over", "half"]))
        self.moment = str(draw.choice(["before", "open", "between", "pickled"]))
        self.fields = tuple(draw.permutation(FIELDS)[: draw.integers(2, 6)].tolist())
        self.way = str(
            draw.choice(["loader", "items", "columns", "torch"], p=[0.6, 0.2, 0.18, 0.02])
        )
        self.staged = not remote and self.kind in PACKED and draw.random() < 0.1

    def __repr__(self) -> str:
        about = self.moment, self.how, self.way, self.fields, "staged" if self.staged else ""
        return f"{self.place.home}, {self.one} and {self.two}: {self.mixed} {about}"

    def mix(self, place: Place, skip: str = "") -> None:
        for name in self.draw.permutation(self.mixed).tolist():
            one, two = (state.get(name) for state in self.states)
            name = name.removeprefix(skip)
            if two is None:
                place.remove(name)
            elif self.how == "half" and one is not None:
                cut = int(self.draw.integers(len(one) + 1))
                place.write(name, two[:cut] + one[cut:], "over")
            else:
                place.write(name, two, self.how)

    def opened(self) -> ImageDataset:
        crops = {self.named(name): CenterCrop(24) for name in self.fields if name in FIELDS[:2]}
        cache = None
        if self.place.remote and self.kind != "tables" and self.draw.random() < 0.3:
            cache = self.folder / "pieces"
        fields = [self.named(name) for name in self.fields]
        # Wrong bytes are fetched again and again, after a while.
        fetched = self.place.remote or self.kind == "tables"
        remote = RemoteOptions(tries=1) if fetched else None
        return ImageDataset(self.place.out, crops, fields=fields, cache=cache, remote=remote)

    def named(self, field: str) -> str:
        return "other.png" if field == "other" and self.kind in ("archives", "parts") else field

    def read(self, data: ImageDataset, rows: range) -> list[tuple[Any, ...]]:
        if self.way == "columns" and {"txt", "label"} & set(self.fields):
            columns = [
                data.column(name)
                if name in ("txt", "label")
                else [data[row][self.named(name)] for row in rows]
                for name in self.fields
            ]
            columns = [c[rows.start : rows.stop] if len(c) > len(rows) else c for c in columns]
            found = list(zip(*columns, strict=True))
        elif self.way in ("items", "columns"):
            found = [data[row].values() for row in rows]
        elif self.way == "loader":
            batches: Any = DataLoader(data, 4, sampler=list(rows))
            found = [one for batch in batches for one in zip(*batch.values(), strict=True)]
        else:
            options: dict[str, Any] = {"batch_size": None, "num_workers": 1}
            loader = torch.utils.data.DataLoader(data, sampler=list(rows), **options)
            found = [sample.values() for sample in loader]
        return [tuple(map(plain, self.fields, sample)) for sample in found]

    def __call__(self) -> str:
        self.place.clear()
        for name, data in self.states[0].items():
            self.place.write(name, data)
        try:
            found = self.found()
        except DataError as error:
            assert "\n" in str(error), error  # what, and a hint, also of a worker's error
            self.require_verify()
            return "refused"
        for which in (self.one, self.two) if self.moment == "before" else (self.one,):
            samples = [dict(zip(FIELDS, sample, strict=True)) for sample in VARIANTS[which]]
            if found == [tuple(sample[name] for name in self.fields) for sample in samples]:
                return "right"
        return f"silent: {self}: {found}"

    def found(self) -> list[tuple[Any, ...]]:
        if self.moment == "before":
            self.mix(self.place)
        if self.staged:
            copy = stage(self.place.out).path
            if self.moment != "before":
                self.mixed = [name for name in self.mixed if name.startswith("out/")]
                self.mix(Place(str(copy)), "out/")
        data = self.opened()
        if self.moment == "before" or self.staged:
            return self.read(data, range(len(data)))
        if self.moment == "between":
            begun = self.read(data, range(3))
            self.mix(self.place)
            return begun + self.read(data, range(3, len(data)))
        text = pickle.dumps(data)
        self.mix(self.place)
        if self.moment == "pickled":
            data = pickle.loads(text)
        return self.read(data, range(len(data)))

    def require_verify(self) -> None:
        """A quick check finds whole files of another packing, too, if they name it."""
        named = {n for n in self.states[0] if n.startswith("out/_") and "_learnt" not in n}
        mixed = named.intersection(self.mixed)
        whole = self.moment == "before" and self.how == "rename" and not self.place.remote
        if whole and mixed and mixed != named and self.kind != "parts":
            with suppress(DatasetError):  # it does not even open
                assert verify(self.place.out, fast=True, workers=1).problems, self


def plain(field: str, value: Any) -> Any:
    if field in ("image", "other"):
        return int(np.asarray(value).ravel()[0]) // 8
    return int(value) if field == "label" else str(value)


def pack_all(folder: Path) -> dict[str, list[State]]:
    found: dict[str, list[State]] = {}
    for kind, make in MAKERS.items():
        found[kind] = []
        for samples in VARIANTS:
            home = folder / kind / "home"
            shutil.rmtree(home, ignore_errors=True)
            make(samples, home)
            if kind == "archives":
                learn(str(home / "out"))
            files = [path for path in home.rglob("*") if path.is_file()]
            found[kind].append({str(p.relative_to(home)): p.read_bytes() for p in files})
    return found


def test_mixtures_are_right_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FASTDATA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("FASTDATA_STAGE_ROOT", str(tmp_path / "stage"))
    monkeypatch.setattr("fastdata.remote.retries._FIRST_WAIT", 0.001)
    (tmp_path / "stage").mkdir()
    states = pack_all(tmp_path)
    outcomes = [Run(number, states, tmp_path)() for number in range(SEED, SEED + RUNS)]
    found = Counter(outcome.partition(":")[0] for outcome in outcomes)
    print(f"{RUNS:,} mixtures: {dict(found)}")
    assert [outcome for outcome in outcomes if outcome.startswith("silent")] == []
    assert found["right"] > RUNS // 20
    assert found["refused"] > RUNS // 3
