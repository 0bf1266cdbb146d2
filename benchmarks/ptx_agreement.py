"""Kernels that the PTX interpreter ran, run by a GPU: bit for bit.

    python -m benchmarks.ptx_agreement_cases --out cases.npz     # anywhere, with ptxas
    python -m benchmarks.ptx_agreement cases.npz [--out FILE]    # on the GPU's machine

The second needs CuPy and NumPy (for nvcc's kernels of the corpora, which are held against what they
should compute as well, ml_dtypes too), and no ptxas: the driver loads PTX and cubins.  A NaN agrees
with any NaN.  ``sin`` and ``pow`` of double agree within 1e-13, as they build on approximations;
``tanh`` and ``ex2`` of all numbers of 16 bits are held against the exact ones, within what PTX
allows; of the registers that tell of shared memory the driver sets the last three, which are only
shown.

Kernels run in a process of their own: a risky one, which has loops and waits, alone; others one
after the other in one that is replaced if a kernel fails or takes longer than ``--timeout``.

The file has a row a kernel, with what differs.  The status is 1 if one does.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import multiprocessing
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygpu.codegen.run.provenance import provenance

__all__ = ["THREADS", "Array", "Case", "differs", "faults", "main", "read"]

Array = NDArray[Any]
Bytes = Mapping[str, Array]
THREADS = 256
_NAN = {"f16": (2, 0x7C00), "bf16": (2, 0x7F80), "f32": (4, 0x7F800000), "tf32": (4, 0x7F800000),
        "f64": (8, 0x7FF0 << 48)}  # fmt: skip
"""Bytes of floating-point types, and the bits of their infinities."""
_SHOWN = 5  # registers that ptxas and the launch set; the driver sets the others


@dataclass(frozen=True)
class Case:
    """A launch, with its arguments before and after: keys of arrays, raw bytes, or maps of arrays.

    ``kind`` says how results are compared: ``lines`` (a column of ``y`` each), ``bytes``, ``f64``,
    ``corpus``, ``near`` and ``registers``.
    """

    name: str
    code: str
    kind: str
    arguments: Sequence[Mapping[str, str]]
    after: Sequence[str]
    entry: str = "k"
    grid: int | Sequence[int] = 1
    block: int | Sequence[int] = 1
    smem_bytes: int = 0
    together: bool = False
    exact: bool = True
    risky: bool = False
    most: float = 0.0
    lines: Sequence[str] = field(default_factory=list)


def read(path: Path) -> tuple[list[Case], dict[str, Array]]:
    """Return the cases of a file, and its arrays of bytes."""
    with np.load(path, allow_pickle=False) as held:
        arrays = {key: held[key] for key in held.files}
    return [Case(**row) for row in json.loads(arrays.pop("cases").tobytes())], arrays


def _nothing(bits: Array, kind: str) -> Array:
    """Return which numbers are NaN, by their bits."""
    width, infinity = _NAN[kind]
    return np.asarray(bits & np.array((1 << 8 * width - 1) - 1).astype(bits.dtype) > infinity)


def differs(line: str, mine: Array, other: Array) -> Array:
    """Return in which threads an instruction's results differ; not where both are NaN."""
    name = line.split()[0].split(".")
    result = name[-2] if name[0] in ("cvt", "set") else name[-1]
    kind = re.match(r"[\w.:]+ %(\w+)_", line)
    wide = {"f16x2": "f16", "bf16x2": "bf16", "f32x2": "f32"}.get(result, result)
    if kind is None or wide not in _NAN:
        return np.flatnonzero(mine != other)
    width = _NAN[wide][0]
    a, b = (np.ascontiguousarray(v).view(f"u{width}") for v in (mine, other))
    bad = (a != b) & ~(_nothing(a, wide) & _nothing(b, wide))
    return np.unique(np.flatnonzero(bad) // (8 // width))


def faults(case: Case, arrays: Bytes, theirs: Sequence[Array | None]) -> Iterator[Any]:
    """Yield what is wrong with a GPU's results, by argument (None: no array)."""
    pairs = [(arrays[k], t) for k, t in zip(case.after, theirs, strict=True) if t is not None]
    if case.kind == "lines":
        mine, other = (v.view(np.uint64).reshape(THREADS, -1) for v in pairs[1])
        x = arrays[case.arguments[0]["array"]].view(np.uint64).reshape(THREADS, -1)
        for n, line in enumerate(case.lines):
            for t in differs(line, mine[:, n], other[:, n])[:2].tolist():
                yield {"instruction": line, "thread": t, "input": [hex(v) for v in x[t].tolist()],
                       "interpreter": hex(mine[t, n]), "gpu": hex(other[t, n])}  # fmt: skip
    elif case.kind == "near":
        yield from _near(case, *pairs[0])
    elif case.kind == "registers":
        shown = [v.view(np.uint32)[:_SHOWN].tolist() for v in pairs[0]]
        for name, a, b in zip(case.lines[:_SHOWN], *shown, strict=True):
            if a != b:
                yield f"%{name}: interpreter {a}, GPU {b}"
    elif case.kind == "f64":
        a, b = (v.view(np.float64) for v in pairs[1])
        if not np.allclose(a, b, rtol=1e-13):
            yield "the results differ by more than 1e-13"
    else:
        if case.kind == "corpus" and (told := _expected(case, theirs)):
            yield told
        if case.exact and any(a.tobytes() != b.tobytes() for a, b in pairs):
            yield "the results differ, and PTX says what they are"


def _expected(case: Case, theirs: Sequence[Array | None]) -> str:
    """Return what is not as the corpus has it."""
    try:
        from benchmarks.ptx_agreement_cases import CORPUS
        from tests.ptx_corpus import wrong
    except ImportError as error:
        return f"not compared: {error}"
    corpus = CORPUS[case.lines[0]]
    before = corpus.arguments()
    after = [
        b if t is None else t.view(b.dtype).reshape(b.shape)
        for b, t in zip(before, theirs, strict=True)
    ]
    with np.errstate(all="ignore"):
        return wrong(corpus, before, after)


def _near(case: Case, mine: Array, other: Array) -> Iterator[str]:
    """Hold an approximation of all numbers of 16 bits against the exact ones."""
    opcode = case.lines[0]
    half = opcode.endswith(".f16")
    top, tiny = (65504.0, 2.0**-14) if half else (2.0**127 * (2 - 2.0**-7), 2.0**-126)

    def values(bits: Array) -> Array:
        if half:
            return np.asarray(bits.view(np.float16).astype(np.float64))
        return np.asarray((bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64))

    with np.errstate(all="ignore"):
        x = values(np.arange(65536, dtype=np.uint16))
        exact = np.tanh(x) if opcode.startswith("tanh") else np.exp2(x)
        usual = np.isfinite(exact) & (exact <= top) & (np.abs(exact) >= tiny)
        scale = 1.0 if opcode.startswith("tanh") else exact[usual]
        for who, bits in (("interpreter", mine), ("GPU", other)):
            got = values(bits.view(np.uint16))[usual]
            error = float((np.abs(got - exact[usual]) / scale).max())
            if not error <= case.most:
                yield f"{who}: error {error}, PTX allows {case.most}"


def im2col(pointer: int, fields: Mapping[str, Any]) -> bytes:
    """Return the driver's map of pixels of an array of f32: 128 bytes."""
    raw = (ctypes.c_char * 192)()
    held = ctypes.addressof(raw) + -ctypes.addressof(raw) % 64
    rank, (channels, pixels) = len(fields["shape"]), fields["box"]
    lower, upper = fields["corners"]
    status = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeIm2col(
        ctypes.c_void_p(held), ctypes.c_int(7), ctypes.c_uint32(rank), ctypes.c_void_p(pointer),
        (ctypes.c_uint64 * rank)(*fields["shape"]),
        (ctypes.c_uint64 * (rank - 1))(*fields["strides"]),
        (ctypes.c_int * (rank - 2))(*lower), (ctypes.c_int * (rank - 2))(*upper),
        ctypes.c_uint32(channels), ctypes.c_uint32(pixels), (ctypes.c_uint32 * rank)(*[1] * rank),
        ctypes.c_int(0), ctypes.c_int(fields["swizzle"]), ctypes.c_int(0), ctypes.c_int(0),
    )  # fmt: skip
    if status:
        raise RuntimeError(f"cuTensorMapEncodeIm2col: error {status}")
    return ctypes.string_at(held, 128)


def launched(
    code: bytes, case: Case, given: Sequence[Array | bytes | tuple[str, Array]]
) -> list[Array | None]:
    """Return a case's arrays after a launch on the GPU; a map is given by its fields and array."""
    import cupy

    loaded = cupy.cuda.function.Module()
    loaded.load(code)
    there: list[Any] = []
    mapped = []
    for value in given:
        if isinstance(value, tuple):
            mapped.append(cupy.asarray(value[1]))
            value = im2col(mapped[-1].data.ptr, json.loads(value[0]))
        if isinstance(value, bytes):
            kind = f"u{len(value)}" if len(value) in (1, 2, 4, 8) else f"V{len(value)}"
            there.append(np.frombuffer(value, kind)[0])
        else:
            there.append(cupy.asarray(value))
    three = [
        (*(size if isinstance(size, list) else (size,)), 1, 1)[:3]
        for size in (case.grid, case.block)
    ]
    loaded.get_function(case.entry)(
        *three, tuple(there), shared_mem=case.smem_bytes, enable_cooperative_groups=case.together
    )
    cupy.cuda.Device().synchronize()
    return [
        cupy.asnumpy(t) if isinstance(v, np.ndarray) else None
        for v, t in zip(given, there, strict=True)
    ]


class _Worker:
    """A process that launches; killed, and made anew, when a kernel fails or hangs."""

    def __init__(self) -> None:
        self.pool: ProcessPoolExecutor | None = None

    def run(self, timeout: float, *work: Any) -> list[Array | None]:
        """Launch; raises RuntimeError or TimeoutError."""
        if self.pool is None:
            self.pool = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
        try:
            return self.pool.submit(launched, *work).result(timeout)
        except Exception:
            self.end()
            raise

    def end(self) -> None:
        """Kill the process."""
        if self.pool is not None:
            for process in multiprocessing.active_children():
                process.kill()
            self.pool.shutdown(wait=False, cancel_futures=True)
            self.pool = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all kernels; returns 1 if one differs."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ptx_agreement")
    parser.add_argument("cases", type=Path, help="what ptx_agreement_cases wrote")
    parser.add_argument("--out", type=Path, default=Path("ptx_agreement.json"))
    parser.add_argument("--timeout", type=float, default=60, help="seconds of one kernel")
    given = parser.parse_args(arguments)
    (cases, arrays), machine = read(given.cases), provenance("python -m benchmarks.ptx_agreement")
    rows, start, worker = [], time.perf_counter(), _Worker()
    for case in cases:
        values = [
            bytes.fromhex(a["bytes"]) if "bytes" in a
            else (a["map"], arrays[a["array"]]) if "map" in a
            else arrays[a["array"]]
            for a in case.arguments
        ]  # fmt: skip
        drawn = len(case.lines) if case.kind == "lines" else 0
        row: dict[str, Any] = {"kernel": case.name, "instructions": drawn}
        if case.risky:
            worker.end()
        try:
            theirs = worker.run(given.timeout, arrays[case.code].tobytes(), case, values)
        except (RuntimeError, TimeoutError, BrokenProcessPool) as error:  # CUDA's, a hang
            row["faults"] = [f"GPU: {type(error).__name__}: {error}"]
        else:
            row["faults"] = list(faults(case, arrays, theirs))
            if case.kind == "registers" and theirs[0] is not None:
                row["gpu"] = theirs[0].view(np.uint32).tolist()
        if case.risky:
            worker.end()
        rows.append(row)
        for fault in row["faults"][:4]:
            sys.stdout.write(f"{case.name}: {json.dumps(fault)}\n")
            sys.stdout.flush()
    worker.end()
    summary = {"kernels": len(rows), "differing": sum(bool(r["faults"]) for r in rows),
               "instructions": sum(r["instructions"] for r in rows),
               "seconds": round(time.perf_counter() - start, 1)}  # fmt: skip
    tree = {"provenance": machine, "summary": summary, "rows": rows}
    given.out.write_text(json.dumps(tree, indent=1), encoding="utf-8")
    sys.stdout.write(f"{json.dumps(summary)}\n")
    return 1 if summary["differing"] else 0


if __name__ == "__main__":
    sys.exit(main())
