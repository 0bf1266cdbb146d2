"""The state of the clusters that are resident together, and the scheduler of their threads.

Threads that stand at one instruction form a *group*, its numbers sorted (registers are indexed by a
slice where these have no gap); one NumPy operation serves a group, be it a
lane or sixty-four CTAs.  A group runs until it branches, waits, or meets a label where others may
join it; then the group with the least pc goes on, so that diverged threads meet again where their
paths do (every 32nd choice is the group that has waited longest, so that a loop that polls starves
nobody).  What a warp or warpgroup issues together waits until all its threads are there.

Asynchronous operations are *pending* until they are performed: when someone waits for them or when
nobody can go on ("late"), at once ("early"), or at any moment ("random").  Those of one queue are
performed in order.

Thread ``t`` of CTA ``c`` is number ``c * threads_per_cta + t``; CTAs have whole warpgroups.

>>> group = Group(np.array([32, 33, 34, 70]))
>>> group.size, group.warps, group.where(group.threads < 40).index
(4, 2, slice(32, 35, None))

Source: PTX ISA 9.0, section 3 (programming model) and 8.8 (asynchronous operations).
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from .accesses import Accesses, Grid
from .clocks import FAR, FENCED, ORDER, PROXIED, SC, SEEN, Clocks, Knowledge
from .memory import Memory
from .parser import Instruction
from .report import Array, Finding, Numbers

__all__ = [
    "COLUMNS", "DEEPEST", "FIRST_SHARED", "LANES", "LOCAL_MOST", "WARP", "WARPGROUP", "Action",
    "ClusterBarrier", "Code", "Group", "Issued", "Mbarrier", "NamedBarrier", "Pending", "Run",
    "Step", "TensorMemory", "Waiter", "one_of", "split",
]  # fmt: skip

WARP, WARPGROUP = 32, 128


class Group:
    """Threads that stand at one instruction: their sorted numbers, and how registers index them."""

    __slots__ = ("_agents", "_units", "_warp_numbers", "index", "size", "threads")

    def __init__(self, threads: Array) -> None:
        self.threads = threads
        self.size = len(threads)
        first, last = int(threads[0]), int(threads[-1])
        self.index: Any = slice(first, last + 1) if last - first + 1 == self.size else threads
        self._warp_numbers: Array | None = None
        self._units: dict[int, Array] = {}
        self._agents: tuple[Array, Array] | None = None

    def units(self, unit: int) -> Array:
        """Return which unit of so many threads each thread is in."""
        if unit not in self._units:
            self._units[unit] = self.threads // unit
        return self._units[unit]

    def agents(self, unit: int, each: int) -> tuple[Array, Array]:
        """Return each thread's domain, of ``each`` units, and agent there; always the same."""
        if self._agents is None:
            units = self.units(unit)
            self._agents = units // each, units % each + 1
        return self._agents

    @property
    def warps(self) -> int:
        """How many warps it has a thread of."""
        return len(self.warp_numbers)

    @property
    def warp_numbers(self) -> Array:
        """The warps that it has a thread of."""
        if self._warp_numbers is None:
            warps = self.threads // WARP
            keep = np.ones(self.size, bool)
            keep[1:] = warps[1:] != warps[:-1]
            self._warp_numbers = warps[keep]
        return self._warp_numbers

    def where(self, mask: Array) -> Group:
        """Return the part where the mask holds, which must not be empty."""
        return self if mask.all() else Group(self.threads[mask])


def one_of(thread: int) -> Group:
    """Return a group of one thread."""
    return Group(np.array([thread]))


@dataclass(slots=True, eq=False)
class Pending:
    """An asynchronous operation that has been issued: ``queue`` keeps those that stay in order."""

    perform: Callable[[], None]
    queue: object
    done: bool = False


@dataclass(slots=True, eq=False)
class Waiter:
    """Threads that wait: where they go on, for what, and what is done before they do."""

    pc: int
    group: Group
    describe: Callable[[], str]
    resume: Callable[[], None] = lambda: None
    barrier: NamedBarrier | Mbarrier | None = None


Gives = dict[tuple[int, int], tuple[int, Knowledge]]
"""What a cell gives, by scope and CTA or cluster: which CTA does (-1: several), and what."""


@dataclass(frozen=True, slots=True)
class Cell:
    """The last strong write of a place: its scope, CTA and agent of the grid; what it gives.

    ``seen`` is what it gives to a later fence.sc of who reads it.
    """

    scope: int
    cta: int
    writer: tuple[int, int]
    gives: Gives
    seen: Knowledge


LANES, COLUMNS = 128, 512  # spec: tensor memory


@dataclass(slots=True)
class NamedBarrier:
    """One named barrier of a CTA between two completions."""

    clock: Array
    arrived: int = 0
    waiters: list[Waiter] = field(default_factory=list)
    joined: set[int] = field(default_factory=set)
    """The warps of those who have arrived."""
    marks: dict[int, int] = field(default_factory=dict)
    """When each agent has arrived."""
    expected: int = 0
    counted: bool = False
    votes: list[Array] = field(default_factory=list)


@dataclass(slots=True)
class ClusterBarrier:
    """``owed``: threads that have arrived, and not waited since."""

    arrived: Array
    owed: Array
    clock: Array
    released: Array
    waiters: list[Waiter] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Mbarrier:
    """One barrier: ``channel`` is the agent of the loads that complete on it."""

    cta: int
    offset: int
    expected: int
    channel: int
    made_by: int
    made_at: int
    clock: Array
    released: Array
    pending: int = 0
    bytes: int = 0
    phase: int = 0
    last: dict[int, int] = field(default_factory=dict)
    """The phase in which each thread arrived last."""
    marks: dict[int, int] = field(default_factory=dict)
    """The steps of this phase's arrivals, by agent."""
    said: dict[int, list[int]] = field(default_factory=dict)
    """The bytes that each expect_tx of this phase said, by its pc."""
    before: dict[int, int] = field(default_factory=dict)
    """Those of the phase before, with the line of each thread's arrival."""
    lines: dict[int, int] = field(default_factory=dict)
    waiters: list[tuple[int, Waiter]] = field(default_factory=list)
    """Those who wait, each with the parity that the phase has to have had."""
    passed: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The step and the line of each agent's wait for the phase that is complete."""

    def __str__(self) -> str:
        return (
            f"mbarrier at shared byte {self.offset}, phase {self.phase}: {self.pending} of "
            f"{self.expected} arrivals and {self.bytes} B missing"
        )


@dataclass(slots=True, eq=False)
class Issued:
    """One operation of some threads: which group of each it is in, and whose part is not done."""

    group: Group
    number: Array
    channels: Array
    pc: int
    step: int
    move: Callable[[Array], object]
    left: Array
    registers: tuple[int, ...]


@dataclass(slots=True, eq=False)
class TensorMemory:
    """One CTA's: the cells, and the columns that each allocation begins with and has."""

    cells: Array = field(default_factory=lambda: np.full((LANES, COLUMNS), 0x7FC00000, np.uint32))
    allocated: dict[int, int] = field(default_factory=dict)
    closed: bool = False

    def free(self, columns: int) -> int | None:
        """Return where so many columns are free."""
        taken = np.zeros(COLUMNS, bool)
        for start, number in self.allocated.items():
            taken[start : start + number] = True
        starts = range(0, COLUMNS - columns + 1, columns)
        return next((s for s in starts if not taken[s : s + columns].any()), None)

    def owns(self, first: int, number: int) -> bool:
        """Whether these columns are in one allocation."""
        return any(s <= first and first + number <= s + n for s, n in self.allocated.items())


DEEPEST = 64
"""How many calls deep a thread may be: a recursion beyond it is a finding."""
LOCAL_MOST = 1 << 19  # spec: a thread's local memory, CUDA guide, compute capabilities
TICK = 64
"""By how much clocks grow with each choice of the scheduler, and each time one is read."""
FIRST_SHARED = 1024  # spec: the first KiB of a CTA's shared window is reserved, sm_90 and later
_FAIR = 32
_LATE = (8, 64, 512)
_PATIENCE = 512


Action = Callable[["Run", Group], None]


@dataclass(slots=True)
class Step:
    """A decoded instruction: ``controls`` says that threads may not go on after it."""

    action: Action
    controls: bool
    guard: int
    negated: bool
    leader: bool


@dataclass(slots=True)
class Code:
    """A decoded kernel; granules are the least widths of accesses to memory, in bytes."""

    instructions: tuple[Instruction, ...]
    register_bytes: list[int]
    tensor_granules: int
    fences: bool
    granule: int = 16
    global_granule: int = 16
    static_bytes: int = 0
    local_bytes: int = 0
    call_bytes: int = 0
    """Local memory of one call of a function, behind the kernel's own."""
    frame_bytes: int = 0
    parameter_bytes: int = 0
    parameter_at: dict[str, int] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    target: str = ""
    reserved: bool = False
    """Whether it asks where the reserved shared memory is, and so may use it."""
    proxies: bool = False
    """Whether it uses shared or tensor memory otherwise than by generic accesses and cp.async."""


@dataclass(slots=True)
class Run:
    """One batch of resident clusters; ``first_cta`` is the number of its first CTA in the grid.

    What the families of instructions keep has CTAs, warps, warpgroups or threads of the batch as
    keys, or offsets in shared memory.
    """

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
    next_cta: list[int] = field(default_factory=lambda: [0])
    """The first CTA of the grid that has not begun and is nobody's."""
    none_left: set[int] = field(default_factory=set)
    """CTAs that have asked for a cluster, and seen that there was none."""
    races: Grid | None = None
    """The accesses of global memory; None where these are not checked."""
    threads_per_cta: int = 0
    registers: list[Array] = field(default_factory=list)
    special: dict[str, Array] = field(default_factory=dict)
    fragments: dict[int, Group] = field(default_factory=dict)
    parked: dict[int, Group] = field(default_factory=dict)
    waiting: dict[Waiter, None] = field(default_factory=dict)
    pending: list[Pending] = field(default_factory=list)
    log: list[int] = field(default_factory=lambda: [-1])
    polls: list[Callable[[], bool]] = field(default_factory=list)
    pc: int = 0
    shared: Array = field(init=False)
    own_bytes: int = field(init=False)
    """The shared memory of a CTA that is its own; behind it the reserved, if it may use that."""
    local: Array = field(init=False)
    local_written: Array = field(init=False)
    committed: dict[str, Array] = field(init=False)
    """How many groups each thread has committed, of each kind of operation."""
    frame: Array = field(init=False)
    live: Array = field(init=False)
    carry: Array = field(init=False)
    depth: Array = field(init=False)
    returns: Array = field(init=False)
    kept: dict[tuple[int, int], Array] = field(default_factory=dict)
    """What recursive callers have kept, by depth and register."""
    clocks: Clocks = field(init=False)
    inside: Accesses = field(init=False)
    """The accesses of shared memory, and behind it of tensor memory."""
    late: list[int] = field(default_factory=list)
    """Clusters that have not begun, and at which choice they do if others do not wait before."""
    when: int = 0
    choices: int = 0
    elapsed: int = 0
    """What clocks have grown beside the choices: by reads of them and nanosleep."""
    gone: list[Array] = field(default_factory=list)
    """Those of the running group who do not go on: they jump, wait or end."""
    named: dict[tuple[int, int], NamedBarrier] = field(default_factory=dict)
    named_before: dict[tuple[int, int], dict[int, int]] = field(default_factory=dict)
    """The marks of the last phase that is complete."""
    """Named barriers that some have reached, by CTA and number."""
    clusters: dict[int, ClusterBarrier] = field(default_factory=dict)
    mbarriers: dict[int, Mbarrier] = field(default_factory=dict)
    """Live mbarriers, by their offset."""
    channels: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """Agents of asynchronous operations, by what they do, for whom, in which domain."""
    touched: dict[int, dict[int, int]] = field(default_factory=dict)
    """Who touched a CTA's shared memory from another CTA, and when last."""
    fenced: dict[tuple[int, int], dict[int, Knowledge]] = field(default_factory=dict)
    """What agents knew at their last fence of each scope: what relaxed stores and arrivals give."""
    seen: dict[tuple[int, int], Gives] = field(default_factory=dict)
    """What agents have read by relaxed loads: their next fence acquires it."""
    cells: dict[int, Cell] = field(default_factory=dict)
    """What the last strong stores to shared memory give, by their offset."""
    issued: dict[str, list[Issued]] = field(default_factory=lambda: defaultdict(list))
    """What is issued in groups, of each kind: cp.async, bulk stores, wgmma."""
    used: dict[int, dict[int, int]] = field(default_factory=dict)
    """Registers that a warpgroup has used since its last wgmma.fence, and where."""
    pools: dict[int, list[int]] = field(default_factory=dict)
    """Registers that a CTA has to give, and (by minus the warpgroup, less one) that one has."""
    tensor: dict[int, TensorMemory] = field(default_factory=lambda: defaultdict(TensorMemory))
    loading: dict[int, dict[int, int]] = field(default_factory=dict)
    """Registers that a warp's tcgen05.ld fill, and the pc of each."""
    tensor_steps: dict[tuple[int, bool], int] = field(default_factory=dict)
    """The step of a warp's last tcgen05.ld (true) or st."""
    tensor_last: dict[int, int] = field(default_factory=dict)
    """The step of a thread's last tcgen05 operation."""

    def __post_init__(self) -> None:
        threads = int(np.prod(self.block))
        self.threads_per_cta = -(-threads // WARPGROUP) * WARPGROUP
        total = self.ctas * self.threads_per_cta
        for width in self.code.register_bytes:
            bits = np.full(total * width, 0xFF, np.uint8)  # a NaN of every floating-point type
            kind = f"u{width}" if width < 16 else "V16"
            self.registers.append(bits.view(kind) if width else np.zeros(total, bool))
        self.own_bytes = -(-max(self.shared_bytes, 16) // 16) * 16
        size = self.own_bytes + FIRST_SHARED * self.code.reserved
        self.shared = np.full(self.ctas * size, 0xFF, np.uint8)
        self.shared_bytes = size
        size = -(-self.code.local_bytes // 16) * 16
        self.local = np.full((total, size), 0xFF, np.uint8)
        self.local_written = np.zeros((total, size), bool)
        self.frame = np.full((total, -(-self.code.frame_bytes // 16) * 16), 0xFF, np.uint8)
        self.committed = defaultdict(lambda: np.zeros(total, np.int64))
        self.carry = np.zeros(total, bool)
        self.depth, self.returns = np.zeros(total, int), np.zeros((DEEPEST, total), int)
        self.live = np.zeros((self.ctas, self.threads_per_cta), bool)
        self.live[:, :threads] = True
        self.live = self.live.reshape(-1)
        self.clocks = Clocks(
            domains=self.ctas // self.cluster,
            units=self.cluster * self.threads_per_cta // self.unit,
            first=self.first_cta // self.cluster,
        )
        granules = self.shared_bytes // self.code.granule + self.code.tensor_granules
        self.inside = Accesses(None, self.ctas * granules, self.code.granule)
        clusters = range(self.ctas // self.cluster)
        if self.completion == "random":
            self.late = self.random.sample(clusters, self.random.choice(clusters))
            self.when = self.random.choice(_LATE)
        self._begin([domain for domain in clusters if domain not in self.late])

    # Who is who.

    def live_in(self, cta: int) -> int:
        """Return how many threads of a CTA (in the batch) have not ended."""
        each = self.threads_per_cta
        return int(np.count_nonzero(self.live[cta * each : (cta + 1) * each]))

    def agents_of(self, threads: Any) -> tuple[Any, Any]:
        """Return the domain of each thread (or of one), and the agent that it is or is part of."""
        units, each = threads // self.unit, self.cluster * self.threads_per_cta // self.unit
        return units // each, units % each + 1

    def agents(self, group: Group) -> tuple[Array, Array]:
        """Return the domain of each thread of a group, and the agent that it is or is part of."""
        return group.agents(self.unit, self.cluster * self.threads_per_cta // self.unit)

    def cta_of(self, domain: Any, agent: Any) -> Any:
        """Return the CTA of agents that are threads or warps, counted over the grid."""
        each = self.threads_per_cta // self.unit
        return self.first_cta + domain * self.cluster + (agent - 1) // each

    def rows(self, group: Group) -> Array:
        """Return the clock rows of the group's threads."""
        return self.clocks.rows(*self.agents(group))

    def units(self, group: Group) -> Array:
        """Return a thread of each agent that the group has a thread of."""
        return group.threads if self.unit == 1 else np.asarray(group.warp_numbers * WARP)

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
        if key not in self.channels:
            name = f"{does} of {self.warp_name(thread)}"
            made = self.clocks.channel(domain, name, asynchronous=asynchronous)
            self.channels[key] = made
        return self.channels[key]

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
        shape = np.array(self.cluster_shape)
        first = split(ctas // self.cluster, np.array(self.grid) // shape) * shape[:, None]
        places: Array = first + split(ctas % self.cluster, shape)
        return places

    # Calls and clocks.

    def frame_at(self, group: Group) -> Array:
        """Return where the local memory of each thread's call begins."""
        frames: Array = self.depth[group.index] - 1
        return self.code.local_bytes + frames * self.code.call_bytes

    def clear_frame(self, group: Group) -> None:
        """Make local memory for the call that threads have entered: nobody has written it."""
        size = self.code.call_bytes
        first = self.frame_at(group)
        more = int(first.max()) + size - self.local.shape[1]
        if more > 0:
            pads = (0, 0), (0, more)
            self.local = np.pad(self.local, pads, constant_values=0xFF)
            self.local_written = np.pad(self.local_written, pads)
        bytes_of = first[:, None] + np.arange(size)
        self.local[group.threads[:, None], bytes_of] = 0xFF
        self.local_written[group.threads[:, None], bytes_of] = False

    def now(self) -> int:
        """Return what clocks show, in cycles or nanoseconds: later than whenever they were read."""
        self.elapsed += TICK
        return self.choices * TICK + self.elapsed

    # Findings.

    def tick(self) -> int:
        """Return the step of the instruction that runs now."""
        self.log.append(self.pc)
        return len(self.log) - 1

    def find(
        self, kind: str, message: str, *, pc: int | None = None, other: int = -1,
        thread: int = -1, who: int = -1, address: int = -1, severity: str = "error",
        numbers: Numbers = (),
    ) -> None:  # fmt: skip
        """Note a fault at an instruction, once for each pair of instructions.

        ``thread`` is one of the batch, ``who`` as well: its warp is the subject of the message;
        ``other`` is the second instruction.
        """
        if who >= 0:
            thread, message = who, f"{self.warp_name(who)} {message}"
        pc = self.pc if pc is None else pc
        key = (kind + severity, pc, other)
        if key in self.findings:
            found = self.findings[key]
            self.findings[key] = replace(found, count=found.count + 1)
            return
        here = self.code.instructions[pc]
        finding = Finding(
            kind, here.line, here.text, message, severity=severity, address=address,
            numbers=numbers,
        )  # fmt: skip
        if other >= 0:
            there = self.code.instructions[other]
            finding = replace(finding, other_line=there.line, other_text=there.text)
        if thread >= 0:
            cta, inside = divmod(thread, self.threads_per_cta)
            finding = replace(finding, cta=self.number(cta), thread=inside)
        self.findings[key] = finding

    def released(self, domain: int, agents: list[int], step: int, *, relaxed: bool) -> Array:
        """Return what an arrival publishes; a relaxed one only what its agents have fenced."""
        clock = self.clocks.snapshot(domain, agents, step)
        if relaxed:
            clock[[ORDER, PROXIED, FENCED, SC, SEEN, FAR]] = -1
            for agent in agents:
                for known in self.fenced.get((domain, agent), {}).values():
                    clock = self.clocks.join(clock, self.clocks.recall(domain, known))
        return clock

    def remote(self, cta: int, thread: int, agent: int, step: int) -> None:
        """Note that an agent, in a thread's name, touches the shared memory of a CTA."""
        if thread // self.threads_per_cta != cta:
            self.touched.setdefault(cta, {})[agent] = step

    def warp_name(self, thread: int) -> str:
        """Return how findings call the warp of a thread."""
        cta, inside = divmod(int(thread), self.threads_per_cta)
        return f"warp {inside // WARP} of {self.cta_name(cta)}"

    # Threads.

    def jump(self, pc: int, group: Group) -> None:
        """Let threads of the running group go on at ``pc``."""
        self.gone.append(group.threads)
        self.push(pc, group)

    def push(self, pc: int, group: Group) -> None:
        """Let a group go on at ``pc``, together with those that are there."""
        for waiting in (self.parked.pop(pc, None), self.fragments.pop(pc, None)):
            if waiting is not None:
                group = Group(np.sort(np.concatenate([waiting.threads, group.threads])))
        self.fragments[pc] = group

    def wait(self, waiter: Waiter) -> None:
        """Put threads of the running group to sleep."""
        self.gone.append(waiter.group.threads)
        self.waiting[waiter] = None

    def release(self, waiters: list[Waiter], clock: Array) -> None:
        """Let threads that slept know a clock, and go on."""
        for waiter in waiters:
            self.clocks.acquire(*self.members(waiter.group), clock)
            self.wake(waiter)

    def wake(self, waiter: Waiter) -> None:
        """Let threads that slept go on."""
        del self.waiting[waiter]
        waiter.resume()
        self.push(waiter.pc, waiter.group)

    def poll(self, group: Group, take: Callable[[], bool], say: Callable[[], str]) -> None:
        """Let threads sleep until ``take`` succeeds, if it does not at once."""
        if take():
            return
        waiter = Waiter(self.pc + 1, group, say)
        self.wait(waiter)

        def again() -> bool:
            if waiter not in self.waiting or not take():
                return False
            self.wake(waiter)
            return True

        self.polls.append(again)

    def together(self, group: Group, unit: int) -> Group | None:
        """Return the part whose units (warps or warpgroups) are complete; park the rest."""
        threads, first = group.threads, group.threads[::unit]
        if group.size % unit == 0 and not (first % unit).any():
            ends = threads[unit - 1 :: unit] - first
            if (ends == unit - 1).all():
                return group
        units = threads // unit
        here = np.bincount(units, minlength=len(self.live) // unit)
        full = here == self.live.reshape(-1, unit).sum(1)
        mask = full[units]
        return self.park(group, ~mask)

    def park(self, group: Group, early: Array) -> Group | None:
        """Let those who came too early wait for others at this instruction; return the rest."""
        if not early.any():
            return group
        self.parked[self.pc] = group.where(early)
        self.gone.append(group.threads[early])
        return None if early.all() else group.where(~early)

    # Asynchronous operations.

    def keep(
        self, kind: str, group: Group, channels: Array | int, move: Callable[[Array], object],
        registers: tuple[int, ...] = (),
    ) -> None:  # fmt: skip
        """Put what threads issued at the last step into the group that is open of each."""
        channels = np.broadcast_to(channels, (group.size,))
        number, left = self.committed[kind][group.threads], np.ones(group.size, bool)
        step = len(self.log) - 1
        one = Issued(group, number, channels, self.pc, step, move, left, registers)
        self.issued[kind].append(one)

    def land(self, kind: str, group: Group, done: Callable[[Issued], Array | bool]) -> None:
        """Let what threads have issued be done where ``done`` holds, and let them know."""
        mine = np.zeros(len(self.live), bool)
        mine[group.index] = True
        for one in list(self.issued[kind]):
            which = mine[one.group.threads] & one.left & done(one)
            if not which.any():
                continue
            one.move(np.flatnonzero(which))
            one.left &= ~which
            domains, agents = self.agents_of(one.group.threads[which])
            self.clocks.completed(domains, agents, one.channels[which], one.step)
            if not one.left.any():
                self.issued[kind].remove(one)

    def issue(self, perform: Callable[[], None], queue: object = None) -> Pending:
        """Issue an asynchronous operation."""
        pending = Pending(perform, queue)
        self.pending.append(pending)
        if self.completion == "early":
            self.finish(pending)
        return pending

    def finish(self, pending: Pending) -> None:
        """Perform an operation now, after those before it in its queue."""
        while not pending.done:
            self._perform(pending)

    def _perform(self, pending: Pending) -> None:
        """Perform an operation, or the first of its queue that is not done."""
        if pending.queue is not None:
            pending = next(p for p in self.pending if p.queue == pending.queue)
        self.pending.remove(pending)
        pending.done = True
        pending.perform()

    def perform_one(self) -> bool:
        """Perform the oldest operation, or a random one; False if there is none."""
        if not self.pending:
            return False
        i = self.random.randrange(len(self.pending)) if self.completion == "random" else 0
        self._perform(self.pending[i])
        return True

    # The loop.

    def _begin(self, clusters: list[int]) -> None:
        """Let the threads of clusters begin."""
        of = np.arange(len(self.live)) // (self.cluster * self.threads_per_cta)
        self.push(0, Group(np.flatnonzero(self.live & np.isin(of, clusters))))

    def run(self) -> None:
        """Run until all threads have ended, none can go on, or the limit is reached."""
        chance = self.completion == "random"
        while True:
            while self.fragments or self.late:
                if self.late and (not self.fragments or self.choices >= self.when):
                    late, self.late = self.late, []
                    self._begin(late)
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
            here, passed = group, None
            if step.guard >= 0:
                mask = self.registers[step.guard][group.index]
                if step.negated:
                    mask = ~mask
                taken = int(np.count_nonzero(mask))
                if taken == 0:
                    pc += 1
                    continue
                if taken < group.size:
                    here, passed = group.where(mask), ~mask
            counts[pc] += group.warps
            if not step.controls:
                step.action(self, here)
                pc += 1
                continue
            if passed is not None:
                self.push(pc + 1, group.where(passed))
            self.gone = []
            step.action(self, here)
            stays = self._staying(here)
            if stays is None or passed is not None:
                if stays is not None:
                    self.push(pc + 1, stays)
                self.budget[0] -= pc - first + 1
                return
            group, pc = stays, pc + 1

    def _staying(self, group: Group) -> Group | None:
        """Return who goes on with the next instruction."""
        if not self.gone:
            return group
        gone = np.concatenate(self.gone)
        return None if len(gone) == group.size else group.where(~np.isin(group.threads, gone))

    def _deadlock(self) -> None:
        lines: list[tuple[int, str, Numbers]] = []
        for pc, group in self.parked.items():
            lines.append((pc, f"{self._who(group)}: the rest of the warp is elsewhere", ()))
        for w in self.waiting:
            numbers = tuple(self._right(w.pc - 1, w.barrier))
            lines.append((w.pc - 1, f"{self._who(w.group)}: {w.describe()}", numbers))
        for pc, text, numbers in sorted(lines)[:16]:
            why = "".join(f"; line {line} {n}" for line, *_, n in numbers)
            self.find("deadlock", f"{text}{why}", pc=pc, numbers=numbers)

    def right(self, pc: int, operand: int, right: int, why: str) -> tuple[Any, ...]:
        """Return what a number of an instruction would rightly be, as ``Finding`` has it."""
        i = self.code.instructions[pc]
        return i.line, i.opcode, operand, right, why

    def _right(self, pc: int, barrier: NamedBarrier | Mbarrier | None) -> Iterator[Any]:
        """Yield numbers with which a barrier would complete."""
        if isinstance(barrier, NamedBarrier) and barrier.counted:
            at = 1 + ("red" in self.code.instructions[pc].parts)
            size, said = int(np.prod(self.block)), f"counts {barrier.expected} threads"
            if size != barrier.expected:
                yield self.right(pc, at, size, f"{said}, the CTA has {size}")
            yield self.right(pc, at, barrier.arrived, f"{said}, {barrier.arrived} come")
        if isinstance(barrier, Mbarrier) and 0 < barrier.pending < barrier.expected:
            come, made = barrier.expected - barrier.pending, self.log[barrier.made_at]
            why = f"counts {barrier.expected} arrivals, {come} come"
            yield self.right(made, 1, come, why)
        if isinstance(barrier, Mbarrier) and barrier.bytes:
            for at, bytes_said in barrier.said.items():
                right = bytes_said[0] - barrier.bytes // len(bytes_said)
                why = f"says {bytes_said[0]} B, {right} land"
                yield self.right(at, -1, right, why)

    def _who(self, group: Group) -> str:
        warps = group.warp_numbers
        each = self.threads_per_cta // WARP
        named = [f"{w % each} of {self.cta_name(w // each)}" for w in warps[:4].tolist()]
        return f"warp {', '.join(named)}{', ...' * (len(warps) > 4)}"


def split(numbers: Array, shape: Sequence[int] | Array) -> Array:
    """Return the coordinates of numbers that count x first: (3, n)."""
    x, y, _ = shape
    return np.stack([numbers % x, numbers // x % y, numbers // (x * y)])
