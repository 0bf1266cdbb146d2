"""Elementwise kernels beside PyTorch's: ``python -m benchmarks.elementwise [--predict]``.

Inputs of 1 GiB.  ``axpb`` is y = a*x + b and ``axpz`` is y = a*x + z, which PyTorch has as one
kernel (``torch.add``); ``gated`` is y = x * sigmoid(a*x) * z, one kernel under ``torch.compile``.
A ratio above 1 says how many times faster ours is.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.streaming import Case, run, schedules
from tinygpu.isa.memory import DTYPES
from tinygpu.machines.elementwise import Elementwise
from tinygpu.term.expression import apply, value
from tinygpu.term.operation import Problem, elementwise
from tinygpu.term.schedule import Schedule

__all__ = ["candidates", "cases", "main"]

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


def candidates(problem: Problem) -> list[Schedule]:
    """Return the legal schedules that move 16 B at once."""
    choices = {
        "vector": (VECTOR_BYTES // DTYPES[problem.operation.output.dtype].bytes,),
        "unroll": (1, 2, 4, 8),
        "threads": (256, 512),
        "ctas": (0, 1056, 2112),
    }
    return schedules(Elementwise(), problem, choices)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every case and write ``elementwise.json``, or predict what it holds."""
    run("elementwise", Elementwise(), cases(), candidates, arguments)


if __name__ == "__main__":
    main()
