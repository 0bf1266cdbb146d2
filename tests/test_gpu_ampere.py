"""What only a GPU can tell: that the points of ampere are right on it, in every type and layout."""

from __future__ import annotations

from typing import Any

import pytest

from tests.hopper_terms import H200, LAYOUTS
from tinygpu.codegen.run.launch import Kernel, gpu
from tinygpu.codegen.run.measure import validate
from tinygpu.isa.memory import DTYPES
from tinygpu.legality.laws import check_schedule
from tinygpu.machines.ampere import STARTS, Ampere
from tinygpu.term.machine import Value
from tinygpu.term.operation import Operation, Problem, matmul
from tinygpu.term.schedule import Schedule

TYPES = (("bf16", None, LAYOUTS), ("tf32", None, LAYOUTS), ("f16", None, ("nt",)),
         ("bf16", "f32", ("nt",)))  # fmt: skip
SHAPES = ((256, 512, 256), (72, 104, 200), (8, 264, 8), (1032, 776, 1000))
ODD = ((1, 256, 64), (77, 264, 136), (301, 520, 1000))  # odd m: no layout with m contiguous
FUSED: tuple[dict[str, Any], ...] = (
    {"bias": True},
    {"bias": True, "activation": "relu"},
    {"activation": "gelu"},
    {"bias": True, "activation": "silu"},
)


@pytest.fixture(autouse=True)
def ampere(request: pytest.FixtureRequest) -> None:
    """mma.sync of these types is there from compute capability 8.0 on."""
    if request.node.get_closest_marker("gpu") and int(gpu().cuda.Device().compute_capability) < 80:
        pytest.skip("this GPU is older than Ampere")


def schedule_of(start: str, operation: Operation, **changes: Value) -> Schedule:
    """Return a start as the operation's types allow it."""
    values = {**STARTS[start], **changes}
    if operation.inputs[0].dtype == "tf32":
        values["tile_k"] = 32
        values["stages"] = min(3, int(values["stages"]))
    if values["epilogue"] == "smem":
        values["vector_c"] = min(8, 16 // DTYPES[operation.output.dtype].bytes)
    return Schedule.of(Ampere(), values)


def takes(start: str, operation: Operation) -> bool:
    schedule = schedule_of(start, operation)
    return all(r.holds for r in Ampere().requires(operation, schedule.chosen()))


OPERATIONS = [matmul(dtype, output, layout) for dtype, output, some in TYPES for layout in some]
POINTS = [(start, o) for start in STARTS for o in OPERATIONS if takes(start, o)]


def right(operation: Operation, start: str, **changes: Value) -> None:
    schedule = schedule_of(start, operation, **changes)
    kernel = Kernel(schedule.program(Ampere(), operation))
    exact = schedule["edges"] == "exact"
    shapes = SHAPES[:1] if exact else SHAPES + (ODD if operation.inputs[0].axes[-1] == "k" else ())
    for number, (m, n, k) in enumerate(shapes):
        problem = Problem.of(operation, m=m, n=n, k=k)
        assert validate(kernel, problem, seed=number) <= 1, (m, n, k)


@pytest.mark.parametrize("start", STARTS)
def test_the_points_are_legal(start: str) -> None:
    """Every start is run in some type; what the tests below run is legal."""
    mine = [operation for name, operation in POINTS if name == start]
    assert mine
    for operation in mine[:: max(1, len(mine) - 1)]:
        m, n, k = SHAPES[0] if start == "exact" else SHAPES[1]
        problem = Problem.of(operation, m=m, n=n, k=k)
        schedule = schedule_of(start, operation)
        assert check_schedule(schedule, Ampere(), problem, H200) == ()


@pytest.mark.gpu
@pytest.mark.parametrize(("start", "operation"), POINTS, ids=str)
def test_named_points(start: str, operation: Operation) -> None:
    """Whole and ragged shapes, every layout and type that the point takes."""
    right(operation, start)


@pytest.mark.gpu
@pytest.mark.parametrize("more", FUSED, ids=str)
@pytest.mark.parametrize("dtype", ["bf16", "f16", "tf32"])
def test_what_is_fused(dtype: str, more: dict[str, Any]) -> None:
    operation = matmul(dtype, layout="nt", **more)
    right(operation, "ring")
    right(operation, "lines")
    right(operation, "plain", vector_c=1)


@pytest.mark.gpu
@pytest.mark.parametrize("vector", [1, 2])
def test_parts_of_k_are_added(vector: int) -> None:
    for dtype, output in (("bf16", "f32"), ("tf32", None)):
        for split in (2, 16):
            right(matmul(dtype, output, "nt"), "parts of k", vector_c=vector, split_k=split)
