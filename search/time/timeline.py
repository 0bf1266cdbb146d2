"""Timelines: when each statement of a CTA runs, by the rules that its predicted time comes from.

``timeline`` walks the work of a term (``work.py``) as ``cost.path`` does, writes down what happens,
and follows the first iterations of every rolled loop one by one.  A statement starts when what it
reads is there and its unit is free, keeps the unit busy, and its result is there after a latency
more (its *flight*).  A barrier waits for all that was issued.  A ``cp.async.wait_group`` waits for
the landing of the groups themselves, of which ``cost.path`` only takes the mean.  The stages of a
ring in shared memory have rows of their own: when each is filled, full, read.  Programs with
barriers are followed by their own recursion: ``asynchronous_timeline.py``.

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import matmul
>>> program = Simt().program(matmul(), Chosen(LADDER["shared"]))
>>> line = timeline(program, {"m": 64, "n": 64, "k": 64}, load_device("h200"), iterations=2)
>>> list(line.rows)
['alu', 'global memory', 'shared memory', 'barrier', 'fma', 'loop']

Source: ``docs/model.md``, section "Time"; the trace's form: "Trace Event Format", Google.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tinygpu.devices.device import Device
from tinygpu.search.time.asynchronous_timeline import follow
from tinygpu.search.time.cost import (
    alone,
    features,
    occupied,
    pace,
    together,
    total_work,
    waits,
)
from tinygpu.search.time.fitted import FITTED
from tinygpu.search.time.spans import Span, StageUse, Timeline
from tinygpu.search.time.work import WARP, Repeat, Work
from tinygpu.term.program import Do, Program

__all__ = ["timeline", "trace"]


def timeline(
    program: Program, sizes: Mapping[str, int], device: Device, *, iterations: int = 4
) -> Timeline:
    """Follow one CTA, alone on an SM, through ``iterations`` of each loop that is not unrolled.

    Of a program with barriers: one CTA of the busy chip, through that many tiles.  Raises
    ProgramError for sizes that the term does not cover.
    """
    if program.barriers:
        return follow(program, sizes, device, tiles=iterations)
    walker = _Walker(iterations, -(-program.threads // WARP))
    walker.walk(features(program, sizes, device).tree, "")
    events = _with_stages(walker, program.parameter_values(sizes))
    return Timeline(tuple(events), tuple(walker.begins), walker.last, not walker.cut)


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


_ROWS = {"sync": "barrier", "wait": "wait", "async": "cp.async"}


def _row(piece: Work) -> str:
    if piece.kind in _ROWS:
        return _ROWS[piece.kind]
    if piece.unit == "lsu":
        return "global memory" if "l1" in piece.each else "shared memory"
    return piece.unit if piece.statement is not None else "loop"


def _with_stages(walker: _Walker, values: Mapping[str, Any]) -> list[Span]:
    """Return the events, and after the first that fills a stage what each stage of a ring holds."""
    uses: dict[tuple[int, int], StageUse] = {}
    first = len(walker.events)
    for number, event in enumerate(walker.events, 1):
        if (do := walker.statements.get(event.statement)) is None:
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
    return [*walker.events[:first], *stages, *walker.events[first:]]


@dataclass(slots=True)
class _Walker:
    """The clock of ``cost.path`` for one schedule, with the copies in flight and a record."""

    iterations: int
    warps: int
    now: float = 0.0
    last: float = 0.0
    units: dict[str, float] = field(default_factory=dict)
    ready: dict[str, float] = field(default_factory=dict)
    flying: float = 0.0
    groups: list[float] = field(default_factory=list)
    events: list[Span] = field(default_factory=list)
    begins: list[tuple[str, float]] = field(default_factory=list)
    statements: dict[str, Do] = field(default_factory=dict)
    cut: bool = False

    def walk(self, tree: tuple[Work | Repeat, ...], where: str) -> None:
        for node in tree:
            if self.cut:
                return
            if isinstance(node, Work):
                self.piece(node, where)
            elif node.rolled:
                self.rolled(node, where)
            else:
                self.unrolled(node, where)

    def piece(self, piece: Work, where: str) -> None:
        if piece.kind == "commit":
            self.groups.append(self.flying)
            self.flying = 0.0
            return
        if piece.kind in ("sync", "wait"):
            start, self.last = self.last, self.last + float(piece.latency)
            if piece.kind == "wait":
                done = len(self.groups) - int(piece.pending)
                self.last = max([self.last, *self.groups[: max(done, 0)]])
            self.now = self.last
            self.note(piece, where, start, self.last, self.last)
            return
        start = self.now
        for name in piece.reads:
            start = max(start, self.ready.get(name, 0.0))
        work = piece.cycles()
        for unit in work:
            if unit not in ("issue", "int"):
                start = max(start, self.units.get(unit, 0.0))
        end = start + self.busy(work)
        for unit in work:
            self.units[unit] = end
        self.last = max(self.last, end)
        if piece.kind == "async":
            there = end + float(piece.latency)
            self.flying = max(self.flying, there)
        else:
            there = (end if piece.unit == "lsu" else start) + float(piece.latency)
            self.ready[piece.write] = there
        self.note(piece, where, start, end, max(there, end))

    def busy(self, work: Mapping[str, Any]) -> float:
        """Return the cycles until all warps have done so much work of each unit, a warp's."""
        return max(float(alone(work)), *map(float, occupied(work, self.warps).values()))

    def note(self, piece: Work, where: str, start: float, end: float, ready: float) -> None:
        text = "loop" if piece.statement is None else str(piece.statement)
        if isinstance(piece.statement, Do):
            self.statements[text] = piece.statement
        self.events.append(Span(_row(piece), text, where.strip(), start, end, ready))

    def rolled(self, loop: Repeat, where: str) -> None:
        """Begin each iteration when the last one has issued; past ``iterations``, stop."""
        trips = int(loop.trips)
        for i in range(min(trips, self.iterations)):
            self.now = self.last
            self.units.clear()
            self.ready.clear()
            here = f"{where} {loop.var}={loop.start + i}"
            self.begins.append((here.strip(), self.now))
            start, warps = self.now, self.warps
            if not together(loop):
                self.warps = 1  # each warp walks its own chain, while the others use the units
            self.walk(loop.body, here)
            self.warps = warps
            issued, self.last = self.last, self.last + FITTED["turn"]
            self.events.append(Span("loop", "branch", here.strip(), issued, self.last, self.last))
            if not together(loop):
                work = occupied(total_work(loop.body), warps)
                self.last = max(self.last, start + max(map(float, work.values())))
        self.cut |= trips > self.iterations
        self.now = self.last
        self.units.clear()
        self.ready.clear()

    def unrolled(self, loop: Repeat, where: str) -> None:
        """Go once through its chain, and then on at its pace."""
        trips = int(loop.trips)
        if trips <= 0:
            return
        step = float(pace(loop, self.warps))
        first_event, first_group = len(self.events), len(self.groups)
        before = {id(clock): dict(clock) for clock in (self.units, self.ready)}
        flying = self.flying
        at = f"{where} {loop.var}=".lstrip()
        self.walk(loop.body, f"{at}{loop.start}")
        events, groups = self.events[first_event:], self.groups[first_group:]
        for i in range(1, trips):
            here = f"{at}{loop.start + i}"
            self.events += [
                _later(e, i * step, here + e.iteration.removeprefix(f"{at}{loop.start}"))
                for e in events
            ]
            self.groups += [landing + i * step for landing in groups]
        more = (trips - 1) * step + float(waits(loop))
        self.last += more
        if self.flying != flying:
            self.flying += more
        for clock in (self.units, self.ready):
            for name, end in clock.items():
                if before[id(clock)].get(name) != end:
                    clock[name] = end + more


def _later(event: Span, cycles: float, iteration: str) -> Span:
    return Span(
        event.row,
        event.statement,
        iteration,
        event.start_cycles + cycles,
        event.end_cycles + cycles,
        event.ready_cycles + cycles,
    )
