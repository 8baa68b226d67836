"""When an output file is complete. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, Literal

from stateline.options import normalise_settings, parse_bool, parse_duration, parse_size, setting

__all__ = ["RollingPolicy"]

_AUTO: Final = "auto"
_NEVER: Final = "never"
_SECONDS_IN_A_STREAM: Final = 300.0
"""The age at which a file of a stream that goes on is finished by default; decision 0028 says why."""


def _optional_seconds(value: float | str | None, name: str) -> float | None:
    return None if value in (None, _NEVER) else parse_duration(value, name)


def _age(value: float | str | None, name: str) -> float | Literal["auto"] | None:
    return _AUTO if value == _AUTO else _optional_seconds(value, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RollingPolicy:
    """A file rolls (is finished, and becomes visible with its checkpoint) when the first of these holds.

    Attributes:
        roll_bytes: Bytes buffered for the file. For encoded formats this is the size of its rows in Arrow; the
            encoded file is usually smaller.
        roll_seconds: Age since the first row; ``None`` or ``"never"`` for no limit. ``"auto"`` is five minutes in a
            stream that goes on, see :meth:`going_on`, at once where no rounds are made, see :meth:`unwatched`, and no
            limit in a batch job. A stream that ends by itself has no such limit, see :meth:`ending`.
        idle_seconds: Time since the newest row; ``None`` or ``"never"`` for no limit.
        every_checkpoint: Whether every checkpoint finishes its files, for readers that want rows at once.
    """

    roll_bytes: int = setting("128MB", parse_size, help="bytes after which a file is finished")
    roll_seconds: float | Literal["auto"] | None = setting(None, _age, help="age after which a file is finished")
    idle_seconds: float | None = setting(
        None, _optional_seconds, help="time without rows after which a file is finished"
    )
    every_checkpoint: bool = setting(False, parse_bool, help="finish every file with its checkpoint")

    def __post_init__(self) -> None:
        normalise_settings(self)

    def going_on(self) -> RollingPolicy:
        """The policy in a stream without an end: nobody may ever come to finish its files."""
        return replace(self, roll_seconds=_SECONDS_IN_A_STREAM) if self.roll_seconds == _AUTO else self

    def ending(self) -> RollingPolicy:
        """The policy in a stream that ends by itself: Spark reports no end, so each batch publishes its own rows."""
        return replace(self, every_checkpoint=True)

    def unwatched(self) -> RollingPolicy:
        """The policy in an endless stream without rounds: no time given means that each batch publishes its rows."""
        is_open_ended = self.roll_seconds == _AUTO and self.idle_seconds is None
        return replace(self, every_checkpoint=True) if is_open_ended else self

    @property
    def shortest_seconds(self) -> float | None:
        """No file is due by time sooner than this after its newest row; ``None`` if none ever is."""
        return min((limit for limit in (self._max_age, self.idle_seconds) if limit is not None), default=None)

    def due_at(self, *, opened_at: float, written_at: float) -> float | None:
        """From when on time alone finishes a file, in seconds since the epoch; ``None`` for never."""
        limits = ((opened_at, self._max_age), (written_at, self.idle_seconds))
        return min((since + limit for since, limit in limits if limit is not None), default=None)

    def is_complete(self, *, size: int, opened_at: float, written_at: float, now: float) -> bool:
        """Whether a file of ``size`` bytes rolls at the checkpoint of wall-clock time ``now`` (seconds)."""
        due = self.due_at(opened_at=opened_at, written_at=written_at)
        return self.every_checkpoint or size >= self.roll_bytes or (due is not None and now >= due)

    @property
    def _max_age(self) -> float | None:
        return None if self.roll_seconds == _AUTO else self.roll_seconds
