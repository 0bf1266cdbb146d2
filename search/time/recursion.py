"""Time of a CTA: one (max, +) recursion over what its agents do.

An agent (``work.py``) has a clock, a unit the time at which it is free, a register and a phase of a
barrier the time at which it is there.  Statements of threads:

    do        start = max(clock, what it reads, its units free); units are free when all warps have
              done it; the result is there a latency later
    sync      clock = the end of all so far
    group     (cp.async) clock = max(clock, landing of the newest group but N)

and those of tiles, whose role goes on in order:

    wait      clock = max(clock, phase) + its cost
    load      in order through issue, the copy engine and the way from L2; lands a latency later
    product   start = max(clock, tensor cores free, shared memory free); ends its cycles later
    group     clock = max(clock, end of the newest group but N)
    arrive    phase = max(phase, clock)

All maps are maxima of sums, so loops become periodic, and each form of loop has its period:

- *rolled*: nothing moves across the branch, so an iteration takes its path and a ``turn``; without
  a barrier in it warps drift apart, and it takes the path of one warp or the longest occupancy.  A
  ring of copies bounds it by weight over tokens of the cycle from a copy through its wait to the
  copy that reuses its slot: the way from the wait to the next copies and their latency, over the
  groups in flight.  The first copies, before the loop, land in full.
- *unrolled*: once through its chain, then at its *pace*: its busiest unit's, or its loads' one by
  one, over those that are in flight together.
- *serial*: chunks of an epilogue: their own cycles, or with D stages of the store a
  (cycles + read) / D.
- *steps* and *tiles*: agents advance together, step by step, until the times of steps are periodic
  (two turns of the longest ring, or two or four times as many; a few tiles), and go on at the
  period.  Agents that rest during a tile's steps keep their clocks.  ``together`` copies of a role
  share the units, ``share`` CTAs an SM.

What has no steps is a formula, which ``path`` gives of any numbers, of a whole space too; else
``Recursion`` follows points.

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS, Hopper
>>> from tinygpu.term.operation import matmul
>>> from tinygpu.search.time.work import agents
>>> term = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["ring"]))
>>> found = agents(term, load_device("h200"), {"m": 128, "n": 128, "k": 8192})
>>> few, many = (Recursion(found)(1, 1, steps, 4, *numbers(found)) for steps in (100, 101))
>>> round(many - few)        # a step's period: shared memory, 32 KiB in and 48 KiB out
610

Source: ``docs/model.md``, section "Time"; Baccelli et al., "Synchronization and Linearity", 1992.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate
from typing import Any

import numpy as np

from tinygpu.errors import ProgramError
from tinygpu.numbers import Floats, Integers, Number, Truth
from tinygpu.search.time.fitted import FITTED
from tinygpu.search.time.tile_steps import TileSteps
from tinygpu.search.time.work import (
    Event,
    Guard,
    Loop,
    StepLoop,
    TimedAgent,
    Tree,
    clocked,
    of_agent,
    total_work,
)
from tinygpu.term.program import WaitGroup, counted, select

__all__ = [
    "CopyState", "Following", "Recursion", "Time", "Walk", "alone", "numbers", "occupied", "pace",
    "path", "reach", "span_cycles", "together", "tokens_of", "waits",
]  # fmt: skip

Known = dict[str, Number]
Time = Number
"""An array over points, a float, or what stands for a table of a space."""
SUBCORES = 4  # spec: of an SM, since Volta
WHOLE = frozenset(("smem", "l1", "shuffle", "fetch"))
"""Units that all warps of an SM share; every sub-core has its own part of the others."""
_CHUNK = 4096
"""Points at once: their clocks stay in a core's cache."""
_MANY = 1 << 16
_EVEN = 1e-6
"""Cycles between steps that are alike."""
_OWN = 8
"""Tiles of a CTA that are followed each with its own steps."""
_SCHEDULERS = "schedulers"
"""What arithmetic of a step takes beside its units: others may begin when it is over."""
_BEFORE = 64
"""Phases before the first that an index may name; they are over from the start."""


def occupied(cycles: Mapping[str, Number], warps: Number) -> dict[str, Number]:
    """Return for how many cycles so many warps keep each unit of an SM busy, from one warp's.

    A warp runs on one sub-core, and has no use of the others' parts of a unit.
    """
    even = np.ceil(warps / SUBCORES) * SUBCORES
    return {unit: each * (warps if unit in WHOLE else even) for unit, each in cycles.items()}


def alone(cycles: Mapping[str, Number]) -> Number:
    """Return the cycles in which one warp issues its instructions, whatever the others do."""
    return cycles["issue"] * (4 * FITTED["warp_interval"])


def together(loop: Loop) -> bool:
    """Whether a barrier in a loop's body keeps the warps of a CTA together."""
    return any(isinstance(node, Event) and node.kind == "sync" for node in loop.body)


def pace(loop: Loop, warps: Number) -> Number:
    """Return the cycles from one step of an unrolled loop to the next.

    Its busiest unit sets it, or its loads: the assembler moves few of them up past earlier steps.
    """
    work = total_work(loop.body)
    cycles = reduce(np.maximum, occupied(work, warps).values(), alone(work))
    return np.maximum(cycles, waits(loop))


def waits(loop: Loop) -> Number:
    """Return the cycles for which a step waits for its loads from global memory."""
    loads = (e for e in loop.body if isinstance(e, Event) and e.kind == "do" and "l1" in e.each)
    return sum((e.count * e.latency for e in loads), 0.0) / loop.flying


def span_cycles(nodes: Tree) -> Number:
    """Return how long a copy's warps take for statements that wait for no barrier.

    Chunks that are stored from a ring go at its period.
    """
    serial: Number = 0.0
    read: Number = 0.0
    stages: Number = 1
    for node in nodes:
        match node:
            case Loop(form="serial"):
                serial = serial + node.trips * span_cycles(node.body)
            case Event("store"):
                serial = serial + node.cycles["serial"]
                read = read + node.latency + np.maximum(node.cycles["smem"], node.cycles["tma"])
            case Event("work"):
                serial = serial + node.cycles["serial"]
            case Event("group", statement=WaitGroup(read=True)):
                stages = node.pending + 1
    return np.maximum(serial, (serial + read) / stages)


def path(tree: Tree, warps: Number) -> Number:
    """Return the cycles that one CTA of so many warps takes alone on an SM.

    Only maxima and sums of the tree's numbers occur: it is monotone in each.
    """
    state = CopyState(0.0, 0.0, warps=warps)
    Walk().nodes(tree, state, {})
    return state.last


def numbers(agents: tuple[TimedAgent, ...]) -> list[Number]:
    """Return every number of the agents in order."""
    found: list[Number] = []

    def note(number: Number) -> Number:
        found.append(number)
        return number

    for agent in agents:
        of_agent(agent, note)
    return found


def _filled(agents: tuple[TimedAgent, ...], leaves: Sequence[Number]) -> tuple[TimedAgent, ...]:
    rest = iter(leaves)
    return tuple(of_agent(agent, lambda _: next(rest)) for agent in agents)


_NOBODY = TimedAgent("")


@dataclass(slots=True)
class CopyState:
    """What a copy of an agent knows, or copies that work together: the first's and last's clocks.

    Of threads: ``now`` is when the next statement may issue, ``last`` when all so far have;
    ``units`` and ``ready``: when units are free and registers there; ``landed``: all copies.
    ``groups`` are the ends of groups, ``done`` that of the products or copies of the next one.
    ``turn``: how many tiles it has done, with ``taken`` steps.
    Of a copy with arithmetic: ``there`` is when a register's first and last values are there and
    how many they are, ``issued`` when its warps have issued all so far, ``special`` when their last
    special functions end, ``worked`` the end of all; ``soonest``: when its next arithmetic may
    start, and what that reads is there in full, as units were when ``Following.clock`` looked.
    """

    now: Time
    last: Time
    agent: TimedAgent = _NOBODY
    copy: int = 0
    done: tuple[Time, Time] = (0.0, 0.0)
    groups: list[tuple[Time, Time]] = field(default_factory=list)
    turn: int = 0
    taken: int = 0
    warps: Number = 1.0
    units: dict[str, Time] = field(default_factory=dict)
    ready: dict[str, Time] = field(default_factory=dict)
    landed: Time = 0.0
    there: dict[str, tuple[Time, Time, Number]] = field(default_factory=dict)
    issued: Time = 0.0
    special: Time = 0.0
    worked: Time = 0.0
    soonest: tuple[Time, Time] = (0.0, 0.0)

    def busy(self, cycles: Number) -> None:
        """Let both clocks go on."""
        one = self.now is self.last
        self.now = self.now + cycles
        self.last = self.now if one else self.last + cycles

    def finish(self) -> None:
        """Let its warps' arithmetic end."""
        self.now = self.last = max(self.now, self.worked)


class Walk:
    """The rules of statements and of loops that have a closed form."""

    later: Callable[..., Number] = staticmethod(np.maximum)

    def nodes(self, nodes: Tree, state: CopyState, known: Known) -> None:
        """Follow statements in order."""
        for node in nodes:
            match node:
                case Event():
                    self.event(node, state, known, True)
                case Guard():
                    self.guarded(node, state, known, True)
                case Loop(form="rolled"):
                    self.rolled(node, state, known)
                case Loop(form="unrolled"):
                    self.unrolled(node, state, known)
                case Loop(form="signals"):
                    for i in range(int(np.max(node.trips))):
                        known[node.var] = i
                        for inner in node.body:
                            if isinstance(inner, Guard):
                                self.guarded(inner, state, known, i < node.trips)
                case Loop():
                    state.busy(node.trips * span_cycles(node.body))

    def rolled(self, loop: Loop, state: CopyState, known: Known) -> None:
        """Go on at the period of a loop with a branch."""
        one = together(loop)

        def walked(nodes: Tree) -> CopyState:
            inner = CopyState(0.0, 0.0, warps=state.warps if one else 1.0)
            self.nodes(nodes, inner, known)
            return inner

        period = walked(loop.body).last + FITTED["turn"]
        if not one:  # warps drift apart: each walks its own chain, while the others use the units
            for cycles in occupied(total_work(loop.body), state.warps).values():
                period = self.later(period, cycles)
        for i, node in enumerate(loop.body):
            if isinstance(node, Event) and node.kind == "group":
                state.last = self.later(state.last, state.landed)
                ring = walked((*loop.body[i + 1 :], *loop.body[:i]))
                period = self.later(period, ring.landed / (node.pending + 1.0))
        state.now = state.last = state.last + loop.trips * period
        state.units.clear()
        state.ready.clear()

    def unrolled(self, loop: Loop, state: CopyState, known: Known) -> None:
        """Walk an unrolled loop: once through its chain, then at its pace."""
        now, last, landed = state.now, state.last, state.landed
        before = dict(state.units), dict(state.ready)
        self.nodes(loop.body, state, known)
        some = loop.trips > 0
        more = np.maximum(loop.trips - 1.0, 0.0) * pace(loop, state.warps) + waits(loop)
        state.now = select(some, state.now, now)
        state.landed = select(some, state.landed, landed)
        state.last = select(some, state.last + more, last)
        for old, new in zip(before, (state.units, state.ready), strict=True):
            for name, end in new.items():
                if end is not old.get(name, 0.0):
                    new[name] = select(some, end + more, old.get(name, 0.0))

    def event(self, event: Event, state: CopyState, known: Known, mask: Truth) -> None:
        """Follow one event."""
        match event.kind:
            case "do" | "async":
                self.threads(event, state)
            case "sync":
                state.now = state.last = state.last + event.latency
            case "work" | "store":
                state.busy(event.cycles["serial"])

    def threads(self, event: Event, state: CopyState) -> tuple[Time, Time, Time]:
        """Let the warps do a statement; return its start, its end, when its result is there."""
        start, cycles, later = state.now, event.cycles, self.later
        for name in event.reads:
            if name in state.ready:
                start = later(start, state.ready[name])
        for unit in cycles:
            if unit not in ("issue", "int") and unit in state.units:
                start = later(start, state.units[unit])
        most = reduce(later, occupied(cycles, state.warps).values())
        end = start + later(most, alone(cycles))
        for unit in cycles:
            state.units[unit] = end
        state.last = later(state.last, end)
        if event.kind == "async":
            there = end + event.latency
            state.landed = later(state.landed, there)
        else:
            there = (end if event.unit == "lsu" else start) + event.latency
            state.ready[event.write] = there
        return start, end, there

    def guarded(self, guard: Guard, state: CopyState, known: Known, mask: Truth) -> None:
        """Arrive where the index is below the bound, and the mask holds."""
        bound = known[guard.bound] if isinstance(guard.bound, str) else guard.bound
        mask = mask & (guard.index.evaluate(known) < bound)
        if isinstance(mask, np.ndarray) and (mask.all() or not mask.any()):
            mask = bool(mask.all())
        if mask is False:
            return
        for event in guard.body:
            assert isinstance(event, Event)
            self.event(event, state, known, mask)


class Following(Walk):
    """The recursion for points that take the same number of tiles and steps.

    Times are arrays over the points; of one point they are floats, and so they may be where all
    points have the same.
    """

    def __init__(
        self, agents: tuple[TimedAgent, ...], share: Number, stages: Number, size: int
    ) -> None:
        self.share, self.size = share, size
        self.turns = [np.asarray(n, np.int64) for n in (stages, tokens_of(agents, stages))]
        self.turn: Number = 1
        self.apart: Number = 0.0
        self.later = max if size == 1 else np.maximum
        self.zero: Time = 0.0 if size == 1 else np.zeros(size)
        self.states = [
            [
                CopyState(
                    self.zero, self.zero, a, a.number + copy, (self.zero, self.zero), warps=a.warps
                )
                for copy in range(max(1, int(np.max(a.step))))
            ]
            for a in agents
        ]
        self.clocked = clocked(agents)
        self.arrived: dict[tuple[str, int], Number] = {}
        self.units: dict[str, Time] = {}
        self.phases: dict[str, Any] = {}  # of one point a list, which grows, else an array
        self.made: dict[int, Mapping[str, Number]] = {}
        self.arithmetic: dict[int, tuple[Number, Number, tuple[tuple[str, Number], ...]]] = {}
        self.columns = np.arange(size)
        self.tensor = self.smem = self.fill = self.tma = self.zero
        self.rows = 0

    def cycles(
        self, tiles: Number, steps: Number, first_tiles: int, first_steps: int, window: int
    ) -> Floats:
        """Return the cycles of all tiles: the first ones step by step, then at the period."""
        return self.followed(tiles, [(steps, first_steps)] * first_tiles, window)

    def followed(self, tiles: Number, each: Sequence[tuple[Number, int]], window: int) -> Floats:
        """Return the cycles of all tiles; ``each`` of the first has steps, the first one by one."""
        before = list(accumulate((first for _, first in each), initial=0))
        loops = max(len(agents[0].agent.loops) for agents in self.states)
        self.rows = max(loops * before[-1], len(each)) + 2
        ends: list[Time] = []
        for tile, (steps, first_steps) in enumerate(each):
            states = [copies[tile % len(copies)] for copies in self.states]
            values: list[Known] = [
                {s.agent.tile: tile, s.agent.turn: s.turn, s.agent.copy: s.copy,
                 s.agent.steps: first_steps,
                 counted(s.agent.tile, s.agent.steps): before[tile],
                 counted(s.agent.turn, s.agent.steps): s.taken}
                for s in states
            ]  # fmt: skip
            here = list(zip(states, values, strict=True))
            if self.clocked and tile == 0:
                self.run([(s, known, self.happening(s.agent.opening, known)) for s, known in here])
            for number in range(max(len(state.agent.loops) for state in states)):
                end = first_steps
                if self.clocked:  # the last steps that guards tell apart come after all others
                    end -= min(first_steps, reach([_loop(s.agent, number).body for s in states])[1])
                seen = self.steps(here, number, range(end))
                self.jump(states, number, seen, steps - first_steps)
                if end < first_steps:
                    self.steps(here, number, range(end, first_steps))
                for state, known in here:
                    known.pop(_loop(state.agent, number).var, None)
            if self.clocked:
                self.run([(s, known, self.happening(s.agent.after, known)) for s, known in here])
            for state, known in here:
                if self.clocked:
                    state.finish()
                else:
                    self.nodes(state.agent.after, state, known)
                state.turn += 1
                state.taken += first_steps
            ends.append(reduce(self.later, [s.last for c in self.states for s in c]))
        if len(ends) > window:
            period = (ends[-1] - ends[-1 - window]) / window
            return np.asarray(ends[-1] + np.maximum(tiles - len(each), 0) * period)
        return np.asarray(ends[-1])

    def steps(
        self, states: Sequence[tuple[CopyState, Known]], number: int, steps: range
    ) -> list[Time]:
        """Follow some steps of one of a tile's loops; return when each ends."""
        if self.clocked:
            return self.in_order(states, number, steps)
        for state, known in states:
            self.nodes(_loop(state.agent, number).before, state, known)
        seen: list[Time] = []
        for step in steps:
            for state, known in states:
                loop = _loop(state.agent, number)
                known[loop.var] = step
                self.nodes(loop.body, state, known)
            taking = [s.last for s, _ in states if _loop(s.agent, number).body]
            seen.append(reduce(self.later, taking))
        return seen

    def in_order(
        self, states: Sequence[tuple[CopyState, Known]], number: int, steps: range
    ) -> list[Time]:
        """Follow them in the order of the clocks."""
        seen: dict[int, Time] = dict.fromkeys(steps, 0.0)

        def way(state: CopyState, known: Known) -> Iterator[Event | Loop]:
            loop = _loop(state.agent, number)
            if steps.start == 0:
                yield from self.happening(loop.before, known)
            for step in steps if loop.body else ():
                known[loop.var] = step
                yield from self.happening(loop.body, known)
                seen[step] = max(seen[step], state.last, state.worked)

        self.run([(state, known, way(state, known)) for state, known in states])
        return list(seen.values())

    def happening(self, nodes: Tree, known: Known) -> Iterator[Event | Loop]:
        """Go through the statements that happen, a loop without signals or arithmetic as one."""
        for node in nodes:
            match node:
                case Guard(index, bound, body):
                    most = known[bound] if isinstance(bound, str) else bound
                    if index.evaluate(known) < most:
                        yield from self.happening(body, known)
                case Loop(form="signals") | Loop(body=(Event(kind="math"), *_)):
                    for i in range(int(node.trips)):
                        known[node.var] = i
                        yield from self.happening(node.body, known)
                case _:
                    yield node

    def run(self, ways: Sequence[tuple[CopyState, Known, Iterator[Event | Loop]]]) -> None:
        """Let agents go on, those that load as far as they can, else the one with the least clock.

        Who waits for a phase goes on when all have arrived.  Raises ProgramError if nobody can.
        """
        at = [next(way, None) for *_, way in ways]
        needs = [self.need(node, known) for node, (_, known, _) in zip(at, ways, strict=True)]
        loads = [any(isinstance(n, Event) and n.kind == "load" for n in s.agent.body)
                 for s, *_ in ways]  # fmt: skip
        while True:
            able = -1
            least: tuple[bool, Time] = (True, math.inf)
            second = least
            for n, (node, need) in enumerate(zip(at, needs, strict=True)):
                if node is None or (need and self.arrived.get(need[0], 0) < need[1]):
                    continue
                place = not loads[n], self.clock(node, ways[n][0])
                if able < 0 or place < least:
                    able, least, second = n, place, least
                elif place < second:
                    second = place
            if able < 0:
                break
            state, known, way = ways[able]
            node, again = at[able], True
            while again and node is not None:
                again = isinstance(node, Event) and node.kind == "math"  # which wakes nobody
                if isinstance(node, Event):
                    self.event(node, state, known, True)
                else:
                    self.nodes((node,), state, known)
                node = next(way, None)
                needs[able] = need = self.need(node, known)
                again = again and not (need and self.arrived.get(need[0], 0) < need[1])
                again = again and node is not None and (True, self.clock(node, state)) < second
            at[able] = node
        if waits := sorted({n.barrier for n in at if isinstance(n, Event)}):
            raise ProgramError(
                f"time: all agents wait, for phases of {', '.join(waits)} that nobody completes"
            )

    def clock(self, node: Event | Loop, state: CopyState) -> Time:
        """Return when a copy may do a statement: arithmetic as soon as it can start."""
        if not isinstance(node, Event) or node.kind != "math":
            return max(state.now, state.worked)
        _, special, busy = self.arithmetic_of(node, state)
        free, there, count = self.units, state.there, node.count * node.turns
        start, least = state.now, self.zero
        for name in node.reads:
            if name in there:
                first, last, many = there[name]
                begun = first if many == count else last
                start = begun if begun > start else start
                least = last if last > least else least
        for unit, _ in busy:
            if unit != "issue" and free.get(unit, 0.0) > start:
                start = free[unit]
        if special:
            start = max(start, state.special)
        state.soonest = start, least
        return start

    def need(
        self, node: Event | Loop | None, known: Mapping[str, Number]
    ) -> tuple[tuple[str, int], Number] | None:
        """Return the phase that a statement waits for, and how many arrivals complete it."""
        if not isinstance(node, Event) or node.kind != "wait":
            return None
        index = int(node.index.evaluate(known))
        return None if index < 0 else ((node.barrier, index), node.arrivals)

    def cycles_of(self, event: Event) -> Mapping[str, Number]:
        """Return the cycles of an event, which are made once."""
        key = id(event)  # the agents of the states keep it
        if key not in self.made:
            self.made[key] = event.cycles
        return self.made[key]

    def math(self, event: Event, state: CopyState) -> tuple[Time, Time]:
        """Let a copy's warps do arithmetic: in order, on units that it shares with the others.

        It starts as ``clock`` has found just before.  Returns its start, and when all have done it.
        A value is there a latency after its instruction has started, so that a statement follows
        the one that it reads value by value, if both have as many.  Special functions take their
        warp longer than the unit, which others may have meanwhile.  Where there is arithmetic, one
        point is followed: times are floats.
        """
        issue, special, busy = self.arithmetic_of(event, state)
        free, there, count = self.units, state.there, event.count * event.turns
        start, least = state.soonest
        if special:
            state.special = least = max(least, start + special)
        issued = state.issued = (start if start > state.issued else state.issued) + issue
        end = issued if issued > least else least
        for unit, cycles_here in busy:
            before = free.get(unit, 0.0)
            done = free[unit] = (start if start > before else before) + cycles_here
            end = done if done > end else end
        worked = end + event.latency
        when = (worked if event.folds else start + event.latency), worked, count
        there[event.write] = when
        for name in event.also:
            there[name] = when
        state.worked = worked if worked > state.worked else state.worked
        return start, end

    def arithmetic_of(
        self, event: Event, state: CopyState
    ) -> tuple[Number, Number, tuple[tuple[str, Number], ...]]:
        """Return arithmetic's cycles of issue and of special functions, and those of each unit."""
        key = id(event)
        if key not in self.arithmetic:
            cycles = event.cycles
            busy = tuple((unit, each * self.share) for unit, each in cycles.items())
            special = event.count / state.warps if event.unit == "sfu" else 0.0
            issue = max(alone(cycles) / state.warps, special * FITTED["special_issue"])
            most = max(each for _, each in busy)
            busy = *busy, (_SCHEDULERS, FITTED["kept_out"] * most)
            self.arithmetic[key] = issue, special * FITTED["special"], busy
        return self.arithmetic[key]

    def jump(self, states: list[CopyState], number: int, seen: list[Time], more: Number) -> None:
        """Go on for more steps of a loop at the period: what the steps moved moves along.

        Where statements are followed by the clock, the end of the last step is not used: in it some
        had the units to themselves, as the others rest.
        """
        if len(seen) < 4 or not np.any(more > 0):
            return
        ends = np.stack(seen).reshape(len(seen), self.size)
        last = len(seen) - 1 - self.clocked
        turn, apart = self.turn_of(np.diff(ends[: last + 1], axis=0))
        self.turn = turn if number == 0 else np.lcm(turn, np.asarray(self.turn, np.int64))
        self.apart = apart if number == 0 else np.maximum(apart, self.apart)
        whole, rest = np.divmod(np.maximum(more, 0), turn)
        rest = np.asarray(last - turn + rest, np.int64)
        before = ends[last - turn, self.columns]
        later = whole * (ends[last] - before) + (ends[rest, self.columns] - before)
        works = [(s.agent.together, _late_work(_loop(s.agent, number))) for s in states]
        for unit, free in self.free().items():  # it may fall behind only later
            spare = np.maximum(ends[-1] - free, 0.0)
            work = sum(many * each.get(unit, 0.0) for many, each in works)
            later = np.maximum(later, np.maximum(more, 0) * self.share * work - spare)
        if self.size == 1:
            later = later.item()
        for state in (s for s in states if _loop(s.agent, number).body):
            if self.clocked:
                state.finish()
            state.busy(later)
            state.there.clear()
            state.issued = state.worked = state.now
            state.groups = [(first + later, last + later) for first, last in state.groups[-4:]]
        self.tensor, self.smem = self.tensor + later, self.smem + later
        self.fill, self.tma = self.fill + later, self.tma + later
        self.units = {unit: free + later for unit, free in self.units.items()}
        moved = {b for s in states for b in _barriers(_loop(s.agent, number).body)}
        for barrier in moved & self.phases.keys():
            phases = self.phases[barrier]
            if self.size == 1:
                phases[_BEFORE:] = [at + later if at > 0 else at for at in phases[_BEFORE:]]
            else:
                phases[_BEFORE:] += np.where(phases[_BEFORE:] > 0, later, 0.0)

    def free(self) -> dict[str, Time]:
        """Return when each unit is free."""
        tiles = {"tensor": self.tensor, "smem": self.smem, "fill": self.fill, "tma": self.tma}
        return {**tiles, **self.units}

    def turn_of(self, gaps: Floats) -> tuple[Integers, Floats]:
        """Return after how many steps the times between steps come again, and how far they do not.

        The critical cycle is a turn of the ring, or from a load to the one that may take its stage.
        """
        half = len(gaps) // 2
        last = len(gaps) - 1 - np.arange(half)[:, None]
        found, least = np.ones(self.size, np.int64), np.full(self.size, np.inf)
        for each in range(1, half + 1) if self.clocked else (1, *self.turns):
            turn = np.clip(np.broadcast_to(np.asarray(each), self.size), 1, half)
            apart = np.abs(gaps[last, self.columns] - gaps[last - turn, self.columns]).max(0)
            better = apart < least - _EVEN
            found, least = np.where(better, turn, found), np.where(better, apart, least)
        return found, least

    def event(self, event: Event, state: CopyState, known: Known, mask: Truth) -> None:
        """Follow one event; an arrival where the mask (True, or an array) holds."""
        if event.kind == "math":
            self.math(event, state)
            return
        cycles, share, later = self.cycles_of(event), self.share, self.later
        if self.clocked:
            self.arrive(event, known)
            state.finish()
        match event.kind:
            case "wait":
                phase = self.phase(event.barrier, event.index.evaluate(known))
                one = state.now is state.last
                state.now = later(state.now, phase)
                state.last = state.now if one else later(state.last, phase)
                state.busy(cycles["serial"])
            case "arrive":
                state.busy(cycles["serial"] if mask is True else cycles["serial"] * mask)
                at = state.last + event.latency
                if event.group:  # not now, but when its products are done
                    at = later(at, state.done[1])
                self.complete(event.barrier, event.index.evaluate(known), at, mask)
            case "load":
                state.busy(cycles["serial"])
                start = later(self.tma, state.now)
                self.tma = start + cycles["tma"] * share
                come = later(self.fill, start) + cycles["fill"] * share
                self.fill = later(come, self.tma)  # rows come while later ones are asked for
                self.smem = self.smem + cycles["smem"] * share
                landed = self.fill + event.latency
                self.complete(event.barrier, event.index.evaluate(known), landed, True)
            case "product":
                copies = state.agent.together
                many = copies * share
                start = later(state.now, self.tensor)
                self.smem = later(self.smem, start) + cycles["smem"] * many
                ends = start + cycles["tensor"] * many
                self.tensor = later(ends, self.smem)
                each = (self.tensor - start) / many
                first = start + each + event.latency
                state.done = first, first + (copies - 1) * each
            case "commit" if event.group and event.group.holds == "sums":
                state.groups.append(state.done)
            case "group" if event.group and event.group.holds == "sums":
                first, last = self.newest(state, event.pending)
                state.now, state.last = later(state.now, first), later(state.last, last)
            case _:
                super().event(event, state, known, mask)

    def arrive(self, event: Event, known: Mapping[str, Number]) -> None:
        """Count arrivals."""
        if event.kind == "arrive":
            key = event.barrier, int(event.index.evaluate(known))
            self.arrived[key] = self.arrived.get(key, 0) + event.arrivals

    def newest(self, state: CopyState, pending: Number) -> tuple[Number, Number]:
        """Return the ends of the newest group but ``pending``."""
        found: tuple[Number, Number] = (self.zero, self.zero)
        for n in range(min(int(np.max(pending)) + 1, len(state.groups))):
            here, group = pending == n, state.groups[-1 - n]
            if isinstance(here, np.ndarray):
                first, last = (np.where(here, *ends) for ends in zip(group, found, strict=True))
                found = first, last
            elif here:
                found = group
        return found

    def phase(self, barrier: str, index: Number) -> Number:
        """Return when a phase is complete."""
        if barrier not in self.phases:
            return self.zero
        phases, at = self.phases[barrier], self.zero
        if isinstance(index, np.ndarray):
            at = phases[np.maximum(index.astype(np.int64) + _BEFORE, 0), self.columns]
        elif (row := max(int(index) + _BEFORE, 0)) < len(phases):
            at = phases[row]
        return at

    def complete(self, barrier: str, index: Number, at: Number, mask: Truth) -> None:
        """Note that a phase is complete no earlier than ``at``, where the mask holds."""
        if barrier not in self.phases:
            many = _BEFORE + self.rows
            self.phases[barrier] = [0.0] * many if self.size == 1 else np.zeros((many, self.size))
        phases = self.phases[barrier]
        if mask is True and not isinstance(index, np.ndarray):
            row = int(index) + _BEFORE
            if self.size == 1 and row >= len(phases):  # of several in a step
                phases += [0.0] * (row + 1 - len(phases))
            phases[row] = self.later(phases[row], at)
            return
        rows = np.asarray(index + _BEFORE, np.int64).clip(0, len(phases) - 1)  # or not of the mask
        phases[rows, self.columns] = self.later(
            phases[rows, self.columns], at if mask is True else np.where(mask, at, 0.0)
        )


def tokens_of(agents: tuple[TimedAgent, ...], stages: Number) -> Number:
    """Return the tokens of the cycle from a load to the one that may take its stage.

    A stage is released when products so many steps later have begun.
    """
    tokens = stages
    for agent in agents:
        for node in agent.body:
            if isinstance(node, Event) and node.group and node.group.holds == "sums":
                tokens = np.minimum(tokens, stages - node.pending)
    least: Number = np.maximum(tokens, 1)
    return least


def reach(trees: Sequence[Tree]) -> tuple[int, int]:
    """Return how many of the first and of the last steps guards tell from those between."""
    first = last = 0
    for tree in trees:
        for node in tree:
            if isinstance(node, Guard) and not node.tells:
                for start, end in (node.apart, reach([node.body])):
                    first, last = max(first, int(np.max(start))), max(last, int(np.max(end)))
    return first, last


def _loop(agent: TimedAgent, number: int) -> StepLoop:
    """Return one of an agent's loops over steps; an empty one past the last."""
    return agent.loops[number] if number < len(agent.loops) else StepLoop()


def _late_work(loop: StepLoop) -> dict[str, Number]:
    """Return the cycles of each unit in a step far from both ends of its loop."""
    return total_work(loop.body, lambda guard: float(guard.late))


def _barriers(nodes: Tree) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        found |= {node.barrier} - {""} if isinstance(node, Event) else _barriers(node.body)
    return found


class Recursion:
    """Cycles of a CTA's tiles, from the numbers of its agents, in one flat order.

    ``numbers(agents)`` gives the order; before them come ``share``, the tiles, the steps and the
    stages of the ring of steps.  Where tiles take different steps (``own``) then come the clusters
    at once and the kind; the steps are not used.
    """

    def __init__(self, agents: tuple[TimedAgent, ...], own: TileSteps | None = None) -> None:
        """Remember the form; the numbers of ``agents`` are not used."""
        self.agents, self.own = agents, own
        self.singly = clocked(agents)
        self.chunk = 1 if self.singly else _CHUNK
        self._last: tuple[list[Number], tuple[TimedAgent, ...]] = ([], ())

    def __call__(self, *numbers: Number) -> Number:
        """Return the cycles from the first load to the last store: elementwise on arrays."""
        inputs = [np.asarray(x, np.float64) for x in numbers]
        shape = np.broadcast_shapes(*(x.shape for x in inputs))
        flat = [np.broadcast_to(x, shape).reshape(-1) if x.ndim else x for x in inputs]
        first, same = _apart([x for x in flat if x.ndim], int(np.prod(shape)))
        flat = [x[first] if x.ndim else x for x in flat]
        result = np.empty(len(first))
        for start in range(0, len(first), self.chunk):
            here = slice(start, min(start + self.chunk, len(first)))
            size = here.stop - start
            some = [np.asarray(_alike(x[here])) if x.ndim else x for x in flat]
            result[here] = self._apart(some, size) if self.own else self._part(some, size)
        return result[same].reshape(shape) if shape else float(result[0])

    def filled(self, leaves: Sequence[Number]) -> tuple[TimedAgent, ...]:
        """Return the agents with numbers of points; of one point they are made once."""
        if not self.singly:
            return _filled(self.agents, leaves)
        here: list[Number] = [float(x) for x in leaves]
        if here != self._last[0]:
            self._last = here, _filled(self.agents, here)
        return self._last[1]

    def _apart(self, inputs: Sequence[Floats], size: int) -> Floats:
        """Follow the busiest cluster's tiles, each with its steps; of many: with their mean.

        A CTA of one tile, as others follow it on its SM, has their mean too.
        """
        share, tiles, _, stages, at_once, kind, *leaves = inputs
        assert self.own is not None
        rows = np.stack([np.broadcast_to(x, size) for x in (tiles, at_once, kind)], axis=-1)
        each, which = np.unique(rows, axis=0, return_inverse=True)
        result, sequences = np.empty(size), dict[tuple[int, ...], list[int]]()
        of_all, mean = each[:, 0].astype(float), np.empty(len(each))
        for number, (turns, many, of) in enumerate(each.tolist()):
            taken = self.own.busiest(int(of), int(many))
            mean[number] = -(-sum(taken) // len(taken))
            if self.own.skips:
                turns = of_all[number] = min(turns, len(taken))
            if turns > 1 and len({*taken}) > 1 and len(taken) <= _OWN:
                sequences.setdefault(taken, []).append(number)
        which = which.reshape(-1)
        for taken, numbers in sequences.items():
            at = np.flatnonzero(np.isin(which, numbers))
            some = [x[at] if x.ndim else x for x in (share, stages, *leaves)]
            result[at] = self._sequence(some, taken, len(at))
        at = np.flatnonzero(~np.isin(which, [n for some in sequences.values() for n in some]))
        if len(at):
            some = [x[at] if x.ndim else x for x in (share, stages, *leaves)]
            of = which[at]
            result[at] = self._part([some[0], of_all[of], mean[of], some[1], *some[2:]], len(at))
        return result

    def _sequence(self, some: Sequence[Floats], taken: tuple[int, ...], size: int) -> Floats:
        """Follow tiles with different steps, the first of each until they are periodic."""
        share, stages, *leaves = some
        longest = np.asarray(float(max(taken)))
        inputs = [share, np.asarray(1.0), longest, stages, *leaves]
        _, few, turn = self._one_tile(inputs, size)
        result = np.empty(size)
        for first, period in sorted({*zip(few.tolist(), turn.tolist(), strict=True)}):
            at = np.flatnonzero((few == first) & (turn == period))
            here = [_alike(x[at] if x.ndim else x) for x in inputs]
            run = Following(self.filled(here[4:]), here[0], here[3], len(at))
            each = [(n, int(min(n, first) + max(n - first, 0) % period)) for n in taken]
            result[at] = run.followed(len(each), each, len(each))
        return result

    def _part(self, inputs: Sequence[Floats], size: int) -> Floats:
        """Follow one tile until its steps are periodic; where there are more, whole turns of it."""
        tiles, most, ring = (np.broadcast_to(x, size) for x in inputs[1:4])
        result, few, turn = self._one_tile(inputs, size)
        copies = 1
        for agent in self.filled(inputs[4:]):
            copies = max(copies, int(np.max(agent.step)))
        at = np.flatnonzero(tiles > 1)
        if len(at):
            stages = _few_stages(ring)
            covering = copies * np.ceil(stages / np.maximum(most, 1))  # tiles that fill the ring
            tiles = np.minimum(tiles, 2 * covering + 1)
            steps = few + (most - few) % turn
            result[at], _, _ = self._followed(inputs, at, tiles, steps, covering)
        return result

    def _one_tile(self, inputs: Sequence[Floats], size: int) -> tuple[Floats, Floats, Floats]:
        """Return a tile's cycles, how many steps were followed until periodic, and their turns."""
        most, ring = (np.broadcast_to(x, size) for x in inputs[2:4])
        stages = _few_stages(ring)
        result, few, turn = np.empty(size), np.zeros(size), np.ones(size)
        at, one = np.arange(size), np.ones(size)
        ends = sum(reach([agent.body for agent in self.filled(inputs[4:])]))
        for times in (1, 2, 4):
            few[at] = np.minimum(times * (2 * stages + 4) + ends, most)[at]
            result[at], turn[at], apart = self._followed(inputs, at, one, few, one)
            at = at[apart > _EVEN]
            if not len(at):
                break
        return result, few, turn

    def _followed(
        self, inputs: Sequence[Floats], at: Integers, tiles: Floats, steps: Floats, window: Floats
    ) -> tuple[Floats, Floats, Floats]:
        """Return the cycles of some points, in groups that follow as many tiles and steps.

        Also the turns of their steps, and by how much these are not periodic.  Parts of a tile or
        of a step, where the tail is thought away, go on at the period.
        """
        found = np.empty((3, len(at)))
        tiles, steps = np.floor(tiles), np.floor(steps)
        key = ((tiles * _MANY + steps) * _MANY + window)[at]
        for value in np.unique(key):
            of = np.flatnonzero(key == value)
            here = at[of] if len(of) < len(tiles) else slice(None)
            some = [_alike(x[here] if x.ndim else x) for x in inputs]
            run = Following(self.filled(some[4:]), some[0], some[3], len(of))
            first, period = divmod(int(value), _MANY)
            found[0, of] = run.cycles(some[1], some[2], *divmod(first, _MANY), period)
            found[1, of], found[2, of] = run.turn, run.apart
        return found[0], found[1], found[2]


def _few_stages(ring: Floats) -> Floats:
    """Round stages up, so that there are few different ones."""
    return np.asarray(2 ** np.ceil(np.log2(np.maximum(ring, 4))))


def _apart(columns: Sequence[Floats], count: int) -> tuple[Integers, Integers]:
    """Return where each combination of numbers comes first, and which one each point has."""
    if not columns or count < 2:
        return np.zeros(1, np.int64), np.zeros(count, np.int64)
    rows = np.stack(columns, axis=-1)
    whole = rows.view(np.dtype((np.void, rows.itemsize * rows.shape[1]))).reshape(-1)
    _, first, same = np.unique(whole, return_index=True, return_inverse=True)
    return first, same


def _alike(numbers: Floats) -> Number:
    """Return one number for points that all have it: what it makes is then made once."""
    first = numbers.item(0)
    return first if numbers.ndim == 0 or (numbers == first).all() else numbers
