"""The error of a stopped query is one line that Spark reads as its stop."""

from __future__ import annotations

import re
import traceback
from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JJavaError

from stateline.errors import FencedError
from stateline.spark.query.stopping import brief

PROXY_ERROR = re.compile(
    r"py4j.protocol.Py4JJavaError: An error occurred while calling((.|\r\n|\r|\n)*)(\r\n|\r|\n): "
    r"(java.lang.InterruptedException|java.io.InterruptedIOException|java.nio.channels.ClosedByInterruptException)"
)
"""Spark's own, which recurses for each character of the first group."""


class JavaError(Py4JJavaError):
    """As py4j raises it, with a long trace of the JVM."""

    def __init__(self, line):
        self.java_exception = SimpleNamespace(toString=lambda: line)
        self.line = line

    def __str__(self):
        return f"An error occurred while calling o1.x.\n: {self.line}\n" + "\tat org.apache.spark.Some.where\n" * 100


JavaError.__module__, JavaError.__qualname__ = "py4j.protocol", "Py4JJavaError"


def text_of(error):
    """What Spark is told."""
    try:
        raise brief(error) from None
    except Exception:
        return traceback.format_exc()


def raised(make, cause):
    try:
        try:
            raise cause
        except Exception as error:
            raise make from error
    except Exception as error:
        return error


CANCELLED = "org.apache.spark.SparkException: [SPARK_JOB_CANCELLED] Job 1 cancelled part of cancelled job group RUN"


@pytest.mark.parametrize("is_cause", [False, True])
@pytest.mark.parametrize("line", ["java.lang.InterruptedException", CANCELLED])
def test_an_interruption_stays_one_in_few_words(line, is_cause):
    error = JavaError(line)
    if is_cause:
        error = raised(FencedError("another driver"), error)
    text = text_of(error)
    begin = text.index("An error occurred")
    assert len(text) - begin < 600
    assert "org.apache.spark.Some.where" not in text
    if line == CANCELLED:
        assert CANCELLED in text
    else:
        assert PROXY_ERROR.search(text)


def test_another_error_is_told_without_its_causes():
    error = raised(FencedError("another driver was first"), ValueError("long " * 1000))
    text = text_of(error)
    assert "another driver was first" in text
    assert "long" not in text
    assert error.__cause__ is not None, "who waits for the query gets it as it was"
