"""An explicit-state model checker: every reachable state of a small model, breadth first, and the shortest bad story.

A model is three things: an initial state that can be hashed, a function from a state to its successors, and a function
that says what is wrong with a state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from stateline.errors import InvalidInputError

__all__ = ["Model", "Verdict", "check_model"]

S = TypeVar("S", bound=Hashable)

MAX_STATES: Final = 2_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Model(Generic[S]):
    """What is checked.

    Attributes:
        initial: Where everything begins.
        successors: Every step that any actor can take in a state, each with its name and the state after it.
        broken: What is wrong with a state, as an invariant's id and a sentence; ``None`` if nothing is.
        is_goal: Whether the work is done in a state: at least one such state must be reachable.
    """

    initial: S
    successors: Callable[[S], Iterable[tuple[str, S]]]
    broken: Callable[[S], tuple[str, str] | None]
    is_goal: Callable[[S], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a search found.

    Attributes:
        states: Different states seen.
        transitions: Steps tried.
        invariant: Which invariant broke; empty if none did.
        message: What is wrong.
        steps: The shortest story that leads there.
    """

    states: int
    transitions: int
    invariant: str = ""
    message: str = ""
    steps: tuple[str, ...] = ()


def check_model(model: Model[S], *, max_states: int = MAX_STATES) -> Verdict:
    """Looks at every reachable state.

    Args:
        model: The model.
        max_states: The bound of the search.

    Raises:
        InvalidInputError: The model has more states than that: nothing was proved.
    """
    came_from: dict[S, tuple[S, str] | None] = {model.initial: None}
    queue = deque([model.initial])
    transitions = 0
    reached = False
    while queue:
        state = queue.popleft()
        wrong = model.broken(state)
        if wrong is not None:
            return Verdict(
                states=len(came_from),
                transitions=transitions,
                invariant=wrong[0],
                message=wrong[1],
                steps=_story(state, came_from),
            )
        reached = reached or model.is_goal(state)
        for label, after in model.successors(state):
            transitions += 1
            if after not in came_from:
                came_from[after] = (state, label)
                queue.append(after)
        if len(came_from) > max_states:
            raise InvalidInputError(
                f"the model has more than {max_states} states", operation="check_model", hint="Raise max_states"
            )
    if not reached:
        return Verdict(states=len(came_from), transitions=transitions, invariant="H1", message="the work is never done")
    return Verdict(states=len(came_from), transitions=transitions)


def _story(state: S, came_from: dict[S, tuple[S, str] | None]) -> tuple[str, ...]:
    steps: list[str] = []
    while (origin := came_from[state]) is not None:
        state, label = origin
        steps.append(label)
    return tuple(reversed(steps))
