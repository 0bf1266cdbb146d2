"""Terms whose code lacks an order: emitted without a wait, fence, barrier or group, or with it
elsewhere, and run where the whole term would be.

What the judge says of the term that the text was made of tells whether the order is needed: the
skeleton decides it for all sizes, and knows nothing of PTX.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests import async_mutants
from tinygpu.codegen.emit import emit, statement_at
from tinygpu.codegen.run.held import instances, least_arch, orders_of
from tinygpu.errors import TinyGpuError
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.machines import MACHINES, ampere, ampere_attention, attention, blackwell, hopper, simt
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import Operation, grouped_matmul, matmul
from tinygpu.term.operation import attention as attends
from tinygpu.term.program import Program

__all__ = ["POINTS", "Dropped", "changes", "dropped", "lines_dropped", "term"]

_NT = matmul("bf16", layout="nt")
_NARROW = {"tile_n": 128, "store_n": 64}
POINTS: dict[str, tuple[str, Any, Operation]] = {
    **{f"simt {n}": ("simt", p, matmul("f32")) for n, p in simt.LADDER.items()},
    **{
        f"ampere {n}": (
            "ampere", p, matmul("bf16", "f32" if p.get("combine") == "red" else None, "nt")
        )
        for n, p in ampere.STARTS.items()
    },
    **{f"hopper {n}": ("hopper", p, _NT) for n, p in hopper.STARTS.items()},
    **{
        f"hopper gate {n}": (
            "hopper", {**hopper.STARTS[n], **_NARROW}, matmul("bf16", layout="nt", gate="silu")
        )
        for n in ("plain", "cluster", "pingpong")
    },
    **{
        f"hopper groups {n}": ("hopper", hopper.STARTS[n], grouped_matmul("bf16"))
        for n in ("plain", "cluster", "pingpong")
    },
    **{f"blackwell {n}": ("blackwell", p, _NT) for n, p in blackwell.STARTS.items()},
    **{
        f"attention {n}": ("attention", p, attends("bf16", mask="causal"))
        for n, p in attention.STARTS.items()
    },
    **{
        f"ampere_attention {n}": ("ampere_attention", p, attends("bf16", mask="causal"))
        for n, p in ampere_attention.STARTS.items()
    },
}  # fmt: skip
"""By name: a machine, its point and the operation."""
_MOVED = re.compile(
    r"(drop|swap|first|last|later|sooner|pending\+|read|near) (wait |arrive|fence|bar|wgmma\.[fcw]|"
    r"cp\.async\.(bulk\.)?[cw]|tcgen05\.(commit|wait|fence))|phase. wait "
)
_ORDERS = re.compile(
    r"\t(@\S+ )?(bar\.sync|bar\.arrive|barrier\.|fence\.|cp\.async\.(bulk\.)?(commit|wait)|"
    r"mbarrier\.(arrive|try_wait)|wgmma\.(fence|commit|wait)|tcgen05\.(commit|wait|fence)|"
    r"griddepcontrol\.wait)"
)


@dataclass(frozen=True)
class Dropped:
    """A text that lacks an order: what was done, the judge's word, and what was found."""

    name: str
    judged: str
    why: str
    found: tuple[str, ...]

    @property
    def excused(self) -> str:
        """Why nothing need be found, although the judge refuses the term."""
        of = f"{self.name}: {self.why}"
        return next((why for text, why in _EXCUSED.items() if re.search(text, of)), "")


_EXCUSED = {
    r"swap fence\.proxy\.async .*: proxy: ": "a proxy fence anywhere on the way orders (PTX, "
    "causality order); the judge asks for one by the writer's thread",
    r"exit: .* cp\.async of": "what a thread copies when it ends nobody reads; PTX lets it end",
    "barrier.cluster waits for ever": "threads that have left count as come (PTX, barrier.cluster)",
    r"tcgen05.mma of .* may not see what .*cp.async.bulk.tensor of": "the mbarrier orders both, "
    "which are of one proxy; the judge asks for tcgen05.fence there, too",
}
"""By the judge's words, why a text is no worse."""


def term(name: str) -> Program:
    machine, point, operation = POINTS[name]
    return MACHINES[machine].program(operation, Chosen(dict(point)))


def changes(program: Program) -> list[tuple[str, Program]]:
    """Return a term with each order dropped or moved, and how.

    An arrival at a barrier of one stage, told as one of another phase, is the same in PTX.
    """
    every = (*async_mutants.mutants(program), *async_mutants.moved(program))
    same = "|".join(b.name for b in program.barriers if b.stages == 1)
    phases = re.compile(rf"(sooner|later|phase.) arrive ({same})@" if same else "(?!)")
    return [c for c in every if _MOVED.match(c[0]) and not phases.match(c[0])]


def dropped(program: Program, every: int = 1, first: int = 0) -> Iterator[Dropped]:
    """Yield one of ``every`` so many texts that lack an order of a term."""
    arch, at = least_arch(program), instances(program)
    known = {emit(program, arch, at[0], unchecked=True)}
    for name, mutant in changes(program)[first::every]:
        try:
            text, judged = emit(mutant, arch, at[0], unchecked=True), verdict(mutant)
        except TinyGpuError:
            continue  # no code
        if text not in known:
            known.add(text)
            yield Dropped(name, judged.outcome, str(judged), _found(program, text))


def lines_dropped(
    program: Program, every: int = 1
) -> Iterator[tuple[int, str, str, tuple[str, ...]]]:
    """Yield one of ``every`` so many lines that order, with its text and statement, and what is
    found without it."""
    arch, sizes = least_arch(program), instances(program)[0]
    text = emit(program, arch, sizes, unchecked=True)
    lines = text.split("\n")
    for number in [i for i, line in enumerate(lines) if _ORDERS.match(line)][::every]:
        wait = re.search(r"try_wait\S* (%p\d+)", lines[number])
        instead = f"\tsetp.eq.u32 {wait[1]}, 0, 0;" if wait else ""
        rest = "\n".join([*lines[:number], instead, *lines[number + 1 :]])
        statement = statement_at(program, arch, sizes, number + 1)
        yield number + 1, lines[number].strip(), statement, _found(program, rest)


def _found(program: Program, text: str) -> tuple[str, ...]:
    for sizes in instances(program):
        try:
            if faults := orders_of(program, sizes, text):
                return tuple(map(str, faults))
        except TinyGpuError as error:
            return (f"not run: {error}",)
    return ()
