"""The present, as a store tells it: what ages of its objects are measured against.

Owns asking. Does not own what an age decides: that is the sweep's business.
"""

from __future__ import annotations

from stateline.blob.api import BlobStore
from stateline.blob.names import STAGING_PREFIX
from stateline.environment import Ids
from stateline.errors import UnavailableError

__all__ = ["store_time"]


def store_time(store: BlobStore, ids: Ids) -> float:
    """The store's own present, as its listings tell times: a ``head`` may round them otherwise.

    Makes an empty object where no reader looks, lists it, and deletes it.

    Raises:
        UnavailableError: The listing does not show it.
    """
    name = f"{STAGING_PREFIX}{ids.new_id()}"
    store.put(name, b"")
    try:
        times = [found.modified_at for found in store.list(name)]
    finally:
        store.delete([name])
    if not times:
        raise UnavailableError(
            "a listing does not show an object that was just made, so it tells no ages",
            operation="store_time",
            subject=f"{store.url}/{name}",
            hint="Try again later; if it lasts, the store does not list consistently and cannot be swept",
        )
    return times[0]
