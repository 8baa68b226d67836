"""A Python worker of Spark, as a process that lives on: its imports, and its end.

Spark's daemon collects garbage after every task, micro-batch after micro-batch, in every worker. That looks at all that
imports have made: 40 to 60 ms of processor time with Arrow, pandas and Stateline, at the moment in which the driver
plans what comes next. Modules live as long as the process, so the collector need not know of them.

Spark closes the connection of an idle worker when it stops, and after a minute without a task. PySpark's worker then
answers that its input has ended. Over a Unix domain socket that fails at once, and the ``BrokenPipeError`` is printed
into the log of a program without any fault. So a worker that has imported this module waits for the first byte of its
next task, and ends if the connection ends before it. Spark has no setting for that: it starts the workers of data
sources with its own daemon in any case.
"""

from __future__ import annotations

import functools
import gc
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

__all__ = ["end_quietly", "freeze_imports"]

_DAEMON: Final = "pyspark.daemon"
_CLOSED: Final = 1
"""What makes PySpark's daemon end a worker."""


class _Imports:
    """What was frozen last: how many modules there were."""

    frozen = 0


_IMPORTS: Final = _Imports()


def freeze_imports() -> None:
    """Hides what imports have made from the garbage collector, if there were any since the last call.

    To be called at the end of whatever Spark calls in a worker. Garbage is collected first, so that none is kept; what
    is alive is freed as before, unless it is in a cycle: so this must not be done for each task.
    """
    if len(sys.modules) != _IMPORTS.frozen:
        gc.collect()
        gc.freeze()
        _IMPORTS.frozen = len(sys.modules)


def end_quietly(program: Any) -> None:
    """Has the worker end without a word where its connection ends between two tasks.

    Args:
        program: The main module of the process; of any other than PySpark's daemon nothing is changed.
    """
    if getattr(program.__spec__, "name", "") == _DAEMON:
        program.worker = _quiet(program.worker)


def _quiet(worker: Callable[[socket.socket, bool], int]) -> Callable[[socket.socket, bool], int]:
    @functools.wraps(worker)
    def run(sock: socket.socket, authenticated: bool) -> int:
        try:
            comes = sock.recv(1, socket.MSG_PEEK)
        except ConnectionError:
            return _CLOSED
        return worker(sock, authenticated) if comes else _CLOSED

    return run


end_quietly(sys.modules["__main__"])
