"""Schedules: one value chosen for each decision of a machine, and their JSON form.

A schedule is a function from the names of a machine's decisions to values that the decisions
allow, written in the order of declaration, so that equal functions are equal (and hash alike).

>>> from tinygpu.machines.simt import LADDER, Simt
>>> naive = Schedule.of(Simt(), LADDER["naive"])
>>> naive["tile_m"], naive.with_(tile_m=64)["tile_m"]
(32, 64)
>>> naive.with_(tile=64)
Traceback (most recent call last):
    ...
tinygpu.errors.ScheduleError: decision tile: not one of simt's; known are tile_m, tile_n, tile_k, \
thread_m, thread_n, lanes_m, order, a_from, b_from, a_layout, b_layout, pad_a, pad_b, swizzle_a, \
vector_a, vector_b, vector_shared, vector_c, k_step, pipeline, stages, issue, split_k, combine, \
accumulator, edges, guards, raster, addressing, specialised, ctas_per_sm; did you mean tile_n?

Source: ``docs/model.md``, section "Machines".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tinygpu.errors import OperationError, ScheduleError, nearest
from tinygpu.expression import Apply, Constant, Expression, Value
from tinygpu.machine import Chosen, Machine
from tinygpu.machine import Value as Choosable
from tinygpu.operation import Operand, Operation, Problem
from tinygpu.program import Program

__all__ = ["VERSION", "Schedule", "from_json", "to_json"]

VERSION = 1
"""The version of the JSON form: raised when a field changes its meaning."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule: the machine's name and each decision with its value, in order of declaration."""

    machine: str
    decisions: tuple[tuple[str, Choosable], ...]

    @staticmethod
    def of(machine: Machine, values: Mapping[str, Choosable]) -> Schedule:
        """Choose ``values`` for the machine's decisions; ``Choice.before`` for one that is newer.

        Raises ScheduleError for a decision that is unknown or missing, and for an unknown value.
        """
        known = machine.decisions()
        for name in values:
            if name not in known:
                raise _unknown(name, machine.name, known)
        older = {n: c.before for n, c in known.items() if c.before is not None}
        values = {**older, **values}
        for name, choice in known.items():
            if name not in values:
                raise ScheduleError(
                    f"decision {name}: machine {machine.name} needs it; choose one of "
                    f"{', '.join(map(str, choice.values))}"
                )
            if values[name] not in choice.values or isinstance(values[name], bool):
                raise ScheduleError(
                    f"decision {name}: no value {values[name]!r}; "
                    f"{nearest(str(values[name]), choice.values)}"
                )
        return Schedule(machine.name, tuple((name, values[name]) for name in known))

    def with_(self, **changes: Choosable) -> Schedule:
        """Return the schedule with some decisions changed.

        Raises ScheduleError for an unknown decision; ``program`` checks the values.
        """
        mine = dict(self.decisions)
        for name in changes:
            if name not in mine:
                raise _unknown(name, self.machine, mine)
        return Schedule(self.machine, tuple((mine | changes).items()))

    def __getitem__(self, name: str) -> Choosable:
        for decision, value in self.decisions:
            if decision == name:
                return value
        raise _unknown(name, self.machine, dict(self.decisions))

    def chosen(self) -> Chosen:
        """Return the values as attributes, as ``Machine.program`` takes them."""
        return Chosen(dict(self.decisions))

    def program(self, machine: Machine, operation: Operation) -> Program:
        """Build the term.

        Raises ScheduleError if this is no schedule of the machine, OperationError if the machine
        cannot do the operation.
        """
        if machine.name != self.machine:
            raise ScheduleError(
                f"schedule of machine {self.machine}: given machine {machine.name}; "
                f"give {self.machine}"
            )
        machine.check(operation)
        checked = Schedule.of(machine, dict(self.decisions))
        return machine.program(operation, checked.chosen())

    def __str__(self) -> str:
        return f"{self.machine}: " + " ".join(f"{n}={v}" for n, v in self.decisions)


def to_json(schedule: Schedule, problem: Problem) -> str:
    """Write a schedule and the problem it is for, readably."""
    return json.dumps(
        {
            "format": "tinygpu schedule",
            "version": VERSION,
            "machine": schedule.machine,
            "operation": _operation_to_tree(problem.operation),
            "sizes": problem.sizes,
            "decisions": dict(schedule.decisions),
        },
        indent=2,
    )


def from_json(text: str, machines: Mapping[str, Machine]) -> tuple[Machine, Problem, Schedule]:
    """Read what ``to_json`` wrote.

    Raises ScheduleError, in one line, for anything else.
    """
    try:
        tree = json.loads(text)
    except json.JSONDecodeError as error:
        raise ScheduleError(
            f"schedule file: not complete JSON (line {error.lineno}: {error.msg}); "
            "it may be truncated: write it again"
        ) from None
    except RecursionError:
        raise ScheduleError(
            "schedule file: JSON nested too deeply; give a file that tinygpu search wrote"
        ) from None
    if not isinstance(tree, dict) or tree.get("format") != "tinygpu schedule":
        raise ScheduleError(
            'schedule file: no {"format": "tinygpu schedule"} in it; '
            "give a file that tinygpu search or to_json wrote"
        )
    if tree.get("version") != VERSION:
        raise ScheduleError(
            f"schedule file: version {tree.get('version')}; this tinygpu reads version {VERSION}: "
            "search again, or use the tinygpu that wrote it"
        )
    name = str(tree.get("machine"))
    if name not in machines:
        raise ScheduleError(f"schedule file: machine {name}: {nearest(name, machines)}")
    machine = machines[name]
    try:
        operation = _operation_from_tree(tree["operation"])
        problem = Problem(operation, tuple((a, tree["sizes"][a]) for a in operation.axes))
        decisions = dict(tree["decisions"])
        hash(tuple(decisions.values()))
    except OperationError as error:
        raise ScheduleError(f"schedule file: {error}") from None
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise ScheduleError(
            f"schedule file: {type(error).__name__} {error} in operation, sizes or decisions; "
            "a field is missing or of the wrong kind: write the file again"
        ) from None
    try:
        machine.check(operation)
    except OperationError as error:
        raise ScheduleError(f"schedule file: {error}") from None
    return machine, problem, Schedule.of(machine, decisions)


def _unknown(name: str, machine: str, known: Mapping[str, object]) -> ScheduleError:
    return ScheduleError(f"decision {name}: not one of {machine}'s; {nearest(name, known)}")


def _operation_to_tree(operation: Operation) -> dict[str, Any]:
    def operand(o: Operand) -> list[Any]:
        return [o.name, list(o.axes), o.dtype]

    return {
        "name": operation.name,
        "axes": list(operation.axes),
        "inputs": [operand(o) for o in operation.inputs],
        "output": operand(operation.output),
        "combine": _expression_to_tree(operation.combine),
        "reduced": list(operation.reduced),
        "epilogue": _expression_to_tree(operation.epilogue),
        "scalars": list(operation.scalars),
    }


def _operation_from_tree(tree: Any) -> Operation:
    def operand(o: Any) -> Operand:
        name, axes, dtype = o
        return Operand(str(name), tuple(map(str, axes)), str(dtype))

    return Operation(
        name=str(tree["name"]),
        axes=tuple(map(str, tree["axes"])),
        inputs=tuple(operand(o) for o in tree["inputs"]),
        output=operand(tree["output"]),
        combine=_expression_from_tree(tree["combine"]),
        reduced=tuple(map(str, tree["reduced"])),
        epilogue=_expression_from_tree(tree["epilogue"]),
        scalars=tuple(map(str, tree["scalars"])),
    )


def _expression_to_tree(expression: Expression) -> Any:
    """Write a name as a string, a constant as a number, an operator as a list."""
    match expression:
        case Value(name):
            return name
        case Constant(number):
            return number
        case Apply(operator, arguments):
            return [operator, *map(_expression_to_tree, arguments)]
    raise AssertionError(expression)


def _expression_from_tree(tree: Any) -> Expression:
    match tree:
        case str():
            return Value(tree)
        case int() | float():
            return Constant(tree)
        case [str(operator), *arguments]:
            return Apply(operator, tuple(map(_expression_from_tree, arguments)))
    raise ValueError(f"no expression: {tree!r}")
