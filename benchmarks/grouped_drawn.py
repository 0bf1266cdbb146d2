"""Random legal schedules of grouped matmuls, drawn without a GPU and then run on one.

    python -m benchmarks.grouped_drawn FILE --draw [--count N]
    python -m benchmarks.grouped_drawn FILE [--out DIR]

As ``benchmarks.attention_drawn``: schedules of many problems, uniformly from the legal space, each
judged, then built and run.  Types, layouts and epilogues differ, sizes are ragged, a third of the
groups has no rows; the output is NaN before, and has to be within the tolerance of float64.
"""

from __future__ import annotations

import base64
import pickle
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from benchmarks.attention_drawn import Subject, Words, assembled
from benchmarks.attention_drawn import main as of_subject
from tinygpu.codegen.run.validation import Output, trial
from tinygpu.codegen.runtime.function import Function
from tinygpu.errors import TinyGpuError
from tinygpu.machines import MACHINES
from tinygpu.meaning.inputs import drawn_ends
from tinygpu.meaning.tolerance import narrowing, roundoff
from tinygpu.term.operation import Problem, grouped_matmul
from tinygpu.term.schedule import Schedule

__all__ = ["built", "main", "problem", "ratio", "words_of"]

KINDS: Mapping[str, Mapping[str, Any]] = {
    "bf16": {"dtype": "bf16"},
    "bf16 nn": {"dtype": "bf16", "layout": "nn"},
    "bias silu": {"dtype": "bf16", "bias": True, "activation": "silu"},
    "f16 to f32": {"dtype": "f16", "output": "f32"},
    "e4m3": {"dtype": "e4m3"},
    "gate": {"dtype": "bf16", "gate": "silu"},
    "e4m3 gate": {"dtype": "e4m3", "scales": True, "gate": "silu"},
}


def words_of(number: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return what a problem is made of: kind, sizes and ends.

    >>> words_of(1, np.random.default_rng(0))["kind"]
    'bf16 nn'
    """
    kind = [*KINDS][number % len(KINDS)]
    sizes = {
        "g": int(rng.integers(1, 40)), "m": int(rng.integers(1, 3000)),
        "n": 16 * int(rng.integers(1, 80)), "k": 16 * int(rng.integers(1, 60)),
    }  # fmt: skip
    groups = grouped_matmul().groups
    assert groups is not None
    ends = drawn_ends(groups, sizes, rng.standard_normal(sizes["g"]))
    return {"kind": kind, "sizes": {**sizes, "ends": ends.tolist()}}


def problem(words: Words) -> Problem:
    """Return the problem of such words."""
    return Problem.of(grouped_matmul(**KINDS[words["kind"]]), **words["sizes"])


def built(
    machine: str, of: Callable[[Words], Problem], words: Words, decisions: Mapping[str, Any]
) -> tuple[str, str]:
    """Return a schedule's code with its roundoffs, packed, or nothing and why it is refused."""
    wanted = of(words)
    try:
        on = MACHINES[machine]
        term = Schedule.of(on, decisions).term(on, wanted.operation)
        packed = pickle.dumps((assembled(term, wanted), roundoff(term), narrowing(term)))
        return base64.b64encode(packed).decode(), ""
    except TinyGpuError as error:
        return "", str(error)


def ratio(of: Callable[[Words], Problem], packed: str, words: Words) -> float:
    """Return the largest error over what is allowed, of random inputs; infinity for a NaN."""
    code, unit, narrow = pickle.loads(base64.b64decode(packed))
    wanted = of(words)
    data, output = trial(wanted, words["sizes"]["m"]), Output(wanted)
    function = Function(*pickle.loads(base64.b64decode(code)))
    function(*data.inputs, out=output.array, **data.scalars)
    return data.worst(output, unit, narrow)


main = partial(
    of_subject,
    subject=Subject(
        "grouped",
        "hopper",
        "h100",
        "kind",
        words_of,
        problem,
        partial(built, "hopper", problem),
        partial(ratio, problem),
    ),
)


if __name__ == "__main__":
    main()
