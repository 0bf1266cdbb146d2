"""Every fault of an asynchronous program is found: hopper's, with one thing changed at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.test_async_interpret import CLUSTER, TURNS, hopper
from tinygpu.interpret import check
from tinygpu.program import (
    Access,
    Arrive,
    Do,
    Elect,
    For,
    ForTile,
    Program,
    Statement,
    Wait,
    WaitGroup,
    When,
)

Body = tuple[Statement, ...]
Block = For | ForTile | When | Elect


def mutants(program: Program) -> Iterator[tuple[str, Program]]:
    """Each statement dropped, done twice or moved, each number of order off by one."""
    for r, role in enumerate(program.roles):
        for name, body in _bodies(role.body):
            roles = (*program.roles[:r], replace(role, body=body), *program.roles[r + 1 :])
            yield f"{role.name}: {name}", replace(program, roles=roles)
    for b in program.barriers:
        for by in (1, -1) if b.arrivals > 1 else (1,):
            changed = replace(b, arrivals=b.arrivals + by)
            barriers = tuple(changed if o is b else o for o in program.barriers)
            yield f"arrivals{by:+} {b.name}", replace(program, barriers=barriers)


def _bodies(body: Body) -> Iterator[tuple[str, Body]]:
    for i, s in enumerate(body):
        before, after = body[:i], body[i + 1 :]
        for name, instead in _changes(s):
            yield name, (*before, *instead, *after)
        if not isinstance(s, For | ForTile):
            yield f"drop {_short(s)}", (*before, *after)
            yield f"double {_short(s)}", (*before, s, s, *after)
            if after:
                yield f"later {_short(s)}", (*before, after[0], s, *after[1:])
        if isinstance(s, Block):
            for name, inner in _bodies(s.body):
                yield name, (*before, replace(s, body=inner), *after)


def _short(s: Statement) -> str:
    match s:
        case When() | Elect():
            return f"{type(s).__name__.lower()} {_short(s.body[0])}"
        case Do():
            return s.instruction.name
    return str(s)


def _changes(s: Statement) -> Iterator[tuple[str, Body]]:
    match s:
        case Do():
            for by in (1, -1):
                if s.write.buffer.level != "gmem":
                    write = replace(s.write, index=s.write.index + by)
                    yield f"write{by:+} {_short(s)}", (replace(s, write=write),)
                for i, r in enumerate(s.reads):
                    if isinstance(r, Access) and r.buffer.level != "gmem":
                        reads = (*s.reads[:i], replace(r, index=r.index + by), *s.reads[i + 1 :])
                        yield f"read {i} {by:+} {_short(s)}", (replace(s, reads=reads),)
                if s.signal:
                    signal = (s.signal[0], s.signal[1] + by)
                    yield f"signal{by:+} {_short(s)}", (replace(s, signal=signal),)
            if s.fresh:
                yield "always add", (replace(s, fresh=None),)
                yield "late anew", (replace(s, fresh=s.fresh + -1),)
        case Wait(_, index) | Arrive(_, index):
            for by in (1, -1):
                yield f"index{by:+} {s}", (replace(s, index=index + by),)
            if isinstance(s, Arrive) and s.bytes:
                yield f"bytes+ {s}", (replace(s, bytes=s.bytes + 128),)
                yield f"bytes- {s}", (replace(s, bytes=s.bytes - 128),)
            if isinstance(s, Arrive) and s.to == "cluster":
                yield f"to own {s}", (replace(s, to="cta"),)
        case WaitGroup(pending):
            yield f"pending+1 {s}", (replace(s, pending=pending + 1),)
        case When(index):
            yield f"sooner {_short(s)}", (replace(s, index=index + -1),)
            yield f"unguarded {_short(s)}", s.body
        case Elect(body):
            yield f"by all {_short(s)}", body
        case _:
            pass


HARMLESS = (
    "producer: index+1 wait empty",  # two stages do
    "producer: later arrive full",  # bytes may land before they are expected
    "producer: later cp.async",  # the order of two loads
    "consumer: later wait full",
    "consumer: later elect arrive turn",
    "consumer: later bar.sync",
    "consumer: double wgmma.commit_group",  # an empty group: more is waited for
    "consumer: double elect cp.async.bulk.wait_group",
    "consumer: by all cp.async.bulk.wait_group",  # the others have no groups
    "consumer: by all elect cp.async.bulk.wait_group",
    "consumer: later elect cp.async.bulk.wait_group",  # their CTA is still there
    "consumer: double cp.async.bulk.commit_group",
    "consumer: double cvt",
    "consumer: double stmatrix",
    "consumer: double fence.proxy.async",
    "consumer: double wgmma.",
    "consumer: double bar.sync",
    "consumer: double cp.async.bulk.wait_group",
    "consumer: double wait",
    "producer: double wait",
)
"""Mutants that are right: they wait for more, do the same twice, or change what has no order."""

OF_ONE_CTA = ("consumer: to own",)
OF_CLUSTERS = (
    "consumer: double barrier.cluster",  # threads that have left are not waited for
    "producer: double barrier.cluster",
    "producer: drop barrier.cluster",
    "consumer: sooner when elect arrive",  # one group in flight is always there
    "consumer: unguarded when elect arrive",
)


@pytest.mark.parametrize(
    ("point", "sizes", "only", "harmless"),
    [
        (
            {**TURNS, "in_flight": 2},
            ({"m": 512, "n": 16, "k": 64}, {"m": 192, "n": 16, "k": 264}),
            "",
            OF_ONE_CTA,
        ),
        (CLUSTER, ({"m": 256, "n": 16, "k": 264},), "arriv,barrier,wait,tensor", OF_CLUSTERS),
    ],
    ids=["pingpong", "cluster"],
)
def test_every_mutant_but_the_harmless_is_found(
    point: dict[str, Any], sizes: tuple[dict[str, int], ...], only: str, harmless: tuple[str, ...]
) -> None:
    """At two sizes: one trip a tile, and more trips than there are stages."""
    program, missed, count = hopper(point), [], 0
    for s in sizes:
        assert check(program, s) == ()
    for name, mutant in mutants(program):
        if any(word in name for word in only.split(",")):
            found = any(check(mutant, s, seeds=(seed,)) for seed, s in enumerate(sizes))
            count += found
            if not found and not name.startswith((*HARMLESS, *harmless)):
                missed.append(name)
    assert missed == []
    assert count >= 60
