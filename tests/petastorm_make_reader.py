"""Reads a dataset with petastorm's make_reader; run by petastorm's own Python.

One JSON line a sample: key, label, shape, SHA-256 of the pixels.
"""

import hashlib
import json
import sys
import warnings

warnings.simplefilter("ignore")

from petastorm import make_reader  # noqa: E402


def main(folder, pool):
    with make_reader(
        "file://" + folder,
        reader_pool_type=pool,
        workers_count=2,
        num_epochs=1,
        shuffle_row_groups=False,
    ) as reader:
        for row in reader:
            digest = hashlib.sha256(row.image.tobytes()).hexdigest()
            print(json.dumps([str(row.key), int(row.label), row.image.shape, digest]))


if __name__ == "__main__":
    main(*sys.argv[1:])
