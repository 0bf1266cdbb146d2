"""Terms that are recorded, in lots, and the words that are said of them.

verdict_lots   the tests' corpora and their mutants: what the judge says, in a word
meaning_lots   named points over layouts and types, mutants of meaning, hostile terms: what
               ``computes`` says
text_lots      hostile terms, wrong terms, mutants: the laws that they break and the reasons of
               verdicts, as a user reads them
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
from hypothesis.internal.conjecture.data import ConjectureData
from hypothesis.internal.conjecture.providers import PrimitiveProvider

from benchmarks import async_corpus, tcgen05_cases
from benchmarks.problems import LAYOUTS, POINTS, SEED, one, operation_of, random_operation, types_of
from tests import (
    ampere_terms,
    async_mutants,
    blackwell_terms,
    hopper_terms,
    hopper_wrong,
    hostile_terms,
    meaning_mutants,
    mutants,
    test_blackwell_laws,
)
from tests.blackwell_mutants import tensor_mutants
from tests.small_programs import pipelined
from tinygpu.devices.device import load_device
from tinygpu.errors import OperationError, TinyGpuError
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import LAWS
from tinygpu.legality.reach import Case
from tinygpu.machines import MACHINES, ampere, blackwell, hopper, simt
from tinygpu.meaning.identity import computes
from tinygpu.term.machine import Chosen, Machine, Value
from tinygpu.term.operation import Operation, matmul
from tinygpu.term.program import Program
from tinygpu.term.schedule import Schedule

__all__ = ["Entry", "meaning_lots", "text_lots", "verdict_lots"]

FURTHER, FURTHER_LOT = 3000, 100
SMALL, SMALL_LOT = 600, 100
_TURNS = ("hopper", "blackwell", "simt", "ampere", "hopper", "simt", "blackwell", "ampere",
          "hopper", "rows", "blackwell", "simt", "hopper", "ampere", "elementwise")  # fmt: skip
"""The machines of the further mutants, one after another."""
_EVERY = 5
"""Named points are asked at each fifth of the types and layouts that they can do."""
_CHANGED = {
    "simt": ("warp-tiled", "matmul f32 f32 nn"),
    "ampere": ("plain", "matmul bf16 bf16 nt bias silu"),
    "hopper": ("ring", "matmul bf16 bf16 nt scaled bias batched silu"),
    "blackwell": ("small", "matmul f16 f32 tn batched"),
}
"""The named points and operations of which there are mutants of meaning."""
_SAID = 100
"""Of how many further mutants the verdict is recorded in words."""
_APART = 79
"""How far apart the mutants of a case lie of which the verdict is recorded in words."""


Entry = tuple[str, Callable[[], str]]
"""What a term is called, and what is said of it when it is asked."""


@cache
def verdict_lots() -> Mapping[str, Callable[[], Sequence[Entry]]]:
    """Return the lots of terms, each made when it is called."""
    found: dict[str, Callable[[], Sequence[Entry]]] = {
        "hopper wrong": lambda: _judged((law, p) for law, _, p in hopper_wrong.WRONG),
        "hopper right": lambda: _judged(hopper_wrong.RIGHT),
        "hopper wrong, laws": lambda: [
            (law, partial(_laws, hopper_terms.broken, p)) for law, _, p in hopper_wrong.WRONG
        ],
        "hopper right, laws": lambda: [
            (law, partial(_laws, hopper_terms.broken, p)) for law, p in hopper_wrong.RIGHT
        ],
        "hopper terms": lambda: _judged(
            (f"{start} {layout}", hopper_terms.term(start, layout))
            for start, layout in product(hopper.STARTS, LAYOUTS)
        ),
        "blackwell terms": lambda: _judged(
            (f"{start} {layout}", blackwell_terms.term(start, layout))
            for start, layout in blackwell_terms.FORMS
        ),
        "ampere terms": lambda: _judged(
            (f"{start} {layout} {dtype}", ampere_terms.term(start, layout, dtype))
            for start, layout, dtype in product(ampere.STARTS, LAYOUTS, ("bf16", "tf32"))
        ),
        "simt terms": lambda: _judged(
            (f"{name} {layout}", _simt(name, layout))
            for name, layout in product(POINTS["simt"], LAYOUTS)
        ),
    }
    for case in async_corpus.programs():
        found[f"async {case.name}"] = partial(_changed, case)
    for case in tcgen05_cases.cases():
        found[f"tcgen05 {case.name}"] = partial(_tensor, case)
    for start in blackwell.STARTS:
        found[f"blackwell {start}, mutants"] = partial(_small_blackwell, start)
    for start in ampere.STARTS:
        found[f"ampere {start}, mutants"] = partial(_plain, partial(ampere_terms.term, start))
    for point in POINTS["simt"]:
        found[f"simt {point}, mutants"] = partial(_plain, partial(_simt, point))
    for first in range(0, SMALL, SMALL_LOT):
        found[f"small programs from {first}"] = partial(_small, first)
    for first in range(0, FURTHER, FURTHER_LOT):
        found[f"further mutants from {first}"] = partial(_further, first)
    return found


def _judged(terms: Iterable[tuple[str, Program]]) -> list[Entry]:
    return [(name, partial(_verdict, partial(_itself, program))) for name, program in terms]


def _itself(program: Program) -> Program:
    return program


def _changed(case: async_corpus.Case) -> list[Entry]:
    return _judged(async_corpus.changed(case))


def _tensor(case: async_corpus.Case) -> list[Entry]:
    return _judged((name, c.program) for name, c in tcgen05_cases.mutants_of(case))


def _small_blackwell(start: str) -> list[Entry]:
    return _judged(tensor_mutants(blackwell_terms.small(start)))


def _plain(term: Callable[[], Program]) -> list[Entry]:
    return _judged(mutants.mutants(term()))


def _simt(point: str, layout: str = "nn") -> Program:
    return simt.Simt().program(matmul("f32", layout=layout), Chosen(POINTS["simt"][point]))


def _verdict(term: Callable[[], Program]) -> str:
    """Say in a word what the judge says: proved, checked, or what it finds first."""
    try:
        found = verdict(term())
    except TinyGpuError as error:
        return f"refused: {type(error).__name__}"
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        return f"failed: {type(error).__name__}"  # of a term that no law but another one allows
    if found.fault is None:
        return "proved" if found.legal else "checked"
    return found.fault.kind


def _laws(broken: Callable[[Program], Mapping[str, str]], program: Program) -> str:
    return ", ".join(broken(program)) or "none broken"


class _Draws(PrimitiveProvider):
    """What hypothesis draws, from a seed alone: its own draws know what modules are loaded."""

    def __init__(self, seed: int) -> None:
        super().__init__(None)
        self.random = random.Random(seed)

    def draw_boolean(self, p: float = 0.5) -> bool:
        return self.random.random() < p

    def draw_integer(
        self,
        min_value: int | None = None,
        max_value: int | None = None,
        *,
        weights: dict[int, float] | None = None,
        shrink_towards: int = 0,
    ) -> int:
        assert min_value is not None
        assert max_value is not None
        return self.random.randint(min_value, max_value)

    def draw_float(self, *_: Any, **__: Any) -> float:
        raise NotImplementedError

    def draw_string(self, *_: Any, **__: Any) -> str:
        raise NotImplementedError

    def draw_bytes(self, *_: Any, **__: Any) -> bytes:
        raise NotImplementedError


def _small(first: int) -> list[Entry]:
    """Return drawn pipelines around one ring."""
    found = []
    for seed in range(first, first + SMALL_LOT):
        program = ConjectureData(random=None, provider=_Draws(seed)).draw(pipelined())
        found.append((f"{zlib.crc32(repr(program.roles).encode()):08x}", program))
    return _judged(found)


def _further(first: int) -> list[Entry]:
    return [
        (str(n), partial(_verdict, partial(_mutant, n))) for n in range(first, first + FURTHER_LOT)
    ]


def _mutant(number: int) -> Program:
    """Draw a term near a machine's named points that its own laws allow; change it."""
    rng = np.random.default_rng((SEED, 3, number))
    name = _TURNS[number % len(_TURNS)]
    program = _near(name, rng)
    for _ in range(1 + (rng.random() < 0.25)):
        try:
            every = list(_mutants(name, program))
        except LookupError:  # of a change that leaves a block empty there is no second one
            break
        program = one(rng, every)[1] if every else program
    return program


def _near(name: str, rng: np.random.Generator) -> Program:
    machine, starts = MACHINES[name], POINTS.get(name)
    choices = machine.decisions()
    first: dict[str, Value] = {n: c.values[0] for n, c in choices.items()}
    while True:
        operation = operation_of(random_operation(name, int(rng.integers(60)), rng))

        def broken(values: Mapping[str, Value], operation: Operation = operation) -> int:
            return sum(not r.holds for r in machine.requires(operation, Chosen(values)))

        chosen = {**first, **one(rng, tuple(starts.values()))} if starts else first
        for _ in range(int(rng.integers(1, 9))):
            decision = one(rng, tuple(choices))
            other = {**chosen, decision: one(rng, choices[decision].values)}
            if broken(other) <= broken(chosen):
                chosen = other
        if not broken(chosen):
            try:
                return machine.program(operation, Chosen(chosen))
            except ZeroDivisionError:  # threads that a vector leaves nothing to do
                continue


def _mutants(machine: str, program: Program) -> Iterator[tuple[str, Program]]:
    if machine in ("hopper", "blackwell"):
        yield from async_mutants.mutants(program)
        yield from async_mutants.moved(program)
        yield from tensor_mutants(program) if machine == "blackwell" else ()
    else:
        yield from mutants.mutants(program)


def _digest(names: Iterable[str]) -> str:
    return f"{zlib.crc32(chr(10).join(names).encode()):08x}"


Words = Mapping[str, Callable[[], str]]
"""What terms are called, and what is said of each when it is asked."""


@cache
def meaning_lots() -> Mapping[str, Callable[[], Words]]:
    """Return the lots of terms that are asked whether they compute their operation."""
    found: dict[str, Callable[[], Words]] = {}
    for group in hostile_terms.__all__[:-1]:
        found[f"hostile {group}"] = partial(_hostile, group, _meaning)
    for name in POINTS:
        found[f"points of {name}"] = partial(_points, name)
        found[f"mutants of {name}"] = partial(_wrong_meanings, name)
    return found


@cache
def text_lots() -> Mapping[str, Callable[[], Words]]:
    """Return the lots of terms of which laws and the judge say what is wrong."""
    found: dict[str, Callable[[], Words]] = {}
    for group in hostile_terms.__all__[:-1]:
        found[f"hostile {group}"] = partial(_hostile, group, _text)
    found["wrong terms of hopper"] = partial(_wrong_texts, hopper_wrong.WRONG, "h200")
    found["wrong terms of blackwell"] = partial(_wrong_texts, test_blackwell_laws.WRONG, "b200")
    found["further mutants"] = lambda: {str(n): partial(_reason, n) for n in range(_SAID)}
    found["mutants of cases"] = _cases
    return found


Hostile = hostile_terms.Hostile


def _hostile(group: str, say: Callable[[Callable[[], Program], Hostile], str]) -> Words:
    terms: tuple[Hostile, ...] = getattr(hostile_terms, group)
    return {str(h): partial(say, h.make, h) for h in terms}


def _meaning(make: Callable[[], Program], _: Hostile | None = None) -> str:
    """Say whether a term computes its operation."""
    try:
        return str(computes(make()))
    except TinyGpuError as error:
        return f"refused: {type(error).__name__}: {error}"


def _points(name: str) -> Words:
    """Ask named points, each at some types and layouts."""
    machine, points = MACHINES[name], POINTS[name]
    every = [
        (point, text)
        for point, types, layout in product(points, types_of(machine), LAYOUTS)
        if _does(machine, operation_of(text := f"matmul {' '.join(types)} {layout}"), points[point])
    ]
    return {
        f"{point}: {text}": partial(_meaning, partial(_made, name, point, text))
        for point, text in every[::_EVERY]
    }


def _does(machine: Machine, operation: Operation, point: Mapping[str, Value]) -> bool:
    """Return whether a machine can do an operation in this way."""
    try:
        machine.check(operation)
    except OperationError:
        return False
    return all(r.holds for r in machine.requires(operation, Chosen(point)))


def _made(name: str, point: str, text: str) -> Program:
    return MACHINES[name].program(operation_of(text), Chosen(POINTS[name][point]))


def _wrong_meanings(name: str) -> Words:
    """Ask mutants of meaning of a named point."""
    point, text = _CHANGED[name]
    schedule = Schedule.of(MACHINES[name], dict(POINTS[name][point]))
    changed = meaning_mutants.mutants(schedule, operation_of(text), np.random.default_rng(SEED))
    return {family: partial(_meaning, partial(_itself, mutant)) for family, mutant in changed}


def _text(make: Callable[[], Program], hostile: Hostile) -> str:
    """Say which laws a hostile term breaks, and what the judge says."""
    try:
        program, device = make(), load_device(hostile.device)
        return _words(program, [Case.of(program, sizes, device) for sizes in hostile.sizes])
    except TinyGpuError as error:
        return f"refused: {type(error).__name__}: {error}"


def _words(program: Program, cases: Sequence[Case]) -> str:
    found: dict[str, str] = {}
    with np.errstate(all="ignore"):
        for law in (law for law in LAWS.values() if law.numeric):
            for clause in (c for case in cases for c in law.clauses(case) if not c.holds):
                found.setdefault(law.name, f"{law.name}: {clause}; {law.mend}")
    return "\n".join([*found.values(), _judgement(partial(_itself, program))])


def _judgement(term: Callable[[], Program]) -> str:
    """Say what the judge says and why, but for how many states it took."""
    try:
        found = verdict(term())
    except TinyGpuError as error:
        return f"refused: {type(error).__name__}: {error}"
    except (ArithmeticError, AssertionError, LookupError, TypeError, ValueError) as error:
        return f"failed: {type(error).__name__}"  # a term that another law does not allow
    return f"legal: {found.by}" if found.legal else str(found)


def _wrong_texts(wrong: Iterable[tuple[str, str, Program]], device: str) -> Words:
    found: dict[str, Callable[[], str]] = {}
    for law, _, program in wrong:
        case = Case.of(program, hopper_terms.LARGE, load_device(device))
        number = sum(key.startswith(f"{law} ") for key in found)
        found[f"{law} {number}"] = partial(_words, program, [case])
    return found


def _reason(number: int) -> str:
    return _judgement(partial(_mutant, number))


def _cases() -> Words:
    """Ask mutants of cases, some of each."""
    found: dict[str, Callable[[], str]] = {}
    for case in async_corpus.programs():
        for name, program in list(async_corpus.changed(case))[::_APART]:
            found[f"{case.name}: {name}"] = partial(_judgement, partial(_itself, program))
    for case in tcgen05_cases.cases():
        for name, changed in list(tcgen05_cases.mutants_of(case))[::_APART]:
            found[f"{case.name}: {name}"] = partial(_judgement, partial(_itself, changed.program))
    return found
