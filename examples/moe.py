"""A layer of a mixture of experts whose products are grouped: ``python examples/moe.py``.

    python examples/moe.py [--tokens 4096] [--hidden 4096] [--ffn 14336] [--experts 8] [--top 2]
                           [--schedules FOLDER] [--device h100]

Mixtral's layer at its full size if nothing is said; 64 experts of a DeepSeek are ``--experts 64
--top 6 --hidden 2048 --ffn 1408``.  PyTorch routes: it takes each token's ``top`` experts, sorts
tokens by expert, and adds up where each expert's rows end, in int32 on the GPU; no number of it
comes to the host.  Both kernels take these ends: silu(x gate) times x up is one, down the other.

The time model chooses the schedules, which takes about half a minute each and needs no GPU;
``--schedules`` keeps them.  With a GPU and PyTorch the layer is compared with the same layer on
``torch._grouped_mm``, where there is one, and on a loop over cuBLAS, which has to read the ends: in
time, and by its error from float64 in some tokens.  Without, it prints what it would run.

Source: "Mixtral of Experts", 2024, section 2.2 (hidden 4096, ffn 14336, 8 experts, top 2).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from tinygpu import MACHINES, Problem, Schedule, load_device
from tinygpu.codegen.run.launch import Kernel
from tinygpu.search.exact.best import rank
from tinygpu.search.time.cost import cost
from tinygpu.search.tuning.climb import why_no_gpu
from tinygpu.space.space import Space
from tinygpu.term.operation import grouped_matmul
from tinygpu.term.schedule import from_json, to_json

HOPPER = MACHINES["hopper"]
TURNS, BURST_SECONDS, SAMPLED = 9, 0.05, 16

Product = Callable[[Any, Any, Any], Any]


def problems_of(given: argparse.Namespace) -> dict[str, Problem]:
    """Return both products of the layer, for even groups."""
    rows = {"g": given.experts, "m": given.tokens * given.top}
    return {
        "gate_up": Problem.of(
            grouped_matmul("bf16", gate="silu"), **rows, n=given.ffn, k=given.hidden
        ),
        "down": Problem.of(grouped_matmul("bf16"), **rows, n=given.hidden, k=given.ffn),
    }


def schedule_of(name: str, problem: Problem, given: argparse.Namespace) -> Schedule:
    """Return the model's first schedule; a file of ``--schedules`` spares the search."""
    path = given.schedules / f"{name}.json" if given.schedules else None
    if path and path.exists():
        _, known, schedule = from_json(path.read_text(encoding="utf-8"), MACHINES)
        if known == problem:
            return schedule
    space = Space(HOPPER, problem, load_device(given.device))
    schedule = rank(space, 1, spread=HOPPER.spread, exact=False).best[0].schedule
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(to_json(schedule, problem, device=given.device), encoding="utf-8")
    return schedule


def layer(x: Any, weights: Mapping[str, Any], top: int, products: Mapping[str, Product]) -> Any:
    """Return y[tokens, hidden] of x: each token's experts, weighted by the router."""
    import torch
    from torch.nn import functional

    tokens, experts = x.shape[0], weights["router"].shape[0]
    scores, chosen = torch.topk(functional.linear(x, weights["router"]).float(), top)
    order = torch.argsort(chosen.flatten(), stable=True)
    counts = torch.zeros(experts, dtype=torch.int32, device=x.device)
    counts.scatter_add_(0, chosen.flatten(), torch.ones_like(order, dtype=torch.int32))
    ends = torch.cumsum(counts, 0, dtype=torch.int32)
    rows = order // top
    hidden = products["gate_up"](x[rows], weights["gate_up"], ends)
    y = products["down"](hidden, weights["down"], ends)
    share = torch.softmax(scores, 1).flatten()[order, None]
    out = torch.zeros(tokens, y.shape[1], dtype=torch.float32, device=x.device)
    return out.index_add_(0, rows, share * y.float()).to(x.dtype)


def gated(product: Product) -> Product:
    """Return the first step by a product: gate and up in one, and what lies between by PyTorch."""
    from torch.nn import functional

    def run(a: Any, b: Any, ends: Any) -> Any:
        gate, up = product(a, b, ends).chunk(2, dim=1)
        return functional.silu(gate) * up

    return run


def by_tinygpu(kernel: Kernel) -> Product:
    """Return the first step by our kernel: gate and up are views, and nothing is copied."""

    def run(a: Any, b: Any, ends: Any) -> Any:
        gate, up = b.chunk(2, dim=1)
        return kernel(a, up, gate, ends)

    return run


def by_torch(a: Any, b: Any, ends: Any) -> Any:
    """Multiply by PyTorch's grouped product."""
    import torch

    return torch._grouped_mm(a, b.transpose(1, 2), offs=ends)


def by_loop(a: Any, b: Any, ends: Any) -> Any:
    """Multiply group by group; the ends come to the host."""
    c = a.new_empty((a.shape[0], b.shape[1]))
    for group, (start, end) in enumerate(pairwise([0, *ends.tolist()])):
        c[start:end] = a[start:end] @ b[group].T
    return c


def exact(x: Any, weights: Mapping[str, Any], top: int, sample: Any) -> Any:
    """Return the layer at some tokens in float64; the router is that of the others, in bf16."""
    import torch
    from torch.nn import functional

    scores, chosen = torch.topk(functional.linear(x, weights["router"]).float(), top)
    x, scores, chosen = x[sample], scores[sample], chosen[sample]  # routed as one batch, all alike
    share, out = torch.softmax(scores.double(), 1), torch.zeros_like(x, dtype=torch.float64)
    for expert in chosen.unique().tolist():
        at, place = (chosen == expert).nonzero(as_tuple=True)
        gate, up = (x[at].double() @ weights["gate_up"][expert].double().T).chunk(2, dim=1)
        y = (functional.silu(gate) * up) @ weights["down"][expert].double().T
        out.index_add_(0, at, share[at, place, None] * y)
    return out


def seconds_of(runs: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the median time of each run; they take turns, a burst each, under one clock."""
    import torch

    found: dict[str, list[float]] = {name: [] for name in runs}
    counts = dict.fromkeys(runs, 2)
    for turn in range(TURNS + 1):
        for name, run in runs.items():
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            start.record()
            for _ in range(counts[name]):
                run()
            stop.record()
            torch.cuda.synchronize()
            each = start.elapsed_time(stop) * 1e-3 / counts[name]
            counts[name] = max(2, int(BURST_SECONDS / each))
            if turn:
                found[name].append(each)
    return {name: statistics.median(times) for name, times in found.items()}


def compare(given: argparse.Namespace, ours: Mapping[str, Product]) -> None:
    """Run the layer in each way; print times and errors, and exit with 1 if ours is wrong."""
    import torch

    torch.set_grad_enabled(False)
    torch.manual_seed(0)

    def random(*shape: int) -> Any:
        return torch.randn(shape, device="cuda", dtype=torch.bfloat16) / shape[-1] ** 0.5

    weights = {
        "router": random(given.experts, given.hidden),
        "gate_up": random(given.experts, 2 * given.ffn, given.hidden),
        "down": random(given.experts, given.hidden, given.ffn),
    }
    x = torch.randn(given.tokens, given.hidden, device="cuda", dtype=torch.bfloat16)
    ways: dict[str, Mapping[str, Product]] = {"tinyGPU": ours}
    if hasattr(torch, "_grouped_mm"):
        ways["torch._grouped_mm"] = {"gate_up": gated(by_torch), "down": by_torch}
    ways["a loop over cuBLAS"] = {"gate_up": gated(by_loop), "down": by_loop}
    sample = torch.linspace(0, given.tokens - 1, min(SAMPLED, given.tokens), device="cuda").long()
    wanted, errors = exact(x, weights, given.top, sample), {}
    for name, products in ways.items():
        off = layer(x, weights, given.top, products)[sample].double() - wanted
        errors[name] = float(off.abs().max() / wanted.abs().max())
    runs = {n: partial(layer, x, weights, given.top, products) for n, products in ways.items()}
    for name, seconds in seconds_of(runs).items():
        print(f"{name}: {seconds * 1e6:,.0f} us a layer, worst error {errors[name]:.2e}")
    if not errors["tinyGPU"] <= 2 * errors["a loop over cuBLAS"]:
        sys.exit("the layer on tinyGPU's kernels is wrong")


def main() -> None:
    """Choose both products' kernels, say what they are, and run the layer if there is a GPU."""
    parser = argparse.ArgumentParser(description="A layer of a mixture of experts.")
    for name, size in (
        ("tokens", 4096),
        ("hidden", 4096),
        ("ffn", 14336),
        ("experts", 8),
        ("top", 2),
    ):
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--schedules", type=Path, help="a folder that keeps what was chosen")
    parser.add_argument("--device", default="h100", help="whose time model chooses")
    given, programs = parser.parse_args(), {}
    for name, problem in problems_of(given).items():
        schedule = schedule_of(name, problem, given)
        programs[name] = program = schedule.program(HOPPER, problem.operation)
        seconds = float(cost(program, problem.sizes, load_device(given.device)).seconds)
        sizes = ", ".join(f"{axis} {size}" for axis, size in problem.extents)
        decisions = " ".join(f"{n}={value}" for n, value in schedule.decisions)
        print(f"{name}: {sizes}: predicted {seconds * 1e6:,.0f} us by {decisions}")
    torch = "" if find_spec("torch") else "PyTorch is not installed"
    if why := why_no_gpu(HOPPER) or torch:
        print(f"nothing was run: {why}")
        return
    first, down = (Kernel(programs[name]) for name in ("gate_up", "down"))
    compare(given, {"gate_up": by_tinygpu(first), "down": down})


if __name__ == "__main__":
    main()
