"""Two stateful queries in a chain, which a test kills: the second one reads the changes of the first one's state.

Run as ``python -m tests.spark.chain_driver FOLDER PARALLELISM [--to-the-end]``. Without the option both run until they
are killed.
"""

from __future__ import annotations

import argparse

from pyspark.sql import functions as F

from stateline.spark import KeyedStream, get_or_create_session, sum
from tests.spark.keyed_driver import SCHEMA


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("parallelism", type=int)
    parser.add_argument("--to-the-end", action="store_true")
    arguments = parser.parse_args()
    folder = arguments.folder
    conf = {"spark.driver.memory": "512m", "spark.ui.enabled": "false"}
    spark = get_or_create_session("chain-driver", "local[2]", quiet=True, **conf)
    trigger = {"availableNow": True} if arguments.to_the_end else {"processingTime": "0 seconds"}
    options = {"retained_checkpoints": "1000"}

    def keyed(stream, key, name):
        root = f"file://{folder}/{name}"
        return KeyedStream(stream, key=key, checkpoint=root, parallelism=arguments.parallelism, options=options)

    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(f"{folder}/source")
    first = keyed(events, "key", "state").aggregate(total=sum("value")).state_only()
    upstream = first.start(f"{folder}/spark", trigger=trigger)
    if arguments.to_the_end:
        upstream.awaitTermination()
    changes = (
        spark.readStream.format("stateline").option("mode", "changes").schema("__change string, key long, total long")
    )
    sign = F.when(F.col("__change").isin("insert", "update_after"), F.lit(1)).otherwise(F.lit(-1)).cast("long")
    signed = changes.load(f"file://{folder}/state").select(
        (F.col("key") % 3).alias("bucket"), sign.alias("keys"), (F.col("total") * sign).alias("total")
    )
    second = keyed(signed, "bucket", "second").aggregate(keys=sum("keys"), total=sum("total")).state_only()
    second.start(f"{folder}/spark-second", trigger=trigger).awaitTermination()


if __name__ == "__main__":
    main()
