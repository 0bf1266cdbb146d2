"""clusterlaunchcontrol: CTAs take over the work of others that have not begun."""

from __future__ import annotations

import numpy as np
import pytest

from tests.sample import draws
from tinygpu.codegen.emulator import Memory, Module, Report, launch

START = """.version 8.6
.target sm_100a
.address_size 64
.visible .entry k(.param .u64 y) {
  .reg .b64 %y, %d; .reg .b32 %t, %c, %s, %bar, %parity, %r<8>; .reg .b128 %answer;
  .reg .pred %p<4>, %lead;
  .shared .align 16 .b8 held[16]; .shared .align 8 .b64 bar;
  ld.param.u64 %y, [y]; mov.u32 %t, %tid.x; mov.u32 %c, %ctaid.x; mov.u32 %s, held;
  mov.u32 %bar, bar; setp.eq.u32 %lead, %t, 0; mov.u32 %parity, 0;
  @%lead mbarrier.init.shared::cta.b64 [%bar], 1; fence.proxy.async.shared::cta; bar.sync 0;
"""
ASK = """@!%lead bra A;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 16;
  clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%s], [%bar];
A:
"""
WORK = """mad.lo.u32 %r0, %c, 64, %t; mad.wide.u32 %d, %r0, 4, %y;
  ld.global.u32 %r1, [%d]; add.u32 %r1, %r1, 1; st.global.u32 [%d], %r1;
"""
WAIT = "W: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%bar], %parity; @!%p1 bra W;\n"
SEEN = """ld.shared.b128 %answer, [%s];
  clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2, %answer;
"""
FIRST = """clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%c, %r2, %r3, _}, %answer;
"""
AGAIN = "xor.b32 %parity, %parity, 1; fence.proxy.async.shared::cta; bar.sync 0; bra L;\n"
GOOD = f"{START}L: {ASK}{WORK}{WAIT}{SEEN}@!%p2 bra E;\n{FIRST}{AGAIN}E: ret; }}"


def run(text: str, ctas: int = 12, **how: str | int) -> tuple[Report, np.ndarray]:
    memory, y = Memory(), np.zeros(64 * ctas, np.uint32)
    given = [memory.allocate(y, "y")]
    return launch(Module.parse(text), "k", ctas, 64, given, memory, **how), y  # type: ignore[arg-type]


@pytest.mark.parametrize("ctas", [1, 2, 7, 12])
@pytest.mark.parametrize("completion", ["late", "early", "random"])
def test_all_work_is_done_once(completion: str, ctas: int) -> None:
    report, y = run(GOOD, ctas, completion=completion, seed=ctas)
    assert report.findings == ()
    assert (y == 1).all()


def test_each_coordinate_alone() -> None:
    alone = "clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %c, %answer;\n"
    report, y = run(GOOD.replace(FIRST, alone))
    assert report.findings == ()
    assert (y == 1).all()


def test_none_is_not_empty() -> None:
    """A CTA that takes it for the end of all work, and does the last CTA's, is found."""
    eager = f"{START}L: {ASK}{WORK}{WAIT}{SEEN}@%p2 bra M;\nmov.u32 %c, 11; {WORK}bra E;\nM: "
    text = f"{eager}{FIRST}{AGAIN}E: ret; }}"
    assert any("race" in run(text, completion="random", seed=s)[0].kinds for s in range(3))


@pytest.mark.parametrize(
    ("old", "new", "kind", "said"),
    [
        ("@!%p2 bra E;", "@!%p2 bra N;", "barrier", "though it has seen that there was none"),
        ("@!%p2 bra E;", "", "barrier", "reads the first CTA of a cluster, and there was none"),
        ("fence.proxy.async.shared::cta; bar.sync 0; bra", "bar.sync 0; bra", "proxy", "answered"),
        (WAIT, "", "race", "reads shared byte"),
    ],
)
def test_faults(old: str, new: str, kind: str, said: str) -> None:
    flip = "xor.b32 %parity, %parity, 1; fence.proxy.async.shared::cta; bar.sync 0;"
    ask = ASK.replace("A:", "B:").replace("bra A", "bra B")
    more = f"{flip} {ask} V{WAIT[1:].replace('bra W', 'bra V')}"
    text = GOOD.replace(old, new).replace("E: ret;", f"E: ret; N: {more} ret;")
    report, _ = run(text, limit=draws(3_000, 20_000))
    assert any(f.kind == kind and said in f.message for f in report.findings), report
