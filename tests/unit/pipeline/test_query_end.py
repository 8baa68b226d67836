"""The end of a query is done once, whoever notices it first, and what becomes of it reaches everybody who waits."""

from __future__ import annotations

import threading

import pytest

from stateline.environment import system_environment
from stateline.errors import StorageFullError
from stateline.pipeline.query_end import QueryEnd


class Life:
    """Counts what is done at the end of a query."""

    def __init__(self, fails=None):
        self.done, self.fails = [], fails

    def finish(self):
        self.done.append("finish")
        if self.fails is not None:
            raise self.fails

    def close(self):
        self.done.append("close")

    def end(self, *, finishes=True):
        return QueryEnd(system_environment(), "file:///root", self.finish if finishes else None, self.close)


def test_it_is_done_once_and_stores_are_closed_last():
    life = Life()
    end = life.end()
    for _ in range(3):
        end.run(failed=False)
    assert life.done == ["finish", "close"]
    assert end.failure is None


@pytest.mark.parametrize(("finishes", "failed"), [(False, False), (True, True), (False, True)])
def test_files_stay_open_where_the_query_failed_or_nobody_wants_them_finished(finishes, failed):
    life = Life()
    life.end(finishes=finishes).run(failed=failed)
    assert life.done == ["close"]


def test_what_it_fails_with_is_logged_and_kept_and_stores_are_closed_all_the_same(caplog):
    life = Life(StorageFullError("no room", operation="stage", subject="out"))
    end = life.end()
    end.run(failed=False)
    end.run(failed=False)
    assert end.failure is life.fails
    assert life.done == ["finish", "close"]
    assert "the open files of file:///root could not be finished; call finish_files()" in caplog.text


def test_others_wait_until_it_is_done():
    begun, go_on, order = threading.Event(), threading.Event(), []

    def finish():
        begun.set()
        assert go_on.wait(60)
        order.append("finished")

    end = QueryEnd(system_environment(), "file:///root", finish)
    listener = threading.Thread(target=lambda: end.run(failed=False))
    listener.start()
    assert begun.wait(60)
    assert end.is_running
    waiting = threading.Thread(target=lambda: (end.run(failed=False), order.append("waited")))
    waiting.start()
    go_on.set()
    listener.join(60)
    waiting.join(60)
    assert order == ["finished", "waited"]
    assert not end.is_running


def test_whoever_is_interrupted_leaves_it_to_the_next():
    life = Life(KeyboardInterrupt())
    end = life.end()
    with pytest.raises(KeyboardInterrupt):
        end.run(failed=False)
    life.fails = None
    end.run(failed=False)
    assert life.done == ["finish", "finish", "close"]
    assert end.failure is None
