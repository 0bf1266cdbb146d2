"""Races by hand: who may write what, with nothing but one statement."""

from __future__ import annotations

import pytest

from tinygpu.agents import TILES
from tinygpu.conditions import hazards
from tinygpu.program import Affine
from tinygpu.protocol import Act, Crew, Protocol, Ring, Touch
from tinygpu.synchronization import Fence, Sync


def written(share: str, copies: int, *, overlap: bool = False) -> set[str]:
    ring = Ring("x", 1, "copy" if share == "copy" else "cta")
    write = Act("st", "generic", (Touch(ring, Affine(), True, overlap),))
    crew = Crew("all", 128, copies, "w", (write,))
    return {h.kind for h in hazards(Protocol((crew,), (), False, ()), {TILES: 1})}


@pytest.mark.parametrize(
    ("share", "copies", "overlap", "found"),
    [
        ("cta", 1, False, set()),
        ("cta", 1, True, {"race"}),
        ("cta", 2, False, {"race"}),
        ("copy", 2, False, set()),
        ("copy", 2, True, {"race"}),
    ],
)
def test_one_statement_writes_cells_of_its_own(
    share: str, copies: int, overlap: bool, found: set[str]
) -> None:
    """Its threads have their own cells of a slot, if they do not overlap; two copies do not."""
    assert written(share, copies, overlap=overlap) == found


SUMS = Ring("sums", 1, "thread")
PRODUCT = Act("wgmma", "product", (Touch(SUMS, Affine(), True),), fresh=Affine())
CLEAR = Act("mov", "generic", (Touch(SUMS, Affine(), True),))
FENCE = Fence("wgmma")


@pytest.mark.parametrize(
    ("body", "legal"),
    [
        ((CLEAR, FENCE, PRODUCT), True),
        ((FENCE, CLEAR, PRODUCT), False),
        ((CLEAR, PRODUCT), False),
        ((CLEAR, FENCE, Sync(), PRODUCT), True),
        ((CLEAR, FENCE, CLEAR, PRODUCT), False),
        ((CLEAR, FENCE, CLEAR, FENCE, PRODUCT), True),
    ],
)
def test_a_product_follows_a_fence_after_what_touched_its_sums(
    body: tuple[Act | Fence | Sync, ...], legal: bool
) -> None:
    crew = Crew("all", 128, 1, "", body)
    found = {h.kind for h in hazards(Protocol((crew,), (), False, ()), {TILES: 1})}
    assert ("proxy" not in found) == legal
