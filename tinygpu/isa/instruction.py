"""Instructions: one value each.

An instruction names the levels it reads and writes, how its completion is observed, the unit it
occupies and what it computes on NumPy arrays.  That is the declaration; the one rule in each walk
is in ``RULES`` of ``codegen/emit.py`` (code), ``search/time/work.py`` (time: by ``unit``),
``tinygpu/legality/concurrency/erase.py`` (legality: by ``completion``) and
``tinygpu/meaning/interpret.py`` (meaning: by ``completion`` and ``semantics``).

>>> print(INSTRUCTIONS["cp.async"])
cp.async                    gmem -> smem                lsu      seen by commit_group
>>> INSTRUCTIONS["fma"].semantics("fma", 2.0, 3.0, 1.0)
7.0

Spelling and rules: PTX ISA 9, sections 9.7.1 to 9.7.16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tinygpu.devices.device import arch_number
from tinygpu.errors import MachineError, nearest
from tinygpu.isa.algebra import FLOATS, Algebra

__all__ = ["INSTRUCTIONS", "Completion", "Instruction", "Issuer", "Unit"]

Completion = Literal[
    "at_once", "scoreboard", "commit_group", "barrier", "mbarrier", "bulk_group", "wgmma_group",
    "tcgen05_commit", "tcgen05_wait",
]  # fmt: skip
Unit = Literal["fma", "alu", "sfu", "cvt", "lsu", "shuffle", "barrier", "tma", "tensor", "tmem"]
_ASYNC_PROXY = ("mbarrier", "bulk_group", "wgmma_group", "tcgen05_commit")
Issuer = Literal["thread", "warp", "warpgroup", "one"]


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
    that ends in "a" alone has it.

    An instruction that the package does not have is a value of this class in a file of yours:
    ``lower(kernel, do, scope)`` emits it (``codegen/rules``); ``meaning(operators, *arrays)``
    computes what it writes from what it reads, by the operators of an algebra; each of ``laws``
    yields clauses on a statement of it, as the laws of ``tinygpu/legality`` do.  The other walks
    read the fields above.
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
    lower: Callable[..., None] | None = None
    meaning: Callable[..., Any] | None = None
    laws: tuple[Callable[..., Iterator[Any]], ...] = ()

    def __post_init__(self) -> None:
        kinds = {"unit": Unit, "completion": Completion, "issuer": Issuer}
        for field, known in kinds.items():
            if (got := getattr(self, field)) not in get_args(known):
                text = f"instruction {self.name}: {field} {got}; {nearest(got, get_args(known))}"
                raise MachineError(text)

    @property
    def proxy(self) -> Literal["generic", "async"]:
        """Through which proxy it touches shared memory."""
        return "async" if self.completion in _ASYNC_PROXY else "generic"

    def runs_on(self, arch: str) -> bool:
        """Return whether an architecture has it.

        >>> [INSTRUCTIONS["wgmma"].runs_on(arch) for arch in ("sm_80", "sm_90a", "sm_100a")]
        [False, True, False]
        """
        if self.arch.endswith("a"):
            return arch == self.arch
        return arch_number(arch) >= arch_number(self.arch)

    def semantics(self, variant: str, *arguments: Any, algebra: Algebra = FLOATS) -> Any:
        """Return what it writes, given the arrays that it reads."""
        if self.meaning is not None:
            return self.meaning(algebra.operators, *arguments)
        if self.variants:
            return algebra.operators[variant](*arguments)
        return arguments[0]

    @property
    def loads(self) -> bool:
        """Whether a thread loads its own values from global memory."""
        return self.reads == ("gmem",) and self.completion == "scoreboard"

    @property
    def warp_product(self) -> bool:
        """Whether a warp's lanes multiply fragments together."""
        return self.unit == "tensor" and self.issuer == "warp"

    def __str__(self) -> str:
        move = f"{'+'.join(self.reads)} -> {'+'.join(self.writes)}" if self.writes else "threads"
        return f"{self.name:27} {move:27} {self.unit:8} seen by {self.completion}"


_REGS = ("registers",)


def _tma(
    name: str, reads: tuple[str, ...], writes: tuple[str, ...], completion: Completion
) -> Instruction:
    return Instruction(name, reads, writes, "tma", completion, issuer="one", arch="sm_90")


INSTRUCTIONS: Mapping[str, Instruction] = {
    i.name: i
    for i in (
        Instruction("ld.global", ("gmem",), _REGS, "lsu", "scoreboard"),
        Instruction("st.global", _REGS, ("gmem",), "lsu"),
        Instruction("red.global", _REGS, ("gmem",), "lsu", atomic=True),
        Instruction("cp.async", ("gmem",), ("smem",), "lsu", "commit_group", arch="sm_80"),
        Instruction("ld.shared", ("smem",), _REGS, "lsu", "scoreboard"),
        Instruction("st.shared", _REGS, ("smem",), "lsu"),
        Instruction("fma", _REGS, _REGS, "fma", variants=("fma", "mul", "add", "sub")),
        Instruction("alu", _REGS, _REGS, "alu", variants=("max", "min", "neg", "abs")),
        Instruction(
            "mufu",
            _REGS,
            _REGS,
            "sfu",
            variants=(
                *("ex2", "lg2", "rcp", "sqrt", "rsqrt", "tanh", "div", "sigmoid"),
                *("ex2.ftz", "rcp.ftz"),
            ),
        ),
        Instruction("cvt", _REGS, _REGS, "cvt"),
        Instruction("mov", (), _REGS, "alu"),
        Instruction("shfl.sync", _REGS, _REGS, "shuffle"),
        Instruction("bar.sync", (), (), "barrier", "barrier"),
        _tma("cp.async.bulk.tensor", ("gmem",), ("smem",), "mbarrier"),
        _tma("cp.async.bulk.tensor.global", ("smem",), ("gmem",), "bulk_group"),
        Instruction(
            "wgmma",
            ("smem", "registers"),
            _REGS,
            "tensor",
            "wgmma_group",
            variants=("fma",),
            issuer="warpgroup",
            arch="sm_90a",
        ),
        Instruction(
            "tcgen05.mma",
            ("smem", "tmem"),
            ("tmem",),
            "tensor",
            "tcgen05_commit",
            variants=("fma",),
            issuer="one",
            arch="sm_100a",
        ),
        Instruction(
            "tcgen05.cp",
            ("smem",),
            ("tmem",),
            "tmem",
            "tcgen05_commit",
            issuer="one",
            arch="sm_100a",
        ),
        *(
            Instruction(*form, "tmem", "tcgen05_wait", issuer="warpgroup", arch="sm_100a")
            for form in (("tcgen05.ld", ("tmem",), _REGS), ("tcgen05.st", _REGS, ("tmem",)))
        ),
        Instruction("tcgen05.alloc", (), (), "barrier", "barrier", arch="sm_100a"),
        Instruction("tcgen05.commit", (), (), "barrier", "mbarrier", arch="sm_100a"),
        Instruction("tcgen05.fence", (), (), "barrier", arch="sm_100a"),
        Instruction("ldmatrix", ("smem",), _REGS, "lsu", "scoreboard", issuer="warp", arch="sm_75"),
        Instruction(
            "mma.sync", _REGS, _REGS, "tensor", variants=("fma",), issuer="warp", arch="sm_80"
        ),
        Instruction("stmatrix", _REGS, ("smem",), "lsu", issuer="warpgroup", arch="sm_90"),
        Instruction("mbarrier", (), (), "barrier", "mbarrier", arch="sm_90"),
        Instruction("barrier.cluster", (), (), "barrier", "barrier", arch="sm_90"),
        Instruction("fence.proxy.async", (), (), "barrier", arch="sm_90"),
    )
}
