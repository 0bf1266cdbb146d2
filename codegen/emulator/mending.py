r"""What is missing or wrong: a change of the text with which a finding is gone, found by trying.

Candidates are statements of the finding's kind, before the line that is accused, behind the line of
the other party, or (a fence) beside strong accesses; other scopes, parities and numbers; an arrival
less.  The kernel runs again with each: it mends the finding if that is gone and nothing else is
found than before.  So what is said is true of these arrays and orders, and of nothing more: a
``bar.sync`` also mends what ``bar.warp.sync`` would, so weaker ones are tried first.

>>> race = Finding("race", 3, "ld.shared.u32 %r1, [%r0]", "", other_line=2)
>>> def run(text):
...     return [] if "bar.sync" in text else [race]
>>> print(mend_of(race, [race], "{\nst.shared\nld.shared\n}", run))
with `bar.sync 0;` before line 3 it is gone

Source: delta debugging (A. Zeller, 2002), the other way round.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from .parser import split
from .report import Finding

__all__ = ["STATEMENTS", "Mend", "mend_of"]

_COPIES, _BULK = "cp.async.wait_all;", "cp.async.bulk.wait_group"
_COMMITS = ("cp.async.commit_group;", "cp.async.bulk.commit_group;")
_THREADS, _CLUSTER = "bar.sync 0;", "barrier.cluster.arrive; barrier.cluster.wait;"
_PROXY, _INIT = "fence.proxy.async;", "fence.mbarrier_init.release.cluster;"
_PRODUCTS = "wgmma.wait_group.sync.aligned 0;"
_COMMIT = "wgmma.commit_group.sync.aligned; "
_LOADED, _STORED = "tcgen05.wait::ld.sync.aligned;", "tcgen05.wait::st.sync.aligned;"
_AFTER, _FENCE = "tcgen05.fence::after_thread_sync;", "fence.acq_rel.gpu;"

STATEMENTS: Mapping[str, tuple[str, ...]] = {
    "race": (
        "bar.warp.sync 0xffffffff;", *_COMMITS, _COPIES, f"{_BULK}.read 0;", f"{_BULK} 0;",
        _PRODUCTS, _LOADED, _INIT, _AFTER, _THREADS, f"{_COPIES} {_THREADS}",
        f"{_BULK}.read 0; {_THREADS}", f"{_BULK} 0; {_THREADS}", _CLUSTER,
    ),
    "proxy": (_INIT, _PROXY, _STORED, f"{_PROXY} {_THREADS}"),
    "register": (
        "wgmma.fence.sync.aligned;", _PRODUCTS, f"{_COMMIT}{_PRODUCTS}", _LOADED, _COPIES,
    ),
    "exit": (f"{_BULK} 0;", f"cp.async.bulk.commit_group; {_BULK} 0;", _CLUSTER),
    "uninitialised": (*_COMMITS, _COPIES, f"{_COPIES} {_THREADS}", _THREADS, _PRODUCTS),
}  # fmt: skip
"""What may be missing, by kinds of findings: what orders less comes first."""
_STRONGER = {"ld.global": "ld.acquire.gpu.global", "st.global": "st.release.gpu.global"}
_BESIDE: Mapping[str, tuple[int, ...]] = {"st": (0,), "ld": (1,)}
_STRONG = re.compile(r"\b(?:(ld|st)\.(?:relaxed|volatile)|(?:atom|red)\.(?:relaxed|global))")
_NARROW = re.compile(r"\b(?:(?:ld|st|atom|red|fence)[.\w]*?|membar)(\.cta|\.cluster)\b")
_PARITY = re.compile(
    r"(@!?[%\w]+ +)?(mbarrier\.\w+_wait\.parity[.:\w]* +[^,;]+, *\[[^\]]*\], *)([%\w]+)"
)


@dataclass(frozen=True, slots=True)
class Mend:
    """A statement that is missing before lines, or stands there for what is wrong (``instead``)."""

    statement: str
    lines: tuple[int, ...]
    instead: str = ""
    why: str = ""

    def __str__(self) -> str:
        where = f"line{'s' * (len(self.lines) > 1)} {' and '.join(map(str, self.lines))}"
        what = f"with `{self.statement}` before {where}"
        if self.instead:
            what = f"with `{self.statement}` for `{self.instead}` at {where}"
        if not self.statement:
            what = f"without `{self.instead}` at {where}"
        return f"{what} it is gone{self.why}"

    def applied(self, text: str) -> str:
        """Return a text with it; lines stay where they are."""
        rows = text.split("\n")
        for line in self.lines:
            row = rows[line - 1]
            new = row.replace(self.instead, self.statement, 1)
            rows[line - 1] = new if self.instead else f"{self.statement} {row}"
        return "\n".join(rows)


def mend_of(
    finding: Finding,
    findings: Iterable[Finding],
    text: str,
    run: Callable[[str], Sequence[Finding] | None],
) -> Mend | None:
    """Return what mends a finding, or None if nothing that is tried does.

    ``run`` gives what is found in a text; None if that cannot be run, or not any more.
    """
    known = {(f.kind, line) for f in findings for line in (f.line, *f.lines)}
    for mend in _candidates(finding, text.split("\n")):
        left = run(mend.applied(text))
        if left is None:
            continue
        now = {(f.kind, line) for f in left for line in (f.line, *f.lines)}
        if now <= known - {(finding.kind, finding.line)}:
            return mend
    return None


def _candidates(finding: Finding, rows: Sequence[str]) -> Iterator[Mend]:
    numbered = list(enumerate(rows, 1))
    for line, opcode, operand, number, why in finding.numbers:
        if found := re.search(rf"{re.escape(opcode)}\s+([^;]*);", rows[line - 1]):
            operands = list(split(found[1]))
            operands[operand] = str(number)
            yield Mend(f"{opcode} {', '.join(operands)};", (line,), found[0], f": it {why}")
    both = [finding.line] + ([finding.other_line] if finding.other_line else [])
    if finding.kind == "race":
        narrow = [(line, found[1]) for line, row in numbered if (found := _NARROW.search(row))]
        for line, scope in narrow:
            yield Mend(".gl" if "membar" in rows[line - 1] else ".gpu", (line,), scope)
        for line, row in numbered:
            if ".wait_group.read" in row:
                yield Mend(".wait_group", (line,), ".wait_group.read")
        access = [(line, found[1]) for line, row in numbered if (found := _STRONG.search(row))]
        beside = [line + n for line, op in access for n in _BESIDE.get(op, (0, 1))]
        for line in dict.fromkeys(beside):
            yield Mend(_FENCE, (line,))
        if len(beside) > 1:
            yield Mend(_FENCE, tuple(dict.fromkeys(beside)))
    for statement in STATEMENTS.get(finding.kind, ()):
        for line in dict.fromkeys([finding.line, *(line + 1 for line in both[1:])]):
            yield Mend(statement, (line,))
    for line in both if finding.kind == "race" and len(set(both)) > 1 else ():
        for weak, strong in _STRONGER.items():
            if weak in rows[line - 1]:
                yield Mend(strong, (line,), weak)
    if finding.kind in ("deadlock", "race", "uninitialised", "proxy"):
        for line, row in numbered:
            if found := _PARITY.search(row):
                guard, start, parity = found.groups(default="")
                other = {"0": "1", "1": "0"}.get(parity, "%mended")
                flip = ".reg .b32 %mended; xor.b32 %mended, {}, 1; " * (other == "%mended")
                yield Mend(
                    f"{flip.format(parity)}{guard}{start}{other}", (line,), found[0],
                    ": this wait's parity is that of the phase before",
                )  # fmt: skip
    if finding.kind == "barrier" and re.search(r"mbarrier\.arrive(?!.*_tx)", finding.text):
        yield Mend("", (finding.line,), f"{finding.text};")
