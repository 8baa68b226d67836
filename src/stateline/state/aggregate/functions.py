"""The functions that users call: ``aggregate(flights=count(), worst=max("delay"))``.

Lower-case and short, as in ``pyspark.sql.functions``; import the module, or single names, as there.
"""

from __future__ import annotations

from stateline.state.aggregate.api import Aggregation
from stateline.state.aggregate.collect import Collect, CountDistinct
from stateline.state.aggregate.extremes import Extreme, ValueAtExtreme
from stateline.state.aggregate.numeric import Count, Mean, Sum, Variance
from stateline.state.aggregate.sketch import ApproxCountDistinct

__all__ = [
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


def count(column: str | None = None) -> Aggregation:
    """The number of rows; with a column, of its values that are not null."""
    return Count(column)


def sum(column: str) -> Aggregation:  # noqa: A001 - Spark's word
    """The sum of a numeric column. One that does not fit is an error, as in Spark's ANSI mode."""
    return Sum(column)


def mean(column: str) -> Aggregation:
    """The arithmetic mean of a numeric column."""
    return Mean(column)


def min(column: str) -> Aggregation:  # noqa: A001 - Spark's word
    """The smallest value of a column of any type that has an order. NaN is greater than every number."""
    return Extreme(column, largest=False)


def max(column: str) -> Aggregation:  # noqa: A001 - Spark's word
    """The largest value of a column of any type that has an order. NaN is greater than every number."""
    return Extreme(column, largest=True)


def first(column: str, *, by: str) -> Aggregation:
    """The value of the row that is first in the order of ``by``, usually a time; the smallest value among equals."""
    return ValueAtExtreme(column, by, largest=False, function="first")


def last(column: str, *, by: str) -> Aggregation:
    """The value of the row that is last in the order of ``by``, usually a time; the largest value among equals."""
    return ValueAtExtreme(column, by, largest=True, function="last")


def min_by(column: str, by: str) -> Aggregation:
    """The value where ``by`` is smallest; the smallest value among equals."""
    return ValueAtExtreme(column, by, largest=False, function="min_by")


def max_by(column: str, by: str) -> Aggregation:
    """The value where ``by`` is largest; the largest value among equals."""
    return ValueAtExtreme(column, by, largest=True, function="max_by")


def variance(column: str) -> Aggregation:
    """The sample variance of a numeric column; null for fewer than two values."""
    return Variance(column, sample=True, root=False)


def var_pop(column: str) -> Aggregation:
    """The population variance of a numeric column."""
    return Variance(column, sample=False, root=False)


def stddev(column: str) -> Aggregation:
    """The sample standard deviation of a numeric column; null for fewer than two values."""
    return Variance(column, sample=True, root=True)


def stddev_pop(column: str) -> Aggregation:
    """The population standard deviation of a numeric column."""
    return Variance(column, sample=False, root=True)


def collect_list(column: str, limit: int, *, newest: bool = False) -> Aggregation:
    """Values in order of arrival, at most ``limit``: the first ones, or with ``newest`` the last ones."""
    return Collect(column, limit, distinct=False, newest=newest)


def collect_set(column: str, limit: int) -> Aggregation:
    """Distinct values in order of first arrival, at most ``limit``."""
    return Collect(column, limit, distinct=True)


def count_distinct(column: str) -> Aggregation:
    """The exact number of distinct values. The state holds all of them."""
    return CountDistinct(column)


def approx_count_distinct(column: str, rsd: float = 0.05) -> Aggregation:
    """About how many distinct values there are, with relative standard deviation ``rsd``."""
    return ApproxCountDistinct(column, rsd)
