"""Mends: the ways in which a term's work exceeds an ideal, and the same work without each.

A kind of waste has a rule that takes it away, and changes nothing else: of a piece of the work's
tree (32 lines of a request become the 1 that would hold them, a conversion is not done), or of the
launch (CTAs spread evenly).  The rule says what it found and what is ideal, and is silent where
there is nothing to mend.  Every mended number costs at most what it did: as the time is monotone in
each, a mend never costs time.

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import matmul
>>> naive = Simt().program(matmul(), Chosen(LADDER["naive"]))
>>> view = TimeView.of(naive, {"m": 4096, "n": 4096, "k": 4096}, load_device("h200"))
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
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tinygpu.search.time.cost import predict
from tinygpu.search.time.pattern import lines, wavefronts
from tinygpu.search.time.view import Kind, LaunchMend, PieceMend, TimeView, TreeNode, duration
from tinygpu.search.time.work import WARP, Work, returned
from tinygpu.term.program import Access, Do

__all__ = ["KINDS", "lanes_apart", "limiter"]

WIDEST_BYTES = 16  # spec: PTX ISA, ld and st


def _moved(piece: Work, level: str) -> tuple[Do, Access, int] | None:
    """Return a move's statement, its access to a level and how many elements move at once."""
    do = piece.statement
    if not isinstance(do, Do) or piece.unit != "lsu" or not float(piece.count):
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
    return _fewer(piece, "l1", ideal, "cycles of L1 a request")


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
    return _fewer(piece, "smem", ideal, "wavefronts a request")


def _fewer(piece: Work, unit: str, ideal: float, words: str) -> PieceMend | None:
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


def _converts(piece: Work, *, wide: bool) -> bool:
    do = piece.statement
    if not isinstance(do, Do) or piece.unit != "cvt":
        return False
    return any(a.buffer.dtype == "f64" for a in do.accesses) == wide


def _gone(piece: Work, words: str) -> PieceMend | None:
    return replace(piece, count=0.0, latency=0.0), f"{float(piece.count):.4g} {words}", "none"


def _index(node: TreeNode, view: TimeView) -> PieceMend | None:
    piece = node.piece
    extra = float(piece.each.get("int", 0.0)) * view.device.int_per_cycle_per_sm / WARP
    if piece.statement is None or extra <= 0:
        return None
    each = {**piece.each, "issue": piece.each["issue"] / (1 + extra), "int": 0.0}
    words = "integer instructions a request (address, guards)"
    return replace(piece, each=each), f"{extra:.4g} {words}", "none"


def _loop(node: TreeNode, view: TimeView) -> PieceMend | None:
    piece = node.piece
    return None if piece.statement is not None else _gone(piece, "instructions a turn")


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


def _scaled(view: TimeView, factors: Mapping[str, float]) -> dict[str, Any]:
    return {n: seconds * factors.get(n, 1.0) for n, seconds in view.time.parts.items()}


def _path(view: TimeView) -> LaunchMend:
    parts = view.time.parts
    busiest = max(
        (n for n in parts if n not in ("latency", "launch", "clear")), key=lambda n: float(parts[n])
    )
    measured = f"CTAs' own chains of statements take {duration(float(parts['latency']))}"
    ideal = f"hidden behind {busiest}, {duration(float(parts[busiest]))}"
    return _scaled(view, {"latency": 0.0}), "all statements in sequence", measured, ideal


def _occupancy(view: TimeView) -> LaunchMend | None:
    launch = view.features.launch
    free = replace(
        launch, smem_bytes=0.0, registers=replace(launch.registers, least=(1.0,), parts=())
    )
    here, most = float(launch.resident()), float(free.resident())
    if here >= most:
        return None
    share = here * float(launch.threads) / view.device.threads_per_sm
    measured = f"{here:.0f} CTAs on an SM, {share:.0%} of its threads, limited by {limiter(view)}"
    time = predict(replace(view.features, launch=free))
    return time.parts, "the launch", measured, f"{most:.0f} CTAs"


def limiter(view: TimeView) -> str:
    """Return what keeps more CTAs from an SM."""
    launch = view.features.launch
    here = float(launch.resident())
    few = replace(launch.registers, least=(1.0,), parts=())
    if float(replace(launch, registers=few).resident()) > here:
        return "registers"
    if float(replace(launch, smem_bytes=0.0).resident()) > here:
        return "shared memory"
    both = replace(launch, registers=few, smem_bytes=0.0)
    return (
        "registers and shared memory" if float(both.resident()) > here else "threads or CTA slots"
    )


def _traffic(view: TimeView, part: str, moved: float, words: str) -> LaunchMend | None:
    least = sum(o.bytes for o in view.features.launch.operands)
    if moved <= least * 1.001:
        return None
    parts = _scaled(view, {part: least / moved})
    measured = f"{moved / 1e6:.4g} MB, each operand {moved / least:.3g} times on average"
    return parts, words, measured, f"{least / 1e6:.4g} MB"


def _dram(view: TimeView) -> LaunchMend | None:
    launch = view.features.launch
    moved = float(launch.dram_bytes(launch.resident()))
    return _traffic(view, "dram", moved, "between DRAM and L2")


def _l2(view: TimeView) -> LaunchMend | None:
    moved = float(view.features.launch.l2_bytes())
    return _traffic(view, "l2", moved, "between L2 and the SMs")


def _tail(view: TimeView) -> LaunchMend | None:
    """CTAs spread evenly: every SM has the mean of them, every round is full."""
    launch = view.features.launch
    ctas, sms, fits = float(launch.ctas()), view.device.sms, float(launch.resident())
    count = np.ceil(ctas / sms)
    rounds = np.ceil(count / min(fits, count))
    mean = ctas / sms
    if mean >= count and mean / fits >= rounds:
        return None
    outside = ("latency", "l2", "dram", "launch", "clear")
    factors = {n: mean / count for n in view.time.parts if n not in outside}
    factors["latency"] = min(1.0, max(1.0, mean / fits) / rounds)
    measured = f"{ctas:.0f} CTAs on {sms} SMs: {count:.0f} on the fullest, {rounds:.0f} rounds"
    return _scaled(view, factors), "the launch", measured, f"{mean:.4g} on each"


def _launch(view: TimeView) -> LaunchMend:
    seconds = float(view.time.parts["launch"]) + float(view.time.parts["clear"])
    measured = f"{seconds * 1e6:.3g} us to start, and to clear the output where that has to be"
    return _scaled(view, {"launch": 0.0, "clear": 0.0}), "the launch", measured, "none"


def _fetch(view: TimeView) -> LaunchMend | None:
    if not float(view.time.parts["fetch"]):
        return None
    words = "an unrolled body that outgrows the instruction cache"
    return _scaled(view, {"fetch": 0.0}), "the loop", words, "one that fits"


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
        Kind("exposed path", "time of one CTA", launch=_path),
        Kind("occupancy", "CTAs side by side", launch=_occupancy),
        Kind("waves and tail", "SMs", launch=_tail),
        Kind("L2 traffic", "L2", launch=_l2),
        Kind("DRAM traffic", "DRAM", launch=_dram),
        Kind("instruction cache", "instruction fetch", launch=_fetch),
        Kind("launch", "launch", launch=_launch),
    )
}
"""Every kind of cause."""
