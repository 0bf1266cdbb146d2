"""When is an output right?  One rule, for the interpreter and for a GPU alike.

With C64 the reference in float64, S what the same operation gives on magnitudes (|A||B| for a
matmul), K the length of a sum and u the unit roundoff of what it is summed in, an output element is
right if

    |C - C64| <= 4 u sqrt(K) S + 1 ulp of the output type at C64

The first part is the probabilistic bound on a sum of K rounded terms, whatever their order, with a
factor of 4 in hand; the second is the rounding of the result itself.

>>> ratio = error_ratio(np.array([1.0, 1.5]), np.ones(2), np.ones(2),
...                     depth=4, roundoff=2.0**-24, dtype="f32")
>>> bool(ratio[0] == 0), bool(ratio[1] > 1)
(True, True)

Source: N. Higham and T. Mary, "A New Approach to Probabilistic Rounding Error Analysis", SIAM J. Sci.
Comput. 41(5), 2019.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tinygpu.memory import DTYPES

__all__ = ["error_ratio", "ulp"]

_LEAST_EXPONENT: Mapping[str, int] = {"f64": -1022, "f32": -126, "f16": -14, "bf16": -126}


def ulp(values: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    """Return the distance between neighbours of ``dtype`` at each value, subnormals included."""
    _, exponent = np.frexp(np.abs(np.asarray(values, np.float64)))
    binade = np.maximum(exponent - 1, _LEAST_EXPONENT[dtype])
    return np.asarray(np.ldexp(2 * DTYPES[dtype].roundoff, binade))


def error_ratio(
    output: NDArray[Any],
    reference64: NDArray[Any],
    scale: NDArray[Any],
    *,
    depth: int,
    roundoff: float,
    dtype: str,
) -> NDArray[np.float64]:
    """Return the error of each element over what is allowed: right where it is at most 1.

    ``scale`` is S, ``depth`` K, ``roundoff`` u and ``dtype`` the output's type.  An element that is
    not a number counts as infinitely wrong, and so does an infinite one unless the reference
    overflows ``dtype`` to the same infinity.
    """
    got = np.asarray(output).astype(np.float64)
    want = np.asarray(reference64, np.float64)
    with np.errstate(all="ignore"):
        allowed = 4 * roundoff * np.sqrt(depth) * np.abs(scale) + ulp(want, dtype)
        ratio = np.abs(got - want) / allowed
        overflow = DTYPES[dtype].round(want).astype(np.float64) == got
    return np.where(np.isfinite(got), ratio, np.where(overflow, 0.0, np.inf))
