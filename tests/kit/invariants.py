"""The promises of the house by their ids, and the error of an oracle that saw one broken."""

from __future__ import annotations

from typing import Final

__all__ = ["INVARIANTS", "InvariantViolation", "require"]

INVARIANTS: Final = {
    "A1": "create-if-absent has at most one winner per name, and what it created never changes",
    "A2": "a call that returned has happened, a call that failed has not, and unknown is said to be unknown",
    "A3": "a name is read whole or not at all",
    "A4": "what a store acknowledged survives power loss",
    "A5": "no call leaves the root or overwrites somebody else's object",
    "B1": "recovery after persist gives exactly the bytes persisted",
    "B2": "a commit is all or nothing",
    "B3": "a commit may be repeated, by any process, any number of times, at once",
    "B4": "success means that the content was verified, not the name or the length",
    "B5": "a commit that has lost its data says so",
    "B6": "what one version wrote, every later one reads; what is unknown is refused",
    "C1": "finals hold the rows of the committed batches, each once",
    "C2": "nothing of an undecided batch is visible",
    "C3": "a decision never changes, and whoever publishes, publishes it",
    "C4": "finals are created, never overwritten",
    "C5": "the pieces of a batch are gone before its commit is acknowledged",
    "C6": "abort removes nothing that a decision names",
    "C7": "empty partitions and empty batches commit and replay",
    "D1": "a restore is the fold of the acknowledged changes, in order",
    "D2": "sequence numbers have no gap, no repeat and no regress",
    "D3": "a change is wholly in or wholly out",
    "D4": "what a snapshot was handed stays until it is confirmed or aborted",
    "D5": "discarding a late duplicate never touches the winner",
    "D6": "bytes in flight are bounded, and whoever waits for room is woken",
    "E1": "materialised state and the changes after it equal the model",
    "E2": "a failed materialisation changes nothing",
    "E3": "each key group is restored by exactly one subtask",
    "E4": "a crash between materialise, truncate and snapshot restores",
    "E5": "a restore of a restore changes nothing",
    "E6": "an append-only table holds exactly the rows that were appended and have not expired",
    "E7": "the changes from one retained checkpoint to another, applied to the state at the first, give the second",
    "F1": "a record appears last and at once, and what it names is readable",
    "F2": "nothing that a retained record reaches is deleted",
    "F3": "retention frees no slot that still fences",
    "F4": "inline state round-trips at the threshold and around it",
    "F5": "the newest valid checkpoint is chosen, and a damaged one is never passed over in silence",
    "G1": "once a successor has decided, its predecessor changes nothing that readers see",
    "G2": "claims and floors only grow",
    "G3": "safety depends on no wall clock, lease or order of a listing",
    "H1": "once faults stop, the work is finished",
    "H2": "orphans are bounded, and one sweep leaves none",
    "H3": "memory, threads and file handles are bounded",
    "H4": "a fault surfaces as a typed error that names the operation and the object",
}
"""One sentence per id. The letters are the layers: store, writer, sink, changelog, state, checkpoint, fence, life."""


class InvariantViolation(AssertionError):  # noqa: N818 - the established word
    """An oracle saw a promise broken.

    Attributes:
        invariant: A key of :data:`INVARIANTS`.
        message: What was seen.
    """

    def __init__(self, invariant: str, message: str) -> None:
        self.invariant = invariant
        self.message = message
        super().__init__(f"{invariant} ({INVARIANTS[invariant]}): {message}")


def require(condition: bool, invariant: str, message: str) -> None:
    """Raises unless ``condition`` holds.

    Raises:
        InvariantViolation: With ``invariant`` and ``message``.
    """
    if not condition:
        raise InvariantViolation(invariant, message)
