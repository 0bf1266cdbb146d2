from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from examples.elementwise import Elementwise
from tinygpu.codegen import launch
from tinygpu.codegen.arguments import check
from tinygpu.codegen.emit import integer_values, signature
from tinygpu.codegen.launch import Kernel
from tinygpu.codegen.smem import smem_plan
from tinygpu.errors import LaunchError
from tinygpu.expression import value
from tinygpu.machine import Value
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.operation import elementwise, matmul
from tinygpu.schedule import Schedule


class DriverError(Exception):
    pass


class Stream:
    def __init__(self, ptr: int, log: list[Any]) -> None:
        self.ptr, self.log = ptr, log

    def __enter__(self) -> None:
        self.log.append(("enter", self.ptr))

    def __exit__(self, *error: object) -> None:
        self.log.append(("exit", self.ptr))


class Array:
    """An array on a device that does not exist."""

    next_pointer = 1 << 40

    def __init__(
        self, shape: tuple[int, ...], dtype: Any = np.float32, *, strides: Any = None, at: int = 0
    ) -> None:
        self.shape, self.dtype, self.strides = shape, np.dtype(dtype), strides
        self.pointer = at or Array.next_pointer
        Array.next_pointer += 1 << 30

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (self.pointer, False),
            "strides": self.strides,
            "version": 3,
        }

    def fill(self, value: int) -> None:
        raise AssertionError("the test's own fill is called")


class Gpu:
    """What ``launch.py`` asks of CuPy, with a log of what it did."""

    def __init__(self, smem_allowed_bytes: int = 232448) -> None:
        self.log: list[Any] = []
        self.device = 0
        runtime = SimpleNamespace(
            getDevice=lambda: self.device,
            memsetAsync=lambda *a: self.log.append(("memset", *a)),
            CUDARuntimeError=DriverError,
        )
        driver = SimpleNamespace(
            CUDADriverError=DriverError,
            funcSetAttribute=lambda f, attribute, n: self.log.append(("attribute", attribute, n)),
        )
        attributes = {"MaxSharedMemoryPerBlockOptin": smem_allowed_bytes}
        gpu = self

        class Device:
            compute_capability = "90"

            def __init__(self, number: int = 0) -> None:
                self.attributes, self.number = attributes, number

            def __enter__(self) -> None:
                self.before, gpu.device = gpu.device, self.number

            def __exit__(self, *error: object) -> None:
                gpu.device = self.before

        class Function:
            ptr = 99

            def __call__(self, *arguments: Any) -> None:
                gpu.log.append(("launch", *arguments))

        class Module:
            def load(self, code: bytes) -> None:
                gpu.log.append(("load", gpu.device))
                if not code.startswith(b"\x7fELF"):
                    raise DriverError("CUDA_ERROR_INVALID_IMAGE")

            def get_function(self, name: str) -> Function:
                return Function()

        self.cuda = SimpleNamespace(
            runtime=runtime,
            driver=driver,
            Device=Device,
            function=SimpleNamespace(Module=Module),
            Stream=SimpleNamespace(
                from_external=lambda foreign: Stream(foreign.__cuda_stream__()[1], self.log)
            ),
            get_current_stream=lambda: Stream(5, self.log),
            UnownedMemory=lambda *a: a,
            MemoryPointer=lambda *a: a,
        )

    def ndarray(self, shape: Any, dtype: Any, *, memptr: Any, strides: Any) -> Any:
        entry = ("fill", shape, dtype, memptr[0][0], strides)
        return SimpleNamespace(fill=lambda value: self.log.append((*entry, value)))

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        self.log.append(("empty", shape))
        return Array(shape, dtype)

    def of(self, kind: str) -> list[Any]:
        return [entry[1:] for entry in self.log if entry[0] == kind]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    fake = Gpu()
    monkeypatch.setattr(launch, "gpu", lambda: fake)
    launch._stream.cache_clear()
    return fake


def kernel_of(point: str = "vectorised", dtype: str = "f32", **changes: Value) -> Kernel:
    values: dict[str, Value] = {**LADDER[point], **changes}
    return Kernel(Schedule.of(Simt(), values).program(Simt(), matmul(dtype)))


def test_the_arguments_in_order(fake: Gpu) -> None:
    """Pointers as u64, then the integers of the signature as u32; grid, block, memory, stream."""
    kernel = kernel_of()
    a, b = Array((200, 64)), Array((64, 136))
    c = kernel(a, b)
    ((grid, block, arguments, smem_bytes, stream),) = fake.of("launch")
    wanted = integer_values(kernel.program, {"m": 200, "n": 136, "k": 64})
    assert grid == (math.prod(v for n, v in wanted.items() if n.startswith("grid_")),) == (4,)
    assert block == (kernel.program.threads,)
    assert smem_bytes == smem_plan(kernel.program).total_bytes > 0
    assert stream.ptr == 5
    assert arguments[:3] == (a.pointer, b.pointer, c.pointer)
    assert {type(x) for x in arguments[:3]} == {np.uint64}
    assert {type(x) for x in arguments[3:]} == {np.uint32}
    assert arguments[3:] == tuple(wanted[name] for name in signature(kernel.program))
    assert c.shape == (200, 136)
    assert c.dtype == np.float32


def test_leading_dimensions_come_from_the_strides(fake: Gpu) -> None:
    """A row-major part of a larger array is passed as it is."""
    kernel = kernel_of()
    a = Array((200, 64), strides=(400, 4))
    out = Array((200, 136), strides=(4096, 4))
    assert kernel(a, Array((64, 136)), out=out) is out
    arguments = fake.of("launch")[0][2]
    named = dict(zip(signature(kernel.program), arguments[3:], strict=True))
    assert (named["ld_a"], named["ld_b"], named["ld_c"]) == (100, 136, 1024)


def test_a_specialised_kernel_has_pointers_only(fake: Gpu) -> None:
    """Sizes in the code are no arguments, and other sizes or strides are refused."""
    values = {**LADDER["vectorised"], "specialised": 1}
    program = Schedule.of(Simt(), values).program(Simt(), matmul())
    kernel = Kernel(program, sizes={"m": 128, "n": 128, "k": 64})
    kernel(Array((128, 64)), Array((64, 128)))
    assert len(fake.of("launch")[0][2]) == 3
    with pytest.raises(LaunchError, match="size m: 256, but the kernel was specialised for 128"):
        kernel(Array((256, 64)), Array((64, 128)))
    with pytest.raises(LaunchError, match="it was specialised"):
        kernel(Array((128, 64), strides=(512, 4)), Array((64, 128)))


def test_checks_are_made_once_a_form(fake: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of a known form are not checked again; another alignment, shape or stride is."""
    calls = 0

    def counting(*arguments: Any) -> Any:
        nonlocal calls
        calls += 1
        return check(*arguments)

    monkeypatch.setattr("tinygpu.codegen.launch.check", counting)
    kernel = kernel_of()
    for _ in range(3):
        kernel(Array((128, 64)), Array((64, 128)))
    assert (calls, len(fake.of("load"))) == (1, 1)
    kernel(Array((128, 64), strides=(512, 4)), Array((64, 128)))
    kernel(Array((64, 64)), Array((64, 128)))
    assert (calls, len(fake.of("load"))) == (3, 1)
    with pytest.raises(LaunchError, match="not a multiple of 16 B"):
        kernel(Array((128, 64), at=(1 << 50) + 4), Array((64, 128)))


def test_streams(fake: Gpu) -> None:
    """A handle, an object with one, or the current stream; an output is allocated for it."""
    kernel = kernel_of("naive")
    a, b = Array((32, 32)), Array((32, 32))
    kernel(a, b, stream=77)
    kernel(a, b, stream=Stream(78, []))
    kernel(a, b, stream=SimpleNamespace(cuda_stream=79))
    kernel(a, b)
    assert [entry[-1].ptr for entry in fake.of("launch")] == [77, 78, 79, 5]
    assert fake.of("enter") == [(77,), (78,), (79,)]
    with pytest.raises(LaunchError, match="give a handle"):
        kernel(a, b, stream="default")


def test_a_zeroed_output_is_cleared_before(fake: Gpu) -> None:
    """A dense output by one memset, one with gaps by a fill, on the launch's stream."""
    kernel = kernel_of(split_k=4, combine="red")
    a, b = Array((128, 64)), Array((64, 128))
    c = kernel(a, b, stream=9)
    assert fake.of("memset") == [(c.pointer, 0, 128 * 128 * 4, 9)]
    kinds = [entry[0] for entry in fake.log]
    assert kinds.index("memset") < kinds.index("launch")
    out = Array((128, 128), strides=(1024, 4))
    kernel(a, b, out=out, stream=9)
    ((shape, dtype, pointer, strides, value),) = fake.of("fill")
    assert (shape, dtype.itemsize, pointer, strides, value) == (
        (128, 128), 4, out.pointer, (1024, 4), 0,
    )  # fmt: skip
    kernel_of()(a, b)
    assert len(fake.of("memset")) == 1


def test_much_shared_memory_is_asked_for(fake: Gpu) -> None:
    """More than 48 KiB needs the attribute; more than the device has is refused."""
    kernel = kernel_of(tile_k=64)
    assert kernel.smem_bytes > 48 * 1024
    kernel(Array((128, 64)), Array((64, 128)))
    assert fake.of("attribute") == [(8, kernel.smem_bytes)]
    with pytest.raises(LaunchError, match=r"needs 300000 B .* allows 232448 B"):
        launch.load(b"\x7fELF", "k", smem_bytes=300_000)
    with pytest.raises(LaunchError, match="assemble it for sm_90a"):
        launch.load(b"no ELF", "k")


def test_an_output_apart_from_the_inputs(fake: Gpu) -> None:
    """An output that overlaps an input is refused, neighbours are not."""
    kernel = kernel_of("naive")
    a, b = Array((32, 32)), Array((32, 32))
    beside = Array((32, 32), at=a.pointer + 32 * 32 * 4)
    kernel(a, b, out=beside)
    over = Array((32, 32), at=a.pointer + 32 * 32 * 4 - 16)
    for out in (a, b, over):
        with pytest.raises(LaunchError, match="out: shares memory with"):
            kernel(a, b, out=out)
    assert len(fake.of("launch")) == 1


def test_wrong_arguments(fake: Gpu) -> None:
    """Each is refused in one line, and nothing is launched."""
    kernel = kernel_of()
    a, b = Array((128, 64)), Array((64, 128))
    for inputs, options, message in (
        ((a,), {}, "got 1 arrays, takes 2: a, b"),
        ((a, b, b), {}, "got 3 arrays, takes 2: a, b"),
        ((Array((64,)), b), {}, "does not follow"),
        ((a,), {"out": a}, "got 1 arrays, takes 2: a, b"),
        ((a, b), {"alpha": 1.0}, "scalars alpha; it takes none"),
        ((a, np.zeros((64, 128))), {}, "b: numpy.ndarray is not on a GPU"),
        ((a, Array((32, 128))), {}, "axis k is 64"),
        ((a, Array((64, 128), np.float64)), {}, "b: dtype f64"),
    ):
        with pytest.raises(LaunchError, match=message) as caught:
            kernel(*inputs, **options)
        assert "\n" not in str(caught.value)
    assert not fake.of("launch")


def test_bf16_outputs_are_as_the_inputs(fake: Gpu) -> None:
    """bf16 kept as bits gives bits."""
    kernel = kernel_of("shared", "bf16")
    bits = kernel(Array((32, 32), np.uint16), Array((32, 32), np.uint16))
    assert bits.dtype == np.uint16


def test_scalars_come_last_as_f32(fake: Gpu) -> None:
    """Each scalar is given by its name, and all of them are; an output may be its input here."""
    operation = elementwise(value("a") * value("x") + value("b"), inputs=("x",))
    chosen = {"vector": 4, "unroll": 4, "threads": 256, "ctas": 0}
    kernel = Kernel(Schedule.of(Elementwise(), chosen).program(Elementwise(), operation))
    x = Array((1 << 20,))
    assert kernel(x, a=2.0, b=0.1, out=x) is x
    arguments = fake.of("launch")[0][2]
    assert arguments[-2:] == (np.float32(2.0), np.float32(0.1))
    assert {type(n) for n in arguments[-2:]} == {np.float32}
    for scalars in ({"a": 2.0}, {"a": 2.0, "b": 1.0, "c": 1.0}):
        with pytest.raises(LaunchError, match="it takes a, b; give each as name=number"):
            kernel(x, **scalars)
    half = Array(((1 << 20) - 4,), at=x.pointer + 16)
    with pytest.raises(LaunchError, match="out: shares memory with x"):
        kernel(Array(((1 << 20) - 4,), at=x.pointer), a=2.0, b=0.1, out=half)


def test_a_refused_launch_is_said(fake: Gpu) -> None:
    """The driver's refusal is a LaunchError with a way out."""

    def refuse(*arguments: object) -> None:
        raise DriverError("CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access")

    kernel = kernel_of("naive")
    a, b, c = (Array((32, 32)) for _ in range(3))
    kernel(a, b, out=c)
    kernel._functions[0].__class__.__call__ = refuse
    with pytest.raises(LaunchError, match="context is lost; start a new one"):
        kernel(a, b, out=c)


def test_without_cupy() -> None:
    """Where there is no GPU a kernel still emits and assembles for an architecture."""
    program = Schedule.of(Simt(), LADDER["naive"]).program(Simt(), matmul())
    assert Kernel(program, arch="sm_90a").cubin.registers > 0
