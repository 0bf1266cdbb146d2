"""The machine ampere on tf32: fragments of single numbers, laws, time and code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.ampere_terms import changed, of_read, statements, term
from tests.hopper_terms import LARGE, LAYOUTS, broken, dos
from tests.ptx_runs import run_matmul
from tests.sample import by_turns
from tinygpu.codegen.emit import emit
from tinygpu.codegen.run.assemble import assemble
from tinygpu.devices.device import load_device
from tinygpu.errors import OperationError
from tinygpu.machines.ampere import STARTS, Ampere
from tinygpu.meaning.touched import coordinates
from tinygpu.search.time.cost import cost
from tinygpu.term.access import bank_wavefronts
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import matmul
from tinygpu.term.program import Access, Do, Program

SMALL: dict[str, Any] = {"tile_m": 64, "tile_n": 64, "warps_m": 2, "warps_n": 2}


def right(program: Program, text: str, sizes: dict[str, int], completion: str = "late") -> bool:
    """Say whether the code computes the product and nothing is found against it."""
    outcome = run_matmul(program, sizes, arch="sm_80", completion=completion, seed=1, text=text)
    return outcome.right and outcome.report.findings == ()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("tile", "deep"), [(32, 32), (64, 64), (256, 32)])
def test_fragments_of_tf32_meet_no_bank_twice(layout: str, tile: int, deep: int) -> None:
    """Along k ldmatrix moves four numbers of a row, across it each lane one of its own."""
    program = term(
        "plain", layout, "tf32", tile_m=tile, tile_n=tile, tile_k=deep, warps_m=1, warps_n=2
    )
    reads = [s for s in statements(program, "ldmatrix") if s.reads[0]]
    alone = [
        s for s in statements(program, "ld.shared") if s.write.buffer.name.endswith("fragment")
    ]
    along_k = {"a": layout[0] == "n", "b": layout[1] == "t"}
    assert {s.write.buffer.name[0] for s in reads} == {n for n, by_k in along_k.items() if by_k}
    assert {s.write.buffer.name[0] for s in alone} == {n for n in along_k if not along_k[n]}
    for do in (*reads, *alone):
        (source,) = do.reads
        assert isinstance(source, Access)
        places = coordinates(source, do.values, do.threads, np.arange(32, 64))
        for swizzle in (source.buffer.swizzle, (0, 0, 0)):
            layout_of = replace(source.buffer, swizzle=swizzle).layout
            banks = 4 * np.asarray(layout_of(tuple(places)))
            found = set(bank_wavefronts(banks, 4).tolist())
            assert (found == {1}) == (swizzle[0] > 0)


WRONG_TF32: dict[str, tuple[str, str, Callable[[Do], Do]]] = {
    "pairs": ("ldmatrix_rows", "ldmatrix", lambda d: replace(d, values=(2, *d.values[1:]))),
    "turned": ("ldmatrix_rows", "ldmatrix", changed(variant="trans")),
    "far": ("ldmatrix_rows", "ldmatrix", of_read(0, thread=lambda t: ((0, 2), *t[1:]))),
    "rows": ("ldmatrix_rows", "ldmatrix", of_read(0, origin=lambda o: (o[0], o[1] + 2))),
    "moved": ("mma_shape", "mma.sync", of_read(0, value=lambda v: ((0, 0, 0, 1), *v[1:]))),
    "halves": ("mma_shape", "mma.sync", of_read(1, value=lambda v: (*v[:2], (0, 2, 0), *v[3:]))),
}


@pytest.mark.parametrize("name", WRONG_TF32)
def test_the_laws_of_a_warp_break_for_tf32(name: str) -> None:
    law, instruction, change = WRONG_TF32[name]
    program = term("ring", dtype="tf32")
    assert broken(program) == {}
    assert law in broken(dos(program, instruction, change))


@pytest.mark.parametrize(
    ("dtype", "output"), [("f32", None), ("e4m3", None), ("bf16", "f16"), ("tf32", "tf32")]
)
def test_other_types_are_refused(dtype: str, output: str | None) -> None:
    operation = matmul(dtype, output, "nt")
    with pytest.raises(OperationError, match="it multiplies bf16 to bf16 or f32, f16"):
        Ampere().check(operation)


def test_a_slice_of_tf32_is_half_as_deep() -> None:
    """The same bytes: four slices in 32 steps of k, so that loads may issue after two."""
    for dtype, most in (("bf16", 0), ("tf32", 2)):
        legal = [
            issue
            for issue in range(4)
            if all(
                r.holds
                for r in Ampere().requires(
                    matmul(dtype, layout="nt"), Chosen({**STARTS["plain"], "issue": issue})
                )
            )
        ]
        assert legal == list(range(most + 1))


def test_tf32_takes_twice_the_time_of_the_tensor_cores() -> None:
    a100 = load_device("a100")
    bf16, tf32 = (cost(term("ring", dtype=d), LARGE, a100) for d in ("bf16", "tf32"))
    assert tf32.parts["tensor"] == pytest.approx(2 * bf16.parts["tensor"], rel=0.01)
    turned = cost(term("ring", "tn", "tf32"), LARGE, a100)
    assert turned.parts["smem"] == pytest.approx(tf32.parts["smem"], rel=0.01)
    assert turned.parts["issue"] > tf32.parts["issue"]


@pytest.mark.parametrize(
    ("name", "layout"), by_turns(["plain", "deep", "lines", "parts of k"], LAYOUTS)
)
def test_tf32(name: str, layout: str) -> None:
    """What runs along k comes through ldmatrix, the rest number by number; the code assembles."""
    program = term(name, layout, "tf32", **SMALL)
    text = emit(program, "sm_80")
    assert "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32" in text
    assert ("ldmatrix" in text) == (layout != "tn")
    assert not assemble(text, "sm_80").spills
    completion = {"n": "early", "t": "late"}[layout[1]]
    assert right(program, text, {"m": 72, "n": 104, "k": 200}, completion)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("cp.async.wait_group 0", "cp.async.wait_group 1"),
        ("bar.sync 0;", "bar.warp.sync -1;"),
        ("x4.shared", "x4.trans.shared"),
        ("xor.b32", "or.b32"),
    ],
)
def test_code_of_tf32_that_is_made_wrong_is_found(old: str, new: str) -> None:
    program = term("plain", "nn", "tf32", stages=2)
    text = emit(program, "sm_80")
    assert old in text
    sizes = {"m": 64, "n": 64, "k": 160}
    assert not right(program, text.replace(old, new), sizes)
