"""What imports have made is hidden from the garbage collector, once, and nothing else is."""

from __future__ import annotations

import gc
import socket
import sys
import types
import weakref

import pytest

from stateline.spark.job import worker_process
from stateline.spark.job.worker_process import end_quietly, freeze_imports


class Node:
    """Something that refers to itself: only the collector can free it."""

    def __init__(self):
        self.me = self


@pytest.fixture(autouse=True)
def like_a_new_process(monkeypatch):
    monkeypatch.setattr(worker_process._IMPORTS, "frozen", 0)
    yield
    gc.unfreeze()


def test_the_collector_no_longer_sees_what_is_there():
    seen = len(gc.get_objects())
    freeze_imports()
    assert gc.get_freeze_count() > 0.9 * seen
    assert len(gc.get_objects()) < 0.1 * seen


def test_garbage_is_collected_and_not_kept():
    node = weakref.ref(Node())
    assert node() is not None
    freeze_imports()
    assert node() is None


def test_what_later_tasks_leave_is_collected():
    freeze_imports()
    nodes = [Node()]
    freeze_imports()
    node = weakref.ref(nodes.pop())
    gc.collect()
    assert node() is None


def test_modules_that_come_later_are_frozen_too(monkeypatch):
    freeze_imports()
    node = Node()
    assert any(each is node for each in gc.get_objects())
    monkeypatch.setitem(sys.modules, "comes_later", types.ModuleType("comes_later"))
    freeze_imports()
    assert not any(each is node for each in gc.get_objects())


def worker_of(name):
    """A program named so, whose worker reads what comes and cannot answer where nobody listens."""
    program = types.ModuleType("__main__")
    program.__spec__ = types.SimpleNamespace(name=name)
    program.worker = lambda sock, authenticated: (sock.recv(10), authenticated)
    return program


@pytest.mark.parametrize("is_reset", [False, True])
def test_a_worker_ends_without_a_word_where_its_connection_ends_between_two_tasks(is_reset):
    program = worker_of("pyspark.daemon")
    end_quietly(program)
    ours, sparks = socket.socketpair()
    with ours:
        sparks.sendall(b"task")
        assert program.worker(ours, True) == (b"task", True), "what has come is left for the worker"
        if is_reset:
            ours.sendall(b"an answer that is not read")
        sparks.close()
        assert program.worker(ours, True) == 1


def test_other_programs_are_left_as_they_are():
    for name in ("stateline.cli.__main__", "pyspark.worker"):
        program = worker_of(name)
        before = program.worker
        end_quietly(program)
        assert program.worker is before
