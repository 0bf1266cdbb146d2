"""Time: the (max, +) interpretation of a term, and what surrounds a CTA.

What one CTA takes, its *path*, is the recursion's affair (``recursion.py``), and where it stands
among the others the launch's (``launch.py``).  Here both become seconds:

- *units*: the busiest SM keeps each unit busy for a known number of cycles.
- *path*: as many CTAs as fit walk their paths side by side, round after round.  What agents do to
  each other in a unit the recursion follows where it follows steps; then the units and the path
  are one bound, the longest of them.  Where it does not, units overlap, but not perfectly.
- *loads of tiles* land as fast as the slowest of the way into the SM (all that lands), the SM's
  part of L2's rate (what this CTA asks for: multicast asks once) and its part of DRAM's; for other
  loads L2 is a bound of its own.
- *DRAM* bounds the launch; it needs bytes in flight: those of all rings, as far as they come from
  it.
- *early starts* hide the prologue; a launch that leaves the next one room for a part of its
  clusters takes longer (``late``).
- *power* goes with the clock to 1 / g (``power_share`` g = 0.5), and the clock falls until the cap
  is met: with c seconds at the highest clock, in which energy for p seconds is used, it takes
  c^(1 - g) max(c, p)^g.  Energy is that of every cycle, of tensor cores and of what L2 and DRAM
  send; tensor cores alone, without a pause, meet the cap at ``tensor_clock_hz``.
- a *call* is all its launches: the one that clears the output before reds is timed with it.

Bounds are blended: (sum x^p)^(1/p) is monotone in each, so that a lower bound of the parts is one
of the whole, which the exact search needs.  Steps that are followed are not monotone in the number
of groups in flight; there the ``floor`` is.

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines import hopper, simt
>>> from tinygpu.term.operation import matmul
>>> sizes, h200 = {"m": 8192, "n": 8192, "k": 8192}, load_device("h200")
>>> naive = simt.Simt().program(matmul(), Chosen(simt.LADDER["naive"]))
>>> cost(naive, sizes, h200).bottleneck
'l1'
>>> tiled = hopper.Hopper().program(matmul("bf16", layout="nt"), Chosen(hopper.STARTS["cluster"]))
>>> cost(tiled, sizes, h200).bottleneck
'power'

Source: ``docs/model.md``, section "Time".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np

from tinygpu.devices.device import Device
from tinygpu.numbers import Change, Number
from tinygpu.search.time.breakdown import Breakdown, added, blend, resolved
from tinygpu.search.time.deferred import applied
from tinygpu.search.time.fitted import FITTED
from tinygpu.search.time.launch import Assembled, GridLaunch, never, takes_tiles
from tinygpu.search.time.rates import tma_latency
from tinygpu.search.time.recursion import (
    Recursion,
    numbers,
    occupied,
    path,
    span_cycles,
    together,
)
from tinygpu.search.time.register_quantities import flying
from tinygpu.search.time.tile_steps import Refetched, TileSteps, steps_of_tiles
from tinygpu.search.time.work import (
    WARP,
    Event,
    Guard,
    Loop,
    Node,
    TimedAgent,
    Tree,
    agents,
    clocked,
    of_agent,
    total_work,
)
from tinygpu.term.fields import require_known
from tinygpu.term.plan import Term, steps_of
from tinygpu.term.program import Program, select

__all__ = ["Features", "Placed", "combined", "cost", "features", "predict", "slowest"]

INSTRUCTION_BYTES = 16  # spec: since Volta
LATE_POWER = 2.0  # fitted: of the room that is left, in what a late start costs
EARLY_LAUNCH = 0.5  # fitted: what an early start hides of a launch, 1.1 to 1.5 us of five plans
FLYING_POWER = 4.0  # fitted: how sharply DRAM slows down where too few bytes are in flight
MISSES_POWER = 5.5  # fitted: how sharply one of DRAM and L2 takes over from the other
OF_TILES = ("tensor", "smem", "tma", "fill")
"""Units that agents that take tiles share."""
OF_ARITHMETIC = ("issue", "fma", "int", "cvt", "sfu", "shuffle")
"""Units that copies share beside them, where there is arithmetic in their steps."""


@dataclass(frozen=True, slots=True)
class Features:
    """All that the time depends on; each number depends on few decisions.

    ``steps`` of a tile, and ``stages`` of their ring, where there are steps.  Where tiles take
    different steps they are the mean, and ``own`` has each tile's.
    """

    agents: tuple[TimedAgent, ...]
    launch: GridLaunch
    steps: Number = 0
    stages: Number = 0
    own: TileSteps | None = None

    @property
    def tree(self) -> Tree:
        """What a CTA does, if it takes no steps."""
        return self.agents[0].after

    @property
    def stepped(self) -> bool:
        """Whether its agents take steps, which have to be followed."""
        return bool(self.agents[0].steps)

    def mapped(self, low: Change, high: Change) -> Features:
        """Apply ``low`` to every number that costs time, ``high`` to those that save it."""
        return Features(
            tuple(of_agent(agent, low, high) for agent in self.agents),
            self.launch.mapped(low, high),
            low(self.steps),
            low(self.stages),
            self.own.mapped(low) if self.own else None,
        )


def cost(
    term: Term,
    sizes: Mapping[str, int],
    device: Device,
    *,
    code: Assembled | None = None,
    of: Change = lambda number: number,
) -> Breakdown:
    """Predict the time of a term, of whose numbers ``of`` makes what to compute with.

    ``code`` is what the assembler said of it: then no register is estimated.  The kernels of a plan
    follow one another: all that each takes adds up.
    """
    found = [
        predict(features(program, own, device, code).mapped(of, of))
        for program, own in steps_of(term, sizes)
    ]
    return found[0] if len(found) == 1 else added(found)


def slowest(
    term: Term, sizes: Mapping[str, int], device: Device
) -> tuple[int, tuple[Breakdown, ...]]:
    """Return which kernel takes longest, from 0, and the times of the others; of one kernel 0."""
    steps = steps_of(term, sizes)
    if len(steps) == 1:
        return 0, ()
    found = [cost(program, own, device) for program, own in steps]
    place = max(range(len(found)), key=lambda i: float(found[i].seconds))
    return place, (*found[:place], *found[place + 1 :])


def features(
    program: Program, sizes: Mapping[str, int], device: Device, code: Assembled | None = None
) -> Features:
    """Return what the time depends on, as numbers or factored arrays.

    Raises ProgramError for roles of another form than the recursion follows, or unknown fields.
    """
    require_known(program)
    launch = GridLaunch.of(program, sizes, device)
    if takes_tiles(program):
        many: Number = 1
    elif code is None:
        many, ahead = flying(program)
        launch = replace(launch, ahead=ahead)
    else:
        many, launch = flying(program, code.registers)[0], launch.assembled(code)
    found = agents(program, device, sizes, many)
    if not found[0].steps:
        return Features(found, launch)
    stages = max((barrier.stages for barrier in program.barriers), key=np.max)
    if found[0].steps in program.tile_values:
        own = steps_of_tiles(program, sizes, found[0].steps, launch.shared_axes())
        return Features(found, launch, own.mean, stages, own)
    return Features(found, launch, program.parameter_values(sizes)[found[0].steps], stages)


@dataclass(frozen=True, slots=True)
class Placed:
    """A CTA among the others of the chip.

    Clusters do ``tiles`` in ``waves``; a CTA does ``turns`` of them and has 1 / ``share`` of an
    SM.  ``agents`` know how long their loads take in the busy chip; the bytes are those of the
    whole launch.  ``dram_slow``: how much longer DRAM takes for loads, as too few bytes are in
    flight.  ``at_once``: how many clusters run at once.
    """

    agents: tuple[TimedAgent, ...]
    tiles: Number
    waves: Number
    share: Number
    turns: Number
    asked_bytes: Number
    dram_bytes: Number
    stored_bytes: Number
    dram_slow: Number
    at_once: Number = 1

    @staticmethod
    def of(f: Features) -> Placed:
        """Place the CTAs on the device and let their loads share L2 and DRAM."""
        launch, device = f.launch, f.launch.device
        tiles, spread, fits = launch.tiles(), launch.spread(), launch.resident()
        ceil = (lambda x: x) if "tail" in launch.without else np.ceil
        busiest = ceil(tiles / spread)
        own = f.own if launch.shared_axes() < {*launch.axes} else None
        from_dram, stored = launch.dram_bytes(fits, by_tile=own is not None)
        if not f.stepped:  # a round takes as long, full or not
            rounds = ceil(np.maximum(busiest / fits, 1.0))
            of_all = launch.l2_bytes()
            return Placed(f.agents, tiles, rounds, busiest, 1, of_all, from_dram, stored, 1)
        at_once, stays = spread * fits, launch.persistent == 1
        share = np.minimum(busiest, fits)
        waves = select(stays, ceil(tiles / at_once), np.maximum(busiest / fits, 1.0))
        active = np.minimum(tiles, spread) * launch.cluster
        l2_rate, dram_rate = _rates(device)
        of_step = _asked([a.body for a in f.agents])
        of_tile = _asked([a.before for a in f.agents])
        asked: Number = tiles * launch.cluster * (f.steps * of_step + of_tile)
        again: Number = 1.0
        if own and "dram" not in launch.without:
            of = launch.persistent, at_once, own.kind, launch.held()
            again = 1 + (applied(Refetched(own), *of) - 1) * launch.shared_bytes() / from_dram
        missed = np.minimum(from_dram * again / asked, 1.0)
        flying = f.stages * of_step * np.minimum(tiles, at_once) * launch.cluster
        needed = FITTED["dram_seconds"] * device.dram_bytes_per_second
        short = needed / (flying * missed)
        slow = (1 + short**FLYING_POWER) ** (1 / FLYING_POWER)
        if "l2" in launch.without:
            l2_rate = l2_rate * np.maximum(asked / sum(o.bytes for o in launch.operands), 1.0)
        per_byte = np.maximum(1 / l2_rate, missed * device.clock_hz / dram_rate * slow) * active
        latency: Number = device.l2_latency_cycles + tma_latency(device)
        latency = latency + missed * (device.dram_latency_cycles - device.l2_latency_cycles)
        latency = latency * FITTED["loaded_latency"]
        return Placed(
            tuple(_with_loads(agent, per_byte, latency) for agent in f.agents),
            tiles, waves, share, select(stays, waves, 1.0),
            asked, from_dram, stored, slow * again, at_once,
        )  # fmt: skip


def predict(f: Features) -> Breakdown:
    """Return the time of each candidate.

    It is monotone (of those that take steps, its floor is): with features that are each at most
    (for what saves time, at least) those of a candidate, it gives a lower bound of its time.
    """
    place = Placed.of(f)
    return _of_steps(f, place) if f.stepped else _of_threads(f, place)


def _of_threads(f: Features, place: Placed) -> Breakdown:
    """Blend the units of the busiest SM, the path of a CTA, L2, DRAM, at the clock of power."""
    launch, device = f.launch, f.launch.device
    warps = np.ceil(launch.threads / WARP)
    work = total_work(f.tree)
    work["fetch"] = 0.0 if "fetch" in launch.without else _fetch(f.tree, device)
    busiest = np.ceil(place.share) if "tail" in launch.without else place.share
    parts: dict[str, Number] = {
        unit: cycles / device.clock_hz for unit, cycles in occupied(work, busiest * warps).items()
    }
    if busiest is not place.share:
        parts = {unit: seconds * (place.share / busiest) for unit, seconds in parts.items()}
    parts["burst"] = FITTED["burst"] * _burst(f.tree) * warps * busiest / device.clock_hz
    chain = 0.0 if "path" in launch.without else path(f.tree, warps)
    parts["latency"] = place.waves * chain / device.clock_hz
    parts["l2"] = place.asked_bytes / (
        device.l2_bytes_per_cycle * device.clock_hz * FITTED["l2_rate"]
    )
    dram_rate = device.dram_bytes_per_second * FITTED["dram_share"]
    parts["dram"] = (place.dram_bytes + place.stored_bytes) / dram_rate
    parts["spills"] = parts["issue"] * FITTED["spill"] * launch.spilled()
    started: Number = device.launch_seconds + FITTED["start"] / device.clock_hz
    started = started * (1 - EARLY_LAUNCH * launch.early)
    parts["launch"] = 0.0 if "launch" in launch.without else started
    parts["clear"] = launch.clear_seconds()
    energy, idle = _energy(f, place, {unit: each * warps for unit, each in work.items()})
    longest = reduce(np.maximum, (parts[unit] for unit in work))
    seconds = combined(parts, energy, idle)
    parts["power"] = _slowed(longest, energy, idle)
    return Breakdown(seconds, parts)


def combined(parts: Mapping[str, Number], energy: Number, idle: float) -> Number:
    """Return the time that parts, in seconds, make up under the power cap; monotone in each."""
    # shared memory and L1 are stages of one pipe
    pipe = parts.get("smem", 0.0) + parts.get("l1", 0.0)
    apart = ("smem", "l1", "burst", "latency", "l2", "dram", "spills", "launch", "clear")
    units = [seconds for name, seconds in parts.items() if name not in apart]
    throughput = blend([*units, pipe], FITTED["unit_power"]) + parts.get("burst", 0.0)
    bounds = [throughput, parts["latency"], parts["l2"], parts["dram"]]
    seconds = blend(bounds, FITTED["blend_power"])
    seconds = np.maximum(seconds, _slowed(seconds, energy, idle))
    return resolved(seconds + parts["spills"] + (parts["launch"] + parts["clear"]))


def _of_steps(f: Features, place: Placed) -> Breakdown:
    """Take the longest of the units and the path, at the clock that power allows, and DRAM.

    The parts are what each unit would take alone; ``latency`` is what remains of the path beyond
    the longest of them: waits that nothing hides.
    """
    launch, device, timed, waves = f.launch, f.launch.device, place.agents, place.waves
    l2_rate, dram_rate = _rates(device)
    run, which = Recursion(timed), tuple[Number, ...]()
    if f.own and "tail" not in launch.without:
        run, which = Recursion(timed, f.own), (place.at_once, f.own.kind)
    leaves = (*which, *numbers(timed))
    cycles = applied(run, place.share, place.turns, f.steps, f.stages, *leaves)
    rounds = select(launch.persistent == 1, 1.0, waves)
    start = FITTED["prologue"] + FITTED["cluster_start"] * (launch.cluster - 1)
    prologue = start * (1 - FITTED["early"] * launch.early)
    prologue = prologue + FITTED["cluster_stays"] * np.minimum(launch.cluster - 1, 1)
    cycles = rounds * (cycles + FITTED["store_end"]) + (rounds - 1) * FITTED["next"] + prologue

    work, busy = _work(f.agents, f.steps), waves * place.share
    units_of = (*OF_TILES, *OF_ARITHMETIC) if clocked(f.agents) else OF_TILES
    parts = {unit: busy * work.get(unit, 0.0) / device.clock_hz for unit in units_of}
    units = reduce(np.maximum, parts.values())
    fill = busy * _work(timed, f.steps).get("fill", 0.0) / device.clock_hz
    longest = np.maximum(units, fill)
    after = reduce(np.maximum, (span_cycles(a.after) / a.step for a in f.agents))
    parts["epilogue"] = waves * after / device.clock_hz
    hidden = "path" in launch.without
    parts["latency"] = 0.0 if hidden else np.maximum(cycles / device.clock_hz - longest, 0.0)
    energy, idle = _energy(f, place, work)
    parts["power"] = _slowed(longest, energy, idle)
    writes = place.tiles * launch.cluster * work.get("writes", 0.0)
    sent = place.asked_bytes / l2_rate + FITTED["l2_write"] * writes
    parts["l2"] = sent / device.clock_hz
    parts["dram"] = (place.dram_bytes * place.dram_slow + place.stored_bytes) / dram_rate
    dram = (place.dram_bytes + place.stored_bytes) / dram_rate
    parts["launch"] = 0.0 if "launch" in launch.without else device.launch_seconds
    parts["clear"] = launch.clear_seconds()

    def capped_with(seconds: Number, dram: Number, late: Number) -> Number:
        capped = np.maximum(seconds, _slowed(seconds, energy, idle))
        blended = blend([capped, dram, parts["l2"]], FITTED["tile_power"])
        return resolved(blended * late + (parts["launch"] + parts["clear"]))

    late: Number = 1.0
    if not never(launch.early):
        late = 1 + FITTED["late"] * launch.early * launch.left_over() ** LATE_POWER
    found = capped_with(longest + parts["latency"], parts["dram"], late)
    # neither of these two is monotone: the bytes in flight save time, and room costs it
    floor = capped_with(np.maximum(units, fill / place.dram_slow), dram, 1.0)
    return Breakdown(found, parts, floor)


def _slowed(seconds: Number, energy: Number, idle: float) -> Number:
    """Return what seconds become at the clock at which they need the power of the cap."""
    share = FITTED["power_share"]
    slowed: Number = seconds ** (1 - share) * (energy + idle * seconds) ** share
    return slowed


def _energy(f: Features, place: Placed, work: Mapping[str, Number]) -> tuple[Number, float]:
    """Return the seconds in which the power cap lets the energy through, at the highest clock.

    That is of what is done; and, of each second, of what goes on anyway.  Tensor cores alone meet
    the cap at ``tensor_clock_hz``, which nobody knows where it is the highest clock: nothing is
    slowed.  DRAM at its rate alone would need ``dram_power`` of the cap.
    """
    device, share = f.launch.device, FITTED["power_share"]
    if device.tensor_clock_hz >= device.clock_hz:
        return 0.0, 0.0
    special = work.get("sfu", 0.0) * device.sfu_per_cycle_per_sm * FITTED["special_power"]
    cycles = place.tiles * f.launch.cluster * (work.get("tensor", 0.0) + special)
    cycles = (cycles + FITTED["l2_power"] * place.asked_bytes) / device.sms
    excess: float = (device.clock_hz / device.tensor_clock_hz) ** (1 / share)
    moved = (place.dram_bytes + place.stored_bytes) / device.dram_bytes_per_second
    idle = FITTED["idle_power"] * excess
    cycles = cycles * ((excess - idle) / device.clock_hz)
    return cycles + FITTED["dram_power"] * moved, idle


def _rates(device: Device) -> tuple[Number, float]:
    """Return what L2 gives TMA, in bytes a cycle, and DRAM, in bytes a second.

    What comes from DRAM goes through L2, whose own rate for it is ``l2_misses`` of that for hits.
    """
    l2 = device.l2_bytes_per_cycle
    seconds = 1 / (device.dram_bytes_per_second * FITTED["tma_dram_share"])
    misses = 1 / (l2 * device.clock_hz * FITTED["l2_misses"])
    return l2 * FITTED["tma_l2_rate"], float(1 / blend([seconds, misses], MISSES_POWER))


def _fetch(tree: Tree, device: Device) -> Number:
    """Return the cycles in which instructions arrive, where a loop outgrows the caches."""
    slots = device.warp_schedulers_per_sm * device.issue_per_cycle_per_scheduler
    total: Number = 0.0
    for node in tree:
        if isinstance(node, Loop) and node.form == "rolled":
            issue = total_work(node.body).get("issue", 0.0)
            outgrown = issue * slots * INSTRUCTION_BYTES > FITTED["code_bytes"]
            total = total + node.trips * issue * FITTED["fetch"] * outgrown
    return total


def _burst(tree: Tree) -> Number:
    """Return the cycles in which a warp reads the first fragments of shared memory behind barriers.

    All warps of a CTA read them at once and have nothing to multiply meanwhile.  Fragments that are
    read before the products of those before, from a ring of registers, are no such.
    """
    total: Number = 0.0
    for loop in tree:
        if isinstance(loop, Loop) and loop.form == "rolled" and together(loop):
            first: dict[str, Number] = {}
            for inner in (n for n in loop.body if isinstance(n, Loop) and n.form == "unrolled"):
                events = [e for e in inner.body if isinstance(e, Event)]
                read = {name for event in events for name in event.reads}
                for e in events:
                    if "smem" in e.each and e.write in read:
                        first.setdefault(e.write, e.count * e.each["smem"])
            total = total + loop.trips * sum(first.values(), 0.0)
    return total


def _with_loads(agent: TimedAgent, per_byte: Number, latency: Number) -> TimedAgent:
    """Say how long loads take: they come as fast as the slowest part of their way."""

    def timed(node: Node) -> Node:
        if not isinstance(node, Event):
            return replace(node, body=tuple(map(timed, node.body)))
        if node.kind != "load":
            return node
        fill = np.maximum(node.each["fill"], node.fetched_bytes * per_byte)
        return replace(node, each={**node.each, "fill": fill}, latency=latency)

    return agent.with_trees(lambda tree: tuple(map(timed, tree)))


def _asked(trees: list[Tree]) -> Number:
    """Return the bytes that a CTA asks L2 for when it goes through these once, far from ends."""
    bodies = *trees, *(n.body for t in trees for n in t if isinstance(n, Guard) and n.late)
    return sum((e.fetched_bytes for body in bodies for e in body if isinstance(e, Event)), 0.0)


def _work(of: tuple[TimedAgent, ...], steps: Number) -> dict[str, Number]:
    """Return the cycles of each unit that one tile takes, all agents' copies together."""

    def holds(guard: Guard) -> Number:
        return 1 if guard.tells else guard.times(steps) / np.maximum(steps, 1)

    total: dict[str, Number] = {}
    for agent in of:
        trees = agent.before, agent.body, agent.after
        before, body, after = (total_work(tree, holds) for tree in trees)
        for unit in {**before, **body, **after}:
            ends = before.get(unit, 0.0) + after.get(unit, 0.0)
            own = agent.together * (steps * body.get(unit, 0.0) + ends)
            total[unit] = total.get(unit, 0.0) + own
    return total
