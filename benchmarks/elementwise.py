"""Elementwise kernels beside PyTorch's: ``python -m benchmarks.elementwise``.

Inputs of 1 GiB.  ``axpb`` is y = a*x + b and ``axpz`` is y = a*x + z, which PyTorch has as one
kernel (``torch.add``); ``gated`` is y = x * sigmoid(a*x) * z, one kernel under ``torch.compile``.
A ratio above 1 says how many times faster ours is.
"""

from __future__ import annotations

import sys

from benchmarks.peers import write_results
from benchmarks.streaming import Case, compare, schedules
from examples.elementwise import Elementwise
from tinygpu.codegen.provenance import provenance
from tinygpu.errors import LaunchError
from tinygpu.expression import apply, value
from tinygpu.memory import DTYPES
from tinygpu.operation import Problem, elementwise

__all__ = ["cases", "main"]

INPUT_BYTES = 2**30
VECTOR_BYTES = 16
X, Z, A, B = (value(n) for n in "xzab")
PEERS = tuple(f"benchmarks.peers:torch_{name}" for name in ("add", "eager", "compiled"))
EXPRESSIONS = {
    "axpb": (A * X + B, ("x",)),
    "axpz": (A * X + Z, ("x", "z")),
    "gated": (X * apply("sigmoid", A * X) * Z, ("x", "z")),
}


def cases(input_bytes: int = INPUT_BYTES) -> list[Case]:
    """Return the problems, fp32 and bf16."""
    found = []
    for dtype in ("f32", "bf16"):
        for name, (expression, inputs) in EXPRESSIONS.items():
            operation = elementwise(expression, inputs=inputs, dtype=dtype)
            problem = Problem.of(operation, i=input_bytes // DTYPES[dtype].bytes)
            scalars = {"a": 1.5, "b": 0.25} if "b" in operation.scalars else {"a": 1.5}
            found.append(Case(name, problem, PEERS[name == "gated" :], scalars))
    return found


def main() -> None:
    """Measure every case and write ``results/elementwise.json``."""
    record = provenance("python -m benchmarks.elementwise")
    for case in cases():
        choices = {
            "vector": (VECTOR_BYTES // DTYPES[case.problem.operation.output.dtype].bytes,),
            "unroll": (1, 2, 4, 8),
            "threads": (256, 512),
            "ctas": (0, 1056, 2112),
        }
        try:
            rows = compare(case, Elementwise(), schedules(Elementwise(), case.problem, choices))
        except LaunchError as error:
            sys.exit(str(error))
        write_results("elementwise", rows, record)


if __name__ == "__main__":
    main()
