"""What a processor holds while a key is processed: its state variables and timers, as PySpark's own classes.

These objects are subclasses of Spark's and answer without a round trip: the state of all keys of the batch is in this
process already, read in one pass when a processor first asks for it.
"""

# ruff: noqa: N802, N803, ARG002 - methods and arguments are Spark's

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from pyspark.sql.streaming import stateful_processor as spark_api

from stateline.errors import InternalError, InvalidInputError
from stateline.spark.processor.values import StructCodec, row_class
from stateline.spark.processor.variables import EVENT_TIME, PROCESSING_TIME, Kind, TimeMode, Variable
from stateline.state.keys import KeyRows
from stateline.state.list_state import ListState
from stateline.state.map_state import MapState
from stateline.state.rows import StateRows
from stateline.state.table import StateTable
from stateline.state.time_to_live import Lifetime
from stateline.state.timers import Timers
from stateline.state.value_state import ValueState
from stateline.state.variables import Values

__all__ = ["Cursor", "ProcessorHandle"]


class Cursor:
    """The number of the key that is processed now: ``key``, which is set only while there is one.

    In ``init`` and ``close`` there is none, and a number that says so would be taken for the number of some key.
    """

    __slots__ = ("key",)

    key: int

    @property
    def is_set(self) -> bool:
        """Whether a key is processed."""
        try:
            return self.key >= 0
        except InvalidInputError:
            return False

    def unset(self) -> None:
        """There is no key any more."""
        if self.is_set:
            del self.key

    def __getattr__(self, name: str) -> NoReturn:
        """Asked for nothing but a key that is not set: all that processors do with a key costs no check by that."""
        if name != "key":
            raise AttributeError(name)
        raise InvalidInputError(
            "cannot be used while no key is processed",
            operation="process",
            subject="state",
            hint="Use state and timers only while a key is processed, not in init() or close()",
        )


class _ValueVariable(spark_api.ValueState):
    def __init__(self, cursor: Cursor, codec: StructCodec, state: ValueState) -> None:
        self._cursor, self._codec, self._state = cursor, codec, state
        self._copies = codec.has_mutable

    def exists(self) -> bool:
        return self._state.get(self._cursor.key) is not None

    def get(self) -> Values | None:
        value = self._state.get(self._cursor.key)
        return copy.deepcopy(value) if self._copies else value

    def update(self, newValue: Any) -> None:
        self._state.update(self._cursor.key, self._codec.checked(newValue))

    def clear(self) -> None:
        self._state.clear(self._cursor.key)


class _ListVariable(spark_api.ListState):
    def __init__(self, cursor: Cursor, codec: StructCodec, state: ListState) -> None:
        self._cursor, self._codec, self._state = cursor, codec, state
        self._copies = codec.has_mutable

    def exists(self) -> bool:
        return self._state.exists(self._cursor.key)

    def get(self) -> Iterator[Values]:
        rows = self._state.get(self._cursor.key)
        return iter(copy.deepcopy(rows) if self._copies else rows)

    def put(self, newState: Any) -> None:
        self._state.put(self._cursor.key, self._checked(newState))

    def appendValue(self, newState: Any) -> None:
        self._state.append(self._cursor.key, [self._codec.checked(newState)])

    def appendList(self, newState: Any) -> None:
        self._state.append(self._cursor.key, self._checked(newState))

    def clear(self) -> None:
        self._state.put(self._cursor.key, [])

    def _checked(self, rows: Any) -> list[Values]:
        return [self._codec.checked(row) for row in rows]


class _MapVariable(spark_api.MapState):
    def __init__(self, cursor: Cursor, key_codec: StructCodec, codec: StructCodec, state: MapState) -> None:
        self._cursor, self._key_codec, self._codec, self._state = cursor, key_codec, codec, state
        self._copies = codec.has_mutable
        self._row: Any = row_class(codec.schema.names)

    def exists(self) -> bool:
        return bool(self._state.items(self._cursor.key))

    def getValue(self, key: Any) -> Values | None:
        """A row, and no tuple: only this one of Spark's methods gives names to the fields."""
        value = self._state.get(self._cursor.key, self._key_codec.checked(key))
        if value is None:
            return None
        row: Values = tuple.__new__(self._row, copy.deepcopy(value) if self._copies else value)
        return row

    def containsKey(self, key: Any) -> bool:
        return self._state.get(self._cursor.key, self._key_codec.checked(key)) is not None

    def updateValue(self, key: Any, value: Any) -> None:
        self._state.update(self._cursor.key, self._key_codec.checked(key), self._codec.checked(value))

    def iterator(self) -> Iterator[tuple[Values, Values]]:
        return iter(list(self._items().items()))

    def keys(self) -> Iterator[Values]:
        return iter(list(self._state.items(self._cursor.key)))

    def values(self) -> Iterator[Values]:
        return iter(list(self._items().values()))

    def removeKey(self, key: Any) -> None:
        self._state.remove(self._cursor.key, self._key_codec.checked(key))

    def clear(self) -> None:
        self._state.clear(self._cursor.key)

    def _items(self) -> dict[Values, Values]:
        items = self._state.items(self._cursor.key)
        return copy.deepcopy(items) if self._copies else items


class ProcessorHandle(spark_api.StatefulProcessorHandle):
    """Spark's handle over the state of the keys of one batch.

    Args:
        variables: What ``init`` declared when the pipeline was built.
        tables: The table of each variable, by its name.
        timers: The timers of the keys; ``None`` where the time mode has none.
        keys: The keys of the batch.
        time_mode: That of the program.
        now_ms: Processing time of the batch.
        sequence: Number of the batch in the life of the state.
    """

    def __init__(
        self,
        variables: Mapping[str, Variable],
        tables: Mapping[str, StateTable],
        timers: Timers | None,
        keys: KeyRows,
        *,
        time_mode: TimeMode,
        now_ms: int,
        sequence: int,
    ) -> None:
        self.cursor = Cursor()
        self._variables = variables
        self._tables = tables
        self._timers = timers
        self._keys = keys
        self._time_mode = time_mode
        self._now_ms = now_ms
        self._sequence = sequence
        self._states: dict[str, ValueState | ListState | MapState] = {}

    def changes(self) -> dict[str, StateRows]:
        """What the batch changed, by variable.

        Raises:
            InvalidInputError: A value does not fit its schema.
        """
        made = {name: self._changes_of(state) for name, state in self._states.items()}
        return {name: rows for name, rows in made.items() if rows is not None}

    def getValueState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> spark_api.ValueState:
        variable, table, lifetime = self._declared("value", stateName)
        codec = StructCodec(variable.value, variable.subject)
        state = self._states[stateName] = ValueState(table, self._keys, codec, lifetime)
        return _ValueVariable(self.cursor, codec, state)

    def getListState(self, stateName: str, schema: Any, ttlDurationMs: int | None = None) -> spark_api.ListState:
        variable, table, lifetime = self._declared("list", stateName)
        codec = StructCodec(variable.value, variable.subject)
        state = self._states[stateName] = ListState(table, self._keys, codec, lifetime, self._sequence)
        return _ListVariable(self.cursor, codec, state)

    def getMapState(
        self, stateName: str, userKeySchema: Any, valueSchema: Any, ttlDurationMs: int | None = None
    ) -> spark_api.MapState:
        variable, table, lifetime = self._declared("map", stateName)
        if variable.key is None:
            raise InternalError("a map has no key", operation="init", subject=variable.subject)
        key_codec = StructCodec(variable.key, f"key of {variable.subject}", is_key=True)
        codec = StructCodec(variable.value, variable.subject)
        state = self._states[stateName] = MapState(table, self._keys, key_codec, codec, lifetime)
        return _MapVariable(self.cursor, key_codec, codec, state)

    def registerTimer(self, expiryTimestampMs: int) -> None:
        """Sets a timer of the present key; one whose time has come fires in this batch."""
        self._timers_of("registerTimer").register(self.cursor.key, _time_ms(expiryTimestampMs, "registerTimer"))

    def deleteTimer(self, expiryTimestampMs: int) -> None:
        self._timers_of("deleteTimer").delete(self.cursor.key, _time_ms(expiryTimestampMs, "deleteTimer"))

    def listTimers(self) -> Iterator[int]:
        """The times of the present key's timers, ascending."""
        return iter(self._timers_of("listTimers").of_key(self.cursor.key))

    def deleteIfExists(self, stateName: str) -> None:
        """Nothing to do: what ``init`` deletes was not declared when the pipeline was built.

        Raises:
            InvalidInputError: It was called while a key is processed.
        """
        if self.cursor.is_set:
            raise _too_late("deleteIfExists", f"state {stateName!r}")

    def _changes_of(self, state: ValueState | ListState | MapState) -> StateRows | None:
        try:
            return state.changes()
        except InvalidInputError as error:
            number = state.refused_key()
            if number is not None:
                key = tuple(column[number].as_py() for column in self._keys.columns)
                error.subject = f"{error.subject}, key {key!r}"
            raise

    def _declared(self, kind: Kind, name: str) -> tuple[Variable, StateTable, Lifetime]:
        variable = self._variables.get(name)
        if variable is None or variable.kind != kind:
            known = ", ".join(known.definition for known in self._variables.values())
            raise InvalidInputError(
                "was not declared by init() when the pipeline was built",
                operation="init",
                subject=f"{kind} state {name!r}",
                hint=f"init() must declare the same variables each time; it declared: {known or 'none'}",
            )
        if self.cursor.is_set or name in self._states:
            # A second object for one variable would hide what was changed through the first one.
            raise _too_late("init", variable.subject)
        return variable, self._tables[name], Lifetime(self._now_ms, variable.ttl_ms)

    def _timers_of(self, operation: str) -> Timers:
        if self._timers is None or not self.cursor.is_set:
            reason = (
                "cannot be used without a key" if self._timers else f"cannot be used in time mode {self._time_mode!r}"
            )
            raise InvalidInputError(
                reason,
                operation=operation,
                subject="timers",
                hint=f"Timers need time_mode={EVENT_TIME!r} or {PROCESSING_TIME!r}, and a key that is processed",
            )
        return self._timers


def _too_late(operation: str, subject: str) -> InvalidInputError:
    return InvalidInputError(
        "can be declared or deleted only once, in init()",
        operation=operation,
        subject=subject,
        hint="Keep what init() gets on self; clear() empties the state of a key",
    )


def _time_ms(value: Any, operation: str) -> int:
    try:
        time_ms = value.__index__()
    except (AttributeError, TypeError):
        time_ms = None
    if time_ms is None or isinstance(value, bool) or not -(2**63) <= time_ms < 2**63:
        raise InvalidInputError(
            f"the time of a timer must be a whole number, got {value!r} of type {type(value).__name__}",
            operation=operation,
            subject="timers",
            hint="Give whole milliseconds since the epoch",
        )
    return int(time_ms)
