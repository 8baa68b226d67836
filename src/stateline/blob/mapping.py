"""Objects as mapped memory, without a copy, where the store is this host's disk.

The bytes are not checked here: whoever maps an object verifies it before use.

Facts:
- As for every other call of a local store, no link below the root is followed. So the file is opened by descriptors,
  one folder at a time, and mapped through its descriptor: a path could lead elsewhere a moment later.
"""

from __future__ import annotations

import os
import stat
from typing import Final

import pyarrow as pa

from stateline.blob.api import BlobStore
from stateline.blob.folders import opened_below
from stateline.blob.system_errors import error_of_system
from stateline.errors import InvalidInputError, UnavailableError

__all__ = ["map_object"]

_DESCRIPTORS: Final = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"


def map_object(store: BlobStore, name: str) -> pa.Buffer | None:
    """All bytes of an object, memory-mapped; ``None`` where the store is not a disk of this host.

    The bytes stay readable while the buffer lives, also when the object is deleted. Fails as :meth:`BlobStore.get`.
    """
    path = store.local_path(name)
    if path is None:
        return None
    root = str(path.parents[name.count("/")])
    try:
        with opened_below(root, name) as descriptor:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise InvalidInputError(
                    "is not a regular file",
                    operation="map",
                    subject=str(path),
                    hint="Name an object: a folder, a link or a device is not one",
                )
            with pa.memory_map(f"{_DESCRIPTORS}/{descriptor}") as mapped:
                return mapped.read_buffer()
    except OSError as error:
        raise error_of_system(error, "map", str(path)) from error
    except pa.ArrowException as error:
        raise UnavailableError(
            str(error), operation="map", subject=str(path), hint="Check the disk, then try again"
        ) from error
