from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tinygpu.codegen.run.arguments import contract_of, dense, vector_of
from tinygpu.codegen.runtime import contract
from tinygpu.codegen.runtime.views import View, view
from tinygpu.errors import LaunchError
from tinygpu.machines.blackwell import STARTS, Blackwell
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.term.machine import Chosen, Value
from tinygpu.term.operation import Problem, matmul
from tinygpu.term.program import Program
from tinygpu.term.schedule import Schedule

SIZES = st.integers(1, 300)


def check(program: Program, views: list[View]) -> dict[str, int]:
    """Check views against a term's contract, as it is read back from JSON."""
    told = json.loads(json.dumps(contract_of(program).tree()))
    assert contract.Contract.of(told) == contract_of(program)
    return contract.check(contract.Contract.of(told), views)


def program_of(point: str = "vectorised", **changes: Value) -> Program:
    values: dict[str, Value] = {**LADDER[point], **changes}
    return Schedule.of(Simt(), values).program(Simt(), matmul())


def views(m: int, n: int, k: int) -> list[View]:
    return dense(Problem.of(matmul(), m=m, n=n, k=k))


def interface(array: Any, **changes: Any) -> Any:
    return SimpleNamespace(__cuda_array_interface__={**array.__array_interface__, **changes})


@pytest.mark.parametrize("dtype", ["f4", "f8", "f2"])
def test_a_view_is_what_the_interface_says(dtype: str) -> None:
    """Address, type, shape, and strides in elements; dense where there are none."""
    array = np.zeros((6, 8), dtype)
    whole, part = view("a", interface(array)), view("a", interface(array[1:5:2, 2:6]))
    assert (whole.pointer, whole.shape, whole.strides) == (array.ctypes.data, (6, 8), (8, 1))
    assert (part.shape, part.strides) == ((2, 4), (16, 1))
    assert part.pointer == array[1:, 2:].ctypes.data
    assert whole.dtype == {"f4": "f32", "f8": "f64", "f2": "f16"}[dtype]


def test_bf16_is_taken_as_bits() -> None:
    """uint16 and ml_dtypes' bfloat16 are bf16; other byte orders are no type of ours."""
    array = np.zeros((4, 4), np.uint16)
    assert view("a", interface(array)).dtype == "bf16"
    assert view("a", interface(array, typestr="<V2")).dtype == "bf16"
    swapped = view("a", interface(np.zeros((2, 2), ">f4")))
    assert swapped.dtype == ">f4"


def test_types_are_taken_by_what_holds_them() -> None:
    """tf32 comes in arrays of fp32, 8-bit numbers as bits or by their own name, no other."""
    problem = Problem.of(matmul("e5m2", layout="nt"), m=64, n=64, k=128)
    program = Blackwell().program(problem.operation, Chosen({**STARTS["plain"], "tile_k": 128}))
    a, b, c = dense(problem)
    assert (a.dtype, b.dtype, c.dtype) == ("e5m2", "e5m2", "bf16")
    bits = view("a", interface(np.zeros((64, 128), np.uint8)))
    assert check(program, [replace(bits, pointer=0), b, c])["k"] == 128
    with pytest.raises(LaunchError, match="a: dtype e4m3, the kernel takes e5m2"):
        check(program, [replace(a, dtype="e4m3"), b, c])
    assert bits.span[1] - bits.span[0] == 64 * 128
    problem = Problem.of(matmul("tf32", layout="nt"), m=64, n=64, k=128)
    program = Blackwell().program(problem.operation, Chosen(STARTS["plain"]))
    a, b, c = dense(problem)
    assert check(program, [replace(a, dtype="f32"), b, c])["k"] == 128
    with pytest.raises(LaunchError, match="a: dtype f64"):
        check(program, [replace(a, dtype="f64"), b, c])


def test_what_is_no_array() -> None:
    """A host array, a number, and strides that split elements are refused."""
    for wrong in (np.zeros(3), 3.0, None):
        with pytest.raises(LaunchError, match=r"a: .* is not on a GPU; give a CuPy array"):
            view("a", wrong)
    with pytest.raises(LaunchError, match="split elements"):
        view("a", interface(np.zeros((2, 2), "f4"), strides=(10, 4)))


@given(SIZES, SIZES, SIZES)
def test_plain_points_take_every_shape(m: int, n: int, k: int) -> None:
    """Without vectors and with guards there is no shape to refuse; strides become parameters."""
    values = check(program_of("shared"), views(m, n, k))
    assert (values["m"], values["n"], values["k"]) == (m, n, k)
    assert (values["ld_a"], values["ld_b"], values["ld_c"]) == (k, n, n)
    assert values["trips"] == -(-k // 32)


@given(SIZES, SIZES, SIZES)
def test_vectors_take_their_multiples(m: int, n: int, k: int) -> None:
    """Vectors of 4 take a shape exactly if k and n are multiples of 4 (or never stepped over)."""
    program = program_of()
    assert vector_of(program) == {"a": 4, "b": 4, "c": 4}
    if k % 4 == 0 and n % 4 == 0:
        check(program, views(m, n, k))
    else:
        with pytest.raises(LaunchError, match=r"vector: . moves 4 elements at once"):
            check(program, views(m, n, k))


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 6), st.integers(-1, 1))
def test_unguarded_points_take_whole_tiles(m: int, n: int, k: int, off: int) -> None:
    """Without guards a shape is taken exactly if its tiles are whole."""
    program = program_of("shared", edges="exact")
    sizes = {"m": 32 * m, "n": 32 * n, "k": 32 * k}
    check(program, views(**sizes))
    for axis, size in sizes.items():
        other = {**sizes, axis: size + off}
        if off == 0:
            continue
        with pytest.raises(LaunchError, match=f"inside: .* along {axis}"):
            check(program, views(**other))


@given(st.integers(0, 3), st.integers(0, 15), st.integers(0, 40))
def test_strided_views(which: int, misaligned: int, gap: int) -> None:
    """Rows may lie apart by a multiple of the vector, from an address that is one."""
    given_ = views(64, 64, 64)
    which = which % 3
    old = given_[which]
    given_[which] = View(misaligned * 4, "f32", old.shape, (64 + gap, 1))
    if misaligned % 4:
        with pytest.raises(LaunchError, match="not a multiple of 16 B"):
            check(program_of(), given_)
    elif gap % 4:
        with pytest.raises(LaunchError, match="vector: "):
            check(program_of(), given_)
    else:
        values = check(program_of(), given_)
        assert values[f"ld_{'abc'[which]}"] == 64 + gap


@pytest.mark.parametrize(
    ("strides", "message"),
    [
        ((1, 64), "stride 64 in dimension 1, the kernel needs 1"),
        ((64, 2), "stride 2 in dimension 1"),
        ((0, 1), "makes its rows of 64 elements overlap"),
        ((63, 1), "makes its rows of 64 elements overlap"),
        ((-64, 1), "overlap"),
    ],
)
def test_strides_that_no_row_major_part_has(strides: tuple[int, int], message: str) -> None:
    """Transposed, stepped, broadcast and reversed arrays are refused, not read wrongly."""
    given_ = views(64, 64, 64)
    given_[0] = View(0, "f32", (64, 64), strides)
    with pytest.raises(LaunchError, match=message):
        check(program_of("shared"), given_)


def test_one_row_has_no_stride() -> None:
    """A dimension of one element may have any stride, and a single row any width of its own."""
    given_ = views(1, 64, 64)
    given_[0] = View(0, "f32", (1, 64), (7, 1))
    check(program_of(), given_)


def test_32_bit_indices() -> None:
    """Offsets of 2^31 elements and more need another addressing."""
    big = [View(0, "f32", (2**16 + 1, 1), (2**15, 1)), *views(2**16 + 1, 32, 1)[1:]]
    assert check(program_of("naive", addressing="pointer"), big)
    with pytest.raises(LaunchError, match=r"a: offsets up to .* do not fit 32-bit"):
        check(program_of("naive"), big)
    small = [View(0, "f32", (2**16, 1), (2**15, 1)), *views(2**16, 32, 1)[1:]]
    assert check(program_of("naive"), small)


def test_32_bit_coordinates() -> None:
    """Sizes and rows up to 2^31 are taken, beyond it they are refused."""
    program = program_of("shared")
    assert check(program, views(2**31 - 64, 1, 1))
    with pytest.raises(LaunchError, match=r"index: .* counts to 21474\d+ along m"):
        check(program, views(2**31 - 1, 1, 1))
    wide = [*views(2, 1, 1)[:2], View(0, "f32", (2, 1), (2**29 - 1, 1))]
    assert check(program, wide)
    wide[2] = View(0, "f32", (2, 1), (2**29, 1))
    with pytest.raises(LaunchError, match="c: rows lie 2147483648 B apart"):
        check(program, wide)


@given(SIZES, SIZES)
def test_axes_agree(k: int, other: int) -> None:
    """a's k and b's k are one size."""
    assume(k != other)
    a, _, c = views(32, 32, k)
    with pytest.raises(LaunchError, match=f"axis k is {k}, but b has shape"):
        check(program_of("shared"), [a, View(0, "f32", (other, 32), (32, 1)), c])


def test_devices_and_types() -> None:
    """Arrays are on one device and of the kernel's types."""
    a, _, c = views(32, 32, 32)
    there = View(0, "f32", (32, 32), (32, 1), 1)
    here = View(0, "f32", (32, 32), (32, 1), 0)
    assert check(program_of("shared"), [a, there, c])
    with pytest.raises(LaunchError, match=r"arrays on devices \[0, 1\]"):
        check(program_of("shared"), [here, there, c])
    with pytest.raises(LaunchError, match="b: dtype f16, the kernel takes f32"):
        check(program_of("shared"), [a, View(0, "f16", (32, 32), (32, 1)), c])
    with pytest.raises(LaunchError, match="size m: 0"):
        check(program_of("shared"), views_of_nothing())


def views_of_nothing() -> list[View]:
    shapes = ((0, 32), (32, 32), (0, 32))
    return [View(0, "f32", shape, (32, 1)) for shape in shapes]


def test_forms_are_what_checks_depend_on() -> None:
    """Two addresses with one alignment have one form; anything else that differs shows."""
    one = View(256, "f32", (8, 8), (8, 1), 0)
    assert one.form == View(512, "f32", (8, 8), (8, 1), 0).form
    others = [
        View(264, "f32", (8, 8), (8, 1), 0),
        View(256, "f16", (8, 8), (8, 1), 0),
        View(256, "f32", (8, 4), (8, 1), 0),
        View(256, "f32", (8, 8), (16, 1), 0),
        View(256, "f32", (8, 8), (8, 1), 1),
    ]
    assert len({one.form, *(o.form for o in others)}) == 6
