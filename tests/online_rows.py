"""An online softmax by threads: y[i,e] = sum over j of p[i,j] v[j,e] / sum over j of p[i,j].

The weights are p[i,j] = 2^(c (x[i,j] - top[i])).  Blocks of j follow each other; what is summed so
far is rescaled by 2^(c (old - new)) where the maximum grows.  ``changes`` are its mutants.
"""

from __future__ import annotations

import math

from tinygpu.term.builder import Kernel, trace
from tinygpu.term.expression import Expression, apply, value
from tinygpu.term.operation import ACC, Operand, Operation, Reduction
from tinygpu.term.program import Program

C = 1.4426950408889634
MUTANTS = (
    "total is not rescaled",
    "sums are not rescaled",
    "the wrong sign",
    "exchanged",
    "the first block is lost",
    "the new maximum is not kept",
    "weights before the maximum",
    "another scale",
)
"""Wrong at exact numbers."""


def weighted(dtype: str = "f32", *, logarithm: bool = False) -> Operation:
    """Return the weighted mean, or the logarithm of the sum of exponentials, to the base 2."""
    x, v, top = value("x"), value("v"), value("top")
    p = apply("ex2.ftz", (x - top) * C)
    if logarithm:
        return Operation(
            name="logarithm",
            axes=("i", "j"),
            inputs=(Operand("x", ("i", "j"), dtype),),
            output=Operand("y", ("i",), "f32"),
            reductions=(Reduction("top", "max", x, ("j",)), Reduction("acc", "add", p, ("j",))),
            epilogue=top * C + apply("lg2", ACC),
        )
    return Operation(
        name="weighted",
        axes=("i", "e", "j"),
        inputs=(Operand("x", ("i", "j"), dtype), Operand("v", ("j", "e"), dtype)),
        output=Operand("y", ("i", "e"), "f32"),
        reductions=(
            Reduction("top", "max", x, ("j",)),
            Reduction("total", "add", p, ("j",)),
            Reduction("acc", "add", p * v, ("j",)),
        ),
        epilogue=ACC * apply("rcp", value("total")),
    )


def online(
    operation: Operation, *, change: str = "", rounded: str = "", outside: float = -math.inf
) -> Program:
    """Return the term, with a change; weights are ``rounded`` to a type before they are summed."""

    def forward(k: Kernel) -> None:
        last = k.inputs[-1].name == "x"
        k.threads(lane=32)
        k.values(row=2, part=2, col=3)
        k.grid(*(("bi",) if last else ("bi", "be")))
        x, y = k.inputs[0], k.output
        names = ("row",) if last else ("row", "col")
        top, new, total, shrink = (
            k.registers(n, "f32", "row") for n in ("top", "new", "total", "shrink")
        )
        sums = k.zeros("sums", "f32", *names)
        k.fill(top, 0.0 if change == "no maximum" else -math.inf)
        k.fill(total, 0.0)
        grown: Expression = (value("old") - value("new")) * C
        if change == "the wrong sign":
            grown = -grown
        if change == "another scale":
            grown = grown * 0.5
        for _ in k.loop("t"):
            held = k.load(x["i = (bi row), j = (t part lane)"], outside=outside, into="held")
            k.set(new, value("old"), {"old": top})
            if change != "no maximum":
                k.reduce("max", new, held)
                k.butterfly("max", new, over="lane")
            k.set(shrink, apply("ex2.ftz", grown), {"old": top, "new": new})
            before = top if change == "weights before the maximum" else new
            under = (value("x") - value("new")) * C
            if change == "exchanged":
                under = (value("new") - value("x")) * C
            p = k.compute(apply("ex2.ftz", under), {"x": held, "new": before}, into="p")
            if change != "total is not rescaled":
                k.set(total, value("l") * value("s"), {"l": total, "s": shrink})
            if change == "the first block is lost":
                k.fill(total, 0.0)
            k.add(total, p)
            if not last:
                used = k.cast(p, rounded, into="narrow") if rounded else p
                at = "j = (t part lane), e = (be col)"
                right = k.load(k.inputs[1][at], into="right", vector=1)
                if change == "narrow inputs":
                    right = k.cast(right, "bf16", into="narrow_right")
                if change != "sums are not rescaled":
                    k.set(sums, value("o") * value("s"), {"o": sums, "s": shrink})
                if change == "the first block is lost":
                    k.fill(sums, 0.0)
                k.add(sums, value("p") * value("v"), {"p": used, "v": right})
            if change != "the new maximum is not kept":
                k.set(top, value("new"), {"new": new})
        k.butterfly("add", total, over="lane")
        if last:
            out = k.compute(value("m") * C + apply("lg2", value("l")), {"m": top, "l": total})
            with k.only(lane=0):
                k.store(y["i = (bi row)"], out, vector=1)
            return
        k.butterfly("add", sums, over="lane")
        out = k.compute(value("o") * apply("rcp", value("l")), {"o": sums, "l": total})
        with k.only(lane=0):
            k.store(y["i = (bi row), e = (be col)"], out, vector=1)

    return trace("online", forward, operation)
