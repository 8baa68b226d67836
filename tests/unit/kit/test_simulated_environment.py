"""Simulated executors and monitors behave as the real ones do, on virtual time."""

from concurrent.futures import CancelledError

import pytest

from stateline.environment import SystemExecutors
from tests.kit.environment import SimulatedEnvironment
from tests.kit.invariants import InvariantViolation
from tests.kit.scheduler import Group, Scheduler


@pytest.fixture
def environment():
    made = SimulatedEnvironment(seed=1)
    yield made
    made.scheduler.close()


def test_a_future_outside_of_any_actor_runs_the_world(environment):
    pool = environment.executors.executor("pool", 2)
    assert pool.submit(divmod, 7, 2).result() == (3, 1)
    assert isinstance(pool.submit(divmod, 1, 0).exception(), ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        pool.submit(divmod, 1, 0).result()


def test_a_result_that_does_not_come_in_time(environment):
    pool = environment.executors.executor("pool", 1)
    future = pool.submit(environment.clock.sleep, 100.0)
    with pytest.raises(TimeoutError):
        future.result(5.0)
    assert environment.clock.monotonic() == 5.0
    assert future.result() is None
    assert environment.clock.monotonic() == 100.0


def test_a_pool_has_no_more_threads_than_asked_for(environment):
    pool = environment.executors.executor("pool", 2)
    running, most = [0], [0]

    def work():
        running[0] += 1
        most[0] = max(most[0], running[0])
        environment.clock.sleep(1.0)
        running[0] -= 1

    for future in [pool.submit(work) for _ in range(6)]:
        future.result()
    assert most == [2]
    assert environment.clock.monotonic() == 3.0


def test_timers_fire_on_virtual_time_one_after_the_other(environment):
    pool = environment.executors.executor("pool", 1)
    fired: list[tuple[str, float]] = []

    def note(name):
        def run():
            environment.clock.sleep(0.5)
            fired.append((name, environment.clock.monotonic()))

        return run

    pool.call_later(2.0, note("b"))
    pool.call_later(1.9, note("a"))
    environment.scheduler.run()
    assert fired == [("a", 2.4), ("b", 2.9)]


def test_a_cancelled_timer_does_not_fire(environment):
    pool = environment.executors.executor("pool", 1)
    fired: list[int] = []
    timer = pool.call_later(1.0, lambda: fired.append(1))
    assert timer.cancel() is True
    assert timer.cancel() is False
    environment.scheduler.run()
    assert fired == []


def test_close_cancels_what_has_not_begun(environment):
    pool = environment.executors.executor("pool", 1)
    begun = pool.submit(environment.clock.sleep, 1.0)
    queued = pool.submit(int)
    fired: list[int] = []
    pool.call_later(0.5, lambda: fired.append(1))
    environment.scheduler.resume(environment.scheduler.ready()[0])
    pool.close()
    assert begun.done()
    with pytest.raises(CancelledError):
        queued.result()
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(int)
    with pytest.raises(RuntimeError, match="closed"):
        pool.call_later(0.0, int)
    environment.scheduler.run()
    assert fired == []


def monitors(environment):
    return environment.executors.monitor()


def test_a_monitor_is_reentrant_and_excludes_others(environment):
    monitor = environment.executors.monitor()
    pool = environment.executors.executor("pool", 2)
    log: list[str] = []

    def work(name):
        with monitor, monitor:
            log.append(f"{name} in")
            environment.clock.sleep(1.0)
            log.append(f"{name} out")

    futures = [pool.submit(work, name) for name in "ab"]
    for future in futures:
        future.result()
    assert log == ["a in", "a out", "b in", "b out"]


def test_a_waiter_wakes_by_notification(environment):
    monitor = environment.executors.monitor()
    pool = environment.executors.executor("pool", 1)
    state: list[int] = []

    def provide():
        with monitor:
            state.append(1)
            monitor.notify_all()

    with monitor:
        future = pool.submit(provide)
        assert monitor.wait_for(lambda: bool(state)) is True
    future.result()


def test_a_forgotten_notification_is_a_deadlock(environment):
    """What the predicate says does not matter until somebody notifies, as with real conditions."""
    monitor = environment.executors.monitor()
    pool = environment.executors.executor("pool", 1)
    state: list[int] = []

    def provide():
        with monitor:
            state.append(1)

    with monitor:
        pool.submit(provide)
        with pytest.raises(InvariantViolation, match="deadlock"):
            monitor.wait_for(lambda: bool(state))


def test_a_wait_ends_with_its_time(environment):
    monitor = environment.executors.monitor()
    with monitor:
        assert monitor.wait_for(lambda: False, 7.0) is False
        assert environment.clock.monotonic() == 7.0
        assert monitor.wait_for(lambda: True, 7.0) is True


@pytest.mark.parametrize("executors", [SystemExecutors(), SimulatedEnvironment().executors], ids=["real", "simulated"])
def test_waiting_and_notifying_need_the_lock(executors):
    monitor = executors.monitor()
    with pytest.raises(RuntimeError):
        monitor.notify_all()
    with pytest.raises(RuntimeError):
        monitor.wait_for(lambda: False, 0.01)


def test_processes_have_clocks_that_may_be_wrong():
    scheduler = Scheduler()
    left, right = (SimulatedEnvironment(scheduler, Group(name), 1) for name in "lr")
    left.clock.skew_seconds = -3600.0
    assert right.clock.now() - left.clock.now() == 3600.0
    assert right.clock.monotonic() == left.clock.monotonic()
    assert left.ids.new_id() != right.ids.new_id()


def test_a_killed_process_leaves_its_timers_and_workers_dead():
    scheduler = Scheduler()
    environment = SimulatedEnvironment(scheduler, Group("victim"), 1)
    done: list[int] = []
    pool = environment.executors.executor("pool", 2)
    pool.submit(lambda: (environment.clock.sleep(5.0), done.append(1)))
    pool.call_later(5.0, lambda: done.append(2))
    scheduler.run(until=lambda: scheduler.steps >= 2)
    scheduler.kill(environment.group)
    scheduler.run()
    assert done == []
