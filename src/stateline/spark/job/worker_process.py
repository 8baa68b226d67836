"""A Python worker of Spark, as a process that lives on: what it imported once is not looked at after each task.

Spark's daemon collects garbage after every task, micro-batch after micro-batch, in every worker. That looks at all that
imports have made: 40 to 60 ms of processor time with Arrow, pandas and Stateline, at the moment in which the driver
plans what comes next. Modules live as long as the process, so the collector need not know of them.
"""

from __future__ import annotations

import gc
import sys
from typing import Final

__all__ = ["freeze_imports"]


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
