"""The SGEMM ladder, and fp32 matmuls beside cuBLAS: ``python -m benchmarks.simt_ladder``.

Groups of rows:

- *ladder*: every named point of ``simt`` at 4096^3 (part "ladder");
- *main*: 2048^3, 4096^3 and 8192^3; *others*: ragged, deep and small ones; *layouts*.

All but the ladder are what a search by measuring finds (``matmul.py`` says how, and what the
command line takes).  The peers are cuBLASLt's algorithms and PyTorch, with fp32 products.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import matmul as driver
from benchmarks.matmul import FIELDS, Case, case
from benchmarks.peers import FOLDER, write_results
from tinygpu.codegen.run.measure import SUSTAINED, peer_of
from tinygpu.codegen.run.provenance import provenance
from tinygpu.devices.device import load_device
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.search.time.cost import cost
from tinygpu.search.tuning.climb import measured
from tinygpu.space.space import Space
from tinygpu.term.schedule import Schedule

__all__ = ["CASES", "ladder", "main"]

LADDER_CASE = case("ladder", 4096, 4096, 4096, "f32", "nn")
CASES: tuple[Case, ...] = (
    *(case("main", size, size, size, "f32", "nn") for size in (2048, 4096, 8192)),
    *(case("others", size, size, size, "f32", "nn") for size in (512, 1000, 1024, 4092)),
    case("others", 4095, 4097, 4093, "f32", "nn"),
    case("others", 333, 777, 1111, "f32", "nn"),
    case("others", 64, 64, 65536, "f32", "nn"),
    case("others", 128, 4096, 4096, "f32", "nn"),
    *(case("layouts", 4096, 4096, 4096, "f32", layout) for layout in ("nt", "tn", "tt")),
)
"""Every case, the marks first."""


def ladder(one: Case = LADDER_CASE) -> list[dict[str, Any]]:
    """Measure every named point; return the rows."""
    problem, device = one.problem, load_device("h200")
    points = {name: Schedule.of(Simt(), values) for name, values in LADDER.items()}
    found = measured(Space(Simt(), problem, device), list(points.values()), options=SUSTAINED)
    peer = found[len(points)] if len(found) > len(points) else None
    rows = []
    for (name, schedule), mine in zip(points.items(), found, strict=False):
        program = schedule.program(Simt(), problem.operation)
        row = dict.fromkeys(FIELDS) | {
            "group": one.group,
            "case": name,
            **problem.sizes,
            "dtype": "f32",
            "schedule": dict(schedule.decisions),
            "predicted_seconds": float(cost(program, problem.sizes, device).seconds),
            "seconds": mine.seconds,
            "peer": peer_of(peer).rpartition(".")[2].replace(":", " ") if peer else "",
            "peer_seconds": peer.seconds if peer else None,
            "error": mine.error,
            "clock_mhz": mine.clock_mhz,
            "capped": mine.capped,
            "spread": mine.spread,
        }
        rows.append(row)
    return rows


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the ladder with ``--ladder OUT``, else do what the command line says."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["--ladder"]:
        out = Path(words[1]) if words[1:] else FOLDER
        rows = ladder()
        record = provenance(f"python -m benchmarks.simt_ladder {' '.join(words)}")
        write_results(
            "simt_ladder", rows, record, out, instead_of={"group": "ladder"}, fields=FIELDS
        )
        return
    driver.main("simt_ladder", Simt(), CASES, words, fixed={"accumulator": "f32"})


if __name__ == "__main__":
    main()
