"""The Hopper matmul beside cuBLASLt, PyTorch and Triton: ``python -m benchmarks.hopper_matmul``.

The marks are the group "main": linear layers (layout nt) in bf16, squares and the M x N x K of a
transformer.  Other groups: shapes that nothing was ever tuned for, f16, e4m3, gelu(bias), a batch,
k so deep that tiles do not fill the chip, the other layouts.  ``matmul.py`` says how they are
measured, and what the command line takes.

>>> [one.part for one in CASES][:3], len([one for one in CASES if one.group == "main"])
(['512', '1024', '2048'], 25)
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import matmul as driver
from benchmarks.matmul import Case, case
from tinygpu.machines.hopper import Hopper
from tinygpu.term.operation import Problem, matmul

__all__ = ["CASES", "main"]

_SQUARES = (512, 1024, 2048, 4096, 8192, 16384)
_ROWS = (16, 64, 128, 256, 512, 1024, 2048, 3500, 8192)
_FEW_ROWS = (16, 128, 512, 2048, 8192)
_OTHERS = (
    *((1, 4096, 4096), (33, 4096, 11008), (7, 11008, 4096), (96, 12288, 49152)),
    *((777, 3072, 768), (900, 2560, 9728), (1333, 4096, 4096), (1500, 5120, 13824)),
)
"""Shapes of other models, ragged ones among them."""
_GELU = matmul("bf16", layout="nt", bias=True, activation="gelu")
_BATCH = matmul("bf16", layout="nt", batched=True)

CASES: tuple[Case, ...] = (
    *(case("main", size, size, size, "bf16") for size in _SQUARES),
    *(case("main", m, 4096, 4096, "bf16") for m in _ROWS),
    *(case("main", m, 14336, 4096, "bf16") for m in _FEW_ROWS),
    *(case("main", m, 4096, 14336, "bf16") for m in _FEW_ROWS),
    *(case("others", m, n, k, "bf16") for m, n, k in _OTHERS),
    *(case("f16", size, size, size, "f16") for size in _SQUARES),
    *(case("e4m3", size, size, size, "e4m3") for size in _SQUARES),
    *(
        Case("bias gelu", f"gelu-{m}", "matmul nt, gelu(bias)", Problem.of(_GELU, m=m, n=n, k=k))
        for m, n, k in ((4096, 4096, 4096), (2048, 14336, 4096))
    ),
    Case("batch", "batch", "matmul nt, 32 of", Problem.of(_BATCH, l=32, m=1024, n=1024, k=1024)),
    *(case("deep k", m, n, 16384, "bf16") for m, n in ((512, 512), (256, 1024), (1024, 1024))),
    *(case("layouts", 4096, 4096, 4096, "bf16", layout) for layout in ("nn", "tn", "tt")),
)
"""Every case, the marks first."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Do what the command line says."""
    driver.main("hopper_matmul", Hopper(), CASES, arguments, peers=("benchmarks.triton_matmul",))


if __name__ == "__main__":
    main()
