"""Faulty kernels in 23 families, ten each, and the correct twin of each.

A line that begins with ``!`` is in the faulty kernel only, with ``=`` in the twin only; ``<<``
marks where the fault has to be found, at one such line if there are two.  A family is made of a few
programs, each with several sizes, types or stages.
"""

# ruff: noqa: E501 (a kernel's line is one)

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tinygpu.codegen.emulator.checking import Checked, check

__all__ = ["FAULTS", "Fault", "checked", "found"]

START = """.version 8.7
.target {target}
.address_size 64
.visible .entry k(.param .u64 x, .param .u64 y) {{
  .reg .b64 %d<12>, %state; .reg .b32 %t, %s, %own, %r<24>, %lane, %warp, %bar, %q;
  .reg .f32 %f<132>; .reg .pred %p<8>;
  .shared .align 1024 .b8 held[8192]; .shared .align 8 .b64 bars[4];
  .local .align 16 .b8 stack[64];
  ld.param.u64 %d0, [x]; ld.param.u64 %d1, [y]; mov.u32 %t, %tid.x; mov.u32 %s, held;
  mad.lo.u32 %own, %t, 4, %s; and.b32 %lane, %t, 31; shr.u32 %warp, %t, 5;
  mul.wide.u32 %d2, %t, 4; add.u64 %d3, %d2, %d0; mov.u32 %r9, %ctaid.x; mov.u32 %bar, %ntid.x;
  mad.lo.u32 %r9, %r9, %bar, %t; mad.wide.u32 %d2, %r9, 4, %d1; add.u64 %d2, %d2, 2048;
  mov.u32 %bar, bars; mov.u32 %r9, 0; setp.eq.u32 %p0, %t, 0; setp.eq.u32 %p1, %lane, 0;
"""
END = "\n  st.global.u32 [%d2], %r9;\n  ret;\n}\n"
WORDS = 1024


@dataclass(frozen=True)
class Fault:
    """A pair of kernels, and what kinds of finding tell of the fault."""

    family: str
    body: str
    kinds: frozenset[str]
    threads: int = 64
    grid: int = 1
    cluster: int = 1
    target: str = "sm_90a"
    options: dict[str, str] = field(default_factory=dict)

    def text(self, *, faulty: bool) -> tuple[str, set[int]]:
        """Return a kernel, and the lines of the fault (of the twin: of what is right there)."""
        start = START.format(target=self.target)
        lines, at, before = [], set[int](), start.count("\n")
        for line in self.body.strip("\n").split("\n"):
            kept = line.strip()
            if kept[:1] in ("!", "=") and (kept[0] == "!") != faulty:
                continue
            lines.append(kept.lstrip("!=").replace("<<", ""))
            if "<<" in kept:
                at.add(before + len(lines))
        return start + "\n".join(lines) + END, at


def checked(fault: Fault, *, faulty: bool) -> tuple[Checked, set[int]]:
    """Check one of the two in the default orders, as ``tinygpu ptx`` does."""
    text, lines = fault.text(faulty=faulty)
    arrays = {"x": np.arange(WORDS, dtype=np.uint32), "y": np.zeros(WORDS, np.uint32)}
    return (
        check(text, "k", fault.grid, fault.threads, arrays, cluster=fault.cluster, limit=400_000),
        lines,
    )


def found(fault: Fault) -> bool:
    """Whether a finding of one of the kinds has the fault's line."""
    result, lines = checked(fault, faulty=True)
    return any(f.kind in fault.kinds and lines & {f.line, *f.lines} for f in result.findings)


def _make(family: str, kinds: str, bodies: Iterator[str | tuple[str, dict[str, int]]],
          **more: int | str) -> list[Fault]:  # fmt: skip
    made = []
    for body in bodies:
        text, own = (body, {}) if isinstance(body, str) else body
        made.append(Fault(family, text, frozenset(kinds.split()), **{**more, **own}))  # type: ignore[arg-type]
    return made


def _other(bits: int, to: str = "%r1") -> str:
    return f"xor.b32 {to}, %t, {bits}; mad.lo.u32 {to}, {to}, 4, %s;"


# Barriers of threads


def _no_barrier(sync: str, far: tuple[int, ...]) -> Iterator[str]:
    for bits in far:
        yield f"st.shared.u32 [%own], %t;\n={sync}\n{_other(bits)}\nld.shared.u32 %r9, [%r1]; <<"
    yield f"""mad.lo.u32 %r1, %t, 8, %s; st.shared.v2.u32 [%r1], {{%t, %lane}};
        ={sync}
        xor.b32 %r2, %t, {far[0]}; mad.lo.u32 %r2, %r2, 8, %s;
        ld.shared.v2.u32 {{%r9, %r3}}, [%r2]; <<"""
    yield f"""st.shared.u32 [%own], %t;
        {sync}
        {_other(far[0])} ld.shared.u32 %r9, [%r1];
        ={sync}
        st.shared.u32 [%own], %r9; <<"""
    yield f"@%p0 st.shared.u32 [%s], 7;\n={sync}\nld.shared.u32 %r9, [%s]; <<"
    yield f"""st.shared.u32 [%own], 0;
        ={sync}
        mul.lo.u32 %r1, %t, 7; and.b32 %r1, %r1, 31; mad.lo.u32 %r1, %r1, 4, %s;
        red.shared.add.u32 [%r1], 1; <<"""
    yield f"""mov.u32 %r1, 0;
        L: and.b32 %r2, %r1, 1; mad.lo.u32 %r3, %r2, 1024, %own; st.shared.u32 [%r3], %t;
        ={sync}
        xor.b32 %r4, %t, {far[0]}; mad.lo.u32 %r4, %r4, 4, %s; mad.lo.u32 %r4, %r2, 1024, %r4;
        ld.shared.u32 %r5, [%r4]; <<
        add.u32 %r9, %r9, %r5; add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 4; @%p2 bra L;"""
    half = far[0]
    yield f"""st.shared.u32 [%own], %t;
        {sync}
        mov.u32 %r1, {half};
        L: setp.lt.u32 %p2, %t, %r1; mad.lo.u32 %r2, %r1, 4, %own;
        @%p2 ld.shared.u32 %r3, [%r2]; <<
        @%p2 ld.shared.u32 %r4, [%own]; add.u32 %r3, %r3, %r4; @%p2 st.shared.u32 [%own], %r3;
        ={sync}
        shr.u32 %r1, %r1, 1; setp.gt.u32 %p3, %r1, 0; @%p3 bra L;
        ld.shared.u32 %r9, [%own];"""
    rows = 8 if half > 31 else 4
    yield f"""and.b32 %r1, %t, 7; shr.u32 %r2, %t, 3; mad.lo.u32 %r1, %r1, {rows}, %r2;
        mad.lo.u32 %r1, %r1, 4, %s; st.shared.f32 [%r1], 0f3F800000;
        ={sync}
        ld.shared.u32 %r9, [%own]; <<"""


# cp.async


def _copy(size: int, stage: int | str = 0) -> str:
    """Copy a thread's piece into a stage of 1 KiB."""
    return (
        f"mad.lo.u32 %r10, %t, {size}, %s; mad.lo.u32 %r10, {stage}, 1024, %r10; "
        f"mul.wide.u32 %d4, %t, {size}; add.u64 %d4, %d4, %d0;\n"
        f"cp.async.ca.shared.global [%r10], [%d4], {size};"
    )


def _pipeline(stages: int, wait: str, commit: str = "cp.async.commit_group;") -> str:
    first = "\n".join(f"{_copy(4, n)}\ncp.async.commit_group;" for n in range(stages - 1))
    return f"""{first}
        mov.u32 %r1, 0; mov.u32 %r2, 0; mov.u32 %r3, {stages - 1};
        L:
        {wait}
        bar.sync 0;
        xor.b32 %r4, %t, 1; mad.lo.u32 %r4, %r4, 4, %s; mad.lo.u32 %r4, %r2, 1024, %r4;
        ld.shared.u32 %r5, [%r4]; <<
        {_copy(4, "%r3")}
        {commit}
        add.u32 %r9, %r9, %r5; add.u32 %r1, %r1, 1; add.u32 %r2, %r2, 1; add.u32 %r3, %r3, 1;
        setp.eq.u32 %p2, %r2, {stages}; selp.u32 %r2, 0, %r2, %p2;
        setp.eq.u32 %p2, %r3, {stages}; selp.u32 %r3, 0, %r3, %p2;
        setp.lt.u32 %p3, %r1, 6; @%p3 bra L;
        cp.async.wait_all;"""


def _own(size: int) -> str:
    return f"mad.lo.u32 %r1, %t, {size}, %s;\nld.shared.u32 %r9, [%r1]; <<"


def _copy_waits() -> Iterator[str]:
    for size in (4, 8, 16):
        yield f"{_copy(size)}\ncp.async.commit_group;\n=cp.async.wait_group 0;\n{_own(size)}"
    for size in (4, 16):
        yield f"""{_copy(size, 1)}
            cp.async.commit_group;
            {_copy(size)}
            cp.async.commit_group;
            !cp.async.wait_group 1;
            =cp.async.wait_group 0;
            {_own(size)}"""
    for stages in (2, 3, 4):
        wrong, right = f"cp.async.wait_group {stages - 1};", f"cp.async.wait_group {stages - 2};"
        yield _pipeline(stages, f"!{wrong}\n={right}")
    for size in (4, 16):
        yield f"""@%p0 mbarrier.init.shared::cta.b64 [%bar], 64; bar.sync 0;
            {_copy(size)}
            cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%bar];
            =W: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%bar], 0; @!%p2 bra W;
            {_own(size)}"""


def _store_bulk(size: int, commit: str = "cp.async.bulk.commit_group;",
                operation: str = "cp.async.bulk.global.shared::cta.bulk_group") -> str:  # fmt: skip
    return f"@%p0 {operation} [%d1], [%s], {size};\n{commit.replace('@', '@%p0 ', 1)}"


_REDUCE = "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32"


def _written(size: int) -> str:
    return f"setp.lt.u32 %p2, %t, {size // 4}; @%p2 st.shared.u32 [%own], %t;"


def _commits() -> Iterator[str]:
    for size in (4, 8, 16):
        yield f"{_copy(size)}\n=cp.async.commit_group;\ncp.async.wait_group 0;\n{_own(size)}"
    for stages in (2, 3, 4):
        right = f"cp.async.wait_group {stages - 2};"
        yield _pipeline(stages, right, "=cp.async.commit_group;")
    for size, operation in (
        (128, "cp.async.bulk.global.shared::cta.bulk_group"),
        (256, _REDUCE),
        (64, _REDUCE),
        (16, "cp.async.bulk.global.shared::cta.bulk_group"),
    ):
        yield f"""{_written(size)}
            fence.proxy.async.shared::cta; bar.sync 0;
            @%p0 {operation} [%d1], [%s], {size};
            =@%p0 cp.async.bulk.commit_group;
            @%p0 cp.async.bulk.wait_group 0;
            bar.sync 0;
            @%p2 st.shared.u32 [%own], 5; <<"""


# Proxies and mbarriers

_ARM = "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], {n};"
_LOAD = (
    "@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
    "[%s], [%d0], {n}, [%bar];"
)
_INIT = "@%p0 mbarrier.init.shared::cta.b64 [%bar], {n}; fence.proxy.async.shared::cta; bar.sync 0;"


def _waits(parity: int | str, label: str = "W", bar: str = "[%bar]") -> str:
    return (
        f"{label}: mbarrier.try_wait.parity.shared::cta.b64 %p3, {bar}, {parity}; "
        f"@!%p3 bra {label};"
    )


def _proxies() -> Iterator[str]:
    finish = "@%p0 cp.async.bulk.commit_group; @%p0 cp.async.bulk.wait_group 0;"
    plain = "cp.async.bulk.global.shared::cta.bulk_group"
    for size, operation in ((256, plain), (64, plain), (256, _REDUCE), (16, _REDUCE)):
        yield f"""{_written(size)}
            =fence.proxy.async.shared::cta;
            bar.sync 0;
            @%p0 {operation} [%d1], [%s], {size}; <<
            {finish}"""
    for size in (256, 128):
        yield f"""{_INIT.format(n=1)}
            {_written(size)}
            =fence.proxy.async;
            bar.sync 0;
            {_ARM.format(n=size)}
            {_LOAD.format(n=size)} <<
            {_waits(0)}
            ld.shared.u32 %r9, [%s];"""
    yield f"""{_written(256)}
        !fence.proxy.async.global;
        =fence.proxy.async.shared::cta;
        bar.sync 0;
        @%p0 {plain} [%d1], [%s], 256; <<
        {finish}"""
    yield f"""{_written(256)}
        bar.sync 0;
        !@%p1 fence.acq_rel.cta;
        =fence.proxy.async.shared::cta;
        @%p0 {plain} [%d1], [%s], 256; <<
        {finish}"""
    yield f"""{_copy(4)}
        cp.async.wait_all;
        =fence.proxy.async.shared::cta;
        bar.sync 0;
        @%p0 {plain} [%d1], [%s], 256; <<
        {finish}"""
    yield f"""mov.u32 %r1, 0;
        L: st.shared.u32 [%own], %r1;
        =fence.proxy.async.shared::cta;
        bar.sync 0;
        @%p0 {plain} [%d1], [%s], 256; <<
        {finish}
        bar.sync 0; add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 3; @%p2 bra L;"""


def _inits() -> Iterator[str | tuple[str, dict[str, int]]]:
    for n, fence in (
        (256, "fence.proxy.async.shared::cta;"),
        (64, "fence.proxy.async;"),
        (16, "fence.mbarrier_init.release.cluster;"),
    ):
        yield f"""@%p0 mbarrier.init.shared::cta.b64 [%bar], 1;
            ={fence}
            bar.sync 0;
            {_ARM.format(n=n)}
            {_LOAD.format(n=n)} <<
            {_waits(0)}
            ld.shared.u32 %r9, [%s];"""
    for threads in (64, 96):
        yield (
            f"""@%p0 mbarrier.init.shared::cta.b64 [%bar], {threads};
            =bar.sync 0;
            mbarrier.arrive.shared::cta.b64 %state, [%bar]; <<
            {_waits(0)}""",
            {"threads": threads},
        )
    yield f"""@%p0 mbarrier.init.shared::cta.b64 [%bar], 1;
        =bar.sync 0;
        setp.eq.u32 %p2, %t, 32;
        @%p2 mbarrier.arrive.shared::cta.b64 %state, [%bar]; <<
        bar.sync 0;
        {_waits(0)}"""
    yield f"""@%p0 mbarrier.init.shared::cta.b64 [%bar], 64;
        =bar.sync 0;
        {_copy(4)}
        cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%bar]; <<
        bar.sync 0;
        {_waits(0)}"""
    yield """@%p0 mbarrier.init.shared::cta.b64 [%bar], 1;
        @%p0 mbarrier.arrive.shared::cta.b64 %state, [%bar];
        =bar.sync 0;
        W: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%bar], 0; @!%p3 bra W; <<"""
    for n in (64, 32):
        yield f"""@%p0 mbarrier.init.shared::cta.b64 [%bar], {n}; fence.mbarrier_init.release.cluster;
            =barrier.cluster.arrive.release; barrier.cluster.wait.acquire;
            !bar.sync 0;
            mov.u32 %r1, %cluster_ctarank; xor.b32 %r1, %r1, 1;
            mapa.shared::cluster.u32 %r2, %bar, %r1;
            mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r2]; <<
            W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p3, [%bar], 0; @!%p3 bra W;
            barrier.cluster.arrive; barrier.cluster.wait;""", {
            "threads": n, "grid": 2, "cluster": 2}  # fmt: skip


def _parities() -> Iterator[str]:
    for n in (256, 64, 16):
        yield f"""{_INIT.format(n=1)}
            {_ARM.format(n=n)}
            {_LOAD.format(n=n)}
            !{_waits(1)}
            ={_waits(0)}
            ld.shared.u32 %r9, [%s]; <<"""
    for n in (256, 128):
        yield f"""{_INIT.format(n=1)}
            mov.u32 %r1, 0;
            L: {_ARM.format(n=n)}
            {_LOAD.format(n=n)}
            !{_waits(0)}
            =and.b32 %r2, %r1, 1; {_waits("%r2")}
            ld.shared.u32 %r9, [%s]; <<
            fence.proxy.async.shared::cta;
            bar.sync 0; add.u32 %r1, %r1, 1; setp.lt.u32 %p4, %r1, 3; @%p4 bra L;"""
    for bits in (32, 63):
        yield f"""{_INIT.format(n=64)}
            st.shared.u32 [%own], %t;
            mbarrier.arrive.shared::cta.b64 %state, [%bar];
            !{_waits(1)} <<
            ={_waits(0)}
            {_other(bits)}
            ld.shared.u32 %r9, [%r1]; <<"""
    for bits in (32, 33):
        yield f"""{_INIT.format(n=64)}
            mov.u32 %r3, 0;
            L: st.shared.u32 [%own], %r3; mbarrier.arrive.shared::cta.b64 %state, [%bar];
            !{_waits(0)} <<
            =and.b32 %r2, %r3, 1; {_waits("%r2")}
            {_other(bits)}
            ld.shared.u32 %r9, [%r1]; <<
            bar.sync 0; add.u32 %r3, %r3, 1; setp.lt.u32 %p4, %r3, 2; @%p4 bra L;"""
    yield f"""{_INIT.format(n=64)}
        {_copy(16)}
        cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%bar];
        !{_waits(1)}
        ={_waits(0)}
        ld.shared.u32 %r9, [%own]; <<"""


def _late() -> Iterator[str]:
    """Whoever ends the next phase has not heard that the other warp has waited for this one."""
    one = "@%p0 mbarrier.arrive.shared::cta.b64 %state, [%bar];"
    warp = "setp.lt.u32 %p2, %t, 32; @%p2 mbarrier.arrive.shared::cta.b64 %state, [%bar];"
    load = f"{_ARM.format(n=64)} {_LOAD.format(n=64)}"
    tests = _waits("%r2").replace("try_wait", "test_wait")
    ways = ((1, one, _waits("%r2")), (32, warp, _waits("%r2")), (1, load, _waits("%r2")))
    for n, arrive, wait in (*ways, (1, one, tests), (32, warp, tests)):
        for turns in (2, 5):
            yield f"""{_INIT.format(n=n)}
                mov.u32 %r3, 0;
                L: and.b32 %r2, %r3, 1;
                {arrive}
                {wait} <<
                =bar.sync 0;
                add.u32 %r3, %r3, 1; setp.lt.u32 %p4, %r3, {turns}; @%p4 bra L;"""


def _expected() -> Iterator[str]:
    for n, wrong in ((256, 512), (64, 80), (128, 144), (16, 32)):
        yield f"""{_INIT.format(n=1)}
            !{_ARM.format(n=wrong)}
            ={_ARM.format(n=n)}
            {_LOAD.format(n=n)}
            W: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%bar], 0; <<
            @!%p3 bra W;
            ld.shared.u32 %r9, [%s];"""
    for n, wrong in ((256, 128), (64, 48), (32, 16)):
        yield f"""{_INIT.format(n=1)}
            !{_ARM.format(n=wrong)}
            ={_ARM.format(n=n)}
            {_LOAD.format(n=n)}
            W: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%bar], 0; <<
            @!%p3 bra W;
            ld.shared.u32 %r9, [%s];"""
    for n in (256, 64):
        yield f"""{_INIT.format(n=1)}
            !@%p0 mbarrier.arrive.shared::cta.b64 %state, [%bar];
            ={_ARM.format(n=n)}
            {_LOAD.format(n=n)}
            {_waits(0)}
            ld.shared.u32 %r9, [%s]; <<"""
    yield f"""{_INIT.format(n=1)}
        !@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 8;
        =@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%bar], 4;
        @%p0 st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.u32 [%s], 7, [%bar];
        W: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%bar], 0; <<
        @!%p3 bra W;
        ld.shared.u32 %r9, [%s];"""


def _counts() -> Iterator[str | tuple[str, dict[str, int]]]:
    for threads, wrong in ((64, 65), (64, 128), (96, 97), (32, 33)):
        yield (
            f"""!{_INIT.format(n=wrong)}
            ={_INIT.format(n=threads)}
            mbarrier.arrive.shared::cta.b64 %state, [%bar];
            W: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%bar], 0; <<
            @!%p3 bra W;""",
            {"threads": threads},
        )
    for threads, wrong in ((64, 32), (96, 64), (64, 63)):
        yield (
            f"""!{_INIT.format(n=wrong)}
            ={_INIT.format(n=threads)}
            st.shared.u32 [%own], %t;
            mbarrier.arrive.shared::cta.b64 %state, [%bar];
            {_waits(0)} <<
            sub.u32 %r1, {threads - 1}, %t; mad.lo.u32 %r1, %r1, 4, %s;
            ld.shared.u32 %r9, [%r1]; <<""",
            {"threads": threads},
        )
    for n in (256, 64):
        yield f"""!{_INIT.format(n=2)}
            ={_INIT.format(n=1)}
            {_ARM.format(n=n)}
            {_LOAD.format(n=n)}
            W: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%bar], 0; <<
            @!%p3 bra W;"""
    yield f"""{_INIT.format(n=64)}
        !mbarrier.arrive.noComplete.release.cta.shared::cta.b64 %state, [%bar], 1; <<
        =@!%p0 mbarrier.arrive.noComplete.release.cta.shared::cta.b64 %state, [%bar], 1;
        =bar.sync 0;
        =@%p0 mbarrier.arrive.shared::cta.b64 %state, [%bar];
        {_waits(0)}"""


def _double() -> Iterator[str | tuple[str, dict[str, int]]]:
    for threads in (64, 96, 128):
        warps = threads // 32
        yield (
            f"""{_INIT.format(n=warps)}
            st.shared.u32 [%own], %t; bar.warp.sync 0xffffffff;
            @%p1 mbarrier.arrive.shared::cta.b64 %state, [%bar];
            !@%p0 mbarrier.arrive.shared::cta.b64 %state, [%bar]; <<
            {_waits(0)}""",
            {"threads": threads},
        )
    for threads in (64, 96):
        yield (
            f"""{_INIT.format(n=threads)}
            mbarrier.arrive.shared::cta.b64 %state, [%bar];
            !setp.eq.u32 %p2, %t, 33; @%p2 mbarrier.arrive.shared::cta.b64 %state, [%bar]; <<
            {_waits(0)}""",
            {"threads": threads},
        )
    for rounds in (2, 3):
        yield f"""{_INIT.format(n=64)}
            mov.u32 %r3, 0;
            L:
            mbarrier.arrive.shared::cta.b64 %state, [%bar];
            !@%p1 mbarrier.arrive.shared::cta.b64 %state, [%bar]; <<
            and.b32 %r2, %r3, 1; {_waits("%r2")}
            add.u32 %r3, %r3, 1; setp.lt.u32 %p4, %r3, {rounds}; @%p4 bra L;"""
    yield f"""{_INIT.format(n=64)}
        mov.u32 %r3, 0;
        L: mbarrier.arrive.shared::cta.b64 %state, [%bar]; <<
        =and.b32 %r2, %r3, 1; {_waits("%r2")}
        add.u32 %r3, %r3, 1; setp.lt.u32 %p4, %r3, 2; @%p4 bra L;"""
    for n in (64, 256):
        yield f"""{_INIT.format(n=3)}
            {_ARM.format(n=n)}
            {_LOAD.format(n=n)}
            @%p1 mbarrier.arrive.shared::cta.b64 %state, [%bar]; <<
            =mov.u32 %r3, 0;
            !@%p1 mbarrier.arrive.shared::cta.b64 %state, [%bar]; <<
            {_waits(0)}"""


def _bar_counts() -> Iterator[str | tuple[str, dict[str, int]]]:
    for threads, wrong in ((96, 64), (64, 96), (128, 96), (128, 64), (32, 64)):
        if threads == 128 and wrong == 64:
            continue
        yield f"!bar.sync 1, {wrong}; <<\n=bar.sync 1, {threads};", {"threads": threads}
    for wrong in (48, 33):
        yield f"!bar.sync 1, {wrong}; <<\n=bar.sync 1, 64;"
    yield """setp.lt.u32 %p2, %t, 32; @%p2 bra A;
        barrier.sync 1, 64; bra E;
        A:
        !barrier.arrive 1, 96; <<
        =barrier.arrive 1, 64;
        E:"""
    yield """setp.lt.u32 %p2, %t, 32; @%p2 bra A;
        barrier.sync 1, 64; bra E;
        A:
        !barrier.sync 2, 64; <<
        =barrier.sync 1, 64;
        E:"""
    yield (
        """!setp.lt.u32 %p2, %t, 32; @%p2 bra E;
        bar.sync 0, 96; <<
        !E:""",
        {"threads": 96},
    )
    yield """!bar.red.popc.u32 %r9, 1, 96, %p0; <<
        =bar.red.popc.u32 %r9, 1, 64, %p0;"""


# Warps


def _shuffles() -> Iterator[str]:
    half = "setp.lt.u32 %p2, %lane, 16; @!%p2 bra E;"
    for wrong, right in (
        ("bfly.b32 %r9, %t, 16, 31", "bfly.b32 %r9, %t, 8, 31"),
        ("idx.b32 %r9, %t, 20, 31", "idx.b32 %r9, %t, 12, 31"),
        ("down.b32 %r9, %t, 4, 31", "down.b32 %r9, %t, 4, 0x100f"),
        ("down.b32 %r9, %t, 1, 31", "up.b32 %r9, %t, 1, 0"),
    ):
        yield f"""{half}
            !shfl.sync.{wrong}, 0x0000ffff; <<
            =shfl.sync.{right}, 0x0000ffff;
            E:"""
    yield """!shfl.sync.idx.b32 %r9, %t, 0, 31, 0xfffffffe; <<
        =shfl.sync.idx.b32 %r9, %t, 0, 31, 0xffffffff;"""
    yield """and.b32 %r1, %lane, 1; setp.eq.u32 %p2, %r1, 0; @!%p2 bra E;
        !shfl.sync.bfly.b32 %r9, %t, 1, 31, 0x55555555; <<
        =shfl.sync.bfly.b32 %r9, %t, 2, 31, 0x55555555;
        E:"""
    for mask in ("0x0000ffff", "0x000000ff"):
        yield f"""!shfl.sync.bfly.b32 %r9, %t, 1, 31, {mask}; <<
            =shfl.sync.bfly.b32 %r9, %t, 1, 31, 0xffffffff;"""
    yield """setp.lt.u32 %p2, %lane, 8; @!%p2 bra E;
        !vote.sync.ballot.b32 %r9, %p0, 0x0000ffff; <<
        =vote.sync.ballot.b32 %r9, %p0, 0x000000ff;
        E: bar.warp.sync 0xffffffff;"""
    yield """setp.lt.u32 %p2, %lane, 24; @!%p2 bra E;
        !shfl.sync.up.b32 %r9, %t, 1, 0, 0xffffffff; <<
        =shfl.sync.up.b32 %r9, %t, 1, 0, 0x00ffffff;
        E: bar.warp.sync 0xffffffff;"""


# Memory


def _locals() -> Iterator[str]:
    yield "=st.local.u32 [stack+4], %t;\nld.local.u32 %r9, [stack+4]; <<"
    yield "!st.local.u32 [stack], %t;\n=st.local.v2.u32 [stack], {%t, %t};\nld.local.v2.u32 {%r1, %r9}, [stack]; <<"
    yield "!st.local.u32 [stack+8], %t;\n=st.local.u32 [stack+12], %t;\nld.local.u32 %r9, [stack+12]; <<"
    yield "=@!%p1 st.local.u64 [stack], %d0;\n@%p1 st.local.u64 [stack], %d1;\nld.local.u32 %r9, [stack]; <<"
    for n, m in ((8, 7), (4, 3), (16, 12)):
        yield f"""mov.u32 %r1, 0; mov.u32 %r2, stack;
            L: mad.lo.u32 %r3, %r1, 4, %r2; st.local.u32 [%r3], %r1; add.u32 %r1, %r1, 1;
            !setp.lt.u32 %p2, %r1, {m}; @%p2 bra L;
            =setp.lt.u32 %p2, %r1, {n}; @%p2 bra L;
            ld.local.u32 %r9, [stack+{4 * n - 4}]; <<"""
    yield """and.b32 %r1, %t, 7; mov.u32 %r2, stack; mad.lo.u32 %r3, %r1, 4, %r2;
        st.local.u32 [%r3], %t;
        !add.u32 %r3, %r3, 4;
        ld.local.u32 %r9, [%r3]; <<"""
    yield """mov.u64 %d4, stack; cvta.local.u64 %d5, %d4;
        =st.u32 [%d5+16], %t;
        ld.u32 %r9, [%d5+16]; <<"""
    yield """setp.gt.u32 %p2, %t, 40;
        !@%p2 st.local.b8 [stack+3], 1;
        =st.local.u32 [stack], 1;
        ld.local.u32 %r9, [stack]; <<"""


def _outside() -> Iterator[str | tuple[str, dict[str, int]]]:
    at = "mad.lo.u32 %r1, %ctaid.x, 64, %t; add.u32 %r1, %r1, 960;".replace("%ctaid.x", "%q")
    index = "mov.u32 %q, %ctaid.x; " + at
    place = "mul.wide.u32 %d4, %r1, 4; add.u64 %d5, %d4, %d0;"
    for access in (
        "ld.global.u32 %r9, [%d5];",
        "st.global.u32 [%d5], %t;",
        "red.global.add.u32 [%d5], 1;",
    ):
        yield (
            f"""{index} setp.lt.u32 %p2, %r1, 1024; {place}
            !{access} <<
            =@%p2 {access}""",
            {"grid": 2},
        )
    yield (
        f"""{index} {place}
        !setp.gt.u32 %p2, %r1, 1024; @%p2 bra E;
        =setp.ge.u32 %p2, %r1, 1024; @%p2 bra E;
        ld.global.u32 %r9, [%d5]; <<
        E:""",
        {"grid": 2},
    )
    yield """!sub.u64 %d5, %d3, 4;
        =mov.u64 %d5, %d3;
        ld.global.u32 %r9, [%d5]; <<"""
    yield """mul.wide.u32 %d4, %t, 16; add.u64 %d5, %d4, %d0;
        !add.u64 %d5, %d5, 3088;
        =add.u64 %d5, %d5, 3072;
        ld.global.v4.u32 {%r1, %r2, %r3, %r9}, [%d5]; <<"""
    yield """mad.lo.u32 %r10, %t, 16, %s; mul.wide.u32 %d4, %t, 16; add.u64 %d5, %d4, %d0;
        !add.u64 %d5, %d5, 3088;
        =add.u64 %d5, %d5, 3072;
        cp.async.cg.shared.global [%r10], [%d5], 16; <<
        cp.async.wait_all;"""
    yield f"""{_INIT.format(n=1)}
        {_ARM.format(n=256)}
        !add.u64 %d4, %d0, 3856;
        =add.u64 %d4, %d0, 3840;
        @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%s], [%d4], 256, [%bar]; <<
        {_waits(0)}"""
    yield """!mul.wide.u32 %d4, %t, 68; add.u64 %d5, %d4, %d0;
        =mul.wide.u32 %d4, %t, 60; add.u64 %d5, %d4, %d0;
        ld.global.u32 %r9, [%d5]; <<"""
    yield """mov.u64 %d5, 0;
        !@%p1 ld.global.u32 %r9, [%d5]; <<
        =setp.ne.u64 %p2, %d5, 0; @%p2 ld.global.u32 %r9, [%d5];"""


_SIZE = 8192 + 32


def _overrun() -> Iterator[str]:
    for width, vector in ((4, "u32"), (8, "v2.u32"), (16, "v4.u32")):
        regs = {4: "%t", 8: "{%t, %t}", 16: "{%t, %t, %t, %t}"}[width]
        first = _SIZE // width * width - 64 * width
        yield f"""mad.lo.u32 %r1, %t, {width}, %s;
            !add.u32 %r1, %r1, {first + width};
            =add.u32 %r1, %r1, {first - 64 * width};
            st.shared.{vector} [%r1], {regs}; <<"""
    yield """!sub.u32 %r1, %own, 4;
        =mov.u32 %r1, %own;
        st.shared.u32 [%r1], %t; <<"""
    yield f"""st.shared.u32 [%own], %t;
        !add.u32 %r1, %own, {_SIZE - 128};
        =mov.u32 %r1, %own;
        ld.shared.u32 %r9, [%r1]; <<"""
    yield f"""@%p0 st.shared.u32 [%s], 0; bar.sync 0;
        !add.u32 %r1, %s, {_SIZE};
        =mov.u32 %r1, %s;
        atom.shared.add.u32 %r9, [%r1], 1; <<"""
    yield f"""mad.lo.u32 %r10, %t, 16, %s; mul.wide.u32 %d4, %t, 16; add.u64 %d5, %d4, %d0;
        !add.u32 %r10, %r10, {_SIZE - 256};
        cp.async.cg.shared.global [%r10], [%d5], 16; <<
        cp.async.wait_all;"""
    yield f"""st.shared.v4.u32 [%own], {{%t, %t, %t, %t}};
        !add.u32 %r1, %s, {_SIZE};
        =mov.u32 %r1, %s;
        bar.sync 0;
        ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%r9}}, [%r1]; <<""".replace(
        "st.shared.v4.u32 [%own]", "mad.lo.u32 %r2, %t, 16, %s; st.shared.v4.u32 [%r2]"
    )
    yield f"""{_INIT.format(n=1)}
        {_ARM.format(n=256)}
        !add.u32 %r1, %s, 8192;
        =add.u32 %r1, %s, 4096;
        @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d0], 256, [%bar]; <<
        {_waits(0)}"""
    yield """@%p0 mbarrier.init.shared::cta.b64 [%bar], 64; bar.sync 0;
        mad.lo.u32 %r1, %t, 4, %s;
        !add.u32 %r1, %r1, 7968;
        =add.u32 %r1, %r1, 7936;
        st.shared.u32 [%r1], %t; <<"""


def _mixed() -> Iterator[str]:
    zero = "@%p0 st.shared.v2.u32 [%s], {%r9, %r9}; bar.sync 0;"
    for atomic in (
        "red.shared.add.u32 [%s], 1;",
        "atom.shared.max.u32 %r1, [%s], %t;",
        "atom.shared.cas.b32 %r1, [%s], 0, 5;",
        "atom.shared.exch.b32 %r1, [%s], 9;",
    ):
        yield f"{zero}\n{atomic}\n=bar.sync 0;\nld.shared.u32 %r9, [%s]; <<"
    for atomic in ("red.shared.or.b32 [%s], 1;", "atom.shared.inc.u32 %r1, [%s], 100;"):
        yield f"{zero}\n{atomic}\n=bar.sync 0;\n@%p0 st.shared.u32 [%s], 3; <<"
    for width in ("u32", "u64"):
        yield f"""{zero}
            setp.lt.u32 %p2, %t, 32;
            @%p2 st.shared.{width} [%s], {"%r9" if width == "u32" else "%d0"};
            =bar.sync 0;
            @!%p2 red.shared.add.{width} [%s], 1; <<"""
    yield f"""{zero}
        !ld.shared.u32 %r1, [%s]; add.u32 %r1, %r1, 1; st.shared.u32 [%s], %r1; <<
        =red.shared.add.u32 [%s], 1;"""
    yield f"""{zero}
        and.b32 %r2, %t, 1; mad.lo.u32 %r2, %r2, 4, %s; red.shared.add.u32 [%r2], 1;
        =bar.sync 0;
        ld.shared.v2.u32 {{%r9, %r3}}, [%s]; <<"""


def _flags() -> Iterator[str | tuple[str, dict[str, int]]]:
    poll = "setp.eq.u32 %p2, %r2, 0; @%p2 bra C;"
    begin = """@%p0 st.shared.u32 [%s], 0; bar.sync 0;
        setp.lt.u32 %p2, %t, 32; @!%p2 bra C;
        @%p0 st.shared.u32 [%s+4], 42;"""
    end = f"{poll}\nld.shared.u32 %r9, [%s+4]; <<\nE:"
    yield f"""{begin}
        !@%p0 st.relaxed.cta.shared.u32 [%s], 1;
        =@%p0 st.release.cta.shared.u32 [%s], 1;
        bra E;
        C: ld.acquire.cta.shared.u32 %r2, [%s]; {end}"""
    yield f"""{begin}
        @%p0 st.release.cta.shared.u32 [%s], 1;
        bra E;
        C:
        !ld.relaxed.cta.shared.u32 %r2, [%s];
        =ld.acquire.cta.shared.u32 %r2, [%s];
        {end}"""
    for fence in ("fence.acq_rel.cta;", "membar.cta;"):
        yield f"""{begin}
            ={fence}
            @%p0 st.volatile.shared.u32 [%s], 1;
            bra E;
            C: ld.volatile.shared.u32 %r2, [%s]; {poll}
            {fence}
            ld.shared.u32 %r9, [%s+4]; <<
            E:"""
        yield f"""{begin}
            {fence}
            @%p0 st.relaxed.cta.shared.u32 [%s], 1;
            bra E;
            C: ld.relaxed.cta.shared.u32 %r2, [%s]; {poll}
            ={fence}
            ld.shared.u32 %r9, [%s+4]; <<
            E:"""
    for threads in (96, 128):
        yield (
            """@%p0 st.shared.v2.u32 [%s], {%r9, %r9}; bar.sync 0;
            @!%p1 bra E;
            L: atom.acquire.cta.shared.cas.b32 %r2, [%s], 0, 1;
            setp.ne.u32 %p2, %r2, 0; @%p2 bra L;
            ld.shared.u32 %r3, [%s+4]; <<
            add.u32 %r3, %r3, 1; st.shared.u32 [%s+4], %r3;
            !atom.relaxed.cta.shared.exch.b32 %r2, [%s], 0;
            =atom.release.cta.shared.exch.b32 %r2, [%s], 0;
            E:""",
            {"threads": threads},
        )
    yield """@%p0 st.shared.u32 [%s], 0; bar.sync 0;
        add.u32 %r4, %own, 128; st.shared.u32 [%r4], %t; bar.warp.sync 0xffffffff;
        @!%p1 bra E;
        !atom.relaxed.cta.shared.add.u32 %r1, [%s], 1;
        =atom.acq_rel.cta.shared.add.u32 %r1, [%s], 1;
        setp.ne.u32 %p2, %r1, 1; @%p2 bra E;
        ld.shared.u32 %r9, [%s+128]; <<
        ld.shared.u32 %r3, [%s+256]; add.u32 %r9, %r9, %r3;
        E:"""
    yield """@%p0 st.shared.u32 [%s], 0; bar.sync 0;
        setp.lt.u32 %p2, %t, 32; @!%p2 bra C;
        st.shared.u32 [%own+64], %t; bar.warp.sync 0xffffffff;
        !@%p0 red.relaxed.cta.shared.add.u32 [%s], 1;
        =@%p0 red.release.cta.shared.add.u32 [%s], 1;
        bra E;
        C: ld.acquire.cta.shared.u32 %r2, [%s]; setp.eq.u32 %p2, %r2, 0; @%p2 bra C;
        ld.shared.u32 %r9, [%s+96]; <<
        E:"""


# Clusters


def _exits() -> Iterator[str | tuple[str, dict[str, int]]]:
    sync = "barrier.cluster.arrive.release; barrier.cluster.wait.acquire;"
    peer = "mov.u32 %r1, %cluster_ctarank; add.u32 %r1, %r1, 1; rem.u32 %r1, %r1, {c};"
    for cluster in (2, 4):
        there = peer.format(c=cluster) + "mapa.shared::cluster.u32 %r2, %s, %r1;"
        more = {"grid": cluster, "cluster": cluster, "threads": 32}
        yield (
            f"""st.shared.u32 [%own], %t; {sync} {there}
            ld.shared::cluster.u32 %r9, [%r2];
            ={sync}
            st.global.u32 [%d2], %r9; ret; <<""",
            more,
        )
        yield (
            f"""st.shared.u32 [%own], %t; {sync} {there}
            @%p0 st.shared::cluster.u32 [%r2+256], 5;
            ={sync}
            st.global.u32 [%d2], %r9; ret; <<""",
            more,
        )
        yield (
            f"""@%p0 st.shared.u32 [%s], 0; {sync} {there}
            atom.shared::cluster.add.u32 %r9, [%r2], 1;
            ={sync}
            st.global.u32 [%d2], %r9; ret; <<""",
            more,
        )
        yield (
            f"""st.shared.u32 [%own], %t; {sync} {there}
            mov.u32 %r3, 0;
            L: ld.shared::cluster.u32 %r4, [%r2];
            add.u32 %r9, %r9, %r4; add.u32 %r3, %r3, 1; setp.lt.u32 %p2, %r3, 3; @%p2 bra L;
            !barrier.cluster.arrive.release;
            ={sync}
            st.global.u32 [%d2], %r9; ret; <<""",
            more,
        )
        yield (
            f"""@%p0 mbarrier.init.shared::cta.b64 [%bar], 1; fence.mbarrier_init.release.cluster;
            {sync} {peer.format(c=cluster)} mapa.shared::cluster.u32 %r2, %bar, %r1;
            @%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r2];
            ={sync}
            st.global.u32 [%d2], %r9; ret; <<""",
            more,
        )


# Asynchronous products


def _wgmmas() -> Iterator[str]:
    for columns in (8, 16):
        sums = ", ".join(f"%f{n}" for n in range(columns // 2))
        zero = " ".join(f"mov.f32 %f{n}, 0f00000000;" for n in range(columns // 2))
        multiply = (
            f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.f16.f16 {{{sums}}}, %d4, %d5, "
            "p, 1, 1, 0, 0;"
        )
        first, again = (
            "{.reg .pred p; setp.ne.u32 p, " + v + ", 0; " + multiply + "}" for v in ("0", "1")
        )
        fill = """mad.lo.u32 %r1, %t, 32, %s; mov.u32 %r2, 0;
            st.shared.v4.u32 [%r1], {%r2, %r2, %r2, %r2}; st.shared.v4.u32 [%r1+16], {%r2, %r2, %r2, %r2};"""
        describe = """shr.u32 %r3, %s, 4; cvt.u64.u32 %d4, %r3; or.b64 %d4, %d4, 0x0000000800080000;
            mov.u64 %d5, %d4;"""
        fence, bar = "fence.proxy.async.shared::cta;", "bar.sync 0;"
        use = "mov.b32 %r9, %f0;"
        good = f"{fill}\n{fence}\n{bar}\n{describe}\n{zero}"
        commit, wait = "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"
        yield f"{fill}\n={fence}\n{bar}\n{describe}\nwgmma.fence.sync.aligned;\n{first} <<\n{commit}\n{wait}\n{use}"
        yield f"{good}\n=wgmma.fence.sync.aligned;\n{again} <<\n{commit}\n{wait}\n{use}"
        yield f"{good}\nwgmma.fence.sync.aligned;\n{again}\n{commit}\n={wait}\n{use} <<\n!{wait}"
        yield f"""{good}
            wgmma.fence.sync.aligned;
            {again}
            {commit}
            !wgmma.wait_group.sync.aligned 1;
            ={wait}
            {bar}
            st.shared.u32 [%own], %t; <<
            {wait}"""
        yield f"""{good}
            wgmma.fence.sync.aligned;
            {again}
            ={commit}
            {wait}
            {use} <<
            !{commit} {wait}"""


def _tcgen05() -> Iterator[str]:
    describe = """shr.u32 %r3, %s, 4; cvt.u64.u32 %d4, %r3; or.b64 %d4, %d4, 0x0000400800080000;
        mov.u64 %d5, %d4; mov.u32 %r4, {kind};"""
    for columns in (16, 32):
        kind = hex(1 << 4 | columns // 8 << 17 | 128 // 16 << 24)
        begin = """setp.eq.u32 %p4, %warp, 0; add.u32 %r5, %s, 8128;
            @%p4 tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r5], 32;
            @%p0 mbarrier.init.shared::cta.b64 [%bar], 1; mov.u32 %r2, 0;
            mad.lo.u32 %r1, %t, 32, %s; st.shared.v4.u32 [%r1], {%r2, %r2, %r2, %r2};
            st.shared.v4.u32 [%r1+16], {%r2, %r2, %r2, %r2};"""
        fence = "fence.proxy.async.shared::cta;"
        meet = """tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
            ld.shared.u32 %r6, [%r5];"""
        mma = "@%p0 tcgen05.mma.cta_group::1.kind::f16 [%r6], %d4, %d5, %r4, p;"
        multiply = "{.reg .pred p; setp.ne.u32 p, %r2, 0; " + mma + "}"
        commit = (
            "@%p0 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%bar];"
        )
        after = "tcgen05.fence::after_thread_sync;"
        lanes = "shl.b32 %r7, %warp, 21; add.u32 %r7, %r7, %r6;"
        load = "tcgen05.ld.sync.aligned.32x32b.x1.b32 {%r9}, [%r7];"
        wait = "tcgen05.wait::ld.sync.aligned;"
        end = """tcgen05.fence::before_thread_sync; bar.sync 0; tcgen05.fence::after_thread_sync;
            @%p4 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r6, 32;"""
        one = describe.format(kind=kind)
        w = _waits(0)
        yield f"{begin}\n={fence}\n{meet}\n{one}\n{multiply} <<\n{commit}\n{w}\n{after}\n{lanes}\n{load}\n{wait}\n{end}"
        yield f"{begin}\n{fence}\n{meet}\n{one}\n{multiply}\n{commit}\n{w}\n={after}\n{lanes}\n{load} <<\n{wait}\n{end}"
        yield f"{begin}\n{fence}\n{meet}\n{one}\n{multiply}\n{commit}\n{w}\n{after}\n{lanes}\n{load}\n={wait}\nadd.u32 %r9, %r9, 1; <<\n!{wait}\n{end}"
        yield f"""{begin}
            {fence}
            {meet}
            {one}
            {multiply}
            !@%p0 mbarrier.arrive.shared::cta.b64 %state, [%bar];
            ={commit}
            {w}
            {after}
            {lanes}
            {load} <<
            {wait}
            {end}"""
        store = "tcgen05.st.sync.aligned.32x32b.x1.b32 [%r7], {%t};"
        yield f"""{begin}
            {fence}
            {meet}
            {one}
            {lanes}
            {store}
            =tcgen05.wait::st.sync.aligned;
            tcgen05.fence::before_thread_sync; bar.sync 0; {after}
            {{.reg .pred p; setp.ne.u32 p, 0, 0;
            {mma} <<
            }}
            {commit}
            {w}
            {after}
            {load}
            {wait}
            {end}"""


def _reads() -> Iterator[str]:
    plain = "cp.async.bulk.global.shared::cta.bulk_group"
    for size, operation, how in (
        (256, plain, "{}.read"),
        (128, plain, "{}"),
        (64, _REDUCE, "{}.read"),
        (16, plain, "{}.read"),
    ):
        wait = how.format("cp.async.bulk.wait_group")
        yield f"""{_written(size)}
            fence.proxy.async.shared::cta; bar.sync 0;
            {_store_bulk(size, "@cp.async.bulk.commit_group;", operation)}
            =@%p0 {wait} 0;
            bar.sync 0;
            @%p2 st.shared.u32 [%own], 5; <<
            @%p0 cp.async.bulk.wait_group 0;"""
    for size in (256, 64):
        yield f"""{_written(size)}
            fence.proxy.async.shared::cta; bar.sync 0;
            {_store_bulk(size, "@cp.async.bulk.commit_group;")}
            !@%p0 cp.async.bulk.wait_group.read 1;
            =@%p0 cp.async.bulk.wait_group.read 0;
            bar.sync 0;
            @%p2 st.shared.u32 [%own], 5; <<
            @%p0 cp.async.bulk.wait_group 0;"""
    for buffers in (2, 3):
        yield f"""mov.u32 %r1, 0; mov.u32 %r2, 0;
            L: mad.lo.u32 %r3, %r2, 256, %own; mad.lo.u32 %r4, %r2, 256, %s;
            !@%p0 cp.async.bulk.wait_group.read {buffers};
            =@%p0 cp.async.bulk.wait_group.read {buffers - 1};
            bar.sync 0;
            st.shared.u32 [%r3], %t; <<
            fence.proxy.async.shared::cta; bar.sync 0;
            @%p0 {plain} [%d1], [%r4], 256; @%p0 cp.async.bulk.commit_group;
            add.u64 %d1, %d1, 256; add.u32 %r2, %r2, 1; setp.eq.u32 %p2, %r2, {buffers}; selp.u32 %r2, 0, %r2, %p2;
            add.u32 %r1, %r1, 1; setp.lt.u32 %p3, %r1, 6; @%p3 bra L;
            @%p0 cp.async.bulk.wait_group 0;"""
    for size in (256, 32):
        yield f"""{_INIT.format(n=1)}
            {_written(size)}
            fence.proxy.async.shared::cta; bar.sync 0;
            {_store_bulk(size, "@cp.async.bulk.commit_group;")}
            =@%p0 cp.async.bulk.wait_group.read 0;
            {_ARM.format(n=size)}
            {_LOAD.format(n=size)} <<
            {_waits(0)}
            @%p0 cp.async.bulk.wait_group 0;"""


def _overwrites() -> Iterator[str]:
    """Of what was loaded and read, and is loaded over."""
    for size in (256, 128, 64, 32, 16):
        for read in ("ld.shared.u32 %r9, [%s];", "ld.shared.v2.u32 {%r9, %r10}, [%s];"):
            yield f"""{_INIT.format(n=1)}
                {_ARM.format(n=size)}
                {_LOAD.format(n=size)}
                {_waits(0)}
                {read}
                =fence.proxy.async.shared::cta;
                bar.sync 0;
                {_ARM.format(n=size)}
                {_LOAD.format(n=size)} <<
                {_waits(1)}"""


FAULTS: tuple[Fault, ...] = (
    *_make("no __syncthreads", "race", _no_barrier("bar.sync 0;", (32, 33, 63))),
    *_make("no __syncwarp", "race", _no_barrier("bar.warp.sync 0xffffffff;", (16, 1, 31)), threads=32),
    *_make("no wait for cp.async", "race uninitialised", _copy_waits()),
    *_make("no commit", "race uninitialised", _commits()),
    *_make("no proxy fence", "proxy", _proxies()),
    *_make("loads over what is read", "proxy", _overwrites()),
    *_make("mbarrier.init is not told of", "race proxy", _inits()),
    *_make("wrong parity", "deadlock race uninitialised", _parities()),
    *_make("a wait that may miss its phase", "barrier", _late()),
    *_make("wrong expect_tx", "deadlock race uninitialised", _expected()),
    *_make("wrong number of arrivals", "deadlock barrier race", _counts()),
    *_make("arrives twice", "barrier", _double()),
    *_make("wrong count of bar.sync", "deadlock barrier", _bar_counts()),
    *_make("shuffle outside of its mask", "shuffle deadlock divergence", _shuffles(), threads=32),
    *_make("local memory nobody wrote", "uninitialised", _locals()),
    *_make("outside of an array", "address", _outside()),
    *_make("outside of shared memory", "address barrier", _overrun()),
    *_make("atomics against plain accesses", "race", _mixed()),
    *_make("no release, acquire or fence", "race", _flags()),
    *_make("exits before its cluster", "exit", _exits()),
    *_make("wgmma", "proxy register race", _wgmmas(), threads=128),
    *_make("tcgen05", "proxy register race", _tcgen05(), threads=128, target="sm_100a"),
    *_make("no wait for a bulk store's reads", "race", _reads()),
)  # fmt: skip
"""All of them."""
