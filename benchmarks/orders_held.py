"""Orders that the emitter drops or moves, and whether the PTX then says so.

    python -m benchmarks.orders_held [--each 10] [--jobs N] [--out FILE]

At every point of ``tests/orders_dropped.py`` up to ``--each`` changes of the term's waits, fences,
barriers and groups, spread over all of them, are emitted and run as ``codegen/run/held.py`` runs
the whole term.  What the judge calls illegal is to be *found*, or has its reason from PTX
(*excused*); what it calls legal is not to be *accused*.  The file has a row a change.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from benchmarks.peers import FOLDER, write_tree
from tests.orders_dropped import POINTS, changes, dropped, term
from tinygpu.codegen.run.provenance import provenance
from tinygpu.cores import cores

__all__ = ["main", "rows", "summary"]


def rows(point: str, each: int) -> list[dict[str, Any]]:
    """Return what was found of a point's changes."""
    program = term(point)
    every = max(1, -(-len(changes(program)) // each))
    return [
        {
            "point": point,
            "change": one.name,
            "judged": one.judged,
            "found": (*one.found, "")[0],
            "excused": one.excused if one.judged == "illegal" and not one.found else "",
        }
        for one in dropped(program, every, sum(map(ord, point)) % every)
    ]


def summary(found: Sequence[dict[str, Any]]) -> dict[str, int]:
    """Count rows by what the judge says and what was found.

    >>> summary([{"judged": "illegal", "found": "race", "excused": ""}])
    {'changes': 1, 'illegal': 1, 'found': 1, 'excused': 0, 'missed': 0, 'legal': 0, 'accused': 0}
    """
    count: Counter[str] = Counter()
    for row in found:
        illegal, told = row["judged"] == "illegal", bool(row["found"])
        missed = illegal and not told
        count += Counter(
            changes=1, illegal=illegal, found=illegal and told,
            excused=missed and bool(row["excused"]), missed=missed and not row["excused"],
            legal=row["judged"] == "legal", accused=row["judged"] == "legal" and told,
        )  # fmt: skip
    names = ("changes", "illegal", "found", "excused", "missed", "legal", "accused")
    return {name: count[name] for name in names}


def main(arguments: Sequence[str] | None = None) -> None:
    """Change, run and count; write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--each", type=int, default=10, help="changes of a point")
    parser.add_argument("--jobs", type=int, default=cores())
    parser.add_argument("--out", type=Path, default=FOLDER.parent / "orders_held.json")
    given = parser.parse_args(arguments)
    found: list[dict[str, Any]] = []
    with ProcessPoolExecutor(given.jobs) as pool:
        asked = {pool.submit(rows, point, given.each): point for point in reversed(POINTS)}
        for one in as_completed(asked):
            found += one.result()
            print(f"{asked[one]}: {summary(one.result())}", flush=True)
    found.sort(key=lambda row: (list(POINTS).index(row["point"]), row["change"]))
    run = provenance(f"python -m benchmarks.orders_held --each {given.each}")
    tree = {"provenance": run, "summary": summary(found), "rows": found}
    print(write_tree(given.out, tree), summary(found))


if __name__ == "__main__":
    main()
