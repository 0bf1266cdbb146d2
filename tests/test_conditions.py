"""Conditions on barriers by hand: what each asks, and what it does not."""

from __future__ import annotations

import pytest

from tinygpu.agents import TILES
from tinygpu.conditions import hazards
from tinygpu.program import Affine
from tinygpu.protocol import Body, Crew, Protocol
from tinygpu.synchronization import Arrive, Barrier, Sync, Wait

TWO = Barrier("two", 1, 2)
TELL, HEAR = Arrive(TWO, Affine()), Wait(TWO, Affine())


@pytest.mark.parametrize(
    ("body", "wrong"),
    [
        ((TELL,), ""),
        ((TELL, TELL), ""),
        ((TELL, TELL, TELL), "gets 3 arrivals, and needs 2"),
        ((TELL, HEAR), "gets 1 arrivals, and needs 2"),
        ((TELL, Arrive(TWO, Affine(1))), "phase 0 of two[0] gets 1 arrivals"),
        ((TELL, TELL, Arrive(TWO, Affine(1))), ""),
        ((TELL, Arrive(TWO, Affine(), 16)), ""),
        ((TELL, Arrive(TWO, Affine(), 16), HEAR), "expects 16 B, and 0 B land"),
        ((Arrive(TWO, Affine(-1)),), "before the first"),
    ],
)
def test_a_phase_that_matters_gets_what_it_needs(body: Body, wrong: str) -> None:
    """One that is waited for, or not the last; the last may lack something, and never has more."""
    protocol = Protocol((Crew("one", 1, 1, "", body),), (), False, ())
    texts = [str(h) for h in hazards(protocol, {TILES: 1}) if h.kind == "balance"]
    assert len(texts) == bool(wrong)
    assert wrong in "".join(texts)


def late(to: str) -> Protocol:
    """A thread of each CTA arrives twice at a barrier; when all have, it waits for the second."""
    alone = Barrier("own", 1, 1 if to == "cta" else 2)
    arrive = [Arrive(alone, Affine(i), to=to) for i in (0, 1)]
    crew = Crew("one", 1, 1, "", (*arrive, Sync(0, "cluster"), Wait(alone, Affine(1))))
    return Protocol((crew,), (("m", 2),), False, ())


def test_arrivals_elsewhere_are_on_their_way() -> None:
    """A phase is complete behind arrivals at the own CTA's barrier, not behind ones sent far."""
    for to, found in (("cta", False), ("cluster", True)):
        texts = [str(h) for h in hazards(late(to), {TILES: 1})]
        assert any("on the parity of an older phase" in text for text in texts) == found, texts
