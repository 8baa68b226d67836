"""Lets Spark find ``format("stateline_files")`` by itself; see ``pyspark_stateline``.

Nobody tells a sink that its stream has ended; :func:`stateline.spark.register` watches for it. Without it, files are
finished with each micro-batch, unless ``roll_seconds`` or ``idle_seconds`` say when.
"""

try:
    from stateline.spark.sinks.files import FilesSink as DefaultSource
except ImportError:  # As in pyspark_stateline.
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
