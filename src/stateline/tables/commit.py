"""The commit of one checkpoint into one table: a pure rule, and the loop of looks and attempts around it."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator
from typing import Final

from stateline.environment import Environment
from stateline.errors import ErrorKind, InternalError, InvalidInputError, UnavailableError
from stateline.tables.api import Attempt, Outcome, Table, TableChange, TableState, TableToken

__all__ = ["CommitStep", "check_kept", "check_token", "commit_once", "move_token", "next_commit_step"]

_PAUSES_SECONDS: Final = (0.0, 0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0)
"""Between attempts: other writers may be faster several times, and lost answers come in rows."""

_TWO_WAYS: Final = (
    "Rows are never appended on top. `stateline table rewrite ROOT` writes the missing checkpoints again, as far as "
    "records hold them. `stateline table accept ROOT` accepts the table without these rows. Or restore the table"
)


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
        raise _refused("is missing", f"rows up to checkpoint {expected} were in it", name)
    _check_identity(state, identity, name)
    if state.committed != expected:
        found = "no rows of this query" if state.committed is None else f"rows up to checkpoint {state.committed}"
        known = "no rows" if expected is None else f"rows up to checkpoint {expected}"
        raise _refused("was rolled back or made anew", f"expected {known}, got {found}", name)


def check_kept(table: Table, state: TableState, app: str, checked: str) -> TableState:
    """Check that no rollback removed rows of an application while its token stayed.

    Args:
        table: The table.
        state: What a look saw.
        app: The application.
        checked: The version at which an earlier call found no loss; empty if unknown.

    Returns:
        The state, marked as checked.

    Raises:
        InvalidInputError: Rows are missing; names the rollback.
    """
    loss = None if state.identity is None or state.committed is None else table.loss(state, app, checked)
    if loss is None:
        return dataclasses.replace(state, checked=state.version)
    kept = "no checkpoint" if loss.kept is None else f"checkpoint {loss.kept}"
    left = f"up to {kept} of {state.committed}" if loss.is_certain else f"of some checkpoints up to {state.committed}"
    raise _refused("was rolled back", f"{loss.reason}, and only rows {left} are left", table.name)


def commit_once(table: Table, change: TableChange, environment: Environment) -> TableState:
    """Commits one checkpoint, however often it is called and by however many drivers.

    Returns:
        What the table was when the commit was seen to be there.

    Raises:
        InvalidInputError: The table is another one, was rolled back, or cannot take the rows. Nothing was committed.
        UnavailableError: Other writers were faster, or the place did not answer, each time. The next call goes on.
    """
    token = change.token
    for state, failed in _looks(table, token.app, environment, "commit"):
        step = next_commit_step(state, token, table.name)
        state = check_kept(table, state, token.app, token.checked)  # noqa: PLW2901 - the same look, checked
        if step is CommitStep.NOTHING:
            return state
        if step is CommitStep.CREATE:
            table.create()
            continue
        attempt = table.attempt(change, state)
        if attempt.outcome is Outcome.DONE:
            return dataclasses.replace(
                state, committed=token.checkpoint_id, version=attempt.version or state.version, snapshot=None
            )
        failed(attempt)
    raise InternalError("the last look did not end the commit", subject=table.name)


def move_token(table: Table, app: str, checkpoint_id: int | None, environment: Environment) -> TableState:
    """Set the token of an application, without rows, after a user has decided that it is right.

    Returns:
        What the look before it saw.

    Raises:
        InvalidInputError: The table does not exist.
        UnavailableError: Other writers were faster, or the place did not answer, each time.
    """
    for state, failed in _looks(table, app, environment, "table"):
        if state.identity is None:
            raise _refused("is missing", f"a token for checkpoint {checkpoint_id} needs a table", table.name)
        attempt = table.set_token(app, checkpoint_id, state)
        if attempt.outcome is Outcome.DONE:
            return state
        failed(attempt)
    raise InternalError("the last look did not end the commit", subject=table.name)


def _looks(
    table: Table, app: str, environment: Environment, operation: str
) -> Iterator[tuple[TableState, Callable[[Attempt], None]]]:
    """Looks, with pauses, each with a function that takes an attempt that failed.

    Raises:
        UnavailableError: After the last one.
    """
    causes: list[Exception | None] = [None]

    def failed(attempt: Attempt) -> None:
        causes.append(attempt.cause)

    for pause in _PAUSES_SECONDS:
        environment.clock.sleep(pause)
        try:
            state = table.look(app)
        except UnavailableError as error:
            causes.append(error)
            continue
        yield state, failed
    raise UnavailableError(
        f"{len(_PAUSES_SECONDS)} attempts to commit have failed; the last one: {causes[-1] or 'no table came of it'}",
        operation=operation,
        subject=table.name,
        hint="The checkpoint stands and no row is lost: the next start goes on with this commit",
    ) from causes[-1]


def _check_identity(state: TableState, identity: str, name: str) -> None:
    if identity and state.identity and state.identity != identity:
        raise _refused("was made anew", f"expected the table {identity}, got {state.identity}", name)


def _refused(what: str, reason: str, name: str) -> InvalidInputError:
    return InvalidInputError(
        f"the table {what}: {reason}", operation="commit", subject=name, hint=_TWO_WAYS, kind=ErrorKind.CONFLICT
    )
