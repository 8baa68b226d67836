"""Objects as memory: no copy where the store is this host's disk.

Owns the mapping and its errors. Does not own any check of the bytes: whoever maps an object proves it before use.
"""

from __future__ import annotations

import pyarrow as pa

from stateline.blob.api import BlobStore
from stateline.errors import AccessDeniedError, NotFoundError, UnavailableError

__all__ = ["map_object"]


def map_object(store: BlobStore, name: str) -> pa.Buffer | None:
    """All bytes of an object, memory-mapped; ``None`` where the store is no disk of this host.

    The bytes stay readable while the buffer lives, also when the object is deleted.

    Raises:
        NotFoundError: There is no such object.
        AccessDeniedError: It may not be read.
        UnavailableError: The disk fails.
    """
    path = store.local_path(name)
    if path is None:
        return None
    try:
        with pa.memory_map(str(path)) as mapped:
            return mapped.read_buffer()
    except FileNotFoundError as error:
        raise NotFoundError("there is no such object", operation="map", subject=name) from error
    except PermissionError as error:
        raise AccessDeniedError(
            error.strerror or str(error), operation="map", subject=str(path), hint="Give this user the right to read it"
        ) from error
    except (OSError, pa.ArrowException) as error:
        raise UnavailableError(
            str(error), operation="map", subject=str(path), hint="Check the disk, then try again"
        ) from error
