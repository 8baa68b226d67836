"""Exactly-once files on any blob store: write, persist, resume elsewhere, commit once.

``api`` states the promises.
"""

from stateline.recoverable.api import CommitPoint, Part, RecoverableWriterSettings, ResumePoint
from stateline.recoverable.committer import Committer
from stateline.recoverable.stream import RecoverableStream
from stateline.recoverable.writer import RecoverableWriter

__all__ = [
    "CommitPoint",
    "Committer",
    "Part",
    "RecoverableStream",
    "RecoverableWriter",
    "RecoverableWriterSettings",
    "ResumePoint",
]
