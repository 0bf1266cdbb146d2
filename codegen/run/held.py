"""The PTX of a legal term is held to the term's order.

The judge proves that a term orders each two accesses that conflict.  Whether its PTX does too is
asked of a small instance: the kernel is emitted and run by ``tinygpu.codegen.emulator``, whose
clocks know what happens before what in one run, with copies that land late, early and at random.
A wait, fence, barrier or group that the emitter has lost or moved leaves two accesses in no order,
or a thread that waits for ever, and that is a *finding*; an order that others imply leaves neither.

The instance has about four tiles, all of one cluster if it takes several, and more turns than rings
have stages: each ring wraps.  Terms of one skeleton (``tinygpu.legality.concurrency.erase``), of
the same instructions and emitted in the same way, are run once.

>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.term.operation import matmul
>>> print(held(Simt().program(matmul(), Chosen(LADDER["shared"]))))
its PTX keeps the term's order: run at m, n, k = 49, 49, 81, copies landing late, early, random

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
from tinygpu.codegen.run.interpretation import COMPLETIONS, interpret
from tinygpu.devices.device import ARCHITECTURES, arch_number
from tinygpu.errors import TinyGpuError
from tinygpu.legality.concurrency.erase import erase
from tinygpu.meaning.interpret import edge_of, reduced
from tinygpu.meaning.race import Finding
from tinygpu.term.operation import Problem
from tinygpu.term.plan import Plan, Term, kernels_of
from tinygpu.term.program import Do, Program, walk

__all__ = ["Held", "held", "instance", "least_arch", "orders_of"]

_FAR = 1 << 20
_TILES = 4
_APART = ("name", "operation", "buffers", "parameters", "grid", "roles", "barriers")
"""Fields of a program whose part in its order the skeleton has, or which have none."""


@dataclass(frozen=True, slots=True)
class Held:
    """At which sizes a term's PTX was run; an order that it lacks, or why that is not known."""

    sizes: Mapping[str, int]
    finding: Finding | None = None
    why: str = ""

    def __str__(self) -> str:
        if self.why:
            return f"its PTX is not known to keep the term's order: {self.why}"
        axes, at = ", ".join(self.sizes), ", ".join(map(str, self.sizes.values()))
        if self.finding is not None:
            return f"its PTX does not keep the term's order at {axes} = {at}: {self.finding}"
        orders = ", ".join(COMPLETIONS)
        return f"its PTX keeps the term's order: run at {axes} = {at}, copies landing {orders}"


@dataclass(frozen=True, slots=True)
class _Asked:
    """A term, which is what another one of its skeleton is."""

    skeleton: tuple[Any, ...]
    term: Term = field(compare=False)


def held(term: Term) -> Held:
    """Run the PTX of a legal term at a small instance, once for its skeleton."""
    try:
        skeleton = tuple(map(_skeleton, kernels_of(term)))
    except TinyGpuError as error:
        return Held({}, why=str(error))
    return _held(_Asked(skeleton, term))


def _skeleton(program: Program) -> tuple[Any, ...]:
    """Return what the order of a program's PTX depends on."""
    others = (getattr(program, f.name) for f in fields(program) if f.name not in _APART)
    dos = [s for s, _ in walk(program) if isinstance(s, Do)]
    how = tuple((do.instruction, do.lanes is None, do.where is None) for do in dos)
    return erase(program), how, *others


@lru_cache(1024)
def _held(asked: _Asked) -> Held:
    term, sizes = asked.term, dict[str, int]()
    try:
        arch, sizes = least_arch(term), instance(term)
        faults = orders_of(term, sizes, emit(term, arch, sizes, unchecked=True))
    except TinyGpuError as error:
        return Held(sizes, why=str(error))
    if not faults:
        return Held(sizes)
    first = faults[0]
    if first.kind == "limit":
        return Held(sizes, why=f"it takes too long to be run, {first.message}")
    named = [statement_at(term, arch, sizes, n) for n in (first.line, first.other_line) if n]
    places = " and ".join(f"'{name}'" for name in dict.fromkeys(named) if name)
    text = f"{f'at {places}, ' if places else ''}PTX {first}"
    return Held(sizes, Finding("order", named[0], text))


def orders_of(term: Term, sizes: Mapping[str, int], text: str) -> tuple[Fault, ...]:
    """Return the faults of a PTX text of a term.  Raises ProgramError for PTX that is not run."""
    found = interpret(term, sizes, arch=least_arch(term), text=text, clusters=1).findings
    return tuple(fault for fault in found if fault.severity == "error")


def instance(term: Term) -> dict[str, int]:
    """Return the sizes at which a term's PTX is run."""
    every = dict.fromkeys(term.operation.axes, _FAR)
    sizes = reduced(Problem.of(term.operation, **every), term)
    if isinstance(term, Plan):
        return sizes
    for axis in sizes:
        less = {**sizes, axis: edge_of(term, axis)[0]}
        if _TILES <= prod(term.grid_extents(less)) < prod(term.grid_extents(sizes)):
            sizes = less
    return sizes


def least_arch(term: Term) -> str:
    """Return the oldest architecture that has all of a term's instructions."""
    dos = (s for program in kernels_of(term) for s, _ in walk(program) if isinstance(s, Do))
    return max((ARCHITECTURES[0], *(do.instruction.arch for do in dos)), key=_newest)


def _newest(arch: str) -> tuple[int, bool]:
    return arch_number(arch), arch.endswith("a")
