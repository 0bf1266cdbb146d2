"""Launches of persistent, clustered and early kernels, without a GPU: grids, maps, refusals."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.test_launch import Array, Gpu
from tinygpu.codegen import launch, tensor_map
from tinygpu.codegen.emit import integer_values, signature
from tinygpu.codegen.launch import Kernel
from tinygpu.codegen.tensor_map import active_clusters, early_launch
from tinygpu.errors import LaunchError
from tinygpu.machine import Chosen, Value
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.operation import matmul

SMS, CLUSTERS = 132, 60
HALF = np.float16


class Driver:
    """What the driver API is asked, and how many clusters it says are resident."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.clusters = CLUSTERS

    def __call__(self, name: str, *arguments: Any) -> None:
        given = [a._obj if hasattr(a, "_obj") else a for a in arguments]  # byref's object
        self.asked.append((name, *given))
        if name == "cuOccupancyMaxActiveClusters":
            given[0].value = self.clusters

    def of(self, name: str) -> list[Any]:
        return [entry[1:] for entry in self.asked if entry[0] == name]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    driver = Driver()
    monkeypatch.setattr(tensor_map, "_call", driver)
    return driver


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> Gpu:
    fake = Gpu()
    fake.cuda.Device(0).attributes["MultiProcessorCount"] = SMS
    monkeypatch.setattr(launch, "gpu", lambda: fake)
    launch._stream.cache_clear()
    return fake


def kernel_of(start: str, **changes: Value) -> Kernel:
    """A kernel of f16 inputs, b as b[n,k]."""
    program = Hopper().program(matmul("f16", layout="nt"), Chosen({**STARTS[start], **changes}))
    return Kernel(program, arch="sm_90a")


def half(*shape: int, **how: Any) -> Array:
    return Array(shape, HALF, **how)


@pytest.mark.parametrize(
    ("start", "changes", "m", "n", "ctas"),
    [
        ("plain", {}, 100, 70, 4),
        ("plain", {"cluster_m": 2}, 100, 70, 4),  # a cluster covers both rows of tiles
        ("plain", {"cluster_m": 2}, 130, 70, 8),  # two clusters, one of them mostly outside
        ("persistent", {}, 256, 512, 4),
        ("persistent", {}, 8192, 8192, SMS),
        ("plain", {"persistent": 1, "ctas_per_sm": 2}, 8192, 8192, 2 * SMS),
        ("cluster", {}, 8192, 8192, 2 * CLUSTERS),
        ("cluster", {"cluster_n": 2}, 8192, 8192, 4 * CLUSTERS),
        ("cluster", {}, 512, 256, 4),
    ],
)
def test_the_grid(
    fake: Gpu, start: str, changes: dict[str, Value], m: int, n: int, ctas: int
) -> None:
    """A cluster for each tile, or as many as are resident; the block is all roles."""
    kernel = kernel_of(start, **changes)
    kernel(half(m, 64), half(n, 64))
    ((grid, block, arguments, smem_bytes, _),) = fake.of("launch")
    assert grid == (ctas,)
    assert block == (kernel.program.threads,)
    assert smem_bytes == kernel.smem_bytes
    wanted = integer_values(kernel.program, {"m": m, "n": n, "k": 64})
    numbers = arguments[-len(signature(kernel.program)) :]
    assert numbers == tuple(wanted[name] for name in signature(kernel.program))


def test_maps_come_first_and_know_the_views(fake: Gpu, driver: Driver) -> None:
    """Each map is of its array's address, extents and row distance, in the text's order."""
    kernel = kernel_of("tma store")
    a, b = half(200, 64, strides=(256, 2)), half(520, 64)
    c = kernel(a, b)
    arguments = fake.of("launch")[0][2]
    maps = arguments[:3]
    assert all(m.dtype.itemsize == 128 for m in maps)
    assert arguments[3:6] == (a.pointer, b.pointer, c.pointer)
    asked = driver.of("cuTensorMapEncodeTiled")
    assert [pointer.value for _, _, _, pointer, *_ in asked] == [c.pointer, a.pointer, b.pointer]
    sizes = [list(shape) for _, _, _, _, shape, *_ in asked]
    assert sizes == [[520, 200], [64, 200], [64, 520]]
    assert [steps[0] for _, _, _, _, _, steps, *_ in asked] == [1040, 256, 128]
    assert kernel.ptx.count(".param .align 64 .b8 map_") == 3


def test_clusters_that_do_not_fit_are_refused(fake: Gpu, driver: Driver) -> None:
    driver.clusters = 0
    with pytest.raises(LaunchError, match=r"clusters of 2 CTAs .* do not fit.*lower") as caught:
        kernel_of("cluster")(half(512, 64), half(512, 64))
    assert "\n" not in str(caught.value)
    assert not fake.of("launch")


def test_how_many_clusters_are_resident_is_asked_once(fake: Gpu, driver: Driver) -> None:
    kernel = kernel_of("cluster")
    for _ in range(3):
        kernel(half(512, 64), half(512, 64))
    assert len(driver.of("cuOccupancyMaxActiveClusters")) == 1
    assert active_clusters(7, 4, 384, 1000) == CLUSTERS
    found, function, config = driver.of("cuOccupancyMaxActiveClusters")[-1]
    assert (found.value, function.value) == (CLUSTERS, 7)
    assert list(config.sizes) == [4, 1, 1, 384, 1, 1, 1000]
    (attribute,) = config.attributes[: config.count]
    assert (attribute.id, list(attribute.value[:3])) == (4, [4, 1, 1])


def test_an_early_kernel_is_launched_as_one(fake: Gpu, driver: Driver) -> None:
    """By cuLaunchKernelEx with programmatic stream serialization, on each call's stream."""
    kernel = kernel_of("early")
    a, b, c = half(512, 64), half(512, 64), half(512, 512)
    launching = kernel.bind(a, b, out=c)
    for stream in (11, 12):
        launching(stream)
        config, function, arguments, extra = driver.of("cuLaunchKernelEx")[-1]
        assert config.stream == stream
    assert not fake.of("launch")
    ctas = 2 * 4
    assert list(config.sizes) == [ctas, 1, 1, kernel.program.threads, 1, 1, kernel.smem_bytes]
    (attribute,) = config.attributes[: config.count]
    assert (attribute.id, attribute.value[0], function.value, extra) == (6, 1, 99, None)
    wanted = [a.pointer, b.pointer, c.pointer]
    assert [ctypes.c_uint64.from_address(arguments[3 + i]).value for i in range(3)] == wanted
    names = signature(kernel.program)
    numbers = {n: ctypes.c_uint32.from_address(arguments[6 + i]).value for i, n in enumerate(names)}
    assert numbers == integer_values(kernel.program, {"m": 512, "n": 512, "k": 64})


def test_arguments_of_an_early_launch_live_as_long_as_it(driver: Driver) -> None:
    """They are read at each launch, also after the caller has let go of them."""
    start = early_launch(5, 3, 128, 64, [np.uint64(1 << 40), np.uint32(9), np.float32(0.5)])
    start(1)
    _, _, arguments, _ = driver.of("cuLaunchKernelEx")[0]
    assert ctypes.c_uint64.from_address(arguments[0]).value == 1 << 40
    assert ctypes.c_uint32.from_address(arguments[1]).value == 9
    assert ctypes.c_float.from_address(arguments[2]).value == 0.5


REFUSED: dict[str, tuple[str, Array, Array, Any, str]] = {
    "rows of a": ("plain", half(64, 60), half(64, 60), None, "a moves 8 elements.* ld_a is 60"),
    "rows of b": ("plain", half(64, 64), half(64, 64, strides=(140, 2)), None, "b moves 8.*ld_b"),
    "a's address": ("plain", half(64, 64, at=(1 << 50) + 8), half(64, 64), None,
                    "a: address .* not a multiple of 16 B"),
    "odd n": ("plain", half(64, 64), half(63, 64), None, "c moves 2 elements at once, but .* 63"),
    "n by TMA": ("tma store", half(64, 64), half(68, 64), None, "c moves 8 .* ld_c is 68"),
    "k": ("plain", half(64, 64), half(64, 72), None, "axis k is 64"),
    "shape of c": ("plain", half(64, 64), half(64, 64), half(64, 32), "axis n is 64"),
    "type": ("plain", half(64, 64), Array((64, 64), np.float32), None, "b: dtype f32"),
    "a transposed": ("plain", half(64, 64, strides=(2, 128)), half(64, 64), None, "a: stride"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_a_kernel_cannot_take(fake: Gpu, name: str) -> None:
    """Refused in one line, before anything is encoded or launched."""
    start, a, b, out, message = REFUSED[name]
    kernel = kernel_of(start)
    with pytest.raises(LaunchError, match=message) as caught:
        kernel(a, b, out=out)
    assert "\n" not in str(caught.value)
    assert not fake.of("launch")


@pytest.mark.parametrize(
    ("start", "a", "b"),
    [
        ("plain", half(1, 60), half(64, 60, strides=(128, 2))),  # one row; rows padded to 16 B
        ("swapped", half(63, 64), half(63, 64)),  # stores single elements
        ("plain", half(1, 8), half(2, 8)),
    ],
)
def test_what_it_takes(fake: Gpu, start: str, a: Array, b: Array) -> None:
    kernel_of(start)(a, b)
    assert len(fake.of("launch")) == 1


def test_refusals_of_the_driver_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its own words and the way out."""

    def say(code: int, text: Any) -> None:
        text._obj.value = b"invalid argument"

    library = SimpleNamespace(cuTensorMapEncodeTiled=lambda *a: 1, cuGetErrorString=say)
    monkeypatch.setattr(tensor_map, "_driver", lambda: library)
    with pytest.raises(LaunchError, match="cuTensorMapEncodeTiled: invalid argument; check the"):
        tensor_map.encode(tensor_map.TensorMap("a", "f16", (64, 8), 3), 0, (8, 64), (64, 1))
