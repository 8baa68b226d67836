"""Objects as mapped memory, without a copy, where the store is this host's disk.

The bytes are not checked here: whoever maps an object verifies it before use.
"""

from __future__ import annotations

import pyarrow as pa

from stateline.blob.api import BlobStore
from stateline.blob.system_errors import error_of_system
from stateline.errors import UnavailableError

__all__ = ["map_object"]


def map_object(store: BlobStore, name: str) -> pa.Buffer | None:
    """All bytes of an object, memory-mapped; ``None`` where the store is not a disk of this host.

    The bytes stay readable while the buffer lives, also when the object is deleted. Fails as :meth:`BlobStore.get`.
    """
    path = store.local_path(name)
    if path is None:
        return None
    try:
        with pa.memory_map(str(path)) as mapped:
            return mapped.read_buffer()
    except OSError as error:
        raise error_of_system(error, "map", str(path)) from error
    except pa.ArrowException as error:
        raise UnavailableError(
            str(error), operation="map", subject=str(path), hint="Check the disk, then try again"
        ) from error
