"""Families of faults: each is found at its line in the default orders, and no twin is accused."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from benchmarks.peers import FOLDER
from tests import ptx_dropped
from tests.ptx_faults import FAULTS, Fault, checked, found

IDS = [f"{f.family} {n}" for n, f in enumerate(FAULTS)]


def test_there_are_ten_of_a_family() -> None:
    families = Counter(f.family for f in FAULTS)
    assert len(families) >= 20
    assert set(families.values()) == {10}
    assert len({(f.text(faulty=True)[0], f.threads) for f in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=IDS)
def test_a_fault_is_found_at_its_line(fault: Fault) -> None:
    assert found(fault)


@pytest.mark.parametrize("fault", FAULTS, ids=IDS)
def test_no_twin_is_accused(fault: Fault) -> None:
    twin, _ = checked(fault, faulty=False)
    assert twin.findings == ()
    assert twin.differing == ()


@pytest.mark.parametrize("name", ["sort_radix", "ptx_bulk", "std_roles"])
def test_one_synchronisation_less(name: str) -> None:
    """Each place is told of, or has its reason; a reason stands for a place that is silent."""
    for line, _ in ptx_dropped.places(name):
        assert ptx_dropped.silent(name, line) == bool(ptx_dropped.reason(name, line)), line


def test_the_recorded_run() -> None:
    """The marks hold in the run that is committed."""
    tree = json.loads((FOLDER.parent / "ptx_corpus.json").read_text(encoding="utf-8"))
    assert tree["faults"]["found"] >= 0.95 * tree["faults"]["faults"] >= 190
    assert tree["faults"]["alarms"] == 0
    assert tree["dropped"]["kernels"] >= 30
    assert tree["dropped"]["unexplained"] == []
    assert tree["fuzz"]["texts"] >= 10_000
    assert tree["fuzz"]["tracebacks"] == []
    assert tree["fuzz"]["slowest_seconds"] < 5
    assert sum(tree["kernels"][k]["wrong"] for k in ("nvcc", "nvcc, kept apart", "Triton")) == 0
