from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.sample import draws
from tinygpu.errors import ProgramError
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.meaning.interpret import interpret
from tinygpu.term.arithmetic import compute
from tinygpu.term.expression import Constant, Expression, apply, value
from tinygpu.term.operation import Operand, Operation
from tinygpu.term.program import (
    Access,
    Axis,
    Buffer,
    Do,
    Program,
    Role,
    Scalar,
    buffers_of,
    registers,
)

ROWS, COLUMNS = 3, 4
BINARY = ("add", "sub", "mul", "max", "min")
X, R, A = value("x"), value("r"), value("a")


def leaves() -> st.SearchStrategy[Expression]:
    constants: st.SearchStrategy[Expression] = st.sampled_from((0.5, -2.0)).map(Constant)
    return st.sampled_from((X, R, A)) | constants


def of(operator: str, *arguments: Expression) -> Expression:
    return apply(operator, *arguments)


def combine(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    unary = st.builds(of, st.sampled_from(("neg", "abs")), inner)
    return unary | st.builds(of, st.sampled_from(BINARY), inner, inner)


def special(inner: st.SearchStrategy[Expression]) -> st.SearchStrategy[Expression]:
    """With functions that are computed in f32 alone."""
    return combine(inner) | st.builds(of, st.sampled_from(("sigmoid", "tanh")), inner)


def held(dtype: str = "f64") -> tuple[Access, Access, Access]:
    """x of each value, r of each row, y of each value."""
    x, y = (Access(registers(n, dtype, ROWS, COLUMNS), ((0, 1), (1, 0))) for n in ("x_", "y_"))
    return x, Access(registers("r_", dtype, ROWS), ((0,), (1,))), y


def statements(expression: Expression, dtype: str = "f64", inner: str = "f64") -> tuple[Do, ...]:
    x, r, y = held(dtype)
    reads: dict[str, Access | Scalar] = {"x": x, "r": r, "a": Scalar("a")}
    return compute(expression, reads, y, values=(COLUMNS, ROWS), dtype=inner)


def result(expression: Expression, x: Any, r: Any, a: float, dtype: str = "f64") -> Any:
    """Run the statements on one thread, between loads and a store."""
    shapes = {"x": ("i", "j"), "r": ("i",), "y": ("i", "j")}
    gmem = {n: Buffer(n, "gmem", dtype, s, ("j", 1)[-len(s) :]) for n, s in shapes.items()}
    x_, r_, y_ = held(dtype)
    both = (COLUMNS, ROWS)
    body = (
        Do(INSTRUCTIONS["ld.global"], x_, (Access(gmem["x"], x_.value),), both),
        Do(INSTRUCTIONS["ld.global"], r_, (Access(gmem["r"], r_.value),), both),
        *statements(expression, dtype, dtype),
        Do(INSTRUCTIONS["st.global"], Access(gmem["y"], y_.value), (y_,), both),
    )
    x_in, r_in, y_out = (Operand(n, s, dtype) for n, s in shapes.items())
    op = Operation("test", ("i", "j"), (x_in, r_in), y_out, (), expression, scalars=("a",))
    grid = (Axis("block", Constant(1)),)
    program = Program("test", op, buffers_of(body), (), grid, (Role("all", 1, body),))
    sizes = {"i": ROWS, "j": COLUMNS}
    return interpret(program, sizes, {"x": x, "r": r}, scalars={"a": a}).outputs["y"]


@settings(max_examples=draws(24, 60))
@given(expression=st.recursive(leaves(), combine, max_leaves=8), seed=st.integers(0, 99))
def test_statements_compute_what_the_expression_means(expression: Expression, seed: int) -> None:
    """The statements' results are the expression's, bit by bit in float64."""
    rng = np.random.default_rng(seed)
    x, r = rng.standard_normal((ROWS, COLUMNS)), rng.standard_normal(ROWS)
    meant = expression.evaluate({"x": x, "r": r[:, None], "a": 1.25})
    got = result(expression, x, r, 1.25)
    np.testing.assert_array_equal(got, np.broadcast_to(meant, x.shape))


@settings(max_examples=draws(24, 60))
@given(expression=st.recursive(leaves(), special, max_leaves=8), seed=st.integers(0, 99))
def test_statements_in_f32_round_at_each_operator(expression: Expression, seed: int) -> None:
    """To first order the result is off by at most u times what ``rounded`` says."""
    rng = np.random.default_rng(seed)
    shape = np.float32(rng.standard_normal((ROWS, COLUMNS)))
    x, r = shape.astype(float), np.float32(rng.standard_normal(ROWS)).astype(float)
    meant, error = expression.rounded({"x": x, "r": r[:, None], "a": 1.25}, {})
    off = np.abs(result(expression, x, r, 1.25, "f32") - meant)
    assert np.all(off <= 2.0**-23 * error)


def test_a_common_part_is_computed_once() -> None:
    """x * x + x * x multiplies once on its own and once inside an fma."""
    variants = [d.variant for d in statements(apply("max", X * X, apply("neg", X * X)))]
    assert variants == ["mul", "neg", "max"]


def test_what_does_not_move_is_computed_once() -> None:
    """Of x * rsqrt(r), a row's rsqrt is taken once; the product for each value."""
    rsqrt, product = statements(X * apply("rsqrt", R))
    assert (rsqrt.values, product.values) == ((1, ROWS), (COLUMNS, ROWS))


@pytest.mark.parametrize("expression", [A * X + R, R + A * X])
def test_a_product_and_a_sum_are_one_fma(expression: Expression) -> None:
    """a * b + c rounds once, whichever way round it is written."""
    (do,) = statements(expression)
    assert do.variant == "fma"
    assert [str(r) for r in do.reads] == ["a", "x_", "r_"]


def test_narrow_types_are_widened_first_and_narrowed_last() -> None:
    """bf16 goes through f32: each input is converted once, the result once."""
    names = [d.instruction.name for d in statements(X * X + R, "bf16", "f32")]
    assert names == ["cvt", "cvt", "fma", "cvt"]
    types = [d.write.buffer.dtype for d in statements(X * X + R, "bf16", "f32")]
    assert types == ["f32", "f32", "f32", "bf16"]


@pytest.mark.parametrize("expression", [Constant(2.0), A, X])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_a_leaf_is_moved(expression: Expression, dtype: str) -> None:
    """A constant, a scalar or an input alone still ends in what is written, in its type."""
    last = statements(expression, dtype, "f32")[-1]
    assert last.write.buffer.name == "y_"
    assert last.values == (COLUMNS, ROWS)


def test_a_sum_collects_in_its_left_operand() -> None:
    """acc + x * x into acc is one fma for each value, into one register a row."""
    x, r, _ = held()
    (do,) = compute(R + X * X, {"r": r, "x": x}, r, values=(COLUMNS, ROWS), dtype="f64")
    assert (do.variant, do.values, do.write.value) == ("fma", (COLUMNS, ROWS), ((0,), (1,)))


def test_unknown_names_and_operators_say_what_is_known() -> None:
    """An error names what is missing and what there is."""
    with pytest.raises(ProgramError, match="reads z; known are x, r, a"):
        statements(X + value("z"))
    with pytest.raises(ProgramError, match="no instruction for it; known are fma, mul"):
        statements(X.ceildiv(2))
