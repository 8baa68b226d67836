"""Exhaustive sweeps over publish, retain and latest: single faults, pairs, held-back requests, zombies, two drivers.

Each sweep is a generator that yields once per run and raises :class:`ViolationError` on the first bad one. So a test of
the real code exhausts it and a test with a planted bug stops where it is caught.
"""

import contextlib
from collections.abc import Iterator
from itertools import product

from checkpoint_world import NUM_RETAINED, Died, Driver, Paused, World

from stateline.errors import OutcomeUnknownError, StatelineError, UnavailableError

UNTIL = 8
"""Checkpoints 0 to 8: with two ids a block and two retained, three blocks are closed and freed."""

CHANGES = ("put", "put_if_absent", "delete")


class FaultAt:
    """Fails the calls with the given numbers in the given way, counting from 0."""

    def __init__(self, faults: dict[int, str]) -> None:
        self.faults, self.calls = faults, 0

    def __call__(self, operation, names, effect):
        number, self.calls = self.calls, self.calls + 1
        fault = self.faults.get(number)
        if fault is None:
            return effect()
        if fault.endswith("after"):
            effect()
        if fault.startswith("die"):
            raise Died
        if fault == "unknown after" or (fault == "unknown before" and operation in CHANGES):
            raise OutcomeUnknownError("the answer was lost", operation=operation)
        raise UnavailableError("the store is away", operation=operation)


FAULTS = ("fail before", "unknown before", "unknown after", "die before", "die after")


def _calls_of_a_clean_run() -> int:
    counter = FaultAt({})
    with TemporaryWorld() as world:
        Driver(world, counter).run(UNTIL)
        world.check_end(NUM_RETAINED)
    return counter.calls


class TemporaryWorld(World):
    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


def _restarted_until_the_end(world: World, until: int = UNTIL) -> None:
    Driver(world).run_stubbornly(until)
    world.check_end(NUM_RETAINED)


def single_faults() -> Iterator[None]:
    """Each store call fails in each way; then the driver restarts."""
    for number, fault in product(range(_calls_of_a_clean_run()), FAULTS):
        with TemporaryWorld() as world:
            Driver(world, FaultAt({number: fault})).run_stubbornly(UNTIL)
            _restarted_until_the_end(world)
        yield


def fewer_retained() -> Iterator[None]:
    """A driver that retains fewer checkpoints takes over, so that it retires several at once; each call fails."""
    number = 0
    while True:
        for fault in FAULTS:
            with TemporaryWorld() as world:
                Driver(world, retain=4).run(5)
                faulty = FaultAt({number: fault})
                Driver(world, faulty, retain=1).run_stubbornly(6)
                Driver(world, retain=1).run_stubbornly(7)
                world.check_end(1)
            yield
        if faulty.calls <= number:
            return
        number += 1


def pairs_of_faults() -> Iterator[None]:
    """Two deaths, the second soon after the first: faults of the way back."""
    for number, distance in product(range(_calls_of_a_clean_run()), (1, 2, 3, 5, 8)):
        for first, second in product(("die before", "die after"), repeat=2):
            with TemporaryWorld() as world:
                Driver(world, FaultAt({number: first, number + distance: second})).run_stubbornly(UNTIL)
                _restarted_until_the_end(world)
            yield


def failing_for_ever() -> Iterator[None]:
    """From some call on, one kind of request never works again; then another driver with other rights takes over."""
    for number, operation in product(range(0, _calls_of_a_clean_run(), 3), CHANGES):

        class Broken:
            calls = 0

            def __call__(self, kind, names, effect, number=number, operation=operation):
                self.calls += 1
                if kind == operation and self.calls > number:
                    raise UnavailableError("never again", operation=kind)
                return effect()

        with TemporaryWorld() as world:
            driver = Driver(world, Broken())
            for _ in range(3):
                try:
                    driver.run(UNTIL)
                except StatelineError:
                    continue
            _restarted_until_the_end(world)
        yield


def held_back_requests() -> Iterator[None]:
    """A change is sent, the driver dies or gets its answer, and the request lands (again) much later."""
    for number, later, duplicate in product(range(_calls_of_a_clean_run()), (0, 1, 2, 5, 8), (False, True)):
        held = []

        class HoldBack:
            calls = 0

            def __call__(self, operation, names, effect, number=number, duplicate=duplicate, held=held):
                self.calls += 1
                if self.calls - 1 != number or operation not in CHANGES:
                    return effect()
                held.append((names, effect))
                if duplicate:
                    return effect()
                raise Died

        with TemporaryWorld() as world:
            driver = Driver(world, HoldBack())
            base = max(UNTIL - later, 0)
            try:
                driver.run(base)
            except Died:
                Driver(world).run_stubbornly(base)
            successor = Driver(world)
            successor.run_stubbornly(UNTIL)
            for names, effect in held:
                _land(world, names, effect)
            _restarted_until_the_end(world, UNTIL + 1)
            for names, effect in held:
                _land(world, names, effect)
            _restarted_until_the_end(world, UNTIL + 2 + 2 * later)
        yield


def _land(world: World, names: tuple[str, ...], effect) -> None:
    world.tolerated_garbage.update(names)
    with contextlib.suppress(StatelineError):
        effect()
    world.check_readers()


def zombies() -> Iterator[None]:
    """A driver stops before each of its calls, its successor works on, the stopped one wakes and finishes its work."""
    for retained, ahead in product((1, NUM_RETAINED, 3), (1, 2, 5)):
        number = 0
        while True:
            with TemporaryWorld() as world:
                Driver(world).run(2)
                zombie = Paused(world, lambda driver: driver.run(5))
                zombie.run(number)
                ended = zombie.done
                Driver(world, retain=retained).run_stubbornly(world.newest_acknowledged + ahead)
                zombie.run()
                world.check_readers()
                _restarted_until_the_end(world, max(world.decided) + 1)
            yield
            if ended:
                break
            number += 1


def two_drivers() -> Iterator[None]:
    """Every schedule of two drivers with up to three switches: A to i, B to j, A to its end, B to its end."""
    for first in range(10_000):
        second = 0
        while True:
            with TemporaryWorld() as world:
                Driver(world).run(3)
                a = Paused(world, lambda driver: driver.run(5))
                b = Paused(world, lambda driver: driver.run(7))
                a.run(first)
                a_ended = a.done
                b.run(second)
                b_ended = b.done
                a.run()
                b.run()
                _restarted_until_the_end(world, max(world.decided) + 1)
            yield
            if b_ended:
                break
            second += 1
        if a_ended:
            return


def stale_listings() -> Iterator[None]:
    """A driver starts while the listing does not show some of the newest names yet, after each call of another."""
    calls = _calls_of_a_clean_run()
    for number, hidden in product(range(calls), (1, 2, 3)):
        with TemporaryWorld() as world:
            with contextlib.suppress(Died):
                Driver(world, FaultAt({number: "die after"})).run(UNTIL)
            newest = world.newest_acknowledged
            names = {f"chk-{newest - back}/_metadata" for back in range(hidden)}
            if newest >= hidden:
                Driver(world, visible=lambda name, names=names: name not in names).run_stubbornly(UNTIL)
            _restarted_until_the_end(world)
        yield


SWEEPS = {
    sweep.__name__: sweep
    for sweep in (
        single_faults,
        fewer_retained,
        pairs_of_faults,
        failing_for_ever,
        held_back_requests,
        zombies,
        two_drivers,
        stale_listings,
    )
}
