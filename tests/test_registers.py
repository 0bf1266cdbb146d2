from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.registers import (
    Case,
    case_of,
    confusion,
    draw,
    fitted,
    predicted_spill,
    program_of,
    quantities,
    register_limit,
    truth,
)
from tests.sample import SHARED, draws, some
from tinygpu.devices.device import load_device
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.search.time.cost import cost, features
from tinygpu.search.time.fitted import FITTED
from tinygpu.search.time.launch import Assembled
from tinygpu.search.time.register_quantities import KINDS, flying
from tinygpu.search.time.registers import WEIGHTS, register_estimate
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import matmul
from tinygpu.term.schedule import to_json

H200 = load_device("h200")
RESULTS = Path(__file__).parent.parent / "benchmarks" / "results" / "registers.json"


@cache
def cases() -> list[Case]:
    """Schedules that the fit has not seen; at a soak of the whole space."""
    return draw(11, 3, 150, SHARED)


DRAWN = st.deferred(lambda: st.sampled_from(cases()))


def columns(cases: list[Case]) -> list[list[Case]]:
    """The cases of one structure each, which one array term can hold."""
    structural = [n for n, c in Simt.decisions().items() if c.structural]
    groups: dict[tuple[object, ...], list[Case]] = {}
    for problem, schedule in cases:
        key = (problem, *(schedule[n] for n in structural))
        groups.setdefault(key, []).append((problem, schedule))
    return list(groups.values())


def test_a_space_at_once_is_each_of_it() -> None:
    """The estimate of an array term is the array of the estimates."""
    joined = 0
    for group in some(columns(cases()), 3):
        joined += len(group) > 1
        decisions: dict[str, Any] = {
            n: group[0][1][n] if c.structural else np.array([s[n] for _, s in group])
            for n, c in Simt.decisions().items()
        }
        program = Simt().program(group[0][0].operation, Chosen(decisions))
        each = [program_of(case) for case in group]
        many = np.broadcast_to(register_estimate(program), len(group))
        assert many.tolist() == pytest.approx([float(register_estimate(p)) for p in each])
    assert joined > draws(6, 20)


@given(DRAWN, st.sampled_from(Simt.decisions()["ctas_per_sm"].values))
def test_limit(case: Case, ctas: Any) -> None:
    """The limit is the largest multiple of 8, at most 255, with which all warps find room.

    Each of the four schedulers has a quarter of the registers and at least a quarter of the warps.
    """
    program = program_of((case[0], case[1].with_(ctas_per_sm=ctas)))
    limit = register_limit(program, H200)
    warps = -(-program.threads * ctas // 32 // 4)
    assert 32 * warps * limit <= H200.registers_per_sm // 4 or limit == 0
    assert limit == 255 or (limit % 8 == 0 and 32 * warps * (limit + 8) > 65536 // 4)


def test_a_limit_that_ptxas_confirms() -> None:
    """Ten warps leave one scheduler with three: 168 registers each, not 200 (ptxas: 168)."""
    program = ladder("vectorised", tile_m=32, ctas_per_sm=5)
    assert (program.threads, register_limit(program, H200)) == (64, 168)


def ladder(name: str, **changes: int | str) -> Any:
    return Simt().program(matmul(), Chosen({**LADDER[name], **changes}))


def test_what_is_kept() -> None:
    """Sums are kept; a tile that waits for the sums too, a fragment or a tile passed on is not."""
    assert quantities(ladder("vectorised"))["kept"] == 64
    assert quantities(ladder("warp-tiled"))["kept"] == 64
    ahead = quantities(ladder("multi-stage"))
    assert (ahead["kept"], ahead["ahead"], ahead["waiting"]) == (64 + 8 + 8, 2, 0)
    assert quantities(ladder("tuned"))["waiting"] == 16
    assert quantities(ladder("vectorised", accumulator="f64"))["kept"] == 128


def test_operands_of_the_multiply() -> None:
    """The narrow operand is the smaller fragment; the body has those of every unrolled step."""
    q = quantities(ladder("vectorised", thread_m=4, tile_m=64))
    assert (q["narrow"], q["wide"]) == (4, 8)
    assert sum(q[n] for n in q if n.startswith("body")) == 8 * 12


@pytest.mark.parametrize("name", LADDER)
def test_the_ladder_does_not_spill(name: str) -> None:
    """The known ladder of kernels runs without spills, and is predicted to."""
    program = ladder(name)
    assert not predicted_spill(program, H200)
    assert float(register_estimate(program)) >= 16


def test_confusion_counts() -> None:
    """Precision is of what was predicted, recall of what there was."""
    table = confusion([(True, True)] * 3 + [(True, False)] + [(False, True)] * 2 + [(False, False)])
    assert [table[k] for k in list(table)[:4]] == [3, 1, 2, 1]
    assert (table["precision"], table["recall"]) == (0.75, 0.6)


def test_unrolled_steps_count_whole() -> None:
    """Loads issued among a tile's steps split their loop; the steps are counted all the same."""
    for issue in (0, 1, 2):
        q = quantities(ladder("multi-stage", b_from="gmem", vector_b=1, issue=issue))
        direct = sum(v for n, v in q.items() if n.startswith("direct_") and n[7:] in PIECES)
        assert direct == 16 * 8
        assert sum(v for n, v in q.items() if n.startswith("products_")) == 16 * 64


PIECES = ("16", "64", "256", "more")


def test_reads_along_k_are_joined() -> None:
    """k-contiguous reads come 16 B at once where lines are aligned so, and never swizzled."""
    plain: dict[str, Any] = {"a_layout": "mk", "pad_a": 0, "vector_shared": 1, "vector_c": 1}
    assert quantities(ladder("vectorised", **plain))["merged"] == 3 * 8
    assert quantities(ladder("vectorised", **plain, swizzle_a=1))["merged"] == 0
    assert quantities(ladder("vectorised", **{**plain, "a_layout": "km"}))["merged"] == 0


def test_small_sample_against_ptxas() -> None:
    """On a few schedules that the fit has not seen, of all types, most spills are foreseen."""
    some_cases = cases()[:: draws(7, 4)]  # types alternate by five
    right = [
        predicted_spill(program_of(case), H200) == (truth(case)["spilled_bytes"] > 0)
        for case in some_cases
    ]
    assert np.mean(right) >= 0.75


def test_fit_finds_weights() -> None:
    """On rows that a known need made, the fit separates spills from fits."""
    rows = [
        {
            "case": row_case,
            "registers": min(need, limit),
            "spilled_bytes": 4 * max(need - limit, 0),
            "spills_at": need - 1,
            "fits_at": need,
        }
        for row_case, need, limit in map(_made, cases())
    ]
    weights = fitted(rows)
    assert list(weights) == list(WEIGHTS)
    errors = [
        float(register_estimate(program_of(case_of(r)), weights)) - r["fits_at"] for r in rows
    ]
    assert np.mean(np.abs(errors)) < 8


def _made(case: Case) -> tuple[Any, int, int]:
    program = program_of(case)
    need = int(20 + quantities(program)["kept"] + quantities(program)["narrow"])
    return json.loads(to_json(case[1], case[0])), need, register_limit(program, H200)


def test_recorded_benchmark() -> None:
    """The recorded table counts what its rows say, of the weights in use."""
    recorded = json.loads(RESULTS.read_text(encoding="utf-8"))
    rows = recorded["rows"]
    assert len(rows) == 500
    pairs = [(r["predicted"], r["spilled_bytes"] > 0) for r in rows]
    assert confusion(pairs).items() <= recorded["held out"].items()
    many = len(KINDS)  # a run before had weights of two more estimates behind them
    assert {n: tuple(w[:many]) for n, w in recorded["weights"].items()} == WEIGHTS
    assert recorded["held out"]["precision"] > 0.85
    assert recorded["held out"]["recall"] > 0.8


def test_rows_count_where_their_addressing_is_chosen() -> None:
    """Specialised code knows all strides; each way of addressing has weights of its own."""
    names = ("pointer", "i32", "i64")
    for name in names:
        for specialised in (0, 1):
            chosen = {**LADDER["tuned"], "addressing": name, "specialised": specialised}
            found = quantities(Simt().program(matmul(), Chosen(chosen)))
            counted = [other for other in names if found[f"{other}_rows"] > 0]
            assert counted == ([] if specialised else [name])


def test_loads_in_flight_need_registers() -> None:
    """Ptxas takes more where ctas_per_sm bounds them; what it took says how many loads fly.

    384x1536x1536 on an H200: 143 registers, 18 loads ahead, 55.8 us; with ctas_per_sm 1 71 and 4.
    """
    point = {
        **LADDER["tuned"], "tile_m": 16, "tile_n": 256, "tile_k": 64, "thread_m": 4, "thread_n": 8,
        "b_from": "gmem", "edges": "exact", "vector_a": 1,
    }  # fmt: skip
    sizes = {"m": 384, "n": 1536, "k": 1536}
    alone, two = (
        Simt().program(matmul(), Chosen({**point, "ctas_per_sm": count})) for count in (1, 2)
    )
    (few, held), (many, more) = flying(alone), flying(two)
    assert few == FITTED["loads_in_flight"]
    assert (many, more) == pytest.approx((20, 80))
    assert held < more
    assert features(two, sizes, H200).launch.resident() == 3
    assert features(alone, sizes, H200).launch.resident() == 65536 // (72 * 128) == 7
    by = {n: flying(two, registers=n)[0] for n in (64, 143, 255)}
    assert by[64] == few < 18 < by[143] < 25 < by[255]
    whole, spilled = (
        float(cost(two, sizes, H200, code=Assembled(143, n)).seconds) for n in (0, 160)
    )
    assert whole < spilled
