"""The present, as a store tells it: what ages of its objects are measured against.

Owns asking. Does not own what an age decides: that is the sweep's business.
"""

from __future__ import annotations

from stateline.blob.api import BlobStore
from stateline.blob.names import STAGING_PREFIX
from stateline.environment import Ids

__all__ = ["store_time"]


def store_time(store: BlobStore, ids: Ids) -> float:
    """The store's own present, as its listings tell times: a ``head`` may round them otherwise.

    Makes an empty object where no reader looks, lists it, and deletes it.
    """
    name = f"{STAGING_PREFIX}{ids.new_id()}"
    store.put(name, b"")
    try:
        return max(found.modified_at for found in store.list(name))
    finally:
        store.delete([name])
