"""Comparisons: contributions sum, steps are legal, groups are small."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest

from tests.sample import SOAK, some
from tests.test_explain import (
    H200,
    SIMT,
    STORY,
    explained,
    look,
    rung,
    seconds,
    walked,
)
from tinygpu.legality.laws import check_schedule
from tinygpu.search.explain.causes import excesses
from tinygpu.search.explain.comparisons import comparisons
from tinygpu.search.explain.explain import compare
from tinygpu.search.explain.mends import duration


@pytest.mark.parametrize(
    ("one", "two", "winner"),
    some(
        [
            ("shared", "tuned", "B"),
            ("naive", "multi-stage", "B"),
            ("tuned", "multi-stage", "neither"),
        ],
        2,
    ),
)
def test_contributions_sum_and_every_step_is_legal(one: str, two: str, winner: str) -> None:
    """The walk meets legal schedules only, changes what differs once, and arrives."""
    why, here = walked(one, two), rung(one)
    assert why.winner == winner  # the last two are 6 % apart: the model may be off by more
    assert why.b.seconds < why.a.seconds
    total = sum(step.seconds for step in why.steps)
    assert why.a.seconds + total == pytest.approx(why.b.seconds, rel=1e-9)
    for step in why.steps:
        before = seconds(here)
        assert all(here[name] == old for name, old, _ in step.changes)
        here = here.with_(**{name: new for name, _, new in step.changes})
        assert not check_schedule(here, SIMT, STORY, H200)
        assert seconds(here) - before == pytest.approx(step.seconds)
    assert here == rung(two)
    lines = [line for line in str(why).splitlines() if ", then " in line]
    assert len(lines) == sum(step.seconds != 0 for step in why.steps)
    assert f", then {duration(why.b.seconds):>8}: " in lines[-1]
    changed = [name for step in why.steps for name, _, _ in step.changes]
    assert sorted(changed) == sorted({n for n, v in rung(one).decisions if rung(two)[n] != v})


def test_the_greatest_effect_comes_first() -> None:
    """No other single change at the start does more."""
    why, start, goal = walked("naive", "coalesced"), rung("naive"), rung("coalesced")
    first = abs(why.steps[0].seconds)
    for name, was in start.decisions:
        other = start.with_(**{name: goal[name]})
        if goal[name] != was and not check_schedule(other, SIMT, STORY, H200):
            assert abs(seconds(other) - seconds(start)) <= first


def test_changes_that_are_illegal_alone_come_as_a_group() -> None:
    """A pipeline in registers needs its second stage: neither is legal without the other."""
    groups = [
        {name for name, _, _ in step.changes} for step in walked("warp-tiled", "multi-stage").steps
    ]
    assert groups == [{"pipeline", "stages"}]


def test_groups_are_as_small_as_the_laws_allow() -> None:
    """Two pairs, each illegal in part: not all four at once."""
    start = rung("tuned")
    goal = start.with_(pipeline="register", stages=2, split_k=4, combine="red")
    steps = compare(start, goal, SIMT, STORY, H200).steps
    groups = {frozenset(name for name, _, _ in step.changes) for step in steps}
    assert groups == {frozenset(("pipeline", "stages")), frozenset(("split_k", "combine"))}


def test_a_lever_is_the_fastest_value_that_lowers_the_cause() -> None:
    start = rung("coalesced")
    before = excesses(look(start))["loop overhead"]
    (lever,) = (v for v in explained(start).levers["loop overhead"] if v.decision == "tile_k")
    others = [start.with_(tile_k=k) for k in (4, 8, 16, 32, 64)]
    lower = [s for s in others if not check_schedule(s, SIMT, STORY, H200)]
    assert len(lower) > 1
    assert all(excesses(look(s))["loop overhead"] < 0.9 * before for s in lower)
    assert lever.seconds == min(map(seconds, lower))


def test_pairs_are_compared_at_once_as_each_alone() -> None:
    """Scored together, over a space, the walks are those of ``compare``, to the letter."""
    between = ["warp-tiled"] if SOAK else []
    names = ("shared", "tuned", *between, "multi-stage")
    texts = comparisons([rung(name) for name in names], SIMT, STORY, H200)
    assert sorted(texts) == list(combinations(range(len(names)), 2))
    for i, j in pairwise(range(len(names))):
        assert texts[i, j] == str(walked(names[i], names[j]))


def test_compared_with_itself_and_the_other_way_round() -> None:
    same = compare(rung("naive"), rung("naive"), SIMT, STORY, H200)
    assert (same.winner, same.steps) == ("neither", ())
    assert "cannot tell" in str(same)
    assert compare(rung("shared"), rung("naive"), SIMT, STORY, H200).winner == "A"
