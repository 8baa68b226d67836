"""Bugs of what checkpoints are made of: sections, inline ones, merges half way, copies on hosts; in the real code."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from stateline.blob import BlobStore, Buffer, ObjectInfo, StoreDecorator
from stateline.changelog.section_reader import SectionReader
from stateline.changelog.segment_writer import Placement, Segments, SegmentWriter, segment_name
from stateline.checkpoint import retention as retention_module
from stateline.checkpoint.api import Checkpoint, FileState
from stateline.checkpoint.objects import with_sections
from stateline.checkpoint.packing import packed
from stateline.checkpoint.retention import Reach, reach_of
from stateline.checkpoint.store import CheckpointStore
from stateline.files import FileJoiner
from stateline.handles import OpenFile, RunHandle, SectionHandle
from stateline.pipeline import coordinator as coordinator_module
from stateline.pipeline import subtask as task_module
from stateline.state import rescale as rescale_module
from stateline.state import run_store as run_store_module
from stateline.state.runs import Run
from stateline.state.snapshot import Layers, Snapshot, snapshot
from tests.kit.early_versions import parts_across_gaps
from tests.kit.planted.bugs import PlantedBug, register_bug
from tests.kit.planted.planting import replaced

__all__: list[str] = []

# A replacement has the arguments of what it replaces, wanted or not, and reaches what is private.

H = TypeVar("H", bound=SectionHandle)


def _bug(
    name: str,
    description: str,
    owner: Any,
    attribute: str,
    wrong: Any,
    *suites: str,
    beside: Any = (),
    scenario: str = "sections",
) -> None:
    """Registers one; ``beside`` are other places that it takes, as triples of owner, attribute and code."""

    @contextlib.contextmanager
    def plant() -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for place, name_there, code in ((owner, attribute, wrong), *beside):
                stack.enter_context(replaced(place, name_there, code))
            yield

    register_bug(
        PlantedBug(
            name=name,
            description=description,
            site=f"{getattr(owner, '__module__', owner.__name__)}.{getattr(owner, '__qualname__', '')}.{attribute}",
            plant=plant,
            scenarios=(scenario,),
            suites=suites,
        )
    )


# -- segments ---------------------------------------------------------------------------------------------------------

_place = Placement.of


def _at_the_beginning(self: Placement, handle: H) -> H:
    made = _place(self, handle)
    return replace(made, offset=0) if made.name in self.names.values() else made


def _first_sections(checkpoint: Checkpoint) -> Reach:
    first = (section.name for section in checkpoint.sections() if not section.is_inline and section.offset == 0)
    return dataclasses.replace(reach_of(checkpoint), objects=frozenset(first))


def _state_alone(self: Checkpoint) -> Iterator[str]:
    for operator in self.operators:
        for subtask in operator.subtasks:
            yield from (run.name for run in subtask.runs if not run.is_inline)
    yield from (state.object_name(self.folder) for state in self.states.values() if isinstance(state, FileState))


_flush = SegmentWriter._flush


def _full_is_dropped(self: SegmentWriter) -> None:
    if inspect.stack()[1].function != "add":
        _flush(self)
        return
    self._name = segment_name(self.environment.ids)
    self._sections, self._handles, self._end = [], [], 0


_bug(
    "section_at_the_beginning",
    "every handle says that its section begins the segment",
    Placement,
    "of",
    _at_the_beginning,
    "single",
)
_bug(
    "segment_full_is_dropped",
    "a segment that is full is dropped in favour of the next one",
    SegmentWriter,
    "_flush",
    _full_is_dropped,
    "single",
)
_bug(
    "segment_lives_as_its_first_section",
    "a segment is deleted although its later sections are needed",
    retention_module,
    "reach_of",
    _first_sections,
    "single",
)
_bug(
    "rows_that_wait_are_not_reached",
    "a segment of which only rows that wait are needed is reached by nothing",
    Checkpoint,
    "object_names",
    _state_alone,
    "single",
)

# -- inline sections --------------------------------------------------------------------------------------------------


def _first_inline(self: Placement, handle: H) -> H:
    made = _place(self, handle)
    return replace(made, data=next(iter(self.inline.values()))) if made.is_inline and self.inline else made


def _all_as_one(checkpoint: Checkpoint, segments: Segments, max_bytes: int) -> Checkpoint:
    """Knows a section by its owner, which may have several."""
    first: dict[str, SectionHandle] = {}
    owners = {section.data: owner for owner, section in checkpoint.owned_sections() if section.is_inline}
    made = packed(checkpoint, segments, max_bytes)
    for (owner, before), after in zip(checkpoint.owned_sections(), made.sections(), strict=True):
        if before.is_inline and not after.is_inline:
            first.setdefault(owner, after)

    def place(section: H) -> H:
        found = first.get(owners.get(section.data, ""))
        return section if found is None else replace(section, name=found.name, offset=found.offset, data=b"")

    return made if not first else with_sections(checkpoint, place)


def _never_packed(checkpoint: Checkpoint, segments: Segments, max_bytes: int) -> Checkpoint:
    return checkpoint


class _Instead(StoreDecorator):
    """Does something else where a segment is to be made."""

    def __init__(self, inner: BlobStore, instead: Any) -> None:
        super().__init__(inner)
        self._instead = instead

    def put_all_if_absent(self, name: str, pieces: Sequence[Buffer], *, read_soon: bool = False) -> ObjectInfo:
        made: ObjectInfo = self._instead(name, b"".join(pieces))
        return made


_LATE: Final[dict[str, tuple[str, bytes]]] = {}
"""Segments that are not made yet, by the nonce of their record."""


def _packed_later(checkpoint: Checkpoint, segments: Segments, max_bytes: int) -> Checkpoint:
    def keep(name: str, data: bytes) -> ObjectInfo:
        _LATE[checkpoint.nonce] = name, data
        return ObjectInfo(name=name, size=len(data), modified_at=0.0)

    return packed(checkpoint, dataclasses.replace(segments, store=_Instead(segments.store, keep)), max_bytes)


_publish = CheckpointStore.publish


def _publish_first(self: CheckpointStore, checkpoint: Checkpoint) -> Checkpoint:
    record = _publish(self, checkpoint)
    if checkpoint.nonce in _LATE:
        self.store.put_if_absent(*_LATE.pop(checkpoint.nonce))
    return record


_adopt = FileJoiner._adopt


def _named_rows_alone(self: FileJoiner, file: OpenFile) -> None:
    _adopt(self, replace(file, pending=tuple(rows for rows in file.pending if not rows.is_inline)))


def _joins_by_name(before: RunHandle, after: RunHandle) -> bool:
    return before.name == after.name and before.last_key_group + 1 == after.first_key_group


_bug(
    "inline_sections_are_one",
    "all inline sections of a result carry the bytes of the first one",
    Placement,
    "of",
    _first_inline,
    "single",
)
_bug(
    "packed_by_owner",
    "of all inline sections of one owner the first one is packed",
    coordinator_module,
    "packed",
    _all_as_one,
    "single",
)
_bug(
    "record_without_bound",
    "inline sections stay in the record, however many they are",
    coordinator_module,
    "packed",
    _never_packed,
    "single",
)
_bug(
    "packed_after_the_record",
    "the record names a segment that is not there yet",
    coordinator_module,
    "packed",
    _packed_later,
    "single",
    beside=((CheckpointStore, "publish", _publish_first),),
)
_bug(
    "inline_rows_forgotten",
    "who goes on with a file leaves out its rows that are in the record",
    FileJoiner,
    "_adopt",
    _named_rows_alone,
    "single",
)
_bug(
    "inline_runs_joined_by_name",
    "a rescale takes any two inline runs for parts of one, as neither has a name",
    rescale_module,
    "_joins",
    _joins_by_name,
    "single",
)

# -- stacks that are merged half way ----------------------------------------------------------------------------------

_planned = Layers._planned
_kept = Layers.kept


def _older_on_top(*arguments: Any, **more: Any) -> Snapshot:
    made = snapshot(*arguments, **more)
    kept = tuple(run for run in made.state.runs if run not in made.written)
    return dataclasses.replace(made, state=replace(made.state, runs=(*made.written, *kept)))


def _merged_slices_alone(self: Layers, *arguments: Any) -> Any:
    durable = sum(run.handle is not None for run in self._table.runs)
    return [layer for layer in _planned(self, *arguments) if layer.first < durable]


def _without_rest(self: Layers) -> list[Run]:
    """Of what is left of older runs in the slices that were not merged, the first part is missing."""
    whole = {run.handle.identity: run.key_groups for run in self._table.runs if run.handle is not None}
    kept = _kept(self)
    rest = [run for run in kept if run.handle is not None and run.key_groups != whole[run.handle.identity]]
    return [run for run in kept if run not in rest[:1]]


_bug(
    "half_merged_older_on_top",
    "what is left of older runs lies on top of the layer that was merged",
    task_module,
    "snapshot",
    _older_on_top,
    "single",
)
_bug(
    "half_merged_slices_alone_are_written",
    "changes in slices whose merge has to wait are written nowhere",
    Layers,
    "_planned",
    _merged_slices_alone,
    "single",
)
_bug(
    "half_merged_rest_is_let_go",
    "what an older run has in slices that were not merged is let go",
    Layers,
    "kept",
    _without_rest,
    "single",
)

_bug(
    "half_merged_gap_is_copied",
    "a merge copies the slices between those that it merges, and the older run keeps them, too",
    Layers,
    "_parts",
    parts_across_gaps,
    "single",
    scenario="gaps",
)
_bug(
    "inline_sections_known_by_their_bytes",
    "an inline section has no identity but its bytes",
    RunHandle,
    "identity",
    property(lambda self: (self.name, self.offset, self.data, 0)),
    "single",
    scenario="gaps",
)

# -- copies on hosts --------------------------------------------------------------------------------------------------


def _believed(buffer: Any, handle: RunHandle) -> None:
    """Proves nothing."""


def _slice_believed(buffer: Any, handle: RunHandle, index: Any, batches: range) -> None:
    """Proves nothing."""


def _first_copy_alone(self: SectionReader, section: Any, read: Any, part: Any = None) -> Any:
    if section.is_inline or self._cache is None:
        return _near(self, section, read, part)
    for found in self._copies(self._cache, section, None):
        return read(found.buffer)
    return None


_near = SectionReader.near

_bug(
    "damaged_copy_fails_the_task",
    "a damaged copy is neither replaced nor passed over",
    SectionReader,
    "near",
    _first_copy_alone,
    "single",
)
_bug(
    "copy_is_believed",
    "what a host has for a run is taken without a look at its checksum",
    run_store_module,
    "check_whole",
    _believed,
    "single",
    "sim",
)
