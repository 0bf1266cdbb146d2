"""Explanations: what a schedule waits for, what would change it; why one schedule beats another.

``explain`` says of one schedule how long the model expects it to take and what that is made of, its
*causes* (``causes.py``), and what each decision alone can do: every value that leaves the schedule
legal is tried on the term.  A decision none of whose legal values moves the time by 1 % *changes
nothing*: a guess about it is not worth a run.

``compare`` walks from one schedule to another, a decision at a time, the greatest effect first.
Where no single change is legal it takes the smallest group that is.  With t_0 the time of a and
t_n that of b,

    t_n - t_0 = sum over the steps of (t_i - t_(i-1))

so the contributions sum to the whole difference; each depends on the order, as decisions interact.

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import Problem, matmul
>>> problem, h200 = Problem.of(matmul(), m=4096, n=4096, k=4096), load_device("h200")
>>> naive, coalesced = (Schedule.of(Simt(), LADDER[n]) for n in ("naive", "coalesced"))
>>> why = compare(naive, coalesced, Simt(), problem, h200)
>>> sorted(change for step in why.steps for change in step.changes)
[('lanes_m', 32, 1), ('order', 'm', 'n')]
>>> "edges" in explain(naive, Simt(), problem, h200).idle
True

Source: ``docs/model.md``, section "Time".
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from tinygpu.devices.device import Device
from tinygpu.isa.memory import DTYPES
from tinygpu.legality.laws import check_schedule, require_legal
from tinygpu.search.explain.causes import causes, excesses, peel
from tinygpu.search.explain.explanation import (
    NOTHING,
    Change,
    Comparison,
    Contribution,
    Explanation,
    Lever,
)
from tinygpu.search.explain.mends import TimeView, duration, limiter
from tinygpu.search.time.cost import cost
from tinygpu.term.machine import Machine, Value
from tinygpu.term.operation import Problem
from tinygpu.term.schedule import Schedule

__all__ = [
    "Change", "Comparison", "Contribution", "Explanation", "Lever", "compare", "explain",
    "outlined", "seconds_of", "walked",
]  # fmt: skip

GROUPS = (1, 2, 3)  # sizes of groups to search before all that is left changes at once


def explain(schedule: Schedule, machine: Machine, problem: Problem, device: Device) -> Explanation:
    """Say what a schedule waits for, under the model.

    Raises IllegalScheduleError for a schedule that breaks a law: it has no time.
    """
    program = require_legal(schedule, machine, problem, device)
    view = TimeView.of(program, problem.sizes, device)
    others: dict[str, list[tuple[Value, TimeView]]] = {n: [] for n, _ in schedule.decisions}
    for name, value in _neighbours(schedule, machine):
        other = schedule.with_(**{name: value})
        if not check_schedule(other, machine, problem, device):
            term = other.term(machine, problem.operation)
            others[name].append((value, TimeView.of(term, problem.sizes, device)))
    gains, idle = [], []
    for name, tried in others.items():
        if not tried:
            continue
        value, best = min(tried, key=lambda pair: pair[1].seconds)
        if best.seconds < view.seconds * (1 - NOTHING):
            spill = _spilled(best) > 0
            gains.append(Change(name, schedule[name], value, best.seconds, spill))
        if all(abs(v.seconds - view.seconds) < NOTHING * view.seconds for _, v in tried):
            idle.append(name)
    return replace(
        _outlined(view, machine, problem, device),
        levers=_levers(view, others),
        gains=tuple(sorted(gains, key=lambda g: g.seconds)),
        idle=tuple(idle),
        stuck=tuple(name for name, tried in others.items() if not tried),
    )


def outlined(schedule: Schedule, machine: Machine, problem: Problem, device: Device) -> Explanation:
    """Explain a legal schedule without trying others: no levers, no gains, nothing idle or stuck.

    Says all that a comparison's text says of it, much sooner.
    """
    program = schedule.term(machine, problem.operation)
    return _outlined(TimeView.of(program, problem.sizes, device), machine, problem, device)


def _outlined(view: TimeView, machine: Machine, problem: Problem, device: Device) -> Explanation:
    parts = {name: float(seconds) for name, seconds in view.time.parts.items()}
    rate, peak, unit = _rate(problem, device, view)
    sizes = ", ".join(f"{axis} = {size}" for axis, size in problem.extents)
    return Explanation(
        title=f"{machine.name}, {problem.operation}; {sizes}; {device.name}",
        launch=_launch(view) + _more(view),
        seconds=view.seconds,
        interval=view.time.interval,
        noise=view.time.noise,
        rate=rate,
        peak=peak,
        unit=unit,
        bottleneck=view.time.bottleneck,
        parts=tuple(sorted(parts.items(), key=lambda part: -part[1])),
        causes=causes(view),
        levers={},
        steps=peel(view),
        gains=(),
        idle=(),
        stuck=(),
    )


def compare(
    a: Schedule,
    b: Schedule,
    machine: Machine,
    problem: Problem,
    device: Device,
    each: Callable[[Schedule, Machine, Problem, Device], Explanation] = explain,
) -> Comparison:
    """Say which of two schedules wins under the model, by how much, and what that is due to.

    ``each`` explains one of them: ``outlined`` is enough for the text.

    Raises IllegalScheduleError for one that breaks a law.
    """
    one, two = (each(s, machine, problem, device) for s in (a, b))
    (steps,) = walked([(a, b)], lambda every: seconds_of(every, machine, problem, device))
    return Comparison(one, two, steps)


def seconds_of(
    schedules: Iterable[Schedule], machine: Machine, problem: Problem, device: Device
) -> dict[Schedule, float | None]:
    """Return the time of each schedule, one by one; None for one that is illegal."""
    found: dict[Schedule, float | None] = dict.fromkeys(schedules)
    for schedule in found:
        if not check_schedule(schedule, machine, problem, device):
            term = schedule.term(machine, problem.operation)
            found[schedule] = float(cost(term, problem.sizes, device).seconds)
    return found


def walked(
    pairs: Iterable[tuple[Schedule, Schedule]],
    seconds: Callable[[Iterable[Schedule]], Mapping[Schedule, float | None]],
) -> list[tuple[Contribution, ...]]:
    """Walk from the first to the second of each pair, of legal schedules, all pairs at once.

    ``seconds`` gives the times of all schedules that the next steps need, None for an illegal one.
    """
    walks = [_walk(a, b) for a, b in pairs]
    wanted = {i: next(steps) for i, steps in enumerate(walks)}
    found: dict[int, tuple[Contribution, ...]] = {}
    while wanted:
        known = seconds({one for ones in wanted.values() for one in ones})
        following = {}
        for i, ones in wanted.items():
            try:
                following[i] = walks[i].send([known[one] for one in ones])
            except StopIteration as end:
                found[i] = end.value
        wanted = following
    return [found[i] for i in range(len(walks))]


def _walk(
    a: Schedule, b: Schedule
) -> Generator[Sequence[Schedule], Sequence[float | None], tuple[Contribution, ...]]:
    """Ask for schedules' times; take the smallest legal group of changes each time.

    Of several groups, take the one of greatest effect.
    """
    (now,) = yield [a]
    assert now is not None, "a schedule to compare is legal"
    left = [name for name, value in a.decisions if b[name] != value]
    here, steps = a, list[Contribution]()
    while left:
        group, there, then = yield from _next(here, b, left, now)
        steps.append(Contribution(tuple((n, here[n], b[n]) for n in group), then - now))
        left = [name for name in left if name not in group]
        here, now = there, then
    return tuple(steps)


def _next(
    here: Schedule, goal: Schedule, left: Sequence[str], now: float
) -> Generator[Sequence[Schedule], Sequence[float | None], tuple[tuple[str, ...], Schedule, float]]:
    for size in (*GROUPS, len(left)):
        groups = list(combinations(left, size))
        theres = [here.with_(**{name: goal[name] for name in group}) for group in groups]
        thens = yield theres
        found = [
            (group, there, then)
            for group, there, then in zip(groups, theres, thens, strict=True)
            if then is not None
        ]
        if found:
            return max(found, key=lambda step: abs(step[2] - now))
    raise AssertionError("a schedule to compare is legal")


def _neighbours(schedule: Schedule, machine: Machine) -> Iterator[tuple[str, Value]]:
    for name, choice in machine.decisions().items():
        for value in choice.values:
            if value != schedule[name]:
                yield name, value


def _levers(
    view: TimeView, others: Mapping[str, list[tuple[Value, TimeView]]]
) -> dict[str, tuple[Lever, ...]]:
    """Return, by cause, the decisions that take a tenth of its excess or more, fastest first."""
    excess = excesses(view)
    found: dict[str, list[Lever]] = {name: [] for name, e in excess.items() if e > 0}
    for decision, tried in others.items():
        fastest: dict[str, Lever] = {}
        for value, other in tried:
            for cause, left in excesses(other).items():
                if cause not in found or left > 0.9 * excess[cause]:
                    continue
                lever = Lever(decision, value, 1 - left / excess[cause], other.seconds)
                best = fastest.setdefault(cause, lever)
                if (lever.seconds, -lever.share) < (best.seconds, -best.share):
                    fastest[cause] = lever
        for cause, lever in fastest.items():
            found[cause].append(lever)
    return {
        name: tuple(sorted(levers, key=lambda lever: lever.seconds))
        for name, levers in found.items()
    }


def _rate(problem: Problem, device: Device, view: TimeView) -> tuple[float, float, str]:
    """Return the rate, its peak and its unit: of what the problem needs longest at the peaks."""
    flops, moved = problem.operation.flops(problem.sizes), problem.operation.bytes(problem.sizes)
    a_cycle, unit = 2 * device.fma_f32_per_cycle_per_sm, "FLOP/s"
    if "tensor" in view.time.parts:
        wide = DTYPES[problem.operation.inputs[0].dtype].bytes
        a_cycle, unit = device.tensor_flop_per_cycle_per_sm * 2 / wide, "tensor FLOP/s"
    peak, seconds = a_cycle * device.sms * device.clock_hz, view.seconds
    if flops / peak >= moved / device.dram_bytes_per_second:
        return flops / seconds, peak, unit
    return moved / seconds, device.dram_bytes_per_second, "B/s"


def _spilled(view: TimeView) -> float:
    return float(view.features.launch.spilled())


def _more(view: TimeView) -> str:
    """Say which of several kernels this is, and what the others take."""
    if not view.others:
        return ""
    seconds = duration(sum(float(one.seconds) for one in view.others))
    which = f"kernel {view.place + 1} of {1 + len(view.others)}, which takes longest"
    return f"; it is {view.program.name}, {which}; the others take {seconds}"


def _launch(view: TimeView) -> str:
    """Say what is launched: clusters, CTAs, threads, and how many run at once."""
    s = view.features.launch
    tiles, fits, at_once, size = (
        int(n) for n in (s.tiles(), s.resident(), s.clusters(), s.cluster)
    )
    smem = f"{int(s.smem_bytes)} B of shared memory"
    if view.features.stepped:
        clusters = min(tiles, at_once) if s.persistent else tiles
        of = f" in clusters of {size}" if size > 1 else ""
        return (
            f"{clusters * size} CTAs{of} of {int(s.threads)} threads, {smem}, {fits} on an SM; "
            f"{tiles * size} tiles, {at_once * size} at once"
        )
    spilled = _spilled(view)
    spill = f" ({spilled:.0f} spill)" if spilled else ""
    return (
        f"{tiles} CTAs of {int(s.threads)} threads, about {float(s.registers.registers()):.0f} "
        f"registers a thread{spill}, {smem}; {fits} CTAs on an SM, limited by {limiter(view)}"
    )
