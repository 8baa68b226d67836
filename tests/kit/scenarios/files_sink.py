"""The exactly-once file sink on the engine that calls it: attempts of tasks, a commit that may come twice, an abort.

The engine, as Spark does it: tasks stage their rows under names of their own, and the message of one attempt of each
reaches ``commit``, which runs in a process of its own beside the driver. When ``commit`` fails, also when it failed
after it took effect, ``abort`` is called with all messages, the query fails, and a new driver replays the batch with
its rows spread otherwise. Some drivers commit everything twice. A commit that is believed dead goes on.

Beside all that some drivers make rounds on a thread of their own, as if the time of every open file had come: while
nothing happens, while a batch commits, and while somebody else has gone on with the root.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import msgspec

from stateline.blob.api import Buffer
from stateline.changelog.segment_writer import Segments
from stateline.errors import StatelineError
from stateline.files import FileOutput, FilesResult, RollingPolicy
from stateline.pipeline.end_of_stream import file_finisher
from stateline.pipeline.files_decision import FilesDecision, files_plan
from stateline.pipeline.plan import PLAIN, PipelinePlan
from tests.kit.scenarios.micro_batch import MicroBatch, MicroBatchSystem, Row
from tests.kit.scenarios.pipeline import FIRST_QUERY, ROWS, PipelineAdapter, batches_of, is_tombstone
from tests.kit.scheduler import Actor, Status
from tests.kit.world import Process, World

__all__ = ["FilesSink", "SinkAdapter", "SinkSystem"]

_SETTINGS = replace(PLAIN, retained_checkpoints=2)
_DUE_AT_ONCE = RollingPolicy(roll_seconds=0)


class SinkSystem(MicroBatchSystem):
    """One driver of the engine.

    Args:
        process: The simulated process it lives in.
        rolling: When files are finished.
        twice: Whether it commits every batch twice.
        rounds: Whether it makes rounds.
    """

    def __init__(self, process: Process, rolling: RollingPolicy, *, twice: bool, rounds: bool) -> None:
        self._process = process
        self._output = FileOutput(url="memory://out", format="arrow", compression="none", rolling=rolling)
        self._plan = files_plan("memory://root", self._output, _SETTINGS)
        self._twice = twice
        self._rounds = rounds
        self._rolling: Actor | None = None

    def start(self) -> None:
        """See :meth:`MicroBatchSystem.start`. The engine tells the sink nothing of it."""

    def run_batch(self, batch_id: int, offsets_digest: str, partitions: Sequence[Sequence[Row]]) -> None:
        """See :meth:`MicroBatchSystem.run_batch`."""
        messages = self._process.run_tasks([self._task(rows) for rows in partitions])
        self.roll()

        def commit(process: Process) -> None:
            for _ in range(2 if self._twice else 1):
                made = [msgspec.json.decode(message, type=FilesResult) for message in messages]
                self._decision(process).commit(
                    made,
                    batch_id=batch_id,
                    offsets_digest=offsets_digest,
                    query_id=FIRST_QUERY.query,
                    run_id=self._process.name,
                )

        try:
            self._process.run_tasks([commit], max_failures=1, speculative=False)
        except StatelineError:
            self.abort(messages)
            raise

    def abort(self, messages: Sequence[bytes]) -> None:
        """What the sink does in ``abort``: nothing, for the commit may have taken effect."""

    def finish(self) -> None:
        """Finishes the files that are still open, as the end of a stream does."""
        root, out = self._process.store(FIRST_QUERY.root), self._process.store(FIRST_QUERY.out)
        finish_files = file_finisher(Segments(root, self._process.environment), {"files": (self._output, out)})
        self._decision(self._process).coordinator().finish(finish_files)

    def roll(self) -> None:
        """Begins a round on the driver's other thread, unless one is being made. What fails there is tried again."""
        if not self._rounds or (self._rolling is not None and self._rolling.status is Status.RUNNABLE):
            return

        def made() -> None:
            rolling = replace(self._output, rolling=_DUE_AT_ONCE)
            decision = self._decision(self._process, files_plan("memory://root", rolling, _SETTINGS))
            with contextlib.suppress(StatelineError):
                decision.roll(query_id=FIRST_QUERY.query, run_id=self._process.name, quiet_seconds=0.0)

        self._rolling = self._process.spawn(made, "round")

    def _task(self, rows: Sequence[Row]) -> Callable[[Process], bytes]:
        def task(process: Process) -> bytes:
            # A replay may compute other rows, so each attempt's are marked; one batch shows those of one replay.
            return msgspec.json.encode(self._decision(process).stage(batches_of(rows, self._process.name)))

        return task

    def _decision(self, process: Process, plan: PipelinePlan | None = None) -> FilesDecision:
        """The sink in some process: a task, or the one that commits."""
        root, out = process.store(FIRST_QUERY.root), process.store(FIRST_QUERY.out)
        return FilesDecision(plan or self._plan, root, out, ROWS, process.environment)


class SinkAdapter(PipelineAdapter):
    """Connects :class:`SinkSystem`; the records are those of a pipeline without state."""

    def open(self, process: Process, start: Any = None) -> Any:
        """See :meth:`MicroBatchAdapter.open`."""
        twice = process.world.dice("twice", process.name).chance(0.5)
        rounds = process.world.dice("rounds", process.name).chance(0.25)
        return SinkSystem(process, self._rolling, twice=twice, rounds=rounds)


class FilesSink(MicroBatch):
    """See the module docstring.

    Args:
        roll_bytes: Size at which a file is finished.
        more: As :class:`MicroBatch`.
    """

    name: ClassVar[str] = "files_sink"

    def __init__(self, *, roll_bytes: int = 250, **more: Any) -> None:
        self._sink = SinkAdapter(rolling=RollingPolicy(roll_bytes=roll_bytes))
        super().__init__(self._sink, **more)

    def may_replace(self, name: str, data: Buffer) -> bool:
        """See :meth:`Scenario.may_replace`."""
        return is_tombstone(name, data)

    def check_state(self, world: World, counts: Counter[str]) -> None:
        """See :meth:`MicroBatch.check_state`. There is none."""

    def _drive(self, process: Process, incarnation: int) -> None:
        super()._drive(process, incarnation)
        self._sink.open(process).finish()
