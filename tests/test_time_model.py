"""The oracle and the table of how far the time model is right on it."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import fit_hopper, time_model
from benchmarks.attention import problem_of
from benchmarks.attention_cycles import CASES as COUNTED
from benchmarks.attention_cycles import line_of, measured
from benchmarks.oracle import CASES, COLUMNS, FITTING, HELD_OUT, decisions_of, still
from benchmarks.oracle import problem_of as problem_at
from benchmarks.peers import FOLDER
from benchmarks.trust import COUNTS, at_random
from tests.sample import draws
from tinygpu.devices.device import load_device
from tinygpu.machines import MACHINES
from tinygpu.search.time.breakdown import Breakdown
from tinygpu.search.time.cost import OF_ARITHMETIC, OF_TILES, cost
from tinygpu.search.time.fitted import FITTED, INTERVALS
from tinygpu.term.schedule import Schedule

TABLE = FOLDER / "time_model.json"
Times = st.lists(st.integers(1, 999), min_size=8, max_size=11, unique=True)


def tree(first: list[float], second: list[float], best: int = 2) -> dict[str, Any]:
    case = ["hopper", "bf16", "nt", [64, 4096, 4096]]
    return {"case": case, "best": best, "first": first, "second": second}


@settings(max_examples=draws(16, 40), deadline=None)
@given(Times, st.integers(1, 4))
def test_random_choice_is_the_mean_of_all_choices(times: list[int], count: int) -> None:
    """What is expected of a draw without putting back is the mean over all draws."""
    least = [min(some) for some in itertools.combinations(times, count)]
    found = at_random(np.array(times, float), count)
    assert found == pytest.approx(sum(least) / len(least))


@settings(max_examples=draws(16, 40), deadline=None)
@given(Times, st.randoms())
def test_a_row_knows_right_from_wrong(times: list[int], random: Any) -> None:
    """A model that is right has no regret, one that is upside down the most, any in between."""
    first = [t * 1e-6 for t in times]
    right = time_model.row_of(tree(first, first, best=0), np.array(first))
    assert [right[f"regret_at_{n}"] for n in COUNTS] == [0] * 5
    assert (right["kendall_tau"], right["aa_noise"], right["median_abs_error"]) == (1, 0, 0)
    worst = time_model.row_of(tree(first, first, best=0), -np.array(first) + 1)
    assert worst["kendall_tau"] == -1
    assert worst["regret_at_1"] == pytest.approx(max(times) / min(times) - 1, rel=1e-3)
    shuffled = random.sample(first, len(first))
    row = time_model.row_of(tree(first, shuffled), np.array(first))
    regrets = [row[f"regret_at_{n}"] for n in COUNTS]
    assert regrets == sorted(regrets, reverse=True)
    assert regrets[-1] == 0
    assert row["aa_noise"] == pytest.approx(
        shuffled[int(np.argmin(first))] / min(shuffled) - 1, rel=1e-3
    )


def test_what_was_not_timed_does_not_count() -> None:
    """A schedule that does not take the shape is in no figure, whatever is predicted for it."""
    some: list[Any] = [3e-6, None, 1e-6, 2e-6]
    row = time_model.row_of(tree(some, some, best=1), np.array([3.0, 0.1, 1.0, 2.0]) * 1e-6)
    assert (row["schedules"], row["regret_at_1"], row["kendall_tau"]) == (3, 0, None)


def test_what_is_held_out_is_fitted_nowhere() -> None:
    """No number of the model is chosen on a run of these shapes."""
    assert not set(HELD_OUT) & set(FITTING)
    fitted = {b.shape for c in fit_hopper.CARDS for b in fit_hopper.load_bank(c, held_out=False)}
    assert not fitted & {shape for machine, *_, shape in HELD_OUT if machine == "hopper"}
    runs = json.loads((FOLDER / "fit_runs.json").read_text())["rows"]
    fitted = {(row["m"], row["n"], row["k"]) for row in runs}
    assert not fitted & {shape for machine, *_, shape in HELD_OUT if machine == "simt"}
    groups = [row["group"] for row in json.loads(TABLE.read_text())["rows"]]
    assert groups == ["fitting"] * len(FITTING) + ["held_out"] * len(HELD_OUT)


def test_the_oracle_is_whole() -> None:
    """Each case has times of nearly all its schedules, each of which decides what there is."""
    trees = time_model.load()
    assert len(trees) == len(CASES) == len({json.dumps(t["case"]) for t in trees})
    for one in trees:
        rows = [tuple(row) for row in one["schedules"]]
        assert set(one["decisions"]) == set(MACHINES[one["case"][0]].decisions())
        assert all(len(one[name]) == len(rows) for name in (*COLUMNS, "registers", "spills"))
        assert 0 < one["best"] < len(rows)
        assert sum(t is None for t in one["first"]) <= len(rows) // 4
        assert one["provenance"].keys() >= {"device", "driver", "commit", "date", "command"}


def test_the_table_is_of_this_model() -> None:
    """Rows are what the model as it is says of the oracle as it is; so is the summary."""
    table = json.loads(TABLE.read_text())
    trees = time_model.load()
    assert len(table["rows"]) == len(trees)
    for one in trees[::12]:
        row = time_model.whole_row(one)
        committed = next(
            r
            for r in table["rows"]
            if [r["machine"], r["shape"]] == [one["case"][0], one["case"][3]]
        )
        assert {name: committed[name] for name in row} == row
    for name, group in (("summaries", "held_out"), ("fitting", "fitting")):
        rows = [row for row in table["rows"] if row["group"] == group]
        assert table[name] == time_model.summaries(rows)
        known = [row for row in table["assembled"]["rows"] if row["group"] == group]
        assert table["assembled"][group].items() <= time_model.summaries(known).items()
    by = {(row["machine"], *row["shape"]): row for row in table["assembled"]["rows"]}
    for one in (tree for tree in trees if tree["case"][3] in ([128, 4096, 4096], [512, 512, 512])):
        row = time_model.whole_row(one, assembled=True)
        assert row.items() <= by[one["case"][0], *one["case"][3]].items()
    assert math.isfinite(table["summaries"]["hopper"]["regret_at_1"])


@settings(max_examples=draws(4, 10), deadline=None)
@given(st.integers(0, 999))
def test_intervals_hold_on_shapes_that_they_are_not_made_of(seed: int) -> None:
    """Shapes that are off as a whole widen them; nine in ten times of further shapes lie within."""
    rng = np.random.default_rng(seed)

    def errors(count: int) -> dict[str, list[tuple[str, float]]]:
        found = {}
        for shape in range(count):
            off = rng.normal(0, 0.1) + rng.normal(0, 0.1, 100)
            found[str(shape)] = [("tiles, power" if e > 0 else "tiles, dram", e) for e in off]
        return found

    shares = time_model.calibrated(errors(24))
    assert set(shares) == {"tiles", "tiles, power", "tiles, dram"}
    further = [pair for some in errors(200).values() for pair in some]
    inside = [shares[regime][0] <= math.exp(e) <= shares[regime][1] for regime, e in further]
    assert 0.85 < float(np.mean(inside)) < 0.96


def test_each_regime_has_an_interval() -> None:
    """It has the predicted time in it, and is that of who does the work where there are few."""
    for regime, (low, high) in INTERVALS.items():
        assert low < 1 < high
        assert regime.partition(",")[0] in INTERVALS
    one = Breakdown(2e-3, {"tensor": 1e-3, "l1": 1.5e-3})
    assert one.regime == "warps, l1"
    assert one.interval == tuple(2e-3 * share for share in INTERVALS["warps"])


def test_attention_is_judged_by_cycles_and_times() -> None:
    """Schedules of peers and those that did not run are left out; a line has what is lost."""
    found = list(measured())
    assert sum(of_cycles for *_, of_cycles in found) == 228
    assert all(0 < seconds < 1 for *_, seconds, _ in found)
    assert len({name for name, *_ in found}) == 8 + 8 + 8 + 2
    line = line_of("some", np.array([2.0, 1.0, 3.0]), np.array([2.0, 2.5, 4.0]))
    assert line.startswith("some: 3, regret 25.0 %, of 8 0.0 %, rank 0.50")


@pytest.mark.parametrize("card", ["h100", "h200"])
def test_warps_products_have_the_clock_that_their_energy_gives(card: str) -> None:
    """By probes after each kernel of mma.sync: 1.72 GHz where products go on, 1.98 of few rows."""
    device = load_device(card)
    cool = device.with_values(tensor_clock_hz=device.clock_hz)
    machine, off = MACHINES["ampere"], []
    for shape, slowed in (("4096x4096x4096", True), ("300x704x904", False)):
        path = FOLDER.parent / card / "oracle" / f"ampere-{shape}.json"
        tree = still(json.loads(path.read_text(encoding="utf-8")))
        of, clocks = problem_at(tree["case"]), []
        for decisions, hz in zip(decisions_of(tree), tree["hz"], strict=True):
            term = Schedule.of(machine, decisions).program(machine, of.operation)
            share = cost(term, of.sizes, cool).seconds / cost(term, of.sizes, device).seconds
            clocks.append((float(share), hz / device.clock_hz))
        said, measured_clock = np.median(np.array(clocks), axis=0)
        assert (measured_clock < 0.9) == slowed
        off.append(math.log(said / measured_clock))
    assert max(map(abs, off)) < 0.06


def test_kept_up_another_s_kernel_has_the_clock_that_its_energy_gives() -> None:
    """FlashAttention-3: cycles counted in a burst, seconds under the cap, our term's work."""
    device, machine = load_device("h100"), MACHINES["attention"]
    files = (FOLDER.parent / "h100" / f"attention_{name}.json" for name in ("cycles", "searched"))
    counted, searched = (json.loads(path.read_text(encoding="utf-8"))["rows"] for path in files)
    kept = {row["case"]: row["fa3_seconds"] for row in searched}
    ours = {row["case"]: row for row in counted if row["name"] == "queries in registers"}
    share, off = FITTED["power_share"], []
    for row in (row for row in counted if row["name"] == "FlashAttention-3"):
        of = problem_of(COUNTED[row["case"]])
        schedule = Schedule.of(machine, ours[row["case"]]["decisions"])
        parts = cost(schedule.program(machine, of.operation), of.sizes, device).parts
        longest = max(float(parts[unit]) for unit in (*OF_TILES, *OF_ARITHMETIC))
        idle = FITTED["idle_power"] * (device.clock_hz / device.tensor_clock_hz) ** (1 / share)
        energy = (float(parts["power"]) / longest ** (1 - share)) ** (1 / share) - idle * longest
        cycles = row["cycles"] / device.clock_hz
        capped = cycles ** (1 - share) * max(cycles, energy + idle * cycles) ** share
        off.append(math.log(capped / kept[row["case"]]))
    assert len(off) == 7
    assert abs(np.mean(off)) < 0.02
    assert max(map(abs, off)) < 0.1
