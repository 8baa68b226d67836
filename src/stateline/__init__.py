"""Durable state timelines and exactly-once files for PySpark.

A map of the layers; each imports only what stands below it, and siblings separated by ``|`` never import each other::

    cli                                           people look here
    spark | dashboard                             the only folder that imports pyspark; what records tell people
    pipeline                                      one micro-batch without Spark
    state | files                                 keyed state; exactly-once files that span checkpoints
    checkpoint                                    records, retention, savepoints
    changelog | recoverable                       the log of state; files that survive their writer
    blob                                          a store of immutable bytes
    handles  key_groups  options  metrics  environment  errors

``testing`` stands beside them all: fault stores, conformance suites and clocks for tests of one's own.
Importing this package loads neither pyspark nor a cloud SDK.
"""

from importlib.metadata import PackageNotFoundError, version

__all__ = ["__version__"]

try:
    __version__ = version("stateline")
except PackageNotFoundError:  # A source tree that was never installed.
    __version__ = "0.0.0"
