"""A lock file between the processes of a host, for what is best effort: whoever waits for too long goes without.

Owns the waiting. Does not own what the lock protects.

A lock ends with its process. One that is stopped keeps it, so nobody waits without a bound.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from stateline.environment import Clock

__all__ = ["held_lock"]

_POLL_SECONDS: Final = 0.01


@contextmanager
def held_lock(path: str | os.PathLike[str], seconds: float, clock: Clock) -> Iterator[bool]:
    """Holds the lock file, and yields whether it does: not where somebody else kept it for so many seconds.

    Args:
        path: The file; it is made, and stays.
        seconds: How long to wait.
        clock: Of the environment.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        yield _lock(descriptor, seconds, clock)
    finally:
        os.close(descriptor)


def _lock(descriptor: int, seconds: float, clock: Clock) -> bool:
    """Asks again and again: nothing tells that a lock is free."""
    deadline = clock.monotonic() + seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if clock.monotonic() >= deadline:
                return False
            clock.sleep(_POLL_SECONDS)
        else:
            return True
