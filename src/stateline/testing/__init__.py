"""What tests of stores, pipelines and processors are made of. ``docs/guides/testing.md`` is the guide.

==================  =================================================================================================
a program           :class:`KeyedStreamHarness` runs it on lists of rows; :class:`OperatorHarness` runs any operator
a store             ``blob_conformance``, ``recoverable_conformance``: suites to subclass, for pytest
what goes wrong     :class:`FaultyStore` and its plans; :class:`CrashableStore` for the loss of power
time and ids        :class:`ManualClock`, :class:`SeededIds`
==================  =================================================================================================

Nothing that ships in production imports this package.
"""

from __future__ import annotations

from stateline.testing.clock import ManualClock
from stateline.testing.crashable import CrashableStore
from stateline.testing.faults import ActorKilled, Fault, FaultKind, RandomFaults, ScriptedFaults
from stateline.testing.faulty_store import FaultyStore, ResolvingStore
from stateline.testing.graph_harness import GraphHarness
from stateline.testing.ids import SeededIds
from stateline.testing.keyed_stream_harness import KeyedStreamHarness, WindowedStreamHarness
from stateline.testing.operator_harness import OperatorHarness

__all__ = [
    "ActorKilled",
    "CrashableStore",
    "Fault",
    "FaultKind",
    "FaultyStore",
    "GraphHarness",
    "KeyedStreamHarness",
    "ManualClock",
    "OperatorHarness",
    "RandomFaults",
    "ResolvingStore",
    "ScriptedFaults",
    "SeededIds",
    "WindowedStreamHarness",
]
