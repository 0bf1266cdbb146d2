"""Formulas: the laws as z3 terms say what they say on ints, and proofs hold of every schedule."""

from __future__ import annotations

import numpy as np
import pytest

from tests.test_space import H200, LARGE, NARROW, RAGGED
from tinygpu.errors import ScheduleError
from tinygpu.laws import check_schedule
from tinygpu.machine import Value
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.operation import Problem
from tinygpu.schedule import Schedule
from tinygpu.solve import Formula, Solver
from tinygpu.space import Space

STRUCTURE = {n: LADDER["tuned"][n] for n, c in Simt().decisions().items() if c.structural}
CASES: dict[str, dict[str, Value]] = {
    "plain": STRUCTURE,
    "pipelined": {**STRUCTURE, "pipeline": "cp.async", "a_layout": "mk"},
    "exact": {**STRUCTURE, "edges": "exact", "combine": "red"},
    "direct": {**STRUCTURE, "a_from": "gmem", "b_from": "gmem", "edges": "return"},
}
UNSEEN = {"concurrency"}  # judged on terms that are legal otherwise


@pytest.mark.parametrize("problem", [LARGE, RAGGED], ids=["large", "ragged"])
@pytest.mark.parametrize("name", CASES)
def test_formulas_and_numbers_agree_on_legal_and_on_broken_schedules(
    name: str, problem: Problem
) -> None:
    space = Space(Simt(), problem, H200, fixed=dict(CASES[name]))
    solver = Solver(space)
    rng = np.random.default_rng(5)
    legal = space.sample(rng, 6)
    assert bool(legal) != (name == "exact" and problem is RAGGED)  # no tile divides 37
    names = list(space.axes)
    for schedule in legal:
        assert solver.broken(dict(schedule.decisions)) == ()
        changes: dict[str, Value] = {}
        for decision in rng.choice(names, 2, replace=False):
            values = space.values[str(decision)]
            changes[str(decision)] = values[int(rng.integers(len(values)))]
        mutant = schedule.with_(**changes)
        broken = {v.law for v in check_schedule(mutant, Simt(), problem, H200)}
        said = set(solver.broken(dict(mutant.decisions)))
        assert bool(broken) == bool(said), mutant
        if not any(r in broken for r in ("warps_m", "warps_n", "k_steps", "chunks", "unused",
                                         "issue_inside", "split_red")):  # fmt: skip
            assert broken - UNSEEN == said - UNSEEN, mutant


def test_a_proof_holds_of_every_schedule_and_a_refutation_is_one() -> None:
    fixed = {**NARROW["tiles"], "vector_shared": (1, 2, 4)}
    space = Space(Simt(), LARGE, H200, fixed=fixed)
    solver = Solver(space)
    most = max(int(s["tile_n"]) for s in space)
    assert solver.prove(lambda d: d.tile_n <= most).outcome == "proved"
    refuted = solver.prove(lambda d: d.tile_n < most)
    assert refuted.outcome == "refuted"
    witness = Schedule.of(Simt(), refuted.witness)
    assert space.contains(witness)
    assert witness["tile_n"] == most
    assert solver.prove(lambda d: d.tile_n <= most).outcome == "proved"  # nothing was left behind


def test_too_few_resources_are_an_answer_of_their_own() -> None:
    solver = Solver(Space(Simt(), LARGE, H200, fixed=dict(STRUCTURE)))
    assert solver.prove(lambda d: d.thread_m * d.lanes_m <= 256, resources=10).outcome == "unknown"


def test_a_formula_has_no_truth_value_and_several_structures_no_formula() -> None:
    with pytest.raises(TypeError, match="select"):
        bool(Formula(True))
    with pytest.raises(ScheduleError, match="structural"):
        Solver(Space(Simt(), LARGE, H200, fixed={"tile_m": 64}))
