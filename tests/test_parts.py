"""A climb in parts finds what the parts find alone, and ends at its deadline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tinygpu.deadline import NEVER, Deadline
from tinygpu.devices.device import load_device
from tinygpu.machines import MACHINES
from tinygpu.machines.attention import STARTS
from tinygpu.machines.simt import LADDER, Simt
from tinygpu.search.exact import best, branch
from tinygpu.search.exact.best import rank
from tinygpu.search.exact.branch import Search
from tinygpu.search.exact.parts import PartResult, climb_in_parts, parts_of
from tinygpu.space.space import Space
from tinygpu.term.operation import Problem, attention, matmul

PROBLEM = Problem.of(matmul(), m=256, n=250, k=256)
ATTENTION = Problem.of(attention(), l=1, h=3, g=1, m=512, n=512, d=128, e=128)
OPEN = {
    "tile_m": (32, 64), "thread_m": (4, 8), "raster": (1, 4), "stages": (1, 2, 3), "issue": (0, 1),
    "vector_a": (1, 4), "pipeline": ("none", "cp.async"), "edges": ("guard", "exact"),
}  # fmt: skip


def space() -> Space:
    return Space(Simt(), PROBLEM, load_device("h200"), fixed={**LADDER["tuned"], **OPEN})


def test_parts_are_disjoint_and_cover_the_space() -> None:
    """Each structural choice stands in one part, always the same one."""
    whole = space()
    found = [tuple(structure.values()) for part in parts_of(whole) for structure in part]
    assert len(found) == len(set(found))
    assert sorted(found) == sorted(tuple(s.values()) for s in whole.structures())
    assert parts_of(space()) == parts_of(whole)


def test_a_part_has_all_values_of_a_decision() -> None:
    """What a deadline leaves out is not all of one value; of orders there are more than choices."""
    whole = Space(MACHINES["attention"], ATTENTION, load_device("h200"))
    for part in parts_of(whole):
        for name in {*whole.structural} - {*whole.orders}:
            assert {structure[name] for structure in part} == set(whole.worth[name])


def test_a_climb_goes_to_structural_choices_of_other_parts() -> None:
    """It may draw from a poor choice only, and ends at the best all the same."""
    fixed = {
        **STARTS["fa3 without turns"],
        "consumer_order": ("SsMELOPVv", "SVsMELvOP", "SVsMvELOP", "SOVsMvELP"),
        "stages_k": (1, 2), "tile_n": (96, 128), "epilogue": ("direct", "tma"),
    }  # fmt: skip
    whole = Space(MACHINES["attention"], ATTENTION, load_device("h200"), fixed=fixed)
    every = rank(whole, 1)
    assert every.proven
    search = Search(whole, 1, ())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(branch, "_FOLLOWED", 0)
        search.start(exact=False, structures=whole.structures()[:1])
    ((_, seconds, _),) = search.entries()
    assert seconds == every.best[0].seconds


def test_what_is_found_is_what_each_part_finds() -> None:
    """However many processes there are."""
    whole, alone, admissible = space(), [], 0
    for part in parts_of(whole):
        search = Search(space(), 5, ())
        admissible += search.start(exact=False, structures=part)
        alone += search.entries()
    found = climb_in_parts(whole, 5, (), float("inf"), None, NEVER)
    assert found.admissible == admissible == whole.count()
    assert {(s, str(one)) for _, s, one in found.entries} == {(s, str(o)) for _, s, o in alone}


def test_a_process_that_ends_early_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever waits for its parts would wait for ever."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if sys.orig_argv[-2:-1] == ['tinygpu.search.exact.part']:\n"
        "    fork = os.fork\n"
        "    os.fork = lambda: fork() or os._exit(3)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match="a process of the search ended"):
        climb_in_parts(space(), 5, (), float("inf"), None, NEVER)


def test_after_a_deadline_nothing_is_begun() -> None:
    done: list[tuple[int, int]] = []
    over = Deadline.within(0.0, lambda: 1.0)
    found = climb_in_parts(space(), 5, (), float("inf"), lambda *at: done.append(at), over)
    assert not found.entries
    assert done[-1] == (len(parts_of(space())),) * 2


def test_all_are_followed_by_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The proven best three of orders and tiles, as one process finds them."""
    fixed = {
        **STARTS["fa3 without turns"], "tile_n": (96, 128),
        "consumer_order": ("SsMELOPVv", "SVsMELvOP", "SVsMvELOP", "SOVsMvELP"),
    }  # fmt: skip
    whole = Space(MACHINES["attention"], ATTENTION, load_device("h200"), fixed=fixed)
    monkeypatch.setattr(best, "cores", lambda: 1)
    alone = rank(whole, 3)
    asked: list[bool] = []

    def shared(*given: Any, **options: Any) -> PartResult:
        asked.append(options["exact"])
        return climb_in_parts(*given, **options)

    monkeypatch.setattr(best, "cores", lambda: 2)
    monkeypatch.setattr(best, "climb_in_parts", shared)
    monkeypatch.setattr(branch, "_SHARED", 1)
    found = rank(whole, 3)
    assert asked == [True]
    assert alone.proven
    assert found.proven
    assert found.admissible == alone.admissible == whole.count()
    assert [(one.seconds, one.schedule) for one in found.best] == [
        (one.seconds, one.schedule) for one in alone.best
    ]
