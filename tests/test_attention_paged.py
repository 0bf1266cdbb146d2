"""Attention with keys and values in pages, and with a length of each sequence."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.hopper_terms import rewritten
from tests.sample import all_by_turns, some
from tests.test_attention_window import sizes
from tests.test_cli_attention import tinygpu as told
from tinygpu.codegen.emit import emit
from tinygpu.codegen.emulator import Module
from tinygpu.codegen.run.arguments import contract_of
from tinygpu.codegen.run.interpretation import COMPLETIONS, execute, unwritten_outputs
from tinygpu.codegen.run.interpretation import interpret as emulated
from tinygpu.codegen.runtime.contract import check
from tinygpu.codegen.runtime.views import View
from tinygpu.devices.device import load_device
from tinygpu.errors import LaunchError, OperationError, ProgramError
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.isa.memory import DTYPES
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import LAWS
from tinygpu.legality.mask_cover import mask_cover
from tinygpu.legality.reach import Case
from tinygpu.machines import MACHINES
from tinygpu.machines.attention import STARTS, Attention
from tinygpu.meaning.identity import computes
from tinygpu.meaning.inputs import drawn, drawn_lengths
from tinygpu.meaning.interpret import interpret
from tinygpu.search.time.cost import cost
from tinygpu.term.expression import apply, parse, value
from tinygpu.term.machine import Chosen
from tinygpu.term.machine import Value as Choosable
from tinygpu.term.operation import Operation, Problem, attention, is_matmul, matmul
from tinygpu.term.pages import POOL, Lengths, Pages
from tinygpu.term.program import Access, Affine, Do, ForTile, Program, Statement
from tinygpu.term.schedule import Schedule, from_json, to_json
from tinygpu.term.text import parse as read_term
from tinygpu.term.text import text_of

SMALL = {"depth": 64, "tile_n": 64, "stages_k": 2}
MASKS = ["none", "causal", "window:40:25", "window:200:0"]
MACHINE, DEVICE = MACHINES["attention"], load_device("h100")
PREFILL = {**STARTS["fa3"], "depth": 64, "tile_n": 128}


@cache
def term(
    pages: int = 64, *, lengths: bool = False, mask: str = "none", lse: bool = False,
    **others: Choosable,
) -> Program:  # fmt: skip
    operation = attention(pages=pages, lengths=lengths, mask=mask, lse=lse)
    return Attention().program(operation, Chosen({**STARTS["decode"], **SMALL, **others}))


def arrays_of(operation: Operation, here: dict[str, int], seed: int = 0) -> dict[str, Any]:
    """Inputs rounded to bf16, with one page more than there are blocks."""
    random = np.random.default_rng(seed)
    made = drawn(operation, here, "normal", random.standard_normal)
    rounded = {o.name: DTYPES["bf16"].round(made[o.name]) for o in operation.inputs}
    return {**rounded, **{o.name: made[o.name] for o in operation.indices}}


def by_hand(arrays: dict[str, Any], *, causal: bool = False, scale: float = 0.25) -> NDArray[Any]:
    """The output, key by key from the table, in float64."""
    q, k, v = (arrays[name].astype(float) for name in "qkv")
    table, page = arrays["table"], k.shape[2]
    lengths = arrays.get("lengths", np.full(len(q), table.shape[1] * page))
    out = np.zeros((*q.shape[:4], v.shape[-1]))
    for row, head in np.ndindex(len(q), q.shape[1]):
        values = np.zeros((lengths[row], v.shape[-1]))
        keys = np.zeros((lengths[row], k.shape[-1]))
        for n in range(lengths[row]):
            if 0 <= (entry := table[row, n // page]) < len(k):
                keys[n], values[n] = k[entry, head, n % page], v[entry, head, n % page]
        s = scale * q[row, head] @ keys.T
        if causal:
            last = np.arange(q.shape[3])[:, None] + lengths[row] - q.shape[3]
            s = np.where(np.arange(lengths[row]) <= last, s, -np.inf)
        if lengths[row]:
            top = s.max(-1, keepdims=True)
            weights = np.exp(s - np.where(np.isfinite(top), top, 0))
            total = weights.sum(-1, keepdims=True)
            out[row, head] = weights @ values / np.where(total, total, 1)
    return out


# What it computes


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("lengths", [False, True])
@pytest.mark.parametrize("page", [16, 48])
def test_the_reference_reads_pages_by_the_table(page: int, lengths: bool, causal: bool) -> None:
    operation = attention(pages=page, lengths=lengths, mask="causal" if causal else "none")
    here = sizes(3, 2 * 48, l=4, h=2, g=2, d=8, e=16)
    arrays = arrays_of(operation, here)
    table = arrays["table"]
    table[0, 0], table[1] = len(arrays["k"]), table[2]  # beyond the pool; and what another has
    found = operation.reference(arrays, {"scale": 0.25})["o"]
    assert np.allclose(found, by_hand(arrays, causal=causal), atol=1e-12)


def test_dense_keys_have_lengths_too() -> None:
    operation, here = attention(lengths=True), sizes(2, 30, l=3, d=8, e=8)
    arrays = arrays_of(operation, here)
    arrays["lengths"] = np.array([0, 7, 30], np.int32)
    found = operation.reference(arrays, {"scale": 1.0})["o"]
    short = replace(operation, lengths=None, reductions=attention().reductions)
    for row, length in enumerate(arrays["lengths"][1:], 1):
        cut = {n: arrays[n][row : row + 1, :, :length] for n in "kv"}
        cut["q"] = arrays["q"][row : row + 1]
        assert np.allclose(found[row], short.reference(cut, {"scale": 1.0})["o"][0])
    assert not found[0].any()


def test_inputs_are_drawn_with_pages_that_repeat_and_that_are_none() -> None:
    operation, here = attention(pages=16), sizes(1, 16 * 64, l=16, d=8, e=8)
    arrays = drawn(operation, here, "rising", np.random.default_rng(0).standard_normal)
    table, many = arrays["table"], len(arrays["k"])
    assert table.dtype == np.int32
    assert many == 16 * 64 + 1
    assert 5 < ((table < 0) | (table >= many)).sum() < 60
    assert {-1, many} <= {*table.ravel().tolist()}
    assert len(np.unique(table)) < 0.97 * table.size
    k = Pages("n", "l", 16, "table", ("k",)).gathered("lhnd", arrays["k"], table)
    means = abs(k).mean(axis=(0, 1, 3))  # it rises along the sequence, not along the pool
    assert means[-200:].mean() > 3 * means[:200].mean()
    lengths = drawn_lengths(Lengths("n", "l", "lengths"), {"l": 300, "n": 64},
                            np.random.default_rng(0).standard_normal)  # fmt: skip
    assert {0, 64} <= {*lengths.tolist()} <= {*range(65)}


@pytest.mark.parametrize(("page", "others"), [
    (16, {}), (48, {"tile_n": 80}), (64, {"split_kv": 4}), (64, {"tile_n": 128, "split_kv": 1}),
    (128, {"pack_gqa": 0}), (256, {"pack_gqa": 8}), (64, {"cluster_m": 2, "split_kv": 1,
                                                          "pack_gqa": 0}),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("lengths", [False, True])
def test_the_interpreter_gives_what_a_loop_over_keys_gives(
    page: int, others: dict[str, Choosable], lengths: bool
) -> None:
    program = term(page, lengths=lengths, **others)
    here = sizes(2, -(-300 // page) * page, l=3, g=5)
    arrays = arrays_of(program.operation, here)
    run = interpret(program, here, arrays, scalars={"scale": 0.25})
    assert run.findings == ()
    assert np.abs(run.outputs["o"] - by_hand(arrays)).max() < 0.03


@all_by_turns(
    ("page, tile, split", [(64, 64, 2), (16, 128, 1), (256, 80, 2), (48, 64, 4), (128, 64, 8)]),
    ("mask", MASKS),
    ("lengths", [False, True]),
    ("order", COMPLETIONS),
)
def test_its_code_is_right(
    page: int, tile: int, split: int, mask: str, lengths: bool, order: str
) -> None:
    """Without a finding of the emulator: also where the last blocks have no entry in the table."""
    program = term(page, lengths=lengths, mask=mask, lse=True, tile_n=tile, split_kv=split)
    for here in (sizes(2, -(-330 // page) * page, l=3, h=2, g=9), sizes(1, page, l=2)):
        found = emulated(program, here, arch="sm_90a", completions=(order,))
        assert found.findings == ()
        assert found.error < 0.6


@pytest.mark.parametrize("point", ["fa3", "longest first", "zigzag", "pair multicast", "wide"])
def test_many_queries_are_right(point: str) -> None:
    values = {**STARTS[point], "depth": 64, "tile_n": 128}
    operation = attention(pages=48, lengths=True, mask="causal")
    program = Attention().program(operation, Chosen(values))
    assert verdict(program).legal
    assert mask_cover(program)
    found = emulated(program, sizes(200, 336, l=3), arch="sm_90a", completions=("late",))
    assert (found.findings, found.error < 0.6) == ((), True)


# What is proved


@pytest.mark.parametrize(("pack_gqa", "split_kv"), [(0, 1), (1, 2), (8, 8)])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("page", [16, 64])
def test_it_is_legal_and_its_mask_is_covered(
    page: int, mask: str, pack_gqa: int, split_kv: int
) -> None:
    """Of all lengths from 0 to n; where keys lie changes neither order nor mask."""
    for lengths in (False, True):
        program = term(page, lengths=lengths, mask=mask, pack_gqa=pack_gqa, split_kv=split_kv)
        assert verdict(program).legal, str(verdict(program))
        found = mask_cover(program)
        assert found, str(found)
        assert ("l, " in found.reason) == lengths
        case = Case.of(program, sizes(1, 960, d=64), DEVICE)
        for law in LAWS.values():
            assert all(clause.holds for clause in law.clauses(case) if law.numeric), law.name


@pytest.mark.parametrize(
    ("page", "mask", "lengths"),
    some([(16, "none", False), (64, "none", True), (128, "causal", True),
          (64, "window:40:25", True), (256, "causal", False)], 3),
)  # fmt: skip
def test_it_computes_its_operation(page: int, mask: str, lengths: bool) -> None:
    """In the ring, by drawn tables and lengths; at given sizes and at its own."""
    program = term(page, mask=mask, lengths=lengths, lse=True)
    assert computes(program, sizes(3, 5 * page, l=4, g=5, d=16, e=8))
    if "window" not in mask:  # whose own sizes take minutes
        found = computes(program)
        assert found, str(found)
        assert not found.proved


# Mutants: each is found

Change = Callable[[Program], Program]


def loads(of: str, change: Callable[[int, Affine], Affine]) -> Change:
    """Change where loads of inputs begin, by dimension: l, h, n, d."""

    def one(s: Statement) -> Statement:
        read = s.reads[0] if isinstance(s, Do) else None
        if not isinstance(s, Do) or not isinstance(read, Access) or read.buffer.name not in of:
            return s
        origin = tuple(change(d, form) for d, form in enumerate(read.origin))
        return replace(s, reads=(replace(read, origin=origin),))

    return lambda program: rewritten(program, one)


def further(dimension: int, by: int) -> Callable[[int, Affine], Affine]:
    return lambda d, form: form + by if d == dimension else form


def scaled(name: str, by: int) -> Callable[[int, Affine], Affine]:
    def change(d: int, form: Affine) -> Affine:
        if d != 2:
            return form
        return Affine(form.constant, tuple((n, c * by if n == name and isinstance(c, int) else c)
                                           for n, c in form.terms))  # fmt: skip

    return change


def first_sequence(d: int, form: Affine) -> Affine:
    return Affine() if d == 0 else form


WRONG: dict[str, Change] = {
    "keys of the first sequence": loads("k", first_sequence),
    "values of the first sequence": loads("v", first_sequence),
    "all of the first sequence": loads("kv", first_sequence),
    "keys a block further": loads("k", further(2, 64)),
    "values a block before": loads("v", further(2, -64)),
    "all a block further": loads("kv", further(2, 64)),
    "another step's page": loads("kv", scaled("kt", 2)),
    "keys of another step": loads("k", scaled("kt", 2)),
    "another head": loads("v", further(1, 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_another_entry_of_the_table_computes_something_else(name: str) -> None:
    right = term(split_kv=1)
    program = WRONG[name](right)
    assert program != right
    assert not computes(program, sizes(1, 320, l=3, h=2, g=3, d=16, e=8))


def bare(of: str, pages: Pages | None) -> Change:
    """Let arrays lie otherwise: in the term's buffers and in all accesses."""

    def one(s: Statement) -> Statement:
        read = s.reads[0] if isinstance(s, Do) else None
        if not isinstance(s, Do) or not isinstance(read, Access) or read.buffer.name not in of:
            return s
        buffer = replace(read.buffer, pages=pages)
        return replace(s, reads=(replace(read, buffer=buffer),))

    def change(program: Program) -> Program:
        buffers = tuple(
            replace(b, pages=pages) if b.name in of and b.level == "gmem" else b
            for b in program.buffers
        )
        return rewritten(program, one, buffers=buffers)

    return change


@pytest.mark.parametrize(
    ("of", "pages", "why"),
    [
        ("k", None, "k lies in pages of 64 by table, by its operation"),
        ("v", None, "v lies in pages of 64 by table, by its operation"),
        ("k", Pages("n", "l", 32, "table", ("k", "v")), "k lies in pages of 64 by table"),
        ("v", Pages("n", "h", 64, "table", ("k", "v")), "v lies in pages of 64 by table"),
        ("k", Pages("n", "l", 64, "others", ("k", "v")), "k lies in pages of 64 by table"),
    ],
)
def test_a_term_that_leaves_out_the_lookup_is_none(of: str, pages: Pages | None, why: str) -> None:
    with pytest.raises(ProgramError, match=why):
        bare(of, pages)(term())


def test_a_dense_array_has_no_pages() -> None:
    with pytest.raises(ProgramError, match="k lies in one piece, by its operation"):
        bare("k", Pages("n", "l", 64, "table", ("k", "v")))(term(0))


def test_the_tables_rows_have_a_distance() -> None:
    program = term()
    left = tuple((n, e) for n, e in program.parameters if n != "ld_table")
    with pytest.raises(ProgramError, match="no parameter ld_table"):
        replace(program, parameters=left)


def test_other_instructions_than_loads_by_tma_look_nothing_up() -> None:
    program = term()

    def by_threads(s: Statement) -> Statement:
        read = s.reads[0] if isinstance(s, Do) else None
        if not isinstance(s, Do) or not isinstance(read, Access) or read.buffer.name != "k":
            return s
        return replace(s, instruction=INSTRUCTIONS["cp.async"], signal=None, multicast="")

    with pytest.raises(ProgramError, match="k lies in pages; TMA's loads alone look up in which"):
        rewritten(program, by_threads)

    def inside(s: Statement) -> Statement:
        read = s.reads[0] if isinstance(s, Do) else None
        if not isinstance(s, Do) or not isinstance(read, Access) or read.buffer.name != "v":
            return s
        return replace(s, reads=(replace(read, trimmed=True),))

    with pytest.raises(ProgramError, match="v lies in pages; TMA's loads alone look up in which"):
        rewritten(program, inside)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (loads("k", further(2, 8)), "boxes of 64 begin -120 apart along n, in pages of 64"),
        (loads("v", lambda d, f: Affine(0, (("kt", 32),)) if d == 2 else f),
         "boxes of 64 begin 32 apart along n, in pages of 64"),
    ],
)  # fmt: skip
def test_a_box_of_two_pages_breaks_a_law(change: Change, why: str) -> None:
    program = change(term())
    case = Case.of(program, sizes(1, 960, d=64), DEVICE)
    (broken, *_) = [str(c) for c in LAWS["tma_pages"].clauses(case) if not c.holds]
    assert why in broken


def test_a_row_behind_the_table_breaks_a_law() -> None:
    program = loads("k", further(0, 1))(term())
    case = Case.of(program, sizes(1, 960, l=3, d=64), DEVICE)
    broken = [str(c) for c in LAWS["tma_pages"].clauses(case) if not c.holds]
    assert "it counts l to 3; the table has rows below 3" in broken[0]


def test_only_what_machines_know_is_a_matmul() -> None:
    """Of a matmul in pages nothing would say that it was proved at these."""
    whole = matmul("bf16", layout="nt", batched=True)
    paged = replace(whole, pages=Pages("n", "l", 64, "table", ("b",)))
    assert is_matmul(whole)
    assert not is_matmul(paged)
    with pytest.raises(OperationError, match="hopper"):
        MACHINES["hopper"].check(paged)


def test_a_box_of_two_sequences_breaks_a_law() -> None:
    def across(s: Statement) -> Statement:
        read = s.reads[0] if isinstance(s, Do) else None
        if not isinstance(s, Do) or not isinstance(read, Access) or read.buffer.name != "k":
            return s
        first, _, *others = read.value
        value = (first, (1, 0, 0, 0), *others)
        return replace(s, reads=(replace(read, value=value),))

    case = Case.of(rewritten(term(), across), sizes(1, 960, d=64), DEVICE)
    broken = [str(c) for c in LAWS["tma_pages"].clauses(case) if not c.holds]
    assert "its box goes over 64 of l, and a page is of one" in broken[0]


def tiles(change: Callable[[ForTile], ForTile]) -> Change:
    return lambda program: rewritten(program, lambda s: change(s) if isinstance(s, ForTile) else s)


def length_of(sequence: Any) -> Change:
    """Take the length of another sequence than the tile's."""
    there = apply("element", value("lengths"), sequence)
    length = apply("min", apply("max", there, 0), value("n"))
    return tiles(lambda s: replace(
        s, values=tuple((n, length if n == "length" else e) for n, e in s.values)))  # fmt: skip


def all_blocks(program: Program) -> Program:
    """Go over all keys, and mask the last block alone."""
    trips = value("n").ceildiv(128)
    return tiles(
        lambda s: replace(s, values=tuple((n, trips if n == "trips" else e) for n, e in s.values))
    )(program)


def one_block_less(program: Program) -> Program:
    trips = apply("max", value("length").ceildiv(128) - 1, 0)
    return tiles(
        lambda s: replace(s, values=tuple((n, trips if n == "trips" else e) for n, e in s.values))
    )(program)


def predicate(change: Callable[[Affine], Affine]) -> Change:
    def one(s: Statement) -> Statement:
        if not isinstance(s, Do) or s.where is None:
            return s
        return replace(s, where=replace(s.where, origin=change(s.where.origin)))

    return lambda program: rewritten(program, one)


def no_length(form: Affine) -> Affine:
    """Compare with all keys: n stands for the length."""
    return Affine(form.constant, tuple(("n" if n == "length" else n, c) for n, c in form.terms))


LENGTHS: dict[str, Change] = {
    "the first sequence's length": length_of(0),
    "the next sequence's length": length_of(value("bl") + 1),
    "all blocks": all_blocks,
    "a block less": one_block_less,
    "the mask is at the end of the table": predicate(no_length),
    "the mask is a key late": predicate(lambda form: form + 1),
    "the mask is a key early": predicate(lambda form: form + -1),
}


@pytest.mark.parametrize("name", LENGTHS)
def test_a_wrong_length_is_found_by_the_proof_and_by_a_run(name: str) -> None:
    right = term(lengths=True)
    program = LENGTHS[name](right)
    assert program != right
    assert mask_cover(program).outcome == "wrong", mask_cover(program)
    assert not computes(program, sizes(1, 640, l=6, g=3, d=16, e=8))


def test_lengths_beyond_the_table_are_refused() -> None:
    program, here = term(lengths=True), sizes(1, 128, l=2)
    arrays = arrays_of(program.operation, here)
    for wrong in ([0, 129], [-1, 5]):
        arrays["lengths"] = np.array(wrong, np.int32)
        with pytest.raises(OperationError, match=r"lengths: l . has -?1.*; give 0 to 128"):
            interpret(program, here, arrays, scalars={"scale": 1.0})


# Mutants of the code


def ran(program: Program, text: str, here: dict[str, int], arrays: dict[str, Any]) -> Any:
    """Run PTX; return the outputs and what the emulator found."""
    operation = program.operation
    outputs = unwritten_outputs(program, operation.shapes(here))
    report = execute(program, here, arrays | outputs, Module.parse(text), scalars={"scale": 0.25})
    return outputs["o"].astype(float), report.findings


ROW = r"mad\.lo\.s32 (%r\d+), (%r\d+), %n_ld_table, (%r\d+);"
KEY = rf"shr\.u32 (%r\d+), (%r\d+), 6;(?=\n\t{ROW})"
ENTRY = r"ld\.global\.u32 (%r\d+), \[(%rd\d+)\]"
CODE = {
    "the first row of the table": (ROW, r"mov.b32 \1, \3;"),
    "the entry of a key": (KEY, r"mov.b32 \1, \2;"),
    "the next entry": (ENTRY, r"ld.global.u32 \1, [\2+4]"),
    "one page for all": (ENTRY, r"mov.u32 \1, 1"),
    "entries behind the table": (rf"@%p\d+ (?={ENTRY})", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", CODE)
def test_other_code_is_wrong(name: str) -> None:
    program, here = term(split_kv=4), sizes(1, 128, l=2, g=3)
    arrays = arrays_of(program.operation, here)
    arrays["table"] = np.array([[3, 0], [4, 2]], np.int32)
    text, wanted = emit(program, "sm_90a"), by_hand(arrays)
    found, findings = ran(program, text, here, arrays)
    assert (np.abs(found - wanted).max() < 0.03, findings) == (True, ())
    pattern, other = CODE[name]
    mutant = re.sub(pattern, other, text)
    assert mutant != text
    found, findings = ran(program, mutant, here, arrays)
    assert findings or not np.abs(found - wanted).max() < 0.03


def test_entries_are_read_before_a_turn_waits() -> None:
    """So their latency runs while a stage is not free yet."""
    lines = emit(term(), "sm_90a").splitlines()
    (at,) = (i for i, line in enumerate(lines) if "ld.global.u32" in line)  # values' is the same
    first = next(i for i, line in enumerate(lines) if i > at and "cp.async.bulk.tensor" in line)
    assert any("mbarrier.try_wait" in line for line in lines[at:first])


# What arrays a kernel takes


def views(**others: View) -> list[View]:
    """Views of a call: l 2, h 2, g 4, m 1, n 256, d 64; 9 pages of 64 keys."""
    every = {
        "q": View(0, "bf16", (2, 2, 4, 1, 64), (512, 256, 64, 64, 1)),
        "k": View(0, "bf16", (9, 2, 64, 64), (8192, 64, 128, 1)),
        "v": View(0, "bf16", (9, 2, 64, 64), (8192, 64, 128, 1)),
        "table": View(0, "i32", (2, 4), (4, 1)),
        "lengths": View(0, "i32", (2,), (1,)),
        "o": View(0, "bf16", (2, 2, 4, 1, 64), (512, 256, 64, 64, 1)),
    }
    return [*{**every, **others}.values()]


def test_sizes_and_pitches_are_those_of_the_arrays() -> None:
    contract = contract_of(term(lengths=True))
    found = check(contract, views())
    assert {n: found[n] for n in ("l", "n", POOL, "ld_k", "ls_k", "ls2_k", "ld_table")} == {
        "l": 2, "n": 256, POOL: 9, "ld_k": 128, "ls_k": 64, "ls2_k": 8192, "ld_table": 4,
    }  # fmt: skip
    wide = views(table=View(0, "i32", (2, 4), (50, 1)))
    assert check(contract, wide)["ld_table"] == 50
    assert type(contract).of(contract.tree()) == contract


@pytest.mark.parametrize(
    ("name", "wrong", "why"),
    [
        ("table", View(0, "i64", (2, 4), (4, 1)), "table: dtype i64, the kernel takes i32"),
        ("table", View(0, "i32", (8,), (1,)), r"table needs 2 dimensions \(l,n/64\), got shape"),
        ("table", View(0, "i32", (3, 4), (4, 1)), "axis l is 2, but table has shape"),
        ("table", View(0, "i32", (2, 4), (1, 2)), "table: stride 2 in dimension 1"),
        ("k", View(0, "bf16", (9, 2, 32, 64), (4096, 64, 128, 1)), "with 64 there"),
        ("v", View(0, "bf16", (8, 2, 64, 64), (8192, 64, 128, 1)), "axis pages is 9, but v has"),
        ("k", View(0, "bf16", (9, 2, 64, 64), (8192, 1, 128, 2)), "k: stride 2 in dimension 3"),
        ("lengths", View(0, "f32", (2,), (1,)), "lengths: dtype f32, the kernel takes i32"),
        ("lengths", View(0, "i32", (3,), (1,)), "axis l is 2, but lengths has shape"),
    ],
)
def test_a_wrong_array_is_refused(name: str, wrong: View, why: str) -> None:
    with pytest.raises(LaunchError, match=why):
        check(contract_of(term(lengths=True)), views(**{name: wrong}))


def test_a_table_of_another_kind_is_refused_by_the_reference() -> None:
    operation, here = attention(pages=64), sizes(1, 128, l=2)
    arrays = arrays_of(operation, here)
    for name, other, why in (
        ("table", arrays["table"][0], "table needs 2 dimensions"),
        ("table", arrays["table"][:1], "axis l is 2, but table has shape"),
        ("k", arrays["k"][:, :, :32], "a page has 64 of n"),
        ("v", arrays["v"][1:], "axis pages is 5, but v has shape"),
    ):
        with pytest.raises(OperationError, match=why):
            operation.reference({**arrays, name: other}, {"scale": 1.0})
    del arrays["table"]
    with pytest.raises(OperationError, match="no input table; give"):
        operation.reference(arrays, {"scale": 1.0})
    with pytest.raises(OperationError, match="no input table; give"):
        interpret(term(), here, arrays, scalars={"scale": 1.0})


# Operations, files, the command line


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: attention(pages=40), "pages of 40 keys; give a multiple of 16"),
        (lambda: attention(pages=-16), "pages of -16 keys"),
        (lambda: attention(pages="64"), "pages: '64' is of type str"),  # type: ignore[arg-type]
        (lambda: Pages("n", "l", 0, "table", ()), "pages of 0"),
        (lambda: Problem.of(attention(pages=64), **sizes(1, 100)), "n is 100, and pages have 64"),
        (lambda: replace(attention(), pages=Pages("n", "l", 64, "t", ("x",))), "no input x"),
        (lambda: replace(attention(), pages=Pages("n", "l", 64, "t", ("q",))), "needs l and n"),
        (lambda: replace(attention(), pages=Pages("d", "l", 64, "t", ("k",))), "needs l and d"),
        (lambda: replace(attention(), lengths=Lengths("z", "l", "long")), "z is no axis"),
        (lambda: replace(attention(), lengths=Lengths("n", "z", "long")), "axis z is not the"),
        (lambda: replace(attention(lengths=True), epilogue=value("lengths") * parse("acc * total")),
         "lengths is compared with coordinates alone"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_an_error(make: Callable[[], object], why: str) -> None:
    with pytest.raises(OperationError, match=re.escape(why)):
        make()


def test_other_machines_have_no_pages() -> None:
    for asked in ({"pages": 64}, {"lengths": True}):
        with pytest.raises(OperationError, match="choose the machine attention"):
            MACHINES["ampere_attention"].check(attention(**asked))


@pytest.mark.parametrize("mask", MASKS)
def test_files_and_texts_have_pages_and_lengths(mask: str) -> None:
    operation = attention(pages=64, lengths=True, mask=mask)
    schedule = Schedule.of(MACHINE, STARTS["decode"])
    problem = Problem.of(operation, **sizes(1, 128))
    found = from_json(to_json(schedule, problem), MACHINES)
    assert found[1:] == (problem, schedule)
    program = term(lengths=True, mask=mask)
    assert read_term(text_of(program)) == program
    assert "in pages of 64 by table, lengths of l along n" in str(operation)


def test_operations_are_counted_at_the_keys_that_are_there() -> None:
    here: dict[str, Any] = {**sizes(2, 128, l=3), "lengths": (0, 10, 128)}
    operation = attention(pages=64, lengths=True)
    assert operation.flops(here) == 2 * 2 * 2 * 138 * 64
    assert operation.bytes(sizes(1, 128)) == attention().bytes(sizes(1, 128)) + 2 * 4 + 4
    assert operation.bytes({**sizes(1, 128), POOL: 99}) == operation.bytes(sizes(1, 128))


def test_pages_take_the_time_of_a_dense_block_and_of_more_boxes() -> None:
    here = {**sizes(1, 8192, l=8, h=8, g=8), "d": 128, "e": 128}
    values = {"depth": 128, "tile_n": 128, "stages_k": 3}
    whole, paged, small = (
        float(cost(term(pages, **values), here, DEVICE).seconds) for pages in (0, 128, 16)
    )
    assert whole == pytest.approx(paged)
    assert paged <= small


def test_the_command_line_takes_pages(tmp_path: Path) -> None:
    words = "attention -b 2 --heads 8 --kv-heads 2 -m 1 -n 512 -d 64 --device h100 --top 1"
    more = f"--pages 64 --lengths --out {tmp_path / 'found'}"
    values = {**STARTS["decode"], **SMALL, "tile_n": "64,128"}
    fixed = [word for name, choice in values.items() for word in ("--fix", f"{name}={choice}")]
    found = told("search", *words.split(), *more.split(), *fixed)
    assert found.exit_code == 0, found.output
    file = f"{tmp_path / 'found'}/01.json"
    checked = told("check", file)
    assert checked.exit_code == 0, checked.output
    assert "mask cover proved" in checked.output
    ran = told("run", file, "--backend", "interpreter")
    assert ran.exit_code == 0, ran.output
    assert "right" in ran.output
    for wrong, why in (("--pages 50", "pages of 50 keys"), ("--pages 1024", "n is 512")):
        refused = told("search", *words.split(), *wrong.split())
        assert refused.exit_code
        assert why in refused.output
    refused = told("dispatch", *words.split()[:-2], "--pages", "64", "--out", f"{tmp_path}/b")
    assert refused.exit_code
    assert "pages or lengths" in refused.output
    assert "--pages: matmul has none" in told("search", "matmul", "--pages", "64").output
