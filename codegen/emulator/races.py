"""Races on shared and global memory: accesses that nothing orders.

An access is held against the last writes of its granules, a write against the last reads as well:
each has to be within the clock of whoever accesses now, which knows of other clusters what it has
acquired.  Two strong accesses never race, in global memory if their scopes have each other's thread
in them.  What the asynchronous proxy reads or overwrites has to lie behind a fence.proxy.async
after generic accesses.  Tensor memory has a granule for each column of 32 lanes, behind those of
shared memory.

Source: PTX ISA 9.0, sections 8.4 (conflicts), 8.6 (morally strong operations), 8.8 (causality
order, proxies) and 8.10 (axioms).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .accesses import PARTY, Accesses, Grid, scope_in, stamps, step_in
from .clocks import FAR, ORDER, PROXIED, RESERVED, TENSOR
from .memory import Part
from .report import Array
from .run import COLUMNS, WARP, Group, Run
from .scopes import CLUSTER, GPU, WEAK, Semantics, transfer

__all__ = ["check", "check_map", "fence_map", "unknown"]

_LATEST = int(np.iinfo(np.int32).max)


def _equal_values(index: Array, values: Array, held: Array, *, at_once: bool) -> bool:
    """Whether stores that meet have the values that are there, or (at once) the same."""
    if not at_once:
        return bool((held == values).all())
    _, first, back = np.unique(index, return_index=True, return_inverse=True)
    return bool((values == values[first][back]).all())


def _of_one_warp(group: Group, index: Array) -> bool:
    """Whether each place is of one warp: one of its lanes' stores is done, by the CUDA guide."""
    warps = group.threads // WARP
    places = len(np.unique(index))
    return len(np.unique(np.stack([index, warps]), axis=1)[0]) == places


def _parties(run: Run, grid: Grid | None, group: Group, channels: Any) -> Any:
    """Return who accesses: the group's agents, or channels in their name."""
    if grid is None:
        return run.agents(group)[1] if channels is None else channels
    if channels is None:
        before = run.first_cta * (run.threads_per_cta // run.unit)  # in earlier batches
        return before + group.units(run.unit)
    domains = run.agents(group)[0]
    keys, back = np.unique(domains * run.clocks.agents + channels, return_inverse=True)
    made = [_channel(run, grid, *divmod(key, run.clocks.agents)) for key in keys.tolist()]
    return np.array(made)[back]


def _channel(run: Run, grid: Grid, domain: int, agent: int) -> int:
    """Return the party that a channel is."""
    key, way = (run.clocks.first + domain, agent), bool(run.clocks.asynchronous[domain, agent])
    return grid.party(key, run.name(domain, agent), asynchronous=way)


def check(
    run: Run, group: Group, part: Part, width: int, how: Semantics = WEAK, *, writes: bool,
    by: int = ORDER, channels: Any = None, stored: tuple[Array, Array, Array] | None = None,
    does: str = "", every: bool = False, in_order: bool = False,
) -> int:  # fmt: skip
    """Hold accesses of ``width`` bytes against the clocks; return their step.

    ``by`` is the clock that has to know what was, another one than ``ORDER`` of the asynchronous
    proxy and of tensor memory.  ``channels`` access in the threads' name, of whom ``every`` agent
    reaches all places; what one channel does is ``in_order`` or not.  ``stored`` are the places,
    what is stored there, and what is there: equal values only warn.
    """
    grid, step = run.races, run.tick()
    if not part.start:
        held = run.inside
    elif grid is None:
        return step
    else:
        held = grid.of(part.start, len(part.data))
    who, rows = _parties(run, held.grid, group, channels), run.rows(group)[:, None]
    left, found, what = stamps(who, how.scope, step=step), None, ""
    kind = "read" if not writes else "update" if how.scope else "write"
    if held.grid is None:
        held.did(kind, run.clocks.agents)[who] = True
    if writes:
        if held.listed and held.grid is None and not run.code.proxies:
            held.forget(_known_to_all(run, held))
        held.settle()
    else:
        held.list_reads(part.at, width, left)
    if writes or held.kept or held.grid is None:
        places = held.places(part.at, width)
        if every:
            places, rows = places.reshape(1, -1), rows[:: run.unit]
        mine = np.reshape(who, (-1, 1)) if channels is None or in_order else -1
        for what in ("write", "update", "read")[: 2 + writes]:
            found = _unordered(run, held, what, places, rows, how, by, mine)
            if found is not None:
                break
    reads = not writes or (how.updates and not how.replaces)
    if held.grid is None and channels is None and reads:
        _check_written(run, group, part.at, places, how)
    if writes:
        left = np.broadcast_to(np.reshape(left, (-1, 1)), places.shape)
        held.note(kind, places.reshape(-1), left.reshape(-1))
        if held.grid is None:
            held.note_first(places.reshape(-1), left.reshape(-1))
        if found is None and channels is None and how.scope < GPU:
            last = held.kept[kind][0][places]
            twice = last != left
            if how.scope:
                twice &= ~_strong(run, held.grid, last, rows, how.scope)
            if twice.any():
                i = tuple(np.argwhere(twice)[0])
                found = int(places[i]), int(rows[i[0], 0]), int(last[i])
    if found is not None:
        at_once = step_in(found[2]) == step
        did = "read" if what == "read" and not at_once else "wrote"
        equal = not how.scope and stored is not None and _equal_values(*stored, at_once=at_once)
        if not (equal and at_once and stored and _of_one_warp(group, stored[0])):
            does = does or ("writes" if writes else "reads")
            _tell(run, held, part, how, by, found, does, did, equal=equal)
    if how.scope and channels is None:
        cells = run.cells if held.grid is None else held.grid.cells
        transfer(run, group, part.start + part.at, cells, step, how, writes=writes)
    return step


def _check_written(run: Run, group: Group, at: Array, places: Array, how: Semantics) -> None:
    """Report reads of what nobody wrote; strong ones also of what was first written unordered."""
    first = run.inside.first(places)
    fresh = never = first == 0
    if how.scope:
        fresh = never | unknown(run, None, first, run.rows(group)[:, None], ORDER)
    if run.code.reserved:  # the system has written there
        fresh = fresh & (at % run.shared_bytes < run.own_bytes)[:, None]
    if fresh.any():
        i = int(np.argmax(fresh.any(1)))
        offset, thread = int(at[i]) % run.shared_bytes, int(group.threads[i])
        why = (
            "which nobody wrote" if never[i].any() else "and nothing orders its first write before"
        )
        severity = "error" if how.scope else "warning"  # a plain load's value may not matter
        message = f"reads shared byte {offset}, {why}"
        run.find("uninitialised", message, who=thread, address=offset, severity=severity)


def _known_to_all(run: Run, held: Accesses) -> int:
    """Return up to which step all live threads of shared memory know all who read it."""
    clocks = run.clocks
    live = run.live.reshape(clocks.domains, clocks.units, run.unit).any(2)
    known = clocks.clocks[ORDER, :, 1 : 1 + clocks.units][live]
    return int(known[:, held.did("read", clocks.agents)].min(initial=np.iinfo(np.int32).max))


def fence_map(run: Run, group: Group, addresses: Array) -> None:
    """Note that threads let TMA see the tensor maps at addresses."""
    if (grid := run.races) is not None:
        left = stamps(_parties(run, grid, group, None), 0, step=run.tick())
        for address, party, stamp in zip(addresses.tolist(), left & PARTY, left, strict=True):
            grid.maps.setdefault(address, {})[int(party)] = stamp


def check_map(run: Run, group: Group, part: Part, width: int) -> None:
    """Hold TMA's use of a tensor map against its writes, and the fences behind them."""
    if (grid := run.races) is None:
        return
    check(run, group, part, width, writes=False)
    held, rows = grid.of(part.start, len(part.data)), run.rows(group)[:, None]
    places, address = held.places(part.at, width), part.start + int(part.at[0])
    written = step_in(held.last("write", places)).max() if "write" in held.kept else 0
    fences = np.array([*grid.maps.get(address, {}).values()], np.int64)[:, None]
    known = fences[~unknown(run, grid, fences, rows, ORDER)]
    if written > step_in(known).max(initial=0):
        message = "uses a tensor map with no fence.proxy.tensormap::generic.acquire since its write"
        run.find("proxy", message, who=int(group.threads[0]), other=grid.log[int(written)])


def _unordered(
    run: Run, held: Accesses, what: str, places: Array, rows: Array, how: Semantics, by: int,
    mine: Any,
) -> tuple[int, int, int] | None:  # fmt: skip
    """Return a granule that was accessed in no order, by which row now, and the stamp there.

    ``mine`` are the parties that access, which know what they did themselves.
    """
    if what not in held.kept or _all_known(run, held, what, places, rows, by):
        return None
    left = held.last(what, places)
    bad = (left != 0) & (left & PARTY != mine)
    if bad.any():
        bad = bad & unknown(run, held.grid, left, rows, by)
    if how.scope and bad.any():
        bad = bad & ~_strong(run, held.grid, left, rows, how.scope)
    if not bad.any():
        return None
    i = tuple(np.argwhere(bad)[0])
    place, row, stamp = (int(np.broadcast_to(x, bad.shape)[i]) for x in (places, rows, left))
    return place, row, stamp


def _all_known(
    run: Run, held: Accesses, what: str, places: Array, rows: Array, by: int
) -> bool:  # fmt: skip
    """Whether each row knows so much of all agents that it knows the last accesses, mostly so."""
    clocks, floor = run.clocks, np.full(1, _LATEST)
    flat, at = clocks.clocks.reshape(len(clocks.clocks), -1, clocks.agents), rows[:, 0]
    few = len(at) < flat.shape[1]
    if held.grid is not None or (few and what != "read"):  # where to look is as much work
        return False
    did = np.flatnonzero(held.did(what, clocks.agents))
    for kind in {by} if by == TENSOR else {by, ORDER}:
        known = flat[kind][at] if few else flat[kind]
        floor = np.minimum(floor, known[:, did].min(1))
    floor = floor if few else floor[at]
    return bool((step_in(held.kept[what][0, places]) <= floor[:, None]).all())


def unknown(run: Run, grid: Grid | None, left: Array, rows: Array, by: int) -> Array:
    """Return which accesses are not within the clocks of those who access now."""
    clocks, who, steps = run.clocks, left & PARTY, step_in(left)
    flat = clocks.clocks.reshape(len(clocks.clocks), -1, clocks.agents)
    if grid is None:
        known = flat[TENSOR if by == TENSOR else ORDER][rows, who]
        if by == PROXIED:
            generic = ~clocks.asynchronous[rows // clocks.agents, who]
            known = np.where(generic, np.minimum(known, flat[by][rows, who]), known)
        return np.asarray((left > 0) & (steps > known))
    ctas, agents, ways = grid.about(who)
    domains = ctas // run.cluster
    near = domains - clocks.first == rows // clocks.agents
    column, kinds = np.where(near, agents, 0), [ORDER, by]
    known = flat[kinds][:, rows, column] if by != ORDER else flat[None, ORDER, rows, column]
    bad: Array = (left > 0) & ~(near & (steps <= _least(known, ways)))
    numbers = np.broadcast_to(flat[FAR, rows, 0], bad.shape)
    afar = bad & ~near & (numbers > 0)
    for number in np.unique(numbers[afar]).tolist():
        for domain in np.unique(domains[afar & (numbers == number)]).tolist():
            here = afar & (numbers == number) & (domains == domain)
            clock, agent = clocks.afar[number].get(domain, clocks.nothing()), agents[here]
            inside = agent < clock.shape[1]  # a channel may be younger than what is known
            known = clock[kinds][:, np.where(inside, agent, 0)]
            bad[here] = ~inside | (steps[here] > _least(known, ways[here]))
    return bad


def _least(known: Array, asynchronous: Array) -> Array:
    """Return up to where accesses are known: generic ones also up to where they are fenced."""
    found: Array = np.where(asynchronous, known[0], known.min(0))
    return found


def _strong(run: Run, grid: Grid | None, left: Array, rows: Array, scope: int) -> Array:
    """Return which accesses are strong, too, in scopes that have each other's thread in them."""
    if grid is None:
        return np.asarray(scope_in(left) > 0)
    least, there = np.minimum(scope, scope_in(left)), grid.about(left & PARTY)[0]
    cta = run.cta_of(rows // run.clocks.agents, rows % run.clocks.agents)
    near = (least == CLUSTER) & (there // run.cluster == cta // run.cluster)
    met: Array = (least == GPU) | near | ((least > 0) & (there == cta))
    return met


def _tell(
    run: Run, held: Accesses, part: Part, how: Semantics, by: int, found: tuple[int, int, int],
    does: str, did: str, *, equal: bool = False,
) -> None:  # fmt: skip
    """Note a race; only warn of equal values, and of a guess that a cas looks at again."""
    place, row, stamp = found
    party, left, rows = stamp & PARTY, np.array([[stamp]]), np.array([[row]])
    (domain, agent), other = divmod(row, run.clocks.agents), run.log[step_in(stamp)]
    name, where, fence, address = _about(run, held, part, place, party, domain)
    if how.scope and scope_in(stamp):
        fence = "their scopes do not have both in them"
    both = [run.code.instructions[pc].parts for pc in (run.pc, other)]
    guess = held.grid is not None and any(
        "cas" in a and b[0] == "ld" for a, b in (both, both[::-1])
    )
    if held.grid is None and party == RESERVED:
        kind, why = "barrier", "where an mbarrier lives"
    elif by == ORDER or unknown(run, held.grid, left, rows, ORDER).any():
        kind, why = "race", f"which {name} {did} and {fence}"
    else:
        kind, why = "proxy", f"which {name} {did} with no fence.proxy.async since"
    equal = equal and kind == "race" and did == "wrote"
    run.find(
        kind,
        f"{run.name(domain, agent)} {does} {where}, {why}" + ", though with the same value" * equal,
        other=other,
        thread=domain * run.cluster * run.threads_per_cta + (agent - 1) * run.unit,
        address=address,
        severity="warning" if equal or guess else "error",
    )


def _about(
    run: Run, held: Accesses, part: Part, place: int, party: int, domain: int
) -> tuple[str, str, str, int]:
    """Return how findings call a party and a granule, what is missing there, and its address."""
    fence = "nothing orders before"
    if (grid := held.grid) is not None:
        address = part.start + place * held.width
        where = run.memory.nearest(address).partition(",")[0]
        if party >= grid.units:
            return grid.names[party - grid.units], where, fence, address
        there, agent, _ = grid.about(party)
        near = int(there) // run.cluster - run.clocks.first
        return run.name(near, int(agent)), where, fence, address
    cta, at = divmod(place * held.width, run.shared_bytes)
    where = f"shared byte {at}"
    if at >= run.own_bytes:
        where = f"reserved shared byte {at - run.own_bytes}"
    if cta >= run.ctas:  # behind all shared memory
        column = place - run.ctas * run.shared_bytes // held.width
        cta, at = column // run.code.tensor_granules, -1
        where = f"column {column % COLUMNS} of the tensor memory"
        fence = "no completion and tcgen05.fence::after_thread_sync is between"
    return run.name(domain, party), f"{where} of {run.cta_name(cta)}", fence, at
