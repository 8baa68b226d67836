"""A small driver that tests kill: counts per key and files that span micro-batches, on any master.

Run as ``python -m tests.spark.keyed_driver MASTER FOLDER [options]``. ``--kill POINT:WHEN`` makes the process kill its
whole group with SIGKILL before or after the first store call of that kind by the driver.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import signal
import sys
import time

from stateline.blob import open_store
from stateline.blob.instrumented import StoreDecorator
from stateline.spark import KeyedStream, count, get_or_create_session, max, sum
from stateline.spark import coordinator as coordinator_module
from stateline.spark import pipeline as pipeline_module

SCHEMA = "id long, key long, value long"

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""A JVM that dies soon does not live to see what its second compiler makes."""

POINTS = {
    "record": ("put_if_absent", "/_metadata"),
    "floor": ("get", "floor/"),
    "publish": ("publish", ""),
    "discard": ("discard", ""),
    "mark": ("put_if_absent", "/_published"),
    "tombstone": ("put", "/_metadata"),
    "delete": ("delete", ""),
}
"""Steps of the protocol: the store call, and what its subject contains."""


def die() -> None:
    os.killpg(os.getpgid(0), signal.SIGKILL)
    time.sleep(60)


class KillingStore(StoreDecorator):
    """Kills its process at one store call."""

    def __init__(self, inner, point, when):
        super().__init__(inner)
        operation, part = POINTS[point]

        def call(*arguments):
            hit = part in str(arguments[0])
            if hit and when == "before":
                die()
            try:
                return getattr(inner, operation)(*arguments)
            finally:  # A missing object is an answer, too.
                if hit:
                    die()

        setattr(self, operation, call)


def plant(point: str, when: str) -> None:
    if point == "acknowledge":
        run_batch = coordinator_module.MicroBatchCoordinator.run_batch

        def run_and_die(self, batch):
            run_batch(self, batch)
            die()

        coordinator_module.MicroBatchCoordinator.run_batch = run_and_die
    else:
        pipeline_module.open_store = lambda *arguments: KillingStore(open_store(*arguments), point, when)


def waiting(folder: str, from_id: int):
    """Holds rows from ``from_id`` on back until the test says go, so that it can kill what holds them."""

    def hold(batches):
        for batch in batches:
            if batch.num_rows and batch["id"][0].as_py() >= from_id:
                place = pathlib.Path(folder)
                (place / f"started-{os.environ.get('SPARK_LOCAL_IP')}-{os.getpid()}").touch()
                deadline = time.monotonic() + 150
                while not (place / "go").exists() and time.monotonic() < deadline:
                    time.sleep(0.02)
            yield batch

    return hold


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("master")
    parser.add_argument("folder")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--kill", help="POINT:before, POINT:after or acknowledge:after")
    parser.add_argument("--hold-from", type=int, help="hold rows from this id on until FOLDER/go exists")
    arguments = parser.parse_args()
    if arguments.kill:
        plant(*arguments.kill.split(":"))
    folder = arguments.folder
    conf = {"spark.driver.memory": "512m", "spark.executor.memory": "512m", "spark.ui.enabled": "false"}
    conf |= {f"spark.{side}.extraJavaOptions": SHORT_LIVED for side in ("driver", "executor")}
    if not arguments.master.startswith("local"):
        conf["spark.executorEnv.PYTHONPATH"] = os.pathsep.join(sys.path)
    spark = get_or_create_session("keyed-driver", arguments.master, quiet=True, **conf)
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(f"{folder}/source")
    if arguments.hold_from is not None:
        events = events.mapInArrow(waiting(folder, arguments.hold_from), SCHEMA)
    pipeline = (
        KeyedStream(events, key="key", checkpoint=f"file://{folder}/state", parallelism=arguments.parallelism)
        .aggregate(n=count(), total=sum("value"), largest=max("value"))
        .write_files(f"file://{folder}/out", roll_bytes="600B")
    )
    query = pipeline.start(f"{folder}/spark", trigger={"availableNow": True})
    query.awaitTermination()


if __name__ == "__main__":
    main()
