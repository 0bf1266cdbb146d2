"""What a run found: faults with their lines and both parties, and how often each instruction ran.

>>> print(Finding("race", 7, "ld.shared.f32 %f0, [%r1]", "warp 0 of CTA 0 reads what warp 1 wrote"))
line 7: race: ld.shared.f32 %f0, [%r1]: warp 0 of CTA 0 reads what warp 1 wrote
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

__all__ = ["Array", "Finding", "Report"]

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """One fault, at the first place where it shows.

    ``kind`` is one of: race (two accesses in no order), proxy (ordered, but no fence between the
    generic and the asynchronous view of memory), uninitialised, address (outside of what is
    allocated), alignment, barrier (an mbarrier or named barrier misused), register (one that an
    asynchronous operation still holds), divergence (a warp's lanes apart where they have to be
    together), descriptor, tensor memory, exit (left with something unfinished), deadlock.
    ``other_line`` and ``other_text`` are the second party of a race (0 and empty if there is none).
    """

    kind: str
    line: int
    text: str
    message: str
    other_line: int = 0
    other_text: str = ""

    def __str__(self) -> str:
        other = (
            f"; the other is line {self.other_line}: {self.other_text}" if self.other_line else ""
        )
        return f"line {self.line}: {self.kind}: {self.text}: {self.message}{other}"


@dataclass(frozen=True, slots=True)
class Report:
    """The outcome of a launch.

    ``instruction_counts`` says for each opcode how many warps issued it, summed over the run.
    """

    findings: tuple[Finding, ...]
    instruction_counts: dict[str, int]

    @property
    def kinds(self) -> set[str]:
        """The kinds of the findings."""
        return {finding.kind for finding in self.findings}
