"""Clocks: what comes before what, where one event more or less makes the difference."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tinygpu.access_map import var
from tinygpu.agents import unfold
from tinygpu.clocks import Order
from tinygpu.conditions import hazards
from tinygpu.contributions import sends
from tinygpu.images import images
from tinygpu.ordering import order
from tinygpu.program import Affine
from tinygpu.protocol import Body, Crew, Protocol, Tiles
from tinygpu.synchronization import Arrive, Barrier, Wait

AT = Affine()


@given(st.data())
def test_all_are_before_if_each_is(data: Any) -> None:
    """An agent's own events come before its later ones, whatever its clock's own entry is."""
    count = st.integers(0, 3)
    clocks = data.draw(st.lists(st.tuples(count, count), min_size=4, max_size=4))
    found = Order([clocks, clocks], {}, {}, [])
    place = data.draw(st.tuples(st.integers(0, 1), count))
    events = data.draw(st.lists(st.tuples(st.integers(0, 1), count), max_size=3))
    known = [at < (place[1] if n == place[0] else clocks[place[1]][n]) for n, at in events]
    assert [found.before([event], place) for event in events] == known
    assert found.before(events, place) == any(known)
    assert found.all_before(events, place) == all(known)


def test_every_event_that_is_told_is_counted() -> None:
    """Also the next one of an agent of which all before it are known."""
    one, two = Barrier("one", 1, 1), Barrier("two", 1, 1)
    tell = Crew("tell", 1, 1, "", (Arrive(one, AT), Arrive(two, AT)))
    hear = Crew("hear", 1, 1, "", (Wait(one, AT), Wait(two, AT), Arrive(one, AT + 1)))
    agents = unfold(Protocol((tell, hear), (), False, ()), {"tiles": 1})
    alone = images(())
    found = order(agents, alone, sends(agents, alone))
    known = [[found.before([(0, i)], (1, j)) for i in range(2)] for j in range(3)]
    assert known == [[False, False], [True, False], [True, True]]


def late(to: str) -> Protocol:
    """A thread of each CTA that arrives twice at a barrier of its own, and waits for the second."""
    alone, i = Barrier("own", 1, 1 if to == "cta" else 2), var("i", 2)
    body: Body = (Arrive(alone, i, to=to), Arrive(alone, i + 1, to=to), Wait(alone, i + 1))
    crew = Crew("one", 1, 1, "", (Tiles("t", "i", Affine(), 1, body),))
    return Protocol((crew,), (("m", 2),), True, ())


def test_arrivals_elsewhere_are_on_their_way() -> None:
    """A phase is complete behind its own thread's arrivals, but not behind ones sent far."""
    assert "parity" not in {h.kind for h in hazards(late("cta"), {"tiles": 2})}
    assert "parity" in {h.kind for h in hazards(late("cluster"), {"tiles": 2})}
