"""The cases of ``interpreter_agreement``: random legal schedules, a small problem each.

``PARTS`` says how many of which machine and types; sizes are ragged, or multiples of 64, in all
layouts that the machine takes.  The draw needs z3; what it gave is in ``agreement_cases.json``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tinygpu.devices.device import load_device
from tinygpu.legality.laws import check_schedule
from tinygpu.machines import MACHINES as ALL
from tinygpu.space.space import Space
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.schedule import Schedule, from_json

__all__ = ["CASES", "MACHINES", "PARTS", "Case", "draw", "load_cases", "shape"]

CASES = Path(__file__).with_suffix(".json")
MACHINES = ("simt", "ampere", "hopper")
SEED = 1717
LAYOUTS = ("nt", "nn", "tn", "tt")
Part = tuple[str, int, tuple[tuple[str, str | None], ...]]
NARROW = (("f16", None), ("bf16", None), ("f16", "f32"), ("bf16", "f32"))
PARTS: tuple[Part, ...] = (
    ("simt", 80, (("f32", None), *NARROW)),
    ("ampere", 80, NARROW),
    ("hopper", 80, NARROW),
    ("ampere", 24, (("tf32", None),)),
)
"""A machine, how many cases, and their types of inputs and output; a new part stands last, so that
the old ones stay as they are."""
MOST = {"m": 320, "n": 320, "k": 1024}

Case = tuple[Problem, Schedule]


def shape(
    rng: np.random.Generator,
    machine: str,
    number: int,
    types: Sequence[tuple[str, str | None]] = NARROW,
) -> Problem:
    """Return a case's problem: types and layout follow from its number, its sizes are drawn.

    >>> print(shape(np.random.default_rng(0), "ampere", 5).operation)
    matmul: c[m,n] bf16 = sum over k of (a[m,k] bf16 * b[k,n] bf16)
    """
    dtype, output = types[number % len(types)]
    layout = "nn" if machine == "simt" else LAYOUTS[number // len(types) % len(LAYOUTS)]
    operation = matmul(dtype, output, layout)
    even = number % 3 == 2
    contiguous = set() if machine == "simt" else {o.axes[-1] for o in operation.operands}
    steps = {axis: 64 if even else 8 if axis in contiguous else 1 for axis in MOST}
    drawn = {a: s * int(rng.integers(1, MOST[a] // s + 1)) for a, s in steps.items()}
    return Problem.of(operation, **drawn)


def draw(seed: int = SEED, *, parts: Sequence[Part] = PARTS) -> list[Case]:
    """Return problems, each with a legal schedule.

    A schedule's structure is drawn first, each equally likely, then the rest of it.
    """
    rng, device = np.random.default_rng(seed), load_device("h200")
    found: list[Case] = []
    for name, count, types in parts:
        machine, mine = ALL[name], 0
        while mine < count:
            problem = shape(rng, name, mine, types)
            structure = {
                n: c.values[rng.integers(len(c.values))]
                for n, c in machine.decisions().items()
                if c.structural
            }
            space = Space(machine, problem, device, fixed=structure)
            for schedule in space.sample(rng, 1) if space.count() else ():
                if not check_schedule(schedule, machine, problem, device):
                    found.append((problem, schedule))
                    mine += 1
    return found


def load_cases(path: Path = CASES) -> list[Case]:
    """Read what ``--draw`` wrote.  Raises ScheduleError for what is no schedule."""
    rows = json.loads(path.read_text(encoding="utf-8"))["rows"]
    return [from_json(json.dumps(row), ALL)[1:] for row in rows]
