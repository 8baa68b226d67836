"""The other Spark, as tests talk to it: one process for many cases."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Self

from tests.readers.spark_environment import SparkEnvironment, spark_environment

SERVER: Final = Path(__file__).with_name("spark_server.py")
SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "1",
    "spark.default.parallelism": "1",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "1",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "1000",
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension,"
    "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss8m"


class SparkRefusedError(Exception):
    """What Spark said of a request."""


class SparkReader:
    """A process of the other Spark. A context manager."""

    def __init__(self, environment: SparkEnvironment | None = None) -> None:
        environment = environment or spark_environment()
        self._folder = TemporaryDirectory(prefix="stateline-readers-")
        settings = {
            **SETTINGS,
            "spark.jars": ",".join(map(str, environment.jars)),
            "spark.sql.warehouse.dir": f"{self._folder.name}/warehouse",
            "spark.driver.extraJavaOptions": f"{JAVA_OPTIONS} -Dderby.system.home={self._folder.name}",
        }
        self._log = Path(self._folder.name, "log").open("w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [str(environment.python), str(SERVER), json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=self._folder.name,
            env=environment.variables(),
        )
        self.version = self._answer()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the process. Idempotent."""
        if self._log.closed:
            return
        self._process.communicate()  # Its input ends, and so does it.
        self._log.close()
        self._folder.cleanup()

    def session(self, **settings: str) -> None:
        """Begin a session with its own views and catalogs."""
        self._ask("session", settings=settings)

    def sql(self, *statements: str) -> list[list[str]]:
        """Run statements. Return the rows of the last one.

        Raises:
            SparkRefusedError: Spark refuses one.
        """
        return self._ask("sql", statements=statements)

    def view(self, name: str, form: str, path: str) -> str:
        """Give files the name of a view."""
        self._ask("view", name=name, format=form, path=path)
        return name

    def find(self, table: str, filters: Sequence[str]) -> list[list[int]]:
        """Return the ``rid`` of the rows that each filter finds."""
        return self._ask("find", table=table, filters=list(filters)) if filters else []

    def rows(self, table: str) -> Mapping[str, Any]:
        """Return the ``columns`` and ``rows`` of a table, as texts."""
        return self._ask("rows", table=table)

    def _ask(self, do: str, **more: Any) -> Any:
        self._process.stdin.write(json.dumps({"do": do, **more}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        for line in self._process.stdout:
            if line.startswith("{"):
                found = json.loads(line)
                if "error" in found:
                    raise SparkRefusedError(found["error"])
                return found["found"]
        self._log.seek(0)
        raise RuntimeError(f"the other Spark has ended:\n{self._log.read()[-3000:]}")
