"""A certificate as a file: JSON, bound to its term by the SHA-256 of the term's text.

    format   4
    term     the key of the term's text (``tinygpu.term.text.key_of``)
    near, far, early
    columns  how many columns a clock has
    clocks   clocks that nodes name by their place in this list, of runs of equal lags: the lags,
             and how many columns have each; columns of one residue stand together, see ``_order``
    cells    sets of cells that nodes name in the same way, hexadecimal
    nodes    [part, steps done, steps left, residue] and what is claimed there; a clock is null
             where it is the image of that of the first copy, in the first CTA

**Images.**  A copy of a role is like its first one with their names exchanged, and a CTA like the
first with all ranks moved.  The map of columns that this gives is used to write less and to fill in
what is left out: what agents know, their groups, the messages of barriers.  It is not believed:
what is filled in is checked as if it had been written.

Whatever is not of this form is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tinygpu.checker.check import Certificate, Position, ruled
from tinygpu.checker.invariant import Clocks, Contents, Counts, Held, Invariant
from tinygpu.checker.outcome import RefusedError, Ruling, UncertifiedError, refuse
from tinygpu.checker.protocol import NONE, PARTS, Image, Protocol
from tinygpu.term.program import Program
from tinygpu.term.text import key_of, text_of

__all__ = ["FORMAT", "verified", "written"]

FORMAT = 4
_MOST = 1 << 24


def written(program: Program, certificate: Certificate) -> str:
    """Return the text of a term's certificate."""
    protocol = Protocol(program, early=certificate.early)
    order = _order(protocol)
    agents, barriers = protocol.images(), protocol.barrier_images()
    clocks: dict[bytes, int] = {}
    cells: dict[int, int] = {}

    def number(clock: Clocks, like: Clocks | None) -> int | None:
        if like is not None and np.array_equal(like, clock):
            return None
        return clocks.setdefault(clock.tobytes(), len(clocks))

    def place(mask: int) -> int:
        return cells.setdefault(mask, len(cells))

    def rows(every: Clocks) -> list[int | None]:
        likes = [None if image is None else every[image[0]][image[1]] for image in agents]
        return [number(row, like) for row, like in zip(every, likes, strict=True)]

    def message(every: dict[tuple[int, int], Clocks], b: int, x: int) -> int | None:
        image = barriers[b]
        known = image is not None and image[0] < b and (image[0], x) in every
        return number(every[b, x], every[image[0], x][image[1]] if image and known else None)

    def waits(every: dict[tuple[int, str], Clocks], agent: int, kind: str) -> list[int | None]:
        image, mine = agents[agent], every[agent, kind]
        likes = [None] * len(mine) if image is None else every[image[0], kind][:, image[1]]
        return [number(row, like) for row, like in zip(mine, likes, strict=True)]

    nodes = [
        {
            "at": list(at),
            "known": rows(state.known),
            "own": rows(state.own),
            "messages": [[b, x, message(state.messages, b, x)] for b, x in sorted(state.messages)],
            "open": state.open,
            "counts": [[b, x, *c[:3], sorted(c[3])] for (b, x), c in sorted(state.counts.items())],
            "groups": [[*key, waits(state.groups, *key)] for key in sorted(state.groups)],
            "touched": state.touched,
            "holds": [
                [held and [held.index, place(held.written), place(held.unread)] for held in slots]
                for slots in state.holds
            ],
        }
        for at, state in certificate.nodes.items()
    ]
    whole = {
        "format": FORMAT, "term": key_of(text_of(program)), "near": certificate.near,
        "far": certificate.far, "early": certificate.early, "columns": protocol.width,
        "clocks": [_runs(np.frombuffer(clock, np.int32)[order]) for clock in clocks],
        "cells": [f"{mask:x}" for mask in cells], "nodes": nodes,
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


def _order(protocol: Protocol) -> NDArray[np.intp]:
    """Return the columns in the order in which clocks are written: runs of equal lags are long."""
    keys = [(ring.stages, ring.name, residue) for _, ring, residue, _ in protocol.rules]
    return np.array(sorted(range(protocol.width), key=keys.__getitem__), np.intp)


def _runs(clock: Clocks) -> list[list[int]]:
    """Return a clock as its lags and how many neighbours have each."""
    first = np.flatnonzero(np.diff(clock, prepend=NONE - 1))
    return [clock[first].tolist(), np.diff(first, append=len(clock)).tolist()]


class _Reading:
    """A certificate's parts, each of which has to be of its form."""

    def __init__(self, program: Program, whole: object) -> None:
        fields = {"format", "term", "near", "far", "early", "columns", "clocks", "cells", "nodes"}
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
        self.width = self.protocol.width
        if whole["columns"] != self.width:
            refuse(f"certificate: {whole['columns']} columns; the term has {self.width}")
        self.order = _order(self.protocol)
        self.images = self.protocol.images()
        self.barriers = self.protocol.barrier_images()
        self.cells = [self.mask(one) for one in self.list(whole["cells"])]
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

    def invariant(self, one: Mapping[str, object]) -> Invariant:
        """Return what is claimed at a node."""
        p = self.protocol
        messages: dict[tuple[int, int], Clocks] = {}
        for b, x, clock in self.tuples(one["messages"], 3):
            at = (self.below(b, len(p.barriers)), self.integer(x))
            image = self.barriers[at[0]]
            like = None if image is None else messages.get((image[0], at[1]))
            messages[at] = self.row(clock, like, image)
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
            image = self.images[key[0]]
            rows = self.list(every, p.groups[key] + 2)
            likes = None if image is None else groups.get((image[0], key[1]))
            groups[key] = np.array(
                [self.row(row, None if likes is None else likes[i], image)
                 for i, row in enumerate(rows)]
            )  # fmt: skip
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
            touched=[bool(x) for x in touched],
            holds=[[self.held(h) for h in self.list(s, ring.stages)] for ring, s in slots],
        )

    def rows(self, every: object) -> Clocks:
        """Return the clocks of all agents."""
        found: list[Clocks] = []
        for number, image in zip(self.list(every, len(self.images)), self.images, strict=True):
            found.append(self.row(number, None if image is None else found[image[0]], image))
        return np.array(found)

    def row(self, number: object, like: Clocks | None, image: Image) -> Clocks:
        """Return a clock by its place in the list, or, of None, the image of another."""
        if number is not None:
            return self.clocks[self.below(number, len(self.clocks))]
        if like is None or image is None:
            refuse("certificate: a clock is left out that is no image")
        return like[image[1]]

    def clock(self, runs: object) -> Clocks:
        """Return a clock of its runs."""
        found = np.array([[*self.list(one), 0] for one in self.list(runs, 2)])  # the 0: an int
        if found.ndim != 2 or found.dtype != np.int64:
            refuse("certificate: a clock of no numbers")
        lags, many = found[:, :-1]
        if ((lags < NONE) | (lags > _MOST)).any():
            refuse("certificate: a lag that is far from 0")
        if ((many <= 0) | (many > self.width)).any() or many.sum() != self.width:
            refuse(f"certificate: a clock of {many.sum()} columns")
        clock = np.empty(self.width, np.int32)
        clock[self.order] = np.repeat(lags, many)
        return clock

    def position(self, at: object) -> Position:
        """Return a node's position."""
        part, done, left, tile = self.list(at, 4)
        if part not in PARTS:
            refuse(f"certificate: a part {part}")
        return (
            PARTS[PARTS.index(part)], self.integer(done), self.integer(left),
            self.below(tile, self.protocol.period),
        )  # fmt: skip

    def held(self, one: object) -> Held:
        """Return what a slot holds."""
        if one is None:
            return None
        index, *places = self.list(one, 3)
        written, unread = (self.cells[self.below(place, len(self.cells))] for place in places)
        return Contents(self.integer(index), written, unread)

    def mask(self, one: object) -> int:
        """Return a set of cells."""
        if not isinstance(one, str) or not one or set(one) - set("0123456789abcdef"):
            refuse("certificate: a mask of cells")
        return int(one, 16)

    def tuples(self, every: object, many: int) -> list[list[object]]:
        """Return a list of lists of one length."""
        return [self.list(one, many) for one in self.list(every)]

    def list(self, one: object, many: int | None = None) -> list[object]:
        """Return a list, of some length."""
        if not isinstance(one, list) or (many is not None and len(one) != many):
            refuse(f"certificate: {str(one)[:40]} is no list of {many}")
        return one

    def integer(self, one: object) -> int:
        """Return a number that is not far from 0."""
        if type(one) is not int or not abs(one) <= _MOST:
            refuse(f"certificate: {str(one)[:40]} is no number")
        return one

    def below(self, one: object, many: int) -> int:
        """Return a number that counts something."""
        number = self.integer(one)
        if not 0 <= number < many:
            refuse(f"certificate: {one} is not below {many}")
        return number
