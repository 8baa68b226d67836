"""The list of all functions that users call: ``aggregate(flights=count(), worst=max("delay"))``.

Lower-case and short, as in ``pyspark.sql.functions``. What is listed here, :mod:`stateline.spark` offers too.
"""

from stateline.state.aggregate.collect import collect_list, collect_set, count_distinct
from stateline.state.aggregate.extremes import (
    first,
    last,
    max,  # noqa: A004 - Spark's word
    max_by,
    min,  # noqa: A004 - Spark's word
    min_by,
)
from stateline.state.aggregate.numeric import (
    count,
    count_if,
    mean,
    stddev,
    stddev_pop,
    sum,  # noqa: A004 - Spark's word
    var_pop,
    variance,
)
from stateline.state.aggregate.sketch import approx_count_distinct

__all__ = [
    "approx_count_distinct",
    "collect_list",
    "collect_set",
    "count",
    "count_distinct",
    "count_if",
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
