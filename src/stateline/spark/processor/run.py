"""One batch of one subtask through a processor: which key when, which timer when, and what comes of it.

The order of calls is Spark's:

1. ``init``;
2. for each key with rows: ``handleInitialState`` for each of its initial rows (first batch only), then
   ``handleInputRows``;
3. ``handleExpiredTimer`` for every timer up to and including the time of the batch, earliest first: those stored before
   and those set in step 2. A timer that a handler sets now fires in the next batch, one that it deletes now still fires
   if its time has come, and one set anew at the time that fires is gone;
4. ``close``.
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np
from pyspark.sql.streaming.stateful_processor import ExpiredTimerInfo, StatefulProcessor, TimerValues
from pyspark.sql.types import Row

from stateline.errors import ErrorKind, InvalidInputError, StatelineError, UserCodeError
from stateline.spark.processor.handle import ProcessorHandle
from stateline.spark.processor.rows import Slices
from stateline.state.columns import Rows
from stateline.state.keys import Groups, KeyRows, group_rows
from stateline.state.timers import Timers

__all__ = ["KeyedInput", "ProcessorRun", "keyed_input", "rare_collections"]

_OUR_FILES: Final = (__file__, str(Path(__file__).with_name("frames.py")))
"""Where what user code raises passes through; no lines of theirs."""

_ALLOCATIONS: Final = 200_000
"""New objects between two collections of cyclic garbage, while a batch is in memory; Python's own is 700."""


@dataclass(frozen=True, slots=True)
class KeyedInput:
    """The rows of a batch, its initial rows and its expired timers, grouped by key at one go.

    Attributes:
        keys: All keys that there is anything for, ascending by hash.
        input_order: Input rows, key after key.
        input_ends: For each key the end of its rows in ``input_order``.
        initial_order: The same for initial rows.
        initial_ends: The same for initial rows.
        expired: Stored timers that have come, as ``(time, key number)``.
    """

    keys: KeyRows
    input_order: Rows
    input_ends: Rows
    initial_order: Rows
    initial_ends: Rows
    expired: list[tuple[int, int]]


def keyed_input(rows: KeyRows, initial: KeyRows, timers: KeyRows, timer_times: Rows) -> KeyedInput:
    """Groups rows, initial rows and timers by their keys.

    Args:
        rows: Keys of the input rows.
        initial: Keys of the initial rows.
        timers: Grouping keys of expired timers.
        timer_times: Their times.
    """
    groups = group_rows(KeyRows.concat([rows, initial, timers]))
    first_initial, first_timer = len(rows), len(rows) + len(initial)
    owners = groups.index()
    is_input = groups.order < first_initial
    is_timer = groups.order >= first_timer
    is_initial = ~(is_input | is_timer)
    times = timer_times[groups.order[is_timer] - first_timer]
    return KeyedInput(
        groups.keys,
        groups.order[is_input],
        _ends(groups, owners[is_input]),
        groups.order[is_initial] - first_initial,
        _ends(groups, owners[is_initial]),
        list(zip(times.tolist(), owners[is_timer].tolist(), strict=True)),
    )


def _ends(groups: Groups, owners: Rows) -> Rows:
    ends: Rows = np.cumsum(np.bincount(owners, minlength=len(groups)))
    return ends


@contextmanager
def rare_collections() -> Iterator[None]:
    """Lets Python look for cyclic garbage less often: a batch is many small objects that all stay until its end.

    Looking through them again and again takes more than half of the time of a small processor (measured: 100,000 rows
    per second and core with it, 260,000 without).
    """
    before = gc.get_threshold()
    gc.set_threshold(_ALLOCATIONS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


class ProcessorRun:
    """A processor at work on one batch of one subtask.

    Args:
        processor: A copy of the user's, for this batch alone.
        handle: State and timers of the keys.
        keys: Grouping keys as ``handleInputRows`` gets them.
        timer_values: The time of the batch.
        take: Runs through what the processor yields for one key, and keeps it.
    """

    def __init__(
        self,
        processor: StatefulProcessor,
        handle: ProcessorHandle,
        keys: list[tuple[Any, ...]],
        timer_values: TimerValues,
        take: Callable[[Iterable[Any]], None],
    ) -> None:
        self._processor = processor
        self._handle = handle
        self._keys = keys
        self._timer_values = timer_values
        self._take = take
        self.fired = 0

    def init(self) -> None:
        """Step 1."""
        with self._user_code("init"):
            self._processor.init(self._handle)

    def handle_rows(self, keyed: KeyedInput, inputs: Slices | None, initial: Slices | None) -> None:
        """Step 2."""
        cursor, timer_values, take = self._handle.cursor, self._timer_values, self._take
        input_ends = keyed.input_ends.tolist()
        initial_ends = keyed.initial_ends.tolist()
        start = initial_start = 0
        handle_rows = self._processor.handleInputRows
        with self._user_code("handleInputRows") as user_code:
            for number, key in enumerate(self._keys):
                cursor.key = number
                initial_end = initial_ends[number]
                if initial is not None and initial_start < initial_end:
                    user_code.operation = "handleInitialState"
                    for state in initial(initial_start, initial_end):
                        self._processor.handleInitialState(key, state, timer_values)
                    user_code.operation = "handleInputRows"
                    initial_start = initial_end
                end = input_ends[number]
                if inputs is not None and start < end:
                    take(handle_rows(key, inputs(start, end), timer_values))
                    start = end

    def fire_timers(self, timers: Timers, until_ms: int, rows: list[Row]) -> None:
        """Step 3.

        Args:
            timers: The timers of the keys.
            until_ms: The time of the batch.
            rows: Grouping keys as ``handleExpiredTimer`` gets them.
        """
        due = timers.due(until_ms)
        cursor = self._handle.cursor
        with self._user_code("handleExpiredTimer"):
            for time_ms, number in due:
                cursor.key = number
                self._take(
                    self._processor.handleExpiredTimer(
                        key=rows[number], timerValues=self._timer_values, expiredTimerInfo=ExpiredTimerInfo(time_ms)
                    )
                )
                timers.delete(number, time_ms)
        self.fired = len(due)

    def close(self) -> None:
        """Step 4."""
        self._handle.cursor.unset()
        with self._user_code("close"):
            self._processor.close()

    def _user_code(self, operation: str) -> _UserCode:
        return _UserCode(operation, type(self._processor).__name__, self._present_key)

    def _present_key(self) -> str | None:
        cursor = self._handle.cursor
        return f"key {self._keys[cursor.key]!r}" if cursor.is_set else None


class _UserCode:
    """Turns what user code raises into an error with the key and the user's traceback.

    A class, because a generator cannot be one: ``contextlib`` takes a ``RuntimeError`` that comes of a
    ``StopIteration`` for Python's own, and lets the latter pass. A ``next()`` of an empty iterator is a common mistake
    of processors.

    Args:
        operation: Which of the processor's methods.
        processor: The name of its class.
        present_key: The key that is processed.
    """

    def __init__(self, operation: str, processor: str, present_key: Callable[[], str | None]) -> None:
        self.operation = operation
        self._processor = processor
        self._present_key = present_key

    def __enter__(self) -> Self:
        """Nothing to do."""
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, UserCodeError.causes):
            return
        key = self._present_key()
        if isinstance(error, StatelineError):
            error.subject = ", ".join(filter(None, (error.subject, key)))
            return
        theirs = [frame for frame in traceback.extract_tb(trace) if frame.filename not in _OUR_FILES]
        if not theirs and isinstance(error, TypeError) and "iterable" in str(error):
            raise InvalidInputError(
                f"must return an iterator of its output ({error})",
                operation=self.operation,
                subject=", ".join(filter(None, (self._processor, key))),
                hint="Yield the output, or return iter([]) for none",
                kind=ErrorKind.SCHEMA_MISMATCH,
            ) from error
        shown = "".join(traceback.format_list(theirs))
        raise UserCodeError(
            f"{UserCodeError.described(error)}\n{shown}",
            operation=self.operation,
            subject=", ".join(filter(None, (self._processor, key))),
            hint="Nothing of the batch is kept. Mend the processor and start again: the batch is repeated",
        ) from error
