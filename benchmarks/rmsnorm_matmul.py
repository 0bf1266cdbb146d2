"""RMSNorm and the matmul behind it, beside PyTorch: ``python -m benchmarks.rmsnorm_matmul``.

    python -m benchmarks.rmsnorm_matmul [--out DIR] [--device DEVICE] [--first CASE]

Of each case a process of its own runs

    tinygpu search rmsnorm_matmul -m M -n N -k K --measure --budget 10 --device D

and its fastest finalist and the model's first choice stand beside PyTorch's fused ``rms_norm`` and
product, eager and compiled, under one load.  bf16, nt; no weight of the norm, which is in b.
PyTorch rounds the normalised rows to bf16, which is about ten times what rounding c allows.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.grouped import FIELDS, beside, searched
from benchmarks.peers import FOLDER, tensors, write_results
from tinygpu.codegen.run.provenance import provenance
from tinygpu.term.operation import Problem, rmsnorm_matmul

__all__ = ["CASES", "main", "peers", "torch_compiled", "torch_eager"]

CASES = ((16, 6144, 4096), (256, 6144, 4096), (2048, 28672, 4096), (8192, 6144, 4096),
         (64, 10240, 8192), (4096, 10240, 8192))  # fmt: skip
"""m, n, k: queries, keys and values of Llama 8B and 70B, and gate and up of 8B."""

_PEER_ERROR = 64.0
Run = Callable[[], Any]


def peers(problem: Problem) -> tuple[str, ...]:
    """Return the peers of a problem."""
    known = problem.operation == rmsnorm_matmul("bf16")
    return ("torch_eager", "torch_compiled") if known else ()


def torch_eager(
    problem: Problem, inputs: Sequence[Any], output: Any, scalars: Mapping[str, float]
) -> Run:
    """PyTorch's fused ``rms_norm``, then cuBLAS."""
    import torch
    from torch.nn import functional

    a, b, c = tensors(problem, inputs, output)
    return lambda: torch.mm(functional.rms_norm(a, a.shape[1:], None, scalars["eps"]), b.T, out=c)


def torch_compiled(
    problem: Problem, inputs: Sequence[Any], output: Any, scalars: Mapping[str, float]
) -> Run:
    """Run both as ``torch.compile`` makes them."""
    import torch

    compiled = torch.compile(torch_eager(problem, inputs, output, scalars), dynamic=False)
    return lambda: compiled()


def main(arguments: Sequence[str] | None = None) -> None:
    """Search, compare, and write after each case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rmsnorm_matmul")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--device", default="h100", help="as for search")
    parser.add_argument("--first", type=int, default=0, help="the number of the first case")
    given = parser.parse_args(arguments)
    record = provenance("python -m benchmarks.rmsnorm_matmul")
    for m, n, k in CASES[given.first :]:
        problem = Problem.of(rmsnorm_matmul("bf16"), m=m, n=n, k=k)
        empty = dict.fromkeys((*FIELDS, "schedule", "predicted_seconds", "seconds", "peer",
                               "peer_seconds", "error"))  # fmt: skip
        row = empty | {"group": "main", "case": f"{m}x{n}x{k}", "dtype": "bf16", "m": m, "n": n,
                       "k": k}  # fmt: skip
        words = ["rmsnorm_matmul", "-m", str(m), "-n", str(n), "-k", str(k)]
        found, both = searched(words, "hopper_rmsnorm", given.device)
        row |= found
        if both:
            row |= beside(problem, both, "benchmarks.rmsnorm_matmul", _PEER_ERROR)
        write_results("rmsnorm_matmul", [row], record, given.out, fields=FIELDS)
        sys.stdout.write(f"{row}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
