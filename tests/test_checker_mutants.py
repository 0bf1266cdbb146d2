"""Edits of right terms: what the checker accepts of them is bad in no order.

The oracles are the enumeration of all interleavings (``tests/interleavings.py``), which knows no
clocks, and the interpreter, which executes terms in drawn orders; never the judge.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given

from tests.ampere_terms import term as ampere
from tests.async_protocols import TILE, by_hand
from tests.blackwell_terms import small as small_tensor
from tests.edited import (
    edited_pair,
    edits_of,
    faults_of,
    grouped,
    of_order,
    protocols,
    ruling,
)
from tests.hopper_terms import term as hopper
from tests.hopper_wrong import WRONG
from tests.hostile_attention import WRONG as HOSTILE
from tests.hostile_terms import JUDGE
from tests.interleavings import faults
from tests.sample import SOAK, draws, some
from tests.small_programs import ZERO, copy, get, pipelined, put, small
from tests.test_blackwell_order import FAULTS
from tinygpu.meaning.interpret import check
from tinygpu.term.program import (
    Affine,
    Commit,
    For,
    Program,
    Statement,
    Sync,
    WaitGroup,
    When,
    var,
)  # fmt: skip

Body = tuple[Statement, ...]
K = var("kt")

# All pairs of edits of small protocols, against every interleaving


def plain(stages: int) -> tuple[Body, Body, Body]:
    return (
        (ZERO,),
        (put(stages, K), Sync(), get(stages, K), Sync()),
        (),
    )  # fmt: skip


def ahead(stages: int) -> tuple[Body, Body, Body]:
    """Copies one step ahead, one barrier a step."""
    return (
        (ZERO, copy(stages, 0), Commit()),
        (
            WaitGroup(0), Sync(), When(K + 1, "trips", (copy(stages, K + 1),)), Commit(),
            get(stages, K),
        ),
        (WaitGroup(0),),
    )  # fmt: skip


def _moved_by(by: int, form: Affine) -> Affine:
    return form + by if form.terms else form


def program(parts: tuple[Body, Body, Body], stages: int) -> Program:
    start, loop, end = parts
    return small(stages, (*start, For("kt", "trips", loop), *end))


def edits(body: Body) -> list[Body]:
    """Drop, double, swap, shift by one, change a count."""
    found: list[Body] = []
    for i, s in enumerate(body):
        before, after = body[:i], body[i + 1 :]
        found += [(*before, *after), (*before, s, s, *after)]
        if after:
            found.append((*before, after[0], s, *after[1:]))
        for by in (1, -1):
            inner = s.body[0] if isinstance(s, When) else s
            shifted = inner.with_forms(partial(_moved_by, by))
            if shifted != inner:
                whole = When(s.index, s.bound, (shifted,)) if isinstance(s, When) else shifted
                found.append((*before, whole, *after))
            if isinstance(s, When):
                found.append((*before, When(s.index + by, s.bound, s.body), *after))
            if isinstance(s, WaitGroup):
                found.append((*before, WaitGroup(s.pending + by), *after))
    return found


@pytest.mark.parametrize(
    ("make", "stages"),
    [(plain, 1), (plain, 2), (ahead, 2), (ahead, 3)],
    ids=["plain 1", "plain 2", "ahead 2", "ahead 3"],
)
def test_edits_that_are_accepted_are_bad_in_no_interleaving(
    make: Callable[[int], tuple[Body, Body, Body]], stages: int
) -> None:
    """Each edit of the loop, and pairs of them; up to four trips."""
    start, loop, end = make(stages)
    once = edits(loop)
    twice = [two for one in once for two in edits(one)]
    seen: Counter[str] = Counter()
    for body in dict.fromkeys([loop, *once, *some(twice, 2)]):
        term = program((start, body, end), stages)
        word = ruling(term).word
        seen[word] += 1
        if word == "accepted":
            for trips in range(1, 5):
                assert not faults(term, {"trips": trips, "rows": 1}), (str(term), trips)
    assert seen["accepted"] > 10
    assert seen["refused"] > 50


@given(pipelined())
def test_drawn_pipelines_that_are_accepted_are_bad_in_no_interleaving(term: Program) -> None:
    if ruling(term).accepted:
        for trips in range(1, 5):
            assert not faults(term, {"trips": trips, "rows": 1}), trips


# Protocols with mbarriers, against the interpreter


def test_protocols_that_are_accepted_after_an_edit_are_not_found_faulty() -> None:
    """One edit of each protocol by hand; a part of them, at a soak all."""
    terms = [(p.name, *edit) for p in some(by_hand(), 7) for edit in edits_of(p)]
    seen: Counter[str] = Counter()
    for who, name, make in some(terms, 5):
        term = make()
        word = ruling(term).word
        seen[word] += 1
        if word == "accepted":
            for trips in (1, 2, 5):
                found = of_order(check(term, {"i": TILE * trips}, seeds=(0, 1)))
                assert not found, (who, name, trips, str(found[0]))
    assert seen["accepted"] > 10
    assert seen["refused"] > 3 * seen["accepted"]


def test_pairs_of_edits_that_are_accepted_are_not_found_faulty() -> None:
    """Drawn pairs of edits of each protocol; ``benchmarks.certified_edits`` has more."""
    number, seen = random.Random(34), Counter[str]()
    for which in range(len(protocols())):
        for _ in range(draws(2, 400)):
            pair = edited_pair(number.randrange, which)
            word = ruling(pair.term).word
            seen[word] += 1
            if word == "accepted":
                found = faults_of(pair)
                assert not found, (protocols()[which].term.name, pair.names, str(found[0]))
    assert seen["refused"] > 50
    assert seen["accepted"] > 1


SMALL = {
    "hopper ring": (hopper("ring", stages=2), {"m": 128, "n": 128, "k": 192}),
    "ampere ring": (ampere("ring"), {"m": 128, "n": 128, "k": 96}),
}


@pytest.mark.parametrize("name", SMALL)
def test_terms_of_machines_that_are_accepted_after_an_edit(name: str) -> None:
    term, sizes = SMALL[name]
    assert ruling(term).accepted
    seen: Counter[str] = Counter()
    accepted = []
    for label, make in some(edits_of(term), 4):
        other = make()
        word = ruling(other).word
        seen[word] += 1
        accepted += [(label, other)] * (word == "accepted")
    for label, other in accepted[: draws(4, 400)]:
        found = of_order(check(other, sizes, seeds=(0,)))
        assert not found, (label, str(found[0]))
    assert seen["refused"] > seen["accepted"] or not SOAK


# Tables of faults


@pytest.mark.parametrize("make", HOSTILE, ids=lambda make: make.__name__)
def test_hostile_terms_of_attention_are_not_accepted(make: Callable[[], Program]) -> None:
    """But for those that are in order and compute something else."""
    assert ruling(make()).word == "refused" or HOSTILE[make] == "computes"


def test_a_tile_without_steps_moves_a_ring_of_stores() -> None:
    """It stores nothing, and its one chunk counts: the next tile's is where the last one's was."""
    assert ruling(grouped()).accepted
    odd = grouped(columns=16)
    assert ruling(odd).line.startswith("race")
    found = check(odd, {"g": 5, "m": 700, "n": 24, "k": 136}, seeds=(0, 1, 2))
    assert "race" in {f.kind for f in found}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_of_tensor_memory_are_not_accepted(name: str) -> None:
    start, change = FAULTS[name]
    assert ruling(small_tensor(start)).accepted
    assert ruling(change(small_tensor(start))).word == "refused"


@pytest.mark.parametrize("hostile", JUDGE, ids=str)
def test_hostile_terms_of_order_are_not_accepted(hostile: object) -> None:
    make = hostile.make  # type: ignore[attr-defined]
    assert not ruling(make()).accepted


BROKEN = [
    (law, text, term)
    for law, text, term in WRONG
    if law in ("issuers", "collective", "mbarrier", "fill_tiles")
    or (law, text[:3]) in (("multicast", "no "), ("multicast", "is "), ("store_once", "3; "))
]


@pytest.mark.parametrize(("law", "text", "term"), BROKEN, ids=lambda x: str(x)[:24])
def test_terms_of_hopper_that_break_the_order_are_not_accepted(
    law: str, text: str, term: Program
) -> None:
    assert not ruling(term).accepted, (law, text)
