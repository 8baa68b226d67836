"""Errors of tasks, as themselves: from a Python worker they reach the driver as text.

A worker adds a note to the error, which Python prints below it in every form of traceback that Spark sends. The driver
finds the note in the text and makes the same error of it, with Spark's as its cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from stateline import errors
from stateline.errors import ErrorKind, StatelineError

__all__ = ["note", "noted", "rebuilt"]

_NOTE: Final = re.compile(r"^\W*Stateline's error: (\{.*\})\s*$", re.MULTILINE)


class _Error(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    message: str
    operation: str | None
    subject: str | None
    hint: str | None
    kind: ErrorKind


@contextmanager
def noted() -> Iterator[None]:
    """In a task: notes on what the block raises all that is needed to make it again."""
    try:
        yield
    except StatelineError as error:
        error.add_note(note(error))
        raise


def note(error: StatelineError) -> str:
    """A line of text that tells an error, for :func:`rebuilt`."""
    members = _Error(type(error).__name__, error.message, error.operation, error.subject, error.hint, error.kind)
    return f"Stateline's error: {msgspec.json.encode(members).decode()}"


@contextmanager
def rebuilt() -> Iterator[None]:
    """On the driver: raises the error of a task that failed the block, as itself.

    Raises:
        StatelineError: A task raised it.
    """
    try:
        yield
    except StatelineError:
        raise
    except Exception as error:
        made = _made(str(error))
        if made is None:
            raise
        raise made from error


def _made(text: str) -> StatelineError | None:
    """The error that the last note of a text tells; ``None`` where there is none that this version knows."""
    notes = _NOTE.findall(text)
    if not notes:
        return None
    try:
        found = msgspec.json.decode(notes[-1], type=_Error)
    except msgspec.DecodeError:
        return None
    known = getattr(errors, found.name, None) if found.name in errors.__all__ else None
    if not isinstance(known, type) or not issubclass(known, StatelineError):
        return None
    return known(found.message, operation=found.operation, subject=found.subject, hint=found.hint, kind=found.kind)
