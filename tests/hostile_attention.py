"""Hostile terms of attention: each is what somebody might write, and what has to find it.

``WRONG``    a term, and what finds it: the judge by the kind of its fault, or "computes"
``REFUSED``  no term, and a word of what is said where it is built

They are made of ``base``: FlashAttention-3's order for one consumer, under a causal mask, so that
tiles have trips of their own, some none.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

from tests.hopper_terms import rewritten
from tinygpu.machines.attention import STARTS, Attention
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import attention
from tinygpu.term.program import (
    Access,
    Affine,
    Arrive,
    Block,
    Body,
    Commit,
    Do,
    ForTile,
    Predicate,
    Program,
    Statement,
    Wait,
    WaitGroup,
    When,
    var,
)

__all__ = ["REFUSED", "WRONG", "base"]


@cache
def base(name: str = "fa3 without turns", consumers: int = 1) -> Program:
    """A term that is legal and right."""
    small = {"depth": 64, "tile_n": 64, "consumers": consumers}
    chosen = Chosen({**STARTS[name], **small})
    return Attention().program(attention("bf16", mask="causal", scale=True), chosen)


def moved(program: Program, what: str, before: str) -> Program:
    """The program with a consumer's last such statement before the first such other of its block.

    Statements are found by regular expressions.
    """

    def at(body: Body, text: str) -> list[int]:
        return [i for i, s in enumerate(body) if re.search(text, str(s))]

    def of(body: Body) -> Body:
        body = tuple(replace(s, body=of(s.body)) if isinstance(s, Block) else s for s in body)
        late, early = at(body, what)[-1:], at(body, before)[:1]
        if not late or not early or late < early:
            return body
        (i,), (j,) = late, early
        return (*body[:j], body[i], *body[j:i], *body[i + 1 :])

    roles = (replace(r, body=of(r.body)) if r.name == "consumer" else r for r in program.roles)
    return changed(program, replace(program, roles=tuple(roles)))


def changed(program: Program, other: Program) -> Program:
    """The other program, which is another one."""
    assert other != program
    return other


def where(program: Program, change: Callable[[Predicate], Predicate | None]) -> Program:
    """The program with other predicates."""

    def of(s: Statement) -> Statement:
        return replace(s, where=change(s.where)) if isinstance(s, Do) and s.where else s

    return rewritten(program, of)


def rescaled_under_a_product() -> Program:
    """The sums shrink while the product of the block before adds to them."""
    return moved(base(), r"^acc.* = fma.mul\(acc.*shrink", "wait_group 0")


def rounded_under_a_product() -> Program:
    """Weights, which a product reads from registers, are written while it is in flight."""
    return moved(base(), "^weights.* = cvt", "wait_group 0")


def rounded_behind_the_fence() -> Program:
    """Weights are written between wgmma.fence and the product that reads them."""
    return moved(base("fa2"), "wgmma.fence", "^weights.* = cvt")


def masked_under_a_product() -> Program:
    """Scores are masked before the wait for them."""
    return moved(base("fa2"), r"^when kt", "wait_group 0")


def group_that_a_guard_leaves_out() -> Program:
    """From the second step on nobody closes the group of the scores that is waited for."""
    seen: list[Statement] = []

    def of(s: Statement) -> Statement:
        if not isinstance(s, Commit) or s.group != "wgmma" or seen:
            return s
        seen.append(s)
        return When(var("kt"), 1, (s,))

    return rewritten(base(), of)


def one_group_left_pending() -> Program:
    """Every wait for products leaves the newest pending."""
    return rewritten(
        base(), lambda s: replace(s, pending=1) if isinstance(s, WaitGroup) and s.group == "wgmma"
        else s
    )  # fmt: skip


def turns_at_the_number_of_a_role() -> Program:
    """The copies' turns are at the bar.sync at which a copy's threads meet."""
    program = base("fa3", 2)
    turn = next(b for b in program.barriers if b.named)
    other = replace(turn, number=2)

    def of(s: Statement) -> Statement:
        return (
            replace(s, barrier=other) if isinstance(s, Wait | Arrive) and s.barrier == turn else s
        )

    barriers = tuple(other if b == turn else b for b in program.barriers)
    return rewritten(program, of, barriers=barriers)


def shuffled_by_one_copy() -> Program:
    """The other copy reads of lanes what nobody sent."""

    def of(s: Statement) -> Statement:
        alone = isinstance(s, Do) and s.instruction.unit == "shuffle"
        return When(var("w"), 1, (s,)) if alone else s

    return rewritten(base("fa3", 2), of)


def waited_by_one_copy() -> Program:
    """One copy multiplies with values before they are there."""

    def of(s: Statement) -> Statement:
        alone = isinstance(s, Wait) and s.barrier.name == "v_full"
        return When(var("w"), 1, (s,)) if alone else s

    return rewritten(base("fa3", 2), of)


def released_twice_by_one_copy() -> Program:
    """The arrivals are as many as they should be, and of one copy."""

    def of(s: Statement) -> Statement:
        alone = isinstance(s, Arrive) and s.barrier.name == "k_empty"
        return When(var("w"), 1, (s, s)) if alone else s

    return rewritten(base("fa3", 2), of)


def sums_begun_by_a_product() -> Program:
    """A tile without keys has no product, and stores sums that nobody began."""

    def of(s: Statement) -> Statement | tuple[Statement, ...]:
        if not isinstance(s, Do) or s.write.buffer.name != "acc":
            return s
        if s.instruction.name == "wgmma":
            return replace(s, fresh=var("kt"))
        return () if s.instruction.name == "mov" else s

    return rewritten(base("fa2"), of)


def tiles_left_out_by_all() -> Program:
    """All roles take every second tile; phases then are passed over."""
    return rewritten(base("fa2"), lambda s: replace(s, step=2) if isinstance(s, ForTile) else s)


def written_under_a_predicate() -> Program:
    """The first maximum is set where a predicate holds, and that keeps what nobody wrote."""

    def of(s: Statement) -> Statement:
        if isinstance(s, Do) and re.search(r"^top.* = mov\(-", str(s)):
            return replace(s, where=Predicate(Affine(), bound=Affine(1)))
        return s

    return changed(base("fa2"), rewritten(base("fa2"), of))


def maximum_under_a_predicate() -> Program:
    """The maximum is that of the first block alone."""

    def of(s: Statement) -> Statement:
        if isinstance(s, Do) and s.variant == "max" and "far" not in str(s):
            return replace(s, where=Predicate(var("kt"), bound=Affine(1)))
        return s

    return changed(base("fa2"), rewritten(base("fa2"), of))


def mask_of_one_key_more() -> Program:
    """A query sees the key behind its own."""
    return where(base("fa2"), lambda w: replace(w, bound=w.bound + -1))


def mask_of_other_threads() -> Program:
    """The predicate counts quads where lanes hold other keys."""
    return where(base("fa2"), lambda w: replace(w, thread=tuple(reversed(w.thread))))


def no_mask() -> Program:
    """All keys of the last blocks are seen."""
    return where(base("fa2"), lambda w: None)


def running_number_in_a_predicate() -> Program:
    """A law does not know how many steps the tiles before had."""
    return where(base("fa2"), lambda w: replace(w, origin=w.origin + var("tile", "trips")))


def running_number_in_a_place() -> Program:
    """Nor where a load is that begins at them."""

    def of(s: Statement) -> Statement:
        if not isinstance(s, Do) or not s.signal or s.write.buffer.name != "smem_k":
            return s
        (read,) = s.reads
        assert isinstance(read, Access)
        first, *rest = read.origin
        origin = (first + var("tile", "trips"), *rest)
        return replace(s, reads=(replace(read, origin=origin),))

    return rewritten(base("fa2"), of)


def loop_in_a_predicate_s_bound() -> Program:
    """A bound is the same for all values that are compared with it."""
    return where(base("fa2"), lambda w: replace(w, bound=w.bound + var("kt")))


def dropped(program: Program, what: str) -> Program:
    """The program without the first such statement, which is found by regular expression."""
    found = False

    def of(s: Statement) -> Statement | tuple[Statement, ...]:
        nonlocal found
        if found or isinstance(s, Block) or not re.search(what, str(s)):
            return s
        found = True
        return ()

    return changed(program, rewritten(program, of))


def turned(program: Program, kind: type[Arrive | Wait], more: int) -> Program:
    """The program whose copies give, or wait for, another turn."""

    def of(s: Statement) -> Statement:
        if isinstance(s, kind) and s.barrier.name == "turn":
            return replace(s, index=s.index + more)
        return s

    return changed(program, rewritten(program, of))


def turns_that_nobody_gives() -> Program:
    """The copy that multiplies keeps its turn."""
    return dropped(base("fa3 by mbarriers", 2), "^arrive turn")


def turns_of_another_step() -> Program:
    """Copies wait for the turn of the step before: both multiply at once, and a phase is missed."""
    return turned(base("fa3 by mbarriers", 2), Wait, -2)


def turn_of_its_own() -> Program:
    """A copy waits until its own turn is over."""
    return turned(base("fa3 by mbarriers", 2), Wait, 1)


def turns_in_a_ring_of_two() -> Program:
    """A thread may still wait for a turn when that barrier's next one ends."""
    program = base("fa3 by mbarriers", 2)
    turn = next(b for b in program.barriers if b.name == "turn")
    other = replace(turn, stages=2)

    def of(s: Statement) -> Statement:
        if isinstance(s, Wait | Arrive) and s.barrier == turn:
            return replace(s, barrier=other)
        return s

    barriers = tuple(other if b == turn else b for b in program.barriers)
    return rewritten(program, of, barriers=barriers)


def weights_without_a_fence() -> Program:
    """A product may read what lay in shared memory before the weights."""
    return dropped(base("weights through memory", 2), "^fence.proxy.async")


def weights_of_a_warp() -> Program:
    """A product reads weights that other warps have not written."""
    return dropped(base("weights through memory", 2), "^bar.sync")


def weights_under_a_product() -> Program:
    """Weights are stored while the product of the step before reads the old ones."""
    return moved(base("weights through memory", 2), "^loop span.*stmatrix|for span", "wait_group 0")


def queries_released_by_a_warp() -> Program:
    """Queries are released that other warps have not read."""
    return dropped(base("queries in registers", 2), "^bar.sync")


def queries_read_before_they_are_there() -> Program:
    """Nobody waits for the queries of a tile."""
    return dropped(base("queries in registers", 2), "^wait q_full")


def weights_of_another_step() -> Program:
    """Values meet the weights of the step before theirs."""

    program = base("weights through memory")

    def of(s: Statement) -> Statement:
        if not isinstance(s, Do) or s.instruction.name != "wgmma" or s.write.buffer.name != "acc":
            return s
        (weights, *rest) = s.reads
        assert isinstance(weights, Access)
        return replace(s, reads=(replace(weights, index=weights.index + -1), *rest))

    return changed(program, rewritten(program, of))


WRONG: dict[Callable[[], Program], str] = {
    rescaled_under_a_product: "race",
    rounded_under_a_product: "race",
    rounded_behind_the_fence: "proxy",
    masked_under_a_product: "race",
    group_that_a_guard_leaves_out: "race",
    one_group_left_pending: "race",
    turns_at_the_number_of_a_role: "deadlock",
    shuffled_by_one_copy: "unwritten",
    waited_by_one_copy: "race",
    released_twice_by_one_copy: "race",
    sums_begun_by_a_product: "unwritten",
    tiles_left_out_by_all: "parity",
    written_under_a_predicate: "unwritten",
    maximum_under_a_predicate: "computes",
    turns_that_nobody_gives: "balance",
    turns_of_another_step: "parity",
    turn_of_its_own: "deadlock",
    turns_in_a_ring_of_two: "parity",
    weights_without_a_fence: "proxy",
    weights_of_a_warp: "race",
    weights_under_a_product: "race",
    weights_of_another_step: "stale",
    queries_released_by_a_warp: "race",
    queries_read_before_they_are_there: "unwritten",
    mask_of_one_key_more: "computes",
    mask_of_other_threads: "computes",
    no_mask: "computes",
}

REFUSED: dict[Callable[[], Any], str] = {
    running_number_in_a_predicate: "running number",
    running_number_in_a_place: "running number",
    loop_in_a_predicate_s_bound: "predicate's bound names 'kt'",
}
