"""What a run found: faults with their lines and both parties, and how often each instruction ran.

>>> print(Finding("race", 7, "ld.shared.f32 %f0, [%r1]", "warp 0 of CTA 0 reads what warp 1 wrote"))
line 7: race: ld.shared.f32 %f0, [%r1]: warp 0 of CTA 0 reads what warp 1 wrote
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

__all__ = ["NOT_CHECKED", "Array", "Finding", "Numbers", "Report", "gathered"]

NOT_CHECKED = ("races in global memory",)
"""What a run does not look for if it is told so: its findings say nothing of it."""

Array = NDArray[Any]
Numbers = tuple[tuple[Any, ...], ...]


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, at the first place where it shows.

    ``kind`` is one of: race (two accesses in no order), proxy (ordered, but no fence between the
    generic and the asynchronous view of memory), uninitialised, address (outside of what is
    allocated), alignment, barrier (an mbarrier or named barrier misused), register (one that an
    asynchronous operation still holds), divergence (a warp's lanes apart where they have to be
    together), descriptor, tensor memory, exit (left with something unfinished), deadlock.
    ``other_line`` and ``other_text`` are the second party of a race (0 and empty if there is none).
    ``cta`` and ``thread`` (in its CTA) say who, ``address`` where (-1: nobody, nowhere); ``count``
    how often it was found, ``lines`` where else by what seems to be one cause.  A ``severity`` of
    warning does no harm by itself: equal values stored at once, a value that may be unused.
    ``numbers`` are those that would be right: line, opcode, which operand, the number and why.
    ``mend`` says with which change the finding is gone, if that was tried and found.
    """

    kind: str
    line: int
    text: str
    message: str
    other_line: int = 0
    other_text: str = ""
    cta: int = -1
    thread: int = -1
    address: int = -1
    severity: str = "error"
    count: int = field(default=1, compare=False)
    lines: tuple[int, ...] = field(default=(), compare=False)
    numbers: Numbers = field(default=(), compare=False)
    mend: str = field(default="", compare=False)

    def __str__(self) -> str:
        other = (
            f"; the other is line {self.other_line}: {self.other_text}" if self.other_line else ""
        )
        also = f"; so are lines {', '.join(map(str, self.lines[:8]))}" if self.lines else ""
        kind = self.kind if self.severity == "error" else f"{self.kind} ({self.severity})"
        mend = f"; {self.mend}" if self.mend else ""
        return f"line {self.line}: {kind}: {self.text}: {self.message}{other}{also}{mend}"


def gathered(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return one finding for each cause, the first: pairs of lines that one place lies between.

    A wait that is missing in an unrolled loop shows at every pair of a store and a load.

    >>> pairs = [Finding("race", a, "ld", "", b, "st") for a in (7, 8) for b in (3, 4)]
    >>> [(f.line, f.count, f.lines) for f in gathered([*pairs, Finding("race", 3, "st", "", 7)])]
    [(7, 4, (8,)), (3, 1, ())]
    """
    causes: dict[tuple[object, ...], list[tuple[range, list[Finding]]]] = {}
    for f in findings:
        low, high = sorted((f.line, f.other_line)) if f.other_line else (f.line - 1, f.line)
        same = causes.setdefault((f.kind, f.severity, f.other_line > f.line), [])
        for n, (between, members) in enumerate(same):
            both = range(max(low, between.start), min(high, between.stop))
            if both:
                same[n] = both, members
                members.append(f)
                break
        else:
            same.append((range(low, high), [f]))
    result = []
    for _, members in (cause for same in causes.values() for cause in same):
        first = members[0]
        lines = dict.fromkeys(line for f in members for line in (f.line, *f.lines))
        lines.pop(first.line)
        count = sum(f.count for f in members)
        result.append(replace(first, count=count, lines=tuple(lines)))
    return tuple(result)


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a launch.

    ``instruction_counts`` says for each opcode how many warps issued it, summed over the run.

    >>> print(Report((), {}, NOT_CHECKED))
    nothing found
    not checked: races in global memory
    """

    findings: tuple[Finding, ...]
    instruction_counts: dict[str, int]
    not_checked: tuple[str, ...] = ()

    def __str__(self) -> str:
        found = [str(finding) for finding in self.findings] or ["nothing found"]
        return "\n".join([*found, *(f"not checked: {what}" for what in self.not_checked)])

    @property
    def kinds(self) -> set[str]:
        """The kinds of the findings."""
        return {finding.kind for finding in self.findings}
