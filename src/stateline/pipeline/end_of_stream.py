"""Open files finished without a batch: at the end of a stream, and when their time has come while no rows come.

The driver that made the newest record finishes them by :func:`finish_open_files`; anybody may later do so by
:func:`finish_root`, with nothing but the record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from stateline.blob import BlobStore, open_store
from stateline.blob.places import check_named
from stateline.blob.urls import absolute_url
from stateline.changelog.host_cache import HostCache
from stateline.changelog.segment_writer import Segments
from stateline.checkpoint import Checkpoint, CheckpointStore
from stateline.checkpoint.table_records import table_records
from stateline.environment import Environment, side_by_side
from stateline.errors import FencedError, InternalError
from stateline.files import FileOutput, encode_file
from stateline.files.pending import load_rows
from stateline.handles import FinishedFile, OpenFile
from stateline.pipeline.coordinator import MicroBatchCoordinator
from stateline.pipeline.delivery import Delivery, rows_without_function
from stateline.pipeline.driver_stores import DriverStores
from stateline.pipeline.graph import Graph, OperatorPlan
from stateline.pipeline.history import HistoryRecorder
from stateline.pipeline.messages import Batch, SubtaskInput, SubtaskResult
from stateline.pipeline.open_files import FinishFiles
from stateline.pipeline.plan import PLAIN, PipelinePlan
from stateline.pipeline.table_commits import target_of
from stateline.tables import TableTarget, open_table

__all__ = ["file_finisher", "finish_open_files", "finish_root", "plan_finisher"]

_FILES_AT_ONCE: Final = 4
"""How many files are encoded side by side, each with a row group and a queue of bytes in memory."""


def finish_open_files(
    plan: PipelinePlan,
    stores: DriverStores,
    segments: Segments,
    coordinator: MicroBatchCoordinator[Any],
    another: Callable[[], MicroBatchCoordinator[Any]],
) -> Checkpoint | None:
    """Encodes, decides and publishes every file that the newest checkpoint left open. Idempotent.

    Args:
        plan: The pipeline.
        stores: Its stores.
        segments: Where the rows are.
        coordinator: The driver that knows the newest record.
        another: Makes one that knows nothing yet.

    Returns:
        The newest record; ``None`` if nothing was ever written.

    Raises:
        FencedError: Another driver went on with the files.
    """
    try:
        return coordinator.finish(plan_finisher(plan, stores, segments))
    except FencedError:
        # The query and its user may both finish the same files at once: what one decided suits the other.
        newest = another().start()
        if newest is None or any(output.open for output in newest.outputs):
            raise
        return newest


def finish_root(
    root_url: str,
    root_options: dict[str, str],
    output: FileOutput,
    environment: Environment,
    *,
    retained_checkpoints: int,
    elsewhere: bool,
    copies: HostCache | None = None,
    table_options: Mapping[str, str] | None = None,
    named: Sequence[str] = (),
) -> bool:
    """Finishes the files that the newest record of a root left open, whatever program made it.

    Args:
        root_url: The root.
        root_options: Options of its store.
        output: How files are encoded, and options of the outputs' stores.
        environment: Clock, ids and threads.
        retained_checkpoints: How many of the newest records stay.
        elsewhere: Whether the files are where the record says, and not at the URL of ``output``.
        copies: The copies of this host; ``None`` for none.
        table_options: How the tables are reached that the rows go to: no record has that.
        named: Where outputs may be, besides the folder in which the root lies, if they are ``elsewhere``.

    Returns:
        Whether there is a record.

    Raises:
        FencedError: A driver went on with the files meanwhile.
        InvalidInputError: The record's output is another one, or lies where the caller named no place; or rows wait for
            a function of the program's.
    """
    newest = _newest(root_url, root_options, environment)
    if newest is None:
        return False
    for each in newest.outputs if elsewhere else ():
        hint = f"Give outputs=[{each.url!r}] if it is yours: otherwise somebody has written to the root"
        check_named(each.url, absolute_url(root_url), named, operation="finish_files", hint=hint)
    plan = _plan_of(newest, root_url, root_options, output, retained_checkpoints, elsewhere=elsewhere)
    plan = replace(plan, graph=_with_tables(plan.graph, newest, table_options or {}))
    with DriverStores.open(plan, environment) as stores:

        def coordinator() -> MicroBatchCoordinator[None]:
            records = CheckpointStore(stores.root, environment=environment)
            history = HistoryRecorder(stores.root, environment, is_new_run=False)
            return MicroBatchCoordinator(
                plan, records, stores.outputs, _no_subtasks, environment, _refuse, history=history
            )

        finish_open_files(plan, stores, Segments(stores.root, environment, copies), coordinator(), coordinator)
    return True


def _newest(root_url: str, root_options: dict[str, str], environment: Environment) -> Checkpoint | None:
    root = open_store(root_url, root_options, environment)
    try:
        return CheckpointStore(root, environment=environment).latest()
    finally:
        root.close()


def _plan_of(
    record: Checkpoint,
    root_url: str,
    root_options: dict[str, str],
    output: FileOutput,
    retained_checkpoints: int,
    *,
    elsewhere: bool,
) -> PipelinePlan:
    """A plan that goes on from a record with what the record itself says: all but what its operators compute."""
    stored = {state.name: state for state in record.operators}
    written = {each.operator: replace(output, url=each.url if elsewhere else output.url) for each in record.outputs}
    operators = tuple(
        OperatorPlan(
            name=name,
            tables={name: stored[name].schema} if name in stored else {},
            definition=stored[name].definition if name in stored else "",
            output=written.get(name),
        )
        for name in sorted(stored.keys() | written.keys())
    )
    return PipelinePlan(
        root_url=root_url,
        parallelism=record.parallelism,
        max_parallelism=record.max_parallelism,
        graph=Graph.of_one_input(operators),
        settings=replace(PLAIN, retained_checkpoints=retained_checkpoints),
        root_options=root_options,
    )


def _with_tables(graph: Graph, record: Checkpoint, options: Mapping[str, str]) -> Graph:
    """The operators of a record with the tables that it names."""
    known = table_records(record)

    def with_table(operator: OperatorPlan) -> OperatorPlan:
        if operator.name not in known:
            return operator
        output = operator.output
        url, store_options = ("", {}) if output is None else (output.url, output.store_options)
        return replace(operator, table=target_of(known[operator.name], url, {**store_options, **options}))

    return Graph(graph.inputs, tuple(map(with_table, graph.operators)))


def _no_subtasks(batch: Batch[None], tasks: Sequence[SubtaskInput]) -> list[SubtaskResult]:
    raise InternalError("the end of a stream has no subtasks", operation="finish", subject=f"{batch}, {len(tasks)}")


def _refuse(delivery: Delivery) -> None:
    raise rows_without_function(delivery, "finish_files")


def plan_finisher(plan: PipelinePlan, stores: DriverStores, segments: Segments) -> FinishFiles:
    """What encodes and stages open files of a plan."""
    outputs = {
        operator.name: (operator.output, stores.outputs[operator.name])
        for operator in plan.graph.operators
        if operator.output is not None
    }
    tables = {each.name: each.table for each in plan.graph.operators if each.table is not None}
    return file_finisher(segments, outputs, tables)


def file_finisher(
    segments: Segments,
    outputs: Mapping[str, tuple[FileOutput, BlobStore]],
    tables: Mapping[str, TableTarget] | None = None,
) -> FinishFiles:
    """What encodes and stages open files, several at a time.

    Args:
        segments: Where their rows are.
        outputs: The output of each operator, and its store.
        tables: The tables of operators. One whose files carry ids of its columns is asked for them, unless its output
            has them.
    """

    def finish(operator: str, files: Sequence[OpenFile]) -> list[FinishedFile]:
        if operator not in outputs and files:
            raise InternalError("has open files but no output", operation="finish", subject=operator)
        if not files:
            return []
        output, store = outputs[operator]
        table = (tables or {}).get(operator)
        if table is not None and table.takes_files and not output.file_columns:
            with open_table(table, schema=None, environment=segments.environment) as opened:
                output = replace(output, file_columns=opened.file_columns())

        def finish_one(file: OpenFile) -> FinishedFile:
            rows = load_rows(segments.store, file.pending, segments.copies)
            commit = encode_file(output, store, file.target, rows, segments.environment)
            return FinishedFile(commit=commit, rows=file.rows)

        return side_by_side(segments.environment, "stateline-finish", finish_one, files, _FILES_AT_ONCE)

    return finish
