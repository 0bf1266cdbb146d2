"""Clocks: what comes before what, where one event more or less makes the difference."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tinygpu.agents import TILES, unfold
from tinygpu.clocks import Order
from tinygpu.contributions import sends
from tinygpu.images import images
from tinygpu.ordering import order
from tinygpu.program import Affine
from tinygpu.protocol import Crew, Protocol
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
    agents = unfold(Protocol((tell, hear), (), False, ()), {TILES: 1})
    alone = images(())
    found = order(agents, alone, sends(agents, alone))
    known = [[found.before([(0, i)], (1, j)) for i in range(2)] for j in range(3)]
    assert known == [[False, False], [True, False], [True, True]]
