"""Grouped matmuls on a GPU: points are right for ends of all kinds, of CuPy, PyTorch and early."""

from __future__ import annotations

import pytest

from tests.test_groups import HOPPER, POINTS, term
from tinygpu.codegen.run.launch import Kernel
from tinygpu.codegen.run.validation import validate
from tinygpu.term.operation import Problem, grouped_matmul
from tinygpu.term.schedule import Schedule

pytestmark = pytest.mark.gpu
ENDS = {
    "one group": (700,),
    "empty ones": (0, 0, 300, 300, 300, 700, 700),
    "a row each": tuple(range(1, 40)),
    "a block each": (256, 512, 768),
    "nearly blocks": (127, 256, 385, 511),
}


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("point", POINTS)
def test_points_are_right(point: str, ends: str) -> None:
    operation, every = grouped_matmul(bias=True, activation="silu"), ENDS[ends]
    problem = Problem.of(operation, g=len(every), m=every[-1], n=520, k=264, ends=every)
    kernel = Kernel(term(point, operation), arch="sm_90a", sizes=problem.sizes)
    assert validate(kernel, problem, 0) <= 1


def test_it_is_torchs_grouped_mm() -> None:
    torch = pytest.importorskip("torch")
    program = Schedule.of(HOPPER, POINTS["by tma"]).program(HOPPER, grouped_matmul())
    kernel = Kernel(program, arch="sm_90a")
    torch.manual_seed(0)
    a, b = (torch.randn(shape, device="cuda").bfloat16() for shape in ((1000, 512), (5, 768, 512)))
    ends = torch.tensor([100, 100, 356, 800, 1000], dtype=torch.int32, device="cuda")
    wanted = torch._grouped_mm(a, b.transpose(1, 2), offs=ends)
    found = kernel(a, b, ends)
    assert (found.float() - wanted.float()).abs().max() <= 2**-6 * wanted.float().abs().max()
