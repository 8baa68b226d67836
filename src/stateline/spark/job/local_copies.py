"""Where a host keeps copies of a query's sections: what the option ``local_copies`` means.

``auto`` is a folder of Spark's own: all Python workers of an executor share it, and it goes with the executor. Spark
tells its Python workers in ``SPARK_LOCAL_DIRS`` where it is. The driver has a folder for the files that programs add,
which executors only have where they are one process with it: then it is the folder of both.
"""

from __future__ import annotations

import os
from functools import lru_cache
from urllib.parse import urlsplit

from stateline.blob import BlobStore
from stateline.blob.local import LocalStore
from stateline.blob.urls import split_local_url
from stateline.changelog.host_cache import HostCache
from stateline.errors import InvalidInputError
from stateline.pipeline.plan import AUTO_COPIES, NO_COPIES, PipelinePlan

__all__ = ["host_copies"]


def host_copies(plan: PipelinePlan, root: BlobStore) -> HostCache | None:
    """The copies of this host, one cache for all that runs in this process; ``None`` where there are to be none.

    Args:
        plan: The pipeline.
        root: The store of its root. One on this host needs no copies.

    Raises:
        InvalidInputError: The folder that a user named overlaps an output.
    """
    given = plan.settings.local_copies
    if given == NO_COPIES or root.local_path("x") is not None:
        return None
    folder = _spark_folder() if given == AUTO_COPIES else given
    if folder is None:
        return None
    copies = _of_process(folder, plan.settings.local_copies_bytes)
    outputs = [operator.output.url for operator in plan.graph.operators if operator.output is not None]
    local = [LocalStore(split_local_url(url)) for url in outputs if urlsplit(url).scheme in ("", "file")]
    try:
        copies.check_apart(local, "local_copies")
    except InvalidInputError:
        if given == AUTO_COPIES:
            return None
        raise
    return copies


@lru_cache(maxsize=8)
def _of_process(folder: str, max_bytes: int) -> HostCache:
    return HostCache(folder, max_bytes)


def _spark_folder() -> str | None:
    from pyspark import SparkContext, SparkFiles  # noqa: PLC0415 - a client of Connect does not have them

    on_worker = SparkFiles._is_running_on_worker  # noqa: SLF001 - there is no other way to ask
    if not on_worker and SparkContext._active_spark_context is None:  # noqa: SLF001 - asking for it would start one
        return None
    added = str(SparkFiles.getRootDirectory())
    if os.path.isabs(added):
        return str(os.path.dirname(added))
    return os.environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or None
