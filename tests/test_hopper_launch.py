"""Launches of persistent, clustered and early kernels, without a GPU: grids, maps, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.fake_gpu import Array, Gpu
from tests.hopper_terms import term
from tinygpu.codegen.emit import emit, integer_values
from tinygpu.codegen.emulator import Module
from tinygpu.codegen.run.interpretation import execute, unwritten_outputs
from tinygpu.codegen.run.launch import Kernel
from tinygpu.codegen.runtime.driver import active_clusters
from tinygpu.codegen.runtime.maps import TensorMap, encode
from tinygpu.errors import LaunchError
from tinygpu.isa.memory import DTYPES
from tinygpu.machines.hopper import STARTS, Hopper
from tinygpu.term.machine import Chosen, Value
from tinygpu.term.operation import matmul
from tinygpu.term.plan import one_kernel

SMS, CLUSTERS = 132, 60
HALF = np.float16


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
    (told,) = fake.launched()
    assert (told.ctas, told.threads) == (ctas, one_kernel(kernel.program).threads)
    assert told.smem_bytes == kernel.contract.smem_bytes
    assert told.arguments(kernel)[2] == integer_values(
        one_kernel(kernel.program), {"m": m, "n": n, "k": 64}
    )


def test_maps_come_first_and_know_the_views(fake: Gpu) -> None:
    """Each map is of its array's address, extents and row distance, in the text's order."""
    kernel = kernel_of("tma store")
    a, b = half(200, 64, strides=(256, 2)), half(520, 64)
    c = kernel(a, b)
    maps, pointers, _, _ = fake.launched()[0].arguments(kernel)
    mapped = [c.data.ptr, a.pointer, a.pointer, b.pointer, b.pointer]
    assert maps == [pointer.to_bytes(8, "little") * 16 for pointer in mapped]
    assert pointers == [a.pointer, b.pointer, c.data.ptr]
    asked = fake.of("encode")
    assert [pointer.value for _, _, pointer, *_ in asked] == mapped
    sizes = [list(shape) for _, _, _, shape, *_ in asked]
    assert sizes == [[520, 200], [64, 200], [64, 200], [64, 520], [64, 520]]
    assert [steps[0] for _, _, _, _, steps, *_ in asked] == [1040, 256, 256, 128, 128]
    assert kernel.ptx.count(".param .align 64 .b8 map_") == 5


def test_clusters_that_do_not_fit_are_refused(fake: Gpu) -> None:
    fake.driver.clusters = 0
    with pytest.raises(LaunchError, match=r"clusters of 2 CTAs .* do not fit.*lower") as caught:
        kernel_of("cluster")(half(512, 64), half(512, 64))
    assert "\n" not in str(caught.value)
    assert not fake.of("launch")


def test_how_many_clusters_are_resident_is_asked_once(fake: Gpu) -> None:
    kernel = kernel_of("cluster")
    for _ in range(3):
        kernel(half(512, 64), half(512, 64))
    assert len(fake.of("clusters")) == 1
    assert active_clusters(7, 4, 384, 1000) == CLUSTERS
    function, config = fake.of("clusters")[-1]
    assert function == 7
    assert list(config.sizes) == [4, 1, 1, 384, 1, 1, 1000]
    (attribute,) = config.attributes[: config.count]
    assert (attribute.id, list(attribute.value[:3])) == (4, [4, 1, 1])


def test_an_early_kernel_is_launched_as_one(fake: Gpu) -> None:
    """With programmatic stream serialization, on each call's stream; other kernels without."""
    kernel = kernel_of("early")
    a, b, c = half(512, 64), half(512, 64), half(512, 512)
    launching = kernel.prepare(a, b, out=c)
    for stream in (11, 12, 11):
        launching(stream)
    told = fake.launched()
    assert [t.stream for t in told] == [11, 12, 11]
    wanted = integer_values(one_kernel(kernel.program), {"m": 512, "n": 512, "k": 64})
    for one in told:
        assert (one.ctas, one.threads) == (2 * 4, one_kernel(kernel.program).threads)
        assert (one.smem_bytes, one.attributes) == (kernel.contract.smem_bytes, ((6, 1),))
        _, pointers, integers, _ = one.arguments(kernel)
        assert (pointers, integers) == ([a.pointer, b.pointer, c.pointer], wanted)
    kernel_of("plain")(a, b, out=c)
    assert fake.launched()[-1].attributes == ()


REFUSED: dict[str, tuple[str, Array, Array, Any, str]] = {
    "rows of a": ("plain", half(64, 60), half(64, 60), None, "a moves 8 elements.* ld_a is 60"),
    "rows of b": ("plain", half(64, 64), half(64, 64, strides=(140, 2)), None, "b moves 8.*ld_b"),
    "a's address": ("plain", half(64, 64, at=(1 << 50) + 8), half(64, 64), None,
                    "a: address .* not a multiple of 16 B"),
    "odd n": ("plain", half(64, 64), half(63, 64), None, "c moves 2 elements at once, but .* 63"),
    "n by TMA": ("tma store", half(64, 64), half(68, 64), None, "c moves 8 .* ld_c is 68"),
    "one row by TMA": ("tma store", half(1, 64), half(68, 64), None, "c moves 8 .* n is 68"),
    "rows apart by TMA": ("tma store", half(64, 64), half(68, 64), half(64, 68, strides=(144, 2)),
                          "c moves 8 .* n is 68"),
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


def test_refusals_of_the_driver_are_said(fake: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its own words and the way out."""
    fake.driver.cuTensorMapEncodeTiled = lambda *a: 1
    with pytest.raises(LaunchError, match="Tiled: ERROR_1: its words; check the"):
        encode(TensorMap("a", "f16", (64, 8), 3), 0, (8, 64), (64, 1))


@pytest.mark.parametrize(("n", "said"), [(66, "a line ends 4 B after a multiple of 16"), (72, "")])
def test_a_store_past_the_end_of_a_line_is_found(n: int, said: str) -> None:
    """TMA stores whole pieces of 16 B: the emulator finds it in code that no law let through."""
    program, sizes = term("tma store"), {"m": 1, "n": n, "k": 64}
    operation, shapes = program.operation, program.operation.shapes(sizes)
    inputs = {o.name: DTYPES[o.dtype].round(np.ones(shapes[o.name])) for o in operation.inputs}
    module = Module.parse(emit(program, "sm_90a", unchecked=True))
    report = execute(program, sizes, inputs | unwritten_outputs(program, shapes), module)
    assert [f.kind for f in report.findings] == ["address"] * bool(said)
    assert all(said in str(f) for f in report.findings)
