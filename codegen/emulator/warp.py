"""Instructions of a whole warp: shuffles, votes, matches, reductions, election.

Lanes that have ended, or that the mask leaves out, take no part.  Lanes of one warp that give
different masks at one instruction are teams, each by itself.

Source: PTX ISA 9.0, sections 9.7.9.6 (shfl.sync) and 9.7.13.5 to 9.7.13.13.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .atomics import RUNNING
from .decoder import Action, Builder, Control, Decoder
from .parser import Instruction
from .report import Array
from .run import WARP, Group, Run
from .values import TYPES

__all__ = ["TABLE"]

_FULL = 0xFFFFFFFF


def members(run: Run, group: Group, mask: Array | int) -> Group | None:
    """Return the part of the group whose lanes of ``mask`` are all there; the others wait."""
    bits = np.broadcast_to(np.asarray(mask, np.uint32), (group.size,))
    if (bits == _FULL).all():
        return run.together(group, WARP)
    lanes = group.threads % WARP
    if not (bits >> lanes.astype(np.uint32) & 1).all():
        run.find("divergence", "a thread outside of its own member mask")
    warps = group.threads // WARP
    here = np.zeros(len(run.live) // WARP, np.uint32)
    np.bitwise_or.at(here, warps, np.uint32(1) << lanes.astype(np.uint32))
    live = run.live.reshape(-1, WARP)[warps] @ (1 << np.arange(WARP))
    ready = (bits & live & ~here[warps]) == 0
    return run.park(group, ~ready)


def lanes(group: Group, values: Array, mask: Array | int) -> tuple[Array, Array, Array]:
    """Spread values over whole warps: (teams, 32) values, which are there, each thread's row.

    A team are the threads of a warp with one mask.
    """
    masks = np.broadcast_to(np.asarray(mask).astype(np.int64) & _FULL, (group.size,))
    numbers, rows = np.unique(group.threads // WARP << 32 | masks, return_inverse=True)
    spread = np.zeros((len(numbers), WARP), values.dtype)
    present = np.zeros((len(numbers), WARP), bool)
    spread[rows, group.threads % WARP] = values
    present[rows, group.threads % WARP] = True
    return spread, present, rows


def _by_mask(d: Decoder, text: str, action: Callable[[Run, Group, Array], None]) -> Control:
    """Return what executes an action for lanes when all that their mask (else warp) has came."""
    mask = d.source(text, "b32") if text else None

    def act(run: Run, group: Group) -> None:
        here = members(run, group, mask(run, group)) if mask else run.together(group, WARP)
        if here is not None:
            given = np.asarray(mask(run, here) if mask else _FULL, np.uint32)
            action(run, here, np.broadcast_to(given, (here.size,)))

    return Control(act, WARP)


def _shfl(d: Decoder, i: Instruction) -> Control:
    mode = i.parts[2]
    to, *more = (o.strip() for o in i.operands[0].split("|"))
    write = d.target(to, "b32")
    valid = d.target(more[0], "pred") if more else None
    value, by, clamp = (d.source(o, "b32") for o in i.operands[1:4])

    def shuffle(run: Run, here: Group, given: Array) -> None:
        held = np.broadcast_to(value(run, here), (here.size,))
        spread, present, rows = lanes(here, held, given)
        lane = here.threads % WARP
        distance = np.broadcast_to(by(run, here), (here.size,)).astype(np.int64) & 31
        c = np.broadcast_to(clamp(run, here), (here.size,)).astype(np.int64)
        segment, limit = c >> 8 & 31, c & 31
        most = (lane & segment) | (limit & ~segment)
        source = {
            "up": lane - distance, "down": lane + distance, "bfly": lane ^ distance,
            "idx": (lane & segment) | (distance & ~segment),
        }[mode]  # fmt: skip
        inside = source >= most if mode == "up" else source <= most
        source = np.where(inside, source, lane)
        absent = ~present[rows, source]
        if absent.any():
            n = int(np.argmax(absent))
            who = int(here.threads[n])
            what = f"reads lane {source[n]}, which takes no part: the value is undefined"
            message = f"lane {lane[n]} of {run.warp_name(who)} {what}"
            run.find("shuffle", message, thread=who, severity="warning")
        write(run, here, np.where(absent, np.uint32(_FULL), spread[rows, source]))
        if valid is not None:
            valid(run, here, inside)

    return _by_mask(d, i.operands[4], shuffle)


def _over_warp(
    d: Decoder, i: Instruction, kinds: tuple[str, str], function: Callable[[Array, Array], Any]
) -> Control:
    """Build a result from all lanes: ``function(values, present)`` gives one a warp or lane.

    A predicate beside it says whether it is not zero.
    """
    of, to = kinds
    value = d.source(i.operands[1], of)
    result, _, also = (o.strip() for o in i.operands[0].partition("|"))
    write, mark = d.target(result, to), d.target(also or "_", "pred")

    def collect(run: Run, here: Group, teams: Array) -> None:
        held = np.broadcast_to(value(run, here), (here.size,))
        spread, present, rows = lanes(here, held, teams)
        found = function(spread, present)
        mine = found[rows] if found.ndim == 1 else found[rows, here.threads % WARP]
        write(run, here, mine)
        mark(run, here, mine != 0)

    return _by_mask(d, i.operands[2] if len(i.operands) > 2 else "", collect)


_BITS = (np.uint64(1) << np.arange(WARP, dtype=np.uint64)).astype(np.uint64)


def _ballot(values: Array, present: Array) -> Any:
    return ((values & present) * _BITS).sum(1).astype(np.uint32)


def _vote(d: Decoder, i: Instruction) -> Control:
    mode = next(p for p in i.parts if p in ("all", "any", "uni", "ballot"))
    functions: Mapping[str, Callable[[Array, Array], Any]] = {
        "all": lambda v, p: (v | ~p).all(1),
        "any": lambda v, p: (v & p).any(1),
        "uni": lambda v, p: (v | ~p).all(1) | ~(v & p).any(1),
        "ballot": _ballot,
    }
    return _over_warp(d, i, ("pred", "b32" if mode == "ballot" else "pred"), functions[mode])


def _match(d: Decoder, i: Instruction) -> Control:
    kind = i.parts[-1]

    def equal(values: Array, present: Array) -> Any:
        same = (values[:, :, None] == values[:, None, :]) & present[:, None, :]
        return (same * _BITS).sum(2).astype(np.uint32)

    def every(values: Array, present: Array) -> Any:
        same = equal(values, present)
        whole = (present * _BITS).sum(1).astype(np.uint32)
        return np.where(same == whole[:, None], same, 0)

    return _over_warp(d, i, (kind, "b32"), every if "all" in i.parts else equal)


def _redux(d: Decoder, i: Instruction) -> Control:
    """Reduce; of floating-point numbers a NaN is left out, but with ``.NaN`` is the result."""
    kind, name = i.parts[-1], i.parts[2]
    dtype, function = TYPES[kind], RUNNING[name]
    neutral: float = 0
    if dtype.kind != "f":
        limits = np.iinfo(dtype)
        neutral = {"min": limits.max, "max": limits.min, "and": -1}.get(name, 0)
    elif "NaN" in i.parts:
        neutral = np.inf if name == "min" else -np.inf
    else:
        function, neutral = {"min": np.fmin, "max": np.fmax}[name], np.nan
    start = np.array(neutral).astype(dtype)

    def reduce(values: Array, present: Array) -> Any:
        given = np.abs(values) if "abs" in i.parts else values
        return function.reduce(np.where(present, given, start), axis=1, dtype=dtype)

    return _over_warp(d, i, (kind, kind), reduce)


def _elect(d: Decoder, i: Instruction) -> Control:
    to, leads = (o.strip() for o in i.operands[0].split("|"))
    write, mark = d.target(to, "b32"), d.target(leads, "pred")

    def elect(run: Run, here: Group, teams: Array) -> None:
        _, present, rows = lanes(here, np.zeros(here.size, bool), teams)
        first = present.argmax(1)[rows]
        write(run, here, first.astype(np.uint32))
        mark(run, here, here.threads % WARP == first)

    return _by_mask(d, i.operands[1], elect)


def _activemask(d: Decoder, i: Instruction) -> Action:
    write = d.target(i.operands[0], "b32")

    def active(run: Run, group: Group) -> None:
        _, present, rows = lanes(group, np.zeros(group.size, bool), _FULL)
        write(run, group, _ballot(present, present)[rows])

    return active


def _bar_warp(d: Decoder, i: Instruction) -> Control:
    def sync(run: Run, here: Group, masks: Array) -> None:
        if run.unit > 1:
            return
        keys, step = here.threads // WARP * (1 << 32) + masks, run.tick()
        for key in np.unique(keys).tolist():  # a team's threads know what all of them know
            domain, agents = run.members(here.where(keys == key))
            run.clocks.acquire(domain, agents, run.clocks.snapshot(domain, agents, step))

    return _by_mask(d, i.operands[0], sync)


TABLE: Mapping[str, Builder] = {
    "shfl.sync": _shfl,
    "vote.sync": _vote,
    "match.any": _match,
    "match.all": _match,
    "redux.sync": _redux,
    "elect.sync": _elect,
    "activemask": _activemask,
    "bar.warp.sync": _bar_warp,
}
"""This family's builders by entry."""
