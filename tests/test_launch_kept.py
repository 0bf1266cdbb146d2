"""Launches that a kernel keeps: a known one is looked up, and is what a new one would be."""

from __future__ import annotations

import ctypes
import gc
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fake_gpu import Array, Card, CupyArray, Gpu, Launched, Tensor
from tests.test_launch import kernel_of, saxpb
from tinygpu.codegen.run.launch import Kernel
from tinygpu.codegen.runtime import driver, function
from tinygpu.codegen.runtime.driver import clearing, starting
from tinygpu.codegen.runtime.views import reader, view
from tinygpu.errors import LaunchError
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.term.machine import Chosen
from tinygpu.term.operation import matmul

A, B, C = (1 << 40, 1 << 41, 1 << 42)


@pytest.fixture(scope="module")
def hopper() -> Kernel:
    program = Hopper().program(matmul("f16", layout="nt"), Chosen(STARTS["tma store"]))
    return Kernel(program, arch="sm_90a")


def squares(size: int = 64, **how: Any) -> tuple[CupyArray, CupyArray, CupyArray]:
    a, b, c = (CupyArray((size, size), at=at, **how) for at in (A, B, C))
    return a, b, c


def test_a_known_call_looks_its_launch_up(
    fake: Gpu, hopper: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same arrays, or others with their addresses and forms: nothing is read, packed, asked."""
    split = kernel_of(split_k=4, combine="red")
    for kernel, dtype in ((split, np.float32), (hopper, np.float16)):
        a, b, c = squares(dtype=dtype)
        kernel(a, b, out=c)
        before = len(fake.log)
        with monkeypatch.context() as patched:
            for name in ("view", "check", "check_apart", "encode", "starting", "clearing"):
                patched.setattr(function, name, None)
            kernel(a, b, out=c)
            a, b, c = squares(dtype=dtype)
            kernel(a, b, out=c)
            kernel.prepare(a, b, out=c)()
        done = [entry[0] for entry in fake.log[before:]]
        assert done == ([*["clear"], "launch"] * 3 if kernel is split else ["launch"] * 3)
        first, second, third = (told.arguments(kernel) for told in fake.launched()[-3:])
        assert first == second == third
        assert first[1] == [A, B, C]


def test_what_differs_is_another_launch(fake: Gpu) -> None:
    """An address, a shape, a stride, a type or a device: each is seen, and checked if new."""
    kernel = kernel_of("naive")
    a, b, c = squares()
    kernel(a, b, out=c)
    for changed in (
        CupyArray((64, 64), at=A + 8192),
        CupyArray((32, 64), at=A),
        CupyArray((64, 64), at=A, strides=(512, 4)),
    ):
        out = CupyArray((changed.shape[0], 64), at=C)
        kernel(changed, b, out=out)
        fresh = kernel_of("naive")
        fresh(changed, b, out=out)
        kept, new = fake.launched()[-2:]
        assert (kept.ctas, kept.arguments(kernel)) == (new.ctas, new.arguments(fresh))
    launches = len(fake.launched())
    for wrong, message in (
        (CupyArray((64, 64), np.float64, at=A), "a: dtype f64"),
        (CupyArray((64, 64), at=A, device=1), r"arrays on devices \[0, 1\]"),
        (CupyArray((64, 64), at=C - 16), "out: shares memory with a"),
        (CupyArray((64, 32), at=A), "axis k"),
    ):
        for _ in range(2):
            with pytest.raises(LaunchError, match=message):
                kernel(wrong, b, out=c)
    with pytest.raises(LaunchError, match="got 1 arrays, takes 2"):
        kernel(a, out=c)
    assert len(fake.launched()) == launches


def test_scalars_count_by_their_bits(fake: Gpu) -> None:
    """0.0 is not -0.0; an object is read at each call; order and kind of number do not matter."""

    class Number:
        number = 1.0

        def __float__(self) -> float:
            return self.number

    kernel, changing, x = saxpb(), Number(), CupyArray((64,), at=A)
    given: Any = changing
    for scalars in ({"a": 0.0, "b": 1}, {"a": -0.0, "b": 1.0}, {"b": given, "a": 1e30}):
        kernel(x, out=x, **scalars)
    changing.number = 7.0
    kernel(x, out=x, b=given, a=1e30)
    found = [told.arguments(kernel)[3] for told in fake.launched()]
    wanted = np.array([[0.0, 1.0], [-0.0, 1.0], [1e30, 1.0], [1e30, 7.0]], np.float32)
    assert np.array(found).tobytes() == wanted.tobytes()


def test_a_full_table_starts_again(fake: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither launches nor plans are kept without bound, and each call is right."""
    monkeypatch.setattr(function, "_MOST_KEPT", 4)
    kernel = kernel_of("naive")
    _, b, _ = squares()
    for m in (*range(1, 12), *range(1, 12)):
        a, c = CupyArray((m, 64), at=A), CupyArray((m, 64), at=C)
        kernel(a, b, out=c)
        assert fake.launched()[-1].arguments(kernel)[2]["m"] == m
        assert 0 < len(kernel._starts) <= 4
        assert 0 < len(kernel._plans) <= 4


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(st.lists(st.tuples(*[st.integers(0, 1)] * 4, st.integers(0, 2)), min_size=1, max_size=12))
def test_kept_launches_are_new_ones(
    fake: Gpu, hopper: Kernel, calls: list[tuple[int, ...]]
) -> None:
    """Any sequence of calls tells the driver what it would be told without a table."""
    told: list[list[Any]] = []
    for keeps in (True, False):
        hopper._starts.clear()
        hopper._plans.clear()
        fake.log.clear()
        for place, rows, gap, library, stream in calls:
            m = (64, 128)[rows]
            strides = (128 + 128 * gap, 2)
            kind: Any = (CupyArray, Array)[library]
            a = kind((m, 64), np.float16, at=A + (place << 20), strides=strides)
            b = kind((64, 64), np.float16, at=B, strides=(128, 2))
            c = kind((m, 64), np.float16, at=C, strides=(128, 2))
            hopper(a, b, out=c, stream=stream or None)
            if not keeps:
                hopper._starts.clear()
                hopper._plans.clear()
        told.append([_shown(t, hopper) for t in fake.launched()])
    assert told[0] == told[1]
    assert len(told[0]) == len(calls)


def _shown(told: Launched, kernel: Kernel) -> tuple[Any, ...]:
    return told.ctas, told.stream, told.arguments(kernel)


def test_arrays_that_name_no_device_go_to_the_current_one(fake: Gpu) -> None:
    """Of an unknown library: their launch is not kept, for it depends on more than they say."""
    kernel = kernel_of("naive")
    a, b, c = (Array((32, 32)) for _ in range(3))
    for device in (0, 1, 0):
        fake.device = device
        kernel(a, b, out=c)
    assert fake.of("load") == [(0,), (1,)]
    assert [told.stream for told in fake.launched()] == [5, 105, 5]
    assert not kernel._starts


def test_a_launch_runs_on_its_arrays_device(fake: Gpu) -> None:
    """Whichever is current; it is current again afterwards."""
    kernel = kernel_of("naive")
    launching = kernel.prepare(*squares(device=1)[:2], out=squares(device=1)[2])
    assert (fake.of("load"), fake.device) == ([(1,)], 0)
    launching()
    assert fake.of("set device") == [(1,)]
    assert (fake.launched()[-1].stream, fake.device) == (105, 0)
    fake.device = 1
    launching(7)
    assert len(fake.of("set device")) == 1


def test_a_thread_without_a_context_gets_one(fake: Gpu) -> None:
    """The driver refuses its first launch; the second follows once the device is set."""
    launching = kernel_of(split_k=4, combine="red").prepare(*squares()[:2], out=squares()[2])
    fake.driver.refuses = [driver.NO_CONTEXT]
    launching()
    kinds = [entry[0] for entry in fake.log if entry[0] != "load"]
    assert kinds == ["clear", "refused", "set device", "clear", "launch"]
    fake.driver.refuses = [driver.NO_CONTEXT, driver.NO_CONTEXT]
    with pytest.raises(LaunchError, match="launch failed"):
        launching()


def test_a_prepared_launch_becomes_a_graph(fake: Gpu) -> None:
    """Made at the first start that is not captured; a captured one enqueues the same itself."""
    a, b, c = squares()
    for kernel, kinds in ((kernel_of(split_k=4, combine="red"), ["clear", "launch"]),
                          (kernel_of("naive"), ["launch"])):  # fmt: skip
        launching = kernel.prepare(a, b, out=c)
        fake.driver.replays, told = 0, []
        for stream, captured in ((7, True), (7, False), (8, False), (7, True), (5, False)):
            fake.driver.capturing = {7} if captured else set()
            fake.log.clear()
            launching(stream)
            assert [entry[0] for entry in fake.log] == kinds
            assert fake.launched()[0].stream == stream
            told.append(fake.launched()[0].arguments(kernel))
        assert fake.driver.replays == 3
        assert all(one == told[0] for one in told)
    kernel, fake.driver.replays = kernel_of("naive"), 0
    replays = []
    for _ in range(7):
        kernel(a, b, out=c)
        replays.append(fake.driver.replays)
    assert replays == [0, 0, 0, 0, 1, 2, 3]
    fake.driver.cuGraphInstantiateWithFlags = lambda made, graph, flags: 1
    fake.driver.replays = 0
    fake.driver.cuStreamCreate = lambda side, flags: 1
    launching = kernel_of("naive").prepare(a, b, out=c)
    launching(3)
    assert (fake.launched()[-1].stream, fake.driver.replays) == (3, 0)


def test_the_current_stream_is_asked_at_each_start(fake: Gpu, card: Card) -> None:
    """CuPy's for its arrays, PyTorch's where a tensor is among them, also for the same memory."""
    current = {0: 70, 1: 71}
    torch = SimpleNamespace(_C=SimpleNamespace(_cuda_getCurrentRawStream=current.__getitem__))
    card.torch(torch)
    kernel = kernel_of("naive")
    a, b, c = squares()
    x, y, z = (Tensor((64, 64), at=at) for at in (A, B, C))
    for _ in range(2):
        kernel(a, b, out=c)
        kernel(x, y, out=z)
        kernel(a, b, out=z)
        kernel.prepare(x, y, out=z)()
        kernel(x, y, out=z, stream=3)
        fake.current, current[0] = 6, 80
    assert [told.stream for told in fake.launched()] == [5, 70, 70, 70, 3, 6, 80, 80, 80, 3]
    assert len({str(told.arguments(kernel)) for told in fake.launched()}) == 1
    kernel(*(Tensor((64, 64), device=1) for _ in range(2)), out=Tensor((64, 64), device=1))
    assert fake.launched()[-1].stream == 71


def test_a_prepared_launch_keeps_its_arrays(fake: Gpu) -> None:
    """And its kernel; what a kernel keeps of a call does not."""
    kernel = kernel_of("naive")
    a, b, c = squares()
    launching = kernel.prepare(a, b, out=c)
    kernel(b, a, out=c)
    seen = [weakref.ref(thing) for thing in (a, b, c, kernel)]
    del a, b, c, kernel
    gc.collect()
    assert all(ref() is not None for ref in seen)
    launching()
    held = launching.kernel
    assert isinstance(held, Kernel)
    assert fake.launched()[-1].arguments(held)[1] == [A, B, C]
    del launching
    gc.collect()
    assert [ref() is not None for ref in seen] == [False, False, False, True]
    assert len(held._starts) == 2


def test_identities_are_what_views_are_read_from() -> None:
    """CuPy's arrays and PyTorch's tensors have one, and a view of the same numbers."""
    array = CupyArray((4, 6), np.float16, at=A, strides=(32, 2), device=3)
    assert reader(type(array))(array) == (A, np.dtype(np.float16), (4, 6), (32, 2), 3)
    seen = view("a", array)
    assert (seen.pointer, seen.dtype, seen.shape, seen.strides) == (A, "f16", (4, 6), (16, 1))
    assert seen.device == 3
    tensor = Tensor((4, 6), at=B, strides=(8, 1), device=2)
    seen = view("b", tensor)
    assert (seen.pointer, seen.dtype, seen.shape, seen.strides) == (B, "f32", (4, 6), (8, 1))
    assert seen.device == 2
    for other in (Array((4,)), np.zeros(3), None):
        assert reader(type(other))(other) is None


def test_each_stream_has_a_config_of_its_own(fake: Gpu) -> None:
    """What one thread's launch tells the driver is not written by another's."""
    seen: list[Any] = []

    def launched(config: Any, *rest: Any) -> int:
        seen.append((config._obj, *rest))
        return 0

    fake.driver.cuLaunchKernelEx = launched
    start = starting(99, [b"m" * 128, b"p" * 8], ctas=3, threads=64, smem_bytes=7, early=True)
    for stream in (1, 2, 1):
        assert start(stream) == 0
    assert [config.stream for config, *_ in seen] == [1, 2, 1]
    assert seen[0][0] is seen[2][0]
    assert seen[0][0] is not seen[1][0]
    places = [ctypes.c_uint64.from_address(ctypes.addressof(seen[0][2]) + 8 * i) for i in (0, 1)]
    assert places[0].value % 64 == 0
    assert [ctypes.string_at(p.value, n) for p, n in zip(places, (128, 8), strict=True)] == [
        b"m" * 128, b"p" * 8,
    ]  # fmt: skip


@given(st.data())
def test_clearing_clears_the_array_and_nothing_else(data: Any) -> None:
    """Of 1 to 3 dimensions, in any order, with gaps or without: even rows in one call."""
    with pytest.MonkeyPatch.context() as patched:
        fake = Card(patched).driven()
        extents = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
        reach, strides = 1, list[int]()
        for extent in extents:
            gap = data.draw(st.sampled_from((0, 0, 3)), label="gap") if strides else 0
            strides.append(reach + gap)
            reach = strides[-1] * extent
        order = data.draw(st.permutations(range(len(extents))))
        shape, steps = [extents[i] for i in order], [strides[i] for i in order]
        memory = np.full(reach + 8, 7, np.uint16)
        array = np.lib.stride_tricks.as_strided(memory[4:], shape, [2 * s for s in steps])

        def rows(pointer: Any, pitch: Any, zero: Any, size: Any, count: Any, stream: Any) -> int:
            assert stream.value == 9
            for i in range(count.value):
                ctypes.memset(pointer.value + i * pitch.value, zero.value, size.value)
            calls.append(1)
            return 0

        calls: list[int] = []
        fake.driver.cuMemsetD2D8Async = rows
        fake.driver.cuMemsetD8Async = lambda pointer, zero, size, stream: rows(
            pointer, ctypes.c_size_t(0), zero, size, ctypes.c_size_t(1), stream
        )
        wanted = memory.copy()
        np.lib.stride_tricks.as_strided(wanted[4:], shape, [2 * s for s in steps])[...] = 0
        assert clearing(array.ctypes.data, 2, shape, steps)(9) == 0
        assert (memory == wanted).all()
        even = len(extents) < 3 or strides[2] == strides[1] * extents[1]
        assert len(calls) <= (1 if even else extents[2])
