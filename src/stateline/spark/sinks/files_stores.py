"""The stores of ``stateline_files``, opened in whatever process the sink is at the moment."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from stateline.blob import BlobStore, open_store
from stateline.changelog.host_cache import HostCache
from stateline.changelog.racing import raced
from stateline.checkpoint import CheckpointStore
from stateline.environment import system_environment
from stateline.file_columns import FileColumn
from stateline.files import EncodingAhead, FileOutput
from stateline.pipeline.files_decision import FilesDecision, files_plan
from stateline.pipeline.plan import PipelinePlan
from stateline.spark.job.local_copies import host_copies
from stateline.spark.sinks.files_options import FilesSinkOptions
from stateline.tables import TableTarget, open_table

__all__ = ["check_stores", "copies_of", "open_decision", "open_records"]


def open_decision(
    options: FilesSinkOptions,
    output: FileOutput,
    schema: pa.Schema,
    root: BlobStore,
    records: CheckpointStore | None = None,
    ahead: EncodingAhead | None = None,
) -> FilesDecision:
    """The sink over one root.

    Args:
        options: What the user said.
        output: The files.
        schema: Schema of the rows.
        root: Store of the records.
        records: The records, where a process goes on with them.
        ahead: Encodes open files until the next commit.
    """
    plan = _plan(options, root.url, output, schema, options.target())
    out = _opened(options, output.url, output.store_options)
    return FilesDecision(plan, root, out, schema, system_environment(), records, ahead, host_copies(plan, root))


def copies_of(options: FilesSinkOptions) -> HostCache | None:
    """The copies that this host has of a stream's rows; ``None`` for none."""
    root = open_records(options, options.root_url)
    try:
        return host_copies(_plan(options, root.url, options.output()), root)
    finally:
        root.close()


def open_records(options: FilesSinkOptions, url: str) -> BlobStore:
    """A store of records."""
    return _opened(options, url, options.options_of_records)


def check_stores(options: FilesSinkOptions, schema: pa.Schema) -> tuple[FileColumn, ...]:
    """Check the options of both stores and of the table. Only a table whose files carry ids is asked for them.

    Args:
        options: What the user said.
        schema: Columns of the rows.

    Returns:
        The columns of the table by the ids that files carry; empty where they carry none.

    Raises:
        InvalidInputError: An option is wrong, or the table cannot hold a column.
        NotInstalledError: The SDK of a cloud, or the library of the table, is missing.
        UnavailableError: The table cannot be reached.
    """
    table = options.target()
    file_columns: tuple[FileColumn, ...] = ()
    if table is not None:
        with open_table(table, schema=options.output().named(schema)) as opened:
            file_columns = opened.file_columns()
    for url, settings in ((options.path, options.store_options), (options.root_url, options.options_of_records)):
        open_store(url, settings, system_environment())
    return file_columns


def _plan(
    options: FilesSinkOptions,
    root_url: str,
    output: FileOutput,
    schema: pa.Schema | None = None,
    table: TableTarget | None = None,
) -> PipelinePlan:
    return files_plan(root_url, output, options, schema, options.options_of_records, table=table)


def _opened(options: FilesSinkOptions, url: str, store_options: Mapping[str, str]) -> BlobStore:
    environment = system_environment()
    return raced(open_store(url, store_options, environment), options.retry_policy, environment)
