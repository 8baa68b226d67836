"""Stateline on Spark: keyed streams, exactly-once files and the session to run them in.

The only folder that imports pyspark. Public names are loaded on first use, so that importing one part of this package,
such as the protocol of the driver, costs neither pyspark nor a JVM.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from stateline.errors import NotInstalledError
from stateline.state.aggregate import Aggregator, functions
from stateline.state.aggregate.functions import *  # noqa: F403 - the list of them is there

if TYPE_CHECKING:
    from stateline.pipeline.delivery import BatchKey
    from stateline.pipeline.operators.api import BatchContext
    from stateline.spark.java import describe_java
    from stateline.spark.pipeline import Pipeline
    from stateline.spark.session import get_or_create_session, register
    from stateline.spark.sinks.finish_files import finish_files
    from stateline.spark.stream.keyed_stream import KeyedStream, PipelineStage
    from stateline.spark.stream.windows import WindowedStream

__all__ = [
    "Aggregator",
    "BatchContext",
    "BatchKey",
    "KeyedStream",
    "Pipeline",
    "PipelineStage",
    "WindowedStream",
    "describe_java",
    "finish_files",
    "get_or_create_session",
    "register",
]
__all__ += functions.__all__

_MODULES: Final = {
    "BatchContext": "stateline.pipeline.operators.api",
    "BatchKey": "stateline.pipeline.delivery",
    "KeyedStream": "stateline.spark.stream.keyed_stream",
    "Pipeline": "stateline.spark.pipeline",
    "PipelineStage": "stateline.spark.stream.keyed_stream",
    "WindowedStream": "stateline.spark.stream.windows",
    "describe_java": "stateline.spark.java",
    "finish_files": "stateline.spark.sinks.finish_files",
    "get_or_create_session": "stateline.spark.session",
    "register": "stateline.spark.session",
}
"""Where each public name lives."""


def __getattr__(name: str) -> Any:
    """Loads a public name on first use.

    Raises:
        NotInstalledError: The name needs pyspark, which is not installed.
    """
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"pyspark", "py4j", "pandas"}:
            raise
        raise NotInstalledError(
            f"the package {error.name} is not installed",
            operation="import",
            subject=f"{__name__}.{name}",
            hint="Run: pip install 'stateline[spark]'",
        ) from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names, loaded or not."""
    return sorted({*globals(), *__all__})
