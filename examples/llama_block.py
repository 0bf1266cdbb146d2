"""A Llama block whose linear layers are one bundle: ``python examples/llama_block.py BUNDLE``.

The bundle is what one command makes, on the GPU that it is for:

    tinygpu dispatch matmul --layer qkv --layer o --layer gate_up --layer down -m 1:8192 \
        --kernels 16 --machine hopper --out bundle

It needs PyTorch, CuPy and NumPy, and no tinygpu: the bundle's own loader calls the kernels.  Both
blocks, on cuBLAS and on the bundle, have the same weights; their outputs are held against a block
in float64, and both are timed, in turns: prefill of 2,048 and 8,192 tokens, and decoding for 1 to
64 sequences over 1,024 tokens each, eager and under a CUDA graph.  The four layers are timed alone
too, under a graph: the rest of a block (attention, norms, sums) is PyTorch's in both.

Source: "The Llama 3 Herd of Models", table 3 (8B: width 4096, 32 heads, 8 of keys and values).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

WIDTH, HEADS, KV_HEADS, HEAD, WIDE = 4096, 32, 8, 128, 14336
CONTEXT = 1024
PREFILL, DECODE = (2048, 8192), (1, 4, 16, 64)
TURNS, BURST_SECONDS = 9, 0.05

Linear = Callable[[Any, Any], Any]


class Block:
    """One layer of a Llama, whose products ``linear(x, weight)`` computes.

    ``x`` is [tokens, width].  Without ``cache`` the tokens are one sequence, which attends to
    itself; with it (keys and values: [sequences, heads, CONTEXT, HEAD]) each is the last of its
    own, and written into it.
    """

    def __init__(self, linear: Linear, weights: dict[str, Any]) -> None:
        """Take the weights of the four layers and the two norms."""
        self.linear, self.weights = linear, weights

    def __call__(self, x: Any, cache: tuple[Any, Any] | None = None) -> Any:
        """Return the block's output."""
        w, tokens = self.weights, x.shape[0]
        h = functional.rms_norm(x, (WIDTH,), w["norm1"], 1e-5)
        q, k, v = self.linear(h, w["qkv"]).split(
            (HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD), dim=1
        )
        shape = (1, tokens, -1, HEAD) if cache is None else (tokens, 1, -1, HEAD)
        q, k, v = (y.reshape(shape).transpose(1, 2) for y in (q, k, v))
        if cache is not None:
            for kept, new in zip(cache, (k, v), strict=True):
                kept[:, :, -1:] = new
            k, v = cache
        seen = functional.scaled_dot_product_attention(
            q, k, v, is_causal=cache is None, enable_gqa=True
        )
        x = x + self.linear(seen.transpose(1, 2).reshape(tokens, WIDTH), w["o"])
        h = functional.rms_norm(x, (WIDTH,), w["norm2"], 1e-5)
        gate, up = self.linear(h, w["gate_up"]).chunk(2, dim=1)
        return x + self.linear(functional.silu(gate) * up, w["down"])

    def layers(self, x: Any, wide: Any) -> None:
        """Call the four layers alone, on [tokens, width] and [tokens, wide]."""
        for name in ("qkv", "o", "gate_up"):
            self.linear(x, self.weights[name])
        self.linear(wide, self.weights["down"])


def weights_of(seed: int = 0) -> dict[str, Any]:
    """Return random weights in bf16 that keep the scale of what goes through them."""
    torch.manual_seed(seed)

    def random(n: int, k: int) -> Any:
        return (torch.randn(n, k, device="cuda") / k**0.5).bfloat16()

    ones = torch.ones(WIDTH, device="cuda", dtype=torch.bfloat16)
    return {
        "qkv": random((HEADS + 2 * KV_HEADS) * HEAD, WIDTH),
        "o": random(WIDTH, WIDTH),
        "gate_up": random(2 * WIDE, WIDTH),
        "down": random(WIDTH, WIDE),
        "norm1": ones,
        "norm2": ones,
    }


def loaded(path: Path) -> Any:
    """Load a bundle by the loader that lies in it."""
    spec = importlib.util.spec_from_file_location("loader", path / "loader.py")
    assert spec
    assert spec.loader
    loader = importlib.util.module_from_spec(spec)
    sys.modules["loader"] = loader
    spec.loader.exec_module(loader)
    return loader.load_bundle(path)


def inputs_of(tokens: int, *, decode: bool) -> tuple[Any, ...]:
    """Return the block's arguments for a prefill or a step of decoding."""
    x = torch.randn(tokens, WIDTH, device="cuda", dtype=torch.bfloat16)
    if not decode:
        return (x,)
    shape = (tokens, KV_HEADS, CONTEXT, HEAD)
    return x, tuple(torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2))


def graphed(run: Callable[[], Any]) -> Callable[[], Any]:
    """Capture a run into a CUDA graph; return its replay."""
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    replay: Callable[[], Any] = graph.replay
    return replay


def seconds_of(runs: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Return the median time of each run; they take turns, a burst each, under one clock."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    counts: dict[str, int] = {}
    for turn in range(TURNS + 1):
        for name, run in runs.items():
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            count = counts.get(name, 5)
            torch.cuda.synchronize()
            start.record()
            for _ in range(count):
                run()
            stop.record()
            torch.cuda.synchronize()
            each = start.elapsed_time(stop) * 1e-3 / count
            counts[name] = max(3, int(BURST_SECONDS / each))
            if turn:
                found[name].append(each)
    return {name: statistics.median(times) for name, times in found.items()}


def errors_of(blocks: dict[str, Block], weights: dict[str, Any]) -> dict[str, float]:
    """Return how far each block is from float64: the worst element, over the output's size."""
    wide = {name: w.double() for name, w in weights.items()}
    exact = Block(functional.linear, wide)
    found = dict.fromkeys(blocks, 0.0)
    for tokens, decode in ((300, False), (7, True)):
        given = inputs_of(tokens, decode=decode)
        x, *cache = given
        held = [tuple(c.double() for c in cache[0])] if cache else []
        wanted = exact(x.double(), *held)
        for name, block in blocks.items():
            off = (block(*given).double() - wanted).abs().max() / wanted.abs().max()
            found[name] = max(found[name], float(off))
    return found


def main() -> None:
    """Check and time the blocks; print a row for each case."""
    torch.set_grad_enabled(False)
    parser = argparse.ArgumentParser()
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--out", type=Path, help="write the rows there, as JSON")
    given = parser.parse_args()
    weights, bundle = weights_of(), loaded(given.bundle)
    blocks = {"cuBLAS": Block(functional.linear, weights), "bundle": Block(bundle, weights)}
    errors = errors_of(blocks, weights)
    print("worst error:", ", ".join(f"{name} {error:.2e}" for name, error in errors.items()))
    if errors["bundle"] > 2 * errors["cuBLAS"]:
        sys.exit("the bundle's block is wrong")
    rows = []
    for tokens, decode in (*((t, False) for t in PREFILL), *((t, True) for t in DECODE)):
        arguments = inputs_of(tokens, decode=decode)
        wide = torch.randn(tokens, WIDE, device="cuda", dtype=torch.bfloat16)
        runs: dict[str, dict[str, Callable[[], Any]]] = {
            "eager": {name: partial(block, *arguments) for name, block in blocks.items()},
            "layers": {n: partial(b.layers, arguments[0], wide) for n, b in blocks.items()},
        }
        runs["graph"] = {name: graphed(run) for name, run in runs["eager"].items()}
        runs["layers"] = {name: graphed(run) for name, run in runs["layers"].items()}
        for how in ("eager", "graph", "layers"):
            seconds = seconds_of(runs[how])
            row = {
                "case": "decode" if decode else "prefill",
                "tokens": tokens,
                "how": how,
                **{f"{name}_seconds": s for name, s in seconds.items()},
                "speedup": seconds["cuBLAS"] / seconds["bundle"],
            }
            rows.append(row)
            each = ", ".join(
                f"{name} {s * 1e6:,.1f} us ({tokens / s:,.0f} tokens/s)"
                for name, s in seconds.items()
            )
            print(f"{row['case']} {tokens}, {how}: {each}, {row['speedup']:.3f} times")
    if given.out:
        device = torch.cuda.get_device_name()
        tree = {"device": device, "torch": torch.__version__, "errors": errors, "rows": rows}
        given.out.write_text(json.dumps(tree, indent=1) + "\n")


if __name__ == "__main__":
    main()
