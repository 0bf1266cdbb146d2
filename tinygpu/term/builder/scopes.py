"""Scopes and loops: the body that is being written, which threads do it, and how often.

A scope (a role, a loop, the tiles of a CTA, ``elect``, ``when``, ``only``) is written as a ``with``
or a ``for``.  What is called in it goes into its body; at its end the body is one statement of the
scope around.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from tinygpu.errors import ProgramError, at_line, require_kind
from tinygpu.term import program as term
from tinygpu.term.beyond import beyond_trips, within_trips
from tinygpu.term.builder.digits import (
    Condition,
    Declarations,
    LoopIndex,
    Tile,
    TileValue,
    error,
    here,
)
from tinygpu.term.expression import Expression
from tinygpu.term.operation import Operation
from tinygpu.term.program import Affine, Statement, var

__all__ = ["Scopes"]

_WARP, _WARPGROUP = 32, 128


class Scopes(Declarations):
    """Roles, loops and tiles.

    Subclasses append statements by ``_append``, write a body by ``_nested``, and get the index of
    what a copy of a role has by ``_turn`` and ``_part``.  ``_each_thread``, ``_all_threads``,
    ``_one_thread``, ``_warpgroup`` and ``_in_role`` raise ProgramError for threads that cannot do a
    statement.  Subclasses read ``_role``, ``_copies`` and ``_only``, and write none.
    """

    def __init__(self, name: str, operation: Operation) -> None:
        super().__init__(name, operation)
        self._body: list[Statement] = []
        self._roles: list[tuple[bool, term.Role]] = []  # those of warpgroups come first
        self._role = ""  # that is being written
        self._role_threads: int = 0
        self._copies: int = 1
        self._tiles: tuple[str, str] | None = None
        self._tiled = False  # whether the role says where its tiles begin
        self._elected = False
        self._only: tuple[int, int, int] | None = None
        self._broken: ProgramError | None = None

    # loops

    def loop(
        self, name: str, *, over: str = "", by: int = 1, first: int | None = None,
        trips: TileValue | None = None, start: TileValue | None = None,
    ) -> Iterator[LoopIndex]:  # fmt: skip
        """Trace a loop's body once.  It covers the axis in whose pattern it stands, or ``over``.

        With ``first`` = n its first n turns are written out, and no more done.  With ``trips`` =
        ``tile.trips`` it runs so often in a tile; with ``start`` = ``tile.begin`` patterns count
        its digit from there on, and the variable itself, as indices of rings do, from 0.
        """
        return self._loop(name, self._digits.loop(name, over, by, trips, start), first)

    def unrolled(
        self, name: str, count: int, *, start: int = 0, stop: int | None = None
    ) -> Iterator[LoopIndex]:
        """Trace a body that is written out ``count`` times, or those from ``start`` to ``stop``."""
        if name in self._digits.loops or self._digits.by(name) != "a loop":
            self._digits.declare(name, "a loop", count)
        return self._loop(name, count, count if stop is None else stop, start)

    def each(self, name: str) -> Iterator[LoopIndex]:
        """Trace a body for one value of a digit of values after another: written out, as a loop."""
        extent = self._digits.go_through(name)
        return self._loop(name, extent, extent)

    def _loop(
        self, name: str, count: int | str, written: int | None, start: int = 0
    ) -> Iterator[LoopIndex]:
        outer, where = self._digits.written_out() if self._tiles else (), here()
        with self._digits.opened(name, where), self._nested() as body:
            try:
                yield LoopIndex(var(name), (name,), count, self._tiles, outer, name)
            except GeneratorExit:
                text = f"loop {name}: its body left by break or return; it is traced once,"
                self._broken = self._broken or at_line(where, f"{text} use k.when", "")
                raise
        trips = count if written is None else written
        self._append(term.For(name, trips, tuple(body), written is not None, start))

    def run_on(self, name: str, turns: int) -> None:
        """Do here what a loop before, of a parameter's trips, leaves undone: ``turns`` more of it.

        What stands there ``when(step < step.count)`` is not done again; what it does n steps late,
        ``when(step >= n)``, is done for the last n steps where ``turns`` is n.
        """
        at, loop = next(
            ((i, s) for i, s in enumerate(self._body) if isinstance(s, term.For) and s.var == name),
            (-1, None),
        )
        if loop is None or not isinstance(loop.trips, str):
            raise error(f"run_on {name}: no loop of this name and a parameter's trips", name)
        beyond = f"{name}_on"
        self._digits.declare(beyond, "a loop", turns)
        self._body[at] = replace(loop, body=within_trips(loop))
        self._append(term.For(beyond, turns, beyond_trips(loop, beyond), unrolled=True))

    def tiles(self, *, start: str = "", step: int = 1, **values: Expression) -> Iterator[Tile]:
        """Trace what is done for each tile of a CTA: one, or with ``persistent`` several.

        Copies that take tiles in turn begin at the digit ``start`` and go on by ``step``.
        ``values``: numbers of each tile, none below 0, as expressions of the grid's digits, the
        sizes and the values before them: ``trips=(value("br") + 1).ceildiv(2)``.
        """
        self._in_role("tiles")
        if self._tiles or self._digits.loops:
            raise error("tiles: stands in a loop; the tiles are around all loops", "tiles")
        if start and self._digits.by(start) != "copies of a role":
            raise error(f"tiles: {start} counts no copies of a role", start)
        for name, expression in values.items():
            require_kind(f"tiles: {name}", expression, Expression, ProgramError)
        self._tiles = ("tile", "turn")
        with self._nested() as body:
            yield Tile(var("tile"), (), values=tuple(values))
        self._tiles, self._tiled = None, True
        first = var(start) if start else Affine()
        tile = term.ForTile("tile", "turn", tuple(body), first, step, tuple(values.items()))
        self._append(tile)

    @contextmanager
    def aside(self) -> Iterator[list[Statement]]:
        """Trace statements that are no part of the term, to look at them."""
        with self._nested() as body:
            yield body

    # which threads

    @contextmanager
    def role(
        self, name: str, *, warps: int = 0, warpgroups: int = 0, registers: int = 0,
        **copies: int,
    ) -> Iterator[None]:  # fmt: skip
        """Give warps a body of their own.  Roles of warpgroups come first in the CTA.

        A digit as ``w=2`` makes copies of it.  ``registers`` of a thread (0: as they come).
        """
        if self._digits.countings:
            text = f"role {name}: k.threads has the CTA's threads; write it in the roles"
            raise error(text, name)
        count = warps * _WARP + warpgroups * _WARPGROUP
        if np.any(count <= 0) or self._role or self._body or len(copies) > 1:
            text = f"role {name}: needs warps= or warpgroups=, outside of other statements"
            raise error(text, name)
        for digit, extent in copies.items():
            self._digits.declare(digit, "copies of a role", extent)
            self._copies = extent
        self._role, self._role_threads, self._tiled = name, count, False
        with self._nested() as written:
            yield
        body = tuple(written)
        match body:
            case _ if self._tiled:
                pass
            case [term.Elect(body=inner)]:
                body = (term.Elect((term.ForTile("tile", "turn", inner),)),)
            case _:
                body = (term.ForTile("tile", "turn", body),)
        role = term.Role(name, count, body, self._copies, "".join(copies), registers)
        self._roles.append((bool(np.all(warpgroups > 0)), role))
        self._role, self._role_threads, self._copies = "", 0, 1
        self._digits.countings.clear()

    @contextmanager
    def elect(self) -> Iterator[None]:
        """Give the body to the first thread of the role alone."""
        self._in_role("elect")
        if self._elected:
            raise error("elect: one thread is elected already", "elect")
        self._elected = True
        with self._nested() as body:
            yield
        self._elected = False
        self._append(term.Elect(tuple(body)))

    @contextmanager
    def when(self, condition: Condition) -> Iterator[None]:
        """Do the body where the condition holds."""
        if not isinstance(condition, Condition):
            raise error(f"when: {condition} is no condition on a loop's variable", "when")
        with self._nested() as body:
            yield
        self._append(term.When(condition.index, condition.bound, tuple(body)))

    @contextmanager
    def only(self, **digits: int) -> Iterator[None]:
        """Let only threads with one value of a digit do the body's stores, as lane=0.

        Of a digit of the cluster: let only its CTA 0 do the body, as pair=0.
        """
        if len(digits) != 1:
            raise error("only: takes one digit, as lane=0", "only")
        (name, residue), *_ = digits.items()
        if self._digits.by(name) == "the cluster":
            if residue:
                raise error(f"only: of a cluster the first CTA alone, {name}=0", name)
            with self.when(Condition(var(name), 1)):
                yield
            return
        self._only = (*self._digits.thread(name), residue)
        yield
        self._only = None

    # for subclasses

    def _append(self, *statements: Statement) -> None:
        self._body += statements

    @contextmanager
    def _nested(self) -> Iterator[list[Statement]]:
        """Write a body of its own."""
        around, self._body = self._body, []
        yield self._body
        self._body = around

    def _turn(self) -> Affine:
        """Return the index of what a copy has once a tile: its turn."""
        return var(self._tiles[True]) if self._tiles else Affine()

    def _part(self) -> Affine:
        """Return the index of what a copy has once a part of a tile."""
        if not self._tiles:
            return Affine()
        last = LoopIndex(Affine(), (), 1, self._tiles, self._digits.written_out())
        return last.use(own=True)

    def _each_thread(self, what: str) -> None:
        if self._only and what != "a store":
            raise error(f"{what}: k.only is for stores; move it out", "")
        if not self._digits.countings:
            whose = "role" if self._role else "CTA"
            raise error(f"{what}: nobody declared the {whose}'s threads; write k.threads", "")
        if self._elected:
            raise error(f"{what} of each thread's values: one thread is elected", "")

    def _all_threads(self, what: str) -> None:
        if self._elected or self._only:
            text = f"{what}: some threads would wait for all"
            raise error(f"{text}; leave k.elect() or k.only(..) first", what)

    def _one_thread(self, what: str, why: str) -> None:
        if not self._elected:
            raise error(f"{what}: {why}; write `with k.elect():`", what)

    def _warpgroup(self, what: str) -> None:
        if np.any(self._role_threads != _WARPGROUP) or self._elected:
            who = "one thread" if self._elected else f"{self._role_threads or 'all'} threads"
            text = f"{what}: is issued by a warpgroup, and stands in the body of {who}"
            raise error(f"{text}; write it in k.role(.., warpgroups=1)", what)

    def _in_role(self, what: str) -> None:
        if not self._role:
            raise error(f"{what}: stands outside of a role; write it in k.role(..)", what)

    def _finished(self, persistent: int) -> tuple[term.Role, ...]:
        """Return the roles.  Raises ProgramError for what is not finished."""
        if self._broken:
            raise self._broken
        if self._roles and self._body:
            text = f"machine {self.name}: {self._body[0]} stands outside of its roles"
            raise ProgramError(f"{text}; write it in one")
        if np.any(persistent) and not self._tiled:
            text = f"machine {self.name}: persistent CTAs have several tiles"
            raise ProgramError(f"{text}; write `for tile in k.tiles():` in each role")
        if not self._roles:
            return (term.Role("all", self.thread_count, tuple(self._body)),)
        return tuple(role for _, role in sorted(self._roles, key=lambda one: not one[0]))
