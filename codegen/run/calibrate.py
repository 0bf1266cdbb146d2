"""Calibration: the numbers of the GPU at hand, measured.

``calibrate(date=..)`` runs every micro-kernel on the GPU and turns the clocks' readings into a
``Device``.  With c0, g0, c1, g1 the SM's clock and the global timer before and after,

    a rate (results, bytes or requests a cycle)  = work / (c1 - c0)
    a latency (cycles a step)                     = (c1 - c0) / work
    the clock (Hz)                                = (c1 - c0) / (g1 - g0)
    a bandwidth of all SMs together (bytes a s)   = sum of work / (last g1 - first g0)

each the best of several runs: other work on the chip can only slow a run down.  Counts and sizes
come from the driver (kind ``spec``); the few that it does not tell are those of the known device of
the nearest architecture.

>>> readings = np.array([[1000, 0, 3000, 1000]], np.uint64)  # 2000 cycles in 1000 ns
>>> per_cycle(readings, work=256_000), cycles_per_step(readings, steps=500), clock_hz(readings)
(128.0, 4.0, 2000000000.0)

Source: ``codegen/run/microkernel.py``; Luo et al., arXiv 2402.13499, for the method.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tinygpu.codegen.run.assemble import assemble
from tinygpu.codegen.run.launch import device_arch, gpu, load
from tinygpu.codegen.run.microkernel import (
    CHAIN_BYTES,
    MICROKERNELS,
    Microkernel,
    chain_kernel,
    stream_kernel,
)
from tinygpu.codegen.run.provenance import device_and_driver
from tinygpu.codegen.runtime.driver import active_clusters
from tinygpu.devices.device import DEVICES, Device, Number, arch_number, load_device

__all__ = [
    "CupyGpu",
    "Gpu",
    "bytes_per_second",
    "calibrate",
    "clock_hz",
    "cycles_per_step",
    "measure_device",
    "per_cycle",
]

Readings = NDArray[np.uint64]
"""(CTAs, 4): clock and timer before, clock and timer after."""

_RUNS = 5
_STREAM_BYTES = 1 << 31
_L2_CHAIN_LINKS, _DRAM_CHAIN_LINKS, _DRAM_STRIDE_BYTES = 8192, 2048, 1 << 16

_RATES: Mapping[str, str] = {
    "fma_f32_per_cycle_per_sm": "fma_f32",
    "fma_f64_per_cycle_per_sm": "fma_f64",
    "int_per_cycle_per_sm": "int",
    "cvt_f64_per_cycle_per_sm": "cvt_f64",
    "cvt_16_per_cycle_per_sm": "cvt_16",
    "sfu_per_cycle_per_sm": "sfu",
    "shuffle_per_cycle_per_sm": "shuffle",
    "lsu_requests_per_cycle_per_sm": "lsu",
    "smem_bytes_per_cycle_per_sm": "smem_bytes",
    "l1_bytes_per_cycle_per_sm": "l1_bytes",
}
_LATENCIES: Mapping[str, str] = {
    "fma_latency_cycles": "fma_f32_latency",
    "fma_f64_latency_cycles": "fma_f64_latency",
    "smem_latency_cycles": "smem_latency",
    "barrier_latency_cycles": "barrier",
}
_ATTRIBUTES: Mapping[str, str] = {
    "sms": "MultiProcessorCount",
    "smem_bytes_per_sm": "MaxSharedMemoryPerMultiprocessor",
    "smem_bytes_per_cta_max": "MaxSharedMemoryPerBlockOptin",
    "smem_reserved_bytes_per_cta": "ReservedSharedMemoryPerBlock",
    "registers_per_sm": "MaxRegistersPerMultiprocessor",
    "threads_per_sm": "MaxThreadsPerMultiProcessor",
    "threads_per_cta_max": "MaxThreadsPerBlock",
    "ctas_per_sm": "MaxBlocksPerMultiprocessor",
    "l2_bytes": "L2CacheSize",
}
_EMPTY = Microkernel("empty", "steps", (), per_thread=1, iterations=1)
_COMMON = (
    "registers_per_thread_max",
    "register_allocation_unit",
    "warp_schedulers_per_sm",
    "issue_per_cycle_per_scheduler",
    "sector_bytes",
    "line_bytes",
    "banks",
    "bank_bytes",
)
_ALIKE = (
    "tensor_flop_per_cycle_per_sm",
    "fill_bytes_per_cycle_per_sm",
    "tma_latency_cycles",
    "mbarrier_latency_cycles",
    "cluster_latency_cycles",
    "tensor_clock_hz",
)


class Gpu(Protocol):
    """What calibration needs of a GPU: the one at hand, or one made up by a test."""

    name: str
    arch: str
    driver: str
    dram_bytes: int
    attributes: Mapping[str, int]

    def run(self, kernel: Microkernel, *, ctas: int) -> Readings:
        """Run it once, to the end, on one data area of at least 2 GiB + 1 MiB."""
        ...

    def empty_launch_seconds(self) -> float:
        """Return the time of an empty kernel among many in a graph."""
        ...

    def clusters(self, ctas: int) -> int:
        """Return how many clusters run at once, if each CTA has an SM of its own."""
        ...


def per_cycle(readings: Readings, *, work: int) -> float:
    """Return what a CTA does in a cycle: the slowest CTA's."""
    return work / float((readings[:, 2] - readings[:, 0]).max())


def cycles_per_step(readings: Readings, *, steps: int) -> float:
    """Return the cycles of one step of a chain."""
    return float((readings[:, 2] - readings[:, 0]).max()) / steps


def clock_hz(readings: Readings) -> float:
    """Return the SM's clock: the median over CTAs."""
    cycles = (readings[:, 2] - readings[:, 0]).astype(np.float64)
    nanoseconds = (readings[:, 3] - readings[:, 1]).astype(np.float64)
    return float(np.median(cycles / nanoseconds)) * 1e9


def bytes_per_second(readings: Readings, *, work: int) -> float:
    """Return the bandwidth of all CTAs together, from the first start to the last end."""
    seconds = float(readings[:, 3].max() - readings[:, 1].min()) * 1e-9
    return work * len(readings) / seconds


def calibrate(
    progress: Callable[[str], None] = lambda _: None, *, date: str, name: str = ""
) -> Device:
    """Measure the current GPU; ``progress`` is told each number.

    ``date`` goes into the sources; the device is called ``name``, or as the driver calls it.

    Raises LaunchError without a GPU, AssemblyError without ptxas.
    """
    return measure_device(CupyGpu(name), date=date, progress=progress)


def measure_device(
    chip: Gpu, *, date: str, progress: Callable[[str], None] = lambda _: None
) -> Device:
    """Return the numbers of a GPU."""
    sms = chip.attributes["MultiProcessorCount"]
    source = f"tinygpu calibrate, {date}, driver {chip.driver}, {chip.name}"
    found: dict[str, Number] = {}

    def note(field: str, value: float, what: str = "") -> None:
        found[field] = Number(value, "measured", f"{source}{what and '; '}{what}")
        progress(f"{field} = {value:.6g}")

    def runs(kernel: Microkernel) -> list[Readings]:
        ctas = sms if kernel.ctas == "one per SM" else 1
        return [chip.run(kernel, ctas=ctas) for _ in range(_RUNS)]

    hz = float(np.median([clock_hz(r) for r in runs(MICROKERNELS["clock"])]))
    note("clock_hz", hz, "under fp32 work on every SM, in a burst of milliseconds")
    for field, name in _RATES.items():
        kernel = MICROKERNELS[name]
        note(field, max(per_cycle(r, work=kernel.work) for r in runs(kernel)))
    for field, name in _LATENCIES.items():
        kernel = MICROKERNELS[name]
        note(field, min(cycles_per_step(r, steps=kernel.work) for r in runs(kernel)))
    write = stream_kernel("dram_write", "write", ctas=sms, total_bytes=_STREAM_BYTES)
    read = stream_kernel("dram_read", "read", ctas=sms, total_bytes=_STREAM_BYTES)
    writing = max(bytes_per_second(r, work=write.work) for r in runs(write))
    reading = max(bytes_per_second(r, work=read.work) for r in runs(read))
    note("dram_bytes_per_second", reading, f"reads; writes {writing:.4g}")
    # A quarter of L2: it stays there even where each half of the chip keeps a copy of its own.
    resident = chip.attributes["L2CacheSize"] // 4
    l2 = stream_kernel("l2_read", "read", ctas=sms, total_bytes=resident, passes=64, wide=4)
    note("l2_bytes_per_cycle", max(sms * per_cycle(r, work=l2.work) for r in runs(l2)))

    def chase(name: str, links: int, stride_bytes: int, *, evict: bool = False) -> float:
        kernel = MICROKERNELS[name]
        best = float("inf")
        for _ in range(_RUNS):
            chip.run(chain_kernel(links, stride_bytes), ctas=1)
            if evict:
                chip.run(read, ctas=sms)
            readings = chip.run(kernel, ctas=1)
            best = min(best, cycles_per_step(readings, steps=kernel.work))
        return best

    # One link to itself, which L1 has after the first step; then a line of every slice of L2.
    note("l1_latency_cycles", chase("l1_latency", 1024, 0))
    note("l2_latency_cycles", chase("l2_latency", _L2_CHAIN_LINKS, CHAIN_BYTES))
    dram = chase("dram_latency", _DRAM_CHAIN_LINKS, _DRAM_STRIDE_BYTES, evict=True)
    note("dram_latency_cycles", dram)
    note("launch_seconds", chip.empty_launch_seconds(), "an empty kernel among many in a graph")
    return Device.of(chip.name, chip.arch, _told(chip, source) | found)


def _told(chip: Gpu, source: str) -> dict[str, Number]:
    """Return what the driver says, and what is the same on every architecture since sm_80."""
    known = load_device("h200").provenance
    numbers = {field: known[field] for field in _COMMON}
    kin = next((d for d in map(load_device, DEVICES) if d.arch == chip.arch), load_device("h200"))
    numbers |= {field: kin.provenance[field] for field in _ALIKE}
    driver = f"{source}: the driver's attribute"
    for field, attribute in _ATTRIBUTES.items():
        numbers[field] = Number(chip.attributes[attribute], "spec", f"{driver} {attribute}")
    warps = chip.attributes["MaxThreadsPerMultiProcessor"] // chip.attributes["WarpSize"]
    numbers["warps_per_sm"] = Number(warps, "spec", f"{driver} MaxThreadsPerMultiProcessor / 32")
    for size in (4, 8):
        at_once = chip.clusters(size)
        numbers[f"clusters_of_{size}"] = Number(
            at_once, "spec", f"{source}: the driver's occupancy"
        )
    numbers["dram_bytes"] = Number(chip.dram_bytes, "spec", f"{source}: the driver")
    # sm_80: 192 and 164 KiB; sm_86, sm_89 and sm_120: 128 and 100; sm_90: 256 and 228.
    l1 = chip.attributes["MaxSharedMemoryPerMultiprocessor"] + 28 * 1024
    numbers["l1_bytes_per_sm"] = Number(l1, "spec", "shared memory of an SM and 28 KiB")
    return numbers


class CupyGpu:
    """The current GPU, through CuPy.  Raises LaunchError where there is none."""

    def __init__(self, name: str = "") -> None:
        """Read its attributes and allocate the data area."""
        cupy = gpu()
        device = cupy.cuda.Device()
        properties = cupy.cuda.runtime.getDeviceProperties(device.id)
        self.name = name or properties["name"].decode()
        self.arch = device_arch()
        self.driver = device_and_driver()[1]
        self.dram_bytes = int(properties["totalGlobalMem"])
        self.attributes: Mapping[str, int] = device.attributes
        words = (_STREAM_BYTES + (1 << 20)) // 8  # of random bits: zeros are read with less power
        self._data = cupy.random.default_rng(0).integers(0, 1 << 63, words, np.uint64)
        self._functions: dict[str, Any] = {}

    def run(self, kernel: Microkernel, *, ctas: int) -> Readings:
        """Run it once and wait.  Raises LaunchError or AssemblyError."""
        out = gpu().zeros((ctas, 4), np.uint64)
        self._function(kernel)((ctas,), (kernel.threads,), (out, self._data))
        return np.asarray(out.get(), np.uint64)

    def empty_launch_seconds(self, launches: int = 500) -> float:
        """Return the time of an empty kernel among ``launches`` in a graph."""
        cupy = gpu()
        function = self._function(_EMPTY)
        out = cupy.zeros((1, 4), np.uint64)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            for _ in range(launches):
                function((1,), (32,), (out, self._data))
            graph = stream.end_capture()
            best = float("inf")
            for _ in range(_RUNS):
                begin, end = cupy.cuda.Event(), cupy.cuda.Event()
                begin.record(stream)
                graph.launch(stream)
                end.record(stream)
                end.synchronize()
                best = min(best, cupy.cuda.get_elapsed_time(begin, end) * 1e-3 / launches)
        return best

    def clusters(self, ctas: int) -> int:
        """Ask the driver; before sm_90 there are none, and nothing keeps CTAs apart."""
        if arch_number(self.arch) < 90:
            return self.attributes["MultiProcessorCount"] // ctas
        smem = self.attributes["MaxSharedMemoryPerMultiprocessor"] // 2  # two do not fit
        function = load(assemble(_EMPTY.ptx(self.arch), self.arch).bytes, "probe", smem_bytes=smem)
        return active_clusters(function.ptr, ctas, _EMPTY.threads, smem)

    def _function(self, kernel: Microkernel) -> Any:
        text = kernel.ptx(self.arch)
        if text not in self._functions:
            self._functions[text] = load(assemble(text, self.arch).bytes, "probe")
        return self._functions[text]
