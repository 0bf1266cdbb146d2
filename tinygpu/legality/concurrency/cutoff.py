"""The cutoff: one search decides every number of tiles and all trips, each tile its own.

A run is a sequence of blocks (``blocks``): at the head of a loop it goes on, or it does not.  In
which state a block leaves the pass, relative to the counters, depends on the state in which it
began, and on how far its guards look: so many steps from the loop's start, so many before its end.
There are finitely many such states, or the search gives up.  It visits each once.

**Theorem.**  *If the assumptions hold and the search finds nothing, no run has a fault.*

Proof.  By induction over its blocks, every run goes through states that the search has visited,
moved by its counters.  From states that are equal but for the counters the same follows, moved,
since indices of a ring move alike (a constant of them is their stage and phase), and guards tell no
more than the distances that are kept.  What ``State.frozen`` leaves out nobody asks about.  Blocks
one after another are an order in which events may happen, as each agent can end each block with
what stands in it and before it: the search fails where one cannot.  And one visit of a run's
events, in any such order, finds its faults (``conditions``).

A fault is replayed from its first block to the end of the program, with names, so that it is not
the search that calls a program illegal.

Where all tiles have the same trips, the first tile chooses: exactly so many, up to the stages that
turn with the steps, or more in each tile.  Tiles of more may then differ, so this decides programs
whose tiles are alike, whatever the number is up to which they are told apart.

>>> from tinygpu.legality.concurrency.blocks import laid_out
>>> from tinygpu.legality.concurrency.erase import erase
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import matmul
>>> plan = laid_out(erase(Simt().program(matmul("f32"), Chosen(LADDER["multi-stage"]))))
>>> found = searched(plan)
>>> found.run, found.states
(None, 7)
>>> replayed(plan, Witness((), (("trips", 5),))) is None
True

Source: ``docs/model-concurrency.md``.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

from tinygpu.legality.concurrency.blocks import (
    TILES,
    At,
    Counter,
    LaidOut,
    Op,
    Section,
    expanded,
    unfolded,
)
from tinygpu.legality.concurrency.conditions import Fault, FaultError, Pass
from tinygpu.legality.concurrency.facts import Facts, Frozen, State

__all__ = ["Outcome", "Witness", "replayed", "searched"]

_MANY = 20_000
Pairs = tuple[tuple[str, int], ...]
_Choice = tuple[Literal["once", "tile"], Pairs] | tuple[Literal["step"], str, int]


@dataclass(frozen=True, slots=True)
class Witness:
    """How often loops run: in each tile, and outside of tiles."""

    tiles: tuple[Pairs, ...]
    once: Pairs = ()

    @property
    def even(self) -> bool:
        """Whether all tiles have the same trips."""
        return len(set(self.tiles)) <= 1

    def levelled(self, own: Collection[str] = ()) -> tuple[Witness, ...]:
        """Return it, if its tiles are alike, or the runs whose tiles are all like one of them.

        Of the numbers that are each tile's ``own`` they need not be.
        """

        def like(one: Pairs) -> tuple[Pairs, ...]:
            same = {n: number for n, number in one if n not in own}
            return tuple(tuple((n, same.get(n, x)) for n, x in tile) for tile in self.tiles)

        alike = dict.fromkeys(map(like, self.tiles))
        return tuple(Witness(tiles, self.once) for tiles in alike) or (self,)

    def __str__(self) -> str:
        parts = [f"{name}={n}" for name, n in self.once]
        if self.tiles:
            parts.append(f"tiles={len(self.tiles)}")
            if self.even:
                parts += [f"{name}={n}" for name, n in self.tiles[0]]
            else:
                for name in dict(self.tiles[0]):
                    parts.append(f"{name}={','.join(str(dict(t)[name]) for t in self.tiles)}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a search has found: a run with a fault, or no; why it gave up; the states visited."""

    run: Witness | None
    doubt: str
    states: int


@dataclass(frozen=True, slots=True)
class _Step:
    """One instruction of the flat program of loops; ``to``: where a loop's head leaves to."""

    kind: str
    section: Section | None = None
    param: str = ""
    to: int = 0
    where: tuple[tuple[str, str], ...] = ()


def _flat(plan: LaidOut) -> list[_Step]:
    code: list[_Step] = []
    where = dict.fromkeys((*plan.inside, *plan.near, *plan.far), "before")

    def emit(sections: tuple[Section, ...]) -> None:
        for section in sections:
            if not section.inner:
                code.append(_Step("block", section, where=tuple(where.items())))
                continue
            head, inside = len(code), section.param != TILES
            code.append(_Step("head"))
            if inside:
                where[section.param] = "in"
            emit(section.inner)
            code.append(_Step("next", param=section.param, to=head))
            code[head] = _Step("head", param=section.param, to=len(code))
            if inside:
                where[section.param] = "after"
            else:
                where.update({name: "before" for name, tiled in plan.inside.items() if tiled})

    emit(plan.sections)
    return code


def _moves(plan: LaidOut, param: str, tile: int) -> dict[Counter, int]:
    """Return which counters a loop's end moves."""
    if param != TILES:
        return {("steps", param): 1}
    found: dict[Counter, int] = {(TILES,): 1}
    for number, (first, step) in plan.strides.items():
        if step > 1 and (tile - first) % step == 0:
            a = plan.agents[number]
            found["turns", str(a.role), str(a.copy), str(a.cta)] = 1
    return found


def replayed(plan: LaidOut, run: Witness) -> Fault | None:
    """Return the fault of one run, if it has one, found without any assumption."""
    state = State(plan)
    state.names = {}
    walk = Pass(plan, state)
    tiles = [dict(tile) for tile in run.tiles]
    try:
        walk.run([unfolded(plan, a, tiles, dict(run.once)) for a in range(len(plan.agents))])
        stuck = walk.stuck()
        if stuck:
            first = stuck[0]
            op = walk.todo[first][walk.at[first]]
            walk.fault(_why(walk, stuck), first, op, f"waits for ever{_lacks(walk, op)}")
        walk.unissued()
        walk.end()
    except FaultError as found:
        return found.fault
    return None


def _why(walk: Pass, stuck: list[int]) -> str:
    """Return "balance" if somebody waits for a phase to which nobody who waits will contribute."""
    ops = [walk.todo[n][walk.at[n]] for n in stuck]
    later = {t.place for n in stuck for op in walk.todo[n][walk.at[n] :] for t in op.told
             if op.kind != "wait"}  # fmt: skip
    lonely = any(op.kind == "wait" and op.told[0].place not in later for op in ops)
    return "balance" if lonely else "deadlock"


def _lacks(walk: Pass, op: Op) -> str:
    if op.kind != "wait":
        return "; let all come to it, and equally often"
    (told,) = op.told
    place = walk.plan.places[told.place]
    p = walk.state.barriers[told.place][told.offset % place.stages]
    return (
        f": {place.ring}@{p.index} has {p.arrivals} of {place.arrivals} arrivals, {p.expected} B "
        f"expected and {p.landed} landed; change the arrivals, or let one of them wait later"
    )


@dataclass(frozen=True, slots=True)
class _Item:
    """A state to go on from, with the facts that are new there; the item before it, the choices."""

    node: Node
    frozen: Frozen
    parent: int
    records: tuple[_Choice, ...]

    def joined(self, facts: tuple[int, ...]) -> _Item:
        """Return it with more facts."""
        return replace(self, frozen=self.frozen.only((*self.frozen.facts, *facts)))


Node = tuple[int, Pairs, Pairs, int, int, bool]  # step, gone, left, tile, class of trips, some tile


class _Search:
    def __init__(self, plan: LaidOut, apart: bool) -> None:
        self.plan = plan
        self.code = _flat(plan)
        names = (*plan.inside, *(n for n in {**plan.near, **plan.far} if n not in plan.inside))
        self.inside = plan.each_tile
        self.outside = tuple(n for n in names if n not in self.inside)
        self.near = {n: plan.near.get(n, 0) for n in names}
        self.far = {n: max(plan.far.get(n, 0), plan.least.get(n, 0)) for n in names}
        for n in names:
            if n not in plan.inside:
                self.far[n] = max(self.far[n], self.near[n])
            elif n in self.inside and not apart:
                turn = [p.stages for p in plan.places if p.pace.get(("steps", n))]
                self.far[n] = max(self.far[n], *turn, 0)
        self.tied = bool(self.inside) and not apart
        self.ops: dict[object, tuple[tuple[Op, ...], ...]] = {}

    def chosen(self, names: tuple[str, ...]) -> Iterator[Pairs]:
        """Yield all trips, up to where guards tell them apart, for some loops."""
        ranges = [range(self.plan.least.get(n, 0), self.far[n] + 2) for n in names]
        for values in product(*ranges):
            yield tuple(zip(names, values, strict=True))

    def run(self) -> Outcome:
        """Search with the facts of states of one shape taken together, then, for a fault, apart."""
        found = self.visited(together=True)
        return found if found.run is None else self.visited(together=False)

    def visited(self, *, together: bool) -> Outcome:
        plan = self.plan
        items: list[_Item] = []
        waiting: dict[tuple[Node, tuple[Hashable, ...]], int] = {}
        number = -1
        seen: dict[tuple[Node, tuple[Hashable, ...]], Facts] = {}

        def push(node: Node, frozen: Frozen, parent: int, records: tuple[_Choice, ...]) -> None:
            for to, more in self.go(node):
                at = (to, frozen.shape)
                first = at not in seen
                new = seen.setdefault(at, Facts()).added(frozen.facts)
                if together and at in waiting and waiting[at] > number:
                    items[waiting[at]] = items[waiting[at]].joined(new)
                elif first or new:
                    waiting[at] = len(items)
                    items.append(_Item(to, frozen.only(new), parent, (*records, *more)))

        start = State(plan).frozen({})
        for once in self.chosen(self.outside):
            gone = tuple((n, 0) for n, _ in once)
            push((0, gone, once, 0, -1, False), start, -1, (("once", once),))
        for number, item in enumerate(items):  # which grows
            if len(items) > _MANY:
                return Outcome(None, f"there are more than {_MANY} states", len(items))
            node = item.node
            after = node[0] + 1
            over = after == len(self.code)
            try:
                state = State.thawed(plan, item.frozen)
                walk = Pass(plan, state)
                walk.run(self.block(node))
                if walk.stuck():
                    return Outcome(self.witness(items, number), "lockstep", len(items))
                walk.unissued()
                if over:
                    walk.end()
                    continue
                walk.settle()
            except FaultError:
                return Outcome(self.witness(items, number), "", len(items))
            step = self.code[after]
            moved = _moves(plan, step.param, node[3]) if step.kind == "next" else {}
            push((after, *node[1:]), state.frozen(moved), number, ())
        return Outcome(None, "", len(items))

    def block(self, node: Node) -> tuple[tuple[Op, ...], ...]:
        """Return what each agent does in a block."""
        number, gone, left, tile, _, _ = node
        key = (number, gone, left, tile)
        if key not in self.ops:
            step = self.code[number]
            assert step.section is not None
            at = At(gone, left, step.where, tile)
            self.ops[key] = tuple(
                expanded(self.plan, step.section, agent, at)
                for agent in range(len(self.plan.agents))
            )
        return self.ops[key]

    def go(self, node: Node) -> Iterator[tuple[Node, tuple[_Choice, ...]]]:
        """Yield the blocks that may come next, each with what was chosen on the way."""
        number, gone, left, tile, trips, some = node
        step = self.code[number]
        if step.kind == "block":
            yield node, ()
        elif step.kind == "head" and step.param == TILES:
            if some:
                yield from self.go(
                    (step.to, self.without(gone), self.without(left), 0, trips, some)
                )
            for i, mine in enumerate(self.chosen(self.inside)):
                if trips in (-1, i):
                    here = (*self.without(gone), *((n, 0) for n, _ in mine))
                    kind = i if self.tied else -1
                    to = (number + 1, here, (*self.without(left), *mine), tile, kind, True)
                    for found, more in self.go(to):
                        yield found, (("tile", mine), *more)
        elif step.kind == "head":
            over = dict(left)[step.param] == 0
            yield from self.go((step.to if over else number + 1, *node[1:]))
        elif step.param == TILES:
            yield from self.go((step.to, gone, left, (tile + 1) % self.plan.turns, trips, some))
        else:
            name = step.param
            number = min(dict(gone)[name] + 1, self.near[name])
            here = tuple((n, number if n == name else x) for n, x in gone)
            was, far = dict(left)[name], self.far[name]
            for now in (was - 1,) if was <= far else (far, far + 1):
                there = tuple((n, now if n == name else x) for n, x in left)
                for found, chosen in self.go((step.to, here, there, tile, trips, some)):
                    yield found, (("step", name, now), *chosen)

    def without(self, pairs: Pairs) -> Pairs:
        return tuple(p for p in pairs if p[0] not in self.inside)

    def witness(self, items: Sequence[_Item], number: int) -> Witness:
        """Return the run that led to a state, ended as soon as it may."""
        records: list[_Choice] = []
        while number >= 0:
            records[:0] = items[number].records
            number = items[number].parent
        done: dict[str, int] = {}
        left: dict[str, int] = {}
        tiles: list[Pairs] = []
        begun = False

        def tile() -> Pairs:
            return tuple((n, done[n] + left[n]) for n in self.inside)

        for record in records:
            match record:
                case ("once", pairs):
                    left |= dict(pairs)
                    done |= dict.fromkeys(dict(pairs), 0)
                case ("tile", pairs):
                    if begun:
                        tiles.append(tile())
                    begun = True
                    left |= dict(pairs)
                    done |= dict.fromkeys(dict(pairs), 0)
                case ("step", name, now):
                    done[name] += 1
                    left[name] = now
        if begun:
            tiles.append(tile())
        elif any(s.param == TILES for s in self.plan.sections):
            tiles.append(tuple((n, self.plan.least.get(n, 0)) for n in self.inside))
        return Witness(tuple(tiles), tuple((n, done[n] + left[n]) for n in self.outside))


def searched(plan: LaidOut, *, apart: bool = False) -> Outcome:
    """Search all runs whose tiles have the same trips; with ``apart`` each tile has its own."""
    return _Search(plan, apart).run()
