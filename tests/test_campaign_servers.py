"""Servers that break one answer in ten (``flaky_proxy.py``): each sample is right all the same."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import test_partial_fetches
from flaky_proxy import PASSING
from loader_data import CROPS, dataset, same
from object_stores import ONLY_FSSPEC

from fastdata import DataLoader, ImageDataset
from fastdata.remote import RemoteOptions
from fastdata.remote.urls import scheme_of

ANSWERS = int(os.environ.get("FASTDATA_CAMPAIGN_ANSWERS", "100"))
SEED = int(os.environ.get("FASTDATA_CAMPAIGN_SEED", "0"))
#: A stall costs as long as `timeout`.
OPTIONS = RemoteOptions(timeout=2.0, max_request=1, piece_bytes=16 << 10)


@pytest.mark.slow
@pytest.mark.parametrize("client", ["http", "fsspec"])
def test_servers_that_break_one_answer_in_ten(
    store: Callable[[Path], Any], client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [dataset(container) for container in ("shards", "parquet", "lmdb")]
    folders.append(test_partial_fetches.dataset())  # large photographs, read in parts
    found: Counter[str] = Counter()
    samples = openings = 0
    while sum(found.values()) < ANSWERS // 2:
        monkeypatch.setenv("FASTDATA_CACHE_DIR", str(tmp_path / f"index-{openings}"))
        folder = folders[openings % len(folders)]
        cache = None if openings % 3 < 2 else tmp_path / f"pieces-{openings}"
        near = DataLoader(ImageDataset(folder, CROPS), 8, seed=3, num_workers=1)
        with store(folder) as there:
            there.proxy.inject_often(0.1, SEED + openings, [*PASSING, "corrupt"])
            own = ONLY_FSSPEC[scheme_of(there.url)] if client == "fsspec" else {}
            options = {**there.options, **own}
            far = ImageDataset(
                there.url, CROPS, cache=cache, storage_options=options, remote=OPTIONS
            )
            loader = DataLoader(far, 8, seed=3, num_workers=1)
            for _ in range(2):
                assert same(list(loader), list(near))
                assert loader.stats().remote.client == client
                samples += len(far)
            found.update(one.fault or "none" for one in there.proxy.exchanges)
        openings += 1
        if ANSWERS > 1_000 and openings % 10 == 0:
            print(f"{openings} openings: {dict(found)}", flush=True)
    print(f"{openings} openings, {2 * openings} epochs, {samples} samples; answers: {dict(found)}")
    assert found["none"] < 0.97 * sum(found.values())
