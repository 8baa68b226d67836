"""``KeyedStream.join``: two keyed streams, joined on equal keys and, if wanted, on an interval of event time."""

from stateline.pipeline.operators.join.interval import Interval
from stateline.pipeline.operators.join.program import HOWS, JoinProgram, JoinSide

__all__ = ["HOWS", "Interval", "JoinProgram", "JoinSide"]
