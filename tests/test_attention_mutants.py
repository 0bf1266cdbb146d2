"""Mutants of attention's terms: none that is called legal fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from itertools import islice
from pathlib import Path

import pytest

import benchmarks.attention_mutants as module
from benchmarks.attention_mutants import RUNS, changes, drawn_mutants, judged, main, ran, summary
from tests.hostile_attention import REFUSED, WRONG, base
from tinygpu.errors import ProgramError
from tinygpu.legality.concurrency.judge import verdict
from tinygpu.meaning.identity import computes
from tinygpu.meaning.interpret import tile_of
from tinygpu.term.program import Program

TERM = "fa3 without turns, causal", base()
COUNT, RUN = 60, 2


@cache
def changed() -> list[tuple[str, Program]]:
    """The mutants of the term, which a worker without these tests need not make."""
    return list(changes(base()))


@pytest.fixture(autouse=True)
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the mutants of the term once."""
    monkeypatch.setattr(module, "changes", lambda program: changed())


def test_none_of_sixty_is_legal_and_fails() -> None:
    """All are judged, each in less than 3 s; the first legal ones run."""
    rows, legal = [], []
    for term, name, program in islice(drawn_mutants(1, [TERM]), COUNT):
        rows.append({"term": term, "mutant": name, **judged(program)})
        if rows[-1]["outcome"] == "legal":
            legal.append((name, program))
    found = summary(rows)
    assert found["mutants"] == COUNT
    assert found["outcomes"]["illegal"] > COUNT / 4
    assert "unproved" not in found["outcomes"]
    assert found["slowest_verdict_seconds"] < 3
    for name, program in legal[:RUN]:
        assert ran(program, orders=module.ordering(name))["outcome"] in ("survives", "wrong"), name


@pytest.mark.parametrize(
    "start",
    ["drop wait k_full", "drop wgmma.wait_group 0", "drop arrive v_empty"],
)
def test_the_oracle_sees_what_the_judge_refuses(start: str) -> None:
    """So that a judge that called it legal would be found out."""
    program = next(p for name, p in changed() if name.startswith(start))
    assert verdict(program).outcome == "illegal"
    assert ran(program, orders=True)["outcome"] == "fault"


@pytest.mark.parametrize("make", WRONG, ids=lambda make: make.__name__)
def test_hostile_terms_are_found(make: Callable[[], Program]) -> None:
    """By the judge; or they are legal, and do not compute attention."""
    program, found = make(), judged(make())
    if WRONG[make] == "computes":
        assert found["outcome"] == "legal"
        assert not computes(program, RUNS[0][0])
    else:
        assert (found["outcome"], found["why"]) == ("illegal", WRONG[make])


@pytest.mark.parametrize("make", REFUSED, ids=lambda make: make.__name__)
def test_what_is_no_term_is_refused(make: Callable[[], Program]) -> None:
    with pytest.raises(ProgramError, match=REFUSED[make]):
        make()


def test_what_they_are_made_of_is_legal() -> None:
    for program in (base(), base("fa2"), base("fa3", 2)):
        assert judged(program)["outcome"] == "legal"
        assert computes(program, RUNS[0][0])


def test_it_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "bases", lambda: (TERM,))
    monkeypatch.setattr(module, "ran", lambda program, orders: {"outcome": "survives"})
    main(["--out", str(tmp_path), "--count", "5"])
    first = (tmp_path / "attention_mutants.rows").read_text()
    main(["--out", str(tmp_path), "--count", "6"])
    second = (tmp_path / "attention_mutants.rows").read_text()
    assert second.startswith(first)
    found = json.loads((tmp_path / "attention_mutants.json").read_text())
    assert found["mutants"] == 6
    assert found["outcomes"].get("legal", 0) == 0


@pytest.mark.parametrize(
    ("axis", "found"), [("m", (64, False)), ("n", (64, True)), ("h", (1, False))]
)
def test_axes_that_no_tile_value_depends_on_stay_short(axis: str, found: tuple[int, bool]) -> None:
    """Else there would be 2^30 tiles to evaluate."""
    assert tile_of(base(), axis) == found
