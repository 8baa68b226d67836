"""What a keyed stream groups: the rows of a DataFrame, or those that another operator puts out."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

import pyarrow as pa
from pyspark.sql import DataFrame

from stateline.blob.urls import absolute_url
from stateline.errors import InvalidInputError
from stateline.key_groups import check_key_type, check_parallelism
from stateline.options import check_kind, parse_int, plain_options, pop_prefixed, settings_from_options
from stateline.pipeline.event_time import Duration, WatermarkPlan
from stateline.pipeline.graph import Graph, Input, OperatorPlan, Source
from stateline.pipeline.operators.api import OperatorProgram
from stateline.pipeline.plan import AUTO_COPIES, NO_COPIES, PipelinePlan, PipelineSettings, SavepointStart
from stateline.spark.api_mode import default_parallelism
from stateline.spark.arrow_types import arrow_schema
from stateline.spark.columns.checks import check_collation, check_columns, check_reserved, check_shared, key_names
from stateline.spark.columns.names import StreamColumns
from stateline.spark.columns.watermark import stream_watermark
from stateline.spark.pipeline import Pipeline
from stateline.spark.places import resolved
from stateline.state.aggregate import Aggregation

__all__ = ["KeyedRows", "pipeline_settings"]

_ROOT_PREFIX: Final = "root."
_SAVEPOINT_PREFIX: Final = "savepoint."
_STREAMS: Final = itertools.count()
"""Numbers for streams that no operator reads yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRows:
    """Rows and the columns that they are grouped by.

    Attributes:
        pipeline: Everything in front of the rows.
        source: Where in it they come from.
        schema: Their columns.
        columns: The same by name.
        keys: The key columns as the user spells them.
        watermark: Their event time; ``None`` without one.
        event_times: Columns that the watermark governs; of a stream the one of the watermark.
        updates: Whether rows come with weights, as an operator in front replaces rows of its output.
        frame: The stream, where they come straight from one.
    """

    pipeline: Pipeline
    source: Source
    schema: pa.Schema
    columns: StreamColumns
    keys: tuple[str, ...]
    watermark: WatermarkPlan | None
    event_times: tuple[str, ...] = ()
    updates: bool = False
    frame: DataFrame | None = None

    @classmethod
    def of_frame(
        cls,
        df: DataFrame,
        key: str | Sequence[str],
        plan: PipelinePlan,
        watermark: tuple[str, Duration] | None,
        late_data: str,
    ) -> Self:
        """The rows of a streaming DataFrame.

        Raises:
            InvalidInputError: See :class:`~stateline.spark.stream.keyed_stream.KeyedStream`.
        """
        schema = arrow_schema(df.schema)
        check_reserved(schema)
        columns = StreamColumns.of(df)
        event_time = stream_watermark(df, schema, columns, watermark, late_data)
        name = f"stream {next(_STREAMS)}"
        graph = Graph((Input(name=name, watermark=event_time),))
        rows = cls(
            pipeline=Pipeline(replace(plan, graph=graph), {name: df}),
            source=Source("input", name),
            schema=schema,
            columns=columns,
            keys=tuple(key_names(key)),
            watermark=event_time,
            event_times=() if event_time is None else (event_time.column,),
            frame=df,
        )
        rows._check_keys()
        return rows

    @classmethod
    def of_operator(cls, pipeline: Pipeline, name: str, program: OperatorProgram, key: str | Sequence[str]) -> Self:
        """The rows that an operator of a pipeline puts out.

        Raises:
            InvalidInputError: Rows of it may be replaced by others, and nobody knows which; or the key is none.
        """
        if program.emits == "unknown":
            raise InvalidInputError(
                "cannot feed another operator: its output replaces rows, and nobody knows which",
                operation="key_by",
                subject=f"operator {name!r}",
                hint="Use output mode append where its rows are final, or mode update of an aggregation without a ttl",
            )
        graph = pipeline.plan.graph
        delays_us = [each.watermark.delay_us for each in graph.inputs_reaching(name) if each.watermark is not None]
        event_times = program.event_time_columns if delays_us else ()
        schema = program.columns_handed_on
        case_sensitive = str(pipeline.session.conf.get("spark.sql.caseSensitive")).lower() == "true"
        rows = cls(
            pipeline=pipeline,
            source=Source("operator", name),
            schema=schema,
            columns=StreamColumns(tuple(schema.names), case_sensitive),
            keys=tuple(key_names(key)),
            watermark=WatermarkPlan(column=event_times[0], delay_us=max(delays_us)) if event_times else None,
            event_times=event_times,
            updates=program.emits == "updates",
        )
        rows._check_keys()
        return rows

    @property
    def key_columns(self) -> list[str]:
        """The key columns by their own names."""
        return [self.columns.own(column) for column in self.keys]

    def spelled(self, names: Iterable[object]) -> pa.Schema:
        """The schema, with a field more for each key or name in another spelling than the column's own."""
        return self.columns.spelled(self.schema, [*self.keys, *names])

    def all_columns(self, spelled: Iterable[str] = ()) -> list[str]:
        """The names of all columns: keys and some others as the user spells them."""
        names = {self.columns.own(name): name for name in [*self.keys, *spelled]}
        return [names.get(self.columns.own(name), name) for name in self.schema.names]

    def read_by(self, aggregations: Mapping[str, Aggregation]) -> pa.Schema:
        """The schema as :meth:`spelled`, for what aggregations read."""
        return self.spelled(name for one in aggregations.values() for name in getattr(one, "columns", ()) or ())

    def check_compared(self, aggregations: Mapping[str, Aggregation]) -> None:
        """Refuses aggregations that compare strings which Spark compares by other rules than their bytes.

        Raises:
            InvalidInputError: There are such.
        """
        compared = [self.columns.own(column) for one in aggregations.values() for column in one.compared]
        self.check_collations(compared, "aggregated column")

    def watermark_of(self, column: str, what: str) -> WatermarkPlan | None:
        """The watermark, as one of ``column`` where it governs several.

        Raises:
            InvalidInputError: The rows come from an operator whose watermark does not reach the column.
        """
        if self.watermark is None or self.frame is not None:
            return self.watermark
        if column not in self.event_times:
            raise InvalidInputError(
                f"must be a column that the watermark reaches through the operator in front: {list(self.event_times)}",
                operation=what,
                subject=f"column {column!r}",
                hint="A watermark passes through window_end, and through time columns that an operator hands on as "
                "they are",
            )
        return replace(self.watermark, column=column)

    @property
    def watermark_of_key(self) -> WatermarkPlan | None:
        """The watermark, as one of a key column where it governs one."""
        governed = [key for key, own in zip(self.keys, self.key_columns, strict=True) if own in self.event_times]
        return self.watermark if self.watermark is None or not governed else replace(self.watermark, column=governed[0])

    def check_collations(self, columns: Iterable[str], what: str) -> None:
        """Refuses strings that Spark compares by other rules than their bytes.

        Raises:
            InvalidInputError: There are such.
        """
        if self.frame is not None:
            check_collation(self.frame, columns, what)

    @property
    def keyed_schema(self) -> pa.Schema:
        """The schema, its key columns as the user spells them."""
        spelled = dict(zip(self.key_columns, self.keys, strict=True))
        names = (self.columns.own(name) for name in self.schema.names)
        return pa.schema(
            [field.with_name(spelled.get(name, name)) for name, field in zip(names, self.schema, strict=True)]
        )

    def feeding(
        self,
        name: str,
        program: OperatorProgram,
        *others: KeyedRows,
        initial: DataFrame | None = None,
        beside: Pipeline | None = None,
    ) -> tuple[Pipeline, OperatorPlan]:
        """The pipeline with an operator that reads these rows, and those of others on its further sides.

        Args:
            name: Of the operator.
            program: What it computes.
            others: The rows of its further sides.
            initial: Rows for its first batch.
            beside: A pipeline that is to run beside it, as one with it.
        """
        pipeline, sources = self.pipeline, [self.source]
        if beside is not None:
            pipeline, made = pipeline.merged(beside)
            sources = [_renamed(source, made.mine) for source in sources]
        for other in others:
            pipeline, made = pipeline.merged(other.pipeline, "join")
            sources = [_renamed(source, made.mine) for source in sources]
            sources.append(_renamed(other.source, made.theirs))
        pipeline = pipeline.with_operator(OperatorPlan.of(name, program, tuple(sources)), program, initial)
        return pipeline, pipeline.plan.graph.operator(name)

    def _check_keys(self) -> None:
        check_columns(self.schema, self.key_columns, "key")
        for column in self.key_columns:
            check_key_type(self.schema.field(column).type, column)
        self.check_collations(self.key_columns, "key")


def _renamed(source: Source, names: Mapping[str, str]) -> Source:
    return replace(source, name=names[source.name]) if source.kind == "input" else source


def pipeline_settings(
    df: DataFrame,
    checkpoint: str,
    parallelism: int | None,
    max_parallelism: int,
    options: Mapping[str, str] | None,
    start_from: str | None,
    source: str | None = None,
    retain: int | None = None,
) -> PipelinePlan:
    """The plan of a pipeline without operators, from what a user says of it.

    Raises:
        InvalidInputError: A setting that cannot be, or an unknown one.
    """
    root = absolute_url(resolved(checkpoint, "checkpoint", df))
    check_shared(root, "checkpoint")
    check_parallelism(1, max_parallelism)
    if parallelism is None:
        parallelism = min(default_parallelism(df.sparkSession), max_parallelism)
    check_parallelism(parallelism, max_parallelism)
    given = plain_options(options)
    if start_from is not None:
        check_kind(start_from, str, "start_from", "the URL of a savepoint")
        given["start_from"] = start_from
    for name in ("start_from", "metrics_log", "local_copies"):
        if given.get(name) and given[name] not in (AUTO_COPIES, NO_COPIES):
            given[name] = resolved(given[name], name, df)
    if source is not None:
        given["source"] = source
    if retain is not None:
        given["retained_checkpoints"] = str(parse_int(retain, "retain", minimum=2))
    root_options = pop_prefixed(given, _ROOT_PREFIX)
    savepoint_options = pop_prefixed(given, _SAVEPOINT_PREFIX)
    settings = settings_from_options(PipelineSettings, given)
    if settings.source == "new" and not settings.start_from:
        raise InvalidInputError(
            "must come with start_from: it says where the source of a query begins that starts from a savepoint",
            operation="KeyedStream",
            subject="source",
            hint="Give start_from the URL of a savepoint, or leave source out",
        )
    return PipelinePlan(
        root_url=root,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        graph=Graph(),
        settings=settings,
        metrics_log=settings.metrics_log,
        combine=settings.combine,
        root_options=root_options,
        start=_start(settings, savepoint_options),
    )


def _start(settings: PipelineSettings, options: Mapping[str, str]) -> SavepointStart | None:
    if not settings.start_from:
        return None
    return SavepointStart(url=settings.start_from, mode=settings.start_mode, options=options, source=settings.source)
