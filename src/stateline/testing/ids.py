"""Identifiers that depend on a seed and a label: the same for the same two, others for any other two."""

from __future__ import annotations

import hashlib
import itertools
import uuid

__all__ = ["SeededIds"]


class SeededIds:
    """Version-4 UUIDs from a seed; satisfies :class:`stateline.environment.Ids`. Safe from any thread.

    Args:
        seed: The seed of the run.
        label: Who asks, such as the name of a simulated process.
    """

    def __init__(self, seed: int = 0, label: str = "") -> None:
        self._key = f"{seed}/{label}/".encode()
        self._counter = itertools.count()

    def new_uuid(self) -> uuid.UUID:
        """The next UUID."""
        return uuid.UUID(hex=self.new_id())

    def new_id(self) -> str:
        """The next UUID as 32 lower-case hexadecimal digits."""
        digits = hashlib.blake2b(self._key + b"%d" % next(self._counter), digest_size=16).hexdigest()
        return f"{digits[:12]}4{digits[13:16]}{'89ab'[int(digits[16], 16) & 3]}{digits[17:]}"
