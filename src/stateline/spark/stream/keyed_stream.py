"""What users call: a DataFrame, a key, what to keep per key, and where the results go.

    (KeyedStream(events, key="tailnum", checkpoint="s3://bucket/flights/state")
        .aggregate(flights=count(), mean_delay=mean("dep_delay"), last_seen=max("ts"))
        .write_files("s3://bucket/flights/out", partition_by=["origin"])
        .start("s3://bucket/flights/spark", trigger={"processingTime": "10 seconds"}))

Every misspelled column, wrong type or unknown option is refused by the call that names it, before anything runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import pyarrow as pa
from pyspark.sql import DataFrame

from stateline.errors import InvalidInputError
from stateline.options import check_kind
from stateline.pipeline.event_time import Duration, LateData
from stateline.pipeline.operators.api import OperatorProgram
from stateline.pipeline.operators.asof import AsofHow, AsofMode
from stateline.pipeline.operators.lookup import LookupHow
from stateline.spark.columns.checks import check_columns, shipped
from stateline.spark.pipeline import Pipeline
from stateline.spark.stream.joins import join_of
from stateline.spark.stream.keyed_rows import KeyedRows, pipeline_settings
from stateline.spark.stream.late_rows import late_output_of
from stateline.spark.stream.lookups import asof_join_of, lookup_of
from stateline.spark.stream.operators import StreamOperators
from stateline.spark.stream.outputs import StageOutputs
from stateline.state.time_to_live import ttl_milliseconds

__all__ = ["KeyedStream", "PipelineStage"]


class KeyedStream(StreamOperators["PipelineStage"]):
    """A streaming DataFrame, grouped by a key, with durable state per key.

    Args:
        df: A streaming DataFrame of replayable sources.
        key: One column, or several. Null is a key like any other, as in Spark's ``groupBy``, and names are found as
            there: unless ``spark.sql.caseSensitive`` is set, ``k`` means column ``K``, and the output calls it ``k``.
        checkpoint: Root URL of the state: ``file:``, ``s3:``, ``gs:``, ``az:`` or a path. One root belongs to one
            query.
        parallelism: Subtasks; may change at every restart. Default: the cores that Spark has.
        max_parallelism: Key groups; fixed for the life of the root, and the bound of ``parallelism``.
        options: Settings by name; see ``PipelineSettings``. ``root.<option>`` goes to the root's store,
            ``savepoint.<option>`` to that of the savepoint.
        name: Name of the operator in the checkpoint. Default: made from the key.
        start_from: URL of a savepoint from which a root without checkpoints starts; the option of that name.
        source: Where the source of a query begins that starts from a savepoint. ``savepoint``, the default, continues
            at the source offsets of the savepoint. ``new`` begins where the query says.
        retain: How many checkpoints that changed state are kept, at least 2; the option ``retained_checkpoints``.
            Default: 10, and those of the last hour, up to 100 records.
        watermark: Event-time column and delay, such as ``("at", "10 minutes")``: rows may come this much later than
            the newest one. ``df.withWatermark(...)`` says the same and is honoured; there is one watermark per stream.
            It is kept in the checkpoint and never goes back.
        late_data: What happens to rows that come later: ``drop`` (counted as ``rows_late`` in the metrics) or
            ``keep`` (a closed window begins anew with them). As in Spark, a row is late for a window when a batch
            before has closed the window, and for a function of :meth:`apply_arrow` when its time is not after the
            watermark of the batch before. For aggregations without windows nothing is late.
        ttl: A key that no row touched for so long by the clock is forgotten, such as ``"30 days"``: for
            :meth:`aggregate`, :meth:`apply_arrow` and :meth:`top`, and the default of :meth:`drop_duplicates`. It may
            be added and changed at any restart, and not be taken away again. Without one, keys stay for ever.

    Raises:
        InvalidInputError: ``df`` is no stream, a key column does not exist or cannot be a key, an option is unknown,
            the watermark is not on a timestamp or its delay is negative, the ttl is less than a millisecond.
    """

    def __init__(
        self,
        df: DataFrame,
        key: str | Sequence[str],
        checkpoint: str,
        *,
        parallelism: int | None = None,
        max_parallelism: int = 128,
        options: Mapping[str, str] | None = None,
        name: str | None = None,
        start_from: str | None = None,
        source: Literal["savepoint", "new"] | None = None,
        retain: int | None = None,
        watermark: tuple[str, Duration] | None = None,
        late_data: LateData = "drop",
        ttl: Duration | None = None,
    ) -> None:
        if not getattr(df, "isStreaming", False):
            raise InvalidInputError(
                "must be a stream", operation="KeyedStream", subject="df", hint="Read it with spark.readStream"
            )
        plan = pipeline_settings(df, checkpoint, parallelism, max_parallelism, options, start_from, source, retain)
        self._open(KeyedRows.of_frame(df, key, plan, watermark, late_data), name, ttl, "KeyedStream")

    def _open(self, rows: KeyedRows, name: str | None, ttl: Duration | None, operation: str) -> None:
        self._rows = rows
        self._keys = list(rows.keys)
        self._schema = rows.schema
        self._watermark = rows.watermark
        self._updates = rows.updates
        self._name = name or "by_" + "_".join(self._keys)
        self._ttl_ms = None if ttl is None else ttl_milliseconds(ttl, operation)

    @classmethod
    def _of_stage(
        cls, stage: PipelineStage, key: str | Sequence[str], name: str | None, ttl: Duration | None
    ) -> KeyedStream:
        stream = cls.__new__(cls)
        operator = stage._operator.name  # noqa: SLF001 - one module
        rows = KeyedRows.of_operator(stage._pipeline, operator, stage._program, key)  # noqa: SLF001
        name = name or f"{operator}_by_{'_'.join(rows.keys)}"
        stream._open(rows, name, ttl, "key_by")  # noqa: SLF001 - its own
        return stream

    def join(
        self,
        other: KeyedStream,
        how: str = "inner",
        *,
        within: tuple[Duration, Duration] | None = None,
        suffix: str = "_right",
        ttl: Duration | None = None,
    ) -> PipelineStage:
        """Joins rows of another stream whose keys are equal, and whose times are near: ``docs/guides/joins.md``.

        The output has the key columns by their names here, the other columns of this stream, and the other columns of
        the other stream, with ``suffix`` where a name is taken. It only appends.

        Args:
            other: The right side: a keyed stream with the same checkpoint, and keys of the same types.
            how: ``inner``, ``left``, ``right``, ``full``, or ``semi`` for rows of this stream that have a partner,
                once.
            within: Which times match: ``(lower, upper)`` for left time + lower <= right time <= left time + upper.
                The times are the watermark columns of the two streams. State is bounded by it, and outer joins need it.
            suffix: Added to names of the other stream that this one has.
            ttl: Without ``within``: processing time after which a row is forgotten. Default: never.

        Raises:
            InvalidInputError: An unknown kind, keys that do not go together, an interval without two watermarks, an
                outer join without an interval, rows that an operator in front replaces, a name that is taken.
        """
        check_kind(other, KeyedStream, "other", "a KeyedStream")
        program = join_of(self._rows, other._rows, how, within, suffix, ttl)
        return self._stage(program, other)

    def join_asof(
        self,
        other: KeyedStream,
        *,
        how: AsofHow = "inner",
        mode: AsofMode = "wait",
        suffix: str = "_right",
        tolerance: Duration | None = None,
        deleted: str | None = None,
    ) -> PipelineStage:
        """Joins each row with the version of ``other`` that held at its event time: ``docs/guides/lookups.md``.

        The output has the key columns, other columns of this stream, and other columns of ``other``.

        Args:
            other: A stream with keys of the same types, in the same checkpoint. Both streams have a watermark.
            how: ``inner``: rows without a version do not come out. ``left``: they do, with nulls.
            mode: ``wait``: a row comes out when the watermark has reached its time, so that its result does not depend
                on what came first. ``now``: it comes out at once, with the versions that are known by then.
            suffix: Added to names of ``other`` that are taken.
            tolerance: A version that is older than this at the time of the row does not count.
            deleted: A boolean column of ``other``: true in a row from whose time on its key has no version.

        Raises:
            InvalidInputError: See :meth:`AsofProgram.bind`; or the streams have different checkpoints.
        """
        check_kind(other, KeyedStream, "other", "a KeyedStream, or stage.key_by(...)")
        program = asof_join_of(self._rows, other._rows, how, mode, suffix, tolerance, deleted)
        return self._stage(program, other)

    def lookup(
        self,
        source: PipelineStage | str,
        *,
        operator: str | None = None,
        columns: Sequence[str] | None = None,
        how: LookupHow = "left",
        suffix: str = "_right",
        options: Mapping[str, str] | None = None,
    ) -> PipelineStage:
        """Puts what another operator keeps of its key beside each row: ``docs/guides/lookups.md``.

        Args:
            source: A stage of the same checkpoint, whose state is that before the batch; or the URL of another root,
                whose newest state when the batch begins is read, of one of its checkpoints, or of a savepoint.
            operator: Whose state; not needed where there is one.
            columns: Which of its columns; all by default.
            how: ``left``: rows of which nothing is known come out with nulls. ``inner``: they do not come out.
            suffix: Added to names of the state that are taken.
            options: Settings of the other root's store.

        Raises:
            NotFoundError: There is no checkpoint at the URL.
            InvalidInputError: No such operator or column, keys of other types, a name that is taken, or the URL is
                that of this stream's own checkpoint.
        """
        program, beside = lookup_of(self._rows, source, operator, columns, how, suffix, options)
        return self._stage(program, beside=beside)

    def _stage(
        self,
        program: OperatorProgram,
        *others: KeyedStream,
        initial: DataFrame | None = None,
        beside: Pipeline | None = None,
    ) -> PipelineStage:
        forgets = any(stream._ttl_ms is not None for stream in (self, *others))  # noqa: SLF001 - of this class
        if forgets and program.ttl_ms is None:
            raise InvalidInputError(
                "cannot be used here: this operator forgets no keys by the clock of the stream",
                operation="KeyedStream",
                subject=f"ttl of operator {self._name!r}",
                hint="Leave it out. aggregate, apply_arrow, top and drop_duplicates honour it; a join, and each state "
                "variable of a processor, has one of its own",
            )
        output = program.output_schema
        check_columns(output, output.names, "output_schema")
        shipped(program, "KeyedStream", f"operator {self._name}")  # Or every batch would fail, with Spark's words.
        further = (other._rows for other in others)  # noqa: SLF001 - of this class
        pipeline, operator = self._rows.feeding(self._name, program, *further, initial=initial, beside=beside)
        given = tuple(stream._schema for stream in (self, *others))  # noqa: SLF001 - of this class
        return PipelineStage(pipeline, operator, program, given)


@dataclass(frozen=True, slots=True)
class PipelineStage(StageOutputs):
    """A keyed operator whose output has no place yet. Made by :class:`KeyedStream`."""

    _given: tuple[pa.Schema, ...] = ()
    """The columns that it is given, on each side."""

    def key_by(self, key: str | Sequence[str], *, name: str | None = None, ttl: Duration | None = None) -> KeyedStream:
        """Groups the output by a key, for another operator in the same checkpoint.

        Args:
            key: One column of the output, or several.
            name: Name of the next operator in the checkpoint. Default: made from this one's and the key.
            ttl: As of :class:`KeyedStream`, for the next operator.

        Raises:
            InvalidInputError: A column that does not exist or cannot be a key; or rows of the output replace others,
                and nobody knows which.
        """
        return KeyedStream._of_stage(self, key, name, ttl)  # noqa: SLF001 - one module

    def late_rows(self, side: Literal["left", "right"] = "left", *, name: str | None = None) -> PipelineStage:
        """The rows that come too late for this operator, in place of being dropped: all columns that it is given.

        Args:
            side: Of a join, whose rows.
            name: Name of this output in the pipeline. Default: made from the operator's.

        Raises:
            InvalidInputError: No row is late for the operator: it has no watermark, or keeps late rows.
        """
        pipeline, reader, program, given = late_output_of(self._pipeline, self._operator, self._given, side, name)
        return PipelineStage(pipeline, reader, program, (given,))
