"""Statements: what a term does, and what comes after what.

    Do(instruction, writes, reads, threads, values)   one instruction by each thread, on each value
    For(var, trips, body)                             a loop, unrolled or not
    ForTile(tile, turn, body)                         a loop over the tiles of a cluster, and values
    When(index, bound, body)                          the body where index < bound
    Elect(body)                                       the body by one thread of the role, the first
    Exit(access)                                      threads with no element inside leave
    Sync(barrier, scope)          bar.sync: all threads of the CTA, a role's copy, the cluster
    Commit(group), WaitGroup(..)  groups of copies (cp.async), products (wgmma), stores (bulk)
    Arrive, Wait                  a barrier: a phase ends when all arrivals and bytes are there
    Fence                         fence.proxy.async, wgmma.fence, tcgen05.fence

**A walk asks a statement, not its kind**: every one has a ``body`` (empty, unless it is a block),
says which rings and barriers it touches at which index (``uses``), which affine forms it holds
(``forms``, changed by ``with_forms``), which guards it stands under (``guards``), which names it
binds and which numbers of it may be parameters.  Only what executes, times or emits statements
tells them apart.

**An mbarrier is a ring too.**  A ``Barrier`` has D stages, each an mbarrier of its own.  Whatever
names it carries an index x, affine in the loop variables, and means phase floor(x / D) of stage
x mod D.  Phases before 0 are over from the start, so that a producer waits for index n - D, the
last use of the stage that it is about to fill, without a special case.

**A named barrier is a ring, too**, of the sixteen that bar.sync and bar.arrive have.  It counts
threads: a ``Wait`` arrives and then waits (bar.sync), an ``Arrive`` only arrives (bar.arrive).  It
has no parity, so an arrival that comes a phase early counts in the wrong one.  No phase is before
0: who comes first is said in the term.

>>> from tinygpu.term.access_map import var
>>> full = Barrier("full", 4, arrivals=1)
>>> print(Wait(full, var("k")), "|", Arrive(full, var("k"), bytes=32768))
wait full@(k) | arrive full@(k) expecting 32768 B
>>> turn = Barrier("turn", 2, arrivals=256, number=2)
>>> print(Wait(turn, var("k")), "|", Arrive(turn, var("k") + 1))
bar.sync turn@(k) | bar.arrive turn@(k + 1)
>>> loop = For("k", 4, (Wait(full, var("k")), Arrive(full, var("k") + 1)))
>>> [str(form) for statement in each((loop,)) for form in statement.forms]
['k', 'k + 1']

Source: PTX ISA 9, "Parallel Synchronization and Communication Instructions"; ``docs/model.md``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, Self, get_args, overload

from tinygpu.errors import ProgramError, nearest, require_kind
from tinygpu.isa.algebra import Algebra
from tinygpu.isa.cp_async import COPIES
from tinygpu.isa.instruction import Instruction
from tinygpu.isa.instructions import ARRIVALS, FENCES, GROUPS, group_of
from tinygpu.isa.ordering import By, FenceKind, Group
from tinygpu.numbers import Number
from tinygpu.term.access_map import Access, Affine, Buffer, Operand, Predicate, number_text
from tinygpu.term.expression import Expression, Values
from tinygpu.term.formula import formula, symbols

__all__ = [
    "Arrive", "Barrier", "Block", "Body", "Commit", "Do", "Elect", "Exit", "Fence", "For",
    "ForTile", "Order", "RingUse", "Scope", "Statement", "Sync", "Wait", "WaitGroup", "When",
    "changed", "each", "walked",
]  # fmt: skip

Scope = Literal["cta", "role", "cluster"]


def _known(what: str, word: str, words: Collection[str]) -> None:
    if word not in words:
        raise ProgramError(f"{what} {word}; {nearest(word, words)}")


class RingUse(NamedTuple):
    """A ring or a barrier that a statement touches, at which index, and how."""

    ring: Buffer | Barrier
    at: Affine
    how: Literal["read", "write", "tell", "wait"]
    peer: int = 0


class _Answers:
    """What every statement answers."""

    __slots__ = ()

    @property
    def accesses(self) -> tuple[Access, ...]:
        """Its reads and then its write."""
        return ()

    @property
    def uses(self) -> tuple[RingUse, ...]:
        """What it reads, writes, tells and waits for, in this order."""
        return ()

    @property
    def told(self) -> tuple[Affine, ...]:
        """Its index of the barrier that it tells or waits for."""
        return ()

    @property
    def guards(self) -> tuple[tuple[Affine, int | str], ...]:
        """(index, bound): what it asks about ``index < bound``."""
        return ()

    @property
    def forms(self) -> tuple[Affine, ...]:
        """The affine forms that it itself has: origins, indices, starts."""
        places = list[Affine]()
        for access in self.accesses:
            places += (*access.origin, access.index)
        return (*places, *self.told, *self.compared, *[index for index, _ in self.guards])

    @property
    def compared(self) -> tuple[Affine, ...]:
        """What its predicate compares."""
        return ()

    def with_forms(self, change: Callable[[Affine], Affine]) -> Self:
        """Return it, but for its body, with ``change`` of each of its indices and starts."""
        return self

    @property
    def binds(self) -> tuple[str, ...]:
        """The variables that its body has and what stands around does not."""
        return ()

    @property
    def defines(self) -> tuple[str, ...]:
        """The numbers that its body names as it names parameters: a tile's values."""
        return ()

    @property
    def numbers(self) -> tuple[int | str, ...]:
        """What of it may be the name of a parameter, a size or a tile value."""
        return ()

    @property
    def how(self) -> Group | FenceKind | None:
        """The group that it is about, or the kind of fence."""
        return None

    @property
    def needs(self) -> str:
        """The instruction that a machine has to have for it; "" for a block."""
        return self.how.needs if self.how else ""

    @property
    def by(self) -> By:
        """Who has to execute it: all threads of a role, whole warps, one; "": who comes to it."""
        return self.how.by if self.how else ""

    @property
    def wrong(self) -> str:
        """Why PTX has no such statement; "" if it has."""
        return ""


class _Simple(_Answers):
    """A statement without a body."""

    __slots__ = ()
    body: ClassVar[Body] = ()


@dataclass(frozen=True, slots=True)
class Sync(_Simple):
    """``bar.sync``: every thread of the scope arrives and waits.

    "role" is one copy of the role (copy c uses barrier ``barrier + c``); "cluster" is
    ``barrier.cluster`` by every thread of every CTA of the cluster, and has no number.
    """

    barrier: int = 0
    scope: Scope = "cta"

    def __post_init__(self) -> None:
        _known("a barrier's scope", self.scope, get_args(Scope))

    @property
    def by(self) -> By:
        return "all"

    @property
    def needs(self) -> str:
        return "barrier.cluster" if self.scope == "cluster" else "bar.sync"

    def __str__(self) -> str:
        if self.scope == "cluster":
            return "barrier.cluster"
        return f"bar.sync {number_text(self.barrier)}" + (
            " of the role" if self.scope == "role" else ""
        )


class _OfGroup(_Simple):
    """A statement about a group, which has its name."""

    __slots__ = ()
    group: str

    def __post_init__(self) -> None:
        _known("a group", self.group, GROUPS)

    @property
    def how(self) -> Group:
        return GROUPS[self.group]


@dataclass(frozen=True, slots=True)
class Commit(_OfGroup):
    """Close the group of this thread's copies, of its stores, of this warpgroup's products."""

    group: str = COPIES.name

    def __str__(self) -> str:
        return f"{self.how.ptx}.commit_group"


@dataclass(frozen=True, slots=True)
class WaitGroup(_OfGroup):
    """All but the newest ``pending`` groups are done; ``read``: their sources have been read.

    Of "tcgen05.ld" and "tcgen05.st" (tcgen05.wait) all are, without a Commit: ``pending`` is 0.
    """

    pending: int = 0
    group: str = COPIES.name
    read: bool = False

    @property
    def wrong(self) -> str:
        alone = self.how.read or not self.read
        return "" if alone else ".read is of a bulk copy alone; leave it out"

    def __str__(self) -> str:
        text = f"{self.how.ptx}.{self.how.wait}"
        many = f"{'.read' * self.read} {number_text(self.pending)}"
        return text + many if self.how.committed else text


@dataclass(frozen=True, slots=True)
class Barrier:
    """A ring of barriers, each of which ``arrivals`` complete: mbarriers in shared memory.

    With ``home`` = a cluster axis's variable, CTAs along it use the one of the CTA at 0: whatever
    arrives or lands at it does so there.  Only that CTA may wait for it.

    With a ``number`` they are named barriers of the CTA: stage s is the one of bar.sync that has
    the number ``number + s``, and ``arrivals`` are threads, those that wait among them.
    """

    name: str
    stages: int = 1
    arrivals: int = 1
    home: str = ""
    number: int | None = None

    @property
    def named(self) -> bool:
        """Whether it is a ring of named barriers, and not of mbarriers."""
        return self.number is not None

    def __str__(self) -> str:
        where = f", at {self.home} 0" if self.home else ""
        arrivals, stages = number_text(self.arrivals), number_text(self.stages)
        if self.named:
            kind, where = "bar.sync ", f"{where}, from number {number_text(self.number)}"
        else:
            kind = "mbarrier "
        return f"{self.name:8} {kind} {arrivals} arrivals x {stages} stages{where}"


@dataclass(frozen=True, slots=True)
class _AtBarrier(_Simple):
    """A statement about phase floor(index / stages) of a stage of a barrier."""

    barrier: Barrier
    index: Affine

    def __post_init__(self) -> None:
        require_kind(f"{type(self).__name__}: barrier", self.barrier, Barrier, ProgramError)
        require_kind(f"{type(self).__name__}: index", self.index, Affine, ProgramError)

    @property
    def uses(self) -> tuple[RingUse, ...]:
        return (RingUse(self.barrier, self.index, "wait" if isinstance(self, Wait) else "tell"),)

    @property
    def told(self) -> tuple[Affine, ...]:
        return (self.index,)

    def with_forms(self, change: Callable[[Affine], Affine]) -> Self:
        return replace(self, index=change(self.index))


@dataclass(frozen=True, slots=True)
class Wait(_AtBarrier):
    """``mbarrier.try_wait``: until phase floor(index / stages) of the stage is complete.

    Of a named barrier ``bar.sync``: each thread of the role's copy arrives there, then waits.
    """

    @property
    def needs(self) -> str:
        return "bar.sync" if self.barrier.named else "mbarrier"

    @property
    def by(self) -> By:
        return "all" if self.barrier.named else ""

    @property
    def wrong(self) -> str:
        return _no_home(self.barrier)

    def __str__(self) -> str:
        how = "bar.sync" if self.barrier.named else "wait"
        return f"{how} {self.barrier.name}@({self.index})"


@dataclass(frozen=True, slots=True)
class Arrive(_AtBarrier):
    """``mbarrier.arrive``: one arrival; with ``bytes``, which the phase then also has to see land.

    ``to`` "cluster": at the same barrier of every CTA of the cluster, the own one too; a cluster
    axis's variable, or several with blanks between: of every CTA along it.
    ``after`` "tcgen05" (tcgen05.commit): not now, but when all products (tcgen05.mma) that the
    thread has issued are done.

    Of a named barrier ``bar.arrive``, by each thread of the role's copy.
    """

    bytes: int = 0
    to: str = "cta"
    after: str = ""

    def __post_init__(self) -> None:
        _AtBarrier.__post_init__(self)
        _known("an arrival after", self.after, ("", *ARRIVALS))

    @property
    def how(self) -> Group | None:
        return ARRIVALS[self.after] if self.after else None

    @property
    def needs(self) -> str:
        if self.barrier.named:
            return "bar.sync"
        return self.how.needs if self.how else "mbarrier"

    @property
    def by(self) -> By:
        if self.barrier.named:
            return "all"
        return self.how.by if self.how else ""

    @property
    def wrong(self) -> str:
        if self.barrier.named and (self.after or self.to != "cta" or str(self.bytes) != "0"):
            return "a named barrier counts now, in its own CTA, and no bytes; use an mbarrier"
        return _no_home(self.barrier)

    def __str__(self) -> str:
        text = "bar.arrive" if self.barrier.named else "arrive"
        text = self.how.needs if self.how else text
        text += f" {self.barrier.name}@({self.index})"
        text += " of the cluster" if self.to == "cluster" else ""
        text += f" along {self.to}" if self.to not in ("cta", "cluster") else ""
        return text if str(self.bytes) == "0" else f"{text} expecting {number_text(self.bytes)} B"


def _no_home(barrier: Barrier) -> str:
    """Return why PTX has no such barrier; "" if it has."""
    far = barrier.named and barrier.home
    return "a named barrier is its CTA's own; leave out its home, or use an mbarrier" if far else ""


@dataclass(frozen=True, slots=True)
class Fence(_Simple):
    """A fence by each thread.

    "proxy.async": what it wrote before, the asynchronous proxy (TMA, wgmma) will see.  "wgmma":
    what it did to registers before, products that it issues later will see.  "tcgen05.before": what
    its tcgen05 instructions did is told by what it does next to tell others (an arrival, a
    barrier); "tcgen05.after": its tcgen05 instructions from here on come after what it waited for.
    """

    kind: str

    def __post_init__(self) -> None:
        _known("a fence", self.kind, FENCES)

    @property
    def how(self) -> FenceKind:
        return FENCES[self.kind]

    def __str__(self) -> str:
        return self.how.ptx


@dataclass(frozen=True, slots=True)
class Do(_Simple):
    """One instruction by each thread (``threads`` extents) on each of its values.

    ``vector`` values, the first in order, are moved by one instruction.  ``variant`` picks of a
    family.
    ``lanes`` = (divisor, extent, residue) restricts it to threads with
    ``(t // divisor) % extent == residue``.  ``across`` is shfl.sync's butterfly mask.

    Of asynchronous copies (TMA): its bytes land at ``signal`` = (barrier, index), in this CTA or,
    with ``multicast`` = a cluster axis's variable, in all CTAs along it, each at its own barrier.
    Of products: where ``fresh`` is 0 the sums start anew instead of being added to.  Of tcgen05.mma
    ``multicast`` names the axis of a pair of CTAs, each of which multiplies its own first input by
    the second inputs of both: half h of the columns (value mode 3) is CTA h's.

    ``where``: it acts on those values alone of which the predicate holds, of what else it would
    write the register keeps what it had.  It is a predicate of the instruction, never a branch,
    and only of arithmetic on a thread's own registers.
    """

    instruction: Instruction
    write: Access
    reads: tuple[Operand, ...] = ()
    values: tuple[int, ...] = ()
    threads: tuple[int, ...] = ()
    vector: int = 1
    variant: str = ""
    lanes: tuple[int, int, int] | None = None
    across: int = 0
    signal: tuple[Barrier, Affine] | None = None
    multicast: str = ""
    fresh: Affine | None = None
    where: Predicate | None = None

    @property
    def of_tile(self) -> bool:
        """Whether its values are those of a tile, and not of each thread."""
        return self.instruction.of_tile and not self.threads

    @property
    def accesses(self) -> tuple[Access, ...]:
        """Its reads and then its write."""
        return (*[r for r in self.reads if isinstance(r, Access)], self.write)

    @property
    def uses(self) -> tuple[RingUse, ...]:
        read = (*self.reads, *([self.write] if self.where else ()))  # which it keeps, else
        reads = [RingUse(r.buffer, r.index, "read") for r in read if isinstance(r, Access)]
        told = (RingUse(*self.signal, "tell"),) if self.signal else ()
        to = self.write
        return (*reads, RingUse(to.buffer, to.index, "write", to.peer), *told)

    @property
    def told(self) -> tuple[Affine, ...]:
        return self.signal[1:] if self.signal else ()

    @property
    def compared(self) -> tuple[Affine, ...]:
        return () if self.where is None else (self.where.origin, self.where.bound)

    @property
    def guards(self) -> tuple[tuple[Affine, int | str], ...]:
        return () if self.fresh is None else ((self.fresh, 1),)

    @property
    def wrong(self) -> str:
        """Why its instruction does not take the types of its operands; "" if it does.

        Raises MachineError for an instruction whose meaning is no formula of what it reads.
        """
        how, to = self.instruction, self.write.buffer
        if self.signal and self.signal[0].named:
            return "bytes land at an mbarrier, not at a named barrier; signal one without number"
        if how.meaning is not None:
            formula(how, len(self.reads))
        given = [r.buffer for r in self.reads if isinstance(r, Access)]
        added = given[2:] if how.unit == "tensor" else []
        given = given[: len(given) - len(added)]
        pairs = [(b, to) for b in given if not how.takes(b.dtype, to.dtype)]
        pairs += [(given[0], b) for b in given if b.dtype != given[0].dtype]
        pairs += [(b, to) for b in added if b.dtype != to.dtype]
        if not given and how.types and all(to.dtype != written for _, written in how.types):
            pairs = [(to, to)]
        if not pairs:
            return ""
        (one, other), *_ = pairs
        known = ", ".join(a if a == b else f"{a} to {b}" for a, b in how.types)
        return (
            f"{one.name} is {one.dtype}, {other.name} {other.dtype}; {how.name} takes "
            f"{known or 'one type for all'}: convert first (cvt)"
        )

    def with_forms(self, change: Callable[[Affine], Affine]) -> Do:
        def moved(access: Access) -> Access:
            origin, index = tuple(map(change, access.origin)), change(access.index)
            same = index is access.index and origin == access.origin
            return access if same else replace(access, origin=origin, index=index)

        return replace(
            self,
            write=moved(self.write),
            reads=tuple(moved(r) if isinstance(r, Access) else r for r in self.reads),
            signal=(self.signal[0], change(self.signal[1])) if self.signal else None,
            fresh=None if self.fresh is None else change(self.fresh),
            where=None
            if self.where is None
            else replace(
                self.where, origin=change(self.where.origin), bound=change(self.where.bound)
            ),
        )

    @property
    def joins(self) -> Group | None:
        """The group that it joins, for which there is a wait."""
        return group_of(self.instruction.completion, self.write.buffer.level)

    def result(self, *values: Number, algebra: Algebra) -> Number:
        """Return what it writes, not rounded yet, given the arrays of values that it reads."""
        how = self.instruction
        if how.meaning is None:
            return how.semantics(self.variant or how.name, *values, algebra=algebra)
        given = dict(zip(symbols(len(values)), values, strict=True))
        return formula(how, len(values)).evaluate(given, algebra)

    @property
    def needs(self) -> str:
        return self.instruction.name

    @property
    def trimmed(self) -> bool:
        """Whether it is a load that leaves out the lines outside of the array."""
        return any(access.trimmed for access in self.accesses)

    def __str__(self) -> str:
        name = self.instruction.name
        if self.variant and self.variant != name:
            name += f".{self.variant}"
        text = f"{self.write} = {name}({', '.join(map(str, self.reads))})"
        text += f" x {'*'.join(map(number_text, self.values)) or 1}"
        if str(self.vector) != "1":
            text += f" by {number_text(self.vector)}"
        if str(self.across) != "0":
            text += f" across {number_text(self.across)}"
        if self.lanes:
            step, count, lane = map(number_text, self.lanes)
            text += f" where t//{step}%{count} == {lane}"
        if self.write.buffer.home:
            text += f" to {self.write.buffer.home} {number_text(self.write.peer)}"
        if self.multicast:
            text += f" to all of {self.multicast}"
        if self.signal:
            text += f" at {self.signal[0].name}@({self.signal[1]})"
        if self.fresh is not None:
            text += f", anew where {self.fresh} == 0"
        if self.where is not None:
            text += f" where {self.where}"
        return text


@dataclass(frozen=True, slots=True)
class For(_Answers):
    """A loop of ``trips`` (an int, or the name of a parameter or tile value) from ``start``."""

    var: str
    trips: int | str
    body: Body
    unrolled: bool = False
    start: int = 0

    @property
    def binds(self) -> tuple[str, ...]:
        return (self.var,)

    @property
    def numbers(self) -> tuple[int | str, ...]:
        return (self.trips,)

    @property
    def wrong(self) -> str:
        endless = isinstance(self.trips, str) and isinstance(self.unrolled, bool) and self.unrolled
        return f"its trips, {self.trips}, are not known; do not unroll it" if endless else ""

    def __str__(self) -> str:
        end = number_text(self.trips) + " (unrolled)" * self.unrolled
        return f"for {self.var} in {self.start}..{end}"


def _is_zero(number: object) -> bool:
    return isinstance(number, int) and number == 0


@dataclass(frozen=True, slots=True)
class When(_Answers):
    """The body where ``index < bound``: a guard on the distance to a loop's end."""

    index: Affine
    bound: int | str
    body: Body

    def __post_init__(self) -> None:
        require_kind("When: index", self.index, Affine, ProgramError)

    @property
    def guards(self) -> tuple[tuple[Affine, int | str], ...]:
        return ((self.index, self.bound),)

    def with_forms(self, change: Callable[[Affine], Affine]) -> When:
        return replace(self, index=change(self.index))

    @property
    def numbers(self) -> tuple[int | str, ...]:
        return (self.bound,)

    @property
    def above_zero(self) -> str | None:
        """The name of the number of which it asks whether it is above 0, if it asks that."""
        if isinstance(self.bound, str) and not self.index.terms:
            return self.bound if _is_zero(self.index.constant) else None
        return None

    @property
    def at_zero(self) -> str | None:
        """The name of what it asks to be 0, of what is never below, if it asks that."""
        match self.index:
            case Affine(constant, ((str(name), factor),)):
                asked = _is_zero(constant) and isinstance(self.bound, int) and self.bound == 1
                return name if asked and isinstance(factor, int) and factor == 1 else None
        return None

    def __str__(self) -> str:
        return f"when {self.index} < {number_text(self.bound)}"


@dataclass(frozen=True, slots=True)
class Exit(_Simple):
    """Threads all of whose elements of the gmem ``access`` lie outside leave the kernel here.

    ``values`` and ``threads`` are the extents, as in Do.
    """

    access: Access
    values: tuple[int, ...]
    threads: tuple[int, ...]

    @property
    def accesses(self) -> tuple[Access, ...]:
        """The one access."""
        return (self.access,)

    @property
    def by(self) -> By:
        return "all"

    def __str__(self) -> str:
        return f"exit if {self.access} is outside"


@dataclass(frozen=True, slots=True)
class Elect(_Answers):
    """The body, by the first thread of the role's copy alone."""

    body: Body

    def __str__(self) -> str:
        return "one thread"


_ZERO = Affine()


@dataclass(frozen=True, slots=True)
class ForTile(_Answers):
    """The body for each tile of this cluster, of which it binds the grid's variables.

    A cluster's tiles are ``cluster + t * clusters`` for t = 0, 1, .. in the order of the grid's
    raster (one tile, if the program is not ``persistent``); with ``Program.snake``
    ``(t + 1) * clusters - 1 - cluster`` for each odd t.  Either way the tiles of turn t are those
    from ``t * clusters`` on below ``(t + 1) * clusters``, one for each cluster.  The body runs for
    t = ``start``, ``start + step``, ..: ``tile`` is bound to t, ``turn`` to 0, 1, 2, ..

    ``values`` are *tile values*: names of numbers that each tile has for itself, none below 0, as
    expressions of the grid's variables, of sizes and parameters, and of values before them.  An
    index with the term value * ``tile`` counts on by them: the term is the sum over all tiles of
    the cluster before this one, also those that another copy takes; with ``turn`` over those
    before it that this copy takes.
    """

    tile: str
    turn: str
    body: Body
    start: Affine = _ZERO
    step: int = 1
    values: tuple[tuple[str, Expression], ...] = ()

    def __post_init__(self) -> None:
        require_kind("ForTile: start", self.start, Affine, ProgramError)

    @property
    def forms(self) -> tuple[Affine, ...]:
        return (self.start,)

    def with_forms(self, change: Callable[[Affine], Affine]) -> ForTile:
        return replace(self, start=change(self.start))

    @property
    def binds(self) -> tuple[str, ...]:
        return self.tile, self.turn

    @property
    def defines(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.values)

    @overload
    def values_at(self, known: Mapping[str, int]) -> dict[str, int]: ...
    @overload
    def values_at(self, known: Values) -> dict[str, Number]: ...
    def values_at(self, known: Values) -> Mapping[str, Number]:
        """Return the tile values, given the grid's variables, the sizes and the parameters.

        Variables may be arrays, over tiles or over a space.
        """
        found: dict[str, Number] = {}
        for name, expression in self.values:
            value = expression.evaluate({**known, **found})
            found[name] = value if getattr(value, "ndim", 0) else int(value)
        return found

    def __str__(self) -> str:
        plain = str(self.start) == "0" and str(self.step) == "1"
        text = f"for each tile {self.tile}"
        text += f" from {self.start} by {number_text(self.step)}" * (not plain)
        return text + "".join(f", {name} = {expression}" for name, expression in self.values)


Order = Sync | Commit | WaitGroup | Wait | Arrive | Fence
Block = For | ForTile | When | Elect
Statement = Do | Exit | Order | Block
Body = tuple[Statement, ...]
_BLOCKS = (For, ForTile, When, Elect)  # faster to ask about than a union


def walked(
    body: Body, around: tuple[Block, ...] = ()
) -> Iterator[tuple[Statement, tuple[Block, ...]]]:
    """Yield every statement, at any depth, with the blocks around it, outermost first."""
    waiting = [(iter(body), around)]
    while waiting:  # no generator in a generator: a step costs the same at any depth
        rest, around = waiting[-1]
        for statement in rest:
            yield statement, around
            if isinstance(statement, _BLOCKS):
                waiting.append((iter(statement.body), (*around, statement)))
                break
        else:
            waiting.pop()


def each(body: Body) -> Iterator[Statement]:
    """Yield every statement, at any depth, in order."""
    for statement in body:
        yield statement
        yield from each(statement.body)


def changed(body: Body, change: Callable[[Statement], Statement]) -> Body:
    """Return statements with ``change`` of each, at any depth, whose own body is changed before."""

    def of(statement: Statement) -> Statement:
        if isinstance(statement, Block):
            statement = replace(statement, body=changed(statement.body, change))
        return change(statement)

    return tuple(map(of, body))
