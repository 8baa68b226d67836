"""Tables beside the records that are about them: what is committed, what is pending, what is lost."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from stateline.checkpoint import Checkpoint, CheckpointStore
from stateline.checkpoint.table_records import TableRecord, following_tables, table_records
from stateline.errors import InvalidInputError, NotInstalledError, StatelineError
from stateline.pipeline.table_commits import target_of
from stateline.tables import TableState, open_table

__all__ = ["TableStatus", "Verdict", "table_statuses", "verdict_of"]


class Verdict(enum.StrEnum):
    """How a table stands to the records."""

    IN_STEP = "in step"
    PENDING = "pending"
    AHEAD = "ahead"
    BEHIND = "BEHIND"
    ROLLED_BACK = "ROLLED BACK"
    GONE = "GONE"
    ANOTHER = "ANOTHER TABLE"
    UNREACHED = "not reached"

    @property
    def is_sound(self) -> bool:
        """Whether every row that a record decided is in the table, or will be when the query starts."""
        return self in (Verdict.IN_STEP, Verdict.PENDING, Verdict.AHEAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """One table of one operator.

    Attributes:
        operator: The operator.
        target: The table, for people.
        record: What the newest record remembers of it.
        due: The newest checkpoint whose rows are to be in the table; ``None`` for none.
        committed: The newest one whose rows are; ``None`` for none.
        version: The version of the table; empty if unknown.
        verdict: How they go together.
        detail: Why it is not reached.
    """

    operator: str
    target: str
    record: TableRecord
    due: int | None
    committed: int | None
    version: str
    verdict: Verdict
    detail: str = ""


def table_statuses(root: CheckpointStore, options: Mapping[str, str]) -> list[TableStatus]:
    """The tables that the newest record of a root names, each looked at.

    Args:
        root: The root.
        options: How the tables are reached, and the stores of their files: no record has that.

    Raises:
        NotFoundError: The root has no checkpoint.
        CorruptDataError: Its newest record cannot be read.
    """
    newest = root.newest("table")
    is_published = root.is_published(newest)
    following = following_tables(newest)
    return [
        _status(newest, operator, known, following[operator].committed, options, is_published=is_published)
        for operator, known in sorted(table_records(newest).items())
    ]


def verdict_of(state: TableState, known: TableRecord, due: int | None, *, is_published: bool) -> Verdict:
    """How a table stands to the newest record: a pure rule.

    Args:
        state: What a look saw.
        known: What the record remembers.
        due: The newest checkpoint whose rows are to be in the table.
        is_published: Whether the record is marked: whether its own commit is to be there already.
    """
    if state.identity is None:
        is_new = known.committed is None and not is_published
        return Verdict.PENDING if is_new else Verdict.IN_STEP if due is None else Verdict.GONE
    if known.identity and state.identity and state.identity != known.identity:
        return Verdict.ANOTHER
    if state.committed == due:
        return Verdict.IN_STEP
    if state.committed is not None and (due is None or state.committed > due):
        return Verdict.AHEAD
    return Verdict.PENDING if state.committed == known.committed and not is_published else Verdict.BEHIND


def _status(
    newest: Checkpoint,
    operator: str,
    known: TableRecord,
    due: int | None,
    options: Mapping[str, str],
    *,
    is_published: bool,
) -> TableStatus:
    url = next((output.url for output in newest.outputs if output.operator == operator), "")
    name = f"{known.format} {known.target or url}"
    try:
        table = open_table(target_of(known, url, options), schema=None)
        try:
            state = table.look(known.app)
            is_there = state.identity is not None and state.committed is not None
            loss = table.loss(state, known.app, known.checked) if is_there else None
        finally:
            table.close()
    except (InvalidInputError, NotInstalledError):
        raise
    except StatelineError as error:
        return TableStatus(
            operator=operator,
            target=name,
            record=known,
            due=due,
            committed=None,
            version="",
            verdict=Verdict.UNREACHED,
            detail=error.message,
        )
    verdict = verdict_of(state, known, due, is_published=is_published)
    return TableStatus(
        operator=operator,
        target=name,
        record=known,
        due=due,
        committed=state.committed,
        version=state.version,
        verdict=Verdict.ROLLED_BACK if verdict.is_sound and loss is not None else verdict,
        detail="" if loss is None else loss.reason,
    )
