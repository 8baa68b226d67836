"""Sections that came with the results of subtasks: into the record where they are few, else into one segment.

A subtask that changed little hands its sections back with its result, so that it makes no object. The record may carry
``max_bytes`` of such sections, old and new: what an earlier record carried goes on with every later one, until merges
or the roll of a file make an end of it. Where they are more, all of them become one segment. So the record stays small,
and a checkpoint of any number of subtasks that changed little costs two requests, or one.
"""

from __future__ import annotations

from typing import TypeVar

from msgspec.structs import replace

from stateline.blob.checksum import crc32c
from stateline.changelog.segment import Section, SectionKind
from stateline.changelog.segment_writer import Segments
from stateline.checkpoint.api import Checkpoint
from stateline.checkpoint.objects import with_sections
from stateline.errors import CorruptDataError
from stateline.handles import RunHandle, SectionHandle, SectionIdentity

__all__ = ["packed"]

H = TypeVar("H", bound=SectionHandle)


def packed(checkpoint: Checkpoint, segments: Segments, max_bytes: int) -> Checkpoint:
    """The same checkpoint with at most so many bytes of sections in its record.

    A segment that is needed is durable when this returns.

    Raises:
        CorruptDataError: A section is not what its handle says: it was damaged on its way.
        StatelineError: What the store raises. At most garbage is left.
    """
    inline = {section.identity: (owner, section) for owner, section in checkpoint.owned_sections() if section.is_inline}
    if sum(section.length for _, section in inline.values()) <= max_bytes:
        return checkpoint
    segment = segments.writer()
    added: dict[SectionIdentity, SectionHandle] = {}
    for identity, (owner, section) in inline.items():
        data = section.data
        if crc32c(data) != section.crc32c:
            raise CorruptDataError("its checksum does not match", operation="pack", subject=f"a section of {owner}")
        kind = SectionKind.RUN if isinstance(section, RunHandle) else SectionKind.ROWS
        made = Section(kind, owner, checkpoint.checkpoint_id, (data,), len(data), section.crc32c)
        added[identity] = segment.add(made, SectionHandle)
    placement = segment.finish()

    def place(section: H) -> H:
        if not section.is_inline:
            return section
        now = placement.of(added[section.identity])
        return replace(section, name=now.name, offset=now.offset, data=b"")

    return with_sections(checkpoint, place)
