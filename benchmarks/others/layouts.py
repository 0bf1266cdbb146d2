"""Kernels by the CuTe DSL for Hopper: shared memory, shuffles, cp.async, and a pipeline of TMA.

    python -m benchmarks.others.layouts FOLDER
    python -m benchmarks.races_of_others FOLDER

The DSL comes by ``pip install nvidia-cutlass-dsl numpy``.  Arrays have static layouts, so that a
kernel's parameters are pointers, and a tensor map for each array that TMA moves.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator,no-untyped-call"
# (the compilers read these functions, and their types are the compilers')

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cutlass
import numpy as np
from cutlass import cute, pipeline, utils
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.cute.runtime import make_fake_compact_tensor
from cutlass.utils import hopper_helpers

from benchmarks.others import Launches

__all__ = ["main"]


@cute.kernel
def transpose(x: cute.Tensor, y: cute.Tensor):
    """Tiles of 32 x 32 by way of shared memory."""
    t, _, _ = cute.arch.thread_idx()
    i, j, _ = cute.arch.block_idx()
    held = utils.SmemAllocator().allocate_tensor(
        cutlass.Float32, cute.make_layout((32, 32), stride=(33, 1)), 16
    )
    column, first = t % 32, t // 32
    for n in cutlass.range_constexpr(8):
        held[first + 4 * n, column] = x[32 * i + first + 4 * n, 32 * j + column]
    cute.arch.sync_threads()
    for n in cutlass.range_constexpr(8):
        y[32 * j + first + 4 * n, 32 * i + column] = held[column, first + 4 * n]


@cute.kernel
def layer_norm(x: cute.Tensor, w: cute.Tensor, y: cute.Tensor):
    """Norm a row a CTA: sums by shuffles, then by shared memory, twice in the same words."""
    t, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    held = utils.SmemAllocator().allocate_tensor(cutlass.Float32, cute.make_layout(4), 16)
    v = x[row, t]
    total = v
    for n in cutlass.range_constexpr(5):
        total += cute.arch.shuffle_sync_bfly(total, offset=1 << n)
    if t % 32 == 0:
        held[t // 32] = total
    cute.arch.sync_threads()
    mean = (held[0] + held[1] + held[2] + held[3]) / 128.0
    cute.arch.sync_threads()
    d = v - mean
    square = d * d
    for n in cutlass.range_constexpr(5):
        square += cute.arch.shuffle_sync_bfly(square, offset=1 << n)
    if t % 32 == 0:
        held[t // 32] = square
    cute.arch.sync_threads()
    variance = (held[0] + held[1] + held[2] + held[3]) / 128.0
    y[row, t] = d * cute.math.rsqrt(variance + 1e-5) * w[t]


@cute.kernel
def double_buffer(x: cute.Tensor, y: cute.Tensor):
    """Column sums by cp.async, one tile ahead."""
    t, _, _ = cute.arch.thread_idx()
    held = utils.SmemAllocator().allocate_tensor(
        cutlass.Float32, cute.make_layout((2, 4, 128), stride=(512, 128, 1)), 16
    )
    atom = cute.make_copy_atom(cpasync.CopyG2SOp(), cutlass.Float32, num_bits_per_copy=32)
    tiles = cute.size(x, mode=[0]) // 4
    row, column = t // 32, t % 32
    source = cute.local_tile(x, (1, 4), (row, column))
    cute.copy(atom, source, cute.local_tile(held[0, None, None], (1, 4), (row, column)))
    cute.arch.cp_async_commit_group()
    total = cutlass.Float32(0)
    for n in cutlass.range_constexpr(tiles):
        if cutlass.const_expr(n + 1 < tiles):
            source = cute.local_tile(x, (1, 4), (4 * (n + 1) + row, column))
            into = cute.local_tile(held[(n + 1) % 2, None, None], (1, 4), (row, column))
            cute.copy(atom, source, into)
        cute.arch.cp_async_commit_group()
        cute.arch.cp_async_wait_group(1)
        cute.arch.sync_threads()
        for i in cutlass.range_constexpr(4):
            total += held[n % 2, i, t]
        cute.arch.sync_threads()
    y[t] = total


@cute.kernel
def counted(x: cute.Tensor, y: cute.Tensor):
    """Count 16 values in shared memory."""
    t, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    held = utils.SmemAllocator().allocate_tensor(cutlass.Int32, cute.make_layout(16), 16)
    if t < 16:
        held[t] = cutlass.Int32(0)
    cute.arch.sync_threads()
    cute.arch.atomic_add((held.iterator + x[128 * block + t]).llvm_ptr, cutlass.Int32(1))
    cute.arch.sync_threads()
    if t < 16:
        cute.arch.atomic_add((y.iterator + t).llvm_ptr, held[t])


@cute.kernel
def product(
    tma_a: cute.CopyAtom, a: cute.Tensor, tma_b: cute.CopyAtom, b: cute.Tensor, c: cute.Tensor,
    mma: cute.TiledMma, layout_a: cute.ComposedLayout, layout_b: cute.ComposedLayout,
):  # fmt: skip
    """C = A B^T: one warp copies by TMA into a ring, a warpgroup multiplies."""
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    t, _, _ = cute.arch.thread_idx()
    i, _, _ = cute.arch.block_idx()
    smem = utils.SmemAllocator()
    bars = smem.allocate_array(cutlass.Int64, 2 * 3)
    held_a = smem.allocate_tensor(cutlass.Float16, layout_a.outer, 1024, swizzle=layout_a.inner)
    held_b = smem.allocate_tensor(cutlass.Float16, layout_b.outer, 1024, swizzle=layout_b.inner)
    ring = pipeline.PipelineTmaAsync.create(
        num_stages=3,
        producer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread),
        consumer_group=pipeline.CooperativeGroup(pipeline.Agent.Thread, 4),
        tx_count=2 * 64 * 64 * 2,
        barrier_storage=bars,
        cta_layout_vmnk=cute.make_layout((1, 1, 1, 1)),
    )
    tiles_a = cute.local_tile(a, (64, 64), (i, None))
    tiles_b = cute.local_tile(b, (64, 64), (0, None))
    one = cute.make_layout(1)
    to_a, from_a = cpasync.tma_partition(
        tma_a, 0, one, cute.group_modes(held_a, 0, 2), cute.group_modes(tiles_a, 0, 2)
    )
    to_b, from_b = cpasync.tma_partition(
        tma_b, 0, one, cute.group_modes(held_b, 0, 2), cute.group_modes(tiles_b, 0, 2)
    )
    steps = cute.size(tiles_a, mode=[2])
    cute.arch.sync_threads()
    if warp == 4:
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Producer, 3)
        for k in cutlass.range(steps, unroll=1):
            ring.producer_acquire(state)
            bar = ring.producer_get_barrier(state)
            cute.copy(tma_a, from_a[None, k], to_a[None, state.index], tma_bar_ptr=bar)
            cute.copy(tma_b, from_b[None, k], to_b[None, state.index], tma_bar_ptr=bar)
            ring.producer_commit(state)
            state.advance()
        ring.producer_tail(state)
    if warp < 4:
        mine = mma.get_slice(t)
        parts_a = mma.make_fragment_A(mine.partition_A(held_a))
        parts_b = mma.make_fragment_B(mine.partition_B(held_b))
        tile_c = cute.local_tile(c, (64, 64), (i, 0))
        part_c = mine.partition_C(tile_c)
        sums = cute.make_rmem_tensor(part_c.shape, cutlass.Float32)
        sums.fill(0.0)
        mma.set(warpgroup.Field.ACCUMULATE, True)
        state = pipeline.make_pipeline_state(pipeline.PipelineUserType.Consumer, 3)
        for _ in cutlass.range(steps, unroll=1):
            ring.consumer_wait(state)
            warpgroup.fence()
            for k in cutlass.range_constexpr(4):
                at = (None, None, k, state.index)
                cute.gemm(mma, sums, parts_a[at], parts_b[at], sums)
            warpgroup.commit_group()
            warpgroup.wait_group(0)
            ring.consumer_release(state)
            state.advance()
        cute.autovec_copy(sums, part_c)


def _host(kernel: Any, grid: Sequence[int], threads: int) -> Any:
    @cute.jit
    def two(x: cute.Tensor, y: cute.Tensor):
        kernel(x, y).launch(grid=grid, block=[threads, 1, 1])

    @cute.jit
    def three(x: cute.Tensor, w: cute.Tensor, y: cute.Tensor):
        kernel(x, w, y).launch(grid=grid, block=[threads, 1, 1])

    return three if kernel is layer_norm else two


@cute.jit
def _product(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    major = warpgroup.OperandMajorMode.K
    mma = hopper_helpers.make_trivial_tiled_mma(
        cutlass.Float16, cutlass.Float16, major, major, cutlass.Float32, (1, 1, 1), (64, 64)
    )
    kind = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, cutlass.Float16)
    ring = cute.tile_to_shape(kind, (64, 64, 3), order=(0, 1, 2))
    stage = cute.slice_(ring, (None, None, 0))
    load = cpasync.CopyBulkTensorTileG2SOp()
    tma_a, of_a = cpasync.make_tiled_tma_atom(load, a, stage, (64, 64))
    tma_b, of_b = cpasync.make_tiled_tma_atom(load, b, stage, (64, 64))
    product(tma_a, of_a, tma_b, of_b, c, mma, ring, ring).launch(grid=[2, 1, 1], block=[160, 1, 1])


def main(arguments: Sequence[str]) -> None:
    """Compile all and write the list."""
    launches, rng = Launches(Path(arguments[0])), np.random.default_rng(0)
    only = arguments[1:]

    def add(name, host, grid, threads, arrays, result, tolerance=1e-5, given=None):
        if only and name not in only:
            return
        kinds = {"f": cutlass.Float32, "i": cutlass.Int32, "e": cutlass.Float16}
        fakes = [
            make_fake_compact_tensor(
                kinds[a.dtype.char], a.shape, stride_order=tuple(range(a.ndim))[::-1],
                assumed_align=16,
            )
            for a in arrays
        ]  # fmt: skip
        made = cute.compile(
            host, *fakes, options=f"--keep-ptx --gpu-arch sm_90a --dump-dir {launches.folder}"
        )
        text = made.artifacts.PTX
        text = text if isinstance(text, str) else Path(str(text)).read_text()
        (launches.folder / f"{name}.ptx").write_text(text.rstrip("\0"))
        last = len(arrays) - 1
        pointers = [{"fields": [["u64", f"&{n}"]]} for n in range(len(arrays))]
        launches.add(
            f"{name}.ptx",
            "",
            grid,
            threads,
            given or pointers,
            {f"&{last}": result},
            held=arrays,
            tolerance=tolerance,
            smem_bytes=65536,
        )
        print(name, "compiled")

    x = rng.standard_normal((64, 96)).astype(np.float32)
    add("transpose", _host(transpose, [2, 3, 1], 128), [2, 3], 128,
        [x, np.zeros((96, 64), np.float32)], x.T)  # fmt: skip
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((3, 128), 128))
    d = x - x.mean(1, keepdims=True, dtype=np.float64)
    add("layer_norm", _host(layer_norm, [3, 1, 1], 128), 3, 128, [x, w, 0 * x],
        d / np.sqrt((d * d).mean(1, keepdims=True) + 1e-5) * w)  # fmt: skip
    x = rng.standard_normal((20, 128)).astype(np.float32)
    add("double_buffer", _host(double_buffer, [1, 1, 1], 128), 1, 128,
        [x, np.zeros(128, np.float32)], x.sum(0, dtype=np.float64))  # fmt: skip
    n = rng.integers(0, 16, 384).astype(np.int32)
    add("counted", _host(counted, [3, 1, 1], 128), 3, 128, [n, np.zeros(16, np.int32)],
        np.bincount(n, minlength=16))  # fmt: skip
    a, b = (rng.standard_normal(s).astype(np.float16) for s in ((128, 512), (64, 512)))
    maps = [
        {"map": f"&{i}", "dtype": "f16", "shape": [512, rows], "strides_bytes": [1024],
         "box": [64, 64], "swizzle": 3} for i, rows in enumerate((128, 64))
    ]  # fmt: skip
    add("product", _product, 2, 160, [a, b, np.zeros((128, 64), np.float32)],
        a.astype(np.float64) @ b.T.astype(np.float64), 1e-3,
        [*maps, {"fields": [["u64", "&2"]]}, {"fields": [["u8", 1]]}])  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
