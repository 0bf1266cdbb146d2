"""``random`` draws schedules uniformly; ``model`` takes the model's order, and then draws."""

from __future__ import annotations

from itertools import count

import numpy as np

from tinygpu.search.strategies.walk import Domain, Steps

__all__ = ["model", "uniform"]


def uniform(domain: Domain, rng: np.random.Generator) -> Steps:
    """Ask for one schedule after the other, each drawn from the legal space."""
    for _ in count():
        yield [one.schedule for one in domain.sample(rng, 1)]


def model(domain: Domain, rng: np.random.Generator) -> Steps:
    """Ask for the model's best, one after the other."""
    for one in domain.first:
        yield [one.schedule]
    yield from uniform(domain, rng)
