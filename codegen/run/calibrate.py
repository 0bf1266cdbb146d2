"""Calibration: the numbers of the GPU at hand, measured.

``calibrate(date=..)`` runs every micro-kernel on the GPU and turns the clocks' readings into a
``Device``.  With c0, g0, c1, g1 the SM's clock and the global timer before and after,

    a rate (results, bytes or requests a cycle)  = work / (c1 - c0)
    a latency (cycles a step)                     = (c1 - c0) / work
    the clock (Hz)                                = (c1 - c0) / (g1 - g0)
    what all SMs do together (work a second)      = sum of work / (last g1 - first g0)

each the best of several runs, as other work on the chip can only slow a run down; a clock is their
median.  The source says how far the runs lie apart.  Counts and sizes come from the driver (kind
``spec``).  What a data sheet says of the same architecture (``_SHEET``) stays, kind ``spec``, if
the micro-kernel is within 10 % of it; the source then has both.  What a chip has no unit for, and
the rate of tcgen05, stay those of a known device.

>>> readings = np.array([[1000, 0, 3000, 1000]], np.uint64)  # 2000 cycles in 1000 ns
>>> per_cycle(readings, work=256_000), cycles_per_step(readings, steps=500), clock_hz(readings)
(128.0, 4.0, 2000000000.0)

Source: ``codegen/run/microkernel.py``; Luo et al., arXiv 2402.13499, for the method.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
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
from tinygpu.codegen.run.tensor_kernel import (
    BULK_BYTES,
    TENSOR_KERNELS,
    WGMMA_COLUMNS,
    bulk_kernel,
)
from tinygpu.codegen.runtime.driver import active_clusters
from tinygpu.devices.device import (
    ARCHITECTURES,
    DEVICES,
    Device,
    Number,
    arch_number,
    load_device,
    names_gpu,
)
from tinygpu.errors import DeviceError, nearest

__all__ = [
    "CupyGpu", "Gpu", "calibrate", "clock_hz", "cycles_per_step", "measure_device", "per_cycle",
    "work_per_second",
]  # fmt: skip

Readings = NDArray[np.uint64]
"""(CTAs, 4): clock and timer before, clock and timer after."""

_Pick = Callable[[Sequence[float]], float]
_RUNS = 5
_SUSTAINED_SECONDS, _LAUNCH_SECONDS = 2.0, 0.1
_STREAM_BYTES = 1 << 31
_OLDEST = 80  # spec: PTX ISA, mma.sync of bf16 and cp.async
_L2_CHAIN_LINKS, _DRAM_CHAIN_LINKS, _DRAM_STRIDE_BYTES = 8192, 2048, 1 << 16

_RATES = (
    "fma_f32", "fma_f64", "int", "cvt_f64", "cvt_16", "sfu", "shuffle", "smem_bytes",
)  # fmt: skip
_SHEET = (
    "fma_f32_per_cycle_per_sm", "fma_f64_per_cycle_per_sm", "smem_bytes_per_cycle_per_sm",
    "tensor_flop_per_cycle_per_sm", "clock_hz",
)  # fmt: skip
"""What data sheets have; all but the clock is of an SM, and of every chip of the architecture."""
_NEAR = math.log(1.1)
_UNSTEADY = 0.03
_LATENCIES = ("fma", "fma_f64", "smem", "barrier")
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
_EMPTY = Microkernel("empty", "steps", (), per_thread=1, iterations=1, smem_bytes=0)
_COMMON = (
    "registers_per_thread_max", "register_allocation_unit", "warp_schedulers_per_sm",
    "issue_per_cycle_per_scheduler", "sector_bytes",
)  # fmt: skip
_ALIKE = (
    "tensor_flop_per_cycle_per_sm", "fill_bytes_per_cycle_per_sm", "tma_latency_cycles",
    "mbarrier_latency_cycles", "cluster_latency_cycles", "tensor_clock_hz",
)  # fmt: skip


class Gpu(Protocol):
    """What calibration needs of a GPU: the one at hand, or one made up by a test.

    The driver calls it ``card``, its device is to be called ``name``.
    """

    name: str
    card: str
    arch: str
    driver: str
    dram_bytes: int
    attributes: Mapping[str, int]

    def run(self, kernel: Microkernel, *, ctas: int) -> Readings:
        """Run it once, to the end, on one data area of at least 2 GiB + 1 MiB."""

    def empty_launch_seconds(self) -> Sequence[float]:
        """Return the times of an empty kernel among many in a graph."""

    def clusters(self, ctas: int) -> int:
        """Return how many clusters run at once, if each CTA has an SM of its own."""


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


def work_per_second(readings: Readings, *, work: int) -> float:
    """Return what all CTAs do in a second, from the first start to the last end."""
    seconds = float(readings[:, 3].max() - readings[:, 1].min()) * 1e-9
    return work * len(readings) / seconds


def calibrate(
    progress: Callable[[str], None] = lambda _: None, *, date: str, name: str = ""
) -> Device:
    """Measure the current GPU; ``progress`` is told each number.

    ``date`` goes into the sources; the device is called ``name``, or as the driver calls it.

    Raises LaunchError without a GPU, AssemblyError without ptxas, DeviceError for one too old.
    """
    return measure_device(CupyGpu(name), date=date, progress=progress)


def measure_device(
    chip: Gpu, *, date: str, progress: Callable[[str], None] = lambda _: None
) -> Device:
    """Return the numbers of a GPU.  Raises DeviceError for one that PTX is not made for."""
    if chip.arch not in ARCHITECTURES or arch_number(chip.arch) < _OLDEST:
        raise DeviceError(
            f"calibrate: {chip.card} is {chip.arch}, and micro-kernels need sm_{_OLDEST} or newer, "
            f"of what ptxas knows; {nearest(chip.arch, ARCHITECTURES)}"
        )
    source = f"tinygpu calibrate, {date}, driver {chip.driver}, {chip.name}"
    bench = _Bench(chip, source, progress)
    _threads(bench)
    _products(bench)  # while the data area is random: what follows writes into it
    _memory(bench)
    _copies(bench)
    _barriers(bench)
    launches = chip.empty_launch_seconds()
    bench.note("launch_seconds", launches, "an empty kernel among many in a graph", pick=min)
    return Device.of(chip.name, chip.arch, _told(chip, source) | bench.found)


class _Bench:
    """A GPU, and the numbers that are found on it."""

    def __init__(self, chip: Gpu, source: str, progress: Callable[[str], None]) -> None:
        self.chip, self.source, self.progress = chip, source, progress
        self.sms, self.generation = chip.attributes["MultiProcessorCount"], arch_number(chip.arch)
        self.found: dict[str, Number] = {}

    def note(
        self, field: str, values: Sequence[float], what: str = "", *, pick: _Pick = max
    ) -> float:
        """Keep a number, the ``pick`` of some runs, with their spread; return it."""
        value = float(pick(values))
        spread = f"{len(values)} runs within {(max(values) - min(values)) / value:.1%}"
        said = f"{what}; {spread}" if what else spread
        found = Number(value, "measured", f"{self.source}; {said}")
        self.found[field] = self.rated(field, found) or found
        self.progress(f"{field} = {value:.6g}; {said}")
        return value

    def rated(self, field: str, found: Number) -> Number | None:
        """Return what a data sheet says of a number, if it is near what was found."""
        near = [
            (abs(math.log(sheet.value / found.value)), sheet)
            for name in DEVICES * (field in _SHEET)
            if (device := load_device(name)).arch == self.chip.arch
            and (field != "clock_hz" or names_gpu(name, self.chip.card))
            and (sheet := device.provenance[field]).kind == "spec"
        ]
        apart, sheet = min(near, key=lambda one: one[0], default=(math.inf, found))
        if apart > _NEAR:
            return None
        said = f"{sheet.source.partition('; measured')[0]}; measured {found.value:.6g}"
        return Number(sheet.value, "spec", f"{said} ({found.source})")

    def runs(self, kernel: Microkernel) -> list[Readings]:
        ctas = self.sms if kernel.ctas == "one per SM" else kernel.cluster
        return [self.chip.run(kernel, ctas=ctas) for _ in range(_RUNS)]

    def rates(self, kernel: Microkernel) -> list[float]:
        return [per_cycle(r, work=kernel.work) for r in self.runs(kernel)]

    def steps(self, kernel: Microkernel, steps: int = 0) -> list[float]:
        return [cycles_per_step(r, steps=steps or kernel.work) for r in self.runs(kernel)]

    def sustained(self, kernel: Microkernel, seconds: float) -> tuple[list[float], float]:
        """Return the clocks of the last half of launches without a pause; their work a second."""
        cycles = cycles_per_step(self.chip.run(kernel.lasting(1), ctas=self.sms), steps=1)
        long = kernel.lasting(math.ceil(_LAUNCH_SECONDS * self.found["clock_hz"].value / cycles))
        launches = max(_RUNS, round(seconds / _LAUNCH_SECONDS))
        last = [self.chip.run(long, ctas=self.sms) for _ in range(launches)][launches // 2 :]
        rate = float(np.median([work_per_second(r, work=long.work) for r in last]))
        return [clock_hz(r) for r in last], rate

    def chase(self, name: str, links: int, stride_bytes: int, evict: Microkernel | None) -> None:
        """Note the latency of a chain; ``evict`` runs between its making and its use."""
        kernel, values = MICROKERNELS[name], []
        for _ in range(_RUNS):
            self.chip.run(chain_kernel(links, stride_bytes), ctas=1)
            if evict:
                self.chip.run(evict, ctas=self.sms)
            values.append(cycles_per_step(self.chip.run(kernel, ctas=1), steps=kernel.work))
        self.note(f"{name}_cycles", values, pick=min)


def _threads(bench: _Bench) -> None:
    """Note the clock, the rates and latencies of what threads do."""
    clocks = [clock_hz(r) for r in bench.runs(MICROKERNELS["clock"])]
    what = "under fp32 work on every SM, in a burst of milliseconds"
    clock = bench.note("clock_hz", clocks, what, pick=np.median)
    if "MIG" in bench.chip.card:
        bench.progress(f"note: {bench.chip.card} is a slice; these are the numbers of the slice")
    if max(clocks) - min(clocks) > _UNSTEADY * clock:
        bench.progress(
            f"note: the clock moves, {min(clocks) / 1e6:.0f} to {max(clocks) / 1e6:.0f} MHz: is "
            "the card busy, or hot? run it again alone"
        )
    rated = next((d.clock_hz for d in map(load_device, DEVICES)
                  if names_gpu(d.name, bench.chip.card)), clock)  # fmt: skip
    if clock < rated / math.exp(_NEAR):
        bench.progress(
            f"note: the clock is {clock / 1e6:.0f} MHz, and {rated / 1e6:.0f} MHz by the data "
            "sheet: it is locked, capped or throttled, and so are these numbers"
        )
    for name in _RATES:
        bench.note(f"{name}_per_cycle_per_sm", bench.rates(MICROKERNELS[name]))
    for name in _LATENCIES:
        bench.note(f"{name}_latency_cycles", bench.steps(MICROKERNELS[f"{name}_latency"]), pick=min)


def _products(bench: _Bench) -> None:
    """Note the rate of tensor cores, and the clock that they and FMA may keep.

    Where only tcgen05 has the full rate, the numbers stay those of a known device.
    """
    latency = min(bench.steps(TENSOR_KERNELS["mma_latency"]))
    rates = {"mma": bench.rates(TENSOR_KERNELS["mma"])}
    each = max(rates["mma"])
    what = f"mma.sync m16n8k16 bf16: {each:.4g} FLOP a cycle, {latency:.4g} cycles in a chain"
    if bench.chip.arch == "sm_90a":
        rates |= {f"wgmma_n{n}": bench.rates(TENSOR_KERNELS[f"wgmma_n{n}"]) for n in WGMMA_COLUMNS}
        cycles = (f"n={n} {2**11 * n / max(rates[f'wgmma_n{n}']):.4g}" for n in WGMMA_COLUMNS)
        what = f"wgmma m64nNk16 bf16, cycles each: {', '.join(cycles)}; {what}"
    elif 90 <= bench.generation < 120:
        bench.progress(what)
        return
    best = max(rates, key=lambda name: max(rates[name]))
    bench.note("tensor_flop_per_cycle_per_sm", rates[best], what)
    fma, _ = bench.sustained(MICROKERNELS["clock"], _SUSTAINED_SECONDS / 2)
    clocks, flop = bench.sustained(TENSOR_KERNELS[best], _SUSTAINED_SECONDS)
    what = f"{best} on every SM for {_SUSTAINED_SECONDS:g} s, {flop / 1e12:.4g} TFLOP/s"
    what += f"; fp32 FMA for half as long: {np.median(fma) / 1e6:.0f} MHz"
    bench.note("tensor_clock_hz", clocks, what, pick=np.median)


def _memory(bench: _Bench) -> None:
    """Note bandwidths and latencies of DRAM, L2 and L1."""
    # A quarter of L2: it stays there even where each half of the chip keeps a copy of its own.
    resident, sms = bench.chip.attributes["L2CacheSize"] // 4, bench.sms
    write = stream_kernel("dram_write", "write", ctas=sms, total_bytes=_STREAM_BYTES)
    read = stream_kernel("dram_read", "read", ctas=sms, total_bytes=_STREAM_BYTES)
    l2 = stream_kernel("l2_read", "read", ctas=sms, total_bytes=resident, passes=64, wide=4)
    writing = max(work_per_second(r, work=write.work) for r in bench.runs(write))
    reading = [work_per_second(r, work=read.work) for r in bench.runs(read)]
    bench.note("dram_bytes_per_second", reading, f"reads; writes {writing:.4g}")
    red = TENSOR_KERNELS["red"]
    alone, all_ = max(bench.rates(red)), sms * max(bench.rates(red.lasting(1)))
    what = f"red.global.add.f32: {all_:.4g} adds a cycle, {alone:.4g} of one SM alone"
    bench.note("l2_bytes_per_cycle", [sms * rate for rate in bench.rates(l2)], what)
    # One link to itself, which L1 has after the first step; then a line of every slice of L2.
    bench.chase("l1_latency", 1024, 0, None)
    bench.chase("l2_latency", _L2_CHAIN_LINKS, CHAIN_BYTES, None)
    bench.chase("dram_latency", _DRAM_CHAIN_LINKS, _DRAM_STRIDE_BYTES, read)


def _copies(bench: _Bench) -> None:
    """Note what comes from L2 to an SM: by loads, and by TMA with more and more bytes in flight."""
    loads = stream_kernel("fill_read", "read", ctas=1, total_bytes=1 << 20, passes=16, wide=4)
    best = bench.rates(replace(loads, ctas="one"))
    what = f"loads of one SM alone: {max(best):.4g} B a cycle"
    if bench.generation >= 90:
        curve = []
        for size in (4096, 8192, 16384):
            for depth in (1, 2, 4, 8, 16):
                if size * depth <= BULK_BYTES:
                    kernel = bulk_kernel(size, depth)
                    alone = bench.rates(kernel)
                    all_ = max(bench.rates(kernel.lasting(1)))
                    curve.append(f"{depth}x{size >> 10}K {max(alone):.3g} ({all_:.3g})")
                    best = max(best, alone, key=max)
        what = f"{what}; by TMA in flight, on one SM (on each of all): {', '.join(curve)}"
        waits = {}
        for n in (128, 1024, 4096, 16384):
            waits[n] = bench.steps(bulk_kernel(n, 1, total=n << 12), 1 << 12)
        l2 = bench.found["l2_latency_cycles"].value
        told = ", ".join(f"{n} B {min(cycles):.4g}" for n, cycles in waits.items())
        told = f"cp.async.bulk and its wait, one at a time: {told} cycles; the first less L2's"
        bench.note("tma_latency_cycles", [n - l2 for n in waits[128]], told, pick=min)
    bench.note("fill_bytes_per_cycle_per_sm", best, what)


def _barriers(bench: _Bench) -> None:
    """Note an arrival at an mbarrier and its wait: within a CTA, between two of a cluster."""
    near, what = bench.steps(TENSOR_KERNELS["mbarrier"]), "half a round trip between two warps"
    here = bench.note("mbarrier_latency_cycles", near, what, pick=min)
    if bench.generation >= 90:
        far = [cycles - here for cycles in bench.steps(TENSOR_KERNELS["cluster"])]
        what = "the same between two CTAs of a cluster, less that of one CTA"
        bench.note("cluster_latency_cycles", far, what, pick=min)


def _told(chip: Gpu, source: str) -> dict[str, Number]:
    """Return what the driver says, and what is the same on every architecture since sm_80."""
    devices = sorted(map(load_device, DEVICES), key=lambda d: arch_number(d.arch))
    older = [d for d in devices if arch_number(d.arch) <= arch_number(chip.arch)]
    kin = (older or devices[:1])[-1]
    numbers = {field: kin.provenance[field] for field in (*_COMMON, *_ALIKE)}
    for field in _ALIKE:
        said = f"not measured; as {kin.name}: {numbers[field].source}"
        numbers[field] = replace(numbers[field], source=said)
    driver = f"{source}: the driver's attribute"
    for field, attribute in _ATTRIBUTES.items():
        numbers[field] = Number(chip.attributes[attribute], "spec", f"{driver} {attribute}")
    for size in (4, 8, 16):
        at_once = Number(chip.clusters(size), "spec", f"{source}: the driver's occupancy")
        numbers[f"clusters_of_{size}"] = at_once
    numbers["dram_bytes"] = Number(chip.dram_bytes, "spec", f"{source}: the driver")
    return numbers


class CupyGpu:
    """The current GPU, through CuPy.  Raises LaunchError where there is none."""

    def __init__(self, name: str = "") -> None:
        """Read its attributes and allocate the data area."""
        cupy = gpu()
        device = cupy.cuda.Device()
        properties = cupy.cuda.runtime.getDeviceProperties(device.id)
        self.card = properties["name"].decode()
        self.name = name or self.card
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
        function, smem = self._function(kernel), kernel.smem_bytes
        function((ctas,), (kernel.threads,), (out, self._data), shared_mem=smem)
        return np.asarray(out.get(), np.uint64)

    def empty_launch_seconds(self, launches: int = 500) -> Sequence[float]:
        """Return the times of an empty kernel among ``launches`` in a graph."""
        cupy = gpu()
        function = self._function(_EMPTY)
        out = cupy.zeros((1, 4), np.uint64)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            for _ in range(launches):
                function((1,), (_EMPTY.threads,), (out, self._data))
            graph = stream.end_capture()
            found = []
            for _ in range(_RUNS):
                begin, end = cupy.cuda.Event(), cupy.cuda.Event()
                begin.record(stream)
                graph.launch(stream)
                end.record(stream)
                end.synchronize()
                found.append(cupy.cuda.get_elapsed_time(begin, end) * 1e-3 / launches)
        return found

    def clusters(self, ctas: int) -> int:
        """Ask the driver; before sm_90 there are none, and nothing keeps CTAs apart."""
        if arch_number(self.arch) < 90:
            return self.attributes["MultiProcessorCount"] // ctas
        smem = self.attributes["MaxSharedMemoryPerMultiprocessor"] // 2  # two do not fit
        function = load(
            assemble(_EMPTY.ptx(self.arch), self.arch).bytes, "probe", smem_bytes=smem, cluster=ctas
        )
        return active_clusters(function.ptr, ctas, _EMPTY.threads, smem)

    def _function(self, kernel: Microkernel) -> Any:
        text = kernel.ptx(self.arch)
        if text not in self._functions:
            code = assemble(text, self.arch).bytes
            self._functions[text] = load(code, "probe", smem_bytes=kernel.smem_bytes)
        return self._functions[text]
