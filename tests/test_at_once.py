"""A measured search climbs in the spaces of several machines at once, until its deadline."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from tinygpu.deadline import Deadline
from tinygpu.devices.device import load_device
from tinygpu.errors import IllegalScheduleError
from tinygpu.machines import MACHINES
from tinygpu.machines.ampere import STARTS as AMPERE
from tinygpu.machines.simt import LADDER
from tinygpu.search.time.cost import cost
from tinygpu.search.tuning.ranking import ranked
from tinygpu.space.space import Space
from tinygpu.term.operation import Problem, matmul

NAMES = ("simt", "ampere")
FIXED: dict[str, dict[str, Any]] = {
    "simt": {**LADDER["tuned"], "raster": (1, 4), "stages": (1, 2, 3)},
    "ampere": {**next(iter(AMPERE.values())), "raster": (1, 4)},
}


def spaces(m: int, n: int, k: int) -> list[Space]:
    problem = Problem.of(matmul("bf16", layout="nn"), m=m, n=n, k=k)
    device = load_device("h100")
    return [Space(MACHINES[name], problem, device, fixed=FIXED[name]) for name in NAMES]


def soon() -> Deadline:
    return Deadline.within(60.0, time.monotonic)


def machines_of(found: Any) -> set[str]:
    return {one.schedule.machine for one in found.best}


def test_what_cannot_be_among_the_best_is_not_asked() -> None:
    """By fma alone the arithmetic of a large product takes longer than mma.sync's best."""
    large = spaces(4096, 4096, 4096)
    each = dict.fromkeys(NAMES, ())
    both, alone = ranked(large, 2, each, until=soon()), ranked(large[1:], 2, each, until=soon())
    assert machines_of(both) == {"ampere"}
    assert (both.admissible, both.scored) == (alone.admissible, alone.scored)


def test_all_that_may_be_among_the_best_are_asked() -> None:
    """More are wanted than mma.sync has, or the arithmetic is not what takes the time."""
    assert machines_of(ranked(spaces(64, 64, 64), 50, dict.fromkeys(NAMES, ()), until=soon())) == {
        *NAMES
    }


def test_seconds_and_breakdowns_are_those_of_the_terms() -> None:
    """Under a deadline they are made of arrays, and when they are asked for."""
    few = spaces(256, 256, 256)
    for one in ranked(few, 5, dict.fromkeys(NAMES, ()), until=soon()).best:
        space = few[NAMES.index(one.schedule.machine)]
        program = one.schedule.program(space.machine, space.problem.operation)
        said = cost(program, space.problem.sizes, space.device)
        assert math.isclose(one.seconds, float(said.seconds), rel_tol=1e-9)
        assert one.breakdown.bottleneck == said.bottleneck


def test_spaces_without_anything_legal_say_why() -> None:
    problem = Problem.of(matmul("bf16", layout="nn"), m=64, n=64, k=64)
    empty = Space(
        MACHINES["simt"], problem, load_device("h100"),
        fixed={**LADDER["tuned"], "pipeline": "none", "stages": 3},
    )  # fmt: skip
    with pytest.raises(IllegalScheduleError):
        ranked([empty], 2, {"simt": ()}, until=soon())
