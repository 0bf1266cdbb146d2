"""The interpreter is never wrong in silence: frames, clocks, reserved memory, faults of its own."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from typer.testing import CliRunner

from tests import ptx_corpus
from tests.ptx_corpus_mended import APPROXIMATIONS, CASES, every_number, registers
from tests.ptx_forms import SWEPT, swept
from tests.sample import SOAK
from tinygpu.cli import app
from tinygpu.codegen.emulator import Memory, Module, Report, check, launch
from tinygpu.codegen.emulator.checking import sarif
from tinygpu.codegen.emulator.decoder import Decoder
from tinygpu.codegen.emulator.forms import FORMS, form_of
from tinygpu.codegen.emulator.launching import TABLE
from tinygpu.codegen.emulator.parser import Instruction, split
from tinygpu.codegen.emulator.report import Array
from tinygpu.errors import EmulatorError, LaunchError, ProgramError, TinyGpuError

HEAD = ".version 9.0\n.target {target}\n.address_size 64\n"
ANY = ".version 9.0\n\n.address_size 64\n"
"""No target: every form is allowed."""


@pytest.mark.parametrize("name", CASES)
def test_kernels_that_were_wrong(name: str) -> None:
    case = CASES[name]
    report, before, after = ptx_corpus.run(case)
    assert report.findings == ()
    assert ptx_corpus.wrong(case, before, after) == ""


def _run(
    body: str, threads: int = 32, *, target: str = "sm_90a", functions: str = "", words: int = 256,
    smem_bytes: int = 0, cluster: int = 1, lines: bool = False,
) -> tuple[Report, Array]:  # fmt: skip
    """Run a body that stores to ``[%d0]`` (of the thread, 16 B); return what it stored."""
    start = """.visible .entry k(.param .u64 y) {
      .reg .u64 %d<8>; .reg .u32 %r<16>; .reg .b16 %h<8>; .reg .pred %p<4>; .reg .f32 %f<4>;
      ld.param.u64 %d0, [y]; mov.u32 %r15, %tid.x; mov.u32 %r14, %ctaid.x; mov.u32 %r13, %ntid.x;
      mad.lo.u32 %r15, %r14, %r13, %r15; mad.wide.u32 %d0, %r15, 16, %d0;"""
    text = HEAD.format(target=target) + functions + start + body + " ret; }"
    memory, y = Memory(), np.zeros((words // 4, 4), np.uint32)
    report = launch(
        Module.parse(text), "k", cluster, threads, [memory.allocate(y)], memory,
        smem_bytes=smem_bytes, cluster=cluster,
    )  # fmt: skip
    return report, y


# Local memory of calls.

CALL = """{ .param .u32 a; st.param.u32 [a], 5; .param .u32 b; call.uni (b), f, (a);
  ld.param.u32 %r1, [b]; } st.global.u32 [%d0], %r1;"""


def _function(body: str, *, bytes_: int = 16) -> str:
    return f""".func (.param .u32 out) f(.param .u32 n) {{
      .reg .u32 %r<8>; .reg .pred %p<2>; .reg .u64 %d<4>; .local .align 16 .b8 own[{bytes_}];
      ld.param.u32 %r0, [n]; {body} ret; }}\n"""


RECURSE = """{ .param .u32 a; st.param.u32 [a], %r1; .param .u32 b; call.uni (b), f, (a);
  ld.param.u32 %r2, [b]; }"""


def test_threads_recurse_to_different_depths() -> None:
    """The sum of 0 to n, each term kept in local memory while the rest is added up."""
    body = f"""st.local.u32 [own+4], %r0; mov.u32 %r2, 0; setp.eq.u32 %p0, %r0, 0; @%p0 bra E;
      sub.u32 %r1, %r0, 1; {RECURSE} E: ld.local.u32 %r3, [own+4]; add.u32 %r3, %r3, %r2;
      st.param.u32 [out], %r3;"""
    call = CALL.replace("[a], 5", "[a], %r15")
    report, y = _run(call, 40, functions=_function(body))
    assert report.findings == ()
    assert y[:40, 0].tolist() == [n * (n + 1) // 2 for n in range(40)]


def test_a_callers_array_is_written_through_its_address() -> None:
    """Generic addresses of a caller's frame mean that frame in what it calls."""
    body = """ld.local.u32 %r1, [own]; st.param.u32 [out], %r1;"""
    outer = _function(body).replace(" f(", " g(").replace("[n]; ", "[n]; st.local.u32 [own], 7; ")
    body = """cvta.local.u64 %d1, own; st.local.u32 [own], 3;""".replace("own;", "%d0;")
    body = (
        f"mov.u64 %d0, own; {body}"
        """{ .param .u32 a; st.param.u32 [a], 0; .param .u32 b;
      call.uni (b), g, (a); ld.param.u32 %r2, [b]; } ld.u32 %r3, [%d1];
      mad.lo.u32 %r3, %r3, 10, %r2; st.param.u32 [out], %r3;"""
    )
    report, y = _run(CALL, functions=outer + _function(body))
    assert report.findings == ()
    assert set(y[:32, 0].tolist()) == {37}


def test_what_an_earlier_call_left_is_not_written() -> None:
    body = """ld.local.u32 %r1, [own]; st.local.u32 [own], %r0; st.param.u32 [out], %r1;"""
    report, _ = _run(CALL + CALL, functions=_function(body))
    assert report.kinds == {"uninitialised"}
    assert report.findings[0].count == 2


def test_a_frame_ends_with_its_call() -> None:
    body = """mov.u32 %r1, own; st.local.u32 [own], %r0; st.param.u32 [out], %r1;"""
    report, _ = _run(CALL + "ld.local.u32 %r2, [%r1];", functions=_function(body))
    assert report.kinds == {"address"}


@pytest.mark.parametrize(("bytes_", "calls"), [(16, 64), (131072, 4)])
def test_recursion_without_an_end(bytes_: int, calls: int) -> None:
    """A thread has 64 calls, or 512 KiB of local memory."""
    report, _ = _run(CALL, functions=_function(f"mov.u32 %r1, own; {RECURSE}", bytes_=bytes_))
    assert report.kinds == {"stack"}
    assert f"is {calls} calls deep" in str(report)


def test_too_much_local_memory_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"\.local: 600000 B of variables; 524288 are the most"):
        _run(".local .b8 own[600000];")


# Special registers.


def test_clocks_advance() -> None:
    """Between any two reads, in every thread, also where a loop stands between them."""
    body = """mov.u64 %d1, %clock64; mov.u32 %r1, %clock; mov.u64 %d2, %globaltimer;
      nanosleep.u32 1000; mov.u64 %d3, %globaltimer; mov.u32 %r2, %clock; mov.u64 %d4, %clock64;
      sub.u64 %d3, %d3, %d2; cvt.u32.u64 %r3, %d3; sub.u32 %r2, %r2, %r1; sub.u64 %d4, %d4, %d1;
      cvt.u32.u64 %r4, %d4; mov.u32 %r5, %clock_hi; st.global.v4.u32 [%d0], {%r2, %r3, %r4, %r5};"""
    _, y = _run(body, 64)
    assert (y[:64, 0] > 1000).all()
    assert (y[:64, 1] >= 1000).all()
    assert (y[:64, 2] > y[:64, 0]).all()
    assert not y[:, 3].any()
    np.testing.assert_array_equal(y, _run(body, 64)[1])


def test_later_ctas_see_later_times() -> None:
    """Also those of a later batch."""
    text = (
        HEAD.format(target="sm_90a")
        + """.visible .entry k(.param .u64 y) {
      .reg .u64 %d<4>; .reg .u32 %r; ld.param.u64 %d0, [y]; mov.u32 %r, %ctaid.x;
      mad.wide.u32 %d0, %r, 8, %d0; mov.u64 %d1, %globaltimer; st.global.u64 [%d0], %d1; ret; }"""
    )
    memory, y = Memory(), np.zeros(24, np.uint64)
    launch(Module.parse(text), "k", 24, 1024, [memory.allocate(y)], memory)
    assert sorted(y.tolist()) == y.tolist()
    assert len(set(y.tolist())) == 3


SIZES = """mov.u32 %r1, %total_smem_size; mov.u32 %r2, %aggr_smem_size;
  mov.u32 %r3, %dynamic_smem_size; mov.u32 %r4, 0; st.global.v4.u32 [%d0], {%r1, %r2, %r3, %r4};"""


@pytest.mark.parametrize(
    ("static", "dynamic", "total"), [(0, 0, 0), (4, 0, 128), (129, 0, 256), (64, 65, 256)]
)
def test_sizes_of_shared_memory(static: int, dynamic: int, total: int) -> None:
    """As an H100 has them: in pieces of 128 B; the reserved KiB and the bytes asked for."""
    held = f".shared .b8 held[{static}];" if static else ""
    _, y = _run(held + SIZES, smem_bytes=dynamic)
    assert y[0, :3].tolist() == [total, static + dynamic + 1024, dynamic]


def test_older_machines_allocate_more() -> None:
    body = SIZES.replace("%aggr_smem_size", "%dynamic_smem_size")
    assert _run(".shared .b8 held[4];" + body, target="sm_75")[1][0, 0] == 256


def test_registers_of_shared_memory() -> None:
    """What ``benchmarks.ptx_agreement`` holds against a GPU."""
    memory, y = Memory(), np.zeros(8, np.uint32)
    module = Module.parse(registers("sm_90a"))
    launch(module, "k", 1, 1, [memory.allocate(y)], memory, smem_bytes=200)
    assert y.tolist() == [256, 1228, 200, 0, 1024, 288, 0, 0]


RESERVED = """mov.u32 %r1, %reserved_smem_offset_begin; mov.u32 %r2, %reserved_smem_offset_end;
  mov.u32 %r3, %reserved_smem_offset_cap; mov.u32 %r4, %reserved_smem_offset_1;"""


def test_reserved_shared_memory() -> None:
    """It lies before the CTA's own, and who asks where it is may use it."""
    body = RESERVED + "st.global.v4.u32 [%d0], {%r1, %r2, %r3, %r4}; mov.u32 %r5, held;"
    report, y = _run(".shared .b32 held[4];" + body + "st.global.u32 [%d0], %r5;")
    assert report.findings == ()
    assert y[0].tolist() == [1024, 288, 1024, 0]
    own = """setp.ne.u32 %p0, %r15, 0; @%p0 bra E; ld.shared.u32 %r6, [%r4];
      red.shared.and.b32 [%r4], 6; ld.shared.u32 %r6, [%r4]; st.shared.u32 [%r2-4], %r6;
      cvt.u64.u32 %d1, %r2; cvta.shared.u64 %d1, %d1; ld.u32 %r7, [%d1-4];
      st.global.u32 [%d0], %r7; E:"""
    report, y = _run(".shared .b32 held[4];" + RESERVED + own)
    assert report.findings == ()
    assert y[0, 0] == 6


def test_each_cta_of_a_cluster_has_its_own_reserved_memory() -> None:
    body = (
        RESERVED
        + """st.shared.u32 [%r4], %r14; barrier.cluster.arrive; barrier.cluster.wait;
      ld.shared.u32 %r6, [%r4]; st.global.u32 [%d0], %r6;"""
    )
    report, y = _run(body, 1, cluster=2)
    assert report.findings == ()
    assert y[:2, 0].tolist() == [0, 1]


def test_races_on_reserved_memory_are_found() -> None:
    report, _ = _run(RESERVED + "st.shared.u32 [%r4], %r15;", 64)
    assert report.kinds == {"race"}
    assert "reserved shared byte 0" in str(report)


@pytest.mark.parametrize("offset", [0, 512, 1020, 1024 + 16, 2048])
def test_what_is_reserved_is_not_the_kernels(offset: int) -> None:
    """Nor is what lies behind its own memory, which a kernel that asks may not use either."""
    store = f".shared .b32 held[4]; mov.u32 %r5, {offset}; st.shared.u32 [%r5], 1;"
    assert _run(store)[0].kinds == {"address"}
    assert ("address" in _run(store + RESERVED)[0].kinds) == (offset > 1024)


# Approximations of 16 bits.

F16, BF16 = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)


def _float(dtype: np.dtype[Any], what: str) -> float:
    info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    return float(getattr(info, what))


def _approximated(opcode: str, *, pairs: bool) -> Array:
    """Return an instruction's results for all 65,536 numbers of 16 bits."""
    text, threads = every_number(opcode + "x2" * pairs, "sm_90a"), 65536 >> pairs
    memory, y = Memory(), np.arange(65536, dtype=np.uint16)
    launch(Module.parse(text), "k", threads // 1024, 1024, [memory.allocate(y)], memory)
    return y


@pytest.mark.parametrize("opcode", APPROXIMATIONS)
def test_every_number_of_16_bits(opcode: str) -> None:
    """Within PTX's accuracy, by itself and in pairs; the corner cases as PTX has them."""
    name, most, ftz = opcode.split(".")[0], APPROXIMATIONS[opcode], "ftz" in opcode
    dtype = BF16 if opcode.endswith("bf16") else F16
    bits = _approximated(opcode, pairs=False)
    np.testing.assert_array_equal(bits, _approximated(opcode, pairs=True))
    tiny = _float(dtype, "tiny")
    with np.errstate(all="ignore"):
        x = np.arange(65536, dtype=np.uint16).view(dtype).astype(np.float64)
        got = bits.view(dtype).astype(np.float64)
        exact = np.tanh(x) if name == "tanh" else np.exp2(x)
    assert (bits[np.isnan(x)] == 0x7FFF).all()
    usual = np.isfinite(exact) & (exact <= _float(dtype, "max"))
    error = np.abs(got[usual] - exact[usual])
    if name == "tanh":
        assert error.max() <= most
        assert bits[0x8000] == 0x8000  # -0 stays what it is
    else:
        normal = exact[usual] >= tiny
        assert (error[normal] / exact[usual][normal]).max() <= most
        small = got[(exact < tiny / 2) & (exact > 0)]
        assert (small == 0).all() if ftz else (small != 0).any()
        assert np.isinf(got[x == np.inf]).all()
        assert got[x == -np.inf].tolist() == [0]
        assert (got[np.abs(x) < tiny] == 1).all()


# What is not checked is said.

SAID = "not checked: races in global memory"
PLAIN = (
    HEAD.format(target="sm_90a")
    + """.visible .entry k(.param .u64 x) { .reg .u64 %d;
  ld.param.u64 %d, [x]; st.global.u32 [%d], 1; ret; }"""
)


@pytest.mark.parametrize("races", [True, False])
@pytest.mark.parametrize("size", [1, 0])
def test_every_result_says_what_is_not_checked(tmp_path: Path, size: int, *, races: bool) -> None:
    """Text, JSON, SARIF and a report, with findings (no array) or without; by default nothing."""
    arrays, named = {"x": np.zeros(size, np.uint32)}, [] if races else ["races in global memory"]
    checked = check(PLAIN, "k", 1, 1, arrays, races=races)
    assert checked.json["not_checked"] == named
    [run] = sarif(checked, "k.ptx")["runs"]
    [invocation] = run["invocations"]
    assert [note["message"]["text"] for note in invocation["toolExecutionNotifications"]] == (
        [] if races else [SAID]
    )
    memory = Memory()
    given = [memory.allocate(arrays["x"])]
    report = launch(Module.parse(PLAIN), "k", 1, 1, given, memory, races=races)
    assert (str(report).splitlines()[-1] == SAID) is not races
    path, log = tmp_path / "k.ptx", tmp_path / "k.sarif"
    path.write_text(PLAIN, encoding="utf-8")
    command = ["ptx", str(path), "--arg", f"x=u32[{size}]", "--sarif", str(log)]
    command += [] if races else ["--no-global"]
    for more in ([], ["--annotations", "github"]):
        done = CliRunner().invoke(app, [*command, *more])
        assert done.exit_code == (0 if size else 1)
        assert (done.output.splitlines()[-1] == SAID) is not races
    assert (SAID in log.read_text(encoding="utf-8")) is not races
    as_json = CliRunner().invoke(app, [*command, "--json"])
    assert json.loads(as_json.output)["not_checked"] == named


# No exception but the project's own.


def test_a_fault_of_the_interpreter_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its line, and the command fails: when a kernel is decoded and when it runs."""

    def build(decoder: Decoder, instruction: Instruction) -> object:
        raise KeyError("no such")

    text = PLAIN.replace("ret;", "nanosleep.u32 1; ret;")
    for builder in (build, lambda d, i: lambda run, group: build(d, i)):
        monkeypatch.setitem(TABLE, "nanosleep", builder)
        with pytest.raises(EmulatorError, match=r"line 5: nanosleep.u32 1: a fault of the interp"):
            check(text, "k", 1, 1, {"x": np.zeros(1, np.uint32)})
        (tmp_path / "k.ptx").write_text(text, encoding="utf-8")
        done = CliRunner().invoke(app, ["ptx", str(tmp_path / "k.ptx"), "--arg", "x=u32[1]"])
        assert done.exit_code == 2
        assert "please report it" in done.output
        assert done.output.count("\n") == 1


def test_memory_that_does_not_suffice(monkeypatch: pytest.MonkeyPatch) -> None:
    def build(decoder: Decoder, instruction: Instruction) -> object:
        raise MemoryError

    monkeypatch.setitem(TABLE, "nanosleep", build)
    with pytest.raises(LaunchError, match="out of memory"):
        check(PLAIN.replace("ret;", "nanosleep.u32 1; ret;"), "k", 1, 1, {"x": np.zeros(1)})


@pytest.mark.parametrize(
    "argument", [float("nan"), float("inf"), 1.5, 1j, "1", None, np.float32("nan")]
)
def test_numbers_that_a_parameter_cannot_have(argument: object) -> None:
    with pytest.raises(LaunchError, match="x: "):
        launch(Module.parse(PLAIN), "k", 1, 1, [argument], Memory())


def test_an_offset_in_a_table_is_a_number() -> None:
    table = ".global .u32 words[2]; .global .u64 table[1] = {words+zero};\n"
    text = PLAIN.replace(".visible", table + ".visible")
    with pytest.raises(ProgramError, match="cannot read the value 'words"):
        check(text, "k", 1, 1, {"x": np.zeros(1, np.uint32)})


ALONE = ("bra", "brx", "call", "ret", "exit", "trap", "brkpt", "bar", "mbarrier", "wgmma",
         "tcgen05", "cp.", "setmaxnreg", "elect")  # fmt: skip
"""What may end or hold up a kernel's threads, so that the rest of it would not run."""
REGISTERS = {f"%{kind}_{n}": kind for kind in SWEPT for n in range(132)}
_WORDS = (0, 1, 31, 32, 0x7F, 0xFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0x3F800000,
          0x7F800000, 0xFF800000, 0x7FC00000, 0x007FFFFF, 0x7C00FC00, 0x04000001)  # fmt: skip


def _kernel(instructions: list[str]) -> tuple[str, int]:
    """Return a kernel of these instructions, one a line, and the line before the first."""
    used = {int(n) for n in re.findall(r"%\w+?_(\d+)", " ".join(instructions))}
    most = max({10, *used}) + 1
    numbers = range(1, 9)
    before = [
        ANY + ".global .align 16 .b8 words[4096];",
        ".visible .entry k(.param .u64 x) {",
        *(f".reg .{kind} %{kind}_<{most}>;" for kind in SWEPT),
        ".shared .align 16 .b8 held[4096]; .local .align 16 .b8 stack[64];",
        "ld.param.u64 %u64_9, [x]; mov.u32 %u32_9, %tid.x; mov.u64 %u64_0, words;",
        "mad.wide.u32 %u64_9, %u32_9, 64, %u64_9;",
        *(f"ld.global.b{kind[1:]} %{kind}_{n}, [%u64_9+{8 * n - 8}];"
          for kind in SWEPT if kind not in ("pred", "b128") for n in numbers),
        *(f"setp.lt.s32 %pred_{n}, %s32_{n}, 0;" for n in numbers),
    ]  # fmt: skip
    start = "\n".join(before)
    return "\n".join([start, *(f"{i};" for i in instructions), "L: ret; }"]), start.count("\n") + 1


def _sweep(seed: int, *, opcodes: int, operands: int) -> tuple[int, list[str]]:
    """Run what forms admit; return how many ran, and the faults of the interpreter."""
    draw = random.Random(seed)
    faults, admitted = list[str](), list[str]()
    for form in FORMS:
        for text in swept(form, draw, opcodes=opcodes, operands=operands):
            opcode, _, operand = text.partition(" ")
            try:
                form_of(Instruction(1, opcode, split(operand)), REGISTERS, (9, 0), "")
            except ProgramError:
                continue
            admitted.append(text)
    rng, words = np.random.default_rng(seed), np.array(_WORDS, np.uint64)
    data = rng.choice(words, (32, 8)) << np.uint64(32) | rng.choice(words, (32, 8))
    rest = [text for text in admitted if not text.startswith(ALONE)]
    waiting = [[text] for text in admitted if text.startswith(ALONE)]
    waiting += [rest[n : n + 48] for n in range(0, len(rest), 48)]
    ran = 0
    while waiting:
        group = waiting.pop()
        text, first = _kernel(group)
        memory = Memory()
        try:
            module = Module.parse(text)
            launch(module, "k", 1, 32, [memory.allocate(data.copy())], memory, limit=2000)
        except TinyGpuError as error:
            told = re.search(r"line (\d+)", str(error))
            at = int(told.group(1)) - first - 1 if told else -1
            if isinstance(error, EmulatorError) or not 0 <= at < len(group):
                faults.append(f"{group[max(at, 0)]}: {error}")
            left = group[:at] + group[at + 1 :] if 0 <= at < len(group) else []
            if left:
                waiting.append(left)
        else:
            ran += len(group)
    return ran, faults


def test_every_form_with_every_type() -> None:
    """Whatever operands a form is given: it runs, or an error says what it does not take."""
    ran, faults = _sweep(1, opcodes=2, operands=1)
    assert faults == []
    assert ran > 700


@pytest.mark.skipif(not SOAK, reason="make soak")
def test_more_of_every_form() -> None:
    ran, faults = _sweep(2, opcodes=4, operands=3)
    assert faults == []
    assert ran > 1000
