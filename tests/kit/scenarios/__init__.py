"""The scenarios that ship with the test kit, by name.

Each entry has a small form for exhaustive suites and a large one for seeded simulation. A program adds its own with
:func:`register`, and the command line then knows it, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from stateline.errors import InvalidInputError
from stateline.testing.faults import FaultKind
from tests.kit.backends import Backend, ScratchBackend
from tests.kit.cloud_backends import AzureBackend, GcsBackend, S3Backend
from tests.kit.scenario import REQUEST_FAULTS, SYSTEM_CALL_FAULTS, Scenario
from tests.kit.scenarios.changelog import Changelog
from tests.kit.scenarios.create_race import CreateRace
from tests.kit.scenarios.delivery import DeliveringPipeline
from tests.kit.scenarios.files_sink import FilesSink
from tests.kit.scenarios.gaps import GappedPipeline
from tests.kit.scenarios.late_requests import LateRequests
from tests.kit.scenarios.micro_batch import MicroBatch
from tests.kit.scenarios.pipeline import Pipeline
from tests.kit.scenarios.recoverable import RecoverableFile
from tests.kit.scenarios.reference_system import ReferenceAdapter
from tests.kit.scenarios.restore import RestoreBesideRetention
from tests.kit.scenarios.savepoints import SavepointAndStart
from tests.kit.scenarios.sections import SectionedPipeline
from tests.kit.scenarios.store_publish import StorePublish
from tests.kit.scenarios.sweeping import SweepBesideWriters
from tests.kit.scenarios.tables import TABLE_KINDS, TablePipeline

__all__ = ["SCENARIOS", "ScenarioEntry", "register", "scenario"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioEntry:
    """One scenario by name.

    Attributes:
        name: What the command line calls it.
        summary: One line.
        small: About 60 operations: for suites that try every point.
        large: Some hundreds: for seeded simulation.
        backend: Makes the backend of each world; memory where ``None``.
        kinds: The fault kinds to inject; the scenario's own where ``None``.
    """

    name: str
    summary: str
    small: Callable[[], Scenario]
    large: Callable[[], Scenario]
    backend: Callable[[], Backend] | None = None
    kinds: frozenset[FaultKind] | None = None

    @property
    def loses_power(self) -> bool:
        """Whether power loss can be tried: only a disk, met by system calls, has states that it may be left in."""
        return self.backend is ScratchBackend


SCENARIOS: Final[dict[str, ScenarioEntry]] = {}
"""Every scenario that is known, by name."""


def register(entry: ScenarioEntry) -> ScenarioEntry:
    """Adds a scenario.

    Raises:
        InvalidInputError: The name is taken.
    """
    if entry.name in SCENARIOS:
        raise InvalidInputError(
            "the name is taken", operation="register", subject=f"scenario {entry.name}", hint="Take another name"
        )
    SCENARIOS[entry.name] = entry
    return entry


def scenario(name: str) -> ScenarioEntry:
    """The scenario of that name.

    Raises:
        InvalidInputError: The name is unknown.
    """
    if name not in SCENARIOS:
        known = ", ".join(sorted(SCENARIOS))
        raise InvalidInputError("unknown scenario", subject=repr(name), hint=f"Known: {known}")
    return SCENARIOS[name]


_BY_SYSTEM_CALL: Final = SYSTEM_CALL_FAULTS | {FaultKind.CRASH_BEFORE, FaultKind.CRASH_AFTER}

register(
    ScenarioEntry(
        name="create_race",
        summary="several processes create the same names",
        small=CreateRace,
        large=lambda: CreateRace(12),
    )
)
register(
    ScenarioEntry(
        name="create_race_local",
        summary="the same on local disk, interleaved at each system call",
        small=lambda: CreateRace(1),
        large=lambda: CreateRace(2),
        backend=ScratchBackend,
        kinds=_BY_SYSTEM_CALL,
    )
)
register(
    ScenarioEntry(
        name="store_publish",
        summary="files made of pieces are published once, whole, verified",
        small=StorePublish,
        large=lambda: StorePublish((1, 3, 0) * 4),
    )
)
register(
    ScenarioEntry(
        name="store_publish_local",
        summary="the same on local disk, interleaved at each system call",
        small=lambda: StorePublish((2,), foreign=False),
        large=lambda: StorePublish((1, 3, 0)),
        backend=ScratchBackend,
        kinds=_BY_SYSTEM_CALL,
    )
)
register(
    ScenarioEntry(
        name="micro_batch_reference",
        summary="micro-batches over the reference coordinator",
        small=lambda: MicroBatch(ReferenceAdapter(), batches=4),
        large=lambda: MicroBatch(ReferenceAdapter(), batches=20, partitions=3, rows=6),
    )
)
register(
    ScenarioEntry(
        name="pipeline",
        summary="micro-batches over the real coordinator, tasks, state and files",
        small=Pipeline,
        large=lambda: Pipeline(batches=10, partitions=3, rows=6, keys=9),
    )
)
register(
    ScenarioEntry(
        name="pipeline_spanning",
        summary="the same, with files that span checkpoints and a stream that ends",
        small=lambda: Pipeline(spanning=True),
        large=lambda: Pipeline(spanning=True, batches=10, partitions=3, rows=6, keys=9),
    )
)
register(
    ScenarioEntry(
        name="delivery",
        summary="rows are handed to a function that keeps the keys they come under",
        small=DeliveringPipeline,
        large=lambda: DeliveringPipeline(batches=8, partitions=3, rows=6, keys=9),
    )
)
for _kind in TABLE_KINDS:
    register(
        ScenarioEntry(
            name=f"table_{_kind}",
            summary=f"rows go into a model of a table ({_kind.replace('_', ', ')}) beside other writers",
            small=lambda kind=_kind: TablePipeline(kind),  # type: ignore[misc]
            large=lambda kind=_kind: TablePipeline(kind, batches=8, partitions=3, rows=6, keys=9),  # type: ignore[misc]
        )
    )
register(
    ScenarioEntry(
        name="sections",
        summary="segments of several sections, inline ones, stacks merged half way, subtasks that move between hosts",
        small=SectionedPipeline,
        large=lambda: SectionedPipeline(batches=8, partitions=3),
    )
)
register(
    ScenarioEntry(
        name="gaps",
        summary="state whose slices change apart from each other, and runs with equal bytes, all sizes tiny",
        small=GappedPipeline,
        large=lambda: GappedPipeline(batches=9, partitions=3),
    )
)
register(
    ScenarioEntry(
        name="changelog",
        summary="changes are persisted, confirmed and truncated by jobs that race",
        small=lambda: Changelog(2),
        large=Changelog,
    )
)
register(
    ScenarioEntry(
        name="recoverable",
        summary="one file over many checkpoints: resumed at its point, published once",
        small=RecoverableFile,
        large=lambda: RecoverableFile(12, 3),
    )
)
register(
    ScenarioEntry(
        name="recoverable_local",
        summary="the same on local disk, interleaved at each system call",
        small=lambda: RecoverableFile(3, 1),
        large=RecoverableFile,
        backend=ScratchBackend,
        kinds=_BY_SYSTEM_CALL,
    )
)
register(
    ScenarioEntry(
        name="files_sink",
        summary="the file sink on a model of its engine: commits come twice, fail late, go on as zombies",
        small=FilesSink,
        large=lambda: FilesSink(batches=10, partitions=3, rows=6, keys=9),
    )
)
register(
    ScenarioEntry(
        name="savepoint_claim",
        summary="a savepoint is made while a query runs, and another query claims it",
        small=SavepointAndStart,
        large=lambda: SavepointAndStart(batches=6, second_batches=3, partitions=3, keys=9),
    )
)
register(
    ScenarioEntry(
        name="savepoint_copy",
        summary="the same, and the other query starts from a copy",
        small=lambda: SavepointAndStart("copy"),
        large=lambda: SavepointAndStart("copy", batches=6, second_batches=3, partitions=3, keys=9),
    )
)
register(
    ScenarioEntry(
        name="savepoint_inline",
        summary="the same, with sections in records and so in savepoints",
        small=lambda: SavepointAndStart("copy", inline_bytes=1 << 20),
        large=lambda: SavepointAndStart("claim", inline_bytes=1 << 20, batches=6, second_batches=3, keys=9),
    )
)
register(
    ScenarioEntry(
        name="restore",
        summary="old checkpoints are read while retention frees them",
        small=lambda: RestoreBesideRetention(batches=4),
        large=lambda: RestoreBesideRetention(batches=8, partitions=3, keys=9),
    )
)
register(
    ScenarioEntry(
        name="sweep",
        summary="leftovers are swept beside running drivers",
        small=SweepBesideWriters,
        large=lambda: SweepBesideWriters(batches=7, partitions=3, keys=9),
    )
)
_LATE: Final[dict[str, tuple[Callable[[], Scenario], Callable[[], Scenario]]]] = {
    "create_race": (CreateRace, lambda: CreateRace(12)),
    "create_only": (lambda: CreateRace(scratch=False), lambda: CreateRace(24, scratch=False)),
    "store_publish": (StorePublish, lambda: StorePublish((1, 3, 0) * 4)),
    "pipeline_spanning": (lambda: Pipeline(spanning=True), lambda: Pipeline(spanning=True, batches=6, keys=9)),
}


def _late(inner: Callable[[], Scenario]) -> Callable[[], Scenario]:
    return lambda: LateRequests(inner())


for _name, (_small, _large) in _LATE.items():
    register(
        ScenarioEntry(
            name=f"{_name}_late",
            summary=f"{_name} over stores whose requests stall, and are raced",
            small=_late(_small),
            large=_late(_large),
        )
    )

_REQUESTS: Final = frozenset(
    {
        FaultKind.UNAVAILABLE,
        FaultKind.ACCESS_DENIED,
        FaultKind.LOST_REQUEST,
        FaultKind.LOST_ANSWER,
        FaultKind.LANDS_LATER,
        FaultKind.DELIVERED_TWICE,
        FaultKind.PARTS_EXPIRED,
        FaultKind.TRUNCATED,
        FaultKind.CRASH_BEFORE,
        FaultKind.CRASH_AFTER,
        FaultKind.CRASH_IN_FLIGHT,
    }
)
"""Kinds that a request to a cloud can meet."""

_CLOUDS: Final[dict[str, tuple[Callable[[], Backend], frozenset[FaultKind], int]]] = {
    "s3": (S3Backend, _REQUESTS | REQUEST_FAULTS, 2),
    "gcs": (GcsBackend, _REQUESTS, 3),
    "azure": (AzureBackend, _REQUESTS, 1),
}
"""Its backend, what its requests can meet, and the pieces of a file whose publication could take several requests."""

for _cloud, (_backend, _kinds, _pieces) in _CLOUDS.items():
    # Where the service forgets an upload or blocks, whoever publishes makes some of his own, and one who is frozen then
    # may create a file that a consumer has moved away: see docs/evidence/reliability.md. GCS forgets nothing by itself.
    _kinds_beside_a_consumer = _kinds if _cloud == "gcs" else _kinds - {FaultKind.PARTS_EXPIRED}
    register(
        ScenarioEntry(
            name=f"create_race_{_cloud}",
            summary=f"create_race over the real adapter of {_cloud}, interleaved at each request",
            small=lambda: CreateRace(2, scratch=False),
            large=lambda: CreateRace(6, scratch=False),
            backend=_backend,
            kinds=_kinds,
        )
    )
    register(
        ScenarioEntry(
            name=f"store_publish_{_cloud}",
            summary=f"store_publish over the real adapter of {_cloud}, interleaved at each request",
            small=lambda: StorePublish((1, 3)),
            large=lambda: StorePublish((1, 3, 0) * 2),
            backend=_backend,
            kinds=_kinds_beside_a_consumer,
        )
    )
    register(
        ScenarioEntry(
            name=f"publish_once_{_cloud}",
            summary=f"one file over the real adapter of {_cloud}: published once, whoever wakes up late",
            small=lambda pieces=_pieces: StorePublish((pieces,), foreign=False),  # type: ignore[misc]
            large=lambda: StorePublish((1, 3, 2, 1), foreign=False),
            backend=_backend,
            kinds=_kinds_beside_a_consumer,
        )
    )
    register(
        ScenarioEntry(
            name=f"recoverable_{_cloud}",
            summary=f"recoverable over the real adapter of {_cloud}, interleaved at each request",
            small=lambda: RecoverableFile(3, 2),
            large=lambda: RecoverableFile(8, 3),
            backend=_backend,
            kinds=_kinds,
        )
    )
register(
    ScenarioEntry(
        name="pipeline_local",
        summary="the real pipeline on local disk, interleaved at each system call",
        small=lambda: Pipeline(spanning=True, batches=3),
        large=lambda: Pipeline(spanning=True, batches=5),
        backend=ScratchBackend,
        kinds=_BY_SYSTEM_CALL,
    )
)
