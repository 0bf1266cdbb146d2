"""Memory, barriers and threads in the PTX interpreter: what is legal works, the rest is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tinygpu.codegen.emulator import Memory, Module, Report, TensorMap, launch
from tinygpu.errors import LaunchError, ProgramError

Array = NDArray[Any]
HEAD = """
  .reg .pred %p<8>; .reg .b16 %h<8>; .reg .b32 %r<32>; .reg .b64 %rd<16>; .reg .f32 %f<16>;
  ld.param.u64 %rd0, [out]; mov.u32 %r0, %tid.x; mad.wide.u32 %rd1, %r0, 4, %rd0;
  mov.u32 %r1, smem;
"""


def kernel(
    body: str, out: Array, *, block: int = 32, grid: int = 1, shared: int = 4096, more: str = "",
    arguments: tuple[Any, ...] = (), memory: Memory | None = None, directives: str = "", **how: Any,
) -> Report:  # fmt: skip
    """Run a body after ``HEAD``, which has the output's place for the thread in %rd1."""
    memory = memory or Memory()
    text = (
        f".extern .shared .align 1024 .b8 smem[];\n.visible .entry k(.param .u64 out{more})"
        f"{directives} {{{HEAD}{body}\n ret; }}"
    )
    given = [memory.allocate(out, "out"), *arguments]
    return launch(Module.parse(text), "k", grid, block, given, memory, smem_bytes=shared, **how)


STORE = "st.global.u32 [%rd1], %r9;"


def words(count: int = 32) -> Array:
    return np.zeros(count, np.uint32)


@pytest.mark.parametrize(
    ("body", "kind", "says"),
    [
        ("st.global.u32 [%rd1+4], %r0;", "address", "0 B past the end of out, which has 128 B"),
        ("ld.global.u32 %r9, [%rd1+-8];", "address", "8 B before out"),
        ("st.global.v2.u32 [%rd1], {%r0, %r0};", "alignment", "no multiple of 8 B"),
        ("st.shared.u32 [%r1+4096], %r0;", "address", "the CTA's 4096 B begin"),
        ("add.u32 %r2, %r1, 2; st.shared.u32 [%r2], %r0;", "alignment", "no multiple of 4 B"),
        ("ld.shared.u32 %r9, [%r1];", "uninitialised", "which nobody wrote"),
        ("add.s64 %rd2, %rd1, 1; st.u32 [%rd2], %r0;", "alignment", "no multiple of 4 B"),
        ("cp.async.ca.shared.global [%r1], [%rd0+124], 8;", "alignment", "no multiple of 8 B"),
        ("mbarrier.arrive.shared::cta.b64 _, [%r1];", "barrier", "no mbarrier is there"),
        ("mov.u32 %r2, 16; bar.sync %r2;", "barrier", "a CTA has 0 to 15"),
        ("trap;", "trap", "gave up"),
    ],
)
def test_faulty_accesses(body: str, kind: str, says: str) -> None:
    """Each is found with its line; a store outside writes nothing."""
    out = words()
    report = kernel(body, out)
    [finding] = [f for f in report.findings if f.kind == kind]
    assert says in finding.message
    assert finding.text in " ".join(body.split())
    assert finding.line == 6


def test_shared_memory_needs_a_barrier() -> None:
    """Threads exchange words: a race without a barrier of the warps, or of the warp's lanes."""
    body = """shl.b32 %r2, %r0, 2; add.u32 %r2, %r2, %r1; st.shared.u32 [%r2], %r0; {sync}
      xor.b32 %r3, %r0, {across}; shl.b32 %r3, %r3, 2; add.u32 %r3, %r3, %r1;
      ld.shared.u32 %r9, [%r3];""" + STORE  # fmt: skip
    for sync, across, kinds in (
        ("bar.sync 0;", 32, set()), ("", 32, {"race"}), ("", 1, {"race"}),
        ("bar.warp.sync -1;", 1, set()),
        ("bar.sync 3, 64;", 32, set()),
        ("bar.arrive 3, 64;", 32, {"race"}), ("barrier.sync 1;", 33, set()),
        ("bar.warp.sync -1;", 32, {"race"}),
    ):  # fmt: skip
        out = words(64)
        report = kernel(body.format(sync=sync, across=across), out, block=64)
        assert report.kinds == kinds, (sync, across)
        if not kinds:
            np.testing.assert_array_equal(out, np.arange(64) ^ across)


def test_a_finding_names_both_parties() -> None:
    body = "st.shared.u32 [%r1], %r0;\n bar.sync 0;\n ld.shared.u32 %r9, [%r1];\n" + STORE
    assert kernel(body, words(64), block=64, lanes=False).kinds == {"race"}  # two writers
    body = body.replace("bar.sync 0;", "setp.lt.u32 %p0, %r0, 32;").replace(
        "st.shared", "@%p0 st.shared"
    )
    body = "setp.lt.u32 %p0, %r0, 32;\n" + body
    [finding] = kernel(body, words(64), block=64, lanes=False).findings
    assert (finding.kind, finding.line, finding.other_line) == ("race", 9, 7)
    assert "warp 1 of CTA 0 reads shared byte 0 of CTA 0, which warp 0 of CTA 0 wrote" in str(
        finding
    )


def test_producers_and_consumers_at_named_barriers() -> None:
    """bar.arrive of one warp releases bar.sync of the other, with what it wrote."""
    body = """setp.ge.u32 %p0, %r0, 32; @%p0 bra CONSUMER;
      shl.b32 %r2, %r0, 2; add.u32 %r2, %r2, %r1; st.shared.u32 [%r2], %r0; bar.arrive 1, 64; ret;
    CONSUMER: bar.sync 1, 64; shl.b32 %r2, %r0, 2; add.u32 %r2, %r2, %r1;
      ld.shared.u32 %r9, [%r2+-128];""" + STORE  # fmt: skip
    out = words(64)
    assert kernel(body, out, block=64).findings == ()
    np.testing.assert_array_equal(out[32:], np.arange(32))


def test_deadlock() -> None:
    """A barrier that half of the threads never reach; lanes that are apart at an .aligned one."""
    body = "setp.lt.u32 %p0, %r0, 32; @%p0 bra L; bar.sync 0, 128; L: mov.u32 %r9, 1;"
    [finding] = kernel(body, words(64), block=64).findings
    assert finding.kind == "deadlock"
    assert "warp 1 of CTA 0: at barrier 0, where 32 of 128 arrived" in finding.message
    body = """setp.lt.u32 %p0, %r0, 16; @%p0 bra L;
      bar.sync 1; bra M; L: bar.sync 1; M: mov.u32 %r9, 1;"""
    findings = kernel(body, words()).findings
    assert {f.kind for f in findings} == {"deadlock"}
    assert all("the rest of the warp is elsewhere" in f.message for f in findings)


def test_who_waits_goes_on_when_others_end() -> None:
    """Half of a warp is at a barrier already when the other half ends."""
    body = f"""setp.ge.u32 %p0, %r0, 16; @%p0 bra LATER;
      bar.sync 0; mov.u32 %r9, 5; {STORE} ret; LATER: mov.u32 %r9, 6;"""
    out = words()
    assert kernel(body, out).findings == ()
    assert out.tolist() == [5] * 16 + [0] * 16


def test_lanes_may_come_apart_to_an_unaligned_barrier() -> None:
    body = """setp.lt.u32 %p0, %r0, 16; @%p0 bra L;
      barrier.sync 1; bra M; L: barrier.sync 1; M: mov.u32 %r9, 7;""" + STORE  # fmt: skip
    out = words()
    assert kernel(body, out).findings == ()
    assert (out == 7).all()


def test_divergent_lanes_meet_again() -> None:
    """After a branch and a loop of different lengths a warp shuffles as one."""
    body = """mov.u32 %r9, 0; and.b32 %r2, %r0, 3;
    AGAIN: setp.ge.u32 %p0, %r9, %r2; @%p0 bra OUT; add.u32 %r9, %r9, 1; bra AGAIN;
    OUT: shfl.sync.bfly.b32 %r9|%p1, %r9, 1, 31, -1;""" + STORE  # fmt: skip
    out = words()
    assert kernel(body, out).findings == ()
    np.testing.assert_array_equal(out, np.arange(32) % 4 ^ 1)


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
def test_shuffles(mode: str) -> None:
    """Inside segments of 8 lanes; a lane without a partner keeps its own."""
    clamp = 0x1800 if mode == "up" else 0x181F
    body = f"shfl.sync.{mode}.b32 %r9|%p0, %r0, 3, {clamp}, -1; @!%p0 add.u32 %r9, %r9, 100;"
    out = words()
    assert kernel(body + STORE, out).findings == ()
    for lane in range(32):
        first = lane & 24
        other = {"up": lane - 3, "down": lane + 3, "bfly": lane ^ 3, "idx": first + 3}[mode]
        inside = first <= other < first + 8
        assert out[lane] == (other if inside else lane + 100)


def test_atomics() -> None:
    """Threads that meet at one word come one after the other; each learns what was there."""
    body = "atom.global.add.u32 %r9, [%rd0+128], 3;" + STORE
    out = words(33)
    assert kernel(body, out).findings == ()
    assert sorted(out[:32]) == list(range(0, 96, 3))
    assert out[32] == 96
    for operation, expected in {
        "min.u32": 0, "max.u32": 31, "and.b32": 0, "or.b32": 31, "xor.b32": 0, "inc.u32": 32,
    }.items():  # fmt: skip
        out = words(33)
        value = "1000" if operation == "inc.u32" else "%r0"
        kernel(f"red.global.{operation} [%rd0+128], {value};", out)
        assert out[32] == expected, operation
    out = np.zeros(33, np.float32)
    kernel("cvt.rn.f32.u32 %f0, %r0; red.global.add.f32 [%rd0+128], %f0;", out)
    assert out[32] == 496


def test_shared_atomics_need_a_barrier_too() -> None:
    """Among themselves they are in order; a plain read of another warp's is not."""
    start = "setp.eq.u32 %p0, %r0, 0; @%p0 st.shared.u32 [%r1], 0; bar.sync 0;"
    for sync, kinds in (("bar.sync 0;", set()), ("", {"race"})):
        body = f"{start} red.shared.add.u32 [%r1], %r0; {sync} ld.shared.u32 %r9, [%r1]; {STORE}"
        out = words(64)
        assert kernel(body, out, block=64).kinds == kinds
        if not kinds:
            assert (out == 63 * 32).all()


@pytest.mark.parametrize("completion", ["late", "early", "random"])
def test_a_wait_covers_what_is_older(completion: str) -> None:
    """cp.async.wait_group 1 leaves the newest group in flight; a guarded source reads nothing."""
    body = """mad.lo.u32 %r2, %r0, 4, %r1;
      cp.async.ca.shared.global [%r2], [%rd1], 4; cp.async.commit_group;
      setp.lt.u32 %p0, %r0, 16; selp.b32 %r3, 4, 0, %p0; setp.ge.u32 %p1, %r0, 16;
      cp.async.ca.shared.global [%r2+512], [%rd1+128], 4, {taken}; cp.async.commit_group;
      cp.async.wait_group {left}; ld.shared.u32 %r9, [%r2+{at}];""" + STORE  # fmt: skip
    for left, at, taken, kinds in (
        (1, 0, "%r3", set()), (0, 512, "%r3", set()), (0, 512, "%p1", set()),
        (1, 512, "%r3", {"race"}),
    ):  # fmt: skip
        out = np.arange(64, dtype=np.uint32)
        text = body.format(left=left, at=at, taken=taken)
        report = kernel(text, out, completion=completion)
        assert report.kinds == kinds, (left, at)
        if at == 512 and not kinds:
            assert out[:32].tolist() == [*range(32, 48), *[0] * 16]


@pytest.mark.parametrize("completion", ["late", "early", "random"])
def test_bulk_copies(completion: str) -> None:
    """1-D bulk copies in and out, on a barrier and in a group."""
    body = """setp.ne.u32 %p0, %r0, 0; @%p0 bra DONE;
      mbarrier.init.shared::cta.b64 [%r1+512], 1; fence.proxy.async.shared::cta;
      mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+512], 128;
      cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes
        [%r1], [%rd0], 128, [%r1+512];
      WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1+512], 0; @!%p1 bra WAIT;
      ld.shared.u32 %r9, [%r1+4]; add.u32 %r9, %r9, 5; st.shared.u32 [%r1+4], %r9;
      fence.proxy.async.shared::cta;
      cp.async.bulk.global.shared::cta.bulk_group [%rd0+128], [%r1], 128;
      cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
      cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd0+128], [%r1], 128;
      cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
    DONE: bar.warp.sync -1;"""
    out = np.concatenate([np.arange(32), np.zeros(32)]).astype(np.uint32)
    assert kernel(body, out, completion=completion).findings == ()
    expected = np.arange(32) * 2
    expected[1] = 12
    np.testing.assert_array_equal(out[32:], expected)
    dropped = body.replace("fence.proxy.async.shared::cta;\n      cp", "cp")
    assert dropped != body
    assert kernel(dropped, out.copy(), completion=completion).kinds == {"proxy"}
    late = body.replace("WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1+512], 0;", "")
    late = late.replace("@!%p1 bra WAIT;", "")
    assert "race" in kernel(late, out.copy(), completion=completion).kinds


@pytest.mark.parametrize("swizzle", [0, 1, 2, 3])
def test_tensor_maps(swizzle: int) -> None:
    """A box that reaches over two edges: zeros come in, nothing goes out, swizzles turn back."""
    columns = (16 << swizzle) // 4
    rows, before_it = 16, columns // 8 * 4  # boxes begin at multiples of 16 B along a line
    body = f"""ld.param.u64 %rd9, [out]; mov.b64 %rd3, map; cvta.param.u64 %rd3, %rd3;
      setp.ne.u32 %p0, %r0, 0; @%p0 bra DONE;
      mbarrier.init.shared::cta.b64 [%r1+3072], 1; fence.proxy.async.shared::cta;
      mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r1+3072], {columns * rows * 4};
      mov.b32 %r4, {-before_it}; mov.b32 %r5, 2; mov.b32 %r10, 4;
      cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        [%r1], [%rd3, {{%r4, %r5}}], [%r1+3072];
      WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1+3072], 0; @!%p1 bra WAIT;
    DONE: bar.warp.sync -1; bar.sync 0; mov.u32 %r6, 0;
    LOOP: shl.b32 %r7, %r0, 2; mad.lo.u32 %r7, %r6, 128, %r7; add.u32 %r8, %r7, %r1;
      ld.shared.u32 %r9, [%r8]; cvt.u64.u32 %rd4, %r7; add.s64 %rd4, %rd4, %rd0;
      st.global.u32 [%rd4], %r9; add.u32 %r6, %r6, 1; setp.lt.u32 %p2, %r6, {columns * rows // 32};
      @%p2 bra LOOP; @%p0 ret;
      cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%rd3, {{%r10, %r5}}], [%r1];
      cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;"""
    rng = np.random.default_rng(swizzle)
    array = rng.integers(1, 1 << 30, (10, 40)).astype(np.uint32)
    before, memory = array.copy(), Memory()
    place = memory.allocate(array, "array")
    tensor_map = TensorMap(place, "u32", (36, 10), (160,), (columns, rows), swizzle)
    out = words(columns * rows)
    report = kernel(
        body, out, more=", .param .align 64 .b8 map[128]", arguments=(tensor_map,), memory=memory
    )
    assert report.findings == ()
    box = np.zeros((rows, columns), np.uint32)
    box[: 10 - 2, before_it:] = before[2:, : columns - before_it]
    chunks = out.reshape(-1, 4)
    mask = {0: 0, 1: 1, 2: 3, 3: 7}[swizzle]
    for n, chunk in enumerate(box.reshape(-1, 4)):
        np.testing.assert_array_equal(chunks[n ^ (n >> 3 & mask)], chunk)
    stored = before.copy()
    inside = min(columns, 36 - 4)
    stored[2:, 4 : 4 + inside] = box[:8, :inside]
    np.testing.assert_array_equal(array, stored)
    for aligned in (f"mov.b32 %r4, {-before_it}", "mov.b32 %r10, 4"):  # a card stops at either
        elsewhere = body.replace(aligned, aligned[: aligned.rindex(" ")] + " 2")
        report = kernel(
            elsewhere, words(columns * rows), more=", .param .align 64 .b8 map[128]",
            arguments=(tensor_map,), memory=memory,
        )  # fmt: skip
        assert report.kinds == {"alignment"}
        assert "8 B after a multiple of 16 along a line" in report.findings[0].message


def test_distributed_shared_memory() -> None:
    """Each CTA of a pair reads its peer's words; without the cluster's barrier that is a race."""
    body = """shl.b32 %r2, %r0, 2; add.u32 %r2, %r2, %r1; mov.u32 %r3, %cluster_ctarank;
      mad.lo.u32 %r4, %r3, 100, %r0; st.shared.u32 [%r2], %r4;
      barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
      xor.b32 %r5, %r3, 1; mapa.shared::cluster.u32 %r6, %r2, %r5;
      ld.shared::cluster.u32 %r9, [%r6]; mul.wide.u32 %rd5, %r3, 128; add.s64 %rd1, %rd1, %rd5;
      barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;""" + STORE  # fmt: skip
    out = words(64)
    assert kernel(body, out, grid=2, cluster=2).findings == ()
    np.testing.assert_array_equal(out, [*range(100, 132), *range(32)])
    relaxed = body.replace("arrive.aligned", "arrive.relaxed.aligned")
    assert "race" in kernel(relaxed, words(64), grid=2, cluster=2).kinds
    fenced = relaxed.replace(
        "barrier.cluster.arrive", "fence.acq_rel.cluster; barrier.cluster.arrive"
    )
    assert kernel(fenced, words(64), grid=2, cluster=2).findings == ()
    alone = body.replace("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;", "", 1)
    assert "race" in kernel(alone, words(64), grid=2, cluster=2).kinds
    nobody = body.replace("xor.b32 %r5, %r3, 1", "add.u32 %r5, %r3, 7")
    assert "address" in kernel(nobody, words(64), grid=2, cluster=2).kinds
    own = body.replace("ld.shared::cluster", "ld.shared")
    assert "address" in kernel(own, words(64), grid=2, cluster=2).kinds


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (".visible .entry k() { frobnicate.u32 %r0; }", "frobnicate.u32 is not run"),
        (".visible .entry k() {\n mov.u32 %r0, 1; }", "line 2: mov.u32 %r0, 1: %r0 is no register"),
        (".visible .entry k() { .reg .u32 %r; bra NOWHERE; }", "no label NOWHERE"),
        (".visible .entry k() { .reg .u32 %r; add.q5 %r, %r, 1; }", ".q5 is not what follows add"),
        (".visible .entry k() { .reg .u32 %r; mul.wide.u32 %r, %r, 2; }", "it takes .u64"),
        (".visible .entry k() { ret;", "no closing brace"),
        (".visible .entry k() { @p }", "no ';' ends"),
        (".func f() { ret; }", "no .entry"),
        ("// nothing", "no .entry"),
    ],
)
def test_errors_name_line_and_instruction(text: str, says: str) -> None:
    with pytest.raises(ProgramError, match="PTX") as error:
        launch(Module.parse(text), "k", 1, 1, [], Memory())
    assert says in str(error.value)


def test_launch_errors() -> None:
    """Arguments that the kernel cannot take."""
    text = ".visible .entry k(.param .u32 n) .reqntid 32, 1, 1 { ret; }"
    module, memory = Module.parse(text), Memory()
    for grid, block, arguments, how, says in (
        (1, 32, [], {}, "0 arguments"),
        (1, 64, [1], {}, "requires"),
        (3, 32, [1], {"cluster": 2}, "no multiple of the cluster"),
        (1, 32, [1], {"completion": "soon"}, "known are late, early, random"),
        (1, 32, [b"12345678"], {}, "8 B given, it has 4"),
    ):
        with pytest.raises(LaunchError, match=says):
            launch(module, "k", grid, block, arguments, memory, **how)
    with pytest.raises(LaunchError, match="the module has k"):
        launch(module, "other", 1, 32, [1], memory)
    with pytest.raises(LaunchError, match="not contiguous"):
        memory.allocate(np.zeros((4, 4))[:, ::2])
    with pytest.raises(LaunchError, match="a box's lines fit the swizzle"):
        TensorMap(0, "f32", (64, 64), (256,), (64, 8), 3)


def test_a_loop_without_end_is_stopped() -> None:
    [finding] = kernel("L: bra L;", words(), limit=10_000).findings
    assert finding.kind == "limit"
    assert "raise limit" in finding.message


def test_counts() -> None:
    """How many warps issued each instruction."""
    report = kernel(
        "setp.lt.u32 %p0, %r0, 40; @%p0 st.global.u32 [%rd1], %r0;", words(64), block=64
    )
    assert report.instruction_counts["setp.lt.u32"] == 2
    report = kernel("bar.sync 0;", words(), grid=3)
    assert report.instruction_counts["bar.sync"] == 3
