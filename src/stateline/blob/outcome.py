"""What a lost answer means: pure rules, in one place, for every store.

A conditional create whose answer is lost looks the same whether it happened or not; a retry of it then reports "already
there" for one's own success. So no store trusts the error alone: it reads back and compares :class:`Fingerprint`.

The law: a rule here never turns a real failure into a success or a conflict that it cannot prove.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from stateline.blob.api import Buffer, ObjectInfo
from stateline.blob.checksum import crc32c, crc32c_of_parts
from stateline.errors import AlreadyExistsError, ConflictError, CorruptDataError, DataLossError, StatelineError
from stateline.handles import Part

__all__ = ["Fingerprint", "PieceError", "already_exists", "damaged_part", "parts_missing", "too_short"]


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What an object must be to be ours.

    Attributes:
        length: Bytes.
        crc32c: CRC32C of them.
        nonce: Of its writer; compared where the store kept one. Equal bytes under another writer's nonce are foreign:
            they are that writer's rows, and taking them for ours would count them once instead of twice.
    """

    length: int
    crc32c: int
    nonce: str = ""

    @classmethod
    def of_bytes(cls, data: Buffer) -> Self:
        """The fingerprint of an object that is written whole."""
        return cls(len(data), crc32c(data))

    @classmethod
    def of_parts(cls, parts: Sequence[Part], nonce: str = "") -> Self:
        """The fingerprint of a concatenation."""
        return cls(sum(part.length for part in parts), crc32c_of_parts(parts), nonce)

    def matches(self, found: ObjectInfo | None) -> bool:
        """Whether what the store says is there, with its CRC32C, is ours; ``None`` is nothing."""
        return (
            found is not None
            and (found.size, found.crc32c) == (self.length, self.crc32c)
            and (not self.nonce or not found.nonce or found.nonce == self.nonce)
        )

    def conflict(self, target: str, found: ObjectInfo) -> ConflictError:
        """The error of a publication whose target holds something else."""
        there = f"{found.size} bytes" + ("" if found.crc32c is None else f", CRC32C {found.crc32c:08x}")
        ours = f"{self.length} bytes, CRC32C {self.crc32c:08x}"
        return ConflictError(
            f"the target holds another object ({there}) than the one to publish ({ours})",
            operation="publish",
            subject=target,
            hint="Nothing was overwritten. Move the foreign object away, or find out which writer made it",
        )


class PieceError(Exception):
    """A publication found a piece gone or changed; what that means depends on the target."""

    def __init__(self, meaning: StatelineError) -> None:
        super().__init__(str(meaning))
        self.meaning = meaning


def already_exists(name: str) -> AlreadyExistsError:
    """The error of a create-if-absent that lost."""
    return AlreadyExistsError(
        "the name holds other bytes",
        operation="put_if_absent",
        subject=name,
        hint="Somebody else created it first; read it before deciding anything",
    )


def parts_missing(target: str, part_name: str) -> DataLossError:
    """The error of a publication that has neither its target nor its pieces."""
    return DataLossError(
        f"the target does not exist and its piece {part_name} is gone",
        operation="publish",
        subject=target,
        hint="It was deleted or expired (check lifecycle rules), or the target was published and then moved away. "
        "Restore the piece or the target, or go back to an older checkpoint",
    )


def damaged_part(target: str, part: Part) -> CorruptDataError:
    """The error of a publication from a piece whose bytes changed."""
    return CorruptDataError(
        f"the piece {part.name} is not the {part.length} bytes with CRC32C {part.crc32c:08x} that were staged",
        operation="publish",
        subject=target,
        hint="Nothing was published. Go back to a checkpoint whose pieces are intact",
    )


def too_short(name: str, end: int, size: int) -> CorruptDataError:
    """The error of a ranged read past the end."""
    return CorruptDataError(
        f"the object ends at {size}, before byte {end}",
        operation="get_range",
        subject=name,
        hint="It was truncated, or the handle that names it belongs to another object",
    )
