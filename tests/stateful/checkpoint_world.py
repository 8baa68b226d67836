"""Drivers over one root in memory, every store call of which can be watched, failed, held back, repeated or paused.

The oracle looks at the stores themselves after every effect:

- **One winner**: a slot in an open block never shows another checkpoint than the first that it showed, and what a
  driver was told is its checkpoint is that one.
- **Nothing is missing**: what a live checkpoint reaches is there.
- **The newest never goes back**: who starts finds a checkpoint at least as new as any that was acknowledged before.
- **Readers agree** (asked at rest): what can be read is live, and was decided.
- **Nothing leaks** (asked at the end): what a retired checkpoint reached and no live one does is gone.
"""

import itertools
import threading
from collections.abc import Callable, Iterator
from functools import lru_cache

from stateline.blob import StoreDecorator
from stateline.blob.memory import MemoryStore
from stateline.checkpoint import Checkpoint, CheckpointStore, OperatorState, OutputState, SubtaskState, layout
from stateline.checkpoint.layout import id_of_record
from stateline.checkpoint.metadata import Retired, decode_record
from stateline.checkpoint.retention import reach_of
from stateline.errors import CorruptDataError, FencedError, NotFoundError, OutcomeUnknownError, UnavailableError
from stateline.handles import OpenFile, RowsHandle, RunHandle

FLOOR_BLOCK = 2
NUM_RETAINED = 2


class ViolationError(AssertionError):
    """The oracle saw what must never be."""


class Died(BaseException):
    """A driver's process is gone: nothing catches it."""


@lru_cache(maxsize=4096)
def _decoded(data: bytes) -> Checkpoint | Retired | None:
    try:
        return decode_record(data, "oracle")
    except CorruptDataError:
        return None


_worlds = itertools.count()


class World:
    """The store as it really is, what was decided, and the oracle."""

    def __init__(self) -> None:
        self.name = f"checkpoint-world-{next(_worlds)}"
        self.root = MemoryStore(f"{self.name}/root")
        self.decided: dict[int, Checkpoint] = {}
        self.newest_acknowledged = -1
        self.tolerated_garbage: set[str] = set()
        self._labels = itertools.count()

    def close(self) -> None:
        MemoryStore.forget(f"{self.name}/root")

    def new_label(self) -> str:
        return f"driver-{next(self._labels)}"

    def live(self) -> Iterator[Checkpoint]:
        """The checkpoints that anybody may restore now, read without the code under test."""
        for info in list(self.root.list("chk-")):
            checkpoint_id = id_of_record(info.name)
            if checkpoint_id is None or self._is_closed(checkpoint_id):
                continue
            found = _decoded(self.root.get(info.name))
            if found is None or found.checkpoint_id != checkpoint_id:
                raise ViolationError(f"slot {checkpoint_id} holds garbage")
            if isinstance(found, Checkpoint):
                yield found

    def _is_closed(self, checkpoint_id: int) -> bool:
        try:
            self.root.get(f"floor/{checkpoint_id // layout.FLOOR_BLOCK}")
        except NotFoundError:
            return False
        return True

    def check(self) -> None:
        """Runs after every effect."""
        objects = {info.name for info in self.root.list("shared/")}
        for checkpoint in self.live():
            self._check_decided(checkpoint)
            reach = reach_of(checkpoint)
            if missing := reach.objects - objects:
                raise ViolationError(f"checkpoint {checkpoint.checkpoint_id} is live and misses {missing}")

    def _check_decided(self, checkpoint: Checkpoint) -> None:
        first = self.decided.setdefault(checkpoint.checkpoint_id, checkpoint)
        if first.nonce != checkpoint.nonce:
            raise ViolationError(
                f"checkpoint {checkpoint.checkpoint_id} was {first.nonce} and is now {checkpoint.nonce}"
            )

    def acknowledged(self, checkpoint: Checkpoint) -> None:
        """A driver was told that this is the checkpoint."""
        self._check_decided(checkpoint)
        self.newest_acknowledged = max(self.newest_acknowledged, checkpoint.checkpoint_id)

    def found_newest(self, checkpoint: Checkpoint | None, at_least: int) -> None:
        """A driver that started when ``at_least`` had been acknowledged found this."""
        checkpoint_id = -1 if checkpoint is None else checkpoint.checkpoint_id
        if checkpoint_id < at_least:
            raise ViolationError(f"checkpoint {at_least} was acknowledged, and {checkpoint_id} is found as the newest")
        if checkpoint is not None:
            self._check_decided(checkpoint)

    def check_readers(self) -> None:
        """What anybody reads now is what was decided: nothing retired, no garbage below the floor."""
        store = CheckpointStore(self.root)
        live = {checkpoint.checkpoint_id for checkpoint in self.live()}
        if {checkpoint.checkpoint_id for checkpoint in store.list()} != live:
            raise ViolationError(f"{live} are live, {store.list()} are listed")
        self.found_newest(store.latest(), max(live, default=-1))
        for checkpoint_id in range(max(self.decided, default=-1) + 2):
            try:
                self._check_decided(store.get(checkpoint_id))
                found = True
            except NotFoundError:
                found = False
            if found != (checkpoint_id in live):
                raise ViolationError(f"checkpoint {checkpoint_id} can be read: {found}; {live} are live")

    def check_end(self, num_retained: int) -> None:
        """Runs when a last driver has worked undisturbed: the record is right, and the past is gone."""
        self.check()
        self.check_readers()
        newest = max(self.decided)
        kept = list(range(max(newest - num_retained + 1, 0), newest + 1))
        if [checkpoint.checkpoint_id for checkpoint in CheckpointStore(self.root).list()] != kept:
            raise ViolationError(f"expected to keep {kept}")
        self._check_nothing_leaked(kept)

    def _check_nothing_leaked(self, kept: list[int]) -> None:
        live = [reach_of(self.decided[checkpoint_id]) for checkpoint_id in kept]
        dead = [reach_of(value) for checkpoint_id, value in self.decided.items() if checkpoint_id not in kept]
        objects = {info.name for info in self.root.list("shared/")} - self.tolerated_garbage
        leaked = objects & set().union(*(reach.objects for reach in dead)) - set().union(
            *(reach.objects for reach in live)
        )
        slots = {id_of_record(info.name) for info in self.root.list("chk-")} - {None}
        freed = {slot for slot in slots if slot // layout.FLOOR_BLOCK < kept[0] // layout.FLOOR_BLOCK}
        if leaked or freed:
            raise ViolationError(f"leaked objects {leaked}, slots {freed}")


Hook = Callable[[str, tuple[str, ...], Callable[[], object]], object]
"""``hook(operation, names, effect)`` decides what becomes of one call that a driver makes."""


class Watched(StoreDecorator):
    """A driver's view of a store: each call goes through a hook; listings come in an unhelpful order."""

    def __init__(self, inner: MemoryStore, world: World, hook: Hook, *, visible: Callable[[str], bool]) -> None:
        super().__init__(inner)
        self._world, self._hook, self._visible = world, hook, visible

    def _do(self, operation, names, call):
        def effect():
            try:
                return call()
            finally:
                if operation in ("put", "put_if_absent", "delete"):
                    self._world.check()

        return self._hook(operation, tuple(names), effect)

    def put(self, name, data):
        return self._do("put", [name], lambda: self.inner.put(name, data))

    def put_if_absent(self, name, data):
        return self._do("put_if_absent", [name], lambda: self.inner.put_if_absent(name, data))

    def get(self, name):
        return self._do("get", [name], lambda: self.inner.get(name))

    def list(self, prefix):
        found = self._do("list", [prefix], lambda: list(self.inner.list(prefix)))
        return iter(sorted((info for info in found if self._visible(info.name)), key=lambda info: info.name[::-1]))

    def delete(self, names):
        names = list(names)
        return self._do("delete", names, lambda: self.inner.delete(names))


class Driver:
    """One process that makes checkpoints: start, then build, publish, retain, over and over."""

    def __init__(self, world: World, hook: Hook | None = None, *, visible=lambda name: True, retain=NUM_RETAINED):
        hook = hook or (lambda operation, names, effect: effect())
        self.world, self.label, self.retain = world, world.new_label(), retain
        self.root = Watched(world.root, world, hook, visible=visible)
        self._counter = itertools.count()

    def run(self, until_id: int) -> None:
        """Works until checkpoint ``until_id`` is decided and retention is done; errors go to the caller."""
        store = CheckpointStore(self.root)
        at_least = self.world.newest_acknowledged
        newest = store.latest()
        self.world.found_newest(newest, at_least)
        while newest is None or newest.checkpoint_id < until_id:
            newest = store.publish(self.build(newest))
            self.world.acknowledged(newest)
            store.retain(self.retain)
        store.retain(self.retain)

    def run_stubbornly(self, until_id: int, attempts: int = 6) -> None:
        """As an operator who restarts after every failure."""
        for _ in range(attempts):
            try:
                self.run(until_id)
            except (FencedError, UnavailableError, OutcomeUnknownError, Died):
                continue
            return
        raise ViolationError(f"no progress to checkpoint {until_id} in {attempts} attempts")

    def build(self, newest: Checkpoint | None) -> Checkpoint:
        """The next checkpoint: a fresh run, two runs kept; one file that collects rows and finishes."""
        checkpoint_id = 0 if newest is None else newest.checkpoint_id + 1
        attempt = f"{self.label}-{checkpoint_id}-{next(self._counter)}"
        name, rows = f"shared/{attempt}", f"shared/{attempt}-rows"
        for each in name, rows:
            self.root.put_if_absent(each, attempt.encode())
        run = RunHandle(
            name=name,
            offset=0,
            length=1,
            crc32c=1,
            rows=1,
            first_key_group=0,
            last_key_group=0,
            checkpoint_id=checkpoint_id,
        )
        kept = () if newest is None else newest.operators[0].subtasks[0].runs[-1:]
        subtask = SubtaskState(first_key_group=0, last_key_group=0, runs=(*kept, run))
        return Checkpoint(
            checkpoint_id=checkpoint_id,
            batch_id=checkpoint_id,
            query_id="query",
            offsets_digest="digest",
            max_parallelism=1,
            parallelism=1,
            nonce=attempt,
            created_at=1.0,
            operators=(OperatorState(name="o", schema="", definition="", subtasks=(subtask,)),),
            outputs=(_output(newest, checkpoint_id, rows),),
        )


def _output(newest: Checkpoint | None, checkpoint_id: int, rows: str) -> OutputState:
    """Its open file: every fourth checkpoint finishes it, and needs its rows no longer."""
    if checkpoint_id % 4 == 3:
        return OutputState(operator="o", url="memory://out")
    before = newest.outputs[0].open if newest else ()
    kept = before[0].pending if before else ()
    handle = RowsHandle(name=rows, offset=0, length=1, crc32c=1, rows=1)
    file = OpenFile(
        target="f",
        subtask=0,
        layout="layout",
        opened_at=1.0,
        written_at=1.0,
        rows=1,
        bytes=1,
        pending=(*kept, handle),
    )
    return OutputState(operator="o", url="memory://out", open=(file,))


class Paused:
    """A driver in a thread of its own that makes just as many store calls as it is allowed to."""

    def __init__(self, world: World, work: Callable[[Driver], None]) -> None:
        self.error: BaseException | None = None
        self.done = False
        self._allowed = 0
        self._go, self._stopped = threading.Semaphore(0), threading.Semaphore(0)
        self._driver = Driver(world, self._hook)
        self._work = work
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def run(self, calls: int | None = None) -> None:
        """Lets it make ``calls`` more store calls, or all; raises what the oracle or a bug raised in it."""
        if self.done:
            return
        self._allowed = -1 if calls is None else calls
        self._go.release()
        self._stopped.acquire()
        if self.done:
            self._thread.join()
            if self.error is not None and not isinstance(self.error, FencedError | NotFoundError):
                raise self.error

    def _hook(self, operation, names, effect):
        while self._allowed == 0:
            self._stopped.release()
            self._go.acquire()
        self._allowed -= 1
        return effect()

    def _main(self) -> None:
        self._go.acquire()
        try:
            self._work(self._driver)
        except BaseException as error:
            self.error = error
        self.done = True
        self._stopped.release()
