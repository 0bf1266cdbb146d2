"""Hazards: what may go wrong along one thread's instances, in one pass.

All threads of a role have the same instances, and ``bar.sync`` orders nothing but what stands on
different sides of it.  So two accesses by different threads are ordered if and only if a barrier
stands between the first one's *done* and the second one's *issue*; and the pass needs to remember

* for each slot, the instances done since the last barrier (a later access that conflicts races);
* for each slot, the copies (cp.async) that no wait of their thread covers yet, by group;
* for each slot, the set of indices that its cells hold: {x} after a whole write of index x; a write
  that is not whole only adds its index.  A read of x wants {x}.

Registers belong to one thread, in program order: only the last point is asked of them.  Of several
roles the parts between two barriers run one after the other; which first does not matter, because
what conflicts in one part races either way.

Findings: ``deadlock`` (D), ``race`` (R), ``stale`` and ``unwritten`` (R: which value it is),
``exit`` (X), ``group`` (a wait for fewer than no groups).

Source: ``docs/model-concurrency.md``, section "One pass".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from tinygpu.program import Commit, Sync, WaitGroup
from tinygpu.skeleton import Act, Leave, Skeleton
from tinygpu.unfolding import Cell, Instance, instances

__all__ = ["Finding", "Kind", "Scan", "scan"]

Kind = Literal[
    "deadlock", "race", "stale", "unwritten", "exit", "group", "balance", "early", "parity", "proxy"
]  # the last four of asynchronous programs only
Key = tuple[str, int, int]


@dataclass(frozen=True, slots=True)
class Finding:
    """A hazard with its witness: the trip counts, and the two instances."""

    kind: Kind
    message: str
    trips: tuple[tuple[str, int], ...]
    first: Instance
    second: Instance

    def __str__(self) -> str:
        at = ", ".join(f"{name}={number}" for name, number in self.trips)
        return f"{self.kind}: {self.message}" + (f" [{at}]" if at else "")


class Scan:
    """The state of the pass, and what it has found."""

    def __init__(self, env: Mapping[str, int]) -> None:
        """Start at the given values of the free names."""
        self.trips = tuple(env.items())
        self.findings: dict[tuple[str, str, str], Finding] = {}
        self.content: dict[Key, frozenset[int]] = {}
        self.writer: dict[Key, Instance] = {}
        self.read: dict[Key, Instance] = {}  # since the last barrier
        self.written: dict[Key, Instance] = {}  # done since the last barrier
        self.pending: dict[Key, list[tuple[int, int, Instance]]] = {}  # role, group, copy
        self.commits: dict[int, int] = {}
        self.left: Instance | None = None

    def report(self, kind: Kind, first: Instance, second: Instance, message: str) -> None:
        """Record a finding; of one kind between two statements the first is kept."""
        key = (kind, str(first.node), str(second.node))
        self.findings.setdefault(key, Finding(kind, message, self.trips, first, second))

    def run(self, sequence: Iterable[Instance]) -> None:
        """Pass over instances."""
        for instance in sequence:
            match instance.node:
                case Act():
                    self._act(instance)
                case Sync():
                    self._sync(instance)
                case Commit():
                    self.commits[instance.role] = self.commits.get(instance.role, 0) + 1
                case WaitGroup(pending):
                    self._wait(instance, pending)
                case Leave(divides):
                    self.finish(instance)
                    if divides and self.left is None:
                        self.left = instance

    def finish(self, last: Instance | None = None) -> None:
        """Check that no copy is still landing where a thread ends."""
        for waiting in self.pending.values():
            for _, _, copy in waiting:
                where = f"at {last}" if last else "at the end"
                text = f"{copy} is not waited for {where}; add cp.async.wait_group 0 before it"
                self.report("exit", copy, last or copy, text)

    def _sync(self, barrier: Instance) -> None:
        if self.left is not None:
            text = (
                f"{barrier} waits for threads that left at {self.left}; "
                "let no thread leave before the last bar.sync"
            )
            self.report("deadlock", self.left, barrier, text)
        self.read.clear()
        self.written.clear()

    def _wait(self, wait: Instance, pending: int) -> None:
        if pending < 0:
            text = f"{wait} leaves fewer than 0 groups pending; raise the stages or the count"
            self.report("group", wait, wait, text)
        newest = self.commits.get(wait.role, 0) - max(pending, 0)
        for key, waiting in list(self.pending.items()):
            left = []
            for role, group, copy in waiting:
                if role == wait.role and group < newest:
                    self.written[key] = copy
                else:
                    left.append((role, group, copy))
            if left:
                self.pending[key] = left
            else:
                del self.pending[key]

    def _act(self, act: Instance) -> None:
        copies = isinstance(act.node, Act) and act.node.copies
        for cell in act.cells:
            if not cell.touch.ring.private:
                self._ordered(act, cell)
            if cell.touch.write:
                before = (
                    frozenset() if cell.touch.whole else self.content.get(cell.key, frozenset())
                )
                self.content[cell.key] = before | {cell.index}
                self.writer[cell.key] = act
            else:
                self._value(act, cell)
        for cell in act.cells:
            if cell.touch.ring.private:
                continue
            if not cell.touch.write:
                self.read[cell.key] = act
            elif copies:
                group = self.commits.get(act.role, 0)
                self.pending.setdefault(cell.key, []).append((act.role, group, act))
            else:
                self.written[cell.key] = act

    def _ordered(self, act: Instance, cell: Cell) -> None:
        name, _, slot = cell.key
        if cell.touch.overlap:
            text = f"two threads of {act} write one cell of {name}; give each its own"
            self.report("race", act, act, text)
        for _, _, copy in self.pending.get(cell.key, ()):
            text = (
                f"{copy} may still land in slot {slot} of {name} at {act}; between them "
                "cp.async.wait_group has to cover it, and bar.sync has to follow"
            )
            self.report("race", copy, act, text)
        rivals = [self.written.get(cell.key)]
        if cell.touch.write:
            rivals.append(self.read.get(cell.key))
        for rival in rivals:
            if rival is not None:
                text = (
                    f"{rival} of one thread and {act} of another meet in slot {slot} of {name}; "
                    "bar.sync between them is missing"
                )
                self.report("race", rival, act, text)

    def _value(self, act: Instance, cell: Cell) -> None:
        held = self.content.get(cell.key)
        if held is None:
            text = f"{act} reads index {cell.index} of {cell.key[0]}, which nothing wrote; write it"
            self.report("unwritten", act, act, text)
        elif held != {cell.index}:
            other = min(held - {cell.index})
            text = (
                f"{act} wants index {cell.index} of {cell.key[0]}, but slot {cell.key[2]} holds "
                f"index {other} of {cell.touch.ring.stages} stages; write {cell.index} before, "
                "or raise the stages"
            )
            self.report("stale", self.writer[cell.key], act, text)


def scan(skeleton: Skeleton, env: Mapping[str, int]) -> tuple[Finding, ...]:
    """Return the hazards at these values of the free names, one for each pair of statements."""
    state = Scan(env)
    if len(skeleton.roles) == 1:
        state.run(instances(skeleton.roles[0][1], 0, env))
    else:
        _together(state, skeleton, env)
    state.finish()
    return tuple(state.findings.values())


def _together(state: Scan, skeleton: Skeleton, env: Mapping[str, int]) -> None:
    """Run the roles part by part, from barrier to barrier."""
    parts = []
    for role, (_, body) in enumerate(skeleton.roles):
        mine: list[list[Instance]] = [[]]
        for instance in instances(body, role, env):
            mine[-1].append(instance)
            if isinstance(instance.node, Sync):
                mine.append([])
        parts.append(mine)
    for together in zip_longest(*parts):
        barriers: dict[Instance | None, None] = {}
        for part in together:
            last = part[-1] if part else None
            barrier = last if last is not None and isinstance(last.node, Sync) else None
            barriers[barrier] = None
            state.run(part[: -1 if barrier else None] if part else ())
        waiting = [b for b in barriers if b is not None]
        if not waiting:
            return
        if len({b.node if b else None for b in barriers}) > 1:
            text = (
                f"{waiting[0]} waits for a role that does not come; give every role the same ones"
            )
            state.report("deadlock", waiting[0], waiting[-1], text)
            return
        state.run(waiting[:1])
