"""The benchmark of the machine ampere, as far as it needs no GPU."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import ampere_matmul, cublaslt, triton_mma
from benchmarks.ampere_matmul import CASES, FIELDS, candidates, compare
from benchmarks.peers import ROW
from tinygpu.device import load_device
from tinygpu.errors import LaunchError, OperationError
from tinygpu.laws import check_schedule
from tinygpu.machines.ampere import STARTS, Ampere
from tinygpu.measurement import Measurement
from tinygpu.operation import Problem, matmul
from tinygpu.schedule import Schedule

H200 = load_device("h200")
LARGE = next(case for case in CASES if case.part == "4096")


def test_candidates_are_legal_different_and_predicted() -> None:
    found = candidates(LARGE.problem, top=2)
    assert len(found) > 40
    assert all(0 < seconds < 1e-2 for seconds in found.values())
    for schedule in list(found)[::7]:
        assert check_schedule(schedule, Ampere(), LARGE.problem, H200) == ()
    tiles = {(s["tile_m"], s["tile_n"]) for s in found}
    assert {(128, 256), (256, 128), (128, 128)} <= tiles


@pytest.mark.parametrize("part", ["tf32-nt-4096", "tf32-nn-4096"])
def test_candidates_of_tf32(part: str) -> None:
    """Half as deep as those of 16 bits; whole lines of c are 16 B of fp32."""
    problem = next(case for case in CASES if case.part == part).problem
    found = candidates(problem, top=0)
    assert len(found) > 30
    for schedule in list(found)[::5]:
        assert check_schedule(schedule, Ampere(), problem, H200) == ()
    assert {s["vector_c"] for s in found if s["epilogue"] == "smem"} == {4}
    fastest, bf16 = min(found.values()), min(candidates(LARGE.problem, top=0).values())
    assert 1.5 < fastest / bf16 < 2.5


def test_sizes_that_tiles_do_not_divide_are_guarded() -> None:
    problem = Problem.of(matmul("bf16", layout="nt"), m=1000, n=1000, k=1000)
    assert {s["edges"] for s in candidates(problem, top=0)} == {"guard"}


def test_tritons_configurations_fit_shared_memory() -> None:
    for case in CASES:
        found = triton_mma.configurations(case.problem)
        assert bool(found) == (case.problem.operation.inputs[0].axes == ("m", "k"))
        for one in found:
            width = 4 if case.group == "tf32" else 2
            assert one.stages * (one.tile_m + one.tile_n) * one.tile_k * width <= 232448
            assert not one.stay
            assert callable(getattr(triton_mma, str(one)))
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


def _measured(slow: str) -> Any:
    """Measure nothing: schedules take 1 to .. seconds, peers 2, those named ``slow`` fail."""

    def measure(schedules: Sequence[Any], *_: Any, peers: Sequence[str], **__: Any) -> list[Any]:
        def one(seconds: float, name: str) -> Measurement:
            failed = bool(slow) and slow in name
            return Measurement(
                operation="", sizes="", schedule="", device="", driver="", emitter=1, error=0.5,
                seconds=None if failed else seconds, reason="no" if failed else "",
            )  # fmt: skip

        mine = [one(1.0 + i, "ours") for i, _ in enumerate(schedules)]
        return mine + [one(2.0 + i, name) for i, name in enumerate(peers)]

    return measure


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three schedules are enough."""
    several = {Schedule.of(Ampere(), STARTS[n]): 1e-3 for n in ("ring", "deep", "lines")}
    monkeypatch.setattr(ampere_matmul, "candidates", lambda problem, top: several)


@pytest.mark.usefixtures("few")
def test_a_row_has_our_best_and_the_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ampere_matmul, "measure", _measured(""))
    row = compare(LARGE, 0, 2, None)
    assert set(row) == {*ROW, *FIELDS}
    assert (row["seconds"], row["peer"], row["peer_seconds"]) == (1.0, "peers:torch_matmul", 2.0)
    assert row["triton"].startswith("t128")
    monkeypatch.setattr(ampere_matmul, "measure", _measured("ours"))
    with pytest.raises(LaunchError, match="none of"):
        compare(LARGE, 0, 2, None)
    monkeypatch.setattr(ampere_matmul, "measure", _measured("triton"))
    assert compare(LARGE, 0, 2, None)["triton_seconds"] is None


@pytest.mark.usefixtures("few")
def test_the_command_writes_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ampere_matmul, "measure", _measured(""))
    monkeypatch.setattr(cublaslt, "count", lambda problems: [1] * len(problems))
    ampere_matmul.main(["--out", str(tmp_path), "--parts", "4096", "--top", "0"])
    assert (tmp_path / "ampere_matmul.json").exists()
    assert "of Triton's" in capsys.readouterr().out
    ampere_matmul.main(["--list", "--parts", "512", "--top", "0"])
    assert "512: " in capsys.readouterr().out
