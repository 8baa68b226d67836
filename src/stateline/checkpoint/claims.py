"""Whose a savepoint is: one query's, that of whoever drops it, or nobody's.

The marker is created once, so there is one owner.
"""

from __future__ import annotations

from typing import Final

from stateline.blob.api import BlobStore
from stateline.checkpoint.metadata import decode_claim, encode_claim
from stateline.errors import AlreadyExistsError, ConflictError, NotFoundError

__all__ = ["DROPPED", "claim", "hint_of_drop", "owned", "owner_of"]

DROPPED: Final = "dropped"
"""The owner of a savepoint that somebody deletes."""


def owner_of(store: BlobStore, name: str) -> str | None:
    """Who is in a marker: a query id, or :data:`DROPPED`; ``None`` if there is no marker."""
    try:
        data = store.get(name)
    except NotFoundError:
        return None
    return decode_claim(data, f"{store.url}/{name}")


def claim(store: BlobStore, name: str, owner: str, operation: str) -> None:
    """Makes somebody the owner. Idempotent; :class:`ConflictError` where somebody else is."""
    try:
        store.put_if_absent(name, encode_claim(owner))
    except AlreadyExistsError as error:
        subject = f"{store.url}/{name}"
        raise owned(subject, decode_claim(store.get(name), subject), operation) from error


def owned(
    subject: str, owner: str, operation: str, hint: str = "Make a savepoint of that query, or use another one"
) -> ConflictError:
    """The error of whoever comes too late."""
    return ConflictError(
        "was dropped" if owner == DROPPED else f"query {owner} owns it",
        operation=operation,
        subject=subject,
        hint=hint,
    )


def hint_of_drop(owner: str) -> str:
    """What to do about a savepoint that belongs to a query and is to be dropped."""
    return (
        "That query needs its objects. If this is a copy of the folder, or the query is gone for good, add "
        f"--owned-by {owner}"
    )
