"""The real side of the environment: threads, timers, monitors. Waits are on events, never on time."""

import gc
import os
import random
import signal
import threading
import traceback
import unittest.mock
import uuid
import warnings
from collections.abc import Callable
from concurrent.futures import CancelledError, ProcessPoolExecutor

import pytest

from stateline.environment import (
    Environment,
    SystemClock,
    SystemExecutors,
    SystemIds,
    executor_of,
    side_by_side,
    system_environment,
)
from stateline.errors import ClosedError, InvalidInputError, UnavailableError
from stateline.threads import new_lock

LONG = 60.0
"""Seconds after which a test that hangs fails."""


@pytest.fixture
def executor():
    made = SystemExecutors().executor("pool", 2)
    yield made
    made.close()


def test_ids_are_version_4_and_never_repeat():
    ids = SystemIds()
    made = [ids.new_id() for _ in range(1000)]
    assert len(set(made)) == 1000
    assert all(uuid.UUID(hex=text).version == 4 and text == text.lower() and len(text) == 32 for text in made)
    assert ids.new_uuid().version == 4


def test_sleeping_for_no_time_returns_at_once():
    with unittest.mock.patch("time.sleep") as slept:
        SystemClock().sleep(0)
        SystemClock().sleep(-1)
        assert not slept.called
        SystemClock().sleep(0.5)
    slept.assert_called_once_with(0.5)


def test_monotonic_time_does_not_go_back():
    clock = SystemClock()
    readings = [clock.monotonic() for _ in range(100)]
    assert readings == sorted(readings)


def test_submit_runs_on_a_thread_of_the_pool(executor):
    name = executor.submit(lambda: threading.current_thread().name).result(LONG)
    assert name.startswith("pool")


def test_submit_hands_arguments_and_errors_through(executor):
    assert executor.submit(divmod, 7, 2).result(LONG) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        executor.submit(divmod, 1, 0).result(LONG)


def test_no_more_threads_than_asked_for(executor):
    barrier = threading.Barrier(2)
    executor.submit(barrier.wait, LONG)
    executor.submit(barrier.wait, LONG).result(LONG)
    used = {executor.submit(threading.get_ident).result(LONG) for _ in range(20)}
    assert len(used) <= 2


def test_a_timer_fires_on_another_thread(executor):
    fired = threading.Event()
    threads = []
    executor.call_later(0.0, lambda: (threads.append(threading.get_ident()), fired.set()))
    assert fired.wait(LONG)
    assert threads != [threading.get_ident()]


def test_timers_fire_in_the_order_of_their_delays(executor):
    order: list[str] = []
    done = threading.Event()
    blocked = threading.Event()
    executor.call_later(0.0, lambda: blocked.wait(LONG))
    executor.call_later(0.02, lambda: (order.append("late"), done.set()))
    executor.call_later(0.01, lambda: order.append("early"))
    blocked.set()
    assert done.wait(LONG)
    assert order == ["early", "late"]


def test_a_cancelled_timer_does_not_fire(executor):
    fired = []
    done = threading.Event()
    timer = executor.call_later(0.02, lambda: fired.append(1))
    assert timer.cancel() is True
    assert timer.cancel() is False
    executor.call_later(0.04, done.set)
    assert done.wait(LONG)
    assert fired == []


def test_cancelling_after_the_call_says_so(executor):
    fired = threading.Event()
    timer = executor.call_later(0.0, fired.set)
    assert fired.wait(LONG)
    assert timer.cancel() is False


def test_close_cancels_queued_work_and_timers_and_lets_running_work_end():
    executor = SystemExecutors().executor("closing", 1)
    started, release = threading.Event(), threading.Event()
    running = executor.submit(lambda: (started.set(), release.wait(LONG))[1])
    queued = executor.submit(lambda: "never")
    executor.call_later(LONG * 10, lambda: None)
    assert started.wait(LONG)
    release.set()
    executor.close()
    executor.close()
    assert running.result(LONG) is True
    if not queued.cancelled():  # It may have been taken in the moment before the close.
        assert queued.result(LONG) == "never"
    else:
        with pytest.raises(CancelledError):
            queued.result(LONG)


def test_a_closed_executor_refuses_work():
    executor = SystemExecutors().executor("closed", 1)
    executor.close()
    with pytest.raises(RuntimeError):
        executor.submit(int)
    with pytest.raises(RuntimeError, match="closed"):
        executor.call_later(0.0, int)


def test_close_from_a_timer_does_not_wait_for_itself():
    executor = SystemExecutors().executor("self", 1)
    closed = threading.Event()
    executor.call_later(0.0, lambda: (executor.close(), closed.set()))
    assert closed.wait(LONG)


def test_a_monitor_is_reentrant():
    monitor = SystemExecutors().monitor()
    entered = threading.Event()

    def enter():
        with monitor:
            entered.set()

    with monitor:
        with monitor:
            monitor.notify_all()
        other = threading.Thread(target=enter)
        other.start()
        assert not entered.is_set()  # Left once of twice, it is still taken.
    other.join(LONG)
    assert entered.is_set()


def test_wait_for_returns_when_notified():
    monitor = SystemExecutors().monitor()
    state = {"ready": False}
    waiting = threading.Event()
    results = []

    def wait() -> None:
        with monitor:
            waiting.set()
            results.append(monitor.wait_for(lambda: state["ready"], LONG))

    thread = threading.Thread(target=wait)
    thread.start()
    assert waiting.wait(LONG)
    with monitor:  # Entered only once the waiter has given the lock up.
        state["ready"] = True
        monitor.notify_all()
    thread.join(LONG)
    assert results == [True]


def test_wait_for_gives_the_last_value_after_its_time():
    monitor = SystemExecutors().monitor()
    with monitor:
        assert monitor.wait_for(lambda: False, 0.0) is False
        assert monitor.wait_for(lambda: True, 0.0) is True


def test_notifying_without_the_lock_is_an_error():
    with pytest.raises(RuntimeError):
        SystemExecutors().monitor().notify_all()


def test_the_environment_is_frozen_and_takes_components_by_name():
    environment = system_environment()
    assert environment.ids.new_id()
    with pytest.raises(AttributeError):
        environment.clock = SystemClock()  # type: ignore[misc]
    with pytest.raises(TypeError):
        Environment(SystemClock())  # type: ignore[misc]


FOR_EVER = 1e12
"""Seconds that no lock can wait: a setting such as ``1000000d`` means never."""


def test_a_timer_that_is_never_due_does_not_stop_the_others(executor):
    executor.call_later(FOR_EVER, lambda: None)
    fired = threading.Event()
    executor.submit(executor.call_later, 0.05, fired.set)
    assert fired.wait(LONG)


def test_a_wait_may_be_as_long_as_anybody_likes(executor):
    monitor = SystemExecutors().monitor()
    waiting, woken = threading.Event(), []

    def wait():
        with monitor:
            waiting.set()
            return monitor.wait_for(lambda: bool(woken), FOR_EVER)

    future = executor.submit(wait)
    assert waiting.wait(LONG)
    with monitor:
        woken.append(1)
        monitor.notify_all()
    assert future.result(LONG)


# -- threads that fail, end, and are left behind by a fork ---------------------------------------------------------


@pytest.fixture
def one_refusal(monkeypatch):
    """The system refuses the next thread, and gives all later ones."""
    real, refused = threading.Thread.start, []

    def start(thread):
        if not refused:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    return refused


@pytest.mark.parametrize("call", [lambda it: it.submit(int), lambda it: it.call_later(0.0, int)])
def test_a_thread_that_cannot_be_started_costs_one_call(executor, one_refusal, call):
    with pytest.raises(UnavailableError, match="can't start new thread") as caught:
        call(executor)
    assert isinstance(caught.value, RuntimeError)
    assert len(one_refusal) == 1
    assert executor.submit(lambda: 1).result(LONG) == 1
    fired = threading.Event()
    executor.call_later(0.0, fired.set)
    assert fired.wait(LONG)


def test_work_waits_for_a_thread_that_is_there_if_no_other_can_be_started(executor, request):
    entered, release = threading.Event(), threading.Event()
    running = executor.submit(lambda: (entered.set(), release.wait(LONG)))
    assert entered.wait(LONG)
    request.getfixturevalue("one_refusal")
    queued = executor.submit(lambda: "done")
    release.set()
    assert running.result(LONG)
    assert queued.result(LONG) == "done"


def test_a_timer_that_raises_does_not_stop_the_others(executor):
    executor.call_later(0.0, lambda: 1 // 0)
    fired = threading.Event()
    executor.call_later(0.01, fired.set)
    assert fired.wait(LONG)


def test_the_threads_of_an_executor_that_nobody_has_end():
    executor = SystemExecutors().executor("nobody", 2)
    threads = [executor.submit(threading.current_thread).result(LONG)]
    timers = []
    fired = threading.Event()
    executor.call_later(0.0, lambda: (timers.append(threading.current_thread()), fired.set()))
    assert fired.wait(LONG)
    del executor
    gc.collect()
    for thread in threads + timers:
        thread.join(LONG)
        assert not thread.is_alive()


def test_threads_without_work_end_and_start_again(monkeypatch, executor):
    monkeypatch.setattr("stateline.threads._IDLE_SECONDS", 0.01)
    for _ in range(2):
        done = threading.Event()
        executor.call_later(0, done.set)
        threads = [executor.submit(threading.current_thread).result(30) for _ in range(3)]
        assert done.wait(30)
        for thread in [*threads, *filter(None, [executor._pool._timer_thread])]:
            thread.join(30)
            assert not thread.is_alive()
        assert executor._pool._threads == set()
        assert executor._pool._idle == 0


def test_work_that_was_submitted_is_done_though_nobody_has_the_executor():
    release = threading.Event()
    executor = SystemExecutors().executor("nobody", 1)
    first, second = executor.submit(release.wait, LONG), executor.submit(lambda: 2)
    del executor
    gc.collect()
    release.set()
    assert first.result(LONG)
    assert second.result(LONG) == 2


def in_a_fork(check: Callable[[], None]) -> None:
    """Runs ``check`` in a forked process, and waits for it for a while."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Newer Pythons warn of threads. They are the point here.
        child = os.fork()
    if child == 0:
        try:
            signal.alarm(int(LONG))
            check()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_an_executor_works_in_a_forked_process(executor):
    release = threading.Event()
    running = [executor.submit(release.wait, LONG) for _ in range(3)]
    executor.call_later(LONG * 10, lambda: None)

    def check():
        assert executor.submit(lambda: 5).result(LONG) == 5
        fired = threading.Event()
        executor.call_later(0.0, fired.set)
        assert fired.wait(LONG)
        executor.close()

    in_a_fork(check)
    release.set()
    assert all(future.result(LONG) for future in running)


def test_locks_that_another_thread_held_are_free_in_a_forked_process(executor):
    monitor, lock = SystemExecutors().monitor(), new_lock()
    held, release = threading.Event(), threading.Event()

    def hold():
        with monitor, lock:
            held.set()
            release.wait(LONG)

    holding = executor.submit(hold)
    assert held.wait(LONG)

    def check():
        with monitor, lock:
            monitor.notify_all()

    in_a_fork(check)
    release.set()
    holding.result(LONG)


@pytest.mark.parametrize("make", [new_lock, SystemExecutors().monitor])
def test_an_interrupt_leaves_no_lock_held(make):
    class Interrupt(BaseException):
        pass

    def strike(*_):
        raise Interrupt

    def take_for_ever(lock, seconds):
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        while True:
            with lock:
                pass

    lock, choose = make(), random.Random(1)
    before = signal.signal(signal.SIGVTALRM, strike)
    try:
        for _ in range(100):
            with pytest.raises(Interrupt):
                take_for_ever(lock, choose.uniform(1e-5, 1e-3))
            assert not lock._is_owned()
    finally:
        signal.signal(signal.SIGVTALRM, before)


def test_nobody_waits_in_a_forked_process_for_a_thread_of_the_other():
    monitor = SystemExecutors().monitor()

    def check():
        with monitor:
            assert monitor.wait_for(lambda: True)
            assert monitor.wait_for(lambda: False, 0.01) is False
            with pytest.raises(ClosedError, match="forked"):
                monitor.wait_for(lambda: False)

    in_a_fork(check)


def test_a_pool_of_processes_is_refused():
    with ProcessPoolExecutor(1) as pool, pytest.raises(InvalidInputError, match="threads of this process"):
        executor_of(pool, system_environment(), "work", 1)


def test_calls_side_by_side_run_at_the_same_time_and_keep_their_order():
    barrier = threading.Barrier(3)

    def together(item):
        barrier.wait(LONG)
        return item * 10

    assert side_by_side(system_environment(), "calls", together, range(3), 3) == [0, 10, 20]


def test_no_more_calls_run_side_by_side_than_were_asked_for():
    running, most = [], []

    def counted(item):
        running.append(item)
        most.append(len(running))
        running.remove(item)
        return item

    assert side_by_side(system_environment(), "calls", counted, range(50), 2) == list(range(50))
    assert max(most) <= 2


def test_of_calls_side_by_side_the_first_error_in_order_is_raised_when_all_have_ended():
    ended, failed = [], threading.Event()

    def failing(item):
        if item == 2:
            failed.set()
            raise ValueError(item)
        failed.wait(LONG)
        ended.append(item)
        if item == 1:
            raise KeyError(item)

    with pytest.raises(KeyError):
        side_by_side(system_environment(), "calls", failing, range(4), 4)
    assert sorted(ended) == [0, 1, 3]


def test_calls_that_get_no_thread_run_in_that_of_the_caller(monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    names = side_by_side(system_environment(), "calls", lambda _: threading.current_thread().name, range(3), 3)
    assert names == [threading.current_thread().name] * 3
