"""Edits in numbers: pairs of edits of right protocols, and edits of certificates.

Whoever asks gives ``pick``, which returns a number from 0 to below the given one: a test draws it
by Hypothesis, ``benchmarks.certified_edits`` by a seed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from tests.ampere_terms import term as ampere
from tests.async_mutants import Edit, changes, moves
from tests.async_protocols import TILE, by_hand, store_ring
from tests.blackwell_mutants import tensor_changes
from tests.blackwell_terms import put_back
from tests.blackwell_terms import small as blackwell
from tests.hopper_terms import rewritten
from tests.hopper_terms import term as hopper
from tests.hostile_attention import base as attention
from tests.test_named_barriers import SIZES, turns
from tests.test_term_text import term as preset
from tinygpu.checker.make import certified
from tinygpu.checker.outcome import Ruling
from tinygpu.checker.protocol import Protocol
from tinygpu.checker.written import verified, written
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.meaning.interpret import Finding, check
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import grouped_matmul
from tinygpu.term.program import Fence, Program, Statement, Sync, Wait
from tinygpu.term.text import key_of, text_of

__all__ = [
    "Edited", "Right", "Wrong", "edited_certificate", "edited_pair", "edits_of", "faults_of",
    "grouped", "of_order", "protocols", "ruling", "wrong",
]  # fmt: skip

Pick = Callable[[int], int]
_ORDER = {"race", "deadlock", "stale", "unwritten_read", "unwaited", "unfenced", "unbalanced"}
_ORDER |= {"exited"}


def ruling(program: Program) -> Ruling:
    """What the checker says of the best certificate that is found, which it reads as a file."""
    certificate, why = certified(program)
    return why if certificate is None else verified(program, written(program, certificate))


# Terms


@dataclass(frozen=True)
class Right:
    """A right term, and the sizes at which its edits are interpreted."""

    term: Program
    sizes: tuple[dict[str, int], ...]


@dataclass(frozen=True)
class Edited:
    """A term after two edits, and of which protocol."""

    number: int
    names: tuple[str, str]
    term: Program


@cache
def protocols() -> tuple[Right, ...]:
    """Return the protocols by hand, two warps that take turns, and small terms of machines."""
    trips = tuple({"i": TILE * n} for n in (1, 2, 3, 5))
    return (
        *(Right(p, trips) for p in by_hand()),
        Right(turns(), (SIZES, {"i": TILE}, {"i": 2 * TILE})),
        Right(hopper("ring", stages=2), ({"m": 128, "n": 128, "k": 192},)),
        Right(ampere("ring"), ({"m": 128, "n": 128, "k": 96},)),
        Right(grouped(), ({"g": 3, "m": 300, "n": 40, "k": 136},)),
        Right(attention(), ({"l": 1, "h": 1, "g": 1, "m": 140, "n": 221, "d": 64, "e": 64},)),
        *(Right(blackwell(p), ({"m": 392, "n": 72, "k": 200},)) for p in ("persistent", "pair")),
        Right(blackwell("a in tmem"), ({"m": 392, "n": 72, "k": 200},)),
        Right(put_back("persistent"), ({"m": 392, "n": 72, "k": 200},)),
    )


def grouped(columns: int = 32) -> Program:
    """A term of groups with small tiles, of which some have no trips."""
    small = {"tile_m": 128, "tile_n": columns, "store_n": 16, "stages": 2}
    return Hopper().program(grouped_matmul(), Chosen({**STARTS["persistent"], **small}))


def edits_of(program: Program) -> list[Edit]:
    """Return a term's edits, each with how to make it: drop, double, move, shift, count."""
    tensor = tensor_changes(program) if program.in_tmem else ()
    return [*changes(program), *moves(program), *tensor]


@cache
def _once(number: int) -> list[Edit]:
    return edits_of(protocols()[number].term)


def edited_pair(pick: Pick, number: int) -> Edited:
    """Return a protocol after two edits."""
    once = _once(number)
    first, make = once[pick(len(once))]
    twice = edits_of(make())
    second, make = twice[pick(len(twice))]
    return Edited(number, (first, second), make())


def of_order(findings: Iterable[Finding]) -> list[Finding]:
    """What is wrong with the order: what nobody stores to global memory is coverage's matter."""
    return [f for f in findings if f.kind in _ORDER and f.statement]


def faults_of(edited: Edited, seeds: tuple[int, ...] = (0, 1)) -> list[Finding]:
    """What the interpreter finds of an edited term's order, in drawn orders at small sizes."""
    return [
        found
        for sizes in protocols()[edited.number].sizes
        for found in of_order(check(edited.term, sizes, seeds=seeds))
    ]


# Certificates


@dataclass(frozen=True)
class Wrong:
    """An illegal term near a right one, and the right one's certificate."""

    program: Program
    tree: dict[str, Any]
    width: int


def _without(drop: Callable[[Statement], bool], s: Statement) -> Statement | tuple[()]:
    return () if drop(s) else s


@cache
def wrong() -> tuple[Wrong, ...]:
    """Return right terms without their waits, fences or barriers."""

    def waits(s: Statement) -> bool:
        return isinstance(s, Wait) and "empty" in str(s)

    found = []
    for right, drop in (
        (store_ring(2, 0), waits),
        (store_ring(2, 0), lambda s: isinstance(s, Fence)),
        (store_ring(2, 2), lambda s: isinstance(s, Sync)),
        (preset("simt", "shared"), lambda s: isinstance(s, Sync)),
        (preset("hopper", "plain"), lambda s: isinstance(s, Fence)),
        (preset("ampere", "plain"), lambda s: isinstance(s, Sync)),
        (blackwell("persistent"), lambda s: isinstance(s, Fence)),
        (grouped(), waits),
    ):
        certificate, _ = certified(right)
        assert certificate is not None
        program = rewritten(right, partial(_without, drop))
        assert ruling(program).word == "refused"
        width = len(Protocol(program, early=certificate.early).names)
        found.append(Wrong(program, json.loads(written(right, certificate)), width))
    return tuple(found)


def edited_certificate(pick: Pick, case: Wrong) -> str:
    """Return a certificate that is bound to the wrong term, as wide as its clocks, and edited."""
    tree, width = json.loads(json.dumps(case.tree)), case.width
    tree["term"], tree["columns"] = key_of(text_of(case.program)), width
    for clock in tree["clocks"]:
        lags = [lag for lag, many in zip(*clock, strict=True) for _ in range(many)]
        lags = (lags + [pick(5) - 3] * width)[:width]
        for _ in range(pick(4)):
            lags[pick(width)] = (0, -1, -2, 1, 9)[pick(5)]
        clock[:] = lags, [1] * width
    for _ in range(pick(5)):
        node = tree["nodes"][pick(len(tree["nodes"]))]
        field = ("known", "own", "holds", "touched", "open", "messages")[pick(6)]
        match field:
            case "known" | "own" if node[field]:
                node[field][pick(len(node[field]))] = pick(len(tree["clocks"]))
            case "touched":
                node[field] = [False] * len(node[field])
            case "open" if node[field]:
                node[field][0][0] += pick(5) - 2
            case "messages" if node[field]:
                node[field].pop()
            case "holds" if node[field]:
                one = len(tree["cells"])
                node[field][pick(len(node[field]))][0] = [pick(5) - 2, one, one + pick(2)]
                tree["cells"] += ["f" * (1 + pick(40)), "0"]
    if pick(2):
        tree["nodes"].pop(pick(len(tree["nodes"])))
    return json.dumps(tree)
