"""Adds what petastorm's ``make_reader`` needs to a Parquet dataset; run by petastorm's Python.

petastorm works only beside libraries too old for fastdata, so this script imports nothing of
fastdata. petastorm makes the Unischema and pickles it; this script counts row groups, which
petastorm itself would start Spark for.

    python petastorm_metadata.py DATASET_FOLDER CODEC
"""

# ruff: noqa: D103
import json
import os
import pickle
import sys
import warnings


def main(folder: str, codec: str) -> None:
    warnings.simplefilter("ignore")
    import numpy as np
    import pyarrow.parquet as pq
    from petastorm.codecs import CompressedImageCodec, ScalarCodec
    from petastorm.etl.dataset_metadata import ROW_GROUPS_PER_FILE_KEY, UNISCHEMA_KEY
    from petastorm.unischema import Unischema, UnischemaField
    from pyspark.sql.types import IntegerType, LongType, StringType

    # petastorm makes a named tuple of a row, and `class` cannot name a field of one.
    schema = Unischema(
        "fastdata",
        [
            UnischemaField("key", np.str_, (), ScalarCodec(StringType()), False),
            UnischemaField("label", np.int64, (), ScalarCodec(LongType()), False),
            UnischemaField("width", np.int32, (), ScalarCodec(IntegerType()), False),
            UnischemaField("height", np.int32, (), ScalarCodec(IntegerType()), False),
            UnischemaField("image", np.uint8, (None, None, 3), CompressedImageCodec(codec), False),
        ],
    )
    files = sorted(name for name in os.listdir(folder) if name.endswith(".parquet"))
    # petastorm takes every file of the folder for Parquet; of these it is to read nothing.
    groups = {name: 0 for name in os.listdir(folder) if name[0] not in "._"}
    for name in files:
        groups[name] = pq.read_metadata(os.path.join(folder, name)).num_row_groups
    about = {
        UNISCHEMA_KEY: pickle.dumps(schema),
        ROW_GROUPS_PER_FILE_KEY: json.dumps(groups, sort_keys=True),
    }
    stored = pq.read_schema(os.path.join(folder, files[0]))
    final = os.path.join(folder, "_common_metadata")
    temporary = os.path.join(folder, "_common_metadata.partial")
    with open(temporary, "wb") as file:
        pq.write_metadata(stored.with_metadata(about), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, final)


if __name__ == "__main__":
    main(*sys.argv[1:])
