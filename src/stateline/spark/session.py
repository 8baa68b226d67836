"""A Spark session that works as it comes, on a laptop and on a cluster.

What the user, the command line or ``spark-defaults.conf`` has set always wins.

What is set, and only where nobody else has set it:

- everywhere: Arrow for the exchange of rows with Python, in batches that Spark fills without asking for their size at
  each row (``arrow_batches``); where a JVM is started, no checks by Arrow of each single value that the JVM reads
  (decision 0021), and, on a system with glibc, memory for Arrow from where numpy has its own (decision 0020);
- for masters on this machine (``local...``, or ``spark://`` on a loopback address): all sockets on the loopback
  address, and this very Python for the workers;
- for ``local`` masters also: no web interface, a quarter of the memory (1 to 4 GiB) for the JVM, one shuffle
  partition for each core, Unix domain sockets between the JVM and its Python workers, and logs of streams that are
  written without starting a process for each look at a file (decision 0014).

The time zone of the session is never touched.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import logging
import os
import re
import shlex
import socket
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from pyspark.errors import AnalysisException, PySparkRuntimeError
from pyspark.sql import SparkSession

from stateline.errors import ErrorKind, InvalidInputError, UnavailableError
from stateline.options import check_kind
from stateline.spark.api_mode import is_connect
from stateline.spark.files_start import wrap_starts
from stateline.spark.java import JavaRuntime, find_java
from stateline.spark.job.arrow_batches import ARROW_BATCH_SETTINGS
from stateline.spark.places import watch_places
from stateline.spark.query.end_listener import listener_of
from stateline.spark.sinks.files import FilesSink
from stateline.spark.sources.state import StateSource

__all__ = ["get_or_create_session", "register"]

_LOGGER: Final = logging.getLogger(__name__)
_LOOPBACK: Final = "127.0.0.1"
_LOCAL_MASTER: Final = re.compile(r"local(\[.*\]|-cluster\[.*\])?")
_LOOPBACK_MASTER: Final = re.compile(r"spark://(127\.[0-9.]+|localhost|\[::1\])(:[0-9]+)?(,.*)?")
_MEBIBYTE: Final = 1024 * 1024
_CGROUP_MEMORY_LIMIT: Final = "/sys/fs/cgroup/memory.max"
_QUIET_LOGGING: Final = "quiet_log4j2.properties"
_MEMORY_POOL: Final = "ARROW_DEFAULT_MEMORY_POOL"
_UNCHECKED_READS: Final[Mapping[str, str]] = {
    "ARROW_ENABLE_UNSAFE_MEMORY_ACCESS": "true",
    "ARROW_ENABLE_NULL_CHECK_FOR_GET": "false",
}
"""Variables of Arrow's Java library; its system properties of like names win over them."""
_FOUND_BY_ITSELF: Final = "DATA_SOURCE_ALREADY_EXISTS"
_PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
_EXECUTOR_VARIABLE: Final = "spark.executorEnv."
_STREAM_LOGS: Final = "spark.sql.streaming.checkpointFileManagerClass"
_BY_FILE_SYSTEM: Final = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


def get_or_create_session(
    app_name: str = "stateline", master: str | None = None, *, quiet: bool = False, **conf: object
) -> SparkSession:
    """The running Spark session, or a new one with a Java and a Python that work.

    Args:
        app_name: Name of the application.
        master: Such as ``"local[2]"`` or ``"spark://host:7077"``; by default what Spark is configured with, else
            ``"local[*]"``.
        quiet: No progress bars, and logs of the JVM only from level ERROR up. Takes effect when a JVM is started.
        conf: Spark settings, such as ``**{"spark.driver.memory": "2g"}``. They win over everything else. A running
            session takes those that may change while it runs.

    Returns:
        The session. Where one is running already, it is that one: its Java and its static settings stay.

    Raises:
        InvalidInputError: A setting whose name does not start with ``spark.``.
        NotInstalledError: There is no Java; the hint names the ``pip install`` that brings one.
        UnavailableError: The JVM ended before it answered.
    """
    given = {name: _text(value) for name, value in conf.items()}
    _check_names(given)
    if master is not None:
        given["spark.master"] = master
    builder = SparkSession.builder.appName(app_name)
    if _is_running():
        return _registered(builder.config(map=given).getOrCreate())
    configured = {**_outside_settings(os.environ), **given}
    starts_jvm = _starts_jvm(configured, os.environ)
    settings = {**_default_settings(configured, starts_jvm=starts_jvm, quiet=quiet), **given}
    java = find_java() if starts_jvm or _starts_server(configured, os.environ) else None
    if java is not None:
        _LOGGER.info("Spark runs on %s", java)
    with _environment(_launch_environment(configured, java, os.environ)):
        try:
            session = _registered(builder.config(map=settings).getOrCreate())
        except PySparkRuntimeError as error:
            if error.getCondition() != "JAVA_GATEWAY_EXITED":
                raise
            raise UnavailableError(
                "the JVM ended before it answered",
                operation="start Spark",
                subject=str(java),
                hint="Its own message stands above; check JAVA_HOME, the memory settings and PYSPARK_SUBMIT_ARGS",
            ) from error
    if starts_jvm and _LOCAL_MASTER.fullmatch(_master(configured)):
        _write_stream_logs_by_file_system(session)
    return session


def register(spark: SparkSession) -> None:
    """Registers ``stateline_files`` and ``stateline`` with a session, and wraps the start of its streams. Idempotent.

    :func:`get_or_create_session` calls it. A session whose Python finds the module ``pyspark_stateline`` knows both
    sources without it. Then each micro-batch of ``stateline_files`` publishes its rows, whatever the trigger, and
    ``start()`` does not publish files that an earlier run left open. Filters reach Python data sources only if a
    setting of the session allows it; unless the user has set it, it is switched on.

    Nothing else is set. In a session that it did not make, ``stateline_files`` is faster by a quarter with the settings
    of :mod:`stateline.spark.job.arrow_batches`. On Spark Connect no files are finished while no rows come:
    ``docs/guides/connect.md``.

    Raises:
        InvalidInputError: It is no session.
    """
    if is_connect(spark):
        _register_on_connect(spark)
        wrap_starts(spark)
    else:
        check_kind(spark, SparkSession, "spark")
        known = spark._jsparkSession.sessionState().dataSourceManager()  # noqa: SLF001 - PySpark has no question for it
        for source in (FilesSink, StateSource):
            if not known.dataSourceExists(source.name()):
                spark.dataSource.register(source)
        listener_of(spark)
        wrap_starts(spark)  # Within the next one, which resolves places first.
        watch_places()
    if spark.conf.get(_PUSHDOWN, None) is None:
        spark.conf.set(_PUSHDOWN, "true")


def _register_on_connect(spark: SparkSession) -> None:
    """The server has the class by its name, so its Python needs Stateline, too, as for the tasks."""
    for source in (FilesSink, StateSource):
        try:
            spark.dataSource.register(source)
        except AnalysisException as error:
            if error.getCondition() != _FOUND_BY_ITSELF:
                raise


def _registered(session: SparkSession) -> SparkSession:
    register(session)
    return session


def _write_stream_logs_by_file_system(session: SparkSession) -> None:
    """Lets streams write their logs through Hadoop's ``FileSystem``, unless somebody has chosen a way.

    By default it is ``FileContext``, which starts the program ``readlink`` for each look at a file of the local disk:
    thirty processes in a micro-batch, 0.1 s of it.
    """
    jvm = session.sparkContext._jvm  # noqa: SLF001 - PySpark has no public door to the classes of the JVM
    if jvm is None or session.conf.get(_STREAM_LOGS, None) is not None:
        return
    if jvm.org.apache.spark.util.Utils.classIsLoadable(_BY_FILE_SYSTEM):
        session.conf.set(_STREAM_LOGS, _BY_FILE_SYSTEM)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_names(settings: Mapping[str, str]) -> None:
    for name in settings:
        if not name.startswith("spark."):
            raise InvalidInputError(
                "is not a Spark setting",
                operation="get_or_create_session",
                subject=repr(name),
                hint='Names start with "spark."; pass them as **{"spark.driver.memory": "2g"}',
                kind=ErrorKind.UNKNOWN_OPTION,
            )


def _is_running() -> bool:
    try:
        SparkSession.active()
    except PySparkRuntimeError:
        return False
    return True


def _outside_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """What files, arguments and variables of the environment set, so that no default of ours hides it."""
    variables = {"MASTER": "spark.master"}
    variables |= {name: _EXECUTOR_VARIABLE + name for name in (_MEMORY_POOL, *_UNCHECKED_READS)}
    settings = {setting: environ[name] for name, setting in variables.items() if environ.get(name)}
    settings |= _defaults_file(environ)
    arguments = shlex.split(environ.get("PYSPARK_SUBMIT_ARGS", ""))
    for argument, value in itertools.pairwise([*arguments, ""]):
        if argument == "--master":
            settings["spark.master"] = value
        elif argument == "--driver-memory":
            settings["spark.driver.memory"] = value
        elif argument in ("--conf", "-c"):
            name, _, setting = value.partition("=")
            settings[name] = setting
    return settings


def _defaults_file(environ: Mapping[str, str]) -> dict[str, str]:
    """The settings of ``spark-defaults.conf``: a name and a value on each line, ``#`` starts a comment."""
    folder = environ.get("SPARK_CONF_DIR") or os.path.join(environ.get("SPARK_HOME") or _pyspark_home(), "conf")
    try:
        with open(os.path.join(folder, "spark-defaults.conf"), encoding="utf-8") as file:
            lines = [line.strip() for line in file]
    except FileNotFoundError:
        return {}
    pairs = (re.split(r"\s*[=:\s]\s*", line, maxsplit=1) for line in lines if line and not line.startswith("#"))
    return {name: rest[0] if rest else "" for name, *rest in pairs}


def _pyspark_home() -> str:
    spec = importlib.util.find_spec("pyspark")
    return os.path.dirname(spec.origin) if spec is not None and spec.origin is not None else ""


def _starts_jvm(configured: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """Whether the session starts a JVM: not under ``spark-submit``, which has one, and not for Spark Connect."""
    return not ("PYSPARK_GATEWAY_PORT" in environ or "SPARK_REMOTE" in environ or "spark.remote" in configured)


def _starts_server(configured: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """Whether PySpark starts a server of Spark Connect for the session, in a JVM beside this program."""
    return configured.get("spark.remote", environ.get("SPARK_REMOTE", "")).startswith("local")


def _default_settings(configured: Mapping[str, str], *, starts_jvm: bool, quiet: bool) -> dict[str, str]:
    """Our settings, without those that are configured already."""
    settings = {"spark.sql.execution.arrow.pyspark.enabled": "true"}
    if not configured.keys() & ARROW_BATCH_SETTINGS.keys():
        settings |= ARROW_BATCH_SETTINGS
    if starts_jvm:
        settings |= {_EXECUTOR_VARIABLE + name: value for name, value in _UNCHECKED_READS.items()}
    if starts_jvm and _has_glibc():
        settings[_EXECUTOR_VARIABLE + _MEMORY_POOL] = "system"
    master = _master(configured)
    if starts_jvm and _is_on_this_machine(master):
        settings |= {"spark.driver.host": _LOOPBACK, "spark.driver.bindAddress": _LOOPBACK}
    if starts_jvm and _LOCAL_MASTER.fullmatch(master):
        settings |= {
            "spark.master": master,
            "spark.ui.enabled": "false",
            "spark.driver.memory": f"{_driver_memory_mebibytes()}m",
            "spark.sql.shuffle.partitions": str(_local_cores(master)),
            # A tenth faster than TCP between the JVM and its workers. Spark before 4.1 does not know the setting.
            "spark.python.unix.domain.socket.enabled": str(hasattr(socket, "AF_UNIX")).lower(),
        }
    if starts_jvm and quiet:
        url = Path(__file__).with_name(_QUIET_LOGGING).as_uri()
        settings |= {
            "spark.log.level": "ERROR",
            "spark.ui.showConsoleProgress": "false",
            "spark.driver.defaultJavaOptions": f"-Dlog4j2.configurationFile={url}",
        }
    return {name: value for name, value in settings.items() if name not in configured}


def _has_glibc() -> bool:
    """Whether memory comes from glibc, which learns how much to keep; other allocators of systems may be slow."""
    try:
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (AttributeError, ValueError):  # No such function, or no such name.
        return False


def _master(configured: Mapping[str, str]) -> str:
    return configured.get("spark.master", "local[*]")


def _is_on_this_machine(master: str) -> bool:
    return bool(_LOCAL_MASTER.fullmatch(master) or _LOOPBACK_MASTER.fullmatch(master))


def _local_cores(master: str) -> int:
    """Cores of a ``local`` master: 1, ``n`` of ``local[n]``, workers times cores of ``local-cluster[w,c,m]``."""
    numbers = [int(number) for number in re.findall(r"[0-9]+", master)]
    if master.startswith("local-cluster"):
        return numbers[0] * numbers[1]
    if "*" in master:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return numbers[0] if numbers else 1


def _driver_memory_mebibytes() -> int:
    """A quarter of the memory that this process may use, 1 to 4 GiB: the Python workers need the rest."""
    available = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with contextlib.suppress(OSError, ValueError), open(_CGROUP_MEMORY_LIMIT, encoding="ascii") as file:
        available = min(available, int(file.read()))
    return min(max(available // 4 // _MEBIBYTE, 1024), 4096)


def _launch_environment(
    configured: Mapping[str, str], java: JavaRuntime | None, environ: Mapping[str, str]
) -> dict[str, str]:
    """What must be in the environment while the JVM and the context start."""
    reads = {name: configured.get(_EXECUTOR_VARIABLE + name, value) for name, value in _UNCHECKED_READS.items()}
    launch = {"PYSPARK_DRIVER_PYTHON": sys.executable, **reads}
    if _is_on_this_machine(_master(configured)):
        launch |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": _LOOPBACK}
    if "spark.pyspark.python" in configured:
        launch["PYSPARK_PYTHON"] = configured["spark.pyspark.python"]
    launch = {name: value for name, value in launch.items() if name not in environ}
    return launch if java is None else {**launch, "JAVA_HOME": java.home}


@contextlib.contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables of this process for the duration of the block."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
