"""Random legal schedules of attention, drawn without a GPU and then run on one.

    python -m benchmarks.attention_drawn FILE --draw [--count N]
    python -m benchmarks.attention_drawn FILE [--out DIR]

*Draw* takes ``EACH`` schedules of each of many problems, uniformly from the legal space, or from
its part that splits keys over CTAs, or that has heads as rows: full and causal, ragged or even
lengths, one query or one key, 1 to 8 query heads on a kv head.
Each is also judged; what is not proved is written down as such and not run.

Kernels are built by all cores, 500 in half a minute of 16, and run one after the other in this
process, each on inputs of its own and an output full of NaN, which has to be within the tolerance
of the float64 result at every element.  A kernel that hangs stops the run: ``at`` then names it, in
``attention_drawn.json``, which is written before each launch.

Source: ``benchmarks/attention.py`` has the tolerance.
"""

from __future__ import annotations

import argparse
import base64
import json
import math
import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fuzz import each_done
from benchmarks.peers import FOLDER, write_tree
from tinygpu.codegen.run.arguments import contract_of
from tinygpu.codegen.run.launch import Kernel
from tinygpu.codegen.run.provenance import provenance
from tinygpu.codegen.runtime.function import Function
from tinygpu.devices.device import load_device
from tinygpu.errors import TinyGpuError
from tinygpu.isa.memory import DTYPES
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.machines import MACHINES
from tinygpu.space.space import Space
from tinygpu.term.operation import Problem, attention
from tinygpu.term.plan import Term
from tinygpu.term.schedule import Schedule

__all__ = ["Subject", "assembled", "built", "drawn", "main", "problem", "ratio",
           "words_of"]  # fmt: skip

COUNT, EACH, SEED = 500, 10, 2911
MASKS = ("none", "causal")
HEADS = ((1, 1), (2, 4), (1, 8), (3, 1))
"""kv heads, and query heads of each."""
TYPES = ("bf16", "f16")
FIXED: tuple[Mapping[str, Any], ...] = ({}, {"split_kv": (2, 4, 8)}, {"pack_gqa": 1})
"""What problems draw from in turn: decisions of decoding are few among all."""
_TRIES, _DEVICE = 40, "h200"

Words = Mapping[str, Any]


def words_of(number: int, rng: np.random.Generator) -> dict[str, Any]:
    """Return what a problem is made of: type, mask and sizes.

    >>> words_of(6, np.random.default_rng(0))["mask"]
    'causal'
    """
    h, g = HEADS[number % len(HEADS)]
    m, n = (int(rng.integers(1, 700)) for _ in "mn")
    match number % 6:
        case 3:
            m = n = 256 * int(rng.integers(1, 5))
        case 4:
            m = 1
        case 5:
            n = int(rng.integers(1, 9))
    d = (128, 64)[number // 2 % 2]
    return {
        "dtype": TYPES[number // 3 % 2],
        "mask": MASKS[number % len(MASKS)],
        "sizes": {"l": int(rng.integers(1, 4)), "h": h, "g": g, "m": m, "n": n, "d": d, "e": d},
    }


def problem(words: Words) -> Problem:
    """Return the problem of such words."""
    return Problem.of(attention(words["dtype"], mask=words["mask"]), **words["sizes"])


@dataclass(frozen=True, slots=True)
class Subject:
    """What is drawn: of which machine, on which device's file, and with what fixed in turn.

    ``kind`` is the word by which what is right is counted.
    """

    name: str
    machine: str
    device: str
    kind: str
    words_of: Callable[[int, np.random.Generator], dict[str, Any]]
    problem: Callable[[Words], Problem]
    built: Callable[[Words, Mapping[str, Any]], tuple[str, str]]
    ratio: Callable[[str, Words], float]
    fixed: tuple[Mapping[str, Any], ...] = ({},)


def drawn(number: int, count: int, seed: int, subject: Subject) -> dict[str, Any]:
    """Return ``count`` legal schedules of a problem, as data."""
    rng = np.random.default_rng([seed, number])
    machine, device = MACHINES[subject.machine], load_device(subject.device)
    for _ in range(_TRIES):
        words = subject.words_of(number, rng)
        of = subject.problem(words)
        space = Space(machine, of, device, fixed=subject.fixed[number % len(subject.fixed)])
        if space.count() < count:
            continue
        found = [(s, verdict(s.term(machine, of.operation))) for s in space.sample(rng, count)]
        return {
            "number": number, "words": words,
            "schedules": [dict(s.decisions) for s, v in found if v.legal],
            "unproved": [[dict(s.decisions), str(v)] for s, v in found if not v.legal],
        }  # fmt: skip
    raise TinyGpuError(f"{subject.name}, problem {number}: no sizes have {count} legal schedules")


def built(words: Words, decisions: Mapping[str, Any]) -> tuple[str, str]:
    """Return a schedule's contract and code, packed, or nothing and why it is refused."""
    machine, of = MACHINES["attention"], problem(words)
    try:
        program = Schedule.of(machine, decisions).program(machine, of.operation)
        return assembled(program, of), ""
    except TinyGpuError as error:
        return "", str(error)


def assembled(program: Term, of: Problem, *, unchecked: bool = False) -> str:
    """Return a term's contract and code, packed.  Raises TinyGpuError if it is refused."""
    kernel = Kernel(program, arch="sm_90a", sizes=of.sizes, unchecked=unchecked)
    packed = pickle.dumps((contract_of(program, of.sizes), kernel.cubin.bytes))
    return base64.b64encode(packed).decode()


def ratio(packed: str, words: Words) -> float:
    """Return the largest error over what is allowed, of random inputs; infinity for a NaN."""
    import torch

    function, sizes = Function(*pickle.loads(base64.b64decode(packed))), words["sizes"]
    m, n, d = (sizes[axis] for axis in "mnd")
    kind = {"bf16": torch.bfloat16, "f16": torch.float16}[words["dtype"]]
    torch.manual_seed(m)
    q, k, v = (
        torch.randn([sizes[axis] for axis in axes], device="cuda").to(kind)
        for axes in ("lhgmd", "lhnd", "lhne")
    )
    out = torch.full_like(q, math.nan)
    torch.cuda.synchronize()
    function(q, k, v, out=out, scale=1 / math.sqrt(d))
    torch.cuda.synchronize()
    keys, values = (x.double()[:, :, None] for x in (k, v))
    scores = q.double() @ keys.transpose(-1, -2) / math.sqrt(d)
    if words["mask"] == "causal":
        row, column = (torch.arange(size, device="cuda") for size in (m, n))
        scores = scores.masked_fill(column[None] > row[:, None] + n - m, -math.inf)
    weights = torch.softmax(scores, -1).nan_to_num(0.0)
    wanted, u = weights @ values, DTYPES[words["dtype"]].roundoff
    largest = scores.abs().nan_to_num(0.0, posinf=0.0).amax(-1, keepdim=True)
    sums = math.sqrt(d) * largest + math.sqrt(n) + 8
    allowed = 4 * u * torch.sqrt(weights**2 @ values**2)
    allowed = allowed + 4 * DTYPES["f32"].roundoff * sums * (weights @ values.abs())
    off = (out.double() - wanted).abs() / (allowed + u * wanted.abs() + 2.0**-20)
    return math.inf if bool(off.isnan().any()) else float(off.max())


ATTENTION = Subject(
    "attention", "attention", _DEVICE, "mask", words_of, problem, built, ratio, FIXED
)  # fmt: skip


def draw(path: Path, count: int, subject: Subject) -> None:
    """Draw and write, a problem a line."""
    each = [(n, EACH, SEED, subject) for n in range(-(-count // EACH))]
    cases = list(each_done(drawn, each, os.cpu_count() or 1, f"draw {len(each)} problems"))
    cases.sort(key=lambda c: c["number"])
    lines = [json.dumps(case, separators=(",", ":")) for case in cases]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    unproved = sum(len(case["unproved"]) for case in cases)
    sys.stdout.write(f"{sum(len(c['schedules']) for c in cases)} drawn, {unproved} unproved\n")


def main(arguments: Sequence[str] | None = None, subject: Subject = ATTENTION) -> None:
    """Draw; or build, run and compare, and exit with 1 if one is wrong."""
    name = f"{subject.name}_drawn"
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("file", type=Path, help="what --draw wrote")
    parser.add_argument("--draw", action="store_true", help="draw and write the file, no GPU")
    parser.add_argument("--count", type=int, default=COUNT, help="schedules to draw in all")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    given = parser.parse_args(arguments)
    if given.draw:
        draw(given.file, given.count, subject)
        return
    record = provenance(f"python -m benchmarks.{name} FILE")
    cases = [json.loads(line) for line in given.file.read_text(encoding="utf-8").splitlines()]
    jobs = [(case["words"], one) for case in cases for one in case["schedules"]]
    found: dict[str, Any] = {
        "provenance": record, "drawn": len(jobs), "right": 0, "worst": 0.0,
        f"by_{subject.kind}": {}, "wrong": [], "refused": [],
    }  # fmt: skip
    path = given.out / f"{name}.json"
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        waiting = {pool.submit(subject.built, *job): job for job in jobs}
        for future in as_completed(waiting):
            words, decisions = waiting[future]
            packed, refused = future.result()
            if refused:
                found["refused"].append([words, decisions, refused])
                continue
            write_tree(path, {**found, "at": [words, decisions]})
            off = subject.ratio(packed, words)
            if not off <= 1:
                found["wrong"].append([words, decisions, off])
                continue
            found["right"] += 1
            found["worst"] = max(found["worst"], round(off, 4))
            by, kind = found[f"by_{subject.kind}"], words[subject.kind]
            by[kind] = by.get(kind, 0) + 1
    write_tree(path, found)
    sys.stdout.write(f"{found['right']} right, {len(found['wrong'])} wrong, "
                     f"{len(found['refused'])} refused\n")  # fmt: skip
    sys.exit(bool(found["wrong"]))


if __name__ == "__main__":
    main()
