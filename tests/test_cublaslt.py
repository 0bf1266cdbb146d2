"""What cuBLASLt is told, and how candidates are timed in turns: as far as no GPU is needed."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks import peers
from tests.fake_gpu import Card
from tinygpu.codegen.run import cublaslt, timing
from tinygpu.codegen.run.provenance import Clock
from tinygpu.errors import LaunchError, OperationError
from tinygpu.term.operation import Problem, matmul, softmax

LAYOUTS = ("nn", "nt", "tn", "tt")
PROBLEM = Problem.of(matmul("bf16", layout="nt"), m=512, n=512, k=512)


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


def test_an_algorithm_is_a_peer_by_its_number(monkeypatch: pytest.MonkeyPatch, card: Card) -> None:
    """``algorithm_3`` is one, other names are not; one too many is said; the struct is C's."""
    assert callable(cublaslt.algorithm_3)
    for name in ("algorithm_", "algorithm_x", "nothing"):
        with pytest.raises(AttributeError, match=name):
            getattr(cublaslt, name)
    plan = SimpleNamespace(algorithms=(cublaslt.HeuristicResult(),) * 3)
    monkeypatch.setattr(cublaslt, "plan", lambda problem: plan)
    card.torch(SimpleNamespace())
    with pytest.raises(LaunchError, match="no algorithm 3; there are 3"):
        cublaslt.algorithm_3(PROBLEM, (), None, {})
    assert ctypes.sizeof(cublaslt.HeuristicResult) == 96
    with pytest.raises(OperationError, match="give a matmul"):
        cublaslt.view(Problem(replace(matmul(), name="other"), (("m", 1), ("n", 1), ("k", 1))))


def test_the_peers_of_a_problem_are_its_algorithms(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the heuristic gave, in its order; ``on_gpu.py`` asks each module so."""
    plan = SimpleNamespace(algorithms=(cublaslt.HeuristicResult(),) * 3)
    monkeypatch.setattr(cublaslt, "plan", lambda problem: plan)
    found = cublaslt.peers(PROBLEM)
    assert found == ("algorithm_0", "algorithm_1", "algorithm_2")
    assert all(callable(getattr(cublaslt, name)) for name in found)
    assert peers.peers(PROBLEM) == ("torch_matmul",)
    of_sums = Problem(replace(matmul(), name="other"), (("m", 1), ("n", 1), ("k", 1)))
    assert peers.peers(of_sums) == ()


class Library:
    """In the place of cuBLASLt: notes what is called and set, and fails as told."""

    def __init__(self, status: int = 0) -> None:
        self.status, self.called, self.set = status, [], {}

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name == "cublasLtGetStatusString":
            return lambda status: b"not supported"

        def call(*given: Any) -> int:
            self.called.append(name)
            if name.endswith("SetAttribute"):
                _, number, held, size = given
                self.set[name, number.value] = held._obj.value
                assert size.value == ctypes.sizeof(held._obj)
            return self.status

        return call

    called: list[str]
    set: dict[tuple[str, int], int]


@pytest.mark.parametrize(
    ("dtype", "compute"), [("f32", 68), ("bf16", 68), ("f16", 68), ("tf32", 77), ("f64", 70)]
)
def test_cublaslt_is_told_types(dtype: str, compute: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One compute type for each type of inputs; a batch has its count and offsets."""
    library = Library()
    made: dict[str, list[list[Any]]] = {}

    def note(name: str, *given: Any) -> ctypes.c_void_p:
        made.setdefault(name, []).append([argument.value for argument in given])
        return ctypes.c_void_p(1)

    monkeypatch.setattr(cublaslt, "library", lambda: library)
    monkeypatch.setattr(cublaslt, "_made", note)
    problem = Problem.of(matmul(dtype, layout="nt", batched=True), l=2, m=3, n=5, k=7)
    _, layouts, _ = cublaslt.descriptors(problem)
    assert made["cublasLtMatmulDescCreate"][0][0] == compute
    assert [given[1:] for given in made["cublasLtMatrixLayoutCreate"]] == [
        [7, 5, 7], [7, 3, 7], [5, 3, 5],
    ]  # fmt: skip
    assert len(layouts) == 3
    assert library.set["cublasLtMatmulDescSetAttribute", 3] == 1  # its A is our b[n, k]
    assert library.set["cublasLtMatmulDescSetAttribute", 4] == 0
    assert library.set["cublasLtMatrixLayoutSetAttribute", 5] == 2
    assert library.set["cublasLtMatrixLayoutSetAttribute", 6] == 15  # of c, set last


def test_what_cublaslt_has_not_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Types, mixtures and epilogues in words of ours; the rest in its own; no library at all."""
    library = Library()
    monkeypatch.setattr(cublaslt, "library", lambda: library)
    sizes = {"m": 16, "n": 16, "k": 16}
    mixed = matmul("f16")
    a, b = mixed.inputs
    mixed = replace(mixed, inputs=(replace(a, dtype="bf16"), b))
    for operation, told in (
        (matmul("e5m2"), "no products of e5m2 here"),
        (mixed, "no products of bf16 and f16 here"),
        (matmul("e4m3", "e5m2"), "no products of e4m3 into e5m2 here"),
        (matmul(activation="relu"), "it has bias, gelu"),
    ):
        with pytest.raises(LaunchError, match=told):
            cublaslt.descriptors(Problem.of(operation, **sizes))
    with pytest.raises(OperationError, match="softmax: cuBLASLt multiplies matrices"):
        cublaslt.descriptors(Problem.of(softmax("e5m2"), i=16, j=16))
    gelu = Problem.of(matmul("bf16", bias=True, activation="gelu"), **sizes)
    cublaslt.descriptors(gelu)
    assert library.set["cublasLtMatmulDescSetAttribute", 7] == 36
    library.status = 15
    with pytest.raises(LaunchError, match="cublasLtMatmulDescCreate: status 15, not supported"):
        cublaslt.descriptors(PROBLEM)
    monkeypatch.undo()
    monkeypatch.setattr(cublaslt, "_names", lambda: iter(["libnone.so.0"]))
    with pytest.raises(LaunchError, match="install nvidia-cublas"):
        cublaslt.library.__wrapped__()


class Stream:
    """A stream on which each wait takes a while; it notes what is enqueued."""

    def __init__(self, **options: bool) -> None:
        self.noted: list[str] = []
        self.capturing: list[str] | None = None

    def synchronize(self) -> None:
        time.sleep(0.005)

    def begin_capture(self) -> None:
        self.capturing = []

    def end_capture(self) -> SimpleNamespace:
        captured, self.capturing = self.capturing, None
        assert captured is not None
        return SimpleNamespace(launch=lambda stream: stream.noted.extend(captured))

    def enqueue(self, name: str) -> None:
        (self.noted if self.capturing is None else self.capturing).append(name)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None: ...


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch, card: Card) -> Stream:
    """In the place of CuPy's stream; every interval between events is a millisecond."""
    one = Stream()

    def event() -> SimpleNamespace:
        return SimpleNamespace(record=lambda s: s.noted.append("record"), synchronize=lambda: None)

    cuda = SimpleNamespace(
        Stream=lambda **options: one,
        Event=event,
        Device=lambda: one,
        get_elapsed_time=lambda start, stop: 1.0,
    )
    card.library(SimpleNamespace(cuda=cuda))
    monkeypatch.setattr(timing, "clock", Clock)
    card.torch(None)
    return one


@pytest.mark.parametrize("warm_seconds", [0.0, 0.03])
def test_the_load_comes_before_the_rounds(
    warm_seconds: float, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``warm_seconds`` all run for so long before the first is timed; without, none does."""

    def graph(candidate: Callable[[int], None], *rest: Any) -> tuple[Any, int, int]:
        return SimpleNamespace(launch=lambda s: candidate(0)), 4, 2

    monkeypatch.setattr(timing, "captured", graph)
    both = {name: lambda i, name=name: stream.noted.append(name) for name in "ab"}
    before = time.monotonic()
    found = timing.time_interleaved(both, rounds=2, warm_seconds=warm_seconds)
    assert time.monotonic() - before >= warm_seconds
    warm = stream.noted[: stream.noted.index("record")]
    assert len(warm) <= 4 * (1 + warm_seconds / 0.005)
    assert (len(warm) >= 4) == (warm_seconds > 0)
    assert warm.count("a") == warm.count("b")
    timed = np.reshape(stream.noted[len(warm) :], (3, 2, 4))  # rounds, candidates, 2 replays each
    assert (timed[..., [0, 3]] == "record").all()
    assert (timed[..., 1] == timed[..., 2]).all()
    orders = ["".join(one) for one in timed[..., 1]]
    assert orders[1] == orders[0][::-1]  # each of a pair is first as often as the other
    assert [found[name].seconds for name in "ab"] == [1e-3 / 8] * 2  # of 4 launches each
    assert found["a"].rounds == 2


@pytest.mark.parametrize(
    ("burst_seconds", "least", "launches", "times"),
    [(0.02, 1, 60, 1), (1e-6, 1, 1, 1), (1e-6, 3, 3, 1), (0.02, 7, 63, 1), (0.2, 7, 259, 2)],
)
def test_a_graph_fills_a_burst(
    burst_seconds: float, least: int, launches: int, times: int, stream: Stream
) -> None:
    """Whole turns through the sets of inputs, up to 256 or so; longer bursts are more replays."""
    asked: list[int] = []
    graph = timing.captured(asked.append, stream, burst_seconds, least)
    assert (graph[1], graph[2]) == (launches, times)
    assert asked == [0, 0, 1, 2, *range(launches)]


def test_one_that_cannot_be_captured_fails_alone(stream: Stream) -> None:
    """With ``failures`` the others are timed and its reason kept; the capture is ended."""

    def refuses(i: int) -> None:
        if stream.capturing is not None:
            raise RuntimeError("not while a graph is captured\nand more")

    around: list[str] = []

    @contextmanager
    def note(name: str) -> Any:
        around.append(name)
        yield

    candidates = {"bad": refuses, "good": lambda i: stream.enqueue("good")}
    failures: dict[str, str] = {}
    found = timing.time_interleaved(candidates, rounds=2, failures=failures, around=note)
    assert failures == {"bad": "RuntimeError: not while a graph is captured"}
    assert list(found) == around == ["good"]
    assert stream.capturing is None

    def says_nothing(i: int) -> None:
        raise NotImplementedError

    timing.time_interleaved({"mute": says_nothing}, failures=failures)
    assert failures["mute"] == "NotImplementedError: it says no more"
    with pytest.raises(RuntimeError, match="not while"):
        timing.time_interleaved(candidates, rounds=2)
    assert stream.capturing is None
    assert timing.time_interleaved({"bad": refuses}, rounds=2, failures={}, warm_seconds=1) == {}
