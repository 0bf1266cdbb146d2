r"""What is missing: a statement with which a finding is gone, found by trying.

A candidate of the finding's kind is written before the line that is accused, or behind the line of
the other party, and the kernel runs again.  It mends the finding if that is gone and nothing else
is found than before.  So what is said is true of these arrays and orders, and of nothing more: a
``bar.sync`` also mends what ``bar.warp.sync`` would, so weaker ones are tried first.

>>> race = Finding("race", 3, "ld.shared.u32 %r1, [%r0]", "", other_line=2)
>>> def run(text):
...     return [] if "bar.sync" in text else [race]
>>> mend_of(race, [race], "{\nst.shared\nld.shared\n}", run)
Mend(statement='bar.sync 0;', line=3)

Source: delta debugging (A. Zeller, 2002), the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .report import Finding

__all__ = ["STATEMENTS", "Mend", "mend_of"]

_COPIES, _BULK = "cp.async.wait_all;", "cp.async.bulk.wait_group"
_COMMITS = ("cp.async.commit_group;", "cp.async.bulk.commit_group;")
_THREADS, _CLUSTER = "bar.sync 0;", "barrier.cluster.arrive; barrier.cluster.wait;"
_PROXY, _INIT = "fence.proxy.async;", "fence.mbarrier_init.release.cluster;"
_PRODUCTS = "wgmma.wait_group.sync.aligned 0;"
_COMMIT = "wgmma.commit_group.sync.aligned; "
_LOADED, _STORED = "tcgen05.wait::ld.sync.aligned;", "tcgen05.wait::st.sync.aligned;"
_AFTER = "tcgen05.fence::after_thread_sync;"

STATEMENTS: Mapping[str, tuple[str, ...]] = {
    "race": (
        "bar.warp.sync 0xffffffff;", *_COMMITS, _COPIES, f"{_BULK}.read 0;", _PRODUCTS, _LOADED,
        _INIT, _AFTER, _THREADS, f"{_COPIES} {_THREADS}", f"{_BULK}.read 0; {_THREADS}", _CLUSTER,
    ),
    "proxy": (_INIT, _PROXY, _STORED, f"{_PROXY} {_THREADS}"),
    "register": (
        "wgmma.fence.sync.aligned;", _PRODUCTS, f"{_COMMIT}{_PRODUCTS}", _LOADED, _COPIES,
    ),
    "exit": (f"{_BULK} 0;", f"cp.async.bulk.commit_group; {_BULK} 0;", _CLUSTER),
    "uninitialised": (*_COMMITS, _COPIES, f"{_COPIES} {_THREADS}", _THREADS, _PRODUCTS),
}  # fmt: skip
"""What may be missing, by kinds of findings: what orders less comes first."""


@dataclass(frozen=True, slots=True)
class Mend:
    """A statement that is missing before a line."""

    statement: str
    line: int

    def __str__(self) -> str:
        return f"with `{self.statement}` before line {self.line} it is gone"


def mend_of(
    finding: Finding,
    findings: Iterable[Finding],
    text: str,
    run: Callable[[str], Sequence[Finding] | None],
) -> Mend | None:
    """Return what mends a finding, or None if nothing that is tried does.

    ``run`` gives what is found in a text; None if that cannot be run, or not any more.
    """
    rows = text.split("\n")
    known = {(f.kind, line) for f in findings for line in (f.line, *f.lines)}
    places = [finding.line] + ([finding.other_line + 1] if finding.other_line else [])
    for statement in STATEMENTS.get(finding.kind, ()):
        for line in dict.fromkeys(places):
            left = run("\n".join([*rows[: line - 1], statement, *rows[line - 1 :]]))
            if left is None:
                continue
            now = {(f.kind, at - (at > line)) for f in left for at in (f.line, *f.lines)}
            if now <= known - {(finding.kind, finding.line)}:
                return Mend(statement, line)
    return None
