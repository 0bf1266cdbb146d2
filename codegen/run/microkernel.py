"""Micro-kernels: PTX that does one thing many times between two readings of the clocks.

Every kernel takes (out, data), and the first thread of CTA i writes four 64-bit words to out[4*i]:
the SM's clock and the global timer (ns) before, and both after.  Barriers before and after make the
readings hold for the whole CTA.  ``work`` is what one CTA has done in between, in the unit of the
device's field: thread-level results, FLOP, bytes, or steps of a chain of dependent instructions
(then cycles / work is a latency).

>>> fma = MICROKERNELS["fma_f32"]
>>> fma.work == fma.threads * fma.per_thread
True
>>> fma.ptx("sm_90a").count("fma.rn.f32") * fma.iterations == fma.per_thread
True

Source: PTX ISA, "Special Registers: %clock64, %globaltimer"; Luo et al., arXiv 2402.13499.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tinygpu.devices.device import arch_number

__all__ = ["CHAIN_BYTES", "MICROKERNELS", "Microkernel", "chain_kernel", "stream_kernel"]

_PTX_VERSION = "9.0"
CHAIN_BYTES = 128
"""Distance of the links of a chain: one line."""


@dataclass(frozen=True, slots=True)
class Microkernel:
    """A loop of ``body`` (already unrolled) after ``setup``; ``keep`` is stored if it is ``-1``.

    ``ctas``: one cluster in all, or a CTA on each SM.  ``unit`` says what ``work`` counts;
    ``after`` follows the loop, before the clocks are read again.
    """

    name: str
    unit: Literal["results", "flop", "bytes", "steps"]
    body: tuple[str, ...]
    per_thread: int
    iterations: int
    threads: int = 32
    ctas: Literal["one", "one per SM"] = "one"
    setup: tuple[str, ...] = ()
    keep: str = ""
    registers: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    smem_bytes: int = 20480
    cluster: int = 1

    def lasting(self, times: int) -> Microkernel:
        """Return the kernel with so many times as many iterations, on every SM."""
        iterations, per_thread = self.iterations * times, self.per_thread * times
        return replace(self, iterations=iterations, per_thread=per_thread, ctas="one per SM")

    @property
    def work(self) -> int:
        """What one CTA does between its clock readings, in ``unit``."""
        return self.per_thread * (1 if self.unit == "steps" else self.threads)

    def ptx(self, arch: str) -> str:
        """Return the module; its entry is called ``probe``, its shared memory is dynamic."""
        together = (".explicitcluster", f".reqnctapercluster {self.cluster}, 1, 1")
        lines = [
            f".version {_PTX_VERSION}", f".target {arch}", ".address_size 64",
            ".extern .shared .align 1024 .b8 smem[];",
            ".visible .entry probe(.param .u64 p_out, .param .u64 p_data)",
            f".maxntid {self.threads}, 1, 1", *(together if self.cluster > 1 else ()), "{",
            "\t.reg .u64 %out, %data, %t<4>, %at;", "\t.reg .u32 %thread, %cta, %count, %smem;",
            "\t.reg .pred %more, %first, %odd;", *(f"\t.reg {r};" for r in self.registers),
            "\tld.param.u64 %out, [p_out];", "\tld.param.u64 %data, [p_data];",
            "\tcvta.to.global.u64 %out, %out;", "\tcvta.to.global.u64 %data, %data;",
            "\tmov.u32 %thread, %tid.x;", "\tmov.u32 %cta, %ctaid.x;", "\tmov.u32 %smem, smem;",
            *(f"\t{line};" for line in self.setup), f"\tmov.u32 %count, {self.iterations};",
            "\tbar.sync 0;", "\tmov.u64 %t1, %globaltimer;", "\tmov.u64 %t0, %clock64;", "$loop:",
            '\t.pragma "nounroll";', *(f"\t{line};" for line in self.body),
            "\tsub.u32 %count, %count, 1;", "\tsetp.ne.u32 %more, %count, 0;",
            "\t@%more bra $loop;", *(f"\t{line};" for line in self.after),
            "\tbar.sync 0;", "\tmov.u64 %t2, %clock64;", "\tmov.u64 %t3, %globaltimer;",
            "\tmad.wide.u32 %at, %cta, 32, %out;", "\tsetp.eq.u32 %first, %thread, 0;",
            *(f"\t@%first st.global.u64 [%at+{8 * i}], %t{t};" for i, t in enumerate((0, 1, 2, 3))),
        ]  # fmt: skip
        if self.keep:
            # Without a use of the results ptxas removes the loop; the branch is never taken.
            lines += [
                f"\tsetp.eq.u32 %odd, {self.keep}, 0xFFFFFFFF;",
                f"\t@%odd st.global.u32 [%at], {self.keep};",
            ]
        text = "\n".join([*lines, "\tret;", "}", ""])
        return text if arch_number(arch) >= 90 else text.replace(".try_wait.", ".test_wait.")


_BITS = {"f32": "b32", "f64": "b64", "b32": "b32"}


def _arithmetic(
    name: str, kind: str, lines: tuple[str, ...], *,
    chains: int = 8, unroll: int = 24, iterations: int = 64, threads: int = 1024,
) -> Microkernel:  # fmt: skip
    """Make chains of dependent instructions: many measure a rate, one of one warp a latency.

    ``lines`` is one step with ``{x}`` for the chain's register; %c0 and %c1 are constants.
    """
    made = "mov.u32" if kind == "b32" else f"cvt.rn.{kind}.u32"
    setup = [f"{made} %c{i}, %thread" for i in range(2)]
    setup += [f"mov.{_BITS[kind]} %x{i}, %c0" for i in range(chains)]
    joined = ["mov.u32 %kept, 0"]
    body = [s.format(x=f"%x{i}") for _ in range(unroll) for i in range(chains) for s in lines]
    # The kept word is made once, after the loop, from all chains.
    for i in range(chains):
        if kind == "f64":
            joined += [f"mov.b64 {{%low, %high}}, %x{i}", "xor.b32 %kept, %kept, %high"]
        else:
            joined += [f"mov.b32 %low, %x{i}", "xor.b32 %kept, %kept, %low"]
    latency = chains == 1
    steps = len(lines) * unroll * chains * iterations
    return Microkernel(
        name, "steps" if latency else "results", tuple(body), steps, iterations,
        threads=threads, setup=tuple(setup), keep="%kept", after=tuple(joined),
        registers=(
            f".{kind} %x<{chains}>", f".{kind} %c<2>", ".b32 %kept, %low, %high", ".b16 %half",
            ".f64 %double",
        ),
    )  # fmt: skip


_LONG = 64
"""Steps of each of 8 chains in a loop whose own 3 instructions are to be less than 1 % of it."""
_FMA_F32 = ("fma.rn.f32 {x}, {x}, %c0, %c1",)
_FMA_F64 = ("fma.rn.f64 {x}, {x}, %c0, %c1",)
_CVT_16 = ("cvt.rn.f16.f32 %half, {x}", "cvt.f32.f16 {x}, %half")
# Only the high word goes on, so that no pair of conversions can be seen to cancel.
_CVT_F64 = ("cvt.f64.f32 %double, {x};\n\tmov.b64 {{%low, {x}}}, %double",)


def _latency(name: str, kind: str, lines: tuple[str, ...]) -> Microkernel:
    return _arithmetic(name, kind, lines, chains=1, unroll=128, iterations=32, threads=32)


def _shared() -> Microkernel:
    """Read shared memory in vectors of 16 B, neighbouring lanes side by side."""
    # Other addresses each time, results that are kept, and a step of 0 that the assembler does not
    # know: else it loads once.
    loads = [
        line
        for i in range(32)
        for line in (
            f"ld.shared.v4.u32 {{%w0, %w1, %w2, %w3}}, [%here+{16 * i}]",
            "xor.b32 %kept, %kept, %w0",
        )
    ]
    return Microkernel(
        "smem_bytes", "bytes", ("add.u32 %here, %here, %step", *loads),
        64 * 32 * 16, 64, threads=1024,
        setup=(
            "mad.lo.u32 %here, %thread, 16, %smem", "mov.u32 %step, %nctaid.y",
            "sub.u32 %step, %step, 1", "mov.u32 %kept, 0",
        ),
        keep="%kept",
        registers=(".u32 %here, %step, %kept", ".u32 %w<4>"),
    )  # fmt: skip


def chain_kernel(links: int, stride_bytes: int) -> Microkernel:
    """Write a chain of ``links`` pointers into data, each to the next, the last to the first."""
    return Microkernel(
        "chain", "steps",
        (
            "mad.lo.u32 %i, %count, 1024, %thread", "sub.u32 %i, %i, 1024",
            f"mad.wide.u32 %here, %i, {stride_bytes}, %data", "add.u32 %i, %i, 1",
            f"rem.u32 %i, %i, {links}", f"mad.wide.u32 %next, %i, {stride_bytes}, %data",
            "st.global.u64 [%here], %next",
        ),
        links // 1024, links // 1024, threads=1024, registers=(".u32 %i", ".u64 %here, %next"),
    )  # fmt: skip


def _chase(name: str, cache: str, steps: int) -> Microkernel:
    """Follow a chain in data; ``.cg`` passes by L1."""
    unroll = min(steps, 64)
    return Microkernel(
        name, "steps", (*[f"ld.global{cache}.u64 %p, [%p]"] * unroll, "cvt.u32.u64 %kept, %p"),
        steps, steps // unroll, setup=("mov.u64 %p, %data",), keep="%kept",
        registers=(".u64 %p", ".u32 %kept"),
    )  # fmt: skip


def stream_kernel(
    name: str, what: Literal["read", "write"], *,
    ctas: int, total_bytes: int, passes: int = 1, wide: int = 8,
) -> Microkernel:  # fmt: skip
    """All CTAs together read (past L1) or write ``total_bytes`` of data, ``passes`` times.

    In each iteration a CTA moves ``wide`` x 16 B a thread, and the CTAs stand side by side.
    """
    threads = 1024
    stride = threads * 16
    span = ctas * stride * wide
    iterations = max(1, total_bytes // span)
    at = [f"[%here+{i * stride}]" for i in range(wide)]
    if what == "read":
        move = [f"ld.global.cg.v4.u32 {{%a{i}, %b{i}, %c{i}, %d{i}}}, {at[i]}" for i in range(wide)]
        move += [f"xor.b32 %kept, %kept, %{r}{i}" for i in range(wide) for r in "abcd"]
    else:
        move = [f"st.global.v4.u32 {a}, {{%thread, %thread, %thread, %thread}}" for a in at]
    again = (
        f"add.u64 %here, %here, {span}", "setp.ge.u64 %wrap, %here, %end",
        "selp.u64 %here, %start, %here, %wrap",
    )  # fmt: skip
    return Microkernel(
        name, "bytes", (*move, *again), 16 * wide * iterations * passes, iterations * passes,
        threads=threads, ctas="one per SM",
        setup=(
            f"mad.wide.u32 %start, %cta, {stride * wide}, %data",
            "mad.wide.u32 %start, %thread, 16, %start", "mov.u64 %here, %start",
            f"add.u64 %end, %start, {iterations * span}", "mov.u32 %kept, 0",
        ),
        keep="%kept",
        registers=(".u64 %start, %here, %end", ".pred %wrap", ".u32 %kept",
                   *(f".u32 %{r}<{wide}>" for r in "abcd")),
    )  # fmt: skip


def _clock() -> Microkernel:
    """Repeat x x + c, for c from -1.8 to -1.9: chaotic within (-2, 2), so that bits toggle."""
    chains = _arithmetic("clock", "f32", ("fma.rn.f32 {x}, {x}, {x}, %c0",), iterations=2048)
    seeds = [f"fma.rn.f32 %x{i}, %x{i}, 0fB8D1B717, 0fBFE{i}0000" for i in range(8)]
    constant = "fma.rn.f32 %c0, %c0, 0fB8D1B717, 0fBFE66666"
    return replace(chains, ctas="one per SM", setup=(*chains.setup, *seeds, constant))


MICROKERNELS: Mapping[str, Microkernel] = {
    k.name: k
    for k in (
        _arithmetic("fma_f32", "f32", _FMA_F32, unroll=_LONG),
        _arithmetic("fma_f64", "f64", _FMA_F64, unroll=_LONG, iterations=32),
        _arithmetic("int", "b32", ("mad.lo.u32 {x}, {x}, %c0, %c1",)),
        _arithmetic("cvt_f64", "f32", _CVT_F64, iterations=16),
        _arithmetic("cvt_16", "f32", _CVT_16, unroll=16),
        _arithmetic("sfu", "f32", ("ex2.approx.ftz.f32 {x}, {x}",), iterations=16),
        _arithmetic("shuffle", "b32", ("shfl.sync.bfly.b32 {x}, {x}, 1, 31, -1",), iterations=16),
        _latency("fma_latency", "f32", _FMA_F32),
        _latency("fma_f64_latency", "f64", _FMA_F64),
        _shared(),
        Microkernel(
            "smem_latency", "steps", ("ld.shared.u32 %here, [%here]",) * 64, 64 * 64, 64,
            setup=("mov.u32 %here, %smem", "st.shared.u32 [%here], %here"),
            keep="%here", registers=(".u32 %here",),
        ),
        Microkernel("barrier_latency", "steps", ("bar.sync 0",) * 64, 64 * 64, 64, threads=256),
        _clock(),
        _chase("l1_latency", ".ca", 4096),
        _chase("l2_latency", ".cg", 8192),
        _chase("dram_latency", ".cg", 2048),
    )
}  # fmt: skip
"""The micro-kernels whose text does not depend on the chip."""
