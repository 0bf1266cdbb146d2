"""How fast the PTX interpreter runs atomics: ``python -m benchmarks.interpreter_atomics``.

Every thread of 64 CTAs adds to (or exchanges, ...) one word 128 times.  A row
says how many millions of instructions of threads (not of warps) a second of CPU time has.  Words
are ``own`` ones, ``one`` for all, one a ``warp``, or 256 ``bins`` of a hash.
"""

from __future__ import annotations

import sys
import time

import numpy as np

from tinygpu.codegen.emulator import Memory, Module, launch

__all__ = ["OPERATIONS", "WORDS", "kernel", "main", "rate"]

OPERATIONS = (
    "red.global.add.u32", "red.global.max.s32", "red.global.add.f32", "atom.global.add.u32",
    "atom.global.min.s32", "atom.global.xor.b32", "atom.global.exch.b32", "atom.global.add.f32",
    "atom.global.inc.u32", "atom.global.cas.b32", "atom.shared.add.u32", "red.shared.add.u32",
)  # fmt: skip
WORDS = {
    "own": "mov.u32 %w, %t;",
    "one": "mov.u32 %w, 5;",
    "warp": "shr.u32 %w, %t, 5;",
    "bins": "mul.lo.u32 %w, %t, 2654435769; shr.u32 %w, %w, 24;",
}
_CTAS, _THREADS, _TIMES = 64, 128, 128


def kernel(operation: str, words: str) -> str:
    """Return the text of a kernel that does it, its words' places in ``words``."""
    name, _, kind = operation.rpartition(".")
    register, shared = "%f" if kind == "f32" else "%v", ".shared" in name
    result = f"{register}1, " if name.startswith("atom") else ""
    more = f", {register}2" if ".cas" in name else ""
    if shared:
        words = words.replace("%t,", "%s,").replace("%t;", "%s;")
    return f""".version 8.0
.target sm_90
.visible .entry k(.param .u64 x) {{
  .reg .u64 %a, %x; .reg .u32 %t, %w, %v<3>, %n, %s, %c; .reg .f32 %f<3>; .reg .pred %p;
  .shared .align 16 .b32 held[256];
  ld.param.u64 %x, [x]; mov.u32 %s, %tid.x; mov.u32 %c, %ctaid.x; mov.u32 %n, 0;
  mad.lo.u32 %t, %c, {_THREADS}, %s; mov.u32 %v2, 7; mov.f32 %f2, 0f3F800000;
  mov.u32 %v0, %t; mov.f32 %f0, 0f3F800000; {words}
  mul.wide.u32 %a, %w, 4; add.u64 %a, %a, %x;
  shl.b32 %w, %w, 2; mov.u32 %c, held; add.u32 %w, %w, %c;
  st.shared.u32 [%w], 0; bar.sync 0;
L: {operation} {result}[{"%w" if shared else "%a"}], {register}0{more};
  add.u32 %v0, %v0, 3; add.u32 %n, %n, 1; setp.lt.u32 %p, %n, {_TIMES}; @%p bra L;
  ret; }}"""


def rate(operation: str, words: str, *, lanes: bool) -> float:
    """Return millions of instructions of threads a second."""
    memory, held = Memory(), np.zeros(_CTAS * _THREADS, np.uint32)
    module, at = Module.parse(kernel(operation, WORDS[words])), memory.allocate(held)
    start = time.process_time()
    report = launch(module, "k", _CTAS, _THREADS, [at], memory, lanes=lanes)
    seconds = time.process_time() - start
    return sum(report.instruction_counts.values()) * 32 / seconds / 1e6


def main() -> None:
    """Print a table for warps as agents, and one for threads as agents."""
    for lanes in (False, True):
        head = f"M instructions/s, by {'threads' if lanes else 'warps'}"
        sys.stdout.write(f"{head:30}" + "".join(f"{w:>8}" for w in WORDS))
        for operation in OPERATIONS:
            rates = (max(rate(operation, w, lanes=lanes) for _ in range(3)) for w in WORDS)
            sys.stdout.write(f"\n{operation:30}" + "".join(f"{r:8.1f}" for r in rates))
        sys.stdout.write("\n")


if __name__ == "__main__":
    main()
