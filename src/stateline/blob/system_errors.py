"""What the errors of the operating system mean for files of a store."""

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
"""With these, a call that gives or takes a name has had no effect; after any other, the outcome is unknown."""


def error_of_system(error: OSError, operation: str, subject: str) -> StatelineError:
    """The error of Stateline for a call of the operating system that failed on a file."""
    if isinstance(error, FileNotFoundError):
        return NotFoundError("there is no such object", operation=operation, subject=subject)
    reason = error.strerror or str(error)
    kind: type[StatelineError]
    kind, hint = UnavailableError, "Check the disk, then try again"
    if error.errno in _FULL:
        kind, hint = StorageFullError, "Make room, then start again"
    elif error.errno in _OUT_OF_DESCRIPTORS:
        kind, hint = TooManyOpenFilesError, "Close stores that are no longer used, or raise the limit (ulimit -n)"
    elif error.errno in _DENIED:
        kind, hint = AccessDeniedError, "Give this user read and write rights on the folder"
    elif error.errno in _WRONG_NAME:
        kind, hint = InvalidInputError, "The root must contain only what Stateline wrote"
        reason = f"{reason}: a file, folder or link is in the way"
    return kind(reason, operation=operation, subject=subject, hint=hint)
