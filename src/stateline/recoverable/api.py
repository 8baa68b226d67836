"""Files that appear exactly once, whole or not at all, and that survive the death of their writer.

These are the promises, which hold over any :class:`~stateline.blob.api.BlobStore`;
``stateline.testing.recoverable_conformance`` checks them.

A whole life, in one process::

    writer = RecoverableWriter.for_url("s3://bucket/out")
    with writer.open("part-0.csv") as stream:
        stream.write(b"a,b")
        stream.close_for_commit().commit()

A life over many micro-batches, each in another process; only points travel, inside checkpoint records::

    stream = writer.open("part-0.csv")              # batch 0
    stream.write(rows)
    point = stream.persist()                        # durable; one small object, or none if nothing is new
    stream = writer.recover(point)                  # batch 1, elsewhere: goes on at exactly point.length
    stream.write(more_rows)
    point = stream.close_for_commit().commit_point  # travels to the driver
    writer.recover_for_commit(point).commit_after_recovery()    # after the checkpoint; repeat as often as you like

Promises, on every store:

- **Nothing is visible before the commit**, and then the whole file is, at once. Nothing is ever overwritten.
- **A point is a promise**: after ``persist`` returned it, ``recover`` continues with exactly its bytes, in any process,
  any number of times, whatever the old stream, a later stream or a zombie wrote since. Points of one file do not
  disturb each other until one of them is committed.
- **A commit is verified**: length, CRC32C and (where the store keeps one) the nonce of the file. A foreign object at
  the target is a :class:`ConflictError`, never a success, also if it is as long; missing pieces without the target are
  a :class:`DataLossError`.
- **Nothing is deleted** by closing, failing or recovering, so any retained point stays good. ``commit`` deletes the
  pieces of what it committed, by exact name; ``cleanup`` those that a point has superseded; the sweep the rest.
- **A stream needs at most** ``chunk_size`` **bytes of memory**, and a file has at most ``length / fold_size`` long
  pieces and a bounded number of small ones, however often it is persisted (see ``folding``).

A stream belongs to one thread. Writers and committers may be shared, and writers pickled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Self

from stateline.errors import InvalidInputError
from stateline.handles import CommitPoint, Part, ResumePoint
from stateline.options import normalise_settings, parse_size, setting, settings_from_options

__all__ = ["CommitPoint", "Part", "RecoverableWriterSettings", "ResumePoint", "check_point"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoverableWriterSettings:
    """How a writer cuts files into pieces. May differ from run to run: a point carries all it needs.

    Attributes:
        chunk_size: Bytes that a stream buffers at most; a full buffer becomes one staged piece.
        fold_size: Pieces shorter than this, made by ``persist``, are merged into later ones; longer ones stay. The
            default is the smallest part of an S3 multipart upload, so that the store itself can join them.
    """

    chunk_size: int = setting("8MiB", parse_size, help="Bytes buffered per open file, and length of a full piece")
    fold_size: int = setting("5MiB", parse_size, help="Shorter pieces, made by persist, are merged into later ones")

    def __post_init__(self) -> None:
        normalise_settings(self)
        if self.chunk_size < 1:
            raise InvalidInputError("must be at least one byte", subject="chunk_size", hint="The default is 8MiB")

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Settings from strings; unknown keys are refused."""
        return settings_from_options(cls, options)

    @classmethod
    def option_names(cls) -> frozenset[str]:
        """The keys of :meth:`from_options`; what is not among them is an option of the store."""
        return frozenset(spec.name for spec in fields(cls))


def check_point(point: object, kind: type[CommitPoint], operation: str) -> None:
    """Refuses what is not a point of the kind that a call needs."""
    if not isinstance(point, kind):
        raise InvalidInputError(
            f"expected a {kind.__name__}, got {type(point).__name__}",
            operation=operation,
            subject="point",
            hint="Resume points come from persist(), commit points from a Committer; each kind has its serializer",
        )
