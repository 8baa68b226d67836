"""Bugs of the exactly-once file sink, planted in the real code between its engine and the coordinator."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import pyarrow as pa

from stateline.changelog.segment import encode_segment
from stateline.changelog.segment_writer import Placement, SegmentWriter
from stateline.checkpoint import Checkpoint
from stateline.errors import FencedError
from stateline.files import FileJoiner, FilesContext, FilesResult
from stateline.handles import OpenFile
from stateline.pipeline import coordinator as coordinator_module
from stateline.pipeline import files_decision
from stateline.pipeline.compatibility import Step, next_step
from stateline.pipeline.coordinator import MicroBatchCoordinator
from stateline.pipeline.open_files import with_files_finished
from tests.kit.planted.bugs import PlantedBug, register_bug, replaced
from tests.kit.scenarios.files_sink import SinkSystem

__all__: list[str] = []

# A replacement has the arguments of what it replaces, wanted or not, and reaches what is private.


def _bug(name: str, description: str, owner: Any, attribute: str, wrong: Any, suite: str, site: str) -> None:
    register_bug(
        PlantedBug(
            name=name,
            description=description,
            site=site,
            plant=lambda: replaced(owner, attribute, wrong),
            scenarios=("files_sink",),
            suites=(suite,),
        )
    )


def _decide_again(newest: Any, batch: Any, root_url: str) -> Step:
    step = next_step(newest, batch, root_url)
    return Step.RUN if step is Step.FINISH_NEWEST else step


def _abort_discards(self: SinkSystem, messages: Sequence[bytes]) -> None:
    for message in messages:
        made = msgspec.json.decode(message, type=FilesResult)
        self._process.store("out").discard([part for file in made.finished for part in file.commit.parts])
        self._process.store("root").delete([rows.name for file in made.open for rows in file.pending])


def _named_by_number(self: SegmentWriter) -> Placement:
    if not self._sections:
        return Placement({}, {}, 0)
    rows = pa.ipc.open_stream(b"".join(self._sections[0].pieces)).read_all()
    name = f"shared/rows-{rows['batch'][0].as_py()}.segment"
    encoded = encode_segment(self._sections)
    self._store.put(name, b"".join(encoded.pieces))
    return Placement({self._name: name}, {}, encoded.size)


def _only_the_last_file(context: FilesContext, recorded: Iterable[OpenFile], staged: Iterable[OpenFile]) -> FileJoiner:
    return FileJoiner(context, [*recorded, *staged][-1:])


def _takes_the_next_number(self: MicroBatchCoordinator[Any], record: Checkpoint) -> dict[str, float]:
    try:
        return _commit(self, record)
    except FencedError:
        return _commit(self, msgspec.structs.replace(record, checkpoint_id=record.checkpoint_id + 1))


_commit = MicroBatchCoordinator._commit


def _a_round_of_somebody_else(run_id: str, record: Checkpoint, following: Checkpoint) -> bool:
    return False


def _finished_and_still_open(record: Checkpoint, *arguments: Any, **more: Any) -> Checkpoint:
    made = with_files_finished(record, *arguments, **more)
    outputs = tuple(
        msgspec.structs.replace(after, open=before.open)
        for before, after in zip(record.outputs, made.outputs, strict=True)
    )
    return msgspec.structs.replace(made, outputs=outputs)


_bug(
    "sink_decides_again",
    "a batch that is committed again is decided again",
    coordinator_module,
    "next_step",
    _decide_again,
    "single",
    "stateline.pipeline.coordinator.next_step",
)
_bug(
    "sink_abort_discards",
    "abort deletes what the messages name, though the commit took effect",
    SinkSystem,
    "abort",
    _abort_discards,
    "single",
    "stateline.spark.sinks.files._StreamWriter.abort",
)
_bug(
    "sink_rows_named_by_batch",
    "pending rows are named by their batch, so two attempts write one name",
    SegmentWriter,
    "finish",
    _named_by_number,
    "zombies",
    "stateline.changelog.segment_writer.SegmentWriter.finish",
)
_bug(
    "sink_forgets_open_files",
    "of files that meet, only the rows of the last are joined",
    files_decision,
    "FileJoiner",
    _only_the_last_file,
    "single",
    "stateline.pipeline.files_decision.FilesDecision.coordinator",
)
_bug(
    "sink_takes_the_next_number",
    "a commit that a round was faster than decides under the next number what it had computed from the record before",
    MicroBatchCoordinator,
    "_commit",
    _takes_the_next_number,
    "sim",
    "stateline.pipeline.files_decision.FilesDecision.commit",
)
_bug(
    "sink_fenced_by_its_own_round",
    "a commit that a round of its own driver was faster than takes it for another driver's",
    files_decision,
    "is_round_of",
    _a_round_of_somebody_else,
    "sim",
    "stateline.pipeline.open_files.is_round_of",
)
_bug(
    "sink_round_leaves_files_open",
    "a file that a round finishes also goes on growing",
    coordinator_module,
    "with_files_finished",
    _finished_and_still_open,
    "single",
    "stateline.pipeline.open_files.with_files_finished",
)
