"""Spark's own checkpoint below the root of a pipeline."""

from __future__ import annotations

import stat

import pytest

from stateline.blob import open_store
from stateline.checkpoint import sweep_root, verify_root
from stateline.checkpoint.layout import check_object_name
from stateline.errors import InvalidInputError
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.spark.query.spark_folder import make_spark_folder, spark_folder
from stateline.state.aggregate import count
from tests.unit.pipeline.engine import Engine
from tests.unit.pipeline.test_overtaken_drivers import ROWS, SCHEMA

PROGRAM = AggregateProgram.bind(SCHEMA, ["key"], {"n": count()})


@pytest.mark.parametrize(
    ("root", "folder"),
    [
        ("/a b/c", "file:///a b/c/spark"),
        ("file:///a b/c/", "file:///a b/c/spark"),
        ("file:///a%20b", "file:///a b/spark"),
        ("/100%", "file:///100%/spark"),
    ],
)
def test_a_local_root_has_its_folder_where_spark_takes_names_as_they_are(root, folder):
    assert spark_folder(None, root) == folder


def test_the_root_is_made_by_its_store_and_not_by_spark(tmp_path):
    root = open_store(str(tmp_path / "root"))
    for _ in range(2):
        make_spark_folder(root)
    assert stat.S_IMODE((tmp_path / "root").stat().st_mode) == 0o700
    assert (tmp_path / "root" / "spark").is_dir()


def test_what_spark_keeps_there_is_neither_swept_nor_reached_nor_in_the_way(tmp_path):
    engine = Engine(PROGRAM, SCHEMA, root=open_store(str(tmp_path)))
    make_spark_folder(engine.root)
    for name in ("metadata", ".metadata.crc", "offsets/0", "commits/.0.crc", "sources/0/0.compact"):
        path = tmp_path / "spark" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"Spark's")
    kept = sorted(path for path in (tmp_path / "spark").rglob("*"))
    for _ in range(5):
        engine.run(ROWS)
    assert sweep_root(engine.checkpoints, min_age=0, delete=True).result.leftovers == 0
    assert not verify_root(engine.checkpoints).findings
    assert sorted(path for path in (tmp_path / "spark").rglob("*")) == kept
    with pytest.raises(InvalidInputError, match="reserved for coordination"):
        check_object_name("spark/metadata")
