"""The corpus of blackwell: a seeded part of it, its judges' own tests, and what it has found."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import tcgen05_corpus
from benchmarks.async_corpus import Case, row_of
from benchmarks.peers import FOLDER
from benchmarks.tcgen05_cases import (
    ARCH,
    DEVICE,
    LAYOUTS,
    cases,
    drawn,
    long_sizes,
    lot_names,
    mutants_of,
    texts,
)
from benchmarks.tcgen05_corpus import (
    COMPLETIONS,
    SEEDS,
    explained,
    judged,
    lots,
    main,
    row_of_drawn,
    summary,
)
from benchmarks.tcgen05_reasons import REASONS, UNEXPLAINED, of_term, of_text
from tests.ptx_runs import run_matmul
from tests.sample import SOAK, draws
from tinygpu.codegen.emit import emit
from tinygpu.legality.laws import check_schedule
from tinygpu.machines.blackwell import Blackwell
from tinygpu.term.operation import Problem

CASES = tuple(cases())
RESULTS = FOLDER.parent / "tcgen05_corpus.json"
RATE = 0.1 if SOAK else 0.03
PLAIN, PAIR = CASES[0], next(c for c in CASES if "cta_pair 1" in c.name)


def part(seed: int) -> Iterator[tuple[str, Case]]:
    """Of some mutants one of their points."""
    rng = np.random.default_rng(seed)
    for case in CASES:
        for name, mutant in mutants_of(case):
            if rng.random() < RATE:
                point = case.points[int(rng.integers(len(case.points)))]
                yield name, replace(mutant, points=(point,))


@pytest.mark.slow
def test_mutants_of_terms_are_judged_alike() -> None:
    """What the interpreter makes fail, the graph or another law rejects; the rest is explained."""
    row = row_of("", tuple(part(5)), ask=judged)
    assert row["told"]["missed"] == []
    assert row["told"]["refused"] == []
    assert not [x for x in row["told"]["conservative"] if of_term(x, {}) == UNEXPLAINED]
    assert row["illegal"] > 5 * row["conservative"]
    assert row["legal"] > 3


@pytest.mark.slow
def test_wrong_texts_are_found() -> None:
    """Some of two kernels: of one CTA, and of a pair."""
    for case in (CASES[2], PAIR):
        row = explained("texts", tcgen05_corpus.row_of_text(case, step=draws(14, 4)))
        assert UNEXPLAINED not in row["categories"]
        assert row["found"] >= 0.7 * row["mutants"]


@pytest.mark.slow
@pytest.mark.parametrize("number", range(draws(1, 6)))
def test_drawn_schedules_are_right(number: int) -> None:
    """Assembled without a spill or a warning, right for both interpreters in every order."""
    rng = np.random.default_rng(number)
    lot = str(rng.choice([n for n in lot_names() if n.endswith("nt")]))
    row = row_of_drawn(drawn(lot)[int(rng.integers(4))])
    assert row["reason"] == ""
    assert row["proved"]
    assert row["spilled_bytes"] == 0
    assert 0 < max(row["ptx_late"], row["ptx_early"], row["ptx_random"], row["term"]) <= 1


def test_what_is_drawn_is_legal_and_varied() -> None:
    """Each structure once, at sizes that its laws allow; drawn again it is the same."""
    lot = lot_names()[0]
    found = drawn(lot)
    structural = [n for n, c in Blackwell.decisions().items() if c.structural]
    assert len({tuple(d.schedule[n] for n in (*structural, "persistent")) for d in found}) == len(
        found
    )
    assert len(found) >= 8
    for one in found[::3]:
        problem = Problem.of(one.operation, **one.sizes)
        assert check_schedule(one.schedule, Blackwell(), problem, DEVICE) == ()
    assert [d.sizes for d in drawn.__wrapped__(lot)] == [d.sizes for d in found]
    assert {name.split()[-1] for name in lot_names()} == set(LAYOUTS)
    assert {"bf16", "f16", "e4m3"} <= {name.split()[1] for name in lot_names()}


def by_name(case: Case, start: str) -> Case:
    return next(c for n, c in mutants_of(replace(case, step=1)) if n.startswith(start))


@pytest.mark.parametrize(
    ("start", "outcome", "why"),
    [
        ("unchanged", "legal", ""),
        ("drop taken", "illegal", ""),
        ("at-once tcgen05.commit acc_full", "illegal", ""),
        ("before tcgen05.fence::after", "illegal", ""),
        ("after tcgen05.fence::before", "legal", ""),  # one tile: nobody is told
        ("lanes taken", "other law", "out_of_bounds"),
        ("after-all arrive full", "other law", "tcgen05_collective"),
        ("anew sums", "other law", "wrong_result"),
        ("phase+ tcgen05.commit empty", "conservative", "balance"),
    ],
)
def test_outcomes_of_one(start: str, outcome: str, why: str) -> None:
    got, text = judged(by_name(PLAIN, start), 1)
    assert (got, why in text) == (outcome, True), text


def test_a_graph_that_accepts_all_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its conditions there are misses, which no other law explains."""
    monkeypatch.setattr("benchmarks.async_corpus.verdict_at", lambda *_: None)
    faults = ("at-once tcgen05.commit empty", "drop wait full", "drop tcgen05.wait")
    for start in faults:
        assert judged(by_name(PLAIN, start), 1)[0] == "missed", start


def kinds_of(case: Case, name: str) -> set[str]:
    """What the late order shows of the first text whose name has this in it."""
    every = texts(emit(case.program, ARCH, long_sizes(case)))
    text = next(t for n, t in every if re.search(name, n))
    ran = run_matmul(case.program, long_sizes(case), text=text, arch=ARCH, clusters=1)
    return ran.report.kinds | ({"wrong result"} if not ran.right else set())


@pytest.mark.parametrize(
    ("case", "name", "kind"),
    [
        (PLAIN, "drop tcgen05.wait::ld", "register"),
        (PAIR, "drop both fence.mbarrier_init", "proxy"),
        (PLAIN, "swap tcgen05.alloc", "tensor memory"),
        (PLAIN, "drop tcgen05.dealloc", "tensor memory"),
        (CASES[2], r"\d: drop tcgen05.fence::before", "race"),
        (CASES[2], r"warp- mbarrier", "race"),
        (PAIR, r"\(opening\): drop barrier.cluster.arrive", "barrier"),
        (PAIR, r"\d: drop barrier.cluster.arrive.release", "barrier"),
        (PAIR, "drop tcgen05.commit", "deadlock"),
        (PAIR, "columns- ", "tensor memory"),
    ],
)
def test_a_wrong_text_shows_what_it_is(case: Case, name: str, kind: str) -> None:
    assert kind in kinds_of(case, name)


def test_a_kernel_that_is_wrong_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that says that its kernel is right is of one that ran."""

    def without_waits(*given: Any) -> str:
        return re.sub(r"\ttcgen05\.wait::ld[^\n]*\n", "", emit(*given))

    monkeypatch.setattr(tcgen05_corpus, "emit", without_waits)
    monkeypatch.setattr(tcgen05_corpus, "COMPLETIONS", COMPLETIONS[: draws(1, 3)])
    monkeypatch.setattr(tcgen05_corpus, "SEEDS", SEEDS[: draws(1, len(SEEDS))])
    row = row_of_drawn(drawn(lot_names()[0])[0])
    assert "late: " in row["reason"]
    assert "register" in row["reason"]


def test_categories_are_those_that_are_explained() -> None:
    stages = {"full": 2, "acc_full": 1}
    lines = {
        "phase- arrive full@(k) of p [1, 1]: balance: x": "a name",
        "later tcgen05.commit acc_full@(t) of q [1, 1]: balance: x": "a name",
        "later arrive full@(k) of p [1, 1]: balance: gets 0 (m: wait full at k=1)": "enough",
        "double arrive full@(k) of p [1, 1]: balance: gets 2": "nobody waits",
        "drop barrier.cluster of p [1, 1]: deadlock: x": "left",
        "drop wait full@(k) of p [1, 1]: race: x": UNEXPLAINED,
    }
    assert {line: of_term(line, stages) for line in lines} == lines
    texts_of = {
        "line 9 (opening): drop fence.proxy.async.shared::cta;": "two fences",
        "line 9: drop bar.sync 0;": "left",
        "line 9: count- mbarrier.init.shared::cta.b64 [%smem], 128;": "lanes",
        "line 9: drop mbarrier.arrive.shared::cta.b64 _, [%r1];": UNEXPLAINED,
    }
    assert {name: of_text(name, one_tile=False) for name in texts_of} == texts_of
    last = "line 9: drop mbarrier.arrive.shared::cta.b64 _, [%r1];"
    assert of_text(last, one_tile=True) == "one tile"
    assert {*lines.values(), *texts_of.values(), "one tile"} - {UNEXPLAINED} <= set(REASONS)


def test_a_run_that_was_cut_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lots that are there with their terms as they are now are not done again."""
    few = (("texts", PLAIN.name), ("rows", PLAIN.name))
    monkeypatch.setattr(tcgen05_corpus, "lots", lambda: few)
    monkeypatch.setattr(tcgen05_corpus, "mutants_of", lambda c: [("unchanged", c)])
    monkeypatch.setattr(tcgen05_corpus, "texts", lambda t: [("line 1: drop nothing", t)])
    main(["--out", str(tmp_path)])
    path = tmp_path / "tcgen05_corpus.json"
    tree = json.loads(path.read_text())
    assert tree["rows"][0]["legal"] == 2
    assert tree["texts"][0]["categories"] == {UNEXPLAINED: 1}
    tree["texts"][0]["found"] = 77
    tree["rows"][0] |= {"key": "of another term", "legal": 88}
    path.write_text(json.dumps(tree))
    main(["--out", str(tmp_path)])
    tree = json.loads(path.read_text())
    assert (tree["texts"][0]["found"], tree["rows"][0]["legal"]) == (77, 2)
    assert '"unexplained": 1' in capsys.readouterr().out


def test_a_summary_adds_up() -> None:
    good = {"reason": "", "proved": True, "spilled_bytes": 0, "warnings": [], "ptx_late": 0.5,
            "term": 0.25, "seconds": 2.0}  # fmt: skip
    bad = {"reason": "early: race", "seconds": 1.0, "ptx_late": "inf"}
    told: dict[str, Any] = {"schedules": [good, bad], "rows": [], "texts": []}
    found = summary(told)["schedules"]
    assert (found["schedules"], found["wrong"], found["proved"]) == (2, 1, 1)
    assert (found["worst PTX error"], found["worst term error"]) == ("inf", 0.25)


@pytest.mark.skipif(not RESULTS.exists(), reason="the whole corpus has not run yet")
def test_the_whole_corpus_found_nothing() -> None:
    """The committed results: all of it, nothing wrong, nothing missed, all explained."""
    told = json.loads(RESULTS.read_text())["summary"]
    assert told["schedules"]["schedules"] >= 200
    assert told["schedules"]["wrong"] == told["schedules"]["warnings"] == 0
    assert told["rows"]["programs"] >= 300
    assert told["rows"]["missed"] == told["rows"]["refused"] == 0
    for part, name in (("rows", "conservative categories"), ("texts", "unfound categories")):
        assert set(told[part][name]) <= set(REASONS)
    assert {part for part, _ in lots()} == {"rows", "texts", "schedules"}
