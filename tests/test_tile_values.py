"""Tile values: trips that each tile has for itself, and the running number of steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.ptx_runs import parsed, unchecked
from tests.sample import draws
from tests.tile_terms import ALL, BAND, CAUSAL, COLUMNS, LOWER, blocks, flash, masked, write_blocks
from tinygpu.codegen.emit import emit
from tinygpu.codegen.kernel.ptx import Text
from tinygpu.codegen.run.arguments import contract_of, dense
from tinygpu.codegen.run.interpretation import execute
from tinygpu.codegen.runtime.contract import check as check_arguments
from tinygpu.devices.device import load_device
from tinygpu.errors import LaunchError, ProgramError
from tinygpu.isa.memory import DTYPES, GMEM, L2, REGISTERS, SMEM
from tinygpu.legality.concurrency.blocks import laid_out, unfolded
from tinygpu.legality.concurrency.cutoff import Witness
from tinygpu.legality.concurrency.erase import erase
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import LAWS, check_schedule
from tinygpu.legality.reach import Case
from tinygpu.machines import MACHINES
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.meaning.canonical import _Work, canonical_run
from tinygpu.meaning.cluster import tiles_of
from tinygpu.meaning.identity import computes, instances
from tinygpu.meaning.interpret import interpret
from tinygpu.meaning.prime_field import P, prime_field
from tinygpu.meaning.turns import raster_of, taken
from tinygpu.search.exact.best import rank
from tinygpu.search.time.cost import Placed, cost, features
from tinygpu.search.time.recursion import Following, Recursion
from tinygpu.search.time.tile_steps import busiest
from tinygpu.search.time.timeline import timeline
from tinygpu.space.space import Space
from tinygpu.term.access_map import Affine, counted, var
from tinygpu.term.builder import Kernel, trace
from tinygpu.term.expression import Expression, apply, value
from tinygpu.term.machine import Choice, Machine
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.program import (
    Do,
    Elect,
    For,
    ForTile,
    Program,
    Statement,
    Wait,
    When,
    changed,
    each,
    walk,
)
from tinygpu.term.schedule import Schedule
from tinygpu.term.statement import Arrive, Barrier, Body

SIZES = {"m": 200, "n": 72, "k": 136}
TALL = {"m": 264, "n": 72, "k": 136}  # more rows than columns: the first tiles have no blocks
TERMS: dict[str, tuple[Program, Mapping[str, int]]] = {
    "lower, in turn": (blocks(LOWER), SIZES),
    "lower, one consumer": (blocks(LOWER, turns=False), SIZES),
    "lower, one tile a CTA": (blocks(LOWER, turns=False, persistent=0), SIZES),
    "lower, raster 2": (blocks(LOWER, raster=2), SIZES),
    "all": (blocks(ALL), SIZES),
    "causal": (blocks(CAUSAL), TALL),
    "band": (blocks(BAND, stages=2), SIZES),
    "band, snake": (replace(blocks(BAND, stages=2), snake=True), SIZES),
    "causal, in turn, snake": (replace(blocks(CAUSAL), snake=True), TALL),
}
H200 = load_device("h200")
HOPPER = MACHINES["hopper"]


def fields(random: np.random.Generator) -> Callable[[tuple[int, int]], NDArray[Any]]:
    return lambda shape: random.integers(P, size=shape)


# Meaning and code


@pytest.mark.parametrize("name", TERMS)
def test_interpreter_and_canonical_run_give_the_operation(name: str) -> None:
    program, sizes = TERMS[name]
    random = np.random.default_rng(0)
    inputs = masked(program, sizes, lambda shape: random.standard_normal(shape))
    for seed in (0, 1):
        assert interpret(program, sizes, inputs, seed=seed).findings == ()
    field = prime_field(1)
    exact = {n: random.integers(P, size=x.shape) * (x != 0.0) for n, x in inputs.items()}
    exact = {n: x.astype(np.float64) for n, x in exact.items()}
    found, findings, shared = canonical_run(program, sizes, exact, {}, field)
    wanted = program.operation.reference(exact, {}, field)["c"]
    assert (found["c"] == wanted).all()
    assert findings == ()
    assert shared == ""


def run(program: Program, sizes: Mapping[str, int], text: str, clusters: int) -> tuple[Any, bool]:
    """The emulator's report, and whether the product is right."""
    random, bf16 = np.random.default_rng(1), DTYPES["bf16"]
    inputs = masked(program, sizes, lambda shape: random.standard_normal(shape))
    arrays = {n: bf16.round(x) for n, x in inputs.items()}
    arrays["c"] = bf16.round(np.zeros((sizes["m"], sizes["n"])))
    arrays["c"].reshape(-1).view(np.uint8)[:] = 0xFF
    report = execute(program, sizes, arrays, parsed(text), clusters=clusters)
    exact = inputs["a"] @ inputs["b"].T
    near = np.abs(arrays["c"].astype(np.float64) - exact) <= np.abs(exact) * 2.0**-7 + 1e-4
    return report, bool(near.all())


@pytest.mark.parametrize("name", TERMS)
def test_code_gives_the_operation(name: str) -> None:
    program, sizes = TERMS[name]
    report, right = run(program, sizes, emit(program), 3)
    assert not report.findings
    assert right


def test_specialised_code_knows_the_sizes() -> None:
    program = replace(blocks(CAUSAL), specialised=True)
    report, right = run(program, TALL, emit(program, sizes=TALL), 2)
    assert not report.findings
    assert right


NUMBER = st.integers(-70, 70)


@given(st.sampled_from(["add", "sub", "mul", "min", "max", "ceildiv"]), NUMBER, NUMBER)
def test_what_is_known_is_computed_as_code_computes_it(name: str, a: int, b: int) -> None:
    b = abs(b) + 1 if name == "ceildiv" else b
    assert Text().signed(name, a, b) == apply(name, a, b).evaluate({})


@pytest.mark.parametrize("by", [32, 48, 100])
def test_code_rounds_quotients_of_negative_numbers_up(by: int) -> None:
    trips = apply("max", (value("br") * 64 - 150).ceildiv(by) + 1, 0)
    program = blocks({"trips": trips})
    sizes = {"m": 328, "n": 8, "k": 576}
    assert 0 in program.values_of_tiles(sizes)["trips"]
    report, right = run(program, sizes, emit(program), 2)
    assert not report.findings
    assert right


# The counter


def small(draw: st.DataObject, names: list[str]) -> Expression:
    """A random expression of some names."""
    one = value(draw.draw(st.sampled_from(names)))
    number = draw.draw(st.integers(0, 4))
    return draw.draw(
        st.sampled_from(
            [one, one * number, apply("min", one, number), apply("max", 3 - one, 0), one + number]
        )
    )


@settings(max_examples=draws(12, 30), deadline=None)
@given(st.data())
def test_every_walk_counts_as_the_sum_over_the_tiles_before(data: st.DataObject) -> None:
    rows, columns, raster = (data.draw(st.integers(1, 4)) for _ in range(3))
    clusters, step = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    start = data.draw(st.integers(0, step - 1))
    values = (("trips", small(data, ["br", "bc"])), ("more", small(data, ["br", "trips"])))
    loop = ForTile("tile", "turn", (), Affine(start), step, values)
    program = replace(blocks(ALL, turns=False), raster=raster)
    everything = raster_of((rows, columns), raster)
    mine = everything[::clusters]

    def at(place: tuple[int, ...]) -> dict[str, int]:
        known = dict(zip(("br", "bc"), place, strict=True))
        for name, expression in values:
            known[name] = int(expression.evaluate(known))
        return known

    every = [at(place) for place in mine]
    found = list(tiles_of(loop, {}, mine, program))
    own = range(start, len(mine), step)
    assert [(one["tile"], one["turn"]) for one in found] == list(zip(own, range(99), strict=False))
    tiles = [{name: one[name] for name, _ in values} for one in every]
    for turn, (t, one) in enumerate(zip(own, found, strict=True)):
        for name, _ in values:
            assert one[name] == every[t][name]
            before, taken = every[:t], [every[x] for x in own[:turn]]
            assert one[counted("tile", name)] == sum(x[name] for x in before)
            assert one[counted("turn", name)] == sum(x[name] for x in taken)
            assert var("tile", name).evaluate(one) == one[counted("tile", name)]
    # the judge's runs
    barrier = blocks(ALL, turns=False).barriers[0]
    body: Body = (Wait(barrier, var("tile", "trips")), Wait(barrier, var("turn", "more")))
    plan = laid_out(erase(with_tiles(program, replace(loop, body=body))))
    ops = unfolded(plan, 0, tiles, {})
    told = [op.told[0].offset for op in ops if op.kind == "wait"]
    wanted = [(one[counted("tile", "trips")], one[counted("turn", "more")]) for one in found]
    assert told == [number for pair in wanted for number in pair]


def with_tiles(program: Program, loop: ForTile) -> Program:
    """The program whose first role is that loop alone."""
    role = replace(program.roles[0], body=(loop,))
    return replace(program, roles=(role,))


@pytest.mark.parametrize("role", [0, 1])
@pytest.mark.parametrize("snake", [False, True])
def test_the_canonical_run_binds_what_the_interpreter_binds(
    role: int, snake: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = replace(blocks(BAND, raster=2), snake=snake)
    loop = next(s for s in each(program.roles[role].body) if isinstance(s, ForTile))
    names = [*loop.binds, *loop.defines, "br", "bc"]
    names += [counted(v, name) for v in loop.binds for name in loop.defines]
    met: list[tuple[Any, ...]] = []
    plain = _Work.statements

    def noting(self: _Work, body: Body, group: Any) -> None:
        if body is loop.body:
            size = group.who.size
            columns = [np.broadcast_to(group.env[name], size).tolist() for name in names]
            rows = zip(*columns, strict=True)
            for who, row in zip(group.who.tolist(), rows, strict=True):
                met.append((self.grid.rounds.shape[1], who, *row))
        plain(self, body, group)

    monkeypatch.setattr(_Work, "statements", noting)
    sizes = {"m": 460, "n": 136, "k": 264}
    inputs = masked(program, sizes, lambda shape: np.ones(shape))
    canonical_run(program, sizes, inputs, {}, prime_field(0))
    clusters = met[0][0]
    tiles = raster_of(program.grid_extents(sizes), 2)
    assert clusters > 1
    wanted = [
        (clusters, who, *(one[name] for name in names))
        for who in range(clusters * program.roles[role].copies)
        for one in tiles_of(
            loop,
            {**program.parameter_values(sizes), "w": who // clusters},
            taken(tiles, who % clusters, clusters, snake=snake),
            program,
        )
    ]
    assert sorted(met) == sorted(wanted)


def test_one_consumer_takes_all_tiles_so_that_its_turns_count_as_tiles() -> None:
    program = blocks(LOWER, turns=False)
    for role in ("producer", "consumer"):
        program = indices(program, role, WRONG["turn for tile"])
    assert verdict(program).legal
    inputs = masked(program, SIZES, lambda shape: np.ones(shape))
    assert interpret(program, SIZES, inputs).findings == ()
    report, right = run(program, SIZES, emit(program), 2)
    assert not report.findings
    assert right


@settings(max_examples=draws(3, 4), deadline=None)
@given(st.data())
def test_code_and_interpreter_count_alike(data: st.DataObject) -> None:
    expression = apply("min", COLUMNS, small(data, ["br", "bc"]))
    bc_too = "bc" in expression.names()
    program = blocks({"trips": apply("max", expression, 0)}, stages=data.draw(st.integers(1, 3)))
    sizes = {"m": 64 * data.draw(st.integers(1, 4)), "n": 8 if bc_too else 136, "k": 200}
    report, right = run(program, sizes, emit(program), data.draw(st.integers(1, 3)))
    assert not report.findings
    assert right
    random = np.random.default_rng(0)
    inputs = masked(program, sizes, lambda shape: random.standard_normal(shape))
    assert interpret(program, sizes, inputs).findings == ()


def indices(program: Program, role: str, change: Callable[[Affine], Affine]) -> Program:
    """The program with the indices of rings and barriers of a role changed."""

    def of(s: Statement) -> Statement:
        return s.with_forms(change) if isinstance(s, Wait | Do) or s.uses else s

    roles = tuple(
        replace(r, body=changed(r.body, of)) if r.name == role else r for r in program.roles
    )
    return replace(program, roles=roles)


def terms(form: Affine, to: Callable[[tuple[str, Any]], tuple[tuple[str, Any], ...]]) -> Affine:
    return Affine(form.constant, tuple(new for one in form.terms for new in to(one)))


COUNTER = ("tile", "trips")
WRONG: dict[str, Callable[[Affine], Affine]] = {
    "not advanced": lambda f: terms(f, lambda one: () if one == COUNTER else (one,)),
    "advanced twice": lambda f: terms(f, lambda one: (one, one) if one == COUNTER else (one,)),
    "by another value": lambda f: terms(
        f, lambda one: (("tile", "more"),) if one == COUNTER else (one,)
    ),
    "turn for tile": lambda f: terms(
        f, lambda one: (("turn", "trips"),) if one == COUNTER else (one,)
    ),
}


@pytest.mark.parametrize("role", ["producer", "consumer"])
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_counter_dies(name: str, role: str) -> None:
    values = {**LOWER, "more": value("br") + 1}
    right = blocks(values)
    wrong = indices(right, role, WRONG[name])
    assert verdict(right).legal
    if role == "producer" and name == "turn for tile":  # it takes all tiles: both count the same
        wrong = indices(right, "consumer", WRONG[name])
    assert not verdict(wrong).legal
    random = np.random.default_rng(0)
    inputs = masked(right, SIZES, lambda shape: random.standard_normal(shape))
    assert interpret(wrong, SIZES, inputs).findings
    report, good = run(right, SIZES, unchecked(wrong), 2)
    assert report.findings or not good


def test_each_line_that_counts_is_needed() -> None:
    program = blocks({"trips": apply("min", COLUMNS, value("br") + 1)})
    lines = emit(program).splitlines()
    begins = [line.split()[1].rstrip(",") for line in lines if line.endswith(", 0;")]
    adds = [
        n for n, line in enumerate(lines)
        if line.startswith("\tadd.s32") and line.split()[1] == line.split()[2]
        and line.split()[1].rstrip(",") in begins and not line.rstrip(";").split()[-1].isdigit()
    ]  # fmt: skip
    assert len(adds) == 4  # the producer's, and before, in and between the consumer's tiles
    for n in adds:
        report, right = run(program, SIZES, "\n".join([*lines[:n], *lines[n + 1 :], ""]), 1)
        assert report.findings or not right, lines[n]


# The judge


@pytest.mark.parametrize("name", TERMS)
def test_tile_values_are_proved_for_all_trips(name: str) -> None:
    found = verdict(TERMS[name][0])
    assert found.legal, str(found)
    assert ("each tile its own" in found.by) == (name != "lower, one tile a CTA")


def test_a_value_of_at_least_one_may_lack_what_an_empty_tile_needs() -> None:
    assert verdict(flash(trips=COLUMNS, meets=False)).legal
    found = verdict(flash(meets=False))
    assert found.outcome == "illegal"
    assert str(found.run) == "tiles=2, trips=0"


@pytest.mark.parametrize("pingpong", [False, True])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_the_protocol_of_attention_is_proved(stages: int, pingpong: bool) -> None:
    found = verdict(flash(stages=stages, pingpong=pingpong))
    assert found.legal, str(found)
    assert found.states <= 60


def without(kind: type, place: int = 0) -> Callable[[str, Body], Body]:
    """Drop the place-th statement of a kind of the step's body."""

    def change(where: str, body: Body) -> Body:
        if where != "step":
            return body
        at = [i for i, s in enumerate(body) if isinstance(s, kind)][place]
        return body[:at] + body[at + 1 :]

    return change


def unless_empty(where_wanted: str, first: int, last: int) -> Callable[[str, Body], Body]:
    """Let a tile without keys leave statements out."""

    def change(where: str, body: Body) -> Body:
        if where != where_wanted:
            return body
        guard = When(Affine(), "trips", body[first:last])
        return (*body[:first], guard, *body[last:])

    return change


FAULTS: dict[str, Program] = {
    "the producer loops to another value": flash(other="other"),
    "the producer begins at step 1": flash(start=1),
    "an empty tile's Q is not waited for": flash(change=unless_empty("tile", 0, 1)),
    "an empty tile's Q is not loaded": flash(change=unless_empty("producer", 0, 3)),
    "K is not waited for": flash(change=without(Wait)),
    "V is not waited for": flash(change=without(When)),
    "V is not released": flash(change=without(When, 1)),
    "K is not released": flash(pingpong=False, change=without(Elect)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_attention_are_illegal(name: str) -> None:
    found = verdict(FAULTS[name])
    assert found.outcome == "illegal", f"{name}: {found}"


def test_roles_that_loop_to_different_values_are_told_apart() -> None:
    more = {**LOWER, "more": LOWER["trips"] + 1}
    assert verdict(blocks(more, consumers=more)).legal
    found = verdict(blocks(more, consumers=more, to="more"))
    assert found.outcome == "illegal"
    assert "more" in str(found.run)


# A space


class Blocks(Machine):
    """The matmul of blocks, with decisions."""

    name, numeric, operations = "blocks", True, ("matmul",)
    levels = (GMEM, L2, SMEM, REGISTERS)
    instructions = Hopper.instructions
    stages, tile_n, raster = Choice(2, 4, 16), Choice(64, 128), Choice(1, 4)

    def forward(self, k: Kernel) -> None:
        """Write it."""
        write_blocks(k, CAUSAL, stages=self.stages, tile_n=self.tile_n, raster=self.raster)


def test_a_space_of_terms_with_tile_values_is_that_of_its_schedules() -> None:
    machine, problem = Blocks(), Problem.of(matmul("bf16", layout="nt"), m=1000, n=1000, k=1504)
    found = Space(machine, problem, H200)
    every = [
        Schedule.of(machine, {"stages": s, "tile_n": n, "raster": r})
        for s, n, r in product((2, 4, 16), (64, 128), (1, 4))
    ]
    legal = [one for one in every if not check_schedule(one, machine, problem, H200)]
    assert 0 < found.count() < len(every)
    assert set(found) == set(legal)
    ranked = [one.seconds for one in rank(found, len(legal)).best]
    seconds = [
        cost(machine.term(problem.operation, one.chosen()), problem.sizes, H200).seconds
        for one in legal
    ]
    assert ranked == pytest.approx(sorted(seconds))


# What is refused


def faulty(**values: Expression) -> Callable[[], Program]:
    return lambda: blocks(values)


REFUSED: dict[str, tuple[Callable[[], Program], str]] = {
    "negative": (faulty(trips=value("br") - 1), "may be -1; it has to be 0 or more"),
    "unknown": (faulty(trips=value("bx")), "tile value trips names 'bx'"),
    "size's name": (faulty(m=value("br"), trips=value("br")), "has the name of a size"),
    "digit's name": (faulty(br=value("k"), trips=value("k")), "has the name of a size"),
    "element of a size": (
        faulty(trips=apply("element", value("k"), value("br"))),
        "trips = element(k, br) reads k; a tile value looks up elements of an array of integers",
    ),
    "later one": (faulty(trips=value("more"), more=value("k")), "tile value trips names 'more'"),
    "roles disagree": (
        lambda: blocks(LOWER, consumers=ALL),
        "is ceildiv(k, 64) in one loop over tiles|is min(ceildiv(k, 64), br) in one loop",
    ),
    "a product": (
        lambda: indices(
            blocks(LOWER), "consumer", lambda f: terms(
                f, lambda one: (("kt", "trips"),) if one == ("kt", 1) else (one,)
            )
        ),
        "multiplies kt by trips, a tile value",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_tile_value_is_refused(name: str) -> None:
    make, texts = REFUSED[name]
    with pytest.raises(ProgramError) as error:
        make()
    assert any(text in str(error.value) for text in texts.split("|"))


def test_a_program_has_no_name_of_a_value_outside_of_its_tiles() -> None:
    program = blocks(LOWER)
    (tiles, end) = program.roles[0].body
    outside = replace(program.roles[0], body=(tiles, When(Affine(), "trips", (end,))))
    with pytest.raises(ProgramError, match="names 'trips'"):
        replace(program, roles=(outside, *program.roles[1:]))


def written(body: Callable[[Kernel], None]) -> Program:
    def forward(k: Kernel) -> None:
        k.launch(persistent=1)
        k.grid(br=4)
        with k.role("all", warps=4):
            body(k)

    return trace("small", forward, matmul("bf16", layout="nt"))


def test_the_builder_says_what_is_wrong() -> None:
    def misspelt(k: Kernel) -> None:
        for tile in k.tiles(trips=value("br")):
            k.loop("kt", trips=tile.trip)

    def no_expression(k: Kernel) -> None:
        for _ in k.tiles(trips=3):  # type: ignore[arg-type]
            pass

    def start_alone(k: Kernel) -> None:
        for tile in k.tiles(begin=value("br")):
            k.loop("kt", over="k", start=tile.begin)

    def both(k: Kernel) -> None:
        for tile in k.tiles(trips=value("br")):
            for _ in k.loop("kt", over="k", trips=tile.trips):
                pass
            k.loop("kt")

    for body, text in (
        (misspelt, "tile: no value trip; known are trips"),
        (no_expression, "tiles: trips"),
        (start_alone, "and its trips are no tile value"),
        (both, "runs to a tile value elsewhere"),
    ):
        with pytest.raises(ProgramError, match=text):
            written(body)


def test_a_condition_asks_for_a_value() -> None:
    def body(k: Kernel) -> None:
        for tile in k.tiles(trips=value("br")):
            with k.when(tile.trips >= 1):
                k.sync("role")
            for step in k.loop("kt", over="k", by=64, trips=tile.trips):
                with k.when(step + 1 < tile.trips):
                    k.sync("role")

    texts = [str(s) for s in each(written(body).roles[0].body) if isinstance(s, When | For)]
    assert texts == ["when 0 < trips", "for kt in 0..trips", "when kt + 1 < trips"]


# Sizes, laws and launches


def test_computes_says_that_masks_are_not_proved() -> None:
    found = computes(blocks(ALL))
    assert found
    assert not found.proved
    assert "trips: each tile's own; mask cover unproved: " in str(found)


@pytest.mark.parametrize("values", [LOWER, CAUSAL, BAND], ids=["lower", "causal", "band"])
def test_instances_have_tiles_that_differ_and_an_empty_one(values: Any) -> None:
    program = blocks(values)
    every = [program.values_of_tiles(sizes)["trips"] for sizes in instances(program)]
    assert any(0 in each for each in every)
    assert any(len({*each} - {0}) > 1 for each in every)


def test_computes_finds_that_blocks_are_left_out() -> None:
    assert computes(blocks(LOWER)).finding is not None


def test_a_store_in_a_loop_to_a_tile_value_is_not_proved_to_be_whole() -> None:
    def clauses(program: Program) -> list[str]:
        case = Case.of(program, {"m": 128, "n": 128, "k": 128}, H200)
        every = (c for law in LAWS.values() for c in law.clauses(case))
        return [str(c) for c in every if not np.all(c.holds)]

    program = blocks(LOWER)
    assert clauses(program) == []
    (store,) = (s for s, _ in walk(program) if isinstance(s, Do) and s.write.buffer.name == "c")
    rows, columns = store.write.origin
    along = replace(store, write=replace(store.write, origin=(rows, columns + var("kt", 64))))

    def inside(s: Statement) -> Statement:
        return replace(s, body=(*s.body, along)) if isinstance(s, For) and s.var == "kt" else s

    consumer, producer = program.roles
    moved = replace(consumer, body=changed(consumer.body, inside))
    found = clauses(replace(program, roles=(moved, producer)))
    assert any("moves with kt, whose trips are each tile's own" in text for text in found)


def test_a_launch_checks_what_tiles_compute() -> None:
    far = {"trips": apply("min", COLUMNS, value("br") * (1 << 24))}
    contract = contract_of(blocks(far))
    for m, fits in ((64 * 128, True), (64 * 200, False)):
        sizes = {"m": m, "n": 64, "k": 64}
        views = dense(Problem.of(matmul("bf16", layout="nt"), **sizes))
        if fits:
            assert check_arguments(contract, views)["m"] == m
            continue
        with pytest.raises(LaunchError, match="counts from 0 to"):
            check_arguments(contract, views)


# Time


@pytest.mark.parametrize("sizes", [(512, 512, 1024), (6000, 512, 1024), (64 * 400, 64, 4096)])
def test_alike_tiles_take_as_long_as_by_a_parameter(sizes: tuple[int, int, int]) -> None:
    at = dict(zip("mnk", sizes, strict=True))
    one, other = (cost(blocks(values), at, H200).seconds for values in (ALL, None))
    assert one == pytest.approx(other, rel=1e-3)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40), st.integers(1, 50))
def test_the_busiest_has_the_most_steps(steps: list[int], many: int) -> None:
    found = busiest(np.array(steps), many)
    every = [tuple(steps[first::many]) for first in range(min(many, len(steps)))]
    assert found in every
    assert (sum(found), len(found)) == max((sum(one), len(one)) for one in every)


def test_unequal_tiles_take_as_long_as_the_busiest_cta(monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[tuple[int, ...]] = []
    plain = Recursion._sequence

    def noting(self: Recursion, some: Any, taken: tuple[int, ...], size: int) -> Any:
        followed.append(taken)
        return plain(self, some, taken, size)

    monkeypatch.setattr(Recursion, "_sequence", noting)
    many = int(Placed.of(features(blocks(ALL), SIZES, H200)).at_once)
    sizes = {"m": 64 * 2 * many, "n": 64, "k": 64 * 400}

    def found(trips: Expression) -> float:
        return float(cost(blocks({"trips": trips}), sizes, H200).seconds)

    late = apply("max", (value("br") - (2 * many - 1)) * 1000 + 400, 1)  # the last tile has 400
    first = apply("max", 400 - value("br") * 1000, 1)
    every = [found(late), found(first)]
    assert followed == [(1, 400), (400, 1)]  # each tile with its own
    short, mean, long = (found(apply("min", COLUMNS, n)) for n in (1, 201, 400))
    assert all(short < one < long for one in every)
    assert every == pytest.approx([mean, mean], rel=0.1)


@pytest.mark.parametrize("counts", ["tile", "turn"])
def test_time_counts_the_steps_of_the_tiles_before(
    counts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = blocks(LOWER, turns=False)
    for role in ("producer", "consumer") if counts == "turn" else ():
        program = indices(program, role, WRONG["turn for tile"])
    met: list[int] = []
    plain = Following.complete

    def noting(self: Following, barrier: str, index: Any, at: Any, mask: Any) -> None:
        if barrier == "empty":
            met.append(int(index))
        plain(self, barrier, index, at, mask)

    monkeypatch.setattr(Following, "complete", noting)
    run_of = Following(Placed.of(features(program, SIZES, H200)).agents, 1.0, 3, 1)
    run_of.followed(3, [(3, 3), (0, 0), (2, 2)], 3)
    assert met == [0, 1, 2, 3, 4]


def test_a_run_keeps_the_values_of_its_tiles_where_parameters_are_made_alike() -> None:
    tiles = (("p", 1), ("own", 2)), (("p", 3), ("own", 4))
    assert Witness(tiles).levelled({"own"}) == (
        Witness(((("p", 1), ("own", 2)), (("p", 1), ("own", 4)))),
        Witness(((("p", 3), ("own", 2)), (("p", 3), ("own", 4)))),
    )


def test_a_space_is_timed_as_each_of_its_schedules() -> None:
    stages, columns = np.array([[2], [4]]), np.array([[64, 128, 256]])
    sizes = {"m": 1000, "n": 1000, "k": 1504}
    every = np.asarray(cost(blocks(CAUSAL, stages=stages, tile_n=columns), sizes, H200).seconds)
    for i, j in product(range(2), range(3)):
        program = blocks(CAUSAL, stages=int(stages[i, 0]), tile_n=int(columns[0, j]))
        assert every[i, j] == pytest.approx(cost(program, sizes, H200).seconds)


def test_time_refuses_a_guard_on_another_value() -> None:
    program = blocks({**LOWER, "more": value("br")}, turns=False)

    def guarded(s: Statement) -> Statement:
        return When(Affine(), "more", (s,)) if isinstance(s, Elect) and not s.body[0].body else s

    consumer, producer = program.roles
    wrong = replace(
        program, roles=(replace(consumer, body=changed(consumer.body, guarded)), producer)
    )
    with pytest.raises(ProgramError, match="compares with more; the time model follows trips"):
        cost(wrong, SIZES, H200)


def test_a_timeline_has_each_tile_with_its_steps() -> None:
    steps = apply("max", 3 - apply("max", value("br") * 1000 - 131 * 1000, 0), 1)
    line = timeline(blocks({"trips": steps}, turns=False), {"m": 64 * 264, "n": 64, "k": 256}, H200)
    products = [e.iteration for e in line.events if e.row == "tensor cores"]
    assert products == ["tile=0 kt=0", "tile=0 kt=1", "tile=0 kt=2", "tile=1 kt=0"]


@pytest.mark.parametrize("negated", [False, True])
def test_a_guard_by_a_tile_value_is_tried_with_tiles_that_differ(negated: bool) -> None:
    """A mark that odd tiles set, and odd tiles wait for: right if all tiles are odd, or none is.

    Where an odd tile follows an even one, the producer waits for a mark that nobody sets.
    """
    program = Schedule.of(HOPPER, STARTS["persistent"]).program(HOPPER, matmul("bf16"))
    mark = Barrier("mark", stages=2, arrivals=sum(r.copies for r in program.roles if r.copy))

    def marked(
        values: tuple[tuple[str, Expression], ...], index: Affine, bound: int | str
    ) -> Program:
        def of(s: Statement) -> Statement:
            if not isinstance(s, ForTile):
                return s
            if any(isinstance(inner, Arrive) and inner.bytes for inner in each(s.body)):
                wait = When(index, bound, (Wait(mark, var(s.tile) + -1),))
                return replace(s, body=(wait, *s.body), values=values)
            arrive = When(index, bound, (Elect((Arrive(mark, var(s.tile)),)),))
            return replace(s, body=(*s.body, arrive), values=values)

        roles = tuple(replace(r, body=changed(r.body, of)) for r in program.roles)
        return replace(program, roles=roles, barriers=(*program.barriers, mark))

    assert verdict(marked((), Affine(), 1)).legal
    odd = apply("min", value("bc"), 1)
    found = verdict(marked((("odd", odd),), *((var("odd"), 1) if negated else (Affine(), "odd"))))
    assert found.outcome == "illegal"
    assert found.run is not None
    assert len({dict(tile)["odd"] for tile in found.run.tiles}) == 2
