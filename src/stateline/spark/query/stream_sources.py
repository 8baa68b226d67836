"""What a stream reads, by its explained plan: the sources in Spark's order, and whether Spark keeps state in front.

Facts (Spark 4):
- Each source is a line such as ``StreamingRelation FileSource[/data/in], [key#0L]``. The plan is all that Connect and
  a classic session both show.
- A stream that is read twice has one line for each, with the same columns where Spark reads it once.
- A file source is called by its path as the user wrote it, so two spellings of a place must count as equal.
"""

from __future__ import annotations

import re
from typing import Any, Final

from pyspark.sql import DataFrame

from stateline.pipeline.plan import SparkStream
from stateline.spark.api_mode import is_connect

__all__ = ["stream_facts"]

_RELATION: Final = re.compile(r"StreamingRelation (.*), (\[[^\[\]]*\])\s*$", re.MULTILINE)
_FILES: Final = re.compile(r"FileSource\[(.*)\]")
_STATE_INFO: Final = "state info ["
"""Stands in the explained plan of each operator with state."""


def stream_facts(stream: DataFrame, spark_checkpoint: str) -> SparkStream:
    """Return what is known of a stream before it starts. Computes nothing.

    Args:
        stream: All that the query reads, as one DataFrame.
        spark_checkpoint: The URL of Spark's checkpoint; a relative path counts as unknown.
    """
    text = _explained(stream)
    relations = dict.fromkeys(match.groups() for match in _RELATION.finditer(text))
    is_absolute = "://" in spark_checkpoint or spark_checkpoint.startswith(("/", "file:"))
    return SparkStream(
        checkpoint=spark_checkpoint if is_absolute and not _has_password(spark_checkpoint) else "",
        sources=tuple(_named(name) for name, _ in relations),
        has_state=_STATE_INFO in text,
    )


def _explained(stream: DataFrame) -> str:
    if is_connect(stream):
        return str(stream._explain_string())  # noqa: SLF001 - explain() prints
    frame: Any = stream
    jvm = frame.sparkSession.sparkContext._jvm  # noqa: SLF001
    return str(jvm.PythonSQLUtils.explainString(frame._jdf.queryExecution(), "simple"))  # noqa: SLF001


def _named(source: str) -> str:
    """The name of a source, the same for all spellings of a place."""
    files = _FILES.fullmatch(source)
    if files is None:
        return source
    place = re.sub("^s3[an]:", "s3:", files[1])
    place = re.sub("^file:", "", place)
    if "://" not in place:
        place = re.sub("/+", "/", place)
    return f"files in {place.rstrip('/')}"


def _has_password(url: str) -> bool:
    return ":" in url.partition("://")[2].partition("/")[0].partition("@")[0] and "@" in url
