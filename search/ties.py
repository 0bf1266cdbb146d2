"""Ties: which of several times are closer than their noise, so that none of them is the best.

A time's *noise* is its probable error: the relative error that half of such times exceed; two tie
if their logarithms differ by at most both noises, as independent errors add.  A measured time is a
median of rounds, whose noise shrinks as rounds become more (``median_noise``).  A predicted time's
is ``Breakdown.noise``: what the model's order of two schedules was off by.

Ties are told from the fastest down: a schedule stands with the first that it ties with, and the
next that does not opens a place of its own.

>>> places([1.00, 1.01, 1.10, None], [0.01, 0.01, 0.01, 0.0])
[(1, True), (1, True), (3, False), None]

So a result is the *set* of those that share the first place.  Which of them times come out least
is luck; ``ranked`` orders each place by a rule that no time enters: the fewest registers, then the
smallest tile, then the schedule's text.  Two runs that find the same set name the same kernel.

>>> line = [Schedule("line", (("tile_m", m),)) for m in (64, 32, 16)]
>>> ranked([1.00, 1.01, 1.10], [0.01] * 3, [plainness(one, 40) for one in line])
[1, 0, 2]

Source: ``docs/measuring.md``, section "Ties".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tinygpu.term.schedule import Schedule

__all__ = ["Plainness", "median_noise", "places", "plainness", "ranked", "tie"]

Plainness = tuple[float, int, str]
_MEDIAN = math.sqrt(math.pi / 2)
"""The error of a median of many rounds over that of their mean, where they are normal."""


def tie(seconds: float, other: float, noise: float, others_noise: float) -> bool:
    """Say whether two times are closer than their noise, each relative."""
    return abs(math.log(seconds / other)) <= math.hypot(noise, others_noise)


def median_noise(spread: float, rounds: int) -> float:
    """Return the noise of a median of rounds, whose interquartile range over it is ``spread``.

    Half of the rounds are off by more than half of the range, and the median by less.

    >>> median_noise(0.04, 1), round(median_noise(0.04, 25), 4)
    (0.02, 0.005)
    """
    return spread / 2 * min(1.0, _MEDIAN / math.sqrt(max(1, rounds)))


def places(
    seconds: Sequence[float | None], noises: Sequence[float]
) -> list[tuple[int, bool] | None]:
    """Return the place of each time, and whether others share it; None where there is no time."""
    timed = [(time, i) for i, time in enumerate(seconds) if time]
    found: list[tuple[int, bool] | None] = [None] * len(seconds)
    groups: list[list[int]] = []
    for time, i in sorted(timed):
        if groups:
            first = groups[-1][0]
            if tie(time, seconds[first] or time, noises[i], noises[first]):
                groups[-1].append(i)
                continue
        groups.append([i])
    place = 1
    for group in groups:
        for i in group:
            found[i] = place, len(group) > 1
        place += len(group)
    return found


def plainness(schedule: Schedule, registers: float = math.inf) -> Plainness:
    """Return what a tie is decided by: registers of a thread, elements of a tile, the text."""
    tile = 1
    for name, value in schedule.decisions:
        tile *= int(value) if name.startswith("tile_") else 1
    return registers, tile, str(schedule)


def ranked(
    seconds: Sequence[float | None], noises: Sequence[float], rules: Sequence[Plainness]
) -> list[int]:
    """Return the order of schedules: by place, within a place by the rule, then those untimed."""
    found = places(seconds, noises)

    def key(i: int) -> tuple[float, Plainness]:
        at = found[i]
        return (math.inf if at is None else at[0]), rules[i]

    return sorted(range(len(found)), key=key)
