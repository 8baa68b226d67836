"""What a careful caller does with an unknown outcome: repeat the same call.

Owns that one rule for the scenarios and the reference system. Every write of a store may be repeated; a repeated call
that succeeds proves the outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from stateline.errors import OutcomeUnknownError

__all__ = ["certain"]

T = TypeVar("T")

_ATTEMPTS: Final = 3


def certain(call: Callable[[], T]) -> T:
    """Repeats ``call`` while its outcome is unknown.

    Raises:
        OutcomeUnknownError: It still is, after three attempts.
    """
    for _ in range(_ATTEMPTS - 1):
        try:
            return call()
        except OutcomeUnknownError:
            continue
    return call()
