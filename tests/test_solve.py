"""Questions: what ``ask`` and ``prove`` answer is what a look at every schedule says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.hopper_terms import rewritten
from tests.sample import draws
from tinygpu import ask, prove
from tinygpu.devices.device import load_device
from tinygpu.errors import IllegalScheduleError
from tinygpu.legality.laws import check_schedule, judged
from tinygpu.legality.reach import Case
from tinygpu.machines.elementwise import Elementwise
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.space.batches import Builder
from tinygpu.space.quantities import QUANTITIES, named_values
from tinygpu.space.questions import Answer
from tinygpu.space.solve import Solver
from tinygpu.space.space import Space
from tinygpu.space.wishes import wishes
from tinygpu.term.expression import value
from tinygpu.term.machine import Choice, Chosen, Machine, Value
from tinygpu.term.operation import Operation, Problem, elementwise, matmul
from tinygpu.term.program import Program, Wait
from tinygpu.term.schedule import Schedule

H200 = load_device("h200")
LARGE = Problem.of(matmul(), m=4096, n=4096, k=4096)
BF16 = Problem.of(matmul("bf16"), m=4096, n=4096, k=4096)
ARRAY = Problem.of(elementwise(value("x") + 1.0, inputs=("x",)), i=1 << 20)


def narrow(
    machine: type[Machine], start: Mapping[str, Value], **more: tuple[Value, ...]
) -> Machine:
    """A machine with the values of ``start``, and of ``more``, alone."""
    values = {name: (v,) for name, v in start.items()} | more
    choices = {
        name: Choice(*values[name], structural=choice.structural)
        for name, choice in machine.decisions().items()
    }
    found: Machine = type("Narrow", (machine,), choices)()
    return found


THREADS = narrow(
    Simt, LADDER["tuned"], tile_m=(64, 128), vector_shared=(1, 4), order=("n", "m"), issue=(0, 1),
    pipeline=("none", "cp.async"), stages=(1, 2), edges=("guard", "exact"), a_layout=("km", "mk"),
)  # fmt: skip
ROLES = narrow(
    Hopper, STARTS["ring"], tile_n=(64, 256), stages=(2, 8), consumers=(1, 2), cluster_m=(1, 4),
    epilogue=("tma", "direct"), store_n=(64, 128),
)  # fmt: skip


class Own(Elementwise):
    """A machine that may branch on every decision."""

    numeric = False


OWN = narrow(Own, {}, vector=(1, 4, 8), unroll=(1, 8), threads=(128, 1024), ctas=(0, 132))
KINDS = {"threads": (THREADS, LARGE), "roles": (ROLES, BF16), "a user's": (OWN, ARRAY)}


@dataclass(frozen=True)
class Point:
    """A schedule: is it legal, which laws does its term break, what do names stand for."""

    schedule: Schedule
    legal: bool
    broken: frozenset[str]
    values: Mapping[str, Any]


@cache
def points(kind: str) -> tuple[Point, ...]:
    """Every schedule of a kind, one by one; ``concurrency`` as the space's table has it."""
    machine, problem = KINDS[kind]
    space = Space(machine, problem, H200)
    builder, found = Builder(space), []
    for row in product(*space.values.values()):
        schedule = Schedule(machine.name, tuple(zip(space.values, row, strict=True)))
        violations = {v.law for v in check_schedule(schedule, machine, problem, H200)}
        chosen = Chosen(
            {n: np.int64(v) if n in space.axes and isinstance(v, int) else v
             for n, v in schedule.decisions}
        )  # fmt: skip
        with np.errstate(all="ignore"):
            required = machine.requires(problem.operation, chosen)
            case = Case.of(machine.program(problem.operation, chosen), problem.sizes, H200)
            broken = {r.name for r in required if not r.holds}
            broken |= {law for law, holds in judged(case, {}) if not holds}
            names = (*space.values, *problem.sizes, *QUANTITIES)
            values = named_values(names, chosen, problem.sizes, case)
        assert bool(violations - {"concurrency"}) == bool(broken)
        table = None
        if space.axes:
            table = builder.concurrency({n: schedule[n] for n in space.structural})
        if table is not None:
            at = [space.values[space.axes[a]].index(schedule[space.axes[a]]) for a in table.axes]
            violations |= set() if table.holds[tuple(at)] else {"concurrency"}
        found.append(
            Point(
                schedule,
                not violations,
                frozenset(broken | (violations & {"concurrency"})),
                {n: v.item() if isinstance(v, np.generic) else v for n, v in values.items()},
            )
        )
    return tuple(found)


def has(point: Point, wish: str) -> bool:
    return bool(eval(wish, {}, dict(point.values)))


@st.composite
def conditions(draw: st.DrawFn, kind: str) -> str:
    """A wish about decisions, sizes and quantities, near values that they have."""
    machine, some = KINDS[kind][0], st.sampled_from(points(kind))
    texts = [n for n, v in points(kind)[0].values.items() if isinstance(v, str)]
    numbers = [n for n in points(kind)[0].values if n not in texts]

    def comparison() -> str:
        if texts and draw(st.integers(0, 3)) == 0:
            name = draw(st.sampled_from(texts))
            text = draw(st.sampled_from(machine.decisions()[name].values))
            return f'{name} {draw(st.sampled_from(("==", "!=")))} "{text}"'
        left, near = draw(st.sampled_from(numbers)), draw(some)
        if draw(st.booleans()):
            sign = draw(st.sampled_from(("+", "-", "*")))
            left = f"({left} {sign} {draw(st.sampled_from(numbers))})"
        if draw(st.integers(0, 4)) == 0:
            left = f"{left} {draw(st.sampled_from(('//', '%')))} {draw(st.integers(2, 9))}"
        there = eval(left, {}, dict(near.values))
        match draw(st.integers(0, 4)):
            case 0:
                return f"{left} in ({there}, {there + 1})"
            case 1:
                return f"{there - draw(st.integers(0, 9))} <= {left} < {there + 2}"
        return f"{left} {draw(st.sampled_from(('==', '!=', '<', '<=', '>', '>=')))} {there}"

    def condition() -> str:
        match draw(st.integers(0, 4)):
            case 0:
                return f"not {comparison()}"
            case 1:
                return f"({comparison()} or not ({comparison()} and {comparison()}))"
        return comparison()

    return " and ".join(condition() for _ in range(draw(st.integers(1, 3))))


def must_be_a_core(answer: Answer, kind: str, fixed: Mapping[str, tuple[Value, ...]]) -> None:
    """No schedule keeps all of the reasons; for each, one keeps the others."""
    assert answer.reasons
    assert answer.minimal

    def keeps(point: Point, kind: str, name: str) -> bool:
        if kind == "law":
            return name not in point.broken
        return point.schedule[name] in fixed[name] if kind == "fix" else has(point, name)

    kept = [[keeps(p, r.kind, r.name) for r in answer.reasons] for p in points(kind)]
    assert not any(map(all, kept))
    if "concurrency" not in answer.laws:  # which is asked only where the other laws hold
        for i in range(len(answer.reasons)):
            assert any(not row[i] and sum(row) == len(row) - 1 for row in kept)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=draws(5, 25))
@given(st.data())
def test_answers_agree_with_a_look_at_every_schedule(kind: str, data: st.DataObject) -> None:
    machine, problem = KINDS[kind]
    names = st.sampled_from([n for n, c in machine.decisions().items() if len(c.values) > 1])
    fixed: dict[str, Value | tuple[Value, ...]] = {}
    for name in data.draw(st.sets(names, max_size=2)):
        fixed[name] = (data.draw(st.sampled_from(machine.decisions()[name].values)),)
    space = Space(machine, problem, H200, fixed=fixed)
    wish = data.draw(conditions(kind))
    inside = [p for p in points(kind) if all(p.schedule[n] in space.values[n] for n in fixed)]
    legal = {p.schedule: p for p in inside if p.legal}
    wanted = {s for s, p in legal.items() if has(p, wish)}

    answer = ask(space, wish)
    if answer.outcome == "found":
        assert answer.schedule in wanted
        values = legal[answer.schedule].values
        assert answer.values == {n: values[n] for n in answer.values}
    else:
        assert (answer.outcome, wanted) == ("excluded", set())
        must_be_a_core(answer, kind, space.values)

    if not legal:
        with pytest.raises(IllegalScheduleError, match="no schedule of"):
            prove(space, wish)
        return
    proof = prove(space, wish)
    if proof.outcome == "refuted":
        assert proof.schedule in {*legal} - wanted
    else:
        assert (proof.outcome, wanted, proof.count) == ("proved", {*legal}, len(legal))


def test_each_kind_has_legal_and_illegal_schedules() -> None:
    for kind in KINDS:
        assert {p.legal for p in points(kind)} == {True, False}
    assert any("concurrency" in p.broken for p in points("threads"))


def test_a_core_names_what_is_fixed_and_every_law_has_its_way_out() -> None:
    fixed: dict[str, Value | tuple[Value, ...]]
    fixed = {"cluster_k": 1, "swap": 0, "raster": (1, 2), "tile_n": 256, "stages": (8, 10)}
    answer = ask(Space(Hopper(), BF16, H200, fixed=fixed), "consumers >= 1")
    said = {(r.kind, r.text) for r in answer.reasons}
    assert {("fix", "tile_n = 256"), ("fix", "stages = 8 or 10")} < said
    assert answer.laws == ("smem_per_cta",)
    assert len(answer.reasons) == 3
    law = answer.reasons[-1]
    assert "h200 allows 232448 B per CTA" in law.example
    assert law.mend == "keep less in shared memory (stages, tile_k, tile_m, tile_n)"
    assert str(answer).count("\n") == 5


def test_a_proof_names_the_laws_that_it_needs_and_those_that_were_not_counted_by() -> None:
    space = Space(ROLES, BF16, H200)
    proof = prove(space, "smem_bytes <= 232448 and threads < 1024")
    assert (proof.outcome, proof.laws, proof.not_asked) == (
        "proved", ("smem_per_cta",), ("concurrency",))  # fmt: skip
    assert "\n  needed: smem_per_cta\n" in str(proof)
    assert "\n  enough: smem_per_cta\n" in str(replace(proof, minimal=False))
    assert prove(space, "tile_n in (64, 256)").laws == ()
    refuted = prove(space, "smem_bytes < 100000")
    assert int(refuted.values["smem_bytes"]) >= 100000
    assert f"smem_bytes = {refuted.values['smem_bytes']}" in str(refuted)
    assert prove(Space(THREADS, LARGE, H200), "threads <= 1024").not_asked == ()


def test_too_few_resources_are_an_answer_of_their_own() -> None:
    space = Space(Hopper(), BF16, H200, fixed={"stages": 4})
    for answer in (
        ask(space, "tile_n == 256", resources=1),
        prove(space, "smem_bytes < 232448", resources=1),
    ):
        assert answer.outcome == "unknown"
        assert "after 1 steps" in answer.why_unknown
    again = [ask(space, "tile_n * tile_m == 128 * 128", resources=r).outcome for r in (3000, 3000)]
    assert again[0] == again[1]


def test_comparisons_of_too_many_decisions_are_unknown_until_some_are_fixed() -> None:
    many = "tile_m * tile_n * tile_k * consumers * stages * in_flight * cluster_m * cluster_n"
    many += " * store_n * store_stages * raster * persistent > 1"
    structure: dict[str, Value | tuple[Value, ...]] = {"swap": 0, "cluster_k": 1, "epilogue": "tma"}
    wide = ask(Space(Hopper(), BF16, H200, fixed=structure), many)
    assert wide.outcome == "unknown"
    assert "combinations" in wide.why_unknown
    space = Space(Hopper(), BF16, H200, fixed={**structure, "stages": 4})
    assert ask(space, many).outcome == "found"
    none = ask(space, f"{many} and in_flight == 0")
    assert (none.outcome, none.minimal) == ("excluded", False)
    assert {r.name for r in none.reasons if r.kind == "fix"} == {*space.fixed}
    for large in ("m * m * m * m * m * tile_m * tile_m > 5", f"tile_m // {1 << 63} == 0",
                  f"{1 << 63} % tile_m == 0"):  # fmt: skip
        assert "2^63" in ask(space, large).why_unknown


class Forgetful(Hopper):
    """A machine whose roles may forget to wait for one another."""

    forgets = Choice(1, 0, structural=True)

    def program(self, operation: Operation, choose: Any) -> Program:
        term = super().program(operation, choose)
        return rewritten(term, lambda s: () if choose.forgets and isinstance(s, Wait) else s)


def test_what_the_event_graph_refuses_is_not_found() -> None:
    """A schedule that breaks concurrency alone is excluded; after many it is given up."""
    start = {**STARTS["ring"], "forgets": 1}
    few = narrow(Forgetful, start, forgets=(1, 0), stages=(3, 4), raster=(1, 2))
    legal = ask(Space(few, BF16, H200))
    assert legal.schedule is not None
    assert legal.schedule["forgets"] == 0
    answer = ask(Space(few, BF16, H200, fixed={"forgets": 1}))
    assert [(r.kind, r.name) for r in answer.reasons] == [
        ("fix", "forgets"),
        ("law", "concurrency"),
    ]
    assert prove(Space(few, BF16, H200), "forgets == 0").laws == ("concurrency",)
    many = narrow(
        Forgetful, start, forgets=(1, 0), stages=(2, 3, 4), raster=(1, 2, 4, 8), in_flight=(0, 1),
        early=(0, 1), tile_m=(64, 128), cluster_m=(1, 2), cluster_n=(1, 2),
    )  # fmt: skip
    answer = ask(Space(many, BF16, H200, fixed={"forgets": 1}))
    assert answer.outcome == "unknown"
    assert "concurrency" in answer.why_unknown
    assert ask(Space(many, BF16, H200)).outcome == "found"


def test_a_law_alone_and_what_is_fixed_agree_with_check_schedule() -> None:
    """Each law's tables, as z3 has them, against one schedule at a time."""
    space = Space(ROLES, BF16, H200)
    every = {name: values for name, values in space.values.items() if len(values) > 1}
    for point in points("roles")[:: draws(20, 5)]:
        fixed = {name: point.schedule[name] for name in every}
        solver = Solver(Space(ROLES, BF16, H200, fixed=fixed))
        fixes = {m for m in solver.members if m.kind == "fix"}
        broken = {m.name for m in solver.laws if solver.check(fixes | {m}).outcome == "unsat"}
        assert broken == point.broken


def test_wishes_divide_as_the_laws_do() -> None:
    """By zero it is 0; below zero it rounds down, as Python does."""
    zero, negative = wishes("stages // (stages - 3) == 0 and -7 // stages == -3", Simt(), LARGE)
    arrays = {"stages": np.array([2, 3, 4])}
    with np.errstate(all="ignore"):
        assert np.asarray(zero.holds(arrays)).tolist() == [False, True, False]
    assert zero.holds({"stages": 3})
    assert not zero.holds({"stages": 4})
    assert negative.holds({"stages": 3})
    assert np.asarray(negative.holds(arrays)).tolist() == [False, True, False]
