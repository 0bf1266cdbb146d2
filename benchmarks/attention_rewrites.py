"""What attention could gain by other arithmetic: its PTX rewritten, cycles counted.

    python -m benchmarks.attention_rewrites [--parts NAME ..] [--out DIR]    # on a GPU, 30 s a case

Each is a change of one schedule's text, not of its term; some are wrong and say what is to be won
at most.  ``REWRITES`` are of the point "queries in registers" of ``benchmarks.attention_cycles``,
which counts.  A row's ``error`` is the largest difference from FlashAttention-3's output, over its
largest element.

Source: for exponentials by FMA and a rescale where a maximum grew: FlashAttention-4; the polynomial
is Sollya's of degree 3 on [0, 1), 8.8e-5.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.attention import drawn, fa3, own, problem_of
from benchmarks.attention_cycles import CASES, changed, ran, recorded, traced
from benchmarks.peers import FOLDER
from tinygpu.codegen.emit import emit
from tinygpu.codegen.run.arguments import contract_of
from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.runtime.function import Function
from tinygpu.errors import TinyGpuError
from tinygpu.machines import MACHINES
from tinygpu.term.machine import Chosen

__all__ = ["REWRITES", "main"]

PARTS = ("b4_h16x1_8192x8192_d128_causal", "b4_h16x1_8192x8192_d128")
_CORES = 12
Rewrite = Callable[[str], str]

_EX2 = re.compile(r"^\tex2\.approx\.ftz\.f32 (%f\d+), (%f\d+);$")
_MANY = 32  # a step's exponentials, not those of its two factors
_POLYNOMIAL = """\t{{ .reg .f32 a, whole, part, p; .reg .b32 bits, more;
\tmax.f32 a, {source}, 0fC2FE0000;
\tadd.rm.f32 whole, a, 0f4B400000;
\tsub.f32 part, whole, 0f4B400000;
\tsub.f32 part, a, part;
\tfma.rn.f32 p, part, 0f3D9DF09D, 0f3E6906A4;
\tfma.rn.f32 p, p, part, 0f3F31F519;
\tfma.rn.f32 p, p, part, 0f3F800000;
\tmov.b32 bits, whole;
\tshl.b32 bits, bits, 23;
\tmov.b32 more, p;
\tadd.s32 bits, bits, more;
\tmov.b32 {target}, bits; }}"""
"""2^source: -127 and the fraction above it; the whole part is added to the exponent's bits."""


def by_fma(period: int, text: str) -> str:
    """Compute one of so many exponentials of a step by a polynomial."""
    found: list[str] = []
    lines = text.split("\n")
    for at, line in enumerate(lines):
        match = _EX2.match(line)
        start = at
        while match and _EX2.match(lines[start - 1]):
            start -= 1
        if match and (at - start) % period == period // 2 and _EX2.match(lines[start + _MANY - 1]):
            line = _POLYNOMIAL.format(target=match[1], source=match[2])
        found.append(line)
    return "\n".join(found)


def statement(pattern: str, opcode: str) -> re.Pattern[str]:
    """Return what matches a statement's comment and its instructions, all of one opcode."""
    return re.compile(rf"\t// {pattern}[^\n]*\n(?:\t{re.escape(opcode)} [^\n]*\n)+")


_RESCALE = statement(r"acc@\(turn\) = fma\.mul\(acc@\(turn\), shrink@\(turn\)\)", "mul.rn.f32")
_SUMS = statement(r"total@\(turn\) = fma\.add\(total@\(turn\), scores@\(turn\)\)", "add.rn.f32")
_NEW = statement(r"new@\(turn\) = alu\.max\(new@\(turn\), far@\(turn\)\)", "max.f32")
_WEIGHTS = statement(r"weights@\(turn\) = cvt\(scores@\(turn\)\)", "cvt.rn.bf16x2.f32")


def without(parts: Sequence[re.Pattern[str]], text: str) -> str:
    """Leave statements out: what they compute is wrong then."""
    for part in parts:
        text, count = part.subn("", text)
        assert count > 1
    return text


def where_needed(text: str) -> str:
    """Take the older maximum, and rescale nothing, unless one of a warp grew by a factor of 2^8."""
    tops = re.search(
        r"// top@\(turn\) = mov\(new@\(turn\)\) x 2\n\tmov\.f32 (%f\d+), (%f\d+);\n"
        r"\tmov\.f32 (%f\d+), (%f\d+);", text,
    )  # fmt: skip
    factor = re.search(
        r"= fma\(top@\(turn\), factor.*\n\tfma\.rn\.f32 %f\d+, %f\d+, (%f\d+),", text
    )
    assert tops
    assert factor
    first, new, second, other = tops.groups()
    kept = (
        f"\t{{ .reg .f32 a, b; .reg .pred q;\n\tsub.f32 a, {new}, {first};\n"
        f"\tsub.f32 b, {other}, {second};\n\tmax.f32 a, a, b;\n\tmul.f32 a, a, {factor[1]};\n"
        "\tsetp.gt.f32 q, a, 0f41000000;\n\tvote.sync.any.pred %grew, q, -1;\n"
        f"\t@!%grew mov.f32 {new}, {first};\n\t@!%grew mov.f32 {other}, {second}; }}\n"
    )
    number = 0

    def twice(found: re.Match[str]) -> str:
        nonlocal number
        number += 1
        return found[0] if number % 2 else found[0] + kept

    def skipped(found: re.Match[str]) -> str:
        nonlocal number
        number += 1
        comment, _, muls = found[0].partition("\n")
        return (
            f"{comment}\n\t@!%grew bra $kept_{number};\n{muls}$kept_{number}:\n"
            "\tbar.warp.sync -1;\n"
        )

    text = _RESCALE.sub(skipped, _NEW.sub(twice, text))
    return text.replace("\t.reg", "\t.reg .pred %grew;\n\t.reg", 1)


def by_mma(text: str) -> str:
    """Sum weights by mma.sync with a factor of ones: their registers are its fragments."""
    rows = list(dict.fromkeys(re.findall(r"\tadd\.rn\.f32 (%f\d+)", _SUMS.findall(text)[0])))
    text = _SUMS.sub("", text)

    def summed(found: re.Match[str]) -> str:
        packed = re.findall(r"\tcvt\.rn\.bf16x2\.f32 (%w\d+)", found[0])
        total = f"{{{rows[0]}, %more0, {rows[1]}, %more1}}"
        return found[0] + "".join(
            "\tmma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
            f"{total}, {{{', '.join(packed[i : i + 4])}}}, {{%ones, %ones}}, {total};\n"
            for i in range(0, len(packed), 4)
        )

    text = _WEIGHTS.sub(summed, text)
    ends = r"(\t// far@\(turn\) = shfl\.sync\(total@\(turn\)\) x 2 across 2\n)"
    fourth = "".join(f"\tmul.rn.f32 {row}, {row}, 0f3E800000;\n" for row in rows)
    text = re.sub(ends, lambda found: fourth + found[1], text)
    zero = "".join(f"\tmov.f32 %more{i}, 0f00000000;\n" for i in range(2))
    text = re.sub(
        r"(\tmul\.rn\.f32 %f0, %s_scale)", rf"\tmov.b32 %ones, 0x3F803F80;\n{zero}\1", text
    )
    return text.replace("\t.reg", "\t.reg .f32 %more<2>;\n\t.reg .b32 %ones;\n\t.reg", 1)


REWRITES: dict[str, tuple[str, Rewrite]] = {
    "as it is": ("SVsMvELOP", lambda text: text),
    **{f"1 of {n} exponentials by FMA": ("SVsMvELOP", partial(by_fma, n)) for n in (16, 8, 4, 2)},
    "rescales where needed": ("SVsMvELOP", where_needed),
    "other order": ("SOVsMvELP", lambda text: text),
    "other order, rescales where needed": ("SOVsMvELP", where_needed),
    "sums by mma.sync": ("SVsMvELOP", by_mma),
    "no sums (wrong)": ("SVsMvELOP", partial(without, [_SUMS])),
    "no rescales (wrong)": ("SVsMvELOP", partial(without, [_RESCALE])),
    "neither (wrong)": ("SVsMvELOP", partial(without, [_SUMS, _RESCALE])),
}
"""Rewrites by name: the consumer's order, and what is done to the text."""


def _inside(part: str) -> None:
    """Run each kernel for the profiler; print the names of those that ran and their errors."""
    one = CASES[part]
    problem, data = problem_of(one), drawn(one)[0]
    wanted: Any = fa3(one, data)()
    wanted = wanted.float()

    def built(name: str) -> tuple[str, Any]:
        order, rewrite = REWRITES[name]
        program = MACHINES["attention"].program(
            problem.operation, Chosen(changed(part, {"consumer_order": order}))
        )
        text = rewrite(emit(program, "sm_90a", problem.sizes))
        try:
            code = assemble(text, "sm_90a").bytes
            return name, Function(contract_of(program, problem.sizes), code)
        except TinyGpuError as error:
            sys.stderr.write(f"{name}: {error}\n")
            return name, None

    with ThreadPoolExecutor(_CORES) as pool:
        kernels = dict(pool.map(built, REWRITES))
    errors = {}
    for name, kernel in kernels.items():
        if kernel is not None:
            data.out.zero_()
            own(kernel, one, data)()
            off = (data.out.float().view(wanted.shape) - wanted).abs().max() / wanted.abs().max()
            errors[name] = float(off)
    sys.stdout.write(f"errors {json.dumps(errors)}\n")
    found = {name: kernel and partial(own, kernel, one) for name, kernel in kernels.items()}
    ran({**found, "FlashAttention-3": partial(fa3, one)}, data)


def _rows(part: str) -> list[dict[str, Any]]:
    """Return the rows of a case."""
    rows, said = traced("benchmarks.attention_rewrites", part, REWRITES)
    errors = next(json.loads(x[7:]) for x in said.splitlines() if x.startswith("errors "))
    return [{"case": part, **row, "error": errors.get(row["name"])} for row in rows]


def main(arguments: Sequence[str] | None = None) -> None:
    """Count and write a file; exit with 1 for a case that failed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention_rewrites")
    parser.add_argument("--parts", nargs="+", choices=CASES, default=[*PARTS])
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--inside", choices=CASES, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    if given.inside:
        _inside(given.inside)
        return
    recorded("attention_rewrites", given.parts, given.out, _rows)


if __name__ == "__main__":
    main()
