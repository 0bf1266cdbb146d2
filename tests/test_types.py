"""Types of operands: what a statement reads and is given agree, or the term is not built."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.ampere_terms import term as ampere
from tests.blackwell_terms import term as blackwell
from tests.hopper_terms import rebuffered
from tests.hopper_terms import term as hopper
from tinygpu import matmul
from tinygpu.errors import ProgramError
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.term.machine import Chosen
from tinygpu.term.program import Access, Program


def simt() -> Program:
    return Simt().program(matmul(), Chosen(LADDER["shared"]))


WRONG: dict[str, tuple[Callable[[], Program], tuple[str, ...], str, str]] = {
    "sums": (simt, ("sums",), "bf16", "a_fragment is f32, sums bf16; fma takes f32, f64"),
    "stored": (simt, ("smem_a",), "bf16", "a_held is f32, smem_a bf16; st.shared takes one type"),
    "loaded": (simt, ("smem_a", "a_held"), "bf16", "smem_a is bf16, a_fragment f32; ld.shared"),
    "fragment": (simt, ("a_fragment",), "f16", "smem_a is f32, a_fragment f16; ld.shared"),
    "held": (simt, ("a_held",), "f16", "a is f32, a_held f16; ld.global takes one type"),
    "other 16 bits": (lambda: hopper("plain"), ("rounded",), "f16", "rounded is f16, c bf16"),
    "not rounded": (lambda: hopper("plain"), ("rounded",), "f32", "rounded is f32, c bf16"),
    "wgmma": (lambda: hopper("plain"), ("sums",), "f16", "bf16 to f32, f16 to f32, e4m3 to f32"),
    "one of two": (lambda: hopper("plain"), ("smem_a",), "f16", "smem_b is bf16, sums f32; wgmma"),
    "stmatrix": (lambda: hopper("tma store"), ("smem_c",), "f32", "smem_c f32; stmatrix"),
    "mma.sync": (lambda: ampere("ring"), ("b_fragment",), "f16", "b_fragment is f16, sums f32"),
    "tf32": (lambda: ampere("ring", dtype="tf32"), ("b_fragment",), "f32", "b_fragment"),
    "tcgen05.mma": (lambda: blackwell("pair"), ("sums",), "bf16", "sums bf16; tcgen05.mma"),
    "tcgen05.cp": (lambda: blackwell("a in tmem"), ("held_x",), "f16", "held_x f16; tcgen05.cp"),
    "tensor memory": (lambda: blackwell("ring"), ("smem_a",), "f32", "smem_a f"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_term_of_types_that_disagree_is_not_built(name: str) -> None:
    made, buffers, dtype, message = WRONG[name]
    program = made()
    with pytest.raises(ProgramError) as found:
        rebuffered_all(program, buffers, dtype)
    assert message in str(found.value)
    assert "\n" not in str(found.value)


def rebuffered_all(program: Program, names: tuple[str, ...], dtype: str) -> Program:
    """Change buffers together, as each alone may be wrong already."""
    (first, *rest) = names
    if not rest:
        return rebuffered(program, first, dtype=dtype)
    changed = {b.name: replace(b, dtype=dtype) for b in program.buffers if b.name in names}

    def access(one: object) -> object:
        known = isinstance(one, Access) and one.buffer.name in changed
        return replace(one, buffer=changed[one.buffer.name]) if known else one  # type: ignore
