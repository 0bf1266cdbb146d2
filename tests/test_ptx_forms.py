"""The table of forms: what it has, ptxas takes; what it does not have is an error with its line."""

from __future__ import annotations

import random

import numpy as np
import pytest

from tests.ptx_forms import instances, kernel, rejected
from tinygpu.codegen.emulator import Memory, Module, launch
from tinygpu.codegen.emulator.forms import (
    FORMS,
    MODIFIERS,
    SETS,
    find,
    form_of,
    runs_on,
    why_not,
)
from tinygpu.codegen.emulator.launching import TABLE
from tinygpu.codegen.emulator.parser import Instruction, split
from tinygpu.codegen.emulator.values import TYPES
from tinygpu.errors import ProgramError

ALL = [i for form in FORMS for i in instances(form)]


def test_every_entry_has_a_builder() -> None:
    assert {form.entry for form in FORMS} == set(TABLE)


def test_ptxas_takes_every_form() -> None:
    """Every alternative of every modifier, on one of the two machines."""
    assert len(ALL) > 1500
    refused = rejected(ALL, "9.0", "sm_100a").keys() & rejected(ALL, "9.0", "sm_90a").keys()
    own = ("st.param::func", "ld.param::func")  # the latter need a declared parameter
    assert [r for r in refused if not r.startswith(own)] == []


@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_89", "sm_90"])
def test_targets_are_as_ptxas_has_them(target: str) -> None:
    """What the table lets run on a machine, ptxas assembles for it."""
    mine = []
    for form in FORMS:
        for text in instances(form):
            needs = [
                MODIFIERS[p][1] for p in text.split()[0].rstrip(";").split(".") if p in MODIFIERS
            ]
            if all(runs_on(n, target) for n in (form.target, *needs)):
                mine.append(text)
    refused = rejected(mine, "9.0", target)
    assert [r for r in refused if "param::func" not in r] == []
    assert len(mine) > 1000


@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_every_form_is_decoded(target: str) -> None:
    """What the table has is built: no form is taken that nothing executes."""
    refused = rejected(ALL, "9.0", target)
    taken = [i for i in ALL if i not in refused]
    module = Module.parse(kernel(taken, "9.0", target))
    assert len(module.code("k", Memory()).instructions) == len(taken) + 2


def test_ptxas_takes_what_the_table_takes() -> None:
    """Opcodes with a modifier left out, doubled, replaced or moved: none passes here alone."""
    draw, tried = random.Random(1), []
    words = sorted({w for m in SETS.values() for w in m.split("|")} | {"sat", "cc", "v2", "x4"})
    for text in draw.sample(ALL, 1200):
        opcode, _, operands = text.partition(" ")
        parts, at = opcode.rstrip(";").split("."), 0
        at = draw.randrange(1, len(parts) + 1)
        how = draw.randrange(4)
        if how == 0 and at < len(parts):
            del parts[at]
        elif how == 1:
            parts.insert(at, draw.choice(words))
        elif how == 2 and at < len(parts):
            parts[at] = draw.choice(words)
        else:
            draw.shuffle(parts)
        tried.append(f"{'.'.join(parts)} {operands}".rstrip().rstrip(";") + ";")
    registers = {r: r[1:].split("_")[0] for r in _registers()}
    mine = []
    for text in dict.fromkeys(tried):
        opcode, _, operands = text.rstrip(";").partition(" ")
        listed = split(operands)
        try:
            form_of(Instruction(1, opcode, listed), registers, (9, 0), "")
        except ProgramError:
            continue
        mine.append(text)
    assert len(mine) > 30
    refused = rejected(mine, "9.0", "sm_100a").keys() & rejected(mine, "9.0", "sm_90a").keys()
    assert refused == set()


def _registers() -> list[str]:
    types = ("pred", "b16", "b32", "b64", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64")
    return [f"%{t}_{n}" for t in types for n in range(132)]


@pytest.mark.parametrize(
    ("instruction", "says"),
    [
        ("mul.lo.frob.u32 %r0, %r0, 3", ".frob is not what follows mul.lo"),
        ("add.sat.u32 %r0, %r0, 3", ".u32 is not what follows add.sat"),
        ("mul.u32.lo %r0, %r0, 3", ".u32 is not what follows mul"),
        ("fma.rn %f0, %f0, %f0, %f0", "a modifier is missing after fma.rn"),
        ("tex.2d.v4.f32.s32 {%f0, %f0, %f0, %f0}, [%d0, {%r0, %r0}]", "is not run"),
        ("add.u32 %r0, %r0", "2 operands; add.I takes d a b"),
        ("add.u32 %r0, %r0, %r0, %r0", "4 operands"),
        ("add.u32 %r0, %r0, %d0", "%d0 is a .b64, it takes .u32"),
        ("add.f32 %f0, %f0, %u0", "%u0 is a .u32, it takes .f32"),
        ("add.u32 %p0, %r0, 1", "%p0 is a .pred, it takes .u32"),
        ("add.u32 %r0, [%r0], 1", "is an address, and a value is needed"),
        ("ld.global.u32 %r0, %d0", "%d0 is no address"),
        ("ld.global.v2.u32 {%r0, %r1, %r2}, [%d0]", "3 registers in braces"),
        ("selp.b32 %r0, 1, 2, %r1", "%r1 is a .b32, it takes .pred"),
        ("cp.async.wait_group %r0", "%r0 has to be a number"),
        ("add.u32 %r0, %r0, 1.5", "cannot read the operand '1.5'"),
        ("add.u32 %nosuch, %r0, 1", "%nosuch is no register"),
        ("wgmma.fence.sync.aligned", "needs .target sm_90a, not sm_90"),
        ("tcgen05.wait::ld.sync.aligned", "needs .version 8.6 or later"),
        ("add.rn.f32x2 %d0, %d0, %d0", "needs .version 8.6"),
    ],
)
def test_what_is_no_form_is_an_error(instruction: str, says: str) -> None:
    text = f""".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry k() {{
      .reg .b32 %r<4>; .reg .u32 %u<2>; .reg .b64 %d<2>; .reg .f32 %f<4>; .reg .pred %p<2>;
      {instruction};\n ret; }}"""
    with pytest.raises(ProgramError, match=r"line 6: ") as caught:
        launch(Module.parse(text), "k", 1, 1, [], Memory())
    assert says in str(caught.value)


def test_targets() -> None:
    """An ``a`` target has its own features, later ones those of earlier plain ones."""
    assert runs_on("90", "sm_100a")
    assert not runs_on("90", "sm_89")
    assert runs_on("90a", "sm_90a")
    assert not runs_on("90a", "sm_100a")
    assert runs_on("100a", "sm_103f")
    assert runs_on("90+a", "sm_100a")
    assert not runs_on("90+a", "sm_100")


def test_an_error_names_what_is_near() -> None:
    assert "atom{.SEM}" in why_not("atom.add.frob.u32")
    assert why_not("frobnicate.u32") == "the instruction frobnicate.u32 is not run"
    assert [f.entry for f in find("cp.async.bulk.wait_group.read")] == ["cp.async.bulk.wait_group"]
    assert find("cp") == find("mul.lo") == ()


def _bits(instructions: str, given: list[int], kind: str = "u32") -> list[int]:
    """Run instructions on %r0 and on; returns %r4 and on."""
    width = 8 if kind == "u64" else 4
    loads = "".join(f"ld.global.{kind} %r{n}, [%a0+{width * n}];" for n in range(len(given)))
    stores = "".join(f"st.global.{kind} [%a1+{width * n}], %r{n + 4};" for n in range(4))
    text = f""".visible .entry k(.param .u64 x, .param .u64 y) {{
      .reg .u64 %a<2>; .reg .b{8 * width} %r<12>; .reg .b32 %s<4>;
      ld.param.u64 %a0, [x]; ld.param.u64 %a1, [y]; {loads} {instructions} {stores} ret; }}"""
    memory, x, y = Memory(), np.array(given, TYPES[kind]), np.zeros(4, TYPES[kind])
    launch(Module.parse(text), "k", 1, 1, [memory.allocate(x), memory.allocate(y)], memory)
    return [int(v) for v in y]


def test_modifiers_are_obeyed() -> None:
    """Rounding, saturation and flushing that an opcode's prefix does not tell of."""
    tie = 0x3F801000  # halfway between two numbers of tf32
    got = _bits(
        "cvt.rn.tf32.f32 %r4, %r0; cvt.rz.tf32.f32 %r5, %r1; cvt.rna.tf32.f32 %r6, %r0;"
        "sqrt.rp.f32 %r7, %r2;",
        [tie, tie + 1, 0x40000000],
    )
    assert got == [0x3F800000, 0x3F800000, 0x3F802000, 0x3FB504F4]
    got = _bits(
        "fma.rn.sat.f16x2 %r4, %r0, %r0, %r0; mad.hi.sat.s32 %r5, %r1, %r1, %r1;"
        "add.ftz.f32 %r6, %r2, %r2; add.f32 %r7, %r2, %r2;",
        [0xB800B800, 0x7FFFFFFF, 0x00000100],
    )
    assert got == [0, 0x7FFFFFFF, 0, 0x200]
    got = _bits(
        "min.xorsign.abs.f32 %r4, %r0, %r1; max.relu.s32 %r5, %r0, %r0; min.f32 %r6, %r2, %r3;"
        "max.f32 %r7, %r3, %r2;",
        [0xC0000000, 0x3F800000, 0x80000000, 0],
    )
    assert got == [0xBF800000, 0, 0x80000000, 0]
    got = _bits("rcp.rz.f32 %r4, %r0; rcp.rp.f32 %r5, %r0; div.rm.f32 %r6, %r1, %r0;"
                "add.rz.f32 %r7, %r1, %r2;", [0x40400000, 0x3F800000, 0x33000001])  # fmt: skip
    assert got == [0x3EAAAAAA, 0x3EAAAAAB, 0x3EAAAAAA, 0x3F800000]


def test_integers_of_many_words() -> None:
    """A carry goes on through add, sub and mad, as 128-bit code of nvcc has it."""
    draw = random.Random(2)
    for _ in range(8):
        a, b = draw.getrandbits(128), draw.getrandbits(128)
        given = [a % 2**64, a >> 64, b % 2**64, b >> 64]
        low, high, less, least = _bits(
            "add.cc.u64 %r4, %r0, %r2; addc.u64 %r5, %r1, %r3;"
            "sub.cc.u64 %r6, %r0, %r2; subc.u64 %r7, %r1, %r3;", given, "u64"
        )  # fmt: skip
        assert low + (high << 64) == (a + b) % 2**128
        assert less + (least << 64) == (a - b) % 2**128
        got = _bits(
            "mad.lo.cc.u64 %r4, %r0, %r2, %r1; madc.hi.u64 %r5, %r0, %r2, %r3;", given, "u64"
        )
        whole = given[0] * given[2] + given[1] + (given[3] << 64)
        assert got[0] + (got[1] << 64) == whole % 2**128


def test_packed_and_bytes() -> None:
    got = _bits("add.rn.f32x2 %r4, %r0, %r0; mul.rn.f32x2 %r5, %r0, %r1;"
                "mov.u64 %r6, 0; mov.u64 %r7, 0;",
                [0x3F80000040000000, 0x4000000040400000], "u64")  # fmt: skip
    assert got[:2] == [0x4000000040800000, 0x4000000040C00000]
    got = _bits("dp4a.s32.u32 %r4, %r0, %r1, %r2; bmsk.clamp.b32 %r5, 4, 8;"
                "szext.wrap.s32 %r6, %r3, 4; fns.b32 %r7, %r1, 0, 2;",
                [0xFF01FE02, 0x04030201, 100, 0x5A])  # fmt: skip
    assert got == [100 + 2 - 4 + 3 - 4, 0xFF0, 0xFFFFFFFA, 9]
    got = _bits("add.u16x2 %r4, %r0, %r1; min.relu.s16x2 %r5, %r0, %r1; lop3.b32 %r6, %r0, %r1, 0,"
                " 0x3C; dp2a.lo.u32.u32 %r7, %r0, %r1, 1;", [0xFFFF0001, 0x00020003])  # fmt: skip
    assert got == [0x00010004, 0x00000001, 0xFFFD0002, 1 + 3]
