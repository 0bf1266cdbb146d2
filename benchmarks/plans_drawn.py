"""Random legal plans of matmuls with a deep k, drawn without a GPU and then run on one.

    python -m benchmarks.plans_drawn FILE --draw [--count N]
    python -m benchmarks.plans_drawn FILE [--out DIR]

As ``benchmarks.grouped_drawn``, of the machine ``hopper_split``: layouts, epilogues, and m and n
differ; k is a multiple of 768, so that most numbers of parts divide it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from benchmarks.attention_drawn import Subject, Words
from benchmarks.attention_drawn import main as of_subject
from benchmarks.grouped_drawn import built, ratio
from tinygpu.term.operation import Problem, matmul

__all__ = ["main", "problem", "words_of"]

KINDS: Mapping[str, Mapping[str, Any]] = {
    "bf16 nt": {"dtype": "bf16", "layout": "nt"},
    "bf16 nn": {"dtype": "bf16", "layout": "nn"},
    "bias silu": {"dtype": "bf16", "layout": "nt", "bias": True, "activation": "silu"},
    "f16 tn": {"dtype": "f16", "layout": "tn"},
    "f16 to f32": {"dtype": "f16", "layout": "nt", "output": "f32"},
}


def words_of(number: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return what a problem is made of: kind and sizes.

    >>> words_of(0, np.random.default_rng(0))["kind"]
    'bf16 nt'
    """
    m, n = (8 * int(rng.integers(1, 90)) for _ in "mn")
    kind = [*KINDS][number % len(KINDS)]
    return {"kind": kind, "sizes": {"m": m, "n": n, "k": 768 * int(rng.integers(1, 12))}}


def problem(words: Words) -> Problem:
    """Return the problem of such words."""
    return Problem.of(matmul(**KINDS[words["kind"]]), **words["sizes"])


main = partial(
    of_subject,
    subject=Subject(
        "plans", "hopper_split", "h100", "kind", words_of, problem,
        partial(built, "hopper_split", problem), partial(ratio, problem),
    ),
)  # fmt: skip


if __name__ == "__main__":
    main()
