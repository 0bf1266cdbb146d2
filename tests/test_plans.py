"""Plans: steps that share arrays, what is checked of them, and each walk that composes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fake_gpu import CupyArray, Gpu
from tests.sample import draws
from tests.test_cli import tinygpu
from tinygpu.codegen.emit import emit
from tinygpu.codegen.emulator import Module
from tinygpu.codegen.run.arguments import contract_of, dense
from tinygpu.codegen.run.interpretation import COMPLETIONS
from tinygpu.codegen.run.interpretation import interpret as emulate
from tinygpu.codegen.run.launch import Kernel
from tinygpu.codegen.runtime.contract import Contract
from tinygpu.codegen.runtime.steps import check_steps, step_views, workspace_bytes
from tinygpu.devices.device import load_device
from tinygpu.errors import IllegalScheduleError, LaunchError, OperationError, ProgramError
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import check_schedule, require_legal, serves
from tinygpu.machines import MACHINES
from tinygpu.machines.hopper import STARTS
from tinygpu.meaning.composition import by_reference, composed
from tinygpu.meaning.identity import computes
from tinygpu.meaning.interpret import check, reduced
from tinygpu.meaning.prime_field import prime_field
from tinygpu.search.exact.best import rank
from tinygpu.search.time.cost import cost
from tinygpu.space.space import Space
from tinygpu.term.expression import Constant, value
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.plan import Plan, PlanStep, kernels_of, one_kernel, steps_of
from tinygpu.term.program import Elect, For, ForTile, Program, Statement, changed
from tinygpu.term.schedule import Schedule, to_json
from tinygpu.term.statement import Wait
from tinygpu.term.text import parse

SPLIT, H100 = MACHINES["hopper_split"], load_device("h100")
OPERATIONS = {
    "nt": matmul("bf16", layout="nt"),
    "nn": matmul("bf16", layout="nn"),
    "tn, bias": matmul("bf16", layout="tn", bias=True, activation="gelu"),
    "f32 out": matmul("f16", layout="nt", output="f32"),
}
DEEP = Problem.of(OPERATIONS["nt"], m=512, n=512, k=16384)


def schedule(parts: int = 4, **changes: Any) -> Schedule:
    return Schedule.of(SPLIT, {**STARTS["ring"], "split_k": parts, "add_vector": 4, **changes})


def plan(name: str = "nt", parts: int = 4, **changes: Any) -> Plan:
    built = schedule(parts, **changes).term(SPLIT, OPERATIONS[name])
    assert isinstance(built, Plan)
    return built


# What a plan is


def test_a_plan_has_steps_and_what_lies_between() -> None:
    built = plan()
    assert [p.name for p in kernels_of(built)] == ["hopper_parts", "add_parts"]
    (first, own), (_, other) = steps_of(built, DEEP.sizes)
    assert own == {"l": 4, "m": 512, "n": 512, "k": 4096}
    assert other == {"l": 4, "m": 512, "n": 512}
    assert first.operation.output.dtype == "f32"
    assert [(n, o.name, o.axes) for n, o in built.workspaces] == [(0, "parts", ("l", "m", "n"))]
    assert set(built.cuts(DEEP.sizes)) == {("a", "k", 16384, 4), ("b", "k", 16384, 4)}
    with pytest.raises(ProgramError, match="it has the kernels hopper_parts, add_parts"):
        one_kernel(built)
    with pytest.raises(ProgramError, match="take one of its steps"):
        schedule().program(SPLIT, OPERATIONS["nt"])


def _used(number: int, **arrays: str) -> Callable[[Plan], Plan]:
    def of(built: Plan) -> Plan:
        steps = list(built.steps)
        old = {u.operand: f"{u.array}[{', '.join(map(' '.join, u.axes))}]"
               for u in steps[number].uses}  # fmt: skip
        sizes = dict(steps[number].sizes)
        steps[number] = PlanStep.of(steps[number].program, sizes, **{**old, **arrays})
        return replace(built, steps=tuple(steps))

    return of


MALFORMED: dict[str, tuple[Callable[[Plan], Plan], str]] = {
    "no such form": (_used(0, a="a(m, k)"), "write it as"),
    "another axis": (_used(0, a="a[m, k]"), "has other axes"),
    "too many axes": (_used(0, a="a[m, l, k]"), "a has 2 axes"),
    "read before it is written": (_used(0, a="parts[m, l k]"), "not written yet"),
    "unknown array": (_used(1, parts="part[l, m, n]"), "not written yet"),
    "of another type": (_used(1, parts="a[l m, n]"), "it is bf16"),
    "written over": (_used(0, c="a[l m, n]"), "an input, written before"),
    "an operand without an array": (
        lambda p: replace(p, steps=(replace(p.steps[0], uses=p.steps[0].uses[1:]), p.steps[1])),
        "and arrays are given of",
    ),
    "one step": (lambda p: replace(p, steps=p.steps[:1]), "two or more"),
    "the same kernel twice": (lambda p: replace(p, steps=(p.steps[0],) * 2), "different names"),
    "nobody writes c": (_used(1, c="d[m, n]"), "no step writes c"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_no_plan_is_refused(name: str) -> None:
    change, why = MALFORMED[name]
    with pytest.raises(ProgramError, match=why.replace("[", r"\[")):
        change(plan())


# What it means


@settings(max_examples=draws(8, 30), deadline=None)
@given(st.sampled_from(list(OPERATIONS)), st.integers(2, 5), st.tuples(*[st.integers(1, 6)] * 3))
def test_parts_compose_to_the_whole(name: str, parts: int, size: tuple[int, int, int]) -> None:
    operation, (m, n, k) = OPERATIONS[name], size
    sizes, field = {"m": m, "n": n, "k": k * parts}, prime_field(1)
    random = np.random.default_rng(0)
    inputs = {o.name: random.integers(field.modulus, size=operation.shapes(sizes)[o.name])
              .astype(float) for o in operation.inputs}  # fmt: skip
    built = schedule(4).term(SPLIT, operation)
    assert isinstance(built, Plan)
    steps = tuple(
        replace(step, sizes=(("l", Constant(parts)), *((n, e) for n, e in step.sizes if n != "l")))
        for step in built.steps
    )
    steps = (replace(steps[0], sizes=(steps[0].sizes[0], ("k", value("k").ceildiv(parts)))),
             steps[1])  # fmt: skip
    arrays = composed(replace(built, steps=steps), sizes, inputs, by_reference({}, field))
    assert (arrays["c"] == operation.reference(inputs, {}, field)["c"]).all()


@pytest.mark.parametrize("name", OPERATIONS)
def test_plans_are_legal_and_compute_their_operation(name: str) -> None:
    built = plan(name)
    assert check_schedule(schedule(), SPLIT, Problem.of(OPERATIONS[name], **DEEP.sizes), H100) == ()
    judged = verdict(built)
    assert judged.legal
    assert "hopper_parts for every trips; add_parts for its one run" in str(judged)
    found = computes(built)
    assert found
    assert not found.proved
    assert found.asked[-1]["k"] % 4 == 0


def _edited(number: int, of: Callable[[Program], Program]) -> Callable[[Plan], Plan]:
    def change(built: Plan) -> Plan:
        steps = list(built.steps)
        steps[number] = replace(steps[number], program=of(steps[number].program))
        return replace(built, steps=tuple(steps))

    return change


def _one_part_less(program: Program) -> Program:
    def of(s: Statement) -> Statement:
        if not isinstance(s, For) or s.var != "part":
            return s
        return replace(s, trips=int(s.trips) - 1)

    roles = tuple(replace(r, body=changed(r.body, of)) for r in program.roles)
    return replace(program, roles=roles)


WRONG: dict[str, Callable[[Plan], Plan]] = {
    "a is cut otherwise than b": _used(0, a="a[m, k l]"),
    "a part is left out": _edited(1, _one_part_less),
    "rows for columns": _used(0, c="parts[l, n, m]"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_plan_is_seen_by_both_meanings(name: str) -> None:
    wrong = WRONG[name](plan(tile_m=64, tile_n=64, store_n=64))
    assert computes(wrong).wrong
    sizes = {"m": 64, "n": 64, "k": 256}
    assert any(f.kind == "wrong_result" for f in check(wrong, sizes, seeds=(0,)))


def test_both_cut_otherwise_is_another_order_of_the_same_sum() -> None:
    """Terms of a sum may be dealt to parts in any way, but TMA has no code for each fourth."""
    other = _used(0, a="a[m, k l]", b="b[n, k l]")(plan())
    assert computes(other)
    with pytest.raises(LaunchError, match="stride 4 in dimension 2"):
        check_steps(contract_of(other), dense(DEEP))


@pytest.mark.parametrize("name", ["nt", "tn, bias"])
def test_interpreter_and_code_agree_with_the_operation(name: str) -> None:
    small = {"tile_m": 64, "tile_n": 64, "store_n": 32, "epilogue": "tma", "stages": 2}
    built = plan(name, 2, **small)
    sizes = reduced(Problem.of(OPERATIONS[name], **DEEP.sizes), built)
    assert all(sizes[axis] % 64 for axis in "mn")
    assert check(built, sizes, seeds=(0, 1)[: draws(1, 2)]) == ()
    orders = COMPLETIONS[: draws(1, 3)]
    assert emulate(built, sizes, arch="sm_90a", completions=orders).right


def test_a_second_kernel_that_does_not_wait_races() -> None:
    """It may start while the first still writes; the emulator lets it."""
    built = plan("nt", 2, tile_m=64, tile_n=64, store_n=32, epilogue="tma", stages=2)
    sizes = {"m": 64, "n": 64, "k": 256}
    text = emit(built, "sm_90a", unchecked=True)
    first, second = text.split(".visible .entry add_parts")
    hasty = second.replace("griddepcontrol.wait;", "")
    assert hasty != second
    for code, kinds in ((text, set()), (f"{first}.visible .entry add_parts{hasty}", {"race"})):
        run = emulate(built, sizes, arch="sm_90a", text=code, completions=("late",))
        assert {finding.kind for finding in run.findings} == kinds


def _never_waits(program: Program) -> Program:
    def of(s: Statement) -> Statement:
        left = tuple(x for x in s.body if not isinstance(x, Wait))
        return replace(s, body=left) if isinstance(s, For | ForTile | Elect) else s

    return replace(program, roles=tuple(replace(r, body=changed(r.body, of))
                                        for r in program.roles))  # fmt: skip


def test_a_race_in_a_step_is_found_in_the_plan() -> None:
    assert verdict(_edited(0, _never_waits)(plan())).outcome == "illegal"


# What is asked of sizes and arrays


def test_cuts_have_to_be_even() -> None:
    uneven = Problem.of(OPERATIONS["nt"], m=512, n=512, k=16384 - 8)
    broken = check_schedule(schedule(16), SPLIT, uneven, H100)
    assert "even_cuts" in [v.law for v in broken]
    assert "split_k 16" in str(broken[0])
    built = plan(parts=16)
    assert next(v.law for v in serves(built, uneven.sizes)) == "even_cuts"
    with pytest.raises(LaunchError, match="parts have to be equal"):
        check_steps(contract_of(built), dense(uneven))
    with pytest.raises(IllegalScheduleError, match="even_cuts"):
        require_legal(schedule(16), SPLIT, uneven, H100)


def test_a_batch_is_refused() -> None:
    with pytest.raises(OperationError, match="with a batch"):
        SPLIT.check(matmul("bf16", batched=True))


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_contract_is_data_and_steps_see_views(name: str) -> None:
    contract = contract_of(plan(name))
    assert Contract.of(json.loads(json.dumps(contract.tree()))) == contract
    problem = Problem.of(OPERATIONS[name], **DEEP.sizes)
    check_steps(contract, dense(problem))
    assert workspace_bytes(contract, dense(problem)) == 4 * 512 * 512 * 4
    (a, *_), (parts, *_) = step_views(contract, dense(problem), 4096)
    assert a.shape == (4, *((4096, 512) if name == "tn, bias" else (512, 4096)))[:3]
    assert (parts.pointer, parts.shape, parts.strides) == (4096, (4, 512, 512), (2**18, 512, 1))


def test_one_module_has_both_kernels() -> None:
    text = emit(plan("nn", early=1))
    assert text.count(".visible .entry") == 2
    assert text.count(".version") == text.count(".extern") == 1
    assert text.count("griddepcontrol.wait") == 2
    Module.parse(text)


# Time and search


def test_time_adds_up_and_the_best_of_a_space_is_found() -> None:
    built = plan()
    whole = cost(built, DEEP.sizes, H100)
    each = [cost(program, own, H100) for program, own in steps_of(built, DEEP.sizes)]
    assert whole.seconds == pytest.approx(sum(one.seconds for one in each))
    assert whole.parts["launch"] == pytest.approx(sum(one.parts["launch"] for one in each))
    fixed: dict[str, Any] = {
             "tile_m": 64, "tile_n": (64, 128), "consumers": 1, "cluster_m": 1, "cluster_n": 1,
             "raster": 1, "swap": 0, "tile_k": 64, "ctas_per_sm": 1}  # fmt: skip
    found = rank(Space(SPLIT, DEEP, H100, fixed=fixed), 3)
    assert found.proven
    for one in found.best:
        assert not check_schedule(one.schedule, SPLIT, DEEP, H100)
        term = one.schedule.term(SPLIT, DEEP.operation)
        assert cost(term, DEEP.sizes, H100).seconds == pytest.approx(one.seconds)
    assert found.best[0].seconds <= whole.seconds


# Launches


def test_steps_follow_one_another_in_memory_of_their_stream(fake: Gpu) -> None:
    operation = matmul("f16", layout="nt")
    built = schedule(4, early=1).term(SPLIT, operation)
    kernel = Kernel(built, arch="sm_90a")
    a, b, c = (CupyArray(shape, np.float16) for shape in ((512, 1024), (256, 1024), (512, 256)))
    for stream in (5, 5, 6):
        kernel(a, b, out=c, stream=stream)
    told = fake.launched()
    assert [one.stream for one in told] == [5, 5, 5, 5, 6, 6]
    assert [one.attributes for one in told] == [((6, 1),)] * 6  # each may start early
    between = []
    for number, one in enumerate(told):
        program = kernels_of(built)[number % 2]
        _, pointers, integers, _ = one.arguments(program)
        assert integers["l"] == 4
        between.append(pointers[2 * (1 - number % 2)])
        if number % 2:
            assert pointers == [between[-1], c.data.ptr]
        else:
            assert pointers == [a.data.ptr, b.data.ptr, between[-1]]
            assert (integers["k"], integers["ls_a"], integers["ld_a"]) == (256, 256, 1024)
    assert len({*between[:4]}) == len({*between[4:]}) == 1
    assert between[0] != between[4]


def test_a_plan_that_cannot_take_arrays_says_why(fake: Gpu) -> None:
    kernel = Kernel(schedule(4).term(SPLIT, matmul("f16", layout="nt")), arch="sm_90a")
    a, b = CupyArray((512, 1026), np.float16), CupyArray((256, 1026), np.float16)
    with pytest.raises(LaunchError, match="1026 is cut into 4 x 257 = 1028"):
        kernel(a, b)


# Files and the command line


def test_the_command_line_takes_a_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(to_json(schedule(tile_m=64, tile_n=64, store_n=64), DEEP, device="h100"))
    tinygpu("emit", str(path), "--output", str(tmp_path / "plan.ptx"), "--term",
            str(tmp_path / "plan.term"))  # fmt: skip
    assert (tmp_path / "plan.ptx").read_text().count(".visible .entry") == 2
    texts = [(tmp_path / name).read_text() for name in ("plan.term", "plan.2.term")]
    assert [parse(text).name for text in texts] == ["hopper_parts", "add_parts"]
    told = tinygpu("check", str(path), "--certificate", str(tmp_path / "k.json"))
    assert told.exit_code == 0
    assert "legal" in told.stdout
    assert "add_parts" in told.stdout
    for term, certificate in (("plan.term", "k.json"), ("plan.2.term", "k.2.json")):
        verified = tinygpu("verify", str(tmp_path / term), str(tmp_path / certificate))
        assert verified.exit_code == 0, verified.output
    explained = tinygpu("explain", str(path), "--json")
    tree = json.loads(explained.stdout)
    built = schedule(tile_m=64, tile_n=64, store_n=64).term(SPLIT, DEEP.operation)
    assert tree["seconds"] == pytest.approx(cost(built, DEEP.sizes, H100).seconds)
    assert "kernel 1 of 2, which takes longest" in tinygpu("explain", str(path)).stdout
    picture = tmp_path / "timeline.png"
    assert tinygpu("plot", "timeline", str(path), "--output", str(picture)).exit_code == 0
    assert picture.stat().st_size > 5_000
