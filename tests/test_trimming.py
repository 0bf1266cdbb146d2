"""Loads that leave out lines outside of the array: the code, its maps, the meaning, the time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ptx_runs import run_matmul, term_of
from tests.sample import draws
from tinygpu.codegen.emit import emit
from tinygpu.codegen.kernel.tensor_map import tensor_maps
from tinygpu.codegen.runtime.maps import mapped_array
from tinygpu.devices.device import load_device
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.meaning.identity import computes
from tinygpu.meaning.interpret import check
from tinygpu.search.time.cost import cost
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import matmul
from tinygpu.term.program import Access, Block, Do, Program, Statement, walk


def changed(program: Program, of: Any) -> Program:
    """The program with ``of`` in the place of each statement that is no block."""

    def body(statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return tuple(
            replace(s, body=body(s.body)) if isinstance(s, Block) else of(s) for s in statements
        )

    return replace(program, roles=tuple(replace(r, body=body(r.body)) for r in program.roles))


def with_trimmed(program: Program, wanted: bool) -> Program:
    """The program whose TMA loads leave out lines, or load zeros."""

    def of(statement: Statement) -> Statement:
        if isinstance(statement, Do) and statement.signal:
            (read,) = statement.reads
            assert isinstance(read, Access)
            return replace(statement, reads=(replace(read, trimmed=wanted),))
        return statement

    return changed(program, of)


@settings(max_examples=draws(9, 24))
@given(
    st.sampled_from(["plain", "two consumers", "cluster", "persistent", "swapped", "shared k"]),
    st.integers(1, 300),
    st.integers(1, 40),
    st.sampled_from(["late", "random"]),
)
def test_any_size_is_right(name: str, m: int, n: int, completion: str) -> None:
    """Bytes that are expected are those that land, whatever lies outside: no deadlock, no race."""
    program = term_of("hopper", STARTS[name], "bf16", "nt")
    sizes = {"m": m, "n": 8 * n, "k": 136}
    outcome = run_matmul(program, sizes, clusters=1, completion=completion, seed=m)
    assert outcome.report.findings == ()
    assert outcome.right


def test_two_maps_for_each_trimmed_load() -> None:
    """One of whole boxes, and one of the lines that are left."""
    program = term_of("hopper", STARTS["plain"], "bf16", "nt")
    loads = [s for s, _ in walk(program) if isinstance(s, Do) and s.signal]
    assert all(s.trimmed for s in loads)
    whole, rest = (m for m in tensor_maps(program) if m.buffer == "a")
    lines = whole.box[1]
    assert rest == whole._replace(rest=True)
    for m in (1, lines - 1, lines, lines + 1, 5 * lines):
        boxes = [mapped_array(each, 0, 2, (m, 64), (128, 2)).box for each in (whole, rest)]
        assert boxes[0] == whole.box
        assert boxes[1][1] == (m % lines or lines)
    text = emit(program)
    assert text.count("selp.b64") == 2
    assert "expect_tx.shared::cta.b64 _, [" in text


def test_lines_of_what_is_summed_are_loaded_as_zeros() -> None:
    """In other layouts lines run along k: they stay."""
    program = term_of("hopper", STARTS["plain"], "bf16", "tn")
    assert not any(s.trimmed for s, _ in walk(program) if isinstance(s, Do))
    sizes = {"m": 200, "n": 72, "k": 130}
    assert check(program, {**sizes, "k": 136}) == ()
    wrong = with_trimmed(program, True)
    assert computes(program).finding is None
    assert computes(wrong).finding is not None
    assert check(wrong, {**sizes, "k": 136}) != ()


@pytest.mark.parametrize("name", ["plain", "cluster", "pingpong"])
def test_what_is_left_out_is_poison_and_never_stored(name: str) -> None:
    """The meaning holds with nothing where the lines outside would be, and with zeros there."""
    program = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS[name]))
    sizes = {"m": 203, "n": 136, "k": 136}
    assert check(program, sizes) == ()
    assert check(with_trimmed(program, False), sizes) == ()


def test_time_is_flat_up_to_the_tile() -> None:
    """A tile with lines outside is not slower than a whole one; with zeros it is."""
    device, operation = load_device("h200"), matmul("bf16", layout="nt")
    program = Hopper().program(operation, Chosen({**STARTS["plain"], "tile_m": 128, "stages": 4}))

    def seconds(term: Program, m: int) -> float:
        return float(cost(term, {"m": m, "n": 4096, "k": 4096}, device).seconds)

    assert seconds(program, 32) < 1.05 * seconds(program, 128)
    assert seconds(with_trimmed(program, False), 32) > 1.15 * seconds(program, 32)
