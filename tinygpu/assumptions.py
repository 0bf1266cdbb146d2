"""Assumptions: what the proof for every number of tiles and trips needs of a program.

The theorems of ``docs/model-concurrency.md`` decide all trip counts from finitely many, if a
program is of the form that they are about.  ``assumptions`` returns what a program lacks of it, an
assumption and a message each; without any the verdict is *legal* or *illegal*, else it may be
*unproved*.  What a Program's constructor checks (names, declarations) needs no assumption.

>>> from tinygpu.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS, Hopper
>>> from tinygpu.operation import matmul
>>> program = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["pingpong"]))
>>> assumptions(program)
()
>>> from tinygpu.expression import Constant, value
>>> fewer = (("trips", Constant(2) - value("k")), *program.parameters[:-1])
>>> for unmet in assumptions(replace(program, parameters=fewer)):
...     print(unmet)
least: trips = (2 - k) may be as small as -2147483645; make it at least 0, as by max(.., 0)

Source: ``docs/model-concurrency.md``, sections "A box decides every trip count", "Every number of
tiles and trips".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from tinygpu.extraction import skeleton_of
from tinygpu.program import Affine, Exit, For, Program, Sync, When, indices_of, walk
from tinygpu.protocol_extraction import is_asynchronous, protocol_of
from tinygpu.protocol_parts import parts
from tinygpu.tile_window import tile_window
from tinygpu.window import Window, window

__all__ = ["ASSUMPTIONS", "Unmet", "assumptions", "of_program", "of_window", "unsigned"]

ASSUMPTIONS: Mapping[str, str] = {
    "least": "States that parameters of loops, guards and indices are never negative.",
    "leaving": "States that of several roles none leaves where a bar.sync may wait for it.",
    "loops": "States that loops of unknown length lie beside one another: in a role at most one "
    "over tiles and in it one over trips, none inside a guard or a loop of constant trips.",
    "guards": "States that guards compare ranks, copies and constant loops, or are a distance to "
    "an end of their loop.",
    "indices": "States that a ring's indices stand still, or move by one coefficient from 1 on.",
    "meetings": "States that no wait or barrier stands under a guard or looks at a later step, and "
    "that a barrier of the CTA or cluster is outside of loops.",
    "wholes": "States that registers that are read later are written whole.",
    "points": "States that few enough trip counts decide all of them.",
}
"""Each assumption of the theorems by its name, in a sentence."""


@dataclass(frozen=True, slots=True)
class Unmet:
    """An assumption that a program does not satisfy: its name, and what in the program it is."""

    law: str
    message: str

    def __str__(self) -> str:
        return f"{self.law}: {self.message}"


def assumptions(program: Program) -> tuple[Unmet, ...]:
    """Return what the theorems assume and the program, whose numbers are ints, does not satisfy."""
    return (*of_program(program), *of_window(_box(program)))


def of_program(program: Program) -> tuple[Unmet, ...]:
    """Return the unmet assumptions that a skeleton or protocol no longer shows."""
    return (*_least(program), *_leaving(program))


def of_window(box: Window) -> tuple[Unmet, ...]:
    """Return the unmet assumption that a box of trip counts tells of."""
    return (Unmet(box.law, box.doubt),) if box.doubt else ()


def unsigned(program: Program) -> tuple[str, ...]:
    """Return the names among those of loops, guards and indices that may be negative."""
    least = program.least_values()
    named = {name for name in _named(program) if name in least}
    return tuple(sorted(name for name in named if not _at_least_0(least[name])))


def _at_least_0(number: object) -> bool:
    """Say whether a number, or each of an array over a space, is at least 0."""
    found = number >= 0  # type: ignore[operator]  # a number or an array
    return bool(found.all()) if hasattr(found, "all") else bool(found)


def _box(program: Program) -> Window:
    """Return the box of the whole; if it is in doubt, and the parts are not, then without doubt."""
    if not is_asynchronous(program):
        return window(skeleton_of(program))
    protocol = protocol_of(program)
    box, _ = tile_window(protocol)
    pieces = parts(protocol)
    if pieces == (protocol,) or any(tile_window(p, observed=True)[0].doubt for p in pieces):
        return box
    return replace(box, doubt="", law="")


def _named(program: Program) -> Iterator[str]:
    """Yield the names that loops, guards and indices mention."""
    for statement, _ in walk(program):
        bounds: tuple[object, ...] = ()
        match statement:
            case For(trips=trips):
                bounds = (trips,)
            case When(bound=bound):
                bounds = (bound,)
            case _:
                pass
        forms: list[Affine] = list(indices_of(statement))
        yield from (b for b in bounds if isinstance(b, str))
        yield from (n for form in forms for term in form.terms for n in term if isinstance(n, str))


def _least(program: Program) -> Iterator[Unmet]:
    least, expressions = program.least_values(), dict(program.parameters)
    for name in unsigned(program):
        text = f"{name} = {expressions[name]} may be as small as {least[name]}"
        yield Unmet("least", f"{text}; make it at least 0, as by max(.., 0)")


def _leaving(program: Program) -> Iterator[Unmet]:
    """Of one role every thread leaves, or the law of barriers sees it."""
    if len(program.roles) < 2:
        return
    syncs = [s for s, _ in walk(program) if isinstance(s, Sync)]
    leaves = [s for s, _ in walk(program) if isinstance(s, Exit)]
    if syncs and leaves:
        text = f"{leaves[0]} removes the threads of a role, and {syncs[0]} may wait for them"
        yield Unmet("leaving", f"{text}; guard their accesses instead")
