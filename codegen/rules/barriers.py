"""Rules of what threads wait at: barriers of a CTA and a cluster, mbarriers.

Source: PTX ISA 9, "Parallel Synchronization and Communication Instructions".
"""

from __future__ import annotations

from tinygpu.codegen.kernel.clusters import ranks_along, signal_at
from tinygpu.codegen.kernel.kernel import KernelCode
from tinygpu.codegen.kernel.scope import Scope
from tinygpu.codegen.kernel.trimming import expected_bytes
from tinygpu.codegen.rules.tcgen05 import commit
from tinygpu.errors import ProgramError
from tinygpu.term.program import Arrive, Sync, Wait

__all__ = ["signal", "sync", "wait"]


def sync(kernel: KernelCode, statement: Sync) -> None:
    """Emit a barrier: of a role's copy, of the CTA, of the cluster."""
    text = kernel.text
    if statement.scope == "cluster" and kernel.ctas > 1:
        text.emit("barrier.cluster.arrive.release.aligned")
        text.emit("barrier.cluster.wait.acquire.aligned")
    elif statement.scope == "role" and kernel.program.barriers:
        number = text.add(kernel.copy, statement.barrier)
        text.emit(f"bar.sync {number}, {kernel.role.threads}")
    else:
        text.emit(f"bar.sync {statement.barrier}")


def wait(kernel: KernelCode, statement: Wait, scope: Scope) -> None:
    """mbarrier.try_wait, until it passes; bar.sync of a named barrier."""
    text = kernel.text
    if statement.barrier.named:
        text.emit(f"bar.sync {_named(kernel, statement, scope)}")
        return
    base, start, parity = kernel.barrier_at(statement.barrier, statement.index, scope)
    again, passed = text.label("wait"), text.register("pred")
    text.mark(again)
    text.emit(f"mbarrier.try_wait.parity.shared::cta.b64 {passed}, [{base}+{start}], {parity}")
    text.emit(f"@!{passed} bra {again}")


def _named(kernel: KernelCode, statement: Wait | Arrive, scope: Scope) -> str:
    """Return a named barrier's number, an immediate or a register, and its threads."""
    barrier = statement.barrier
    assert barrier.number is not None
    stage, _ = kernel.rings.position(barrier.stages, statement.index, scope)
    return f"{kernel.text.add(stage, barrier.number)}, {barrier.arrivals}"


def signal(kernel: KernelCode, arrive: Arrive, scope: Scope) -> None:
    """mbarrier.arrive: here, at its home, at each CTA told; tcgen05.commit; bar.arrive."""
    text = kernel.text
    if arrive.barrier.named:
        text.emit(f"bar.arrive {_named(kernel, arrive, scope)}")
        return
    base, start, _ = kernel.barrier_at(arrive.barrier, arrive.index, scope)
    told = arrive.to != "cta" and not arrive.after
    ranks = ranks_along(kernel, arrive.to) if told else []
    many = len(ranks) > 1
    if many and (arrive.bytes or arrive.barrier.home):
        raise ProgramError(f"{arrive}: it counts at one barrier alone, its own or its home's")
    if arrive.after:
        commit(kernel, arrive, f"[{base}+{start}]")
    elif arrive.barrier.home:
        at = signal_at(kernel, arrive.barrier, arrive.index, scope)
        what, more = (".expect_tx", f", {arrive.bytes}") if arrive.bytes else ("", "")
        text.emit(f"mbarrier.arrive{what}.shared::cluster.b64 _, {at}{more}")
    elif arrive.bytes:
        at = f"[{base}+{start}], {expected_bytes(kernel, arrive, scope)}"
        text.emit(f"mbarrier.arrive.expect_tx.shared::cta.b64 _, {at}")
    elif not many:
        text.emit(f"mbarrier.arrive.shared::cta.b64 _, [{base}+{start}]")
    else:
        plain = text.register("u32")
        text.emit(f"add.u32 {plain}, {base}, {start}")
        for rank in ranks:
            there = text.register("u32")
            text.emit(f"mapa.shared::cluster.u32 {there}, {plain}, {rank}")
            text.emit(f"mbarrier.arrive.shared::cluster.b64 _, [{there}]")
