"""Single instructions and random kernels, run by the PTX interpreter and by a GPU: bit for bit.

    python -m benchmarks.ptx_agreement [--kernels 400] [--seed 0] [--out FILE] [--assemble-only]

Every form of the interpreter's table that computes a register from registers, and whose bits PTX
defines, is run on 256 threads of ordinary and extreme operands; then come random kernels of such
instructions, and kernels of nvcc: those of ``tests/ptx/cuda_calls.ptx``, of whom sin and pow agree
within 1e-13, as they build on approximations, and those of the corpora, whose results are held
against what they should be, and against each other where that is exact.  ``tanh`` and ``ex2`` of
all numbers of 16 bits are held against the exact ones, within what PTX allows; and the registers
that tell of shared memory are shown.  They are assembled with
``--fmad=false``: PTX leaves open whether a ``mul`` and an ``add`` without a rounding are one fma.
A NaN agrees with any NaN.
``ptxas`` assembles for ``--arch``; CuPy launches.  Neither z3 nor a network is needed.

The file has a row a kernel: its instructions, and of those that differ the operands and results.
"""

from __future__ import annotations

import argparse
import json
import lzma
import multiprocessing
import random
import re
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from benchmarks.peers import write_tree
from tests.ptx_corpus import CASES, FOLDER, run, wrong
from tests.ptx_corpus_late import CASES as LATE
from tests.ptx_corpus_mended import APPROXIMATIONS, REGISTERS, every_number, registers
from tests.ptx_corpus_mended import CASES as MENDED
from tests.ptx_forms import instances, rejected
from tinygpu.codegen.emulator import Memory, Module, launch
from tinygpu.codegen.emulator.forms import FORMS, runs_on
from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.run.provenance import provenance

__all__ = ["THREADS", "kernels", "main"]

Array = NDArray[Any]
THREADS = 256
_FAMILIES = ("Arithmetic and conversion", "Comparison, selection, bits")
_OPEN = re.compile(r"approx|\.full|^div\.[us]|^rem\.|^fns|^testp|^copysign")
"""What PTX leaves open: approximations, division by zero; ``fns`` and others have odd operands."""
_WORDS = [
    *(
        0,
        1,
        2,
        0x7F,
        0x80,
        0xFF,
        0x7FFF,
        0x8000,
        0xFFFF,
        0x7FFFFFFF,
        0x80000000,
        0xFFFFFFFF,
        31,
        32,
    ),
    *(0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x00800000, 0x007FFFFF, 1 << 23),
    *(0x3C003C00, 0x7C00FC00, 0x04000001, 0x7BFF0400, 0x3F803F80, 0x7F80FF80, 0x4B000001),
]
_KINDS = {"b16": 2, "u16": 2, "s16": 2, "b32": 4, "u32": 4, "s32": 4, "f32": 4,
          "b64": 8, "u64": 8, "s64": 8, "f64": 8}  # fmt: skip


def _usable(arch: str) -> list[str]:
    """Return one instruction for each modifier of each form that can be compared."""
    found = []
    for form in FORMS:
        if form.family not in _FAMILIES or not runs_on(form.target, arch):
            continue
        if (
            form.version > (9, 0)
            or "cc" in form.modifiers
            or form.entry in ("addc", "subc", "madc")
        ):
            continue
        found += [i for i in instances(form) if not _OPEN.search(i)]
    refused = rejected(found, "9.0", arch)
    return [i.rstrip(";") for i in found if i not in refused]


def _operands(text: str) -> tuple[str, list[str]]:
    opcode, _, rest = text.partition(" ")
    return opcode, [o.strip() for o in rest.split(",")]


def _line(text: str, draw: random.Random, number: int) -> tuple[str, str, str]:
    """Return an instruction on fresh registers: its text, its result's register and type."""
    opcode, operands = _operands(text)
    kind = re.sub(r"^%(\w+)_\d+$", r"\1", operands[0])
    result = f"%{kind}_{8 + number % 100}"
    read = []
    for operand in operands[1:]:
        found = re.fullmatch(r"%(\w+)_\d+", operand)
        read.append(f"%{found.group(1)}_{draw.randrange(8)}" if found else operand)
    return f"{opcode} {', '.join([result, *read])};", result, kind


def kernels(arch: str, count: int, seed: int) -> Iterator[tuple[str, str, list[str]]]:
    """Yield kernels: name, text, and the instructions whose results it stores."""
    draw, usable = random.Random(seed), _usable(arch)
    groups = [usable[n : n + 24] for n in range(0, len(usable), 24)]
    groups += [draw.choices(usable, k=draw.randint(8, 24)) for _ in range(count)]
    for n, group in enumerate(groups):
        body, lines = [], []
        for number, text in enumerate(group):
            line, result, kind = _line(text, draw, number)
            lines.append(line)
            body.append(line)
            at = f"[%u64_126+{8 * number}]"
            if kind == "pred":
                body.append(f"selp.b32 %b32_120, 1, 0, {result}; st.global.b32 {at}, %b32_120;")
            else:
                body.append(f"st.global.{kind} {at}, {result};")
        yield (
            f"{'forms' if n * 24 < len(usable) else 'random'} {n}",
            _text(arch, body, len(group)),
            lines,
        )


def _text(arch: str, body: Sequence[str], results: int) -> str:
    loads = [f"ld.global.b{8 * w} %{k}_{n}, [%u64_125+{8 * n}];"
             for k, w in _KINDS.items() for n in range(8)]  # fmt: skip
    marks = [f"setp.lt.s32 %pred_{n}, %s32_{n}, 0;" for n in range(8)]
    registers = " ".join(f".reg .{k} %{k}_<128>;" for k in (*_KINDS, "pred"))
    return "\n".join(
        [f".version 9.0\n.target {arch}\n.address_size 64",
         ".visible .entry k(.param .u64 x, .param .u64 y) {", registers,
         "ld.param.u64 %u64_125, [x]; ld.param.u64 %u64_126, [y]; mov.u32 %u32_127, %tid.x;",
         "mad.wide.u32 %u64_125, %u32_127, 64, %u64_125;",
         f"mad.wide.u32 %u64_126, %u32_127, {8 * results}, %u64_126;",
         *loads, *marks, *body, "ret; }"]
    )  # fmt: skip


def _inputs(seed: int) -> Array:
    """Return eight 64-bit words a thread: random ones, halves and whole ones that are extreme."""
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 1 << 64, (THREADS, 8), dtype=np.uint64)
    odd = np.array(_WORDS, np.uint64)
    low, high = rng.choice(odd, words.shape), rng.choice(odd, words.shape)
    words = np.where(rng.random(words.shape) < 0.4, high << np.uint64(32) | low, words)
    doubles = rng.standard_normal(words.shape).view(np.uint64)
    return np.where(rng.random(words.shape) < 0.15, doubles, words)


def _interpreted(text: str, x: Array, results: int) -> Array:
    memory, y = Memory(), np.zeros((THREADS, results), np.uint64)
    arguments = [memory.allocate(x.copy(), "x"), memory.allocate(y, "y")]
    report = launch(Module.parse(text), "k", 1, THREADS, arguments, memory, lanes=False)
    assert report.findings == (), report.findings
    return y


def _on_gpu(cubin: bytes, x: Array, results: int) -> Array:
    import cupy

    module = cupy.cuda.function.Module()
    module.load(cubin)
    y = cupy.zeros((THREADS, results), cupy.uint64)
    module.get_function("k")((1,), (THREADS,), (cupy.asarray(x), y))
    result: Array = cupy.asnumpy(y)
    return result


def _differs(line: str, mine: Array, other: Array) -> Array:
    """Return where two results differ; not where both are NaN."""
    kind = re.match(r"[\w.:]+ %(\w+)_", line)
    name = line.split()[0].split(".")
    result = name[-2] if name[0] in ("cvt", "set") else name[-1]
    wide = {"f16x2": "f16", "bf16x2": "bf16", "f32x2": "f32"}.get(result, result)
    from tinygpu.codegen.emulator.values import TYPES

    if kind is None or wide not in ("f16", "bf16", "f32", "f64", "tf32"):
        return np.flatnonzero(mine != other)
    parts = [np.ascontiguousarray(v).view(TYPES[wide]) for v in (mine, other)]
    raw = [np.ascontiguousarray(v).view(f"u{TYPES[wide].itemsize}") for v in (mine, other)]
    bad = (raw[0] != raw[1]) & ~(np.isnan(parts[0]) & np.isnan(parts[1]))
    return np.unique(np.flatnonzero(bad) // (8 // TYPES[wide].itemsize))


def _nvcc() -> list[tuple[str, int, Array, Array, bool]]:
    """Return kernels of nvcc: threads, input, output, and whether PTX defines every bit."""
    rng = np.random.default_rng(1)
    words, counts = rng.integers(0, 100, 96).astype(np.int32), np.arange(128, dtype=np.int32)
    wide = rng.integers(1, 2**63, 40).astype(np.uint64)
    reals, rows = rng.uniform(0.1, 6, 96), rng.uniform(1, 2, (96, 4)).astype(np.float32)
    found = [(k, 96, words, np.zeros_like(words), True)
             for k in ("rec", "indirect", "sw", "pf", "heap")]  # fmt: skip
    found += [(k, 128, counts, np.zeros(1, np.int32), True) for k in ("lockk", "lastarr", "cgred")]
    found += [(k, 64, counts, np.zeros(1, np.int32), True) for k in ("flagk", "volflag")]
    return [
        *found,
        ("hist", 96, words, np.zeros(16, np.int32), True),
        ("i128", 64, wide, np.zeros(80, np.uint64), True),
        ("structs", 96, rows, np.zeros_like(rows), True),
        ("dsin", 96, reals, np.zeros_like(reals), False),
        ("dpow", 96, reals, np.zeros_like(reals), False),
        ("warpred", 96, reals.astype(np.float32), np.zeros(1, np.float32), True),
    ]


def _nvcc_rows(arch: str, *, compare: bool) -> Iterator[dict[str, Any]]:
    path = Path(__file__).parent.parent / "tests" / "ptx" / "cuda_calls.ptx"
    text = path.read_text(encoding="utf-8")
    module, cubin = Module.parse(text), assemble(text, arch).bytes
    for kernel, threads, x, y, exact in _nvcc():
        memory, mine = Memory(), y.copy()
        given = [memory.allocate(x.copy()), memory.allocate(mine), np.int32(len(x))]
        report = launch(module, kernel, 1, threads, given, memory)
        faults = [str(f) for f in report.findings]
        if compare:
            import cupy

            loaded = cupy.cuda.function.Module()
            loaded.load(cubin)
            there = cupy.asarray(y)
            call = (cupy.asarray(x), there, np.int32(len(x)))
            loaded.get_function(kernel)((1,), (threads,), call)
            other = cupy.asnumpy(there)
            same = np.array_equal(mine.view(np.uint8), other.view(np.uint8))
            if not same and (exact or not np.allclose(mine, other, rtol=1e-13)):
                faults.append(f"interpreter {mine.tolist()[:4]}, GPU {other.tolist()[:4]}")
        yield {"kernel": f"nvcc {kernel}", "instructions": [], "faults": faults}


def _corpus_rows(arch: str, *, compare: bool) -> Iterator[dict[str, Any]]:
    """Yield the rows of nvcc's kernels of the corpora, each beside what it should compute.

    They are launched in a process of their own: one that fails or hangs spoils the CUDA context,
    is a fault by itself, and the next one gets a new process.
    """
    built: dict[str, tuple[Module, bytes]] = {}
    worker = _worker()
    for name, case in {**CASES, **LATE, **MENDED}.items():
        if case.file not in built:
            text = lzma.decompress((FOLDER / f"{case.file}.ptx.xz").read_bytes()).decode()
            cubin = assemble(text, arch, extra=("--fmad=false",)).bytes
            built[case.file] = Module.parse(text), cubin
        kernels, cubin = built[case.file]
        _, before, mine = run(case, of=kernels)
        faults = [told] if (told := wrong(case, before, mine)) else []
        same = None
        if compare:
            widths = [p.bytes for p in kernels.parsed.kernels[case.kernel].parameters]
            launched = (case.kernel, case.grid, case.block, case.smem_bytes, case.together)
            try:
                theirs = worker.submit(_launched, cubin, launched, widths, before).result(60)
            except (RuntimeError, TimeoutError) as error:  # CUDA's errors, a lost process, a hang
                for process in multiprocessing.active_children():
                    process.kill()
                worker.shutdown(wait=False, cancel_futures=True)
                worker = _worker()
                faults.append(f"GPU: {type(error).__name__}: {error}")
            else:
                if told := wrong(case, before, theirs):
                    faults.append(f"GPU: {told}")
                same = all(
                    a.tobytes() == b.tobytes()
                    for a, b in zip(mine, theirs, strict=True)
                    if isinstance(a, np.ndarray)
                )
                if not same and not (case.tolerance or case.holds):
                    faults.append("the results differ, and PTX says what they are")
        yield {"kernel": f"nvcc {name}", "instructions": [], "faults": faults, "same_bits": same}
    worker.shutdown(wait=False, cancel_futures=True)


def _approximation_rows(arch: str, *, compare: bool) -> Iterator[dict[str, Any]]:
    """Yield a row for each approximation of 16 bits, alone and in pairs, of all numbers."""
    for opcode, most in APPROXIMATIONS.items():
        dtype: Any = ml_dtypes.bfloat16 if opcode.endswith("bf16") else np.float16
        given = np.arange(65536, dtype=np.uint16)
        with np.errstate(all="ignore"):
            x = given.view(dtype).astype(np.float64)
            exact = np.tanh(x) if opcode.startswith("tanh") else np.exp2(x)
        info: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
        top, tiny = float(info.max), float(info.tiny)
        usual = np.isfinite(exact) & (exact <= top) & (np.abs(exact) >= tiny)
        scale = 1.0 if opcode.startswith("tanh") else exact[usual]
        for name, width in ((opcode, 1), (f"{opcode}x2", 2)):
            text, grid = every_number(name, arch), 64 // width
            memory, mine = Memory(), given.copy()
            launch(Module.parse(text), "k", grid, 1024, [memory.allocate(mine)], memory)
            results = {"interpreter": mine}
            cubin = assemble(text, arch).bytes
            if compare:
                launched = ("k", grid, 1024, 0, False)
                results["GPU"] = _launched(cubin, launched, [8], [given])[0]
            row: dict[str, Any] = {"kernel": name, "instructions": [name], "faults": []}
            for who, bits in results.items():
                got = bits.view(dtype).astype(np.float64)
                error = float((np.abs(got[usual] - exact[usual]) / scale).max())
                row[f"{who} error"] = error
                if error > most:
                    row["faults"].append(f"{who}: error {error}, PTX allows {most}")
            if compare:
                odd = ~usual & ~np.isnan(x) & (mine != results["GPU"])
                row["equal"] = int((mine == results["GPU"]).sum())
                row["odd"] = [
                    [hex(n), hex(mine[n]), hex(results["GPU"][n])] for n in np.flatnonzero(odd)[:8]
                ]
            yield row


def _register_rows(arch: str, *, compare: bool) -> Iterator[dict[str, Any]]:
    """Yield the registers of shared memory; those that the driver sets are only shown."""
    text, y = registers(arch), np.zeros(len(REGISTERS), np.uint32)
    for dynamic in (0, 200):
        memory, mine = Memory(), y.copy()
        given = [memory.allocate(mine)]
        launch(Module.parse(text), "k", 1, 1, given, memory, smem_bytes=dynamic)
        row: dict[str, Any] = {"kernel": f"registers, {dynamic} B", "instructions": []}
        row |= {"interpreter": mine.tolist(), "faults": []}
        cubin = assemble(text, arch).bytes
        if compare:
            theirs = _launched(cubin, ("k", 1, 1, dynamic, False), [8], [y])[0]
            row["gpu"] = theirs.tolist()
            row["faults"] = [
                f"%{name}: interpreter {a}, GPU {b}"
                for name, a, b in list(zip(REGISTERS, mine, theirs, strict=True))[:5]
                if a != b
            ]
        yield row


def _worker() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))


def _launched(
    cubin: bytes,
    launched: tuple[str, Any, Any, int, bool],
    widths: Sequence[int],
    before: Sequence[Any],
) -> list[Any]:
    """Return a case's arguments after a launch on the GPU."""
    import cupy

    kernel, grid, block, smem_bytes, together = launched
    loaded = cupy.cuda.function.Module()
    loaded.load(cubin)
    given: list[Any] = []
    for width, value in zip(widths, before, strict=True):
        if isinstance(value, np.ndarray):  # as bytes: CuPy has no bf16
            given.append(cupy.asarray(np.ascontiguousarray(value).view(np.uint8)))
        elif isinstance(value, bytes):
            given.append(np.frombuffer(value, f"V{len(value)}")[0])
        else:
            given.append(np.array(value).astype(f"u{width}")[()])
    three = [(*(size if isinstance(size, tuple) else (size,)), 1, 1)[:3] for size in (grid, block)]
    loaded.get_function(kernel)(
        *three, tuple(given), shared_mem=smem_bytes, enable_cooperative_groups=together
    )
    return [
        cupy.asnumpy(there).view(value.dtype).reshape(value.shape)
        if isinstance(value, np.ndarray)
        else value
        for there, value in zip(given, before, strict=True)
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all kernels; returns 1 if one differs."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--kernels", type=int, default=400, help="random ones beside the forms")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--out", type=Path, default=Path("ptx_agreement.json"))
    parser.add_argument("--assemble-only", action="store_true", help="no GPU: assemble, interpret")
    given = parser.parse_args(arguments)
    rows, start = [], time.perf_counter()
    for name, text, lines in kernels(given.arch, given.kernels, given.seed):
        x = _inputs(given.seed)
        cubin = assemble(text, given.arch).bytes
        mine = _interpreted(text, x, len(lines))
        faults = []
        if not given.assemble_only:
            other = _on_gpu(cubin, x, len(lines))
            for n, line in enumerate(lines):
                bad = _differs(line, mine[:, n], other[:, n])
                faults += [
                    {"instruction": line, "thread": int(t), "input": [hex(int(v)) for v in x[t]],
                     "interpreter": hex(int(mine[t, n])), "gpu": hex(int(other[t, n]))}
                    for t in bad[:2]
                ]  # fmt: skip
        rows.append({"kernel": name, "instructions": lines, "faults": faults})
    rows += _nvcc_rows(given.arch, compare=not given.assemble_only)
    rows += _approximation_rows(given.arch, compare=not given.assemble_only)
    rows += _register_rows(given.arch, compare=not given.assemble_only)
    rows += _corpus_rows(given.arch, compare=not given.assemble_only)
    summary = {"kernels": len(rows), "differing": sum(bool(r["faults"]) for r in rows),
               "instructions": sum(len(r["instructions"]) for r in rows),
               "seconds": round(time.perf_counter() - start, 1), "arch": given.arch,
               "compared": not given.assemble_only}  # fmt: skip
    record = provenance(
        f"python -m benchmarks.ptx_agreement --kernels {given.kernels} --arch {given.arch}"
    )
    write_tree(given.out, {"provenance": record, "summary": summary, "rows": rows})
    print(json.dumps(summary))
    for row in rows:
        if "gpu" in row or "GPU error" in row:
            print(json.dumps(row))
        for fault in row["faults"][:4]:
            print(row["kernel"], json.dumps(fault))
    return 1 if summary["differing"] else 0


if __name__ == "__main__":
    sys.exit(main())
