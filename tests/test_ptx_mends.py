"""What is missing: a finding names a statement, and with it the kernel is clean."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.ptx_faults import FAULTS, WORDS, Fault
from tests.test_ptx_tool import ARRAYS, LINE, RACE, tool
from tinygpu.codegen.emulator.checking import Checked, check, with_mends
from tinygpu.codegen.emulator.mending import STATEMENTS, Mend, mend_of
from tinygpu.codegen.emulator.report import Finding

MISSING = (
    "no __syncthreads", "no __syncwarp", "no wait for cp.async", "no commit", "no proxy fence",
    "loads over what is read", "exits before its cluster", "wgmma",
    "no wait for a bulk store's reads",
)  # fmt: skip
"""Families of which each fault lacks a statement; some others are mended by one, too."""
EACH = 1 if os.environ.get("SOAK") else 4


def run(fault: Fault, text: str, limit: int = 400_000) -> Checked:
    arrays = {"x": np.arange(WORDS, dtype=np.uint32), "y": np.zeros(WORDS, np.uint32)}
    return check(text, "k", fault.grid, fault.threads, arrays, cluster=fault.cluster, limit=limit)


def applied(text: str, mend: str) -> str:
    found = re.fullmatch(r"with `(.*)` before line (\d+) it is gone", mend)
    assert found is not None, mend
    rows = text.split("\n")
    line = int(found[2])
    return "\n".join([*rows[: line - 1], found[1], *rows[line - 1 :]])


LACKING = [fault for fault in FAULTS if fault.family in MISSING]


@pytest.mark.parametrize("fault", LACKING[::EACH], ids=lambda fault: fault.family)
def test_a_mend_is_named_and_mends(fault: Fault) -> None:
    """In all default orders, not in those alone in which it was tried."""
    text, _ = fault.text(faulty=True)
    told = with_mends(run(fault, text), text, lambda edited, limit: run(fault, edited, limit))
    mends = [finding.mend for finding in told.findings if finding.mend]
    assert mends
    assert not all(run(fault, applied(text, mend)).findings for mend in mends)


RACED = Finding("race", 3, "ld.shared.u32 %r1, [%r0]", "", other_line=5)


@pytest.mark.parametrize(
    ("left", "line"),
    [
        ([], 3),
        ([RACED], 0),  # it is still there
        ([Finding("deadlock", 4, "bar.sync 0", "")], 0),  # something else is there
        ([Finding("address", 9, "st.global.u32", "")], 3),  # which was there before, a line above
    ],
)
def test_a_mend_leaves_nothing_but_what_was_there(left: list[Finding], line: int) -> None:
    known = [RACED, Finding("address", 8, "st.global.u32", "")]
    asked: list[str] = []

    def runs(text: str) -> Sequence[Finding] | None:
        asked.append(text)
        return left if "bar.sync 0;\n" in text else None

    text = "\n".join(f"line {n};" for n in range(1, 10))
    mend = mend_of(RACED, known, text, runs)
    assert mend == (Mend("bar.sync 0;", line) if line else None)
    assert asked[0].split("\n")[2] == STATEMENTS["race"][0]
    assert asked[1].split("\n")[5] == STATEMENTS["race"][0]  # behind the other party
    assert not mend_of(Finding("address", 8, "", ""), known, text, runs)


def test_trials_end_with_their_instructions() -> None:
    """A long run is followed by few trials: what was not tried is not said."""
    fault = LACKING[0]
    text, _ = fault.text(faulty=True)
    first, tried = run(fault, text), list[int]()

    def long(edited: str, limit: int) -> Checked:
        tried.append(limit)
        found = run(fault, edited, limit)
        return Checked(found.kernel, found.orders, first.findings, {}, (), 3_000_000, {})

    assert not any(finding.mend for finding in with_mends(first, text, long).findings)
    assert len(tried) == 1
    assert tried[0] >= 4 * first.instructions


def test_it_is_told_by_the_command(tmp_path: Path) -> None:
    """In text, JSON, SARIF (as a fix) and annotations."""
    said = f"with `bar.sync 0;` before line {LINE} it is gone"
    assert said in " ".join(tool(tmp_path, RACE, *ARRAYS)[1].split())
    out = tool(tmp_path, RACE, *ARRAYS, "--json", "--sarif", str(tmp_path / "o.sarif"))[1]
    assert json.loads(out)["findings"][0]["mend"] == said
    [result] = json.loads((tmp_path / "o.sarif").read_text(encoding="utf-8"))["runs"][0]["results"]
    assert said in result["message"]["text"]
    assert said in tool(tmp_path, RACE, *ARRAYS, "--annotations", "github")[1]
