"""What the session sets, and that it never overrides what somebody else has set."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

from stateline.errors import InvalidInputError, UnavailableError
from stateline.spark import KeyedStream, count, get_or_create_session, session
from stateline.spark.java import JavaRuntime
from stateline.spark.job.arrow_batches import ARROW_BATCH_SETTINGS, set_arrow_batches
from stateline.spark.query import run as pipeline_run

POOL = "spark.executorEnv.ARROW_DEFAULT_MEMORY_POOL"
UNCHECKED = {"ARROW_ENABLE_UNSAFE_MEMORY_ACCESS": "true", "ARROW_ENABLE_NULL_CHECK_FOR_GET": "false"}
UNCHECKED_SETTINGS = {f"spark.executorEnv.{name}": value for name, value in UNCHECKED.items()}
EVERYWHERE = {"spark.sql.execution.arrow.pyspark.enabled": "true", **ARROW_BATCH_SETTINGS}


@pytest.fixture(autouse=True)
def with_glibc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_has_glibc", lambda: True)


def defaults(configured: dict[str, str], **arguments: bool) -> dict[str, str]:
    return session._default_settings(configured, **{"starts_jvm": True, "quiet": False, **arguments})


def test_a_local_master_stays_on_the_loopback_address_and_opens_no_web_interface() -> None:
    settings = defaults({})
    assert settings["spark.master"] == "local[*]"
    assert settings["spark.driver.host"] == settings["spark.driver.bindAddress"] == "127.0.0.1"
    assert settings["spark.ui.enabled"] == "false"
    assert 1024 <= int(settings["spark.driver.memory"].removesuffix("m")) <= 4096
    assert "spark.sql.session.timeZone" not in settings


@pytest.mark.parametrize(
    ("master", "partitions"),
    [("local", "1"), ("local[3]", "3"), ("local[5,2]", "5"), ("local-cluster[2,3,1024]", "6")],
)
def test_a_local_master_shuffles_into_one_partition_for_each_core(master: str, partitions: str) -> None:
    assert defaults({"spark.master": master})["spark.sql.shuffle.partitions"] == partitions


def test_a_standalone_master_on_this_machine_uses_the_loopback_address_and_this_python() -> None:
    configured = {"spark.master": "spark://127.0.0.1:7077"}
    assert "spark.driver.memory" not in defaults(configured)
    assert defaults(configured)["spark.driver.host"] == "127.0.0.1"
    assert session._launch_environment(configured, None, {})["PYSPARK_PYTHON"] == sys.executable


def test_a_distant_master_keeps_its_addresses_its_memory_and_its_own_python() -> None:
    configured = {"spark.master": "spark://cluster.example:7077"}
    assert defaults(configured) == {**EVERYWHERE, **UNCHECKED_SETTINGS, POOL: "system"}
    launch = session._launch_environment(configured, None, {})
    assert launch == {"PYSPARK_DRIVER_PYTHON": sys.executable, **UNCHECKED}


def test_arrow_of_the_workers_takes_memory_from_glibc_unless_somebody_has_chosen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert session._outside_settings({"ARROW_DEFAULT_MEMORY_POOL": "mimalloc"})[POOL] == "mimalloc"
    assert POOL not in defaults({POOL: "mimalloc"})
    assert POOL not in defaults({}, starts_jvm=False)
    monkeypatch.setattr(session, "_has_glibc", lambda: False)
    assert POOL not in defaults({})


@pytest.mark.parametrize("name", sorted(UNCHECKED))
def test_arrow_checks_the_values_it_reads_where_somebody_wants_it(name: str) -> None:
    setting = f"spark.executorEnv.{name}"
    assert session._outside_settings({name: "theirs"})[setting] == "theirs"
    assert setting not in defaults({setting: "theirs"})
    assert setting not in defaults({}, starts_jvm=False)
    assert name not in session._launch_environment({}, None, {name: "theirs"})
    assert session._launch_environment({setting: "theirs"}, None, {})[name] == "theirs"


@pytest.mark.spark
def test_the_jvm_reads_without_checks_of_each_value(spark: SparkSession) -> None:
    arrow = spark.sparkContext._jvm.org.apache.arrow
    environment = spark.sparkContext._jvm.System.getenv
    unsafe, null_checks = (environment(name) for name in UNCHECKED)
    assert unsafe is not None, "get_or_create_session has not made this session"
    assert (unsafe != "true") == arrow.memory.BoundsChecking.BOUNDS_CHECKING_ENABLED
    assert (null_checks != "false") == arrow.vector.NullCheckingForGet.NULL_CHECKING_ENABLED


def test_a_system_without_glibc_is_known_by_its_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for answer in ("", None):
        monkeypatch.setattr(os, "confstr", lambda _, answer=answer: answer)
        assert not session._has_glibc()
    monkeypatch.setattr(os, "confstr", lambda _: "glibc 2.36")
    assert session._has_glibc()
    monkeypatch.delattr(os, "confstr")
    assert not session._has_glibc()


@pytest.mark.spark
def test_workers_have_the_pool_of_the_session(spark: SparkSession) -> None:
    def pools(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"pool": [pa.default_memory_pool().backend_name] * batch.num_rows})

    wanted = spark.sparkContext.environment.get("ARROW_DEFAULT_MEMORY_POOL", pa.default_memory_pool().backend_name)
    assert {row.pool for row in spark.range(2).mapInArrow(pools, "pool string").collect()} == {wanted}


def test_settings_of_others_always_win() -> None:
    configured = dict.fromkeys(defaults({}, quiet=True), "theirs")
    assert defaults({**configured, "spark.master": "local[2]"}, quiet=True) == {}
    environ = {"PYSPARK_PYTHON": "a", "PYSPARK_DRIVER_PYTHON": "b", "SPARK_LOCAL_IP": "c", **UNCHECKED}
    assert session._launch_environment({}, None, environ) == {}


@pytest.mark.parametrize("name", sorted(ARROW_BATCH_SETTINGS))
def test_who_limits_arrow_batches_gets_no_limit_of_ours_beside(name: str) -> None:
    assert not defaults({name: "1000"}).keys() & ARROW_BATCH_SETTINGS.keys()


def test_only_arrow_is_set_where_the_jvm_runs_already_or_is_elsewhere() -> None:
    assert defaults({}, starts_jvm=False, quiet=True) == EVERYWHERE
    assert not session._starts_jvm({}, {"PYSPARK_GATEWAY_PORT": "1"})
    assert not session._starts_jvm({}, {"SPARK_REMOTE": "sc://host"})
    assert not session._starts_jvm({"spark.remote": "sc://host"}, {})
    assert session._starts_jvm({}, {})


def test_the_java_that_was_found_replaces_a_java_home_that_does_not_work() -> None:
    java = JavaRuntime(home="/usable", version="17", source="the path")
    assert session._launch_environment({}, java, {"JAVA_HOME": "/broken"})["JAVA_HOME"] == "/usable"


def test_settings_are_read_from_the_defaults_file_and_the_command_line(tmp_path: Path) -> None:
    (tmp_path / "spark-defaults.conf").write_text(
        "# a comment\n\nspark.master   spark://file:1\nspark.a = 1\nspark.b:2\nspark.ui.enabled\ttrue\nspark.empty\n"
    )
    environ = {"SPARK_CONF_DIR": str(tmp_path), "MASTER": "local[7]"}
    from_file = session._outside_settings(environ)
    assert from_file == {
        "spark.master": "spark://file:1",
        "spark.a": "1",
        "spark.b": "2",
        "spark.ui.enabled": "true",
        "spark.empty": "",
    }
    environ["PYSPARK_SUBMIT_ARGS"] = "--master local[3] --conf 'spark.a=x = y' --driver-memory 3g pyspark-shell"
    from_both = session._outside_settings(environ)
    assert from_both == {**from_file, "spark.master": "local[3]", "spark.a": "x = y", "spark.driver.memory": "3g"}
    assert session._outside_settings({"MASTER": "local[7]", "SPARK_CONF_DIR": "/none"}) == {"spark.master": "local[7]"}


def test_the_environment_is_as_before_after_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATELINE_TEST_SET", "before")
    monkeypatch.delenv("STATELINE_TEST_UNSET", raising=False)
    with session._environment({"STATELINE_TEST_SET": "during", "STATELINE_TEST_UNSET": "during"}):
        assert os.environ["STATELINE_TEST_SET"] == os.environ["STATELINE_TEST_UNSET"] == "during"
    assert os.environ["STATELINE_TEST_SET"] == "before"
    assert "STATELINE_TEST_UNSET" not in os.environ


def test_a_name_that_is_no_spark_setting_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"'driver_memory'.*spark\."):
        get_or_create_session(driver_memory="1g")


@pytest.mark.spark
def test_a_running_session_is_returned_and_takes_what_may_change(spark: SparkSession) -> None:
    before = spark.conf.get("spark.sql.shuffle.partitions")
    same = get_or_create_session("another name", "local[7]", **{"spark.sql.shuffle.partitions": 9})
    try:
        assert same.sparkContext is spark.sparkContext
        assert same.sparkContext.master == "local[2]"
        assert spark.conf.get("spark.sql.shuffle.partitions") == "9"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)


@pytest.mark.spark
def test_the_workers_run_this_python_with_its_packages(spark: SparkSession) -> None:
    @udf(returnType="string")
    def where(_):
        return f"{sys.executable} {pa.__version__}"

    row = spark.range(1).select(where("id")).first()
    assert row is not None
    assert row[0] == f"{sys.executable} {pa.__version__}"


def without_arrow_settings(spark: SparkSession) -> SparkSession:
    """A session such as a user makes without us."""
    made = spark.newSession()
    for name in ARROW_BATCH_SETTINGS:
        made.conf.unset(name)
    return made


def sizes_of_batches(spark: SparkSession) -> list[int]:
    def sizes(batches):
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"rows": [batch.num_rows]})

    frame = spark.range(0, 5000, 1, 1).selectExpr("id", "repeat('x', 100) AS text")
    return [row[0] for row in frame.mapInArrow(sizes, "rows long").collect()]


@pytest.mark.spark
def test_batches_for_python_have_a_limit_of_rows_alone(spark: SparkSession) -> None:
    assert sizes_of_batches(spark) == [1024, 1024, 1024, 1024, 904]
    theirs = without_arrow_settings(spark)
    assert sizes_of_batches(theirs) == [5000]
    set_arrow_batches(theirs)
    assert sizes_of_batches(theirs) == [1024, 1024, 1024, 1024, 904]


@pytest.mark.spark
@pytest.mark.parametrize("name", sorted(ARROW_BATCH_SETTINGS))
def test_a_limit_that_the_session_has_stays_alone(spark: SparkSession, name: str) -> None:
    theirs = without_arrow_settings(spark)
    theirs.conf.set(name, "1000")
    set_arrow_batches(theirs)
    assert [theirs.conf.get(each, None) for each in sorted(ARROW_BATCH_SETTINGS)] == [
        "1000" if each == name else None for each in sorted(ARROW_BATCH_SETTINGS)
    ]


@pytest.mark.spark
def test_a_keyed_stream_sets_them_for_its_batches_and_not_for_the_session_it_was_made_in(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def spy(batch_session: SparkSession) -> None:
        set_arrow_batches(batch_session)
        seen.append({name: batch_session.conf.get(name) for name in ARROW_BATCH_SETTINGS})

    monkeypatch.setattr(pipeline_run, "set_arrow_batches", spy)
    theirs = without_arrow_settings(spark)
    theirs.range(10).write.parquet(str(tmp_path / "events"))
    events = theirs.readStream.schema("id long").parquet(str(tmp_path / "events"))
    stream = KeyedStream(events, "id", f"file://{tmp_path}/state", parallelism=2).aggregate(n=count()).state_only()
    stream.start(str(tmp_path / "spark"), trigger={"availableNow": True}).awaitTermination()
    assert seen == [ARROW_BATCH_SETTINGS]
    assert [theirs.conf.get(name, None) for name in ARROW_BATCH_SETTINGS] == [None, None]


@pytest.mark.spark
def test_streams_write_their_logs_without_starting_processes(spark: SparkSession, tmp_path: Path) -> None:
    def manager(of: SparkSession) -> str:
        """Asked of Spark itself, as a stream does when it starts."""
        jvm = of.sparkContext._jvm
        managers = jvm.org.apache.spark.sql.execution.streaming.checkpointing.CheckpointFileManager
        hadoop = of._jsparkSession.sessionState().newHadoopConf()
        return str(managers.create(jvm.org.apache.hadoop.fs.Path(f"file://{tmp_path}"), hadoop).getClass().getName())

    theirs = spark.newSession()
    assert manager(spark) == session._BY_FILE_SYSTEM != manager(theirs)
    spark.range(10).write.parquet(str(tmp_path / "events"))
    rows = []
    for made_by in (theirs, spark, theirs):  # What one of them has written, the other one goes on with.
        events = made_by.readStream.schema("id long").parquet(str(tmp_path / "events"))
        writer = events.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "logs"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        rows.append(sum(item["numInputRows"] for item in query.recentProgress))
        spark.range(10, 17).write.mode("append").parquet(str(tmp_path / "events"))
    assert rows == [10, 7, 7]


@pytest.mark.spark
def test_how_streams_write_their_logs_is_left_to_who_has_chosen_and_to_what_there_is(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = spark.newSession()
    monkeypatch.setattr(session, "_BY_FILE_SYSTEM", "no.such.Manager")
    session._write_stream_logs_by_file_system(theirs)
    assert theirs.conf.get(session._STREAM_LOGS, None) is None
    monkeypatch.undo()
    theirs.conf.set(session._STREAM_LOGS, "their.own.Manager")
    session._write_stream_logs_by_file_system(theirs)
    assert theirs.conf.get(session._STREAM_LOGS) == "their.own.Manager"


def test_a_jvm_that_does_not_start_is_a_typed_error(tmp_path: Path) -> None:
    program = textwrap.dedent("""\
        from stateline.errors import UnavailableError
        from stateline.spark import get_or_create_session

        try:
            get_or_create_session(master="local[1]", **{"spark.driver.memory": "nonsense"})
        except UnavailableError as error:
            print(error)
        """)
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=240)
    assert answer.stdout.startswith("start Spark Java"), answer.stderr
    assert UnavailableError.__name__ not in answer.stderr
