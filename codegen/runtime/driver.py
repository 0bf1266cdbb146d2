"""The CUDA driver, called directly: starting functions, clearing memory, counting clusters.

CuPy packs the arguments of a function anew at each call, and knows no launch attributes.  Here
everything that a launch needs is packed once, and starting it is one call of the driver.  What is
packed is not written again, so threads may share it.

Source: CUDA Driver API, "Execution Control", "Memory Management", "Occupancy".
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import struct
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from tinygpu.errors import KernelError, LaunchError

__all__ = [
    "NO_CONTEXT",
    "active_clusters",
    "call",
    "capturing",
    "clearing",
    "devices",
    "graph_of",
    "is_lost",
    "reason",
    "refusal",
    "starting",
]

NO_CONTEXT = 201  # spec: CUDA_ERROR_INVALID_CONTEXT
_CLUSTER_DIMENSION = 4  # spec: CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
_EARLY = 6  # spec: CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
_ALIGNMENT = 64  # of a tensor map, the widest of all arguments
_STREAMS = 16
_NON_BLOCKING = 1  # spec: CU_STREAM_NON_BLOCKING
_LOST = (
    "ILLEGALADDRESS", "ILLEGALINSTRUCTION", "MISALIGNEDADDRESS", "LAUNCHFAIL", "LAUNCHTIMEOUT",
    "HARDWARESTACK", "INVALIDPC", "INVALIDADDRESSSPACE", "ERRORASSERT", "UNCORRECTABLE",
    "CONTEXTISDESTROYED",
)  # fmt: skip
"""Names of errors after which a process's context is lost, in parts.

Spec: CUDA Driver API, "CUresult": "this leaves the process in an inconsistent state".
"""
_CALLERS = ("STREAMCAPTURE", "INVALIDCONTEXT", "HANDLE")
"""Names of errors of the caller's stream or context: no kernel starts there."""
_RELAXED = 2  # spec: CU_STREAM_CAPTURE_MODE_RELAXED: of this thread alone, and nothing is forbidden


@functools.cache
def _library() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def devices() -> int:
    """Return how many GPUs the driver has; 0 without a driver."""
    count = ctypes.c_int()
    try:
        found = not _library().cuInit(0) and not _library().cuDeviceGetCount(ctypes.byref(count))
    except OSError:
        return 0
    return count.value if found else 0


def reason(code: int) -> str:
    """Return the driver's name of an error, and its words: ``CUDA_ERROR_..: an illegal ..``."""
    said = []
    for name in ("cuGetErrorName", "cuGetErrorString"):
        text = ctypes.c_char_p()
        getattr(_library(), name)(code, ctypes.byref(text))
        said.append(text.value.decode() if text.value else str(code))
    return ": ".join(said)


def _names(text: str, parts: Sequence[str]) -> bool:
    """Whether an error's text, of the driver or the runtime, has one of these names."""
    plain = text.upper().replace("_", "")
    return any(part in plain for part in parts)


def is_lost(text: str) -> bool:
    """Whether an error says that this process's context is lost."""
    return _names(text, _LOST)


def refusal(said: str, text: str) -> LaunchError:
    """Return the error of a refusal whose reason is ``text``.

    It is a KernelError where another kernel may do: the context is not lost, and the caller's
    stream is not at fault.
    """
    return LaunchError(said) if _names(text, (*_LOST, *_CALLERS)) else KernelError(said)


def call(name: str, *arguments: Any, way_out: str) -> None:
    """Call a function of the driver.  Raises LaunchError where it refuses; see ``refusal``."""
    if code := getattr(_library(), name)(*arguments):
        why = reason(code)
        raise refusal(f"{name}: {why}; {way_out}", why)


class _Attribute(ctypes.Structure):
    _fields_ = (
        ("id", ctypes.c_int),
        ("pad", ctypes.c_char * 4),
        ("value", ctypes.c_uint32 * 16),
    )


class _Config(ctypes.Structure):
    _fields_ = (
        ("sizes", ctypes.c_uint32 * 7),  # grid, block, bytes of shared memory
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint32),
    )


def active_clusters(function: int, cluster: int, threads: int, smem_bytes: int) -> int:
    """Return how many clusters of a loaded function are resident on the device at once."""
    attribute = _Attribute(id=_CLUSTER_DIMENSION)
    attribute.value[:3] = (cluster, 1, 1)
    config = _Config(attributes=ctypes.pointer(attribute), count=1)
    config.sizes[:] = (cluster, 1, 1, threads, 1, 1, smem_bytes)
    found = ctypes.c_int()
    call(
        "cuOccupancyMaxActiveClusters",
        ctypes.byref(found),
        ctypes.c_void_p(function),
        ctypes.byref(config),
        way_out="lower the cluster, the threads or the stages",
    )
    return found.value


def starting(
    function: int,
    arguments: Sequence[bytes],
    *,
    ctas: int,
    threads: int,
    smem_bytes: int,
    early: bool,
) -> Callable[[int], int]:
    """Return what starts a loaded function on a stream, and returns the driver's error or 0.

    An ``early`` one may start before the kernel before it on the stream has ended.
    """
    count, data = len(arguments), b"".join(arguments)
    held = ctypes.create_string_buffer(8 * count + _ALIGNMENT + len(data))
    first = ctypes.addressof(held) + 8 * count
    first += -first % _ALIGNMENT
    ctypes.memmove(first, data, len(data))
    places = itertools.accumulate((len(a) for a in arguments[:-1]), initial=first)
    struct.pack_into(f"{count}Q", held, 0, *places)
    attribute = _Attribute(id=_EARLY)
    attribute.value[0] = 1

    configs: dict[int, Any] = {}

    def config(stream: int) -> Any:
        if len(configs) >= _STREAMS:
            configs.clear()  # what a thread uses now it holds
        made = _Config(stream=stream, attributes=ctypes.pointer(attribute), count=early)
        made.sizes[:] = (ctas, 1, 1, threads, 1, 1, smem_bytes)
        return configs.setdefault(stream, ctypes.byref(made))

    launch, kernel = _library().cuLaunchKernelEx, ctypes.c_void_p(function)

    def start(stream: int) -> int:
        code: int = launch(configs.get(stream) or config(stream), kernel, held, None)
        return code

    return start


def capturing(stream: int) -> bool:
    """Whether what is enqueued on a stream becomes a graph; so it is said where nobody knows."""
    status = ctypes.c_int()
    code = _library().cuStreamIsCapturing(ctypes.c_void_p(stream), ctypes.byref(status))
    return bool(code or status.value)


def graph_of(enqueue: Callable[[int], int]) -> Callable[[int], int] | None:
    """Return what launches a CUDA graph of what ``enqueue`` does, if one can be made now.

    It returns the driver's error or 0, and on a stream that is captured enqueues the same anew, for
    a graph cannot be launched there.  A graph of one launch costs the host less than the launch,
    and one of several no more.  One thread at a time launches a graph.
    """
    library, lock = _library(), threading.Lock()
    side, graph, made = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    if library.cuStreamCreate(ctypes.byref(side), _NON_BLOCKING):
        return None
    failed = library.cuStreamBeginCapture_v2(side, _RELAXED) or enqueue(side.value or 0)
    failed = library.cuStreamEndCapture(side, ctypes.byref(graph)) or failed
    failed = failed or library.cuGraphInstantiateWithFlags(
        ctypes.byref(made), graph, ctypes.c_ulonglong(0)
    )
    library.cuStreamDestroy_v2(side)
    if graph:
        library.cuGraphDestroy(graph)
    if failed:
        return None
    captures, launch = library.cuStreamIsCapturing, library.cuGraphLaunch
    status = ctypes.c_int()
    said = ctypes.byref(status)
    weakref.finalize(lock, library.cuGraphExecDestroy, made)

    def start(stream: int) -> int:
        handle = ctypes.c_void_p(stream)
        with lock:
            plain = captures(handle, said) or status.value
            code: int = 0 if plain else launch(made, handle)
        return enqueue(stream) if plain else code

    return start


def clearing(
    pointer: int, width: int, shape: Sequence[int], strides: Sequence[int]
) -> Callable[[int], int]:
    """Return what clears an array on a stream, and returns the driver's error or 0.

    ``width`` is an element's bytes, ``strides`` count elements.  What lies between the rows is not
    written; rows that lie equally far apart are cleared by one call.
    """
    run, rows = width, list[tuple[int, int]]()  # contiguous bytes; (count, pitch), innermost first
    for step, extent in sorted((s * width, e) for s, e in zip(strides, shape, strict=True)):
        if extent == 1:
            continue
        if not rows and step == run:
            run *= extent
        elif rows and step == rows[-1][0] * rows[-1][1]:
            rows[-1] = (rows[-1][0] * extent, rows[-1][1])
        else:
            rows.append((extent, step))
    places = [pointer]
    for count, pitch in rows[1:]:
        places = [place + i * pitch for place in places for i in range(count)]
    zero, size = ctypes.c_uint8(0), ctypes.c_size_t(run)
    if rows:
        count, pitch = rows[0]
        memset = _library().cuMemsetD2D8Async
        ways: list[tuple[Any, ...]] = [
            (ctypes.c_uint64(p), ctypes.c_size_t(pitch), zero, size, ctypes.c_size_t(count))
            for p in places
        ]
    else:
        memset, ways = _library().cuMemsetD8Async, [(ctypes.c_uint64(pointer), zero, size)]

    def clear(stream: int) -> int:
        handle = ctypes.c_void_p(stream)
        for way in ways:
            code: int = memset(*way, handle)
            if code:
                return code
        return 0

    return clear
