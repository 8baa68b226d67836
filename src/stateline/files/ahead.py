"""Encoding a file before it rolls, while nobody waits: between two commits of a process that lives on.

Nothing is written anywhere before the file rolls. So all of this may be lost at any time; the file is then encoded
whole when it rolls, as any other.

Only row groups are encoded that later rows cannot change: rows of a record, in long pieces (short ones may be joined,
see ``folding``), where the piece that follows does not belong to the same row group.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from stateline.changelog.segment_writer import Segments
from stateline.environment import Environment
from stateline.files.api import FileOutput
from stateline.files.encoding import PartialFile, first_full_group, joined
from stateline.files.folding import is_short
from stateline.files.pending import load_rows
from stateline.handles import OpenFile, RowsHandle
from stateline.sizes import sizes

__all__ = ["EncodingAhead"]

_LOGGER: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Step:
    """One row group to encode."""

    output: FileOutput
    segments: Segments
    target: str
    handles: tuple[RowsHandle, ...]


class EncodingAhead:
    """Encodes full row groups of open files on a thread of its own.

    Its methods are called by one thread. What fails here is not reported: the same error comes when the file rolls.

    Args:
        environment: The thread.
        max_bytes: Encoded bytes held in memory, about, and the rows of one row group besides. ``Sizes.held_bytes`` by
            default.
    """

    def __init__(self, environment: Environment, max_bytes: int | None = None) -> None:
        self._max_bytes = sizes().held_bytes if max_bytes is None else max_bytes
        self._monitor = environment.executors.monitor()
        self._executor = environment.executors.executor("stateline-ahead", 1)
        self._open: dict[str, tuple[FileOutput, Segments, tuple[RowsHandle, ...]]] = {}
        self._begun: dict[str, PartialFile] = {}
        self._failed: set[str] = set()
        self._encoding: str | None = None
        self._is_running = False

    def go_on(self, output: FileOutput, segments: Segments, files: Iterable[OpenFile]) -> None:
        """Encodes full row groups of the files that a record names; forgets all others.

        Args:
            output: How they are to be encoded.
            segments: Where the rows are.
            files: The open files of the newest record.
        """
        with self._monitor:
            self._open = {file.target: (output, segments, _settled(file.pending)) for file in files}
            for target in [target for target in self._begun if target not in self._open]:
                del self._begun[target]
            self._failed &= self._open.keys()
            if not self._is_running and self._next_step() is not None:
                self._start()

    def take(self, target: str, output: FileOutput, pending: Sequence[RowsHandle]) -> PartialFile | None:
        """Hands over what is encoded of a file that rolls now; ``None`` if that is not how the file begins.

        Args:
            target: Name of the file.
            output: How it is to be encoded.
            pending: Its rows.
        """
        with self._monitor:
            self._open.pop(target, None)
            self._monitor.wait_for(lambda: self._encoding != target)
            begun = self._begun.pop(target, None)
        if begun is None or begun.output != output or begun.handles != tuple(pending[: len(begun.handles)]):
            return None
        return begun

    def close(self) -> None:
        """Forgets everything. The thread ends after the row group it is at."""
        with self._monitor:
            self._open.clear()
            self._begun.clear()
        self._executor.close(wait=False)

    def _start(self) -> None:
        self._is_running = True
        try:
            self._executor.submit(self._run)
        except RuntimeError as error:  # No thread is to be had, which is no reason to fail a batch that is decided.
            self._is_running = False
            _LOGGER.debug("nothing is encoded before it rolls", exc_info=error)

    def _next_step(self) -> _Step | None:
        if sum(begun.held.size for begun in self._begun.values()) >= self._max_bytes:
            return None
        for target, (output, segments, handles) in self._open.items():
            begun = self._begun.get(target)
            done = 0 if begun is None else len(begun.handles)
            group = first_full_group(handles[done:], output.row_group_rows)
            if group and target not in self._failed:
                return _Step(output, segments, target, group)
        return None

    def _run(self) -> None:
        while True:
            with self._monitor:
                step = self._next_step()
                self._is_running = step is not None
                if step is None:
                    return
                self._encoding = step.target
                begun = self._begun.get(step.target)
            try:
                begun = _encoded(step, begun)
            except Exception as error:  # The roll meets the same, and raises it.
                _LOGGER.debug("%s is encoded when it rolls", step.target, exc_info=error)
                begun = None
            with self._monitor:
                self._encoding = None
                if begun is None:
                    self._begun.pop(step.target, None)
                    self._failed.add(step.target)
                else:
                    self._begun[step.target] = begun
                self._monitor.notify_all()


def _settled(pending: Sequence[RowsHandle]) -> tuple[RowsHandle, ...]:
    """The first pieces of a file that stay as they are."""
    end = next((index for index, handle in enumerate(pending) if is_short(handle)), len(pending))
    return tuple(pending[:end])


def _encoded(step: _Step, begun: PartialFile | None) -> PartialFile:
    rows = joined(list(load_rows(step.segments.store, step.handles, step.segments.copies)))
    if begun is None:
        begun = PartialFile.begin(step.output, step.target, rows.schema)
    begun.write(rows)
    begun.handles += step.handles
    return begun
