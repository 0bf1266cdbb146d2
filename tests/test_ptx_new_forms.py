"""Instructions that few kernels have: what each leaves, by small kernels of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.test_ptx_twins import END, INIT, START
from tinygpu.codegen.emulator import Memory, Module, Report, TensorMap, launch

Array = np.ndarray[Any, np.dtype[Any]]


def run(body: str, threads: int = 32, grid: int = 1, **how: Any) -> tuple[Report, Array]:
    memory, x, y = Memory(), np.arange(128, dtype=np.uint32), np.zeros(128, np.uint32)
    arguments = [memory.allocate(x, "x"), memory.allocate(y, "y")]
    text = START + body + END
    return launch(Module.parse(text), "k", grid, threads, arguments, memory, **how), y


LANE = np.arange(32)
ONE = {
    "mad24.lo.u32 %r9, %t, %t, 5;": LANE * LANE + 5,
    "mad24.hi.sat.s32 %r9, 0x7fffff, 0x7fffff, 0x7fffffff;": np.full(32, 0x7FFFFFFF),
    """brx.idx %r8, T; T: .branchtargets A, B, C;
       A: mov.u32 %r9, 10; bra D; B: mov.u32 %r9, 20; bra D; C: mov.u32 %r9, 30; D:""": (
        np.array([10, 20, 30])[LANE % 3]
    ),
    "createpolicy.cvt.L2.b64 %d4, 0x10000000; membar.proxy.alias; mov.u32 %r9, 1;": np.ones(32),
    "createpolicy.range.global.L2::evict_last.b64 %d4, [%d0], 64, 128;": np.zeros(32),
    "movmatrix.sync.aligned.m8n8.trans.b16 %r9, %t;": None,
    """@%p0 st.bulk.weak.shared::cta [%s], 128, 0; bar.sync 0;
       ld.shared.u32 %r9, [%own];""": np.zeros(32),
    "set.gt.and.u32.s32 %r9, %t, 3, %p1;": np.zeros(32),
}  # fmt: skip


@pytest.mark.parametrize("body", ONE)
def test_values(body: str) -> None:
    report, y = run("rem.u32 %r8, %t, 3;" + body)
    assert report.findings == ()
    if (wanted := ONE[body]) is not None:
        np.testing.assert_array_equal(y[:32], wanted)
        return
    halves = np.stack([LANE, 0 * LANE], 1).astype(np.uint16).reshape(8, 8)  # lane t holds t, 0
    turned = np.ascontiguousarray(halves.T).view(np.uint32).reshape(-1)
    np.testing.assert_array_equal(y[:32], turned)


SIMD: dict[str, Callable[[int, int], int]] = {
    "vadd4.u32.u32.u32": lambda a, b: a + b,
    "vsub4.s32.s32.s32.sat": lambda a, b: a - b,
    "vmin4.s32.s32.s32": min,
    "vmax4.u32.u32.u32": max,
    "vabsdiff4.u32.s32.s32.add": lambda a, b: abs(a - b),
    "vadd2.u32.u32.s32.sat": lambda a, b: a + b,
    "vsub2.s32.u32.u32.add": lambda a, b: a - b,
    "vmin2.u32.u32.u32": min,
    "vmax2.s32.s32.s32": max,
    "vabsdiff2.s32.s32.s32.sat": lambda a, b: abs(a - b),
}  # of each byte or half; what the section on video says of .sat and .add


@pytest.mark.parametrize("opcode", SIMD)
def test_bytes_and_halves_by_themselves(opcode: str) -> None:
    """Held against integers of Python: wrapped, saturated to the result's type, or summed."""
    name, to, left, right, *how = opcode.split(".")
    count, bits = int(name[-1]), 32 // int(name[-1])

    def parts(word: int, kind: str) -> list[int]:
        fields = [word >> bits * n & (1 << bits) - 1 for n in range(count)]
        return [f - (1 << bits) if kind == "s32" and f >> bits - 1 else f for f in fields]

    body = f"""mul.lo.u32 %r1, %t, 0x9e3779b9; mul.lo.u32 %r2, %t, 0x85ebca6b;
      {opcode} %r9, %r1, %r2, %t;"""
    report, y = run(body)
    assert report.findings == ()
    for t in range(32):
        a, b = (t * k & 0xFFFFFFFF for k in (0x9E3779B9, 0x85EBCA6B))
        made = [SIMD[opcode](*v) for v in zip(parts(a, left), parts(b, right), strict=True)]
        if "sat" in how:
            low = -(1 << bits - 1) if to == "s32" else 0
            made = [max(low, min(low + (1 << bits) - 1, m)) for m in made]
        word = sum((m & (1 << bits) - 1) << bits * n for n, m in enumerate(made))
        assert y[t] == ((sum(made) + t) & 0xFFFFFFFF if "add" in how else word)


@pytest.mark.parametrize("kind", ["u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"])
def test_packing_of_integers(kind: str) -> None:
    """cvt.pack: two numbers kept to their limits, and what else there was above them."""
    size, wide = int(kind[1:]), kind.endswith("16")
    body = f"""sub.u32 %r1, %t, 16; mad.lo.u32 %r2, %t, 9, -150; mul.lo.u32 %r3, %t, 0x9e3779b9;
      cvt.pack.sat.{kind}.s32{"" if wide else ".b32"} %r9, %r1, %r2{"" if wide else ", %r3"};"""
    report, y = run(body)
    assert report.findings == ()
    low = -(2 ** (size - 1)) if kind[0] == "s" else 0
    for t in range(32):
        upper, lower = (min(max(v, low), low + 2**size - 1) for v in (t - 16, 9 * t - 150))
        rest = 0 if wide else t * 0x9E3779B9
        word = lower % 2**size + (upper % 2**size) * 2**size + rest * 4**size
        assert y[t] == word % 2**32


def test_an_index_outside_of_the_list() -> None:
    report, _ = run("brx.idx %t, T; T: .branchtargets A, A; A: mov.u32 %r9, 1;", 3)
    assert report.kinds == {"address"}
    assert run("brkpt;", 1)[0].kinds == {"trap"}


def test_the_cta_of_an_address() -> None:
    """Of a pair each asks where the other's memory is."""
    text = """mov.u32 %r1, %cluster_ctarank; xor.b32 %r2, %r1, 1;
      mapa.shared::cluster.u32 %r3, %s, %r2; getctarank.shared::cluster.u32 %r9, %r3;
      mov.u32 %r4, %ctaid.x; mad.wide.u32 %d2, %r4, 4, %d1;"""
    report, y = run(text, 1, grid=2, cluster=2)
    assert report.findings == ()
    assert y[:2].tolist() == [1, 0]


def test_red_async() -> None:
    """Sums by a few bytes each, and the barrier that counts them."""
    body = (
        "@%p0 st.shared.u32 [%s], 5;"
        + INIT.format(n=1)
        + """fence.mbarrier_init.release.cluster; bar.sync 0;
      @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 128;
      red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32
        [%s], %t, [%r11];
      W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r11], 0; @!%p2 bra W;
      ld.shared.u32 %r9, [%s];"""
    )
    for completion in ("late", "early", "random"):
        report, y = run(body, completion=completion)
        assert report.findings == ()
        assert (y[:32] == 5 + 31 * 16).all()


def test_participants_that_leave() -> None:
    """One of two warps drops out; bytes that a thread completes itself count too."""
    body = (
        INIT.format(n=64)
        + """setp.ge.u32 %p2, %t, 32;
      @%p2 mbarrier.arrive_drop.shared::cta.b64 %state, [%r11];
      @!%p2 mbarrier.arrive.shared::cta.b64 %state, [%r11]; @%p2 bra E;
      A: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r11], 0; @!%p3 bra A;
      @%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r11], 16;
      @%p0 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r11], 16;
      mbarrier.arrive.shared::cta.b64 %state, [%r11];
      B: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r11], 1; @!%p3 bra B;
      mov.u32 %r9, 9; E:"""
    )
    report, y = run(body, 64)
    assert report.findings == ()
    assert (y[:32] == 9).all()


def test_reductions_of_boxes() -> None:
    """cp.reduce of a tensor's box adds to what is there; a prefetch of it does nothing."""
    text = START.replace(".param .u64 x", ".param .align 64 .b8 map[128], .param .u64 x")
    text += """mov.u64 %d4, map; cvta.param.u64 %d4, %d4;
      st.shared.u32 [%own], %t; fence.proxy.async.shared::cta;
      bar.sync 0; @!%p0 bra E;
      cp.async.bulk.prefetch.tensor.1d.L2.global.tile [%d4, {%r9}];
      cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.tile.bulk_group [%d4, {%r9}], [%s];
      cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; E:"""
    memory, x, y = Memory(), np.arange(32, dtype=np.uint32), np.zeros(64, np.uint32)
    at = memory.allocate(x, "x")
    given = [TensorMap(at, "u32", (32,), (), (32,)), at, memory.allocate(y)]
    report = launch(Module.parse(text + END), "k", 1, 32, given, memory)
    assert report.findings == ()
    np.testing.assert_array_equal(x, 2 * np.arange(32))


@pytest.mark.parametrize(
    ("shape", "kind", "k", "registers"),
    [("m8n8k4", "f64", 4, (1, 1, 2)), ("m16n8k4", "f64", 4, (2, 1, 4)),
     ("m16n8k8", "f64", 8, (4, 2, 4)), ("m16n8k16", "f64", 16, (8, 4, 4)),
     ("m8n8k16", "s8", 16, (1, 1, 2)), ("m16n8k16", "s8", 16, (2, 1, 4))],
)  # fmt: skip
def test_products(shape: str, kind: str, k: int, registers: tuple[int, int, int]) -> None:
    """Double and small integer products: each lane's elements are where PTX says."""
    rows, each = (8 if shape.startswith("m8") else 16), (1 if kind == "f64" else 4)
    rng = np.random.default_rng(7)
    a, b = rng.integers(-9, 9, (rows, k)), rng.integers(-9, 9, (k, 8))
    g, q = LANE // 4, LANE % 4
    held = np.zeros((32, sum(registers[:2]), each), np.float64 if each == 1 else np.int8)
    for n in range(registers[0]):
        row = g + 8 * (n % 2) * (rows == 16)
        for e in range(each):
            held[:, n, e] = a[row, each * q + e + 4 * each * (n // 2 if rows == 16 else n)]
    for n in range(registers[1]):
        for e in range(each):
            held[:, registers[0] + n, e] = b[each * q + e + 4 * each * n, g]
    bits, out = (64, "f64") if each == 1 else (32, "s32")
    width, many = bits // 8, sum(registers[:2])
    loads = "".join(f"ld.global.b{bits} %v{n}, [%d2+{n * width}];" for n in range(many))
    sums = [f"%c{n}" for n in range(registers[2])]
    zero = "".join(f"mov.b{bits} {c}, 0;" for c in sums)
    stores = "".join(f"st.global.b{bits} [%d3+{n * width}], {c};" for n, c in enumerate(sums))
    lists = ("%c", 0, registers[2]), ("%v", 0, registers[0]), ("%v", registers[0], registers[1])
    d, x, y = ("{" + ", ".join(f"{r}{m + s}" for m in range(n)) + "}" for r, s, n in lists)
    text = f""".version 8.0\n.target sm_90\n.address_size 64
    .visible .entry k(.param .u64 i, .param .u64 o) {{
      .reg .b{bits} %v<16>, %c<4>; .reg .u64 %d<4>; .reg .u32 %t;
      ld.param.u64 %d0, [i]; ld.param.u64 %d1, [o]; mov.u32 %t, %tid.x;
      mad.wide.u32 %d2, %t, {many * width}, %d0;
      mad.wide.u32 %d3, %t, {registers[2] * width}, %d1; {loads} {zero}
      mma.sync.aligned.{shape}.row.col.{out}.{kind}.{kind}.{out} {d}, {x}, {y}, {d};
      {stores} ret; }}"""
    memory, result = Memory(), np.zeros((32, registers[2]), np.float64 if each == 1 else np.int32)
    arguments = [memory.allocate(held), memory.allocate(result)]
    assert launch(Module.parse(text), "k", 1, 32, arguments, memory).findings == ()
    exact = a @ b
    for n in range(registers[2]):
        np.testing.assert_array_equal(result[:, n], exact[g + 8 * (n // 2), 2 * q + n % 2])


def test_wmma_of_doubles() -> None:
    """D = A B + C: C is loaded by columns, D stored by rows; modifiers stand in any order."""
    rng = np.random.default_rng(3)
    a, b, c = (rng.integers(-9, 9, s).astype(np.float64) for s in ((8, 4), (4, 8), (8, 8)))
    names = [f"{n}{i}" for n in "abcd" for i in range(1)]
    text = """.version 8.0\n.target sm_90\n.address_size 64
    .visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d) {
      .reg .u64 %p<4>; .reg .f64 %a, %b, %c<2>, %d<2>;
      ld.param.u64 %p0, [a]; ld.param.u64 %p1, [b]; ld.param.u64 %p2, [c]; ld.param.u64 %p3, [d];
      wmma.load.a.sync.aligned.row.m8n8k4.global.f64 {%a}, [%p0], 4;
      wmma.load.b.sync.aligned.row.m8n8k4.global.f64 {%b}, [%p1], 8;
      wmma.load.c.sync.aligned.col.m8n8k4.global.f64 {%c0, %c1}, [%p2], 8;
      wmma.mma.sync.aligned.m8n8k4.row.row.rn.f64.f64.f64.f64 {%d0, %d1}, {%a}, {%b}, {%c0, %c1};
      wmma.store.d.sync.aligned.m8n8k4.global.row.f64 [%p3], {%d0, %d1}, 8;
      ret; }"""
    memory, d = Memory(), np.zeros((8, 8))
    arguments = [memory.allocate(v, n) for v, n in zip((a, b, c, d), names, strict=True)]
    assert launch(Module.parse(text), "k", 1, 32, arguments, memory).findings == ()
    np.testing.assert_array_equal(d, a @ b + c.T)


def test_who_drops_out_of_a_phase_without_completing_it() -> None:
    """31 threads drop out and one arrives: it alone is waited for from the next phase on."""
    one = "mbarrier.arrive.shared::cta.b64 %state, [%r11];"
    body = f"""{INIT.format(n=32)}
        @!%p0 mbarrier.arrive_drop.noComplete.shared::cta.b64 %state, [%r11], 1;
        bar.sync 0;
        @%p0 {one}
        V: mbarrier.test_wait.parity.shared::cta.b64 %p3, [%r11], 0; @!%p3 bra V;
        @%p0 {one}
        W: mbarrier.test_wait.parity.shared::cta.b64 %p3, [%r11], 1; @!%p3 bra W;
        mov.u32 %r9, 1;"""
    report, y = run(body)
    assert report.findings == ()
    assert y[:32].all()
    report, _ = run(body.replace("@!%p0 mbarrier", "mbarrier"), limit=2_000)
    assert "noComplete" in report.findings[0].message


@pytest.mark.parametrize(("again", "found"), [("dec", 120), ("inc", 120), ("dec", 128)])
def test_a_warpgroup_may_ask_for_what_it_has(again: str, found: int) -> None:
    """Only registers that go the other way are told of."""
    text = f""".version 8.0\n.target sm_90a\n.address_size 64
    .visible .entry k() .reqntid 256 .maxnreg 168 {{
      setmaxnreg.dec.sync.aligned.u32 120; bar.sync 0;
      setmaxnreg.{again}.sync.aligned.u32 {found}; bar.sync 0; ret; }}"""
    report = launch(Module.parse(text), "k", 1, 256, [], Memory())
    assert [f.kind for f in report.findings] == ["register"] * (found != 120)


def test_special_registers() -> None:
    """Clocks only grow, in both halves; registers of the environment are 0 but for grid.sync's."""
    body = """mov.u32 %r1, %clock_hi; mov.u32 %r2, %globaltimer_lo; mov.u32 %r3, %envreg3;
      mov.u32 %r4, %nwarpid; mov.u32 %r5, %aggr_smem_size; mov.u32 %r6, %total_smem_size;
      sub.u32 %r5, %r5, 1024; div.u32 %r5, %r5, %r6; or.b32 %r9, %r1, %r3; or.b32 %r9, %r9, %r5;"""
    report, y = run(body)
    assert report.findings == ()
    assert not y.any()


def test_addresses_in_tables() -> None:
    """generic(symbol), a symbol with an offset, and functions stand in variables."""
    text = """.version 8.0\n.target sm_90\n.address_size 64
    .global .u32 words[2] = {5, (1 << 4) + 1};
    .global .u64 table[3] = {generic(words), words+4, twice};
    .func (.reg .u32 r) twice(.reg .u32 a) { add.u32 r, a, a; ret; }
    .visible .entry k(.param .u64 y) {
      .reg .u64 %d<4>; .reg .u32 %r<4>; ld.param.u64 %d0, [y]; mov.u64 %d1, table;
      ld.global.u64 %d2, [%d1]; ld.u32 %r0, [%d2]; ld.global.u64 %d2, [%d1+8];
      ld.global.u32 %r1, [%d2]; ld.global.u64 %d2, [%d1+16];
      P: .callprototype (.reg .u32 _) _ (.reg .u32 _);
      call (%r2), %d2, (%r1), P; st.global.v2.u32 [%d0], {%r0, %r2}; ret; }"""
    memory, y = Memory(), np.zeros(2, np.uint32)
    assert launch(Module.parse(text), "k", 1, 1, [memory.allocate(y)], memory).findings == ()
    assert y.tolist() == [5, 34]


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("ld.param.u64 %d4, [y+8];", "address"),
        ("mov.u32 %r1, stack; ld.local.u32 %r9, [%r1-4];", "address"),
        ("mbarrier.init.shared::cta.b64 [%r11], 0;", "barrier"),
        ("bar.sync 16;", "barrier"),
        ("setp.eq.u32 %p2, %t, 0; @%p2 trap;", "trap"),
        ("st.shared.u32 [%s+4096], %t;", "address"),
        ("ld.global.u64 %d4, [%d0+4];", "alignment"),
        ("cp.async.ca.shared.global [%own], [%d3+511], 4;", "alignment"),
    ],
)
def test_faults_that_were_exceptions(body: str, kind: str) -> None:
    """Each is a finding with its line, not a traceback."""
    report, _ = run(body, 1)
    assert kind in report.kinds
    assert all(f.line >= START.count("\n") for f in report.findings)
