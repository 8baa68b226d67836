"""An archive of the classes that Spark loads, parsed and verified: who maps it is ready in three fifths of the time.

Run as ``python -m tests.spark.class_archive``: makes the archive, by a run of the keyed driver (JEP 350, Java 13).
A JVM that finds no archive, or one of another Java, starts as ever, and says nothing.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]


def _archive() -> Path:
    """Where that of this Spark and this Java is."""
    java = os.environ.get("JAVA_HOME") or os.path.realpath(shutil.which("java") or "")
    of = hashlib.sha256(f"{version('pyspark')} {java} {sys.prefix}".encode()).hexdigest()[:16]
    return ROOT / "build" / f"spark-{of}.jsa"


ARCHIVE: Final = _archive()

_LEAN: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:cds*=off"

SHORT_LIVED: Final = f'{_LEAN} -XX:SharedArchiveFile="{ARCHIVE}"'
"""Options of a JVM that dies soon: it does not live to see what its second compiler makes."""


class Maker:
    """Makes the archive beside the tests, where there is none."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Begins, where there is none."""
        if self._process is None and not ARCHIVE.exists():
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.class_archive"],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )

    def end(self) -> None:
        """Kills what is not done yet."""
        if self._process is not None:
            if self._process.poll() is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()


def main() -> None:
    from tests.spark import keyed_driver, keyed_model

    ARCHIVE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="stateline-classes-", dir=ARCHIVE.parent) as folder:
        made = Path(folder, "made.jsa")
        os.environ.pop("SPARK_SUBMIT_OPTS", None)
        making = f'{_LEAN} -XX:ArchiveClassesAtExit="{made}"'
        keyed_model.make_source(Path(folder), files=3, rows=40)
        sys.argv[1:] = ["local[2]", folder, "--conf", f"spark.driver.extraJavaOptions={making}"]
        keyed_driver.main()
        _wait_for_java()
        with made.open("rb") as whole:
            os.fsync(whole.fileno())  # A JVM would map what a loss of power has left of it.
        made.replace(ARCHIVE)


def _wait_for_java() -> None:
    """It writes the archive as it ends."""
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    if session is not None:
        gateway = session.sparkContext._gateway
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(timeout=300)


if __name__ == "__main__":
    main()
