"""clusterlaunchcontrol: clusters that have not begun are taken over by those that run.

A request is answered with 16 B, of this file's own layout: whether a cluster was taken, and its
first CTA.  None may be given although some have not begun (in random orders it happens): they begin
later, so "none" does not say that all work is done.  Who has seen it may not ask again.

Source: PTX ISA 9.0, section 9.7.15 (clusterlaunchcontrol).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np

from .barriers import at_barrier
from .clocks import PROXIED
from .copies import send
from .decoder import Action, Builder, Decoder, operation
from .parser import Instruction
from .report import Array
from .run import Group, Run, one_of
from .spaces import multicast, place, shared_at

__all__ = ["TABLE"]

_BYTES = 16


def _request(run: Run, group: Group, i: Instruction, to: Array, bars: Array) -> None:
    given = zip(group.threads.tolist(), to.tolist(), bars.tolist(), strict=True)
    for thread, address, bar_at in given:
        own, one = thread // run.threads_per_cta, one_of(thread)
        if own in run.none_left:
            message = "asks for a cluster, though it has seen that there was none"
            run.find("barrier", message, who=thread)
        answer, late = np.zeros(4, np.uint32), run.completion == "random"
        if run.next_cta[0] < np.prod(run.grid) and not (late and run.random.random() < 0.25):
            answer[0], answer[1:] = 1, run.place(np.array([run.next_cta[0]]))[:, 0]
            run.next_cta[0] += run.cluster
        found = shared_at(run, one, np.array([address]), _BYTES)
        if found is None:
            continue
        offset = int(found[1][0]) % run.shared_bytes
        bar_offset = place(run, thread, bar_at)[1]
        everyone = "multicast::cluster::all" in i.parts
        for cta in multicast(run, own, (1 << run.cluster) - 1) if everyone else [own]:
            flat = np.array([cta * run.shared_bytes + offset])
            barrier_at = cta * run.shared_bytes + bar_offset
            barrier = at_barrier(run, barrier_at, one, "asks for a cluster by", proxy=True)
            if barrier is not None:
                land = functools.partial(_answer, run, int(flat[0]), answer.view(np.uint8))
                send(run, thread, flat, _BYTES, barrier, land, "is answered in", by=PROXIED)


def _answer(run: Run, flat: int, answer: Array) -> None:
    cta = flat // run.shared_bytes
    if not run.live_in(cta):
        run.find("exit", f"a cluster is given to {run.cta_name(cta)}, which has ended")
    run.shared[flat : flat + _BYTES] = answer


def _query(d: Decoder, i: Instruction) -> Action:
    """Read an answer: whether there was a cluster, or its first CTA (the fourth number is 0)."""
    read, asks = d.source(i.operands[1], "b128"), "is_canceled" in i.parts
    which = next((n for n in range(3) if f"get_first_ctaid::{'xyz'[n]}" in i.parts), None)
    if not asks and len(d.listed(i.operands[0])) != (4 if which is None else 1):
        raise d.error("four numbers are read at once, or one")
    write: Any = d.target(i.operands[0], "pred") if asks else d.vector_target(i.operands[0], "b32")

    def query(run: Run, group: Group) -> None:
        held = np.broadcast_to(read(run, group), (group.size,))
        words = np.ascontiguousarray(held).view(np.uint32).reshape(-1, 4)
        given = words[:, 0] != 0
        if asks:
            run.none_left.update((group.threads[~given] // run.threads_per_cta).tolist())
            write(run, group, given)
            return
        if not given.all():
            who = int(group.threads[np.argmin(given)])
            run.find("barrier", "reads the first CTA of a cluster, and there was none", who=who)
        ids = np.roll(words, -1, axis=1)
        ids[:, 3] = 0
        write(run, group, ids if which is None else ids[:, which : which + 1])

    return query


TABLE: Mapping[str, Builder] = {
    "clusterlaunchcontrol.try_cancel": operation(_request, touches=8),
    "clusterlaunchcontrol.query_cancel": _query,
}
"""This family's builders by entry."""
