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
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from stateline.blob import BlobStore, open_store
from stateline.environment import Environment
from stateline.errors import NotInstalledError
from stateline.key_groups import check_key_type
from stateline.options import check_kind, check_known, settings_from_options
from stateline.pipeline.event_time import Duration, WatermarkPlan, WindowPlan
from stateline.pipeline.operators.aggregation import AggregateProgram
from stateline.pipeline.operators.api import OperatorProgram
from stateline.pipeline.operators.arrow_function import ArrowFunction, ArrowFunctionProgram
from stateline.pipeline.plan import PipelineSettings
from stateline.state.aggregate import Aggregation
from stateline.testing.clock import ManualClock
from stateline.testing.operator_harness import OperatorHarness

if TYPE_CHECKING:
    from pyspark.sql.streaming import StatefulProcessor
    from pyspark.sql.types import StructType

__all__ = ["KeyedStreamHarness", "WindowedStreamHarness"]


class KeyedStreamHarness:
    """Has the methods of a keyed stream; each gives an :class:`OperatorHarness` that is ready for its first batch.

    Harnesses of one stream share its root and its clock. So a second program goes on from the state of the first, as
    it would after a release: it is refused where that is not possible.

    Args:
        schema: Of the rows: an Arrow schema, a Spark schema, or its DDL.
        key: One column, or several.
        watermark: Event-time column and delay, such as ``("at", "10 minutes")``.
        late_data: ``drop`` or ``keep``.
        parallelism: Subtasks at the start.
        max_parallelism: Key groups.
        options: Settings by name, as for a keyed stream.
        clock: Processing time; a new one by default.
        root: Store of the checkpoints, such as a :class:`stateline.testing.FaultyStore`; one in memory by default.

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
        parallelism: int = 2,
        max_parallelism: int = 128,
        options: Mapping[str, str] | None = None,
        clock: ManualClock | None = None,
        root: BlobStore | None = None,
    ) -> None:
        self._schema = _arrow_schema(schema, "schema")
        self._keys = [key] if isinstance(key, str) else list(key)
        check_known(self._keys, self._schema.names, "key column")
        for column in self._keys:
            check_key_type(self._schema.field(column).type, column)
        self._watermark = None if watermark is None else WatermarkPlan.of(self._schema, *watermark, late_data)
        self._parallelism = parallelism
        self._max_parallelism = max_parallelism
        self._settings = settings_from_options(PipelineSettings, options or {})
        self.clock = clock or ManualClock()
        self._environment = Environment(clock=self.clock)
        self._root = root or open_store(f"memory://{self._environment.ids.new_id()}")

    def aggregate(self, output_mode: str = "update", /, **aggregations: Aggregation) -> OperatorHarness:
        """As :meth:`stateline.spark.KeyedStream.aggregate`."""
        return self._aggregated(output_mode, aggregations, None)

    def window(
        self, column: str, size: Duration, slide: Duration | None = None, *, start: Duration = "0 seconds"
    ) -> WindowedStreamHarness:
        """As :meth:`stateline.spark.KeyedStream.window`."""
        window = WindowPlan.of(self._schema, column, size, slide, start)
        return WindowedStreamHarness(lambda mode, aggregations: self._aggregated(mode, aggregations, window))

    def apply_arrow(
        self,
        fn: ArrowFunction,
        state_schema: pa.Schema | StructType | str,
        output_schema: pa.Schema | StructType | str,
        output_mode: str = "update",
        *,
        columns: Sequence[str] | None = None,
        state_defaults: Mapping[str, object] | None = None,
    ) -> OperatorHarness:
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
        )
        return self._harness(program)

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
    ) -> OperatorHarness:
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
        return self._harness(program, initial_state)

    def _aggregated(
        self, output_mode: str, aggregations: Mapping[str, Aggregation], window: WindowPlan | None
    ) -> OperatorHarness:
        program = AggregateProgram.bind(
            self._schema, self._keys, aggregations, output_mode=output_mode, window=window, watermark=self._watermark
        )
        return self._harness(program)

    def _harness(self, program: OperatorProgram, initial: pa.Table | None = None) -> OperatorHarness:
        return OperatorHarness(
            program,
            self._schema,
            root=self._root,
            watermark=self._watermark,
            parallelism=self._parallelism,
            max_parallelism=self._max_parallelism,
            settings=self._settings,
            environment=self._environment,
            initial=initial,
        )


class WindowedStreamHarness:
    """What :meth:`KeyedStreamHarness.window` returns.

    Args:
        aggregated: Makes the harness of an output mode and aggregations.
    """

    def __init__(self, aggregated: Callable[[str, Mapping[str, Aggregation]], OperatorHarness]) -> None:
        self._aggregated = aggregated

    def aggregate(self, output_mode: str = "update", /, **aggregations: Aggregation) -> OperatorHarness:
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
