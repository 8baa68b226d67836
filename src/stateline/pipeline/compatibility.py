"""May this program, and this batch, go on from that record? Pure: what is stored against what is asked for.

The rules for columns of state are in :mod:`stateline.state.evolution`, those for columns of output files in
:mod:`stateline.pipeline.output_columns`; both are asked from here.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from stateline.checkpoint import Checkpoint, OperatorState
from stateline.checkpoint.envelope import decode_value
from stateline.checkpoint.position import SOURCES, SPARK_CHECKPOINT, has_position, position_problem, spark_states
from stateline.errors import ErrorKind, InvalidInputError, NotFoundError
from stateline.pipeline.messages import Batch
from stateline.pipeline.output_columns import check_columns, check_folders, columns_properties
from stateline.pipeline.plan import PipelinePlan
from stateline.state.evolution import carried_properties, check_evolution
from stateline.state.schema import StateSchema

__all__ = [
    "Step",
    "check_continuation",
    "check_follows",
    "check_plan",
    "check_same_offsets",
    "check_sources",
    "decided_earlier",
    "next_properties",
    "next_step",
    "stream_properties",
]

_TTL: Final = "ttl"
"""In the definition of an operator whose keys have a time to live."""
_OTHER_PROGRAM: Final = "Start the program that made the checkpoint, or use a new root"
_EDGES: Final = "graph"
"""Name in ``Checkpoint.properties``: what each operator reads, as JSON, where that is more than one stream."""
_ONE_INPUT: Final = ["input"]
_NEW_SOURCE: Final = (
    'Give KeyedStream source="new" to start from the state alone. The source then begins where the query says, so make '
    "it begin after the rows that the savepoint has counted"
)
_MOVED: Final = (
    "If the folder was moved, record its new place: `stateline checkpoint relocate {root} --output {operator}={url}`. "
    "Else start the program that made the checkpoint, or use a new root"
)


class Step(enum.Enum):
    """What to do with a batch, given the newest record."""

    RUN = "run"
    FINISH_NEWEST = "finish the newest record"
    LOOK_BACK = "compare with an older record"


def next_step(newest: Checkpoint | None, batch: Batch[Any], root_url: str) -> Step:
    """What to do with ``batch`` in a root: a pure rule.

    Raises:
        InvalidInputError: As :func:`check_follows`, or the same batch comes with other offsets. The message says which,
            and what to do.
    """
    check_follows(newest, batch.query_id, batch.batch_id, root_url)
    if newest is None or batch.batch_id > newest.batch_id:
        return Step.RUN
    if batch.batch_id < newest.batch_id:
        return Step.LOOK_BACK
    check_same_offsets(newest, batch, root_url)
    return Step.FINISH_NEWEST


def check_follows(newest: Checkpoint | None, query_id: str, batch_id: int, root_url: str) -> None:
    """Checks that a batch may come after the newest record: that it is decided already, or the next one.

    Raises:
        InvalidInputError: The root belongs to another query, or batches are missing in between.
    """
    if newest is not None and newest.query_id != query_id:
        raise InvalidInputError(
            f"the root belongs to query {newest.query_id}, this is query {query_id}",
            operation="run_batch",
            subject=_subject(batch_id, root_url),
            hint="Give the Spark checkpoint of the query that the root belongs to, or use a new root (stateline_files "
            "has the option checkpoint for it) with a new Spark checkpoint; start a new query over old state from a "
            "savepoint",
            kind=ErrorKind.FOREIGN_ROOT,
        )
    decided = -1 if newest is None else newest.batch_id
    if batch_id > decided + 1:
        raise InvalidInputError(
            f"the newest decided batch is {decided if newest else 'none'}, so batch {decided + 1} must come next",
            operation="run_batch",
            subject=_subject(batch_id, root_url),
            hint="The rows in between would be lost. Restore the root that belongs to this Spark checkpoint, or start "
            "anew with a new root and a new Spark checkpoint",
            kind=ErrorKind.CONFLICT,
        )


def check_same_offsets(decided: Checkpoint, batch: Batch[Any], root_url: str) -> None:
    """Checks that a batch which comes again covers the same input.

    Raises:
        InvalidInputError: It does not: Spark's checkpoint was rolled back, copied or edited.
    """
    if decided.offsets_digest != batch.offsets_digest:
        raise InvalidInputError(
            f"expected the source offsets {decided.offsets_digest[:16]} with which it was decided, "
            f"got {batch.offsets_digest[:16]}",
            operation="run_batch",
            subject=_subject(batch.batch_id, root_url),
            hint="Spark's checkpoint was rolled back, copied or edited. Restore the one that belongs to this root, or "
            "start anew with a new root and a new Spark checkpoint",
            kind=ErrorKind.CONFLICT,
        )


def decided_earlier(
    get: Callable[[int], Checkpoint], newest: Checkpoint, batch: Batch[Any], root_url: str
) -> Checkpoint:
    """The record of a batch before the newest one.

    Args:
        get: Reads a checkpoint by its id.
        newest: The newest record.
        batch: The batch, which comes again.
        root_url: The root, for messages.

    Raises:
        InvalidInputError: It was decided with other offsets.
        NotFoundError: Its record is not retained any more, so nothing can be proved about it.
    """
    for checkpoint_id in range(newest.checkpoint_id - 1, -1, -1):
        try:
            decided = get(checkpoint_id)
        except NotFoundError as error:
            raise _not_retained(newest, batch, root_url) from error
        if decided.batch_id == batch.batch_id:
            check_same_offsets(decided, batch, root_url)
            return decided
    raise _not_retained(newest, batch, root_url)


def check_continuation(plan: PipelinePlan, newest: Checkpoint, output_urls: Mapping[str, str]) -> None:
    """Checks that the newest record of a root can be continued by a plan, in the folders where its files are.

    Raises:
        InvalidInputError: As :func:`check_plan`, and if other columns become folders now.
    """
    check_plan(plan, newest, output_urls)
    check_folders(plan, newest, output_urls)


def check_plan(plan: PipelinePlan, newest: Checkpoint, output_urls: Mapping[str, str]) -> None:
    """Checks that a record can be continued by a plan.

    Raises:
        InvalidInputError: Other key groups, operators or output folders, or columns that cannot become what is
            asked for; says what is stored and what is asked for.
    """
    if plan.max_parallelism != newest.max_parallelism:
        raise _mismatch("max_parallelism", newest.max_parallelism, plan.max_parallelism)
    stored = {state.name: state for state in newest.operators}
    planned = plan.state_schemas
    if not _goes_on(stored, planned):
        raise _mismatch("operators", sorted(stored), sorted(planned))
    _check_edges(plan, newest)
    _check_watermarks(plan, newest)
    for operator in plan.graph.operators:
        for name in map(operator.state_name, operator.tables):
            if name in stored:
                _check_definition(name, stored[name].definition, operator.definition)
            check_evolution(newest, name, StateSchema.decode(planned[name]))
    for output in newest.outputs:
        url = output_urls.get(output.operator)
        if url != output.url and (output.open or output.finished):
            moved = _MOVED.format(root=plan.root_url, operator=output.operator, url=url)
            hint = _OTHER_PROGRAM if url is None else moved
            raise _mismatch(f"output of operator {output.operator} in {plan.root_url}", output.url, url, hint)
    check_columns(plan, newest, output_urls)


def _goes_on(stored: Mapping[str, OperatorState], planned: Mapping[str, str]) -> bool:
    """Whether a program has the states that are stored, but for what may come and go: tables beside an aggregation.

    Such a table begins empty, as its aggregations do. Where rows may be taken back it cannot: it would have to know the
    values of the rows before.
    """
    for name in stored.keys() ^ planned.keys():
        operator = name.partition("/")[0]
        if name == operator or operator not in stored or operator not in planned:
            return False
        definition = _parsed(stored[operator].definition)
        if "aggregations" not in definition or ("updates" in definition and name in planned):
            return False
    return True


def next_properties(plan: PipelinePlan, newest: Checkpoint | None, output_urls: Mapping[str, str]) -> dict[str, str]:
    """What the next record remembers so that later programs can be compared with it: of its state and of its files."""
    properties = carried_properties(newest, plan.state_schemas) | columns_properties(plan, newest, output_urls)
    properties |= stream_properties(plan)
    edges = plan.graph.edges
    if any(sources != _ONE_INPUT for sources in edges.values()):
        properties[_EDGES] = json.dumps(edges)
    return properties


def stream_properties(plan: PipelinePlan) -> dict[str, str]:
    """What a record remembers of Spark's query: where its checkpoint is, and what it reads."""
    properties = {SPARK_CHECKPOINT: plan.stream.checkpoint} if plan.stream.checkpoint else {}
    if plan.stream.sources:
        properties[SOURCES] = json.dumps(plan.stream.sources)
    return properties


def check_sources(plan: PipelinePlan, savepoint: Checkpoint, url: str) -> None:
    """Checks that the sources of a plan can continue where a savepoint stands.

    Raises:
        InvalidInputError: The savepoint does not carry where they stand; or they are other ones.
    """
    complaint = "" if has_position(savepoint) else f"has no source offsets: {position_problem(savepoint)}"
    text = savepoint.properties.get(SOURCES, "[]")
    stored = decode_value(text, list[str], "the sources of the query", f"property {SOURCES!r}")
    planned = list(plan.stream.sources)
    if not complaint and stored and planned and stored != planned:
        complaint = f"was made of a query that reads {', '.join(stored)}; this one reads {', '.join(planned)}"
    has_state = any(name.startswith("state/") for name in spark_states(savepoint.states))
    if not complaint and plan.stream.has_state and not has_state:
        complaint = "has no state of Spark's own operators, and this query has such operators in front"
    if complaint:
        raise InvalidInputError(
            complaint, operation="start", subject=f"savepoint {url}", hint=_NEW_SOURCE, kind=ErrorKind.CONFLICT
        )


def _check_edges(plan: PipelinePlan, newest: Checkpoint) -> None:
    """Checks that the operators of a record read what they read before; those of one stream are not written down."""
    text = newest.properties.get(_EDGES, "{}")
    stored = decode_value(text, dict[str, list[str]], "the edges of the graph", f"property {_EDGES!r}")
    known = {state.name.partition("/")[0] for state in newest.operators} | {each.operator for each in newest.outputs}
    for name, sources in plan.graph.edges.items():
        before = stored.get(name, _ONE_INPUT if name in known else sources)
        if before != sources:
            raise _mismatch(f"what operator {name!r} reads", before, sources)


def _check_watermarks(plan: PipelinePlan, newest: Checkpoint) -> None:
    for stored in newest.inputs:
        planned = plan.graph.find_input(stored.name)
        watermark = None if planned is None else planned.watermark
        if watermark is not None and watermark.column != stored.column:
            raise _mismatch(f"column of the watermark of input {stored.name!r}", stored.column, watermark.column)


def _check_definition(name: str, stored: str, planned: str) -> None:
    """Checks that an operator goes on computing what it has stored.

    - An aggregation may be added: for old keys it begins with the next row. One may be dropped.
    - Whatever stays must be computed as before: the same name with another definition is refused.
    - A user's own function may change as it likes: what it keeps is what counts.
    - A time to live may be added, and another one given. It cannot be taken away: keys that are forgotten, and not yet
      merged away, would come back.
    """
    reason = f"expected what is stored: {stored}; got: {planned}"
    old, new = _parsed(stored), _parsed(planned)
    had_ttl, has_ttl = old.pop(_TTL, False), new.pop(_TTL, False)
    if had_ttl and not has_ttl:
        raise _other_definition(name, reason, "A ttl cannot be taken away again. Give a long one, such as '36500 days'")
    if stored == planned or (old and old == new):
        return
    kept = [isinstance(each.get("aggregations"), dict) and "keys" in each for each in (old, new)]
    if not all(kept) or old.keys() != new.keys() or old["keys"] != new["keys"]:
        raise _other_definition(name, reason, _OTHER_PROGRAM)
    for column, text in new["aggregations"].items():
        if old["aggregations"].get(column, text) != text:
            hint = "Give the new aggregation another name"
            raise _other_definition(name, f"{column!r} cannot change its meaning; {reason}", hint)
    rest = [{k: v for k, v in each.items() if k not in ("keys", "aggregations")} for each in (old, new)]
    if rest[0] != rest[1]:
        raise _other_definition(name, reason, _OTHER_PROGRAM)


def _parsed(definition: str) -> dict[str, Any]:
    """A definition as a mapping; an empty one for text that is none."""
    try:
        parsed = json.loads(definition)
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _other_definition(name: str, reason: str, hint: str) -> InvalidInputError:
    return InvalidInputError(
        reason, operation="start", subject=f"operator {name!r}", hint=hint, kind=ErrorKind.SCHEMA_MISMATCH
    )


def _mismatch(what: str, stored: object, asked: object, hint: str = _OTHER_PROGRAM) -> InvalidInputError:
    return InvalidInputError(
        f"expected {stored} as in the checkpoint, got {asked}",
        operation="start",
        subject=what,
        hint=hint,
        kind=ErrorKind.SCHEMA_MISMATCH,
    )


def _subject(batch_id: int, root_url: str) -> str:
    return f"batch {batch_id} of {root_url}"


def _not_retained(newest: Checkpoint, batch: Batch[Any], root_url: str) -> NotFoundError:
    return NotFoundError(
        f"the newest decided batch is {newest.batch_id}, and this one's record is not retained any more, so nothing "
        "proves that it comes with the same source offsets",
        operation="run_batch",
        subject=_subject(batch.batch_id, root_url),
        hint="Spark's checkpoint is older than this root: it was rolled back, or restored from an old copy, or another "
        "driver has gone on meanwhile. Restore the one that belongs to this root, or start anew with a new root and a "
        "new Spark checkpoint",
    )
