"""An output of a real query that is moved, with its records and its open files, while the query is stopped."""

from __future__ import annotations

import shutil

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from click.testing import CliRunner

from stateline.cli.commands import stateline
from stateline.spark import finish_files


def test_a_query_goes_on_where_its_output_was_moved_to(spark, tmp_path):
    source, old, new = tmp_path / "source", tmp_path / "old", tmp_path / "new"
    source.mkdir()

    def run(number, out):
        pq.write_table(pa.table({"id": [number]}), source / f"{number}.parquet")
        rows = spark.readStream.schema("id long").parquet(str(source))
        writer = rows.writeStream.format("stateline_files").option("checkpointLocation", str(tmp_path / "spark"))
        writer.option("finish", "never").trigger(availableNow=True).start(str(out)).awaitTermination()

    run(0, old)
    shutil.move(old, new)
    place = ["checkpoint", "relocate", f"{new}/.stateline/stream", "--output", f"files={new}", "--record"]
    assert CliRunner().invoke(stateline, place).exit_code == 0
    run(1, new)
    finish_files(str(new))
    assert sorted(ds.dataset(new, format="parquet").to_table()["id"].to_pylist()) == [0, 1]
    assert len(list(new.glob("part-*"))) == 1, "one file, which was open while it was moved"
