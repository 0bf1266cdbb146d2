"""The PTX interpreter's benchmark: a row a point, and what is committed keeps its promise."""

from __future__ import annotations

import json

from benchmarks import interpreter_speed
from benchmarks.peers import FOLDER


def test_a_row() -> None:
    """Finite numbers of a kernel that is right."""
    row = interpreter_speed.measured("ampere", "plain")
    assert (row["machine"], row["point"]) == ("ampere", "plain")
    assert 0 < row["cpu_seconds"] < 10
    assert row["instructions"] > 10_000
    assert row["peak_mib"] >= row["imports_mib"] > 0


def test_the_committed_rows() -> None:
    """Each machine has its points; a tile program takes less than 10 s and 512 MiB."""
    tree = json.loads((FOLDER.parent / "interpreter_speed.json").read_text(encoding="utf-8"))
    rows = {(row["machine"], row["point"]): row for row in tree["rows"]}
    assert len(rows) == len(tree["rows"])
    known = set(interpreter_speed.points())
    assert {machine for machine, _ in rows} == {machine for machine, _ in known}
    assert set(rows) <= known
    assert tree["sizes"] == interpreter_speed.SIZES
    assert tree["provenance"]["commit"].isalnum()
    assert max(row["cpu_seconds"] for row in rows.values()) < 10
    assert max(row["peak_mib"] for row in rows.values()) < 512
