"""Attention of e4m3: keys in another order than lines, weights of four to a register, tolerance."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.hopper_terms import rewritten
from tests.sample import all_by_turns, some
from tests.test_attention_window import sizes
from tinygpu.checker.check import check
from tinygpu.checker.make import certified
from tinygpu.codegen.emit import emit
from tinygpu.codegen.kernel.tensor_map import tensor_maps
from tinygpu.codegen.run.arguments import contract_of
from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.run.interpretation import COMPLETIONS
from tinygpu.codegen.run.interpretation import interpret as emulated
from tinygpu.codegen.runtime.contract import Contract
from tinygpu.codegen.runtime.maps import TensorMap, mapped_array
from tinygpu.devices.device import load_device
from tinygpu.errors import KernelError, OperationError, ProgramError
from tinygpu.isa.memory import DTYPES
from tinygpu.isa.wgmma import rows_of
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.legality.laws import LAWS, check_schedule
from tinygpu.legality.mask_cover import mask_cover
from tinygpu.legality.reach import Case
from tinygpu.machines import MACHINES
from tinygpu.machines.attention import STARTS, Attention
from tinygpu.meaning.identity import computes
from tinygpu.meaning.interpret import interpret
from tinygpu.meaning.tolerance import narrowing, ratio_of, roundoff
from tinygpu.search.time.cost import cost
from tinygpu.search.time.timeline import timeline
from tinygpu.term.expression import value
from tinygpu.term.machine import Chosen
from tinygpu.term.machine import Value as Choosable
from tinygpu.term.operation import Operation, Problem, attention, matmul
from tinygpu.term.program import Access, Affine, Do, Immediate, Program, Statement, Wait
from tinygpu.term.schedule import Schedule

MACHINE, DEVICE = MACHINES["attention"], load_device("h100")
POINTS = ("fa2", "fa3", "tma store", "longest first", "pair multicast", "early", "decode",
          "queries in registers")  # fmt: skip
MASKS = ("none", "causal", "window:70:25")
ONE = {"consumers": 1, "turns": "none", "stages_k": 2, "stages_v": 2}
HERE = sizes(100, 208, h=2, g=2, d=16, e=16)


@cache
def term(
    mask: str = "none", point: str = "fa3 without turns", *, lse: bool = False,
    scales: bool = False, **others: Choosable,
) -> Program:  # fmt: skip
    operation = attention("e4m3", mask=mask, lse=lse, scales=scales)
    return Attention().program(operation, Chosen({**STARTS[point], **others}))


def drawn(program: Program, here: dict[str, int], seed: int = 0) -> dict[str, NDArray[Any]]:
    random, operation = np.random.default_rng(seed), program.operation
    shapes = operation.shapes(here)
    return {
        o.name: DTYPES[o.dtype].round(random.standard_normal(shapes[o.name]))
        for o in operation.inputs
    }


def test_the_operation_has_keys_of_values_contiguous_and_scales_of_heads() -> None:
    operation = attention("e4m3", scales=True)
    assert [str(o) for o in operation.operands] == [
        "q[l,h,g,m,d] e4m3", "k[l,h,n,d] e4m3", "v[l,h,e,n] e4m3", "scale_q[l,h] f32",
        "scale_k[l,h] f32", "scale_v[l,h] f32", "o[l,h,g,m,e] bf16",
    ]  # fmt: skip
    here = sizes(5, 32, h=2, g=3, d=8, e=16)
    x = {name: a.astype(float) for name, a in drawn(term(scales=True), here).items()}
    found = operation.reference(x, {"scale": 0.3})["o"]
    q, k, v = (x[n] * x[f"scale_{n}"].reshape(1, 2, *(1,) * (x[n].ndim - 2)) for n in "qkv")
    sign = np.sign(x["scale_q"] * x["scale_k"]).reshape(1, 2, 1, 1, 1)  # is not read
    s = sign * 0.3 * np.einsum("lhgmd,lhnd->lhgmn", q, k)
    p = np.exp(s - s.max(-1, keepdims=True))
    wanted = np.einsum("lhgmn,lhen->lhgme", p / p.sum(-1, keepdims=True), v)
    assert np.allclose(found, wanted)


@all_by_turns(("point", POINTS), ("mask", MASKS))
def test_it_is_legal_and_its_mask_is_covered(point: str, mask: str) -> None:
    """For every number of tiles and trips; also where CTAs load parts of keys for each other."""
    program = term(mask, point)
    problem = Problem.of(program.operation, **sizes(300, 416, h=2, g=2, d=128, e=128))
    assert not check_schedule(Schedule.of(MACHINE, {**STARTS[point]}), MACHINE, problem, DEVICE)
    found = verdict(program)
    assert found.legal, str(found)
    assert mask_cover(program), str(mask_cover(program))


@pytest.mark.parametrize("point", ["fa3", *some(["pair multicast", "zigzag"], 2)])
def test_its_order_is_certified(point: str) -> None:
    """Also with scales, whose product is made in registers without a dimension.

    The maker's certificate is accepted; a term that does not wait for its keys has none.
    """
    program = term("causal", point, lse=True, scales=True)
    certificate, _ = certified(program)
    assert certificate
    assert check(program, certificate).word == "accepted"
    hasty = rewritten(
        program, lambda s: () if isinstance(s, Wait) and s.barrier.name == "k_full" else s
    )
    assert certified(hasty)[1].word == "refused"


@pytest.mark.parametrize(
    ("mask", "point"),
    [("none", "fa3"), ("causal", "pair multicast"), ("causal", "zigzag"),
     *some([("window:70:25", "early"), ("causal", "fa2")], 2)],
)  # fmt: skip
def test_it_computes_its_operation(mask: str, point: str) -> None:
    """In the ring of exponentials and in floats; the factor 2^8 of weights cancels, also in lse."""
    found = computes(term(mask, point, lse=True, scales=True), HERE)
    assert found, str(found)


def test_the_interpreter_gives_what_numpy_gives() -> None:
    program, here = term("causal", **ONE), sizes(70, 304, h=1, g=2)
    arrays = drawn(program, here)
    run = interpret(program, here, arrays, scalars={"scale": 0.125})
    assert run.findings == ()
    q, k, v = (arrays[name].astype(float) for name in "qkv")
    s = 0.125 * np.einsum("lhgmd,lhnd->lhgmn", q, k)
    s = np.where(np.arange(304) <= np.arange(70)[:, None] + 234, s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    off = np.abs(run.outputs["o"] - np.einsum("lhgmn,lhen->lhgme", p, v))
    noise = np.sqrt(np.einsum("lhgmn,lhen->lhgme", p**2, v**2))
    assert 0.01 < (off / noise).mean() < 0.04  # 2^-4 is the most that a weight rounds by
    assert (off / noise).max() < 0.15


@all_by_turns(
    ("point", ("fa3", "early, pair multicast", "tma store", "decode", "zigzag")),
    ("mask", ("causal", "window:70:25", "none", "none", "causal")),
    ("order", COMPLETIONS),
)
def test_its_code_is_right(point: str, mask: str, order: str) -> None:
    """Without a finding of the emulator; heads that do not fill a tile, keys that fill none."""
    program = term(mask, point, lse=True, scales=point == "fa3")
    few = 2 if point == "decode" else 150
    for here in (sizes(few, 304, h=2, g=2, d=32, e=48), sizes(3, 16)):
        found = emulated(program, here, arch="sm_90a", completions=(order,))
        assert found.findings == ()
        assert 0.05 < found.error < 0.8


@pytest.mark.parametrize(
    "others",
    [{}, {"depth": 256, "epilogue": "tma"}, {"consumer_order": "SOVsMvELP"},
     {"queries": "registers", "tile_n": 160}],
    ids=str,
)  # fmt: skip
def test_no_register_is_spilled(others: dict[str, Choosable]) -> None:
    code = assemble(emit(term("causal", "fa3", **others)), "sm_90a")
    assert code.spills == 0
    assert "C75" not in code.messages


def test_products_take_weights_of_four_keys_from_one_register() -> None:
    """A cvt makes half of it; of products both kinds are of e4m3, and none says a major."""
    text = emit(term(**ONE))
    halves = re.findall(r"cvt\.rn\.satfinite\.e4m3x2\.f32 (%\w+), ", text)
    joined = re.findall(r"mov\.b32 (%\w+), \{(%\w+), (%\w+)\};", text)
    of = {word: (low, high) for word, low, high in joined if {low, high} <= {*halves}}
    products = re.findall(r"wgmma\S*e4m3\.e4m3 \{[^}]*\}, \{([^}]*)\}, \S+, \S+, 1, 1;", text)
    assert products
    assert all({*words.split(", ")} <= of.keys() for words in products)
    assert len(of) == 16  # 64 x 128 weights of 128 threads


def test_a_factor_of_8_bits_is_that_of_the_manual() -> None:
    """PTX ISA, Register Fragments of m64nNk32: four neighbours of k in a register, of four.

    They are those of a row, of the row 8 below, and of both 16 further along k; rows count half,
    octet, warp here.
    """
    held = np.arange(16.0 * 128).reshape(16, 128, 1)
    (matrix,) = rows_of(held)
    assert matrix.shape == (64, 32)
    for thread in range(128):
        warp, octet, quad = thread // 32, thread // 4 % 8, thread % 4
        for i in range(16):
            low, below, further = i % 4, i // 4 % 2, i // 8
            value = low + 4 * further + 8 * below  # of word, deep, half
            at = 16 * warp + 2 * octet + below, 16 * further + 4 * quad + low
            assert matrix[at] == held[value, thread, 0]


def test_keys_are_loaded_in_two_boxes_of_a_map_with_two_dimensions_of_lines() -> None:
    """The lines of a box are the keys 4 i + 2 half and the next, as a thread has columns."""
    program = term(**ONE)
    (keys,) = (m for m in tensor_maps(program) if m.buffer == "k")
    assert str(keys) == "k: boxes of 128 x 2 x 32 x 1 x 1, lines 4 apart, 128B swizzle"
    there = mapped_array(keys, 0, 1, (3, 2, 208, 128), (2 * 208 * 128, 208 * 128, 128, 1))
    assert there.lengths == (128, 4, 52, 2, 3)
    assert there.pitches == (128, 512, 208 * 128, 2 * 208 * 128)
    line = np.arange(208)
    boxes = [line.reshape(52, 4)[:32, 2 * half : 2 * half + 2].ravel() for half in (0, 1)]
    column = np.arange(128).reshape(2, 8, 4, 2)  # duo, group, quad, pair
    key = np.concatenate(boxes)[column]
    duo, group, quad, pair = np.indices(column.shape)
    assert np.array_equal(key, 16 * group + 4 * quad + 2 * duo + pair)
    with pytest.raises(KernelError, match=r"k: 206 lines, loaded 4 at a time; pad them"):
        mapped_array(keys, 0, 1, (3, 2, 206, 128), (2 * 206 * 128, 206 * 128, 128, 1))
    older = ("k", "e4m3", (64, 8), 3, False, False)  # as contracts had it
    assert TensorMap(*older).apart == 0
    contract = contract_of(program)
    assert Contract.of(json.loads(json.dumps(contract.tree()))) == contract


Change = Callable[[Program], Program]


def loads(name: str, change: Callable[[Do, Access], Do]) -> Change:
    """Change the loads of an input."""

    def one(s: Statement) -> Statement:
        read = s.reads[0] if isinstance(s, Do) else None
        if not isinstance(s, Do) or not isinstance(read, Access) or read.buffer.name != name:
            return s
        return change(s, read)

    return lambda program: rewritten(program, one)


def from_(step: int, half: int, begin: int = 0) -> Callable[[Do, Access], Do]:
    """Let lines lie so far apart in the array, halves of a tile so far, from one on."""

    def change(do: Do, read: Access) -> Do:
        far = tuple(step * (s != 0) for s in read.value[1])
        origin = tuple(
            Affine(o.constant + begin * any(n == "two" for n, _ in o.terms),
                   tuple((n, half if n == "two" else c) for n, c in o.terms))
            for o in read.origin
        )  # fmt: skip
        value = (read.value[0], far, *read.value[2:])
        return replace(do, reads=(replace(read, value=value, origin=origin),))

    return change


def made(buffer: str, change: Callable[[Do], Statement | tuple[Statement, ...]]) -> Change:
    def one(s: Statement) -> Statement | tuple[Statement, ...]:
        return change(s) if isinstance(s, Do) and s.write.buffer.name == buffer else s

    return lambda program: rewritten(program, one)


def shifted(program: Program) -> Program:
    """Add the 8 of the weights' exponents before the old sums shrink, so that they grow, too."""
    adds: list[Do] = []

    def out(s: Statement) -> Statement | tuple[Statement, ...]:
        if isinstance(s, Do) and s.write.buffer.name == "shift" and s.variant == "add":
            adds.append(s)
            return ()
        return s

    left = rewritten(program, out)
    return made("shift", lambda s: (s, adds[0]) if s.variant == "neg" else s)(left)


def columns(program: Program) -> Program:
    """Mask the keys in the order of lines."""

    def one(s: Statement) -> Statement:
        if not isinstance(s, Do) or s.where is None:
            return s
        pair, duo, *rest = s.where.value  # a key each, 2 keys each, half, group
        return replace(s, where=replace(s.where, value=(duo, pair, *rest)))

    return rewritten(program, one)


def keeps(program: Program) -> Program:
    """Divide the sum of weights by 2^0 before its logarithm."""

    def one(s: Statement) -> Statement:
        least = Immediate(-8.0)
        return (
            replace(s, reads=(Immediate(0.0),)) if isinstance(s, Do) and s.reads == (least,) else s
        )

    return rewritten(program, one)


WRONG: dict[str, tuple[str, Change]] = {
    "keys in the order of lines": ("none", loads("k", from_(2, 64))),
    "the halves of a tile change places": ("none", loads("k", from_(4, -2, 2))),
    "both halves are the first": ("none", loads("k", from_(4, 0))),
    "every second pair": ("none", loads("k", from_(8, 2))),
    "sums so far grow with the weights": ("none", shifted),
    "masked in another order": ("causal", columns),
    "the log-sum-exp keeps the factor": ("none", keeps),
}  # fmt: skip


@pytest.mark.parametrize(("tile_n", "row"), [(192, 64), (160, 32), (96, 32), (64, 64)])
def test_lines_of_values_are_as_long_as_keys_allow(tile_n: int, row: int) -> None:
    """With the swizzle of such lines, in the map and in the descriptor; slab after slab."""
    program = term("causal", tile_n=tile_n)
    (values,) = (m for m in tensor_maps(program) if m.buffer == "v")
    assert values.box[:2] == (row, 128)
    assert 16 << values.swizzle == row
    assert mask_cover(program)
    here = sizes(40, 208, g=2, d=16, e=16)
    assert computes(program, here)
    found = emulated(program, {**here, "d": 32, "e": 48}, arch="sm_90a")
    assert found.findings == ()
    assert 0.05 < found.error < 0.8
    code = assemble(emit(program), "sm_90a")
    assert code.spills == 0
    assert "C75" not in code.messages


def test_the_terms_of_mutants_differ_and_the_right_one_computes() -> None:
    assert computes(term("causal", lse=True, **ONE), HERE)
    for mask, change in WRONG.values():
        program = term(mask, lse=True, **ONE)
        assert change(program) != program


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_order_computes_something_else(name: str) -> None:
    mask, change = WRONG[name]
    found = computes(change(term(mask, lse=True, **ONE)), HERE)
    assert not found
    assert str(found).startswith("does not compute its operation"), str(found)


def lands(**changes: Any) -> Change:
    """Change where loads of keys land."""
    return loads("k", lambda do, _: replace(do, write=replace(do.write, **changes)))


def sideways(do: Do, read: Access) -> Do:
    """Let neighbours follow one another along a line."""
    value = (*read.value[:3], (0, 0, 0, 1))
    return replace(do, reads=(replace(read, value=value),))


def factor(which: int) -> Change:
    """Let the first two steps of k of a product of weights and values change places in a factor."""

    def change(do: Do) -> Do:
        reads = list(do.reads)
        if do.instruction.name == "wgmma" and isinstance(one := reads[which], Access):
            first, second, *others = one.value
            reads[which] = replace(one, value=(second, first, *others))
        return replace(do, reads=tuple(reads))

    return made("acc", change)


APART = ((0, 1, 0), (4, 0, 0), (0, 0, 1), (1, 0, 0))
BROKEN: dict[str, tuple[str, str, Change]] = {
    "neighbours reach beyond a step": (
        "tma_box", "2 neighbours begin within a step of 4 lines", loads("k", from_(4, 3))),
    "a block begins within a step": (
        "tma_box", "2 neighbours begin within a step of 4 lines", loads("k", from_(4, 2, 1))),
    "lines lie apart in the tile": ("tma_box", "does not lie packed", lands(value=APART)),
    "neighbours are elements of a line": ("tma_box", "do not lie", loads("k", sideways)),
    "both halves at one place": (
        "fill_tiles", "elements along dimension 0", lands(origin=(Affine(),) * 3)),
    "two steps of a word change places": (
        "wgmma_shape", "steps of k that threads hold", factor(1)),
    "weights that are no neighbours": (
        "wgmma_shape", "pairs of a first factor in registers", factor(0)),
}  # fmt: skip
"""By the law, what it says, and a change."""


@pytest.mark.parametrize("name", BROKEN)
def test_a_term_made_wrong_breaks_its_law(name: str) -> None:
    law, message, change = BROKEN[name]
    here = sizes(300, 416, d=128, e=128)
    for program, wrong in ((term(**ONE), False), (change(term(**ONE)), True)):
        case = Case.of(program, here, DEVICE)
        said = [str(clause) for clause in LAWS[law].clauses(case) if not clause.holds]
        assert any(message in text for text in said) == wrong, said


@pytest.mark.parametrize(
    ("here", "law", "message"),
    [({"n": 206}, "tma_strides", "k: 206 lines, of which a box has every 4th"),
     ({"n": 200}, "tma_strides", "v: lines are 200 B apart; TMA needs a multiple of 16 B"),
     ({"d": 24}, "tma_strides", "q: lines are 24 B apart; TMA needs a multiple of 16 B")],
)  # fmt: skip
def test_lines_that_do_not_go_on_are_refused(here: dict[str, int], law: str, message: str) -> None:
    case = Case.of(term(**ONE), {**sizes(9, 416, d=128, e=128), **here}, DEVICE)
    said = [str(clause) for clause in LAWS[law].clauses(case) if not clause.holds]
    assert any(message in text for text in said), said


@pytest.mark.parametrize(
    "others",
    [{"tile_n": 80}, {"tile_n": 176}, {"depth": 64}, {"depth": 192}, {"depth": 256},
     {"weights": "shared", "consumers": 3, "tile_n": 192, "depth": 64}],
    ids=str,
)  # fmt: skip
def test_what_8_bits_do_not_have_is_a_law(others: dict[str, Choosable]) -> None:
    schedule = Schedule.of(MACHINE, {**STARTS["fa3 without turns"], **others})
    problem = Problem.of(attention("e4m3"), **sizes(300, 416, d=64, e=64))
    found = {one.law: str(one) for one in check_schedule(schedule, MACHINE, problem, DEVICE)}
    assert "of 8 bits products take 32 keys" in found["eight_bits"]


@pytest.mark.parametrize("operation", [
    attention("bf16", scales=True), replace(attention("e4m3"), scalars=("scale", "by"), epilogue=(
        attention("e4m3").epilogue * value("by"))), matmul("e4m3"),
], ids=["scales of bf16", "another epilogue", "a matmul"])  # fmt: skip
def test_the_machine_refuses_other_operations(operation: Operation) -> None:
    with pytest.raises(OperationError, match="machine attention: "):
        MACHINE.check(operation)


@pytest.mark.parametrize(
    ("asked", "told"), [({"pages": 64}, "pages"), ({"lengths": True}, "lengths")]
)
def test_pages_and_lengths_are_refused(asked: dict[str, Any], told: str) -> None:
    with pytest.raises(OperationError, match=f"dtype e4m3 with {told}; give bf16 or f16"):
        attention("e4m3", **asked)


@pytest.mark.parametrize(
    "change", [from_(4, 1, 2), from_(6, 2), sideways], ids=["odd", "even", "sideways"]
)
def test_code_is_refused_where_lines_are_not_known(change: Callable[[Do, Access], Do]) -> None:
    """By the rule of code alone, too, which asks no law."""
    with pytest.raises(ProgramError, match=r"whole steps|equal steps|run along"):
        emit(loads("k", change)(term(**ONE)), unchecked=True)


def test_tolerance_is_that_of_each_rounding() -> None:
    """Of the weights' 2^-4 and of sums of about 13 bits, with signs of their own; not 2^-13 of all.

    So a value that is left out, or a weight that is another's, shows among 1024 keys.
    """
    program, here = term(lse=True, **ONE), sizes(64, 1024, d=128, e=128)
    assert narrowing(program) == {"o": 2.0**-4, "lse": 2.0**-4}
    assert roundoff(program) == 2.0**-24
    arrays = {n: x.astype(float) for n, x in drawn(program, here).items()}
    scalars = {"scale": 128**-0.5}
    right = program.operation.reference(arrays, scalars)
    p = np.exp((np.einsum("lhgmd,lhnd->lhgmn", arrays["q"], arrays["k"])) * scalars["scale"])
    p = DTYPES["e4m3"].round(p / p.max(-1, keepdims=True) * 256).astype(float)

    def worst(weights: NDArray[Any], lse: NDArray[Any]) -> dict[str, float]:
        total = p.sum(-1, keepdims=True)
        o = np.einsum("lhgmn,lhen->lhgme", weights / total, arrays["v"])
        found = ratio_of(program, arrays, scalars, outputs={"o": o, "lse": lse}, reference=right)
        return {name: float(ratio.max()) for name, ratio in found.items()}

    found = worst(p, right["lse"] + 0.004)
    assert 0.2 < found["o"] < 0.9
    assert 0.05 < found["lse"] < 1
    turned = p.reshape(*p.shape[:-1], -1, 4)[..., ::-1].reshape(p.shape)
    assert worst(turned, right["lse"] + 0.1)["o"] > 3
    assert worst(p, right["lse"] + 0.1)["lse"] > 1
    without = p.copy()
    np.put_along_axis(without, p.argmax(-1)[..., None], 0.0, -1)
    assert worst(without, right["lse"])["o"] > 1


def test_small_weights_lose_what_subnormal_numbers_lose() -> None:
    """Where the value of the key that outweighs all is 0, an element is of small weights alone.

    They are off by up to 2^-18 where the largest is 2^8; by more in a term that leaves that out.
    """
    program, here = term(**ONE), sizes(64, 512, d=128, e=128)
    arrays = {n: x.astype(float) for n, x in drawn(program, here).items()}
    arrays["k"][..., 0] = arrays["v"][..., 0] = 0.0
    arrays["k"][..., 0, :] = np.eye(1, 128)
    arrays["q"][..., 0] = DTYPES["e4m3"].round(np.linspace(60, 160, 64)).astype(float)
    scalars = {"scale": 0.13}
    right = program.operation.reference(arrays, scalars)
    s = np.einsum("lhgmd,lhnd->lhgmn", arrays["q"], arrays["k"]) * scalars["scale"]
    weights = np.exp(s - s.max(-1, keepdims=True))

    def worst(factor: float) -> float:
        p = DTYPES["e4m3"].round(weights * factor).astype(float) / factor
        o = np.einsum("lhgmn,lhen->lhgme", p, arrays["v"]) / weights.sum(-1, keepdims=True)
        found = ratio_of(program, arrays, scalars, outputs={"o": o}, reference=right)
        return float(found["o"].max())

    assert 0.1 < worst(2.0**8) < 0.8
    assert worst(1.0) > 1.5


def test_products_take_half_the_time_and_exponentials_the_same() -> None:
    """So the softmax is what is left: less than twice as fast, and closer to the exponentials."""
    here = sizes(4096, 4096, l=8, h=16, d=128, e=128)
    narrow, wide = (
        cost(Attention().program(attention(dtype), Chosen(STARTS["fa2"])), here, DEVICE)
        for dtype in ("e4m3", "bf16")
    )
    assert 1.2 < wide.seconds / narrow.seconds < 1.95
    busy = [{unit: float(t) for unit, t in one.parts.items()} for one in (narrow, wide)]
    assert busy[0]["sfu"] == pytest.approx(busy[1]["sfu"])
    assert busy[0]["tensor"] == pytest.approx(busy[1]["tensor"] / 2, rel=0.01)


def test_a_timeline_draws_the_exponentials_of_either_type() -> None:
    """Of 8 bits they are made by halves, in a loop of arithmetic, which is followed, too."""
    here = sizes(4096, 4096, l=8, h=16, d=128, e=128)
    busy = []
    for dtype in ("e4m3", "bf16"):
        program = Attention().program(attention(dtype), Chosen(STARTS["fa2"]))
        spans = timeline(program, here, DEVICE, iterations=1).events
        busy.append(sum(s.end_cycles - s.start_cycles for s in spans if s.row == "sfu"))
    assert busy[0] == pytest.approx(busy[1], rel=0.02)
