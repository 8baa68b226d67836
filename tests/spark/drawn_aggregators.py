"""Aggregators as users write them, each beside an expression of Spark's that gives the same answer.

Their classes are made in functions: so they travel to the workers as they are, where this module may not be.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from stateline.spark import Aggregator


def sum_of_squares(column):
    class SumOfSquares(Aggregator):
        state_schema = pa.schema([("total", pa.int64())])
        output_type = pa.int64()

        def reduce(self, rows, group, num_groups):
            values = rows[column].cast(pa.int64())
            made = pa.table({"g": group, "x": pc.multiply(values, values)}).group_by("g").aggregate([("x", "sum")])
            return pa.table([made.sort_by("g")["x_sum"]], schema=self.state_schema)

        def merge(self, older, newer):
            total = pc.add(older["total"], newer["total"])
            return pa.table([pc.coalesce(total, older["total"], newer["total"])], schema=self.state_schema)

        def result(self, state):
            return state["total"]

    return SumOfSquares(column), f"sum(cast({column} as bigint) * cast({column} as bigint))"


def longest(column):
    """Keeps its text in a type that is stored as another one, and gives a text back or null."""

    class Longest(Aggregator):
        state_schema = pa.schema([("text", pa.large_string()), ("length", pa.int32())])
        output_type = pa.string()

        def reduce(self, rows, group, num_groups):
            texts = rows[column].cast(pa.large_string())
            made = pa.table({"g": group, "text": texts, "length": pc.utf8_length(texts).cast(pa.int32())})
            made = made.sort_by([("g", "ascending"), ("length", "descending"), ("text", "descending")])
            made = made.group_by("g", use_threads=False).aggregate([("text", "first"), ("length", "first")])
            return pa.table([made["text_first"], made["length_first"]], schema=self.state_schema)

        def merge(self, older, newer):
            longer = pc.greater(newer["length"], older["length"])
            same = pc.equal(newer["length"], older["length"])
            wins = pc.or_(longer, pc.and_(same, pc.greater(newer["text"], older["text"])))
            wins = pc.coalesce(wins, older["length"].is_null())
            columns = [pc.if_else(wins, newer[name], older[name]) for name in ("text", "length")]
            return pa.table([columns[0].cast(pa.large_string()), columns[1]], schema=self.state_schema)

        def result(self, state):
            return state["text"].cast(pa.string())

    return Longest(column), f"max_by({column}, struct(length({column}), {column})) FILTER (WHERE {column} IS NOT NULL)"


def greatest(column, limit, kind):
    """Keeps a list, and reads a parameter that is part of its definition."""

    class Greatest(Aggregator):
        state_schema = pa.schema([("values", pa.list_(kind))])
        output_type = pa.list_(kind)

        @property
        def definition(self):
            return f"Greatest({column}, {limit})"

        def _best(self, lists):
            made = [sorted((value for one in row for value in one or []), reverse=True)[:limit] for row in lists]
            return pa.table([pa.array(made, pa.list_(kind))], schema=self.state_schema)

        def reduce(self, rows, group, num_groups):
            lists = [[[]] for _ in range(num_groups)]
            for number, value in zip(group.to_pylist(), rows[column].to_pylist(), strict=True):
                if value is not None:
                    lists[number][0].append(value)
            return self._best(lists)

        def merge(self, older, newer):
            return self._best(zip(older["values"].to_pylist(), newer["values"].to_pylist(), strict=True))

        def result(self, state):
            return state["values"]

    return Greatest(column), f"slice(sort_array(collect_list({column}), false), 1, {limit})"


def bitmap(column):
    """Its answer is no null where there was no value, but its state is: absent and empty are one."""

    class Bitmap(Aggregator):
        state_schema = pa.schema([("bits", pa.int64())])
        output_type = pa.int64()

        def reduce(self, rows, group, num_groups):
            bits = [None] * num_groups
            for number, value in zip(group.to_pylist(), rows[column].to_pylist(), strict=True):
                if value is not None:
                    bits[number] = (bits[number] or 0) | 1 << value % 62
            return pa.table([pa.array(bits, pa.int64())], schema=self.state_schema)

        def merge(self, older, newer):
            bits = pc.bit_wise_or(older["bits"].fill_null(0), newer["bits"].fill_null(0))
            return pa.table([bits], schema=self.state_schema)

        def result(self, state):
            return state["bits"].fill_null(0)

    return Bitmap(column), f"coalesce(bit_or(shiftleft(1L, cast(pmod({column}, 62) as int))), 0L)"


def product(one, other):
    """Reads two columns, gives a structure."""

    class Product(Aggregator):
        state_schema = pa.schema([("total", pa.decimal128(30, 2)), ("rows", pa.int64())])
        output_type = pa.struct([("total", pa.decimal128(30, 2)), ("rows", pa.int64())])

        def reduce(self, rows, group, num_groups):
            pairs = pc.multiply(rows[one].cast(pa.decimal128(10, 0)), rows[other].cast(pa.decimal128(10, 2)))
            made = pa.table({"g": group, "x": pairs.cast(pa.decimal128(30, 2))})
            made = made.group_by("g").aggregate([("x", "sum"), ("x", "count")]).sort_by("g")
            return pa.table([made["x_sum"].cast(pa.decimal128(30, 2)), made["x_count"]], schema=self.state_schema)

        def merge(self, older, newer):
            total = pc.add(older["total"].fill_null(0), newer["total"].fill_null(0)).cast(pa.decimal128(30, 2))
            none = pc.and_(older["total"].is_null(), newer["total"].is_null())
            rows = pc.add(older["rows"].fill_null(0), newer["rows"])
            total = pc.if_else(none, pa.scalar(None, total.type), total)
            return pa.table([total, rows], schema=self.state_schema)

        def result(self, state):
            columns = [state["total"].combine_chunks(), state["rows"].combine_chunks()]
            return pa.StructArray.from_arrays(columns, names=["total", "rows"])

    pair = f"cast({one} as decimal(10,0)) * cast({other} as decimal(10,2))"
    return (
        Product(one, other),
        f"named_struct('total', cast(sum({pair}) as decimal(30,2)), 'rows', count({pair}))",
    )


def tally(column):
    """A map of counts, which are kept in columns of their own."""

    class Tally(Aggregator):
        state_schema = pa.schema([("yes", pa.int64()), ("no", pa.int64())])
        output_type = pa.map_(pa.string(), pa.int64())

        def reduce(self, rows, group, num_groups):
            truth = rows[column]
            made = pa.table({"g": group, "yes": truth, "no": pc.invert(truth)}).group_by("g")
            made = made.aggregate([("yes", "sum"), ("no", "sum")]).sort_by("g")
            counts = [made[name].fill_null(0).cast(pa.int64()) for name in ("yes_sum", "no_sum")]
            return pa.table(counts, schema=self.state_schema)

        def merge(self, older, newer):
            counts = [pc.add(older[name].fill_null(0), newer[name]) for name in ("yes", "no")]
            return pa.table(counts, schema=self.state_schema)

        def result(self, state):
            made = [list(row.items()) for row in state.to_pylist()]
            return pa.array(made, pa.map_(pa.string(), pa.int64()))

    return Tally(column), f"map('yes', count_if({column}), 'no', count_if(not {column}))"


def newest(column):
    """Keeps a structure, whose text is null where that of the newest row is."""
    kind = pa.struct([("row", pa.int64()), ("text", pa.dictionary(pa.int32(), pa.large_string()))])
    plain = pa.struct([("row", pa.int64()), ("text", pa.large_string())])

    class Newest(Aggregator):
        state_schema = pa.schema([("newest", kind)])
        output_type = pa.large_string()

        def reduce(self, rows, group, num_groups):
            found = [None] * num_groups
            for number, row, text in zip(*(one.to_pylist() for one in (group, rows["row"], rows[column])), strict=True):
                if found[number] is None or found[number]["row"] < row:
                    found[number] = {"row": row, "text": text}
            return pa.table([pa.array(found, plain)], names=["newest"])

        def merge(self, older, newer):
            row = [pc.struct_field(one["newest"].combine_chunks(), "row") for one in (older, newer)]
            wins = pc.coalesce(pc.greater(row[1], row[0]), row[0].is_null())
            return pa.table([pc.if_else(wins, newer["newest"], older["newest"])], names=["newest"])

        def result(self, state):
            return pa.array([one["text"] for one in state["newest"].to_pylist()], pa.large_string())

    return Newest("row", column), f"max_by({column}, row)"


def rows_of_each():
    """Reads no column at all."""

    class RowsOfEach(Aggregator):
        state_schema = pa.schema([("rows", pa.uint32())])
        output_type = pa.int64()

        def reduce(self, rows, group, num_groups):
            counts = pc.value_counts(group).flatten()[1]  # Groups come in order.
            return pa.table([counts.cast(pa.uint32())], schema=self.state_schema)

        def merge(self, older, newer):
            return pa.table([pc.add(older["rows"].fill_null(0), newer["rows"])], schema=self.state_schema)

        def result(self, state):
            return state["rows"].cast(pa.int64())

    return RowsOfEach(), "count(*)"


def drawn_aggregator(dice):
    """An aggregator and Spark's expression, which gives the same answer."""
    numbers = ("tiny", "small", "whole")
    return dice.choice(
        (
            lambda: sum_of_squares(dice.choice(("tiny", "small"))),
            lambda: longest("text"),
            lambda: greatest(
                *dice.choice((("large", 3, pa.int64()), ("day", 2, pa.date32()), ("cents", 4, pa.decimal128(5, 2))))
            ),
            lambda: bitmap(dice.choice(numbers)),
            lambda: product("small", "tiny"),
            lambda: tally("truth"),
            lambda: newest("text"),
            rows_of_each,
        )
    )()
