"""A mixture of experts: PyTorch routes, both products of the experts are kernels found here.

    python examples/moe.py [--experts 8] [--top 2] [--tokens 4096] [--hidden 4096] [--ffn 7168]

Rows are sorted by expert; how many each has, only the device knows.  Without a GPU it says what it
would run, and what the model predicts for even groups.  On one it searches by measuring, and then
compares the layer with the same one by ``torch._grouped_mm``: some tokens in float64, and times.
"""

import argparse
import math
from importlib import import_module
from typing import Any

from tinygpu import MACHINES, Problem, Space, load_device, rank, tune
from tinygpu.codegen.run.launch import Kernel
from tinygpu.term.operation import grouped_matmul
from tinygpu.term.program import Program

TILES: dict[str, Any] = {
    "tile_m": (64, 128), "tile_n": (128, 256), "tile_k": 64, "swap": 0, "persistent": 1,
}  # fmt: skip


def product(given: argparse.Namespace, n: int, k: int, *, gpu: bool) -> tuple[Program, str]:
    """Return a term for a product of all experts, the fastest found here or the model's best."""
    problem = Problem.of(grouped_matmul("bf16"), g=given.experts, m=given.tokens * given.top,
                         n=n, k=k)  # fmt: skip
    machine = MACHINES["hopper"]
    if gpu:
        (one, measured), *_ = tune(problem, machines=[machine]).finalists
        schedule, seconds, how = one.schedule, measured.seconds or math.inf, "measured"
    else:
        device = load_device(given.device)
        best = rank(Space(machine, problem, device, fixed=TILES), 1).best[0]
        schedule, seconds, how = best.schedule, best.seconds, "predicted"
    rate = problem.operation.flops(problem.sizes) / seconds * 1e-12
    told = f"{problem.operation}; {seconds * 1e3:.3f} ms {how}, {rate:.0f} TFLOP/s"
    return schedule.program(machine, problem.operation), told


def layer(torch: Any, products: Any, x: Any, weights_of: Any, top: int) -> Any:
    """Return the layer's output: each token's ``top`` experts, weighted."""
    (up, down), (router, w1, w2) = products, weights_of
    weights, experts = (x @ router).float().softmax(-1).topk(top)
    order = experts.flatten().argsort()
    ends = experts.flatten().bincount(minlength=w1.shape[0]).cumsum(0).int()
    gate, value = up(x[order // top], w1, ends).chunk(2, -1)
    found = down(torch.nn.functional.silu(gate) * value, w2, ends)
    found = found * weights.flatten()[order, None]
    return torch.zeros_like(x, dtype=torch.float32).index_add_(0, order // top, found.float())


def compare(torch: Any, given: argparse.Namespace, up: Kernel, down: Kernel) -> None:
    """Run the layer both ways; print the worst error and the times."""
    torch.manual_seed(0)
    shapes = (
        (given.tokens, given.hidden), (given.hidden, given.experts),
        (given.experts, 2 * given.ffn, given.hidden), (given.experts, given.hidden, given.ffn),
    )  # fmt: skip
    x, *held = (
        (torch.randn(shape, device="cuda") / shape[-1] ** 0.5).bfloat16() for shape in shapes
    )

    def theirs(a: Any, b: Any, ends: Any) -> Any:
        return torch._grouped_mm(a, b.transpose(1, 2), offs=ends)

    def exact(a: Any, b: Any, ends: Any) -> Any:
        first = [0, *ends.tolist()]
        parts = zip(first, first[1:], b, strict=False)
        return torch.cat([a[i:j].double() @ w.double().T for i, j, w in parts])

    few = x[:64]
    wanted = layer(torch, (exact, exact), few, held, given.top)
    for name, products in (("ours", (up, down)), ("torch", (theirs, theirs))):
        off = (layer(torch, products, few, held, given.top) - wanted).abs().max()
        times = []
        for _ in range(20):
            began, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            began.record()
            layer(torch, products, x, held, given.top)
            ended.record()
            torch.cuda.synchronize()
            times.append(began.elapsed_time(ended))
        error = float(off / wanted.abs().max())
        print(f"{name}: {sorted(times)[10]:.3f} ms, error {error:.1e} of the largest element")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    sizes = {"experts": 8, "top": 2, "tokens": 4096, "hidden": 4096, "ffn": 7168}
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--device", default="h100")
    given = parser.parse_args()
    try:
        torch: Any = import_module("torch")
    except ImportError:
        torch = None
    gpu = torch is not None and torch.cuda.is_available()
    every = ("up", 2 * given.ffn, given.hidden), ("down", given.hidden, given.ffn)
    programs = []
    for name, n, k in every:
        program, told = product(given, n, k, gpu=gpu)
        print(f"{name}: {told}")
        programs.append(program)
    if gpu:
        compare(torch, given, *map(Kernel, programs))
    else:
        print("no GPU here: nothing is run")
