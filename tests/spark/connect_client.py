"""Programs over Spark Connect, which tests run and kill: ``python -m tests.spark.connect_client URL SCENARIO FOLDER``.

A scenario is a function of this module. Without one, the program reads calls from its input, each a line of JSON with
the scenario, its arguments and the file in which its answer appears: a Python with Spark takes seconds to start. Each
call has a session of its own. A URL such as ``local[2]`` is that of a classic session.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.connect.client.retries import DefaultPolicy

from stateline.errors import StatelineError
from stateline.spark import KeyedStream, count, finish_files, get_or_create_session, register
from tests.spark import every_operator, scripts
from tests.spark.every_operator import finish, timed
from tests.spark.keyed_driver import SCHEMA, counted
from tests.spark.marked_processes import wait_until


def events(spark, folder, name="source"):
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(f"{folder}/{name}")


def files_sink(spark, folder):
    """A stream into files, and a batch."""
    writer = events(spark, folder).writeStream.format("stateline_files").option("partition_by", "key")
    writer = writer.option("checkpointLocation", f"{folder}/spark").trigger(availableNow=True)
    writer.start(f"{folder}/out").awaitTermination()
    register(spark)  # Idempotent.
    spark.range(100).write.format("stateline_files").option("format", "csv").mode("append").save(f"{folder}/batch")
    return {
        "stream": spark.read.parquet(f"{folder}/out").count(),
        "batch": spark.read.schema("id long").csv(f"{folder}/batch").agg(F.sum("id")).collect()[0][0],
        "pushdown": spark.conf.get("spark.sql.python.filterPushdown.enabled"),
    }


def open_files(spark, folder):
    """An endless stream whose files wait for their time, and a call that finishes them."""
    writer = events(spark, folder).writeStream.format("stateline_files").options(roll_seconds="1h")
    query = writer.option("checkpointLocation", f"{folder}/spark").start(f"{folder}/out")
    query.processAllAvailable()
    query.stop()
    before = len(list(Path(f"{folder}/out").glob("*.parquet")))
    finish_files(f"{folder}/out")
    return {"before": before, "after": spark.read.parquet(f"{folder}/out").count()}


def moved(spark, folder, name, start_from=None):
    """A query that may start from a savepoint; the rows that its state has counted, and what it refused."""
    stream = KeyedStream(events(spark, folder), key="key", checkpoint=f"{folder}/{name}/state", start_from=start_from)
    pipeline = stream.aggregate(n=count()).state_only()
    try:
        pipeline.start(f"{folder}/{name}/spark", trigger={"availableNow": True}).awaitTermination()
    except StatelineError as error:
        return {"refused": str(error)}
    register(spark)
    return {"rows": spark.read.format("stateline").load(f"{folder}/{name}/state").agg(F.sum("n")).collect()[0][0]}


def ends(spark, folder):
    """Scripts that read their output on the next line, also after a run without an end that left its files open."""
    os.environ["SPARK_REMOTE"] = sys.argv[1]
    places = {name: scripts.prepare(Path(folder) / name) for name in scripts.ON_CONNECT}
    found = {name: scripts.run(scripts.SCRIPTS[name], place) for name, place in places.items()}
    for name in ("files, rolled by time", "keyed files"):
        place = scripts.prepare(Path(folder) / "open" / name)
        scripts.run(scripts.endless(name), place)
        before = len(list(place.glob("out/*.parquet")))
        for query in spark.streams.active:
            query.stop()
        found[f"{name}, without new rows"] = scripts.run(scripts.SCRIPTS[name], place) if before == 0 else "before"
    return found


def taken_over(spark, folder):
    """What the first of two runs of one query raises."""
    counts = KeyedStream(events(spark, folder), "key", f"{folder}/state").aggregate(n=count())
    first = counts.write_files(f"{folder}/out").start()
    first.processAllAvailable()
    second = counts.write_files(f"{folder}/out").start()
    try:
        first.awaitTermination(60)
    except StatelineError as error:
        return type(error).__name__
    finally:
        second.stop()
    return ""


def state(spark, folder):
    """State as a table, one key of it, its changes as a table and as a stream."""
    source = spark.read.format("stateline")
    rows = source.load(f"{folder}/state")
    point = source.option("point_reads", "true").load(f"{folder}/state").where("key = 3")
    changes = spark.readStream.format("stateline").option("mode", "changes")
    stream = changes.schema("__change string, key long, n long").load(f"{folder}/state")
    writer = stream.writeStream.option("checkpointLocation", f"{folder}/spark-changes").trigger(availableNow=True)
    writer.format("parquet").start(f"{folder}/changes").awaitTermination()
    return {
        "rows": sorted((row["key"], row["n"], row["total"], row["largest"]) for row in rows.collect()),
        "point": [row["n"] for row in point.collect()],
        "inserted": spark.read.parquet(f"{folder}/changes").where("__change = 'insert'").count(),
    }


def relative_places(spark, folder):
    """What is said to each relative path, by the place where it is given; nothing where it was taken."""
    rows = events(spark, folder)
    stage = KeyedStream(rows, "key", f"{folder}/state").aggregate(n=count())
    plain = rows.writeStream.format("stateline_files").trigger(availableNow=True)
    placed = plain.option("checkpointLocation", f"{folder}/spark")
    attempts = {
        "checkpoint": lambda: KeyedStream(rows, "key", "state"),
        "start_from": lambda: KeyedStream(rows, "key", f"{folder}/state", start_from="saved"),
        "metrics_log": lambda: KeyedStream(rows, "key", f"{folder}/state", options={"metrics_log": "m.jsonl"}),
        "write_files": lambda: stage.write_files("out"),
        "spark_checkpoint": lambda: stage.write_files(f"{folder}/out").start("spark"),
        "delta": lambda: stage.write_table("delta", "lake"),
        "sqlite": lambda: stage.write_table("sqlite", "t", options={"uri": "sqlite:///t.db"}),
        "lookup": lambda: KeyedStream(rows, "key", f"{folder}/state").lookup("other"),
        "stream": lambda: placed.start("out").awaitTermination(),
        "records": lambda: placed.option("checkpoint", "records").start(f"{folder}/out").awaitTermination(),
        "batch": lambda: spark.range(3).write.format("stateline_files").mode("append").save("out"),
        "read": lambda: spark.read.format("stateline").load("state").columns,
        "read_stream": lambda: spark.readStream.format("stateline").option("mode", "changes").load("state").columns,
    }
    answers = {}
    for name, attempt in attempts.items():
        try:
            attempt()
            answers[name] = ""
        except (StatelineError, PySparkException) as error:
            answers[name] = str(error)
    return answers


def keyed(spark, folder, *, parallelism=None, trigger="availableNow"):
    """The pipeline of the killed drivers, over Connect."""
    stream = KeyedStream(events(spark, folder), "key", f"file://{folder}/state", parallelism=parallelism)
    pipeline = counted(stream, folder, None).write_files(f"file://{folder}/out", roll_bytes="600B")
    chosen = {"availableNow": True} if trigger == "availableNow" else {"processingTime": trigger}
    query = pipeline.start(f"{folder}/spark", trigger=chosen)
    query.awaitTermination()
    return {"parallelism": pipeline.plan.parallelism, "active": query.isActive}


def operators(spark, folder):
    """Every operator."""
    finish(every_operator.many(spark, folder))
    for pipeline in (*every_operator.processors(spark, folder), every_operator.looked_up(spark, folder)):
        finish(pipeline)


def delivered(spark, folder):
    """Output that is handed to a function, which runs on the server."""
    query = finish(every_operator.delivered(spark, folder))
    return {"query_id": query.id}


def distinct(spark, folder):
    """Spark's own state in front of ours."""
    rows = timed(spark, folder).dropDuplicates(["key"])
    finish(KeyedStream(rows, "key", f"{folder}/state").aggregate(n=count()).write_files(f"{folder}/out"))


def stopped(spark, folder):
    """A stream without an end, whose files are finished when it is stopped."""
    stage = KeyedStream(events(spark, folder), "key", f"{folder}/state").aggregate(n=count())
    query = stage.write_files(f"{folder}/out").start(finish_on_stop=True)
    query.processAllAvailable()
    was_active = query.isActive
    query.stop()
    return {"was_active": was_active, "active": query.isActive}


def quiet(spark, folder):
    """A stream without an end: its files are finished by time, while no rows come."""
    stage = KeyedStream(events(spark, folder), "key", f"{folder}/state").aggregate(n=count())
    query = stage.write_files(f"{folder}/out", roll_seconds=1).start(trigger={"processingTime": "0 seconds"})
    query.processAllAvailable()
    wait_until(lambda: any(Path(f"{folder}/out").glob("*.parquet")), 60, "a file that is finished")
    query.stop()


def refused(spark, folder):
    """What is refused, and by which error: at the start, in a batch, and of the handle."""

    def error_of(call):
        try:
            call()
        except StatelineError as error:
            return f"{type(error).__name__}: {error}"
        return ""

    def fails(events, state):
        raise ValueError("no good")

    keyed = KeyedStream(events(spark, folder), "key", f"{folder}/state", parallelism=1)
    counts = keyed.aggregate(n=count()).state_only()
    query = finish(counts)
    other = KeyedStream(events(spark, folder), "key", f"{folder}/state", parallelism=1, name="other")
    third = KeyedStream(events(spark, folder), "key", f"{folder}/third", parallelism=1)
    failing = third.apply_arrow(fails, "n long", "key long, n long").state_only()
    return {
        "metrics": error_of(lambda: query.metrics),
        "other_program": error_of(lambda: finish(other.aggregate(n=count()).state_only())),
        "other_checkpoint": error_of(lambda: finish(counts, f"{folder}/elsewhere")),
        "unknown_store": error_of(lambda: third.aggregate(n=count()).state_only().start("nosuch://x/y")),
        "function": error_of(lambda: finish(failing)),
    }


SCENARIOS = {
    function.__name__: function
    for function in (
        files_sink,
        open_files,
        ends,
        taken_over,
        state,
        keyed,
        moved,
        operators,
        delivered,
        distinct,
        stopped,
        quiet,
        refused,
        relative_places,
    )
}


def session_of(url, scenario):
    """A new session; of a server, in either way that users may take."""
    if url.startswith("local"):
        conf = {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": 2, "spark.driver.memory": "1g"}
        return get_or_create_session("classic", url, quiet=True, **conf)
    if scenario == "state":
        return get_or_create_session(**{"spark.remote": url})
    spark = SparkSession.builder.remote(url).getOrCreate()
    # Spark asks a server that is gone less and less often, up to a minute apart; tests need not wait so long.
    spark.client.set_retry_policies([DefaultPolicy(max_retries=600, max_backoff=500)])
    register(spark)
    return spark


def run(url, scenario, folder, **chosen):
    """The answer of one scenario."""
    spark = session_of(url, scenario)
    try:
        return SCENARIOS[scenario](spark, folder, **chosen)
    finally:
        spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("scenario", nargs="?")
    parser.add_argument("folder", nargs="?")
    parser.add_argument("--trigger", default="availableNow")
    arguments = parser.parse_args()
    if arguments.scenario is not None:
        more = {"trigger": arguments.trigger} if arguments.scenario == "keyed" else {}
        run(arguments.url, arguments.scenario, arguments.folder, **more)
        return
    for line in sys.stdin:
        call = json.loads(line)
        answer = Path(call.pop("answer"))
        written = answer.with_suffix(".new")
        written.write_text(json.dumps(run(arguments.url, **call)))
        written.rename(answer)


if __name__ == "__main__":
    main()
