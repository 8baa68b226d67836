"""Actors that take turns: ordinary blocking code, interleaved in a chosen order.

Each actor is a greenlet: it runs on the caller's thread until it reaches a switch point (a store call, a wait, a
hand-off to an executor, a sleep), where control goes back to the scheduler. Nothing else can interrupt it, so a run is
a function of the order chosen. ``docs/decisions/0018-greenlets.md`` says why greenlets and not threads.

Rules:
- Actors that die together (one simulated process) share a :class:`Group`. A dead group's code is unwound by
  :class:`ActorKilled`; every switch point it meets on its way raises it again, so it has no further effect.
- Code outside any actor may wait, too: the scheduler then runs the others until the wait is over.
- An actor that blocks on a real lock or event blocks the whole world. Wait on a ``Monitor``.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection
from enum import Enum
from typing import Any, Final

import greenlet

from stateline.errors import InternalError
from stateline.testing.clock import ManualClock
from stateline.testing.faults import ActorKilled
from tests.kit.invariants import InvariantViolation
from tests.kit.trace import Trace

__all__ = ["Actor", "Group", "Scheduler", "Status"]

MAX_STEPS: Final = 200_000
"""Steps after which a run counts as a livelock."""


class Status(Enum):
    """Where an actor stands."""

    RUNNABLE = "runnable"
    FINISHED = "finished"
    FAILED = "failed"
    KILLED = "killed"


class Group:
    """What dies together: the threads of one simulated process.

    Attributes:
        name: For people and traces.
        family: The process on whose behalf it works (its driver), itself where there is none. A family freezes and
            thaws together and takes turns together; each member dies alone.
        dead: It was killed.
        frozen: It was stopped; asked of the family.
    """

    __slots__ = ("dead", "family", "frozen", "name")

    def __init__(self, name: str, parent: Group | None = None) -> None:
        self.name = name
        self.family: Group = parent.family if parent else self
        self.dead = False
        self.frozen = False


class Actor:
    """One thread of a simulated process.

    Attributes:
        name: For people and traces.
        group: What it dies with.
        status: Where it stands.
        result: What its function returned.
        error: What its function raised.
    """

    __slots__ = ("due", "error", "fiber", "function", "group", "name", "predicate", "result", "status")

    def __init__(self, name: str, group: Group, function: Callable[[], Any]) -> None:
        self.name = name
        self.group = group
        self.function = function
        self.status = Status.RUNNABLE
        self.result: Any = None
        self.error: Exception | None = None
        self.predicate: Callable[[], bool] | None = None
        self.due: float | None = None
        self.fiber: Any = None

    def __repr__(self) -> str:
        return f"Actor({self.name!r}, {self.status.value})"


class Scheduler:
    """Runs actors one at a time. Use it from one thread.

    Args:
        clock: Virtual time; advanced when every actor waits.
        trace: Where kills and the like are noted.
    """

    def __init__(self, clock: ManualClock | None = None, trace: Trace | None = None) -> None:
        self.clock = clock or ManualClock()
        self.trace = trace or Trace()
        self.actors: list[Actor] = []
        self.steps = 0
        self._hub = greenlet.getcurrent()
        self._current: Actor | None = None
        self._last: Actor | None = None
        self._closed = False
        self._doomed = False

    @property
    def current(self) -> Actor | None:
        """The actor whose code is running; ``None`` outside of any."""
        return self._current

    # -- life and death ---------------------------------------------------------------------------------------------

    def spawn(self, name: str, function: Callable[[], Any], group: Group | None = None) -> Actor:
        """A new actor that will call ``function()``; it starts when it is first chosen."""
        self._check_alive()
        actor = Actor(name, group or Group(name), function)
        actor.fiber = greenlet.greenlet(lambda: self._body(actor), parent=self._hub)
        self.actors.append(actor)
        return actor

    def kill(self, group: Group) -> None:
        """Ends a group as ``kill -9`` does: its code has no further effect. Raises in the killed actor itself.

        Raises:
            ActorKilled: The caller belongs to ``group``.
        """
        if not group.dead:
            group.dead = self._doomed = True
            self.trace.note(self.steps, group.name, "kill", "", "killed")
        if self._current is None:
            self._reap()
        elif self._current.group is group:
            raise ActorKilled(group.name)

    def freeze(self, group: Group) -> None:
        """Stops a family as SIGSTOP does: it is not chosen until it thaws."""
        group.family.frozen = True
        self.trace.note(self.steps, group.name, "freeze", "", "frozen")

    def thaw(self, group: Group) -> None:
        """Undoes :meth:`freeze`."""
        group.family.frozen = False
        self.trace.note(self.steps, group.name, "thaw", "", "thawed")

    def close(self) -> None:
        """Kills every actor. Idempotent; call it from outside any actor."""
        self._closed = True
        for actor in self.actors:
            actor.group.dead = True
        self._reap()

    # -- switch points ----------------------------------------------------------------------------------------------

    def pause(self) -> None:
        """A switch point: others may run before this returns. Does nothing outside of any actor.

        Raises:
            ActorKilled: The actor's group is dead.
        """
        actor = self._current
        if actor is None:
            return
        if actor.group.dead:
            raise ActorKilled(actor.group.name)
        self._hub.switch()
        if actor.group.dead:
            raise ActorKilled(actor.group.name)

    def wait(self, predicate: Callable[[], bool], timeout_seconds: float | None = None) -> bool:
        """A switch point that lasts until ``predicate()`` holds or virtual time is up; returns its last value.

        Raises:
            ActorKilled: The actor's group is dead.
            InvariantViolation: H1, outside of any actor: nothing can ever make the predicate true.
        """
        due = None if timeout_seconds is None else self.clock.monotonic() + timeout_seconds
        actor = self._current
        if actor is None:
            return self._wait_outside(predicate, due)
        actor.predicate, actor.due = predicate, due
        try:
            self.pause()
            return predicate()
        finally:
            actor.predicate = actor.due = None

    # -- running ----------------------------------------------------------------------------------------------------

    def ready(self) -> list[Actor]:
        """The actors that could run now, in the order of their birth."""
        now = self.clock.monotonic()
        return [actor for actor in self.actors if self._is_ready(actor, now)]

    def resume(self, actor: Actor) -> None:
        """Runs one actor to its next switch point."""
        self._current = self._last = actor
        self.steps += 1
        try:
            actor.fiber.switch()
        finally:
            self._current = None
        if self._doomed or actor.status is not Status.RUNNABLE:
            self._reap()

    def run(
        self,
        *,
        only: Collection[Group] | None = None,
        until: Callable[[], bool] | None = None,
        deadline: float | None = None,
        max_steps: int = MAX_STEPS,
    ) -> None:
        """Runs actors until ``until()`` holds, or none can go on even if virtual time passes.

        The actor that ran last goes on as long as it can; after it, the oldest that is ready.

        Args:
            only: Runs only the actors of these families.
            until: Asked before each step.
            deadline: Virtual monotonic time beyond which nobody is waited for.
            max_steps: Steps before this counts as a livelock.

        Raises:
            InvariantViolation: H1, after ``max_steps`` steps.
        """
        for _ in range(max_steps):
            if until is not None and until():
                return
            ready = self.ready()
            if only is not None:
                ready = [actor for actor in ready if actor.group.family in only]
            if ready:
                self.resume(self._last if self._last in ready else ready[0])
            elif not self.advance_to_next_due(only, deadline):
                return
        raise InvariantViolation("H1", f"no end after {max_steps} steps\n{self.report()}")

    def advance_to_next_due(self, only: Collection[Group] | None = None, deadline: float | None = None) -> bool:
        """Lets time pass until the first sleeper or timer is due; ``False`` where nobody is, before ``deadline``."""
        dues = [
            actor.due
            for actor in self.actors
            if actor.due is not None
            and actor.status is Status.RUNNABLE
            and not (actor.group.dead or actor.group.family.frozen)
            and (only is None or actor.group.family in only)
        ]
        if not dues or (deadline is not None and min(dues) > deadline):
            return False
        self.clock.advance(max(min(dues) - self.clock.monotonic(), 0.0))
        return True

    def report(self) -> str:
        """What every living actor is doing, and where its code stands: what to read after a deadlock."""
        lines = []
        for actor in self.actors:
            if actor.status is not Status.RUNNABLE or actor.group.dead:
                continue
            state = "frozen" if actor.group.family.frozen else "waiting" if actor.predicate else "runnable"
            lines.append(f"{actor.name} ({state})")
            frame = actor.fiber.gr_frame
            if frame is not None:
                lines.extend(
                    f"    {entry.name} at {entry.filename.rpartition('/')[2]}:{entry.lineno}"
                    for entry in traceback.extract_stack(frame)[-4:]
                )
        return "\n".join(lines) or "no living actor"

    # -- inside -----------------------------------------------------------------------------------------------------

    def _body(self, actor: Actor) -> None:
        try:
            actor.result = actor.function()
            actor.status = Status.FINISHED
        except ActorKilled:
            actor.status = Status.KILLED
        except InvariantViolation:
            actor.status = Status.FAILED
            raise
        except Exception as error:
            actor.status = Status.KILLED if actor.group.dead else Status.FAILED
            actor.error = error

    def _is_ready(self, actor: Actor, now: float) -> bool:
        if actor.status is not Status.RUNNABLE or actor.group.dead or actor.group.family.frozen:
            return False
        if actor.predicate is None or (actor.due is not None and now >= actor.due):
            return True
        return actor.predicate()

    def _wait_outside(self, predicate: Callable[[], bool], due: float | None) -> bool:
        if greenlet.getcurrent() is not self._hub:
            raise InternalError("a wait outside of the scheduler's own thread", operation="wait")
        self.run(until=lambda: predicate() or (due is not None and self.clock.monotonic() >= due), deadline=due)
        if predicate():
            return True
        if due is None:
            raise InvariantViolation("H1", f"deadlock: everybody waits\n{self.report()}")
        self.clock.advance(max(due - self.clock.monotonic(), 0.0))
        return predicate()

    def _reap(self) -> None:
        """Unwinds the actors of dead groups and forgets everyone who has ended."""
        self._doomed = False
        for actor in self.actors:
            if actor.group.dead and actor.status is Status.RUNNABLE:
                self._unwind(actor)
        self.actors = [actor for actor in self.actors if actor.status is Status.RUNNABLE]

    def _unwind(self, actor: Actor) -> None:
        if not actor.fiber:  # Never started: there is nothing to unwind.
            actor.status = Status.KILLED
            return
        self._current = actor
        try:
            actor.fiber.throw(ActorKilled(actor.group.name))
        finally:
            self._current = None
            actor.status = Status.KILLED

    def _check_alive(self) -> None:
        if self._closed or (self._current is not None and self._current.group.dead):
            raise ActorKilled("spawn")
