"""What a batch that fails because its query was stopped tells Spark.

Facts (Spark 4, ``StreamExecution.isInterruptionException``):

- Spark takes the end of a stopped query for its stop if the error of ``foreachBatch`` is an interruption or names the
  cancelled job group. It has the error as text: the traceback of Python, with all causes.
- It searches this text for an error of py4j by a regular expression that recurses for each character behind the place
  where it begins. A traceback of a few thousand characters overflows the stack of the stream's thread. The query then
  ends without a word, and the JVM logs a ``StackOverflowError``.

So the error of a stopped query is one line, without its causes.
"""

from __future__ import annotations

import copy

from stateline.spark.api_mode import Py4JError

__all__ = ["brief"]

_CHARACTERS_MAX = 500


class _StoppedError(Exception):
    """Is printed under the name of py4j's own error, which is what Spark searches for."""


_StoppedError.__module__, _StoppedError.__qualname__ = "py4j.protocol", "Py4JJavaError"


def brief(error: Exception) -> Exception:
    """The error in few words: the line of the JVM's exception if one is among its causes."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, Py4JError) and hasattr(found, "java_exception"):
            line = str(found.java_exception.toString()).partition("\n")[0]
            return _StoppedError(f"An error occurred while calling Spark.\n: {line[:_CHARACTERS_MAX]}")
        found = found.__cause__ or found.__context__
    return copy.copy(error).with_traceback(None)
