"""RMSNorm beside PyTorch's: ``python -m benchmarks.rmsnorm [--predict]``.

An input of 1 GiB in rows of 1024 to 16384.  A ratio above 1 says how many times faster ours is.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.streaming import Case, run, schedules
from tinygpu.isa.memory import DTYPES
from tinygpu.machines.rows import Rows
from tinygpu.term.operation import Problem, rmsnorm
from tinygpu.term.schedule import Schedule

__all__ = ["candidates", "cases", "main"]

INPUT_BYTES = 2**30
VECTOR_BYTES = 16
WIDTHS = (1024, 4096, 8192, 16384)
PEERS = ("benchmarks.peers:torch_rms_norm", "benchmarks.peers:torch_compiled_rms_norm")


def cases(input_bytes: int = INPUT_BYTES) -> list[Case]:
    """Return the problems, fp32 and bf16, at every width of a row."""
    found = []
    for dtype in ("f32", "bf16"):
        for width in WIDTHS:
            rows = input_bytes // DTYPES[dtype].bytes // width
            problem = Problem.of(rmsnorm(dtype), i=rows, j=width)
            found.append(Case("rmsnorm", problem, PEERS, {"eps": 1e-5}))
    return found


def candidates(problem: Problem) -> list[Schedule]:
    """Return the legal schedules whose threads hold exactly a row, or rows."""
    vector = VECTOR_BYTES // DTYPES[problem.operation.output.dtype].bytes
    found: list[Schedule] = []
    for warps in (1, 2, 4, 8, 16, 32):
        chunks, rest = divmod(problem.sizes["j"], 32 * warps * vector)
        if not rest and chunks in (1, 2, 4, 8):
            choices = {
                "vector": (vector,),
                "chunks": (chunks,),
                "warps": (warps,),
                "rows": (1, 2),
                "teams": (1,) if warps > 2 else (4,),
                "ctas": (0, 264, 1056),
            }
            found += schedules(Rows(), problem, choices)
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure every case and write ``rmsnorm.json``, or predict what it holds."""
    run("rmsnorm", Rows(), cases(), candidates, arguments)


if __name__ == "__main__":
    main()
