"""What early versions wrote, for tests of state that is older than the code: their faults are put back for a while."""

from __future__ import annotations

import bisect
import contextlib
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from msgspec.structs import replace as changed

from stateline.changelog.segment_writer import Placement
from stateline.handles import RunHandle
from stateline.key_groups import KeyGroupRange
from stateline.state import merge as merge_module
from stateline.state import run_store as run_store_module
from stateline.state.rows import StateRows
from stateline.state.run import encode_run
from stateline.state.runs import Run
from stateline.state.snapshot import Layers
from tests.kit.planted.planting import replaced

__all__ = ["copying_merges", "parts_across_gaps", "unnamed_inline_sections"]


@contextlib.contextmanager
def copying_merges() -> Iterator[None]:
    """Merges copy the rows of slices that take no part, and runs are not marked as exact."""

    def unmarked(run: Any, schema: Any, *arguments: Any) -> Any:
        return encode_run(run, replace(schema, append_only=False), *arguments)

    def ordered(parts: Sequence[StateRows]) -> StateRows:
        rows = StateRows.concat(parts)
        return rows.take(rows.keys.hashes.argsort(kind="stable"))

    with (
        replaced(Layers, "_parts", parts_across_gaps),
        replaced(run_store_module, "encode_run", unmarked),
        replaced(merge_module, "_newest", ordered),
    ):
        yield


def parts_across_gaps(self: Layers, number: int, layers: Sequence[Any]) -> Iterator[Run]:
    """``Layers._parts`` of early versions: what lies between two layers is part of both."""
    run = self._table.runs[number]
    first = max(bisect.bisect_right(layers, run.key_groups.start, key=lambda layer: layer.key_groups.start) - 1, 0)
    near = layers[first:]
    for takes_part, some in itertools.groupby(near, lambda layer: layer.first <= number):
        neighbours = [layer.key_groups for layer in some]
        part = KeyGroupRange(neighbours[0].start, neighbours[-1].end).intersection(run.key_groups)
        if takes_part and len(part):
            yield run.part(part, self._table.max_parallelism, None)


@contextlib.contextmanager
def unnamed_inline_sections() -> Iterator[None]:
    """Inline sections have no identity but their bytes, and are packed as one where these are equal."""
    place = Placement.of

    def unnamed(self: Placement, handle: Any) -> Any:
        return changed(place(self, handle), made_as="")

    by_bytes = property(lambda section: (section.name, section.offset, section.data, 0))
    with replaced(Placement, "of", unnamed), replaced(RunHandle, "identity", by_bytes):
        yield
