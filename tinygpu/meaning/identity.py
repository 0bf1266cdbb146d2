"""Does a term compute its operation?  It is executed in a prime field, at a few small sizes.

In a prime field (``tinygpu.meaning.prime_field``) sums and products are exact: a wrong operand, a
step left out or exchanged scalars give another element, almost surely, however near the floats
would be. What floats alone find is too early a rounding, which ``tinygpu.meaning.interpret.check``
asks about.

In the field an exponential is any function: a term that is right there is right.  One that is not,
as it rescales what it has summed, is asked in a ring that has an exponential
(``tinygpu.meaning.exponential_ring``), where a maximum that is subtracted cancels.  As that also
holds for a term that subtracts none, it is asked in floats, too, on normal, rising and planted
inputs (``tinygpu.meaning.inputs``).

The question is one about legal terms: such a term computes the same in every run, so that one is
enough (``tinygpu.meaning.canonical``).  Where guards in a loop reach s steps from its start and q
from its end, full tiles are asked at each number of trips from 1 to s + q + 1, the first with two
along each axis of the grid; then sizes that differ pairwise, as equal ones hide exchanged strides,
and that end within a tile where the term allows that.  If the term keeps the assumptions of
``tinygpu.meaning.assumptions``, these sizes decide all: it is *proved*, up to the chance that
different polynomials agree at a random place.  Else it is tested, and the outcome says what is
missing; and whether the mask of a term that compares coordinates is covered, which
``tinygpu.legality.mask_cover`` proves for all sizes.  A term that is proved is also run at three
larger sizes, which its hash draws: no part of the proof, a net under it.

>>> from tinygpu.term.machine import Chosen
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.term.operation import matmul
>>> found = computes(Simt().program(matmul(), Chosen(LADDER["shared"])))
>>> print(found)
computes its operation: proved for every m, n, k, by 3 sizes, 64, 64, 32 to 48, 47, 49; 3 larger
>>> bool(found)
True
>>> print(computes(found.program, {"m": 4, "n": 3, "k": 5}))
computes its operation: tested at 1 size, m, n, k = 4, 3, 5

Source: ``docs/model.md``, section "Meaning".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import blake2b
from itertools import chain, product
from math import lcm, prod
from typing import Any, overload

import numpy as np

from tinygpu.errors import ProgramError, require_kind
from tinygpu.isa.algebra import FLOATS, Algebra
from tinygpu.isa.memory import DTYPES
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.mask_cover import Cover, mask_cover
from tinygpu.meaning.assumptions import ends, unproved, window
from tinygpu.meaning.canonical import NotCanonicalError, canonical_run
from tinygpu.meaning.composition import by_reference, composed
from tinygpu.meaning.exponential_ring import DRAWS, P2, exponential_ring, has_exponential
from tinygpu.meaning.inputs import drawn, drawn_indices, kinds, with_pool
from tinygpu.meaning.interpret import SCALAR, edge_of, interpret, tile_of, wrong_result
from tinygpu.meaning.prime_field import prime_field
from tinygpu.meaning.race import Finding
from tinygpu.meaning.tolerance import roundings
from tinygpu.meaning.touched import OnChip
from tinygpu.term.operation import Problem
from tinygpu.term.plan import Plan, Term, kernels_of
from tinygpu.term.program import Do, For, Program, Statement, walk

__all__ = ["Meaning", "computes", "instances", "summary", "unlaunched"]

_MOST_WORK = 1e8  # fitted: element operations in about a second
_STATEMENT = 4000  # fitted: what a statement costs besides, in element operations
_MOST_CTAS = 144
_COMPARED = 0.99  # an element divides by 0 once in P times
_MOST_LARGER, _WIDE = 1e7, (5, 3, 2)  # work of a size beyond a proof's, and tiles more than least


@dataclass(frozen=True, slots=True)
class Meaning:
    """At which sizes it was asked, in order, and the first finding, None if there is none.

    ``unproved``: why these sizes do not decide all, "" if they do; ``ragged``: why full tiles do
    not decide others.  ``left_out``: how many sizes take too long to be asked.  ``larger``: at how
    many sizes beyond those of a proof it was run.  ``illegal``: why the judge refuses the term,
    of which one run says nothing about the others.  ``exponential``: the least share of elements at
    which the operation is a number, where it was asked in the ring with an exponential, else None.
    It is true if the term is not illegal, was asked, and nothing was found.
    """

    program: Term
    asked: tuple[Mapping[str, int], ...]
    finding: Finding | None
    unproved: str = ""
    ragged: str = ""
    left_out: int = 0
    larger: int = 0
    illegal: str = ""
    exponential: float | None = None

    def __bool__(self) -> bool:
        return bool(self.asked) and not self.wrong

    @property
    def wrong(self) -> bool:
        """Whether the term is known not to compute its operation, or may not run at all."""
        return self.finding is not None or bool(self.illegal)

    @property
    def rounding(self) -> str:
        """Where the term rounds and its operation does not; a prime field does not see it."""
        found = roundings(self.program)
        more = f" and {len(found) - 1} more" if found[1:] else ""
        return f"up to rounding to {found[0]}{more}" if found else ""

    @property
    def proved(self) -> bool:
        """Whether it computes its operation at every size."""
        return self.finding is None and bool(self.asked) and not self.unproved and not self.ragged

    def __str__(self) -> str:
        if self.finding is not None or not self.asked:
            return self._found()
        cover = "" if self.cover is None else str(self.cover)
        return "; ".join(t for t in (self._found(), cover, self.by, self.rounding) if t)

    @property
    def cover(self) -> Cover | None:
        """Whether the mask is covered at every size, if the term compares coordinates."""
        found = (_cover(program) for program in kernels_of(self.program))
        return next((cover for cover in found if cover is not None), None)

    @property
    def by(self) -> str:
        """How exponentials were asked, if it was in their ring, and how often that errs."""
        if self.exponential is None:
            return ""
        inputs = ", ".join(kinds(self.program.operation))
        return (
            f"exponentials multiply, at {self.exponential:.2%} of the elements, a wrong one passes "
            f"once in {float(P2**DRAWS):.0e} times; in floats on inputs that are {inputs}"
        )

    def _found(self) -> str:
        axes = ", ".join(self.program.operation.axes)
        if self.illegal and self.finding is None:
            return f"not asked, as runs of an illegal term differ: {self.illegal}"
        if not self.asked:
            why = self.unproved if not self.left_out else "every instance takes too long"
            return f"not asked whether it computes its operation: {why}"
        first, last = (", ".join(map(str, self.asked[i].values())) for i in (0, -1))
        if self.finding is not None:
            return f"does not compute its operation, at {axes} = {last}: {self.finding}"
        many = f"{len(self.asked)} sizes" if self.asked[1:] else "1 size"
        span = f"{first} to {last}" if self.asked[1:] else first
        if self.proved:
            text = f"computes its operation: proved for every {axes}, by {many}, {span}"
            return f"{text}; {self.larger} larger" if self.larger else text
        text = f"computes its operation: tested at {many}, {axes} = {span}"
        if self.left_out:
            text += f"; {self.left_out} more take too long"
        if self.unproved:
            return f"{text}; not proved, {self.unproved}" if self.unproved != _GIVEN else text
        return f"{text}; proved for full tiles, not for others: {self.ragged}"


_GIVEN = "the sizes were given"


def computes(term: Term, sizes: Mapping[str, int] | None = None, draws: int = 2) -> Meaning:
    """Ask a legal term at ``sizes``, or at its ``instances``, the last with ``draws`` inputs.

    Of a plan each kernel is asked whether it computes its own operation, and then whether these
    operations, one after another, are the plan's.

    Raises ProgramError for a term that is malformed, OperationError for sizes that are not the
    operation's.
    """
    if isinstance(term, Plan):
        return _computes_plan(term, sizes, draws)
    require_kind("computes: program", term, Program, ProgramError)
    program, judged = term, verdict(term)
    illegal = judged.reason if judged.outcome == "illegal" else ""
    if sizes is not None:
        given = Problem.of(program.operation, **sizes).sizes
        found = _asked(program, (given,), draws, {})
        return Meaning(program, found.sizes, found.finding, unproved=_GIVEN, illegal=illegal,
                       exponential=found.exponential)  # fmt: skip
    return replace(_computes(unlaunched(program), draws), program=program, illegal=illegal)


def _computes_plan(plan: Plan, sizes: Mapping[str, int] | None, draws: int) -> Meaning:
    """Ask the kernels, and at small sizes whether their operations compose to the plan's."""
    kernels, given = [], sizes and Problem.of(plan.operation, **sizes).sizes
    for step in plan.steps:
        kernels.append(computes(step.program, given and step.sizes_at(given), draws))
        if kernels[-1].wrong or not kernels[-1].asked:
            return replace(kernels[-1], program=plan)
    every = (given,) if given else tuple(_composed_at(plan))
    for number, here in enumerate(every):
        if finding := _composition(plan, here, number):
            return Meaning(plan, every[: number + 1], finding)
    unproved = "; ".join(f"{one.program.name}: {one.unproved}" for one in kernels if one.unproved)
    ragged = "; ".join(f"{one.program.name}: {one.ragged}" for one in kernels if one.ragged)
    return Meaning(plan, every, None, _GIVEN if given else unproved or _COMPOSED, ragged)


_COMPOSED = "its kernels are, and that their operations compose to it is tested"


def _composed_at(plan: Plan) -> Iterator[Mapping[str, int]]:
    """Yield small sizes at which its cuts are even, none of them alike."""
    for first in (1, 2, 3):
        sizes = {axis: first + 2 * i for i, axis in enumerate(plan.operation.axes)}
        for _, axis, _, parts in plan.cuts(sizes):
            sizes[axis] = lcm(sizes[axis], parts)
        yield sizes


def _composition(plan: Plan, sizes: Mapping[str, int], number: int) -> Finding | None:
    """Return where the kernels' operations compose to another result than the plan's."""
    operation, random, field = plan.operation, np.random.default_rng(number), prime_field(number)
    shapes = operation.shapes(sizes)
    inputs = {o.name: random.integers(field.modulus, size=shapes[o.name]).astype(np.float64)
              for o in operation.inputs}  # fmt: skip
    scalars = {n: float(random.integers(field.modulus)) for n in operation.scalars}
    arrays = composed(plan, sizes, inputs, by_reference(scalars, field))
    made = {o.name: arrays[o.name] for o in operation.outputs}
    found, _ = wrong_result(plan, sizes, inputs, scalars, made, field)
    return found[0] if found else None


def _cover(program: Program) -> Cover | None:
    """Return whether the mask of a term that has one is covered."""
    held = {axis for axis, _ in program.at_most}  # what statements cover has no tiles to cover
    wheres = (s.where for s, _ in walk(program) if isinstance(s, Do) and s.where is not None)
    compares = any({name for name, _ in w.bound.terms} - held for w in wheres)
    own = program.tile_values and program.operation.groups is None  # laws see what slots cover
    masked = compares or own or program.operation.mask is not None
    return mask_cover(program) if masked else None


@overload
def unlaunched(term: Program) -> Program: ...
@overload
def unlaunched(term: Plan) -> Plan: ...
def unlaunched(term: Term) -> Term:
    """Return the term without what says how it is launched, and not what it computes."""
    if isinstance(term, Plan):
        steps = (replace(step, program=unlaunched(step.program)) for step in term.steps)
        return replace(term, steps=tuple(steps))
    program = term
    return replace(program, raster=1, ctas_per_sm=1, addressing="pointer", guards="each",
                   specialised=False, early=False)  # fmt: skip


def summary(found: Sequence[Meaning]) -> str:
    """Say in a line what was found of several terms that compute their operation, each once.

    >>> from tinygpu.term.machine import Chosen
    >>> from tinygpu.machines.simt import LADDER, Simt
    >>> from tinygpu.term.operation import matmul
    >>> print(summary([computes(Simt().program(matmul(), Chosen(LADDER["shared"])))] * 2))
    2 compute their operation: proved for every m, n, k
    """
    kinds: dict[str, int] = {}
    for one in found:
        if one.proved:
            text = f"proved for every {', '.join(one.program.operation.axes)}"
        elif not one.asked:
            text = f"{one}"
        elif one.unproved:
            text = f"tested at small sizes ({one.unproved})"
        else:
            text = f"proved for full tiles, tested at others ({one.ragged})"
        text += f", {one.cover}" if one.asked and one.cover is not None else ""
        text += f", {one.rounding}" if one.rounding else ""
        kinds[text] = kinds.get(text, 0) + 1
    if len(kinds) == 1:
        many = f"{len(found)} compute their operation" if found[1:] else "it computes its operation"
        return f"{many}: {next(iter(kinds))}"
    parts = (f"{many} {text}" for text, many in kinds.items())
    return f"whether they compute their operation: {'; '.join(parts)}"


@lru_cache(4096)
def _computes(program: Program, draws: int) -> Meaning:
    full, different = _instances(program)
    left, last = _MOST_WORK, []
    for sizes in different:  # the largest that leaves some time
        if (work := _work(program, sizes)) <= left * (1 - 0.5 * (sizes is not different[-1])):
            left -= work
            last = [sizes]
            break
    small: list[Mapping[str, int]] = []
    cover = _cover(program)
    if cover is not None and cover.at:  # a counterexample, which the run is to confirm
        least = different[-1]
        there = {axis: cover.at.get(axis, least[axis]) for axis in least}
        full = (*full, program.operation.in_pages(there))
    for sizes in full:
        if (work := _work(program, sizes)) <= left:
            left -= work
            small.append(sizes)
    chosen, on_chip = (*small, *last), OnChip()
    try:
        here = _asked(program, chosen, draws, on_chip)
    except NotCanonicalError as error:
        return Meaning(program, (), None, f"many CTAs, and no run of all at once: {error}")
    out = len(full) + 1 - len(chosen)
    why = f"{out} of {len(full) + 1} sizes take too long" if out else unproved(program)
    why = why or here.shared
    found = Meaning(program, here.sizes, here.finding, why, "" if why else ends(program), out,
                    exponential=here.exponential)  # fmt: skip
    if not found.proved:
        return found
    more = _larger(program)
    try:
        net = _asked(program, more, 1, on_chip)
    except NotCanonicalError:  # many CTAs, each by itself: the proof stands without a net
        return found
    if net.finding is not None:
        return replace(found, asked=(*here.sizes, *net.sizes), finding=net.finding)
    return replace(found, larger=len(more))


@dataclass(frozen=True, slots=True)
class _Asked:
    """Sizes up to the first finding, if any; what tiles share; ``exponential`` as in Meaning."""

    sizes: tuple[Mapping[str, int], ...]
    finding: Finding | None
    shared: str = ""
    exponential: float | None = None


def _asked(
    program: Program, every: tuple[Mapping[str, int], ...], draws: int, on_chip: OnChip
) -> _Asked:
    """Ask in the field; if its exponential, which is any function, differs, in the ring's."""
    last = (1,) * len(every[:-1]) + (draws,) * len(every[-1:])
    found = _asked_in(prime_field, program, every, last, on_chip)
    if found.finding is None or not has_exponential(program):
        return found
    found = _asked_in(exponential_ring, program, every, (max(DRAWS, draws),) * len(every), on_chip)
    if found.finding is None and every:
        finding = _finding_in_floats(program, every[-1], on_chip)
        return replace(found, finding=finding)
    return found


def _asked_in(
    algebra: Callable[[int], Algebra],
    program: Program,
    every: tuple[Mapping[str, int], ...],
    draws: tuple[int, ...],
    on_chip: OnChip,
) -> _Asked:
    """Ask at each size with as many draws, up to the first finding."""
    every_shared, least, ring = "", 1.0, algebra is exponential_ring
    for number, (here, many) in enumerate(zip(every, draws, strict=True)):
        shares = []
        for draw in range(many):
            found, shared, share = _findings(program, here, number, draw, algebra, on_chip)
            every_shared = every_shared or shared
            shares.append(share)
            if found:
                first = next((f for f in found if f.kind == "wrong_result"), found[0])
                told = _told(program, first, algebra(0).modulus)
                return _Asked(every[: number + 1], told, every_shared)
        share = sum(shares) / many
        if share < _COMPARED:
            few = f"the operation is a number at {share:.0%} of its elements only"
            every_shared = every_shared or few
        least = min(least, share)
    return _Asked(every, None, every_shared, least if ring else None)


def _findings(
    program: Program,
    sizes: Mapping[str, Any],
    number: int,
    draw: int,
    algebra: Callable[[int], Algebra],
    on_chip: OnChip,
) -> tuple[tuple[Finding, ...], str, float]:
    """Return what is wrong with one random input, why that proves nothing, and what was compared.

    The last is the share of the elements at which the operation is a number.
    """
    operation, random = program.operation, np.random.default_rng((number, draw))
    exact, pool = algebra(number + draw), with_pool(operation, sizes)
    shapes = operation.shapes(pool)
    inputs = {
        o.name: random.integers(exact.modulus, size=shapes[o.name]).astype(np.float64)
        for o in operation.inputs
    }
    indices = drawn_indices(operation, pool, random.standard_normal)
    inputs |= indices
    sizes = {**sizes, **_listed(indices)}
    scalars = {n: float(random.integers(exact.modulus)) for n in operation.scalars}
    try:
        result, found, shared = canonical_run(program, sizes, inputs, scalars, exact, on_chip)
    except NotCanonicalError:
        if prod(program.grid_extents(sizes)) > _MOST_CTAS:
            raise
        run = interpret(program, sizes, inputs, scalars=scalars, seed=number + draw, algebra=exact)
        why = "independent: the term was asked of the interpreter"
        compared = wrong_result(program, sizes, inputs, scalars, run.outputs, exact)[1]
        return run.findings, why, compared
    wrong, compared = wrong_result(program, sizes, inputs, scalars, result, exact)
    why = f"independent: tiles share {shared}" if shared else ""
    return (*found, *wrong), why, compared


def _listed(indices: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return arrays of integers as sizes have them: those along one axis."""
    return {name: tuple(array.tolist()) for name, array in indices.items() if array.ndim == 1}


def _finding_in_floats(
    program: Program, sizes: Mapping[str, Any], on_chip: OnChip
) -> Finding | None:
    """Return what is wrong in floats, on inputs of each kind: a sum that overflows, above all."""
    operation, scalars = program.operation, dict.fromkeys(program.operation.scalars, SCALAR)
    for kind in kinds(operation):
        made = drawn(operation, sizes, kind, np.random.default_rng(0).standard_normal)
        inputs = {o.name: DTYPES[o.dtype].round(made[o.name]) for o in operation.inputs}
        indices = {o.name: made[o.name] for o in operation.indices}
        inputs |= indices
        sizes = {**sizes, **_listed(indices)}
        try:
            result, found, _ = canonical_run(program, sizes, inputs, scalars, FLOATS, on_chip)
            found = (*found, *wrong_result(program, sizes, inputs, scalars, result, FLOATS)[0])
        except NotCanonicalError:
            found = interpret(program, sizes, inputs, scalars=scalars).findings
        if found:
            return replace(found[0], message=f"{found[0].message} (in floats, {kind} inputs)")
    return None


def _told(program: Program, finding: Finding, modulus: int) -> Finding:
    """Add to a wrong result the statements that write the output."""
    if finding.kind != "wrong_result":
        return finding
    stores = [s for s, _ in walk(program) if isinstance(s, Do)]
    own = [str(s) for s in stores if s.write.buffer.name == finding.cell.partition("[")[0]]
    by = " or ".join(dict.fromkeys(own)) or "no statement"
    return replace(
        finding,
        statement=own[0] if len(own) == 1 else "",
        message=f"{finding.message} (modulo {modulus}); written by {by}",
    )


def instances(program: Program) -> tuple[Mapping[str, int], ...]:
    """Return small sizes: full tiles at every number of trips that matters; others that differ.

    They are few and small, but not always: those of a term whose grid is large at any size are not.
    """
    full, different = _instances(program)
    return (*full, different[0])


def _instances(
    program: Program,
) -> tuple[tuple[Mapping[str, int], ...], tuple[Mapping[str, int], ...]]:
    """Return sizes of full tiles, and sizes that differ, the largest first, of which one is asked.

    The last of them have one tile and one trip.
    """
    steps = {
        axis: (*tile_of(program, axis), *edge_of(program, axis)) for axis in program.operation.axes
    }
    most = {axis: dict(program.at_most).get(axis, width * 2**20)
            for axis, (width, _, _, _) in steps.items()}  # fmt: skip
    whole = program.operation.in_pages
    looped = any(loops for _, loops, _, _ in steps.values())
    last = sum(window(program)) + 1 if looped else 1
    found: list[Mapping[str, int]] = []
    for trips in range(1, last + 1):
        sizes = {}
        for axis, (width, loops, _, _) in steps.items():
            tiles = trips if loops else 1 + (trips == 1)
            sizes[axis] = width * min(tiles, most[axis] // width)
        found.append(whole(sizes))
    found += (sizes for sizes in map(whole, _telling(program, steps, most)) if sizes not in found)
    kinds = {(last, 2): None, (min(2, last), 2): None, (1, 2): None, (1, 1): None}
    others = (whole(_different(steps, most, trips=trips, wide=wide)) for trips, wide in kinds)
    return tuple(found), tuple(others)


_FEW = 3


def _telling(
    program: Program, steps: Mapping[str, tuple[int, bool, int, bool]], most: Mapping[str, int]
) -> Iterator[Mapping[str, int]]:
    """Yield the fewest full tiles at which a tile value is 0 in some tile, and where tiles differ.

    Of each value, as far as three tiles along each axis show it.
    """
    axes = program.operation.axes
    wanted = {(name, how) for name in program.tile_values for how in ("none", "differ")}
    for tiles in sorted(product(range(1, _FEW + 1), repeat=len(axes)), key=sum) if wanted else ():
        sizes = {a: steps[a][0] * n for a, n in zip(axes, tiles, strict=True)}
        if any(sizes[a] > most[a] for a in axes):
            continue
        every = program.values_of_tiles(sizes)
        shown = {(name, "none") for name, each in every.items() if 0 in each}
        shown |= {(name, "differ") for name, each in every.items() if len({*each} - {0}) > 1}
        if wanted & shown:
            wanted -= shown
            yield sizes


def _different(
    steps: Mapping[str, tuple[int, bool, int, bool]],
    most: Mapping[str, int],
    *,
    trips: int,
    wide: int,
) -> Mapping[str, int]:
    """Return sizes that differ pairwise, of ``wide`` tiles, and not full, where that may be."""
    sizes: dict[str, int] = {}
    for axis in sorted(steps, key=lambda axis: not steps[axis][1]):  # loops first
        width, looped, unit, guarded = steps[axis]
        tiles = min(trips if looped else wide, most[axis] // width)
        parts = width // unit
        ragged = guarded and parts > 1
        size = (tiles - 1) * width + (unit * (parts // 2 + (parts > 3)) if ragged else width)
        by = unit if guarded else width
        below = range(size, 0, -by) if guarded else ()
        above = range(size, most[axis] + 1, by)
        free = (s for s in chain(below, above) if s not in sizes.values())
        sizes[axis] = next(free, size)  # there may be but this one
    return {axis: sizes[axis] for axis in steps}


def _larger(program: Program) -> tuple[Mapping[str, int], ...]:
    """Return three sizes beyond those of the proof, drawn by the term's hash; each takes 0.1 s."""
    seed = blake2b(str(program).encode(), digest_size=8).digest()
    random = np.random.default_rng(int.from_bytes(seed, "little"))
    most, found = dict(program.at_most), []
    for wide in _WIDE:
        least, tiles, ends = dict[str, int](), dict[str, int](), dict[str, tuple[int, int]]()
        for axis in program.operation.axes:
            width, looped = tile_of(program, axis)
            unit, guarded = edge_of(program, axis)
            least[axis] = sum(window(program)) + 2 if looped else 1
            drawn = least[axis] + int(random.integers(wide))
            tiles[axis] = min(drawn, max(1, most.get(axis, drawn * width) // width))
            last = unit * int(random.integers(1, width // unit + 1)) if guarded else width
            ends[axis] = width, last
        sizes = _of_tiles(tiles, ends)
        while _work(program, sizes) > _MOST_LARGER and any(tiles[a] > least[a] for a in tiles):
            tiles[max(tiles, key=lambda axis: tiles[axis] - least[axis])] -= 1
            sizes = _of_tiles(tiles, ends)
        found.append(program.operation.in_pages(sizes))
    return tuple({tuple(sizes.items()): sizes for sizes in found}.values())


def _of_tiles(tiles: Mapping[str, int], ends: Mapping[str, tuple[int, int]]) -> Mapping[str, int]:
    """Return sizes of so many tiles of a width, of which the last is not full."""
    return {axis: (tiles[axis] - 1) * width + last for axis, (width, last) in ends.items()}


def _work(program: Program, sizes: Mapping[str, int]) -> float:
    """Return about how many element operations a run takes, of some 10 ns each."""
    values: dict[str, float] = dict(program.parameter_values(sizes))
    for name, every in program.values_of_tiles(sizes).items():
        values[name] = sum(every) / len(every)
    ctas = prod(program.grid_extents(sizes)) * prod(int(n) for _, n in program.cluster)

    def of(body: tuple[Statement, ...], many: int, instances: int) -> float:
        total = 0.0
        for s in body:
            if isinstance(s, Do):
                elements = prod(int(v) for v in s.values)
                tile = s.of_tile
                if s.instruction.unit == "tensor":
                    elements = 4 * elements if s.instruction.warp_product else elements // 2
                total += _STATEMENT + elements * (1 if tile else many) * instances
            often = s.trips if isinstance(s, For) else 1
            times = values[often] if isinstance(often, str) else int(often)
            total += times * of(s.body, many, instances)
        return total

    arrays = sum(prod(shape) for shape in program.operation.shapes(sizes).values())
    roles = (of(r.body, int(r.threads), ctas * int(r.copies)) for r in program.roles)
    return 4 * arrays + sum(roles)
