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
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tinygpu.codegen.emulator.clocks import ORDER, PROXIED, Clocks, Conflict
from tinygpu.codegen.emulator.group import WARP, WARPGROUP, Group, Pending, Waiter
from tinygpu.codegen.emulator.memory import Memory
from tinygpu.codegen.emulator.parser import Instruction
from tinygpu.codegen.emulator.report import Array, Finding
from tinygpu.codegen.emulator.state import Groups, Stack, State
from tinygpu.errors import ProgramError, TinyGpuError

__all__ = ["FIRST_SHARED", "Action", "Code", "ControlAction", "Run", "Step"]

FIRST_SHARED = 1024  # spec: the first KiB of a CTA's shared window belongs to the system
_FAIR = 32
_PATIENCE = 512


Action = Callable[["Run", Group], None]
ControlAction = Callable[["Run", Group], "Group | None"]


@dataclass(slots=True)
class Step:
    """A decoded instruction: exactly one of ``action`` and ``control`` does the work."""

    action: Action
    control: ControlAction | None
    guard: int
    negated: bool
    leader: bool


@dataclass(frozen=True, slots=True)
class Code:
    """A decoded kernel; ``granule`` is the least width of an access to shared memory, in bytes."""

    instructions: tuple[Instruction, ...]
    steps: tuple[Step, ...]
    register_bytes: tuple[int, ...]
    granule: int
    tensor_granules: int
    static_bytes: int
    local_bytes: int
    parameter_at: Mapping[str, int]
    parameter_bytes: int
    frame_bytes: int
    fences: bool


@dataclass(slots=True)
class Run:
    """One batch of resident clusters; ``first_cta`` is the number of its first CTA in the grid."""

    code: Code
    memory: Memory
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: int
    cluster_shape: tuple[int, int, int]
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
    unit: int
    workspace: int = 0
    threads_per_cta: int = 0
    registers: list[Array] = field(default_factory=list)
    special: dict[str, Array] = field(default_factory=dict)
    fragments: dict[int, Group] = field(default_factory=dict)
    parked: dict[int, Group] = field(default_factory=dict)
    waiting: dict[int, Waiter] = field(default_factory=dict)
    pending: list[Pending] = field(default_factory=list)
    log: list[int] = field(default_factory=list)
    state: State = field(default_factory=State)
    polls: list[Callable[[], bool]] = field(default_factory=list)
    pc: int = 0
    stack: Stack | None = None
    watch: Callable[[Run, Group, tuple[int, ...]], None] | None = None
    shared: Array = field(init=False)
    local: Array = field(init=False)
    local_written: Array = field(init=False)
    committed: Array = field(init=False)
    frame: Array = field(init=False)
    live: Array = field(init=False)
    carry: Array = field(init=False)
    clocks: Clocks = field(init=False)
    choices: int = 0

    def __post_init__(self) -> None:
        threads = int(np.prod(self.block))
        self.threads_per_cta = -(-threads // WARPGROUP) * WARPGROUP
        total = self.ctas * self.threads_per_cta
        for width in self.code.register_bytes:
            bits = np.full(total * width, 0xFF, np.uint8)  # a NaN of every floating-point type
            kind = f"u{width}" if width < 16 else "V16"
            self.registers.append(bits.view(kind) if width else np.zeros(total, bool))
        size = -(-max(self.shared_bytes, 16) // 16) * 16
        self.shared = np.full(self.ctas * size, 0xFF, np.uint8)
        self.shared_bytes = size
        size = -(-self.code.local_bytes // 16) * 16
        self.local = np.full((total, size), 0xFF, np.uint8)
        self.local_written = np.zeros((total, size), bool)
        self.frame = np.full((total, -(-self.code.frame_bytes // 16) * 16), 0xFF, np.uint8)
        self.committed = np.zeros(total, np.int64)
        self.carry = np.zeros(total, bool)
        self.live = np.zeros((self.ctas, self.threads_per_cta), bool)
        self.live[:, :threads] = True
        self.live = self.live.reshape(-1)
        self.clocks = Clocks(
            domains=self.ctas // self.cluster,
            units=self.cluster * self.threads_per_cta // self.unit,
            granules=self.ctas
            * (self.shared_bytes // self.code.granule + self.code.tensor_granules),
        )
        self.fragments[0] = Group(np.flatnonzero(self.live))

    # Who is who.

    def cta_of(self, threads: Array) -> Array:
        """Return the CTA (in the batch) of each thread."""
        return threads // self.threads_per_cta

    def live_in(self, cta: int) -> int:
        """Return how many threads of a CTA (in the batch) have not ended."""
        each = self.threads_per_cta
        return int(np.count_nonzero(self.live[cta * each : (cta + 1) * each]))

    def agents_of(self, threads: Array) -> tuple[Array, Array]:
        """Return the domain of each thread, and the agent there that it is, or is part of."""
        units, each = threads // self.unit, self.cluster * self.threads_per_cta // self.unit
        return units // each, units % each + 1

    def agent_of(self, thread: int) -> tuple[int, int]:
        """Return the domain and the agent of one thread."""
        each = self.cluster * self.threads_per_cta // self.unit
        domain, agent = divmod(thread // self.unit, each)
        return domain, agent + 1

    def rows(self, group: Group) -> Array:
        """Return the clock rows of the group's threads."""
        domains, agents = self.agents_of(group.threads)
        return self.clocks.rows(domains, agents)

    def units(self, group: Group) -> Array:
        """Return a thread of each agent that the group has a thread of."""
        if self.unit == 1:
            return group.threads
        return np.asarray(group.warp_numbers * WARP)

    def by_domain(self, group: Group) -> Iterator[tuple[int, list[int]]]:
        """Yield each domain that the group has threads in, and its agents there."""
        domains, agents = self.agents_of(self.units(group))
        for domain in np.unique(domains).tolist():
            yield domain, agents[domains == domain].tolist()

    def members(self, group: Group) -> tuple[int, list[int]]:
        """Return the domain of a group that has no other, and its agents there."""
        domains, agents = self.agents_of(self.units(group))
        return int(domains[0]), agents.tolist()

    def channel(self, does: str, owner: int, thread: int, *, asynchronous: bool = True) -> int:
        """Return the agent of an owner's operations, which a thread issues; made when needed."""
        domain = thread // self.threads_per_cta // self.cluster
        key = (does, owner, domain)
        if key not in self.state.channels:
            name = f"{does} of {self.warp_name(thread)}"
            made = self.clocks.channel(domain, name, asynchronous=asynchronous)
            self.state.channels[key] = made
        return self.state.channels[key]

    def name(self, domain: int, agent: int) -> str:
        """Return how findings call an agent."""
        each = self.threads_per_cta // self.unit
        if agent == 0:
            return "the mbarrier there"
        if agent > each * self.cluster:
            return self.clocks.names[domain, agent]
        thread = domain * self.cluster * self.threads_per_cta + (agent - 1) * self.unit
        lane = f"lane {thread % WARP} of " if self.unit == 1 else ""
        return f"{lane}{self.warp_name(thread)}"

    def cta_name(self, cta: int) -> str:
        """Return how findings call a CTA of the batch."""
        return f"CTA {self.number(cta)}"

    def number(self, cta: int) -> int:
        """Return a CTA's number in the grid."""
        x, y, z = (int(v) for v in self.place(np.array([self.first_cta + cta]))[:, 0])
        return x + self.grid[0] * (y + self.grid[1] * z)

    def place(self, ctas: Array) -> Array:
        """Return %ctaid of CTAs, numbered cluster by cluster: (3, n)."""
        shape = np.array(self.cluster_shape)[:, None]
        clusters = np.array(self.grid)[:, None] // shape
        first = _split(ctas // self.cluster, clusters) * shape
        places: Array = first + _split(ctas % self.cluster, shape)
        return places

    # Findings.

    def tick(self) -> int:
        """Return the step of the instruction that runs now."""
        self.log.append(self.pc)
        return len(self.log) - 1

    def find(
        self, kind: str, message: str, *, pc: int | None = None, other: int = -1,
        thread: int = -1, address: int = -1, severity: str = "error",
    ) -> None:  # fmt: skip
        """Note a fault at an instruction, once for each pair of instructions.

        ``thread`` is one of the batch, ``other`` the second instruction.
        """
        pc = self.pc if pc is None else pc
        key = (kind + severity, pc, other)
        if key in self.findings:
            found = self.findings[key]
            self.findings[key] = replace(found, count=found.count + 1)
            return
        here = self.code.instructions[pc]
        finding = Finding(kind, here.line, here.text, message, severity=severity, address=address)
        if other >= 0:
            there = self.code.instructions[other]
            finding = replace(finding, other_line=there.line, other_text=there.text)
        if thread >= 0:
            cta, inside = divmod(thread, self.threads_per_cta)
            finding = replace(finding, cta=self.number(cta), thread=inside)
        self.findings[key] = finding

    def conflict(self, found: Conflict | None, does: str, *, equal: bool = False) -> None:
        """Note a conflict on shared memory, if there is one; of ``equal`` values it only warns."""
        if found is None:
            return
        granules = self.shared_bytes // self.code.granule
        at = found.granule % granules * self.code.granule
        cta = found.granule // granules
        domain, agent = divmod(found.row, self.clocks.agents)
        other = self.name(domain, found.other)
        equal = equal and found.kind == "race" and found.what == "wrote"
        why = {
            "race": f"which {other} {found.what} and nothing orders before",
            "proxy": f"which {other} {found.what} with no fence.proxy.async since",
            "barrier": "where an mbarrier lives",
        }[found.kind]
        self.find(
            found.kind,
            f"{self.name(domain, agent)} {does} shared byte {at} of {self.cta_name(cta)}, {why}"
            + ", though with the same value" * equal,
            other=self.log[found.other_step],
            thread=domain * self.cluster * self.threads_per_cta + (agent - 1) * self.unit,
            address=at,
            severity="warning" if equal else "error",
        )

    def released(self, domain: int, agents: list[int], step: int, *, relaxed: bool) -> Array:
        """Return what an arrival publishes; a relaxed one only what its agents have fenced."""
        clock = self.clocks.snapshot(domain, agents, step)
        if relaxed:
            clock[[ORDER, PROXIED]] = -1
            for agent in agents:
                fenced = self.state.fenced.get((domain, agent))
                clock = clock if fenced is None else self.clocks.join(clock, fenced)
        return clock

    def remote(self, cta: int, thread: int, agent: int, step: int) -> None:
        """Note that an agent, in a thread's name, touches the shared memory of a CTA."""
        if thread // self.threads_per_cta != cta:
            self.state.remote.setdefault(cta, {})[agent] = step

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

    def poll(self, group: Group, pc: int, take: Callable[[], bool], say: Callable[[], str]) -> bool:
        """Whether ``take`` succeeds at once; else the threads sleep until it does."""
        if take():
            return True
        waiter = Waiter(pc + 1, group, say)
        self.wait(waiter)

        def again() -> bool:
            if id(waiter) not in self.waiting or not take():
                return False
            self.wake(id(waiter))
            return True

        self.polls.append(again)
        return False

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

    def finish_groups(self, issued: Groups, left: int, group: Group) -> None:
        """Perform all groups but the last ``left``, and let the threads that wait know."""
        domain, agents = self.members(group)
        while len(issued.groups) > left:
            for one in issued.groups.popleft():
                self.finish(one.pending)
                self.clocks.completed(domain, agents, issued.channel, one.step)

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
        """Run until all threads have ended, none can go on, or the limit is reached.

        Raises ProgramError, with the line, for what the interpreter cannot do.
        """
        try:
            self._loop()
        except TinyGpuError:
            raise
        except Exception as error:  # one boundary: no instruction fails without its line
            where = self.code.instructions[self.pc]
            what = f"{type(error).__name__}: {error}"
            raise ProgramError(f"PTX {where}: cannot be run ({what})") from error

    def _loop(self) -> None:
        chance = self.completion == "random"
        while True:
            while self.fragments:
                if chance and self.pending and self.random.random() < 0.2:
                    self.perform_one()
                pc = self._choose(chance)
                group = self.fragments.pop(pc)
                if chance and group.warps > 1 and self.random.random() < 0.25:
                    group = self._part(pc, group)
                self._execute(pc, group)
                if self.budget[0] < 0:
                    self.find(
                        "limit",
                        "still running after the launch's limit of instructions; raise limit, or "
                        "look for a loop that never ends",
                        thread=int(group.threads[0]),
                    )
                    return
            if self.perform_one():
                continue
            if not any(poll() for poll in self.polls):
                break
        if self.live.any():
            self._deadlock()

    def _part(self, pc: int, group: Group) -> Group:
        """Return some warps of a group; the others stay where they are."""
        warps = group.warp_numbers
        kept = self.random.sample(warps.tolist(), self.random.randrange(1, len(warps)))
        mask = np.isin(group.threads // WARP, kept)
        self.fragments[pc] = group.where(~mask)
        return group.where(mask)

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
        if pc in self.parked:
            parked = self.parked.pop(pc)
            group = Group(np.sort(np.concatenate([parked.threads, group.threads])))
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

    def _deadlock(self) -> None:
        lines = []
        for pc, group in self.parked.items():
            lines.append((pc, f"{self._who(group)}: the rest of the warp is elsewhere"))
        lines += [(w.pc, f"{self._who(w.group)}: {w.describe()}") for w in self.waiting.values()]
        for pc, text in sorted(lines)[:16]:
            at = pc if pc in self.parked else pc - 1
            self.find("deadlock", text, pc=at)

    def _who(self, group: Group) -> str:
        warps = group.warp_numbers
        each = self.threads_per_cta // WARP
        named = [f"{w % each} of {self.cta_name(w // each)}" for w in warps[:4].tolist()]
        return f"warp {', '.join(named)}{', ...' * (len(warps) > 4)}"


def _split(numbers: Array, shape: Array) -> Array:
    """Return the coordinates of numbers that count x first: (3, n)."""
    x, y = int(shape[0, 0]), int(shape[1, 0])
    return np.stack([numbers % x, numbers // x % y, numbers // (x * y)])
