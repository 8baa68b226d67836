"""Vectorised aggregation of keyed streams: counts, sums, extremes, lists, sketches, and one's own.

``functions`` has what users call, ``api`` the protocol, ``plan`` the work of one batch, and one module per kind of
aggregation the rest.
"""

from stateline.state.aggregate.api import Aggregation, BoundAggregation, GroupedRows
from stateline.state.aggregate.custom import Aggregator
from stateline.state.aggregate.functions import (
    approx_count_distinct,
    collect_list,
    collect_set,
    count,
    count_distinct,
    first,
    last,
    max,  # noqa: A004 - Spark's word
    max_by,
    mean,
    min,  # noqa: A004 - Spark's word
    min_by,
    stddev,
    stddev_pop,
    sum,  # noqa: A004 - Spark's word
    var_pop,
    variance,
)
from stateline.state.aggregate.plan import KeyedAggregation, Update

__all__ = [
    "Aggregation",
    "Aggregator",
    "BoundAggregation",
    "GroupedRows",
    "KeyedAggregation",
    "Update",
    "approx_count_distinct",
    "collect_list",
    "collect_set",
    "count",
    "count_distinct",
    "first",
    "last",
    "max",
    "max_by",
    "mean",
    "min",
    "min_by",
    "stddev",
    "stddev_pop",
    "sum",
    "var_pop",
    "variance",
]
