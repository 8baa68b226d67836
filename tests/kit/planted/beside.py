"""Bugs of what works beside a query: savepoints, restores, sweeps; planted in the real code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from msgspec.structs import replace

from stateline.blob import sweep as sweep_module
from stateline.blob.api import BlobStore
from stateline.changelog.host_cache import HostCache
from stateline.checkpoint import Checkpoint, CheckpointStore, Savepoint
from stateline.checkpoint import savepoint as savepoint_module
from stateline.checkpoint.api import SubtaskState
from stateline.checkpoint.layout import METADATA, SAVEPOINT_PREFIX, record_name
from stateline.checkpoint.metadata import encode_retired, encode_savepoint
from stateline.checkpoint.objects import copy_object, extents_of, flat_names, renamed
from stateline.checkpoint.retention import Retention, RetentionRule, retire
from stateline.environment import Environment
from stateline.errors import DataLossError, NotFoundError
from stateline.files import joiner as joiner_module
from stateline.files.pending import load_rows
from stateline.handles import RowsHandle
from tests.kit.planted.bugs import PlantedBug, register_bug, replaced
from tests.kit.scenarios import beside as beside_module

__all__: list[str] = []

# A replacement has the arguments of what it replaces, wanted or not, and reaches what is private.

_SAVEPOINTS: Final = ("savepoint_claim", "savepoint_copy")
_RESTORE: Final = ("restore",)
_SWEEP: Final = ("sweep",)
_FAR_AHEAD: Final = 1e12


def _bug(
    name: str,
    description: str,
    places: Sequence[tuple[Any, str]],
    wrong: Any,
    suite: str,
    scenarios: tuple[str, ...],
) -> None:
    owner, attribute = places[0]

    @contextlib.contextmanager
    def plant() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for place, name_there in places:
                stack.enter_context(replaced(place, name_there, wrong))
            yield

    register_bug(
        PlantedBug(
            name=name,
            description=description,
            site=f"{getattr(owner, '__module__', owner.__name__)}.{getattr(owner, '__qualname__', '')}.{attribute}",
            plant=plant,
            scenarios=scenarios,
            suites=(suite,),
        )
    )


# -- savepoints -------------------------------------------------------------------------------------------------------


def _record_first(
    source: CheckpointStore,
    checkpoint: Checkpoint,
    spark_checkpoint: Any,
    target: BlobStore,
    label: str,
    progress: Any,
    environment: Environment,
) -> Savepoint:
    folder = SAVEPOINT_PREFIX + environment.ids.new_id()
    found = extents_of(checkpoint)
    names = flat_names(found)
    record = replace(renamed(checkpoint, names.__getitem__), nonce=environment.ids.new_id())
    target.put_if_absent(f"{folder}/{METADATA}", encode_savepoint(record))
    for name, extents in found.items():
        copy_object(source.store, name, extents, target, f"{folder}/{names[name]}")
    return Savepoint(store=target, folder=folder, checkpoint=record)


def _skip_what_is_gone(source: BlobStore, name: str, extents: Any, target: BlobStore, target_name: str) -> None:
    with contextlib.suppress(NotFoundError):
        copy_object(source, name, extents, target, target_name)


def _without_open_files(checkpoint: Checkpoint, *arguments: Any, **more: Any) -> Checkpoint:
    moved = renamed(checkpoint, *arguments, **more)
    return replace(moved, outputs=tuple(replace(output, open=()) for output in moved.outputs))


_without_deliveries = Checkpoint.without_deliveries


def _without_inline_runs(self: Checkpoint) -> Checkpoint:
    def named(subtask: SubtaskState) -> SubtaskState:
        return replace(subtask, runs=tuple(run for run in subtask.runs if not run.is_inline))

    operators = [replace(one, subtasks=tuple(map(named, one.subtasks))) for one in self.operators]
    return replace(_without_deliveries(self), operators=tuple(operators))


def _nobody(self: Savepoint) -> None:
    """Says that nobody owns it."""


_bug(
    "savepoint_record_first",
    "a savepoint can be found before it is whole",
    [(savepoint_module, "_created")],
    _record_first,
    "single",
    _SAVEPOINTS,
)
_bug(
    "savepoint_skips_what_is_gone",
    "what retention took away while it was copied is left out",
    [(savepoint_module, "copy_object")],
    _skip_what_is_gone,
    "sim",
    _SAVEPOINTS,
)
_bug(
    "savepoint_without_inline_sections",
    "a savepoint leaves out what the record itself holds of the state",
    [(Checkpoint, "without_deliveries")],
    _without_inline_runs,
    "single",
    ("savepoint_inline",),
)
_bug(
    "savepoint_without_open_files",
    "rows that nobody has seen yet are not taken along",
    [(savepoint_module, "renamed")],
    _without_open_files,
    "single",
    _SAVEPOINTS,
)
_bug(
    "savepoint_owner_ignored",
    "a savepoint that one query owns is given to another",
    [(Savepoint, "owner")],
    _nobody,
    "single",
    ("savepoint_claim",),
)

# -- restores ---------------------------------------------------------------------------------------------------------


def _rows_that_are_there(
    store: BlobStore, handles: Sequence[RowsHandle], cache: HostCache | None = None
) -> Iterator[pa.Table]:
    with contextlib.suppress(DataLossError):
        yield from load_rows(store, handles, cache)


def _delete_before_retiring(self: Retention, num_retained: int | RetentionRule) -> None:
    live = self._recover() if self._live is None else self._live
    for oldest in self.retirable(num_retained):
        tombstone = retire(live[oldest], [reach for number, reach in live.items() if number != oldest])
        self._unfinished = tombstone
        self._finish()
        self._store.put(record_name(oldest), encode_retired(tombstone))
        del live[oldest]


_bug(
    "pending_rows_gone_are_none",
    "rows of an open file that are gone count as no rows",
    [(joiner_module, "load_rows"), (beside_module, "load_rows")],
    _rows_that_are_there,
    "zombies",
    _RESTORE,
)
_bug(
    "retention_deletes_before_retiring",
    "what a record reaches goes before the record says so",
    [(Retention, "retain")],
    _delete_before_retiring,
    "zombies",
    _RESTORE,
)

# -- sweeps -----------------------------------------------------------------------------------------------------------


def _by_an_old_listing(self: CheckpointStore) -> list[Checkpoint]:
    """What this method did until a simulated sweep lost objects: it found only what the listing had shown."""
    listed_ids = self._slots.listed_ids()
    newest = self._slots.newest(listed_ids)
    older = (
        [] if newest is None else [self._slots.read(number) for number in listed_ids if number < newest.checkpoint_id]
    )
    found = [slot for slot in older if isinstance(slot, Checkpoint)]
    return [*found, newest] if newest is not None else found


def _reaches_nothing(points: Any) -> set[str]:
    return set()


def _far_ahead(store: BlobStore, ids: Any) -> float:
    return _FAR_AHEAD


_bug(
    "sweep_by_an_old_listing",
    "checkpoints decided since the listing, other than the newest, are not seen",
    [(CheckpointStore, "list")],
    _by_an_old_listing,
    "zombies",
    _SWEEP,
)
_bug(
    "sweep_ignores_records",
    "every old piece counts as a leftover, whatever records say",
    [(sweep_module, "reachable_names")],
    _reaches_nothing,
    "single",
    _SWEEP,
)
_bug(
    "sweep_by_a_wrong_clock",
    "ages are measured against a clock that is far ahead",
    [(sweep_module, "_store_time")],
    _far_ahead,
    "zombies",
    _SWEEP,
)
