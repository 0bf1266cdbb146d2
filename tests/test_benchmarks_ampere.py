"""The peers of the machine ampere, as far as they need no GPU: Triton, held to mma.sync."""

from __future__ import annotations

import importlib
import os
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import triton_mma
from benchmarks.ampere_matmul import CASES
from tinygpu.errors import OperationError
from tinygpu.term.operation import Problem, matmul

LARGE = next(case for case in CASES if case.part == "4096")


def test_tritons_configurations_fit_shared_memory() -> None:
    for case in CASES:
        found = triton_mma.configurations(case.problem)
        assert bool(found) == (case.problem.operation.inputs[0].axes == ("m", "k"))
        for one in found:
            width = 4 if case.group == "tf32" else 2
            assert one.stages * (one.tile_m + one.tile_n) * one.tile_k * width <= 232448
            assert not one.stay
            assert callable(getattr(triton_mma, str(one)))
        assert triton_mma.peers(case.problem) == tuple(map(str, found))
    assert triton_mma.configurations(Problem.of(matmul(), m=64, n=64, k=64)) == ()


@pytest.mark.parametrize("name", ["t128", "t128x128x64_s3_w4_g8_stay", "nothing"])
def test_other_names_are_no_peers(name: str) -> None:
    with pytest.raises(AttributeError, match="has no"):
        getattr(triton_mma, name)


@pytest.mark.parametrize("before", ["0", None])
def test_the_switch_is_put_back(before: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if before is None:
        monkeypatch.delenv("DISABLE_MMA_V3", raising=False)
    else:
        monkeypatch.setenv("DISABLE_MMA_V3", before)
    with triton_mma.held_to_mma():
        assert os.environ["DISABLE_MMA_V3"] == "1"
    assert os.environ.get("DISABLE_MMA_V3") == before


@pytest.mark.parametrize(
    ("ptx", "fine"), [("mma.sync", True), ("mma.sync wgmma", False), ("", False)]
)
def test_a_kernel_by_other_instructions_is_refused(
    ptx: str, fine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, ...]] = []

    class Kernel:
        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            seen.append(grid)
            return lambda *given, **options: SimpleNamespace(asm={"ptx": ptx})

    made = SimpleNamespace(kernel=Kernel())
    monkeypatch.setattr(importlib, "import_module", lambda name: made)
    monkeypatch.setattr(triton_mma, "tensors", lambda problem, inputs, output: (1, 2, 3))
    peer = triton_mma.t128x256x64_s3_w8_g8
    if fine:
        assert peer(LARGE.problem, (), None, {})() is None
        assert seen == [(32 * 16,)]
    else:
        with pytest.raises(OperationError, match="other instructions"):
            peer(LARGE.problem, (), None, {})
