"""``KeyedStream.lookup``: each row beside what another operator keeps of its key.

The other operator is one of the same pipeline, whose state is that of the checkpoint before the batch, or one of
another root, whose state is that of the newest record when the batch begins. All rows of a batch see one state; what
changes later changes nothing of what came out. Nothing is kept, and no row waits.

As in SQL, null equals nothing: a row with a null in its key finds nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Self, cast, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stateline.errors import ErrorKind, InvalidInputError
from stateline.options import check_kind, check_known, parse_choice
from stateline.pipeline.operators.api import (
    HASH_COLUMN,
    WEIGHT_COLUMN,
    BatchContext,
    Emits,
    Lookup,
    OperatorProgram,
    Processed,
)
from stateline.pipeline.operators.suffixes import names_beside
from stateline.state.columns import Mask, Rows, contiguous, valid_mask
from stateline.state.keys import KeyRows, group_rows, key_rows
from stateline.state.schema import StateSchema, stored_key_type
from stateline.state.table import Found, StateTable
from stateline.state.time_to_live import EXPIRY_COLUMN

__all__ = ["LookupHow", "LookupProgram", "looked_up"]

LookupHow = Literal["inner", "left"]

_OPERATION: Final = "lookup"
_NAME: Final = "lookup"


def looked_up(
    state: str, stored: StateSchema, columns: Sequence[str] | None, **where: object
) -> tuple[Lookup, tuple[str, ...]]:
    """What is read of a state, and which of its value columns are shown.

    Args:
        state: Its name in the checkpoint.
        stored: Its schema.
        columns: The value columns wanted, in that order; ``None`` for all of them.
        where: Root and options, as of :class:`Lookup`.

    Raises:
        InvalidInputError: No such column, or one named twice; or the state has several rows for each key.
    """
    if stored.subkeys:
        raise _refused(
            "cannot be looked up: it has several rows for each key",
            f"state {state!r}",
            "Look up an aggregation, apply_arrow or a value state; join streams with join or join_asof",
        )
    hidden = [EXPIRY_COLUMN] if EXPIRY_COLUMN in stored.values.names else []
    if columns is None:
        shown = [name for name in stored.values.names if name not in hidden]
    else:
        check_kind(columns, list | tuple, "columns", "a list of column names")
        shown = list(columns)
        for name in shown:
            check_known([name], stored.values.names, f"column of state {state!r}")
            if shown.count(name) > 1:
                raise _refused(f"cannot name {name!r} twice", "columns", "Name each column once")
    read = [field for field in stored.values if field.name in {*shown, *hidden}]
    defaults = tuple(item for item in stored.defaults if item[0] in {field.name for field in read})
    schema = StateSchema(stored.keys, pa.schema(read), defaults)
    return Lookup(state=state, schema=schema, **where), tuple(shown)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class LookupProgram(OperatorProgram):
    """Rows of one keyed stream, enriched with the state of another operator."""

    _schema: pa.Schema
    _keys: tuple[str, ...]
    _lookup: Lookup
    _shown: tuple[str, ...]
    _how: LookupHow
    _output: pa.Schema
    _event_times: tuple[str, ...]
    _updates: bool

    @classmethod
    def bind(
        cls,
        schema: pa.Schema,
        keys: Sequence[str],
        lookup: Lookup,
        shown: Sequence[str],
        *,
        how: str = "left",
        suffix: str = "_right",
        event_times: Sequence[str] = (),
        updates: bool = False,
    ) -> Self:
        """Checks everything that can be checked before a row comes.

        Args:
            schema: Columns of the stream.
            keys: Those by which it is keyed.
            lookup: What is looked up; with ``shown`` from :func:`looked_up`.
            shown: Its value columns that come out.
            how: ``left`` or ``inner``.
            suffix: Goes behind the name of a looked-up column that is taken.
            event_times: Columns of the stream that are event times.
            updates: Whether the stream has rows that take earlier ones back. They are left out, and so nothing that
                follows can take anything back.

        Raises:
            InvalidInputError: An unknown ``how``, keys of other types than those of the state, a name that is taken.
        """
        chosen = cast("LookupHow", parse_choice(how, get_args(LookupHow), "how"))
        _check_same_types(schema, keys, lookup)
        ordered = [*keys, *(name for name in schema.names if name not in keys)]
        output = _output_schema([schema.field(name) for name in ordered], lookup, shown, suffix)
        return cls(schema, tuple(keys), lookup, tuple(shown), chosen, output, tuple(event_times), updates)

    @property
    def key_columns(self) -> tuple[str, ...]:
        return self._keys

    @property
    def input_columns(self) -> tuple[str, ...]:
        return (*self._keys, *(name for name in self._schema.names if name not in self._keys))

    @property
    def wants_hash(self) -> bool:
        return True

    @property
    def emits(self) -> Emits:
        return "unknown" if self._updates else "appends"

    @property
    def event_time_columns(self) -> tuple[str, ...]:
        return self._event_times

    @property
    def tables(self) -> Mapping[str, StateSchema]:
        """None: it keeps nothing."""
        return {}

    @property
    def lookups(self) -> Mapping[str, Lookup]:
        return {_NAME: self._lookup}

    @property
    def definition(self) -> str:
        return json.dumps({"keys": list(self._keys), "program": _OPERATION})

    @property
    def output_schema(self) -> pa.Schema:
        """Key columns, other columns of the stream, then those of the state."""
        return self._output

    def process(
        self, batches: Iterable[pa.RecordBatch], tables: Mapping[str, StateTable], context: BatchContext
    ) -> Processed:
        """Looks the keys of all rows up at once."""
        received = list(batches)
        if not received:
            return Processed(changes={})
        rows = pa.Table.from_batches(received)
        if WEIGHT_COLUMN in rows.schema.names:
            rows = rows.filter(pc.greater(rows.column(WEIGHT_COLUMN), 0))
        columns = [rows.column(key) for key in self._keys]
        keys = key_rows(self._lookup.schema, columns, rows.column(HASH_COLUMN).to_numpy())
        found, number = self._found(tables[_NAME], keys, context)
        is_found = number >= 0
        metrics = {"rows": rows.num_rows, "rows_found": int(np.count_nonzero(is_found))}
        if self._how == "inner":
            rows, number = rows.filter(pa.array(is_found)), number[is_found]
        chosen = pa.array(number, mask=number < 0)
        names = self._lookup.schema.values.names
        values = [found.values[names.index(name)].take(chosen) for name in self._shown]
        output = pa.table(
            [*(contiguous(rows.column(name)) for name in self.input_columns), *values], schema=self._output
        )
        return Processed(changes={}, output=output if output.num_rows else None, metrics=metrics)

    def _found(self, table: StateTable, keys: KeyRows, context: BatchContext) -> tuple[Found, Rows]:
        """The state of all keys, and for each row which of it is that of its own; -1 for none."""
        number = np.full(len(keys), -1)
        asking = np.flatnonzero(_without_nulls(keys))
        groups = group_rows(keys.take(asking))
        found = table.probe(groups.keys)
        there = found.mask & self._is_live(found, context)
        group = np.empty(len(asking), dtype=np.int64)
        group[groups.order] = groups.index()
        number[asking] = np.where(there[group], group, -1)
        return found, number

    def _is_live(self, found: Found, context: BatchContext) -> Mask:
        """Which rows have not outlived their time."""
        names = self._lookup.schema.values.names
        if EXPIRY_COLUMN not in names:
            return np.ones(len(found.mask), dtype=np.bool_)
        expiry = found.values[names.index(EXPIRY_COLUMN)]
        live: Mask = pc.greater(expiry, context.now_ms).fill_null(True).to_numpy(zero_copy_only=False)
        return live


def _without_nulls(keys: KeyRows) -> Mask:
    whole = np.ones(len(keys), dtype=np.bool_)
    for column in keys.columns:
        valid = valid_mask(column)
        whole = whole if valid is None else whole & valid
    return whole


def _check_same_types(schema: pa.Schema, keys: Sequence[str], lookup: Lookup) -> None:
    mine = [pa.field(key, stored_key_type(schema.field(key).type, key)) for key in keys]
    theirs = list(lookup.schema.keys)
    if [field.type for field in mine] != [field.type for field in theirs]:
        raise _refused(
            f"expected a key of the types of the state, ({_types(theirs)}), got ({_types(mine)})",
            f"key of state {lookup.state!r}",
            "Key the stream by as many columns, in the same order, and cast those that differ",
        )


def _output_schema(rows: list[pa.Field], lookup: Lookup, shown: Sequence[str], suffix: str) -> pa.Schema:
    names = names_beside((field.name for field in rows), shown, suffix, _OPERATION)
    values = lookup.schema.values
    return pa.schema([*rows, *(values.field(own).with_name(name) for own, name in zip(shown, names, strict=True))])


def _types(fields: Sequence[pa.Field]) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in fields)


def _refused(reason: str, subject: str, hint: str) -> InvalidInputError:
    return InvalidInputError(reason, operation=_OPERATION, subject=subject, hint=hint, kind=ErrorKind.SCHEMA_MISMATCH)
