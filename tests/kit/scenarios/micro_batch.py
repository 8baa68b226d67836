"""Micro-batches with exactly-once output and state, over any coordinator: replays, zombies, two drivers, a consumer.

The engine, as Spark does it: batch ids and offsets are fixed before a batch runs; tasks run elsewhere and may run
twice; after ``run_batch`` returns, the batch is entered in a log of its own; a driver that starts goes on after the
newest entry. A replay of a batch covers the same rows but spreads them over other partitions in another order.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar, NamedTuple

from stateline.testing.faults import FaultKind
from tests.kit.effects import Effect
from tests.kit.invariants import require
from tests.kit.scenario import Scenario
from tests.kit.world import Process, World

__all__ = ["MicroBatch", "MicroBatchAdapter", "MicroBatchSystem", "Row"]


class Row(NamedTuple):
    """One row of the source.

    Attributes:
        batch: The micro-batch that covers it.
        number: Its place within the batch.
        key: Its grouping key.
    """

    batch: int
    number: int
    key: str


class MicroBatchSystem(ABC):
    """A coordinator in one driver process."""

    @abstractmethod
    def start(self) -> None:
        """Finishes what the newest decision left undone. Called once, before any batch."""

    @abstractmethod
    def run_batch(self, batch_id: int, offsets_digest: str, partitions: Sequence[Sequence[Row]]) -> None:
        """Runs one batch; it is committed and published when this returns.

        Each row adds one to the count of its key, and is written to the output once.

        Args:
            batch_id: The batch.
            offsets_digest: The same for each replay of the batch.
            partitions: The rows, as this attempt spreads them over tasks; some may be empty.
        """


class MicroBatchAdapter(ABC):
    """Connects a coordinator, and reads what it has made, for the oracle.

    Reading goes through :meth:`World.objects`, below all faults.
    """

    @abstractmethod
    def open(self, process: Process) -> MicroBatchSystem:
        """A coordinator with the stores, clock, ids and executors of ``process``.

        It runs its tasks with :meth:`Process.run_tasks`.
        """

    @abstractmethod
    def finals(self, world: World) -> Iterable[str]:
        """The names of the visible output files."""

    @abstractmethod
    def rows(self, world: World, name: str) -> Sequence[tuple[Row, str]]:
        """The rows of one output file, each with the attempt that wrote it; none where there is no such file."""

    @abstractmethod
    def remove_final(self, process: Process, name: str) -> None:
        """Deletes a visible file, as a consumer that moves it away does, through the stores of ``process``."""

    @abstractmethod
    def movable(self, world: World) -> Iterable[int]:
        """The batches whose files a consumer may move away: those whose commit can no longer be resumed."""

    @abstractmethod
    def decided(self, world: World) -> int:
        """The newest batch that is decided; -1 for none."""

    @abstractmethod
    def state(self, world: World) -> Mapping[str, int]:
        """The count of each key after the newest decided batch."""

    @abstractmethod
    def missing(self, world: World) -> Iterable[str]:
        """Objects that a retained decision names and that are gone."""

    @abstractmethod
    def unclean(self, world: World, batch_id: int) -> Iterable[str]:
        """Staged pieces of a decided batch that are still there."""


class MicroBatch(Scenario):
    """See the module docstring.

    Args:
        adapter: The coordinator under test.
        batches: How many batches there are.
        partitions: Into how many partitions a batch is spread, at most.
        rows: Rows of a batch. Every third batch, from the second, is empty.
        keys: Different keys.
    """

    name: ClassVar[str] = "micro_batch"
    kinds = frozenset(FaultKind) - {FaultKind.MISSING}  # A fence that the store denies cannot be seen.
    stores: tuple[str, ...] = ("root", "out")
    speculation = 0.2

    def __init__(
        self, adapter: MicroBatchAdapter, batches: int = 3, partitions: int = 2, rows: int = 4, keys: int = 2
    ) -> None:
        self.adapter = adapter
        self.batches = batches
        self.partitions = partitions
        self.rows = rows
        self.keys = keys

    def start(self, world: World, incarnation: int) -> Process:
        """See :meth:`Scenario.start`."""
        process = world.process(f"driver-{incarnation}")
        process.spawn(lambda: self._drive(process, incarnation))
        return process

    def consume(self, world: World) -> Process | None:
        """See :meth:`Scenario.consume`."""
        process = world.process("consumer", faulty=False)
        process.spawn(lambda: self._move_away(process))
        return process

    def watch(self, world: World, effect: Effect) -> None:
        """C2: nothing of an undecided batch is visible."""
        if effect.operation != "publish":
            return
        decided = self.adapter.decided(world)
        rows = self.adapter.rows(world, effect.names[0])
        early = sorted({row.batch for row, _ in rows if row.batch > decided})
        require(not early, "C2", f"{effect.names[0]} shows rows of batches {early}, decided is {decided}")

    def check(self, world: World) -> None:
        """See :meth:`Scenario.check`."""
        visible = list(self.visible(world))
        found = Counter(row for row, _ in visible)
        wanted = Counter(row for batch in range(self.batches) for row in self._rows(batch))
        require(found == wanted, "C1", f"missing {dict(wanted - found)}, too many {dict(found - wanted)}")
        for batch in range(self.batches):
            attempts = {by for row, by in visible if row.batch == batch}
            require(len(attempts) <= 1, "C3", f"batch {batch} shows rows of the attempts {sorted(attempts)}")
        self.check_state(world, Counter(row.key for row in wanted))
        missing = sorted(self.adapter.missing(world))
        require(not missing, "F2", f"retained decisions name objects that are gone: {missing}")

    def check_state(self, world: World, counts: Counter[str]) -> None:
        """Requires of the state that it is ``counts``."""
        state = dict(self.adapter.state(world))
        require(state == dict(counts), "E1", f"the state is {state}, the model {dict(counts)}")

    def visible(self, world: World) -> Iterator[tuple[Row, str]]:
        """Every row that was ever visible and not taken back, also those that a consumer has moved away."""
        for name in self.adapter.finals(world):
            yield from self.adapter.rows(world, name)
        yield from (fact.value for fact in world.facts if fact.key[0] == "consumed")

    def _drive(self, process: Process, incarnation: int) -> None:
        world = process.world
        system = self.adapter.open(process)
        system.start()
        for batch in range(_newest_entry(world) + 1, self.batches):
            self.beside(process)
            system.run_batch(batch, f"offsets-{batch}", self._spread(world, batch, incarnation))
            left = sorted(self.adapter.unclean(world, batch))
            require(not left, "C5", f"batch {batch} is acknowledged and its pieces {left} are still there")
            if batch > _newest_entry(world):
                world.acknowledge(("committed",), batch)
        self.beside(process)

    def beside(self, process: Process) -> None:
        """What a driver does beside its batches, before each and after the last; nothing here."""

    def _rows(self, batch: int) -> list[Row]:
        if batch % 3 == 1:
            return []
        return [Row(batch, index, f"k{(batch + index) % self.keys}") for index in range(self.rows)]

    def _spread(self, world: World, batch: int, incarnation: int) -> list[list[Row]]:
        """The rows as one attempt sees them: each incarnation has other partitions and another order."""
        dice = world.dice("spread", batch, incarnation)
        partitions: list[list[Row]] = [[] for _ in range(1 + dice.below(self.partitions))]
        for row in dice.shuffled(self._rows(batch)):
            dice.pick(partitions).append(row)
        return partitions

    def _move_away(self, process: Process) -> None:
        world = process.world
        movable = set(self.adapter.movable(world))
        for name in sorted(self.adapter.finals(world)):
            rows = self.adapter.rows(world, name)
            if rows and rows[0][0].batch in movable:
                self.adapter.remove_final(process, name)
                for row, by in rows:
                    world.acknowledge(("consumed", name, row), (row, by))


def _newest_entry(world: World) -> int:
    """The newest batch in the engine's own log; -1 for none."""
    newest = world.acknowledged(("committed",))
    return -1 if newest is None else int(newest)
