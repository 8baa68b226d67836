"""Options of ``format("stateline_files")``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from stateline.blob.urls import absolute_url
from stateline.errors import InvalidInputError
from stateline.file_columns import FileColumn
from stateline.files import FileOutput, RollingPolicy
from stateline.files.formats import FORMATS
from stateline.options import normalise_settings, parse_bool, parse_choice, setting
from stateline.pipeline.plan import StorageSettings
from stateline.spark.columns.checks import check_hidden, check_shared
from stateline.spark.data_source_options import DataSourceOptions
from stateline.spark.data_source_options import parse_names as _names
from stateline.spark.data_source_options import parse_text as _text
from stateline.tables import FILE_TABLES, TableTarget

__all__ = ["FilesSinkOptions"]


def _finish(value: str, name: str) -> str:
    return parse_choice(value, ("available_now", "stop", "never"), name)


def _trigger(value: str, name: str) -> str:
    return parse_choice(value, ("auto", "ends", "endless"), name)


def _table(value: str, name: str) -> str:
    return parse_choice(value, FILE_TABLES, name) if value else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesSinkOptions(StorageSettings, DataSourceOptions):
    """What a user can say about the sink; ``docs/reference/output-files.md`` lists all options with what they mean.

    Attributes:
        roll_seconds: ``auto`` is five minutes, and no limit in a stream that ends by itself and in a batch, which
            finish their files at the end; ``never`` for no limit.
        finish: ``available_now`` (each micro-batch of a stream that ends by itself publishes its rows), ``stop`` (also,
            files are finished when an endless query is stopped) or ``never``.
        trigger: Whether the stream ends by itself (``ends``, as with ``availableNow`` and ``once``) or runs until it is
            stopped (``endless``). ``start()`` sets it in programs that called ``register()``. ``auto``: not known, so
            each micro-batch publishes its rows.
        checkpoint_location: Spark's ``checkpointLocation``, as Spark passes it on.
        query_name: Spark's ``queryName``, in the same way.
        root_options: Options of the records' store, given as ``root.<option>``; where the records lie below the output,
            those of the output's store hold, too.
        store_options: Options of the output's store, given as ``store.<option>``.
        table_options: Options of the table, given as ``table.<option>``: ``table.name`` of an Iceberg table, and
            ``table.catalog.<property>``; ``table.storage.<option>`` for Delta.
    """

    path: str = setting("", _text, help="root URL of the output; start(path) and save(path) say it")
    format: str = setting("parquet", _text, help=f"one of {', '.join(FORMATS)}")
    partition_by: tuple[str, ...] = setting("", _names, help="columns that become folders, separated by commas")
    partition_zone: str = setting("UTC", _text, help="time zone whose clock names the folders of timestamps")
    compression: str | None = setting(None, _text, help="a codec of the format")
    roll_bytes: str = setting("128MB", _text, help="size at which a file is finished")
    roll_seconds: str | None = setting(
        "auto",
        _text,
        help="age at which a file is finished; auto: 5 minutes where a stream does not end by itself",
    )
    idle_seconds: str | None = setting(None, _text, help="time without rows after which a file is finished")
    every_checkpoint: bool = setting(False, parse_bool, help="finish every file with its micro-batch")
    finish: Literal["available_now", "stop", "never"] = setting(
        "available_now", _finish, help="when open files are finished: available_now, stop or never"
    )
    checkpoint: str = setting("", _text, help="root URL of the sink's records; `.stateline` below the output if empty")
    table: str = setting("", _table, help=f"the files belong to a table: {' or '.join(FILE_TABLES)}")
    trigger: Literal["auto", "ends", "endless"] = setting(
        "auto", _trigger, help="whether the stream ends by itself: auto, ends or endless; start() sets it"
    )
    checkpoint_location: str = setting("", _text, help="Spark's checkpointLocation")
    query_name: str = setting("", _text, help="Spark's queryName")
    root_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    store_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    table_options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        normalise_settings(self)
        if not self.path:
            raise InvalidInputError(
                "must be given", operation="stateline_files", subject="path", hint='Call start("file:///folder")'
            )
        # Executors work in folders of their own, so a relative place must become one place for all.
        object.__setattr__(self, "path", absolute_url(self.path))
        if self.checkpoint:
            object.__setattr__(self, "checkpoint", absolute_url(self.checkpoint))
        check_shared(self.path, "path")
        check_shared(self.checkpoint, "checkpoint")
        check_hidden(self.checkpoint, self.path, "checkpoint")
        check_hidden(self.checkpoint_location, self.path, "checkpointLocation")

    @property
    def records_url(self) -> str:
        """Where the roots of all records of this output are."""
        return self.checkpoint or f"{self.path.rstrip('/')}/.stateline"

    @property
    def root_url(self) -> str:
        """Root of the records of streams into this output."""
        return f"{self.records_url}/stream"

    @property
    def options_of_records(self) -> dict[str, str]:
        """Options of the store of the records."""
        return {**({} if self.checkpoint else self.store_options), **self.root_options}

    def target(self) -> TableTarget | None:
        """The table that the files belong to; ``None`` for plain files.

        Raises:
            InvalidInputError: Its options contradict each other.
        """
        if not self.table:
            if self.table_options:
                raise _refused("must come with the option table", f"table.{min(self.table_options)}")
            return None
        if self.format != "parquet" or self.partition_zone != "UTC":
            raise _refused("must be left out: tables have Parquet files, and times in UTC", "format or partition_zone")
        return TableTarget(
            format=self.table,
            target=self.table_options.get("name", "") if self.table == "iceberg" else self.path,
            partition_by=self.partition_by,
            options=self.reaching_table(),
        )

    def reaching_table(self) -> dict[str, str]:
        """The options by which the table is reached."""
        named = {key: text for key, text in self.table_options.items() if key != "name" or self.table != "iceberg"}
        return {**self.store_options, **named}

    def output(self, file_columns: tuple[FileColumn, ...] = ()) -> FileOutput:
        """The output that these options describe.

        Args:
            file_columns: Columns of the table by the ids that files carry, where it has ids.

        Raises:
            InvalidInputError: An unknown format or codec, or a bad limit.
        """
        return FileOutput(
            url=self.path,
            format=self.format,
            partition_by=self.partition_by,
            partition_zone=self.partition_zone,
            columns_in_files=self.table == "iceberg",
            file_columns=file_columns,
            compression=self.compression,
            rolling=RollingPolicy(
                roll_bytes=self.roll_bytes,  # type: ignore[arg-type]
                roll_seconds=self.roll_seconds,  # type: ignore[arg-type]
                idle_seconds=self.idle_seconds,  # type: ignore[arg-type]
                every_checkpoint=self.every_checkpoint,
            ),
            store_options=dict(self.store_options),
        )


def _refused(reason: str, subject: str) -> InvalidInputError:
    return InvalidInputError(
        reason, operation="stateline_files", subject=subject, hint="See docs/guides/tables.md for the options of tables"
    )
