"""A processor that fails half way, through Spark and through Stateline: nothing of the batch is kept by either."""

from __future__ import annotations

import datetime as dt
import shutil

import pyarrow.dataset as ds
import pytest
from processor_kit import Bench, as_plain, check_state, through_spark, watermarks
from processor_samples import Fragile
from pyspark.errors import StreamingQueryException

from stateline.errors import UserCodeError
from stateline.spark import KeyedStream

SCHEMA = "k string, v long, at timestamp"
OUTPUT = "k string, where string, number long, total long, kept long"
TIMES = [1_000.0, 1_001.0, 1_002.0, 1_003.0]


def _rows(seconds, **numbers):
    when = dt.datetime(1970, 1, 1) + dt.timedelta(seconds=seconds)
    return [(key, number, when) for key, many in numbers.items() for number in many]


BATCHES = [
    _rows(12, a=[1, 2], b=[3], c=[4], d=[5]),
    _rows(13, a=[6], b=[7, 8, 9], c=[10], e=[11]),
    _rows(40, a=[12], b=[13], e=[14]),
    [],  # timers that the watermark of the batch before has passed
]


def _through_pipeline(spark, folder, processor, files):
    """Runs the first files of Spark's source through a whole pipeline."""
    (folder / "files").mkdir(exist_ok=True)
    for file in sorted((folder / "source").glob("*.parquet"))[:files]:
        shutil.copy2(file, folder / "files")  # with its time, by which Spark orders files
    events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).parquet(str(folder / "files"))
    stream = KeyedStream(events.withWatermark("at", "0 seconds"), "k", f"file://{folder}/state", parallelism=2)
    pipeline = stream.process(processor, OUTPUT, time_mode="EventTime").write_files(
        f"file://{folder}/out", every_checkpoint=True
    )
    pipeline.start(str(folder / "stateline"), trigger={"availableNow": True}).awaitTermination()


def _published(folder):
    rows = ds.dataset(folder / "out", format="parquet").to_table().to_pylist()
    return as_plain(tuple(row.values()) for row in rows)


@pytest.mark.parametrize(("where", "number"), [("rows", 8), ("timer", 10_003)])
def test_nothing_is_kept_of_a_batch_that_failed_half_way_and_a_mended_processor_goes_on(spark, tmp_path, where, number):
    broken, mended = Fragile(where, number), Fragile()

    def by_spark(processor, batches):
        options = {"times": TIMES[: len(batches)], "time_mode": "EventTime"}
        return through_spark(spark, tmp_path, batches, SCHEMA, "k", processor, OUTPUT, **options)

    bench = Bench(broken, SCHEMA, "k", OUTPUT, time_mode="EventTime")
    moments = watermarks(BATCHES, bench.schema.names)

    def by_bench(batch):
        return as_plain(bench.batch(BATCHES[batch], now=TIMES[batch], **moments[batch]))

    (first,) = by_spark(broken, BATCHES[:1])
    assert by_bench(0) == as_plain(first)
    check_state(spark, tmp_path, bench, TIMES[0])

    with pytest.raises(StreamingQueryException, match="half way"):
        by_spark(broken, BATCHES)
    with pytest.raises(UserCodeError, match=r"key .*'b'.*ValueError: half way"):
        by_bench(1)
    check_state(spark, tmp_path, bench, TIMES[0])

    _, *expected = by_spark(mended, BATCHES)
    bench.restart(mended)
    assert [by_bench(1), by_bench(2), by_bench(3)] == [as_plain(rows) for rows in expected]
    assert where in {row[1] for row in expected[0]}
    check_state(spark, tmp_path, bench, TIMES[3])

    with pytest.raises(UserCodeError, match="half way"):
        _through_pipeline(spark, tmp_path, broken, 2)
    assert _published(tmp_path) == as_plain(first)
    _through_pipeline(spark, tmp_path, mended, 3)
    assert _published(tmp_path) == as_plain(row for rows in (first, *expected) for row in rows)
