"""What tests of Stateline, and of stores and tools built on it, are made of. Third parties run it on their own code.

==================  ===================================================================================================
a unit test         ``ManualClock`` ``SeededIds`` ``SimulatedEnvironment`` ``FaultyStore`` ``CrashableStore``
a backend           ``blob_conformance`` ``recoverable_conformance``: suites to subclass
==================  ===================================================================================================

Names load when they are first used: simulated threads need ``greenlet``, the conformance suites ``pytest`` (both in
``pip install 'stateline[testing]'``), and neither needs the other. Nothing that ships in production imports this
package. ``docs/testing.md`` is the guide.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from stateline.testing.backends import FactoryBackend, LocalBackend, MemoryBackend, ScratchBackend
    from stateline.testing.clock import ManualClock
    from stateline.testing.crashable import CrashableStore
    from stateline.testing.environment import SimulatedEnvironment
    from stateline.testing.faults import Fault, FaultKind, RandomFaults, ScriptedFaults
    from stateline.testing.faulty_store import FaultyStore, ResolvingStore
    from stateline.testing.ids import SeededIds
    from stateline.testing.invariants import INVARIANTS, InvariantViolation, require
    from stateline.testing.keyed_stream_harness import KeyedStreamHarness, WindowedStreamHarness
    from stateline.testing.operator_harness import OperatorHarness
    from stateline.testing.scheduler import ActorKilled, Scheduler

_HOMES: Final = {
    "backends": ("FactoryBackend", "LocalBackend", "MemoryBackend", "ScratchBackend"),
    "clock": ("ManualClock",),
    "crashable": ("CrashableStore",),
    "environment": ("SimulatedEnvironment",),
    "faults": ("Fault", "FaultKind", "RandomFaults", "ScriptedFaults"),
    "faulty_store": ("FaultyStore", "ResolvingStore"),
    "ids": ("SeededIds",),
    "invariants": ("INVARIANTS", "InvariantViolation", "require"),
    "keyed_stream_harness": ("KeyedStreamHarness", "WindowedStreamHarness"),
    "operator_harness": ("OperatorHarness",),
    "scheduler": ("ActorKilled", "Scheduler"),
}
_HOME_OF: Final = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "INVARIANTS",
    "ActorKilled",
    "CrashableStore",
    "FactoryBackend",
    "Fault",
    "FaultKind",
    "FaultyStore",
    "InvariantViolation",
    "KeyedStreamHarness",
    "LocalBackend",
    "ManualClock",
    "MemoryBackend",
    "OperatorHarness",
    "RandomFaults",
    "ResolvingStore",
    "Scheduler",
    "ScratchBackend",
    "ScriptedFaults",
    "SeededIds",
    "SimulatedEnvironment",
    "WindowedStreamHarness",
    "require",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
