"""Nexmark: an auction house as a stream, and the questions that engines are compared by, each checked row by row.

Run one with ``make nexmark ARGS="--query q5"``. The parts:

- ``events``, ``text``: the generator, by seed and in whole columns;
- ``source``: events as Parquet files, a file for each micro-batch;
- ``queries``: the questions as pipelines; they are what a user would write;
- ``run``: one of them, from its first event to its last;
- ``answers``: the same questions in SQL over all events at once, with no Stateline code;
- ``verification``: output against answer, by DuckDB.
"""
