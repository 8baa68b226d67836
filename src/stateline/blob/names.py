"""The names of objects: what a store accepts, and how staged pieces are called.

Facts:
- A name is one or more segments joined by ``/``. A segment has 1 to 255 bytes in UTF-8 (the limit of local file
  systems), is neither ``.`` nor ``..``, and holds no NUL, no backslash, no control character and no surrogate.
- The whole name has at most 900 bytes, which leaves room for a prefix below the 1024 bytes of S3 and GCS.
"""

from __future__ import annotations

import re
from typing import Final

from stateline.errors import InvalidInputError

__all__ = [
    "MAX_NAME_BYTES",
    "MAX_SEGMENT_BYTES",
    "STAGING_PREFIX",
    "check_name",
    "check_prefix",
    "check_staged_name",
    "is_staged_name",
    "not_staged",
]

STAGING_PREFIX: Final = ".inprogress/"
"""Where staged pieces and temporary files are. Spark, Hive, Trino and pyarrow skip names that start with a dot."""

MAX_NAME_BYTES: Final = 900
MAX_SEGMENT_BYTES: Final = 255
_STAGED: Final = re.compile(re.escape(STAGING_PREFIX) + r"[0-9a-f]{32}(?:\.join/[0-9a-f]{32})?")
_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f\\]")


def check_name(name: str) -> str:
    """Returns ``name`` if it can name an object.

    Raises:
        InvalidInputError: It is empty, absolute, leaves the root, or has a segment that some store cannot hold.
    """
    reason = _complaint(name)
    if reason is not None:
        raise InvalidInputError(
            reason, subject=f"name {name!r}", hint="Names are relative and made of plain '/'-separated segments"
        )
    return name


def check_prefix(prefix: str) -> str:
    """Returns ``prefix`` if the name of an object could start with it; the empty prefix means everything."""
    if not isinstance(prefix, str):
        raise InvalidInputError(
            f"must be text, not {type(prefix).__name__}", operation="list", subject="prefix", hint="'' is everything"
        )
    if prefix:
        check_name(prefix + "x" if prefix.endswith("/") else prefix)
    return prefix


def check_staged_name(name: str) -> str:
    """Returns ``name`` if staging can have made it: only such objects are joined and discarded."""
    if not name.startswith(STAGING_PREFIX):
        raise not_staged(name, "is not the name of a staged piece")
    return check_name(name)


def not_staged(name: str, message: str) -> InvalidInputError:
    """The error of a part that staging cannot have made here."""
    hint = "The point was damaged or belongs to another store"
    return InvalidInputError(message, operation="staged piece", subject=name, hint=hint)


def is_staged_name(name: str) -> bool:
    """Whether a store that stages below its root makes such names: only these are listed for the sweep."""
    return _STAGED.fullmatch(name) is not None


def _complaint(name: str) -> str | None:
    if not isinstance(name, str):
        return f"must be text, not {type(name).__name__}"
    if not name:
        return "must not be empty"
    try:
        encoded = name.encode("utf-8")
    except UnicodeEncodeError:
        return "is not valid Unicode"
    if len(encoded) > MAX_NAME_BYTES:
        return f"must have at most {MAX_NAME_BYTES} bytes"
    if _FORBIDDEN.search(name):
        return "must not contain a backslash or a control character"
    for segment in name.split("/"):
        if segment in ("", ".", ".."):
            return f"must not contain the segment {segment!r}"
        if len(segment.encode("utf-8")) > MAX_SEGMENT_BYTES:
            return f"must have at most {MAX_SEGMENT_BYTES} bytes in each segment"
    return None
