"""Which bytes of which staged pieces become which part of an S3 multipart upload.

Facts (Amazon S3 user guide, "multipart upload limits" and ``UploadPartCopy``):
- Every part but the last has at least 5 MiB; an upload has at most 10,000 parts.
- A part can be copied from an object by the service itself, whole or (from an object over 5 MiB) a range of it.

So a piece of 5 MiB or more is copied. A shorter one is read and joined with what follows until 5 MiB are reached; where
a long piece follows, only as many of its first bytes are read as are needed, and the rest is copied.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

__all__ = ["PARTS_MAX", "PART_BYTES_MIN", "Segment", "plan_parts"]

PART_BYTES_MIN: Final = 5 * 1024 * 1024
PARTS_MAX: Final = 10_000


class Segment(NamedTuple):
    """The bytes ``[start, end)`` of the piece at index ``piece``."""

    piece: int
    start: int
    end: int


def plan_parts(lengths: Sequence[int], part_bytes_min: int = PART_BYTES_MIN) -> list[list[Segment]]:
    """The parts of the upload, in order: each one segment to be copied, or several to be read and joined.

    Args:
        lengths: Bytes of the pieces, in order.
        part_bytes_min: The smallest part that may be followed by another.
    """
    parts: list[list[Segment]] = []
    joining: list[Segment] = []
    for index, length in enumerate(lengths):
        start = 0
        if joining:
            missing = part_bytes_min - sum(segment.end - segment.start for segment in joining)
            start = missing if length - missing >= part_bytes_min else length
            if start:
                joining.append(Segment(index, 0, start))
            if start >= missing:
                parts.append(joining)
                joining = []
        if length - start >= part_bytes_min:
            parts.append([Segment(index, start, length)])
        elif length > start:
            joining = [Segment(index, start, length)]
    return [*parts, joining] if joining else parts
