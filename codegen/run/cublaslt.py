"""cuBLASLt's algorithms, each a peer of its own: ``tinygpu.codegen.run.cublaslt:algorithm_3``.

``cublasLtMatmulAlgoGetHeuristic`` returns up to ``MOST`` algorithms for a matmul, the one that it
thinks fastest first; often another is.  ``peers`` names those of a problem, and ``algorithm_i``
runs the i-th of them, also while a CUDA graph is captured.

cuBLASLt is column-major, and a row-major matrix is a column-major one transposed.  So
c = a b is computed as c^T = b^T a^T: its "A" is our b, its "B" our a, and its rows our columns.

>>> from tinygpu.term.operation import Problem, matmul
>>> view(Problem.of(matmul("bf16", layout="nt"), m=16, n=32, k=64))
(Matrix(rows=64, columns=32, transposed=True), Matrix(rows=64, columns=16, transposed=False), \
Matrix(rows=32, columns=16, transposed=False))

Source: cuBLAS documentation 13, "Using the cuBLASLt API"; ``cublasLt.h`` for sizes and values.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from ctypes import (
    byref,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int64,
    c_size_t,
    c_uint64,
    c_void_p,
    sizeof,
)
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinygpu.codegen.run.launch import gpu
from tinygpu.errors import LaunchError, OperationError
from tinygpu.term.operation import ACC, Operation, Problem, matmul

__all__ = ["MOST", "HeuristicResult", "Matrix", "library", "peers", "view"]

MOST = 32
WORKSPACE_BYTES = 64 << 20
_COMPUTE_32F = 68  # spec: CUBLAS_COMPUTE_32F
_COMPUTE_64F = 70  # spec: CUBLAS_COMPUTE_64F
_COMPUTE_TF32 = 77  # spec: CUBLAS_COMPUTE_32F_FAST_TF32
_COMPUTE = {"f64": _COMPUTE_64F, "tf32": _COMPUTE_TF32}  # other inputs: 32F
_TYPES = {"f32": 0, "tf32": 0, "f64": 1, "f16": 2, "bf16": 14, "e4m3": 28}  # spec: cudaDataType_t
_TRANSPOSE = {"A": 3, "B": 4}  # spec: CUBLASLT_MATMUL_DESC_TRANSA, TRANSB
_EPILOGUE, _BIAS_POINTER = 7, 8  # spec: CUBLASLT_MATMUL_DESC_EPILOGUE, BIAS_POINTER
_BATCH_COUNT, _BATCH_OFFSET = 5, 6  # spec: CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, ..
_BIAS, _GELU_BIAS = 4, 36  # spec: CUBLASLT_EPILOGUE_BIAS, GELU_BIAS
_MAX_WORKSPACE = 1  # spec: CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES

Run = Callable[[], Any]


class HeuristicResult(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``: an algorithm and the workspace that it needs."""

    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace_bytes", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix as cuBLASLt is told of it: column-major, dense, and whether it is transposed."""

    rows: int
    columns: int
    transposed: bool


def view(problem: Problem) -> tuple[Matrix, Matrix, Matrix]:
    """Return cuBLASLt's A, B and C of a row-major matmul: b, a and c.

    Raises OperationError for another operation.
    """
    operation, sizes = problem.operation, problem.sizes
    if operation.name != "matmul":
        raise OperationError(f"{operation.name}: cuBLASLt multiplies matrices; give a matmul")
    first, second = operation.operand("a"), operation.operand("b")
    return (
        _matrix(second.axes, sizes, transposed=second.axes[-2:] == ("n", "k")),
        _matrix(first.axes, sizes, transposed=first.axes[-2:] == ("k", "m")),
        _matrix(operation.output.axes, sizes, transposed=False),
    )


def _matrix(axes: tuple[str, ...], sizes: Mapping[str, int], *, transposed: bool) -> Matrix:
    return Matrix(sizes[axes[-1]], sizes[axes[-2]], transposed)


def _epilogue(operation: Operation) -> int:
    """Return what is fused after the sums; 0 for nothing.

    Raises LaunchError for what cuBLASLt has no epilogue of.
    """
    if operation.epilogue == ACC:
        return 0
    known = {matmul(bias=True).epilogue: _BIAS}
    known[matmul(bias=True, activation="gelu").epilogue] = _GELU_BIAS
    if operation.epilogue not in known:
        raise LaunchError(f"cuBLASLt: no epilogue {operation.epilogue}; it has bias, gelu(bias)")
    return known[operation.epilogue]


@functools.cache
def library() -> ctypes.CDLL:
    """Return cuBLASLt, the one that PyTorch uses if it is loaded.

    Raises LaunchError where there is none.
    """
    for name in _names():
        try:
            found = ctypes.CDLL(name)
        except OSError:
            continue
        found.cublasLtGetStatusString.restype = c_char_p
        return found
    raise LaunchError("cuBLASLt: no libcublasLt.so.13 or .12 found; install nvidia-cublas")


def _names() -> Iterator[str]:
    yield from ("libcublasLt.so.13", "libcublasLt.so.12")
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        yield from map(str, sorted(Path(folder).glob("*/lib/libcublasLt.so.*"), reverse=True))


def _call(name: str, *arguments: Any) -> None:
    """Call a function that returns a status.  Raises LaunchError if that is not success."""
    status = getattr(library(), name)(*arguments)
    if status:
        said = library().cublasLtGetStatusString(c_int(status)).decode()
        raise LaunchError(f"{name}: status {status}, {said}")


def _made(name: str, *arguments: Any) -> c_void_p:
    """Return the handle that a function of creation writes; descriptors live with the process."""
    handle = c_void_p()
    _call(name, byref(handle), *arguments)
    return handle


@dataclass(frozen=True, slots=True)
class CublasLtPlan:
    """A problem's descriptors, and its algorithms in the order of the heuristic."""

    descriptor: c_void_p
    layouts: tuple[c_void_p, ...]
    algorithms: tuple[HeuristicResult, ...]


def descriptors(problem: Problem) -> tuple[c_void_p, tuple[c_void_p, ...], c_void_p]:
    """Return the descriptors of the operation, of A, B and C, and of the preferences.

    Raises OperationError for what is no matmul, LaunchError where cuBLASLt refuses.
    """
    operation, matrices = problem.operation, view(problem)
    first, second, output = *operation.inputs[:2], operation.output
    inputs = {first.dtype, second.dtype}
    if len(inputs) > 1 or not inputs | {output.dtype} <= set(_TYPES):
        into = f" into {output.dtype}" if output.dtype not in _TYPES else ""
        raise LaunchError(f"cuBLASLt: no products of {' and '.join(sorted(inputs))}{into} here")
    dtype = first.dtype
    compute, scale = _COMPUTE.get(dtype, _COMPUTE_32F), "f64" if dtype == "f64" else "f32"
    descriptor = _made("cublasLtMatmulDescCreate", c_int(compute), c_int(_TYPES[scale]))
    for name, matrix in zip("AB", matrices[:2], strict=True):
        _set("MatmulDesc", descriptor, _TRANSPOSE[name], c_int(matrix.transposed))
    if epilogue := _epilogue(operation):
        _set("MatmulDesc", descriptor, _EPILOGUE, c_int(epilogue))
    layouts = tuple(
        _made(
            "cublasLtMatrixLayoutCreate",
            c_int(_TYPES[operand.dtype]),
            c_uint64(matrix.rows),
            c_uint64(matrix.columns),
            c_int64(matrix.rows),
        )
        for operand, matrix in zip((second, first, output), matrices, strict=True)
    )
    if "l" in operation.axes:
        for layout, matrix in zip(layouts, matrices, strict=True):
            _set("MatrixLayout", layout, _BATCH_COUNT, c_int(problem.sizes["l"]))
            _set("MatrixLayout", layout, _BATCH_OFFSET, c_int64(matrix.rows * matrix.columns))
    preference = _made("cublasLtMatmulPreferenceCreate")
    _set("MatmulPreference", preference, _MAX_WORKSPACE, c_size_t(WORKSPACE_BYTES))
    return descriptor, layouts, preference


def _set(kind: str, handle: c_void_p, number: int, held: Any) -> None:
    """Set an attribute of a "MatmulDesc", a "MatrixLayout" or a "MatmulPreference"."""
    where = (handle, c_int(number), byref(held), c_size_t(sizeof(held)))
    _call(f"cublasLt{kind}SetAttribute", *where)


@functools.cache
def plan(problem: Problem) -> CublasLtPlan:
    """Ask the heuristic.  Raises LaunchError where cuBLASLt refuses or there is no GPU."""
    descriptor, layouts, preference = descriptors(problem)
    found, returned = (HeuristicResult * MOST)(), c_int()
    _call(
        "cublasLtMatmulAlgoGetHeuristic",
        _handle(),
        descriptor,
        *(layouts[i] for i in (0, 1, 2, 2)),
        preference,
        c_int(MOST),
        found,
        byref(returned),
    )
    good = tuple(r for r in found[: returned.value] if r.state == 0)
    return CublasLtPlan(descriptor, layouts, good)


@functools.cache
def _handle() -> c_void_p:
    return _made("cublasLtCreate")


@functools.cache
def _workspace() -> Any:
    return gpu().empty(WORKSPACE_BYTES, "uint8")


def _algorithm(
    number: int,
    problem: Problem,
    inputs: Sequence[Any],
    output: Any,
    scalars: Mapping[str, float],
) -> Run:
    """Return what enqueues the algorithm ``number`` of a problem; it is a peer."""
    made = plan(problem)
    if number >= len(made.algorithms):
        raise LaunchError(f"cuBLASLt: no algorithm {number}; there are {len(made.algorithms)}")
    algorithm = made.algorithms[number]
    number_type = c_double if problem.operation.operand("a").dtype == "f64" else c_float
    one, zero = number_type(1.0), number_type(0.0)
    a, b, *beside = inputs
    at_a, at_b, at_c = (c_void_p(x.data.ptr) for x in (b, a, output))
    of_a, of_b, of_c = made.layouts
    space, stream = c_void_p(_workspace().data.ptr), gpu().cuda.get_current_stream

    def run() -> None:
        if beside:
            _set("MatmulDesc", made.descriptor, _BIAS_POINTER, c_void_p(beside[0].data.ptr))
        _call(
            "cublasLtMatmul", _handle(), made.descriptor, byref(one), at_a, of_a, at_b, of_b,
            byref(zero), at_c, of_c, at_c, of_c, byref(algorithm), space,
            c_size_t(WORKSPACE_BYTES), c_void_p(stream().ptr),
        )  # fmt: skip

    return run


def __getattr__(name: str) -> Callable[..., Run]:
    """Return the peer ``algorithm_<number>``."""
    kind, _, number = name.partition("_")
    if kind != "algorithm" or not number.isdecimal():
        raise AttributeError(f"module {__name__} has no {name}")
    return functools.partial(_algorithm, int(number))


def peers(problem: Problem) -> tuple[str, ...]:
    """Return the names of a problem's peers, in the order of the heuristic.

    Raises LaunchError where cuBLASLt refuses the problem or cannot be used, OperationError for what
    is no matmul.
    """
    return tuple(f"algorithm_{i}" for i in range(len(plan(problem).algorithms)))
