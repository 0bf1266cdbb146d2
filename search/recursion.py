"""Time of programs with barriers: the (max, +) recursion over tiles and steps.

The agents of a CTA (``asynchronous.py``) advance together, step by step.  An agent has a clock, a
unit the time at which it is free, and a phase of a barrier the time of its last arrival or byte:

    wait      clock = max(clock, phase) + its cost
    load      in order through issue, the copy engine and the way from L2; lands a latency later
    product   start = max(clock, tensor cores free, shared memory free); ends its cycles later
    group     clock = max(clock, end of the newest group but N)
    arrive    phase = max(phase, clock)

``together`` copies of a role share the units, ``share`` CTAs an SM.  All maps are maxima of sums,
so the steps of a tile, and the tiles of a CTA, become periodic: the recursion runs until then
(three turns of the longest ring, a few tiles) and goes on at the period; agents that rest during a
tile's steps keep their clocks.  The epilogue's chunks have a period in closed form: their own
cycles, or with D stages of the store a (cycles + read) / D.

>>> from tinygpu.device import load_device
>>> from tinygpu.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS, Hopper
>>> from tinygpu.operation import matmul
>>> from tinygpu.search.asynchronous import agents
>>> term = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["ring"]))
>>> found = agents(term, load_device("h200"), {"m": 128, "n": 128, "k": 8192})
>>> few, many = (Recursion(found)(1, 1, steps, 4, *numbers(found)) for steps in (100, 101))
>>> round(many - few)        # a step's period: shared memory, 32 KiB in and 48 KiB out
573

Source: ``docs/model.md``, section "Time"; Baccelli et al., "Synchronization and Linearity", 1992.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygpu.search.asynchronous import Event, Guard, Node, TimedAgent, TimedLoop, mapped

__all__ = ["CopyState", "Following", "Recursion", "numbers", "of_agent", "span_cycles"]

Numbers = Any
Times = NDArray[np.float64]
_CHUNK = 4096
"""Points at once: their clocks stay in a core's cache."""
_MANY = 1 << 16
_NEVER = np.zeros(1)
_BEFORE = 64
"""Phases before the first that an index may name; they are over from the start."""


class Recursion:
    """Cycles of a CTA's tiles, from the numbers of its agents, in one flat order.

    ``numbers(agents)`` gives the order; before them come ``share``, the tiles, the steps and the
    stages of the ring of steps.
    """

    def __init__(self, agents: tuple[TimedAgent, ...]) -> None:
        """Remember the form; the numbers of ``agents`` are not used."""
        self.agents = agents

    def __call__(self, share: Any, tiles: Any, steps: Any, stages: Any, *leaves: Any) -> Any:
        """Return the cycles from the first load to the last store: elementwise on arrays."""
        inputs = [np.asarray(x, np.float64) for x in (share, tiles, steps, stages, *leaves)]
        shape = np.broadcast_shapes(*(x.shape for x in inputs))
        flat = [np.broadcast_to(x, shape).reshape(-1) if x.ndim else x for x in inputs]
        count = int(np.prod(shape))
        result = np.empty(count)
        for first in range(0, count, _CHUNK):
            here = slice(first, min(first + _CHUNK, count))
            result[here] = self._part([x[here] if x.ndim else x for x in flat], here)
        return result.reshape(shape) if shape else float(result[0])

    def _part(self, inputs: Sequence[Times], here: slice) -> Times:
        """Group points that take the same number of tiles and steps to become periodic."""
        size = here.stop - here.start
        result = np.empty(size)
        agents = _filled(self.agents, inputs[4:])
        turns = 1
        for agent in agents:
            turns = max(turns, int(np.max(agent.step)))
        most = inputs[2]
        stages = 2 ** np.ceil(np.log2(np.maximum(inputs[3], 4)))  # few different ones
        covering = turns * np.ceil(stages / np.maximum(most, 1))  # tiles that fill the ring
        tiles = np.minimum(inputs[1], 2 * covering + 1)
        steps = np.minimum(most, 3 * stages + 2)
        key = np.broadcast_to((tiles * _MANY + steps) * _MANY + covering, (size,))
        for value in np.unique(key):
            at = np.flatnonzero(key == value)
            whole = len(at) == size
            some = [x if whole or not x.ndim else x[at] for x in inputs]
            run = Following(_filled(self.agents, some[4:]), some[0], some[3], len(at))
            first, period = divmod(int(value), _MANY)
            result[at] = run.cycles(some[1], some[2], *divmod(first, _MANY), period)
        return result


def numbers(agents: tuple[TimedAgent, ...]) -> list[Numbers]:
    """Return every number of the agents in order."""
    found: list[Numbers] = []

    def note(number: Numbers) -> Numbers:
        found.append(number)
        return number

    for agent in agents:
        of_agent(agent, note)
    return found


def _filled(agents: tuple[TimedAgent, ...], leaves: Sequence[Numbers]) -> tuple[TimedAgent, ...]:
    rest = iter(leaves)
    return tuple(of_agent(agent, lambda _: next(rest)) for agent in agents)


def of_agent(agent: TimedAgent, of: Callable[[Numbers], Numbers]) -> TimedAgent:
    """Apply a function to every number of an agent, always in the same order."""
    return replace(
        agent,
        together=of(agent.together),
        step=of(agent.step),
        before=mapped(agent.before, of),
        body=mapped(agent.body, of),
        after=mapped(agent.after, of),
    )


def span_cycles(nodes: tuple[Node, ...]) -> Numbers:
    """Return how long a copy's warps take for statements that wait for no barrier.

    Chunks that are stored from a ring go at its period.
    """
    serial: Numbers = 0.0
    read: Numbers = 0.0
    stages: Numbers = 1
    for node in nodes:
        match node:
            case TimedLoop() if not node.signals:
                serial = serial + node.trips * span_cycles(node.body)
            case Event("store"):
                serial = serial + node.cycles["serial"]
                read = read + node.latency + np.maximum(node.cycles["smem"], node.cycles["tma"])
            case Event("work"):
                serial = serial + node.cycles["serial"]
            case Event("group") if node.group == "bulk.read":
                stages = node.pending + 1
    return np.maximum(serial, (serial + read) / stages)


@dataclass(slots=True)
class CopyState:
    """One copy of an agent, or copies that work together: the clocks of the first and the last.

    ``groups`` are the ends of their groups of products.
    """

    agent: TimedAgent
    copy: int
    now: Times
    last: Times
    groups: list[tuple[Times, Times]] = field(default_factory=list)
    done: tuple[Times, Times] = (_NEVER, _NEVER)
    turn: int = 0

    def busy(self, cycles: Numbers) -> None:
        """Let both clocks go on."""
        self.now = self.now + cycles
        self.last = self.last + cycles

    def until(self, first: Times, last: Times) -> None:
        """Wait for a time each."""
        self.now = np.maximum(self.now, first)
        self.last = np.maximum(self.last, last)


class Following:
    """The recursion for points that take the same number of tiles and steps."""

    def __init__(
        self, agents: tuple[TimedAgent, ...], share: Times, stages: Times, size: int
    ) -> None:
        self.share, self.size = share, size
        self.tokens = _tokens(agents, stages)
        self.zero = np.zeros(size)
        self.states = [
            [
                CopyState(a, copy, self.zero, self.zero)
                for copy in range(max(1, int(np.max(a.step))))
            ]
            for a in agents
        ]
        self.phases: dict[str, Times] = {}
        self.columns = np.arange(size)
        self.tensor = self.smem = self.fill = self.tma = self.zero
        self.rows = 0

    def cycles(
        self, tiles: Times, steps: Times, first_tiles: int, first_steps: int, window: int
    ) -> Times:
        """Return the cycles of all tiles: the first ones step by step, then at the period."""
        self.rows = first_tiles * first_steps + 2
        ends: list[Times] = []
        for tile in range(first_tiles):
            states = [copies[tile % len(copies)] for copies in self.states]
            values = [
                {s.agent.tile: tile, s.agent.turn: s.turn, s.agent.copy: s.copy,
                 s.agent.steps: first_steps}
                for s in states
            ]  # fmt: skip
            for state, known in zip(states, values, strict=True):
                self.nodes(state.agent.before, state, known)
            seen: list[Times] = []
            for step in range(first_steps):
                for state, known in zip(states, values, strict=True):
                    known[state.agent.step_var] = step
                    self.nodes(state.agent.body, state, known)
                seen.append(np.maximum.reduce([s.last for s in states if s.agent.body]))
            self.jump(states, seen, steps - first_steps)
            for state, known in zip(states, values, strict=True):
                self.nodes(state.agent.after, state, known)
                state.turn += 1
            ends.append(np.maximum.reduce([s.last for c in self.states for s in c]))
        if len(ends) > window:
            period = (ends[-1] - ends[-1 - window]) / window
            return np.asarray(ends[-1] + np.maximum(tiles - first_tiles, 0) * period)
        return ends[-1]

    def jump(self, states: list[CopyState], seen: list[Times], more: Times) -> None:
        """Go on for more steps at the period: what the steps moved moves along."""
        if len(seen) < 4 or not np.any(more > 0):
            return
        half = len(seen) // 2  # whole turns of the critical cycle, for a turn may be uneven
        window = np.clip(self.tokens * (half // self.tokens), 1, half).astype(np.int64)
        before = np.stack(seen)[len(seen) - 1 - window, self.columns]
        later = np.maximum(more, 0) * (seen[-1] - before) / window
        for state in (s for s in states if s.agent.body):
            state.busy(later)
            state.groups = [(first + later, last + later) for first, last in state.groups[-4:]]
        self.tensor, self.smem = self.tensor + later, self.smem + later
        self.fill, self.tma = self.fill + later, self.tma + later
        moved = {b for s in states for b in _barriers(s.agent.body)}
        for barrier in moved & self.phases.keys():
            phases = self.phases[barrier]
            phases[_BEFORE:] += np.where(phases[_BEFORE:] > 0, later, 0.0)

    def nodes(self, nodes: tuple[Node, ...], state: CopyState, known: dict[str, Any]) -> None:
        """Follow statements in order."""
        for node in nodes:
            match node:
                case Event():
                    self.event(node, state, known, None)
                case Guard():
                    index = node.index.evaluate(known)
                    bound = known[node.bound] if isinstance(node.bound, str) else node.bound
                    self.guarded(node, state, known, np.asarray(index < bound))
                case TimedLoop() if node.signals:
                    for i in range(int(np.max(node.trips))):
                        known[node.var] = i
                        inside = np.asarray(i < node.trips)
                        for inner in node.body:
                            if isinstance(inner, Guard):
                                bound = inner.bound
                                most = known[bound] if isinstance(bound, str) else bound
                                mask = inside & (inner.index.evaluate(known) < most)
                                self.guarded(inner, state, known, mask)
                case TimedLoop():
                    state.busy(node.trips * span_cycles(node.body))

    def guarded(self, guard: Guard, state: CopyState, known: dict[str, Any], mask: Any) -> None:
        """Arrive where the mask holds."""
        for event in guard.body:
            assert isinstance(event, Event)
            if mask.any():
                self.event(event, state, known, None if mask.all() else mask)

    def event(self, event: Event, state: CopyState, known: dict[str, Any], mask: Any) -> None:
        """Follow one event."""
        cycles, share = event.cycles, self.share
        match event.kind:
            case "wait":
                phase = self.phase(event.barrier, event.index.evaluate(known))
                state.until(phase, phase)
                state.busy(cycles["serial"])
            case "arrive":
                state.busy(cycles["serial"] if mask is None else cycles["serial"] * mask)
                at = state.last + event.latency
                if event.group == "tcgen05":  # not now, but when its products are done
                    at = np.maximum(at, state.done[1])
                self.complete(event.barrier, event.index.evaluate(known), at, mask)
            case "load":
                state.busy(cycles["serial"])
                start = np.maximum(self.tma, state.now)
                self.tma = start + cycles["tma"] * share
                come = np.maximum(self.fill, start) + cycles["fill"] * share
                self.fill = np.maximum(come, self.tma)  # rows come while later ones are asked for
                self.smem = self.smem + cycles["smem"] * share
                landed = self.fill + event.latency
                self.complete(event.barrier, event.index.evaluate(known), landed, None)
            case "product":
                copies = state.agent.together
                start = np.maximum(state.now, self.tensor)
                self.smem = np.maximum(self.smem, start) + cycles["smem"] * copies * share
                ends = start + cycles["tensor"] * copies * share
                self.tensor = np.maximum(ends, self.smem)
                each = (self.tensor - start) / (copies * share)
                first = start + each + event.latency
                state.done = first, first + (copies - 1) * each
            case "commit" if event.group == "wgmma":
                state.groups.append(state.done)
            case "group" if event.group == "wgmma":
                state.until(*self.newest(state, event.pending))
            case "work" | "store":
                state.busy(cycles["serial"])

    def newest(self, state: CopyState, pending: Numbers) -> tuple[Times, Times]:
        """Return the ends of the newest group but ``pending``."""
        found = (self.zero, self.zero)
        for n in range(min(int(np.max(pending)) + 1, len(state.groups))):
            first, last = state.groups[-1 - n]
            here = np.asarray(pending == n)
            found = np.where(here, first, found[0]), np.where(here, last, found[1])
        return found

    def phase(self, barrier: str, index: Any) -> Times:
        """Return when a phase is complete."""
        if barrier not in self.phases:
            return self.zero
        row = np.asarray(index + _BEFORE).astype(np.int64)
        phases = self.phases[barrier]
        if row.ndim == 0:
            return np.asarray(phases[max(int(row), 0)])
        return np.asarray(phases[np.maximum(row, 0), self.columns])

    def complete(self, barrier: str, index: Any, at: Times, mask: Any) -> None:
        """Note that a phase is complete no earlier than ``at``, where the mask holds."""
        if barrier not in self.phases:
            self.phases[barrier] = np.zeros((_BEFORE + self.rows, self.size))
        phases = self.phases[barrier]
        row = np.asarray(index + _BEFORE).astype(np.int64)
        if row.ndim == 0 and mask is None:
            phases[int(row)] = np.maximum(phases[int(row)], at)
            return
        columns = self.columns
        row = np.broadcast_to(row, columns.shape)
        if mask is not None:
            where = np.flatnonzero(np.broadcast_to(mask, columns.shape))
            row, columns, at = row[where], columns[where], at[where]
        phases[row, columns] = np.maximum(phases[row, columns], at)


def _tokens(agents: tuple[TimedAgent, ...], stages: Times) -> Times:
    """Return the tokens of the cycle from a load to the one that may take its stage.

    A stage is released when products so many steps later have begun.
    """
    tokens = stages
    for agent in agents:
        for node in agent.body:
            if isinstance(node, Event) and node.group == "wgmma":
                tokens = np.minimum(tokens, stages - node.pending)
    return np.maximum(tokens, 1)


def _barriers(nodes: tuple[Node, ...]) -> set[str]:
    found: set[str] = set()
    for node in nodes:
        found |= {node.barrier} - {""} if isinstance(node, Event) else _barriers(node.body)
    return found
