"""A pipeline as plain values: its graph and its settings, as the driver reads them and tasks receive them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from stateline.changelog.upload_table import RetryPolicy
from stateline.checkpoint import MAX_FILE_STATE_THRESHOLD
from stateline.checkpoint.retention import RetentionRule
from stateline.errors import InvalidInputError
from stateline.options import normalise_settings, parse_choice, parse_duration, parse_int, parse_size, setting
from stateline.pipeline.graph import Graph
from stateline.sizes import sizes

__all__ = [
    "AUTO_COPIES",
    "NO_COPIES",
    "PLAIN",
    "Combine",
    "PipelinePlan",
    "PipelineSettings",
    "SavepointStart",
    "SparkStream",
    "StorageSettings",
]

AUTO_COPIES: Final = "auto"
NO_COPIES: Final = "none"
"""What ``local_copies`` may be besides a folder."""


def _at_least_two(value: int | str, name: str) -> int:
    return parse_int(value, name, minimum=2)


def _text(value: object, _: str) -> str:
    return str(value)


def _record_size(value: int | str, name: str) -> int:
    size = parse_size(value, name)
    if size > MAX_FILE_STATE_THRESHOLD:
        raise InvalidInputError(
            f"must be at most {MAX_FILE_STATE_THRESHOLD} bytes, got {size}",
            subject=name,
            hint="Records must stay small: give less",
        )
    return size


def _attempts(value: int | str, name: str) -> int:
    return parse_int(value, name, minimum=1, maximum=10)


def _folder(value: object, name: str) -> str:
    if value in (None, ""):
        raise InvalidInputError(f"{value!r} is not a folder", subject=name, hint="Give a path, auto or none")
    return str(value)


Combine = Literal["auto", "always", "never"]


def _combine(value: str, name: str) -> str:
    return parse_choice(value, ("auto", "always", "never"), name)


_AUTO: Final = 0
_AUTO_RULE: Final = RetentionRule.of_states(10, seconds=3600.0)


def _retained(value: int | str, name: str) -> int:
    return _AUTO if value in ("auto", _AUTO) else _at_least_two(value, name)


def _start_mode(value: str, name: str) -> str:
    return parse_choice(value, ("copy", "claim"), name)


def _source(value: str, name: str) -> str:
    return parse_choice(value, ("savepoint", "new"), name)


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageSettings:
    """What a keyed stream and ``stateline_files`` both may be told of their records, their tasks and their stores.

    Attributes:
        retained_checkpoints: How many of the newest checkpoints are kept, with all they reach; at least 2.
            :class:`PipelineSettings` counts those that changed state.
        inline_bytes: What a subtask writes comes to the driver with its result, up to so many bytes, in place of an
            object of its own. With many subtasks it is less: the driver takes 256 MiB at most.
        record_bytes: What came so goes into the checkpoint's record, up to so many bytes in all; else into one object.
        upload_timeout: A request to a store that is not on this host is late after so long, and is then sent once more
            beside itself; the first answer counts. For each 8 MiB that it moves, and later where such requests usually
            take more than a third of it; 0 for never.
        max_attempts: How often at most, the first included. A slow request is never given up for being late.
        local_copies: A folder on each executor's host for copies of what tasks write and read, so that a task finds on
            its own disk what a root elsewhere (an object store) keeps. ``auto`` is a folder of Spark's own, which goes
            with the executor; ``none`` keeps runs in memory, and they are fetched again by every new worker process.
        local_copies_bytes: Room for them, on each host.
    """

    retained_checkpoints: int = setting(3, _at_least_two, help="newest checkpoints that are kept")
    inline_bytes: int = setting("64KiB", parse_size, help="of a subtask that come with its result, without an object")
    record_bytes: int = setting("20KiB", _record_size, help="of these that the record of a checkpoint may hold")
    upload_timeout: float = setting(
        "250ms", parse_duration, help="then a request to a store elsewhere is sent again; 0: never"
    )
    max_attempts: int = setting(3, _attempts, help="attempts of a late request")
    local_copies: str = setting(
        AUTO_COPIES, _folder, help="folder for copies on each executor's host, auto (Spark's own folder) or none"
    )
    local_copies_bytes: int = setting("10GB", parse_size, help="room for them, on each host")

    def __post_init__(self) -> None:
        normalise_settings(self)

    @property
    def retention(self) -> int | RetentionRule:
        """Which checkpoints :meth:`CheckpointStore.retain` keeps."""
        return self.retained_checkpoints

    @property
    def retry_policy(self) -> RetryPolicy:
        """When a request to a store is late, and how often it is sent."""
        return RetryPolicy.fixed(self.max_attempts, self.upload_timeout, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings(StorageSettings):
    """Options of a keyed stream.

    Attributes:
        retained_checkpoints: How many checkpoints that changed state are kept, with all they reach; at least 2. Records
            in between that changed no state stay with them, up to ten records for each. ``auto`` keeps 10, and those of
            the last hour, up to 100 records.
        combine: Whether rows of one key become one row before they are sent to Python: ``auto`` where the batch before
            had many rows for each key, ``always`` or ``never``. It concerns aggregations that Spark can compute, too.
        metrics_log: A file on the driver's host to which each batch appends a line of JSON; empty for none.
        start_from: URL of a savepoint, from which a root without checkpoints starts; empty for none. A root with
            checkpoints goes on from its newest one, so the option may stay in the program.
        source: ``savepoint`` continues where the sources stood at the savepoint. ``new`` begins where the query says.
        start_mode: ``copy`` leaves the savepoint as it is. ``claim`` uses its objects where they are, below the root,
            and makes them the query's own.
    """

    retained_checkpoints: int = setting(
        "auto", _retained, help="checkpoints that changed state and are kept; auto: 10, and those of the last hour"
    )
    combine: Literal["auto", "always", "never"] = setting(
        "auto", _combine, help="rows of one key before they go to Python: auto, always, never"
    )
    metrics_log: str = setting("", _text, help="file for one line of JSON per batch")
    start_from: str = setting("", _text, help="savepoint from which a new root starts")
    start_mode: Literal["copy", "claim"] = setting("copy", _start_mode, help="copy or claim")
    source: Literal["savepoint", "new"] = setting(
        "savepoint", _source, help="where the source begins: savepoint or new"
    )

    @property
    def retention(self) -> int | RetentionRule:
        """Which checkpoints :meth:`CheckpointStore.retain` keeps."""
        return _AUTO_RULE if self.retained_checkpoints == _AUTO else RetentionRule.of_states(self.retained_checkpoints)


PLAIN: Final = StorageSettings(
    inline_bytes=0, record_bytes=0, upload_timeout=0.0, max_attempts=1, local_copies=NO_COPIES, local_copies_bytes=0
)
"""Every section an object, every request sent once, and no copies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SavepointStart:
    """Where a new root starts.

    Attributes:
        url: Folder of the savepoint.
        mode: As :attr:`PipelineSettings.start_mode`.
        options: Options of the savepoint's store.
        source: As :attr:`PipelineSettings.source`.
    """

    url: str
    mode: Literal["copy", "claim"] = "copy"
    source: Literal["savepoint", "new"] = "new"
    options: Mapping[str, str] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkStream:
    """What is known of Spark's query before it starts.

    Attributes:
        checkpoint: The URL of its checkpoint; empty if unknown.
        sources: What it reads, in the order of its sources; empty if unknown.
        has_state: Whether operators of Spark's own keep state in front of the pipeline.
    """

    checkpoint: str = ""
    sources: tuple[str, ...] = ()
    has_state: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePlan:
    """A whole pipeline: its graph, where its records are, and its settings.

    Attributes:
        root_url: Checkpoint root.
        parallelism: Subtasks per operator.
        max_parallelism: Key groups.
        graph: Inputs and operators.
        settings: What the user said of storage.
        metrics_log: See :class:`PipelineSettings`.
        combine: See :class:`PipelineSettings`.
        root_options: Options of the root's store.
        start: Where a root without checkpoints starts; ``None`` for an empty state.
        stream: Spark's query.
    """

    root_url: str
    parallelism: int
    max_parallelism: int
    graph: Graph
    settings: StorageSettings = PLAIN
    metrics_log: str = ""
    combine: Combine = "auto"
    root_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    start: SavepointStart | None = None
    stream: SparkStream = SparkStream()

    def endless(self) -> PipelinePlan:
        """The plan in a stream without an end; see :meth:`stateline.files.RollingPolicy.going_on`."""
        operators = tuple(operator.endless() for operator in self.graph.operators)
        return replace(self, graph=Graph(self.graph.inputs, operators))

    def ending(self) -> PipelinePlan:
        """The plan in a stream that ends by itself; see :meth:`stateline.files.RollingPolicy.ending`."""
        operators = tuple(operator.ending() for operator in self.graph.operators)
        return replace(self, graph=Graph(self.graph.inputs, operators))

    @property
    def subtask_inline_bytes(self) -> int:
        """What each subtask may hand back with its result, so that all of them together fit the driver."""
        return min(
            self.settings.inline_bytes, sizes().driver_inline_bytes // (self.parallelism * len(self.graph.operators))
        )

    @property
    def state_schemas(self) -> dict[str, str]:
        """The encoded schemas of all state, by its name in the checkpoint."""
        return {
            operator.state_name(table): schema
            for operator in self.graph.operators
            for table, schema in operator.tables.items()
        }
