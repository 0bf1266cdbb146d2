"""The PTX of a legal term is held to the term's order.

The judge proves that a term orders each two accesses that conflict.  Whether its PTX does too is
asked of a small instance: the kernel is emitted and run by ``tinygpu.codegen.emulator``, whose
clocks know what happens before what in one run, with copies that land late and early.
A wait, fence, barrier or group that the emitter has lost or moved leaves two accesses in no order,
or a thread that waits for ever, and that is a *finding*; an order that others imply leaves neither.

An instance has two tiles, or four that one cluster takes in turn, and loops of more turns than
rings have stages, so that each ring wraps; a second one has a turn at most.  Terms of
one skeleton (``tinygpu.legality.concurrency.erase``), of the same instructions and emitted in the
same way, are run once.

>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.term.operation import matmul
>>> print(held(Simt().program(matmul(), Chosen(LADDER["shared"]))))
its PTX keeps the term's order: run at m, n, k = 32, 49, 81 and 32, 32, 32, late, early

Source: ``docs/ptx-interpreter.md``, section "Held to the term".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache
from math import prod
from typing import Any

from tinygpu.codegen.emit import emit, statement_at
from tinygpu.codegen.emulator import Finding as Fault
from tinygpu.codegen.run.interpretation import interpret
from tinygpu.devices.device import ARCHITECTURES, arch_number
from tinygpu.errors import TinyGpuError
from tinygpu.legality.concurrency.erase import erase
from tinygpu.meaning.interpret import edge_of, reduced, tile_of
from tinygpu.meaning.race import Finding
from tinygpu.term.operation import Problem
from tinygpu.term.plan import Plan, Term, kernels_of
from tinygpu.term.program import Do, Program, walk

__all__ = ["HeldCode", "held", "instances", "least_arch", "orders_of"]

_FAR = 1 << 20
_ORDERS = ("late", "early")  # of copies; all that is missed is found by them (orders_held.json)
_IN_TURN, _BESIDE = 4, 2  # tiles: of two copies by turns each has two
_APART = ("name", "operation", "buffers", "parameters", "grid", "roles", "barriers")
"""Fields of a program whose part in its order the skeleton has, or which have none."""


@dataclass(frozen=True, slots=True)
class HeldCode:
    """At which sizes a term's PTX was run; an order that it lacks, or why that is not known."""

    asked: tuple[Mapping[str, int], ...]
    finding: Finding | None = None
    why: str = ""

    def __str__(self) -> str:
        if self.why:
            return f"its PTX is not known to keep the term's order: {self.why}"
        each = [", ".join(map(str, sizes.values())) for sizes in self.asked]
        axes = ", ".join(self.asked[-1])
        if self.finding is not None:
            return f"its PTX does not keep the term's order at {axes} = {each[-1]}: {self.finding}"
        orders = ", ".join(_ORDERS)
        return f"its PTX keeps the term's order: run at {axes} = {' and '.join(each)}, {orders}"


@dataclass(frozen=True, slots=True)
class _OfSkeleton:
    """A term, which is what another one of its skeleton is."""

    skeleton: tuple[Any, ...]
    term: Term = field(compare=False)


def held(term: Term) -> HeldCode:
    """Run the PTX of a legal term at a small instance, once for its skeleton."""
    try:
        skeleton = tuple(map(_skeleton, kernels_of(term)))
    except TinyGpuError as error:
        return HeldCode((), why=str(error))
    return _held(_OfSkeleton(skeleton, term))


def _skeleton(program: Program) -> tuple[Any, ...]:
    """Return what the order of a program's PTX depends on."""
    others = (getattr(program, f.name) for f in fields(program) if f.name not in _APART)
    dos = [s for s, _ in walk(program) if isinstance(s, Do)]
    how = tuple((do.instruction, do.lanes is None, do.where is None) for do in dos)
    return erase(program), how, *others


@lru_cache(1024)
def _held(asked: _OfSkeleton) -> HeldCode:
    term, ran = asked.term, list[Mapping[str, int]]()
    try:
        arch = least_arch(term)
        for sizes in instances(term):
            faults = orders_of(term, sizes, emit(term, arch, sizes, unchecked=True))
            ran.append(sizes)
            if faults:
                return _told(term, arch, tuple(ran), faults[0])
    except TinyGpuError as error:
        return HeldCode(tuple(ran), why=str(error))
    return HeldCode(tuple(ran))


def _told(term: Term, arch: str, ran: tuple[Mapping[str, int], ...], fault: Fault) -> HeldCode:
    """Say which statements' code a fault is about."""
    if fault.kind == "limit":
        return HeldCode(ran, why=f"its PTX takes too long to be run: {fault.message}")
    lines = [line for line in (fault.line, fault.other_line) if line]
    names = dict.fromkeys(statement_at(term, arch, ran[-1], line) for line in lines)
    places = " and ".join(f"'{name}'" for name in names if name)
    text = f"{f'at {places}, ' if places else ''}PTX {fault}"
    return HeldCode(ran, Finding("code_differs", next(iter(names), ""), text))


def orders_of(term: Term, sizes: Mapping[str, int], text: str) -> tuple[Fault, ...]:
    """Return the faults of a PTX text of a term.

    Of warnings those of a fence that is missing, and of a wait that may come too late.  Raises
    ProgramError for PTX that is not run.
    """
    found = interpret(
        term, sizes, arch=least_arch(term), text=text, clusters=1, completions=_ORDERS
    ).findings
    told = ("proxy", "barrier")
    return tuple(one for one in found if one.severity == "error" or one.kind in told)


def instances(term: Term) -> tuple[dict[str, int], ...]:
    """Return the sizes at which a term's PTX is run."""
    every = dict.fromkeys(term.operation.axes, _FAR)
    sizes = reduced(Problem.of(term.operation, **term.operation.in_pages(every)), term)
    if isinstance(term, Plan):
        return (sizes,)
    one = {axis: min(tile_of(term, axis)[0], size) for axis, size in sizes.items()}
    least = _IN_TURN if term.persistent else _BESIDE
    for axis in one:
        less = term.operation.in_pages({**sizes, axis: one[axis]})
        if least <= prod(term.grid_extents(less)) < prod(term.grid_extents(sizes)):
            sizes = less
    if term.tile_values:  # then some tile has no turns
        loops = {axis: edge_of(term, axis)[0] for axis in sizes if tile_of(term, axis)[1]}
        return sizes, term.operation.in_pages({**sizes, **loops})
    return sizes, term.operation.in_pages(one)


def least_arch(term: Term) -> str:
    """Return the oldest architecture that has all of a term's instructions."""
    dos = (s for program in kernels_of(term) for s, _ in walk(program) if isinstance(s, Do))
    return max((ARCHITECTURES[0], *(do.instruction.arch for do in dos)), key=_newest)


def _newest(arch: str) -> tuple[int, bool]:
    return arch_number(arch), arch.endswith("a")
