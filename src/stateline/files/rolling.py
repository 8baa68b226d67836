"""When an output file is complete: a pure rule.

Owns the policy. Does not own files: ``writer`` asks for each open file at each checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass

from stateline.options import normalise_settings, parse_bool, parse_duration, parse_size, setting

__all__ = ["RollingPolicy"]


def _optional_seconds(value: float | str | None, name: str) -> float | None:
    return None if value is None else parse_duration(value, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RollingPolicy:
    """A file rolls (is finished, and becomes visible with its checkpoint) when the first of these holds.

    Times are taken from the checkpoint, not from a timer: a file can only roll when a micro-batch runs.

    Attributes:
        roll_bytes: Bytes buffered for the file. For encoded formats this is the size of its rows in Arrow; the
            encoded file is usually smaller.
        roll_seconds: Age since the first row; ``None`` for no limit.
        idle_seconds: Time since the newest row; ``None`` for no limit.
        every_checkpoint: Whether every checkpoint finishes its files, for readers that want rows at once.
    """

    roll_bytes: int = setting("128MB", parse_size, help="bytes after which a file is finished")
    roll_seconds: float | None = setting(None, _optional_seconds, help="age after which a file is finished")
    idle_seconds: float | None = setting(
        None, _optional_seconds, help="time without rows after which a file is finished"
    )
    every_checkpoint: bool = setting(False, parse_bool, help="finish every file with its checkpoint")

    def __post_init__(self) -> None:
        normalise_settings(self)

    def is_complete(self, *, size: int, opened_at: float, written_at: float, now: float) -> bool:
        """Whether a file of ``size`` bytes rolls at the checkpoint of wall-clock time ``now`` (seconds)."""
        return (
            self.every_checkpoint
            or size >= self.roll_bytes
            or (self.roll_seconds is not None and now - opened_at >= self.roll_seconds)
            or (self.idle_seconds is not None and now - written_at >= self.idle_seconds)
        )
