"""Formulas: the laws of a structural choice as z3 terms over its numeric decisions.

The same laws that read ints and arrays read ``Formula``s, which build z3 expressions.  A solver
then proves statements about *every* schedule of a space, or finds a counterexample.  ``unknown`` is
an answer of its own, limited by z3's resource count (repeatable) and not by time.

>>> from tinygpu.device import load_device
>>> from tinygpu.machines.simt import LADDER, Simt
>>> from tinygpu.operation import Problem, matmul
>>> from tinygpu.space import Space
>>> problem = Problem.of(matmul(), m=64, n=64, k=64)
>>> fixed = {**LADDER["tuned"], "stages": (1, 2), "vector_c": (2, 4), "vector_shared": (1, 4)}
>>> solver = Solver(Space(Simt(), problem, load_device("h200"), fixed=fixed))
>>> solver.prove(lambda d: d.stages == 1).outcome
'proved'
>>> refuted = solver.prove(lambda d: d.vector_c == 2)
>>> refuted.outcome, refuted.witness["vector_c"]
('refuted', 4)

Source: L. de Moura, N. Bjorner, "Z3: An Efficient SMT Solver", 2008.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tinygpu.errors import ScheduleError
from tinygpu.laws import LAWS
from tinygpu.machine import Chosen, Value
from tinygpu.reach import Case
from tinygpu.space import Space

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["Answer", "Formula", "Solver"]


def _z3() -> ModuleType:
    import z3  # takes a fifth of a second to load

    module: ModuleType = z3
    return module


class Formula:
    """A z3 int or bool with Python's integer arithmetic and ``select``.

    Divisors are positive wherever the laws hold, where z3's division is Python's.  Division by zero
    gives 0, as in NumPy.  ``texts`` are the values of a decision that is chosen by name.
    """

    def __init__(self, term: Any, texts: tuple[Value, ...] = ()) -> None:
        """Wrap a z3 expression, an int or a bool."""
        self.term = term
        self.texts = texts

    def __bool__(self) -> bool:
        """Refuse: nothing that reads formulas may branch on one."""
        raise TypeError("a formula has no truth value; use select, & and |")

    def _binary(self, other: Any, build: Callable[[Any, Any], Any]) -> Formula:
        return Formula(build(self.term, _term(other)))

    def __add__(self, other: Any) -> Formula:
        return self._binary(other, lambda a, b: _int(a) + _int(b))

    def __sub__(self, other: Any) -> Formula:
        return self._binary(other, lambda a, b: _int(a) - _int(b))

    def __rsub__(self, other: Any) -> Formula:
        return self._binary(other, lambda a, b: _int(b) - _int(a))

    def __mul__(self, other: Any) -> Formula:
        return self._binary(other, lambda a, b: _int(a) * _int(b))

    def __neg__(self) -> Formula:
        return Formula(-_int(self.term))

    def __floordiv__(self, other: Any) -> Formula:
        return self._binary(other, _divided)

    def __rfloordiv__(self, other: Any) -> Formula:
        return self._binary(other, lambda a, b: _divided(b, a))

    def __mod__(self, other: Any) -> Formula:
        return self._binary(other, lambda a, b: _int(a) - _divided(a, b) * _int(b))

    def __rmod__(self, other: Any) -> Formula:
        return self._binary(other, lambda a, b: _int(b) - _divided(b, a) * _int(a))

    def __rshift__(self, bits: int) -> Formula:
        return self // (1 << bits)

    def __eq__(self, other: object) -> Any:  # a Formula, where Python expects a bool
        if isinstance(other, str):
            return Formula(self.term == self.texts.index(other) if other in self.texts else False)
        return self._binary(other, lambda a, b: _int(a) == _int(b))

    def __ne__(self, other: object) -> Any:
        return (self == other) ^ True

    def __lt__(self, other: Any) -> Formula:
        return self._binary(other, lambda a, b: _int(a) < _int(b))

    def __le__(self, other: Any) -> Formula:
        return self._binary(other, lambda a, b: _int(a) <= _int(b))

    def __gt__(self, other: Any) -> Formula:
        return self._binary(other, lambda a, b: _int(a) > _int(b))

    def __ge__(self, other: Any) -> Formula:
        return self._binary(other, lambda a, b: _int(a) >= _int(b))

    def __and__(self, other: Any) -> Formula:
        return self._binary(other, lambda a, b: _z3().And(_bool(a), _bool(b)))

    def __or__(self, other: Any) -> Formula:
        return self._binary(other, lambda a, b: _z3().Or(_bool(a), _bool(b)))

    def __xor__(self, other: Any) -> Formula:
        return self._binary(other, lambda a, b: _z3().Xor(_bool(a), _bool(b)))

    __radd__, __rmul__, __rand__, __ror__, __rxor__ = __add__, __mul__, __and__, __or__, __xor__

    def select(self, then: Any, otherwise: Any) -> Formula:
        """Return ``then`` where this holds, else ``otherwise``."""
        z3 = _z3()
        first, second = _term(then), _term(otherwise)
        if all(isinstance(x, bool) or z3.is_bool(x) for x in (first, second)):
            return Formula(z3.If(_bool(self.term), _bool(first), _bool(second)))
        return Formula(z3.If(_bool(self.term), _int(first), _int(second)))


def _term(value: Any) -> Any:
    return value.term if isinstance(value, Formula) else value


def _int(term: Any) -> Any:
    z3 = _z3()
    if isinstance(term, int):
        return z3.IntVal(int(term))
    return z3.If(term, z3.IntVal(1), z3.IntVal(0)) if z3.is_bool(term) else term


def _bool(term: Any) -> Any:
    z3 = _z3()
    if isinstance(term, bool):
        return z3.BoolVal(term)
    return term if z3.is_bool(term) else _int(term) != 0


def _divided(a: Any, b: Any) -> Any:
    z3 = _z3()
    return z3.If(_int(b) == 0, z3.IntVal(0), _int(a) / _int(b))


@dataclass(frozen=True, slots=True)
class Answer:
    """What a proof came to; ``witness`` is a schedule's decisions where it was refuted."""

    outcome: Literal["proved", "refuted", "unknown"]
    witness: Mapping[str, Value]


class Solver:
    """The legal schedules of a space with one structural choice, as formulas.

    The concurrency law has no arithmetic; its verdicts enter as the batch's table.  Raises
    ScheduleError if the space has several structural choices: fix them.
    """

    def __init__(self, space: Space) -> None:
        """Assert the decisions' values and every law."""
        z3 = _z3()
        if any(len(space.values[n]) != 1 for n in space.structural):
            raise ScheduleError(
                f"solver: several structural choices; fix {', '.join(space.structural)} to one each"
            )
        self.space = space
        structure = {n: space.values[n][0] for n in space.structural}
        self._variables = {n: z3.Int(n) for n in space.axes}
        numbers = {
            n: Formula(x, space.values[n] if isinstance(space.values[n][0], str) else ())
            for n, x in self._variables.items()
        }
        self.chosen = Chosen(structure | numbers)
        self._solver = z3.Solver()
        for name, variable in self._variables.items():
            self._solver.add(z3.Or(*(variable == v for v in self._codes(name))))
        self.laws = self._laws()
        for clauses in self.laws.values():
            self._solver.add(*clauses)

    def _codes(self, name: str) -> range | tuple[Value, ...]:
        values = self.space.values[name]
        return range(len(values)) if isinstance(values[0], str) else values

    def _is(self, name: str, position: int) -> Any:
        return self._variables[name] == self._codes(name)[position]

    def _laws(self) -> dict[str, list[Any]]:
        """Return each law's clauses as z3 formulas."""
        z3, space = _z3(), self.space
        operation = space.problem.operation
        found: dict[str, list[Any]] = {}
        for requirement in space.machine.requires(operation, self.chosen):
            found.setdefault(requirement.name, []).append(_bool(_term(requirement.holds)))
        program = space.machine.program(operation, self.chosen)
        case = Case.of(program, space.problem.sizes, space.device)
        for law in LAWS.values():
            if law.numeric:
                clauses = [_bool(_term(c.holds)) for c in law.clauses(case)]
                found.setdefault(law.name, []).extend(clauses)
        for batch in space.batches():
            for table in batch.tables:
                if table.law == "concurrency":
                    found["concurrency"] = [self._table(table.axes, table.holds)]
        if not space.batches():
            found["concurrency"] = [z3.BoolVal(True)]
        return found

    def _table(self, axes: tuple[int, ...], holds: Any) -> Any:
        z3 = _z3()
        names = [self.space.axes[a] for a in axes]
        rows = holds.nonzero()
        allowed = [
            z3.And(
                *(self._variables[n] == self._codes(n)[i] for n, i in zip(names, row, strict=True))
            )
            for row in zip(*(r.tolist() for r in rows), strict=True)
        ]
        return z3.Or(*allowed)

    def prove(self, claim: Callable[[Any], Any], *, resources: int = 20_000_000) -> Answer:
        """Decide whether every legal schedule satisfies a claim about ``chosen``."""
        z3 = _z3()
        self._solver.push()
        self._solver.set("rlimit", resources)
        try:
            self._solver.add(z3.Not(_bool(_term(claim(self.chosen)))))
            outcome = self._solver.check()
            if outcome == z3.unsat:
                return Answer("proved", {})
            if outcome != z3.sat:
                return Answer("unknown", {})
            model = self._solver.model()
            witness: dict[str, Value] = {n: self.space.values[n][0] for n in self.space.structural}
            for name, variable in self._variables.items():
                code = model.eval(variable, model_completion=True).as_long()
                values = self.space.values[name]
                witness[name] = values[code] if isinstance(values[0], str) else code
            return Answer("refuted", witness)
        finally:
            self._solver.pop()

    def broken(self, values: Mapping[str, Value]) -> tuple[str, ...]:
        """Return the laws whose formulas a choice of every decision makes false."""
        z3 = _z3()
        pairs = []
        for name, variable in self._variables.items():
            allowed = self.space.values[name]
            value = values[name]
            code = allowed.index(value) if isinstance(value, str) else value
            pairs.append((variable, z3.IntVal(code)))
        return tuple(
            law
            for law, clauses in self.laws.items()
            if not all(z3.is_true(z3.simplify(z3.substitute(clause, *pairs))) for clause in clauses)
        )
