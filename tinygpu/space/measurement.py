"""Measurements: what was found about one schedule on one device, and what it depends on.

The *key* is all that determines the time: the operation, the sizes, the schedule (or the name of a
peer), the device, the driver and the version of the emitter.  The rest is what was found: a time,
or the reason why there is none.

>>> one = Measurement(operation="{}", sizes="{}", schedule="{}", device="H200", driver="580",
...                   emitter=1, reason="it hangs: no answer in 20 s")
>>> one.ok, Measurement.from_json(one.to_json()) == one
(False, True)

Source: ``docs/measuring.md``.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import Protocol

from tinygpu.document import Json, fields_of, parsed, shown
from tinygpu.errors import DocumentError, StoreError
from tinygpu.term.operation import Problem
from tinygpu.term.schedule import Schedule, to_json

__all__ = ["Key", "Measurement", "Results", "canonical", "describe"]

Key = tuple[str, str, str, str, str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """A measurement: ``seconds`` is None if the candidate failed, and ``reason`` says why.

    ``operation``, ``sizes`` and ``schedule`` are canonical JSON.  ``spread`` is the interquartile
    range of the rounds over their median, ``error`` the worst error over what is allowed (right
    where at most 1), ``capped`` whether power or heat held the clock down.
    """

    operation: str
    sizes: str
    schedule: str
    device: str
    driver: str
    emitter: int
    seconds: float | None = None
    spread: float = 0.0
    rounds: int = 0
    error: float = 0.0
    clock_mhz: int = 0
    capped: bool = False
    reason: str = ""

    @property
    def key(self) -> Key:
        """All that determines the time."""
        return (
            self.operation, self.sizes, self.schedule, self.device, self.driver, self.emitter
        )  # fmt: skip

    @property
    def ok(self) -> bool:
        """Whether the candidate is right and was timed."""
        return self.seconds is not None

    def told(self) -> dict[str, float | str | None]:
        """Return what a row of ``search.json`` has of it."""
        return {name: getattr(self, name) for name in ("seconds", "spread", "rounds", "reason")}

    def to_json(self) -> str:
        """Write it in one line; an infinite error becomes the string "inf"."""
        tree = asdict(self)
        if not math.isfinite(self.error):
            tree["error"] = str(self.error)
        return canonical(tree)

    @staticmethod
    def from_json(line: str) -> Measurement:
        """Read what ``to_json`` wrote.  Raises StoreError for anything else."""
        try:
            tree = fields_of(parsed(line), "measurement", _FIELDS)
            if isinstance(tree["error"], str):
                tree["error"] = float(tree["error"])
            for name in ("seconds", "spread", "error"):
                if not isinstance(tree[name], float | int | None):
                    raise DocumentError(f"{name} is {shown(tree[name])}; give a number")
            return Measurement(**tree)
        except (DocumentError, ValueError) as error:
            raise StoreError(
                f"measurement: {line[:60]!r} is none ({error}); export the store again"
            ) from None


_FIELDS = {
    "operation": str, "sizes": str, "schedule": str, "device": str, "driver": str, "emitter": int,
    "seconds": None, "spread": None, "rounds": int, "error": None, "clock_mhz": int,
    "capped": None, "reason": str,
}  # fmt: skip


class Results(Protocol):
    """Where measurements are kept: ``tinygpu.search.store.Store``, or a test's dict."""

    def get(self, key: Key) -> Measurement | None:
        """Return what is kept under a key."""

    def put(self, measurement: Measurement) -> None:
        """Keep a measurement under its key, instead of an earlier one."""


def canonical(tree: Json) -> str:
    """Write JSON in the one form that equal values share."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":"))


def describe(problem: Problem, schedule: Schedule) -> tuple[str, str, str]:
    """Return the operation, the sizes and the schedule as canonical JSON."""
    tree = json.loads(to_json(schedule, problem))
    chosen = {"machine": tree["machine"], "decisions": tree["decisions"]}
    return canonical(tree["operation"]), canonical(tree["sizes"]), canonical(chosen)
