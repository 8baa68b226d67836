"""Find out whether another run of the same query has replaced a run, in one program.

Spark stops a run of a query when another run with the same checkpoint is started, and the handle of the first one then
returns as if its work were done. The promise is an error: the first run has lost its root to the second one.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from stateline.errors import FencedError
from stateline.threads import new_lock

__all__ = ["Runs", "Watched", "watched"]

_LOCK: Final = new_lock()
_NEWEST: Final[weakref.WeakValueDictionary[str, Watched]] = weakref.WeakValueDictionary()
"""The handle of the newest run by its place."""


class Watched:
    """Mixin of a handle of Spark's: knows the run that has taken its place."""

    taken_over_by: str = ""
    """The run that has taken its place; empty for none."""

    @property
    def is_running(self) -> bool:
        """Whether Spark runs it, without doing anything that a handle may do when it has ended."""
        return bool(super().isActive)  # type: ignore[misc] # Of Spark's handle, which comes next.

    def check_place(self) -> None:
        """Check that this run has ended on its own account.

        Raises:
            FencedError: Spark stopped it, because another run of the same query was started.
        """
        if self.taken_over_by:
            raise FencedError(
                f"another run of this query, {self.taken_over_by}, was started in this program and continues it",
                operation="await",
                subject=f"query {self.id}, run {self.runId}",  # type: ignore[attr-defined]
                hint="Run each query once. Start a second query with a root and a Spark checkpoint of its own",
            )


class Runs:
    """One run that is about to start in a place: a root of records."""

    def __init__(self, place: str) -> None:
        with _LOCK:
            previous = _NEWEST.get(place)
        self._place = place
        self._previous = previous if previous is not None and previous.is_running else None

    @classmethod
    @contextmanager
    def beginning(cls, place: str) -> Iterator[Runs]:
        """While a run is started: Spark stops the run before during the start, whose end must know of it."""
        runs = cls(place)
        runs._mark("about to start")
        try:
            yield runs
        except BaseException:
            runs._mark("")
            raise

    def begun(self, query: Any) -> Any:
        """Remember the handle of the run that was started; returns it."""
        previous: Any = self._previous
        if previous is not None:
            self._mark(str(query.runId) if previous.id == query.id else "")
        with _LOCK:
            _NEWEST[self._place] = query
        return query

    def _mark(self, run_id: str) -> None:
        if self._previous is not None:
            self._previous.taken_over_by = run_id


def watched(query: Any) -> Any:
    """The handle of a query that Spark has made, as one that knows which run has taken its place."""
    kind: Any = type(query)
    made: Any = object.__new__(_kind(kind))
    made.__dict__.update(query.__dict__)
    return made


class _Handle(Watched):
    """What is added to a handle that Spark has made."""

    def awaitTermination(self, timeout: int | None = None) -> bool | None:  # noqa: N802 - Spark's name
        """As Spark's.

        Raises:
            FencedError: As :meth:`check_place`.
        """
        ended: bool | None = super().awaitTermination(timeout)  # type: ignore[misc]
        if ended is not False:
            self.check_place()
        return ended


@functools.cache
def _kind(kind: Any) -> type:
    return type(kind.__name__, (_Handle, kind), {"__module__": kind.__module__, "__doc__": kind.__doc__})
