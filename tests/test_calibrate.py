from __future__ import annotations

import re
import struct
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.run.calibrate import (
    CupyGpu,
    Readings,
    bytes_per_second,
    clock_hz,
    cycles_per_step,
    measure_device,
    per_cycle,
)
from tinygpu.codegen.run.microkernel import MICROKERNELS, Microkernel, chain_kernel, stream_kernel
from tinygpu.devices.device import NUMBERS, Device, load_device

ALL = {
    **MICROKERNELS,
    "chain": chain_kernel(8192, 128),
    "read": stream_kernel("read", "read", ctas=132, total_bytes=1 << 31),
    "write": stream_kernel("write", "write", ctas=132, total_bytes=1 << 31),
    "l2": stream_kernel("l2", "read", ctas=28, total_bytes=3 << 18, passes=64, wide=4),
}
# What a step of each kernel's loop is, in PTX, and how much of the unit it does.
STEP: Mapping[str, tuple[str, int]] = {
    "fma_f32": (r"fma\.rn\.f32", 1),
    "fma_f64": (r"fma\.rn\.f64", 1),
    "int": (r"mad\.lo\.u32 %x", 1),
    "cvt_f64": (r"cvt\.f64\.f32", 1),
    "cvt_16": (r"cvt\.(rn\.f16\.f32|f32\.f16)", 1),
    "sfu": (r"ex2", 1),
    "shuffle": (r"shfl", 1),
    "fma_f32_latency": (r"fma\.rn\.f32", 1),
    "fma_f64_latency": (r"fma\.rn\.f64", 1),
    "smem_bytes": (r"ld\.shared\.v4", 16),
    "lsu": (r"ld\.shared", 1),
    "smem_latency": (r"ld\.shared", 1),
    "barrier": (r"bar\.sync", 1),
    "clock": (r"fma\.rn\.f32", 1),
    "l1_bytes": (r"ld\.global\.ca\.v4", 16),
    "l1_latency": (r"ld\.global\.ca", 1),
    "l2_latency": (r"ld\.global\.cg", 1),
    "dram_latency": (r"ld\.global\.cg", 1),
    "read": (r"ld\.global\.cg\.v4", 16),
    "write": (r"st\.global\.v4", 16),
    "l2": (r"ld\.global\.cg\.v4", 16),
}


def loop_of(text: str) -> str:
    return text.partition("$loop:")[2].partition("bra $loop")[0]


def work_in(kernel: Microkernel, text: str) -> int:
    """What a CTA does, counted in the text: apart from ``Microkernel.work``."""
    pattern, each = STEP[kernel.name if kernel.name in STEP else kernel.name.partition("_")[2]]
    found = re.search(r"mov\.u32 %count, (\d+)", text)
    threads = re.search(r"maxntid (\d+)", text)
    assert found
    assert threads
    times = len(re.findall(pattern, loop_of(text))) * int(found.group(1)) * each
    if kernel.unit == "steps":
        return times
    return times * int(threads.group(1)) // (32 if kernel.unit == "requests" else 1)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120"])
@pytest.mark.parametrize("name", ALL)
def test_assembles_and_keeps_its_loop(name: str, arch: str) -> None:
    """ptxas takes every micro-kernel without spills, and removes none of its instructions."""
    cubin = assemble(ALL[name].ptx(arch), arch)
    assert not cubin.spills
    wanted = len(re.findall(STEP.get(name, ("st.global", 1))[0], loop_of(ALL[name].ptx(arch))))
    assert wanted > 0
    if name == "cvt_16":
        wanted = wanted * 3 // 4  # two conversions down may be one packed instruction
    assert text_bytes(cubin.bytes) >= 16 * wanted


def text_bytes(elf: bytes) -> int:
    """Size of the code section, from the ELF section headers; an instruction is 16 bytes."""
    offset, size, count, names = (
        *struct.unpack_from("<Q", elf, 0x28),
        *struct.unpack_from("<HHH", elf, 0x3A),
    )
    headers = [struct.unpack_from("<IIQQQQ", elf, offset + i * size) for i in range(count)]
    strings = headers[names][4]
    for name, _, _, _, start, length in headers:
        label = elf[strings + name : elf.index(b"\0", strings + name)]
        if label.startswith(b".text."):
            assert start + length <= len(elf)
            return int(length)
    raise AssertionError("no code")


@pytest.mark.parametrize("name", sorted(STEP))
def test_work_is_what_the_text_does(name: str) -> None:
    """``work`` is the count of the instructions in the loop times its iterations and threads."""
    assert ALL[name].work == work_in(ALL[name], ALL[name].ptx("sm_90a"))


def test_chain_visits_every_link() -> None:
    """Iteration c writes links 1024 (c-1) to 1024 c - 1: all of them, and no other."""
    chain = chain_kernel(8192, 128)
    links = {
        (count - 1) * 1024 + t for count in range(1, chain.iterations + 1) for t in range(1024)
    }
    assert links == set(range(8192))
    text = chain.ptx("sm_90a")
    for line in (
        "mad.lo.u32 %i, %count, 1024, %thread",
        "sub.u32 %i, %i, 1024",
        "rem.u32 %i, %i, 8192",
    ):
        assert line in text


@given(
    st.integers(1, 2**40), st.integers(1, 10**6), st.floats(1e8, 3e9), st.integers(1, 8),
    st.integers(0, 2**60),
)  # fmt: skip
def test_formulas(cycles: int, work: int, hz: float, ctas: int, start: int) -> None:
    """Rate x latency = 1; the clock is cycles over time; starting later changes nothing."""
    nanoseconds = max(1, round(cycles / hz * 1e9))
    row = [start, 7, start + cycles, 7 + nanoseconds]
    readings = np.array([row] * ctas, np.uint64)
    assert per_cycle(readings, work=work) * cycles_per_step(readings, steps=work) == pytest.approx(
        1
    )
    assert per_cycle(readings, work=work) == pytest.approx(work / cycles)
    assert clock_hz(readings) == pytest.approx(cycles / nanoseconds * 1e9)
    together = bytes_per_second(readings, work=work)
    assert together == pytest.approx(ctas * work / (nanoseconds * 1e-9))


def test_the_slowest_cta_counts() -> None:
    """One late CTA lowers the rate and the bandwidth, not the median clock."""
    even = np.array([[0, 0, 1000, 500]] * 4, np.uint64)
    late = even.copy()
    late[2] += np.array([0, 500, 1000, 1000], np.uint64)
    assert per_cycle(late, work=10) == per_cycle(even, work=10) / 2
    assert bytes_per_second(late, work=10) == pytest.approx(bytes_per_second(even, work=10) / 3)
    assert clock_hz(late) == clock_hz(even)


class MadeUp:
    """A GPU with the numbers of a device: it reads the kernel's text and answers with clocks."""

    def __init__(self, truth: Device, seed: int) -> None:
        self.name, self.arch, self.driver = truth.name, truth.arch, "580.1"
        self.dram_bytes = truth.dram_bytes
        self.truth = truth
        self.random = np.random.default_rng(seed)
        self.chain = ""
        self.evicted = False
        self.attributes: Mapping[str, int] = {
            "MultiProcessorCount": truth.sms,
            "MaxSharedMemoryPerMultiprocessor": truth.smem_bytes_per_sm,
            "MaxSharedMemoryPerBlockOptin": truth.smem_bytes_per_cta_max,
            "ReservedSharedMemoryPerBlock": truth.smem_reserved_bytes_per_cta,
            "MaxRegistersPerMultiprocessor": truth.registers_per_sm,
            "MaxThreadsPerMultiProcessor": truth.threads_per_sm,
            "MaxThreadsPerBlock": truth.threads_per_cta_max,
            "MaxBlocksPerMultiprocessor": truth.ctas_per_sm,
            "L2CacheSize": truth.l2_bytes,
            "WarpSize": 32,
        }

    def cycles(self, kernel: Microkernel, text: str, ctas: int) -> float:
        t = self.truth
        if kernel.name == "chain":
            self.chain, self.evicted = text, False
            return 1000.0
        work = work_in(kernel, text)
        rates = {
            "fma_f32": t.fma_f32_per_cycle_per_sm, "clock": t.fma_f32_per_cycle_per_sm,
            "fma_f64": t.fma_f64_per_cycle_per_sm, "int": t.int_per_cycle_per_sm,
            "cvt_f64": t.cvt_f64_per_cycle_per_sm, "cvt_16": t.cvt_16_per_cycle_per_sm,
            "sfu": t.sfu_per_cycle_per_sm, "shuffle": t.shuffle_per_cycle_per_sm,
            "lsu": t.lsu_requests_per_cycle_per_sm, "smem_bytes": t.smem_bytes_per_cycle_per_sm,
            "l1_bytes": t.l1_bytes_per_cycle_per_sm,
            "l2_read": t.l2_bytes_per_cycle / ctas,
            "dram_read": t.dram_bytes_per_second / t.clock_hz / ctas,
            "dram_write": 0.9 * t.dram_bytes_per_second / t.clock_hz / ctas,
        }  # fmt: skip
        steps = {
            "fma_f32_latency": t.fma_latency_cycles, "fma_f64_latency": t.fma_f64_latency_cycles,
            "smem_latency": t.smem_latency_cycles, "barrier": t.barrier_latency_cycles,
        }  # fmt: skip
        if kernel.name in rates:
            self.evicted = self.evicted or kernel.name == "dram_read"
            return work / rates[kernel.name]
        if kernel.name in steps:
            return work * steps[kernel.name]
        # A chase costs what its chain says: one line is in L1, and DRAM only if L2 was swept.
        found = re.search(r"mad\.wide\.u32 %here, %i, (\d+)", self.chain)
        assert found
        if int(found.group(1)) == 0:
            return work * t.l1_latency_cycles
        return work * (t.dram_latency_cycles if self.evicted else t.l2_latency_cycles)

    def run(self, kernel: Microkernel, *, ctas: int) -> Readings:
        assert ctas == (self.truth.sms if kernel.ctas == "one per SM" else 1)
        cycles = self.cycles(kernel, kernel.ptx(self.arch), ctas) * self.random.choice(
            [1.0, 1.0, 1.2]
        )
        start = self.random.integers(0, 2**40)
        row = [start, 5, start + round(cycles), 5 + round(cycles / self.truth.clock_hz * 1e9)]
        return np.array([row] * ctas, np.uint64)

    def empty_launch_seconds(self) -> float:
        return self.truth.launch_seconds

    def clusters(self, ctas: int) -> int:
        return {4: self.truth.clusters_of_4, 8: self.truth.clusters_of_8}[ctas]


@pytest.mark.parametrize("name", ["h200", "a100", "rtx3060"])
def test_calibration_finds_the_numbers(name: str) -> None:
    """Run on a made-up GPU, calibration returns that GPU's numbers, each with its source."""
    truth = load_device(name)
    told: list[str] = []
    found = measure_device(MadeUp(truth, seed=3), date="2026-01-01", progress=told.append)
    for field in NUMBERS:
        got = getattr(found, field)
        assert got == pytest.approx(getattr(truth, field), rel=2e-3), field
    measured = [n for _, n in found.numbers if n.kind == "measured"]
    assert len(measured) == len(told) == 21
    assert all("tinygpu calibrate, 2026-01-01, driver 580.1" in n.source for n in measured)


@pytest.mark.gpu
def test_calibration_on_this_gpu() -> None:
    """The GPU's rates are positive and no greater than an SM can issue."""
    found = measure_device(CupyGpu(), date="test")
    issue = 32 * found.warp_schedulers_per_sm
    for field in ("fma_f32", "fma_f64", "int", "sfu", "shuffle"):
        assert 0 < getattr(found, f"{field}_per_cycle_per_sm") <= 1.01 * issue
    latencies = (found.smem_latency_cycles, found.l2_latency_cycles, found.dram_latency_cycles)
    assert latencies == tuple(sorted(latencies))
    assert 0 < 2 * found.clusters_of_8 <= found.clusters_of_4 <= found.sms // 4
