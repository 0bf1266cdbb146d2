"""Launches that can be guessed of pyptx's corpus of PTX, with NumPy's results where there are any.

    python -m benchmarks.others.guessed CORPUS FOLDER
    python -m benchmarks.races_of_others FOLDER

CORPUS is ``tests/corpus`` of github.com/patrick-toulme/pyptx, 219 files.  It prints how many are
read, how many the assembler takes as they are, and how many have a form that is not run.  Those of
LLVM's tests lack their parameters; a kernel that has none, and that the assembler takes, is
launched with a warpgroup.
"""

from __future__ import annotations

import collections
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from benchmarks.others import Launches
from tinygpu.codegen.emulator import Memory, Module
from tinygpu.errors import TinyGpuError

__all__ = ["main"]


def _launches(rng: np.random.Generator) -> Iterator[tuple[Any, ...]]:
    """Yield files, grids, blocks, arguments, results, tolerances, and arrays for tensor maps."""
    x, y, z = (rng.standard_normal(256).astype(np.float32) for _ in range(3))
    for name in ("vector_add", "ptoxide_add", "ptoxide_fncall"):
        yield name, 4, 64, [x, y, 0 * x, 250], {2: np.append(x + y, np.zeros(6))[:250]}, 0
    yield "ptoxide_add_simple", 1, 256, [x, y, 0 * x], {2: x + y}, 0
    yield "ptoxide_copy", 4, 64, [x, 0 * x, 256], {1: x}, 0
    yield "ptoxide_times_two", 4, 64, [x, 0 * x, 256], {1: 2 * x}, 0
    yield "ptoxide_transpose", [2, 2], [32, 32], [
        s := rng.standard_normal((64, 64)).astype(np.float32), 0 * s, 64], {1: s.T}, 0  # fmt: skip
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((20, 30), (30, 24)))
    yield "ptoxide_gemm", [3, 3], [8, 8], [a, b, np.zeros((20, 24), np.float32), 20, 30, 24], {
        2: a.astype(np.float64) @ b}, 1e-4  # fmt: skip
    up = np.sort(z.reshape(8, 32), 1)
    yield "sort_bitonic_warp", 8, 32, [z], {0: up}, 0
    a, b = (rng.standard_normal((128, 128)).astype(np.float32) for _ in range(2))
    square, exact = [a, b, 0 * a], {2: a.astype(np.float64) @ b}
    tf32 = [(m.view(np.uint32) & 0xFFFFE000).view(np.float32) for m in (a, b)]
    rounded = [*tf32, 0 * a], {2: tf32[0].astype(np.float64) @ tf32[1]}
    yield "matmul_big_blocks_v2", [4, 4], [32, 8], [*square, 4], exact, 1e-3
    for n in (3, 4, 5):
        yield f"matmul_big_blocks_v{n}", [2, 2], [32, 8], [*square, 2], exact, 1e-3
    for n in range(1, 5):
        yield f"matmul_wmma_v{n}", [4, 4], [32, 4], [*rounded[0], 4], rounded[1], 1e-3
    for n in range(5, 11):
        block = [32, 4 if n > 8 else 16]
        yield f"matmul_wmma_v{n}", [2, 2], block, [*rounded[0], 2], rounded[1], 1e-3
    h, g = (rng.standard_normal(s).astype(np.float16) for s in ((256, 192), (192, 128)))
    c = h.astype(np.float64) @ g.astype(np.float64)
    given = [h, g, np.zeros(c.shape, np.float32), 256, 192, 128, 192, 128, 128]
    yield "matmul_wgmma_v32_sm90a", [2, 2], 128, given, {2: c}, 1e-2
    a8, b8 = h.astype(ml_dtypes.float8_e5m2), g.astype(ml_dtypes.float8_e5m2)
    c8 = a8.astype(np.float64) @ b8.astype(np.float64)
    given = [a8.view(np.uint8), b8.view(np.uint8), np.zeros(c.shape, np.float16), 256, 192, 128]
    scratch = np.zeros(1 << 16, np.uint8)
    for name, more in (("sm120a", []), ("v33_sm90a", []), ("v34_sm90a", []), ("v35_sm90a", [0])):
        yield f"matmul_tma_{name}", [2, 2], 128, [*given, scratch, *more], {2: c8}, 3e-2
    q, k, v = held = rng.standard_normal((3, 1, 256, 128)).astype(np.float16)
    score = q.astype(np.float64) @ k.astype(np.float64).transpose(0, 2, 1) / 8
    e = np.exp(score - score.max(2, keepdims=True))
    o = e / e.sum(2, keepdims=True) @ v.astype(np.float64)
    given = [0.125, np.zeros(256, np.float32), 1, 1]
    for at, rows in enumerate((64, 128, 128, 64)):
        box = {"dtype": "f16", "shape": [128, 256], "strides_bytes": [256], "box": [64, rows]}
        given += [{"map": f"&{at}", **box, "swizzle": 3}, 256, 128, 128, 1]
    given += [256, scratch, 0]
    yield "fa_ws_pingpong_sm90a", 2, 384, given, {"&3": o}, 5e-3, [*held, 0 * q]


def _takes(text: str) -> bool:
    """Whether the assembler takes a text; what it no longer knows is taken for sm_80."""
    text = re.sub(r"\.target sm_[57]\d\b", ".target sm_80", text)
    [target] = re.findall(r"\.target (\w+)", text)[:1]
    command = ["ptxas", f"-arch={target}", "-c", "-", "-o", "/dev/null"]
    return not subprocess.run(command, input=text.encode(), capture_output=True).returncode


def main(arguments: Sequence[str]) -> None:
    """Read the corpus, count, and write the list."""
    launches, counts = Launches(Path(arguments[1])), collections.Counter[str]()
    files = {path.stem: path for path in sorted(Path(arguments[0]).rglob("*.ptx"))}
    guessed = {name: rest for name, *rest in _launches(np.random.default_rng(0))}
    for name, path in files.items():
        text = path.read_text(encoding="utf-8")
        taken = _takes(text)
        counts["files"] += 1
        counts["taken by the assembler"] += taken
        kernels = Module.parse(text).parsed.kernels
        (launches.folder / path.name).write_text(text, encoding="utf-8")
        if name in guessed:
            grid, block, given, expected, tolerance, *held = guessed[name]
            smem_bytes = 200_704 if ".extern .shared" in text else 0
            smem_bytes = min(smem_bytes, 98_304) if "sm_120a" in text else smem_bytes
            launches.add(
                path.name, "", grid, block, given, expected, held=held[0] if held else (),
                tolerance=tolerance, smem_bytes=smem_bytes,
            )  # fmt: skip
            counts["launched with results"] += 1
            continue
        if not taken:
            continue
        for kernel, entry in kernels.items():
            try:
                Module.parse(text).code(kernel, Memory())
            except TinyGpuError as error:
                counts["taken, but not run"] += 1
                sys.stdout.write(f"{name}: {str(error)[:160]}\n")
                continue
            if entry.parameters:
                counts["taken, but the launch is not guessed"] += 1
                sys.stdout.write(f"{name}: {len(entry.parameters)} parameters\n")
                continue
            counts["launched without results"] += 1
            launches.add(path.name, kernel, 1, 128, [], {})
    sys.stdout.write(f"{dict(counts)}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
