"""Ranks in a cluster: which CTAs are sent or told something, and where barriers have their home.

A CTA's rank is a mixed radix number of its ranks along the cluster's axes, the first one fastest.

Source: PTX ISA 9, "%cluster_ctarank", ".multicast::cluster".
"""

from __future__ import annotations

from tinygpu.codegen.kernel.kernel import KernelCode
from tinygpu.codegen.kernel.ptx import Scalar as Number
from tinygpu.codegen.kernel.scope import Scope
from tinygpu.term.program import Affine, Barrier

__all__ = ["rank_along", "ranks_along", "receivers", "signal_at"]


def _first(kernel: KernelCode, axis: str) -> tuple[Number, int]:
    """Return the rank of the CTA at 0 along an axis, and how far those along it lie apart."""
    rank: Number = 0
    below, apart = 1, 1
    for name, extent in kernel.program.cluster:
        if name == axis:
            apart = below
        else:
            rank = kernel.text.multiply_add(kernel.addresses.variables[name], below, rank)
        below *= extent
    return rank, apart


def rank_along(kernel: KernelCode, axis: str, place: int) -> Number:
    """Return the rank of the CTA at a place along an axis."""

    def make() -> Number:
        first, apart = _first(kernel, axis)
        return kernel.text.add(first, apart * place)

    return kernel.text.once(("along", axis, place), make)


def ranks_along(kernel: KernelCode, axes: str) -> list[Number]:
    """Return the ranks of the CTAs along some axes, or of the whole cluster, the own one too."""
    text, variables = kernel.text, kernel.addresses.variables
    free = [n for n, _ in kernel.program.cluster] if axes == "cluster" else axes.split()
    base: Number = 0
    apart, below = [0], 1
    for name, extent in kernel.program.cluster:
        if name in free:
            apart = [far + below * i for i in range(extent) for far in apart]
        else:
            base = text.multiply_add(variables[name], below, base)
        below *= extent
    return [text.add(base, far) for far in apart]


def receivers(kernel: KernelCode, axis: str) -> str:
    """Return the register with the mask of the CTAs along an axis; "": this one alone."""
    text, extent = kernel.text, dict(kernel.program.cluster).get(axis, 1)
    if extent == 1:
        return ""
    base, apart = _first(kernel, axis)
    mask = sum(1 << (apart * i) for i in range(extent))

    def make() -> Number:
        wide, narrow = text.register("u32"), text.register("b16")
        text.emit(f"mov.u32 {wide}, {mask}")
        if base != 0:
            text.emit(f"shl.b32 {wide}, {wide}, {base}")
        text.emit(f"cvt.u16.u32 {narrow}, {wide}")
        return narrow

    return str(text.once(("mask", axis), make))


def signal_at(kernel: KernelCode, barrier: Barrier, index: Affine, scope: Scope) -> str:
    """Return the address operand of a barrier's stage where it counts: at its home."""
    base, start, _ = kernel.barrier_at(barrier, index, scope)
    if not barrier.home:
        return f"[{base}+{start}]"
    plain, there = kernel.text.add(base, start), kernel.text.register("u32")
    home = rank_along(kernel, barrier.home, 0)
    kernel.text.emit(f"mapa.shared::cluster.u32 {there}, {plain}, {home}")
    return f"[{there}]"
