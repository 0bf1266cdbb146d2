"""What the resident clusters share beside memory and clocks: barriers, queues, tensor memory.

Each table is kept by the family of instructions of that name.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from tinygpu.codegen.emulator.group import Group, Pending, Waiter
from tinygpu.codegen.emulator.report import Array

__all__ = [
    "COLUMNS", "LANES", "ClusterBarrier", "Copy", "Groups", "Issued", "Mbarrier", "NamedBarrier",
    "Products", "Stack", "State", "TensorMemory",
]  # fmt: skip

LANES, COLUMNS = 128, 512  # spec: tensor memory


@dataclass(slots=True)
class NamedBarrier:
    """One named barrier of a CTA between two completions."""

    arrived: int = 0
    clock: Array | None = None
    waiting: list[int] = field(default_factory=list)
    waiters: list[Waiter] = field(default_factory=list)
    joined: set[int] = field(default_factory=set)
    expected: int = 0
    counted: bool = False
    votes: list[tuple[Waiter, Array]] = field(default_factory=list)


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
    before: dict[int, int] = field(default_factory=dict)
    """Those of the phase before, with the line of each thread's arrival."""
    lines: dict[int, int] = field(default_factory=dict)
    waiters: list[tuple[int, Waiter, Callable[[], None]]] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"mbarrier at shared byte {self.offset}, phase {self.phase}: {self.pending} of "
            f"{self.expected} arrivals and {self.bytes} B missing"
        )


@dataclass(slots=True, eq=False)
class Copy:
    """One cp.async of some threads: which group of each thread it belongs to."""

    group: Group
    number: Array
    step: int
    move: Callable[[Array], None]
    left: Array


@dataclass(frozen=True, slots=True, eq=False)
class Issued:
    """One operation: where and at which step it was issued, and the registers that it owns."""

    pending: Pending
    pc: int
    step: int
    registers: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class Groups:
    """What a thread (bulk stores) or a warpgroup (products) has issued, group by group."""

    channel: int
    open: list[Issued] = field(default_factory=list)
    groups: deque[list[Issued]] = field(default_factory=deque)

    def commit(self) -> None:
        """Make a group of what is in none."""
        self.groups.append(self.open)
        self.open = []


@dataclass(slots=True, eq=False)
class Products(Groups):
    """One warpgroup's products: ``held`` says which registers which product owns, by its pc."""

    held: dict[int, int] = field(default_factory=dict)
    touched: dict[int, int] = field(default_factory=dict)
    fenced: bool = False

    def release(self) -> None:
        """Count again which registers are owned."""
        held = {}
        for group in (*self.groups, self.open):
            for product in group:
                held.update(dict.fromkeys(product.registers, product.pc))
        self.held = held


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
        for start in range(0, COLUMNS - columns + 1, columns):
            if not taken[start : start + columns].any():
                return start
        return None

    def owns(self, first: int, number: int) -> bool:
        """Whether these columns are in one allocation."""
        return any(s <= first and first + number <= s + n for s, n in self.allocated.items())


@dataclass(slots=True)
class Stack:
    """Where each thread returns to, by depth, and what recursive callers have kept."""

    depth: Array
    returns: Array
    kept: dict[tuple[int, int], Array]


@dataclass(slots=True)
class State:
    """Keys are CTAs, warps, warpgroups or threads of the batch, or offsets in shared memory."""

    named: dict[tuple[int, int], NamedBarrier] = field(default_factory=dict)
    """Named barriers that some have reached, by CTA and number."""
    clusters: dict[int, ClusterBarrier] = field(default_factory=dict)
    mbarriers: dict[int, Mbarrier] = field(default_factory=dict)
    """Live mbarriers, by their offset."""
    channels: dict[tuple[str, int, int], int] = field(default_factory=dict)
    """Agents of asynchronous operations, by what they do, for whom, in which domain."""
    remote: dict[int, dict[int, int]] = field(default_factory=dict)
    """Who touched a CTA's shared memory from another CTA, and when last."""
    fenced: dict[tuple[int, int], Array] = field(default_factory=dict)
    """What agents knew at their last fence: what their relaxed stores and arrivals release."""
    seen: dict[tuple[int, int], Array] = field(default_factory=dict)
    """What agents have read by relaxed loads: their next fence acquires it."""
    cells: dict[int, Array] = field(default_factory=dict)
    """What the last strong stores to shared memory release, by their offset."""
    copies: list[Copy] = field(default_factory=list)
    bulk: dict[int, Groups] = field(default_factory=dict)
    products: dict[int, Products] = field(default_factory=dict)
    pools: dict[int, list[int]] = field(default_factory=dict)
    """Registers that a CTA has to give, and (by minus the warpgroup, less one) that one has."""
    tensor: dict[int, TensorMemory] = field(default_factory=dict)
    loading: dict[int, dict[int, int]] = field(default_factory=dict)
    """Registers that a warp's tcgen05.ld fill, and the pc of each."""
    tensor_steps: dict[tuple[int, bool], int] = field(default_factory=dict)
    """The step of a warp's last tcgen05.ld (true) or st."""
    tensor_last: dict[int, int] = field(default_factory=dict)
    """The step of a thread's last tcgen05 operation."""
