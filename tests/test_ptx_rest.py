"""Instructions that no kernel of tests/ptx and none of ours has, in small kernels by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tinygpu.codegen.emulator import Memory, Module, Report, launch
from tinygpu.errors import ProgramError

Array = NDArray[Any]

every_order = pytest.mark.parametrize("completion", ["late", "early", "random"])

START = """.version 9.0
.target sm_90
.address_size 64
.visible .entry f(.param .u64 in, .param .u64 out) {
  .reg .u64 %a<8>; .reg .u32 %t, %u<12>; .reg .s32 %s<8>; .reg .f32 %f<4>; .reg .pred %p<8>;
  .shared .align 128 .b8 held[1024]; .shared .align 8 .b64 bar;
  ld.param.u64 %a0, [in]; ld.param.u64 %a1, [out]; mov.u32 %t, %tid.x;
  mad.wide.u32 %a2, %t, 4, %a0; mad.wide.u32 %a3, %t, 4, %a1;
"""


def run(body: str, given: Array, out: Array, block: int = 32, **how: Any) -> Report:
    memory = Memory()
    arguments = [memory.allocate(given), memory.allocate(out)]
    return launch(Module.parse(START + body + " ret; }"), "f", 1, block, arguments, memory, **how)


def test_hints_and_spaces() -> None:
    """Hints do nothing, ldu loads, isspacep tells the windows of generic addresses apart."""
    body = """
      createpolicy.fractional.L2::evict_last.b64 %a7, 1.0;
      prefetchu.L1 [%a0]; applypriority.global.L2::evict_normal [%a0], 128;
      cp.async.bulk.prefetch.L2.global [%a0], 128;
      ldu.global.u32 %u0, [%a2];
      mov.u64 %a4, held; cvta.shared.u64 %a5, %a4;
      isspacep.global %p0, %a2; isspacep.shared %p1, %a5; isspacep.shared %p2, %a2;
      isspacep.global %p3, %a5; isspacep.local %p4, %a5;
      selp.u32 %u1, 1000, 0, %p0; @%p1 add.u32 %u1, %u1, 2000; @%p2 add.u32 %u1, %u1, 1;
      @%p3 add.u32 %u1, %u1, 1; @%p4 add.u32 %u1, %u1, 1; add.u32 %u1, %u1, %u0;
      discard.global.L2 [%a1], 128; st.global.u32 [%a3], %u1; exit;"""
    x, y = np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    assert run(body, x, y).findings == ()
    np.testing.assert_array_equal(y, x + 3000)


def test_a_vote_counts_where_the_others_end() -> None:
    """A barrier of all that completes as others end gives its result, as if they had arrived."""
    body = """setp.ge.u32 %p0, %t, 32; mov.u32 %u0, 0; @%p0 bra L;
      setp.lt.u32 %p1, %t, 8; bar.red.popc.u32 %u1, 0, %p1; st.global.u32 [%a3], %u1; exit;
      L: add.u32 %u0, %u0, 1; setp.lt.u32 %p2, %u0, 50; @%p2 bra L;"""
    x, y = np.zeros(64, np.uint32), np.zeros(64, np.uint32)
    assert run(body, x, y, 64).findings == ()
    assert y.tolist() == [8] * 32 + [0] * 32


def test_who_names_a_bad_barrier_goes_on() -> None:
    """It is told of, and does not stand still with nothing said."""
    body = """mov.u32 %u0, 4096; mbarrier.try_wait.parity.shared.b64 %p0, [%u0], 0;
      selp.u32 %u1, 1, 2, %p0; st.global.u32 [%a3], %u1;"""
    x, y = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
    assert run(body, x, y).kinds == {"address"}
    assert y.tolist() == [1] * 32


@pytest.mark.parametrize("part", ["lo", "hi"])
@pytest.mark.parametrize("kind", ["s32", "u32"])
def test_mul24(kind: str, part: str) -> None:
    """The product of 24-bit numbers has 48 bits."""
    body = f"""ld.global.u32 %u0, [%a2]; ld.global.u32 %u1, [%a2+128];
      mul24.{part}.{kind} %u2, %u0, %u1; st.global.u32 [%a3], %u2;"""
    x, y = (
        np.random.default_rng(0).integers(0, 1 << 32, (2, 32)).astype(np.uint32),
        np.zeros(32, "u4"),
    )
    assert run(body, x, y).findings == ()

    def small(v: int) -> int:
        v &= 0xFFFFFF
        return v - (v >> 23 << 24) if kind == "s32" else v

    shift = 16 if part == "hi" else 0
    expected = [small(a) * small(b) >> shift & 0xFFFFFFFF for a, b in x.T.tolist()]
    assert y.tolist() == expected


def test_testp() -> None:
    names = ("finite", "infinite", "number", "notanumber", "normal", "subnormal")
    tests = "".join(
        f"testp.{name}.f32 %p0, %f0; @%p0 or.b32 %u0, %u0, {1 << n};"
        for n, name in enumerate(names)
    )
    body = f"ld.global.f32 %f0, [%a2]; mov.u32 %u0, 0; {tests} st.global.u32 [%a3], %u0;"
    x = np.ones(32, np.float32)
    x[:5] = np.inf, -np.inf, np.nan, 1e-40, 0
    y = np.zeros(32, np.uint32)
    assert run(body, x, y).findings == ()
    assert y[:6].tolist() == [0b110, 0b110, 0b1000, 0b100101, 0b101, 0b10101]


def test_barriers_by_all_names() -> None:
    """Warp 0 arrives and goes on, warp 1 waits for it; votes over 64 threads."""
    body = """setp.lt.u32 %p0, %t, 32; @%p0 bra FIRST;
      barrier.cta.sync 1, 64; mov.u32 %u0, held; mad.lo.u32 %u1, %t, 4, %u0;
      ld.shared.u32 %u2, [%u1+-128]; bra JOIN;
      FIRST: mov.u32 %u0, held; mad.lo.u32 %u1, %t, 4, %u0; ld.global.u32 %u2, [%a2];
      st.shared.u32 [%u1], %u2; barrier.arrive 1, 64;
      JOIN: bar.cta.sync 0; and.b32 %u3, %u2, 1; setp.ne.u32 %p1, %u3, 0;
      barrier.red.popc.u32 %u4, 0, %p1; barrier.cta.red.or.pred %p2, 2, %p1;
      barrier.cta.red.and.pred %p3, 3, %p1;
      mad.lo.u32 %u2, %u4, 1000, %u2; @%p2 add.u32 %u2, %u2, 100; @%p3 add.u32 %u2, %u2, 200;
      st.global.u32 [%a3], %u2;"""
    x, y = np.arange(64, dtype=np.uint32) % 64, np.zeros(64, np.uint32)
    assert run(body, x, y, 64).findings == ()
    np.testing.assert_array_equal(y, 32100 + np.arange(64) % 32)
    wrong = run(body.replace("barrier.arrive 1, 64;", ""), x, y, 64)
    assert wrong.kinds >= {"deadlock"}


ONTO = """setp.eq.u32 %p0, %t, 0; mov.u32 %u0, held; mov.u32 %u1, bar; mad.lo.u32 %u2, %t, 16, %u0;
  mad.wide.u32 %a4, %t, 16, %a0; add.u64 %a5, %a0, 512; add.u32 %u3, %u0, 512;
  @%p0 mbarrier.init.shared::cta.b64 [%u1], 33; @%p0 fence.mbarrier_init.release.cluster;
  bar.sync 0;
  cp.async.ca.shared.global [%u2], [%a4], 16; cp.async.mbarrier.arrive.noinc.shared.b64 [%u1];
  @%p0 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%u1], 512;
  @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%u3], [%a5], 512, [%u1];
  @%p0 mbarrier.arrive.shared::cta.b64 _, [%u1];
  POLL: mbarrier.test_wait.parity.shared::cta.b64 %p1, [%u1], 0; @!%p1 bra POLL;
  mov.u32 %u4, 0;
  MORE: mad.lo.u32 %u5, %t, 4, %u0; mad.lo.u32 %u5, %u4, 128, %u5; ld.shared.u32 %u6, [%u5];
  st.global.u32 [%a3], %u6; add.u64 %a3, %a3, 128; add.u32 %u4, %u4, 1;
  setp.lt.u32 %p2, %u4, 8; @%p2 bra MORE;"""


@every_order
def test_copies_onto_a_barrier(completion: str) -> None:
    """cp.async and a bulk copy complete one phase; threads poll for it."""
    x, y = np.arange(256, dtype=np.uint32), np.zeros(256, np.uint32)
    assert run(ONTO, x, y, completion=completion).findings == ()
    np.testing.assert_array_equal(x, y)


def test_copies_that_nobody_waits_for() -> None:
    """An arrival that does not follow the copies leaves them unordered."""
    wrong = ONTO.replace(
        "cp.async.mbarrier.arrive.noinc.shared.b64 [", "mbarrier.arrive.shared::cta.b64 _, ["
    )
    x, y = np.arange(256, dtype=np.uint32), np.zeros(256, np.uint32)
    assert run(wrong, x, y).kinds == {"race"}


@every_order
def test_wait_all(completion: str) -> None:
    """It waits for copies that are in no group yet."""
    body = """mov.u32 %u0, held; mad.lo.u32 %u1, %t, 4, %u0; xor.b32 %u2, %t, 1;
      mad.lo.u32 %u2, %u2, 4, %u0; cp.async.ca.shared.global [%u1], [%a2], 4;
      cp.async.wait_all; bar.sync 0; ld.shared.u32 %u3, [%u2]; st.global.u32 [%a3], %u3;"""
    x, y = np.arange(64, dtype=np.uint32), np.zeros(64, np.uint32)
    assert run(body, x, y, 64, completion=completion).findings == ()
    assert y.tolist() == [i ^ 1 for i in range(64)]
    assert run(body.replace("cp.async.wait_all;", ""), x, y, 64).kinds == {"race"}


def test_packed_predicates() -> None:
    """A comparison of halves gives the lower one's result first."""
    body = """ld.global.u32 %u0, [%a2]; ld.global.u32 %u1, [%a2+128];
      setp.lt.f16x2 %p0|%p1, %u0, %u1; selp.u32 %u2, 1, 0, %p0; @%p1 add.u32 %u2, %u2, 2;
      set.lt.u32.f16x2 %u3, %u0, %u1; and.b32 %u3, %u3, 0x00040008; add.u32 %u2, %u2, %u3;
      st.global.u32 [%a3], %u2;"""
    x = np.random.default_rng(0).standard_normal((2, 32, 2)).astype(np.float16)
    x[0, 0] = np.nan
    y = np.zeros(32, np.uint32)
    assert run(body, x, y).findings == ()
    less = (x[0] < x[1]).astype(int)
    assert y.tolist() == (less @ [1, 2] + less @ [8, 4 << 16]).tolist()


@pytest.mark.parametrize(
    "instruction",
    [
        "tex.2d.v4.f32.s32 {%f0, %f1, %f2, %f3}, [%a0, {%s0, %s1}]",
        "call.uni g, (%u0)",
        "wmma.mma.sync.aligned.row.col.m8n8k32.s32.s4.s4.s32 {%u0, %u1}, {%u2}, {%u3}, {%u4, %u5}",
    ],
)
def test_what_is_not_run_is_named(instruction: str) -> None:
    """The error has the line and the instruction."""
    with pytest.raises(ProgramError, match=instruction.split()[0]) as caught:
        run(f"{instruction};", np.zeros(32), np.zeros(32))
    assert "line 9" in str(caught.value)


def test_states_of_two_phases() -> None:
    """Of 24 arrivals at a barrier of 16, eight belong to the next phase, which is not complete."""
    body = """mov.u32 %u1, bar; setp.eq.u32 %p0, %t, 0;
      @%p0 mbarrier.init.shared::cta.b64 [%u1], 16; bar.sync 0;
      mbarrier.arrive.shared::cta.b64 %a4, [%u1];
      mbarrier.test_wait.shared::cta.b64 %p1, [%u1], %a4; selp.u32 %u2, 1, 2, %p1;
      st.global.u32 [%a3], %u2;"""
    y = np.zeros(24, np.uint32)
    assert run(body, np.zeros(24, np.uint32), y, 24).findings == ()
    assert y.tolist() == [1] * 16 + [2] * 8


@pytest.mark.parametrize("name", ["clock64", "globaltimer"])
def test_clocks_go_on(name: str) -> None:
    """A loop that waits for a time to pass ends."""
    body = f"""mov.u64 %a4, %{name}; mov.u32 %u0, 0;
      LOOP: add.u32 %u0, %u0, 1; mov.u64 %a5, %{name}; sub.u64 %a5, %a5, %a4;
      setp.lt.u64 %p0, %a5, 640; @%p0 bra LOOP; st.global.u32 [%a3], %u0;"""
    y = np.zeros(32, np.uint32)
    assert run(body, np.zeros(32, np.uint32), y, limit=10_000).findings == ()
    assert 1 < y.min() == y.max() < 100
