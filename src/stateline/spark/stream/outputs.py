"""What becomes of the output of an operator: what is chosen of it, and its place: files, a table, a function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import pyarrow.compute as pc

from stateline.blob import open_store
from stateline.blob.urls import absolute_url, store_options
from stateline.errors import InvalidInputError
from stateline.files import FileOutput, RollingPolicy
from stateline.files.nulls import check_countable
from stateline.options import check_kind, check_known, plain_options
from stateline.pipeline.graph import OperatorPlan
from stateline.pipeline.operators.api import OperatorProgram
from stateline.pipeline.operators.selection import SelectionProgram
from stateline.pipeline.output_columns import columns_of
from stateline.spark.columns.checks import check_columns, check_hidden, check_shared
from stateline.spark.pipeline import Pipeline
from stateline.spark.places import resolved
from stateline.spark.sinks.for_each_batch import BatchFunction
from stateline.tables import TableTarget, open_table

__all__ = ["StageOutputs"]

_ROLLING: Final = ("roll_bytes", "roll_seconds", "idle_seconds", "every_checkpoint")


@dataclass(frozen=True, slots=True)
class StageOutputs:
    """An operator whose output has no place yet, and the pipeline that ends with it."""

    _pipeline: Pipeline
    _operator: OperatorPlan
    _program: OperatorProgram

    def where(self, condition: pc.Expression) -> Self:
        """The rows of the output for which a condition holds, such as ``pc.field("price") > 100``.

        Where rows of the output replace earlier ones, an operator behind it sees a row go that no longer fits.

        Raises:
            InvalidInputError: No Arrow expression, no such column, or no condition.
        """
        return self._choosing(SelectionProgram.filtered(self._program, condition))

    def select(self, *columns: str, **expressions: pc.Expression) -> Self:
        """Columns of the output, and others that are computed from them for each row.

            stage.select("auction", average=pc.divide(pc.field("total"), pc.field("bids")))

        A column that is the time of an event stays one, also under another name.

        Raises:
            InvalidInputError: No column of that name, no Arrow expression, or one that cannot be computed.
        """
        return self._choosing(SelectionProgram.projected(self._program, columns, expressions))

    def _choosing(self, program: SelectionProgram) -> Self:
        operator = OperatorPlan.of(self._operator.name, program, self._operator.sources)
        operator = replace(operator, late_columns=self._operator.late_columns)
        pipeline = self._pipeline.with_program(operator, program)
        return replace(self, _pipeline=pipeline, _operator=operator, _program=program)

    def write_files(
        self,
        path: str,
        format: str = "parquet",  # noqa: A002 - Spark's word
        partition_by: Sequence[str] | str = (),
        *,
        roll_bytes: int | str = "128MB",
        roll_seconds: float | str | None = "auto",
        idle_seconds: float | str | None = None,
        every_checkpoint: bool = False,
        partition_zone: str = "UTC",
        compression: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Pipeline:
        """Writes the output as files that appear exactly once, in the same checkpoint as the state.

        A file grows over micro-batches and becomes visible, whole, with the checkpoint that finishes it. Any reader
        that lists the folder sees each row once; there is no side log.

        Args:
            path: Root URL of the output.
            format: ``parquet``, ``arrow``, ``csv``, ``jsonl`` or ``text``.
            partition_by: Columns that become folders, as in Hive and Spark.
            roll_bytes: Size at which a file is finished.
            roll_seconds: Age at which a file is finished, also while no rows come; ``None`` for no limit. By default
                five minutes, unless the stream ends by itself (``availableNow``, ``once``), which finishes its files.
            idle_seconds: Time without rows after which a file is finished, also while none come at all.
            every_checkpoint: Finish every file with its checkpoint: rows are visible at once, in more and smaller
                files.
            partition_zone: Time zone whose clock names the folders of timestamps.
            compression: A codec of the format.
            options: Options of the output's store.

        Raises:
            InvalidInputError: An unknown format, codec or column, or the checkpoint lies where readers of the output
                find it.
        """
        path = absolute_url(resolved(path, "path", self._pipeline.session))
        check_shared(path, "path")
        check_hidden(self._pipeline.plan.root_url, path, "checkpoint")
        columns = _names(partition_by, "partition_by")
        output = FileOutput(
            url=path,
            format=format,
            partition_by=columns,
            partition_zone=partition_zone,
            compression=compression,
            rolling=RollingPolicy(
                roll_bytes=roll_bytes,  # type: ignore[arg-type]
                roll_seconds=roll_seconds,  # type: ignore[arg-type]
                idle_seconds=idle_seconds,  # type: ignore[arg-type]
                every_checkpoint=every_checkpoint,
            ),
            store_options=plain_options(options),
        )
        rows = self._program.output_schema
        output.file_schema(rows)
        return self._pipeline.with_outputs_of(
            replace(self._operator, output=output, output_columns=columns_of(output.named(rows)))
        )

    def write_table(
        self,
        format: str,  # noqa: A002 - Spark's word
        target: str,
        *,
        mode: str = "append",
        key: Sequence[str] | str = (),
        deletes: bool = False,
        partition_by: Sequence[str] | str = (),
        options: Mapping[str, str] | None = None,
    ) -> Pipeline:
        """Writes the output into a table, each row exactly once: ``docs/guides/tables.md``.

        The commit follows the checkpoint that decides its rows, and carries a token of that checkpoint in the table's
        own transaction. So it is repeated until it is there, and a driver that comes late changes nothing.

        Args:
            format: ``delta``, ``iceberg``, ``postgresql`` or ``sqlite``.
            target: Delta: URL of the table. Iceberg: ``namespace.table``. Databases: the name of the table. A table
                that is missing is made, with the columns of the output.
            mode: ``append``, or ``upsert`` by ``key``: one row of each key, the newest.
            key: Columns that tell rows apart, for ``upsert``.
            deletes: With ``upsert``, also deletes the rows of keys that the operator takes back or forgets: their
                window has closed, their time to live is over, no row of theirs is left. So the table is its state.
            partition_by: Columns by which Delta and Iceberg partition the table; for Iceberg also ``year(column)``,
                ``month(column)``, ``day(column)`` and ``hour(column)``.
            options: ``uri`` of a database; ``catalog.<property>`` of an Iceberg catalog; ``roll_bytes``,
                ``roll_seconds``, ``idle_seconds``, ``every_checkpoint`` and ``compression`` as :meth:`write_files` has
                them, for tables of files; others go to the store of the files.

        Raises:
            InvalidInputError: An unknown format, mode, column or option, a column that the table cannot hold, or
                ``deletes`` of an operator that does not say which keys it forgets.
            NotInstalledError: The library of the format is missing.
        """
        given, rows = plain_options(options), self._program.output_schema
        columns = _names(partition_by, "partition_by")
        table = TableTarget(
            format=format,
            target=target,
            mode=mode,  # type: ignore[arg-type]
            key=_names(key, "key"),
            deletes=deletes,
            partition_by=columns,
            options=given,
        ).resolved(lambda place, what: resolved(place, what, self._pipeline.session))
        if format == "delta":
            table = replace(table, target=absolute_url(table.target))
        if table.takes_files:
            check_known(table.store_options, [*_ROLLING, "compression", *store_options()])
            rolling, compression = _rolling(given), given.pop("compression", None)
            table = replace(table, options={name: table.options[name] for name in given})
        if deletes and (unknown := self._program.removals_unknown):
            raise InvalidInputError(
                f"cannot delete what this operator forgets: {unknown}",
                operation="write_table",
                subject=f"deletes of operator {self._operator.name!r}",
                hint="Leave deletes out, or delete old rows by a column of theirs, in the database",
            )
        named = [*table.key, *(columns if format != "iceberg" else ())]  # Which may have more than names of columns.
        if named:
            check_columns(rows, named, "key or partition_by")
        with open_table(table, schema=rows) as opened:
            url = opened.files_url() if table.takes_files else ""
            file_columns = opened.file_columns() if table.takes_files else ()
        if not table.takes_files:
            check_countable(rows, "write_table")
            return self._pipeline.with_outputs_of(replace(self._operator, delivers=True, table=table))
        check_shared(url, "target")
        check_hidden(self._pipeline.plan.root_url, url, "checkpoint")
        open_store(url, table.store_options).close()  # Refuses wrong options here and not in the first batch.
        output = FileOutput(
            url=url,
            partition_by=columns,
            columns_in_files=format == "iceberg",
            file_columns=file_columns,
            compression=compression,
            rolling=rolling,
            store_options=table.store_options,
        )
        output.file_schema(rows)
        return self._pipeline.with_outputs_of(
            replace(self._operator, output=output, output_columns=columns_of(output.named(rows)), table=table)
        )

    def for_each_batch(self, fn: BatchFunction) -> Pipeline:
        """Hands the output of each checkpoint to a function, for sinks that are not files.

        ``fn(rows, key)`` gets a DataFrame, as in Spark's ``foreachBatch``, and a
        :class:`~stateline.pipeline.delivery.BatchKey`. It is called at least once for each checkpoint that has rows,
        after the checkpoint is durable, and always with the same rows under the same ``str(key)``, whatever crashed: a
        sink that stores the key in the transaction that stores the rows has each row exactly once.
        :mod:`stateline.spark.sinks.for_each_batch` has all guarantees.

        Args:
            fn: Runs in the driver. When it raises, the query fails, and the next start delivers the rows again.

        Raises:
            InvalidInputError: ``fn`` is no function, or elements of lists or maps in the output have no type.
        """
        if not callable(fn):
            raise InvalidInputError(f"{fn!r} is not a function", operation="for_each_batch", hint="Give fn(rows, key)")
        check_countable(self._program.output_schema, "for_each_batch")
        return self._pipeline.with_outputs_of(replace(self._operator, delivers=True), fn)

    def state_only(self) -> Pipeline:
        """Keeps the state and writes nothing else."""
        return self._pipeline


def _names(columns: Sequence[str] | str, what: str) -> tuple[str, ...]:
    check_kind(columns, Iterable, what)
    return (columns,) if isinstance(columns, str) else tuple(columns)


def _rolling(options: dict[str, str]) -> RollingPolicy:
    """When files are finished, as options of a table say it; they are taken out."""
    given: dict[str, Any] = {"roll_seconds": "auto"}
    given |= {name: options.pop(name) for name in _ROLLING if name in options}
    return RollingPolicy(**given)
