"""The slices of stored runs that each subtask reads after a change of parallelism. Pure: no run is touched.

The runs of one old subtask are a lineage: a newer run wins over an older one. Two old subtasks own disjoint key groups,
so a key is in one lineage only, and any order that keeps each lineage in order is right. What must not happen is that a
run shines through where its lineage has already replaced it: a run from before an earlier change of parallelism may
still be in one subtask's stack while its neighbour has merged its own half away, deletions included. So every slice is
narrowed to the key groups **of the old subtask that lists it**, and a run listed twice is joined again only where both
slices are neighbours and no order is broken by it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from stateline.checkpoint.api import OperatorState, SubtaskState
from stateline.errors import CorruptDataError
from stateline.handles import RunHandle
from stateline.key_groups import KeyGroupRange, check_parallelism, range_for_subtask

__all__ = ["narrowed", "rescale", "state_of_range"]


def rescale(operator: OperatorState, parallelism: int, max_parallelism: int) -> tuple[SubtaskState, ...]:
    """The state of an operator, cut for a new parallelism.

    Args:
        operator: What a checkpoint holds.
        parallelism: Subtasks from now on.
        max_parallelism: Number of key groups.

    Returns:
        One state per new subtask, in the order of their key groups. Equal to what is stored if the parallelism is.

    Raises:
        CorruptDataError: The old subtasks do not cover all key groups exactly once.
        InvalidInputError: A parallelism out of bounds.
    """
    check_parallelism(parallelism, max_parallelism)
    ranges = (range_for_subtask(index, parallelism, max_parallelism) for index in range(parallelism))
    return tuple(state_of_range(operator, owned, max_parallelism) for owned in ranges)


def state_of_range(operator: OperatorState, owned: KeyGroupRange, max_parallelism: int) -> SubtaskState:
    """The state of any range of key groups; errors as :func:`rescale`."""
    _check_covering(operator, max_parallelism)
    lineages = [_slices(subtask, owned) for subtask in operator.subtasks]
    runs = _interleave([lineage for lineage in lineages if lineage])
    return SubtaskState(first_key_group=owned.start, last_key_group=owned.end, runs=tuple(runs))


def narrowed(run: RunHandle, key_groups: KeyGroupRange) -> RunHandle | None:
    """The handle of the part of a run within ``key_groups``; ``None`` if there is no such part."""
    part = run.key_groups.intersection(key_groups)
    if not len(part):
        return None
    if part == run.key_groups:
        return run
    return msgspec.structs.replace(run, first_key_group=part.start, last_key_group=part.end)


def _slices(subtask: SubtaskState, owned: KeyGroupRange) -> list[RunHandle]:
    """What one old subtask has for a new one, oldest first."""
    visible = subtask.key_groups.intersection(owned)
    return [part for run in subtask.runs if (part := narrowed(run, visible)) is not None]


def _interleave(lineages: Sequence[list[RunHandle]]) -> list[RunHandle]:
    """One stack out of several, each of which keeps its order; neighbouring slices of one run become one again."""
    merged: list[RunHandle] = []
    for lineage in lineages:
        place = 0
        for run in lineage:
            found = next((at for at in range(place, len(merged)) if _joins(merged[at], run)), None)
            if found is None:
                merged.insert(place, run)
            else:
                place = found
                merged[found] = msgspec.structs.replace(merged[found], last_key_group=run.last_key_group)
            place += 1
    return merged


def _joins(before: RunHandle, after: RunHandle) -> bool:
    return before.identity == after.identity and before.last_key_group + 1 == after.first_key_group


def _check_covering(operator: OperatorState, max_parallelism: int) -> None:
    end = 0
    for subtask in operator.subtasks:
        if subtask.first_key_group != end:
            break
        end = subtask.last_key_group + 1
    if end != max_parallelism:
        raise CorruptDataError(
            f"its subtasks must cover the key groups 0 to {max_parallelism - 1} exactly once",
            operation="rescale",
            subject=f"operator {operator.name!r}",
            hint="Go back to an older checkpoint",
        )
