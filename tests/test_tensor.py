"""Tiles: descriptors say what the accesses say, boxes are those of the term, others are refused."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.fake_gpu import Gpu
from tests.hopper_terms import dos, rebuffered, term
from tests.ptx_runs import unchecked as emit
from tests.sample import draws
from tests.term_threads import Thread, once, seen
from tinygpu.codegen.kernel.tensor_map import tensor_map_of, tensor_maps
from tinygpu.codegen.runtime.maps import TensorMap, encode
from tinygpu.errors import LaunchError, ProgramError
from tinygpu.isa.instructions import INSTRUCTIONS
from tinygpu.term.expression import value
from tinygpu.term.operation import matmul
from tinygpu.term.program import (
    Access,
    Affine,
    Axis,
    Barrier,
    Buffer,
    Do,
    For,
    Program,
    Role,
    Sync,
    registers,
    var,
    walk,
)

SW128 = (3, 3, 3)
SIZES = {"m": 1, "n": 1, "k": 7}


def tile(name: str, lines: int, slabs: int, stages: int) -> Buffer:
    """Slabs of 128 B rows."""
    stride = (64, 1, 64 * lines)
    return Buffer(
        name, "smem", "bf16", (lines, 64, slabs), stride, stages, 64 * lines * slabs, SW128
    )


def product(x: Access, y: Access, values: tuple[int, ...], **how: Any) -> Program:
    """A program of nothing but one product, in a loop over k.

    ``x`` and ``y`` move along k, columns of a slab, slabs, rows, as many as ``values``: here digits
    count them.
    """
    k, columns, slabs, rows = values
    still, line, column = (0, 0, 0), x.value[3], y.value[1]
    groups = columns // 8
    sums = registers("sums", "f32", slabs, groups, 2, 2)
    steps = ((0, 0, 0, 0), (0, 0, 0, 1), (0, 0, 1, 0), (0, 1, 0, 0), (1, 0, 0, 0))
    held = Access(sums, steps, ((0,) * 4,) * 3)
    x = replace(
        x, value=(x.value[0], still, times(line, 8), still, still),
        thread=(still, line, times(line, 16)),
    )  # fmt: skip
    y = replace(
        y, value=(y.value[0], column, still, times(column, 8), y.value[2]),
        thread=(times(column, 2), still, still),
    )  # fmt: skip
    do = Do(
        INSTRUCTIONS["wgmma"], held, (x, y, held), (k, 2, rows // 32, groups, slabs), (4, 8, 4),
        variant="fma", **how,
    )  # fmt: skip
    return hand(do, x.buffer, y.buffer, sums)


def times(steps: tuple[int, ...], count: int) -> tuple[int, ...]:
    return tuple(count * step for step in steps)


def hand(do: Do, *buffers: Buffer) -> Program:
    body = (Sync(), For("k", "trips", (do,)))
    return Program(
        name="hand",
        operation=matmul("bf16"),
        buffers=buffers,
        parameters=(("trips", value("k")),),
        grid=(Axis("br", value("m")), Axis("bc", value("n"))),
        roles=(Role("all", 128, body, 1, "w"),),
        barriers=(Barrier("unused"),),
    )


@settings(max_examples=draws(24, 60))
@given(
    st.tuples(st.booleans(), st.booleans()),
    st.sampled_from([8, 24, 64, 136, 256]),
    st.tuples(st.integers(1, 5), st.integers(1, 5)),
    st.tuples(st.integers(-9, 9), st.integers(-9, 9)),
    st.data(),
)
def test_a_descriptor_says_what_the_access_says(
    by_k: tuple[bool, bool], columns: int, stages: tuple[int, int], far: tuple[int, int], data: Any
) -> None:
    """Along k or across it, anywhere in a tile, at any stage: wgmma reads those addresses."""
    columns = columns if by_k[1] or columns % 64 == 0 else 64
    accesses = []
    for which, rows in enumerate((64, columns)):
        index = var("k") + max(far[which], -stages[which])
        name = "ab"[which]
        if by_k[which]:
            block, slab = data.draw(st.integers(0, 2)), data.draw(st.integers(0, 1))
            buffer = tile(name, 8 * -(-rows * 3 // 8), 2, stages[which])
            within = 16 * data.draw(st.integers(0, 3))
            origin = (Affine(block * rows), Affine(within), Affine(slab))
            steps = ((0, 1, 0), *(((1, 0, 0), (0, 0, 0), (0, 0, 0)) if which else
                                  ((0, 0, 0), (0, 0, 0), (1, 0, 0))))  # fmt: skip
        else:
            buffer = tile(name, 64, 2 * max(1, rows // 64), stages[which])
            first = data.draw(st.integers(0, max(1, rows // 64)))
            origin = (Affine(16 * data.draw(st.integers(0, 3))), Affine(), Affine(first))
            steps = ((1, 0, 0), *(((0, 1, 0), (0, 0, 1), (0, 0, 0)) if which else
                                  ((0, 0, 0), (0, 0, 0), (0, 1, 0))))  # fmt: skip
        accesses.append(Access(buffer, steps, origin=origin, index=index))
    values = (16, columns, 1, 64) if by_k[1] else (16, 64, columns // 64, 64)
    fresh = data.draw(st.sampled_from([None, var("k"), Affine(0), Affine(2), var("k") + 1]))
    program = product(accesses[0], accesses[1], values, fresh=fresh)
    assume(program.smem_bytes <= 232448)
    text, thread = emit(program), Thread(program, SIZES, 0)
    told, did = once(thread.told()), once(seen(thread.did(text), program))
    assert len(told) == 8  # the barrier, and one product a trip
    assert did == told


A, B = tile("a", 64, 1, 2), tile("b", 32, 1, 2)
X = Access(A, ((0, 1, 0), (0, 0, 0), (0, 0, 0), (1, 0, 0)))
Y = Access(B, ((0, 1, 0), (1, 0, 0), (0, 0, 0), (0, 0, 0)))
VALUES = (16, 32, 1, 64)


def test_this_product_has_code() -> None:
    assert "m64n32k16" in emit(product(X, Y, VALUES))


WRONG: dict[str, tuple[str, Access, Access, tuple[int, ...]]] = {
    "k of 64 B": ("64 x n x 32 B", X, Y, (32, 32, 1, 64)),
    "128 rows": ("digits pair, half", X, Y, (16, 32, 1, 128)),
    "264 columns": ("64 x n x 32 B", X, Y, (16, 264, 1, 64)),
    "one row of x": ("rows of the sums", replace(X, value=((0, 1, 0), *((0, 0, 0),) * 3)), Y,
                     VALUES),
    "every second row": ("columns of the sums", X, replace(Y, value=((0, 1, 0), (2, 0, 0),
                         (0, 0, 0), (0, 0, 0))), VALUES),
    "x's rows by columns": ("rows of the sums", replace(X, value=((0, 1, 0), (1, 0, 0), (0, 0, 0),
                            (0, 0, 0))), Y, VALUES),
    "k across slabs": ("rows of the sums", replace(X, value=((0, 0, 1), *X.value[1:])), Y, VALUES),
    "rows of 64 B": ("B rows that", replace(X, buffer=replace(A, stride=(32, 1, 2048))), Y, VALUES),
    "no swizzle": ("B rows that", replace(X, buffer=replace(A, swizzle=(0, 0, 0))), Y, VALUES),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_no_descriptor_says_is_refused(name: str) -> None:
    message, x, y, values = WRONG[name]
    with pytest.raises(ProgramError, match=message) as caught:
        emit(product(x, y, values))
    assert "\n" not in str(caught.value)


def test_other_sums_are_refused() -> None:
    program = product(X, Y, VALUES)
    other = registers("other", "f32", 1, 4, 2, 2)

    def change(do: Do) -> Do:
        return replace(do, reads=(*do.reads[:2], replace(do.write, buffer=other)))

    with pytest.raises(ProgramError, match="adds to a tile of sums"):
        emit(dos(replace(program, buffers=(*program.buffers, other)), "wgmma", change))


@pytest.mark.parametrize(
    ("start", "layout", "changes", "wanted"),
    [
        ("persistent", "nt", {}, {"a": (64, 128, 3), "b": (64, 256, 3), "c": (64, 64, 3)}),
        ("cluster", "nt", {}, {"a": (64, 128, 3), "b": (64, 128, 3), "c": (64, 64, 3)}),
        ("cluster", "tn", {"cluster_n": 2}, {"a": (64, 64, 3), "b": (64, 64, 3), "c": (64, 64, 3)}),
        ("plain", "nn", {"tile_k": 128}, {"a": (64, 64, 3), "b": (64, 128, 3)}),
        ("persistent", "nt", {"store_n": 16},
         {"a": (64, 128, 3), "b": (64, 256, 3), "c": (16, 64, 1)}),
        ("persistent", "nt", {"store_n": 8, "swap": 1},
         {"a": (64, 256, 3), "b": (64, 128, 3), "c": (64, 8, 3)}),
    ],
)  # fmt: skip
def test_boxes(start: str, layout: str, changes: dict[str, Any], wanted: dict[str, Any]) -> None:
    """(contiguous elements, lines, swizzle) of each array's box: a slab of a CTA's part."""
    found = {m.buffer: (*m.box, m.swizzle) for m in tensor_maps(term(start, layout, **changes))}
    assert found == wanted


def first_load(program: Program) -> Do:
    """The first load."""
    statements = (s for s, _ in walk(program) if isinstance(s, Do))
    return next(s for s in statements if s.instruction.name == "cp.async.bulk.tensor")


def test_boxes_that_tma_has_not_are_refused() -> None:
    program = term("plain")
    do = first_load(program)
    (source,) = do.reads
    assert isinstance(source, Access)
    assert tensor_map_of(do) == TensorMap("a", "bf16", (64, 64), 3)
    swapped = replace(source, value=((1, 0), (0, 1), (0, 64)))
    stepped = replace(source, value=((0, 2), (1, 0), (0, 64)))
    skipping = replace(source, value=((0, 1), (2, 0), (0, 64)))
    bad: list[tuple[str, Do]] = [
        ("contiguous dimension", replace(do, reads=(swapped,))),
        ("contiguous dimension", replace(do, reads=(stepped,))),
        ("another dimension, by 1", replace(do, reads=(skipping,))),
        ("32 elements land 64 apart", replace(do, values=(32, 64, 1))),
        ("contiguous dimension", replace(do, values=(64,))),
    ]
    for swizzle in ((2, 3, 3), (3, 4, 3), (3, 3, 4)):  # of 64 B, of other pieces, by other rows
        changed = first_load(rebuffered(program, "smem_a", swizzle=swizzle))
        bad.append((f"swizzle {re.escape(str(swizzle))} is none", changed))
    for message, wrong in bad:
        with pytest.raises(ProgramError, match=message) as caught:
            tensor_map_of(wrong)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("loads", [True, False], ids=["load", "store"])
def test_a_load_signals_and_a_store_does_not(*, loads: bool) -> None:
    program = term("tma store")
    name = "cp.async.bulk.tensor" + ("" if loads else ".global")
    signal = None if loads else (program.barriers[0], Affine())
    with pytest.raises(
        ProgramError, match=r"signals a barrier, no store|has no signal; leave it out"
    ):
        emit(dos(program, name, lambda do: replace(do, signal=signal)))


@pytest.mark.parametrize(
    ("shape", "strides", "pitches"),
    [((100, 64), (64, 1), [128]), ((100, 60), (72, 1), [144]), ((1, 60), (3, 1), [128]),
     ((4, 100, 64), (6400, 64, 1), [128, 12800]), ((1, 9, 8), (1, 8, 1), [16, 144])],
)  # fmt: skip
def test_a_map_is_encoded(fake: Gpu, shape: Any, strides: Any, pitches: list[int]) -> None:
    """Contiguous dimension first, distances in bytes but for the first; what the driver left."""
    box = (64, 32, *(1,) * (len(shape) - 2))
    found = encode(TensorMap("a", "bf16", box, 3), 4096, shape, strides)
    assert found == (4096).to_bytes(8, "little") * 16
    ((kind, rank, pointer, sizes, steps, boxes, ones, interleave, swizzle, *_),) = fake.of("encode")
    assert (kind.value, rank.value) == (9, len(shape))
    assert (pointer.value, list(sizes), list(steps)[:-1]) == (4096, list(shape[::-1]), pitches)
    assert (list(boxes), set(ones), interleave.value, swizzle.value) == (list(box), {1}, 0, 3)


@pytest.mark.parametrize(
    ("pointer", "shape", "strides"), [(8, (4, 64), (64, 1)), (16, (4, 60), (60, 1))]
)
def test_odd_rows_are_refused(fake: Gpu, pointer: int, shape: Any, strides: Any) -> None:
    with pytest.raises(LaunchError, match=r"multiples of 16 B apart.*pad the rows") as caught:
        encode(TensorMap("a", "bf16", (64, 32), 3), pointer, shape, strides)
    assert "\n" not in str(caught.value)
    assert not fake.log
