"""The commit of one checkpoint into one table: a pure rule, and the loop of looks and attempts around it."""

from __future__ import annotations

import enum
from typing import Final

from stateline.environment import Environment
from stateline.errors import ErrorKind, InvalidInputError, UnavailableError
from stateline.tables.api import Outcome, Table, TableChange, TableState, TableToken

__all__ = ["CommitStep", "check_token", "commit_once", "next_commit_step"]

_PAUSES_SECONDS: Final = (0.0, 0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0)
"""Between attempts: other writers may be faster several times, and lost answers come in rows."""


class CommitStep(enum.Enum):
    """What to do about a commit, given what a look saw."""

    CREATE = "create the table"
    COMMIT = "commit"
    NOTHING = "it is done"


def next_commit_step(state: TableState, token: TableToken, name: str) -> CommitStep:
    """What to do: a pure rule.

    Args:
        state: What a look saw.
        token: The commit to be made.
        name: The table, for the error.

    Raises:
        InvalidInputError: The table is not the one that took the commits before this one, or has lost them.
    """
    is_newer = state.committed is not None and state.committed >= token.checkpoint_id
    if not is_newer:
        check_token(state, token.previous, token.identity, name)
    elif state.identity:
        _check_identity(state, token.identity, name)
    if is_newer:
        return CommitStep.NOTHING
    return CommitStep.CREATE if state.identity is None else CommitStep.COMMIT


def check_token(state: TableState, expected: int | None, identity: str, name: str) -> None:
    """Checks that a table has exactly the commits of an application that the records know of.

    Raises:
        InvalidInputError: It is gone, was made anew, or was rolled back.
    """
    if state.identity is None and (expected is not None or identity):
        raise _refused("is gone", f"rows up to checkpoint {expected} were in it", name)
    _check_identity(state, identity, name)
    if state.committed != expected:
        found = "no rows of this query" if state.committed is None else f"rows up to checkpoint {state.committed}"
        known = "no rows" if expected is None else f"rows up to checkpoint {expected}"
        raise _refused("was rolled back or made anew", f"expected {known}, got {found}", name)


def commit_once(table: Table, change: TableChange, environment: Environment) -> TableState:
    """Commits one checkpoint, however often it is called and by however many drivers.

    Returns:
        What the table was when the commit was seen to be there.

    Raises:
        InvalidInputError: The table is another one, was rolled back, or cannot take the rows. Nothing was committed.
        UnavailableError: Other writers were faster, or the place did not answer, each time. The next call goes on.
    """
    cause: Exception | None = None
    for pause in _PAUSES_SECONDS:
        environment.clock.sleep(pause)
        try:
            state = table.look(change.token.app)
        except UnavailableError as error:
            cause = error
            continue
        step = next_commit_step(state, change.token, table.name)
        if step is CommitStep.NOTHING:
            return state
        if step is CommitStep.CREATE:
            table.create()
            continue
        attempt = table.attempt(change, state)
        if attempt.outcome is Outcome.DONE:
            return TableState(
                identity=state.identity, committed=change.token.checkpoint_id, version=attempt.version or state.version
            )
        cause = attempt.cause
    raise UnavailableError(
        f"{len(_PAUSES_SECONDS)} attempts to commit have failed; the last one: {cause or 'no table came of it'}",
        operation="commit",
        subject=table.name,
        hint="The checkpoint stands and no row is lost: the next start goes on with this commit",
    ) from cause


def _check_identity(state: TableState, identity: str, name: str) -> None:
    if identity and state.identity and state.identity != identity:
        raise _refused("was made anew", f"expected the table {identity}, got {state.identity}", name)


def _refused(what: str, reason: str, name: str) -> InvalidInputError:
    return InvalidInputError(
        f"the table {what}: {reason}",
        operation="commit",
        subject=name,
        hint="Rows that it had cannot be committed again by this root. Restore the table, or start a new query with a "
        "new root and a new table",
        kind=ErrorKind.CONFLICT,
    )
