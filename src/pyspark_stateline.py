"""Lets Spark find ``format("stateline")`` by itself: it asks every module whose name begins with ``pyspark_``.

Spark takes one source from a module, so ``pyspark_stateline_files`` has the other.
"""

try:
    from stateline.spark.sources.state import StateSource as DefaultSource
except ImportError:
    # Without PySpark 4.1 and pandas there is no such source. Spark must not fail for it: it also asks here when it is
    # looking for the sources of others, and leaves out a module that has none.
    __all__: list[str] = []
else:
    __all__ = ["DefaultSource"]
