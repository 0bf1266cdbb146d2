"""Races on global memory: each is found, in several orders, and no twin is accused."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ptx_scoped import PAIRS, START, Pair, run
from tests.sample import SOAK
from tinygpu.codegen.emulator import Memory, Module, Report, launch

ORDERS = [("late", 0), ("early", 0), *(("random", seed) for seed in range(20 if SOAK else 3))]
IN_SOME = ("a grid barrier that one CTA does not wait at",)
"""Those that show only where a CTA comes later than others."""


def told(pair: Pair, completion: str, seed: int) -> bool:
    report, lines = run(pair, faulty=True, completion=completion, seed=seed)
    return any(
        f.kind in pair.kinds and lines & {f.line, f.other_line, *f.lines} for f in report.findings
    )


def test_there_are_enough() -> None:
    assert len(PAIRS) >= 30
    assert len({pair.text(faulty=True)[0] for pair in PAIRS.values()}) >= len(PAIRS) - 1


@pytest.mark.parametrize("name", PAIRS)
def test_a_race_is_found(name: str) -> None:
    found = [told(PAIRS[name], *order) for order in ORDERS]
    assert any(found) if name in IN_SOME else all(found)


@pytest.mark.parametrize("name", PAIRS)
def test_no_twin_is_accused(name: str) -> None:
    for completion, seed in ORDERS:
        report, _ = run(PAIRS[name], faulty=False, completion=completion, seed=seed)
        assert report.findings == ()
        assert "not checked" not in str(report)


def test_both_parties_are_named() -> None:
    [finding, *_] = run(PAIRS["another CTA's part"], faulty=True)[0].findings
    assert (finding.cta, finding.thread, finding.kind) == (0, 0, "race")
    assert finding.line > finding.other_line > 0
    assert "lane 0 of warp 0 of CTA 0 reads byte 256 of x" in finding.message
    assert "lane 0 of warp 0 of CTA 1 wrote and nothing orders before" in finding.message
    narrow = run(PAIRS["a sum by atomics of the CTA"], faulty=True)[0].findings[0]
    assert "their scopes do not have both in them" in narrow.message


def counted(fence: str, ctas: int) -> tuple[str, np.ndarray]:
    """Run CTAs that leave numbers; the last one, by a counter, adds all of them."""
    text = f"""{START}
        mad.wide.u32 %d0, %c, 4, %x; @%lead st.global.u32 [%d0], %c;
        @!%lead bra E;
        {fence}
        atom.relaxed.gpu.global.add.u32 %r1, [%f], 1; {fence}
        add.u32 %r2, %r1, 1; setp.ne.u32 %p2, %r2, {ctas}; @%p2 bra E;
        mov.u32 %r3, 0; mov.u64 %d1, %x;
        L: ld.global.u32 %r4, [%d1]; add.u32 %r9, %r9, %r4; add.u64 %d1, %d1, 4;
        add.u32 %r3, %r3, 1; setp.lt.u32 %p3, %r3, {ctas}; @%p3 bra L;
        st.global.u32 [%y], %r9;
        E: ret; }}"""
    memory, y = Memory(), np.zeros(1, np.uint32)
    given = [np.zeros(ctas, np.uint32), y, np.zeros(1, np.uint32)]
    report = launch(Module.parse(text), "k", ctas, 32, [memory.allocate(a) for a in given], memory)
    return " ".join(sorted(report.kinds)), y


def test_batches_are_concurrent() -> None:
    """CTAs of an earlier batch of the emulator have to be waited for as those of this one."""
    kinds, y = counted("fence.acq_rel.gpu;", 150)
    assert (kinds, y[0]) == ("", 149 * 75)
    assert counted("", 150)[0] == "race"


def test_launches_are_in_order() -> None:
    """What one kernel wrote another may read, if it is not launched as a dependent one."""
    module = Module.parse(f"{START} st.global.u32 [%own], %t; ret; }}")
    memory = Memory()
    given = [memory.allocate(np.zeros(64, np.uint32)) for _ in range(3)]
    for dependent, kinds in ((False, set()), (False, set()), (True, {"race"})):
        report = launch(module, "k", 1, 64, given, memory, dependent=dependent)
        assert report.kinds == kinds


def test_a_load_that_a_cas_checks() -> None:
    """The usual loop around a compare-and-swap begins with a plain load: a warning."""
    text = f"""{START}
        ld.global.u32 %r1, [%x];
        L: add.u32 %r2, %r1, 1; mov.u32 %r3, %r1;
        atom.relaxed.gpu.global.cas.b32 %r1, [%x], %r3, %r2;
        setp.ne.u32 %p2, %r1, %r3; @%p2 bra L; ret; }}"""
    x = np.zeros(1, np.uint32)
    memory = Memory()
    given = [memory.allocate(a) for a in (x, np.zeros(1, np.uint32), np.zeros(1, np.uint32))]
    report = launch(Module.parse(text), "k", 2, 64, given, memory)
    assert x[0] == 128
    assert {(f.kind, f.severity) for f in report.findings} == {("race", "warning")}


def last_of_all(give: str, take: str, *, behind: str = "", load: str = "") -> Report:
    """CTAs whose threads all write, fence and meet; one of each counts; the last one reads all."""
    text = f"""{START}
        mad.wide.u32 %d0, %g, 4, %x; st.global.u32 [%d0], %g;
        {give} bar.sync 0; @!%lead bra C;
        {behind} atom.relaxed.gpu.global.inc.u32 %r1, [%f], 1000; {load}
        st.shared.u32 [%s], %r1;
        C: bar.sync 0;
        ld.shared.u32 %r1, [%s]; setp.ne.u32 %p2, %r1, 5; @%p2 bra E;
        {take}
        mov.u64 %d1, %x; mov.u32 %r3, 0;
        L: ld.global.u32 %r4, [%d1]; add.u32 %r9, %r9, %r4; add.u64 %d1, %d1, 4;
        add.u32 %r3, %r3, 1; setp.lt.u32 %p3, %r3, 384; @%p3 bra L;
        st.global.u32 [%own + 2048], %r9;
        E: ret; }}"""
    memory = Memory()
    arrays = [np.zeros(1024, np.uint32), np.zeros(1, np.uint32), np.zeros(1, np.uint32)]
    given = [memory.allocate(a) for a in arrays]
    report = launch(Module.parse(text), "k", 6, 64, given, memory)
    assert (arrays[0][512 : 512 + 64] == 384 * 383 // 2).all()
    return report


@pytest.mark.parametrize(("give", "take", "behind", "right"), [
    ("membar.gl;", "membar.gl;", "", True),  # __threadfence(), as nvcc 13 has it
    ("fence.sc.gpu;", "fence.sc.sys;", "", True),
    ("fence.acq_rel.gpu;", "fence.acq_rel.gpu;", "", False),  # the counter's is too early
    ("fence.acq_rel.gpu;", "membar.gl;", "", False),
    ("membar.gl;", "fence.acq_rel.gpu;", "", False),
    ("membar.cta;", "membar.gl;", "", False),
    ("membar.gl;", "", "", False),
    ("", "membar.gl;", "", False),
    ("", "membar.gl;", "membar.gl;", True),
    ("", "fence.acq_rel.gpu;", "fence.acq_rel.gpu;", False),  # behind the counter it is another's
])  # fmt: skip
def test_fences_by_all_then_a_barrier_then_one_counts(
    give: str, take: str, behind: str, right: bool
) -> None:
    """Fences of sequential consistency are in one order; a release is its own thread's."""
    report = last_of_all(give, take, behind=behind)
    assert report.kinds == (set() if right else {"race"})


def test_an_acquire_by_who_counts_is_enough() -> None:
    fence = "fence.acq_rel.gpu;"
    assert last_of_all("", "", behind=fence, load=fence).findings == ()
    assert last_of_all(fence, "", load=fence).kinds == {"race"}
