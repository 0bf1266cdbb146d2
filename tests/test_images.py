"""CTAs that are alike: asking one of them is asking all, and where that may not be done."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.async_mutants import moved, mutants
from tests.hopper_terms import term
from tinygpu.access_map import var
from tinygpu.agents import TILES, unfold
from tinygpu.conditions import _found, hazards
from tinygpu.contributions import sends
from tinygpu.images import along, even_axes, images
from tinygpu.ordering import order
from tinygpu.program import Affine
from tinygpu.protocol import Act, Crew, Guard, Loop, Node, Protocol, Ring, Touch
from tinygpu.protocol_extraction import protocol_of
from tinygpu.synchronization import Arrive, Barrier, Sync, Wait
from tinygpu.witness import Look

SMALL: dict[str, Any] = {
    "stages": 2, "in_flight": 0, "tile_m": 64, "tile_n": 64, "store_n": 64, "consumers": 1,
}  # fmt: skip
CLUSTERS = {"row": (2, 1), "square": (2, 2), "column": (1, 4)}


@cache
def protocols(name: str) -> tuple[tuple[str, Protocol], ...]:
    """A cluster's protocol, and what becomes of it when one statement is changed."""
    m, n = CLUSTERS[name]
    program = term("cluster", cluster_m=m, cluster_n=n, **SMALL)
    changed = [("unchanged", program), *mutants(program), *moved(program)]
    return tuple((what, protocol_of(p)) for what, p in changed)


def kinds(protocol: Protocol, point: dict[str, int], even: frozenset[str]) -> set[str]:
    return {h.kind for h in _found(Look(protocol, point, even), observed=False)}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_first_ctas_have_the_faults_of_all(data: Any) -> None:
    """Of each kind; and what is reported names whoever it would without images."""
    what, protocol = data.draw(
        st.sampled_from(protocols(data.draw(st.sampled_from(list(CLUSTERS)))))
    )
    point = {TILES: data.draw(st.integers(0, 3)), "trips": data.draw(st.integers(1, 3))}
    even = even_axes(protocol)
    assert even
    assert kinds(protocol, point, even) == kinds(protocol, point, frozenset()), what
    whole = _found(Look(protocol, point), observed=False)
    assert list(map(str, hazards(protocol, point))) == list(map(str, whole))


@pytest.mark.parametrize("name", CLUSTERS)
def test_clocks_of_images_are_clocks(name: str) -> None:
    """The walk of first CTAs alone finds the clocks that the walk of all does."""
    protocol = protocols(name)[0][1]
    agents = unfold(protocol, {TILES: 2, "trips": 3})
    found = []
    for even in (frozenset[str](), even_axes(protocol)):
        seen = images(protocol.cluster, even)
        found.append(order(agents, seen, sends(agents, seen)).clocks)
    for number, (one, other) in enumerate(zip(*found, strict=True)):
        assert len(one) == len(other) == len(agents[number].events) + 1
        for a, b in zip(one, other, strict=True):
            assert [*a[:number], *a[number + 1 :]] == [*b[:number], *b[number + 1 :]]


@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.data())
def test_steps_along_even_axes_form_a_group(extents: list[int], data: Any) -> None:
    """Each moves a CTA to its first, keeps apart what was, and takes axes to axes."""
    cluster = tuple((f"r{i}", extent) for i, extent in enumerate(extents))
    even = frozenset(n for n, _ in cluster if data.draw(st.booleans()))
    found = images(cluster, even)
    for cta, seen in enumerate(found.seen):
        assert sorted(seen) == list(range(len(found.first)))
        assert seen[cta] == found.first[cta] == found.first[found.first[cta]]
        assert [found.first[c] for c in seen] == list(found.first)
        for axis, _ in cluster:
            for other in range(len(seen)):
                moved_ = {seen[c] for c in along(cluster, other, axis)}
                assert moved_ == set(along(cluster, seen[other], axis))


X = Ring("x", 1, "cta")
BAR = Barrier("b", 1, 1)


def with_node(*body: Node) -> Protocol:
    return Protocol((Crew("all", 1, 1, "", body),), (("m", 2), ("n", 2), ("one", 1)), False, ())


UNEVEN: list[tuple[Node, set[str]]] = [
    (Guard(var("m"), 1, (Arrive(BAR, Affine()),)), {"n"}),
    (Wait(BAR, var("n")), {"m"}),
    (Arrive(replace(BAR, home="m"), Affine()), {"n"}),
    (Act("st", "generic", (Touch(replace(X, home="n"), Affine(), True),)), {"m"}),
    (Act("ld", "load", (), (replace(BAR, home="n"), Affine())), {"m"}),
    (Act("mma", "mma", (), None, "m"), {"n"}),
    (Arrive(BAR, Affine(), to="m n", after="tcgen05"), set()),
    (Arrive(BAR, Affine(), to="cluster", after="tcgen05"), set()),
    (Arrive(BAR, Affine(), to="cluster"), {"m", "n"}),
    (Act("ld", "load", (), (BAR, Affine()), "m"), {"m", "n"}),
]


@pytest.mark.parametrize(
    ("node", "even"), UNEVEN, ids=lambda v: "".join(sorted(v)) if isinstance(v, set) else str(v)
)
def test_axes_that_a_program_singles_out_are_not_even(node: Node, even: set[str]) -> None:
    assert even_axes(with_node(node)) == even


def test_ctas_that_differ_are_all_asked() -> None:
    """A fault of the CTA at 1 alone is seen, and a wait for what its image would have sent."""
    read = Act("read", "generic", (Touch(X, Affine(), False),))
    crew = Crew("all", 1, 1, "", (Guard(-1 * var("m"), 0, (read,)),))
    found = hazards(Protocol((crew,), (("m", 2), ("n", 2)), False, ()), {TILES: 1})
    assert {h.kind for h in found} == {"unwritten"}
    assert found[0].first[0].endswith("CTA 1")


def pair(to: str, arrivals: int) -> Protocol:
    """Each producer loads for both CTAs, after waiting for those that consumers tell ``to``."""
    full, empty = Barrier("full", 1, 1), Barrier("empty", 1, arrivals)
    k, ring = var("k"), Ring("x", 1, "cta")
    half = Touch(ring, k, True, part=Fraction(1, 2))
    load = Act("load", "load", (half,), (full, k), "m", 1)
    read = Act("read", "generic", (Touch(ring, k, False),))
    make = Loop("k", 0, "trips", (Wait(empty, k + -1), Arrive(full, k, 2), load))
    take = Loop("k", 0, "trips", (Wait(full, k), read, Arrive(empty, k, to=to)))
    crews = (
        Crew("producer", 1, 1, "", (make, Sync(0, "cluster"))),
        Crew("consumer", 128, 1, "", (take, Sync(0, "cluster"))),
    )
    return Protocol(crews, (("m", 2),), False, (("trips", 1),))


def test_a_load_is_issued_by_whom_it_is_sent() -> None:
    """What a producer overwrites in the other CTA, it has to know to be read there."""
    even = frozenset("m")
    assert even_axes(pair("cluster", 256)) == even
    for trips in (1, 2, 3):
        point = {TILES: 1, "trips": trips}
        assert not hazards(pair("cluster", 256), point)
        found = {"race", "early"} if trips > 1 else set()
        assert kinds(pair("cta", 128), point, even) == found
        assert kinds(pair("cta", 128), point, frozenset()) == found
