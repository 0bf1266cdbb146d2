"""What an explanation and a comparison say: as values, as text, as JSON's trees.

All times are predictions, in seconds.  The text leaves out what is below half a percent of the
time; of a cause that others hide it says how much it is alone.

>>> print(rated(9.7e12, 66.9e12, "FLOP/s"))
9.70 TFLOP/s, 14.5% of the fp32 peak

Source: ``docs/model.md``, section "Time".
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tinygpu.search.explain.causes import Cause, ChainStep
from tinygpu.search.explain.mends import duration
from tinygpu.term.machine import Value

__all__ = ["NOTHING", "Change", "Comparison", "Contribution", "Explanation", "Lever", "rated"]

NOTHING = 0.01
"""A share of the time: what moves it by less changes nothing."""

SHOWN = 0.005  # of the time: what is less stays out of the text
HIDDEN = 0.05  # of the time: the excess from which a cause that saves nothing is named

WORDS: Mapping[str, str] = {
    "issue": "the schedulers' issue slots",
    "fma": "the fp32 multiply-add units",
    "fp64": "the fp64 units",
    "int": "the integer units (indices, guards, loops, maxima)",
    "cvt": "the conversion units",
    "sfu": "the special-function units",
    "shuffle": "shuffles between lanes",
    "smem": "wavefronts of shared memory",
    "l1": "lines of global memory through L1",
    "fetch": "instructions that outgrow their cache",
    "latency": "latency: the chain of statements of one CTA",
    "l2": "the bandwidth of L2",
    "dram": "the bandwidth of DRAM",
    "launch": "the launch itself",
    "clear": "the launch that clears the output before",
    "tensor": "the tensor cores",
    "power": "the power cap: tensor cores at the clock that it allows",
    "tma": "the copy engine (TMA)",
    "fill": "the way from L2 into an SM",
    "epilogue": "what follows a tile's products",
}


@dataclass(frozen=True, slots=True)
class Change:
    """A single decision changed: from one value to another, and the time then.

    ``spill`` says whether registers are predicted to spill.
    """

    decision: str
    before: Value
    after: Value
    seconds: float
    spill: bool


@dataclass(frozen=True, slots=True)
class Lever:
    """A decision that lowers a cause: its value, the share that goes, the time then."""

    decision: str
    value: Value
    share: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a schedule takes (seconds, under the model), waits for and could gain.

    Nine in ten measured times of such kernels lie in the ``interval``; times that are closer than
    their ``noise`` (``search/ties.py``) are not told apart.
    ``rate`` and ``peak`` are both in FLOP/s (fp32, or "tensor FLOP/s"), or both in B/s, as
    ``unit`` says.  ``parts`` are
    sorted, each in seconds alone.  ``levers`` has, by cause, the decisions that lower it.
    ``gains`` are the best change of each decision that gains, best first; ``idle`` the decisions
    that change nothing; ``stuck`` those with no other legal value alone.
    """

    title: str
    launch: str
    seconds: float
    interval: tuple[float, float]
    noise: float
    rate: float
    peak: float
    unit: str
    bottleneck: str
    parts: tuple[tuple[str, float], ...]
    causes: tuple[Cause, ...]
    levers: Mapping[str, tuple[Lever, ...]]
    steps: tuple[ChainStep, ...]
    gains: tuple[Change, ...]
    idle: tuple[str, ...]
    stuck: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join(_explained(self))

    def tree(self) -> dict[str, Any]:
        """Return it as JSON's dicts, lists and numbers; times in seconds."""
        return {
            "title": self.title,
            "launch": self.launch,
            "seconds": self.seconds,
            "interval_seconds": list(self.interval),
            "rate": self.rate,
            "peak": self.peak,
            "unit": self.unit,
            "bottleneck": self.bottleneck,
            "parts": dict(self.parts),
            "causes": [
                {**asdict(one), "changed_by": list(map(asdict, self.levers.get(one.name, ())))}
                for one in self.causes
            ],
            "one_after_another": [
                {"cause": s.name, "saves_seconds": s.saves_seconds, "left_seconds": s.left_seconds}
                for s in self.steps
            ],
            "gains": [
                {
                    "decision": g.decision,
                    "from": g.before,
                    "to": g.after,
                    "seconds": g.seconds,
                    "spill": g.spill,
                }
                for g in self.gains
            ],
            "changes_nothing": list(self.idle),
            "no_other_legal_value": list(self.stuck),
        }


@dataclass(frozen=True, slots=True)
class Contribution:
    """A step from a to b: the changes (decision, from, to), and the seconds that they add."""

    changes: tuple[tuple[str, Value, Value], ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two schedules of one problem, each explained, and the walk from the first to the second."""

    a: Explanation
    b: Explanation
    steps: tuple[Contribution, ...]

    @property
    def noise(self) -> float:
        """How far apart (as a logarithm) two times must be to be told apart."""
        return max(self.a.noise, self.b.noise)

    @property
    def winner(self) -> str:
        """Return "A", "B", or "neither" where the model cannot tell them apart."""
        if abs(math.log(self.a.seconds / self.b.seconds)) <= self.noise:
            return "neither"
        return "A" if self.a.seconds < self.b.seconds else "B"

    def __str__(self) -> str:
        return "\n".join(_compared(self))

    def tree(self) -> dict[str, Any]:
        """Return it as JSON's dicts, lists and numbers; times in seconds."""
        return {
            "winner": self.winner,
            "a": self.a.tree(),
            "b": self.b.tree(),
            "steps": [
                {
                    "changes": [{"decision": d, "from": x, "to": y} for d, x, y in s.changes],
                    "seconds": s.seconds,
                }
                for s in self.steps
            ],
        }


def rated(rate: float, peak: float, unit: str) -> str:
    """Write a rate in FLOP/s (of a kind: "tensor FLOP/s") or B/s, and its share of the peak."""
    kind, arithmetic, _ = unit.rpartition("FLOP/s")
    peak_of = (kind.strip() or "fp32") if arithmetic else "DRAM"
    written, name = (rate / 1e12, "TFLOP/s") if arithmetic else (rate / 1e9, "GB/s")
    figures = f"{written:.0f}" if written >= 100 else f"{written:#.3g}"
    return f"{figures} {name}, {rate / peak:.1%} of the {peak_of} peak"


def _explained(e: Explanation) -> Iterator[str]:
    """Yield the lines of an explanation."""
    yield e.title
    yield e.launch
    yield f"predicted: {duration(e.seconds)}, {rated(e.rate, e.peak, e.unit)}"
    low, high = e.interval
    yield f"90 % interval: {duration(low)} to {duration(high)}"
    yield f"it waits for: {WORDS.get(e.bottleneck, e.bottleneck)}"
    yield "parts, each alone:"
    for name, seconds in e.parts:
        if seconds >= SHOWN * e.seconds:
            share = seconds / e.seconds
            bar = "#" * max(1, round(30 * min(share, 1.0)))
            yield f"  {name:8} {duration(seconds):>8} {share:>5.0%} {bar}"
    yield "causes, and what the removal of each alone would save:"
    for cause in e.causes:
        hidden = cause.saves_seconds < SHOWN * e.seconds
        if hidden and cause.excess_seconds < HIDDEN * e.seconds:
            continue
        saved = f"saves {duration(cause.saves_seconds)} ({cause.saves_seconds / e.seconds:.0%})"
        if hidden:
            saved = f"hidden by others, {duration(cause.excess_seconds)} alone"
        yield f"  {cause.name} ({cause.resource}): {saved}"
        for place in cause.places[: 1 if hidden else 3]:
            yield f"    {place.subject}: {place.measured}; ideal {place.ideal}"
        levers = e.levers.get(cause.name, ())[:4]
        if levers:
            each = (
                f"{v.decision}={v.value} (-{v.share:.0%}, time {v.seconds / e.seconds - 1:+.0%})"
                for v in levers
            )
            yield f"    changed by {', '.join(each)}"
        elif cause.resource == e.bottleneck and not hidden:
            yield "    no legal change of one decision lowers it by a tenth"
    if e.steps:
        yield "removed one after another:"
        for step in e.steps:
            saved = duration(step.saves_seconds)
            yield f"  {step.name:20} saves {saved:>8}, leaves {duration(step.left_seconds):>8}"
    yield "best changes of one decision:" if e.gains else "no change of one decision gains 1 %"
    for gain in e.gains[:5]:
        less = gain.seconds / e.seconds - 1
        then = f"{duration(gain.seconds):>8} ({less:+.0%})"
        spill = ", but registers spill" if gain.spill else ""
        yield f"  {gain.decision:14} {gain.before!s:>8} -> {gain.after!s:8} {then}{spill}"
    if e.idle:
        yield f"changes nothing here (each legal value is within 1 %): {', '.join(e.idle)}"
    if e.stuck:
        yield f"no other legal value, alone: {', '.join(e.stuck)}"


def _compared(c: Comparison) -> Iterator[str]:
    """Yield the lines of a comparison."""
    a, b = c.a, c.b
    yield a.title
    slow, fast = max(a.seconds, b.seconds), min(a.seconds, b.seconds)
    if c.winner == "neither":
        yield (
            f"A and B tie: {duration(fast)} and {duration(slow)}; the model cannot tell apart "
            f"what is closer than {c.noise:.1%}"
        )
    else:
        times = f"{duration(fast)} against {duration(slow)}, {slow / fast:.3g} times faster"
        yield f"{c.winner} wins: {times}"
    for name, e in (("A", a), ("B", b)):
        what = WORDS.get(e.bottleneck, e.bottleneck)
        yield f"{name}: {rated(e.rate, e.peak, e.unit)}; waits for {what}"
        yield f"   {e.launch}"
    yield f"parts, each alone: {'A':>14} {'B':>10}"
    ours, theirs = dict(a.parts), dict(b.parts)
    for name in sorted(ours | theirs, key=lambda n: -max(ours.get(n, 0), theirs.get(n, 0))):
        x, y = ours.get(name, 0.0), theirs.get(name, 0.0)
        if max(x, y) >= SHOWN * fast:
            yield f"  {name:20} {duration(x):>10} {duration(y):>10}"
    yield "from A to B, the greatest effect first:"
    here, none = a.seconds, list[str]()
    for step in c.steps:
        here += step.seconds
        changes = ", ".join(f"{n} {x} -> {y}" for n, x, y in step.changes)
        if not step.seconds:
            none.append(changes)
            continue
        sign = "+" if step.seconds > 0 else ""
        yield f"  {sign + duration(step.seconds):>9}, then {duration(here):>8}: {changes}"
    if none:
        yield f"  no effect: {', '.join(none)}"
