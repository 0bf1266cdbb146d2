"""Mutants of meaning: seeded changes after which a term computes something else.

A mutant is a term with one change of what is read, summed or stored, or the term of another
operation under this one's name.  ``mutants`` makes those of one term; a family that has no place in
a term gives none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tests.hopper_terms import rebuffered, rewritten
from tests.sample import SHARED
from tinygpu.devices.device import load_device
from tinygpu.machines import MACHINES
from tinygpu.space.space import Space
from tinygpu.term.expression import Apply, Constant, Expression, value
from tinygpu.term.operation import (
    ACC,
    ACTIVATIONS,
    Operation,
    Problem,
    elementwise,
    matmul,
    rmsnorm,
    softmax,
)
from tinygpu.term.program import Access, Affine, Do, For, Program, Statement
from tinygpu.term.schedule import Schedule

__all__ = ["FAMILIES", "OPERATIONS", "drawn", "mutants"]

_FUSED = matmul("bf16", layout="nt", scaled=True, bias=True, activation="silu", batched=True)
OPERATIONS: Mapping[str, tuple[tuple[Operation, str], ...]] = {
    "simt": ((matmul(), "h200"), (matmul("f16", layout="tn"), "h200")),
    "ampere": (
        (matmul("bf16", layout="nt"), "a100"),
        (matmul("f16", "f32"), "a100"),
        (matmul("bf16", layout="nt", bias=True, activation="silu"), "a100"),
        (matmul("tf32", layout="nt"), "a100"),
    ),
    "hopper": (
        (matmul("bf16", layout="nt"), "h200"),
        (_FUSED, "h200"),
        (matmul("e4m3", layout="nt", bias=True, activation="gelu"), "h200"),
        (matmul("f16", layout="tn", bias=True, activation="relu"), "h200"),
    ),
    "blackwell": (
        (matmul("bf16", layout="nt"), "b200"),
        (matmul("f16", "f32", "tn", batched=True), "b200"),
        (matmul("tf32", layout="nt"), "b200"),
    ),
    "rows": ((rmsnorm("bf16"), "h200"), (softmax(), "h200")),
    "elementwise": ((elementwise("x * sigmoid(a*x) * z + b"), "h200"),),
}
"""What each machine is asked to compute, and on which device."""

Change = Callable[[Program, np.random.Generator], Program | None]


def drawn(machine: str, seed: int, count: int) -> list[tuple[Schedule, Operation]]:
    """Random legal schedules of a machine, of each of its operations, in turn."""
    random = np.random.default_rng(seed)
    kinds = OPERATIONS[machine]
    found = []
    for number, (operation, device) in enumerate(kinds):
        share = count // len(kinds) + (number < count % len(kinds))
        if not share:
            continue  # nothing is drawn: its space need not be counted
        sizes = dict.fromkeys(operation.axes, 2048)
        fixed = SHARED if machine == "simt" else {}
        problem = Problem.of(operation, **sizes)
        space = Space(MACHINES[machine], problem, load_device(device), fixed=fixed)
        found += [(schedule, operation) for schedule in space.sample(random, share)]
    return found


def mutants(
    schedule: Schedule, operation: Operation, random: np.random.Generator
) -> Iterator[tuple[str, Program]]:
    """Each mutant of a schedule's term, with its family."""
    machine = MACHINES[schedule.machine]
    program = schedule.program(machine, operation)
    for name, change in FAMILIES.items():
        mutant = change(program, random)
        if mutant is not None and mutant != program:
            yield name, mutant
    if operation.epilogue == ACC or operation.name != "matmul":
        return
    for name, epilogue in _epilogues(operation).items():
        other = replace(operation, epilogue=epilogue)
        yield name, replace(schedule.program(machine, other), operation=operation)


# How values are read, summed and stored


def _read(program: Program, name: str, change: Callable[[Access], Access]) -> Program:
    def statement(s: Statement) -> Statement:
        if not isinstance(s, Do):
            return s
        reads = (
            change(r) if isinstance(r, Access) and r.buffer.name == name else r for r in s.reads
        )
        return replace(s, reads=tuple(reads))

    return rewritten(program, statement)


def _factor(program: Program, random: np.random.Generator) -> str:
    """One of the inputs that are multiplied."""
    reads = [*program.operation.reductions[0].expression.names()]
    names = [o.name for o in program.operation.inputs if o.name in reads]
    return names[int(random.integers(len(names)))]


def _along(program: Program, name: str) -> int | None:
    """The dimension of an operand along which is summed."""
    axes, (acc,) = program.operation.operand(name).axes, program.operation.reductions
    return next((d for d, axis in enumerate(axes) if axis in acc.over), None)


def _moved(program: Program, name: str, d: int, change: Callable[[Affine], Affine]) -> Program:
    def access(a: Access) -> Access:
        origin = tuple(change(o) if i == d else o for i, o in enumerate(a.origin))
        return replace(a, origin=origin)

    return _read(program, name, access)


def _matmul(change: Change) -> Change:
    def only(program: Program, random: np.random.Generator) -> Program | None:
        return change(program, random) if program.operation.name == "matmul" else None

    return only


def _scaled(by: int) -> Change:
    def change(program: Program, random: np.random.Generator) -> Program | None:
        name = _factor(program, random)
        d = _along(program, name)
        assert d is not None

        def wider(o: Affine) -> Affine:
            return Affine(
                o.constant, tuple((v, c * by if isinstance(c, int) else c) for v, c in o.terms)
            )

        return _moved(program, name, d, wider)

    return change


def _shifted(program: Program, random: np.random.Generator) -> Program | None:
    name = _factor(program, random)
    d = int(random.integers(len(program.operation.operand(name).axes)))
    return _moved(program, name, d, lambda o: o + int(random.integers(1, 9)))


def _fewer(program: Program, random: np.random.Generator) -> Program | None:
    known = dict(program.parameters)
    if "trips" not in known:
        return None

    def half(expression: Expression) -> Expression:
        if isinstance(expression, Apply):
            return replace(expression, arguments=tuple(map(half, expression.arguments)))
        return expression.ceildiv(2) if expression == value("k") else expression

    trips = half(known["trips"])
    return replace(program, parameters=tuple((known | {"trips": trips}).items()))


def _late(program: Program, random: np.random.Generator) -> Program | None:
    return rewritten(
        program, lambda s: replace(s, start=1) if isinstance(s, For) and s.trips == "trips" else s
    )


def _other(program: Program, random: np.random.Generator) -> Program | None:
    name = _factor(program, random)
    other = next(n for n in program.operation.reductions[0].expression.names() if n != name)
    by_name = {b.name: b for b in program.buffers}
    return _read(program, name, lambda a: replace(a, buffer=by_name[other]))


def _turned(program: Program, random: np.random.Generator) -> Program | None:
    if "l" in program.operation.axes:
        return None

    def access(a: Access) -> Access:
        return replace(
            a,
            value=tuple(v[::-1] for v in a.value),
            thread=tuple(t[::-1] for t in a.thread),
            origin=a.origin[::-1],
        )

    return _read(program, _factor(program, random), access)


def _strides(program: Program, random: np.random.Generator) -> Program | None:
    name = _factor(program, random)
    (one,) = (b for b in program.buffers if b.name == name)
    return rebuffered(program, name, stride=one.stride[::-1])


def _pitch(program: Program, random: np.random.Generator) -> Program | None:
    operand = program.operation.operand(_factor(program, random))
    wrong = next(a for a in ("m", "n", "k") if a not in operand.axes)
    known = dict(program.parameters) | {f"ld_{operand.name}": value(wrong)}
    return replace(program, parameters=tuple(known.items()))


def _part(program: Program, random: np.random.Generator) -> Program | None:
    """The last part of a sum that CTAs share."""
    grid = tuple(
        replace(a, extent=Constant(int(a.extent.number) - 1))
        if a.var == "bz" and isinstance(a.extent, Constant) and a.extent.number > 1
        else a
        for a in program.grid
    )
    return replace(program, grid=grid)


def _bias(program: Program, random: np.random.Generator) -> Program | None:
    other = {"bc": "br", "br": "bc", "bn": "bm", "bm": "bn"}
    if "bias" not in [o.name for o in program.operation.inputs]:
        return None
    return _moved(
        program,
        "bias",
        0,
        lambda o: Affine(o.constant, tuple((other.get(v, v), c) for v, c in o.terms)),
    )


def _combined(expression: Expression) -> Change:
    def change(program: Program, random: np.random.Generator) -> Program | None:
        (acc,) = program.operation.reductions
        other = replace(program.operation, reductions=(replace(acc, expression=expression),))
        return replace(program, operation=other)

    return change


FAMILIES: Mapping[str, Change] = {
    "steps of k dropped": _matmul(_fewer),
    "the first step dropped": _matmul(_late),
    "steps of k doubled": _matmul(_scaled(2)),
    "a read shifted": _matmul(_shifted),
    "the other operand": _matmul(_other),
    "a transposed read": _matmul(_turned),
    "strides exchanged": _matmul(_strides),
    "the pitch of another axis": _matmul(_pitch),
    "a part of k missing": _matmul(_part),
    "a bias along the other axis": _matmul(_bias),
    "a sum, not a product": _matmul(_combined(value("a") + value("b"))),
    "one operand alone": _matmul(_combined(value("a"))),
}
"""Changes of a term by family; each returns None, or the term as it was, where it has no place."""


def _epilogues(operation: Operation) -> dict[str, Expression]:
    """Other ends of a matmul, each under the name of its family."""
    alpha, beta, d, bias = (value(n) for n in ("alpha", "beta", "d", "bias"))
    names = {o.name for o in operation.inputs}
    found: dict[str, Expression] = {}
    linear: Expression = ACC
    if "d" in names:
        linear = alpha * ACC + beta * d
    whole = linear + bias if "bias" in names else linear
    kind = next((n for n, f in ACTIVATIONS.items() if f(whole) == operation.epilogue), "")
    end: Any = ACTIVATIONS[kind] if kind else lambda x: x
    if "bias" in names:
        found["the bias dropped"] = end(linear)
    if "d" in names:
        exchanged, twice = beta * ACC + alpha * d, alpha * ACC + beta * (beta * d)
        if "bias" in names:
            exchanged, twice = exchanged + bias, twice + bias
        found["alpha and beta exchanged"], found["beta twice"] = end(exchanged), end(twice)
    if kind:
        found["another activation"] = ACTIVATIONS["gelu" if kind != "gelu" else "silu"](whole)
    if kind == "silu":
        found["silu's constant off"] = _off(end(whole))
    return found


def _off(expression: Expression) -> Expression:
    """The first constant that is no power of 2, changed in its sixth digit."""
    done = False

    def of(e: Expression) -> Expression:
        nonlocal done
        if isinstance(e, Constant) and not done and abs(np.frexp(e.number)[0]) != 0.5:
            done = True
            return Constant(e.number * (1 + 1e-6))
        return replace(e, arguments=tuple(map(of, e.arguments))) if isinstance(e, Apply) else e

    return of(expression)
