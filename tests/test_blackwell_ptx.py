"""Blackwell's code, run by the PTX interpreter: right, and without a race that its threads see.

What is run is the text that ptxas takes, not the term: descriptors, addresses of tensor memory,
masks and parities are the emitter's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.blackwell_terms import B200, LAYOUTS, broken, built, small
from tests.hopper_terms import rewritten
from tests.ptx_runs import run_matmul, unchecked
from tests.sample import by_turns, draws
from tinygpu.codegen.emit import emit
from tinygpu.codegen.run.assemble import assemble
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.machines.blackwell import STARTS, Blackwell
from tinygpu.meaning.interpret import check
from tinygpu.space.space import Space
from tinygpu.term.machine import Chosen, Value
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.program import Access, Arrive, Do, Fence, Program, Statement, WaitGroup

SIZES = {"m": 200, "n": 72, "k": 136}


@pytest.mark.parametrize(("start", "completion"), by_turns(STARTS, ["late", "random"]))
def test_code_is_right_whenever_things_complete(start: str, completion: str) -> None:
    outcome = run_matmul(small(start), SIZES, arch="sm_100a", clusters=2, completion=completion)
    assert outcome.right
    assert outcome.report.findings == ()


@pytest.mark.parametrize(("start", "layout"), by_turns(["small", "narrow pair", "pair"], LAYOUTS))
def test_code_of_every_layout_is_right(start: str, layout: str) -> None:
    program = built({**STARTS[start], "stages": 2}, layout)
    outcome = run_matmul(program, {"m": 136, "n": 136, "k": 72}, arch="sm_100a", clusters=2)
    assert outcome.right
    assert outcome.report.findings == ()


def test_a_term_and_its_code_compute_the_same() -> None:
    """Seeds change the order of completion, not the sums."""
    runs = [run_matmul(small("pair"), SIZES, arch="sm_100a", clusters=1, seed=s) for s in (0, 1)]
    np.testing.assert_array_equal(runs[0].output, runs[1].output)


@pytest.mark.parametrize(
    ("start", "dtype", "tile_k", "k"),
    [
        (start, *of)
        for start, of in by_turns(
            ["small", "tma store", "pair"],
            [("e4m3", 128, 208), ("e5m2", 128, 208), ("tf32", 32, 76)],
        )
    ],
)
def test_other_types_are_right(start: str, dtype: str, tile_k: int, k: int) -> None:
    """32 or 8 steps of k a product, by the term's interpreter and by the code's."""
    values = {**STARTS[start], "tile_k": tile_k, "stages": 2, "tile_n": 32, "store_n": 16}
    program = Blackwell().program(matmul(dtype, layout="nt"), Chosen(values))
    sizes = {"m": 200, "n": 72, "k": k}
    assert broken(program) == {}
    assert check(program, sizes, seeds=(0,)) == ()
    outcome = run_matmul(program, sizes, arch="sm_100a", clusters=2)
    assert outcome.right
    assert outcome.report.findings == ()


def test_many_warps_release_tensor_memory() -> None:
    """Eight CTAs whose warps are first seen to write tensor memory when they give it back."""
    changes: dict[str, Value] = {"tile_m": 64, "tile_n": 224, "stages": 3, "store_n": 8}
    more: dict[str, Value] = {"store_stages": 4, "accumulators": 1, "cluster_m": 2, "cluster_n": 4}
    values = {**STARTS["persistent"], **changes, **more, "raster": 2, "early": 1}
    program = Blackwell().program(matmul("tf32", layout="nt"), Chosen(values))
    sizes = {"m": draws(72, 136), "n": 72, "k": 68}
    outcome = run_matmul(program, sizes, arch="sm_100a", clusters=2, completion="random")
    assert outcome.right
    assert outcome.report.findings == ()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_random_schedule_is_right(layout: str) -> None:
    """Legal means that both interpreters find its kernel right."""
    operation = matmul("bf16", layout=layout)
    space = Space(Blackwell(), Problem.of(operation, m=512, n=512, k=512), B200)
    (schedule,) = space.sample(np.random.default_rng(LAYOUTS.index(layout)), 1)
    program = schedule.program(Blackwell(), operation)
    sizes = {"m": 136, "n": 72, "k": 72}
    assert space.contains(schedule)
    assert check(program, sizes, seeds=(0,)) == ()
    outcome = run_matmul(program, sizes, arch="sm_100a", clusters=2, completion="random")
    assert outcome.right
    assert outcome.report.findings == ()


def _without(program: Program, which: Callable[[Statement], bool]) -> Program:
    return rewritten(program, lambda s: () if which(s) else s)


def _waits(s: Statement) -> bool:
    return isinstance(s, WaitGroup) and s.group == "tcgen05.ld"


def _fences(s: Statement) -> bool:
    return isinstance(s, Fence) and s.kind.startswith("tcgen05")


def test_code_without_its_waits_or_fences_is_found() -> None:
    for which in (_waits, _fences):
        program = _without(small("persistent"), which)
        outcome = run_matmul(program, SIZES, arch="sm_100a", clusters=1)
        assert outcome.report.findings != ()


def test_what_is_released_has_been_read() -> None:
    """Without an accumulator that is free again a term needs no fence: the kernel's end has one.

    The fence that is left out tells threads that multiply again; here none does.
    """

    def frees(s: Statement) -> bool:
        before = isinstance(s, Fence) and s.kind == "tcgen05.before"
        return before or (isinstance(s, Arrive) and s.barrier.name == "acc_empty")

    program = _without(small("plain"), frees)
    assert verdict(program).legal
    for completion in ("late", "random"):
        outcome = run_matmul(program, SIZES, arch="sm_100a", clusters=2, completion=completion)
        assert outcome.right
        assert outcome.report.findings == ()


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("], 64;", "], 32;"),  # columns that are allocated
        ("0x08080490", "0x08100490"),  # the instruction descriptor's n
        ("0x4000404000010000", "0x4000402000010000"),  # the distance of eight rows
        ("x16.b32", "x8.b32"),  # columns that are loaded
    ],
)
def test_code_with_a_wrong_number_is_found(right: str, wrong: str) -> None:
    program = small("persistent")
    text = emit(program, "sm_100a")
    assert right in text
    if right == "x16.b32":
        text = re.sub(r"(%f7), %f8.*?\}", r"\1}", text)  # as many registers
    text = text.replace(right, wrong)
    outcome = run_matmul(program, SIZES, text=text, arch="sm_100a", clusters=1)
    assert not outcome.right or outcome.report.findings != ()


def test_what_is_loaded_from_tensor_memory_may_be_stored_there() -> None:
    """The same registers and address, the other way round; ptxas takes it."""

    def stored(statement: Statement) -> Statement:
        if not isinstance(statement, Do) or statement.instruction.name != "tcgen05.ld":
            return statement
        (tile,), how = statement.reads, INSTRUCTIONS["tcgen05.st"]
        assert isinstance(tile, Access)
        return replace(statement, instruction=how, write=tile, reads=(statement.write,))

    program = small("plain")
    before, after = emit(program, "sm_100a"), unchecked(rewritten(program, stored), "sm_100a")
    moves = [re.findall(r"\ttcgen05\.(?:ld|st)\.sync\S+ (.*);", text) for text in (before, after)]
    turned = [re.sub(r"(\{.*\}), (\[.*\])", r"\2, \1", one) for one in moves[0]]
    assert moves[1] == turned != []
    assert "tcgen05.ld.sync" not in after
    assemble(after, "sm_100a")
