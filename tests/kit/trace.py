"""What happened in a run, in order: the evidence of a failure and the proof of determinism.

Two runs are the same run exactly if their digests are equal.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Trace", "TraceEntry"]


class TraceEntry(NamedTuple):
    """One thing that one actor did.

    Attributes:
        step: The scheduler's step in which it ended.
        actor: Who.
        operation: What, such as ``"publish"``; ``"fault"``, ``"kill"`` and the like for what was done to the actor.
        subject: On which object.
        outcome: ``"ok"``, the kind of the error, or the kind of the fault.
    """

    step: int
    actor: str
    operation: str
    subject: str
    outcome: str


@dataclass(slots=True)
class Trace:
    """The entries of one run."""

    entries: list[TraceEntry] = field(default_factory=list)

    def note(self, step: int, actor: str, operation: str, subject: str, outcome: str) -> None:
        """Appends an entry."""
        self.entries.append(TraceEntry(step, actor, operation, subject, outcome))

    def digest(self) -> str:
        """A hash of all entries: 32 hexadecimal digits."""
        state = hashlib.blake2b(digest_size=16)
        for entry in self.entries:
            state.update("\x1f".join(map(str, entry)).encode() + b"\x1e")
        return state.hexdigest()

    def render(self, newest: int | None = None) -> str:
        """One line per entry, only the ``newest`` where given."""
        shown = self.entries if newest is None else self.entries[-newest:] if newest else []
        return "\n".join(
            f"{entry.step:>5}  {entry.actor:<14} {entry.operation:<14} {entry.outcome:<16} {entry.subject}"
            for entry in shown
        )
