"""Grouped matmuls on a GPU: points are right for ends of all kinds, of CuPy, PyTorch and early."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.test_gates import POINTS as GATES
from tests.test_groups import HOPPER, POINTS, term
from tests.test_rmsnorm_matmul import plan as normed
from tinygpu.codegen.run.launch import Kernel
from tinygpu.codegen.run.validation import validate
from tinygpu.errors import LaunchError
from tinygpu.term.operation import Problem, grouped_matmul, matmul
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


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("point", ["tma store", "cluster", "in turn", "swapped"])
def test_gates_are_right(point: str, ends: str) -> None:
    for operation in (
        grouped_matmul(gate="silu"),
        grouped_matmul("e4m3", scales=True, gate="silu"),
        matmul("bf16", layout="nt", gate="gelu"),
    ):
        every = ENDS[ends]
        sizes: dict[str, Any] = {"m": every[-1], "n": 520, "k": 272}
        if operation.groups:
            sizes |= {"g": len(every), "ends": every}
        problem = Problem.of(operation, **sizes)
        values = {
            **GATES[point],
            **({"tile_k": 128} if operation.inputs[0].dtype == "e4m3" else {}),
        }
        program = Schedule.of(HOPPER, values).program(HOPPER, operation)
        assert validate(Kernel(program, arch="sm_90a", sizes=problem.sizes), problem, 0) <= 1


def test_a_debugged_kernel_refuses_ends_that_do_not_ascend() -> None:
    torch = pytest.importorskip("torch")
    kernel = Kernel(term("by tma"), arch="sm_90a", debug=True)
    a, b = (torch.randn(shape, device="cuda").bfloat16() for shape in ((300, 64), (3, 64, 64)))
    for ends, complaint in (
        ((100, 90, 300), "group 1 ends at 90, before it begins, at 100"),
        ((100, 200, 299), "the last group ends at 299, and m is 300"),
    ):
        with pytest.raises(LaunchError, match=complaint):
            kernel(a, b, torch.tensor(ends, dtype=torch.int32, device="cuda"))
    right = torch.tensor((100, 100, 300), dtype=torch.int32, device="cuda")
    assert kernel(a, b, right).shape == (300, 64)


def test_gates_and_norms_are_operators() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    a = torch.randn((300, 512), device="cuda").bfloat16()
    both = torch.randn((3, 2 * 264, 512), device="cuda").bfloat16() / 512**0.5
    gate, up = both.chunk(2, dim=1)
    ends = torch.tensor((100, 100, 300), dtype=torch.int32, device="cuda")
    program = Schedule.of(HOPPER, GATES["cluster"]).program(HOPPER, grouped_matmul(gate="silu"))
    op = Kernel(program, arch="sm_90a").torch_op("tinygpu_test::gated")
    parts = [(a[start:end].double(), g) for g, start, end in ((0, 0, 100), (2, 100, 300))]
    wanted = torch.cat(
        [
            torch.nn.functional.silu(x @ gate[g].double().T) * (x @ up[g].double().T)
            for x, g in parts
        ]
    )
    assert (op(a, up, gate, ends).double() - wanted).abs().max() < 2**-7 * wanted.abs().max()
    norm = Kernel(normed(), arch="sm_90a").torch_op("tinygpu_test::normed")
    rows = torch.nn.functional.rms_norm(a.double(), (512,), None, 1e-5)
    wanted = rows @ up[0].double().T
    assert (norm(a, up[0], eps=1e-5).double() - wanted).abs().max() < 2**-7 * wanted.abs().max()


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


def test_a_layer_of_experts_runs(tmp_path: Path) -> None:
    """The example at a small size: right, and timed beside PyTorch."""
    pytest.importorskip("torch")
    script = Path(__file__).parent.parent / "examples" / "moe.py"
    sizes = ("--tokens", "500", "--hidden", "512", "--ffn", "768", "--experts", "16", "--top", "4")
    run = subprocess.run(
        [sys.executable, str(script), *sizes, "--schedules", str(tmp_path / "kept")],
        capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr + run.stdout
    assert "tinyGPU: " in run.stdout
    assert "a loop over cuBLAS: " in run.stdout


TORCH = """
import sys
import torch
sys.path.insert(0, sys.argv[1])
from loader import load_bundle

bundle = load_bundle(sys.argv[1])
op = bundle.torch_op("tinygpu_test::grouped")
torch.manual_seed(0)
b = torch.randn(8, 512, 256, device="cuda").bfloat16()
served = set()
for m in (60, 1000, 4096):
    a = torch.randn(m, 256, device="cuda").bfloat16()
    for cuts in ([m // 8 * i for i in range(1, 8)], [0, 0, m, m, m, m, m], [1, 2, 3, 4, 5, 6, 7]):
        ends = torch.tensor([*cuts, m], dtype=torch.int32, device="cuda")
        rows = zip([0, *cuts], [*cuts, m])
        wanted = torch.cat([a[i:j].double() @ b[g].double().T for g, (i, j) in enumerate(rows)])
        for found in (bundle(a, b, ends), op(a, b, ends)):
            assert (found.double() - wanted).abs().max() < 0.01 * wanted.abs().max(), m
    served.add(bundle.which(g=8, m=m, n=512, k=256)["kernel"])
told = torch.library.opcheck(op.default, (a, b, ends))
assert set(told.values()) == {"SUCCESS"}, told
compiled = torch.compile(lambda a: op(a, b, ends) * 1)
assert torch.equal(compiled(a), bundle(a, b, ends))
print("right", sorted(served))
"""


def test_a_bundle_of_groups_is_right(tmp_path: Path) -> None:
    """Measured, and called from PyTorch: as a function, as an operator, compiled; any ends."""
    pytest.importorskip("torch")
    words = ["dispatch", "grouped", "-g", "8", "-n", "512", "-k", "256", "-m", "64:4096"]
    words += ["--points", "4", "--kernels", "3", "--candidates", "6", "--groups", "even"]
    words += ["--groups", "zipf", "--out", str(tmp_path / "b")]
    made = [sys.executable, "-m", "tinygpu", *words]
    run = subprocess.run(made, capture_output=True, text=True, timeout=500, check=False)
    assert run.returncode == 0, run.stderr
    tree = json.loads((tmp_path / "b" / "bundle.json").read_text())
    assert tree["measured_on"]
    assert all(row["routings"] == {"even": 1.0, "zipf": 1.0} for row in tree["shapes"])
    call = [sys.executable, "-c", TORCH, str(tmp_path / "b")]
    run = subprocess.run(call, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("right")
