"""How far the model is right: regrets, rankings, and the report."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import time_model
from benchmarks.heuristics import heuristics
from benchmarks.oracle import HELD_OUT, path_of, still
from benchmarks.trust import COUNTS, Evidence, by_regime, habits, regret_at, roofline
from benchmarks.trust_report import model_report, rankings
from tests.sample import draws

FEW, MANY = (path_of(HELD_OUT[i]) for i in (2, 9))
SIMT = path_of(next(one for one in HELD_OUT if one[0] == "simt"))
scored = st.lists(st.tuples(st.integers(1, 99), st.integers(0, 3)), min_size=1, max_size=9)


def case(path: Path) -> Evidence:
    return time_model.evidence_in(path)


@settings(max_examples=draws(24, 60), deadline=None)
@given(scored, st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_regret_of_ties_is_the_mean_over_their_orders(
    both: list[tuple[int, int]], count: int, seed: int
) -> None:
    """Equal scores are taken in a random order: the mean of many, within its own spread."""
    times, scores = np.array(both, float).T
    ties = np.random.default_rng(seed).random((400, len(both)))
    orders = np.lexsort((ties, np.broadcast_to(scores, ties.shape)), axis=-1)
    found = times[orders[:, :count]].min(axis=1) / times.min() - 1
    spread = 5 * np.std(found) / 20 + 1e-9
    assert regret_at(times, scores, count) == pytest.approx(np.mean(found), abs=spread)


def test_the_report_says_what_the_benchmark_does() -> None:
    """Regret, tau and A/A of a case are those of ``time_model.json``'s code."""
    for path in (FEW, SIMT):
        mine, tree = case(path), still(json.loads(path.read_text()), other_code=True)
        row = time_model.row_of(tree, time_model.predicted(tree))
        assert len(mine.times) == row["schedules"]
        assert mine.tau() == pytest.approx(row["kendall_tau"], abs=1e-3)
        assert mine.tau(near=True) == pytest.approx(row["kendall_tau_near"], abs=1e-3)
        assert mine.noise == pytest.approx(row["aa_noise"], abs=1e-4)
        for n in COUNTS:
            regret = regret_at(mine.mean, mine.order, n)
            assert regret == pytest.approx(row[f"regret_at_{n}"], abs=1e-3)


def test_rankings_know_right_from_wrong() -> None:
    """The oracle's own order has no regret; random has what is expected; more never loses."""
    mine = case(MANY)
    assert regret_at(mine.mean, mine.mean, 1) == 0
    drawn = regret_at(mine.mean, np.ones(len(mine.times)), 1)
    assert drawn == pytest.approx(mine.mean.mean() / mine.mean.min() - 1)
    for by in rankings([mine, case(FEW)]).values():
        regrets = [by[n] for n in COUNTS]
        assert regrets == sorted(regrets, reverse=True)
        assert all(np.isfinite(regrets))


def test_a_roofline_is_below_what_was_measured() -> None:
    """Of nearly all: L2 gives single schedules of narrow tiles more than it is rated at."""
    for path in (FEW, MANY, SIMT):
        mine = case(path)
        bound = roofline(mine)
        assert (bound > 0).all()
        assert (bound < mine.mean).mean() > 0.9
        assert (bound > mine.mean / 20).mean() > 0.9


def test_regimes_and_habits_hold_every_schedule() -> None:
    """Each schedule has a regime of rows, one of length and a bottleneck; errors are as given."""
    mine = case(MANY)
    found = by_regime([mine])
    assert sorted(found["all"]) == sorted(mine.errors)
    assert sum(map(len, found.values())) == 4 * len(mine.times)
    by_hand = np.array([dict(s.decisions)["swap"] for s in mine.schedules]) == 1
    centred = mine.errors - mine.errors.mean()
    assert habits([mine])["hopper", "swap", 1] == pytest.approx(centred[by_hand].mean())


def test_heuristics_rank_what_was_measured() -> None:
    """Its first choice is the nearest schedule: of 16-bit machines alone."""
    pytest.importorskip("nvMatmulHeuristics", reason="nvidia-matmul-heuristics is not installed")
    places = heuristics(case(MANY))
    assert places is not None
    named = sorted(places[places < len(places)])
    assert named == list(range(len(named)))
    assert named
    assert heuristics(case(SIMT)) is None


def test_a_page_of_an_oracle(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A page that holds its pictures and tables, and the pictures as files."""
    model_report([case(FEW), case(SIMT)], tmp_path)
    told = capsys.readouterr().out
    page = (tmp_path / "model.html").read_text()
    assert page.count("data:image/png;base64,") == 4 == len(list(tmp_path.glob("*.png")))
    assert not re.search(r'(src|href)="(?!data:)', page)
    mine = rankings([case(FEW)])["the model"]
    assert f"{100 * mine[1]:.1f} %" in told
    assert "waits for" in told
    assert FEW.stem.partition("-")[2].replace("x", " x ") in told
