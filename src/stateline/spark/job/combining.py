"""Rows of one key become one row before they are sent to Python, where a batch has many rows for each key.

Facts (``docs/decisions/0071-combining.md``):

- Spark aggregates the rows of a batch by key in the tasks that read them, and again after a shuffle of what is left. It
  does in compiled code what would else be done in Python, and few rows take the way there.
- Where most keys have one row this is work for nothing. So a batch is combined by what the batch before was like; the
  first one of a query is not.
- A batch that is combined gives the same state, but for the last digits of floating-point sums, whose order no shuffle
  promises.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from pyspark.sql import DataFrame, SparkSession, functions

from stateline.errors import StatelineError
from stateline.pipeline.event_time import EVENT_TIME_COLUMN, WatermarkPlan
from stateline.pipeline.messages import SubtaskResult
from stateline.pipeline.operators.api import HASH_COLUMN, ROWS_COLUMN, OperatorProgram, combined_columns
from stateline.pipeline.plan import Combine
from stateline.spark.columns.names import column_of
from stateline.spark.job.task_errors import note
from stateline.state.aggregate.api import SqlWords, sql_name

__all__ = ["Combiner", "shuffled_into"]

_ROWS_MIN: Final = 50_000
"""Fewer rows are in Python before Spark has planned how to combine them."""
_ROWS_PER_KEY_MIN: Final = 8
_PARTITIONS: Final = "spark.sql.shuffle.partitions"


class Combiner:
    """Combines the rows of one operator. Not thread-safe: a query runs one batch at a time.

    Args:
        program: What it computes.
        watermark: That of the stream, if it has one.
        hashed: SQL of the hash of its key.
        combine: When; see :attr:`stateline.pipeline.plan.PipelineSettings.combine`.
    """

    def __init__(
        self, program: OperatorProgram, watermark: WatermarkPlan | None, hashed: str, combine: Combine
    ) -> None:
        self._keys = program.key_columns
        self._hashed = hashed if program.wants_hash else None
        self._watermark = watermark
        self._states = () if combine == "never" else program.combined(SqlWords(_raising))
        self._always = combine == "always"
        self._pays = False

    @property
    def is_due(self) -> bool:
        """Whether the next batch is combined."""
        return bool(self._states) and (self._always or self._pays)

    def learn(self, results: Sequence[SubtaskResult]) -> None:
        """Looks at what a batch was like; one without rows, as comes when only time passes, tells nothing."""
        rows, keys = (sum(result.metrics.get(name, 0) for result in results) for name in ("rows", "keys"))
        if rows:
            self._pays = rows >= _ROWS_MIN and rows >= _ROWS_PER_KEY_MIN * keys

    def combined(self, rows: DataFrame) -> DataFrame:
        """One row for each key of a batch."""
        keys = [sql_name(column_of(rows.columns, key)) for key in self._keys]
        made = dict(zip(combined_columns(len(self._states)), self._states, strict=True))
        made[ROWS_COLUMN] = "count(*)"
        if self._watermark is not None:
            has_time = EVENT_TIME_COLUMN in rows.columns
            time = EVENT_TIME_COLUMN if has_time else column_of(rows.columns, self._watermark.column)
            made[EVENT_TIME_COLUMN] = f"max({sql_name(time)})"
        texts = [functions.expr(text).alias(name) for name, text in made.items()]
        grouped = rows.groupBy(*map(functions.expr, keys)).agg(*texts)
        if self._hashed is None:
            return grouped
        return grouped.selectExpr(*keys, *made, f"{self._hashed} AS {HASH_COLUMN}")


@contextmanager
def shuffled_into(session: SparkSession, partitions: int) -> Iterator[None]:
    """Meanwhile Spark's own shuffles of a batch make so many partitions."""
    before = session.conf.get(_PARTITIONS)
    session.conf.set(_PARTITIONS, partitions)
    try:
        yield
    finally:
        session.conf.set(_PARTITIONS, before)


def _raising(error: StatelineError) -> str:
    text = base64.b64encode(f"\n{note(error)}\n".encode()).decode()
    return f"raise_error(decode(unbase64('{text}'), 'UTF-8'))"
