"""Families of faults: each is found at its line in the default orders, and no twin is accused."""

from __future__ import annotations

import json
from collections import Counter
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from benchmarks.peers import FOLDER
from tests import ptx_dropped
from tests.ptx_faults import FAULTS, Fault, checked, found
from tinygpu.codegen.emulator.run import Group, Run

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


def test_a_race_with_the_last_warp_of_four_alone() -> None:
    """Three warps have met the one that writes; what is told is of the row that has not."""
    zeros = "{%r2, %r2, %r2, %r2}"
    store = " ".join(f"@%p4 st.shared.v4.u32 [%r1+{at}], {zeros};" for at in (0, 16, 32, 48))
    product = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16"
    body = f"""
        mad.lo.u32 %r1, %t, 64, %s; mov.u32 %r2, 0; setp.lt.u32 %p4, %t, 32;
        {store}
        fence.proxy.async.shared::cta; setp.lt.u32 %p2, %t, 96;
        !@%p2 bar.sync 1, 96;
        =bar.sync 0;
        shr.u32 %r3, %s, 4; cvt.u64.u32 %d4, %r3; or.b64 %d4, %d4, 0x0000000800080000;
        wgmma.fence.sync.aligned;
        {product} {{%f0, %f1, %f2, %f3}}, %d4, %d4, 0, 1, 1, 0, 0; <<
        wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 0;"""  # fmt: skip
    fault = Fault("one row", body, frozenset({"race"}), threads=128)
    told, lines = checked(fault, faulty=True)
    assert [(f.kind, f.line in lines, f.thread // 32) for f in told.findings] == [("race", True, 3)]
    assert not checked(fault, faulty=False)[0].findings


def test_a_warpgroup_begins_at_a_fourth_warp() -> None:
    """Two of whom only one is whole: the others wait, also where as many threads are there."""
    run = SimpleNamespace(live=np.ones(384, bool), park=lambda group, early: group.where(~early))
    here = Run.together(cast(Run, run), Group(np.r_[0:128, 160:288]), 128)
    assert here is not None
    assert here.threads.tolist() == list(range(128))


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
