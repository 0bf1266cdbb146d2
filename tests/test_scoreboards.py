from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import scoreboards as benchmark
from tests.sample import draws
from tests.sass_text import Line, text_of
from tinygpu.codegen.emit import emit
from tinygpu.codegen.run import assemble as assembling
from tinygpu.codegen.run import build, launch
from tinygpu.codegen.run.assemble import assemble, find_nvdisasm, life_ranges, waits_of
from tinygpu.codegen.run.scoreboards import Waits, instructions, unwaited
from tinygpu.errors import AssemblyError
from tinygpu.machines import MACHINES, ampere, hopper
from tinygpu.machines.simt import LADDER
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import matmul

SASS = Path(__file__).parent / "golden" / "sass"
MASK = 52
"""Where the wait mask begins in the second word."""
needs_nvdisasm = pytest.mark.skipif(
    find_nvdisasm() is None, reason="nvdisasm is not installed (pip install nvidia-cuda-nvdisasm)"
)


def masked(sass: str) -> list[tuple[int, int, str]]:
    """Return for each wait bit of a text its instruction, its scoreboard and the text without."""
    found = []
    for number, match in enumerate(re.finditer(r"^\s+/\* 0x([0-9a-f]{16}) \*/", sass, re.M)):
        word = int(match[1], 16)
        for scoreboard in range(6):
            if word >> MASK + scoreboard & 1:
                less = f"{word & ~(1 << MASK + scoreboard):016x}"
                text = sass[: match.start(1)] + less + sass[match.end(1) :]
                found.append((number, scoreboard, text))
    return found


def test_the_wait_that_ptxas_dropped() -> None:
    """Of one PTX, 13.0.88 made SASS whose HMMA reads what the loop's LDSM still loads.

    13.5.37 makes the same instructions with the waits.
    """
    dropped = unwaited((SASS / "dropped.txt").read_text(encoding="utf-8"))
    pairs = {(h.producer.name, h.consumer.name, h.how) for h in dropped.hazards}
    assert pairs == {("LDSM", "HMMA", "reads")}
    assert {h.producer.address for h in dropped.hazards} == {0x2610, 0x2630}
    assert not dropped.right
    assert str(dropped).startswith("wrong: `24a0 HMMA.16816")
    right = unwaited((SASS / "right.txt").read_text(encoding="utf-8"))
    assert right == Waits(instructions=dropped.instructions)
    assert str(right) == "right"


def test_each_wait_that_is_dropped_is_found() -> None:
    """Without one bit of a wait mask the text is wrong, unless another wait does as well.

    That is so where no result or operand pends on the scoreboard, or a later wait comes in time.
    """
    text = (SASS / "right.txt").read_text(encoding="utf-8")
    code = instructions(text)
    missed = {(code[n].address, b) for n, b, less in masked(text) if unwaited(less).right}
    assert len(masked(text)) - len(missed) >= 6
    assert missed == MISSED


MISSED = {(0x21F0, 2), (0x21F0, 3), (0x2440, 2), (0x2560, 2), (0x25D0, 1), (0x25D0, 4)}
"""Waits for instructions that the golden text leaves out, or for operands waited for elsewhere."""


LOAD = Line("LDS R4, [R8]", reads="R8", writes="R4", write=0)
USE = Line("IADD3 R6, R4, 0x1, RZ", reads="R4", writes="R6")
WAITS = Line("IADD3 R6, R4, 0x1, RZ", reads="R4", writes="R6", waits="0")
EXIT = Line("EXIT")


@pytest.mark.parametrize(
    ("lines", "hazards"),
    [
        ([LOAD, USE, EXIT], ["reads R4"]),
        ([LOAD, WAITS, EXIT], []),
        ([LOAD, Line("NOP", waits="0"), USE, EXIT], []),
        ([LOAD, Line("DEPBAR.LE SB0, 0x0"), USE], []),
        ([LOAD, Line("DEPBAR.LE SB1, 0x0, {0}"), USE], []),
        ([LOAD, Line("DEPBAR.LE SB0, 0x1"), USE], ["reads R4"]),
        ([LOAD, Line("MOV R4, 0x1", writes="R4")], ["overwrites R4"]),
        ([LOAD, LOAD, WAITS], []),  # in order
        # operands: a store's may not be overwritten before they are read
        ([Line("STG.E desc[UR4][R2.64], R4", reads="R2 R3 R4 UR4 UR5", read=1),
          Line("MOV R3, 0x1", writes="R3")], ["overwrites R3"]),
        ([Line("STG.E desc[UR4][R2.64], R4", reads="R2 R3 R4 UR4 UR5", read=1),
          Line("MOV R3, 0x1", writes="R3", waits="1")], []),
        # a load without a read scoreboard: the next one of its unit tells
        ([Line("LDG.E R7, desc[UR4][R2.64]", reads="R2 R3 UR4 UR5", writes="R7", write=1),
          Line("LDG.E R9, desc[UR4][R2.64]", reads="R2 R3 UR4 UR5", writes="R9", write=1, read=2),
          Line("MOV R3, 0x1", writes="R3", waits="2")], []),
        # no scoreboard of its own: the next result of the unit tells
        ([Line("MUFU.RCP R4, R8", reads="R8", writes="R4"),
          Line("MUFU.RCP R5, R8", reads="R8", writes="R5", write=3),
          Line("FADD R6, R4, R5", reads="R4 R5", writes="R6", waits="3")], []),
        ([Line("MUFU.RCP R4, R8", reads="R8", writes="R4"), USE], ["reads R4"]),
        # guards that exclude each other, until their predicate changes
        ([Line("@P0 LDS R4, [R8]", reads="R8 P0", writes="R4", write=0),
          Line("@!P0 MOV R4, RZ", reads="P0", writes="R4")], []),
        ([Line("@P0 LDS R4, [R8]", reads="R8 P0", writes="R4", write=0),
          Line("ISETP.EQ.AND P0, PT, R1, RZ, PT", reads="R1", writes="P0"),
          Line("@!P0 MOV R4, RZ", reads="P0", writes="R4")], ["overwrites R4"]),
        # a loop: the wait of the first turn does not serve the second
        ([LOAD, Line("NOP", waits="0"), ".loop:", USE, LOAD, Line("@P0 BRA `(.loop)", reads="P0"),
          EXIT], ["reads R4"]),
        ([".loop:", LOAD, WAITS, Line("@P0 BRA `(.loop)", reads="P0"), EXIT], []),
        # one way waits, the other does not
        ([LOAD, Line("@P0 BRA `(.over)", reads="P0"), Line("NOP", waits="0"), ".over:", USE],
         ["reads R4"]),
        # wgmma: groups end in order
        ([Line("HGMMA.64x8x16.F32 R24, gdesc[UR4], R24, gsb0", reads="UR4 R24", writes="R24"),
          Line("FADD R6, R24, R1", reads="R24 R1", writes="R6")], ["reads R24"]),
        ([Line("HGMMA.64x8x16.F32 R24, gdesc[UR4], R24, gsb0", reads="UR4 R24", writes="R24"),
          Line("WARPGROUP.DEPBAR.LE gsb0, 0x0"),
          Line("FADD R6, R24, R1", reads="R24 R1", writes="R6")], []),
        ([Line("HGMMA.64x8x16.F32 R24, gdesc[UR4], R24, gsb0", reads="UR4 R24", writes="R24"),
          Line("HGMMA.64x8x16.F32 R28, gdesc[UR4], R28, gsb0", reads="UR4 R28", writes="R28"),
          Line("WARPGROUP.DEPBAR.LE gsb0, 0x1"),
          Line("FADD R6, R24, R28", reads="R24 R28", writes="R6")], ["reads R28"]),
        ([Line("HGMMA.64x8x16.F32 R24, gdesc[UR4], R24", reads="UR4 R24", writes="R24"),
          Line("HGMMA.64x8x16.F32 R24, gdesc[UR4], R24, gsb0", reads="UR4 R24", writes="R24"),
          Line("WARPGROUP.DEPBAR.LE gsb0, 0x0"),
          Line("FADD R6, R24, R1", reads="R24 R1", writes="R6")], []),
        ([Line("HGMMA.64x8x16.F32 R24, R4, gdesc[UR4], R24, gsb0", reads="R4 UR4 R24",
               writes="R24"), Line("MOV R4, 0x1", writes="R4")], ["overwrites R4"]),
    ],
)  # fmt: skip
def test_a_rule(lines: Sequence[Line | str], hazards: Sequence[str]) -> None:
    """Each sentence of the module's definition, on the least code that shows it."""
    found = unwaited(text_of(lines))
    assert not found.unknown
    assert [f"{h.how} {h.register}" for h in found.hazards] == hazards


@pytest.mark.parametrize(
    ("lines", "unknown"),
    [
        ([Line("FROBNICATE R4", writes="R4")], "opcode FROBNICATE"),
        ([Line("MOV R4, R8", writes="R4")], "nvdisasm does not mark R8 of MOV R4, R8"),
        ([Line("BRX R4 -0x10", reads="R4")], "opcode BRX"),
        ([Line("BRA `(.nowhere)")], "branch 0000 BRA `(.nowhere)"),
        ([Line("BSYNC B0")], "branch 0000 BSYNC B0"),
        ([Line("RET.REL.NODEC R4 `(k)", reads="R4")], "branch 0000 RET.REL.NODEC R4 `(k)"),
        ([Line("CALL.ABS.NOINC `(.f)")], "branch 0000 CALL.ABS.NOINC `(.f)"),
        ([Line("DEPBAR {1}")], "opcode DEPBAR {1}"),
        ([Line("WARPGROUP.DEPBAR.LE gsb1, 0x0")], "opcode WARPGROUP.DEPBAR.LE gsb1, 0x0"),
        ([], "no instructions"),
    ],
)
def test_what_is_not_known_is_not_right(lines: Sequence[Line], unknown: str) -> None:
    """An opcode, a branch or a register that the check does not know: not checked, and why."""
    found = unwaited(text_of(lines))
    assert found.unknown == unknown
    assert not found.right
    assert str(found) == f"not checked: {unknown}"


def test_text_without_life_ranges() -> None:
    """What nvdisasm prints without -plr is not checked."""
    text = text_of([LOAD, USE])
    cut = "\n".join(line.partition("// |")[0] for line in text.splitlines())
    assert unwaited(cut).unknown == "nvdisasm gave no life ranges"


REGISTERS = [f"R{n}" for n in range(4)]
STEPS = st.one_of(
    st.builds(
        lambda to, at, waits: Line(f"LDS {to}, [{at}]", reads=at, writes=to, waits=waits, write=0,
                                   read=3),
        st.sampled_from(REGISTERS), st.sampled_from(REGISTERS), st.sampled_from(["", "0", "3"]),
    ),
    st.builds(
        lambda to, at, waits: Line(f"LDG {to}, [{at}]", reads=at, writes=to, waits=waits, write=1,
                                   read=2),
        st.sampled_from(REGISTERS), st.sampled_from(REGISTERS), st.sampled_from(["", "1", "2"]),
    ),
    st.builds(
        lambda to, at, waits: Line(f"MOV {to}, {at}", reads=at, writes=to, waits=waits),
        st.sampled_from(REGISTERS), st.sampled_from(REGISTERS),
        st.sampled_from(["", "0", "1", "2", "01"]),
    ),
    st.builds(lambda to: Line(f"@P0 BRA `(.L{to})", reads="P0"), st.integers(0, 5)),
)  # fmt: skip


@settings(max_examples=draws(60, 150), deadline=None)
@given(st.lists(STEPS, min_size=2, max_size=6))
def test_the_fixed_point_is_every_path(steps: list[Line]) -> None:
    """On random code with loops, the hazards are those of walking all paths, one state each."""
    lines: list[Line | str] = []
    for number in range(6):
        lines += [f".L{number}:", steps[number] if number < len(steps) else Line("NOP")]
    code = [line for line in lines if isinstance(line, Line)]
    found = {
        (h.producer.address // 16, h.consumer.address // 16, h.how)
        for h in unwaited(text_of(lines)).hazards
    }
    assert found == walked(code)


def walked(code: Sequence[Line]) -> set[tuple[int, int, str]]:
    """Walk each path; a state is what pends: (instruction, result or operand)."""
    found, seen = set(), set()
    work: list[tuple[int, frozenset[tuple[int, str]]]] = [(0, frozenset())]
    while work:
        at, pends = work.pop()
        if at >= len(code) or (at, pends) in seen:
            continue
        seen.add((at, pends))
        line = code[at]
        pends = frozenset(
            (p, kind) for p, kind in pends
            if str(code[p].write) not in line.waits
            and not (kind == "operand" and str(code[p].read) in line.waits)
        )  # fmt: skip
        for p, kind in pends:
            theirs = code[p].writes if kind == "result" else code[p].reads
            same_unit = code[p].write != 7 and line.write != 7
            if kind == "result" and theirs in line.reads.split():
                found.add((p, at, "reads"))
            if theirs == line.writes and not (
                same_unit if kind == "operand" else code[p].write == line.write == 0
            ):
                found.add((p, at, "overwrites"))
        if line.write != 7:
            pends |= {(at, "result"), (at, "operand")}
        work.append((at + 1, pends))
        if target := re.search(r"L(\d)\)", line.text):
            work.append((int(target[1]), pends))
    return found


def kernels() -> list[tuple[str, Any]]:
    """Return small kernels of several machines, as (architecture, term)."""
    product = matmul("bf16", layout="nt", bias=True)
    start = next(iter(ampere.STARTS.values()))
    group = next(iter(hopper.STARTS.values()))
    return [
        ("sm_80", MACHINES["ampere"].program(product, Chosen(start))),
        ("sm_90a", MACHINES["hopper"].program(matmul("bf16", layout="nt"), Chosen(group))),
        ("sm_90a", MACHINES["simt"].program(matmul("f32"), Chosen(LADDER["naive"]))),
    ]


@needs_nvdisasm
def test_right_kernels_and_their_mutants() -> None:
    """Kernels of three machines are right; nine of ten that lack one wait are found.

    The others wait for memory alone (FENCE, MEMBAR, an mbarrier), or twice for one thing.
    """
    found = every = 0
    for arch, program in kernels():
        text = life_ranges(assemble(emit(program, arch), arch).bytes)
        assert str(unwaited(text)) == "right"
        less = masked(text)[::2]
        every += len(less)
        found += sum(bool(unwaited(one).hazards) for _, _, one in less)
    assert every > 30
    assert found >= 0.85 * every


def test_a_cubin_that_lacks_a_wait_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Builders and kernels refuse it; the message has ptxas's version, both instructions, a way."""
    wrong = unwaited((SASS / "dropped.txt").read_text(encoding="utf-8"))
    monkeypatch.setattr(assembling, "waits_of", lambda _: wrong)
    arch, program = kernels()[2]
    (built,) = build.build_many([(program, arch, None)])
    assert isinstance(built, AssemblyError)
    for part in (f"ptxas {assembling.ptxas_version()}: it dropped a wait", "24a0 HMMA", "2610 @!P4",
                 "pip install -U nvidia-cuda-nvcc"):  # fmt: skip
        assert part in str(built)
    with pytest.raises(AssemblyError, match="it dropped a wait"):
        launch.Kernel(program, arch=arch)


def test_what_is_not_checked_is_built_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without nvdisasm nothing is refused, and what is built says that it was not checked."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(assembling, "find_nvdisasm", lambda: None)
    arch, program = kernels()[2]
    (built,) = build.build_many([(program, arch, None)])
    assert isinstance(built, build.Built)
    assert built.waits.startswith("not checked: nvdisasm is not installed")
    assert built.cubin.ptxas == assembling.ptxas_version()


def test_an_nvdisasm_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An nvdisasm that does not know the chip makes the answer unknown, and is not asked twice
    where the answer was right.
    """
    tool = tmp_path / "nvdisasm"
    tool.write_text("#!/bin/sh\necho 'unknown architecture' >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setattr(assembling, "find_nvdisasm", lambda: tool)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert waits_of(b"x").unknown.startswith("nvdisasm: unknown architecture")
    tool.write_text(f"#!/bin/sh\ncat {SASS / 'right.txt'}\n")
    assert waits_of(b"x").right
    tool.write_text("#!/bin/sh\nexit 1\n")
    assert waits_of(b"x").right


def test_the_benchmark_draws_what_was_wrong() -> None:
    """The wrong kernels that are recorded, schedules like them, and proved ones of any machine."""
    cases = list(benchmark.wrong_on_a_gpu())
    assert [case["number"] for case in cases] == [15, 18]
    decisions = cases[0]["schedules"][0]
    assert {name: decisions[name] for name in benchmark.COMMON} == dict(benchmark.COMMON)
    case = benchmark.drawn("elementwise", 0)
    assert case is not None
    assert 0 < len(case[3]) <= benchmark.EACH
    row = {"group": "every", "machine": "simt", "schedules": 2,
           "ptxas": {"13.5.37": {"right": 2, "wrong": [], "not checked": []}}}  # fmt: skip
    counts = benchmark.summary([row, row])["every"]["13.5.37"]
    assert counts == {"right": 4, "wrong": 0, "not checked": 0}
