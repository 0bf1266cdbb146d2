"""Does ``search --measure`` answer within its budget and ten seconds?  Needs a GPU.

    python -m benchmarks.budgets [--out FILE]

Each command is a process of its own, timed from outside, with an empty store.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tinygpu.codegen.run.provenance import provenance

MACHINES = {"simt": ("f32", "nn"), "ampere": ("bf16", "nt"), "hopper": ("bf16", "nt")}
BUDGETS_SECONDS = (6, 8, 20)
BESIDE_SECONDS = 10  # the mark


def asked(machine: str, budget: int) -> dict[str, Any]:
    """Run one search; return its wall time, what was measured and the best."""
    dtype, layout = MACHINES[machine]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found"
        words = [
            *("search", "matmul", "--dtype", dtype, "--layout", layout, "--machine", machine),
            *("-m", "4096", "-n", "4096", "-k", "4096", "--measure", "--budget", str(budget)),
            *("--out", str(out)),
        ]
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "tinygpu", *words], capture_output=True, text=True, check=False
        )
        wall = time.perf_counter() - start
        row: dict[str, Any] = {"machine": machine, "budget_seconds": budget}
        row |= {"wall_seconds": round(wall, 2), "within": wall <= budget + BESIDE_SECONDS}
        if done.returncode:
            return row | {"error": done.stderr.strip().splitlines()[-1:]}
        tree = json.loads((out / "search.json").read_text(encoding="utf-8"))
        best = tree["best"][0]
        return row | {
            "evaluations": tree["evaluations"],
            "finalists": len(tree["best"]),
            "best_seconds": best["seconds"],
        }


def main() -> None:
    """Print a row for each machine and budget, and write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    rows = []
    for machine in MACHINES:
        for budget in BUDGETS_SECONDS:
            rows.append(asked(machine, budget))
            print(json.dumps(rows[-1]), flush=True)
    if given.out:
        tree = {**provenance("python -m benchmarks.budgets"), "rows": rows}
        given.out.write_text(json.dumps(tree, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
