"""A GPU that does not exist: arrays on it, what ``launch.py`` asks of CuPy, and a driver.

All that is done to it stands in one log, in order.
"""

from __future__ import annotations

import ctypes
import math
import struct
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, cast

import numpy as np
import pytest

from tinygpu.codegen.emit import emit, signature
from tinygpu.codegen.kernel.tensor_map import tensor_maps
from tinygpu.codegen.run import doctor, launch, measure, provenance, timing, validation
from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.run.build import Builders, Built
from tinygpu.codegen.run.launch import Kernel
from tinygpu.codegen.runtime import driver, function
from tinygpu.deadline import NEVER, Deadline
from tinygpu.errors import LaunchError
from tinygpu.term.plan import one_kernel

if TYPE_CHECKING:
    from tinygpu.codegen.run.assemble import Cubin
    from tinygpu.term.program import Program

ERRORS = {
    400: b"CUDA_ERROR_INVALID_HANDLE", 700: b"CUDA_ERROR_ILLEGAL_ADDRESS",
    719: b"CUDA_ERROR_LAUNCH_FAILED", 900: b"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
}  # fmt: skip
SIDE = 4242  # the handle of the stream on which graphs are captured


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
    """An array of a library that is not known; it does not say which device it is on."""

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


class CupyArray:
    """It has the attributes of CuPy's arrays, and no interface."""

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: Any = np.float32,
        *,
        strides: Any = None,
        at: int = 0,
        device: int = 0,
    ) -> None:
        self.shape, self.dtype = shape, np.dtype(dtype)
        dense = (math.prod(shape[i + 1 :]) * self.dtype.itemsize for i in range(len(shape)))
        self.strides = strides or tuple(dense)
        self.data = SimpleNamespace(ptr=at or Array(shape).pointer, device_id=device)


CupyArray.__module__, CupyArray.__name__ = "cupy", "ndarray"


@dataclass(frozen=True)
class Place:
    """A device as PyTorch says it."""

    type: str = "cuda"
    index: int = 0


class Tensor:
    """It has the attributes and methods of PyTorch's tensors; strides count elements."""

    def __init__(
        self, shape: tuple[int, ...], *, strides: Any = None, at: int = 0, device: int = 0
    ) -> None:
        self.shape, self.dtype, self.device = shape, "torch.float32", Place(index=device)
        self._pointer = at or Array(shape).pointer
        self._strides = strides or (*shape[1:], 1)

    def data_ptr(self) -> int:
        return self._pointer

    def stride(self) -> tuple[int, ...]:
        return self._strides


Tensor.__module__ = "torch"


@dataclass(frozen=True)
class Launched:
    """What the driver was told to start; ``held`` begins with the arguments' addresses."""

    ctas: int
    threads: int
    smem_bytes: int
    stream: int
    attributes: tuple[tuple[int, int], ...]
    held: Any

    def arguments(
        self, kernel: Kernel | Program
    ) -> tuple[list[bytes], list[int], dict[str, int], list[Any]]:
        """Return maps, pointers, integers by their name, and scalars, as the kernel reads them."""
        program = one_kernel(kernel.program) if isinstance(kernel, Kernel) else kernel
        operation, specialised = program.operation, program.specialised
        count = len(tensor_maps(program))
        names = () if specialised else signature(program)
        maps = [ctypes.string_at(a, 128) for a in self._addresses(0, count)]
        first = len(maps)
        pointers = self._addresses(first, len(operation.operands))
        integers = self._addresses(first := first + len(pointers), len(names))
        scalars = self._addresses(first + len(names), len(operation.scalars))
        return (
            maps,
            [ctypes.c_uint64.from_address(a).value for a in pointers],
            {
                n: ctypes.c_uint32.from_address(a).value
                for n, a in zip(names, integers, strict=True)
            },
            [np.float32(ctypes.c_float.from_address(a).value) for a in scalars],
        )

    def _addresses(self, first: int, count: int) -> list[int]:
        start, size = ctypes.addressof(self.held), ctypes.sizeof(self.held)
        found = struct.unpack_from(f"{count}Q", self.held, 8 * first)
        assert all(start <= address <= start + size - 4 for address in found)
        return list(found)


class Driver:
    """The functions of ``libcuda`` that are called; a launch uses up an error of ``refuses``."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log
        self.clusters = 60
        self.refuses: list[int] = []
        self.replays = 0
        self.cuLaunchKernelEx: Any = self._launch
        self.cuTensorMapEncodeTiled: Any = self._encode
        self.cuOccupancyMaxActiveClusters: Any = self._clusters
        self.captured: list[Any] | None = None
        self.cuStreamCreate: Any = self._new_stream
        self.cuStreamDestroy_v2: Any = lambda side: 0
        self.cuStreamBeginCapture_v2: Any = self._begin
        self.cuStreamEndCapture: Any = lambda side, graph: 0
        self.cuStreamIsCapturing: Any = self._is_capturing
        self.cuGraphInstantiateWithFlags: Any = self._instantiate
        self.cuGraphDestroy: Any = lambda graph: 0
        self.cuGraphExecDestroy: Any = lambda made: 0
        self.cuGraphLaunch: Any = self._launch_graph
        self.graphs: list[list[Any]] = []
        self.capturing: set[int] = set()
        self.cuMemsetD8Async: Any = self._clear
        self.cuMemsetD2D8Async: Any = self._clear_rows
        self.cuGetErrorName = lambda code, text: setattr(
            text._obj, "value", ERRORS.get(code, b"ERROR_%d" % code)
        )
        self.cuGetErrorString = lambda code, text: setattr(text._obj, "value", b"its words")

    def _new_stream(self, side: Any, flags: int) -> int:
        side._obj.value = SIDE
        return 0

    def _begin(self, side: Any, mode: int) -> int:
        self.captured, self.outside = [], self.log
        self.log = self.captured
        return 0

    def _is_capturing(self, stream: Any, status: Any) -> int:
        status._obj.value = int((stream.value or 0) in self.capturing)
        return self.refuses[0] if self.refuses else 0

    def _instantiate(self, made: Any, graph: Any, flags: Any) -> int:
        assert self.captured is not None
        self.log = self.outside
        self.graphs.append(self.captured)
        made._obj.value = len(self.graphs)
        return 0

    def _launch_graph(self, made: Any, stream: Any) -> int:
        """Log what was captured, as if it were enqueued on the stream; count it."""
        assert (stream.value or 0) not in self.capturing
        self.replays += 1
        for kind, *told in self.graphs[made.value - 1]:
            if kind == "launch":
                self.log.append((kind, replace(told[0], stream=stream.value or 0)))
            else:
                self.log.append((kind, *told[:-1], stream.value))
        return 0

    def _launch(self, config: Any, function: Any, held: Any, extra: Any) -> int:
        assert (function.value, extra) == (99, None)
        told = config._obj
        (ctas, *ones, threads, one, also_one, smem_bytes) = told.sizes
        assert (*ones, one, also_one) == (1, 1, 1, 1)
        attributes = tuple((a.id, a.value[0]) for a in told.attributes[: told.count])
        code = self.refuses.pop(0) if self.refuses else 0
        launched = Launched(ctas, threads, smem_bytes, told.stream or 0, attributes, held)
        self.log.append(("refused", code) if code else ("launch", launched))
        return code

    def _encode(self, place: Any, *rest: Any) -> int:
        """Log what it is told, and leave the array's address, 16 times."""
        assert place.value % 64 == 0
        ctypes.memmove(place.value, rest[2].value.to_bytes(8, "little") * 16, 128)
        self.log.append(("encode", *rest))
        return 0

    def _clusters(self, found: Any, function: Any, config: Any) -> int:
        found._obj.value = self.clusters
        self.log.append(("clusters", function.value, config._obj))
        return 0

    def _clear(self, pointer: Any, zero: Any, size: Any, stream: Any) -> int:
        self.log.append(("clear", pointer.value, size.value, stream.value))
        return int(zero.value)

    def _clear_rows(
        self, pointer: Any, pitch: Any, zero: Any, size: Any, count: Any, stream: Any
    ) -> int:
        given = (pointer.value, pitch.value, size.value, count.value, stream.value)
        self.log.append(("clear rows", *given))
        return int(zero.value)


class Gpu:
    """What ``launch.py`` asks of CuPy."""

    def __init__(self) -> None:
        self.log: list[Any] = []
        self.driver = Driver(self.log)
        self.device = 0
        self.current = 5  # the handle of CuPy's current stream
        attributes = {"MaxSharedMemoryPerBlockOptin": 232448, "MultiProcessorCount": 132}
        gpu = self

        def set_device(number: int) -> None:
            gpu.log.append(("set device", number))
            gpu.device = number

        runtime = SimpleNamespace(
            getDevice=lambda: self.device, setDevice=set_device, CUDARuntimeError=DriverError
        )
        driver = SimpleNamespace(
            CUDADriverError=DriverError,
            funcSetAttribute=lambda f, attribute, n: self.log.append(("attribute", attribute, n)),
        )

        class Device:
            compute_capability = "90"

            def __init__(self, number: int = 0) -> None:
                self.attributes, self.number = attributes, number

            def __enter__(self) -> None:
                self.before, gpu.device = gpu.device, self.number

            def __exit__(self, *error: object) -> None:
                gpu.device = self.before

        class Module:
            def load(self, code: bytes) -> None:
                gpu.log.append(("load", gpu.device))
                if not code.startswith(b"\x7fELF"):
                    raise DriverError("CUDA_ERROR_INVALID_IMAGE")

            def get_function(self, name: str) -> Any:
                return SimpleNamespace(ptr=99)

        self.cuda = SimpleNamespace(
            runtime=runtime,
            driver=driver,
            Device=Device,
            function=SimpleNamespace(Module=Module),
            Stream=SimpleNamespace(
                from_external=lambda foreign: Stream(foreign.__cuda_stream__()[1], self.log)
            ),
            alloc=lambda size: SimpleNamespace(
                ptr=Array((size,)).pointer, mem=SimpleNamespace(size=size)
            ),
            get_current_stream=lambda device: Stream(self.current + 100 * device, self.log),
        )

    def empty(self, shape: tuple[int, ...], dtype: Any) -> CupyArray:
        self.log.append(("empty", shape))
        return CupyArray(shape, dtype)

    def of(self, kind: str) -> list[Any]:
        return [entry[1:] for entry in self.log if entry[0] == kind]

    def launched(self) -> list[Launched]:
        return [entry[0] for entry in self.of("launch")]


class FakeWorker:
    """In the place of a worker: it answers as it is told, in order."""

    answers: ClassVar[tuple[dict[str, Any], ...]] = ()

    def __init__(self, _: Any) -> None:
        self.left = iter(self.answers)

    def __enter__(self) -> FakeWorker:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, request: Mapping[str, Any], limit: float) -> dict[str, Any]:
        return next(self.left)


@cache
def _code(program: Program, arch: str, sizes: tuple[tuple[str, int], ...]) -> tuple[int, int]:
    cubin = assemble(emit(program, arch, dict(sizes)), arch)
    return cubin.registers, cubin.spill_stores_bytes + cubin.spill_loads_bytes


class Nothing(Builders):
    """Builders without processes, that build nothing and ask ptxas here."""

    def begin(self, limit_seconds: float) -> None:
        pass

    def each(self, wanted: Sequence[Any], until: Deadline = NEVER) -> Generator[Any]:
        cubins = [SimpleNamespace(bytes=b"", registers=40) for _ in wanted]
        yield from [Built("sm_90a", "", cast("Cubin", cubin)) for cubin in cubins]

    def codes(self, wanted: Sequence[Any], until: Deadline = NEVER) -> Iterator[Any]:
        for program, arch, sizes in wanted:
            if until.passed():
                return
            yield _code(program, arch, tuple(sizes.items()))


class Card:
    """The fixture ``card``: what of a GPU a test pretends is there; all of it is gone after."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._set, self._item = patch.setattr, patch.setitem

    def named(self, name: str, driver: str = "") -> None:
        """Say which card is there: "none" is no card."""
        for module in (doctor, provenance):
            self._set(module, "device_and_driver", lambda: (name, driver))

    def arch(self, arch: str = "sm_90a") -> None:
        """Let the card have an architecture; nothing can be launched on it."""
        self._set(launch, "device_arch", lambda: arch)

    def missing(self, reason: str) -> None:
        """Let asking for the card fail."""

        def none() -> NoReturn:
            raise LaunchError(reason)

        self._set(launch, "device_arch", none)

    def library(self, library: Any) -> None:
        """Put a library in the place of CuPy, wherever it is asked for."""
        for module in (function, launch, timing, validation):
            self._set(module, "gpu", lambda: library)

    def driven(self) -> Gpu:
        """Put a GPU in the place of CuPy's and of the driver's."""
        fake = Gpu()
        self.library(fake)
        self._set(driver, "_library", lambda: fake.driver)
        function._stream.cache_clear()
        return fake

    def kernels(self, kernel: Any) -> None:
        """Put a class in the place of kernels that are launched."""
        self._set(launch, "Kernel", kernel)

    def torch(self, torch: Any) -> None:
        """Put an object in the place of PyTorch; None is no PyTorch."""
        self._item(sys.modules, "torch", torch)

    def answering(self, module: Any, *answers: Mapping[str, Any]) -> None:
        """Put a worker with these answers in the place of a module's."""
        self._set(module, "Worker", type("Told", (FakeWorker,), {"answers": answers}))

    def measuring(self, *, worker: Any = None, options: Any = None) -> None:
        """Let schedules be measured by a worker, or by the one of the options; none is built."""
        self.arch()
        self._set(measure, "Builders", Nothing)
        if worker is not None:
            self._set(measure, "Worker", worker)
        if options is not None:
            self._set(measure, "COARSE", options)
