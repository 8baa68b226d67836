"""The harness that users get, as our own tests of the pipeline call it: reports, and no section inline by default."""

from __future__ import annotations

from stateline.environment import system_environment
from stateline.pipeline.plan import PipelineSettings
from stateline.testing import OperatorHarness

MAX_PARALLELISM = 8


class Engine(OperatorHarness):
    """One driver of one pipeline; ``run`` gives the record of a batch, ``output`` has the rows by checkpoint."""

    def __init__(
        self,
        program,
        schema,
        *,
        retained=3,
        inline_bytes=0,
        record_bytes=0,
        environment=None,
        cache=None,
        files=None,
        **more,
    ):
        settings = PipelineSettings(retained_checkpoints=retained, inline_bytes=inline_bytes, record_bytes=record_bytes)
        super().__init__(
            program,
            schema,
            max_parallelism=MAX_PARALLELISM,
            settings=settings,
            environment=environment or system_environment(),
            copies=cache,
            output=files,
            **more,
        )
        self.out = self.files

    @property
    def output(self):
        return self.outputs

    def run(self, rows, batch_id=None):
        return self.report_batch(rows, batch_id=batch_id).checkpoint

    def settle(self):
        self.finish()
        return self.coordinator.newest
