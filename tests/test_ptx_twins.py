"""Faulty kernels and their correct twins: each fault is found at its line, no twin is accused.

A line of a kernel that begins with ``!`` is in the faulty one only, with ``=`` in the twin only;
``<<`` marks where the fault has to be found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tinygpu.codegen.emulator import Memory, Module, Report, launch

START = """.version 8.7
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y) {
  .reg .b64 %d<9>, %state; .reg .b32 %t, %s, %own, %r<12>, %lane; .reg .pred %p<6>;
  .shared .align 128 .b8 held[2048]; .shared .align 8 .b64 bar; .local .align 8 .b8 stack[32];
  ld.param.u64 %d0, [x]; ld.param.u64 %d1, [y]; mov.u32 %t, %tid.x; mov.u32 %s, held;
  mad.lo.u32 %own, %t, 4, %s; and.b32 %lane, %t, 31; mul.wide.u32 %d2, %t, 4;
  add.u64 %d3, %d2, %d0; add.u64 %d2, %d2, %d1; mov.u32 %r11, bar; mov.u32 %r9, 0;
  setp.eq.u32 %p0, %t, 0; setp.eq.u32 %p1, %lane, 0;
"""
END = "\n  st.global.u32 [%d2], %r9;\n  ret;\n}\n"
INIT = "@%p0 mbarrier.init.shared::cta.b64 [%r11], {n}; bar.sync 0;"


@dataclass(frozen=True)
class Twins:
    """The two kernels' body, and what has to be found in the faulty one."""

    body: str
    kind: str
    threads: int = 64
    severity: str = "error"

    def text(self, *, faulty: bool) -> tuple[str, int]:
        """Return a kernel, and the line of the fault."""
        lines, at = [], 0
        before = START.count("\n")
        for line in self.body.strip("\n").split("\n"):
            kept = line.strip()
            if kept[:1] in "!=" and (kept[:1] == "!") != faulty:
                continue
            lines.append(kept.lstrip("!=").replace("<<", ""))
            if "<<" in kept:
                at = before + len(lines)
        return START + "\n".join(lines) + END, at


TWINS = {
    "no __syncwarp between lanes": Twins("""
        st.shared.u32 [%own], %t;
        =bar.warp.sync 0xffffffff;
        xor.b32 %r1, %t, 31; mad.lo.u32 %r1, %r1, 4, %s;
        ld.shared.u32 %r9, [%r1]; <<""", "race", 32),
    "lanes write what others still read": Twins("""
        st.shared.u32 [%own], %t;
        bar.warp.sync 0xffffffff;
        xor.b32 %r1, %t, 1; mad.lo.u32 %r1, %r1, 4, %s;
        ld.shared.u32 %r9, [%r1];
        =bar.warp.sync 0xffffffff;
        st.shared.u32 [%own], %r9; <<""", "race", 32),
    "lanes count without an atomic": Twins("""
        @%p0 st.shared.u32 [%s], 0;
        bar.warp.sync 0xffffffff;
        !ld.shared.u32 %r1, [%s]; add.u32 %r1, %r1, %t;
        !st.shared.u32 [%s], %r1; <<
        =atom.shared.add.u32 %r1, [%s], 1;""", "race", 32),
    "a mask that leaves a lane out": Twins("""
        st.shared.u32 [%own], %t;
        setp.lt.u32 %p2, %lane, 16;
        !@%p2 bar.warp.sync 0x0000ffff;
        =bar.warp.sync 0xffffffff;
        mov.u32 %r1, %s;
        @%p2 ld.shared.u32 %r9, [%r1+124]; <<""", "race", 32),
    "shfl orders no memory": Twins("""
        st.shared.u32 [%own], %t;
        !shfl.sync.idx.b32 %r1, %t, 0, 31, 0xffffffff;
        =bar.warp.sync 0xffffffff;
        ld.shared.u32 %r9, [%s]; <<""", "race", 32),
    "cp.async of another lane": Twins("""
        cp.async.ca.shared.global [%own], [%d3], 4; cp.async.wait_all;
        =bar.warp.sync 0xffffffff;
        xor.b32 %r1, %t, 1; mad.lo.u32 %r1, %r1, 4, %s;
        ld.shared.u32 %r9, [%r1]; <<""", "race", 32),
    "no barrier between warps": Twins("""
        st.shared.u32 [%own], %t;
        =bar.sync 0;
        xor.b32 %r1, %t, 32; mad.lo.u32 %r1, %r1, 4, %s;
        ld.shared.u32 %r9, [%r1]; <<""", "race"),
    "mbarrier.init is not told of": Twins("""
        @%p0 mbarrier.init.shared::cta.b64 [%r11], 64;
        !bar.warp.sync 0xffffffff;
        =bar.sync 0;
        mbarrier.arrive.shared::cta.b64 %state, [%r11]; <<
        W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r11], 0; @!%p2 bra W;""", "race"),
    "an arrival too many": Twins(INIT.format(n=2) + """
        st.shared.u32 [%own], %t; bar.warp.sync 0xffffffff;
        @%p1 mbarrier.arrive.shared::cta.b64 %state, [%r11];
        !@%p0 mbarrier.arrive.shared::cta.b64 %state, [%r11]; <<
        W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r11], 0; @!%p2 bra W;
        xor.b32 %r1, %t, 63; mad.lo.u32 %r1, %r1, 4, %s;
        ld.shared.u32 %r9, [%r1];""", "barrier"),
    "one lane arrives for all, too early": Twins(INIT.format(n=2) + """
        st.shared.u32 [%own], %t;
        =bar.warp.sync 0xffffffff;
        @%p1 mbarrier.arrive.shared::cta.b64 %state, [%r11];
        W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r11], 0; @!%p2 bra W;
        xor.b32 %r1, %t, 33; mad.lo.u32 %r1, %r1, 4, %s;
        ld.shared.u32 %r9, [%r1]; <<""", "race"),
    "more threads than bar.sync counts": Twins("""
        !bar.sync 1, 64; <<
        =bar.sync 1, 96;""", "deadlock", 96),
    "a count that is no multiple of a warp": Twins("""
        !bar.sync 1, 48; <<
        =bar.sync 1, 64;""", "barrier"),
    "shfl from a lane outside of the mask": Twins("""
        setp.lt.u32 %p2, %lane, 16; @!%p2 bra E;
        !shfl.sync.bfly.b32 %r9, %t, 16, 31, 0x0000ffff; <<
        =shfl.sync.bfly.b32 %r9, %t, 8, 31, 0x0000ffff;
        E:""", "shuffle", 32, "warning"),
    "local memory that nobody wrote": Twins("""
        =st.local.u32 [stack+4], %t;
        ld.local.u32 %r9, [stack+4]; <<""", "uninitialised", 32, "warning"),
    "past the end of local memory": Twins("""
        and.b32 %r1, %t, 7; mov.u32 %r2, stack;
        !add.u32 %r1, %r1, 1;
        mad.lo.u32 %r2, %r1, 4, %r2;
        st.local.u32 [%r2], %t; <<""", "address", 32),
    "an atomic on what nobody wrote": Twins("""
        =@%p0 st.shared.u32 [%s], 0;
        bar.sync 0;
        atom.shared.add.u32 %r9, [%s], 1; <<""", "uninitialised"),
    "a flag that is not set to 0 in time": Twins(
        """
        @%p0 st.relaxed.cta.shared.u32 [%s], 0;
        =bar.sync 0;
        setp.lt.u32 %p2, %t, 32; @!%p2 bra C;
        @%p0 st.release.cta.shared.u32 [%s], 1;
        bra E;
        C: ld.acquire.cta.shared.u32 %r2, [%s]; <<
        setp.eq.u32 %p2, %r2, 0; @%p2 bra C;
        E:""",
        "uninitialised",
    ),
    "a counter that is not set to 0 in time": Twins(
        """
        @%p0 st.shared.u32 [%s], 0;
        =bar.sync 0;
        atom.shared.add.u32 %r9, [%s], 1; <<""",
        "uninitialised",
    ),
    "the size of a bulk copy": Twins(INIT.format(n=1) + """
        !mov.u32 %r1, 60;
        =mov.u32 %r1, 64;
        fence.proxy.async.shared::cta;
        @%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], %r1;
        @%p0 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes <<
          [%s], [%d0], %r1, [%r11];
        =W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r11], 0; @!%p2 bra W;
        =ld.shared.u32 %r9, [%s];""", "alignment"),
    "a flag without release and acquire": Twins("""
        @%p0 st.shared.u32 [%s], 0; bar.sync 0;
        setp.lt.u32 %p2, %t, 32; @!%p2 bra C;
        @%p0 st.shared.u32 [%s+4], 42;
        !@%p0 st.relaxed.cta.shared.u32 [%s], 1;
        =@%p0 st.release.cta.shared.u32 [%s], 1;
        bra E;
        C: ld.acquire.cta.shared.u32 %r2, [%s]; setp.eq.u32 %p2, %r2, 0; @%p2 bra C;
        ld.shared.u32 %r9, [%s+4]; <<
        E:""", "race"),
    "a flag read by a relaxed load without a fence": Twins("""
        @%p0 st.shared.u32 [%s], 0; bar.sync 0;
        setp.lt.u32 %p2, %t, 32; @!%p2 bra C;
        @%p0 st.shared.u32 [%s+4], 42; fence.acq_rel.cta;
        @%p0 st.relaxed.cta.shared.u32 [%s], 1;
        bra E;
        C: ld.relaxed.cta.shared.u32 %r2, [%s]; setp.eq.u32 %p2, %r2, 0; @%p2 bra C;
        =fence.acq_rel.cta;
        ld.shared.u32 %r9, [%s+4]; <<
        E:""", "race"),
    "a volatile flag without __threadfence_block": Twins("""
        @%p0 st.volatile.shared.u32 [%s], 0; bar.sync 0;
        setp.lt.u32 %p2, %t, 32; @!%p2 bra C;
        @%p0 st.shared.u32 [%s+4], 42;
        =membar.cta;
        @%p0 st.volatile.shared.u32 [%s], 1;
        bra E;
        C: ld.volatile.shared.u32 %r2, [%s]; setp.eq.u32 %p2, %r2, 0; @%p2 bra C;
        membar.cta;
        ld.shared.u32 %r9, [%s+4]; <<
        E:""", "race"),
    "a lock whose release is no release": Twins("""
        @%p0 st.shared.v2.u32 [%s], {%r9, %r9}; bar.sync 0;
        @!%p1 bra E;
        L: atom.acquire.cta.shared.cas.b32 %r2, [%s], 0, 1;
        setp.ne.u32 %p2, %r2, 0; @%p2 bra L;
        ld.shared.u32 %r3, [%s+4]; <<
        add.u32 %r3, %r3, 1; st.shared.u32 [%s+4], %r3;
        !atom.relaxed.cta.shared.exch.b32 %r2, [%s], 0;
        =atom.release.cta.shared.exch.b32 %r2, [%s], 0;
        E:""", "race", 96),
    "several warps store different values": Twins("""
        !st.shared.u32 [%s], %t; <<
        =@%p0 st.shared.u32 [%s], %t;""", "race"),
    "several warps store the same value": Twins("""
        !st.shared.u32 [%s], 7; <<
        =@%p0 st.shared.u32 [%s], 7;
        bar.sync 0; ld.shared.u32 %r9, [%s];""", "race", 64, "warning"),
    "st.async without its wait": Twins(INIT.format(n=1) + """
        fence.proxy.async.shared::cta; @!%p0 bra E;
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r11], 4;
        st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%s], 7, [%r11];
        =W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r11], 0; @!%p2 bra W;
        ld.shared.u32 %r9, [%s]; <<
        E:""", "race"),
}  # fmt: skip


def run(text: str, threads: int, **how: Any) -> tuple[Report, np.ndarray]:
    memory, x, y = Memory(), np.arange(128, dtype=np.uint32), np.zeros(128, np.uint32)
    arguments = [memory.allocate(x, "x"), memory.allocate(y, "y")]
    return launch(Module.parse(text), "k", 1, threads, arguments, memory, **how), y


@pytest.mark.parametrize("name", TWINS)
@pytest.mark.parametrize("completion", ["late", "random"])
def test_twins(name: str, completion: str) -> None:
    twins = TWINS[name]
    text, line = twins.text(faulty=True)
    report, _ = run(text, twins.threads, completion=completion)
    found = [(f.kind, f.severity) for f in report.findings if line in (f.line, *f.lines)]
    assert (twins.kind, twins.severity) in found, report.findings
    text, _ = twins.text(faulty=False)
    report, _ = run(text, twins.threads, completion=completion)
    assert report.findings == ()


@pytest.mark.parametrize("name", [n for n, t in TWINS.items() if t.threads == 64])
def test_agents_that_are_warps_accuse_nobody(name: str) -> None:
    """A run by warps finds fewer faults, and none in a twin."""
    text, _ = TWINS[name].text(faulty=False)
    assert run(text, 64, lanes=False)[0].findings == ()


def test_what_lanes_see() -> None:
    """A race inside a warp is seen with lanes alone, and a launch of few threads has them."""
    text, _ = TWINS["no __syncwarp between lanes"].text(faulty=True)
    assert run(text, 32, lanes=False)[0].findings == ()
    assert run(text, 32, lanes=True)[0].kinds == run(text, 32)[0].kinds == {"race"}


def test_a_finding_is_a_value() -> None:
    """Kind, line, who, where and how often; its prose names both parties."""
    text, line = TWINS["no barrier between warps"].text(faulty=True)
    [finding] = run(text, 64)[0].findings
    assert (finding.kind, finding.line, finding.severity) == ("race", line, "error")
    assert (finding.cta, finding.thread, finding.address) == (0, 0, 128)
    assert "lane 0 of warp 0 of CTA 0 reads" in str(finding)
    assert "the other is line" in str(finding)


def test_findings_of_one_cause_are_one() -> None:
    """Eight loads that lack one barrier behind eight stores are one finding, with all lines."""
    stores = "\n".join(f"st.shared.u32 [%own+{256 * n}], %t;" for n in range(8))
    loads = "\n".join(f"ld.shared.u32 %r9, [%r1+{256 * n}];" for n in range(8))
    body = f"{stores}\nxor.b32 %r1, %t, 32; mad.lo.u32 %r1, %r1, 4, %s;\n{loads}"
    [finding] = run(START + body + END, 64)[0].findings
    assert len(finding.lines) == 7
    assert finding.count >= 8


def test_the_limit_keeps_what_was_found() -> None:
    """A loop that polls for ever ends with a finding, and those before it stay."""
    body = "ld.shared.u32 %r1, [%s];\nL: ld.volatile.shared.u32 %r2, [%s+64];\nbra L;"
    report, _ = run(START + body + END, 32, limit=20_000)
    assert next(f.kind for f in report.findings) == "uninitialised"
    assert report.kinds == {"uninitialised", "limit"}
    assert "raise limit" in str(report.findings[-1])


def test_cluster_of_two_dimensions() -> None:
    """Ranks count x first, and a CTA keeps its place in the grid."""
    text = START.replace("u64 y) {", "u64 y) .explicitcluster .reqnctapercluster 2,2,1 {")
    body = """mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ctaid.y;
      mad.lo.u32 %r4, %r3, 4, %r2; mul.wide.u32 %d4, %r4, 4; add.u64 %d2, %d1, %d4;
      mov.u32 %r9, %r1;"""
    memory, x, y = Memory(), np.zeros(1, np.uint32), np.zeros(16, np.uint32)
    arguments = [memory.allocate(x), memory.allocate(y)]
    report = launch(Module.parse(text + body + END), "k", (4, 4), 1, arguments, memory)
    assert report.findings == ()
    assert y.reshape(4, 4).tolist() == [[0, 1, 0, 1], [2, 3, 2, 3]] * 2
