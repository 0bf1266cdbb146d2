"""The corpus of nvcc's and Triton's kernels: each computes what it should.

None has a finding of severity error, but those builds whose PTX leaves out what PTX asks for.
"""

from __future__ import annotations

import numpy as np
import pytest

from tests import ptx_corpus, ptx_corpus_late, ptx_corpus_triton
from tests.sample import some
from tinygpu.codegen.emulator import Memory, Module, Report, TensorMap, launch, map_objects

NVCC = ptx_corpus.CASES | ptx_corpus_late.CASES
WARNED = {
    "cub_merge_sort": "uninitialised",  # CUB reads a key past the end, and does not use it
    "cub_warp_merge": "uninitialised",
    "atomic_float": "race",  # a plain load before a compare-and-swap that looks again
    "union_find": "race",
    "std_memcpy": "proxy",  # libcu++ has no fence between mbarrier.init and the copy onto it
    "boxed_sm90": "proxy",  # nor has Triton
    "persistent_sm90": "proxy",
    "histograms_sm90": "race",  # several warps store 0
    "sorts_sm80": "race",  # several warps store the same
    "sorts_sm90": "race",
    "arg_reduce_sm80": "race",
    "arg_reduce_sm100": "race",
}
"""What a warning tells of, by kernel or build."""
LEFT_OUT = ("matmul_fp16_sm100", "matmul_fp8_sm100", "causal_sm100", "boxed_sm100")
"""Triton's tcgen05: no tcgen05.fence, and registers of a load are moved before its wait."""


def test_there_are_enough() -> None:
    assert len(NVCC) >= 150
    assert len(ptx_corpus_triton.BUILDS) >= 40


@pytest.mark.parametrize("name", some(NVCC, 2))
def test_nvcc(name: str) -> None:
    case = NVCC[name]
    report, before, after = ptx_corpus.run(case)
    assert [str(f) for f in report.findings if f.severity == "error"] == []
    assert report.kinds == ({WARNED[name]} if name in WARNED else set())
    assert ptx_corpus.wrong(case, before, after) == ""


@pytest.mark.parametrize("name", some(ptx_corpus_triton.BUILDS, 2))
def test_triton(name: str) -> None:
    case = ptx_corpus_triton.CASES[name.rpartition("_")[0]]
    report, before, after = ptx_corpus_triton.run(name)
    errors = {f.kind for f in report.findings if f.severity == "error"}
    if name in LEFT_OUT:
        assert {"race", "proxy"} <= errors <= {"race", "proxy", "register"}
    else:
        assert errors == set()
        assert report.kinds == ({WARNED[name]} if name in WARNED else set())
    assert ptx_corpus.wrong(case, before, after) == ""


def described(old: str, new: str) -> tuple[Report, str]:
    """Run Triton's kernel that makes its tensor maps, with a change of its text."""
    name, case = "described_sm90", ptx_corpus_triton.CASES["described"]
    text = ptx_corpus_triton.builds()[name]["ptx"]
    assert old in text
    report, before, after = ptx_corpus_triton.run(name, of=Module.parse(text.replace(old, new)))
    return report, ptx_corpus.wrong(case, before, after)


FENCE = "@%p2 fence.proxy.tensormap::generic.acquire.gpu [ %rd14 + 0 ], 0x80;"
BOX = "tensormap.replace.tile.box_dim.shared::cta.b1024.b32 [ %rd8 + 0 ], 0x0, %r10;"


def test_a_tensor_map_that_the_kernel_makes() -> None:
    """It is used behind its fence, and is one that the driver would make."""
    assert described(FENCE, FENCE)[1] == ""
    report, _ = described(FENCE, "")
    assert {f.kind for f in report.findings} == {"proxy"}
    assert "no fence.proxy.tensormap::generic.acquire since its write" in report.findings[0].message
    report, _ = described(BOX, BOX.replace("%r10", "3"))
    assert "boxes have 1 to 256 elements" in str(report) or "multiples of 16 B" in str(report)
    held = TensorMap(1 << 20, "bf16", (64, 32, 3), (128, 4096), (32, 8, 1), 2, np.nan)
    assert repr(map_objects.decoded(map_objects.encoded(held))) == repr(held)


OTHER = """.version 8.3
.target sm_90a
.address_size 64
.visible .entry k(.param .align 64 .b8 map[128], .param .u64 x, .param .u64 y, .param .u64 room) {
  .reg .b64 %m, %x, %y, %room, %d<4>; .reg .b32 %t, %s, %bar, %r<4>; .reg .pred %p<3>;
  .shared .align 128 .b8 made[128]; .shared .align 128 .b8 held[128]; .shared .align 8 .b64 bar;
  mov.b64 %m, map; cvta.param.u64 %m, %m; ld.param.u64 %x, [x]; ld.param.u64 %y, [y];
  ld.param.u64 %room, [room]; mov.u32 %t, %tid.x; mov.u32 %s, made; mov.u32 %bar, bar;
  setp.eq.u32 %p0, %t, 0; mul.wide.u32 %d0, %t, 4; add.u64 %d1, %m, %d0; mad.lo.u32 %r0, %t, 4, %s;
  ld.b32 %r1, [%d1]; st.shared.b32 [%r0], %r1;
  @%p0 mbarrier.init.shared::cta.b64 [%bar], 1; fence.proxy.async.shared::cta; bar.warp.sync -1;
  cvt.u64.u32 %d2, %s;
  @%p0 tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%d2], %x;
  bar.warp.sync -1;
  tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned
    [%room], [%d2], 128;
  fence.proxy.tensormap::generic.acquire.gpu [%room], 128;
  mov.u32 %s, held;
  @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 128;
  @%p0 cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
    [%s], [%room, {0}], [%bar];
  W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%bar], 0; @!%p1 bra W;
  mad.lo.u32 %r0, %t, 4, %s; ld.shared.b32 %r1, [%r0]; add.u64 %d1, %y, %d0;
  st.global.b32 [%d1], %r1; ret; }"""


@pytest.mark.parametrize("fenced", [True, False])
def test_a_parameters_map_of_another_array(*, fenced: bool) -> None:
    """As grouped kernels do: the map's bytes are copied, and its address is replaced."""
    memory, x, y = Memory(), np.arange(32, dtype=np.uint32), np.zeros(32, np.uint32)
    elsewhere = memory.allocate(np.zeros(32, np.uint32))
    room = memory.allocate(np.zeros(128, np.uint8))
    held = TensorMap(elsewhere, "u32", (32,), (), (32,))
    given = [held, memory.allocate(x), memory.allocate(y), room]
    line = "  fence.proxy.tensormap::generic.acquire.gpu [%room], 128;\n"
    text = OTHER if fenced else OTHER.replace(line, "")
    report = launch(Module.parse(text), "k", 1, 32, given, memory)
    assert report.kinds == (set() if fenced else {"proxy"})
    np.testing.assert_array_equal(x, y)
