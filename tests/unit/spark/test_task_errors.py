"""Errors of tasks cross the JVM as text, and arrive as themselves."""

from __future__ import annotations

import json
import traceback

import pytest

from stateline.errors import DataLossError, ErrorKind, FencedError, InvalidInputError, StatelineError, UserCodeError
from stateline.spark.job.task_errors import noted, rebuilt

ERRORS = [
    UserCodeError(
        "KeyError: 'x'\n  File \"a.py\", line 3\n", operation="process", subject="key ('ü',)", hint='Say "no" } {'
    ),
    DataLossError("it is gone", subject="shared/1"),
    FencedError("another driver was first"),
    InvalidInputError("null", operation="process", kind=ErrorKind.SCHEMA_MISMATCH),
]


def as_text(error, only=False):
    """What Spark sends of an error that a task raised."""
    with pytest.raises(type(error)) as caught, noted():
        raise error
    lines = traceback.format_exception_only(caught.value) if only else traceback.format_exception(caught.value)
    return "".join(lines)


def raised_on_the_driver(text):
    with pytest.raises(Exception) as caught, rebuilt():
        raise RuntimeError(f"Job aborted: {text}\tat org.apache.spark.Task.run(Task.scala:1)")
    return caught.value


@pytest.mark.parametrize("only", [False, True], ids=["with its traceback", "without"])
@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_an_error_arrives_as_itself_with_sparks_as_its_cause(error, only):
    found = raised_on_the_driver(as_text(error, only))
    assert type(found) is type(error)
    for member in ("message", "operation", "subject", "hint", "kind"):
        assert getattr(found, member) == getattr(error, member)
    assert isinstance(found.__cause__, RuntimeError)


def test_of_several_attempts_the_last_counts():
    first, last = as_text(ERRORS[0]), as_text(ERRORS[1])
    assert isinstance(raised_on_the_driver(f"{first}\n{last}\n"), DataLossError)


def note(name, kind):
    members = {"name": name, "message": "", "operation": None, "subject": None, "hint": None, "kind": kind}
    return f"\nStateline's error: {json.dumps(members)}\n"


@pytest.mark.parametrize(
    "text",
    [
        "no note",
        "\nStateline's error: {broken\n",
        note("SystemExit", "internal"),
        note("ErrorKind", "internal"),
        note("DataLossError", "of a later version"),
    ],
)
def test_what_is_no_error_of_ours_stays_what_it_is(text):
    assert type(raised_on_the_driver(text)) is RuntimeError


def test_other_errors_get_no_note_and_our_own_pass():
    with pytest.raises(ValueError, match="theirs") as caught, noted():
        raise ValueError("theirs")
    assert not hasattr(caught.value, "__notes__")
    with pytest.raises(StatelineError) as ours, rebuilt():
        raise ERRORS[1]
    assert ours.value is ERRORS[1]
