"""Ranks in a cluster: the masks of CTAs that are sent something, and where a pair's barriers are.

A CTA's rank is a mixed radix number of its ranks along the cluster's axes, the first one fastest.

Source: PTX ISA 9, "%cluster_ctarank", ".multicast::cluster".
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tinygpu.codegen.ptx import Scalar as Number

if TYPE_CHECKING:
    from tinygpu.codegen.roles import RoleKernel

__all__ = ["home_rank", "receivers"]


def _first(kernel: RoleKernel, axis: str) -> tuple[Number, int]:
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


def home_rank(kernel: RoleKernel, axis: str) -> Number:
    """Return the rank of the CTA at 0 along an axis."""
    return kernel.text.once(("home", axis), lambda: _first(kernel, axis)[0])


def receivers(kernel: RoleKernel, axis: str) -> str:
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
