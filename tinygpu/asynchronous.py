"""Asynchronous, warp-specialised programs at work: clusters one after another, agents in turn.

Between the points that the term orders, hardware may do anything in any order.  A *strategy* picks
which agent is next: leaders first, the others first, any, or one agent starved for as long as the
rest can go on.  What is under way lands as early as it may, as late as it may (when nobody can go
on, or at the wait that covers it), or at random, out of order unless it is ordered.  When nobody
can go on and nothing is under way, those that wait do so for ever: a deadlock.

Threads other than the first of a role's copy run in step, so what they do among themselves without
a barrier is not seen.  A bar.sync counts threads that have left as missing, barrier.cluster does
not (PTX).  Of a persistent program one to three clusters are launched, by the seed.

>>> from tinygpu.interpret import check
>>> from tinygpu.machine import Chosen
>>> from tinygpu.machines.hopper import STARTS, Hopper
>>> from tinygpu.operation import matmul
>>> program = Hopper().program(matmul("bf16", layout="nt"), Chosen(STARTS["ring"]))
>>> check(program, {"m": 200, "n": 136, "k": 200}, seeds=(0,))
()

Source: ``docs/model.md``, section "Meaning"; ``tinygpu.cluster``; PTX ISA 9, 9.7.13.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import assert_never

import numpy as np

from tinygpu.cluster import Agent, Cluster, Cta, Mbarrier, Registers, Shared, Step, Team
from tinygpu.execution import Run
from tinygpu.program import (
    Arrive,
    Commit,
    Do,
    Elect,
    Exit,
    Fence,
    For,
    ForTile,
    Program,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    When,
    buffers_of,
    walk,
)
from tinygpu.turns import STRATEGIES, Turns

__all__ = ["is_asynchronous", "raster_of", "run_clusters"]

_MOST_CLUSTERS = 3


def is_asynchronous(program: Program) -> bool:
    """Whether a program says what only this interpreter understands."""
    return bool(program.barriers or program.cluster) or any(
        isinstance(s, Elect | ForTile | Wait | Arrive | Fence)
        or (isinstance(s, Sync) and s.scope != "cta")
        or (isinstance(s, Do) and s.instruction.issuer not in ("thread", "warp"))
        for s, _ in walk(program)
    )


def run_clusters(run: Run, seed: int) -> None:
    """Run every cluster of the grid, in random order; stop at a deadlock."""
    program = run.program
    sizes = {a: run.values[a] for a in program.operation.axes}
    tiles = raster_of(program.grid_extents(sizes), int(program.raster))
    clusters = len(tiles)
    if program.persistent:
        clusters = min(clusters, 1 + seed % _MOST_CLUSTERS)
    strategy = STRATEGIES[seed % len(STRATEGIES)]
    narrowed: dict[tuple[int, int], Do] = {}
    for number in run.random.permutation(clusters).tolist():
        mine = tiles[number::clusters]
        Turns(_start(run, number, mine, narrowed), strategy).run()
        if "deadlock" in run.found:
            return


def raster_of(extents: tuple[int, ...], raster: int) -> list[tuple[int, ...]]:
    """Return the grid's places in the order in which it is walked."""
    *outer, rows, columns = (1,) * (2 - len(extents)) + extents
    inner = [
        (row, column)
        for first in range(0, rows, raster)
        for column in range(columns)
        for row in range(first, min(first + raster, rows))
    ]
    places = [(*o, *i) for o in product(*(range(n) for n in outer)) for i in inner]
    return [p[-len(extents) :] for p in places] if extents else [()]


def _start(
    run: Run, number: int, tiles: list[tuple[int, ...]], narrowed: dict[tuple[int, int], Do]
) -> Cluster:
    """Start the CTAs of a cluster: poisoned memory, fresh mbarriers, agents at their first step."""
    program = run.program
    names, extents = [v for v, _ in program.cluster], [int(n) for _, n in program.cluster]
    ranks = [dict(zip(names, r[::-1], strict=True))
             for r in product(*(range(n) for n in extents[::-1]))]  # fmt: skip
    teams = sum(int(r.copies) * (1 + (int(r.threads) > 1)) for r in program.roles)
    stages = sum(int(b.stages) for b in program.barriers)
    known = np.zeros((teams * len(ranks), (teams + stages) * len(ranks)), np.int64)
    cluster = Cluster(run, number, known, narrowed)
    column = len(known)
    for rank, own in enumerate(ranks):
        shared = {
            (b.name, copy): Shared(b)
            for b in program.buffers
            if b.level in ("smem", "tmem")
            for copy in range(int(b.copies))
        }
        cta = Cta(cluster, rank, own, shared, {})
        for b in program.barriers:
            fresh = np.zeros(known.shape[1], np.int64)
            cta.barriers[b.name] = [
                Mbarrier(int(b.arrivals), fresh.copy(), column + s) for s in range(int(b.stages))
            ]
            column += int(b.stages)
        cluster.ctas.append(cta)
    for cta in cluster.ctas:
        _add_agents(cta, tiles)
    return cluster


def _add_agents(cta: Cta, tiles: list[tuple[int, ...]]) -> None:
    """Add the two agents of each copy of each role."""
    cluster = cta.cluster
    program, number, first = cluster.run.program, len(cluster.agents), 0
    around = {**cluster.run.values, **cta.ranks}
    if not program.persistent:
        around |= _place(program, tiles[0])
    for role in program.roles:
        for copy in range(int(role.copies)):
            threads = np.arange(int(role.threads))
            held = [b for b in buffers_of(role.body) if b.level == "registers"]
            team = Team(role, copy, first, {b.name: Registers(b, threads.size) for b in held})
            env = {**around, role.copy: copy} if role.copy else around
            for leader in (True, False)[: threads.size]:
                mine = threads[:1] if leader else threads[1:]
                steps = _unfold(role.body, env, tiles, program, leader=leader)
                agent = Agent(number, cta, team, leader, mine, steps)
                number += 1
                team.agents.append(agent)
                cta.agents.append(agent)
            first += threads.size
    for agent in cta.agents:
        agent.next = next(agent.steps, None)


def _place(program: Program, tile: tuple[int, ...]) -> dict[str, int]:
    return {a.var: p for a, p in zip(program.grid, tile, strict=True)}


def _unfold(
    body: tuple[Statement, ...],
    env: Mapping[str, int],
    tiles: list[tuple[int, ...]],
    program: Program,
    *,
    leader: bool,
) -> Iterator[Step]:
    """Yield the statements of an agent in program order, with the variables' values."""
    for s in body:
        inner: list[Mapping[str, int]] = []
        match s:
            case For(var, trips, _, _, start):
                end = env[trips] if isinstance(trips, str) else int(trips)
                inner = [{**env, var: i} for i in range(start, end)]
            case ForTile(tile, turn, _, start, step):
                begin = start if isinstance(start, int) else start.evaluate(env)
                inner = [
                    {**env, tile: t, turn: i, **_place(program, tiles[t])}
                    for i, t in enumerate(range(int(begin), len(tiles), int(step)))
                ]
            case When(index, bound):
                if index.evaluate(env) < (env[bound] if isinstance(bound, str) else int(bound)):
                    inner = [env]
            case Elect():
                inner = [env] if leader else []
            case Do() | Exit() | Sync() | Commit() | WaitGroup() | Wait() | Arrive() | Fence():
                yield s, env
                continue
            case _:
                assert_never(s)
        for here in inner:
            yield from _unfold(s.body, here, tiles, program, leader=leader)
