from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.fake_gpu import Array, Gpu, Stream
from tinygpu.codegen.emit import integer_values
from tinygpu.codegen.kernel.smem import smem_plan
from tinygpu.codegen.run import launch
from tinygpu.codegen.run.launch import Kernel
from tinygpu.codegen.runtime import function
from tinygpu.codegen.runtime.contract import check
from tinygpu.errors import LaunchError
from tinygpu.machines.elementwise import Elementwise
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.term.expression import value
from tinygpu.term.machine import Value
from tinygpu.term.operation import elementwise, matmul
from tinygpu.term.plan import one_kernel
from tinygpu.term.schedule import Schedule


def kernel_of(point: str = "vectorised", dtype: str = "f32", **changes: Value) -> Kernel:
    values: dict[str, Value] = {**LADDER[point], **changes}
    return Kernel(Schedule.of(Simt(), values).program(Simt(), matmul(dtype)))


def test_the_arguments_in_order(fake: Gpu) -> None:
    """Pointers as u64, then the integers of the signature as u32; grid, block, memory, stream."""
    kernel = kernel_of()
    a, b = Array((200, 64)), Array((64, 136))
    c = kernel(a, b)
    (told,) = fake.launched()
    wanted = integer_values(one_kernel(kernel.program), {"m": 200, "n": 136, "k": 64})
    assert told.ctas == math.prod(v for n, v in wanted.items() if n.startswith("grid_")) == 4
    assert told.threads == one_kernel(kernel.program).threads
    assert told.smem_bytes == smem_plan(one_kernel(kernel.program)).total_bytes > 0
    assert (told.stream, told.attributes) == (5, ())
    assert told.arguments(kernel) == ([], [a.pointer, b.pointer, c.data.ptr], wanted, [])
    assert c.shape == (200, 136)
    assert c.dtype == np.float32


def test_leading_dimensions_come_from_the_strides(fake: Gpu) -> None:
    """A row-major part of a larger array is passed as it is."""
    kernel = kernel_of()
    a = Array((200, 64), strides=(400, 4))
    out = Array((200, 136), strides=(4096, 4))
    assert kernel(a, Array((64, 136)), out=out) is out
    _, _, named, _ = fake.launched()[0].arguments(kernel)
    assert (named["ld_a"], named["ld_b"], named["ld_c"]) == (100, 136, 1024)


def test_a_specialised_kernel_has_pointers_only(fake: Gpu) -> None:
    """Sizes in the code are no arguments, and other sizes or strides are refused."""
    values = {**LADDER["vectorised"], "specialised": 1}
    program = Schedule.of(Simt(), values).program(Simt(), matmul())
    kernel = Kernel(program, sizes={"m": 128, "n": 128, "k": 64})
    a, b = Array((128, 64)), Array((64, 128))
    c = kernel(a, b)
    pointers = [a.pointer, b.pointer, c.data.ptr]
    assert fake.launched()[0].arguments(kernel) == ([], pointers, {}, [])
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

    monkeypatch.setattr("tinygpu.codegen.runtime.function.check", counting)
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
    assert [told.stream for told in fake.launched()] == [77, 78, 79, 5]
    assert fake.of("enter") == [(77,), (78,), (79,)]
    with pytest.raises(LaunchError, match="give a handle"):
        kernel(a, b, stream="default")


def test_a_zeroed_output_is_cleared_before(fake: Gpu) -> None:
    """A dense output by one memset, one with gaps by one of its rows, on the launch's stream."""
    kernel = kernel_of(split_k=4, combine="red")
    a, b = Array((128, 64)), Array((64, 128))
    c = kernel(a, b, stream=9)
    assert fake.of("clear") == [(c.data.ptr, 128 * 128 * 4, 9)]
    kinds = [entry[0] for entry in fake.log]
    assert kinds.index("clear") < kinds.index("launch")
    out = Array((128, 128), strides=(1024, 4))
    kernel(a, b, out=out, stream=9)
    assert fake.of("clear rows") == [(out.pointer, 1024, 512, 128, 9)]
    kernel_of()(a, b)
    assert len(fake.of("clear")) == 1


def test_much_shared_memory_is_asked_for(fake: Gpu) -> None:
    """More than 48 KiB needs the attribute; more than the device has is refused."""
    kernel = kernel_of(tile_k=64)
    assert kernel.contract.smem_bytes > 48 * 1024
    kernel(Array((128, 64)), Array((64, 128)))
    assert fake.of("attribute") == [(8, kernel.contract.smem_bytes)]
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


def saxpb() -> Kernel:
    """y = a*x + b."""
    operation = elementwise(value("a") * value("x") + value("b"), inputs=("x",))
    chosen = {"vector": 4, "unroll": 4, "threads": 256, "ctas": 0}
    return Kernel(Schedule.of(Elementwise(), chosen).program(Elementwise(), operation))


def test_scalars_come_last_as_f32(fake: Gpu) -> None:
    """Each scalar is given by its name, and all of them are; an output may be its input here."""
    kernel = saxpb()
    x = Array((1 << 20,))
    assert kernel(x, a=2.0, b=0.1, out=x) is x
    assert fake.launched()[0].arguments(kernel)[-1] == [np.float32(2.0), np.float32(0.1)]
    for scalars in ({"a": 2.0}, {"a": 2.0, "b": 1.0, "c": 1.0}):
        with pytest.raises(LaunchError, match="it takes a, b; give each as name=number"):
            kernel(x, **scalars)
    wrong: Any = "one"
    with pytest.raises(LaunchError, match=r"scalars a=2\.0, b='one'; give numbers"):
        kernel(x, a=2.0, b=wrong)
    half = Array(((1 << 20) - 4,), at=x.pointer + 16)
    with pytest.raises(LaunchError, match="out: shares memory with x"):
        kernel(Array(((1 << 20) - 4,), at=x.pointer), a=2.0, b=0.1, out=half)


def test_a_refused_launch_is_said(fake: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's refusal is a LaunchError with a way out."""
    kernel = kernel_of("naive")
    a, b, c = (Array((32, 32)) for _ in range(3))
    kernel(a, b, out=c)
    fake.driver.refuses = [701]
    with pytest.raises(LaunchError, match=r"failed \(ERROR_701: its words\); give fewer") as caught:
        kernel(a, b, out=c)
    assert "\n" not in str(caught.value)
    monkeypatch.setattr(function, "reason", lambda code: "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal")
    fake.driver.refuses = [700]
    with pytest.raises(LaunchError, match="context is lost; start a new one"):
        kernel(a, b, out=c)
    assert len(fake.launched()) == 1


def test_without_cupy() -> None:
    """Where there is no GPU a kernel still emits and assembles for an architecture."""
    program = Schedule.of(Simt(), LADDER["naive"]).program(Simt(), matmul())
    assert Kernel(program, arch="sm_90a").cubin.registers > 0
