"""Blocks: the roles of a program beside one another, cut where loops of unknown length begin.

Each copy of a role in each CTA is two *agents*: its first thread, and one that stands for all its
other threads; a role without ``Elect`` is one agent that stands for all of its threads.  An agent's
body is specialised: ranks and copies are numbers, ``Elect`` is the first thread's.  What is left
are loops over tiles, loops of a parameter's trips in them, and statements between.  The loops of
all agents are laid beside one another, tiles by tiles, trips by trips.  What stands between two
heads of loops is a *block*; a run is a sequence of blocks.

**Counters.**  ``tiles`` counts tiles, a parameter's name the steps of its loop through all tiles,
and a copy's name the turns of a copy that takes some tiles only.  An index moves with counters:
``trips*t + k`` with the steps, ``2*i`` with the turns, twice.  All indices of a ring have to move
alike (its *pace*).  Relative to the counters an index then is a constant, its *offset*.

>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS, Hopper
>>> from tinygpu.term.operation import matmul
>>> from tinygpu.legality.concurrency.erase import erase
>>> program = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["persistent"]))
>>> plan = laid_out(erase(program))
>>> print(plan)
block 0
tiles:
  block 1
  trips:
    block 2
  block 3
block 4
>>> print(*plan.agents, sep="; ")
consumer 0; consumer 0's others; consumer 1; consumer 1's others; producer; producer's others
>>> [(p.ring, p.stages, dict(p.pace)) for p in plan.places if p.ring == "smem_a"]
[('smem_a', 4, {('*',): 0, ('steps', 'trips'): 1})]

Source: ``docs/model-concurrency.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import lcm

from tinygpu.legality.concurrency.erase import Footprint, Kind, kind_of, settled
from tinygpu.legality.concurrency.symmetry import Symmetry, symmetry_of
from tinygpu.term.program import (
    Affine,
    Arrive,
    Barrier,
    Block,
    Buffer,
    Commit,
    Do,
    Elect,
    Exit,
    For,
    ForTile,
    Program,
    RingUse,
    Role,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    When,
    counted,
    each,
)

__all__ = [
    "TILES",
    "Agent",
    "At",
    "Cells",
    "LaidOut",
    "Op",
    "Section",
    "Spot",
    "Touch",
    "expanded",
    "laid_out",
    "unfolded",
]  # fmt: skip

TILES = "*"  # a counter's name that no parameter has
Body = tuple[Statement, ...]
THROUGH = ("load", "store", "product", "mma", "cp")
"""What comes through the asynchronous proxy."""
TENSOR = ("mma", "cp", "take", "put")
Counter = tuple[str, ...]  # ("tiles",), ("steps", parameter) or ("turns", role, copy, CTA)


@dataclass(frozen=True, slots=True)
class Agent:
    """One thread, or ``threads`` that do the same."""

    number: int
    cta: int
    role: int
    copy: int
    leader: bool
    threads: int
    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(slots=True)
class Spot:
    """A ring or a barrier: of an agent (registers), of a copy, of a CTA.

    ``pace``: by how much its indices move with each counter.  ``lowest``: its least offset.
    ``crossed``: the asynchronous proxy touches it.  ``askers``: the agents that touch it, from
    which shift of the cluster, and whether by a tcgen05 instruction.  ``loaded``: nothing but loads
    writes it, or, of a barrier, some load counts there; ``late``: some contribution to it is later
    than its thread; ``named``: it is a named barrier.
    """

    number: int
    ring: str
    stages: int
    level: str
    cta: int
    private: bool = False
    arrivals: int = 0
    named: bool = False
    pace: dict[Counter, int] = field(default_factory=dict)
    lowest: int = 0
    crossed: bool = False
    late: bool = False
    loaded: bool = True
    product: bool = False
    askers: set[tuple[int, int, bool]] = field(default_factory=set)

    @property
    def moves(self) -> bool:
        """Whether its indices grow without end."""
        return any(self.pace.values())


@dataclass(frozen=True, slots=True, order=True)
class Cells:
    """The cells that a write fills: of which statement, in which iteration and of which CTA.

    ``once`` and ``apart`` are those of the statement's footprint.
    """

    statement: tuple[int, int]
    iteration: tuple[int, ...]
    once: bool
    apart: bool

    def disjoint(self, other: Cells) -> bool:
        """Say whether it is proved that no cell is in both."""
        if self.statement == other.statement:
            return self.once and self.iteration != other.iteration
        return self.apart or other.apart


@dataclass(frozen=True, slots=True)
class Touch:
    """An access: of which place, from which shift it is seen there, at which offset.

    ``piece``: the cells of a write.  ``late``: it counts at a barrier later than its thread.
    """

    place: int
    shift: int
    offset: int
    part: Fraction = Fraction(1)
    own: bool = True
    piece: Cells | None = None
    token: tuple[object, ...] = ()
    late: bool = False


@dataclass(frozen=True, slots=True)
class Op:
    """A statement of a block, executed by an agent.

    ``told``: to which barriers it tells, seen from which shift, at which offset.  ``joins``: the
    group of what is then under way.
    """

    node: Statement
    kind: Kind | str
    values: tuple[tuple[str, int], ...]
    reads: tuple[Touch, ...] = ()
    writes: tuple[Touch, ...] = ()
    told: tuple[Touch, ...] = ()
    fresh: bool = False
    amount: int = 0
    group: tuple[object, ...] = ()
    joins: str = ""

    def __str__(self) -> str:
        text = str(self.node)
        if isinstance(self.node, Do):
            names = [str(a) for a in self.node.accesses if a.buffer.level != "gmem"]
            text = self.node.instruction.name + (f" of {', '.join(names)}" if names else "")
        elif self.node.uses:
            text = f"{'wait' if self.kind == 'wait' else 'arrive'} {self.node.uses[0].ring.name}"
        where = ", ".join(f"{name}={number}" for name, number in self.values)
        return f"{text} at {where}" if where else text


@dataclass(frozen=True, slots=True)
class Node:
    """A statement with its number in the role, and the body that an agent has of it."""

    number: int
    node: Statement
    body: tuple[Node, ...] = ()


Nodes = tuple[Node, ...]
Scope = Mapping[str, Counter]  # loop variables of unknown range, and what they count


@dataclass(frozen=True, slots=True)
class Section:
    """A block (``param`` "" and no ``inner``), a loop of a parameter's trips, or the tiles."""

    number: int
    param: str = ""
    inner: tuple[Section, ...] = ()
    bodies: tuple[tuple[Scope, Nodes], ...] = ()  # of a block, by agent


@dataclass(frozen=True, slots=True)
class At:
    """What a block is told of counters, each as far as guards can tell.

    ``gone`` and ``left``: of each parameter the steps before and from here on; ``where`` is
    "before", "in" or "after" its loop.  ``tile``: the tile's number modulo ``LaidOut.turns``.
    """

    gone: tuple[tuple[str, int], ...]
    left: tuple[tuple[str, int], ...]
    where: tuple[tuple[str, str], ...]
    tile: int = 0


@dataclass(slots=True)
class LaidOut:
    """A program, laid out.  ``failed`` are the assumptions that do not hold.

    Guards, bounds and restarts tell apart, of a parameter's loop, so many steps from its start
    (``starts``) and from its end (``ends``), and whether it has fewer than ``totals`` steps at all.
    """

    program: Program
    symmetry: Symmetry
    agents: list[Agent]
    sections: tuple[Section, ...]
    places: list[Spot]
    least: dict[str, int]
    starts: dict[str, int]
    ends: dict[str, int]
    totals: dict[str, int]
    inside: dict[str, bool]  # whether a parameter's loop is in the tiles
    turns: int
    strides: dict[int, tuple[int, int]]  # of an agent: its first tile and its step
    failed: list[str]
    pending: dict[str, int]  # the most groups that a wait leaves, by their kind
    grouped: list[dict[str, None]]  # of an agent: the kinds of its groups
    shared: list[str]  # bar.sync that two groups of threads share
    tensor: bool
    known: dict[tuple[object, ...], Spot]
    reached: dict[tuple[int, int, str, str], tuple[tuple[Spot, int], ...]]
    envs: list[dict[str, int]]  # ranks and copies, by agent
    bodies: list[Nodes]
    ops: dict[tuple[object, ...], Op] = field(default_factory=dict)  # of blocks, by agent and node

    @property
    def near(self) -> dict[str, int]:
        """How many steps before a block it has to know of, at most."""
        return {n: max(self.starts.get(n, 0), self.totals.get(n, 0))
                for n in (*self.starts, *self.totals)}  # fmt: skip

    @property
    def far(self) -> dict[str, int]:
        """How many steps from a block on it has to know of, at most."""
        return {n: max(self.ends.get(n, 0), self.totals.get(n, 1) - 1)
                for n in (*self.ends, *self.totals)}  # fmt: skip

    @property
    def own(self) -> tuple[str, ...]:
        """The numbers that each tile has for itself."""
        return tuple(self.program.tile_values)

    @property
    def each_tile(self) -> tuple[str, ...]:
        """The numbers that are chosen anew for each tile: of loops inside, and what is its own."""
        tiled = any(section.param == TILES for section in self.sections)
        return tuple(
            n
            for n in {**self.inside, **self.near, **self.far}
            if self.inside.get(n) or (tiled and n in self.own)
        )

    def doubt(self, text: str) -> None:
        """Note an assumption that does not hold."""
        if text not in self.failed:
            self.failed.append(text)

    def __str__(self) -> str:
        return "\n".join(_show(self.sections, ""))


def _show(sections: tuple[Section, ...], indent: str) -> Iterator[str]:
    for s in sections:
        if s.inner:
            yield f"{indent}{'tiles' if s.param == TILES else s.param}:"
            yield from _show(s.inner, indent + "  ")
        else:
            yield f"{indent}block {s.number}"


def _special(
    body: Body, env: Mapping[str, int], leader: bool, numbers: Iterator[int], persistent: bool
) -> Nodes:
    """Return what one agent executes of a body."""
    out: list[Node] = []
    for s in body:
        number = next(numbers)
        s = settled(s, env)
        if not isinstance(s, Block):
            out.append(Node(number, s))
            continue
        if isinstance(s, ForTile) and not persistent:  # one tile, the first
            inner = _special(s.body, {**env, s.tile: 0, s.turn: 0}, leader, numbers, persistent)
            out += inner if s.start == Affine() else _shells(inner)
            continue
        inner = _special(s.body, env, leader, numbers, persistent)
        entered = (
            [leader]
            if isinstance(s, Elect)
            else [
                index.constant < bound
                for index, bound in s.guards
                if not index.terms and isinstance(bound, int)
            ]
        )
        if entered:
            out += inner if all(entered) else _shells(inner)
        else:
            out.append(Node(number, replace(s, body=()), inner))
    return tuple(out)


def _shells(body: Nodes) -> Nodes:
    """Return the loops of unknown length alone: where they stand beside those of others."""
    return tuple(replace(node, body=_shells(node.body)) for node in body if _unknown(node))


def _unknown(node: Node) -> str:
    """Return what an agent's loop runs over if that is unknown, else ""."""
    match node.node:
        case ForTile():
            return TILES
        case For(trips=str(name)):
            return name
        case _:
            return ""


class _Reader:
    """Lays a program out."""

    def __init__(self, program: Program, early: bool) -> None:
        self.early = early
        symmetry = symmetry_of(program)
        self.plan = LaidOut(
            program, symmetry, [], (), [], {}, {}, {}, {}, {}, 1, {}, [], {}, [], [], False, {},
            {}, [], [],
        )  # fmt: skip
        self.count = 0
        self.groups: dict[tuple[int, int], tuple[object, ...]] = {}
        for name, low in program.least_values().items():
            self.plan.least[name] = max(0, int(low))
        self.signed = {name for name, low in program.least_values().items() if low < 0}

    def read(self) -> LaidOut:
        plan = self.plan
        bodies = plan.bodies
        for first in range(plan.symmetry.firsts):
            ranks = plan.symmetry.ranks(first)
            for number, role in enumerate(plan.program.roles):
                for copy in range(role.copies):
                    self._agents(first, number, role, copy, ranks, bodies)
        for number, body in enumerate(bodies):
            self._names(body, frozenset(plan.envs[number]))
        plan.sections = self._merged(bodies, [{} for _ in bodies], 0)
        steps = [step for _, step in plan.strides.values()]
        plan.turns = lcm(*steps) if steps else 1
        where = dict.fromkeys(plan.inside, "before")
        self._paces(plan.sections, where, tiled="before")
        for place in plan.places:
            if any(factor < 0 for factor in place.pace.values()):
                self.fail(f"indices of {place.ring} run backwards")
            turns = {c for c, factor in place.pace.items() if factor and c[0] == "turns"}
            if turns and len({self._turns(a) for a, _, _ in place.askers}) > 1:
                self.fail(f"{place.ring} turns with one copy, and others touch it")
        return plan

    def fail(self, text: str) -> None:
        self.plan.doubt(text)

    def _agents(
        self, first: int, number: int, role: Role, copy: int, ranks: dict[str, int],
        bodies: list[Nodes],
    ) -> None:  # fmt: skip
        name = role.name + (f" {copy}" if role.copies > 1 else "")
        name += f" of CTA {first}" if self.plan.symmetry.firsts > 1 else ""
        env = {**ranks, **({role.copy: copy} if role.copy else {})}
        apart = role.threads > 1 and any(isinstance(s, Elect) for s in each(role.body))
        for leader in (True, False)[: 1 + apart]:
            threads = (1 if leader else role.threads - 1) if apart else role.threads
            agent = Agent(len(self.plan.agents), first, number, copy, leader, threads,
                          name if leader else f"{name}'s others")  # fmt: skip
            self.plan.agents.append(agent)
            self.plan.envs.append(env)
            self.plan.grouped.append({})
            bodies.append(
                _special(role.body, env, leader, iter(range(1 << 30)), self.plan.program.persistent)
            )

    def _names(self, body: Nodes, bound: frozenset[str]) -> None:
        """Check that a variable is bound once on a path, and a trip count is a parameter."""
        for node in body:
            s = node.node
            mine = frozenset(s.binds)
            for name in (n for n in s.numbers if isinstance(n, str)):
                if name in bound | mine:
                    self.fail(f'"{s}" names a variable, {name}')
            if mine & bound:
                self.fail(f"{min(mine & bound)} is bound twice")
            self._names(node.body, bound | mine)

    def _merged(
        self, bodies: Sequence[Nodes], scopes: Sequence[Scope], depth: int
    ) -> tuple[Section, ...]:
        """Lay bodies beside one another."""
        keys = [[key for node in body if (key := _unknown(node))] for body in bodies]
        longest = max(keys, key=len, default=[])
        if len(set(longest)) < len(longest):
            twice = next(k for i, k in enumerate(longest) if k in longest[:i])
            self.fail(f"two loops over {twice}, one after the other")
        parts = [self._cut(body, longest) for body in bodies]
        sections: list[Section] = []
        for i, key in enumerate([*longest, ""]):
            sections.append(self._block([part[2 * i] for part in parts], scopes))
            if not key:
                break
            loops = [part[2 * i + 1] for part in parts]
            inner: list[Nodes] = []
            within: list[Scope] = []
            for agent, (loop, scope) in enumerate(zip(loops, scopes, strict=True)):
                inner.append(())
                within.append(scope)
                if not loop:
                    continue
                match loop[0].node:
                    case ForTile(tile, turn, _, start, step):
                        first = start.constant if isinstance(start, Affine) else start
                        if (isinstance(start, Affine) and start.terms) or not 0 <= first < step:
                            self.fail(f"{self.plan.agents[agent]} takes tiles from {start}")
                        self.plan.strides[agent] = (first, step)
                        turns = (TILES,) if step == 1 else self._turns(agent)
                        within[-1] = {**scope, tile: (TILES,), turn: turns}
                        inner[-1] = loop[0].body
                    case For(var, _, _, _, start):
                        if start < 0:
                            self.fail(f"the loop over {var} begins below 0")
                        within[-1] = {**scope, var: ("steps", key)}
                        inner[-1] = loop[0].body
                        if start:
                            late = When(Affine(start, ((var, -1),)), 1, ())
                            inner[-1] = (Node(loop[0].number, late, inner[-1]),)
                    case _:
                        pass
            if key == TILES:
                if depth:
                    self.fail("a loop over tiles stands inside another loop")
                sections.append(Section(-1, TILES, self._merged(inner, within, 1)))
            else:
                if key in self.plan.inside:
                    self.fail(f"two loops over {key}, one after the other")
                self.plan.inside[key] = bool(depth)
                if any(_unknown(node) for body in inner for node in body):
                    self.fail(f"inside the loop over {key} is another of unknown length")
                block = self._block(inner, within)
                sections.append(Section(-block.number - 1, key, (block,)))
        return tuple(sections)

    def _turns(self, agent: int) -> Counter:
        a = self.plan.agents[agent]
        return ("turns", str(a.role), str(a.copy), str(a.cta))

    def _cut(self, body: Nodes, keys: Sequence[str]) -> list[Nodes]:
        """Cut a body into blocks and loops, with nothing for loops that it has not."""
        parts: list[Nodes] = [()] * (2 * len(keys) + 1)
        at = 0
        waiting: Nodes = ()
        for node in body:
            key = _unknown(node)
            if not key:
                waiting += (node,)
                if any(map(_unknown, _under(node))):
                    self.fail("a loop of unknown length stands inside a guard or another loop")
                continue
            first = at
            while at < len(keys) and keys[at] != key:
                at += 1
            if at == len(keys):
                self.fail("the roles' loops cannot be laid beside one another")
                return parts
            parts[2 * (first if self.early else at)] = waiting
            parts[2 * at + 1] = (node,)
            at, waiting = at + 1, ()
        parts[2 * (at if self.early else len(keys))] = waiting
        return parts

    def _block(self, bodies: Sequence[Nodes], scopes: Sequence[Scope]) -> Section:
        self.count += 1
        return Section(self.count - 1, bodies=tuple(zip(scopes, bodies, strict=True)))

    def _paces(self, sections: tuple[Section, ...], where: dict[str, str], *, tiled: str) -> None:
        """Read every index and guard of sections in order."""
        for section in sections:
            if section.param == TILES:
                self._paces(section.inner, where, tiled="in")
                tiled = "after"
            elif section.param:
                where[section.param] = "in"
                self._paces(section.inner, where, tiled=tiled)
                where[section.param] = "after"
            else:
                for agent, (scope, body) in enumerate(section.bodies):
                    self._visit(agent, body, scope, {}, where, tiled)

    def _visit(
        self, agent: int, body: Nodes, scope: Scope, ranges: Mapping[str, tuple[int, int]],
        where: Mapping[str, str], tiled: str,
    ) -> None:  # fmt: skip
        for node in body:
            s = node.node
            inside = ranges
            match s:
                case For(var, int(trips), _, _, start):
                    if trips <= start:
                        continue  # nobody executes its body
                    inside = {**ranges, var: (start, trips - 1)}
                case When(index, bound):
                    self._guard(index, bound, scope, ranges, where, tiled)
                case Do(fresh=Affine() as form):
                    self._start(form, scope, ranges, where)
                case Exit() if self.plan.program.barriers:
                    self.fail("threads leave a CTA with mbarriers early")
                case WaitGroup(pending, group):
                    most = self.plan.pending
                    most[group] = max(most.get(group, 0), pending)
                    self.plan.grouped[agent][group] = None
                case Commit(group):
                    self.plan.grouped[agent][group] = None
                case Do() if s.joins:
                    self.plan.grouped[agent][s.joins.name] = None
                case Sync(number, scope_) if scope_ != "cluster":
                    a, role = self.plan.agents[agent], scope_ == "role"
                    team = (a.role, a.copy) if role else ()
                    self._meets(agent, number + a.copy * role, team)
                case Wait() | Arrive() if s.barrier.number is not None:
                    for stage in range(s.barrier.stages):
                        self._meets(agent, s.barrier.number + stage, (s.barrier.name,))
                case _:
                    pass
            kind = kind_of(s) if isinstance(s, Do) else ""
            for ring, form, how, peer in _indices(s):
                pace, rest = self._split(form, scope, ranges, where, tiled)
                low = _range(rest, ranges)[0]
                reached = _places(self.plan, agent, ring, how, peer, s)
                for place, shift in reached:
                    if how == "tell":
                        place.late |= _late(self.plan, s, shift, len(reached))
                        place.loaded |= isinstance(s, Do)
                    elif how == "write":
                        place.loaded &= kind == "load"
                    place.lowest = min(place.lowest, low)
                    place.crossed |= kind in THROUGH
                    made = kind in ("product", "mma") and (how == "write" or place.private)
                    place.product |= made
                    tensor = kind in TENSOR
                    self.plan.tensor |= tensor
                    place.askers.add((agent, shift, tensor))
                    for counter, factor in pace.items():
                        if place.pace.setdefault(counter, factor) != factor:
                            self.fail(f"indices of {place.ring} move at two speeds")
            self._visit(agent, node.body, scope, inside, where, tiled)

    def _meets(self, agent: int, number: int, group: tuple[object, ...]) -> None:
        """Note who meets at which number."""
        a = self.plan.agents[agent]
        key = (a.cta, number)
        if self.groups.setdefault(key, group) != group:
            text = f"bar.sync {key[1]} joins other threads in {a} than elsewhere"
            self.plan.shared.append(f"{text}; choose another number")

    def _split(
        self, form: Affine, scope: Scope, ranges: Mapping[str, tuple[int, int]],
        where: Mapping[str, str], tiled: str,
    ) -> tuple[dict[Counter, int], Affine]:  # fmt: skip
        """Return how an index moves with counters, and the rest of it."""
        pace: dict[Counter, int] = {}
        rest: list[tuple[str, int | str]] = []
        base: dict[str, int] = {}
        for name, factor in form.terms:
            counter = scope.get(name)
            if name in ranges and isinstance(factor, int):
                rest.append((name, factor))
            elif isinstance(factor, str):
                if counter == (TILES,) and self.plan.inside.get(factor):
                    base[factor] = base.get(factor, 0) + 1
                else:
                    self.fail(f"index {form} multiplies by {factor}")
            elif counter is not None:
                pace[counter] = pace.get(counter, 0) + factor
            elif where.get(name) == "after" and name not in self.signed:
                pace["steps", name] = pace.get(("steps", name), 0) + factor
            else:
                self.fail(f"index {form} names {name}")
        found: dict[Counter, int] = {c: f for c, f in pace.items() if c[0] != "steps"}
        if tiled != "before":
            found.setdefault((TILES,), 0)
        for name, inner in self.plan.inside.items():
            moved = pace.get(("steps", name), 0)
            counter = ("steps", name)
            if inner and tiled == "in":
                if where[name] != "before" and base.get(name, 0) != moved:
                    self.fail(f"index {form} moves at two speeds with {name}")
                found[counter] = base.get(name, 0)
            elif inner:
                if tiled == "after":
                    found[counter] = 0
            elif where[name] != "before":
                found[counter] = moved
        return found, Affine(form.constant, tuple(rest))

    def _guard(
        self, index: Affine, bound: int | str, scope: Scope, ranges: Mapping[str, tuple[int, int]],
        where: Mapping[str, str], tiled: str,
    ) -> None:  # fmt: skip
        """Take up how far a guard looks."""
        plan = self.plan
        if isinstance(bound, int) and (near := _to_end(index, scope)):
            loop, rest = near
            if all(name in ranges and isinstance(c, int) for name, c in rest.terms):
                last = bound - _range(rest, ranges)[0] - 1
                plan.ends[loop] = max(plan.ends.get(loop, 0), last)
                return
        if asked := _of_own(plan, index, bound):
            name, least = asked
            plan.totals[name] = max(plan.totals.get(name, 1), least)
            self._inside_of_tiles(name, index, bound, tiled)
            return
        own, factor, rest = self._step(index, scope, ranges)
        if own is None:
            self.fail(f"guard {index} < {bound} compares what no loop of its own counts")
            return
        low, high = _range(rest, ranges)
        if isinstance(bound, int):
            if factor > 0:
                plan.starts[own] = max(plan.starts.get(own, 0), -((low - bound) // factor))
            elif factor < 0:
                plan.starts[own] = max(plan.starts.get(own, 0), (high - bound) // -factor + 1)
        elif (factor == 1 and own == bound) or factor == 0:
            if bound in self.signed and low < 0:
                self.fail(f"{bound} may be negative, and a guard asks")
            self._inside_of_tiles(bound, index, bound, tiled)
            if factor:
                plan.ends[bound] = max(plan.ends.get(bound, 0), high)
            else:
                plan.totals[bound] = max(plan.totals.get(bound, 1), high + 1)
        else:
            self.fail(f"guard {index} < {bound} is no distance to its loop's end")

    def _inside_of_tiles(self, name: str, index: Affine, bound: int | str, tiled: str) -> None:
        """Refuse a guard outside of the tiles by a number that each of them has for itself."""
        if name in self.plan.each_tile and tiled != "in":
            self.fail(f"guard {index} < {bound} stands outside of the tiles")

    def _start(
        self, form: Affine, scope: Scope, ranges: Mapping[str, tuple[int, int]],
        where: Mapping[str, str],
    ) -> None:  # fmt: skip
        own, factor, rest = self._step(form, scope, ranges)
        if own is None:
            self.fail(f"sums start anew where {form} is 0, which no loop of their own counts")
        elif factor:
            low, high = _range(rest, ranges)
            end = -low // factor if factor > 0 else high // -factor
            self.plan.starts[own] = max(self.plan.starts.get(own, 0), end + 1)

    def _step(
        self, form: Affine, scope: Scope, ranges: Mapping[str, tuple[int, int]]
    ) -> tuple[str | None, int, Affine]:
        """Return the loop of unknown length that a form counts ("" if none), and its factor."""
        own, factor = "", 0
        rest: list[tuple[str, int | str]] = []
        for name, c in form.terms:
            if not isinstance(c, int):
                return None, 0, form
            if name in ranges:
                rest.append((name, c))
            elif (counter := scope.get(name)) is not None and counter[0] == "steps" and not own:
                own, factor = counter[1], c
            else:
                return None, 0, form
        return own, factor, Affine(form.constant, tuple(rest))


def _of_own(plan: LaidOut, index: Affine, bound: int | str) -> tuple[str, int] | None:
    """Return the tile value that a guard asks to be less than a number, and the number."""
    match index.terms:
        case ((str(name), 1),) if name in plan.own and isinstance(bound, int):
            return name, bound - index.constant
    return None


def _to_end(form: Affine, scope: Scope) -> tuple[str, Affine] | None:
    """Return the loop whose turns from here on a form counts, ``trips - k``, and its rest."""
    for name, c in form.terms:
        counter = scope.get(name)
        if counter is None or counter[0] != "steps" or c != -1 or (counter[1], 1) not in form.terms:
            continue
        rest = tuple(t for t in form.terms if t not in ((name, -1), (counter[1], 1)))
        return counter[1], Affine(form.constant, rest)
    return None


def _under(node: Node) -> Iterator[Node]:
    for inner in node.body:
        yield inner
        yield from _under(inner)


def _range(form: Affine, ranges: Mapping[str, tuple[int, int]]) -> tuple[int, int]:
    low = high = form.constant
    for name, factor in form.terms:
        assert isinstance(factor, int)
        ends = [factor * end for end in ranges[name]]
        low, high = low + min(ends), high + max(ends)
    return low, high


def _indices(s: Statement) -> Iterator[RingUse]:
    """Yield the rings and barriers of a statement; where it writes to global memory is none."""
    for use in s.uses:
        if use.how != "write" or (isinstance(use.ring, Buffer) and use.ring.level != "gmem"):
            yield use


def _places(
    plan: LaidOut, agent: int, ring: Buffer | Barrier, how: str, peer: int, s: Statement
) -> tuple[tuple[Spot, int], ...]:
    """Return the places that a statement touches, and from which shift it is seen there."""
    asked = (agent, id(s), ring.name, how)
    if asked not in plan.reached:
        plan.reached[asked] = tuple(_reached(plan, agent, ring, how, peer, s))
    return plan.reached[asked]


def _reached(
    plan: LaidOut, agent: int, ring: Buffer | Barrier, how: str, peer: int, s: Statement
) -> Iterator[tuple[Spot, int]]:
    a, symmetry = plan.agents[agent], plan.symmetry
    ctas: Iterable[tuple[int, int]] = [(a.cta, 0)]
    if isinstance(s, Do) and ((kind_of(s) == "load" and how != "read") or kind_of(s) == "mma"):
        ctas = symmetry.along(a.cta, s.multicast)
    elif isinstance(s, Arrive):
        ctas = symmetry.along(a.cta, s.to if s.to != "cta" else "")
    for cta, shift in ctas:
        home = symmetry.at_home(cta, ring.home, peer) if how in ("write", "tell") else cta
        key: tuple[object, ...] = (ring.name, home)
        if isinstance(ring, Barrier):
            key = ("barrier", *key)
            new = Spot(0, ring.name, ring.stages, "barrier", home, arrivals=ring.arrivals)
            new.loaded, new.named = False, ring.named
        elif ring.level == "registers":
            key = (ring.name, "agent", agent)
            new = Spot(0, ring.name, ring.stages, ring.level, a.cta, private=True)
        else:
            key = (*key, a.role, a.copy) if ring.copies > 1 else key
            new = Spot(0, ring.name, ring.stages, ring.level, home)
        if key not in plan.known:
            new.number = len(plan.places)
            plan.known[key] = new
            plan.places.append(new)
        yield plan.known[key], shift


def _late(plan: LaidOut, s: Statement, shift: int, ctas: int) -> bool:
    """Whether a contribution may count later than its thread goes on: of copies, or far away."""
    if not isinstance(s, Arrive):
        return True
    several = plan.symmetry.shifts * plan.symmetry.firsts > 1
    return bool(s.after) or (several and bool(shift or ctas > 1 or s.barrier.home))


def laid_out(program: Program, *, early: bool = False) -> LaidOut:
    """Lay an erased program's loops beside one another.

    What a role does beside loops that it has not goes behind them, or, with ``early``, before.
    """
    return _Reader(program, early).read()


def expanded(plan: LaidOut, section: Section, agent: int, at: At) -> tuple[Op, ...]:
    """Return what an agent does in a block, with offsets in the place of indices."""
    scope, body = section.bodies[agent]
    if any(counter[0] in (TILES, "turns") for counter in scope.values()):
        first, step = plan.strides[agent]
        if (at.tile - first) % step:
            return ()
    gone, left, where = dict(at.gone), dict(at.left), dict(at.where)

    def passes(index: Affine, bound: int | str, env: Env) -> bool:
        if isinstance(bound, int) and (near := _to_end(index, scope)):
            return left[near[0]] + _parted(near[1], scope, env)[0] < bound
        if asked := _of_own(plan, index, bound):
            name, least = asked
            return gone.get(name, 0) + left[name] < least
        rest, own, factor = _parted(index, scope, env)
        if isinstance(bound, int):
            return rest + factor * gone.get(own, 0) < bound
        if factor:
            return left[bound] > rest
        more = left.get(bound, 0) if where.get(bound) != "after" else 0
        return gone.get(bound, 0) + more > rest

    def fresh(form: Affine, env: Env) -> bool:
        rest, own, factor = _parted(form, scope, env)
        return rest + factor * gone.get(own, 0) == 0

    def offset(form: Affine, env: Env) -> int:
        return form.constant + sum(
            c * env[name] for name, c in form.terms if isinstance(c, int) and name in env
        )

    out: list[Op] = []
    _Walk(plan, agent, passes, offset, fresh, out, known=plan.ops).visit(body, plan.envs[agent], ())
    return tuple(out)


def unfolded(
    plan: LaidOut, agent: int, tiles: Sequence[Mapping[str, int]], once: Mapping[str, int]
) -> tuple[Op, ...]:
    """Return all that an agent does, where ``tiles`` and ``once`` say how often loops run.

    This reads the terms alone, whatever assumptions they break.
    """

    def number(form: Affine, env: Env) -> int:
        total = form.constant
        for name, factor in form.terms:
            x = env[name] if name in env else env[f"={name}"]
            if isinstance(factor, int):
                total += factor * x
            elif (running := counted(name, factor)) in env:
                total += env[running]
            else:
                total += env[f"={factor}"] * x
        return total

    def passes(index: Affine, bound: int | str, env: Env) -> bool:
        return number(index, env) < (env[f"={bound}"] if isinstance(bound, str) else bound)

    def fresh(form: Affine, env: Env) -> bool:
        return number(form, env) == 0

    out: list[Op] = []
    walk = _Walk(plan, agent, passes, number, fresh, out)
    walk.tiles = tiles
    first = dict.fromkeys((a.var for a in plan.program.grid), 0)
    walk.visit(plan.bodies[agent], {**first, **_named(once), **plan.envs[agent]}, ())
    return tuple(out)


def _named(parameters: Mapping[str, int]) -> dict[str, int]:
    """Return parameters under names that no variable has."""
    return {f"={name}": number for name, number in parameters.items()}


Env = Mapping[str, int]
Values = tuple[tuple[str, int], ...]


def _parted(form: Affine, scope: Scope, env: Env) -> tuple[int, str, int]:
    """Return the known part of a form, the loop of unknown length in it, and its factor."""
    rest, own, factor = form.constant, "", 0
    for name, c in form.terms:
        assert isinstance(c, int)
        if name in env:
            rest += c * env[name]
        else:
            own, factor = scope[name][-1], c
    return rest, own, factor


@dataclass(slots=True)
class _Walk:
    """Executes an agent's loops and guards, and notes its operations.

    ``known``: operations that do not depend on how far the loops of unknown length are.
    """

    plan: LaidOut
    agent: int
    passes: Callable[[Affine, int | str, Env], bool]
    number: Callable[[Affine, Env], int]
    fresh: Callable[[Affine, Env], bool]
    out: list[Op]
    tiles: Sequence[Mapping[str, int]] = ()
    known: dict[tuple[object, ...], Op] | None = None

    def visit(self, body: Nodes, env: Env, values: Values, turns: Values = ()) -> None:
        """Visit a body; ``turns`` are the values of loops of unknown length."""
        for node in body:
            match node.node:
                case For(var, trips, _, _, start):
                    stop = env[f"={trips}"] if isinstance(trips, str) else trips
                    for n in range(start, stop):
                        more = ((var, n),)
                        outer = (*turns, *more) if isinstance(trips, str) else turns
                        self.visit(node.body, {**env, var: n}, values + more, outer)
                case ForTile(tile, turn, _, start, step):
                    own = range(start.constant, len(self.tiles), step)
                    for i, t in enumerate(own):
                        here = {**env, **_named(self.tiles[t]), tile: t, turn: i}
                        for name in self.tiles[t]:
                            for v, earlier in ((tile, range(t)), (turn, own[:i])):
                                here[counted(v, name)] = sum(self.tiles[n][name] for n in earlier)
                        more = ((tile, t),)
                        self.visit(node.body, here, values + more, turns + more)
                case s if isinstance(s, Block):
                    if all(self.passes(index, bound, env) for index, bound in s.guards):
                        self.visit(node.body, env, values, turns)
                case s:
                    fresh = any(self.fresh(form, env) for form, _ in s.guards)
                    key = (self.agent, id(node), values, fresh)
                    op = self.known.get(key) if self.known is not None else None
                    if op is None:
                        op = self.op(node, env, values, turns, fresh=fresh)
                        if self.known is not None:
                            self.known[key] = op
                    self.out.append(op)

    def touches(
        self, ring: Buffer | Barrier, form: Affine, how: str, peer: int, s: Statement, env: Env
    ) -> tuple[Touch, ...]:
        """Return where a statement touches a ring or a barrier."""
        x = self.number(form, env)
        found = _places(self.plan, self.agent, ring, how, peer, s)
        late = [how == "tell" and _late(self.plan, s, shift, len(found)) for _, shift in found]
        return tuple(
            Touch(place.number, shift, x, late=after)
            for (place, shift), after in zip(found, late, strict=True)
        )

    def piece(self, number: int, write: Footprint, env: Env, shift: int) -> Cells:
        """Return which cells a write fills at a place that sees it from a shift."""
        ranks = self.plan.symmetry.moves(shift)
        iteration = tuple(env[n] + ranks.get(n, 0) for n in write.along)
        role = self.plan.agents[self.agent].role
        return Cells((number, role), iteration, write.once, write.apart)

    def op(self, node: Node, env: Env, values: Values, turns: Values, *, fresh: bool) -> Op:
        """Return a statement as an operation."""
        s, a = node.node, self.plan.agents[self.agent]
        uses = tuple(_indices(s))
        reads, writes, told = (
            tuple(t for u in uses if u.how in how for t in self.touches(*u, s, env))
            for how in (("read",), ("write",), ("tell", "wait"))
        )
        kind: Kind | str = type(s).__name__.lower()
        amount, group, joins = 0, tuple[object, ...](), ""
        match s:
            case Do(write=write):
                kind, amount, joins = kind_of(s), s.values[0], s.joins.name if s.joins else ""
                if not isinstance(write, Footprint):
                    writes = ()
                else:
                    consts = {**self.plan.envs[self.agent], **dict(values)}
                    apart = tuple(v for n, v in sorted(consts.items()) if n not in write.family)
                    token = (node.number, a.role, *apart, turns)
                    writes = tuple(
                        replace(
                            t,
                            part=write.part,
                            own=write.own,
                            piece=self.piece(node.number, write, env, t.shift),
                            token=(*token, t.shift),
                        )
                        for t in writes
                    )
            case Arrive():
                amount = s.bytes
            case Sync(number, "cta"):
                group = ("cta", a.cta, number)
            case Sync(number, "role"):
                group = ("role", a.cta, a.role, a.copy, number + a.copy)
            case Sync():
                group = ("cluster",)
        return Op(s, kind, values, reads, writes, told, fresh, amount, group, joins)
