"""The shapes that a bundle is to serve: what is typed or lies in a file, and what is none."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.test_bad_input import JSON
from tinygpu.cli.shapes import LAYERS, sampled, shapes_in, shapes_of
from tinygpu.errors import OperationError
from tinygpu.search.tuning.shape import Shape, matmul_shape
from tinygpu.term.operation import LARGEST_SIZE, matmul

SIZE = st.integers(1, LARGEST_SIZE)


def shapes(
    m: str, n: str, k: str, layers: Sequence[str] = (), file: Path | None = None, points: int = 64
) -> tuple[Shape, ...]:
    """Shapes of a matmul; sizes that are empty were not given."""
    given = {axis: text for axis, text in (("m", m), ("n", n), ("k", k)) if text}
    return shapes_of(matmul(), given, layers, file, points)


def typed(
    m: str = "", n: str = "", k: str = "", *layers: str, file: Path | None = None, points: int = 64
) -> list[tuple[int, ...]]:
    return [tuple(s.sizes.values()) for s in shapes(m, n, k, layers, file, points)]


def complaint(m: str = "", n: str = "", k: str = "", *layers: str, **how: Any) -> str:
    """The one line of what is no shape."""
    with pytest.raises(OperationError) as error:
        typed(m, n, k, *layers, **how)
    assert "\n" not in str(error.value)
    return str(error.value)


# Ranges.


@given(SIZE, SIZE, st.integers(1, 200))
def test_a_range_is_sampled(a: int, b: int, points: int) -> None:
    """Sorted, unique, inside, with both ends, about as many as asked for."""
    low, high = min(a, b), max(a, b)
    found = sampled(low, high, points)
    assert found == sorted(set(found))
    assert (found[0], found[-1]) == (low, high)
    wanted = min(max(points, 2), high - low + 1)
    assert wanted <= len(found) <= 1.1 * wanted + 1


@given(st.integers(1, 5000), st.integers(0, 300))
def test_a_short_range_is_taken_whole(low: int, more: int) -> None:
    """Where there are no more sizes than points."""
    assert sampled(low, low + more, 301) == list(range(low, low + more + 1))


@pytest.mark.parametrize(("low", "high", "points"), [(1, 8192, 64), (64, 65536, 32)])
def test_a_range_is_even_by_its_logarithm(low: int, high: int, points: int) -> None:
    """Of the large sizes every second one is a multiple of 64; no step is a jump."""
    found = sampled(low, high, points)
    large = [size for size in found if size > 512]
    assert sum(size % 64 == 0 for size in large) >= len(large) // 2
    assert any(size % 2 for size in large)
    usual = (high / low) ** (1 / (points - 1))
    assert all(y / x < usual**2.5 for x, y in pairwise(found) if x > 16)
    assert len([size for size in found if size <= 64]) >= 1


def test_many_points_take_no_time() -> None:
    start = time.perf_counter()
    assert len(sampled(1, 8192, 4096)) >= 4096
    assert time.perf_counter() - start < 5


# What is typed.


@pytest.mark.parametrize(
    ("m", "wanted"),
    [
        ("7", [7]),
        ("16,1,256", [1, 16, 256]),
        ("5,5,4:5", [4, 5]),
        ("1:4", [1, 2, 3, 4]),
        (" 1 : 3 , 9", [1, 2, 3, 9]),
        ("8:8", [8]),
        (f"{LARGEST_SIZE}", [LARGEST_SIZE]),
    ],
)
def test_sizes_and_ranges(m: str, wanted: list[int]) -> None:
    """In order, each once."""
    assert typed(m, "8", "9") == [(size, 8, 9) for size in wanted]


def test_every_combination_in_order() -> None:
    """By n, by k, and then by m; ranges of n and k are of few points."""
    assert typed("1,2", "8,4", "3,5") == [
        (m, n, k) for n in (4, 8) for k in (3, 5) for m in (1, 2)
    ]  # fmt: skip
    found = typed("1,2", "1:4096", "7")
    assert len(found) == 2 * 5
    assert typed("1", "1:4096", "7") == [(1, n, 7) for n in sampled(1, 4096, 64)]
    assert typed("1:1024", "1:4096", "7", points=3) == [
        (m, n, 7) for n in sampled(1, 4096, 3) for m in sampled(1, 1024, 3)
    ]


def test_layers() -> None:
    """Known ones and one's own, in the order given, each with its name and the weight 1."""
    found = shapes("1,2", "", "", ["down", "mine=24x40", "qkv"])
    pairs = {"down": (4096, 14336), "mine": (24, 40), "qkv": (6144, 4096)}
    assert found == tuple(
        matmul_shape(m, n, k, 1.0, name) for name, (n, k) in pairs.items() for m in (1, 2)
    )
    assert found[0].sizes == {"m": 1, "n": 4096, "k": 14336}
    assert {name: LAYERS[name][1:] for name in ("down", "qkv")} == {
        name: pairs[name] for name in ("down", "qkv")
    }


HUGE = "9" * 5000


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("9:8", "1", "1"), "-m 9:8: the range 9:8 is backwards; write it 8:9"),
        (("", "1", "1"), "matmul: -m not given; give each size, as -m 1:8192"),
        (("1", "", "1"), "-n not given; give each size, as -n 1:8192; or give --shapes FILE, or"),
        (("1", "1", ""), "-k not given"),
        (("1", "1", "0"), "-k: '0' is no size; give a whole number, at least 1 and at most"),
        (("0:4", "1", "1"), "-m: '0' is no size"),
        (("1", "2147483648", "1"), "-n: '2147483648' is no size; give a whole number, at least 1 "),
        (("-1", "1", "1"), "'-1' is no size; give a whole number"),
        ((",", "1", "1"), "'' is no size"),
        (("1,,2", "1", "1"), "'' is no size"),
        ((":", "1", "1"), "'' is no size"),
        (("1:", "1", "1"), "'' is no size"),
        ((":8", "1", "1"), "'' is no size"),
        (("1:2:3", "1", "1"), "'2:3' is no size"),
        ((" ", "1", "1"), "' ' is no size"),
        (("a", "1", "1"), "'a' is no size"),
        (("1e3", "1", "1"), "'1e3' is no size"),
        (("1.0", "1", "1"), "'1.0' is no size"),
        (("0x40", "1", "1"), "'0x40' is no size"),
        (("\u0664", "1", "1"), "is no size"),
        (("\u00b2", "1", "1"), "is no size"),
        ((HUGE, "1", "1"), "is no size"),
        (("1:99999999999", "1", "1"), "is no size"),
        (("1", "", "", "qvk"), "layer qvk: known are qkv, o, gate_up, down; did you mean qkv?"),
        (("1", "", "", "x="), "--layer x=: n: '' is no size"),
        (("1", "", "", "x=3"), "write it NAME=NxK"),
        (("1", "", "", "x=3x0"), "k: '0' is no size"),
        (("1", "", "", "x=3x4x5"), "'4x5' is no size"),
        (("1", "2", "", "qkv"), "--layer: it has n and k; leave -n and -k out"),
        (("", "", "", "qkv"), "-m not given"),
        ((",".join(map(str, range(1, 4098))), "1", "1"), "4097 of them; at most 4096"),
    ],
)
def test_what_is_no_size(words: tuple[str, ...], said: str) -> None:
    assert said in complaint(*words)


# Files.


def listed(folder: Path, name: str, data: str | bytes | list[Any]) -> Path:
    path = folder / name
    content = json.dumps(data) if isinstance(data, list) else data
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_a_file_of_json(tmp_path: Path) -> None:
    """In order of layer, n, k and m; numbers may be text; a weight and a layer may be left out."""
    path = listed(
        tmp_path, "shapes.json",
        [
            {"m": 9, "n": 8, "k": 7, "weight": 2.5},
            {"m": "2", "n": 8, "k": 7, "weight": None, "layer": None},
            {"m": 1, "n": 1, "k": 1, "layer": "up", "weight": "0.5"},
            {"m": 2, "n": 4, "k": 7, "weight": ""},
        ],
    )  # fmt: skip
    assert shapes_in(path, "mnk") == (
        matmul_shape(2, 4, 7),
        matmul_shape(2, 8, 7),
        matmul_shape(9, 8, 7, 2.5),
        matmul_shape(1, 1, 1, 0.5, "up"),
    )
    assert shapes("", "", "", (), path) == shapes_in(path, "mnk")


def test_a_file_of_csv(tmp_path: Path) -> None:
    """The same, with columns in any order, after a byte order mark, with either line end."""
    text = "\ufeffk,m,weight,n,layer\r\n7,9,2.5,8,\r\n7,2,,8,\r\n1,1,0.5,1,up\r\n\r\n"
    assert shapes_in(listed(tmp_path, "shapes.csv", text), "mnk") == (
        matmul_shape(2, 8, 7),
        matmul_shape(9, 8, 7, 2.5),
        matmul_shape(1, 1, 1, 0.5, "up"),
    )


def test_a_shape_that_is_listed_twice_counts_twice(tmp_path: Path) -> None:
    """Its weights add up; of another layer it is another shape."""
    one = {"m": 1, "n": 2, "k": 3}
    path = listed(tmp_path, "s.json", [one, {**one, "weight": 4}, {**one, "layer": "up"}])
    assert shapes_in(path, "mnk") == (matmul_shape(1, 2, 3, 5.0), matmul_shape(1, 2, 3, 1.0, "up"))


ONE = {"m": 1, "n": 2, "k": 3}
FILES: dict[str, tuple[str, str | bytes | list[Any], str]] = {
    "empty": ("s.json", "", "Expecting value"),
    "an empty list": ("s.json", [], "give a list of shapes"),
    "null": ("s.json", "null", "give a list of shapes"),
    "an object": ("s.json", json.dumps(ONE), "give a list of shapes"),
    "a number": ("s.json", "5", "give a list of shapes"),
    "strings": ("s.json", ["1x2x3"], "'1x2x3'; a shape is an object, as"),
    "lists": ("s.json", [[1, 2, 3]], "[1, 2, 3]; a shape is an object"),
    "null among them": ("s.json", [ONE, None], "None; a shape is an object"),
    "cut": ("s.json", json.dumps([ONE])[:-3], "Expecting"),
    "deep": ("s.json", "[" * 100_000, "recursion"),
    "no text": ("s.json", b"\xff\xfe\x00", "utf-8"),
    "long numbers": ("s.json", f"[{HUGE}]", "Exceeds the limit"),
    "unknown field": ("s.json", [{**ONE, "wieght": 1}], "did you mean weight?"),
    "a field of two lines": ("s.json", [{**ONE, "a\nb": 1}], "known are m, n, k"),
    "no m": ("s.json", [{"n": 2, "k": 3}], "it lacks m"),
    "no m, no k": ("s.json", [{"m": None, "n": 2, "k": ""}], "it lacks m, k"),
    "m 0": ("s.json", [{**ONE, "m": 0}], "'0' is no size"),
    "m -1": ("s.json", [{**ONE, "m": -1}], "'-1' is no size"),
    "m 2.0": ("s.json", [{**ONE, "m": 2.0}], "'2.0' is no size"),
    "m true": ("s.json", [{**ONE, "m": True}], "'True' is no size"),
    "m nan": ("s.json", '[{"m": NaN, "n": 1, "k": 1}]', "'nan' is no size"),
    "m list": ("s.json", [{**ONE, "m": [1]}], "'[1]' is no size"),
    "m too large": ("s.json", [{**ONE, "m": 2**31}], "at most 2147483647"),
    "m huge": ("s.json", [{**ONE, "m": 10**400}], "is no size"),
    "weight 0": ("s.json", [{**ONE, "weight": 0}], "weight 0; give a number above 0"),
    "weight 0.0": ("s.json", [{**ONE, "weight": 0.0}], "weight 0.0; give a number above 0"),
    "weight -1": ("s.json", [{**ONE, "weight": -1}], "weight -1; give a number above 0"),
    "weight nan": ("s.json", '[{"m": 1, "n": 1, "k": 1, "weight": NaN}]', "weight nan; give"),
    "weight inf": ("s.json", '[{"m": 1, "n": 1, "k": 1, "weight": 1e999}]', "weight inf; give"),
    "weight huge": ("s.json", [{**ONE, "weight": 10**400}], "give a number above 0"),
    "weight text": ("s.json", [{**ONE, "weight": "much"}], "weight 'much'; give a number"),
    "weight list": ("s.json", [{**ONE, "weight": [1]}], "weight [1]; give a number"),
    "weight object": ("s.json", [{**ONE, "weight": {}}], "weight {}; give a number"),
    "weight true": ("s.json", [{**ONE, "weight": True}], "weight True; give a number"),
    "weight false": ("s.json", [{**ONE, "weight": False}], "weight False; give a number"),
    "too many": ("s.json", [{**ONE, "m": i + 1} for i in range(4097)], "4097 of them; at most"),
    "csv: empty": ("s.csv", "", "give a list of shapes"),
    "csv: a head": ("s.csv", "m,n,k\n", "give a list of shapes"),
    "csv: no head": ("s.csv", "1,2,3\n4,5,6\n", "known are m, n, k, weight, layer"),
    "csv: short": ("s.csv", "m,n,k\n1,2\n", "it lacks k"),
    "csv: long": ("s.csv", "m,n,k\n1,2,3,4\n", "known are m, n, k, weight, layer"),
    "csv: text": ("s.csv", "m,n,k\n1,2,three\n", "'three' is no size"),
    "csv: weight 0": ("s.csv", "m,n,k,weight\n1,2,3,0\n", "weight '0'; give a number above 0"),
    "csv: weight nan": ("s.csv", "m,n,k,weight\n1,2,3,nan\n", "weight 'nan'; give a number"),
    "csv: weight 1e999": ("s.csv", "m,n,k,weight\n1,2,3,1e999\n", "give a number above 0"),
    "csv: a long field": ("s.csv", f"m,n,k\n{'1' * 200_000},2,3\n", "field larger than"),
    "csv: an open quote": ("s.csv", 'm,n,k\n"1,2,3\n4,5,6\n', "it lacks n, k"),
    "csv: NUL": ("s.csv", "m,n,k\n1\0,2,3\n", "no size"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_has_no_shapes(name: str, tmp_path: Path) -> None:
    """One line, which names the file and what is wrong in it."""
    suffix, data, said = FILES[name]
    path = listed(tmp_path, suffix, data)
    line = complaint(file=path)
    assert line.startswith(f"shapes {path}: ")
    assert said in line


@given(JSON)
def test_any_json_is_no_list_of_shapes(tmp_path_factory: pytest.TempPathFactory, tree: Any) -> None:
    folder = tmp_path_factory.getbasetemp()
    for data in (json.dumps(tree), json.dumps([tree]), json.dumps([{**ONE, "weight": [tree]}])):
        complaint(file=listed(folder, "any.json", data))


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_any_text_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    """Of a .csv, and as what is typed: with no other error."""
    path = listed(tmp_path_factory.getbasetemp(), "any.csv", f"m,n,k,weight\n1,2,3,{text}\n")
    ways: list[Callable[[], object]] = [
        lambda: shapes_in(path, "mnk"),
        lambda: shapes(text, "1", "1", points=8),
    ]
    for do in ways:
        try:
            found: Any = do()
        except OperationError as error:
            said = str(error)
            assert said.count("\n") <= text.count("\n")
        else:
            assert all(1 <= s.size <= LARGEST_SIZE and s.weight > 0 for s in found)


def test_a_file_stands_alone(tmp_path: Path) -> None:
    """Sizes beside it would not be heeded; what is no file is an OSError, which names it."""
    path = listed(tmp_path, "s.json", [ONE])
    for words in (("1",), ("", "1"), ("", "", "1"), ("", "", "", "qkv")):
        assert "leave -m, -n, -k and --layer out" in complaint(*words, file=path)
    for wrong in (tmp_path / "none.json", tmp_path):
        with pytest.raises(OSError, match=wrong.name):
            typed(file=wrong)
