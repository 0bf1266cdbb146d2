"""Laws: what a term has to obey to be launched, each one named object.

A law states a condition on a *case* (a term, sizes, a device) as clauses; the term is legal if
every clause of every law holds.  A law is written once, in arithmetic and ``select``: on an
ordinary term its clauses are bools; on the term of a whole space they are arrays over just the
decisions that matter, from which counts, searches and proofs (``tinygpu.space.solve``) are made.

>>> from tinygpu.devices.device import load_device
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import Problem, matmul
>>> from tinygpu.term.schedule import Schedule
>>> problem = Problem.of(matmul(), m=4096, n=4096, k=4096)
>>> tuned = Schedule.of(Simt(), LADDER["tuned"])
>>> check_schedule(tuned, Simt(), problem, load_device("h200"))
()
>>> deep = tuned.with_(pipeline="cp.async", stages=4, tile_k=64, a_layout="mk", pad_a=8,
...     vector_shared=1, vector_c=1, ctas_per_sm=1)
>>> for violation in check_schedule(deep, Simt(), problem, load_device("h200")):
...     print(violation.law, violation.message, violation.mend, sep=" | ")
smem_per_cta | smem_a, smem_b, 4 stages, need 278528 B; h200 allows 232448 B per CTA | \
keep less in shared memory (stages 4, tile_k 64, tile_m 128, tile_n 128)
smem_per_sm | 1 CTAs per SM need 279552 B of shared memory; h200 has 233472 B per SM | \
keep less in shared memory (ctas_per_sm 1, stages 4, tile_k 64)

Source: each law's ``source``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np

from tinygpu.devices.device import Device, limits
from tinygpu.errors import (
    DeviceError,
    IllegalScheduleError,
    MachineError,
    OperationError,
    ScheduleError,
    TinyGpuError,
    raised,
    require_kind,
)
from tinygpu.isa.instruction import Instruction
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.law import Law
from tinygpu.legality.placement import (
    aligned_vectors,
    contiguous_vectors,
    exit_last,
    fill_tiles,
    inside,
    legal_widths,
    store_once,
    stored,
    whole_extents,
)
from tinygpu.legality.reach import Case, Clause, Place
from tinygpu.legality.resources import (
    barrier_ids,
    covered_sizes,
    device_memory,
    early,
    even_cuts,
    index_width,
    integers,
    predicates,
    registers,
    residency,
    smem_per_cta,
    smem_per_sm,
    threads,
)
from tinygpu.legality.role_laws import ROLE_LAWS
from tinygpu.legality.storage_laws import STORAGE_LAWS
from tinygpu.legality.tensor_laws import TENSOR_LAWS
from tinygpu.legality.tmem_laws import TMEM_LAWS
from tinygpu.legality.warp_laws import WARP_LAWS
from tinygpu.numbers import Truth
from tinygpu.term.machine import Chosen, Machine, Requirement, Value
from tinygpu.term.operation import Problem
from tinygpu.term.plan import Term
from tinygpu.term.program import Do, Program, walk
from tinygpu.term.schedule import Schedule

__all__ = [
    "LAWS",
    "Law",
    "Places",
    "Violation",
    "check_schedule",
    "judged",
    "named",
    "own_laws",
    "require_legal",
    "require_sound",
    "serves",
]

Places = dict[Hashable, tuple[tuple[tuple[str, Truth], ...], Case]]
"""The clauses of statements by their keys; what a key identifies is kept with them."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A law that a schedule breaks: the subject with what it got and what is allowed, the mend.

    ``unproved``: it is not known to break the law, but not proved to keep it either.
    """

    law: str
    message: str
    mend: str
    unproved: bool = False

    def __str__(self) -> str:
        """Return it in one line."""
        return f"{self.law}: {self.message}; {self.mend}"


def _concurrency(case: Case) -> Iterator[Clause]:
    """Yield the judge's verdict."""
    found = verdict(case.program)
    if found.outcome == "unproved":
        yield Clause(False, "unproved: {}", (found.reason,), unproved=True)
    elif not found.legal:
        yield Clause(False, "{}", (found.reason,))


def own_laws(instructions: Iterable[Instruction]) -> dict[str, Law]:
    """Return the laws that instructions bring, by the names of their functions.

    A function's docstring is the sentence, and after an empty line the mend.  Raises MachineError
    for a name that a law has.
    """
    found = {}
    for instruction in instructions:
        for clauses in instruction.laws:
            name = getattr(clauses, "__name__", "law")
            if name in LAWS:
                text = f"instruction {instruction.name}: law {name}; the package has one"
                raise MachineError(f"{text} of that name: call it otherwise")
            sentence, _, mend = (clauses.__doc__ or f"States what {name} asks.").partition("\n\n")
            found[name] = Law(
                name, " ".join(sentence.split()), f"instruction {instruction.name}",
                " ".join(mend.split()).removesuffix(".") or f"use {instruction.name} so",
                of_case=partial(_brought, clauses, instruction.name), of=instruction.name,
            )  # fmt: skip
    return found


def _brought(
    law: Callable[[Case, Place], Iterator[Clause]], name: str, case: Case
) -> Iterator[Clause]:
    """Yield the clauses of an instruction's own law.  Raises MachineError if that raises."""
    try:
        for place in case.places:
            if place.do.instruction.name == name:
                yield from law(case, place)
    except TinyGpuError:
        raise
    except Exception as error:  # whatever a user's function may raise
        raise MachineError(
            f"instruction {name}: its law {getattr(law, '__name__', law)} "
            f"raises {raised(error)}; yield Clauses of numbers"
        ) from error


_ANY_SIZE = 64  # for laws that do not depend on it
_GUIDE = "CUDA C++ Programming Guide, Compute Capabilities"
_PTX = "PTX ISA 9, "
_VECTORS = "(vector, vector_a, vector_b, vector_shared, vector_c)"

LAWS: Mapping[str, Law] = {
    law.name: law
    for law in (
        Law(
            "covered_sizes",
            "States that the term covers each size that it is used for.",
            "the term's own bound (Program.at_most)",
            "choose a schedule that covers more",
            of_case=covered_sizes,
            of_sizes=True,
        ),
        Law(
            "whole_extents",
            "States that tiles are cut into whole parts: every extent is at least 1.",
            "docs/model.md, Terms",
            "choose tiles, threads and vectors that divide one another",
            of_place=whole_extents,
        ),
        Law(
            "threads",
            "States that a CTA is whole warps, no more than it may have, and each of them busy.",
            _GUIDE,
            "choose whole warps (threads, warps, teams, tile_m, tile_n, thread_m, thread_n) "
            "and vectors that divide the tile among them",
            of_case=threads,
        ),
        Law(
            "residency",
            "States that ctas_per_sm CTAs fit the thread and CTA slots of an SM.",
            _GUIDE,
            "ask for fewer CTAs on an SM (ctas_per_sm), or for fewer threads",
            of_case=residency,
        ),
        Law(
            "smem_per_cta",
            "States that the buffers in shared memory, all stages, fit a CTA's share.",
            _GUIDE,
            "keep less in shared memory (stages, tile_k, tile_m, tile_n)",
            of_case=smem_per_cta,
        ),
        Law(
            "smem_per_sm",
            "States that the shared memory of ctas_per_sm CTAs fits an SM.",
            _GUIDE,
            "keep less in shared memory (ctas_per_sm, stages, tile_k)",
            of_case=smem_per_sm,
        ),
        Law(
            "registers",
            "States that what a statement and the sums hold at once fits a thread's registers, "
            "and the sums of ctas_per_sm CTAs an SM's.",
            _GUIDE,
            "hold fewer values at once (vector, unroll, chunks, rows, thread_m, thread_n, tile_k, "
            "ctas_per_sm)",
            of_case=registers,
        ),
        Law(
            "exit_last",
            "States that no barrier, nor what a warp does together, comes after an exit: threads "
            "that have left do not arrive.",
            _PTX + "bar (all threads of the barrier take part), shfl.sync, mma",
            'keep the threads (edges "guard"), or take inputs from gmem without barriers',
            of_case=exit_last,
        ),
        Law(
            "barrier_ids",
            "States that barriers are among the 16 of a CTA; named ones count whole warps.",
            _PTX + "bar",
            "use fewer barriers",
            of_case=barrier_ids,
        ),
        Law(
            "vector_width",
            "States that an instruction moves 1, 2, 4, 8 or 16 B; cp.async 4, 8 or 16 B.",
            _PTX + "ld, st, cp.async",
            "move another number of elements at once " + _VECTORS,
            of_place=legal_widths,
        ),
        Law(
            "vector_contiguous",
            "States that a vector's elements are neighbours in memory and that it divides them.",
            _PTX + "Vector Data Types",
            "move fewer elements at once " + _VECTORS,
            of_place=contiguous_vectors,
        ),
        Law(
            "vector_aligned",
            "States that a vector starts at a multiple of its width and does not straddle an edge.",
            _PTX + "Addresses as Operands",
            "move fewer elements at once "
            + _VECTORS
            + ", pad by multiples, or use a machine that moves single elements, as simt",
            of_place=aligned_vectors,
            of_sizes=True,
        ),
        Law(
            "inside",
            "States that coordinates count from 0, that a dimension without a guard is never left, "
            "and that where there is a guard 32 bits hold what it asks for.",
            "docs/model.md, Terms",
            'guard it (edges "guard"), or choose tiles that divide the size',
            of_place=inside,
            of_sizes=True,
        ),
        Law(
            "fill_tiles",
            "States that a write to shared memory meets each element of a stage exactly once.",
            "docs/model.md, Terms",
            "choose vectors and threads whose product divides the tile",
            of_place=fill_tiles,
        ),
        Law(
            "store_once",
            "States that each element of the output is stored once, or added to a cleared one.",
            "docs/model.md, Terms",
            "make tiles the product of their threads and values",
            of_case=stored,
            of_place=store_once,
            of_sizes=True,
        ),
        Law(
            "index_width",
            "States that offsets made in 32 bits stay below 2^31 elements.",
            _PTX + "Integer Arithmetic Instructions",
            'make offsets in 64 bits (addressing "pointer" or "i64")',
            of_case=index_width,
            of_sizes=True,
        ),
        Law(
            "predicates",
            "States that what a predicate compares fits 32 bits.",
            _PTX + "setp",
            "count from a nearer origin, or split the problem",
            of_place=predicates,
            of_sizes=True,
        ),
        Law(
            "integers",
            "States that sizes, parameters and the bytes from row to row are below 2^31: kernels "
            "take them in 32 bits.",
            "docs/model.md, Terms; the emitter's parameters are .u32",
            "split the problem, or put an axis that is larger into two",
            of_case=integers,
            of_sizes=True,
        ),
        Law(
            "even_cuts",
            "States that the axes that the steps of a plan cut are cut into equal parts.",
            "docs/plans.md",
            "choose a number of parts that divides the size (split_k), or pad it",
            of_case=even_cuts,
            of_sizes=True,
        ),
        Law(
            "device_memory",
            "States that the arrays fit the device's memory together.",
            "the device's dram_bytes",
            "split the problem, choose a smaller type, or a device with more memory",
            of_case=device_memory,
        ),
        Law(
            "early",
            "States that a term that may start early is for a chip that lets it wait.",
            _PTX + "griddepcontrol; CUDA C++ Programming Guide, Programmatic Dependent Launch",
            "start it when the kernel before it has ended (early), or take a chip from sm_90 on",
            of_case=early,
        ),
        *STORAGE_LAWS.values(),
        *ROLE_LAWS.values(),
        *TENSOR_LAWS.values(),
        *WARP_LAWS.values(),
        *TMEM_LAWS.values(),
        Law(
            "concurrency",
            "States that no interleaving races, reads a stale value or waits forever, and that "
            "this is proved for all sizes.",
            "docs/model-concurrency.md",
            "order what meets by a barrier or a wait (pipeline, stages, issue)",
            of_case=_concurrency,
            numeric=False,
        ),
    )
}
"""Every law of terms, cheapest and most telling first; a machine's own are its requirements."""


def check_schedule(
    schedule: Schedule, machine: Machine, problem: Problem, device: Device
) -> tuple[Violation, ...]:
    """Return every law that the schedule breaks, one violation a law; none if it is legal.

    A machine's own requirements come first: where one fails, there is no term to judge.
    Raises ScheduleError or OperationError if it is no schedule of the machine at all.
    """
    require_kind("schedule", schedule, Schedule, ScheduleError)
    require_kind("machine", machine, Machine, MachineError)
    require_kind("problem", problem, Problem, OperationError)
    require_kind("device", device, Device, DeviceError)
    machine.check(problem.operation)
    values = dict(Schedule.of(machine, dict(schedule.decisions)).decisions)
    numeric = [law for law in LAWS.values() if law.numeric]
    numeric += own_laws(machine.instructions).values()
    with np.errstate(all="ignore"):
        failed = _failed(machine.requirements(problem.operation, Chosen(_numbers(machine, values))))
        if failed:
            return tuple(Violation(r.name, r.sentence, named(r.mend, values)) for r in failed)
        try:
            program = machine.term(problem.operation, Chosen(_numbers(machine, values)))
            found = _violations(program, problem.sizes, device, numeric, values)
        except ZeroDivisionError:
            law = LAWS["whole_extents"]
            return (Violation(law.name, "a tile is cut into no part", named(law.mend, values)),)
    if found:
        return found
    ordinary = machine.term(problem.operation, Chosen(values))
    return _violations(ordinary, problem.sizes, device, (LAWS["concurrency"],), values)


def judged(case: Case, places: Places) -> Iterator[tuple[str, Truth]]:
    """Yield each clause of the laws that numbers decide: the law's name, and whether it holds.

    ``places`` remembers statements of equal numbers: those of other terms of a space, too.  Laws
    that instructions bring may read the whole term, so they are asked each time.
    """
    own = own_laws(dict.fromkeys(place.do.instruction for place in case.places))
    for law in (*LAWS.values(), *own.values()):
        if law.of_case is not None and law.numeric:
            for clause in law.of_case(case):
                yield law.name, clause.holds
    context, around = case.context, case.context.key
    for place in case.places:
        key = around, place.key
        if key not in places:
            clauses = tuple(
                (law.name, clause.holds)
                for law in LAWS.values()
                for clause in law.at(context, place)
            )
            places[key] = clauses, case
        yield from places[key][0]


def require_legal(schedule: Schedule, machine: Machine, problem: Problem, device: Device) -> Term:
    """Return the schedule's term.

    Raises IllegalScheduleError, with the first law that it breaks, if it is not legal.
    """
    violations = check_schedule(schedule, machine, problem, device)
    if violations:
        more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
        raise IllegalScheduleError(f"{violations[0]}{more}")
    return schedule.term(machine, problem.operation)


def require_sound(program: Program, arch: str, sizes: Mapping[str, int] | None = None) -> None:
    """Ask the judge and the laws before a term becomes code for an architecture.

    Without ``sizes`` those laws are left out that depend on them.  Raises IllegalScheduleError for
    a term that breaks one, or is not proved to keep it.
    """
    laws = [law for law in LAWS.values() if sizes is not None or not law.of_sizes]
    laws += own_laws({s.instruction: None for s, _ in walk(program) if isinstance(s, Do)}).values()
    most = dict(program.at_most)
    given = sizes or {axis: most.get(axis, _ANY_SIZE) for axis in program.operation.axes}
    found = _violations(program, given, limits(arch), laws, {})
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        kind = "unproved" if all(one.unproved for one in found) else "illegal"
        raise IllegalScheduleError(
            f"{program.name} is {kind}: {found[0]}{more}; unchecked=True emits it all the same"
        )


def serves(term: Term, sizes: Mapping[str, int]) -> tuple[Violation, ...]:
    """Return the laws that a term breaks at other sizes than those it was chosen for."""
    laws = [law for law in LAWS.values() if law.of_sizes]
    return _violations(term, sizes, None, laws, {})


def _violations(
    term: Term,
    sizes: Mapping[str, int],
    device: Device | None,
    laws: Iterable[Law],
    values: Mapping[str, Value],
) -> tuple[Violation, ...]:
    cases = Case.every(term, sizes, device)
    found = []
    for law in laws:
        clauses = (clause for case in cases for clause in law.clauses(case))
        if broken := next((clause for clause in clauses if not clause.holds), None):
            mend = named(law.mend, values)
            found.append(Violation(law.name, str(broken), mend, broken.unproved))
    return tuple(found)


def _failed(requirements: Iterable[Requirement]) -> list[Requirement]:
    return [r for r in requirements if not r.holds]


def _numbers(machine: Machine, values: Mapping[str, Value]) -> dict[str, Value | np.int64]:
    """Let a numeric machine divide by zero, as it does over a space: the laws then say why."""
    if not machine.numeric:
        return dict(values)
    choices = machine.decisions()
    return {
        n: np.int64(v) if isinstance(v, int) and not choices[n].structural else v
        for n, v in values.items()
    }


_DECISION = r'\w+(?: "[^(),]*)?'


def named(mend: str, values: Mapping[str, Value | None]) -> str:
    """Put each decision's value behind its name, if it has one; parentheses keep decisions alone.

    >>> named('guard it (edges "guard", stages), or lower tile_m', {"stages": 4, "tile_m": 64})
    'guard it (stages 4), or lower tile_m (64)'
    >>> named("keep less in shared memory (stages)", {})
    'keep less in shared memory'
    """
    listed: set[str] = set()

    def group(found: re.Match[str]) -> str:
        parts = [part for part in found[1].split(", ") if part.split(" ")[0] in values]
        listed.update(part.split(" ")[0] for part in parts)
        shown = (p if " " in p or values[p] is None else f"{p} {values[p]}" for p in parts)
        return f" ({', '.join(shown)})" if parts else ""

    head = re.sub(rf" \(({_DECISION}(?:, {_DECISION})*)\)", group, mend)
    bare = [re.escape(n) for n in values if n not in listed and values[n] is not None]
    if not bare:
        return head
    return re.sub(rf"\b({'|'.join(bare)})\b", lambda m: f"{m[1]} ({values[m[1]]})", head)
