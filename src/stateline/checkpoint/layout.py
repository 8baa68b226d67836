"""Where things lie below a checkpoint root, and which names a record may reach.

::

    <root>/
    ├── chk-<id>/_metadata      the record of checkpoint <id> (plain decimal): a checkpoint, later its tombstone
    ├── chk-<id>/_published     mark: the files that the checkpoint finishes are visible
    ├── chk-<id>/<uuid>         files of that checkpoint alone
    ├── shared/<uuid>           runs and pending rows, shared by many checkpoints
    ├── taskowned/<uuid>        files that their task deletes itself
    ├── floor/<block>           marker: every id of the block is retired and fenced for ever
    ├── history/<block>         what checkpoints did and cost, :data:`HISTORY_BLOCK` of them; decides nothing
    ├── history/fenced-<id>-<uuid>   mark: a driver lost checkpoint <id> to another one, and stopped
    ├── spark/                  Spark's own checkpoint, if its user names no other place: not read, swept or copied
    └── savepoint-<...>/        self-contained copies; see ``savepoint``

Facts:
- Ids are grouped in blocks of :data:`FLOOR_BLOCK`; block ``b`` holds ids ``[b * FLOOR_BLOCK, (b + 1) * FLOOR_BLOCK)``.
  The number is part of the format: another one would read the old markers as floors of other ids.
- Blocks of the history hold :data:`HISTORY_BLOCK` ids in the same way, and only the newest :data:`HISTORY_BLOCKS` stay.
- A record reaches only data objects. Names that coordinate (``_metadata``, ``_published``, ``_claimed``, ``floor/``,
  ``history/``, ``spark/``, staging) are refused in a record, so that no record, however hostile, makes retention
  delete a fence.
"""

from __future__ import annotations

import re
from typing import Final

from stateline.blob.names import STAGING_PREFIX, check_name
from stateline.errors import InvalidInputError
from stateline.sizes import Sizes

__all__ = [
    "CLAIMED",
    "FLOOR_BLOCK",
    "FLOOR_PREFIX",
    "HISTORY_BLOCK",
    "HISTORY_BLOCKS",
    "HISTORY_PREFIX",
    "METADATA",
    "PUBLISHED",
    "RECORD_PREFIX",
    "SAVEPOINT_PREFIX",
    "SHARED_PREFIX",
    "SPARK_PREFIX",
    "TASKOWNED_PREFIX",
    "block_of",
    "block_of_floor",
    "block_of_history",
    "check_object_name",
    "fenced_name",
    "first_id_of_block",
    "floor_name",
    "history_name",
    "id_of_fenced",
    "id_of_published",
    "id_of_record",
    "ids_of_block",
    "is_made_here",
    "published_name",
    "record_name",
]

METADATA: Final = "_metadata"
"""Last segment of a record's name: a folder with it is complete."""

PUBLISHED: Final = "_published"
"""Last segment of the mark that a checkpoint's files are visible."""

CLAIMED: Final = "_claimed"
"""Last segment of the marker that one query owns a savepoint."""

RECORD_PREFIX: Final = "chk-"
SAVEPOINT_PREFIX: Final = "savepoint-"
SHARED_PREFIX: Final = "shared/"
TASKOWNED_PREFIX: Final = "taskowned/"
FLOOR_PREFIX: Final = "floor/"
HISTORY_PREFIX: Final = "history/"
SPARK_PREFIX: Final = "spark/"

FLOOR_BLOCK: Final = 256
"""Ids per floor marker. So a root keeps fewer than twice as many tombstones."""

HISTORY_BLOCK: Final = Sizes().history_block
"""Ids per object of the history, by default: so many checkpoints cost it one request."""

HISTORY_BLOCKS: Final = 157
"""Objects of the history that stay: a little more than 10,000 checkpoints."""

_RECORD: Final = re.compile(r"chk-(0|[1-9][0-9]{0,17})/_metadata")
_FLOOR: Final = re.compile(r"floor/(0|[1-9][0-9]{0,17})")
_HISTORY: Final = re.compile(r"history/(0|[1-9][0-9]{0,17})")
_FENCED: Final = re.compile(r"history/fenced-(0|[1-9][0-9]{0,17})-[0-9a-f]{32}")
_MADE_HERE: Final = re.compile(
    r"(?:shared|taskowned|chk-(?:0|[1-9][0-9]{0,17}))/[^/]*(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])[^/]*"
)
_PLAIN: Final = re.compile(r"(?:shared|taskowned)/[A-Za-z0-9][A-Za-z0-9._=-]{0,254}")
"""What nearly every name looks like; matching it is an order of magnitude cheaper than the full check."""


def record_name(checkpoint_id: int) -> str:
    """Name of the record of a checkpoint."""
    return f"{RECORD_PREFIX}{checkpoint_id}/{METADATA}"


def published_name(checkpoint_id: int) -> str:
    """Name of the mark that the files of a checkpoint are visible."""
    return f"{RECORD_PREFIX}{checkpoint_id}/{PUBLISHED}"


def id_of_record(name: str) -> int | None:
    """The checkpoint id of a record's name; ``None`` if the name is not exactly one that :func:`record_name` makes."""
    match = _RECORD.fullmatch(name)
    return int(match[1]) if match else None


def id_of_published(name: str) -> int | None:
    """The checkpoint id of a mark's name; ``None`` if :func:`published_name` does not make the name."""
    folder, _, leaf = name.rpartition("/")
    return id_of_record(f"{folder}/{METADATA}") if leaf == PUBLISHED else None


def block_of(checkpoint_id: int) -> int:
    """The block that an id belongs to."""
    return checkpoint_id // FLOOR_BLOCK


def first_id_of_block(block: int) -> int:
    """The lowest id of a block."""
    return block * FLOOR_BLOCK


def ids_of_block(block: int) -> range:
    """All ids of a block."""
    return range(first_id_of_block(block), first_id_of_block(block + 1))


def floor_name(block: int) -> str:
    """Name of the marker that closes a block."""
    return f"{FLOOR_PREFIX}{block}"


def block_of_floor(name: str) -> int | None:
    """The block of a marker's name; ``None`` if :func:`floor_name` does not make the name."""
    match = _FLOOR.fullmatch(name)
    return int(match[1]) if match else None


def history_name(block: int) -> str:
    """Name of the object with the history of a block of :data:`HISTORY_BLOCK` ids."""
    return f"{HISTORY_PREFIX}{block}"


def block_of_history(name: str) -> int | None:
    """The block of an object of the history; ``None`` if :func:`history_name` does not make the name."""
    match = _HISTORY.fullmatch(name)
    return int(match[1]) if match else None


def fenced_name(checkpoint_id: int, nonce: str) -> str:
    """Name of the mark that a driver lost a checkpoint; ``nonce`` is unique to the mark."""
    return f"{HISTORY_PREFIX}fenced-{checkpoint_id}-{nonce}"


def id_of_fenced(name: str) -> int | None:
    """The checkpoint that a driver lost, by its mark; ``None`` if :func:`fenced_name` does not make the name."""
    match = _FENCED.fullmatch(name)
    return int(match[1]) if match else None


def is_made_here(name: str) -> bool:
    """Whether Stateline may have given this name to a data object: all of them carry a UUID."""
    return _MADE_HERE.fullmatch(name) is not None


def check_object_name(name: str) -> str:
    """Returns ``name``, or refuses one that a record must not reach with :class:`InvalidInputError`."""
    if _PLAIN.fullmatch(name):
        return name
    check_name(name)
    leaf = name.rpartition("/")[2]
    if name.startswith((FLOOR_PREFIX, HISTORY_PREFIX, SPARK_PREFIX, STAGING_PREFIX)) or leaf in (
        METADATA,
        PUBLISHED,
        CLAIMED,
    ):
        raise InvalidInputError(
            "the name is reserved for coordination",
            subject=f"object name {name!r}",
            hint=f"Data objects live below {SHARED_PREFIX}, {TASKOWNED_PREFIX} or the folder of their checkpoint",
        )
    return name
