"""Actors take turns as they are told, die, freeze, wait, and a deadlock is told."""

import pytest

from stateline.testing import ActorKilled, ManualClock
from stateline.testing.seeds import Dice
from tests.kit.environment import SimulatedEnvironment
from tests.kit.invariants import InvariantViolation
from tests.kit.scheduler import Group, Scheduler, Status


@pytest.fixture
def scheduler():
    made = Scheduler()
    yield made
    made.close()


def steps(scheduler, log, name, count=3):
    def run():
        for number in range(count):
            log.append(f"{name}{number}")
            scheduler.pause()
        return name

    return run


def test_an_actor_runs_to_its_next_switch_point(scheduler):
    log: list[str] = []
    actor = scheduler.spawn("a", steps(scheduler, log, "a"))
    assert log == []
    scheduler.resume(actor)
    assert log == ["a0"]
    scheduler.resume(actor)
    assert log == ["a0", "a1"]
    scheduler.run()
    assert (actor.status, actor.result) == (Status.FINISHED, "a")


def test_by_default_whoever_ran_goes_on(scheduler):
    log: list[str] = []
    for name in "ab":
        scheduler.spawn(name, steps(scheduler, log, name, 2))
    scheduler.run()
    assert log == ["a0", "a1", "b0", "b1"]


def test_any_order_can_be_chosen(scheduler):
    log: list[str] = []
    a, b = (scheduler.spawn(name, steps(scheduler, log, name)) for name in "ab")
    for actor in (b, a, a, b, a):
        scheduler.resume(actor)
    assert log == ["b0", "a0", "a1", "b1", "a2"]


def test_only_some_families_run(scheduler):
    log: list[str] = []
    driver, other = Group("driver"), Group("other")
    scheduler.spawn("d", steps(scheduler, log, "d", 1), driver)
    scheduler.spawn("t", steps(scheduler, log, "t", 1), Group("task", driver))
    scheduler.spawn("o", steps(scheduler, log, "o", 1), other)
    scheduler.run(only=[driver])
    assert log == ["d0", "t0"]


def test_an_error_is_the_actors_result(scheduler):
    actor = scheduler.spawn("a", lambda: 1 / 0)
    scheduler.run()
    assert actor.status is Status.FAILED
    assert isinstance(actor.error, ZeroDivisionError)


def test_a_violation_stops_the_run(scheduler):
    def broken():
        raise InvariantViolation("C1", "seen")

    scheduler.spawn("a", broken)
    with pytest.raises(InvariantViolation, match="seen"):
        scheduler.run()


def test_a_killed_group_has_no_further_effect(scheduler):
    log: list[str] = []
    group = Group("process")

    def run():
        try:
            log.append("began")
            scheduler.pause()
            log.append("went on")
        finally:
            log.append("unwinding")
            scheduler.pause()  # A call of a dead process: it raises again.
            log.append("had an effect")

    actor = scheduler.spawn("a", run, group)
    unborn = scheduler.spawn("b", steps(scheduler, log, "b"), group)
    scheduler.resume(actor)
    scheduler.kill(group)
    assert log == ["began", "unwinding"]
    assert actor.status is unborn.status is Status.KILLED
    scheduler.run()
    assert log == ["began", "unwinding"]


def test_a_process_can_kill_itself_and_others(scheduler):
    log: list[str] = []
    mine, other = Group("mine"), Group("other")

    def run():
        scheduler.kill(other)
        log.append("killed the other")
        scheduler.kill(mine)
        log.append("still here")

    victim = scheduler.spawn("v", steps(scheduler, log, "v"), other)
    scheduler.resume(victim)
    killer = scheduler.spawn("k", run, mine)
    scheduler.resume(killer)
    scheduler.run()
    assert log == ["v0", "killed the other"]
    assert victim.status is killer.status is Status.KILLED


def test_the_dead_start_nothing(scheduler):
    group = Group("process")
    seen: list[BaseException] = []

    def run():
        try:
            scheduler.pause()
        finally:
            try:
                scheduler.spawn("child", int, group)
            except ActorKilled as error:
                seen.append(error)

    scheduler.resume(scheduler.spawn("a", run, group))
    scheduler.kill(group)
    assert len(seen) == 1


def test_the_frozen_do_not_run_until_they_thaw(scheduler):
    log: list[str] = []
    driver = Group("driver")
    scheduler.spawn("d", steps(scheduler, log, "d", 1), driver)
    scheduler.spawn("t", steps(scheduler, log, "t", 1), Group("task", driver))
    scheduler.freeze(driver)
    scheduler.run()
    assert log == []
    scheduler.thaw(driver)
    scheduler.run()
    assert log == ["d0", "t0"]


def test_waiting_lets_others_run(scheduler):
    log: list[str] = []
    state = {"ready": False}

    def wait():
        assert scheduler.wait(lambda: state["ready"]) is True
        log.append("woke")

    def wake():
        log.append("waking")
        state["ready"] = True

    scheduler.spawn("waiter", wait)
    scheduler.spawn("waker", wake)
    scheduler.run()
    assert log == ["waking", "woke"]


def test_time_passes_when_everybody_waits():
    clock = ManualClock()
    scheduler = Scheduler(clock)
    woke: list[tuple[str, float]] = []

    def sleeper(name, seconds):
        def run():
            assert scheduler.wait(lambda: False, seconds) is False
            woke.append((name, clock.monotonic()))

        return run

    scheduler.spawn("long", sleeper("long", 30.0))
    scheduler.spawn("short", sleeper("short", 5.0))
    scheduler.run()
    assert woke == [("short", 5.0), ("long", 30.0)]


def test_waiting_outside_runs_the_world(scheduler):
    state: list[int] = []
    scheduler.spawn("a", lambda: state.append(1))
    assert scheduler.wait(lambda: bool(state)) is True
    assert scheduler.wait(lambda: False, 3.0) is False
    assert scheduler.clock.monotonic() == 3.0


def test_a_deadlock_is_reported_with_who_waits_and_where(scheduler):
    def stuck():
        scheduler.wait(lambda: False)

    scheduler.spawn("patient", stuck)
    scheduler.run()
    assert "patient (waiting)" in scheduler.report()
    assert "stuck at test_scheduler.py" in scheduler.report()
    with pytest.raises(InvariantViolation, match=r"H1.*deadlock"):
        scheduler.wait(lambda: False)


def test_a_livelock_is_reported(scheduler):
    def spin():
        while True:
            scheduler.pause()

    scheduler.spawn("spinner", spin)
    with pytest.raises(InvariantViolation, match="no end after 50 steps"):
        scheduler.run(max_steps=50)


def test_closing_unwinds_everybody():
    scheduler = Scheduler()
    log: list[str] = []

    def run():
        try:
            scheduler.pause()
        finally:
            log.append("unwound")

    scheduler.resume(scheduler.spawn("a", run))
    scheduler.close()
    scheduler.close()
    assert log == ["unwound"]
    with pytest.raises(ActorKilled):
        scheduler.spawn("late", int)


def random_run(seed):
    """Four processes that submit, sleep and lock, in an order drawn from the seed; what they did, in order."""
    scheduler = Scheduler()
    log: list[str] = []
    for name in "abcd":
        environment = SimulatedEnvironment(scheduler, Group(name), seed)

        def work(name=name, environment=environment):
            pool = environment.executors.executor("pool", 2)
            monitor = environment.executors.monitor()
            futures = [pool.submit(lambda n=n: log.append(f"{name}{n}")) for n in range(3)]
            environment.clock.sleep(1.0)
            with monitor:
                log.append(environment.ids.new_id())
            for future in futures:
                future.result()

        scheduler.spawn(name, work, environment.group)
    dice = Dice(seed)
    while True:
        ready = scheduler.ready()
        if ready:
            scheduler.resume(dice.pick(ready))
        elif not scheduler.advance_to_next_due():
            return log


def test_the_same_choices_give_the_same_run():
    assert random_run(1) == random_run(1)
    assert len({tuple(random_run(seed)) for seed in range(10)}) == 10
