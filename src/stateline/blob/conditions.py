"""Whether a service keeps the condition on which create-if-absent rests.

Some services that speak S3 ignore ``If-None-Match``: they answer success and overwrite. Two drivers would then both win
the race for a checkpoint. So a new root is tried once: the same name is created twice, and the second must be refused.
"""

from __future__ import annotations

import contextlib

from stateline.blob.api import BlobStore
from stateline.blob.names import STAGING_PREFIX
from stateline.errors import AlreadyExistsError, InvalidInputError, StatelineError

__all__ = ["check_create_if_absent"]


def check_create_if_absent(store: BlobStore, nonce: str) -> None:
    """Refuses a service that ignores the conditions of requests. No request where the store needs none.

    Otherwise two requests that create and one that deletes. A probe that a crash leaves is garbage for the sweep.
    Idempotent: the call may be repeated with the same nonce.

    Args:
        store: The store.
        nonce: Unique to the caller's attempt.

    Raises:
        InvalidInputError: The service created one name twice.
        OutcomeUnknownError: The answers were lost: nothing is known of the service, and nothing was decided.
        UnavailableError: The same, and nothing happened.
    """
    if not store.rests_on_conditions:
        return
    name = f"{STAGING_PREFIX}{nonce}"
    try:
        store.put_if_absent(name, f"first {nonce}".encode())
        try:
            store.put_if_absent(name, f"second {nonce}".encode())
        except AlreadyExistsError:
            return
    finally:
        with contextlib.suppress(StatelineError, OSError):
            store.delete([name])
    raise InvalidInputError(
        "the service created one object twice: it ignores the condition of create-if-absent (If-None-Match of S3)",
        operation="create root",
        subject=store.url,
        hint="Two drivers could both decide a checkpoint. Upgrade the service, or keep the root on one that supports "
        "conditional writes",
    )
