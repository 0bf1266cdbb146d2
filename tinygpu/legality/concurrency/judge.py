"""The judge: whether a program may deadlock, race or read what is not meant, at any sizes.

``verdict(program)`` has three outcomes:

    legal      proved for every number of tiles and all trips; ``by`` says by which search
    illegal    a condition fails; ``fault`` and ``run`` are the witness, which has been replayed
    unproved   an assumption of the theorem fails, and no fault was found: never printed as legal

>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import matmul
>>> program = Simt().program(matmul("f32"), Chosen(LADDER["shared"]))
>>> print(verdict(program))
legal: every trips, in 5 states
>>> from dataclasses import replace
>>> (role,) = program.roles
>>> start, loop, store = role.body
>>> bare = replace(role, body=(start, replace(loop, body=loop.body[:-1]), store))  # no bar.sync
>>> got = verdict(replace(program, roles=(bare,)))
>>> got.outcome, str(got.run), got.fault.kind
('illegal', 'trips=2', 'race')
>>> got.fault.second
'all: st.shared of smem_a@(kt) at kt=1'

Source: ``docs/model-concurrency.md``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Literal

from tinygpu.errors import ProgramError, require_kind
from tinygpu.legality.concurrency import cutoff
from tinygpu.legality.concurrency.assumptions import assumptions
from tinygpu.legality.concurrency.blocks import TILES, LaidOut, laid_out
from tinygpu.legality.concurrency.conditions import Fault
from tinygpu.legality.concurrency.cutoff import Witness, replayed, searched
from tinygpu.legality.concurrency.erase import erase
from tinygpu.term.plan import Plan, Term, kernels_of
from tinygpu.term.program import Program

__all__ = ["Outcome", "Verdict", "verdict", "verdict_of"]

_MANY_POINTS = 64  # that are tried where nothing is proved


Outcome = Literal["legal", "illegal", "unproved"]
Found = tuple[LaidOut, cutoff.Outcome]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a judge says of a program."""

    outcome: Outcome
    by: str = ""
    fault: Fault | None = None
    run: Witness | None = None
    doubts: tuple[str, ...] = ()
    states: int = 0

    @property
    def legal(self) -> bool:
        """Whether it is proved to be legal."""
        return self.outcome == "legal"

    @property
    def reason(self) -> str:
        """Why it is not legal: the fault, or the first doubt; "" if it is."""
        return str(self.fault or (*self.doubts, "")[0])

    def __str__(self) -> str:
        match self.outcome:
            case "legal":
                return f"legal: {self.by}, in {self.states} state{'s' * (self.states != 1)}"
            case "illegal":
                where = f" [{self.run}]" if self.run and str(self.run) else ""
                return f"illegal: {self.fault}{where}"
            case "unproved":
                return "\n".join(["unproved", *(f"  {doubt}" for doubt in self.doubts)])


def verdict(term: Term, *, apart: bool = False) -> Verdict:
    """Decide it for a term whose numbers are ints; for a plan, kernel by kernel.

    What a kernel reads is there when it begins: the boundary between two orders everything.
    """
    if not isinstance(term, Plan):
        require_kind("verdict: program", term, Program, ProgramError)
    found = [(program.name, _verdict(program, apart=apart)) for program in kernels_of(term)]
    if first := next((one for _, one in found if not one.legal), None):
        return first
    if len(found) == 1:
        return found[0][1]
    by = "; ".join(f"{name} for {one.by}" for name, one in found)
    return Verdict("legal", by, states=sum(one.states for _, one in found))


def _verdict(program: Program, *, apart: bool) -> Verdict:
    """Decide it for one kernel.

    All tiles have the same trips, as one parameter says; with ``apart`` each may have its own.
    That is searched first, as there are fewer states of it.  Tile values are each tile's own: any
    numbers from the least that their expressions prove.
    """
    doubts = assumptions(program)
    found = verdict_of(erase(program), apart=apart)
    if doubts and found.outcome != "illegal":
        return Verdict("unproved", doubts=(*doubts, *found.doubts))
    return found


@lru_cache(8192)
def verdict_of(program: Program, *, apart: bool = False) -> Verdict:
    """Decide it for an erased program; each is judged once."""
    plan = laid_out(program)
    if plan.shared:
        text = plan.shared[0]
        return Verdict("illegal", fault=Fault("deadlock", text, text, text), run=Witness(()))
    if plan.failed:
        return _tried(plan, tuple(plan.failed))
    tiled = any(section.param == TILES for section in plan.sections)
    same = apart or bool(plan.own) or not any(plan.inside.values())
    doubt = ""
    for own in (True,) if same else (True, False):
        plan, found = _found(program, plan, own)
        if found.run is None and not found.doubt and not plan.failed:
            names = ["number of tiles"] * tiled + [*plan.inside]
            by = f"every {' and '.join(names)}" if names else "its one run"
            if tiled and len(names) > 1:
                by += ", each tile its own" if own else ", alike in all tiles"
            return Verdict("legal", by, states=found.states)
        doubt = found.doubt
        if found.run is not None:
            for run in (found.run,) if apart else found.run.levelled(plan.own):
                fault = replayed(plan, run)
                if fault is not None:
                    return Verdict("illegal", fault=fault, run=run, states=found.states)
            why = "a role waits for what stands in a later step"
            if not found.doubt:
                why = "the search finds a fault that its replay does not"
            doubt = f"{why} [{found.run}]"
    return _tried(plan, tuple(plan.failed) or (doubt,))


def _found(program: Program, plan: LaidOut, apart: bool) -> Found:
    """Search; where blocks do not end, again with what a role does beside loops before them."""
    found = searched(plan, apart=apart)
    if found.doubt == "lockstep":
        other = laid_out(program, early=True)
        if not other.failed:
            again = searched(other, apart=apart)
            if again.doubt != "lockstep":
                return other, again
    return plan, found


def _tried(plan: LaidOut, doubts: tuple[str, ...]) -> Verdict:
    """Look for a fault at some points where nothing is proved."""
    names = [*(n for n, _ in plan.program.parameters), *plan.own]
    least = tuple((n, plan.least[n]) for n in names)
    tiled = bool(plan.program.persistent)
    most = 8
    while most > 1 and (most + 1) ** len(names) * (3 if tiled else 1) > _MANY_POINTS:
        most -= 1
    for values in product(*(range(plan.least[n], plan.least[n] + most + 1) for n in names)):
        once = tuple(zip(names, values, strict=True))
        runs = [Witness((once,) * tiles, once) for tiles in ((1, 2, 4) if tiled else (0,))]
        if tiled and plan.own:  # then tiles of the least numbers, too
            runs += Witness((once, least) * 2, once).levelled(plan.own)[:1]
        for run in runs:
            fault = replayed(plan, run)
            if fault is not None:
                return Verdict("illegal", fault=fault, run=run)
    return Verdict("unproved", doubts=doubts)
