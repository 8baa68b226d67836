"""What one subtask does for one checkpoint: from changes to a durable stack of runs.

Until a record names the new run it is garbage, and the old stack is as it was.

A checkpoint writes **one** object. In the slices that are merged it holds what became of the upper part of the stack,
the newest changes included, and in the others just these changes; so it lies on top of the stack everywhere. Older
runs stay for the slices that still need them, and no part of them is rewritten for the others. Only where more is
merged than is good for the memory is it several objects, of neighbouring slices, each of which is written and
forgotten before the next one is made.
"""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from stateline.checkpoint.api import SubtaskState
from stateline.handles import RunHandle, SectionIdentity
from stateline.key_groups import KeyGroupRange, hash_bounds
from stateline.sizes import sizes
from stateline.state.merge import Counts, Expired, MergeSettings, SlicedStack, merge_windows, plan_merges
from stateline.state.rows import StateRows
from stateline.state.run_store import RunWriter
from stateline.state.runs import Run
from stateline.state.table import StateTable

__all__ = ["Layers", "Snapshot", "snapshot"]


@dataclasses.dataclass(frozen=True, slots=True)
class Snapshot:
    """What a checkpoint of one subtask made.

    Attributes:
        state: The new stack, for the record.
        written: The runs that are new in it, durable when their segment is finished.
        merged: How many runs took part in merges; 0 if none.
        rows: Rows that readers may come upon: live ones, older versions of them, and tombstones.
        write_seconds: What it took to encode the new runs, and to wait for segments that were full.
    """

    state: SubtaskState
    written: tuple[RunHandle, ...]
    merged: int
    rows: int
    write_seconds: float = 0.0


def snapshot(
    table: StateTable,
    changes: StateRows | None,
    writer: RunWriter,
    checkpoint_id: int,
    *,
    settings: MergeSettings | None = None,
    expired: Expired | None = None,
) -> Snapshot:
    """Adds what makes the table with its changes durable to a segment.

    Args:
        table: The state before; its runs in memory, if any, are made durable too.
        changes: New rows, each key once; they win.
        writer: Where runs go.
        checkpoint_id: The checkpoint that will name them.
        settings: When runs are merged.
        expired: Which rows have outlived their time.

    Raises:
        InvalidInputError: A key of another subtask.
        StatelineError: What the store raises. Nothing is changed; at most garbage is left.
    """
    changed = table if changes is None else table.with_changes(changes.narrowed())
    durable = sum(run.handle is not None for run in changed.runs)
    layers = Layers(changed, durable, settings or MergeSettings(), expired)
    kept = layers.kept()
    rows = sum(map(len, kept))
    written = []
    seconds = 0.0
    for run in layers.made():
        rows += len(run)
        began = writer.clock.monotonic()
        written.append(writer.add(run, checkpoint_id))
        seconds += writer.clock.monotonic() - began
        del run  # It must not outlive the moment in which the next one is made.
    handles = (*(run.handle for run in kept if run.handle is not None), *written)
    state = SubtaskState(first_key_group=table.key_groups.start, last_key_group=table.key_groups.end, runs=handles)
    return Snapshot(state, tuple(written), layers.merged, rows, seconds)


@dataclasses.dataclass(frozen=True, slots=True)
class _Layer:
    """What the upper runs of a slice become.

    Attributes:
        key_groups: What the slice covers.
        first: The oldest of these runs, by number; all newer ones take part.
        is_bottom: Whether no older run has rows here.
        is_merged: Whether more than one run has.
        piece: The number of the object that it goes into.
    """

    key_groups: KeyGroupRange
    first: int
    is_bottom: bool
    is_merged: bool
    piece: int


def _start(layer: _Layer) -> int:
    return layer.key_groups.start


class Layers:
    """The stack of a table as a checkpoint leaves it.

    Args:
        table: The stack before.
        durable: So many of its runs, the oldest ones, are there already; the others are to be written.
        settings: When runs are merged.
        expired: See :func:`snapshot`.

    Attributes:
        merged: How many runs take part in merges; 0 if none.
    """

    def __init__(self, table: StateTable, durable: int, settings: MergeSettings, expired: Expired | None) -> None:
        self._table = table
        self._expired = expired
        runs = table.runs
        self._is_plain = expired is None and not any(run.tombstones for run in runs)
        self._append_only = table.is_append_only
        widths = np.array([_row_bytes(run) for run in runs])
        lengths = np.array([len(run) for run in runs], dtype=np.int64)
        self._borders = _borders(table.key_groups, int(lengths.sum()), float(widths @ lengths) / settings.piece_bytes)
        hashes = [hash_bounds(KeyGroupRange(start, start), table.max_parallelism)[0] for start in self._borders[:-1]]
        hashes.append(hash_bounds(table.key_groups, table.max_parallelism)[1])
        rows: Counts = np.array([run.counts(hashes) for run in runs], dtype=np.int64).reshape(-1, len(hashes) - 1)
        starts = _levels(runs[:durable]) + ([durable] if durable < len(runs) else [])  # New runs become one.
        stack = SlicedStack(
            rows=_summed(rows, starts),
            tombstones=_summed(rows * _shares(runs, lengths), starts),
            stored=_summed(rows * _weights(runs, lengths), starts),
            changed=int(rows[durable:].sum()),
        )
        planned = plan_merges(stack, settings)
        self._firsts = np.array([durable if level is None else min(starts[level], durable) for level in planned])
        taking_part = (rows > 0) & (np.arange(len(runs)).reshape(-1, 1) >= self._firsts)
        self.merged = int(taking_part[:, taking_part.sum(axis=0) > 1].any(axis=1).sum())
        self._layers = self._planned(rows, widths, settings.piece_bytes)

    def kept(self) -> list[Run]:
        """What is left of the runs that were there, oldest first: where they are not merged, and have rows at all."""
        left = []
        firsts, borders = self._firsts.tolist(), self._borders
        for number, run in enumerate(self._table.runs):
            first, last = run.key_groups.start, run.key_groups.end
            slices = range(bisect.bisect_right(borders, first) - 1, bisect.bisect_left(borders, last + 1))
            merged = [oldest <= number for oldest in firsts]
            for is_merged, some in itertools.groupby(slices, merged.__getitem__):
                near = list(some)
                part = KeyGroupRange(max(borders[near[0]], first), min(borders[near[-1] + 1] - 1, last))
                if not is_merged and len(piece := _within(run, part, self._table.max_parallelism)):
                    left.append(piece)
        return left

    def made(self) -> Iterator[Run]:
        """The new runs, ascending, none of them empty; none is made before it is asked for."""
        for _, layers in itertools.groupby(self._layers, lambda layer: layer.piece):
            parts = list(layers)
            covered = KeyGroupRange(parts[0].key_groups.start, parts[-1].key_groups.end)
            alike = itertools.groupby(parts, self._kind)
            rows = list(_gathered(itertools.chain.from_iterable(self._merged(list(some)) for _, some in alike)))
            if rows:
                yield Run(rows, covered, self._table.max_parallelism)

    def _planned(self, rows: Counts, widths: npt.NDArray[np.float64], piece_bytes: int) -> list[_Layer]:
        """The layers of all slices that get one, ascending."""
        layers: list[_Layer] = []
        size = 0.0
        for number, first in enumerate(self._firsts.tolist()):
            taking_part = int(np.count_nonzero(rows[first:, number]))
            if not taking_part:
                continue
            part = KeyGroupRange(self._borders[number], self._borders[number + 1] - 1)
            is_bottom = not rows[:first, number].any()
            layers.append(_Layer(part, first, is_bottom, taking_part > 1, int(size // piece_bytes)))
            size += float(widths[first:] @ rows[first:, number])
        return layers

    def _kind(self, layer: _Layer) -> tuple[bool, bool]:
        """Neighbours of one kind are made together: without deletions and ends of lifetimes all are."""
        if self._is_plain:
            return False, False
        # What is never written twice hides nothing when it expires.
        return layer.is_bottom or self._table.schema.append_only, layer.is_merged and self._expired is not None

    def _merged(self, layers: Sequence[_Layer]) -> Iterator[StateRows]:
        """The rows of neighbouring layers of one kind."""
        drops_tombstones, expires = self._kind(layers[0])
        covered = KeyGroupRange(layers[0].key_groups.start, layers[-1].key_groups.end)
        return merge_windows(
            [part for number in range(len(self._table.runs)) for part in self._parts(number, layers)],
            covered,
            self._table.max_parallelism,
            drop_tombstones=drops_tombstones,
            expired=self._expired if expires else None,
            append_only=self._append_only,
        )

    def _parts(self, number: int, layers: Sequence[_Layer]) -> Iterator[Run]:
        """What of a run takes part in some layers: never rows of a slice between them, which :meth:`kept` keeps."""
        run = self._table.runs[number]
        first = max(bisect.bisect_right(layers, run.key_groups.start, key=_start) - 1, 0)
        near = layers[first : bisect.bisect_right(layers, run.key_groups.end, key=_start)]
        for covered in _stretches([layer for layer in near if layer.first <= number]):
            part = covered.intersection(run.key_groups)
            if len(part):
                yield run if part == run.key_groups else run.part(part, self._table.max_parallelism, None)


def _stretches(layers: Sequence[_Layer]) -> Iterator[KeyGroupRange]:
    """The key groups of layers, those of adjacent slices as one range."""
    pairs = itertools.pairwise(layers)
    ends = [number for number, (one, two) in enumerate(pairs, 1) if one.key_groups.end + 1 < two.key_groups.start]
    for first, end in itertools.pairwise([0, *ends, len(layers)] if layers else []):
        yield KeyGroupRange(layers[first].key_groups.start, layers[end - 1].key_groups.end)


def _borders(key_groups: KeyGroupRange, rows: int, pieces: float) -> list[int]:
    """The first key group of each slice, and the one after the last: so many slices as make merges even, and pieces.

    Their number is a power of two wherever there are enough key groups, so that a border stays one while state grows.
    """
    most = rows // sizes().slice_rows
    # Each slice costs every checkpoint the same, so of many rows they are larger: four of 65,536, 16 of 262,144.
    wanted = max(min(most, math.isqrt(4 * most), sizes().slices_max), math.ceil(pieces), 1)
    count = min(1 << (wanted - 1).bit_length(), len(key_groups))
    return [key_groups.start + number * len(key_groups) // count for number in range(count + 1)]


def _row_bytes(run: Run) -> float:
    """What a row of a run takes, about."""
    if run.handle is not None:
        return run.handle.length / max(run.handle.rows, 1)
    return run.nbytes / max(len(run), 1)


def _shares(runs: Sequence[Run], lengths: Counts) -> npt.NDArray[np.float64]:
    """How much of each run are tombstones."""
    return np.array([run.tombstones for run in runs]).reshape(-1, 1) / np.maximum(lengths, 1).reshape(-1, 1)


def _weights(runs: Sequence[Run], lengths: Counts) -> npt.NDArray[np.float64]:
    """How many rows of its object each run stands for with each of its own; parts of one object share it."""
    visible: dict[SectionIdentity, int] = {}
    for run, rows in zip(runs, lengths.tolist(), strict=True):
        if run.handle is not None:
            visible[run.handle.identity] = visible.get(run.handle.identity, 0) + rows
    weights = [1.0 if run.handle is None else run.handle.rows / max(visible[run.handle.identity], 1) for run in runs]
    return np.array(weights).reshape(-1, 1)


def _summed(numbers: npt.NDArray[Any], starts: Sequence[int]) -> Counts:
    """Sums over the runs of each level."""
    return np.ceil(np.add.reduceat(numbers, starts)).astype(np.int64) if starts else numbers.astype(np.int64)


def _levels(runs: Sequence[Run]) -> list[int]:
    """Where the levels of a stack begin: neighbours that share no key group are one, as no key is in two of them."""
    starts: list[int] = []
    for number, run in enumerate(runs):
        low, high = run.low, run.high
        if not starts or any(other.low < high and low < other.high for other in runs[starts[-1] : number]):
            starts.append(number)
    return starts


def _within(run: Run, part: KeyGroupRange, max_parallelism: int) -> Run:
    """The part of a run that lies in some of its key groups."""
    if part == run.key_groups:
        return run
    handle = run.handle
    if handle is not None:
        handle = msgspec.structs.replace(handle, first_key_group=part.start, last_key_group=part.end)
    return run.part(part, max_parallelism, handle)


def _gathered(windows: Iterable[StateRows]) -> Iterator[StateRows]:
    """The same rows without small batches, which would cost every search: those of narrow layers are put together."""
    small: list[StateRows] = []
    enough = sizes().run_batch_rows
    for window in windows:
        if len(window) < enough:
            small.append(window)
        if small and (len(window) >= enough or sum(map(len, small)) >= enough):
            yield _whole(small)
            small = []
        if len(window) >= enough:
            yield window
    if small:
        yield _whole(small)


def _whole(parts: Sequence[StateRows]) -> StateRows:
    return parts[0] if len(parts) == 1 else StateRows.concat(parts)
