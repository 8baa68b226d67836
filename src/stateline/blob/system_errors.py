"""What the errors of the operating system mean for files of a store.

Owns the classes of numbers, and the words. Does not own what is done about them (``local``, ``mapping``).
"""

from __future__ import annotations

import errno
from typing import Final

from stateline.errors import (
    AccessDeniedError,
    InvalidInputError,
    NotFoundError,
    StatelineError,
    StorageFullError,
    TooManyOpenFilesError,
    UnavailableError,
)

__all__ = ["SURELY_NOT_DONE", "error_of_system"]

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMLINK})
_OUT_OF_DESCRIPTORS: Final = frozenset({errno.EMFILE, errno.ENFILE})
_DENIED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_WRONG_NAME: Final = frozenset(
    {errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.EINVAL, errno.EILSEQ}
)
SURELY_NOT_DONE: Final = (
    _FULL | _OUT_OF_DESCRIPTORS | _DENIED | _WRONG_NAME | {errno.ENOENT, errno.EEXIST, errno.EXDEV, errno.EBUSY}
)
"""With these, a call that gives or takes a name has had no effect; after any other, nobody knows."""


def error_of_system(error: OSError, operation: str, subject: str) -> StatelineError:
    """The error of Stateline for a call of the operating system that failed on a file."""
    reason = error.strerror or str(error)
    if isinstance(error, FileNotFoundError):
        return NotFoundError("there is no such object", operation=operation, subject=subject)
    if error.errno in _FULL:
        return StorageFullError(reason, operation=operation, subject=subject, hint="Make room, then start again")
    if error.errno in _OUT_OF_DESCRIPTORS:
        return TooManyOpenFilesError(
            reason,
            operation=operation,
            subject=subject,
            hint="Close stores that are not used any more, or raise the limit (ulimit -n)",
        )
    if error.errno in _DENIED:
        return AccessDeniedError(
            reason, operation=operation, subject=subject, hint="Give this user read and write rights on the folder"
        )
    if error.errno in _WRONG_NAME:
        return InvalidInputError(
            f"{reason}: a file, folder or link is in the way",
            operation=operation,
            subject=subject,
            hint="The root must hold nothing but what Stateline wrote",
        )
    return UnavailableError(reason, operation=operation, subject=subject, hint="Check the disk, then try again")
