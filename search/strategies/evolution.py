"""``evolution``: the best of a few living schedules has a child; the oldest dies.

A child is a single change of its parent, drawn at random.  All live equally long, so that one that
was fast by accident does not stay.

Source: E. Real et al., "Regularized Evolution for Image Classifier Architecture Search", 2019.
"""

from __future__ import annotations

from itertools import islice

import numpy as np

from tinygpu.search.strategies.descent import starts
from tinygpu.search.strategies.walk import Domain, Steps

__all__ = ["evolution"]

LIVING, ASKED = 8, 3
"""How many live, and of how many the best is a parent."""


def evolution(domain: Domain, rng: np.random.Generator) -> Steps:
    """Ask for the first ones, then for one child after the other."""
    living = list(islice(starts(domain, rng), LIVING))
    found = yield living
    while True:
        asked = [living[i] for i in rng.integers(len(living), size=ASKED)]
        near = domain.near(min(asked, key=found.__getitem__))
        if not near:
            return
        child = near[int(rng.integers(len(near)))].schedule
        found = yield [child]
        living = [*living[1:], child]
