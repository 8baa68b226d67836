"""Lets Spark find ``format("stateline_files")`` by itself; see ``pyspark_stateline``.

Nobody tells a sink that its stream has ended. :func:`stateline.spark.register` watches for it; without it, files that
are open when a stream ends stay open until the stream starts again or :func:`stateline.spark.finish_files` is called.
"""

try:
    from stateline.spark.files_sink import FilesSink as DefaultSource
except ImportError:  # As in pyspark_stateline.
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
