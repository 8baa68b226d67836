"""``PipelineStage.for_each_batch``: the output of each checkpoint, handed to a function of the user's own.

Guarantees:

- **At least once, after the checkpoint is durable.** The function is never called for rows that do not count.
- **The same rows under the same key**, however often and by whichever driver: the rows are objects of the checkpoint,
  nothing is computed again. A sink that remembers keys in the transaction that writes the rows has each row once.
- In order of checkpoints, one call at a time, in one driver. A driver believed dead may still make a late call, with a
  key that has been seen: so a sink should ask "have I seen this key", not "is it newer than the last one".
- Not called for a checkpoint without rows.
- When it raises, the query fails; the next start begins with the same rows, under the same key. So it does when it is
  an ``async`` function or a generator: calling these runs nothing, and the rows would count as delivered.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from stateline.errors import UserCodeError
from stateline.files.pending import load_rows
from stateline.handles import RowsHandle
from stateline.pipeline.delivery import BatchKey, Delivery, rows_without_function
from stateline.pipeline.plan import PipelinePlan
from stateline.spark.job.batch_job import task_resources

__all__ = ["BatchDelivery", "BatchFunction"]

BatchFunction: TypeAlias = Callable[[DataFrame, BatchKey], object]
"""``fn(rows, key)``."""


class BatchDelivery:
    """Calls the functions of a pipeline.

    Args:
        session: Where the DataFrames live.
        plan: The pipeline.
        functions: By operator: the function, and the Arrow schema of the rows it gets.
    """

    def __init__(
        self, session: SparkSession, plan: PipelinePlan, functions: Mapping[str, tuple[BatchFunction, pa.Schema]]
    ) -> None:
        self._session = session
        self._plan = plan
        self._functions = dict(functions)

    def __call__(self, delivery: Delivery) -> None:
        """Delivers one output.

        Raises:
            UserCodeError: The function raised.
            InvalidInputError: There is no function for these rows.
        """
        operator = delivery.key.operator
        if operator not in self._functions:
            raise rows_without_function(delivery, "start")
        function, schema = self._functions[operator]
        rows = self._rows(operator, delivery.rows, schema)
        try:
            _check_it_ran(function(rows, delivery.key))
        except BaseException as error:  # Of any other than an Exception Spark never hears: it would wait for ever.
            raise UserCodeError(
                f"the function raised {UserCodeError.described(error)}",
                operation="for_each_batch",
                subject=str(delivery.key),
                hint="The checkpoint stands, and the next start delivers the same rows under the same key. "
                + "".join(traceback.format_exception(error)),
            ) from error

    def _rows(self, operator: str, handles: Sequence[RowsHandle], schema: pa.Schema) -> DataFrame:
        """The rows as a DataFrame whose partitions read one object each: nothing goes through the driver."""
        partitions = self._session.range(0, len(handles), 1, len(handles))
        return partitions.mapInArrow(_Reader(self._plan, operator, handles), _spark_schema(schema))


class _Reader:
    """What runs in a Python worker."""

    def __init__(self, plan: PipelinePlan, operator: str, handles: Sequence[RowsHandle]) -> None:
        self._plan = plan
        self._operator = operator
        self._handles = tuple(handles)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        resources = task_resources(self._plan, self._operator)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                for table in load_rows(resources.root, [self._handles[number]], resources.cache):
                    yield from table.to_batches()


def _check_it_ran(result: object) -> None:
    """Refuses a result that says that nothing has run yet; any other means nothing."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()  # Python would complain, much later, that nobody has awaited it.
        raise TypeError(f"returned a {type(result).__name__}, so nothing of it has run; give a plain function")


def _spark_schema(schema: pa.Schema) -> StructType:
    made: StructType = from_arrow_schema(schema, prefer_timestamp_ntz=True)
    return made
