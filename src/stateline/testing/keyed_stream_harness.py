"""A keyed stream of rows in lists: what tests give a program in place of a :class:`stateline.spark.KeyedStream`.

A function that takes a keyed stream and returns a stage runs on both, so what is tested is what is shipped::

    def totals(stream):
        return stream.aggregate(n=count(), total=sum("value"))

    totals(KeyedStream(events, "key", root)).write_files(out).start()          # in production
    harness = totals(KeyedStreamHarness("key string, value long", "key"))      # in a test
    assert harness.run_batch([{"key": "a", "value": 2}]) == [{"key": "a", "n": 1, "total": 2, "checkpoint_id": 0}]

No Spark session runs. Aggregations and functions over Arrow tables need no pyspark either, where schemas are Arrow's.
Processors need it for their base class, and Spark parses a schema given as text where it has more than plain types.
"""

from __future__ import annotations

import importlib.util
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from stateline.blob import BlobStore, open_store
from stateline.environment import Environment
from stateline.errors import InvalidInputError, NotInstalledError
from stateline.key_groups import check_key_type
from stateline.options import check_kind, check_known, settings_from_options
from stateline.pipeline.event_time import Duration, SessionPlan, WatermarkPlan, WindowPlan
from stateline.pipeline.graph import Graph, Input, OperatorPlan, Source
from stateline.pipeline.lookups import find_lookup, lookup_in_operator, lookup_url
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.pipeline.operators.api import OperatorProgram
from stateline.pipeline.operators.arrow_function import ArrowFunction, ArrowFunctionProgram
from stateline.pipeline.operators.asof import AsofHow, AsofMode, AsofProgram
from stateline.pipeline.operators.asof_sides import AsofSide
from stateline.pipeline.operators.deduplication import DropDuplicatesProgram
from stateline.pipeline.operators.join import Interval, JoinProgram, JoinSide
from stateline.pipeline.operators.lookup import LookupHow, LookupProgram
from stateline.pipeline.operators.ranking import Ties
from stateline.pipeline.operators.sessions import SessionProgram
from stateline.pipeline.operators.top import TopProgram
from stateline.pipeline.plan import PipelineSettings
from stateline.pipeline.windows import windows_over
from stateline.state.aggregate import Aggregation
from stateline.state.time_to_live import ttl_milliseconds
from stateline.testing.clock import ManualClock
from stateline.testing.operator_harness import StageHarness

if TYPE_CHECKING:
    from pyspark.sql.streaming import StatefulProcessor
    from pyspark.sql.types import StructType

__all__ = ["KeyedStageHarness", "KeyedStreamHarness", "WindowedStreamHarness"]

_STREAMS: Final = itertools.count()
"""Numbers for streams that no operator reads yet."""


class KeyedStreamHarness:
    """Has the methods of a keyed stream; each gives a :class:`KeyedStageHarness` that is ready for its first batch.

    Harnesses of one stream share its root and its clock. So a second program goes on from the state of the first, as
    it would after a release: it is refused where that is not possible.

    Args:
        schema: Of the rows: an Arrow schema, a Spark schema, or its DDL.
        key: One column, or several.
        watermark: Event-time column and delay, such as ``("at", "10 minutes")``.
        late_data: ``drop`` or ``keep``.
        ttl: Time by :attr:`clock` after which a key that no row touched is forgotten.
        parallelism: Subtasks at the start.
        max_parallelism: Key groups.
        options: Settings by name, as for a keyed stream.
        clock: Processing time; a new one by default.
        root: Store of the checkpoints, such as a :class:`stateline.testing.FaultyStore`; one in memory by default.
        name: Of the operator; to be given where a pipeline has several that read streams.

    Attributes:
        clock: Processing time.

    Raises:
        InvalidInputError: A key column does not exist or cannot be a key, the watermark is not on a timestamp, an
            option is unknown.
    """

    def __init__(
        self,
        schema: pa.Schema | StructType | str,
        key: str | Sequence[str],
        *,
        watermark: tuple[str, Duration] | None = None,
        late_data: str = "drop",
        ttl: Duration | None = None,
        parallelism: int = 2,
        max_parallelism: int = 128,
        options: Mapping[str, str] | None = None,
        clock: ManualClock | None = None,
        root: BlobStore | None = None,
        name: str = "op",
    ) -> None:
        given = _arrow_schema(schema, "schema")
        plan = None if watermark is None else WatermarkPlan.of(given, *watermark, late_data)
        stream = f"stream {next(_STREAMS)}"
        self.clock = clock or ManualClock()
        environment = Environment(clock=self.clock)
        self._more: Mapping[str, Any] = {
            "parallelism": parallelism,
            "max_parallelism": max_parallelism,
            "settings": settings_from_options(PipelineSettings, options or {}),
            "environment": environment,
            "root": root or open_store(f"memory://{environment.ids.new_id()}"),
        }
        front = _Front(Graph((Input(name=stream, watermark=plan),)), {}, {stream: _Stream(given)})
        self._open(front, Source("input", stream), given, key, plan, name, ttl)

    def _open(
        self,
        front: _Front,
        source: Source,
        schema: pa.Schema,
        key: str | Sequence[str],
        watermark: WatermarkPlan | None,
        name: str,
        ttl: Duration | None,
    ) -> None:
        self._ttl_ms = None if ttl is None else ttl_milliseconds(ttl, "KeyedStreamHarness")
        self._front, self._source, self._schema, self._watermark, self._name = front, source, schema, watermark, name
        self._is_behind = source.kind == "operator"
        self._updates = self._is_behind and front.programs[source.name].emits == "updates"
        self._keys = [key] if isinstance(key, str) else list(key)
        check_known(self._keys, schema.names, "key column")
        for column in self._keys:
            check_key_type(schema.field(column).type, column)

    @classmethod
    def _of_stage(
        cls, stage: KeyedStageHarness, key: str | Sequence[str], name: str | None, ttl: Duration | None
    ) -> KeyedStreamHarness:
        stream = cls.__new__(cls)
        front, program = stage._front, stage.program  # noqa: SLF001 - one module
        if program.emits == "unknown":
            raise InvalidInputError(
                "cannot feed another operator: its output replaces rows, and nobody knows which",
                operation="key_by",
                subject=f"operator {stage.name!r}",
                hint="Use output mode append where its rows are final, or mode update of an aggregation without a ttl",
            )
        stream._more, stream.clock = stage._more, stage.clock  # noqa: SLF001
        keys = [key] if isinstance(key, str) else list(key)
        times = sorted(program.event_time_columns, key=lambda column: column not in keys)  # One of the key first.
        reaching = front.graph.inputs_reaching(stage.name)
        delays_us = [each.watermark.delay_us for each in reaching if each.watermark is not None]
        watermark = WatermarkPlan(column=times[0], delay_us=max(delays_us)) if times and delays_us else None
        name = name or f"{stage.name}_by_{key if isinstance(key, str) else '_'.join(key)}"
        source = Source("operator", stage.name)
        stream._open(front, source, program.columns_handed_on, key, watermark, name, ttl)  # noqa: SLF001
        return stream

    def aggregate(self, output_mode: str = "update", /, **aggregations: Aggregation) -> KeyedStageHarness:
        """As :meth:`stateline.spark.KeyedStream.aggregate`."""
        return self._aggregated(output_mode, aggregations, None)

    def window(
        self, column: str, size: Duration, slide: Duration | None = None, *, start: Duration = "0 seconds"
    ) -> WindowedStreamHarness:
        """As :meth:`stateline.spark.KeyedStream.window`."""
        window = windows_over(self._schema, column, size, slide, start, behind=self._is_behind)
        return WindowedStreamHarness(lambda mode, aggregations: self._aggregated(mode, aggregations, window))

    def sessions(self, column: str, gap: Duration) -> WindowedStreamHarness:
        """As :meth:`stateline.spark.KeyedStream.sessions`."""
        sessions = SessionPlan.of(self._schema, column, gap)

        def aggregated(mode: str, aggregations: Mapping[str, Aggregation]) -> KeyedStageHarness:
            program = SessionProgram.bind(
                self._schema,
                self._keys,
                sessions,
                aggregations,
                output_mode=mode,
                watermark=self._watermark,
                updates=self._updates,
            )
            return self._harness(program)

        return WindowedStreamHarness(aggregated)

    def apply_arrow(
        self,
        fn: ArrowFunction,
        state_schema: pa.Schema | StructType | str,
        output_schema: pa.Schema | StructType | str,
        output_mode: str = "update",
        *,
        columns: Sequence[str] | None = None,
        state_defaults: Mapping[str, object] | None = None,
    ) -> KeyedStageHarness:
        """As :meth:`stateline.spark.KeyedStream.apply_arrow`."""
        program = ArrowFunctionProgram.bind(
            self._schema,
            self._keys,
            fn,
            _arrow_schema(state_schema, "state_schema"),
            _arrow_schema(output_schema, "output_schema"),
            output_mode=output_mode,
            columns=columns,
            watermark=self._watermark,
            state_defaults=state_defaults,
            ttl_ms=self._ttl_ms,
        )
        return self._harness(program)

    def drop_duplicates(self, *, within_watermark: bool = False, ttl: Duration | None = None) -> KeyedStageHarness:
        """As :meth:`stateline.spark.KeyedStream.drop_duplicates`."""
        program = DropDuplicatesProgram.bind(
            self._schema,
            self._keys,
            watermark=self._watermark,
            within_watermark=within_watermark,
            ttl_ms=self._ttl_ms if ttl is None else ttl_milliseconds(ttl, "drop_duplicates"),
            updates=self._updates,
        )
        return self._harness(program)

    def top(
        self,
        n: int,
        by: str | Sequence[str],
        *,
        ascending: bool | Sequence[bool] = False,
        ties: Ties = "first",
        columns: Sequence[str] | None = None,
    ) -> KeyedStageHarness:
        """As :meth:`stateline.spark.KeyedStream.top`."""
        program = TopProgram.bind(
            self._schema,
            self._keys,
            n,
            by,
            ascending=ascending,
            ties=ties,
            columns=columns,
            watermark=self._watermark,
            updates=self._updates,
            ttl_ms=self._ttl_ms,
        )
        return self._harness(program)

    def join(
        self,
        other: KeyedStreamHarness,
        how: str = "inner",
        *,
        within: tuple[Duration, Duration] | None = None,
        suffix: str = "_right",
        ttl: Duration | None = None,
    ) -> KeyedStageHarness:
        """As :meth:`stateline.spark.KeyedStream.join`, in the root and with the clock of this stream."""
        check_kind(other, KeyedStreamHarness, "other", "a KeyedStreamHarness")
        program = JoinProgram.bind(
            self._side(),
            other._side(),
            how,
            interval=None if within is None else Interval.of(within),
            suffix=suffix,
            ttl_ms=None if ttl is None else ttl_milliseconds(ttl, "join"),
        )
        return self._harness(program, other)

    def join_asof(
        self,
        other: KeyedStreamHarness,
        *,
        how: AsofHow = "inner",
        mode: AsofMode = "wait",
        suffix: str = "_right",
        tolerance: Duration | None = None,
        deleted: str | None = None,
    ) -> KeyedStageHarness:
        """As :meth:`stateline.spark.KeyedStream.join_asof`."""
        left, right = (
            AsofSide(each._schema, tuple(each._keys), each._watermark, each._updates)  # noqa: SLF001 - of this class
            for each in (self, other)
        )
        program = AsofProgram.bind(left, right, how=how, mode=mode, suffix=suffix, tolerance=tolerance, deleted=deleted)
        return self._harness(program, other)

    def lookup(
        self,
        source: KeyedStageHarness | str,
        *,
        operator: str | None = None,
        columns: Sequence[str] | None = None,
        how: LookupHow = "left",
        suffix: str = "_right",
    ) -> KeyedStageHarness:
        """As :meth:`stateline.spark.KeyedStream.lookup`; ``source`` may be the URL of the root of another harness."""
        if isinstance(source, KeyedStageHarness):
            found, shown = lookup_in_operator(source.plan.graph.operator(source.name), operator, columns)
            beside = source._front  # noqa: SLF001 - one module
        else:
            url = lookup_url(source, self._more["root"].url)
            found, shown = find_lookup(url, operator, columns, {}, self._more["environment"])
            beside = None
        program = LookupProgram.bind(
            self._schema,
            self._keys,
            found,
            shown,
            how=how,
            suffix=suffix,
            event_times=() if self._watermark is None else (self._watermark.column,),
            updates=self._updates,
        )
        return self._harness(program, beside=beside)

    def process(
        self,
        processor: StatefulProcessor,
        output_schema: StructType | str,
        output_mode: str = "update",
        time_mode: str = "None",
        initial_state: pa.Table | None = None,
        *,
        form: str | None = None,
        time_zone: str = "UTC",
    ) -> KeyedStageHarness:
        """As :meth:`stateline.spark.KeyedStream.process`.

        Args:
            processor: An instance.
            output_schema: What it yields.
            output_mode: ``update`` or ``append``.
            time_mode: ``None``, ``ProcessingTime`` or ``EventTime``.
            initial_state: Rows for ``handleInitialState`` in the first batch.
            form: ``row`` or ``pandas``.
            time_zone: That of the session, in which the processor sees timestamps.

        Raises:
            NotInstalledError: pyspark is not installed.
        """
        check_kind(initial_state, pa.Table | None, "initial_state", "a pyarrow.Table, or None")
        _check_pyspark("process")
        from pyspark.sql.pandas.types import from_arrow_schema  # noqa: PLC0415 - only processors need pyspark

        from stateline.spark.processor.operator import ProcessorProgram  # noqa: PLC0415

        program = ProcessorProgram.bind(
            processor,
            from_arrow_schema(self._schema),
            self._keys,
            output_schema=output_schema,
            output_mode=output_mode,
            time_mode=time_mode,
            time_zone=time_zone,
            form=form,
            initial=None if initial_state is None else from_arrow_schema(initial_state.schema),
            watermark=self._watermark,
        )
        return self._harness(program, initial=initial_state)

    def _side(self) -> JoinSide:
        return JoinSide(schema=self._schema, keys=self._keys, watermark=self._watermark, updates=self._updates)

    def _aggregated(
        self, output_mode: str, aggregations: Mapping[str, Aggregation], window: WindowPlan | None
    ) -> KeyedStageHarness:
        program = AggregateProgram.bind(
            self._schema,
            self._keys,
            aggregations,
            output_mode=output_mode,
            window=window,
            watermark=self._watermark,
            updates=self._updates,
            behind=self._is_behind,
            ttl_ms=self._ttl_ms,
        )
        return self._harness(program)

    def _harness(
        self,
        program: OperatorProgram,
        *others: KeyedStreamHarness,
        initial: pa.Table | None = None,
        beside: _Front | None = None,
    ) -> KeyedStageHarness:
        if self._ttl_ms is not None and program.ttl_ms is None:
            raise InvalidInputError(
                "cannot be used here: this operator forgets no keys by the clock of the stream",
                operation="KeyedStreamHarness",
                subject=f"ttl of operator {self._name!r}",
                hint="Leave it out: aggregate, apply_arrow and drop_duplicates honour it",
            )
        front, sources = self._front, [self._source]
        if beside is not None:
            front, mine, _ = front.beside(beside)
            sources = [_renamed(source, mine) for source in sources]
        for other in others:
            front, mine, theirs = front.beside(other._front)  # noqa: SLF001 - of this class
            sources = [_renamed(source, mine) for source in sources]
            sources.append(_renamed(other._source, theirs))  # noqa: SLF001
        operator = OperatorPlan.of(self._name, program, tuple(sources))
        return KeyedStageHarness(front.with_operator(operator, program), self._name, self._more, initial)


@dataclass(frozen=True, eq=False)
class _Stream:
    """A stream, which is the same as itself only: two may have one schema."""

    schema: pa.Schema


@dataclass(frozen=True)
class _Front:
    """The part of a pipeline that is there so far."""

    graph: Graph
    programs: Mapping[str, OperatorProgram]
    streams: Mapping[str, _Stream]

    def with_operator(self, operator: OperatorPlan, program: OperatorProgram) -> _Front:
        made = self.graph.with_operator(operator)
        streams = {made.mine[name]: stream for name, stream in self.streams.items()}
        return _Front(made.graph, {**self.programs, operator.name: program}, streams)

    def beside(self, other: _Front) -> tuple[_Front, Mapping[str, str], Mapping[str, str]]:
        """Both, and how the inputs of each are called now."""
        same = {
            theirs: mine
            for theirs, their_stream in other.streams.items()
            for mine, stream in self.streams.items()
            if stream is their_stream
        }
        shared = [name for name, program in self.programs.items() if other.programs.get(name) is program]
        made = self.graph.alongside(other.graph, same, shared)
        streams = {made.mine[name]: stream for name, stream in self.streams.items()}
        streams |= {made.theirs[name]: stream for name, stream in other.streams.items()}
        return _Front(made.graph, {**self.programs, **other.programs}, streams), made.mine, made.theirs


class KeyedStageHarness(StageHarness):
    """An operator that is ready for its first batch, and that further operators can be put behind.

    ``run_batch`` takes the rows of each stream of the pipeline, in the order in which the program reads them, and gives
    the rows of this operator.
    """

    def __init__(self, front: _Front, name: str, more: Mapping[str, Any], initial: pa.Table | None) -> None:
        schemas = {stream: each.schema for stream, each in front.streams.items()}
        super().__init__(name, front.graph, front.programs, schemas, initial=initial, **more)
        self._front = front
        self._more = more

    def key_by(
        self, key: str | Sequence[str], *, name: str | None = None, ttl: Duration | None = None
    ) -> KeyedStreamHarness:
        """As :meth:`stateline.spark.PipelineStage.key_by`."""
        return KeyedStreamHarness._of_stage(self, key, name, ttl)  # noqa: SLF001 - one module


def _renamed(source: Source, names: Mapping[str, str]) -> Source:
    return replace(source, name=names[source.name]) if source.kind == "input" else source


class WindowedStreamHarness:
    """What :meth:`KeyedStreamHarness.window` and :meth:`KeyedStreamHarness.sessions` return.

    Args:
        aggregated: Makes the harness of an output mode and aggregations.
    """

    def __init__(self, aggregated: Callable[[str, Mapping[str, Aggregation]], KeyedStageHarness]) -> None:
        self._aggregated = aggregated

    def aggregate(self, output_mode: str = "update", /, **aggregations: Aggregation) -> KeyedStageHarness:
        """As :meth:`stateline.spark.WindowedStream.aggregate`."""
        return self._aggregated(output_mode, aggregations)


def _arrow_schema(schema: pa.Schema | StructType | str, what: str) -> pa.Schema:
    if isinstance(schema, pa.Schema):
        return schema
    _check_pyspark(what)
    from stateline.spark.arrow_types import declared_schema  # noqa: PLC0415 - Arrow schemas need no pyspark

    return declared_schema(schema, what)


def _check_pyspark(subject: str) -> None:
    if importlib.util.find_spec("pyspark") is None:
        raise NotInstalledError(
            "the package pyspark is not installed",
            operation="KeyedStreamHarness",
            subject=subject,
            hint="Run: pip install 'stateline[spark]'; or give Arrow schemas, which need no pyspark",
        )
