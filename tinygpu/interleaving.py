"""One CTA at work: agents take turns, as adversely as the barriers allow.

Between two barriers the hardware may run warps in any order.  A *strategy* picks who is next:
"first" and "last" let one agent run until it waits, from either end; "switch" draws after each
statement.
When nobody can go on, either every thread of the CTA waits at one barrier, and all are released,
or those that wait do so for ever: a deadlock.  A thread that has left never arrives (``bar.sync``
counts all threads of the CTA).

Source: ``docs/model.md``, section "Terms"; PTX ISA 9.0, 9.7.13.1 (bar.sync).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal, assert_never

import numpy as np
from numpy.typing import NDArray

from tinygpu.errors import ProgramError
from tinygpu.execution import Agent, Cta, Run, Step, execute
from tinygpu.program import (
    Arrive,
    Commit,
    Do,
    Elect,
    Exit,
    Fence,
    For,
    ForTile,
    Statement,
    Sync,
    Wait,
    WaitGroup,
    When,
)
from tinygpu.race import UNWRITTEN, Cells, Integers

__all__ = ["Strategy", "run_cta", "start_cta"]

Strategy = Literal["first", "switch", "last"]
_LANDS_NEXT = 0.3


def start_cta(run: Run, place: tuple[int, ...], number: int, groups: list[Integers]) -> Cta:
    """Start a CTA whose threads form agents: each of ``groups``, within each role."""
    program = run.program
    on_chip = [b for b in program.buffers if b.level != "gmem"]
    env = {**run.values, **{a.var: p for a, p in zip(program.grid, place, strict=True)}}
    agents: list[Agent] = []
    start = 0
    for role in program.roles:
        for threads in groups:
            mine = threads[(threads >= start) & (threads < start + role.threads)]
            if mine.size:
                shapes = {
                    b.name: (int(b.elements), mine.size) for b in on_chip if b.level == "registers"
                }
                held = {n: np.full(s, np.nan) for n, s in shapes.items()}
                index = {n: np.full(s, UNWRITTEN) for n, s in shapes.items()}
                agents.append(Agent(mine, start, _unfold(role.body, env), held, index))
        start += role.threads
    smem = {b.name: Cells(int(b.elements)) for b in on_chip if b.level == "smem"}
    return Cta(run, place, number * program.threads, smem, agents)


def run_cta(cta: Cta, strategy: Strategy) -> None:
    """Run a CTA to its end, or until its threads are stuck."""
    while True:
        ready = [a for a in cta.agents if a.at is None and not a.done]
        if not ready:
            if not _release(cta):
                return
            continue
        match strategy:
            case "first":
                agent = ready[0]
            case "last":
                agent = ready[-1]
            case "switch":
                agent = ready[int(cta.run.random.integers(len(ready)))]
            case _:
                assert_never(strategy)
        _step(cta, agent)


def _unfold(body: tuple[Statement, ...], env: Mapping[str, int]) -> Iterator[Step]:
    """Yield the statements in program order, with the variables' values."""
    for s in body:
        match s:
            case For(var, trips, inner, _, start):
                for i in range(start, env[trips] if isinstance(trips, str) else int(trips)):
                    yield from _unfold(inner, {**env, var: i})
            case When(index, bound, inner):
                if index.evaluate(env) < (env[bound] if isinstance(bound, str) else bound):
                    yield from _unfold(inner, env)
            case Do() | Exit() | Sync() | Commit() | WaitGroup():
                yield s, env
            case ForTile() | Elect() | Wait() | Arrive() | Fence():
                raise ProgramError(f"{s}: such a program is for tinygpu.asynchronous")
            case _:
                assert_never(s)


def _release(cta: Cta) -> bool:
    """Let all threads on if they wait at one barrier.  False: they are done, or stuck."""
    waiting = [(a, a.at) for a in cta.agents if a.at is not None]
    if not waiting:
        return False
    first, at = waiting[0]
    here = sum(a.threads.size for a, s in waiting if s.barrier == at.barrier)
    elsewhere = sum(a.threads.size for a, s in waiting if s.barrier != at.barrier)
    if here == cta.run.program.threads:
        cta.epoch += 1
        for agent, _ in waiting:
            agent.at = None
        return True
    text = (
        f"waits for all {cta.run.program.threads} threads: {here} are there, {elsewhere} wait at "
        f"another barrier, the others have left; let every thread reach every bar.sync"
    )
    cta.find("deadlock", at, int(first.threads[0]), text)
    return False


def _step(cta: Cta, agent: Agent) -> None:
    """Execute the agent's next statement."""
    run = cta.run
    if run.landing == "random" and run.random.random() < _LANDS_NEXT:
        flying = [c for g in (*agent.groups, agent.copies) for c in g if not c.landed]
        if flying:
            flying[int(run.random.integers(len(flying)))].land()
    following = next(agent.steps, None)
    if following is None:
        _leave(cta, agent, np.zeros(agent.threads.size, np.bool_))
        return
    statement, env = following
    match statement:
        case Do():
            execute(cta, agent, statement, env)
        case Exit(access):
            numbers = agent.threads - agent.start
            taken = run.touch.gmem(statement, access, numbers, agent.key, env).taken
            inside: NDArray[np.bool_] = np.asarray(taken.any(axis=0))
            if not inside.all():
                _leave(cta, agent, inside)
        case Sync():
            agent.at = statement
        case Commit():
            agent.groups.append(agent.copies)
            agent.copies = []
        case WaitGroup(pending):
            covered = max(0, len(agent.groups) - int(pending))
            for copy in (c for g in agent.groups[:covered] for c in g):
                copy.land()
                copy.cells.settle(copy.offset, copy.thread, cta.epoch, run.number(copy.do))
            del agent.groups[:covered]
        case _:
            assert_never(statement)


def _leave(cta: Cta, agent: Agent, alive: NDArray[np.bool_]) -> None:
    """Let the threads that are not ``alive`` leave the kernel."""
    gone = agent.threads[~alive]
    for copy in (c for g in (*agent.groups, agent.copies) for c in g):
        lost = np.isin(copy.thread, gone)
        if lost.any():
            text = "is in flight when its thread leaves; commit and wait for it"
            cta.find("unwaited", copy.do, int(copy.thread[lost.argmax()]), text)
    agent.keep(alive)
    agent.done = not agent.threads.size
