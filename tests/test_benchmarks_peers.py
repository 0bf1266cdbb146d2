"""The peers of a matmul, as far as they need no GPU: what cuBLASLt and Triton are told."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benchmarks.hopper_cases import CASES
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import cublaslt, hopper_matmul, peers, triton_matmul
from benchmarks.triton_matmul import Configuration
from tinygpu.codegen import timing
from tinygpu.codegen.provenance import Clock
from tinygpu.errors import LaunchError, OperationError
from tinygpu.operation import Problem, matmul

LAYOUTS = ("nn", "nt", "tn", "tt")
SMEM_BYTES = 232448
MAIN = [case for case in CASES if case.group == "main"]


def operands(problem: Problem) -> tuple[list[Any], Any]:
    """Inputs as small integers, and the product by the axes of the operands."""
    rng, shapes = np.random.default_rng(0), problem.operation.shapes(problem.sizes)
    inputs = [rng.integers(-4, 5, shapes[o.name]).astype("f4") for o in problem.operation.inputs]
    first, second = ("".join(o.axes) for o in problem.operation.inputs)
    return inputs, np.einsum(f"{first},{second}->mn", *inputs)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_cublaslt_is_told_the_same_product(layout: str) -> None:
    """Read as column-major and transposed as told, b times a is c transposed."""
    problem = Problem.of(matmul("f32", layout=layout), m=3, n=5, k=7)
    (a, b), wanted = operands(problem)

    def read(array: Any, matrix: cublaslt.Matrix) -> Any:
        held = array.reshape(-1).reshape((matrix.rows, matrix.columns), order="F")
        return held.T if matrix.transposed else held

    told_a, told_b, told_c = cublaslt.view(problem)
    product = read(b, told_a) @ read(a, told_b)
    assert not told_c.transposed
    assert product.shape == (told_c.rows, told_c.columns)
    np.testing.assert_array_equal(product.reshape(-1, order="F"), wanted.reshape(-1))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_torch_multiplies_every_layout(layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch is given a and b as [m, k] and [k, n], whatever they lie like."""
    problem = Problem.of(matmul("f32", layout=layout), m=3, n=5, k=7)
    inputs, wanted = operands(problem)
    torch = SimpleNamespace(
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace())),
        mm=lambda a, b, out: np.matmul(a, b, out=out),
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(peers, "tensors", lambda problem, inputs, output: (*inputs, output))
    output = np.full((3, 5), np.nan, "f4")
    peers.torch_matmul(problem, inputs, output, {})()
    np.testing.assert_array_equal(output, wanted)
    assert torch.backends.cuda.matmul.allow_tf32 is False


def test_an_algorithm_is_a_peer_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """``algorithm_3`` is one, other names are not; one too many is said; the struct is C's."""
    assert callable(cublaslt.algorithm_3)
    for name in ("algorithm_", "algorithm_x", "nothing"):
        with pytest.raises(AttributeError, match=name):
            getattr(cublaslt, name)
    plan = SimpleNamespace(algorithms=(cublaslt.Result(),) * 3)
    monkeypatch.setattr(cublaslt, "plan", lambda problem: plan)
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace())
    with pytest.raises(LaunchError, match="no algorithm 3; there are 3"):
        cublaslt.algorithm_3(MAIN[0].problem, (), None, {})
    assert ctypes.sizeof(cublaslt.Result) == 96
    with pytest.raises(OperationError, match="give a matmul"):
        cublaslt.view(Problem(replace(matmul(), name="other"), (("m", 1), ("n", 1), ("k", 1))))


def test_a_missing_library_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """No cuBLASLt is an error with the way out; what its child says reaches the caller."""
    monkeypatch.setattr(cublaslt, "_names", lambda: iter(["libnone.so.0"]))
    with pytest.raises(LaunchError, match="install nvidia-cublas"):
        cublaslt.library.__wrapped__()
    for answer, counts in (({"counts": [4, 0]}, [4, 0]), ({"failed": "no luck"}, None)):
        worker = SimpleNamespace(ask=lambda request, limit, answer=answer: answer)

        class Child:
            def __init__(self, command: Sequence[str]) -> None:
                assert command[-1] == "benchmarks.cublaslt"

            def __enter__(self, worker: Any = worker) -> Any:
                return worker

            def __exit__(self, *error: object) -> None: ...

        monkeypatch.setattr(cublaslt, "Worker", Child)
        if counts is None:
            with pytest.raises(LaunchError, match="no luck"):
                cublaslt.count([])
            assert hopper_matmul._algorithms(MAIN[:2]) == [0, 0]
        else:
            assert cublaslt.count([]) == counts


sizes = st.integers(1, 512)


@given(
    st.builds(Configuration, sizes, sizes, sizes, sizes, sizes, sizes, st.booleans(), st.booleans())
)
def test_a_configuration_is_its_name(one: Configuration) -> None:
    """The name says all of it, and asks the module for that peer."""
    assert Configuration.of(str(one)) == one
    assert getattr(triton_matmul, str(one)).args == (one,)
    for odd in (f"{one}_", f"x{one}"):
        with pytest.raises(OperationError, match="Triton configuration"):
            Configuration.of(odd)
        with pytest.raises(AttributeError):
            getattr(triton_matmul, odd)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_triton_has_configurations_for_each_case(layout: str) -> None:
    """At least 12 for each shape, in both layouts that it takes, and within shared memory."""
    for case in MAIN:
        problem = Problem.of(matmul("bf16", layout=layout), **case.problem.sizes)
        found = triton_matmul.configurations(problem)
        assert len(set(found)) == len(found)
        assert len(found) >= 12 if layout in ("nn", "nt") else not found
        few = case.problem.sizes["m"] <= 64
        assert not found or few == all(one.tile_m <= 64 for one in found)
        for one in found:
            ring = 2 * one.stages * (one.tile_m + one.tile_n) * one.tile_k
            stored = 2 * one.tile_m * one.tile_n // (2 if one.halves else 1)
            assert ring + stored + 64 <= SMEM_BYTES, one
    odd = Problem.of(matmul("bf16", layout="nt"), m=64, n=100, k=64)
    assert not triton_matmul.configurations(odd)
    assert Configuration.of("t128x256x64_s3_w8_g8_stay").programs(4096, 4096, 132) == 132
    assert Configuration.of("t128x256x64_s3_w8_g8").programs(4097, 4096, 132) == 33 * 16


class Stream:
    """A stream on which each wait takes a while; it notes what is enqueued."""

    def __init__(self, **options: bool) -> None:
        self.noted: list[str] = []

    def synchronize(self) -> None:
        time.sleep(0.005)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None: ...


@pytest.mark.parametrize("warm_seconds", [0.0, 0.03])
def test_the_load_comes_before_the_rounds(
    warm_seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``warm_seconds`` all run for so long before the first is timed; without, none does."""
    stream = Stream()

    def event() -> SimpleNamespace:
        return SimpleNamespace(record=lambda s: s.noted.append("record"), synchronize=lambda: None)

    cuda = SimpleNamespace(
        Stream=lambda **options: stream,
        Event=event,
        Device=lambda: stream,
        get_elapsed_time=lambda start, stop: 1.0,
    )
    monkeypatch.setattr(timing, "gpu", lambda: SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(timing, "clock", Clock)

    def graph(candidate: Callable[[int], None], *rest: Any) -> tuple[Any, int]:
        return SimpleNamespace(launch=lambda s: candidate(0)), 1

    monkeypatch.setattr(timing, "_graph", graph)
    both = {name: lambda i, name=name: stream.noted.append(name) for name in "ab"}
    before = time.monotonic()
    timing.time_interleaved(both, rounds=2, warm_seconds=warm_seconds)
    assert time.monotonic() - before >= warm_seconds
    warm = stream.noted[: stream.noted.index("record")]
    assert len(warm) <= 2 * (1 + warm_seconds / 0.005)
    assert (len(warm) >= 2) == (warm_seconds > 0)
    assert warm.count("a") == warm.count("b")
    timed = ["record", "a", "record", "record", "b", "record"]
    assert stream.noted[len(warm) :] == timed * 3
