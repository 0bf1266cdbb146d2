"""Machines that ship with TinyGPU: one file each, one line in MACHINES."""

from __future__ import annotations

from collections.abc import Mapping

from tinygpu.machines.ampere import Ampere
from tinygpu.machines.ampere_attention import AmpereAttention
from tinygpu.machines.attention import Attention
from tinygpu.machines.blackwell import Blackwell
from tinygpu.machines.elementwise import Elementwise
from tinygpu.machines.hopper import Hopper
from tinygpu.machines.hopper_rmsnorm import HopperRmsnorm
from tinygpu.machines.hopper_split import HopperSplit
from tinygpu.machines.rows import Rows
from tinygpu.machines.simt import Simt
from tinygpu.term.machine import Machine

__all__ = ["MACHINES"]

MACHINES: Mapping[str, Machine] = {
    m.name: m
    for m in (
        Simt(),
        Ampere(),
        HopperSplit(),
        Hopper(),
        HopperRmsnorm(),
        Blackwell(),
        Elementwise(),
        Rows(),
        Attention(),
        AmpereAttention(),
    )
}
"""The machines by name."""
