"""A pipeline as a graph: inputs, the operators that they feed, and where rows go. Frozen values, nothing of Spark.

Names are what survives a restart. An operator has the name that its user gave it; an input is known by the name of an
operator that reads it. So an operator or an input may be added later, in any order, and everything that a record tells
of the others still finds its place (``docs/decisions/0047-graph.md``).

Operators run in levels, one after the other, in one job for each micro-batch (``docs/decisions/0049-levels.md``). What
reads only operators of earlier levels may run in the next one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, Self

import pyarrow as pa

from stateline.errors import InvalidInputError
from stateline.files import FileOutput
from stateline.pipeline.event_time import WatermarkPlan, WindowPlan
from stateline.pipeline.operators.api import Emits, Lookup, OperatorProgram, Reading
from stateline.tables import TableTarget

__all__ = ["Graph", "Input", "Merged", "OperatorPlan", "Reader", "Source"]

_OTHER_SIDE: Final = "right"


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    """A stream that enters the pipeline.

    Attributes:
        name: The first, in alphabetical order, of the names of what reads it; see :attr:`Reader.label`.
        watermark: Its event time and delay; ``None`` for a stream without a watermark.
    """

    name: str
    watermark: WatermarkPlan | None = None


@dataclass(frozen=True, slots=True)
class Source:
    """Where one of an operator's streams comes from.

    Attributes:
        kind: ``input``; ``operator`` for the output of one; ``late`` for the rows that were late for one.
        name: Of the input or the operator.
        side: Which reading of that operator the rows were late for.
    """

    kind: Literal["input", "operator", "late"]
    name: str
    side: int = 0

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" side {self.side}" if self.side else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorPlan:
    """One operator.

    Attributes:
        name: Unique within the pipeline.
        sources: What feeds it: one for each of its readings.
        readings: What it reads of each source; empty where only a record describes the operator.
        key_columns: Key columns of what it reads, in the order in which they are hashed.
        tables: The schemas of its state tables by name, each encoded as in :class:`stateline.checkpoint.OperatorState`;
            empty for an operator without state.
        definition: What computes the state, as text; must be the same on restart.
        output_schema: Of its rows; ``None`` where only a record describes the operator.
        output: Its files, if it writes any.
        output_columns: The columns of their rows; see :mod:`stateline.pipeline.output_columns`. Empty if unknown.
        delivers: Whether its output is handed to a function, or to a table that takes rows, after the checkpoint.
        table: The table that its rows go to, as files or as rows; ``None`` for none.
        late_columns: The columns of its late rows, by reading, where another operator reads these.
        emits: What its output is to operators that read it.
        watermark_lag_us: How far the watermark of its output stays behind its own.
        window: Windows of event time, whose start is the last key column.
        acts_on_watermark: Whether a watermark that advances changes its state or output, even without rows.
        acts_on_time: The same for processing time.
        lookups: State of other operators that it reads, by a name of its own.
    """

    name: str
    sources: tuple[Source, ...] = ()
    readings: tuple[Reading, ...] = ()
    key_columns: tuple[str, ...] = ()
    tables: Mapping[str, str]
    definition: str
    output_schema: pa.Schema | None = None
    output: FileOutput | None = None
    output_columns: Mapping[str, str] = field(default_factory=dict)
    delivers: bool = False
    table: TableTarget | None = None
    late_columns: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    emits: Emits = "unknown"
    watermark_lag_us: int = 0
    window: WindowPlan | None = None
    acts_on_watermark: bool = False
    acts_on_time: bool = False
    lookups: Mapping[str, Lookup] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, program: OperatorProgram, sources: tuple[Source, ...] = ()) -> Self:
        """The operator that runs a program."""
        return cls(
            name=name,
            sources=sources,
            readings=tuple(program.readings),
            key_columns=tuple(program.key_columns),
            tables={table: schema.encode() for table, schema in program.tables.items()},
            definition=program.definition,
            output_schema=program.output_schema,
            emits=program.emits,
            watermark_lag_us=program.watermark_lag_us,
            window=program.window,
            acts_on_watermark=program.acts_on_watermark,
            acts_on_time=program.acts_on_time,
            lookups=dict(program.lookups),
        )

    def state_name(self, table: str) -> str:
        """The name of a table in the checkpoint: the operator's own for its only table, and for one without a name."""
        return self.name if not table or list(self.tables) == [table] else f"{self.name}/{table}"

    @property
    def deletes(self) -> bool:
        """Whether its table loses the rows that it takes back or forgets."""
        return self.table is not None and self.table.deletes

    def endless(self) -> OperatorPlan:
        """The operator in a stream without an end."""
        output = self.output
        return self if output is None else replace(self, output=replace(output, rolling=output.rolling.going_on()))

    def ending(self) -> OperatorPlan:
        """The operator in a stream that ends by itself."""
        output = self.output
        return self if output is None else replace(self, output=replace(output, rolling=output.rolling.ending()))

    def reads_only(self, *kinds: str) -> bool:
        """Whether all its sources are of these kinds."""
        return all(source.kind in kinds for source in self.sources)

    def columns_of_side(self, side: int) -> tuple[str, ...]:
        """What tasks receive of one source: what the operator reads, and what its late rows are to have."""
        return tuple(dict.fromkeys([*self.readings[side].columns, *self.late_columns.get(side, ())]))

    def _renamed_inputs(self, names: Mapping[str, str]) -> OperatorPlan:
        sources = (
            replace(source, name=names.get(source.name, source.name)) if source.kind == "input" else source
            for source in self.sources
        )
        return replace(self, sources=tuple(sources))

    def _without_outputs(self) -> OperatorPlan:
        return replace(self, output=None, output_columns={}, delivers=False, table=None, late_columns={})


@dataclass(frozen=True, slots=True)
class Reader:
    """An operator that reads a source, and on which side."""

    operator: OperatorPlan
    side: int

    @property
    def label(self) -> str:
        """The name of the reader: the operator's own for its first side."""
        return f"{self.operator.name}.{_OTHER_SIDE}" if self.side else self.operator.name

    @property
    def reading(self) -> Reading:
        """What it reads."""
        return self.operator.readings[self.side]


@dataclass(frozen=True, slots=True)
class Graph:
    """Inputs and operators; each operator comes after those that feed it.

    Attributes:
        inputs: In any order.
        operators: At least one in a pipeline that runs.

    Raises:
        InvalidInputError: Two have one name, an operator reads what is not there before it, or looks up what is not
            there at all.
    """

    inputs: tuple[Input, ...] = ()
    operators: tuple[OperatorPlan, ...] = ()

    def __post_init__(self) -> None:
        inputs = _unique("inputs", (each.name for each in self.inputs))
        _unique("operators", (each.name for each in self.operators))
        before: set[str] = set()
        for operator in self.operators:
            known = {"input": inputs, "operator": before, "late": before}
            missing = sorted({each.name for each in operator.sources if each.name not in known[each.kind]})
            if missing:
                raise InvalidInputError(
                    f"cannot read {missing}: no such input, and no operator of that name before it",
                    operation="graph",
                    subject=f"operator {operator.name!r}",
                    hint=f"The inputs are {sorted(inputs)}; the operators before it are {sorted(before)}",
                )
            before.add(operator.name)
        states = {operator.state_name(table) for operator in self.operators for table in operator.tables}
        for operator in self.operators:
            for lookup in operator.lookups.values():
                if lookup.root is None and lookup.state not in states:
                    raise InvalidInputError(
                        f"cannot look up {lookup.state!r}: no operator has such a state",
                        operation="graph",
                        subject=f"operator {operator.name!r}",
                        hint=f"The states are {sorted(states)}",
                    )

    @classmethod
    def of_one_input(cls, operators: Iterable[OperatorPlan], watermark: WatermarkPlan | None = None) -> Self:
        """Operators side by side over one stream."""
        side_by_side = tuple(operators)
        if not side_by_side:
            return cls()
        name = min(operator.name for operator in side_by_side)
        reading = tuple(replace(operator, sources=(Source("input", name),)) for operator in side_by_side)
        return cls((Input(name=name, watermark=watermark),), reading)

    # -- made of others -------------------------------------------------------------------------------------------

    def alongside(self, other: Graph, same: Mapping[str, str], shared: Collection[str] = ()) -> Merged:
        """Two graphs as one.

        Args:
            other: The other graph.
            same: Inputs of the other graph that are inputs of this one, too: its name there and here.
            shared: The operators that both have in common: they are there once, with the outputs of both.

        Raises:
            InvalidInputError: Two other operators have one name, one stream is asked for different watermarks, or a
                shared operator has two outputs.
        """
        mine = {each.name: each for each in self.inputs}
        for theirs in (each for each in other.inputs if each.name in same):
            watermark = mine[same[theirs.name]].watermark
            if watermark != theirs.watermark:
                raise InvalidInputError(
                    f"expected one watermark for one stream, got {watermark} and {theirs.watermark}",
                    operation="alongside",
                    subject="watermark",
                    hint="Give both KeyedStreams the same watermark and late_data",
                )
        names = {each.name: same.get(each.name, f"+{each.name}") for each in other.inputs}
        added = [replace(each, name=names[each.name]) for each in other.inputs if each.name not in same]
        operators = list(self.operators)
        known = {operator.name: number for number, operator in enumerate(operators)}
        for each in other.operators:
            operator = each._renamed_inputs(names)  # noqa: SLF001 - one module
            if operator.name in shared and operator.name in known:
                number = known[operator.name]
                operators[number] = _with_both_outputs(operators[number], operator)
            else:
                operators.append(operator)
        merged = Graph._named((*self.inputs, *added), operators)
        return Merged(
            merged.graph,
            {name: merged.mine[name] for name in mine},
            {name: merged.mine[between] for name, between in names.items()},
        )

    def with_operator(self, operator: OperatorPlan) -> Merged:
        """The graph with one more operator, which reads what is there."""
        return Graph._named(self.inputs, (*self.operators, operator))

    def with_outputs_of(self, operator: OperatorPlan) -> Graph:
        """The graph with an operator that has other outputs than before."""
        return Graph(self.inputs, tuple(operator if each.name == operator.name else each for each in self.operators))

    @classmethod
    def _named(cls, inputs: Iterable[Input], operators: Iterable[OperatorPlan]) -> Merged:
        """A graph whose inputs are called like what reads them; one that nothing reads yet keeps its name."""
        unnamed = tuple(operators)
        readers: dict[str, list[str]] = {}
        for operator in unnamed:
            for side, source in enumerate(operator.sources):
                if source.kind == "input":
                    readers.setdefault(source.name, []).append(Reader(operator, side).label)
        names = {each.name: min(readers.get(each.name, [each.name])) for each in inputs}
        named = tuple(replace(each, name=names[each.name]) for each in inputs)
        graph = cls(named, tuple(operator._renamed_inputs(names) for operator in unnamed))  # noqa: SLF001 - its own
        return Merged(graph, names)

    # -- asked ----------------------------------------------------------------------------------------------------

    def operator(self, name: str) -> OperatorPlan:
        """The operator of a name; there must be one."""
        return next(operator for operator in self.operators if operator.name == name)

    def find_input(self, name: str) -> Input | None:
        """The input that a record knows by a name: the one of that name, or else the one that is read under it.

        An input gets another name when an operator that comes before in the alphabet begins to read it, too.
        """
        found = {each.name: each for each in self.inputs}
        labels = {reader.label: source.name for source, reader in self._edges() if source.kind == "input"}
        return found.get(name) or found.get(labels.get(name, ""))

    def readers_of(self, kind: str, name: str, side: int = 0) -> list[Reader]:
        """What reads an input, the output of an operator, or its late rows."""
        return [reader for source, reader in self._edges() if source == Source(kind, name, side)]  # type: ignore[arg-type]

    def retracts(self, operator: OperatorPlan) -> bool:
        """Whether an operator is asked for the rows that it takes back."""
        return operator.deletes or (operator.emits == "updates" and bool(self.readers_of("operator", operator.name)))

    def inputs_reaching(self, name: str) -> tuple[Input, ...]:
        """The inputs whose rows reach an operator, directly or through the operators in front of it."""
        reached: set[str] = set()
        for source in self.operator(name).sources:
            if source.kind == "input":
                reached.add(source.name)
            else:
                reached |= {each.name for each in self.inputs_reaching(source.name)}
        return tuple(each for each in self.inputs if each.name in reached)

    @property
    def lookup_roots(self) -> dict[str, Mapping[str, str]]:
        """The other roots that operators look into: the settings of their stores by URL."""
        looked_up = (lookup for operator in self.operators for lookup in operator.lookups.values())
        return {lookup.root: lookup.options for lookup in looked_up if lookup.root is not None}

    def watermark_read_by(self, name: str, side: int = 0) -> WatermarkPlan | None:
        """The watermark of the input whose rows an operator receives as they come; ``None`` without one."""
        sources = self.operator(name).sources
        if side >= len(sources) or sources[side].kind != "input":
            return None
        return next(each.watermark for each in self.inputs if each.name == sources[side].name)

    @property
    def is_direct(self) -> bool:
        """Whether rows may go straight to the operators that read them: there is one input, and nothing joins it.

        Else they are sorted by reader first: see :mod:`stateline.pipeline.dataflow`.
        """
        return len(self.inputs) <= 1 and all(
            len(operator.sources) <= 1 for operator in self.operators if not operator.reads_only("operator", "late")
        )

    @property
    def levels(self) -> tuple[tuple[OperatorPlan, ...], ...]:
        """The operators by level, each in the first one in which everything that it reads is there.

        Level 0 has no operator where rows are sorted by reader.
        """
        first = 0 if self.is_direct else 1
        level: dict[str, int] = {}
        for operator in self.operators:
            behind = [level[source.name] + 1 for source in operator.sources if source.kind != "input"]
            level[operator.name] = max([first, *behind])
        depth = max(level.values(), default=-1) + 1
        return tuple(tuple(each for each in self.operators if level[each.name] == at) for at in range(depth))

    @property
    def edges(self) -> dict[str, list[str]]:
        """What each operator reads, as a record remembers it: inputs without their names, which may change.

        Of operators that only a record describes nothing is known.
        """
        return {
            operator.name: ["input" if source.kind == "input" else str(source) for source in operator.sources]
            for operator in self.operators
            if operator.readings
        }

    def _edges(self) -> Iterator[tuple[Source, Reader]]:
        for operator in self.operators:
            for side, source in enumerate(operator.sources):
                yield source, Reader(operator, side)


@dataclass(frozen=True, slots=True)
class Merged:
    """A graph made of others.

    Attributes:
        graph: The graph.
        mine: The names of the inputs that were there, by the name before.
        theirs: The same for the inputs of the other graph.
    """

    graph: Graph
    mine: Mapping[str, str]
    theirs: Mapping[str, str] = field(default_factory=dict)


def _with_both_outputs(one: OperatorPlan, other: OperatorPlan) -> OperatorPlan:
    """A shared operator with what either graph does with its output."""
    if one._without_outputs() != other._without_outputs():  # noqa: SLF001 - one module
        raise _same_name("operators", one.name)
    both = [(one.output, other.output), (one.table, other.table), (one.delivers or None, other.delivers or None)]
    if any(mine is not None and theirs is not None for mine, theirs in both):
        raise InvalidInputError(
            "cannot have two outputs of one kind, or two tables",
            operation="alongside",
            subject=f"operator {one.name!r}",
            hint="Write its rows once, and read them from there",
        )
    written = one if one.output is not None else other
    return replace(
        one,
        output=written.output,
        output_columns=written.output_columns,
        delivers=one.delivers or other.delivers,
        table=one.table or other.table,
        late_columns={**other.late_columns, **one.late_columns},
    )


def _same_name(what: str, name: str) -> InvalidInputError:
    return InvalidInputError(
        f"two {what} are called {name!r}",
        operation="graph",
        subject=what,
        hint="Give each KeyedStream a name= of its own",
    )


def _unique(what: str, names: Iterable[str]) -> set[str]:
    known: set[str] = set()
    for name in names:
        if name in known:
            raise _same_name(what, name)
        known.add(name)
    return known
