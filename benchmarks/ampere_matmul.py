"""The mma.sync matmul beside cuBLASLt and Triton: ``python -m benchmarks.ampere_matmul``.

cuBLASLt and PyTorch multiply by wgmma on Hopper; Triton is held to mma.sync (``triton_mma.py``).
``matmul.py`` says how the cases are measured, and what the command line takes.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import matmul as driver
from benchmarks.matmul import Case, case
from tinygpu.machines.ampere import Ampere

__all__ = ["CASES", "main"]

CASES: tuple[Case, ...] = (
    *(case("main", size, size, size, "bf16") for size in (512, 1000, 1024, 2048, 4096, 8192)),
    *(case("layouts", 4096, 4096, 4096, "bf16", layout) for layout in ("nn", "tn", "tt")),
    case("f16", 4096, 4096, 4096, "f16"),
    *(case("tf32", size, size, size, "tf32") for size in (1024, 4096)),
    case("tf32", 4096, 4096, 4096, "tf32", "nn"),
)
"""Every case, the marks first."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the command line says."""
    driver.main("ampere_matmul", Ampere(), CASES, arguments, peers=("benchmarks.triton_mma",))


if __name__ == "__main__":
    main()
