"""``finish_files``: finishes by hand what streams and batch jobs left open."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from stateline.environment import system_environment
from stateline.errors import InvalidInputError, NotFoundError
from stateline.pipeline.end_of_stream import finish_root
from stateline.spark.sinks.files import finish_sink
from stateline.spark.sinks.files_job import FilesJob
from stateline.spark.sinks.files_options import FilesSinkOptions

__all__ = ["finish_files"]

_JOB: Final = re.compile("[0-9a-f]{32}")


def finish_files(path: str, *, job: str | None = None, outputs: Sequence[str] = (), **options: str) -> None:
    """Finishes the files that streams left open, in one more record. Idempotent.

    Call it when no query writes there: where one still runs, it or this call may be fenced (``FencedError``). When it
    returns, all rows are visible, also if somebody else was finishing the same files. What a keyed stream has not put
    out yet, such as a window that is open, is no matter of files: its next start goes on with it.

    Args:
        path: Root URL of the output, as given to ``start()``. Of a keyed stream: its ``checkpoint``, and all its
            outputs are finished.
        job: A batch job that was decided and then failed, or was killed, before all its files were visible: makes them
            so. The error of the job names it, and so does a folder in ``<path>/.stateline/jobs``.
        outputs: Of a keyed stream: places of its outputs that lie elsewhere than in the folder where its checkpoint
            lies. An output that is in neither is refused, so that a record cannot lead this call to any other place.
        options: The sink's other options that say where things are, such as ``checkpoint``, and ``compression``. Of a
            keyed stream: ``root.<option>`` for the store of its checkpoint, ``store.<option>`` for its outputs', and
            ``table.<option>`` for the tables that its rows go to: the options that ``write_table`` was given.

    Raises:
        FencedError: A query went on with the files meanwhile.
        NotFoundError: No stream has written anything there; or there is no such job: it was never decided, and nothing
            of it is visible, or an earlier call has finished it.
        InvalidInputError: An option that there is not, an output elsewhere, or a job that cannot be one; or rows of a
            keyed stream wait for their function.
    """
    parsed = FilesSinkOptions.from_spark({"path": path, **options})
    if job is not None:
        _finish_job(parsed, job)
        return
    # How many records are to stay, only the query knows: its next batch retires the others.
    if finish_sink(replace(parsed, retained_checkpoints=sys.maxsize)):
        return
    if parsed.checkpoint or not _finish_keyed(parsed, outputs):
        raise NotFoundError(
            "no stream has written anything there",
            operation="finish_files",
            subject=parsed.root_url,
            hint="Check the path, and give the option checkpoint if the stream had one. Of a keyed stream, give its "
            "checkpoint as the path",
        )


def _finish_keyed(options: FilesSinkOptions, outputs: Sequence[str]) -> bool:
    """Finishes the files of a keyed stream whose checkpoint the path is; whether it has any."""
    return finish_root(
        options.path,
        dict(options.root_options),
        options.output(),
        system_environment(),
        retained_checkpoints=sys.maxsize,
        elsewhere=True,
        table_options=options.reaching_table(),
        named=outputs,
    )


def _finish_job(options: FilesSinkOptions, job: str) -> None:
    if not isinstance(job, str) or not _JOB.fullmatch(job):
        raise InvalidInputError(
            f"must be the id of a batch job, got {job!r}",
            operation="finish_files",
            subject="job",
            hint="Give the 32 hexadecimal digits that the error of the job names",
        )
    if not FilesJob(options, job).finish():
        raise NotFoundError(
            "cannot find a decision of this job",
            operation="finish_files",
            subject=f"{options.records_url}/jobs/{job}",
            hint="If no earlier call has finished it, it was never decided: none of its files is visible, run it again",
        )
