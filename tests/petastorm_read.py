"""Prints what petastorm reads of Parquet, a JSON line a sample; run by petastorm's own Python."""

import hashlib
import json
import os
import sys
import warnings

warnings.simplefilter("ignore")

from petastorm import make_batch_reader  # noqa: E402

# petastorm makes a named tuple of a row, and `class` cannot name a field of one.
COLUMNS = ["key", "label", "width", "height", "image"]


def main(paths):
    urls = ["file://" + path for path in paths]
    with make_batch_reader(
        urls,
        schema_fields=COLUMNS,
        reader_pool_type="dummy",
        shuffle_row_groups=False,
        num_epochs=1,
    ) as reader:
        for batch in reader:
            columns = [getattr(batch, name) for name in COLUMNS]
            for key, label, width, height, image in zip(*columns, strict=True):
                digest = hashlib.sha256(image).hexdigest()
                print(json.dumps([key, int(label), int(width), int(height), digest]))


if __name__ == "__main__":
    main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(0)  # an Arrow as old as petastorm's may abort while the interpreter ends
