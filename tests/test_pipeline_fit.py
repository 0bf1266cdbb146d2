"""The time of programs with barriers against what was measured, and what its terms stand for."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import fit_hopper
from benchmarks.fit_hopper import CARDS, figures, load_bank, numbers, predicted, terms
from benchmarks.oracle import FITTING, path_of
from benchmarks.peers import FOLDER, load_rows
from tests.sample import draws
from tinygpu.devices.device import load_device
from tinygpu.errors import StoreError
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.search.time.cost import cost
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import matmul
from tinygpu.term.program import Program
from tinygpu.term.schedule import Schedule

H200 = load_device("h200")


def term(name: str, **changes: Any) -> Program:
    return Hopper().program(matmul("bf16", layout="nt"), Chosen({**STARTS[name], **changes}))


def seconds(program: Program, m: int, n: int, k: int, **device: Any) -> float:
    sizes = {"m": m, "n": n, "k": k}
    return float(cost(program, sizes, H200.with_values(**device)).seconds)


@pytest.mark.parametrize("card", CARDS)
def test_the_bank_is_whole(card: str) -> None:
    """Each row is a schedule of the machine; nearly all have times; what is held out is apart."""
    fitting, held = (load_bank(card, held_out=held) for held in (False, True))
    assert len(fitting) > 20
    assert len(held) > 15
    assert not {(b.shape, b.dtype) for b in fitting} & {(b.shape, b.dtype) for b in held}
    choices = Hopper.decisions()
    for bank in fitting[::5]:
        assert set(bank.decisions) == set(choices)
        assert np.isfinite(bank.log_seconds).mean() > 0.9
        for row in bank.rows[::7]:
            chosen = Chosen(dict(zip(bank.decisions, row, strict=True)))
            operation = matmul(bank.dtype, layout="nt")
            assert all(r.holds for r in Hopper().requires(operation, chosen))


@pytest.mark.parametrize("card", CARDS)
def test_the_model_is_right_on_both_cards(card: str) -> None:
    """Of some held-out cases: the error, and how much slower the model's first choice is."""
    device = load_device(card)
    found = [
        figures(bank.log_seconds, predicted(terms(bank), bank, device))
        for bank in load_bank(card, held_out=True)[::5]
    ]
    assert float(np.mean([f["tau"] for f in found])) > 0.6
    assert float(np.mean([f["median"] for f in found])) < 0.07
    tops = {n: math.exp(np.mean([math.log(f[f"top {n}"]) for f in found])) for n in (1, 8)}
    assert tops[1] < 1.08
    assert tops[8] < 1.02


def test_numbers_are_given_back() -> None:
    """What a fit tries is in force within, and gone after."""
    before = seconds(term("cluster"), 512, 512, 512)
    with numbers({"prologue": 50_000.0}):
        assert seconds(term("cluster"), 512, 512, 512) > 2 * before
    assert seconds(term("cluster"), 512, 512, 512) == before


@settings(max_examples=draws(12, 30), deadline=None)
@given(st.lists(st.integers(-900, 0), min_size=20, max_size=40, unique=True), st.integers(0, 99))
def test_figures(measured: list[int], seed: int) -> None:
    """A model that is right has no error and no regret, a shifted one the same order."""
    times = np.array(measured) / 128
    right = figures(times, times)
    assert (right["median"], right["tau"], right["top 1"]) == (0, 1, 1)
    off = figures(times, times + 0.25)
    assert off["median"] == pytest.approx(0.25)
    assert (off["tau"], off["top 1"]) == (1, 1)
    worst = figures(times, -times)
    assert worst["tau"] == -1
    assert worst["top 1"] == pytest.approx(math.exp(times.max() - times.min()))
    any_order = np.random.default_rng(seed).permutation(times)
    mixed = figures(times, any_order)
    assert 1 <= mixed["top 8"] <= mixed["top 1"]


def test_odd_banks_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing or cut file is an error that says which."""
    monkeypatch.setattr(fit_hopper, "FOLDER", tmp_path / "h200")
    path = path_of(FITTING[0], tmp_path / "other" / "oracle")
    with pytest.raises(StoreError, match=path.stem):
        load_bank("other", held_out=False)
    path.parent.mkdir(parents=True)
    path.write_text('{"case": [')
    with pytest.raises(StoreError, match=path.stem):
        load_bank("other", held_out=False)


def test_rows_outside_cost_time() -> None:
    """Those that are loaded as zeros, as lines along k are; others are left out."""
    few, full = (seconds(term("ring", tile_n=64, store_n=64), m, 4096, 4096) for m in (16, 64))
    assert few == pytest.approx(full, rel=0.1)
    turned = [seconds(term("swapped"), m, 4096, 4096) for m in (8, 16)]
    assert turned[0] == pytest.approx(turned[1], rel=0.03)


def test_the_power_cap_slows_all_cycles() -> None:
    """Large products wait for the cap, in part; small ones and those that wait for DRAM hardly."""
    low, lower = (share * H200.tensor_clock_hz for share in (0.9, 0.8))
    big, few = (8192, 8192, 8192), (16, 4096, 4096)
    slower = seconds(term("cluster"), *big, tensor_clock_hz=lower) / seconds(term("cluster"), *big)
    assert 1.1 < slower < 1 / 0.8  # not by all: what DRAM and L2 send takes of the cap, too
    turned = term("swapped")
    assert seconds(turned, *few, tensor_clock_hz=low) < 1.01 * seconds(turned, *few)


def test_a_cluster_that_multicasts_has_the_higher_clock() -> None:
    """At equal cycles it needs less energy than a schedule whose CTAs ask L2 for all they need."""
    sizes = dict.fromkeys("mnk", 8192)
    pair, alone = term("cluster"), term("cluster", cluster_m=1, cluster_n=1)
    energy = [float(cost(one, sizes, H200).parts["power"]) for one in (pair, alone)]
    assert energy[0] < 0.99 * energy[1]


def test_ctas_that_start_apart_share_less() -> None:
    """An early start gains where nobody shares the weights, and loses where two CTAs do."""
    alone = [seconds(term("swapped", early=e), 16, 4096, 14336) for e in (0, 1)]
    assert alone[1] < alone[0]
    shared = [seconds(term("swapped", early=e), 32, 4096, 14336) for e in (0, 1)]
    assert shared[1] > shared[0]


def test_the_model_meets_types_that_it_was_not_fitted_to() -> None:
    """Of fp16 and fp8, whose products take half as long: within 15 % of the times measured."""
    rows = [r for r in load_rows("hopper_matmul", FOLDER) if r["group"] in ("f16", "e4m3")]
    assert len(rows) == 12
    for row in rows:
        operation = matmul(row["group"], layout="nt")
        values = {"cluster_k": 1, **row["schedule"]}
        program = Schedule.of(Hopper(), values).program(Hopper(), operation)
        sizes = {axis: row[axis] for axis in "mnk"}
        predicted = float(cost(program, sizes, H200).seconds)
        assert predicted == pytest.approx(row["seconds"], rel=0.15), row["case"]
