"""What a lost answer means: pure rules, one place, used by every backend.

A conditional create whose answer is lost looks the same whether it happened or not; a retry of it then reports "already
there" for one's own success. So no backend trusts the error alone: it reads back and asks :func:`judge`.

The law: a rule here never turns a real failure into a success or a conflict that it cannot prove.
"""

from __future__ import annotations

from enum import Enum
from numbers import Integral

from stateline.blob.api import ObjectInfo
from stateline.errors import (
    AlreadyExistsError,
    ConflictError,
    CorruptDataError,
    DataLossError,
    InvalidInputError,
)
from stateline.handles import Part

__all__ = [
    "Verdict",
    "already_exists",
    "check_range",
    "conflict",
    "damaged_part",
    "judge",
    "parts_missing",
    "too_short",
]


class Verdict(Enum):
    """What is under a name, seen by the one who wants to create it."""

    ABSENT = "absent"
    OURS = "ours"
    FOREIGN = "foreign"


def judge(found: ObjectInfo | None, *, length: int, crc32c: int, nonce: str = "") -> Verdict:
    """Tells our own object from a foreign one.

    Args:
        found: What the store says is there, with its CRC32C; ``None`` if nothing is.
        length: Bytes that we wrote.
        crc32c: CRC32C of them.
        nonce: Our nonce; compared where the store kept one. Equal bytes under another writer's nonce are foreign:
            they are another writer's rows, and publishing ours as theirs would count them once instead of twice.
    """
    if found is None:
        return Verdict.ABSENT
    if found.size != length or found.crc32c != crc32c:
        return Verdict.FOREIGN
    if nonce and found.nonce and found.nonce != nonce:
        return Verdict.FOREIGN
    return Verdict.OURS


def already_exists(name: str) -> AlreadyExistsError:
    """The error of create-if-absent that lost."""
    return AlreadyExistsError(
        "the name holds other bytes",
        operation="put_if_absent",
        subject=name,
        hint="Somebody else created it first; read it before deciding anything",
    )


def conflict(target: str, found: ObjectInfo, *, length: int, crc32c: int) -> ConflictError:
    """The error of a publication whose target is taken by something else."""
    there = f"{found.size} bytes" + ("" if found.crc32c is None else f", CRC32C {found.crc32c:08x}")
    return ConflictError(
        f"the target holds another object ({there}) than the one to publish ({length} bytes, CRC32C {crc32c:08x})",
        operation="publish",
        subject=target,
        hint="Nothing was overwritten. Move the foreign object away, or find out which writer made it",
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


def check_range(name: str, start: int, end: int) -> None:
    """Checks the half-open range of :meth:`BlobStore.get_range`."""
    if not isinstance(start, Integral) or not isinstance(end, Integral) or not 0 <= start <= end:
        raise InvalidInputError(
            f"[{start!r}, {end!r}) is no range", operation="get_range", subject=name, hint="Give 0 <= start <= end"
        )


def too_short(name: str, end: int, size: int) -> CorruptDataError:
    """The error of a ranged read past the end."""
    return CorruptDataError(
        f"the object ends at {size}, before byte {end}",
        operation="get_range",
        subject=name,
        hint="It was truncated, or the handle that names it belongs to another object",
    )


def damaged_part(target: str, part: Part) -> CorruptDataError:
    """The error of a publication from a piece whose bytes changed."""
    return CorruptDataError(
        f"the piece {part.name} is not the {part.length} bytes with CRC32C {part.crc32c:08x} that were staged",
        operation="publish",
        subject=target,
        hint="Nothing was published. Go back to a checkpoint whose pieces are intact",
    )
