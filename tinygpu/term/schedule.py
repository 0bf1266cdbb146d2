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
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tinygpu.document import Fields, Json, document, fields_of, shown
from tinygpu.errors import (
    DocumentError,
    MachineError,
    ScheduleError,
    TinyGpuError,
    nearest,
    require_kind,
)
from tinygpu.term.expression import DEEPEST, Apply, Constant, Expression, Index, Value
from tinygpu.term.machine import Chosen, Machine
from tinygpu.term.machine import Value as Choosable
from tinygpu.term.operation import Groups, Operand, Operation, Problem, Reduction
from tinygpu.term.pages import Lengths, Pages
from tinygpu.term.plan import Term, one_kernel
from tinygpu.term.program import Program

__all__ = ["VERSION", "Schedule", "device_in", "from_json", "to_json"]

VERSION = 1
"""The version of the JSON form: raised when a field changes its meaning."""

_FILE = {"machine": str, "operation": dict, "sizes": dict, "decisions": dict}
_DEVICE = {"device": str}
_OPERATION = {
    "name": str, "axes": list, "inputs": list, "output": list,
    "reductions": list, "epilogue": None, "scalars": list,
}  # fmt: skip
_FURTHER = {"further": list, "groups": list, "pages": list, "lengths": list}
_OLD = {**_OPERATION, "combine": None, "reduced": list}
del _OLD["reductions"]
_BEFORE = {"before": list}


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule: the machine's name and each decision with its value, in order of declaration."""

    machine: str
    decisions: tuple[tuple[str, Choosable], ...]

    def __post_init__(self) -> None:
        require_kind("schedule: machine", self.machine, str, ScheduleError)
        require_kind("schedule: decisions", self.decisions, tuple, ScheduleError)

    @staticmethod
    def of(machine: Machine, values: Mapping[str, Choosable]) -> Schedule:
        """Choose ``values`` for the machine's decisions; ``Choice.before`` for one that is newer.

        Raises ScheduleError for a decision that is unknown or missing, and for an unknown value.
        """
        require_kind("schedule: machine", machine, Machine, MachineError)
        require_kind("schedule: decisions", values, Mapping, ScheduleError)
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
            choice.require(values[name])
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
        """Build the term of one kernel.

        Raises what ``term`` raises, and ProgramError for a plan of several.
        """
        return one_kernel(self.term(machine, operation))

    def term(self, machine: Machine, operation: Operation) -> Term:
        """Build the term, or a plan of several.

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
        return machine.term(operation, checked.chosen())

    def __str__(self) -> str:
        return f"{self.machine}: " + " ".join(f"{n}={v}" for n, v in self.decisions)


def to_json(schedule: Schedule, problem: Problem, *, device: str = "") -> str:
    """Write a schedule, the problem and the name of the device it is for, readably."""
    return json.dumps(
        {
            "format": "tinygpu schedule",
            "version": VERSION,
            "machine": schedule.machine,
            **({"device": device} if device else {}),
            "operation": _operation_to_tree(problem.operation),
            "sizes": problem.sizes,
            "decisions": dict(schedule.decisions),
        },
        indent=2,
    )


def device_in(text: str) -> str:
    """Return the name of the device in what ``to_json`` wrote, or "" if there is none."""
    return str(document(text, "tinygpu schedule", VERSION, _FILE, _DEVICE).get("device", ""))


def from_json(text: str, machines: Mapping[str, Machine]) -> tuple[Machine, Problem, Schedule]:
    """Read what ``to_json`` wrote.

    Raises ScheduleError, in one line, for anything else.
    """
    try:
        tree = document(text, "tinygpu schedule", VERSION, _FILE, _DEVICE)
        name = tree["machine"]
        if name not in machines:
            raise ScheduleError(
                f"machine {name}: {nearest(name, machines)}; for one of your own give "
                "--machine FILE.py:Class"
            )
        machine = machines[name]
        operation = _operation_from_tree(tree["operation"])
        machine.check(operation)
        problem = Problem.of(operation, **tree["sizes"])
        return machine, problem, Schedule.of(machine, tree["decisions"])
    except TinyGpuError as error:
        raise ScheduleError(f"schedule file: {error}") from None


def _unknown(name: str, machine: str, known: Mapping[str, object]) -> ScheduleError:
    return ScheduleError(f"decision {name}: not one of {machine}'s; {nearest(name, known)}")


def _operation_to_tree(operation: Operation) -> dict[str, Json]:
    def operand(o: Operand) -> Json:
        return [o.name, list(o.axes), o.dtype]

    def reduction(r: Reduction) -> Json:
        return [r.name, r.operator, _expression_to_tree(r.expression), list(r.over)]

    further = [[operand(o), _expression_to_tree(e)] for o, e in operation.further]
    groups = operation.groups
    return {
        "name": operation.name,
        "axes": list(operation.axes),
        "inputs": [operand(o) for o in operation.inputs],
        "output": operand(operation.output),
        "reductions": list(map(reduction, operation.reductions)),
        "epilogue": _expression_to_tree(operation.epilogue),
        "scalars": list(operation.scalars),
        **({"further": further} if further else {}),
        **({"groups": [groups.axis, groups.rows, groups.ends]} if groups else {}),
        **({"pages": [pages.axis, pages.rows, pages.size, pages.table, *pages.inputs]}
           if (pages := operation.pages) else {}),
        **({"lengths": [long.axis, long.rows, long.name]} if (long := operation.lengths) else {}),
    }  # fmt: skip


def _operation_from_tree(tree: object) -> Operation:
    if isinstance(tree, dict) and "combine" in tree:
        tree = _renewed(fields_of(tree, "operation", _OLD, _BEFORE))
    parts = fields_of(tree, "operation", _OPERATION, _FURTHER)

    def names(listed: object, what: str) -> tuple[str, ...]:
        if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
            raise DocumentError(f"operation: {what} are {shown(listed)}; give a list of names")
        return tuple(listed)

    def operand(o: object) -> Operand:
        match o:
            case [str(name), axes, str(dtype)]:
                return Operand(name, names(axes, f"axes of {name}"), dtype)
        raise DocumentError(f"operation: operand {shown(o)}; give [name, [axes], type]")

    def reduction(r: object) -> Reduction:
        match r:
            case [str(name), str(operator), expression, over]:
                made = _expression_from_tree(expression)
                return Reduction(name, operator, made, names(over, f"reduced axes of {name}"))
        raise DocumentError(
            f"operation: reduction {shown(r)}; give [name, operator, expression, [axes]]"
        )

    def result(pair: object) -> tuple[Operand, Expression]:
        match pair:
            case [output, epilogue]:
                return operand(output), _expression_from_tree(epilogue)
        raise DocumentError(f"operation: output {shown(pair)}; give [[name, [axes], type], end]")

    groups = names(parts.get("groups", []), "groups")
    if len(groups) not in (0, 3):
        raise DocumentError(f"operation: groups {shown([*groups])}; give [axis, rows, ends]")
    long = names(parts.get("lengths", []), "lengths")
    if len(long) not in (0, 3):
        raise DocumentError(f"operation: lengths {shown([*long])}; give [axis, rows, lengths]")

    def pages(listed: Any) -> Pages | None:
        match listed:
            case []:
                return None
            case [str(axis), str(rows), int(size), str(table), *inputs]:
                return Pages(axis, rows, size, table, names(inputs, "inputs in pages"))
        text = "give [axis, rows, size, table, input, ..]"
        raise DocumentError(f"operation: pages {shown(listed)}; {text}")

    operation = Operation(
        name=parts["name"],
        axes=names(parts["axes"], "axes"),
        inputs=tuple(map(operand, parts["inputs"])),
        output=operand(parts["output"]),
        reductions=tuple(map(reduction, parts["reductions"])),
        epilogue=_expression_from_tree(parts["epilogue"]),
        scalars=names(parts["scalars"], "scalars"),
        further=tuple(map(result, parts.get("further", ()))),
        groups=Groups(*groups) if groups else None,
        pages=pages(parts.get("pages", [])),
        lengths=Lengths(*long) if long else None,
    )
    ends = (epilogue for _, epilogue in operation.results)
    every = (*(r.expression for r in operation.reductions), *ends)
    read = {name for expression in every for name in expression.names()}
    for scalar in operation.scalars:
        if scalar not in read:
            raise DocumentError(f"operation: scalar {scalar} is in no expression; leave it out")
    return operation


def _renewed(old: Fields) -> dict[str, Json]:
    """Return an operation as it is written now.

    It was written with ``combine``, which the sum acc over ``reduced`` axes was of, and reductions
    ``before`` it over the same axes; without ``reduced`` axes acc was ``combine``.
    """
    combine, over, before = (old.pop(n, ()) for n in ("combine", "reduced", "before"))

    def put(tree: Json) -> Json:
        if isinstance(tree, list):
            return [tree[0], *map(put, tree[1:])] if tree else tree
        return combine if tree == "acc" else tree

    if not over:
        return {**old, "reductions": list(before), "epilogue": put(old["epilogue"])}
    sums = [*before, ["acc", "add", combine]]
    listed = [[*r, over] if isinstance(r, list) else r for r in sums]
    return {**old, "reductions": listed}


def _expression_to_tree(expression: Expression) -> Json:
    """Write a name as a string, a constant as a number, an operator as a list."""
    match expression:
        case Value(name):
            return name
        case Constant(number) if number == -math.inf:
            return ["-inf"]
        case Constant(number):
            return number
        case Index(axis):
            return ["index", axis]
        case Apply(operator, arguments):
            return [operator, *map(_expression_to_tree, arguments)]
    raise AssertionError(expression)


def _expression_from_tree(tree: object, depth: int = 0) -> Expression:
    match tree:
        case _ if depth > DEEPEST:
            raise DocumentError(f"operation: an expression of more than {DEEPEST} levels")
        case str():
            return Value(tree)
        case int() | float() if not isinstance(tree, bool):
            return Constant(tree)
        case ["-inf"]:
            return Constant(-math.inf)
        case ["index", str(axis)]:
            return Index(axis)
        case [str(operator), *arguments]:
            return Apply(operator, tuple(_expression_from_tree(a, depth + 1) for a in arguments))
    raise DocumentError(
        f"operation: {shown(tree)} is no expression; give a name, a number or [operator, ..]"
    )
