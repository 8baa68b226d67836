"""The micro-batch commit protocol as a model: two drivers, retention, an engine's log, a consumer that moves files.

Abstractions: one file and one piece per batch and attempt; an attempt is known by its driver; one slot per floor block;
one checkpoint is retained; a crash loses a driver's memory and starts it again, and may happen between any two steps.
Both drivers run at the same time, so each is the other's zombie.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Final, NamedTuple

from tests.kit.model_checker import Model

__all__ = ["NOBODY", "TOMBSTONE", "Driver", "State", "Variant", "commit_model"]


class Variant(StrEnum):
    """How the protocol is broken. Each must fail."""

    PLAIN_PUT = "plain_put"
    LOSER_GOES_ON = "loser_goes_on"
    NO_ADOPTION = "no_adoption"
    NO_FLOOR_READ = "no_floor_read"
    SLOT_FREED_WITHOUT_FLOOR = "slot_freed_without_floor"
    PUBLISH_BEFORE_RECORD = "publish_before_record"
    MARK_BEFORE_PUBLISH = "mark_before_publish"
    CLEAN_AFTER_ACKNOWLEDGEMENT = "clean_after_acknowledgement"
    ABORT_DELETES = "abort_deletes"
    START_WITHOUT_FINISHING = "start_without_finishing"


TOMBSTONE: Final = -1
NOBODY: Final = -2

_ORDER: Final = ("create", "floor", "publish", "discard", "mark", "retire", "raise", "free", "log")
_EARLY: Final = ("publish", "create", "floor", "discard", "mark", "retire", "raise", "free", "log")
_MARK_FIRST: Final = ("create", "floor", "mark", "publish", "discard", "retire", "raise", "free", "log")
_LAZY: Final = ("create", "floor", "publish", "mark", "retire", "raise", "free", "log", "discard")


class Driver(NamedTuple):
    """What a driver remembers.

    Attributes:
        step: What it does next; ``idle``, ``stopped``, or ``lost`` (it found neither file nor piece).
        batch: The batch it works on.
        attempt: Whose pieces it publishes.
        starting: It only finishes the newest record.
        known: The newest decided batch that it knows of: from its start, or its own.
    """

    step: str = "idle"
    batch: int = 0
    attempt: int = NOBODY
    starting: bool = True
    known: int = -1


class State(NamedTuple):
    """Everything durable, and the memory of both drivers."""

    drivers: tuple[Driver, ...]
    records: tuple[int, ...]
    staged: frozenset[tuple[int, int]]
    visible: tuple[int, ...]
    published: tuple[tuple[int, ...], ...]
    marked: frozenset[int]
    decided: tuple[tuple[int, ...], ...]
    floor: int
    log: int
    crashes: int


def commit_model(variant: Variant | None = None, *, batches: int = 3, crashes: int = 1) -> Model[State]:
    """The protocol, or a broken form of it.

    Args:
        variant: What is wrong; nothing by default.
        batches: Batches until the work is done.
        crashes: How many crashes there are at most, of either driver.
    """
    empty: tuple[tuple[int, ...], ...] = ((),) * batches
    initial = State(
        (Driver(), Driver()),
        (NOBODY,) * batches,
        frozenset(),
        (NOBODY,) * batches,
        empty,
        frozenset(),
        empty,
        0,
        -1,
        crashes,
    )
    protocol = _Protocol(variant, batches)
    return Model(
        initial=initial,
        successors=protocol.successors,
        broken=_broken,
        is_goal=lambda state: state.log == batches - 1,
    )


class _Protocol:
    """The steps. Every method that is named after a step returns the state after it."""

    def __init__(self, variant: Variant | None, batches: int) -> None:
        self._variant = variant
        self._batches = batches
        self._order = {
            Variant.PUBLISH_BEFORE_RECORD: _EARLY,
            Variant.MARK_BEFORE_PUBLISH: _MARK_FIRST,
            Variant.CLEAN_AFTER_ACKNOWLEDGEMENT: _LAZY,
        }.get(variant or Variant.PLAIN_PUT, _ORDER)

    def successors(self, state: State) -> Iterator[tuple[str, State]]:
        """Every step of either driver, every crash, every move of the consumer."""
        for number, driver in enumerate(state.drivers):
            name = "AB"[number]
            if driver.step == "stopped":
                yield f"{name}: is started again", self._with(state, number, Driver())
            elif driver.step != "lost":
                label, after = self._step(state, number, driver)
                if after is not None:
                    yield f"{name}: {label}", after
            if state.crashes and driver != Driver():
                yield f"{name}: dies and starts again", self._crash(state, number, driver)
        for batch in range(self._batches):
            if state.visible[batch] != NOBODY and batch in state.marked:
                yield (
                    f"the consumer moves file {batch} away",
                    state._replace(visible=_put(state.visible, batch, NOBODY)),
                )

    def _crash(self, state: State, number: int, driver: Driver) -> State:
        staged = state.staged
        if self._variant is Variant.ABORT_DELETES:
            staged = staged - {(driver.batch, number)}
        return self._with(state, number, Driver())._replace(crashes=state.crashes - 1, staged=staged)

    def _step(self, state: State, number: int, driver: Driver) -> tuple[str, State | None]:
        if driver.step == "idle":
            return self._begin(state, number, driver)
        action = getattr(self, f"_{driver.step}")
        return f"{driver.step} {driver.batch}", action(state, number, driver)

    def _begin(self, state: State, number: int, driver: Driver) -> tuple[str, State | None]:
        newest = max((batch for batch, by in enumerate(state.records) if by >= 0 and batch >= state.floor), default=-1)
        if driver.starting:
            unfinished = newest >= 0 and newest not in state.marked
            if unfinished and self._variant is not Variant.START_WITHOUT_FINISHING:
                return f"starts, finds {newest}", self._finish(state, number, newest, starting=True)
            return f"starts after {newest}", self._with(state, number, Driver(starting=False, known=newest))
        batch = state.log + 1
        if batch >= self._batches:
            return "is done", None
        if batch <= driver.known and self._variant is not Variant.NO_ADOPTION:
            return f"finds {batch} decided", self._with(
                state, number, Driver("log", batch, NOBODY, False, driver.known)
            )
        staged = state.staged | {(batch, number)}
        return f"stages {batch}", self._with(
            state._replace(staged=staged), number, Driver(self._order[0], batch, number, False, driver.known)
        )

    def _finish(self, state: State, number: int, batch: int, *, starting: bool) -> State:
        first = "mark" if self._variant is Variant.MARK_BEFORE_PUBLISH else "publish"
        return self._with(state, number, Driver(first, batch, state.records[batch], starting, batch))

    def _create(self, state: State, number: int, driver: Driver) -> State:
        batch = driver.batch
        if state.records[batch] != NOBODY and self._variant not in (Variant.PLAIN_PUT, Variant.NO_ADOPTION):
            if self._variant is Variant.LOSER_GOES_ON:
                return self._next(state, number, driver)
            return self._with(state, number, driver._replace(step="stopped"))
        decided = state.decided
        if batch >= state.floor and number not in decided[batch]:
            decided = _put(decided, batch, (*decided[batch], number))
        return self._next(state._replace(records=_put(state.records, batch, number), decided=decided), number, driver)

    def _floor(self, state: State, number: int, driver: Driver) -> State:
        if driver.batch < state.floor and self._variant is not Variant.NO_FLOOR_READ:
            return self._with(state, number, driver._replace(step="stopped"))
        return self._next(state, number, driver)

    def _publish(self, state: State, number: int, driver: Driver) -> State:
        batch, attempt = driver.batch, driver.attempt
        if state.visible[batch] == attempt:
            return self._next(state, number, driver)
        if state.visible[batch] != NOBODY:
            return self._with(state, number, driver._replace(step="stopped"))
        if (batch, attempt) not in state.staged:
            step = "stopped" if batch in state.marked else "lost"
            return self._with(state, number, driver._replace(step=step))
        published = _put(state.published, batch, (*state.published[batch], attempt))
        visible = _put(state.visible, batch, attempt)
        return self._next(state._replace(visible=visible, published=published), number, driver)

    def _discard(self, state: State, number: int, driver: Driver) -> State:
        return self._next(state._replace(staged=state.staged - {(driver.batch, driver.attempt)}), number, driver)

    def _mark(self, state: State, number: int, driver: Driver) -> State:
        return self._next(state._replace(marked=state.marked | {driver.batch}), number, driver)

    def _retire(self, state: State, number: int, driver: Driver) -> State:
        old = driver.batch - 1
        if old < 0 or state.records[old] < 0:
            return self._next(state, number, driver)
        return self._next(state._replace(records=_put(state.records, old, TOMBSTONE)), number, driver)

    def _raise(self, state: State, number: int, driver: Driver) -> State:
        if self._variant is Variant.SLOT_FREED_WITHOUT_FLOOR:
            return self._next(state, number, driver)
        return self._next(state._replace(floor=max(state.floor, driver.batch)), number, driver)

    def _free(self, state: State, number: int, driver: Driver) -> State:
        old = driver.batch - 1
        if old < 0:
            return self._next(state, number, driver)
        return self._next(state._replace(records=_put(state.records, old, NOBODY)), number, driver)

    def _log(self, state: State, number: int, driver: Driver) -> State:
        return self._next(state._replace(log=max(state.log, driver.batch)), number, driver)

    def _next(self, state: State, number: int, driver: Driver) -> State:
        """After a step: the next of the order; who only starts ends after the mark."""
        place = self._order.index(driver.step) + 1
        last = "discard" if self._variant is Variant.MARK_BEFORE_PUBLISH else "mark"
        ended = place == len(self._order) or (driver.starting and driver.step == last)
        if driver.step == "log" and driver.attempt == NOBODY:
            ended = True
        step = (
            Driver(starting=False, known=max(driver.known, driver.batch))
            if ended
            else driver._replace(step=self._order[place])
        )
        return self._with(state, number, step)

    def _with(self, state: State, number: int, driver: Driver) -> State:
        return state._replace(drivers=_put(state.drivers, number, driver))


def _broken(state: State) -> tuple[str, str] | None:
    for driver in state.drivers:
        if driver.step == "lost":
            return "F2", f"neither the file nor the piece of batch {driver.batch} exists, and nobody has published it"
    for batch, attempts in enumerate(state.published):
        if len(attempts) > 1:
            return "C1", f"batch {batch} was published {len(attempts)} times"
        if len(state.decided[batch]) > 1:
            return "C3", f"batch {batch} was decided twice"
        if any(attempt not in state.decided[batch] for attempt in attempts):
            return "C2", f"a file of batch {batch} is visible that no record decides"
        if batch <= state.log and not attempts:
            return "C1", f"batch {batch} is acknowledged and was never published"
    return None


def _put(items: tuple, place: int, item: object) -> tuple:  # type: ignore[type-arg]
    """The tuple with one item replaced."""
    return (*items[:place], item, *items[place + 1 :])
