"""State of other operators that a pipeline looks up: which of it each batch reads, and how a task opens it.

Rules:
- The driver says which. Of its own pipeline that is the checkpoint before the batch, of another root the newest record
  when the batch begins; all subtasks, all attempts and all lookups into one root get the same.
- Another root goes on meanwhile, and its retention may delete what a batch reads. Then the batch is computed again with
  the record that is the newest by then, a few times at most. Nothing of the first try was kept.
- A decided batch is never computed again. One that is not, after a crash, may see a newer record of another root.
- The other root may have another number of key groups. Key groups are ranges of the hash, so a subtask reads those that
  cover its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from stateline.blob import BlobStore
from stateline.blob.places import is_within
from stateline.blob.urls import absolute_url
from stateline.changelog.host_cache import HostCache
from stateline.checkpoint import Checkpoint, CheckpointStore
from stateline.checkpoint.pointer import Located, located, resolve_pointer, split_pointer
from stateline.environment import Environment
from stateline.errors import DataLossError, ErrorKind, InternalError, InvalidInputError, NotFoundError
from stateline.key_groups import KeyGroupRange, hash_bounds, key_group_of
from stateline.options import check_kind, check_known
from stateline.pipeline.graph import OperatorPlan
from stateline.pipeline.messages import LookupSlice
from stateline.pipeline.operators.api import Lookup
from stateline.pipeline.operators.lookup import looked_up
from stateline.state.evolution import plan_evolution
from stateline.state.open_runs import OpenRuns, StackKey
from stateline.state.rescale import state_of_range
from stateline.state.run_store import RunReader
from stateline.state.schema import StateSchema
from stateline.state.stored import find_operator
from stateline.state.table import StateTable

__all__ = ["LookupRoot", "LookupRoots", "find_lookup", "lookup_in_operator", "lookup_url", "open_lookup"]

R = TypeVar("R")

_Place = tuple[str, int | None]
"""The URL of a root and a checkpoint of it; ``None`` for the newest."""

_OPERATION: Final = "lookup"
_ATTEMPTS: Final = 4
"""How often a batch is computed while another root's retention takes away what it reads."""


def find_lookup(
    pointer: str,
    operator: str | None,
    columns: Sequence[str] | None,
    options: Mapping[str, str],
    environment: Environment,
) -> tuple[Lookup, tuple[str, ...]]:
    """What a user wants to look up in another root; there must be a checkpoint already.

    Args:
        pointer: A root, a checkpoint of it, or a savepoint; see :mod:`stateline.checkpoint.pointer`.
        operator: Whose state; ``None`` for the only operator.
        columns: Value columns; ``None`` for all.
        options: Settings of the store.
        environment: Passed to the store.

    Raises:
        NotFoundError: There is no checkpoint.
        InvalidInputError: No such operator or column, or several operators and no name.
    """
    url, checkpoint_id = split_pointer(pointer)
    found = resolve_pointer(pointer, options=options, environment=environment)
    with found.store:
        state = find_operator(found.checkpoint, operator)
        return looked_up(
            state.name,
            StateSchema.decode(state.schema),
            columns,
            root=url,
            checkpoint_id=checkpoint_id,
            options=dict(options),
        )


def lookup_url(pointer: str, own_root: str) -> str:
    """The absolute URL of what a user wants to look up.

    Raises:
        InvalidInputError: It is in the pipeline's own root, or no text.
    """
    check_kind(pointer, str, "source", "a stage of the same checkpoint, or the URL of another root")
    url = absolute_url(pointer)
    root, _ = split_pointer(url)
    if is_within(root, own_root) and is_within(own_root, root):
        raise InvalidInputError(
            "is the checkpoint of this stream itself",
            operation=_OPERATION,
            subject=pointer,
            hint="Give the stage whose state is looked up, in place of the URL",
        )
    return url


def lookup_in_operator(
    plan: OperatorPlan, operator: str | None, columns: Sequence[str] | None
) -> tuple[Lookup, tuple[str, ...]]:
    """What a user wants to look up in an operator of the same pipeline.

    Args:
        plan: The operator.
        operator: The name of its state in the checkpoint; ``None`` for its only table.
        columns: Value columns; ``None`` for all.

    Raises:
        InvalidInputError: No such state or column, none at all, or several and no name.
    """
    states = {plan.state_name(table): schema for table, schema in plan.tables.items()}
    if not states or (operator is None and len(states) > 1):
        raise InvalidInputError(
            f"has {'several tables' if states else 'no state'}",
            operation=_OPERATION,
            subject=f"operator {plan.name!r}",
            hint=f"Give operator=, one of: {', '.join(states)}" if states else "Look up an operator that keeps state",
        )
    name = next(iter(states)) if operator is None else operator
    check_known([name], states, "operator")
    return looked_up(name, StateSchema.decode(states[name]), columns)


@dataclass(frozen=True, slots=True)
class LookupRoot:
    """Another root, as a task reads it.

    Attributes:
        store: Its store.
        copies: Copies of its sections on this host; ``None`` for none.
    """

    store: BlobStore
    copies: HostCache | None = None


class LookupRoots:
    """The other roots that a pipeline looks into, and which record of each the batch reads. One driver's.

    Args:
        stores: By URL, as lookups name them.
    """

    def __init__(self, stores: Mapping[str, BlobStore]) -> None:
        self._stores = dict(stores)
        self._located: dict[_Place, Located] = {}
        self._records: dict[_Place, Checkpoint] = {}
        self._newest_ids: dict[_Place, int] = {}

    def attempts(self, compute: Callable[[], R]) -> R:
        """Calls a function that reads slices; again, if retention took one away and there is a newer record by then.

        Raises:
            DataLossError: A slice is gone though its record is still the newest, or again and again.
        """
        loss: DataLossError | None = None
        for _ in range(_ATTEMPTS):
            before, self._records = self._records, {}
            if loss is not None and not any(self._record(place).nonce != it.nonce for place, it in before.items()):
                break
            try:
                return compute()
            except DataLossError as error:
                if error.operation != _OPERATION:
                    raise
                loss = error
        raise loss or InternalError("no attempt was made", operation=_OPERATION)

    def slice(self, lookup: Lookup, owned: KeyGroupRange, max_parallelism: int) -> LookupSlice:
        """What a subtask reads of another root in this batch.

        Args:
            lookup: What is looked up.
            owned: Key groups of the subtask.
            max_parallelism: How many there are.

        Raises:
            NotFoundError: The checkpoint that the lookup names was retired, or the root has none any more.
            InvalidInputError: The newest record does not have the state any more, or not these columns.
        """
        record = self._record((lookup.root or "", lookup.checkpoint_id))
        operator = record.operator(lookup.state)
        stored = None if operator is None else StateSchema.decode(operator.schema)
        if operator is None or stored is None or not {*lookup.schema.values.names} <= {*stored.values.names}:
            raise InvalidInputError(
                f"expected {lookup.schema}, checkpoint {record.checkpoint_id} has "
                + ("no such state" if stored is None else str(stored)),
                operation=_OPERATION,
                subject=_subject(lookup),
                hint="Its query was changed since this one began: change this one, too, and start it again",
                kind=ErrorKind.SCHEMA_MISMATCH,
            )
        plan_evolution(stored, lookup.schema, lookup.state)
        low, high = hash_bounds(owned, max_parallelism)
        first, last = (key_group_of(bound, record.max_parallelism) for bound in (low, high - 1))
        return LookupSlice(
            state=state_of_range(operator, KeyGroupRange(first, last), record.max_parallelism),
            max_parallelism=record.max_parallelism,
            checkpoint_id=record.checkpoint_id,
        )

    def _record(self, place: _Place) -> Checkpoint:
        """The record that the batch reads: the newest one when it is first asked for."""
        if place not in self._records:
            self._records[place] = self._newest(place)
            self._newest_ids[place] = self._records[place].checkpoint_id
        return self._records[place]

    def _newest(self, place: _Place) -> Checkpoint:
        url, checkpoint_id = place
        if place not in self._located:
            self._located[place] = located(self._stores[url], checkpoint_id)
        found = self._located[place]
        if found.savepoint is not None:
            return found.savepoint.checkpoint
        records = CheckpointStore(found.store)
        if checkpoint_id is not None:
            return records.get(checkpoint_id)
        newest = records.latest(self._newest_ids.get(place))
        if newest is None:
            raise NotFoundError(
                "holds no checkpoint any more",
                operation=_OPERATION,
                subject=url,
                hint="Start the query that writes it, or look up something else",
            )
        return newest


def open_lookup(
    lookup: Lookup,
    given: LookupSlice,
    stack: StackKey,
    root: LookupRoot,
    environment: Environment,
    runs: OpenRuns | None,
) -> StateTable:
    """Opens what a task looks up.

    Args:
        lookup: What it is.
        given: Which part, as the driver said.
        stack: What the runs belong to in this process.
        root: Where they are.
        environment: Threads for fetching.
        runs: Runs that are open.

    Raises:
        DataLossError: A run is gone. Of operation ``lookup`` where it belongs to another root.
        CorruptDataError: It is not what was written.
    """
    reader = RunReader(root.store, lookup.schema, cache=root.copies, open_runs=runs, environment=environment)
    try:
        opened = reader.open_stack(stack, given.state.runs)
    except DataLossError as error:
        if lookup.root is None:
            raise
        raise DataLossError(
            f"state of checkpoint {given.checkpoint_id} is gone ({error.message})",
            operation=_OPERATION,
            subject=_subject(lookup),
            hint="Raise retained_checkpoints of the query that writes it, or look up a savepoint",
        ) from error
    return StateTable(lookup.schema, given.state.key_groups, given.max_parallelism, opened)


def _subject(lookup: Lookup) -> str:
    return f"state {lookup.state!r}" + ("" if lookup.root is None else f" of {lookup.root}")
