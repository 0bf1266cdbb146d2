"""PTX text as the interpreter reads it, and its clocks by themselves."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinygpu.codegen.emulator
from tests.ptx_runs import run_matmul, term_of
from tests.test_ptx_kernels import SMALL
from tinygpu.codegen.emit import emit
from tinygpu.codegen.emulator import Memory, Module, accesses, launch
from tinygpu.codegen.emulator.accesses import PARTY, Accesses, stamps, step_in
from tinygpu.codegen.emulator.clocks import ORDER, PROXIED, Clocks
from tinygpu.codegen.emulator.parser import parse, split
from tinygpu.codegen.emulator.races import unknown
from tinygpu.errors import ProgramError
from tinygpu.machines.hopper import STARTS

FORMS = """
.version 9.0 // a comment; with a semicolon
.target sm_90a, texmode_independent
.address_size 64
/* .entry nothing() { } over
   two lines */
.global .align 4 .b8 table[8] = {1, 2, 0x3, 4, 5, 6, 7, 8};
.visible .entry first(
    .param .u64 .ptr .global .align 16 a,
    .param .align 8 .b8 s[24], .param .f32 x
)
.maxntid 128, 1, 1
.minnctapersm 2
{
    .reg .pred %p<2>, %q;
    .reg .b32 %r<3>;
    .shared .align 16 .b8 held[64];
    .local .align 4 .b8 depot[12];
    .loc 1 2 3
    @!%q bra $L_1; mov.u32 %r0,
        %tid.x;
    { .reg .b32 %r0; mov.u32 %r0, 1; { L: add.u32 %r1, %r0, 2; } bra L2; L2: ret; }
$L_1:
    .pragma "nounroll";
    st.shared.v2.u32 [held+8], {%r0, %r1};
}
.entry second() { ret; }
"""


def test_it_shares_nothing_with_what_it_checks() -> None:
    """The interpreter knows PTX and NumPy: no emitter, no machine, no other interpreter."""
    files = sorted(Path(tinygpu.codegen.emulator.__file__).parent.glob("*.py"))
    assert len(files) > 20
    for path in files:
        for name in re.findall(
            r"^\s*(?:from|import) (tinygpu[\w.]*|\.\.)", path.read_text(), re.MULTILINE
        ):
            assert (path.name, name) == ("errors.py", "tinygpu.errors")


def test_forms() -> None:
    """Comments, directives, several kernels, variables, scopes with names of their own."""
    module = parse(FORMS)
    assert list(module.kernels) == ["first", "second"]
    assert module.target == "sm_90a"
    [table] = module.variables
    assert (table.space, table.bytes, table.align) == ("global", 8, 4)
    first = module.kernels["first"]
    assert [(p.name, p.bytes, p.align) for p in first.parameters] == [
        ("a", 8, 8), ("s", 24, 8), ("x", 4, 4),
    ]  # fmt: skip
    assert first.directives == {"maxntid": (128, 1, 1), "minnctapersm": (2,)}
    assert [v.name for v in first.variables] == ["held", "depot"]
    opcodes = [i.opcode for i in first.instructions]
    assert opcodes == ["bra", "mov.u32", "mov.u32", "add.u32", "bra", "ret", "st.shared.v2.u32"]
    guarded, outer, inner, add, jump, _, _ = first.instructions
    assert (guarded.guard, guarded.negated) == ("%q", True)
    assert outer.operands == ("%r0", "%tid.x")
    assert inner.operands[0] == add.operands[1] != "%r0"
    assert add.operands[0] == "%r1"
    assert first.labels[jump.operands[0]] == 5
    assert first.labels["$L_1"] == 6
    lines = FORMS.split("\n")
    for instruction in first.instructions:
        assert instruction.opcode in lines[instruction.line - 1]


@given(st.lists(st.text("ab%1+ ", min_size=1).map(str.strip).filter(bool), min_size=1, max_size=5))
def test_split_is_undone_by_join(parts: list[str]) -> None:
    """Commas inside brackets belong to their operand."""
    wrapped = [f"{{{p}, {p}}}" if i % 2 else p for i, p in enumerate(parts)]
    assert list(split(", ".join(wrapped))) == wrapped


@pytest.mark.parametrize("machine", ["simt", "hopper"])
def test_what_the_emitter_writes_is_read_whole(machine: str) -> None:
    """As many instructions as lines that end in a semicolon and are no directive."""
    point, how = (SMALL, ()) if machine == "simt" else (STARTS["cluster"], ("bf16", "nt"))
    text = emit(term_of(machine, point, *how))
    body = text[text.index("{\n") :]
    expected = len(re.findall(r"^\t(?!\.|//)[^\n]*;$", body, re.MULTILINE))
    [kernel] = parse(text).kernels.values()
    assert len(kernel.instructions) == expected


def test_globals_and_scopes_run() -> None:
    """A variable with its values; a register of an inner scope leaves the outer one alone."""
    text = """.global .align 4 .u32 table[4] = {7, 8, 9, 10};
    .visible .entry k(.param .u64 out) { .reg .u64 %a; .reg .u32 %x, %y;
      mov.u32 %x, 3; { .reg .u32 %x; mov.u32 %x, 5; mov.u32 %y, %x; }
      mov.u64 %a, table; ld.global.u32 %y, [%a+8]; add.u32 %x, %x, %y;
      ld.param.u64 %a, [out]; st.global.u32 [%a], %x; }"""
    memory, out = Memory(), np.zeros(1, np.uint32)
    assert launch(Module.parse(text), "k", 1, 1, [memory.allocate(out)], memory).findings == ()
    assert out[0] == 12


def test_unknown_parameters_of_instructions() -> None:
    """What is known by name but not in this form is refused, not guessed."""
    for line in (
        "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%d}, {%d}, {%d}, {%d}",
        "tcgen05.mma.sp.cta_group::1.kind::f16 [%r], %d, %d, [%r], %r, %p",
        "cp.async.cg.shared.global [%r], [%d], 8",
        "setmaxnreg.inc.sync.aligned.u32 20",
        "wmma.load.a.sync.aligned.row.m16n16k16.shared.f16 {%r}, [%r]",
    ):
        text = f".entry k() {{ .reg .b32 %r; .reg .b64 %d; .reg .pred %p;\n {line}; }}"
        with pytest.raises(ProgramError, match="line 2"):
            launch(Module.parse(text), "k", 1, 32, [], Memory())


def test_same_seed_same_run() -> None:
    """A random order is repeatable."""
    program = term_of("hopper", STARTS["ring"], "bf16", "nt")
    counts = [
        run_matmul(
            program, {"m": 128, "n": 128, "k": 256}, completion="random", seed=seed
        ).report.instruction_counts
        for seed in (1, 1)
    ]
    assert counts[0] == counts[1]


def _unknown(clocks: Clocks, held: Accesses, granule: int, agent: int, by: int = ORDER) -> bool:
    """Whether an agent does not know of a granule's last write, by one of its clocks."""
    run: Any = SimpleNamespace(clocks=clocks)
    left, rows = held.last("write", np.array([[granule]])), clocks.rows(0, np.array([[agent]]))
    return bool(unknown(run, None, left, rows, by).any())


def _write(held: Accesses, granule: int, agent: int, step: int) -> None:
    held.note("write", np.array([granule]), stamps(np.array([agent]), 0, step=step))


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 2), st.booleans()), max_size=30))
def test_clocks_agree_with_a_graph(actions: list[tuple[int, int, bool]]) -> None:
    """A read conflicts exactly if no path of program order and barriers leads to it."""
    clocks, held = Clocks(domains=1, units=3), Accesses(None, 3, 4)
    after: dict[int, set[int]] = {w: set() for w in (1, 2, 3)}  # what each warp's next comes after
    writer: dict[int, tuple[int, int]] = {}
    for step, (warp, granule, writes) in enumerate(actions, 1):
        if granule == 2:  # a barrier of this warp and the next one
            pair = [warp, warp % 3 + 1]
            clocks.acquire(0, pair, clocks.snapshot(0, pair, step))
            union = after[pair[0]] | after[pair[1]]
            for w in pair:
                after[w] = set(union)
            continue
        if writes:
            _write(held, granule, warp, step)
            writer[granule] = (warp, step)
        elif granule in writer:
            last = writer[granule]
            ordered = last[0] == warp or last[1] in after[warp]
            assert _unknown(clocks, held, granule, warp) != ordered
        after[warp].add(step)


def test_a_fence_is_carried_by_barriers() -> None:
    """Fenced before the barrier: known to the asynchronous proxy; after it, by whoever fences."""
    for who, when, proxied in ((1, "before", True), (2, "after", True), (1, "after", False)):
        clocks, held = Clocks(domains=1, units=2), Accesses(None, 1, 4)
        _write(held, 0, 1, step=1)
        if when == "before":
            clocks.fence(0, [who], 2, PROXIED)
        clocks.acquire(0, [1, 2], clocks.snapshot(0, [1, 2], 3))
        if when == "after":
            clocks.fence(0, [who], 4, PROXIED)
        assert _unknown(clocks, held, 0, 2, PROXIED) != proxied
        assert not _unknown(clocks, held, 0, 2)
        assert clocks.clocks[ORDER, 0, 2, 1] >= clocks.clocks[PROXIED, 0, 2, 1]


def test_every_reader_of_shared_memory_is_kept() -> None:
    """Also when there is room for more agents; of global memory three are."""
    held, step, reader = Accesses(None, 4, 4), 5, np.array([12])
    for agents, agent in ((8, 1), (8, 2), (8, 3), (8, 4), (100, 90)):
        held.did("read", agents)[agent] = True
        held.list_reads(reader, 4, stamps(np.array([agent]), 0, step=step))
        held.settle()
    last = held.last("read", np.array([3]))[:, 0]
    assert [int(s & PARTY) for s in last] == [1, 2, 3, 4, 90]
    assert {int(step_in(s)) for s in last} == {step}
    assert not held.last("read", np.array([2])).any()


def test_reads_that_all_know_are_forgotten() -> None:
    held = Accesses(None, 4, 4)
    held.did("read", 8)[1:3] = True
    for step in (5, 6):
        held.list_reads(np.array([0]), 4, stamps(np.array([step - 4]), 0, step=step))
    held.forget(5)
    held.settle()
    assert held.last("read", np.array([0]))[:, 0].tolist() == [0, int(stamps(2, 0, step=6))]


def test_no_reader_is_lost_where_many_reads_are_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of shared memory they are noted before there are too many."""
    text = """.version 8.0
    .target sm_90
    .address_size 64
    .visible .entry k() {
      .reg .u32 %r<4>; .reg .pred %p; .shared .align 4 .b8 held[4];
      mov.u32 %r0, %tid.x; mov.u32 %r1, held; setp.eq.u32 %p, %r0, 0;
      @%p st.shared.u32 [%r1], 0; bar.sync 0;
      setp.eq.u32 %p, %r0, 63; @%p ld.shared.u32 %r2, [%r1];
      setp.lt.u32 %p, %r0, 32; @!%p bra E; bar.warp.sync 0xffffffff;
      ld.shared.u32 %r2, [%r1]; ld.shared.u32 %r2, [%r1];
      bar.warp.sync 0xffffffff; setp.eq.u32 %p, %r0, 0; @%p st.shared.u32 [%r1], 1;
      E: ret; }"""
    for most in (1 << 21, 40, 1):
        monkeypatch.setattr(accesses, "_MOST_LISTED", most)
        [found] = launch(Module.parse(text), "k", 1, 64, [], Memory()).findings
        assert "lane 31 of warp 1 of CTA 0 read" in found.message
