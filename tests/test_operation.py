"""Operations: reductions in order and an epilogue, evaluated without the product of all axes."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.sample import draws
from tinygpu.errors import OperationError, ProgramError
from tinygpu.isa.algebra import FLOATS, Algebra
from tinygpu.machines import MACHINES, elementwise, rows
from tinygpu.meaning.prime_field import P, prime_field
from tinygpu.term import operation as operations
from tinygpu.term.expression import (
    Apply,
    Constant,
    Expression,
    Index,
    Value,
    apply,
    bounds,
    comparisons,
    parse,
    value,
)
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import (
    Operand,
    Operation,
    Problem,
    Reduction,
    grouped_matmul,
    matmul,
    rmsnorm,
    softmax,
)
from tinygpu.term.operation import elementwise as elementwise_of
from tinygpu.term.schedule import (
    Schedule,
    _expression_from_tree,
    _expression_to_tree,
    from_json,
    to_json,
)

AXES = ("i", "j", "k", "p")
FIELD = prime_field(3)
WHOLE = st.recursive(
    st.one_of(
        st.sampled_from([Index("i"), Index("j"), Value("i"), Value("j")]),
        st.integers(-9, 9).map(lambda n: Constant(float(n))),
    ),
    lambda inner: st.builds(apply, st.sampled_from(["add", "sub"]), inner, inner),
    max_leaves=5,
)
COMPARED = st.builds(apply, st.sampled_from(["le", "lt"]), WHOLE, WHOLE)
CONDITIONS = COMPARED | st.builds(apply, st.just("and"), COMPARED, COMPARED)
MASKED = st.builds(
    apply, st.just("where"), CONDITIONS, st.sampled_from([Value("x"), Constant(2.5)]),
    st.sampled_from([Value("w"), Constant(-math.inf), Constant(0.0)]),
)  # fmt: skip


def has_constants_alone(expression: Expression) -> bool:
    """Whether ``parse`` computes a part of it."""
    return any(
        isinstance(node, Apply) and all(isinstance(a, Constant) for a in node.arguments)
        for node in expression.nodes()
    )


@given(MASKED)
def test_masks_are_printed_and_read(mask: Expression) -> None:
    read = parse(str(mask))
    assert parse(str(read)) == read
    assert read == mask or has_constants_alone(mask)


@given(MASKED, st.integers(1, 9), st.integers(1, 9))
def test_masks_are_evaluated_in_integers(mask: Expression, i: int, j: int) -> None:
    """The field has its own numbers; which value is chosen does not depend on it."""
    assert isinstance(mask, Apply)
    indices = {"index(i)": np.arange(i)[:, None], "index(j)": np.arange(j)[None]}
    values: dict[str, Any] = {"i": i, "j": j, "x": 3.0, "w": 5.0, **indices}
    one, other = (a.evaluate(values) for a in mask.arguments[1:])
    floats = np.broadcast_to(mask.evaluate(values), (i, j))
    condition = np.broadcast_to(mask.arguments[0].evaluate(values), (i, j))
    for r in range(i):
        for c in range(j):
            here = {"index(i)": r, "index(j)": c, "i": i, "j": j}
            wanted = all(
                node.arguments[0].evaluate(here) <= node.arguments[1].evaluate(here)
                - (node.operator == "lt")
                for node in comparisons(mask)
            )  # fmt: skip
            assert condition[r, c] == wanted
            assert floats[r, c] == (one if wanted else other)
    exact = np.broadcast_to(mask.evaluate(values, FIELD), (i, j))
    numbers = [FIELD.number(float(x)) for x in (one, other)]
    assert np.array_equal(exact, np.where(condition, *numbers))
    low, high = bounds(mask, {"x": (3.0, 3.0), "w": (5.0, 5.0)})
    assert np.all((low <= floats) & (floats <= high))


def test_integers_of_a_condition_are_no_field_elements() -> None:
    """P and 0 are one element of the field, and two sizes."""
    far = parse("where(index(i) < i, x, 0)").evaluate(
        {"index(i)": np.array([0, P - 1, P]), "i": P, "x": 7.0}, FIELD
    )
    assert np.asarray(far).tolist() == [7.0, 7.0, 0.0]
    slope = parse("x * index(i)").evaluate({"index(i)": np.array([2, P + 1]), "x": 7.0}, FIELD)
    assert np.asarray(slope).tolist() == [14.0, 7.0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("where(x, 1, 2)", "x is no condition"),
        ("x + (index(i) < 2)", "is a condition, and no number"),
        ("where(index(i) < 2 and x, 1, 2)", "x is no condition"),
        ("where(index(i) * index(j) <= 2, x, 0)", "a product of coordinates"),
        ("where(index(i) <= 0.5, x, 0)", "no sum of coordinates, sizes and whole numbers"),
        ("where(max(index(i), 2) <= 3, x, 0)", "no sum of coordinates"),
        ("where(index(i) <= x / 2, x, 0)", "no sum of coordinates"),
        ("where(index(i) <= 1 <= 2, x, 0)", "is no number"),
        ("where(index(i) == 1, x, 0)", "is no number"),
        ("inf * x", "is no number"),
        ("index(3)", "operator index"),
    ],
)
def test_what_is_no_mask(text: str, said: str) -> None:
    with pytest.raises(OperationError, match="expression") as error:
        parse(text)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_choice_passes_errors_on_and_rounds_nothing() -> None:
    chosen = parse("where(index(i) < 2, x, w * w)")
    values = {"index(i)": np.arange(4), "x": np.full(4, 3.0), "w": np.full(4, 5.0)}
    found, error = chosen.rounded(values, {"x": np.array([0.0, 0.5, 7.0, 7.0])})
    assert np.asarray(found).tolist() == [3, 3, 25, 25]
    assert np.asarray(error).tolist() == [0, 0.5, 25, 25]


# Reductions


def naive(
    operation: Operation, inputs: dict[str, Any], sizes: dict[str, int], algebra: Algebra
) -> NDArray[np.float64]:
    """Evaluate on the full product of all axes."""
    every = tuple(sizes[a] for a in operation.axes)
    values: dict[str, Any] = dict(sizes)
    for n, a in enumerate(operation.axes):
        shape = [sizes[a] if i == n else 1 for i in range(len(every))]
        values[f"index({a})"] = np.arange(sizes[a]).reshape(shape)
    for o in operation.inputs:
        order = sorted(range(len(o.axes)), key=lambda d: operation.axes.index(o.axes[d]))
        shape = [sizes[a] if a in o.axes else 1 for a in operation.axes]
        values[o.name] = inputs[o.name].transpose(order).reshape(shape)
    for r in operation.reductions:
        point = np.broadcast_to(r.expression.evaluate(values, algebra), every)
        where = tuple(operation.axes.index(a) for a in r.over)
        values[r.name] = np.broadcast_to(algebra.total(r.operator, point, where), every)
    whole = np.broadcast_to(operation.epilogue.evaluate(values, algebra), every)
    first = tuple(slice(None) if a in operation.output.axes else 0 for a in operation.axes)
    return whole[first]


@st.composite
def chains(draw: st.DrawFn) -> tuple[Operation, dict[str, int]]:
    """Two reductions of random axes: a product of a few factors, and one that reads it."""
    some = st.lists(st.sampled_from(AXES), min_size=1, max_size=3, unique=True).map(tuple)
    inputs = (
        *(Operand(name, draw(some), "f32") for name in "abc"),
        *(Operand(f"of_{a}", (a,), "f32") for a in AXES),
    )
    first, operator = draw(some), draw(st.sampled_from(["add", "add", "max"]))
    factors: list[Expression] = list(map(value, draw(st.permutations("abc"))))
    del factors[draw(st.integers(1, 3)) :]
    mask = parse("where(index(i) <= index(j) + 1, a, 0)")
    factors += [Constant(0.5), mask][: draw(st.integers(0, 2))]
    point = factors[0]
    for factor in factors[1:]:
        point = point * factor
    spans = {o.name: {*o.axes} for o in inputs} | {f"index({a})": {a} for a in AXES}
    left = set[str]().union(*(spans.get(n, ()) for n in point.names())) - {*first}
    second = draw(st.sampled_from([
        value("b") * value("r"), apply("max", value("r"), value("c")) * value("b"), value("r"),
        apply("where", apply("lt", Index("k"), Index("i") + 1.0), value("r"), Constant(0.0)),
    ]))  # fmt: skip
    spans["r"] = left
    reads = set[str]().union(*(spans.get(n, ()) for n in second.names()))
    over = {*draw(some)} | (reads & {*first})
    gone = {*first} | over
    kept = tuple(a for a in AXES if a not in gone)
    end: Expression = value("acc") if left & gone else value("acc") + value("r") * value("p")
    reductions = (
        Reduction("r", operator, point, first),
        Reduction("acc", "add", second, tuple(a for a in AXES if a in over)),
    )
    made = Operation("chain", AXES, inputs, Operand("y", kept, "f32"), reductions, end)
    return made, {a: draw(st.integers(1, 4)) for a in AXES}


@settings(max_examples=draws(60, 150), deadline=None)
@given(chains(), st.integers(0, 2**31), st.sampled_from([2**20, 1]))
def test_reductions_are_those_of_the_full_product(
    chain: tuple[Operation, dict[str, int]], seed: int, block: int
) -> None:
    """In floats, in blocks, and exactly; operands that nothing reads give the sizes."""
    operation, sizes = chain
    random = np.random.default_rng(seed)
    shapes = operation.shapes(sizes)
    inputs = {o.name: random.standard_normal(shapes[o.name]) for o in operation.inputs}
    old = operations._BLOCK
    operations._BLOCK = block
    try:
        found = operation.reference(inputs)
        wanted = naive(operation, inputs, sizes, FLOATS)
        assert np.all(np.abs(found["y"] - wanted) <= 1e-13 * found["scale of y"] + 1e-14)
        assert found["y"].shape == shapes["y"] == found["scale of y"].shape
        whole = {n: random.integers(0, P, x.shape).astype(np.float64) for n, x in inputs.items()}
        exact = operation.reference(whole, algebra=FIELD)
        assert np.array_equal(exact["y"], naive(operation, whole, sizes, FIELD))
        assert not exact["scale of y"].any()
    finally:
        operations._BLOCK = old


def test_a_matmul_has_the_scale_of_magnitudes() -> None:
    random = np.random.default_rng(0)
    a, b = random.standard_normal((9, 30)), random.standard_normal((30, 8))
    found = matmul("f32").reference({"a": a, "b": b})
    assert np.allclose(found["c"], a @ b)
    assert np.allclose(found["scale of c"], np.abs(a) @ np.abs(b))
    turned = matmul("f32", layout="tt").reference({"a": a.T, "b": b.T})
    assert np.allclose(turned["c"], a @ b)


def test_three_factors_are_contracted_in_pairs() -> None:
    """And what each factor is off by is passed on: a sum of products, twice rounded."""
    k, n = 300, 300
    chain = Operation(
        "weighted", ("m", "n", "k"),
        tuple(Operand(n, tuple(axes), "f32") for n, axes in (("a", "mk"), ("b", "kn"), ("w", "k"))),
        Operand("c", ("m", "n"), "f32"),
        (Reduction("acc", "add", parse("a * b * (w + 1)"), ("k",)),),
    )  # fmt: skip
    random = np.random.default_rng(0)
    a, b, w = (random.standard_normal(s) for s in ((5, k), (k, n), (k,)))
    found = chain.reference({"a": a, "b": b, "w": w})
    assert np.allclose(found["c"], (a * (w + 1)) @ b)
    assert np.allclose(found["scale of c"], 3 * np.abs(a * (w + 1)) @ np.abs(b), rtol=1e-5)
    (acc,) = chain.reductions
    assert chain.is_contracted(acc)
    assert chain.flops({"m": 5, "n": n, "k": k}) == 3 * 5 * n * k


@pytest.mark.parametrize(
    ("operation", "sizes", "flops"),
    [
        (matmul(), {"m": 3, "n": 4, "k": 5}, 2 * 3 * 4 * 5),
        (matmul(batched=True, bias=True), {"l": 2, "m": 3, "n": 4, "k": 5}, 2 * 2 * 3 * 4 * 5),
        (elementwise_of("a*x + b"), {"i": 7}, 2 * 7),
        (rmsnorm(), {"i": 3, "j": 5}, 2 * 15),
        (softmax(), {"i": 3, "j": 5}, 5 * 15),
    ],
    ids=["matmul", "batched", "elementwise", "rmsnorm", "softmax"],
)
def test_work_is_counted(operation: Operation, sizes: dict[str, int], flops: int) -> None:
    assert operation.flops(sizes) == flops


X, Y = Operand("x", ("i", "j"), "f32"), Operand("y", ("i",), "f32")


def made(text: str, end: str = "acc", over: tuple[str, ...] = ("j",), **more: Any) -> Operation:
    sums = (Reduction("acc", "add", parse(text), over),)
    return Operation("own", ("i", "j"), (X,), Y, sums, parse(end), **more)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: made("x", "1"), "the reduction acc is read by nothing"),
        (lambda: made("x * acc"), "expression names 'acc', which is no input"),
        (lambda: made("x", "acc + x"), "the epilogue (acc + x) has the axis j, which y[i]"),
        (lambda: made("x", "acc + index(j)"), "has the axis j"),
        (lambda: made("x", over=("z",)), "acc: reduced axes: axis z is not the operation's"),
        (lambda: made("where(index(j) < t, x, 0)", scalars=("t",)), "t is no size"),
        (lambda: made("where(index(z) < 1, x, 0)"), "expression names 'index(z)'"),
        (lambda: Reduction("r", "add", value("x"), ()), "r: it is over no axis"),
        (lambda: Reduction("r", "mean", value("x"), ("j",)), "r: mean; known are add, max"),
        (lambda: made("x * element(x, 1)"), "element(x, 1.0): a lookup; only tile values"),
        (lambda: made("x", "acc + slots_before(x, 1, 2)"), "slots_before(x, 1.0, 2.0): a lookup"),
        (lambda: matmul("i32", "f32"), "a[m,k] i32: only groups' ends are integers; known are f64"),
        (lambda: replace(made("x"), output=replace(Y, dtype="i32")), "y[i] i32: only groups' ends"),
        (lambda: Problem.of(grouped_matmul(), g=2, m=4, n=4, k=4, ends=4), "ends: 4 is of type"),
        (lambda: Problem.of(grouped_matmul(), g=2, m=4, n=4, k=4, ends=None), "ends: None is of"),
    ],
)  # fmt: skip
def test_what_is_no_operation(wrong: Any, said: str) -> None:
    with pytest.raises(OperationError) as error:
        wrong()
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_coordinate_is_no_scalar_and_no_machine_computes_it_unasked() -> None:
    ramp = elementwise_of("where(index(i) < 2, a*x, index(i))")
    assert ramp.scalars == ("a",)
    found = ramp.reference({"x": np.ones(4)}, {"a": 5.0})["y"]
    assert found.tolist() == [5, 5, 2, 3]
    machine = elementwise.Elementwise()
    point = Chosen({n: c.values[0] for n, c in machine.decisions().items()})
    with pytest.raises(ProgramError, match=r"reads index\(i\)|no instruction for it"):
        machine.program(ramp, point)
    with pytest.raises(ProgramError, match=r"reads index\(i\)"):
        machine.program(elementwise_of("x * index(i)"), point)


def test_a_size_that_no_input_has_is_not_known() -> None:
    """A launch reads it off the output; the reference cannot."""
    wide = Operation("wide", ("i", "j"), (Operand("x", ("i",), "f32"),), replace(X, name="y"), (),
                     parse("x"))  # fmt: skip
    with pytest.raises(OperationError, match="no input has the axis j"):
        wide.reference({"x": np.ones(3)})


# Files


OLD: dict[str, dict[str, Any]] = {
    "softmax": {
        "name": "softmax", "axes": ["i", "j"], "inputs": [["x", ["i", "j"], "f32"]],
        "output": ["y", ["i", "j"], "f32"],
        "combine": ["ex2.ftz", ["mul", ["sub", "x", "top"], 1.4426950408889634]], "reduced": ["j"],
        "epilogue": ["mul", ["ex2", ["mul", ["sub", "x", "top"], 1.4426950408889634]],
                     ["rcp", "acc"]],
        "scalars": [], "before": [["top", "max", "x"]],
    },
    "elementwise": {
        "name": "elementwise", "axes": ["i"], "inputs": [["x", ["i"], "f32"]],
        "output": ["y", ["i"], "f32"], "combine": ["add", ["mul", "a", "x"], "b"], "reduced": [],
        "epilogue": "acc", "scalars": ["a", "b"],
    },
}  # fmt: skip
"""Operations as files had them while a sum was a field of its own."""


@pytest.mark.parametrize(
    ("operation", "machine", "point", "sizes"),
    [
        (softmax(), rows.Rows(), None, {"i": 8, "j": 64}),
        (elementwise_of("a*x + b"), elementwise.Elementwise(), None, {"i": 64}),
    ],
    ids=["softmax", "elementwise"],
)  # fmt: skip
def test_old_files_are_read(
    operation: Operation, machine: Any, point: Any, sizes: dict[str, int]
) -> None:
    """And what is written now is read as it was written."""
    first = point or {n: c.values[0] for n, c in machine.decisions().items()}
    schedule, problem = Schedule.of(machine, first), Problem.of(operation, **sizes)
    text = to_json(schedule, problem)
    assert from_json(text, MACHINES)[1:] == (problem, schedule)
    tree = json.loads(text)
    assert "combine" not in tree["operation"]
    tree["operation"] = OLD[operation.name]
    assert from_json(json.dumps(tree), MACHINES)[1:] == (problem, schedule)


def test_coordinates_and_infinity_are_in_files() -> None:
    tree = _expression_to_tree(parse("where(index(j) <= index(i) and j < 3, x, -inf)"))
    assert tree == ["where", ["and", ["le", ["index", "j"], ["index", "i"]], ["lt", "j", 3.0]], "x",
                    ["-inf"]]  # fmt: skip
    text = json.dumps(tree, allow_nan=False)
    assert str(_expression_from_tree(json.loads(text))) == (
        "where(((index(j) <= index(i)) and (j < 3.0)), x, -inf)"
    )
