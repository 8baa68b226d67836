"""Keyed state: columnar, sorted by the hash of the key, durable as immutable runs.

::

    backend                                     a plain program's door: put, get, aggregate, checkpoint, restore
    aggregate                                   vectorised aggregation over a table
    value_state list_state map_state timers     what a stateful processor keeps per key, for the keys of a batch
    variables   time_to_live                    their tables; rows that count as absent from a moment on
    subkeys     intervals  versions             several rows per grouping key: in its key group, disjoint, by time
    snapshot    rescale                         what a checkpoint of a subtask makes; slices for another parallelism
    table       merge                           search newest first; keep the stack short
    run_store   open_runs                       runs in a store, open in this process
    run                                         the bytes of a run
    runs        rows                            runs in memory and the search through them; their rows
    gather      keys      columns               rows put together, whole-key comparison, grouping, raw columns
    schema                                      names and types, and how they evolve

A micro-batch goes from top to bottom and back: its keys are grouped, looked up in the table, merged with what is
stored, and the changed rows become one new run, whose handle goes into the checkpoint record. Reading is a search
through the runs, materialization is merging them, rescaling is slicing them. Nothing here imports Spark.
"""

from stateline.changelog.host_cache import HostCache
from stateline.state.aggregate import Aggregation, Aggregator, KeyedAggregation, Update
from stateline.state.backend import AggregatedState, KeyedState, KeyedStateBackend, Lookup
from stateline.state.merge import MergeSettings
from stateline.state.open_runs import OpenRuns
from stateline.state.run import RunSettings
from stateline.state.run_store import RunReader, RunReaderSettings, RunWriter
from stateline.state.schema import StateSchema
from stateline.state.snapshot import Snapshot
from stateline.state.table import Found, StateTable

__all__ = [
    "AggregatedState",
    "Aggregation",
    "Aggregator",
    "Found",
    "HostCache",
    "KeyedAggregation",
    "KeyedState",
    "KeyedStateBackend",
    "Lookup",
    "MergeSettings",
    "OpenRuns",
    "RunReader",
    "RunReaderSettings",
    "RunSettings",
    "RunWriter",
    "Snapshot",
    "StateSchema",
    "StateTable",
    "Update",
]
