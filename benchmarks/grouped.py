"""Grouped matmuls of mixtures of experts beside their peers: ``python -m benchmarks.grouped``.

    python -m benchmarks.grouped [--parts PART ..] [--seconds S] [--out DIR]

Of each case a process of its own runs

    tinygpu search grouped -g G -m M -n N -k K --groups .. --measure --budget 10 --device D

timed from outside, with an empty store.  Then its fastest finalist and the model's first choice
stand beside PyTorch's ``_grouped_mm``, a loop over cuBLAS and Triton's tutorial kernel, in new
orders under one load.  Nothing is chosen by hand.  bf16, a[m,k] b[g,n,k]; m is tokens times
experts of a token.  Routings: *even*, each expert as many rows; *zipf*, the i-th in proportion to
1 / i.  Gated cases (``--gate silu``) are silu(a gate) times a b, n of each; their peers round the
gate to bf16, and where silu is small that is many times what rounding c allows, so their errors are
recorded and not asked.  Rows are written after each case.

>>> len(CASES), CASES[0].part, CASES[-1].part
(27, 'g8_top2_512_even', 'g256_top8_32768_even_gated')
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers import FOLDER, write_results
from tinygpu.codegen.run.measure import COARSE, SUSTAINED, Campaign, peer_of
from tinygpu.codegen.run.provenance import provenance
from tinygpu.machines import MACHINES
from tinygpu.search.tuning.shape import ends_of
from tinygpu.term.operation import Problem, grouped_matmul
from tinygpu.term.schedule import Schedule

__all__ = ["CASES", "FIELDS", "Case", "beside", "main", "searched", "summary"]

FIELDS = ("g", "routing", "wall_seconds", "ratio", "first_seconds", "peers", "tflops", "reason",
          "first_schedule", "peer_error", "spread", "capped", "evaluations")  # fmt: skip
_PEERS = "benchmarks.grouped_peers"
BUDGET = 10

Found = Sequence[Schedule]


@dataclass(frozen=True, slots=True)
class Case:
    """Experts, of which a token has ``top``; tokens; the weights' n and k; and how rows fall."""

    experts: int
    top: int
    tokens: int
    n: int
    k: int
    routing: str
    gate: str = ""

    @property
    def part(self) -> str:
        """Its name on the command line and in the results."""
        name = f"g{self.experts}_top{self.top}_{self.tokens}_{self.routing}"
        return name + "_gated" * bool(self.gate)

    @property
    def sizes(self) -> dict[str, int]:
        """The sizes of the axes."""
        return {"g": self.experts, "m": self.tokens * self.top, "n": self.n, "k": self.k}

    @property
    def words(self) -> list[str]:
        """What the command line is given."""
        sizes = [word for a, size in self.sizes.items() for word in (f"-{a}", str(size))]
        gate = ["--gate", self.gate] if self.gate else []
        return ["grouped", "--groups", self.routing, *gate, *sizes]

    @property
    def problem(self) -> Problem:
        """The problem, with its groups' ends."""
        operation = grouped_matmul("bf16", gate=self.gate)
        assert operation.groups is not None
        ends = ends_of(self.routing, operation.groups, self.sizes)
        return Problem.of(operation, **self.sizes, ends=ends)


def _cases() -> Iterator[Case]:
    for experts, top, n, k in ((8, 2, 14336, 4096), (64, 8, 2816, 2048), (256, 8, 1024, 2048)):
        for tokens in (512, 4096, 16384 if experts == 8 else 32768):  # that float64 fits
            for routing in ("even", "zipf"):
                yield Case(experts, top, tokens, n, k, routing)
    for experts, top, n, k in ((8, 2, 14336, 4096), (64, 8, 1408, 2048), (256, 8, 1024, 2048)):
        for tokens, routing in ((512, "even"), (4096, "zipf"), (16384 if experts == 8 else 32768,
                                                                "even")):  # fmt: skip
            yield Case(experts, top, tokens, n, k, routing, "silu")


CASES = tuple(_cases())
"""Mixtral's first product, one of 64 small experts, one of 256 smaller ones; with a gate, too."""


def searched(words: Sequence[str], machine: str, device: str) -> tuple[dict[str, Any], Found]:
    """Run the command of a machine; return what the row has of it, and the best and the first."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found"
        every = [
            *("search", *words, "--machine", machine, "--measure", "--budget", str(BUDGET)),
            *("--device", device, "--out", str(out)),
        ]
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "tinygpu", *every], capture_output=True, text=True, check=False
        )
        row: dict[str, Any] = {"wall_seconds": round(time.perf_counter() - start, 2)}
        if done.returncode:
            return row | {"reason": done.stderr.strip()[-400:]}, []
        tree = json.loads((out / "search.json").read_text(encoding="utf-8"))
    best = tree["best"]
    first, ran = best[tree["model_first"] - 1], [one for one in best if one["seconds"]]
    row |= {"schedule": dict(ran[0]["decisions"]), "first_schedule": dict(first["decisions"]),
            "predicted_seconds": ran[0]["predicted_seconds"], "reason": None,
            "evaluations": tree["evaluations"]}  # fmt: skip
    both = [Schedule.of(MACHINES[machine], one["decisions"]) for one in (ran[0], first)]
    return row, list(dict.fromkeys(both))


def beside(problem: Problem, both: Found, peers: str, off: float) -> dict[str, Any]:
    """Time the best and the first beside a module's peers; return the row's columns.

    ``off``: by how many times what rounding allows a peer may be off.
    """
    programs = {s: s.term(MACHINES[s.machine], problem.operation) for s in both}
    coarse, sustained = (replace(options, peer_error=off) for options in (COARSE, SUSTAINED))
    with Campaign(problem, options=coarse) as campaign:
        ran = campaign.measure({}, campaign.peers(peers))
        every: dict[str, Any] = {peer_of(m).rpartition(":")[2]: m.seconds or m.reason for m in ran}
        right = sorted((m for m in ran if m.seconds), key=lambda m: m.seconds or math.inf)
        triton = [peer_of(m) for m in right if ":triton_" in peer_of(m)][:1]
        others = [peer_of(m) for m in right if ":triton_" not in peer_of(m)]
        found = campaign.measure(programs, [*others, *triton], options=sustained, anew=True)
    mine, theirs = found[: len(both)], [m for m in found[len(both) :] if m.seconds]
    every |= {peer_of(m).rpartition(":")[2]: m.seconds for m in theirs}
    if not theirs:
        return {"reason": f"no peer is right: {every}"}
    fastest = min(theirs, key=lambda m: m.seconds or math.inf)
    seconds, peer = mine[0].seconds, fastest.seconds
    assert peer is not None
    return {
        "seconds": seconds, "first_seconds": mine[-1].seconds, "error": mine[0].error,
        "peer": peer_of(fastest).rpartition(":")[2], "peer_seconds": peer, "peers": every,
        "peer_error": fastest.error,
        "ratio": peer / seconds if seconds else None, "spread": mine[0].spread,
        "capped": mine[0].capped, "reason": mine[0].reason or mine[-1].reason,
        "tflops": problem.operation.flops(problem.sizes) / seconds / 1e12 if seconds else None,
    }  # fmt: skip


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the ratios of the best peer's time to ours: geometric mean and least; also first's."""
    told: dict[str, Any] = {"rows": len(rows)}
    for name, field in (("best", "seconds"), ("first", "first_seconds")):
        ratios = [row["peer_seconds"] / row[field] for row in rows if row.get(field)]
        if ratios:
            told[name] = round(float(np.exp(np.mean(np.log(ratios)))), 4)
            told[f"{name}_least"] = round(min(ratios), 4)
    return told


def main(arguments: Sequence[str] | None = None) -> None:
    """Search, compare, and write after each case."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.grouped")
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the results")
    parser.add_argument("--parts", nargs="+", choices=[c.part for c in CASES], metavar="PART")
    parser.add_argument("--seconds", type=float, default=math.inf, help="when to begin no more")
    parser.add_argument("--device", default="h100", help="as for search")
    given = parser.parse_args(arguments)
    began, parts = time.monotonic(), given.parts or [c.part for c in CASES]
    words = " --parts " + " ".join(given.parts) if given.parts else ""
    record = provenance(f"python -m benchmarks.grouped{words}")
    for case in (c for part in parts for c in CASES if c.part == part):
        if time.monotonic() - began > given.seconds:
            break
        empty = dict.fromkeys((*FIELDS, "schedule", "predicted_seconds", "seconds", "peer",
                               "peer_seconds", "error"))  # fmt: skip
        group = f"{case.experts} experts" + ", gated" * bool(case.gate)
        row = empty | {"group": group, "case": case.part, "dtype": "bf16",
                       "routing": case.routing, **case.sizes}  # fmt: skip
        found, both = searched(case.words, "hopper", given.device)
        row |= found
        if both:
            off = sys.float_info.max if case.gate else COARSE.peer_error
            row |= beside(case.problem, both, _PEERS, off)
        write_results("grouped", [row], record, given.out, fields=FIELDS)
        sys.stdout.write(f"{time.monotonic() - began:.0f} s {row}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
