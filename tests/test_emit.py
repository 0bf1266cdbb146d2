"""Code: the PTX is the term's, whole and nothing else, and ptxas takes it everywhere."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.ptx_runs import unchecked as emit
from tests.sample import SHARED, all_by_turns, by_turns, draws
from tinygpu.codegen.emit import signature
from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.run.interpretation import COMPLETIONS, interpret
from tinygpu.devices.device import load_device
from tinygpu.errors import ProgramError
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.meaning.interpret import check
from tinygpu.space.space import Space
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.program import Commit, Do, Exit, For, Program, Statement, Sync, WaitGroup, When

ARCHITECTURES = ("sm_80", "sm_90a", "sm_120")
SMALL: dict[str, Any] = {
    **LADDER["multi-stage"], "tile_m": 16, "tile_n": 16, "tile_k": 8, "thread_m": 2, "thread_n": 2,
    "lanes_m": 4, "vector_a": 2, "vector_b": 2, "vector_shared": 2, "vector_c": 2, "pad_a": 0,
    "k_step": 4,
}  # fmt: skip
REGISTER = {**SMALL, "issue": 1}  # none of its loops is empty
PLAIN = {**SMALL, "pipeline": "none", "stages": 1}
ASYNC = {**SMALL, "pipeline": "cp.async", "stages": 3, "a_layout": "mk", "issue": 1}
FRAGMENTS = {**ASYNC, "pipeline": "cp.async+ld.shared", "k_step": 2}
RED = {**PLAIN, "split_k": 2, "combine": "red", "vector_c": 1}
GOLDEN: dict[str, dict[str, Any]] = {
    "naive": dict(LADDER["naive"]),
    "shared": {**PLAIN, "vector_a": 1, "vector_b": 1, "vector_shared": 1, "vector_c": 1},
    "cp.async": ASYNC,
    "red": RED,
    "f64": {**PLAIN, "accumulator": "f64"},
}
VARIANTS: dict[str, tuple[dict[str, Any], str]] = {
    "i32 addresses": ({**ASYNC, "addressing": "i32"}, "f32"),
    "i64 addresses": ({**SMALL, "addressing": "i64"}, "f32"),
    "swizzled": ({**ASYNC, "tile_k": 16, "swizzle_a": 2}, "f32"),
    "padded": ({**SMALL, "pad_a": 4, "pad_b": 8}, "f32"),
    "raster": ({**SMALL, "raster": 4}, "f32"),
    "exact": ({**SMALL, "edges": "exact"}, "f32"),
    "whole tiles": ({**SMALL, "guards": "tile"}, "f32"),
    "whole tiles, cp.async": ({**ASYNC, "guards": "tile"}, "f32"),
    "fragments": (FRAGMENTS, "f32"),
    "whole tiles, fragments": ({**FRAGMENTS, "guards": "tile"}, "f32"),
    "return": ({**LADDER["naive"], "addressing": "i64"}, "f32"),
    "two stages": ({**ASYNC, "stages": 2, "issue": 0}, "f32"),
    "widened sums": ({**SMALL, "accumulator": "f32+f64"}, "f32"),
    "f16": (ASYNC, "f16"),
    "f16, wide": ({**SMALL, "accumulator": "f64"}, "f16"),
    "bf16": (PLAIN, "bf16"),
    "bf16, widened": ({**SMALL, "accumulator": "f32+f64"}, "bf16"),
    "f64 red": ({**RED, "accumulator": "f64"}, "f32"),
    "limited registers": ({**SMALL, "ctas_per_sm": 8}, "f32"),
}
OPCODES = {
    "ld.global": r"\bld\.global",
    "cp.async": r"\bcp\.async\.c[ag]",
    "st.shared": r"\bst\.shared",
    "ld.shared": r"\bld\.shared",
    "fma": r"\b(?:fma|mul|add)\.rn\.f",
    "cvt": r"\bcvt\.(?:rn\.)?f",
    "mov": r"\bmov\.f",
    "st.global": r"\bst\.global",
    "red.global": r"\bred\.global",
    "sync": r"\bbar\.sync",
    "commit": r"\bcp\.async\.commit_group",
    "wait": r"\bcp\.async\.wait_group",
    "exit": r"\bret;",
}


def simt(point: dict[str, Any], dtype: str = "f32") -> Program:
    return Simt().program(matmul(dtype), Chosen(point))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ptxas runs: nothing comes from the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


@pytest.mark.parametrize("name", GOLDEN)
def test_the_text_is_as_it_was(name: str, golden: Callable[[str, str], None]) -> None:
    """A change of the emitted text is seen and wanted; ptxas takes it for every architecture."""
    program = simt(GOLDEN[name])
    golden(f"simt/{name}.ptx", emit(program))
    for arch in ARCHITECTURES:
        text = emit(program, arch)
        assert text == emit(program).replace("sm_90a", arch)
        assert assemble(text, arch).registers > 0


@pytest.mark.parametrize(("name", "arch"), by_turns(LADDER, ARCHITECTURES))
def test_the_ladder_assembles(name: str, arch: str) -> None:
    assert assemble(emit(simt(dict(LADDER[name])), arch), arch).registers > 0


@pytest.mark.parametrize(("name", "arch"), by_turns(VARIANTS, ARCHITECTURES))
def test_every_variant_assembles(name: str, arch: str) -> None:
    program = simt(*VARIANTS[name])
    assert assemble(emit(program, arch), arch).registers > 0
    special = emit(replace(program, specialised=True), arch, {"m": 64, "n": 48, "k": 40})
    assert assemble(special, arch).registers > 0


@pytest.mark.parametrize("layout", ["nt", "tn", "tt"])
def test_every_layout_assembles(layout: str) -> None:
    points = [{**PLAIN, "guards": "tile"}, {**PLAIN, "a_from": "gmem"}, {**PLAIN, "b_from": "gmem"}]
    if layout[1] == "t":
        points.append({**ASYNC, "a_layout": "km", "vector_a": 1, "b_layout": "nk"})
    for point in points:
        program = Simt().program(matmul(layout=layout), Chosen(point))
        assert assemble(emit(program), "sm_90a").registers > 0


def test_legal_schedules_assemble() -> None:
    """Whatever the space holds, not only what somebody thought of."""
    problem = Problem.of(matmul(), m=256, n=256, k=256)
    fixed: dict[str, Any] = {
        **SHARED,
        "thread_m": (1, 2, 4),
        "thread_n": (1, 2, 4),
        "tile_k": (4, 8, 16),
    }
    space = Space(Simt(), problem, load_device("h200"), fixed=fixed)
    for schedule in space.sample(np.random.default_rng(0), draws(5, 12)):
        program = schedule.program(Simt(), problem.operation)
        assert assemble(emit(program, sizes=dict(problem.sizes)), "sm_90a").registers > 0


@pytest.mark.parametrize("name", [*GOLDEN, *LADDER])
def test_one_text_serves_every_shape(name: str) -> None:
    """Sizes are parameters of the kernel, unless the program is specialised to them."""
    program = simt(GOLDEN.get(name) or dict(LADDER[name]))
    shapes = ({"m": 64, "n": 64, "k": 64}, {"m": 1, "n": 4096, "k": 7})
    texts = [emit(program, sizes=sizes) for sizes in shapes]
    assert texts[0] == texts[1] == emit(program)
    declared = re.findall(r"\.param \.u32 n_(\w+)", texts[0])
    assert tuple(declared) == signature(program)
    special = replace(program, specialised=True)
    texts = [emit(special, sizes=sizes) for sizes in shapes]
    assert texts[0] != texts[1]
    assert not re.findall(r"\.param \.u32", texts[0])
    with pytest.raises(ProgramError, match="give the sizes"):
        emit(special)


@pytest.mark.parametrize("name", LADDER)
def test_emission_is_fast(name: str) -> None:
    """A search emits thousands: under 50 ms of CPU each."""
    program, times = simt(dict(LADDER[name])), []
    for _ in range(5):
        start = time.process_time()
        emit(program)
        times.append(time.process_time() - start)
    assert min(times) < 0.05


def shorter(body: tuple[Statement, ...]) -> Iterator[tuple[Statement, tuple[Statement, ...]]]:
    """Each statement that is no loop or guard, and the body without it."""
    for i, s in enumerate(body):
        before, after = body[:i], body[i + 1 :]
        if isinstance(s, For | When):
            for dropped, inner in shorter(s.body):
                yield dropped, (*before, replace(s, body=inner), *after)
        else:
            yield s, (*before, *after)


def without(program: Program) -> Iterator[tuple[Statement, Program]]:
    role = program.roles[0]
    for dropped, body in shorter(role.body):
        yield dropped, replace(program, roles=(replace(role, body=body),))


def opcode(statement: Statement) -> str:
    match statement:
        case Do():
            return statement.instruction.name
        case Sync():
            return "sync"
        case Commit():
            return "commit"
        case WaitGroup():
            return "wait"
        case Exit():
            return "exit"
        case _:
            raise AssertionError(statement)


def counted(text: str) -> Counter[str]:
    return Counter({name: len(re.findall(pattern, text)) for name, pattern in OPCODES.items()})


@pytest.mark.parametrize(
    ("point", "dtype"),
    [
        *((point, "f32") for point in GOLDEN.values()),
        (REGISTER, "f32"),
        (REGISTER, "f16"),
        ({**REGISTER, "accumulator": "f32+f64"}, "f32"),
        ({**REGISTER, "guards": "tile"}, "f32"),
    ],
    ids=[*GOLDEN, "register", "f16", "f32+f64", "whole tiles"],
)
def test_a_dropped_statement_vanishes(point: dict[str, Any], dtype: str) -> None:
    """Its instructions go and no others do: every instruction is of a statement of the term."""
    program = simt(point, dtype)
    whole = counted(emit(program))
    kinds = set()
    for dropped, rest in without(program):
        name = opcode(dropped)
        kinds.add(name)
        lost = whole - counted(emit(rest))
        zeros = {"mov"} & set(lost) if name == "ld.global" else set()  # what a guard leaves
        assert set(lost) == {name} | zeros, dropped
        assert not counted(emit(rest)) - whole
    if "exit" not in kinds:
        whole["exit"] -= 1  # the kernel's own end
    assert {name for name, count in whole.items() if count} == kinds


@pytest.mark.parametrize(
    "point",
    [PLAIN, REGISTER, ASYNC, FRAGMENTS],
    ids=["none", "register", "cp.async", "cp.async+ld.shared"],
)
def test_a_dropped_statement_is_seen_by_every_interpretation(point: dict[str, Any]) -> None:
    """It vanishes from the PTX, the judge finds a fault, the interpreter fails."""
    program = simt(point)
    sizes = ({"m": 17, "n": 14, "k": 34}, {"m": 16, "n": 16, "k": 2})
    assert verdict(program).legal
    assert not any(check(program, s) for s in sizes)
    hazards = 0
    for dropped, rest in without(program):
        assert emit(rest) != emit(program), dropped
        assert any(check(rest, s, seeds=(i,)) for i, s in enumerate(sizes)), dropped
        if opcode(dropped) not in ("fma", "st.global"):  # they compute or show, and order nothing
            assert verdict(rest).outcome == "illegal", dropped
            hazards += 1
    assert hazards >= 6


@pytest.mark.parametrize("dtype", ["f32", "f16"])
def test_what_is_outside_for_all_threads_is_zero(dtype: str) -> None:
    """A load whose guard is known to fail still defines its registers, or they hold anything."""
    values = {**LADDER["multi-stage"], "vector_a": 2, "vector_b": 1, "specialised": 1, "tile_k": 16}
    program = Simt().program(matmul(dtype), Chosen(values))
    text = emit(program, "sm_90a", {"m": 119, "n": 61, "k": 14})
    held = re.findall(r"ld\.global\S* (%[hf]\d+), ", text)
    stored = re.findall(r"st\.shared\S* \[[^]]*\], (%[hf]\d+);", text)
    written = set(re.findall(r"^\t(?:@%p\d+ )?(?:mov|ld)\S* \{?(%[hf]\d+)", text, re.M))
    pairs = re.findall(r"mov\.b32 \{(%h\d+), (%h\d+)\}", text)
    assert held
    assert set(stored) <= written | {h for pair in pairs for h in pair}


@pytest.mark.parametrize(("k", "asks"), [(32, False), (30, True)])
def test_what_is_always_inside_is_not_asked(k: int, asks: bool) -> None:
    """Whole steps of k need no guard where sizes are known; what is whole is asked once, before."""
    point = {**FRAGMENTS, "guards": "tile", "specialised": 1, "vector_b": 1, "vector_c": 1}
    text = emit(simt(point), "sm_90a", {"m": 45, "n": 45, "k": k})
    loop = text[text.index("$kt") : text.index("ret;")]
    loop = loop[: loop.rindex("bra $kt")]
    aside = text[text.index("ret;") :]
    compared = re.findall(r"setp\.gt\S* (%p\d+), %r\d+, \d+", loop)
    assert bool(compared) == asks
    assert len(re.findall(r"@!%p\d+ bra \$partly", loop)) == 1
    assert len(re.findall(r"^\$partly", aside, re.M)) == text.count("bra $partly")


@all_by_turns(
    ("pipeline", ["none", "register", "cp.async", "cp.async+ld.shared"]),
    ("specialised", [0, 1]),
    ("order", COMPLETIONS),
)
def test_whole_tiles_and_others_are_right(pipeline: str, specialised: int, order: str) -> None:
    """Of a grid some tiles are whole along both axes, along one, along none; k ends in a step."""
    stages = {"none": 1, "register": 2}.get(pipeline, 3)
    values = {**FRAGMENTS, "pipeline": pipeline, "stages": stages, "issue": int(stages > 1)}
    values |= {"guards": "tile", "specialised": specialised, "a_layout": "km", "vector_shared": 1}
    program = simt({**values, "vector_a": 1, "vector_b": 1, "vector_c": 1})
    for k in (8, 24, 21):
        sizes = {"m": 37, "n": 35, "k": k}
        found = interpret(program, sizes, arch="sm_90a", completions=(order,))
        assert found.right, found
