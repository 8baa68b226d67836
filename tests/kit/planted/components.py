"""Bugs of the recoverable writer, the changelog and keyed state, planted in the real code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

from stateline.changelog.registry import Ownership
from stateline.changelog.set_table import SetTable
from stateline.changelog.uploader import BlobUploader
from stateline.checkpoint.api import OperatorState, SubtaskState
from stateline.errors import ConflictError, OutcomeUnknownError
from stateline.handles import ResumePoint
from stateline.key_groups import KeyGroupRange
from stateline.recoverable.committer import Committer
from stateline.recoverable.stream import RecoverableStream
from stateline.recoverable.writer import RecoverableWriter
from stateline.state import merge as merge_module
from stateline.state import rescale as rescale_module
from stateline.state import snapshot as snapshot_module
from tests.kit.planted.bugs import PlantedBug, register_bug, replaced

__all__: list[str] = []

# A replacement has the arguments of what it replaces, wanted or not, and reaches what is private.

_FILE: Final = ("recoverable",)
_CHANGELOG: Final = ("changelog",)
_PIPELINE: Final = ("pipeline",)


def _bug(
    name: str,
    description: str,
    owner: Any,
    attribute: str,
    wrong: Any,
    suite: str,
    scenarios: tuple[str, ...],
) -> None:
    register_bug(
        PlantedBug(
            name=name,
            description=description,
            site=f"{getattr(owner, '__module__', owner.__name__)}.{getattr(owner, '__qualname__', '')}.{attribute}",
            plant=lambda: replaced(owner, attribute, wrong),
            scenarios=scenarios,
            suites=(suite,),
        )
    )


# -- the recoverable writer ---------------------------------------------------------------------------------------

_persist = RecoverableStream.persist
_recovered = RecoverableStream._recovered
_recover = RecoverableWriter.recover
_publish = Committer._publish


def _forgets(self: RecoverableStream) -> None:
    """Leaves what is buffered where it is."""


def _persist_without_sync(self: RecoverableStream) -> ResumePoint:
    """Names the pieces there are, and forgets what is still buffered."""
    sync = RecoverableStream.sync
    with replaced(RecoverableStream, "sync", _forgets):
        point = _persist(self)
    sync(self)
    return point


def _drop_the_tail(self: RecoverableStream, parts: tuple[Any, ...]) -> Any:
    return _recovered(self, parts[:-1] if len(parts) > 1 else parts)


def _resume_at_the_beginning(self: RecoverableWriter, point: ResumePoint, *, verify: bool = True) -> RecoverableStream:
    return self.open(point.target)


def _cleanup_everything(self: RecoverableWriter, point: ResumePoint, *, keep: Any = None) -> bool:
    self._store.discard((*point.parts, *point.superseded))
    return True


def _conflict_is_success(self: Committer) -> None:
    with contextlib.suppress(ConflictError):
        _publish(self)


def _discard_before_publishing(self: Committer) -> None:
    self._discard()
    self._publish()


def _unknown_is_published(self: Committer) -> None:
    with contextlib.suppress(OutcomeUnknownError):
        self._publish()
    self._discard()


_bug(
    "recoverable_persist_without_sync",
    "a point names fewer bytes than were accepted",
    RecoverableStream,
    "persist",
    _persist_without_sync,
    "single",
    _FILE,
)
_bug(
    "recoverable_tail_dropped",
    "a recovered file forgets its last piece",
    RecoverableStream,
    "_recovered",
    _drop_the_tail,
    "single",
    _FILE,
)
_bug(
    "recoverable_starts_anew",
    "recovery opens the file anew",
    RecoverableWriter,
    "recover",
    _resume_at_the_beginning,
    "single",
    _FILE,
)
_bug(
    "recoverable_cleanup_everything",
    "cleaning up deletes pieces that the point still names",
    RecoverableWriter,
    "cleanup",
    _cleanup_everything,
    "single",
    _FILE,
)
_bug(
    "recoverable_discard_first",
    "pieces are deleted before the file is published",
    Committer,
    "commit_after_recovery",
    _discard_before_publishing,
    "single",
    _FILE,
)
_bug(
    "recoverable_unknown_is_published",
    "an unknown outcome of the publication counts as published",
    Committer,
    "commit_after_recovery",
    _unknown_is_published,
    "single",
    _FILE,
)

# -- the changelog ------------------------------------------------------------------------------------------------


def _unpinned(self: Ownership, results: Iterable[Any]) -> None:
    """Deletes at once what a confirmed checkpoint owns."""
    for result in results:
        self.remote.discard(result.handle)


def _not_pinned(self: SetTable, result: Any) -> bool:
    """A snapshot names objects, and nobody remembers it."""
    return False


def _write_unasked(self: BlobUploader, made: Any) -> None:
    with contextlib.suppress(OSError):
        self.store.put_all_if_absent(made.name, made.pieces)


_bug(
    "changelog_upload_error_swallowed",
    "an upload that failed counts as durable",
    BlobUploader,
    "write",
    _write_unasked,
    "single",
    _CHANGELOG,
)
_bug(
    "changelog_confirmed_is_deleted",
    "objects that a confirmed checkpoint names are deleted",
    Ownership,
    "give_away",
    _unpinned,
    "single",
    _CHANGELOG,
)
_bug(
    "changelog_snapshot_not_pinned",
    "objects that a snapshot names are not counted as named",
    SetTable,
    "_is_named",
    _not_pinned,
    "single",
    _CHANGELOG,
)

# -- keyed state --------------------------------------------------------------------------------------------------

_slices = rescale_module._slices


def _first_half_only(operator: OperatorState, owned: KeyGroupRange, max_parallelism: int) -> SubtaskState:
    """A new subtask reads the runs of one old subtask only."""
    lineages = [lineage for subtask in operator.subtasks if (lineage := _slices(subtask, owned))]
    runs = tuple(lineages[0]) if lineages else ()
    return SubtaskState(first_key_group=owned.start, last_key_group=owned.end, runs=runs)


def _newest_first(subtask: SubtaskState, owned: KeyGroupRange) -> list[Any]:
    return list(reversed(_slices(subtask, owned)))


def _newest_run_only(subtask: SubtaskState, owned: KeyGroupRange) -> list[Any]:
    return _slices(subtask, owned)[-1:]


def _no_old_runs(runs: Sequence[Any], *arguments: Any, **more: Any) -> Any:
    return _merge_windows(runs[-1:], *arguments, **more)


def _no_newest_changes(self: Any, number: int, layers: Sequence[Any]) -> Any:
    return iter(()) if number + 1 == len(self._table.runs) else _parts(self, number, layers)


_merge_windows = merge_module.merge_windows
_parts = snapshot_module.Layers._parts

_bug(
    "state_layer_without_changes",
    "the newest changes take no part in a merge of slices of different depth",
    snapshot_module.Layers,
    "_parts",
    _no_newest_changes,
    "sim",
    _PIPELINE,
)
_bug(
    "state_merge_forgets_old_runs",
    "a merge keeps the rows of the newest run only",
    snapshot_module,
    "merge_windows",
    _no_old_runs,
    "sim",
    _PIPELINE,
)
_bug(
    "state_rescale_reads_one",
    "a subtask that takes over from several restores one of them",
    rescale_module,
    "state_of_range",
    _first_half_only,
    "single",
    _PIPELINE,
)
_bug(
    "state_rescale_newest_run",
    "a restored subtask reads only its newest run",
    rescale_module,
    "_slices",
    _newest_run_only,
    "sim",
    _PIPELINE,
)
_bug(
    "state_rescale_turns_stack",
    "a restored stack is upside down: old rows win",
    rescale_module,
    "_slices",
    _newest_first,
    "sim",
    _PIPELINE,
)
