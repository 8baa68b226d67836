"""How any number of pieces, in any buckets, become one object on Cloud Storage.

Facts (Cloud Storage documentation, "composite objects", "rewrite"):
- A compose request takes at most 32 sources, all of the bucket of its result.
- A rewrite copies one object to another bucket.

A balanced tree needs ``ceil(log32(n))`` levels, and every level but the last writes the bytes of the file once more. A
chain, which composes the first 32 and goes on from there, writes them a quadratic number of times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import Final

from stateline.handles import Part

__all__ = ["SOURCES_MAX", "Step", "compose_steps"]

SOURCES_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class Step:
    """One request: sources of one bucket, and the intermediate object that they make; the target where there is none.

    A source may be the result of an earlier step. A single source of another bucket than the result's is rewritten.
    """

    sources: Sequence[Part]
    result: Part | None


def compose_steps(
    sources: Sequence[Part], home: str, intermediate: Callable[[str, Sequence[Part], str], Part]
) -> Iterator[Step]:
    """Every request of a publication, in order; the last one makes the target.

    Args:
        sources: At least one piece.
        home: Bucket of the target.
        intermediate: The object that some sources make at a place in the tree, in a bucket.
    """
    level = list(sources)
    container = level[0].container
    if any(source.container != container for source in level):
        for index, source in enumerate(level):
            if source.container != home:
                level[index] = intermediate(f"0-{index}", [source], home)
                yield Step([source], level[index])
        container = home
    for depth in count(1):
        if len(level) <= SOURCES_MAX and (container == home or len(level) == 1):
            yield Step(level, None)
            return
        groups = [level[start:end] for start, end in _even_ranges(len(level))]
        level = [intermediate(f"{depth}-{index}", group, container) for index, group in enumerate(groups)]
        for group, result in zip(groups, level, strict=True):
            yield Step(group, result)


def _even_ranges(size: int) -> list[tuple[int, int]]:
    """Half-open ranges of at most :data:`SOURCES_MAX`, as few as possible and as even as possible."""
    ranges = -(-size // SOURCES_MAX)
    return list(pairwise(size * index // ranges for index in range(ranges + 1)))
