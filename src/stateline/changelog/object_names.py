"""What objects of a changelog are called: ``<job id>/changelog/<uuid>``."""

from __future__ import annotations

import re
from typing import Final

from stateline.blob.names import check_name
from stateline.environment import Ids
from stateline.errors import InvalidInputError

__all__ = ["check_job_id", "is_object_name", "object_prefix"]

_OBJECT: Final = re.compile(r"[^/]+/changelog/[0-9a-f]{32}")
_TAKEN: Final = re.compile(r"\..*|shared|taskowned|floor|(?:chk|savepoint)-.*", re.IGNORECASE | re.DOTALL)
"""Hidden folders, where staging is swept, and those of a checkpoint root, which has sweeps and deletes of its own."""


def check_job_id(job_id: str) -> str:
    """Returns ``job_id`` if it may be the first segment of names.

    Raises:
        InvalidInputError: It is no single segment, or a folder where something else deletes.
    """
    if "/" in check_name(job_id):
        raise _bad(job_id, "must be a single segment", "Give one without '/'")
    if _TAKEN.fullmatch(job_id):
        raise _bad(
            job_id, "folders of that name are swept", "Give one such as the name of the job, without a dot first"
        )
    return job_id


def object_prefix(job_id: str | None, ids: Ids) -> str:
    """How all names of a job begin; those of a fresh job without an id."""
    return f"{ids.new_id() if job_id is None else check_job_id(job_id)}/changelog/"


def is_object_name(name: str) -> bool:
    """Whether a changelog may have made an object of that name."""
    return _OBJECT.fullmatch(name) is not None


def _bad(job_id: str, message: str, hint: str) -> InvalidInputError:
    return InvalidInputError(message, subject=f"job id {job_id!r}", hint=hint)
