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
from .decoder import Act, Builder, Control, Decoder, bound, operation
from .parser import Instruction
from .report import Array
from .run import WARP, Group, Run

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


def _of_teams(act: Callable[..., None]) -> Builder:
    """Return the builder of what lanes do when all came that their mask, the last operand, has."""

    def build(d: Decoder, i: Instruction) -> Control:
        do, masks = bound(d, i, act), d.source(i.operands[-1], "b32")

        def gather(run: Run, group: Group) -> None:
            here = members(run, group, masks(run, group))
            if here is not None:
                do(run, here)

        return Control(gather, WARP)

    return build


def _shfl(
    run: Run, here: Group, i: Instruction, write: Act, values: Array, by: Array, clamp: Array,
    masks: Array,
) -> None:  # fmt: skip
    spread, present, rows = lanes(here, values, masks)
    lane, mode = here.threads % WARP, i.parts[2]
    distance, c = by.astype(np.int64) & 31, clamp.astype(np.int64)
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
    write(here, np.where(absent, np.uint32(_FULL), spread[rows, source]), inside)


def _over_warp(function: Callable[[Instruction, Array, Array], Any]) -> Builder:
    """Build a result from all lanes: ``function(i, values, present)`` gives one a warp or lane.

    A predicate beside it says whether it is not zero.
    """

    def collect(
        run: Run, here: Group, i: Instruction, write: Act, values: Array, masks: Array
    ) -> None:  # fmt: skip
        spread, present, rows = lanes(here, values, masks)
        found = function(i, spread, present)
        mine = found[rows] if found.ndim == 1 else found[rows, here.threads % WARP]
        write(here, mine, mine != 0)

    return _of_teams(collect)


_BITS = (np.uint64(1) << np.arange(WARP, dtype=np.uint64)).astype(np.uint64)


def _ballot(values: Array, present: Array) -> Any:
    return ((values & present) * _BITS).sum(1).astype(np.uint32)


_VOTES: Mapping[str, Callable[[Array, Array], Any]] = {
    "all": lambda v, p: (v | ~p).all(1),
    "any": lambda v, p: (v & p).any(1),
    "uni": lambda v, p: (v | ~p).all(1) | ~(v & p).any(1),
    "ballot": _ballot,
}


def _match(i: Instruction, values: Array, present: Array) -> Any:
    equal = (values[:, :, None] == values[:, None, :]) & present[:, None, :]
    same = (equal * _BITS).sum(2).astype(np.uint32)
    return (
        np.where(same == _ballot(present, present)[:, None], same, 0) if "all" in i.parts else same
    )


def _redux(i: Instruction, values: Array, present: Array) -> Any:
    """Reduce; of floating-point numbers a NaN is left out, but with ``.NaN`` is the result."""
    dtype, name = values.dtype, i.parts[2]
    function, neutral = RUNNING[name], 0.0
    if dtype.kind != "f":
        limits = np.iinfo(dtype)
        neutral = {"min": limits.max, "max": limits.min, "and": -1}.get(name, 0)
    elif "NaN" in i.parts:
        neutral = np.inf if name == "min" else -np.inf
    else:
        function, neutral = {"min": np.fmin, "max": np.fmax}[name], np.nan
    given = np.abs(values) if "abs" in i.parts else values
    start = np.array(neutral).astype(dtype)
    return function.reduce(np.where(present, given, start), axis=1, dtype=dtype)


def _elect(run: Run, here: Group, i: Instruction, write: Act, masks: Array) -> None:
    _, present, rows = lanes(here, np.zeros(here.size, bool), masks)
    first = present.argmax(1)[rows]
    write(here, first.astype(np.uint32), here.threads % WARP == first)


def _activemask(run: Run, group: Group, i: Instruction, write: Act) -> None:
    _, present, rows = lanes(group, np.zeros(group.size, bool), _FULL)
    write(group, _ballot(present, present)[rows])


def _bar_warp(run: Run, here: Group, i: Instruction, masks: Array) -> None:
    if run.unit > 1:
        return
    keys, step = here.threads // WARP * (1 << 32) + masks, run.tick()
    for key in np.unique(keys).tolist():  # a team's threads know what all of them know
        domain, agents = run.members(here.where(keys == key))
        run.clocks.acquire(domain, agents, run.clocks.snapshot(domain, agents, step))


TABLE: Mapping[str, Builder] = {
    "shfl.sync": _of_teams(_shfl),
    "vote.sync": _over_warp(lambda i, v, p: _VOTES[i.parts[2]](v, p)),
    **dict.fromkeys(("match.any", "match.all"), _over_warp(_match)),
    "redux.sync": _over_warp(_redux),
    "elect.sync": _of_teams(_elect),
    "activemask": operation(_activemask),
    "bar.warp.sync": _of_teams(_bar_warp),
}
"""This family's builders by entry."""
