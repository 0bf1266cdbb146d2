"""Release and acquire: what strong accesses and fences say, with their scopes.

A *cell* is a place where strong accesses meet.  It has what its last writer gives, and if that was
an atomic operation what it found there: a release gives what its thread knows, a relaxed store what
its thread knew at its last fence.  An acquire takes what the cell gives, a relaxed load keeps it
for its thread's next fence.  All of this if two scopes have each other's thread in them: those of
the reader and the last writer, and those of the release (or its fence) and the acquire (or its).

Fences of sequential consistency (membar is one) need no store of their own thread.  Say that fence
F comes before a strong write in base causality order, through a barrier for instance, and that a
strong read observes this write and comes before fence G.  If G came before F in Fence-SC order, it
would synchronise with F: the read would precede the write that it observes, which the axiom of
causality forbids.  So F is before G, and G's thread knows what F's knew.  With fence.acq_rel there
is no such order: a release pattern orders what its own thread has before its fence in program
order, and what others did behind a barrier comes after that.

>>> meet(CTA, 0, GPU, 1, 2), meet(CLUSTER, 0, GPU, 1, 2)
(False, True)

Source: PTX ISA 9.0, sections 8.5 (scope), 8.6 (morally strong operations), 8.7 (release and acquire
patterns), 8.8 (observation, Fence-SC and causality order) and 8.10 (axioms).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .clocks import SC, Knowledge, merged
from .parser import Instruction
from .report import Array
from .run import Cell, Gives, Group, Run

__all__ = ["CLUSTER", "CTA", "GPU", "WEAK", "Semantics", "fence", "meet", "scope_of", "semantics",
           "transfer"]  # fmt: skip

CTA, CLUSTER, GPU = 1, 2, 3
"""Scopes; .sys is as .gpu, for there is one GPU.  That of a weak access is 0."""
_SCOPES: Mapping[str, int] = {"cta": CTA, "cluster": CLUSTER}
_MIXED = -1


@dataclass(frozen=True, slots=True)
class Semantics:
    """What an access is beside a read or a write.

    ``updates`` is both at once; ``replaces`` is an update that leaves nothing of what was there.
    """

    scope: int = 0
    acquires: bool = False
    releases: bool = False
    updates: bool = False
    replaces: bool = False


WEAK = Semantics()


def scope_of(i: Instruction) -> int:
    """Return the scope that a strong operation names, or has without a name."""
    return next((_SCOPES[p] for p in i.parts if p in _SCOPES), GPU)


def semantics(i: Instruction) -> Semantics:
    """Return what a load, store or atomic operation says of itself."""
    parts, updates = set(i.parts), i.parts[0] in ("atom", "red")
    marks = {"volatile", "relaxed", "acquire", "release", "acq_rel", "mmio"}
    return Semantics(
        scope_of(i) if updates or parts & marks else 0,
        bool(parts & {"acquire", "acq_rel"}),
        bool(parts & {"release", "acq_rel"}),
        updates,
        "exch" in parts,
    )


def meet(scope: int, cta: int, other: int, there: int, cluster: int) -> bool:
    """Whether two scopes of threads in two CTAs have each other's thread in them."""
    least = min(scope, other)
    near = least == CLUSTER and min(cta, there) >= 0 and cta // cluster == there // cluster
    return least == GPU or cta == there or near


def _both(mine: Gives, more: Gives) -> Gives:
    """Return what two give."""
    both = dict(mine)
    for key, (cta, known) in more.items():
        owner, before = mine.get(key, (cta, known))
        both[key] = cta if owner == cta else _MIXED, merged(before, known)
    return both


def _given(run: Run, cta: int, scope: int, knowledge: Knowledge) -> Gives:
    """Return what one gives; what all CTAs give to all will be kept together."""
    place = {CTA: cta, CLUSTER: cta // run.cluster}.get(scope, 0)
    return {(scope, place): (cta, knowledge)}


def _take(run: Run, domain: int, agent: int, scope: int, gives: Gives) -> Gives:
    """Let an agent know what is given to it; return the rest, for a fence of a wider scope."""
    here, left = run.cta_of(domain, agent), Gives()
    for key, (cta, knowledge) in gives.items():
        if meet(key[0], cta, scope, here, run.cluster):
            run.clocks.learn(domain, [agent], knowledge)
        else:
            left[key] = cta, knowledge
    return left


def transfer(
    run: Run, group: Group, places: Array, cells: dict[int, Cell], step: int, how: Semantics, *,
    writes: bool,
) -> None:  # fmt: skip
    """Move clocks between agents and the cells at ``places``, thread after thread."""
    if not (how.releases or cells or (writes and run.fenced)):
        return
    domains, agents = run.agents(group)
    keys = zip(domains.tolist(), agents.tolist(), places.tolist(), strict=True)
    for domain, agent, place in dict.fromkeys(keys):
        held, gives, cta = cells.get(place), Gives(), run.cta_of(domain, agent)
        seen: Knowledge = {}
        me = (run.clocks.first + domain, agent)
        own = held is not None and held.writer == me
        if held and (own or meet(held.scope, held.cta, how.scope, cta, run.cluster)):
            if own or how.updates:
                gives = held.gives
            if how.updates or not writes:
                left, seen = held.gives, held.seen
                if seen:
                    run.clocks.learn(domain, [agent], seen)
                if how.acquires:
                    left = _take(run, domain, agent, how.scope, left)
                if left and run.code.fences:
                    run.seen[domain, agent] = _both(run.seen.get((domain, agent), {}), left)
        if not writes:
            continue
        if how.releases:
            clock = run.clocks.snapshot(domain, [agent], step)
            known = run.clocks.publish(domain, clock)
            gives = _both(gives, _given(run, cta, how.scope, known))
        for scope, known in run.fenced.get((domain, agent), {}).items():
            gives = _both(gives, _given(run, cta, scope, known))
        if run.fenced:
            seen = merged(seen, run.clocks.behind_fences(domain, agent))
        cells.pop(place, None)
        if gives or seen:
            cells[place] = Cell(how.scope, cta, me, gives, seen)


def fence(run: Run, group: Group, step: int, i: Instruction) -> None:
    """Let what was seen be known, and what is known be given by the stores after this."""
    scope = scope_of(i)
    consistent = scope == GPU and ("sc" in i.parts or i.parts[0] == "membar")
    for domain, agents in run.by_domain(group):
        for agent in agents:
            if consistent:
                run.clocks.know_seen(domain, agent)
            if "release" not in i.parts and (seen := run.seen.pop((domain, agent), None)):
                run.seen[domain, agent] = _take(run, domain, agent, scope, seen)
            if "acquire" not in i.parts:
                clock = run.clocks.snapshot(domain, [agent], step)
                known = run.clocks.publish(domain, clock)
                run.fenced.setdefault((domain, agent), {})[scope] = known
        if consistent:
            run.clocks.fence(domain, agents, step, SC)
