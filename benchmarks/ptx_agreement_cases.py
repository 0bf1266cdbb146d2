"""The kernels of ``ptx_agreement``: drawn here, run by the PTX interpreter, put into one file.

    python -m benchmarks.ptx_agreement_cases [--kernels 400] [--warps 60] [--seed 0] [--out FILE]

Every form of the interpreter's table that computes a register from registers, and whose bits PTX
defines, is run on 256 threads of ordinary and extreme operands; then come random kernels of such
instructions, random ones of shuffles, votes, matches, reductions, shared memory and atomics, and
kernels of nvcc: those of ``tests/ptx/cuda_calls.ptx`` and those of the corpora.  These are
assembled here with ``--fmad=false``, for PTX leaves open whether a ``mul`` and an ``add`` without a
rounding are one fma; the drawn ones, of which no result is read again, are PTX for the driver.
``tanh`` and ``ex2`` of all numbers of 16 bits and the registers that tell of shared memory follow,
then products with a sparse A, of small numbers, and loads of pixels in im2col mode.

The file is NumPy's: ``cases`` are JSON (``Case``), all else arrays of bytes by their keys.  ptxas
is needed, and neither z3 nor a GPU.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.ptx_agreement import THREADS, Array, Case
from tests.ptx_corpus import CASES, FOLDER, run, wrong
from tests.ptx_corpus_late import CASES as LATE
from tests.ptx_corpus_mended import APPROXIMATIONS, REGISTERS, every_number, registers
from tests.ptx_corpus_mended import CASES as MENDED
from tests.ptx_forms import instances, rejected
from tests.ptx_im2col import IMAGES, expected
from tests.ptx_im2col import kernel as loading
from tests.ptx_sparse import SPARSE, WGMMA, sparse, warpgroup
from tinygpu.codegen.emulator import Memory, Module, TensorMap, launch
from tinygpu.codegen.emulator.forms import FORMS, runs_on
from tinygpu.codegen.emulator.values import TYPES, typed
from tinygpu.codegen.run.assemble import assemble
from tinygpu.errors import ProgramError

__all__ = ["CORPUS", "Cases", "corpora", "drawn", "interpreted", "kernels", "main", "others",
           "pixels", "sparse_products", "text_of", "warps"]  # fmt: skip

CORPUS = {**CASES, **LATE, **MENDED}
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
        lines = [_line(text, draw, number) for number, text in enumerate(group)]
        name = f"{'forms' if n * 24 < len(usable) else 'random'} {n}"
        yield name, _stored(arch, lines), [line for line, *_ in lines]


def _stored(arch: str, lines: Sequence[tuple[str, str, str]]) -> str:
    """Return a kernel that stores the result of each line, by its register and type."""
    body = []
    for number, (line, result, kind) in enumerate(lines):
        at = f"[%u64_126+{8 * number}]"
        store = f"st.global.{kind} {at}, {result};"
        if kind == "pred":
            store = f"selp.b32 %b32_120, 1, 0, {result}; st.global.b32 {at}, %b32_120;"
        body += [line, store]
    return text_of(arch, body, len(lines))


_MEET = "barrier.sync 0;"
_PUT = f"{_MEET} st.shared.b32 [%b32_101], %b32_{{n}}; {_MEET}"
_GET = f"{_MEET} ld.shared.b32 {{to}}, [%b32_102];"
_NARROW = "ld.shared.{narrow} %b64_100, [%b32_102]; cvt.u32.u64 {to}, %b64_100;"
_EXCHANGE = (
    "shfl.sync.{way}.b32 {to}, %b32_{n}, {lane}, {clamp}, 0xffffffff;",
    "vote.sync.ballot.b32 {to}, %pred_{n}, 0xffffffff;",
    "vote.sync.{vote}.pred %pred_100, %pred_{n}, 0xffffffff; selp.b32 {to}, 1, 0, %pred_100;",
    "and.b32 %b32_110, %b32_{n}, 3; match.any.sync.b32 {to}, %b32_110, 0xffffffff;",
    "and.b32 %b32_110, %b32_{n}, 1; match.all.sync.b32 {to}|%pred_100, %b32_110, 0xffffffff;",
    "redux.sync.{fold}.{sign}32 {to}, %{sign}32_{n}, 0xffffffff;",
    "redux.sync.{logic}.b32 {to}, %b32_{n}, 0xffffffff;",
    f"{_PUT} {_GET}",
    f"{_MEET} st.shared.b64 [%b32_103], %b64_{{n}}; {_MEET} {_NARROW}",
    f"{_PUT} atom.shared.{{fold}}.{{sign}}32 %b32_112, [%b32_104], %{{sign}}32_{{m}}; {_GET}",
    f"{_PUT} red.shared.{{logic}}.b32 [%b32_104], %b32_{{m}}; {_GET}",
    "barrier.red.popc.u32 {to}, 0, %pred_{n};",
    "barrier.red.{both}.pred %pred_100, 0, %pred_{n}; selp.b32 {to}, 1, 0, %pred_100;",
    "prmt.b32 {to}, %b32_{n}, %b32_{m}, {lane};",
)
"""Lines of what threads do together: ``to`` is a fresh register, ``n`` and ``m`` are operands."""
_CHOICES = {
    "way": ("up", "down", "bfly", "idx"), "vote": ("all", "any", "uni"), "both": ("and", "or"),
    "fold": ("add", "min", "max"), "sign": ("u", "s"), "logic": ("and", "or", "xor"),
    "narrow": ("u8", "s8", "u16", "s16", "u32", "s32"),
}  # fmt: skip


def warps(arch: str, count: int, seed: int) -> Iterator[tuple[str, str, list[str]]]:
    """Yield kernels as ``kernels`` does, of what threads do together.

    Atomics give what is there at the end alone, for their order is open.
    """
    draw = random.Random(f"warps {seed}")
    for n in range(count):
        turn, lines = draw.randrange(256), []
        for number, pattern in enumerate(draw.choices(_EXCHANGE, k=12)):
            chosen: dict[str, Any] = {key: draw.choice(of) for key, of in _CHOICES.items()}
            clamp = draw.choice((0, 8, 16, 24, 28)) << 8
            chosen |= {"n": draw.randrange(8), "m": draw.randrange(8), "lane": draw.randrange(32)}
            chosen |= {"clamp": clamp if chosen["way"] == "up" else clamp | 31}
            to = f"%b32_{8 + number}"
            lines.append((pattern.format(to=to, **chosen), to, "b32"))
        places = (f"mov.u32 %b32_100, held; add.u32 %b32_105, %u32_127, {turn};"
                  "and.b32 %b32_105, %b32_105, 255; mad.lo.u32 %b32_101, %u32_127, 4, %b32_100;"
                  "mad.lo.u32 %b32_102, %b32_105, 4, %b32_100;"
                  "mad.lo.u32 %b32_103, %u32_127, 8, %b32_100; and.b32 %b32_104, %u32_127, 15;"
                  "mad.lo.u32 %b32_104, %b32_104, 4, %b32_100;")  # fmt: skip
        first, *rest = lines
        lines = [(f".shared .align 8 .b8 held[2048]; {places} {first[0]}", *first[1:]), *rest]
        yield f"warps {n}", _stored(arch, lines), [line for line, *_ in lines]


def text_of(arch: str, body: Sequence[str], results: int) -> str:
    """Return a kernel that reads eight words a thread and stores its results."""
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


def interpreted(text: str, x: Array, results: int) -> Array:
    """Return what a kernel of these leaves.  Raises ProgramError for one that has a fault."""
    memory, y = Memory(), np.zeros((THREADS, results), np.uint64)
    arguments = [memory.allocate(x.copy(), "x"), memory.allocate(y, "y")]
    report = launch(Module.parse(text), "k", 1, THREADS, arguments, memory, lanes=False)
    if report.findings:
        raise ProgramError(f"{report.findings[0]}")
    return y


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


class Cases:
    """Cases in the making, and their arrays."""

    def __init__(self) -> None:
        self.cases: list[Case] = []
        self.arrays: dict[str, Array] = {}

    def held(self, key: str, data: Any) -> str:
        """Keep bytes under a key."""
        raw = np.frombuffer(data, np.uint8) if isinstance(data, bytes) else np.asarray(data)
        self.arrays[key] = np.ascontiguousarray(raw).reshape(-1).view(np.uint8)
        return key

    def add(
        self, name: str, code: str, before: Sequence[Any], after: Sequence[Any], **how: Any
    ) -> None:
        """Add a case: arrays by their keys (those of ``before`` may be there), else raw bytes."""
        arguments, results = [], []
        for n, (first, last) in enumerate(zip(before, after, strict=True)):
            if isinstance(first, bytes | dict):
                arguments.append({"bytes": first.hex()} if isinstance(first, bytes) else first)
                results.append("")
                continue
            shared = isinstance(first, str)
            key = first if shared else self.held(f"{name}.{n}", first)
            arguments.append({"array": key})
            same = not isinstance(last, np.ndarray) or last.tobytes() == self.arrays[key].tobytes()
            results.append(key if same else self.held(f"{name}.{n}.after", last))
        self.cases.append(Case(name, code, arguments=arguments, after=results, **how))

    def write(self, path: Path) -> None:
        """Write all of it."""
        rows = json.dumps([asdict(case) for case in self.cases]).encode()
        np.savez_compressed(path, cases=np.frombuffer(rows, np.uint8), **self.arrays)  # type: ignore[arg-type]


_WAITS = {"cas", "exch", "volatile", "acquire", "nanosleep"}


def _risky(module: Module, kernel: str) -> bool:
    """Whether a kernel has what threads wait for each other with, beside barriers."""
    parsed = module.parsed
    every = [parsed.kernels[kernel], *parsed.functions.values()]
    return any(_WAITS & set(i.parts) for one in every for i in one.instructions)


def _raw(value: Any, kind: str, width: int) -> Any:
    """Return an argument that is no array as a parameter's bytes."""
    if isinstance(value, np.ndarray | bytes):
        return value
    return typed(value, TYPES[kind if kind in TYPES else f"b{8 * width}"]).tobytes()


def drawn(cases: Cases, texts: Iterable[tuple[str, str, list[str]]], seed: int) -> None:
    """Add drawn kernels."""
    x = _inputs(seed)
    shared = cases.held("x", x)
    empty: dict[int, str] = {}
    for name, text, lines in texts:
        y, n = interpreted(text, x, len(lines)), len(lines)
        empty.setdefault(n, cases.held(f"y{n}", np.zeros((THREADS, n), np.uint64)))
        code = cases.held(f"{name}.ptx", text.encode())
        cases.add(name, code, [shared, empty[n]], ["", y], kind="lines", block=THREADS, lines=lines)


def _calls(cases: Cases, arch: str) -> None:
    path = Path(__file__).parent.parent / "tests" / "ptx" / "cuda_calls.ptx"
    text = path.read_text(encoding="utf-8")
    code = cases.held("cuda_calls", assemble(text, arch, extra=("--fmad=false",)).bytes)
    module = Module.parse(text)
    for kernel, threads, x, y, exact in _nvcc():
        memory, mine = Memory(), y.copy()
        given = [memory.allocate(x.copy()), memory.allocate(mine), np.int32(len(x))]
        report = launch(module, kernel, 1, threads, given, memory)
        if report.findings:
            raise ProgramError(f"{kernel}: {report.findings[0]}")
        size = np.int32(len(x)).tobytes()
        cases.add(
            f"nvcc {kernel}", code, [x, y, size], [x, mine, size], entry=kernel, block=threads,
            kind="bytes" if exact else "f64", risky=_risky(module, kernel),
        )  # fmt: skip


def corpora(cases: Cases, arch: str, names: Iterable[str]) -> None:
    """Add nvcc's kernels of the corpora."""
    built: dict[str, Module] = {}
    for name, case in ((name, CORPUS[name]) for name in names):
        if case.file not in built:
            text = lzma.decompress((FOLDER / f"{case.file}.ptx.xz").read_bytes()).decode()
            cases.held(case.file, assemble(text, arch, extra=("--fmad=false",)).bytes)
            built[case.file] = Module.parse(text)
        _, before, after = run(case, of=built[case.file])
        if told := wrong(case, before, after):
            raise ProgramError(f"{name}: {told}")
        parameters = built[case.file].parsed.kernels[case.kernel].parameters
        first, last = (
            [_raw(v, p.type, p.bytes) for v, p in zip(values, parameters, strict=True)]
            for values in (before, after)
        )
        cases.add(
            f"nvcc {name}", case.file, first, last, entry=case.kernel, grid=case.grid,
            block=case.block, smem_bytes=case.smem_bytes, together=case.together, kind="corpus",
            exact=not (case.tolerance or case.holds), lines=[name],
            risky=case.together or _risky(built[case.file], case.kernel),
        )  # fmt: skip


def others(cases: Cases, arch: str) -> None:
    """Add the approximations of 16 bits, alone and in pairs, and the registers."""
    numbers = np.arange(65536, dtype=np.uint16)
    for opcode, most in APPROXIMATIONS.items():
        for name, width in ((opcode, 1), (f"{opcode}x2", 2)):
            memory, mine, text = Memory(), numbers.copy(), every_number(name, arch)
            given = [memory.allocate(mine)]
            launch(Module.parse(text), "k", 64 // width, 1024, given, memory)
            code = cases.held(f"{name}.ptx", text.encode())
            how = {"grid": 64 // width, "block": 1024, "kind": "near", "most": most}
            cases.add(name, code, [numbers], [mine], lines=[opcode], **how)
    text = registers(arch)
    code = cases.held("registers.ptx", text.encode())
    for dynamic in (0, 200):
        memory, mine = Memory(), np.zeros(len(REGISTERS), np.uint32)
        launch(Module.parse(text), "k", 1, 1, [memory.allocate(mine)], memory, smem_bytes=dynamic)
        cases.add(
            f"registers, {dynamic} B", code, [np.zeros_like(mine)], [mine], kind="registers",
            smem_bytes=dynamic, lines=list(REGISTERS),
        )  # fmt: skip


def sparse_products(cases: Cases, seeds: int) -> None:
    """Add products with a sparse A, of warps and of warpgroups."""
    made = {
        f"mma.sp{'::ordered' * o} {shape} {to} {a} {b} {seed}": sparse(
            shape, to, a, b, selector, ordered=o, seed=seed
        )
        for shape, to, a, b, selector in SPARSE
        for o in (True, False)
        for seed in range(seeds)
    }
    made |= {
        f"wgmma.sp {' '.join(map(str, s))} {seed}": warpgroup(*s, seed=seed)
        for s in WGMMA
        for seed in range(seeds)
    }
    for name, case in made.items():
        memory, mine = Memory(), np.zeros_like(case.y)
        given = [memory.allocate(case.x.copy()), memory.allocate(mine)]
        report = launch(Module.parse(case.text), "k", 1, len(mine), given, memory)
        if report.findings or not np.array_equal(mine, case.y):
            raise ProgramError(f"{name}: {report.findings or 'not what NumPy says'}")
        code, zeros = cases.held(f"{name}.ptx", case.text.encode()), np.zeros_like(mine)
        cases.add(name, code, [case.x, zeros], [case.x, mine], kind="bytes", block=len(mine))


def pixels(cases: Cases) -> None:
    """Add loads in im2col mode."""
    for name, one in IMAGES.items():
        memory, x = Memory(), one.array()
        mine, box = np.zeros((one.pixels, one.channels), np.float32), (one.channels, one.pixels)
        shape, strides, corners = x.shape[::-1], x.strides[-2::-1], (one.lower, one.upper)
        held = TensorMap(
            memory.allocate(x), "f32", shape, strides, box, one.swizzle, corners=corners
        )
        report = launch(
            Module.parse(loading(one)), "k", 1, 32, [held, memory.allocate(mine)], memory
        )
        if report.findings or not np.array_equal(mine, expected(one)):
            raise ProgramError(f"im2col {name}: {report.findings or 'not what NumPy says'}")
        fields = {"shape": shape, "strides": strides, "box": box, "corners": corners,
                  "swizzle": one.swizzle}  # fmt: skip
        given = {"map": json.dumps(fields), "array": cases.held(f"im2col {name}.x", x)}
        code = cases.held(f"im2col {name}.ptx", loading(one).encode())
        before, after = [given, np.zeros_like(mine)], ["", mine]
        cases.add(f"im2col {name}", code, before, after, kind="bytes", block=32)


def main(arguments: Sequence[str] | None = None) -> None:
    """Draw, interpret and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.ptx_agreement_cases")
    parser.add_argument("--kernels", type=int, default=400, help="random ones beside the forms")
    parser.add_argument("--warps", type=int, default=60, help="of what threads do together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--arch", default="sm_90a")
    parser.add_argument("--out", type=Path, default=Path("ptx_agreement_cases.npz"))
    given = parser.parse_args(arguments)
    start, cases = time.perf_counter(), Cases()
    drawn(cases, kernels(given.arch, given.kernels, given.seed), given.seed)
    drawn(cases, warps(given.arch, given.warps, given.seed), given.seed)
    _calls(cases, given.arch)
    corpora(cases, given.arch, CORPUS)
    others(cases, given.arch)
    sparse_products(cases, 4)
    pixels(cases)
    cases.write(given.out)
    size, seconds = given.out.stat().st_size / 1e6, time.perf_counter() - start
    sys.stdout.write(f"{len(cases.cases)} kernels, {size:.1f} MB, {seconds:.0f} s: {given.out}\n")


if __name__ == "__main__":
    main()
