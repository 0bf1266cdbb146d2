"""Calibration's second part: random kernels, what the model says of them, what is left is fitted.

    found = refined(device, timed)

Micro-kernels see what stands alone.  So legal schedules of each machine that the card can run are
drawn at a few shapes (``groups_of``), built on all cores while others are measured
(``timings``), and held against the time model.  ``FITTED_NUMBERS`` are then chosen, each
within 10 % of its micro-kernel's, so that the mean size of log(predicted / measured) over one half
of the kernels is least: one after the other, on a grid.  They are taken only if the error on the
other half falls.  That error, by machine, is of the device from then on.

Source: ``docs/measuring.md``, section "The chip's own numbers".
"""

from __future__ import annotations

import math
import queue
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from threading import Event, Thread
from typing import TYPE_CHECKING

import numpy as np

from tinygpu.deadline import NEVER, Deadline
from tinygpu.devices.device import DEVICES, Device, Errors, Number, device_of, load_device
from tinygpu.errors import LaunchError, TinyGpuError
from tinygpu.machines import MACHINES
from tinygpu.term.machine import Machine
from tinygpu.term.operation import Operation, Problem, elementwise, matmul, softmax
from tinygpu.term.schedule import Schedule

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tinygpu.codegen.run.measure import Crew, Options
    from tinygpu.term.plan import Term

__all__ = [
    "FITTED_NUMBERS", "SECONDS", "Group", "Timed", "expected", "groups_of", "refined", "timings",
]  # fmt: skip

SECONDS, _FIT_SECONDS = 50.0, 10.0
"""How long the second part may take, and what of it is kept for the fit."""
FITTED_NUMBERS = ("tensor_clock_hz", "dram_bytes_per_second", "launch_seconds")
"""What is fitted: what micro-kernels see differently from run to run, or from kernels."""
_MOST, _AT_ONCE = 96, 8
"""Kernels of a machine at most, and those of one shape that are measured in a row."""
_TRIES, _OF_ONE_TILE, _AHEAD, _LONGEST = 200, 2, 4, 1.0
"""Tiles that are drawn for them, kernels of each; groups that are built ahead; seconds to wait."""
_WITHIN = 0.1
_GRID = ((-1.0, -0.5, 0.0, 0.5, 1.0), (-0.25, 0.25))
"""Shares of that by which a number is moved: coarsely, and then around the best."""
_GAIN = 0.05
"""The share by which the error has to fall for a move: less is the kernels' noise."""
_FEW, _ENOUGH = 8, 16
"""Kernels of a machine below which its error says nothing; those that a fit needs at most."""

_MATMULS = (
    {"m": 64, "n": 4096, "k": 4096}, {"m": 1024, "n": 1024, "k": 1024},
    {"m": 2048, "n": 4096, "k": 1024},
)  # fmt: skip
_SHAPES: Mapping[str, tuple[Operation, tuple[Mapping[str, int], ...]]] = {
    "simt": (matmul(), _MATMULS),
    "ampere": (matmul("bf16", layout="nt"), _MATMULS),
    "hopper": (matmul("bf16", layout="nt"), (*_MATMULS, {"m": 4096, "n": 4096, "k": 4096})),
    "blackwell": (matmul("bf16", layout="nt"), (*_MATMULS, {"m": 4096, "n": 4096, "k": 4096})),
    "elementwise": (elementwise("a*x + b"), ({"i": 1 << 20}, {"i": 1 << 26})),
    "rows": (softmax(), ({"i": 256, "j": 1024}, {"i": 16384, "j": 4096})),
}
"""At which shapes which machine is measured: launches, latencies, tensor cores, DRAM decide."""


@dataclass(frozen=True, slots=True)
class Group:
    """Schedules of one machine and problem that are measured in a row."""

    machine: Machine
    problem: Problem
    schedules: tuple[Schedule, ...]

    def program(self, schedule: Schedule) -> Term:
        """Return the term of one."""
        return schedule.term(self.machine, self.problem.operation)


@dataclass(frozen=True, slots=True)
class Timed:
    """A kernel that was right, and its time."""

    machine: str
    program: Term
    sizes: Mapping[str, int]
    seconds: float


def groups_of(device: Device, rng: np.random.Generator) -> Iterator[Group]:
    """Draw legal schedules of each machine that the device can run; no schedule comes twice.

    The first groups have some of every machine, so that any number of them is fair.
    """
    seen = set[Schedule]()
    able = [name for name in _SHAPES if MACHINES[name].runs_on(device.arch)]
    for turn in range(_MOST // _AT_ONCE):
        for name in rng.permutation(able):
            operation, shapes = _SHAPES[str(name)]
            problem = Problem.of(operation, **shapes[turn % len(shapes)])
            drawn = _drawn(MACHINES[str(name)], problem, device, rng)
            if fresh := tuple(s for s in drawn if s not in seen):
                seen.update(fresh)
                yield Group(MACHINES[str(name)], problem, fresh)


def _drawn(
    machine: Machine, problem: Problem, device: Device, rng: np.random.Generator
) -> list[Schedule]:
    """Draw a few legal schedules: what is structural, and the tile, first, and then the rest.

    A space with those fixed is counted in milliseconds, the whole one in seconds.
    """
    from tinygpu.space.space import Space

    decisions = machine.decisions()
    first = [n for n, choice in decisions.items() if choice.structural or n in machine.spread]
    found: dict[Schedule, None] = {}
    for _ in range(_TRIES):
        fixed = {n: (decisions[n].values[rng.integers(len(decisions[n].values))],) for n in first}
        try:
            space = Space(machine, problem, device, fixed=fixed)
            some = space.sample(rng, _OF_ONE_TILE) if space.count() else []
        except TinyGpuError:  # nothing is admissible, or of these sizes
            continue
        found |= dict.fromkeys(s for s in some if not space.not_asked or space.contains(s))
        if len(found) >= _AT_ONCE:
            break
    return list(found)[:_AT_ONCE]


def timings(
    groups: Iterable[Group],
    *,
    until: Deadline = NEVER,
    options: Options | None = None,
    progress: Callable[[int], None] = lambda _done: None,
) -> Iterator[Timed]:
    """Yield the kernels that are right, as they are measured; others are drawn and built meanwhile.

    A kernel is timed by itself, those of a group in an order that is drawn anew each round; it
    ends at the deadline.  Raises LaunchError if no worker can use a GPU, AssemblyError without
    ptxas.
    """
    from tinygpu.codegen.run.measure import COARSE, Campaign, Crew

    options, done, until = options or COARSE, 0, until.before(_FIT_SECONDS)
    with Crew(options.worker) as crew, ExitStack() as here:
        hello = crew.worker.ask({"do": "hello"}, options.limit_seconds)
        if "failed" in hello:
            raise LaunchError(f"worker: {hello['failed']}")
        ready, over = queue.Queue[Group | Exception | None](maxsize=_AHEAD), Event()
        building = partial(_build, crew, groups, str(hello["arch"]), ready, until, over)
        thread = Thread(target=building, daemon=True)
        thread.start()
        here.callback(thread.join)
        here.callback(over.set)
        while not until.passed():
            try:
                group = ready.get(timeout=min(until.left(), _LONGEST))
            except queue.Empty:
                continue
            if isinstance(group, Exception):
                raise group
            if group is None:
                return
            programs = {s: group.program(s) for s in group.schedules}
            with Campaign(group.problem, options=options, crew=crew) as campaign:
                found = campaign.measure(programs, until=until)
            for program, one in zip(programs.values(), found, strict=True):
                if one.seconds:
                    done += 1
                    yield Timed(group.machine.name, program, group.problem.sizes, one.seconds)
            progress(done)


def _build(
    crew: Crew,
    groups: Iterable[Group],
    arch: str,
    ready: queue.Queue[Group | Exception | None],
    until: Deadline,
    over: Event,
) -> None:
    """Build each group on all cores into what the crew has built; hand over what could be.

    It ends at the deadline, or soon after nobody waits any more (``over``).
    """
    from tinygpu.codegen.run.build import Built
    from tinygpu.space.measurement import describe

    def hand(what: Group | Exception | None) -> None:
        while not over.is_set():
            with suppress(queue.Full):
                ready.put(what, timeout=_LONGEST)
                return

    try:
        for group in groups:
            right = []
            jobs = [(group.program(s), arch, group.problem.sizes) for s in group.schedules]
            found = crew.builders.each(jobs, until)
            for schedule, built in zip(
                group.schedules, found, strict=False
            ):  # ends at the deadline
                if over.is_set():
                    found.close()
                    return
                operation, _, name = describe(group.problem, schedule)
                if isinstance(built, Built):
                    crew.built[operation, name] = built
                    right.append(schedule)
            if until.passed():
                break
            if right:
                hand(Group(group.machine, group.problem, tuple(right)))
    except Exception as error:  # of this thread: the caller's is to tell it
        hand(error)
    else:
        hand(None)


def refined(device: Device, timed: Sequence[Timed], rng: np.random.Generator) -> Device:
    """Return the device with what fits better, and its errors on the half that was held out."""
    by_machine: defaultdict[str, list[Timed]] = defaultdict(list)
    for i in rng.permutation(len(timed)):
        by_machine[timed[i].machine].append(timed[i])
    several = {name: every for name, every in by_machine.items() if len(every) >= _FEW}
    fit = {name: every[0::2][:_ENOUGH] for name, every in several.items()}
    held = {name: every[1::2] for name, every in several.items()}
    if not several:
        return device
    factors = dict.fromkeys(FITTED_NUMBERS, 1.0)
    best = _mean(device, fit)
    for steps in _GRID:
        for field in FITTED_NUMBERS:
            middle = factors[field]
            for step in steps:
                factor = min(max(middle * (1 + _WITHIN * step), 1 - _WITHIN), 1 + _WITHIN)
                error = _mean(_moved(device, factors | {field: factor}), fit)
                if error < (1 - _GAIN) * best:
                    best, factors[field] = error, factor
    before, moved = errors_of(device, held), _moved(device, factors)
    after = errors_of(moved, held)
    fell = _middle(after) < _middle(before)
    count = sum(map(len, fit.values()))
    numbers = device.provenance
    for field, factor in factors.items():
        if fell and factor != 1.0:
            n = numbers[field]
            source = (
                f"fitted to {count} kernels, whose held-out error fell from {_middle(before):.3f} "
                f"to {_middle(after):.3f}; by the micro-kernel {n.value:.6g} ({n.source})"
            )
            numbers[field] = Number(n.value * factor, "fitted", source)
    return Device.of(device.name, device.arch, numbers, after if fell else before)


def errors_of(device: Device, timed: Mapping[str, Sequence[Timed]]) -> dict[str, Errors]:
    """Return by machine how far the model is off."""
    found = {}
    for name, every in timed.items():
        logs = _logs(device, every)
        found[name] = Errors(float(np.median(abs(logs))), float(np.median(logs)), len(logs))
    return found


def _moved(device: Device, factors: Mapping[str, float]) -> Device:
    return device.with_values(**{f: getattr(device, f) * x for f, x in factors.items()})


def _logs(device: Device, timed: Sequence[Timed]) -> NDArray[np.float64]:
    from tinygpu.search.time.cost import cost

    return np.array(
        [math.log(float(cost(t.program, t.sizes, device).seconds) / t.seconds) for t in timed]
    )


def _mean(device: Device, timed: Mapping[str, Sequence[Timed]]) -> float:
    """Return the mean size of the logarithm, each machine counting as much."""
    return float(np.mean([abs(_logs(device, every)).mean() for every in timed.values()]))


def _middle(errors: Mapping[str, Errors]) -> float:
    return float(np.mean([one.median for one in errors.values()]))


def expected(device: Device, gpu: str) -> str:
    """Return which errors are to be expected of a device that was not held against kernels.

    Those of the shipped device that the GPU is, else of one of the same architecture, else of any.
    """
    known = [one for one in map(load_device, DEVICES) if one.errors]
    if not known:
        return "no shipped device was held against kernels; docs/measuring.md has errors of an h200"
    near = min(known, key=lambda one: (one.name != device_of(gpu), one.arch != device.arch))
    told = ", ".join(f"{machine} {found}" for machine, found in near.errors)
    return f"expect errors as {near.name} has (median, held out): {told}"
