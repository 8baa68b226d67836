"""What a careful caller does with an unknown outcome: repeat the same call.

Every write of a store may be repeated; a repeated call that succeeds proves the outcome. A repeated call that is
refused proves nothing: that one had no effect, but the one before may have had.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final, TypeVar

from stateline.errors import AccessDeniedError, OutcomeUnknownError, StorageFullError, UnavailableError

__all__ = ["certain"]

T = TypeVar("T")

_ATTEMPTS: Final = 3


def certain(call: Callable[[], T]) -> T:
    """Repeats ``call`` while its outcome is unknown.

    Raises:
        OutcomeUnknownError: It still is, after three attempts.
    """
    try:
        return call()
    except OutcomeUnknownError as unknown:
        for _ in range(_ATTEMPTS - 1):
            with contextlib.suppress(OutcomeUnknownError, UnavailableError, AccessDeniedError, StorageFullError):
                return call()
        raise unknown
