"""Micro-kernels of the units that work beside the threads: tensor cores, TMA, mbarriers.

Instructions and descriptors are spelled as the rules spell them.  Operands of products are random
bf16 numbers, each of them between 1/8 and 2 in size, so that a sustained run meets the power that
products of real data take.  A wait gives up with ``trap`` after 4096 tries: no kernel can hang.

>>> TENSOR_KERNELS["wgmma_n256"].work // 2**20, TENSOR_KERNELS["mma"].unit
(1024, 'flop')
>>> bulk_kernel(4096, 8).ptx("sm_90a").count("cp.async.bulk.shared::cluster")
64

Source: PTX ISA 9: "mma", "wgmma.mma_async", "cp.async.bulk", "mbarrier", "mapa", "red".
"""

from __future__ import annotations

from collections.abc import Mapping

from tinygpu.codegen.rules.descriptors import WGMMA_FORMS
from tinygpu.codegen.run.microkernel import Microkernel

__all__ = ["BULK_BYTES", "TENSOR_KERNELS", "WGMMA_COLUMNS", "bulk_kernel"]

BULK_BYTES = 1 << 17
"""The most bytes that a CTA's bulk copies have in flight; each CTA reads so many of its own."""
WGMMA_COLUMNS = (64, 128, 256)
_STAGES, _SLICES = 4, 4  # of 64 elements along k, and of 16 in each
_COPIES, _TRIES = 64, 4096
_WAITS = (".u32 %left", ".pred %lead, %passed, %late")
_MMA = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
_BULK = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"


def _numbers(words: int) -> list[str]:
    """Make of random words pairs of bf16: sign, 2 bits of the exponent and 7 of the fraction."""
    keep = [f"and.b32 %w{i}, %w{i}, 0x81FF81FF" for i in range(words)]
    return keep + [f"or.b32 %w{i}, %w{i}, 0x3E003E00" for i in range(words)]


def _loads(words: int) -> list[str]:
    quads = [", ".join(f"%w{4 * i + j}" for j in range(4)) for i in range(words // 4)]
    return [f"ld.global.v4.u32 {{{quad}}}, [%from+{16 * i}]" for i, quad in enumerate(quads)]


def _mma(name: str, *, chains: int, threads: int) -> Microkernel:
    """Add and subtract products of mma.sync in chains; one of one warp measures the latency."""
    latency, iterations, body = chains == 1, 64, []
    for step in range(16):
        left = ", ".join(f"%{'wn'[step % 2]}{i}" for i in range(4))
        for chain in range(chains):
            sums = ", ".join(f"%d{4 * chain + i}" for i in range(4))
            right = f"%w{4 + 2 * (chain % 4)}, %w{5 + 2 * (chain % 4)}"
            body.append(f"{_MMA} {{{sums}}}, {{{left}}}, {{{right}}}, {{{sums}}}")
    kept = [(f"mov.b32 %low, %d{4 * c}", "xor.b32 %kept, %kept, %low") for c in range(chains)]
    return Microkernel(
        name, "steps" if latency else "flop", tuple(body),
        len(body) * iterations * (1 if latency else 2 * 16 * 8 * 16 // 32), iterations,
        threads=threads,
        setup=(
            "mad.wide.u32 %from, %thread, 48, %data", *_loads(12), *_numbers(12),
            *(f"xor.b32 %n{i}, %w{i}, 0x80008000" for i in range(4)), "mov.u32 %kept, 0",
            *(f"mov.f32 %d{i}, 0f00000000" for i in range(4 * chains)),
        ),
        after=tuple(line for pair in kept for line in pair),
        keep="%kept",
        registers=(".u64 %from", ".b32 %w<12>, %n<4>, %kept, %low", f".f32 %d<{4 * chains}>"),
    )  # fmt: skip


def _wgmma(columns: int) -> Microkernel:
    """Multiply rows of each of two warpgroups by their common columns; 256 products make a sum."""
    threads, iterations, stage = 256, 64, 2 * 64 * 128 + columns * 128
    sums = ", ".join(f"%d{i}" for i in range(columns // 2))
    form = WGMMA_FORMS[128] | (1024 >> 4) << 32 | 1 << 16
    at = [s * stage + k * 32 >> 4 for s in range(_STAGES) for k in range(_SLICES)]
    products = [
        f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.bf16.bf16 "
        f"{{{sums}}}, %a{i}, %b{i}, {'%adds' if i else '%fresh'}, 1, 1, 0, 0"
        for i in range(len(at))
    ]
    begin, end = "wgmma.fence.sync.aligned", "wgmma.commit_group.sync.aligned"
    wait = "wgmma.wait_group.sync.aligned"
    return Microkernel(
        f"wgmma_n{columns}", "flop", (begin, *products, end, f"{wait} 1"),
        2 * 64 * columns * 16 // 128 * len(at) * iterations, iterations,
        threads=threads,
        setup=(
            "mul.lo.u32 %here, %thread, 16",
            "$fill: cvt.u64.u32 %from, %here", "add.u64 %from, %from, %data", *_loads(4),
            *_numbers(4), "add.u32 %to, %smem, %here",
            "st.shared.v4.u32 [%to], {%w0, %w1, %w2, %w3}", f"add.u32 %here, %here, {threads * 16}",
            f"setp.lt.u32 %adds, %here, {_STAGES * stage}", "@%adds bra $fill",
            "fence.proxy.async.shared::cta",
            "shr.u32 %here, %thread, 7", "mad.lo.u32 %here, %here, 8192, %smem",
            "shr.u32 %here, %here, 4", "cvt.u64.u32 %a0, %here", f"or.b64 %a0, %a0, {form:#x}",
            "shr.u32 %here, %smem, 4", "cvt.u64.u32 %b0, %here", f"or.b64 %b0, %b0, {form:#x}",
            f"add.u64 %b0, %b0, {2 * 64 * 128 >> 4}",
            *(f"add.u64 %{x}{i}, %{x}0, {far}" for i, far in enumerate(at) if i for x in "ab"),
            "setp.eq.u32 %adds, 0, 0", "setp.ne.u32 %fresh, 0, 0",
            *(f"mov.f32 %d{i}, 0f00000000" for i in range(columns // 2)),
        ),
        after=(f"{wait} 0", "mov.b32 %kept, %d0"),
        keep="%kept",
        registers=(
            ".u64 %from", f".u64 %a<{len(at)}>, %b<{len(at)}>", ".u32 %here, %to, %w<4>, %kept",
            f".f32 %d<{columns // 2}>", ".pred %adds, %fresh",
        ),
        smem_bytes=_STAGES * stage,
    )  # fmt: skip


def _wait(label: str, at: str, parity: int) -> list[str]:
    return [
        f"mov.u32 %left, {_TRIES}",
        f"$wait{label}: mbarrier.try_wait.parity.shared::cta.b64 %passed, [{at}], {parity}",
        "sub.u32 %left, %left, 1", "setp.eq.u32 %late, %left, 0", "@%late trap",
        f"@!%passed bra $wait{label}",
    ]  # fmt: skip


def bulk_kernel(size: int, depth: int, *, total: int = 1 << 24) -> Microkernel:
    """Copy ``total`` bytes from L2 to shared memory, ``depth`` copies of ``size`` at a time.

    A turn of the loop has 64 copies, so that phases of barriers are alike in each, and small copies
    come from many slices of L2.
    """
    iterations = total // (size * _COPIES)
    bars = [f"%smem+{size * depth + 8 * i}" for i in range(depth)]
    body = []
    for i in range(_COPIES):
        bar, to, at = bars[i % depth], i % depth * size, i * size % BULK_BYTES
        body += [
            *_wait(f"{i}", bar, 1 - i // depth % 2),  # of a new barrier, that of parity 1 is over
            f"@%lead mbarrier.arrive.expect_tx.shared::cta.b64 _, [{bar}], {size}",
            f"@%lead {_BULK} [%smem+{to}], [%from+{at}], {size}, [{bar}]",
        ]
    return Microkernel(
        f"bulk_{size}x{depth}", "bytes", tuple(body), total // 32, iterations,
        setup=(
            "setp.eq.u32 %lead, %thread, 0",
            *(f"@%lead mbarrier.init.shared::cta.b64 [{bar}], 1" for bar in bars),
            "fence.proxy.async.shared::cta", f"mad.wide.u32 %from, %cta, {BULK_BYTES}, %data",
        ),
        after=tuple(line for i, bar in enumerate(bars) for line in _wait(f"_{i}", bar, 1)),
        registers=(".u64 %from", *_WAITS),
        smem_bytes=size * depth + 8 * depth,
    )  # fmt: skip


def _ping_pong(name: str, *, cluster: bool) -> Microkernel:
    """Wait at one's own barrier, arrive at the other's, in two warps or CTAs: a step is one way."""
    where = "cluster" if cluster else "cta"
    arrive = f"mbarrier.arrive.shared::{where}.b64 _, [%theirs]"
    meet = ("barrier.cluster.arrive.aligned", "barrier.cluster.wait.aligned")
    place = (
        (
            "shr.u32 %rank, %thread, 5",
            "mad.lo.u32 %mine, %rank, 8, %smem",
            "xor.b32 %theirs, %mine, 8",
        )
        if not cluster
        else (
            "mov.u32 %rank, %cluster_ctarank",
            "mov.u32 %mine, %smem",
            "xor.b32 %peer, %rank, 1",
            "mapa.shared::cluster.u32 %theirs, %mine, %peer",
        )
    )
    hands = [[*_wait(f"{i}", "%mine", i % 2), f"@%lead {arrive}"] for i in range(32)]
    return Microkernel(
        name, "steps", tuple(line for hand in hands for line in hand), 2 * 32 * 64, 64,
        threads=32 if cluster else 64,
        setup=(
            "and.b32 %peer, %thread, 31", "setp.eq.u32 %lead, %peer, 0", *place,
            "@%lead mbarrier.init.shared::cta.b64 [%mine], 1",
            *(("fence.mbarrier_init.release.cluster", *meet) if cluster else ("bar.sync 0",)),
            "setp.eq.and.u32 %serves, %rank, 0, %lead", f"@%serves {arrive}",
        ),
        after=meet if cluster else (),
        registers=(".u32 %rank, %peer, %mine, %theirs", ".pred %serves", *_WAITS),
        cluster=2 if cluster else 1,
    )  # fmt: skip


def _red() -> Microkernel:
    """Add to eight numbers a thread that stay in L2, neighbouring lanes side by side."""
    adds = tuple(f"red.global.add.f32 [%here+{4096 * i}], 0f3F800000" for i in range(8))
    place = "mad.wide.u32 %here, %cta, 32768, %data", "mad.wide.u32 %here, %thread, 4, %here"
    return Microkernel(
        "red", "results", adds, 8 * 256, 256, threads=1024, setup=place, registers=(".u64 %here",)
    )


TENSOR_KERNELS: Mapping[str, Microkernel] = {
    kernel.name: kernel
    for kernel in (
        _mma("mma", chains=8, threads=512), _mma("mma_latency", chains=1, threads=32),
        *map(_wgmma, WGMMA_COLUMNS), _red(),
        _ping_pong("mbarrier", cluster=False), _ping_pong("cluster", cluster=True),
    )
}  # fmt: skip
"""Those of one size; wgmma is sm_90a's alone, cluster and bulk copies are sm_90's and later."""
