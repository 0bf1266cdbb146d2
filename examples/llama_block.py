"""A Llama block of bundles: ``python examples/llama_block.py FOLDER``.

The bundles in the folder are what six commands make, on the GPU that they are for:

    M="1,4,16,64,2048,8192"
    tinygpu dispatch matmul --layer qkv -m $M --machine hopper --out FOLDER/qkv
    tinygpu dispatch matmul --scale --layer o --layer down -m $M --machine hopper --out FOLDER/sum
    tinygpu dispatch matmul --gate silu -m $M -n 14336 -k 4096 --machine hopper --out FOLDER/gate
    tinygpu dispatch rmsnorm --dtype bf16 -i $M -j 4096 --out FOLDER/norm
    tinygpu dispatch attention --dtype bf16 --causal -b 1 --heads 32 --kv-heads 8 \
        -m 2048,8192 -n 2048,8192 -d 128 --out FOLDER/prefill
    tinygpu dispatch attention --dtype bf16 -b 1,4,16,64 --heads 32 --kv-heads 8 -m 1 -n 1024 \
        -d 128 --out FOLDER/decode

It needs PyTorch, CuPy and NumPy, and no tinygpu: each bundle's own loader calls its kernels.  The
gate's product and the sums of what went by a layer are part of their matmul, as the bundles allow.
PyTorch's block has cuBLAS, and of its attentions (cuDNN's among them) the fastest of each case; the
same block by ``torch.compile`` stands beside it.  All have the same weights; their outputs are held
against a block in float64, and they are timed in turns: prefill of 2,048 and 8,192 tokens, and
decoding for 1 to 64 sequences over 1,024 tokens each, eager and under a CUDA graph.

Source: "The Llama 3 Herd of Models", table 3 (8B: width 4096, 32 heads, 8 of keys and values).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

WIDTH, HEADS, KV_HEADS, HEAD, WIDE = 4096, 32, 8, 128, 14336
CONTEXT = 1024
PREFILL, DECODE = (2048, 8192), (1, 4, 16, 64)
TURNS, BURST_SECONDS = 9, 0.05

BACKENDS = ("CUDNN_ATTENTION", "FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH")
BUNDLES = ("qkv", "sum", "gate", "norm", "prefill", "decode")
EPSILON = 1e-5


class Torch:
    """The parts of a block by PyTorch; ``backend`` is its attention's."""

    def __init__(self, backend: str) -> None:
        """Take the name of an SDPBackend."""
        self.backend = [getattr(SDPBackend, backend)]

    def norm(self, x: Any, weight: Any) -> Any:
        """Return each row over its root mean square, times the weight."""
        return functional.rms_norm(x, (WIDTH,), weight, EPSILON)

    def product(self, x: Any, weight: Any) -> Any:
        """Return x[tokens, k] weight[n, k]^T."""
        return functional.linear(x, weight)

    def added(self, x: Any, weight: Any, to: Any) -> Any:
        """Return what went by a layer plus its product."""
        return to + functional.linear(x, weight)

    def gated(self, x: Any, weight: Any) -> Any:
        """Return silu(x gate^T) (x up^T); the weight has both, gate first."""
        gate, up = functional.linear(x, weight).chunk(2, dim=1)
        return functional.silu(gate) * up

    def attend(self, q: Any, k: Any, v: Any, *, causal: bool) -> Any:
        """Return attention of q[b, heads, m, d] to k and v[b, kv heads, n, d]."""
        with sdpa_kernel(self.backend):
            return functional.scaled_dot_product_attention(
                q, k, v, is_causal=causal, enable_gqa=True
            )


class ByHead(Torch):
    """The parts of a block by PyTorch, one head of attention after another: all do not fit."""

    def attend(self, q: Any, k: Any, v: Any, *, causal: bool) -> Any:
        """Return attention of q[b, heads, m, d] to k and v[b, kv heads, n, d]."""
        group, each = HEADS // KV_HEADS, []
        for i in range(HEADS):
            of, kv = slice(i, i + 1), slice(i // group, i // group + 1)
            each.append(super().attend(q[:, of], k[:, kv], v[:, kv], causal=causal))
        return torch.cat(each, dim=1)


class Bundled:
    """The parts of a block by bundles."""

    def __init__(self, folder: Path) -> None:
        """Load the bundles, each by the loader that lies in it."""
        self.of = {name: loaded(folder / name) for name in BUNDLES}

    def norm(self, x: Any, weight: Any) -> Any:
        """Return each row over its root mean square, times the weight."""
        return self.of["norm"](x, weight, eps=EPSILON)

    def product(self, x: Any, weight: Any) -> Any:
        """Return x[tokens, k] weight[n, k]^T."""
        return self.of["qkv"](x, weight)

    def added(self, x: Any, weight: Any, to: Any) -> Any:
        """Return what went by a layer plus its product."""
        return self.of["sum"](x, weight, to, alpha=1.0, beta=1.0)

    def gated(self, x: Any, weight: Any) -> Any:
        """Return silu(x gate^T) (x up^T); the weight has both, gate first."""
        gate, up = weight.chunk(2)
        return self.of["gate"](x, up, gate)

    def attend(self, q: Any, k: Any, v: Any, *, causal: bool) -> Any:
        """Return attention of q[b, heads, m, d] to k and v[b, kv heads, n, d]."""
        (b, _, m, d), grouped = q.shape, (KV_HEADS, HEADS // KV_HEADS)
        out = q.new_empty(b, m, HEADS, d).transpose(1, 2)
        attention = self.of["prefill" if causal else "decode"]
        written = out.unflatten(1, grouped)
        attention(q.unflatten(1, grouped), k, v, out=written, scale=d**-0.5)
        return out


Parts = Torch | Bundled


class Block:
    """One layer of a Llama by the parts that it is given.

    ``x`` is [tokens, width].  Without ``cache`` the tokens are one sequence, which attends to
    itself; with it (keys and values: [sequences, heads, CONTEXT, HEAD]) each is the last of its
    own, and written into it.
    """

    def __init__(self, parts: Parts, weights: dict[str, Any]) -> None:
        """Take the weights of the four layers and the two norms."""
        self.parts, self.weights = parts, weights

    def __call__(self, x: Any, cache: tuple[Any, Any] | None = None) -> Any:
        """Return the block's output."""
        w, parts, tokens = self.weights, self.parts, x.shape[0]
        h = parts.norm(x, w["norm1"])
        q, k, v = parts.product(h, w["qkv"]).split(
            (HEADS * HEAD, KV_HEADS * HEAD, KV_HEADS * HEAD), dim=1
        )
        shape = (1, tokens, -1, HEAD) if cache is None else (tokens, 1, -1, HEAD)
        q, k, v = (y.view(shape).transpose(1, 2) for y in (q, k, v))
        if cache is not None:
            for kept, new in zip(cache, (k, v), strict=True):
                kept[:, :, -1:] = new
            k, v = cache
        seen = parts.attend(q, k, v, causal=cache is None)
        x = parts.added(seen.transpose(1, 2).reshape(tokens, WIDTH), w["o"], x)
        return parts.added(parts.gated(parts.norm(x, w["norm2"]), w["gate_up"]), w["down"], x)


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
    spec = importlib.util.spec_from_file_location(f"loader_{path.name}", path / "loader.py")
    assert spec
    assert spec.loader
    loader = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loader
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


def exact_of(given: tuple[Any, ...], weights: dict[str, Any]) -> Any:
    """Return the block's output in float64."""
    x, *cache = given
    held = [tuple(c.double() for c in cache[0])] if cache else []
    wide = {name: w.double() for name, w in weights.items()}
    return Block(ByHead("MATH"), wide)(x.double(), *held)


def fastest_attention(arguments: tuple[Any, ...], weights: dict[str, Any]) -> str:
    """Return the name of PyTorch's backend with which its block is fastest."""
    runs: dict[str, Callable[[], Any]] = {}
    for name in BACKENDS:
        run = partial(Block(Torch(name), weights), *arguments)
        try:
            with warnings.catch_warnings(action="ignore"):
                run()
        except RuntimeError:  # this backend takes no such inputs
            continue
        runs[name] = graphed(run)
    seconds = seconds_of(runs)
    return min(seconds, key=lambda name: seconds[name])


def main() -> None:
    """Check and time the blocks; print a row for each case."""
    torch.set_grad_enabled(False)
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--out", type=Path, help="write the rows there, as JSON")
    given = parser.parse_args()
    weights, bundled = weights_of(), Bundled(given.folder)
    rows = []
    for tokens, decode in (*((t, False) for t in PREFILL), *((t, True) for t in DECODE)):
        arguments = inputs_of(tokens, decode=decode)
        backend = fastest_attention(arguments, weights)
        torch._dynamo.reset()
        plain = Block(Torch(backend), weights)
        blocks: dict[str, Callable[..., Any]] = {
            "torch": plain,
            "compiled": torch.compile(plain),
            "bundles": Block(bundled, weights),
        }
        wanted = exact_of(arguments, weights)
        errors = {
            name: float((block(*arguments).double() - wanted).abs().max() / wanted.abs().max())
            for name, block in blocks.items()
        }
        if not errors["bundles"] <= 2 * errors["torch"]:  # nor a NaN
            sys.exit(f"the bundles' block is wrong: {errors}")
        del wanted
        eager = {name: partial(block, *arguments) for name, block in blocks.items()}
        ways: dict[str, dict[str, Callable[[], Any]]] = {
            "eager": {**eager},
            "graph": {name: graphed(run) for name, run in eager.items()},
        }
        for how, runs in ways.items():
            seconds = seconds_of(runs)
            row = {
                "case": "decode" if decode else "prefill",
                "tokens": tokens,
                "how": how,
                "attention": backend,
                "errors": errors,
                **{f"{name}_seconds": s for name, s in seconds.items()},
                "speedup": seconds["torch"] / seconds["bundles"],
                "compiled_speedup": seconds["compiled"] / seconds["bundles"],
            }
            rows.append(row)
            each = ", ".join(f"{name} {s * 1e6:,.1f} us" for name, s in seconds.items())
            print(
                f"{row['case']} {tokens}, {how}: {each}; {row['speedup']:.3f} of torch with "
                f"{backend}, {row['compiled_speedup']:.3f} of torch.compile",
                flush=True,
            )
    if given.out:
        device = torch.cuda.get_device_name()
        tree = {"device": device, "torch": torch.__version__, "rows": rows}
        given.out.write_text(json.dumps(tree, indent=1) + "\n")


if __name__ == "__main__":
    main()
