"""How well ``quasi-random`` mixes, by its window, and what each window costs.

    python -m fastdata.benchmarks.mixing [--out docs/results/mixing.json]

The dataset is as large as ImageNet's training split and packed class by class, which is the worst
case: 1,000 classes of 1,281 images of 110 kB. Nothing is read; the order and the requests are
those that the loader would use. Of several epochs are measured, each against a full shuffle:

- *classes*: distinct classes in a batch of 256, on average. 1 is as many as in a full shuffle.
- *neighbours*: how far apart in the epoch two neighbours of the dataset come, on average.
- *displacement*: how far from its place in the dataset a sample comes, on average.

And what they cost where byte ranges are read: requests of an epoch, by default, and where memory
for two windows is given, so that all neighbours are found, with requests of up to 512 KiB and of
up to 8 MiB.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdata.plan.draws import epoch_key
from fastdata.plan.order import BLOCK, WINDOW, Order, QuasiRandom, Random
from fastdata.remote import RemoteOptions
from fastdata.remote.ranges import FileRef, Wanted, plan

CLASSES, EACH, BYTES, BATCH = 1000, 1281, 110_000, 256
SAMPLES = CLASSES * EACH
#: The windows that are measured, in blocks.
WINDOWS = (32, WINDOW, 512)
_EPOCHS = 3
#: Samples of an epoch that requests are counted for.
_COUNTED = 150_000
_FILE = FileRef("", SAMPLES * BYTES, "")


def main() -> None:
    """Measures, and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/results/mixing.json"))
    arguments = parser.parse_args()
    full = _mixing([Random(SAMPLES, epoch_key(0, epoch)) for epoch in range(_EPOCHS)])
    result: dict[str, Any] = {
        "samples": SAMPLES,
        "classes": CLASSES,
        "bytes_a_sample": BYTES,
        "batch_size": BATCH,
        "block": BLOCK,
        "epochs": _EPOCHS,
        "full_shuffle": full,
        "windows": [],
    }
    for window in WINDOWS:
        orders = [
            QuasiRandom(SAMPLES, epoch_key(0, epoch), window=window) for epoch in range(_EPOCHS)
        ]
        found = _mixing(orders)
        row: dict[str, Any] = {
            "window": window,
            "window_samples": window * BLOCK,
            "window_bytes": window * BLOCK * BYTES,
            **{name: round(found[name] / full[name], 4) for name in full},
        }
        default = RemoteOptions()
        both = 2 * window * BLOCK * BYTES
        row["requests"] = {
            "default": _requests(orders[0], window, default),
            "512 KiB": _requests(orders[0], window, replace(default, memory=both)),
            "8 MiB": _requests(
                orders[0], window, replace(default, memory=both, max_request=8 << 20)
            ),
        }
        result["windows"].append(row)
        print(row)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


def _mixing(orders: Sequence[Order]) -> dict[str, float]:
    """The three figures, means over epochs."""
    found = []
    for order in orders:
        samples = np.concatenate([order(part) for part in _parts()])
        places = np.empty(SAMPLES, np.int64)
        places[samples] = np.arange(SAMPLES)
        labels = samples[: SAMPLES // BATCH * BATCH].reshape(-1, BATCH) // EACH
        labels.sort(axis=1)
        distinct = 1 + (np.diff(labels, axis=1) != 0).sum(axis=1).mean()
        apart = np.abs(np.diff(places)).mean()
        displaced = np.abs(places - np.arange(SAMPLES)).mean()
        found.append((distinct, apart, displaced))
    classes, neighbours, displacement = np.mean(found, axis=0).tolist()
    return {"classes": classes, "neighbours": neighbours, "displacement": displacement}


def _parts() -> Iterator[npt.NDArray[np.int64]]:
    step = 1 << 17
    for start in range(0, SAMPLES, step):
        yield np.arange(start, min(start + step, SAMPLES))


def _requests(order: Order, window: int, options: RemoteOptions) -> dict[str, Any]:
    """Requests of an epoch, counted for some windows and scaled up."""
    counted = _COUNTED // (window * BLOCK) * window * BLOCK
    numbers = iter(order(np.arange(counted)).tolist())
    reach = options.memory // 2
    coming: dict[int, Wanted] = {}
    requests = 0
    while True:
        for number in islice(numbers, max(2 * reach // BYTES - len(coming), 0)):
            start = number * BYTES
            coming[number] = Wanted(number, _FILE, start, start + BYTES, 0)
        if not coming:
            break
        for request in plan(coming.values(), reach, options.merge_gap, options.max_request):
            requests += 1
            for one in request.members:
                del coming[one.number]
    return {"an_epoch": round(requests * SAMPLES / counted), "memory": options.memory}


if __name__ == "__main__":
    main()
