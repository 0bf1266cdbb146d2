"""Timelines: when each statement of a CTA runs, by the walk that its predicted time comes from.

``timeline`` lets the recursion (``recursion.py``) walk one CTA and writes down what happens.  A
statement keeps its unit busy, and its result is there after a latency more (its *flight*).

- Of a loop with a branch the first iterations are followed one by one; a ``cp.async.wait_group``
  waits for the landing of the groups themselves, of which the predicted period takes the mean.
- Of agents that take tiles the first tiles are followed.  The rows, for a producer, ``copies``
  consumers and a ring of D stages: the producer (waits for an empty stage, issues loads), the copy
  engine (TMA walks the boxes of a load; its bytes are in flight until they have landed), stages,
  the tensor cores (one product after another, between them those of other CTAs on the SM) and each
  consumer (waits, has products on the tensor cores, stores its part of the tile).  Long tiles are
  cut: after the first steps, by then in a rhythm, the others are one bar.

A ring's stage is filled (from the first copy's issue until the last has landed), full (nobody reads
it yet), read (until all who read it have, or have released it), empty otherwise.

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines import hopper, simt
>>> from tinygpu.term.operation import matmul
>>> program = simt.Simt().program(matmul(), Chosen(simt.LADDER["shared"]))
>>> line = timeline(program, {"m": 64, "n": 64, "k": 64}, load_device("h200"), iterations=2)
>>> list(line.rows)
['alu', 'global memory', 'shared memory', 'barrier', 'fma', 'loop']
>>> ring = hopper.Hopper().program(matmul("bf16", layout="nt"), Chosen(hopper.STARTS["ring"]))
>>> line = timeline(ring, {"m": 128, "n": 128, "k": 512}, load_device("h200"))
>>> list(line.rows)
['producer', 'copy engine', 'stage 0', 'stage 1', 'stage 2', 'stage 3', 'tensor cores', 'consumer']
>>> [e.iteration for e in line.events if e.statement == "read"][:5]
['tile=0 kt=0', 'tile=0 kt=4', 'tile=0 kt=1', 'tile=0 kt=5', 'tile=0 kt=2']

Source: ``docs/model.md``, section "Time"; the trace's form: "Trace Event Format", Google.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tinygpu.devices.device import Device
from tinygpu.isa.cp_async import COPIES
from tinygpu.numbers import Number, Truth
from tinygpu.search.time.cost import OF_ARITHMETIC, Features, Placed, features
from tinygpu.search.time.fitted import FITTED
from tinygpu.search.time.recursion import (
    CopyState,
    Following,
    Time,
    Walk,
    occupied,
    pace,
    together,
    tokens_of,
    waits,
)
from tinygpu.search.time.work import WARP, Event, Loop, TimedAgent, Tree, total_work
from tinygpu.term.program import Do, Program

__all__ = ["Span", "Timeline", "timeline", "trace"]

_STEPS = 32
"""Steps of a tile that are followed one by one, and those beside whole turns of the ring."""


@dataclass(frozen=True, slots=True)
class Span:
    """One statement once: in cycles since the CTA began, on which row, in which iterations.

    Its unit is busy from ``start_cycles`` to ``end_cycles``; its result is there at
    ``ready_cycles``.  ``iteration`` names the loops around it, ``kt=1 kk=3``.
    """

    row: str
    statement: str
    iteration: str
    start_cycles: float
    end_cycles: float
    ready_cycles: float

    @property
    def flies(self) -> bool:
        """Whether it brings something from global memory that is on its way for a while."""
        brings = ("global memory", COPIES.name, "copy engine")
        return self.row in brings and self.ready_cycles > self.end_cycles


@dataclass(frozen=True, slots=True)
class Timeline:
    """What a CTA does at first; ``whole``: to its end, and not only the first iterations.

    ``begins``: where each iteration of a loop that is not unrolled (with tiles: the first product
    of each) begins, in cycles.
    """

    events: tuple[Span, ...]
    begins: tuple[tuple[str, float], ...]
    cycles: float
    whole: bool

    @property
    def rows(self) -> tuple[str, ...]:
        """The rows that occur, in order of first use."""
        return tuple(dict.fromkeys(event.row for event in self.events))


@dataclass(slots=True)
class StageUse:
    """One use of a ring's stage: filled from ``issued`` to ``landed``, read until ``done``."""

    where: str = ""
    issued: float = math.inf
    landed: float = 0.0
    read: float = math.inf
    done: float = 0.0

    def events(self, row: str) -> list[Span]:
        """Return what the stage is, one after the other; what has no end yet is left out."""
        spans = (
            ("filling", self.issued, self.landed),
            ("full", self.landed, self.read),
            ("read", self.read, self.done),
        )
        return [Span(row, what, self.where, a, b, b) for what, a, b in spans if a < b < math.inf]


def timeline(
    program: Program, sizes: Mapping[str, int], device: Device, *, iterations: int = 4
) -> Timeline:
    """Follow one CTA through ``iterations`` of each loop with a branch, or so many tiles.

    One that takes tiles is a CTA of the busy chip; else it is alone on an SM.  Raises ProgramError
    for sizes that the term does not cover, or roles of another form.
    """
    found = features(program, sizes, device)
    if found.stepped:
        return _tiles(program, found, iterations)
    walker = _Threads(iterations)
    state = CopyState(0.0, 0.0, warps=-(-program.threads // WARP))
    walker.nodes(found.tree, state, {})
    events = walker.with_stages(program.parameter_values(sizes))
    return Timeline(tuple(events), tuple(walker.begins), float(state.last), not walker.cut)


def _tiles(program: Program, found: Features, tiles: int) -> Timeline:
    place = Placed.of(found)
    ring, steps, turns = int(found.stages), int(found.steps), int(place.turns)
    taken = [steps] * turns
    if found.own:
        taken = list(found.own.busiest(int(found.own.kind), int(place.at_once)))[:turns]
    turn = math.lcm(ring, int(np.max(tokens_of(place.agents, found.stages))))
    each = [(n, n if n <= _STEPS else _STEPS + (n - _STEPS) % turn) for n in taken[:tiles]]
    depth = {barrier.name: int(barrier.stages) for barrier in program.barriers}
    run = _Tiles(place.agents, float(place.share), ring, depth)
    cycles = run.followed(len(each), each, len(each))
    whole = len(taken) <= tiles and all(n == first for n, first in each)
    return Timeline(run.ordered(), tuple(run.begins), float(np.max(cycles)), whole)


def trace(line: Timeline, device: Device, *, name: str = "CTA 0") -> dict[str, Any]:
    """Return it in the trace event format, microseconds: for Perfetto or ``chrome://tracing``."""
    micro = 1e6 / device.clock_hz
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "tid": 0, "name": "process_name", "args": {"name": name}}
    ]
    for number, row in enumerate(line.rows):
        events += [
            {"ph": "M", "pid": 0, "tid": number, "name": "thread_name", "args": {"name": row}},
            {"ph": "M", "pid": 0, "tid": number, "name": "thread_sort_index",
             "args": {"sort_index": number}},
        ]  # fmt: skip
    numbers = {row: number for number, row in enumerate(line.rows)}
    for number, event in enumerate(line.events):
        common = {"pid": 0, "tid": numbers[event.row], "name": event.statement, "cat": event.row}
        args = {"iteration": event.iteration, "start_cycles": event.start_cycles}
        begin, end = event.start_cycles * micro, event.end_cycles * micro
        events.append({**common, "ph": "X", "ts": begin, "dur": end - begin, "args": args})
        if event.flies:
            flight = {**common, "name": f"in flight: {event.statement}", "id": number}
            events.append({**flight, "ph": "b", "ts": end})
            events.append({**flight, "ph": "e", "ts": event.ready_cycles * micro})
    events += [
        {"ph": "i", "pid": 0, "tid": 0, "s": "p", "name": begin, "ts": cycles * micro}
        for begin, cycles in line.begins
    ]
    return {"traceEvents": events, "displayTimeUnit": "ns"}


_ROWS = {"sync": "barrier", "group": "wait", "async": COPIES.name}


def _row(event: Event) -> str:
    if event.kind in _ROWS:
        return _ROWS[event.kind]
    if event.unit == "lsu":
        return "global memory" if "l1" in event.each else "shared memory"
    return event.unit if event.statement is not None else "loop"


class _Threads(Walk):
    """The walk of what takes no tiles, with a record of each iteration of a loop with a branch."""

    later = staticmethod(max)

    def __init__(self, iterations: int) -> None:
        self.iterations, self.cut = iterations, False
        self.events: list[Span] = []
        self.begins: list[tuple[str, float]] = []
        self.statements: dict[str, Do] = {}

    def nodes(self, nodes: Tree, state: CopyState, known: dict[str, Number]) -> None:
        """Follow statements in order, until a loop is cut."""
        for node in nodes:
            if not self.cut:
                super().nodes((node,), state, known)

    def event(self, event: Event, state: CopyState, known: dict[str, Number], mask: Truth) -> None:
        """Follow one event and record it; here each group of copies is one by itself."""
        start: Time = state.last
        there: Time = 0.0
        match event.kind:
            case "commit":
                state.groups.append((state.done[0], state.done[0]))
                state.done = 0.0, 0.0
                return
            case "group":
                done = len(state.groups) - int(event.pending)
                ends = (first for first, _ in state.groups[: max(done, 0)])
                state.now = state.last = max((state.last, *ends))
            case "do" | "async":
                start, end, there = self.threads(event, state)
                if event.kind == "async":
                    state.done = max(state.done[0], there), 0.0
                self.note(event, known, start, end, max(there, end))
                return
            case _:
                super().event(event, state, known, mask)
        self.note(event, known, start, state.last, state.last)

    def note(self, event: Event, known: Mapping[str, Number], *times: Number) -> None:
        """Record a statement's start, its end, and when its result is there."""
        text = "loop" if event.statement is None else str(event.statement)
        if isinstance(event.statement, Do):
            self.statements[text] = event.statement
        self.events.append(Span(_row(event), text, _at(known), *map(float, times)))

    def rolled(self, loop: Loop, state: CopyState, known: dict[str, Number]) -> None:
        """Begin each iteration when the last one has issued; past ``iterations``, stop."""
        trips, warps, one = int(loop.trips), state.warps, together(loop)
        for i in range(min(trips, self.iterations)):
            start = state.now = state.last
            state.units.clear()
            state.ready.clear()
            here = {**known, loop.var: loop.start + i}
            self.begins.append((_at(here), float(start)))
            state.warps = warps if one else 1  # each warp walks its own chain
            self.nodes(loop.body, state, here)
            state.warps = warps
            issued, state.last = state.last, state.last + FITTED["turn"]
            end = float(state.last)
            self.events.append(Span("loop", "branch", _at(here), float(issued), end, end))
            if not one:  # while the others use the units
                work = occupied(total_work(loop.body), warps)
                state.last = max(state.last, start + max(map(float, work.values())))
        self.cut |= trips > self.iterations
        state.now = state.last
        state.units.clear()
        state.ready.clear()

    def unrolled(self, loop: Loop, state: CopyState, known: dict[str, Number]) -> None:
        """Record the first step, and the others at their pace."""
        trips, first, groups = int(loop.trips), len(self.events), len(state.groups)
        if trips <= 0:
            return
        flying, step = state.done[0], float(pace(loop, state.warps))
        super().unrolled(loop, state, {**known, loop.var: loop.start})
        events, landings = self.events[first:], state.groups[groups:]
        at = _at({**known, loop.var: ""})
        for i in range(1, trips):
            here = f"{at}{loop.start + i}"
            self.events += [
                replace(
                    e,
                    iteration=here + e.iteration.removeprefix(f"{at}{loop.start}"),
                    start_cycles=e.start_cycles + i * step,
                    end_cycles=e.end_cycles + i * step,
                    ready_cycles=e.ready_cycles + i * step,
                )
                for e in events
            ]
            state.groups += [(a + i * step, b + i * step) for a, b in landings]
        if state.done[0] != flying:
            state.done = state.done[0] + (trips - 1) * step + float(waits(loop)), 0.0

    def with_stages(self, values: Mapping[str, Number]) -> list[Span]:
        """Return the events, and after the first that fills a stage what each stage holds."""
        uses: dict[tuple[int, int], StageUse] = {}
        first = len(self.events)
        for number, event in enumerate(self.events, 1):
            if (do := self.statements.get(event.statement)) is None:
                continue
            loops = (loop.split("=") for loop in event.iteration.split())
            known = defaultdict(int, values) | {name: int(i) for name, i in loops}
            for access in do.accesses:
                if access.buffer.level != "smem" or access.buffer.stages == 1:
                    continue
                key = int(access.buffer.stages), int(access.index.evaluate(known))
                use = uses.setdefault(key, StageUse(event.iteration))
                if access is do.write:
                    first = min(first, number)
                    use.issued = min(use.issued, event.start_cycles)
                    landed = event.ready_cycles if event.flies else event.end_cycles
                    use.landed = max(use.landed, landed)
                else:
                    use.read = min(use.read, event.start_cycles)
                    use.done = max(use.done, event.end_cycles)
        depths = {depth for depth, _ in uses}
        stages: list[Span] = []
        for depth, index in sorted(uses, key=lambda key: (key[0], key[1] % key[0], key[1])):
            name = f"stage {index % depth}"
            stages += uses[depth, index].events(f"{name} of {depth}" if len(depths) > 1 else name)
        return [*self.events[:first], *stages, *self.events[first:]]


@dataclass(slots=True)
class _Lane:
    """A copy of an agent: what it is at, and the use of a stage that it waited for last."""

    rows: tuple[str, ...]
    at: tuple[str, int] = ("", 0)
    begun: int = -1


class _Tiles(Following):
    """The recursion for one CTA that takes tiles, with a record."""

    def __init__(
        self, agents: tuple[TimedAgent, ...], share: Number, ring: Number, depth: Mapping[str, int]
    ) -> None:
        super().__init__(agents, share, ring, 1)
        self.depth = depth
        self.events: list[Span] = []
        self.begins: list[tuple[str, float]] = []
        self.uses: dict[tuple[str, int], StageUse] = {}
        self.freed: dict[str, set[str]] = {}  # by a ring's full barrier: those its loads wait for
        for agent in agents:
            waited, loading = set[str](), False
            for event in _flat((*agent.before, *agent.body)):
                if event.kind == "wait":
                    waited, loading = (
                        {event.barrier} if loading else {*waited, event.barrier},
                        False,
                    )
                elif event.kind == "load":
                    self.freed.setdefault(event.barrier, set()).update(waited)
                    loading = True
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
        first = [row for lane in list(self.lanes.values())[:1] for row in lane.rows]
        stages = [self.stage(name, n) for name in self.freed for n in range(depth[name])]
        order = [*first, "copy engine", *stages, "tensor cores", *OF_ARITHMETIC]
        self.order = {row: n for n, row in enumerate(dict.fromkeys([*order, *rows]))}

    def stage(self, full: str, index: int) -> str:
        """Name the stage of a use; where there are several rings, with the ring's barrier."""
        name = f"stage {index % self.depth[full]}"
        return f"{name} of {full}" if len(self.freed) > 1 else name

    def ordered(self) -> tuple[Span, ...]:
        """Return the record row by row."""
        for use in list(self.uses):
            self.close(use)
        return tuple(sorted(self.events, key=lambda e: (self.order[e.row], e.start_cycles)))

    def note(
        self, row: str, what: str, where: str, start: Time, end: Time, ready: Time | None = None
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
        start: tuple[Time, Time],
        end: tuple[Time, Time],
    ) -> None:
        """Record what each copy does, between the clocks of the first and of the last."""
        rows = self.lanes[id(state)].rows
        for number, row in enumerate(rows):
            part = number / max(1, len(rows) - 1)
            begin, until = (_number(a) + part * (_number(b) - _number(a)) for a, b in (start, end))
            self.note(row, what, where, begin, until)

    def nodes(self, nodes: Tree, state: CopyState, known: dict[str, Number]) -> None:
        """Follow statements in order; an unrolled loop without barriers is what stores a tile."""
        for node in nodes:
            before = state.now, state.last
            super().nodes((node,), state, known)
            if isinstance(node, Loop) and node.form == "serial":
                now = state.now, state.last
                self.of_lanes(state, "epilogue", _where(state, known), before, now)

    def event(self, event: Event, state: CopyState, known: dict[str, Number], mask: Truth) -> None:
        """Follow one event and record it."""
        before, engine, cores = (state.now, state.last), self.tma, self.tensor
        super().event(event, state, known, mask)
        where, lane = _where(state, known), self.lanes[id(state)]
        index = int(_number(event.index.evaluate(known))) if event.barrier else 0
        match event.kind:
            case "wait":
                if event.barrier in self.freed:
                    lane.at = event.barrier, index
                self.of_lanes(
                    state, f"wait {event.barrier}", where, before, (state.now, state.last)
                )
            case "load":
                self.close((event.barrier, index - self.depth[event.barrier]))
                landed = _number(self.fill) + _number(event.latency)
                start = _number(before[0])
                key = event.barrier, index
                use = self.uses.setdefault(key, StageUse(where, start, landed))
                use.landed = max(use.landed, landed)
                self.note(lane.rows[0], "issue loads", where, start, state.now)
                busy = np.maximum(engine, state.now)
                self.note("copy engine", "load", where, busy, self.tma, landed)
            case "product":
                start = _number(np.maximum(before[0], cores))
                assert isinstance(event.statement, Do)
                name = event.statement.instruction.name
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
                    lane.begun = int(known[state.agent.tile])
                    self.begins.append((f"tile {lane.begun}", start))

    def math(self, event: Event, state: CopyState) -> tuple[Time, Time]:
        """Record arithmetic, on the row of its unit and on that of its copy."""
        start, end = super().math(event, state)
        assert isinstance(event.statement, Do)
        name = event.statement.instruction.name
        unit = max((unit for unit in event.each if unit != "issue"), key=event.each.__getitem__,
                   default="issue")  # fmt: skip
        self.note(unit, f"{name} of {_short(self.lanes[id(state)])}", "", start, end)
        for row in self.lanes[id(state)].rows:
            self.note(row, name, "", start, end)
        return start, end

    def released(self, key: tuple[str, int]) -> float:
        """Return when a use of a stage is over, as the producer sees it; 0 before any release."""
        full, index = key
        return max((_number(self.phase(name, index)) for name in self.freed[full]), default=0.0)

    def close(self, key: tuple[str, int]) -> None:
        """Record a use of a stage."""
        use = self.uses.pop(key, None)
        if use is None:
            return
        if use.done:
            use.done = max(use.done, self.released(key))
        self.events += use.events(self.stage(*key))

    def jump(self, states: list[CopyState], number: int, seen: list[Time], more: Number) -> None:
        """Go on for more steps, recorded as one bar a row; what holds a stage then holds it on."""
        if not _number(more):
            return
        before = [(state.now, state.last) for state in states]
        held = {key: use for key, use in self.uses.items() if not self.released(key)}
        for key in list(self.uses):
            self.close(key)
        super().jump(states, number, seen, more)
        what = f"{_number(more):.0f} more steps"
        for state, then in zip(states, before, strict=True):
            self.of_lanes(state, what, "", then, (state.now, state.last))
        later = _number(states[0].now) - _number(before[0][0])
        self.note("tensor cores", what, "", _number(self.tensor) - later, self.tensor)
        self.uses |= {key: _later(use, later, int(_number(more))) for key, use in held.items()}


def _flat(nodes: Tree) -> list[Event]:
    found: list[Event] = []
    for node in nodes:
        found += [node] if isinstance(node, Event) else _flat(node.body)
    return found


def _where(state: CopyState, known: Mapping[str, Number]) -> str:
    agent = state.agent
    names = [agent.tile, *(loop.var for loop in agent.loops if loop.var in known)]
    return " ".join(f"{name}={known[name]}" for name in names)


def _at(known: Mapping[str, Number | str]) -> str:
    return " ".join(f"{name}={i}" for name, i in known.items())


def _later(use: StageUse, cycles: float, steps: int) -> StageUse:
    """Return the use of the same stage some steps later."""
    loop, _, step = use.where.rpartition("=")
    times = (use.issued, use.landed, use.read, use.done)
    return StageUse(f"{loop}={int(step) + steps}", *(time + cycles for time in times))


def _short(lane: _Lane) -> str:
    """Name copies that work together by what they are."""
    return lane.rows[0] if len(lane.rows) == 1 else lane.rows[0].rpartition(" ")[0]


def _number(value: Number) -> float:
    return float(np.max(value))
