"""What imports have made is hidden from the garbage collector, once, and nothing else is."""

from __future__ import annotations

import gc
import sys
import types
import weakref

import pytest

from stateline.spark.job import worker_process
from stateline.spark.job.worker_process import freeze_imports


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
