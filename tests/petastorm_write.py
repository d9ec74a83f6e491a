"""Writes a dataset as petastorm's documentation has it; run by petastorm's own Python."""

import hashlib
import json
import os
import sys
import warnings

warnings.simplefilter("ignore")

import numpy as np  # noqa: E402
from petastorm.codecs import CompressedImageCodec, NdarrayCodec, ScalarCodec  # noqa: E402
from petastorm.etl.dataset_metadata import materialize_dataset  # noqa: E402
from petastorm.unischema import Unischema, UnischemaField, dict_to_spark_row  # noqa: E402
from pyspark.sql import SparkSession  # noqa: E402
from pyspark.sql.types import IntegerType, StringType  # noqa: E402

SCHEMA = Unischema(
    "Animals",
    [
        UnischemaField("id", np.str_, (), ScalarCodec(StringType()), False),
        UnischemaField("label", np.int32, (), ScalarCodec(IntegerType()), True),
        UnischemaField("picture", np.uint8, (None, None, 3), CompressedImageCodec("png"), True),
        UnischemaField("embedding", np.float32, (4,), NdarrayCodec(), False),
    ],
)
ROWS = 12


def row(number):
    pixels = np.random.default_rng(number).integers(0, 256, (40, 50 + number, 3), np.uint8)
    return {
        "id": f"{number:03d}",
        "label": None if number == 5 else number % 3,
        "picture": None if number == 7 else pixels,
        "embedding": np.zeros(4, np.float32),
    }


def main(out):
    os.environ["PYSPARK_PYTHON"] = sys.executable
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    url = "file://" + out
    with materialize_dataset(spark, url, SCHEMA, row_group_size_mb=1):
        rows = spark.sparkContext.parallelize(range(ROWS), 2)
        rows = rows.map(lambda number: dict_to_spark_row(SCHEMA, row(number)))
        frame = spark.createDataFrame(rows, SCHEMA.as_spark_schema())
        frame.write.mode("overwrite").parquet(url)
    for number in range(ROWS):
        values = row(number)
        digest = None
        if values["picture"] is not None:
            field = SCHEMA.fields["picture"]
            digest = hashlib.sha256(field.codec.encode(field, values["picture"])).hexdigest()
        print(json.dumps([values["id"], values["label"], digest]))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
