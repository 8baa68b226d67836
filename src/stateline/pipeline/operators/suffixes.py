"""What columns are called that come out beside those of a stream."""

from __future__ import annotations

from collections.abc import Iterable

from stateline.errors import ErrorKind, InvalidInputError
from stateline.options import check_text

__all__ = ["names_beside"]


def names_beside(taken: Iterable[str], names: Iterable[str], suffix: str, operation: str) -> list[str]:
    """Names of columns from elsewhere, with the suffix where one is taken. Upper and lower case are not told apart.

    Args:
        taken: The names that are there.
        names: The columns, each by its own name.
        suffix: What the user says.
        operation: The user's call.

    Raises:
        InvalidInputError: A name is taken, with the suffix too.
    """
    check_text(suffix, "suffix")
    known = {name.lower() for name in taken}
    made = []
    for name in names:
        named = name + suffix if name.lower() in known else name
        if named.lower() in known:
            raise InvalidInputError(
                f"column {name!r} of the right side cannot be called {named!r}, which is taken",
                operation=operation,
                subject="suffix",
                hint="Give another suffix=, or rename one of the two columns",
                kind=ErrorKind.SCHEMA_MISMATCH,
            )
        known.add(named.lower())
        made.append(named)
    return made
