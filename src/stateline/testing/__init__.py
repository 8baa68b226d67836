"""What tests of Stateline, and of stores and tools built on it, are made of. Third parties run it on their own code.

==================  ===================================================================================================
a unit test         ``ManualClock`` ``SeededIds`` ``SimulatedEnvironment`` ``FaultyStore`` ``CrashableStore``
a model             ``StoreModel`` ``RecoverableFileModel`` ``KeyedStateModel`` ``OutputModel``, and ``strategies``
a backend           ``blob_conformance`` ``recoverable_conformance``: suites to subclass
a whole system      ``Scenario`` ``World``, and ``single_faults`` ``fault_pairs`` ``zombie_sweep`` ``simulate``
                    ``power_loss``: drivers that try everything
the tests           ``planted``: bugs that the suites must see
==================  ===================================================================================================

Names load when they are first used: the simulator needs ``greenlet``, the strategies ``hypothesis``, the conformance
suites ``pytest`` (all of them in ``pip install 'stateline[testing]'``), and none needs the others. Nothing that ships
in production imports this package. ``docs/testing.md`` is the guide, ``python -m stateline.testing --help`` the command
line.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from stateline.testing.backends import FactoryBackend, LocalBackend, MemoryBackend, ScratchBackend
    from stateline.testing.clock import ManualClock
    from stateline.testing.crashable import CrashableStore
    from stateline.testing.environment import SimulatedEnvironment
    from stateline.testing.explore import Setting, fault_pairs, single_faults, zombie_sweep
    from stateline.testing.faults import Fault, FaultKind, RandomFaults, ScriptedFaults
    from stateline.testing.faulty_store import FaultyStore, ResolvingStore
    from stateline.testing.ids import SeededIds
    from stateline.testing.invariants import INVARIANTS, InvariantViolation, require
    from stateline.testing.models import KeyedStateModel, OutputModel, RecoverableFileModel, StoreModel
    from stateline.testing.power_failure import power_loss, power_losses
    from stateline.testing.results import Exploration, Failure
    from stateline.testing.scenario import Scenario
    from stateline.testing.scheduler import ActorKilled, Scheduler
    from stateline.testing.simulation import replay, run_seed, shrink, simulate
    from stateline.testing.world import Process, World

_HOMES: Final = {
    "backends": ("FactoryBackend", "LocalBackend", "MemoryBackend", "ScratchBackend"),
    "clock": ("ManualClock",),
    "crashable": ("CrashableStore",),
    "environment": ("SimulatedEnvironment",),
    "explore": ("Setting", "fault_pairs", "single_faults", "zombie_sweep"),
    "faults": ("Fault", "FaultKind", "RandomFaults", "ScriptedFaults"),
    "faulty_store": ("FaultyStore", "ResolvingStore"),
    "ids": ("SeededIds",),
    "invariants": ("INVARIANTS", "InvariantViolation", "require"),
    "models": ("KeyedStateModel", "OutputModel", "RecoverableFileModel", "StoreModel"),
    "power_failure": ("power_loss", "power_losses"),
    "results": ("Exploration", "Failure"),
    "scenario": ("Scenario",),
    "scheduler": ("ActorKilled", "Scheduler"),
    "simulation": ("replay", "run_seed", "shrink", "simulate"),
    "world": ("Process", "World"),
}
_HOME_OF: Final = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "INVARIANTS",
    "ActorKilled",
    "CrashableStore",
    "Exploration",
    "FactoryBackend",
    "Failure",
    "Fault",
    "FaultKind",
    "FaultyStore",
    "InvariantViolation",
    "KeyedStateModel",
    "LocalBackend",
    "ManualClock",
    "MemoryBackend",
    "OutputModel",
    "Process",
    "RandomFaults",
    "RecoverableFileModel",
    "ResolvingStore",
    "Scenario",
    "Scheduler",
    "ScratchBackend",
    "ScriptedFaults",
    "SeededIds",
    "Setting",
    "SimulatedEnvironment",
    "StoreModel",
    "World",
    "fault_pairs",
    "power_loss",
    "power_losses",
    "replay",
    "require",
    "run_seed",
    "shrink",
    "simulate",
    "single_faults",
    "zombie_sweep",
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
