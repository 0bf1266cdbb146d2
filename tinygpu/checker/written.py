"""A certificate as a file: JSON, bound to its term by the SHA-256 of the term's text.

    format   1
    term     the key of the term's text (``tinygpu.term.text.key_of``)
    near, far, early
    columns  how many columns a clock has
    clocks   clocks that nodes name by their place in this list; a run of equal lags is [lag, many]
             and null, nothing is known
    nodes    [part, steps done, steps left, residue] and what is claimed there; what an agent knows
             is left out where it is the image of what the first copy, in the first CTA, knows

**Images.**  A copy of a role is like its first one with their names exchanged, and a CTA like the
first with all ranks moved.  The map of columns that this gives is used to write less and to fill in
what is left out.  It is not believed: what is filled in is checked as if it had been written.

Masks of cells are hexadecimal.  Whatever is not of this form is refused.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygpu.checker.check import Certificate, Position, ruled
from tinygpu.checker.invariant import LEAST, Clocks, Counts, Held, Invariant
from tinygpu.checker.outcome import RefusedError, Ruling, UncertifiedError, refuse
from tinygpu.checker.protocol import NONE, PARTS, Protocol
from tinygpu.term.program import Program
from tinygpu.term.text import key_of, text_of

__all__ = ["FORMAT", "verified", "written"]

FORMAT = 1


def written(program: Program, certificate: Certificate) -> str:
    """Return the text of a term's certificate."""
    protocol = Protocol(program, early=certificate.early)
    images = protocol.images()
    clocks: dict[bytes, int] = {}
    kept: list[Any] = []

    def number(clock: Clocks) -> int:
        key = clock.tobytes()
        if key not in clocks:
            clocks[key] = len(kept)
            kept.append(_runs(clock))
        return clocks[key]

    def rows(every: Clocks) -> list[int | None]:
        return [
            None
            if image is not None and np.array_equal(every[image[0]][image[1]], row)
            else number(row)
            for row, image in zip(every, images, strict=True)
        ]

    nodes = [
        {
            "at": list(at),
            "known": rows(state.known),
            "own": rows(state.own),
            "messages": [[b, x, number(clock)] for (b, x), clock in sorted(state.messages.items())],
            "open": state.open,
            "counts": [[b, x, *c[:3], sorted(c[3])] for (b, x), c in sorted(state.counts.items())],
            "groups": [
                [agent, kind, [number(row) for row in every]]
                for (agent, kind), every in sorted(state.groups.items())
            ],
            "touched": state.touched,
            "holds": [
                [None if held is None else [held[0], f"{held[1]:x}"] for held in slots]
                for slots in state.holds
            ],
        }
        for at, state in certificate.nodes.items()
    ]
    whole = {
        "format": FORMAT, "term": key_of(text_of(program)), "near": certificate.near,
        "far": certificate.far, "early": certificate.early, "columns": len(protocol.names),
        "clocks": kept, "nodes": nodes,
    }  # fmt: skip
    return json.dumps(whole, separators=(",", ":")) + "\n"


def verified(program: Program, text: str) -> Ruling:
    """Check a certificate's text against a term."""
    try:
        found = json.loads(text, parse_constant=lambda word: refuse(f"certificate: {word}"))
        return ruled(*_Reading(program, found).certificate())
    except RefusedError as error:
        return Ruling("refused", str(error))
    except UncertifiedError as error:
        return Ruling("not certified", str(error))
    except (ValueError, RecursionError):
        return Ruling("refused", "certificate: it is no JSON")


def _runs(clock: Clocks) -> list[Any]:
    """Return a clock's lags, equal neighbours as [lag, many]."""
    found: list[list[int | None]] = []
    for lag in clock.tolist():
        one = None if lag < LEAST else lag
        if found and found[-1][0] == one:
            found[-1][1] = (found[-1][1] or 0) + 1
        else:
            found.append([one, 1])
    return [lag if many == 1 else [lag, many] for lag, many in found]


class _Reading:
    """A certificate's parts, each of which has to be of its form."""

    def __init__(self, program: Program, whole: Any) -> None:
        fields = {"format", "term", "near", "far", "early", "columns", "clocks", "nodes"}
        if not isinstance(whole, dict) or whole.keys() != fields:
            refuse("certificate: it has other fields")
        if whole["format"] != FORMAT:
            refuse(f"certificate: format {whole['format']}, and not {FORMAT}")
        if whole["term"] != key_of(text_of(program)):
            refuse("certificate: it is of another term")
        if not isinstance(whole["early"], bool):
            refuse("certificate: early")
        self.whole = whole
        self.protocol = Protocol(program, early=whole["early"])
        self.width = len(self.protocol.names)
        if whole["columns"] != self.width:
            refuse(f"certificate: {whole['columns']} columns; the term has {self.width}")
        self.images = self.protocol.images()
        self.clocks = [self.clock(one) for one in self.list(whole["clocks"])]

    def certificate(self) -> tuple[Protocol, Certificate]:
        """Return the term as it is read, and the certificate."""
        nodes = {}
        for one in self.list(self.whole["nodes"]):
            fields = {"at", "known", "own", "messages", "open", "counts", "groups", "touched"}
            if not isinstance(one, dict) or one.keys() != fields | {"holds"}:
                refuse("certificate: a node has other fields")
            nodes[self.position(one["at"])] = self.invariant(one)
        near, far = self.integer(self.whole["near"]), self.integer(self.whole["far"])
        return self.protocol, Certificate(near, far, self.whole["early"], nodes)

    def invariant(self, one: dict[str, Any]) -> Invariant:
        """Return what is claimed at a node."""
        p = self.protocol
        messages: dict[tuple[int, int], Clocks] = {}
        for b, x, clock in self.tuples(one["messages"], 3):
            messages[self.below(b, len(p.barriers)), self.integer(x)] = self.row(clock)
        counts: dict[tuple[int, int], Counts] = {}
        for b, x, arrived, expected, landed, who in self.tuples(one["counts"], 6):
            agents = frozenset(self.below(n, len(p.actors)) for n in self.list(who))
            many = tuple(map(self.integer, (arrived, expected, landed)))
            counts[self.below(b, len(p.barriers)), self.integer(x)] = (*many, agents)  # type: ignore[assignment]
        groups: dict[tuple[int, str], Clocks] = {}
        for agent, kind, every in self.tuples(one["groups"], 3):
            key = (self.below(agent, len(p.actors)), str(kind))
            if key not in p.groups:
                refuse(f"certificate: groups {key}")
            rows = self.list(every, p.groups[key] + 2)
            groups[key] = np.array([self.row(row) for row in rows])
        if groups.keys() != p.groups.keys():
            refuse("certificate: other groups")
        touched = self.list(one["touched"], len(p.actors))
        if not all(isinstance(x, bool) for x in touched):
            refuse("certificate: touched")
        rings = [(b.stages, s) for b, s in zip(
            p.barriers, self.list(one["open"], len(p.barriers)), strict=True)]  # fmt: skip
        slots = zip(p.rings, self.list(one["holds"], len(p.rings)), strict=True)
        return Invariant(
            known=self.rows(one["known"]),
            own=self.rows(one["own"]),
            messages=messages,
            open=[[self.integer(x) for x in self.list(s, many)] for many, s in rings],
            counts=counts,
            groups=groups,
            touched=list(touched),
            holds=[[self.held(h) for h in self.list(s, ring.stages)] for ring, s in slots],
        )

    def rows(self, every: Any) -> Clocks:
        """Return the clocks of all agents; images are filled in."""
        found: list[Any] = []
        for number, image in zip(self.list(every, len(self.images)), self.images, strict=True):
            if number is not None:
                found.append(self.row(number))
            elif image is None:
                refuse("certificate: a clock is left out that is no image")
            else:
                found.append(found[image[0]][image[1]])
        return np.array(found)

    def row(self, number: Any) -> Clocks:
        """Return a clock by its place in the list."""
        return self.clocks[self.below(number, len(self.clocks))].copy()

    def clock(self, runs: Any) -> NDArray[np.int32]:
        """Return a clock of its runs."""
        found: list[int] = []
        for run in self.list(runs):
            lag, many = self.list(run, 2) if isinstance(run, list) else (run, 1)
            if not 0 < self.integer(many) <= self.width:
                refuse("certificate: a run of lags")
            found += [NONE if lag is None else self.integer(lag)] * many
        if len(found) != self.width:
            refuse(f"certificate: a clock of {len(found)} columns")
        return np.array(found, np.int32)

    def position(self, at: Any) -> Position:
        """Return a node's position."""
        part, done, left, tile = self.list(at, 4)
        if part not in PARTS:
            refuse(f"certificate: a part {part}")
        return (
            PARTS[PARTS.index(part)], self.integer(done), self.integer(left),
            self.below(tile, self.protocol.period),
        )  # fmt: skip

    def held(self, one: Any) -> Held:
        """Return what a slot holds."""
        if one is None:
            return None
        index, mask = self.list(one, 2)
        if not isinstance(mask, str) or not mask or set(mask) - set("0123456789abcdef"):
            refuse("certificate: a mask of cells")
        return self.integer(index), int(mask, 16)

    def tuples(self, every: Any, many: int) -> list[list[Any]]:
        """Return a list of lists of one length."""
        return [self.list(one, many) for one in self.list(every)]

    def list(self, one: Any, many: int | None = None) -> list[Any]:
        """Return a list, of some length."""
        if not isinstance(one, list) or (many is not None and len(one) != many):
            refuse(f"certificate: {str(one)[:40]} is no list of {many}")
        return one

    def integer(self, one: Any) -> int:
        """Return a number that is not far from 0."""
        if type(one) is not int or not abs(one) <= 1 << 24 or one < -(1 << 20):
            refuse(f"certificate: {str(one)[:40]} is no number")
        return one

    def below(self, one: Any, many: int) -> int:
        """Return a number that counts something."""
        if not 0 <= self.integer(one) < many:
            refuse(f"certificate: {one} is not below {many}")
        return int(one)
