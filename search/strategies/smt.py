"""``smt``: the loop over k as a modulo schedule, which z3 chooses and proves.

A step of k loads a tile of each operand, multiplies, and frees the stage.  z3 chooses the tile, the
order of the statements and which role issues each, how many steps later a wait follows what it
waits for, and how many stages there are, so that the steady state takes the fewest cycles: the
*initiation interval* times the steps of the busiest SM.  ``Pipeline.core`` names the rules that
forbid one cycle less.

Modelled, in whole cycles, from the device's numbers: the rate of tensor cores, the rate at which
bytes come into an SM, the latencies of TMA, L2 and mbarriers, shared memory, what a role issues
one after the other.  *Not* modelled: power, DRAM, L2's rate, clusters and multicast, prologue and
epilogue, registers beyond what the laws say, the last wave's overlap.  So its tile is the best of a
loop and not of a kernel; the time model (``search/time/cost.py``) ranks kernels.  Machines of
the package have an order and roles of their own; of what z3 chose a schedule takes the tile, stages
and distances.  Where the order of a loop's body is a decision (attention), z3 ranks orders with
tiles and rings by the time model itself (``search/exact/orders_smt.py``).

Source: B. Rau, "Iterative Modulo Scheduling", 1994; R. Soi et al., "Optimal Software Pipelining and
Warp Specialization for Tensor Core GPUs" (Twill), 2025.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.isa.memory import DTYPES
from tinygpu.search.exact.orders_smt import fastest
from tinygpu.search.strategies.uniform import model
from tinygpu.search.strategies.walk import Domain, Steps
from tinygpu.search.time.rates import fill_rate, mbarrier_latency, tma_latency
from tinygpu.space.solve import Pipeline, Variant, pipelined
from tinygpu.space.space import Space
from tinygpu.term.machine import Value
from tinygpu.term.schedule import Schedule

__all__ = ["FIXED", "chosen", "pipeline", "smt"]

_ISSUE = 8  # a guess: cycles for which a role issues a load, a wait or an arrival
FIXED: Mapping[str, Mapping[str, Any]] = {
    "hopper": {
        "consume": "cooperative", "cluster_m": 1, "cluster_n": 1, "cluster_k": 1, "swap": 0,
        "epilogue": "direct", "store_stages": 1, "raster": 1, "persistent": 0, "ctas_per_sm": 1,
        "early": 0,
    },
    "blackwell": {
        "a_from": "smem", "accumulators": 1, "epilogues": 1, "cluster_m": 1,
        "cluster_n": 1, "epilogue": "direct", "store_stages": 1, "vector_c": 1, "raster": 1,
        "persistent": 0, "early": 0,
    },
}  # fmt: skip
"""Decisions that the loop does not depend on, by machine: those of which there is a loop."""
_TILE = ("tile_m", "tile_n", "tile_k", "consumers", "cta_pair")


def pipeline(space: Space) -> tuple[Pipeline, Schedule] | None:
    """Return the best loop of a matmul's space and a schedule that has its tile and stages.

    None for another machine, for a space without a legal schedule, and where z3 gives up.
    """
    fixed = FIXED.get(space.machine.name)
    if fixed is None:
        return None
    device, problem = space.device, space.problem
    width = DTYPES[problem.operation.inputs[0].dtype].bytes
    rate = device.tensor_flop_per_cycle_per_sm * 2 / width
    legal: dict[tuple[tuple[str, Value], ...], list[Schedule]] = defaultdict(list)
    chosen = {name: value for name, value in fixed.items() if value in space.values[name]}
    for one in Space(space.machine, problem, device, fixed={**space.fixed, **chosen}):
        legal[tuple((n, v) for n, v in one.decisions if n in _TILE)].append(one)
    if not legal:
        return None
    product = next(i.name for i in space.machine.instructions if i.unit == "tensor")
    variants = []
    for decisions, schedules in legal.items():
        known = dict(decisions)
        rows, columns, depth = (int(known[f"tile_{axis}"]) for axis in "mnk")
        ctas = 2 if known.get("cta_pair") else 1  # of a tile, each on an SM of its own
        tiles = math.ceil(problem.sizes["m"] / rows) * math.ceil(problem.sizes["n"] / columns)
        busy = {
            "load x": rows * depth * width / ctas / fill_rate(device),
            "load y": columns * depth * width / ctas / fill_rate(device),
            product: 2 * rows * columns * depth / ctas / rate,
        }
        variants.append(
            Variant(
                decisions, {name: math.ceil(cycles) for name, cycles in busy.items()},
                max(int(one["stages"]) for one in schedules),
                math.ceil(problem.sizes["k"] / depth) * math.ceil(tiles * ctas / device.sms),
            )
        )  # fmt: skip
    found = pipelined(*_loop(space, product), _undominated(variants))
    if found is None:
        return None
    wanted = {"stages": found.stages}
    if "in_flight" in space.values:
        wanted["in_flight"] = min(2, found.distance(product, "wait group"))
    same = legal[found.variant.decisions]
    return found, min(same, key=lambda one: sum(abs(int(one[n]) - v) for n, v in wanted.items()))


def chosen(space: Space) -> Schedule | None:
    """Return what z3 chose of a space: the loop of a matmul, or the fastest order of a loop."""
    found: Schedule | None = None
    if one := pipeline(space):
        found = one[1]
    elif other := fastest(space):
        found = other[0]
    return found


def _loop(space: Space, product: str) -> tuple[Any, Any, Any]:
    """Return the statements of a step, what comes after what, and the ring."""
    device = space.device
    landed = round(tma_latency(device) + device.l2_latency_cycles)
    barrier = round(mbarrier_latency(device))
    any_role = ("producer", "consumer")
    statements = {
        "load x": ("fill", any_role, _ISSUE), "load y": ("fill", any_role, _ISSUE),
        "wait full": ("", ("consumer",), _ISSUE), product: ("tensor", ("consumer",), _ISSUE),
    }  # fmt: skip
    after = [
        *((load, "wait full", landed, "what is read has landed") for load in ("load x", "load y")),
        ("wait full", product, barrier, "a product waits for its tiles"),
    ]
    if INSTRUCTIONS[product].completion == "tcgen05_commit":  # it arrives by itself
        return statements, after, (("load x", "load y"), product, barrier)
    statements |= dict.fromkeys(("wait group", "release"), ("", ("consumer",), _ISSUE))
    after += [
        (product, "wait group", _ISSUE, "a stage is freed once its products are done"),
        ("wait group", "release", _ISSUE, "a stage is freed once its products are done"),
    ]
    return statements, after, (("load x", "load y"), "release", barrier)


def _undominated(variants: list[Variant]) -> list[Variant]:
    """Leave out variants that another one is at least as good as in each number."""
    rows = np.array([(v.work, *(v.work * t for t in v.busy.values()), *v.busy.values(), -v.stages)
                     for v in variants])  # fmt: skip
    kept = []
    for i, mine in enumerate(rows):
        better = (rows <= mine).all(1) & ((rows < mine).any(1) | (np.arange(len(rows)) < i))
        if not better.any():
            kept.append(variants[i])
    return kept


def smt(domain: Domain, rng: np.random.Generator) -> Steps:
    """Ask for what z3 chose, and then for the model's best, one after the other."""
    yield list(domain.pipelined())
    yield from model(domain, rng)
