"""Timelines of programs with barriers: who does what, and what is in each stage of the ring.

The recursion that predicts the time (``recursion.py``) is run for one CTA, with a record of what it
does.  The rows, for a producer, ``copies`` consumers and a ring of D stages:

    producer     waits for an empty stage, issues loads
    copy engine  TMA walks the boxes of a load; its bytes are in flight until they have landed
    stage s      is filled (from the load's issue until it has landed), full (nobody reads it yet),
                 read (from the first product until all who read it have released it: where a
                 tcgen05.commit does, when its products are done), empty otherwise
    tensor cores one product after another, between them those of other CTAs on the SM
    consumer c   waits, has products on the tensor cores, stores its part of the tile

Long tiles are cut: after the first steps, by then in a rhythm, the others are one bar.

>>> from tinygpu.device import load_device
>>> from tinygpu.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS, Hopper
>>> from tinygpu.operation import matmul
>>> program = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["ring"]))
>>> line = follow(program, {"m": 128, "n": 128, "k": 512}, load_device("h200"))
>>> list(line.rows)
['producer', 'copy engine', 'stage 0', 'stage 1', 'stage 2', 'stage 3', 'tensor cores', 'consumer']
>>> [e.iteration for e in line.events if e.statement == "read"][:5]
['tile=0 kt=0', 'tile=0 kt=4', 'tile=0 kt=1', 'tile=0 kt=5', 'tile=0 kt=2']

Source: ``docs/model.md``, section "Time".
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinygpu.device import Device
from tinygpu.program import Program
from tinygpu.search import asynchronous
from tinygpu.search.asynchronous import Node, TimedAgent, TimedLoop
from tinygpu.search.pipeline import Placed, Stages
from tinygpu.search.recursion import CopyState, Following, Time, tokens_of
from tinygpu.search.spans import Span, StageUse, Timeline

__all__ = ["follow"]

_STEPS = 32
"""Steps of a tile that are followed one by one, and those beside whole turns of the ring."""


def follow(
    program: Program, sizes: Mapping[str, int], device: Device, *, tiles: int = 4
) -> Timeline:
    """Follow one CTA of a busy chip through its first ``tiles``.

    Raises ProgramError for sizes that the term does not cover, or roles of another form.
    """
    stages = Stages.of(program, sizes, device)
    place = Placed.of(stages)
    ring, steps, turns = int(stages.stages), int(stages.steps), int(place.turns)
    first_tiles = min(turns, tiles)
    turn = math.lcm(ring, int(np.max(tokens_of(place.agents, stages.stages))))
    first_steps = steps if steps <= _STEPS else _STEPS + (steps - _STEPS) % turn
    depth = {barrier.name: int(barrier.stages) for barrier in program.barriers}
    run = _Recorder(place.agents, float(place.share), ring, depth)
    cycles = run.cycles(first_tiles, steps, first_tiles, first_steps, first_tiles)
    whole = turns <= tiles and first_steps == steps
    return Timeline(run.ordered(), tuple(run.begins), float(np.max(cycles)), whole)


@dataclass(slots=True)
class _Lane:
    """A copy of an agent: what it is at, and the index that it waited for last."""

    rows: tuple[str, ...]
    at: int = 0
    begun: int = -1


class _Recorder(Following):
    """The recursion for one CTA, with a record."""

    def __init__(
        self, agents: tuple[TimedAgent, ...], share: Any, ring: Any, depth: Mapping[str, int]
    ) -> None:
        super().__init__(agents, share, ring, 1)
        self.depth = depth
        self.events: list[Span] = []
        self.begins: list[tuple[str, float]] = []
        self.uses: dict[int, StageUse] = {}
        bodies = [(agent, tuple(_flat(agent.body))) for agent in agents]
        loads = [e for _, body in bodies for e in body if e.kind == "load"]
        self.filled = {load.barrier for load in loads}
        self.freed = {
            event.barrier
            for _, body in bodies
            if any(e.kind == "load" for e in body)
            for event in body
            if event.kind == "wait"
        }
        self.lanes: dict[int, _Lane] = {}
        rows: list[str] = []
        for agent, copies in zip(agents, self.states, strict=True):
            for state in copies:
                together = int(np.max(agent.together))
                numbers = range(together) if together > 1 else (state.copy,)
                many = together * len(copies) > 1
                names = tuple(f"{agent.name} {n}" if many else agent.name for n in numbers)
                self.lanes[id(state)] = _Lane(names)
                rows += names
        count = max((depth[name] for name in self.filled), default=0)
        first = [row for lane in list(self.lanes.values())[:1] for row in lane.rows]
        order = [*first, "copy engine", *(f"stage {n}" for n in range(count)), "tensor cores"]
        self.order = {row: n for n, row in enumerate(dict.fromkeys([*order, *rows]))}

    def ordered(self) -> tuple[Span, ...]:
        """Return the record row by row."""
        for index in list(self.uses):
            self.close(index)
        return tuple(sorted(self.events, key=lambda e: (self.order[e.row], e.start_cycles)))

    def note(
        self, row: str, what: str, where: str, start: Any, end: Any, ready: Any = None
    ) -> None:
        """Record what lasts."""
        begin, until = _number(start), _number(end)
        there = until if ready is None else _number(ready)
        if until > begin or there > until:
            self.events.append(Span(row, what, where, begin, until, there))

    def of_lanes(
        self,
        state: CopyState,
        what: str,
        where: str,
        start: tuple[Any, Any],
        end: tuple[Any, Any],
    ) -> None:
        """Record what each copy does, between the clocks of the first and of the last."""
        rows = self.lanes[id(state)].rows
        for number, row in enumerate(rows):
            part = number / max(1, len(rows) - 1)
            begin, until = (_number(a) + part * (_number(b) - _number(a)) for a, b in (start, end))
            self.note(row, what, where, begin, until)

    def nodes(self, nodes: tuple[Node, ...], state: CopyState, known: dict[str, Any]) -> None:
        """Follow statements in order; an unrolled loop without barriers is what stores a tile."""
        for node in nodes:
            before = state.now, state.last
            super().nodes((node,), state, known)
            if isinstance(node, TimedLoop) and not node.signals:
                now = state.now, state.last
                self.of_lanes(state, "epilogue", _where(state, known), before, now)

    def event(
        self, event: asynchronous.Event, state: CopyState, known: dict[str, Any], mask: Any
    ) -> None:
        """Follow one event and record it."""
        before, engine, cores = (state.now, state.last), self.tma, self.tensor
        super().event(event, state, known, mask)
        where, lane = _where(state, known), self.lanes[id(state)]
        index = int(_number(event.index.evaluate(known))) if event.barrier else 0
        match event.kind:
            case "wait":
                if event.barrier in self.filled:
                    lane.at = index
                self.of_lanes(
                    state, f"wait {event.barrier}", where, before, (state.now, state.last)
                )
            case "load":
                self.close(index - self.depth[event.barrier])
                landed = _number(self.fill) + _number(event.latency)
                start = _number(before[0])
                use = self.uses.setdefault(index, StageUse(where, start, landed))
                use.landed = max(use.landed, landed)
                self.note(lane.rows[0], "issue loads", where, start, state.now)
                busy = np.maximum(engine, state.now)
                self.note("copy engine", "load", where, busy, self.tma, landed)
            case "product":
                start, name = _number(np.maximum(before[0], cores)), event.instruction
                cycles = _number(self.tensor) - start
                end = start + cycles / _number(self.share)
                self.note("tensor cores", f"{name} of {_short(lane)}", where, start, end)
                self.note("tensor cores", "other CTAs", "", end, start + cycles)
                each = (end - start) / len(lane.rows)
                for number, row in enumerate(lane.rows):
                    self.note(row, name, where, start + number * each, start + number * each + each)
                if lane.at in self.uses:
                    use = self.uses[lane.at]
                    use.read, use.done = min(use.read, start), end
                if lane.begun != known[state.agent.tile]:
                    lane.begun = known[state.agent.tile]
                    self.begins.append((f"tile {lane.begun}", start))

    def released(self, index: int) -> float:
        """Return when a use of a stage is over, as the producer sees it; 0 before any release."""
        return max((_number(self.phase(name, index)) for name in self.freed), default=0.0)

    def close(self, index: int) -> None:
        """Record a use of a stage."""
        use = self.uses.pop(index, None)
        if use is None:
            return
        if use.done:
            use.done = max(use.done, self.released(index))
        self.events += use.events(f"stage {index % max(self.depth[name] for name in self.filled)}")

    def jump(self, states: list[CopyState], seen: list[Time], more: Any) -> None:
        """Go on for more steps, recorded as one bar a row; what holds a stage then holds it on."""
        if not _number(more):
            return
        before = [(state.now, state.last) for state in states]
        held = {index: use for index, use in self.uses.items() if not self.released(index)}
        for index in list(self.uses):
            self.close(index)
        super().jump(states, seen, more)
        what = f"{_number(more):.0f} more steps"
        for state, then in zip(states, before, strict=True):
            self.of_lanes(state, what, "", then, (state.now, state.last))
        later = _number(states[0].now) - _number(before[0][0])
        self.note("tensor cores", what, "", _number(self.tensor) - later, self.tensor)
        self.uses |= {i: _later(use, later, int(_number(more))) for i, use in held.items()}


def _flat(nodes: tuple[Node, ...]) -> list[asynchronous.Event]:
    found: list[asynchronous.Event] = []
    for node in nodes:
        found += [node] if isinstance(node, asynchronous.Event) else _flat(node.body)
    return found


def _where(state: CopyState, known: Mapping[str, Any]) -> str:
    agent = state.agent
    names = [agent.tile, *([agent.step_var] if agent.step_var in known else [])]
    return " ".join(f"{name}={known[name]}" for name in names)


def _later(use: StageUse, cycles: float, steps: int) -> StageUse:
    """Return the use of the same stage some steps later."""
    loop, _, step = use.where.rpartition("=")
    times = (use.issued, use.landed, use.read, use.done)
    return StageUse(f"{loop}={int(step) + steps}", *(time + cycles for time in times))


def _short(lane: _Lane) -> str:
    """Name copies that work together by what they are."""
    return lane.rows[0] if len(lane.rows) == 1 else lane.rows[0].rpartition(" ")[0]


def _number(value: Any) -> float:
    return float(np.max(value))
