"""Expressions: what is printed is read back, and rounding stays within what is said of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sample import draws
from tinygpu.errors import OperationError
from tinygpu.term.expression import (
    OPERATORS,
    Apply,
    Constant,
    Expression,
    Value,
    apply,
    parse,
    value,
)

LEAVES = st.one_of(
    st.sampled_from([Value(name) for name in "abx"]),
    st.floats(-100, 100, allow_subnormal=False).map(Constant),
)
ARITHMETIC = {"add": 2, "sub": 2, "mul": 2, "max": 2, "neg": 1, "abs": 1, "tanh": 1}


def _applied(parts: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    def of(operator: str) -> st.SearchStrategy[Expression]:
        count = ARITHMETIC[operator]
        return st.tuples(*[parts] * count).map(lambda given: apply(operator, *given))

    return st.sampled_from(sorted(ARITHMETIC)).flatmap(of)


EXPRESSIONS = st.recursive(LEAVES, _applied, max_leaves=8)


def folded(expression: Expression) -> Expression:
    """Compute what is of constants alone, as ``parse`` does."""
    if not isinstance(expression, Apply):
        return expression
    parts = tuple(map(folded, expression.arguments))
    if all(isinstance(part, Constant) for part in parts):
        return Constant(float(Apply(expression.operator, parts).evaluate({})))
    return Apply(expression.operator, parts)


@given(EXPRESSIONS)
def test_what_is_printed_is_read(expression: Expression) -> None:
    assert parse(str(expression)) == folded(expression)


@settings(max_examples=draws(80, 200))
@given(EXPRESSIONS, st.integers(0, 2**31))
def test_rounding_is_bounded(expression: Expression, seed: int) -> None:
    """In fp32 with every result rounded, the error is at most twice u S; of fp64 it is nothing."""
    numbers = np.random.default_rng(seed).standard_normal(3).astype(np.float32)
    values = dict(zip("abx", numbers.astype(np.float64), strict=True))
    exact, scale = expression.rounded(values, {})

    def narrow(node: Expression) -> np.float32:
        match node:
            case Constant(number):
                return np.float32(number)
            case Value(name):
                return np.float32(values[name])
            case Apply(operator, arguments):
                parts = [np.float64(narrow(a)) for a in arguments]
                return np.float32(OPERATORS[operator](*parts))
        raise AssertionError(node)

    constants = sum(isinstance(node, Constant) for node in expression.nodes())
    if not constants:  # which are rounded too, and not counted
        assert abs(float(narrow(expression)) - float(exact)) <= 2 * 2.0**-24 * float(scale) + 1e-44


@given(st.floats(-1, 1), st.floats(-1, 1), st.floats(0, 0.25), st.sampled_from(["max", "min"]))
def test_another_argument_may_win(x: float, off: float, u: float, operator: str) -> None:
    """What is off by as much as it is large may cross the other argument of a maximum."""
    relu = apply(operator, value("x"), 0.0)
    exact, scale = relu.rounded({"x": x}, {"x": abs(off)})
    moved = relu.evaluate({"x": x + u * off})
    assert np.abs(moved - exact) <= u * scale + 1e-15


def test_the_bound_sees_cancellation() -> None:
    """A difference of near numbers is off by more than its size tells."""
    a, b = value("a"), value("b")
    _, plain = (a - b).rounded({"a": 1e4, "b": 1e4 - 1}, {})
    _, squares = (a * a - b * b).rounded({"a": 1e4, "b": 1e4 - 1}, {})
    assert float(plain) == pytest.approx(1)
    assert float(squares) == pytest.approx(2e8, rel=1e-3)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a +", "invalid syntax"),
        ("", "invalid syntax"),
        ("exp(x)", "exp(x) is ex2(1.44"),
        ("ex3(x)", "did you mean ex2?"),
        ("fma(a, x)", "2 arguments; it takes 3"),
        ("x ** 2", "x ** 2 is no number"),
        ("x if a else b", "is no number"),
        ("max(x, b=1)", "is no number"),
        ("True", "is no number"),
        ("1j * x", "is no number"),
        ("1e999 * x", "is inf"),
        ("x / (1 / 0)", "is inf"),
        ("9" * 400 + "*x", "too large"),
        ("x" + " + x" * 101, "at most 100 levels"),
        ("((" * 249, "expression"),
        ("x" * 501, "at most 500"),
    ],
)
def test_what_is_no_expression(text: str, told: str) -> None:
    with pytest.raises(OperationError) as error:
        parse(text)
    assert told in str(error.value)
    assert "\n" not in str(error.value)
