"""Attention in clusters: CTAs with neighbouring queries load keys and values for one another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.attention_terms import tile_value
from tests.hopper_terms import rewritten
from tests.sample import all_by_turns, some
from tests.test_attention_window import by_numpy, sizes
from tinygpu.codegen.emit import emit
from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.run.interpretation import COMPLETIONS
from tinygpu.codegen.run.interpretation import interpret as emulated
from tinygpu.devices.device import load_device
from tinygpu.errors import ProgramError
from tinygpu.isa.memory import DTYPES
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import check_schedule
from tinygpu.legality.mask_cover import mask_cover
from tinygpu.machines import MACHINES
from tinygpu.machines.attention import STARTS, Attention
from tinygpu.meaning.identity import computes
from tinygpu.meaning.interpret import interpret
from tinygpu.search.exact.best import rank
from tinygpu.search.time.cost import Placed, cost, features
from tinygpu.space.space import Space
from tinygpu.term.expression import apply, value
from tinygpu.term.machine import Chosen
from tinygpu.term.machine import Value as Choosable
from tinygpu.term.operation import Problem, attention, window_of
from tinygpu.term.program import (
    Access,
    Affine,
    Arrive,
    Do,
    For,
    Program,
    Statement,
    Wait,
    When,
    var,
)
from tinygpu.term.schedule import Schedule

SMALL = {"depth": 64, "tile_n": 64, "consumers": 1}
MASKS = ["none", "causal", "window:40:25", "window:0:100", "window:200:0"]
SIZES = [(200, 230), (130, 70), (64, 300), (1, 300)]
"""Of blocks of 64 queries: a CTA beyond the last one, tiles without keys, one row in all."""
MACHINE, DEVICE = MACHINES["attention"], load_device("h100")


@cache
def term(mask: str = "causal", point: str = "pair multicast", **others: Choosable) -> Program:
    return Attention().program(attention(mask=mask), Chosen({**STARTS[point], **SMALL, **others}))


@all_by_turns(
    ("mask", MASKS),
    (
        "others",
        [
            {"consumers": 2, "tile_n": 176},
            {"consumer_order": "SsMELOPVv", "stages_k": 1},
            {"consumers": 2, "turns": "named"},
            {"consumers": 3},
            {"persistent": 0},
            {"stages_q": 2, "epilogue": "direct"},
        ],
    ),
)
def test_it_is_legal_and_its_mask_is_covered(mask: str, others: dict[str, Choosable]) -> None:
    """For every number of tiles and trips; for all m and n."""
    program = term(mask, **others)
    found = verdict(program)
    assert found.legal, str(found)
    assert str(mask_cover(program)) == "mask cover proved for every m, n"


def test_a_pair_may_go_back_and_forth() -> None:
    program = term(order="snake", raster=1)
    assert verdict(program).legal
    assert mask_cover(program)
    assert computes(program, sizes(300, 260, h=3, d=16, e=8))


@all_by_turns(
    ("mask", ["none", *MASKS[2:]]),
    ("m, n", SIZES),
)
def test_the_interpreter_gives_what_numpy_gives(mask: str, m: int, n: int) -> None:
    random, here, operation = np.random.default_rng(0), sizes(m, n), attention(mask=mask)
    arrays: dict[str, Any] = {
        o.name: DTYPES["bf16"].round(random.standard_normal(operation.shapes(here)[o.name]))
        for o in operation.inputs
    }
    run = interpret(term(mask), here, arrays, scalars={"scale": 0.25})
    assert run.findings == ()
    left, right = (10**6 if edge is None else edge for edge in window_of(operation))
    wanted = by_numpy({name: x.astype(float) for name, x in arrays.items()}, left, right, 0.25)
    assert np.abs(run.outputs["o"][0, 0, 0] - wanted).max() < 0.03


@pytest.mark.parametrize("mask", ["causal", "window:40:25"])
def test_it_computes_its_operation(mask: str) -> None:
    """Also its log-sum-exp, which a CTA beyond the last row stores nowhere."""
    operation = attention(mask=mask, lse=True)
    program = Attention().program(operation, Chosen({**STARTS["pair multicast"], **SMALL}))
    for here in (sizes(200, 150, g=2, d=16, e=8), sizes(70, 200, d=16, e=8)):
        found = computes(program, here)
        assert found, str(found)


@all_by_turns(
    ("mask", ["none", "causal", "window:40:25"]),
    ("m, n", SIZES[:2]),
    ("order", COMPLETIONS),
)
def test_its_code_is_right(mask: str, m: int, n: int, order: str) -> None:
    found = emulated(term(mask), sizes(m, n), arch="sm_90a", completions=(order,))
    assert found.findings == ()
    assert found.error < 0.6


@pytest.mark.parametrize("mask", some(["none", "causal", "window:1000:0"], 2))
def test_no_register_is_spilled(mask: str) -> None:
    program = Attention().program(attention(mask=mask), Chosen(STARTS["pair multicast"]))
    code = assemble(emit(program), "sm_90a")
    assert (code.registers, code.spills) == (168, 0)
    assert "C75" not in code.messages


def test_each_ctas_half_goes_to_both() -> None:
    """One copy a block and CTA, of 32 of 64 lines, to the mask of two; arrivals at either CTA."""
    text = emit(term())
    assert text.count(".multicast::cluster") == 2
    assert text.count("mapa") >= 2
    assert "multicast" not in emit(term(cluster_m=1))
    assert "mapa" not in emit(term(cluster_m=1))
    boxes = {str(s.write): s.values for r in term().roles for s in dos(r.body) if s.multicast}
    assert [values[:2] for values in boxes.values()] == [(64, 32), (64, 32)]


def dos(body: tuple[Statement, ...]) -> list[Do]:
    found: list[Do] = []
    for s in body:
        found += [s] if isinstance(s, Do) else dos(getattr(s, "body", ()))
    return found


@given(
    st.integers(1, 700),
    st.integers(1, 700),
    st.integers(0, 200),
    st.integers(0, 200),
    st.sampled_from([64, 80, 176]),
)
def test_a_cluster_walks_the_blocks_that_one_of_its_rows_sees(
    m: int, n: int, left: int, right: int, tile_n: int
) -> None:
    """Row by row: all of those; and no other one where all of its rows exist."""
    program = term(f"window:{left}:{right}", tile_n=tile_n)
    values = program.values_of_tiles(sizes(m, n))
    for bm, (begin, trips) in enumerate(zip(values["begin"], values["trips"], strict=True)):
        rows = np.arange(128 * bm, 128 * bm + 128)
        here = rows[rows < m]
        last = here[:, None] + n - m
        seen = (last - left <= np.arange(n)) & (np.arange(n) <= last + right)
        blocks = {int(key) // tile_n for key in np.flatnonzero(seen.any(axis=0))}
        walked = set(range(begin, begin + trips))
        assert blocks <= walked
        if len(here) == 128:
            assert not walked or walked == set(range(min(walked), max(blocks, default=begin) + 1))


def test_time_knows_what_is_shared() -> None:
    """Half of the copies of keys and values are asked of L2; a cluster is in whole tiles."""
    here = sizes(4096, 4096, h=16, l=4, d=128, e=128)

    def asked(**others: Choosable) -> float:
        program = Attention().program(attention(), Chosen({**STARTS["pair multicast"], **others}))
        return float(Placed.of(features(program, here, DEVICE)).asked_bytes)

    alone, shared = asked(cluster_m=1), asked()
    assert 0.5 * alone < shared < 0.9 * alone
    assert term().grid_extents(sizes(4096, 4096))[-1] == 32
    assert term().grid_extents(sizes(4097, 4096))[-1] == 33


@pytest.mark.parametrize("turns", ["none", "named"])
def test_times_over_a_space_are_those_of_each_term(turns: str) -> None:
    """Arrivals and bytes differ in it; the ranking follows all."""
    operation = attention(mask="causal")
    problem = Problem.of(operation, l=1, h=4, g=2, m=1300, n=1420, d=64, e=64)
    open_ = {"cluster_m", "stages_k", "tile_n"}
    fixed: dict[str, Any] = {n: v for n, v in STARTS["pair multicast"].items() if n not in open_}
    fixed |= {"depth": 64, "turns": turns, "tile_n": (64, 128), "stages_k": (2, 3)}
    found = rank(Space(MACHINE, problem, DEVICE, fixed=fixed), 8)
    assert {row.schedule["cluster_m"] for row in found.best} == {1, 2}
    assert len(found.best) == 8
    for row in found.best:
        program = row.schedule.program(MACHINE, operation)
        assert row.seconds == pytest.approx(cost(program, problem.sizes, DEVICE).seconds)


# Mutants: each is found


def barriers(name: str, arrivals: int) -> Callable[[Program], Program]:
    def change(program: Program) -> Program:
        old = next(b for b in program.barriers if b.name == name)
        new = replace(old, arrivals=arrivals)

        def of(s: Statement) -> Statement:
            if isinstance(s, Wait | Arrive) and s.barrier == old:
                return replace(s, barrier=new)
            if isinstance(s, Do) and s.signal and s.signal[0] == old:
                return replace(s, signal=(new, s.signal[1]))
            return s

        every = tuple(new if b == old else b for b in program.barriers)
        return rewritten(program, of, barriers=every)

    return change


def loads(ring: str, change: Callable[[Do], Statement]) -> Callable[[Program], Program]:
    def of(s: Statement) -> Statement:
        return change(s) if isinstance(s, Do) and s.multicast and ring in str(s.write) else s

    return lambda program: rewritten(program, of)


def source(change: Callable[[Affine], Affine]) -> Callable[[Do], Do]:
    """Change the origins of what is read."""

    def of(do: Do) -> Do:
        (read,) = do.reads
        assert isinstance(read, Access)
        return replace(do, reads=(replace(read, origin=tuple(map(change, read.origin))),))

    return of


def by_rank(factor: int) -> Callable[[Affine], Affine]:
    def change(form: Affine) -> Affine:
        terms = [
            (n, c * factor if n == "rank" and isinstance(c, int) else c) for n, c in form.terms
        ]
        return Affine(form.constant, tuple((n, c) for n, c in terms if c))

    return change


def alone(role: str) -> Callable[[Program], Program]:
    """Let the other CTA do no step."""

    def change(program: Program) -> Program:
        def of(s: Statement) -> Statement:
            return When(var("rank"), 1, (s,)) if isinstance(s, For) and s.var == "kt" else s

        other = rewritten(program, of)
        pairs = zip(program.roles, other.roles, strict=True)
        return replace(program, roles=tuple(b if a.name == role else a for a, b in pairs))

    return change


def a_turn_less(program: Program) -> Program:
    """Let the other CTA's producer leave out its last step."""

    def of(s: Statement) -> Statement:
        if (
            not isinstance(s, For)
            or s.var != "kt"
            or not any("cp.async" in str(d) for d in dos(s.body))
        ):
            return s
        return replace(s, body=(When(var("kt") + var("rank"), "trips", s.body),))

    return rewritten(program, of)


def released(**changes: Any) -> Callable[[Program], Program]:
    def of(s: Statement) -> Statement:
        if isinstance(s, Arrive) and s.barrier.name == "k_empty":
            return replace(s, **changes)
        return s

    return lambda program: rewritten(program, of)


def expects(factor: float) -> Callable[[Program], Program]:
    def of(s: Statement) -> Statement:
        if isinstance(s, Arrive) and s.barrier.name == "k_full":
            return replace(s, bytes=int(s.bytes * factor))
        return s

    return lambda program: rewritten(program, of)


def both(*changes: Callable[[Program], Program]) -> Callable[[Program], Program]:
    def change(program: Program) -> Program:
        for one in changes:
            program = one(program)
        return program

    return change


ILLEGAL: dict[str, Callable[[Program], Program]] = {
    "half of the arrivals empty a stage": barriers("k_empty", 1),
    "twice the arrivals empty a stage": barriers("v_empty", 4),
    "a stage is released in one CTA": released(to="cta"),
    "and counts as one": both(released(to="cta"), barriers("k_empty", 1)),
    "queries are waited for from both": barriers("q_empty", 2),
    "one CTA multiplies alone": alone("consumer"),
    "one CTA loads alone": alone("producer"),
    "a CTA loads a block less": a_turn_less,
    "a half stays where it is": loads("smem_k", lambda do: replace(do, multicast="")),
    "and is all that is waited for": both(
        loads("smem_k", lambda do: replace(do, multicast="")), expects(0.5)
    ),
    "half of the bytes are expected": expects(0.5),
}  # fmt: skip


@pytest.mark.parametrize("name", ILLEGAL)
def test_a_wrong_protocol_is_illegal(name: str) -> None:
    """By the judge; interpreter and code see it, too, or at least no right result of them all."""
    program = ILLEGAL[name](term())
    assert program != term()
    found = verdict(program)
    assert found.outcome == "illegal", str(found)
    here = sizes(300, 300, h=4)
    random = np.random.default_rng(0)
    shapes = program.operation.shapes(here)
    arrays = {o.name: random.standard_normal(shapes[o.name]) for o in program.operation.inputs}
    assert any(
        interpret(program, here, arrays, scalars={"scale": 0.25}, seed=seed).findings
        for seed in range(12)
    )


def of_first_cta(program: Program) -> Program:
    """Trips of the first CTA's rows alone."""
    ahead = value("n") - value("m")
    end = (value("bm") * 128 + 64 + ahead).ceildiv(64)
    trips = apply("max", apply("min", end, value("n").ceildiv(64)), 0)
    return tile_value("trips", lambda _: trips)(program)


def predicate(change: Callable[[Affine], Affine]) -> Callable[[Program], Program]:
    def of(s: Statement) -> Statement:
        if not isinstance(s, Do) or s.where is None:
            return s
        where = replace(s.where, origin=change(s.where.origin), bound=change(s.where.bound))
        return replace(s, where=where)

    return lambda program: rewritten(program, of)


def fewer_masked(program: Program) -> Program:
    """Mask as many blocks as a CTA alone has to."""

    def of(s: Statement) -> Statement:
        masks = isinstance(s, When) and any(isinstance(b, Do) and b.where for b in s.body)
        return replace(s, bound=int(s.bound) - 1) if masks and isinstance(s, When) else s

    return rewritten(program, of)


WRONG: dict[str, tuple[str, Callable[[Program], Program]]] = {
    "both load the same half": ("unproved", loads("smem_k", source(by_rank(0)))),
    "a half of the block after": ("unproved", loads("smem_k", source(by_rank(3)))),
    "halves change places": (
        "unproved", loads("smem_v", source(lambda f: by_rank(-1)(f) + 32 * ("rank" in str(f)))),
    ),
    "values are of other keys": ("wrong", loads("smem_v", source(
        lambda f: f + 64 * ("rank" in str(f))))),
    "trips of the first CTA": ("wrong", of_first_cta),
    "the mask is the first CTA's": ("wrong", predicate(by_rank(0))),
    "fewer blocks are masked": ("wrong", fewer_masked),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_share_is_not_proved_and_computes_something_else(name: str) -> None:
    outcome, change = WRONG[name]
    program = change(term())
    assert program != term()
    found = mask_cover(program)
    assert found.outcome == outcome, found
    assert not computes(program, sizes(300, 330, d=16, e=8))


def test_a_guarded_share_is_unproved() -> None:
    """Fail closed: whether all CTAs load their part is the guard's affair."""
    guarded = loads("smem_k", lambda do: When(var("rank"), 1, (do,)))
    assert mask_cover(guarded(term())).outcome == "unproved"
    assert verdict(guarded(term())).outcome == "illegal"


def test_tile_values_are_those_of_a_cluster() -> None:
    """No CTA can have trips of its own."""
    with pytest.raises(ProgramError, match="names 'rank'"):
        tile_value("trips", lambda e: e + value("rank"))(term())


@pytest.mark.parametrize("point", ["fa3", "wide", "pair multicast"])
def test_older_schedules_have_no_cluster(point: str) -> None:
    older = {name: v for name, v in STARTS[point].items() if name != "cluster_m"}
    assert Schedule.of(MACHINE, older)["cluster_m"] == 1
    problem = Problem.of(attention(mask="causal"), **sizes(4096, 4096, h=8, d=128, e=128))
    schedule = Schedule.of(MACHINE, older).with_(cluster_m=2)
    broken = [one.law for one in check_schedule(schedule, MACHINE, problem, DEVICE)]
    assert not broken
