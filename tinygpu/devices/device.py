"""Devices: the numbers of one chip, each with where it comes from.

A machine says which levels and instructions there are; a device says how many, how large and how
fast.  It is a data file (``tinygpu/devices/*.json``) in which each number is

    {"value": 132, "kind": "spec", "source": "NVIDIA H200 data sheet"}

``spec``: from a data sheet or guide; ``measured``: from a run on such a chip; ``fitted``: chosen so
that a model agrees with runs, or an estimate until there is one (the source says which).  Rates are
per cycle of the SM clock, in thread-level results (a warp's instruction gives 32).

A number is what a data sheet says or a micro-kernel sees of one thing that stands alone
(``tinygpu calibrate``), and nothing of a model: what stands around it in a kernel, the time model
adds, by constants of the architecture (``search/time/fitted.py``).  ``docs/measuring.md``, section
"The chip's own numbers", has each of them beside its rule.

>>> h200 = load_device("h200")
>>> h200.sms, h200.smem_bytes_per_cta_max
(132, 232448)
>>> h200.provenance["clock_hz"].kind
'spec'
>>> h200.with_values(sms=114).sms
114

Source: CUDA C++ Programming Guide, "Compute Capabilities" and "Arithmetic Instructions".
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from tinygpu.document import document, fields_of
from tinygpu.errors import DeviceError, TinyGpuError, nearest, require_kind

__all__ = [
    "ARCHITECTURES",
    "DEVICES",
    "NUMBERS",
    "Device",
    "Errors",
    "Kind",
    "Number",
    "adds_vectors",
    "arch_number",
    "device_of",
    "label",
    "limits",
    "load_device",
    "names_gpu",
    "to_json",
]

DEVICES = (
    "h100", "h100_pcie", "gh200", "h200", "a100", "rtx3060", "l40s", "rtx4090", "b200", "rtx5090",
    "rtx_pro_6000",
)  # fmt: skip
"""Names of the devices that come with the package; of one architecture the best known is last."""

ARCHITECTURES = (
    "sm_75", "sm_80", "sm_86", "sm_87", "sm_88", "sm_89", "sm_90", "sm_90a",
    *(f"sm_{number}{kind}" for number in (100, 103, 110, 120, 121) for kind in ("", "a", "f")),
)  # fmt: skip
"""What PTX is made for, by ptxas's names; those of PTX ISA 9.0 that ptxas 13.0 takes."""

Kind = Literal["spec", "measured", "fitted"]
_FORMAT, _VERSION = "tinygpu device", 4
_FAR, _LARGEST = 1000, 1e40
_POWERS = ("sector_bytes", "register_allocation_unit")
_WITHIN = (
    ("clusters_of_4", 4, "sms"), ("clusters_of_8", 8, "sms"), ("clusters_of_16", 16, "sms"),
    ("smem_bytes_per_cta_max", 1, "smem_bytes_per_sm"),
    ("threads_per_cta_max", 1, "threads_per_sm"),
)  # fmt: skip
_FOLDER = Path(__file__).parent
_OTHERS = frozenset(
    ("pcie", "nvl", "hbm3e", "ti", "super", "d", "laptop", "mobile", "max", "mig", "grid")
)
"""Words that tell cards of one name apart: their counts, clocks or memories differ."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number and where it comes from."""

    value: float
    kind: Kind
    source: str


@dataclass(frozen=True, slots=True)
class Errors:
    """How far the time model was off, with a device's numbers, on kernels of a machine.

    Of ``count`` kernels that no number was fitted to: the ``median`` size of log(predicted /
    measured), and its ``bias``, the median with its sign: above 0, they are faster than predicted.
    """

    median: float
    bias: float
    count: int

    def __str__(self) -> str:
        """As ``5.1 %``."""
        return f"{100 * math.expm1(self.median):.1f} %"


@dataclass(frozen=True, slots=True)
class Device:
    """The numbers of one chip; ``numbers`` holds them again, with their sources.

    ``errors`` are by machine, of those that were measured with exactly these numbers.

    ``issue_per_cycle_per_scheduler`` counts warp instructions; ``l2_bytes_per_cycle`` is of the
    whole chip.  ``barrier_latency_cycles`` is a ``bar.sync`` of a CTA whose warps arrive together,
    ``launch_seconds`` an empty kernel's time in a CUDA graph.  ``tensor_flop_per_cycle_per_sm`` is
    dense and of 16-bit inputs with fp32 sums;
    ``fill_bytes_per_cycle_per_sm`` comes from L2 to one SM, the others idle.
    ``tma_latency_cycles`` is a 128 B bulk copy and its wait, less L2's latency;
    ``mbarrier_latency_cycles`` half a round trip between two warps of a CTA;
    ``cluster_latency_cycles`` the same between two CTAs of a cluster, less that (0: there is none);
    ``clusters_of_4`` how many of 4 CTAs run at once, one on an SM (0: none): one lies in one GPC
    (of 16 only where the chip takes more than 8);
    ``tensor_clock_hz`` the clock that is left where tensor cores do nothing but products, on every
    SM, without a pause.
    """

    name: str
    arch: str
    sms: int
    clock_hz: float
    smem_bytes_per_sm: int
    smem_bytes_per_cta_max: int
    smem_reserved_bytes_per_cta: int
    registers_per_sm: int
    registers_per_thread_max: int
    register_allocation_unit: int
    threads_per_sm: int
    threads_per_cta_max: int
    ctas_per_sm: int
    warp_schedulers_per_sm: int
    issue_per_cycle_per_scheduler: float
    fma_f32_per_cycle_per_sm: float
    fma_f64_per_cycle_per_sm: float
    int_per_cycle_per_sm: float
    cvt_f64_per_cycle_per_sm: float
    cvt_16_per_cycle_per_sm: float
    sfu_per_cycle_per_sm: float
    shuffle_per_cycle_per_sm: float
    smem_bytes_per_cycle_per_sm: float
    l1_latency_cycles: float
    l2_bytes: int
    l2_bytes_per_cycle: float
    l2_latency_cycles: float
    dram_bytes: int
    dram_bytes_per_second: float
    dram_latency_cycles: float
    smem_latency_cycles: float
    fma_latency_cycles: float
    fma_f64_latency_cycles: float
    barrier_latency_cycles: float
    launch_seconds: float
    sector_bytes: int
    tensor_flop_per_cycle_per_sm: float
    fill_bytes_per_cycle_per_sm: float
    clusters_of_4: int
    clusters_of_8: int
    clusters_of_16: int
    tma_latency_cycles: float
    mbarrier_latency_cycles: float
    cluster_latency_cycles: float
    tensor_clock_hz: float
    numbers: tuple[tuple[str, Number], ...]
    errors: tuple[tuple[str, Errors], ...] = ()

    @staticmethod
    def of(
        name: str,
        arch: str,
        numbers: Mapping[str, Number],
        errors: Mapping[str, Errors] = MappingProxyType({}),
    ) -> Device:
        """Make a device from each field's number.

        Raises DeviceError for one that is missing, unknown, no positive number, or no whole number
        where it counts something.
        """
        require_kind("device: name", name, str, DeviceError)
        require_kind("device: numbers", numbers, Mapping, DeviceError)
        where = f"device {name}"
        if not name.strip() or not name.isprintable():
            raise DeviceError(f"device {name!r}: give it a name that can be printed")
        if arch not in ARCHITECTURES:
            raise DeviceError(f"{where}: arch {arch}; {nearest(str(arch), ARCHITECTURES)}")
        for field in numbers:
            if field not in NUMBERS:
                raise DeviceError(f"{where}: number {field} is unknown; {nearest(field, NUMBERS)}")
        for field, whole in NUMBERS.items():
            if field not in numbers:
                raise DeviceError(
                    f"{where}: number {field} is missing; add it, or run tinygpu calibrate"
                )
            _check(f"{where}: {field}", numbers[field], whole=whole)
        values: dict[str, Any] = {
            field: int(numbers[field].value) if whole else float(numbers[field].value)
            for field, whole in NUMBERS.items()
        }
        ordered = tuple((field, numbers[field]) for field in NUMBERS)
        for machine, found in errors.items():
            _check_errors(f"{where}: errors of {reprlib.repr(machine)}", found)
        return Device(name=name, arch=arch, numbers=ordered, errors=tuple(errors.items()), **values)

    @property
    def provenance(self) -> dict[str, Number]:
        """Each field's number with its kind and source."""
        return dict(self.numbers)

    def with_values(
        self, *, kind: Kind = "fitted", source: str = "given by the caller", **values: float
    ) -> Device:
        """Return the device with some numbers changed, and no errors, which were of the others.

        Raises DeviceError as ``of`` does.
        """
        changed = {field: Number(value, kind, source) for field, value in values.items()}
        return Device.of(self.name, self.arch, self.provenance | changed)

    def __str__(self) -> str:
        """One number a line, with its kind and source."""
        lines = [f"device {self.name} ({self.arch})"]
        for field, n in self.numbers:
            lines.append(f"  {field:32} {n.value:<16.10g} {n.kind:9} {n.source}")
        for machine, e in self.errors:
            lines.append(f"  error of {machine:23} {e!s:16} {e.count} kernels, bias {e.bias:+.3f}")
        return "\n".join(lines)


NUMBERS: Mapping[str, bool] = {
    f.name: f.type == "int"
    for f in fields(Device)
    if f.name not in ("name", "arch", "numbers", "errors")
}
"""The fields that are numbers, and whether each is a whole one."""

_MAY_BE_ZERO = (
    "smem_reserved_bytes_per_cta", "tma_latency_cycles", "cluster_latency_cycles",
    "clusters_of_4", "clusters_of_8", "clusters_of_16",
)  # fmt: skip


def load_device(name_or_path: str | Path) -> Device:
    """Load a device by its name, or from a file (a Path, or a string that ends in ``.json``).

    Raises DeviceError for an unknown name, an unreadable or truncated file, or a bad number.
    """
    text = str(name_or_path)
    if not isinstance(name_or_path, Path) and not text.endswith(".json"):
        if text not in DEVICES:
            raise DeviceError(
                f"device {text}: {nearest(text, DEVICES)}; or give the path of a .json file"
            )
        return _parse(text, (_FOLDER / f"{text}.json").read_text(encoding="utf-8"))
    try:
        return _plausible(text, _parse(text, Path(name_or_path).read_text(encoding="utf-8-sig")))
    except OSError as error:
        raise DeviceError(
            f"device file {text}: {error.strerror}; tinygpu calibrate writes one"
        ) from None
    except UnicodeDecodeError:
        raise DeviceError(f"device file {text}: not UTF-8 text; write it again") from None


def names_gpu(device: str, gpu: str) -> bool:
    """Whether a device's name is that of the GPU that the driver calls so.

    >>> names_gpu("rtx3060", "NVIDIA GeForce RTX 3060"), names_gpu("h200", "NVIDIA GH200 480GB")
    (True, False)
    >>> [names_gpu(name, "NVIDIA H100 PCIe") for name in ("h100", "h100_pcie")]
    [False, True]
    """
    words = _words(device)
    letters = "[^a-z0-9]*".join("".join(words))
    named = letters and re.search(rf"(?<![a-z0-9]){letters}(?![a-z0-9])", gpu.lower())
    return bool(named) and (set(_words(gpu)) & _OTHERS) <= set(words)


def device_of(gpu: str) -> str:
    """Return the name of the device that comes with the package for a GPU, or "" if none does.

    >>> device_of("NVIDIA RTX PRO 6000 Blackwell Server Edition"), device_of("NVIDIA H100 NVL")
    ('rtx_pro_6000', '')
    """
    return next((name for name in DEVICES if names_gpu(name, gpu)), "")


def _words(name: str) -> list[str]:
    return re.findall("[a-z0-9]+", name.lower())


def label(device: Device) -> str:
    """Return a device's name, marked unless its numbers are those that come with the package.

    >>> h200 = load_device("h200")
    >>> label(h200), label(h200.with_values(sms=114))
    ('h200', 'h200 (a file)')
    """
    if device.name in DEVICES and device == load_device(device.name):
        return device.name
    return f"{device.name} (a file)"


def arch_number(arch: str) -> int:
    """Return the number of an architecture; 0 if its name has none.

    >>> arch_number("sm_90a"), arch_number("sm_120f")
    (90, 120)
    """
    return int("".join(c for c in arch if c.isdigit()) or 0)


@cache
def limits(arch: str) -> Device:
    """Return a device of an architecture, for what all chips of it have: threads, shared memory.

    That is the one that comes with the package, or the nearest older one.

    >>> limits("sm_90a").name, limits("sm_88").name, limits("sm_88").arch
    ('h200', 'rtx3060', 'sm_88')
    """
    every = sorted(map(load_device, DEVICES), key=lambda d: arch_number(d.arch))
    older = [d for d in every if arch_number(d.arch) <= arch_number(arch)] or every[:1]
    return Device.of(older[-1].name, arch, older[-1].provenance)


def adds_vectors(arch: str, dtype: str) -> bool:
    """Whether one ``red.global`` adds 2 or 4 neighbours on this architecture.

    >>> adds_vectors("sm_80", "f32"), adds_vectors("sm_90a", "f32"), adds_vectors("sm_90a", "f64")
    (False, True, False)
    """
    return dtype == "f32" and arch_number(arch) >= 90  # spec: PTX ISA 9, red with .v2, .v4


def to_json(device: Device) -> str:
    """Return the text of a device's file."""
    tree = {
        "format": _FORMAT,
        "version": _VERSION,
        "name": device.name,
        "arch": device.arch,
        "numbers": {
            field: {"value": getattr(device, field), "kind": n.kind, "source": n.source}
            for field, n in device.numbers
        },
    }
    if device.errors:
        tree["errors"] = {machine: asdict(found) for machine, found in device.errors}
    return json.dumps(tree, indent=2) + "\n"


def _parse(where: str, text: str) -> Device:
    try:
        kinds = {"name": str, "arch": str, "numbers": dict}
        tree = document(text, _FORMAT, _VERSION, kinds, {"errors": dict})
        numbers = {
            field: Number(**fields_of(entry, field, {"value": None, "kind": str, "source": str}))
            for field, entry in tree["numbers"].items()
        }
        each = {"median": None, "bias": None, "count": int}
        errors = {
            machine: Errors(**fields_of(entry, f"errors of {machine}", each))
            for machine, entry in tree.get("errors", {}).items()
        }
        return Device.of(tree["name"], tree["arch"], numbers, errors)
    except TinyGpuError as error:
        raise DeviceError(f"device file {where}: {error}") from None


def _plausible(where: str, device: Device) -> Device:
    """Return a device whose numbers are of the size of a GPU's; after a slip of units they are not.

    Raises DeviceError otherwise, and where two numbers contradict each other.
    """
    like = load_device("h200")
    for field in NUMBERS:
        number, usual = getattr(device, field), getattr(like, field)
        if number and not usual / _FAR <= number <= usual * _FAR:
            raise DeviceError(
                f"device file {where}: {field} is {number:.6g}; {like.name} has {usual:.6g}, and "
                f"up to {_FAR} times as much or as little is read: look at its unit"
            )
        if field in _POWERS and number & (number - 1):
            raise DeviceError(f"device file {where}: {field} is {number}; give a power of two")
    for field, times, whole in _WITHIN:
        number, most = getattr(device, field), getattr(device, whole) // times
        if number > most:
            raise DeviceError(
                f"device file {where}: {field} is {number}; with {whole} "
                f"{getattr(device, whole)} it is at most {most}"
            )
    return device


def _check_errors(what: str, found: Errors) -> None:
    for value, least in ((found.median, 0.0), (found.bias, -_LARGEST), (found.count, 1)):
        if isinstance(value, bool) or not isinstance(value, int | float) or value < least:
            raise DeviceError(f"{what}: {reprlib.repr(value)}; give a number from {least:g} on")


def _check(what: str, number: Number, *, whole: bool) -> None:
    value: object = number.value
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not abs(value) < _LARGEST  # nor is nan
    ):
        raise DeviceError(f"{what} is {reprlib.repr(value)}; give a finite number below {_LARGEST}")
    zero_is_fine = what.rpartition(" ")[2] in _MAY_BE_ZERO
    if value < 0 or (value == 0 and not zero_is_fine):
        raise DeviceError(f"{what} is {value}; it has to be more than 0")
    if whole and value != int(value):
        raise DeviceError(f"{what} is {value}; it counts something: give a whole number")
    if number.kind not in get_args(Kind):
        raise DeviceError(
            f"{what} has kind {number.kind!r}; {nearest(number.kind, get_args(Kind))}"
        )
    if not isinstance(number.source, str) or not number.source:
        raise DeviceError(f"{what} has no source; say where the number comes from")
