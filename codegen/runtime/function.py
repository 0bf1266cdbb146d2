"""A function: a kernel's contract and cubin, called with GPU arrays.

A call reads each array as a view (``views.py``), checks the views against the contract, and starts
``product of grid extents`` CTAs.  Its arguments are the operands' addresses (u64), then the
contract's integers (u32), then the scalars (f32); the tensor maps of a kernel that has some come
first.  A persistent kernel starts as many clusters as the device holds at once, an early one may
start while the kernel before it ends.

A launch depends on the arrays' addresses and forms and on the scalars, and on nothing else; so a
function keeps its last launches, packed, and a call with CuPy arrays or PyTorch tensors that it
knows looks its launch up and starts it.  What a check found is kept under the views' forms.
``prepare`` spares the look-up too, and takes arrays of every library.  What is launched again and
again becomes a CUDA graph, which costs the host less; an early kernel does not, as a graph waits
for what is before it.

Source: CUDA Driver API, "Module Management".
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from tinygpu.codegen.runtime.contract import Contract, check, check_apart, named_extents
from tinygpu.codegen.runtime.driver import (
    NO_CONTEXT,
    active_clusters,
    capturing,
    clearing,
    devices,
    graph_of,
    is_lost,
    reason,
    refusal,
    starting,
)
from tinygpu.codegen.runtime.maps import encode
from tinygpu.codegen.runtime.operator import torch_operator
from tinygpu.codegen.runtime.steps import check_steps, step_views, workspace_bytes
from tinygpu.codegen.runtime.views import TORCH_TYPES, WIDTHS, View, is_torch, reader, view
from tinygpu.errors import KernelError, LaunchError, out_of_memory

__all__ = ["Function", "Launch", "device_arch", "gpu", "load"]

_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # spec: CUfunction_attribute of the driver API
_LARGE_CLUSTERS = 14  # spec: the same, NON_PORTABLE_CLUSTER_SIZE_ALLOWED
_PORTABLE_CLUSTER = 8  # spec: the largest that every chip takes
_SMEM_BYTES_WITHOUT_ASKING = 48 * 1024  # spec: CUDA C++ Programming Guide, "Shared Memory"
_MOST_KEPT = 512  # launches, and plans, that a function keeps
_PLAIN_CALLS, _NEVER = 4, -1  # of the same arrays, before they become a graph

_Key = TypeVar("_Key")
_Kept = TypeVar("_Kept")


@functools.cache
def gpu() -> Any:
    """Return CuPy.  Raises LaunchError where it or a GPU is missing."""
    try:
        import cupy
    except ImportError:
        raise LaunchError(_no_cupy()) from None
    try:
        count = cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        raise LaunchError(f"GPU: none is usable ({error}); run nvidia-smi to see why") from None
    if not count:
        raise LaunchError("GPU: this machine has none; emit and assemble need none")
    return cupy


def _no_cupy() -> str:
    """Say why nothing can be launched where CuPy is missing: first that there is no GPU."""
    if not devices():
        return (
            "GPU: no NVIDIA driver with a device answers here; emit and the interpreter need none"
        )
    return 'CuPy: not installed; pip install "cupy-cuda13x[ctk]"'


def device_arch() -> str:
    """Return what ptxas calls the current device: ``sm_90a``.  Raises LaunchError without a GPU."""
    capability = gpu().cuda.Device().compute_capability
    return f"sm_{capability}" + ("a" if int(capability) >= 90 else "")


def load(code: bytes, name: str, *, smem_bytes: int = 0, cluster: int = 1) -> Any:
    """Load a cubin on the current device and return its function ``name``.

    Raises KernelError if the driver refuses the code, so much shared memory or so large clusters;
    LaunchError where the context is lost.
    """
    cupy = gpu()
    device = cupy.cuda.Device()
    allowed = int(device.attributes["MaxSharedMemoryPerBlockOptin"])
    if smem_bytes > allowed:
        raise KernelError(
            f"{name}: needs {smem_bytes} B of shared memory; this device allows {allowed} B per "
            "CTA; lower stages or the tile"
        )
    try:
        module = cupy.cuda.function.Module()
        module.load(code)
        function = module.get_function(name)
        if smem_bytes > _SMEM_BYTES_WITHOUT_ASKING:
            cupy.cuda.driver.funcSetAttribute(
                function.ptr, _MAX_DYNAMIC_SHARED_SIZE_BYTES, smem_bytes
            )
        if cluster > _PORTABLE_CLUSTER:
            cupy.cuda.driver.funcSetAttribute(function.ptr, _LARGE_CLUSTERS, 1)
    except cupy.cuda.driver.CUDADriverError as error:
        said = f"{name}: the driver does not load it ({error}); assemble it for {device_arch()}"
        raise refusal(said, str(error)) from None
    return function


@dataclass(frozen=True, slots=True)
class _Plan:
    """What one form of arguments needs on a device: a loaded function, its grid, its integers."""

    function: Any
    ctas: int
    integers: tuple[bytes, ...]


class _Start:
    """What starts a kernel on some arrays, which it does not keep alive.

    ``enqueue`` does so on a stream and returns the driver's error or 0.
    """

    __slots__ = ("_get_device", "_of_cupy", "_of_torch", "device", "enqueue", "name", "plain")

    def __init__(
        self,
        name: str,
        device: int,
        enqueue: Callable[[int], int],
        arrays: Sequence[Any],
        plain: int,
    ) -> None:
        """Start by ``enqueue``, and after ``plain`` starts by a graph; never if it is negative."""
        self.name, self.device, self.enqueue, self.plain = name, device, enqueue, plain
        self._of_torch = _torch_stream(arrays)
        self._of_cupy = gpu().cuda.get_current_stream
        self._get_device = gpu().cuda.runtime.getDevice

    def __call__(self, stream: Any = None) -> None:
        """Start the kernel, and return before it is done."""
        device, of_torch = self.device, self._of_torch
        try:
            if stream is not None:
                handle = _handle(stream)
            else:  # PyTorch's current stream if a tensor is among the arrays
                handle = of_torch(device) if of_torch else self._of_cupy(device).ptr
            here = self._get_device() == device
            if self.plain > 0:
                self.plain -= 1
            elif self.plain == 0 and here and not capturing(handle):
                self.plain, self.enqueue = -1, graph_of(self.enqueue) or self.enqueue
            code = self.enqueue(handle) if here else NO_CONTEXT
            if code == NO_CONTEXT:  # another device, or a thread that asked nothing of this one
                with gpu().cuda.Device(device):
                    gpu().cuda.runtime.setDevice(device)
                    code = self.enqueue(handle)
        except (gpu().cuda.driver.CUDADriverError, gpu().cuda.runtime.CUDARuntimeError) as error:
            raise _complaint(self.name, str(error)) from None
        if code:
            raise _complaint(self.name, reason(code))

    def seconds(self, times: int, stream: Any = None) -> float:
        """Start it once, and then so many times by the GPU's clock; return what one takes."""
        device, of_torch = self.device, self._of_torch
        if stream is None:
            stream = of_torch(device) if of_torch else self._of_cupy(device).ptr
        with gpu().cuda.Device(device):
            on, began, ended = _stream(_handle(stream)), gpu().cuda.Event(), gpu().cuda.Event()
            self(stream)
            began.record(on)
            for _ in range(times):
                self(stream)
            ended.record(on)
            ended.synchronize()
            return float(gpu().cuda.get_elapsed_time(began, ended)) * 1e-3 / times


class Launch(_Start):
    """A function on arrays, which it keeps alive.

    ``launch()`` starts it on the caller's current stream and ``launch(stream)`` on another; both
    read and write what the arrays hold then.  Raises LaunchError where the driver refuses.
    """

    __slots__ = ("__weakref__", "arrays", "kernel")

    def __init__(self, kernel: Function, arrays: tuple[Any, ...], start: _Start) -> None:
        """Take what starts a kernel on the arrays."""
        super().__init__(start.name, start.device, start.enqueue, arrays, min(start.plain, 0))
        self.kernel, self.arrays = kernel, arrays


class Function:
    """A built kernel that runs; see the module's text."""

    def __init__(self, contract: Contract, code: bytes) -> None:
        """Take a contract and its kernel's cubin, which a device loads at its first call there."""
        self.contract, self.code = contract, code
        self.steps = tuple(Function(step.contract, code) for step in contract.steps)
        self._memory: dict[tuple[int, int], Any] = {}
        self._functions: dict[int, Any] = {}
        self._plans: dict[tuple[Any, ...], _Plan] = {}
        self._maps: dict[tuple[Any, ...], bytes] = {}
        self._outputs: dict[tuple[Any, ...], Callable[[int | None], Any]] = {}
        self._starts: dict[tuple[Any, ...], _Start] = {}

    def __call__(self, *inputs: Any, out: Any = None, stream: Any = None, **scalars: float) -> Any:
        """Compute the output of these inputs, given in the operation's order.

        ``out`` is written if it is given, else a new array; of several outputs it is a tuple.
        ``stream`` is a handle, or a stream of
        CuPy or PyTorch.  Raises LaunchError for arguments that the kernel cannot take, and for a
        launch that the driver refuses.
        """
        if out is None:
            out = self.output(inputs, stream)
        self.start((*inputs, *self.contract.written(out)), scalars)(stream)
        return out

    def torch_op(self, name: str) -> Any:
        """Register it as the PyTorch operator ``namespace::name``, and return that.

        See ``torch_operator``.
        """
        return torch_operator(name, self, self.contract)

    def prepare(self, *inputs: Any, out: Any, **scalars: float) -> Launch:
        """Check and pack the arguments once; return what launches the kernel on them.

        Raises LaunchError as a call does.
        """
        arrays = (*inputs, *self.contract.written(out))
        return Launch(self, arrays, self.start(arrays, scalars))

    def start(self, arrays: tuple[Any, ...], scalars: Mapping[str, Any]) -> _Start:
        """Return what starts it on these arrays, of a table where they are known.

        It depends on the arrays' identities and the scalars' bits alone (0.0 is not -0.0).
        """
        key: tuple[Any, ...] = tuple([reader(type(array))(array) for array in arrays])
        if scalars:
            key += (*scalars, self.bits(scalars))
        start = self._starts.get(key)
        if start is None:
            start = self._new_start(arrays, scalars)
            if None not in key:
                _keep(self._starts, key, start)
        return start

    def _new_start(self, arrays: tuple[Any, ...], scalars: Mapping[str, Any]) -> _Start:
        contract = self.contract
        self._check_count(arrays[: len(arrays) - contract.outputs])
        views = [view(a.name, x) for a, x in zip(contract.arguments, arrays, strict=True)]
        runtime = gpu().cuda.runtime
        device = next((v.device for v in views if v.device >= 0), None)
        device = int(runtime.getDevice()) if device is None else device
        check_apart(contract, views)
        numbers = self._scalars(scalars)
        if self.steps:
            return _Start(
                contract.name, device, self._in_turn(views, device, scalars), arrays, _NEVER
            )
        enqueue = self._enqueue(views, device, numbers)
        plain = _NEVER if contract.early else _PLAIN_CALLS
        return _Start(contract.name, device, enqueue, arrays, plain)

    def _in_turn(
        self, views: Sequence[View], device: int, scalars: Mapping[str, Any]
    ) -> Callable[[int], int]:
        """Return what starts a plan's kernels on a stream, in memory of that stream."""
        contract, made = self.contract, dict[int, tuple[Any, list[Callable[[int], int]]]]()
        check_steps(contract, views)
        need = workspace_bytes(contract, views)

        def begin(stream: int) -> list[Callable[[int], int]]:
            held = self._memory.get((device, stream))
            if need and (held is None or held.mem.size < need):
                with gpu().cuda.Device(device):
                    held = _keep(self._memory, (device, stream), gpu().cuda.alloc(need))
            every = step_views(contract, views, held.ptr if held else 0)
            starts = [
                function._enqueue(
                    own,
                    device,
                    function._scalars({n: scalars[n] for n in function.contract.scalars}),
                )
                for function, own in zip(self.steps, every, strict=True)
            ]
            _keep(made, stream, (held, starts))  # who has it keeps the memory
            return starts

        def enqueue(stream: int) -> int:
            known = made.get(stream)
            for start in known[1] if known else begin(stream):
                if code := start(stream):
                    return code
            return 0

        return enqueue

    def _enqueue(
        self, views: Sequence[View], device: int, numbers: tuple[np.float32, ...]
    ) -> Callable[[int], int]:
        """Return what starts the kernel on a stream."""
        contract = self.contract
        key = (device, *(v.form for v in views))
        plan = self._plans.get(key) or _keep(self._plans, key, self._plan(views, device))
        named = {a.name: _array(v) for a, v in zip(contract.arguments, views, strict=True)}
        enqueue = starting(
            plan.function.ptr,
            [
                *(self._map(number, *named[m.buffer]) for number, m in enumerate(contract.maps)),
                *(v.pointer.to_bytes(8, "little") for v in views),
                *plan.integers,
                *(n.tobytes() for n in numbers),
            ],
            ctas=plan.ctas,
            threads=contract.threads,
            smem_bytes=contract.smem_bytes,
            early=contract.early,
        )
        for output in views[-contract.outputs :] if contract.zeroed else ():
            enqueue = _after(_clearing(output), enqueue)
        return enqueue

    def _map(self, number: int, *array: Any) -> bytes:
        """Return a tensor map of an array, encoded: a weight's is known from the last call."""
        key = number, *array
        encoded = self._maps.get(key)
        return encoded or _keep(self._maps, key, encode(self.contract.maps[number], *array))

    def _check_count(self, inputs: Sequence[Any]) -> None:
        names = [o.name for o in self.contract.inputs]
        if len(inputs) != len(names):
            raise LaunchError(
                f"{self.contract.name}: got {len(inputs)} arrays, takes {len(names)}: "
                f"{', '.join(names)}"
            )

    def _plan(self, views: Sequence[View], device: int) -> _Plan:
        contract = self.contract
        values = check(contract, views)
        clusters = math.prod(values[f"grid_{name}"] for name, _ in contract.grid)
        ctas = clusters * contract.cluster
        with gpu().cuda.Device(device):
            if device not in self._functions:
                self._functions[device] = load(
                    self.code,
                    contract.name,
                    smem_bytes=contract.smem_bytes,
                    cluster=contract.cluster,
                )
            if contract.persistent:
                ctas = contract.cluster * min(clusters, self._resident(device, contract.cluster))
        integers = tuple(values[name].to_bytes(4, "little") for name in contract.integers)
        return _Plan(self._functions[device], ctas, integers)

    def _resident(self, device: int, cluster: int) -> int:
        """Return how many clusters the device holds at once.  Raises KernelError for none."""
        contract = self.contract
        if cluster == 1:
            count = int(gpu().cuda.Device(device).attributes["MultiProcessorCount"])
            return count * contract.ctas_per_sm
        function = self._functions[device].ptr
        count = active_clusters(function, cluster, contract.threads, contract.smem_bytes)
        if not count:
            raise KernelError(
                f"{contract.name}: clusters of {cluster} CTAs with {contract.smem_bytes} B of "
                "shared memory each do not fit this device; lower the cluster or stages"
            )
        return count

    def bits(self, scalars: Mapping[str, Any]) -> bytes:
        """Return the scalars' bits, in the order in which they are given.

        Raises LaunchError for what is no number.
        """
        try:
            return struct.pack(f"{len(scalars)}d", *scalars.values())
        except (struct.error, TypeError, ValueError):
            said = ", ".join(f"{name}={number!r}" for name, number in scalars.items())
            raise LaunchError(f"{self.contract.name}: scalars {said}; give numbers") from None

    def _scalars(self, given: Mapping[str, Any]) -> tuple[np.float32, ...]:
        names = self.contract.scalars
        if set(given) != set(names):
            raise LaunchError(
                f"{self.contract.name}: scalars {', '.join(sorted(given)) or 'none'}; it takes "
                f"{', '.join(names) or 'none'}; give each as name=number"
            )
        return tuple(np.float32(given[name]) for name in names)

    def output(self, inputs: Sequence[Any], stream: Any = None) -> Any:
        """Return new outputs of the kind of the first input, allocated for the stream."""
        key = tuple([reader(type(array))(array) for array in inputs])
        make = self._outputs.get(key)
        if make is None:
            make = self._new_output(inputs)
            if None not in key:
                _keep(self._outputs, key, make)
        try:
            return make(None if stream is None else _handle(stream))
        except (MemoryError, RuntimeError) as error:  # CuPy's and PyTorch's
            if (said := out_of_memory(error)) is None:
                raise
            names = ", ".join(a.name for a in self.contract.arguments[-self.contract.outputs :])
            raise LaunchError(f"{names}: {said}") from None

    def _new_output(self, inputs: Sequence[Any]) -> Callable[[int | None], Any]:
        """Return what allocates an output for a stream's handle, or for the current stream."""
        self._check_count(inputs)
        wanted = self.contract.inputs
        views = [view(a.name, x) for a, x in zip(wanted, inputs, strict=True)]
        named: dict[Any, int] = {}
        for argument, seen in zip(wanted, views, strict=True):
            if len(seen.shape) == len(argument.axes):
                named |= zip(argument.axes, seen.shape, strict=True)
        makes, like = [], inputs[0]
        for output in self.contract.arguments[len(wanted) :]:
            missing = [axis for axis in output.axes if axis not in named]
            if missing:
                said = ", ".join(str(v.shape) for v in views)
                raise LaunchError(
                    f"{output.name}: its size {missing[0]} does not follow from the inputs' shapes "
                    f"{said}; {self.contract.operation} takes "
                    + ", ".join(f"{a.name}[{named_extents(a)}]" for a in wanted)
                )
            shape = tuple(named[axis] for axis in output.axes)
            if is_torch(like):
                makes.append(_torch_empty(shape, output.dtype, like.device))
                continue
            kind = _numpy_type(output.dtype)
            if output.dtype == "bf16" and getattr(like, "dtype", None) in (np.uint16, np.uint8):
                kind = np.uint16  # the caller keeps bf16 as bits
            makes.append(_cupy_empty(shape, kind, views[0].device))
        return makes[0] if not makes[1:] else lambda stream: tuple(make(stream) for make in makes)


def _cupy_empty(shape: tuple[int, ...], kind: Any, device: int) -> Callable[[int | None], Any]:
    cupy = gpu()
    empty, current = cupy.empty, cupy.cuda.runtime.getDevice

    def make(handle: int | None) -> Any:
        if handle is None and device in (-1, current()):
            return empty(shape, kind)
        with cupy.cuda.Device(device if device >= 0 else current()):
            if handle is None:
                return empty(shape, kind)
            with _stream(handle):
                return empty(shape, kind)

    return make


def _numpy_type(dtype: str) -> Any:
    """Return NumPy's type of a data type; without ml_dtypes the bits of those that are not its."""
    own = {"f64": np.float64, "f32": np.float32, "tf32": np.float32, "f16": np.float16}
    if dtype in own:
        return own[dtype]
    try:
        import ml_dtypes
    except ImportError:
        return {"bf16": np.uint16}.get(dtype, np.uint8)
    names = {"bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}
    return getattr(ml_dtypes, names[dtype])


def _torch_empty(shape: tuple[int, ...], dtype: str, device: Any) -> Callable[[int | None], Any]:
    import torch

    empty, kind = torch.empty, getattr(torch, TORCH_TYPES.get(dtype, "float32"))

    def make(handle: int | None) -> Any:
        if handle is None:
            return empty(shape, dtype=kind, device=device)
        with torch.cuda.stream(torch.cuda.ExternalStream(handle, device=device)):
            return empty(shape, dtype=kind, device=device)

    return make


def _array(view: View) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return view.pointer, view.shape, view.strides


@dataclass(frozen=True, slots=True)
class _Foreign:
    """A stream of whatever library, by its handle, in the CUDA stream protocol."""

    handle: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return (0, self.handle)


@functools.lru_cache(256)
def _stream(handle: int) -> Any:
    stream = gpu().cuda.Stream
    return stream.from_external(_Foreign(handle)) if handle else stream.null


def _handle(stream: Any) -> int:
    """Return the handle of a stream."""
    if isinstance(stream, int):
        return stream
    handle = getattr(stream, "ptr", getattr(stream, "cuda_stream", None))
    if handle is None:
        raise LaunchError(f"stream: {stream!r}; give a handle, or CuPy's or PyTorch's stream")
    return int(handle)


def _torch_stream(arrays: Sequence[Any]) -> Callable[[int], int] | None:
    """Return what tells a device's current stream of PyTorch, if a tensor is among the arrays."""
    if not any(map(is_torch, arrays)):
        return None
    import torch

    # what current_stream(device).cuda_stream is, without an object; Triton launches on it too
    current: Callable[[int], int] = torch._C._cuda_getCurrentRawStream
    return current


def _clearing(output: View) -> Callable[[int], int]:
    return clearing(output.pointer, WIDTHS[output.dtype], output.shape, output.strides)


def _after(first: Callable[[int], int], then: Callable[[int], int]) -> Callable[[int], int]:
    return lambda stream: first(stream) or then(stream)


def _keep(table: dict[_Key, _Kept], key: _Key, value: _Kept) -> _Kept:
    """Add to a table; a full one starts again, and what is in use comes back at its next call."""
    if len(table) >= _MOST_KEPT:
        table.clear()
    table[key] = value
    return value


def _complaint(name: str, text: str) -> LaunchError:
    text = text.splitlines()[0]
    hint = "give fewer threads, registers or shared memory"
    if is_lost(text):
        hint = "an earlier kernel faulted and this process's context is lost; start a new one"
    return refusal(f"{name}: launch failed ({text}); {hint}", text)
