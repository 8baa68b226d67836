"""Text of plain types means the same with a session, when Spark reads it, and without one."""

from __future__ import annotations

import pytest
from pyspark import SparkContext
from pyspark.sql.types import StructType

from stateline.spark.arrow_types import _PLAIN_TYPES, struct_from_ddl


@pytest.mark.parametrize("form", ["{0} {1}", " {0}:{1} ", "{0}: {2}", "{0}   {2}"])
def test_plain_text_is_read_as_spark_reads_it(spark, monkeypatch, form):
    text = ",".join(form.format(f"f_{number}", name, name.upper()) for number, name in enumerate(_PLAIN_TYPES))
    expected = StructType.fromDDL(text)
    assert struct_from_ddl(text) == expected
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    assert struct_from_ddl(text) == expected
