"""Interrupts: Ctrl-C, or any handler of a signal that raises, between any two steps of a call of the writer.

What was appended before is stored once, the change of the interrupted call at most once, in order; nothing crashes, and
the writer goes on as if nothing had been.
"""

from __future__ import annotations

import dis
import inspect
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import pytest

from stateline.changelog import BlobUploader, ChangelogSettings, ChangelogStorage, ChangelogWriter, SequenceNumber
from stateline.key_groups import KeyGroupRange
from tests.unit.changelog.worlds import RecordingScheduler, memory_store, values

RANGE = KeyGroupRange(0, 9)
OWNERS_MODULES = (
    "active_set",
    "block",
    "change_set",
    "columns",
    "mailbox",
    "registry",
    "set_table",
    "upload_task",
    "writer",
)
"""What runs on the owner's thread, whatever the scheduler."""

WAIT = 30
"""Seconds after which a test gives up on a process."""


class Interrupt(BaseException):
    """What the handler of a signal raised."""


_after_calls: dict[CodeType, frozenset[int]] = {}


def after_calls(code: CodeType) -> frozenset[int]:
    """The instructions before which Python looks for signals, but for the first: those after calls and jumps back."""
    if code not in _after_calls:
        found, previous = set(), ""
        for instruction in dis.get_instructions(code):
            # Not after CALL_INTRINSIC, with which a generator that is let go ends on 3.12: it calls nothing.
            if previous.startswith("CALL") and not previous.startswith("CALL_INTRINSIC"):
                found.add(instruction.offset)
            if previous.startswith("JUMP_BACKWARD"):
                found.add(instruction.argval if isinstance(instruction.argval, int) else instruction.offset)
            if instruction.opname not in ("CACHE", "EXTENDED_ARG"):
                previous = instruction.opname
        _after_calls[code] = frozenset(found)
    return _after_calls[code]


class Interrupter:
    """Raises at one step of what it watches: at a line, or at a place where Python looks for signals."""

    def __init__(self, at: int, steps: str) -> None:
        self.left = at
        self.steps = steps

    @property
    def has_struck(self) -> bool:
        return self.left < 0

    def run(self, call: Callable[[], Any]) -> Any:
        # From Python 3.12 on instructions are traced only if a frame wants it when tracing begins.
        sys._getframe().f_trace_opcodes = self.steps == "calls"
        sys.settrace(self._enter)
        try:
            return call()
        finally:
            sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, argument: object) -> Any:
        folder, name = os.path.split(frame.f_code.co_filename)
        if os.path.basename(folder) != "changelog" or os.path.splitext(name)[0] not in OWNERS_MODULES:
            return None
        frame.f_trace_opcodes = self.steps == "calls"
        frame.f_trace_lines = self.steps == "lines"
        # Nobody hears of what is raised where a generator is let go, and that enters it, too.
        if self.steps == "calls" and not frame.f_code.co_flags & inspect.CO_GENERATOR:
            self._strike()
        return self._step

    def _step(self, frame: FrameType, event: str, argument: object) -> Any:
        if self._is_step(frame, event):
            self._strike()
        return self._step

    def _strike(self) -> None:
        self.left -= 1
        if self.left == -1:
            raise Interrupt

    def _is_step(self, frame: FrameType, event: str) -> bool:
        if self.steps == "lines":  # Not the end of a `with`: no signal can come between it and the lock.
            return event == "line" and not BEGIN_OF_WITH & _opcodes_of_line(frame)
        return event == "opcode" and frame.f_lasti in after_calls(frame.f_code)


BEGIN_OF_WITH = frozenset({"BEFORE_WITH", "LOAD_SPECIAL"})
"""How a `with` begins, until Python 3.13 and from 3.14 on."""

_opcodes: dict[tuple[CodeType, int], frozenset[str]] = {}


def _opcodes_of_line(frame: FrameType) -> frozenset[str]:
    key = (frame.f_code, frame.f_lineno)
    if key not in _opcodes:
        instructions = dis.get_instructions(frame.f_code)
        _opcodes[key] = frozenset(
            instruction.opname
            for instruction in instructions
            if instruction.positions is not None and instruction.positions.lineno == frame.f_lineno
        )
    return _opcodes[key]


class Life:
    """A writer with a past: sets uploaded, failed and in flight, columns, and changes that came alone."""

    def __init__(self, direct: bool) -> None:
        self.store = memory_store()
        settings = ChangelogSettings(
            scheduler="direct", preemptive_persist_threshold=64, persist_size_threshold=100, max_in_flight=100_000
        )
        self.scheduler = None if direct else RecordingScheduler()
        self.storage = ChangelogStorage.open(self.store, settings, job_id="job", scheduler=self.scheduler)
        self.writer: ChangelogWriter = self.storage.create_writer("operator", RANGE)
        self.truncated = 0
        self.past: list[tuple[int, bytes]] = []
        self.kept: list[Any] = []  # Tracebacks, as a notebook keeps them: their frames have views of buffers.
        self.add(b"uploaded")
        self.writer.next_sequence_number()
        self.settle()
        self.add(b"waiting")
        self.writer.next_sequence_number()
        self.add(b"alone")
        self.writer.append_batch([1, 2], [b"in", b"columns"])
        self.past += [(1, b"in"), (2, b"columns")]
        self.add(b"")
        self.add(b"last")

    def add(self, value: bytes, key_group: int = 3) -> None:
        self.writer.append(key_group, value)
        self.past.append((key_group, value))

    def settle(self) -> None:
        """Uploads what is in flight, if nobody else does."""
        if self.scheduler is None:
            return
        trace = sys.gettrace()
        sys.settrace(None)  # No signal interrupts the thread of an upload.
        tasks, self.scheduler.tasks = self.scheduler.tasks, []
        for task in tasks:
            result = BlobUploader(self.store, job_id="job", registry=self.storage.registry).upload([task])
            task.complete(result.successful[task])
        sys.settrace(trace)

    def read_back(self) -> list[tuple[int, bytes]]:
        """Everything, by a new checkpoint; in the order of appending, as there is one key group to a change's kind."""
        future = self.writer.persist(SequenceNumber(self.truncated), 99)
        self.settle()
        handle = future.result(timeout=WAIT).remote
        numbers = [segment.sequence_number for segment in handle.segments]
        assert numbers == list(range(self.truncated, self.truncated + len(numbers)))
        return values(list(self.storage.create_reader().read(handle)))


def _batch(life: Life) -> None:
    life.writer.append_batch([4] * 30, [b"%02d-batch" % index for index in range(30)])


def _persisted(life: Life) -> None:
    life.writer.persist(SequenceNumber(0), 5)
    life.settle()
    life.writer.run_callbacks()


CALLS: dict[str, tuple[Callable[[Life], Any], list[tuple[int, bytes]]]] = {
    "append": (lambda life: life.writer.append(4, b"new"), [(4, b"new")]),
    "append of an empty change": (lambda life: life.writer.append(4, b""), [(4, b"")]),
    "append that fills the set": (lambda life: life.writer.append(4, b"n" * 70), [(4, b"n" * 70)]),
    "append_meta": (lambda life: life.writer.append_meta(b"new"), [(-1, b"new")]),
    "append_batch": (_batch, [(4, b"%02d-batch" % index) for index in range(30)]),
    "next_sequence_number": (lambda life: life.writer.next_sequence_number(), []),
    "persist": (lambda life: life.writer.persist(SequenceNumber(0), 5), []),
    "persist and its callbacks": (_persisted, []),
    "a second persist": (lambda life: (_persisted(life), _persisted(life)), []),
}


def ordered(changes: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """By key group; a key group keeps the order of appending."""
    return sorted(changes, key=lambda change: change[0])


def interrupted_everywhere(steps: str, make: Callable[[], Life], call: Callable[[Life], Any]) -> Iterator[Life]:
    """One life for each step at which the call can be interrupted, right after that; the last one was not."""
    at = 0
    # From Python 3.13 on the first run of a code object under a trace only prepares it.
    Interrupter(sys.maxsize, steps).run(lambda: call(make()))
    while True:
        life, interrupter = make(), Interrupter(at, steps)
        try:
            interrupter.run(lambda: call(life))  # noqa: B023
        except Interrupt as interrupt:
            life.kept.append(interrupt)
        yield life
        if not interrupter.has_struck:
            assert at > 0
            return
        at += 1


@pytest.mark.parametrize("steps", ["lines", "calls"])
@pytest.mark.parametrize("direct", [True, False], ids=["direct", "later"])
@pytest.mark.parametrize("name", CALLS)
def test_an_interrupt_at_any_step_neither_loses_nor_doubles_a_change(name: str, direct: bool, steps: str) -> None:
    call, new = CALLS[name]
    for life in interrupted_everywhere(steps, lambda: Life(direct), call):
        life.add(b"afterwards")
        life.writer.append_batch([3], [b"batch afterwards"])
        life.past.append((3, b"batch afterwards"))
        found = life.read_back()
        added = [change for change in found if change in new]
        assert added == new[: len(added)]
        assert ordered([change for change in found if change not in new]) == ordered(life.past)
        assert life.read_back() == found
        life.storage.close()


DECISIONS: dict[str, Callable[[Life], Any]] = {
    "confirm": lambda life: life.writer.confirm(SequenceNumber(0), life.end, 5),
    "reset": lambda life: life.writer.reset(SequenceNumber(0), life.end, 5),
    "truncate": lambda life: life.writer.truncate(SequenceNumber(1)),
}


@pytest.mark.parametrize("steps", ["lines", "calls"])
@pytest.mark.parametrize("name", DECISIONS)
def test_an_interrupted_decision_deletes_nothing_that_is_named_and_can_be_repeated(name: str, steps: str) -> None:
    def make() -> Life:
        life = Life(direct=True)
        life.handle = life.writer.persist(SequenceNumber(0), 5).result().remote
        life.end = life.writer.next_sequence_number()
        return life

    for life in interrupted_everywhere(steps, make, DECISIONS[name]):
        DECISIONS[name](life)
        life.truncated = 1 if name == "truncate" else 0
        found = life.read_back()
        assert ordered(found) == ordered(life.past[life.truncated :])
        if name != "reset":
            life.writer.truncate(life.end)
            life.store.inner.list("")
            assert ordered(values(list(life.storage.create_reader().read(life.handle)))) == ordered(life.past)
        life.storage.close()


@pytest.mark.parametrize("steps", ["lines", "calls"])
def test_an_interrupted_close_can_be_repeated_and_leaves_no_persist_waiting(steps: str) -> None:
    def make() -> Life:
        life = Life(direct=False)
        life.future = life.writer.persist(SequenceNumber(0), 5)
        return life

    for life in interrupted_everywhere(steps, make, lambda life: life.writer.close()):
        life.writer.close()
        assert life.future.done()
        life.storage.close()


def test_callbacks_are_run_again_after_an_interrupt_until_they_have_ended() -> None:
    for steps in ("lines", "calls"):

        def make() -> Life:
            life = Life(direct=False)
            life.future = life.writer.persist(SequenceNumber(0), 5)
            life.settle()
            return life

        for life in interrupted_everywhere(steps, make, lambda life: life.writer.run_callbacks()):
            life.writer.run_callbacks()
            assert life.future.done()
            assert life.future.result().remote.state_size == sum(len(value) for _, value in life.past)
            life.storage.close()


def test_a_failed_upload_whose_callback_is_interrupted_is_sent_again() -> None:
    for steps in ("lines", "calls"):

        def make() -> Life:
            life = Life(direct=False)
            life.future = life.writer.persist(SequenceNumber(0), 5)
            for task in life.scheduler.tasks:
                task.fail(OSError("away"))
            life.scheduler.tasks = []
            return life

        for life in interrupted_everywhere(steps, make, lambda life: life.writer.run_callbacks()):
            life.writer.run_callbacks()
            assert isinstance(life.future.exception(), OSError)
            assert ordered(life.read_back()) == ordered(life.past)
            life.storage.close()


SIGNALS = """
    import random, signal, sys
    from stateline.blob.memory import MemoryStore
    from stateline.changelog import ChangelogSettings, ChangelogStorage, SequenceNumber
    from stateline.key_groups import KeyGroupRange

    class Interrupt(BaseException):
        pass

    armed = False

    def strike(*_):
        if armed:  # Another thread may have received it late.
            raise Interrupt

    signal.signal(signal.SIGALRM, strike)
    settings = ChangelogSettings(
        preemptive_persist_threshold=300, persist_size_threshold=1000, persist_delay=0.001, upload_timeout=0
    )
    kept = []

    def live(seed):
        global armed
        choose = random.Random(seed)
        storage = ChangelogStorage.open(MemoryStore(f"signals-{seed}"), settings, job_id="job")
        writer = storage.create_writer("operator", KeyGroupRange(0, 0))
        done, struck, checkpoint = [], 0, 0
        for step in range(40):
            kind = choose.choice(["append", "append", "meta", "batch", "next", "persist", "callbacks"])
            new = [b"%d-%d" % (step, index) for index in range(choose.choice([1, 60]) if kind == "batch" else 1)]
            seconds = choose.uniform(1e-6, 1.5e-4)
            try:
                armed = True
                signal.setitimer(signal.ITIMER_REAL, seconds)
                if kind == "append":
                    writer.append(0, new[0])
                elif kind == "meta":
                    writer.append_meta(new[0])
                elif kind == "batch":
                    writer.append_batch([0] * len(new), new)
                elif kind == "next":
                    writer.next_sequence_number()
                elif kind == "persist":
                    checkpoint += 1
                    writer.persist(SequenceNumber(0), checkpoint)
                else:
                    writer.run_callbacks()
                whole = True
                armed = False
            except Interrupt as interrupt:
                armed = whole = False
                struck += 1
                kept.append(interrupt)  # With its frames, as a notebook does.
            signal.setitimer(signal.ITIMER_REAL, 0)
            if kind in ("append", "meta", "batch"):
                done.append((kind == "meta", new, whole))
        handle = writer.persist(SequenceNumber(0), 1000).result(20).remote
        found = [(change.key_group < 0, change.value) for change in storage.create_reader().read(handle)]
        for meta in (True, False):
            rest = [value for is_meta, value in found if is_meta is meta]
            # Metadata comes first in each set, so the order is that of appending within each of the two kinds.
            for is_meta, new, whole in done:
                if is_meta is meta:
                    count = 0
                    while count < len(new) and rest[count : count + 1] == new[count : count + 1]:
                        count += 1
                    if whole and count < len(new):
                        sys.exit(f"seed {seed}: {new} is not there, but {rest[:3]}")
                    del rest[:count]
            if rest:
                sys.exit(f"seed {seed}: {rest} is there once more")
        del kept[:]
        storage.close()
        return struck

    struck = sum(map(live, range(int(sys.argv[1]), int(sys.argv[2]))))
    print("interrupted", struck > 0)
"""


def test_real_signals_neither_lose_nor_double_a_change_nor_end_the_process() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    program = [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(SIGNALS), "0", "60"]
    ended = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=10 * WAIT, check=False)
    assert (ended.returncode, ended.stdout) == (0, "interrupted True\n"), ended.stderr
