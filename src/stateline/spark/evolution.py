"""A changed program over stored state: which changes are safe, and what must be remembered about them. Pure.

Owns the rules for definitions, and the memory of dropped columns. Does not own the rules for types
(``stateline.state.schema``), nor how old rows are read (``stateline.state.run`` evolves them when it decodes them).

Rules:
- An aggregation may be added: for old keys it begins with the next row. One may be dropped.
- A value column may be added, dropped, or widened without loss. Keys never change.
- Whatever stays must be computed as before: the same name with another definition is refused.
- **A name that was dropped stays taken.** Old runs are not rewritten, so a column of that name would come back with
  values from before it was dropped for some keys, and without for others. The record remembers such names, in a
  property ``dropped.<state>``, which every later record and every savepoint carries on.
"""

from __future__ import annotations

import json
from typing import Any, Final

from stateline.checkpoint import Checkpoint, OperatorState
from stateline.errors import ErrorKind, InvalidInputError
from stateline.spark.plan import PipelinePlan
from stateline.state.schema import StateSchema, plan_evolution

__all__ = ["carried_properties", "check_evolution"]

_DROPPED: Final = "dropped."


def check_evolution(record: Checkpoint, stored: OperatorState, definition: str, schema: str) -> None:
    """Checks that the state of an operator can become what a program wants.

    Args:
        record: The newest one.
        stored: The operator's state in it.
        definition: What the program computes.
        schema: What it keeps, encoded.

    Raises:
        InvalidInputError: Of kind ``SCHEMA_MISMATCH``; shows what is stored and what is wanted.
        CorruptDataError: The record's schema cannot be read.
    """
    if (definition, schema) == (stored.definition, stored.schema):
        return
    _check_definition(stored.name, stored.definition, definition)
    old, new = StateSchema.decode(stored.schema), StateSchema.decode(schema)
    plan_evolution(old, new, stored.name)
    back = sorted(set(_dropped(record, stored.name)) & set(new.values.names))
    if back:
        raise _refused(
            stored.name,
            f"{', '.join(back)} was dropped before, and old rows still hold it; stored: {old}; wanted: {new}",
            "Give it another name",
        )


def carried_properties(plan: PipelinePlan, newest: Checkpoint | None) -> dict[str, str]:
    """The properties of the next record: which columns were ever dropped, by state."""
    if newest is None:
        return {}
    carried = {}
    for operator in plan.operators:
        for table, schema in operator.tables.items():
            name = operator.state_name(table)
            dropped = set(_dropped(newest, name))
            stored = newest.operator(name)
            if stored is not None and stored.schema != schema:
                old, new = StateSchema.decode(stored.schema), StateSchema.decode(schema)
                dropped |= set(old.values.names) - set(new.values.names)
            if dropped:
                carried[_DROPPED + name] = json.dumps(sorted(dropped))
    return carried


def _dropped(record: Checkpoint, name: str) -> list[str]:
    names: list[str] = json.loads(record.properties.get(_DROPPED + name, "[]"))
    return names


def _check_definition(name: str, stored: str, wanted: str) -> None:
    if stored == wanted:
        return
    old, new = _aggregations(stored), _aggregations(wanted)
    if old is None or new is None or old.keys() != new.keys() or old["keys"] != new["keys"]:
        raise _refused(name, f"it computes something else; stored: {stored}; wanted: {wanted}", _RESTORE)
    for column, text in new["aggregations"].items():
        if old["aggregations"].get(column, text) != text:
            reason = f"{column!r} changed its meaning; stored: {stored}; wanted: {wanted}"
            raise _refused(name, reason, "Give the new aggregation another name")
    rest = {key: value for key, value in old.items() if key not in ("keys", "aggregations")}
    if rest != {key: value for key, value in new.items() if key not in ("keys", "aggregations")}:
        raise _refused(name, f"it computes something else; stored: {stored}; wanted: {wanted}", _RESTORE)


_RESTORE: Final = "Start the program that made the checkpoint, or use a new root"


def _aggregations(definition: str) -> dict[str, Any] | None:
    """The definition of aggregations as a mapping; ``None`` for a definition of anything else."""
    try:
        parsed = json.loads(definition)
    except ValueError:
        return None
    if isinstance(parsed, dict) and isinstance(parsed.get("aggregations"), dict) and "keys" in parsed:
        return parsed
    return None


def _refused(name: str, reason: str, hint: str) -> InvalidInputError:
    return InvalidInputError(
        reason, operation="start", subject=f"operator {name!r}", hint=hint, kind=ErrorKind.SCHEMA_MISMATCH
    )
