"""Indexes that other tools keep beside tars: they are compared with the tars, and not believed.

Every header of a tar is read anyway, and every blob for its checksum (docs/guides/webdataset.md has
the measurement), so that an index of others could save little. But the tools that believe it read
other samples than fastdata, if it is stale.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from fastdata.errors import warn
from fastdata.storage.files import read_file
from fastdata.storage.formats.tars import Member
from fastdata.storage.jsontext import parse_json

#: Most bytes of an index: about 10 million samples.
_MOST = 1 << 30
#: Most JSON files of a folder that may be lists of shards.
_MOST_LISTS = 16
#: Folder of Energon's description of a dataset.
_ENERGON = ".nv-meta"
#: Counts of samples by the path of a shard, relative to a folder, or by its name alone.
_Counts: TypeAlias = Mapping[str, int]


def compare(tar: Path, images: Sequence[Member]) -> None:
    """Warn of each index beside a tar that contradicts it.

    Args:
        tar: The tar.
        images: Each sample's image, or another member where it has none.
    """
    for sidecar, tool, problem in _contradictions(tar, images):
        warn(
            f"{sidecar}: contradicts {tar.name}: {problem}. The tar is indexed as it is; {tool} "
            "would read other samples, until its index is made again"
        )


def _contradictions(tar: Path, images: Sequence[Member]) -> Iterator[tuple[Path, str, str]]:
    for sidecar, tool, check in (
        (tar.with_suffix(".idx"), "DALI", _dali),
        (tar.with_suffix(".tar.idx"), "Energon", _energon),
    ):
        if not sidecar.is_file():
            continue
        try:
            problem = check(read_file(sidecar, _MOST), images)
        except (OSError, ValueError) as error:
            problem = f"it cannot be read: {error}"
        if problem:
            yield sidecar, tool, problem
    for sidecar, tool, counts in _lists(tar.parent):
        named = os.path.relpath(tar, sidecar.parent.parent if tool == "Energon" else tar.parent)
        stated = counts.get(named, len(images))
        if stated != len(images):
            yield sidecar, tool, _of(stated, images)


def _of(stated: int, images: Sequence[Member]) -> str:
    return f"it has {stated:,} samples, the tar {len(images):,}"


def _dali(data: bytes, images: Sequence[Member]) -> str:
    """Return how an index of ``wds2idx`` contradicts a tar; "" if it does not.

    It has a line a sample: extension, offset, size and, from version 1.2 on, name of each member.
    """
    first, *lines = data.decode().splitlines()
    version, count = first.split()
    fields = {"v1.1": 3, "v1.2": 4}.get(version)
    if fields is None:
        raise ValueError(f"its version is {version}")
    if int(count) != len(images) or len(lines) != len(images):
        return _of(int(count), images)
    for line, image in zip(lines, images, strict=True):
        words = line.split(" ")
        places = zip(words[1::fields], words[2::fields], strict=False)
        if (str(image.offset), str(image.size)) not in places:
            return f"it does not have {image.name} at byte {image.offset:,}"
    return ""


def _energon(data: bytes, images: Sequence[Member]) -> str:
    """Return how an Energon index contradicts a tar; "" if it does not.

    It has the offset of each sample's first header, and that of the end, as uint64.
    """
    if len(data) % 8 or not data:
        raise ValueError(f"it has {len(data)} bytes")
    offsets = struct.unpack(f"<{len(data) // 8}Q", data)
    if len(offsets) - 1 != len(images):
        return _of(len(offsets) - 1, images)
    for start, end, image in zip(offsets, offsets[1:], images, strict=False):
        if not start < image.offset <= end - image.size:
            return f"its sample at byte {start:,} does not have {image.name}"
    return ""


@lru_cache(maxsize=16)
def _lists(folder: Path) -> list[tuple[Path, str, _Counts]]:
    """Return (file, tool, counts) of the lists of shards in a folder of tars."""
    found: list[tuple[Path, str, _Counts]] = []
    with suppress(OSError):
        for path in sorted(folder.glob("*.json"))[:_MOST_LISTS]:
            with suppress(OSError, ValueError, KeyError, TypeError):
                text = read_file(path, _MOST)
                if b'"shardlist"' in text:
                    shards = parse_json(text)["shardlist"]
                    counts = {one["url"].rpartition("/")[2]: one["nsamples"] for one in shards}
                    found.append((path, "wids", counts))
    for above in (folder, folder.parent):
        for name in (".info.json", ".info.yaml"):
            path = above / _ENERGON / name
            with suppress(OSError, ValueError, KeyError, TypeError):
                text = read_file(path, _MOST)
                if name.endswith(".json"):
                    counts = dict(parse_json(text)["shard_counts"])
                else:
                    lines = re.findall(r"^ +[\"']?(.+?)[\"']?: (\d+)\s*$", text.decode(), re.M)
                    counts = {shard: int(count) for shard, count in lines}
                found.append((path, "Energon", counts))
    return found
