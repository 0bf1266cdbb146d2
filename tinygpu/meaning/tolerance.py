"""When is an output right?  One rule, for the interpreter and for a GPU alike.

With C64 the reference in float64, S what the same operation gives on magnitudes (|A||B| for a
matmul), K the length of a sum and u the unit roundoff of what it is summed in, an output element is
right if

    |C - C64| <= 4 u sqrt(K) S + 4 w T + 1 ulp of the output type at C64

The first part is the probabilistic bound on a sum of K rounded terms, whatever their order, with a
factor of 4 in hand; the last is the rounding of the result itself.

The second is for terms that round between two stages: a value that is made of an earlier reduction
is rounded to a narrow type, and then multiplied and summed.  w adds up the unit roundoffs of such
statements (``narrowing``), 0 where there are none.  Let p_j be what a later sum adds.  Each is off
by at most w |p_j|, with a sign of its own, so by Hoeffding's inequality, errors taken as uniform,
their sum is beyond 4 w sqrt(sum p_j^2) with a probability of 2 exp(-24).  (A linear bound,
w sum |p_j|, would be up to sqrt(n) / 4 times wider.)  T is that root of each such sum, times the
slope of the output, added over the sums (``between``).  What is rounded before an exponential, or
before a sum of which a later sum is made, gains nothing: a term that does so is held to fp32.

Where sums of products of 8-bit numbers are followed by others of what they made (attention), u is
that of fp32, and T says what those sums are off by: they have about 13 bits, so each adds 2^-13 of
S for errors with signs of their own (``Operation.reference``), as a share of the rounding w of 8
bits.  So 4 w T is the sum of what both roundings do.  And a weight is rounded relative to its size
only down to the least normal number: if the largest is 1, and a term makes it 2^8 to use the whole
range of e4m3, one is off by up to 2^-18, or by all of it.  A term that does not is held to that.

>>> ratio = error_ratio(np.array([1.0, 1.5]), np.ones(2), np.ones(2),
...                     depth=4, roundoff=2.0**-24, dtype="f32")
>>> bool(ratio[0] == 0), bool(ratio[1] > 1)
(True, True)

Source: N. Higham and T. Mary, "A New Approach to Probabilistic Rounding Error Analysis", SIAM J.
Sci. Comput. 41(5), 2019.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tinygpu.isa.memory import DTYPES
from tinygpu.numbers import Array, Floats
from tinygpu.term.operation import Operation
from tinygpu.term.plan import Plan, Term, kernels_of
from tinygpu.term.program import Access, Do, Program, walk

__all__ = [
    "between",
    "error_ratio",
    "narrowing",
    "ratio_of",
    "roundings",
    "roundoff",
    "ulp",
    "usual_narrowing",
    "usual_roundoff",
]

_LARGEST_EXPONENT: Mapping[str, int] = {
    "f64": 1023, "f32": 127, "tf32": 127, "f16": 15, "bf16": 127, "e4m3": 8, "e5m2": 15,
}  # fmt: skip
_LEAST_EXPONENT: Mapping[str, int] = {
    "f64": -1022, "f32": -126, "tf32": -126, "f16": -14, "bf16": -126, "e4m3": -6, "e5m2": -14,
}  # fmt: skip

_SHORT = 2.0**-13  # published: DeepSeek-V3, section 3.3 (fp8 wgmma on Hopper)


def ulp(values: Array, dtype: str) -> Floats:
    """Return the distance between neighbours of ``dtype`` at each value, subnormals included."""
    magnitude = np.abs(values.astype(np.float64))
    _, exponent = np.frexp(magnitude)
    least = _LEAST_EXPONENT[dtype]
    binade = np.where(magnitude > 0, np.maximum(exponent - 1, least), least)
    one = np.full_like(magnitude, 2 * DTYPES[dtype].roundoff)
    result: Floats = np.ldexp(one, binade)
    return result


def error_ratio(
    output: Array,
    reference64: Array,
    scale: Array,
    *,
    depth: int,
    roundoff: float,
    dtype: str,
    between: Array | float = 0.0,
) -> Floats:
    """Return the error of each element over what is allowed: right where it is at most 1.

    ``scale`` is S, ``depth`` K, ``roundoff`` u, ``between`` w T, ``dtype`` the output's type.  An
    element that is not a number counts as infinitely wrong, and so does an infinite one unless the
    reference overflows ``dtype`` to the same infinity, and a finite one where it is infinite.
    The arrays are NumPy's, or all CuPy's.
    """
    got, want = output.astype(np.float64), reference64.astype(np.float64)
    with np.errstate(all="ignore"):
        allowed = 4 * roundoff * math.sqrt(depth) * np.abs(scale) + ulp(want, dtype)
        allowed = allowed + 4 * between
        ratio = np.abs(got - want) / allowed
    least_infinite = (2 - DTYPES[dtype].roundoff) * 2.0 ** _LARGEST_EXPONENT[dtype]
    overflow = np.isinf(got) & (np.abs(want) >= least_infinite) & (np.sign(got) == np.sign(want))
    wrong = np.where(overflow, 0.0, np.inf)
    both = np.isfinite(got) & ~np.isinf(want)
    result: Floats = np.where(both, ratio, wrong)
    return result


def ratio_of(
    term: Term,
    inputs: Mapping[str, Array],
    scalars: Mapping[str, float],
    *,
    outputs: Mapping[str, Array],
    reference: Mapping[str, Array],
) -> dict[str, Floats]:
    """Return the error of each element of a term's outputs over what is allowed, by name.

    ``inputs`` are rounded to their types, in float64; ``reference`` is the operation's.
    """
    operation, narrow = term.operation, narrowing(term)
    sizes = operation.sizes({name: x.shape for name, x in inputs.items()})
    moved = between(operation, inputs, scalars) if any(narrow.values()) else {}
    return {
        o.name: error_ratio(
            outputs[o.name],
            reference[o.name],
            reference[f"scale of {o.name}"],
            depth=operation.depth(sizes),
            roundoff=roundoff(term),
            dtype=o.dtype,
            between=narrow[o.name] * moved.get(o.name, 0.0),
        )
        for o in operation.outputs
    }


def between(
    operation: Operation,
    inputs: Mapping[str, Array],
    scalars: Mapping[str, float],
    reference: Mapping[str, Array] | None = None,
) -> dict[str, Floats]:
    """Return T: how far roundings between stages move each output, by the unit roundoff.

    Each sum of what earlier reductions made is off by a little of its root sum of squares.  The
    arrays are NumPy's, or all CuPy's.  A sum that a later reduction reads is left as it is; of
    8-bit inputs what it is off by is added.  Empty where there is no such sum.  ``reference`` is
    the operation's, if it is known with its ``loose`` sums.
    """
    if not loose(operation):
        return {}
    if reference is None:
        reference = operation.reference(inputs, scalars, loose=loose(operation))
    found = {}
    for name in (o.name for o in operation.outputs):
        moved = reference[f"T of {name}"]
        found[name] = np.where(np.isfinite(moved), moved, 0.0)
    if coarse := _coarse(operation):
        noise = operation.reference(inputs, scalars, independent=(_SHORT, _floor(operation)))
        for name in found:
            found[name] = found[name] + _SHORT / coarse * noise[f"scale of {name}"]
    return found


def loose(operation: Operation) -> list[str]:
    """Return the sums of what earlier reductions made that no reduction reads."""
    made = {r.name for r in operation.reductions}
    read = {name for r in operation.reductions for name in r.expression.names()}
    return [
        r.name
        for r in operation.reductions
        if r.operator == "add" and r.name not in read and made & {*r.expression.names()}
    ]


def _floor(operation: Operation) -> float:
    """Return what a subnormal number of 8 bits is off by, of the largest power of two."""
    return max(
        DTYPES[o.dtype].roundoff * 2.0 ** (_LEAST_EXPONENT[o.dtype] - _LARGEST_EXPONENT[o.dtype])
        for o in operation.inputs
        if DTYPES[o.dtype].bytes == 1
    )


def _coarse(operation: Operation) -> float:
    """Return the unit roundoff of 8-bit inputs whose sums others are made of; 0 without such."""
    narrow = [DTYPES[o.dtype] for o in operation.inputs if DTYPES[o.dtype].bytes == 1]
    return max(t.roundoff for t in narrow) if narrow and loose(operation) else 0.0


def usual_roundoff(operation: Operation) -> float:
    """Return u of whoever sums the operation in fp32, as libraries do."""
    eight_bits = any(DTYPES[o.dtype].bytes == 1 for o in operation.inputs)
    eight_bits = eight_bits and not _coarse(operation)
    return _SHORT if eight_bits else DTYPES["f32"].roundoff


_WIDE = ("f32", "f64")


def usual_narrowing(operation: Operation) -> dict[str, float]:
    """Return w, by output, where what lies between two stages is rounded to the inputs' type."""
    return dict.fromkeys(
        (o.name for o in operation.outputs), max(DTYPES[o.dtype].roundoff for o in operation.inputs)
    )


def roundoff(term: Term) -> float:
    """Return u: the unit roundoff of the narrowest type in which the term does arithmetic.

    It is no more than what the operation is usually summed with: a term that rounds to fewer bits
    on the way is right only if its result is.  Products of 8-bit numbers are summed with about 13
    bits, whatever the sums' type; where others are made of those sums, T counts that.
    """
    coarse = _coarse(term.operation)
    found = (
        _SHORT if statement.accesses[0].buffer.type.bytes == 1 and not coarse
        else statement.write.buffer.type.roundoff
        for program in kernels_of(term)
        for statement, _ in walk(program)
        if isinstance(statement, Do)
        and (i := statement.instruction)
        and (i.variants or i.meaning or i.atomic)
    )  # fmt: skip
    return min(max(found, default=1.0), usual_roundoff(term.operation))


def roundings(term: Term) -> tuple[str, ...]:
    """Return the statements that round where the operation does not, with their types.

    An operation is computed in fp32, or in the type of its output if that is wider, and rounded to
    that type at the end.  So each conversion or result of fewer bits counts of which the term goes
    on to compute, and each sum of fewer bits that is added up in global memory.

    >>> from tinygpu.machines.simt import LADDER, Simt
    >>> from tinygpu.term.machine import Chosen
    >>> from tinygpu.term.operation import matmul
    >>> roundings(Simt().program(matmul("bf16"), Chosen(LADDER["shared"])))
    ()
    >>> roundings(Simt().program(matmul("f64"), Chosen(LADDER["shared"])))[0]
    'f32: a_wide@(32*kt + kk) = cvt(a_fragment@(32*kt + kk)) x 1*1'
    """
    return tuple(
        dict.fromkeys(
            f"{s.write.buffer.dtype}: {s}" for program in kernels_of(term) for s in _narrow(program)
        )
    )


def narrowing(term: Term) -> dict[str, float]:
    """Return w of each output: the unit roundoffs of what ``roundings`` names on its way, added up.

    An input that is rounded before anything is computed of it does not count.  Where T counts sums
    of products of 8-bit numbers, w is at least the roundoff of these.  Of a plan each output has
    what all kernels and workspaces round to.
    """
    if isinstance(term, Plan):
        own = [w for program in kernels_of(term) for w in _narrowing(program).values()]
        own += [DTYPES[o.dtype].roundoff for _, o in term.workspaces if o.dtype not in _WIDE]
        return dict.fromkeys((o.name for o in term.operation.outputs), sum(own))
    return _narrowing(term)


def _narrowing(program: Program) -> dict[str, float]:
    statements = [s for s, _ in walk(program) if isinstance(s, Do)]
    made: set[str] = set()
    more = True
    while more:
        before = len(made)
        made |= {s.write.buffer.name for s in statements if _operates(s) or _reads(s) & made}
        more = len(made) > before
    narrow = [s for s in _narrow(program) if _operates(s) or _reads(s) & made]
    found, coarse = {}, _coarse(program.operation)
    for output in program.operation.outputs:
        on_way = _feeding({output.name}, statements)
        mine = (s for s in narrow if s.write.buffer.name in on_way)
        products = (s for s in statements if _operates(s) and s.write.buffer.name in on_way)
        least = coarse * any(s.accesses[0].buffer.type.bytes == 1 for s in products)
        found[output.name] = max(sum(s.write.buffer.type.roundoff for s in mine), least)
    return found


def _narrow(program: Program) -> list[Do]:
    types = ("f32", *(o.dtype for o in program.operation.outputs))
    own = min(DTYPES[dtype].roundoff for dtype in types)
    statements = [s for s, _ in walk(program) if isinstance(s, Do)]
    used = {name for s in statements if _computes(s) for name in _reads(s)}
    used = _feeding(used, [s for s in statements if not _computes(s)])
    return [
        s
        for s in statements
        if _computes(s)
        and s.write.buffer.type.roundoff > own
        and (s.write.buffer.name in used or s.instruction.atomic)
    ]


def _feeding(names: set[str], statements: list[Do]) -> set[str]:
    """Return the buffers, and those from which statements bring what they hold."""
    found, before = {*names}, 0
    while len(found) > before:
        before = len(found)
        found |= {name for s in statements if s.write.buffer.name in found for name in _reads(s)}
    return found


def _computes(do: Do) -> bool:
    """Whether a statement's results are other numbers than those that it reads."""
    return _operates(do) or any(a.buffer.dtype != do.write.buffer.dtype for a in do.accesses)


def _operates(do: Do) -> bool:
    how = do.instruction
    return bool(how.variants or how.meaning or how.atomic or how.folds)


def _reads(do: Do) -> set[str]:
    return {read.buffer.name for read in do.reads if isinstance(read, Access)}
