"""The code of a user's instruction is compared with its meaning.

The package's rules are tested against the interpreter once and for all; a user's ``lower`` is not.
So a term with one is emitted, its PTX is run by ``tinygpu.codegen.emulator``, copies landing late,
early and at random, and its output is compared with the interpreter's.  Inputs are normal;
in every second line a quarter are zeros, ones and large and small numbers, and of three lines two
have one sign.  Code that differs, or in which something is found, is a *finding*; what the emulator
does not know makes an answer *unproved*.

An element may differ by twice what ``tinygpu/meaning/tolerance.py`` allows, once for each side.
What shows at other sizes, inputs or orders alone is not found; ``laws`` are taken at their word.

>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.term.operation import matmul
>>> differences(Simt().program(matmul(), Chosen(LADDER["shared"])), {"m": 8, "n": 8, "k": 8})
((), '')

Source: ``docs/tutorial/instruction.md``; fork(2).
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from tinygpu.cores import cores
from tinygpu.errors import IllegalScheduleError, ProgramError
from tinygpu.isa.memory import DTYPES
from tinygpu.meaning import identity, interpret
from tinygpu.meaning.identity import Meaning, unlaunched
from tinygpu.meaning.inputs import drawn_indices, with_pool
from tinygpu.meaning.race import Finding
from tinygpu.meaning.tolerance import ratio_of
from tinygpu.term.plan import Term, steps_of
from tinygpu.term.program import Do, Program, walk

__all__ = [
    "check", "computed", "computes", "computes_as_emitted", "differences", "require_computes",
]  # fmt: skip

_SCALAR = 0.5
_SPECIAL = (0.0, -0.0, 1.0, -1.0, 2.0**-6, -(2.0**-6), 240.0, -240.0)  # numbers of every type
_OFTEN = 0.25
_BOTH = 2.0  # the code may be off by what is allowed, and so may the interpreter


def check(
    term: Term, sizes: Mapping[str, int], *, seeds: tuple[int, ...] = (0, 1, 2)
) -> tuple[Finding, ...]:
    """Interpret on normal inputs (scalars 0.5) at each seed; return the first finding of each kind.

    Seeds s and s + 1 differ in who runs first and when copies land; three of them have all of each.
    Of a term of which nothing is found, the code of a user's instructions is compared too.
    """
    found = interpret.check(term, sizes, seeds=seeds)
    for program, own in () if found else steps_of(term, sizes):
        found = found or differences(program, own)[0]
    return found


def computes(term: Term, sizes: Mapping[str, int] | None = None) -> Meaning:
    """Ask a legal term at ``sizes``, or at its ``instances``.

    The code of a user's instructions is compared with their meaning at the last sizes.  Raises
    ProgramError for a term that is malformed, OperationError for sizes that are not the
    operation's.
    """
    found = identity.computes(term, sizes)
    if found.finding is not None or not found.asked:
        return found
    for program, own in steps_of(term, found.asked[-1]):
        differs, why = differences(program, own)
        if differs:
            return replace(found, finding=differs[0])
        found = replace(found, unproved=why or found.unproved)
    return found


_programs: Sequence[Term] = ()
"""In a copy: what it is asked about."""


def computed(programs: Sequence[Term]) -> Iterator[Meaning]:
    """Yield what each program computes, in order.  Raises what ``computes`` does.

    All cores are asked, each a copy of this process: nothing is loaded or sent.  Programs that
    differ in how they are launched alone are asked once.
    """
    alike = [unlaunched(program) for program in programs]
    once = dict.fromkeys(alike)
    many = min(cores(), len(once)) if hasattr(os, "fork") else 1
    if many == 1:
        yield from map(computes, programs)
        return
    left = iter(once)
    with multiprocessing.get_context("fork").Pool(many, _begin, (tuple(once),)) as pool:
        asked = pool.imap(_asked, range(len(once)))
        known = {}
        for program, one in zip(programs, alike, strict=True):
            while one not in known:
                known[next(left)] = next(asked)
            found = known[one]
            yield computes(program) if found is None else Meaning(program=program, **found)


def _begin(programs: Sequence[Term]) -> None:
    """Keep the programs; Ctrl-C is for the first process, which ends its copies."""
    global _programs
    _programs = programs
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _asked(number: int) -> dict[str, Any] | None:
    """Return what was found but for the program, or None where the first process has to ask.

    There an error has its traceback, which tells whose code it is.
    """
    try:
        found = computes(_programs[number])
    except Exception:
        return None
    return {f.name: getattr(found, f.name) for f in fields(found) if f.name != "program"}


def computes_as_emitted(term: Term) -> Meaning:
    """Return what ``computes`` found, or the order of the term that its PTX lacks (``held``)."""
    from tinygpu.codegen.run.held import held

    found = computes(term)
    if found.wrong or (kept := held(term)).finding is None:
        return found
    return replace(found, asked=(*found.asked, kept.asked[-1]), finding=kept.finding)


def require_computes(term: Term) -> Meaning:
    """Return what ``computes_as_emitted`` found of a legal term.

    Raises IllegalScheduleError if it does not compute its operation, or its PTX does not.
    """
    found = computes_as_emitted(term)
    if found.wrong:
        raise IllegalScheduleError(
            f"computes: {term.name} {found}; let the term compute {term.operation}"
        )
    return found


def differences(program: Program, sizes: Mapping[str, int]) -> tuple[tuple[Finding, ...], str]:
    """Return where code and meaning differ, the first element; and why they are not compared.

    There is nothing to compare in a term whose instructions are all lowered by the package.
    """
    brought = (s for s, _ in walk(program) if isinstance(s, Do) and s.instruction.lower is not None)
    first = next(brought, None)
    return ((), "") if first is None else _differences(program, first, tuple(sizes.items()))


@lru_cache(256)
def _differences(
    program: Program, first: Do, at: tuple[tuple[str, int], ...]
) -> tuple[tuple[Finding, ...], str]:
    """Compare; ``first`` is a statement that a user's ``lower`` emits."""
    from tinygpu.codegen.emit import emit  # what other terms do not need
    from tinygpu.codegen.emulator import Module
    from tinygpu.codegen.run.held import least_arch
    from tinygpu.codegen.run.interpretation import COMPLETIONS, execute, unwritten_outputs

    operation, sizes, random = program.operation, dict(at), np.random.default_rng(0)
    brought = [s for s, _ in walk(program) if isinstance(s, Do) and s.instruction.lower]
    names = ", ".join(sorted({s.instruction.name for s in brought}))
    pool = with_pool(operation, sizes)
    shapes, inputs = operation.shapes(pool), dict[str, Any]()
    for operand in operation.inputs:
        normal = random.standard_normal(shapes[operand.name])
        special = random.choice(_SPECIAL, normal.shape)
        line = np.arange(prod(normal.shape[:-1])).reshape(*normal.shape[:-1], 1)
        often = np.where(line % 2 == 0, _OFTEN, 0.0)
        mixed = np.where(random.random(normal.shape) < often, special, normal)
        sign = np.choose(line % 3, (0.0, -1.0, 1.0))  # 0: of either
        mixed = np.where(sign == 0, mixed, sign * abs(mixed))
        inputs[operand.name] = DTYPES[operand.dtype].round(mixed)
    inputs |= drawn_indices(operation, pool, random.standard_normal)
    exact = {name: values.astype(np.float64) for name, values in inputs.items()}
    scalars = dict.fromkeys(operation.scalars, _SCALAR)
    meant = interpret.interpret(program, sizes, exact, scalars=scalars).outputs
    with np.errstate(all="ignore"):
        reference = {**operation.reference(exact, scalars), **meant}
    arch = least_arch(program)
    try:
        text = emit(program, arch, sizes, unchecked=True)
    except ProgramError as error:
        return (_finding(first, f"it has no code: {error}"),), ""
    for completion in COMPLETIONS:
        outputs = unwritten_outputs(program, shapes)
        arrays = inputs | outputs
        try:
            report = execute(program, sizes, arrays, Module.parse(text), scalars=scalars,
                             completion=completion)  # fmt: skip
        except ProgramError as error:
            return (), f"code of {names} is not compared with its meaning: {error}"
        wrong = [f for f in report.findings if f.severity == "error"]
        if wrong:
            return (_finding(first, f"in its code, copies landing {completion}: {wrong[0]}"),), ""
        ratios = ratio_of(program, exact, scalars, outputs=outputs, reference=reference)
        for name, off in ratios.items():
            strange = np.isnan(meant[name].astype(np.float64)) | np.isnan(off)
            ratio = np.where(strange, 0.0, off)
            if ratio.max() <= _BOTH:
                continue
            place = np.unravel_index(int(ratio.argmax()), ratio.shape)
            cell = f"{name}[{', '.join(str(int(p)) for p in place)}]"
            got, want = (float(x[name][place]) for x in (outputs, meant))
            text = (
                f"{cell} is {got:.6g} by its code and {want:.6g} by its meaning, copies landing "
                f"{completion}; mend lower, meaning or completion of {names}"
                + f" (the first of {len(brought)} such statements is named)"
                * (len(brought) > 1)
            )
            return (_finding(first, text, cell),), ""
    return (), ""


def _finding(first: Do, text: str, cell: str = "") -> Finding:
    return Finding("code_differs", str(first), f"{first}: {text}", cell=cell)
