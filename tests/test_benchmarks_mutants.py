"""Wrong kernels and terms are found by the benchmarks that launch them: arrays are NumPy's."""

from __future__ import annotations

import base64
import json
import math
import pickle
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import attention, attention_rejected, hopper_mutants
from benchmarks.attention import Case, Data, compare, reference
from benchmarks.hopper_sanitizer import CONTROLS, TOOLS, controls
from benchmarks.triton_attention import CONFIGURATIONS
from tests.async_mutants import mutants
from tests.fake_gpu import Card, FakeWorker
from tests.hopper_terms import term
from tests.sample import some
from tinygpu.codegen.emit import emit
from tinygpu.codegen.run.timing import Timing
from tinygpu.errors import IllegalScheduleError, TinyGpuError
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.program import Program

SMALL = Case("small", 2, 2, 2, 40, 56, 16, causal=True)


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


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        ({"errors": [0.5, 3.0]}, "wrong"),
        ({"errors": [0.5, 0.7]}, "right"),
        ({"failed": "it hangs: no answer in 12 s"}, "hangs"),
    ],
)
def test_what_a_faulty_program_does_is_said(card: Card, said: dict[str, Any], outcome: str) -> None:
    card.answering(hopper_mutants, said)
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


def test_a_rejected_term_becomes_code(monkeypatch: pytest.MonkeyPatch, card: Card) -> None:
    """``emit`` refuses what the judge rejects, and so it has to be told."""
    program = next(p for n, p in mutants(term("plain")) if n.startswith("drop arrive full"))
    with pytest.raises(IllegalScheduleError):
        emit(program, "sm_90a")

    def made(program: Program, **how: Any) -> str:
        return emit(program, "sm_90a", how["sizes"], unchecked=how["unchecked"])

    card.kernels(made)
    monkeypatch.setattr("tinygpu.codegen.run.validation.validate", lambda text, _, seed: len(text))
    problem = Problem.of(program.operation, m=64, n=64, k=64)
    packed = base64.b64encode(pickle.dumps((program, problem))).decode()
    answer = hopper_mutants._answer({"do": "run", "program": packed})
    assert all(errors > 100 for errors in answer["errors"])


def test_controls_are_rejected() -> None:
    """Those of the sanitizer, which are wrong on purpose."""
    found = list(controls())
    assert len(found) == len(CONTROLS)
    for tool, _, program, _, _ in found:
        assert tool in TOOLS
        assert not verdict(program).legal
