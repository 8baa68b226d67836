"""A pipeline as a graph: inputs, the operators that they feed, and where rows go. Frozen values, nothing of Spark.

Names are what survives a restart. An operator has the name that its user gave it; an input is known by the name of an
operator that reads it. So an operator or an input may be added later, in any order, and everything that a record tells
of the others still finds its place (``docs/decisions/0047-graph.md``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import pyarrow as pa

from stateline.errors import InvalidInputError
from stateline.files import FileOutput
from stateline.pipeline.event_time import WatermarkPlan, WindowPlan
from stateline.pipeline.operators.api import OperatorProgram

__all__ = ["Graph", "Input", "OperatorPlan"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A stream that enters the pipeline.

    Attributes:
        name: Name of an operator that reads it: the first in alphabetical order.
        watermark: Its event time and delay; ``None`` for a stream without a watermark.
    """

    name: str
    watermark: WatermarkPlan | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPlan:
    """One operator.

    Attributes:
        name: Unique within the pipeline.
        inputs: The inputs that it reads, by name.
        upstream: The operators whose output it reads, by name.
        key_columns: Key columns of what it reads, in the order in which they are hashed.
        tables: The schemas of its state tables by name, each encoded as in :class:`stateline.checkpoint.OperatorState`;
            empty for an operator without state.
        definition: What computes the state, as text; must be the same on restart.
        output_schema: Of its rows; ``None`` where only a record describes the operator.
        output: Its files, if it writes any.
        output_columns: The columns of their rows; see :mod:`stateline.pipeline.output_columns`. Empty if unknown.
        delivers: Whether its output is handed to a function after the checkpoint.
        window: Windows of event time, whose start is the last key column.
        acts_on_watermark: Whether a watermark that advances changes its state or output, even without rows.
        acts_on_time: The same for processing time.
    """

    name: str
    inputs: tuple[str, ...] = ()
    upstream: tuple[str, ...] = ()
    key_columns: tuple[str, ...] = ()
    tables: Mapping[str, str]
    definition: str
    output_schema: pa.Schema | None = None
    output: FileOutput | None = None
    output_columns: Mapping[str, str] = field(default_factory=dict)
    delivers: bool = False
    window: WindowPlan | None = None
    acts_on_watermark: bool = False
    acts_on_time: bool = False

    @classmethod
    def of(cls, name: str, program: OperatorProgram) -> Self:
        """The operator that runs a program; nothing feeds it yet."""
        return cls(
            name=name,
            key_columns=tuple(program.key_columns),
            tables={table: schema.encode() for table, schema in program.tables.items()},
            definition=program.definition,
            output_schema=program.output_schema,
            window=program.window,
            acts_on_watermark=program.acts_on_watermark,
            acts_on_time=program.acts_on_time,
        )

    def state_name(self, table: str) -> str:
        """The name of a table in the checkpoint: the operator's own for its only table."""
        return self.name if list(self.tables) == [table] else f"{self.name}/{table}"

    def endless(self) -> OperatorPlan:
        """The operator in a stream without an end."""
        output = self.output
        return self if output is None else replace(self, output=replace(output, rolling=output.rolling.going_on()))


@dataclass(frozen=True, slots=True)
class Graph:
    """Inputs and operators; each operator comes after those that feed it.

    Attributes:
        inputs: In any order.
        operators: At least one in a pipeline that runs.

    Raises:
        InvalidInputError: Two have one name, or an operator reads what is not there before it.
    """

    inputs: tuple[Input, ...] = ()
    operators: tuple[OperatorPlan, ...] = ()

    def __post_init__(self) -> None:
        inputs = _unique("inputs", (each.name for each in self.inputs))
        _unique("operators", (each.name for each in self.operators))
        before: set[str] = set()
        for operator in self.operators:
            missing = sorted({*operator.inputs} - inputs | {*operator.upstream} - before)
            if missing:
                raise InvalidInputError(
                    f"cannot read {missing}: no such input, and no operator of that name before it",
                    operation="graph",
                    subject=f"operator {operator.name!r}",
                    hint=f"The inputs are {sorted(inputs)}; the operators before it are {sorted(before)}",
                )
            before.add(operator.name)

    @classmethod
    def of_one_input(cls, operators: Iterable[OperatorPlan], watermark: WatermarkPlan | None = None) -> Self:
        """Operators side by side over one stream."""
        side_by_side = tuple(operators)
        if not side_by_side:
            return cls()
        source = Input(name=min(operator.name for operator in side_by_side), watermark=watermark)
        return cls((source,), tuple(replace(operator, inputs=(source.name,)) for operator in side_by_side))

    def alongside(self, other: Graph) -> Graph:
        """Two graphs of one input, which is the same, as one.

        Raises:
            InvalidInputError: They share the name of an operator, or ask for different watermarks.
        """
        (mine,), (theirs,) = self.inputs, other.inputs
        if mine.watermark != theirs.watermark:
            raise InvalidInputError(
                f"expected one watermark for one stream, got {mine.watermark} and {theirs.watermark}",
                operation="alongside",
                subject="watermark",
                hint="Give both KeyedStreams the same watermark and late_data",
            )
        return Graph.of_one_input(self.operators + other.operators, mine.watermark)

    def operator(self, name: str) -> OperatorPlan:
        """The operator of a name; there must be one."""
        return next(operator for operator in self.operators if operator.name == name)

    def find_input(self, name: str) -> Input | None:
        """The input that a record knows by a name: the one of that name, or else the one that this operator reads.

        An input gets another name when an operator that comes before in the alphabet begins to read it, too.
        """
        readers = {operator.name: operator.inputs for operator in self.operators}
        found = {each.name: each for each in self.inputs}
        return found.get(name) or next((found[read] for read in readers.get(name, ())), None)

    def inputs_reaching(self, name: str) -> tuple[Input, ...]:
        """The inputs whose rows reach an operator, directly or through the operators in front of it."""
        operator = self.operator(name)
        reached = {*operator.inputs}
        for before in operator.upstream:
            reached |= {each.name for each in self.inputs_reaching(before)}
        return tuple(each for each in self.inputs if each.name in reached)

    def watermark_read_by(self, name: str) -> WatermarkPlan | None:
        """The watermark of the input whose rows an operator receives as they come; ``None`` without one."""
        read = self.operator(name).inputs
        return next((each.watermark for each in self.inputs if each.name in read), None)


def _unique(what: str, names: Iterable[str]) -> set[str]:
    known: set[str] = set()
    for name in names:
        if name in known:
            raise InvalidInputError(
                f"two {what} are called {name!r}",
                operation="graph",
                subject=what,
                hint="Give each KeyedStream a name= of its own",
            )
        known.add(name)
    return known
