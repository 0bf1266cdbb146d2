"""Explanations: causes and what they cost, what decisions change, what a comparison sums."""

from __future__ import annotations

import json
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sample import draws, some
from tinygpu.devices.device import Device, load_device
from tinygpu.errors import IllegalScheduleError
from tinygpu.legality.laws import check_schedule
from tinygpu.machines import MACHINES
from tinygpu.machines.attention import STARTS
from tinygpu.machines.elementwise import Elementwise
from tinygpu.machines.rows import Rows
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.search.explain.causes import Cause, causes, excesses, peel
from tinygpu.search.explain.explain import Comparison, Explanation, compare, explain, outlined
from tinygpu.search.explain.mends import KINDS, TimeView, duration, lanes_apart, limiter
from tinygpu.search.time.cost import cost, predict
from tinygpu.term.expression import value
from tinygpu.term.machine import Machine, Value
from tinygpu.term.operation import Problem, attention, elementwise, matmul, rmsnorm
from tinygpu.term.program import Do
from tinygpu.term.schedule import Schedule

SIMT, H200 = Simt(), load_device("h200")
STORY = Problem.of(matmul(), m=4092, n=4092, k=4092)
WHOLE = Problem.of(matmul(), m=4096, n=4096, k=4096)
AXPY = Problem.of(
    elementwise(value("a") * value("x") + value("b"), inputs=("x",)),
    i=1 << 26,
)
NORM = Problem.of(rmsnorm("bf16"), i=16384, j=4096)
TINY: dict[str, Value] = {"vector": 1, "unroll": 1, "threads": 128, "ctas": 132}
ROWS: dict[str, Value] = {
    "vector": 8, "chunks": 2, "warps": 8, "rows": 1, "teams": 1, "ctas": 0
}  # fmt: skip


def rung(name: str, **changes: Value) -> Schedule:
    return Schedule.of(SIMT, {**LADDER[name], **changes})


def seconds(schedule: Schedule, problem: Problem = STORY) -> float:
    term = schedule.program(SIMT, problem.operation)
    return float(cost(term, problem.sizes, H200).seconds)


def look(schedule: Schedule, problem: Problem = STORY, device: Device = H200) -> TimeView:
    return TimeView.of(schedule.program(SIMT, problem.operation), problem.sizes, device)


def found(schedule: Schedule, problem: Problem = STORY) -> dict[str, Cause]:
    return {cause.name: cause for cause in causes(look(schedule, problem))}


@cache
def explained(schedule: Schedule) -> Explanation:
    return explain(schedule, SIMT, STORY, H200)


@cache
def walked(one: str, two: str) -> Comparison:
    return compare(rung(one), rung(two), SIMT, STORY, H200)


FP64 = rung("naive", accumulator="f64")
LEGAL = st.builds(
    lambda name, accumulator, split: rung(
        name, accumulator=accumulator, split_k=split, combine="red" if split > 1 else "st"
    ),
    st.sampled_from(sorted(LADDER)),
    st.sampled_from(("f32", "f64", "f32+f64")),
    st.sampled_from((1, 4)),
)
SIZES = st.builds(
    lambda m, n, k: Problem.of(matmul(), m=m, n=n, k=k),
    *(st.integers(1, 5000) for _ in range(3)),
)


@settings(max_examples=draws(6, 15))
@given(schedule=LEGAL, problem=SIZES)
def test_a_cause_removed_never_costs_time(schedule: Schedule, problem: Problem) -> None:
    """Time is monotone in what a mend lowers: each cause and each place of it saves 0 or more."""
    view = look(schedule, problem)
    for cause in causes(view):
        assert 0 <= cause.saves_seconds < view.seconds, cause.name
        assert cause.excess_seconds >= 0, cause.name
        assert all(0 <= p.saves_seconds <= cause.saves_seconds + 1e-12 for p in cause.places)
    assert all(e >= 0 for e in excesses(view).values())


@settings(max_examples=draws(4, 8))
@given(schedule=LEGAL, problem=SIZES)
def test_causes_removed_one_after_another_sum_to_the_time(
    schedule: Schedule, problem: Problem
) -> None:
    view = look(schedule, problem)
    steps = peel(view)
    left = steps[-1].left_seconds if steps else view.seconds
    assert sum(s.saves_seconds for s in steps) + left == pytest.approx(view.seconds)
    assert len({s.name for s in steps}) == len(steps)
    first = [c for c in causes(view) if KINDS[c.name].piece is not None][:1]
    assert [s.saves_seconds for s in steps[:1]] == [c.saves_seconds for c in first][: len(steps)]


def test_uncoalesced_rows_are_named_and_cost_what_coalescing_saves() -> None:
    """What removal is predicted to save is what the coalesced schedule does save."""
    cause = found(rung("naive"))["uncoalesced access"]
    worst = cause.places[0]
    assert "ld.global(a[" in worst.subject
    assert (worst.measured, worst.ideal) == ("8 cycles of L1 a request", "1")
    saved = seconds(rung("naive")) - seconds(rung("coalesced"))
    assert cause.saves_seconds == pytest.approx(saved, rel=0.05)
    assert "uncoalesced access" not in found(rung("coalesced"), WHOLE)


def test_bank_conflicts_are_named_and_cost_what_padding_saves() -> None:
    """Without a pad there are conflicts; the pad is their lever; with it they are gone."""
    bare = rung("vectorised")
    cause = found(bare)["bank conflicts"]
    assert cause.places[0].subject.startswith("smem_a")
    assert "bank conflicts" not in found(bare.with_(pad_a=4))
    levers = {lever.decision: lever for lever in explained(bare).levers["bank conflicts"]}
    assert levers["pad_a"].share == pytest.approx(1)
    column = rung("shared", a_layout="km")  # a column of warps' stores in one bank
    saved = seconds(column) - seconds(column.with_(pad_a=4))
    conflicts = found(column)["bank conflicts"]
    assert 0 < saved <= conflicts.saves_seconds * 1.02


def test_fp64_is_named_and_costs_what_fp32_saves() -> None:
    cause = found(rung("shared", accumulator="f64"))["fp64"]
    subjects = " ".join(p.subject for p in cause.places)
    assert "cvt(a_fragment" in subjects
    assert "sums = fma" in subjects
    saved = seconds(rung("shared", accumulator="f64")) - seconds(rung("shared"))
    assert cause.saves_seconds == pytest.approx(saved, rel=0.1)
    assert not {"fp64", "conversions"} & set(found(rung("shared")))


def test_the_kernel_that_nobody_could_explain() -> None:
    """It waits for loads; rows and fp64 hide behind them, and the guesses change nothing.

    So it was measured on an H200: 0.107 s along rows, 0.114 s along columns, 0.104 s in fp32.
    """
    why = explained(FP64)
    names = [c.name for c in why.causes]
    assert names[0] in ("exposed path", "memory latency")
    assert {"memory latency", "uncoalesced access", "fp64", "index arithmetic"} <= set(names)
    assert {"uncoalesced access", "fp64"} <= {s.name for s in why.steps}
    assert {"order", "specialised", "ctas_per_sm"} <= set(why.idle)
    assert why.gains[0].decision == "tile_k"
    text = str(why)
    for said in ("fp32 peak", "8 cycles of L1 a request", "changes nothing", "lanes_m"):
        assert said in text


def test_a_register_tile_ends_where_the_registers_do() -> None:
    """One sum a thread reads two operands for it; eight by eight are the ideal."""
    for small in ("shared", "1-D registers"):
        assert "small register tile" in found(rung(small))
    assert "small register tile" not in found(rung("2-D registers"))


@given(
    st.sampled_from(sorted(LADDER)), st.sampled_from("mn"), st.sampled_from((1, 2, 4, 8, 16, 32))
)
def test_lanes_at_one_place_count_once(name: str, order: str, lanes_m: int) -> None:
    """The ideal of an access is of the different places of a warp's lanes, counted one by one."""
    program = rung(name, order=order, lanes_m=lanes_m).program(SIMT, STORY.operation)
    for node in TimeView.of(program, STORY.sizes, H200).nodes:
        do = node.piece.statement
        if not isinstance(do, Do) or node.piece.unit != "lsu":
            continue
        for access in do.accesses:
            if access.buffer.level not in ("gmem", "smem"):
                continue
            places = set()
            for lane in range(32):
                at, rest = [0] * len(access.buffer.shape), lane
                for extent, steps in zip(do.threads, access.thread, strict=True):
                    rest, here = divmod(rest, extent)
                    at = [x + here * step for x, step in zip(at, steps, strict=True)]
                places.add(tuple(at))
            assert lanes_apart(do, access) == len(places)


def test_a_wider_access_moves_as_much() -> None:
    """Sixteen bytes at once need fewer instructions, but no fewer lines or wavefronts."""
    view, rule = look(rung("2-D registers")), KINDS["narrow accesses"].piece
    assert rule is not None
    mends = [(node.piece, mend) for node in view.nodes if (mend := rule(node, view))]
    assert mends
    for piece, (new, _, _) in mends:
        before, after = piece.cycles, new.cycles
        assert all(after[u] == pytest.approx(before[u]) for u in ("l1", "smem") if u in before)
        assert after["issue"] < before["issue"]
        assert new.count >= 1
    assert "narrow accesses" not in found(rung("naive"))  # one element a thread: none to join


def test_mended_pieces_still_move_powers_of_two() -> None:
    """With a larger register tile, 16 bf16 come in 3 requests: none of them moves 5."""
    problem = Problem.of(matmul("bf16"), m=512, n=512, k=512)
    schedule = rung(
        "multi-stage", tile_m=32, tile_n=32, tile_k=32, thread_m=2, thread_n=4, lanes_m=4,
        order="m", a_layout="mk", pad_a=8, pad_b=8, vector_a=8, vector_b=8, vector_shared=4,
        vector_c=4, k_step=4, pipeline="cp.async", issue=2, edges="exact", raster=8, ctas_per_sm=6,
    )  # fmt: skip
    view = look(schedule, problem)
    steps = peel(view)
    assert "small register tile" in [step.name for step in steps]
    assert sum(step.saves_seconds for step in steps) + steps[-1].left_seconds == pytest.approx(
        view.seconds
    )


def test_conversions_of_16_bits_are_not_blamed_on_fp64() -> None:
    problem = Problem.of(matmul("bf16"), m=4096, n=4096, k=4096)
    names = set(found(rung("shared"), problem))
    assert "conversions" in names
    assert "fp64" not in names


def test_what_is_read_once_needs_no_larger_tile() -> None:
    """Of a row norm only the weights are used again; nothing of an elementwise kernel is."""
    rows = Schedule.of(Rows(), ROWS).program(Rows(), NORM.operation)
    causes_of_rows = {c.name: c for c in causes(TimeView.of(rows, NORM.sizes, H200))}
    tile = causes_of_rows["small register tile"]
    assert [p.subject.split(" = ")[0] for p in tile.places] == ["w_held"]
    term = Schedule.of(Elementwise(), TINY).program(Elementwise(), AXPY.operation)
    names = {c.name for c in causes(TimeView.of(term, AXPY.sizes, H200))}
    assert not {"small register tile", "L2 traffic", "DRAM traffic"} & names


def test_a_tile_is_measured_in_elements_an_fma() -> None:
    """A thread with 4 rows and 8 columns reads b once for 4 sums, however wide its loads are."""
    cause = found(rung("vectorised", thread_m=4))["small register tile"]
    assert [(p.subject[:10], p.measured) for p in cause.places] == [
        ("b_fragment", "0.25 elements an FMA")
    ]


def test_narrow_accesses_are_those_that_could_be_wider() -> None:
    assert any(
        "ld.global" in p.subject for p in found(rung("2-D registers"))["narrow accesses"].places
    )
    wide = found(rung("vectorised")).get("narrow accesses")
    assert wide is None or not any("ld.global" in p.subject for p in wide.places)


def test_index_arithmetic_and_loops_are_causes_of_their_own() -> None:
    cheap, dear = (
        found(rung("coalesced", addressing=how))["index arithmetic"].excess_seconds
        for how in ("i32", "i64")
    )
    assert cheap < dear
    one, many = (found(rung("tuned", tile_k=k))["loop overhead"].excess_seconds for k in (8, 32))
    assert one > 3 * many


def test_full_rounds_of_ctas_have_no_tail() -> None:
    """1024 CTAs, two on an SM: 128 SMs do them in full rounds, 132 do not."""
    schedule = rung("tuned")
    whole = look(schedule, WHOLE, H200.with_values(sms=128))
    assert "waves and tail" not in {c.name for c in causes(whole)}
    assert found(schedule, WHOLE)["waves and tail"].saves_seconds > 0


def test_the_launch_and_its_rounds_are_mended_alone() -> None:
    """An even spread leaves L2, DRAM and launch as they are, and no CTA is faster than its path."""
    few = Problem.of(matmul(), m=256, n=256, k=4096)
    for problem in (STORY, few):
        view, rule = look(rung("tuned"), problem), KINDS["waves and tail"].whole
        assert rule is not None
        mend = rule(view)
        assert mend is not None
        parts = predict(mend.features).parts
        assert all(parts[n] == view.time.parts[n] for n in ("l2", "dram", "launch"))
        assert parts["fma"] < view.time.parts["fma"]
    assert parts["latency"] == view.time.parts["latency"]
    assert excesses(view)["launch"] == pytest.approx(view.time.parts["launch"])


def test_barriers_are_named_where_there_are_some() -> None:
    assert {p.subject for p in found(rung("shared"))["barriers"].places} == {"bar.sync 0"}
    assert "barriers" not in found(rung("naive"))


def test_what_limits_occupancy_is_named() -> None:
    assert limiter(look(rung("naive"))) == "threads or CTA slots"
    assert limiter(look(rung("tuned"))) == "registers"
    deep = rung("warp-tiled", pipeline="cp.async", stages=5, tile_k=32, ctas_per_sm=1)
    assert limiter(look(deep)) == "shared memory"
    assert "occupancy" not in found(rung("naive"))
    assert "limited by registers" in found(rung("tuned"))["occupancy"].places[0].measured


def test_an_instruction_cache_is_a_cause_where_it_is_outgrown() -> None:
    vast = rung("vectorised", tile_k=64, thread_m=16, thread_n=16, tile_m=256, tile_n=256)
    assert excesses(look(vast))["instruction cache"] > 0
    assert excesses(look(rung("tuned")))["instruction cache"] == 0


@pytest.mark.parametrize("name", some(["naive", "vectorised", "multi-stage"], 3))
def test_decisions_are_sorted_by_what_their_legal_values_do(name: str) -> None:
    """Gains, idle and stuck decisions against every single change, tried afresh."""
    schedule, why = rung(name), explained(rung(name))
    gains = {gain.decision: gain for gain in why.gains}
    for decision, choice in SIMT.decisions().items():
        others = [schedule.with_(**{decision: v}) for v in choice.values]
        times = [
            seconds(other)
            for other in others
            if other != schedule and not check_schedule(other, SIMT, STORY, H200)
        ]
        assert (decision in why.stuck) == (not times)
        moved = [abs(t / why.seconds - 1) >= 0.01 for t in times]
        assert (decision in why.idle) == (bool(times) and not any(moved))
        if decision in gains:
            assert gains[decision].seconds == min(times) < 0.99 * why.seconds
            assert seconds(schedule.with_(**{decision: gains[decision].after})) == min(times)
        elif times:
            assert min(times) > why.seconds * 0.985


def test_levers_lower_their_cause() -> None:
    why = explained(rung("tuned"))
    before = excesses(look(rung("tuned")))
    assert why.levers["waves and tail"] or why.levers["loop overhead"]
    for cause, levers in why.levers.items():
        for lever in levers:
            other = rung("tuned", **{lever.decision: lever.value})
            assert not check_schedule(other, SIMT, STORY, H200)
            after = excesses(look(other))[cause]
            assert 1 - after / before[cause] == pytest.approx(lever.share)
            assert lever.share >= 0.1
            assert lever.seconds == seconds(other)


def test_an_illegal_schedule_has_no_explanation() -> None:
    broken = rung("naive", thread_m=2)
    for ask in (
        lambda: explain(broken, SIMT, STORY, H200),
        lambda: compare(rung("naive"), broken, SIMT, STORY, H200),
    ):
        with pytest.raises(IllegalScheduleError):
            ask()


@pytest.mark.parametrize(
    ("machine", "values", "problem", "unit"),
    [
        (SIMT, dict(FP64.decisions), STORY, "FLOP/s"),
        (Elementwise(), TINY, AXPY, "B/s"),
        (Rows(), ROWS, NORM, "B/s"),
    ],
)
def test_any_machine_is_explained(
    machine: Machine, values: dict[str, Value], problem: Problem, unit: str
) -> None:
    """Parts sorted, the bottleneck first, a rate below its peak, text and JSON of all of it."""
    why = explain(Schedule.of(machine, values), machine, problem, H200)
    assert why.unit == unit
    assert 0 < why.rate < why.peak
    times = [time for _, time in why.parts]
    assert times == sorted(times, reverse=True)
    assert why.parts[0][0] == why.bottleneck
    saved = [c.saves_seconds for c in why.causes]
    assert saved == sorted(saved, reverse=True)
    assert json.loads(json.dumps(why.tree()))["seconds"] == why.seconds
    assert str(why).count("\n") > 8
    both = compare(
        Schedule.of(machine, values), Schedule.of(machine, values), machine, problem, H200
    )
    assert json.loads(json.dumps(both.tree()))["winner"] == "neither"


def test_a_grid_that_waits_for_memory_says_so() -> None:
    """One small CTA on an SM, one element at a time: more CTAs are the cure."""
    why = explain(Schedule.of(Elementwise(), TINY), Elementwise(), AXPY, H200)
    assert why.bottleneck == "latency"
    assert why.causes[0].name in ("exposed path", "memory latency")
    assert why.gains[0].decision == "ctas"


def test_attention_is_explained_by_its_own_decisions() -> None:
    """Without overlap the exponentials are exposed: another order is what would change that."""
    machine = MACHINES["attention"]
    problem = Problem.of(attention(), l=1, h=33, g=1, m=512, n=512, d=128, e=128)
    late = Schedule.of(machine, STARTS["fa2"])
    why = explain(late, machine, problem, H200)
    assert sum(seconds for _, seconds in why.parts) > 0
    assert {name for name, _ in why.parts} >= {"tensor", "sfu", "fma", "smem", "latency"}
    path = next(one for one in why.causes if one.name == "exposed path")
    assert path.saves_seconds > 0
    assert "consumer_order" in {change.decision for change in why.gains}
    assert {"queries", "stages_q"} <= {*why.idle, *why.stuck, *(g.decision for g in why.gains)}
    assert "exposed path" in str(why)
    flown = Schedule.of(machine, {**STARTS["fa2"], "consumer_order": "SVsMELvOP"})
    both = compare(late, flown, machine, problem, H200, outlined)
    changed = ("consumer_order", "SsMELOPVv", "SVsMELvOP")
    assert [step.changes for step in both.steps] == [(changed,)]
    assert both.b.seconds - both.a.seconds == pytest.approx(both.steps[0].seconds)


def test_spills_are_told_of() -> None:
    """The launch and the changes say where there are some, and the time has them as a part."""
    tight = rung("tuned", ctas_per_sm=4)
    assert not check_schedule(tight, SIMT, STORY, H200)
    assert "spill" in explained(tight).launch
    assert dict(explained(tight).parts)["spills"] > 0
    assert "spill" not in explained(rung("tuned")).launch


@given(st.floats(1e-12, 1e4))
def test_durations_read_back(time: float) -> None:
    number, unit = duration(time).split()
    scale = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}[unit]
    assert float(number) * scale == pytest.approx(time, rel=0.006)
    assert duration(-time) == f"-{duration(time)}"
