"""Landscapes of attention: problems that a seed drew; what is timed is right, by a fake GPU."""

from __future__ import annotations

import base64
import json
import math
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import attention_landscapes
from benchmarks.attention_drawn import problem
from benchmarks.attention_landscapes import COUNT, FILE, FLOPS, MOST, RANDOM, Arrays, problems
from benchmarks.oracle import decisions_of
from tests.fake_gpu import Card, FakeWorker
from tests.sample import some
from tinygpu.devices.device import load_device
from tinygpu.errors import LaunchError
from tinygpu.legality.laws import check_schedule
from tinygpu.machines import MACHINES
from tinygpu.term.schedule import Schedule

SMALL = {
    "dtype": "bf16", "mask": "causal",
    "sizes": {"l": 2, "h": 2, "g": 2, "m": 32, "n": 32, "d": 64, "e": 64},
}  # fmt: skip


class Held(np.ndarray[Any, Any]):
    """An array with CuPy's way to the host."""

    def get(self) -> Any:
        return np.array(self)


class Random:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def standard_normal(self, count: int, dtype: Any) -> Any:
        return self.rng.standard_normal(count, dtype).view(Held)


GPU = SimpleNamespace(
    random=SimpleNamespace(default_rng=Random),
    empty=lambda shape, dtype: np.empty(shape, dtype).view(Held),
    cuda=SimpleNamespace(Stream=lambda non_blocking: None),
)


def attended(inputs: Sequence[Any], scale: float) -> Any:
    """Return the output of all heads, as bits of bf16."""
    q, k, v = (attention_landscapes._f64(np.asarray(x)) for x in inputs)
    scores = scale * np.einsum("lhgmd,lhnd->lhgmn", q, k)
    scores = np.where(np.tri(*scores.shape[-2:]) > 0, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    out = np.einsum("lhgmn,lhne->lhgme", weights, v).astype(np.float32)
    return attention_landscapes._bf16(out)


class Right:
    """In the place of a kernel: right, or wrong as its code says."""

    def __init__(self, contract: str, code: bytes) -> None:
        self.code = code

    def __call__(self, *inputs: Any, out: Any, scale: float) -> None:
        if self.code == b"refused":
            raise LaunchError("it does not take this")
        out[...] = attended(inputs, scale)
        if self.code == b"nan":
            out[-1, -1, -1, -1, -1] = 0x7FC0
        if self.code == b"wrong":
            out += 8

    def prepare(self, *inputs: Any, out: Any, scale: float) -> Any:
        return lambda: self(*inputs, out=out, scale=scale)


class Alone:
    def __init__(self, stream: Any) -> None:
        self.count = 0

    def alone(self, replay: Any, seconds: float) -> Mapping[str, float]:
        self.count += 1
        return {"alone_seconds": self.count * 1e-3}


@pytest.fixture
def faked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_landscapes, "gpu", lambda: GPU)
    monkeypatch.setattr(attention_landscapes, "Function", Right)
    monkeypatch.setattr(attention_landscapes, "Bench", Alone)
    monkeypatch.setattr(attention_landscapes, "current_stream", nullcontext)
    monkeypatch.setattr(attention_landscapes, "captured", lambda turn, *_: turn(1))
    device = SimpleNamespace(l2_bytes=2**17)  # else thousands of sets of so small inputs
    monkeypatch.setattr(attention_landscapes, "load_device", lambda _: device)


def _packed(code: bytes) -> str:
    return base64.b64encode(pickle.dumps(("contract", code))).decode()


def test_a_seed_draws_problems_of_each_kind() -> None:
    assert problems(1) == problems(1) != problems(2)
    for words in problems(3):
        sizes = words["sizes"]
        each = 4 * sizes["h"] * sizes["g"] * sizes["m"] * sizes["n"] * sizes["d"]
        assert 512 <= sizes["n"] <= 8192
        assert 16 <= sizes["h"] * sizes["g"] <= 64
        assert sizes["l"] == 1 or sizes["l"] * each <= 2 * FLOPS
    assert len({(w["mask"], w["sizes"]["d"], w["sizes"]["g"] > 1) for w in problems(3)}) == COUNT


@pytest.mark.usefixtures("faked")
def test_inputs_are_normal_and_differ_from_set_to_set() -> None:
    arrays = Arrays(problem(SMALL))
    assert len(arrays.sets) > 1
    first, second = (attention_landscapes._f64(np.asarray(one[0])) for one in arrays.sets[:2])
    assert abs(float(first.std()) - 1) < 0.05
    assert not np.array_equal(first, second)


@pytest.mark.usefixtures("faked")
def test_what_is_wrong_has_no_times() -> None:
    """Two visits of what is right; a NaN anywhere and a value too far off are found."""
    kinds = (b"right", b"wrong", b"nan", b"refused", b"right")
    found = attention_landscapes.timed(SMALL, ["", *map(_packed, kinds)], 60.0)
    assert [second is None for second in found["first"]] == [True, False, True, True, True, False]
    times = [found[visit][i] for visit in ("first", "second") for i in (1, 5)]
    assert sorted(times) == [0.001, 0.002, 0.003, 0.004]
    said = dict(found["wrong"])
    assert sorted(said) == [2, 3, 4]
    assert said[4] == "it does not take this"
    late = attention_landscapes.timed(SMALL, [_packed(b"right")], -1.0)
    assert late["first"] == late["second"] == [None]


def test_a_problem_that_hangs_costs_itself_alone(
    card: Card, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its case says so; the next ones are timed; a kernel that is refused says why."""
    card.named("H100", "1")
    rows = {"decisions": ["x"], "schedules": [[1], [2]], "kinds": ["best"] * 2}
    cases = [{"words": SMALL, **rows}, {"words": SMALL, **rows}]
    drawn = tmp_path / "drawn.json"
    drawn.write_text(json.dumps({"drawn": {}, "cases": cases}))
    times = {"first": [1e-3, None], "second": [1e-3, None], "wrong": []}
    left: Iterator[dict[str, Any]] = iter([{"failed": "it hangs"}, times])

    class Told(FakeWorker):
        def ask(self, request: Mapping[str, Any], limit: float) -> dict[str, Any]:
            return next(left)

    monkeypatch.setattr(attention_landscapes, "Worker", Told)
    monkeypatch.setattr(attention_landscapes, "_built", _refuses_two)
    monkeypatch.setattr(attention_landscapes, "ProcessPoolExecutor", Here)
    attention_landscapes.main(["--file", str(drawn), "--out", str(tmp_path)])
    tree = json.loads((tmp_path / FILE.name).read_text())
    assert tree["provenance"]["device"] == "H100"
    hung, right = tree["cases"]
    assert hung["failed"] == "it hangs"
    assert "first" not in hung
    assert right["first"] == [1e-3, None]
    assert right["refused"] == [[1, "too wide"]]


def _refuses_two(job: tuple[Any, Mapping[str, Any]]) -> tuple[str, str]:
    return ("code", "") if job[1] == {"x": 1} else ("", "too wide")


class Here:
    """In the place of processes."""

    def __init__(self, count: int | None) -> None:
        pass

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def map(self, work: Any, jobs: Any, **_: Any) -> Any:
        return map(work, jobs)


def test_what_was_drawn_is_of_these_problems_and_keeps_the_laws() -> None:
    """No schedule twice, a third at random, each with a prediction; numbers break no law."""
    cases = json.loads(FILE.read_text())["cases"]
    assert [case["words"] for case in cases] == problems(attention_landscapes.SEED)
    machine = MACHINES[attention_landscapes.MACHINE]
    for case in cases:
        every = [Schedule(machine.name, tuple(one.items())) for one in decisions_of(case)]
        assert 60 <= len(every) == len(set(every)) <= MOST
        assert len(case["kinds"]) == len(case["predicted"]) == len(every)
        assert case["kinds"].count("random") >= RANDOM - 4 >= len(every) / 3
        assert all(0 < second < math.inf for second in case["predicted"])
    case = some(cases, 1)[0]
    for one in decisions_of(case)[::30]:
        known = {name: one[name] for name in machine.decisions() if name in one}
        said = check_schedule(
            Schedule.of(machine, known), machine, problem(case["words"]), load_device("h100")
        )
        assert {violation.law for violation in said} <= {"concurrency"}
