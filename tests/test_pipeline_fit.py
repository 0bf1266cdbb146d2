"""The time of programs with barriers against what was measured, and what its terms stand for."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.fit_hopper import Bank, figures, load_bank, numbers, predicted, table, terms
from tinygpu.devices.device import load_device
from tinygpu.errors import StoreError
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.search.time.cost import cost
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import matmul
from tinygpu.term.program import Program

H200 = load_device("h200")


def term(name: str, **changes: Any) -> Program:
    return Hopper().program(matmul("bf16", layout="nt"), Chosen({**STARTS[name], **changes}))


def seconds(program: Program, m: int, n: int, k: int, **device: Any) -> float:
    sizes = {"m": m, "n": n, "k": k}
    return float(cost(program, sizes, H200.with_values(**device)).seconds)


@cache
def bank() -> Bank:
    return load_bank()


@cache
def model() -> Any:
    """Predict every schedule of the bank on every fourth shape: logarithms."""
    every = np.ones(len(bank().rows), bool)
    return predicted(terms(bank(), every), bank().shapes[::4], len(every), H200)


def test_the_bank_is_whole() -> None:
    """Each row is a schedule of the machine; each shape has hundreds of times, held out or not."""
    rows = bank().rows
    assert len(set(rows)) == len(rows) == 865
    choices = Hopper.decisions()
    assert set(bank().decisions) == set(choices)
    for row in rows[::50]:
        chosen = Chosen(dict(zip(bank().decisions, row, strict=True)))
        assert all(r.holds for r in Hopper().requires(matmul("bf16", layout="nt"), chosen))
    assert np.isfinite(bank().log_seconds).sum(axis=1).min() > 400
    assert 0.25 < bank().schedules_held_out.mean() < 0.42
    assert len(bank().shapes_held_out) == 5


def test_the_model_ranks_what_was_measured() -> None:
    """The fastest measured is among the model's first, and pairs are mostly in order."""
    found = [
        figures(measured, here)
        for measured, here in zip(bank().log_seconds[::4], model(), strict=True)
    ]
    assert float(np.mean([f["tau"] for f in found])) > 0.7
    assert float(np.mean([f["median"] for f in found])) < 0.1
    tops = {n: math.exp(np.mean([math.log(f[f"top {n}"]) for f in found])) for n in (1, 16)}
    assert tops[1] < 1.08
    assert tops[16] < 1.02


def test_heat_brings_bursts_to_what_is_sustained() -> None:
    """Bursts as the bank has them are nearer to sustained times than their own seconds are."""
    bursts, sustained = bank().log_runs[1], bank().log_runs[2]
    apart = (bursts - sustained)[np.isfinite(bursts - sustained)]
    assert len(apart) > 300
    assert float(np.sqrt((apart**2).mean())) < 0.05


def test_numbers_are_given_back() -> None:
    """What a fit tries is in force within, and gone after."""
    before = seconds(term("cluster"), 512, 512, 512)
    with numbers({"prologue": 50_000.0, "tensor_clock_hz": 1e9}) as device:
        assert device.tensor_clock_hz == 1e9
        assert seconds(term("cluster"), 512, 512, 512) > 2 * before
    assert seconds(term("cluster"), 512, 512, 512) == before


@settings(max_examples=30, deadline=None)
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
    assert 1 <= mixed["top 16"] <= mixed["top 8"] <= mixed["top 1"]


def test_the_table_keeps_splits_apart() -> None:
    """What is held out is in no row of what is not; a perfect model is perfect in all."""
    rows = table(bank(), bank().log_seconds)
    splits = {row["held out"] for row in rows}
    assert splits == {"nothing", "schedules", "shape", "a run by another"}
    held = {"x".join(map(str, bank().shapes[i])) for i in bank().shapes_held_out}
    assert {r["shape"] for r in rows if r["held out"] == "shape"} == held | {"all"}
    assert not held & {r["shape"] for r in rows if r["held out"] in ("nothing", "schedules")}
    for row in rows:
        if row["held out"] != "a run by another":
            assert (row["median"], row["top 1"]) == (0, 1)


def test_odd_banks_are_refused(tmp_path: Path) -> None:
    """A missing or cut file is an error that says which."""
    with pytest.raises(StoreError, match="hopper_bank"):
        load_bank(tmp_path)
    (tmp_path / "hopper_bank.json").write_text('{"shapes": [')
    with pytest.raises(StoreError, match="hopper_bank"):
        load_bank(tmp_path)


def test_rows_outside_cost_time() -> None:
    """Those that are loaded as zeros, as lines along k are; others are left out."""
    few, full = (seconds(term("ring", tile_n=64, store_n=64), m, 4096, 4096) for m in (16, 128))
    assert few == pytest.approx(full, rel=0.1)
    turned = [seconds(term("swapped"), m, 4096, 4096) for m in (8, 16)]
    assert turned[0] == pytest.approx(turned[1], rel=0.03)


def test_the_power_cap_slows_all_cycles() -> None:
    """Large products wait for the cap, in part; small ones and those that wait for DRAM do not."""
    low = 0.8 * H200.tensor_clock_hz
    big, few = (8192, 8192, 8192), (16, 4096, 4096)
    slower = seconds(term("cluster"), *big, tensor_clock_hz=low) / seconds(term("cluster"), *big)
    assert slower == pytest.approx(1 / 0.8, rel=0.02)
    turned = term("swapped")
    assert seconds(turned, *few, tensor_clock_hz=low) == pytest.approx(seconds(turned, *few))


def test_ctas_that_start_apart_share_less() -> None:
    """An early start gains where nobody shares the weights, and loses where two CTAs do."""
    alone = [seconds(term("swapped", early=e), 16, 4096, 14336) for e in (0, 1)]
    assert alone[1] < alone[0]
    shared = [seconds(term("swapped", early=e), 32, 4096, 14336) for e in (0, 1)]
    assert shared[1] > shared[0]
