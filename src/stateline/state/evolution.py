"""How a stored schema becomes a newer one: what is safe, how old rows are read, what must be remembered. Pure.

Rules:
- A value column may be added, with a default for the rows that are stored already; dropped; or widened without loss.
- Keys never change, nor does the default of a column that is stored: old rows would change with it.
- **A name that was dropped stays taken.** Old runs are not rewritten, so a column of that name would come back with
  values from before it was dropped for some keys, and without for others. The record remembers such names, in a
  property ``dropped.<state>``, which every later record and every savepoint carries on.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa

from stateline.checkpoint.api import EARLIER_CHECKPOINTS, Checkpoint
from stateline.checkpoint.envelope import decode_value
from stateline.state.schema import StateSchema, schema_mismatch
from stateline.state.widths import is_narrowed

__all__ = ["ColumnStep", "apply_evolution", "carried_properties", "check_evolution", "plan_evolution"]

_DROPPED: Final = "dropped."
_DIGITS: Final[Mapping[int, int]] = {8: 3, 16: 5, 32: 10, 64: 19}
"""How many decimal digits integers of so many bits may have."""


def check_evolution(record: Checkpoint, name: str, wanted: StateSchema) -> None:
    """Checks that the stored state of a name, if there is any, can become what a program expects.

    Raises:
        InvalidInputError: Of kind ``SCHEMA_MISMATCH``; shows both schemas.
        CorruptDataError: The record's schema cannot be read.
    """
    operator = record.operator(name)
    if operator is None or operator.schema == wanted.encode():
        return
    stored = StateSchema.decode(operator.schema)
    plan_evolution(stored, wanted, name)
    for column in sorted(set(stored.values.names) & set(wanted.values.names)):
        if not wanted.has_default_of(stored, column):
            reason = f"column {column!r} is stored already, with another default"
            raise schema_mismatch(stored, wanted, name, reason)
    back = sorted(set(_dropped(record, name)) & set(wanted.values.names))
    if back:
        reason = f"{', '.join(back)} was dropped before, and old rows still hold it"
        raise schema_mismatch(stored, wanted, name, reason, hint="Give it another name")


def carried_properties(newest: Checkpoint | None, wanted: Mapping[str, str]) -> dict[str, str]:
    """The properties that the next record takes over from the newest: dropped columns, checkpoints before a savepoint.

    Args:
        newest: The record before it.
        wanted: The encoded schemas of the next one, by name of the state.
    """
    if newest is None:
        return {}
    carried = {name: newest.properties[name] for name in (EARLIER_CHECKPOINTS,) if name in newest.properties}
    for name, schema in wanted.items():
        dropped = set(_dropped(newest, name))
        operator = newest.operator(name)
        if operator is not None and operator.schema != schema:
            old, new = StateSchema.decode(operator.schema), StateSchema.decode(schema)
            dropped |= set(old.values.names) - set(new.values.names)
        if dropped:
            carried[_DROPPED + name] = json.dumps(sorted(dropped))
    return carried


def _dropped(record: Checkpoint, name: str) -> list[str]:
    subject = f"state {name!r} in checkpoint {record.checkpoint_id}"
    return decode_value(
        record.properties.get(_DROPPED + name, "[]"), list[str], "the columns that were dropped", subject
    )


@dataclasses.dataclass(frozen=True, slots=True)
class ColumnStep:
    """How one column of the newer schema comes from a stored row.

    Attributes:
        name: The column.
        type: Its type.
        source: Index of the stored value column; ``None`` where the column was added.
        default: What an added column has in stored rows; null where there is no default.
    """

    name: str
    type: pa.DataType
    source: int | None
    default: pa.Scalar


def plan_evolution(stored: StateSchema, wanted: StateSchema, operator: str = "state") -> tuple[ColumnStep, ...]:
    """How rows of ``stored`` are read as rows of ``wanted``: a pure plan, one step per wanted value column.

    Allowed: value columns added (old rows have the default), dropped, reordered, and widened without loss (more bits of
    the same kind, ``int8..int32`` to ``float64``, integers to decimals with room for them, decimals with more digits on
    either side of the point).

    Raises:
        InvalidInputError: Of kind ``SCHEMA_MISMATCH``: another key, or a change of type that could lose values.
    """
    if stored.keys != wanted.keys:
        raise schema_mismatch(
            stored, wanted, operator, "the key columns differ, and stored rows are ordered by their hash"
        )
    steps = []
    for field in wanted.values:
        index = stored.values.get_field_index(field.name)
        if index >= 0 and not _widens(stored.values.field(index).type, field.type):
            raise schema_mismatch(stored, wanted, operator, f"column {field.name!r} cannot change its type this way")
        source = index if index >= 0 else None
        steps.append(ColumnStep(field.name, field.type, source, wanted.default(field.name)))
    return tuple(steps)


def apply_evolution(steps: Sequence[ColumnStep], values: Sequence[pa.Array], rows: int) -> tuple[pa.Array, ...]:
    """The wanted value columns from stored ones, by a plan. Unchanged columns are not copied."""
    made = []
    for step in steps:
        if step.source is None:
            made.append(pa.repeat(step.default, rows))
        else:
            column = values[step.source]
            as_it_lies = column.type == step.type or is_narrowed(column.type, step.type)
            made.append(column if as_it_lies else column.cast(step.type))
    return tuple(made)


def _widens(old: pa.DataType, new: pa.DataType) -> bool:
    if old == new or pa.types.is_null(old):
        return True
    if pa.types.is_signed_integer(old):
        if pa.types.is_float64(new):
            return bool(old.bit_width <= 32)
        if pa.types.is_decimal128(new):
            return bool(new.precision - new.scale >= _DIGITS[old.bit_width])
        return bool(pa.types.is_signed_integer(new) and new.bit_width > old.bit_width)
    if pa.types.is_float32(old):
        return bool(pa.types.is_float64(new))
    if pa.types.is_decimal128(old) and pa.types.is_decimal128(new):
        return bool(new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale)
    return False
