"""A changed program over stored state: what may be computed differently. Pure.

Owns the rules for definitions. Does not own the rules for columns (``stateline.state.evolution``).

Rules:
- An aggregation may be added: for old keys it begins with the next row. One may be dropped.
- Whatever stays must be computed as before: the same name with another definition is refused.
- A user's own function may change as it likes: what it keeps is what counts.
"""

from __future__ import annotations

import json
from typing import Any, Final

from stateline.errors import ErrorKind, InvalidInputError

__all__ = ["check_definition"]


def check_definition(name: str, stored: str, wanted: str) -> None:
    """Checks that an operator goes on computing what it has stored.

    Args:
        name: The operator's state, for errors.
        stored: The definition in the newest record.
        wanted: The program's.

    Raises:
        InvalidInputError: Of kind ``SCHEMA_MISMATCH``; shows what is stored and what is wanted.
    """
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
