"""Named barriers (bar.sync and bar.arrive with numbers) and the checker, without the judge.

The terms and their edits are those of ``tests/test_named_barriers.py``, where the interpreter and
the emulator find each edit wrong.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from tests.edited import ruling
from tests.hopper_terms import rewritten
from tests.test_named_barriers import (
    BACK,
    GIVE,
    LOOP,
    MEETING,
    MUTANTS,
    TURN,
    WRONG,
    K,
    T,
    W,
    fa3,
    meeting,
    put,
    turns,
)
from tests.warpgroup_terms import computed, held
from tinygpu.checker.make import certified
from tinygpu.checker.written import verified, written
from tinygpu.term.program import Affine, Arrive, Elect, Program, Statement, Wait, When


def test_two_warps_that_take_turns_are_accepted() -> None:
    assert ruling(turns()).accepted
    assert ruling(turns(turn=replace(TURN, number=14))).accepted


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_turn_is_refused(name: str) -> None:
    assert ruling(MUTANTS[name]()).word == "refused"


def stored(program: Program) -> Program:
    """The sums of a tile are read before the queries' slot is given back."""

    def one(s: Statement) -> Statement | tuple[Statement, ...]:
        gives = isinstance(s, Elect) and isinstance(s.body[0], Arrive) and s.body[0]
        if not gives or gives.barrier.name != "q_empty":
            return s
        return computed(held("o", "f32"), T), s

    return rewritten(program, one)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_the_turns_of_flash_attention_3_are_accepted(depth: int) -> None:
    """As the term stands nobody reads a tile's sums before the next ones: they are lost."""
    assert ruling(stored(fa3(depth=depth))).accepted
    assert "that nobody read" in ruling(fa3(depth=depth)).line


@pytest.mark.parametrize("name", WRONG)
def test_wrong_turns_of_flash_attention_3_are_refused(name: str) -> None:
    found = ruling(stored(WRONG[name]()))
    assert found.word == "refused"
    assert "that nobody read" not in found.line


def test_two_roles_that_meet() -> None:
    wait = (Wait(MEETING, K),)
    assert ruling(meeting(giver=wait, taker=wait)).accepted
    assert ruling(meeting(giver=wait, taker=wait, more=32)).word == "refused"
    taker = (Wait(MEETING, K), Arrive(BACK, K))
    giver = (Arrive(MEETING, K), Wait(BACK, K))
    assert ruling(meeting(giver=giver, taker=taker)).accepted
    again = meeting(
        giver=(*giver, Arrive(MEETING, K + 1)), taker=taker,
        first=(Arrive(MEETING, Affine()),), more=96,
    )  # fmt: skip
    assert "again" in ruling(again).line


@pytest.mark.parametrize(
    ("turn", "line"),
    [
        (replace(TURN, number=15), "there is no bar.sync 16"),
        (replace(TURN, number=0), "meet at bar.sync 1"),
        (replace(TURN, number=2), "meet at bar.sync 2"),
        (replace(TURN, arrivals=48), "counts 48 arrivals"),
        (replace(TURN, arrivals=96), "waits for ever"),
    ],
    ids=str,
)
def test_numbers_and_counts(turn: object, line: str) -> None:
    found = ruling(turns(turn=turn))  # type: ignore[arg-type]
    assert found.word == "refused"
    assert line in found.line


def test_one_thread_does_not_arrive_for_its_warp() -> None:
    """Also where the count would be right: 64 are counted, of which 1 and 63 arrive."""
    first = When(-1 * W + 1, 1, (Elect((Arrive(TURN, Affine()),)),))
    one = turns(put(LOOP, GIVE, Elect((GIVE,))), (first,))
    assert ruling(one).word == "refused"


def test_a_certificate_without_messages_is_refused() -> None:
    """Also where it says that the phase is over for which who has not come yet would wait."""
    certificate, _ = certified(turns())
    assert certificate is not None
    tree = json.loads(written(turns(), certificate))
    for node in tree["nodes"][1:]:
        node["messages"] = []
    assert verified(turns(), json.dumps(tree)).word == "refused"
    for node in tree["nodes"][1:]:
        node["open"] = [[stage + 2 for stage in stages] for stages in node["open"]]
        node["counts"] = []
    assert verified(turns(), json.dumps(tree)).word == "refused"
