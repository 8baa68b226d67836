"""One batch job of ``stateline_files``: one record, in a root of its own, decides all its files."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from stateline.environment import system_environment
from stateline.errors import FencedError, OutcomeUnknownError, StatelineError, UnavailableError
from stateline.file_columns import FileColumn
from stateline.files import FilesResult, RollingPolicy
from stateline.pipeline.files_decision import FilesDecision
from stateline.spark.sinks.files_options import FilesSinkOptions
from stateline.spark.sinks.files_stores import open_decision, open_records

__all__ = ["FilesJob"]

_LOGGER: Final = logging.getLogger(__name__)

_PAUSES_SECONDS: Final = (1.0, 4.0, 15.0)
_MAY_PASS: Final = (UnavailableError, OutcomeUnknownError, FencedError)
"""What another try may mend. Only a record of our own, of which no answer came, can fence a job: its root is new."""


@dataclass(frozen=True)
class FilesJob:
    """One batch job, in whatever process it is at the moment.

    No restart goes on from the record of a job: whoever sees it fail runs it again, and then rows that are visible come
    twice. So what is decided is tried again before it fails.

    Attributes:
        options: What the user said.
        job_id: Its name.
        schema: Schema of the rows; empty where nothing but the end is left to do.
        file_columns: Columns of the table by the ids that files carry, where it has ids.
    """

    options: FilesSinkOptions
    job_id: str
    schema: pa.Schema = pa.schema([])  # noqa: RUF009 - schemas are immutable
    file_columns: tuple[FileColumn, ...] = ()

    def decision(self) -> FilesDecision:
        """The sink of the job, whose files end with it."""
        output = replace(self.options.output(self.file_columns), rolling=RollingPolicy(every_checkpoint=True))
        return open_decision(
            self.options, output, self.schema, open_records(self.options, f"{self.options.records_url}/{self._folder}")
        )

    def commit(self, made: Sequence[FilesResult]) -> None:
        """The driver's work.

        Raises:
            StatelineError: Nothing is visible, and the job may run again; or the error says what is to be done first.
        """
        for pause in (*_PAUSES_SECONDS, None):
            try:
                self.decision().commit(made, batch_id=0, offsets_digest="")
                break
            except StatelineError as error:
                decided = self._is_decided(error)
                if decided is False:
                    raise
                if pause is None or not isinstance(error, _MAY_PASS):
                    raise self._unfinished(error, decided=bool(decided)) from error
                system_environment().clock.sleep(pause)
        self._remove_record()

    def finish(self) -> bool:
        """Publishes what the job has decided; whether there is its record."""
        if self.decision().coordinator().start() is None:
            return False
        self._remove_record()
        return True

    @property
    def _folder(self) -> str:
        """Where its record is, below the records of the output."""
        return f"jobs/{self.job_id}"

    def _remove_record(self) -> None:
        """Removes what only the decision needed, after all files are visible.

        A failure is no failure of the job: whoever runs it again has all of its rows twice.
        """
        try:
            # From above, so that on a local disk the folder of the job goes, too.
            records = open_records(self.options, self.options.records_url)
            records.delete([info.name for info in records.list(f"{self._folder}/")])
        except StatelineError:
            _LOGGER.warning("all files of a job are visible, but its record could not be removed", exc_info=True)

    def _is_decided(self, error: StatelineError) -> bool | None:
        """Whether a job that failed was decided before; ``None`` if nobody knows."""
        try:
            return self.decision().is_decided() or (None if isinstance(error, OutcomeUnknownError) else False)
        except StatelineError:
            return None

    def _unfinished(self, error: StatelineError, *, decided: bool) -> StatelineError:
        call = f"stateline.spark.finish_files({self.options.path!r}, job={self.job_id!r})"
        if decided:
            hint = (
                "The job is decided, and some of its files may be visible: do not run it again, its rows would come "
                f"twice. Call {call}, with its other options for places, until it returns"
            )
        else:
            hint = (
                f"Whether the job is decided is not known. Call {call}, with its other options for places: it makes "
                "all files visible, or raises NotFoundError if none ever will be: then run it again"
            )
        # To be unavailable would mean that nothing has happened.
        kind = OutcomeUnknownError if isinstance(error, _MAY_PASS) else type(error)
        return kind(error.message, operation=error.operation, subject=error.subject, hint=hint)
