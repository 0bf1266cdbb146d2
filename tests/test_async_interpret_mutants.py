"""Every fault of an asynchronous program is found: hopper's, with one thing changed at a time."""

from __future__ import annotations

from typing import Any

import pytest

from tests.async_mutants import mutants
from tests.sample import draws, some
from tests.test_async_interpret import CLUSTER, TURNS, hopper
from tinygpu.meaning.interpret import check

HARMLESS = (
    "double wait ",
    "double wgmma.",
    "double bar.sync",
    "double fence.proxy.async",
    "double cp.async.bulk.",  # an empty group more: the waits cover as much or more
    "full cp.async.bulk.",
    "pending- ",
    "swap wait full",  # with wgmma.fence
    "swap arrive full",  # bytes may land before they are expected
    "swap smem_a",  # the order of two loads
    "stages+ ",
    "together cp.async.bulk.wait_group",  # the others have no such groups
    "alone arrive ",  # is by one thread already
    "alone wait empty",
    "alone cp.async.bulk.",
    "alone wgmma.wait_group",  # the others do not touch what it guards
)
"""Mutants that are right: they wait for more, do the same twice, or change what has no order."""

OF_ONE_CTA = (
    "near ",
    "unsent ",
    "stages- barrier turn",  # all threads of a copy pass before the next turn
)
OF_CLUSTERS = (
    "unsent smem_a",  # there is one CTA along that axis
    "bound+ -1*kt_on",  # one group in flight is there at every trip count
    "bound- -1*kt_on",  # .. and at five
    "later wait empty",  # two stages do
    "double barrier.cluster",  # threads that have left are not waited for
    "alone barrier.cluster",
    "drop barrier.cluster of producer",  # consumers outlive what producers send
)


@pytest.mark.parametrize(
    ("point", "sizes", "seeds", "harmless"),
    [
        (
            {**TURNS, "in_flight": 2},
            ({"m": 448, "n": 16, "k": 64}, {"m": 192, "n": 16, "k": 200}),
            (6, 1),  # one cluster takes all tiles, first threads run first; two, and they run last
            OF_ONE_CTA,
        ),
        (CLUSTER, ({"m": 256, "n": 16, "k": 264},), (0,), OF_CLUSTERS),
    ],
    ids=["pingpong", "cluster"],
)
def test_every_mutant_but_the_harmless_is_found(
    point: dict[str, Any],
    sizes: tuple[dict[str, int], ...],
    seeds: tuple[int, ...],
    harmless: tuple[str, ...],
) -> None:
    """At one trip a tile, and at more trips than there are stages."""
    program, missed, count = hopper(point), [], 0
    assert all(check(program, s) == () for s in sizes)
    for name, mutant in some(mutants(program), 3):
        found = any(check(mutant, s, seeds=(seed,)) for seed, s in zip(seeds, sizes, strict=True))
        count += found
        if not found and not name.startswith((*HARMLESS, *harmless)):
            missed.append(name)
    assert missed == []
    assert count >= draws(25, 85)
