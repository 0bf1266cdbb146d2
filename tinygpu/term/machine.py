"""Machines: levels, instructions, decisions, and a ``program`` that builds the term.

A machine is written as one writes a PyTorch module: levels, instructions and decisions are class
attributes, and ``forward`` says what the kernel does; ``tinygpu.term.builder`` traces it into a
term.

    class Copy(Machine):
        name = "copy"
        levels = (GMEM, REGISTERS)
        instructions = instructions("ld.global", "st.global")
        threads = Choice(128, 256)
        vector = Choice(1, 2, 4)

        def forward(self, k):
            ...  self.threads, self.vector ... k.load(..), k.store(..)

A machine that overrides ``program`` instead builds the term by itself.

A *numeric* decision enters the program only through arithmetic, so a whole axis of them is scored
at once.  A *structural* one (``structural=True``) may be branched on: it changes which statements
there are.  ``numeric=False`` machines need not care: every decision is then structural.

Source: ``docs/model.md``, section "Machines".
"""

from __future__ import annotations

import copy
import re
import reprlib
import traceback
from abc import ABC
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import and_
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar, cast, overload

from tinygpu.errors import MachineError, OperationError, ScheduleError, nearest
from tinygpu.isa.instruction import Instruction
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.isa.memory import Level
from tinygpu.numbers import Number, Truth
from tinygpu.term.builder import Kernel, trace
from tinygpu.term.operation import ACC, Operation, is_matmul
from tinygpu.term.orders import Orders
from tinygpu.term.plan import Plan, Term, kernels_of
from tinygpu.term.program import (
    Buffer,
    Do,
    Program,
    Statement,
    walk,
)

if TYPE_CHECKING:
    import networkx as nx

    from tinygpu.term.operation import Problem

__all__ = [
    "Choice",
    "Chosen",
    "Machine",
    "Measured",
    "Requirement",
    "Value",
    "arithmetic",
    "instructions",
    "used_instructions",
]

Value = int | str
_V = TypeVar("_V", bound=Value, covariant=True)
_SHOWN = 24  # values of a decision in a line


class Choice(Generic[_V]):
    """A decision: the values that a schedule may choose from, in order.

    ``before``: what schedules chose that were written when there was no such decision.
    ``reorders``: a structural decision whose values are orders of the same statements; laws other
    than the judge's say the same of all.  ``orders`` gives such values when somebody asks for them.
    """

    def __init__(
        self,
        *values: _V,
        structural: bool = False,
        meaning: str = "",
        before: _V | None = None,
        reorders: bool = False,
        orders: Callable[[], Orders] | None = None,
    ) -> None:
        self._given = values
        self.reorders = reorders or orders is not None
        self.structural = structural or self.reorders
        self.meaning = meaning
        self.before = before
        self.orders = orders
        self.name = ""
        if not orders:
            _ = self.values  # what is wrong is said where it is written

    @cached_property
    def values(self) -> tuple[_V, ...]:
        """What a schedule may choose.  Raises MachineError for none, or for equal ones."""
        values = cast("tuple[_V, ...]", self.orders().values) if self.orders else self._given
        if strange := [value for value in values if type(value) not in (int, str)]:
            raise MachineError(
                f"decision with values {values}: {strange[0]!r} is no int and no str"
            )
        if not values or len(set(values)) != len(values):
            raise MachineError(f"decision with values {values}: needs one or more, all different")
        if self.before is not None and self.before not in values:
            raise MachineError(
                f"decision with values {values}: before it was {self.before}, not one"
            )
        return values

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> _V: ...
    def __get__(self, instance: object, owner: type | None = None) -> Self | _V:
        """Return the decision; while ``forward`` is traced its value hides it in the instance."""
        return self

    def require(self, value: object) -> None:
        """Raise ScheduleError for what is none of the values."""
        if type(value) not in (int, str) or value not in self.values:
            raise ScheduleError(
                f"decision {self.name}: no value {reprlib.repr(value)}; "
                f"{nearest(str(value), self.values)}"
            )

    def __repr__(self) -> str:
        return f"{self.name} in {', '.join(map(str, self.values))}"


@dataclass(frozen=True, slots=True)
class Measured:
    """A measured table: a number for each choice of values of some decisions, and its source.

    >>> most = Measured(("ctas", "warps"), {(1, 4): 216, (2, 4): 128}, "ptxas 13.0")
    >>> most.at(Chosen({"ctas": 2, "warps": 4}))
    128
    """

    decisions: tuple[str, ...]
    numbers: Mapping[tuple[Value, ...], int]
    source: str

    def at(self, choose: Chosen) -> Number:
        """Return the number of what is chosen, an int or an array; 0 where nothing is measured."""
        chosen: list[Number] = [getattr(choose, name) for name in self.decisions]
        return sum(
            reduce(and_, (one == value for one, value in zip(chosen, values, strict=True))) * n
            for values, n in self.numbers.items()
        )


class Chosen:
    """What was chosen for each decision, as attributes: values, or arrays of them."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        raise MachineError(f"decision {name}: not chosen; there are {', '.join(self.__dict__)}")


@dataclass(frozen=True, slots=True)
class Requirement:
    """A machine's own law: a name, whether it holds (a bool or an array), a sentence, a mend."""

    name: str
    holds: Truth
    sentence: str
    mend: str


class Machine(ABC):
    """A tiny GPU; see the module's text.

    What operations it can do: their names (``operations``), the types of all operands (``dtypes``)
    or of the output by that of what is multiplied (``outputs``); empty: any.  ``fuses``: that
    there may be an epilogue and a batch; ``several``: and more than one output; ``gates``: that
    a matmul may have a second product.
    """

    name: ClassVar[str]
    entry: ClassVar[str] = ""
    """What its kernels are called; empty: as the machine."""
    levels: ClassVar[tuple[Level, ...]]
    instructions: ClassVar[tuple[Instruction, ...]]
    numeric: ClassVar[bool] = False
    operations: ClassVar[tuple[str, ...]] = ()
    dtypes: ClassVar[tuple[str, ...]] = ()
    outputs: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})
    fuses: ClassVar[bool] = True
    several: ClassVar[bool] = False
    gates: ClassVar[bool] = False
    spread: ClassVar[tuple[str, ...]] = ()
    """Decisions in which schedules differ by more than details: tiles, and not rasters."""
    tied: ClassVar[tuple[str, ...]] = ()
    """Further decisions that make a kernel another one, though the model hardly tells them."""
    in_order: ClassVar[Mapping[str, Value] | None] = None
    """Decisions with which each sum is one chain in the order of k, whatever all others and the
    sizes are: the bits of a result are then the same for every m.  None: it does not say."""

    def forward(self, k: Kernel) -> None:
        """Say what the kernel does, by calls of ``k``; decisions are attributes of ``self``."""
        raise MachineError(f"machine {self.name}: says nothing; write forward(self, k)")

    def chosen(self, choose: Chosen) -> Self:
        """Return the machine with the decisions ``choose.<name>`` as attributes."""
        chosen = copy.copy(self)
        vars(chosen).update({name: getattr(choose, name) for name in self.decisions()})
        return chosen

    def program(self, operation: Operation, choose: Chosen) -> Program:
        """Build the term of ``operation`` under the decisions ``choose.<name>``."""
        return trace(self.entry or self.name, self.chosen(choose).forward, operation)

    def plan(self, operation: Operation, choose: Chosen) -> Plan | None:
        """Build several kernels, if it takes several; else None."""
        return None

    def term(self, operation: Operation, choose: Chosen) -> Term:
        """Build the plan or the term, as ``plan`` or ``program`` does, of its own instructions.

        Raises MachineError for a term that uses an instruction that the machine does not list, or
        another of that name.
        """
        built = self.plan(operation, choose) or self.program(operation, choose)
        if isinstance(built, Program | Plan):
            own = {i.name: i for i in self.instructions}
            seen = {i.completion for i in self.instructions if i.completion.endswith("_group")}
            every = (pair for program in kernels_of(built) for pair in used_instructions(program))
            for name, statement in every:
                if name not in own and name not in seen:
                    raise MachineError(
                        f"machine {self.name}: {statement} needs {name}, none of its instructions "
                        f"{', '.join(sorted(own))}; add it to the machine's instructions"
                    )
                if isinstance(statement, Do) and statement.instruction != own.get(name):
                    raise MachineError(
                        f"machine {self.name}: {statement} is by another {name} than the machine "
                        "lists; name it by= there"
                    )
        return built

    def requires(self, operation: Operation, choose: Chosen) -> tuple[Requirement, ...]:
        """Return the machine's own laws (none by default)."""
        return ()

    def requirements(self, operation: Operation, choose: Chosen) -> tuple[Requirement, ...]:
        """Return what ``requires`` gives.  Raises MachineError where that is no tuple of them."""
        found = self.requires(operation, choose)
        if not isinstance(found, tuple) or not all(isinstance(r, Requirement) for r in found):
            raise MachineError(
                f"machine {self.name}: requires() gave {reprlib.repr(found)}; return a tuple of "
                "Requirements"
            )
        return found

    def check(self, operation: Operation) -> None:
        """Raise OperationError if this machine cannot do the operation."""
        if self.operations and operation.name not in self.operations:
            raise OperationError(
                f"machine {self.name}: operation {operation.name}; "
                f"{nearest(operation.name, self.operations)}"
            )
        if operation.further and not self.several:
            raise OperationError(
                f"machine {self.name}: {operation.name} with {len(operation.outputs)} outputs; it "
                "writes one: leave out the others"
            )
        named = operation.name in ("matmul", "grouped") and operation.name in self.operations
        if named and not is_matmul(operation):
            raise OperationError(
                f"machine {self.name}: {operation} is no matmul; it does matmul(..) of "
                "tinygpu.term.operation, with an epilogue of yours"
            )
        if named and len(operation.reductions) > 1 and not self.gates:
            raise OperationError(
                f"machine {self.name}: {operation.name} with a gate, a second product; choose a "
                "machine that has both sums, as hopper"
            )
        for operand in (*operation.inputs, operation.output) if self.dtypes else ():
            if operand.dtype not in self.dtypes:
                raise OperationError(
                    f"machine {self.name}: {operand}; {nearest(operand.dtype, self.dtypes)}"
                )
        reads = {name for r in operation.reductions for name in r.expression.names()}
        types = sorted({o.dtype for o in operation.inputs if o.name in reads})
        if self.outputs and not (
            len(types) == 1 and operation.output.dtype in self.outputs.get(types[0], ())
        ):
            pairs = (f"{a} to {' or '.join(c)}" for a, c in self.outputs.items())
            other = "" if operation.groups else ", or the machine simt"  # it has no groups
            raise OperationError(
                f"machine {self.name}: {' and '.join(types)} to {operation.output.dtype}; "
                f"it multiplies {', '.join(pairs)}: choose dtype {', '.join(self.outputs)}{other}"
            )
        fused = operation.reductions and operation.epilogue != ACC
        if not self.fuses and (fused or "l" in operation.axes):
            raise OperationError(
                f"machine {self.name}: {operation.name} with a batch or an epilogue "
                f"({operation.epilogue}); choose a machine that fuses, as hopper"
            )

    def check_sizes(self, sizes: Mapping[str, int]) -> None:  # noqa: B027 - most take all sizes
        """Raise OperationError for sizes, by axis, at which no schedule of it can be legal."""

    def worth(self, problem: Problem, sms: int) -> Mapping[str, tuple[Value, ...]]:
        """Return values of structural decisions to which a climb keeps, for a chip with ``sms``.

        They say nothing of what is legal.  All values are tried of a decision that is not named, or
        that is fixed.
        """
        return {}

    def measured(self, problem: Problem) -> tuple[Mapping[str, Value], ...]:
        """Return sets of values that were faster on a card together, where the model hardly tells.

        A climb with a deadline begins with them; where they tie with the model's best, a search by
        measuring takes them for its first.
        """
        return ()

    @classmethod
    def runs_on(cls, arch: str) -> bool:
        """Return whether an architecture has all its instructions."""
        return all(instruction.runs_on(arch) for instruction in cls.instructions)

    @property
    def apart(self) -> tuple[str, ...]:
        """What schedules differ in from which a search by measuring starts.

        That is ``spread``, the orders of the same statements, and what is ``tied``.
        """
        orders = [name for name, choice in self.decisions().items() if choice.orders]
        names = dict.fromkeys((*self.spread, *orders, *self.tied))
        return tuple(names) if self.spread else ()

    @classmethod
    def decisions(cls) -> dict[str, Choice[Value]]:
        """Return the decisions by name, in order of declaration."""
        found: dict[str, Choice[Value]] = {}
        for parent in reversed(cls.__mro__):
            found |= {n: c for n, c in vars(parent).items() if isinstance(c, Choice)}
        return found

    @classmethod
    def graph(cls) -> nx.MultiDiGraph:
        """Return the machine as a graph: levels are nodes, instructions edges between them."""
        import networkx as nx  # a tenth of a second, and only here

        graph = nx.MultiDiGraph(name=cls.name)
        for level in cls.levels:
            graph.add_node(level.name, level=level)
        for instruction in cls.instructions:
            for source in instruction.reads or instruction.writes:
                for target in instruction.writes or instruction.reads:
                    for end in (source, target):
                        if end not in graph:
                            raise MachineError(
                                f"machine {cls.name}: {instruction.name} uses {end}, "
                                f"not one of its levels {', '.join(lv.name for lv in cls.levels)}"
                            )
                    graph.add_edge(source, target, key=instruction.name, instruction=instruction)
        return graph

    def __str__(self) -> str:
        choices = self.decisions().values()
        lines = [f"machine {self.name}", "  levels"]
        lines += [f"    {level}".rstrip() for level in self.levels]
        lines += ["  instructions", *(f"    {i}" for i in self.instructions)]
        lines += ["  decisions (* changes the statements, not only their numbers)"]
        texts = [" ".join(map(str, _few(c.values))) for c in choices]
        width = max(map(len, texts), default=0)
        for c, values in zip(choices, texts, strict=True):
            star = "*" if c.structural else " "
            lines.append(f"   {star}{c.name:14} {values:{width}} {c.meaning}".rstrip())
        return "\n".join(lines)


def _few(values: tuple[Value, ...]) -> tuple[Value, ...]:
    """Return values that a line has room for: of many the first ones, and how many there are."""
    return values if len(values) <= _SHOWN else (*values[:3], f".. ({len(values)})")


def used_instructions(program: Program) -> Iterator[tuple[str, Statement | Buffer]]:
    """Yield the instructions that a term uses, each with a statement or buffer that needs it.

    A group is there for any instruction whose completion it observes.
    """
    yield from ((s.needs, s) for s, _ in walk(program) if s.needs)
    yield from (("tcgen05.alloc", b) for b in program.buffers if b.level == "tmem")


@contextmanager
def arithmetic(machine: Machine) -> Iterator[None]:
    """Say where a numeric machine branches on numbers, which over a space are arrays."""
    try:
        yield
    except (TypeError, ValueError) as error:
        if not re.search("truth value of an array|to a scalar index", str(error)):
            raise
        at = traceback.extract_tb(error.__traceback__)[-1]
        raise MachineError(
            f"machine {machine.name}: {Path(at.filename).name}:{at.lineno}: over a space a numeric "
            "machine computes with arrays: use &, | and select, or declare the decision "
            f"structural=True: {at.line}"
        ) from error


def instructions(*names: str) -> tuple[Instruction, ...]:
    """Return instructions by name.  Raises MachineError for one that is unknown."""
    for name in names:
        if name not in INSTRUCTIONS:
            does = [i.name for i in INSTRUCTIONS.values() if name in i.variants]
            by = f"that is an operator of {' or '.join(does)}" if does else ""
            raise MachineError(f"instruction {name}: {by or nearest(name, INSTRUCTIONS)}")
    return tuple(INSTRUCTIONS[n] for n in names)
