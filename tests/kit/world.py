"""A simulated world: processes with clocks, ids, threads and stores of their own, over the same durable objects.

From the code under test down to the bytes, a store call passes: the backend model (optional, ``ResolvingStore``), the
switch point and the trace, the faults, the watch of effects, the real backend.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, Self, TypeVar

from stateline.blob.api import BlobStore, Buffer, ObjectInfo
from stateline.blob.instrumented import StoreDecorator
from stateline.errors import (
    AccessDeniedError,
    AlreadyExistsError,
    ConflictError,
    CorruptDataError,
    DataLossError,
    InternalError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    StatelineError,
    StorageFullError,
    UnavailableError,
)
from stateline.handles import Part
from stateline.testing.clock import ManualClock
from stateline.testing.faults import ActorKilled, Fault, FaultKind, FaultPlan, ScriptedFaults
from stateline.testing.faulty_store import FaultyStore, ResolvingStore, StoreHistory
from stateline.testing.seeds import Dice
from tests.kit.backends import Backend, MemoryBackend
from tests.kit.effects import Contents, Effect, ObservedStore
from tests.kit.environment import SimulatedClock, SimulatedEnvironment
from tests.kit.invariants import InvariantViolation
from tests.kit.scheduler import Actor, Group, Scheduler, Status
from tests.kit.trace import Trace

__all__ = ["Fact", "Process", "World"]

T = TypeVar("T")

_MAY_RAISE: Final = (InvalidInputError, AccessDeniedError, UnavailableError, StorageFullError)
_PROMISED_ERRORS: Final[dict[str, tuple[type[StatelineError], ...]]] = {
    "put": (OutcomeUnknownError,),
    "put_if_absent": (AlreadyExistsError, OutcomeUnknownError),
    "get": (NotFoundError,),
    "get_range": (NotFoundError, CorruptDataError),
    "head": (NotFoundError,),
    "list": (),
    "delete": (OutcomeUnknownError,),
    "stage": (OutcomeUnknownError,),
    "publish": (ConflictError, DataLossError, CorruptDataError, OutcomeUnknownError),
    "discard": (OutcomeUnknownError,),
}
"""What each call of a store may raise by ``blob.api``, besides :data:`_MAY_RAISE`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """Something that was acknowledged to the outside and can never be taken back.

    Attributes:
        key: What; the newest fact of a key counts.
        value: Anything the oracle needs.
        position: How many changes the disk had seen, where the backend records them: what power loss cannot undo.
    """

    key: tuple[Any, ...]
    value: Any
    position: int


class Process:
    """One simulated operating-system process: it has its own environment and dies as a whole.

    Attributes:
        name: Unique in its world.
        group: What the scheduler knows it as.
        environment: Clock, ids, executors and monitors of this process.
        operations: Store and system calls that it has begun.
        task_operations: The same, of the tasks that it ran.
        main: Its first actor.
    """

    def __init__(self, world: World, name: str, parent: Process | None, *, faulty: bool) -> None:
        self.world = world
        self.name = name
        self.parent = parent
        self.faulty = faulty
        self.group: Group = Group(name, parent.group if parent else None)
        self.environment = SimulatedEnvironment(world.scheduler, self.group, world.seed)
        self.operations = 0
        self.main: Actor | None = None
        self._stores: dict[str, BlobStore] = {}

    @property
    def ended(self) -> bool:
        """Whether its first actor has returned, raised or died."""
        return self.group.dead or (self.main is not None and self.main.status is not Status.RUNNABLE)

    @property
    def succeeded(self) -> bool:
        """Whether its first actor has returned."""
        return self.main is not None and self.main.status is Status.FINISHED

    @property
    def error(self) -> Exception | None:
        """What its first actor raised."""
        return self.main.error if self.main else None

    @property
    def clock(self) -> SimulatedClock:
        """Its clock, whose wall time may be skewed."""
        clock = self.environment.clock
        if not isinstance(clock, SimulatedClock):
            raise InternalError("a simulated process has another clock")
        return clock

    def store(self, name: str = "root") -> BlobStore:
        """The store ``name`` as this process reaches it: with switch points, and with faults."""
        if name not in self._stores:
            self._stores[name] = self.world._connect(self, name)
        return self._stores[name]

    def spawn(self, function: Callable[[], Any], name: str = "main") -> Actor:
        """A new thread of this process."""
        actor = self.world.scheduler.spawn(f"{self.name}/{name}" if self.main else self.name, function, self.group)
        self.main = self.main or actor
        return actor

    def kill(self) -> None:
        """``kill -9``."""
        self.world.scheduler.kill(self.group)

    def freeze(self) -> None:
        """SIGSTOP, for this process and its tasks."""
        self.world.scheduler.freeze(self.group)

    def thaw(self) -> None:
        """SIGCONT."""
        self.world.scheduler.thaw(self.group)

    def begin(self, operation: str) -> None:
        """The switch point before a store call or system call of this process."""
        self.world.scheduler.pause()
        if self.group.dead:
            raise ActorKilled(self.name)
        process: Process | None = self
        while process is not None:
            process.operations += 1
            process = process.parent
        self.world.operations += 1
        self.world.last_operation = operation

    def crash(self) -> NoReturn:
        """Kills this process from inside one of its calls."""
        self.kill()
        raise ActorKilled(self.name)

    def run_tasks(
        self, tasks: Sequence[Callable[[Process], T]], *, max_failures: int = 4, speculative: bool = True
    ) -> list[T]:
        """Runs each function in a process of its own, as an engine runs tasks on executors; returns their results.

        A task that fails or dies is run again, elsewhere. With ``World.speculation`` a task that is ``speculative`` may
        also run twice at once; the first to return wins. Attempts that are no longer waited for go on: zombies.

        Raises:
            StatelineError: What a task raised that failed ``max_failures`` times.
        """
        running = {index: [self._launch(index, task)] for index, task in enumerate(tasks)}
        results: dict[int, T] = {}
        failures = [0] * len(tasks)
        dice = self.world.dice("speculation", self.name, self.operations)
        for index, task in enumerate(tasks):
            if speculative and self.world.speculation and dice.chance(self.world.speculation):
                running[index].append(self._launch(index, task))
        while running:
            attempts = [(index, attempt) for index, found in running.items() for attempt in found]
            self.world.scheduler.wait(functools.partial(_any_ended, attempts))
            for index, attempt in attempts:
                if not attempt.ended:
                    continue
                running[index].remove(attempt)
                if attempt.succeeded and attempt.main is not None:
                    results.setdefault(index, attempt.main.result)
                elif index not in results:
                    failures[index] += 1
                    if failures[index] >= max_failures:
                        raise _task_error(attempt)
                    running[index].append(self._launch(index, tasks[index]))
            running = {index: found for index, found in running.items() if index not in results}
        return [results[index] for index in range(len(tasks))]

    def _launch(self, index: int, task: Callable[[Process], T]) -> Process:
        attempt = self.world.process(f"{self.name}.task{index}", parent=self)
        attempt.spawn(lambda: task(attempt))
        return attempt


class World:
    """Everything that one run consists of. Use it as a context manager.

    Args:
        seed: Seed of the ids and of every draw that is not given otherwise.
        faults: Which faults strike; none by default.
        backend: Where the objects are; memory by default.
        resolving: Whether stores resolve lost answers by reading back, as real backends do.
        speculation: Probability that a task runs twice at once.

    Attributes:
        operations: Store and system calls begun, by anybody.
        facts: What was acknowledged to the outside, in order.
        watchers: Called after every effect on a store.
        violation: The first that a watcher saw.
        reach: What stands between a process and each of its stores; nothing by default.
        may_replace: Which overwrites, by name and new bytes, the system under test documents as safe; none by default.
    """

    def __init__(
        self,
        seed: int = 0,
        *,
        faults: FaultPlan | None = None,
        backend: Backend | None = None,
        resolving: bool = False,
        speculation: float = 0.0,
    ) -> None:
        self.seed = seed
        self.faults = faults or ScriptedFaults()
        self.backend: Backend = backend or MemoryBackend()
        self.resolving = resolving
        self.speculation = speculation
        self.clock = ManualClock()
        self.trace = Trace()
        self.scheduler = Scheduler(self.clock, self.trace)
        self.processes: dict[str, Process] = {}
        self.facts: list[Fact] = []
        self.watchers: list[Callable[[Effect], None]] = []
        self.operations = 0
        self.last_operation = ""
        self.violation: InvariantViolation | None = None
        self.reach: Callable[[BlobStore, Process], BlobStore] = lambda store, _process: store
        self.may_replace: Callable[[str, Buffer], bool] = lambda _name, _data: False
        self._looking = False
        self._objects: dict[str, BlobStore] = {}
        self._contents: dict[str, Contents] = {}
        self._histories: dict[str, StoreHistory] = {}
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        self._stack.enter_context(self.backend.attached(self))
        self._stack.callback(self.scheduler.close)
        return self

    def __exit__(self, *raised: object) -> None:
        self._stack.close()

    def during(self, context: contextlib.AbstractContextManager[T]) -> T:
        """Enters a context that ends with this world."""
        return self._stack.enter_context(context)

    def process(self, name: str, parent: Process | None = None, *, faulty: bool = True) -> Process:
        """A new process. ``faulty=False`` for what stands outside of the system, such as a consumer of its files."""
        unique = name if name not in self.processes else f"{name}~{len(self.processes)}"
        self.processes[unique] = made = Process(self, unique, parent, faulty=faulty)
        return made

    def objects(self, store: str = "root") -> BlobStore:
        """The store as the oracle sees it: no faults, no switch points."""
        if store not in self._objects:
            oracle = SimulatedEnvironment(self.scheduler, Group("oracle"), self.seed)
            bottom = self.backend.open(store, oracle)
            self._objects[store] = _OracleStore(bottom, self) if self.backend.is_gated else bottom
        return self._objects[store]

    def _replaces(self, name: str, data: Buffer) -> bool:
        return self.may_replace(name, data)

    def acknowledge(self, key: tuple[Any, ...], value: Any = True) -> None:
        """Notes that something was promised to the outside."""
        self.facts.append(Fact(key=key, value=value, position=self.backend.position))

    def acknowledged(self, key: tuple[Any, ...]) -> Any:
        """The newest fact of ``key``; ``None`` if there is none."""
        return next((fact.value for fact in reversed(self.facts) if fact.key == key), None)

    def dice(self, *purpose: int | str) -> Dice:
        """Draws for one purpose, from the seed of the world."""
        return Dice(self.seed, *purpose)

    def current_process(self) -> Process | None:
        """The process whose code is running."""
        actor = self.scheduler.current
        return None if actor is None else self.processes.get(actor.group.name)

    @contextlib.contextmanager
    def without_faults(self) -> Iterator[None]:
        """A stretch in which no fault strikes and no operation is counted for one."""
        before, self.faults.suspended = self.faults.suspended, True
        try:
            yield
        finally:
            self.faults.suspended = before

    @contextlib.contextmanager
    def looking(self) -> Iterator[None]:
        """A stretch in which system calls are the oracle's, whoever is running: no switch points and no faults."""
        before, self._looking = self._looking, True
        try:
            yield
        finally:
            self._looking = before

    # -- the gate of system calls -----------------------------------------------------------------------------------

    def enter(self, operation: str, subject: str) -> FaultKind | None:
        """See :meth:`stateline.testing.system_calls.Gate.enter`."""
        fault = self.strike(operation, subject)
        return None if fault is None else fault.kind

    def strike(self, operation: str, subject: str) -> Fault | None:
        """As :meth:`enter`, with the whole fault: for requests, which may land later."""
        process = self.current_process()
        if process is None or self._looking:
            return None
        process.begin(operation)
        fault = self.faults.strike(operation, process.name) if process.faulty else None
        self.trace.note(
            self.scheduler.steps, process.name, operation, subject, "begun" if fault is None else fault.kind
        )
        if fault is not None and fault.kind is FaultKind.CRASH_BEFORE:
            process.crash()
        return fault

    def postpone(self, fault: Fault, request: Callable[[], None]) -> None:
        """Keeps a request that lands later."""
        self.faults.postpone(fault, request)

    def crash(self) -> None:
        """See :meth:`stateline.testing.system_calls.Gate.crash`."""
        process = self.current_process()
        if process is not None:
            process.crash()

    # -- inside -----------------------------------------------------------------------------------------------------

    def _connect(self, process: Process, name: str) -> BlobStore:
        bottom = self.backend.open(name, process.environment)
        observed = ObservedStore(
            bottom, name, self._contents.setdefault(name, Contents()), self._notice, self._replaces
        )
        if not process.faulty or self.backend.is_struck:
            return _ProcessStore(observed, process)
        faulty = FaultyStore(
            observed,
            self.faults,
            process.name,
            process.crash,
            self._histories.setdefault(name, StoreHistory()),
            bottom,
        )
        reached = _ProcessStore(faulty, process)
        return self.reach(ResolvingStore(reached) if self.resolving else reached, process)

    def _notice(self, effect: Effect) -> None:
        for watch in self.watchers:
            watch(effect)


class _OracleStore(StoreDecorator):
    """What an oracle reads through, where system calls are switch points for everybody else."""

    def __init__(self, inner: BlobStore, world: World) -> None:
        super().__init__(inner)
        self._world = world

    def put(self, name: str, data: Buffer) -> ObjectInfo:
        """See :meth:`BlobStore.put`."""
        with self._world.looking():
            return self.inner.put(name, data)

    def get(self, name: str) -> bytes:
        """See :meth:`BlobStore.get`."""
        with self._world.looking():
            return self.inner.get(name)

    def head(self, name: str) -> ObjectInfo:
        """See :meth:`BlobStore.head`."""
        with self._world.looking():
            return self.inner.head(name)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See :meth:`BlobStore.list`."""
        with self._world.looking():
            return iter(list(self.inner.list(prefix)))


class _ProcessStore(StoreDecorator):
    """The calls of one process: a switch point before each, an entry in the trace after it."""

    def __init__(self, inner: BlobStore, process: Process) -> None:
        super().__init__(inner)
        self._process = process

    def put(self, name: str, data: Buffer) -> ObjectInfo:
        """See :meth:`BlobStore.put`."""
        return self._call("put", name, lambda: self.inner.put(name, data))

    def put_if_absent(self, name: str, data: Buffer) -> ObjectInfo:
        """See :meth:`BlobStore.put_if_absent`."""
        return self._call("put_if_absent", name, lambda: self.inner.put_if_absent(name, data))

    def get(self, name: str) -> bytes:
        """See :meth:`BlobStore.get`."""
        return self._call("get", name, lambda: self.inner.get(name))

    def get_range(self, name: str, start: int, end: int) -> bytes:
        """See :meth:`BlobStore.get_range`."""
        return self._call("get_range", name, lambda: self.inner.get_range(name, start, end))

    def head(self, name: str) -> ObjectInfo:
        """See :meth:`BlobStore.head`."""
        return self._call("head", name, lambda: self.inner.head(name))

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """See :meth:`BlobStore.list`."""
        return self._call("list", prefix, lambda: self.inner.list(prefix))

    def delete(self, names: Iterable[str]) -> None:
        """See :meth:`BlobStore.delete`."""
        wanted = list(names)
        self._call("delete", " ".join(wanted), lambda: self.inner.delete(wanted))

    def stage(self, target: str, data: Buffer) -> Part:
        """See :meth:`BlobStore.stage`."""
        return self._call("stage", target, lambda: self.inner.stage(target, data))

    def publish(self, target: str, parts: Sequence[Part], nonce: str) -> ObjectInfo:
        """See :meth:`BlobStore.publish`."""
        return self._call("publish", target, lambda: self.inner.publish(target, parts, nonce))

    def discard(self, parts: Iterable[Part]) -> None:
        """See :meth:`BlobStore.discard`."""
        wanted = list(parts)
        self._call("discard", " ".join(part.name for part in wanted), lambda: self.inner.discard(wanted))

    def copy(self, source: str, target: str) -> ObjectInfo:
        """See :meth:`BlobStore.copy`."""
        return self.put_if_absent(target, self.get(source))

    def read_staged(self, part: Part) -> bytes | None:
        """See :meth:`BlobStore.read_staged`."""
        return self._call("get", part.name, lambda: self.inner.read_staged(part))

    def list_staged(self) -> Iterator[ObjectInfo]:
        """See :meth:`BlobStore.list_staged`."""
        return self._call("list", "staged", self.inner.list_staged)

    def local_path(self, name: str) -> None:
        """``None``: a file read behind the store's back would escape the faults."""

    def _call(self, operation: str, subject: str, call: Callable[[], T]) -> T:
        process = self._process
        process.begin(operation)
        world = process.world
        outcome = "died"
        try:
            result = call()
            outcome = "ok"
            return result
        except StatelineError as error:
            outcome = error.kind.value
            if not isinstance(error, (*_MAY_RAISE, *_PROMISED_ERRORS[operation])):
                seen = f"{operation} {subject} raised {type(error).__name__}, which it does not promise: {error}"
                world.violation = world.violation or InvariantViolation("H4", seen)
            raise
        except InvariantViolation as violation:
            world.violation = world.violation or violation  # The code under test may swallow it: keep it.
            raise
        finally:
            world.trace.note(world.scheduler.steps, process.name, operation, subject, outcome)


def _any_ended(attempts: Sequence[tuple[int, Process]]) -> bool:
    return any(attempt.ended for _, attempt in attempts)


def _task_error(attempt: Process) -> Exception:
    return attempt.error or UnavailableError("the task died too often", operation="run_tasks", subject=attempt.name)
