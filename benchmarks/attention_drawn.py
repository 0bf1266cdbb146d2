"""Run what ``python -m benchmarks.attention_fuzz --draw FILE`` drew.

    python -m benchmarks.attention_drawn FILE [--out DIR]

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
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.attention_fuzz import problem
from benchmarks.peers import FOLDER, write_tree
from tinygpu.codegen.run.arguments import contract_of
from tinygpu.codegen.run.launch import Kernel
from tinygpu.codegen.run.provenance import provenance
from tinygpu.codegen.runtime.function import Function
from tinygpu.errors import TinyGpuError
from tinygpu.isa.memory import DTYPES
from tinygpu.machines import MACHINES
from tinygpu.term.schedule import Schedule

__all__ = ["built", "main", "ratio"]

Words = Mapping[str, Any]


def built(words: Words, decisions: Mapping[str, Any]) -> tuple[str, str]:
    """Return a schedule's contract and code, packed, or nothing and why it is refused."""
    machine, of = MACHINES["attention"], problem(words)
    try:
        program = Schedule.of(machine, decisions).program(machine, of.operation)
        kernel = Kernel(program, arch="sm_90a", sizes=of.sizes)
    except TinyGpuError as error:
        return "", str(error)
    packed = pickle.dumps((contract_of(program, of.sizes), kernel.cubin.bytes))
    return base64.b64encode(packed).decode(), ""


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


def main(arguments: list[str] | None = None) -> None:
    """Build, run and compare; exit with 1 if one is wrong."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.attention_drawn")
    parser.add_argument("file", type=Path, help="what attention_fuzz --draw wrote")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    given = parser.parse_args(arguments)
    record = provenance("python -m benchmarks.attention_drawn FILE")
    cases = [json.loads(line) for line in given.file.read_text(encoding="utf-8").splitlines()]
    jobs = [(case["words"], one) for case in cases for one in case["schedules"]]
    found: dict[str, Any] = {
        "provenance": record, "drawn": len(jobs), "right": 0, "worst": 0.0, "by_mask": {},
        "wrong": [], "refused": [],
    }  # fmt: skip
    path = given.out / "attention_drawn.json"
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        waiting = {pool.submit(built, *job): job for job in jobs}
        for future in as_completed(waiting):
            words, decisions = waiting[future]
            packed, refused = future.result()
            if refused:
                found["refused"].append([words, decisions, refused])
                continue
            write_tree(path, {**found, "at": [words, decisions]})
            off = ratio(packed, words)
            if not off <= 1:
                found["wrong"].append([words, decisions, off])
                continue
            found["right"] += 1
            found["worst"] = max(found["worst"], round(off, 4))
            found["by_mask"][words["mask"]] = found["by_mask"].get(words["mask"], 0) + 1
    write_tree(path, found)
    sys.stdout.write(f"{found['right']} right, {len(found['wrong'])} wrong, "
                     f"{len(found['refused'])} refused\n")  # fmt: skip
    sys.exit(bool(found["wrong"]))


if __name__ == "__main__":
    main()
