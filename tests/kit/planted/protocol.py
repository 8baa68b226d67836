"""Bugs of the micro-batch protocol, planted in the reference coordinator."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from stateline.blob.api import BlobStore
from stateline.errors import (
    AlreadyExistsError,
    DataLossError,
    NotFoundError,
    OutcomeUnknownError,
    StatelineError,
)
from stateline.handles import CommitPoint, Part
from tests.kit.planted.bugs import PlantedBug, register_bug, replaced
from tests.kit.scenarios import reference_system
from tests.kit.scenarios.micro_batch import Row
from tests.kit.scenarios.reference_system import Record, ReferenceSystem, encoded, exists, read_record
from tests.kit.scenarios.retry import certain
from tests.kit.world import Process

__all__: list[str] = []

# A replacement has the arguments of what it replaces, wanted or not.

_SCENARIO = ("micro_batch_reference",)


def _bug(name: str, description: str, method: str, wrong: Callable[..., Any], *suites: str) -> None:
    register_bug(
        PlantedBug(
            name=name,
            description=description,
            site=f"testing.scenarios.reference_system.ReferenceSystem.{method}",
            plant=lambda: replaced(ReferenceSystem, method, wrong),
            scenarios=_SCENARIO,
            suites=suites,
        )
    )


def _plain_put(self: ReferenceSystem, name: str, data: bytes) -> None:
    certain(lambda: self._root.put(name, data))


def _check_then_put(self: ReferenceSystem, name: str, data: bytes) -> None:
    if exists(self._root, name):
        raise AlreadyExistsError("the name is taken", operation="put", subject=name)
    certain(lambda: self._root.put(name, data))


def _unknown_is_success(self: ReferenceSystem, name: str, data: bytes) -> None:
    with contextlib.suppress(OutcomeUnknownError):
        self._root.put_if_absent(name, data)


def _go_on_with_own(self: ReferenceSystem, record: Record) -> Record:
    with contextlib.suppress(AlreadyExistsError):
        self.create_record(f"chk-{record.batch}/_metadata", encoded(record))
    return record


def _adopt_output_only(self: ReferenceSystem, record: Record) -> Record:
    try:
        self.create_record(f"chk-{record.batch}/_metadata", encoded(record))
    except AlreadyExistsError:
        winner = read_record(self._root, record.batch) or record
        return Record(record.batch, record.digest, winner.nonce, winner.files, record.runs)
    return record


def _never_freed(self: ReferenceSystem, batch: int) -> bool:
    return False


def _attempt_name(self: ReferenceSystem, store: BlobStore, rows: Sequence[Row], process: Process) -> str:
    return f"{rows[0].batch}-{process.name.rpartition('.')[2].partition('~')[0]}"


def _discard_by_prefix(self: ReferenceSystem, parts: Sequence[Part]) -> None:
    names = [info.name for info in self._out.list(".inprogress/")]
    certain(lambda: self._out.delete(names))


def _lazy_clean(self: ReferenceSystem, record: Record) -> None:
    mark = f"chk-{record.batch}/published"
    if exists(self._root, mark):
        self.discard([part for file in record.files for part in file.parts])
        return
    for file in record.files:
        self.publish(file)
    certain(lambda: self._root.put_if_absent(mark, b"published"))


def _missing_is_success(self: ReferenceSystem, file: CommitPoint) -> None:
    with contextlib.suppress(DataLossError):
        certain(lambda: self._out.publish(file.target, file.parts, file.nonce))


def _abort_deletes(self: ReferenceSystem, record: Record | None) -> None:
    if record is not None:
        with contextlib.suppress(StatelineError):
            self._out.discard([part for file in record.files for part in file.parts])


def _frees_everything(self: ReferenceSystem, old: Record, newest: Record) -> list[str]:
    return [run.name for run in old.runs]


def _frees_before_the_floor(self: ReferenceSystem, record: Record) -> None:
    old = read_record(self._root, record.batch - self._retained)
    if old is not None:
        self.free([f"chk-{old.batch}/_metadata", f"chk-{old.batch}/published"])
        self.free(self.unreachable(old, record))


def _publish_first(self: ReferenceSystem, record: Record) -> Record:
    for file in record.files:
        self.publish(file)
    return _DECIDE(self, record)


def _swallow_task_errors(
    self: ReferenceSystem, batch: int, digest: str, nonce: str, partitions: Sequence[Sequence[Row]]
) -> Record:
    def lenient(tasks: Sequence[Callable[[Process], Any]]) -> list[Any]:
        def guarded(task: Callable[[Process], Any]) -> Callable[[Process], Any]:
            def run(process: Process) -> Any:
                try:
                    return task(process)
                except StatelineError:
                    return None, None

            return run

        return run_tasks([guarded(task) for task in tasks])

    run_tasks = self._process.run_tasks
    with replaced(self._process, "run_tasks", lenient):
        return _PREPARE(self, batch, digest, nonce, partitions)


def _state_of_the_attempt(self: ReferenceSystem) -> None:
    _START(self)
    if self._newest is not None:
        wanted = self._newest.runs[:-1] or self._newest.runs
        self._newest = Record(self._newest.batch, self._newest.digest, self._newest.nonce, self._newest.files, wanted)


def _missing_run_is_empty(root: BlobStore, runs: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for run in runs:
        with contextlib.suppress(NotFoundError, StatelineError):
            for key, count in _MERGED(root, [run]).items():
                counts[key] = counts.get(key, 0) + count
    return counts


_DECIDE = ReferenceSystem.decide
_PREPARE = ReferenceSystem.prepare
_START = ReferenceSystem.start
_MERGED = reference_system.merged

_bug("record_by_plain_put", "the record overwrites what is there", "create_record", _plain_put, "zombies", "sim")
_bug("record_check_then_put", "the record is put after a look", "create_record", _check_then_put, "zombies")
_bug(
    "unknown_is_success",
    "an unknown outcome of the decision counts as won",
    "create_record",
    _unknown_is_success,
    "single",
)
_bug("no_adoption", "who loses the decision goes on with his own files", "decide", _go_on_with_own, "zombies", "sim")
_bug("adopt_output_only", "who loses adopts the files and keeps his own state", "decide", _adopt_output_only, "zombies")
_bug("no_floor_check", "a slot that was freed is taken for a fresh one", "is_freed", _never_freed, "zombies", "sim")
_bug("attempt_names", "names are made of batch and task numbers", "new_name", _attempt_name, "single", "zombies")
_bug("clean_by_prefix", "cleaning deletes every staged piece", "discard", _discard_by_prefix, "zombies", "sim")
_bug("lazy_clean", "pieces are removed after the acknowledgement", "finish", _lazy_clean, "single")
_bug(
    "missing_is_success",
    "a file without pieces and target counts as published",
    "publish",
    _missing_is_success,
    "single",
)
_bug("abort_deletes", "a failed commit removes its pieces", "abort", _abort_deletes, "single", "sim")
_bug(
    "retention_ignores_reach",
    "retention deletes runs that younger records name",
    "unreachable",
    _frees_everything,
    "single",
)
_bug(
    "retention_before_floor",
    "slots are freed without raising the floor",
    "retain",
    _frees_before_the_floor,
    "zombies",
    "sim",
)
_bug("publish_before_decision", "files become visible before the record exists", "decide", _publish_first, "single")
_bug("task_error_swallowed", "a task that fails counts as empty", "prepare", _swallow_task_errors, "single")
_bug("restart_forgets_state", "a restart drops the newest run", "start", _state_of_the_attempt, "single")
register_bug(
    PlantedBug(
        name="missing_run_is_empty",
        description="state that cannot be read counts as empty",
        site="testing.scenarios.reference_system.merged",
        plant=lambda: replaced(reference_system, "merged", _missing_run_is_empty),
        scenarios=_SCENARIO,
        suites=("sim",),
    )
)
