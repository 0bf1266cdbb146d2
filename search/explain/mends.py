"""Mends: the ways in which a term wastes time, and the same features without each.

A *view* is a term's features (``cost.py``), the time that they give, and its *nodes*: each event
with the text of its statement and how often it is done.  A *kind* of waste has a rule that takes it
away, and changes nothing else:

- of an event (32 lines of a request become the 1 that would hold them, a conversion is not done);
- of the launch (CTAs spread evenly, operands that come from DRAM once): ``GridLaunch.without``;
- of the device: a *limit*, one thing that it has too little of, such as L2's rate or power.  The
  time is that on a device without it.

The rule says what it found and what is ideal, and is silent where there is nothing to mend.  Every
mended number costs at most what it did: as the time is monotone in each, a mend never costs time.

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import matmul
>>> naive = Simt().program(matmul(), Chosen(LADDER["naive"]))
>>> view = TimeView.of(naive, {"m": 4096, "n": 4096, "k": 4096}, load_device("h200"))
>>> sum(node.times for node in view.nodes if node.piece.unit == "fma")
4096.0
>>> sorted(view.operands("a_fragment"))
['a']
>>> rule = KINDS["uncoalesced access"].piece
>>> for node in view.nodes:
...     if mended := rule(node, view):
...         print(node.piece.statement.write, *mended[1:], sep=", ")
a_fragment@(kt + kk), 32 cycles of L1 a request, 1
c[32*bm, 32*bn], 32 cycles of L1 a request, 1

Source: ``docs/model.md``, section "Time".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tinygpu.devices.device import Device
from tinygpu.search.time.breakdown import Breakdown, added
from tinygpu.search.time.cost import Features, Placed, features, predict, slowest
from tinygpu.search.time.pattern import lines, wavefronts
from tinygpu.search.time.work import WARP, Event, Guard, Loop, Tree, returned
from tinygpu.term.plan import Term, steps_of
from tinygpu.term.program import Access, Do, Program

__all__ = ["KINDS", "Kind", "Mended", "TimeView", "TreeNode", "duration", "lanes_apart", "limiter"]

WIDEST_BYTES = 16  # spec: PTX ISA, ld and st
_ENDLESS, _NOTHING = 1e9, 1e-9
"""Factors of a rate, and of a latency, that is no limit."""
PieceMend = tuple[Event, str, str]
"""A piece without the waste; what was measured; what is ideal."""


@dataclass(frozen=True, slots=True)
class TreeNode:
    """A piece of work, the text of its statement, how often it is done."""

    piece: Event
    text: str
    times: float


@dataclass(frozen=True, slots=True)
class Mended:
    """Features without a waste of the launch or a limit; where it lies, what is, what could be."""

    features: Features
    subject: str
    measured: str
    ideal: str


@dataclass(frozen=True, slots=True)
class TimeView:
    """A term at given sizes on a device: its features, its time, its pieces of work.

    Of a plan it is the kernel that takes longest, whose work can be mended, at a ``place`` among
    its kernels; ``others`` are the times of the others, which its time has in it.
    """

    program: Program
    sizes: Mapping[str, int]
    features: Features
    time: Breakdown
    nodes: tuple[TreeNode, ...]
    others: tuple[Breakdown, ...] = ()
    place: int = 0

    @staticmethod
    def of(term: Term, sizes: Mapping[str, int], device: Device) -> TimeView:
        """Account for a term."""
        place, others = slowest(term, sizes, device)
        program, own = steps_of(term, sizes)[place]
        found = features(program, own, device)
        return TimeView(program, own, found, predict(found), (), others, place).seen(found)

    def seen(self, found: Features) -> TimeView:
        """Look at it with features that may have been mended."""
        nodes: list[TreeNode] = []
        for agent in found.agents:
            for tree, times in ((agent.before, 1), (agent.body, found.steps), (agent.after, 1)):
                nodes += _nodes(tree, "", float(times))
        time = self.predicted(found)
        return replace(self, features=found, time=time, nodes=tuple(nodes))

    def predicted(self, found: Features) -> Breakdown:
        """Return the time with features that may have been mended."""
        return added([predict(found), *self.others]) if self.others else predict(found)

    def without(self, **values: Any) -> Features:
        """Account for it on a device with other numbers."""
        return features(self.program, self.sizes, self.device.with_values(**values))

    @property
    def device(self) -> Device:
        """The device."""
        return self.features.launch.device

    @property
    def seconds(self) -> float:
        """The predicted time."""
        return float(self.time.seconds)

    def operands(self, buffer: str, seen: frozenset[str] = frozenset()) -> frozenset[str]:
        """Return the arrays in global memory that a buffer's values were read from."""
        found: frozenset[str] = frozenset()
        for node in self.nodes:
            if node.piece.write == buffer and buffer not in seen:
                for name in node.piece.reads:
                    found |= self.operands(name, seen | {buffer})
        known = {o.name for o in self.program.operation.inputs}
        return found | (known & {buffer})


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of waste: of single statements (``piece``), of the launch or the device (``whole``).

    ``shown``: the part of the breakdown that shows a limit.
    """

    name: str
    resource: str
    piece: Callable[[TreeNode, TimeView], PieceMend | None] | None = None
    whole: Callable[[TimeView], Mended | None] | None = None
    shown: str = ""


def _moved(piece: Event, level: str) -> tuple[Do, Access, int] | None:
    """Return a move's statement, its access to a level and how many elements move at once."""
    do = piece.statement
    if not isinstance(do, Do) or "issue" not in piece.each or piece.unit != "lsu":
        return None
    if not float(piece.count):
        return None
    for access in do.accesses:
        if access.buffer.level == level:
            values = float(np.prod([float(v) for v in do.values]))
            each = values / float(piece.count)  # a mended piece may have any number of requests
            return do, access, 2 ** int(math.log2(max(1.0, each)))
    return None


def lanes_apart(do: Do, access: Access) -> int:
    """Return how many places the lanes of a warp touch; a mode without a step shares one."""
    below, places = 1, 1
    for extent, steps in zip(do.threads, access.thread, strict=True):
        size = max(1, min(int(extent), WARP // below))
        places *= size if any(int(s) for s in steps) else 1
        below *= size
    return places


def _uncoalesced(node: TreeNode, view: TimeView) -> PieceMend | None:
    piece = node.piece
    moved = _moved(piece, "gmem")
    if moved is None:
        return None
    do, access, vector = moved
    ideal = lines((lanes_apart(do, access),), (vector,), access.buffer.type.bytes, vector)
    return _fewer(piece, "l1", float(ideal), "cycles of L1 a request")


def _conflicts(node: TreeNode, view: TimeView) -> PieceMend | None:
    piece = node.piece
    moved = _moved(piece, "smem")
    if moved is None:
        return None
    do, access, vector = moved
    width = access.buffer.type.bytes
    ideal = wavefronts((lanes_apart(do, access),), (vector,), width, vector)
    if access is not do.write:
        ideal = max(ideal, returned(width, vector))
    return _fewer(piece, "smem", float(ideal), "wavefronts a request")


def _fewer(piece: Event, unit: str, ideal: float, words: str) -> PieceMend | None:
    here = float(piece.each[unit])
    if here <= ideal:
        return None
    new = replace(piece, each={**piece.each, unit: float(ideal)})
    return new, f"{here:.4g} {words}", f"{ideal:.4g}"


def _narrow(node: TreeNode, view: TimeView) -> PieceMend | None:
    """Several requests of few bytes become one of 16 B: as many lines, fewer instructions."""
    piece = node.piece
    moved = _moved(piece, "gmem") or _moved(piece, "smem")
    if moved is None or moved[0].instruction.atomic:
        return None
    _, access, vector = moved
    bytes_ = vector * access.buffer.type.bytes
    factor = min(WIDEST_BYTES / bytes_, float(piece.count))
    if factor <= 1:
        return None
    grown = {u: c * factor if u in ("l1", "smem") else c for u, c in piece.each.items()}
    new = replace(piece, count=piece.count / factor, each=grown)
    return new, f"{bytes_} B a request", f"{bytes_ * factor:.4g} B"


def _double(node: TreeNode, view: TimeView) -> PieceMend | None:
    """Convert nothing, and multiply as fast as in fp32: on units of their own, so never slower."""
    piece, device = node.piece, view.device
    if _converts(piece, wide=True):
        return _gone(piece, "conversions to or from fp64")
    ideal = WARP / device.fma_f32_per_cycle_per_sm
    here = float(piece.each.get("fp64", 0.0))
    if here <= ideal:
        return None
    latency = min(device.fma_latency_cycles, piece.latency)
    new = replace(piece, each={**piece.each, "fp64": ideal}, latency=latency)
    return new, f"{WARP / here:.4g} fp64 FMAs a cycle and SM", f"{WARP / ideal:.4g}, as in fp32"


def _conversion(node: TreeNode, view: TimeView) -> PieceMend | None:
    piece = node.piece
    return _gone(piece, "conversions") if _converts(piece, wide=False) else None


def _converts(piece: Event, *, wide: bool) -> bool:
    do = piece.statement
    if not isinstance(do, Do) or piece.unit != "cvt":
        return False
    return any(a.buffer.dtype == "f64" for a in do.accesses) == wide


def _gone(piece: Event, words: str) -> PieceMend | None:
    return replace(piece, count=0.0, latency=0.0), f"{float(piece.count):.4g} {words}", "none"


def _index(node: TreeNode, view: TimeView) -> PieceMend | None:
    piece = node.piece
    extra = float(piece.each.get("int", 0.0)) * view.device.int_per_cycle_per_sm / WARP
    if piece.statement is None or extra <= 0 or piece.kind == "math":
        return None
    each = {**piece.each, "issue": piece.each["issue"] / (1 + extra), "int": 0.0}
    words = "integer instructions a request (address, guards)"
    return replace(piece, each=each), f"{extra:.4g} {words}", "none"


def _loop(node: TreeNode, view: TimeView) -> PieceMend | None:
    piece = node.piece
    return (
        _gone(piece, "instructions a turn") if piece.kind == "do" and not piece.statement else None
    )


def _operands(node: TreeNode, view: TimeView) -> PieceMend | None:
    piece = node.piece
    if "fma" not in piece.each:
        return None
    ideal = WARP / view.device.fma_f32_per_cycle_per_sm
    here = float(piece.each["fma"])
    if here <= ideal * 1.001:
        return None
    new = replace(piece, each={**piece.each, "fma": ideal})
    return new, f"{here / ideal:.3g} times an FMA's cycles, reading operands", "1"


def _fragment(node: TreeNode, view: TimeView) -> PieceMend | None:
    """Read each operand once for a larger square of sums: a quarter of a thread's registers."""
    piece = node.piece
    moved = _moved(piece, "gmem") or _moved(piece, "smem")
    sums = [n for n in view.nodes if n.piece.unit == "fma" and float(n.piece.count)]
    if moved is None or moved[1] is moved[0].write or not sums:
        return None
    fed = {name for n in view.nodes if n.piece.unit != "lsu" for name in n.piece.reads}
    axes = set(view.program.operation.axes)
    reused = [
        set(o.axes) < axes
        for o in view.program.operation.inputs
        if o.name in view.operands(piece.write)
    ]
    if piece.write not in fed or not reused or not all(reused):
        return None
    most = max(sums, key=lambda n: float(n.piece.count) * n.times)
    work = float(most.piece.count) * most.times
    here = float(piece.count) * moved[2] * node.times / work
    do = most.piece.statement
    words = do.write.buffer.type.bytes / 4 if isinstance(do, Do) else 1
    quarter = (view.device.registers_per_thread_max + 1) / 4 / words
    ideal = 1 / 2 ** math.floor(math.log2(quarter) / 2)
    if here <= ideal:
        return None
    new = replace(piece, count=piece.count * ideal / here)
    return new, f"{here:.3g} elements an FMA", f"{ideal:.3g}"


def _latency(node: TreeNode, view: TimeView) -> PieceMend | None:
    piece = node.piece
    if piece.unit != "lsu" or not float(piece.latency):
        return None
    return (
        replace(piece, latency=0.0),
        f"{float(piece.latency):.0f} cycles until its data is there",
        "0",
    )


def _barrier(node: TreeNode, view: TimeView) -> PieceMend | None:
    piece = node.piece
    if piece.kind != "sync":
        return None
    return replace(piece, latency=0.0), f"{float(piece.latency):.0f} cycles a barrier", "0"


def _apart(view: TimeView, waste: str) -> Features:
    launch = view.features.launch
    return replace(view.features, launch=replace(launch, without=launch.without | {waste}))


def _path(view: TimeView) -> Mended | None:
    parts = view.time.parts
    if not float(parts["latency"]):
        return None
    apart = ("latency", "launch", "clear")
    busiest = max((n for n in parts if n not in apart), key=lambda n: float(parts[n]))
    measured = f"CTAs' own chains of statements take {duration(float(parts['latency']))}"
    ideal = f"hidden behind {busiest}, {duration(float(parts[busiest]))}"
    return Mended(_apart(view, "path"), "all statements in sequence", measured, ideal)


def _few(view: TimeView, *, registers: bool = True, smem: bool = True) -> Features:
    """Let a CTA take no registers, no shared memory."""
    launch = view.features.launch
    if smem:
        launch = replace(launch, smem_bytes=0.0)
    if registers and view.features.stepped:
        launch = replace(launch, allotted=1.0)
    elif registers:
        launch = replace(launch, registers=replace(launch.registers, least=(1.0,), parts=()))
    return replace(view.features, launch=launch)


def _occupancy(view: TimeView) -> Mended | None:
    launch, free = view.features.launch, _few(view)
    here, most = float(launch.resident()), float(free.launch.resident())
    if here >= most:
        return None
    share = here * float(launch.threads) / view.device.threads_per_sm
    measured = f"{here:.0f} CTAs on an SM, {share:.0%} of its threads, limited by {limiter(view)}"
    return Mended(free, "the launch", measured, f"{most:.0f} CTAs")


def limiter(view: TimeView) -> str:
    """Return what keeps more CTAs from an SM."""
    here = float(view.features.launch.resident())
    if float(_few(view, smem=False).launch.resident()) > here:
        return "registers"
    if float(_few(view, registers=False).launch.resident()) > here:
        return "shared memory"
    if float(_few(view).launch.resident()) > here:
        return "registers and shared memory"
    return "threads or CTA slots"


def _traffic(view: TimeView, waste: str, moved: float, words: str) -> Mended | None:
    least = sum(o.bytes for o in view.features.launch.operands)
    if moved <= least * 1.001:
        return None
    measured = f"{moved / 1e6:.4g} MB, each operand {moved / least:.3g} times on average"
    return Mended(_apart(view, waste), words, measured, f"{least / 1e6:.4g} MB")


def _dram(view: TimeView) -> Mended | None:
    launch = view.features.launch
    moved = float(sum(launch.dram_bytes(launch.resident())))
    return _traffic(view, "dram", moved, "between DRAM and L2")


def _l2(view: TimeView) -> Mended | None:
    place = Placed.of(view.features)
    moved = float(place.asked_bytes + (place.stored_bytes if view.features.stepped else 0.0))
    return _traffic(view, "l2", moved, "between L2 and the SMs")


def _tail(view: TimeView) -> Mended | None:
    """CTAs spread evenly: every SM has the mean of them, every round is full."""
    launch = view.features.launch
    tiles, spread, fits = (float(x) for x in (launch.tiles(), launch.spread(), launch.resident()))
    busiest, mean = math.ceil(tiles / spread), tiles / spread
    rounds = math.ceil(busiest / min(fits, busiest))
    if mean >= busiest and mean / fits >= rounds:
        return None
    what = "CTAs" if launch.cluster == 1 else f"clusters of {int(launch.cluster)}"
    where = f"{view.device.sms} SMs" if launch.cluster == 1 else f"{spread:.0f} places"
    measured = f"{tiles:.0f} {what} on {where}: {busiest} on the fullest, {rounds} rounds"
    return Mended(_apart(view, "tail"), "the launch", measured, f"{mean:.4g} on each")


def _launch(view: TimeView) -> Mended:
    seconds = float(view.time.parts["launch"]) + float(view.time.parts["clear"])
    measured = f"{seconds * 1e6:.3g} us to start, and to clear the output where that has to be"
    return Mended(_apart(view, "launch"), "the launch", measured, "none")


def _fetch(view: TimeView) -> Mended | None:
    if not float(view.time.parts.get("fetch", 0.0)):
        return None
    words = "an unrolled body that outgrows the instruction cache"
    return Mended(_apart(view, "fetch"), "the loop", words, "one that fits")


def _limit(name: str, part: str, *fields: str, factor: float = _ENDLESS) -> Kind:
    """Return the kind of a limit: numbers of the device that could be better by a factor."""

    def whole(view: TimeView) -> Mended | None:
        if part not in view.time.parts or (part == "latency" and not view.features.stepped):
            return None  # what threads wait for their events say one by one
        values = {field: float(getattr(view.device, field)) for field in fields}
        here = ", ".join(f"{field} {value:.4g}" for field, value in values.items())
        free = view.without(**{field: value * factor for field, value in values.items()})
        return Mended(free, view.device.name, here, "no limit")

    return Kind(name, part, whole=whole, shown=part)


KINDS: Mapping[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("uncoalesced access", "L1, lines of global memory", piece=_uncoalesced),
        Kind("bank conflicts", "shared memory, wavefronts", piece=_conflicts),
        Kind("narrow accesses", "issue slots of loads and stores", piece=_narrow),
        Kind("fp64", "fp64 and conversion units", piece=_double),
        Kind("conversions", "conversion units", piece=_conversion),
        Kind("index arithmetic", "integer units and issue slots", piece=_index),
        Kind("loop overhead", "integer units and issue slots", piece=_loop),
        Kind("small register tile", "loads of operands", piece=_fragment),
        Kind("operand reads", "register file, read by FMAs", piece=_operands),
        Kind("memory latency", "time of one CTA", piece=_latency),
        Kind("barriers", "time of one CTA", piece=_barrier),
        Kind("exposed path", "time of one CTA", whole=_path),
        Kind("occupancy", "CTAs side by side", whole=_occupancy),
        Kind("waves and tail", "SMs", whole=_tail),
        Kind("L2 traffic", "L2", whole=_l2),
        Kind("DRAM traffic", "DRAM", whole=_dram),
        Kind("instruction cache", "instruction fetch", whole=_fetch),
        Kind("launch", "launch", whole=_launch),
        _limit(
            "latency of loads", "latency",
            "l2_latency_cycles", "dram_latency_cycles", "tma_latency_cycles", factor=_NOTHING,
        ),
        _limit(
            "round trips of barriers", "latency",
            "mbarrier_latency_cycles", "barrier_latency_cycles", "cluster_latency_cycles",
            factor=_NOTHING,
        ),
        _limit("rate of tensor cores", "tensor", "tensor_flop_per_cycle_per_sm"),
        _limit("rate of special functions", "sfu", "sfu_per_cycle_per_sm"),
        _limit("port of shared memory", "smem", "smem_bytes_per_cycle_per_sm"),
        _limit("way from L2 to an SM", "fill", "fill_bytes_per_cycle_per_sm"),
        _limit("rate of L2", "l2", "l2_bytes_per_cycle"),
        _limit("rate of DRAM", "dram", "dram_bytes_per_second"),
        _limit("power", "power", "tensor_clock_hz"),
    )
}  # fmt: skip
"""Every kind of cause."""


def duration(seconds: float) -> str:
    """Write a time readably.

    >>> duration(0.28139), duration(2.5e-06)
    ('281 ms', '2.50 us')
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if abs(seconds) >= size * 0.9995:
            return f"{seconds / size:#.3g}".rstrip(".") + f" {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _nodes(tree: Tree, loop: str, times: float) -> Iterator[TreeNode]:
    for node in tree:
        match node:
            case Event():
                text = f"loop {loop}" if node.statement is None else str(node.statement)
                yield TreeNode(node, text, times)
            case Loop():
                yield from _nodes(node.body, node.var, times * float(node.trips))
            case Guard():
                yield from _nodes(node.body, loop, times)
