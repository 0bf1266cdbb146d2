"""Two judges that share no code: the judge and the interpreter, at points of a corpus.

What the interpreter makes fail by order, the graph rejects; ``benchmarks.async_corpus`` asks about
all of the corpus (``make soak``), here are a seeded part of it and the judge's own tests.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from benchmarks.async_corpus import Case, changed, drawn, judge, programs, row_of, summary
from benchmarks.peers import FOLDER
from tests.sample import SOAK, draws, some

SHARES, RATE = draws(3, 8), (0.1 if SOAK else 0.03)
KNOWN = json.loads((FOLDER.parent / "async_corpus.json").read_text())["summary"]
CASES = tuple(programs())


def part(share: int) -> Sequence[tuple[str, Case]]:
    """Of some mutants one of their points; hand-written programs are many and small."""
    rng = np.random.default_rng(share)
    found = []
    for case in CASES[share::SHARES]:
        for name, program in changed(case):
            if rng.random() < RATE:
                point = case.points[int(rng.integers(len(case.points)))]
                found.append((name, Case(case.name, program, (point,))))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("share", some(range(SHARES), 2))
def test_what_the_interpreter_makes_fail_the_graph_rejects(share: int) -> None:
    """Among mutants of right programs; what is rejected without a failure is of a known kind.

    The kinds are those of the whole corpus, which ``docs/model-concurrency.md`` explains; over all
    of it they are an eighth of the rejections, in a part of it that varies.
    """
    row = row_of("", part(share))
    assert row["told"]["missed"] == []
    assert row["told"]["refused"] == []
    assert set(summary([row])["conservative kinds"]) <= set(KNOWN["conservative kinds"])
    assert row["illegal"] > row["conservative"]
    assert row["legal"] > 10


@pytest.mark.slow
def test_schedules_as_drawn_are_judged_alike() -> None:
    """Unchanged ones are legal; of those with a changed number the two say the same."""
    row = row_of("", tuple(drawn(999, 16)))
    assert row["told"]["missed"] == []
    assert not any(line.startswith("unchanged") for lines in row["told"].values() for line in lines)


def test_right_programs_are_legal_to_both() -> None:
    for case in CASES[::9]:
        assert {judge(case, n) for n in range(len(case.points))} == {("legal", "")}, case.name


def test_the_judge_tells_outcomes_apart() -> None:
    """One mutant of each outcome, of which nobody doubts what it is."""
    case = next(c for c in CASES if c.name == "store ring 2 2")
    by_name = dict(changed(case))

    def outcome(start: str, point: int) -> str:
        name = next(n for n in by_name if n.startswith(start))
        return judge(case.of(by_name[name]), point)[0]

    assert outcome("unchanged", 1) == "legal"
    assert outcome("drop wait full", 1) == "illegal"
    assert outcome("drop arrive full", 1) == "illegal"
    assert outcome("sooner arrive empty", 0) == "conservative"  # nobody waits for it
    assert outcome("drop y[", 1) == "other law"  # what is not stored is no matter of order


def test_a_judge_that_accepts_all_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the judge's conditions there are misses: the corpus has faults."""
    case = next(c for c in CASES if c.name == "chain 2 2 True")
    monkeypatch.setattr("benchmarks.async_corpus.verdict_at", lambda *_: None)
    row = row_of("", [(n, case.of(p)) for n, p in changed(case)][:40])
    assert row["missed"] > 10


def test_a_summary_adds_up() -> None:
    told = {"conservative": ["drop wait full of x [1, 1]: early: text"], "missed": []}
    row = {"programs": 2, "points": 4, "legal": 2, "illegal": 1, "missed": 0, "conservative": 1,
           "other law": 0, "refused": 0, "told": told}  # fmt: skip
    got = summary([row, row])
    assert Counter(got["conservative kinds"]) == Counter({"drop wait: early": 2})
    assert (got["programs"], got["points"], got["conservative"]) == (4, 8, 2)
