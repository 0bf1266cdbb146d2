"""Only the term is read: a dropped statement takes its own instructions with it, no others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.hopper_terms import term
from tests.ptx_runs import unchecked as emit
from tinygpu.term.program import (
    Arrive,
    Block,
    Commit,
    Do,
    Fence,
    Program,
    Statement,
    Sync,
    Wait,
    WaitGroup,
)

OPCODES = {
    "wait": r"mbarrier\.try_wait",
    "expect": r"mbarrier\.arrive\.expect_tx",
    "arrive": r"mbarrier\.arrive\.shared",
    "fence proxy.async": r"fence\.proxy\.async\.",
    "fence wgmma": r"wgmma\.fence",
    "commit wgmma": r"wgmma\.commit_group",
    "commit bulk": r"cp\.async\.bulk\.commit_group",
    "wait group wgmma": r"wgmma\.wait_group",
    "wait group bulk": r"cp\.async\.bulk\.wait_group",
    "sync role": r"bar\.sync %r",
    "sync cluster": r"barrier\.cluster\.(?:arrive|wait)|bar\.sync 0",
    "cp.async.bulk.tensor": r"cp\.async\.bulk\.tensor\.\dd\.shared",
    "cp.async.bulk.tensor.global": r"cp\.async\.bulk\.tensor\.\dd\.global",
    "wgmma": r"wgmma\.mma_async",
    "cvt": r"cvt\.rn\.",
    "stmatrix": r"stmatrix\.",
    "st.shared": r"st\.shared\.",
    "st.global": r"st\.global\.",
}
PROLOGUE = {"fence proxy.async": 1, "sync cluster": 1}
ARITHMETIC = re.compile(
    r"mov|cvta?\.(?:u|to|param)|ld\.param|add|sub|mul|mad|shl|shr|and|x?or|rem|div|min|max|selp|setp|bra|ret"
    r"|mapa|bar\.warp|mbarrier\.init|fence\.mbarrier_init|prefetch|setmaxnreg|griddepcontrol"
)


def shorter(body: tuple[Statement, ...]) -> Iterator[tuple[Statement, tuple[Statement, ...]]]:
    """Each statement that holds no others, and the body without it."""
    for i, s in enumerate(body):
        before, after = body[:i], body[i + 1 :]
        if isinstance(s, Block):
            for dropped, inner in shorter(s.body):
                yield dropped, (*before, replace(s, body=inner), *after)
        else:
            yield s, (*before, *after)


def without(program: Program) -> Iterator[tuple[Statement, Program]]:
    for i, role in enumerate(program.roles):
        for dropped, body in shorter(role.body):
            roles = (*program.roles[:i], replace(role, body=body), *program.roles[i + 1 :])
            yield dropped, replace(program, roles=roles)


def opcode(statement: Statement) -> str:
    match statement:
        case Do():
            return statement.instruction.name
        case Wait():
            return "wait"
        case Arrive():
            return "expect" if statement.bytes else "arrive"
        case Fence(kind):
            return f"fence {kind}"
        case Commit(group):
            return f"commit {group}"
        case WaitGroup(group=group):
            return f"wait group {group}"
        case Sync():
            return f"sync {statement.scope}"
        case _:
            raise AssertionError(statement)


def counted(text: str) -> Counter[str]:
    """How many instructions of each kind there are; none is of no kind."""
    found: Counter[str] = Counter()
    for line in re.findall(r"^\t(?:@!?%\w+ )?([a-z][^;]*);", text[text.index("\n{\n") :], re.M):
        kinds = [name for name, pattern in OPCODES.items() if re.match(pattern, line)]
        assert len(kinds) == 1 or (not kinds and ARITHMETIC.match(line)), line
        found.update(kinds)
    return found


DROPPED: list[tuple[str, str | None, dict[str, Any]]] = [
    ("plain", None, {"in_flight": 1}),
    ("cluster", None, {"in_flight": 2}),
    ("cluster", "f32", {"store_n": 32, "tile_n": 64}),
    ("pingpong", None, {"swap": 1}),
    ("swapped", "f32", {}),
]


@pytest.mark.parametrize(("start", "output", "changes"), DROPPED, ids=str)
def test_a_dropped_statement_vanishes(
    start: str, output: str | None, changes: dict[str, Any]
) -> None:
    """Its instructions go and no others do: every instruction is of a statement of the term."""
    program = term(start, "nt", output, **changes)
    whole, kinds = counted(emit(program)), set()
    for dropped, rest in without(program):
        name = opcode(dropped)
        kinds.add(name)
        if name == "sync cluster":  # all roles end at one: it goes when none of them has it
            assert [emit(p).count("\tret;") for p in (program, rest)] == [1, 1 + len(program.roles)]
            assert counted(emit(rest)) == whole
            bodies = (replace(role, body=role.body[:-1]) for role in program.roles)
            rest = replace(program, roles=tuple(bodies))
        left = counted(emit(rest))
        assert set(whole - left) == {name}, dropped
        assert not left - whole
    own = {name: n * (2 if name == "sync cluster" and start == "cluster" else 1)
           for name, n in PROLOGUE.items()}  # fmt: skip
    assert {name for name, count in (whole - Counter(own)).items() if count} == kinds
    assert len(kinds) >= 9
