"""A term's code on arrays: what is fused, batches, sums that meet, and kernels that are wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from tests.sample import by_turns
from tinygpu.codegen.emit import emit
from tinygpu.codegen.emulator import Module
from tinygpu.codegen.run.interpretation import COMPLETIONS, execute, interpret
from tinygpu.isa.memory import DTYPES
from tinygpu.machines import MACHINES, ampere, blackwell, hopper, simt
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import Operation, matmul
from tinygpu.term.program import Program

RED = {**simt.LADDER["shared"], "split_k": 2, "combine": "red", "vector_c": 1}
TF32 = {**blackwell.STARTS["small"], "tile_k": 32, "stages": 2, "tile_n": 32, "store_n": 16}
CASES: dict[str, tuple[str, Mapping[str, Any], Operation, str]] = {
    "plain": ("simt", simt.LADDER["2-D registers"], matmul(), "sm_90a"),
    "scaled": ("hopper", hopper.STARTS["plain"], matmul("f16", layout="nt", scaled=True),
               "sm_90a"),
    "gelu": ("hopper", hopper.STARTS["ring"], matmul("bf16", layout="nt", bias=True,
             activation="gelu"), "sm_90a"),
    "batches": ("hopper", hopper.STARTS["tma store"], matmul("bf16", layout="nt", batched=True),
                "sm_90a"),
    "sums in memory": ("ampere", ampere.STARTS["parts of k"], matmul("bf16", "f32", "nt"), "sm_80"),
    "red": ("simt", RED, matmul(), "sm_90a"),
    "pair": ("blackwell", blackwell.STARTS["pair"], matmul("f16", layout="nn"), "sm_100a"),
    "tf32": ("blackwell", TF32, matmul("tf32", layout="nt"), "sm_100a"),
}  # fmt: skip


def term(name: str) -> Program:
    machine, point, operation, _ = CASES[name]
    return MACHINES[machine].program(operation, Chosen(dict(point)))


@pytest.mark.parametrize(("name", "completion"), by_turns(CASES, COMPLETIONS))
def test_it_is_right(name: str, completion: str) -> None:
    """Over the edges, in every order, whatever is fused."""
    program = term(name)
    sizes = dict.fromkeys(program.operation.axes, 2) | {"m": 72, "n": 136, "k": 104}
    found = interpret(program, sizes, arch=CASES[name][3], seed=3, completions=(completion,))
    assert found.findings == ()
    assert 0 < found.error <= 1
    assert found.right
    assert found.instructions > 100


@pytest.mark.parametrize("every", [False, True])
def test_one_line_may_be_shorter_than_16_bytes(every: bool) -> None:
    """As on a GPU: where an array that is loaded has one line, the distance to the next is free."""
    operation = matmul("bf16", layout="nt", batched=every)
    program = hopper.Hopper().program(operation, Chosen(dict(hopper.STARTS["swapped"])))
    found = interpret(program, dict.fromkeys(program.operation.axes, 1), arch="sm_90a", seed=1)
    assert found.right


def test_the_seed_says_the_numbers() -> None:
    program, sizes = term("red"), {"m": 40, "n": 24, "k": 40}
    errors = [interpret(program, sizes, arch="sm_90a", seed=s).error for s in (1, 1, 2)]
    assert errors[0] == errors[1] != errors[2]


def test_an_element_that_nobody_writes_is_wrong() -> None:
    """The output is NaN before."""
    program, sizes = term("plain"), {"m": 40, "n": 24, "k": 40}
    text = emit(program, "sm_90a", sizes)
    lines = [x for x in text.splitlines() if x.startswith("\t@%p") and "st.global" in x]
    found = interpret(program, sizes, arch="sm_90a", text=text.replace(lines[0], "", 1))
    assert (found.error, found.findings, found.right) == (np.inf, (), False)


def test_persistent_kernels_do_several_tiles() -> None:
    """Half as many clusters as tiles if nothing is said: some do two, and all is written."""
    machine, point = MACHINES["hopper"], hopper.STARTS["persistent"]
    program = machine.program(matmul("bf16", layout="nt"), Chosen(dict(point)))
    sizes = {"m": 256, "n": 512, "k": 64}
    module = Module.parse(emit(program, "sm_90a", sizes))
    counts = []
    for clusters in (0, 1, 100):
        arrays = {
            o.name: np.ones(program.operation.shapes(sizes)[o.name], DTYPES[o.dtype].numpy)
            for o in program.operation.operands
        }
        report = execute(program, sizes, arrays, module, clusters=clusters)
        assert report.findings == ()
        assert (arrays["c"].astype(np.float64) == 64).all()
        counts.append(report.instruction_counts["mbarrier.init.shared::cta.b64"])
    assert counts[1] < counts[0] < counts[2]
