"""The attention benchmark and its fuzz, as far as they need no GPU: arrays are NumPy's."""

from __future__ import annotations

import base64
import json
import math
import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from benchmarks import attention, attention_drawn, attention_rejected, hopper_mutants
from benchmarks.attention import CASES, Case, Data, compare, reference, row_of, summary, visible
from benchmarks.peers import load_rows
from benchmarks.triton_attention import CONFIGURATIONS, Configuration
from tests.async_mutants import mutants
from tests.hopper_terms import term
from tests.sample import some
from tinygpu.codegen.emit import emit
from tinygpu.codegen.run.timing import Timing
from tinygpu.errors import IllegalScheduleError, LaunchError, OperationError, TinyGpuError
from tinygpu.machines import MACHINES, hopper
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.program import Program

SMALL = Case("small", 2, 2, 2, 40, 56, 16, causal=True)
NOTHING: Mapping[str, Any] = {"clock_mhz": 1500, "capped": False, "spread": 0.01, "rounds": 3}


def rounded(x: Any) -> Any:
    """The values of bf16, to nearest."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return bits.view(np.float32)


def data(one: Case, seed: int = 0) -> Data:
    random = np.random.default_rng(seed)
    heads = one.h * one.g
    q = rounded(random.standard_normal((one.b, heads, one.m, one.d)))
    k, v = (rounded(random.standard_normal((one.b, one.h, one.n, one.d))) for _ in "kv")
    return Data(q, k, v, np.full_like(q, np.nan))


def attended(one: Case, x: Data, *, off: int = 0, scale: float = 1.0) -> Any:
    """Attention as a kernel does it: p in bf16, the rest in fp32; with a mask that is off."""
    q, k, v = x.q, x.k.repeat(one.g, 1), x.v.repeat(one.g, 1)
    s = q @ k.swapaxes(2, 3) / np.float32(math.sqrt(one.d))
    last = np.arange(one.m)[:, None] + one.n - one.m + off
    s = np.where(np.arange(one.n) <= last, s, -np.inf) if one.causal else s
    p = np.exp(s - s.max(3, keepdims=True))
    return rounded(scale * (rounded(p) @ v) / p.sum(3, keepdims=True))


def written(make: Callable[[Data], Any]) -> attention.Candidate:
    def candidate(x: Data) -> attention.Enqueue:
        def run() -> None:
            x.out[...] = make(x)

        return run

    return candidate


def clocked(seconds: Mapping[str, float]) -> Callable[..., dict[str, Timing]]:
    """In the place of ``time_interleaved``: each candidate takes what is said."""

    def time(candidates: Mapping[str, Any], *, around: Any, **how: Any) -> dict[str, Timing]:
        assert how["least_launches"] == 2
        for name, candidate in candidates.items():
            with around(name):
                candidate(0)
                candidate(1)
        return {name: Timing(seconds[name], 0.01, how["rounds"], 1500) for name in candidates}

    return time


def test_visible_pairs_are_counted() -> None:
    for m, n in ((5, 5), (3, 7), (7, 3), (1, 9)):
        wanted = sum(j <= i + n - m for i in range(m) for j in range(n))
        assert visible(m, n, causal=True) == wanted
        assert visible(m, n, causal=False) == m * n


def test_cases_are_those_of_the_marks() -> None:
    assert len({one.part for one in CASES}) == len(CASES)
    for group in ("full", "causal"):
        mine = [one for one in CASES if one.group == group]
        assert [one.m for one in mine] == [512, 1024, 2048, 4096, 8192, 16384]
        assert {(one.b * one.m, one.h * one.g, one.d) for one in mine} == {(32768, 16, 128)}
    assert {(one.h, one.h * one.g) for one in CASES if one.group == "llama"} == {(8, 64)}
    assert any(one.m % 8 and one.m != one.n for one in CASES)
    assert CASES[0].flops == 4 * 64 * 16 * 512 * 512 * 128


@pytest.mark.parametrize("causal", [False, True])
def test_the_reference_allows_rounding_and_no_more(causal: bool) -> None:
    one = replace(SMALL, causal=causal, g=1)
    x = data(one)
    right = attended(one, x)
    rows = np.arange(one.m)
    shown = rows + one.n - one.m + 1 if causal else np.full(one.m, one.n)
    wanted, allowed = reference(x.q[0, 0], x.k[0, 0], x.v[0, 0], shown)

    def error(found: Any) -> float:
        return float((np.abs(found[0, 0] - wanted) / allowed).max())

    assert error(right) <= 1
    assert error(attended(one, x, scale=1.1)) > 1
    if causal:
        assert error(attended(one, x, off=1)) > 1
        assert error(attended(one, x, off=-1)) > 1


def test_a_query_without_keys_gives_zero() -> None:
    x = data(SMALL)
    wanted, allowed = reference(x.q[0, 0], x.k[0, 0], x.v[0, 0], np.zeros(SMALL.m, np.int64))
    assert not wanted.any()
    assert (allowed > 0).all()


def test_candidates_are_checked_before_and_while_they_are_timed() -> None:
    calls = [0]

    def later_wrong(x: Data) -> Any:
        calls[0] += 1
        return attended(SMALL, x) if calls[0] == 1 else attended(SMALL, x, off=1)

    def absent(_: Data) -> attention.Enqueue:
        raise ModuleNotFoundError("No module named 'fa3_fwd_interface'")

    def silent(_: Data) -> attention.Enqueue:
        return lambda: None

    first, second = (f"triton {name}" for name in CONFIGURATIONS[:2])
    right = written(partial(attended, SMALL))
    candidates: dict[str, attention.Candidate] = {
        "point plain": right,
        "point wrong": written(partial(attended, SMALL, off=1)),
        "point later": written(later_wrong),
        "point silent": silent,
        "cudnn": lambda x: partial(attended, SMALL, x),  # it returns an output of its own
        "fa3": absent,
        first: right,
        second: right,
    }
    seconds = {"point plain": 2e-3, "point later": 1e-3, "cudnn": 3e-3, first: 5e-3, second: 4e-3}
    sets = [data(SMALL, seed) for seed in (0, 1)]
    found = compare(SMALL, candidates, sets, clocked(seconds), lambda: None)
    assert {*found["timings"]} == {"point plain", "cudnn", second}
    assert found["timings"]["cudnn"]["error"] <= 1
    assert "wrong" in found["failures"]["point wrong"]
    assert "wrong" in found["failures"]["point later"]
    assert "inf times" in found["failures"]["point silent"]
    assert "fa3_fwd_interface" in found["failures"]["fa3"]


def timed(seconds: float) -> dict[str, Any]:
    return {**NOTHING, "seconds": seconds, "error": 0.3}


def answer(**seconds: float) -> dict[str, Any]:
    names = {"tm": "triton t64x64_s3_w4", "fast": "point fast", "slow": "point slow"}
    timings = {names.get(name, name): timed(s) for name, s in seconds.items()}
    return {"timings": timings, "failures": {"fa3": "it is not installed", "point bad": "hangs"}}


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operation that is there, with the sizes of the other, in attention's place."""
    problem = Problem.of(matmul("bf16", layout="nt"), m=256, n=256, k=64)
    monkeypatch.setattr(attention, "problem_of", lambda _: problem)


@pytest.mark.usefixtures("model")
def test_a_row_is_the_fastest_point_beside_the_fastest_peer() -> None:
    programs = {name: term("plain") for name in ("fast", "slow", "bad")}
    times = {"fast": 2e-6, "slow": 3e-6, "cudnn": 1.8e-6, "fa2": 4e-6, "tm": 1.9e-6}
    row = row_of(SMALL, answer(**times), programs)
    assert row["schedule"] == {"point": "fast"}
    assert row["ratio"] == pytest.approx(0.9)
    assert row["tflops"] == pytest.approx(SMALL.flops / 2e-6 * 1e-12)
    assert row["points"] == {"fast": 2e-6, "slow": 3e-6, "bad": "hangs"}
    assert (row["fa3_seconds"], row["fa3_reason"]) == (None, "it is not installed")
    assert (row["fa2_seconds"], row["fa2_reason"]) == (4e-6, "")
    assert (row["triton"], row["triton_seconds"]) == ("t64x64_s3_w4", 1.9e-6)
    assert row["predicted_seconds"] > 0
    alone = row_of(SMALL, answer(cudnn=1.8e-6), {})
    assert (alone["seconds"], alone["ratio"], alone["points"]) == (None, None, {})
    with pytest.raises(LaunchError, match="it hangs"):
        row_of(SMALL, {"failed": "it hangs: no answer"}, programs)
    told = summary([row, alone])["small"]
    assert told["best"]["worst"] == 0.9
    assert told["triton"]["geometric mean"] == 0.95
    assert "fa3" not in told


class FakeWorker:
    """It answers as it is told, case by case."""

    answers: ClassVar[tuple[dict[str, Any], ...]] = ()
    asked: ClassVar[list[Any]] = []

    def __init__(self, _: Any) -> None:
        self.left = iter(self.answers)

    def __enter__(self) -> FakeWorker:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, request: dict[str, Any], _: float) -> dict[str, Any]:
        self.asked.append(request)
        return next(self.left)


@pytest.mark.usefixtures("model")
def test_results_are_written_and_a_case_that_hangs_costs_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(attention, "Worker", FakeWorker)
    monkeypatch.setattr(attention, "provenance", lambda command: {"command": command})
    monkeypatch.setattr(attention, "points", lambda *_: {"fast": term("plain")})
    first, second = (one.part for one in CASES[:2])
    FakeWorker.answers, FakeWorker.asked = (
        ({"failed": "it hangs"}, answer(fast=2e-6, cudnn=1e-6)),
        [],
    )
    with pytest.raises(SystemExit, match="1 of 2 parts failed"):
        attention.main(["--out", str(tmp_path), "--parts", first, second])
    (row,) = load_rows("attention", tmp_path)
    assert (row["case"], row["ratio"]) == (second, 0.5)
    FakeWorker.answers, FakeWorker.asked = (answer(fast=4e-6, cudnn=1e-6),), []
    attention.main(["--out", str(tmp_path), "--missing", "--parts", first, second])
    assert [Case(**request["case"]).part for request in FakeWorker.asked] == [first]
    tree = json.loads((tmp_path / "attention.json").read_text())
    assert {row["case"] for row in tree["rows"]} == {first, second}
    assert tree["summary"]["full"]["cudnn"]["cases"] == 2


def test_named_points_that_are_legal_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """``points`` is the one seam to the machine: hopper stands in its place."""
    broken = {**hopper.STARTS["ring"], "tile_m": 128, "tile_n": 256, "consumers": 1}
    starts = {"plain": hopper.STARTS["plain"], "broken": broken}
    there = dict(MACHINES) | {"attention": hopper.Hopper()}
    monkeypatch.setattr(attention, "MACHINES", there)
    module = SimpleNamespace(STARTS=starts)
    monkeypatch.setattr(attention, "importlib", SimpleNamespace(import_module=lambda _: module))
    problem = Problem.of(matmul("bf16", layout="nt"), m=4096, n=4096, k=4096)
    assert [*attention.points(problem)] == ["plain"]
    del starts["plain"]
    with pytest.raises(LaunchError, match="no named point is legal; broken: "):
        attention.points(problem)


def test_points_of_two_machines_have_names_of_their_own() -> None:
    of = attention.problem_of(Case("both", 1, 2, 2, 256, 300, 128, causal=True))
    names = [*attention.points(of, ("attention", "ampere_attention"))]
    assert {"fa2", "fa3", "ampere_attention fa2", "ampere_attention few keys"} <= {*names}
    assert len({*names}) == len(names)


def test_configurations_of_triton_are_read() -> None:
    assert len({*CONFIGURATIONS}) == 12
    assert all(min(Configuration.of(n).block_m, Configuration.of(n).warps) for n in CONFIGURATIONS)
    with pytest.raises(OperationError, match="no such form"):
        Configuration.of("t128")


def test_problems_of_the_fuzz_are_of_every_kind() -> None:
    words = [attention_drawn.words_of(n, np.random.default_rng(n)) for n in range(50)]
    assert {w["mask"] for w in words} == {"none", "causal"}
    assert {w["dtype"] for w in words} == {"bf16", "f16"}
    sizes = [w["sizes"] for w in words]
    assert {(s["h"], s["g"]) for s in sizes} == {*attention_drawn.HEADS}
    assert {s["d"] for s in sizes} == {64, 128}
    assert any(s["m"] == 1 for s in sizes)
    assert any(s["n"] < 9 for s in sizes)
    assert any(s["m"] > s["n"] for s in sizes)
    kinds = {(w["mask"], w["dtype"], w["sizes"]["d"]) for w in words}
    assert len(kinds) == 8


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ({"errors": [0.5, 3.0]}, "wrong"),
        ({"errors": [0.5, 0.7]}, "right"),
        ({"failed": "it hangs: no answer in 12 s"}, "hangs"),
    ],
)
def test_what_a_faulty_program_does_is_said(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, Any], outcome: str
) -> None:
    monkeypatch.setattr(hopper_mutants, "Worker", FakeWorker)
    FakeWorker.answers = (said,)
    problem = Problem.of(matmul("bf16", layout="nt"), m=64, n=64, k=64)
    assert hopper_mutants.outcome_of(term("plain"), problem) == (outcome, said.get("errors", []))


@pytest.mark.parametrize("one", some(attention_rejected.CHOSEN, 3), ids=lambda one: one[1])
def test_chosen_mutants_are_rejected(
    one: tuple[str, str, str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention_rejected, "assembled", lambda *_, unchecked: f"{unchecked}")
    row = attention_rejected.written(*one)
    assert row["case"].startswith(f"{one[0]}: {one[1]}")
    assert row["verdict"].startswith("illegal: ")
    assert row["code"] == "True"


def test_what_is_no_mutant_or_legal_is_not_written() -> None:
    with pytest.raises(TinyGpuError, match="fa3 has none"):
        attention_rejected.written("fa3", "drop wait x_full@", "hangs", "")
    with pytest.raises(TinyGpuError, match="it is legal, not illegal"):
        attention_rejected.written("fa3", "double wait k_full@", "hangs", "")


RIGHT: Mapping[str, Any] = {"ratios": [0.3, 0.4]}
MUTANT = {"case": "a", "expected": "hangs", "code": "1"}


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ({"failed": "it hangs: no answer in 8 s"}, "hangs"),
        ({"failed": "CUDADriverError: CUDA_ERROR_LAUNCH_FAILED"}, "faults"),
        ({"ratios": [0.3, math.inf]}, "wrong"),
        (RIGHT, "right"),
    ],
)
def test_what_a_rejected_mutant_does_is_written_at_once(
    said: dict[str, Any], outcome: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The second has no code, the third no process in which the unchanged kernel is right."""
    told: list[tuple[Mapping[str, Any], ...]] = [
        (RIGHT, said), (RIGHT,), ({"failed": "no CUDA device"},)
    ]  # fmt: skip
    answers = iter(told)

    class Told(FakeWorker):
        def __init__(self, _: Any) -> None:
            self.left = iter([dict(one) for one in next(answers)])

    monkeypatch.setattr(attention_rejected, "Worker", Told)
    monkeypatch.setattr(attention_rejected, "_STARTING", 1)
    monkeypatch.setattr(attention_rejected, "provenance", lambda command: {"command": command})
    several = [MUTANT, {**MUTANT, "case": "b", "code": ""}, {**MUTANT, "case": "c"}]
    (tmp_path / "made.json").write_text(json.dumps({"right": "0", "mutants": several}))
    with pytest.raises(TinyGpuError, match=r"before c: .*no CUDA device"):
        attention_rejected.main([str(tmp_path / "made.json"), "--out", str(tmp_path)])
    tree = json.loads((tmp_path / "attention_rejected.json").read_text())
    assert [row["outcome"] for row in tree["mutants"]] == [outcome, "not assembled"]
    assert tree["summary"]["as_expected"] == (outcome == "hangs")
    assert tree["summary"]["not_seen"] == (["a"] if outcome == "right" else [])


def test_a_rejected_term_becomes_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """``emit`` refuses what the judge rejects, and so it has to be told."""
    program = next(p for n, p in mutants(term("plain")) if n.startswith("drop arrive full"))
    with pytest.raises(IllegalScheduleError):
        emit(program, "sm_90a")

    def made(program: Program, **how: Any) -> str:
        return emit(program, "sm_90a", how["sizes"], unchecked=how["unchecked"])

    monkeypatch.setattr("tinygpu.codegen.run.launch.Kernel", made)
    monkeypatch.setattr("tinygpu.codegen.run.validation.validate", lambda text, _, seed: len(text))
    problem = Problem.of(program.operation, m=64, n=64, k=64)
    packed = base64.b64encode(pickle.dumps((program, problem))).decode()
    answer = hopper_mutants._answer({"do": "run", "program": packed})
    assert all(errors > 100 for errors in answer["errors"])
