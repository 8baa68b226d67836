"""What a processor declares in ``init``: found out once, on the driver, by running ``init`` against a recording handle.

Facts (tried in Spark 4.3): a time to live needs ``time_mode="ProcessingTime"``; 0 means none; a name is used once.
"""

# ruff: noqa: N802, N803 - methods and arguments are Spark's, and documented there

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, NoReturn, TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessor,
    StatefulProcessorHandle,
    ValueState,
)
from pyspark.sql.types import StructType

from stateline.errors import ErrorKind, InvalidInputError, UserCodeError
from stateline.spark.arrow_types import arrow_schema, struct_from_ddl
from stateline.state.list_state import POSITION
from stateline.state.schema import StateSchema
from stateline.state.variables import variable_schema

__all__ = ["EVENT_TIME", "PROCESSING_TIME", "Kind", "TimeMode", "Variable", "definition", "discover", "parse_struct"]

Kind: TypeAlias = Literal["value", "list", "map"]
TimeMode: TypeAlias = Literal["none", "processingtime", "eventtime"]
EVENT_TIME: Final = "eventtime"
PROCESSING_TIME: Final = "processingtime"

_TTL_MS_MAX: Final = 2**62
"""Added to the time of a batch it still fits 64 bits."""
_NO_SUBKEY: Final = pa.schema([])


@dataclass(frozen=True, slots=True)
class Variable:
    """One state variable.

    Attributes:
        kind: Which of PySpark's states.
        name: Its name, unique in the processor.
        value: Schema of its values.
        key: Schema of the keys of a map.
        ttl_ms: Time to live; ``None`` for ever.
    """

    kind: Kind
    name: str
    value: StructType
    key: StructType | None = None
    ttl_ms: int | None = None

    @property
    def subject(self) -> str:
        """What errors call it."""
        return f"{self.kind} state {self.name!r}"

    @property
    def definition(self) -> str:
        """Kind, name and types, as text."""
        key = "" if self.key is None else f"{_fields(self.key)} -> "
        return f"{self.kind} {self.name}({key}{_fields(self.value)}){' with ttl' if self.ttl_ms else ''}"

    def table(self, grouping: pa.Schema) -> StateSchema:
        """The schema of its table.

        Raises:
            InvalidInputError: A type that cannot be stored, or cannot be the key of a map.
        """
        subkey = {"value": _NO_SUBKEY, "list": POSITION}.get(self.kind)
        if subkey is None:
            subkey = arrow_schema(self.key or StructType())
        return variable_schema(grouping, subkey, arrow_schema(self.value), has_ttl=self.ttl_ms is not None)


def discover(processor: bytes, time_mode: TimeMode) -> dict[str, Variable]:
    """Runs ``init`` and ``close`` of a copy of the processor and returns what it declared, by name.

    Args:
        processor: Pickled.
        time_mode: That of the program.

    Raises:
        InvalidInputError: A declaration that cannot be: a name used twice, a negative time to live, one without
            ``time_mode="ProcessingTime"``, a schema that cannot be read.
        UserCodeError: ``init`` raised.
    """
    copy: StatefulProcessor = CloudPickleSerializer().loads(processor)
    handle = _RecordingHandle(time_mode)
    try:
        copy.init(handle)
        copy.close()
    except InvalidInputError:
        raise
    except UserCodeError.causes as error:
        raise UserCodeError(
            UserCodeError.described(error),
            operation="init",
            subject=type(copy).__name__,
            hint="init() runs once where the pipeline is built, to learn the state variables",
        ) from error
    return handle.variables


def parse_struct(schema: Any, subject: str) -> StructType:
    """A schema given as a struct or as DDL text.

    Raises:
        InvalidInputError: It is neither.
    """
    if isinstance(schema, StructType):
        return schema
    if not isinstance(schema, str):
        raise _bad_declaration(
            subject, f"its schema must be a StructType or DDL text, got {type(schema).__name__}", "Give 'count long'"
        )
    try:
        return struct_from_ddl(schema)
    except PySparkException as error:
        raise _bad_declaration(
            subject, f"its schema {schema!r} cannot be read", "Give DDL text such as 'count long, at timestamp'"
        ) from error


class _RecordingHandle(StatefulProcessorHandle):
    """Takes declarations; state and timers are not there yet."""

    def __init__(self, time_mode: TimeMode) -> None:
        self._time_mode = time_mode
        self.variables: dict[str, Variable] = {}

    def getValueState(self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None) -> ValueState:
        self._declare("value", stateName, schema, None, ttlDurationMs)
        return _Undefined(f"value state {stateName!r}")

    def getListState(self, stateName: str, schema: StructType | str, ttlDurationMs: int | None = None) -> ListState:
        self._declare("list", stateName, schema, None, ttlDurationMs)
        return _Undefined(f"list state {stateName!r}")

    def getMapState(
        self,
        stateName: str,
        userKeySchema: StructType | str,
        valueSchema: StructType | str,
        ttlDurationMs: int | None = None,
    ) -> MapState:
        self._declare("map", stateName, valueSchema, userKeySchema, ttlDurationMs)
        return _Undefined(f"map state {stateName!r}")

    def deleteIfExists(self, stateName: str) -> None:
        self.variables.pop(stateName, None)

    def __getattribute__(self, name: str) -> Any:
        if name in ("registerTimer", "deleteTimer", "listTimers"):
            return getattr(_Undefined("a timer"), name)
        return super().__getattribute__(name)

    def _declare(self, kind: Kind, name: str, value: Any, key: Any, ttl_ms: int | None) -> None:
        subject = f"{kind} state {name!r}"
        if name in self.variables:
            raise _bad_declaration(subject, "cannot use this name twice", "Give each state variable a name of its own")
        if not name or not isinstance(name, str):
            raise _bad_declaration(subject, f"must have a name, got {name!r}", "Give a text that is not empty")
        is_ttl = ttl_ms is None or (isinstance(ttl_ms, int) and not isinstance(ttl_ms, bool))
        if not is_ttl or not 0 <= (ttl_ms or 0) <= _TTL_MS_MAX:
            raise _bad_declaration(
                subject,
                f"its time to live must be 0 to {_TTL_MS_MAX} ms, got {ttl_ms!r}",
                "Give whole milliseconds, or None for ever",
            )
        if ttl_ms and self._time_mode != PROCESSING_TIME:
            raise _bad_declaration(
                subject,
                f"cannot have a time to live in time mode {self._time_mode!r}",
                'Time to live goes by processing time: give time_mode="ProcessingTime"',
            )
        self.variables[name] = Variable(
            kind,
            name,
            parse_struct(value, subject),
            None if key is None else parse_struct(key, subject),
            ttl_ms or None,
        )


class _Undefined:
    """Stands for state and timers while there is no key."""

    def __init__(self, subject: str) -> None:
        self._subject = subject

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise _bad_declaration(
            self._subject,
            f"cannot call {name}() in init() or close()",
            "Use state and timers only while a key is processed",
        )


def _bad_declaration(subject: str, reason: str, hint: str) -> InvalidInputError:
    return InvalidInputError(reason, operation="init", subject=subject, hint=hint, kind=ErrorKind.INVALID_INPUT)


def _fields(struct: StructType) -> str:
    text: str = struct.simpleString()
    return text.removeprefix("struct<").removesuffix(">")


def definition(grouping: pa.Schema, variables: Mapping[str, Variable], time_mode: TimeMode) -> str:
    """What a processor keeps, as text: the same for the same state."""
    keys = ", ".join(f"{field.name} {field.type}" for field in grouping)
    kept = [variable.definition for _, variable in sorted(variables.items())]
    if time_mode in (EVENT_TIME, PROCESSING_TIME):
        kept.append(f"timers by {time_mode}")
    return f"process by ({keys}): {'; '.join(kept) or 'nothing'}"
