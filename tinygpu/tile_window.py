"""The tile window: which numbers of tiles and trips decide all of them, for asynchronous programs.

A program of roles ``for each tile t: for k in 0..trips: ..`` has rings that run over the steps
n = t * trips + k, and rings that run over tiles (or chunks of a tile).  With

    w   the most of stages + spread of a ring over steps; the spread of its indices is that of
        index - n over all statements that name it
    q   the reach of guards from a loop's ends
    V   the most tiles that stages + spread of a ring over tiles are, times the copies in turn

these decide all others, as the document shows:

    trips <= w + 2 q + 2, each with ceil((w + 2 q) / trips) + 2 tiles,
    and where trips <= 2 q + 2 with at least V + 2 tiles

or one tile, if the program is not persistent.  ``doubt`` says which assumption fails, if any.

>>> from tinygpu.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS, Hopper
>>> from tinygpu.operation import matmul
>>> from tinygpu.protocol_extraction import protocol_of
>>> program = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["ring"]))
>>> box, points = tile_window(protocol_of(program))
>>> print(box, len(points))
number of tiles <= 1, trips <= 12 decide 12

Source: ``docs/model-concurrency.md``, section "Every number of tiles and trips".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product

from tinygpu.access_map import Affine
from tinygpu.agents import TILES
from tinygpu.protocol import Act, Body, Crew, Guard, Loop, Node, One, Protocol, Tiles, every
from tinygpu.synchronization import Arrive, Sync, Wait
from tinygpu.window import DoubtError, Window

__all__ = ["tile_window"]

_UNPROVED = 6  # tiles, and trips beyond twice the stages, that are checked where nothing is proved

Points = tuple[dict[str, int], ...]
Range = tuple[int, int]


@dataclass(slots=True)
class _Ring:
    """What a buffer's or a barrier's indices are: ``pace`` over steps, tiles, or a copy's turns."""

    stages: int
    pace: tuple[str, int] = ("", 0)
    gives: list[Range] = field(default_factory=list)
    waits: list[Range] = field(default_factory=list)

    def reach(self, *, observed: bool) -> int:
        """Return stages plus spread; ``observed``: how far apart conditions really look."""
        if not observed or not self.gives or not self.waits:
            return self.stages + _spread([*self.gives, *self.waits])
        apart = [
            abs(end - other)
            for low, high in self.waits
            for least, most in self.gives
            for end, other in ((low, most), (high, least), (low, least), (high, most))
        ]
        signed = [
            abs(self.stages + end - other)
            for low, high in self.waits
            for least, most in self.gives
            for end, other in ((low, most), (high, least))
        ]
        alike = self.stages + max(_spread(self.gives), _spread(self.waits))
        return max(alike, *apart, *signed)


def _spread(ends: list[Range]) -> int:
    return max(high for _, high in ends) - min(low for low, _ in ends)


def tile_window(protocol: Protocol, *, observed: bool = False) -> tuple[Window, Points]:
    """Return the box, and the points in it that have to be checked.

    ``observed``: the points for conditions that are as strict (``tinygpu.conditions``): fewer.
    """
    stages = [t.ring.stages for n in _nodes(protocol) if isinstance(n, Act) for t in n.touches]
    stages += [n.barrier.stages for n in _nodes(protocol) if isinstance(n, Wait | Arrive)]
    lowest = dict(protocol.parameters)
    try:
        read = _Read(protocol)
        points = read.points(lowest, observed=observed)
        doubt, law = "", ""
    except DoubtError as error:
        doubt, law = str(error), error.law
        upper = 2 * max(stages, default=1) + 2
        ranges = [range(low, max(low, upper // max(len(lowest), 1)) + 1) for low in lowest.values()]
        tiles = range(_UNPROVED if protocol.persistent else 1, 0, -1)
        points = tuple(
            {TILES: t, **dict(zip(lowest, values, strict=True))}
            for t in tiles
            for values in product(*ranges)
        )
    most = tuple((name, max(p[name] for p in points)) for name in (TILES, *lowest))
    return Window(most, doubt, law), points


def _require_bounded(crew: Crew, body: Body) -> None:
    """Raise DoubtError for a loop of unknown length inside a guard or a loop of constant trips."""
    for node, _ in every(body):
        if isinstance(node, Tiles) or (isinstance(node, Loop) and isinstance(node.stop, str)):
            text = f"{crew.name} has a loop of unknown length inside a guard or another loop"
            raise DoubtError("loops", text)


def _nodes(protocol: Protocol) -> list[Node]:
    return [node for crew in protocol.crews for node, _ in every(crew.body)]


class _Read:
    """A protocol, read for the theorem."""

    def __init__(self, protocol: Protocol) -> None:
        names = [name for name, _ in protocol.parameters]
        if len(names) > 1:
            raise DoubtError("loops", f"{' and '.join(names)} vary independently")
        self.trips = names[0] if names else ""
        self.protocol = protocol
        self.rings: dict[str, _Ring] = {}
        self.guards = 0  # their reach
        self.turns = 1
        for crew in protocol.crews:
            self.tile, self.turn, self.step = "", "", ""
            self.toured = False
            ranges = {crew.copy: (0, crew.copies - 1)} if crew.copy else {}
            ranges |= {name: (0, extent - 1) for name, extent in protocol.cluster}
            self.visit(crew, crew.body, ranges, after=False)

    def visit(self, crew: Crew, body: Body, ranges: dict[str, Range], *, after: bool) -> bool:
        """Read a block; ``after`` and the result say whether its loop over steps has been."""
        for node in body:
            match node:
                case One(inner):
                    after = self.visit(crew, inner, ranges, after=after)
                case Tiles(tile, turn, start, step, inner):
                    if self.tile or self.step or self.toured:
                        text = f"{crew.name} has a loop over tiles inside another loop, or two"
                        raise DoubtError("loops", text)
                    self.toured = True
                    if (start, step) == (Affine(0, ((crew.copy, 1),)), crew.copies):
                        self.turns = max(self.turns, step)
                    elif (start, step) != (Affine(), 1):
                        raise DoubtError(
                            "loops", f"{crew.name} takes tiles {start}, and every {step}th"
                        )
                    self.tile, self.turn = tile, turn
                    self.visit(crew, inner, ranges, after=False)
                    self.tile, self.turn = "", ""
                case Loop(var, start, str(), inner):
                    if self.step or after or start:
                        raise DoubtError(
                            "loops", f"{crew.name} has two loops over trips, or not from 0"
                        )
                    self.step = var
                    self.visit(crew, inner, ranges, after=False)
                    self.step, after = "", True
                case Loop(var, start, int(stop), inner):
                    _require_bounded(crew, inner)
                    inside = {**ranges, var: (start, stop - 1)}
                    after = self.visit(crew, inner, inside, after=after)
                case Guard(index, bound, inner):
                    ranks = {name for name, _ in self.protocol.cluster}
                    if index.terms and {n for n, _ in index.terms} <= ranks:
                        after = self.visit(crew, inner, ranges, after=after)
                        continue  # some CTAs execute all of it, the others none
                    self.guard(index, bound, ranges)
                    _require_bounded(crew, inner)
                    if any(isinstance(n, Wait | Sync) for n, _ in every(inner)):
                        raise DoubtError("meetings", "a wait depends on a guard")
                    after = self.visit(crew, inner, ranges, after=after)
                case Sync(_, scope) if scope != "role" and (
                    self.step or (self.tile and self.protocol.persistent)
                ):
                    raise DoubtError("meetings", f"{node} is inside a loop")
                case Wait(barrier, index):
                    self.use(barrier.name, barrier.stages, index, ranges, after, gives=False)
                case Arrive(barrier, index):
                    self.use(barrier.name, barrier.stages, index, ranges, after, gives=True)
                case Act(_, _, touches, signal):
                    if signal:
                        self.use(
                            signal[0].name, signal[0].stages, signal[1], ranges, after, gives=True
                        )
                    for touch in touches:
                        ring = touch.ring
                        if ring.share == "thread" and touch.part != 1:
                            text = f"{node} writes a part of the registers {ring.name}"
                            raise DoubtError("wholes", text)
                        self.use(
                            f" {ring.name}", ring.stages, touch.index, ranges, after, gives=True
                        )
                case _:
                    pass
        return after

    def guard(self, index: Affine, bound: int | str, ranges: dict[str, Range]) -> None:
        """Take up a guard: a distance to an end of the loop over steps."""
        if any(isinstance(c, str) for _, c in index.terms):
            raise DoubtError("guards", f"guard {index} < {bound} is no distance to a loop's end")
        step = sum(c for n, c in index.terms if n == self.step and isinstance(c, int))
        rest = Affine(index.constant, tuple(t for t in index.terms if t[0] != self.step))
        low, high = self.range(rest, ranges)
        if isinstance(bound, str) and step in (0, 1):
            self.guards = max(self.guards, high + 1)
        elif isinstance(bound, int) and step in (-1, 1):
            self.guards = max(self.guards, abs(low - bound) + 1, abs(high - bound) + 1)
        elif not (isinstance(bound, int) and step == 0):
            raise DoubtError("guards", f"guard {index} < {bound} is no distance to a loop's end")

    def range(self, form: Affine, ranges: dict[str, Range]) -> Range:
        """Return the least and the greatest value; every variable has to have a range."""
        low = high = form.constant
        for name, factor in form.terms:
            if not isinstance(factor, int) or name not in ranges:
                raise DoubtError(
                    "indices", f"{form} depends on {name}, which is neither step nor tile"
                )
            ends = [factor * end for end in ranges[name]]
            low, high = low + min(ends), high + max(ends)
        return low, high

    def use(
        self,
        name: str,
        stages: int,
        index: Affine,
        ranges: dict[str, Range],
        after: bool,
        *,
        gives: bool,
    ) -> None:
        """Take up an index: how far it is from its step, tile or turn."""
        terms = dict(index.terms)
        counted = {self.step, self.tile} if self.step else {self.trips, self.tile}
        exact = len(terms) == len(index.terms)
        rest = Affine(index.constant, tuple(
            (n, c) for n, c in index.terms if n not in (self.tile, self.turn, self.step, self.trips)
        ))  # fmt: skip
        low, high = self.range(rest, ranges)
        over_steps = terms.get(self.step) == 1 if self.step else terms.get(self.trips) == 1
        by_tile = terms.get(self.tile) == self.trips if self.tile else True
        pace: tuple[str, int]
        paced = set(terms) & {self.tile, self.turn, self.step, self.trips}
        if exact and over_steps and by_tile and (self.step or after) and paced <= counted:
            pace = ("step", 1)
            shift = 0 if self.step else 1  # after the loop the step is the last, trips - 1
            low, high = low + shift, high + shift
        elif exact and self.tile and paced == {self.tile}:
            pace = ("tile", self.whole(terms[self.tile], index))
        elif exact and self.tile and paced == {self.turn}:
            pace = ("turn", self.whole(terms[self.turn], index))
        else:
            raise DoubtError("indices", f"index {index} runs over neither steps nor tiles")
        ring = self.rings.setdefault(name, _Ring(stages, pace))
        if ring.pace != pace:
            raise DoubtError("indices", f"{name.strip()} runs at two speeds")
        (ring.gives if gives else ring.waits).append((low, high))

    def whole(self, coefficient: int | str, index: Affine) -> int:
        """Return a coefficient that is a positive number."""
        if not isinstance(coefficient, int) or coefficient < 1:
            raise DoubtError(
                "indices", f"index {index} runs backwards, or over neither steps nor tiles"
            )
        return coefficient

    def points(self, lowest: dict[str, int], *, observed: bool) -> Points:
        """Return the points that decide all others."""
        width, far = 0, 0
        for name, ring in self.rings.items():
            given = min((low for low, _ in ring.gives), default=0)
            if ring.waits and max(high for _, high in ring.waits) > given:
                raise DoubtError("meetings", f"a wait for {name} looks ahead of who arrives")
            pace, factor = ring.pace
            reach = ring.reach(observed=observed)
            if pace == "step":
                width = max(width, reach)
            else:
                tiles = -(-reach // factor) * (self.turns if pace == "turn" else 1)
                far = max(far, tiles)
        window = width + 2 * self.guards
        least = min(max(lowest.values(), default=0), window + 2)  # more trips are as so many
        if not self.protocol.persistent:
            counts = [(n, 1) for n in range(least, window + 3)]
        else:
            counts = [(0, far + 2)] if not self.trips else []
            for trips in range(least, window + 3 if self.trips else 0):
                tiles = -(-window // max(trips, 1)) + 2
                counts.append(
                    (trips, max(tiles, far + 2) if trips <= 2 * self.guards + 2 else tiles)
                )
        return tuple(
            {TILES: number, **dict.fromkeys(lowest, trips)}
            for trips, tiles in counts
            for number in dict.fromkeys((min(tiles, 1), tiles))
        )
