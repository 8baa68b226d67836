"""Options of ``format("stateline")``, the source that reads state as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from stateline.errors import InvalidInputError
from stateline.options import check_known, normalise_settings, parse_bool, parse_int, setting
from stateline.spark.data_source_options import DataSourceOptions
from stateline.spark.data_source_options import parse_names as _names
from stateline.spark.data_source_options import parse_text as _text

__all__ = ["LATEST", "StateSourceOptions"]

LATEST: Final = "latest"


def _id(value: int | str | None, name: str) -> int | None:
    return None if value is None else parse_int(value, name, minimum=0)


def _start(value: int | str | None, name: str) -> int | str | None:
    return LATEST if value == LATEST else _id(value, name)


def _count(value: int | str | None, name: str) -> int | None:
    return None if value is None else parse_int(value, name, minimum=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSourceOptions(DataSourceOptions):
    """What a user can say about the source.

    Attributes:
        path: A checkpoint root, ``<root>/chk-<id>``, or the folder of a savepoint; ``load(path)`` sets it.
        operator: Whose state; not needed where there is one operator.
        checkpoint: A retained checkpoint to read instead of the newest one.
        mode: ``snapshot``: the rows of one checkpoint. ``changes``: what happened between two. A stream has changes.
        start_checkpoint: Changes begin after this checkpoint; by default before the first one, so that all rows come
            as inserts first. For a stream also ``latest``. A stream that goes on does not look at it.
        end_checkpoint: Changes end with this checkpoint; by default with the newest. Not for a stream.
        columns: Only these, separated by commas.
        partitions: Into how many tasks a read is cut; by default one for every 2,500,000 rows.
        point_reads: Whether filters that name whole keys narrow what is read. Spark then reuses the narrowed read in
            every other query on the same DataFrame: use it in one query only, and load it anew for the next.
        root_options: Options of the store, given as ``root.<option>``.
    """

    path: str = setting("", _text, help="checkpoint root, checkpoint or savepoint")
    operator: str | None = setting(None, _text, help="whose state")
    checkpoint: int | None = setting(None, _id, help="a retained checkpoint, instead of the newest")
    mode: Literal["snapshot", "changes"] | None = setting(None, _text, help="snapshot or changes")
    start_checkpoint: int | str | None = setting(None, _start, help="changes begin after this checkpoint")
    end_checkpoint: int | None = setting(None, _id, help="changes end with this checkpoint")
    columns: tuple[str, ...] = setting("", _names, help="only these columns, separated by commas")
    partitions: int | None = setting(None, _count, help="into how many tasks a read is cut")
    point_reads: bool = setting(False, parse_bool, help="read only the keys that filters name; one query per load")
    root_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        normalise_settings(self)
        if not self.path:
            raise _wrong("path", "is required", 'Call load("file:///folder")')
        if self.mode is not None:
            check_known([self.mode], ("snapshot", "changes"), "value of mode")
        if self.is_feed and self.checkpoint is not None:
            raise _wrong(
                "checkpoint",
                "cannot be given for changes, which lie between two",
                "Give start_checkpoint and end_checkpoint",
            )
        if not self.is_feed and (self.start_checkpoint is not None or self.end_checkpoint is not None):
            raise _wrong("mode", "cannot be a snapshot with a start or an end", "Give checkpoint, or mode 'changes'")
        if len(set(self.columns)) < len(self.columns):
            raise _wrong("columns", f"must not name a column twice: {','.join(self.columns)}", "Name each column once")

    @property
    def is_feed(self) -> bool:
        """Whether changes are read, and not the rows of one checkpoint."""
        return self.mode == "changes"


def _wrong(option: str, reason: str, hint: str) -> InvalidInputError:
    return InvalidInputError(reason, operation="stateline", subject=option, hint=hint)
