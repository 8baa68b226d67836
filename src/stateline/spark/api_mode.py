"""Classic or Connect: what kind of session runs a program, and what differs.

A classic session lives in the program, beside the JVM of Spark's driver. A Connect session is a client: DataFrames are
descriptions that a server carries out, and nothing of the JVM can be touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import functions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

try:
    from py4j.protocol import Py4JError
except ModuleNotFoundError:  # The package `pyspark-client` has no JVM to talk to.
    Py4JError = PySparkException

__all__ = ["Py4JError", "default_parallelism", "empty_rows", "has_file_system", "in_session", "is_connect"]

_CONNECT: Final = "pyspark.sql.connect."
_NO_SUCH_FOLDER: Final = "PATH_NOT_FOUND"
_MANY: Final = 65_536
"""Rows enough for one in every partition."""


def is_connect(session: Any) -> bool:
    """Whether a session, or a DataFrame, is one of Spark Connect. Asks no server, and imports nothing."""
    return any(kind.__module__.startswith(_CONNECT) for kind in type(session).__mro__)


def default_parallelism(session: SparkSession) -> int:
    """The cores that Spark has, or what it was told instead.

    On Connect they are counted by one small job: a range without a number of partitions has that many.
    """
    if not is_connect(session):
        return int(session.sparkContext.defaultParallelism)
    partitions = session.range(_MANY).select(functions.spark_partition_id().alias("partition"))
    return int(partitions.agg(functions.max("partition")).collect()[0][0]) + 1


def empty_rows(session: SparkSession, schema: StructType) -> DataFrame:
    """Rows of a job that has none. A local relation would be optimised away, and subtasks would run in the driver."""
    if not is_connect(session):
        return session.createDataFrame(session.sparkContext.emptyRDD(), schema)
    return session.range(0, 1, 1, 1).mapInArrow(_nothing, schema)


def _nothing(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield from ()


def in_session(rows: DataFrame, session: SparkSession) -> DataFrame:
    """The same rows, in another session of the same server: batches on Connect have one of their own."""
    if not is_connect(rows):
        return rows
    made: DataFrame = type(rows)(rows._plan, session)  # noqa: SLF001 - the only way to say it
    return made


def has_file_system(session: SparkSession, url: str) -> bool:
    """Whether Spark knows a file system for a URL."""
    if is_connect(session):
        try:
            return bool(session.read.format("text").load(url).columns)
        except PySparkException as error:  # What is missing is the folder, or the file system.
            return bool(error.getCondition() == _NO_SUCH_FOLDER)
    from py4j.protocol import Py4JJavaError  # noqa: PLC0415 - a client of Connect may not have it

    path = session.sparkContext._jvm.org.apache.hadoop.fs.Path(url)  # noqa: SLF001 - PySpark has no public door to it
    try:
        path.getFileSystem(session._jsparkSession.sessionState().newHadoopConf())  # noqa: SLF001
    except Py4JJavaError:
        return False
    return True
