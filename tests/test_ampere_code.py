"""The PTX of the machine ampere, run by the PTX interpreter, gives the product, without races."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.ptx_runs import run_matmul
from tests.ptx_runs import unchecked as emit
from tests.sample import by_turns
from tinygpu.codegen.kernel.kernel import KernelCode
from tinygpu.codegen.kernel.scope import Scope
from tinygpu.codegen.run.assemble import assemble
from tinygpu.devices.device import load_device
from tinygpu.errors import ProgramError
from tinygpu.machines.ampere import STARTS, Ampere
from tinygpu.search.time.cost import cost
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import matmul
from tinygpu.term.program import Access, Do, For, Program, var, walk

SMALL = {"tile_m": 64, "tile_n": 64, "warps_m": 2, "warps_n": 2}
LAYOUTS = ("nt", "nn", "tn", "tt")


def term(name: str, layout: str, dtype: str = "bf16", **changes: Any) -> Program:
    """Return the term of a start on small tiles."""
    decisions = {**STARTS[name], **SMALL, **changes}
    output = "f32" if decisions["combine"] == "red" else None
    return Ampere().program(matmul(dtype, output, layout), Chosen(decisions))


def run(program: Program, sizes: dict[str, int], completion: str = "late", text: str = "") -> bool:
    """Say whether the code computes the product and nothing is found against it."""
    outcome = run_matmul(program, sizes, arch="sm_80", completion=completion, seed=1, text=text)
    return outcome.right and outcome.report.findings == ()


@pytest.mark.parametrize(("name", "layout"), by_turns([n for n in STARTS if n != "exact"], LAYOUTS))
def test_the_code_of_every_start_multiplies(name: str, layout: str) -> None:
    """Ragged sizes, all layouts: what is outside counts as 0 and is not stored."""
    sizes = {"m": 72, "n": 104, "k": 200}
    assert run(term(name, layout), sizes, "late" if name < "m" else "early")


@pytest.mark.parametrize(
    ("changes", "layout", "sizes"),
    [
        ({"tile_n": 128, "warps_n": 4, "tile_k": 128}, "nt", (64, 128, 384)),
        ({"tile_m": 128, "warps_m": 4, "tile_n": 32, "warps_n": 1}, "nn", (130, 40, 96)),
        ({"tile_m": 32, "warps_m": 1, "tile_n": 256, "warps_n": 4}, "tn", (32, 264, 40)),
        ({"tile_n": 32, "warps_n": 1, "epilogue": "smem", "vector_c": 4}, "nt", (70, 36, 8)),
        ({"vector_c": 1, "tile_k": 64, "issue": 1}, "nt", (17, 19, 72)),
        ({"stages": 5, "tile_k": 64, "issue": 2, "raster": 2}, "tt", (136, 200, 584)),
        ({"epilogue": "smem", "edges": "exact"}, "nt", (128, 64, 64)),
        ({"guards": "tile", "stages": 3}, "nt", (72, 136, 200)),
        ({"guards": "tile", "epilogue": "smem", "vector_c": 8}, "tt", (136, 72, 64)),
    ],
)
def test_other_schedules(changes: Any, layout: str, sizes: tuple[int, int, int]) -> None:
    """Tiles of other widths have other swizzles; the last stages may be empty; odd rows of c."""
    program = term("plain", layout, **changes)
    assert run(program, dict(zip("mnk", sizes, strict=True)), "random")


def test_f16() -> None:
    assert run(term("lines", "nn", "f16"), {"m": 40, "n": 72, "k": 136})


@pytest.mark.parametrize(("arch", "vector"), [("sm_80", 1), ("sm_90a", 1), ("sm_90a", 2)])
def test_parts_of_k_are_added_by_pairs_where_the_chip_can(arch: str, vector: int) -> None:
    """From sm_90 on half as many instructions add the same, and the model counts them."""
    program = term("parts of k", "nt", vector_c=vector if arch == "sm_90a" else 2)
    text = emit(program, arch)
    pairs, alone = text.count("red.global.add.v2.f32"), text.count("red.global.add.f32")
    assert (pairs > 0, alone > 0) == (vector == 2, vector == 1)
    assert 2 * pairs + alone == 32  # 64 x 64 sums of 128 threads
    assemble(text, arch)
    sizes = {"m": 72, "n": 104, "k": 200}
    assert run(program, sizes, text=text)
    assert not run(program, sizes, text=text.replace("red.global.add", "st.global"))


def test_the_model_counts_adding_pairs_on_new_chips_only() -> None:
    sizes = {"m": 512, "n": 512, "k": 4096}
    for name, less in (("a100", False), ("h200", True)):
        device = load_device(name)
        one, two = (
            cost(term("parts of k", "nt", vector_c=v), sizes, device).parts["issue"] for v in (1, 2)
        )
        assert (two < one) == less


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("cp.async.wait_group 0", "cp.async.wait_group 1"),
        ("bar.sync 0;", "bar.warp.sync -1;"),
        ("x4.trans", "x4"),
        ("and.b32", "or.b32"),
    ],
)
def test_code_that_is_made_wrong_is_found(old: str, new: str) -> None:
    program = term("plain", "nn", stages=2)
    text = emit(program, "sm_80")
    assert old in text
    sizes = {"m": 64, "n": 64, "k": 160}
    assert run(program, sizes, text=text)
    assert not run(program, sizes, text=text.replace(old, new))


def test_a_slice_of_a_loop_that_is_not_unrolled_has_no_registers() -> None:
    """Which of the two fragments an index means has to be known."""
    program = term("plain", "nt")
    (loop,) = (s for s, _ in walk(program) if isinstance(s, For) and s.trips == "trips")
    read = next(s for s in loop.body if isinstance(s, Do))
    read = replace(read, write=replace(read.write, index=var("kt")))
    (role,) = program.roles
    loops = (replace(role, body=(replace(loop, body=(read,)),)),)
    with pytest.raises(ProgramError, match="unroll the loop"):
        emit(replace(program, roles=loops), "sm_80")


def test_addresses_are_folded_only_where_no_bits_meet() -> None:
    """Lanes at columns 0, 8, 16, 24: 32 columns on is a XOR of its own, 8 columns on is not."""
    kernel = KernelCode(term("plain", "nt", tile_k=64), None)
    (buffer,) = (b for b in kernel.program.buffers if b.name == "smem_a")
    access = Access(buffer, (), ((0, 8), (1, 0)), index=var("kt"))
    here = Scope(running={"kt": "%r0"})
    folded = {
        column: kernel.folded(access, (4, 8), np.array([row, column]), here) is not None
        for row, column in ((0, 32), (8, 40), (0, 8))
    }
    assert folded == {32: True, 40: False, 8: False}
    uneven = Access(buffer, (), ((0, 8), (3, 0)), index=var("kt"))
    assert kernel.folded(uneven, (4, 8), np.array([0, 32]), here) is None
