"""A small driver that tests kill: counts per key, or other operators, and files that span micro-batches, on any master.

Run as ``python -m tests.spark.keyed_driver MASTER FOLDER [options]``. ``--kill POINT:WHEN`` makes the process kill its
whole group with SIGKILL before or after the first store call of that kind by the driver. ``--late CHECKPOINT`` makes
one task of that checkpoint so late that its checkpoint exists before it writes.
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
from stateline.pipeline import coordinator as coordinator_module
from stateline.pipeline import driver_stores as driver_stores_module
from stateline.spark import KeyedStream, count, get_or_create_session, max, sum
from tests.spark import operator_pipelines
from tests.spark.class_archive import SHORT_LIVED

SCHEMA = "id long, key long, value long"

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

STEPS = (*(f"{point}:{when}" for point in POINTS for when in ("before", "after")), "acknowledge:after")
"""Every place of the protocol where the driver can be killed."""


def die() -> None:
    os.killpg(os.getpgid(0), signal.SIGKILL)
    time.sleep(60)


class KillingStore(StoreDecorator):
    """Kills its process at one store call: the first one of its kind, or the one of that number."""

    def __init__(self, inner, point, when, number=1):
        super().__init__(inner)
        operation, part = POINTS[point]
        left = number

        def call(*arguments):
            nonlocal left
            left -= part in str(arguments[0])
            hit = part in str(arguments[0]) and left == 0
            if hit and when == "before":
                die()
            try:
                return getattr(inner, operation)(*arguments)
            finally:  # A missing object is an answer, too.
                if hit:
                    die()

        setattr(self, operation, call)


def plant(point: str, when: str, number: int = 1) -> None:
    if point == "acknowledge":
        run_batch = coordinator_module.MicroBatchCoordinator.run_batch

        def run_and_die(self, batch):
            run_batch(self, batch)
            die()

        coordinator_module.MicroBatchCoordinator.run_batch = run_and_die
    else:
        driver_stores_module.open_store = lambda *arguments: KillingStore(open_store(*arguments), point, when, number)


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


def late_totals(folder: str, checkpoint_id: int):
    """The same counts, computed by a function; the first task that gets key 0 waits for the record of its batch."""

    def totals(events, state, moment):
        import pyarrow as pa

        place = pathlib.Path(folder)
        host = os.environ.get("SPARK_LOCAL_IP")
        if moment.checkpoint_id == checkpoint_id and 0 in state["key"].to_pylist():
            try:
                with (place / "late-began").open("x") as marker:
                    marker.write(str(host))
            except FileExistsError:
                (place / f"again-{host}").touch()
            else:
                deadline = time.monotonic() + 150
                record = place / "state" / f"chk-{checkpoint_id}" / "_metadata"
                while not record.exists() and time.monotonic() < deadline:
                    time.sleep(0.02)
                (place / "late-went-on").touch()
        rows = state.to_pylist()
        for index, value in zip(events["key_index"].to_pylist(), events["value"].to_pylist(), strict=True):
            row = rows[index]
            row["n"] = (row["n"] or 0) + 1
            row["total"] = (row["total"] or 0) + value
            row["largest"] = value if row["largest"] is None or value > row["largest"] else row["largest"]
        after = pa.Table.from_pylist(rows, state.schema)
        return after.append_column("checkpoint_id", pa.array([moment.checkpoint_id] * len(rows), pa.int64())), after

    return totals


def counted(stream: KeyedStream, folder: str, late: int | None):
    """The stage of the pipeline that counts."""
    if late is None:
        return stream.aggregate(n=count(), total=sum("value"), largest=max("value"))
    kept = "n long, total long, largest long"
    return stream.apply_arrow(
        late_totals(folder, late), kept, f"key long, {kept}, checkpoint_id long", columns=["value"]
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("master")
    parser.add_argument("folder")
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--inline-bytes", default="64KiB", help="of a subtask, that make no object")
    parser.add_argument("--kill", help="POINT:before, POINT:after or acknowledge:after")
    parser.add_argument("--hold-from", type=int, help="hold rows from this id on until FOLDER/go exists")
    parser.add_argument("--distinct", action="store_true", help="Spark drops rows whose id it has seen")
    parser.add_argument("--operators", action="store_true", help="joins, chains, sessions and best rows, not counts")
    parser.add_argument("--late", type=int, help="one task of this checkpoint waits until the checkpoint exists")
    parser.add_argument("--conf", action="append", default=[], help="a setting of Spark, NAME=VALUE")
    arguments = parser.parse_args()
    if arguments.kill:
        plant(*arguments.kill.split(":"))
    folder = arguments.folder
    conf = {"spark.driver.memory": "512m", "spark.executor.memory": "512m", "spark.ui.enabled": "false"}
    conf |= {f"spark.{side}.extraJavaOptions": SHORT_LIVED for side in ("driver", "executor")}
    if not arguments.master.startswith("local"):
        conf["spark.executorEnv.PYTHONPATH"] = os.pathsep.join(sys.path)
    conf |= dict(setting.split("=", 1) for setting in arguments.conf)
    spark = get_or_create_session("keyed-driver", arguments.master, quiet=True, **conf)
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(f"{folder}/source")
    if arguments.distinct:
        events = events.dropDuplicates(["id"])
    if arguments.hold_from is not None:
        events = events.mapInArrow(waiting(folder, arguments.hold_from), SCHEMA)
    options = {"inline_bytes": arguments.inline_bytes}
    if arguments.operators:
        pipeline = operator_pipelines.pipeline(events, folder, arguments.parallelism, options)
    else:
        root = f"file://{folder}/state"
        stream = KeyedStream(events, "key", root, parallelism=arguments.parallelism, options=options)
        pipeline = counted(stream, folder, arguments.late).write_files(f"file://{folder}/out", roll_bytes="600B")
    query = pipeline.start(f"{folder}/spark", trigger={"availableNow": True})
    query.awaitTermination()


if __name__ == "__main__":
    main()
