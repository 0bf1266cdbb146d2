"""Work: what each statement of a term asks of an SM.

``agents(program, device, sizes)`` walks the term once and returns a tree of the same shape for
each role: an ``Event`` for a statement, a ``Loop`` for a loop.  An event keeps units busy for some
cycles, and its result can be used a latency later.  Numbers may be arrays over the decisions of a
space; each depends on few of them.  There are two ways to do a statement:

- *threads* each do it on values of their own.  The cycles are those of one warp.  Units: ``issue``
  (the schedulers' slots), ``fma``, ``fp64``, ``int``, ``cvt``, ``sfu``, ``shuffle``, ``smem``
  (wavefronts of shared memory, or what it returns) and ``l1`` (lines of global memory), which are
  stages of one load/store pipe, and ``tensor`` (what warps multiply together).
- a role does it on a *tile*: whoever issues it.  The cycles are those of the whole tile:
  ``serial`` (its own warps, in order: issue, conversions, synchronisation), ``tensor`` (a wgmma
  takes the longer of its arithmetic and its reads), ``smem`` (the port), ``tma`` (the copy engine)
  and ``fill`` (the way from L2 into this SM: of every byte that lands here, multicast or not).

A load of a tile also says how many bytes L2 sends for it: those to further receivers count in part.
Rows of a box outside the array come from nowhere, but TMA writes their zeros slowly, one by one,
unless the load leaves them out.

A role of tiles may hold arithmetic of its threads in a step.  It is *shared*: copies of a role have
the units of threads together, and each copy's warps issue in order.

A term without tiles is one agent, and all of it is its ``after``.  A role that takes tiles has the
form that the recursion follows step by step, with one loop over steps or several:

    for each tile:  before;  for each step:  body;  ..;  after

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS, Hopper
>>> from tinygpu.term.operation import matmul
>>> term = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["cluster"]))
>>> producer, consumer = agents(term, load_device("h200"), {"m": 4096, "n": 4096, "k": 4096})
>>> [event.kind for event in producer.body], int(consumer.body[1].cycles["tensor"])
(['wait', 'arrive', 'load', 'load'], 567)

Source: ``docs/model.md``, section "Time"; rates of wgmma: Luo et al., arXiv 2402.13499.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeVar, assert_never

import numpy as np

from tinygpu.devices.device import Device, adds_vectors
from tinygpu.errors import ProgramError
from tinygpu.isa.ordering import Group
from tinygpu.numbers import Change, Number, Truth
from tinygpu.search.time.fitted import FITTED
from tinygpu.search.time.launch import latency_of, never, takes_tiles
from tinygpu.search.time.pattern import lines, wavefronts
from tinygpu.search.time.rates import (
    AT_ONCE,
    MMA_LATENCY_CYCLES,
    block_cycles,
    cluster_latency,
    copy_cycles,
    fill_rate,
    home_cycles,
    line_writes,
    matrices,
    mbarrier_latency,
    product_cycles,
    sectors_of_warp,
    share_inside,
    smem_width,
    touches_smem,
    transfer_cycles,
)
from tinygpu.search.time.tile_steps import share_of_tiles, steps_of_tiles
from tinygpu.term.access_map import Affine
from tinygpu.term.digits import box_lines, product_of
from tinygpu.term.program import (
    Access,
    Arrive,
    Commit,
    Do,
    Elect,
    Exit,
    Fence,
    For,
    ForTile,
    Program,
    Role,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    When,
    each,
    select,
    walk,
)

__all__ = [
    "WARP", "Event", "Guard", "Loop", "Node", "StepLoop", "TimedAgent", "Tree", "agents", "clocked",
    "mapped", "of_agent", "returned", "total_work",
]  # fmt: skip

Kind = Literal[
    "do", "async", "sync",
    "wait", "arrive", "load", "product", "commit", "group", "store", "work", "math",
]  # fmt: skip
"""Of threads: what a register or a barrier waits for; of both: groups; else of tiles."""
Form = Literal["rolled", "unrolled", "serial", "signals"]
"""A branch; once through its chain and on at its pace; in order; in order, with barriers in it."""
_S = TypeVar("_S", bound=Statement)
WARP = 32
RETURNED_BYTES_PER_CYCLE = 256  # fitted: from shared memory to registers of an SM (fit_runs.json)
_NOWHERE = Affine()


@dataclass(frozen=True, slots=True)
class Event:
    """One statement (None: a loop's end): which units it occupies, what it waits for.

    ``count`` instructions, each of which takes ``each[unit]`` cycles: their product is kept apart
    until it is needed, for over a space it depends on more decisions than either.  ``arrivals``: of
    an arrival, how many it counts as; of a wait, how many complete the phase.  ``folds``: many
    values become few, so that none is there before all are done.  ``also``: what it writes beside
    ``write``; ``turns``: of a loop that is written out, in which it does a part of its values.
    """

    kind: Kind
    each: Mapping[str, Number]
    barrier: str = ""
    index: Affine = _NOWHERE
    group: Group | None = None
    pending: Number = 0
    latency: Number = 0
    fetched_bytes: Number = 0
    count: Number = 1
    statement: Statement | None = None
    unit: str = "issue"
    reads: tuple[str, ...] = ()
    write: str = ""
    arrivals: Number = 1
    folds: Number | bool = False
    also: tuple[str, ...] = ()
    turns: int = 1

    @property
    def once(self) -> bool:
        """Whether it is one instruction in every candidate."""
        return isinstance(self.count, int) and self.count == 1

    @property
    def cycles(self) -> Mapping[str, Number]:
        """The cycles of each unit."""
        if self.once:
            return self.each
        return {unit: self.count * cycles for unit, cycles in self.each.items()}


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop from ``start``, and how its iterations follow one another.

    Of an unrolled one so many loads from global memory are ``flying`` together.
    """

    var: str
    trips: Number
    body: tuple[Node, ...]
    form: Form
    start: Number = 0
    flying: Number = 1


@dataclass(frozen=True, slots=True)
class Guard:
    """Nodes that happen where ``index < bound`` (a number, or the name of the steps' number).

    ``ending``: the index counts the steps that are left, so it holds in the last ones.
    """

    index: Affine
    bound: Number | str
    body: tuple[Node, ...]
    ending: bool = False

    @property
    def tells(self) -> bool:
        """Whether arrivals alone are guarded."""
        return all(isinstance(n, Event) and n.kind == "arrive" for n in self.body)

    @property
    def step(self) -> int:
        """By what the index grows with each step."""
        return sum(step for _, step in self.index.terms if not isinstance(step, str))

    def times(self, steps: Number) -> Number:
        """Return in how many of so many steps, counted from 0, it holds."""
        bound = steps if isinstance(self.bound, str) else self.bound
        room, step = bound - self.index.constant, self.step
        if self.ending:
            return np.minimum(np.maximum(room - 1, 0), steps)
        if step == 0:
            return select(np.greater(room, 0), steps, 0.0)
        if step > 0:
            return np.minimum(np.maximum(np.ceil(room / step), 0.0), steps)
        return steps - np.minimum(np.maximum(np.floor(room / step) + 1.0, 0.0), steps)

    @property
    def apart(self) -> tuple[Number, Number]:
        """How many of the first steps, and of the last ones, it may tell from those between."""
        if isinstance(self.bound, str):
            return 0, np.maximum(self.index.constant, 0) * (self.step > 0)
        if self.ending:
            return 0, np.maximum(self.bound - self.index.constant - 1, 0)
        if self.step == 0:
            return 0, 0
        return np.maximum(np.floor((self.bound - self.index.constant) / self.step) + 1, 0), 0

    @property
    def late(self) -> bool:
        """Whether it holds in a step far from both ends."""
        if self.step or self.ending or isinstance(self.bound, str):
            return self.step < 0 or isinstance(self.bound, str)
        return bool(np.all(self.index.constant < self.bound))


Node = Event | Loop | Guard
Tree = tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class StepLoop:
    """A tile's loop over steps, counted by ``var``: what a step does, and what comes before all."""

    before: Tree = ()
    var: str = ""
    body: Tree = ()


@dataclass(frozen=True, slots=True)
class TimedAgent:
    """A role: the statements around and in its loops over steps, and which tiles are its own.

    ``together`` copies do the same at once, on a part of a tile each; with ``step`` above 1 the
    copies take tiles in turn.  Copies that are followed one by one are agents of their own, with
    their ``number``.  A copy has so many ``warps``.  ``opening``: its arrivals before all tiles.
    """

    name: str
    tile: str = ""
    turn: str = ""
    copy: str = ""
    steps: str = ""
    together: Number = 1
    step: Number = 1
    number: int = 0
    warps: Number = 1
    opening: Tree = ()
    loops: tuple[StepLoop, ...] = ()
    after: Tree = ()

    @property
    def before(self) -> Tree:
        """What a tile does before its loops, once."""
        return tuple(node for loop in self.loops for node in loop.before)

    @property
    def body(self) -> Tree:
        """What it does in a step of each of its loops."""
        return tuple(node for loop in self.loops for node in loop.body)

    def with_trees(self, change: Callable[[Tree], Tree]) -> TimedAgent:
        """Return the agent with other statements, changed in order."""
        loops = tuple(
            replace(loop, before=change(loop.before), body=change(loop.body)) for loop in self.loops
        )
        return replace(self, loops=loops, after=change(self.after))


def agents(
    program: Program, device: Device, sizes: Mapping[str, int], flying: Number = 1
) -> tuple[TimedAgent, ...]:
    """Return the agents of a program, those that load first: a step's loads come before its use.

    ``flying``: loads to registers that are in flight together.  Raises ProgramError for a role of
    another form.
    """
    of_tiles = takes_tiles(program)
    walks = [_Accountant(program, device, sizes, role, of_tiles, flying) for role in program.roles]
    if not of_tiles:
        return (TimedAgent(program.roles[0].name, after=walks[0].tree(program.roles[0].body)),)
    found = sorted(
        (one.agent() for one in walks), key=lambda agent: (not _loads(agent.body), not agent.body)
    )
    return (
        tuple(each for agent in found for each in _copies(agent))
        if clocked(found)
        else tuple(found)
    )


def clocked(agents: Iterable[TimedAgent]) -> bool:
    """Whether statements have to be followed in the order of the clocks, a point at a time.

    So it is where copies share units of arithmetic, or where a guard holds more than arrivals.
    """

    def asks(tree: Tree) -> bool:
        return any(
            node.kind == "math"
            if isinstance(node, Event)
            else (isinstance(node, Guard) and not node.tells) or asks(node.body)
            for node in tree
        )

    return any(asks((*agent.before, *agent.body, *agent.after)) for agent in agents)


def _copies(agent: TimedAgent) -> tuple[TimedAgent, ...]:
    """Return an agent for each copy.

    Raises ProgramError for copies that take tiles in turn, or whose number is a decision.
    """
    many = agent.together
    if not isinstance(many, int) or not isinstance(agent.step, int) or agent.step > 1:
        raise ProgramError(
            f"role {agent.name}: copies with arithmetic or guards in their steps take tiles in "
            "turn, or their number is open; the time model follows a known number of them together"
        )
    if many == 1:
        return (agent,)
    return tuple(
        replace(agent, name=f"{agent.name} {n}", together=1, number=n) for n in range(many)
    )


def _unless_int(number: Number, low: Change) -> Number:
    return number if isinstance(number, int) else low(number)


def mapped(tree: Tree, low: Change, high: Change | None = None) -> Tree:
    """Apply ``low`` to every number that costs time, ``high`` (if not: low) to those that save it.

    In one order for all trees of the same form.
    """
    more = high or low

    def index(affine: Affine) -> Affine:
        terms = tuple((v, c if isinstance(c, str) else low(c)) for v, c in affine.terms)
        return Affine(low(affine.constant), terms)

    def each(node: Node) -> Node:
        match node:
            case Event():
                return replace(
                    node,
                    count=node.count if node.once else low(node.count),
                    each={unit: low(cycles) for unit, cycles in node.each.items()},
                    index=index(node.index) if node.barrier else node.index,
                    latency=low(node.latency),
                    pending=more(node.pending),
                    fetched_bytes=low(node.fetched_bytes),
                    arrivals=_unless_int(node.arrivals, low),
                    folds=_unless_int(node.folds, low),
                )
            case Loop():
                body = mapped(node.body, low, more)
                return replace(node, trips=low(node.trips), body=body, flying=more(node.flying))
            case Guard():
                bound = node.bound if isinstance(node.bound, str) else low(node.bound)
                body = mapped(node.body, low, more)
                terms = tuple(
                    (v, c if isinstance(c, str) else more(c)) for v, c in node.index.terms
                )
                where = Affine(more(node.index.constant), terms)
                return replace(node, index=where, bound=bound, body=body)

    return tuple(map(each, tree))


def of_agent(agent: TimedAgent, low: Change, high: Change | None = None) -> TimedAgent:
    """Apply functions to every number of an agent, always in the same order."""
    placed = replace(agent, together=low(agent.together), step=low(agent.step))
    return placed.with_trees(lambda tree: mapped(tree, low, high))


def total_work(tree: Tree, holds: Callable[[Guard], Number] = lambda guard: 1) -> dict[str, Number]:
    """Return the cycles for which a tree's work keeps each unit busy.

    ``holds``: in which share of the steps a guard does.
    """
    found: dict[str, Number] = {}
    for node in tree:
        if isinstance(node, Event):
            here = node.cycles
        else:
            times = node.trips if isinstance(node, Loop) else holds(node)
            here = {unit: cycles * times for unit, cycles in total_work(node.body, holds).items()}
        for unit, cycles in here.items():
            found[unit] = found[unit] + cycles if unit in found else cycles
    return found


class _Accountant:
    """Walks one role."""

    def __init__(
        self,
        program: Program,
        device: Device,
        sizes: Mapping[str, int],
        role: Role,
        of_tiles: bool,
        flying: Number,
    ) -> None:
        self.program, self.device, self.role, self.of_tiles = program, device, role, of_tiles
        self.sizes, self.values = sizes, program.parameter_values(sizes)
        if not of_tiles:
            means = {n: steps_of_tiles(program, sizes, n, ()).mean for n in program.tile_values}
            self.values = {**self.values, **means}
        self.extents = dict(program.cluster)
        self.together: Number = role.copies
        self.flying = flying
        self.runs: dict[str, tuple[tuple[Number, ...], Number]] = {}  # of loads to registers
        self.step_var = ""
        self.turn: tuple[str, int] | None = None  # of a loop of arithmetic that is written out
        self.parts: dict[str, tuple[range, frozenset[str]]] = {}  # of registers, by such a loop
        self.shares: dict[str, Number] = {}  # of tiles in which a value of theirs is above 0

    @property
    def steps(self) -> str:
        """The parameter or tile value to which the loops over steps run."""
        looping = (s for s, _ in walk(self.program) if isinstance(s, For))
        return next((s.trips for s in looping if isinstance(s.trips, str)), "")

    def share(self, name: str) -> Number:
        """Return in which share of the tiles that have steps a tile value is above 0."""
        if name == self.steps:
            return 1.0
        for one in (name, self.steps):
            if one not in self.shares:
                self.shares[one] = share_of_tiles(self.program, self.sizes, one)
        return self.shares[name] / np.maximum(self.shares[self.steps], 1e-9)

    def agent(self) -> TimedAgent:
        """Find the loop over tiles and the loops over steps."""
        whole = _opened(self.role.body)
        tiles = _only(whole, ForTile, self.role.name)
        opening = self.tree(tuple(filter(_arrives, whole[: whole.index(tiles)])))
        inside = _opened(tiles.body)
        in_turn = str(tiles.step) != "1"
        if in_turn:
            self.together = 1
        found = TimedAgent(
            self.role.name, tiles.tile, tiles.turn, self.role.copy, steps=self.steps,
            together=self.together, step=tiles.step if in_turn else 1,
            warps=self.role.threads / WARP,
        )  # fmt: skip
        for steps in inside:
            if isinstance(steps, For) and not steps.unrolled:
                self.parts |= _parts(steps.body)
        loops: list[StepLoop] = []
        begin = 0  # without a loop it rests while others take steps
        for at, steps in enumerate(inside):
            if not isinstance(steps, For) or steps.unrolled:
                continue
            if not isinstance(steps.trips, str) or steps.trips != self.steps:
                raise ProgramError(
                    f"role {self.role.name}: its loop {steps.var} has {steps.trips} steps; the "
                    "time model follows loops to one parameter, as trips is, alike in all roles"
                )
            before, self.step_var = self.tree(inside[begin:at]), steps.var
            body = self.tree(_opened(steps.body), in_step=True)
            loops.append(StepLoop(before, steps.var, body))
            begin, self.step_var = at + 1, ""
        after = self.tree(inside[begin:])
        return replace(found, opening=opening, loops=tuple(loops), after=after)

    def tree(
        self, body: tuple[Statement, ...], around: tuple[For, ...] = (), *, in_step: bool = False
    ) -> Tree:
        """Return the events of statements; a step's products become one event."""
        found: list[Node] = []
        for statement in _opened(body):
            match statement:
                case For() if self.of_tiles:
                    found += self.tile_loop(statement, around, in_step)
                case ForTile() if not self.of_tiles and never(self.program.persistent):
                    found += self.tree(statement.body, around)
                case For():
                    inner = self.tree(statement.body, (*around, statement))
                    if not statement.unrolled:
                        inner = (*inner, self.loop_end())
                    form: Form = "unrolled" if statement.unrolled else "rolled"
                    trips = np.maximum(self.trips(statement), 0)
                    start, many = statement.start, self.flying if statement.unrolled else 1
                    found.append(Loop(statement.var, trips, inner, form, start, many))
                case When(index, bound, inner) if self.turn and _names(index) == {self.turn[0]}:
                    if index.evaluate(dict((self.turn,))) < self.number(bound):
                        found += self.tree(inner, around, in_step=in_step)
                case When(index, bound, inner) as when:
                    nodes = self.tree(inner, around, in_step=in_step)
                    own = len(index.terms) == 1 and index.terms[0][0] in self.extents
                    if own:
                        found += nodes  # what takes some CTAs of the cluster their time
                        continue
                    if not in_step and when.above_zero in self.program.tile_values:
                        found += _often(nodes, self.share(when.above_zero))
                        continue
                    if not in_step and when.at_zero in self.program.tile_values:
                        found += _often(nodes, 1 - self.share(when.at_zero))
                        continue
                    left = {*index.terms} == {(self.step_var, -1), (self.steps, 1)}
                    guard = Guard(index, bound, nodes, left and not isinstance(bound, str))
                    if not self.of_tiles:
                        found += self.in_share(guard, around)
                        continue
                    ours = all(v == self.step_var and c == guard.step for v, c in index.terms)
                    ours = ours or guard.ending
                    amid = isinstance(bound, str) and guard.step not in (0, 1)
                    if not guard.tells and (amid or not ours):
                        raise ProgramError(
                            f"role {self.role.name}: {statement.index} guards more than arrivals; "
                            "the time model follows those of the steps' variable "
                            f"{self.step_var} alone, by a distance to the loop's start or end"
                        )
                    if isinstance(bound, str) and bound != self.steps:
                        raise ProgramError(
                            f"role {self.role.name}: {statement} compares with {bound}; the time "
                            f"model follows {self.steps or 'no parameter'} alone, the steps' number"
                        )
                    found.append(guard)
                case Do() if in_step and _arithmetic(statement):
                    found.append(self.arithmetic(statement))
                case _:
                    found += self.event(statement, around)
        return tuple(found)

    def in_share(self, guard: Guard, around: tuple[For, ...]) -> Tree:
        """Return what threads do under a guard: in its share of the turns of the loop around.

        A guard on the distance to the end holds in nearly all turns, and counts as if it always
        did.
        """
        turning = [loop for loop in around if not loop.unrolled]
        if isinstance(guard.bound, str) or not turning:
            return guard.body
        if [name for name, _ in guard.index.terms] != [turning[-1].var]:
            return guard.body
        trips = np.maximum(self.trips(turning[-1]), 1)
        return _often(guard.body, guard.times(trips) / trips)

    def tile_loop(self, loop: For, around: tuple[For, ...], in_step: bool) -> list[Node]:
        """Return an unrolled loop of a role that takes tiles."""
        if in_step and loop.var in self.parts:
            return self.written_out(loop, around)
        count, nodes = self.trips(loop), self.tree(loop.body, around, in_step=in_step)
        told = tuple(n for n in nodes if isinstance(n, Guard))
        if not all(guard.tells for guard in told):
            raise ProgramError(
                f"role {self.role.name}: a guard in the loop {loop.var} holds more than arrivals; "
                "the time model follows those that stand in a step or a tile themselves"
            )
        if told and len(told) < len(nodes):  # what some iteration tells, after all
            done = tuple(n for n in nodes if not isinstance(n, Guard))
            return [Loop(loop.var, count, done, "serial"), *(e for g in told for e in g.body)]
        one = in_step or any(isinstance(n, Event) and n.kind == "product" for n in nodes)
        if one and len(nodes) == 1 and isinstance(nodes[0], Event):
            cycles = {unit: each * count for unit, each in nodes[0].cycles.items()}
            return [replace(nodes[0], each=cycles)]
        return [Loop(loop.var, count, nodes, "signals" if _signals(nodes) else "serial")]

    def written_out(self, loop: For, around: tuple[For, ...]) -> list[Node]:
        """Return the turns of a loop of arithmetic: each waits for its own part of registers."""
        found: list[Node] = []
        for turn in self.parts[loop.var][0]:
            self.turn = loop.var, turn
            found += self.tree(loop.body, around, in_step=True)
        self.turn = None
        return found

    def trips(self, loop: For) -> Number:
        return self.number(loop.trips) - loop.start

    def number(self, number: int | str) -> Number:
        return self.values[number] if isinstance(number, str) else number

    def issue(self, instructions: Number) -> Number:
        """Return the cycles in which the schedulers issue a warp's instructions."""
        return instructions / (
            self.device.warp_schedulers_per_sm * self.device.issue_per_cycle_per_scheduler
        )

    def loop_end(self) -> Event:
        each = {"issue": self.issue(1), "int": WARP / self.device.int_per_cycle_per_sm}
        return Event("do", each, count=FITTED["loop"])

    def event(self, statement: Statement, around: tuple[For, ...]) -> list[Event]:
        """Return the event of one statement; a fence before products costs nothing by itself."""
        device = self.device
        each = {} if self.of_tiles else {"issue": self.issue(1)}
        arrive = {"serial": FITTED["arrive"]}
        match statement:
            case Do() if self.of_tiles:
                return [replace(self.tile(statement), statement=statement)]
            case Do():
                return [*self.branch(statement), self.threads(statement, around)]
            case Wait(barrier, index) if barrier.named:  # it arrives, too
                cycles, own = {"serial": device.barrier_latency_cycles}, self.role.threads
                return [
                    Event("arrive", {"serial": 0.0}, barrier.name, index, arrivals=own),
                    Event("wait", cycles, barrier.name, index, statement=statement,
                          arrivals=barrier.arrivals),
                ]  # fmt: skip
            case Wait(barrier, index):
                cycles = {"serial": mbarrier_latency(device)}
                many: Number = barrier.arrivals
                return [
                    Event("wait", cycles, barrier.name, index, statement=statement, arrivals=many)
                ]
            case Arrive(barrier, index) if statement.how:
                return [Event("arrive", arrive, barrier.name, index, group=statement.how)]
            case Arrive(barrier, index, _, to):
                told = self.extents if to == "cluster" else to.split()
                size: Number = math.prod(self.extents.get(axis, 1) for axis in told)
                far = cluster_latency(device) * (size > 1)
                many = self.role.threads if barrier.named else size
                return [Event("arrive", arrive, barrier.name, index, latency=far, arrivals=many)]
            case WaitGroup(pending):
                how = statement.how
                return [Event("group", each, group=how, pending=pending, statement=statement)]
            case Commit():
                return [Event("commit", each, group=statement.how, statement=statement)]
            case Sync(_, scope):
                latency = device.barrier_latency_cycles
                if scope == "cluster":
                    latency = latency + cluster_latency(device)
                if self.of_tiles:
                    return [Event("work", {"serial": latency}, statement=statement)]
                return [Event("sync", each, latency=latency, statement=statement)]
            case Fence() if statement.how.orders == "proxy":
                return [Event("work", {"serial": FITTED["proxy_fence"]}, statement=statement)]
            case Fence():
                return []
            case Exit():
                if self.of_tiles:
                    raise ProgramError(
                        f"role {self.role.name}: {statement}: no exit among barriers"
                    )
                return [Event("do", each, statement=statement)]
            case _:
                raise ProgramError(
                    f"role {self.role.name}: a loop over tiles in another; the time model "
                    "follows one"
                )

    def tile(self, do: Do) -> Event:
        """Return the event of an instruction on a tile: one rule a unit."""
        device, how = self.device, do.instruction
        smem = device.smem_bytes_per_cycle_per_sm * FITTED["smem_share"]
        count: Number = math.prod(do.values)
        if not do.of_tile:
            count = count * self.role.threads / (do.lanes[1] if do.lanes else 1)
        width, end = do.write.buffer.type.bytes, FITTED["product_end"]
        match how.unit:
            case "tensor" if how.blocks:  # in order, by all warps of a copy
                blocks = how.blocks_of(do.accesses[0].buffer.dtype)
                many = count / (WARP * math.prod(blocks.values))
                busy = many * block_cycles(blocks, device)
                return Event("work", {"serial": busy * self.together, "tensor": busy})
            case "tensor" if how.issuer == "one":
                whole = device.smem_bytes_per_cycle_per_sm  # what is published of tcgen05
                return Event("product", product_cycles(do, device, whole), latency=end)
            case "tensor":
                k, inner, outer, rows = product_of(do).values
                count = k * inner * outer * rows
                width = smem_width(do)
                inputs = [r for r in do.reads[:2] if isinstance(r, Access)]
                rows_read = rows * (inputs[0].buffer.level == "smem")
                read = (rows_read + inner * outer) * k * width / smem
                rate = device.tensor_flop_per_cycle_per_sm * FITTED["tensor_share"]
                busy = count * width / rate  # that of 2 B inputs
                cycles = {"tensor": np.maximum(busy, read), "smem": read}
                return Event("product", cycles, latency=end)
            case "tmem" if how.issuer == "one":
                return Event("product", copy_cycles(do, device.smem_bytes_per_cycle_per_sm))
            case "tmem":
                return Event("work", {"serial": transfer_cycles(count, device)})
            case "tma" if do.write.buffer.level == "smem":
                barrier, index = do.signal or (None, Affine())
                if barrier is None:
                    raise ProgramError(f"role {self.role.name}: {do} signals no barrier")
                receivers = self.extents.get(do.multicast, 1)
                landed = count * width * receivers
                inside = share_inside(do, self.program, self.values)
                sent = count * width * inside * (1 + FITTED["multicast"] * (receivers - 1))
                line = FITTED["tma_line"] + FITTED["tma_outside"] * (1 - inside)
                if do.trimmed:
                    line = FITTED["tma_line"] * inside
                boxes: Number = 1  # a page is asked for by itself, its entry before any wait
                if any(isinstance(r, Access) and r.buffer.pages for r in do.reads):
                    boxes = do.values[1] // np.maximum(box_lines(do), 1)
                cycles = {
                    "serial": FITTED["tma_issue"] * boxes,
                    "tma": line * count / do.values[0],
                    "smem": FITTED["landing"] * landed / smem,
                    "fill": inside * landed / fill_rate(device),
                }
                return Event("load", cycles, barrier.name, index, fetched_bytes=sent)
            case "tma":
                cycles = {
                    "serial": FITTED["tma_issue"],
                    "smem": count * width / smem,
                    "tma": FITTED["tma_line"] * count / do.values[0],
                    "writes": line_writes(do.values[0] * width) * count / do.values[0],
                }
                return Event("store", cycles, latency=device.smem_latency_cycles)
            case "cvt":
                packed = 2 if width == 2 else 1
                return self.part({"cvt": count / (packed * device.cvt_16_per_cycle_per_sm)})
            case "lsu" if do.write.buffer.home:
                way = home_cycles(do, count, self.extents)
                return Event("work", {"serial": way * self.together, "smem": count * width / smem})
            case "lsu" if touches_smem(do):
                return self.part({"smem": count * width / smem})
            case "lsu":
                sectors = sectors_of_warp(do, self.values, device.sector_bytes)
                sectors = sectors * count / (WARP * do.vector)
                stored = FITTED["direct_store"] * sectors
                return Event("work", {"serial": stored * self.together, "writes": sectors})
            case _:
                return self.part({"issue": count / (WARP * device.warp_schedulers_per_sm)})

    def part(self, cycles: Mapping[str, Number]) -> Event:
        """Return work of a copy's warps: its copies' shares of a unit come one after another."""
        total: Number = 0.0
        for busy in cycles.values():
            total = total + busy
        times = "tmem_epilogue" if self.program.in_tmem else "epilogue"
        serial = FITTED[times] * total * self.together
        return Event("work", {"serial": serial, **cycles})

    def arithmetic(self, do: Do) -> Event:
        """Return a copy's arithmetic on its registers: the instructions of all of its warps.

        A comparison or maximum is integer work; one instruction makes two conversions to 16 bits,
        or to 8.
        """
        one = self.threads(do, ())
        each = dict(one.each)
        if do.instruction.unit == "alu" and do.variant:  # mov has none
            each["int"] = each.get("int", 0.0) + WARP / self.device.int_per_cycle_per_sm
        if do.instruction.unit == "cvt" and do.write.buffer.type.bytes <= 2:
            each = {unit: cycles / 2 for unit, cycles in each.items()}
        many = math.prod(
            n for n, moves in zip(do.values, do.write.value, strict=True) if any(moves)
        )
        count = one.count * self.role.threads / WARP
        here = self.turn or ("", 0)
        waits = do.accesses if do.where else do.accesses[:-1]
        reads = tuple(n for a in waits for n in self.parts_of(a, here))
        write, *also = self.parts_of(do.write, here)
        return replace(
            one, kind="math", each=each, count=count, folds=many < one.count,
            reads=tuple(n for n in reads if n.partition(".")[0] in one.reads), write=write,
            also=tuple(also), turns=len(self.parts[here[0]][0]) if self.turn else 1,
        )  # fmt: skip

    def parts_of(self, access: Access, here: tuple[str, int]) -> tuple[str, ...]:
        """Return the names of what it touches of a register: its own turn's part, or all."""
        name, (var, turn) = access.buffer.name, here
        turns = next((t for t, names in self.parts.values() if name in names), None)
        if turns is None:
            return (name,)
        if any(var in _names(origin) for origin in access.origin):
            return (f"{name}.{turn}",)
        return tuple(f"{name}.{turn}" for turn in turns)

    def threads(self, do: Do, around: tuple[For, ...]) -> Event:
        """Return the event of an instruction of threads on their own values: one rule a unit."""
        device = self.device
        count: Number = math.prod(do.values)
        each: dict[str, Number] = {"issue": self.issue(1)}
        latency = 0.0
        types = {a.buffer.dtype for a in do.accesses}
        match do.instruction.unit:
            case "fma" if do.write.buffer.dtype == "f64":
                each["fp64"] = WARP / device.fma_f64_per_cycle_per_sm
                latency = device.fma_f64_latency_cycles
            case "fma":
                each["fma"] = (1 + self.apart(do)) * (WARP / device.fma_f32_per_cycle_per_sm)
                latency = device.fma_latency_cycles
            case "cvt":
                wide = "f64" in types
                rate = device.cvt_f64_per_cycle_per_sm if wide else device.cvt_16_per_cycle_per_sm
                each["fp64" if wide else "cvt"] = WARP / rate
                latency = 2 * device.fma_latency_cycles
            case "alu":
                latency = device.fma_latency_cycles
            case "sfu":
                each["sfu"] = WARP / device.sfu_per_cycle_per_sm
                latency = 4 * device.fma_latency_cycles
            case "shuffle":
                each["shuffle"] = WARP / device.shuffle_per_cycle_per_sm
                latency = device.smem_latency_cycles
            case "lsu" if do.instruction.issuer == "warp":
                count, each["smem"] = matrices(do)
                each["issue"] = self.issue(1 / AT_ONCE)
                latency = device.smem_latency_cycles
            case "lsu":
                return self.move(do, count, around)
            case "tensor" if do.instruction.issuer == "warp":
                blocks = do.instruction.blocks_of(do.accesses[0].buffer.dtype)
                count = count / math.prod(blocks.values)
                each["tensor"] = block_cycles(blocks, device)
                latency = MMA_LATENCY_CYCLES
            case "barrier":
                pass
            case "tma" | "tensor" | "tmem":
                raise ProgramError(f"role {self.role.name}: {do} is not on a tile")
            case unit:
                assert_never(unit)
        if do.instruction.per_cycle:
            each[do.instruction.unit] = WARP / do.instruction.per_cycle
        if do.where is not None:  # a setp of each value
            each["issue"] = self.issue(2)
            each["int"] = WARP / device.int_per_cycle_per_sm
        return self.finish(do, count, each, latency)

    def apart(self, do: Do) -> Number:
        """Return what an FMA loses where operands that follow one another share a register bank.

        A vector's elements stand in neighbouring registers; the FMAs walk across the vectors where
        those run along k.
        """
        lost: Number = 0.0
        for read in do.reads:
            if isinstance(read, Access) and read.buffer.name in self.runs:
                along, vector = self.runs[read.buffer.name]
                walked = next((steps for steps in read.value if any(steps)), along)
                if walked != along:
                    lost = lost + select(np.asanyarray(vector) > 1, FITTED["fma_apart"], 0.0)
        return lost

    def finish(self, do: Do, count: Number, each: dict[str, Number], latency: Number) -> Event:
        # of a ring in registers another stage is read than is written: nothing waits for that
        waits = (a.buffer for a in (do.accesses if do.where else do.accesses[:-1]))
        reads = tuple(b.name for b in waits if b.level != "registers" or np.all(b.stages == 1))
        kind: Kind = "async" if do.joins else "do"
        return Event(
            kind, each, count=count, latency=latency, statement=do, unit=do.instruction.unit,
            reads=reads, write=do.write.buffer.name,
        )  # fmt: skip

    def move(self, do: Do, count: Number, around: tuple[For, ...]) -> Event:
        """Return the work of a load or store: wavefronts, lines, index arithmetic, guards."""
        device = self.device
        each: dict[str, Number] = {}
        whole = not do.instruction.atomic or adds_vectors(device.arch, do.write.buffer.dtype)
        vector: Number = do.vector if whole else 1
        extra: Number = 0.0
        latency: Number = 0.0
        for access in do.accesses:
            level, width = access.buffer.level, access.buffer.type.bytes
            steps = _linear(access, self.values)
            if level == "smem":
                if access is not do.write:
                    vector = merged(access, steps, do.vector, around)
                swizzle = access.buffer.swizzle
                each["smem"] = wavefronts(do.threads, steps, width, vector, swizzle)
                if access is not do.write:
                    each["smem"] = np.maximum(each["smem"], returned(width, vector))
                latency = latency + device.smem_latency_cycles
                extra = extra + select(np.asanyarray(swizzle[0]) > 0, FITTED["swizzle"], 0.0)
            elif level == "gmem":
                each["l1"] = lines(do.threads, steps, width, vector)
                extra = extra + self.indices(access)
                if access is not do.write:
                    latency = latency + latency_of(access, around, device=device)
                    if do.joins:
                        latency = latency * FITTED["last_copy"]
        if do.instruction.atomic:
            each["l1"] = FITTED["red"] * WARP * vector
        if do.write.buffer.level == "registers" and do.write.value:
            self.runs[do.write.buffer.name] = do.write.value[0], vector
        each["issue"] = self.issue(1.0 + extra)
        each["int"] = extra * (WARP / device.int_per_cycle_per_sm)
        return self.finish(do, count / vector, each, latency)

    def indices(self, access: Access) -> Number:
        """Return the integer instructions of one access to gmem: its address and its guards.

        Of whole tiles that are asked about as such the accesses ask nothing.
        """
        how = np.asanyarray(self.program.addressing)
        wide = select(how == "i32", FITTED["index_i32"], FITTED["index_i64"])
        each = select(how == "pointer", FITTED["index_pointer"], wide)
        known = np.asanyarray(self.program.specialised) != 0
        each = each * select(known, FITTED["index_known"], 1.0)
        guards: Number = 0.0
        whole: Number = 1.0
        for asks, cost, share in self.asked(access):
            guards = guards + select(asks, cost, 0.0)
            whole = whole * share
        each_asks = np.asanyarray(self.program.guards) == "each"
        return each + guards * select(each_asks, 1.0, 1.0 - whole)

    def asked(self, access: Access) -> Iterator[tuple[Truth, float, Number]]:
        """Yield of each dimension whether it is asked about, at what cost, and the whole tiles.

        What is always inside is not asked about where the sizes are in the code.
        """
        known = np.asanyarray(self.program.specialised) != 0
        for d, (guarded, origin) in enumerate(zip(access.guard, access.origin, strict=False)):
            moving = any(not _of_grid(name, self.program) for name, _ in origin.terms)
            size, tile = self.number(access.buffer.shape[d]), 1
            for _, step in origin.terms:
                tile = tile if isinstance(step, str) else np.maximum(tile, step)
            asked = isinstance(guarded, str) or np.asanyarray(guarded) != 0
            asks = asked & ~(known & (size % tile == 0))
            cost = FITTED["guard"] if moving else FITTED["guard_fixed"]
            yield asks, cost, (size // tile) / -(-size // tile)

    def branch(self, do: Do) -> list[Event]:
        """Return the event of asking whether a statement's tile is whole, if any candidate asks."""
        asks: Truth = False
        for access in do.accesses if np.any(np.asanyarray(self.program.guards) == "tile") else ():
            for asked, _, _ in self.asked(access) if access.buffer.level == "gmem" else ():
                asks = asks | asked
        if not np.any(asks):
            return []
        tiles = asks & (np.asanyarray(self.program.guards) == "tile")
        many = select(tiles, FITTED["whole_branch"], 0.0)
        int_rate = WARP / self.device.int_per_cycle_per_sm
        return [Event("do", {"issue": self.issue(many), "int": many * int_rate})]


def returned(width: int, vector: Number) -> Number:
    """Return the cycles in which a warp's load from shared memory reaches its registers."""
    return WARP * width * vector / RETURNED_BYTES_PER_CYCLE


def merged(
    access: Access, steps: tuple[Number, ...], vector: Number, around: Iterable[For]
) -> Number:
    """Return the width at which the assembler reads shared memory.

    Neighbouring reads of an unrolled loop become one of up to 16 B where alignment is plain.
    """
    widest = 16 // access.buffer.type.bytes
    strides = access.buffer.stride
    for loop in around:
        if not loop.unrolled or isinstance(loop.trips, str):
            continue
        here: Truth = False
        for origin, stride in zip(access.origin, strides, strict=bool(access.origin)):
            step = steps_of(origin, loop.var)
            here = here | ((step == vector) & (stride == 1))
        if not np.any(here):
            continue
        moves: list[Number] = [*(s for s in strides if not isinstance(s, str)), *steps]
        for wide in (2, 4, 8):
            if wide > widest:
                break
            fits = here & (loop.trips * vector >= wide) & (vector < wide)
            fits = fits & (access.buffer.swizzle[0] == 0)
            for move in moves:
                fits = fits & ((move % wide == 0) | (move == 1))
            vector = select(fits, wide, vector)
    return vector


def _of_grid(name: str, program: Program) -> bool:
    return any(axis.var == name for axis in program.grid)


def _linear(access: Access, values: Mapping[str, Number]) -> tuple[Number, ...]:
    """Return each thread mode's step in elements, leading dimensions at their values."""
    strides = [values[s] if isinstance(s, str) else s for s in access.buffer.stride]
    return tuple(
        sum((step * s for step, s in zip(steps, strides, strict=True)), 0)
        for steps in access.thread
    )


def steps_of(origin: Affine, name: str) -> Number:
    """Return the coefficient of a variable in an index."""
    return sum((c for v, c in origin.terms if v == name and not isinstance(c, str)), 0)


def _arrives(statement: Statement) -> bool:
    """Say whether a statement is an arrival, or holds arrivals alone."""
    held = tuple(each((statement,)))
    return all(isinstance(one, Arrive) or (one.body and not one.binds) for one in held)


def _opened(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """Return statements with those of elected threads in their place."""
    found: list[Statement] = []
    for statement in body:
        if isinstance(statement, Elect) or any(isinstance(s, ForTile) for s in statement.body):
            found += _opened(statement.body)
        else:
            found.append(statement)
    return tuple(found)


def _names(index: Affine) -> set[str]:
    return {name for name, _ in index.terms}


def _parts(body: tuple[Statement, ...]) -> dict[str, tuple[range, frozenset[str]]]:
    """Return unrolled loops of arithmetic, and the registers of which a turn has its own part."""
    found: dict[str, tuple[range, frozenset[str]]] = {}
    for loop in each(body):
        if isinstance(loop, For) and loop.unrolled and isinstance(loop.trips, int):
            inside = [do for do in each(loop.body) if isinstance(do, Do)]
            if inside and all(map(_arithmetic, inside)):
                own = (a for do in inside for a in do.accesses)
                names = {a.buffer.name for a in own if any(loop.var in _names(o) for o in a.origin)}
                found[loop.var] = range(loop.start, loop.trips), frozenset(names)
    return found


def _arithmetic(do: Do) -> bool:
    """Say whether threads do it on their registers, whatever else they wait for."""
    units = ("fma", "alu", "sfu", "cvt", "shuffle")
    return do.instruction.unit in units and all(a.buffer.level == "registers" for a in do.accesses)


def _often(tree: Tree, share: Number) -> Tree:
    """Return threads' statements that are done in a share of the turns."""
    return tuple(
        replace(node, count=node.count * share)
        if isinstance(node, Event)
        else replace(node, body=_often(node.body, share))
        for node in tree
    )


def _only(body: tuple[Statement, ...], kind: type[_S], name: str) -> _S:
    found = [statement for statement in body if isinstance(statement, kind)]
    if len(found) != 1:
        raise ProgramError(
            f"role {name}: {len(found)} loops of kind {kind.__name__}; the time model follows one "
            "loop over tiles"
        )
    return found[0]


def _loads(nodes: Tree) -> bool:
    return any(n.kind == "load" if isinstance(n, Event) else _loads(n.body) for n in nodes)


def _signals(nodes: Tree) -> bool:
    return any(
        bool(n.barrier) if isinstance(n, Event) else isinstance(n, Guard) or _signals(n.body)
        for n in nodes
    )
