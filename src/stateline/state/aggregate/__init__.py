"""Vectorised aggregation of keyed streams: counts, sums, extremes, lists, sketches, and one's own.

``functions`` lists what users call, ``api`` has the protocol, ``plan`` the work of one batch, and a module for each
kind of aggregation the rest.
"""

from stateline.state.aggregate import functions
from stateline.state.aggregate.api import Aggregation, BoundAggregation, GroupedRows
from stateline.state.aggregate.custom import Aggregator
from stateline.state.aggregate.functions import *  # noqa: F403 - the list of them is there
from stateline.state.aggregate.plan import KeyedAggregation, Update

__all__ = ["Aggregation", "Aggregator", "BoundAggregation", "GroupedRows", "KeyedAggregation", "Update"]
__all__ += functions.__all__
