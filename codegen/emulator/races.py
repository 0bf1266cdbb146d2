"""Races on global memory: accesses that nothing orders, of all CTAs of a grid.

An access is held against the last writes of its granules, a write against the last reads as well:
each has to be within the clock of whoever accesses now, which knows of other clusters what it has
acquired.  Two strong accesses whose scopes have each other's thread in them never race.  What TMA
reads or overwrites has to lie behind a fence.proxy.async of global memory after generic accesses.

Source: PTX ISA 9.0, sections 8.4 (conflicts), 8.6 (morally strong operations), 8.8 (causality
order, proxies) and 8.10 (axioms).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .accesses import PARTY, Accesses, Grid, scope_in, stamps, step_in
from .clocks import FAR, FENCED, ORDER, Conflict
from .memory import Part
from .report import Array
from .run import WARP, Group, Run
from .scopes import CLUSTER, GPU, WEAK, Semantics, transfer

__all__ = ["check", "check_map", "equal_values", "fence_map", "of_one_warp"]


def equal_values(index: Array, values: Array, held: Array, *, at_once: bool) -> bool:
    """Whether stores that meet have the values that are there, or (at once) the same."""
    if not at_once:
        return bool((held == values).all())
    _, first, back = np.unique(index, return_index=True, return_inverse=True)
    return bool((values == values[first][back]).all())


def of_one_warp(group: Group, index: Array) -> bool:
    """Whether each place is of one warp: one of its lanes' stores is done, by the CUDA guide."""
    warps = group.threads // WARP
    places = len(np.unique(index))
    return len(np.unique(np.stack([index, warps]), axis=1)[0]) == places


def _parties(run: Run, grid: Grid, group: Group, channels: Any) -> Any:
    """Return who accesses: the group's agents, or channels in their name."""
    if channels is None:
        return run.first_unit + group.units(run.unit)
    domains = run.agents_of(group.threads)[0]
    keys, back = np.unique(domains * run.clocks.agents + channels, return_inverse=True)
    made = [grid.channel(run, *divmod(key, run.clocks.agents)) for key in keys.tolist()]
    return np.array(made)[back]


def check(
    run: Run, group: Group, part: Part, width: int, how: Semantics = WEAK, *, writes: bool,
    by: int = ORDER, channels: Any = None, stored: tuple[Array, Array, Array] | None = None,
) -> None:  # fmt: skip
    """Hold accesses of ``width`` bytes against the clocks; ``by`` is ``FENCED`` if TMA accesses.

    ``stored`` are the places, what is stored there, and what is there: equal values only warn.
    """
    if (grid := run.races) is None:
        return
    held, step = grid.of(part.start, len(part.data)), run.tick()
    who = _parties(run, grid, group, channels)
    left, found, what = stamps(who, how.scope, step=step), None, ""
    if writes:
        held.settle()
    else:
        held.list_reads(part.at, width, left)
    if writes or held.kept:
        places, rows = held.places(part.at, width), run.rows(group)[:, None]
        mine = np.reshape(who, (-1, 1)) if by == ORDER else -1
        for what in ("write", "update", "read")[: 2 + writes]:
            found = _unordered(run, grid, held, what, places, rows, how, by, mine)
            if found is not None:
                break
    if writes:
        left = np.broadcast_to(np.reshape(left, (-1, 1)), places.shape)
        if how.scope:
            held.note("update", places.reshape(-1), left.reshape(-1))
        else:
            held.kept.setdefault("write", [np.zeros(held.granules, np.int64)])[0][places] = left
        if found is None and channels is None and how.scope < GPU:
            last = held.kept["update" if how.scope else "write"][0][places]
            twice = last != left
            if how.scope:
                twice &= ~_strong(run, grid, last, rows, how.scope)
            if twice.any():
                i = tuple(np.argwhere(twice)[0])
                found = int(places[i]), int(rows[i[0], 0]), int(last[i])
    if found is not None:
        at_once = step_in(found[2]) == step
        did = "read" if what == "read" and not at_once else "wrote"
        equal = not how.scope and stored is not None and equal_values(*stored, at_once=at_once)
        if not (equal and at_once and stored and of_one_warp(group, stored[0])):
            does = "writes" if writes else "reads"
            _tell(run, grid, part, how, by, found, does, did, equal=equal)
    if how.scope:
        transfer(run, group, part.start + part.at, grid.cells, step, how, writes=writes)


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
    written = max((step_in(s[places]).max() for s in held.kept.get("write", ())), default=0)
    fences = np.array([*grid.maps.get(address, {}).values()], np.int64)[:, None]
    known = fences[~_unknown(run, grid, fences, rows, ORDER)]
    if written > step_in(known).max(initial=0):
        message = "uses a tensor map with no fence.proxy.tensormap::generic.acquire since its write"
        run.find("proxy", message, who=int(group.threads[0]), other=grid.log[int(written)])


def _unordered(
    run: Run, grid: Grid, held: Accesses, what: str, places: Array, rows: Array, how: Semantics,
    by: int, mine: Any,
) -> tuple[int, int, int] | None:  # fmt: skip
    """Return a granule that was accessed in no order, by which row now, and the stamp there.

    ``mine`` are the parties that access, which know what they did themselves.
    """
    for last in held.kept.get(what, ()):
        left = last[places]
        if not ((left != 0) & (left & PARTY != mine)).any():
            continue
        bad = _unknown(run, grid, left, rows, by)
        if how.scope and bad.any():
            bad &= ~_strong(run, grid, left, rows, how.scope)
        if bad.any():
            i = tuple(np.argwhere(bad)[0])
            row = np.broadcast_to(rows, bad.shape)[i]
            return int(places[i]), int(row), int(left[i])
    return None


def _unknown(run: Run, grid: Grid, left: Array, rows: Array, by: int) -> Array:
    """Return which accesses are not within the clocks of those who access now."""
    clocks, who, steps = run.clocks, left & PARTY, step_in(left)
    flat = clocks.clocks.reshape(len(clocks.clocks), -1, clocks.agents)
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


def _strong(run: Run, grid: Grid, left: Array, rows: Array, scope: int) -> Array:
    """Return which accesses are strong, too, in scopes that have each other's thread in them."""
    least, there = np.minimum(scope, scope_in(left)), grid.about(left & PARTY)[0]
    cta = run.cta_of(rows // run.clocks.agents, rows % run.clocks.agents)
    near = (least == CLUSTER) & (there // run.cluster == cta // run.cluster)
    met: Array = (least == GPU) | near | ((least > 0) & (there == cta))
    return met


def _tell(
    run: Run, grid: Grid, part: Part, how: Semantics, by: int, found: tuple[int, int, int],
    does: str, did: str, *, equal: bool = False,
) -> None:  # fmt: skip
    """Note a race."""
    place, row, stamp = found
    party, left, rows = stamp & PARTY, np.array([[stamp]]), np.array([[row]])
    fenced = by == FENCED and not _unknown(run, grid, left, rows, ORDER).any()
    narrow = how.scope and scope_in(stamp)
    address = part.start + place * grid.width
    both = [run.code.instructions[pc].parts for pc in (run.pc, grid.log[step_in(stamp)])]
    guess = any("cas" in a and b[0] == "ld" for a, b in (both, both[::-1]))  # cas looks again
    run.tell(
        Conflict("proxy" if fenced else "race", place, row, party, step_in(stamp), did),
        does, run.memory.nearest(address).partition(",")[0], _name(run, grid, party),
        "their scopes do not have both in them" if narrow else "nothing orders before",
        address, equal=equal, guess=guess,
    )  # fmt: skip


def _name(run: Run, grid: Grid, party: int) -> str:
    """Return how findings call a party."""
    if party >= grid.units:
        return grid.names[party - grid.units]
    cta, agent, _ = grid.about(party)
    return run.name(int(cta) // run.cluster - run.clocks.first, int(agent))
