"""Strategies: in which order schedules are evaluated, where evaluating is dear.

Each is a generator in a file of its own that asks for schedules and is told their seconds
(``walk.py``); the model's own order and the search that proves its best are
``search/exact/best.py``.  A new one is a file and a line of ``STRATEGIES``.
``benchmarks/replay.py`` compares them on complete landscapes.
"""

from __future__ import annotations

from collections.abc import Mapping

from tinygpu.search.strategies.descent import descent
from tinygpu.search.strategies.evolution import evolution
from tinygpu.search.strategies.gaussian import gaussian
from tinygpu.search.strategies.smt import smt
from tinygpu.search.strategies.uniform import model, uniform
from tinygpu.search.strategies.walk import Domain, Strategy, walk

__all__ = ["STRATEGIES", "Domain", "Strategy", "walk"]

STRATEGIES: Mapping[str, Strategy] = {
    "gaussian": gaussian,
    "model": model,
    "random": uniform,
    "descent": descent,
    "evolution": evolution,
    "smt": smt,
}
"""By name; the first is the one that a search takes unless it is told another."""
