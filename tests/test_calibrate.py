from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import calibrated, tables
from tests.sample import some
from tinygpu.codegen.emulator import Memory, Module, Report, launch
from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.run.calibrate import (
    CupyGpu,
    Readings,
    clock_hz,
    cycles_per_step,
    measure_device,
    per_cycle,
    work_per_second,
)
from tinygpu.codegen.run.microkernel import MICROKERNELS, Microkernel, chain_kernel, stream_kernel
from tinygpu.codegen.run.tensor_kernel import TENSOR_KERNELS, bulk_kernel
from tinygpu.devices.device import NUMBERS, Device, arch_number, load_device
from tinygpu.errors import DeviceError

BESIDE = {
    **TENSOR_KERNELS,
    **{k.name: k for k in (bulk_kernel(128, 1), bulk_kernel(4096, 16), bulk_kernel(16384, 8))},
}
ALL = {
    **MICROKERNELS,
    **BESIDE,
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
    "fma_latency": (r"fma\.rn\.f32", 1),
    "fma_f64_latency": (r"fma\.rn\.f64", 1),
    "smem_bytes": (r"ld\.shared\.v4", 16),
    "smem_latency": (r"ld\.shared", 1),
    "barrier_latency": (r"bar\.sync", 1),
    "clock": (r"fma\.rn\.f32", 1),
    "l1_latency": (r"ld\.global\.ca", 1),
    "l2_latency": (r"ld\.global\.cg", 1),
    "dram_latency": (r"ld\.global\.cg", 1),
    "read": (r"ld\.global\.cg\.v4", 16),
    "write": (r"st\.global\.v4", 16),
    "l2": (r"ld\.global\.cg\.v4", 16),
    "mma": (r"mma\.sync", 2 * 16 * 8 * 16 // 32),
    "mma_latency": (r"mma\.sync", 1),
    **{f"wgmma_n{n}": (r"wgmma\.mma_async", 2 * 64 * n * 16 // 128) for n in (64, 128, 256)},
    "mbarrier": (r"mbarrier\.arrive", 2),  # to and fro
    "cluster": (r"mbarrier\.arrive", 2),
    "red": (r"red\.global", 1),
    **{name: (r"cp\.async\.bulk", int(name[5:].partition("x")[0]) // 32)
       for name in BESIDE if name.startswith("bulk")},
}  # fmt: skip


def runs_on(name: str, arch: str) -> bool:
    """Whether the architecture has the unit."""
    if name.startswith("wgmma"):
        return arch == "sm_90a"
    return not name.startswith(("bulk", "cluster")) or arch_number(arch) >= 90


def loop_of(text: str) -> str:
    return text.partition("$loop:")[2].partition("bra $loop")[0]


def work_in(kernel: Microkernel, text: str) -> int:
    """What a CTA does, counted in the text: apart from ``Microkernel.work``."""
    if kernel.name.startswith("bulk"):
        sizes = re.findall(r"cp\.async\.bulk.*, (\d+), \[.*\];", loop_of(text))
        pattern, each = r"cp\.async\.bulk", int(sizes[0]) // 32
    else:
        pattern, each = STEP[kernel.name if kernel.name in STEP else kernel.name.partition("_")[2]]
    found = re.search(r"mov\.u32 %count, (\d+)", text)
    threads = re.search(r"maxntid (\d+)", text)
    assert found
    assert threads
    times = len(re.findall(pattern, loop_of(text))) * int(found.group(1)) * each
    if kernel.unit == "steps":
        return times
    return times * int(threads.group(1))


@pytest.mark.parametrize(
    ("name", "arch"),
    some(((n, a) for n in ALL for a in ("sm_80", "sm_90a", "sm_120") if runs_on(n, a)), 2)
    + some(((n, a) for n in BESIDE for a in ("sm_86", "sm_100a") if runs_on(n, a)), 2),
)
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


def emulated(kernel: Microkernel, text: str, limit: int = 5_000_000) -> Report:
    """Run it in the project's own interpreter, on random data."""
    memory, data = Memory(), np.random.default_rng(0).integers(0, 1 << 63, 1 << 16, np.uint64)
    out = np.zeros((kernel.cluster, 4), np.uint64)
    report = launch(
        Module.parse(text), "probe", kernel.cluster, kernel.threads,
        [memory.allocate(out), memory.allocate(data)], memory, cluster=kernel.cluster,
        smem_bytes=kernel.smem_bytes, completion="random", limit=limit,
    )  # fmt: skip
    assert report.findings or (out[:, 2:] > out[:, :2]).all()  # clocks are written
    return report


@pytest.mark.parametrize("name", BESIDE)
def test_runs_in_the_interpreter_and_does_its_work(name: str) -> None:
    """No race, no missing fence, no wait for nothing; and ``work`` is what has been executed."""
    kernel = BESIDE[name]
    two = replace(kernel, iterations=2, per_thread=kernel.per_thread // kernel.iterations * 2)
    report = emulated(two, two.ptx("sm_90a"))
    assert not report.findings
    # What one warp does with one instruction; of two CTAs, one gives and one takes a step each.
    pattern, each = {
        "mma": ("mma.sync", 4096), "mma_latency": ("mma.sync", 1), "red": ("red", 32),
        "mbarrier": ("mbarrier.try_wait", 1), "cluster": ("mbarrier.try_wait", 1),
        "wgmma": ("wgmma.mma_async", STEP[name][1] * 32), "bulk": ("cp.async.bulk", 0),
    }[name if name in ("mma_latency",) else name.partition("_")[0]]  # fmt: skip
    count = sum(n for op, n in report.instruction_counts.items() if op.startswith(pattern))
    assert count * (each or int(name[5:].partition("x")[0])) == two.work


@pytest.mark.parametrize("name", ["mbarrier", "cluster", "bulk_4096x16"])
def test_a_wait_for_nothing_ends(name: str) -> None:
    """Without the first arrival, or a copy's bytes, the kernel gives up: it cannot hang."""
    kernel = replace(BESIDE[name], iterations=2)
    text = kernel.ptx("sm_90a")
    lines = [x for x in text.splitlines() if "@%serves" not in x and "[%smem+4096]" not in x]
    assert 1 <= len(text.splitlines()) - len(lines) <= 4
    # The interpreter tells of a try_wait that nobody ends; test_wait asks again and again.
    tried = "\n".join(lines).replace("try_wait", "test_wait").replace(", 4096;", ", 40;")
    report = emulated(kernel, tried, limit=20_000)
    assert "trap" in {f.text for f in report.findings} | set(report.instruction_counts)


def test_operands_are_random_numbers_of_a_normal_size() -> None:
    """Any bits become bf16 of either sign from 1/8 to 2; never 0, infinite or NaN."""
    for name in ("mma", "wgmma_n256"):
        text = ALL[name].ptx("sm_90a")
        ((keep, give),) = set(
            zip(
                re.findall(r"and\.b32 %w\d+, %w\d+, (0x\w+)", text),
                re.findall(r"or\.b32 %w\d+, %w\d+, (0x\w+)", text),
                strict=True,
            )
        )
        words = np.random.default_rng(1).integers(0, 1 << 32, 10_000, np.uint32)
        made = (words & np.uint32(int(keep, 16)) | np.uint32(int(give, 16))).view(np.uint16)
        numbers = (made.astype(np.uint32) << 16).view(np.float32)
        assert (abs(numbers) >= 0.125).all()
        assert (abs(numbers) < 2).all()
        assert len(np.unique(numbers)) == 1024
        assert abs(numbers.mean()) < 0.05


def test_sustained_fma_toggles_bits() -> None:
    """x x + c stays within (-2, 2) and never settles, for every thread and chain."""
    text = MICROKERNELS["clock"].ptx("sm_90a")

    def number(word: str) -> np.float32:
        return np.float32(struct.unpack("f", bytes.fromhex(word)[::-1])[0])

    found = re.findall(r"fma\.rn\.f32 %(\w+), %\w+, 0f(\w+), 0f(\w+);", text)
    assert len(found) == 9
    threads = np.arange(1024, dtype=np.float32)
    values = {name: threads * number(step) + number(base) for name, step, base in found}
    c = values.pop("c0")
    x = np.stack(list(values.values()))
    for _ in range(2000):
        before, x = x, x * x + c
        assert (abs(x) < 2).all()
    assert (abs(x - before) > 1e-3).mean() > 0.99


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
    together = work_per_second(readings, work=work)
    assert together == pytest.approx(ctas * work / (nanoseconds * 1e-9))


def test_the_slowest_cta_counts() -> None:
    """One late CTA lowers the rate and the bandwidth, not the median clock."""
    even = np.array([[0, 0, 1000, 500]] * 4, np.uint64)
    late = even.copy()
    late[2] += np.array([0, 500, 1000, 1000], np.uint64)
    assert per_cycle(late, work=10) == per_cycle(even, work=10) / 2
    assert work_per_second(late, work=10) == pytest.approx(work_per_second(even, work=10) / 3)
    assert clock_hz(late) == clock_hz(even)


class MadeUp:
    """A GPU with the numbers of a device: it reads the kernel's text and answers with clocks."""

    def __init__(self, truth: Device, seed: int) -> None:
        self.name, self.arch, self.driver = truth.name, truth.arch, "580.1"
        self.card = f"NVIDIA {truth.name}"
        self.wobble = 0.0
        self.dram_bytes = truth.dram_bytes
        self.truth = truth
        self.random = np.random.default_rng(seed)
        self.chain = ""
        self.evicted = False
        self.tma = arch_number(truth.arch) >= 90
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
            "smem_bytes": t.smem_bytes_per_cycle_per_sm,
            "l2_read": t.l2_bytes_per_cycle / ctas, "red": 100.0 / ctas,
            "mma": t.tensor_flop_per_cycle_per_sm * (0.6 if t.arch == "sm_90a" else 1),
            "wgmma_n64": 0.8 * t.tensor_flop_per_cycle_per_sm,
            "wgmma_n128": 0.9 * t.tensor_flop_per_cycle_per_sm,
            "wgmma_n256": t.tensor_flop_per_cycle_per_sm,
            "fill_read": t.fill_bytes_per_cycle_per_sm * (0.9 if self.tma else 1),
            "dram_read": t.dram_bytes_per_second / t.clock_hz / ctas,
            "dram_write": 0.9 * t.dram_bytes_per_second / t.clock_hz / ctas,
        }  # fmt: skip
        steps = {
            "fma_latency": t.fma_latency_cycles, "fma_f64_latency": t.fma_f64_latency_cycles,
            "smem_latency": t.smem_latency_cycles, "barrier_latency": t.barrier_latency_cycles,
            "mma_latency": 33.0, "mbarrier": t.mbarrier_latency_cycles,
            "cluster": t.mbarrier_latency_cycles + t.cluster_latency_cycles,
        }  # fmt: skip
        if kernel.name.startswith("bulk"):
            sizes = [int(n) for n in re.findall(r"bulk.*, (\d+), \[.*\];", loop_of(text))]
            landed = t.l2_latency_cycles + t.tma_latency_cycles + (sizes[0] - 128) / 64
            fill = t.fill_bytes_per_cycle_per_sm * (0.5 if ctas > 1 else 1)
            depth = int(kernel.name.partition("x")[2])
            return work / sizes[0] * max(landed / depth, sizes[0] / fill)
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
        assert ctas == (self.truth.sms if kernel.ctas == "one per SM" else kernel.cluster)
        assert runs_on(kernel.name, self.arch)
        hz = self.truth.clock_hz * (1 + self.wobble * self.random.random())
        if "mma" in kernel.name and ctas > 1:
            hz = self.truth.tensor_clock_hz
        elif kernel.name == "clock" and kernel.iterations > MICROKERNELS["clock"].iterations:
            hz = 0.9 * hz
        cycles = self.cycles(kernel, kernel.ptx(self.arch), ctas) * self.random.choice(
            [1.0, 1.0, 1.2]
        )
        start = self.random.integers(0, 2**40)
        row = [start, 5, start + round(cycles), 5 + round(cycles / hz * 1e9)]
        return np.array([row] * ctas, np.uint64)

    def empty_launch_seconds(self) -> Sequence[float]:
        return [1.2 * self.truth.launch_seconds, self.truth.launch_seconds]

    def clusters(self, ctas: int) -> int:
        count: int = getattr(self.truth, f"clusters_of_{ctas}")
        return count


UNITS = (
    "tensor_flop_per_cycle_per_sm", "tensor_clock_hz", "tma_latency_cycles",
    "cluster_latency_cycles", "fill_bytes_per_cycle_per_sm", "mbarrier_latency_cycles",
)  # fmt: skip
SHEET = (
    "clock_hz", "fma_f32_per_cycle_per_sm", "fma_f64_per_cycle_per_sm",
    "smem_bytes_per_cycle_per_sm", "tensor_flop_per_cycle_per_sm",
)  # fmt: skip
"""What a data sheet has, and stays where a micro-kernel is near."""
COPIED = {"h200": UNITS[:0], "a100": UNITS[2:4], "rtx3060": UNITS[2:4], "b200": UNITS[:2]}
"""Of whom which numbers stay those of a known device."""


@pytest.mark.parametrize("name", COPIED)
def test_calibration_finds_the_numbers(name: str) -> None:
    """Run on a made-up GPU, calibration returns that GPU's numbers, each with its source.

    It is no known one: its units are a fifth faster.
    """
    truth = load_device(name)
    others = {field: getattr(truth, field) * 1.2 for field in UNITS if field not in COPIED[name]}
    truth = truth.with_values(**others)
    told: list[str] = []
    found = measure_device(MadeUp(truth, seed=3), date="2026-01-01", progress=told.append)
    for field in NUMBERS:
        got = getattr(found, field)
        assert got == pytest.approx(getattr(truth, field), rel=2e-3), field
    measured = {field: n for field, n in found.numbers if n.kind == "measured"}
    sheet = {field: n for field, n in found.numbers if "; measured " in n.source}
    assert all(n.kind == "spec" for n in sheet.values())
    rated = [f for f in SHEET if load_device(name).provenance[f].kind == "spec"]
    assert set(sheet) == {f for f in rated if f not in others and f not in COPIED[name]}
    assert len(measured) == 19 + len(others) - len(sheet)
    assert all("tinygpu calibrate, 2026-01-01, driver 580.1" in n.source for n in measured.values())
    for field in measured:
        assert any(line.startswith(f"{field} = ") for line in told)
    like = {field for field, n in found.numbers if n.source.startswith("not measured; as ")}
    assert like == set(COPIED[name])


def test_no_number_of_an_sm_90a_is_copied() -> None:
    """Each is measured, or told by the driver, or one of the five that are alike since sm_80."""
    found = measure_device(MadeUp(load_device("h200"), seed=5), date="2026-01-01")
    alike = {field for field, n in found.numbers if "calibrate, 2026-01-01" not in n.source}
    assert alike == {
        "registers_per_thread_max", "register_allocation_unit", "warp_schedulers_per_sm",
        "issue_per_cycle_per_scheduler", "sector_bytes",
    }  # fmt: skip


def test_a_source_says_the_spread_and_the_details() -> None:
    """Runs of the made-up GPU differ by 1.2 at most; curves stand with their numbers."""
    source = {
        field: n.source
        for field, n in measure_device(MadeUp(load_device("h200"), seed=7), date="x").numbers
        if "runs within" in n.source
    }
    spreads = {field: re.findall(r"runs within ([\d.]+)%", s) for field, s in source.items()}
    assert all(len(s) == 1 for s in spreads.values())
    assert spreads["launch_seconds"] == ["20.0"]
    assert {s for field in UNITS[:1] for s in spreads[field]} <= {"0.0", "16.7"}
    assert "n=64 40, n=128 71.11, n=256 128; mma.sync" in source[UNITS[0]]
    assert "33 cycles in a chain" in source[UNITS[0]]
    assert "wgmma_n256 on every SM for 2 s, " in source[UNITS[1]]
    assert "fp32 FMA for half as long: 1782 MHz" in source[UNITS[1]]
    assert "16x8K 125 (62.7)" in source["fill_bytes_per_cycle_per_sm"]
    assert "128 B 324.5" in source["tma_latency_cycles"]
    assert "red.global.add.f32: 100 adds a cycle, 100 of one SM" in source["l2_bytes_per_cycle"]


@pytest.mark.parametrize("share", [0.85, 0.95, 1.05, 1.2])
def test_a_data_sheet_stands_if_a_micro_kernel_is_near(share: float) -> None:
    """Within 10 %; else what was measured does.  The source has both numbers."""
    h200 = load_device("h200")
    rate = h200.tensor_flop_per_cycle_per_sm
    truth = h200.with_values(tensor_flop_per_cycle_per_sm=rate * share)
    found = measure_device(MadeUp(truth, seed=2), date="x")
    n = found.provenance["tensor_flop_per_cycle_per_sm"]
    near = abs(np.log(share)) <= np.log(1.1)
    assert n.kind == ("spec" if near else "measured")
    assert n.value == pytest.approx(rate if near else rate * share, rel=2e-3)
    assert (f"; measured {rate * share:.6g} (tinygpu calibrate, x" in n.source) == near


def test_what_calibration_gives_again_is_the_same() -> None:
    """The shipped file of a measured card and a calibration of such a card mean the same."""
    h100 = load_device("h100")
    found = measure_device(MadeUp(h100, seed=2), date="x")
    assert {f: n.kind for f, n in found.numbers} == {f: n.kind for f, n in h100.numbers}
    assert found.clock_hz == h100.clock_hz


@pytest.mark.parametrize(
    ("card", "clock", "wobble", "line"),
    [
        ("NVIDIA H100 80GB HBM3", 1.0, 0.0, ""),
        ("NVIDIA H100 80GB HBM3", 0.7, 0.0, "1386 MHz, and 1980 MHz by the data sheet: it is lock"),
        ("NVIDIA H100 80GB HBM3", 1.0, 0.2, "the clock moves, "),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", 1.0, 0.0, "is a slice"),
    ],
)
def test_what_makes_numbers_doubtful_is_told(
    card: str, clock: float, wobble: float, line: str
) -> None:
    """A clock that is locked or moves, and a slice of a card, in a line each."""
    h100 = load_device("h100")
    chip = MadeUp(h100.with_values(clock_hz=h100.clock_hz * clock), seed=2)
    chip.card, chip.wobble = card, wobble
    told: list[str] = []
    measure_device(chip, date="x", progress=told.append)
    notes = [text for text in told if text.startswith("note: ")]
    assert len(notes) == bool(line)
    assert all(line in note and "\n" not in note for note in notes)


@pytest.mark.parametrize("arch", ["sm_75", "sm_70"])
def test_a_card_that_is_too_old_is_refused(arch: str) -> None:
    chip = MadeUp(load_device("rtx3060"), seed=1)
    chip.arch, chip.card = arch, "NVIDIA T4"
    with pytest.raises(DeviceError, match=f"NVIDIA T4 is {arch}, and micro-kernels need sm_80"):
        measure_device(chip, date="x")


def test_little_of_a_loop_is_its_own() -> None:
    """The counter, its test and the branch: under 1 % of the loops whose rate a data sheet has."""
    for name in ("fma_f32", "fma_f64"):
        lines = loop_of(MICROKERNELS[name].ptx("sm_90a")).split(";")
        fma = sum("fma.rn" in line for line in lines)
        assert len(lines) - 1 - fma <= 0.01 * fma  # its last line is the branch's


def test_the_record_has_each_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``benchmarks.calibrated`` keeps what calibration finds; the page's table shows it."""
    truth = load_device("h200")
    monkeypatch.setattr(
        calibrated,
        "calibrate",
        lambda say, date, name: measure_device(MadeUp(truth, seed=1), date=date, progress=say),
    )
    calibrated.main(["--out", str(tmp_path)])
    tree = json.loads((tmp_path / "calibrated.json").read_text())
    assert [row["number"] for row in tree["rows"]] == list(NUMBERS)
    assert tree["provenance"]["command"] == "python -m benchmarks.calibrated --name h200"
    monkeypatch.setattr(tables, "FOLDER", tmp_path)
    text = tables.TABLES["calibrated"]()
    assert "| `tensor_flop_per_cycle_per_sm` | 4096 | spec | 4096 | 1.000 | " in text
    assert text.count("| 1.000 |") >= 25
    assert "- `fill_bytes_per_cycle_per_sm`: loads of one SM alone" in text


@pytest.mark.gpu
def test_calibration_on_this_gpu() -> None:
    """The GPU's rates are positive and no greater than an SM can issue."""
    found = measure_device(CupyGpu(), date="test")
    issue = 32 * found.warp_schedulers_per_sm
    for field in ("fma_f32", "fma_f64", "int", "sfu", "shuffle"):
        assert 0 < getattr(found, f"{field}_per_cycle_per_sm") <= 1.01 * issue
    latencies = (found.smem_latency_cycles, found.l2_latency_cycles, found.dram_latency_cycles)
    assert latencies == tuple(sorted(latencies))
    assert 2 * found.clusters_of_16 <= found.clusters_of_8
    assert 0 < 2 * found.clusters_of_8 <= found.clusters_of_4 <= found.sms // 4
    assert found.tensor_clock_hz <= 1.02 * found.clock_hz
