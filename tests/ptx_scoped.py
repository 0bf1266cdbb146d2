"""Races on global memory in the style of ScoR, each with a twin that is right.

A line that begins with ``!`` is in the faulty kernel only, with ``=`` in the twin only; ``<<``
marks the two accesses that race.  ``x`` are numbers, ``y`` what each thread leaves, ``f`` flags and
counters that begin with 0.

Source: A. K. Kamath, A. A. George and A. Basu, "ScoRD: a scoped race detector for GPUs", ISCA 2020,
for the kinds of faults; the kernels are this file's own.
"""

# ruff: noqa: E501 (a kernel's line is one)

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tinygpu.codegen.emulator import Memory, Module, Report, launch

__all__ = ["PAIRS", "Pair", "run"]

START = """.version 8.6
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y, .param .u64 f) {
  .reg .b64 %x, %y, %f, %own, %out, %d<8>, %state; .reg .b32 %t, %c, %n, %g, %s, %bar, %r<16>;
  .reg .pred %p<8>, %lead, %second, %head;
  .shared .align 128 .b8 held[1024]; .shared .align 8 .b64 bars[2];
  ld.param.u64 %x, [x]; ld.param.u64 %y, [y]; ld.param.u64 %f, [f];
  mov.u32 %t, %tid.x; mov.u32 %c, %ctaid.x; mov.u32 %n, %ntid.x; mov.u32 %s, held; mov.u32 %bar, bars;
  mad.lo.u32 %g, %c, %n, %t; mad.wide.u32 %out, %g, 4, %y; mad.wide.u32 %own, %t, 4, %x;
  mov.u32 %r9, 0; setp.eq.u32 %lead, %t, 0; setp.eq.u32 %second, %c, 1; setp.eq.u32 %head, %c, 0;
"""
END = "\n  st.global.u32 [%out], %r9;\n  ret;\n}\n"
WORDS = 512


@dataclass(frozen=True)
class Pair:
    """A faulty kernel and its twin; ``before`` is a kernel that is launched first."""

    body: str
    threads: int = 64
    grid: int = 2
    cluster: int = 1
    kinds: str = "race"
    before: str = ""

    def text(self, *, faulty: bool, body: str = "") -> tuple[str, set[int]]:
        """Return a kernel, and the lines that are marked."""
        kept, marked = [], set()
        for line in (body or self.body).strip("\n").split("\n"):
            line = line.strip()
            if line[:1] in ("!", "=") and (line[0] == "!") != faulty:
                continue
            kept.append(line.lstrip("!=").replace("<<", ""))
            if "<<" in line:
                marked.add(START.count("\n") + len(kept))
        return START + "\n".join(kept) + END, marked


def run(pair: Pair, *, faulty: bool, **how: Any) -> tuple[Report, set[int]]:
    """Launch one of the two; return its report and the lines that are marked."""
    memory = Memory()
    arrays = [
        np.arange(WORDS, dtype=np.uint32),
        np.zeros(WORDS, np.uint32),
        np.zeros(64, np.uint32),
    ]
    given = [memory.allocate(a, name) for a, name in zip(arrays, "xyf", strict=True)]
    if pair.before:
        text, _ = pair.text(faulty=faulty, body=pair.before)
        launch(Module.parse(text), "k", pair.grid, pair.threads, given, memory, **how)
        how = {**how, "dependent": True}
    text, marked = pair.text(faulty=faulty)
    return launch(
        Module.parse(text), "k", pair.grid, pair.threads, given, memory, cluster=pair.cluster,
        limit=400_000, **how,
    ), marked  # fmt: skip


def _poll(load: str, flag: str = "%f", label: str = "L") -> str:
    return f"{label}: {load} %r1, [{flag}]; setp.eq.u32 %p2, %r1, 0; @%p2 bra {label};"


def _passed(publish: str, poll: str, after: str = "", more: str = "") -> str:
    """CTA 0 writes data and publishes a flag, CTA 1 waits for that and reads the data."""
    return f"""@%second bra C;
        st.global.u32 [%own], %t; <<
        bar.sync 0;
        @!%lead bra E;
        {publish}
        bra E;
        C: @!%lead bra D;
        {poll}
        {after}
        D: bar.sync 0;
        ld.global.u32 %r9, [%own]; <<
        E: {more}"""


RELEASE, ACQUIRE = "st.release.gpu.global.u32 [%f], 1;", "ld.acquire.gpu.global.u32"
RELAXED = "st.relaxed.gpu.global.u32 [%f], 1;"
FENCE = "fence.acq_rel.gpu;"


def _lock(take: str, free: str, after: str = "", before: str = "") -> str:
    """Each CTA adds to a number under a lock."""
    return f"""@!%lead bra E;
        L: {take} %r1, [%f], 0, 1; setp.ne.u32 %p2, %r1, 0; @%p2 bra L;
        {after}
        ld.global.u32 %r2, [%x]; <<
        add.u32 %r2, %r2, 1; st.global.u32 [%x], %r2; <<
        {before}
        {free}
        E:"""


def _barrier(
    arrive: str, depart: str, first: str = "bar.sync 0;", count: str = "mov.u32 %r4, 4;"
) -> str:
    """Four CTAs write, meet at a barrier made of a counter, and read what the next one wrote."""
    return f"""mad.wide.u32 %d0, %g, 4, %x; st.global.u32 [%d0], %g; <<
        {first}
        @!%lead bra D;
        {arrive}
        atom.relaxed.gpu.global.add.u32 %r1, [%f], 1;
        {count}
        L: ld.relaxed.gpu.global.u32 %r2, [%f]; setp.lt.u32 %p2, %r2, %r4; @%p2 bra L;
        {depart}
        D: bar.sync 0;
        add.u32 %r3, %g, %n; and.b32 %r3, %r3, 255; mad.wide.u32 %d1, %r3, 4, %x;
        ld.global.u32 %r9, [%d1]; <<"""


def _last(fence: str, after: str, share: str = "bar.sync 0;") -> str:
    """The CTA that comes last adds what all have left."""
    return f"""mad.wide.u32 %d0, %g, 4, %x; st.global.u32 [%d0], %g; <<
        bar.sync 0;
        @!%lead bra D;
        {fence}
        atom.relaxed.gpu.global.add.u32 %r1, [%f], 1;
        {after}
        st.shared.u32 [%s], %r1;
        D: {share}
        ld.shared.u32 %r2, [%s]; setp.ne.u32 %p2, %r2, 3; @%p2 bra E;
        ld.global.u32 %r3, [%own]; <<
        ld.global.u32 %r4, [%own+768]; <<
        add.u32 %r9, %r3, %r4;
        E:"""


START_LOAD = (
    """@%lead mbarrier.init.shared::cta.b64 [%bar], 1; fence.proxy.async.shared::cta; bar.sync 0;"""
)
LOAD = """@!%lead bra W;
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 256;
        cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%s], [%x], 256, [%bar]; <<
        W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%bar], 0; @!%p2 bra W;
        mad.lo.u32 %r2, %t, 4, %s; ld.shared.u32 %r9, [%r2];"""
FILL = (
    "mad.lo.u32 %r2, %t, 4, %s; st.shared.u32 [%r2], %t; fence.proxy.async.shared::cta; bar.sync 0;"
)
STORE = "cp.async.bulk.global.shared::cta.bulk_group [%x], [%s], 256;"

PAIRS: dict[str, Pair] = {
    # Messages from CTA to CTA
    "a relaxed flag without a fence": Pair(_passed(f"!{RELAXED}\n={RELEASE}", _poll(ACQUIRE))),
    "a fence of the CTA": Pair(_passed(f"!fence.acq_rel.cta; {RELAXED}\n={FENCE} {RELAXED}", _poll(ACQUIRE))),
    "a release of the CTA": Pair(_passed(f"!st.release.cta.global.u32 [%f], 1; <<\n={RELEASE}", _poll(ACQUIRE))),
    "a release of the cluster": Pair(_passed(f"!st.release.cluster.global.u32 [%f], 1; <<\n={RELEASE}", _poll(ACQUIRE))),
    "a relaxed poll without a fence": Pair(_passed(RELEASE, _poll("ld.relaxed.gpu.global.u32"), f"={FENCE}")),
    "an acquire of the CTA": Pair(_passed(RELEASE, f"!{_poll('ld.acquire.cta.global.u32')} <<\n={_poll(ACQUIRE)}")),
    "a poll with a fence of the CTA": Pair(_passed(RELEASE, _poll("ld.relaxed.gpu.global.u32"), f"!fence.acq_rel.cta;\n={FENCE}")),
    "an acquire of another flag": Pair(_passed(RELEASE, _poll("ld.relaxed.gpu.global.u32"), f"!ld.acquire.gpu.global.u32 %r1, [%f+8];\n={FENCE}")),
    "volatile without __threadfence": Pair(_passed("=membar.gl;\nst.volatile.global.u32 [%f], 1;", _poll("ld.volatile.global.u32"), "membar.gl;")),
    "volatile with __threadfence_block": Pair(_passed("!membar.cta;\n=membar.gl;\nst.volatile.global.u32 [%f], 1;", _poll("ld.volatile.global.u32"), "membar.gl;")),
    "no __threadfence behind a poll": Pair(_passed("membar.gl; st.volatile.global.u32 [%f], 1;", _poll("ld.volatile.global.u32"), "=membar.gl;")),
    "a plain flag": Pair(_passed(f"!{FENCE} st.global.u32 [%f], 1; <<\n={RELEASE}", f"{_poll(ACQUIRE)} <<")),
    "a plain poll": Pair(_passed(RELEASE, f"!{_poll('ld.global.u32')} <<\n={_poll(ACQUIRE)}", FENCE)),
    "an acquire of the CTA, its words in another order": Pair(_passed("st.global.release.gpu.u32 [%f], 1;", f"!{_poll('ld.global.cta.acquire.u32')} <<\n={_poll('ld.global.gpu.acquire.u32')}")),
    "an exchange without release": Pair(_passed("!atom.relaxed.gpu.global.exch.b32 %r1, [%f], 1;\n=atom.release.gpu.global.exch.b32 %r1, [%f], 1;", _poll(ACQUIRE))),
    "a count of the CTA": Pair(_passed("!red.release.cta.global.add.u32 [%f], 1; <<\n=red.release.gpu.global.add.u32 [%f], 1;", _poll(ACQUIRE))),
    "a flag before the data": Pair(f"""@%second bra C;
        !@%lead {RELEASE}
        st.global.u32 [%own], %t; <<
        bar.sync 0;
        =@%lead {RELEASE}
        bra E;
        C: {_poll(ACQUIRE)}
        ld.global.u32 %r9, [%own]; <<
        E:"""),
    "a flag for data of other threads": Pair(f"""@%second bra C;
        st.global.u32 [%own], %t; <<
        =bar.sync 0;
        @%lead {RELEASE}
        bra E;
        C: {_poll(ACQUIRE)}
        ld.global.u32 %r9, [%own]; <<
        E:"""),
    "one thread waits for all": Pair(f"""@%second bra C;
        st.global.u32 [%own], %t; <<
        bar.sync 0;
        @%lead {RELEASE}
        bra E;
        C: @!%lead bra D;
        {_poll(ACQUIRE)}
        D:
        =bar.sync 0;
        ld.global.u32 %r9, [%own]; <<
        E:"""),
    "a flag passed on without release": Pair(f"""setp.eq.u32 %p3, %c, 2; @%p3 bra T; @%second bra C;
        st.global.u32 [%own], %t; <<
        bar.sync 0; @%lead {RELEASE}
        bra E;
        C: @!%lead bra E;
        {_poll(ACQUIRE)}
        !st.relaxed.gpu.global.u32 [%f+4], 1;
        =st.release.gpu.global.u32 [%f+4], 1;
        bra E;
        T: {_poll(ACQUIRE, "%f+4", "M")}
        ld.global.u32 %r9, [%own]; <<
        E:""", grid=3),
    "an atomic of the CTA breaks a chain": Pair(f"""setp.eq.u32 %p3, %c, 2; @%p3 bra T; @%second bra C;
        st.global.u32 [%own], %t; <<
        bar.sync 0; @%lead {RELEASE}
        bra E;
        C: @!%lead bra E;
        {_poll("ld.relaxed.gpu.global.u32")}
        !atom.relaxed.cta.global.add.u32 %r1, [%f], 1; <<
        =atom.relaxed.gpu.global.add.u32 %r1, [%f], 1;
        bra E;
        T: ld.acquire.gpu.global.u32 %r1, [%f]; setp.ne.u32 %p2, %r1, 2; @%p2 bra T;
        ld.global.u32 %r9, [%own]; <<
        E:""", grid=3),
    "data of two rounds in one place": Pair(f"""@%second bra C; @!%lead bra E;
        st.global.u32 [%x], 1; {RELEASE}
        L: ld.acquire.gpu.global.u32 %r1, [%f+4]; setp.eq.u32 %p2, %r1, 0; @%p2 bra L;
        st.global.u32 [%x], 2; <<
        st.release.gpu.global.u32 [%f], 2; bra E;
        C: @!%lead bra E;
        {_poll(ACQUIRE, label="M")}
        ld.global.u32 %r9, [%x]; <<
        !st.relaxed.gpu.global.u32 [%f+4], 1;
        =st.release.gpu.global.u32 [%f+4], 1;
        E:"""),
    # Locks
    "a lock without fences": Pair(_lock("atom.relaxed.gpu.global.cas.b32", "atom.relaxed.gpu.global.exch.b32 %r1, [%f], 0;", "=membar.gl;", "=membar.gl;"), grid=4),
    "a lock without the fence behind it": Pair(_lock("atom.relaxed.gpu.global.cas.b32", "atom.relaxed.gpu.global.exch.b32 %r1, [%f], 0;", "=membar.gl;", "membar.gl;"), grid=4),
    "a lock whose release is relaxed": Pair(_lock("atom.acquire.gpu.global.cas.b32", "!st.relaxed.gpu.global.u32 [%f], 0;\n=st.release.gpu.global.u32 [%f], 0;"), grid=4),
    "a lock of the CTA": Pair(_lock("atom.acquire.gpu.global.cas.b32", "!st.release.cta.global.u32 [%f], 0; <<\n=st.release.gpu.global.u32 [%f], 0;"), grid=4),
    "a lock with fences of the CTA": Pair(_lock("atom.relaxed.gpu.global.cas.b32", "atom.relaxed.gpu.global.exch.b32 %r1, [%f], 0;", "!membar.cta;\n=membar.gl;", "!membar.cta;\n=membar.gl;"), grid=4),
    "a ticket lock without acquire": Pair("""@!%lead bra E;
        atom.relaxed.gpu.global.add.u32 %r3, [%f], 1;
        !L: ld.relaxed.gpu.global.u32 %r1, [%f+4]; setp.ne.u32 %p2, %r1, %r3; @%p2 bra L;
        =L: ld.acquire.gpu.global.u32 %r1, [%f+4]; setp.ne.u32 %p2, %r1, %r3; @%p2 bra L;
        ld.global.u32 %r2, [%x]; <<
        add.u32 %r2, %r2, 1; st.global.u32 [%x], %r2; <<
        add.u32 %r1, %r1, 1; st.release.gpu.global.u32 [%f+4], %r1;
        E:""", grid=4),
    # Barriers of the grid
    "a grid barrier without fences": Pair(_barrier(f"={FENCE}", f"={FENCE}"), grid=4),
    "a grid barrier without its first fence": Pair(_barrier(f"={FENCE}", FENCE), grid=4),
    "a grid barrier without its last fence": Pair(_barrier(FENCE, f"={FENCE}"), grid=4),
    "a grid barrier of one thread's data": Pair(_barrier(FENCE, FENCE, "=bar.sync 0;"), grid=4),
    "a grid barrier that one CTA does not wait at": Pair(_barrier(FENCE, FENCE, count="!mov.u32 %r4, 3;\n=mov.u32 %r4, 4;"), grid=4),
    "a grid barrier with fences of the cluster": Pair(_barrier(f"!fence.acq_rel.cluster;\n={FENCE}", f"!fence.acq_rel.cluster;\n={FENCE}"), grid=4),
    "the last CTA without a fence": Pair(_last(f"={FENCE}", FENCE), grid=4),
    "the last CTA without the second fence": Pair(_last(FENCE, f"={FENCE}"), grid=4),
    "sums by atomics that the last CTA reads": Pair(f"""red.relaxed.gpu.global.add.u32 [%x], 1; <<
        bar.sync 0; @!%lead bra E;
        ={FENCE}
        atom.relaxed.gpu.global.add.u32 %r1, [%f], 1;
        ={FENCE}
        setp.ne.u32 %p2, %r1, 3; @%p2 bra E;
        ld.global.u32 %r9, [%x]; <<
        E:""", grid=4),
    # No synchronisation at all
    "neighbours in place": Pair("""mad.wide.u32 %d0, %g, 4, %x;
        !ld.global.u32 %r1, [%d0+4]; st.global.u32 [%d0], %r1; <<
        =ld.global.u32 %r1, [%d0]; st.global.u32 [%d0], %r1;"""),
    "a sum without atomics": Pair("""!ld.global.u32 %r1, [%x]; add.u32 %r1, %r1, %g; st.global.u32 [%x], %r1; <<
        =red.relaxed.gpu.global.add.u32 [%x], %g;"""),
    "a sum by atomics of the CTA": Pair("""!red.relaxed.cta.global.add.u32 [%x], %g; <<
        =red.relaxed.gpu.global.add.u32 [%x], %g;"""),
    "a count by atomics of the CTA": Pair("""!atom.relaxed.cta.global.add.u32 %r9, [%x], 1; <<
        =atom.relaxed.gpu.global.add.u32 %r9, [%x], 1;"""),
    "an atomic against a plain store": Pair("""!@%second st.global.u32 [%x], 7; <<
        =@%second atom.relaxed.gpu.global.exch.b32 %r1, [%x], 7;
        @%head red.relaxed.gpu.global.add.u32 [%x], 1; <<"""),
    "bytes of one word": Pair("""cvt.u64.u32 %d0, %g; add.u64 %d0, %d0, %x;
        !and.b64 %d0, %d0, -2;
        st.global.u8 [%d0], %g; <<"""),
    "no __syncthreads": Pair("""mad.wide.u32 %d0, %g, 4, %x; st.global.u32 [%d0], %t; <<
        =bar.sync 0;
        xor.b32 %r1, %g, 32; mad.wide.u32 %d1, %r1, 4, %x; ld.global.u32 %r9, [%d1]; <<"""),
    "no __syncwarp": Pair("""mad.wide.u32 %d0, %g, 4, %x; st.global.u32 [%d0], %t; <<
        =bar.warp.sync 0xffffffff;
        xor.b32 %r1, %g, 1; mad.wide.u32 %d1, %r1, 4, %x; ld.global.u32 %r9, [%d1]; <<"""),
    "another CTA's part": Pair("""mad.wide.u32 %d0, %g, 4, %x; st.global.u32 [%d0], %t; <<
        bar.sync 0;
        !xor.b32 %r1, %g, 64;
        =xor.b32 %r1, %g, 32;
        mad.wide.u32 %d1, %r1, 4, %x; ld.global.u32 %r9, [%d1]; <<"""),
    # Clusters
    "a relaxed barrier of a cluster": Pair("""mad.wide.u32 %d0, %g, 4, %x; st.global.u32 [%d0], %t; <<
        !barrier.cluster.arrive.relaxed; barrier.cluster.wait;
        =barrier.cluster.arrive; barrier.cluster.wait;
        xor.b32 %r1, %g, 64; mad.wide.u32 %d1, %r1, 4, %x; ld.global.u32 %r9, [%d1]; <<""", cluster=2),
    "a release of the CTA in a cluster": Pair(_passed("!st.release.cta.global.u32 [%f], 1; <<\n=st.release.cluster.global.u32 [%f], 1;", _poll("ld.acquire.cluster.global.u32"), more="barrier.cluster.arrive; barrier.cluster.wait;"), cluster=2),
    "the CTA after the next": Pair("""mad.wide.u32 %d0, %g, 4, %x; st.global.u32 [%d0], %t; <<
        barrier.cluster.arrive; barrier.cluster.wait;
        !xor.b32 %r1, %g, 128;
        =xor.b32 %r1, %g, 64;
        mad.wide.u32 %d1, %r1, 4, %x; ld.global.u32 %r9, [%d1]; <<""", cluster=2, grid=4),
    # The asynchronous proxy
    "a bulk store that was only read": Pair(f"""@%second bra C;
        {FILL}
        @!%lead bra E;
        {STORE} <<
        cp.async.bulk.commit_group;
        !cp.async.bulk.wait_group.read 0;
        =cp.async.bulk.wait_group 0;
        {RELEASE}
        bra E;
        C: {_poll(ACQUIRE)}
        ld.global.u32 %r9, [%own]; <<
        E:"""),
    "a bulk store that nobody waits for": Pair(f"""{FILL}
        @!%lead bra D;
        {STORE} <<
        cp.async.bulk.commit_group;
        !cp.async.bulk.wait_group.read 0;
        =cp.async.bulk.wait_group 0;
        D: bar.sync 0;
        ld.global.u32 %r9, [%own]; <<""", grid=1),
    "a bulk store of the group before": Pair(f"""{FILL}
        @!%lead bra D;
        {STORE} <<
        cp.async.bulk.commit_group;
        cp.async.bulk.global.shared::cta.bulk_group [%x+512], [%s], 256;
        cp.async.bulk.commit_group;
        cp.async.bulk.wait_group.read 0;
        !cp.async.bulk.wait_group 2;
        =cp.async.bulk.wait_group 1;
        D: bar.sync 0;
        ld.global.u32 %r9, [%own]; <<""", grid=1),
    "two bulk stores to one place": Pair(f"""{FILL}
        @!%lead bra D;
        {STORE} <<
        cp.async.bulk.commit_group;
        =cp.async.bulk.wait_group 0;
        cp.async.bulk.global.shared::cta.bulk_group [%x], [%s+256], 128; <<
        cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
        D:""", grid=1),
    "bulk sums that are read too early": Pair(f"""{FILL}
        @!%lead bra D;
        cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%x], [%s], 256; <<
        cp.async.bulk.commit_group;
        !cp.async.bulk.wait_group.read 0;
        =cp.async.bulk.wait_group 0;
        D: bar.sync 0;
        ld.global.u32 %r9, [%own]; <<""", grid=1),
    "a store before a bulk load": Pair(f"""{START_LOAD}
        st.global.u32 [%own], %t; <<
        =fence.proxy.async.global;
        bar.sync 0;
        {LOAD}""", grid=1, kinds="proxy"),
    "a proxy fence of shared memory alone": Pair(f"""{START_LOAD}
        st.global.u32 [%own], %t; <<
        !fence.proxy.async.shared::cta;
        =fence.proxy.async;
        bar.sync 0;
        {LOAD}""", grid=1, kinds="proxy"),
    "a bulk load of what another CTA stored": Pair(f"""{START_LOAD}
        @%second bra C;
        st.global.u32 [%own], %t; <<
        bar.sync 0; @%lead {RELEASE}
        bra E;
        C: {_poll(ACQUIRE)}
        =fence.proxy.async;
        {LOAD}
        E:""", kinds="proxy"),
    "a store over what a bulk load reads": Pair(f"""{START_LOAD}
        @!%lead bra E;
        mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 256;
        cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%s], [%x], 256, [%bar]; <<
        =W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%bar], 0; @!%p2 bra W;
        st.global.u32 [%x], 1; <<
        !W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%bar], 0; @!%p2 bra W;
        E:""", grid=1),
    "a store over what cp.async reads": Pair("""mad.lo.u32 %r2, %t, 4, %s;
        cp.async.ca.shared.global [%r2], [%own], 4; <<
        =cp.async.wait_all;
        st.global.u32 [%own], %t; <<
        !cp.async.wait_all;""", grid=1),
    # Kernels in order
    "no griddepcontrol.wait": Pair("""=griddepcontrol.wait;
        ld.global.u32 %r9, [%own]; <<""", before="st.global.u32 [%own], 7; griddepcontrol.launch_dependents;", grid=1),
    "griddepcontrol.wait behind a load": Pair("""!ld.global.u32 %r9, [%own]; <<
        griddepcontrol.wait;
        =ld.global.u32 %r9, [%own];""", before="st.global.u32 [%own], 7; griddepcontrol.launch_dependents;", grid=1),
    "one thread waits for the kernel before": Pair("""@%lead griddepcontrol.wait;
        =bar.sync 0;
        st.global.u32 [%own], %t; <<""", before="ld.global.u32 %r9, [%own]; griddepcontrol.launch_dependents;", grid=1),
}  # fmt: skip
