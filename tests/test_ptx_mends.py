"""What is missing: a finding names a statement, and with it the kernel is clean."""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from tests.ptx_faults import FAULTS, WORDS, Fault
from tests.ptx_scoped import PAIRS
from tests.sample import draws, some
from tests.test_ptx_tool import ARRAYS, LINE, RACE, tool
from tinygpu.codegen.emulator.checking import Checked, check, orders, with_mends
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
    """Do to a text what a finding says, read from its words."""
    said = (
        r"with(?:out)? `(.*?)`(?: for `(.*)`)? (?:before|at) lines? ([\d and]+) it is gone(?:: .*)?"
    )
    found = re.fullmatch(said, mend)
    assert found is not None, mend
    statement, instead, lines = found.groups()
    if mend.startswith("without"):
        statement, instead = "", statement
    rows = text.split("\n")
    for line in map(int, lines.split(" and ")):
        row = rows[line - 1]
        assert instead is None or instead in row
        rows[line - 1] = row.replace(instead, statement, 1) if instead else f"{statement} {row}"
    return "\n".join(rows)


NUMBERS = {
    "wrong parity": 6, "wrong expect_tx": 8, "wrong number of arrivals": 9, "arrives twice": 10,
    "wrong count of bar.sync": 8,
}  # fmt: skip
"""Families of wrong numbers: of so many of ten what is told makes the kernel clean."""
LACKING = [fault for fault in FAULTS if fault.family in MISSING]


@pytest.mark.parametrize("fault", LACKING[::EACH], ids=lambda fault: fault.family)
def test_a_mend_is_named_and_mends(fault: Fault) -> None:
    """In all default orders, not in those alone in which it was tried."""
    text, _ = fault.text(faulty=True)
    told = with_mends(run(fault, text), text, lambda edited, limit: run(fault, edited, limit))
    mends = [finding.mend for finding in told.findings if finding.mend]
    assert mends
    assert not all(run(fault, applied(text, mend)).findings for mend in mends)


@pytest.mark.parametrize("family", NUMBERS)
def test_a_right_number_is_named_and_mends(family: str) -> None:
    named = 0
    for fault in (fault for fault in FAULTS if fault.family == family):
        text, _ = fault.text(faulty=True)
        told = with_mends(run(fault, text), text, functools.partial(run, fault))
        mends = [finding.mend for finding in told.findings if finding.mend]
        named += any(not run(fault, applied(text, mend)).findings for mend in mends)
    assert named == NUMBERS[family]


@pytest.mark.parametrize(
    ("family", "n", "said"),
    [
        ("wrong expect_tx", 0, "it says 512 B, 256 land"),
        ("wrong parity", 0, "this wait's parity is that of the phase before"),
        ("wrong number of arrivals", 0, "it counts 65 arrivals, 64 come"),
        ("wrong count of bar.sync", 0, "it counts 64 threads, the CTA has 96"),
    ],
)
def test_what_is_wrong_is_said(family: str, n: int, said: str) -> None:
    fault = [fault for fault in FAULTS if fault.family == family][n]
    text, _ = fault.text(faulty=True)
    told = with_mends(run(fault, text), text, functools.partial(run, fault))
    assert any(finding.mend.endswith(said) for finding in told.findings)


UNMENDED = {
    "a flag before the data", "a grid barrier that one CTA does not wait at",
    "neighbours in place", "a sum without atomics", "another CTA's part", "the CTA after the next",
    "a store over what a bulk load reads", "bytes of one word",
}  # fmt: skip
"""Races on global memory that no single statement mends: another place, order or number does."""


@pytest.mark.parametrize("name", some((n for n, p in PAIRS.items() if not p.before), 3))
def test_a_race_on_global_memory_is_mended(name: str) -> None:
    pair = PAIRS[name]
    arrays = {n: np.zeros(512, np.uint32) for n in "xyf"}
    text, _ = pair.text(faulty=True)

    def checks(text: str, limit: int = 400_000) -> Checked:
        return check(
            text, "k", pair.grid, pair.threads, arrays, cluster=pair.cluster, limit=limit,
            orders=orders(f"late,early,random:{draws(1, 3)}"),
        )  # fmt: skip

    told = with_mends(checks(text), text, checks)
    mends = [finding.mend for finding in told.findings if finding.mend]
    assert bool(mends) is (name not in UNMENDED)
    assert not mends or not all(checks(applied(text, mend)).findings for mend in mends)


RACED = Finding("race", 3, "ld.shared.u32 %r1, [%r0]", "", other_line=5)


@pytest.mark.parametrize(
    ("left", "line"),
    [
        ([], 3),
        ([RACED], 0),  # it is still there
        ([Finding("deadlock", 4, "bar.sync 0", "")], 0),  # something else is there
        ([Finding("address", 8, "st.global.u32", "")], 3),  # which was there before
    ],
)
def test_a_mend_leaves_nothing_but_what_was_there(left: list[Finding], line: int) -> None:
    known = [RACED, Finding("address", 8, "st.global.u32", "")]
    asked: list[str] = []

    def runs(text: str) -> Sequence[Finding] | None:
        asked.append(text)
        return left if "bar.sync 0; line" in text else None

    text = "\n".join(f"line {n};" for n in range(1, 10))
    mend = mend_of(RACED, known, text, runs)
    assert mend == (Mend("bar.sync 0;", (line,)) if line else None)
    assert asked[0].split("\n")[2] == f"{STATEMENTS['race'][0]} line 3;"
    assert asked[1].split("\n")[5] == f"{STATEMENTS['race'][0]} line 6;"  # behind the other party
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
