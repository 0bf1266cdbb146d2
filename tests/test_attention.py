"""Attention as an operation: against its definition, row by row, and what it must not make."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from benchmarks.problems import operation_of
from tests.test_operation import naive
from tinygpu.cli.asked import Asked
from tinygpu.cli.asked import operation_of as asked_for
from tinygpu.codegen.run.arguments import contract_of
from tinygpu.codegen.runtime.contract import check as check_views
from tinygpu.codegen.runtime.views import View
from tinygpu.errors import LaunchError, OperationError
from tinygpu.isa.algebra import FLOATS
from tinygpu.machines.simt import Simt
from tinygpu.meaning.interpret import check
from tinygpu.meaning.prime_field import P, prime_field
from tinygpu.term import operation as operations
from tinygpu.term.builder import Kernel, trace
from tinygpu.term.expression import parse, value
from tinygpu.term.operation import (
    Operand,
    Operation,
    Problem,
    Reduction,
    attention,
    elementwise,
    matmul,
    rmsnorm,
    softmax,
)
from tinygpu.term.program import Program
from tinygpu.term.schedule import _operation_from_tree, _operation_to_tree

MASKS = ("none", "causal", "window:2:1", "window:0:0", "window:3:0")
SEEN: dict[str, Callable[[int, int], bool]] = {
    "none": lambda i, j: True,
    "causal": lambda i, j: j <= i,
    "window:2:1": lambda i, j: i - 2 <= j <= i + 1,
    "window:0:0": lambda i, j: i == j,
    "window:3:0": lambda i, j: i - 3 <= j <= i,
}
"""Whether query i, counted so that the last query is the last key, sees key j."""
SIZES = st.fixed_dictionaries(
    {"l": st.integers(1, 2), "h": st.integers(1, 2), "g": st.integers(1, 3),
     "m": st.integers(1, 7), "n": st.integers(1, 7), "d": st.integers(1, 4),
     "e": st.integers(1, 4)}
)  # fmt: skip


def drawn(sizes: dict[str, int], seed: int, mask: str = "none") -> dict[str, NDArray[np.float64]]:
    random = np.random.default_rng(seed)
    operation = attention(mask=mask)
    shapes = operation.shapes(sizes)
    return {o.name: random.standard_normal(shapes[o.name]) for o in operation.inputs}


def by_rows(arrays: dict[str, Any], mask: str, scale: float) -> NDArray[np.float64]:
    """Attention as it is defined: a softmax of the scores of the keys that a query sees."""
    q, k, v = arrays["q"], arrays["k"], arrays["v"]
    m, n = q.shape[3], k.shape[2]
    out = np.zeros((*q.shape[:4], v.shape[-1]))
    for place in np.ndindex(*q.shape[:4]):
        batch, head, _, i = place
        keys = [j for j in range(n) if SEEN[mask](i + n - m, j)]
        if keys:
            scores = k[batch, head, keys] @ q[place] * scale
            weights = np.exp(scores - scores.max())
            out[place] = weights / weights.sum() @ v[batch, head, keys]
    return out


@settings(max_examples=60, deadline=None)
@given(SIZES, st.sampled_from(MASKS), st.integers(0, 99), st.sampled_from([2**20, 1]))
def test_it_is_the_softmax_of_what_is_seen(
    sizes: dict[str, int], mask: str, seed: int, block: int
) -> None:
    """Also where m is not n, rows see no key, one key is all, and blocks cut all they may."""
    arrays, scale = drawn(sizes, seed), 0.7
    old = operations._BLOCK
    operations._BLOCK = block
    try:
        found = attention(mask=mask).reference(arrays, {"scale": scale})
    finally:
        operations._BLOCK = old
    assert np.allclose(found["o"], by_rows(arrays, mask, scale), atol=1e-12)
    assert np.isfinite(found["scale of o"]).all()
    assert (found["scale of o"] >= np.abs(found["o"])).all()


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("m", "n"), [(7, 4), (4, 7), (3, 1), (1, 1)])
def test_empty_rows_are_0_and_no_nan_is_on_the_way(mask: str, m: int, n: int) -> None:
    """In floats nothing is invalid; in the field a row without keys is 0, and all are numbers."""
    sizes = {"l": 1, "h": 1, "g": 2, "m": m, "n": n, "d": 3, "e": 2}
    operation, arrays = attention(mask=mask), drawn(sizes, 0)
    with np.errstate(invalid="raise", divide="raise"):
        found = naive(operation, arrays, {**sizes, "scale": 0.5}, FLOATS)  # type: ignore[dict-item]
    assert np.allclose(found, by_rows(arrays, mask, 0.5))
    field, random = prime_field(1), np.random.default_rng(0)
    elements = {name: random.integers(0, P, x.shape) * 1.0 for name, x in arrays.items()}
    exact = operation.reference(elements, {"scale": 3.0}, field)["o"]
    assert np.isfinite(exact).all()
    empty = [not any(SEEN[mask](i + n - m, j) for j in range(n)) for i in range(m)]
    assert np.array_equal((exact == 0).all((0, 1, 2, 4)), empty)


@settings(max_examples=60, deadline=None)
@given(SIZES, st.sampled_from(MASKS))
def test_visible_pairs_are_counted_one_by_one(sizes: dict[str, int], mask: str) -> None:
    m, n = sizes["m"], sizes["n"]
    pairs = sum(SEEN[mask](i + n - m, j) for i in range(m) for j in range(n))
    heads = sizes["l"] * sizes["h"] * sizes["g"]
    wanted = 2 * heads * pairs * (sizes["d"] + sizes["e"])
    assert attention(mask=mask).flops(sizes) == wanted


def test_work_and_bytes_of_large_attention() -> None:
    """4 m n d for all keys, half of it and the diagonal's half for causal ones; each array once."""
    sizes = {"l": 4, "h": 8, "g": 4, "m": 4096, "n": 4096, "d": 128, "e": 128}
    full = attention().flops(sizes)
    assert full == 4 * 128 * 4096 * 4096 * 128
    assert attention(mask="causal").flops(sizes) == full * (4096 + 1) / (2 * 4096)
    assert attention().bytes(sizes) == 2 * 128 * 4096 * (4 * 8 * 4 * 2 + 4 * 8 * 2)


def test_points_of_several_masks_all_count() -> None:
    """And a mask may be of one axis, of three, or of a multiple of a coordinate."""
    sizes = {"i": 5, "j": 6, "k": 3}

    def work(*conditions: str) -> float:
        x, w = Operand("x", ("i", "k"), "f32"), Operand("w", ("k", "j"), "f32")
        sums = tuple(
            Reduction(f"r{n}", "add", parse(f"where({c}, x, 0) * w"), ("k",))
            for n, c in enumerate(conditions)
        )
        end = value("r0") if len(sums) == 1 else value("r0") + value("r1")
        y = Operand("y", ("i", "j"), "f32")
        return Operation("own", ("i", "j", "k"), (x, w), y, sums, end).flops(sizes)

    assert work("index(i) < 2") == 2 * 2 * 6 * 3
    assert work("0 < index(k) * 2 and index(k) * 2 <= 3") == 2 * 5 * 6
    assert work("index(k) + index(i) < k") == 2 * 6 * 6
    assert work("index(i) < index(k) * 2") == 2 * 6 * (0 + 2 + 4)
    assert work("index(i) < 2", "index(i) < 3") == 2 * 2 * 5 * 6 * 3


def test_no_product_of_all_axes_is_made() -> None:
    """l h g m n d numbers would be 1 GiB; scores are 16 MiB, and are made in blocks."""
    sizes = {"l": 1, "h": 2, "g": 2, "m": 1024, "n": 512, "d": 64, "e": 64}
    arrays = drawn(sizes, 0)
    tracemalloc.start()
    try:
        found = attention(mask="causal").reference(arrays, {"scale": 0.125})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 14 * 8 * 4 * 1024 * 512
    some = {name: x[:, :1] for name, x in arrays.items()} | {"q": arrays["q"][:, :1, :1]}
    assert np.allclose(found["o"][:, :1, :1], by_rows(some, "causal", 0.125))


def test_large_scores_are_cut_into_blocks() -> None:
    operation = attention(mask="causal")
    sizes = {"l": 1, "h": 16, "g": 1, "m": 16384, "n": 16384, "d": 128, "e": 128}
    blocks = list(operation._blocks(sizes, 2**20))
    for block in blocks:
        extents = {a: stop - start for a, (start, stop) in block.items()}
        assert math.prod(extents[a] for a in "lhgmn") <= 16384 * 128  # as k has
        assert extents["n"] == 16384
    assert len(blocks) == 16 * 128


@pytest.mark.parametrize("mask", ["none", "causal", "window:20:3"])
@pytest.mark.parametrize("kind", ["normal", "rising", "planted"])
def test_rounding_stays_below_the_scale(mask: str, kind: str) -> None:
    """Every number in fp32, scores, weights and sums: the error is a few u S, and S is small."""
    sizes = {"l": 1, "h": 1, "g": 1, "m": 96, "n": 96, "d": 64, "e": 16}
    arrays = drawn(sizes, 5)
    if kind == "planted":
        arrays["q"] *= 4
        arrays["k"] = np.roll(arrays["q"][0], 1, axis=2)
    if kind == "rising":
        arrays["k"] = np.abs(arrays["k"]) * np.linspace(0.02, 2, 96)[:, None]
    narrow = {name: x.astype(np.float32) for name, x in arrays.items()}
    operation = attention(mask=mask)
    wanted = operation.reference(narrow, {"scale": 0.125})
    q, k, v = (narrow[name].reshape(96, -1) for name in "qkv")
    shown = np.ones((96, 96), bool)
    if operation.mask:
        at = np.arange(96)
        places = {"index(m)": at[:, None], "index(n)": at}
        shown = np.asarray(operation.mask.evaluate({"m": 96, "n": 96, **places}))
    c = np.float32(0.125 * math.log2(math.e))
    s = np.where(shown, q @ k.T, np.float32(-np.inf))
    p = np.exp2((s - s.max(1, keepdims=True)) * c)
    got = (p @ v) / p.sum(1, keepdims=True)
    assert got.dtype == np.float32
    error = np.abs(got - wanted["o"].reshape(96, 16)) / (
        2.0**-24 * wanted["scale of o"].reshape(96, 16)
    )
    assert error.max() < 4 * math.sqrt(96)
    if kind == "normal":
        assert error.max() > 0.01  # a bound of no use would be far above
    lost = by_rows({n: x.astype(np.float64) for n, x in narrow.items()}, "none", 0.126)
    if mask == "none" and kind == "normal":  # another scale of 1 % is far beyond rounding
        wrong = np.abs(lost - wanted["o"]) / (4 * 2.0**-24 * math.sqrt(96) * wanted["scale of o"])
        assert wrong.max() > 10


# How it is said


@pytest.mark.parametrize(
    ("text", "operation"),
    [
        ("attention bf16", attention()),
        ("attention bf16 causal", attention(mask="causal")),
        ("attention f16 window:127:0", attention("f16", mask="window:127:0")),
    ],
)
def test_it_is_read(text: str, operation: Operation) -> None:
    assert operation_of(text) == operation
    _, dtype, *mask = text.split()
    asked = Asked("attention", dtype=dtype, mask=" ".join(mask))
    assert asked_for(asked) == operation
    assert operation.name == "attention"


@pytest.mark.parametrize(
    "operation",
    [*(attention(mask=mask) for mask in MASKS), attention(scale=False), matmul(batched=True),
     softmax(), rmsnorm(), elementwise("a*x + b")],
    ids=lambda o: f"{o.name} {o.mask}",
)  # fmt: skip
def test_files_and_text_keep_it(operation: Operation) -> None:
    """Expressions are read as they are printed, an operation as it is written."""
    for expression in (*(r.expression for r in operation.reductions), operation.epilogue):
        assert parse(str(expression)) == expression
    assert _operation_from_tree(_operation_to_tree(operation)) == operation


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: attention(mask="block"), "there are none, causal and window:LEFT:RIGHT"),
        (lambda: attention(mask="window:-1:0"), "as window:127:0"),
        (lambda: attention(mask="window:3"), "as window:127:0"),
        (lambda: attention("e5m2"), "dtype e5m2; there are f16, bf16, f32, e4m3"),
        (lambda: attention("f64"), "dtype f64; there are f16, bf16, f32"),
        (lambda: Problem.of(attention(), l=1, h=1, g=1, m=0, n=1, d=8, e=8), "at least 1"),
        (lambda: Problem.of(attention(), l=1, h=1, m=1, n=1, d=8, e=8), "size g: not given"),
        (lambda: Simt().check(attention()), "known are matmul"),
        (lambda: asked_for(Asked("softmax", mask="causal")), "it is of attention"),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(OperationError) as error:
        make()
    assert said in str(error.value)
    assert "\n" not in str(error.value)


# Arrays of five dimensions


FIVE = tuple("lhgme")


def copied() -> Program:
    """A copy of an array of five dimensions, each with its own stride."""
    operation = Operation(
        "copy", FIVE, (Operand("q", FIVE, "f32"),), Operand("o", FIVE, "f32"), (), value("q")
    )

    def forward(k: Kernel) -> None:
        k.grid("batch", "head", "group", "row", "block")
        k.threads(thread=32)
        at = "l = batch, h = head, g = group, m = row, e = (block thread)"
        k.store(k.output[at], k.compute(k.op.epilogue, {"q": k.load(k.inputs[0][at])}))

    return trace("copy", forward, operation)


def test_every_dimension_but_the_last_has_its_stride() -> None:
    program = copied()
    (q, _) = contract_of(program).arguments
    assert q.stride == ("ls3_q", "ls2_q", "ls_q", "ld_q", 1)
    assert len(dict(program.parameters)) == len(program.parameters)
    assert check(program, {"l": 2, "h": 3, "g": 2, "m": 2, "e": 33}) == ()


def strided(layout: str, l: int, h: int, g: int, m: int, e: int) -> tuple[int, ...]:  # noqa: E741
    heads = h * g
    if layout == "b s h d":
        return (m * heads * e, g * e, e, heads * e, 1)
    return (heads * m * e, g * m * e, m * e, e, 1)


@pytest.mark.parametrize("layout", ["b s h d", "b h s d"])
def test_layouts_of_torch_are_strides(layout: str) -> None:
    """Some strides are those of an array without gaps, others not: each is the view's."""
    shape = (2, 3, 2, 8, 64)
    steps = strided(layout, *shape)
    views = [View(256, "f32", shape, steps), View(2**20, "f32", shape, strided("b h s d", *shape))]
    values = check_views(contract_of(copied()), views)
    assert tuple(values[f"{name}_q"] for name in ("ls3", "ls2", "ls", "ld")) == steps[:4]


def test_dimensions_that_overlap_are_refused() -> None:
    shape = (2, 3, 2, 8, 64)
    steps = list(strided("b s h d", *shape))
    steps[3] //= 2  # the next query is within this one's heads
    views = [View(256, "f32", shape, tuple(steps)),
             View(2**20, "f32", shape, strided("b h s d", *shape))]  # fmt: skip
    with pytest.raises(LaunchError, match="overlap"):
        check_views(contract_of(copied()), views)


def test_mutants_of_the_mask_give_other_numbers() -> None:
    """A mask off by one, a forgotten one and a wrong alignment show at every size with m < n."""
    sizes = {"l": 1, "h": 1, "g": 1, "m": 5, "n": 8, "d": 4, "e": 4}
    arrays = drawn(sizes, 3)
    right = attention(mask="causal")
    wanted = right.reference(arrays, {"scale": 1.0})["o"]
    other = {"index(m) + (n - m)": ("index(m) + (n - m) + 1", "index(m) + (n - m) - 1", "index(m)")}
    (start,) = other
    for change in (*other[start], ""):
        condition = parse(f"where(index(n) <= {change}, s, -inf)" if change else "s")
        assert condition != parse(f"where(index(n) <= {start}, s, -inf)")
        text = [(r, str(r.expression)) for r in right.reductions]
        was = str(parse(f"where(index(n) <= {start}, s, -inf)"))
        changed = tuple(
            replace(r, expression=parse(t.replace(was, str(condition)))) for r, t in text
        )
        wrong = replace(right, reductions=changed).reference(arrays, {"scale": 1.0})["o"]
        assert np.abs(wrong - wanted).max() > 0.01
