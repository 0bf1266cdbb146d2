"""Every interleaving of two threads of a small program, straight from the term.

It shares nothing with the judge: no skeleton, no counting of barriers, no order.  Two threads
step one access at a time, a cp.async lands whenever it likes between its issue and the wait that
covers it, and every state that can be reached is visited.  The program is faulty if in one of them
two agents are about to touch one slot, not both reading (one statement's writes by different
threads are apart), or a read sees another index than its own, or nobody can step and not all are
done, or a thread ends while a copy of its own is in flight.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tinygpu.term.program import (
    Access,
    Commit,
    Do,
    Exit,
    For,
    Program,
    Statement,
    Sync,
    WaitGroup,
    When,
)

__all__ = ["faults"]

Op = tuple[Any, ...]


def faults(program: Program, env: Mapping[str, int]) -> set[str]:
    """Return the kinds of faults that some interleaving of two threads of the one role shows.

    A race ends the search.  What concerns its own thread only is done at once: it commutes with all
    else, and touches nothing that another could race for.
    """
    (role,) = program.roles
    numbered = tuple(enumerate(_ops(role.body, dict(env))))
    ops = tuple((*op, number) for number, op in numbered)
    start = _State((0, 0), ((), ()), (0, 0), frozenset(), (frozenset(), frozenset()))
    found: set[str] = set()
    seen = {start}
    stack = [start]
    while stack and "race" not in found:
        state = stack.pop()
        following = list(_steps(state, ops, found))
        if not following and state.at != (len(ops), len(ops)):
            found.add("deadlock")
        for other in following:
            if other not in seen:
                seen.add(other)
                stack.append(other)
    return found


def _ops(body: tuple[Statement, ...], env: dict[str, int]) -> Iterator[Op]:
    for s in body:
        match s:
            case For(var, trips, inner, _, start):
                for number in range(start, env[trips] if isinstance(trips, str) else trips):
                    yield from _ops(inner, {**env, var: number})
            case When(index, bound, inner):
                if index.evaluate(env) < (env[bound] if isinstance(bound, str) else bound):
                    yield from _ops(inner, env)
            case Do():
                for access in s.accesses:
                    if access.buffer.level != "gmem":
                        yield _access(s, access, env)
            case Exit():
                yield ("leave",)
            case Sync(barrier):
                yield ("sync", barrier)
            case Commit():
                yield ("commit",)
            case WaitGroup(pending):
                yield ("wait", pending)


def _access(do: Do, access: Access, env: Mapping[str, int]) -> Op:
    index = access.index.evaluate(env)
    place = (access.buffer.name, index % access.buffer.stages)
    if access is not do.write:
        kind = "read"
    elif do.instruction.name == "cp.async":
        kind = "copy"
    else:
        kind = "write"
    return kind, place, index, access.buffer.level == "registers"


@dataclass(frozen=True)
class _State:
    at: tuple[int, int]
    flying: tuple[tuple[tuple[int, Op], ...], ...]  # each thread's copies: their group, the op
    commits: tuple[int, int]
    memory: frozenset[tuple[Any, int]]
    registers: tuple[frozenset[tuple[Any, int]], frozenset[tuple[Any, int]]]


def _put(pair: tuple[Any, ...], thread: int, item: Any) -> Any:
    return (item, pair[1]) if thread == 0 else (pair[0], item)


def _store(memory: frozenset[tuple[Any, int]], place: Any, index: int) -> Any:
    return frozenset({*(m for m in memory if m[0] != place), (place, index)})


def _steps(state: _State, ops: tuple[Op, ...], found: set[str]) -> Iterator[_State]:
    for thread in (0, 1):
        if alone := list(_alone(state, ops, thread, found)):
            yield from alone
            return
    end = len(ops)
    about: list[tuple[str, Any, int]] = []  # what each agent is about to touch
    for thread in (0, 1):
        for item in state.flying[thread]:
            _, (_, place, index, _, number) = item
            about.append(("write", place, number))
            rest = tuple(x for x in state.flying[thread] if x != item)
            yield replace(
                state,
                flying=_put(state.flying, thread, rest),
                memory=_store(state.memory, place, index),
            )
        at = state.at[thread]
        if at == end:
            if state.flying[thread]:
                found.add("exit")
            continue
        on = replace(state, at=_put(state.at, thread, at + 1))
        match ops[at]:
            case ("read" | "write" as kind, place, index, _, number):
                about.append((kind, place, number))
                if kind == "write":
                    on = replace(on, memory=_store(state.memory, place, index))
                elif (place, index) not in state.memory:
                    found.add("stale")
                yield on
            case ("sync", barrier, _):
                other = state.at[1 - thread]
                if thread == 0 and other < end and ops[other][:2] == ("sync", barrier):
                    yield replace(state, at=(at + 1, other + 1))
    for i, (kind, place, number) in enumerate(about):
        for kind_, place_, number_ in about[:i]:
            together = kind == kind_ == "write" and number == number_
            if place == place_ and "write" in (kind, kind_) and not together:
                found.add("race")


def _alone(state: _State, ops: tuple[Op, ...], thread: int, found: set[str]) -> Iterator[_State]:
    """Yield the states after the thread's next step if nobody else has to do with it."""
    at = state.at[thread]
    if at == len(ops):
        return
    on = replace(state, at=_put(state.at, thread, at + 1))
    match ops[at]:
        case ("write", place, index, True, _):
            mine = _store(state.registers[thread], place, index)
            yield replace(on, registers=_put(state.registers, thread, mine))
        case ("read", place, index, True, _):
            if (place, index) not in state.registers[thread]:
                found.add("stale")
            yield on
        case ("copy", *_):
            flying = (*state.flying[thread], (state.commits[thread], ops[at]))
            yield replace(on, flying=_put(state.flying, thread, flying))
        case ("commit", _):
            yield replace(on, commits=_put(state.commits, thread, state.commits[thread] + 1))
        case ("wait", pending, _):
            if pending < 0:
                found.add("group")
            newest = state.commits[thread] - max(pending, 0)
            if all(group >= newest for group, _ in state.flying[thread]):
                yield on
        case ("leave", _):
            if state.flying[thread]:
                found.add("exit")
            yield on
            yield replace(state, at=_put(state.at, thread, len(ops)))
