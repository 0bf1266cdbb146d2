"""What the resident clusters share beside memory and clocks: barriers, queues, tensor memory.

Each table is kept by the family of instructions whose type it names.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinygpu.codegen.interpreter.barriers import Mbarrier
    from tinygpu.codegen.interpreter.bulk import BulkGroups
    from tinygpu.codegen.interpreter.control import ClusterBarrier, NamedBarrier
    from tinygpu.codegen.interpreter.copies import Copy
    from tinygpu.codegen.interpreter.report import Array
    from tinygpu.codegen.interpreter.tensor_memory import TensorMemory
    from tinygpu.codegen.interpreter.wgmma import Products

__all__ = ["State"]


@dataclass(slots=True)
class State:
    """Keys are CTAs, warps, warpgroups or threads of the batch, or offsets in shared memory."""

    named: dict[tuple[int, int], NamedBarrier] = field(default_factory=dict)
    """Named barriers that some have reached, by CTA and number."""
    clusters: dict[int, ClusterBarrier] = field(default_factory=dict)
    mbarriers: dict[int, Mbarrier] = field(default_factory=dict)
    """Live mbarriers, by their offset."""
    channels: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """Agents of asynchronous operations, by what they do, for whom, in which domain."""
    remote: dict[int, dict[int, int]] = field(default_factory=dict)
    """Who touched a CTA's shared memory from another CTA, and when last."""
    fenced: dict[tuple[int, int], Array] = field(default_factory=dict)
    """What agents knew at their last fence: what their relaxed stores and arrivals release."""
    seen: dict[tuple[int, int], Array] = field(default_factory=dict)
    """What agents have read by relaxed loads: their next fence acquires it."""
    cells: dict[int, Array] = field(default_factory=dict)
    """What the last strong stores to shared memory release, by their offset."""
    copies: list[Copy] = field(default_factory=list)
    bulk: dict[int, BulkGroups] = field(default_factory=dict)
    products: dict[int, Products] = field(default_factory=dict)
    pools: dict[int, list[int]] = field(default_factory=dict)
    """Registers that a CTA has to give, and (by minus the warpgroup, less one) that one has."""
    tensor: dict[int, TensorMemory] = field(default_factory=dict)
    loading: dict[int, dict[int, int]] = field(default_factory=dict)
    """Registers that a warp's tcgen05.ld fill, and the pc of each."""
    tensor_steps: dict[tuple[int, bool], int] = field(default_factory=dict)
    """The step of a warp's last tcgen05.ld (true) or st."""
    tensor_last: dict[int, int] = field(default_factory=dict)
    """The step of a thread's last tcgen05 operation."""
