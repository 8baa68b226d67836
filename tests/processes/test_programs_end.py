"""A store that never answers must not keep a finished program alive."""

from __future__ import annotations

import subprocess
import sys
import textwrap

LONG = 60.0
"""Seconds after which a program that does not end fails the test."""

BEFORE = """
    import threading
    from stateline.blob import StoreDecorator
    from stateline.blob.memory import MemoryStore
    from stateline.changelog import ChangelogSettings, ChangelogStorage, SequenceNumber
    from stateline.environment import system_environment
    from stateline.key_groups import KeyGroupRange

    class Hung(StoreDecorator):
        entered = threading.Event()

        def hang(self, *_):
            self.entered.set()
            threading.Event().wait()

        put_all_if_absent = put_if_absent = delete = get_range = hang

    store = Hung(MemoryStore("hung"))
"""

PROGRAMS = {
    "an upload that is never answered": """
        storage = ChangelogStorage.open(store, ChangelogSettings(persist_delay=0))
        writer = storage.create_writer("operator", KeyGroupRange(0, 9))
        writer.append(1, b"x")
        writer.persist(SequenceNumber(0), 1)
        assert store.entered.wait(30)
    """,
    "a storage that is closed meanwhile": """
        storage = ChangelogStorage.open(store, ChangelogSettings(persist_delay=0))
        writer = storage.create_writer("operator", KeyGroupRange(0, 9))
        writer.append(1, b"x")
        writer.persist(SequenceNumber(0), 1)
        assert store.entered.wait(30)
        storage.close()
    """,
    "work of any other layer": """
        executor = system_environment().executors.executor("any", 2)
        executor.submit(store.put_if_absent, "a", b"")
        executor.submit(store.get_range, "a", 0, 1)
        executor.call_later(0.0, store.hang)
        assert store.entered.wait(30)
    """,
}


def test_a_store_that_never_answers_does_not_keep_python_from_ending() -> None:
    running = {}
    for name, program in PROGRAMS.items():
        command = [sys.executable, "-c", textwrap.dedent(BEFORE) + textwrap.dedent(program) + "print('done')"]
        running[name] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        for name, process in running.items():
            output, errors = process.communicate(timeout=LONG)
            assert (process.returncode, output) == (0, "done\n"), (name, errors)
    finally:
        for process in running.values():
            process.kill()


def test_work_that_nobody_closed_is_finished_before_python_ends() -> None:
    code = """
        import time
        from stateline.environment import system_environment

        def work(number):
            time.sleep(0.05)
            print(number, flush=True)

        executor = system_environment().executors.executor("slow", 1)
        for number in range(3):
            executor.submit(work, number)
    """
    ended = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], timeout=LONG, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (0, "0\n1\n2\n"), ended.stderr
