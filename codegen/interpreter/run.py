"""The state of the clusters that are resident together, and the scheduler of their threads.

Threads that stand at one instruction form a *group*; one NumPy operation serves a group, be it a
lane or sixty-four CTAs.  A group runs until it branches, waits, or meets a label where others may
join it; then the group with the least pc goes on, so that diverged threads meet again where their
paths do (every 32nd choice is the group that has waited longest, so that a loop that polls starves
nobody).  What a warp or warpgroup issues together waits until all its threads are there.

Asynchronous operations are *pending* until they are performed: when someone waits for them or when
nobody can go on ("late"), at once ("early"), or at any moment ("random").  Those of one queue are
performed in order.

Thread ``t`` of CTA ``c`` is number ``c * threads_per_cta + t``; CTAs have whole warpgroups.

Source: PTX ISA 9.0, section 3 (programming model) and 8.8 (asynchronous operations).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tinygpu.codegen.interpreter.clocks import ORDER, PROXIED, Clocks, Conflict
from tinygpu.codegen.interpreter.group import WARP, WARPGROUP, Group, Pending, Waiter
from tinygpu.codegen.interpreter.report import Array, Finding
from tinygpu.errors import ProgramError

if TYPE_CHECKING:
    from tinygpu.codegen.interpreter.decoder import Code
    from tinygpu.codegen.interpreter.memory import Memory

__all__ = ["FIRST_SHARED", "Run"]

FIRST_SHARED = 1024  # spec: the first KiB of a CTA's shared window belongs to the system
_FAIR = 32
_PATIENCE = 512


@dataclass(slots=True)
class Run:
    """One batch of resident clusters; ``first_cta`` is the number of its first CTA in the grid."""

    code: Code
    memory: Memory
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: int
    first_cta: int
    ctas: int
    parameters: Array
    tensor_maps: dict[int, Any]
    shared_bytes: int
    dynamic_bytes: int
    completion: str
    random: random.Random
    findings: dict[tuple[str, int, int], Finding]
    counts: list[int]
    budget: list[int]
    threads_per_cta: int = 0
    registers: list[Array] = field(default_factory=list)
    special: dict[str, Array] = field(default_factory=dict)
    fragments: dict[int, Group] = field(default_factory=dict)
    parked: dict[int, Group] = field(default_factory=dict)
    waiting: dict[int, Waiter] = field(default_factory=dict)
    pending: list[Pending] = field(default_factory=list)
    log: list[int] = field(default_factory=list)
    state: dict[Any, Any] = field(default_factory=dict)
    polls: list[Callable[[], bool]] = field(default_factory=list)
    pc: int = 0
    watch: Callable[[Run, Group, tuple[int, ...]], None] | None = None
    shared: Array = field(init=False)
    local: Array = field(init=False)
    live: Array = field(init=False)
    carry: Array = field(init=False)
    clocks: Clocks = field(init=False)
    choices: int = 0

    def __post_init__(self) -> None:
        threads = int(np.prod(self.block))
        self.threads_per_cta = -(-threads // WARPGROUP) * WARPGROUP
        total = self.ctas * self.threads_per_cta
        for width in self.code.register_bytes:
            poison = (1 << 8 * width) - 1  # a NaN of every floating-point type
            self.registers.append(
                np.full(total, poison, f"u{width}") if width else np.zeros(total, bool)
            )
        size = -(-max(self.shared_bytes, 16) // 16) * 16
        self.shared = np.full(self.ctas * size, 0xFF, np.uint8)
        self.shared_bytes = size
        self.local = np.full((total, max(16, self.code.local_bytes)), 0xFF, np.uint8)
        self.carry = np.zeros(total, bool)
        self.live = np.zeros((self.ctas, self.threads_per_cta), bool)
        self.live[:, :threads] = True
        self.live = self.live.reshape(-1)
        self.clocks = Clocks(
            domains=self.ctas // self.cluster,
            warps=self.cluster * self.threads_per_cta // WARP,
            granules=self.ctas * (size // self.code.granule + self.code.tensor_granules),
        )
        self.fragments[0] = Group(np.flatnonzero(self.live))

    # Who is who.

    def cta_of(self, threads: Array) -> Array:
        """Return the CTA (in the batch) of each thread."""
        return threads // self.threads_per_cta

    def agents_of(self, warps: Array) -> tuple[Array, Array]:
        """Return the domain of each warp (by its number in the batch), and its agent there."""
        each = self.cluster * self.threads_per_cta // WARP
        return warps // each, warps % each + 1

    def rows(self, group: Group) -> Array:
        """Return the clock rows of the group's threads."""
        domains, agents = self.agents_of(group.threads // WARP)
        return self.clocks.rows(domains, agents)

    def by_domain(self, group: Group) -> Iterator[tuple[int, list[int]]]:
        """Yield each domain that the group has threads in, and the agents of its warps there."""
        domains, agents = self.agents_of(group.warp_numbers)
        for domain in np.unique(domains).tolist():
            yield domain, agents[domains == domain].tolist()

    def name(self, domain: int, agent: int) -> str:
        """Return how findings call an agent."""
        each = self.threads_per_cta // WARP
        if agent == 0:
            return "the mbarrier there"
        if agent > each * self.cluster:
            return self.clocks.names[domain, agent]
        cta = domain * self.cluster + (agent - 1) // each
        return f"warp {(agent - 1) % each} of CTA {self.first_cta + cta}"

    def cta_name(self, cta: int) -> str:
        """Return how findings call a CTA of the batch."""
        return f"CTA {self.first_cta + cta}"

    # Findings.

    def tick(self) -> int:
        """Return the step of the instruction that runs now."""
        self.log.append(self.pc)
        return len(self.log) - 1

    def find(self, kind: str, message: str, *, pc: int | None = None, other: int = -1) -> None:
        """Note a fault at an instruction, once for each pair of instructions."""
        pc = self.pc if pc is None else pc
        if (kind, pc, other) in self.findings:
            return
        here = self.code.instructions[pc]
        if other >= 0:
            there = self.code.instructions[other]
            finding = Finding(kind, here.line, here.text, message, there.line, there.text)
        else:
            finding = Finding(kind, here.line, here.text, message)
        self.findings[kind, pc, other] = finding

    def conflict(self, found: Conflict | None, does: str) -> None:
        """Note a conflict on shared memory, if there is one."""
        if found is None:
            return
        granules = self.shared_bytes // self.code.granule
        at = found.granule % granules * self.code.granule
        cta = found.granule // granules
        domain, agent = divmod(found.row, self.clocks.agents)
        other = self.name(domain, found.other)
        why = {
            "race": f"which {other} {found.what} and nothing orders before",
            "proxy": f"which {other} {found.what} with no fence.proxy.async since",
            "barrier": "where an mbarrier lives",
        }[found.kind]
        self.find(
            found.kind,
            f"{self.name(domain, agent)} {does} shared byte {at} of {self.cta_name(cta)}, {why}",
            other=self.log[found.other_step],
        )

    def released(self, domain: int, agents: list[int], step: int, *, relaxed: bool) -> Array:
        """Return what an arrival publishes; a relaxed one only what its agents have fenced."""
        clock = self.clocks.snapshot(domain, agents, step)
        if relaxed:
            clock[[ORDER, PROXIED]] = -1
            for agent in agents:
                fenced = self.state.get(("fenced", domain, agent))
                clock = clock if fenced is None else self.clocks.join(clock, fenced)
        return clock

    def remote(self, cta: int, thread: int, agent: int, step: int) -> None:
        """Note that an agent, in a thread's name, touches the shared memory of a CTA."""
        if thread // self.threads_per_cta != cta:
            self.state.setdefault(("remote", cta), {})[agent] = step

    def warp_name(self, thread: int) -> str:
        """Return how findings call the warp of a thread."""
        cta, inside = divmod(int(thread), self.threads_per_cta)
        return f"warp {inside // WARP} of {self.cta_name(cta)}"

    # Threads.

    def push(self, pc: int, group: Group) -> None:
        """Let a group go on at ``pc``, together with those that are there."""
        for waiting in (self.parked.pop(pc, None), self.fragments.pop(pc, None)):
            if waiting is not None:
                group = Group(np.sort(np.concatenate([waiting.threads, group.threads])))
        self.fragments[pc] = group

    def wait(self, waiter: Waiter) -> int:
        """Put threads to sleep; returns the key for ``wake``."""
        key = id(waiter)
        self.waiting[key] = waiter
        return key

    def wake(self, key: int) -> None:
        """Let threads that slept go on."""
        waiter = self.waiting.pop(key)
        self.push(waiter.pc, waiter.group)

    def exit(self, group: Group) -> None:
        """End threads; warps that waited for them to come may be complete now."""
        self.live[group.index] = False
        for pc in list(self.parked):
            self.push(pc, self.parked.pop(pc))
        self.choices += 1

    def together(self, group: Group, unit: int) -> Group | None:
        """Return the part whose units (warps or warpgroups) are complete; park the rest."""
        threads = group.threads
        if group.size % unit == 0 and threads[0] % unit == 0:
            ends = threads[unit - 1 :: unit] - threads[::unit]
            if (ends == unit - 1).all():
                return group
        units = threads // unit
        here = np.bincount(units, minlength=len(self.live) // unit)
        full = here == self.live.reshape(-1, unit).sum(1)
        mask = full[units]
        if mask.all():
            return group
        if not mask.any():
            self.parked[self.pc] = group
            return None
        self.parked[self.pc] = group.where(~mask)
        return group.where(mask)

    # Asynchronous operations.

    def issue(self, perform: Callable[[], None], queue: object = None) -> Pending:
        """Issue an asynchronous operation."""
        pending = Pending(perform, str(self.code.instructions[self.pc]), queue)
        self.pending.append(pending)
        if self.completion == "early":
            self.finish(pending)
        return pending

    def finish(self, pending: Pending) -> None:
        """Perform an operation now, after those before it in its queue."""
        if pending.done:
            return
        if pending.queue is not None:
            for other in [p for p in self.pending if p.queue == pending.queue]:
                if other is pending:
                    break
                self._perform(other)
        self._perform(pending)

    def _perform(self, pending: Pending) -> None:
        self.pending.remove(pending)
        pending.done = True
        pending.perform()

    def perform_one(self) -> bool:
        """Perform the oldest operation, or a random one; False if there is none."""
        if not self.pending:
            return False
        i = self.random.randrange(len(self.pending)) if self.completion == "random" else 0
        chosen = self.pending[i]
        if chosen.queue is not None:
            chosen = next(p for p in self.pending if p.queue == chosen.queue)
        self._perform(chosen)
        return True

    # The loop.

    def run(self) -> None:
        """Run until all threads have ended, or none can go on."""
        chance = self.completion == "random"
        while True:
            while self.fragments:
                if chance and self.pending and self.random.random() < 0.2:
                    self.perform_one()
                pc = self._choose(chance)
                self._execute(pc, self.fragments.pop(pc))
            if self.perform_one():
                continue
            if not any(poll() for poll in self.polls):
                break
        if self.live.any():
            self._deadlock()

    def _choose(self, chance: bool) -> int:
        self.choices += 1
        if self.choices % _PATIENCE == 0:
            self.perform_one()
            for poll in self.polls:
                poll()
        if len(self.fragments) == 1 or self.choices % _FAIR == 0:
            return next(iter(self.fragments))
        if chance and self.random.random() < 0.25:
            return self.random.choice(list(self.fragments))
        return min(self.fragments)

    def _execute(self, pc: int, group: Group) -> None:
        steps, counts, first = self.code.steps, self.counts, pc
        while True:
            step = steps[pc]
            if step.leader and pc != first and (self.fragments or self.parked):
                self.push(pc, group)
                return
            self.pc = pc
            if step.guard >= 0:
                mask = self.registers[step.guard][group.index]
                if step.negated:
                    mask = ~mask
                taken = int(np.count_nonzero(mask))
                if taken == 0:
                    pc += 1
                    continue
                counts[pc] += group.warps
                if step.control is not None:
                    if taken < group.size:
                        self.push(pc + 1, group.where(~mask))
                        chosen = step.control(self, group.where(mask))
                        if chosen is not None:
                            self.push(pc + 1, chosen)
                        return
                elif taken < group.size:
                    step.action(self, group.where(mask))
                    pc += 1
                    continue
            else:
                counts[pc] += group.warps
            if step.control is not None:
                going = step.control(self, group)
                if going is None:
                    self._spend(pc - first + 1)
                    return
                group = going
            else:
                step.action(self, group)
            pc += 1

    def _spend(self, instructions: int) -> None:
        self.budget[0] -= instructions
        if self.budget[0] < 0:
            raise ProgramError(
                f"{self.code.instructions[self.pc]}: still running after the launch's limit of "
                "instructions; raise limit, or look for a loop that never ends"
            )

    def _deadlock(self) -> None:
        lines = []
        for pc, group in self.parked.items():
            lines.append((pc, f"{self._who(group)}: the rest of the warp is elsewhere"))
        lines += [(w.pc, f"{self._who(w.group)}: {w.describe()}") for w in self.waiting.values()]
        for pc, text in sorted(lines)[:16]:
            at = pc if pc in self.parked else pc - 1
            self.find("deadlock", text, pc=at, other=-1)

    def _who(self, group: Group) -> str:
        warps = group.warp_numbers
        each = self.threads_per_cta // WARP
        named = [f"{w % each} of {self.cta_name(w // each)}" for w in warps[:4].tolist()]
        return f"warp {', '.join(named)}{', ...' * (len(warps) > 4)}"
