"""The settings of a changelog: values only, parsed once, checked together.

One budget for retries: an attempt gets ``upload_timeout`` **including** the retries that the client of the store
makes on its own; when it is over, the next attempt races it. So a change set is durable or has failed after at most
:attr:`ChangelogSettings.upload_budget_seconds`. Keep that below the timeout of a checkpoint.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from stateline.errors import InvalidInputError
from stateline.options import (
    normalise_settings,
    parse_choice,
    parse_duration,
    parse_int,
    parse_size,
    setting,
    settings_from_options,
)

__all__ = ["ChangelogSettings"]


def _choice(*choices: str) -> Callable[[Any, str], str]:
    return lambda value, name: parse_choice(value, choices, name)


def _positive(value: int | str, name: str) -> int:
    return parse_int(value, name, minimum=1)


def _path(value: str | os.PathLike[str] | None, name: str) -> str | None:
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if path is not None and (not isinstance(path, str) or not path or "\0" in path):
        raise InvalidInputError(f"must be a path, got {value!r}", subject=name, hint="Give a folder, or none")
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangelogSettings:
    """How a changelog uploads, retries, keeps local copies and reads. See ``docs/changelog/options.md`` for a table."""

    preemptive_persist_threshold: int = setting(
        "5MB", parse_size, help="active bytes of a writer that are uploaded without a checkpoint; 0: every append"
    )
    persist_delay: float = setting(
        0.01, parse_duration, help="wait for other writers, from the first task of a batch on; 0: none"
    )
    persist_size_threshold: int = setting(
        "10MB", parse_size, help="queued bytes that start a batch at once; also the bound of one batch (one object)"
    )
    max_in_flight: int = setting(
        "100MB", parse_size, help="strict limit of bytes queued or being uploaded; above it writers wait"
    )
    compression: str = setting("none", _choice("none", "lz4", "zstd"), help="of the changes: none, lz4 or zstd")
    buffer_size: int = setting(
        "1MB",
        parse_size,
        help="small pieces of an object are gathered in buffers of this size; large ones go as they are",
    )
    num_upload_threads: int = setting(5, _positive, help="attempts that run at the same time")
    num_discard_threads: int = setting(1, _positive, help="deletes that run at the same time")
    retry_policy: str = setting("fixed", _choice("none", "fixed"), help="none or fixed")
    upload_timeout: float = setting(
        1.0, parse_duration, help="after this an attempt is raced by the next one; 0: never"
    )
    max_attempts: int = setting(3, _positive, help="attempts of one batch, the first included")
    retry_delay: float = setting(0.5, parse_duration, help="wait after an attempt that failed (not: timed out)")
    scheduler: str = setting(
        "batching", _choice("batching", "direct"), help="batching, or direct: upload in the caller's thread"
    )
    local_recovery_dir: str | None = setting(
        None, _path, help="folder, apart from the root, for a second copy on this host; none: no copy"
    )
    local_recovery_max_bytes: int = setting("10GB", parse_size, help="bound of the local copies in that folder")
    local_copy_timeout: float = setting(
        0.25, parse_duration, help="how long a finished upload waits for its local copy before going on without"
    )
    cache_dir: str | None = setting(
        None, _path, help="folder where readers of one host share downloaded objects; none: ranged reads only"
    )
    cache_max_bytes: int = setting("10GB", parse_size, help="bound of the folder of downloaded objects")
    cache_idle_timeout: float = setting(600.0, parse_duration, help="unused downloads are deleted after this")
    num_download_threads: int = setting(4, _positive, help="segments that a reader fetches ahead of its caller")

    def __post_init__(self) -> None:
        normalise_settings(self)
        if self.max_in_flight < 1:
            raise InvalidInputError("must be at least 1 byte, got 0", subject="max_in_flight", hint="Raise the limit")
        if self.persist_size_threshold > self.max_in_flight:
            raise InvalidInputError(
                f"persist_size_threshold ({self.persist_size_threshold}) exceeds max_in_flight ({self.max_in_flight}), "
                "so a batch could never be full",
                subject="persist_size_threshold",
                hint="Raise max_in_flight or lower persist_size_threshold",
            )

    @classmethod
    def from_options(cls, options: Mapping[str, str]) -> Self:
        """Settings from strings, keyed by field name.

        Raises:
            InvalidInputError: An unknown key (the hint names the nearest known one), or a bad value.
        """
        return settings_from_options(cls, options)

    @property
    def upload_budget_seconds(self) -> float | None:
        """The longest that a batch takes from its first attempt to success or final failure; ``None`` if unbounded."""
        if self.upload_timeout == 0 or self.retry_policy == "none":
            return None
        return self.max_attempts * self.upload_timeout + (self.max_attempts - 1) * self.retry_delay
