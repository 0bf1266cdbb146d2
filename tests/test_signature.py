"""Terms of a space that may order otherwise have other signatures: no verdict is taken for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.hopper_terms import rewritten
from tinygpu.machines.ampere import STARTS, Ampere
from tinygpu.space.signature import numbers_of
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import matmul
from tinygpu.term.program import Do, Program, Sync, WaitGroup

TERM = Ampere().program(matmul("bf16"), Chosen(STARTS["plain"]))


def changed(change: Callable[[Do], Do]) -> Program:
    """Change the first statement that writes shared memory."""
    done: list[Do] = []

    def of(s: Any) -> Any:
        if isinstance(s, Do) and s.write.buffer.level == "smem" and not done:
            done.append(s)
            return change(s)
        return s

    found = rewritten(TERM, of)
    assert done
    return found


def same(term: Program) -> bool:
    """Say whether a verdict on the term would be taken for one on TERM, and the other way round."""
    (key, numbers), (other, others) = numbers_of(TERM), numbers_of(term)
    return key == other and tuple(map(int, numbers)) == tuple(map(int, others))


OTHER: dict[str, Callable[[Do], Do]] = {
    "issuer": lambda s: replace(s, instruction=replace(s.instruction, issuer="warp")),
    "unit": lambda s: replace(s, instruction=replace(s.instruction, unit="alu")),
    "lanes": lambda s: replace(s, lanes=(1, 32, 0)),
    "index": lambda s: replace(s, write=replace(s.write, index=s.write.index + 1)),
}


@pytest.mark.parametrize("field", OTHER)
def test_what_may_order_otherwise_is_asked_for_by_itself(field: str) -> None:
    assert not same(changed(OTHER[field]))


def test_lanes_that_differ_are_two() -> None:
    first = numbers_of(changed(lambda s: replace(s, lanes=(1, 32, 0))))
    assert first != numbers_of(changed(lambda s: replace(s, lanes=(1, 32, 1))))


def test_what_orders_nothing_is_asked_for_once() -> None:
    assert same(changed(lambda s: replace(s, vector=2 * s.vector)))
    assert same(rewritten(TERM, lambda s: s))


@pytest.mark.parametrize("kind", [Sync, WaitGroup])
def test_barriers_and_groups_are_told_apart(kind: type) -> None:
    def of(s: Any) -> Any:
        if isinstance(s, WaitGroup) and kind is WaitGroup:
            return replace(s, pending=s.pending + 1)
        return replace(s, barrier=s.barrier + 1) if isinstance(s, Sync) and kind is Sync else s

    assert not same(rewritten(TERM, of))
