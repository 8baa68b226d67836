"""Batch jobs of ``stateline_files`` whose store fails around their decision."""

from __future__ import annotations

import os
import re

import pyarrow as pa
import pyarrow.dataset as ds
import pytest
from click.testing import CliRunner
from pyspark.sql.types import LongType, StructField, StructType

from stateline.blob import open_store
from stateline.blob.instrumented import StoreDecorator
from stateline.cli.commands import stateline
from stateline.errors import (
    AccessDeniedError,
    InvalidInputError,
    NotFoundError,
    OutcomeUnknownError,
    UnavailableError,
)
from stateline.files import FilesContext
from stateline.spark import finish_files
from stateline.spark.sinks import files_job, files_stores
from stateline.spark.sinks.files import FilesSink

ROWS = StructType([StructField("id", LongType())])


class FailingStore(StoreDecorator):
    """Fails at one call, after its effect or before it."""

    def __init__(self, inner, faults):
        super().__init__(inner)

        def failing(operation):
            def call(*arguments):
                fault = faults.due(operation, str(arguments[0]))
                if fault is None:
                    return getattr(inner, operation)(*arguments)
                if fault.after:
                    getattr(inner, operation)(*arguments)
                raise fault.error

            return call

        for operation in ("put_if_absent", "get", "publish", "discard", "delete"):
            setattr(self, operation, failing(operation))


class Fault:
    def __init__(self, operation, part, error, *, skip=0, times=1, after=False):
        self.operation, self.part, self.error, self.after = operation, part, error, after
        self.skip, self.times = skip, times


class Faults:
    def __init__(self, *planned):
        self.planned = list(planned)

    def due(self, operation, subject):
        for fault in self.planned:
            if fault.operation == operation and fault.part in subject and fault.times:
                if fault.skip:
                    fault.skip -= 1
                    continue
                fault.times -= 1
                return fault
        return None


class Job:
    """A job of three tasks with ten rows each, and what its store does to it."""

    def __init__(self, place, monkeypatch):
        self.out = place / "out"
        self.faults = Faults()
        monkeypatch.setattr(files_job, "_PAUSES_SECONDS", (0.0, 0.0, 0.0))
        monkeypatch.setattr(files_stores, "open_store", lambda *given: FailingStore(open_store(*given), self.faults))

    def run(self, *planned):
        self.faults.planned = list(planned)
        writer = FilesSink({"path": str(self.out)}).writer(ROWS, overwrite=False)
        tasks = [pa.record_batch({"id": range(task * 10, task * 10 + 10)}) for task in range(3)]
        messages = [writer.write(iter([rows])) for rows in tasks]
        try:
            writer.commit(messages)
        finally:
            self.faults.planned = []

    @property
    def ids(self):
        rows = ds.dataset(self.out, format="parquet").to_table()
        return sorted(rows["id"].to_pylist()) if rows.num_rows else []

    @property
    def files(self):
        return [path for path in self.out.rglob("*") if path.is_file()]

    @property
    def records(self):
        return [path for path in (self.out / ".stateline").rglob("*") if path.is_file()]


@pytest.fixture
def job(tmp_path, monkeypatch):
    return Job(tmp_path, monkeypatch)


UNAVAILABLE = UnavailableError("slow down")
UNKNOWN = OutcomeUnknownError("no answer came")


@pytest.mark.parametrize(
    "fault",
    [
        Fault("put_if_absent", "_metadata", UNKNOWN),
        Fault("put_if_absent", "_metadata", UNKNOWN, after=True),
        Fault("publish", "", UNAVAILABLE, skip=1, times=3),
        Fault("publish", "", UNKNOWN, skip=1, after=True),
        Fault("discard", "", UNKNOWN, skip=2),
        Fault("put_if_absent", "_published", UNAVAILABLE),
        Fault("delete", "", UNAVAILABLE),
    ],
    ids=lambda fault: f"{fault.operation}-{fault.part}-{type(fault.error).__name__}-{fault.after}",
)
def test_what_passes_is_no_failure_of_a_job(job, fault):
    job.run(fault)
    assert job.ids == list(range(30))


def test_the_folder_of_a_job_stays_only_where_something_is_left_to_do(job):
    jobs = job.out / ".stateline" / "jobs"
    job.run()
    assert not jobs.exists()
    with pytest.raises(OutcomeUnknownError):
        job.run(Fault("publish", "", UNAVAILABLE, times=99))
    job.run()
    (left,) = jobs.iterdir()
    finish_files(str(job.out), job=left.name)
    assert not jobs.exists()
    assert job.ids == sorted([*range(30)] * 3)


def test_a_record_whose_creation_was_answered_too_late_is_found(job):
    job.run(
        Fault("put_if_absent", "_metadata", UNKNOWN, after=True),
        Fault("get", "_metadata", UNAVAILABLE, skip=1, times=2),
    )
    assert job.ids == list(range(30))


def test_a_job_that_fails_before_its_decision_may_run_again(job):
    with pytest.raises(UnavailableError) as raised:
        job.run(Fault("put_if_absent", "_metadata", UNAVAILABLE, times=9))
    assert "finish_files" not in str(raised.value)
    assert job.ids == []
    job.run()
    assert job.ids == list(range(30))


@pytest.mark.parametrize(
    ("error", "told"),
    [(UNAVAILABLE, OutcomeUnknownError), (AccessDeniedError("no"), AccessDeniedError)],
    ids=["unavailable", "denied"],
)
def test_a_decided_job_that_fails_says_how_all_of_it_becomes_visible(job, error, told):
    with pytest.raises(told, match="do not run it again") as raised:
        job.run(Fault("publish", "", error, skip=1, times=99))
    assert len(job.ids) == 10
    name = re.search(r"job='(\w+)'", str(raised.value))[1]
    finish_files(str(job.out), job=name)
    assert job.ids == list(range(30))
    assert job.records == []
    with pytest.raises(NotFoundError, match="decision of this job"):
        finish_files(str(job.out), job=name)


@pytest.mark.parametrize("happened", [True, False])
def test_of_a_job_that_may_be_decided_finishing_tells(job, happened):
    with pytest.raises(OutcomeUnknownError, match="is not known") as raised:
        job.run(
            Fault("put_if_absent", "_metadata", UNKNOWN, times=99 if not happened else 1, after=happened),
            Fault("get", "_metadata", UNAVAILABLE, skip=1, times=99),
        )
    assert job.ids == []
    name = re.search(r"job='(\w+)'", str(raised.value))[1]
    if happened:
        finish_files(str(job.out), job=name)
        assert job.ids == list(range(30))
    else:
        with pytest.raises(NotFoundError, match="run it again"):
            finish_files(str(job.out), job=name)


@pytest.mark.parametrize("name", ["", "../stream", "A" * 32, 5])
def test_what_is_no_job_is_refused(job, name):
    with pytest.raises(InvalidInputError, match="32 hexadecimal digits"):
        finish_files(str(job.out), job=name)


def sweep(job, *more, place=None):
    """``stateline sweep`` of everything that the jobs of an output have, 30 days later."""
    for path in job.out.rglob("*"):
        if path.is_file():
            os.utime(path, (path.stat().st_mtime - 30 * 86_400,) * 2)
    root = place or job.out / ".stateline" / "stream"
    return CliRunner().invoke(stateline, ["sweep", f"file://{root}", "--delete", *more])


@pytest.mark.parametrize("stays", [False, True], ids=["job-dead", "job-dead-beside-a-decided-one"])
def test_a_sweep_finds_what_a_job_left_that_was_killed_before_its_decision(job, monkeypatch, stays):
    monkeypatch.setitem(FilesContext.__init__.__kwdefaults__, "buffer_bytes", 1)
    with pytest.raises(UnavailableError):
        job.run(Fault("put_if_absent", "_metadata", UNAVAILABLE, times=9))
    assert any(path.suffix == ".segment" for path in job.records)
    assert list((job.out / ".inprogress").iterdir())
    if stays:
        with pytest.raises(OutcomeUnknownError):
            job.run(Fault("publish", "", UNAVAILABLE, skip=1, times=99))
    answer = sweep(job, "--also", str(job.out))
    assert answer.exit_code == 0, answer.output
    if not stays:
        assert job.files == []
        return
    (left,) = (job.out / ".stateline" / "jobs").iterdir()
    assert job.ids == list(range(10)), "the decided job is not finished yet, and nothing of it is gone"
    finish_files(str(job.out), job=left.name)
    assert job.ids == list(range(30))
    assert sweep(job, "--also", str(job.out)).exit_code == 0
    assert [path.suffix for path in job.files] == [".parquet"] * 3


def test_a_sweep_leaves_a_job_alone_that_may_be_at_work(job):
    with pytest.raises(UnavailableError):
        job.run(Fault("put_if_absent", "_metadata", UNAVAILABLE, times=9))
    pieces = list((job.out / ".inprogress").iterdir())
    answer = sweep(job, "--also", str(job.out), "--min-age", "60d")
    assert answer.exit_code == 0, answer.output
    assert list((job.out / ".inprogress").iterdir()) == pieces


def test_a_sweep_looks_for_jobs_only_where_a_sink_keeps_them(tmp_path):
    """Folders of somebody else's may be called ``stream`` and ``jobs``, too."""
    names = ["notes.txt", "2024/shared/rows", f"{'a' * 32}/report.csv", f"{'a' * 32}/chk-x/_metadata"]
    store = open_store(f"file://{tmp_path}/jobs")
    for name in names:
        store.put(name, b"mine")
        os.utime(tmp_path / "jobs" / name, (0, 0))
    answer = CliRunner().invoke(stateline, ["sweep", f"file://{tmp_path}/stream", "--delete", "--min-age", "0s"])
    assert answer.exit_code == 1
    assert "no checkpoint" in answer.output
    assert sorted(info.name for info in store.list("")) == sorted(names)
