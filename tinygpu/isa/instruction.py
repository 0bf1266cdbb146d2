"""What an instruction is: one value, which stands in the file of its family.

It names the levels that it reads and writes, how its completion is observed, the unit it occupies
and what it computes on NumPy arrays.  The one rule in each walk is in the file of the same name
under ``codegen/rules`` (code), in ``search/time/work.py`` (time: by ``unit``),
``tinygpu/legality/concurrency/erase.py`` (legality: by ``completion``) and
``tinygpu/meaning/interpret.py`` (meaning: by ``completion`` and ``semantics``).

>>> from tinygpu.isa.instructions import INSTRUCTIONS
>>> print(INSTRUCTIONS["cp.async"])
cp.async                    gmem -> smem                lsu      seen by commit_group
>>> INSTRUCTIONS["fma"].semantics("fma", 2.0, 3.0, 1.0)
7.0

Spelling and rules: PTX ISA 9, sections 9.7.1 to 9.7.16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tinygpu.devices.device import arch_number
from tinygpu.errors import MachineError, ProgramError, nearest
from tinygpu.isa.algebra import FLOATS, Algebra
from tinygpu.isa.fragment import Blocks
from tinygpu.isa.memory import DTYPES
from tinygpu.numbers import Number

__all__ = ["Completion", "Instruction", "Issuer", "Unit", "same"]

Completion = Literal[
    "at_once", "scoreboard", "commit_group", "barrier", "mbarrier", "bulk_group", "wgmma_group",
    "tcgen05_commit", "tcgen05_wait",
]  # fmt: skip
Unit = Literal["fma", "alu", "sfu", "cvt", "lsu", "shuffle", "barrier", "tma", "tensor", "tmem"]
_ASYNC_PROXY = ("mbarrier", "bulk_group", "wgmma_group", "tcgen05_commit")
_AT_ISSUE = ("at_once", "scoreboard", "commit_group")
_OF_THREADS = ("fma", "alu", "sfu", "cvt", "shuffle")
Issuer = Literal["thread", "warp", "warpgroup", "one"]


def same(*types: str) -> tuple[tuple[str, str], ...]:
    """Return the types of what reads and writes one type, any of these."""
    return tuple((one, one) for one in types)


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction family in PTX's spelling.

    ``completion`` says how it is seen to be done: ``scoreboard`` (the hardware holds back the
    first use of the register), a group of ``commit_group`` (cp.async), ``wgmma_group`` or
    ``bulk_group`` (TMA stores), ``mbarrier`` (bytes that land there), ``barrier``;
    ``tcgen05_commit`` (an arrival at an mbarrier after it), ``tcgen05_wait`` (tcgen05.wait).
    ``issuer``: each thread on values of its own, a warp together on its threads' values, a
    warpgroup on a tile, one thread on a tile.
    ``variants`` are the operators of
    ``tinygpu.term.expression`` that it covers.  ``arch``: the first architecture that has it; one
    that ends in "a" alone has it.  ``types``: pairs, a type that it reads and the one that it then
    writes; what a product adds to is of the type that it writes.  Without pairs it moves or
    computes any type, all of its operands of one.  ``blocks``: what a warp multiplies by it, and
    which elements its lanes hold; these give its types.  ``folds``: the operator by which all lanes
    of a warp fold what each has made, and all get the result (redux).  ``per_cycle``: how many
    threads an SM takes through it in a cycle; 0: what the device says of its unit.

    An instruction that the package does not have is a value of this class in a file of yours:
    ``lower(kernel, do, scope)`` emits it (``codegen/rules``); ``meaning(operators, *values)``
    says what it writes of what it reads, by operators of ``tinygpu.isa.algebra``, once: the values
    are those of a formula, and no arrays (``tinygpu.term.statement``); each of ``laws`` yields
    clauses on a statement of it, as the laws of ``tinygpu/legality`` do.  The other walks read the
    fields above.
    """

    name: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    unit: Unit
    completion: Completion = "at_once"
    variants: tuple[str, ...] = ()
    atomic: bool = False
    issuer: Issuer = "thread"
    arch: str = "sm_50"
    types: tuple[tuple[str, str], ...] = ()
    blocks: tuple[Blocks, ...] = ()
    folds: str = ""
    per_cycle: float = 0.0
    lower: Callable[..., None] | None = None
    meaning: Callable[..., Any] | None = None
    laws: tuple[Callable[..., Iterator[Any]], ...] = ()

    def __post_init__(self) -> None:
        kinds = {"unit": Unit, "completion": Completion, "issuer": Issuer}
        for field, known in kinds.items():
            if (got := getattr(self, field)) not in get_args(known):
                text = f"instruction {self.name}: {field} {got}; {nearest(got, get_args(known))}"
                raise MachineError(text)
        if self.blocks:
            pairs = tuple((one, block.into) for block in self.blocks for one in block.types)
            object.__setattr__(self, "types", pairs)
        for one in (one for pair in self.types for one in pair if one not in DTYPES):
            raise MachineError(f"instruction {self.name}: types {one}; {nearest(one, DTYPES)}")

        if self.folds and (self.folds not in FLOATS.operators or self.unit not in _OF_THREADS):
            raise MachineError(
                f"instruction {self.name}: folds {self.folds} on the unit {self.unit}; lanes fold "
                f"by one of {', '.join(FLOATS.operators)} on {', '.join(_OF_THREADS)}"
            )
        if (self.unit == "tensor" and self.issuer == "warp") != bool(self.blocks):
            raise MachineError(
                f"instruction {self.name}: {len(self.blocks)} blocks on the unit {self.unit}, by "
                f"each {self.issuer}; blocks say what a warp multiplies on the unit tensor"
            )
        if self.meaning and (self.warp_product or self.completion not in _AT_ISSUE):
            raise MachineError(
                f"instruction {self.name}: its meaning would not be read; what completes by "
                f"{self.completion} on the unit {self.unit} does what that unit does: leave it out"
            )

    def takes(self, read: str, written: str) -> bool:
        """Return whether it makes one type of another."""
        return (read, written) in self.types if self.types else read == written

    @property
    def proxy(self) -> Literal["generic", "async"]:
        """Through which proxy it touches shared memory."""
        return "async" if self.completion in _ASYNC_PROXY else "generic"

    def runs_on(self, arch: str) -> bool:
        """Return whether an architecture has it.

        >>> from tinygpu.isa.instructions import INSTRUCTIONS
        >>> [INSTRUCTIONS["wgmma"].runs_on(arch) for arch in ("sm_80", "sm_90a", "sm_100a")]
        [False, True, False]
        """
        if self.arch.endswith("a"):
            return arch == self.arch
        return arch_number(arch) >= arch_number(self.arch)

    def semantics(self, variant: str, *arguments: Number, algebra: Algebra = FLOATS) -> Number:
        """Return what it writes of the arrays that it reads, without a meaning of its own."""
        if self.variants:
            arguments = (algebra.operators[variant](*arguments),)
        return arguments[0]

    @property
    def loads(self) -> bool:
        """Whether a thread loads its own values from global memory."""
        return self.reads == ("gmem",) and self.completion == "scoreboard"

    @property
    def of_warps(self) -> bool:
        """Whether a warp's lanes execute it together: a shuffle, matrices, a product."""
        return self.unit == "shuffle" or self.issuer == "warp" or bool(self.folds)

    @property
    def of_tile(self) -> bool:
        """Whether one thread or a warpgroup issues it, for a tile."""
        return self.issuer in ("one", "warpgroup")

    @property
    def crosses(self) -> bool:
        """Whether a lane gets what other lanes of its warp have: a shuffle, a fold."""
        return self.unit == "shuffle" or bool(self.folds)

    @property
    def warp_product(self) -> bool:
        """Whether a warp's lanes multiply fragments together."""
        return bool(self.blocks)

    def blocks_of(self, dtype: str) -> Blocks:
        """Return what a warp multiplies of this type.

        Raises ProgramError for a type that it doesn't multiply.
        """
        for one in self.blocks:
            if dtype in one.types:
                return one
        known = ", ".join(one for block in self.blocks for one in block.types)
        raise ProgramError(f"{self.name} of {dtype}: it multiplies {known}; convert first (cvt)")

    def __str__(self) -> str:
        move = f"{'+'.join(self.reads)} -> {'+'.join(self.writes)}" if self.writes else "threads"
        return f"{self.name:27} {move:27} {self.unit:8} seen by {self.completion}"
